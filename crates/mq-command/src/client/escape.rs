//! Bytes of others, as text that a terminal may be given.

use std::fmt::Write as _;

/// Returns the bytes as text in which nothing controls a terminal: control characters and marks of direction are
/// written `\u001b`, as JSON has them, and bytes that are not UTF-8 `\xff`. Tabs and ends of lines stay.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid().chars().peekable();
        while let Some(one) = rest.next() {
            let ends_line = one == '\r' && rest.peek() == Some(&'\n');
            if controls(one) && !ends_line {
                let mut units = [0; 2];
                for unit in one.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            } else {
                out.push(one);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Returns true if a terminal acts on the character, or writes what follows in another direction.
fn controls(one: char) -> bool {
    match one {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        other => other.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_controls_a_terminal_is_left() {
        let hostile = "a\u{1b}[2J\u{9b}1H\u{7f}\0\u{202e}\rb\r\n\tc";
        let shown = escaped(&[hostile.as_bytes(), &[0x9b, 0xff]].concat());
        let expected = "a\\u001b[2J\\u009b1H\\u007f\\u0000\\u202e\\u000db\r\n\tc\\x9b\\xff";
        assert_eq!(shown, expected);
    }

    #[test]
    fn text_stays_as_it_is() {
        let text = "{\"t\": 21.5}\n温 é \u{2764}\u{fe0f} a\\b";
        assert_eq!(escaped(text.as_bytes()), text);
    }
}
