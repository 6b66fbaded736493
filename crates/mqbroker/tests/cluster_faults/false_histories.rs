//! False histories, each of which the check has to refuse.

use std::{collections::HashMap, time::Duration};

use mq_client::QoS;

use crate::{
    check::{Found, Willed},
    clients::{Sessions, Spans, Who},
    publisher::{Published, Sent},
    reader::{Came, Interest, Read},
    rivals::Rivals,
};

fn published(qos: &[QoS]) -> Published {
    let sent = qos.iter().map(|&qos| Sent {
        qos,
        at: 1,
        acknowledged: Some(2),
        is_refused: false,
        expiry: None,
    });
    Published {
        topics: HashMap::from([("m/t".to_owned(), sent.collect())]),
        forgotten: 0,
        sessions: Sessions::default(),
    }
}

/// Makes a reader at QoS 2 that has got these numbers of a topic, each 3 ms after the campaign began.
fn reader(id: &str, topic: &str, numbers: &[usize]) -> Read {
    let came = numbers.iter().map(|number| Came {
        topic: topic.to_owned(),
        text: number.to_string(),
        at: 3,
    });
    Read {
        who: Who {
            id: id.to_owned(),
            scheme: 0,
            home: 0,
            list: true,
        },
        qos: QoS::ExactlyOnce,
        came: came.collect(),
        sessions: Sessions::default(),
        spans: Spans::default(),
    }
}

/// Runs the check of a reader at QoS 2 that received these numbers, and returns what it found.
fn found(qos: &[QoS], numbers: &[usize], wills: &[Willed]) -> Found {
    let read = reader("reader", "m/t", numbers);
    let mut found = Found::default();
    found.read(&read, Interest::All, &[published(qos)], wills);
    found
}

pub(crate) fn the_check_finds_what_is_lost_twice_out_of_order_or_made_up() {
    let [zero, one, two] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
    let qos = [zero, one, two];
    let all_came = found(&qos, &[0, 1, 1, 2], &[]);
    assert!(all_came.faults().is_none() && all_came.again == 1);
    let without_zero = found(&qos, &[1, 2], &[]);
    assert!(without_zero.faults().is_none() && without_zero.qos0_lost == 1);
    assert_eq!(found(&qos, &[0, 1], &[]).lost, 1);
    assert_eq!(found(&qos, &[0, 0, 1, 2, 2], &[]).twice, 2);
    assert_eq!(found(&qos, &[0, 2, 1], &[]).out_of_order, 1);
    assert_eq!(found(&qos, &[0, 1, 2, 3], &[]).unsent, 1);
    let will = Willed { number: 0, at: 1 };
    assert_eq!(found(&qos, &[1, 2], &[will]).wills_lost, 1);
    assert!(found(&qos, &[1, 2], &[will]).faults().is_some());
}

pub(crate) fn the_check_takes_messages_behind_a_refused_one_for_refused_ones_alone() {
    let found_with = |second: QoS, refused: &[usize], numbers: &[usize]| {
        let mut all = published(&[QoS::ExactlyOnce; 6]);
        let sent = all.topics.get_mut("m/t").unwrap();
        sent[1].qos = second;
        for number in refused {
            sent[*number].acknowledged = None;
            sent[*number].is_refused = true;
        }
        let read = reader("reader", "m/t", numbers);
        let mut found = Found::default();
        found.read(&read, Interest::All, &[all], &[]);
        (found.out_of_order, found.behind_refusals)
    };
    let found =
        |refused: &[usize], numbers: &[usize]| found_with(QoS::ExactlyOnce, refused, numbers);
    assert_eq!(found(&[0], &[3, 4, 1, 2, 5]), (0, 2));
    assert_eq!(found_with(QoS::AtMostOnce, &[0], &[1, 3, 4, 2, 5]), (0, 1));
    assert_eq!(found(&[0], &[1, 3, 4, 2, 5]), (1, 0));
    assert_eq!(found(&[], &[3, 4, 0, 1, 2, 5]), (3, 0));
}

pub(crate) fn the_check_takes_a_message_of_full_servers_for_one_whose_refusal_is_lost() {
    let [sent_at, acknowledged_at] = [100, 200];
    let mut all = published(&[QoS::ExactlyOnce; 3]);
    for sent in all.topics.get_mut("m/t").unwrap() {
        (sent.at, sent.acknowledged) = (sent_at, Some(acknowledged_at));
    }
    let read = reader("reader", "m/t", &[1, 0, 2]);
    for (full, out_of_order) in [
        ((0, 99), 1),
        ((0, 100), 0),
        ((200, 300), 0),
        ((201, 300), 1),
    ] {
        let mut found = Found::of_full_servers(vec![full]);
        found.read(&read, Interest::All, std::slice::from_ref(&all), &[]);
        let counts = (found.out_of_order, found.behind_refusals);
        assert_eq!(counts, (out_of_order, 1 - out_of_order), "{full:?}");
    }
}

pub(crate) fn the_check_finds_a_retained_message_that_is_older_than_what_was_acknowledged() {
    let mut all = published(&[QoS::AtLeastOnce; 3]);
    let sent = all.topics.remove("m/t").unwrap();
    all.topics.insert("r/t".to_owned(), sent);
    let stale = |number: Option<usize>| {
        let came = number.map(|number| ("r/t".to_owned(), number));
        let mut found = Found::default();
        found.retained("a", &came.into_iter().collect(), std::slice::from_ref(&all));
        found.stale
    };
    assert_eq!([stale(Some(2)), stale(Some(1)), stale(None)], [0, 1, 1]);
}

pub(crate) fn the_check_finds_what_an_earlier_owner_acknowledges_late() {
    let found = |sent: &[(u64, Option<u64>)]| {
        let mut rivals = Rivals::default();
        rivals.note(100, sent.to_vec());
        let mut found = Found::default();
        found.rivals(rivals);
        (found.faults().is_some(), found.rivals.sent_late)
    };
    assert_eq!(found(&[(90, Some(120)), (110, None)]), (false, 1));
    assert_eq!(found(&[(90, Some(120)), (110, Some(130))]), (true, 1));
}

pub(crate) fn the_check_finds_a_will_of_qos_2_that_comes_twice() {
    let twice = |number: usize| {
        let mut read = reader("reader", "m/t", &[]);
        let will = Came {
            topic: format!("will/{number}"),
            text: number.to_string(),
            at: 3,
        };
        read.came = vec![will; 2];
        let mut found = Found::default();
        let wills = [Willed { number, at: 1 }];
        found.read(&read, Interest::All, &[], &wills);
        (
            found.wills_twice,
            found.wills_again,
            found.faults().is_some(),
        )
    };
    assert_eq!([twice(0), twice(1)], [(0, 1, false), (1, 0, true)]);
}

pub(crate) fn the_check_finds_a_session_that_was_not_there() {
    let lost = |lost| {
        let mut found = Found::default();
        let sessions = Sessions {
            lost,
            ..Sessions::default()
        };
        found.sessions(&[Sessions::default(), sessions]);
        (found.sessions_lost, found.faults().is_some())
    };
    assert_eq!([lost(0), lost(2)], [(0, false), (2, true)]);
}

pub(crate) fn the_check_finds_a_shared_message_that_no_member_gets_or_two_do() {
    let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
    let group = |a: &[usize], b: &[usize]| {
        let members = [reader("a", "m/t", a), reader("b", "m/t", b)];
        let mut found = Found::default();
        found.group(&members, &[published(&qos)]);
        let has_faults = found.faults().is_some();
        (
            found.shared_lost,
            found.shared_twice,
            found.unsent,
            has_faults,
        )
    };
    // The one of QoS 1 may come again.
    assert_eq!(group(&[1, 1], &[0, 1, 2]), (0, 0, 0, false));
    assert_eq!(group(&[1], &[2]), (0, 0, 0, false));
    assert_eq!(group(&[1], &[]), (1, 0, 0, true));
    assert_eq!(group(&[0, 1, 2], &[0]), (0, 1, 0, true));
    assert_eq!(group(&[1, 2], &[2]), (0, 1, 0, true));
    assert_eq!(group(&[1, 2, 2], &[]), (0, 1, 0, true));
    assert_eq!(group(&[1, 2, 3], &[]), (0, 0, 1, true));
}

pub(crate) fn the_check_finds_a_message_that_comes_expired_or_not_in_time() {
    // One message, sent at 100 s, acknowledged at once, for a reader that is connected or absent in these seconds.
    let found = |expiry_s, connected: &[(u64, u64)], absent: &[(u64, u64)], came_s: Option<u64>| {
        let sent = Sent {
            qos: QoS::AtLeastOnce,
            at: 100_000,
            acknowledged: Some(100_000),
            is_refused: false,
            expiry: Some(Duration::from_secs(expiry_s)),
        };
        let all = Published {
            topics: HashMap::from([("e/t".to_owned(), vec![sent])]),
            forgotten: 0,
            sessions: Sessions::default(),
        };
        let came = came_s.map(|at| Came {
            topic: "e/t".to_owned(),
            text: "0".to_owned(),
            at: at * 1_000,
        });
        let connected = connected
            .iter()
            .map(|(from, to)| (from * 1_000, Some(to * 1_000)));
        let absent = absent.iter().map(|(from, to)| (from * 1_000, to * 1_000));
        let spans = Spans {
            connected: connected.collect(),
            absent: absent.collect(),
        };
        let read = Read {
            came: came.into_iter().collect(),
            spans,
            ..reader("reader", "e/t", &[])
        };
        let mut found = Found::default();
        let interest = Interest::Expiring { sleeps: true };
        found.read(&read, interest, &[all], &[]);
        let faults = (found.came_expired, found.lost_in_time);
        assert_eq!(found.faults().is_some(), faults != (0, 0));
        faults
    };
    let away = [(50, 130)];
    assert_eq!(found(4, &[], &away, None), (0, 0));
    assert_eq!(found(4, &[], &away, Some(131)), (1, 0));
    assert_eq!(found(60, &[], &away, Some(131)), (0, 0));
    // A node may have begun to deliver it.
    assert_eq!(found(4, &[], &[(95, 130)], Some(131)), (0, 0));
    assert_eq!(found(4, &[(0, 200)], &[], None), (0, 0));
    assert_eq!(found(60, &[(0, 200)], &[], None), (0, 1));
    assert_eq!(found(60, &[(0, 200)], &[], Some(101)), (0, 0));
    assert_eq!(found(60, &[(0, 110), (111, 200)], &[], None), (0, 0));
}

pub(crate) fn the_check_takes_a_refused_message_for_no_acknowledged_one() {
    let mut all = published(&[QoS::AtLeastOnce; 2]);
    let refused = &mut all.topics.get_mut("m/t").unwrap()[1];
    (refused.acknowledged, refused.is_refused) = (None, true);
    let all = [all];
    let mut found = Found::default();
    found.published(&all);
    found.read(&reader("reader", "m/t", &[0]), Interest::All, &all, &[]);
    assert!(found.faults().is_none());
    assert_eq!((found.refused, found.in_doubt, found.lost), (1, 0, 0));
}
