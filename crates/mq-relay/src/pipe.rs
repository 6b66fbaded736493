//! Two links whose bytes are passed on, each way.

use std::{
    fmt,
    future::poll_fn,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use mq_transport::{EarlyDataPolicy, Error, HandshakeKind, LaneId, Link, Outbox, Progress};
use tokio::time::Instant;

use crate::early::early_len;

/// Bytes for one direction that may wait to be written before the other side is not read any more.
const ROOM: usize = 64 * 1024;

/// Time in which the last bytes of a connection have to be written once its other side has ended.
const LAST_BYTES: Duration = Duration::from_secs(5);

/// Side of a pipe: a link, and the bytes that wait for it.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) link: Link,
    /// Bytes that wait to be written to the link.
    pub(crate) outbox: Outbox,
    /// `true` once bytes from the link were passed on.
    has_sent: bool,
}

/// The way in which a pipe ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The client ended its side, in order or by an error.
    Client(Result<(), Error>),
    /// The broker ended its side, in order or by an error.
    Broker(Result<(), Error>),
    /// The broker did not answer CONNECT in time.
    NoAnswer,
}

/// Text form, such as `the client: the peer reset the connection`.
impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (side, ended) = match self {
            Self::Client(ended) => ("client", ended),
            Self::Broker(ended) => ("broker", ended),
            Self::NoAnswer => return f.write_str("the broker did not answer in time"),
        };
        match ended {
            Ok(()) => write!(f, "the {side} ended the connection"),
            Err(error) => write!(f, "the {side}: {error}"),
        }
    }
}

/// Bytes that were passed on, of all clients.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) to_broker: AtomicU64,
    pub(crate) to_clients: AtomicU64,
}

/// A client and the broker, from the moment at which CONNECT waits for the broker.
#[derive(Debug)]
pub(crate) struct Pipe<'a> {
    pub(crate) client: Side,
    pub(crate) broker: Side,
    /// `true` if the client is polled first the next time.
    pub(crate) is_clients_turn: bool,
    /// Policy of the client's early data.
    pub(crate) front: EarlyDataPolicy,
    /// Policy of the early data to the broker.
    pub(crate) back: EarlyDataPolicy,
    pub(crate) traffic: &'a Traffic,
}

impl Side {
    pub(crate) fn new(link: Link) -> Self {
        Self {
            link,
            outbox: Outbox::new(),
            has_sent: false,
        }
    }

    /// Polls the link: progress, or `None` at the end of its handshake.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        read: bool,
    ) -> Poll<Option<Result<Progress, Error>>> {
        let (link, outbox) = (&mut self.link, &mut self.outbox);
        link.poll_progress_or_handshake(cx, outbox, read)
    }

    /// Writes what waits, and ends the connection in order. Takes a few seconds at most.
    pub(crate) async fn finish(mut self) {
        let writing = self.link.flush(&mut self.outbox);
        // What a slow peer has not taken until then is lost with its connection.
        let _ = tokio::time::timeout(LAST_BYTES, writing).await;
        self.link.close(LAST_BYTES).await;
    }

    /// Resolves once the client has left without a packet behind its CONNECT. Reads no more than may wait for the broker.
    ///
    /// # Errors
    /// If its connection has not ended in order.
    pub(crate) async fn left(&mut self) -> Result<(), Error> {
        let mut has_ended = false;
        poll_fn(|cx| {
            while !has_ended && self.link.received_len() < ROOM {
                match std::task::ready!(self.poll(cx, true)) {
                    Some(Ok(Progress::Closed)) => has_ended = true,
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    Some(Ok(_)) | None => {}
                }
            }
            if has_ended && self.link.received_len() == 0 {
                Poll::Ready(Ok(()))
            } else {
                // Its packets are for the broker, such as a message and DISCONNECT.
                Poll::Pending
            }
        })
        .await
    }
}

impl Pipe<'_> {
    /// Passes bytes on until the broker has answered CONNECT.
    ///
    /// # Errors
    /// If one side ends before, or the answer has not come in time.
    pub(crate) async fn until_answered(&mut self, by: Instant) -> Result<(), End> {
        let answering = async {
            while !self.broker.has_sent {
                self.step().await?;
            }
            Ok(())
        };
        let answered = tokio::time::timeout_at(by, answering).await;
        answered.unwrap_or(Err(End::NoAnswer))
    }

    /// Passes bytes on until one side ends. What waits for the other side then is still to be written.
    pub(crate) async fn until_end(&mut self) -> End {
        loop {
            if let Err(end) = self.step().await {
                return end;
            }
        }
    }

    /// Passes on what the client has sent before it ended, and ends the connection to the broker. What may not be early data waits for
    /// the end of the broker's handshake. A client that has ended its side `in_order` may still read: it gets what the broker
    /// sends until that ends its own side.
    pub(crate) async fn finish_broker(mut self, in_order: bool) {
        let passing = async {
            let mut client_reads = in_order;
            while self.has_more_for_broker() {
                self.step_behind_client(&mut client_reads).await?;
            }
            if client_reads && self.broker.link.end_sending().await? {
                while client_reads {
                    self.step_behind_client(&mut client_reads).await?;
                }
            }
            Ok::<_, Error>(())
        };
        // Whatever the end: nothing more is passed on.
        let _ = tokio::time::timeout(LAST_BYTES, passing).await;
        if in_order {
            tokio::join!(self.client.finish(), self.broker.finish());
        } else {
            drop(self.client);
            self.broker.finish().await;
        }
    }

    /// Returns `true` if something that the client has sent was not written to the broker.
    fn has_more_for_broker(&self) -> bool {
        let client = &self.client.link;
        !self.broker.outbox.is_empty() || client.received_len() > 0 && !client.is_early()
    }

    /// Makes some progress with the broker once the client has ended its side. The broker is read as well, whose answers it
    /// may have to write before it reads on; they are dropped where the client does not read.
    ///
    /// # Errors
    /// If the broker has ended.
    async fn step_behind_client(&mut self, client_reads: &mut bool) -> Result<(), Error> {
        if !*client_reads {
            self.client.outbox.clear();
        }
        let progress = poll_fn(|cx| {
            let wants_more = self.client.outbox.len() < ROOM;
            if let progress @ Poll::Ready(_) = self.broker.poll(cx, wants_more) {
                return progress;
            }
            if self.client.outbox.is_empty() {
                return Poll::Pending;
            }
            self.client.poll(cx, false).map(|written| {
                *client_reads &= matches!(written, None | Some(Ok(Progress::Flushed)));
                None
            })
        });
        match progress.await {
            Some(Ok(Progress::Closed)) => Err(Error::Closed),
            Some(Err(error)) => Err(error),
            Some(Ok(_)) | None => {
                self.pass_on();
                Ok(())
            }
        }
    }

    /// Makes some progress on either side, and passes on what has come.
    ///
    /// # Errors
    /// If a side has ended. What waits for the other side then is still to be written.
    async fn step(&mut self) -> Result<(), End> {
        self.pass_on();
        let (is_client, progress) = poll_fn(|cx| {
            // The two take turns, so that one that always has bytes does not keep the other waiting.
            self.is_clients_turn = !self.is_clients_turn;
            for client in [self.is_clients_turn, !self.is_clients_turn] {
                if let Poll::Ready(progress) = self.poll(cx, client) {
                    return Poll::Ready((client, progress));
                }
            }
            Poll::Pending
        })
        .await;
        self.pass_on();
        let ended = match progress {
            Some(Ok(Progress::Closed)) => Ok(()),
            Some(Err(error)) => Err(error),
            Some(Ok(_)) | None => return Ok(()),
        };
        Err(if is_client {
            End::Client(ended)
        } else {
            End::Broker(ended)
        })
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: bool,
    ) -> Poll<Option<Result<Progress, Error>>> {
        if client {
            let waiting = self.broker.outbox.len() + self.client.link.received_len();
            self.client.poll(cx, waiting < ROOM)
        } else {
            let waiting = self.client.outbox.len();
            self.broker.poll(cx, waiting < ROOM)
        }
    }

    /// Moves what was received on each side into the other's outbox, as far as it may be sent now.
    fn pass_on(&mut self) {
        let is_pending = self.broker.link.handshake() == HandshakeKind::Pending;
        let policies = [
            self.client.link.is_early().then_some(self.front),
            is_pending.then_some(self.back),
        ];
        // The stricter one holds.
        let policy = policies.into_iter().flatten();
        let policy = policy.min_by_key(|policy| *policy == EarlyDataPolicy::Full);
        let Traffic {
            to_broker,
            to_clients,
        } = self.traffic;
        pass(&mut self.client, &mut self.broker, policy, to_broker);
        pass(&mut self.broker, &mut self.client, None, to_clients);
    }
}

/// Moves bytes from one side to the other, and counts them: all, or as much as may be early data.
fn pass(from: &mut Side, to: &mut Side, early: Option<EarlyDataPolicy>, counter: &AtomicU64) {
    if from.link.received_len() == 0 {
        return;
    }
    let received = from.link.received(LaneId::CONTROL);
    let count = early.map_or(received.len(), |policy| early_len(received, policy));
    if count > 0 {
        let bytes = received.split_to(count).freeze();
        from.has_sent = true;
        counter.fetch_add(count as u64, Ordering::Relaxed);
        to.outbox.put_body(LaneId::CONTROL, &bytes);
    }
}
