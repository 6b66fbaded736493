//! netem and tbf in the form of the kernel's messages, without a kernel: from a [`Direction`], into bytes and
//! back, as lines for `tc`, and the differences between two.

mod netem;
pub(super) mod nla;
mod restoring;
mod tbf;

pub(super) use restoring::restoring;

use std::{fmt, time::Duration};

use crate::{Direction, Error, units::nanoseconds};
pub use netem::{Netem, NetemLoss};
pub use tbf::Tbf;

/// The unit of time in the older fields of the kernel's messages.
const TICK_NS: u64 = 64;

/// Major number of the handle of a netem that this program has set; it spells MQ.
pub(super) const NETEM_MAJOR: u16 = 0x4D51;

/// Major number of the handle of the tbf behind that netem.
pub(super) const TBF_MAJOR: u16 = 0x4D52;

/// A direction of a link as queueing disciplines.
///
/// ```text
/// queue in packets:  root 4d51: netem with everything
/// queue in bytes:    root 4d51: netem with all but the rate --- 4d51:1 --- 4d52: tbf with the rate
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Shape {
    /// The netem at the root.
    pub netem: Netem,
    /// Child of the netem if the queue is in bytes and there is a rate; otherwise `None`.
    pub tbf: Option<Tbf>,
}

impl Shape {
    /// Makes the disciplines for `direction` on an interface with this MTU.
    ///
    /// # Errors
    /// If the kernel has no form of it.
    pub fn new(direction: &Direction, mtu: u32) -> Result<Self, Error> {
        let no_form = |problem: &str| Error::NoKernelForm {
            problem: problem.to_owned(),
        };
        if direction.trace.is_some() {
            return Err(no_form("a trace needs the user-space emulator"));
        }
        if !direction.changes.is_empty() {
            return Err(no_form("a link that changes needs the user-space emulator"));
        }
        if direction.jitter > netem::LONGEST_JITTER {
            return Err(no_form("its netem varies a delay by 2.147s at most"));
        }
        let bytes = direction.queue_bytes();
        let tbf = match (bytes, direction.rate) {
            (Some(limit), Some(rate)) => Some(Tbf::new(rate, limit, mtu).map_err(no_form)?),
            _ => None,
        };
        let netem = Netem::new(direction, tbf.is_some()).map_err(no_form)?;
        Ok(Self { netem, tbf })
    }

    /// Formats the lines for a shell that set these disciplines.
    #[must_use]
    pub fn commands(&self, interface: &str) -> Vec<String> {
        let mut lines = vec![
            format!("ip link set dev {interface} gso_max_segs 1"),
            format!(
                "tc qdisc add dev {interface} root handle {NETEM_MAJOR:x}: {}",
                self.netem
            ),
        ];
        lines.extend(self.tbf.as_ref().map(|tbf| {
            format!(
                "tc qdisc add dev {interface} parent {NETEM_MAJOR:x}:1 handle {TBF_MAJOR:x}: {tbf}"
            )
        }));
        lines
    }

    /// Returns the median time of frames of so many bytes while nothing else is under way. An idle tbf takes no time.
    #[must_use]
    pub fn median_delay(&self, bytes: u64) -> Duration {
        let netem = &self.netem;
        let table = netem.distribution.table().unwrap_or_default();
        // Uniform jitter has its middle at the delay.
        let quantile = table.get(table.len() / 2).map_or(0.0, |at| f64::from(*at));
        let jitter = netem.jitter.as_secs_f64() * quantile / 8192.0;
        let delay = (netem.delay.as_secs_f64() + jitter).max(0.0);
        let sending = match netem.rate {
            0 => Duration::ZERO,
            rate => Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate),
        };
        Duration::from_secs_f64(delay) + sending
    }

    /// Returns the differences of `found` from this shape. The distribution of the jitter is not compared, because the
    /// kernel does not return it.
    #[must_use]
    pub fn differences(&self, found: &Self) -> Vec<Difference> {
        let mut differences = self.netem.differences(&found.netem);
        let name = |tbf: &Option<Tbf>| match tbf {
            Some(tbf) => tbf.to_string(),
            None => "none".to_owned(),
        };
        match (&self.tbf, &found.tbf) {
            (Some(tbf), Some(found)) => differences.extend(tbf.differences(found)),
            (None, None) => {}
            (configured, found) => differences.push(Difference {
                what: "the tbf behind netem",
                configured: name(configured),
                found: name(found),
            }),
        }
        differences
    }
}

/// Difference in one quantity between the settings made and those read from the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Difference {
    /// Name of the quantity.
    pub what: &'static str,
    /// The value that was set.
    pub configured: String,
    /// The value that was read.
    pub found: String,
}

impl Difference {
    /// Compares a configured value with a found one; `None` if they do not differ.
    fn between<T: PartialEq>(
        what: &'static str,
        configured: &T,
        found: &T,
        show: impl Fn(&T) -> String,
    ) -> Option<Self> {
        (configured != found).then(|| Self {
            what,
            configured: show(configured),
            found: show(found),
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {} instead of {}",
            self.what, self.found, self.configured
        )
    }
}

/// Returns the settings that no link makes as a list in words, `nothing` if there are none.
fn listed(others: &Vec<&'static str>) -> String {
    if others.is_empty() {
        "nothing".to_owned()
    } else {
        others.join(", ")
    }
}

/// Converts a time to ticks, rounded down as `tc` does.
fn ticks(time: Duration) -> u64 {
    nanoseconds(time) / TICK_NS
}

/// Formats a time as `tc` reads and a person writes it.
fn time(time: Duration) -> String {
    let ns = nanoseconds(time);
    #[expect(clippy::cast_precision_loss, reason = "a minute at most")]
    match ns {
        ns if ns % 1_000 != 0 => format!("{ns}ns"),
        ns if ns < 1_000_000 => format!("{}us", ns / 1_000),
        ns => format!("{}ms", ns as f64 / 1e6),
    }
}

/// Formats a rate in bytes a second as bits, as `tc` does.
fn rate(bytes_per_second: u64) -> String {
    crate::Rate::from_bits_per_second(bytes_per_second.saturating_mul(8))
        .map_or_else(|| "none".to_owned(), |rate| rate.to_string())
}

/// Formats in percent a probability that the kernel has as a share of 2^32 - 1.
fn percent(share: u32) -> String {
    let percent = f64::from(share) / f64::from(u32::MAX) * 100.0;
    // 2^-32 is 0.00000002 %.
    let text = format!("{percent:.7}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}%")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Link;

    fn shape(link: &str) -> Shape {
        Shape::new(&Link::load(link).unwrap().up, 1500).unwrap()
    }

    #[test]
    fn every_shipped_link_but_those_with_changes_or_a_trace_has_a_kernel_form_that_comes_back() {
        let error = Shape::new(&Link::load("leo").unwrap().up, 1500).unwrap_err();
        assert!(error.to_string().contains("a link that changes"), "{error}");
        let error = Shape::new(&Link::load("umts").unwrap().up, 1500).unwrap_err();
        assert!(error.to_string().contains("a trace"), "{error}");
        let is_constant = |name: &&str| {
            let up = Link::load(name).unwrap().up;
            up.changes.is_empty() && up.trace.is_none()
        };
        for name in Link::shipped().filter(is_constant) {
            for changes in ["", "@loss=5%", "@duplicate=1%,corrupt=0.3%"] {
                let link = Link::load(&format!("{name}{changes}")).unwrap();
                for direction in [link.up, link.down] {
                    let shape = Shape::new(&direction, 1500).unwrap();
                    let back = Shape {
                        netem: Netem::decode(&shape.netem.encode()).unwrap(),
                        tbf: shape
                            .tbf
                            .as_ref()
                            .map(|tbf| Tbf::decode(&tbf.encode()).unwrap()),
                    };
                    assert_eq!(shape.differences(&back), [], "{name}");
                }
            }
        }
    }

    #[test]
    fn the_queue_decides_between_netem_and_tbf() {
        let s22 = shape("s22/wifi@loss=5%");
        assert_eq!(
            s22.commands("eth0"),
            [
                "ip link set dev eth0 gso_max_segs 1",
                "tc qdisc add dev eth0 root handle 4d51: netem limit 1000 delay 25ms loss 5% \
                 rate 20mbit",
            ]
        );
        let w20 = shape("w20/wifi");
        assert_eq!(
            w20.commands("eth0")[1..],
            [
                "tc qdisc add dev eth0 root handle 4d51: netem limit 14541 delay 12.5ms",
                "tc qdisc add dev eth0 parent 4d51:1 handle 4d52: tbf rate 20mbit burst 1514 \
                 limit 62500",
            ]
        );
        let names: Vec<_> = s22.differences(&w20).iter().map(|d| d.what).collect();
        assert_eq!(
            names,
            ["limit", "delay", "loss", "rate", "the tbf behind netem"]
        );
    }

    #[test]
    fn a_trace_and_too_large_values_have_no_kernel_form() {
        let link: Link = "description = \"\"\n[up]\ndelay = \"5s\"\njitter = \"3s\""
            .parse()
            .unwrap();
        let error = Shape::new(&link.up, 1500).unwrap_err().to_string();
        assert!(error.contains("2.147s"), "{error}");
        let traced = Direction {
            trace: Some("1\n".parse().unwrap()),
            ..Direction::default()
        };
        let error = Shape::new(&traced, 1500).unwrap_err().to_string();
        assert!(error.contains("needs the user-space emulator"), "{error}");
        for (rate, queue) in [
            ("5bit", "100p"),
            ("20bit", "1000B"),
            ("10mbit", "9999999999B"),
        ] {
            let link = format!("description = \"\"\n[up]\nrate = \"{rate}\"\nqueue = \"{queue}\"");
            let link: Link = link.parse().unwrap();
            let error = Shape::new(&link.up, 1500).unwrap_err();
            assert!(matches!(error, Error::NoKernelForm { .. }), "{error}");
        }
    }

    #[test]
    fn the_median_has_the_frames_own_time_where_netem_has_the_rate() {
        let median = |link| shape(link).median_delay(98);
        assert_eq!(median("s22/wifi"), Duration::from_nanos(25_039_200));
        assert_eq!(median("w20/wifi"), Duration::from_micros(12_500));
        let pareto = median("s22/cellular@jitter=10ms,distribution=pareto");
        let expected = Duration::from_micros(100_000 - 3_204 + 78);
        assert!(
            pareto.abs_diff(expected) < Duration::from_micros(20),
            "{pareto:?}"
        );
    }

    #[test]
    fn quantities_are_written_as_tc_reads_them() {
        assert_eq!(time(Duration::from_micros(12_500)), "12.5ms");
        assert_eq!(time(Duration::from_micros(500)), "500us");
        assert_eq!(time(Duration::from_nanos(1_001)), "1001ns");
        assert_eq!(time(Duration::from_secs(1)), "1000ms");
        assert_eq!(time(Duration::ZERO), "0us");
        assert_eq!(percent(u32::MAX), "100%");
        assert_eq!(percent(214_748_365), "5%");
        assert_eq!(percent(0), "0%");
    }
}
