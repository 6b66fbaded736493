//! QoS 1 is never lost and QoS 2 arrives exactly once, whenever the connection is cut.

use std::{collections::BTreeMap, time::Instant};

use mq_codec::{ConnAck, QoS, ReasonCode, Version};
use mq_proto::{ClientConfig, Connection, ServerConfig, Session};

use crate::util::{End, Pair, Rng, connect, delivery, seeds};

const SEEDS: u64 = 3_000;
const MESSAGES: usize = 40;

/// An application that numbers the messages that it sends and counts those that it receives.
#[derive(Default)]
struct Application {
    next: usize,
    got: BTreeMap<String, usize>,
    order: Vec<usize>,
}

impl Application {
    fn send(&mut self, end: &mut End, now: Instant, rng: &mut Rng, qos: QoS) {
        while self.next < MESSAGES && end.connection.window() > 0 && rng.chance(70) {
            let sent = end
                .connection
                .publish(now, delivery(&self.next.to_string(), qos));
            assert!(sent.unwrap().is_some());
            self.next += 1;
        }
    }

    /// Keeps what arrived. A ticket may be given back late, but what was kept is acknowledged
    /// before the connection is given up, as an owner that stores messages does.
    fn receive(&mut self, end: &mut End, now: Instant, rng: &mut Rng) {
        for received in end.received.drain(..) {
            let text = String::from_utf8(received.message.payload.to_vec()).unwrap();
            self.order.push(text.parse().unwrap());
            *self.got.entry(text).or_default() += 1;
        }
        while !end.tickets.is_empty() && rng.chance(80) {
            let ticket = end.tickets.swap_remove(rng.below(end.tickets.len()));
            end.connection.ack(now, ticket, ReasonCode::Success);
        }
    }
}

struct Outcome {
    to_server: Application,
    to_client: Application,
    cuts: usize,
}

fn run(seed: u64, version: Version, qos: QoS) -> Outcome {
    let mut rng = Rng(seed);
    let now = Instant::now();
    let mut up = Application::default();
    let mut down = Application::default();
    let (mut client_session, mut server_session) = (Session::new(), None::<Session>);
    for cuts in 0.. {
        assert!(cuts < 10_000, "seed {seed}: no progress");
        let mut pair = Pair::new(
            now,
            ClientConfig::new(connect(version)),
            ServerConfig::default(),
            client_session,
        );
        pair.client.connection.connect(now).unwrap();
        // Short-lived connections at first, so that every point gets cut; long ones at last.
        let mut budget = rng.below(400 + 40 * cuts);
        loop {
            let step = 1 + rng.below(60);
            let moved = pair.carry(step.min(budget), step.min(budget));
            budget = budget.saturating_sub(moved);
            let connecting = pair
                .server
                .events
                .iter()
                .any(|event| matches!(event, mq_proto::Event::Connect(_)));
            if connecting {
                pair.server.events.clear();
                let mut ack = ConnAck::new(ReasonCode::Success);
                ack.session_present = server_session.is_some();
                pair.accept(server_session.take().unwrap_or_default(), ack);
            }
            up.send(&mut pair.client, now, &mut rng, qos);
            if pair.server.connection.is_open() {
                down.send(&mut pair.server, now, &mut rng, qos);
            }
            up.receive(&mut pair.server, now, &mut rng);
            down.receive(&mut pair.client, now, &mut rng);
            assert_eq!(pair.client.closed, None, "seed {seed}");
            assert_eq!(pair.server.closed, None, "seed {seed}");
            let done = up.next == MESSAGES
                && down.next == MESSAGES
                && moved == 0
                && pair.client.connection.is_open()
                && pair.client.connection.outbox().is_empty()
                && pair.server.connection.outbox().is_empty()
                && pair.client.tickets.is_empty()
                && pair.server.tickets.is_empty();
            if done || budget == 0 {
                break;
            }
        }
        // The link is cut. Whatever an application kept, it acknowledges.
        pair.client.ack_all(now);
        pair.server.ack_all(now);
        let was_open = pair.server.connection.is_open();
        let finished = budget > 0;
        client_session = end(pair.client.connection);
        if was_open {
            server_session = Some(end(pair.server.connection));
        }
        if finished {
            assert!(client_session.is_empty(), "seed {seed}: {client_session:?}");
            assert!(server_session.unwrap().is_empty(), "seed {seed}");
            return Outcome {
                to_server: up,
                to_client: down,
                cuts,
            };
        }
    }
    unreachable!("the loop above only ends by returning")
}

fn end(mut connection: Connection) -> Session {
    connection.handle_link_lost();
    connection.into_session()
}

fn check(version: Version, qos: QoS, exactly_once: bool) {
    let mut cuts = 0;
    for seed in seeds(SEEDS) {
        let outcome = run(seed, version, qos);
        cuts += outcome.cuts;
        for application in [&outcome.to_server, &outcome.to_client] {
            assert_eq!(application.got.len(), MESSAGES, "seed {seed}: lost");
            if exactly_once {
                assert!(
                    application.got.values().all(|count| *count == 1),
                    "seed {seed}: {:?}",
                    application.got
                );
                assert!(application.order.is_sorted(), "seed {seed}: out of order");
            }
        }
    }
    println!("{cuts} connections cut");
}

#[test]
fn qos1_is_never_lost_in_mqtt_3_1_1() {
    check(Version::V3_1_1, QoS::AtLeastOnce, false);
}

#[test]
fn qos1_is_never_lost_in_mqtt_5() {
    check(Version::V5, QoS::AtLeastOnce, false);
}

#[test]
fn qos2_arrives_exactly_once_and_in_order_in_mqtt_3_1_1() {
    check(Version::V3_1_1, QoS::ExactlyOnce, true);
}

#[test]
fn qos2_arrives_exactly_once_and_in_order_in_mqtt_5() {
    check(Version::V5, QoS::ExactlyOnce, true);
}
