//! What a link is like, as a file says it.
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

use std::{path::Path, str::FromStr, time::Duration};

use serde::Deserialize;

use crate::{Error, Probability, Rate, presets, units::Time};

/// A link between two hosts: what it is like in each direction.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Link {
    /// What it stands for, and where its figures are from.
    pub description: String,
    /// From the clients' side to the broker's.
    pub up: Direction,
    /// From the broker's side to the clients'. What a profile does not name is not shaped.
    pub down: Direction,
}

/// One direction of a link. The default delivers everything at once.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Direction {
    /// What every packet takes, before the queue.
    pub delay: Duration,
    /// By how much the delay varies: uniformly, up to this much more or less. Packets keep their
    /// order all the same.
    pub jitter: Duration,
    /// How fast packets leave the queue; `None` for no limit, and so no queue.
    pub rate: Option<Rate>,
    /// What waits behind the packet that is being sent; further packets are dropped (tail drop).
    pub queue: Queue,
    /// Which packets are lost, whatever their size.
    pub loss: Loss,
    /// How many packets arrive twice.
    pub duplicate: Probability,
    /// In how many packets one bit is wrong.
    pub corrupt: Probability,
}

/// How much a queue holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum Queue {
    /// Packets of any size.
    Packets(u64),
    /// Bytes of whole frames.
    Bytes(u64),
    /// The bandwidth-delay product for this round-trip time.
    Bdp(Duration),
}

impl Default for Queue {
    /// netem's own: 1000 packets.
    fn default() -> Self {
        Self::Packets(1000)
    }
}

/// Which packets are lost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Loss {
    /// Each by itself, with this probability.
    Bernoulli(Probability),
    /// Gilbert–Elliott, as netem's `loss gemodel` has it: a good and a bad state, with losses in
    /// each.
    GilbertElliott {
        /// From good to bad, for each packet.
        to_bad: Probability,
        /// From bad to good, for each packet.
        to_good: Probability,
        /// Lost in the bad state.
        in_bad: Probability,
        /// Lost in the good state.
        in_good: Probability,
    },
}

impl Default for Loss {
    fn default() -> Self {
        Self::Bernoulli(Probability::ZERO)
    }
}

impl Loss {
    /// The share of packets that are lost in the long run.
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
        }
    }
}

impl Direction {
    /// The queue's limit in bytes, where it is in bytes.
    #[must_use]
    pub fn queue_bytes(&self) -> Option<u64> {
        match (self.queue, self.rate) {
            (Queue::Bytes(bytes), _) => Some(bytes),
            (Queue::Bdp(rtt), Some(rate)) => Some(rate.bytes_in(rtt)),
            _ => None,
        }
    }
}

impl Link {
    /// A shipped link by its name, such as `s22/wifi`, or one from a file, whose name ends in
    /// `.toml`; behind an `@`, changes such as `loss=5%` or `up.delay=10ms,down.loss=1%`.
    ///
    /// A change without `up.` or `down.` is made in each direction that the profile shapes.
    ///
    /// # Errors
    /// If there is no such link, or something in it is wrong.
    pub fn load(name: &str) -> Result<Self, Error> {
        let (source, changes) = name.split_once('@').unwrap_or((name, ""));
        let file = Path::new(source);
        let text = if file
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            std::fs::read_to_string(file).map_err(|error| Error::ReadProfile {
                name: source.to_owned(),
                source: error,
            })?
        } else {
            presets::find(source)
                .ok_or_else(|| Error::NoProfile {
                    name: source.to_owned(),
                    known: presets::names().collect::<Vec<_>>().join(", "),
                })?
                .to_owned()
        };
        Self::parse(source, &text, changes)
    }

    fn parse(name: &str, text: &str, changes: &str) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Profile {
            name: name.to_owned(),
            problem,
        };
        let mut table: toml::Table =
            toml::from_str(text).map_err(|error| wrong(one_line(&error)))?;
        for change in changes.split(',').filter(|change| !change.is_empty()) {
            apply(&mut table, change).map_err(wrong)?;
        }
        let raw: RawLink = table
            .try_into()
            .map_err(|error: toml::de::Error| wrong(one_line(&error)))?;
        Ok(Self {
            description: raw.description,
            up: raw.up.unwrap_or_default().checked("up").map_err(wrong)?,
            down: raw
                .down
                .unwrap_or_default()
                .checked("down")
                .map_err(wrong)?,
        })
    }
}

impl FromStr for Link {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse("the profile", text, "")
    }
}

/// One `key=value` behind the `@` of a link's name.
fn apply(table: &mut toml::Table, change: &str) -> Result<(), String> {
    let (key, value) = change
        .split_once('=')
        .ok_or_else(|| format!("`{change}` is no change: write key=value, such as loss=5%"))?;
    let (sides, key) = match key.split_once('.') {
        Some((side @ ("up" | "down"), key)) => (vec![side], key),
        Some((side, _)) => return Err(format!("`{side}` is no direction: there are up and down")),
        None => {
            let shaped: Vec<_> = ["up", "down"]
                .into_iter()
                .filter(|side| table.contains_key(*side))
                .collect();
            (shaped, key)
        }
    };
    for side in sides {
        let direction = table
            .entry(side)
            .or_insert_with(|| toml::Value::Table(toml::Table::new()));
        if let Some(direction) = direction.as_table_mut() {
            direction.insert(key.to_owned(), toml::Value::String(value.to_owned()));
        }
    }
    Ok(())
}

/// What is wrong, without the picture of the line that a terminal would show.
fn one_line(error: &toml::de::Error) -> String {
    error.message().lines().collect::<Vec<_>>().join(" ")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    description: String,
    up: Option<RawDirection>,
    down: Option<RawDirection>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawDirection {
    delay: Time,
    jitter: Time,
    rate: Option<Rate>,
    queue: Queue,
    loss: Probability,
    gilbert_elliott: Option<RawGilbertElliott>,
    duplicate: Probability,
    corrupt: Probability,
}

/// Loss in bursts; see [`Loss::GilbertElliott`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGilbertElliott {
    to_bad: Probability,
    to_good: Probability,
    #[serde(default = "always")]
    in_bad: Probability,
    #[serde(default)]
    in_good: Probability,
}

fn always() -> Probability {
    Probability::new(1.0).expect("1 is a probability")
}

impl RawDirection {
    fn checked(self, side: &str) -> Result<Direction, String> {
        let Self {
            delay: Time(delay),
            jitter: Time(jitter),
            rate,
            queue,
            loss,
            gilbert_elliott,
            duplicate,
            corrupt,
        } = self;
        if jitter > delay {
            return Err(format!(
                "{side}.jitter is {jitter:?} and the delay {delay:?}: it cannot vary by more"
            ));
        }
        if matches!(queue, Queue::Bdp(_)) && rate.is_none() {
            return Err(format!(
                "{side}.queue is a bandwidth-delay product and there is no rate"
            ));
        }
        let loss = match gilbert_elliott {
            Some(_) if loss > Probability::ZERO => {
                return Err(format!(
                    "{side} has loss and gilbert_elliott: it loses packets in one way"
                ));
            }
            Some(RawGilbertElliott {
                to_bad,
                to_good,
                in_bad,
                in_good,
            }) => Loss::GilbertElliott {
                to_bad,
                to_good,
                in_bad,
                in_good,
            },
            None => Loss::Bernoulli(loss),
        };
        Ok(Direction {
            delay,
            jitter,
            rate,
            queue,
            loss,
            duplicate,
            corrupt,
        })
    }
}

impl TryFrom<String> for Queue {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parsed = if let Some(rtt) = text.strip_prefix("1bdp@") {
            Some(Self::Bdp(rtt.parse::<Time>()?.0))
        } else if let Some(packets) = text.strip_suffix("p") {
            packets.parse().ok().map(Self::Packets)
        } else if let Some(bytes) = text.strip_suffix("B") {
            bytes.parse().ok().map(Self::Bytes)
        } else {
            None
        };
        parsed.ok_or_else(|| {
            format!(
                "`{text}` is no queue: write packets (100p), bytes (62500B) or 1bdp@ with a \
                 round-trip time (1bdp@25ms)"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_profile_is_valid() {
        for name in presets::names() {
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
    fn mistakes_name_the_key_and_what_is_allowed() {
        for (name, says) in [
            ("w20/wlan", "w20/wifi"),
            ("w20/wifi@loss=5", "0% to 100%"),
            ("w20/wifi@delay=25", "such as 25ms"),
            ("w20/wifi@losss=5%", "losss"),
            ("w20/wifi@sideways.loss=5%", "up and down"),
            ("w20/wifi@loss", "key=value"),
            ("w20/wifi@queue=many", "1bdp@25ms"),
            ("w20/wifi@jitter=1s", "up.jitter"),
            ("missing.toml", "missing.toml"),
        ] {
            let error = Link::load(name).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
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
