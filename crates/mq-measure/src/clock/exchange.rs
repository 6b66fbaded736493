//! An exchange of a question and its answer between two machines, and the bounds that it sets to the clocks' offset.

use serde::{Deserialize, Serialize};

/// The four time stamps of a question and its answer, each of the clock of the machine that took it.
///
/// ```text
///   local    t1 ------------------------------- t4     the machine that asks
///              \                               /
///               there                     back
///                \                           /
///   remote        t2 ----------------------- t3        the machine that answers
/// ```
///
/// `t1` and `t3` are taken before a datagram is handed to the kernel, `t2` and `t4` after it has come. So the
/// time that programs and kernels need counts as delay of the path, and the offset is between `t3 - t4` and
/// `t2 - t1` whatever the path does. In JSON an exchange is the array `[t1, t2, t3, t4]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 4]", into = "[u64; 4]")]
pub struct Exchange {
    /// Send time of the question, by the local clock.
    pub t1_ns: u64,
    /// Receive time of the question, by the remote clock.
    pub t2_ns: u64,
    /// Send time of the answer, by the remote clock.
    pub t3_ns: u64,
    /// Receive time of the answer, by the local clock.
    pub t4_ns: u64,
}

impl From<[u64; 4]> for Exchange {
    fn from([t1_ns, t2_ns, t3_ns, t4_ns]: [u64; 4]) -> Self {
        Self {
            t1_ns,
            t2_ns,
            t3_ns,
            t4_ns,
        }
    }
}

impl From<Exchange> for [u64; 4] {
    fn from(exchange: Exchange) -> Self {
        [
            exchange.t1_ns,
            exchange.t2_ns,
            exchange.t3_ns,
            exchange.t4_ns,
        ]
    }
}

/// Least one-way delays of the path between two machines, known from its construction.
///
/// An emulated link with 25 ms one way is such knowledge. Exchanges do not show which way the time was
/// spent, so without it the clocks could differ by up to 12.5 ms more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeastDelays {
    /// Least delay from the local machine to the remote one.
    pub there_ns: u64,
    /// Least delay from the remote machine to the local one.
    pub back_ns: u64,
}

/// Bounds of the offset, remote minus local clock, that follow from one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "their unit")]
pub(super) struct Bounds {
    /// The middle of the exchange, by the local clock.
    pub(super) at_ns: u64,
    /// The least that the offset can be.
    pub(super) low_ns: i128,
    /// The most that the offset can be.
    pub(super) high_ns: i128,
    /// Duration of the exchange, by the local clock.
    pub(super) took_ns: u64,
}

impl Exchange {
    /// Returns the offset, remote minus local clock, if both ways took equally long: RFC 5905 §8.
    ///
    /// The estimate is wrong by half of [`round_trip_ns`](Self::round_trip_ns) at most.
    #[must_use]
    pub fn offset_ns(&self) -> i64 {
        let twice = self.most_ns() + self.least_ns();
        i64::try_from(twice.div_euclid(2)).unwrap_or(if twice < 0 { i64::MIN } else { i64::MAX })
    }

    /// Returns the time that question and answer were on the way: RFC 5905 §8.
    ///
    /// `None` if a clock was set during the exchange: the round trip would be negative, or time went
    /// backwards on one side.
    #[must_use]
    pub fn round_trip_ns(&self) -> Option<u64> {
        let took = self.t4_ns.checked_sub(self.t1_ns)?;
        let held = self.t3_ns.checked_sub(self.t2_ns)?;
        took.checked_sub(held)
    }

    /// Returns the offsets that the exchange allows; `None` as for [`round_trip_ns`](Self::round_trip_ns), or if the
    /// round trip is shorter than the least delays.
    ///
    /// The question arrived after it left: `t2 - offset >= t1 + there`. So did the answer:
    /// `t4 >= t3 - offset + back`.
    pub(super) fn bounds(&self, least: &LeastDelays) -> Option<Bounds> {
        self.round_trip_ns()?;
        let low_ns = self.least_ns() + i128::from(least.back_ns);
        let high_ns = self.most_ns() - i128::from(least.there_ns);
        let took_ns = self.t4_ns - self.t1_ns;
        (low_ns <= high_ns).then_some(Bounds {
            at_ns: self.t1_ns + took_ns / 2,
            low_ns,
            high_ns,
            took_ns,
        })
    }

    /// Returns the offset if the question took no time, in nanoseconds.
    fn most_ns(&self) -> i128 {
        i128::from(self.t2_ns) - i128::from(self.t1_ns)
    }

    /// Returns the offset if the answer took no time, in nanoseconds.
    fn least_ns(&self) -> i128 {
        i128::from(self.t3_ns) - i128::from(self.t4_ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NO_DELAYS: LeastDelays = LeastDelays {
        there_ns: 0,
        back_ns: 0,
    };

    /// Makes an exchange that begins at local time `at` between clocks that differ by `offset`.
    fn exchange(at: u64, offset: i64, there: u64, held: u64, back: u64) -> Exchange {
        let remote = |local: u64| local.checked_add_signed(offset).unwrap();
        Exchange {
            t1_ns: at,
            t2_ns: remote(at + there),
            t3_ns: remote(at + there + held),
            t4_ns: at + there + held + back,
        }
    }

    #[test]
    fn a_symmetric_path_shows_the_offset() {
        let exchange = exchange(1_000_000, 300, 50, 7, 50);
        assert_eq!(exchange.offset_ns(), 300);
        assert_eq!(exchange.round_trip_ns(), Some(100));
    }

    #[test]
    fn a_clock_that_is_decades_off_is_no_trouble() {
        // A board without a battery begins in 1970.
        let now = 1_800_000_000_000_000_000;
        let exchange = exchange(now, -1_799_999_999_000_000_000, 50, 7, 50);
        assert_eq!(exchange.offset_ns(), -1_799_999_999_000_000_000);
        assert_eq!(
            Exchange::from([u64::MAX, 0, 0, u64::MAX]).offset_ns(),
            i64::MIN
        );
    }

    #[test]
    fn a_clock_set_in_the_middle_makes_no_exchange() {
        for stamps in [[10, 5, 6, 9], [10, 6, 5, 12], [10, 5, 9, 12]] {
            let exchange = Exchange::from(stamps);
            assert_eq!(exchange.round_trip_ns(), None, "{stamps:?}");
            assert_eq!(exchange.bounds(&NO_DELAYS), None, "{stamps:?}");
        }
    }

    #[test]
    fn json_is_an_array_of_the_four_stamps() {
        let exchange = Exchange::from([1, 2, 3, 4]);
        assert_eq!(serde_json::to_string(&exchange).unwrap(), "[1,2,3,4]");
        assert_eq!(
            serde_json::from_str::<Exchange>("[1,2,3,4]").unwrap(),
            exchange
        );
    }

    proptest! {
        #[test]
        fn the_offset_is_within_the_bounds_however_the_time_was_spent(
            offset in -1_000_000_000_i64..1_000_000_000,
            there in 0_u64..1_000_000, held in 0_u64..10_000, back in 0_u64..1_000_000,
            known in 0_u64..=100,
        ) {
            let exchange = exchange(5_000_000_000, offset, there, held, back);
            let least = LeastDelays { there_ns: there * known / 100, back_ns: back * known / 100 };
            let bounds = exchange.bounds(&least).unwrap();
            prop_assert!(bounds.low_ns <= i128::from(offset));
            prop_assert!(i128::from(offset) <= bounds.high_ns);
            prop_assert_eq!(exchange.round_trip_ns(), Some(there + back));
            prop_assert!(exchange.offset_ns().abs_diff(offset) <= (there + back).div_ceil(2));
            let more = LeastDelays { there_ns: there + back + 1, back_ns: 0 };
            prop_assert_eq!(exchange.bounds(&more), None);
        }
    }
}
