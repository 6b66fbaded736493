//! Clients that make the broker hold more than `[limits] memory`, in each state that a client can cause, before and after
//! its log-in, over each transport: the process grows by no more than the limit and 32 MiB, and a bystander's messages
//! pass.
//!
//! Each run takes one transport for each state, in turn; `MQ_TRANSPORTS=all` takes all of them. `MQ_STATE=wills` runs one
//! state.

use std::{
    convert::Infallible,
    num::NonZeroU16,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::{BufMut as _, BytesMut};
use mq_client::{ClientBuilder, Outgoing};
use mq_codec::{
    ByteStr, Connect, Packet, PacketId, Publish, QoS, TopicName, Version, Will, WillProperties,
};
use mq_proto::{LaneId, Outbox};
use mq_transport::{Connector, Link, Progress};
use tokio::{
    sync::Mutex,
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};

use crate::{
    program::Broker,
    raw::{publish, subscribe},
};

const MEBIBYTE: usize = 1 << 20;

/// `[limits] memory`.
const LIMIT: usize = 64 * MEBIBYTE;

/// Growth of the process that is allowed beyond the limit: buffers of connections, and memory that the allocator keeps.
const BESIDES: usize = 32 * MEBIBYTE;

/// Clients of a state. Together they try to make the broker hold [`TRIED`].
const CLIENTS: usize = 40;

/// A quarter more than the limit.
const TRIED: usize = LIMIT / 4 * 5;

/// The longest a client waits for the broker to read on.
const PATIENCE: Duration = Duration::from_secs(1);

/// Half of the bystander's messages take less, on the second try at the latest: others use this machine. Without
/// optimisation the parsing of what the adversaries send takes both processors for seconds: then it is served, and no more is
/// said.
const BYSTANDERS_ROUND_TRIP: Duration = if cfg!(debug_assertions) {
    Duration::from_secs(15)
} else {
    Duration::from_millis(50)
};

/// Each test measures one process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// The transports, and whether clients send on data streams.
const TRANSPORTS: &[(&str, bool)] = &[
    ("tcp", false),
    ("tls", false),
    ("ws", false),
    ("wss", false),
    ("quic", false),
    ("quic", true),
];

/// A client that sends what it likes.
struct Adversary {
    link: Link,
    outbox: Outbox,
    number: usize,
    /// Data streams that it sends on; none for the control stream alone.
    lanes: Vec<LaneId>,
    sent: usize,
}

impl Adversary {
    async fn open(connector: &Connector, url: &str, number: usize) -> Option<Self> {
        let address = url.parse().unwrap();
        let link = timeout(Duration::from_secs(20), connector.connect(&address));
        Some(Self {
            link: link.await.ok()?.ok()?,
            outbox: Outbox::new(),
            number,
            lanes: Vec::new(),
            sent: 0,
        })
    }

    /// Connects, and sends a CONNECT that `change` has changed. Returns `None` if the broker refuses it.
    async fn connect(
        connector: &Connector,
        url: &str,
        number: usize,
        change: impl FnOnce(&mut Connect),
    ) -> Option<Self> {
        let mut one = Self::open(connector, url, number).await?;
        let client_id = ByteStr::new(format!("adversary-{number}")).unwrap();
        let mut connect = Connect::new(Version::V5, client_id);
        connect.keep_alive = 0;
        change(&mut connect);
        one.put(LaneId::CONTROL, &connect.into());
        let let_in = async {
            loop {
                match one.link.progress(&mut one.outbox, true).await {
                    Ok(Progress::Received(lane)) => {
                        let code = one.link.received(lane).get(3).copied();
                        one.link.received(lane).clear();
                        return code == Some(0);
                    }
                    Ok(Progress::Closed) | Err(_) => return false,
                    Ok(_) => {}
                }
            }
        };
        timeout(Duration::from_secs(20), let_in)
            .await
            .ok()?
            .then_some(one)
    }

    /// Opens data streams, as many as a client may.
    fn open_lanes(&mut self) {
        while self.lanes.len() < 16
            && let Some(lane) = self.link.open_lane()
        {
            self.lanes.push(lane);
        }
    }

    fn lane(&self, nth: usize) -> LaneId {
        let lanes = self.lanes.len().max(1);
        self.lanes
            .get(nth % lanes)
            .copied()
            .unwrap_or(LaneId::CONTROL)
    }

    fn put(&mut self, lane: LaneId, packet: &Packet) {
        let mut bytes = BytesMut::new();
        packet.encode(Version::V5, &mut bytes).unwrap();
        self.put_bytes(lane, &bytes);
    }

    fn put_bytes(&mut self, lane: LaneId, bytes: &[u8]) {
        self.sent += bytes.len();
        let put: Result<(), Infallible> = self.outbox.put(lane, |out| {
            out.put_slice(bytes);
            Ok(())
        });
        let Ok(()) = put;
    }

    /// Sends what was put; reads meanwhile if it `reads`. Returns `false` once the broker takes no more.
    async fn flush(&mut self, reads: bool) -> bool {
        while !self.outbox.is_empty() {
            match timeout(PATIENCE, self.link.progress(&mut self.outbox, reads)).await {
                Ok(Ok(Progress::Received(lane))) => self.link.received(lane).clear(),
                Ok(Ok(Progress::Closed) | Err(_)) | Err(_) => return false,
                Ok(Ok(_)) => {}
            }
        }
        true
    }

    /// Sends packets, each made by its number, until the client's part of [`TRIED`] is sent.
    async fn pour(&mut self, reads: bool, mut packet: impl FnMut(usize) -> Packet) {
        let mut nth = 0;
        while self.sent < TRIED / CLIENTS {
            self.put(self.lane(nth), &packet(nth));
            nth += 1;
            if !self.flush(reads).await {
                return;
            }
        }
        // What comes for it is there then, unless it does not read.
        let until = Instant::now() + Duration::from_millis(200);
        while reads && Instant::now() < until {
            let progress = self.link.progress(&mut self.outbox, true);
            if let Ok(Ok(Progress::Received(lane))) = timeout(PATIENCE / 10, progress).await {
                self.link.received(lane).clear();
            }
        }
    }

    /// Subscribes to a topic of its own.
    async fn subscribe_own(&mut self, qos: QoS) -> String {
        let topic = format!("own/{}", self.number);
        self.put(
            LaneId::CONTROL,
            &subscribe(std::iter::once(topic.clone()), qos),
        );
        self.flush(true).await;
        topic
    }
}

/// Makes a text of that length, which differs from client to client.
fn text(number: usize, nth: usize, len: usize) -> String {
    format!("{number:06}-{nth:06}-{}", "x".repeat(len))
}

fn at_least_once(topic: String, size: usize, nth: usize) -> Publish {
    let mut publish = publish(topic, vec![0; size]);
    publish.qos = QoS::AtLeastOnce;
    publish.packet_id = PacketId::new(u16::try_from(nth % 500 + 1).unwrap());
    publish
}

/// A kind of memory that a client makes the broker hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    UnfinishedConnect,
    UnfinishedPublish,
    TopicsOfAliases,
    TopicsOfTheBrokersAliases,
    Subscriptions,
    SharedGroups,
    Retained,
    Wills,
    AbsentQueues,
    SmallInFlight,
    LargeInFlight,
    SmallUnread,
    LargeUnread,
    PropertiesUnread,
    Unreleased,
}

const STATES: &[State] = &[
    State::UnfinishedConnect,
    State::UnfinishedPublish,
    State::TopicsOfAliases,
    State::TopicsOfTheBrokersAliases,
    State::Subscriptions,
    State::SharedGroups,
    State::Retained,
    State::Wills,
    State::AbsentQueues,
    State::SmallInFlight,
    State::LargeInFlight,
    State::SmallUnread,
    State::LargeUnread,
    State::PropertiesUnread,
    State::Unreleased,
];

/// Brings the broker into a state, by one client; returns its connection, if that is still there.
#[expect(clippy::too_many_lines, reason = "an arm for each state")]
async fn cause(
    state: State,
    connector: &Connector,
    url: &str,
    number: usize,
    on_lanes: bool,
) -> Option<Adversary> {
    if state == State::UnfinishedConnect {
        let mut one = Adversary::open(connector, url, number).await?;
        // A remaining length of 60,000, and a little less.
        let mut bytes = vec![0x10, 0xE0, 0xD4, 0x03];
        bytes.extend([0, 4, b'M', b'Q', b'T', b'T', 5, 0, 0, 0, 0]);
        bytes.resize(59_000, 0);
        one.put_bytes(LaneId::CONTROL, &bytes);
        if on_lanes {
            one.open_lanes();
            for nth in 0..one.lanes.len() {
                one.put_bytes(one.lane(nth), &bytes);
            }
        }
        one.flush(false).await;
        return Some(one);
    }
    let change = |connect: &mut Connect| {
        connect.properties.receive_maximum = match state {
            State::SmallInFlight | State::LargeInFlight => NonZeroU16::new(1_000),
            _ => NonZeroU16::new(1),
        };
        connect.properties.topic_alias_maximum = Some(64);
        connect.properties.session_expiry_interval = Some(3_600);
    };
    let mut one = Adversary::connect(connector, url, number, change).await?;
    if on_lanes {
        one.open_lanes();
    }
    match state {
        State::UnfinishedConnect => unreachable!("it is above"),
        State::UnfinishedPublish => {
            for nth in 0..one.lanes.len().max(1) {
                // A remaining length of 1,000,000.
                let mut bytes = vec![0x30, 0xC0, 0x84, 0x3D, 0, 1, b't', 0];
                bytes.resize(999_000, 0);
                one.put_bytes(one.lane(nth), &bytes);
                one.flush(false).await;
            }
        }
        State::TopicsOfAliases => {
            one.pour(true, |nth| {
                let mut publish = publish(text(number, nth, 60_000), Vec::new());
                publish.properties.topic_alias = u16::try_from(nth % 64 + 1).ok();
                publish.into()
            })
            .await;
        }
        State::TopicsOfTheBrokersAliases => {
            let filter = std::iter::once(format!("own/{number}/#"));
            one.put(LaneId::CONTROL, &subscribe(filter, QoS::AtMostOnce));
            one.pour(true, |nth| {
                let topic = format!("own/{number}/{}", text(number, nth, 60_000));
                publish(topic, Vec::new()).into()
            })
            .await;
        }
        State::Subscriptions => {
            one.pour(true, |nth| {
                let filters =
                    (0..20).map(|each| format!("{}/+", text(number, nth * 20 + each, 500)));
                subscribe(filters, QoS::AtMostOnce)
            })
            .await;
        }
        State::SharedGroups => {
            one.pour(true, |nth| {
                let each =
                    (0..20).map(|each| format!("$share/{}/t", text(number, nth * 20 + each, 500)));
                subscribe(each, QoS::AtMostOnce)
            })
            .await;
        }
        State::Retained => {
            one.pour(true, |nth| {
                let mut publish = publish(text(number, nth, 10), vec![0; 5_000]);
                publish.retain = true;
                publish.into()
            })
            .await;
        }
        State::Wills => {
            drop(one);
            for each in 0..TRIED / CLIENTS / 60_000 {
                let number = 1_000 + number * 100 + each;
                Adversary::connect(connector, url, number, |connect| {
                    connect.properties.session_expiry_interval = Some(3_600);
                    connect.will = Some(Will {
                        topic: TopicName::new("gone").unwrap(),
                        payload: vec![0; 60_000].into(),
                        qos: QoS::AtMostOnce,
                        retain: false,
                        properties: WillProperties {
                            will_delay_interval: Some(3_600),
                            ..WillProperties::default()
                        },
                    });
                })
                .await;
            }
            return None;
        }
        State::AbsentQueues => {
            let topic = one.subscribe_own(QoS::AtLeastOnce).await;
            drop(one);
            let writer = Adversary::connect(connector, url, 1_000 + number, |_| {});
            let mut writer = writer.await?;
            let each = |nth| at_least_once(topic.clone(), 2_000, nth).into();
            writer.pour(true, each).await;
            return Some(writer);
        }
        State::SmallInFlight | State::LargeInFlight | State::SmallUnread | State::LargeUnread => {
            let topic = one.subscribe_own(QoS::AtLeastOnce).await;
            let is_small = matches!(state, State::SmallInFlight | State::SmallUnread);
            let size = if is_small { 100 } else { 60_000 };
            let reads = matches!(state, State::SmallInFlight | State::LargeInFlight);
            one.pour(reads, |nth| match (is_small, nth % 2) {
                // Read together with a small one.
                (true, 0) => publish("nobody".to_owned(), vec![0; 30_000]).into(),
                _ => at_least_once(topic.clone(), size, nth).into(),
            })
            .await;
        }
        State::PropertiesUnread => {
            let topic = one.subscribe_own(QoS::AtMostOnce).await;
            one.pour(false, |nth| {
                let mut publish = publish(topic.clone(), Vec::new());
                let value = ByteStr::new(text(number, nth, 60_000)).unwrap();
                let name = ByteStr::new("name").unwrap();
                publish.properties.user_properties = vec![(name, value)];
                publish.into()
            })
            .await;
        }
        State::Unreleased => {
            let topic = "nobody";
            one.pour(true, |nth| {
                let mut publish = at_least_once(topic.to_owned(), 10_000, nth);
                publish.qos = QoS::ExactlyOnce;
                publish.into()
            })
            .await;
        }
    }
    Some(one)
}

/// Sends a message every 10 ms and waits for it, until `stop`; returns how long each took, the shortest first. The
/// adversaries' threads are not its own, so that none of them delays it.
#[tokio::main(flavor = "current_thread")]
async fn bystander(client: ClientBuilder, stop: &AtomicBool) -> Vec<Duration> {
    let client = client.build().await.unwrap();
    let mut messages = client
        .subscribe("bystander", QoS::AtMostOnce)
        .await
        .unwrap();
    let mut took = Vec::new();
    while took.is_empty() || !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        let message = Outgoing::to("bystander", "x").unwrap();
        client.send(message).await.unwrap();
        let came = timeout(Duration::from_secs(20), messages.recv()).await;
        came.expect("the bystander's message")
            .expect("its connection");
        took.push(sent.elapsed());
        sleep(Duration::from_millis(10)).await;
    }
    took.sort_unstable();
    took
}

/// Has all clients cause a state of one broker. Returns by how many bytes its resident memory grew at most, and the
/// bystander's median and 99th percentile.
async fn attack(state: State, scheme: &str, on_lanes: bool) -> (usize, Duration, Duration) {
    let configuration = format!(
        "[limits]\nmemory = {LIMIT}\n[auth]\nallow_anonymous = true\n[admin]\nsys_interval_s = 0\n"
    );
    let broker = Broker::new(scheme, &configuration);
    let (empty, _) = broker.resident();
    let stop = Arc::new(AtomicBool::new(false));
    let client = broker.client("bystander");
    let watching = spawn_blocking({
        let stop = Arc::clone(&stop);
        move || bystander(client, &stop)
    });
    let connector = Connector::new(broker.connect_options()).unwrap();
    let mut attack = JoinSet::new();
    for number in 0..CLIENTS {
        let (connector, url) = (connector.clone(), broker.url.clone());
        attack.spawn(async move { cause(state, &connector, &url, number, on_lanes).await });
    }
    // All are held until the last has come.
    let held = attack.join_all().await;
    sleep(Duration::from_millis(200)).await;
    let most = broker.resident().1.saturating_sub(empty);
    stop.store(true, Ordering::Relaxed);
    let took = watching.await.expect("the bystander was served");
    let there = held.iter().flatten().count();
    let (median, slow) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    println!(
        "{state:?} over {scheme}{}: {there} clients there, {} MiB more at most, bystander {median:?}, p99 {slow:?}",
        if on_lanes { " (data streams)" } else { "" },
        most / MEBIBYTE
    );
    (most, median, slow)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_state_of_clients_takes_more_memory_than_the_limit_or_slows_a_bystander() {
    let _alone = ALONE.lock().await;
    let takes_all = std::env::var_os("MQ_TRANSPORTS").is_some();
    let only = std::env::var("MQ_STATE").unwrap_or_default().to_lowercase();
    let mut wrong = Vec::new();
    for (turn, state) in STATES.iter().enumerate() {
        if !format!("{state:?}").to_lowercase().contains(&only) {
            continue;
        }
        for (nth, (scheme, on_lanes)) in TRANSPORTS.iter().enumerate() {
            if !takes_all && nth != turn % TRANSPORTS.len() {
                continue;
            }
            let (mut most, mut median, _) = attack(*state, scheme, *on_lanes).await;
            if median > BYSTANDERS_ROUND_TRIP {
                let again = attack(*state, scheme, *on_lanes).await;
                (most, median) = (most.max(again.0), median.min(again.1));
            }
            if most > LIMIT + BESIDES || median > BYSTANDERS_ROUND_TRIP {
                wrong.push(format!("{state:?} over {scheme}: {most} bytes, {median:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
