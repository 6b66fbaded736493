//! Commands beside those that speak MQTT.

mod bench;
mod manual;

use std::{path::PathBuf, process::ExitCode};

pub(crate) use bench::is_asked_for as is_bench;

/// Commands beside those that speak MQTT.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Measure MQTT over each transport: mqbench, which is a program of its own
    Bench(bench::Args),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages and completions into a folder, in the places that they have in /usr/share
    #[command(hide = true)]
    Manual {
        /// The folder
        folder: PathBuf,
    },
}

/// Runs a command of the program that is given.
pub(crate) fn run(command: Command, program: clap::Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Bench(args) => return Ok(bench::run(&args)),
        Command::Completions { shell } => manual::print_completions(program, shell)?,
        Command::Manual { folder } => manual::write(program, &folder)?,
    }
    Ok(ExitCode::SUCCESS)
}
