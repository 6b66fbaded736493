//! Runs on the hosts of a testbed, one after the other.
//!
//! ```text
//!   link on each shaped interface ─> broker ─> subscriber ─> publisher ─> logs ─> joined by number
//!   clocks compared before ──────────────────────────────────────── and after
//!                                  the publisher's meter read
//! ```
//!
//! Each part is a role on its host, see [`ssh`](crate::hosts::ssh). Every run ends all of its roles, also a run
//! that failed. A run that failed because a host or its meter has gone says nothing about its cell: it leaves no
//! record, and the campaign ends. The user resumes it when the host or meter is back.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use mq_energy::Window;
use mq_measure::{
    Counts, LastSendEstimator, Samples,
    clock::{Assumptions, ClockFile, Exchange, Relation, Side},
    log,
    manifest::LinkContext,
    schedule::Lateness,
    validity,
};
use mq_transport::Address;
use tokio::time::{sleep, timeout};

use super::{
    findings::Findings,
    metered::{self, Sending},
    placement::Placement,
    run_cell::PATIENCE,
    work::Work,
};
use crate::{
    broker_under_test::{Certificate, configuration},
    campaign::{
        cell::{Cell, Pattern},
        record::Outcome,
    },
    clock::{WallClock, chrony::error_bound_ns, nanoseconds},
    hosts::{
        Hosts, Machine, Presence, Remote, Ssh,
        check::{reachable, ready},
    },
    meter::{self, Taken},
    units::{ms, word},
};

/// The interval at which a role is checked, and the clocks are compared meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// How often clocks are compared before a run, and after it.
const COMPARISONS: usize = 40;

/// The pause between comparisons.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest time between comparisons of clocks during a run.
const SELDOM: Duration = Duration::from_millis(500);

/// How long a host may take to answer what time it is.
const ANSWER: Duration = Duration::from_secs(30);

/// How long the subscriber waits for the last messages.
const IDLE: Duration = Duration::from_secs(10);

/// How much longer a run may take than its schedule.
const LONGER: Duration = Duration::from_mins(3);

/// The name of this machine among the hosts; no host has this name.
const OWN: &str = "";

/// Files of a run, in its folder on a host.
const CHAIN: &str = "server.pem";
const KEY: &str = "server.key";
const CONFIGURATION: &str = "broker.toml";
const SENT: &str = "send.csv";
const RECEIVED: &str = "receive.csv";
const SAMPLES: &str = "samples.csv";

/// Hosts, and how they are reached.
#[derive(Debug)]
pub(crate) struct Testbed {
    hosts: Hosts,
    ssh: Ssh,
}

impl Testbed {
    pub(crate) fn new(hosts: Hosts, ssh: Ssh) -> Self {
        Self { hosts, ssh }
    }

    /// Makes sure, before anything begins, that the hosts can run these cells.
    pub(super) async fn prepare(&self, cells: impl Iterator<Item = &Cell>) -> anyhow::Result<()> {
        for cell in cells {
            self.hosts.place(cell)?;
        }
        ready(&self.ssh, &self.hosts).await
    }

    pub(super) async fn run(&self, work: &Work) -> anyhow::Result<Outcome> {
        let place = self.hosts.place(&work.cell)?;
        let began = Instant::now();
        let mut findings = Findings::default();
        let went = self.measure(work, &place, &mut findings).await;
        let link = LinkContext {
            configured: Some(place.configured()),
            measured: None,
        };
        let (went, energy) = match went {
            Ok(energy) => (Ok(()), energy),
            Err(error) => (Err(error), None),
        };
        let mut outcome = findings.outcome(went, link, began);
        if outcome.error.is_some() {
            // A lost host is the reason, and all other runs would fail as well.
            let there = reachable(&self.ssh, &self.hosts).await;
            there.context("a run was cut off, `mqbench campaign resume` goes on")?;
        }
        if let Some((taken, sending)) = energy {
            taken.give(&mut outcome, sending);
        }
        Ok(outcome)
    }

    async fn measure(
        &self,
        work: &Work,
        place: &Placement<'_>,
        findings: &mut Findings,
    ) -> anyhow::Result<Option<(Taken, Sending)>> {
        let mut crew = Crew::gather(&self.ssh, work, place).await?;
        for (host, present) in &crew.present {
            let found = present.report.context.emulated.as_deref();
            findings
                .validity
                .note(validity::emulated(Some(host), found));
        }
        let measured = crew.measure(findings).await;
        let dismissed = crew.dismiss().await;
        let measured = measured?;
        dismissed.map(|()| measured)
    }
}

/// The hosts of a run and their roles.
struct Crew<'a> {
    ssh: &'a Ssh,
    work: &'a Work,
    place: &'a Placement<'a>,
    /// The hosts that take part, by their names.
    present: BTreeMap<String, Presence>,
    /// This machine's clock.
    clock: WallClock,
    /// Comparisons of each host's clock with this machine's.
    comparisons: BTreeMap<String, Vec<Exchange>>,
    /// How far this machine's clock is from UTC at most, by chrony.
    own_bound_ns: Option<u64>,
    /// The roles that have to last as long as the run.
    lasting: Vec<Lasting<'a>>,
}

/// The role of a broker or a link.
struct Lasting<'a> {
    host: &'a Machine,
    is_link: bool,
    remote: Remote,
}

/// The meter of a run.
enum Metering {
    None,
    /// Read by this program.
    Here(meter::Running),
    /// Read on the host.
    There(Box<Remote>),
}

/// Whose clock a meter's readings have.
enum ReadBy {
    Host,
    Controller,
}

/// The logs of a run. They are evaluated when the clocks have been compared again.
enum Logs {
    /// A send log and a receive log.
    Pair(Vec<u8>, Vec<u8>),
    /// Samples of one clock.
    Samples(Samples),
}

impl<'a> Crew<'a> {
    async fn gather(
        ssh: &'a Ssh,
        work: &'a Work,
        place: &'a Placement<'a>,
    ) -> anyhow::Result<Self> {
        let mut present = BTreeMap::new();
        for host in place.hosts() {
            present.insert(host.name.clone(), Presence::of(ssh, host).await?);
        }
        Ok(Self {
            ssh,
            work,
            place,
            present,
            clock: WallClock::from_env()?,
            comparisons: BTreeMap::new(),
            own_bound_ns: error_bound_ns().await,
            lasting: Vec::new(),
        })
    }

    /// Ends all roles; returns once they have cleaned up.
    async fn dismiss(self) -> anyhow::Result<()> {
        let mut ended = Ok(());
        for lasting in self.lasting {
            let stopped = lasting.remote.stop().await.map(drop);
            ended = ended.and(match stopped {
                // A link that was killed has left its interface shaped.
                Err(_) if lasting.is_link => {
                    let present = self.present.get(&lasting.host.name);
                    let by_sudo = present.is_some_and(|present| !present.report.may_shape);
                    self.ssh.clear(lasting.host, by_sudo).await
                }
                stopped => stopped,
            });
        }
        for present in self.present.into_values() {
            ended = ended.and(present.leave().await);
        }
        ended
    }

    fn at(&self, host: &Machine) -> anyhow::Result<&Presence> {
        let present = self.present.get(&host.name);
        present.with_context(|| format!("host {} takes no part", host.name))
    }

    /// The path of a file of the run on a host.
    fn file(&self, host: &Machine, name: &str) -> anyhow::Result<PathBuf> {
        Ok(self.at(host)?.report.folder.join(name))
    }

    /// A role's option with the path of a file.
    fn option(&self, host: &Machine, option: &str, name: &str) -> anyhow::Result<String> {
        Ok(format!("{option}={}", self.file(host, name)?.display()))
    }

    async fn measure(
        &mut self,
        findings: &mut Findings,
    ) -> anyhow::Result<Option<(Taken, Sending)>> {
        let (publisher, subscriber) = (self.place.publisher, self.place.subscriber);
        let address = self.start_broker().await?;
        self.start_links().await?;
        self.compare_clocks(COMPARISONS).await?;
        let metering = self.start_meter().await?;
        let sent = self.send(&address).await;
        // Stop the meter even after a failed run, so that the instrument is reset.
        let taken = stop_meter(metering, publisher).await;
        let logs = sent?;
        let taken = taken?;
        self.compare_clocks(COMPARISONS).await?;
        self.look_at_lasting().await?;
        let relation = self.relation([publisher, subscriber], findings)?;
        evaluate(&self.work.cell, &logs, relation.as_ref(), findings)?;
        let (Some((taken, by)), Some(window)) = (taken, findings.so_far.sending) else {
            return Ok(None);
        };
        let sending = match by {
            ReadBy::Host => Sending {
                window,
                uncertainty_ns: 0,
            },
            ReadBy::Controller => self.seen_here(publisher, window)?,
        };
        Ok(Some((taken, sending)))
    }

    /// Starts the broker; returns its address.
    async fn start_broker(&mut self) -> anyhow::Result<String> {
        let host = self.place.broker;
        let certificate = Certificate::make([host.address].into_iter())?;
        let configuration = configuration(&self.work.cell.quic()?);
        for (name, content) in [
            (KEY, &certificate.key[..]),
            // As in the emulated networks, so that results compare.
            (CONFIGURATION, &configuration[..]),
        ] {
            let file = self.file(host, name)?;
            self.ssh.put(host, &file, content.as_bytes()).await?;
        }
        for host in self.place.hosts() {
            let file = self.file(host, CHAIN)?;
            let chain = certificate.chain.as_bytes();
            self.ssh.put(host, &file, chain).await?;
        }
        let cell = &self.work.cell;
        // The broker listens only on the measured network.
        let listen = Address::new(cell.scheme(), host.address.to_string(), 0);
        let arguments = [
            "broker".to_owned(),
            "--announce".to_owned(),
            // The testbed has no users, so the broker accepts its hosts without a login.
            "--allow-anonymous".to_owned(),
            format!("--listen={listen}"),
            self.option(host, "--cert", CHAIN)?,
            self.option(host, "--key", KEY)?,
            self.option(host, "--config", CONFIGURATION)?,
            format!("--congestion={}", cell.congestion()?),
        ];
        let mut remote = self.ssh.start(host, &arguments, false)?;
        let addresses = remote.ready().await?;
        self.lasting.push(Lasting {
            host,
            is_link: false,
            remote,
        });
        addresses
            .into_iter()
            .next()
            .context("the broker listens nowhere")
    }

    async fn start_links(&mut self) -> anyhow::Result<()> {
        for shaped in &self.place.shaped {
            let arguments = [
                "net",
                "apply",
                "--announce",
                // The lease restores the interface in time, even if ssh goes through it.
                "--even-ssh",
                &format!("--direction={}", shaped.way.name()),
                &shaped.host.interface,
                &shaped.link,
            ];
            let by_sudo = !self.at(shaped.host)?.report.may_shape;
            let arguments = arguments.map(str::to_owned);
            let mut remote = self.ssh.start(shaped.host, &arguments, by_sudo)?;
            let ready = remote.ready().await;
            self.lasting.push(Lasting {
                host: shaped.host,
                is_link: true,
                remote,
            });
            ready?;
        }
        Ok(())
    }

    /// The arguments of a client's role.
    fn client(&self, host: &Machine, role: &str, address: &str) -> anyhow::Result<Vec<String>> {
        let cell = &self.work.cell;
        let mut arguments = vec![
            role.to_owned(),
            address.to_owned(),
            format!("--qos={}", cell.qos),
            format!("--mqtt={}", word(cell.mqtt)),
            self.option(host, "--ca", CHAIN)?,
            format!("--congestion={}", cell.congestion()?),
            time("--connect-timeout", nanoseconds(PATIENCE)),
        ];
        let rtt = cell.initial_rtt_ns;
        arguments.extend(rtt.map(|ns| time("--initial-rtt", ns)));
        let version = cell.tls_version.as_ref();
        arguments.extend(version.map(|version| format!("--tls-version={version}")));
        let window = cell.initial_window;
        arguments.extend(window.map(|packets| format!("--initial-window={packets}")));
        let threshold = cell.packet_threshold;
        arguments.extend(threshold.map(|packets| format!("--packet-threshold={packets}")));
        let threshold = cell.time_threshold;
        arguments.extend(threshold.map(|factor| format!("--time-threshold={factor}")));
        arguments.push(format!("--repeat={}", cell.repeat));
        arguments.push(format!("--streams={}", cell.streams));
        arguments.push(format!("--deliveries={}", cell.deliveries));
        arguments.extend(cell.datagrams.then(|| "--datagrams".to_owned()));
        let delay = cell.max_ack_delay_ns;
        arguments.extend(delay.map(|ns| time("--max-ack-delay", ns)));
        Ok(arguments)
    }

    /// Runs the roles that send the messages of a cell.
    async fn send(&mut self, address: &str) -> anyhow::Result<Logs> {
        let cell = &self.work.cell;
        let (publisher, subscriber) = (self.place.publisher, self.place.subscriber);
        let count = |messages: u64| format!("--count={messages}");
        let size = format!("--size={}", cell.size);
        let interval = time("--interval", cell.interval_ns);
        let out = self.option(publisher, "--out", SAMPLES)?;
        match cell.pattern {
            Pattern::Periodic => {
                let idle = IDLE.max(cell.interval() * 3);
                let receiving = self.receive(address, cell.messages, idle, false).await?;
                let mut sending = self.client(publisher, "pub", address)?;
                sending.extend([count(cell.messages), size, interval, topics(cell)]);
                sending.push(self.option(publisher, "--log", SENT)?);
                let sending = self.ssh.start(publisher, &sending, false)?;
                self.finish(sending, patience(cell)).await?;
                self.finish(receiving, LONGER).await?;
                self.pair().await
            }
            Pattern::StopAndWait | Pattern::Reconnect => {
                // `reconnect` sends one message more, on its first connection.
                let first = u64::from(cell.pattern == Pattern::Reconnect);
                let messages = cell.messages + first;
                let receiving = self.receive(address, messages, PATIENCE, true).await?;
                let mut sending = self.client(publisher, "pub", address)?;
                sending.extend([count(cell.messages), size]);
                sending.push(match cell.pattern {
                    Pattern::Reconnect => format!("--reconnect={}", word(cell.resumption)),
                    _ => "--wait".to_owned(),
                });
                sending.push(self.option(publisher, "--log", SENT)?);
                let sending = self.ssh.start(publisher, &sending, false)?;
                self.relay(receiving, sending).await?;
                self.pair().await
            }
            Pattern::JobResult => {
                let mut worker = self.client(subscriber, "worker", address)?;
                worker.push("--announce".to_owned());
                let mut worker = self.ssh.start(subscriber, &worker, false)?;
                worker.ready().await?;
                let mut jobs = self.client(publisher, "rtt", address)?;
                jobs.extend([count(cell.messages), size, interval, out]);
                jobs.push(time("--grace", nanoseconds(IDLE)));
                let jobs = self.ssh.start(publisher, &jobs, false)?;
                self.finish(jobs, patience(cell)).await?;
                self.samples().await
            }
            Pattern::Connect => {
                let mut connect = self.client(publisher, "connect", address)?;
                connect.extend([count(cell.messages), out]);
                connect.push(format!("--resumption={}", word(cell.resumption)));
                let connect = self.ssh.start(publisher, &connect, false)?;
                self.finish(connect, patience(cell)).await?;
                self.samples().await
            }
            // `Hosts::place` refuses it, before anything begins.
            Pattern::Storm => bail!("a storm runs on one machine only"),
        }
    }

    /// Starts the subscriber; returns when it has subscribed.
    async fn receive(
        &self,
        address: &str,
        messages: u64,
        idle: Duration,
        tell: bool,
    ) -> anyhow::Result<Remote> {
        let host = self.place.subscriber;
        let mut arguments = self.client(host, "sub", address)?;
        arguments.extend(["--announce".to_owned(), format!("--count={messages}")]);
        arguments.push(time("--idle", nanoseconds(idle)));
        arguments.push(topics(&self.work.cell));
        arguments.push(self.option(host, "--log", RECEIVED)?);
        arguments.extend(tell.then(|| "--tell".to_owned()));
        let mut remote = self.ssh.start(host, &arguments, false)?;
        remote.ready().await?;
        Ok(remote)
    }

    /// Tells the publisher which messages have reached the subscriber, until both have ended.
    async fn relay(&mut self, mut receiving: Remote, mut sending: Remote) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut compared = began;
        while !sending.has_ended().await? {
            let line = timeout(LOOK, receiving.line()).await;
            if let Some(line) = line.unwrap_or(Ok(None))? {
                // If the publisher has ended, the loop's condition finds out why.
                let _ = sending.tell(line).await;
            } else {
                // No message has come for a while, or all have.
                sleep(PAUSE).await;
                compared = began;
            }
            if compared.elapsed() > SELDOM {
                self.compare_clocks(1).await?;
                compared = Instant::now();
            }
            if began.elapsed() > patience(&self.work.cell) {
                bail!("the publisher has not finished in time");
            }
        }
        self.finish(receiving, LONGER).await
    }

    async fn pair(&self) -> anyhow::Result<Logs> {
        let (publisher, subscriber) = (self.place.publisher, self.place.subscriber);
        let (sent, received) = (
            self.file(publisher, SENT)?,
            self.file(subscriber, RECEIVED)?,
        );
        Ok(Logs::Pair(
            self.ssh.get(publisher, &sent).await?,
            self.ssh.get(subscriber, &received).await?,
        ))
    }

    async fn samples(&self) -> anyhow::Result<Logs> {
        let publisher = self.place.publisher;
        let file = self.file(publisher, SAMPLES)?;
        let found = self.ssh.get(publisher, &file).await?;
        Ok(Logs::Samples(Samples::read_csv(
            &found[..],
            SAMPLES.as_ref(),
        )?))
    }

    /// Starts the publisher's meter, if it has one. Only a schedule has a time to send all packets.
    async fn start_meter(&self) -> anyhow::Result<Metering> {
        let host = self.place.publisher;
        let probe = host.probe();
        let Some(probe) = probe.filter(|_| self.work.cell.pattern == Pattern::Periodic) else {
            return Ok(Metering::None);
        };
        if probe.spec.is_apart() {
            let Work {
                expected,
                journals,
                name,
                ..
            } = self.work;
            let running = probe.start(*expected, journals, name).await?;
            return Ok(Metering::Here(running));
        }
        let meter = format!("--meter={}", probe.spec);
        let arguments = ["energy", "record", "--announce", &meter].map(str::to_owned);
        let mut remote = self.ssh.start(host, &arguments, false)?;
        remote.ready().await?;
        Ok(Metering::There(Box::new(remote)))
    }

    /// Converts a window of a host's clock to this machine's clock.
    fn seen_here(&self, host: &Machine, window: Window) -> anyhow::Result<Sending> {
        let relation = Relation::between(&[self.compared(host)?], &host.name, OWN)?;
        let (from, to) = (relation.map(window.from_ns), relation.map(window.to_ns));
        Ok(Sending {
            window: Window::new(from.at_ns, to.at_ns),
            uncertainty_ns: from.uncertainty_ns.max(to.uncertainty_ns),
        })
    }

    /// Asks the publisher's host and the subscriber's host for the time, `times` times each.
    async fn compare_clocks(&mut self, times: usize) -> anyhow::Result<()> {
        for _ in 0..times {
            for host in [self.place.publisher, self.place.subscriber] {
                let present = self.present.get_mut(&host.name);
                let present = present.context("a host takes no part")?;
                let exchange = timeout(ANSWER, present.clock(&self.clock)).await;
                let late = || format!("host {} does not say the time", host.name);
                let all = self.comparisons.entry(host.name.clone()).or_default();
                all.push(exchange.with_context(late)??);
            }
            sleep(PAUSE).await;
        }
        self.look_at_lasting().await
    }

    /// The relation from one host's clock to another's, by way of this machine's clock; `None` if both are one
    /// host.
    fn relation(
        &self,
        [from, to]: [&Machine; 2],
        findings: &mut Findings,
    ) -> anyhow::Result<Option<Relation>> {
        if from == to {
            return Ok(None);
        }
        let files = [self.compared(from)?, self.compared(to)?];
        for file in &files {
            findings.validity.extend(file.validity.warnings.clone());
        }
        Ok(Some(Relation::between(&files, &from.name, &to.name)?))
    }

    /// The comparison of a host's clock with this machine's.
    fn compared(&self, host: &Machine) -> anyhow::Result<ClockFile> {
        let exchanges = self.comparisons.get(&host.name);
        let exchanges = exchanges.cloned().unwrap_or_default();
        let side = |name: &str, error_bound_ns| Side {
            host: name.to_owned(),
            error_bound_ns,
        };
        let bound_ns = self.at(host)?.report.clock_bound_ns;
        let (own, other) = (side(OWN, self.own_bound_ns), side(&host.name, bound_ns));
        let asked = exchanges.len() as u64;
        ClockFile::new(own, other, Assumptions::default(), asked, exchanges)
            .with_context(|| format!("host {}: its clock", host.name))
    }

    /// Makes sure that the broker and the links still run: a run without them does not count.
    async fn look_at_lasting(&mut self) -> anyhow::Result<()> {
        for lasting in &mut self.lasting {
            if lasting.remote.has_ended().await? {
                let (host, what) = (
                    &lasting.host.name,
                    if lasting.is_link { "link" } else { "broker" },
                );
                bail!("host {host}: its {what} ended before the run did");
            }
        }
        Ok(())
    }

    /// Waits until a role has ended well, and compares clocks meanwhile.
    async fn finish(&mut self, mut role: Remote, patience: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        while !role.has_ended().await? {
            if began.elapsed() > patience {
                bail!("a role has not finished within {patience:?}");
            }
            self.compare_clocks(1).await?;
            sleep(LOOK).await;
        }
        Ok(())
    }
}

/// Stops the meter; returns its recording, and who read it.
async fn stop_meter(metering: Metering, host: &Machine) -> anyhow::Result<Option<(Taken, ReadBy)>> {
    match metering {
        Metering::None => Ok(None),
        Metering::Here(running) => Ok(Some((running.stopped().await?, ReadBy::Controller))),
        Metering::There(remote) => {
            let taken = serde_json::from_str(&remote.stop().await?);
            let taken = taken.with_context(|| format!("host {}: its meter", host.name))?;
            Ok(Some((taken, ReadBy::Host)))
        }
    }
}

/// How long a publisher may take.
fn patience(cell: &Cell) -> Duration {
    let messages = u32::try_from(cell.messages).unwrap_or(u32::MAX);
    let each = match cell.pattern {
        Pattern::Periodic | Pattern::JobResult => cell.interval(),
        // Each message may take that long.
        Pattern::StopAndWait | Pattern::Reconnect | Pattern::Connect | Pattern::Storm => PATIENCE,
    };
    each.saturating_mul(messages) + LONGER
}

/// The option for the number of topics.
fn topics(cell: &Cell) -> String {
    format!("--topics={}", cell.topics)
}

/// An option with a time.
fn time(option: &str, ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 ns, 104 days")]
    let ns = ns as f64;
    format!("{option}={}us", ns / 1e3)
}

/// Computes a cell's metrics from its logs. The send log's times are converted to the subscriber's clock.
fn evaluate(
    cell: &Cell,
    logs: &Logs,
    relation: Option<&Relation>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let (sent, received) = match logs {
        Logs::Samples(samples) if cell.pattern == Pattern::Connect => {
            return findings.connections(samples);
        }
        Logs::Samples(samples) => return job_result(cell, samples, findings),
        Logs::Pair(sent, received) => (sent, received),
    };
    let sent = log::parse_send_log(&sent[..], SENT.as_ref())?.records;
    let received = log::parse_receive_log(&received[..], RECEIVED.as_ref())?.records;
    let joined = log::join_topics(&sent, &received, relation, cell.topics);
    if let Some(uncertainty_ns) = joined.uncertainty_ns {
        findings.set("clock_uncertainty", ms(uncertainty_ns));
    }
    match cell.pattern {
        Pattern::StopAndWait => {
            // Without the time in which the publisher learns of each arrival.
            let delta = joined.samples.latencies_sent_ns().iter().sum();
            findings.stop_and_wait(Duration::from_nanos(delta), &joined.samples)?;
        }
        Pattern::Reconnect => findings.reconnect(&joined.samples)?,
        _ => {
            findings.distribution("latency", &joined.samples.latencies_intended_ns())?;
            let mut lateness = Lateness::new();
            for record in &sent {
                lateness.note(record.intended_ns, record.sent_ns);
            }
            findings.sent(joined.counts, &lateness, cell.interval_ns);
            findings.flow(cell, &joined.samples);
            // Samples are on the subscriber's clock and give the length of the window; its beginning is on the
            // publisher's clock.
            let lasted = metered::sending(&joined.samples).map(|window| window.duration_ns());
            let began = sent.iter().map(|record| record.intended_ns).min();
            findings.so_far.sending = began
                .zip(lasted)
                .map(|(began, lasted)| Window::new(began, began + lasted));
        }
    }
    findings.validity.extend(joined.warnings);
    Ok(())
}

/// The metrics of jobs, by one clock.
fn job_result(cell: &Cell, samples: &Samples, findings: &mut Findings) -> anyhow::Result<()> {
    let mut lateness = Lateness::new();
    let mut events = Vec::new();
    for sample in &samples.0 {
        lateness.note(sample.intended_ns, sample.sent_ns);
        events.push((sample.sent_ns, true));
        events.extend(sample.received_ns.map(|at| (at, false)));
    }
    events.sort_unstable();
    let mut estimator = LastSendEstimator::new();
    let mut last = Vec::new();
    for (at, is_sent) in events {
        if is_sent {
            estimator.sent(at);
        } else {
            last.extend(estimator.received(at));
        }
    }
    let round_trips = samples.latencies_sent_ns();
    let (sent, received) = (samples.0.len() as u64, round_trips.len() as u64);
    findings.distribution("rtt", &round_trips)?;
    findings.distribution("rtt_last", &last)?;
    let counts = Counts {
        sent,
        received,
        lost: sent - received,
        ..Counts::default()
    };
    findings.sent(counts, &lateness, cell.interval_ns);
    Ok(())
}
