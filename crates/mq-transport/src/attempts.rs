//! Attempts to connect to the addresses of one host, side by side (RFC 8305, "Happy Eyeballs").
//!
//! ```text
//! t = 0       1st address ------------------------------+
//! 250 ms      2nd address, or as soon as the 1st fails -+--> the first that connects wins,
//! 500 ms      3rd address, ...                         -+    the others are dropped
//! ```

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use crate::Error;

/// Time that an address has to itself before the next one is tried as well: the recommended value of
/// RFC 8305 §5, above most round trips and below what a user notices.
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to `peers` in their order, each by `attempt`, and returns the connection of the first that is ready.
///
/// An attempt that fails lets the next one begin at once. An error other than [`Error::Unreachable`] and
/// [`Error::TimedOut`] ends all attempts: a server has answered, or this side's options cannot be used.
/// Dropping the future gives all attempts up.
pub(crate) async fn first_to_connect<T, F>(
    peers: Vec<SocketAddr>,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut waiting = peers.into_iter();
    let mut attempts = Attempts {
        running: Vec::new(),
        next_start: Box::pin(tokio::time::sleep(ATTEMPT_DELAY)),
        is_due: true,
        failure: None,
    };
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(ended) = attempts.poll_running(cx) {
                return Poll::Ready(ended);
            }
            if waiting.len() > 0 && attempts.poll_due(cx).is_pending() {
                return Poll::Pending;
            }
            match waiting.next() {
                Some(peer) => attempts.start(attempt(peer)),
                None if attempts.running.is_empty() => {
                    let failure = attempts.failure.take();
                    return Poll::Ready(Err(failure.unwrap_or(Error::TimedOut)));
                }
                None => return Poll::Pending,
            }
        }
    })
    .await
}

struct Attempts<F> {
    running: Vec<Pin<Box<F>>>,
    /// The time at which the next address is tried.
    next_start: Pin<Box<Sleep>>,
    /// `true` if the next address is tried at once, without waiting for `next_start`.
    is_due: bool,
    /// The error of the last attempt that failed.
    failure: Option<Error>,
}

impl<T, F: Future<Output = Result<T, Error>>> Attempts<F> {
    fn start(&mut self, attempt: F) {
        self.running.push(Box::pin(attempt));
        self.is_due = false;
        let at = Instant::now() + ATTEMPT_DELAY;
        self.next_start.as_mut().reset(at);
    }

    fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_due {
            return Poll::Ready(());
        }
        self.next_start.as_mut().poll(cx)
    }

    /// Resolves when an attempt has decided the race. A failure makes the next address due.
    fn poll_running(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        let mut at = 0;
        while at < self.running.len() {
            match self.running[at].as_mut().poll(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(Err(error @ (Error::Unreachable { .. } | Error::TimedOut))) => {
                    drop(self.running.remove(at));
                    self.failure = Some(error);
                    self.is_due = true;
                }
                Poll::Ready(ended) => return Poll::Ready(ended),
            }
        }
        Poll::Pending
    }
}

/// Returns the addresses so that the IP versions alternate, beginning with that of the first (RFC 8305 §4): a host
/// with many addresses of a version that does not get through is reached within one delay.
pub(crate) fn interleaved(peers: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let Some(first) = peers.first().map(SocketAddr::is_ipv4) else {
        return peers;
    };
    let count = peers.len();
    let (same, other): (Vec<_>, Vec<_>) =
        peers.into_iter().partition(|peer| peer.is_ipv4() == first);
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    let mut mixed = Vec::with_capacity(count);
    while mixed.len() < count {
        mixed.extend(same.next());
        mixed.extend(other.next());
    }
    mixed
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, io};

    use super::*;
    use crate::{Address, Scheme};

    fn peer(number: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], number))
    }

    fn unreachable() -> Error {
        Error::Unreachable {
            address: Address::new(Scheme::Tcp, "host", 1883),
            source: io::ErrorKind::ConnectionRefused.into(),
        }
    }

    /// Runs a race in which each address answers after its number of milliseconds, or never; returns the winner and
    /// the start of each attempt in milliseconds.
    async fn race(answers: &[Option<(u64, bool)>]) -> (Result<u16, Error>, Vec<u128>) {
        let begin = Instant::now();
        let starts = RefCell::new(Vec::new());
        let peers = (0..).map(peer).take(answers.len()).collect();
        let winner = first_to_connect(peers, |peer| {
            starts.borrow_mut().push(begin.elapsed().as_millis());
            let answer = answers[usize::from(peer.port())];
            async move {
                let Some((after, succeeds)) = answer else {
                    return std::future::pending().await;
                };
                tokio::time::sleep(Duration::from_millis(after)).await;
                if succeeds {
                    Ok(peer.port())
                } else {
                    Err(unreachable())
                }
            }
        });
        let winner = winner.await;
        (winner, starts.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_delays_the_next_by_a_quarter_of_a_second() {
        let (winner, starts) = race(&[None, None, Some((10, true))]).await;
        assert_eq!((winner.unwrap(), starts), (2, vec![0, 250, 500]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_address_lets_the_next_begin_at_once() {
        let (winner, starts) = race(&[Some((5, false)), Some((1, true))]).await;
        assert_eq!((winner.unwrap(), starts), (1, vec![0, 5]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_that_connects_wins_although_it_began_earlier() {
        let (winner, starts) = race(&[Some((300, true)), Some((100, true))]).await;
        assert_eq!((winner.unwrap(), starts), (0, vec![0, 250]));
    }

    #[tokio::test(start_paused = true)]
    async fn all_addresses_fail_with_an_error() {
        let (winner, starts) = race(&[Some((1, false)), Some((400, false))]).await;
        assert!(matches!(winner, Err(Error::Unreachable { .. })));
        assert_eq!(starts, [0, 1]);
    }

    #[test]
    fn ip_versions_alternate() {
        let v6 = |number| SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], number));
        let peers = vec![v6(1), v6(2), v6(3), peer(4), peer(5)];
        let mixed = interleaved(peers);
        assert_eq!(mixed, [v6(1), peer(4), v6(2), peer(5), v6(3)]);
    }
}
