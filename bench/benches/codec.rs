//! Encoding and decoding a PUBLISH of 100 bytes, next to the codec of `rumqttc`.
//!
//! Both read a buffer of 64 KiB full of packets, as one read of a busy connection gives it, and
//! both write into a buffer that is reused. The figure to look at is the ratio in one run.

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use mq_codec::{Decoder, Packet, Publish, TopicName, Version};
use rumqttc::mqttbytes::{self, QoS};

const TOPIC: &str = "plant/7/line/2/temperature";
const PACKETS: usize = 500;
const LIMIT: u32 = 1 << 20;

fn payload() -> Bytes {
    Bytes::from(vec![b'x'; 100])
}

fn ours() -> Publish {
    Publish::new(TopicName::new(TOPIC).expect("a valid topic"), payload())
}

fn wire(version: Version) -> Vec<u8> {
    let mut wire = BytesMut::new();
    for _ in 0..PACKETS {
        Packet::from(ours())
            .encode(version, &mut wire)
            .expect("a valid packet");
    }
    wire.to_vec()
}

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode PUBLISH 100 B");
    group.throughput(Throughput::Elements(PACKETS as u64));
    for (name, version) in [("3.1.1", Version::V3_1_1), ("5.0", Version::V5)] {
        let wire = wire(version);
        group.bench_function(format!("mq-codec {name}"), |b| {
            b.iter_batched(
                || BytesMut::from(&wire[..]),
                |mut buffer| {
                    let mut decoder = Decoder::new(Some(version), 1 << 20);
                    while let Some(packet) = decoder.decode(&mut buffer).expect("valid") {
                        black_box(&packet);
                    }
                },
                BatchSize::PerIteration,
            );
        });
    }
    let v4 = wire(Version::V3_1_1);
    group.bench_function("rumqttc 3.1.1", |b| {
        b.iter_batched(
            || BytesMut::from(&v4[..]),
            |mut buffer| {
                while let Ok(packet) = mqttbytes::v4::Packet::read(&mut buffer, LIMIT as usize) {
                    black_box(&packet);
                }
            },
            BatchSize::PerIteration,
        );
    });
    let v5 = wire(Version::V5);
    group.bench_function("rumqttc 5.0", |b| {
        b.iter_batched(
            || BytesMut::from(&v5[..]),
            |mut buffer| {
                while let Ok(packet) =
                    rumqttc::v5::mqttbytes::v5::Packet::read(&mut buffer, Some(LIMIT))
                {
                    black_box(&packet);
                }
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn encode(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode PUBLISH 100 B");
    group.throughput(Throughput::Elements(PACKETS as u64));
    let publish = ours();
    for (name, version) in [("3.1.1", Version::V3_1_1), ("5.0", Version::V5)] {
        let mut out = BytesMut::with_capacity(1 << 17);
        group.bench_function(format!("mq-codec {name}"), |b| {
            b.iter(|| {
                out.clear();
                for _ in 0..PACKETS {
                    let publish = black_box(&publish);
                    publish.head().encode(version, &mut out).expect("valid");
                    out.extend_from_slice(&publish.payload);
                }
                black_box(&out);
            });
        });
    }
    // What is left to do for one more subscriber, whose payload is a reference.
    let mut heads = BytesMut::with_capacity(1 << 17);
    group.bench_function("mq-codec 5.0, head alone", |b| {
        b.iter(|| {
            heads.clear();
            for _ in 0..PACKETS {
                let publish = black_box(&publish);
                publish
                    .head()
                    .encode(Version::V5, &mut heads)
                    .expect("valid");
            }
            black_box(&heads);
        });
    });
    let v4 = mqttbytes::v4::Publish::from_bytes(TOPIC, QoS::AtMostOnce, payload());
    let mut out = BytesMut::with_capacity(1 << 17);
    group.bench_function("rumqttc 3.1.1", |b| {
        b.iter(|| {
            out.clear();
            for _ in 0..PACKETS {
                black_box(&v4).write(&mut out).expect("valid");
            }
            black_box(&out);
        });
    });
    let v5 = rumqttc::v5::mqttbytes::v5::Publish::new(
        TOPIC,
        rumqttc::v5::mqttbytes::QoS::AtMostOnce,
        payload(),
        None,
    );
    group.bench_function("rumqttc 5.0", |b| {
        b.iter(|| {
            out.clear();
            for _ in 0..PACKETS {
                black_box(&v5).write(&mut out).expect("valid");
            }
            black_box(&out);
        });
    });
    group.finish();
}

criterion_group!(benches, decode, encode);
criterion_main!(benches);
