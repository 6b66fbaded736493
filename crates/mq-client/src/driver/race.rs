//! An attempt to connect, at several addresses (RFC 8305 §5).
//!
//! ```text
//! t = 0           1st address -------------------------------+
//! head start      2nd address, unless the 1st is there ------+--> first whose handshake is complete
//! 2 head starts   3rd address, unless one is there ----------+    wins, the others are dropped
//! ```
//!
//! An address that fails does not hold up the next: that starts at once. Nothing of MQTT is sent
//! before a handshake is complete, so exactly one CONNECT leaves, with one exception: the first
//! address may take early data. Its link is then handed out at once and *leads* while its handshake
//! is under way; see [`Driver::one_connection`](super::Driver).

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use mq_transport::{Address, Connector, Dial, HandshakeKind, Link, Scheme};
use tokio::time::{Instant, Sleep};

use crate::Error;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A link, and the index of its address.
#[derive(Debug)]
pub(super) struct Winner {
    pub(super) link: Link,
    pub(super) index: usize,
}

pub(super) struct Race {
    connector: Connector,
    addresses: Vec<Address>,
    dial: Dial,
    head_start: Duration,
    /// Addresses that have not started, in order.
    waiting: VecDeque<usize>,
    running: Vec<Running>,
    /// The link of the first address, which was handed out and sends early data. It counts as running
    /// until it fails.
    leader: Option<Leader>,
    /// Timer of the next address's start.
    next_start: Pin<Box<Sleep>>,
    failures: Vec<(Address, Error)>,
}

struct Running {
    index: usize,
    connecting: Boxed<Result<Link, mq_transport::Error>>,
    /// QUIC: resolves when the network reports that UDP does not get through.
    refused: Option<Boxed<mq_transport::Error>>,
}

struct Leader {
    index: usize,
    refused: Option<Boxed<mq_transport::Error>>,
}

impl Race {
    /// Starts a race of `addresses` in the order of `order`, which is not empty. Only the first may use early data, and
    /// only where `dial` allows it.
    pub(super) fn new(
        connector: Connector,
        addresses: Vec<Address>,
        order: VecDeque<usize>,
        head_start: Duration,
        dial: Dial,
    ) -> Self {
        let mut race = Self {
            connector,
            addresses,
            dial,
            head_start,
            waiting: order,
            running: Vec::new(),
            leader: None,
            next_start: Box::pin(tokio::time::sleep(head_start)),
            failures: Vec::new(),
        };
        race.start_next();
        race.dial.without_early_data = true;
        race
    }

    /// Waits for the next link that is ready, or for the error if there will be none. Cancel-safe.
    ///
    /// Only the first link may have its handshake under way; it is the leader from then on.
    pub(super) async fn next(&mut self) -> Result<Winner, Error> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next link that is ready, as [`next`](Self::next) awaits it. It does not fail while there is a
    /// leader.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Winner, Error>> {
        loop {
            let mut failed = false;
            let mut at = 0;
            while at < self.running.len() {
                match self.running[at].poll(cx) {
                    Poll::Pending => at += 1,
                    Poll::Ready(Ok(link)) => {
                        let Running { index, refused, .. } = self.running.remove(at);
                        if link.handshake() == HandshakeKind::Pending {
                            self.leader = Some(Leader { index, refused });
                        }
                        return Poll::Ready(Ok(Winner { link, index }));
                    }
                    Poll::Ready(Err(error)) => {
                        let Running { index, .. } = self.running.remove(at);
                        self.note_failure(index, error);
                        failed = true;
                    }
                }
            }
            if let Some(leader) = &mut self.leader
                && let Some(refused) = &mut leader.refused
                && let Poll::Ready(error) = refused.as_mut().poll(cx)
            {
                // A forged answer must not end an attempt that may still succeed. It only starts the next.
                tracing::debug!(address = %self.addresses[leader.index], %error, "UDP refused");
                leader.refused = None;
                failed = true;
            }
            if self.waiting.is_empty() {
                if self.running.is_empty() && self.leader.is_none() {
                    return Poll::Ready(Err(self.failure()));
                }
                return Poll::Pending;
            }
            let alone = self.running.is_empty() && self.leader.is_none();
            if !failed && !alone && self.next_start.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.start_next();
        }
    }

    /// Records that the leader's link has failed: the others go on, and the next starts at once.
    pub(super) fn leader_failed(&mut self, error: Error) {
        if let Some(Leader { index, .. }) = self.leader.take() {
            self.note_failure(index, error);
            if !self.waiting.is_empty() {
                self.start_next();
            }
        }
    }

    fn start_next(&mut self) {
        let Some(index) = self.waiting.pop_front() else {
            return;
        };
        let (connector, address) = (self.connector.clone(), self.addresses[index].clone());
        tracing::debug!(%address, "connecting");
        let has_others = self.addresses.len() > 1;
        let refused = (address.scheme == Scheme::Quic && has_others).then(|| {
            let (connector, address) = (connector.clone(), address.clone());
            let asking: Boxed<mq_transport::Error> = Box::pin(async move {
                let source = connector.udp_refused(&address).await;
                mq_transport::Error::Unreachable { address, source }
            });
            asking
        });
        let dial = self.dial;
        self.running.push(Running {
            index,
            connecting: Box::pin(async move { connector.connect_with(&address, dial).await }),
            refused,
        });
        let at = Instant::now() + self.head_start;
        self.next_start.as_mut().reset(at);
    }

    fn note_failure(&mut self, index: usize, error: Error) {
        let address = self.addresses[index].clone();
        tracing::debug!(%address, %error, "connection attempt failed");
        self.failures.push((address, error));
    }

    /// Returns the error of a race that all addresses have lost.
    fn failure(&mut self) -> Error {
        let mut failures = std::mem::take(&mut self.failures);
        match failures.pop() {
            Some((_, error)) if failures.is_empty() => error,
            Some(last) => {
                failures.push(last);
                Error::NoAddress {
                    failures: failures.into(),
                }
            }
            None => Error::NotConnected,
        }
    }
}

impl Running {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Link, Error>> {
        if let Poll::Ready(connected) = self.connecting.as_mut().poll(cx) {
            return Poll::Ready(connected.map_err(Error::from));
        }
        if let Some(refused) = &mut self.refused
            && let Poll::Ready(error) = refused.as_mut().poll(cx)
        {
            return Poll::Ready(Err(error.into()));
        }
        Poll::Pending
    }
}

impl std::fmt::Debug for Race {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Race")
            .field("addresses", &self.addresses)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}
