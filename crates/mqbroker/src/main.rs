//! The program `mqbroker`: a command line around [`mq_broker::Broker`], by the library of the same name.

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand};
use mqbroker::cli::{self, BrokerArgs, DiskHangs, run, write_key_page, write_manual};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An MQTT 3.1, 3.1.1 and 5.0 broker over TCP, TLS, QUIC and WebSocket.
#[derive(Parser)]
#[command(name = "mqbroker", version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Other(cli::Command),
    /// Write manual pages and completions into a folder, in the places that they have in /usr/share
    #[command(hide = true)]
    Manual {
        /// The folder
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.command {
        None => run(&args.broker),
        Some(Command::Other(command)) => command.run(),
        Some(Command::Manual { folder }) => {
            write_manual(Args::command(), &folder).and_then(|()| write_key_page(&folder))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            cli::write_last_line(&format!("mqbroker: {error}"));
            match error.downcast_ref::<DiskHangs>() {
                Some(_) => ExitCode::from(DiskHangs::EXIT_CODE),
                None => ExitCode::FAILURE,
            }
        }
    }
}
