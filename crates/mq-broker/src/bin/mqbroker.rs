//! The program `mqbroker`: a command line around [`mq_broker::Broker`].

use std::process::ExitCode;

use clap::Parser;
use mq_broker::cli::{BrokerArgs, Command, run};

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

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match args.command {
        None => run(&args.broker),
        Some(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mqbroker: {error}");
            ExitCode::FAILURE
        }
    }
}
