//! Shows the server a certificate of the client's own (mutual TLS), over QUIC or TLS:
//! `mtls URL CERTIFICATES KEY [CA-FILE]`, all files in PEM form.
//!
//! `cargo run -p mq-client --example mtls -- mqtts://broker.example client.pem client.key ca.pem`
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use anyhow::Context;
use mq_client::{Client, ClientIdentity, ConnectOptions, Connector, Error, Trust};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let mut arg = || {
        args.next()
            .context("usage: mtls URL CERTIFICATES KEY [CA-FILE]")
    };
    let (url, certificates, key) = (arg()?, arg()?, arg()?);
    let trust = args.next().map_or(Trust::System, Trust::ca_file);

    let with = ConnectOptions::new()
        .trust(trust)
        .identity(ClientIdentity::new(certificates, key));
    let without = ConnectOptions {
        identity: None,
        ..with.clone()
    };
    for (what, options) in [("without", without), ("with", with)] {
        let connector = Connector::new(options)?;
        match Client::builder(&url)?.connector(connector).build().await {
            Ok(client) => {
                println!("{what} a certificate: let in");
                client.disconnect().await?;
            }
            Err(error @ (Error::Transport(_) | Error::Refused { .. } | Error::Ended(_))) => {
                println!("{what} a certificate: {error}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
