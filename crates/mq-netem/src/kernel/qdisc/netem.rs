//! The queueing discipline netem: delay, chances, rate.

use std::{fmt, time::Duration};

use super::{Difference, listed, nla, nla::Writer, percent, rate, ticks, time};
use crate::{Direction, Distribution, Loss, Probability, Queue, units::nanoseconds};

/// Attributes behind the structure `tc_netem_qopt`: `TCA_NETEM_*` of `linux/pkt_sched.h`.
mod attribute {
    pub(super) const CORR: u16 = 1;
    pub(super) const DELAY_DIST: u16 = 2;
    pub(super) const REORDER: u16 = 3;
    pub(super) const CORRUPT: u16 = 4;
    pub(super) const LOSS: u16 = 5;
    pub(super) const RATE: u16 = 6;
    pub(super) const ECN: u16 = 7;
    pub(super) const RATE64: u16 = 8;
    pub(super) const LATENCY64: u16 = 10;
    pub(super) const JITTER64: u16 = 11;
    pub(super) const SLOT: u16 = 12;
    /// Within `LOSS`: the four-state model, and Gilbert-Elliott.
    pub(super) const LOSS_GI: u16 = 1;
    pub(super) const LOSS_GE: u16 = 2;
}

/// `tc_netem_qopt`: latency, limit, loss, gap, duplicate, jitter.
const STRUCTURE: usize = 24;

/// netem keeps the jitter in 31 bits of nanoseconds.
pub(super) const LONGEST_JITTER: Duration = Duration::from_nanos(i32::MAX as u64);

/// The rate, in bytes a second, of a link with jitter and without a rate: 1 Tbit/s, at which a full frame
/// takes 12 ns. Without a rate netem sends a packet before an earlier one with a longer delay; with a rate it
/// keeps the order.
const KEEPS_ORDER: u64 = 125_000_000_000;

/// Packets a second that the delay holds if the queue is in bytes. It is more than 1 Gbit/s carries of packets
/// above 60 bytes of payload, and more than a board like the Pi sends. netem cannot be without a limit; a high
/// limit reserves no memory.
const PACKETS_PER_SECOND: u64 = 1_000_000;

/// The parameters of a netem.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Netem {
    /// Packets that it holds; on most kernels those in its children too.
    pub limit: u32,
    /// The delay of every packet.
    pub delay: Duration,
    /// Variation of the delay; see `distribution`.
    pub jitter: Duration,
    /// The distribution of the jitter. The kernel does not return it: a netem that was read has uniform.
    pub distribution: Distribution,
    /// Share of packets sent at once, before others, in units of 1 / (2^32 - 1).
    pub reorder: u32,
    /// Loss model with its parameters.
    pub loss: NetemLoss,
    /// Share of packets sent twice, in units of 1 / (2^32 - 1).
    pub duplicate: u32,
    /// Share of packets with one inverted bit, in units of 1 / (2^32 - 1).
    pub corrupt: u32,
    /// Bytes a second, 0 for no rate.
    pub rate: u64,
    /// Settings that no link makes, such as `slots`.
    pub others: Vec<&'static str>,
}

/// The ways in which netem loses packets; shares of 2^32 - 1, in the order of `linux/pkt_sched.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NetemLoss {
    /// Loss of each packet with this share, whatever happens to others.
    Random(u32),
    /// Loss by the Gilbert-Elliott model; shares of packets at which the state changes from good to bad (`p`) and back
    /// (`r`), which are *not* lost in the bad state (`h`), and which are lost in the good one (`k1`).
    GilbertElliott([u32; 4]),
    /// Loss by a Markov chain of four states; the shares `p13`, `p31`, `p32`, `p14` and `p23`, of which `p13` is that
    /// of changes from state 1 to state 3. See [`Loss::Markov`](crate::Loss::Markov).
    Markov([u32; 5]),
}

impl Default for NetemLoss {
    fn default() -> Self {
        Self::Random(0)
    }
}

impl From<Loss> for NetemLoss {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::Bernoulli(p) => Self::Random(share(p)),
            Loss::GilbertElliott {
                to_bad,
                to_good,
                in_bad,
                in_good,
            } => Self::GilbertElliott([
                share(to_bad),
                share(to_good),
                u32::MAX - share(in_bad),
                share(in_good),
            ]),
            Loss::Markov {
                p13,
                p31,
                p32,
                p23,
                p14,
            } => Self::Markov([p13, p31, p32, p14, p23].map(share)),
        }
    }
}

impl Netem {
    /// Makes a netem for `direction`. With `with_tbf` a tbf does the rate and the queue. The error says what netem
    /// cannot do.
    pub(super) fn new(direction: &Direction, with_tbf: bool) -> Result<Self, &'static str> {
        let rate = match direction.rate {
            Some(rate) if !with_tbf => match rate.bits_per_second() / 8 {
                0 => return Err("it counts whole bytes a second: 8bit at least"),
                rate => rate,
            },
            _ if direction.jitter.is_zero() => 0,
            _ => KEEPS_ORDER,
        };
        let limit = match direction.queue {
            Queue::Packets(limit) => limit,
            Queue::Bytes(_) | Queue::Bdp(_) => delay_line(direction),
        };
        Ok(Self {
            limit: u32::try_from(limit).map_err(|_| "it counts to 4294967295 packets")?,
            delay: direction.delay,
            jitter: direction.jitter,
            distribution: direction.distribution,
            reorder: share(direction.reorder),
            loss: direction.loss.into(),
            duplicate: share(direction.duplicate),
            corrupt: share(direction.corrupt),
            rate,
            others: Vec::new(),
        })
    }

    /// Encodes the parameters as `TCA_OPTIONS`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let random = match self.loss {
            NetemLoss::Random(share) => share,
            _ => 0,
        };
        let old_time = |time| u32::try_from(ticks(time)).unwrap_or(u32::MAX);
        // Every packet is a candidate to overtake: a gap of 1.
        let gap = u32::from(self.reorder > 0);
        let mut writer = Writer::behind(nla::bytes(&[
            old_time(self.delay),
            self.limit,
            random,
            gap,
            self.duplicate,
            old_time(self.jitter),
        ]));
        let new_time = |time| nanoseconds(time).to_ne_bytes();
        writer.put(attribute::LATENCY64, &new_time(self.delay));
        writer.put(attribute::JITTER64, &new_time(self.jitter));
        if let Some(table) = self.distribution.table()
            && !self.jitter.is_zero()
        {
            let table: Vec<u8> = table.iter().flat_map(|entry| entry.to_ne_bytes()).collect();
            writer.put(attribute::DELAY_DIST, &table);
        }
        if self.reorder > 0 {
            writer.put_words(attribute::REORDER, &[self.reorder, 0]);
        }
        if self.corrupt > 0 {
            writer.put_words(attribute::CORRUPT, &[self.corrupt, 0]);
        }
        if self.rate > 0 {
            let short = u32::try_from(self.rate).unwrap_or(u32::MAX);
            writer.put_words(attribute::RATE, &[short, 0, 0, 0]);
            if self.rate > u32::MAX.into() {
                writer.put(attribute::RATE64, &self.rate.to_ne_bytes());
            }
        }
        let mut model = Writer::default();
        match self.loss {
            NetemLoss::Random(_) => {}
            NetemLoss::GilbertElliott(shares) => model.put_words(attribute::LOSS_GE, &shares),
            NetemLoss::Markov(shares) => model.put_words(attribute::LOSS_GI, &shares),
        }
        let model = model.finish();
        if !model.is_empty() {
            writer.put(attribute::LOSS, &model);
        }
        writer.finish()
    }

    /// Decodes the parameters from `TCA_OPTIONS`; `None` if they are too short. Unknown attributes are ignored.
    #[must_use]
    pub fn decode(options: &[u8]) -> Option<Self> {
        let (structure, attributes) = options.split_at_checked(STRUCTURE)?;
        let old_time = |index| Duration::from_nanos(u64::from(nla::word(structure, index)) * 64);
        let gap = nla::word(structure, 3);
        let mut netem = Self {
            delay: old_time(0),
            limit: nla::word(structure, 1),
            loss: NetemLoss::Random(nla::word(structure, 2)),
            duplicate: nla::word(structure, 4),
            jitter: old_time(5),
            ..Self::default()
        };
        note(
            &mut netem.others,
            gap > 1,
            "a gap between reordered packets",
        );
        for (kind, value) in nla::attributes(attributes) {
            let words = |at: std::ops::Range<usize>| at.map(|index| nla::word(value, index));
            match kind {
                attribute::CORR => {
                    let any = words(0..3).any(|word| word != 0);
                    note(&mut netem.others, any, "correlation");
                }
                attribute::REORDER => {
                    netem.reorder = nla::word(value, 0);
                    note(&mut netem.others, nla::word(value, 1) != 0, "correlation");
                }
                attribute::CORRUPT => {
                    netem.corrupt = nla::word(value, 0);
                    note(&mut netem.others, nla::word(value, 1) != 0, "correlation");
                }
                attribute::RATE => {
                    netem.rate = netem.rate.max(nla::word(value, 0).into());
                    let cells = words(1..4).any(|word| word != 0);
                    note(&mut netem.others, cells, "an overhead of packets or cells");
                }
                attribute::RATE64 => netem.rate = nla::long(value),
                attribute::LATENCY64 => netem.delay = Duration::from_nanos(nla::long(value)),
                attribute::JITTER64 => netem.jitter = Duration::from_nanos(nla::long(value)),
                attribute::ECN => note(&mut netem.others, nla::word(value, 0) != 0, "ECN"),
                attribute::SLOT => note(&mut netem.others, true, "slots"),
                attribute::LOSS => netem.loss = model(value).unwrap_or(netem.loss),
                _ => {}
            }
        }
        Some(netem)
    }

    pub(super) fn differences(&self, found: &Self) -> Vec<Difference> {
        let apart = self.delay.abs_diff(found.delay);
        let delay = Difference::between("delay", &self.delay, &found.delay, |delay| time(*delay));
        let jitter = Difference::between("jitter", &self.jitter, &found.jitter, |jitter| {
            time(*jitter)
        });
        let jitter_apart = self.jitter.abs_diff(found.jitter);
        let share = |share: &u32| percent(*share);
        [
            Difference::between("limit", &self.limit, &found.limit, |limit| {
                format!("{limit} packets")
            }),
            delay.filter(|_| apart >= Duration::from_nanos(super::TICK_NS)),
            jitter.filter(|_| jitter_apart >= Duration::from_nanos(super::TICK_NS)),
            Difference::between("reorder", &self.reorder, &found.reorder, share),
            Difference::between("loss", &self.loss, &found.loss, ToString::to_string),
            Difference::between("duplicate", &self.duplicate, &found.duplicate, share),
            Difference::between("corrupt", &self.corrupt, &found.corrupt, share),
            Difference::between("rate", &self.rate, &found.rate, |bytes| rate(*bytes)),
            Difference::between(
                "what netem does besides",
                &self.others,
                &found.others,
                listed,
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Writes kind and parameters in the form of `tc`'s command line.
impl fmt::Display for Netem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "netem limit {} delay {}", self.limit, time(self.delay))?;
        if !self.jitter.is_zero() {
            write!(f, " {}", time(self.jitter))?;
            match self.distribution {
                Distribution::Uniform => {}
                other => write!(f, " distribution {}", format!("{other:?}").to_lowercase())?,
            }
        }
        if self.reorder > 0 {
            write!(f, " reorder {} gap 1", percent(self.reorder))?;
        }
        if self.loss != NetemLoss::default() {
            write!(f, " loss {}", self.loss)?;
        }
        if self.duplicate > 0 {
            write!(f, " duplicate {}", percent(self.duplicate))?;
        }
        if self.corrupt > 0 {
            write!(f, " corrupt {}", percent(self.corrupt))?;
        }
        if self.rate > 0 {
            write!(f, " rate {}", rate(self.rate))?;
        }
        Ok(())
    }
}

/// Writes the parameters that follow the word `loss` on `tc`'s command line. For `gemodel`, `tc` takes the share lost
/// in the bad state; the kernel keeps the share *not* lost.
impl fmt::Display for NetemLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = |name: &str, shares: &[u32]| {
            f.write_str(name)?;
            shares
                .iter()
                .try_for_each(|share| write!(f, " {}", percent(*share)))
        };
        match *self {
            Self::Random(share) => f.write_str(&percent(share)),
            Self::GilbertElliott([p, r, h, k1]) => list("gemodel", &[p, r, u32::MAX - h, k1]),
            Self::Markov([p13, p31, p32, p14, p23]) => list("state", &[p13, p31, p32, p23, p14]),
        }
    }
}

fn note(others: &mut Vec<&'static str>, is: bool, what: &'static str) {
    if is && !others.contains(&what) {
        others.push(what);
    }
}

fn model(value: &[u8]) -> Option<NetemLoss> {
    let (kind, value) = nla::attributes(value).next()?;
    let word = |index| nla::word(value, index);
    match kind {
        attribute::LOSS_GE => Some(NetemLoss::GilbertElliott([0, 1, 2, 3].map(word))),
        attribute::LOSS_GI => Some(NetemLoss::Markov([0, 1, 2, 3, 4].map(word))),
        _ => None,
    }
}

/// Returns the largest number of packets in the delay and in the tbf behind it. Frames have at least 60 bytes, and most
/// kernels count the packets of a child.
fn delay_line(direction: &Direction) -> u64 {
    let widest = match direction.distribution {
        Distribution::Uniform => 1,
        // The entries of a table go no further.
        _ => 4,
    };
    let longest = nanoseconds(direction.delay + direction.jitter * widest);
    let delayed = longest.saturating_mul(PACKETS_PER_SECOND) / 1_000_000_000;
    let queued = direction.queue_bytes().unwrap_or_default() / 60;
    1000 + delayed + queued
}

/// A probability in the kernel's unit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of 2^32 - 1"
)]
fn share(p: Probability) -> u32 {
    (p.share() * f64::from(u32::MAX)).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Link;

    fn netem(text: &str) -> Netem {
        let link: Link = format!("description = \"\"\n[up]\n{text}").parse().unwrap();
        Netem::new(&link.up, link.up.queue_bytes().is_some()).unwrap()
    }

    const ALL: &str = r#"
        delay = "25ms"
        jitter = "3ms"
        distribution = "normal"
        reorder = "1%"
        rate = "40gbit"
        loss = "5%"
        duplicate = "2%"
        corrupt = "0.1%"
        queue = "77p"
    "#;

    #[test]
    fn everything_comes_back() {
        let netem = netem(ALL);
        let mut back = Netem::decode(&netem.encode()).unwrap();
        assert_eq!(back.distribution, Distribution::Uniform);
        back.distribution = Distribution::Normal;
        assert_eq!(back, netem);
        assert_eq!(
            netem.to_string(),
            "netem limit 77 delay 25ms 3ms distribution normal reorder 1% gap 1 loss 5% \
             duplicate 2% corrupt 0.1% rate 40gbit"
        );
    }

    #[test]
    fn losses_in_bursts_are_turned_as_the_kernel_has_them() {
        let bursts = netem(
            "gilbert_elliott = { to_bad = \"1%\", to_good = \"20%\", in_bad = \"75%\", \
             in_good = \"1%\" }",
        );
        let NetemLoss::GilbertElliott([_, _, h, _]) = bursts.loss else {
            panic!("{bursts:?}");
        };
        // The share that is not lost in the bad state.
        assert_eq!(percent(h), "25%");
        assert_eq!(bursts.loss.to_string(), "gemodel 1% 20% 75% 1%");
        let markov = netem(
            "markov = { p13 = \"1%\", p31 = \"15%\", p32 = \"10%\", p23 = \"50%\", \
             p14 = \"0.2%\" }",
        );
        assert_eq!(markov.loss.to_string(), "state 1% 15% 10% 50% 0.2%");
        for netem in [bursts, markov] {
            assert_eq!(Netem::decode(&netem.encode()), Some(netem));
        }
    }

    #[test]
    fn jitter_without_a_rate_gets_one_that_keeps_the_order() {
        let netem = netem("delay = \"10ms\"\njitter = \"5ms\"");
        assert_eq!(netem.rate, KEEPS_ORDER);
        assert_eq!(Netem::decode(&netem.encode()), Some(netem));
    }

    #[test]
    fn unknown_attributes_are_passed_over_and_foreign_settings_are_not() {
        let netem = netem(ALL);
        let mut options = netem.encode();
        let mut more = Writer::default();
        more.put(14, &7_u64.to_ne_bytes());
        more.put(999, b"x");
        options.extend(more.finish());
        assert_eq!(netem.differences(&Netem::decode(&options).unwrap()), []);
        let mut more = Writer::default();
        more.put_words(attribute::CORR, &[0, 1, 0]);
        more.put(attribute::SLOT, &[0; 40]);
        options.extend(more.finish());
        let [difference] = &netem.differences(&Netem::decode(&options).unwrap())[..] else {
            panic!("one difference");
        };
        assert_eq!(
            difference.to_string(),
            "what netem does besides is correlation, slots instead of nothing"
        );
        for length in 0..STRUCTURE {
            assert_eq!(Netem::decode(&options[..length]), None);
        }
        for length in STRUCTURE..options.len() {
            assert!(Netem::decode(&options[..length]).is_some());
        }
    }

    #[test]
    fn every_field_that_differs_is_one_line() {
        let netem = netem(ALL);
        let other = self::netem("delay = \"25.0001ms\"\njitter = \"3ms\"\nqueue = \"78p\"");
        let lines: Vec<_> = netem
            .differences(&other)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            lines,
            [
                "limit is 78 packets instead of 77 packets",
                "delay is 25000100ns instead of 25ms",
                "reorder is 0% instead of 1%",
                "loss is 0% instead of 5%",
                "duplicate is 0% instead of 2%",
                "corrupt is 0% instead of 0.1%",
                "rate is 1000gbit instead of 40gbit",
            ]
        );
    }
}
