//! Use of a run's shared channel, and the messages of its other stations, while the measured messages were
//! under way.

use std::{convert::Infallible, time::Instant};

use mq_measure::convert::float;

use super::findings::Findings;
use crate::{
    testbed::{ChannelUse, Testbed},
    workload::closed_loop_stations::MessageCount,
};

/// The channel and the other stations, watched from one mark to another.
pub(super) struct Contention<'a> {
    testbed: &'a Testbed,
    messages: MessageCount,
    begin: Option<Mark>,
    end: Option<Mark>,
}

/// Use of the channel so far, and the number of messages of the other stations so far.
type Mark = (ChannelUse, u64);

impl<'a> Contention<'a> {
    /// Watches a testbed, without effect if it has no channel. `messages` counts those of the other stations.
    pub(super) fn new(testbed: &'a Testbed, messages: MessageCount) -> Self {
        Self {
            testbed,
            messages,
            begin: None,
            end: None,
        }
    }

    /// Marks the first measured message.
    pub(super) fn begin(&mut self) {
        self.begin = self.now();
    }

    /// Marks the last measured message.
    pub(super) fn end(&mut self) {
        self.end = self.now();
    }

    fn now(&self) -> Option<Mark> {
        let channel = self.testbed.channel_use()?;
        Some((channel, self.messages.so_far()))
    }

    /// Runs `work`, and marks these moments meanwhile. One moment is no time, and is not marked.
    pub(super) async fn between<T>(
        &mut self,
        first: Instant,
        last: Instant,
        work: impl Future<Output = T>,
    ) -> T {
        let marking = async {
            if first == last {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep_until(first.into()).await;
            self.begin();
            tokio::time::sleep_until(last.into()).await;
            self.end();
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            done = work => done,
            never = marking => match never {},
        }
    }

    /// Adds the metrics of the time between the marks; none if a mark is missing, or there was no time.
    pub(super) fn report(self, findings: &mut Findings) {
        let Some(((before, had), (after, have))) = self.begin.zip(self.end) else {
            return;
        };
        let meanwhile = after.since(&before);
        for (metric, value) in [
            ("air_time_share", meanwhile.air_time_share()),
            ("collision_rate", meanwhile.collision_rate()),
            ("retries_per_frame", meanwhile.retries_per_frame()),
        ] {
            if let Some(value) = value {
                findings.set_metric(metric, value);
            }
        }
        findings.set_metric("neighbour_messages", float(have - had));
    }
}
