//! `mqbench report`: a result set as a page, tables, or data.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use mq_measure::{
    LatencyRecorder, Samples,
    result::{RunResult, TransportResult},
};

use crate::{
    campaign::{claims, store::ResultSet},
    report::{self, campaign},
};

/// Options of `report`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The directory that `mqbench campaign` or `mqbench compare --out` wrote
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Another directory: print a table of its differences from the first, as Markdown, instead of a page
    #[arg(value_name = "DIR", conflicts_with_all = ["markdown", "csv", "json", "svg"])]
    other: Option<PathBuf>,
    /// File to write; a page goes to DIR/report.html by default, all else to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Tables and verdicts as Markdown instead of a page
    #[arg(long, conflicts_with_all = ["csv", "json", "svg"])]
    markdown: bool,
    /// Every metric of every run, a line each, instead of a page
    #[arg(long, conflicts_with_all = ["json", "svg"])]
    csv: bool,
    /// The whole report as JSON (docs/spec/report.schema.json) instead of a page
    #[arg(long, conflicts_with = "svg")]
    json: bool,
    /// Directory for an SVG file of each figure instead of a page
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let compared = args.directory.join("result.json");
    if compared.is_file() {
        return of_comparison(args, &compared);
    }
    let set = ResultSet::load(&args.directory)?;
    let make = || -> anyhow::Result<_> {
        let claims = claims::shipped()?;
        Ok(campaign::report(
            &set.head,
            &set.campaigns,
            &set.records,
            &claims,
        ))
    };
    if let Some(folder) = &args.svg {
        return figures(folder, &make()?);
    }
    let text = if let Some(other) = &args.other {
        campaign::difference(&set, &ResultSet::load(other)?)
    } else if args.csv {
        campaign::csv(&set.campaigns, &set.records)
    } else if args.markdown {
        campaign::markdown(&make()?)
    } else if args.json {
        report::pretty_json(&make()?)?
    } else {
        let out = args
            .out
            .clone()
            .unwrap_or_else(|| args.directory.join("report.html"));
        let late = report::explain::sections(&set);
        write(&out, &campaign::page(&make()?, &late))?;
        return report::print(&format!("{}\n", out.display()));
    };
    match &args.out {
        Some(out) => write(out, &text),
        None => report::print(&text),
    }
}

/// Prints the result of `mqbench compare --out` in the form of that command.
fn of_comparison(args: &Args, path: &Path) -> anyhow::Result<()> {
    if args.other.is_some() || args.markdown || args.csv || args.json || args.svg.is_some() {
        bail!(
            "{} is of `mqbench compare`: it has its table, without options; its data is beside it",
            args.directory.display()
        );
    }
    let result = RunResult::load(path)?;
    let of = |transport: &TransportResult| {
        let samples = format!("samples-{}.csv", transport.transport);
        let samples = Samples::load(&args.directory.join(samples))?;
        let mut recorder = LatencyRecorder::new();
        recorder.extend(samples.latencies_intended_ns());
        Ok(recorder)
    };
    let recorders = result.transports.iter().map(of);
    let recorders = recorders.collect::<anyhow::Result<Vec<_>>>()?;
    let text = report::compare::whole(&result, &recorders);
    match &args.out {
        Some(out) => write(out, &text),
        None => report::print(&text),
    }
}

/// Writes a file for each figure, and prints their names.
fn figures(folder: &Path, report: &campaign::Report) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for one in &report.campaigns {
        for panel in &one.panels {
            let (name, text) = campaign::svg(one, panel);
            let path = folder.join(name);
            write(&path, &text)?;
            report::print(&format!("{}\n", path.display()))?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    fn run_with(arguments: &[&str]) -> anyhow::Result<()> {
        let arguments = std::iter::once(&"report").chain(arguments);
        run(&Program::try_parse_from(arguments)?.args)
    }

    #[test]
    fn each_form_is_written_where_it_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let set = campaign::tests::fixture::set(folder.path());
        let results = set.directory().to_str().unwrap();
        let out = folder.path().join("out");
        let out = out.to_str().unwrap();
        let written = || std::fs::read_to_string(out).unwrap();
        run_with(&[results]).unwrap();
        assert!(set.directory().join("report.html").is_file());
        run_with(&[results, "--out", out, "--markdown"]).unwrap();
        assert!(written().starts_with("# MQTT over"));
        run_with(&[results, "--out", out, "--csv"]).unwrap();
        assert!(written().starts_with("campaign,"));
        run_with(&[results, results, "--out", out]).unwrap();
        assert!(written().contains("no difference"));
        run_with(&[results, "--out", out, "--json"]).unwrap();
        assert!(written().contains("\"mq-report/1\""));
        let figures = folder.path().join("figures");
        run_with(&[results, "--svg", figures.to_str().unwrap()]).unwrap();
        assert_eq!(std::fs::read_dir(&figures).unwrap().count(), 4);
    }

    #[test]
    fn mistakes_are_reported_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let error = run_with(&[folder.path().to_str().unwrap()]).unwrap_err();
        assert!(format!("{error:#}").contains("no results in "), "{error:#}");
        assert!(run_with(&["results", "--csv", "--json"]).is_err());
    }
}
