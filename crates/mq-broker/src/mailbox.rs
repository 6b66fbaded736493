//! What waits for one session: a bounded queue that many connections fill and one empties.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mq_codec::QoS;
use mq_proto::Delivery;
use tokio::sync::{Notify, futures::Notified};

/// How much may wait for one session. A message larger than `bytes` is taken when nothing else
/// waits. Beyond, the publisher of a connected reader waits (QoS 0: for 0.1 s); see
/// `docs/architecture.md`, "Back-pressure".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MailboxLimits {
    /// Messages.
    pub messages: usize,
    /// Payload bytes.
    pub bytes: usize,
}

/// How long a publisher of QoS 0 waits for a reader that lags, before its messages are dropped for
/// it: long enough for a reader that is merely slower, short enough that one that has stopped
/// does not stop those who write to others too.
pub(crate) const QOS0_PATIENCE: Duration = Duration::from_millis(100);

/// The messages that wait for one session; it outlives connections.
///
/// Policy when it is full and the session connected: the publisher waits (its link is not read and
/// its acknowledgement is withheld), for QoS 1 and 2 until there is room, for QoS 0 only for
/// [`QOS0_PATIENCE`]; then the reader counts as stalled, and QoS 0 is dropped and counted until it
/// takes something again. While the session is not connected, what finds no room is dropped and
/// counted.
#[derive(Debug)]
pub(crate) struct Mailbox {
    limits: MailboxLimits,
    queue: Mutex<Queue>,
    /// There is something in the queue.
    filled: Notify,
    /// There is room again, or the reader has gone.
    emptied: Notify,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Delivery>,
    bytes: usize,
    /// A connection takes from it.
    connected: bool,
    /// The reader was told that there is something and has not looked yet.
    told: bool,
    /// It was full for longer than a publisher of QoS 0 waits.
    stalled: bool,
}

impl Queue {
    fn count_bytes(&mut self) {
        let sizes = self.messages.iter();
        self.bytes = sizes.map(|delivery| delivery.message.payload.len()).sum();
    }
}

/// What became of a message.
#[derive(Debug)]
pub(crate) enum Push {
    /// Queued; if true, the reader has to be told, with [`Mailbox::tell`].
    Queued { tell: bool },
    /// Dropped and counted.
    Dropped(Delivery),
    /// No room: wait for it with [`Mailbox::room`].
    Full(Delivery),
}

impl Mailbox {
    pub(crate) fn new(limits: MailboxLimits) -> Self {
        Self {
            limits,
            queue: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Queues a message if there is room.
    pub(crate) fn push(&self, delivery: Delivery) -> Push {
        let size = delivery.message.payload.len();
        let mut queue = self.lock();
        let fits = queue.messages.len() < self.limits.messages
            && (queue.bytes + size <= self.limits.bytes || queue.messages.is_empty());
        if !fits {
            let waits = delivery.qos > QoS::AtMostOnce || !queue.stalled;
            if queue.connected && waits {
                return Push::Full(delivery);
            }
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Push::Dropped(delivery);
        }
        if !queue.connected && delivery.qos == QoS::AtMostOnce {
            // Nothing promises that QoS 0 is kept for a session that is away (§4.1).
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Push::Dropped(delivery);
        }
        queue.bytes += size;
        queue.messages.push_back(delivery);
        let tell = queue.connected && !queue.told;
        queue.told |= tell;
        Push::Queued { tell }
    }

    /// Wakes the reader. Separate from [`push`](Self::push) so that a publisher can queue all that
    /// it has first, and the reader finds it in one batch.
    pub(crate) fn tell(&self) {
        self.filled.notify_one();
    }

    /// Resolves when room has been made or the reader has gone.
    ///
    /// Make it, `enable` it, and only then try to [`push`](Self::push) once more: room that is
    /// made in between is then not missed.
    pub(crate) fn room(&self) -> Notified<'_> {
        self.emptied.notified()
    }

    /// A connection takes over; `true` if there is something to take.
    pub(crate) fn connect(&self) -> bool {
        let mut queue = self.lock();
        queue.connected = true;
        queue.told = false;
        queue.stalled = false;
        !queue.messages.is_empty()
    }

    /// The connection has ended: what it took and could not send comes back, QoS 0 goes.
    pub(crate) fn disconnect(&self, unsent: impl DoubleEndedIterator<Item = Delivery>) {
        let mut queue = self.lock();
        queue.connected = false;
        for delivery in unsent.rev() {
            queue.messages.push_front(delivery);
        }
        let before = queue.messages.len();
        queue
            .messages
            .retain(|delivery| delivery.qos > QoS::AtMostOnce);
        let lost = before - queue.messages.len();
        queue.count_bytes();
        drop(queue);
        self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
        // Those who wait for room find out that nobody reads.
        self.emptied.notify_waiters();
    }

    /// Moves at most `count` messages to `to`, expired ones too.
    pub(crate) fn take(&self, count: usize, to: &mut VecDeque<Delivery>) {
        let mut queue = self.lock();
        let was_full = queue.messages.len() >= self.limits.messages / 2
            || queue.bytes >= self.limits.bytes / 2;
        queue.stalled = false;
        for _ in 0..count {
            let Some(delivery) = queue.messages.pop_front() else {
                break;
            };
            queue.bytes -= delivery.message.payload.len();
            to.push_back(delivery);
        }
        if queue.messages.is_empty() {
            queue.told = false;
        }
        drop(queue);
        if was_full {
            self.emptied.notify_waiters();
        }
    }

    /// Takes out, and returns, all but what `keep` says yes to.
    pub(crate) fn keep(&self, keep: impl Fn(&Delivery) -> bool) -> VecDeque<Delivery> {
        let mut queue = self.lock();
        let (kept, removed) = queue.messages.drain(..).partition(keep);
        queue.messages = kept;
        queue.count_bytes();
        drop(queue);
        self.emptied.notify_waiters();
        removed
    }

    /// What was taken and not sent comes back in front.
    pub(crate) fn put_back(&self, unsent: impl DoubleEndedIterator<Item = Delivery>) {
        let mut queue = self.lock();
        for delivery in unsent.rev() {
            queue.messages.push_front(delivery);
        }
        queue.count_bytes();
    }

    /// A publisher of QoS 0 has lost its patience.
    pub(crate) fn stalled(&self) {
        self.lock().stalled = true;
    }

    /// Puts in what an earlier broker had queued, whatever the limits are now.
    pub(crate) fn restore(&self, messages: impl Iterator<Item = Delivery>) {
        let mut queue = self.lock();
        queue.messages.extend(messages);
        queue.count_bytes();
    }

    /// Resolves once [`tell`](Self::tell) was called. Cancel-safe.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Whether a connection takes from it and it is not half full: a good choice for a shared
    /// subscription.
    pub(crate) fn is_ready(&self) -> bool {
        let queue = self.lock();
        queue.connected && queue.messages.len() <= self.limits.messages / 2
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let mut queue = self.lock();
        queue.messages.clear();
        queue.bytes = 0;
    }

    /// Messages waiting.
    pub(crate) fn len(&self) -> usize {
        self.lock().messages.len()
    }

    /// Messages dropped since the session began.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic elsewhere leaves the queue whole: every change here is complete in itself.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use mq_codec::TopicName;
    use mq_proto::Message;

    use super::*;

    fn delivery(qos: QoS) -> Delivery {
        Delivery::new(Message::new(TopicName::new("t").unwrap(), "12345"), qos)
    }

    fn mailbox(messages: usize) -> Mailbox {
        Mailbox::new(MailboxLimits {
            messages,
            bytes: 1000,
        })
    }

    #[test]
    fn qos0_is_dropped_and_counted_once_the_reader_counts_as_stalled() {
        let mailbox = mailbox(2);
        mailbox.connect();
        assert!(matches!(
            mailbox.push(delivery(QoS::AtMostOnce)),
            Push::Queued { tell: true }
        ));
        assert!(matches!(
            mailbox.push(delivery(QoS::AtMostOnce)),
            Push::Queued { tell: false }
        ));
        assert!(matches!(
            mailbox.push(delivery(QoS::AtMostOnce)),
            Push::Full(_)
        ));
        mailbox.stalled();
        assert!(matches!(
            mailbox.push(delivery(QoS::AtMostOnce)),
            Push::Dropped(_)
        ));
        assert!(matches!(
            mailbox.push(delivery(QoS::AtLeastOnce)),
            Push::Full(_)
        ));
        assert_eq!((mailbox.len(), mailbox.dropped()), (2, 1));
        mailbox.take(1, &mut VecDeque::new());
        let _ = mailbox.push(delivery(QoS::AtMostOnce));
        assert!(
            matches!(mailbox.push(delivery(QoS::AtMostOnce)), Push::Full(_)),
            "patient again"
        );
    }

    #[test]
    fn a_session_that_is_away_keeps_qos1_and_not_qos0() {
        let mailbox = mailbox(2);
        assert!(matches!(
            mailbox.push(delivery(QoS::AtMostOnce)),
            Push::Dropped(_)
        ));
        assert!(matches!(
            mailbox.push(delivery(QoS::AtLeastOnce)),
            Push::Queued { tell: false }
        ));
        assert!(matches!(
            mailbox.push(delivery(QoS::AtLeastOnce)),
            Push::Queued { .. }
        ));
        assert!(matches!(
            mailbox.push(delivery(QoS::AtLeastOnce)),
            Push::Dropped(_)
        ));
        assert!(mailbox.connect(), "something waits");
    }

    #[test]
    fn what_could_not_be_sent_comes_back_in_front() {
        let mailbox = mailbox(10);
        mailbox.connect();
        for qos in [QoS::AtLeastOnce, QoS::AtMostOnce, QoS::ExactlyOnce] {
            let _ = mailbox.push(delivery(qos));
        }
        let mut taken = VecDeque::new();
        mailbox.take(2, &mut taken);
        mailbox.disconnect(taken.drain(..));
        mailbox.connect();
        mailbox.take(10, &mut taken);
        let order: Vec<_> = taken.iter().map(|delivery| delivery.qos).collect();
        assert_eq!(order, [QoS::AtLeastOnce, QoS::ExactlyOnce]);
    }

    #[tokio::test]
    async fn room_is_announced_when_the_reader_takes_or_leaves() {
        let mailbox = mailbox(1);
        mailbox.connect();
        let _ = mailbox.push(delivery(QoS::AtLeastOnce));
        for leave in [false, true] {
            let mut room = std::pin::pin!(mailbox.room());
            assert!(!room.as_mut().enable());
            assert!(matches!(
                mailbox.push(delivery(QoS::AtLeastOnce)),
                Push::Full(_)
            ));
            if leave {
                mailbox.disconnect(std::iter::empty());
            } else {
                mailbox.take(1, &mut VecDeque::new());
            }
            room.await;
            let _ = mailbox.push(delivery(QoS::AtLeastOnce));
        }
    }
}
