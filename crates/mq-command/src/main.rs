//! The program `mq`: MQTT for everyday, over every transport.
//!
//! ```text
//! args (what is asked) -> client: connect -> publish | subscribe | request | ping | watch -> goodbye -> exit code
//!                         relay: listeners, and a broker                                             -> exit code
//!                         tools: mqbench, completions, manual pages                                  -> exit code
//! ```
//!
//! Without the feature `client` it is the relay alone, for small machines.

#[cfg(feature = "client")]
mod client;
mod ends;
mod log;
mod relay;
mod secrets;
mod tls_files;
#[cfg(feature = "client")]
mod tools;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};
use tokio::runtime::Builder;

/// MQTT for everyday: over TCP, TLS, WebSocket and QUIC.
#[derive(Parser)]
#[command(name = "mq", version, disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[cfg(feature = "client")]
    #[command(flatten)]
    Client(Box<client::Command>),
    /// Pass connections on, over another transport: QUIC for a client or a broker that does not speak it
    Relay(Box<relay::Args>),
    #[cfg(feature = "client")]
    #[command(flatten)]
    Tool(tools::Command),
}

/// Does a command's work.
fn block_on<T>(
    runtime: &mut Builder,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let runtime = runtime.enable_all().build()?;
    let outcome = runtime.block_on(work);
    // A thread that waits for the standard input does not keep the program.
    runtime.shutdown_background();
    outcome
}

/// Reads the command line. A mistake in it, or a help text, is printed and ends the program.
fn parse(words: &[OsString]) -> Result<Args, ExitCode> {
    let read = words.to_vec();
    #[cfg(feature = "client")]
    let read = if tools::is_bench(words) {
        // mqbench's words are left as they are.
        read
    } else {
        client::joined(read)
    };
    Args::try_parse_from(read).map_err(|error| {
        let message = error.to_string();
        let hidden = secrets::hidden_of(words, &message);
        if hidden == message {
            // In colours.
            let _ = error.print();
        } else {
            eprint!("{hidden}");
        }
        u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
    })
}

/// Formats an error and its causes on one line. An error that names its cause itself does not get it a second time.
fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    secrets::hidden(&line)
}

/// Returns the exit code for an error: the broker's reason, if it has refused something.
fn exit_code(error: &anyhow::Error) -> ExitCode {
    #[cfg(feature = "client")]
    if let Some(reason) = client::reason(error) {
        return reason.into();
    }
    #[cfg(not(feature = "client"))]
    let _ = error;
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    let args = match parse(&secrets::command_line()) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let (quiet, outcome) = match args.command {
        #[cfg(feature = "client")]
        Command::Client(command) => client::run(*command),
        Command::Relay(args) => {
            let ended = block_on(&mut Builder::new_multi_thread(), relay::run(*args));
            (false, ended.map(|()| ExitCode::SUCCESS))
        }
        #[cfg(feature = "client")]
        Command::Tool(command) => {
            let program = <Args as clap::CommandFactory>::command();
            (false, tools::run(command, program))
        }
    };
    match outcome {
        Ok(code) => code,
        Err(error) if ends::is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            if !quiet {
                eprintln!("mq: {}", line(&error));
            }
            exit_code(&error)
        }
    }
}
