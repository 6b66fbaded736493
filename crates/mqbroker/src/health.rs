//! `mqbroker health`: whether a running broker serves, for what watches a container or a service.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::Args;
use mq_broker::Config;

/// A broker that serves answers in milliseconds. Container engines wait 30 s by default.
const PATIENCE: Duration = Duration::from_secs(5);

/// More is no answer to `/healthz`.
const LONGEST: u64 = 16 * 1024;

/// Address at which the broker is asked.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Place {
    /// The broker's configuration file, with `admin.socket` or `admin.http`
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The broker's admin socket
    #[arg(long, value_name = "FILE")]
    pub socket: Option<PathBuf>,
    /// The address of the broker's admin port
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<SocketAddr>,
}

enum Door {
    #[cfg(unix)]
    Socket(PathBuf),
    Port(SocketAddr),
}

/// Asks for `/healthz`.
///
/// # Errors
/// If no broker answers within 5 s, or the broker says that it does not serve.
pub(crate) fn run(place: &Place) -> anyhow::Result<()> {
    match place.door()? {
        #[cfg(unix)]
        Door::Socket(path) => {
            let at = path.display().to_string();
            let stream = std::os::unix::net::UnixStream::connect(path);
            let stream = stream.with_context(|| format!("no broker answers at {at}"))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            ask(stream, &at)
        }
        Door::Port(address) => {
            let at = address.to_string();
            let stream = TcpStream::connect_timeout(&address, PATIENCE);
            let stream = stream.with_context(|| format!("no broker answers at {at}"))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            ask(stream, &at)
        }
    }
}

impl Place {
    fn door(&self) -> anyhow::Result<Door> {
        if let Some(address) = self.http {
            return Ok(Door::Port(address));
        }
        #[cfg(unix)]
        if let Some(socket) = &self.socket {
            return Ok(Door::Socket(socket.clone()));
        }
        let path = self.config.as_deref().unwrap_or(Path::new(""));
        let admin = Config::read(path)?.admin;
        #[cfg(unix)]
        if let Some(socket) = admin.socket {
            return Ok(Door::Socket(socket));
        }
        let Some(mut address) = admin.http else {
            bail!(
                "{}: admin.socket and admin.http are missing: a running broker is asked there",
                path.display()
            );
        };
        // One that listens everywhere listens on loopback as well.
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        Ok(Door::Port(address))
    }
}

fn ask(mut stream: impl Read + Write, at: &str) -> anyhow::Result<()> {
    stream.write_all(
        b"GET /healthz HTTP/1.1\r\nHost: mqbroker\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    )?;
    let mut answer = String::new();
    let read = stream.take(LONGEST).read_to_string(&mut answer);
    read.with_context(|| format!("the broker at {at} does not answer"))?;
    let (head, said) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("the server at {at} is not a broker"))?;
    if head.split(' ').nth(1) == Some("200") {
        return Ok(());
    }
    bail!("the broker does not serve: {}", said.trim_end());
}
