//! `mqbench lab`: the emulated network for any other program.

use std::{
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context, bail};
use mq_netem::Host;

use super::args::LinkArgs;
use crate::{report, this_program::shell_exit_code};

/// The variable by which programs in the lab find its hosts: `role=path` for each, with commas.
const HOSTS: &str = "MQBENCH_LAB";

/// Commands of `lab`.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum Action {
    /// Build hosts and links, and run a shell or a command among them; both end together
    Shell(ShellArgs),
    /// In such a shell: run a program on one of the hosts
    #[command(arg_required_else_help = true)]
    Exec {
        /// publisher, subscriber or broker; publisher-2 and so on are the other stations of a channel
        role: String,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Print a link like that of a low-orbit constellation, to be kept as a file: another round trip
    /// every 15 s, with an outage and losses in bursts at each hand-over
    Leo {
        /// Seed of round trips and outages
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// The first process of a lab: starts the command and waits for it
    #[command(hide = true)]
    Init {
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ShellArgs {
    /// Seed of what the links do by chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    links: LinkArgs,
    /// A command instead of a shell
    #[arg(last = true)]
    command: Vec<String>,
}

/// Runs the command. Call it before there are threads.
pub(crate) fn run(action: &Action) -> anyhow::Result<ExitCode> {
    match action {
        Action::Shell(args) => shell(args),
        Action::Exec { role, command } => exec(role, command),
        Action::Leo { seed } => {
            report::print(&mq_netem::leo_profile(*seed))?;
            Ok(ExitCode::SUCCESS)
        }
        Action::Init { command } => start(command),
    }
}

fn shell(args: &ShellArgs) -> anyhow::Result<ExitCode> {
    let mut testbed = args.links.build(args.seed)?;
    let mut inner = Command::new(std::env::current_exe().context("cannot find this program")?);
    inner.args(["lab", "init"]);
    if args.command.is_empty() {
        report::print(&format!(
            "{}\nmqbench lab exec ROLE PROGRAM... runs a program on a host; the lab ends with this \
             shell\n",
            testbed.map()
        ))?;
        inner.arg(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    } else {
        inner.args(&args.command);
    }
    let hosts = testbed.hosts();
    let hosts: Vec<_> = hosts
        .map(|(role, host)| format!("{role}={}", host.path().display()))
        .collect();
    inner.env(HOSTS, hosts.join(","));
    let status = testbed.run(inner).context("cannot start the lab")?;
    testbed.finish_captures()?;
    eprint!("{}", testbed.describe());
    Ok(shell_exit_code(status))
}

/// Becomes the program, on the host of `role`.
fn exec(role: &str, command: &[String]) -> anyhow::Result<ExitCode> {
    let hosts = std::env::var(HOSTS).map_err(|_| {
        anyhow::anyhow!("{HOSTS} is not set: run `mqbench lab exec` within `mqbench lab shell`")
    })?;
    let hosts: Vec<_> = hosts
        .split(',')
        .filter_map(|host| host.split_once('='))
        .collect();
    let Some((_, path)) = hosts.iter().find(|(known, _)| *known == role) else {
        let known: Vec<_> = hosts.iter().map(|(role, _)| *role).collect();
        bail!("unknown host `{role}`: this lab has {}", known.join(", "));
    };
    Host::move_into(&PathBuf::from(path))
        .with_context(|| format!("cannot enter the {role}'s host"))?;
    let (program, mut command) = runs(command)?;
    Err(command.exec()).with_context(|| format!("cannot run {program}"))
}

fn start(command: &[String]) -> anyhow::Result<ExitCode> {
    let (program, mut command) = runs(command)?;
    let status = command.status();
    Ok(shell_exit_code(
        status.with_context(|| format!("cannot run {program}"))?,
    ))
}

/// Returns the program of a command line, and the command that runs it.
fn runs(command: &[String]) -> anyhow::Result<(&str, Command)> {
    let (program, arguments) = command.split_first().context("name a program to run")?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok((program, command))
}
