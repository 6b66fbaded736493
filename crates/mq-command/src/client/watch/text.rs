//! Received bytes as text that is safe on a terminal.

use std::{borrow::Cow, fmt::Write as _};

use serde::de::IgnoredAny;

use crate::client::json_text::indented;

/// Replaces whatever a terminal acts on: control characters by their pictures (U+2400), and characters that change the
/// direction of writing, or have no width of their own, by the replacement character.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if text.chars().all(|one| shown(one) == one) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(shown).collect())
}

fn shown(one: char) -> char {
    match one {
        '\0'..='\u{1f}' => char::from_u32(0x2400 + one as u32).unwrap_or(char::REPLACEMENT_CHARACTER),
        '\u{7f}' => '\u{2421}',
        // The second set of control characters, of which U+009B begins a sequence as ESC [ does.
        '\u{80}'..='\u{9f}'
        // Soft hyphen, marks and overrides of direction, joiners, separators of lines, variation selectors, tags.
        | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}' => char::REPLACEMENT_CHARACTER,
        other => other,
    }
}

/// Kind of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Empty,
    Json,
    Text,
    /// A payload that is not UTF-8.
    Bytes,
}

/// Returns the kind of a payload, and its text if it is one. A payload that was `cut` may end within a character.
pub(crate) fn read(payload: &[u8], cut: bool) -> (Kind, &str) {
    if payload.is_empty() {
        return (Kind::Empty, "");
    }
    let text = match std::str::from_utf8(payload) {
        Ok(text) => text,
        Err(error) if cut && error.error_len().is_none() => {
            let valid = &payload[..error.valid_up_to()];
            std::str::from_utf8(valid).unwrap_or_default()
        }
        Err(_) => return (Kind::Bytes, ""),
    };
    // Numbers and words alone are better left as they came.
    let first = text.trim_start().chars().next();
    let is_json =
        matches!(first, Some('{' | '[')) && serde_json::from_str::<IgnoredAny>(text).is_ok();
    (if is_json { Kind::Json } else { Kind::Text }, text)
}

/// Formats a payload on one line, of at most so many characters.
pub(crate) fn preview(payload: &[u8], cut: bool, most: usize) -> String {
    match read(payload, cut) {
        (Kind::Empty, _) => "(empty)".to_owned(),
        (Kind::Bytes, _) => {
            let mut text = "hex".to_owned();
            for byte in payload.iter().take(most / 3) {
                let _ = write!(text, " {byte:02x}");
            }
            text
        }
        (_, text) => text.chars().take(most).map(shown).collect(),
    }
}

/// Formats a payload on several lines: indented JSON if `pretty`, text, or a dump of so many bytes a line. The text
/// ends after `most` lines.
pub(crate) fn lines(
    payload: &[u8],
    cut: bool,
    pretty: bool,
    width: usize,
    most: usize,
) -> Vec<String> {
    match read(payload, cut) {
        (Kind::Empty, _) => Vec::new(),
        (Kind::Bytes, _) => dump(payload, width).take(most).collect(),
        (Kind::Json, text) if pretty => folded(&indented(text, most), width, most),
        (_, text) => folded(text, width, most),
    }
}

/// Divides a text into lines, and those that are too long into several.
fn folded(text: &str, width: usize, most: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let line = line
            .strip_suffix('\r')
            .unwrap_or(line)
            .replace('\t', "    ");
        let mut rest: Vec<char> = line.chars().map(shown).collect();
        while lines.len() < most {
            let end = rest.len().min(width);
            lines.push(rest.drain(..end).collect());
            if rest.is_empty() {
                break;
            }
        }
    }
    lines
}

/// Returns lines as `hexdump -C` prints them: an offset, sixteen or eight bytes, and those that are ASCII.
fn dump(payload: &[u8], width: usize) -> impl Iterator<Item = String> {
    let row = if width >= 5 + 16 * 4 { 16 } else { 8 };
    payload.chunks(row).enumerate().map(move |(number, bytes)| {
        let mut line = format!("{:04x} ", number * row);
        for place in 0..row {
            let _ = match bytes.get(place) {
                Some(byte) => write!(line, "{byte:02x} "),
                None => write!(line, "   "),
            };
        }
        let ascii = |byte: &u8| {
            if byte.is_ascii_graphic() {
                *byte as char
            } else {
                '.'
            }
        };
        line.extend(bytes.iter().map(ascii));
        line
    })
}

/// Formats a number in at most six characters, such as `0.3`, `950`, `12.5k` and `3.1M`.
pub(crate) fn short(number: f64) -> String {
    for (least, unit) in [(1e9, "G"), (1e6, "M"), (1e4, "k")] {
        if number >= least {
            let unit_is = if unit == "k" { 1e3 } else { least };
            return format!("{:.1}{unit}", number / unit_is);
        }
    }
    if number > 0.0 && number < 100.0 && number.fract() > 0.0 {
        return format!("{number:.1}");
    }
    format!("{number:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_that_a_terminal_acts_on_is_left() {
        let hostile = "a\u{1b}[2J\u{9b}1;1H\r\n\t\0\u{7f}\u{202e}\u{2066}\u{200d}\u{feff}é温";
        let shown = visible(hostile);
        assert!(!shown.contains(char::is_control), "{shown}");
        assert_eq!(
            shown,
            "a␛[2J\u{fffd}1;1H␍␊␉␀␡\u{fffd}\u{fffd}\u{fffd}\u{fffd}é温"
        );
        assert!(matches!(visible("plant/7 é温"), Cow::Borrowed(_)));
        for code in 0..=0x10_ffff {
            let Some(one) = char::from_u32(code) else {
                continue;
            };
            let text = one.to_string();
            for line in lines(text.as_bytes(), false, true, 10, 5) {
                assert!(!line.contains(char::is_control), "{code:x}");
            }
            assert!(
                !preview(text.as_bytes(), false, 5).contains(char::is_control),
                "{code:x}"
            );
        }
    }

    #[test]
    fn json_is_indented_and_keeps_its_numbers_and_order() {
        let text =
            br#"{"z":1.50,"a":[1e400,{"t":"x, \"{y}\\"}],"e":{ },"n":12345678901234567890123}"#;
        // serde_json refuses a number beyond what a double has.
        assert_eq!(read(text, false).0, Kind::Json);
        let lines = lines(text, false, true, 60, 99);
        let expected = [
            "{",
            "  \"z\": 1.50,",
            "  \"a\": [",
            "    1e400,",
            "    {",
            "      \"t\": \"x, \\\"{y}\\\\\"",
            "    }",
            "  ],",
            "  \"e\": {},",
            "  \"n\": 12345678901234567890123",
            "}",
        ];
        assert_eq!(lines, expected);
        assert_eq!(super::lines(text, false, true, 60, 3).len(), 3);
        assert_eq!(
            super::lines(b"{\"a\":1}", false, false, 60, 9),
            ["{\"a\":1}"]
        );
    }

    #[test]
    fn bytes_are_dumped_and_long_lines_folded() {
        let shown = lines(b"\xff\x00Hi\x1b", false, true, 80, 9);
        let expected = format!("0000 ff 00 48 69 1b {}..Hi.", "   ".repeat(11));
        assert_eq!(shown, [expected]);
        assert_eq!(preview(b"\xff\x00", false, 20), "hex ff 00");
        assert_eq!(
            lines(b"abcdef\n\ng", false, true, 4, 9),
            ["abcd", "ef", "", "g"]
        );
        assert_eq!(lines(b"1\n2\n3", false, true, 4, 2), ["1", "2"]);
        assert_eq!(lines(b"", false, true, 4, 2), [""; 0]);
        let cut = &"温".as_bytes()[..2];
        assert_eq!(read(&[b"a", cut].concat(), true), (Kind::Text, "a"));
        assert_eq!(read(&[b"a", cut].concat(), false).0, Kind::Bytes);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.31, 7.0, 99.96, 950.4, 9_999.0, 12_500.0, 3.1e6, 2e9].map(short);
        assert_eq!(
            shown,
            [
                "0", "0.3", "7", "100.0", "950", "9999", "12.5k", "3.1M", "2.0G"
            ]
        );
    }
}
