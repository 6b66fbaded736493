//! A message of the client's that waits for room in somebody's mailbox.

use std::time::{Duration, Instant};

use mq_proto::Event;

use super::Attached;
use crate::{mailbox::PATIENCE, session::Session};

impl Attached<'_> {
    /// Tries the deliveries without room again, in order. Once all have found room the message is
    /// acknowledged.
    pub(super) fn retry_waiting(&mut self, now: Instant) {
        if self.publisher.waiting.is_empty() {
            return;
        }
        let is_over = self.is_out_of_patience(now);
        self.wire.hub.retry(&mut self.publisher, is_over);
        if self.publisher.waiting.is_empty() {
            self.answer_publish(now);
        } else if is_over && self.wire.connection.is_closed() {
            self.give_up();
        }
    }

    /// Whether the waiting message has waited for long enough: now the mailboxes' overflow policy
    /// decides.
    pub(super) fn is_out_of_patience(&self, now: Instant) -> bool {
        let since = self.publisher.waiting_since;
        since.is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE)
    }

    /// When a message that waits for room in that session's mailbox is looked at again, room or not.
    pub(super) fn patience_ends(&self, session: &Session, now: Instant) -> Instant {
        let since = self.publisher.waiting_since.unwrap_or(now);
        if !self.is_out_of_patience(now) {
            return since + PATIENCE;
        }
        // Where publishers wait for as long as it takes, the reader's time may run out.
        let stopped_for = session.mailbox.no_progress_for(now.into());
        let left = self
            .wire
            .settings
            .reader_timeout
            .map_or(Duration::MAX, |timeout| {
                timeout.saturating_sub(stopped_for.unwrap_or_default())
            });
        // Where no time is left it is looked at again soon, not at once.
        now + left.clamp(PATIENCE, Duration::from_hours(1))
    }

    /// Acknowledges, or refuses, the message that has found room or will find none.
    pub(super) fn answer_publish(&mut self, now: Instant) {
        let Some(ticket) = self.held.take() else {
            return self.publisher.done();
        };
        let session = &self.hold.session;
        let (reason, refused) = self.publisher.outcome(session);
        if let Some(topic) = refused {
            let why = "no room for it";
            self.wire.hub.refused_publish(session, &topic, why, now);
        }
        self.wire.connection.ack(now, ticket, reason);
    }

    /// Gives up a message that still finds no room once its publisher has gone. Neither it nor the
    /// messages behind it were acknowledged.
    fn give_up(&mut self) {
        self.publisher.give_up(&self.wire.hub.metrics);
        self.held = None;
        let backlog = core::iter::from_fn(|| self.backlog.pop());
        for event in backlog.chain(core::iter::from_fn(|| self.wire.connection.poll_event())) {
            match event {
                Event::Publish(_) => self.wire.hub.metrics.dropped.add(1),
                Event::Closed(reason) => self.wire.closed = Some(reason),
                _ => {}
            }
        }
    }
}
