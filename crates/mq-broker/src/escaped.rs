//! Texts of peers, escaped for a line of the log.

use std::fmt;

/// Characters of a peer's text that are written.
const MAX_CHARACTERS: usize = 128;

/// Shows a client identifier, a user name or a topic so that it stays within its place in a line.
///
/// A peer chooses these texts. They must not end the line, change a terminal, turn the direction of
/// the text behind them, or look like another field. A text with anything but visible ASCII, or
/// with a quote, a backslash or an equals sign, is quoted. Characters that cannot be printed are
/// escaped as in Rust's literals. A text of more than 128 characters is cut, and its length in
/// bytes follows.
///
/// ```text
/// sensor-7    "a b"    "\u{202e}gnp.exe"    aaa… (65535 bytes)
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        let end = text.char_indices().nth(MAX_CHARACTERS).map(|(end, _)| end);
        let head = &text[..end.unwrap_or(text.len())];
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'=');
        if !head.is_empty() && head.bytes().all(is_plain) {
            f.write_str(head)?;
        } else {
            // Control, format, private and unassigned characters come out as `\u{..}`.
            write!(f, "{head:?}")?;
        }
        if end.is_some() {
            write!(f, "… ({} bytes)", text.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_can_neither_leave_its_place_in_a_line_nor_look_like_more() {
        for (text, shown) in [
            ("sensor-7", "sensor-7"),
            ("plant/+/#", "plant/+/#"),
            ("", r#""""#),
            ("a b", r#""a b""#),
            ("x\" user=root", r#""x\" user=root""#),
            ("a=b", r#""a=b""#),
            ("Zürich", r#""Zürich""#),
            ("a\nWARN forged", r#""a\nWARN forged""#),
            ("\u{1b}[2J", r#""\u{1b}[2J""#),
            ("\u{9b}2J\u{7f}", r#""\u{9b}2J\u{7f}""#),
            ("\u{2028}", r#""\u{2028}""#),
        ] {
            assert_eq!(Escaped(text).to_string(), shown);
        }
        let marks = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\
                     \u{2068}\u{2069}\u{feff}\u{200b}";
        assert!(Escaped(marks).to_string().is_ascii());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "ä".repeat(128);
        assert_eq!(Escaped(&text).to_string(), format!("{text:?}"));
        let longer = format!("{text}ä");
        assert_eq!(
            Escaped(&longer).to_string(),
            format!("{text:?}… (258 bytes)")
        );
        let identifier = "a".repeat(65_535);
        let shown = Escaped(&identifier).to_string();
        assert_eq!(shown, format!("{}… (65535 bytes)", "a".repeat(128)));
    }
}
