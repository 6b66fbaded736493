//! The command `mqbench`: what MQTT costs over TCP, TLS, QUIC and WebSocket, measured side by side.
//! | folder | what it holds |
//! |---|---|
//! | `cmd` | one module a command: its options, and how its result is printed |
//! | `report` | tables, charts and pages |
//! | `lab` | the runs of campaigns: their order, and how each is run |
//! | `campaign` | what is asked: campaign files, cells, claims, records |
//! | `hosts` | the machines of a testbed |
//! | `meter` | the energy of runs |
//! | `workload` | the traffic patterns: functions that return values |
//! | `testbed` | emulated networks on this machine |
//!
//! Each folder names only folders below it in this table; every folder may name the other modules. The course of a run
//! is in docs/architecture.md.

#![expect(
    clippy::doc_markdown,
    reason = "clap shows the doc comments of options as they are"
)]
#![expect(
    clippy::format_push_string,
    reason = "reports are small, and this reads better than write! with errors that cannot be"
)]

mod broker_under_test;
mod campaign;
mod clock;
mod cmd;
mod descriptors;
mod hosts;
mod lab;
mod meter;
mod mqtt;
mod payload;
mod report;
mod stdin_lines;
mod suggestion;
mod testbed;
mod this_program;
mod units;
mod workload;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{CommandFactory as _, Parser, Subcommand};
use mqbroker::cli::write_manual;
use stdin_lines::StdinLines;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure MQTT over TCP, TLS, QUIC and WebSocket, side by side.
#[derive(Parser)]
#[command(name = "mqbench", version, arg_required_else_help = true)]
struct Cli {
    /// End as after SIGTERM when standard input ends, or no line arrives on it for this time: so the command ends with
    /// the program that started it, however that ends
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, hide = true)]
    lease: Option<Duration>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The main job: the same work over each transport, one table
    Compare(cmd::compare::Args),
    /// Publisher and subscriber in one process, open loop, one clock
    E2e(cmd::e2e::Args),
    /// Publish on a schedule and write the send log
    Pub(cmd::publish::Args),
    /// Subscribe and write the receive log
    Sub(cmd::subscribe::Args),
    /// Put a send log and a receive log together by sequence number
    Join(cmd::join::Args),
    /// Difference between the clocks of two machines, for `join`: serve, measure
    #[command(subcommand)]
    Clock(cmd::clock::Action),
    /// Stop and wait: each message after the last has arrived (Δ)
    Stopwait(cmd::stopwait::Args),
    /// A new connection for every message (Δ†)
    Reconnect(cmd::reconnect::Args),
    /// Jobs and results: round-trip time matched by sequence, DL's estimator beside it
    Rtt(cmd::rtt::Args),
    /// The worker that answers the jobs of `rtt`
    Worker(cmd::worker::Args),
    /// Connection times: full, resumed, 0-RTT
    Connect(cmd::connect::Args),
    /// Many publishers and subscribers: throughput and CPU per message
    Load(cmd::load::Args),
    /// Many runs from campaign files: every figure of the papers
    #[command(subcommand)]
    Campaign(cmd::campaign::Action),
    /// Run one cell of a campaign; `campaign` starts this command
    #[command(hide = true)]
    Cell,
    /// Hosts and emulated links for any other program
    #[cfg(unix)]
    #[command(subcommand)]
    Lab(cmd::lab::Action),
    /// Report the results of campaigns as a page, tables or data
    Report(cmd::report::Args),
    /// Reasons why the latest messages of kept runs were late: a loss, a loss before them, the window, the link, a host
    Explain(cmd::explain::Args),
    /// The cost of a device's day over each transport, from kept runs: connections, packets, bytes, wake-ups, delays
    Day(cmd::day::Args),
    /// Compute the reports and tables of an archive again, and print what differs; runs the archive's own scripts
    Verify(cmd::verify::Args),
    /// Joules: meters, what they measure, and a model in the place of a meter
    #[command(subcommand)]
    Energy(cmd::energy::Action),
    /// Run the broker
    Broker(cmd::broker::Args),
    /// Links on real interfaces, by the kernel's netem: set, show, check, clear
    #[cfg(target_os = "linux")]
    Net(cmd::net::Args),
    /// On a host of a testbed: answer the controller that started this with a description of the host, and its time
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Host,
    /// The hosts of a testbed: check them, put this program on them
    #[cfg(target_os = "linux")]
    Hosts(cmd::hosts::Args),
    /// Write manual pages and completions below a folder, as below /usr/share
    #[command(hide = true)]
    Manual {
        /// The folder
        folder: PathBuf,
    },
}

impl Command {
    /// Returns `true` if the command reads lines of standard input itself.
    fn takes_lines(&self) -> bool {
        match self {
            Self::Pub(args) => args.waits(),
            #[cfg(target_os = "linux")]
            Self::Host => true,
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    run(Cli::parse()).unwrap_or_else(|error| {
        print_error(&error);
        ExitCode::FAILURE
    })
}

/// Prints an error in one line: what was tried, and why it failed.
fn print_error(error: &anyhow::Error) {
    eprintln!("mqbench: {error:#}");
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let takes_lines = cli.command.takes_lines();
    let wanted = takes_lines || cli.lease.is_some();
    let mut input = wanted.then(|| StdinLines::open(cli.lease)).transpose()?;
    if let Some(input) = input.take_if(|_| !takes_lines) {
        input.terminate_at_end(|_| {})?;
    }
    match cli.command {
        // Programs that these commands start may have an exit code of their own.
        #[cfg(unix)]
        Command::Lab(args) => return cmd::lab::run(&args),
        Command::Energy(args) => return cmd::energy::run(&args),
        Command::Verify(args) => return cmd::verify::run(&args),
        // `net` handles signals itself, so that it always restores the interface.
        #[cfg(target_os = "linux")]
        Command::Net(args) => return cmd::net::run(&args),
        // `clock` handles Ctrl-C itself: the measurement until then counts.
        Command::Clock(args) => cmd::clock::run(&args),
        // The broker chooses its own threads.
        Command::Broker(args) => cmd::broker::run(&args),
        // These commands wait for nothing.
        Command::Join(args) => cmd::join::run(&args),
        Command::Report(args) => cmd::report::run(&args),
        Command::Explain(args) => cmd::explain::run(&args),
        Command::Day(args) => cmd::day::run(&args),
        Command::Manual { folder } => write_manual(Cli::command(), &folder),
        // Networks have to be made before there are threads.
        Command::Cell => match cmd::cell::prepare() {
            Ok((order, mut testbed)) => block_on(cmd::cell::run(&order, &mut testbed)),
            Err(error) => {
                print_error(&error);
                return Ok(cmd::cell::exit_code(&error));
            }
        },
        Command::Compare(args) => {
            let testbed = args.testbed()?;
            block_on(cmd::compare::run(args, testbed))
        }
        Command::E2e(args) => block_on(cmd::e2e::run(args)),
        Command::Pub(args) => block_on(cmd::publish::run(args, input)),
        Command::Sub(args) => block_on(cmd::subscribe::run(args)),
        Command::Stopwait(args) => block_on(cmd::stopwait::run(args)),
        Command::Reconnect(args) => block_on(cmd::reconnect::run(args)),
        Command::Rtt(args) => block_on(cmd::rtt::run(args)),
        Command::Worker(args) => block_on(cmd::worker::run(args)),
        Command::Connect(args) => block_on(cmd::connect::run(args)),
        Command::Load(args) => block_on(cmd::load::run(args)),
        Command::Campaign(args) => block_on(cmd::campaign::run(args)),
        #[cfg(target_os = "linux")]
        Command::Host => block_on(cmd::hosts::present(input)),
        #[cfg(target_os = "linux")]
        Command::Hosts(args) => block_on(cmd::hosts::run(args)),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tokio::select! {
            result = work => result,
            // Written results stay: files are flushed as they grow.
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        }
    })
}
