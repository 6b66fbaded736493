//! A run of a cell: its network, its broker, its pattern, and its outcome.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use mq_codec::TopicName;
use mq_energy::Window;
use mq_measure::{Samples, convert::float, manifest::LinkContext};
use mq_netem::Host;
use mq_transport::{Address, ConnectOptions, SocketOptions, Trust};

use super::{
    PATIENCE,
    brokers::{self, Brokers},
    contention::Contention,
    energy_model::EnergyModel,
    findings::Findings,
    half_open, load, metered_energy,
    run_request::CellOrder,
    storm,
};
use crate::{
    broker_under_test::{BrokerOptions, TestCertificate, configuration},
    campaign::{
        cell::{Cell, FastOpen},
        pattern::Pattern,
        record::Outcome,
        transport_parameters::TransportParameters,
    },
    descriptors,
    mqtt::{MqttOptions, Route},
    testbed::{BrokerAccess, Testbed},
    workload::{
        RunClock, add_wire,
        arrivals::Arrivals,
        closed_loop_stations::{ClosedLoopStations, Ends},
        coap,
        connect::{self, Dialler},
        e2e, handover, reconnect,
        resumption::Resumption,
        rtt,
        scheduled_stations::ScheduledStations,
        stopwait,
    },
};

/// Builds the network of a run. Call it before there are threads.
pub(crate) fn testbed(order: &CellOrder) -> anyhow::Result<Testbed> {
    let cell = &order.cell;
    let testbed = Testbed::build(cell.network()?, order.files.pcap.as_deref(), order.seed)?;
    if cell.pattern.is_on_broker_host() {
        // The threads of this process will be on the broker's host: no socket has to be made elsewhere, which
        // would cost a thread each.
        Host::move_into(&testbed.broker().path()).context("cannot enter the broker's network")?;
    }
    Ok(testbed)
}

/// Runs the cell in its network, computes its energy by a profile, if there is one, and keeps its samples, if
/// they are asked for.
///
/// # Errors
/// If nothing can be measured at all. An error that ends the pattern early is in the outcome.
pub(crate) async fn run(order: &CellOrder, testbed: &Testbed) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let cell = &order.cell;
    // Before a broker starts, which inherits the limit.
    descriptors::raise_limit(cell.connections())?;
    testbed.tune_tcp(cell.tcp_tuning())?;
    let quic = cell.quic();
    let (congestion, crypto) = (cell.congestion(), cell.crypto()?);
    let fast_open = cell.tcp_fast_open.is_used();
    let certificate = TestCertificate::make(
        testbed.broker_addresses().map(Into::into),
        cell.certificate_padding.unwrap_or_default().into(),
        &configuration(&BrokerOptions {
            tcp_fast_open: fast_open,
            is_attacked: cell.pattern == Pattern::HalfOpen,
            ..BrokerOptions::of(&quic, &crypto.key_exchange_groups)
        }),
    )?;
    let parameters =
        TransportParameters::of(&crypto, &quic, Some(congestion), testbed.tcp_settings()?);
    let mut brokers = Brokers::start(cell, testbed, &certificate).await?;
    let options = ConnectOptions {
        trust: Trust::CaFile(certificate.certificate()),
        congestion: Some(congestion),
        connect_timeout: PATIENCE,
        crypto,
        quic,
        socket: SocketOptions {
            tcp_fast_open: fast_open,
            ..SocketOptions::default()
        },
        ..ConnectOptions::default()
    };
    let cell_run = CellRun {
        cell,
        seed: order.seed,
        energy_profile: order.energy_profile.as_deref(),
        testbed,
        brokers: [brokers.publisher.clone(), brokers.subscriber.clone()],
        options,
        mqtt: MqttOptions {
            qos: cell.qos(),
            version: cell.mqtt.into(),
            keep_alive: cell.keep_alive(),
            probes: MqttOptions::NO_PROBES,
            user_name: None,
            password: None,
            connect_timeout: PATIENCE,
            streams: cell.streams()?,
            deliveries: cell.deliveries,
            datagrams: cell.datagrams,
        },
    };
    if !cell.pattern.saturates_processors() {
        // Other runs begin and end beside this one; their work has no deadline, so this one gets priority.
        for process in brokers.pids().chain([std::process::id()]) {
            // Without the permission the process keeps its ordinary priority.
            let _ = mq_netem::run_early(process);
        }
    }
    let mut findings = Findings::new_local();
    findings.so_far.transport_parameters = Some(parameters);
    let measured = cell_run.measure(&mut brokers, &mut findings).await;
    if cell.pattern.depends_on_link_times() {
        testbed.check_timing(&mut findings.validity);
    }
    let went = measured.and(brokers.stop().await);
    let went = went.and(order.files.save(&findings.samples));
    Ok(findings.outcome(went, cell_run.link(), began))
}

struct CellRun<'a> {
    cell: &'a Cell,
    seed: u64,
    energy_profile: Option<&'a str>,
    testbed: &'a Testbed,
    /// The publisher's broker and the subscriber's, except for the host, which differs for each link.
    brokers: [Address; 2],
    options: ConnectOptions,
    mqtt: MqttOptions,
}

impl CellRun<'_> {
    async fn measure(
        &self,
        brokers: &mut Brokers<'_>,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        let before = self.testbed.publisher_packets().0;
        let carried_before = self.testbed.publisher_link();
        let began = Instant::now();
        match self.cell.pattern {
            Pattern::Periodic => self.periodic(findings).await?,
            Pattern::StopAndWait => self.stop_and_wait(findings).await?,
            Pattern::Reconnect => self.reconnect(findings).await?,
            Pattern::JobResult => self.job_result(findings).await?,
            Pattern::Connect => self.connect(findings).await?,
            Pattern::Coap => self.coap(findings).await?,
            Pattern::Load => return self.load(brokers, findings).await,
            // No link's packets are counted.
            Pattern::Storm => return self.storm(brokers, findings).await,
            // They are counted until the clients vanish.
            Pattern::HalfOpen => return self.half_open(brokers, findings).await,
        }
        let sent = self.testbed.publisher_packets().0 - before;
        let rate = float(sent) / began.elapsed().as_secs_f64();
        findings.set_metric("packets_per_second", rate);
        // The first connection of `reconnect` has a message of its own.
        let first = u64::from(self.cell.pattern == Pattern::Reconnect);
        let messages = self.cell.messages + first;
        findings.set_metric("packets_per_message", float(sent) / float(messages));
        if let (Some(before), Some(now)) = (carried_before, self.testbed.publisher_link()) {
            findings.add_carried("link", now.since(before), messages);
        }
        Ok(())
    }

    async fn periodic(&self, findings: &mut Findings) -> anyhow::Result<()> {
        let plan = self.plan();
        let neighbours = self.neighbours().await?;
        let (publisher, subscriber) = self.routes()?;
        let moves = self.cell.handover.is_some();
        if self.cell.topology.is_row() {
            brokers::bridged(&self.mqtt, &publisher, &subscriber).await?;
        }
        let pair = if moves {
            handover::connect(&plan, &self.mqtt, &publisher, &subscriber).await?
        } else {
            e2e::ClientPair::connect(&plan, &self.mqtt, &publisher, &subscriber).await?
        };
        let energy_model = self.energy_model();
        let uplink = self.testbed.uplink();
        let clock = RunClock::start();
        let work = async {
            if moves {
                let hand_over = || self.testbed.hand_over();
                let handing_over = handover::run(pair, clock, self.cell.on_handover, hand_over);
                handing_over
                    .await
                    .map(|(outcome, moment)| (outcome, Some(moment)))
            } else {
                Ok((pair.run(clock, |_| {}).await?, None))
            }
        };
        let mut contention = Contention::new(self.testbed, neighbours.messages());
        let (first, last) = (plan.due(clock, 0), plan.due(clock, plan.count - 1));
        let run = neighbours.run_beside(&plan, clock, work);
        let ((outcome, hand_over), _) = contention.between(first, last, run).await?;
        contention.report(findings);
        if let (Some(before), Some(now)) = (uplink, self.testbed.uplink()) {
            findings.add_carried("uplink", now.since(before), self.cell.messages);
        }
        if self.cell.outage().is_some() {
            findings.add_interruption(&handover::figures(&outcome.samples));
            let missed = self.cell.outage_missed(self.testbed.began(), (first, last));
            findings.validity.note(missed);
        }
        if let Some(moment) = hand_over {
            findings.add_interruption(&handover::figures(&outcome.samples));
            findings
                .validity
                .note(moment.warning(self.cell.interval_ns));
        }
        let (wire, received) = (outcome.publisher_wire, outcome.counts.received);
        findings.add_energy(
            energy_model.and_then(|one| one.end(wire, outcome.pacing_cpu_ns, received)),
        );
        let origin_ns = outcome.origin_ns;
        let sent = metered_energy::sending_window(&outcome.samples);
        findings.so_far.sending =
            sent.map(|sent| Window::new(origin_ns + sent.from_ns, origin_ns + sent.to_ns));
        findings.add_distribution("latency", &outcome.samples.latencies_intended_ns())?;
        findings.add_counts(outcome.counts, &outcome.lateness, self.cell.interval_ns);
        findings.add_arrivals(self.cell, &outcome.samples);
        findings.samples = outcome.samples.since_epoch(origin_ns);
        Ok(())
    }

    async fn stop_and_wait(&self, findings: &mut Findings) -> anyhow::Result<()> {
        let (publisher, subscriber) = self.routes()?;
        let (mqtt, plan) = (&self.mqtt, self.one_by_one(stopwait::TOPIC)?);
        let peers = ClosedLoopStations::stop_and_wait(&plan, mqtt, self.peers()).await?;
        let arrivals = Arrivals::subscribe(stopwait::TOPIC, mqtt, &subscriber).await?;
        let id = stopwait::PUBLISHER;
        let publisher = stopwait::Publisher::connect(&plan, mqtt, &publisher, id, arrivals).await?;
        let mut contention = Contention::new(self.testbed, peers.messages());
        contention.begin();
        let clock = RunClock::start();
        let work = publisher.run(clock, |seq| {
            if seq + 1 == plan.count {
                contention.end();
            }
        });
        let samples = peers.run_beside(clock, work).await?;
        contention.report(findings);
        let delta = stopwait::delta(&samples).context("nothing was sent")?;
        findings.add_stop_and_wait(delta, &samples)?;
        findings.samples = samples.since_epoch(clock.origin_ns());
        Ok(())
    }

    async fn reconnect(&self, findings: &mut Findings) -> anyhow::Result<()> {
        let (publisher, subscriber) = self.ends();
        let (mqtt, plan) = (&self.mqtt, self.one_by_one(reconnect::TOPIC)?);
        let resumption = self.cell.resumption;
        let peers = ClosedLoopStations::reconnect(&plan, resumption, mqtt, self.peers()).await?;
        // The subscriber stays connected, and has tickets of its own.
        let subscriber = Route::new(subscriber)?;
        let arrivals = Arrivals::subscribe(reconnect::TOPIC, mqtt, &subscriber).await?;
        let id = stopwait::PUBLISHER;
        let publisher =
            reconnect::Publisher::new(&plan, resumption, mqtt, publisher, id, arrivals)?;
        let mut contention = Contention::new(self.testbed, peers.messages());
        contention.begin();
        let energy_model = self.energy_model();
        let clock = RunClock::start();
        let mut refused = Ok(());
        let work = publisher.run(clock, |seq| {
            if seq == 0 && self.cell.tcp_fast_open == FastOpen::Lost {
                refused = self.testbed.refuse_data_in_syn();
            }
            if seq == plan.count {
                contention.end();
            }
        });
        let attempts = peers.run_beside(clock, work).await?;
        refused.context("cannot set TCP of the broker's host")?;
        contention.report(findings);
        if self.cell.tcp_fast_open.is_used() {
            findings.add_data_in_syn(&attempts);
        }
        let wire = attempts.iter().map(|attempt| attempt.wire);
        let wire = wire.reduce(|a, b| add_wire(&a, &b));
        // No thread keeps a schedule.
        let messages = attempts.len() as u64;
        findings.add_energy(energy_model.and_then(|one| one.end(wire, Some(0), messages)));
        let samples: Samples = attempts.iter().map(|attempt| attempt.sample).collect();
        findings.add_reconnects(&samples)?;
        findings.samples = samples.since_epoch(clock.origin_ns());
        Ok(())
    }

    async fn job_result(&self, findings: &mut Findings) -> anyhow::Result<()> {
        let (publisher, subscriber) = self.routes()?;
        let plan = rtt::Plan {
            count: self.cell.messages,
            interval: self.cell.interval(),
            size: self.cell.size,
            grace: Duration::from_secs(10),
        };
        let run = rtt::run_with_worker(plan, &self.mqtt, &publisher, &subscriber);
        let outcome = run.await?;
        findings.add_distribution("rtt_last", &outcome.last)?;
        findings.add_distribution("rtt", &outcome.samples.latencies_sent_ns())?;
        findings.add_counts(outcome.counts, &outcome.lateness, self.cell.interval_ns);
        findings.samples = outcome.samples.since_epoch(outcome.origin_ns);
        Ok(())
    }

    async fn connect(&self, findings: &mut Findings) -> anyhow::Result<()> {
        let kind = connect::kind(self.cell.scheme(), self.cell.resumption);
        let (publisher, _) = self.ends();
        let mut dialler = Dialler::new(&publisher.0, &publisher.1, kind)?;
        let mut attempts = Vec::new();
        for _ in 0..self.cell.messages {
            attempts.push(dialler.dial(&self.mqtt).await.ok());
            tokio::time::sleep(connect::PAUSE).await;
        }
        findings.validity.note(dialler.failures(&attempts));
        findings.add_connections(&connect::samples(kind, &attempts))
    }

    async fn coap(&self, findings: &mut Findings) -> anyhow::Result<()> {
        let plan = self.plan();
        let (sockets, to) = self.testbed.udp_sockets()?;
        let clock = RunClock::start();
        let outcome = coap::run(&plan, self.cell.qos(), clock, sockets, to).await?;
        findings.add_distribution("latency", &outcome.samples.latencies_intended_ns())?;
        findings.add_counts(outcome.counts, &outcome.lateness, self.cell.interval_ns);
        findings.add_arrivals(self.cell, &outcome.samples);
        findings.samples = outcome.samples.since_epoch(outcome.origin_ns);
        Ok(())
    }

    async fn storm(
        &self,
        brokers: &mut Brokers<'_>,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        let (end, _) = self.ends();
        storm::run(self.cell, &self.mqtt, end, brokers, findings).await
    }

    async fn load(&self, brokers: &Brokers<'_>, findings: &mut Findings) -> anyhow::Result<()> {
        let (route, _) = self.routes()?;
        load::run(self.cell, &self.mqtt, &route, brokers, findings).await
    }

    async fn half_open(
        &self,
        brokers: &Brokers<'_>,
        findings: &mut Findings,
    ) -> anyhow::Result<()> {
        let (end, _) = self.ends();
        half_open::run(self.cell, &self.mqtt, end, self.testbed, brokers, findings).await
    }

    /// Returns the links as configured and as measured; nothing where clients reach the broker without a link.
    fn link(&self) -> LinkContext {
        if self.cell.pattern.is_on_broker_host() {
            return LinkContext::default();
        }
        LinkContext {
            configured: Some(self.testbed.configured()),
            measured: Some(self.testbed.measured()),
        }
    }

    /// Starts the model of the run's energy, from now on; `None` without a profile.
    fn energy_model(&self) -> Option<EnergyModel<'_>> {
        let profile = self.energy_profile?;
        EnergyModel::start(self.testbed, profile)
    }

    fn plan(&self) -> e2e::Plan {
        let cell = self.cell;
        let (interval, size) = (cell.interval(), cell.size);
        let plan = e2e::Plan::new("mqbench/cell", cell.messages, interval, size, self.seed);
        e2e::Plan {
            early: cell.resumption == Resumption::ZeroRtt,
            burst: cell.burst,
            topics: cell.topics,
            grace: plan.grace + cell.patience_after_outage(),
            ..plan
        }
    }

    /// Makes the plan for messages one after the other.
    fn one_by_one(&self, topic: &str) -> anyhow::Result<stopwait::Plan> {
        Ok(stopwait::Plan {
            topic: TopicName::new(topic)?,
            count: self.cell.messages,
            size: self.cell.size,
            patience: PATIENCE,
        })
    }

    /// Returns the addresses and options by which publisher and subscriber dial the broker.
    fn ends(&self) -> ((Address, ConnectOptions), (Address, ConnectOptions)) {
        let (publisher, subscriber) = (self.testbed.publisher(), self.testbed.subscriber());
        (self.publishing(publisher), self.subscribing(subscriber))
    }

    fn publishing(&self, access: BrokerAccess) -> (Address, ConnectOptions) {
        self.dial(access, &self.brokers[0])
    }

    fn subscribing(&self, access: BrokerAccess) -> (Address, ConnectOptions) {
        self.dial(access, &self.brokers[1])
    }

    fn dial(&self, access: BrokerAccess, broker: &Address) -> (Address, ConnectOptions) {
        if self.cell.pattern.is_on_broker_host() {
            return (broker.clone(), self.options.clone());
        }
        access.dial_options(broker, &self.options)
    }

    fn routes(&self) -> anyhow::Result<(Route, Route)> {
        let (mut publisher, subscriber) = self.ends();
        if self.cell.handover.is_some() {
            // The publisher may connect a second time.
            publisher.1 = self.cell.resumption.apply(publisher.1);
        }
        Ok((Route::new(publisher)?, Route::new(subscriber)?))
    }

    /// Returns the same for the other stations of the publisher's channel, and a subscriber for each.
    fn peers(&self) -> Vec<Ends> {
        let subscriber = || self.subscribing(self.testbed.subscriber());
        let neighbours = self.testbed.neighbours();
        let ends = neighbours.map(|access| (self.publishing(access), subscriber()));
        ends.collect()
    }

    /// Connects the other stations of the publisher's channel, for a schedule.
    async fn neighbours(&self) -> anyhow::Result<ScheduledStations> {
        let neighbours = self.testbed.neighbours();
        let routes = neighbours.map(|access| Route::new(self.publishing(access)));
        let routes = routes.collect::<anyhow::Result<Vec<_>>>()?;
        ScheduledStations::connect(&self.mqtt, &routes).await
    }
}
