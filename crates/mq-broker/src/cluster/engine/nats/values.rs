//! Values: the last message of each subject of one stream. A subject has its key's name.

use std::collections::HashMap;

use async_nats::{
    HeaderMap,
    header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_TTL},
    jetstream::{
        consumer::{DeliverPolicy, pull},
        stream::{LastRawMessageErrorKind, Stream},
    },
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::{Buf as _, Bytes};
use futures_util::TryStreamExt as _;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tracing::debug;

use super::{
    CHANNEL_CAPACITY, ConsumerReader, NatsEngine, consumer_config, nats_error, publish_error,
    storage::is_conflict,
};
use crate::cluster::{
    EngineError, Expiry, Key, KeyKind, PutOutcome, RETRY_INTERVAL, VALUE_TTL, Value,
    engine::ENTRY_TIMEOUT,
};

/// A key's name is in its subject up to so many bytes: a server takes subjects of 4 KB. A longer one has its hash there,
/// behind [`HASHED_NAME_PREFIX`], and stands before the value, behind its length.
const MAX_NAME_IN_SUBJECT: usize = 1_024;
const HASHED_NAME_PREFIX: char = '~';

/// Bytes of a value's headers, and of its key where the value begins with that.
pub(super) const MAX_VALUE_OVERHEAD: usize = 66 << 10;

/// First character of a [marker](NatsEngine::put_marker)'s name. No key's name begins with it: those are in Base64.
const MARKER_PREFIX: char = '!';

/// Values by subject.
type Values = HashMap<String, (String, Value)>;

impl NatsEngine {
    fn subject(&self, key: &Key) -> String {
        let name = if key.name.len() <= MAX_NAME_IN_SUBJECT {
            URL_SAFE_NO_PAD.encode(&key.name)
        } else {
            format!(
                "{HASHED_NAME_PREFIX}{}",
                URL_SAFE_NO_PAD.encode(Sha256::digest(&key.name))
            )
        };
        format!("{}{name}", self.prefix(key.kind))
    }

    /// Returns the prefix of the subjects of a kind.
    fn prefix(&self, kind: KeyKind) -> String {
        let kind = match kind {
            KeyKind::Session => "session",
            KeyKind::Node => "node",
            KeyKind::Retained => "retained",
            KeyKind::Log => "log",
        };
        format!("{}.value.{kind}.", self.cluster)
    }

    pub(super) async fn read_value(&self, key: Key) -> Result<Option<Value>, EngineError> {
        let found = self.read_subject(&self.subject(&key)).await?;
        Ok(found.map(|(_, value)| value))
    }

    /// Reads the value of a subject from the server that leads the stream.
    async fn read_subject(&self, subject: &str) -> Result<Option<(String, Value)>, EngineError> {
        match self.values.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(decode_value(subject, message.sequence, message.payload)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(nats_error(error)),
        }
    }

    pub(super) async fn put_value(
        &self,
        key: Key,
        expected: u64,
        bytes: Bytes,
        expiry: Expiry,
    ) -> Result<PutOutcome, EngineError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string());
        if expiry == Expiry::AfterTtl {
            headers.insert(NATS_MESSAGE_TTL, value_ttl());
        }
        let subject = self.subject(&key);
        let bytes = encode_value(&key.name, bytes);
        let sent = self.context.publish_with_headers(subject, headers, bytes);
        match sent.await.map_err(publish_error)?.await {
            Ok(ack) => Ok(PutOutcome::Written(ack.sequence)),
            Err(error) if is_conflict(&error) => Ok(PutOutcome::Conflict),
            Err(error) => Err(publish_error(error)),
        }
    }

    /// Reads all values of a kind. A reader's server may be behind the others, and a value that changes meanwhile may
    /// not come before there seems to be nothing left. So a marker has to come that was put before, and what has not
    /// come with it is read alone.
    pub(super) async fn all_values(
        &self,
        kind: KeyKind,
    ) -> Result<Vec<(String, Value)>, EngineError> {
        let prefix = self.prefix(kind);
        let mark = format!("{prefix}{MARKER_PREFIX}{}", self.node);
        let version = self.put_marker(&mark).await?;
        let mut values = self.values_up_to(&prefix, &mark, version).await?;
        let subjects = self.values.info_with_subjects(format!("{prefix}>"));
        let mut subjects = subjects.await.map_err(nats_error)?;
        while let Some((subject, _)) = subjects.try_next().await.map_err(nats_error)? {
            let name = subject.strip_prefix(&prefix).unwrap_or_default();
            if !name.starts_with(MARKER_PREFIX)
                && !values.contains_key(&subject)
                && let Some(value) = self.read_subject(&subject).await?
            {
                values.insert(subject, value);
            }
        }
        Ok(values.into_values().collect())
    }

    /// Puts what is no value next to the values of a kind. Returns its version.
    async fn put_marker(&self, subject: &str) -> Result<u64, EngineError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_TTL, value_ttl());
        let nothing = Bytes::new();
        let sent = self
            .context
            .publish_with_headers(subject.to_owned(), headers, nothing);
        let sent = sent.await.map_err(publish_error)?;
        let sent = sent.await.map_err(publish_error)?;
        Ok(sent.sequence)
    }

    /// Reads the values that a server has, once it has that version of a marker.
    async fn values_up_to(
        &self,
        prefix: &str,
        mark: &str,
        least: u64,
    ) -> Result<Values, EngineError> {
        let mut reading = begin_reading(&self.values, prefix).await?;
        let mut values = Values::new();
        let mut is_marked = false;
        loop {
            let message = timeout(ENTRY_TIMEOUT, reading.next()).await;
            let message = message.map_err(|_| nats_error("values do not come"))??;
            let info = message.info().map_err(nats_error)?;
            let (version, left) = (info.stream_sequence, info.pending);
            let subject = message.subject.as_str();
            is_marked |= subject == mark && version >= least;
            if let Some(value) = decode_value(subject, version, message.payload.clone()) {
                values.insert(subject.to_owned(), value);
            }
            if is_marked && left == 0 {
                return Ok(values);
            }
        }
    }

    pub(super) fn watch_values(&self, kind: KeyKind) -> mpsc::Receiver<(String, Value)> {
        let (bring, brought) = mpsc::channel(CHANNEL_CAPACITY);
        let (values, prefix) = (self.values.clone(), self.prefix(kind));
        tokio::spawn(async move {
            while let Err(error) = forward_values(&values, &prefix, &bring).await {
                debug!(%error, "cluster: watch of keys ended, restarting");
                tokio::select! {
                    () = sleep(RETRY_INTERVAL) => {}
                    () = bring.closed() => return,
                }
            }
        });
        brought
    }
}

async fn begin_reading(values: &Stream, prefix: &str) -> Result<ConsumerReader, EngineError> {
    let config = pull::Config {
        filter_subject: format!("{prefix}>"),
        deliver_policy: DeliverPolicy::LastPerSubject,
        ..consumer_config()
    };
    let consumer = values.create_consumer(config).await.map_err(nats_error)?;
    ConsumerReader::begin(&consumer).await
}

/// Ends well when nobody reads any more.
async fn forward_values(
    values: &Stream,
    prefix: &str,
    bring: &mpsc::Sender<(String, Value)>,
) -> Result<(), EngineError> {
    let mut reading = begin_reading(values, prefix).await?;
    while let Some(message) = reading.next_for(bring).await? {
        let version = message.info().map_err(nats_error)?.stream_sequence;
        if let Some(value) = decode_value(&message.subject, version, message.payload.clone())
            && bring.send(value).await.is_err()
        {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the time to live of a temporary value, as the header has it.
fn value_ttl() -> String {
    format!("{}s", VALUE_TTL.as_secs())
}
/// Encodes a value as it is published.
fn encode_value(name: &str, value: Bytes) -> Bytes {
    if name.len() <= MAX_NAME_IN_SUBJECT {
        return value;
    }
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    let mut published = Vec::with_capacity(4 + name.len() + value.len());
    published.extend(length.to_be_bytes());
    published.extend(name.as_bytes());
    published.extend(&value);
    published.into()
}

/// Decodes the name and the value of what was published, if it is a value.
fn decode_value(subject: &str, version: u64, mut published: Bytes) -> Option<(String, Value)> {
    let token = subject.rsplit('.').next().unwrap_or_default();
    let name = if token.starts_with(HASHED_NAME_PREFIX) {
        let length = u32::from_be_bytes(*published.first_chunk()?);
        let length = usize::try_from(length).ok()?;
        published.advance(4);
        if published.len() < length {
            return None;
        }
        published.split_to(length).into()
    } else {
        // A marker is not in Base64.
        URL_SAFE_NO_PAD.decode(token).ok()?
    };
    let name = String::from_utf8(name).ok()?;
    let bytes = published;
    Some((name, Value { version, bytes }))
}
