//! Runs what a result set still lacks on the hosts of a testbed, one run after the other.
//!
//! ```text
//!   link on each shaped interface ─> broker ─> subscriber ─> publisher ─> logs ─> joined by number
//!   clocks compared before ──────────────────────────────────────── and after
//!                                  the publisher's meter read
//! ```
//!
//! Each run has its agents to itself, and lets them go at its end: they clean up, also after a run that
//! failed in the middle. One that failed because a host or its meter has gone tells nothing of its cell:
//! it leaves no record, and the campaign ends, to be gone on with when that is back.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use mq_measure::{
    Warning,
    clock::{Assumptions, ClockFile, Exchange, Relation, Side},
    energy::Window,
    log,
    manifest::LinkContext,
    schedule::Lateness,
    validity,
};
use mq_transport::Address;

use super::{
    cell::{Cell, Pattern},
    metered::{self, Sending},
    placement::Placement,
    plan,
    queue::Lacking,
    record::Outcome,
    run_cell::{Findings, ms},
    runner::Progress,
    store::ResultSet,
};
use crate::{
    agent::{Agent, Client, Controller, Name, Role, State},
    clock::{WallClock, chrony::error_bound_ns, nanoseconds},
    hosts::{
        Hosts, Machine,
        check::{reachable, ready},
        deploy::{Programs, deploy},
    },
    meter::{self, Journals, Taken},
    sut::Certificate,
};

/// How often all agents are asked something, so that each hears that somebody is there, and what goes on
/// for as long as the run does is looked at: below the shortest lease.
const STAY: Duration = Duration::from_millis(300);

/// Between looks at a role, and at the clocks meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// How often clocks are compared before a run, and after it.
const COMPARISONS: usize = 40;

/// Between these.
const PAUSE: Duration = Duration::from_millis(10);

/// How long the last messages are waited for.
const IDLE: Duration = Duration::from_secs(10);

/// How much longer a run may take than its schedule.
const PATIENCE: Duration = Duration::from_mins(3);

/// This machine, beside the hosts' names: none of them is so called.
const OWN: &str = "";

/// Brings hosts the programs that they lack, runs what is missing in the set, and tells how far it is.
///
/// # Errors
/// If these hosts cannot do it, which is said before anything begins, or a result cannot be written.
/// What went wrong in a run is its outcome.
pub(crate) async fn run(
    set: &mut ResultSet,
    controller: &Controller,
    hosts: &Hosts,
    programs: &Programs,
    mut tell: impl FnMut(Progress),
) -> anyhow::Result<()> {
    let lacking = Lacking::of(&set.campaigns, &set.records);
    for record in lacking.copies {
        set.add(record)?;
    }
    let mut queue = lacking.jobs;
    for job in &queue {
        let cell = job.cell(&set.campaigns);
        if cell.pattern != Pattern::Periodic {
            bail!("hosts run the pattern `periodic` in this version: leave the others out");
        }
        hosts.place(cell)?;
    }
    deploy(controller, hosts, programs).await?;
    ready(controller, hosts).await?;
    let journals = Journals::of(set.directory());
    let mut disturbed = 0;
    while let Some(job) = queue.pop_front() {
        let rest = queue.iter().map(super::queue::Job::expected);
        tell(Progress {
            done: lacking.all - queue.len() - 1,
            all: lacking.all,
            running: 1,
            disturbed,
            left: rest.sum::<Duration>() + job.expected(),
        });
        let cell = job.cell(&set.campaigns).clone();
        let run = Run {
            cell: &cell,
            name: job.name(&set.campaigns),
            journals: &journals,
        };
        let outcome = run.on(controller, &hosts.place(&cell)?).await;
        if outcome.error.is_some() {
            // If anything has gone, that is the reason, and all others would fail as well.
            let there = reachable(controller, hosts).await;
            there.context("a run was cut off, `mqbench campaign resume` goes on")?;
        }
        for record in job.records(&set.campaigns, &outcome) {
            set.add(record)?;
        }
        if outcome.is_disturbed()
            && let Some(again) = job.again()
        {
            disturbed += 1;
            queue.push_back(again);
        }
    }
    Ok(())
}

/// One run.
struct Run<'a> {
    cell: &'a Cell,
    /// What its files are called.
    name: String,
    journals: &'a Journals,
}

impl Run<'_> {
    async fn on(&self, controller: &Controller, place: &Placement<'_>) -> Outcome {
        let began = Instant::now();
        let mut findings = Findings::default();
        let went = self.measure(controller, place, &mut findings).await;
        let link = LinkContext {
            configured: Some(place.configured()),
            measured: None,
        };
        let (went, energy) = match went {
            Ok(energy) => (Ok(()), energy),
            Err(error) => (Err(error), None),
        };
        let mut outcome = findings.outcome(went, link, began);
        if let Some((taken, sending)) = energy {
            taken.give(&mut outcome, sending);
        }
        outcome
    }

    async fn measure(
        &self,
        controller: &Controller,
        place: &Placement<'_>,
        findings: &mut Findings,
    ) -> anyhow::Result<Option<(Taken, Sending)>> {
        let mut crew = Crew::gather(controller, place).await?;
        findings.validity.extend(crew.emulated.drain(..));
        let measured = crew.periodic(self, place, findings).await;
        let dismissed = crew.dismiss().await;
        let measured = measured?;
        dismissed.map(|()| measured)
    }
}

/// The agents of a run, by the names of their hosts.
struct Crew {
    agents: BTreeMap<String, Agent>,
    /// This machine's.
    clock: WallClock,
    /// The agents' clocks with that one.
    comparisons: BTreeMap<String, Vec<Exchange>>,
    /// How far from UTC chrony says that the hosts' clocks are at most, and this machine's.
    bounds_ns: BTreeMap<String, u64>,
    own_bound_ns: Option<u64>,
    /// What is to last as long as the run does.
    lasting: Vec<Lasting>,
    /// Hosts whose times are an emulator's.
    emulated: Vec<Warning>,
    heard: Instant,
}

/// A role that ends when it is told to.
#[derive(Clone, Debug)]
struct Lasting {
    host: String,
    what: &'static str,
    id: u32,
}

impl Lasting {
    fn new(host: &Machine, what: &'static str, id: u32) -> Self {
        let host = host.name.clone();
        Self { host, what, id }
    }
}

/// The meter of a run.
enum Metering {
    None,
    /// Read by this program.
    Here(meter::Running),
    /// Read by the agent: its role, and the file with what it found.
    There(u32, Name),
}

/// Whose clock a meter's readings have.
enum ReadBy {
    Host,
    Controller,
}

impl Crew {
    async fn gather(controller: &Controller, place: &Placement<'_>) -> anyhow::Result<Self> {
        let mut agents = BTreeMap::new();
        let mut bounds_ns = BTreeMap::new();
        let mut emulated = Vec::new();
        for host in [place.broker, place.publisher, place.subscriber] {
            if agents.contains_key(&host.name) {
                continue;
            }
            let connected = controller.connect(host.agent).await;
            let mut connected = connected.with_context(|| format!("host {}", host.name))?;
            let report = connected.report().await?;
            bounds_ns.extend(report.clock_bound_ns.map(|ns| (host.name.clone(), ns)));
            let found = report.context.emulated.as_deref();
            emulated.extend(validity::emulated(Some(&host.name), found));
            agents.insert(host.name.clone(), connected);
        }
        Ok(Self {
            agents,
            clock: WallClock::from_env()?,
            comparisons: BTreeMap::new(),
            bounds_ns,
            own_bound_ns: error_bound_ns().await,
            lasting: Vec::new(),
            emulated,
            heard: Instant::now(),
        })
    }

    /// Lets all go; returns once they have cleaned up.
    async fn dismiss(self) -> anyhow::Result<()> {
        let agents = self.agents.into_iter().map(|(host, agent)| async move {
            let closed = agent.close().await;
            closed.with_context(|| format!("host {host}"))
        });
        let closed = futures_util::future::join_all(agents).await;
        closed.into_iter().collect()
    }

    fn at(&mut self, host: &str) -> anyhow::Result<&mut Agent> {
        let agent = self.agents.get_mut(host);
        agent.with_context(|| format!("host {host} takes no part"))
    }

    /// Has a host begin with a role; returns its number, and the addresses that a broker listens at.
    async fn start(&mut self, host: &str, role: Role) -> anyhow::Result<(u32, Vec<String>)> {
        let mut agent = self.take(host)?;
        let started = self.meanwhile(agent.start(role)).await;
        self.agents.insert(host.to_owned(), agent);
        started
    }

    /// Has a host end a role.
    async fn stop(&mut self, host: &str, id: u32) -> anyhow::Result<State> {
        let mut agent = self.take(host)?;
        let stopped = self.meanwhile(agent.stop(id)).await;
        self.agents.insert(host.to_owned(), agent);
        stopped
    }

    fn take(&mut self, host: &str) -> anyhow::Result<Agent> {
        let agent = self.agents.remove(host);
        agent.with_context(|| format!("host {host} takes no part"))
    }

    /// Does something that takes its time, while all agents that wait hear that somebody is there.
    async fn meanwhile<T>(
        &mut self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let mut work = std::pin::pin!(work);
        let mut stayed = Ok(());
        loop {
            tokio::select! {
                // What one agent answers is heard to its end, whatever becomes of another.
                done = &mut work => return stayed.and(done),
                () = tokio::time::sleep(STAY), if stayed.is_ok() => {}
            }
            for agent in self.agents.values_mut() {
                if stayed.is_ok() {
                    stayed = agent.stay().await;
                }
            }
        }
    }

    async fn periodic(
        &mut self,
        run: &Run<'_>,
        place: &Placement<'_>,
        findings: &mut Findings,
    ) -> anyhow::Result<Option<(Taken, Sending)>> {
        let cell = run.cell;
        let (publisher, subscriber) = (&place.publisher.name[..], &place.subscriber.name[..]);
        let certificate = Certificate::make([place.broker.address].into_iter())?;
        let (broker, client) = self.broker(cell, place, &certificate).await?;
        self.lasting
            .push(Lasting::new(place.broker, "broker", broker));
        for shaped in &place.shaped {
            let role = Role::Link {
                interface: shaped.host.interface.clone(),
                link: shaped.link.clone(),
                direction: shaped.way,
            };
            let link = self.start(&shaped.host.name, role).await?.0;
            self.lasting.push(Lasting::new(shaped.host, "link", link));
        }
        let ends = [publisher, subscriber];
        self.compare_clocks(&ends, COMPARISONS).await?;
        let metering = self.start_meter(run, place.publisher).await?;
        let sent = self.send(cell, place, client).await;
        // Even after a run that failed: a multimeter is put back.
        let taken = self.stop_meter(metering, place.publisher).await;
        let (sent, received) = sent?;
        let taken = taken?;
        self.compare_clocks(&ends, COMPARISONS).await?;
        self.look_at_lasting().await?;
        let ended = self.stop(&place.broker.name, broker).await?;
        if let State::Ended { code, said } = ended
            && code != Some(0)
        {
            bail!("host {}: the broker: {said}", place.broker.name);
        }
        let relation = self.relation(ends, findings)?;
        evaluate(cell, &sent, &received, relation.as_ref(), findings)?;
        let (Some((taken, by)), Some(window)) = (taken, findings.sending) else {
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

    /// Has the messages of a cell sent; returns the send log and the receive log.
    async fn send(
        &mut self,
        cell: &Cell,
        place: &Placement<'_>,
        client: Client,
    ) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
        let (publisher, subscriber) = (&place.publisher.name[..], &place.subscriber.name[..]);
        let ends = [publisher, subscriber];
        let (sent, received) = (name("send.csv")?, name("receive.csv")?);
        let receiving = Role::Subscriber {
            client: client.clone(),
            count: cell.messages,
            idle_ns: nanoseconds(IDLE.max(cell.interval() * 3)),
            log: received.clone(),
        };
        let receiving = self.start(subscriber, receiving).await?.0;
        let sending = Role::Publisher {
            client,
            count: cell.messages,
            size: cell.size,
            interval_ns: cell.interval_ns,
            log: sent.clone(),
        };
        let sending = self.start(publisher, sending).await?.0;
        self.finish(publisher, sending, patience(cell), &ends)
            .await?;
        self.finish(subscriber, receiving, PATIENCE, &ends).await?;
        let sent = self.at(publisher)?.get(&sent).await?;
        let received = self.at(subscriber)?.get(&received).await?;
        Ok((sent, received))
    }

    /// Has the publisher's meter read from now on, if it has one.
    async fn start_meter(&mut self, run: &Run<'_>, host: &Machine) -> anyhow::Result<Metering> {
        let Some(probe) = host.probe() else {
            return Ok(Metering::None);
        };
        if probe.spec.is_apart() {
            let expected = plan::expected(run.cell);
            let start = probe.start(expected, run.journals, &run.name);
            let running = self.meanwhile(start).await?;
            return Ok(Metering::Here(running));
        }
        let log = name("energy.json")?;
        let meter = Role::Meter {
            meter: probe.spec,
            log: log.clone(),
        };
        let id = self.start(&host.name, meter).await?.0;
        self.lasting.push(Lasting::new(host, "meter", id));
        Ok(Metering::There(id, log))
    }

    /// What it found, and who read it.
    async fn stop_meter(
        &mut self,
        metering: Metering,
        host: &Machine,
    ) -> anyhow::Result<Option<(Taken, ReadBy)>> {
        match metering {
            Metering::None => Ok(None),
            Metering::Here(running) => {
                let taken = self.meanwhile(running.stopped()).await?;
                Ok(Some((taken, ReadBy::Controller)))
            }
            Metering::There(id, log) => {
                self.lasting
                    .retain(|role| role.id != id || role.host != host.name);
                if let State::Ended { code, said } = self.stop(&host.name, id).await?
                    && code != Some(0)
                {
                    bail!("host {}: its meter: {said}", host.name);
                }
                let found = self.at(&host.name)?.get(&log).await?;
                let taken = serde_json::from_slice(&found);
                let taken = taken.with_context(|| format!("host {}: its meter", host.name))?;
                Ok(Some((taken, ReadBy::Host)))
            }
        }
    }

    /// A time of a host's clock by this machine's.
    fn seen_here(&self, host: &str, window: Window) -> anyhow::Result<Sending> {
        let relation = Relation::between(&[self.compared(host)?], host, OWN)?;
        let (from, to) = (relation.map(window.from_ns), relation.map(window.to_ns));
        Ok(Sending {
            window: Window::new(from.at_ns, to.at_ns),
            uncertainty_ns: from.uncertainty_ns.max(to.uncertainty_ns),
        })
    }

    /// Asks these hosts for the time, so many times, and all others whether they are there.
    async fn compare_clocks(&mut self, hosts: &[&str], times: usize) -> anyhow::Result<()> {
        for _ in 0..times {
            for host in hosts {
                let own = self.clock;
                let exchange = self.at(host)?.clock(&own).await?;
                let all = self.comparisons.entry((*host).to_owned()).or_default();
                all.push(exchange);
            }
            if self.heard.elapsed() > STAY {
                self.look_at_lasting().await?;
                for agent in self.agents.values_mut() {
                    agent.stay().await?;
                }
                self.heard = Instant::now();
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// From one host's clock to another's, by way of this machine's; `None` where they are one.
    fn relation(
        &self,
        [from, to]: [&str; 2],
        findings: &mut Findings,
    ) -> anyhow::Result<Option<Relation>> {
        if from == to {
            return Ok(None);
        }
        let files = [self.compared(from)?, self.compared(to)?];
        for file in &files {
            findings.validity.extend(file.validity.warnings.clone());
        }
        Ok(Some(Relation::between(&files, from, to)?))
    }

    /// What is known of a host's clock.
    fn compared(&self, host: &str) -> anyhow::Result<ClockFile> {
        let exchanges = self.comparisons.get(host).cloned().unwrap_or_default();
        let side = |name: &str, error_bound_ns| Side {
            host: name.to_owned(),
            error_bound_ns,
        };
        let bound_ns = self.bounds_ns.get(host).copied();
        let (own, other) = (side(OWN, self.own_bound_ns), side(host, bound_ns));
        let asked = exchanges.len() as u64;
        ClockFile::new(own, other, Assumptions::default(), asked, exchanges)
            .with_context(|| format!("host {host}: its clock"))
    }

    /// Starts the broker; returns its number, and how clients find it.
    async fn broker(
        &mut self,
        cell: &Cell,
        place: &Placement<'_>,
        certificate: &Certificate,
    ) -> anyhow::Result<(u32, Client)> {
        let (server, key, ca) = (name("server.pem")?, name("server.key")?, name("ca.pem")?);
        let broker = self.at(&place.broker.name)?;
        broker.put(&server, certificate.chain.as_bytes()).await?;
        broker.put(&key, certificate.key.as_bytes()).await?;
        let congestion = cell.congestion()?.to_string();
        // Nowhere but on the network that is measured.
        let listen = Address::new(cell.scheme(), place.broker.address.to_string(), 0);
        let role = Role::Broker {
            listen: vec![listen.to_string()],
            certificate: Some(server),
            key: Some(key),
            congestion: Some(congestion.clone()),
        };
        let (id, addresses) = self.start(&place.broker.name, role).await?;
        let address = addresses.first().context("the broker listens nowhere")?;
        for host in [place.publisher, place.subscriber] {
            let chain = certificate.chain.as_bytes();
            self.at(&host.name)?.put(&ca, chain).await?;
        }
        let client = Client {
            broker: address.clone(),
            topic: "mqbench/cell".to_owned(),
            run: "cell".to_owned(),
            qos: cell.qos,
            mqtt: cell.mqtt,
            ca: Some(ca),
            congestion: Some(congestion),
            initial_rtt_ns: cell.initial_rtt_ns,
        };
        Ok((id, client))
    }

    /// Makes sure that what has to last as long as the run does is still there: a run without its broker,
    /// its links or its meter is none.
    async fn look_at_lasting(&mut self) -> anyhow::Result<()> {
        for Lasting { host, what, id } in self.lasting.clone() {
            if let State::Ended { said, .. } = self.at(&host)?.look(id).await? {
                bail!("host {host}: its {what} ended before the run did: {said}");
            }
        }
        Ok(())
    }

    /// Waits for a role that has to end well, while clocks are compared and all agents hear that
    /// somebody is there.
    async fn finish(
        &mut self,
        host: &str,
        id: u32,
        patience: Duration,
        clocks: &[&str],
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            match self.at(host)?.look(id).await? {
                State::Running {} => {}
                State::Ended { code: Some(0), .. } => return Ok(()),
                State::Ended { said, .. } => bail!("host {host}: {said}"),
            }
            if began.elapsed() > patience {
                bail!("host {host} has not finished within {patience:?}");
            }
            self.compare_clocks(clocks, 1).await?;
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// How long a publisher may take.
fn patience(cell: &Cell) -> Duration {
    let messages = u32::try_from(cell.messages).unwrap_or(u32::MAX);
    cell.interval().saturating_mul(messages) + PATIENCE
}

fn name(text: &str) -> anyhow::Result<Name> {
    Name::try_from(text.to_owned()).map_err(anyhow::Error::msg)
}

/// Joins the two logs, the send log's times on the subscriber's clock.
fn evaluate(
    cell: &Cell,
    sent: &[u8],
    received: &[u8],
    relation: Option<&Relation>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let sent = log::parse_send_log(sent, "send.csv".as_ref())?.records;
    let received = log::parse_receive_log(received, "receive.csv".as_ref())?.records;
    let mut lateness = Lateness::new();
    for record in &sent {
        lateness.note(record.intended_ns, record.sent_ns);
    }
    let joined = log::join(&sent, &received, relation);
    findings.distribution("latency", &joined.samples.latencies_intended_ns())?;
    if let Some(uncertainty_ns) = joined.uncertainty_ns {
        findings.set("clock_uncertainty", ms(uncertainty_ns));
    }
    findings.sent(joined.counts, &lateness, cell.interval_ns);
    findings.validity.extend(joined.warnings);
    // As long as on the subscriber's clock, which all samples are on; from when it began on the
    // publisher's.
    let lasted = metered::sending(&joined.samples).map(|window| window.duration_ns());
    let began = sent.iter().map(|record| record.intended_ns).min();
    findings.sending = began
        .zip(lasted)
        .map(|(began, lasted)| Window::new(began, began + lasted));
    Ok(())
}
