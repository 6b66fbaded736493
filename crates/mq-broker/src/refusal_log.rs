//! Lines in the log about refusals: ten a second of each kind. The last ones stay for operators to see. Lines about
//! clients that come and go have a bound as well, a hundred a second of each kind.
//!
//! Any client can be refused often, or connect and disconnect: without a bound it could fill the disk with lines. Each kind
//! counts the lines that it leaves out. The kind's next line tells the count, or a line of its own
//! a second later ([`RefusalLog::run`]).

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Mutex, MutexGuard},
    time::{Instant, SystemTime},
};

use mq_transport::{LineLimit, Scheme};
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::{
    clock,
    escaped::Escaped,
    lock::lock,
    view::{Page, Query, Refusal},
};

/// Lines of one kind within [`LineLimit::WINDOW`].
const MAX_LINES_A_WINDOW: u32 = 10;

/// Lines of one [`ClientLine`] within [`LineLimit::WINDOW`]: more than people read, and less than fills a disk.
const MAX_CLIENT_LINES_A_WINDOW: u32 = 100;

/// The kind of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RefusalKind {
    /// A link that was refused: there are too many.
    Connection,
    /// A CONNECT, or an authentication anew, that was refused.
    LogIn,
    /// A PUBLISH, or a will, that was refused.
    Publish,
    /// A subscription that was refused.
    Subscribe,
    /// A client that was disconnected by the broker.
    Eviction,
    /// An operator's request over HTTP that was refused.
    Operator,
}

impl RefusalKind {
    const ALL: [Self; 6] = [
        Self::Connection,
        Self::LogIn,
        Self::Publish,
        Self::Subscribe,
        Self::Eviction,
        Self::Operator,
    ];

    /// Returns the first words of a line.
    fn words(self) -> &'static str {
        match self {
            Self::Connection => "refused a connection",
            Self::LogIn => "refused a log-in",
            Self::Publish => "refused a publish",
            Self::Subscribe => "refused a subscription",
            Self::Eviction => "evicted a client",
            Self::Operator => "refused an operator's request",
        }
    }
}

/// The kind of a line about a client that is no refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientLine {
    Connected,
    Disconnected,
    /// A data stream that the broker has ended, as the client broke the protocol on it.
    StreamEnded,
    /// A client that waits for more QUIC streams than it is allowed.
    StreamsBlocked,
}

impl ClientLine {
    const ALL: [Self; 4] = [
        Self::Connected,
        Self::Disconnected,
        Self::StreamEnded,
        Self::StreamsBlocked,
    ];

    /// Returns the first words of a line.
    fn words(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
            Self::StreamEnded => "data stream ended",
            Self::StreamsBlocked => {
                "client waits for more QUIC streams than max_streams of [quic] allows"
            }
        }
    }
}

/// The fields of a line; a line leaves out those that are `None`.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct RefusalDetails<'a> {
    pub(crate) client: Option<&'a str>,
    pub(crate) user: Option<&'a str>,
    /// The topic, or the filter.
    pub(crate) topic: Option<&'a str>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) transport: Option<Scheme>,
    /// The error behind the reason.
    pub(crate) error: Option<&'a str>,
}

/// The lines of one broker.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    limits: [Mutex<LineLimit>; RefusalKind::ALL.len()],
    client_limits: [Mutex<LineLimit>; ClientLine::ALL.len()],
    /// A line was left out.
    left_out: Notify,
    recent: Mutex<Recent>,
}

/// Lines of each kind that stay for operators to see: whoever causes many of one kind hides no other.
const MAX_RECENT_OF_A_KIND: usize = 100;

/// Characters of a peer's text in the lines that stay.
const MAX_TEXT_CHARACTERS: usize = 128;

/// The last lines.
#[derive(Debug, Default)]
struct Recent {
    /// The number of the last one.
    last: u64,
    lines: VecDeque<Refusal>,
}

impl Default for RefusalLog {
    fn default() -> Self {
        let limits = |most| move |_| Mutex::new(LineLimit::new(most));
        Self {
            limits: core::array::from_fn(limits(MAX_LINES_A_WINDOW)),
            client_limits: core::array::from_fn(limits(MAX_CLIENT_LINES_A_WINDOW)),
            left_out: Notify::default(),
            recent: Mutex::default(),
        }
    }
}

impl RefusalLog {
    /// Returns the number of lines left out before a line about a client, if it may be written.
    pub(crate) fn admit(&self, line: ClientLine, now: Instant) -> Option<u64> {
        let admitted = lock(&self.client_limits[line as usize]).admit(now);
        if admitted.is_none() {
            self.left_out.notify_one();
        }
        admitted
    }

    /// Writes a line, unless there were too many of its kind.
    pub(crate) fn log(
        &self,
        kind: RefusalKind,
        details: RefusalDetails<'_>,
        reason: &str,
        now: Instant,
    ) {
        let Some(left_out) = self.limit(kind).admit(now) else {
            self.left_out.notify_one();
            return;
        };
        let RefusalDetails {
            client,
            user,
            topic,
            peer,
            transport,
            error,
        } = details;
        let cut = |text: &str| text.chars().take(MAX_TEXT_CHARACTERS).collect();
        let mut recent = lock(&self.recent);
        recent.last += 1;
        let is_same = |line: &Refusal| line.what == kind.words();
        if recent.lines.iter().filter(|line| is_same(line)).count() >= MAX_RECENT_OF_A_KIND {
            let oldest = recent.lines.iter().position(is_same);
            oldest.map(|oldest| recent.lines.remove(oldest));
        }
        let number = recent.last;
        recent.lines.push_back(Refusal {
            number,
            at: SystemTime::now(),
            what: kind.words().to_owned(),
            client_id: client.map(cut),
            user: user.map(cut),
            topic: topic.map(cut),
            peer,
            reason: reason.to_owned(),
        });
        drop(recent);
        warn!(
            client = client.map(|text| tracing::field::display(Escaped(text))),
            user = user.map(|text| tracing::field::display(Escaped(text))),
            topic = topic.map(|text| tracing::field::display(Escaped(text))),
            peer = peer.map(tracing::field::display),
            transport = transport.map(tracing::field::display),
            reason,
            error = error.map(|text| tracing::field::display(Escaped(text))),
            left_out = (left_out > 0).then_some(left_out),
            "{}",
            kind.words()
        );
    }

    /// Lists the last lines, the newest first, in pages: those with a text that contains [`Query::matching`].
    pub(crate) fn recent(&self, query: &Query) -> Page<Refusal> {
        let before = query.after.as_deref().and_then(|place| place.parse().ok());
        let recent = lock(&self.recent);
        let mut found = recent.lines.iter().rev().filter(|line| {
            let texts = [&line.client_id, &line.user, &line.topic];
            let mut texts = texts.into_iter().flatten().chain([&line.reason]);
            let peer = line.peer.map(|peer| peer.to_string());
            before.is_none_or(|before: u64| line.number < before)
                && (texts.any(|text| text.contains(&query.matching))
                    || peer.is_some_and(|peer| peer.contains(&query.matching)))
        });
        let most = query.most();
        let items: Vec<_> = found.by_ref().take(most).cloned().collect();
        let next = found.next().and(items.last());
        Page {
            next: next.map(|last| last.number.to_string()),
            items,
        }
    }

    /// Returns the lines after that number, the oldest first.
    pub(crate) fn since(&self, number: u64) -> Vec<Refusal> {
        let recent = lock(&self.recent);
        let newer = recent.lines.iter().filter(|line| line.number > number);
        newer.cloned().collect()
    }

    /// Tells the count of lines left out, a second later, where no further line has told it. Runs
    /// until it is dropped.
    pub(crate) async fn run(&self) {
        loop {
            self.left_out.notified().await;
            // By then the window of that line is over.
            tokio::time::sleep(LineLimit::WINDOW).await;
            self.flush(clock::now());
        }
    }

    fn flush(&self, now: Instant) {
        for kind in RefusalKind::ALL {
            if let Some(left_out) = self.limit(kind).flush(now) {
                warn!(left_out, "{}; further lines left out", kind.words());
            }
        }
        for line in ClientLine::ALL {
            if let Some(left_out) = lock(&self.client_limits[line as usize]).flush(now) {
                info!(left_out, "{}; further lines left out", line.words());
            }
        }
    }

    fn limit(&self, kind: RefusalKind) -> MutexGuard<'_, LineLimit> {
        lock(&self.limits[kind as usize])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_last_lines_stay_for_operators_in_pages() {
        let (refusal_log, now) = (RefusalLog::default(), Instant::now());
        let long = "x".repeat(1_000);
        refusal_log.log(
            RefusalKind::Eviction,
            RefusalDetails::default(),
            "too slow",
            now,
        );
        for second in 0..600_u32 {
            let client = format!("c{second}");
            let details = RefusalDetails {
                client: Some(&client),
                user: Some(&long),
                ..RefusalDetails::default()
            };
            let now = now + Duration::from_secs(second.into());
            refusal_log.log(RefusalKind::LogIn, details, "not authorized", now);
        }
        let mut query = Query {
            limit: 60,
            ..Query::default()
        };
        let page = refusal_log.recent(&query);
        assert_eq!((page.items.len(), page.items[0].number), (60, 601));
        assert_eq!(
            page.items[0].user.as_ref().unwrap().len(),
            MAX_TEXT_CHARACTERS
        );
        query.after = page.next;
        let rest = refusal_log.recent(&query);
        let numbers: Vec<_> = rest.items.iter().map(|line| line.number).collect();
        assert_eq!((numbers.len(), numbers[0], numbers[39]), (41, 541, 502));
        assert_eq!(numbers[40], 1, "a line of another kind stays");
        assert_eq!(rest.next, None);
        query.after = None;
        query.matching = "c59".to_owned();
        assert_eq!(refusal_log.recent(&query).items.len(), 10);
        let since: Vec<_> = refusal_log
            .since(599)
            .iter()
            .map(|line| line.number)
            .collect();
        assert_eq!(since, [600, 601]);
    }
}
