//! The commands that speak MQTT.

mod args;
mod connect;
mod escape;
mod goodbye;
mod json_text;
mod message;
mod ping;
mod profile;
mod properties;
mod publish;
mod request;
mod secret;
mod subscribe;
mod template;
mod watch;

use std::process::ExitCode;

use tokio::runtime::Builder;

pub(crate) use args::joined;

use crate::block_on;

/// Commands that speak MQTT.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
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

/// Runs a command. Returns `true` if it is to print no error.
pub(crate) fn run(command: Command) -> (bool, anyhow::Result<ExitCode>) {
    let one_thread = &mut Builder::new_current_thread();
    let (quiet, outcome) = match command {
        Command::Pub(args) => (args.broker.quiet, block_on(one_thread, publish::run(args))),
        Command::Sub(args) => (
            args.broker.quiet,
            block_on(one_thread, subscribe::run(args)),
        ),
        Command::Rr(args) => (args.broker.quiet, block_on(one_thread, request::run(args))),
        Command::Ping(args) => (args.broker.quiet, block_on(one_thread, ping::run(args))),
        Command::Watch(args) => (args.broker.quiet, watch::run(&args)),
    };
    (quiet, outcome.map(Into::into))
}

/// Returns the broker's reason code; `None` if the broker did not refuse something.
pub(crate) fn reason(error: &anyhow::Error) -> Option<u8> {
    use mq_client::Error;
    match error.downcast_ref::<Error>()? {
        Error::Refused { reason }
        | Error::PublishRefused { reason }
        | Error::SubscribeRefused { reason }
        | Error::UnsubscribeRefused { reason } => Some(*reason as u8),
        _ => None,
    }
}
