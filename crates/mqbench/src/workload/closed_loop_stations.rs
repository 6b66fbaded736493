//! The other stations of a shared channel that run the measured pattern, which waits for each message: stop and
//! wait, or reconnect. Each has a topic and a subscriber of its own, as its loop closes with the arrival.
//!
//! [`scheduled_stations`](super::scheduled_stations) has the stations of a schedule.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, bail};
use mq_codec::TopicName;
use mq_transport::{Address, ConnectOptions};
use tokio::task::JoinSet;

use super::{
    RunClock,
    arrivals::Arrivals,
    connect::leave,
    reconnect,
    resumption::Resumption,
    stopwait::{self, Plan},
};
use crate::mqtt::{MqttOptions, Route};

/// A count of the messages that the other stations have got through so far. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct MessageCount(Arc<AtomicU64>);

impl MessageCount {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Addresses and options by which the publisher and the subscriber of a station dial the broker.
pub(crate) type Ends = ((Address, ConnectOptions), (Address, ConnectOptions));

/// Stations that are ready to publish.
#[derive(Debug)]
pub(crate) struct ClosedLoopStations {
    stations: Vec<Station>,
    messages: MessageCount,
}

#[derive(Debug)]
struct Station {
    /// The station's number; the measured publisher has 1.
    number: usize,
    publisher: Publisher,
}

#[derive(Debug)]
enum Publisher {
    StopAndWait(stopwait::Publisher),
    Reconnect(Box<reconnect::Publisher>),
}

impl ClosedLoopStations {
    /// Connects stations that will stop and wait, all at the same time. Each takes the measured plan, without
    /// its count, and has its own topic below the plan's.
    pub(crate) async fn stop_and_wait(
        plan: &Plan,
        mqtt: &MqttOptions,
        ends: Vec<Ends>,
    ) -> anyhow::Result<Self> {
        let connect = |number, (publisher, subscriber): Ends| {
            let (plan, mqtt) = (plan.clone(), mqtt.clone());
            async move {
                let (plan, arrivals) = subscribe(number, plan, &mqtt, subscriber).await?;
                let (route, id) = (Route::new(publisher)?, publisher_id(number));
                let publisher = stopwait::Publisher::connect(&plan, &mqtt, &route, &id, arrivals);
                Ok(Publisher::StopAndWait(publisher.await?))
            }
        };
        Self::connect(ends, connect).await
    }

    /// Prepares stations like those of [`stop_and_wait`](Self::stop_and_wait), which will connect for each message.
    pub(crate) async fn reconnect(
        plan: &Plan,
        resumption: Resumption,
        mqtt: &MqttOptions,
        ends: Vec<Ends>,
    ) -> anyhow::Result<Self> {
        let connect = |number, (publisher, subscriber): Ends| {
            let (plan, mqtt) = (plan.clone(), mqtt.clone());
            async move {
                let (plan, arrivals) = subscribe(number, plan, &mqtt, subscriber).await?;
                let id = publisher_id(number);
                let publisher =
                    reconnect::Publisher::new(&plan, resumption, &mqtt, publisher, &id, arrivals);
                Ok(Publisher::Reconnect(Box::new(publisher?)))
            }
        };
        Self::connect(ends, connect).await
    }

    async fn connect<F>(ends: Vec<Ends>, connect: impl Fn(usize, Ends) -> F) -> anyhow::Result<Self>
    where
        F: Future<Output = anyhow::Result<Publisher>> + Send + 'static,
    {
        let mut connecting = JoinSet::new();
        for (number, ends) in (2..).zip(ends) {
            let publisher = connect(number, ends);
            connecting.spawn(async move {
                let publisher = publisher.await.with_context(|| role(number))?;
                anyhow::Ok(Station { number, publisher })
            });
        }
        let mut stations = Vec::new();
        while let Some(station) = connecting.join_next().await {
            stations.push(station.context("a connecting task failed")??);
        }
        Ok(Self {
            stations,
            messages: MessageCount::default(),
        })
    }

    /// Returns the count of the messages that have arrived at these stations' subscribers.
    pub(crate) fn messages(&self) -> MessageCount {
        self.messages.clone()
    }

    /// Lets the stations publish while `work` lasts; then they are cut off. Returns the result of `work`.
    ///
    /// # Errors
    /// The error of `work`, or of a station that cannot go on, with its role: `work` is then cancelled.
    pub(crate) async fn run_beside<T>(
        self,
        clock: RunClock,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let messages = self.messages;
        let runs = self.stations.into_iter().map(|station| {
            let (number, messages) = (station.number, messages.clone());
            let run = station.publisher.run(clock, messages);
            async move { run.await.with_context(|| role(number)) }
        });
        run_beside(runs, work).await
    }
}

/// Runs `work`, and these endless tasks beside it.
async fn run_beside<T>(
    tasks: impl Iterator<Item = impl Future<Output = anyhow::Result<Infallible>> + Send + 'static>,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let mut tasks: JoinSet<_> = tasks.collect();
    let done = tokio::select! {
        done = work => done,
        Some(ended) = tasks.join_next() => match ended.context("a station's task failed")? {
            Ok(never) => match never {},
            Err(error) => bail!(error),
        },
    };
    tasks.shutdown().await;
    done
}

impl Publisher {
    /// Publishes until it is cut off.
    async fn run(mut self, clock: RunClock, messages: MessageCount) -> anyhow::Result<Infallible> {
        let mut seq = 0;
        loop {
            match &mut self {
                Self::StopAndWait(publisher) => {
                    publisher.deliver(clock, seq).await?;
                    messages.add_one();
                }
                Self::Reconnect(publisher) => {
                    let (client, _) = publisher.deliver(clock, seq).await?;
                    messages.add_one();
                    leave(&client).await?;
                }
            }
            seq += 1;
        }
    }
}

/// Subscribes to a station's own topic, and returns its plan.
async fn subscribe(
    number: usize,
    plan: Plan,
    mqtt: &MqttOptions,
    subscriber: (Address, ConnectOptions),
) -> anyhow::Result<(Plan, Arrivals)> {
    let topic = TopicName::new(format!("{}/{number}", plan.topic))?;
    let (route, id) = (Route::new(subscriber)?, format!("mqbench-sub-{number}"));
    let arrivals = Arrivals::subscribe_as(&id, &topic, mqtt, &route).await?;
    Ok((Plan { topic, ..plan }, arrivals))
}

fn publisher_id(number: usize) -> String {
    format!("{}-{number}", stopwait::PUBLISHER)
}

/// Returns the station's name in results and messages; its host has the same.
fn role(number: usize) -> String {
    format!("publisher-{number}")
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_station_that_fails_ends_the_run_with_its_role() {
        let fails = |number: usize| async move {
            if number == 3 {
                bail!("message 7 did not arrive within 120s");
            }
            pending().await
        };
        let stations = (2..=4).map(|number| {
            let fails = fails(number);
            async move { fails.await.with_context(|| role(number)) }
        });
        let ended = run_beside(stations, pending::<anyhow::Result<()>>()).await;
        let said = format!("{:#}", ended.unwrap_err());
        assert_eq!(said, "publisher-3: message 7 did not arrive within 120s");
    }

    #[tokio::test]
    async fn stations_are_cut_off_when_the_measured_one_has_finished() {
        let messages = MessageCount::default();
        let (count, held) = (messages.clone(), Arc::clone(&messages.0));
        let station = async move {
            loop {
                count.add_one();
                tokio::task::yield_now().await;
            }
        };
        let work = async {
            while messages.so_far() < 10 {
                tokio::task::yield_now().await;
            }
            anyhow::Ok("done")
        };
        assert_eq!(
            run_beside(std::iter::once(station), work).await.unwrap(),
            "done"
        );
        // The station's task is gone with its count.
        drop(messages);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
