//! Matching a send log with a receive log.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;

use super::{ReceiveRecord, SendRecord};
use crate::clock::Relation;
use crate::stats;
use crate::tracker::Order;
use crate::validity::{self, Warning};
use crate::{Counts, Sample, Samples};

/// A send log and a receive log, matched by sequence number.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Joined {
    /// A sample for each message sent, in the send log's order, with its first arrival. All times are of the
    /// receiver's clock if the clocks are related.
    pub samples: Samples,
    /// Counts of the run's messages.
    pub counts: Counts,
    /// The most that the latency of any message is wrong by because of the clocks; `None` if the clocks are
    /// not related, as where there is only one.
    pub uncertainty_ns: Option<u64>,
    /// Messages that seem to have arrived before they were sent: the clocks differ by more than
    /// the delay.
    pub negative: u64,
    /// The warnings about the joined run.
    pub warnings: Vec<Warning>,
}

/// Matches `sends` with `receives` by sequence number.
///
/// `receives` are in the order of arrival. The first arrival of a number counts, later ones are duplicates.
/// `clocks` relates the sender's clock to the receiver's. Without it all times are taken as of one clock, as
/// between two tasks of one process. The messages go to `topics` topics in turn, and their order counts within each
/// [topic](crate::topics::topic).
#[must_use]
pub fn join_topics(
    sends: &[SendRecord],
    receives: &[ReceiveRecord],
    clocks: Option<&Relation>,
    topics: NonZeroU32,
) -> Joined {
    let mut joined = Joined::default();
    let mut carried = clocks.map(Carried::new);
    let mut index = HashMap::with_capacity(sends.len());
    let samples = &mut joined.samples.0;
    samples.reserve_exact(sends.len());
    for send in sends {
        // A repeated number is left out.
        if let Entry::Vacant(vacant) = index.entry(send.seq) {
            vacant.insert(samples.len());
            let send = carried.as_mut().map_or(*send, |carried| carried.over(send));
            samples.push(Sample {
                seq: send.seq,
                intended_ns: send.intended_ns,
                sent_ns: send.sent_ns,
                received_ns: None,
            });
        }
    }
    let counts = &mut joined.counts;
    let mut order = Order::over_topics(topics);
    for record in receives {
        let Some(&at) = index.get(&record.seq) else {
            counts.unknown += 1;
            continue;
        };
        let sample = &mut samples[at];
        if sample.received_ns.is_some() {
            counts.duplicates += 1;
            continue;
        }
        sample.received_ns = Some(record.received_ns);
        counts.received += 1;
        joined.negative += u64::from(sample.is_negative());
        counts.reordered += u64::from(order.is_broken_by(record.seq));
    }
    counts.sent = samples.len() as u64;
    counts.lost = counts.sent - counts.received;
    joined.warnings = validity::counts(counts);
    if joined.negative > 0 {
        joined.warnings.push(Warning::NegativeLatencies {
            count: joined.negative,
        });
    }
    if let Some(carried) = carried {
        joined.uncertainty_ns = Some(carried.uncertainty_ns);
        let warnings = carried.warnings(&joined.samples);
        joined.warnings.extend(warnings);
    }
    joined
}

/// The sender's times as the receiver's clock shows them.
struct Carried<'a> {
    clocks: &'a Relation,
    uncertainty_ns: u64,
    extrapolated: u64,
}

impl<'a> Carried<'a> {
    fn new(clocks: &'a Relation) -> Self {
        Self {
            clocks,
            uncertainty_ns: 0,
            extrapolated: 0,
        }
    }

    fn over(&mut self, send: &SendRecord) -> SendRecord {
        let actual = self.clocks.map(send.sent_ns);
        self.uncertainty_ns = self.uncertainty_ns.max(actual.uncertainty_ns);
        self.extrapolated += u64::from(actual.extrapolated);
        // Lateness is measured by the sender's own clock; the rates differ by next to nothing in that time.
        let late_ns = i128::from(send.sent_ns) - i128::from(send.intended_ns);
        let intended_ns = i128::from(actual.at_ns) - late_ns;
        SendRecord {
            seq: send.seq,
            intended_ns: u64::try_from(intended_ns.max(0)).unwrap_or(u64::MAX),
            sent_ns: actual.at_ns,
        }
    }

    fn warnings(&self, samples: &Samples) -> Vec<Warning> {
        let mut latencies = samples.latencies_sent_ns();
        latencies.sort_unstable();
        let median = stats::nearest_rank(&latencies, 50.0);
        let uncertain = median.and_then(|ns| validity::clock_uncertain(self.uncertainty_ns, ns));
        let extrapolated = validity::clock_extrapolated(self.extrapolated);
        uncertain.into_iter().chain(extrapolated).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Tracker;
    use crate::clock::{Assumptions, ClockFit};

    fn join(sends: &[SendRecord], receives: &[ReceiveRecord], clocks: Option<&Relation>) -> Joined {
        join_topics(sends, receives, clocks, NonZeroU32::MIN)
    }

    fn sends(n: u64) -> Vec<SendRecord> {
        (0..n)
            .map(|seq| SendRecord {
                seq,
                intended_ns: seq * 100,
                sent_ns: seq * 100 + 5,
            })
            .collect()
    }

    fn receive(seq: u64, received_ns: u64) -> ReceiveRecord {
        ReceiveRecord { seq, received_ns }
    }

    #[test]
    fn the_order_of_several_topics_counts_within_each() {
        let receives = [1, 0, 3, 2].map(|seq| receive(seq, 1000));
        let reordered = |topics| {
            let topics = NonZeroU32::new(topics).unwrap();
            let joined = join_topics(&sends(4), &receives, None, topics);
            joined.counts.reordered
        };
        assert_eq!([1, 2].map(reordered), [2, 0]);
    }

    #[test]
    fn arrivals_are_matched_by_number_and_not_by_line() {
        let joined = join(
            &sends(4),
            &[
                receive(0, 50),
                receive(2, 260),
                receive(1, 270),
                receive(2, 280),
                receive(9, 1),
            ],
            None,
        );
        assert_eq!(
            joined.counts,
            Counts {
                sent: 4,
                received: 3,
                lost: 1,
                duplicates: 1,
                reordered: 1,
                unknown: 1
            }
        );
        assert_eq!(joined.samples.latencies_sent_ns(), [45, 165, 55]);
        assert_eq!(joined.warnings.len(), 4);
    }

    #[test]
    fn arrival_before_sending_warns_of_the_clocks_and_is_no_latency() {
        let joined = join(&sends(2), &[receive(0, 3), receive(1, 150)], None);
        assert_eq!(joined.negative, 1);
        assert_eq!(joined.warnings, [Warning::NegativeLatencies { count: 1 }]);
        assert_eq!(joined.samples.latencies_sent_ns(), [45]);
    }

    #[test]
    fn repeated_send_is_left_out() {
        let mut sends = sends(2);
        sends.push(SendRecord {
            seq: 1,
            intended_ns: 0,
            sent_ns: 0,
        });
        let joined = join(&sends, &[], None);
        assert_eq!(joined.counts.sent, 2);
    }

    const START: u64 = 1_800_000_000_000_000_000;

    /// Makes the relation to a receiver's clock that is `behind` the sender's, over a path of 50 µs each way.
    fn clocks(behind: u64) -> Relation {
        let exchanges: Vec<_> = (0..50)
            .map(|i| START + i * 100_000_000)
            .map(|t| [t, t + behind + 50_000, t + behind + 60_000, t + 110_000].into())
            .collect();
        let fit = ClockFit::new(&exchanges, &Assumptions::default()).unwrap();
        Relation::remote_to_local(fit)
    }

    /// Makes a run with a message each 100 ms by the sender's clock; each is sent 1 ms late and takes 3 ms.
    fn run(behind: u64) -> (Vec<SendRecord>, Vec<ReceiveRecord>) {
        (1..20)
            .map(|seq| (seq, START + seq * 100_000_000))
            .map(|(seq, at)| {
                let send = SendRecord {
                    seq,
                    intended_ns: at + behind,
                    sent_ns: at + behind + 1_000_000,
                };
                (send, receive(seq, at + 4_000_000))
            })
            .unzip()
    }

    #[test]
    fn times_are_carried_over_to_the_receivers_clock() {
        let (sends, receives) = run(7_000_000_000);
        let joined = join(&sends, &receives, Some(&clocks(7_000_000_000)));
        let uncertainty = joined.uncertainty_ns.unwrap();
        assert!((50_000..60_000).contains(&uncertainty), "{uncertainty}");
        for latency in joined.samples.latencies_sent_ns() {
            assert!(latency.abs_diff(3_000_000) < 1_000, "{latency}");
        }
        for latency in joined.samples.latencies_intended_ns() {
            assert!(latency.abs_diff(4_000_000) < 1_000, "{latency}");
        }
        assert_eq!(joined.warnings, []);
        let alone = join(&sends, &receives, None);
        assert_eq!((alone.uncertainty_ns, alone.negative), (None, 19));
    }

    #[test]
    fn a_latency_below_the_uncertainty_is_warned_of() {
        let (sends, mut receives) = run(0);
        for receive in &mut receives {
            receive.received_ns -= 2_980_000;
        }
        let joined = join(&sends, &receives, Some(&clocks(0)));
        assert!(
            matches!(joined.warnings[..], [Warning::ClockUncertain { effect_ns, .. }]
                if effect_ns.abs_diff(20_000) < 1_000),
            "{:?}",
            joined.warnings
        );
    }

    #[test]
    fn messages_outside_the_time_of_comparing_are_counted() {
        let (mut sends, mut receives) = run(0);
        sends[18].sent_ns += 600_000_000_000;
        sends[18].intended_ns += 600_000_000_000;
        receives[18].received_ns += 600_000_000_000;
        let joined = join(&sends, &receives, Some(&clocks(0)));
        let extrapolated = Warning::ClockExtrapolated { messages: 1 };
        assert!(
            joined.warnings.contains(&extrapolated),
            "{:?}",
            joined.warnings
        );
        // Ten minutes at 1 ppm and more.
        assert!(joined.uncertainty_ns.unwrap() > 600_000, "{joined:?}");
    }

    proptest! {
        #[test]
        fn join_agrees_with_the_tracker(arrivals in prop::collection::vec(0_u64..25, 0..80)) {
            let receives: Vec<_> = arrivals.iter().map(|seq| receive(*seq, 10_000)).collect();
            let joined = join(&sends(20), &receives, None);
            let mut tracker = Tracker::new(20);
            for send in sends(20) {
                tracker.sent(send.seq, send.intended_ns, send.sent_ns);
            }
            for seq in arrivals {
                tracker.received(seq, 10_000);
            }
            prop_assert_eq!(joined.counts, tracker.counts());
            prop_assert_eq!(joined.samples, tracker.samples());
        }
    }
}
