//! Programs that leave nothing behind.

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

/// Runs a command to its end in a process namespace of its own: whatever it starts ends with it, and
/// it ends with this process, however that ends.
///
/// The command is the namespace's first process, which the system protects from signals that it does
/// not handle: let it start the program that is wanted. Ctrl-C is for that program, and this process
/// takes no notice of it meanwhile.
pub(super) fn run(mut command: Command) -> io::Result<ExitStatus> {
    let _interrupts = Unnoticed::new(Signal::SIGINT)?;
    // In a thread of its own, which then starts no other: its children alone are in the namespace,
    // and it waits for them as long as they live, which ends with it.
    super::namespace::in_thread(|| {
        unshare(CloneFlags::CLONE_NEWPID)?;
        // SAFETY: one system call, which allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?));
        }
        command.status()
    })
}

/// While this lives, a signal does nothing to this process. What it starts has the default again,
/// which it would not have if the signal were ignored.
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
        // SAFETY: what stood there before.
        let _ = unsafe { sigaction(self.signal, &self.before) };
    }
}
