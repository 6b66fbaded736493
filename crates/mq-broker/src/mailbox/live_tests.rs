//! A bridge's mailbox with publishers, a reader that connects and disconnects, and a store that
//! settles late.

use std::collections::{BTreeMap, HashMap};

use fastrand::Rng;
use mq_codec::TopicName;

use super::*;
use crate::{delivery::DeliveryTag, store::Spilled};

/// The publishers, each of which may hold a message that has its number and is not queued yet.
const PUBLISHERS: usize = 2;

/// A change that the store received, in order.
enum Told {
    Queued(Delivery),
    Gone(u64),
}

struct World {
    random: Rng,
    /// The chance of a publisher's step, in hundredths, from 10 on.
    busy: u32,
    mailbox: Mailbox,
    told: Vec<Told>,
    settled: usize,
    /// The messages queued in the store by its settled changes.
    stored: BTreeMap<u64, Delivery>,
    last_number: u64,
    in_hand: [Option<Delivery>; PUBLISHERS],
    sent_of_topic: HashMap<String, u32>,
    connected: bool,
    outgoing: VecDeque<Delivery>,
    loading: Option<Loading>,
    received: Vec<Delivery>,
}

/// A read of the store, in progress or done.
enum Loading {
    RangeToRead(RangeToRead),
    Read(RangeInclusive<u64>, Vec<Delivery>),
}

impl World {
    fn new(seed: u64) -> Self {
        println!("seed {seed}");
        let limits = MailboxLimits {
            messages: if seed % 3 == 2 { 100 } else { 8 },
            bytes: 100_000,
        };
        let policy = OverflowPolicy {
            overflow: Overflow::Spill,
            spill_bytes: usize::MAX,
        };
        let memory_limit = Arc::new(MemoryLimit::new(usize::MAX));
        let rules = MailboxRules {
            lets_live_overtake: true,
            ..MailboxRules::new(limits, policy)
        };
        Self {
            random: Rng::with_seed(seed),
            busy: 10,
            mailbox: Mailbox::new(&Arc::new(rules), memory_limit),
            told: Vec::new(),
            settled: 0,
            stored: BTreeMap::new(),
            last_number: 0,
            in_hand: [None, None],
            sent_of_topic: HashMap::new(),
            connected: false,
            outgoing: VecDeque::new(),
            loading: None,
            received: Vec::new(),
        }
    }

    fn tell(&mut self, told: Told) -> u64 {
        self.told.push(told);
        self.told.len() as u64
    }

    fn settle(&mut self, up_to: u64) {
        while (self.settled as u64) < up_to {
            match &self.told[self.settled] {
                Told::Queued(delivery) => {
                    let number = delivery.number().unwrap();
                    self.stored.insert(number, delivery.clone());
                }
                Told::Gone(number) => {
                    self.stored.remove(number).expect("it was queued");
                }
            }
            self.settled += 1;
        }
    }

    /// Records a publisher's message as queued; its next turn queues it.
    fn publish(&mut self, publisher: usize) {
        let Some(delivery) = self.in_hand[publisher].take() else {
            // One of a few topics, and rarely a new one.
            let topic = match self.random.u32(0..10) {
                0 => format!("{publisher}/new/{}", self.last_number),
                few => format!("{publisher}/{}", few % 4),
            };
            let count = self.sent_of_topic.entry(topic.clone()).or_default();
            *count += 1;
            let message = Message::new(TopicName::new(topic).unwrap(), count.to_string());
            let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][self.random.usize(0..2)];
            let mut delivery = Delivery::new(message, qos);
            self.last_number += 1;
            delivery.set_number(self.last_number);
            self.tell(Told::Queued(delivery.clone()));
            self.in_hand[publisher] = Some(delivery);
            return;
        };
        let keep = |message: &Arc<Message>| Some(Arc::clone(message));
        match self.mailbox.push(delivery, Backpressure::TimedOut, keep) {
            Push::Queued { .. } => {}
            Push::Spill(delivery) => {
                let number = delivery.number().unwrap();
                let position = self.told.len() as u64;
                self.mailbox.spilled(number, &delivery, position);
            }
            Push::Full(delivery) => self.in_hand[publisher] = Some(delivery),
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self) {
        if self.outgoing.is_empty() {
            let count = self.random.usize(1..6);
            let wanted = self
                .mailbox
                .take(count, &mut self.outgoing, 0, Instant::now());
            if self.loading.is_none() {
                self.loading = wanted.map(Loading::RangeToRead);
            }
        }
        if let Some(delivery) = self.outgoing.pop_front() {
            let number = delivery.number().unwrap();
            let position = self.tell(Told::Gone(number));
            self.mailbox.unqueued(number, position);
            self.received.push(delivery);
        }
    }

    fn load(&mut self) {
        self.loading = match self.loading.take() {
            None => None,
            Some(Loading::RangeToRead(wanted)) => {
                self.settle(wanted.position);
                let most = self.random.usize(1..8);
                let read = self.stored.range(wanted.numbers.clone()).take(most);
                let read: Vec<_> = read.map(|(_, delivery)| delivery.clone()).collect();
                let last = read.last().and_then(DeliveryTag::number);
                let last = last.unwrap_or(*wanted.numbers.end());
                Some(Loading::Read(*wanted.numbers.start()..=last, read))
            }
            Some(Loading::Read(numbers, read)) => {
                self.mailbox.add_read(numbers, read.into_iter());
                None
            }
        };
    }

    fn step(&mut self) {
        if self.random.u32(0..50) == 0 {
            self.busy = self.random.u32(10..60);
        }
        match self.random.u32(0..100) {
            0 if self.connected => {
                self.connected = false;
                self.loading = None;
                self.mailbox.disconnect(self.outgoing.drain(..));
            }
            1..4 if !self.connected => {
                self.connected = true;
                self.mailbox.connect();
            }
            4 if self.connected => self.mailbox.put_back(self.outgoing.drain(..)),
            5..10 => {
                let up_to = self.random.u64(0..=self.told.len() as u64);
                self.settle(up_to);
            }
            n @ 10..60 if n < self.busy => {
                let publisher = self.random.usize(0..PUBLISHERS);
                self.publish(publisher);
            }
            n if n % 3 == 0 && self.connected => self.load(),
            _ if self.connected => self.read(),
            _ => {}
        }
    }

    /// Ends the publishers; the reader takes everything.
    fn finish(&mut self) {
        if !core::mem::replace(&mut self.connected, true) {
            self.mailbox.connect();
        }
        let sent = self.last_number;
        for _ in 0..30 * sent {
            for publisher in 0..PUBLISHERS {
                if self.in_hand[publisher].is_some() {
                    self.publish(publisher);
                }
            }
            self.load();
            self.read();
        }
    }

    /// Checks that the tail has at most one run of numbers more than there are messages in memory
    /// or in a publisher's hand.
    fn runs_are_few(&self) {
        let in_memory = self.mailbox.len() + self.outgoing.len() + PUBLISHERS;
        let runs = self.mailbox.lock().tail.all();
        assert!(runs.len() <= in_memory + 1, "{in_memory}: {runs:?}");
    }
}

#[test]
fn a_topic_keeps_its_order_whatever_goes_past_others() {
    let mut passed = 0;
    for seed in 0..300 {
        let mut world = World::new(seed);
        for _ in 0..3_000 {
            world.step();
            world.runs_are_few();
        }
        world.finish();
        let mut came: HashMap<String, u32> = HashMap::new();
        let mut highest = 0;
        for delivery in &world.received {
            let topic = delivery.message.topic.to_string();
            let count = came.entry(topic.clone()).or_default();
            *count += 1;
            let payload = String::from_utf8_lossy(&delivery.message.payload);
            assert_eq!(payload, count.to_string(), "{topic}");
            let number = delivery.number().unwrap();
            passed += u32::from(number < highest);
            highest = highest.max(number);
        }
        assert_eq!(came, world.sent_of_topic);
        let queue = world.mailbox.lock();
        assert!(queue.is_empty());
        drop(queue);
        world.settle(world.told.len() as u64);
        assert!(world.stored.is_empty(), "nothing is left in the store");
    }
    assert!(passed > 1_000, "{passed} messages were passed by others");
}

/// Queues 100 messages of one topic, of which all but 8 are in the store.
fn backlog(world: &mut World) {
    for number in 1..=100 {
        let delivery = message(number, "old");
        world.tell(Told::Queued(delivery.clone()));
        queue(world, delivery);
    }
    world.last_number = 100;
    world.connected = true;
    world.mailbox.connect();
}

fn message(number: u64, topic: &str) -> Delivery {
    let message = Message::new(TopicName::new(topic).unwrap(), number.to_string());
    let mut delivery = Delivery::new(message, QoS::AtLeastOnce);
    delivery.set_number(number);
    delivery
}

fn queue(world: &mut World, delivery: Delivery) {
    world.in_hand[0] = Some(delivery);
    world.publish(0);
}

/// Pushes messages of new topics, most of which share no bucket with `old`; returns the number of
/// live ones.
fn live(world: &mut World, count: u64) -> usize {
    for index in 0..count {
        world.last_number += 1;
        let delivery = message(world.last_number, &format!("live/{index}"));
        world.tell(Told::Queued(delivery.clone()));
        queue(world, delivery);
    }
    let queue = world.mailbox.lock();
    let live = queue.in_memory() - queue.messages.len();
    drop(queue);
    live
}

#[test]
fn what_is_live_and_what_waits_are_taken_in_turns() {
    let mut world = World::new(0);
    backlog(&mut world);
    assert_eq!(live(&mut world, 0), 0);
    // No more than are live at a time: one that has no room may move those of its bucket to the
    // front.
    let count = live(&mut world, 4);
    assert!(count > 0, "all four share the bucket of the other topic");
    let mut taken = VecDeque::new();
    world.mailbox.take(2 * count, &mut taken, 0, Instant::now());
    let is_live = |delivery: &Delivery| delivery.message.topic.starts_with("live");
    for (index, delivery) in taken.iter().enumerate() {
        assert_eq!(is_live(delivery), index % 2 == 0, "{index}");
    }
}

#[test]
fn while_the_reader_is_away_and_after_a_restart_nothing_goes_past() {
    let mut world = World::new(0);
    backlog(&mut world);
    world.mailbox.disconnect(std::iter::empty());
    assert_eq!(live(&mut world, 6), 0);
    let mut world = World::new(0);
    let spilled = Spilled {
        numbers: 1..=100,
        messages: 100,
        bytes: 10_000,
    };
    world.mailbox.restore(std::iter::empty(), Some(spilled));
    world.mailbox.connect();
    assert_eq!(live(&mut world, 6), 0);
}

#[test]
fn a_crowd_of_live_messages_is_bounded_and_goes_to_the_tail() {
    let mut world = World::new(0);
    backlog(&mut world);
    live(&mut world, 1_000);
    assert!(world.mailbox.len() <= 8 + 4, "{}", world.mailbox.len());
    world.finish();
    assert_eq!(world.received.len(), 1_100);
}
