//! Values: the last message of each subject of one stream. A subject has its key's name.

use std::collections::HashMap;

use async_nats::{
    HeaderMap,
    header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_TTL},
    jetstream::{
        consumer::{DeliverPolicy, pull},
        context::PublishErrorKind,
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

use super::{NatsEngine, ON_THE_WAY, Reading, failed, reader};
use crate::cluster::{
    EngineError, FORGOTTEN, Key, Kind, Lasts, Put, RETRY, Value, engine::ENTRY_TIMEOUT,
};

/// A key's name is in its subject up to so many bytes: a server takes subjects of 4 KB. A longer one has its hash there,
/// behind [`HASHED`], and stands before the value, behind its length.
const LONGEST_NAME: usize = 1_024;
const HASHED: char = '~';

/// Bytes of a value's headers, and of its key where the value begins with that.
pub(super) const HEADERS: usize = 66 << 10;

/// What a [mark](NatsEngine::put_mark)'s name begins with, and no key's: those are in Base64.
const MARK: char = '!';

/// Values by subject.
type Values = HashMap<String, (String, Value)>;

impl NatsEngine {
    fn subject(&self, key: &Key) -> String {
        let name = if key.name.len() <= LONGEST_NAME {
            URL_SAFE_NO_PAD.encode(&key.name)
        } else {
            format!(
                "{HASHED}{}",
                URL_SAFE_NO_PAD.encode(Sha256::digest(&key.name))
            )
        };
        format!("{}{name}", self.prefix(key.kind))
    }

    /// Of the subjects of a kind.
    fn prefix(&self, kind: Kind) -> String {
        let kind = match kind {
            Kind::Session => "session",
            Kind::Node => "node",
            Kind::Retained => "retained",
            Kind::Log => "log",
        };
        format!("{}.value.{kind}.", self.cluster)
    }

    pub(super) async fn read_value(&self, key: Key) -> Result<Option<Value>, EngineError> {
        let found = self.read_subject(&self.subject(&key)).await?;
        Ok(found.map(|(_, value)| value))
    }

    /// As the server that leads has it.
    async fn read_subject(&self, subject: &str) -> Result<Option<(String, Value)>, EngineError> {
        match self.values.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(split(subject, message.sequence, message.payload)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) async fn put_value(
        &self,
        key: Key,
        last: u64,
        bytes: Bytes,
        lasts: Lasts,
    ) -> Result<Put, EngineError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, last.to_string());
        if lasts == Lasts::AWhile {
            headers.insert(NATS_MESSAGE_TTL, a_while());
        }
        let subject = self.subject(&key);
        let bytes = with_name(&key.name, bytes);
        let sent = self.context.publish_with_headers(subject, headers, bytes);
        match sent.await.map_err(failed)?.await {
            Ok(ack) => Ok(Put::Done(ack.sequence)),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Ok(Put::Conflict),
            Err(error) => Err(failed(error)),
        }
    }

    /// A reader's server may be behind the others, and a value that changes meanwhile may not come before there seems to
    /// be nothing left. So a mark has to come that was put before, and what has not come with it is read alone.
    pub(super) async fn all_values(&self, kind: Kind) -> Result<Vec<(String, Value)>, EngineError> {
        let prefix = self.prefix(kind);
        let mark = format!("{prefix}{MARK}{}", self.node);
        let version = self.put_mark(&mark).await?;
        let mut values = self.values_up_to(&prefix, &mark, version).await?;
        let subjects = self.values.info_with_subjects(format!("{prefix}>"));
        let mut subjects = subjects.await.map_err(failed)?;
        while let Some((subject, _)) = subjects.try_next().await.map_err(failed)? {
            let name = subject.strip_prefix(&prefix).unwrap_or_default();
            if !name.starts_with(MARK)
                && !values.contains_key(&subject)
                && let Some(value) = self.read_subject(&subject).await?
            {
                values.insert(subject, value);
            }
        }
        Ok(values.into_values().collect())
    }

    /// Puts what is no value next to the values of a kind. Returns its version.
    async fn put_mark(&self, subject: &str) -> Result<u64, EngineError> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_TTL, a_while());
        let nothing = Bytes::new();
        let sent = self
            .context
            .publish_with_headers(subject.to_owned(), headers, nothing);
        let sent = sent.await.map_err(failed)?.await.map_err(failed)?;
        Ok(sent.sequence)
    }

    /// The values that a server has, once it has that version of a mark.
    async fn values_up_to(
        &self,
        prefix: &str,
        mark: &str,
        least: u64,
    ) -> Result<Values, EngineError> {
        let mut reading = read(&self.values, prefix).await?;
        let mut values = Values::new();
        let mut is_marked = false;
        loop {
            let message = timeout(ENTRY_TIMEOUT, reading.next()).await;
            let message = message.map_err(|_| failed("values do not come"))??;
            let info = message.info().map_err(failed)?;
            let (version, left) = (info.stream_sequence, info.pending);
            let subject = message.subject.as_str();
            is_marked |= subject == mark && version >= least;
            if let Some(value) = split(subject, version, message.payload.clone()) {
                values.insert(subject.to_owned(), value);
            }
            if is_marked && left == 0 {
                return Ok(values);
            }
        }
    }

    pub(super) fn watch_values(&self, kind: Kind) -> mpsc::Receiver<(String, Value)> {
        let (bring, brought) = mpsc::channel(ON_THE_WAY);
        let (values, prefix) = (self.values.clone(), self.prefix(kind));
        tokio::spawn(async move {
            while let Err(error) = watch(&values, &prefix, &bring).await {
                debug!(%error, "values are watched anew");
                tokio::select! {
                    () = sleep(RETRY) => {}
                    () = bring.closed() => return,
                }
            }
        });
        brought
    }
}

async fn read(values: &Stream, prefix: &str) -> Result<Reading, EngineError> {
    let config = pull::Config {
        filter_subject: format!("{prefix}>"),
        deliver_policy: DeliverPolicy::LastPerSubject,
        ..reader()
    };
    let consumer = values.create_consumer(config).await.map_err(failed)?;
    Reading::begin(&consumer).await
}

/// Ends well when nobody reads any more.
async fn watch(
    values: &Stream,
    prefix: &str,
    bring: &mpsc::Sender<(String, Value)>,
) -> Result<(), EngineError> {
    let mut reading = read(values, prefix).await?;
    while let Some(message) = reading.next_for(bring).await? {
        let version = message.info().map_err(failed)?.stream_sequence;
        if let Some(value) = split(&message.subject, version, message.payload.clone())
            && bring.send(value).await.is_err()
        {
            return Ok(());
        }
    }
    Ok(())
}

/// As a server wants it.
fn a_while() -> String {
    format!("{}s", FORGOTTEN.as_secs())
}
/// A value as it is published.
fn with_name(name: &str, value: Bytes) -> Bytes {
    if name.len() <= LONGEST_NAME {
        return value;
    }
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    let mut published = Vec::with_capacity(4 + name.len() + value.len());
    published.extend(length.to_be_bytes());
    published.extend(name.as_bytes());
    published.extend(&value);
    published.into()
}

/// The name and the value of what was published, if it is a value.
fn split(subject: &str, version: u64, mut published: Bytes) -> Option<(String, Value)> {
    let token = subject.rsplit('.').next().unwrap_or_default();
    let name = if token.starts_with(HASHED) {
        let length = u32::from_be_bytes(*published.first_chunk()?);
        let length = usize::try_from(length).ok()?;
        published.advance(4);
        if published.len() < length {
            return None;
        }
        published.split_to(length).into()
    } else {
        // A mark is not in Base64.
        URL_SAFE_NO_PAD.decode(token).ok()?
    };
    let name = String::from_utf8(name).ok()?;
    let bytes = published;
    Some((name, Value { version, bytes }))
}
