//! A bound on the lines of a log.

use std::time::{Duration, Instant};

/// Bound on the log lines of one kind, which counts the lines that it leaves out.
///
/// Any peer can cause some lines, such as one about each connection that is refused: without a bound it could fill the disk. The next
/// line that is written tells the count, or a line of its own where none follows ([`flush`](Self::flush)).
///
/// ```
/// use std::time::Instant;
///
/// use mq_transport::LineLimit;
///
/// let mut limit = LineLimit::new(1);
/// let now = Instant::now();
/// assert_eq!(limit.admit(now), Some(0));
/// assert_eq!(limit.admit(now), None);
/// assert_eq!(limit.admit(now + LineLimit::WINDOW), Some(1));
/// ```
#[derive(Debug)]
pub struct LineLimit {
    /// Lines that may be written in a window.
    most: u32,
    began: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LineLimit {
    /// Time for which lines are counted together, from the first one on: 1 s.
    pub const WINDOW: Duration = Duration::from_secs(1);

    /// Makes a bound of so many lines within [`WINDOW`](Self::WINDOW).
    #[must_use]
    pub fn new(most: u32) -> Self {
        Self {
            most,
            began: None,
            lines: 0,
            left_out: 0,
        }
    }

    /// Returns the number of lines left out before this one, if it may be written.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.is_over(now) {
            self.began = Some(now);
            self.lines = 0;
        }
        if self.lines == self.most {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(core::mem::take(&mut self.left_out))
    }

    /// Returns the number of lines left out, once no line of the same window can tell it.
    pub fn flush(&mut self, now: Instant) -> Option<u64> {
        (self.left_out > 0 && self.is_over(now)).then(|| core::mem::take(&mut self.left_out))
    }

    /// Returns `true` if lines were left out and not told yet.
    #[must_use]
    pub fn has_left_out(&self) -> bool {
        self.left_out > 0
    }

    fn is_over(&self, now: Instant) -> bool {
        self.began
            .is_none_or(|began| now.saturating_duration_since(began) >= Self::WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_are_written_and_the_next_tells_what_was_left_out() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut limit = LineLimit::new(10);
        for _ in 0..10 {
            assert_eq!(limit.admit(at(0)), Some(0));
        }
        for ms in 0..999 {
            assert_eq!(limit.admit(at(ms)), None);
        }
        assert_eq!(limit.flush(at(999)), None, "the window lasts");
        assert_eq!(limit.admit(at(1_000)), Some(999));
        assert_eq!(limit.admit(at(1_000)), Some(0));
        assert_eq!(limit.flush(at(5_000)), None, "it has been told");
    }

    #[test]
    fn what_no_line_follows_is_told_once() {
        let start = Instant::now();
        let mut limit = LineLimit::new(10);
        for _ in 0..17 {
            limit.admit(start);
        }
        let later = start + LineLimit::WINDOW;
        assert_eq!(limit.flush(later), Some(7));
        assert_eq!(limit.flush(later), None);
        assert_eq!(limit.admit(later), Some(0));
    }

    #[test]
    fn a_steady_stream_gets_ten_lines_a_second_and_none_is_lost() {
        let start = Instant::now();
        let mut limit = LineLimit::new(10);
        let (mut lines, mut left_out) = (0, 0);
        for ms in 0..10_000 {
            if let Some(before) = limit.admit(start + Duration::from_millis(ms)) {
                lines += 1;
                left_out += before;
            }
        }
        left_out += limit.flush(start + Duration::from_secs(20)).unwrap();
        assert_eq!((lines, lines + left_out), (100, 10_000));
    }
}
