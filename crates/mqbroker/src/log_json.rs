//! Log lines in JSON, with each text quoted once.
//!
//! Texts of clients come escaped for a line of text ([`Escaped`](mq_broker)): quoted if they have a space or anything that
//! could look like another field. The formatter of JSON takes such a text for a value and quotes it again:
//! `"user":"\"a b\""`. Here it becomes `"user":"a b"`. Characters that cannot be printed stay escaped, in the form of JSON.

use std::{fmt::Write as _, io};

use crate::log_writer::LogWriter;

/// The log in JSON. A line comes as one piece, as [`LogWriter`] has it.
#[derive(Clone, Debug)]
pub(crate) struct JsonLines(pub(crate) LogWriter);

impl io::Write for JsonLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line).ok().and_then(quoted_once) {
            Some(changed) => self.0.write_all(changed.as_bytes())?,
            None => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The beginning of a value that is quoted twice. Within a string it cannot occur, as its quotes are escaped there.
const TWICE: &str = r#":"\""#;

/// Returns the line with its values quoted once; `None` if nothing is quoted twice.
fn quoted_once(line: &str) -> Option<String> {
    let mut changed = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(TWICE) {
        let value = &rest[at + 1..];
        let end = 1 + end_of_string(&value[1..])?;
        let text: String = serde_json::from_str(&value[..end]).ok()?;
        let is_message = rest[..at].ends_with("\"message\"");
        changed += &rest[..=at];
        match unescaped(&text).filter(|_| !is_message) {
            Some(once) => {
                changed.push('"');
                changed += &once;
                changed.push('"');
            }
            None => changed += &value[..end],
        }
        rest = &value[end..];
    }
    (!changed.is_empty()).then(|| changed + rest)
}

/// Returns the length of the rest of a string in JSON, its closing quote included.
fn end_of_string(rest: &str) -> Option<usize> {
    let mut is_escaped = false;
    let end = rest.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.map(|end| end + 1)
}

/// Turns a text that is quoted as in Rust's literals, and what follows it, into the inner part of a string in JSON. `None` if
/// it is another text.
fn unescaped(text: &str) -> Option<String> {
    let (inner, behind) = text.strip_prefix('"')?.rsplit_once('"')?;
    let mut json = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next()? {
                same @ ('"' | '\\' | 'n' | 'r' | 't') => {
                    json.push('\\');
                    json.push(same);
                }
                '\'' => json.push('\''),
                '0' => json += "\\u0000",
                'u' => {
                    let code: String = characters.by_ref().take_while(|c| *c != '}').collect();
                    let code = u32::from_str_radix(code.strip_prefix('{')?, 16).ok()?;
                    let escaped = char::from_u32(code)?;
                    for unit in escaped.encode_utf16(&mut [0; 2]) {
                        let _ = write!(json, "\\u{unit:04x}");
                    }
                }
                _ => return None,
            },
            // Two texts, such as those of a list.
            '"' => return None,
            plain => json.push(plain),
        }
    }
    let behind = serde_json::to_string(behind).ok()?;
    Some(json + behind.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_quoted_once_and_stays_escaped() {
        for (value, once) in [
            (r#""a b""#, r#""a b""#),
            (r#""x\" user=root""#, r#""x\" user=root""#),
            (r#""a\\b\'c\nd\0""#, r#""a\\b'c\nd\u0000""#),
            (r#""\u{202e}gnp""#, r#""\u202egnp""#),
            (r#""\u{10ffff}""#, r#""\udbff\udfff""#),
            (r#""Zürich"… (300 bytes)"#, r#""Zürich… (300 bytes)""#),
            (r#""""#, r#""""#),
            // A list and a half are other texts.
            (r#""a", "b""#, r#""\"a\", \"b\"""#),
            (r#""a"#, r#""\"a""#),
        ] {
            let text = serde_json::to_string(value).unwrap();
            let line = format!("{{\"message\":\"m\",\"user\":{text},\"n\":1}}\n");
            let expected = format!("{{\"message\":\"m\",\"user\":{once},\"n\":1}}\n");
            assert_eq!(quoted_once(&line).unwrap(), expected);
        }
        assert_eq!(
            quoted_once("{\"message\":\"a \\\"b\\\"\",\"user\":\"ann\"}"),
            None
        );
        let message = r#"{"message":"\"a\" b \"c\"","x":1}"#;
        assert_eq!(quoted_once(message).as_deref(), Some(message));
    }
}
