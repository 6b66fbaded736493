//! The picture of what late messages waited for: a bar a message, from its intended sending to its arrival.

use std::fmt::Write as _;

use mq_measure::{
    convert::{float, float_len},
    explain::Cause,
};

use super::Explained;
use crate::{report::campaign::escape, units::format_time};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 20.0;
/// Width of the longest bar.
const LONGEST: f64 = WIDTH - 2.0 * LEFT;
/// Height of a bar, and distance from one bar to the next.
const BAR: f64 = 7.0;
const STEP: f64 = 9.0;
const LINE: f64 = 18.0;

/// Greatest number of bars of a transport or cell in a picture of its own: the latest messages.
pub(crate) const MOST_BARS: usize = 40;

/// The kinds of waits, each with its colour.
const KINDS: [(&str, &str); 5] = [
    ("lost", "#b2182b"),
    ("behind a loss", "#ef8a62"),
    ("window", "#6a51a3"),
    ("link", "#92c5de"),
    ("host", "#737b85"),
];

fn kind(cause: &Cause) -> usize {
    match cause {
        Cause::Lost { .. } => 0,
        Cause::BehindLoss { .. } => 1,
        Cause::Window { .. } => 2,
        Cause::Link { .. } => 3,
        Cause::Held { .. } => 4,
    }
}

/// Draws the late messages as SVG, all on one scale, of each transport or cell the latest `most`.
pub(crate) fn svg(explained: &[Explained], most: usize) -> String {
    let mut drawn = String::new();
    let mut y = LINE;
    let mut x = LEFT;
    for (name, colour) in KINDS {
        rectangle(&mut drawn, (x, y - BAR), BAR, colour, "");
        label(&mut drawn, (x + 1.5 * BAR, y), name);
        x += 110.0;
    }
    let latest = explained.iter().flat_map(Explained::late);
    let latest = latest.map(|one| one.latency_ns).max().unwrap_or(1);
    let scale = LONGEST / float(latest.max(1));
    for one in explained {
        y += 1.5 * LINE;
        let mut late: Vec<_> = one.late().collect();
        late.sort_by_key(|message| std::cmp::Reverse(message.latency_ns));
        late.truncate(most);
        let longest = late.first().map(|message| format_time(message.latency_ns));
        let title = match longest {
            Some(longest) => format!("{}: up to {longest}", one.name),
            None => format!("{}: no message arrived", one.name),
        };
        label(&mut drawn, (LEFT, y), &title);
        y += BAR;
        for (place, message) in late.iter().enumerate() {
            let top = y + STEP * float_len(place);
            let mut x = LEFT;
            for wait in &message.waits {
                let width = float(wait.ns) * scale;
                let told = format!("message {}: {}", message.seq, format_time(wait.ns));
                let colour = KINDS[kind(&wait.cause)].1;
                rectangle(&mut drawn, (x, top), width, colour, &told);
                x += width;
            }
        }
        y += STEP * float_len(late.len());
    }
    let height = y + LINE;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" font-family=\"system-ui, DejaVu Sans, sans-serif\" \
         font-size=\"12\" fill=\"#1d2126\">\n<title>What the latest messages waited for</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{drawn}</svg>\n"
    )
}

fn rectangle(drawn: &mut String, (x, y): (f64, f64), width: f64, colour: &str, told: &str) {
    let _ = write!(
        drawn,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\">"
    );
    if !told.is_empty() {
        let _ = write!(drawn, "<title>{}</title>", escape(told));
    }
    drawn.push_str("</rect>\n");
}

fn label(drawn: &mut String, (x, y): (f64, f64), text: &str) {
    let text = escape(text);
    let _ = writeln!(drawn, "<text x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
}
