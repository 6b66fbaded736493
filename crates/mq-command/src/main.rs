//! The program `mq`: MQTT for everyday, over every transport.
//!
//! ```text
//! args (what is asked) -> connect (a client) -> publish | subscribe | request | ping | watch -> ends -> exit code
//!                                                  relay (listeners, and a broker)             -> ends -> exit code
//! ```

mod args;
mod bench;
mod connect;
mod ends;
mod escape;
mod json_text;
mod manual;
mod message;
mod ping;
mod profile;
mod properties;
mod publish;
mod relay;
mod request;
mod secrets;
mod subscribe;
mod template;
mod watch;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{CommandFactory as _, Parser, Subcommand};

/// MQTT for everyday: over TCP, TLS, WebSocket and QUIC.
#[derive(Parser)]
#[command(name = "mq", version, disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Publish messages
    Pub(publish::Args),
    /// Subscribe, and print what comes
    Sub(subscribe::Args),
    /// Publish a request, and print its response
    Rr(request::Args),
    /// Measure the way to a broker: connecting, and a message there and back
    Ping(ping::Args),
    /// Watch topics in the terminal: rates, counts and last values
    Watch(watch::Args),
    /// Pass connections on, over another transport: QUIC for a client or a broker that does not speak it
    Relay(relay::Args),
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

/// Outcome of a command, as exit codes tell it apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Done,
    /// `-W`: the time is over.
    TimedOut,
    /// A signal ended it.
    Signalled(u8),
}

/// Exit code of a timeout, that of `mosquitto_sub` and `mosquitto_rr`.
const TIMED_OUT: u8 = 27;

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::TimedOut => TIMED_OUT.into(),
            // As a shell has it.
            Outcome::Signalled(number) => (128 + number).into(),
        }
    }
}

/// Does a command's work on one thread.
fn block_on(work: impl Future<Output = anyhow::Result<Outcome>>) -> anyhow::Result<Outcome> {
    block_on_runtime(&mut tokio::runtime::Builder::new_current_thread(), work)
}

fn block_on_runtime(
    runtime: &mut tokio::runtime::Builder,
    work: impl Future<Output = anyhow::Result<Outcome>>,
) -> anyhow::Result<Outcome> {
    let runtime = runtime.enable_all().build()?;
    let outcome = runtime.block_on(work);
    // A thread that waits for the standard input does not keep the program.
    runtime.shutdown_background();
    outcome
}

/// Reads the command line. A mistake in it, or a help text, is printed and ends the program.
fn parse(words: &[OsString]) -> Result<Args, ExitCode> {
    // mqbench's words are left as they are.
    let parsed = if bench::is_asked_for(words) {
        Args::try_parse_from(words)
    } else {
        Args::try_parse_from(args::joined(words.to_vec()))
    };
    parsed.map_err(|error| {
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

fn main() -> ExitCode {
    let args = match parse(&secrets::command_line()) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let done = |()| Outcome::Done;
    let (quiet, outcome) = match args.command {
        Command::Pub(args) => (args.broker.quiet, block_on(publish::run(args))),
        Command::Sub(args) => (args.broker.quiet, block_on(subscribe::run(args))),
        Command::Rr(args) => (args.broker.quiet, block_on(request::run(args))),
        Command::Ping(args) => (args.broker.quiet, block_on(ping::run(args))),
        Command::Watch(args) => (args.broker.quiet, watch::run(&args)),
        Command::Relay(args) => (
            false,
            block_on_runtime(
                &mut tokio::runtime::Builder::new_multi_thread(),
                relay::run(args),
            ),
        ),
        Command::Bench(args) => return bench::run(&args),
        Command::Completions { shell } => {
            let printed = manual::print_completions(Args::command(), shell);
            (false, printed.map(done))
        }
        Command::Manual { folder } => (false, manual::write(Args::command(), &folder).map(done)),
    };
    match outcome {
        Ok(outcome) => outcome.into(),
        Err(error) if ends::is_unread(&error) => ExitCode::SUCCESS,
        Err(error) => {
            if !quiet {
                eprintln!("mq: {}", line(&error));
            }
            let reason = error.downcast_ref::<mq_client::Error>().and_then(reason);
            reason.map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

/// Returns the broker's reason code; `None` if the broker did not refuse something.
fn reason(error: &mq_client::Error) -> Option<u8> {
    use mq_client::Error;
    match error {
        Error::Refused { reason }
        | Error::PublishRefused { reason }
        | Error::SubscribeRefused { reason }
        | Error::UnsubscribeRefused { reason } => Some(*reason as u8),
        _ => None,
    }
}
