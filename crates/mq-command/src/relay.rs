//! `mq relay`: QUIC for a client or a broker that does not speak it.

use std::{io::Write as _, num::NonZeroUsize, path::PathBuf, time::Duration};

use anyhow::bail;
use clap::ArgAction;
use mq_relay::{Relay, RelayOptions};
use mq_transport::{
    Address, ConnectOptions, EarlyDataPolicy, ListenOptions, QuicOptions, Repeat, Scheme,
    ServerIdentity,
};
use tracing_subscriber::filter::LevelFilter;

use crate::{Outcome, connect, ends::until_end};

/// Options of `relay`.
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Address at which clients connect, such as `mqtt://127.0.0.1:1883`; several are allowed
    #[arg(long, value_name = "URL", required = true)]
    listen: Vec<Address>,
    /// The broker, such as `quic://broker.example`; several are tried in their order
    #[arg(long, value_name = "URL", required = true)]
    to: Vec<Address>,
    /// Early data to the broker: off, connect, or full: also what follows, up to the first message of QoS 2
    #[arg(long, value_name = "POLICY", default_value = "connect")]
    early: EarlyDataPolicy,
    /// Early data that is taken from clients: off, connect or full
    #[arg(long, value_name = "POLICY", default_value = "connect")]
    early_from_clients: EarlyDataPolicy,
    /// Greatest number of clients
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    connections: usize,
    /// Greatest number of clients of one address
    #[arg(long, value_name = "COUNT")]
    connections_per_address: Option<NonZeroUsize>,
    /// Seconds in which the broker has to answer a client's CONNECT
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = clap::value_parser!(u64).range(1..))]
    connect_timeout: u64,
    /// Seconds that clients have to leave after SIGTERM or Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    drain: u64,
    /// Small QUIC datagrams that are sent twice: off, auto, probe, or after a gap such as 3ms
    #[arg(long, value_name = "POLICY", default_value = "off")]
    quic_repeat: Repeat,
    /// Certificate chain (PEM) for clients that connect over TLS or QUIC
    #[arg(long, value_name = "FILE", requires = "key", help_heading = "Clients")]
    cert: Option<PathBuf>,
    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "Clients")]
    key: Option<PathBuf>,
    /// CA certificates (PEM) to trust for the broker instead of the system's
    #[arg(long, value_name = "FILE", help_heading = "Broker")]
    cafile: Option<PathBuf>,
    /// Certificate (PEM) that the relay shows to the broker
    #[arg(
        long,
        value_name = "FILE",
        requires = "client_key",
        help_heading = "Broker"
    )]
    client_cert: Option<PathBuf>,
    /// Private key (PEM) of that certificate
    #[arg(
        long,
        value_name = "FILE",
        requires = "client_cert",
        help_heading = "Broker"
    )]
    client_key: Option<PathBuf>,
    /// Server name to ask the broker for and to verify instead of the host
    #[arg(long, value_name = "NAME", help_heading = "Broker")]
    server_name: Option<String>,
    /// Trust any certificate of the broker: for tests only
    #[arg(long, conflicts_with = "cafile", help_heading = "Broker")]
    insecure: bool,
    /// Say what happens to each client
    #[arg(short = 'd', long)]
    debug: bool,
    /// Show this
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Outcome> {
    connect::log(if args.debug {
        LevelFilter::DEBUG
    } else {
        LevelFilter::WARN
    });
    let relay = Relay::bind(options(&args)?).await?;
    let handle = relay.handle();
    let addresses = relay.local_addresses();
    let to: Vec<_> = args.to.iter().map(Address::to_string).collect();
    let mut out = std::io::stdout();
    for address in &addresses {
        writeln!(out, "{address} -> {}", to.join(", "))?;
    }
    let ended = until_end(None, async |_| {
        relay.serve().await;
        Ok(Outcome::Done)
    })
    .await;
    let cut = handle.drain(Duration::from_secs(args.drain)).await;
    if cut > 0 {
        eprintln!("mq: {cut} clients were still connected");
    }
    match ended? {
        // The usual end of a relay.
        Outcome::Signalled(_) => Ok(Outcome::Done),
        outcome => Ok(outcome),
    }
}

fn options(args: &Args) -> anyhow::Result<RelayOptions> {
    let quic = QuicOptions {
        repeat: args.quic_repeat,
        ..QuicOptions::default()
    };
    let mut connect_options = ConnectOptions {
        connect_timeout: Duration::from_secs(args.connect_timeout),
        server_name: args.server_name.clone(),
        quic: quic.clone(),
        ..ConnectOptions::default()
    };
    connect::trust(&mut connect_options, args.cafile.as_ref(), args.insecure);
    let files = args.client_cert.as_ref().zip(args.client_key.as_ref());
    connect::identity(&mut connect_options, files);
    let identity = match (&args.cert, &args.key) {
        (Some(chain), Some(key)) => Some(ServerIdentity::from_pem_files(chain, key)?),
        _ => None,
    };
    for address in args.listen.iter().chain(&args.to) {
        if address.scheme == Scheme::Mem {
            bail!("{address}: a pipe inside one process");
        }
    }
    if let Some(looped) = args.to.iter().find(|to| args.listen.contains(to)) {
        bail!("{looped}: the relay would connect to itself");
    }
    if let Some(encrypted) = args.listen.iter().find(|at| at.scheme.is_encrypted())
        && identity.is_none()
    {
        bail!("{encrypted}: clients need a certificate there: --cert and --key");
    }
    Ok(RelayOptions {
        listen_options: ListenOptions {
            identity,
            early_data: args.early_from_clients,
            quic,
            ..ListenOptions::default()
        },
        connect_options,
        early: args.early,
        connections: args.connections,
        connections_per_address: args.connections_per_address,
        ..RelayOptions::new(args.listen.clone(), args.to.clone())
    })
}
