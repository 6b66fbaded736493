//! One ceiling for what all sessions together may hold.

use std::sync::Arc;

use bytes::Bytes;
use mq_proto::Message;

use crate::sync::atomic::{AtomicUsize, Ordering};

/// Memory of a message besides its bytes: the structure, what counts its users, and what the
/// allocator adds to each of three pieces.
const OVERHEAD: usize = size_of::<Message>() + 7 * size_of::<usize>() + 3 * 16;

/// Payloads from this size on are not copied out of the buffer that they were read into, which is
/// hardly larger.
const LARGE: usize = 16 * 1024;

/// A count of bytes with a limit.
#[derive(Debug)]
pub(crate) struct Ceiling {
    limit: usize,
    used: AtomicUsize,
}

impl Ceiling {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            used: AtomicUsize::new(0),
        }
    }

    /// Bytes that are counted now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that may still be counted.
    pub(crate) fn left(&self) -> usize {
        self.limit.saturating_sub(self.used())
    }

    /// Counts `bytes`, if there is room for them.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        // Added first and taken back: two that race for the last room may both be refused, and
        // never both be let in.
        if self.used.fetch_add(bytes, Ordering::Relaxed) + bytes <= self.limit {
            return true;
        }
        self.give(bytes);
        false
    }

    /// Takes back what was counted.
    pub(crate) fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The message in memory of its own, which counts for as long as anybody has it; `None` if
    /// there is no room for it.
    pub(crate) fn keep(self: &Arc<Self>, message: &Message) -> Option<Message> {
        let size = weight(message);
        self.take(size).then(|| self.counted(message, size))
    }

    /// The same for a message that has to be kept, room or not.
    pub(crate) fn keep_anyway(self: &Arc<Self>, message: &Message) -> Message {
        let size = weight(message);
        self.used.fetch_add(size, Ordering::Relaxed);
        self.counted(message, size)
    }

    fn counted(self: &Arc<Self>, message: &Message, size: usize) -> Message {
        let is_large = message.payload.len() >= LARGE;
        let mut kept = if is_large {
            let payload = message.payload.clone();
            let without = Message {
                payload: Bytes::new(),
                ..message.clone()
            };
            Message {
                payload,
                ..without.detached()
            }
        } else {
            message.detached()
        };
        kept.payload = Bytes::from_owner(Counted {
            payload: kept.payload,
            size,
            ceiling: Arc::clone(self),
        });
        kept
    }
}

/// What a message takes, about.
fn weight(message: &Message) -> usize {
    let mut bytes = OVERHEAD + message.topic.len() + message.payload.len();
    if !message.properties.is_untouched() {
        let properties = &message.properties;
        let texts = [&properties.content_type, &properties.response_topic];
        bytes += size_of_val(&**properties);
        bytes += texts
            .into_iter()
            .flatten()
            .map(|text| text.len())
            .sum::<usize>();
        bytes += properties.correlation_data.as_ref().map_or(0, Bytes::len);
        let pairs = properties.user_properties.iter();
        bytes += pairs
            .map(|(name, value)| size_of_val(name) + size_of_val(value) + name.len() + value.len())
            .sum::<usize>();
    }
    bytes
}

/// A payload that counts until its last user lets go.
struct Counted {
    payload: Bytes,
    size: usize,
    ceiling: Arc<Ceiling>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.ceiling.give(self.size);
    }
}

/// A quarter of the memory that this process may use: the machine's, or that of its control group
/// if that is less; at least 64 MiB. Where the system does not tell, 256 MiB.
pub(crate) fn default_ceiling() -> usize {
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
        let ceiling = Arc::new(Ceiling::new(1_000_000));
        for size in [0, 1, LARGE] {
            let kept = ceiling.keep(&message(size)).unwrap();
            assert_eq!(kept, message(size));
            assert_eq!(ceiling.used(), weight(&kept));
            let payload = kept.payload.clone();
            drop(kept);
            assert!(ceiling.used() > size);
            drop(payload);
            assert_eq!(ceiling.used(), 0);
        }
    }

    #[test]
    fn what_finds_no_room_is_not_counted() {
        let ceiling = Arc::new(Ceiling::new(2 * weight(&message(100))));
        let kept: Vec<_> = (0..3).map(|_| ceiling.keep(&message(100))).collect();
        assert_eq!(kept.iter().flatten().count(), 2);
        assert!(kept[2].is_none());
        let used = ceiling.used();
        let forced = ceiling.keep_anyway(&message(100));
        assert_eq!(ceiling.used(), used + weight(&forced));
        drop((kept, forced));
        assert_eq!(ceiling.used(), 0);
    }

    #[test]
    fn the_machines_memory_is_read() {
        let text = "MemTotal:        1000 kB\nMemFree:          10 kB\n";
        assert_eq!(machine_memory(text), Some(1_024_000));
        assert_eq!(machine_memory("MemFree: 1 kB\n"), None);
        assert!(default_ceiling() >= 64 << 20);
    }
}
