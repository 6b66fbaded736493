//! Links with a recorded rate.

use std::{str::FromStr, sync::Arc};

/// Opportunities to send, as Mahimahi records them. Each line is a millisecond in which a packet of 1500 bytes
/// may leave. After the last line the trace begins again.
///
/// Small packets share an opportunity, a large packet takes several, and an unused opportunity is gone.
///
/// ```
/// // One packet of 1500 bytes each millisecond: 12 Mbit/s of packets, a little more of frames.
/// let trace: mq_netem::Trace = "1\n".parse()?;
/// assert_eq!(trace.mean_rate().bits_per_second(), 12_112_000);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Milliseconds in order; the last one is the length of the trace, and more than 0.
    milliseconds: Arc<[u64]>,
}

impl Trace {
    /// Bytes that may leave at one opportunity: a packet of 1500 bytes and its Ethernet header.
    pub const OPPORTUNITY: u64 = 1514;

    /// Returns the rate if every opportunity is used, in bits a second of whole frames.
    #[must_use]
    pub fn mean_rate(&self) -> crate::Rate {
        let bits = self.milliseconds.len() as u128 * u128::from(Self::OPPORTUNITY) * 8 * 1000;
        let rate = bits / u128::from(self.length());
        u64::try_from(rate)
            .ok()
            .and_then(crate::Rate::from_bits_per_second)
            .expect("an opportunity in at most 2^64 ms, and as many as fit into memory")
    }

    /// Returns the time of an opportunity, in nanoseconds. Its number counts on through the repetitions.
    pub(crate) fn time_of(&self, opportunity: u64) -> u64 {
        let count = self.milliseconds.len() as u64;
        let within = usize::try_from(opportunity % count).expect("less than a length");
        let ms = (opportunity / count)
            .saturating_mul(self.length())
            .saturating_add(self.milliseconds[within]);
        ms.saturating_mul(1_000_000)
    }

    /// Returns the first opportunity at `ns` nanoseconds or later.
    pub(crate) fn first_from(&self, ns: u64) -> u64 {
        let ms = ns.div_ceil(1_000_000);
        // An opportunity at the very end of a repetition belongs to that repetition.
        let repetition = ms.saturating_sub(1) / self.length();
        let within = ms - repetition * self.length();
        let before = self.milliseconds.partition_point(|at| *at < within) as u64;
        repetition * self.milliseconds.len() as u64 + before
    }

    fn length(&self) -> u64 {
        self.milliseconds.last().copied().unwrap_or(1)
    }
}

impl FromStr for Trace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut milliseconds = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at: u32 = line.parse().map_err(|_| {
                format!("line {number} is `{line}`: write a millisecond, 0 to 4294967295")
            })?;
            let at = u64::from(at);
            if milliseconds.last().is_some_and(|before| at < *before) {
                return Err(format!(
                    "line {number} is {at}, earlier than the line before it"
                ));
            }
            milliseconds.push(at);
        }
        if milliseconds.last().is_none_or(|last| *last == 0) {
            return Err("it ends at 0: write one millisecond a line, the last more than 0".into());
        }
        Ok(Self {
            milliseconds: milliseconds.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opportunities_repeat() {
        let trace: Trace = "0\n2\n2\n5\n".parse().unwrap();
        let times: Vec<_> = (0..9).map(|n| trace.time_of(n) / 1_000_000).collect();
        assert_eq!(times, [0, 2, 2, 5, 5, 7, 7, 10, 10]);
        assert_eq!(trace.mean_rate().bits_per_second(), 9_689_600);
        for (ms, first) in [
            (0, 0),
            (1, 1),
            (2, 1),
            (3, 3),
            (5, 3),
            (6, 5),
            (10, 7),
            (11, 9),
        ] {
            assert_eq!(trace.first_from(ms * 1_000_000), first, "{ms}");
        }
        assert_eq!(trace.first_from(2_000_001), 3);
    }

    #[test]
    fn mistakes_name_the_line() {
        for (text, says) in [
            ("", "ends at 0"),
            ("0\n0\n", "ends at 0"),
            ("1\nx\n", "line 2"),
            ("# made up\n5\n3\n", "line 3"),
            ("-1", "line 1"),
        ] {
            let error = text.parse::<Trace>().unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }
}
