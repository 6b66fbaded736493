//! Clients and a broker over links, and with a store, that fail at random points.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mq_broker::{Broker, Settings};
use mq_client::{Client, ClientBuilder, Outgoing, QoS, Reconnect, Subscription};
use mq_testkit::{FaultyRelay, SlowStore};
use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};

use crate::seeds::over_seeds;

const MESSAGES: usize = 60;
const HOUR: Duration = Duration::from_hours(1);

/// QoS 1 is never lost, QoS 2 comes exactly once, and no task is left. `MQ_SEED=n` runs one seed.
#[test]
fn bad_links_and_a_failing_store_lose_nothing_and_repeat_no_qos2() {
    let each = over_seeds(0..30, async |seed| {
        timeout(24 * HOUR, one_seed(seed)).await.unwrap()
    });
    let (mut cuts, mut stalls, mut failures) = (0, 0, 0);
    for seen in &each {
        cuts += seen.0;
        stalls += seen.1;
        failures += seen.2;
    }
    println!("{cuts} connections cut off, {stalls} stalls, {failures} failures of the store");
    let seeds = each.len();
    if seeds > 1 {
        assert!(
            cuts > seeds && stalls > seeds / 10 && failures > seeds / 3,
            "hardly any harm"
        );
    }
}

async fn start(url: &str, store: &Arc<SlowStore>) -> Broker {
    let mut settings = Settings::new(vec![url.parse().unwrap()]);
    settings.store = Some(Arc::clone(store).into());
    Broker::start(settings).await.unwrap()
}

fn client(url: &str, id: &str) -> ClientBuilder {
    Client::builder(url)
        .unwrap()
        .client_id(id)
        .unwrap()
        .clean_start(false)
        .session_expiry(24 * HOUR)
        .keep_alive(HOUR)
        .connect_timeout(Duration::from_secs(3))
        .reconnect(Reconnect {
            initial: Duration::from_millis(5),
            max: Duration::from_millis(50),
            jitter: 0.0,
            ..Reconnect::default()
        })
}

fn qos(number: usize) -> QoS {
    [QoS::AtLeastOnce, QoS::ExactlyOnce][number % 2]
}

async fn next(messages: &mut Subscription) -> usize {
    let incoming = timeout(24 * HOUR, messages.recv()).await.unwrap().unwrap();
    let text = std::str::from_utf8(&incoming.payload).unwrap();
    text.trim_end().parse().unwrap()
}

pub(crate) async fn settle_for_ever(store: &SlowStore) {
    loop {
        sleep(Duration::from_millis(1)).await;
        store.settle(usize::MAX);
    }
}

/// Returns how many connections were cut off, how many stalls there were, and how often the store
/// has failed.
#[expect(clippy::too_many_lines, reason = "one story")]
async fn one_seed(seed: u64) -> (usize, usize, usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let url = format!("mem://faults-{seed}");
    let behind = format!("mem://faults-{seed}-broker");
    let mut store = Arc::new(SlowStore::default());
    let mut broker = start(&behind, &store).await;
    let (address, target) = (url.parse().unwrap(), behind.parse().unwrap());
    let relay = FaultyRelay::start(address, target, seed).await.unwrap();

    let setting_up = async {
        let one = client(&url, "one").build().await.unwrap();
        let two = client(&url, "two").build().await.unwrap();
        let messages = two.subscribe("t/#", QoS::ExactlyOnce).await.unwrap();
        (one, two, messages)
    };
    let (one, two, mut messages) = tokio::select! {
        ready = setting_up => ready,
        () = settle_for_ever(&store) => unreachable!("it does not end"),
    };

    relay.set_harmful(true);
    let mut arrived = BTreeMap::<usize, usize>::new();
    let mut everything = Box::pin(async {
        let mut receipts = Vec::new();
        for number in 0..MESSAGES {
            let width = match number % 19 {
                // More than a link in memory holds.
                7 => 300_000,
                4 | 11 => 3_000,
                _ => 1,
            };
            let payload = format!("{number}{}", " ".repeat(width));
            let message = Outgoing::to(format!("t/{}", number % 2), payload).unwrap();
            receipts.push(one.send(message.qos(qos(number))).await.unwrap());
        }
        for receipt in &mut receipts {
            receipt.acknowledged().await.unwrap();
        }
    });
    let mut acknowledged = false;
    let mut failures = 0;
    let mut turns = 0;
    while !acknowledged || arrived.len() < MESSAGES {
        tokio::select! {
            biased;
            number = next(&mut messages) => *arrived.entry(number).or_default() += 1,
            () = &mut everything, if !acknowledged => acknowledged = true,
            () = sleep(Duration::from_millis(1)) => {
                turns += 1;
                // For as long as it takes would be too long for some.
                relay.set_harmful(turns < 20_000);
                if store.has_failed() {
                    failures += 1;
                    drop(broker);
                    let left = store.cut_off();
                    store = Arc::new(if failures < 5 {
                        left.failing_at(random.u64(1..60))
                    } else {
                        left
                    });
                    // Its tasks are gone, and its address is free, when they have had a turn.
                    sleep(Duration::from_millis(1)).await;
                    broker = start(&behind, &store).await;
                } else if turns == 5 {
                    let left = store.cut_off();
                    drop(broker);
                    store = Arc::new(left.failing_at(random.u64(1..60)));
                    sleep(Duration::from_millis(1)).await;
                    broker = start(&behind, &store).await;
                } else {
                    store.settle(random.usize(..4));
                }
            }
        }
    }
    drop(everything);
    // Messages that are still under way come now.
    relay.set_harmful(false);
    let rest = timeout(Duration::from_mins(1), async {
        loop {
            tokio::select! {
                number = next(&mut messages) => *arrived.entry(number).or_default() += 1,
                () = sleep(Duration::from_millis(1)) => store.settle(usize::MAX),
            }
        }
    });
    let _ = rest.await;
    for (number, times) in arrived {
        assert!(
            times == 1 || qos(number) == QoS::AtLeastOnce,
            "{number} came {times} times"
        );
    }
    store.assert_nothing_is_under_way();

    let counts = (relay.cuts(), relay.stalls(), failures);
    let ending = async {
        one.disconnect().await.unwrap();
        two.disconnect().await.unwrap();
        drop((one, two, messages));
        broker.shutdown().await;
    };
    tokio::select! {
        () = ending => {}
        () = settle_for_ever(&store) => {}
    }
    drop(relay);
    sleep(Duration::from_mins(1)).await;
    let left = Handle::current().metrics().num_alive_tasks();
    assert_eq!(left, 0, "tasks are left");
    counts
}
