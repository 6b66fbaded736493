//! The broker's command line, shared by `mqbroker` and `mqbench broker`.

use std::{
    fmt,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::bail;
use clap::Args;
use mq_broker::{
    Broker, Config, Durability, Error, LogLevels, Reload, Settings, Storage, StoreFile, Workers,
    store::StoreError,
};
use mq_transport::{
    Address, CongestionControl, EarlyDataPolicy, Qlog, QlogLimits, Repeat, ServerIdentity,
};
use sd_notify::NotifyState;
use tracing::{info, warn};

pub use crate::{
    commands::Command, key_page::write_key_page, log_writer::write_last_line, manual::write_manual,
};
use crate::{
    descriptors,
    give_back::{self, GiveBack},
    keep_up::keep_up,
    log::Log,
    log_writer,
    systemd::notify,
};

/// Command-line options of the broker.
#[derive(Args, Clone, Debug, Default)]
pub struct BrokerArgs {
    /// Configuration file (TOML); options on the command line override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address to listen at, repeated: tcp://HOST:PORT, tls://HOST:PORT, quic://HOST:PORT,
    /// ws://HOST:PORT/PATH, wss://HOST:PORT/PATH; default: loopback, TCP at 1883 and QUIC at 14567
    #[arg(long, value_name = "URL")]
    pub listen: Vec<Address>,
    /// Let clients in without a user, from other machines as well, like `auth.allow_anonymous`
    #[arg(long)]
    pub allow_anonymous: bool,
    /// Certificate chain (PEM) for TLS, QUIC and wss; without it the broker makes a development certificate
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Private key (PEM) of the certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Packets in 0-RTT data that the broker acts on: off (none), connect (CONNECT) or full (all but QoS 2)
    #[arg(long, value_name = "POLICY")]
    pub early_data: Option<EarlyDataPolicy>,
    /// Keep tickets in this file while the broker is down, so that clients resume after a restart; the
    /// broker removes it at start and writes it at a graceful end; needs --cert and a folder of its own
    #[arg(long, value_name = "FILE")]
    pub ticket_file: Option<PathBuf>,
    /// Keep sessions, subscriptions, queued and retained messages in this file; made if it is missing
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Congestion control of all transports, those of bridges too: reno, cubic or bbr
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<CongestionControl>,
    /// Small QUIC datagrams that are sent again before anything shows that they were lost: off, auto, probe, or
    /// after a gap such as 3ms, like `quic.repeat`
    #[arg(long, value_name = "POLICY")]
    pub repeat: Option<Repeat>,
    /// Trace a sample of the QUIC connections into this directory, for qvis: one a second, 50 at a time,
    /// 4 MiB each; the last 50 files stay
    #[arg(long, value_name = "DIR")]
    pub qlog: Option<PathBuf>,
    /// Print each listener's address to standard output, one a line, then `ready`
    #[arg(long)]
    pub announce: bool,
    /// Shut down also when standard input ends: when the program that started the broker ends, in any way
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
    /// Threads that serve connections; default: one for each processor
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<NonZeroUsize>,
}

impl BrokerArgs {
    /// Merges the options with the configuration file; options win. Without `cert` the settings have no
    /// certificate yet: [`run`] makes one.
    ///
    /// # Errors
    /// If a file cannot be read or a value is not allowed.
    pub fn settings(&self) -> Result<Settings, Error> {
        let settings = self.read().and_then(|config| self.settings_of(config));
        settings.map_err(|mut mistakes| mistakes.swap_remove(0))
    }

    /// Reads the configuration file. Returns the defaults if there is none, or every mistake of its form.
    fn read(&self) -> Result<Config, Vec<Error>> {
        match &self.config {
            Some(path) => Config::read_all(path),
            None => Ok(Config::default()),
        }
    }

    fn settings_of(&self, mut config: Config) -> Result<Settings, Vec<Error>> {
        let here = Path::new("command line");
        if !self.listen.is_empty() {
            config.listen = self.listen.iter().map(Address::to_string).collect();
        }
        if self.allow_anonymous {
            config.auth.get_or_insert_default().allow_anonymous = true;
        }
        let mut settings = config.into_settings_all(self.config.as_deref().unwrap_or(here))?;
        if self.cert.is_some() {
            let identity = settings.set_identity(self.cert.clone(), self.key.clone(), here);
            identity.map_err(|error| vec![error])?;
        }
        if let Some(directory) = &self.qlog {
            settings.listen.quic.qlog = Some(Qlog::sample(directory, QlogLimits::default()));
        }
        if let Some(policy) = self.early_data {
            settings.listen.early_data = policy;
        }
        if self.ticket_file.is_some() {
            settings.ticket_file.clone_from(&self.ticket_file);
        }
        if let Some(path) = self.store.clone() {
            let file = settings.store.as_ref().and_then(Storage::file);
            let durability = file.map_or_else(Durability::default, |file| file.durability);
            settings.store = Some(Storage::File(StoreFile { path, durability }));
        }
        if let Some(name) = self.congestion {
            settings.listen.congestion = Some(name);
            for bridge in &mut settings.bridges {
                bridge.connect.congestion = Some(name);
            }
        }
        if let Some(policy) = self.repeat {
            settings.listen.quic.repeat = policy;
        }
        Ok(settings)
    }
}

/// Runs a broker on a tokio runtime of its own until SIGINT or SIGTERM, then shuts it down. Blocks
/// until the broker has ended, and logs to standard error. On SIGHUP, and when watched files are
/// replaced, it reads the files again; see [`Reload`].
///
/// # Errors
/// If the broker cannot start.
pub fn run(args: &BrokerArgs) -> anyhow::Result<()> {
    let config = args.read().map_err(|all| joined(all, "\n"))?;
    let log = Log::begin(&config.log)?;
    give_back::refuse_huge_pages();
    let mut settings = args.settings_of(config).map_err(|all| joined(all, "\n"))?;
    settings.log = log.clone().map(|log| log as Arc<dyn LogLevels>);
    descriptors::make_room(settings.max_connections);
    let give_back = GiveBack::default();
    let idle = give_back.clone();
    let processors = std::thread::available_parallelism();
    let mut workers = Workers::new(
        args.threads
            .or(processors.ok())
            .unwrap_or(NonZeroUsize::MIN),
    );
    workers.before_idle = Some(Arc::new(move || idle.on_idle()));
    settings.workers = Some(workers);
    // This thread accepts clients, keeps the time and answers operators.
    let idle = give_back.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || idle.on_idle())
        .build()?;
    let ended = runtime.block_on(serve(settings, args, &give_back, log));
    // A thread that reads from a disk which hangs is left behind.
    runtime.shutdown_background();
    log_writer::flush();
    ended
}

/// Returns mistakes as one error.
fn joined(mut mistakes: Vec<Error>, separator: &str) -> anyhow::Error {
    if mistakes.len() == 1 {
        return mistakes.remove(0).into();
    }
    let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
    anyhow::Error::msg(lines.join(separator))
}

async fn serve(
    mut settings: Settings,
    args: &BrokerArgs,
    give_back: &GiveBack,
    log: Option<Arc<Log>>,
) -> anyhow::Result<()> {
    use std::io::Write;

    let encrypted = |at: &Address| at.scheme.is_encrypted();
    if settings.listen.identity.is_none() && settings.listeners.iter().any(encrypted) {
        let identity = ServerIdentity::self_signed()?;
        warn!(
            fingerprint = %identity.fingerprint(),
            "development certificate created; use --cert and --key in production"
        );
        settings.listen.identity = Some(identity);
    }
    let watch = settings.watch_files;
    let is_node = settings.cluster.is_some();
    let store = settings.store.as_ref().and_then(Storage::file);
    let durability = store.map_or_else(Durability::default, |file| file.durability);
    let handshakes = settings.listen.handshake_pool.clone();
    let broker = Broker::start(settings).await?;
    // Before the broker announces itself: until here these signals would end the process at once.
    let stop = stop_signal()?;
    let (own, reload) = (args.clone(), broker.reload_handle());
    let reread = move || reread(&own, &reload, log.as_deref());
    let keeping_up = keep_up(broker.reload_handle(), watch, Arc::new(reread))?;
    notify(&[NotifyState::Ready]);
    if args.announce {
        let mut out = std::io::stdout().lock();
        for address in broker.addresses() {
            writeln!(out, "{address}")?;
        }
        writeln!(out, "ready")?;
        out.flush()?;
    }
    let mut has_failed = false;
    tokio::select! {
        stopped = stop => stopped?,
        ended = stdin_ended(), if args.until_stdin_ends => ended?,
        () = give_back.watch(&broker, &handshakes) => {}
        () = keeping_up => {}
        () = broker.store_failed() => has_failed = true,
    }
    info!("shutting down");
    notify(&[NotifyState::Stopping]);
    let report = broker.shutdown().await;
    let messages = report.unsettled_messages;
    let hangs = matches!(report.store_error, Some(StoreError::Hangs { .. }));
    if !has_failed && (messages > 0 || hangs) {
        return Err(DiskHangs {
            messages,
            durability,
        }
        .into());
    }
    has_failed |= report.store_error.is_some();
    if has_failed && is_node {
        bail!(
            "the node has left its cluster, as the log says: start the broker again; what was acknowledged is in \
             the cluster, but for what the log names as lost"
        );
    }
    if has_failed {
        let acknowledged = acknowledged(durability);
        bail!(
            "the store has failed, as the log says: make room, or mend the disk, and start the broker \
             again; {acknowledged}"
        );
    }
    Ok(())
}

/// Describes the loss of acknowledged messages when the disk fails.
fn acknowledged(durability: Durability) -> &'static str {
    if durability == Durability::Always {
        "what was acknowledged is in the store"
    } else {
        "what was acknowledged since the last sync may be lost"
    }
}

/// Error of [`run`]: the broker ended before its disk had written everything. The program's exit code for this error
/// is [`EXIT_CODE`](Self::EXIT_CODE).
#[derive(Debug)]
pub struct DiskHangs {
    messages: usize,
    durability: Durability,
}

impl std::error::Error for DiskHangs {}

impl fmt::Display for DiskHangs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the disk did not write ")?;
        if self.messages == 0 {
            f.write_str("the last changes in time; ")?;
        } else {
            write!(
                f,
                "{} messages in time, none of which was acknowledged: their clients send them again; ",
                self.messages
            )?;
        }
        f.write_str(acknowledged(self.durability))
    }
}

impl DiskHangs {
    /// The program's exit code: `EX_IOERR` of sysexits(3).
    pub const EXIT_CODE: u8 = 74;
}

/// Reads everything again, and puts it in force. Returns whether replaced files are looked for.
fn reread(args: &BrokerArgs, reload: &Reload, log: Option<&Log>) -> anyhow::Result<bool> {
    let config = args.read().map_err(|all| joined(all, "; "))?;
    let levels = config.log.clone();
    crate::log::check(&levels).map_err(anyhow::Error::msg)?;
    let settings = args.settings_of(config).map_err(|all| joined(all, "; "))?;
    reload.apply(&settings)?;
    if let Some(log) = log {
        log.reload(&levels).map_err(anyhow::Error::msg)?;
    }
    Ok(settings.watch_files)
}

/// Resolves when standard input has ended.
async fn stdin_ended() -> std::io::Result<()> {
    let (ended, input) = tokio::sync::oneshot::channel::<()>();
    // A thread, since a read of standard input cannot be cancelled: the thread ends with the program.
    std::thread::Builder::new().spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        drop(ended);
    })?;
    // The thread sends nothing: it drops its sender.
    let _ = input.await;
    Ok(())
}

/// Resolves at SIGTERM or Ctrl-C. From this call on neither signal ends the program by itself.
#[cfg(unix)]
fn stop_signal() -> std::io::Result<impl Future<Output = std::io::Result<()>>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    })
}

/// Resolves at Ctrl-C.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "as on Unix, where it can fail")]
fn stop_signal() -> std::io::Result<impl Future<Output = std::io::Result<()>>> {
    Ok(tokio::signal::ctrl_c())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_control_on_the_command_line_is_that_of_listeners_and_bridges() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("broker.toml");
        let text = "[[bridge]]\nname = \"cloud\"\naddress = [\"quic://cloud.example\"]\n\
                    [[bridge.topic]]\npattern = \"#\"\n";
        std::fs::write(&config, text).unwrap();
        let congestion = |congestion| {
            let args = BrokerArgs {
                config: Some(config.clone()),
                congestion,
                ..BrokerArgs::default()
            };
            let settings = args.settings().unwrap();
            let bridge = settings.bridges[0].connect.congestion;
            (settings.listen.congestion, bridge)
        };
        let reno = Some(CongestionControl::Reno);
        assert_eq!(congestion(reno), (reno, reno));
        assert_eq!(congestion(None), (None, None));
    }
}
