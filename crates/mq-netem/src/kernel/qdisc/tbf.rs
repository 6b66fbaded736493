//! The queueing discipline tbf: a rate, and a queue in bytes.

use std::{fmt, time::Duration};

use super::{Difference, TICK_NS, listed, nla, nla::Writer, rate, ticks};
use crate::Rate;

/// `TCA_TBF_*` of `linux/pkt_sched.h`.
mod attribute {
    pub(super) const PARMS: u16 = 1;
    pub(super) const RATE64: u16 = 4;
    pub(super) const BURST: u16 = 6;
    pub(super) const PBURST: u16 = 7;
}

/// `tc_tbf_qopt`: two `tc_ratespec` of 12 bytes, limit, buffer, mtu.
const STRUCTURE: usize = 36;

/// Positions in it, in numbers of four bytes.
mod at {
    pub(super) const RATE: usize = 2;
    pub(super) const PEAK_RATE: usize = 5;
    pub(super) const LIMIT: usize = 6;
    pub(super) const BUFFER: usize = 7;
}

/// `TC_LINKLAYER_ETHERNET`: the kernel computes times itself and wants no table of them.
const ETHERNET: u8 = 1;

/// An Ethernet header.
const HEADER: u32 = 14;

/// The time that a burst may take. A shorter one would need more timers than a small board has time for.
const BURST: Duration = Duration::from_micros(200);

/// The parameters of a tbf.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Tbf {
    /// Bytes a second.
    pub rate: u64,
    /// Bytes that may go at once after a pause, and so the largest frame. The kernel returns a time; a tbf that
    /// was read has the most bytes that fit that time.
    pub burst: u32,
    /// Bytes that wait.
    pub limit: u32,
    /// Settings that no link makes, such as a peak rate.
    pub others: Vec<&'static str>,
}

impl Tbf {
    /// Makes a tbf, whose burst is one full frame, or what the rate sends in 200 us if that is more.
    pub(super) fn new(rate: Rate, limit: u64, mtu: u32) -> Result<Self, &'static str> {
        let bytes = rate.bits_per_second() / 8;
        let burst = u64::from(mtu.saturating_add(HEADER)).max(rate.bytes_in(BURST));
        let tbf = Self {
            rate: bytes,
            burst: u32::try_from(burst).map_err(|_| "its tbf has bursts of 4 GB at most")?,
            limit: u32::try_from(limit).map_err(|_| "its tbf queues 4 GB at most")?,
            others: Vec::new(),
        };
        if bytes == 0 || tbf.buffer() > u32::MAX.into() {
            return Err("its tbf cannot be so slow that a frame takes minutes");
        }
        Ok(tbf)
    }

    /// Returns the time that the burst takes, in ticks.
    fn buffer(&self) -> u64 {
        ticks(Duration::from_nanos(
            u64::from(self.burst) * 1_000_000_000 / self.rate.max(1),
        ))
    }

    /// Encodes the parameters as `TCA_OPTIONS`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let short = u32::try_from(self.rate).unwrap_or(u32::MAX);
        let buffer = u32::try_from(self.buffer()).unwrap_or(u32::MAX);
        let linklayer = u32::from_ne_bytes([0, ETHERNET, 0, 0]);
        let structure = nla::bytes(&[linklayer, 0, short, 0, 0, 0, self.limit, buffer, 0]);
        let mut writer = Writer::default();
        writer.put(attribute::PARMS, &structure);
        writer.put_words(attribute::BURST, &[self.burst]);
        if self.rate > u32::MAX.into() {
            writer.put(attribute::RATE64, &self.rate.to_ne_bytes());
        }
        writer.finish()
    }

    /// Decodes the parameters from `TCA_OPTIONS`; `None` if these are not a tbf's.
    #[must_use]
    pub fn decode(options: &[u8]) -> Option<Self> {
        let structure = structure(options)?;
        let word = |index| nla::word(structure, index);
        let long = nla::attributes(options).find(|(kind, _)| *kind == attribute::RATE64);
        let rate = long.map_or(u64::from(word(at::RATE)), |(_, value)| nla::long(value));
        let mut others = Vec::new();
        others.extend((word(at::PEAK_RATE) != 0).then_some("a peak rate"));
        let spec = |index: usize| structure.get(index..index + 2) == Some(&[0, 0]);
        // Overhead and least size of a packet.
        others.extend((!spec(2) || !spec(6)).then_some("an overhead of packets"));
        Some(Self {
            rate,
            burst: largest(word(at::BUFFER), rate),
            limit: word(at::LIMIT),
            others,
        })
    }

    pub(super) fn differences(&self, found: &Self) -> Vec<Difference> {
        let bytes = |bytes: &u32| format!("{bytes} bytes");
        let burst = Difference::between("burst", &self.burst, &found.burst, bytes);
        // The bytes that two ticks send, and the rounding of the kernel's arithmetic.
        let tolerance = self.rate / (1_000_000_000 / TICK_NS / 2) + u64::from(self.burst) / 500_000;
        let apart = u64::from(self.burst.abs_diff(found.burst));
        [
            Difference::between("rate", &self.rate, &found.rate, |bytes| rate(*bytes)),
            burst.filter(|_| apart > tolerance + 1),
            Difference::between("limit", &self.limit, &found.limit, bytes),
            Difference::between("what tbf does besides", &self.others, &found.others, listed),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Writes kind and parameters in the form of `tc`'s command line.
impl fmt::Display for Tbf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { burst, limit, .. } = self;
        write!(
            f,
            "tbf rate {} burst {burst} limit {limit}",
            rate(self.rate)
        )
    }
}

/// Returns the options that make a tbf again, from those that the kernel returned; `None` if that is not possible.
///
/// The kernel returns the burst as a time in ticks, rounded down. Given back unchanged, the burst would be a
/// little smaller, and the tbf could drop full frames.
pub(super) fn restoring(told: &[u8]) -> Option<Vec<u8>> {
    let structure = structure(told)?;
    let tbf = Tbf::decode(told)?;
    // With ATM cells times depend on tables, and a peak rate has a burst of its own.
    let plain = structure.get(1).is_some_and(|layer| *layer <= ETHERNET);
    if !plain || !tbf.others.is_empty() || tbf.rate == 0 {
        return None;
    }
    let mut writer = Writer::behind(told.to_vec());
    let known = |kind| nla::attributes(told).any(|(found, _)| found == kind);
    if !known(attribute::BURST) && !known(attribute::PBURST) {
        writer.put_words(attribute::BURST, &[tbf.burst]);
    }
    Some(writer.finish())
}

fn structure(options: &[u8]) -> Option<&[u8]> {
    let mut attributes = nla::attributes(options);
    let (_, value) = attributes.find(|(kind, _)| *kind == attribute::PARMS)?;
    value.get(..STRUCTURE)
}

/// Returns the largest number of bytes whose time is `buffer` ticks.
fn largest(buffer: u32, rate: u64) -> u32 {
    let ns = (u128::from(buffer) + 2) * u128::from(TICK_NS);
    let above = ns * u128::from(rate) / 1_000_000_000 + 1;
    let above = u32::try_from(above).unwrap_or(u32::MAX);
    let (multiplier, shift) = precomputed(rate.max(1));
    let ticks = |bytes: u32| ((u128::from(bytes) * u128::from(multiplier)) >> shift) / 64;
    // Binary search: all below `low` fit.
    let (mut low, mut high) = (0, above);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if ticks(middle) <= buffer.into() {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Returns the factor and the shift by which the kernel computes nanoseconds from bytes: `psched_ratecfg_precompute` of
/// `sch_generic.c`. Its rounding decides about one byte.
fn precomputed(rate: u64) -> (u64, u32) {
    let (mut factor, mut shift) = (1_000_000_000_u64, 0);
    loop {
        let multiplier = factor / rate;
        if multiplier & (1 << 31) != 0 || factor & (1 << 63) != 0 {
            return (multiplier, shift);
        }
        factor <<= 1;
        shift += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tbf(rate: &str, limit: u64) -> Tbf {
        Tbf::new(rate.parse().unwrap(), limit, 1500).unwrap()
    }

    #[test]
    fn a_tbf_is_read_back_from_its_bytes() {
        for (rate, burst) in [
            ("1.5mbit", 1514),
            ("20mbit", 1514),
            ("100mbit", 2_500),
            ("10gbit", 250_000),
            ("100gbit", 2_500_000),
        ] {
            let tbf = tbf(rate, 62_500);
            assert_eq!(tbf.burst, burst);
            let back = Tbf::decode(&tbf.encode()).unwrap();
            assert_eq!(tbf.differences(&back), [], "{rate}");
            assert!(back.burst >= burst, "{rate}: {back:?}");
        }
    }

    #[test]
    fn a_restored_tbf_has_room_for_a_full_frame() {
        // As the kernel returns it: without the burst in bytes.
        let told = |linklayer: u8, peak: u32| {
            let linklayer = u32::from_ne_bytes([0, linklayer, 0, 0]);
            let words = [linklayer, 0, 2_500_000, 0, 0, peak, 62_500, 9_462, 0];
            let mut writer = Writer::default();
            writer.put(attribute::PARMS, &nla::bytes(&words));
            writer.finish()
        };
        let again = |told: Vec<u8>| super::restoring(&told);
        let options = again(told(1, 0)).unwrap();
        let burst = nla::attributes(&options).find(|(kind, _)| *kind == attribute::BURST);
        assert_eq!(nla::word(burst.unwrap().1, 0), 1514);
        assert_eq!(again(told(2, 0)), None);
        assert_eq!(again(told(1, 1)), None);
        assert_eq!(again(vec![]), None);
    }

    #[test]
    fn what_differs_is_named() {
        let mut other = tbf("30mbit", 70_000);
        other.burst = 3_000;
        let differences = tbf("20mbit", 62_500).differences(&other);
        let names: Vec<_> = differences.iter().map(|d| d.what).collect();
        assert_eq!(names, ["rate", "burst", "limit"]);
    }
}
