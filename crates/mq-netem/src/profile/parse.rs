//! Profiles from text: the keys of a file, and the errors.

use std::str::FromStr;

use serde::Deserialize;

use super::{
    Changes, Direction, Distribution, Link, Loss, Queue, Trace,
    source::{Source, set, with_key},
};
use crate::{
    Error, Probability, Rate, presets,
    units::{Moment, Time},
};

impl Link {
    /// Loads a shipped link by its name, such as `s22/wifi`, or a link from a file whose name ends in `.toml`.
    /// Changes such as `loss=5%` or `up.delay=10ms,down.loss=1%` may follow an `@`.
    ///
    /// A change without `up.` or `down.` applies to each direction that the profile shapes.
    ///
    /// # Errors
    /// If there is no such link, or something in it is wrong.
    pub fn load(name: &str) -> Result<Self, Error> {
        Self::parse(&Source::find(name, presets::LINKS)?)
    }

    /// Returns the name of every shipped link.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        presets::names(presets::LINKS)
    }

    fn parse(source: &Source<'_>) -> Result<Self, Error> {
        let wrong = |problem| source.wrong(problem);
        let table = source.table(apply)?;
        let raw: RawLink = table
            .try_into()
            .map_err(|error: toml::de::Error| wrong(with_key("", &error)))?;
        let direction = |table: &toml::Table, side: &str| {
            let raw: RawDirection = table
                .clone()
                .try_into()
                .map_err(|error| wrong(with_key(side, &error)))?;
            let trace = raw.trace.as_deref().map(|name| {
                let trace = source.read_beside(name)?.parse();
                trace.map_err(|problem| wrong(format!("{side}.trace: {name}: {problem}")))
            });
            let trace = trace.transpose()?;
            raw.checked(side, trace).map_err(wrong)
        };
        let changing = |first: &toml::Table, side: &str, of: fn(&RawChange) -> &toml::Table| {
            let steps = (1..).zip(&raw.change).map(|(number, change)| {
                let later = direction(
                    &overlaid(first, of(change)),
                    &format!("change {number}, {side}"),
                );
                Ok((change.after.0, later?))
            });
            let steps = steps.collect::<Result<Vec<_>, Error>>()?;
            let changes = Changes::new(steps, raw.repeat_after.map(|Moment(time)| time));
            Ok(Direction {
                changes: changes.map_err(wrong)?,
                ..direction(first, side)?
            })
        };
        Ok(Self {
            up: changing(&raw.up, "up", |change| &change.up)?,
            down: changing(&raw.down, "down", |change| &change.down)?,
            description: raw.description.clone(),
        })
    }
}

/// Overlays a direction with `change`, which replaces what it names. Packets are lost in one way: a change that names
/// one replaces whatever there was.
fn overlaid(first: &toml::Table, change: &toml::Table) -> toml::Table {
    const LOSS: [&str; 4] = ["loss", "burst", "gilbert_elliott", "markov"];
    let mut all = first.clone();
    if LOSS.iter().any(|key| change.contains_key(*key)) {
        all.retain(|key, _| !LOSS.contains(&key));
    }
    all.extend(change.clone());
    all
}

impl FromStr for Link {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(&Source::text(text))
    }
}

/// Applies one `key=value` that follows the `@` of a link's name: to the direction that the key names, or to every
/// direction in the profile.
fn apply(table: &mut toml::Table, key: &str, value: &str) -> Result<(), String> {
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
        set(table, side, key, value);
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    description: String,
    #[serde(default)]
    up: toml::Table,
    #[serde(default)]
    down: toml::Table,
    /// Changes in the order of time.
    #[serde(default)]
    change: Vec<RawChange>,
    repeat_after: Option<Moment>,
}

/// Change of both directions at a time. Properties that the change does not name are as at the beginning.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawChange {
    after: Moment,
    #[serde(default)]
    up: toml::Table,
    #[serde(default)]
    down: toml::Table,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct RawDirection {
    delay: Time,
    jitter: Time,
    distribution: Distribution,
    reorder: Probability,
    rate: Option<Rate>,
    /// A file's name.
    trace: Option<String>,
    queue: Queue,
    loss: Probability,
    burst: Option<Burst>,
    gilbert_elliott: Option<RawGilbertElliott>,
    markov: Option<RawMarkov>,
    duplicate: Probability,
    corrupt: Probability,
}

/// Mean number of packets lost in a row: 1 or more.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "toml::Value")]
struct Burst(f64);

impl TryFrom<toml::Value> for Burst {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let text = match value {
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            // A number in quotes, as in a change behind an `@`.
            toml::Value::String(text) => text,
            other => format!("this {}", other.type_str()),
        };
        let burst = text.parse().ok();
        let burst = burst.filter(|burst: &f64| burst.is_finite() && *burst >= 1.0);
        burst
            .map(Self)
            .ok_or_else(|| format!("`{text}` is no burst: write 1 or more packets in a row"))
    }
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

/// Loss by four states; see [`Loss::Markov`]. A missing value has netem's default.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMarkov {
    p13: Probability,
    /// The default is 1 - `p13`.
    p31: Option<Probability>,
    #[serde(default)]
    p32: Probability,
    #[serde(default = "always")]
    p23: Probability,
    #[serde(default)]
    p14: Probability,
}

fn always() -> Probability {
    Probability::new(1.0).expect("1 is a probability")
}

impl RawDirection {
    fn checked(self, side: &str, trace: Option<Trace>) -> Result<Direction, String> {
        let (Time(delay), Time(jitter)) = (self.delay, self.jitter);
        if jitter > delay {
            return Err(format!(
                "{side}.jitter is {jitter:?} and the delay {delay:?}: it cannot vary by more"
            ));
        }
        if self.reorder > Probability::ZERO && delay.is_zero() {
            return Err(format!(
                "{side}.reorder needs a delay: nothing is overtaken without one"
            ));
        }
        if self.rate.is_some() && trace.is_some() {
            return Err(format!(
                "{side} has rate and trace: it sends in one way or the other"
            ));
        }
        if matches!(self.queue, Queue::Bdp(_)) && self.rate.is_none() {
            return Err(format!(
                "{side}.queue is a bandwidth-delay product and there is no rate"
            ));
        }
        if matches!(self.queue, Queue::Bytes(_)) && self.rate.is_none() && trace.is_none() {
            return Err(format!(
                "{side}.queue is in bytes that wait to be sent, and there is neither rate nor trace"
            ));
        }
        let loss = loss(self.loss, self.burst, self.gilbert_elliott, self.markov)
            .map_err(|problem| format!("{side}{problem}"))?;
        Ok(Direction {
            delay,
            jitter,
            distribution: self.distribution,
            reorder: self.reorder,
            rate: self.rate,
            trace,
            queue: self.queue,
            loss,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            changes: Changes::default(),
        })
    }
}

/// Returns the one way in which packets are lost; an error if several are given.
fn loss(
    single: Probability,
    burst: Option<Burst>,
    gilbert_elliott: Option<RawGilbertElliott>,
    markov: Option<RawMarkov>,
) -> Result<Loss, String> {
    let others = gilbert_elliott.is_some() || markov.is_some();
    if burst.is_some() && others {
        return Err(
            ".burst is of `loss`: gilbert_elliott and markov have bursts of their own".to_owned(),
        );
    }
    let single = (single > Probability::ZERO).then_some(single);
    let single = single.map(|share| match burst {
        Some(burst) => in_bursts(share, burst),
        None => Ok(Loss::Bernoulli(share)),
    });
    let bursts = gilbert_elliott.map(|raw| Loss::GilbertElliott {
        to_bad: raw.to_bad,
        to_good: raw.to_good,
        in_bad: raw.in_bad,
        in_good: raw.in_good,
    });
    let markov = markov.map(|raw| {
        let left = Probability::new(1.0 - raw.p13.share()).unwrap_or_default();
        let p31 = raw.p31.unwrap_or(left);
        for (name, a, b) in [
            ("p13 and p14", raw.p13, raw.p14),
            ("p31 and p32", p31, raw.p32),
        ] {
            if a.share() + b.share() > 1.0 {
                return Err(format!(
                    ".markov: {name} are {a} and {b}: together at most 100%"
                ));
            }
        }
        Ok(Loss::Markov {
            p13: raw.p13,
            p31,
            p32: raw.p32,
            p23: raw.p23,
            p14: raw.p14,
        })
    });
    let mut given = [single.transpose()?, bursts, markov.transpose()?]
        .into_iter()
        .flatten();
    let loss = given.next().unwrap_or_default();
    if given.next().is_some() {
        return Err(
            " has more than one of loss, gilbert_elliott and markov: it loses packets in one way"
                .to_owned(),
        );
    }
    Ok(loss)
}

/// Returns Gilbert's model with the given share of losses and mean run length `burst`: packets are lost only in the bad
/// state, and there all of them. The error is that of a run too short for the share.
fn in_bursts(share: Probability, Burst(burst): Burst) -> Result<Loss, String> {
    let to_bad = share.share() / (1.0 - share.share()) / burst;
    let states = Probability::new(to_bad).zip(Probability::new(1.0 / burst));
    let (to_bad, to_good) = states.ok_or_else(|| {
        format!(".burst: {share} cannot be lost in runs as short as {burst} on average")
    })?;
    Ok(Loss::GilbertElliott {
        to_bad,
        to_good,
        in_bad: always(),
        in_good: Probability::ZERO,
    })
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
