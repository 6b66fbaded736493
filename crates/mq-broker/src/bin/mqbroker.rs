//! The program `mqbroker`: a command line around [`mq_broker::Broker`].

use std::process::ExitCode;

use clap::Parser;
use mq_broker::cli::{BrokerArgs, run};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An MQTT 3.1, 3.1.1 and 5.0 broker over TCP, TLS, QUIC and WebSocket.
#[derive(Parser)]
#[command(name = "mqbroker", version)]
struct Args {
    #[command(flatten)]
    broker: BrokerArgs,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args.broker) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mqbroker: {error}");
            ExitCode::FAILURE
        }
    }
}
