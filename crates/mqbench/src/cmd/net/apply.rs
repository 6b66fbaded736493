//! `mqbench net apply`: a link on an interface until the user or a command ends it.

use std::{
    ffi::OsString,
    path::Path,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use anyhow::Context as _;
use mq_netem::{Controller, Direction};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    signal::unix::{self, SignalKind},
    time::timeout,
};

use super::ApplyArgs;
use crate::{
    report,
    this_program::{shell_exit_code, status_mask},
};

/// Time that a command has to end after Ctrl-C, which a terminal sends to it as well.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time that a command has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

pub(super) fn run(args: &ApplyArgs, state: &Path) -> anyhow::Result<ExitCode> {
    let direction = args.target.load()?;
    if args.print {
        let lines = args
            .target
            .shape(&direction)?
            .commands(&args.target.interface);
        report::print(&(lines.join("\n") + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let controller = Controller::open(state)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(apply_until_end(args, &controller, &direction))
}

/// Applies the link until a signal or the command's end. The drop of `applied` restores the interface, also after an
/// error or a panic.
async fn apply_until_end(
    args: &ApplyArgs,
    controller: &Controller,
    direction: &Direction,
) -> anyhow::Result<ExitCode> {
    // From here on a signal waits until the program asks for it, so that none ends the program halfway.
    let mut signals = Signals::catch()?;
    let target = &args.target;
    let applied = controller.apply(&target.interface, direction, &target.name(), args.even_ssh)?;
    if target.interface == "lo" {
        eprintln!("lo: both directions of a connection pass it, and each is shaped");
    }
    if args.keep {
        applied.keep();
        report::print(&format!(
            "{}: {}, until `mqbench net clear {}`\n",
            target.interface,
            target.name(),
            target.interface
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let code = match &args.command[..] {
        [] => {
            eprintln!("{}: {}, until Ctrl-C", target.interface, target.name());
            if args.announce {
                report::announce()?;
            }
            signals.next().await;
            Ok(ExitCode::SUCCESS)
        }
        [program, arguments @ ..] => while_it_runs(program, arguments, &mut signals).await,
    };
    applied.restore()?;
    code
}

/// Runs the command; returns its exit code in a shell's form.
async fn while_it_runs(
    program: &OsString,
    arguments: &[OsString],
    signals: &mut Signals,
) -> anyhow::Result<ExitCode> {
    let mut child = Command::new(program)
        .args(arguments)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let status = tokio::select! {
        status = child.wait() => status,
        signal = signals.next() => end_child(&mut child, signal).await,
    };
    Ok(shell_exit_code(
        status.context("cannot wait for the command")?,
    ))
}

/// Ends the command within seven seconds: waits for it after SIGINT, which it received as well, then sends SIGTERM and
/// at last SIGKILL.
async fn end_child(child: &mut Child, signal: Signal) -> std::io::Result<ExitStatus> {
    if signal == Signal::SIGINT
        && let Ok(status) = timeout(PATIENCE, child.wait()).await
    {
        return status;
    }
    if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
        // A command that has just ended is no error.
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
    if let Ok(status) = timeout(GRACE, child.wait()).await {
        return status;
    }
    child.kill().await?;
    child.wait().await
}

/// The signals that ask this program to end.
struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Catches SIGINT, SIGTERM, SIGHUP and SIGQUIT, except those that this process was started to ignore, as by
    /// `nohup`.
    fn catch() -> anyhow::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status_mask(&status, "SigIgn:");
        let caught = [
            (Signal::SIGINT, SignalKind::interrupt()),
            (Signal::SIGTERM, SignalKind::terminate()),
            (Signal::SIGHUP, SignalKind::hangup()),
            (Signal::SIGQUIT, SignalKind::quit()),
        ]
        .into_iter()
        .filter(|(signal, _)| ignored & (1 << (*signal as u32 - 1)) == 0)
        .map(|(signal, kind)| Ok((signal, unix::signal(kind)?)));
        let caught: std::io::Result<Vec<_>> = caught.collect();
        Ok(Self(caught.context("cannot wait for signals")?))
    }

    async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*signal);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_ignored_is_known() {
        // The mask under nohup: SIGHUP, and SIGPIPE as always.
        let ignored = |status| status_mask(status, "SigIgn:");
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored(""), 0);
    }
}
