//! Energy as text.

use mq_energy::{Basis, Energy, Note, fit::Fit};

use crate::units::{format_energy, format_power, format_time};

/// Number of gaps that are listed one by one.
const GAPS_SHOWN: usize = 5;

/// A measured energy, with its meter.
pub(crate) struct MeasuredEnergy<'a> {
    pub(crate) meter: &'a str,
    pub(crate) basis: Basis,
    pub(crate) scope: &'a str,
    pub(crate) energy: &'a Energy,
    /// The begin of the window, from which the gaps' times count.
    pub(crate) begins_ns: u64,
    /// Largest error of the meter's clock against the run's; `None` if it is not known.
    pub(crate) uncertainty_ns: Option<u64>,
    pub(crate) notes: &'a [Note],
    /// Number of delivered messages, if the user gave it.
    pub(crate) messages: Option<u64>,
}

/// Formats the energy in a few lines, with its remarks.
pub(crate) fn measured(of: &MeasuredEnergy<'_>) -> String {
    let found = of.energy;
    let mut text = format!(
        "{} ({}): {}\nenergy     {} in {}\n",
        of.meter,
        of.basis,
        of.scope,
        format_energy(found.energy_uj),
        format_time(found.covered_ns)
    );
    let mean = found
        .mean_power_uw()
        .map_or_else(|| "-".to_owned(), format_power);
    text.push_str(&format!("mean power {mean}\n"));
    if let Some(messages) = of.messages {
        let each = found.per_message_uj(messages);
        let each = each.map_or_else(|| "not known".to_owned(), format_energy);
        text.push_str(&format!("a message  {each}, of {messages}\n"));
    }
    if let Some(uncertainty_ns) = of.uncertainty_ns.filter(|ns| *ns > 0) {
        text.push_str(&format!("times      to {}\n", format_time(uncertainty_ns)));
    }
    text + &gaps(of) + &super::warnings(of.notes)
}

fn gaps(of: &MeasuredEnergy<'_>) -> String {
    let (gaps, missing) = (&of.energy.gaps, of.energy.window_ns - of.energy.covered_ns);
    if gaps.is_empty() {
        return String::new();
    }
    let shown = gaps.iter().take(GAPS_SHOWN).map(|gap| {
        let after = format_time(gap.from_ns.saturating_sub(of.begins_ns));
        format!("{} after {after}", format_time(gap.duration_ns()))
    });
    let shown: Vec<_> = shown.collect();
    let more = if gaps.len() > GAPS_SHOWN { ", ..." } else { "" };
    format!(
        "! gaps: {} of {} were not measured and are in no figure: {}{more}\n",
        format_time(missing),
        format_time(of.energy.window_ns),
        shown.join(", ")
    )
}

/// Formats the quality of a fit, as comments of a profile.
pub(crate) fn fit(fit: &Fit) -> String {
    let mut text = format!("# {} runs", fit.runs);
    if let Some(r_squared) = fit.r_squared {
        text.push_str(&format!(
            ": R² {r_squared:.4} (of the differences between the runs' mean powers)"
        ));
    }
    text.push_str(&match fit.residual_uw {
        Some(residual_uw) => format!(
            "\n# residual {} (standard error), at most {}\n#\n",
            format_power(residual_uw),
            format_power(fit.worst_uw)
        ),
        None => "\n# as many terms as runs: how well they fit cannot be said\n#\n".to_owned(),
    });
    text.push_str("# coefficient               value  standard error\n");
    for fitted in &fit.terms {
        let error = match fitted.standard_error {
            Some(error) => format!("{error:.3}"),
            None if fitted.value == 0.0 => "- (held at 0: it would be negative)".to_owned(),
            None => "-".to_owned(),
        };
        let (name, value) = (fitted.term.name(), fitted.value);
        text.push_str(&format!("# {name:<18} {value:>13.3}  {error}\n"));
    }
    if fit.terms.iter().any(|fitted| fitted.value < 0.0) {
        text.push_str(
            "# ! work gains no energy: a profile with a negative value is not accepted\n",
        );
    }
    text.push_str("#\n");
    text
}

#[cfg(test)]
mod tests {
    use mq_energy::Window;

    use super::*;

    #[test]
    fn gaps_are_shown_beside_the_energy() {
        let gap = |from: u64, to: u64| Window::new(from * 1_000_000_000, to * 1_000_000_000);
        let found = Energy {
            energy_uj: 11.2e6,
            window_ns: 10_000_000_000,
            covered_ns: 8_000_000_000,
            gaps: vec![gap(103, 104), gap(106, 107)],
        };
        let text = measured(&MeasuredEnergy {
            meter: "iio:iio:device0",
            basis: Basis::Measured,
            scope: "what flows through the sensor",
            energy: &found,
            begins_ns: 100_000_000_000,
            uncertainty_ns: Some(500_000),
            notes: &[Note::Overload { count: 2 }],
            messages: Some(1000),
        });
        let right = "\
iio:iio:device0 (measured): what flows through the sensor
energy     11.2 J in 8.00 s
mean power 1.40 W
a message  not known, of 1000
times      to 500 µs
! gaps: 2.00 s of 10.0 s were not measured and are in no figure: 1.00 s after 3.00 s, 1.00 s after 6.00 s
! 2 readings were beyond the range and are left out; choose a larger range
";
        assert_eq!(text, right);
    }

    #[test]
    fn a_modelled_energy_is_called_modelled() {
        let found = Energy {
            energy_uj: 14e6,
            window_ns: 10_000_000_000,
            covered_ns: 10_000_000_000,
            gaps: Vec::new(),
        };
        let text = measured(&MeasuredEnergy {
            meter: "model:pi-3b",
            basis: Basis::Modelled,
            scope: "Raspberry Pi 3 Model B",
            energy: &found,
            begins_ns: 0,
            uncertainty_ns: None,
            notes: &[Note::Modelled {
                profile: "pi-3b".to_owned(),
            }],
            messages: Some(1000),
        });
        assert!(
            text.starts_with("model:pi-3b (modelled, not measured): "),
            "{text}"
        );
        assert!(text.contains("a message  14.0 mJ, of 1000\n"), "{text}");
        assert!(
            text.contains("profile pi-3b: nothing measured this"),
            "{text}"
        );
    }
}
