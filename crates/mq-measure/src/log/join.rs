//! Putting what was sent and what was received together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{ReceiveRecord, SendRecord};
use crate::validity::{self, Warning};
use crate::{Counts, Sample, Samples};

/// A send log and a receive log, matched by sequence number.
#[derive(Clone, Debug, Default)]
pub struct Joined {
    /// A sample for each message sent, in the send log's order, with its first arrival.
    pub samples: Samples,
    /// What became of the messages.
    pub counts: Counts,
    /// Messages that seem to have arrived before they were sent: the clocks differ by more than
    /// the delay.
    pub negative: u64,
    /// Lines of the send log that repeat a number, and were left out.
    pub repeated_sends: u64,
    /// What is to be said of it.
    pub warnings: Vec<Warning>,
}

/// Matches `sends` with `receives` by sequence number.
///
/// `receives` are in the order of arrival; the first of a number counts, later ones are
/// duplicates. Serves two tasks of one process as well as two machines. If the machines' clocks
/// differ by a known offset, take it off the records first.
#[must_use]
pub fn join(sends: &[SendRecord], receives: &[ReceiveRecord]) -> Joined {
    let mut joined = Joined::default();
    let mut index = HashMap::with_capacity(sends.len());
    let samples = &mut joined.samples.0;
    samples.reserve_exact(sends.len());
    for &SendRecord {
        seq,
        intended_ns,
        sent_ns,
    } in sends
    {
        match index.entry(seq) {
            Entry::Vacant(vacant) => {
                vacant.insert(samples.len());
                samples.push(Sample {
                    seq,
                    intended_ns,
                    sent_ns,
                    received_ns: None,
                });
            }
            Entry::Occupied(_) => joined.repeated_sends += 1,
        }
    }
    let counts = &mut joined.counts;
    let mut greatest = None;
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
        if greatest.is_some_and(|greatest| record.seq < greatest) {
            counts.reordered += 1;
        } else {
            greatest = Some(record.seq);
        }
    }
    counts.sent = samples.len() as u64;
    counts.lost = counts.sent - counts.received;
    joined.warnings = validity::counts(counts);
    if joined.negative > 0 {
        joined.warnings.push(Warning::NegativeLatencies {
            count: joined.negative,
        });
    }
    joined
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Tracker;

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
        let joined = join(&sends(2), &[receive(0, 3), receive(1, 150)]);
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
        let joined = join(&sends, &[]);
        assert_eq!((joined.repeated_sends, joined.counts.sent), (1, 2));
    }

    proptest! {
        #[test]
        fn join_agrees_with_the_tracker(arrivals in prop::collection::vec(0_u64..25, 0..80)) {
            let receives: Vec<_> = arrivals.iter().map(|seq| receive(*seq, 10_000)).collect();
            let joined = join(&sends(20), &receives);
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
