//! Lines in the log that any client, or a broker that is down, can cause over and over: some a second of each kind.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use mq_transport::LineLimit;

use crate::{clock, lock::lock};

/// The kind of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Line {
    /// A listener that cannot accept a client.
    CannotAccept,
    /// A client for which the broker was not reached.
    Unreachable,
    /// A client whose CONNECT the broker did not answer.
    Unanswered,
}

impl Line {
    const ALL: [Self; 3] = [Self::CannotAccept, Self::Unreachable, Self::Unanswered];

    /// Returns the lines of this kind within [`LineLimit::WINDOW`].
    fn most(self) -> u32 {
        match self {
            // An error of the system: one says all.
            Self::CannotAccept => 1,
            Self::Unreachable | Self::Unanswered => 10,
        }
    }

    /// Returns the first words of a line.
    fn words(self) -> &'static str {
        match self {
            Self::CannotAccept => "cannot accept clients for a moment",
            Self::Unreachable => "broker unreachable",
            Self::Unanswered => "CONNECT unanswered",
        }
    }
}

/// Bounds on the lines of one relay.
#[derive(Debug)]
pub(crate) struct LogLines {
    limits: [Mutex<LineLimit>; Line::ALL.len()],
    /// `true` while a task waits to tell what was left out.
    is_telling: AtomicBool,
}

impl Default for LogLines {
    fn default() -> Self {
        Self {
            limits: Line::ALL.map(|line| Mutex::new(LineLimit::new(line.most()))),
            is_telling: AtomicBool::new(false),
        }
    }
}

impl LogLines {
    /// Writes a line by `write`, which takes the number of lines left out before it, unless there were too many of its kind.
    pub(crate) fn write(self: &Arc<Self>, line: Line, write: impl FnOnce(Option<u64>, &str)) {
        let admitted = lock(&self.limits[line as usize]).admit(clock::now());
        if let Some(left_out) = admitted {
            write((left_out > 0).then_some(left_out), line.words());
        } else if !self.is_telling.swap(true, Ordering::SeqCst) {
            tokio::spawn(Arc::clone(self).tell());
        }
    }

    /// Tells the counts of lines left out where no further line has told them, until there are none.
    async fn tell(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LineLimit::WINDOW).await;
            self.is_telling.store(false, Ordering::SeqCst);
            let is_left = self.flush(clock::now());
            if !is_left || self.is_telling.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Tells the counts of the windows that are over. Returns `true` if there are others.
    fn flush(&self, now: Instant) -> bool {
        let mut is_left = false;
        for line in Line::ALL {
            let mut limit = lock(&self.limits[line as usize]);
            if let Some(left_out) = limit.flush(now) {
                tracing::warn!(left_out, "{}; further lines left out", line.words());
            }
            is_left |= limit.has_left_out();
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt, time::Duration};

    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span,
        subscriber::DefaultGuard,
    };

    use super::*;

    /// Log that keeps each line with its count.
    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<Vec<(String, u64)>>>);

    impl Subscriber for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = KeptLine::default();
            event.record(&mut line);
            lock(&self.0).push((line.message, line.left_out));
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[derive(Default)]
    struct KeptLine {
        message: String,
        left_out: u64,
    }

    impl Visit for KeptLine {
        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "left_out" {
                self.left_out = value;
            }
        }

        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                self.message = format!("{value:?}");
            }
        }
    }

    /// Makes bounds whose lines are kept as long as the guard lives.
    fn kept_lines() -> (Arc<LogLines>, Kept, DefaultGuard) {
        let kept = Kept::default();
        let guard = tracing::subscriber::set_default(kept.clone());
        (Arc::default(), kept, guard)
    }

    fn write(lines: &Arc<LogLines>, line: Line) {
        lines.write(line, |left_out, words| tracing::warn!(left_out, "{words}"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_without_a_broker_is_ten_lines_a_second_and_a_count() {
        let (lines, kept, _guard) = kept_lines();
        for _ in 0..5_000 {
            write(&lines, Line::Unreachable);
        }
        write(&lines, Line::CannotAccept);
        let taken = std::mem::take(&mut *lock(&kept.0));
        assert_eq!(taken.len(), 11, "{taken:?}");
        tokio::time::sleep(Duration::from_secs(3)).await;
        let told = std::mem::take(&mut *lock(&kept.0));
        let line = "broker unreachable; further lines left out".to_owned();
        assert_eq!(told, [(line, 4_990)]);
    }

    #[tokio::test(start_paused = true)]
    async fn every_line_is_written_or_counted() {
        let (lines, kept, _guard) = kept_lines();
        // Listeners that fail ten times a second, for a minute.
        for _ in 0..600 {
            write(&lines, Line::CannotAccept);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let taken = std::mem::take(&mut *lock(&kept.0));
        let (told, written): (Vec<_>, Vec<_>) = taken
            .into_iter()
            .partition(|(message, _)| message.ends_with("left out"));
        let counts = told.iter().chain(&written).map(|(_, left_out)| left_out);
        assert_eq!(written.len() as u64 + counts.sum::<u64>(), 600);
        assert!(written.len() <= 61, "{}", written.len());
        assert!(!lines.is_telling.load(Ordering::SeqCst));
    }
}
