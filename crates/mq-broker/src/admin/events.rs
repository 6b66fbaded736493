//! Server-sent events: the broker's status each second, and refusals as they occur.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::StatusCode;
use tokio::sync::mpsc::{self, error::TrySendError};

use super::{
    Admin,
    answer::{Answer, Failure, as_json, events},
    parameters::bad,
    status::status,
};
use crate::view::Query;

/// The interval of status events.
const EVERY: Duration = Duration::from_secs(1);

/// The number of intervals after which the stream ends. A connection over HTTP may take 30 s in
/// all; a reader that wants more requests another stream.
const MOST: usize = 25;

/// Events that wait for a slow reader. A status beyond them is dropped; refusals are sent with the
/// next event.
const WAITING: usize = 2;

/// Answers with a stream that begins after the refusal with the number in `after`.
pub(super) fn answer(admin: &Admin, query: &Query) -> Result<Answer, Failure> {
    let mut after = match &query.after {
        None => 0,
        Some(after) => after.parse().map_err(|_| bad("after: a number"))?,
    };
    let place = Arc::clone(&admin.streams).try_acquire_owned();
    let place = place.map_err(|_| {
        let problem = "too many streams of events are open: ask again later";
        (StatusCode::SERVICE_UNAVAILABLE, problem.to_owned())
    })?;
    let (to, stream) = mpsc::channel(WAITING);
    let mut shutdown = admin.shutdown.clone();
    let admin = admin.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(EVERY);
        for _ in 0..MOST {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = shutdown.changed() => break,
                () = to.closed() => break,
            }
            let refusals = admin.hub.refusal_log.since(after);
            let last = refusals.last().map(|last| last.number);
            let mut text = event("status", None, &as_json(&status(&admin)));
            if let Some(last) = last {
                text.extend(event("refusals", Some(last), &as_json(&refusals)));
            }
            match to.try_send(Bytes::from(text)) {
                Ok(()) => after = last.unwrap_or(after),
                Err(TrySendError::Full(_)) => {}
                Err(TrySendError::Closed(_)) => break,
            }
        }
        drop(place);
    });
    Ok(events(stream))
}

/// Formats one event. JSON of visible ASCII has no line break.
fn event(name: &str, id: Option<u64>, data: &[u8]) -> Vec<u8> {
    let mut text = format!("event: {name}\n").into_bytes();
    if let Some(id) = id {
        text.extend(format!("id: {id}\n").into_bytes());
    }
    text.extend(b"data: ");
    text.extend(data);
    text.extend(b"\n\n");
    text
}
