//! A process that runs for a part of the time: SIGSTOP and SIGCONT in turn. It stands in for a slow machine or disk, of
//! which it is a coarse picture: everything that the process does is late, and not its writes alone.

use std::{
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Time for which the process runs, and then time for which it stands still.
const RUNS: Duration = Duration::from_millis(20);
const STANDS: Duration = Duration::from_millis(80);

/// Ends when it is dropped: the process runs on then.
pub(crate) struct Pulses {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Pulses {
    /// Begins to stop and continue a process by turns; the process has to live as long as the pulses.
    pub(crate) fn begin(process: Pid) -> Self {
        let (over, is_over) = channel::<()>();
        let thread = std::thread::spawn(move || {
            for (signal, time) in [(Signal::SIGSTOP, STANDS), (Signal::SIGCONT, RUNS)]
                .into_iter()
                .cycle()
            {
                // One that has ended is found elsewhere.
                let _ = kill(process, signal);
                if is_over.recv_timeout(time) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            let _ = kill(process, Signal::SIGCONT);
        });
        Self {
            over: Some(over),
            thread: Some(thread),
        }
    }
}

impl Drop for Pulses {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
