//! The history of a campaign, for whoever checks it without this program: a JSON object a line.
//!
//! | key | of |
//! |---|---|
//! | `t` | milliseconds since the campaign began |
//! | `client` | the client's identifier, or `nemesis` |
//! | `op` | the operation |
//! | `topic`, `number` | the message: each topic has one publisher, which counts from 0 |
//! | `result` | what came of the operation |

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::Path,
    sync::Mutex,
};

use mq_client::QoS;
use serde_json::{Value, json};

/// An operation of a client, or of the nemesis.
pub(crate) enum Operation<'a> {
    /// A message is given to the client.
    Send {
        topic: &'a str,
        number: usize,
        qos: QoS,
        /// Seconds until it expires.
        expiry_s: Option<u64>,
        retain: bool,
    },
    /// Outcome of a message at its client: `acknowledged`, `refused`, or why nobody knows.
    Sent {
        topic: &'a str,
        number: usize,
        result: &'a str,
    },
    Receive {
        topic: &'a str,
        text: &'a str,
    },
    /// A fresh reader gets it as the retained message.
    Retained {
        topic: &'a str,
        number: usize,
    },
    Connect {
        node: &'a str,
        session_present: bool,
    },
    Disconnect {
        why: &'a str,
    },
    /// A client with a will is connected, and its node is killed next.
    Will {
        number: usize,
    },
    Fault {
        what: &'a str,
    },
}

/// The file.
pub(crate) struct History(Mutex<BufWriter<File>>);

impl History {
    pub(crate) fn begin(file: &Path) -> Self {
        Self(Mutex::new(BufWriter::new(File::create(file).unwrap())))
    }

    pub(crate) fn note(&self, at: u64, client: &str, operation: &Operation<'_>) {
        let line = line(at, client, operation);
        writeln!(self.0.lock().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn flush(&self) {
        self.0.lock().unwrap().flush().unwrap();
    }
}

fn line(at: u64, client: &str, operation: &Operation<'_>) -> Value {
    let mut line = match *operation {
        Operation::Send {
            topic,
            number,
            qos,
            expiry_s,
            retain,
        } => {
            let level = qos as u8;
            json!({ "op": "send", "topic": topic, "number": number, "qos": level, "expiry_s": expiry_s, "retain": retain })
        }
        Operation::Sent {
            topic,
            number,
            result,
        } => json!({ "op": "sent", "topic": topic, "number": number, "result": result }),
        Operation::Receive { topic, text } => match text.parse::<u64>() {
            Ok(number) => json!({ "op": "receive", "topic": topic, "number": number }),
            Err(_) => json!({ "op": "receive", "topic": topic, "result": text }),
        },
        Operation::Retained { topic, number } => {
            json!({ "op": "retained", "topic": topic, "number": number })
        }
        Operation::Connect {
            node,
            session_present,
        } => json!({ "op": "connect", "node": node, "session_present": session_present }),
        Operation::Disconnect { why } => json!({ "op": "disconnect", "result": why }),
        Operation::Will { number } => {
            json!({ "op": "will", "topic": format!("will/{number}"), "number": number })
        }
        Operation::Fault { what } => json!({ "op": "fault", "result": what }),
    };
    line["t"] = at.into();
    line["client"] = client.into();
    line
}

pub(crate) fn an_operation_is_one_line_of_json() {
    let sent = Operation::Sent {
        topic: "m/a\n",
        number: 7,
        result: "acknowledged",
    };
    let text = line(12, "publisher-1", &sent).to_string();
    assert!(!text.contains('\n'));
    let read: Value = serde_json::from_str(&text).unwrap();
    let wanted = json!({
        "t": 12, "client": "publisher-1", "op": "sent", "topic": "m/a\n", "number": 7, "result": "acknowledged"
    });
    assert_eq!(read, wanted);
}
