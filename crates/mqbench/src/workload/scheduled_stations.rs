//! The other stations of a shared channel beside a schedule. Each publishes as the measured publisher does, to a
//! topic of its own without subscribers.
//!
//! [`closed_loop_stations`](super::closed_loop_stations) has the stations of patterns that wait for each message.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use anyhow::Context as _;
use mq_client::{Client, Outgoing};
use mq_codec::{QoS, TopicName};
use mq_measure::schedule::OpenLoop;
use tokio::task::JoinSet;

use super::{
    RunClock,
    closed_loop_stations::MessageCount,
    e2e::{LEAD, Plan},
    send_thread::SendThread,
};
use crate::{
    clock::nanoseconds,
    mqtt::{MqttOptions, Route},
    payload::Payloads,
};

/// Connected clients that have not published yet.
#[derive(Debug)]
pub(crate) struct ScheduledStations {
    /// Each client with its number among the stations; the measured publisher has 1.
    clients: Vec<(usize, Client)>,
    qos: QoS,
    sent: MessageCount,
}

impl ScheduledStations {
    /// Connects one client over each route, all at the same time.
    pub(crate) async fn connect(mqtt: &MqttOptions, routes: &[Route]) -> anyhow::Result<Self> {
        let mut connecting = JoinSet::new();
        for (number, route) in (2..).zip(routes) {
            let client = mqtt.builder(route, &format!("mqbench-pub-{number}"))?;
            connecting.spawn(async move {
                let client = client.build().await;
                let client = client.with_context(|| format!("publisher-{number} cannot connect"));
                anyhow::Ok((number, client?))
            });
        }
        let mut clients = Vec::new();
        while let Some(client) = connecting.join_next().await {
            clients.push(client.context("a connecting task failed")??);
        }
        clients.sort_unstable_by_key(|(number, _)| *number);
        Ok(Self {
            clients,
            qos: mqtt.qos,
            sent: MessageCount::default(),
        })
    }

    /// Returns the count of the messages that the stations have sent.
    pub(crate) fn messages(&self) -> MessageCount {
        self.sent.clone()
    }

    /// Lets the stations publish while `work` lasts, with the plan's size and interval. Returns the result of
    /// `work` and the number of messages that the stations sent.
    ///
    /// # Errors
    /// The error of `work`, or of a client that cannot go on: `work` is then cancelled.
    pub(crate) async fn run_beside<T>(
        self,
        plan: &Plan,
        clock: RunClock,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<(T, u64)> {
        if self.clients.is_empty() {
            return Ok((work.await?, 0));
        }
        let publisher = self.publisher(plan, clock)?;
        let mut sending = SendThread::start(move |stop| publisher.run(stop));
        let done = tokio::select! {
            done = work => done?,
            ended = sending.ended() => {
                ended?;
                anyhow::bail!("the other stations ended before the measured one");
            }
        };
        sending.finish().await?;
        let sent = self.sent.so_far();
        self.disconnect().await;
        Ok((done, sent))
    }

    fn publisher(&self, plan: &Plan, clock: RunClock) -> anyhow::Result<Publisher> {
        let station = |(number, client): &(usize, Client)| {
            Ok(Station {
                number: *number,
                client: client.clone(),
                topic: TopicName::new(format!("{}/{number}", plan.topic))?,
            })
        };
        let stations = self.clients.iter().map(station);
        let phases = u32::try_from(self.clients.len() + 1).context("too many stations")?;
        Ok(Publisher {
            stations: stations.collect::<anyhow::Result<_>>()?,
            qos: self.qos,
            schedule: OpenLoop::new(nanoseconds(LEAD), plan.interval / phases),
            payloads: Payloads::new(plan.size, plan.seed),
            sent: self.sent.clone(),
            clock,
        })
    }

    async fn disconnect(self) {
        let goodbyes = self.clients.into_iter().map(|(_, client)| async move {
            // On an overloaded channel the DISCONNECT may not get through; the turn is over.
            let _ = client.disconnect().await;
        });
        goodbyes.collect::<JoinSet<_>>().join_all().await;
    }
}

/// The thread of all stations. Its schedule has a slot for each station; the first slot is the measured
/// publisher's.
struct Publisher {
    stations: Vec<Station>,
    qos: QoS,
    schedule: OpenLoop,
    payloads: Payloads,
    sent: MessageCount,
    clock: RunClock,
}

struct Station {
    number: usize,
    client: Client,
    topic: TopicName,
}

impl Publisher {
    /// Publishes until the thread is stopped, and counts the messages that the clients took.
    fn run(self, stop: &AtomicBool) -> anyhow::Result<()> {
        let slots = self.stations.len() as u64 + 1;
        for seq in 0.. {
            for (slot, station) in (1..).zip(&self.stations) {
                self.wait_for(seq * slots + slot);
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let message = Outgoing::new(station.topic.clone(), self.payloads.make(seq));
                match station.client.try_send(message.qos(self.qos)) {
                    Ok(_) => self.sent.add_one(),
                    // An open loop: a message that the client cannot take is lost.
                    Err(mq_client::Error::QueueFull) => {}
                    Err(error) => {
                        let number = station.number;
                        return Err(error)
                            .with_context(|| format!("publisher-{number} cannot publish"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Sleeps without spinning, unlike the measured publisher: the lateness of these messages is not measured,
    /// and the processors are busy enough.
    fn wait_for(&self, slot: u64) {
        let at = self.clock.instant(self.schedule.intended_ns(slot));
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
    }
}
