//! The broker under test. It is always a process of its own, so that our broker and another one are measured
//! alike.

use std::{
    fmt::Write as _,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use mq_netem::Host;
use mq_transport::{Address, CongestionControl, KeyExchangeGroup, QuicOptions};
use rcgen::CustomExtension;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// Time within which a broker has to announce that it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Object identifier of the padding in a certificate, of the arc for examples (RFC 7299 §2: 1.3.6.1.4.1.32473).
const PADDING_OID: &[u64] = &[1, 3, 6, 1, 4, 1, 32473, 1];

/// The topics that a bridge of a broker under test carries.
const BRIDGED: &str = "mqbench/#";

/// Settings that the configuration of a broker under test shares with its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BrokerOptions<'a> {
    pub(crate) quic: &'a QuicOptions,
    /// The groups of the key exchange.
    pub(crate) groups: &'a [KeyExchangeGroup],
    /// `true` if the broker takes data in a SYN.
    pub(crate) tcp_fast_open: bool,
    /// `true` if clients vanish: handshakes are bounded as by default, and refused clients are not logged. Otherwise a handshake
    /// may take two minutes, since a slow one on a lossy link is part of the measurement.
    pub(crate) is_attacked: bool,
}

impl<'a> BrokerOptions<'a> {
    /// Makes the options for clients with these.
    pub(crate) fn of(quic: &'a QuicOptions, groups: &'a [KeyExchangeGroup]) -> Self {
        Self {
            quic,
            groups,
            tcp_fast_open: false,
            is_attacked: false,
        }
    }
}

/// Formats the configuration of a broker under test: it recovers from loss like the clients, exchanges keys by the same
/// groups, and takes data in a SYN from clients that send some.
pub(crate) fn configuration(options: &BrokerOptions<'_>) -> String {
    let quic = options.quic;
    let groups: Vec<_> = options.groups.iter().map(ToString::to_string).collect();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut text = String::new();
    text.push_str(if options.is_attacked {
        "[log]\nlevel = \"error\"\n\n"
    } else {
        "[limits]\nhandshake_timeout_s = 120\n\n"
    });
    let _ = write!(
        text,
        "[tls]\ngroups = {groups:?}\n\n[tcp]\nfast_open = {}\n\n[quic]\nrepeat = \"{}\"\ninitial_rtt_ms = {:?}\n\
         packet_threshold = {}\ntime_threshold = {:?}\nmtu_discovery = {}\n",
        options.tcp_fast_open,
        quic.repeat,
        ms(quic.initial_rtt),
        quic.packet_threshold,
        quic.time_threshold,
        quic.mtu_discovery,
    );
    if let Some(packets) = quic.initial_window {
        let _ = writeln!(text, "initial_window = {packets}");
    }
    if let Some(delay) = quic.ack_frequency.and_then(|asked| asked.max_delay) {
        let _ = writeln!(text, "max_ack_delay_ms = {:?}", ms(delay));
    }
    text
}

/// The bridge of a broker under test to the next broker of a row: it carries the measured messages there.
#[derive(Clone, Debug)]
pub(crate) struct BridgeTo {
    /// The bridge's name, and its client identifier at the remote broker; no two of a run are alike.
    pub(crate) name: String,
    pub(crate) address: Address,
    /// The version of MQTT, in a configuration's form: `5`, `3.1.1`, `3.1`.
    pub(crate) mqtt: String,
    pub(crate) keep_alive: Duration,
}

impl BridgeTo {
    /// Returns the bridge's tables of the configuration, with trust in this certificate alone.
    fn configuration(&self, certificate: &Path) -> String {
        // A string of JSON is one of TOML.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        // Plain TCP is asked for by a campaign, in an emulated network.
        format!(
            "\n[[bridge]]\nname = {name}\nclient_id = {name}\naddress = [{address}]\nplaintext = true\n\
             ca = {ca}\nmqtt = {mqtt}\nkeep_alive_s = {keep_alive}\n\n\
             [[bridge.topic]]\npattern = {topics}\ndirection = \"out\"\nqos = 2\n",
            name = quoted(&self.name),
            address = quoted(&self.address.to_string()),
            ca = quoted(&certificate.to_string_lossy()),
            mqtt = quoted(&self.mqtt),
            keep_alive = self.keep_alive.as_secs(),
            topics = quoted(BRIDGED),
        )
    }
}

/// A certificate for this machine's own names, made for one run and trusted by it.
#[derive(Debug)]
pub(crate) struct Certificate {
    /// The certificate in PEM, like the key.
    pub(crate) chain: String,
    pub(crate) key: String,
}

impl Certificate {
    /// Makes a certificate for this machine's own names, and for the addresses of another network, with so many bytes of
    /// padding in an extension that nobody reads.
    pub(crate) fn make(
        addresses: impl Iterator<Item = IpAddr>,
        padding: usize,
    ) -> anyhow::Result<Self> {
        let own = ["localhost", "127.0.0.1", "::1"].map(String::from);
        let names: Vec<_> = own
            .into_iter()
            .chain(addresses.map(|address| address.to_string()))
            .collect();
        let make = || {
            let key = rcgen::KeyPair::generate()?;
            let mut parameters = rcgen::CertificateParams::new(names)?;
            if padding > 0 {
                let content = vec![0; padding];
                let extension = CustomExtension::from_oid_content(PADDING_OID, content);
                parameters.custom_extensions.push(extension);
            }
            Ok::<_, rcgen::Error>((parameters.self_signed(&key)?, key))
        };
        let (certificate, key) = make().context("cannot make a certificate for the run")?;
        Ok(Self {
            chain: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// A certificate in files, with the broker's configuration beside it. A drop removes the files.
#[derive(Debug)]
pub(crate) struct TestCertificate {
    directory: tempfile::TempDir,
}

impl TestCertificate {
    /// Makes a certificate as [`Certificate::make`] does, beside the [`configuration`] of a broker.
    pub(crate) fn make(
        addresses: impl Iterator<Item = IpAddr>,
        padding: usize,
        configuration: &str,
    ) -> anyhow::Result<Self> {
        let made = Certificate::make(addresses, padding)?;
        let mut folder = tempfile::Builder::new();
        // Only this user may read the key.
        #[cfg(unix)]
        folder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
        let directory = folder.tempdir();
        let directory = directory.context("cannot make a temporary directory")?;
        std::fs::write(directory.path().join("cert.pem"), made.chain)?;
        std::fs::write(directory.path().join("key.pem"), made.key)?;
        std::fs::write(directory.path().join("broker.toml"), configuration)?;
        Ok(Self { directory })
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.directory.path().join("cert.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.directory.path().join("key.pem")
    }

    /// Returns the path of the configuration of a broker; for a broker with a bridge, writes a file of its own.
    fn configuration(&self, bridge: Option<&BridgeTo>) -> anyhow::Result<PathBuf> {
        let plain = self.directory.path().join("broker.toml");
        let Some(bridge) = bridge else {
            return Ok(plain);
        };
        let mut text = std::fs::read_to_string(plain)?;
        text.push_str(&bridge.configuration(&self.certificate()));
        let bridged = self.directory.path().join(format!("{}.toml", bridge.name));
        std::fs::write(&bridged, text)?;
        Ok(bridged)
    }

    /// Returns the file in which a broker that keeps its tickets has them while it is down.
    fn tickets(&self) -> PathBuf {
        self.directory.path().join("tickets")
    }
}

/// The settings that a broker under test is started with. One setup can start several brokers, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct BrokerSetup<'a> {
    /// Addresses that the broker listens at. With port 0 the system chooses the port.
    pub(crate) listen: Vec<Address>,
    pub(crate) certificate: &'a TestCertificate,
    pub(crate) congestion: Option<CongestionControl>,
    /// The host that the broker runs on; `None` for this machine.
    pub(crate) host: Option<&'a Host>,
    /// `true` if a broker that is stopped leaves its tickets to the next broker.
    pub(crate) keeps_tickets: bool,
    /// The broker to which the broker under test passes messages on; `None` without a bridge.
    pub(crate) bridge: Option<BridgeTo>,
}

impl BrokerSetup<'_> {
    /// Starts this program's own broker, and waits until it is ready, [`START_TIMEOUT`] at most.
    pub(crate) async fn start(&self) -> anyhow::Result<BrokerProcess> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(&program);
        command.args(["broker", "--announce", "--until-stdin-ends"]);
        // The broker accepts the clients of the measurement, also from the emulated hosts.
        command.arg("--allow-anonymous");
        for address in &self.listen {
            command.arg("--listen").arg(address.to_string());
        }
        let configuration = self.certificate.configuration(self.bridge.as_ref());
        let configuration = configuration.context("cannot write the broker's configuration")?;
        command.arg("--config").arg(configuration);
        command.arg("--cert").arg(self.certificate.certificate());
        command.arg("--key").arg(self.certificate.key());
        if self.keeps_tickets {
            command.arg("--ticket-file").arg(self.certificate.tickets());
        }
        if let Some(name) = self.congestion {
            command.arg("--congestion").arg(name.to_string());
        }
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "warn");
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let started = match self.host {
            None => command.spawn(),
            Some(host) => {
                let runtime = tokio::runtime::Handle::current();
                host.run(|| {
                    let _context = runtime.enter();
                    command.spawn()
                })
            }
        };
        let mut child = started.with_context(|| format!("cannot start {}", program.display()))?;
        let input = child.stdin.take().context("the broker has no input")?;
        let output = child.stdout.take().context("the broker has no output")?;
        let mut lines = BufReader::new(output).lines();
        let addresses = tokio::time::timeout(START_TIMEOUT, read_announcement(&mut lines))
            .await
            .context("the broker did not say that it is ready")??;
        Ok(BrokerProcess {
            child,
            _input: input,
            addresses,
        })
    }
}

/// Returns an address for each scheme at a port that the system chooses: on all of an emulated host's, or on loopback.
pub(crate) fn any_port(schemes: &[mq_transport::Scheme], on_host: bool) -> Vec<Address> {
    let host = if on_host { "0.0.0.0" } else { "127.0.0.1" };
    let schemes = schemes.iter();
    schemes
        .map(|scheme| Address::new(*scheme, host, 0))
        .collect()
}

/// A broker that was started for the run. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct BrokerProcess {
    child: Child,
    /// Standard input of the broker, held open: the broker ends when it is closed.
    _input: ChildStdin,
    pub(crate) addresses: Vec<Address>,
}

impl BrokerProcess {
    /// Starts this program's own broker at ports that the system chooses, one for each of
    /// `schemes`: on loopback, or on all addresses of `host`.
    pub(crate) async fn start(
        schemes: &[mq_transport::Scheme],
        certificate: &TestCertificate,
        congestion: Option<CongestionControl>,
        host: Option<&Host>,
    ) -> anyhow::Result<Self> {
        let setup = BrokerSetup {
            listen: any_port(schemes, host.is_some()),
            certificate,
            congestion,
            host,
            keeps_tickets: false,
            bridge: None,
        };
        setup.start().await
    }

    /// Returns the broker's address for this transport.
    pub(crate) fn address(&self, scheme: mq_transport::Scheme) -> anyhow::Result<Address> {
        let address = self.addresses.iter().find(|one| one.scheme == scheme);
        let address = address.cloned();
        address.with_context(|| format!("the broker has no address for {scheme}"))
    }

    /// Returns the process identifier, for measuring; `None` once the process has ended.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for an end that was not asked for, and says how the broker ended. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> anyhow::Error {
        match self.child.wait().await {
            Ok(status) => anyhow::anyhow!("the broker ended with {status}"),
            Err(error) => anyhow::Error::new(error).context("cannot wait for the broker"),
        }
    }

    /// Ends the broker with SIGTERM and waits for it.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        #[cfg(unix)]
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            use nix::{
                sys::signal::{Signal, kill},
                unistd::Pid,
            };
            kill(Pid::from_raw(pid), Signal::SIGTERM).context("cannot stop the broker")?;
        }
        let ended = tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await;
        let Ok(status) = ended else {
            self.child.kill().await.context("cannot end the broker")?;
            bail!("the broker did not end within 10 s of SIGTERM and was killed");
        };
        let status = status.context("cannot wait for the broker")?;
        if !status.success() {
            bail!("the broker ended with {status}");
        }
        Ok(())
    }
}

/// Reads the addresses that a starting program prints, up to the line `ready`.
pub(crate) async fn read_announcement(
    lines: &mut Lines<BufReader<ChildStdout>>,
) -> anyhow::Result<Vec<Address>> {
    let mut addresses = Vec::new();
    while let Some(line) = lines.next_line().await? {
        if line == "ready" {
            return Ok(addresses);
        }
        let address = line
            .parse()
            .with_context(|| format!("it printed `{line}` instead of an address"))?;
        addresses.push(address);
    }
    bail!("it ended before it was ready")
}
