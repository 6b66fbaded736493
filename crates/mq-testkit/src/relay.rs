//! A relay in memory whose links fail in every way that a link can fail.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use mq_proto::{LaneId, Outbox};
use mq_transport::{
    Address, ConnectOptions, Connector, Error, Link, ListenOptions, Listener, Progress,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

/// Time in which bytes from before an end are delivered.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// Relays connections between two names in memory, by tokio's clock, and disturbs them at points that a
/// seed chooses.
///
/// Bytes go on in pieces of any size: the reader sees short reads, and a writer of more than a link
/// holds sees partial writes. Between pieces there may be a delay, a stall that may be longer than the
/// peers' timeouts, or the end of both connections, which loses the bytes in the relay.
#[derive(Debug)]
pub struct FaultyRelay {
    address: Address,
    state: Arc<State>,
    target: watch::Sender<Address>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct State {
    harmful: AtomicBool,
    cuts: AtomicUsize,
    stalls: AtomicUsize,
}

impl FaultyRelay {
    /// Starts a relay at `address` in front of `target`, without disturbances at first.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn start(address: Address, target: Address, seed: u64) -> Result<Self, Error> {
        let mut listener = Listener::bind(&address, &ListenOptions::default()).await?;
        let connector = Connector::new(ConnectOptions::default())?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let target = watch::Sender::new(target);
        let mut turned = target.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut random = Rng::with_seed(seed);
            // They end with the relay.
            let mut connections = JoinSet::new();
            while let Ok(incoming) = listener.accept().await {
                let target = turned.borrow_and_update().clone();
                let (Ok(client), Ok(server)) =
                    (incoming.handshake().await, connector.connect(&target).await)
                else {
                    continue;
                };
                let (random, state) = (random.fork(), Arc::clone(&shared));
                let mut turned = turned.clone();
                connections.spawn(async move {
                    tokio::select! {
                        () = relay([client, server], random, state) => {}
                        _ = turned.changed() => {}
                    }
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            state,
            target,
            _tasks: tasks,
        })
    }

    /// Returns the address for clients.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Cuts all connections off, and relays further ones to that address.
    pub fn turn_to(&self, target: Address) {
        self.target.send_replace(target);
    }

    /// Switches disturbances on or off.
    pub fn set_harmful(&self, harmful: bool) {
        self.state.harmful.store(harmful, Ordering::Relaxed);
    }

    /// Returns the number of connections that the relay has cut off.
    #[must_use]
    pub fn cuts(&self) -> usize {
        self.state.cuts.load(Ordering::Relaxed)
    }

    /// Returns the number of stalls.
    #[must_use]
    pub fn stalls(&self) -> usize {
        self.state.stalls.load(Ordering::Relaxed)
    }
}

/// Relays bytes until one end closes, or is cut off.
async fn relay(mut ends: [Link; 2], mut random: Rng, state: Arc<State>) {
    let mut out = [Outbox::new(), Outbox::new()];
    loop {
        let mut more = false;
        for from in 0..2 {
            let received = ends[from].received(LaneId::CONTROL);
            if received.is_empty() {
                continue;
            }
            let mut count = received.len();
            if state.harmful.load(Ordering::Relaxed) {
                // Small pieces as often as large ones.
                let most = if random.bool() { count.min(8) } else { count };
                count = random.usize(1..=most);
            }
            let piece = received.split_to(count).freeze();
            more |= !received.is_empty();
            out[1 - from].put_body(LaneId::CONTROL, &piece);
        }
        if state.harmful.load(Ordering::Relaxed) && harm(&mut random, &state).await {
            return;
        }
        let [one, other] = &mut ends;
        let [to_one, to_other] = &mut out;
        let (from, progress) = tokio::select! {
            biased;
            progress = one.progress(to_one, true) => (0, progress),
            progress = other.progress(to_other, true) => (1, progress),
            // The rest does not come with the piece before it.
            () = sleep(Duration::from_millis(1)), if more => continue,
        };
        match progress {
            Ok(Progress::Closed) => {
                let rest = ends[from].received(LaneId::CONTROL).split().freeze();
                out[1 - from].put_body(LaneId::CONTROL, &rest);
                let flush = ends[1 - from].flush(&mut out[1 - from]);
                // A peer that does not read loses the bytes.
                let _ = timeout(LAST_BYTES, flush).await;
                return;
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Waits; returns whether to cut the connection off.
async fn harm(random: &mut Rng, state: &State) -> bool {
    match random.u16(..1000) {
        0..8 => {
            state.cuts.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        8..14 => {
            state.stalls.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(random.u64(1_000..8_000))).await;
        }
        14..200 => sleep(Duration::from_micros(random.u64(..20_000))).await,
        _ => {}
    }
    false
}
