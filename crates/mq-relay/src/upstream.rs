//! Connections to the upstream broker.

use std::{
    future::poll_fn,
    sync::{Mutex, MutexGuard, PoisonError},
    task::Poll,
    time::{Duration, Instant},
};

use mq_transport::{
    Connector, Dial, Error, HandshakeKind, LaneId, Link, Outbox, Progress,
    race::{self, Networks, Race, Winner},
};
use tokio::sync::Semaphore;

use crate::{RelayOptions, first_packet::FirstPacket};

/// Least and greatest pause after a failure before the next connection is tried.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The upstream broker: how to reach it, and whether it could be reached the last time.
#[derive(Debug)]
pub(crate) struct Upstream {
    connector: Connector,
    options: RelayOptions,
    networks: Mutex<Networks>,
    reach: Mutex<Reach>,
    dials: Semaphore,
}

/// Outcome of the last attempts to reach the broker.
#[derive(Debug, Default)]
struct Reach {
    /// Pause after the last failure; `None` if the last attempt succeeded.
    pause: Option<Duration>,
    /// Time until which no client's connection is tried.
    until: Option<Instant>,
    /// Time at which the pause grew: attempts that were under way together are one failure.
    grown_at: Option<Instant>,
}

/// A link to the broker, with what waits to be written to it.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) link: Link,
    pub(crate) outbox: Outbox,
    /// `true` if it is not the first address.
    pub(crate) is_fallback: bool,
}

/// Reasons for which the broker is not reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreached {
    /// Each address with its error.
    #[error("{0}")]
    Failed(String),
    /// An attempt has failed a moment ago.
    #[error("it could not be reached a moment ago, and is tried again in {0:?}")]
    Paused(Duration),
    /// No address was reached within the connect timeout.
    #[error("no connection in time")]
    TooLate,
}

impl Upstream {
    pub(crate) fn new(options: RelayOptions) -> Result<Self, Error> {
        Ok(Self {
            connector: Connector::new(options.back())?,
            networks: Mutex::new(Networks::new(options.fallback_memory)),
            reach: Mutex::default(),
            dials: Semaphore::new(options.dials.get()),
            options,
        })
    }

    /// Connects for one client, and sends its CONNECT, as early data where that is possible. The caller bounds the time.
    pub(crate) async fn connect(&self, first: &FirstPacket) -> Result<Connected, Unreached> {
        let _dial = self.dials.acquire().await;
        // Once, as the check lets one client try after a pause; and now, as others may have failed while this one waited.
        self.reach().check(now())?;
        let connected = self.race(first).await;
        match &connected {
            Ok(_) => *self.reach() = Reach::default(),
            Err(_) => self.failed(),
        }
        connected
    }

    /// Records that the broker was not reached. Clients are then refused without an attempt for a pause, which grows with each failure.
    pub(crate) fn failed(&self) {
        self.reach().failed(now());
    }

    async fn race(&self, first: &FirstPacket) -> Result<Connected, Unreached> {
        let addresses = &self.options.upstream;
        let order = {
            let remembered = lock(&self.networks).remembered(now());
            let order = race::order(remembered, self.connector.clone(), addresses.clone());
            // A slow name server must not cost more than a wrong guess.
            let order = tokio::time::timeout(self.options.head_start, order).await;
            order.unwrap_or_else(|_| (0..addresses.len()).collect())
        };
        let dial = Dial {
            // A client that begins an empty session has it emptied once more by a copy that comes late.
            without_early_data: addresses.len() > 1 && first.clean_start,
            quic_keep_alive: self.connector.options().quic.keep_alive_below_idle(),
            ..Dial::default()
        };
        let mut race = Race::<Error>::new(
            self.connector.clone(),
            addresses.clone(),
            order,
            self.options.head_start,
            dial,
        );
        let mut winner = race.next().await.map_err(Unreached::of)?;
        loop {
            let mut outbox = Outbox::new();
            outbox.put_body(LaneId::CONTROL, &first.bytes);
            let is_decided =
                addresses.len() == 1 || winner.link.handshake() != HandshakeKind::Pending;
            if is_decided || self.leads(&mut winner, &mut outbox, &mut race).await? {
                let local = winner.link.info().local_address;
                lock(&self.networks).won(winner.index, local.map(|local| local.ip()), now());
                return Ok(Connected {
                    link: winner.link,
                    outbox,
                    is_fallback: winner.index > 0,
                });
            }
        }
    }

    /// Drives the link of the first address, whose handshake is under way, while the others are tried beside it. Returns `true` if
    /// it has won; otherwise `leader` is another link, to which nothing was sent yet.
    async fn leads(
        &self,
        leader: &mut Winner,
        outbox: &mut Outbox,
        race: &mut Race<Error>,
    ) -> Result<bool, Unreached> {
        enum Step {
            Won,
            Lost(Error),
            Overtaken(Winner),
        }
        let step = poll_fn(|cx| {
            loop {
                match leader.link.poll_progress_or_handshake(cx, outbox, true) {
                    Poll::Ready(Some(Ok(Progress::Flushed))) => {}
                    Poll::Ready(Some(Ok(Progress::Closed))) => {
                        return Poll::Ready(Step::Lost(Error::Closed));
                    }
                    Poll::Ready(Some(Ok(_)) | None) => return Poll::Ready(Step::Won),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Step::Lost(error)),
                    Poll::Pending => break,
                }
            }
            match race.poll_next(cx) {
                Poll::Ready(Ok(winner)) => Poll::Ready(Step::Overtaken(winner)),
                Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
            }
        });
        match step.await {
            Step::Won => return Ok(true),
            Step::Lost(error) => {
                race.leader_failed(error);
                *leader = race.next().await.map_err(Unreached::of)?;
            }
            Step::Overtaken(winner) => *leader = winner,
        }
        Ok(false)
    }

    fn reach(&self) -> MutexGuard<'_, Reach> {
        lock(&self.reach)
    }
}

impl Reach {
    /// Checks that a connection may be tried now. After a pause one client tries it, and the others wait for what comes of that.
    fn check(&mut self, now: Instant) -> Result<(), Unreached> {
        match (self.until, self.pause) {
            (Some(until), _) if now < until => Err(Unreached::Paused(until - now)),
            (Some(_), Some(pause)) => {
                self.until = Some(now + pause);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn failed(&mut self, now: Instant) {
        let (least, greatest) = PAUSES;
        let pause = match (self.pause, self.grown_at) {
            (Some(pause), Some(grown_at)) if now < grown_at + pause / 2 => pause,
            (pause, _) => {
                self.grown_at = Some(now);
                pause.map_or(least, |pause| (pause * 2).min(greatest))
            }
        };
        self.pause = Some(pause);
        // Clients that were refused together do not come back together.
        self.until = Some(now + pause.mul_f64(0.5 + fastrand::f64() / 2.0));
    }
}

impl Unreached {
    fn of(failures: race::Failures<Error>) -> Self {
        let failures = failures.into_iter();
        let failures: Vec<_> = failures
            .map(|(address, error)| format!("{address}: {error}"))
            .collect();
        Self::Failed(failures.join("; "))
    }
}

/// Reads tokio's clock, so that tests can pause it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_fail_together_are_one_failure() {
        let mut reach = Reach::default();
        let now = Instant::now();
        for _ in 0..64 {
            reach.failed(now);
        }
        assert_eq!(reach.pause, Some(PAUSES.0));
    }

    #[test]
    fn one_client_tries_after_each_pause_which_grows_to_five_seconds() {
        let mut reach = Reach::default();
        let mut now = Instant::now();
        assert!(reach.check(now).is_ok() && reach.check(now).is_ok());
        for _ in 0..20 {
            reach.failed(now);
            let pause = reach.pause.unwrap();
            assert!((PAUSES.0..=PAUSES.1).contains(&pause));
            assert!(matches!(reach.check(now), Err(Unreached::Paused(left)) if left <= pause));
            now += pause;
            assert!(reach.check(now).is_ok(), "the one that tries");
            assert!(reach.check(now).is_err(), "another one");
        }
        assert_eq!(reach.pause, Some(PAUSES.1));
    }
}
