//! The bounds of a mailbox, and the policy for messages beyond them.

use std::{num::NonZeroU32, time::Duration};

/// The most equal messages a second to a bridge before they count as a loop: more than a sensor
/// repeats by itself, and few where looping brokers make thousands.
pub(crate) const DEFAULT_EQUAL_PER_S: NonZeroU32 = NonZeroU32::new(20).expect("more than 0");

/// The bounds of the messages that wait for one session in memory. A message larger than `bytes` is
/// accepted when nothing else waits. [`Overflow`] decides about messages beyond the bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MailboxLimits {
    /// Messages.
    pub messages: usize,
    /// Payload bytes.
    pub bytes: usize,
}

/// The policy for QoS 1 and 2 messages to a reader whose mailbox is full, or holds more than is
/// left of [`Quotas::memory`](crate::Quotas::memory).
///
/// A publisher waits for such a reader for 100 ms at most, once, until the reader's queue has
/// fallen to half; then the policy decides. QoS 0 messages are dropped and counted under each
/// policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Overflow {
    /// The queue continues in the store, up to [`Quotas::spill_bytes`](crate::Quotas::spill_bytes);
    /// then as [`Evict`](Self::Evict). Without a store that can be read while the broker runs it is
    /// [`Evict`](Self::Evict) from the start.
    Spill,
    /// The reader is disconnected with reason code 0x97. A session that outlives its connection
    /// keeps the messages that wait. A message for it while it is full is refused with 0x97 if no
    /// other session accepts it, and else dropped and counted.
    Evict,
    /// The messages that have waited longest are dropped and counted.
    DropOldest,
    /// The publisher waits until there is room. A reader that makes no progress for
    /// [`Settings::reader_timeout`](crate::Settings::reader_timeout) is disconnected with 0x97.
    Wait,
}

impl Overflow {
    /// Returns the name in the configuration file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Spill => "spill",
            Self::Evict => "evict",
            Self::DropOldest => "drop-oldest",
            Self::Wait => "wait",
        }
    }
}

/// [`Overflow`] and its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverflowPolicy {
    pub(crate) overflow: Overflow,
    /// Bytes of one session that may be in the store beyond its queue in memory.
    pub(crate) spill_bytes: usize,
}

/// The rules that all mailboxes of a kind have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MailboxRules {
    pub(crate) limits: MailboxLimits,
    pub(crate) policy: OverflowPolicy,
    /// `true` if messages of topics of which none waits overtake many that wait. Each topic keeps its order, and the
    /// session as a whole does not.
    pub(crate) lets_live_overtake: bool,
    /// Messages that have waited for longer are dropped.
    pub(crate) age: Option<Duration>,
    /// Equal messages a second, of which more are a loop; 0 for any number.
    pub(crate) equal_per_s: u32,
}

impl MailboxRules {
    pub(crate) fn new(limits: MailboxLimits, policy: OverflowPolicy) -> Self {
        Self {
            limits,
            policy,
            lets_live_overtake: false,
            age: None,
            equal_per_s: 0,
        }
    }

    /// Returns the rules of a bridge's mailbox, whose messages may have any age.
    pub(crate) fn of_bridge(limits: MailboxLimits, policy: OverflowPolicy) -> Self {
        Self {
            lets_live_overtake: true,
            equal_per_s: DEFAULT_EQUAL_PER_S.get(),
            ..Self::new(limits, policy)
        }
    }

    /// Returns the bytes that may wait in the store alone; 0 where the queue does not continue
    /// there.
    pub(crate) fn spill_limit(&self) -> usize {
        match self.policy.overflow {
            Overflow::Spill => self.policy.spill_bytes,
            _ => 0,
        }
    }
}

/// Time for which a publisher waits for a reader that lags: long enough for a slow reader, short enough
/// that a reader that has stopped does not stop publishers that also write to others.
pub(crate) const BACKPRESSURE_TIMEOUT: Duration = Duration::from_millis(100);

/// Time for which a publisher that has waited in vain does not wait for another reader. So readers
/// that repeatedly stop reading take a tenth of its time together.
pub(crate) const BACKPRESSURE_PAUSE: Duration = BACKPRESSURE_TIMEOUT.saturating_mul(9);
