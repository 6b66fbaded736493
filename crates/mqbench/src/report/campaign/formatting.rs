//! Numbers and names, in the form that all reports share.

use mq_measure::{
    convert::float,
    stats::{Interval, KruskalWallis},
};

use super::{
    metric_values::Levels,
    model::{
        Basis, CampaignReport, ClaimReport, ClaimTest, EnergyReport, LinkConfigured, LinkMeasured,
        Point, Report,
    },
};
use crate::{
    campaign::claims::{Claim, ClaimForm, ExpectedOrder, SIGNIFICANCE},
    units::serialized_name,
};

/// Formats a number with four digits.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        size if size >= 1.0 => 3,
        _ => 4,
    };
    // Programs that read a table do not know a typographic minus sign.
    format!("{value:.digits$}")
}

/// Formats the round trips that QUIC's runs assumed before their first measurement; `None` without QUIC.
pub(super) fn initial_rtts(campaign: &CampaignReport) -> Option<String> {
    let rto = campaign.parameters.get("tcp.initial_rto_ns");
    let rto = rto.and_then(|values| values.first()?.parse().ok());
    crate::report::initial_rtts(campaign.initial_rtts_ns.iter().copied(), rto)
}

/// Formats a number for an axis, without zeros at the end.
pub(super) fn tick(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

/// Formats a probability.
pub(super) fn probability(p: f64) -> String {
    if p < 0.0001 {
        "< 0.0001".to_owned()
    } else {
        format!("{p:.4}")
    }
}

pub(super) fn range(low: f64, high: f64) -> String {
    format!("{} to {}", number(low), number(high))
}

pub(super) fn interval(point: &Point) -> Option<String> {
    Some(range(point.low?, point.high?))
}

pub(super) fn basis(of: Basis) -> &'static str {
    match of {
        Basis::Repetitions => "runs",
        Basis::Messages => "messages",
        Basis::None => "–",
    }
}

/// Formats levels, such as `loss 5%, transport quic`.
pub(super) fn levels(levels: &Levels) -> String {
    let each = levels
        .iter()
        .map(|(factor, level)| format!("{factor} {level}"));
    each.collect::<Vec<_>>().join(", ")
}

/// Puts a text in parentheses. Parentheses within it become commas: `(WiFi, 5 % loss)` for `WiFi (5 % loss)`.
pub(super) fn parenthesis(text: &str) -> String {
    let mut flat = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['(', ')']) {
        let (before, after) = rest.split_at(at);
        flat.push_str(before.trim_end());
        rest = &after[1..];
        let goes_on = rest.trim_start().starts_with(char::is_alphanumeric);
        if after.starts_with('(') && !flat.is_empty() {
            flat.push_str(", ");
        } else if after.starts_with(')') && goes_on {
            flat.push(',');
        }
    }
    format!("({flat}{rest})")
}

/// Formats the claimed value, in words.
pub(super) fn claimed_value(claim: &ClaimReport) -> String {
    let claim = &claim.claim;
    let figure = claim.figure.unwrap_or_default();
    let bound = match claim.expected {
        Some(ExpectedOrder::More) => "> ",
        Some(ExpectedOrder::Less) => "< ",
        Some(ExpectedOrder::Alike) | None => "",
    };
    match claim.form {
        ClaimForm::Relative => format!("{bound}{:+.1} %", figure * 100.0),
        ClaimForm::Ratio => format!("{bound}× {}", number(figure)),
        ClaimForm::Value => format!("{bound}{}", in_unit(figure, &claim.unit)),
        ClaimForm::Order => claim.expected.map_or_else(dash, serialized_name),
        ClaimForm::Trend => claim.direction.map_or_else(dash, serialized_name),
        ClaimForm::Differs => format!("p < {SIGNIFICANCE}"),
    }
}

/// Returns the meter of runs' energy in words, with its basis: measured or modelled.
pub(super) fn energy(of: &EnergyReport) -> String {
    let scope = of.scope.as_ref();
    let scope = scope.map_or_else(String::new, |scope| format!(": {scope}"));
    format!(
        "Energy of {} runs by {} {}{scope}.",
        of.runs,
        of.meter,
        parenthesis(&of.basis.to_string())
    )
}

/// Formats the reason of a verdict, with the remark on the claim.
pub(super) fn why_and_note(claim: &ClaimReport) -> String {
    match &claim.claim.note {
        Some(note) => format!("{}; {note}", claim.why),
        None => claim.why.clone(),
    }
}

/// Formats the measured value of a claim, with its interval, for a table.
pub(super) fn measured_value(claim: &ClaimReport) -> String {
    let ClaimReport {
        claim,
        measured,
        test,
        of,
        ..
    } = claim;
    result_of(claim, measured.as_ref(), test.as_ref(), *of)
}

/// Names the columns of a table of claims, one for each of the changes that campaigns of the set have at the end.
pub(super) fn claim_columns(changes: &[&str]) -> Vec<String> {
    let own = ["verdict", "claim", "source", "printed", "here (90 %)"];
    let beside = changes.iter().map(|changes| format!("with {changes}"));
    own.map(str::to_owned).into_iter().chain(beside).collect()
}

/// Returns the verdict by the campaign with changes, then its value; `–` if the set does not have it.
pub(super) fn verdict_with_changes(claim: &ClaimReport, changes: &str) -> String {
    let found = claim.beside.iter().find(|one| one.changes == changes);
    found.map_or_else(dash, |one| {
        let (measured, test) = (one.measured.as_ref(), one.test.as_ref());
        let result = result_of(&claim.claim, measured, test, one.of);
        format!("{}: {result}", one.verdict.label())
    })
}

/// Formats a test: its statistic, its degrees of freedom, and the p-value that its verdict follows from.
fn test_result(test: &ClaimTest) -> String {
    let KruskalWallis { h, degrees, .. } = test.kruskal_wallis;
    let p = match test.holm_p {
        p if p < 0.001 => "p < 0.001".to_owned(),
        p => format!("p = {p:.3}"),
    };
    format!("H = {h:.1}, {degrees} degrees of freedom, {p} after Holm")
}

/// Formats a number with its unit, if it has one.
fn in_unit(value: f64, unit: &str) -> String {
    match unit {
        "" => number(value),
        unit => format!("{} {unit}", number(value)),
    }
}

/// Formats what a claim was judged by: the test of a `differs`, else the measured value.
fn result_of(
    claim: &Claim,
    measured: Option<&Interval>,
    test: Option<&ClaimTest>,
    of: Basis,
) -> String {
    if let Some(test) = test {
        return test_result(test);
    }
    let Some(found) = measured else {
        return dash();
    };
    let one = |value: f64| match claim.form {
        ClaimForm::Relative => format!("{:+.1} %", value * 100.0),
        ClaimForm::Value => in_unit(value, &claim.unit),
        _ => format!("× {}", number(value)),
    };
    if of == Basis::None {
        return one(found.estimate);
    }
    format!(
        "{} ({} to {})",
        one(found.estimate),
        one(found.low),
        one(found.high)
    )
}

pub(super) fn configured(link: &LinkConfigured) -> String {
    let parts = [
        link.delay_ns
            .filter(|ns| *ns > 0)
            .map(crate::units::format_time),
        link.rate_bps.map(rate),
        link.loss
            .filter(|loss| *loss > 0.0)
            .map(|loss| format!("{} lost", share(loss))),
    ];
    let mut parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return "as it is".to_owned();
    }
    parts.extend(link.queue.as_deref().map(queue));
    parts.join(", ")
}

/// Formats a queue in words; a manifest writes `Packets(1000)`.
fn queue(text: &str) -> String {
    let parts = text.strip_suffix(')').and_then(|text| text.split_once('('));
    parts.map_or_else(
        || format!("queue {}", text.to_lowercase()),
        |(unit, size)| format!("queue {size} {}", unit.to_lowercase()),
    )
}

pub(super) fn lost(link: &LinkMeasured) -> String {
    if link.packets == 0 {
        return dash();
    }
    share(float(link.lost) / float(link.packets))
}

fn share(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn rate(bps: u64) -> String {
    let bps = float(bps);
    if bps >= 1e6 {
        format!("{} Mbit/s", number(bps / 1e6))
    } else {
        format!("{} kbit/s", number(bps / 1e3))
    }
}

/// Names the programs that resumed a set, without those of the revision that began it; `None` if no other resumed it.
pub(super) fn continued(report: &Report) -> Option<String> {
    let began = &report.manifest.program;
    let others = report.continued.iter().filter(|one| one.program != *began);
    let others: Vec<_> = others
        .map(|one| {
            let version = one.program.version.as_deref().unwrap_or("unknown");
            let revision = one.program.revision.as_deref().unwrap_or("unknown");
            format!("{version} ({revision}), {}", one.started_at)
        })
        .collect();
    (!others.is_empty()).then(|| others.join("; "))
}

/// Formats a quantity with its unit, if it has one, as an axis or a column is named.
pub(super) fn with_unit(quantity: &str, unit: &str) -> String {
    if unit.is_empty() {
        quantity.to_owned()
    } else {
        format!("{quantity} [{unit}]")
    }
}

pub(super) fn dash() -> String {
    "–".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        let all = [0.0, 0.25541, 1.5, 25.314, 635.27, 12345.6, -0.255];
        let all: Vec<_> = all.into_iter().map(number).collect();
        assert_eq!(
            all,
            ["0", "0.2554", "1.500", "25.31", "635.3", "12346", "-0.2550"]
        );
        assert_eq!(probability(1e-9), "< 0.0001");
        assert_eq!(queue("Packets(1000)"), "queue 1000 packets");
        assert_eq!(queue("Unlimited"), "queue unlimited");
        assert_eq!(rate(1_500_000), "1.500 Mbit/s");
        assert_eq!(in_unit(0.6, ""), "0.6000");
        for (text, flat) in [
            (
                "WiFi (5 % loss, bursts of 2)",
                "(WiFi, 5 % loss, bursts of 2)",
            ),
            (
                "the text (§5.1) has no number",
                "(the text, §5.1, has no number)",
            ),
            ("both (a (b)); c", "(both, a, b; c)"),
            ("(tuned)", "(tuned)"),
            ("no", "(no)"),
        ] {
            assert_eq!(parenthesis(text), flat);
        }
        assert_eq!(in_unit(25.0, "ms"), "25.00 ms");
    }
}
