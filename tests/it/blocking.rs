//! The blocking client against a broker: the connection lives on between calls.

use std::{sync::mpsc::RecvTimeoutError, thread, time::Duration};

use mq_client::{Error, Event, Outgoing, QoS, TopicName, Will, blocking};
use mq_testkit::{Scheme, TestBroker};

const SOON: Duration = Duration::from_secs(30);

/// Runs `body` beside a broker, on a thread without a runtime.
fn beside_a_broker(body: impl FnOnce(&TestBroker)) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let broker = runtime.block_on(TestBroker::start());
    body(&broker);
    runtime.block_on(broker.shutdown());
}

fn client(broker: &TestBroker, id: &str) -> blocking::Client {
    broker.client(Scheme::Quic, id).build_blocking().unwrap()
}

#[test]
fn published_messages_are_iterated_over() {
    beside_a_broker(|broker| {
        let (publisher, subscriber) = (client(broker, "publisher"), client(broker, "subscriber"));
        let mut messages = subscriber.subscribe("a/+", QoS::AtLeastOnce).unwrap();
        assert!(messages.try_recv().is_none());
        for n in 0..3 {
            publisher
                .publish(format!("a/{n}"), n.to_string(), QoS::AtLeastOnce)
                .unwrap();
        }
        let message = Outgoing::to("a/3", "3").unwrap().qos(QoS::ExactlyOnce);
        publisher.send(message).unwrap().acknowledged().unwrap();
        let texts: Vec<_> = (&mut messages)
            .take(4)
            .map(|message| message.text().unwrap().to_owned())
            .collect();
        assert_eq!(texts, ["0", "1", "2", "3"]);
        let nothing = messages.recv_timeout(Duration::from_millis(1));
        assert!(matches!(nothing, Err(RecvTimeoutError::Timeout)));
        subscriber.disconnect().unwrap();
        assert!(messages.next().is_none());
        let over = messages.recv_timeout(SOON);
        assert!(matches!(over, Err(RecvTimeoutError::Disconnected)));
        assert!(matches!(
            subscriber.publish("a/4", "", QoS::AtMostOnce),
            Err(Error::Closed)
        ));
    });
}

#[test]
fn a_request_is_answered_by_another_thread() {
    beside_a_broker(|broker| {
        let (requester, responder) = (client(broker, "requester"), client(broker, "responder"));
        let questions = responder.subscribe("upper", QoS::AtLeastOnce).unwrap();
        let answering = {
            let responder = responder.clone();
            thread::spawn(move || {
                for question in questions {
                    let answer = question.text().unwrap().to_uppercase();
                    responder.respond(&question, answer).unwrap();
                }
            })
        };
        let answer = requester.request("upper", "hello").unwrap();
        assert_eq!(answer.text().unwrap(), "HELLO");
        responder.disconnect().unwrap();
        answering.join().unwrap();
        // The topic has no subscriber any more, which this broker reports.
        let error = requester.request("upper", "hello").unwrap_err();
        assert!(matches!(error, Error::NoResponder), "{error:?}");
    });
}

#[test]
fn messages_leave_while_the_program_makes_no_call_and_when_it_drops_the_client() {
    beside_a_broker(|broker| {
        let subscriber = client(broker, "subscriber");
        let mut messages = subscriber.subscribe("a", QoS::AtLeastOnce).unwrap();
        let publisher = client(broker, "publisher");
        let message = |n: u32| {
            Outgoing::to("a", n.to_string())
                .unwrap()
                .qos(QoS::AtLeastOnce)
        };
        publisher.send(message(0)).unwrap();
        // The subscriber's call does not drive the publisher.
        assert_eq!(messages.recv_timeout(SOON).unwrap().text().unwrap(), "0");
        for n in 1..=100 {
            publisher.send(message(n)).unwrap();
        }
        drop(publisher);
        for n in 1..=100 {
            let message = messages.recv_timeout(SOON).unwrap();
            assert_eq!(message.text().unwrap(), n.to_string());
        }
    });
}

#[test]
fn events_tell_of_a_lost_connection_and_end_with_the_client() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let broker = runtime.block_on(TestBroker::start());
    let client = client(&broker, "listener");
    let mut events = client.events();
    runtime.block_on(broker.shutdown());
    let first = events.next().unwrap();
    assert!(matches!(first, Event::Disconnected { .. }), "{first:?}");
    let second = events.next().unwrap();
    assert!(
        matches!(second, Event::Reconnecting { attempt: 1, .. }),
        "{second:?}"
    );
    client.disconnect().unwrap();
    // Events of failed attempts may come first; then the events end.
    assert!(events.all(|event| !matches!(event, Event::Connected(_))));
}

#[test]
fn a_client_that_is_dropped_within_an_async_task_disconnects_in_order() {
    beside_a_broker(|broker| {
        let watcher = client(broker, "watcher");
        let mut told = watcher.subscribe("#", QoS::AtLeastOnce).unwrap();
        let will = Will::new(TopicName::new("will").unwrap(), "died");
        let dropped = broker.client(Scheme::Quic, "dropped").will(will);
        let dropped = dropped.build_blocking().unwrap();
        let messages = dropped.subscribe("a", QoS::AtMostOnce).unwrap();
        let last = Outgoing::to("last", "words").unwrap();
        dropped.send(last.qos(QoS::AtLeastOnce)).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            drop(dropped);
            drop(messages);
        });
        assert_eq!(&*told.recv_timeout(SOON).unwrap().topic, "last");
        // A client that is cut off leaves its will once its connection is gone.
        let connected = || broker.broker().metrics().connections.get();
        while connected() > 1 {
            thread::sleep(Duration::from_millis(5));
        }
        let nothing = told.recv_timeout(Duration::from_millis(100));
        assert!(matches!(nothing, Err(RecvTimeoutError::Timeout)));
    });
}

#[test]
fn a_missing_broker_is_an_error() {
    // No program listens at port 1.
    let error = blocking::Client::connect("mqtt://127.0.0.1:1").unwrap_err();
    assert!(matches!(error, Error::Transport(_)), "{error:?}");
}
