//! A client in EMQX's form (ALPN `mqtt`, one bidirectional stream) on MsQuic, as NanoSDK is, against brokers that it
//! starts and restarts: `suite-msquic MQBROKER CONFIGURATION CA_FILE ADMIN_SOCKET`. The configuration has one QUIC listener
//! and a `ticket_file`.
//!
//! A session makes a full handshake, resumes, or offers CONNECT, SUBSCRIBE and messages as early data, which the broker
//! takes or rejects, over a wire with a delay of 25 ms each way. In each, every message comes once. Prints a line a session;
//! exit status 1 if any fails.

mod broker;
mod link;
mod session;
mod wire;

use std::{process::ExitCode, time::Duration};

use broker::Broker;
use link::Endpoint;
use mq_codec::Version;
use session::Beginning;

/// The longest wait for any single event.
const PATIENCE: Duration = Duration::from_secs(20);

type Failed = Box<dyn std::error::Error>;

/// A session's early data, and what the broker has to make of it.
#[derive(Clone, Copy, PartialEq)]
enum Early {
    None,
    Accepted,
    /// Early data whose bytes leave again after the handshake.
    Rejected,
}

/// Sessions of one version, each with a ticket of one before.
struct Sessions<'a> {
    endpoint: &'a Endpoint,
    arguments: &'a [String],
    version: Version,
    number: usize,
}

impl Sessions<'_> {
    fn broker(&self, early_data: &str) -> Result<Broker, Failed> {
        let [program, config, _, admin] = self.arguments else {
            unreachable!("main has counted them");
        };
        Broker::start(program, config, admin, early_data)
    }

    /// Runs a session, and prints it if handshake and early data are as MsQuic and the broker should see them. Returns
    /// its ticket.
    fn run(
        &mut self,
        name: &str,
        broker: &Broker,
        ticket: Option<&[u8]>,
        handshake: &str,
        early: Early,
    ) -> Result<Vec<u8>, Failed> {
        self.number += 1;
        let is_v5 = self.version == Version::V5;
        let version = if is_v5 { "5.0" } else { "3.1.1" };
        let name = format!("MQTT {version}, {name}");
        let beginning = Beginning {
            version: self.version,
            client_id: &format!("msquic-{version}-{}", self.number),
            ticket,
            early: early != Early::None,
        };
        let shown = session::run(self.endpoint, broker, &beginning)
            .map_err(|error| format!("{name}: {error}"))?;
        let early_as_expected = match early {
            Early::None => shown.early_bytes == 0,
            Early::Accepted => shown.early_bytes > 0,
            Early::Rejected => shown.early_bytes == 0 && shown.sent_again,
        };
        let view = [
            format!("\"handshake\":\"{handshake}\""),
            format!("\"early_data\":{}", early == Early::Accepted),
        ];
        if !early_as_expected
            || shown.resumed != (handshake == "resumed")
            || view.iter().any(|field| !shown.view.contains(field))
        {
            return Err(
                format!("{name}: another handshake, or other early data: {shown:?}").into(),
            );
        }
        println!(
            "msquic, {name}: CONNACK {:.1} ms after the dial, {} bytes of early data accepted, each message once",
            shown.dial_to_connack.as_secs_f64() * 1e3,
            shown.early_bytes,
        );
        Ok(shown.ticket)
    }

    fn all(&mut self) -> Result<(), Failed> {
        let broker = self.broker("full")?;
        let name = "a new broker's first connection";
        self.run(name, &broker, None, "full", Early::None)?;
        let ticket = self.run("full handshake", &broker, None, "full", Early::None)?;
        let used = self.run("resumed", &broker, Some(&ticket), "resumed", Early::None)?;
        let ticket = self.run("0-RTT", &broker, Some(&used), "resumed", Early::Accepted)?;
        let name = "0-RTT by a used ticket";
        self.run(name, &broker, Some(&used), "full", Early::Rejected)?;
        broker.stop()?;
        let broker = self.broker("full")?;
        let name = "0-RTT after an orderly restart";
        let ticket = self.run(name, &broker, Some(&ticket), "resumed", Early::Accepted)?;
        broker.stop()?;
        let broker = self.broker("connect")?;
        let name = "0-RTT of which the broker acts on CONNECT alone";
        let ticket = self.run(name, &broker, Some(&ticket), "resumed", Early::Accepted)?;
        // The broker is killed, and its tickets are lost.
        drop(broker);
        let broker = self.broker("full")?;
        let name = "0-RTT by a ticket of a killed broker";
        let ticket = self.run(name, &broker, Some(&ticket), "full", Early::Rejected)?;
        broker.stop()?;
        let broker = self.broker("off")?;
        let name = "0-RTT to a broker that takes none";
        self.run(name, &broker, Some(&ticket), "resumed", Early::Rejected)?;
        Ok(())
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [_, _, ca, _] = &arguments[..] else {
        eprintln!("suite-msquic MQBROKER CONFIGURATION CA_FILE ADMIN_SOCKET");
        return ExitCode::FAILURE;
    };
    let endpoint = match Endpoint::new(ca) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            eprintln!("FAILED msquic: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut status = ExitCode::SUCCESS;
    for version in [Version::V3_1_1, Version::V5] {
        let mut sessions = Sessions {
            endpoint: &endpoint,
            arguments: &arguments,
            version,
            number: 0,
        };
        if let Err(error) = sessions.all() {
            println!("FAILED msquic, {error}");
            status = ExitCode::FAILURE;
        }
    }
    status
}
