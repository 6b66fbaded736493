//! The memory limit for all sessions together.

use std::sync::Arc;

use bytes::Bytes;
use mq_codec::ByteStr;
use mq_proto::Message;

use crate::sync::atomic::{AtomicUsize, Ordering};

/// Memory of a message besides its bytes: the structure, its reference count, and the allocator's
/// share for each of three pieces.
const MESSAGE_OVERHEAD_BYTES: usize = size_of::<Message>() + 7 * size_of::<usize>() + 3 * 16;

/// A count of bytes with a limit.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    limit: usize,
    used: AtomicUsize,
    /// Bytes counted here count there as well.
    whole: Option<Arc<MemoryLimit>>,
}

impl MemoryLimit {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            used: AtomicUsize::new(0),
            whole: None,
        }
    }

    /// Makes a limit for a part of the bytes below `whole`.
    pub(crate) fn part_of(whole: &Arc<Self>, limit: usize) -> Self {
        Self {
            whole: Some(Arc::clone(whole)),
            ..Self::new(limit)
        }
    }

    /// Returns the number of bytes that are counted now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that may still be counted.
    pub(crate) fn left(&self) -> usize {
        self.limit.saturating_sub(self.used())
    }

    /// Returns `true` if the limit of which this one is a part leaves no room.
    pub(crate) fn is_whole_full(&self) -> bool {
        self.whole.as_ref().is_some_and(|whole| whole.left() == 0)
    }

    /// Counts `bytes`, if there is room for them.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        // Added first and taken back: of two that race for the last room both may be refused, but
        // never both let in.
        let used = self
            .used
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        if used <= self.limit && self.whole.as_ref().is_none_or(|whole| whole.take(bytes)) {
            return true;
        }
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        false
    }

    /// Counts `bytes`, room or not.
    pub(crate) fn take_anyway(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.take_anyway(bytes);
        }
    }

    /// Takes back counted bytes.
    pub(crate) fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give(bytes);
        }
    }

    /// Copies the message into memory of its own, which counts for as long as anybody has it.
    /// `None` if there is no room.
    pub(crate) fn keep(self: &Arc<Self>, message: &Message) -> Option<Message> {
        let size = message_weight(message);
        self.take(size).then(|| self.counted(message, size))
    }

    /// Copies and counts a message that must be kept, room or not.
    pub(crate) fn keep_anyway(self: &Arc<Self>, message: &Message) -> Message {
        let size = message_weight(message);
        self.take_anyway(size);
        self.counted(message, size)
    }

    fn counted(self: &Arc<Self>, message: &Message, size: usize) -> Message {
        let mut kept = message.detached();
        kept.payload = Bytes::from_owner(Counted {
            payload: kept.payload,
            size,
            memory_limit: Arc::clone(self),
        });
        kept
    }
}

#[cfg(feature = "quic")]
impl mq_transport::WindowMemory for MemoryLimit {
    fn take(&self, bytes: usize) -> bool {
        Self::take(self, bytes)
    }

    fn give_back(&self, bytes: usize) {
        self.give(bytes);
    }
}

/// The bytes that one owner holds, counted below a memory limit until the share is dropped.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    memory_limit: Arc<MemoryLimit>,
    bytes: usize,
}

impl MemoryShare {
    pub(crate) fn new(memory_limit: &Arc<MemoryLimit>) -> Self {
        Self {
            memory_limit: Arc::clone(memory_limit),
            bytes: 0,
        }
    }

    /// Counts so many bytes from now on. False, with nothing changed, if there is no room for them.
    #[must_use]
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 && !self.memory_limit.take(more) {
            return false;
        }
        self.memory_limit.give(self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
        true
    }

    /// Counts so many bytes from now on, room or not: they are held already.
    pub(crate) fn set_anyway(&mut self, bytes: usize) {
        self.memory_limit
            .take_anyway(bytes.saturating_sub(self.bytes));
        self.memory_limit.give(self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns another share below the limit of this one.
    pub(crate) fn beside(&self) -> Self {
        Self::new(&self.memory_limit)
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.memory_limit.give(self.bytes);
    }
}

/// Returns the memory of a message, about.
pub(crate) fn message_weight(message: &Message) -> usize {
    MESSAGE_OVERHEAD_BYTES + message.payload.len() + texts_weight(message)
}

/// Returns the memory of a message's topic and properties, about.
pub(crate) fn texts_weight(message: &Message) -> usize {
    let mut bytes = message.topic.len();
    if !message.properties.is_untouched() {
        let properties = &message.properties;
        let texts = [&properties.content_type, &properties.response_topic];
        bytes += size_of_val(&**properties);
        bytes += texts.into_iter().flatten().map(ByteStr::len).sum::<usize>();
        bytes += properties.correlation_data.as_ref().map_or(0, Bytes::len);
        bytes += pairs_weight(&properties.user_properties);
    }
    bytes
}

/// Returns the memory of user properties.
pub(crate) fn pairs_weight(pairs: &[(ByteStr, ByteStr)]) -> usize {
    let bytes =
        |(name, value): &(ByteStr, ByteStr)| 2 * size_of::<ByteStr>() + name.len() + value.len();
    pairs.iter().map(bytes).sum()
}

/// A payload that counts until its last user lets go.
struct Counted {
    payload: Bytes,
    size: usize,
    memory_limit: Arc<MemoryLimit>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.memory_limit.give(self.size);
    }
}

/// Returns a quarter of the memory that this process may use: the machine's, or its control group's if that is less. At
/// least 64 MiB; 256 MiB where the system does not tell.
pub(crate) fn default_memory_limit() -> usize {
    const LEAST: usize = 64 << 20;
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.as_deref().and_then(machine_memory);
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let group = group.and_then(|text| text.trim().parse().ok());
    let memory: Option<usize> = machine.into_iter().chain(group).min();
    memory.map_or(256 << 20, |bytes| (bytes / 4).max(LEAST))
}

fn machine_memory(meminfo: &str) -> Option<usize> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use mq_codec::TopicName;

    use super::*;

    fn message(size: usize) -> Message {
        Message::new(TopicName::new("t").unwrap(), vec![0; size])
    }

    #[test]
    fn a_message_counts_until_its_last_user_lets_go() {
        let memory_limit = Arc::new(MemoryLimit::new(1_000_000));
        for size in [0, 1, 100_000] {
            let kept = memory_limit.keep(&message(size)).unwrap();
            assert_eq!(kept, message(size));
            assert_eq!(memory_limit.used(), message_weight(&kept));
            let payload = kept.payload.clone();
            drop(kept);
            assert!(memory_limit.used() > size);
            drop(payload);
            assert_eq!(memory_limit.used(), 0);
        }
    }

    #[test]
    fn what_finds_no_room_is_not_counted() {
        let memory_limit = Arc::new(MemoryLimit::new(2 * message_weight(&message(100))));
        let kept: Vec<_> = (0..3).map(|_| memory_limit.keep(&message(100))).collect();
        assert_eq!(kept.iter().flatten().count(), 2);
        assert!(kept[2].is_none());
        let used = memory_limit.used();
        let forced = memory_limit.keep_anyway(&message(100));
        assert_eq!(memory_limit.used(), used + message_weight(&forced));
        drop((kept, forced));
        assert_eq!(memory_limit.used(), 0);
    }

    #[test]
    fn a_part_has_a_limit_of_its_own_and_counts_in_the_whole() {
        let whole = Arc::new(MemoryLimit::new(100));
        let part = Arc::new(MemoryLimit::part_of(&whole, 30));
        let (mut small, mut large) = (MemoryShare::new(&part), MemoryShare::new(&whole));
        assert!(small.set(20) && !small.set(40) && small.set(30));
        assert!(large.set(70) && !large.set(71));
        assert!(!small.set(31) && small.set(10));
        assert_eq!((whole.used(), part.used(), small.bytes()), (80, 10, 10));
        assert!(large.set(90));
        large.set_anyway(200);
        assert!(!small.set(11));
        drop((small, large));
        assert_eq!((whole.used(), part.used()), (0, 0));
    }

    #[test]
    fn the_machines_memory_is_read() {
        let text = "MemTotal:        1000 kB\nMemFree:          10 kB\n";
        assert_eq!(machine_memory(text), Some(1_024_000));
        assert_eq!(machine_memory("MemFree: 1 kB\n"), None);
        assert!(default_memory_limit() >= 64 << 20);
    }
}
