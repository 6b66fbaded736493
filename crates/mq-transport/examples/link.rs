//! A link by itself, without MQTT: a server that answers in capitals, and a client that connects
//! twice, the second time with early data (0-RTT): `link [quic|tls|tcp|ws|wss]`.
//!
//! `cargo run -p mq-transport --example link`
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use mq_transport::{
    ConnectOptions, Connector, EarlyDataPolicy, Error, LaneId, Link, ListenOptions, Listener,
    Outbox, Progress, ServerIdentity, Trust,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let scheme = std::env::args().nth(1).unwrap_or_else(|| "quic".into());
    let identity = ServerIdentity::self_signed()?;
    let trust = Trust::Fingerprint(identity.fingerprint());
    let options = ListenOptions {
        identity: Some(identity),
        early_data: EarlyDataPolicy::Full,
        ..ListenOptions::default()
    };
    let address = format!("{scheme}://127.0.0.1:0").parse()?;
    let mut listener = Listener::bind(&address, &options).await?;
    // With the port that the system chose.
    let address = listener.local_address();
    let serving = tokio::spawn(async move {
        for _ in 0..2 {
            let link = listener.accept().await?.handshake().await?;
            answer(link).await?;
        }
        Ok::<_, Error>(())
    });

    // It keeps the tickets.
    let connector = Connector::new(ConnectOptions::new().trust(trust).early_data(true))?;
    for word in ["first", "second"] {
        let mut link = connector.connect(&address).await?;
        let mut outbox = Outbox::new();
        outbox.put_body(LaneId::CONTROL, &word.into());
        let answer = loop {
            if let Progress::Received(lane) = link.progress(&mut outbox, true).await? {
                let answer = link.received(lane);
                if answer.len() == word.len() {
                    break answer.split();
                }
            }
        };
        let answer = String::from_utf8_lossy(&answer);
        let stats = link.stats();
        println!(
            "{answer}: handshake {:?}, early data {:?}",
            stats.handshake, stats.early_data
        );
        link.close(std::time::Duration::from_secs(1)).await;
    }
    serving.await.expect("the server does not panic")
}

/// Sends back what arrives, in capitals, until the peer ends the link.
async fn answer(mut link: Link) -> Result<(), Error> {
    let mut outbox = Outbox::new();
    loop {
        match link.progress(&mut outbox, true).await? {
            Progress::Received(lane) => {
                let answer = link.received(lane).split().to_ascii_uppercase();
                outbox.put_body(lane, &answer.into());
            }
            Progress::Closed => return Ok(()),
            Progress::Flushed | Progress::LaneClosed(..) | Progress::Datagrams => {}
        }
    }
}
