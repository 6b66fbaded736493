//! Standard input as a channel from another program. This program may end when that program is gone.

use std::{
    io::{BufRead as _, stdin},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::clock::WallClock;

/// Greatest number of lines that wait to be taken; reading pauses when so many wait.
const WAITING: usize = 64;

/// The lines of standard input.
#[derive(Debug)]
pub(crate) struct StdinLines {
    lines: Receiver<Line>,
    lease: Option<Duration>,
}

/// A line of standard input.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) text: String,
    /// Time of reading, in nanoseconds since the Unix epoch.
    pub(crate) read_ns: u64,
}

impl StdinLines {
    /// Reads standard input from now on. With a `lease`, silence for that long counts as its end.
    pub(crate) fn open(lease: Option<Duration>) -> anyhow::Result<Self> {
        let clock = WallClock::from_env()?;
        let (send, lines) = sync_channel(WAITING);
        let read = move || {
            let mut input = stdin().lock();
            let mut text = String::new();
            while input.read_line(&mut text).is_ok_and(|read| read > 0) {
                let line = Line {
                    read_ns: clock.now_ns(),
                    text: text.trim().to_owned(),
                };
                if send.send(line).is_err() {
                    break;
                }
                text.clear();
            }
        };
        let thread = thread::Builder::new().name("input".to_owned());
        thread.spawn(read).context("cannot start a thread")?;
        Ok(Self { lines, lease })
    }

    /// Waits for the next line that is not empty; `None` once the input has ended. An empty line only shows that the
    /// other program is alive.
    fn next(&self) -> Option<Line> {
        loop {
            let line = match self.lease {
                Some(lease) => self.lines.recv_timeout(lease),
                None => self.lines.recv().map_err(RecvTimeoutError::from),
            };
            let line = line.ok()?;
            if !line.text.is_empty() {
                return Some(line);
            }
        }
    }

    /// Passes each line to `take`.
    pub(crate) fn for_each(self, take: impl FnMut(Line) + Send + 'static) -> anyhow::Result<()> {
        self.listen(take, || {})
    }

    /// Passes each line to `take`, and ends this process as SIGTERM would once the input has ended.
    pub(crate) fn terminate_at_end(
        self,
        take: impl FnMut(Line) + Send + 'static,
    ) -> anyhow::Result<()> {
        self.listen(take, || {
            // The signal is for the process: the thread that waits for it gets it.
            let _ = kill(Pid::this(), Signal::SIGTERM);
        })
    }

    fn listen(
        self,
        mut take: impl FnMut(Line) + Send + 'static,
        end: impl FnOnce() + Send + 'static,
    ) -> anyhow::Result<()> {
        let listen = move || {
            while let Some(line) = self.next() {
                take(line);
            }
            end();
        };
        let thread = thread::Builder::new().name("lines".to_owned());
        thread.spawn(listen).context("cannot start a thread")?;
        Ok(())
    }
}
