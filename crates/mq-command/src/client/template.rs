//! Format of a printed message: `-F`, with the letters of `mosquitto_sub`.

use anyhow::bail;
use jiff::Zoned;
use mq_client::Incoming;

use super::{
    escape::escaped,
    json_text::{compact, indented},
};

/// A format, read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Template(Vec<Piece>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Text(Vec<u8>),
    /// A part of the message.
    Field {
        letter: char,
        pad: Pad,
    },
    /// `@X`: a part of the time of arrival, as in strftime.
    Time(char),
}

/// Width of a field, and its padding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Pad {
    width: usize,
    left: bool,
    zeros: bool,
    /// No more characters than that.
    precision: Option<usize>,
}

/// The letters behind `%`.
const LETTERS: &str = "ACDEFIJPRSUXdjlmpqrtx";

impl Template {
    /// Makes a template of the payload alone.
    pub(crate) fn payload() -> Self {
        Self(vec![field('p')])
    }

    /// Reads a format.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut pieces = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text.chars().peekable();
        while let Some(next) = rest.next() {
            let piece = match next {
                '%' if rest.next_if_eq(&'%').is_some() => None,
                '@' if rest.next_if_eq(&'@').is_some() => None,
                '%' => {
                    let pad = Pad::parse(&mut rest);
                    let letter = rest.next();
                    match letter {
                        Some(letter) if LETTERS.contains(letter) => {
                            Some(Piece::Field { letter, pad })
                        }
                        Some(letter) => bail!("-F: %{letter} is none of %{LETTERS}"),
                        None => bail!("-F ends with %"),
                    }
                }
                '@' => match rest.next() {
                    Some(letter) => Some(Piece::Time(letter)),
                    None => bail!("-F ends with @"),
                },
                '\\' => {
                    literal.push(match rest.next() {
                        Some('0') => 0,
                        Some('a') => 7,
                        Some('e') => 0x1b,
                        Some('n') => b'\n',
                        Some('r') => b'\r',
                        Some('t') => b'\t',
                        Some('v') => 0x0b,
                        Some('\\') => b'\\',
                        _ => bail!("-F: after \\ comes one of \\0aenrtv"),
                    });
                    continue;
                }
                other => {
                    let mut buffer = [0; 4];
                    literal.extend_from_slice(other.encode_utf8(&mut buffer).as_bytes());
                    continue;
                }
            };
            match piece {
                None => literal.push(if next == '%' { b'%' } else { b'@' }),
                Some(piece) => {
                    if !literal.is_empty() {
                        pieces.push(Piece::Text(core::mem::take(&mut literal)));
                    }
                    pieces.push(piece);
                }
            }
        }
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Self(pieces))
    }

    /// Appends the message, without an end of line. With `escape` its parts cannot control a terminal.
    pub(crate) fn write(
        &self,
        message: &Incoming,
        at: &Zoned,
        pretty: bool,
        escape: bool,
        out: &mut Vec<u8>,
    ) {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Time(letter) => {
                    out.extend_from_slice(
                        at.strftime(&format!("%{letter}")).to_string().as_bytes(),
                    );
                }
                Piece::Field { letter: 'p', pad } if escape => {
                    pad.write(&escaped(&message.payload), out);
                }
                Piece::Field { letter: 'p', pad } if *pad == Pad::default() => {
                    out.extend_from_slice(&message.payload);
                }
                Piece::Field { letter, pad } => {
                    let value = value(*letter, message, at, pretty);
                    if escape {
                        pad.write(&escaped(value.as_bytes()), out);
                    } else {
                        pad.write(&value, out);
                    }
                }
            }
        }
    }
}

/// Reads a number, if there is one. A number wider than any terminal is a mistake, and would cost memory a message.
fn digits(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<usize> {
    let mut number: Option<usize> = None;
    while let Some(digit) = rest.next_if(char::is_ascii_digit) {
        let digit = digit.to_digit(10).unwrap_or_default() as usize;
        number = Some((number.unwrap_or_default() * 10 + digit).min(10_000));
    }
    number
}

fn field(letter: char) -> Piece {
    let pad = Pad::default();
    Piece::Field { letter, pad }
}

impl Pad {
    /// Parses `-`, `0`, a width and `.` with a precision, each of which may be missing.
    fn parse(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Self {
        let mut pad = Self::default();
        while let Some(flag) = rest.next_if(|next| matches!(next, '-' | '0')) {
            pad.left |= flag == '-';
            pad.zeros |= flag == '0';
        }
        pad.width = digits(rest).unwrap_or_default();
        if rest.next_if_eq(&'.').is_some() {
            pad.precision = Some(digits(rest).unwrap_or_default());
        }
        pad
    }

    fn write(&self, text: &str, out: &mut Vec<u8>) {
        let most = self.precision.unwrap_or(usize::MAX);
        let text: String = text.chars().take(most).collect();
        let missing = self.width.saturating_sub(text.chars().count());
        let fill = if self.zeros && !self.left { b'0' } else { b' ' };
        if !self.left {
            out.extend(std::iter::repeat_n(fill, missing));
        }
        out.extend_from_slice(text.as_bytes());
        if self.left {
            out.extend(std::iter::repeat_n(b' ', missing));
        }
    }
}

fn value(letter: char, message: &Incoming, at: &Zoned, pretty: bool) -> String {
    let properties = &message.properties;
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    match letter {
        'C' => text(message.content_type()),
        'D' => String::from_utf8_lossy(message.correlation_data().map_or(&[][..], |data| data))
            .into_owned(),
        'E' => number(properties.message_expiry_interval),
        'F' => number(properties.payload_is_utf8.map(u8::from)),
        'I' => at.strftime("%Y-%m-%dT%H:%M:%S%z").to_string(),
        'J' => json(message, at, true, pretty),
        'P' => {
            let pairs: Vec<_> = message
                .user_properties()
                .map(|(name, value)| format!("{name}:{value}"))
                .collect();
            pairs.join(" ")
        }
        'R' => text(message.response_topic()),
        'S' => {
            let ids = message.subscription_ids.iter();
            ids.map(|id| id.get().to_string())
                .collect::<Vec<_>>()
                .join(" ")
        }
        'U' => {
            let time = at.timestamp();
            format!("{}.{:09}", time.as_second(), time.subsec_nanosecond())
        }
        'X' => hex(&message.payload, true),
        'x' => hex(&message.payload, false),
        'd' => u8::from(message.dup).to_string(),
        'j' => json(message, at, false, pretty),
        'l' => message.payload.len().to_string(),
        'p' => String::from_utf8_lossy(&message.payload).into_owned(),
        'q' => (message.qos as u8).to_string(),
        'r' => u8::from(message.retain).to_string(),
        't' => message.topic.as_str().to_owned(),
        // What this side does not know: topic aliases and packet identifiers stay with the connection.
        _ => String::new(),
    }
}

fn number<T: ToString>(number: Option<T>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

fn hex(bytes: &[u8], upper: bool) -> String {
    let digits: fn(&u8) -> String = if upper {
        |byte| format!("{byte:02X}")
    } else {
        |byte| format!("{byte:02x}")
    };
    bytes.iter().map(digits).collect()
}

/// Formats the message as JSON; its payload as text, or with `raw` as the JSON that it is.
fn json(message: &Incoming, at: &Zoned, raw: bool, pretty: bool) -> String {
    use serde_json::{Map, Value};

    let mut object = Map::new();
    let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
    set(
        "tst",
        at.strftime("%Y-%m-%dT%H:%M:%S.%6f%z").to_string().into(),
    );
    set("topic", message.topic.as_str().into());
    set("qos", (message.qos as u8).into());
    set("retain", u8::from(message.retain).into());
    set("payloadlen", message.payload.len().into());
    let properties = json_properties(message);
    if !properties.is_empty() {
        set("properties", properties.into());
    }
    let as_json = compact(&message.payload).filter(|_| raw);
    let payload = as_json.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&message.payload);
        let value = Some(text).filter(|text| !text.is_empty());
        Value::from(value).to_string()
    });
    // Put together as text: a number that is read and written again would lose digits.
    let mut written = serde_json::to_string(&object).unwrap_or_default();
    written.pop();
    written.push_str(",\"payload\":");
    written.push_str(&payload);
    written.push('}');
    if pretty {
        indented(&written, usize::MAX)
    } else {
        written
    }
}

fn json_properties(message: &Incoming) -> serde_json::Map<String, serde_json::Value> {
    let mut object = serde_json::Map::new();
    let mut set = |name: &str, value: serde_json::Value| object.insert(name.to_owned(), value);
    let properties = &message.properties;
    if let Some(text) = message.content_type() {
        set("content-type", text.into());
    }
    if let Some(data) = message.correlation_data() {
        set("correlation-data", String::from_utf8_lossy(data).into());
    }
    if let Some(seconds) = properties.message_expiry_interval {
        set("message-expiry-interval", seconds.into());
    }
    if let Some(is_utf8) = properties.payload_is_utf8 {
        set("payload-format-indicator", u8::from(is_utf8).into());
    }
    if let Some(topic) = message.response_topic() {
        set("response-topic", topic.into());
    }
    let pairs: Vec<_> = message
        .user_properties()
        .map(|(name, value)| serde_json::json!({ name: value }))
        .collect();
    if !pairs.is_empty() {
        set("user-properties", pairs.into());
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_read_into_pieces() {
        let template = Template::parse("%t %-5q|%05l|%.3p%%\\n@H").unwrap();
        let text = |text: &str| Piece::Text(text.as_bytes().to_vec());
        let padded = |letter, pad| Piece::Field { letter, pad };
        let expected = vec![
            field('t'),
            text(" "),
            padded(
                'q',
                Pad {
                    width: 5,
                    left: true,
                    ..Pad::default()
                },
            ),
            text("|"),
            padded(
                'l',
                Pad {
                    width: 5,
                    zeros: true,
                    ..Pad::default()
                },
            ),
            text("|"),
            padded(
                'p',
                Pad {
                    precision: Some(3),
                    ..Pad::default()
                },
            ),
            text("%\n"),
            Piece::Time('H'),
        ];
        assert_eq!(template, Template(expected));
    }

    #[test]
    fn a_mistake_is_named() {
        for wrong in ["%", "%z", "\\q", "@", "%-"] {
            let error = Template::parse(wrong).unwrap_err().to_string();
            assert!(error.starts_with("-F"), "{error}");
        }
    }

    #[test]
    fn a_width_is_bounded() {
        let Template(pieces) = Template::parse("%99999999999999999999999q").unwrap();
        let Piece::Field { pad, .. } = &pieces[0] else {
            panic!("{pieces:?}");
        };
        assert_eq!(pad.width, 10_000);
    }
}
