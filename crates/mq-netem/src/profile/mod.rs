//! A link's properties, as a file describes them.
//!
//! ```
//! let link: mq_netem::Link = r#"
//!     description = "a slow uplink that loses one packet in twenty"
//!     [up]
//!     delay = "25ms"
//!     rate = "20mbit"
//!     queue = "1bdp@25ms"
//!     loss = "5%"
//! "#
//! .parse()?;
//! assert_eq!(link.up.rate.unwrap().bits_per_second(), 20_000_000);
//! assert_eq!(link.down, mq_netem::Direction::default());
//! # Ok::<(), mq_netem::Error>(())
//! ```

mod changes;
mod distribution;
mod leo;
mod parse;
pub(crate) mod source;
mod trace;

use std::time::Duration;

use serde::Deserialize;

use crate::{Probability, Rate};
pub use changes::Changes;
pub use distribution::Distribution;
pub use leo::leo_profile;
pub use trace::Trace;

/// A link between two hosts, with the properties of each direction.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Link {
    /// Kind of network that the link stands for, and the source of its figures.
    pub description: String,
    /// Direction from the clients' side to the broker's.
    pub up: Direction,
    /// Direction from the broker's side to the clients'. A direction that a profile does not name is not shaped.
    pub down: Direction,
}

/// Properties of one direction of a link. The default delivers everything at once.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Direction {
    /// The time that every packet takes before it reaches the rate.
    pub delay: Duration,
    /// Variation of the delay, to either side; its exact meaning is that of `distribution`. Packets still keep their
    /// order.
    pub jitter: Duration,
    /// Distribution of the jitter around the delay.
    pub distribution: Distribution,
    /// The share of packets that take neither delay nor rate, and so overtake others. Nothing else changes the
    /// order of packets.
    pub reorder: Probability,
    /// Rate at which packets are sent; `None` for no limit.
    pub rate: Option<Rate>,
    /// Opportunities at which packets are sent, instead of a rate.
    pub trace: Option<Trace>,
    /// Limit of the queue; packets beyond it are dropped (tail drop).
    pub queue: Queue,
    /// Loss by chance, which does not depend on a packet's size.
    pub loss: Loss,
    /// The share of packets that arrive twice.
    pub duplicate: Probability,
    /// The share of packets in which one bit is wrong.
    pub corrupt: Probability,
    /// Changes of these properties in the course of time.
    pub changes: Changes,
}

/// Limit of a direction's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
#[non_exhaustive]
pub enum Queue {
    /// Limit in packets of any size, with those on their way through the delay: netem's `limit`.
    Packets(u64),
    /// Limit in bytes of whole frames that have taken the delay and wait to be sent: `tbf`'s `limit`.
    Bytes(u64),
    /// Limit in bytes as with [`Queue::Bytes`]: the bandwidth-delay product of the rate and this round-trip time. A
    /// profile with it needs a rate.
    Bdp(Duration),
}

impl Default for Queue {
    /// Returns the default of netem itself: 1000 packets.
    fn default() -> Self {
        Self::Packets(1000)
    }
}

/// Model of packet loss, with the names of netem's parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// Each packet is lost by itself, with this probability.
    Bernoulli(Probability),
    /// Gilbert–Elliott, as in netem's `loss gemodel`: a good and a bad state, each with its losses.
    GilbertElliott {
        /// Probability of a change from the good to the bad state, for each packet.
        to_bad: Probability,
        /// Probability of a change from the bad to the good state, for each packet.
        to_good: Probability,
        /// Probability that a packet is lost in the bad state.
        in_bad: Probability,
        /// Probability that a packet is lost in the good state.
        in_good: Probability,
    },
    /// Four states, as in netem's `loss state`. In a gap packets arrive (1), with single losses (4). In a burst
    /// packets are lost (3), and some arrive (2).
    ///
    /// ```text
    ///   lost 4 <--p14-- 1 arrives --p13--> 3 lost --p32--> 2 arrives
    ///          --always->         <--p31--        <--p23--
    ///           \____ gap ____/           \______ burst ______/
    /// ```
    Markov {
        /// Probability of a change from the gap into a burst.
        p13: Probability,
        /// Probability of a change from the burst back into the gap.
        p31: Probability,
        /// Probability of a change within a burst, to packets that arrive.
        p32: Probability,
        /// Probability of a change within a burst, back to packets that are lost.
        p23: Probability,
        /// Probability of a change within the gap, to a single loss.
        p14: Probability,
    },
}

impl Default for Loss {
    fn default() -> Self {
        Self::Bernoulli(Probability::ZERO)
    }
}

impl Loss {
    /// Returns the share of packets that are lost in the long run.
    #[must_use]
    pub fn mean(self) -> f64 {
        match self {
            Self::Bernoulli(p) => p.share(),
            Self::GilbertElliott {
                to_bad,
                to_good,
                in_bad,
                in_good,
            } => {
                let moves = to_bad.share() + to_good.share();
                if moves == 0.0 {
                    return in_good.share();
                }
                let bad = to_bad.share() / moves;
                bad * in_bad.share() + (1.0 - bad) * in_good.share()
            }
            Self::Markov {
                p13,
                p31,
                p32,
                p23,
                p14,
            } => {
                // How often each state occurs between two visits of state 1. A share p13 of these visits
                // leads into a burst.
                let [p13, p31, p32, p23, p14] = [p13, p31, p32, p23, p14].map(Probability::share);
                if p13 == 0.0 {
                    return p14 / (1.0 + p14);
                }
                if p31 == 0.0 || (p32 > 0.0 && p23 == 0.0) {
                    // A burst that never ends.
                    return if p32 > 0.0 { p23 / (p23 + p32) } else { 1.0 };
                }
                let lost_in_burst = p13 / p31;
                let arrive_in_burst = if p32 > 0.0 {
                    lost_in_burst * p32 / p23
                } else {
                    0.0
                };
                (lost_in_burst + p14) / (1.0 + p14 + lost_in_burst + arrive_in_burst)
            }
        }
    }
}

impl Direction {
    /// Returns the queue's limit in bytes; `None` if it is not in bytes.
    #[must_use]
    pub fn queue_bytes(&self) -> Option<u64> {
        match (self.queue, self.rate) {
            (Queue::Bytes(bytes), _) => Some(bytes),
            (Queue::Bdp(rtt), Some(rate)) => Some(rate.bytes_in(rtt)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_profile_is_valid() {
        for name in Link::shipped() {
            let link = Link::load(name).unwrap();
            assert!(!link.description.is_empty(), "{name}");
        }
    }

    #[test]
    fn changes_are_made_where_the_profile_shapes() {
        let link = Link::load("w20/wifi@loss=5%,down.delay=1ms").unwrap();
        assert!((link.up.loss.mean() - 0.05).abs() < 1e-12);
        assert!((link.down.loss.mean() - 0.05).abs() < 1e-12);
        assert_eq!(link.down.delay, Duration::from_millis(1));
        // S22 shaped the publisher's egress alone.
        let link = Link::load("s22/wifi@loss=5%").unwrap();
        assert!((link.up.loss.mean() - 0.05).abs() < 1e-12);
        assert_eq!(link.down, Direction::default());
    }

    #[test]
    fn losses_in_a_row_keep_their_share() {
        for (name, share, burst) in [
            ("s22/wifi@loss=5%,burst=4", 0.05, 4.0),
            ("s22/wifi@burst=1.5,loss=10%", 0.10, 1.5),
            ("w20/wifi@burst=1,down.loss=20%", 0.20, 1.0),
        ] {
            let link = Link::load(name).unwrap();
            let loss = if name.contains("down") {
                link.down.loss
            } else {
                link.up.loss
            };
            assert!((loss.mean() - share).abs() < 1e-12, "{name}: {loss:?}");
            let Loss::GilbertElliott { to_good, .. } = loss else {
                panic!("{name}: {loss:?}");
            };
            assert!((to_good.share() * burst - 1.0).abs() < 1e-12, "{name}");
        }
        // Nothing lost, nothing in a row.
        let link = Link::load("s22/wifi@burst=4").unwrap();
        assert_eq!(link.up.loss, Loss::default());
        let both = "description = \"\"\n[up]\nburst = 4\n\
                    gilbert_elliott = { to_bad = \"1%\", to_good = \"19%\" }\n";
        let error = both.parse::<Link>().unwrap_err().to_string();
        assert!(error.contains("up.burst is of `loss`"), "{error}");
        let file = "description = \"\"\n[up]\nloss = \"2%\"\nburst = 8\n";
        let link: Link = file.parse().unwrap();
        assert!((link.up.loss.mean() - 0.02).abs() < 1e-12);
    }

    #[test]
    fn mistakes_name_the_key_and_what_is_allowed() {
        for (name, says) in [
            ("w20/wlan", "w20/wifi"),
            (
                "w20/wifi@loss=5",
                "up.loss: `5` is no probability: write 0% to 100%",
            ),
            ("w20/wifi@up.delay=25", "up.delay: `25` is no time"),
            ("w20/wifi@losss=5%", "losss"),
            ("w20/wifi@sideways.loss=5%", "up and down"),
            ("w20/wifi@loss", "key=value"),
            ("w20/wifi@loss=5%,burst=0.5", "1 or more packets"),
            ("w20/wifi@loss=5%,burst=many", "1 or more packets"),
            ("w20/wifi@loss=60%,burst=1", "as short as 1"),
            ("w20/wifi@queue=many", "1bdp@25ms"),
            ("w20/wifi@jitter=1s", "up.jitter"),
            ("missing.toml", "missing.toml"),
            ("w20/wifi@distribution=gauss", "paretonormal"),
            ("dl@reorder=1%", "needs a delay"),
            ("dl@queue=9B", "neither rate nor trace"),
            ("s22/wifi@trace=missing.trace", "missing.trace"),
        ] {
            let error = Link::load(name).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn a_shipped_trace_stalls_as_its_recording() {
        let trace = Link::load("umts").unwrap().up.trace.unwrap();
        let mean = trace.mean_rate().bits_per_second();
        assert!((230_000..245_000).contains(&mean), "{mean}");
        let times = (0..882).map(|number| trace.time_of(number) / 1_000_000);
        let times: Vec<_> = times.collect();
        let stalls = times.windows(2).map(|two| two[1] - two[0]);
        assert_eq!(stalls.max(), Some(5_900));
    }

    #[test]
    fn a_trace_is_found_beside_its_profile() {
        let folder = tempfile::tempdir().unwrap();
        let profile = folder.path().join("lte.toml");
        std::fs::write(
            &profile,
            "description = \"\"\n[up]\ntrace = \"lte.trace\"\n",
        )
        .unwrap();
        std::fs::write(folder.path().join("lte.trace"), "1\n2\n4\n").unwrap();
        let link = Link::load(profile.to_str().unwrap()).unwrap();
        assert_eq!(link.up.trace, Some("1\n2\n4\n".parse().unwrap()));
        std::fs::write(folder.path().join("lte.trace"), "1\n2\nthree\n").unwrap();
        let error = Link::load(profile.to_str().unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("up.trace: lte.trace: line 3 is `three`"),
            "{error}"
        );
    }

    #[test]
    fn a_profile_has_one_way_of_loss_with_possible_values() {
        for (loss, says) in [
            ("loss = \"1%\"\nmarkov = { p13 = \"1%\" }", "one way"),
            (
                "gilbert_elliott = { to_bad = \"1%\", to_good = \"1%\" }\nmarkov = { p13 = \"1%\" }",
                "one way",
            ),
            ("markov = { p13 = \"60%\", p14 = \"50%\" }", "p13 and p14"),
            ("markov = { p13 = \"1%\", p32 = \"50%\" }", "p31 and p32"),
            ("markov = { p31 = \"1%\" }", "p13"),
        ] {
            let text = format!("description = \"\"\n[down]\n{loss}");
            let error = text.parse::<Link>().unwrap_err().to_string();
            assert!(error.contains(says), "{loss}: {error}");
        }
    }

    #[test]
    fn a_change_replaces_what_it_names() {
        let file = r#"
            description = "an outage, and a new path"
            repeat_after = "10s"
            [up]
            delay = "10ms"
            rate = "1mbit"
            gilbert_elliott = { to_bad = "1%", to_good = "19%" }
            [[change]]
            after = "3s"
            up.loss = "100%"
            down.loss = "100%"
            [[change]]
            after = "3.2s"
            up.delay = "20ms"
        "#;
        let link: Link = file.parse().unwrap();
        let at = |direction: &Direction, ms: u64| {
            let (current, _) = direction.changes.at(ms * 1_000_000);
            current.unwrap_or(direction).clone()
        };
        let outage = at(&link.up, 3_000);
        assert!((outage.loss.mean() - 1.0).abs() < f64::EPSILON);
        assert_eq!((outage.delay, outage.rate), (link.up.delay, link.up.rate));
        let new = at(&link.up, 3_200);
        assert_eq!(new.delay, Duration::from_millis(20));
        assert_eq!((new.loss, new.rate), (link.up.loss, link.up.rate));
        assert!((at(&link.down, 3_100).loss.mean() - 1.0).abs() < f64::EPSILON);
        assert_eq!(at(&link.down, 3_200).loss, Loss::default());
        assert_eq!(at(&link.up, 10_000).loss, link.up.loss);

        for (from, to, says) in [
            ("\"3.2s\"", "\"3s\"", "later than the one before"),
            ("\"10s\"", "\"2s\"", "repeats after 2s"),
            (
                "up.delay",
                "up.dealy",
                "change 2, up: unknown field `dealy`",
            ),
            ("up.delay", "sideways.delay", "sideways"),
            ("after = \"3.2s\"", "", "missing field `after`"),
        ] {
            let error = file.replacen(from, to, 1).parse::<Link>().unwrap_err();
            let error = error.to_string();
            assert!(error.contains(says), "{to}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn gilbert_elliott_has_a_mean() {
        let link: Link = r#"
            description = "bursts"
            [up.gilbert_elliott]
            to_bad = "1%"
            to_good = "19%"
        "#
        .parse()
        .unwrap();
        assert!((link.up.loss.mean() - 0.05).abs() < 1e-12);
    }
}
