//! Chrony's report on a clock, and the check of a measured offset against it.

use serde::{Deserialize, Serialize};

use crate::{Error, convert};

/// A line of `chronyc -c tracking`, in the parts that are used here.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tracking {
    /// NTP stratum of this machine: the number of hops to a reference clock; 0 if the clock follows nothing.
    pub stratum: u32,
    /// Absolute difference between the system's clock and the time that chrony estimates.
    pub system_offset_ns: u64,
    /// The round trip to the reference clock, all hops together.
    pub root_delay_ns: u64,
    /// The accuracy lost between the reference clock and this one.
    pub root_dispersion_ns: u64,
    /// `Normal`, `Insert second`, `Delete second` or `Not synchronised`.
    pub leap: String,
}

/// Outcome of checking a measured offset against chrony's error bounds of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case", deny_unknown_fields)]
pub enum CrossCheck {
    /// At least one of the machines has no chrony, or its chrony follows nothing.
    NotPossible,
    /// The offset is no larger than both clocks' bounds and its own uncertainty allow.
    Agrees {
        /// Sum of both clocks' greatest errors against UTC.
        bound_ns: u64,
    },
    /// The offset is larger: chrony or the measurement is wrong, or the clocks follow different references.
    Disagrees {
        /// Sum of both clocks' greatest errors against UTC.
        bound_ns: u64,
    },
}

impl Tracking {
    /// Reads the line that `chronyc -c tracking` prints: 14 fields with commas between them.
    ///
    /// # Errors
    /// [`Error::Chrony`], with what is wrong.
    pub fn parse(line: &str) -> Result<Self, Error> {
        let fields: Vec<&str> = line.trim().split(',').collect();
        let [
            _,
            _,
            stratum,
            _,
            system,
            _,
            _,
            _,
            _,
            _,
            delay,
            dispersion,
            _,
            leap,
        ] = fields[..]
        else {
            return Err(Error::Chrony {
                problem: format!("{} fields, should be 14", fields.len()),
            });
        };
        Ok(Self {
            stratum: stratum.parse().map_err(|_| Error::Chrony {
                problem: format!("stratum `{stratum}` is not a whole number"),
            })?,
            system_offset_ns: magnitude_ns(system, "system time")?,
            root_delay_ns: magnitude_ns(delay, "root delay")?,
            root_dispersion_ns: magnitude_ns(dispersion, "root dispersion")?,
            leap: leap.to_owned(),
        })
    }

    /// Returns `true` if the clock follows a server or a reference clock.
    #[must_use]
    pub fn is_synchronised(&self) -> bool {
        self.stratum > 0 && self.leap != "Not synchronised"
    }

    /// Returns the greatest error of the clock against UTC, if the reference clock is right: chrony's own bound,
    /// `|system offset| + root delay / 2 + root dispersion`. `None` if the clock follows nothing.
    #[must_use]
    pub fn error_bound_ns(&self) -> Option<u64> {
        self.is_synchronised().then(|| {
            self.system_offset_ns
                .saturating_add(self.root_delay_ns / 2)
                .saturating_add(self.root_dispersion_ns)
        })
    }
}

/// Holds a measured offset against the error bounds of both clocks.
///
/// Two clocks within their bounds of UTC are no further apart than the sum of the bounds.
#[must_use]
pub fn cross_check(
    offset_ns: i64,
    uncertainty_ns: u64,
    local_bound_ns: Option<u64>,
    remote_bound_ns: Option<u64>,
) -> CrossCheck {
    let Some((local, remote)) = local_bound_ns.zip(remote_bound_ns) else {
        return CrossCheck::NotPossible;
    };
    let bound_ns = local.saturating_add(remote);
    if offset_ns.unsigned_abs() <= bound_ns.saturating_add(uncertainty_ns) {
        CrossCheck::Agrees { bound_ns }
    } else {
        CrossCheck::Disagrees { bound_ns }
    }
}

/// Parses a number of seconds, and returns its absolute value in nanoseconds.
fn magnitude_ns(text: &str, what: &str) -> Result<u64, Error> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    let number = number.ok_or_else(|| Error::Chrony {
        problem: format!("{what} `{text}` is not a number"),
    })?;
    Ok(convert::round(number.abs() * 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line in the form that chrony 4 prints.
    const LINE: &str = "C0A8010A,192.168.1.10,3,1714560000.142413385,-0.000002036,0.000003428,\
                        0.000023000,-9.456,-0.001,0.045,0.013254000,0.001234000,64.8,Normal\n";

    #[test]
    fn the_bound_is_chronys_own() {
        let tracking = Tracking::parse(LINE).unwrap();
        assert_eq!(tracking.stratum, 3);
        assert_eq!(tracking.system_offset_ns, 2_036);
        assert_eq!(
            tracking.error_bound_ns(),
            Some(2_036 + 6_627_000 + 1_234_000)
        );
    }

    #[test]
    fn a_clock_that_follows_nothing_has_no_bound() {
        let line = "00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,\
                    1.000000000,1.000000000,0.0,Not synchronised";
        let tracking = Tracking::parse(line).unwrap();
        assert!(!tracking.is_synchronised());
        assert_eq!(tracking.error_bound_ns(), None);
    }

    #[test]
    fn anything_else_says_what_is_wrong() {
        let error = |line: &str| Tracking::parse(line).unwrap_err().to_string();
        assert!(error("506 Cannot talk to daemon").contains("1 fields, should be 14"));
        assert!(error(&LINE.replace("0.013254000", "x")).contains("root delay `x`"));
        assert!(error(&LINE.replace(",3,", ",three,")).contains("stratum `three`"));
        assert!(error(&LINE.replace("0.001234000", "NaN")).contains("dispersion `NaN`"));
    }

    #[test]
    fn an_offset_beyond_both_bounds_disagrees() {
        let check = |offset| cross_check(offset, 100, Some(1_000), Some(2_000));
        assert_eq!(check(-3_100), CrossCheck::Agrees { bound_ns: 3_000 });
        assert_eq!(check(3_101), CrossCheck::Disagrees { bound_ns: 3_000 });
        assert_eq!(check(i64::MIN), CrossCheck::Disagrees { bound_ns: 3_000 });
        assert_eq!(cross_check(0, 100, None, Some(1)), CrossCheck::NotPossible);
    }
}
