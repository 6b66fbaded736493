//! `mqbench campaign`: many runs from campaign files.

use std::{io::IsTerminal as _, path::PathBuf, time::Duration, time::Instant};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use mq_measure::manifest::Manifest;

use crate::{
    campaign::{
        file::{Campaign, Extent},
        plan,
        runner::{self, Progress},
        store::ResultSet,
    },
    report,
    sut::this_software,
};

/// Options of `campaign`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Action {
    /// Run campaigns and keep what they find
    Run {
        #[command(flatten)]
        campaigns: Campaigns,
        /// Directory for the results; it has none yet
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Say which cells campaigns have and how long they take, and run nothing
    Plan {
        #[command(flatten)]
        campaigns: Campaigns,
    },
    /// Go on with what was interrupted
    Resume {
        /// The directory with the results so far
        #[arg(value_name = "DIR")]
        out: PathBuf,
    },
    /// Say how far it is
    Status {
        /// The directory with the results so far
        #[arg(value_name = "DIR")]
        out: PathBuf,
    },
}

#[derive(clap::Args, Clone, Debug)]
struct Campaigns {
    /// Campaign files, such as profiles/campaigns/s22-fig4.toml
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Fewer messages, repetitions and levels: a look (the default)
    #[arg(long)]
    quick: bool,
    /// The papers' own numbers
    #[arg(long, conflicts_with = "quick")]
    full: bool,
}

impl Campaigns {
    fn extent(&self) -> Extent {
        if self.full {
            Extent::Full
        } else {
            Extent::Quick
        }
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Run { campaigns, out } => {
            let extent = campaigns.extent();
            let manifest = manifest(&campaigns);
            let set = ResultSet::create(&out, extent, &campaigns.files, manifest)?;
            finish(set).await
        }
        Action::Resume { out } => finish(ResultSet::reopen(&out)?).await,
        Action::Status { out } => status(&ResultSet::load(&out)?),
        Action::Plan { campaigns } => show_plan(&campaigns),
    }
}

fn manifest(campaigns: &Campaigns) -> Manifest {
    let (program, broker) = (this_software("mqbench"), this_software("mqbroker"));
    let files: Vec<_> = campaigns
        .files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    Manifest::now(program, broker, serde_json::json!({ "campaigns": files }))
}

async fn finish(mut set: ResultSet) -> anyhow::Result<()> {
    let mut progress = Shown::new();
    let ran = runner::run(&mut set, |now| progress.show(now)).await;
    progress.clear();
    ran?;
    status(&set)?;
    let directory = set.directory().display();
    report::print(&format!("results are in {directory}\n"))
}

fn status(set: &ResultSet) -> anyhow::Result<()> {
    let mut text = String::new();
    for campaign in &set.campaigns {
        let all = plan::turns(campaign).len();
        let records = set
            .records
            .iter()
            .filter(|record| record.campaign == campaign.name);
        let records: Vec<_> = records.collect();
        let disturbed = records
            .iter()
            .filter(|record| record.outcome.is_disturbed())
            .count();
        let good = records.len() - disturbed;
        let mut failed = records
            .iter()
            .filter_map(|record| record.outcome.error.as_ref());
        text.push_str(&format!(
            "{:<16} {good} of {all} runs good, {disturbed} disturbed{}\n",
            campaign.name,
            failed
                .next_back()
                .map_or_else(String::new, |error| format!("; last error: {error}"))
        ));
    }
    report::print(&text)
}

fn show_plan(campaigns: &Campaigns) -> anyhow::Result<()> {
    let mut text = String::new();
    let mut whole = Duration::ZERO;
    for file in &campaigns.files {
        let campaign = Campaign::load(file, campaigns.extent())?;
        let turns = plan::turns(&campaign);
        let expected = |turn: &plan::Turn| plan::expected(&campaign.cells[turn.cell].cell);
        let time: Duration = turns.iter().map(expected).sum();
        let longest = turns.iter().map(expected).max().unwrap_or_default();
        whole += time;
        text.push_str(&format!(
            "{:<16} {} · {}: {} cells, {} times; {} one after the other, the longest {}\n",
            campaign.name,
            campaign.source,
            campaign.title,
            campaign.cells.len(),
            campaign.repetitions,
            minutes(time),
            minutes(longest)
        ));
    }
    if campaigns.files.is_empty() {
        bail!("name a campaign file");
    }
    text.push_str(&format!(
        "{} in all, one after the other; many run side by side\n",
        minutes(whole)
    ));
    report::print(&text)
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A bar in a terminal, a line now and then in a log.
struct Shown {
    bar: Option<ProgressBar>,
    last: Option<Instant>,
}

impl Shown {
    /// Between lines of a log.
    const PAUSE: Duration = Duration::from_secs(15);

    fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            match ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self { bar, last: None }
    }

    fn show(&mut self, now: Progress) {
        let text = format!(
            "{} running, {} repeated, {} left",
            now.running,
            now.disturbed,
            minutes(now.left)
        );
        if let Some(bar) = &self.bar {
            bar.set_length(now.all as u64);
            bar.set_position(now.done as u64);
            bar.set_message(text);
        } else if self.last.is_none_or(|last| last.elapsed() > Self::PAUSE) {
            eprintln!("{} of {} runs, {text}", now.done, now.all);
            self.last = Some(Instant::now());
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
