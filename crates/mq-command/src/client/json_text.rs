//! JSON as text: its numbers, the order of its members and the spelling of its texts stay as they came.

use serde::de::IgnoredAny;

/// Levels of a payload that is passed on as JSON, as many as `serde_json` reads. Indented deeper levels would be much
/// longer than the payload.
const MOST_LEVELS: usize = 128;

/// Returns JSON on one line, without spaces between its words; `None` if it is no JSON, or too deep.
pub(crate) fn compact(payload: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(payload).ok()?;
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    let mut out = String::with_capacity(text.len());
    let (mut in_text, mut escaped, mut levels) = (false, false, 0_usize);
    for one in text.chars() {
        if in_text {
            in_text = escaped || one != '"';
            escaped = !escaped && one == '\\';
            out.push(one);
            continue;
        }
        match one {
            ' ' | '\t' | '\n' | '\r' => continue,
            '{' | '[' => levels += 1,
            '}' | ']' => levels = levels.saturating_sub(1),
            '"' => in_text = true,
            _ => {}
        }
        if levels > MOST_LEVELS {
            return None;
        }
        out.push(one);
    }
    Some(out)
}

/// Returns valid JSON with one member a line, cut after `most` lines.
pub(crate) fn indented(text: &str, most: usize) -> String {
    let mut out = String::new();
    let (mut depth, mut lines) = (0_usize, 0);
    let (mut in_text, mut escaped) = (false, false);
    let mut rest = text
        .chars()
        // Texts have no such characters, which are spaces between words.
        .filter(|one| *one >= ' ')
        .peekable();
    while let Some(one) = rest.next() {
        if in_text {
            out.push(one);
            in_text = escaped || one != '"';
            escaped = !escaped && one == '\\';
            continue;
        }
        let mut line = |out: &mut String, depth: usize| {
            lines += 1;
            out.push('\n');
            out.extend(std::iter::repeat_n("  ", depth));
        };
        match one {
            ' ' => {}
            '{' | '[' => {
                out.push(one);
                while rest.next_if_eq(&' ').is_some() {}
                if let Some(end) = rest.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(one);
            }
            ',' => {
                out.push(',');
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            '"' => {
                in_text = true;
                out.push('"');
            }
            other => out.push(other),
        }
        if lines > most {
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_on_one_line_keeps_its_numbers_and_order() {
        let text = br#" {"z": 9007199254740993, "a" : [1.10, 1e400, "x \" : y"]} "#;
        let expected = r#"{"z":9007199254740993,"a":[1.10,1e400,"x \" : y"]}"#;
        assert_eq!(compact(text).as_deref(), Some(expected));
        assert_eq!(compact(b"12345678901234567890123").unwrap().len(), 23);
        for other in [&b"{"[..], b"text", b"\"\xff\"", b""] {
            assert_eq!(compact(other), None);
        }
        let deep = |levels| ["[".repeat(levels), "]".repeat(levels)].concat();
        assert!(compact(deep(128).as_bytes()).is_some());
        assert!(compact(deep(129).as_bytes()).is_none());
    }
}
