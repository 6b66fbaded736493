use std::{
    collections::BTreeSet,
    io,
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use mq_codec::{
    ByteStr, PacketId, PublishProperties, QoS, RetainHandling, SubscriptionId, SubscriptionOptions,
    TopicFilter, TopicName, Version,
};
use mq_proto::{FlowId, Message};

use super::*;
use crate::store::{BrokerId, Life, SessionChange, StoredFlow, StoredMessage, User};

/// A random source of a broker's changes.
struct Chance {
    random: fastrand::Rng,
    number: u64,
}

impl Chance {
    fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self {
            random: fastrand::Rng::with_seed(seed),
            number: 0,
        }
    }

    /// Changes that belong together.
    fn call(&mut self) -> Vec<Change> {
        (0..self.random.usize(1..4))
            .map(|_| self.change())
            .collect()
    }

    fn change(&mut self) -> Change {
        let topic = TopicName::new(["a", "a/b", "c"][self.random.usize(..3)]).unwrap();
        match self.random.u8(..20) {
            0 => return Change::Unretained(topic),
            1 => return Change::Retained(self.message(topic)),
            2 => return Change::BrokerId(BrokerId::from_bits(self.random.u64(..))),
            _ => {}
        }
        // The empty identifier, and one that another begins with, are neighbours in the file.
        let client = ["c", "c\u{1}", "cc", "d"][self.random.usize(..4)];
        let packet_id = PacketId::new(self.random.u16(1..5)).unwrap();
        self.number += 1;
        let back = self.random.u64(1..=self.number.min(8));
        let number = self.number - back + 1;
        // The last filter is invalid in 5.0.
        let filter = ["#", "a/+", "$share/g/a", "$share/#"][self.random.usize(..4)];
        let filter = TopicFilter::in_version(filter, Version::V3_1_1).unwrap();
        let change = match self.random.u8(..16) {
            0 => SessionChange::Ended,
            1 => SessionChange::Attached {
                expiry: self.seconds().map(Duration::from_secs),
                user: self.user(),
            },
            2 => SessionChange::Detached {
                expires_at: self.expiry(),
            },
            3 => SessionChange::Subscribed {
                options: SubscriptionOptions {
                    qos: QoS::AtLeastOnce,
                    // A shared subscription cannot have No Local.
                    no_local: filter.shared().is_none() && self.random.bool(),
                    retain_as_published: self.random.bool(),
                    retain_handling: RetainHandling::SendIfNew,
                },
                subscription_id: self
                    .random
                    .bool()
                    .then(|| SubscriptionId::new(300).unwrap()),
                filter,
                slot: self.random.u16(..3),
            },
            4 => SessionChange::Unsubscribed { filter },
            5..8 => SessionChange::Queued {
                number: self.number,
                message: self.message(topic),
            },
            8 => SessionChange::Unqueued { number },
            9 => SessionChange::Sent { number, packet_id },
            10 => SessionChange::Released { packet_id },
            11 => SessionChange::Completed { packet_id },
            12 => SessionChange::Received {
                packet_id,
                flow: self.flow(),
            },
            13 => SessionChange::FlowKept {
                flow: FlowId(self.random.u64(1..3)),
                kept: StoredFlow {
                    slot: self.random.u16(1..=0x7FFF),
                    expiry: Duration::from_secs(self.random.u64(..100)),
                    expires_at: self.expiry(),
                },
            },
            14 => SessionChange::FlowEnded {
                flow: FlowId(self.random.u64(1..3)),
            },
            _ => SessionChange::ReceivedReleased {
                packet_id,
                flow: self.flow(),
            },
        };
        Change::Session(ByteStr::new(client).unwrap(), change)
    }

    fn message(&mut self, topic: TopicName) -> StoredMessage {
        let size = [0, 1, 100, 5000][self.random.usize(..4)];
        let payload: Bytes = (0..size).map(|_| self.random.u8(..)).collect();
        let mut message = Message::new(topic, payload);
        if self.random.bool() {
            message.properties = PublishProperties {
                message_expiry_interval: Some(7),
                correlation_data: Some(Bytes::from_static(b"\0\xff")),
                user_properties: vec![(ByteStr::new("k").unwrap(), ByteStr::new("v").unwrap())],
                ..PublishProperties::default()
            }
            .into();
        }
        StoredMessage {
            message: Arc::new(message),
            qos: QoS::from_bits(self.random.u8(..3)).unwrap(),
            retain: self.random.bool(),
            subscription_ids: (0..self.random.u32(..3))
                .map(|id| SubscriptionId::new(id + 1).unwrap())
                .collect(),
            expires_at: self.expiry(),
            shared: self.random.bool(),
            slot: [0, 1, 0x7FFF][self.random.usize(..3)],
        }
    }

    fn flow(&mut self) -> Option<FlowId> {
        let flow = self.random.u64(..3);
        (flow > 0).then_some(FlowId(flow))
    }

    fn user(&mut self) -> User {
        match ["", "ann", "bob"][self.random.usize(..3)] {
            "" => User::Anonymous,
            name => User::Named(ByteStr::new(name).unwrap()),
        }
    }

    fn seconds(&mut self) -> Option<u64> {
        self.random.bool().then(|| self.random.u64(1..100))
    }

    /// Returns no expiry, or one in about a century, in whole seconds, as far as the file
    /// distinguishes them.
    fn expiry(&mut self) -> Option<SystemTime> {
        let century = Duration::from_secs(4_000_000_000);
        self.seconds()
            .map(|seconds| SystemTime::UNIX_EPOCH + century + Duration::from_secs(seconds))
    }
}

/// Returns the states after each number of calls.
fn history(calls: &[Vec<Change>]) -> Vec<Snapshot> {
    let mut snapshot = Snapshot::default();
    let mut all = vec![snapshot.clone()];
    for call in calls {
        for change in call {
            snapshot.apply(change.clone());
        }
        all.push(snapshot.clone());
    }
    all
}

/// Waits until everything so far is settled; `false` if the store has failed.
fn settle(store: &DiskStore, position: Position) -> bool {
    let mut settled = store.settled();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime
        .block_on(settled.wait_for(|at| *at >= position))
        .is_ok()
}

#[test]
fn the_file_has_what_all_changes_come_to() {
    for (seed, durability) in [
        (1, Durability::Always),
        (2, Durability::Interval(Duration::from_millis(1))),
        (3, Durability::Off),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let mut chance = Chance::new(seed);
        let calls: Vec<_> = (0..600).map(|_| chance.call()).collect();
        let history = history(&calls);
        let mut done = 0;
        for part in calls.chunks(200) {
            let store = DiskStore::open(&path, durability).unwrap();
            assert_eq!(store.load().unwrap(), history[done]);
            for call in part {
                store.record(call.clone());
            }
            done += part.len();
        }
        let store = DiskStore::open(&path, durability).unwrap();
        assert_eq!(store.load().unwrap(), history[done]);
    }
}

#[test]
fn what_has_expired_leaves_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let mut chance = Chance::new(4);
    let client = ByteStr::new("old").unwrap();
    let past = Some(SystemTime::now());
    let message = StoredMessage {
        expires_at: past,
        ..chance.message(TopicName::new("a").unwrap())
    };
    for _ in 0..2 {
        let store = DiskStore::open(&path, Durability::Always).unwrap();
        let attached = SessionChange::Attached {
            expiry: None,
            user: User::Anonymous,
        };
        let detached = SessionChange::Detached { expires_at: past };
        store.record(vec![
            Change::Session(client.clone(), attached),
            Change::Session(client.clone(), detached),
            Change::Retained(message.clone()),
        ]);
        drop(store);
        let store = DiskStore::open(&path, Durability::Always).unwrap();
        assert_eq!(store.load().unwrap(), Snapshot::default());
        drop(store);
        let database = Database::open(&path).unwrap();
        assert_eq!(tables::load(&database).unwrap(), Snapshot::default());
    }
}

/// A disk that loses what was not synced when its power fails, and may be full.
#[derive(Debug, Default)]
struct Disk {
    content: Mutex<Content>,
}

#[derive(Debug, Default, Clone)]
struct Content {
    synced: Vec<u8>,
    now: Vec<u8>,
    /// Writes since the last sync, with changes of length between them.
    since: Vec<Write>,
    /// Bytes that may still be written before the disk is full; `None` for no bound.
    room: Option<usize>,
}

#[derive(Debug, Clone)]
enum Write {
    Length(u64),
    Data(u64, Vec<u8>),
}

impl Content {
    fn write(&mut self, write: &Write) {
        apply(&mut self.now, write);
        self.since.push(write.clone());
    }
}

fn apply(bytes: &mut Vec<u8>, write: &Write) {
    match write {
        Write::Length(length) => bytes.resize(usize::try_from(*length).unwrap(), 0),
        Write::Data(offset, data) => {
            let from = usize::try_from(*offset).unwrap();
            let to = from + data.len();
            if bytes.len() < to {
                bytes.resize(to, 0);
            }
            bytes[from..to].copy_from_slice(data);
        }
    }
}

#[derive(Debug, Clone)]
struct Handle(Arc<Disk>);

impl Handle {
    fn new(content: Content) -> Self {
        Self(Arc::new(Disk {
            content: Mutex::new(content),
        }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Content> {
        self.0
            .content
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the disk after a power failure: the synced content, and a random part of the later
    /// sectors.
    fn after_power_failure(&self, random: &mut fastrand::Rng) -> Self {
        const SECTOR: usize = 512;
        let content = self.lock().clone();
        let mut left = content.synced;
        for write in content.since {
            match write {
                Write::Length(_) if random.bool() => apply(&mut left, &write),
                Write::Length(_) => {}
                Write::Data(offset, data) => {
                    for (number, sector) in data.chunks(SECTOR).enumerate() {
                        if random.bool() {
                            let offset = offset + (number * SECTOR) as u64;
                            apply(&mut left, &Write::Data(offset, sector.to_vec()));
                        }
                    }
                }
            }
        }
        Self::new(Content {
            synced: left.clone(),
            now: left,
            ..Content::default()
        })
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let content = self.lock();
        let from = usize::try_from(offset).unwrap();
        let bytes = content.now.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.lock().write(&Write::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut content = self.lock();
        content.synced = content.now.clone();
        content.since.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut content = self.lock();
        if let Some(room) = &mut content.room {
            let left = room.checked_sub(data.len());
            *room = left.ok_or(io::ErrorKind::StorageFull)?;
        }
        content.write(&Write::Data(offset, data.to_vec()));
        Ok(())
    }
}

#[test]
fn a_power_failure_loses_nothing_that_was_settled() {
    for seed in 10..40 {
        let mut chance = Chance::new(seed);
        let calls: Vec<_> = (0..120).map(|_| chance.call()).collect();
        let history = history(&calls);
        let disk = Handle::new(Content::default());
        let store = DiskStore::on(disk.clone(), Durability::Always).unwrap();
        let cut = chance.random.usize(1..calls.len());
        for call in &calls[..cut] {
            store.record(call.clone());
        }
        // The power fails at a random moment of the thread's work.
        let patience = chance.random.u64(..3000);
        std::thread::sleep(Duration::from_micros(patience));
        let settled = store.settled().borrow().0;
        let left = disk.after_power_failure(&mut chance.random);
        let again = DiskStore::on(left, Durability::Always).unwrap();
        let kept = again.load().unwrap();
        let settled = usize::try_from(settled).unwrap();
        let found = (settled..=cut).find(|number| history[*number] == kept);
        assert!(found.is_some(), "of {cut} calls {settled} were settled");
    }
}

#[test]
fn a_full_disk_ends_the_store_and_keeps_what_was_settled() {
    let mut chance = Chance::new(50);
    let disk = Handle::new(Content::default());
    let store = DiskStore::on(disk.clone(), Durability::Always).unwrap();
    disk.lock().room = Some(1 << 20);
    let mut calls = Vec::new();
    loop {
        let call = chance.call();
        calls.push(call.clone());
        let position = store.record(call);
        if !settle(&store, position) {
            break;
        }
    }
    // A failed store lets no caller wait, and collects no calls in memory.
    let position = store.record(chance.call());
    assert!(!settle(&store, position));
    drop(store);
    disk.lock().room = None;
    let kept = DiskStore::on(disk, Durability::Always)
        .unwrap()
        .load()
        .unwrap();
    let settled = calls.len() - 1;
    assert_eq!(kept, history(&calls)[settled]);
}

#[test]
fn a_closed_store_is_on_the_disk_although_a_backup_still_holds_it() {
    let hour = Duration::from_hours(1);
    for (seed, durability) in [
        (51, Durability::Always),
        (52, Durability::Interval(hour)),
        (53, Durability::Off),
    ] {
        let mut chance = Chance::new(seed);
        let calls: Vec<_> = (0..50).map(|_| chance.call()).collect();
        let disk = Handle::new(Content::default());
        let store = Arc::new(DiskStore::on(disk.clone(), durability).unwrap());
        let backup = Arc::clone(&store);
        let mut last = Position::default();
        for call in &calls {
            last = store.record(call.clone());
        }
        assert!(settle(&store, last));
        store.close().unwrap();
        drop(store);
        let left = disk.after_power_failure(&mut chance.random);
        drop(backup);
        let again = DiskStore::on(left, Durability::Always).unwrap();
        assert_eq!(again.load().unwrap(), history(&calls)[calls.len()]);
    }
}

#[test]
fn closing_a_store_fails_if_the_last_sync_does() {
    let mut chance = Chance::new(54);
    let disk = Handle::new(Content::default());
    let store = DiskStore::on(disk.clone(), Durability::Off).unwrap();
    disk.lock().room = Some(0);
    let message = chance.message(TopicName::new("a").unwrap());
    store.record(vec![Change::Retained(message)]);
    let closed = store.close();
    assert!(matches!(closed, Err(StoreError::Failed)), "{closed:?}");
}

#[test]
fn a_file_that_cannot_be_used_is_refused_in_one_line_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let refused = || {
        let error = DiskStore::open(&path, Durability::Always).unwrap_err();
        let error = error.to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        error
    };
    std::fs::write(&path, "no database\n".repeat(1000)).unwrap();
    let before = std::fs::read(&path).unwrap();
    refused();
    assert_eq!(std::fs::read(&path).unwrap(), before);
    std::fs::write(&path, "").unwrap();
    assert!(refused().contains("is empty"), "{}", refused());
    std::fs::remove_file(&path).unwrap();

    let first = DiskStore::open(&path, Durability::Always).unwrap();
    assert!(refused().contains("another broker"), "{}", refused());
    drop(first);

    let database = Database::open(&path).unwrap();
    tables::set_format(&database, 99);
    drop(database);
    let error = refused();
    assert!(error.contains("format 99"), "{error}");
    assert!(error.contains("later version"), "{error}");
}

/// Unpacks the file of an earlier version into a folder of its own.
fn earlier(fixture: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut flate2::read::GzDecoder::new(fixture), &mut bytes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// A file of the second format, with the user of a device and a message of a shared subscription.
#[test]
fn a_file_of_the_second_format_is_migrated_with_all_that_it_has() {
    let (_folder, path) = earlier(include_bytes!("../../../tests/data/store-format-2.gz"));
    let client = ByteStr::new("device").unwrap();
    let flow = FlowId(4);
    for round in 1..=2 {
        let store = DiskStore::open(&path, Durability::Always).unwrap();
        let kept = store.load().unwrap();
        let device = &kept.sessions[&client];
        let ann = User::Named(ByteStr::new("ann").unwrap());
        assert_eq!(device.user, Some(ann), "round {round}");
        let shared: Vec<_> = device.queued.values().map(|one| one.shared).collect();
        assert_eq!(shared, [false, false, true]);
        let messages = device.in_flight.iter().filter_map(|(_, one)| one.as_ref());
        let slots = messages.chain(device.queued.values()).map(|one| one.slot);
        assert!(slots.eq([0; 5]));
        let in_flight: Vec<_> = device
            .in_flight
            .iter()
            .map(|(id, message)| (id.get(), message.is_some()))
            .collect();
        assert_eq!(in_flight, [(1, true), (2, true), (3, false)]);
        assert_eq!((device.subscriptions.len(), device.received.len()), (2, 2));
        let has_flow = device.flows.contains_key(&flow);
        assert_eq!((has_flow, device.slots.len()), (round == 2, 0));
        let kept = StoredFlow {
            slot: 7,
            expiry: Duration::from_mins(1),
            expires_at: None,
        };
        let change = SessionChange::FlowKept { flow, kept };
        let position = store.record(vec![Change::Session(client.clone(), change)]);
        assert!(settle(&store, position));
    }
}

/// A file of the first format, with a disconnected device and a message in every table.
#[test]
fn a_file_of_the_first_format_is_migrated_with_all_that_it_has() {
    let (_folder, path) = earlier(include_bytes!("../../../tests/data/store-format-1.gz"));
    let client = |name| ByteStr::new(name).unwrap();
    for round in 1..=2 {
        let store = DiskStore::open(&path, Durability::Always).unwrap();
        let kept = store.load().unwrap();
        assert_eq!(kept.broker_id, None);
        assert_eq!(kept.sessions.len(), 2, "round {round}");
        let device = &kept.sessions[&client("device")];
        assert_eq!(device.user, None);
        let century = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
        assert_eq!(device.life, Life::Away(Some(century)));
        assert_eq!(device.subscriptions.len(), 2);
        let payload = |message: &StoredMessage| message.message.payload.clone();
        let queued: Vec<_> = device.queued.values().map(payload).collect();
        assert_eq!(queued, ["queued 1", "queued 2"]);
        let in_flight: Vec<_> = device
            .in_flight
            .iter()
            .map(|(id, message)| (id.get(), message.as_ref().map(payload)))
            .collect();
        let [first, second] = ["in flight 1", "in flight 2"].map(|text| Some(text.into()));
        assert_eq!(in_flight, [(1, first), (2, second), (3, None)]);
        let received: BTreeSet<_> = device.received.iter().map(|id| id.get()).collect();
        assert_eq!(received, BTreeSet::from([40, 41]));
        let other = &kept.sessions[&client("other")];
        let day = Some(Duration::from_hours(24));
        assert_eq!((&other.user, other.life), (&None, Life::Connected(day)));
        let retained: Vec<_> = kept.retained.values().map(payload).collect();
        assert_eq!(retained, ["on"]);
    }
    // The file is usable like a new one.
    let user = User::Named(client("ann"));
    let store = DiskStore::open(&path, Durability::Always).unwrap();
    store.load().unwrap();
    let attached = SessionChange::Attached {
        expiry: None,
        user: user.clone(),
    };
    store.record(vec![Change::Session(client("device"), attached)]);
    drop(store);
    let store = DiskStore::open(&path, Durability::Always).unwrap();
    let kept = store.load().unwrap();
    let device = &kept.sessions[&client("device")];
    assert_eq!((&device.user, device.queued.len()), (&Some(user), 2));
}

#[test]
fn a_page_that_went_bad_is_noticed_before_anything_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let payload = b"a payload that is found in the file";
    let store = DiskStore::open(&path, Durability::Always).unwrap();
    let topic = TopicName::new("a").unwrap();
    store.record(vec![Change::Retained(StoredMessage {
        message: Arc::new(Message::new(topic, &payload[..])),
        expires_at: None,
        shared: false,
        ..Chance::new(70).message(TopicName::new("a").unwrap())
    })]);
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    let mut found = 0;
    for at in 0..bytes.len() - payload.len() {
        if bytes[at..].starts_with(payload) {
            bytes[at] ^= 1;
            found += 1;
        }
    }
    assert!(found > 0);
    std::fs::write(&path, &bytes).unwrap();
    let error = DiskStore::open(&path, Durability::Always).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("restore a backup"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_backup_is_what_was_settled_at_one_moment() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    let mut chance = Chance::new(60);
    let calls: Vec<_> = (0..300).map(|_| chance.call()).collect();
    let history = history(&calls);
    let store = DiskStore::open(&path, Durability::Always).unwrap();
    for (number, call) in calls.iter().enumerate() {
        let position = store.record(call.clone());
        if number == 100 {
            assert!(settle(&store, position));
        }
    }
    store.back_up(&copy).unwrap();
    let again = store.back_up(&copy).unwrap_err().to_string();
    assert!(again.contains("already"), "{again}");
    drop(store);
    let kept = DiskStore::open(&copy, Durability::Always)
        .unwrap()
        .load()
        .unwrap();
    assert!(history[101..].contains(&kept));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// A backup may be read by a machine whose clock is wrong, or be of a store that is not replaced after all.
#[test]
fn a_backup_is_read_and_copied_with_what_has_expired_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let [path, backup, copy] = ["store", "backup", "copy"].map(|name| folder.path().join(name));
    let mut chance = Chance::new(61);
    let client = ByteStr::new("old").unwrap();
    let past = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    let attached = SessionChange::Attached {
        expiry: None,
        user: User::Anonymous,
    };
    let detached = SessionChange::Detached { expires_at: past };
    let message = StoredMessage {
        expires_at: past,
        ..chance.message(TopicName::new("a").unwrap())
    };
    let call = vec![
        Change::Session(client.clone(), attached),
        Change::Session(client, detached),
        Change::Retained(message),
    ];
    let history = history(std::slice::from_ref(&call));
    let store = DiskStore::open(&path, Durability::Always).unwrap();
    let position = store.record(call);
    assert!(settle(&store, position));
    store.back_up(&backup).unwrap();
    drop(store);
    for file in [&backup, &path] {
        let before = std::fs::read(file).unwrap();
        let opened = DiskStore::open_backup(file).unwrap();
        assert_eq!(opened.load().unwrap(), history[1]);
        opened.back_up(&copy).unwrap();
        drop(opened);
        assert!(std::fs::read(file).unwrap() == before, "{file:?}");
        let copied = DiskStore::open_backup(&copy).unwrap();
        assert_eq!(copied.load().unwrap(), history[1]);
        std::fs::remove_file(&copy).unwrap();
    }
}
