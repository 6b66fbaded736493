//! `mqbench campaign`: many runs from campaign files.

use std::{
    collections::BTreeMap,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::bail;
use indicatif::ProgressBar;
use mq_client::Reconnect;
use mq_energy::profile::Profile;
use mq_measure::manifest::Manifest;
use mq_transport::ConnectOptions;

#[cfg(target_os = "linux")]
use crate::lab::remote::RemoteHosts;
use crate::{
    campaign::{
        artifacts::Artifact,
        file::{Campaign, Extent},
        run_counts::RunCounts,
        store::ResultSet,
    },
    clock::nanoseconds,
    hosts::Hosts,
    lab::{
        backend::Backend,
        local::EnergySource,
        plan,
        queue::{MissingRuns, QueuedRun},
        runner::{self, CampaignProgress},
    },
    meter::{self, ConfiguredMeter, MeterSettings, MeterSpec},
    mqtt::{MqttOptions, probe_parameters},
    report,
    this_program::this_software,
};

/// Commands of `campaign`.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum Action {
    /// Run campaigns and keep what they find
    Run {
        #[command(flatten)]
        campaigns: CampaignArgs,
        /// Directory for the results; it has none yet
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        #[command(flatten)]
        testbed: BackendArgs,
    },
    /// Say which cells campaigns have and how long they take, and run nothing
    Plan {
        #[command(flatten)]
        campaigns: CampaignArgs,
        /// Real machines: say which does what, and what they cannot do
        #[arg(long, value_name = "FILE")]
        hosts: Option<PathBuf>,
    },
    /// Resume an interrupted set of results
    Resume {
        /// The directory with the results so far
        #[arg(value_name = "DIR")]
        out: PathBuf,
        #[command(flatten)]
        testbed: BackendArgs,
    },
    /// Print the counts of good, disturbed and missing runs, and the last error
    Status {
        /// The directory with the results so far
        #[arg(value_name = "DIR")]
        out: PathBuf,
    },
}

/// Machines that runs take place on, and the source of their energy. Runs take place on this machine unless there are
/// hosts.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct BackendArgs {
    #[arg(
        long,
        value_name = "METER",
        default_value = "model",
        help = format!("What the energy of runs is from: {}", MeterSpec::HELP)
    )]
    meter: MeterSpec,
    /// The supply's voltage, for a multimeter
    #[arg(long, value_name = "VOLT")]
    volts: Option<f64>,
    /// The current that has to fit into a multimeter's range [default: 3]
    #[arg(long, value_name = "AMPERE")]
    amps: Option<f64>,
    /// Keep of each run, in DIR: samples, the times of each message; pcap, the packets of each host
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    keep: Vec<Artifact>,
    /// Run on real machines over ssh. Their file names the meter
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["meter", "volts", "amps", "keep"])]
    hosts: Option<PathBuf>,
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    ssh: super::hosts::SshArgs,
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct CampaignArgs {
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

impl CampaignArgs {
    fn extent(&self) -> Extent {
        if self.full {
            Extent::Full
        } else {
            Extent::Quick
        }
    }
}

pub(crate) async fn run(action: Action) -> anyhow::Result<()> {
    match action {
        Action::Run {
            campaigns,
            out,
            testbed,
        } => {
            let extent = campaigns.extent();
            let manifest = manifest(&campaigns.files);
            let set = ResultSet::create(&out, extent, &campaigns.files, manifest)?;
            finish(set, testbed).await
        }
        Action::Resume { out, testbed } => {
            finish(ResultSet::reopen(&out, manifest(&[]))?, testbed).await
        }
        Action::Status { out } => status(&ResultSet::load(&out)?),
        Action::Plan { campaigns, hosts } => show_plan(&campaigns, hosts.as_deref()),
    }
}

/// Makes the manifest of this program on this machine, with the campaign files; `files` is empty if the set has them
/// already.
fn manifest(files: &[PathBuf]) -> Manifest {
    let (program, broker) = (this_software("mqbench"), this_software("mqbroker"));
    let files = files.iter().map(|file| file.display().to_string());
    let files: Vec<_> = files.collect();
    let probes = probe_parameters(MqttOptions::NO_PROBES);
    // Devices of the pattern `storm` come back by the client library's defaults.
    let Reconnect {
        initial,
        max,
        factor,
        jitter,
        ..
    } = Reconnect::default();
    let parameters = serde_json::json!({
        "campaigns": files,
        "probes": probes,
        "reconnect": {
            "initial_ns": nanoseconds(initial),
            "max_ns": nanoseconds(max),
            "factor": factor,
            "jitter": jitter,
            "connect_timeout_ns": nanoseconds(ConnectOptions::default().connect_timeout),
        },
    });
    Manifest::now(program, broker, parameters)
}

async fn finish(mut set: ResultSet, testbed: BackendArgs) -> anyhow::Result<()> {
    let mut progress = ProgressDisplay::new();
    let ran = testbed.run(&mut set, |now| progress.show(now)).await;
    progress.clear();
    ran?;
    status(&set)?;
    let directory = set.directory().display();
    report::print(&format!("results are in {directory}\n"))
}

impl BackendArgs {
    async fn run(
        self,
        set: &mut ResultSet,
        tell: impl FnMut(CampaignProgress),
    ) -> anyhow::Result<()> {
        #[cfg(target_os = "linux")]
        if let Some(hosts) = &self.hosts {
            let hosts = RemoteHosts::new(Hosts::load(hosts)?, self.ssh.ssh());
            return runner::run(set, Backend::Remote(hosts), tell).await;
        }
        let mut had = set.records.iter();
        let had = had.find_map(|record| record.outcome.energy_meter.as_ref());
        if let Some(had) = had
            && meter::basis(had) != meter::basis(&self.meter.to_string())
        {
            bail!("the energy of these results is from {had}: go on with --meter {had}");
        }
        let energy = match self.meter {
            MeterSpec::Model(profile) => {
                // A mistake in the profile's name is reported before anything begins.
                EnergySource::Model(Profile::load(&profile).map(|_| profile)?)
            }
            spec => EnergySource::Meter(ConfiguredMeter {
                spec,
                settings: MeterSettings {
                    volts: self.volts,
                    amps: self.amps,
                    ..MeterSettings::default()
                },
            }),
        };
        let artifacts = self.keep;
        runner::run(set, Backend::Local { energy, artifacts }, tell).await
    }
}

fn status(set: &ResultSet) -> anyhow::Result<()> {
    let mut text = String::new();
    for campaign in &set.campaigns {
        let counts = RunCounts::of(campaign, &set.records);
        let records = set.records.iter();
        let mut failed = records
            .filter(|record| record.campaign == campaign.name)
            .filter_map(|record| record.outcome.error.as_ref());
        text.push_str(&format!(
            "{:<16} {counts}{}\n",
            campaign.name,
            failed
                .next_back()
                .map_or_else(String::new, |error| format!("; last error: {error}"))
        ));
    }
    report::print(&text)
}

fn show_plan(args: &CampaignArgs, hosts: Option<&Path>) -> anyhow::Result<()> {
    let hosts = hosts.map(Hosts::load).transpose()?;
    let files = args.files.iter();
    let campaigns = files.map(|file| Campaign::load(file, args.extent()));
    let campaigns: Vec<_> = campaigns.collect::<anyhow::Result<_>>()?;
    let mut text = String::new();
    for campaign in &campaigns {
        text.push_str(&plan_of(campaign));
        if let Some(hosts) = &hosts {
            text.push_str(&on_hosts(campaign, hosts));
        }
    }
    let runs = MissingRuns::of(&campaigns, &[]).runs;
    let serial = runs.iter().map(QueuedRun::expected);
    text.push_str(&format!(
        "{} runs, {} of them for several figures; {} one after the other, here at best {} side by side\n",
        runs.len(),
        runs.iter().filter(|run| run.is_shared()).count(),
        minutes(serial.sum()),
        minutes(runner::best_case(&runs)),
    ));
    report::print(&text)
}

fn plan_of(campaign: &Campaign) -> String {
    let durations = plan::durations(campaign);
    let once: Duration = durations.iter().sum();
    format!(
        "{:<16} {} · {}: {} cells, {} times; {} one after the other, the longest {}\n",
        campaign.name,
        campaign.source,
        campaign.title,
        campaign.cells.len(),
        campaign.repetitions,
        minutes(once * campaign.repetitions),
        minutes(durations.into_iter().max().unwrap_or_default())
    )
}

/// Formats a line for each placement of cells on the hosts, or for each reason why the hosts cannot run them.
fn on_hosts(campaign: &Campaign, hosts: &Hosts) -> String {
    let mut ways: BTreeMap<String, usize> = BTreeMap::new();
    for one in &campaign.cells {
        let way = match hosts.placement(&one.cell) {
            Ok(placement) => placement.to_string(),
            Err(error) => format!("not on these hosts: {error:#}"),
        };
        *ways.entry(way).or_default() += 1;
    }
    let mut text = String::new();
    for (way, cells) in ways {
        text.push_str(&format!("{:<16} {cells} cells: {way}\n", ""));
    }
    text
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Progress of a campaign: a bar in a terminal, a line at intervals in a log.
struct ProgressDisplay {
    bar: Option<ProgressBar>,
    last: Option<Instant>,
}

impl ProgressDisplay {
    /// The time between lines of a log.
    const PAUSE: Duration = Duration::from_secs(15);

    fn new() -> Self {
        let bar = || report::progress_bar(0, "{wide_bar} {pos}/{len} {msg}");
        let bar = std::io::stderr().is_terminal().then(bar);
        Self { bar, last: None }
    }

    fn show(&mut self, now: CampaignProgress) {
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
