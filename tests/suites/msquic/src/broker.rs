//! `mqbroker` as a process of its own, and its view of a client.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

use crate::{Failed, PATIENCE};

/// A broker, killed on drop.
pub struct Broker {
    process: Child,
    admin: String,
    /// QUIC address of the listener.
    pub address: SocketAddr,
}

impl Broker {
    /// Starts a broker with a policy for early data, and waits until it is ready.
    pub fn start(
        program: &str,
        config: &str,
        admin: &str,
        early_data: &str,
    ) -> Result<Self, Failed> {
        let mut process = Command::new(program)
            .args(["--config", config, "--early-data", early_data, "--announce"])
            .stdout(Stdio::piped())
            .spawn()?;
        let announced = process.stdout.take().expect("it is piped");
        let (sender, lines) = channel();
        // Ends with the broker.
        thread::spawn(move || {
            for line in BufReader::new(announced).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut broker = Self {
            process,
            admin: admin.into(),
            address: ([127, 0, 0, 1], 0).into(),
        };
        loop {
            let line = lines
                .recv_timeout(PATIENCE)
                .map_err(|_| "the broker does not start")?;
            if line == "ready" {
                return Ok(broker);
            }
            if let Some(address) = line.strip_prefix("quic://") {
                broker.address = address.parse()?;
            }
        }
    }

    /// Stops the broker in an orderly way: it keeps its tickets.
    pub fn stop(mut self) -> Result<(), Failed> {
        let process = self.process.id().to_string();
        Command::new("kill").args(["-TERM", &process]).status()?;
        let deadline = Instant::now() + PATIENCE;
        while self.process.try_wait()?.is_none() {
            if Instant::now() > deadline {
                return Err("the broker does not stop".into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns the JSON of a connected client.
    pub fn client(&self, id: &str) -> Result<String, Failed> {
        let mut admin = UnixStream::connect(&self.admin)?;
        admin.set_read_timeout(Some(PATIENCE))?;
        write!(
            admin,
            "GET /v1/clients/{id} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        admin.read_to_string(&mut answer)?;
        let (_, json) = answer.split_once("\r\n\r\n").ok_or("no answer of HTTP")?;
        Ok(json.into())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
