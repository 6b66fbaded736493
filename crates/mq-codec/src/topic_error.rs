//! Errors of topic names and topic filters.

use core::fmt;

use crate::StringError;

/// Bytes of a refused text that an error shows before the refused character.
const BEFORE: usize = 48;
/// Bytes that it shows from that character on.
const BEHIND: usize = 16;

/// Reason for which a text is not a topic name or a topic filter.
///
/// The text of the error names the rule, the character that breaks it with its place (counted in characters, from 1),
/// and at most 64 bytes of the refused text around it. Whatever a peer sends, it is one line of less than 600 bytes:
/// what cannot be printed is escaped as in Rust's literals.
///
/// ```
/// let error = mq_codec::TopicName::new("plant/+/x").unwrap_err();
/// assert_eq!(error.kind(), mq_codec::TopicErrorKind::Wildcard);
/// let text = r#"a topic name must not contain the wildcards + and #: '+' at character 7 of "plant/+/x""#;
/// assert_eq!(error.to_string(), text);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicError(Box<Refused>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Refused {
    kind: TopicErrorKind,
    /// Place and text, as they are shown; empty for an empty text.
    shown: Box<str>,
}

/// Rules that a topic name or a topic filter breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopicErrorKind {
    /// The text is not an MQTT string at all.
    #[error(transparent)]
    String(#[from] StringError),
    /// Empty `[MQTT-4.7.3-1]`.
    #[error("a topic needs at least one character")]
    Empty,
    /// A topic name with `+` or `#` `[MQTT-3.3.2-2]`.
    #[error("a topic name must not contain the wildcards + and #")]
    Wildcard,
    /// `#` that is not a whole level at the end `[MQTT-4.7.1-1]`.
    #[error("# must be the whole last level of a topic filter")]
    MultiLevelWildcard,
    /// `+` that is not a whole level `[MQTT-4.7.1-2]`.
    #[error("+ must be a whole level of a topic filter")]
    SingleLevelWildcard,
    /// `$share` without a share name and a filter `[MQTT-4.8.2-1]`, `[MQTT-4.8.2-2]`.
    #[error("a shared subscription is $share/group/filter, its group without + and #")]
    Shared,
}

impl TopicError {
    /// Makes an error for `text`, in which the character that begins at the byte `place` breaks the rule.
    #[cold]
    pub(crate) fn new(kind: TopicErrorKind, text: &[u8], place: Option<usize>) -> Self {
        let shown = show(text, place).into();
        Self(Box::new(Refused { kind, shown }))
    }

    /// Returns the rule that the text breaks.
    #[must_use]
    pub fn kind(&self) -> TopicErrorKind {
        self.0.kind
    }
}

impl fmt::Display for TopicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refused { kind, shown } = &*self.0;
        match &**shown {
            "" => kind.fmt(f),
            shown => write!(f, "{kind}: {shown}"),
        }
    }
}

impl core::error::Error for TopicError {}

/// Shows the refused character, its place, and the text around it.
fn show(text: &[u8], place: Option<usize>) -> String {
    if text.is_empty() {
        return String::new();
    }
    let mut shown = String::new();
    if let Some(place) = place {
        let before = String::from_utf8_lossy(&text[..place]).chars().count();
        let refused = text[place..].utf8_chunks().next();
        let refused = refused.and_then(|chunk| chunk.valid().chars().next());
        let refused = refused.map_or_else(
            || format!("byte {:#04x}", text[place]),
            |refused| format!("{refused:?}"),
        );
        shown = format!("{refused} at character {} of ", before + 1);
    }
    let begins_character = |at: &usize| text.get(*at).is_none_or(|byte| byte & 0xC0 != 0x80);
    let place = place.unwrap_or(0);
    // At most three bytes further on, if the text is well-formed.
    let start = (place.saturating_sub(BEFORE)..=place).find(begins_character);
    let start = start.unwrap_or(place);
    let end = text.len().min(place + BEHIND);
    let end = (start..=end).rev().find(begins_character).unwrap_or(end);
    shown += if start > 0 { "…\"" } else { "\"" };
    for chunk in text[start..end].utf8_chunks() {
        shown.extend(chunk.valid().chars().flat_map(char::escape_debug));
        shown += &chunk.invalid().escape_ascii().to_string();
    }
    shown += if end < text.len() { "\"…" } else { "\"" };
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_shown_around_the_refused_character() {
        let kind = TopicErrorKind::Wildcard;
        for (text, place, shown) in [
            ("a#", 1, "'#' at character 2 of \"a#\"".to_owned()),
            (
                &format!("{}#{}", "ä".repeat(100), "b".repeat(100)),
                200,
                format!(
                    "'#' at character 101 of …\"{}#{}\"…",
                    "ä".repeat(24),
                    "b".repeat(15)
                ),
            ),
            (
                &format!("+{}", "\u{10FFFF}".repeat(9)),
                0,
                format!("'+' at character 1 of \"+{}\"…", "\\u{10ffff}".repeat(3)),
            ),
        ] {
            let error = TopicError::new(kind, text.as_bytes(), Some(place));
            assert_eq!(error.to_string(), format!("{kind}: {shown}"));
        }
    }

    #[test]
    fn any_bytes_are_one_short_line_of_printable_characters() {
        for unit in [
            "\x01",
            "\"",
            "\u{202e}",
            "\u{feff}",
            "\u{10FFFF}",
            "\n",
            "a",
        ] {
            let text = unit.repeat(65_535 / unit.len());
            for place in [0, unit.len(), 1_000 * unit.len()] {
                for cut in [0, 1] {
                    let text = &text.as_bytes()[..text.len() - cut];
                    let error = TopicError::new(TopicErrorKind::Shared, text, Some(place));
                    let shown = error.to_string();
                    assert!(shown.len() < 600, "{} {shown}", shown.len());
                    assert!(
                        shown.chars().all(|c| (' '..='~').contains(&c) || c == '…'),
                        "{shown}"
                    );
                }
            }
        }
        let zeros = TopicError::new(TopicErrorKind::Shared, &[0xFF; 2_000], Some(1_000));
        assert!(zeros.to_string().len() < 600);
    }
}
