//! The logs of a testbed with two machines, as the papers keep them: what the publisher sent, what
//! the subscriber received (S22 §4), and how the two are joined.
//!
//! A log is CSV. Its first line names the kind of log and the run:
//!
//! ```text
//! # mq send-log v1 run=20240501-wifi-0 clock=realtime host=pub
//! seq,intended_ns,sent_ns
//! 0,1714560000000000000,1714560000000012345
//! ```
//!
//! Times are nanoseconds since the Unix epoch on the machine's own clock. The receive log has the
//! columns `seq,received_ns`, and a line for every arrival, duplicates too. [`clock`](crate::clock) relates
//! the clocks of the two machines.

mod join;
mod outcome;
mod read;
mod write;

pub use join::{Joined, join_topics};
pub use outcome::{Difference, OUTCOME_SCHEMA, Outcome};
pub use read::{ReadLog, parse_receive_log, parse_send_log, read_receive_log, read_send_log};
pub use write::{FLUSH_EVERY, LogWriter};

use std::fmt::{self, Write};

use serde::{Deserialize, Serialize};

/// A line of the send log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRecord {
    /// The message's number in the run.
    pub seq: u64,
    /// Intended send time by the schedule, in nanoseconds since the Unix epoch.
    pub intended_ns: u64,
    /// Actual send time, at which the message is handed to the transport, in nanoseconds since the Unix epoch.
    pub sent_ns: u64,
}

/// A line of the receive log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveRecord {
    /// The message's number in the run.
    pub seq: u64,
    /// Time of the arrival, in nanoseconds since the Unix epoch.
    pub received_ns: u64,
}

/// A kind of record, and of the log that holds it.
pub trait Record: fmt::Display + sealed::Sealed {
    /// The log's name in its first line.
    const KIND: &'static str;
    /// The column names.
    const COLUMNS: &'static str;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::SendRecord {}
    impl Sealed for super::ReceiveRecord {}
}

impl Record for SendRecord {
    const KIND: &'static str = "send-log";
    const COLUMNS: &'static str = "seq,intended_ns,sent_ns";
}

impl Record for ReceiveRecord {
    const KIND: &'static str = "receive-log";
    const COLUMNS: &'static str = "seq,received_ns";
}

impl fmt::Display for SendRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.seq, self.intended_ns, self.sent_ns)
    }
}

impl fmt::Display for ReceiveRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.seq, self.received_ns)
    }
}

/// The first line of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogMeta {
    /// The name of the run; both logs of a run have the same.
    pub run: String,
    /// The clock of its times, such as `realtime`.
    pub clock: String,
    /// The machine whose clock the times are of.
    pub host: String,
}

impl LogMeta {
    /// Describes a log of `run`, kept on `host` with its real-time clock.
    #[must_use]
    pub fn new(run: &str, host: &str) -> Self {
        Self {
            run: run.to_owned(),
            clock: "realtime".to_owned(),
            host: host.to_owned(),
        }
    }

    /// Formats the first line, without line break: words `key=value`, in which blanks, line breaks, `=` and `%` are
    /// written as `%` and two hexadecimal digits.
    fn first_line(&self, kind: &str) -> String {
        let own = [
            ("run", &self.run),
            ("clock", &self.clock),
            ("host", &self.host),
        ];
        let mut line = format!("# mq {kind} v1");
        for (key, value) in own {
            // Writing to a string cannot fail.
            let _ = write!(line, " {key}={}", escape(value));
        }
        line
    }

    /// Reads the first line, without its `#`; `None` if the line is not that of such a log.
    fn parse(line: &str, kind: &str) -> Option<Self> {
        let rest = line
            .strip_prefix("mq ")?
            .strip_prefix(kind)?
            .strip_prefix(" v1")?;
        if !rest.is_empty() && !rest.starts_with(' ') {
            return None;
        }
        let mut meta = Self::default();
        for word in rest.split_ascii_whitespace() {
            let (key, value) = word.split_once('=')?;
            let value = unescape(value)?;
            match key {
                "run" => meta.run = value,
                "clock" => meta.clock = value,
                "host" => meta.host = value,
                _ => {}
            }
        }
        Some(meta)
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii_whitespace()
            || character.is_ascii_control()
            || "=%".contains(character)
        {
            let _ = write!(escaped, "%{:02x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Returns the text of [`escape`], which escapes single ASCII characters; UTF-8 stands as it is, unlike in a URI.
fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut plain = parts.next()?.to_owned();
    for part in parts {
        let code = u8::from_str_radix(part.get(..2)?, 16).ok()?;
        plain.push(char::from(code));
        plain.push_str(&part[2..]);
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn first_line_is_as_documented() {
        let meta = LogMeta::new("20240501-wifi-0", "pub");
        let line = meta.first_line("send-log");
        assert_eq!(
            line,
            "# mq send-log v1 run=20240501-wifi-0 clock=realtime host=pub"
        );
    }

    #[test]
    fn other_kinds_and_versions_are_refused() {
        for line in [
            "mq receive-log v1 run=a",
            "mq send-log v2",
            "mq send-log v10 run=a",
            "seq",
        ] {
            assert_eq!(LogMeta::parse(line, "send-log"), None, "{line}");
        }
        assert!(LogMeta::parse("mq send-log v1", "send-log").is_some());
    }

    proptest! {
        #[test]
        fn any_meta_round_trips(run: String, host: String) {
            let meta = LogMeta::new(&run, &host);
            let line = meta.first_line("send-log");
            prop_assert!(!line.contains('\n'));
            let line = format!("{} topic=t", &line[2..]);
            prop_assert_eq!(LogMeta::parse(&line, "send-log"), Some(meta));
        }
    }
}
