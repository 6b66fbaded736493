//! Standard error, written by a thread of its own, so that a reader that hangs stops no part of the broker.
//!
//! A full pipe blocks the thread that writes to it, and lines come from every thread that serves clients. So lines go to
//! a buffer of [`LIMIT`] bytes and a thread takes them from there. Lines that find no room are lost and counted; once
//! half of the buffer is free again a line says how many.
//!
//! `tracing-appender` has such a writer, but says nowhere in the log how many lines it lost, and bounds their number and
//! not their bytes.
//!
//! ```text
//! any thread -- line --> buffer, at most LIMIT bytes -- thread "log" --> standard error
//!                   \--> lost + 1, while it is full
//! ```

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Bytes that wait for the reader of the log: some thousand lines, which a reader that starts again a moment later
/// finds complete.
const LIMIT: usize = 1 << 20;

/// Time that the last lines may take at the end of the process.
pub(crate) const LAST_LINES: Duration = Duration::from_secs(1);

/// The log of this process, once it has begun.
static STANDARD_ERROR: OnceLock<LogWriter> = OnceLock::new();

/// Buffer of log lines, and the thread that writes them. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LogWriter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: usize,
    state: Mutex<State>,
    /// Signalled when the first line comes to an empty buffer.
    filled: Condvar,
    /// Signalled when all lines are written.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Bytes of `lines`.
    bytes: usize,
    /// Lines that found no room since the last line that said so. While there are some, further lines are lost too, so
    /// that the log has one gap and not many.
    lost: u64,
    /// Lines that found no room since the start.
    lost_in_all: u64,
    /// `true` while the thread writes a line that it has taken.
    writes: bool,
}

/// Returns the log of this process on standard error, which begins with the first call.
///
/// # Errors
/// If there can be no thread.
pub(crate) fn standard_error() -> io::Result<LogWriter> {
    if let Some(writer) = STANDARD_ERROR.get() {
        return Ok(writer.clone());
    }
    let writer = LogWriter::start(LIMIT, unlocked_standard_error()?)?;
    Ok(STANDARD_ERROR.get_or_init(|| writer).clone())
}

/// Writes a line to standard error behind all lines of the log, and waits at most 1 s until all are written.
pub fn write_last_line(line: &str) {
    let line = format!("{line}\n").into_bytes();
    match STANDARD_ERROR.get() {
        Some(writer) => {
            writer.add_despite_limit(line);
            writer.flush(LAST_LINES);
        }
        None => drop(io::stderr().write_all(&line)),
    }
}

/// Waits at most [`LAST_LINES`] until all lines of the log are written.
pub(crate) fn flush() {
    if let Some(writer) = STANDARD_ERROR.get() {
        writer.flush(LAST_LINES);
    }
}

/// Returns the number of lines that were lost since the start.
pub(crate) fn lost_lines() -> u64 {
    let writer = STANDARD_ERROR.get();
    writer.map_or(0, |writer| writer.state().lost_in_all)
}

/// Sends the messages of panics the way of the log: the default hook would wait for the reader of standard error.
pub(crate) fn log_panics() {
    let main = thread::current().id();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string);
        let thread = thread::current();
        let reason = panic.payload_as_str().unwrap_or("no text");
        tracing::error!(place, thread = thread.name(), reason, "thread panicked");
        // Where the panic ends the process, no other place writes its line.
        if thread.id() == main || cfg!(panic = "abort") {
            flush();
        }
    }));
}

/// Returns standard error without the lock of [`io::stderr`], which would have others wait while the reader hangs.
fn unlocked_standard_error() -> io::Result<impl Write + Send + 'static> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd as _;

        let own = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(std::fs::File::from(own))
    }
    #[cfg(not(unix))]
    Ok(io::stderr())
}

impl LogWriter {
    /// Begins to write to `output` in a thread of its own.
    ///
    /// # Errors
    /// If there can be no thread.
    fn start(limit: usize, output: impl Write + Send + 'static) -> io::Result<Self> {
        let writer = Self {
            shared: Arc::new(Shared {
                limit,
                state: Mutex::default(),
                filled: Condvar::new(),
                emptied: Condvar::new(),
            }),
        };
        let own = writer.clone();
        let thread = thread::Builder::new().name("log".to_owned());
        thread.spawn(move || own.write_all_to(output))?;
        Ok(writer)
    }

    /// Adds a line, or counts it as lost.
    fn add(&self, line: &[u8]) {
        let mut state = self.state();
        let fits = state.lines.is_empty() || state.bytes + line.len() <= self.shared.limit;
        let has_room = state.lost == 0 && fits;
        if has_room {
            self.push(&mut state, line.to_vec());
        } else {
            state.lost += 1;
            state.lost_in_all += 1;
        }
    }

    fn add_despite_limit(&self, line: Vec<u8>) {
        let mut state = self.state();
        self.push(&mut state, line);
    }

    fn push(&self, state: &mut State, line: Vec<u8>) {
        state.bytes += line.len();
        state.lines.push_back(line);
        self.shared.filled.notify_one();
    }

    /// Waits until all lines are written, but no longer than that. Returns `true` if they are.
    fn flush(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.state();
        while state.writes || !state.lines.is_empty() || state.lost > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.emptied.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Writes lines for as long as the process lives.
    fn write_all_to(&self, mut output: impl Write) {
        loop {
            let (line, lost) = self.next();
            write_line(&mut output, &line);
            if lost > 0 {
                tracing::error!(lost, "log: lines lost, as standard error was not read");
            }
        }
    }

    /// Takes the next line, and the number of lost lines once there is room again.
    fn next(&self) -> (Vec<u8>, u64) {
        let mut state = self.state();
        state.writes = false;
        if state.lines.is_empty() && state.lost == 0 {
            self.shared.emptied.notify_all();
        }
        loop {
            if let Some(line) = state.lines.pop_front() {
                state.bytes -= line.len();
                state.writes = true;
                let has_room = state.bytes <= self.shared.limit / 2;
                let lost = if has_room {
                    std::mem::take(&mut state.lost)
                } else {
                    0
                };
                return (line, lost);
            }
            let waited = self.shared.filled.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line comes as one piece: the formatter calls [`Write::write`] once for it.
impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line. Nobody can be told of an error: the line is lost.
fn write_line(output: &mut impl Write, mut line: &[u8]) {
    while !line.is_empty() {
        match output.write(line) {
            Ok(count) if count > 0 => line = &line[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process has made the pipe that both share non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(10));
            }
            Ok(_) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, sync::mpsc};

    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_lost_until_half_is_free() {
        let (mut read, write) = io::pipe().unwrap();
        let writer = LogWriter::start(100, write).unwrap();
        // More than a pipe holds: the thread waits for the reader.
        let large = vec![b'x'; 1 << 20];
        writer.add_despite_limit(large.clone());
        while !writer.state().lines.is_empty() {
            thread::yield_now();
        }
        for number in 0..20 {
            writer.add(format!("{number:09}\n").as_bytes());
        }
        assert_eq!(writer.state().lost, 10);
        assert!(!writer.flush(Duration::from_millis(10)));
        let mut taken = vec![0; large.len()];
        read.read_exact(&mut taken).unwrap();
        let mut lines = vec![0; 100];
        read.read_exact(&mut lines).unwrap();
        assert!(lines.ends_with(b"000000009\n"));
        assert!(writer.flush(Duration::from_secs(20)));
        assert_eq!(writer.state().lost, 0);
        writer.add(b"new\n");
        let mut line = [0; 4];
        read.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"new\n");
    }

    #[test]
    fn the_end_waits_for_the_last_lines_and_not_for_a_reader_that_hangs() {
        let (mut read, write) = io::pipe().unwrap();
        let writer = LogWriter::start(1 << 20, write).unwrap();
        let (all, received) = mpsc::channel();
        for _ in 0..8_192 {
            writer.add(&[b'x'; 128]);
        }
        assert!(!writer.flush(Duration::from_millis(50)));
        thread::spawn(move || {
            let mut taken = vec![0; 1 << 20];
            read.read_exact(&mut taken).unwrap();
            all.send(taken).unwrap();
        });
        assert!(writer.flush(Duration::from_secs(20)));
        let taken = received.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(taken.iter().all(|byte| *byte == b'x'));
    }
}
