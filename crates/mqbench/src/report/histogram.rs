//! A latency histogram as text, one bar a bucket.

use std::fmt::Write;

use mq_measure::{LatencyRecorder, buckets};

use crate::units::format_time;

const BARS: usize = 40;

/// Formats a histogram, or one line that says that it is empty.
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
        let bar = bar(bucket.count, most, BARS);
        let from = format_time(bucket.from_ns);
        let to = format_time(bucket.to_ns);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  {from:>8} – {to:>8} │{bar:<BARS$}│ {}",
            bucket.count
        );
    }
    text
}

/// Columns of a terminal.
pub(super) const WIDTH: usize = 80;

/// Formats the histograms of several recorders on one scale: a row a bucket, a column a recorder. Fits 80 columns with
/// up to ten.
pub(crate) fn side_by_side(recorders: &[(&str, &LatencyRecorder)]) -> String {
    let each: Vec<_> = recorders.iter().map(|(_, recorder)| *recorder).collect();
    let all = buckets::side_by_side(&each, 16);
    let most = all.iter().flatten().map(|bucket| bucket.count).max();
    let (Some(first), Some(most)) = (all.first(), most.filter(|most| *most > 0)) else {
        return "no message arrived\n".to_owned();
    };
    let label = format!("  {:>8} – {:>8} ", "", "").chars().count();
    let bars = ((WIDTH - label) / all.len())
        .saturating_sub(1)
        .clamp(3, BARS);
    let mut text = " ".repeat(label);
    for (name, _) in recorders {
        let _ = write!(text, "│{name:<bars$.bars$}");
    }
    text = format!("{}\n", text.trim_end());
    for (row, bucket) in first.iter().enumerate() {
        let mut line = format!(
            "  {:>8} – {:>8} ",
            format_time(bucket.from_ns),
            format_time(bucket.to_ns)
        );
        for column in &all {
            let bar = bar(column[row].count, most, bars);
            let _ = write!(line, "│{bar:<bars$}");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Draws a bar that is linear in the number of messages; any message shows at least a dot.
fn bar(count: u64, most: u64, width: usize) -> String {
    let share = usize::try_from(count * width as u64 / most).unwrap_or(width);
    match (count, share) {
        (0, _) => String::new(),
        (_, 0) => "·".to_owned(),
        (_, share) => "█".repeat(share),
    }
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
    #[test]
    fn histograms_side_by_side_fit_a_terminal() {
        let (mut soon, mut late) = (LatencyRecorder::new(), LatencyRecorder::new());
        soon.extend([1_000_000; 8]);
        late.extend([1_000_000, 200_000_000]);
        let text = side_by_side(&[("tcp", &soon), ("tls", &late), ("quic", &late)]);
        assert!(
            text.lines().all(|line| line.chars().count() <= WIDTH),
            "{text}"
        );
        let (head, first) = (text.lines().next().unwrap(), text.lines().nth(1).unwrap());
        assert!(head.contains("│tcp") && head.ends_with("│quic"), "{text}");
        // An eighth of the longest bar.
        assert_eq!(first.matches('█').count(), 18 + 2 + 2, "{text}");
        assert!(side_by_side(&[("tcp", &LatencyRecorder::new())]).contains("no message"));
    }
}
