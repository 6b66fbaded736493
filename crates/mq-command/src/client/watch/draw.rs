//! The view as cells of a terminal.
//!
//! ```text
//! connected  quic://host:14567, resumed with 0-RTT, RTT 12.1 ms
//! 12 topics  3,400 messages  52/s
//! ▾ plant                         52.0/s    3400
//!   ▸ 7                           26.0/s    1700
//!     status                       0.1/s       2  1 R online      (from 60 columns: the value)
//! ─ plant/status  6 bytes, QoS 1, retained ─────
//! online
//! q quit  ? keys  / filter  p pause
//! ```
//!
//! Every text of others goes through [`visible`] on its way.

use std::time::Duration;

use ratatui::{
    Frame,
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
};

use super::{
    state::{Link, Row, State},
    text::{self, Kind, short, visible},
};

/// Help text of the keys, shown by `?`.
const HELP: [&str; 11] = [
    "arrows, h j k l   move; left and right fold",
    "enter, space      fold or unfold",
    "PgUp PgDn g G     a page; the first; the last",
    "[ ]               scroll the value",
    "/                 show topics with a text in them",
    "Esc               show all again",
    "r                 only topics with a retained message",
    "p                 pause; what comes is counted",
    "J                 JSON indented, or as it came",
    "c                 forget what came",
    "q, Ctrl-C         quit",
];

const PLAIN: Style = Style::new();
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Width from which on the value is beside the tree.
const WIDE: u16 = 110;

/// Draws all of it.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &mut State, now: Duration) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    let [top, body, bottom] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    let rows = state.rows(now);
    head(buffer, top, state, now);
    if state.help {
        for (line, y) in HELP.iter().zip(body.top()..body.bottom()) {
            put(buffer, body.x, y, body.width, line, PLAIN);
        }
    } else {
        let (tree, value) = halves(body);
        let chosen = state.chosen(&rows);
        state.page = usize::from(tree.height);
        scroll(state, chosen, rows.len());
        draw_tree(buffer, tree, state, &rows, chosen);
        draw_value(buffer, value, state, rows.get(chosen), now);
    }
    foot(buffer, bottom, state);
}

/// Divides the screen into the tree's part and the value's.
fn halves(body: Rect) -> (Rect, Rect) {
    if body.width >= WIDE {
        let [tree, value] =
            Layout::horizontal([Constraint::Percentage(60), Constraint::Percentage(40)])
                .areas(body);
        return (tree, value);
    }
    let value = (body.height / 3).clamp(0, 12);
    let [tree, value] =
        Layout::vertical([Constraint::Min(0), Constraint::Length(value)]).areas(body);
    (tree, value)
}

/// Writes a text of this program's own, or one that is visible already, as far as it fits; returns the column behind it.
fn put(buffer: &mut Buffer, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
    if width == 0 || y >= buffer.area.bottom() {
        return x;
    }
    buffer.set_stringn(x, y, text, width.into(), style).0
}

fn head(buffer: &mut Buffer, area: Rect, state: &mut State, now: Duration) {
    let (word, style, rest) = match &state.link {
        Link::Up { how, rtt } => {
            let rtt = rtt.map(|rtt| format!(", RTT {:.1} ms", rtt.as_secs_f64() * 1e3));
            let green = Style::new().fg(Color::Green).add_modifier(Modifier::BOLD);
            (
                "connected",
                green,
                format!("{how}{}", rtt.unwrap_or_default()),
            )
        }
        Link::Down { why } => {
            let red = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
            ("not connected", red, why.clone())
        }
    };
    let x = put(buffer, area.x, area.y, area.width, word, style) + 2;
    let width = area.right().saturating_sub(x);
    put(buffer, x, area.y, width, &visible(&rest), PLAIN);
    if area.height < 2 {
        return;
    }
    let paused = state.paused();
    let (topics, at) = state.shown(now);
    let left_out = match topics.left_out {
        0 => String::new(),
        messages => format!(
            " (full: {} of others left out)",
            counted(messages, "message")
        ),
    };
    let counts = format!(
        "{}{left_out}  {}  {}/s",
        counted(topics.count() as u64, "topic"),
        counted(topics.messages, "message"),
        short(topics.rate.per_second(at))
    );
    let mut x = area.x;
    let mut word = |text: &str, style: Style| {
        let width = area.right().saturating_sub(x);
        x = put(buffer, x, area.y + 1, width, text, style) + 2;
    };
    if let Some(since) = paused {
        word(&format!("PAUSED, {since} since"), BOLD);
    }
    if state.retained_only {
        word("retained only", BOLD);
    }
    if !state.filter.is_empty() && !state.typing {
        word(&format!("/{}", visible(&state.filter)), BOLD);
    }
    word(&counts, PLAIN);
}

fn foot(buffer: &mut Buffer, area: Rect, state: &State) {
    if state.typing {
        let typed = format!("/{}▏", visible(&state.filter));
        put(buffer, area.x, area.y, area.width, &typed, BOLD);
    } else {
        let keys = "q quit  ? keys  / filter  p pause  r retained  J JSON  c clear  space fold";
        put(buffer, area.x, area.y, area.width, keys, DIM);
    }
}

/// Moves the first row so that the chosen one is on the screen.
fn scroll(state: &mut State, chosen: usize, rows: usize) {
    let page = state.page.max(1);
    let most = rows.saturating_sub(page);
    let least = (chosen + 1).saturating_sub(page);
    state.top = state
        .top
        .clamp(least, chosen.max(least))
        .min(most.max(least));
}

/// Columns right of the names, the space before each among them.
struct Columns {
    name: u16,
    rate: u16,
    messages: u16,
    /// QoS and mark.
    flags: u16,
    value: u16,
}

impl Columns {
    fn of(width: u16) -> Self {
        let (rate, flags) = (9, 4);
        let messages = if width >= 50 { 8 } else { 0 };
        let rest = width.saturating_sub(rate + messages + flags);
        let value = if width >= 60 { rest * 2 / 5 } else { 0 };
        Self {
            name: rest - value,
            rate,
            messages,
            flags,
            value,
        }
    }
}

fn draw_tree(buffer: &mut Buffer, area: Rect, state: &State, rows: &[Row], chosen: usize) {
    let columns = Columns::of(area.width);
    let on_screen = rows.iter().enumerate().skip(state.top);
    for ((index, row), y) in on_screen.zip(area.top()..area.bottom()) {
        let style = if index == chosen { CHOSEN } else { PLAIN };
        let line = Rect::new(area.x, y, area.width, 1);
        buffer.set_style(line, style);
        let marker = match (row.below > 0, row.folded) {
            (true, true) => "▸ ",
            (true, false) => "▾ ",
            (false, _) => "  ",
        };
        let name = match row.name() {
            "" => "(empty)".into(),
            name => visible(name),
        };
        // A deep name begins further left, so that some of it is seen.
        let most_indent = usize::from(columns.name / 2);
        let indent = " ".repeat((2 * row.depth).min(most_indent));
        let below = if row.folded && row.below > 0 {
            format!(" ({})", row.below)
        } else {
            String::new()
        };
        let text = format!("{indent}{marker}{name}{below}");
        put(buffer, area.x, y, columns.name, &text, style);
        let mut x = area.x + columns.name;
        let mut right = |width: u16, text: &str| {
            if width > 0 {
                let text = format!("{text:>0$}", usize::from(width));
                put(buffer, x, y, width, &text, style);
                x += width;
            }
        };
        right(columns.rate, &format!("{}/s", short(row.rate)));
        right(columns.messages, &count(row.messages));
        let Some(topic) = row.topic.and_then(|index| state.topic(index)) else {
            continue;
        };
        let mark = if topic.retained { 'R' } else { ' ' };
        right(columns.flags, &format!("{} {mark}", topic.qos as u8));
        if columns.value > 1 {
            let width = columns.value - 1;
            let value = text::preview(&topic.value, topic.is_cut(), width.into());
            put(buffer, x + 1, y, width, &value, style);
        }
    }
}

/// Formats so many things.
fn counted(number: u64, thing: &str) -> String {
    let many = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{many}")
}

/// Formats a count in full while it is short.
#[expect(clippy::cast_precision_loss, reason = "four digits are shown of it")]
fn count(number: u64) -> String {
    if number < 1_000_000 {
        number.to_string()
    } else {
        short(number as f64)
    }
}

fn draw_value(
    buffer: &mut Buffer,
    area: Rect,
    state: &mut State,
    row: Option<&Row>,
    now: Duration,
) {
    if area.height == 0 {
        return;
    }
    // Beside the tree, a column stays free.
    let area = if area.x > 0 {
        Rect::new(
            area.x + 1,
            area.y,
            area.width.saturating_sub(1),
            area.height,
        )
    } else {
        area
    };
    let (_, now) = state.shown(now);
    let rule = "─".repeat(area.width.into());
    put(buffer, area.x, area.y, area.width, &rule, DIM);
    let Some(row) = row else {
        return;
    };
    let topic = row.topic.and_then(|index| state.topic(index));
    let Some(topic) = topic else {
        let below = counted(row.below as u64, "topic");
        let title = format!(" {}  {below} ", visible(&row.path));
        put(
            buffer,
            area.x + 1,
            area.y,
            area.width.saturating_sub(2),
            &title,
            BOLD,
        );
        return;
    };
    let cut = topic.is_cut();
    let kind = match text::read(&topic.value, cut).0 {
        Kind::Empty => "empty",
        Kind::Json => "JSON",
        Kind::Text => "text",
        Kind::Bytes => "not UTF-8",
    };
    let kept = if cut {
        format!(", the first {} shown", topic.value.len())
    } else {
        String::new()
    };
    let retained = if topic.retained { ", retained" } else { "" };
    let facts = format!(
        " {} bytes{kept}, {kind}, QoS {}{retained}, {} s ago ",
        topic.length,
        topic.qos as u8,
        now.saturating_sub(topic.at).as_secs()
    );
    // The facts stay whole, and the topic gets what is left.
    let facts_width = u16::try_from(facts.len()).unwrap_or(u16::MAX);
    let width = area.width.saturating_sub(2);
    let name_width = width.saturating_sub(facts_width).max(width / 3);
    let name = format!(" {}", visible(&topic.name));
    let x = put(buffer, area.x + 1, area.y, name_width, &name, BOLD);
    let left = (area.x + 1 + width).saturating_sub(x);
    put(buffer, x, area.y, left, &facts, PLAIN);
    let height = usize::from(area.height - 1);
    let wanted = state.value_top + height;
    let mut lines = text::lines(&topic.value, cut, state.pretty, area.width.into(), wanted);
    state.value_top = state.value_top.min(lines.len().saturating_sub(height));
    let visible_lines = lines.drain(state.value_top..);
    for (line, y) in visible_lines.zip(area.top() + 1..area.bottom()) {
        put(buffer, area.x, y, area.width, &line, PLAIN);
    }
}

#[cfg(test)]
mod tests;
