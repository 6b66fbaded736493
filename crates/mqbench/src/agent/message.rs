//! What a controller asks, and what an agent answers.

use mq_measure::context::HostContext;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use super::{folder::Name, roles::Role};

/// Asked by the controller, one after the other: each is answered before the next.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Request {
    /// To be known from now on: the secret of the code that is open here, and its certificate (PEM).
    /// All that somebody without a known certificate may ask.
    Enrol { secret: String, certificate: String },
    /// What the host is.
    Report {},
    /// What its clock says.
    Clock {},
    /// To keep a file. Pieces follow when that is granted, and then another answer.
    Put { name: Name, size: u64 },
    /// For a file. Pieces follow the answer.
    Get { name: Name },
    /// To begin with a role.
    Start { role: Role },
    /// What became of it.
    Look { id: u32 },
    /// To end it.
    Stop { id: u32 },
    /// To go on as another program: a file in the work folder, with this SHA-256. The connection ends when
    /// that is granted.
    Upgrade { program: Name, sha256: String },
    /// Nothing, and not to clean up yet.
    Stay {},
    /// To clean up: the answer comes when every role has ended and every interface is as it was.
    Leave {},
}

/// An agent's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Reply {
    /// It is done, or granted.
    Done {},
    /// It is not, and why.
    Refused { why: String },
    /// What the host is.
    Report { report: Box<Report> },
    /// Nanoseconds since the Unix epoch: when the question came, and when this leaves.
    Clock { received_ns: u64, sent_ns: u64 },
    /// A file of so many bytes follows.
    File { size: u64 },
    /// A role that has begun; a broker with the addresses that it listens at.
    Started { id: u32, addresses: Vec<String> },
    /// What became of a role.
    State { state: State },
}

/// What a host says of itself. One with a newer program may say more, which is let pass: it could neither be
/// asked nor upgraded otherwise.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Of the agent's program.
    pub(crate) version: String,
    /// The git revision that it was built from.
    pub(crate) revision: Option<String>,
    /// The SHA-256 of that program; `None` of one that cannot be upgraded yet.
    #[serde(default)]
    pub(crate) program: Option<String>,
    /// The machine's name.
    pub(crate) host: String,
    /// Its architecture, such as `aarch64`.
    pub(crate) machine: String,
    #[serde(deserialize_with = "what_is_known")]
    pub(crate) context: HostContext,
    /// How far its clock is from UTC at most, if chrony knows.
    pub(crate) clock_bound_ns: Option<u64>,
    /// Network interfaces.
    pub(crate) interfaces: Vec<String>,
    /// Free bytes where the work folder is.
    pub(crate) free_bytes: Option<u64>,
    /// A Raspberry Pi's word for under-voltage and throttling, `0` if there was none since its start.
    pub(crate) throttled: Option<String>,
    /// Meters that hang on it, such as `iio:ina226`, by every name that they have.
    #[serde(default)]
    pub(crate) meters: Vec<String>,
}

/// Without what only a newer program says: results are read strictly, and this is none.
fn what_is_known<'de, D: Deserializer<'de>>(from: D) -> Result<HostContext, D::Error> {
    let mut said = serde_json::Map::deserialize(from)?;
    let known = serde_json::to_value(HostContext::default()).map_err(Error::custom)?;
    said.retain(|name, _| known.get(name).is_some());
    HostContext::deserialize(serde_json::Value::Object(said)).map_err(Error::custom)
}

/// What became of a role.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum State {
    Running {},
    /// With an exit code, unless a signal ended it; and the last of what it said.
    Ended {
        code: Option<i32>,
        said: String,
    },
}
