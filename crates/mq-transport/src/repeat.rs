//! Repetition of small QUIC datagrams before their loss is known.

use std::{fmt, num::NonZeroU8, str::FromStr, time::Duration};

use crate::Error;

/// Policy by which QUIC sends small datagrams again before anything shows that they were lost.
///
/// A client that sends one small message and then is silent has no later packet whose acknowledgement would
/// show the loss. The message is late by the probe time-out and, with quinn 0.11, by a round trip more, since its
/// probe carries no data. With this option the socket sends the very same bytes once more after a gap. The peer's
/// QUIC takes the first of the two and drops the other, which has the same packet number (RFC 9000 §12.3). So
/// this needs no agreement with the peer.
///
/// In the handshake there is one copy more than said here, since a loss there costs a time-out that rests on no
/// measurement.
///
/// Only single datagrams with data of a *thin* flow are sent again: of at most 512 bytes, or any size during the
/// handshake; while the congestion window has room for all that is under way. Acknowledgements alone are not, and
/// nor are batches for the kernel to split (GSO). A server sends nothing again to an address that is not validated
/// (RFC 9000 §8), which on a first connection it is when the handshake ends.
///
/// As text: `off`, `auto`, `probe`, `GAP` or `GAP,COPIES`, where `GAP` is a time such as `3ms` or a share of
/// the smoothed round-trip time such as `rtt/4`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Repeat {
    /// No copies: only the loss recovery of QUIC itself sends again.
    #[default]
    Off,
    /// A single copy after an eighth of the smoothed round-trip time, at least 2 ms and at most 20 ms. No copy while
    /// the path shows congestion (the smoothed round-trip time is 25 ms above twice its minimum of the last minute,
    /// or an ECN mark came back within ten round trips), while half of the congestion window is in flight, or while 4
    /// copies wait. All copies together take at most a quarter of a congestion window in a round trip.
    Auto,
    /// A single copy after the probe timeout (RFC 9002 §6.2.1), unless an acknowledgement has arrived: the effect of
    /// a probe that carries data. For measurements.
    Probe,
    /// Copies after fixed gaps.
    After {
        /// Time from the datagram to its first copy, and from each copy to the next.
        gap: Gap,
        /// Number of copies, 1 to 3.
        copies: NonZeroU8,
    },
}

/// A time, or a share of the smoothed round-trip time. As text: `3ms`, `500us`, `rtt/4`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gap {
    /// A fixed time.
    Time(Duration),
    /// The smoothed round-trip time, divided by this number.
    RoundTrip(NonZeroU8),
}

/// The most copies of one datagram.
const MOST_COPIES: u8 = 3;

/// The longest gap: longer than any probe time-out on Earth.
const LONGEST_GAP: Duration = Duration::from_secs(10);

impl Repeat {
    /// Sends a single copy of each datagram after this time.
    #[must_use]
    pub fn after(gap: Duration) -> Self {
        let gap = Gap::Time(gap);
        let copies = NonZeroU8::MIN;
        Self::After { gap, copies }
    }
}

impl fmt::Display for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Probe => f.write_str("probe"),
            Self::After { gap, copies } if *copies == NonZeroU8::MIN => gap.fmt(f),
            Self::After { gap, copies } => write!(f, "{gap},{copies}"),
        }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) if time.subsec_micros() % 1000 != 0 => {
                write!(f, "{}us", time.as_micros())
            }
            Self::Time(time) => write!(f, "{}ms", time.as_millis()),
            Self::RoundTrip(part) => write!(f, "rtt/{part}"),
        }
    }
}

impl FromStr for Repeat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "off" => return Ok(Self::Off),
            "auto" => return Ok(Self::Auto),
            "probe" => return Ok(Self::Probe),
            _ => {}
        }
        let invalid = || Error::InvalidOption {
            option: "repeat",
            value: format!("`{text}`"),
            remedy: format!(
                "use one of off, auto, probe, or a gap such as 3ms or rtt/4, then perhaps the number \
                 of copies, 1 to {MOST_COPIES}, as in 3ms,2"
            ),
        };
        let (gap, copies) = text.split_once(',').unwrap_or((text, "1"));
        let copies = copies.trim().parse().ok();
        let copies = copies.filter(|copies: &NonZeroU8| copies.get() <= MOST_COPIES);
        let (Some(gap), Some(copies)) = (read_gap(gap.trim()), copies) else {
            return Err(invalid());
        };
        Ok(Self::After { gap, copies })
    }
}

fn read_gap(text: &str) -> Option<Gap> {
    if let Some(part) = text.strip_prefix("rtt/") {
        return part.parse().ok().map(Gap::RoundTrip);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number = number.parse().ok()?;
    let time = match unit.trim_start() {
        "us" | "µs" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return None,
    };
    (!time.is_zero() && time <= LONGEST_GAP).then_some(Gap::Time(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        for text in [
            "off", "auto", "probe", "3ms", "500us", "1500us", "2000ms", "rtt/4", "3ms,2", "rtt/8,3",
        ] {
            assert_eq!(text.parse::<Repeat>().unwrap().to_string(), text);
        }
        let three = Repeat::after(Duration::from_millis(3));
        assert_eq!("3 ms , 1".parse::<Repeat>().unwrap(), three);
    }

    #[test]
    fn a_mistake_is_answered_with_what_is_allowed() {
        for text in [
            "",
            "on",
            "3",
            "ms",
            "-3ms",
            "0ms",
            "11s",
            "3ms,0",
            "3ms,4",
            "3ms,",
            "rtt/0",
            "rtt",
            "99999999999999999999ms",
        ] {
            let error = text.parse::<Repeat>().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "repeat cannot be `{text}`: use one of off, auto, probe, or a gap such as 3ms or rtt/4, then \
                     perhaps the number of copies, 1 to 3, as in 3ms,2"
                )
            );
        }
    }
}
