//! A thread that reads at an interval until it is stopped.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Error, Note};

/// Thread that takes readings at an interval, and returns them when it is stopped.
#[derive(Debug)]
pub(super) struct Sampler<S> {
    /// Channel to the thread, which ends when this end is dropped.
    stop: mpsc::Sender<()>,
    thread: JoinHandle<(S, Failures)>,
}

/// Number of readings that failed, and the error of the last.
#[derive(Debug, Default)]
struct Failures {
    count: u64,
    last: String,
}

impl<S: Send + 'static> Sampler<S> {
    /// Starts a thread that `read`s into `state`: first after one interval, last when it is stopped. A read
    /// that takes longer than the interval delays the next one; missed reads are not made up for.
    pub(super) fn start(
        meter: &str,
        mut state: S,
        interval: Duration,
        mut read: impl FnMut(&mut S) -> Result<(), Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let (stop, told) = mpsc::channel();
        let work = move || {
            let mut failures = Failures::default();
            let mut next = Instant::now() + interval;
            loop {
                let left = next.saturating_duration_since(Instant::now());
                let last = !matches!(told.recv_timeout(left), Err(RecvTimeoutError::Timeout));
                if let Err(error) = read(&mut state) {
                    failures.count += 1;
                    failures.last = error.to_string();
                }
                if last {
                    return (state, failures);
                }
                next += interval;
                let now = Instant::now();
                if next <= now {
                    next = now + interval;
                }
            }
        };
        let thread = std::thread::Builder::new().name("energy".to_owned());
        let thread = thread.spawn(work).map_err(|error| Error::NoMeter {
            meter: meter.to_owned(),
            problem: format!("cannot start a thread: {error}"),
        })?;
        Ok(Self { stop, thread })
    }

    /// Has the thread read once more, and returns the state, with a note if reads failed.
    pub(super) fn stop(self, meter: &str) -> Result<(S, Option<Note>), Error> {
        drop(self.stop);
        let (state, failures) = self.thread.join().map_err(|_| Error::NoMeter {
            meter: meter.to_owned(),
            problem: "its thread panicked".to_owned(),
        })?;
        let Failures { count, last } = failures;
        Ok((
            state,
            (count > 0).then_some(Note::FailedReadings { count, last }),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_once_more_when_it_is_stopped() {
        let read = |count: &mut u32| {
            *count += 1;
            Ok(())
        };
        let sampler = Sampler::start("test", 0, Duration::from_hours(1), read).unwrap();
        assert_eq!(sampler.stop("test").unwrap(), (1, None));
    }

    #[test]
    fn it_reads_at_its_interval() {
        let (sender, receiver) = mpsc::channel();
        let read = move |(): &mut ()| {
            sender.send(Instant::now()).unwrap_or_default();
            Ok(())
        };
        let (began, interval) = (Instant::now(), Duration::from_millis(2));
        let sampler = Sampler::start("test", (), interval, read).unwrap();
        let times: Vec<_> = receiver.iter().take(5).collect();
        sampler.stop("test").unwrap();
        // A read may be late, but not early.
        for (at, due) in times.into_iter().zip(1..) {
            assert!(at >= began + interval * due, "{due}");
        }
    }

    #[test]
    fn a_thread_that_panics_is_an_error() {
        let hour = Duration::from_hours(1);
        let sampler = Sampler::start("test", (), hour, |()| panic!("on purpose")).unwrap();
        let error = sampler.stop("rapl").unwrap_err().to_string();
        assert_eq!(error, "meter rapl: its thread panicked");
    }
}
