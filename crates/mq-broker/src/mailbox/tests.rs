use mq_codec::TopicName;

use super::{queue::ENTRY_BYTES, *};
use crate::memory_limit::message_weight;

fn delivery(qos: QoS) -> Delivery {
    Delivery::new(Message::new(TopicName::new("t").unwrap(), "12345"), qos)
}

fn mailbox(messages: usize, overflow: Overflow) -> Mailbox {
    mailbox_below(messages, overflow, &Arc::new(MemoryLimit::new(usize::MAX)))
}

fn mailbox_below(messages: usize, overflow: Overflow, memory_limit: &Arc<MemoryLimit>) -> Mailbox {
    let limits = MailboxLimits {
        messages,
        bytes: 100_000,
    };
    let policy = OverflowPolicy {
        overflow,
        spill_bytes: 3 * tail::weight(&delivery(QoS::AtLeastOnce)),
    };
    let rules = Arc::new(MailboxRules::new(limits, policy));
    Mailbox::new(&rules, Arc::clone(memory_limit))
}

fn push(mailbox: &Mailbox, qos: QoS) -> Push {
    push_by(mailbox, qos, Backpressure::Wait)
}

fn push_by(mailbox: &Mailbox, qos: QoS, backpressure: Backpressure) -> Push {
    mailbox.push(delivery(qos), backpressure, |message| {
        mailbox.memory_limit.keep(message).map(Arc::new)
    })
}

/// Returns a full mailbox with `messages` messages, for whose reader publishers wait no more.
fn full(messages: usize, overflow: Overflow) -> Mailbox {
    let mailbox = mailbox(messages, overflow);
    mailbox.connect();
    for _ in 0..messages {
        assert!(matches!(
            push(&mailbox, QoS::AtLeastOnce),
            Push::Queued { .. }
        ));
    }
    assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Full(_)));
    mailbox.lock().end_backpressure();
    mailbox
}

#[test]
fn a_reader_is_waited_for_once_until_its_queue_has_fallen_to_half() {
    let mailbox = mailbox(4, Overflow::Wait);
    mailbox.connect();
    for tell in [true, false, false, false] {
        let queued = push(&mailbox, QoS::AtMostOnce);
        assert!(matches!(queued, Push::Queued { must_wake: told } if told == tell));
    }
    assert!(matches!(push(&mailbox, QoS::AtMostOnce), Push::Full(_)));
    mailbox.lock().end_backpressure();
    assert!(matches!(push(&mailbox, QoS::AtMostOnce), Push::Dropped(_)));
    assert_eq!((mailbox.len(), mailbox.dropped()), (4, 1));
    // One message taken is not half of them.
    mailbox.take(1, &mut VecDeque::new(), 0, Instant::now());
    let _ = push(&mailbox, QoS::AtMostOnce);
    assert!(matches!(push(&mailbox, QoS::AtMostOnce), Push::Dropped(_)));
    mailbox.take(2, &mut VecDeque::new(), 0, Instant::now());
    for _ in 0..2 {
        let _ = push(&mailbox, QoS::AtMostOnce);
    }
    assert!(
        matches!(push(&mailbox, QoS::AtMostOnce), Push::Full(_)),
        "patient again"
    );
}

/// Pushes a message of a publisher that has waited for long enough.
fn push_at_last(mailbox: &Mailbox, qos: QoS) -> Push {
    push_by(mailbox, qos, Backpressure::TimedOut)
}

#[test]
fn a_reader_that_has_made_room_in_time_is_waited_for_again() {
    let mailbox = full(2, Overflow::Evict);
    mailbox.take(2, &mut VecDeque::new(), 0, Instant::now());
    for _ in 0..2 {
        let queued = push_at_last(&mailbox, QoS::AtLeastOnce);
        assert!(matches!(queued, Push::Queued { .. }), "{queued:?}");
    }
    let full = push(&mailbox, QoS::AtLeastOnce);
    assert!(matches!(full, Push::Full(_)), "{full:?}");
    let over = push_at_last(&mailbox, QoS::AtLeastOnce);
    assert!(matches!(over, Push::Evict(_)), "{over:?}");
}

#[test]
fn a_reader_whose_mailbox_stays_full_is_made_to_leave_once() {
    let mailbox = full(2, Overflow::Evict);
    assert!(!mailbox.is_to_be_evicted(Instant::now(), None));
    assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Evict(_)));
    assert!(mailbox.is_to_be_evicted(Instant::now(), None));
    assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Dropped(_)));
    mailbox.disconnect(std::iter::empty());
    assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Dropped(_)));
    assert_eq!((mailbox.len(), mailbox.dropped()), (2, 3), "kept as it was");
    mailbox.connect();
    assert!(!mailbox.is_to_be_evicted(Instant::now(), None));
}

#[test]
fn a_reader_for_whom_nothing_waits_is_not_made_to_leave_for_want_of_memory() {
    let mailbox = mailbox(2, Overflow::Wait);
    mailbox.connect();
    mailbox.lock().end_backpressure();
    let patience = Some(Duration::ZERO);
    assert!(!mailbox.is_to_be_evicted(Instant::now(), patience));
    let _ = push(&mailbox, QoS::AtLeastOnce);
    assert!(mailbox.is_to_be_evicted(Instant::now(), patience));
}

#[test]
fn a_publisher_that_has_waited_in_vain_waits_only_for_readers_that_have_earned_it() {
    let mailbox = mailbox(2, Overflow::Evict);
    mailbox.connect();
    for round in 0..=TRUSTED_RECOVERIES {
        while matches!(push(&mailbox, QoS::AtLeastOnce), Push::Queued { .. }) {}
        if round == TRUSTED_RECOVERIES {
            break;
        }
        mailbox.take(2, &mut VecDeque::new(), 0, Instant::now());
    }
    mailbox.take(1, &mut VecDeque::new(), 0, Instant::now());
    let _ = push(&mailbox, QoS::AtLeastOnce);
    assert!(matches!(
        push_by(&mailbox, QoS::AtLeastOnce, Backpressure::WaitIfTrusted),
        Push::Full(_)
    ));
    // The reader connects again, takes nothing, and does not count as merely slow.
    mailbox.disconnect(std::iter::empty());
    mailbox.connect();
    std::thread::sleep(2 * SLOW_READER_IDLE);
    assert!(matches!(
        push_by(&mailbox, QoS::AtLeastOnce, Backpressure::WaitIfTrusted),
        Push::Evict(_)
    ));
}

/// A library user may ask for it.
#[test]
fn a_mailbox_without_room_for_a_message_displaces_nothing_for_ever() {
    let mailbox = full(0, Overflow::DropOldest);
    for _ in 0..2 {
        let pushed = push_at_last(&mailbox, QoS::AtLeastOnce);
        assert!(matches!(pushed, Push::Displaced { .. }));
    }
    assert_eq!(mailbox.len(), 1);
}

#[test]
fn the_oldest_make_room() {
    let mailbox = full(3, Overflow::DropOldest);
    let Push::Displaced { must_wake, oldest } = push(&mailbox, QoS::ExactlyOnce) else {
        panic!("it should make room");
    };
    assert!(!must_wake && oldest.len() == 1);
    assert!(matches!(push(&mailbox, QoS::AtMostOnce), Push::Dropped(_)));
    let mut taken = VecDeque::new();
    mailbox.take(10, &mut taken, 0, Instant::now());
    let order: Vec<_> = taken.iter().map(|delivery| delivery.qos).collect();
    assert_eq!(
        order,
        [QoS::AtLeastOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]
    );
    assert_eq!(mailbox.dropped(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_in_the_store_is_not_overtaken_and_has_a_limit() {
    let mailbox = full(2, Overflow::Spill);
    for number in 3..6 {
        let Push::Spill(delivery) = push(&mailbox, QoS::AtLeastOnce) else {
            panic!("it should go to the store");
        };
        assert!(!mailbox.spilled(number, &delivery, number), "told already");
        let wanted = mailbox
            .take(1, &mut VecDeque::new(), 0, Instant::now())
            .unwrap();
        assert_eq!((wanted.numbers, wanted.position), (3..=number, number));
    }
    assert_eq!(mailbox.len(), 0);
    assert!(
        matches!(push(&mailbox, QoS::AtMostOnce), Push::Queued { .. }),
        "QoS 0 has an order of its own"
    );
    assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Dropped(_)));
    tokio::time::advance(STALLED_AFTER).await;
    assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Evict(_)));
    mailbox.add_read(3..=4, (0..2).map(|_| delivery(QoS::AtLeastOnce)));
    let wanted = mailbox
        .take(0, &mut VecDeque::new(), 0, Instant::now())
        .unwrap();
    assert_eq!(wanted.numbers, 5..=5);
    mailbox.add_read(5..=5, [delivery(QoS::AtLeastOnce)].into_iter());
    assert!(
        mailbox
            .take(0, &mut VecDeque::new(), 0, Instant::now())
            .is_none()
    );
    assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Full(_)));
    mailbox.take(10, &mut VecDeque::new(), 0, Instant::now());
    assert!(matches!(
        push(&mailbox, QoS::AtLeastOnce),
        Push::Queued { must_wake: true }
    ));
}

/// The publisher of the late message waited for room after it had its number; the others did not.
#[test]
fn what_comes_late_with_a_lower_number_is_read_from_the_store_by_itself() {
    let mailbox = full(1, Overflow::Spill);
    mailbox.spilled(6, &delivery(QoS::AtLeastOnce), 6);
    let wanted = mailbox
        .take(1, &mut VecDeque::new(), 0, Instant::now())
        .unwrap();
    assert_eq!(wanted.numbers, 6..=6);
    // Pushed while that read is in progress.
    mailbox.spilled(5, &delivery(QoS::AtLeastOnce), 5);
    mailbox.add_read(6..=6, [delivery(QoS::AtLeastOnce)].into_iter());
    let wanted = mailbox
        .take(1, &mut VecDeque::new(), 0, Instant::now())
        .unwrap();
    assert_eq!(wanted.numbers, 5..=5);
}

#[test]
fn a_session_that_is_away_keeps_qos1_and_not_qos0() {
    let mailbox = mailbox(2, Overflow::Wait);
    assert!(matches!(push(&mailbox, QoS::AtMostOnce), Push::Dropped(_)));
    assert!(matches!(
        push(&mailbox, QoS::AtLeastOnce),
        Push::Queued { must_wake: false }
    ));
    assert!(matches!(
        push(&mailbox, QoS::AtLeastOnce),
        Push::Queued { .. }
    ));
    assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Dropped(_)));
    assert!(mailbox.connect(), "something waits");
}

#[test]
fn nothing_is_queued_for_a_session_that_has_ended() {
    let mailbox = full(2, Overflow::Spill);
    mailbox.end();
    assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Dropped(_)));
    assert_eq!(mailbox.len(), 0);
}

#[test]
fn what_could_not_be_sent_comes_back_in_front() {
    let mailbox = mailbox(10, Overflow::Wait);
    mailbox.connect();
    for qos in [QoS::AtLeastOnce, QoS::AtMostOnce, QoS::ExactlyOnce] {
        let _ = push(&mailbox, qos);
    }
    let mut taken = VecDeque::new();
    mailbox.take(2, &mut taken, 0, Instant::now());
    mailbox.disconnect(taken.drain(..));
    mailbox.connect();
    mailbox.take(10, &mut taken, 0, Instant::now());
    let order: Vec<_> = taken.iter().map(|delivery| delivery.qos).collect();
    assert_eq!(order, [QoS::AtLeastOnce, QoS::ExactlyOnce]);
}

#[tokio::test]
async fn room_is_announced_when_the_reader_takes_or_leaves() {
    for overflow in [Overflow::Wait, Overflow::Evict] {
        let mailbox = mailbox(1, overflow);
        mailbox.connect();
        let _ = push(&mailbox, QoS::AtLeastOnce);
        for leave in [false, true] {
            let mut room = std::pin::pin!(mailbox.room());
            assert!(!room.as_mut().enable());
            assert!(matches!(push(&mailbox, QoS::AtLeastOnce), Push::Full(_)));
            if leave {
                mailbox.disconnect(std::iter::empty());
            } else {
                mailbox.take(1, &mut VecDeque::new(), 0, Instant::now());
            }
            room.await;
            let _ = push(&mailbox, QoS::AtLeastOnce);
        }
    }
}

#[test]
fn only_what_waits_for_a_reader_that_lags_is_counted() {
    let memory_limit = Arc::new(MemoryLimit::new(usize::MAX));
    let mailbox = mailbox_below(1_000, Overflow::Wait, &memory_limit);
    mailbox.connect();
    for _ in 0..UNCOUNTED_MESSAGES {
        let _ = push(&mailbox, QoS::AtMostOnce);
    }
    assert_eq!(memory_limit.used(), 0);
    let _ = push(&mailbox, QoS::AtMostOnce);
    let one = memory_limit.used();
    assert!(one > ENTRY_BYTES);
    let _ = push(&mailbox, QoS::AtMostOnce);
    assert_eq!(memory_limit.used(), 2 * one);
    let mut taken = VecDeque::new();
    mailbox.take(UNCOUNTED_MESSAGES + 1, &mut taken, 0, Instant::now());
    assert_eq!(
        memory_limit.used(),
        2 * one - ENTRY_BYTES,
        "in flight still counts"
    );
    drop(taken);
    assert_eq!(memory_limit.used(), one);
    drop(mailbox);
    assert_eq!(memory_limit.used(), 0);
}

#[test]
fn everything_that_waits_for_a_session_without_a_connection_is_counted() {
    let memory_limit = Arc::new(MemoryLimit::new(usize::MAX));
    let mailbox = mailbox_below(1_000, Overflow::Wait, &memory_limit);
    let one = message_weight(&delivery(QoS::AtLeastOnce).message) + ENTRY_BYTES;
    let mut taken = VecDeque::new();
    for _ in 0..2 {
        mailbox.connect();
        for _ in mailbox.len()..UNCOUNTED_MESSAGES {
            let _ = push(&mailbox, QoS::AtLeastOnce);
        }
        // Those that were taken and not sent are among them.
        mailbox.take(10, &mut taken, 0, Instant::now());
        mailbox.disconnect(taken.drain(..));
        assert_eq!(memory_limit.used(), UNCOUNTED_MESSAGES * one);
    }
    let _ = push(&mailbox, QoS::AtLeastOnce);
    assert_eq!(memory_limit.used(), (UNCOUNTED_MESSAGES + 1) * one);
    mailbox.connect();
    mailbox.take(1_000, &mut taken, 0, Instant::now());
    drop(taken);
    assert_eq!(memory_limit.used(), 0);
}

#[test]
fn a_message_that_waits_for_several_sessions_counts_once() {
    let memory_limit = Arc::new(MemoryLimit::new(usize::MAX));
    let all = [(); 4].map(|()| mailbox_below(10, Overflow::Wait, &memory_limit));
    let message = delivery(QoS::AtLeastOnce);
    let weight = message_weight(&message.message);
    for mailbox in &all {
        mailbox.connect();
        let pushed = mailbox.push(message.clone(), Backpressure::Wait, |_| None);
        assert!(matches!(pushed, Push::Queued { .. }));
    }
    drop(message);
    for mailbox in &all {
        mailbox.disconnect(std::iter::empty());
    }
    let parts = 4 * (weight / 4);
    assert_eq!(memory_limit.used(), parts + 4 * ENTRY_BYTES);
    drop(all);
    assert_eq!(memory_limit.used(), 0);
}

#[test]
fn at_the_ceiling_qos0_goes_qos1_waits_and_a_prompt_reader_notices_nothing() {
    for overflow in [Overflow::Wait, Overflow::DropOldest] {
        let memory_limit = Arc::new(MemoryLimit::new(500));
        let [slow, prompt] = [(); 2].map(|()| mailbox_below(1_000, overflow, &memory_limit));
        slow.connect();
        prompt.connect();
        while matches!(push(&slow, QoS::AtLeastOnce), Push::Queued { .. }) {}
        assert!(slow.len() > UNCOUNTED_MESSAGES && slow.len() < 100);
        assert!(matches!(push(&slow, QoS::AtMostOnce), Push::Dropped(_)));
        assert!(matches!(push(&slow, QoS::AtLeastOnce), Push::Full(_)));
        assert!(matches!(
            push(&prompt, QoS::AtMostOnce),
            Push::Queued { must_wake: true }
        ));
        let used = memory_limit.used();
        assert!((1..=500).contains(&used));
        slow.disconnect(std::iter::empty());
        let used = memory_limit.used();
        let away = push(&slow, QoS::AtLeastOnce);
        if overflow == Overflow::Wait {
            assert!(matches!(away, Push::Dropped(_)));
            assert_eq!(memory_limit.used(), used);
        } else {
            assert!(matches!(away, Push::Displaced { .. }));
            assert!(memory_limit.used() <= used);
        }
    }
}

#[test]
fn how_long_a_reader_has_made_no_progress_is_known_while_somebody_waits() {
    let mailbox = mailbox(8, Overflow::Wait);
    mailbox.connect();
    for _ in 0..8 {
        let _ = push(&mailbox, QoS::AtLeastOnce);
    }
    let later = Instant::now() + Duration::from_secs(9);
    assert_eq!(mailbox.no_progress_for(later), None);
    let _ = push(&mailbox, QoS::AtLeastOnce);
    // One message taken now and then, and replaced by one that waited, is no recovery.
    for _ in 0..3 {
        mailbox.take(1, &mut VecDeque::new(), 0, Instant::now());
        let _ = push(&mailbox, QoS::AtLeastOnce);
        let none_for = mailbox.no_progress_for(later).unwrap();
        assert!(none_for > Duration::from_secs(8));
        assert!(mailbox.is_to_be_evicted(later, Some(Duration::from_secs(8))));
        assert!(!mailbox.is_to_be_evicted(later, None));
    }
    // Half of the queue taken is one.
    mailbox.take(1, &mut VecDeque::new(), 0, Instant::now());
    let now = Instant::now();
    assert!(mailbox.no_progress_for(now).unwrap() < Duration::from_secs(8));
    mailbox.take(4, &mut VecDeque::new(), 0, Instant::now());
    assert_eq!(mailbox.no_progress_for(later), None);
}
