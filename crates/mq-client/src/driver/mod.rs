//! The task behind the handles: it connects, drives one connection after the other, and ends.
//!
//! ```text
//!              link              CONNACK
//! Connecting --------> Open link ---------> Connected ---+
//!     ^  ^               |                               | lost, or left for another
//!     |  +-- back-off <--+-------------------------------+
//!     |                  | cannot be cured, or attempts exhausted
//!     +-- start          v
//!                      Ended <-- disconnect(), last handle dropped (drained first)
//! ```
//!
//! With several addresses, `link` is the link that won a [`Race`].

mod deliver;
mod drive;
mod lanes;
mod requests;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use mq_codec::{PacketId, ReasonCode, Version};
use mq_proto::{ClientConfig, CloseReason, Probes, Session};
use mq_transport::{
    Address, Connector, Dial, HandshakeKind, LinkInfo, LinkStats,
    race::{self, Networks, Race, Winner},
};
use tokio::sync::oneshot;

use crate::{
    AuthMethod, Error, Event, QuicStreams, Reconnect,
    ack::AckCell,
    control::ManualAck,
    lock::lock,
    queue::Queued,
    reconnect::Backoff,
    shared::{Shared, Status},
};
use deliver::Streams;
use requests::Requests;

/// Reads Tokio's clock, so that tests can pause it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Settings of the driver, which the builder makes.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Addresses of the server, at least one, the preferred one first.
    pub(crate) addresses: Vec<Address>,
    /// Time that each address has before the driver also tries the next one. Default: 500 ms; set by
    /// [`ClientBuilder::head_start`](crate::ClientBuilder::head_start).
    pub(crate) head_start: Duration,
    /// Time for which the driver remembers a network on which the first address lost the race.
    pub(crate) fallback_memory: Duration,
    pub(crate) connector: Connector,
    pub(crate) config: ClientConfig,
    /// `true` if the session is kept for reconnects only: DISCONNECT then sets its expiry to 0.
    pub(crate) expire_on_disconnect: bool,
    pub(crate) reconnect: Reconnect,
    pub(crate) connect_timeout: Duration,
    pub(crate) manual_ack: bool,
    pub(crate) subscription_ids: bool,
    pub(crate) auth_method: Option<Box<dyn AuthMethod>>,
    pub(crate) probes: Probes,
    pub(crate) quic_streams: QuicStreams,
}

#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    settings: Settings,
    /// The session for the next connection.
    session: Session,
    /// `true` if a failure of the next connection ends the client.
    fail_fast: bool,
    /// `true` if the server has accepted this client before.
    connected_before: bool,
    /// Number of the connection, so that an acknowledgement is sent only on the connection of its message.
    connection: u64,
    networks: Networks,
    /// Time until which a CONNECT of this client that lost a race may arrive, and take the session over.
    straggler_until: Option<Instant>,
    /// Messages taken from the queue and not sent yet: about one batch.
    pending: VecDeque<Queued>,
    /// Incomplete QoS 1 and 2 messages, with a cell if their receipt exists.
    in_flight: HashMap<PacketId, Option<Arc<AckCell>>>,
    /// Messages sent again since the server lost the session: see [`Driver::session_lost`].
    resent: Option<(usize, HashSet<PacketId>)>,
    /// Number of the last message that was given to a connection.
    last_handed: u64,
    requests: Requests,
    streams: Streams,
    /// `true` if the application has asked for another connection.
    reconnect_asked: bool,
    /// Time at which draining stops, once the client is to end.
    end_at: Option<Instant>,
    /// Number of QoS 0 messages that were in outboxes when their connections ended, since the client is to end.
    unwritten: usize,
    /// The error with which the client ends.
    ended: Error,
}

/// Longest time for which the early data of a dropped link may be on its way: more than 30 s, which TCP assumes
/// as the lifetime of a segment on real networks.
const STRAGGLER_LIFETIME: Duration = Duration::from_mins(1);

/// The end of a wait while there is no connection.
enum Waited<T> {
    Done(T),
    /// The application asks for another connection.
    Again,
    /// The client is to end.
    Ending,
}

/// The end of a connection, or of an attempt to connect.
enum Outcome {
    /// Another address' link was ready while its handshake was under way.
    Overtaken(Winner),
    /// The connection, or the attempt, was lost; with the time that it was connected, if it was.
    Lost(Error, Option<Duration>),
    /// The client ends.
    Finished,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, settings: Settings, fail_fast: bool) -> Self {
        Self {
            streams: Streams::new(shared.clone(), settings.manual_ack),
            requests: Requests::new(settings.subscription_ids),
            reconnect_asked: false,
            networks: Networks::new(settings.fallback_memory),
            straggler_until: None,
            shared,
            settings,
            session: Session::new(),
            fail_fast,
            connected_before: false,
            connection: 0,
            pending: VecDeque::new(),
            in_flight: HashMap::new(),
            resent: None,
            last_handed: 0,
            end_at: None,
            unwritten: 0,
            ended: Error::Closed,
        }
    }

    pub(crate) async fn run(mut self) {
        self.ended = self.run_until_end().await;
    }

    async fn run_until_end(&mut self) -> Error {
        let mut backoff = Backoff::new(self.settings.reconnect);
        loop {
            // What begins here is another connection.
            self.reconnect_asked = false;
            let (error, lasted) = match self.one_connection().await {
                Outcome::Finished => return self.farewell(),
                Outcome::Lost(error, lasted) => (error, lasted),
                // `one_connection` goes on with the winner.
                Outcome::Overtaken(_) => (Error::NotConnected, None),
            };
            tracing::debug!(address = %self.settings.addresses[0], %error, "connection lost");
            let change = |status: &mut Status| {
                let was_connected = matches!(status, Status::Connected(_));
                *status = Status::Connecting;
                was_connected
            };
            let why = error.clone();
            self.shared.change(change, &Event::Disconnected { why });
            if let Some(lasted) = lasted {
                self.fail_fast = false;
                backoff.connected(lasted);
            }
            if self.reconnect_asked {
                continue;
            }
            if self.fail_fast || !(error.is_temporary() || self.is_straggler(&error)) {
                return error;
            }
            let Some((attempt, after)) = backoff.next() else {
                return error;
            };
            self.shared.tell(&Event::Reconnecting { attempt, after });
            match self.wait(tokio::time::sleep(after)).await {
                Waited::Done(()) | Waited::Again => {}
                Waited::Ending => return self.farewell(),
            }
        }
    }

    /// Connects and drives one connection to its end.
    ///
    /// With several addresses and early data the first link *leads*: CONNECT, and what may be early
    /// behind it, leaves as its early data while the race goes on. The first complete handshake decides
    /// the race. If another link wins, the driver drops the leader, ignores whatever the server made of
    /// its early data, and sends CONNECT again. The leader's packets may still arrive late, even after
    /// the winner's: the server then gives the session to a dead link. Three rules keep that from doing
    /// harm:
    ///
    /// - a CONNECT that begins an empty session is never early data in a race;
    /// - a QoS 2 message is never early data, as the server could take it for a new one;
    /// - the driver answers a take-over within [`STRAGGLER_LIFETIME`] by connecting again.
    async fn one_connection(&mut self) -> Outcome {
        let dialled_at = now();
        let mut race = match self.start_race().await {
            Waited::Done(race) => Some(race),
            Waited::Again => return Outcome::Lost(Error::ReconnectAsked, None),
            Waited::Ending => return Outcome::Finished,
        };
        let mut next = None;
        loop {
            let winner = match (next.take(), &mut race) {
                (Some(winner), _) => winner,
                (None, Some(racing)) => match self.wait(racing.next()).await {
                    Waited::Ending => return Outcome::Finished,
                    Waited::Again => return Outcome::Lost(Error::ReconnectAsked, None),
                    Waited::Done(Err(failures)) => {
                        return Outcome::Lost(Error::unreached(failures), None);
                    }
                    Waited::Done(Ok(winner)) => winner,
                },
                (None, None) => return Outcome::Lost(Error::NotConnected, None),
            };
            if self.settings.addresses.len() == 1 {
                race = None;
            } else if winner.link.handshake() != HandshakeKind::Pending {
                self.won(winner.index, &winner.link.info());
                race = None;
            }
            self.connection += 1;
            let outcome = self.drive(winner, dialled_at, &mut race).await;
            match (outcome, &mut race) {
                (Outcome::Overtaken(winner), _) => {
                    tracing::debug!("early data overtaken by a connection to another address");
                    next = Some(winner);
                }
                (Outcome::Lost(error, None), Some(race)) if !self.reconnect_asked => {
                    race.leader_failed(error);
                }
                (outcome, _) => {
                    if let Outcome::Lost(_, None) = outcome {
                        self.straggler_until = Some(now() + STRAGGLER_LIFETIME);
                    }
                    return outcome;
                }
            }
            self.straggler_until = Some(now() + STRAGGLER_LIFETIME);
        }
    }

    async fn start_race(&mut self) -> Waited<Race<Error>> {
        let settings = &self.settings;
        let (addresses, connector) = (settings.addresses.clone(), settings.connector.clone());
        let head_start = settings.head_start;
        let dial = Dial {
            timeout: Some(settings.connect_timeout),
            without_early_data: addresses.len() > 1 && self.starts_clean(),
            quic_keep_alive: connector.options().quic.keep_alive_below_idle(),
        };
        let remembered = self.networks.remembered(now());
        let order = race::order(remembered, connector.clone(), addresses.clone(), head_start);
        let order = match self.wait(order).await {
            Waited::Done(order) => order,
            Waited::Again => return Waited::Again,
            Waited::Ending => return Waited::Ending,
        };
        Waited::Done(Race::new(connector, addresses, order, head_start, dial))
    }

    /// Returns `true` if the next CONNECT begins with an empty session.
    fn starts_clean(&self) -> bool {
        let connect = &self.settings.config.connect;
        // An earlier connection of a 5.0 client began the session, which goes on.
        connect.clean_start && !(self.connected_before && connect.version >= Version::V5)
    }

    /// Remembers the address that has won the race.
    fn won(&mut self, index: usize, link: &LinkInfo) {
        let local = link.local_address.map(|local| local.ip());
        self.networks.won(index, local, now());
    }

    /// Returns `true` if `error` says that a CONNECT of this client took the session over: over a link that lost its
    /// race, or that was given up before CONNACK.
    fn is_straggler(&self, error: &Error) -> bool {
        let taken_over = matches!(error, Error::Ended(CloseReason::ByPeer(disconnect))
            if disconnect.reason == ReasonCode::SessionTakenOver);
        taken_over && self.straggler_until.is_some_and(|until| now() < until)
    }

    /// Waits for `future` while there is no connection, unless the application wants something else first.
    async fn wait<T>(&mut self, future: impl Future<Output = T>) -> Waited<T> {
        tokio::pin!(future);
        loop {
            // Tickets belong to an earlier connection, and there are no statistics.
            drop(self.take_control());
            let end_at = self.end_at;
            if end_at.is_some_and(|at| at <= now() || self.is_drained()) {
                return Waited::Ending;
            }
            if self.reconnect_asked {
                return Waited::Again;
            }
            let shared = self.shared.clone();
            tokio::select! {
                biased;
                output = &mut future => return Waited::Done(output),
                () = shared.queue.woken() => {}
                () = sleep_until(end_at), if end_at.is_some() => {}
            }
        }
    }

    /// Takes the requests of the handles; returns those that need a connection.
    fn take_control(&mut self) -> (Vec<ManualAck>, Vec<oneshot::Sender<LinkStats>>) {
        let control = self.shared.queue.take_control();
        self.requests.add(control.requests, &mut self.streams);
        for id in control.dropped {
            self.requests.stream_dropped(id, &mut self.streams);
        }
        self.reconnect_asked |= control.reconnect;
        if let Some(within) = control.end {
            self.end_at.get_or_insert(now() + within);
        }
        (control.acks, control.stats)
    }

    /// Returns `true` if all queued messages were sent and acknowledged.
    fn is_drained(&self) -> bool {
        self.in_flight.is_empty() && self.pending.is_empty() && self.shared.queue.len() == 0
    }

    /// Returns the error of a client that has ended in order.
    fn farewell(&self) -> Error {
        let unsent = self.shared.queue.len() + self.unwritten;
        let unacknowledged = self.in_flight.len();
        if unsent + unacknowledged == 0 {
            return Error::Closed;
        }
        Error::Undelivered {
            unsent,
            unacknowledged,
        }
    }

    /// Completes a QoS 1 or 2 message.
    fn acked(&mut self, id: PacketId, reason: ReasonCode) {
        if let Some(Some(cell)) = self.in_flight.remove(&id) {
            let _ = cell.set(Ok(reason));
        }
        if let Some((left, carried)) = &mut self.resent
            && carried.remove(&id)
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.released_are_complete();
            }
        }
    }

    /// Handles the loss of the session by the server, after which `resent` messages were sent again. The other messages
    /// in flight were QoS 2 messages that the server had already taken. They are complete, but only the
    /// acknowledgements of the resent ones show which they are.
    fn session_lost(&mut self, resent: usize) {
        tracing::info!(resent, "session lost by server");
        self.resent = Some((resent, self.in_flight.keys().copied().collect()));
        if resent == 0 {
            self.released_are_complete();
        }
    }

    fn released_are_complete(&mut self) {
        let Some((_, released)) = self.resent.take() else {
            return;
        };
        for id in released {
            if let Some(Some(cell)) = self.in_flight.remove(&id) {
                let _ = cell.set(Ok(ReasonCode::Success));
            }
        }
    }
}

/// Ends all that waits for the driver when it is dropped, however its task ends: receipts, requests, and the streams of
/// messages and events.
impl Drop for Driver {
    fn drop(&mut self) {
        let error = self.ended.clone();
        let (waiting, control) = self.shared.queue.close(error.clone());
        let cells = self
            .pending
            .drain(..)
            .chain(waiting)
            .filter_map(|queued| queued.cell);
        let in_flight = self.in_flight.drain().filter_map(|(_, cell)| cell);
        for cell in cells.chain(in_flight) {
            let _ = cell.set(Err(error.clone()));
        }
        self.requests.add(control.requests, &mut self.streams);
        self.requests.fail_all(&error);
        self.streams.end_all(&error);
        if let Some(inbox) = lock(&self.shared.catch_all).take() {
            inbox.end();
        }
        self.shared.status.send_replace(Status::Ended(error));
        self.shared.written.changed.notify_waiters();
        self.shared.end_events();
    }
}

async fn sleep_until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at.into()).await;
    }
}
