//! Data streams on which nothing comes any more, with `stream_idle_timeout`.

use std::time::Duration;

use mq_client::{Outgoing, QoS, QuicStreams};
use mq_codec::{ByteStr, Connect, Packet, Publish, TopicName, Version};
use mq_proto::{LaneEnd, LaneId, Outbox};
use mq_testkit::{Scheme, TestBroker};
use mq_transport::{LaneClosed, Link, Progress};
use tokio::time::{sleep, timeout};

const IDLE: Duration = Duration::from_secs(1);

/// The longest wait for what must come.
const SOON: Duration = Duration::from_secs(20);

async fn broker() -> TestBroker {
    TestBroker::start_with(|settings| {
        settings.stream_idle_timeout = Some(IDLE);
        // The control stream, and no more than the tests use at a time.
        settings.listen.quic.max_bidi_streams = 4;
    })
    .await
}

fn closed(broker: &TestBroker) -> u64 {
    let listeners = broker.broker().listeners().iter();
    listeners
        .map(|metrics| metrics.streams_closed_idle.get())
        .sum()
}

/// Waits until the broker has closed so many streams, and sees that there are no more.
async fn have_closed(broker: &TestBroker, streams: u64) {
    let waiting = async {
        while closed(broker) < streams {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = timeout(SOON, waiting).await;
    waited.unwrap_or_else(|_| panic!("{} of {streams} are closed", closed(broker)));
    sleep(2 * IDLE).await;
    assert_eq!(closed(broker), streams);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_stream_is_opened_again_by_the_next_message_of_its_topic() {
    let broker = broker().await;
    let streams = QuicStreams::PerTopic { most: 8 };
    let subscriber = broker
        .client(Scheme::Quic, "s")
        .quic_streams(streams.clone());
    let subscriber = subscriber.build().await.unwrap();
    // The stream of the subscription stays, however silent it is.
    let mut messages = subscriber.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    let publisher = broker.client(Scheme::Quic, "p").quic_streams(streams);
    let publisher = publisher.build().await.unwrap();
    for round in 1..=3 {
        for topic in 0..3 {
            for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
                let message = Outgoing::to(format!("t/{topic}"), round.to_string());
                publisher.send(message.unwrap().qos(qos)).await.unwrap();
            }
        }
        for _ in 0..9 {
            let message = timeout(SOON, messages.recv()).await.unwrap().unwrap();
            assert_eq!(message.payload, round.to_string());
        }
        have_closed(&broker, 3 * round).await;
    }
    broker.shutdown().await;
}

/// A client that decides itself what goes on its streams.
struct Raw {
    link: Link,
    outbox: Outbox,
}

impl Raw {
    async fn connect(broker: &TestBroker) -> Self {
        let link = broker.connector(false);
        let link = link.connect(&broker.address(Scheme::Quic)).await.unwrap();
        let mut raw = Self {
            link,
            outbox: Outbox::new(),
        };
        let connect = Connect::new(Version::V5, ByteStr::new("raw").unwrap());
        raw.say(LaneId::CONTROL, &encoded(&Packet::from(connect)));
        assert_eq!(raw.answer().await[0], 0x20, "CONNACK");
        raw
    }

    fn say(&mut self, lane: LaneId, bytes: &[u8]) {
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        self.outbox.put_body(lane, &bytes);
    }

    async fn progress(&mut self) -> Progress {
        let progress = self.link.progress(&mut self.outbox, true);
        timeout(SOON, progress).await.unwrap().unwrap()
    }

    /// Returns the next bytes on the control stream.
    async fn answer(&mut self) -> Vec<u8> {
        while self.progress().await != Progress::Received(LaneId::CONTROL) {}
        let received = self.link.received(LaneId::CONTROL);
        received.split().to_vec()
    }

    /// Waits until the broker ends a data stream, and returns which and how.
    async fn end_of_lane(&mut self) -> (LaneId, LaneClosed) {
        loop {
            if let Progress::LaneClosed(lane, how) = self.progress().await {
                return (lane, how);
            }
        }
    }

    async fn is_alive(&mut self) {
        self.say(LaneId::CONTROL, &[0xC0, 0]);
        assert_eq!(self.answer().await, [0xD0, 0], "PINGRESP");
    }
}

fn encoded(packet: &Packet) -> Vec<u8> {
    let mut bytes = bytes::BytesMut::new();
    packet.encode(Version::V5, &mut bytes).unwrap();
    bytes.to_vec()
}

fn publish() -> Vec<u8> {
    encoded(&Publish::new(TopicName::new("t").unwrap(), "x").into())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stops_in_the_middle_of_a_packet_is_broken_off() {
    let broker = broker().await;
    let mut raw = Raw::connect(&broker).await;
    let lane = raw.link.open_lane().unwrap();
    raw.say(lane, &publish()[..4]);
    assert_eq!(raw.end_of_lane().await, (lane, LaneClosed::Reset(0x81)));
    raw.is_alive().await;
    have_closed(&broker, 1).await;
    broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_follow_the_end_of_its_stream_loses_it() {
    let broker = broker().await;
    let mut raw = Raw::connect(&broker).await;
    // Of the streams that are opened by the way nothing is known but that they are there.
    let lanes: Vec<_> = (0..3).map(|_| raw.link.open_lane().unwrap()).collect();
    raw.say(lanes[2], &publish());
    let mut ended = Vec::new();
    for _ in 0..3 {
        let (lane, how) = raw.end_of_lane().await;
        assert_eq!(how, LaneClosed::Finished);
        ended.push(lane);
    }
    ended.sort_unstable();
    assert_eq!(ended, lanes);
    // One is ended in turn.
    raw.outbox.end(lanes[1], LaneEnd::Finish);
    let mut ended = Vec::new();
    for _ in 0..2 {
        let (lane, how) = raw.end_of_lane().await;
        assert_eq!(how, LaneClosed::Stopped(0));
        ended.push(lane);
    }
    ended.sort_unstable();
    assert_eq!(ended, [lanes[0], lanes[2]]);
    raw.is_alive().await;
    // All of them are granted again.
    for _ in 0..3 {
        while raw.link.open_lane().is_none() {
            sleep(Duration::from_millis(10)).await;
        }
    }
    have_closed(&broker, 3).await;
    broker.shutdown().await;
}
