//! The memory that the broker counts, beside that of the heap.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use mq_codec::{
    ByteStr, Connect, Packet, PacketId, Publish, QoS, Subscribe, SubscribeProperties, Subscription,
    TopicFilter, TopicName, Version, Will, WillProperties,
};
use mq_testkit::{Scheme, TestBroker, nightly};
use tokio::time::sleep;

use crate::{ALONE, heap};

/// Makes the broker hold a number of things of a kind; returns the connections that stay.
type Shape = fn(&Target, std::ops::Range<usize>) -> Vec<TcpStream>;

/// Bytes of a connection that do not count, whatever it does: its tasks and buffers
/// (`docs/reference/operation.md`, "Memory"). Over TCP it has a quarter of what that page grants.
const OF_A_CONNECTION: usize = 16 * 1024;

/// Bytes of messages that wait for a connected reader, or are in flight, and do not count: 64 KiB and 128 KiB.
const OF_A_READER: usize = (64 + 128) * 1024;

/// Read buffers that messages of QoS 0 keep which wait for a connected reader, and do not count.
const OF_QOS_0: usize = 4 * 64 * 1024;

/// The broker's address, for clients whose own memory is next to nothing.
struct Target(String);

impl Target {
    /// Connects a client with a session that outlives its connection.
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
    read_packet(stream);
}

/// Reads a packet whose length has at most two bytes.
fn read_packet(stream: &mut TcpStream) {
    let mut head = [0; 2];
    stream.read_exact(&mut head).unwrap();
    let mut len = usize::from(head[1] & 0x7F);
    if head[1] > 0x7F {
        let mut more = [0];
        stream.read_exact(&mut more).unwrap();
        len += usize::from(more[0]) << 7;
    }
    stream.read_exact(&mut vec![0; len]).unwrap();
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
    subscribe_at(stream, filter, QoS::AtLeastOnce);
}

fn subscribe_at(stream: &mut TcpStream, filter: &str, qos: QoS) {
    call(
        stream,
        &Packet::Subscribe(Subscribe {
            packet_id: PacketId::FIRST,
            subscriptions: vec![Subscription {
                filter: TopicFilter::new(filter.to_owned()).unwrap(),
                options: qos.into(),
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

/// Connects a client to each number, which has `act` done.
fn connected(
    target: &Target,
    numbers: std::ops::Range<usize>,
    change: impl Fn(&mut Connect),
    act: impl Fn(&mut TcpStream, usize),
) -> Vec<TcpStream> {
    let each = numbers.map(|number| {
        let mut stream = target.connect(&format!("connected-{number}"), &change);
        act(&mut stream, number);
        stream
    });
    each.collect()
}

/// Connects a reader to each number, which has subscribed to `to/NUMBER` and takes that many messages at a time, and has
/// so many messages sent to it, of that size. A reader that `reads` takes all that it gets, and acknowledges nothing.
fn readers(
    target: &Target,
    numbers: std::ops::Range<usize>,
    window: u16,
    reads: bool,
    messages: usize,
    message: impl Fn(String) -> Publish,
) -> Vec<TcpStream> {
    let change = |connect: &mut Connect| {
        connect.properties.receive_maximum = std::num::NonZeroU16::new(window);
    };
    let mut writer = target.connect("writer", |_| {});
    let act = |stream: &mut TcpStream, number| {
        subscribe(stream, &format!("to/{number}"));
        for _ in 0..messages {
            call(
                &mut writer.try_clone().unwrap(),
                &message(format!("to/{number}")).into(),
            );
            if reads {
                read_all(stream);
            }
        }
    };
    let each = connected(target, numbers, change, act);
    call(&mut writer, &Packet::PingReq);
    each
}

/// Takes what has come.
fn read_all(stream: &mut TcpStream) {
    stream.set_nonblocking(true).unwrap();
    let mut scratch = [0; 4_096];
    while stream.read(&mut scratch).is_ok_and(|count| count > 0) {}
    stream.set_nonblocking(false).unwrap();
}

/// Makes a message at QoS 1.
fn message(topic: String, size: usize) -> Publish {
    Publish {
        topic: TopicName::new(topic).unwrap(),
        qos: QoS::AtLeastOnce,
        packet_id: Some(PacketId::FIRST),
        payload: vec![0; size].into(),
        ..Publish::default()
    }
}

/// Makes user properties of 2 KB.
fn user_properties() -> Vec<(ByteStr, ByteStr)> {
    let text = |text: String| ByteStr::new(text).unwrap();
    let each = (0..10).map(|n| (text(format!("name-{n}")), text("x".repeat(200))));
    each.collect()
}

fn long_topic(number: usize, alias: u16) -> TopicName {
    TopicName::new(format!("{number}/{alias}/{}", "x".repeat(5_000))).unwrap()
}

/// Uncounted bytes that each connection of a shape may hold.
type Besides = usize;

/// Each with its name, how many there are of it at night, how it is made, and of those with connected clients what these hold
/// besides what counts.
const CONNECTED: &[(&str, usize, Shape, Besides)] = &[
    (
        "connected clients",
        200,
        |target, numbers| connected(target, numbers, |_| {}, |_, _| {}),
        OF_A_CONNECTION,
    ),
    (
        "connected clients with a subscription each",
        200,
        |target, numbers| {
            connected(
                target,
                numbers,
                |_| {},
                |stream, number| subscribe(stream, &format!("to/{number}")),
            )
        },
        OF_A_CONNECTION,
    ),
    (
        "subscriptions of connected clients",
        5,
        |target, numbers| {
            connected(
                target,
                numbers,
                |_| {},
                |stream, number| {
                    for each in 0..1_000 {
                        subscribe(stream, &format!("to/{number}/{each}/+"));
                    }
                },
            )
        },
        OF_A_CONNECTION,
    ),
    (
        "topics of aliases that clients have set",
        10,
        |target, numbers| {
            connected(
                target,
                numbers,
                |_| {},
                |stream, number| {
                    for alias in 1..=64 {
                        let mut publish = message("t".to_owned(), 0);
                        publish.topic = long_topic(number, alias);
                        publish.properties.topic_alias = Some(alias);
                        call(stream, &publish.into());
                    }
                },
            )
        },
        OF_A_CONNECTION,
    ),
    (
        "topics of aliases that the broker has set",
        10,
        |target, numbers| {
            let change = |connect: &mut Connect| connect.properties.topic_alias_maximum = Some(64);
            let mut writer = target.connect("writer", |_| {});
            let act = |stream: &mut TcpStream, number: usize| {
                let filter = format!("{number}/#");
                subscribe_at(stream, &filter, QoS::AtMostOnce);
                for alias in 1..=64 {
                    let mut publish = message("t".to_owned(), 0);
                    publish.topic = long_topic(number, alias);
                    call(&mut writer.try_clone().unwrap(), &publish.into());
                    read_packet(stream);
                }
            };
            let each = connected(target, numbers, change, act);
            call(&mut writer, &Packet::PingReq);
            each
        },
        OF_A_CONNECTION,
    ),
    (
        "small messages in flight",
        5,
        |target, numbers| {
            readers(target, numbers, 1_000, true, 1_000, |topic| {
                message(topic, 10)
            })
        },
        OF_A_CONNECTION + OF_A_READER,
    ),
    (
        "messages of 2 KB in flight",
        5,
        |target, numbers| {
            readers(target, numbers, 1_000, true, 900, |topic| {
                message(topic, 2_000)
            })
        },
        OF_A_CONNECTION + OF_A_READER,
    ),
    (
        "messages of 60 KB in flight",
        5,
        |target, numbers| {
            readers(target, numbers, 1_000, true, 30, |topic| {
                message(topic, 60_000)
            })
        },
        OF_A_CONNECTION + OF_A_READER,
    ),
    (
        "small messages that wait for a reader",
        5,
        |target, numbers| readers(target, numbers, 1, false, 3_000, |topic| message(topic, 10)),
        OF_A_CONNECTION + OF_A_READER,
    ),
    (
        "messages of 60 KB that wait for a reader",
        5,
        |target, numbers| {
            readers(target, numbers, 1, false, 30, |topic| {
                message(topic, 60_000)
            })
        },
        OF_A_CONNECTION + OF_A_READER,
    ),
    (
        "small messages, each read with large ones of others",
        5,
        |target, numbers| read_with_large_ones(target, numbers, QoS::AtLeastOnce),
        OF_A_CONNECTION + OF_A_READER,
    ),
    (
        "small messages of QoS 0, each read with large ones of others",
        5,
        |target, numbers| read_with_large_ones(target, numbers, QoS::AtMostOnce),
        OF_A_CONNECTION + OF_A_READER + OF_QOS_0,
    ),
    (
        "messages with many properties that wait for a reader",
        5,
        |target, numbers| {
            readers(target, numbers, 1, false, 60, |topic| {
                let mut publish = message(topic, 0);
                let each = std::iter::repeat_with(user_properties).take(20);
                publish.properties.user_properties = each.flatten().collect();
                publish
            })
        },
        OF_A_CONNECTION + OF_A_READER,
    ),
    (
        "unfinished packets",
        20,
        |target, numbers| {
            connected(
                target,
                numbers,
                |_| {},
                |stream, _| {
                    // A remaining length of 1,000,000.
                    let mut bytes = vec![0x30, 0xC0, 0x84, 0x3D, 0, 1, b't', 0];
                    bytes.resize(700_000, 0);
                    stream.write_all(&bytes).unwrap();
                },
            )
        },
        OF_A_CONNECTION,
    ),
    (
        "QoS 2 messages that clients do not release",
        5,
        |target, numbers| {
            connected(
                target,
                numbers,
                |_| {},
                |stream, _| {
                    for id in 1..=1_000 {
                        let mut publish = message("nobody".to_owned(), 0);
                        publish.qos = QoS::ExactlyOnce;
                        publish.packet_id = PacketId::new(id);
                        call(stream, &publish.into());
                    }
                },
            )
        },
        OF_A_CONNECTION,
    ),
    (
        "groups of shared subscriptions",
        5,
        |target, numbers| {
            connected(
                target,
                numbers,
                |_| {},
                |stream, number| {
                    for each in 0..1_000 {
                        subscribe(stream, &format!("$share/group-{number}-{each}/t"));
                    }
                },
            )
        },
        OF_A_CONNECTION,
    ),
];

/// Each with its name, how many there are of it at night, and how it is made.
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
    (
        "members of one shared group with a subscription each",
        3_000,
        |target, numbers| {
            for number in numbers {
                let mut stream = target.connect(&format!("absent-{number}"), |_| {});
                subscribe(&mut stream, "$share/group/t");
                subscribe(&mut stream, &format!("to/{number}"));
            }
            Vec::new()
        },
    ),
    ("wills with many properties", 1_000, |target, numbers| {
        for number in numbers {
            target.connect(&format!("absent-{number}"), |connect| {
                connect.will = Some(Will {
                    topic: TopicName::new("will").unwrap(),
                    payload: Bytes::new(),
                    qos: QoS::AtLeastOnce,
                    retain: false,
                    properties: WillProperties {
                        will_delay_interval: Some(3_600),
                        user_properties: user_properties(),
                        ..WillProperties::default()
                    },
                });
            });
        }
        Vec::new()
    }),
    (
        "retained messages with many properties",
        1_000,
        |target, numbers| {
            let mut stream = target.connect("writer", |_| {});
            for number in numbers {
                let mut publish = message(format!("r/{number}"), 10);
                publish.retain = true;
                publish.properties.user_properties = user_properties();
                call(&mut stream, &publish.into());
            }
            Vec::new()
        },
    ),
    (
        "QoS 2 messages that absent sessions have not released",
        5,
        |target, numbers| {
            for number in numbers {
                let mut stream = target.connect(&format!("absent-{number}"), |_| {});
                for id in 1..=1_000 {
                    let mut publish = message("nobody".to_owned(), 0);
                    publish.qos = QoS::ExactlyOnce;
                    publish.packet_id = PacketId::new(id);
                    call(&mut stream, &publish.into());
                }
            }
            Vec::new()
        },
    ),
    (
        "messages in flight of absent sessions",
        5,
        |target, numbers| {
            drop(readers(target, numbers, 1_000, true, 1_000, |topic| {
                message(topic, 10)
            }));
            Vec::new()
        },
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_counted_as_the_heap_grows() {
    let _alone = ALONE.lock().await;
    let absent = SHAPES
        .iter()
        .map(|(name, count, shape)| (*name, *count, *shape, 0));
    let all = absent.chain(CONNECTED.iter().copied());
    let only = std::env::var("ABUSE_SHAPE").unwrap_or_default();
    let mut wrong = Vec::new();
    for (name, count, shape, besides) in all.filter(|(name, ..)| name.contains(&only)) {
        // What comes in small numbers is large, and tables have their room from the first ones.
        let usual = if count < 100 { count } else { count / 2 };
        let count = nightly(usual, count);
        let broker = TestBroker::start().await;
        let address = broker.address(Scheme::Tcp);
        let target = Target(format!("{}:{}", address.host, address.port));
        // Tables are there, and what is made once.
        let (target, warm) = of(target, shape, count..count + 10).await;
        let (counted, allocated) = settled(&broker, warm.len()).await;
        let (_, held) = of(target, shape, 0..count).await;
        let (counted_after, allocated_after) = settled(&broker, warm.len() + held.len()).await;
        let (counted, allocated) = (
            counted_after - counted,
            allocated_after.saturating_sub(allocated),
        );
        println!(
            "{name}: {} bytes each, {} counted, {besides} besides",
            allocated / count,
            counted / count
        );
        // Never much more than what counts and what the page grants; and nothing counts that is not there.
        let (least, most) = (counted * 8 / 10, (counted + besides * count) * 12 / 10);
        if !(least..=most).contains(&allocated) {
            wrong.push(format!("{name}: {allocated} of {least} to {most}"));
        }
        drop((warm, held));
        broker.shutdown().await;
    }
    assert!(wrong.is_empty(), "heap beside count: {}", wrong.join(", "));
}

/// Readers that stall, with 60 small messages each, of which the broker reads each with a large one for nobody.
fn read_with_large_ones(
    target: &Target,
    numbers: std::ops::Range<usize>,
    qos: QoS,
) -> Vec<TcpStream> {
    let mut writer = target.connect("bulk", |_| {});
    let held = readers(target, numbers.clone(), 1, false, 0, |topic| {
        message(topic, 0)
    });
    for number in numbers {
        for _ in 0..60 {
            let mut small = message(format!("to/{number}"), 10);
            (small.qos, small.packet_id) = (
                qos,
                (qos > QoS::AtMostOnce).then(|| PacketId::new(2)).flatten(),
            );
            let large = message("nobody".to_owned(), 60_000);
            let mut bytes = BytesMut::new();
            for publish in [small, large] {
                let packet = Packet::from(publish);
                packet.encode(Version::V5, &mut bytes).unwrap();
            }
            writer.write_all(&bytes).unwrap();
            if qos > QoS::AtMostOnce {
                read_packet(&mut writer);
            }
            read_packet(&mut writer);
        }
    }
    held
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

/// Returns counted bytes and those of the heap, once only these connections are left.
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
