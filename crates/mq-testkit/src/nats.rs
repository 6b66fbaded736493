//! Answers of a NATS server's monitoring port.

use std::collections::BTreeMap;

/// A stream's messages, their bytes, and its first and last sequence number.
pub type NatsStreamState = [u64; 4];

/// Returns the state of each stream by its name, from an answer to `GET /jsz?streams=true` with its head; `None` if it is
/// none.
#[must_use]
pub fn nats_stream_states(answer: &str) -> Option<BTreeMap<String, NatsStreamState>> {
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let answer: serde_json::Value = serde_json::from_str(body).ok()?;
    let streams = answer["account_details"][0]["stream_detail"].as_array()?;
    let each = streams.iter().map(|stream| {
        let state = ["messages", "bytes", "first_seq", "last_seq"];
        let state = state.map(|key| stream["state"][key].as_u64().unwrap_or_default());
        Some((stream["name"].as_str()?.to_owned(), state))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_what_it_stores() {
        let answer = serde_json::json!({ "account_details": [{ "name": "$G", "stream_detail": [
            { "name": "mq-log-0", "state": { "messages": 2, "bytes": 90, "first_seq": 4, "last_seq": 5 } },
        ]}]});
        let known = BTreeMap::from([("mq-log-0".to_owned(), [2, 90, 4, 5])]);
        let head = "HTTP/1.0 200 OK\r\n\r\n";
        assert_eq!(nats_stream_states(&format!("{head}{answer}")), Some(known));
        assert_eq!(nats_stream_states(&format!("{head}{{}}")), None);
        assert_eq!(nats_stream_states(""), None);
    }
}
