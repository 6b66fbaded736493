//! A schedule whose publisher is handed over to another network in the middle.

use std::time::Duration;

use anyhow::Context as _;
use mq_client::Reconnect;
use mq_measure::{Samples, Warning};
use serde::{Deserialize, Serialize};

use super::{
    RunClock,
    e2e::{self, ClientPair, E2eResult, LEAD},
};
use crate::{
    mqtt::{MqttOptions, Route},
    units::ns_to_ms,
};

/// Delay, from the time at which a message was due, after which its arrival counts as late.
const LATE: Duration = Duration::from_millis(500);

/// Reaction of the publisher to the change of its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnHandover {
    /// Nothing: QUIC migrates the connection; over TCP the keep-alive finds it dead
    #[default]
    Stay,
    /// Connects again at once, as after a notification by the system
    Reconnect,
}

/// The figures of a hand-over.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Figures {
    /// The longest time without an arrival; `None` with fewer than two arrivals.
    pub(crate) gap_ns: Option<u64>,
    /// Number of messages that arrived later than [`LATE`].
    pub(crate) late: u64,
}

/// Connects the publisher and the subscriber of a run with a hand-over. The publisher connects again when its
/// connection is lost.
pub(crate) async fn connect<'a>(
    plan: &'a e2e::Plan,
    mqtt: &MqttOptions,
    publisher: &Route,
    subscriber: &Route,
) -> anyhow::Result<ClientPair<'a>> {
    let sender = mqtt.builder(publisher, "mqbench-pub")?;
    // A publisher that ignores the change finds its link dead within two keep-alives.
    let sender = sender
        .reconnect(Reconnect::default())
        .ping_timeout(mqtt.keep_alive);
    ClientPair::connect_with(plan, mqtt, sender, subscriber).await
}

/// Runs the pair; `hand_over` moves the publisher's host when half of the messages are due. Returns also the intended
/// and the actual time of the hand-over.
pub(crate) async fn run(
    pair: ClientPair<'_>,
    clock: RunClock,
    on_handover: OnHandover,
    hand_over: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(E2eResult, HandoverMoment)> {
    let intended_ns = middle_ns(pair.plan());
    let at = clock.instant(intended_ns);
    let publisher = pair.publisher();
    let moving = async {
        tokio::time::sleep_until(at.into()).await;
        // Some hundred microseconds of the kernel's work, unless others change their networks at the same time.
        hand_over()?;
        let done_ns = clock.now_ns();
        if on_handover == OnHandover::Reconnect {
            publisher.reconnect().context("cannot connect again")?;
        }
        Ok(HandoverMoment {
            intended_ns,
            done_ns,
        })
    };
    tokio::try_join!(pair.run(clock, |_| {}), moving)
}

/// Intended and actual time of a hand-over, since the clock's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HandoverMoment {
    intended_ns: u64,
    done_ns: u64,
}

impl HandoverMoment {
    /// Returns the warning, if the hand-over was done when the next message was due or later: some messages took the
    /// old link.
    pub(crate) fn warning(self, interval_ns: u64) -> Option<Warning> {
        let late = self.done_ns.saturating_sub(self.intended_ns) >= interval_ns / 2;
        late.then(|| Warning::LinkOffProfile {
            quantity: "hand-over in ms after the start".to_owned(),
            configured: ns_to_ms(self.intended_ns),
            measured: ns_to_ms(self.done_ns),
        })
    }
}

/// Returns the time half-way between two messages, with a burst of 1, so that no message is sent during the hand-over.
fn middle_ns(plan: &e2e::Plan) -> u64 {
    let before = plan.interval * u32::try_from(plan.count / 2).unwrap_or(u32::MAX);
    super::nanoseconds((LEAD + before).saturating_sub(plan.interval / 2))
}

pub(crate) fn figures(samples: &Samples) -> Figures {
    let mut arrived: Vec<_> = samples.0.iter().filter_map(|one| one.received_ns).collect();
    arrived.sort_unstable();
    let gaps = arrived.windows(2).map(|pair| pair[1] - pair[0]);
    let late = samples.latencies_intended_ns();
    let late = late.iter().filter(|took| **took > super::nanoseconds(LATE));
    Figures {
        gap_ns: gaps.max(),
        late: late.count() as u64,
    }
}

#[cfg(test)]
mod tests {
    use mq_measure::Sample;

    use super::*;

    #[test]
    fn a_hand_over_that_meets_the_next_message_disturbs_the_run() {
        let interval_ns = 100_000_000;
        let done = |done_ns| HandoverMoment {
            intended_ns: 970_000_000,
            done_ns,
        };
        assert_eq!(done(1_019_000_000).warning(interval_ns), None);
        let warning = done(1_020_000_000).warning(interval_ns).unwrap();
        assert_eq!(
            warning.to_string(),
            "the link's hand-over in ms after the start is 1020 instead of 970; check for offloads and for other traffic"
        );
    }

    #[test]
    fn a_gap_is_the_longest_silence_and_late_counts_from_the_intended_time() {
        const MS: u64 = 1_000_000;
        let sample = |seq, received: Option<u64>| Sample {
            seq,
            intended_ns: seq * 100 * MS,
            sent_ns: seq * 100 * MS,
            received_ns: received.map(|ms| ms * MS),
        };
        // The second message overtakes the third, and the fourth is lost.
        let samples = [(0, Some(20)), (1, Some(730)), (2, Some(640)), (3, None)];
        let samples = samples.map(|(seq, received)| sample(seq, received));
        let figures = figures(&samples.into_iter().collect());
        let expected = Figures {
            gap_ns: Some(620 * MS),
            late: 1,
        };
        assert_eq!(figures, expected);
    }
}
