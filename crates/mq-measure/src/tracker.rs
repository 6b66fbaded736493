//! Matching arrivals with sent messages, by sequence number.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::{Sample, Samples, topics::topic};

/// The time stamp of an event that has not happened (yet).
const NEVER: u64 = u64::MAX;

/// Counts of a run's messages: sent, received, lost, duplicate, reordered and unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Messages sent.
    pub sent: u64,
    /// Messages that arrived at least once.
    pub received: u64,
    /// Messages sent that have not arrived: `sent - received`.
    pub lost: u64,
    /// Arrivals of messages that had arrived before.
    pub duplicates: u64,
    /// First arrivals whose number is smaller than the greatest that has arrived, RFC 4737 §3. Over several topics
    /// the greatest of the same topic, as MQTT promises an order for each topic [MQTT-4.6.0-6].
    pub reordered: u64,
    /// Arrivals of numbers that were not sent, or are out of the tracker's range.
    pub unknown: u64,
}

impl Counts {
    /// Returns the sum of the counts of two runs, or of two parts of a run.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            received: self.received + other.received,
            lost: self.lost + other.lost,
            duplicates: self.duplicates + other.duplicates,
            reordered: self.reordered + other.reordered,
            unknown: self.unknown + other.unknown,
        }
    }
}

/// Classification of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arrival {
    /// The first arrival of its number.
    First {
        /// Nanoseconds since the intended send time; 0 if the arrival precedes it.
        latency_intended_ns: u64,
        /// Nanoseconds since the actual send time; 0 if the arrival precedes it.
        latency_sent_ns: u64,
    },
    /// A further arrival of a number that has arrived before.
    Duplicate,
    /// An arrival of a number that was not sent or is out of range.
    Unknown,
}

/// Matches arrivals with sent messages, by sequence number.
///
/// All times are nanoseconds of one monotonic clock; a latency that would be negative is 0.
/// Call [`sent`](Self::sent) before the message is handed to the transport: otherwise a fast reply
/// arrives before its number is known. [`new`](Self::new) takes 24 bytes for each expected message; nothing
/// is allocated after that. Where sender and receiver are in two processes, use
/// [`log::join_topics`](crate::log::join_topics).
#[derive(Clone, Debug)]
pub struct Tracker {
    slots: Vec<Slot>,
    counts: Counts,
    order: Order,
}

/// Finds out which arrivals are reordered.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The greatest number of each topic that has arrived.
    greatest: Vec<Option<u64>>,
    topics: NonZeroU32,
}

impl Order {
    pub(crate) fn over_topics(topics: NonZeroU32) -> Self {
        Self {
            greatest: vec![None; topics.get() as usize],
            topics,
        }
    }

    /// Records a first arrival, and returns `true` if it is reordered: a greater number of its topic arrived before.
    pub(crate) fn is_broken_by(&mut self, seq: u64) -> bool {
        let greatest = &mut self.greatest[topic(seq, self.topics) as usize];
        let broken = greatest.is_some_and(|greatest| seq < greatest);
        *greatest = (*greatest).max(Some(seq));
        broken
    }
}

/// Times in nanoseconds, [`NEVER`] for what has not happened.
#[derive(Clone, Copy, Debug)]
struct Slot {
    intended: u64,
    sent: u64,
    received: u64,
}

impl Tracker {
    /// Makes a tracker for the sequence numbers `0..expected`.
    ///
    /// # Panics
    /// If there is no memory for 24 bytes a message.
    #[must_use]
    pub fn new(expected: u64) -> Self {
        let expected = usize::try_from(expected).expect("more messages than addresses");
        let slot = Slot {
            intended: NEVER,
            sent: NEVER,
            received: NEVER,
        };
        Self {
            slots: vec![slot; expected],
            counts: Counts::default(),
            order: Order::over_topics(NonZeroU32::MIN),
        }
    }

    /// Makes the tracker judge reordering within each of `topics` topics, which take the messages in turn. Call it
    /// before the first arrival.
    #[must_use]
    pub fn over_topics(mut self, topics: NonZeroU32) -> Self {
        self.order = Order::over_topics(topics);
        self
    }

    /// Notes that `seq` is sent. Returns `false` and changes nothing if `seq` is out of range or was sent before.
    pub fn sent(&mut self, seq: u64, intended_ns: u64, sent_ns: u64) -> bool {
        match slot(&mut self.slots, seq) {
            Some(slot) if slot.sent == NEVER => {
                *slot = Slot {
                    intended: intended_ns,
                    sent: sent_ns,
                    received: NEVER,
                };
                self.counts.sent += 1;
                true
            }
            _ => false,
        }
    }

    /// Notes that `seq` arrived at `at_ns`, and returns what kind of arrival it is.
    pub fn received(&mut self, seq: u64, at_ns: u64) -> Arrival {
        let slot = match slot(&mut self.slots, seq) {
            Some(slot) if slot.sent != NEVER => slot,
            _ => {
                self.counts.unknown += 1;
                return Arrival::Unknown;
            }
        };
        if slot.received != NEVER {
            self.counts.duplicates += 1;
            return Arrival::Duplicate;
        }
        slot.received = at_ns;
        self.counts.received += 1;
        let reordered = self.order.is_broken_by(seq);
        self.counts.reordered += u64::from(reordered);
        Arrival::First {
            latency_intended_ns: at_ns.saturating_sub(slot.intended),
            latency_sent_ns: at_ns.saturating_sub(slot.sent),
        }
    }

    /// Returns the counts so far. A message that is still under way counts as lost.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            lost: self.counts.sent - self.counts.received,
            ..self.counts
        }
    }

    /// Returns `true` once every expected message was sent and has arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.counts.received == self.slots.len() as u64
    }

    /// Returns a sample for each message that was sent, by sequence number.
    #[must_use]
    pub fn samples(&self) -> Samples {
        (0..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.sent != NEVER)
            .map(|(seq, slot)| Sample {
                seq,
                intended_ns: slot.intended,
                sent_ns: slot.sent,
                received_ns: (slot.received != NEVER).then_some(slot.received),
            })
            .collect()
    }
}

fn slot(slots: &mut [Slot], seq: u64) -> Option<&mut Slot> {
    slots.get_mut(usize::try_from(seq).ok()?)
}

/// DL's estimator of the round trip: one start time, which each new publish overwrites.
///
/// DL's job/result publisher (eq. 2, `RTT = T_Received - T_Send`) keeps its send time in one
/// global variable. A result that comes after the next publish is timed from that publish. So no delay is
/// ever longer than the interval, and under loss the estimate is far too small. It is reported as `rtt_last`
/// beside the round trip matched by number, only to compare with DL's figures.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastSendEstimator {
    last_sent_ns: Option<u64>,
}

impl LastSendEstimator {
    /// Returns an estimator without a publish.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a publish, and discards the time of the publish before.
    pub fn sent(&mut self, sent_ns: u64) {
        self.last_sent_ns = Some(sent_ns);
    }

    /// Returns the time from the last publish to a result at `at_ns`; `None` if nothing was published.
    #[must_use]
    pub fn received(&self, at_ns: u64) -> Option<u64> {
        self.last_sent_ns
            .map(|sent_ns| at_ns.saturating_sub(sent_ns))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tracker(sent: u64) -> Tracker {
        let mut tracker = Tracker::new(sent);
        for seq in 0..sent {
            assert!(tracker.sent(seq, seq * 100, seq * 100 + 5));
        }
        tracker
    }

    #[test]
    fn latency_counts_from_intended_and_from_sent() {
        let mut tracker = tracker(3);
        assert_eq!(
            tracker.received(2, 260),
            Arrival::First {
                latency_intended_ns: 60,
                latency_sent_ns: 55
            }
        );
    }

    #[test]
    fn late_first_arrivals_are_reordered_and_repeats_are_duplicates() {
        let mut tracker = tracker(6);
        for seq in [0, 2, 1, 1, 4, 3, 2] {
            tracker.received(seq, 1000);
        }
        let counts = tracker.counts();
        assert_eq!(
            counts,
            Counts {
                sent: 6,
                received: 5,
                lost: 1,
                duplicates: 2,
                reordered: 2,
                unknown: 0
            }
        );
        assert!(!tracker.is_complete());
        tracker.received(5, 1000);
        assert!(tracker.is_complete());
    }

    #[test]
    fn the_order_of_several_topics_counts_within_each() {
        let arrivals = [1, 0, 3, 5, 2, 4];
        for (topics, reordered) in [(1, 3), (2, 0), (3, 1)] {
            let topics = NonZeroU32::new(topics).unwrap();
            let mut tracker = tracker(6).over_topics(topics);
            for seq in arrivals {
                tracker.received(seq, 1000);
            }
            assert_eq!(tracker.counts().reordered, reordered, "{topics} topics");
        }
    }

    #[test]
    fn numbers_never_sent_or_out_of_range_are_unknown() {
        let mut tracker = Tracker::new(2);
        assert!(tracker.sent(0, 0, 0));
        assert!(!tracker.sent(0, 9, 9), "sent before");
        assert!(!tracker.sent(2, 0, 0), "out of range");
        for seq in [1, 2, u64::MAX] {
            assert_eq!(tracker.received(seq, 1), Arrival::Unknown);
        }
        assert_eq!(
            tracker.counts(),
            Counts {
                sent: 1,
                lost: 1,
                unknown: 3,
                ..Counts::default()
            }
        );
    }

    #[test]
    fn samples_hold_lost_messages_too() {
        let mut tracker = tracker(2);
        tracker.received(1, 400);
        let samples = tracker.samples();
        assert_eq!(samples.0[0].received_ns, None);
        assert_eq!(samples.0[1].received_ns, Some(400));
        assert_eq!(samples.latencies_sent_ns(), [295]);
    }

    #[test]
    fn last_send_estimator_hides_delays_longer_than_the_interval() {
        // Jobs at 0 and 50 ms; the first result takes 120 ms, so it comes after job 2 at 100 ms.
        let mut last = LastSendEstimator::new();
        assert_eq!(last.received(1), None);
        for sent in [0, 50, 100] {
            last.sent(sent);
        }
        assert_eq!(last.received(120), Some(20), "the truth is 120");
    }

    proptest! {
        #[test]
        fn every_arrival_is_counted_once(arrivals in prop::collection::vec(0_u64..25, 0..100)) {
            let mut tracker = tracker(20);
            for seq in &arrivals {
                tracker.received(*seq, 10_000);
            }
            let counts = tracker.counts();
            prop_assert_eq!(
                counts.received + counts.duplicates + counts.unknown,
                arrivals.len() as u64
            );
            prop_assert_eq!(counts.received + counts.lost, counts.sent);
            prop_assert!(counts.reordered <= counts.received);
            prop_assert_eq!(tracker.samples().latencies_sent_ns().len() as u64, counts.received);
        }
    }
}
