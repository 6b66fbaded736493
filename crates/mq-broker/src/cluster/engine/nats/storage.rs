//! Room in the storage of the servers.

use std::error::Error as _;

use async_nats::jetstream::{
    self, ErrorCode,
    context::{PublishError, PublishErrorKind},
};

use super::{NatsEngine, NatsError, nats_error};
use crate::cluster::EngineError;

/// Errors of `JetStream` that say that there is no room, of whatever is stored: for the account (10002), at the server
/// (10023, which then gives up to lead), in its memory (10028) and in its files (10047).
const NO_ROOM: [ErrorCode; 4] = [
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::MEMORY_RESOURCES_EXCEEDED,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
];

/// Beginning of the text of [`ErrorCode::STREAM_STORE_FAILED`] (10077) if a stream has reached a limit of its own, such
/// as `max_bytes`.
const LIMIT_REACHED: &str = "maximum ";

impl NatsEngine {
    /// Returns how full the storage is, in percent, of the least room that is known: by the limit of the account, by
    /// [`store_max_bytes`](super::NatsSettings::store_max_bytes), or by a limit that a log's stream was given.
    pub(super) async fn storage_percent(&self) -> Result<Option<u8>, EngineError> {
        let mut most = None;
        // While no server leads them all, nobody answers for the account.
        if let Ok(account) = self.context.query_account().await {
            let limit = account
                .limits
                .max_storage
                .and_then(|limit| u64::try_from(limit).ok());
            most = most.max(percent(account.storage, limit));
        }
        let mut stored = self
            .values
            .get_info()
            .await
            .map_err(nats_error)?
            .state
            .bytes;
        for shard in 0..self.shards {
            let stream = self.stream(shard).await?;
            let info = stream.cached_info();
            stored += info.state.bytes;
            let limit = u64::try_from(info.config.max_bytes).ok();
            most = most.max(percent(info.state.bytes, limit));
        }
        Ok(most.max(percent(stored, self.store_max_bytes)))
    }
}

/// Returns a part in percent; `None` if the whole is not limited.
fn percent(part: u64, whole: Option<u64>) -> Option<u8> {
    let whole = whole.filter(|whole| *whole > 0)?;
    let percent = u128::from(part) * 100 / u128::from(whole);
    Some(u8::try_from(percent).unwrap_or(u8::MAX))
}

/// Returns `true` if a message was refused since the last one of its subject is not the expected one, or since another one of
/// that subject is being stored.
pub(super) fn is_conflict(error: &PublishError) -> bool {
    error.kind() == PublishErrorKind::WrongLastSequence
        || answer(error).is_some_and(|answer| {
            answer.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT
        })
}

/// Classifies the error of a message that was to be stored.
pub(super) fn publish_error(error: PublishError) -> EngineError {
    let is_full = answer(&error).is_some_and(is_without_room);
    let has_no_leader = error.kind() == PublishErrorKind::StreamNotFound;
    let cause = NatsError(error.into());
    if is_full {
        EngineError::full(cause)
    } else if has_no_leader {
        EngineError::no_leader(cause)
    } else {
        EngineError::unavailable(cause)
    }
}

/// Returns the answer of the servers, if an error has one.
fn answer(error: &PublishError) -> Option<&jetstream::Error> {
    error.source()?.downcast_ref()
}

fn is_without_room(answer: &jetstream::Error) -> bool {
    let code = answer.error_code();
    let has_limit = || answer.to_string().starts_with(LIMIT_REACHED);
    NO_ROOM.contains(&code) || code == ErrorCode::STREAM_STORE_FAILED && has_limit()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u64, description: &str) -> PublishError {
        let answer = serde_json::json!({
            "code": 503, "err_code": code, "description": description,
        });
        let answer: jetstream::Error = serde_json::from_value(answer).unwrap();
        PublishError::with_source(PublishErrorKind::Other, answer)
    }

    #[test]
    fn a_message_whose_predecessor_is_being_stored_is_in_conflict() {
        assert!(is_conflict(&refused(10_164, "wrong last sequence")));
        assert!(is_conflict(&PublishErrorKind::WrongLastSequence.into()));
        assert!(!is_conflict(&refused(10_077, "maximum bytes exceeded")));
        assert!(!is_conflict(&PublishErrorKind::TimedOut.into()));
    }

    #[test]
    fn what_finds_no_room_is_told_from_what_fails() {
        let answer = |code, description| publish_error(refused(code, description));
        for (code, description) in [
            (10_002, "resource limits exceeded for account"),
            (10_023, "insufficient resources"),
            (10_047, "insufficient storage resources available"),
            (10_077, "maximum bytes exceeded"),
        ] {
            let error = answer(code, description);
            assert!(matches!(error, EngineError::Full(_)), "{error:?}");
        }
        let error = answer(10_077, "message size exceeds maximum allowed");
        assert!(matches!(error, EngineError::Unavailable(_)), "{error:?}");
        let error = publish_error(PublishErrorKind::StreamNotFound.into());
        assert!(matches!(error, EngineError::NoLeader(_)), "{error:?}");
    }

    #[test]
    fn a_part_of_what_is_not_limited_is_no_part() {
        assert_eq!(percent(799, Some(1_000)), Some(79));
        assert_eq!(percent(1, Some(0)), None);
        assert_eq!(percent(1, None), None);
        assert_eq!(percent(u64::MAX, Some(1)), Some(u8::MAX));
    }
}
