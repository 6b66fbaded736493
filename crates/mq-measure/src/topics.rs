//! Messages of one publisher over several topics: how differently the topics fare, and what waits behind another
//! topic's loss.
//!
//! Message *i* of *n* topics belongs to topic *i* modulo *n*. Delays count from the intended send time. The two
//! quantities of LW26, the spread and the isolation of spikes, are taken over [windows](WINDOW_NS) of the send time.

use std::{collections::BTreeMap, num::NonZeroU32};

use serde::{Deserialize, Serialize};

use crate::{Sample, Samples, convert, stats};

/// The length of a window, LW26's 100 ms.
pub const WINDOW_NS: u64 = 100_000_000;

/// A topic spikes in a window in which its mean delay is more than this many times its own median. LW26 prints no
/// threshold.
pub const SPIKE: f64 = 2.0;

/// A message is late if it takes this much longer than the link's own delay.
pub const LATE_NS: u64 = 5_000_000;

/// Messages arrive together if no more than this is between one and the next.
pub const TOGETHER_NS: u64 = 1_000_000;

/// Least interval in nanoseconds at which messages leave in packets of their own. It is more than [`TOGETHER_NS`], and
/// has room for the rates of two clocks beside the usual 2 ms.
const APART_NS: u64 = 1_500_000;

/// Returns the topic of the message with the number `seq`.
#[must_use]
pub fn topic(seq: u64, topics: NonZeroU32) -> u32 {
    u32::try_from(seq % u64::from(topics.get())).expect("less than a u32")
}

/// The messages of one run, or of several runs of one setting, by their topics.
#[derive(Clone, Debug)]
pub struct Topics {
    number: NonZeroU32,
    /// The delays in nanoseconds of each topic in each window. The windows of a further run follow those before.
    windows: Vec<BTreeMap<u32, Vec<f64>>>,
    /// The messages of each run.
    runs: Vec<Vec<Sample>>,
}

/// The figures of a run over several topics, as a result has them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicFigures {
    /// Number of topics.
    pub topics: NonZeroU32,
    /// LW26's inter-topic spread, in nanoseconds; `None` without a window with messages of two topics
    /// ([`Topics::spread_ns`]).
    pub inter_topic_spread_ns: Option<f64>,
    /// LW26's spike isolation ratio, from 0 to 1; `None` if no topic spikes ([`Topics::spike_isolation_ratio`]).
    pub spike_isolation_ratio: Option<f64>,
    /// Excess of the topics' mean delays over the link's own delay, in nanoseconds, as the mean over topics; `None`
    /// if the link's delay is unknown or nothing arrived ([`Topics::above_link_ns`]).
    pub above_link_mean_ns: Option<f64>,
    /// Excess of the mean delay of the topic that fares worst over the link's own delay, in nanoseconds; `None` as
    /// for `above_link_mean_ns`.
    pub above_link_worst_ns: Option<f64>,
    /// Share of the arrived messages that were late, from 0 to 1; `None` if the link's delay is unknown or nothing
    /// arrived ([`Topics::late`]).
    pub late_share: Option<f64>,
    /// Share of the arrived messages that were late behind a message of another topic, from 0 to 1; `None` as for
    /// `late_share`, and for messages due less than 1.5 ms apart ([`Topics::late_through_others`]).
    pub late_through_others: Option<f64>,
}

impl Topics {
    /// Returns the record of no messages yet, over `topics` topics.
    #[must_use]
    pub fn new(topics: NonZeroU32) -> Self {
        Self {
            number: topics,
            windows: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Adds the messages of a run, in the order of their numbers.
    pub fn add(&mut self, samples: &Samples) {
        let first = samples.0.iter().map(|sample| sample.intended_ns).min();
        let before = self.windows.len();
        for sample in &samples.0 {
            let since = sample.intended_ns - first.unwrap_or_default();
            let window = before + usize::try_from(since / WINDOW_NS).expect("a run of hours");
            if self.windows.len() <= window {
                self.windows.resize_with(window + 1, BTreeMap::new);
            }
            if let Some(delay) = sample.latency_intended_ns() {
                let of = self.windows[window].entry(topic(sample.seq, self.number));
                of.or_default().push(convert::float(delay));
            }
        }
        self.runs.push(samples.0.clone());
    }

    /// Returns all figures; those that need the link's own delay from publisher to subscriber are `None` without it.
    #[must_use]
    pub fn figures(&self, link_ns: Option<u64>) -> TopicFigures {
        let above = link_ns.and_then(|link| self.above_link_ns(link));
        TopicFigures {
            topics: self.number,
            inter_topic_spread_ns: self.spread_ns(),
            spike_isolation_ratio: self.spike_isolation_ratio(),
            above_link_mean_ns: above.map(|(mean, _)| mean),
            above_link_worst_ns: above.map(|(_, worst)| worst),
            late_share: link_ns.and_then(|link| self.late(link)),
            late_through_others: link_ns.and_then(|link| self.late_through_others(link)),
        }
    }

    /// Computes LW26's inter-topic spread: in each window the largest difference between two topics' mean delays, in
    /// the mean over all windows in which two topics or more have messages. `None` without such a window.
    ///
    /// It says how differently topics fare, not how well: it is 0 where all of them wait behind the same loss.
    #[must_use]
    pub fn spread_ns(&self) -> Option<f64> {
        let spreads = self.means().filter(|means| means.len() > 1).map(|means| {
            let most = means.values().copied().fold(f64::MIN, f64::max);
            let least = means.values().copied().fold(f64::MAX, f64::min);
            most - least
        });
        stats::mean(&spreads.collect::<Vec<_>>())
    }

    /// Computes LW26's spike isolation ratio: of the windows in which at least one topic [spikes](SPIKE), the share in
    /// which all topics with messages do. Only windows with messages of two topics or more count. `None` if none
    /// spikes.
    ///
    /// 1 means that no spike was isolated: each hit all topics at once.
    #[must_use]
    pub fn spike_isolation_ratio(&self) -> Option<f64> {
        let all = self.delays();
        let medians = all.iter().filter_map(|(topic, delays)| {
            let median = stats::median(delays)?;
            Some((*topic, median))
        });
        let medians: BTreeMap<u32, f64> = medians.collect();
        let (mut some, mut every) = (0_u64, 0_u64);
        for means in self.means().filter(|means| means.len() > 1) {
            let spikes = |(topic, mean): (&u32, &f64)| {
                medians
                    .get(topic)
                    .is_some_and(|median| *mean > SPIKE * median)
            };
            let spiking = means.iter().filter(|one| spikes(*one)).count();
            some += u64::from(spiking > 0);
            every += u64::from(spiking == means.len());
        }
        (some > 0).then(|| convert::float(every) / convert::float(some))
    }

    /// Returns the excess of the topics' mean delays over the link's own delay `link_ns`, in nanoseconds: the mean
    /// over topics, and the worst topic. `None` if nothing arrived.
    #[must_use]
    pub fn above_link_ns(&self, link_ns: u64) -> Option<(f64, f64)> {
        let all = self.delays();
        let means = all.values().filter_map(|delays| stats::mean(delays));
        let above: Vec<f64> = means.map(|mean| mean - convert::float(link_ns)).collect();
        let worst = above.iter().copied().reduce(f64::max)?;
        Some((stats::mean(&above)?, worst))
    }

    /// Returns the share of the arrived messages that took longer than the link's own delay and [`LATE_NS`]. `None` if
    /// nothing arrived.
    #[must_use]
    pub fn late(&self, link_ns: u64) -> Option<f64> {
        let arrived = self
            .runs
            .iter()
            .flatten()
            .filter_map(Sample::latency_intended_ns);
        let (mut all, mut late) = (0, 0);
        for delay in arrived {
            all += 1;
            late += u64::from(delay > link_ns + LATE_NS);
        }
        (all > 0).then(|| convert::float(late) / convert::float(all))
    }

    /// Returns the share of the arrived messages that were late behind a message of another topic.
    ///
    /// Which packet carried which topic cannot be seen from outside, as packets are encrypted. What can be seen is the
    /// release: a message that waited for a lost one reaches the application together with it. So messages with
    /// consecutive numbers that are [late](Self::late) and arrive [together](TOGETHER_NS) are one release, whose first
    /// message is the lost one. The others of another topic than the first were late through it; those of its own
    /// topic were not. A message that arrives alone waited for nothing but its own packet.
    ///
    /// `None` if nothing arrived, and if messages were due less than 1.5 ms apart: then messages share
    /// packets, or arrive together without having waited.
    #[must_use]
    pub fn late_through_others(&self, link_ns: u64) -> Option<f64> {
        let (mut all, mut through_others) = (0, 0);
        for run in &self.runs {
            let mut due: Vec<u64> = run.iter().map(|sample| sample.intended_ns).collect();
            due.sort_unstable();
            if due.windows(2).any(|two| two[1] - two[0] < APART_NS) {
                return None;
            }
            let is_late = |sample: &Sample| {
                let delay = sample.latency_intended_ns();
                delay.is_some_and(|delay| delay > link_ns + LATE_NS)
            };
            // The first message of the release, and the last so far.
            let mut release: Option<(Sample, Sample)> = None;
            for sample in run {
                all += u64::from(sample.latency_intended_ns().is_some());
                if !is_late(sample) {
                    release = None;
                    continue;
                }
                let first = match release {
                    Some((first, last)) if follows(&last, sample) => first,
                    _ => *sample,
                };
                let own = topic(first.seq, self.number) == topic(sample.seq, self.number);
                through_others += u64::from(!own);
                release = Some((first, *sample));
            }
        }
        (all > 0).then(|| convert::float(through_others) / convert::float(all))
    }

    /// Returns the mean delay of each topic in each window, of topics with messages.
    fn means(&self) -> impl Iterator<Item = BTreeMap<u32, f64>> {
        self.windows.iter().map(|window| {
            let each = window.iter();
            let each = each.filter_map(|(topic, delays)| Some((*topic, stats::mean(delays)?)));
            each.collect()
        })
    }

    /// Returns all delays of each topic.
    fn delays(&self) -> BTreeMap<u32, Vec<f64>> {
        let mut all: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (topic, delays) in self.windows.iter().flatten() {
            all.entry(*topic).or_default().extend(delays);
        }
        all
    }
}

/// Returns `true` if `next` has the number after `last`, and the two arrived within [`TOGETHER_NS`] of each other.
fn follows(last: &Sample, next: &Sample) -> bool {
    let times = last.received_ns.zip(next.received_ns);
    next.seq == last.seq + 1 && times.is_some_and(|(last, next)| last.abs_diff(next) <= TOGETHER_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn of(count: u32) -> NonZeroU32 {
        NonZeroU32::new(count).unwrap()
    }

    /// Makes messages every `every` ms that take so many ms, or never arrive.
    fn run(every: u64, delays: impl IntoIterator<Item = Option<u64>>) -> Samples {
        let each = (0..).zip(delays).map(|(seq, delay)| {
            // A run does not begin at 0.
            let due = (7 + seq * every) * MS;
            Sample {
                seq,
                intended_ns: due,
                sent_ns: due + 1000,
                received_ns: delay.map(|ms| due + ms * MS),
            }
        });
        each.collect()
    }

    fn all(topics: u32, samples: &Samples) -> Topics {
        let mut all = Topics::new(of(topics));
        all.add(samples);
        all
    }

    fn near(found: Option<f64>, wanted: f64) -> bool {
        found.is_some_and(|found| (found - wanted).abs() < 1e-9 * wanted.abs().max(1.0))
    }

    #[test]
    fn the_spread_is_the_mean_over_windows_of_the_largest_difference_of_two_topics() {
        // Four messages a window, two of each topic: means 10 and 16 ms, then 10 and 12.
        let samples = run(25, [10, 14, 10, 18, 10, 12, 10, 12].map(Some));
        assert!(near(all(2, &samples).spread_ns(), 4e6));
        assert_eq!(all(1, &samples).spread_ns(), None);
        // A window in which only one topic's messages arrive does not count.
        let delays = [Some(10), Some(14), Some(10), Some(18), Some(90), None];
        assert!(near(all(2, &run(25, delays)).spread_ns(), 6e6));
    }

    #[test]
    fn a_spike_that_hits_one_topic_is_isolated_and_one_that_hits_all_is_not() {
        let quiet = [10; 4];
        let (one, both) = ([10, 30, 10, 30], [30, 30, 30, 30]);
        let windows = [quiet, quiet, quiet, one, quiet, both, quiet, one].concat();
        let samples = run(25, windows.into_iter().map(Some));
        assert!(near(all(2, &samples).spike_isolation_ratio(), 1.0 / 3.0));
        let quiet = run(25, [20; 40].map(Some));
        assert_eq!(all(2, &quiet).spike_isolation_ratio(), None);
    }

    #[test]
    fn twice_the_median_is_no_spike() {
        let delays = |most| [10, 10, 10, 10, 10, 10, 10, 10, 10, most, 10, most].map(Some);
        let ratio = |most| all(2, &run(25, delays(most))).spike_isolation_ratio();
        assert_eq!(ratio(20), None);
        assert!(near(ratio(21), 0.0));
    }

    #[test]
    fn delay_above_the_link_is_of_topics_and_not_of_messages() {
        // Topic 0 arrives four times after 30 ms, topic 1 once after 40 and is lost otherwise.
        let delays = [
            Some(30),
            Some(40),
            Some(30),
            None,
            Some(30),
            None,
            Some(30),
            None,
        ];
        let (mean, worst) = all(2, &run(2, delays)).above_link_ns(25 * MS).unwrap();
        assert!(near(Some(mean), 10e6) && near(Some(worst), 15e6));
        assert_eq!(all(2, &run(2, [None, None])).above_link_ns(0), None);
    }

    /// Arrivals over one ordered stream: message 2 is lost and arrives after 40 ms, and 3 to 9 wait for it.
    fn ordered() -> Samples {
        let waits = (0..12).map(|seq| match seq {
            2..=9 => 40 - (seq - 2) * 2,
            _ => 25,
        });
        run(2, waits.map(Some))
    }

    #[test]
    fn messages_of_other_topics_that_are_released_with_a_lost_one_were_late_through_it() {
        // 2 to 6 are later than 30 ms: 2 is the lost one, and 6 is of its topic.
        let topics = all(4, &ordered());
        assert!(near(topics.late(25 * MS), 5.0 / 12.0));
        assert!(near(topics.late_through_others(25 * MS), 3.0 / 12.0));
        assert!(near(all(1, &ordered()).late_through_others(25 * MS), 0.0));
    }

    #[test]
    fn on_streams_of_their_own_only_the_lost_topics_messages_are_late() {
        // Of four topics, message 2 is lost; 6 waits for it, and all others pass.
        let delays = (0..12).map(|seq| match seq {
            2 => 60,
            6 => 52,
            _ => 25,
        });
        let topics = all(4, &run(2, delays.map(Some)));
        assert!(near(topics.late(25 * MS), 2.0 / 12.0));
        assert!(near(topics.late_through_others(25 * MS), 0.0));
    }

    #[test]
    fn a_second_loss_begins_a_release_of_its_own() {
        // 1 arrives at 61 ms with 2; 3 is lost as well and arrives at 75 ms with 4.
        let samples = run(2, [25, 59, 57, 69, 67, 25].map(Some));
        let through_others = all(4, &samples).late_through_others(25 * MS);
        assert!(near(through_others, 2.0 / 6.0));
    }

    #[test]
    fn messages_that_share_packets_do_not_say_what_they_waited_for() {
        let mut samples = ordered();
        samples.0[5].intended_ns -= MS;
        assert_eq!(all(4, &samples).late_through_others(25 * MS), None);
        assert!(all(4, &samples).late(25 * MS).is_some());
    }

    #[test]
    fn windows_of_two_runs_are_not_mixed() {
        let mut topics = Topics::new(of(2));
        topics.add(&run(25, [10, 14].map(Some)));
        topics.add(&run(25, [50, 52].map(Some)));
        assert!(near(topics.spread_ns(), 3e6));
        let figures = topics.figures(None);
        assert_eq!(figures.above_link_mean_ns, None);
        assert_eq!(figures.late_share, None);
        assert!(near(figures.inter_topic_spread_ns, 3e6));
        assert_eq!(topics.figures(Some(0)).late_share, Some(1.0));
    }
}
