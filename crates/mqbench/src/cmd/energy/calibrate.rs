//! `mqbench energy calibrate`: a profile from measured runs.

use std::path::PathBuf;

use mq_energy::{
    fit::{Fit, Run, Sign},
    profile::Term,
};

use crate::report;

/// Options of `energy calibrate`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Runs with their energy: what `energy measure --runs` wrote
    #[arg(value_name = "RUNS")]
    runs: PathBuf,
    /// Coefficients to fit, such as idle_power_uw,cpu_power_uw; by default all that the runs have data for
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = term)]
    terms: Vec<Term>,
    /// Allow negative coefficients, to see the fit without constraints
    #[arg(long)]
    plain: bool,
    /// Description of the machine
    #[arg(long, value_name = "TEXT", default_value = "the machine of these runs")]
    description: String,
}

fn term(name: &str) -> Result<Term, String> {
    let mut all = Term::ALL.into_iter();
    all.find(|term| term.name() == name).ok_or_else(|| {
        let names = Term::ALL.map(Term::name);
        format!(
            "unknown term `{name}`: expected one of {}",
            names.join(", ")
        )
    })
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    report::print(&calibrated(args)?)
}

fn calibrated(args: &Args) -> anyhow::Result<String> {
    let runs = Run::read_all(&args.runs)?;
    let terms = if args.terms.is_empty() {
        Fit::terms_in(&runs)
    } else {
        args.terms.clone()
    };
    let sign = if args.plain {
        Sign::Any
    } else {
        Sign::NonNegative
    };
    let fit = Fit::of(&runs, &terms, sign)?;
    let source = format!(
        "least squares over {} runs in {}",
        fit.runs,
        args.runs.display()
    );
    let profile = fit.profile("fitted", &args.description, &source);
    // The quality of the fit is a comment, so that the whole output is a profile.
    Ok(report::energy::fit(&fit) + &profile.to_toml())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use mq_energy::profile::{Activity, Profile};

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn calibrate(arguments: &[&str]) -> anyhow::Result<String> {
        let arguments = std::iter::once(&"calibrate").chain(arguments);
        calibrated(&Program::try_parse_from(arguments)?.args)
    }

    #[test]
    fn the_output_is_a_profile() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("runs.csv");
        for seconds in [10, 20] {
            for busy in 0..4 {
                let activity = Activity {
                    elapsed_ns: seconds * 1_000_000_000,
                    cpu_ns: seconds * busy * 500_000_000,
                    ..Activity::default()
                };
                let watts = 1.4 + 0.575 * 0.5 * f64::from(u32::try_from(busy).unwrap());
                let seconds = f64::from(u32::try_from(seconds).unwrap());
                let energy_uj = watts * 1e6 * seconds;
                Run {
                    energy_uj,
                    activity,
                }
                .append(&file)
                .unwrap();
            }
        }
        let runs = file.to_str().unwrap();
        let text = calibrate(&[runs, "--description", "my board"]).unwrap();
        assert!(text.starts_with("# "), "{text}");
        assert!(text.contains("R² 1.0"), "{text}");
        let out = folder.path().join("mine.toml");
        std::fs::write(&out, &text).unwrap();
        let profile = Profile::load(out.to_str().unwrap()).unwrap();
        assert_eq!(profile.description, "my board");
        let cpu = profile.coefficient(Term::CpuPowerUw).value;
        assert!((cpu - 575_000.0).abs() < 1.0, "{cpu}");
        let error = calibrate(&[runs, "--terms", "idle_power_uw,sent_byte_nj"]).unwrap_err();
        assert!(format!("{error:#}").contains("no run has anything of sent_byte_nj"));
        assert!(calibrate(&[runs, "--terms", "idle"]).is_err());
    }
}
