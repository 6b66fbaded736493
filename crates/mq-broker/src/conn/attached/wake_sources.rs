//! The sources that wake a connection's task, so that it polls only those that did.
//!
//! A task is woken as a whole. With one waker for everything that it waits for, it would poll the
//! link, the mailbox and the timer each time, and register again with each: most of the cost of a
//! message.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use mq_proto::Outbox;
use mq_transport::{Error, Link, Progress};

/// The sources of one task, each with a waker of its own.
#[derive(Debug, Default)]
pub(super) struct WakeSources {
    sources: Option<Sources>,
}

#[derive(Debug)]
pub(super) struct Sources {
    task: Waker,
    link: Source,
    /// The `want_read` of the link's last poll, if that returned pending.
    quiet_link: Option<bool>,
    pub(super) mailbox: Source,
    pub(super) timer: Source,
}

/// A source that wakes the task by a waker of its own.
#[derive(Debug)]
pub(super) struct Source {
    signal: Arc<Signal>,
    waker: Waker,
}

#[derive(Debug)]
struct Signal {
    /// `true` if the source has woken the task since the last poll, or was never polled.
    has_come: AtomicBool,
    task: Waker,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_come.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

impl Source {
    fn new(task: &Waker) -> Self {
        let signal = Arc::new(Signal {
            has_come: AtomicBool::new(true),
            task: task.clone(),
        });
        Self {
            waker: Arc::clone(&signal).into(),
            signal,
        }
    }

    /// Polls the source if it may be ready; returns `true` if it is.
    pub(super) fn ask(&self, poll: impl FnOnce(&mut Context<'_>) -> Poll<()>) -> bool {
        if !self.take() {
            return false;
        }
        let is_ready = poll(&mut self.context()).is_ready();
        if is_ready {
            // A source that was ready does not wake the task again before its next poll.
            self.ask_again();
        }
        is_ready
    }

    fn ask_again(&self) {
        self.signal.has_come.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        let has_come = &self.signal.has_come;
        has_come.load(Ordering::Relaxed) && has_come.swap(false, Ordering::Acquire)
    }

    fn context(&self) -> Context<'_> {
        Context::from_waker(&self.waker)
    }
}

impl WakeSources {
    /// Returns the sources of the task that polls now: new ones if the connection has moved to
    /// another task.
    pub(super) fn sources(&mut self, context: &Context<'_>) -> &mut Sources {
        let task = context.waker();
        let sources = self.sources.as_ref();
        if sources.is_none_or(|sources| !sources.task.will_wake(task)) {
            self.sources = Some(Sources {
                task: task.clone(),
                link: Source::new(task),
                quiet_link: None,
                mailbox: Source::new(task),
                timer: Source::new(task),
            });
        }
        self.sources.as_mut().expect("they were made")
    }

    /// Makes the timer be polled again, as it has another deadline.
    pub(super) fn has_new_timer(&mut self) {
        if let Some(sources) = &self.sources {
            sources.timer.ask_again();
        }
    }

    /// Makes the link be polled again, as other code has polled it meanwhile.
    pub(super) fn forget_link(&mut self) {
        if let Some(sources) = &mut self.sources {
            sources.quiet_link = None;
        }
    }
}

impl Sources {
    /// Calls [`Link::poll_progress`] if the link may be ready. Without `tells_flushed` it does not
    /// return when everything was written.
    pub(super) fn poll_link(
        &mut self,
        link: &mut Link,
        outbox: &mut Outbox,
        want_read: bool,
        tells_flushed: bool,
    ) -> Poll<Result<Progress, Error>> {
        loop {
            if self.link.take() {
                // The link must be polled until it is pending: a call that writes may not read.
                self.quiet_link = None;
            }
            let is_quiet = self.quiet_link == Some(want_read) && link.data_lanes() == 0;
            if is_quiet && outbox.is_empty() {
                return Poll::Pending;
            }
            match link.poll_progress(&mut self.link.context(), outbox, want_read) {
                Poll::Pending => {
                    self.quiet_link = Some(want_read);
                    return Poll::Pending;
                }
                // The reader registered earlier still wakes the task.
                Poll::Ready(Ok(Progress::Flushed)) if !tells_flushed => {}
                progress @ Poll::Ready(_) => {
                    self.quiet_link = None;
                    return progress;
                }
            }
        }
    }

    /// Makes the link be polled again, as other code has polled it meanwhile.
    pub(super) fn forget_link(&mut self) {
        self.quiet_link = None;
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use mq_proto::LaneId;

    use super::*;

    fn put(outbox: &mut Outbox) {
        outbox.put_body(LaneId::CONTROL, &bytes::Bytes::from_static(b"bytes"));
    }

    /// Returns the result of one poll of the link in a task.
    async fn once(
        wake_sources: &mut WakeSources,
        link: &mut Link,
        outbox: &mut Outbox,
    ) -> Poll<Result<Progress, Error>> {
        poll_fn(|cx| {
            Poll::Ready(
                wake_sources
                    .sources(cx)
                    .poll_link(link, outbox, true, false),
            )
        })
        .await
    }

    #[tokio::test]
    async fn what_comes_while_something_is_written_is_not_missed() {
        let (mut link, mut peer) = Link::pair();
        let (mut wake_sources, mut outbox) = (WakeSources::default(), Outbox::new());
        assert!(
            once(&mut wake_sources, &mut link, &mut outbox)
                .await
                .is_pending()
        );
        let mut sent = Outbox::new();
        put(&mut sent);
        peer.progress(&mut sent, false).await.unwrap();
        put(&mut outbox);
        let progress = once(&mut wake_sources, &mut link, &mut outbox).await;
        let control = Progress::Received(LaneId::CONTROL);
        assert!(
            matches!(progress, Poll::Ready(Ok(lane)) if lane == control),
            "{progress:?}"
        );
        assert!(outbox.is_empty(), "and it was written");
    }

    #[tokio::test]
    async fn a_source_is_asked_at_first_and_then_when_it_has_woken_the_task() {
        let mut wake_sources = WakeSources::default();
        poll_fn(|cx| {
            let source = &wake_sources.sources(cx).mailbox;
            let mut registered = None;
            assert!(!source.ask(|cx| {
                registered = Some(cx.waker().clone());
                Poll::Pending
            }));
            assert!(!source.ask(|_| panic!("it has not woken the task")));
            registered.unwrap().wake();
            assert!(source.ask(|_| Poll::Ready(())));
            assert!(source.ask(|_| Poll::Ready(())), "it may be ready again");
            Poll::Ready(())
        })
        .await;
    }
}
