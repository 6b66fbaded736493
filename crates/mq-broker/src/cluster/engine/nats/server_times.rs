//! The clocks of the servers. Each server answers a question for the connections of this node's account, with its time.

use std::time::{Duration, Instant};

use async_nats::datetime::parse_rfc3339;
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::Deserialize;
use tokio::time::timeout;

use super::{NatsEngine, nats_error};
use crate::{
    clock,
    cluster::{EngineError, ServerTime},
};

/// The subject of the question. Every server of the account answers it; one alone would answer `STATZ`.
const SUBJECT: &str = "$SYS.REQ.ACCOUNT.PING.CONNZ";

/// The question: for as little as there is.
const QUESTION: &[u8] = br#"{"limit":1}"#;

/// Time that an answer may take. It is known to the half of it when the server's clock showed the time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct Answer {
    server: Server,
}

#[derive(Deserialize)]
struct Server {
    name: String,
    time: String,
}

impl NatsEngine {
    /// Asks for the times of as many servers as keep each message.
    ///
    /// # Errors
    /// If not most of these answer.
    pub(super) async fn ask_server_times(&self) -> Result<Vec<ServerTime>, EngineError> {
        let inbox = self.client.new_inbox();
        let answers = self.client.subscribe(inbox.clone()).await;
        let mut answers = answers.map_err(nats_error)?;
        let asked = clock::now();
        let question = self
            .client
            .publish_with_reply(SUBJECT, inbox, Bytes::from_static(QUESTION));
        question.await.map_err(nats_error)?;
        let mut times = Vec::new();
        let collecting = async {
            while times.len() < self.replicas
                && let Some(answer) = answers.next().await
            {
                times.extend(server_time(&answer.payload, asked, clock::now()));
            }
        };
        // A server that does not answer may be down.
        let _ = timeout(ANSWER_TIMEOUT, collecting).await;
        if times.len() * 2 > self.replicas {
            return Ok(times);
        }
        Err(nats_error(format!(
            "{} of {} servers have answered {SUBJECT}",
            times.len(),
            self.replicas
        )))
    }
}

/// Reads an answer. `None` if it has no time, or took so long that its time says little, as of a node that was stopped.
fn server_time(answer: &[u8], asked: Instant, answered: Instant) -> Option<ServerTime> {
    let took = answered.saturating_duration_since(asked);
    if took > ANSWER_TIMEOUT {
        return None;
    }
    let Answer { server } = serde_json::from_slice(answer).ok()?;
    Some(ServerTime {
        time: parse_rfc3339(&server.time).ok()?.into(),
        server: server.name,
        at: asked + took / 2,
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn an_answer_has_the_time_of_the_middle_of_its_way() {
        let answer =
            br#"{"server":{"name":"n0","seq":9,"time":"1970-01-01T00:01:00.25Z"},"data":{}}"#;
        let asked = Instant::now();
        let after = |ms| asked + Duration::from_millis(ms);
        let expected = ServerTime {
            server: "n0".to_owned(),
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(60_250),
            at: after(300),
        };
        assert_eq!(server_time(answer, asked, after(600)), Some(expected));
        assert_eq!(server_time(answer, asked, after(1_001)), None);
        for other in [&b""[..], b"{}", br#"{"server":{"name":"n0","time":"now"}}"#] {
            assert_eq!(server_time(other, asked, asked), None);
        }
    }
}
