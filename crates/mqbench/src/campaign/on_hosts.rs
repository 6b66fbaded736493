//! Runs what a result set still lacks on the hosts of a testbed, one run after the other.
//!
//! ```text
//!   link on each shaped interface ─> broker ─> subscriber ─> publisher ─> logs ─> joined by number
//!   clocks compared before ──────────────────────────────────────── and after
//! ```
//!
//! Each run has its agents to itself, and lets them go at its end: they clean up, also after a run that
//! failed in the middle.

use std::{
    collections::BTreeMap,
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use mq_measure::{
    Warning,
    clock::{Assumptions, ClockFile, Exchange, Relation, Side},
    log,
    manifest::LinkContext,
    schedule::Lateness,
    validity,
};
use mq_transport::Address;

use super::{
    cell::{Cell, Pattern},
    hosts::{Hosts, Placement},
    queue::Lacking,
    record::Outcome,
    run_cell::{Findings, ms},
    runner::Progress,
    store::ResultSet,
};
use crate::{
    agent::{Agent, Client, Controller, Name, Role, State},
    cmd::{clock::error_bound_ns, hosts::ready},
    sut::TestCertificate,
    wall::WallClock,
    workload::nanoseconds,
};

/// How often agents that have nothing to do hear that somebody is there.
const STAY: Duration = Duration::from_secs(5);

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

/// Runs what is missing in the set, and tells how far it is.
///
/// # Errors
/// If these hosts cannot do it, which is said before anything begins, or a result cannot be written.
/// What went wrong in a run is its outcome.
pub(crate) async fn run(
    set: &mut ResultSet,
    controller: &Controller,
    hosts: &Hosts,
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
    ready(controller, hosts).await?;
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
        let outcome = run_cell(&cell, controller, &hosts.place(&cell)?).await;
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

async fn run_cell(cell: &Cell, controller: &Controller, place: &Placement<'_>) -> Outcome {
    let began = Instant::now();
    let mut findings = Findings::default();
    let went = measure(cell, controller, place, &mut findings).await;
    let link = LinkContext {
        configured: Some(place.configured()),
        measured: None,
    };
    findings.outcome(went, link, began)
}

async fn measure(
    cell: &Cell,
    controller: &Controller,
    place: &Placement<'_>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let mut crew = Crew::gather(controller, place).await?;
    findings.validity.extend(crew.emulated.drain(..));
    let measured = crew.periodic(cell, place, findings).await;
    let dismissed = crew.dismiss().await;
    measured.and(dismissed)
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
    /// Hosts whose times are an emulator's.
    emulated: Vec<Warning>,
    heard: Instant,
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

    async fn periodic(
        &mut self,
        cell: &Cell,
        place: &Placement<'_>,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        let (publisher, subscriber) = (&place.publisher.name[..], &place.subscriber.name[..]);
        let certificate = TestCertificate::make([place.broker.address].into_iter())?;
        let (broker, client) = self.broker(cell, place, &certificate).await?;
        let mut links = Vec::new();
        for shaped in &place.shaped {
            let role = Role::Link {
                interface: shaped.host.interface.clone(),
                link: shaped.link.clone(),
                direction: shaped.way,
            };
            let host = &shaped.host.name[..];
            links.push((host, self.at(host)?.start(role).await?.0));
        }
        let ends = [publisher, subscriber];
        self.compare_clocks(&ends, COMPARISONS).await?;
        let (sent, received) = (name("send.csv")?, name("receive.csv")?);
        let receiving = Role::Subscriber {
            client: client.clone(),
            count: cell.messages,
            idle_ns: nanoseconds(IDLE.max(cell.interval() * 3)),
            log: received.clone(),
        };
        let receiving = self.at(subscriber)?.start(receiving).await?.0;
        let sending = Role::Publisher {
            client,
            count: cell.messages,
            size: cell.size,
            interval_ns: cell.interval_ns,
            log: sent.clone(),
        };
        let sending = self.at(publisher)?.start(sending).await?.0;
        let messages = u32::try_from(cell.messages).unwrap_or(u32::MAX);
        let patience = cell.interval() * messages + PATIENCE;
        self.finish(publisher, sending, patience, &ends).await?;
        self.finish(subscriber, receiving, PATIENCE, &ends).await?;
        self.compare_clocks(&ends, COMPARISONS).await?;
        for (host, id) in links {
            // A run on a link that went away is none.
            if let State::Ended { said, .. } = self.at(host)?.look(id).await? {
                bail!("host {host}: its link ended before the run did: {said}");
            }
        }
        let ended = self.at(&place.broker.name)?.stop(broker).await?;
        if let State::Ended { code, said } = ended
            && code != Some(0)
        {
            bail!("host {}: the broker: {said}", place.broker.name);
        }
        let relation = self.relation(ends, findings)?;
        let sent = self.at(publisher)?.get(&sent).await?;
        let received = self.at(subscriber)?.get(&received).await?;
        evaluate(cell, &sent, &received, relation.as_ref(), findings)
    }

    /// Asks these hosts for the time, so many times.
    async fn compare_clocks(&mut self, hosts: &[&str], times: usize) -> anyhow::Result<()> {
        for _ in 0..times {
            for host in hosts {
                let own = self.clock;
                let exchange = self.at(host)?.clock(&own).await?;
                let all = self.comparisons.entry((*host).to_owned()).or_default();
                all.push(exchange);
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
        certificate: &TestCertificate,
    ) -> anyhow::Result<(u32, Client)> {
        let (server, key, ca) = (name("server.pem")?, name("server.key")?, name("ca.pem")?);
        let read = |path| std::fs::read(path).context("cannot read the run's certificate");
        let chain = read(certificate.certificate())?;
        let broker = self.at(&place.broker.name)?;
        broker.put(&server, &chain).await?;
        broker.put(&key, &read(certificate.key())?).await?;
        let congestion = cell.congestion()?.to_string();
        // Nowhere but on the network that is measured.
        let listen = Address::new(cell.scheme(), place.broker.address.to_string(), 0);
        let role = Role::Broker {
            listen: vec![listen.to_string()],
            certificate: Some(server),
            key: Some(key),
            congestion: Some(congestion.clone()),
        };
        let (id, addresses) = broker.start(role).await?;
        let address = addresses.first().context("the broker listens nowhere")?;
        for host in [place.publisher, place.subscriber] {
            self.at(&host.name)?.put(&ca, &chain).await?;
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
            if self.heard.elapsed() > STAY {
                for agent in self.agents.values_mut() {
                    agent.stay().await?;
                }
                self.heard = Instant::now();
            }
            self.compare_clocks(clocks, 1).await?;
            tokio::time::sleep(LOOK).await;
        }
    }
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
    let file = |bytes: &[u8]| -> anyhow::Result<tempfile::NamedTempFile> {
        let mut file = tempfile::NamedTempFile::new().context("cannot make a file")?;
        file.write_all(bytes).context("cannot write a file")?;
        Ok(file)
    };
    let sent = log::read_send_log(file(sent)?.path())?.records;
    let received = log::read_receive_log(file(received)?.path())?.records;
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
    Ok(())
}
