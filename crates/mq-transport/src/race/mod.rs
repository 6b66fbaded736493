//! An attempt to connect, at several addresses (RFC 8305 §5), and the memory of which of them has won.
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
//! is under way: the owner writes to it, and goes on to [poll the race](Race::poll_next).

use std::{
    collections::VecDeque,
    fmt::{self, Debug, Display, Formatter},
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use crate::{Address, Connector, Dial, Error, HandshakeKind, Link, Scheme};

mod networks;

pub use networks::{Networks, Remembered, order};

/// Longest head start and longest memory of a network: about 30 years, which every system's clock can add to the
/// present. Longer ones count as this.
const LONGEST: Duration = Duration::from_hours(30 * 365 * 24);

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A link that a race has made.
#[derive(Debug)]
pub struct Winner {
    /// The link; only that of the first address may have its handshake under way.
    pub link: Link,
    /// Index of the link's address in the race's list.
    pub index: usize,
}

/// The addresses that a race could not reach, each with its error, in the order of the failures.
pub type Failures<E> = Vec<(Address, E)>;

/// Joins failures into one line, such as `quic://a: no answer within 3s; mqtts://a: connection refused`.
#[must_use]
pub fn one_line<E: Display>(failures: &[(Address, E)]) -> String {
    let each = failures
        .iter()
        .map(|(address, error)| format!("{address}: {error}"));
    each.collect::<Vec<_>>().join("; ")
}

/// Attempts to connect to one server at several addresses, of which the first complete handshake wins.
///
/// `E` is the owner's error, with which [a leader](Self::leader_failed) fails.
pub struct Race<E> {
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
    failures: Failures<E>,
}

struct Running {
    index: usize,
    connecting: Boxed<Result<Link, Error>>,
    /// QUIC: resolves when the network reports that UDP does not get through.
    refused: Option<Boxed<Error>>,
}

struct Leader {
    index: usize,
    refused: Option<Boxed<Error>>,
}

impl<E: From<Error> + Display> Race<E> {
    /// Starts a race of `addresses` in the order of `order`, which has indices of `addresses` and is not empty. An address
    /// has `head_start` before the next is tried as well, 30 years at most. Only the first may use early data, and only where
    /// `dial` allows it.
    #[must_use]
    pub fn new(
        connector: Connector,
        addresses: Vec<Address>,
        order: VecDeque<usize>,
        head_start: Duration,
        dial: Dial,
    ) -> Self {
        let head_start = head_start.min(LONGEST);
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

    /// Waits for the next link that is ready. Cancel-safe.
    ///
    /// Only the first link may have its handshake under way; it is the leader from then on.
    ///
    /// # Errors
    /// All attempts have failed; each address's error.
    pub async fn next(&mut self) -> Result<Winner, Failures<E>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next link that is ready, as [`next`](Self::next) awaits it. It does not fail while there is a
    /// leader.
    ///
    /// # Errors
    /// All attempts have failed; each address's error.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Winner, Failures<E>>> {
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
                        self.note_failure(index, error.into());
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
                    return Poll::Ready(Err(std::mem::take(&mut self.failures)));
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
    pub fn leader_failed(&mut self, error: E) {
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
            let asking: Boxed<Error> = Box::pin(async move {
                let source = connector.udp_refused(&address).await;
                Error::Unreachable { address, source }
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

    fn note_failure(&mut self, index: usize, error: E) {
        let address = self.addresses[index].clone();
        tracing::debug!(%address, %error, "connection attempt failed");
        self.failures.push((address, error));
    }
}

impl Running {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Link, Error>> {
        if let Poll::Ready(connected) = self.connecting.as_mut().poll(cx) {
            return Poll::Ready(connected);
        }
        if let Some(refused) = &mut self.refused
            && let Poll::Ready(error) = refused.as_mut().poll(cx)
        {
            return Poll::Ready(Err(error));
        }
        Poll::Pending
    }
}

impl<E> Debug for Race<E> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Race")
            .field("addresses", &self.addresses)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConnectOptions;

    #[tokio::test]
    async fn a_head_start_without_limit_counts_as_thirty_years() {
        let connector = Connector::new(ConnectOptions::default()).unwrap();
        let addresses = ["mem://nobody_a", "mem://nobody_b"].map(|url| url.parse().unwrap());
        let order = VecDeque::from([0, 1]);
        let dial = Dial::default();
        let mut race: Race<Error> =
            Race::new(connector, addresses.to_vec(), order, Duration::MAX, dial);
        // An address that fails does not hold up the next.
        assert_eq!(race.next().await.unwrap_err().len(), 2);
    }
}
