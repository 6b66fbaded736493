//! Devices that connect, subscribe and wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use mq_client::{Client, Connector, QoS, Scheme, TopicFilter, mq_transport::Address};
use mq_codec::Packet;
use serde_json::json;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{Dialler, Failed, Orders, device::Device, say};

/// Devices that share a UDP socket over QUIC. A socket each would take more memory than the devices, and more
/// descriptors than a process may have.
const ON_ONE_SOCKET: u64 = 100;

/// Bytes that the kernel keeps for such a socket. With its default of some 200 kB, a crowd that has to wait for a
/// processor loses most of what the broker answers, and both ends send it again.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Devices that connect at a time.
const AT_ONCE: usize = 64;

/// Tries of a device, and the time between two.
const TRIES: u64 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

/// Devices before the first that is measured.
const WARM_UP: u64 = 20;

/// Filters of one SUBSCRIBE.
const FILTERS_AT_ONCE: u64 = 100;

/// Time that an order to a device may take in all, beyond the time that the order names.
const PATIENCE: Duration = Duration::from_secs(30);

/// Work of each device of a crowd.
pub(crate) struct Plan {
    url: String,
    address: Address,
    clients: u64,
    keep_alive_s: u16,
    filters: u64,
}

impl Plan {
    pub(crate) fn new(
        url: &str,
        clients: u64,
        keep_alive_s: u16,
        filters: u64,
    ) -> Result<Self, Failed> {
        Ok(Self {
            url: url.into(),
            address: url.parse()?,
            clients,
            keep_alive_s,
            filters,
        })
    }
}

/// Returns a filter of a device: of ten, seven are exact, two have `+` and one `#`. Each matches topics that no other
/// filter matches.
fn filter(device: u64, number: u64) -> String {
    match number % 10 {
        0..7 => format!("fleet/{device}-{number}/command"),
        7 => format!("plant/{device}/+/{number}/state"),
        8 => format!("+/{device}/{number}/alarm"),
        _ => format!("area/{device}/{number}/#"),
    }
}

/// Returns a topic that this filter matches.
fn topic(device: u64, number: u64) -> String {
    filter(device, number)
        .replace('+', "any")
        .replace('#', "a/b")
}

/// Order to the devices.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Order {
    Wait,
    /// Ping once within that time, each device at a moment of its own.
    Ping(Duration),
    Leave,
}

#[derive(Default)]
struct Counts {
    tries: AtomicU64,
    pongs: AtomicU64,
    messages: AtomicU64,
    left: AtomicU64,
    lost: AtomicU64,
}

pub(crate) async fn run(plan: Plan, dialler: Dialler, mut orders: Orders) -> Result<(), Failed> {
    let sockets = 0..plan.clients.div_ceil(ON_ONE_SOCKET);
    let buffer = (plan.address.scheme == Scheme::Quic).then_some(RECEIVE_BUFFER);
    let connectors = sockets.map(|_| dialler.connector(buffer));
    let connectors: Vec<Connector> = connectors.collect::<Result<_, _>>()?;
    let first = connectors.first().ok_or("a crowd of nobody")?;
    for number in 0..WARM_UP {
        let name = format!("warm-{number}");
        let device = Device::connect(first, &plan.address, &name, 60).await?;
        device.leave().await?;
    }
    say("ready")?;
    let plan = Arc::new(plan);
    let counts = Arc::new(Counts::default());
    let (order, ordered) = watch::channel(Order::Wait);
    let mut devices = JoinSet::new();
    while let Some(line) = orders.next().await {
        let began = Instant::now();
        match line.split_once(' ').unwrap_or((line.as_str(), "")) {
            ("come", _) => come(&plan, &counts, &connectors, &ordered, &mut devices).await?,
            ("match", _) => publish_to_each_kind(&plan, &counts, first).await?,
            ("ping", seconds) => {
                let over = Duration::from_secs_f64(seconds.parse()?);
                counts.pongs.store(0, Relaxed);
                order.send_replace(Order::Ping(over));
                sleep(over).await;
                reached(&counts.pongs, plan.clients).await;
            }
            ("leave", _) => {
                order.send_replace(Order::Leave);
                timeout(PATIENCE * 4, async {
                    while devices.join_next().await.is_some() {}
                })
                .await?;
            }
            _ => return Err(format!("`{line}` is no order").into()),
        }
        let seconds = began.elapsed().as_secs_f64();
        let all = |count: &AtomicU64| count.load(Relaxed);
        say(json!({
            "clients": plan.clients, "subscriptions": plan.clients * plan.filters, "seconds": seconds,
            "tries": all(&counts.tries), "pongs": all(&counts.pongs), "messages": all(&counts.messages),
            "left": all(&counts.left), "lost": all(&counts.lost),
        }))?;
    }
    Ok(())
}

/// Waits until a count is what it should become, or for as long as one may wait for it.
async fn reached(count: &AtomicU64, wanted: u64) {
    let waiting = async {
        while count.load(Relaxed) < wanted {
            sleep(Duration::from_millis(1)).await;
        }
    };
    // Who asked sees the count.
    let _ = timeout(PATIENCE, waiting).await;
}

/// Connects all devices, a few at a time.
async fn come(
    plan: &Arc<Plan>,
    counts: &Arc<Counts>,
    connectors: &[Connector],
    ordered: &watch::Receiver<Order>,
    devices: &mut JoinSet<()>,
) -> Result<(), Failed> {
    let mut dials: JoinSet<Result<(u64, Device), Failed>> = JoinSet::new();
    let mut settle = |number, device| {
        let (plan, counts) = (Arc::clone(plan), Arc::clone(counts));
        devices.spawn(live(device, number, plan, counts, ordered.clone()));
    };
    // By turns, as devices come: not all of a socket, and so of one endpoint of the broker, together.
    for (number, connector) in (0..plan.clients).zip(connectors.iter().cycle()) {
        if dials.len() == AT_ONCE
            && let Some(dialled) = dials.join_next().await
        {
            let (number, device) = dialled??;
            settle(number, device);
        }
        let (plan, counts, connector) = (Arc::clone(plan), Arc::clone(counts), connector.clone());
        dials.spawn(async move {
            let device = dial(&plan, &counts, &connector, number).await?;
            Ok((number, device))
        });
    }
    while let Some(dialled) = dials.join_next().await {
        let (number, device) = dialled??;
        settle(number, device);
    }
    Ok(())
}

/// Connects and subscribes. A device that is turned away tries again, as devices do.
async fn dial(
    plan: &Plan,
    counts: &Counts,
    connector: &Connector,
    number: u64,
) -> Result<Device, Failed> {
    let name = format!("device-{number}");
    let mut tried = 1;
    let mut device = loop {
        counts.tries.fetch_add(1, Relaxed);
        match Device::connect(connector, &plan.address, &name, plan.keep_alive_s).await {
            Ok(device) => break device,
            Err(error) if tried == TRIES => return Err(error),
            Err(_) => tried += 1,
        }
        sleep(BETWEEN_TRIES).await;
    };
    let all: Vec<u64> = (0..plan.filters).collect();
    for some in all.chunks(usize::try_from(FILTERS_AT_ONCE)?) {
        let filters = some
            .iter()
            .map(|own| TopicFilter::new(filter(number, *own)));
        device.subscribe(filters.collect::<Result<_, _>>()?).await?;
    }
    Ok(device)
}

/// Runs a device until it leaves, or loses its connection.
async fn live(
    device: Device,
    number: u64,
    plan: Arc<Plan>,
    counts: Arc<Counts>,
    ordered: watch::Receiver<Order>,
) {
    let ended = match stay(device, number, &plan, &counts, ordered).await {
        Ok(()) => &counts.left,
        Err(_) => &counts.lost,
    };
    ended.fetch_add(1, Relaxed);
}

async fn stay(
    mut device: Device,
    number: u64,
    plan: &Plan,
    counts: &Counts,
    mut ordered: watch::Receiver<Order>,
) -> Result<(), Failed> {
    let keep_alive = Duration::from_secs(plan.keep_alive_s.into());
    let mut next_ping = Instant::now() + keep_alive;
    loop {
        tokio::select! {
            packet = device.next() => match packet? {
                Packet::PingResp => { counts.pongs.fetch_add(1, Relaxed); }
                Packet::Publish(_) => { counts.messages.fetch_add(1, Relaxed); }
                other => return Err(format!("an unexpected packet: {other:?}").into()),
            },
            () = sleep_until(next_ping) => {
                device.put(&Packet::PingReq)?;
                next_ping = Instant::now() + keep_alive;
            }
            changed = ordered.changed() => {
                changed?;
                match *ordered.borrow_and_update() {
                    Order::Wait => {}
                    Order::Ping(over) => {
                        let (own, all) = (u32::try_from(number)?, u32::try_from(plan.clients)?);
                        next_ping = Instant::now() + over * own / all;
                    }
                    Order::Leave => break,
                }
            }
        }
    }
    device.leave().await
}

/// Publishes a message for one filter of each kind, of a device in the middle, and waits until they are there.
async fn publish_to_each_kind(
    plan: &Plan,
    counts: &Counts,
    connector: &Connector,
) -> Result<(), Failed> {
    let publisher = Client::builder(&plan.url)?.connector(connector.clone());
    let publisher = publisher.build().await?;
    counts.messages.store(0, Relaxed);
    let device = plan.clients / 2;
    let kinds = plan.filters.min(4);
    for kind in (0..kinds).map(|kind| plan.filters - 1 - kind) {
        publisher
            .publish(topic(device, kind), "x", QoS::AtLeastOnce)
            .await?;
    }
    reached(&counts.messages, kinds).await;
    publisher.disconnect().await?;
    Ok(())
}
