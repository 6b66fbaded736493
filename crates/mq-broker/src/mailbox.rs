//! What waits for one session: a bounded queue that many connections fill and one empties.

use std::{
    collections::VecDeque,
    sync::{Arc, PoisonError},
    time::Duration,
};

use mq_codec::QoS;
use mq_proto::{Delivery, Message};

use crate::{
    memory::Ceiling,
    sync::{
        Instant, Mutex, MutexGuard, Notified, Notify,
        atomic::{AtomicU64, Ordering},
    },
};

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

/// A reader for whom more than this waits lags, and what waits beyond counts against the ceiling of
/// all sessions together. Below it nothing is counted or copied.
const FREE_MESSAGES: usize = 64;
const FREE_BYTES: usize = 64 * 1024;

/// What a message takes in a queue, besides itself.
const ENTRY: usize = size_of::<Delivery>();

/// The messages that wait for one session; it outlives connections.
///
/// Policy when it is full and the session connected: the publisher waits (its link is not read and
/// its acknowledgement is withheld), for QoS 1 and 2 until there is room or the reader is made to
/// leave, for QoS 0 only for [`QOS0_PATIENCE`]; then the reader counts as stalled, and QoS 0 is
/// dropped and counted until it takes something again. While the session is not connected, what
/// finds no room is dropped and counted. It is full for a reader that lags, too, while it has more
/// than is left below the ceiling of all sessions; then QoS 0 is dropped at once.
#[derive(Debug)]
pub(crate) struct Mailbox {
    limits: MailboxLimits,
    ceiling: Arc<Ceiling>,
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
    /// How many of `messages` count against the ceiling as entries.
    counted: usize,
    /// Since when somebody waits for room, nothing having been taken meanwhile.
    full_since: Option<Instant>,
    /// When the reader took something last, or came.
    taken_at: Option<Instant>,
}

impl Queue {
    fn count_bytes(&mut self) {
        let sizes = self.messages.iter();
        self.bytes = sizes.map(|delivery| delivery.message.payload.len()).sum();
    }

    fn lags(&self) -> bool {
        self.messages.len() >= FREE_MESSAGES || self.bytes > FREE_BYTES
    }

    /// Entries that have gone do not count any more.
    fn give_back(&mut self, ceiling: &Ceiling) {
        if let Some(gone) = self.counted.checked_sub(self.messages.len()) {
            ceiling.give(gone * ENTRY);
            self.counted -= gone;
        }
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
    pub(crate) fn new(limits: MailboxLimits, ceiling: Arc<Ceiling>) -> Self {
        Self {
            limits,
            ceiling,
            queue: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Queues a message if there is room. For a reader that lags it is what `keep` makes of it: a
    /// message that counts, or `None` if the ceiling is reached.
    pub(crate) fn push(
        &self,
        mut delivery: Delivery,
        keep: impl FnOnce(&Arc<Message>) -> Option<Arc<Message>>,
    ) -> Push {
        let size = delivery.message.payload.len();
        let mut queue = self.lock();
        if !queue.connected && delivery.qos == QoS::AtMostOnce {
            // Nothing promises that QoS 0 is kept for a session that is away (§4.1).
            return self.dropped_one(delivery);
        }
        let fits = queue.messages.len() < self.limits.messages
            && (queue.bytes + size <= self.limits.bytes || queue.messages.is_empty());
        if !fits {
            if delivery.qos == QoS::AtMostOnce && !queue.stalled {
                // Who has taken nothing for so long already is not merely slower.
                let taken_at = queue.taken_at;
                queue.stalled = taken_at.is_none_or(|at| at.elapsed() >= QOS0_PATIENCE);
            }
            let waits = delivery.qos > QoS::AtMostOnce || !queue.stalled;
            return if queue.connected && waits {
                queue.full_since.get_or_insert_with(Instant::now);
                Push::Full(delivery)
            } else {
                self.dropped_one(delivery)
            };
        }
        if queue.lags() {
            // Nobody has more than is left for all others: one reader that has stopped leaves room for
            // those that are merely behind for a moment.
            let kept = if queue.bytes <= self.ceiling.left() && self.ceiling.take(ENTRY) {
                keep(&delivery.message).or_else(|| {
                    self.ceiling.give(ENTRY);
                    None
                })
            } else {
                None
            };
            match kept {
                Some(message) => {
                    delivery.message = message;
                    queue.counted += 1;
                }
                None if queue.connected && delivery.qos > QoS::AtMostOnce => {
                    queue.full_since.get_or_insert_with(Instant::now);
                    return Push::Full(delivery);
                }
                None => return self.dropped_one(delivery),
            }
        }
        queue.bytes += size;
        queue.messages.push_back(delivery);
        let tell = queue.connected && !queue.told;
        queue.told |= tell;
        Push::Queued { tell }
    }

    fn dropped_one(&self, delivery: Delivery) -> Push {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        Push::Dropped(delivery)
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
        queue.full_since = None;
        queue.taken_at = Some(Instant::now());
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
        queue.give_back(&self.ceiling);
        drop(queue);
        self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
        // Those who wait for room find out that nobody reads.
        self.emptied.notify_waiters();
    }

    /// Moves at most `count` messages to `to`, expired ones too.
    pub(crate) fn take(&self, count: usize, to: &mut VecDeque<Delivery>) {
        let mut queue = self.lock();
        queue.stalled = false;
        queue.taken_at = Some(Instant::now());
        let is_waited_for = queue.full_since.take().is_some();
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
        queue.give_back(&self.ceiling);
        drop(queue);
        if is_waited_for {
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

    /// How long somebody has waited for room, nothing having been taken meanwhile.
    pub(crate) fn full_for(&self, now: Instant) -> Option<Duration> {
        let since = self.lock().full_since?;
        Some(now.saturating_duration_since(since))
    }

    /// Puts in what an earlier broker had queued, whatever the limits are now.
    pub(crate) fn restore(&self, messages: impl Iterator<Item = Delivery>) {
        let mut queue = self.lock();
        let kept = messages.map(|delivery| Delivery {
            message: Arc::new(self.ceiling.keep_anyway(&delivery.message)),
            ..delivery
        });
        queue.messages.extend(kept);
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
        queue.give_back(&self.ceiling);
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

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use mq_codec::TopicName;

    use super::*;

    fn delivery(qos: QoS) -> Delivery {
        Delivery::new(Message::new(TopicName::new("t").unwrap(), "12345"), qos)
    }

    fn mailbox(messages: usize) -> Mailbox {
        mailbox_below(messages, &Arc::new(Ceiling::new(usize::MAX)))
    }

    fn mailbox_below(messages: usize, ceiling: &Arc<Ceiling>) -> Mailbox {
        let limits = MailboxLimits {
            messages,
            bytes: 100_000,
        };
        Mailbox::new(limits, Arc::clone(ceiling))
    }

    fn push(mailbox: &Mailbox, qos: QoS) -> Push {
        mailbox.push(delivery(qos), |message| {
            mailbox.ceiling.keep(message).map(Arc::new)
        })
    }

    #[test]
    fn qos0_is_dropped_and_counted_once_the_reader_counts_as_stalled() {
        let mailbox = mailbox(2);
        mailbox.connect();
        assert!(matches!(
            push(&mailbox, QoS::AtMostOnce),
            Push::Queued { tell: true }
        ));
        assert!(matches!(
            push(&mailbox, QoS::AtMostOnce),
            Push::Queued { tell: false }
        ));
        assert!(matches!(push(&mailbox, QoS::AtMostOnce), Push::Full(_)));
        mailbox.stalled();
        assert!(matches!(push(&mailbox, QoS::AtMostOnce), Push::Dropped(_)));
        assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Full(_)));
        assert_eq!((mailbox.len(), mailbox.dropped()), (2, 1));
        mailbox.take(1, &mut VecDeque::new());
        let _ = push(&mailbox, QoS::AtMostOnce);
        assert!(
            matches!(push(&mailbox, QoS::AtMostOnce), Push::Full(_)),
            "patient again"
        );
    }

    #[test]
    fn a_session_that_is_away_keeps_qos1_and_not_qos0() {
        let mailbox = mailbox(2);
        assert!(matches!(push(&mailbox, QoS::AtMostOnce), Push::Dropped(_)));
        assert!(matches!(
            push(&mailbox, QoS::AtLeastOnce),
            Push::Queued { tell: false }
        ));
        assert!(matches!(
            push(&mailbox, QoS::AtLeastOnce),
            Push::Queued { .. }
        ));
        assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Dropped(_)));
        assert!(mailbox.connect(), "something waits");
    }

    #[test]
    fn what_could_not_be_sent_comes_back_in_front() {
        let mailbox = mailbox(10);
        mailbox.connect();
        for qos in [QoS::AtLeastOnce, QoS::AtMostOnce, QoS::ExactlyOnce] {
            let _ = push(&mailbox, qos);
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
        let _ = push(&mailbox, QoS::AtLeastOnce);
        for leave in [false, true] {
            let mut room = std::pin::pin!(mailbox.room());
            assert!(!room.as_mut().enable());
            assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Full(_)));
            if leave {
                mailbox.disconnect(std::iter::empty());
            } else {
                mailbox.take(1, &mut VecDeque::new());
            }
            room.await;
            let _ = push(&mailbox, QoS::AtLeastOnce);
        }
    }

    #[test]
    fn only_what_waits_for_a_reader_that_lags_is_counted() {
        let ceiling = Arc::new(Ceiling::new(usize::MAX));
        let mailbox = mailbox_below(1_000, &ceiling);
        mailbox.connect();
        for _ in 0..FREE_MESSAGES {
            let _ = push(&mailbox, QoS::AtMostOnce);
        }
        assert_eq!(ceiling.used(), 0);
        let _ = push(&mailbox, QoS::AtMostOnce);
        let one = ceiling.used();
        assert!(one > ENTRY);
        let _ = push(&mailbox, QoS::AtMostOnce);
        assert_eq!(ceiling.used(), 2 * one);
        let mut taken = VecDeque::new();
        mailbox.take(FREE_MESSAGES + 1, &mut taken);
        assert_eq!(ceiling.used(), 2 * one - ENTRY, "in flight still counts");
        drop(taken);
        assert_eq!(ceiling.used(), one);
        drop(mailbox);
        assert_eq!(ceiling.used(), 0);
    }

    #[test]
    fn at_the_ceiling_qos0_goes_qos1_waits_and_a_prompt_reader_notices_nothing() {
        let ceiling = Arc::new(Ceiling::new(500));
        let [slow, prompt] = [(); 2].map(|()| mailbox_below(1_000, &ceiling));
        slow.connect();
        prompt.connect();
        while matches!(push(&slow, QoS::AtLeastOnce), Push::Queued { .. }) {}
        assert!(slow.len() > FREE_MESSAGES && slow.len() < 100);
        assert!(matches!(push(&slow, QoS::AtMostOnce), Push::Dropped(_)));
        assert!(matches!(push(&slow, QoS::AtLeastOnce), Push::Full(_)));
        assert!(matches!(
            push(&prompt, QoS::AtMostOnce),
            Push::Queued { tell: true }
        ));
        let used = ceiling.used();
        assert!((1..=500).contains(&used));
        slow.disconnect(std::iter::empty());
        assert!(matches!(push(&slow, QoS::AtLeastOnce), Push::Dropped(_)));
        assert_eq!(ceiling.used(), used);
    }

    #[test]
    fn how_long_a_reader_has_taken_nothing_is_known_while_somebody_waits() {
        let mailbox = mailbox(1);
        mailbox.connect();
        let _ = push(&mailbox, QoS::AtLeastOnce);
        let later = Instant::now() + Duration::from_secs(9);
        assert_eq!(mailbox.full_for(later), None);
        let _ = push(&mailbox, QoS::AtLeastOnce);
        assert!(mailbox.full_for(later).unwrap() > Duration::from_secs(8));
        mailbox.take(1, &mut VecDeque::new());
        assert_eq!(mailbox.full_for(later), None);
    }
}
