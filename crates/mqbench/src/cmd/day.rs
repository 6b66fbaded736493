//! `mqbench day`: what each transport costs a device over a day.

use std::{fs, path::PathBuf};

use anyhow::Context as _;

use crate::{
    campaign::store::ResultSet,
    report::{
        self,
        campaign::{self, Day},
    },
};

/// Options of `day`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// File of a device's day, such as profiles/day/tracker.toml: how often it wakes, publishes while it stays connected, and
    /// changes its network
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    /// Directory with the runs of profiles/campaigns/day.toml, which `mqbench campaign run` wrote
    #[arg(long, value_name = "DIR")]
    runs: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let file = args.profile.display();
    let text = fs::read_to_string(&args.profile).with_context(|| format!("cannot read {file}"))?;
    let day: Day =
        toml::from_str(&text).with_context(|| format!("{file} is not a device's day"))?;
    let set = ResultSet::load(&args.runs)?;
    report::print(&campaign::day(&set, &day)?)
}
