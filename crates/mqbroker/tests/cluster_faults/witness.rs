//! A witness of the logs, apart from the brokers: it reads them with NATS's own client while they grow, and once
//! more at the end. What is other then, NATS has lost or changed itself; what the logs have and a reader does not,
//! the brokers have lost.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fmt::Display,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_nats::{
    ConnectOptions,
    header::NATS_MESSAGE_ID,
    jetstream::{
        self,
        stream::{RawMessageError, Stream},
    },
};
use bytes::Bytes;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use crate::cluster::{Place, SHARDS};

/// Between two looks at a log.
const LOOK: Duration = Duration::from_millis(200);

/// An entry is looked at again after so long.
const AGAIN: Duration = Duration::from_secs(15);

/// Time that one answer may take, and all of them at the end.
const ANSWER: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_mins(2);

/// An entry is seen within so many seconds of its storing.
const MISTIMED: u64 = 120;

/// Bytes between a topic and the payload behind it, at most.
const BETWEEN: usize = 8;

/// Entries of each log, by their sequence numbers, as they were first read.
pub(crate) struct Witness {
    streams: Vec<Stream>,
    seen: Vec<BTreeMap<u64, Bytes>>,
    /// Entries of each log that were not read again yet, and since when.
    fresh: Vec<VecDeque<(u64, Instant)>>,
    /// Entries that were others when they were read again, a line each.
    other: Vec<String>,
    /// Their identifiers, by log. They tell NATS which it has.
    ids: Vec<HashSet<String>>,
    /// Number of entries that NATS had, and has stored again.
    pub(crate) stored_again: usize,
    /// Entries whose time, which is a NATS server's, was another than this machine's.
    pub(crate) mistimed: usize,
}

impl Witness {
    pub(crate) async fn new(place: &Place) -> Self {
        let servers: Vec<_> = (0..3)
            .map(|server| format!("nats://{}:4222", place.net.server(server)))
            .collect();
        let options = ConnectOptions::new()
            .ignore_discovered_servers()
            .connection_timeout(ANSWER)
            .ping_interval(ANSWER)
            .reconnect_delay_callback(|_| LOOK);
        let client = options.connect(servers).await.unwrap();
        let mut context = jetstream::new(client);
        context.set_timeout(ANSWER);
        let mut streams = Vec::new();
        for shard in 0..SHARDS {
            streams.push(context.get_stream(format!("mq-log-{shard}")).await.unwrap());
        }
        Self {
            seen: vec![BTreeMap::new(); streams.len()],
            fresh: vec![VecDeque::new(); streams.len()],
            other: Vec::new(),
            ids: vec![HashSet::new(); streams.len()],
            stored_again: 0,
            mistimed: 0,
            streams,
        }
    }

    /// Reads on until the faults are over.
    pub(crate) async fn watch(mut self, over: watch::Receiver<bool>) -> Self {
        while !*over.borrow() {
            for shard in 0..self.streams.len() {
                // What is missed now comes with the next look.
                let _ = timeout(ANSWER * 5, self.read_on(shard)).await;
            }
            sleep(LOOK).await;
        }
        self
    }

    async fn read_on(&mut self, shard: usize) -> Option<()> {
        let state = self.streams[shard].get_info().await.ok()?.state;
        let seen = &mut self.seen[shard];
        let next = seen.last_key_value().map_or(1, |(last, _)| last + 1);
        for sequence in next.max(state.first_sequence)..=state.last_sequence {
            let message = self.streams[shard].get_raw_message(sequence).await.ok()?;
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_secs();
            let stored = u64::try_from(message.time.unix_timestamp()).unwrap();
            self.mistimed += usize::from(now.abs_diff(stored) > MISTIMED);
            let id = message.headers.get(NATS_MESSAGE_ID).unwrap().to_string();
            self.stored_again += usize::from(!self.ids[shard].insert(id));
            seen.insert(sequence, message.payload);
            self.fresh[shard].push_back((sequence, Instant::now()));
        }
        // Servers have died and come back meanwhile.
        while let Some((sequence, at)) = self.fresh[shard].front().copied()
            && at.elapsed() > AGAIN
        {
            self.look_again(shard, sequence).await.ok()?;
            self.fresh[shard].pop_front();
        }
        Some(())
    }

    /// Notes if an entry that it has seen is not there any more, or is another one. What brokers have trimmed does not
    /// count.
    async fn look_again(&mut self, shard: usize, sequence: u64) -> Result<(), async_nats::Error> {
        let stream = &self.streams[shard];
        let what = match stream.get_raw_message(sequence).await {
            Ok(now) if now.payload == self.seen[shard][&sequence] => return Ok(()),
            Ok(_) => "has another entry",
            Err(error) if is_gone(&error) => {
                // Asked only now: it may have been trimmed a moment ago.
                if sequence < stream.get_info().await?.state.first_sequence {
                    return Ok(());
                }
                "has no entry any more"
            }
            Err(error) => return Err(error.into()),
        };
        self.other.push(format!("log {shard} {what} at {sequence}"));
        Ok(())
    }

    /// Returns the number of entries that the witness has read.
    pub(crate) fn entries(&self) -> usize {
        self.seen.iter().map(BTreeMap::len).sum()
    }

    /// Returns the entries that NATS has lost or changed, a line each. Entries that brokers have trimmed
    /// does not count.
    pub(crate) async fn replay(&mut self) -> &[String] {
        for shard in 0..self.streams.len() {
            let stream = self.streams[shard].clone();
            let until = Instant::now() + PATIENCE;
            let info = patiently(until, async || stream.get_info().await).await;
            let kept = self.seen[shard].range(info.state.first_sequence..);
            let kept: Vec<_> = kept.map(|(sequence, _)| *sequence).collect();
            for sequence in kept {
                patiently(until, async || self.look_again(shard, sequence).await).await;
            }
        }
        &self.other
    }

    /// Returns the log and the sequence numbers of a message, and the beginning of each entry, with its author.
    pub(crate) fn find(&self, topic: &str, number: usize) -> Option<String> {
        let logs = self.seen.iter().enumerate();
        let found = logs.filter_map(|(shard, seen)| {
            let entries = seen.iter().filter(|(_, entry)| has(entry, topic, number));
            let places = entries.map(|(sequence, entry)| {
                let begins = entry[..entry.len().min(8)].escape_ascii();
                format!("{sequence} ({begins})")
            });
            let places: Vec<_> = places.collect();
            (!places.is_empty()).then(|| format!("log {shard} at {}", places.join(", ")))
        });
        let found: Vec<_> = found.collect();
        (!found.is_empty()).then(|| found.join(" and "))
    }
}

/// Asks again until there is an answer, or it is too late.
async fn patiently<T, E: Display>(until: Instant, mut ask: impl AsyncFnMut() -> Result<T, E>) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        sleep(LOOK).await;
    }
}

fn is_gone(error: &RawMessageError) -> bool {
    matches!(
        error.kind(),
        jetstream::stream::LastRawMessageErrorKind::NoMessageFound
    )
}

/// Returns `true` if an entry has this topic with this number a little behind it.
fn has(entry: &[u8], topic: &str, number: usize) -> bool {
    let number = number.to_string();
    let places = entry.windows(topic.len()).enumerate();
    let mut behind = places
        .filter(|(_, text)| *text == topic.as_bytes())
        .map(|(at, _)| &entry[at + topic.len()..]);
    behind.any(|rest| {
        let near = rest.len().min(BETWEEN + number.len());
        (0..=BETWEEN).any(|at| {
            let is_here = rest[..near].get(at..at + number.len()) == Some(number.as_bytes());
            let goes_on = rest.get(at + number.len()).is_some_and(u8::is_ascii_digit);
            let before = at.checked_sub(1).and_then(|at| rest.get(at));
            let began = before.is_some_and(u8::is_ascii_digit);
            is_here && !goes_on && !began
        })
    })
}

pub(crate) fn a_message_is_found_in_its_entry() {
    let entry = b"\x01m/publisher-3/1\0\x07\x00123m/publisher-3/2\0\x08\x0045";
    assert!(has(entry, "m/publisher-3/1", 123));
    assert!(has(entry, "m/publisher-3/2", 45));
    for (topic, number) in [
        ("m/publisher-3/1", 12),
        ("m/publisher-3/1", 23),
        ("m/publisher-3/2", 123),
    ] {
        assert!(!has(entry, topic, number), "{topic} {number}");
    }
}
