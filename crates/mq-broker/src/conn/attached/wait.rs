//! The wait of an attached client, and its result.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use mq_proto::Outbox;
use mq_transport::{Error, Link, Progress};
use tokio::{
    sync::futures::Notified,
    task::{consume_budget, coop::has_budget_remaining},
    time::{Sleep, sleep_until},
};

use super::{Attached, wake_sources::WakeSources};
use crate::{
    auth::{Authentication, Refusal, Step},
    conn::queue_read::{QueueRead, ReadMessages},
    journal::{Journal, StoreFailed},
    mailbox::Mailbox,
    store::{Position, StoreError},
};

/// The events that an attached client waits for in this turn, besides those of every turn.
pub(super) struct WaitFor {
    /// `true` if the connection is over, and a last message waits for room.
    pub(super) closed: bool,
    pub(super) store: StoreWait,
    pub(super) want_read: bool,
    pub(super) now: Instant,
    pub(super) deadline: Option<Instant>,
}

/// The reason for which a client waits for the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StoreWait {
    None,
    /// The outbox holds something that must not be sent before the changes up to this position are settled.
    Outbox(Position),
    /// A request of the client's, or the answer to one, waits until the store has settled something, of whatever connection.
    Request,
}

/// The event that has ended the wait of an attached client.
pub(super) enum WaitResult {
    Progress(Option<Result<Progress, Error>>),
    Due,
    Stored(Result<(), StoreFailed>),
    ReadMessages(Result<ReadMessages, StoreError>),
    Authenticated(Result<Step, Refusal>),
    RetryPublish,
    /// Something that each turn looks at.
    Woken,
}

impl Attached<'_> {
    /// Waits until something happens. First what is rare and must not wait behind a busy link, then the link, then
    /// what only wakes the task, as each turn looks at it anyway.
    pub(super) fn wait<'w>(
        &'w mut self,
        waits: &WaitFor,
        room: Option<Pin<&'w mut Notified<'_>>>,
        timer: Pin<&'w mut Sleep>,
    ) -> Wait<'w> {
        let takes_more = self.takes_more_retained();
        let has_more_to_send = self.has_more_to_send();
        let wire = &mut *self.wire;
        let tells_flushed = !waits.want_read || takes_more || has_more_to_send;
        let closed = waits.closed;
        let unlikely = Unlikely {
            is_due: waits.deadline.is_some_and(|at| at <= waits.now) && !closed,
            store: (waits.store != StoreWait::None)
                .then_some((&mut self.publisher.journal, waits.store)),
            queue_read: self.queue_read.as_mut().filter(|_| !closed),
            authentication: Some(&mut self.client.authentication)
                .filter(|authentication| authentication.is_working() && !closed),
            room,
            retry_at: self.retry_at,
        };
        Wait {
            // In a box: the task of a client that waits for the link alone needs no room for it.
            unlikely: unlikely
                .is_any()
                .then(|| Box::pin(unlikely.wait()) as Pin<Box<dyn Future<Output = _> + Send>>),
            closed,
            wake_sources: &mut self.wake_sources,
            link: &mut wire.link,
            is_early: wire.early.is_some(),
            outbox: wire.connection.outbox(),
            want_read: waits.want_read,
            tells_flushed,
            mailbox: &self.hold.session.mailbox,
            timer: waits.deadline.map(|_| timer),
            takes_more,
        }
    }
}

/// Waits until something happens.
#[expect(clippy::struct_excessive_bools, reason = "each stands for itself")]
pub(super) struct Wait<'a> {
    unlikely: Option<Pin<Box<dyn Future<Output = WaitResult> + Send + 'a>>>,
    /// `true` if only the unlikely events are waited for.
    closed: bool,
    wake_sources: &'a mut WakeSources,
    link: &'a mut Link,
    is_early: bool,
    outbox: &'a mut Outbox,
    want_read: bool,
    tells_flushed: bool,
    mailbox: &'a Mailbox,
    /// The timer, if there is a deadline.
    timer: Option<Pin<&'a mut Sleep>>,
    /// `true` if the next turn has something to do anyway.
    takes_more: bool,
}

impl Future for Wait<'_> {
    type Output = WaitResult;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WaitResult> {
        let this = self.get_mut();
        if let Some(unlikely) = &mut this.unlikely
            && let Poll::Ready(happened) = unlikely.as_mut().poll(cx)
        {
            return Poll::Ready(happened);
        }
        if this.closed {
            return Poll::Pending;
        }
        if !has_budget_remaining() {
            // Others have their turn.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (link, outbox, want_read) = (&mut *this.link, &mut *this.outbox, this.want_read);
        let sources = this.wake_sources.sources(cx);
        let progress = if this.is_early {
            sources.forget_link();
            link.poll_progress_or_handshake(cx, outbox, want_read)
        } else {
            let progress = sources.poll_link(link, outbox, want_read, this.tells_flushed);
            progress.map(Some)
        };
        if let Poll::Ready(progress) = progress {
            return Poll::Ready(WaitResult::Progress(progress));
        }
        let is_told = sources.mailbox.ask(|cx| this.mailbox.poll_woken(cx));
        // Without a deadline the source is not asked: it would not be asked again once there is one.
        let timer = this.timer.as_mut();
        let is_due = timer.is_some_and(|timer| sources.timer.ask(|cx| timer.as_mut().poll(cx)));
        if is_told || this.takes_more || is_due {
            return Poll::Ready(WaitResult::Woken);
        }
        Poll::Pending
    }
}

/// Events that are waited for now and then, and must not wait behind a busy link.
struct Unlikely<'a, 'r> {
    /// `true` if the deadline has passed.
    is_due: bool,
    /// The journal, and what of it is waited for.
    store: Option<(&'a mut Journal, StoreWait)>,
    queue_read: Option<&'a mut QueueRead>,
    /// The authentication, while it works.
    authentication: Option<&'a mut Authentication>,
    /// The mailbox in which a message waits for room.
    room: Option<Pin<&'a mut Notified<'r>>>,
    retry_at: Option<Instant>,
}

impl Unlikely<'_, '_> {
    fn is_any(&self) -> bool {
        self.is_due
            || self.store.is_some()
            || self.queue_read.is_some()
            || self.authentication.is_some()
            || self.room.is_some()
    }

    async fn wait(self) -> WaitResult {
        let backpressure = self.retry_at.map(|at| sleep_until(at.into()));
        tokio::select! {
            biased;
            () = consume_budget(), if self.is_due => WaitResult::Due,
            stored = optional(self.store.map(settled)) => WaitResult::Stored(stored),
            messages = optional(self.queue_read) => WaitResult::ReadMessages(messages),
            outcome = optional(self.authentication.map(Authentication::outcome)) => {
                WaitResult::Authenticated(outcome)
            }
            () = optional(self.room) => WaitResult::Woken,
            () = optional(backpressure) => WaitResult::RetryPublish,
        }
    }
}

async fn settled((journal, waits): (&mut Journal, StoreWait)) -> Result<(), StoreFailed> {
    match waits {
        StoreWait::Outbox(position) => journal.settled_up_to(position).await,
        StoreWait::None | StoreWait::Request => journal.next_settled().await,
    }
}

/// Waits for a future, or without one for ever.
async fn optional<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
