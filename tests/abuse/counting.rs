//! The memory that the broker counts, beside that of the heap.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use mq_codec::{
    ByteStr, Connect, Packet, PacketId, Publish, QoS, Subscribe, SubscribeProperties, Subscription,
    TopicFilter, TopicName, Version, Will, WillProperties,
};
use mq_testkit::{Scheme, TestBroker};
use tokio::time::sleep;

use crate::{ALONE, heap};

/// Makes the broker hold a number of things of a kind; returns the connections that stay.
type Shape = fn(&Target, std::ops::Range<usize>) -> Vec<TcpStream>;

/// The broker's address, for clients whose own memory is next to nothing.
struct Target(String);

impl Target {
    /// A client with a session that outlives its connection.
    fn connect(&self, client_id: &str, change: impl FnOnce(&mut Connect)) -> TcpStream {
        let mut connect = Connect::new(Version::V5, ByteStr::new(client_id).unwrap());
        connect.keep_alive = 0;
        connect.properties.session_expiry_interval = Some(3_600);
        change(&mut connect);
        let mut stream = TcpStream::connect(&self.0).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        call(&mut stream, &Packet::from(connect));
        stream
    }
}

/// Sends a packet and reads the answer.
fn call(stream: &mut TcpStream, packet: &Packet) {
    let mut bytes = BytesMut::new();
    packet.encode(Version::V5, &mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    let mut rest = vec![0; head[1].into()];
    stream.read_exact(&mut rest).unwrap();
}

fn publish(stream: &mut TcpStream, topic: &str, size: usize, retain: bool) {
    call(
        stream,
        &Packet::from(Publish {
            topic: TopicName::new(topic.to_owned()).unwrap(),
            qos: QoS::AtLeastOnce,
            packet_id: Some(PacketId::FIRST),
            payload: vec![0; size].into(),
            retain,
            ..Publish::default()
        }),
    );
}

fn subscribe(stream: &mut TcpStream, filter: &str) {
    call(
        stream,
        &Packet::Subscribe(Subscribe {
            packet_id: PacketId::FIRST,
            subscriptions: vec![Subscription {
                filter: TopicFilter::new(filter.to_owned()).unwrap(),
                options: QoS::AtLeastOnce.into(),
            }],
            properties: SubscribeProperties::default(),
        }),
    );
}

fn retained(
    target: &Target,
    numbers: std::ops::Range<usize>,
    topic: impl Fn(usize) -> String,
    size: usize,
) {
    let mut stream = target.connect("writer", |_| {});
    for number in numbers {
        publish(&mut stream, &topic(number), size, true);
    }
}

fn queued(target: &Target, numbers: std::ops::Range<usize>, messages: usize, size: usize) {
    for number in numbers.clone() {
        let mut stream = target.connect(&format!("absent-{number}"), |_| {});
        subscribe(&mut stream, &format!("to/{number}"));
    }
    let mut stream = target.connect("writer", |_| {});
    for number in numbers {
        for _ in 0..messages {
            publish(&mut stream, &format!("to/{number}"), size, false);
        }
    }
}

/// Each with its name, how many there are of it, and how it is made.
const SHAPES: &[(&str, usize, Shape)] = &[
    ("small retained messages", 10_000, |target, numbers| {
        retained(target, numbers, |number| format!("r/{number}"), 10);
        Vec::new()
    }),
    ("retained messages of 1 KB", 5_000, |target, numbers| {
        retained(target, numbers, |number| format!("r/{number}"), 1_000);
        Vec::new()
    }),
    ("retained messages of 60 KB", 100, |target, numbers| {
        retained(target, numbers, |number| format!("r/{number}"), 60_000);
        Vec::new()
    }),
    (
        "retained messages of deep topics",
        5_000,
        |target, numbers| {
            retained(
                target,
                numbers,
                |number| format!("a/{number}/b/c/d/{number}/e"),
                10,
            );
            Vec::new()
        },
    ),
    (
        "retained messages of long topics",
        2_000,
        |target, numbers| {
            let long = "x".repeat(500);
            retained(target, numbers, |number| format!("{long}/{number}"), 10);
            Vec::new()
        },
    ),
    ("absent sessions", 3_000, |target, numbers| {
        for number in numbers {
            target.connect(&format!("absent-{number}"), |_| {});
        }
        Vec::new()
    }),
    (
        "absent sessions with one subscription",
        3_000,
        |target, numbers| {
            for number in numbers {
                let mut stream = target.connect(&format!("absent-{number}"), |_| {});
                subscribe(&mut stream, &format!("to/{number}"));
            }
            Vec::new()
        },
    ),
    (
        "absent sessions with the same subscription",
        3_000,
        |target, numbers| {
            for number in numbers {
                let mut stream = target.connect(&format!("absent-{number}"), |_| {});
                subscribe(&mut stream, "to/all");
            }
            Vec::new()
        },
    ),
    (
        "many subscriptions of one absent session",
        9_000,
        |target, numbers| {
            let mut stream = target.connect("absent", |connect| connect.clean_start = false);
            for number in numbers {
                subscribe(&mut stream, &format!("to/{number}/+"));
            }
            Vec::new()
        },
    ),
    (
        "a queued small message of each of many",
        2_000,
        |target, numbers| {
            queued(target, numbers, 1, 10);
            Vec::new()
        },
    ),
    ("many queued small messages", 20, |target, numbers| {
        queued(target, numbers, 1_000, 10);
        Vec::new()
    }),
    ("queued messages of 2 KB", 50, |target, numbers| {
        queued(target, numbers, 100, 2_000);
        Vec::new()
    }),
    ("queued messages of 60 KB", 20, |target, numbers| {
        queued(target, numbers, 5, 60_000);
        Vec::new()
    }),
    ("wills of absent sessions", 2_000, |target, numbers| {
        for number in numbers {
            target.connect(&format!("absent-{number}"), |connect| {
                connect.will = Some(Will {
                    topic: TopicName::new("will").unwrap(),
                    payload: vec![0; 500].into(),
                    qos: QoS::AtLeastOnce,
                    retain: false,
                    properties: WillProperties {
                        will_delay_interval: Some(3_600),
                        ..WillProperties::default()
                    },
                });
            });
        }
        Vec::new()
    }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_counted_as_the_heap_grows() {
    let _alone = ALONE.lock().await;
    let mut wrong = Vec::new();
    for (name, count, shape) in SHAPES {
        let broker = TestBroker::start().await;
        let address = broker.address(Scheme::Tcp);
        let target = Target(format!("{}:{}", address.host, address.port));
        // Tables are there, and what is made once.
        let (target, warm) = of(target, *shape, *count..*count + 10).await;
        let (counted, allocated) = settled(&broker, warm.len()).await;
        let (_, held) = of(target, *shape, 0..*count).await;
        let (counted_after, allocated_after) = settled(&broker, warm.len() + held.len()).await;
        let (counted, allocated) = (
            counted_after - counted,
            allocated_after.saturating_sub(allocated),
        );
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let ratio = allocated as f64 / counted as f64;
        println!(
            "{name}: {} bytes each, {} counted: {ratio:.2}",
            allocated / count,
            counted / count
        );
        if !(0.8..=1.2).contains(&ratio) {
            wrong.push(format!("{name}: {ratio:.2}"));
        }
        drop((warm, held));
        broker.shutdown().await;
    }
    assert!(wrong.is_empty(), "heap beside count: {}", wrong.join(", "));
}

/// Makes things in a thread of its own, as it blocks.
async fn of(
    target: Target,
    shape: Shape,
    numbers: std::ops::Range<usize>,
) -> (Target, Vec<TcpStream>) {
    let made = tokio::task::spawn_blocking(move || {
        let held = shape(&target, numbers);
        (target, held)
    });
    made.await.unwrap()
}

/// Counted bytes and those of the heap, once only these connections are left.
async fn settled(broker: &TestBroker, connections: usize) -> (usize, usize) {
    let until = Instant::now() + Duration::from_secs(20);
    while broker.broker().metrics().connections.get() > connections {
        assert!(Instant::now() < until, "connections stay");
        sleep(Duration::from_millis(20)).await;
    }
    // The last tasks end.
    sleep(Duration::from_millis(300)).await;
    (broker.broker().memory_used(), heap::bytes())
}
