//! The store outlives the broker: wherever the broker is cut off, nothing that it promised is lost or
//! repeated.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mq_broker::{
    Broker, MemoryStore, Settings, Store,
    store::{Change, Position, Snapshot, StoreError},
};
use mq_client::{
    Client, ClientBuilder, CloseReason, Error, Outgoing, QoS, ReasonCode, Reconnect, Subscription,
    Version,
};
use mq_codec::ByteStr;
use mq_proto::{ClientConfig, Event, LaneId};
use mq_testkit::{ManualClient, SlowStore, refused};
use mq_transport::{Address, ConnectOptions, Connector};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{faults::settle_for_ever, seeds::over_seeds};

const HOUR: Duration = Duration::from_hours(1);

fn url(name: &str) -> String {
    format!("mem://store-{name}")
}

async fn start(name: &str, store: &Arc<impl Store>) -> Broker {
    let mut settings = Settings::new(vec![url(name).parse().unwrap()]);
    settings.store = Some(Arc::clone(store).into());
    Broker::start(settings).await.unwrap()
}

/// Builds a client whose session outlives it and the broker.
fn kept(name: &str, id: &str) -> ClientBuilder {
    mq_testkit::kept(&url(name), id)
}

fn message(topic: &str, payload: impl Into<String>, qos: QoS) -> Outgoing {
    Outgoing::to(topic, payload.into()).unwrap().qos(qos)
}

async fn next(messages: &mut Subscription) -> String {
    let incoming = timeout(HOUR, messages.recv()).await.unwrap().unwrap();
    String::from_utf8(incoming.payload.to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_broker_goes_on_with_the_store_of_an_earlier_one() {
    let store = Arc::new(MemoryStore::new());
    let broker = start("restart", &store).await;
    let away = kept("restart", "away").build().await.unwrap();
    let _asleep = away.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
    away.disconnect().await.unwrap();
    let client = kept("restart", "publisher").build().await.unwrap();
    let retained = message("r/1", "kept", QoS::AtLeastOnce).retain(true);
    client
        .send(retained)
        .await
        .unwrap()
        .acknowledged()
        .await
        .unwrap();
    broker.shutdown().await;

    let broker = start("restart", &store).await;
    assert_eq!(broker.metrics().subscriptions.get(), 1);
    assert_eq!(broker.metrics().retained.get(), 1);
    client
        .publish("t/1", "one", QoS::AtLeastOnce)
        .await
        .unwrap();
    client
        .publish("t/2", "two", QoS::ExactlyOnce)
        .await
        .unwrap();
    broker.shutdown().await;

    let broker = start("restart", &store).await;
    let back = kept("restart", "away").start().unwrap();
    let mut all = back.messages();
    back.connected().await.unwrap();
    assert!(back.last_connected().unwrap().session_present);
    assert_eq!([next(&mut all).await, next(&mut all).await], ["one", "two"]);
    let mut found = back.subscribe("r/+", QoS::AtMostOnce).await.unwrap();
    assert_eq!(next(&mut found).await, "kept");
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_without_expiry_is_not_kept() {
    let store = Arc::new(MemoryStore::new());
    let broker = start("clean", &store).await;
    let client = Client::builder(&url("clean"))
        .unwrap()
        .session_expiry(Duration::ZERO);
    let client = client.reconnect(Reconnect::never()).build().await.unwrap();
    let _messages = client.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    client.publish("t", "x", QoS::ExactlyOnce).await.unwrap();
    assert_eq!(store.load().unwrap(), Snapshot::default());
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn acknowledgements_wait_for_the_store() {
    let store = Arc::new(SlowStore::default());
    let broker = start("wait", &store).await;
    let building = kept("wait", "c").build();
    let settling = async {
        sleep(Duration::from_secs(1)).await;
        store.settle(usize::MAX);
    };
    let (client, ()) = tokio::join!(building, settling);
    let client = client.unwrap();
    let times = client.connect_times().unwrap();
    assert!(times.connack_at - times.dialled_at >= Duration::from_secs(1));

    let retained = message("t", "x", QoS::AtLeastOnce).retain(true);
    let mut receipt = client.send(retained).await.unwrap();
    let early = timeout(Duration::from_mins(1), receipt.acknowledged()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(store.pending(), 1);
    store.settle(1);
    receipt.acknowledged().await.unwrap();
    broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_failed_ends_the_connections_that_need_it() {
    let store = Arc::new(FailedStore);
    let broker = start("failed", &store).await;
    timeout(HOUR, broker.store_failed()).await.unwrap();
    for version in [Version::V3_1_1, Version::V5] {
        let kept = kept("failed", "c").reconnect(Reconnect::never());
        let reason = refused(kept.version(version)).await;
        assert_eq!(reason, ReasonCode::ServerUnavailable, "{version}");
    }
    // A client whose messages need no store is served, until one does.
    let client = Client::builder(&url("failed"))
        .unwrap()
        .session_expiry(Duration::ZERO)
        .reconnect(Reconnect::never());
    let client = client.build().await.unwrap();
    let mut messages = client.subscribe("t", QoS::AtMostOnce).await.unwrap();
    client.publish("t", "1", QoS::AtLeastOnce).await.unwrap();
    assert_eq!(next(&mut messages).await, "1");
    let retained = message("t", "2", QoS::AtLeastOnce).retain(true);
    client.send(retained).await.unwrap();
    let end = timeout(HOUR, client.closed()).await.unwrap();
    let Error::Ended(CloseReason::ByPeer(disconnect)) = end else {
        panic!("{end:?}");
    };
    assert_eq!(disconnect.reason, ReasonCode::ImplementationSpecificError);
    broker.shutdown().await;
}

/// A broker whose store settles nothing any more, and has no room.
struct FullStore {
    store: Arc<SlowStore>,
    broker: Broker,
    /// Has a kept session, and a message that it has not read.
    reader: ManualClient,
    other: ManualClient,
    /// Keeps the store full.
    _filler: ManualClient,
}

impl FullStore {
    async fn start(name: &str) -> Self {
        let store = Arc::new(SlowStore::default());
        let address: Address = url(name).parse().unwrap();
        let mut settings = Settings::new(vec![address.clone()]);
        settings.quotas.memory = 1 << 20;
        settings.store = Some(Arc::clone(&store).into());
        let broker = Broker::start(settings).await.unwrap();
        let connector = Connector::new(ConnectOptions::new()).unwrap();
        let connect = async |id, filter| {
            let keep = |config: &mut ClientConfig| {
                config.connect.properties.session_expiry_interval = Some(u32::MAX);
            };
            let client = ManualClient::connect_by(&connector, &address, id, keep);
            let mut client = client.await;
            client.subscribe(filter, QoS::AtLeastOnce).await;
            client
        };
        let connecting = async {
            let reader = connect("reader", "t").await;
            let other = connect("other", "fill").await;
            let mut filler = connect("filler", "nothing").await;
            filler.publish("t", "first", QoS::AtLeastOnce).await;
            filler.read_for(Duration::from_secs(1)).await;
            (reader, other, filler)
        };
        let (reader, other, mut filler) = tokio::select! {
            () = settle_for_ever(&store) => unreachable!("it does not end"),
            all = connecting => all,
        };
        let filling = async {
            loop {
                let payload = vec![b'x'; 64 * 1024];
                filler.publish("fill", payload, QoS::AtLeastOnce).await;
            }
        };
        timeout(Duration::from_secs(5), filling)
            .await
            .expect_err("the broker does not read it any more");
        assert!(store.pending() > 0);
        Self {
            store,
            broker,
            reader,
            other,
            _filler: filler,
        }
    }
}

/// Writes a packet behind what waits.
async fn put(client: &mut ManualClient, packet: &[u8]) {
    let put = client.connection().outbox().put(LaneId::CONTROL, |out| {
        out.extend_from_slice(packet);
        Ok::<_, core::convert::Infallible>(())
    });
    put.unwrap();
    client.flush().await;
}

#[tokio::test(start_paused = true)]
async fn a_message_acknowledged_right_before_disconnect_is_over_although_the_store_was_full() {
    let mut full = FullStore::start("full-left").await;
    let received = full.reader.message().await;
    assert_eq!(received.message.payload, "first");
    full.reader.acknowledge(received);
    // DISCONNECT, in one write with PUBACK.
    put(&mut full.reader, &[0xE0, 0]).await;
    drop(full.reader);
    sleep(Duration::from_secs(1)).await;
    let _ = timeout(Duration::from_secs(5), settle_for_ever(&full.store)).await;
    let kept = full.store.load().unwrap();
    let session = &kept.sessions[&ByteStr::new("reader").unwrap()];
    assert!(session.in_flight.is_empty(), "{session:?}");
    full.broker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_breaks_the_protocol_is_disconnected_although_the_store_is_full() {
    let mut full = FullStore::start("full-broken").await;
    full.other.publish("t", "waits", QoS::AtLeastOnce).await;
    // A PUBREL with the flags of another packet.
    put(&mut full.other, &[0x60, 2, 0, 1]).await;
    loop {
        match full.other.next().await {
            Event::Closed(_) => break,
            Event::Publish(_) => {}
            other => panic!("{other:?}"),
        }
    }
    full.broker.shutdown().await;
}

/// A store that takes changes and never settles any.
#[derive(Debug)]
struct FailedStore;

impl Store for FailedStore {
    fn load(&self) -> Result<Snapshot, StoreError> {
        Ok(Snapshot::default())
    }

    fn record(&self, _: Vec<Change>) -> Position {
        Position(1)
    }

    fn settled(&self) -> watch::Receiver<Position> {
        watch::channel(Position(0)).1
    }
}

/// A store whose last changes cannot be made durable.
#[derive(Debug, Default)]
struct UnsyncedStore(MemoryStore);

impl Store for UnsyncedStore {
    fn load(&self) -> Result<Snapshot, StoreError> {
        self.0.load()
    }

    fn record(&self, changes: Vec<Change>) -> Position {
        self.0.record(changes)
    }

    fn settled(&self) -> watch::Receiver<Position> {
        self.0.settled()
    }

    fn close(&self) -> Result<(), StoreError> {
        Err(StoreError::Failed)
    }
}

#[tokio::test(start_paused = true)]
async fn an_orderly_end_reports_a_store_that_does_not_close() {
    let broker = start("unsynced", &Arc::new(UnsyncedStore::default())).await;
    let client = kept("unsynced", "c").build().await.unwrap();
    client.publish("t", "x", QoS::AtLeastOnce).await.unwrap();
    let report = broker.shutdown().await;
    assert_eq!(report.unsettled_messages, 0);
    assert!(matches!(report.store_error, Some(StoreError::Failed)));

    let broker = start("unsynced", &Arc::new(MemoryStore::new())).await;
    assert!(broker.shutdown().await.store_error.is_none());
}

/// Cuts the broker off at arbitrary points, with the last changes unsettled, and starts it again from the
/// settled ones. `MQ_SEED=n` runs one seed.
#[test]
fn brokers_that_are_cut_off_lose_nothing_and_repeat_no_qos2() {
    over_seeds(0..40, cut_off_again_and_again);
}

async fn cut_off_again_and_again(seed: u64) {
    const MESSAGES: usize = 60;
    let mut random = fastrand::Rng::with_seed(seed);
    let name = format!("cut-{seed}");
    let mut store = Arc::new(SlowStore::default());
    let mut broker = start(&name, &store).await;
    let (one, two) = (kept(&name, "one"), kept(&name, "two"));
    let (one, two, ()) = tokio::join!(one.build(), two.build(), async {
        sleep(Duration::from_millis(1)).await;
        store.settle(usize::MAX);
    });
    let (one, two) = (one.unwrap(), two.unwrap());
    let (messages, ()) = tokio::join!(two.subscribe("t/#", QoS::ExactlyOnce), async {
        sleep(Duration::from_millis(1)).await;
        store.settle(usize::MAX);
    });
    let mut messages = messages.unwrap();

    let qos = |n: usize| [QoS::AtLeastOnce, QoS::ExactlyOnce][n % 2];
    let mut receipts = Vec::new();
    for n in 0..MESSAGES {
        let topic = format!("t/{}", n % 2);
        receipts.push(
            one.send(message(&topic, n.to_string(), qos(n)))
                .await
                .unwrap(),
        );
    }
    let mut arrived = BTreeMap::<usize, usize>::new();
    let mut cuts = 0;
    let everything = async {
        for receipt in &mut receipts {
            receipt.acknowledged().await.unwrap();
        }
    };
    tokio::pin!(everything);
    let mut acknowledged = false;
    while !acknowledged || arrived.len() < MESSAGES {
        tokio::select! {
            biased;
            payload = next(&mut messages) => {
                *arrived.entry(payload.parse().unwrap()).or_default() += 1;
            }
            () = &mut everything, if !acknowledged => acknowledged = true,
            () = sleep(Duration::from_millis(1)) => {
                if cuts < 12 && random.u8(..) < 40 {
                    cuts += 1;
                    drop(broker);
                    store = Arc::new(store.cut_off());
                    // Its tasks are gone, and its address is free, when they have had a turn.
                    sleep(Duration::from_millis(1)).await;
                    broker = start(&name, &store).await;
                } else {
                    store.settle(random.usize(..4));
                }
            }
        }
    }
    assert!(cuts > 2, "the broker was hardly cut off");
    // Messages that are still under way come now.
    let rest = timeout(Duration::from_secs(1), async {
        loop {
            tokio::select! {
                payload = next(&mut messages) => {
                    *arrived.entry(payload.parse().unwrap()).or_default() += 1;
                }
                () = sleep(Duration::from_millis(1)) => store.settle(usize::MAX),
            }
        }
    });
    let _ = rest.await;
    for (n, times) in arrived {
        assert!(
            times == 1 || qos(n) == QoS::AtLeastOnce,
            "{n} came {times} times"
        );
    }
    store.assert_nothing_is_under_way();
    drop(broker);
}
