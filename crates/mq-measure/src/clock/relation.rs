//! Conversion of times from one machine's clock to another's, if need be by way of a third.

use super::{ClockFile, ClockFit, Mapped};
use crate::Error;

/// A conversion of one clock's times to another clock, directly or by way of a third clock.
///
/// S22 §4 takes the broker's clock as the reference: publisher and subscriber each compare their clock with
/// the broker's. The relation from publisher to subscriber then has two legs, whose uncertainties add up.
#[derive(Clone, Debug)]
pub struct Relation {
    legs: Vec<Leg>,
}

#[derive(Clone, Debug)]
enum Leg {
    ToLocal(ClockFit),
    ToRemote(ClockFit),
}

impl Relation {
    /// Returns the relation from the remote clock to the local one.
    #[must_use]
    pub fn remote_to_local(fit: ClockFit) -> Self {
        Self {
            legs: vec![Leg::ToLocal(fit)],
        }
    }

    /// Returns the relation from the local clock to the remote one.
    #[must_use]
    pub fn local_to_remote(fit: ClockFit) -> Self {
        Self {
            legs: vec![Leg::ToRemote(fit)],
        }
    }

    /// Joins this relation with `other`, which follows it.
    #[must_use]
    pub fn then(mut self, other: Self) -> Self {
        self.legs.extend(other.legs);
        self
    }

    /// Returns the relation from the clock of host `from` to that of host `to`, by the comparisons that were made.
    ///
    /// The relation is direct if the two were compared with each other; else it goes by way of a third host
    /// that both were compared with.
    ///
    /// # Errors
    /// [`Error::SameHost`]; [`Error::NoRelation`]; those of [`ClockFile::fit`].
    pub fn between(measured: &[ClockFile], from: &str, to: &str) -> Result<Self, Error> {
        if from == to {
            return Err(Error::SameHost {
                host: from.to_owned(),
            });
        }
        if let Some(leg) = measured.iter().find_map(|file| leg(file, from, to)) {
            return leg;
        }
        for first in measured {
            let Some(middle) = first.other(from) else {
                continue;
            };
            let second = measured.iter().find_map(|file| leg(file, middle, to));
            if let (Some(first), Some(second)) = (leg(first, from, middle), second) {
                return Ok(first?.then(second?));
            }
        }
        let compared = measured
            .iter()
            .map(|file| format!("{} with {}", file.local.host, file.remote.host));
        Err(Error::NoRelation {
            from: from.to_owned(),
            to: to.to_owned(),
            compared: compared.collect::<Vec<_>>().join(", "),
        })
    }

    /// Converts a time of the first clock to the last, with the sum of the uncertainties.
    #[must_use]
    pub fn map(&self, at_ns: u64) -> Mapped {
        let start = Mapped {
            at_ns,
            uncertainty_ns: 0,
            extrapolated: false,
        };
        self.legs.iter().fold(start, |so_far, leg| {
            let next = match leg {
                Leg::ToLocal(fit) => fit.to_local(so_far.at_ns),
                Leg::ToRemote(fit) => fit.to_remote(so_far.at_ns),
            };
            Mapped {
                at_ns: next.at_ns,
                uncertainty_ns: so_far.uncertainty_ns.saturating_add(next.uncertainty_ns),
                extrapolated: so_far.extrapolated || next.extrapolated,
            }
        })
    }
}

/// Makes a leg from one host to the other of a comparison; `None` if it is not between these two.
fn leg(file: &ClockFile, from: &str, to: &str) -> Option<Result<Relation, Error>> {
    let (local, remote) = (file.local.host.as_str(), file.remote.host.as_str());
    if (from, to) == (remote, local) {
        Some(file.fit().map(Relation::remote_to_local))
    } else if (from, to) == (local, remote) {
        Some(file.fit().map(Relation::local_to_remote))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Assumptions, Exchange, Side};
    use super::*;

    const START: u64 = 1_800_000_000_000_000_000;

    /// Makes a comparison over a path of 50 µs each way with a clock that is `offset` ahead.
    fn file(local: &str, remote: &str, offset: u64) -> ClockFile {
        let exchanges: Vec<Exchange> = (0..50)
            .map(|i| START + i * 100_000_000)
            .map(|t| [t, t + offset + 50_000, t + offset + 60_000, t + 110_000].into())
            .collect();
        let side = |host: &str| Side {
            host: host.to_owned(),
            error_bound_ns: None,
        };
        ClockFile::new(
            side(local),
            side(remote),
            Assumptions::default(),
            50,
            exchanges,
        )
        .unwrap()
    }

    #[test]
    fn a_comparison_serves_both_directions() {
        let measured = [file("sub", "pub", 7_000_000)];
        let at = START + 2_000_000_000;
        let there = Relation::between(&measured, "pub", "sub").unwrap().map(at);
        assert!(there.at_ns.abs_diff(at - 7_000_000) < 1_000, "{there:?}");
        let back = Relation::between(&measured, "sub", "pub").unwrap();
        assert!(back.map(there.at_ns).at_ns.abs_diff(at) < 1_000);
    }

    #[test]
    fn two_comparisons_with_the_broker_relate_its_clients() {
        let measured = [
            file("pub", "broker", 7_000_000),
            file("sub", "broker", 2_000_000),
        ];
        let relation = Relation::between(&measured, "pub", "sub").unwrap();
        let at = START + 2_000_000_000;
        let mapped = relation.map(at);
        assert!(mapped.at_ns.abs_diff(at + 5_000_000) < 1_000, "{mapped:?}");
        // Half of each round trip, added up.
        assert!(
            (100_000..115_000).contains(&mapped.uncertainty_ns),
            "{mapped:?}"
        );
        assert!(!mapped.extrapolated);
        assert!(relation.map(START + 90_000_000_000).extrapolated);
    }

    #[test]
    fn hosts_without_a_comparison_are_named() {
        let measured = [file("pub", "broker", 1)];
        let error = Relation::between(&measured, "pub", "sub").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("sub") && text.contains("pub with broker"),
            "{text}"
        );
        let error = Relation::between(&measured, "pub", "pub").unwrap_err();
        assert!(matches!(error, Error::SameHost { .. }), "{error}");
    }
}
