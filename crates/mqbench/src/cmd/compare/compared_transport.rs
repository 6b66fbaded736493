//! A transport in a comparison: its clients and its results.

use anyhow::Context as _;
use indicatif::ProgressBar;
use mq_measure::{
    LatencyRecorder, Samples,
    process::ProcessMeter,
    result::{HostPackets, ProcessUse},
};
use mq_transport::{Address, ConnectOptions, Repeat};

use super::options::Args;
use crate::{
    clock::nanoseconds,
    mqtt::{MqttOptions, Route},
    testbed::{BrokerAccess, Testbed},
    workload::{
        RunClock,
        connect::{self, Connected, Dialler},
        e2e,
        scheduled_stations::ScheduledStations,
    },
};

/// A transport with its clients and its results so far.
pub(super) struct ComparedTransport {
    pub(super) name: String,
    /// Policy by which small QUIC datagrams are repeated.
    pub(super) repeat: Repeat,
    /// Process of the transport's broker; `None` for another machine's.
    broker: Option<u32>,
    pub(super) publisher: Route,
    subscriber: Route,
    /// The other stations of the publisher's channel.
    neighbours: Vec<Route>,
    pub(super) diallers: Vec<(Dialler, Vec<Option<Connected>>)>,
    pub(super) rounds: Vec<RoundOutcome>,
}

pub(super) struct RoundOutcome {
    pub(super) turn: u32,
    pub(super) outcome: e2e::E2eResult,
    /// Messages that the other stations sent; `None` without a shared channel.
    pub(super) neighbours_sent: Option<u64>,
    pub(super) broker: Option<ProcessUse>,
    pub(super) clients: Option<ProcessUse>,
    pub(super) publisher_host: Option<HostPackets>,
}

impl ComparedTransport {
    pub(super) fn new(
        name: String,
        address: &Address,
        options: &ConnectOptions,
        broker: Option<u32>,
        testbed: Option<&Testbed>,
    ) -> anyhow::Result<Self> {
        let end = |access: Option<BrokerAccess>| match access {
            Some(access) => access.dial_options(address, options),
            None => (address.clone(), options.clone()),
        };
        let publisher = end(testbed.map(Testbed::publisher));
        let subscriber = end(testbed.map(Testbed::subscriber));
        let neighbours = testbed.into_iter().flat_map(Testbed::neighbours);
        let neighbours = neighbours.map(|access| Route::new(access.dial_options(address, options)));
        let diallers = connect::kinds(address.scheme)
            .iter()
            .map(|kind| {
                let dialler = Dialler::new(&publisher.0, &publisher.1, *kind)?;
                Ok((dialler, Vec::new()))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            name,
            repeat: options.quic.repeat,
            broker,
            publisher: Route::new(publisher)?,
            subscriber: Route::new(subscriber)?,
            neighbours: neighbours.collect::<anyhow::Result<_>>()?,
            diallers,
            rounds: Vec::new(),
        })
    }

    pub(super) fn samples(&self) -> Samples {
        let rounds: Vec<_> = self
            .rounds
            .iter()
            .map(|round| round.outcome.samples.clone())
            .collect();
        e2e::concatenate(&rounds)
    }

    /// Returns the samples of all rounds with times since the Unix epoch, as the packets of captures have them.
    pub(super) fn samples_since_epoch(&self) -> Samples {
        let outcomes = self.rounds.iter().map(|round| &round.outcome);
        let rounds = outcomes.map(|outcome| outcome.samples.since_epoch(outcome.origin_ns));
        e2e::concatenate(&rounds.collect::<Vec<_>>())
    }

    pub(super) fn recorder(&self) -> LatencyRecorder {
        let mut recorder = LatencyRecorder::new();
        recorder.extend(self.samples().latencies_intended_ns());
        recorder
    }

    pub(super) async fn send(
        &mut self,
        args: &Args,
        round: u32,
        turn: u32,
        testbed: Option<&Testbed>,
        progress: &ProgressBar,
    ) -> anyhow::Result<()> {
        let plan = e2e::Plan {
            topics: args.topics,
            ..e2e::Plan::new(
                "mqbench/compare",
                args.messages_per_round(),
                args.interval,
                args.size,
                args.seed.wrapping_add(round.into()),
            )
        };
        let broker = self.broker.map(ProcessMeter::start).transpose()?;
        let clients = ProcessMeter::start_own()?;
        let emulator = testbed.map(Testbed::cpu_time);
        let packets = testbed.map(Testbed::publisher_packets);
        let bar = progress.clone();
        let mqtt = args.client.mqtt.get();
        let (outcome, neighbours_sent) = self.publish(&plan, &mqtt, move |_| bar.inc(1)).await?;
        let used =
            |role, meter: &ProcessMeter| meter.read().map(|usage| ProcessUse::new(role, &usage));
        let mut clients = used("clients", &clients)?;
        if let (Some(testbed), Some(before)) = (testbed, emulator) {
            // The emulator's threads are in this process; they spin, which is user time.
            let emulator = nanoseconds(testbed.cpu_time().saturating_sub(before));
            clients.cpu_ns = clients.cpu_ns.saturating_sub(emulator);
            clients.user_ns = clients.user_ns.saturating_sub(emulator);
        }
        let publisher_host = testbed.zip(packets).map(|(testbed, before)| {
            let after = testbed.publisher_packets();
            HostPackets {
                sent: after.0 - before.0,
                received: after.1.zip(before.1).map(|(after, before)| after - before),
                elapsed_ns: nanoseconds(outcome.elapsed),
            }
        });
        self.rounds.push(RoundOutcome {
            turn,
            outcome,
            neighbours_sent: testbed
                .and_then(Testbed::stations_on_channel)
                .map(|_| neighbours_sent),
            publisher_host,
            broker: broker
                .as_ref()
                .map(|meter| used("broker", meter))
                .transpose()?,
            clients: Some(clients),
        });
        Ok(())
    }

    /// Runs publisher, subscriber and the other stations; returns the number of messages that the other stations sent.
    async fn publish(
        &self,
        plan: &e2e::Plan,
        mqtt: &MqttOptions,
        progress: impl Fn(u64) + Send + 'static,
    ) -> anyhow::Result<(e2e::E2eResult, u64)> {
        let neighbours = ScheduledStations::connect(mqtt, &self.neighbours).await?;
        let pair = e2e::ClientPair::connect(plan, mqtt, &self.publisher, &self.subscriber).await?;
        let clock = RunClock::start();
        neighbours
            .run_beside(plan, clock, pair.run(clock, progress))
            .await
    }

    pub(super) async fn dial(&mut self, args: &Args) -> anyhow::Result<()> {
        let mqtt = args.client.mqtt.get();
        for (dialler, dialled) in &mut self.diallers {
            for _ in 0..args.connections_per_round() {
                // A failed connection is a result; the run continues.
                dialled.push(dialler.dial(&mqtt).await.ok());
                tokio::time::sleep(connect::PAUSE).await;
            }
            if dialled.iter().all(Option::is_none) && !dialled.is_empty() {
                dialler
                    .dial(&mqtt)
                    .await
                    .with_context(|| format!("no {:?} connection worked", dialler.kind()))?;
            }
        }
        Ok(())
    }
}
