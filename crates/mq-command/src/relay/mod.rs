//! `mq relay`: QUIC for a client or a broker that does not speak it.

mod descriptors;
mod file;
mod metrics;

use std::{io::Write as _, net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use clap::ArgAction;
use mq_relay::{PreparedChange, Relay, RelayHandle, RelayOptions};
use mq_transport::{
    Address, ClientAuth, ConnectOptions, EarlyDataPolicy, Error, ListenOptions, ProxyVersion,
    QuicOptions, Repeat, Scheme, ServerIdentity,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::{AbortHandle, JoinSet},
};
use tracing_subscriber::filter::LevelFilter;

use crate::{ends::signalled, line, log, tls_files};
use file::RelayFile;
use metrics::{Shown, ShownRelay};

/// The longest time that an option takes: a day.
const MAX_SECONDS: u64 = 24 * 60 * 60;

/// Half of QUIC's idle timeout: at most so many seconds of silence leave a connection to the broker open.
const MAX_QUIC_KEEP_ALIVE: u64 = 150;

/// Options of `relay`.
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[command(flatten)]
    route: RouteArgs,
    /// File with one or several relays in the place of the options: `[[relay]]` tables, whose keys are the options' names. SIGHUP has
    /// it read again
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "to"])]
    config: Option<PathBuf>,
    /// Address of HTTP with `/metrics`, for Prometheus, and `/healthz`
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Seconds that clients have to leave after SIGTERM or Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS))]
    drain: u64,
    /// Say what happens to each client
    #[arg(short = 'd', long)]
    debug: bool,
    /// Show this
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// Options of one relay, which a file may have as well.
#[derive(clap::Args, Clone, PartialEq, Debug)]
struct RouteArgs {
    /// Address at which clients connect, such as `mqtt://127.0.0.1:1883`; several are allowed
    #[arg(long, value_name = "URL")]
    listen: Vec<Address>,
    /// The broker, such as `quic://broker.example`; several are tried in their order
    #[arg(long, value_name = "URL")]
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
    /// Greatest number of clients of one IPv4 address, or of one IPv6 network of 64 bits
    #[arg(long, value_name = "COUNT")]
    connections_per_address: Option<NonZeroUsize>,
    /// Seconds in which the broker has to answer a client's CONNECT
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    connect_timeout: u64,
    /// PROXY header that tells the broker each client's address: v1, or v2 with the name in the client's certificate
    #[arg(long, value_name = "VERSION", help_heading = "Broker")]
    proxy_protocol: Option<ProxyVersion>,
    /// Small QUIC datagrams that are sent twice: off, auto, probe, or after a gap such as 3ms
    #[arg(long, value_name = "POLICY", default_value = "off")]
    quic_repeat: Repeat,
    /// Seconds of silence towards the broker after which QUIC sends a packet, so that NATs keep the connection: at most 150
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = clap::value_parser!(u64).range(1..=MAX_QUIC_KEEP_ALIVE), help_heading = "Broker")]
    quic_keep_alive: u64,
    /// Certificate chain (PEM) for clients that connect over TLS or QUIC
    #[arg(long, value_name = "FILE", requires = "key", help_heading = "Clients")]
    cert: Option<PathBuf>,
    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "Clients")]
    key: Option<PathBuf>,
    /// CA certificates (PEM) of clients, which then need a certificate
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "Clients")]
    client_ca: Option<PathBuf>,
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
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    log::write_from(if args.debug {
        LevelFilter::DEBUG
    } else {
        LevelFilter::WARN
    });
    let file = relays_of(&args)?;
    let shown = Shown::default();
    if let Some(address) = args.metrics.or(file.metrics) {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("--metrics {address}"))?;
        tokio::spawn(metrics::serve(listener, shown.clone()));
    }
    let ended = signalled()?;
    // Has the file read again.
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut relays = Relays {
        shown,
        ..Relays::default()
    };
    relays.change_to(file).await?;
    relays.announce()?;
    let reloading = async {
        loop {
            hang_up.recv().await;
            let changed = async { relays.change_to(relays_of(&args)?).await };
            match changed.await {
                // Whoever has read the first lines may have gone.
                Ok(()) => drop(relays.announce()),
                Err(error) => eprintln!("mq: reload: {}", line(&error)),
            }
        }
    };
    tokio::select! {
        _ = ended => {}
        () = reloading => {}
    }
    let cut = relays.drain(Duration::from_secs(args.drain)).await;
    if cut > 0 {
        eprintln!("mq: {cut} clients were still connected");
    }
    Ok(())
}

/// Returns the relays of the file, or the one of the options.
fn relays_of(args: &Args) -> anyhow::Result<RelayFile> {
    match &args.config {
        Some(path) => RelayFile::read(path),
        None => Ok(RelayFile {
            metrics: None,
            relays: vec![args.route.clone()],
        }),
    }
}

/// Relays of this process.
#[derive(Default)]
struct Relays {
    /// Relays as HTTP shows them: those that run, and those that the file has no more, until their last client has left.
    shown: Shown,
    running: Vec<RunningRelay>,
}

struct RunningRelay {
    args: RouteArgs,
    addresses: Vec<Address>,
    handle: RelayHandle,
    /// Task that accepts clients.
    accepting: AbortHandle,
}

impl Relays {
    /// Starts the relays of a file, gives those that listen at the same addresses as before their new options, and lets the others accept
    /// no more clients. Certificates are read again.
    ///
    /// # Errors
    /// If the file has a mistake, or a file that it names, before anything has changed; or if a relay cannot start, once the others have.
    async fn change_to(&mut self, file: RelayFile) -> anyhow::Result<()> {
        let wanted = file.relays.into_iter();
        let wanted = wanted.map(|args| Ok((options(&args)?, args)));
        let wanted = wanted.collect::<anyhow::Result<Vec<_>>>()?;
        self.check_addresses(&wanted)?;
        let clients = wanted.iter().map(|(options, _)| options.connections);
        let clients = clients.fold(0, usize::saturating_add);
        if let Some(line) = descriptors::make_room(clients) {
            eprintln!("mq: {line}");
        }
        let mut changes: Vec<(usize, PreparedChange, RouteArgs)> = Vec::new();
        let mut new = Vec::new();
        for (options, args) in wanted {
            let is_same = |one: &RunningRelay| one.args.listen == args.listen;
            let index = self.running.iter().position(is_same);
            // A second one at these addresses has no relay to change, and cannot start.
            match index.filter(|index| changes.iter().all(|(taken, ..)| taken != index)) {
                Some(index) => {
                    let change = self.running[index].prepare(options, &args)?;
                    changes.push((index, change, args));
                }
                None => new.push((options, args)),
            }
        }
        let before = std::mem::take(&mut self.running).into_iter();
        let mut before: Vec<_> = before.map(Some).collect();
        for (index, change, args) in changes {
            if let Some(mut one) = before[index].take() {
                change.apply();
                one.args = args;
                self.running.push(one);
            }
        }
        let gone: Vec<_> = before.into_iter().flatten().collect();
        // First, as a signal may end this here.
        self.show(&gone);
        for relay in &gone {
            // Its sockets are free again after this.
            relay.handle.drain(Duration::ZERO).await;
        }
        let mut result = Ok(());
        for (options, args) in new {
            match start(options, args).await {
                Ok(one) => self.running.push(one),
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.show(&[]);
        result
    }

    /// Shows the relays that run, and these in addition until their last client has left.
    fn show(&self, leaving: &[RunningRelay]) {
        let running = self.running.iter().map(RunningRelay::shown);
        let leaving = leaving.iter().map(RunningRelay::shown);
        self.shown.set(running.collect(), leaving);
    }

    /// Refuses to take a QUIC address from a relay that runs: it has its socket until its last client has gone.
    fn check_addresses(&self, wanted: &[(RelayOptions, RouteArgs)]) -> anyhow::Result<()> {
        for (_, args) in wanted {
            let others = self
                .running
                .iter()
                .filter(|one| one.args.listen != args.listen);
            let mut taken = others.flat_map(|one| &one.args.listen);
            if let Some(address) =
                taken.find(|at| at.scheme == Scheme::Quic && args.listen.contains(at))
            {
                bail!(
                    "{address}: a relay over QUIC takes other addresses beside it only by a restart"
                );
            }
        }
        Ok(())
    }

    /// Prints a line for each address.
    fn announce(&self) -> std::io::Result<()> {
        let mut out = std::io::stdout();
        for one in &self.running {
            let to: Vec<_> = one.args.to.iter().map(Address::to_string).collect();
            for address in &one.addresses {
                writeln!(out, "{address} -> {}", to.join(", "))?;
            }
        }
        out.flush()
    }

    /// Accepts no more clients, and waits until those present have gone, or for `patience`. Returns the number of those that stayed.
    async fn drain(self, patience: Duration) -> u64 {
        self.shown.end();
        let mut draining = JoinSet::new();
        for relay in self.shown.all() {
            draining.spawn(async move {
                let stayed = relay.drain(patience).await;
                relay.cut().await;
                stayed
            });
        }
        draining.join_all().await.into_iter().sum()
    }
}

impl RouteArgs {
    /// Returns `true` if files are read for the connections to the broker: they may have changed.
    fn names_files_for_the_broker(&self) -> bool {
        self.cafile.is_some() || self.client_cert.is_some()
    }
}

impl RunningRelay {
    fn shown(&self) -> ShownRelay {
        ShownRelay {
            name: self.addresses[0].to_string(),
            handle: self.handle.clone(),
            accepting: self.accepting.clone(),
        }
    }

    /// Reads what changes by new options, and changes nothing yet.
    fn prepare(&self, options: RelayOptions, args: &RouteArgs) -> Result<PreparedChange, Error> {
        if self.args == *args && !args.names_files_for_the_broker() {
            // The broker's state stays, such as a pause after a failure.
            self.handle.prepare_certificates(&options.listen_options)
        } else {
            self.handle.prepare(options)
        }
    }
}

/// Starts a relay. Its address may have been another's a moment ago.
async fn start(options: RelayOptions, args: RouteArgs) -> anyhow::Result<RunningRelay> {
    const TRIES: usize = 20;
    let mut tries = 0;
    let relay = loop {
        match Relay::bind(options.clone()).await {
            Err(Error::PortInUse { .. }) if tries < TRIES => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            bound => break bound?,
        }
    };
    Ok(RunningRelay {
        addresses: relay.local_addresses(),
        handle: relay.handle(),
        accepting: tokio::spawn(relay.serve()).abort_handle(),
        args,
    })
}

fn options(args: &RouteArgs) -> anyhow::Result<RelayOptions> {
    if args.listen.is_empty() || args.to.is_empty() {
        bail!("a relay needs an address to listen at and a broker: `listen` and `to`");
    }
    let quic = QuicOptions {
        repeat: args.quic_repeat,
        ..QuicOptions::default()
    };
    let mut connect_options = ConnectOptions {
        connect_timeout: Duration::from_secs(args.connect_timeout),
        server_name: args.server_name.clone(),
        quic: QuicOptions {
            keep_alive_interval: Some(Duration::from_secs(args.quic_keep_alive)),
            ..quic.clone()
        },
        ..ConnectOptions::default()
    };
    tls_files::trust(&mut connect_options, args.cafile.as_ref(), args.insecure);
    let files = args.client_cert.as_ref().zip(args.client_key.as_ref());
    tls_files::identity(&mut connect_options, files);
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
            client_auth: args
                .client_ca
                .clone()
                .map_or(ClientAuth::Off, ClientAuth::Required),
            early_data: args.early_from_clients,
            quic,
            ..ListenOptions::default()
        },
        connect_options,
        early: args.early,
        proxy_protocol: args.proxy_protocol,
        connections: args.connections,
        connections_per_address: args.connections_per_address,
        ..RelayOptions::new(args.listen.clone(), args.to.clone())
    })
}
