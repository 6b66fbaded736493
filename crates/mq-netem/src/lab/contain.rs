//! Running a program so that no process of it is left.

#![expect(
    unsafe_code,
    reason = "a process is told before it starts what ends it; signal handlers"
)]

use std::{
    io,
    os::unix::process::CommandExt as _,
    process::{Command, ExitStatus},
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
    },
};

/// Runs a command to its end in a process namespace of its own. All that it starts ends with it, and it ends
/// with this process, however this process ends.
///
/// The command is the namespace's first process, which the system protects from signals that it does not
/// handle: let it start the wanted program. Ctrl-C is for that program; this process ignores it meanwhile.
pub(super) fn run(mut command: Command) -> io::Result<ExitStatus> {
    let _interrupts = Unnoticed::new(Signal::SIGINT)?;
    // A thread of its own starts the command and nothing else: only its children are in the namespace.
    // They end with the thread, so it waits for them.
    super::namespace::in_thread(|| {
        unshare(CloneFlags::CLONE_NEWPID)?;
        // SAFETY: one system call, which allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        command.status()
    })
}

/// While this lives, a signal does nothing to this process. A handler does that, and not `SIG_IGN`, which
/// programs that are started would inherit.
struct Unnoticed {
    signal: Signal,
    before: SigAction,
}

extern "C" fn take_no_notice(_: i32) {}

impl Unnoticed {
    fn new(signal: Signal) -> io::Result<Self> {
        let handler = SigHandler::Handler(take_no_notice);
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing at all.
        let before = unsafe { sigaction(signal, &action)? };
        Ok(Self { signal, before })
    }
}

impl Drop for Unnoticed {
    fn drop(&mut self) {
        // SAFETY: the action is the one that was set before.
        let _ = unsafe { sigaction(self.signal, &self.before) };
    }
}
