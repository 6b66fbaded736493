//! The context of the runs: links, meters, warnings, and repeated attempts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::model::{
    EnergyReport, LinkConfigured, LinkMeasured, LinkReport, RepeatedAttempts, WarningFound,
    WarningReport,
};
use crate::{
    campaign::{record::Record, transport_parameters::TransportParameters},
    meter,
    units::json_text,
};

/// Returns the parameters of the transports, by their names in the records, with every value that a run has. Runs of an
/// earlier version did not record them: `unknown`.
pub(crate) fn parameters(runs: &[&Record]) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // A campaign has thousands of runs, and a few stacks.
    let mut stacks: Vec<Option<&TransportParameters>> = Vec::new();
    for run in runs {
        let stack = run.outcome.transport_parameters.as_ref();
        if !stacks.contains(&stack) {
            stacks.push(stack);
        }
    }
    for stack in stacks {
        match stack {
            Some(stack) => {
                let stack = serde_json::to_value(stack).unwrap_or_default();
                flatten("", &stack, &mut all);
            }
            None => add_value("all", "unknown", &mut all),
        }
    }
    all
}

/// Returns the round-trip times that QUIC assumed before its first measurement.
pub(crate) fn initial_rtts(runs: &[&Record]) -> BTreeSet<u64> {
    runs.iter().filter_map(|run| run.initial_rtt_ns()).collect()
}

fn flatten(name: &str, value: &Value, all: &mut BTreeMap<String, BTreeSet<String>>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let dot = if name.is_empty() { "" } else { "." };
                flatten(&format!("{name}{dot}{field}"), value, all);
            }
        }
        Value::Array(items) => {
            let items = items.iter().map(json_text).collect::<Vec<_>>();
            add_value(name, &items.join(", "), all);
        }
        Value::String(word) => add_value(name, word, all),
        other => add_value(name, &other.to_string(), all),
    }
}

fn add_value(name: &str, value: &str, all: &mut BTreeMap<String, BTreeSet<String>>) {
    let values = all.entry(name.to_owned()).or_default();
    values.insert(value.to_owned());
}

/// Lists every direction of every link, once for each configuration, with the sum of its runs' measurements.
pub(crate) fn links(runs: &[&Record]) -> Vec<LinkReport> {
    let mut all: Vec<LinkReport> = Vec::new();
    for run in runs {
        let link = &run.outcome.link;
        let configured = link.configured.as_ref().and_then(Value::as_array);
        let measured = link.measured.as_ref().and_then(Value::as_array);
        for one in configured.into_iter().flatten() {
            let same = |other: &&Value| other["of"] == one["of"];
            let found = measured.into_iter().flatten().find(same);
            let found = found.unwrap_or(&Value::Null);
            if one["of"] == "medium" {
                add(&mut all, channel(one, found));
            }
            for direction in ["up", "down"] {
                if one[direction].is_object() {
                    add(&mut all, of_direction(one, found, direction));
                }
            }
        }
    }
    all
}

/// Adds a direction to the one with the same configuration, or as a new one.
fn add(all: &mut Vec<LinkReport>, new: LinkReport) {
    let alike = |old: &&mut LinkReport| {
        (&old.of, &old.name, &old.direction, &old.configured)
            == (&new.of, &new.name, &new.direction, &new.configured)
    };
    let Some(old) = all.iter_mut().find(alike) else {
        all.push(new);
        return;
    };
    old.runs += 1;
    let measured = &mut old.measured;
    measured.packets += new.measured.packets;
    measured.lost += new.measured.lost;
    measured.overflowed += new.measured.overflowed;
    measured.lateness_p99_ns = measured.lateness_p99_ns.max(new.measured.lateness_p99_ns);
}

fn of_direction(configured: &Value, measured: &Value, direction: &str) -> LinkReport {
    let (is, was) = (&configured[direction], &measured[direction]);
    LinkReport {
        of: json_text(&configured["of"]),
        name: json_text(&configured["name"]),
        direction: direction.to_owned(),
        runs: 1,
        configured: LinkConfigured {
            delay_ns: is["delay_ns"].as_u64(),
            rate_bps: is["rate_bps"]
                .as_u64()
                .or_else(|| is["trace_mean_bps"].as_u64()),
            queue: is["queue"].as_str().map(str::to_owned),
            loss: is["mean_loss"].as_f64(),
        },
        measured: LinkMeasured {
            packets: number(&was["packets"]),
            lost: number(&was["lost"]),
            overflowed: number(&was["overflowed"]),
            lateness_p99_ns: was["lateness_p99_ns"].as_u64(),
        },
    }
}

/// Adds up all stations of a medium; damaged transmissions count as lost.
fn channel(configured: &Value, measured: &Value) -> LinkReport {
    let stations = measured["stations"].as_array();
    let sum = |key: &str| {
        let stations = stations.into_iter().flatten();
        stations.map(|station| number(&station[key])).sum::<u64>()
    };
    let retries = configured["retries"].as_u64().unwrap_or(0);
    LinkReport {
        of: "medium".to_owned(),
        name: json_text(&configured["name"]),
        direction: "all".to_owned(),
        runs: 1,
        configured: LinkConfigured {
            delay_ns: None,
            rate_bps: configured["rate_bps"].as_u64(),
            queue: Some(format!(
                "{}, {retries} retries",
                json_text(&configured["queue"])
            )),
            loss: configured["frame_error_rate"].as_f64(),
        },
        measured: LinkMeasured {
            packets: sum("arrived"),
            lost: sum("lost"),
            overflowed: sum("overflowed"),
            lateness_p99_ns: measured["lateness_p99_ns"].as_u64(),
        },
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Lists every meter, in the order of their names.
pub(crate) fn energy(runs: &[&Record]) -> Vec<EnergyReport> {
    let mut all: BTreeMap<&str, EnergyReport> = BTreeMap::new();
    for run in runs {
        let Some(meter) = &run.outcome.energy_meter else {
            continue;
        };
        let reading = run.outcome.energy_reading.as_ref();
        let entry = all.entry(meter).or_insert_with(|| EnergyReport {
            meter: meter.clone(),
            basis: meter::basis(meter),
            scope: reading.map(|reading| reading.scope.clone()),
            runs: 0,
        });
        entry.runs += 1;
    }
    all.into_values().collect()
}

/// Counts all warnings by their kinds, the most frequent first.
pub(crate) fn warnings(runs: &[&Record]) -> Vec<WarningReport> {
    let mut kinds: BTreeMap<String, WarningReport> = BTreeMap::new();
    for run in runs {
        let mut seen = Vec::new();
        let warnings = run.outcome.warnings.iter().map(|warning| {
            let value = serde_json::to_value(warning).unwrap_or_default();
            (json_text(&value["kind"]), warning.to_string())
        });
        let error = run.outcome.error.iter();
        let error = error.map(|error| ("error".to_owned(), error.clone()));
        for (kind, says) in warnings.chain(error) {
            let entry = kinds.entry(kind.clone()).or_insert_with(|| WarningReport {
                kind: kind.clone(),
                runs: 0,
                found: Vec::new(),
            });
            entry.runs += usize::from(!seen.contains(&kind));
            entry.found.push(WarningFound {
                levels: run.levels.clone(),
                repetition: run.repetition,
                says,
            });
            seen.push(kind);
        }
    }
    let mut all: Vec<_> = kinds.into_values().collect();
    all.sort_by_key(|warning| std::cmp::Reverse(warning.runs));
    all
}

pub(crate) fn repeated(runs: &[&Record]) -> Vec<RepeatedAttempts> {
    let attempt = |run: &&Record| RepeatedAttempts {
        levels: run.levels.clone(),
        repetition: run.repetition,
        attempt: run.attempt,
        warnings: run.outcome.warnings.clone(),
        error: run.outcome.error.clone(),
    };
    runs.iter().map(attempt).collect()
}

#[cfg(test)]
mod tests {
    use mq_transport::{CryptoOptions, QuicOptions};

    use super::*;
    use crate::campaign::{cell::Cell, record::Outcome};

    fn run(stack: Option<TransportParameters>) -> Record {
        let outcome = Outcome {
            transport_parameters: stack,
            ..Outcome::default()
        };
        Record::of(Cell::default(), outcome)
    }

    #[test]
    fn parameters_that_a_record_does_not_have_are_unknown() {
        let quic = QuicOptions {
            initial_window: Some(32),
            ..QuicOptions::default()
        };
        let stack = |quic| TransportParameters::of(&CryptoOptions::default(), quic, None, None);
        let runs = [
            run(None),
            run(Some(stack(&quic))),
            run(Some(stack(&QuicOptions::default()))),
        ];
        let all = parameters(&runs.iter().collect::<Vec<_>>());
        let values = |name: &str| all[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(values("all"), ["unknown"]);
        assert_eq!(values("quic.initial_rtt_ns"), ["333000000"]);
        assert_eq!(values("quic.initial_window_bytes"), ["12000", "38400"]);
        assert_eq!(values("key_exchange_groups"), ["x25519"]);
        assert!(all.keys().all(|name| !name.starts_with('.')));
    }
}
