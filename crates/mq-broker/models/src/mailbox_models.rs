//! Publishers and a reader at one mailbox, as the broker's connections use it. A lost wake-up is a
//! deadlock, which loom reports.

use std::{collections::VecDeque, future::poll_fn, pin::pin, sync::Arc};

use loom::{future::block_on, thread};
use mq_codec::{QoS, TopicName};
use mq_proto::{Delivery, Message};

use crate::{
    memory_limit::MemoryLimit,
    mailbox::{Mailbox, MailboxLimits, MailboxRules, Overflow, OverflowPolicy, Backpressure, Push},
    sync::Instant,
};

/// Payload bytes beyond the bound of a reader that does not lag.
const LARGE: usize = 64 * 1024 + 1;

fn mailbox(messages: usize, memory_limit: usize) -> (Arc<Mailbox>, Arc<MemoryLimit>) {
    let limits = MailboxLimits {
        messages,
        bytes: 1 << 20,
    };
    let policy = OverflowPolicy {
        overflow: Overflow::Wait,
        spill_bytes: 0,
    };
    let memory_limit = Arc::new(MemoryLimit::new(memory_limit));
    let rules = Arc::new(MailboxRules::new(limits, policy));
    (
        Arc::new(Mailbox::new(&rules, Arc::clone(&memory_limit))),
        memory_limit,
    )
}

fn delivery(number: u8, qos: QoS, size: usize) -> Delivery {
    let topic = TopicName::new("t").expect("valid");
    Delivery::new(Message::new(topic, vec![number; size]), qos)
}

fn number(delivery: &Delivery) -> u8 {
    delivery.message.payload[0]
}

fn push(mailbox: &Mailbox, memory_limit: &Arc<MemoryLimit>, delivery: Delivery) -> Push {
    let keep = |message: &Arc<Message>| memory_limit.keep(message).map(Arc::new);
    mailbox.push(delivery, Backpressure::Wait, keep)
}

/// Publishes at QoS 1 and waits for room; returns `false` if the message was dropped.
fn publish(mailbox: &Mailbox, memory_limit: &Arc<MemoryLimit>, mut delivery: Delivery) -> bool {
    loop {
        let mut room = pin!(mailbox.room());
        room.as_mut().enable();
        match push(mailbox, memory_limit, delivery) {
            Push::Queued { must_wake } => {
                if must_wake {
                    mailbox.wake_reader();
                }
                return true;
            }
            Push::Dropped(_) => return false,
            Push::Full(back) => delivery = back,
            other => panic!("{other:?} where publishers wait"),
        }
        block_on(room);
    }
}

/// Takes messages until there are `count`.
fn read(mailbox: &Mailbox, count: usize, at_once: usize, to: &mut VecDeque<Delivery>) {
    while to.len() < count {
        let before = to.len();
        mailbox.take(at_once, to, 0, Instant::now());
        if to.len() == before {
            block_on(poll_fn(|context| mailbox.poll_woken(context)));
        }
    }
}

fn sorted(taken: &VecDeque<Delivery>) -> Vec<u8> {
    let mut numbers: Vec<_> = taken.iter().map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// Checks two publishers and one reader: every message arrives, once, in its publisher's order.
pub fn a_reader_is_told() {
    let (mailbox, memory_limit) = mailbox(100, usize::MAX);
    mailbox.connect();
    let publishers = [[1, 2], [11, 12]].map(|numbers| {
        let (mailbox, memory_limit) = (Arc::clone(&mailbox), Arc::clone(&memory_limit));
        thread::spawn(move || {
            for number in numbers {
                assert!(publish(
                    &mailbox,
                    &memory_limit,
                    delivery(number, QoS::AtLeastOnce, 1)
                ));
            }
        })
    });
    let mut taken = VecDeque::new();
    read(&mailbox, 4, 8, &mut taken);
    for publisher in publishers {
        publisher.join().unwrap();
    }
    assert_eq!(sorted(&taken), [1, 2, 11, 12]);
    let place = |of| taken.iter().position(|delivery| number(delivery) == of);
    assert!(place(1) < place(2) && place(11) < place(12));
    assert_eq!((mailbox.len(), mailbox.dropped()), (0, 0));
}

/// Checks two publishers that find the mailbox full: each is woken when the reader takes a message.
pub fn who_waits_for_room_is_woken() {
    let (mailbox, memory_limit) = mailbox(1, usize::MAX);
    mailbox.connect();
    assert!(publish(
        &mailbox,
        &memory_limit,
        delivery(0, QoS::AtLeastOnce, 1)
    ));
    let publishers = [1, 2].map(|number| {
        let (mailbox, memory_limit) = (Arc::clone(&mailbox), Arc::clone(&memory_limit));
        thread::spawn(move || publish(&mailbox, &memory_limit, delivery(number, QoS::AtLeastOnce, 1)))
    });
    let mut taken = VecDeque::new();
    read(&mailbox, 3, 1, &mut taken);
    for publisher in publishers {
        assert!(publisher.join().unwrap());
    }
    assert_eq!(sorted(&taken), [0, 1, 2]);
}

/// Checks that a publisher that waits for room stops waiting when the reader disconnects.
pub fn who_waits_for_room_finds_out_that_nobody_reads() {
    let (mailbox, memory_limit) = mailbox(1, usize::MAX);
    mailbox.connect();
    assert!(publish(
        &mailbox,
        &memory_limit,
        delivery(0, QoS::AtLeastOnce, 1)
    ));
    let publisher = thread::spawn({
        let (mailbox, memory_limit) = (Arc::clone(&mailbox), Arc::clone(&memory_limit));
        move || publish(&mailbox, &memory_limit, delivery(1, QoS::AtLeastOnce, 1))
    });
    mailbox.disconnect(std::iter::empty());
    assert!(!publisher.join().unwrap(), "there is no room");
    assert_eq!((mailbox.len(), mailbox.dropped()), (1, 1));
}

/// Checks that no message is lost, doubled or out of order when a connection takes over from another.
pub fn a_session_moves_to_another_connection() {
    let (mailbox, memory_limit) = mailbox(100, usize::MAX);
    mailbox.connect();
    let publisher = thread::spawn({
        let (mailbox, memory_limit) = (Arc::clone(&mailbox), Arc::clone(&memory_limit));
        move || {
            for number in [1, 2, 3] {
                assert!(publish(
                    &mailbox,
                    &memory_limit,
                    delivery(number, QoS::AtLeastOnce, 1)
                ));
            }
        }
    });
    let mut taken = VecDeque::new();
    mailbox.take(1, &mut taken, 0, Instant::now());
    mailbox.disconnect(taken.drain(..));
    mailbox.connect();
    read(&mailbox, 3, 8, &mut taken);
    publisher.join().unwrap();
    let numbers: Vec<_> = taken.iter().map(number).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

/// Checks publishers at the memory limit: they wait for their own reader, and in the end nothing counts.
pub fn nothing_counts_when_everything_was_read() {
    // The large message, and nothing after it.
    let (mailbox, memory_limit) = mailbox(100, 2 * LARGE);
    mailbox.connect();
    assert!(publish(
        &mailbox,
        &memory_limit,
        delivery(0, QoS::AtLeastOnce, LARGE)
    ));
    let publishers = [1, 2].map(|number| {
        let (mailbox, memory_limit) = (Arc::clone(&mailbox), Arc::clone(&memory_limit));
        thread::spawn(move || publish(&mailbox, &memory_limit, delivery(number, QoS::AtLeastOnce, 1)))
    });
    let mut taken = VecDeque::new();
    read(&mailbox, 3, 1, &mut taken);
    for publisher in publishers {
        assert!(publisher.join().unwrap());
    }
    assert_eq!(sorted(&taken), [0, 1, 2]);
    drop(taken);
    assert_eq!(memory_limit.used(), 0);
}

/// Checks QoS 0 and a reader that may be stalled: each message is read or counted as dropped.
pub fn qos0_is_read_or_counted() {
    let (mailbox, memory_limit) = mailbox(1, usize::MAX);
    mailbox.connect();
    let publisher = thread::spawn({
        let (mailbox, memory_limit) = (Arc::clone(&mailbox), Arc::clone(&memory_limit));
        move || {
            for number in [1, 2] {
                let mut pushed = push(&mailbox, &memory_limit, delivery(number, QoS::AtMostOnce, 1));
                if let Push::Full(back) = pushed {
                    // The publisher has waited for long enough.
                    let keep = |message: &Arc<Message>| memory_limit.keep(message).map(Arc::new);
                    pushed = mailbox.push(back, Backpressure::TimedOut, keep);
                }
                match pushed {
                    Push::Queued { must_wake: true } => mailbox.wake_reader(),
                    Push::Queued { must_wake: false } | Push::Dropped(_) => {}
                    other => panic!("{other:?} where nobody waits"),
                }
            }
        }
    });
    let mut taken = VecDeque::new();
    mailbox.take(1, &mut taken, 0, Instant::now());
    mailbox.take(1, &mut taken, 0, Instant::now());
    publisher.join().unwrap();
    mailbox.take(1, &mut taken, 0, Instant::now());
    let dropped = usize::try_from(mailbox.dropped()).unwrap();
    assert_eq!(taken.len() + dropped, 2);
}
