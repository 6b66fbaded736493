//! A store whose file is damaged as the input demands, and opened again.
//!
//! Properties: no panic and no hang; an error is one line. An undamaged file returns everything
//! that was settled. A damaged one returns the state after some call, or an error, and never
//! anything else; and a store that has opened records changes and keeps them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use mq_broker::{
    DiskStore, Durability, Store,
    store::{
        BrokerId, Change, Position, SessionChange, Snapshot, StoreError, StoredFlow, StoredMessage,
        User, decode_message, encode_message,
    },
};
use mq_codec::{
    ByteStr, PacketId, PublishProperties, QoS, SubscriptionId, SubscriptionOptions, TopicFilter,
    TopicName,
};
use mq_proto::{FlowId, Message};

/// The page size of redb, in bytes.
const PAGE: usize = 4096;

/// The longest wait for operations that take milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// The unread rest of the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        let number = u16::from_be_bytes([self.byte(), self.byte()]);
        usize::from(number) % bound.max(1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    fn chance(&mut self) -> bool {
        self.byte() % 2 == 1
    }

    fn packet_id(&mut self) -> PacketId {
        PacketId::new(u16::from(self.byte() % 4) + 1).expect("it is not 0")
    }
}

pub(crate) fn run(input: &[u8]) {
    match input.split_first() {
        Some((0..64, value)) => run_value(value),
        Some((_, rest)) => run_file(Input(rest)),
        None => {}
    }
}

/// Decodes a value: it is refused, or is the same after it was written and read again.
fn run_value(bytes: &[u8]) {
    let message = match decode_message(bytes) {
        Ok(message) => message,
        Err(error) => return check_error(&error),
    };
    let encoded = encode_message(&message).expect("what was read can be written");
    let again = decode_message(&encoded).expect("what was written can be read");
    assert_eq!(again, message);
}

fn run_file(mut input: Input<'_>) {
    let durability = input.pick(&[
        Durability::Always,
        Durability::Always,
        Durability::Off,
        Durability::Interval(Duration::ZERO),
    ]);
    // A store that writes at any time has no moment at which its file can be copied.
    let closed = input.chance() || durability == Durability::Interval(Duration::ZERO);
    let mut history = vec![Snapshot::default()];
    let file = Scratch::new();
    let image = file.image();

    let store = DiskStore::open(&file.0, durability).expect("a new file");
    let mut number = 0;
    for call in 0..=input.below(40) {
        let changes: Vec<_> = (0..=input.byte() % 4)
            .map(|_| change(&mut input, &mut number))
            .collect();
        let mut next = history[call].clone();
        for change in &changes {
            next.apply(change.clone());
        }
        history.push(next);
        let position = store.record(changes);
        // The other calls share a commit with later ones.
        if input.chance() {
            assert!(settle(&store, position), "nothing failed");
        }
    }
    if closed {
        drop(store);
        fs::copy(&file.0, &image.0).expect("a copy");
    } else {
        // The file as a killed process leaves it, while nothing is written: else the copy would be
        // of no single moment.
        let position = store.record(Vec::new());
        assert!(settle(&store, position), "nothing failed");
        fs::copy(&file.0, &image.0).expect("a copy");
        drop(store);
    }

    let before = fs::read(&image.0).expect("the copy");
    let mut bytes = before.clone();
    for _ in 0..input.byte() % 4 {
        damage(&mut input, &mut bytes);
    }
    let damaged = bytes != before;
    fs::write(&image.0, &bytes).expect("the copy");
    let Some((store, mut kept)) = open(&image.0, damaged) else {
        return;
    };
    let calls = history.len() - 1;
    let promised = closed || durability == Durability::Always;
    let from = if promised && !damaged { calls } else { 0 };
    assert!(
        history[from..].contains(&kept),
        "of {calls} calls, promised: {promised}, damaged: {damaged}; found {kept:#?}"
    );

    // The store records further changes.
    let changes = vec![change(&mut input, &mut number)];
    for change in &changes {
        kept.apply(change.clone());
    }
    let position = store.record(changes);
    assert!(settle(&store, position), "it had opened");
    drop(store);
    let (_store, again) = open(&image.0, false).expect("it had opened");
    assert_eq!(again, kept);
}

/// Opens the store and loads its state; `None` if it is damaged and reports so.
fn open(path: &Path, damaged: bool) -> Option<(DiskStore, Snapshot)> {
    let before = fs::read(path).expect("a file");
    let opened = DiskStore::open(path, Durability::Always);
    if opened.is_err() {
        let after = fs::read(path).expect("a file");
        assert!(after == before, "a file that is refused is left as it is");
    }
    let loaded = opened.and_then(|store| store.load().map(|kept| (store, kept)));
    if let Err(error) = &loaded {
        assert!(damaged, "{error}");
        check_error(error);
    }
    loaded.ok()
}

fn check_error(error: &StoreError) {
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// Waits until everything so far is settled; `false` if the store has failed.
fn settle(store: &DiskStore, position: Position) -> bool {
    let settled = store.settled();
    let start = Instant::now();
    while *settled.borrow() < position {
        if settled.has_changed().is_err() {
            return *settled.borrow() >= position;
        }
        assert!(start.elapsed() < PATIENCE, "nothing is settled any more");
        std::thread::sleep(Duration::from_micros(20));
    }
    true
}

fn change(input: &mut Input<'_>, number: &mut u64) -> Change {
    let topic = TopicName::new(input.pick(&["a", "a/b", "c"])).expect("valid");
    // The empty identifier, and one that another begins with, are neighbours in the file.
    let client = input.pick(&["c", "c\u{1}", "cc", ""]);
    let client = ByteStr::new(client).expect("short");
    let filter = TopicFilter::new(input.pick(&["#", "a/+", "$share/g/a"])).expect("valid");
    let back = u64::from(input.byte() % 8);
    let change = match input.byte() % 23 {
        0 => return Change::Unretained(topic),
        1 => return Change::Retained(message(input, topic)),
        2 => SessionChange::Ended,
        3 => SessionChange::Detached {
            expires_at: later(input),
        },
        4..7 => SessionChange::Attached {
            expiry: input.pick(&[None, Some(Duration::from_secs(9))]),
            user: match back {
                0..4 => User::Anonymous,
                _ => User::Named(ByteStr::new("ann").expect("short")),
            },
        },
        7 => SessionChange::Subscribed {
            filter,
            options: SubscriptionOptions::from(QoS::AtLeastOnce),
            subscription_id: SubscriptionId::new(input.byte().into()),
            slot: (input.byte() % 4).into(),
        },
        8 => SessionChange::Unsubscribed { filter },
        9..13 => {
            *number += 1;
            SessionChange::Queued {
                number: *number,
                message: message(input, topic),
            }
        }
        13 => SessionChange::Unqueued {
            number: number.saturating_sub(back),
        },
        14 | 15 => SessionChange::Sent {
            number: number.saturating_sub(back),
            packet_id: input.packet_id(),
        },
        16 => SessionChange::Released {
            packet_id: input.packet_id(),
        },
        17 => SessionChange::Completed {
            packet_id: input.packet_id(),
        },
        18 => SessionChange::Received {
            packet_id: input.packet_id(),
            flow: flow(input),
        },
        19 => SessionChange::FlowKept {
            flow: FlowId(back % 3),
            kept: StoredFlow {
                slot: (input.byte() % 4).into(),
                expiry: Duration::from_secs(input.byte().into()),
                expires_at: later(input),
            },
        },
        20 => SessionChange::FlowEnded {
            flow: FlowId(back % 3),
        },
        21 => return Change::BrokerId(BrokerId::from_bits(back)),
        _ => SessionChange::ReceivedReleased {
            packet_id: input.packet_id(),
            flow: flow(input),
        },
    };
    Change::Session(client, change)
}

fn message(input: &mut Input<'_>, topic: TopicName) -> StoredMessage {
    let size = input.pick(&[0, 1, 100, 5000, 20_000]);
    let mut message = Message::new(topic, vec![input.byte(); size]);
    if input.chance() {
        message.properties = PublishProperties {
            correlation_data: Some(Bytes::from_static(b"\0\xff")),
            user_properties: vec![(
                ByteStr::new("k").expect("short"),
                ByteStr::new("v").expect("short"),
            )],
            ..PublishProperties::default()
        }
        .into();
    }
    StoredMessage {
        message: Arc::new(message),
        qos: input.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]),
        retain: input.chance(),
        subscription_ids: SubscriptionId::new(input.byte().into())
            .into_iter()
            .collect(),
        expires_at: later(input),
        shared: input.chance(),
        slot: (input.byte() % 4).into(),
    }
}

fn flow(input: &mut Input<'_>) -> Option<FlowId> {
    input.pick(&[None, Some(FlowId(0)), Some(FlowId(1))])
}

/// Returns no expiry, or one in about a century, in whole seconds, as far as the file distinguishes
/// them.
fn later(input: &mut Input<'_>) -> Option<SystemTime> {
    let century = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    input.pick(&[None, Some(century)])
}

fn damage(input: &mut Input<'_>, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    match input.byte() % 8 {
        // Bits of the header, on which all else depends.
        0 => {
            let at = input.below(bytes.len().min(512));
            bytes[at] ^= 1 << (input.byte() % 8);
        }
        1 | 2 => {
            let at = place(input, bytes);
            bytes[at] ^= 1 << (input.byte() % 8);
        }
        3 => {
            let length = place(input, bytes);
            bytes.truncate(length);
        }
        4 => {
            let from = place(input, bytes);
            let to = bytes.len().min(from + input.below(3 * PAGE));
            bytes[from..to].fill(input.pick(&[0, 0xFF]));
        }
        5 => {
            let (one, other) = (place(input, bytes) / PAGE, place(input, bytes) / PAGE);
            let first = one.min(other) * PAGE;
            let second = one.max(other) * PAGE;
            if first < second && second + PAGE <= bytes.len() {
                let (before, behind) = bytes.split_at_mut(second);
                before[first..first + PAGE].swap_with_slice(&mut behind[..PAGE]);
            }
        }
        // A page that was written to the wrong place.
        6 => {
            let (from, to) = (place(input, bytes) / PAGE, place(input, bytes) / PAGE);
            let (from, to) = (from * PAGE, to * PAGE);
            if from.max(to) + PAGE <= bytes.len() {
                bytes.copy_within(from..from + PAGE, to);
            }
        }
        _ => {
            let length = bytes.len() + input.below(3 * PAGE);
            bytes.resize(length, input.pick(&[0, 0xFF]));
        }
    }
}

/// Returns an offset, most often in a page that is in use.
fn place(input: &mut Input<'_>, bytes: &[u8]) -> usize {
    let in_use = |page: &usize| {
        let end = bytes.len().min((page + 1) * PAGE);
        bytes[page * PAGE..end].iter().any(|byte| *byte > 0)
    };
    let mut pages: Vec<_> = (0..bytes.len().div_ceil(PAGE)).collect();
    if !input.byte().is_multiple_of(8) {
        pages.retain(in_use);
    }
    let page = match pages.len() {
        0 => 0,
        count => pages[input.below(count)],
    };
    (page * PAGE + input.below(PAGE)).min(bytes.len() - 1)
}

/// A file that is removed with this value; in memory, where there is such a folder.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() {
            memory
        } else {
            std::env::temp_dir()
        };
        let thread = std::thread::current().id();
        let name = format!("mq-recovery-{}-{thread:?}", std::process::id());
        let _ = fs::remove_file(folder.join(&name));
        Self(folder.join(name))
    }

    /// Returns another file next to it.
    fn image(&self) -> Self {
        Self(self.0.with_extension("image"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
