//! `mqbench report`: what a result set says, as a page, a table, or data.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::{
    campaign::{claims, store::ResultSet},
    report::{self, campaign},
};

/// Options of `report`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The directory that `mqbench campaign` wrote
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// File to write; a page goes to DIR/report.html by default, all else to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Tables and verdicts as Markdown instead of a page
    #[arg(long, conflicts_with_all = ["csv", "json"])]
    markdown: bool,
    /// Every metric of every run, a line each, instead of a page
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// The whole report as JSON (docs/spec/report.schema.json) instead of a page
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
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
    let text = if args.csv {
        campaign::csv(&set.campaigns, &set.records)
    } else if args.markdown {
        campaign::markdown(&make()?)
    } else if args.json {
        serde_json::to_string_pretty(&make()?).context("cannot write JSON")? + "\n"
    } else {
        let out = args
            .out
            .clone()
            .unwrap_or_else(|| args.directory.join("report.html"));
        write(&out, &campaign::page(&make()?))?;
        return report::print(&format!("{}\n", out.display()));
    };
    match &args.out {
        Some(out) => write(out, &text),
        None => report::print(&text),
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
