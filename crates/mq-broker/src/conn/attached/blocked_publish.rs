//! A message of the client's that waits for room in somebody's mailbox.

use std::time::{Duration, Instant};

use mq_proto::Event;

use super::Attached;
use crate::{
    conn::backlog::is_acknowledgement,
    hub::{Acknowledgement, RoutedMessage},
    mailbox::BACKPRESSURE_TIMEOUT,
    session::Session,
};

/// Interval at which a message is tried again for which there was no memory.
const MEMORY_RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Attached<'_> {
    /// Tries the deliveries without room again, in order. Once all have found room the message is
    /// acknowledged.
    pub(super) fn retry_waiting(&mut self, now: Instant) {
        let Some(mut blocked) = self.blocked_publish.take() else {
            return;
        };
        let is_over = is_backpressure_over(&blocked, now);
        let hub = &self.wire.hub;
        hub.retry(&mut blocked, &mut self.publisher, is_over);
        if blocked.is_delivered() {
            self.acknowledge(blocked, now);
        } else if is_over && self.wire.connection.is_closed() {
            self.give_up(blocked, now);
        } else {
            self.blocked_publish = Some(blocked);
        }
    }

    /// Returns `true` if the blocked message has waited for long enough: now the mailboxes' overflow policy
    /// decides.
    pub(super) fn is_backpressure_over(&self, now: Instant) -> bool {
        let blocked = self.blocked_publish.as_ref();
        blocked.is_some_and(|blocked| is_backpressure_over(blocked, now))
    }

    /// Returns the time at which a message that waits for room in that session's mailbox is tried again, room or not.
    pub(super) fn retry_at(&self, session: &Session, now: Instant) -> Instant {
        let blocked = self.blocked_publish.as_ref();
        let since = blocked
            .and_then(RoutedMessage::waiting_since)
            .unwrap_or(now);
        if !self.is_backpressure_over(now) {
            return since + BACKPRESSURE_TIMEOUT;
        }
        // Where publishers wait for as long as it takes, the reader's time may run out.
        let Some(stopped_for) = session.mailbox.no_progress_for(now.into()) else {
            // The reader has nothing that it could take: memory is short, which nobody announces.
            return now + MEMORY_RETRY_INTERVAL;
        };
        let reader_timeout = self.wire.settings.reader_timeout;
        let left =
            reader_timeout.map_or(Duration::MAX, |timeout| timeout.saturating_sub(stopped_for));
        // Where no time is left it is looked at again soon, not at once.
        now + left.clamp(BACKPRESSURE_TIMEOUT, Duration::from_hours(1))
    }

    /// Acknowledges, or refuses, the message that has found room or will find none.
    #[inline]
    pub(super) fn acknowledge(&mut self, routed: RoutedMessage, now: Instant) {
        let session = &self.hold.session;
        let Some(Acknowledgement {
            ticket,
            reason,
            refused_topic,
            appended,
        }) = routed.acknowledge(session, &mut self.publisher)
        else {
            return;
        };
        if let Some(topic) = refused_topic {
            let why = "no room for it";
            self.wire.hub.refused_publish(session, &topic, why, now);
        }
        if reason.is_error() && !self.wire.connection.has_reason_codes() {
            // Without an acknowledgement it sends the message again.
            self.wire.disconnect_for(reason);
        } else if self.publisher.journal.has_store() {
            let answers = self.publisher.append_answers.as_ref();
            self.wire
                .unsettled_acks
                .push(ticket, reason, appended, answers);
        } else {
            self.wire.connection.ack(now, ticket, reason);
        }
    }

    /// Gives up a message that still finds no room once its publisher has gone. Neither it nor the
    /// messages behind it were acknowledged.
    fn give_up(&mut self, blocked: RoutedMessage, now: Instant) {
        let hub = &self.wire.hub;
        hub.give_up(blocked, &mut self.publisher.journal);
        self.drop_requests(now);
    }

    /// Drops the requests of a client that has gone which were not acted on. None of them was acknowledged. What the client
    /// has said of messages that it received is recorded.
    pub(super) fn drop_requests(&mut self, now: Instant) {
        while let Some(event) = self
            .backlog
            .pop()
            .or_else(|| self.wire.connection.poll_event())
        {
            match event {
                Event::Publish(_) | Event::Discarded(_) => self.wire.hub.metrics.dropped.add(1),
                Event::Closed(reason) => self.wire.closed = Some(reason),
                event if is_acknowledgement(&event) => self.handle_event(now, event),
                _ => {}
            }
        }
    }
}

/// Returns `true` if a message has waited for long enough: now the mailboxes' overflow policy decides.
fn is_backpressure_over(blocked: &RoutedMessage, now: Instant) -> bool {
    let since = blocked.waiting_since();
    since.is_some_and(|since| now.saturating_duration_since(since) >= BACKPRESSURE_TIMEOUT)
}
