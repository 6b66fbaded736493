//! A latency histogram as text, one bar a bucket.

use std::fmt::Write;

use mq_measure::{LatencyRecorder, buckets};

use crate::units::time;

const BARS: usize = 40;

/// The histogram, or one line that there is nothing to show.
///
/// Buckets are spaced evenly on a logarithmic axis; bars are linear in the number of messages, and
/// any bucket that is not empty shows at least a dot.
pub(crate) fn render(title: &str, recorder: &LatencyRecorder) -> String {
    let buckets = buckets::buckets(recorder, 16);
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0);
    let mut text = format!("{title}\n");
    if most == 0 {
        text.push_str("  no message arrived\n");
        return text;
    }
    for bucket in buckets {
        let share = usize::try_from(bucket.count * BARS as u64 / most).unwrap_or(BARS);
        let bar = match (bucket.count, share) {
            (0, _) => String::new(),
            (_, 0) => "·".to_owned(),
            (_, share) => "█".repeat(share),
        };
        let from = time(bucket.from_ns);
        let to = time(bucket.to_ns);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  {from:>8} – {to:>8} │{bar:<BARS$}│ {}",
            bucket.count
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_in_a_bar() {
        let mut recorder = LatencyRecorder::new();
        recorder.extend([1_000_000, 1_000_000, 5_000_000]);
        let text = render("tcp", &recorder);
        let total: u64 = text
            .lines()
            .skip(1)
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(total, 3, "{text}");
        assert!(render("x", &LatencyRecorder::new()).contains("no message"));
    }
}
