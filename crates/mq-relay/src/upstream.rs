//! Connections to the upstream broker.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard},
    task::Poll,
    time::{Duration, Instant},
};

use mq_transport::{
    Address, Connector, Dial, Error, HandshakeKind, LaneId, Link, LinkInfo, Progress, ProxyHeader,
    race::{self, Networks, Race, Winner},
};
use tokio::sync::Semaphore;

use crate::{RelayOptions, clock::now, first_packet::FirstPacket, lock::lock, pipe::Side};

/// Least and greatest pause after a failure before the next connection is tried.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The upstream broker: how to reach it, and whether it could be reached the last time.
#[derive(Debug)]
pub(crate) struct Upstream {
    connector: Connector,
    options: Arc<RelayOptions>,
    networks: Mutex<Networks>,
    reach: Mutex<Reach>,
    /// Permits for connections that are being made.
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
    /// Time of the last success.
    reached_at: Option<Instant>,
}

/// A connection to the broker, with the CONNECT that waits to be written to it.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) broker: Side,
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
    /// Other clients' connections were being made for that long.
    #[error("too many others are being connected")]
    NoTurn,
}

impl Upstream {
    pub(crate) fn new(options: Arc<RelayOptions>) -> Result<Self, Error> {
        Ok(Self {
            connector: Connector::new(options.back())?,
            networks: Mutex::new(Networks::new(options.fallback_memory)),
            reach: Mutex::default(),
            dials: Semaphore::new(options.dials.get()),
            options,
        })
    }

    /// Returns the connector for a client, with its PROXY header if the broker is sent one.
    pub(crate) fn connector_for(&self, client: &Link) -> Connector {
        match self.options.proxy_protocol {
            Some(version) => {
                let header = proxy_header(&client.info());
                self.connector.with_proxy_header(&header, version)
            }
            None => self.connector.clone(),
        }
    }

    /// Connects for one client, and sends its CONNECT, as early data where that is possible.
    pub(crate) async fn connect(
        &self,
        first: &FirstPacket,
        connector: Connector,
        by: tokio::time::Instant,
    ) -> Result<Connected, Unreached> {
        // A client that waits too long for its turn says nothing of the broker.
        let dial = tokio::time::timeout_at(by, self.dials.acquire()).await;
        let _dial = dial.map_err(|_| Unreached::NoTurn)?;
        // Once, as the check lets one client try after a pause; and now, as others may have failed while this one waited.
        let began = now();
        self.reach().check(began)?;
        let left = by.saturating_duration_since(tokio::time::Instant::now());
        let connected = tokio::time::timeout_at(by, self.race(first, connector)).await;
        let connected = connected.unwrap_or(Err(Unreached::TooLate));
        match &connected {
            // Behind early data nobody may be there: the answer says so.
            Ok(connected) if connected.broker.link.handshake() == HandshakeKind::Pending => {}
            Ok(_) => self.reached(),
            // Nor does a client whose turn left it too little time.
            Err(Unreached::TooLate) if left < self.options.answer_time() / 2 => {}
            Err(_) => self.failed(began),
        }
        connected
    }

    /// Records that the broker was reached: clients are tried without a pause.
    pub(crate) fn reached(&self) {
        self.reach().reached(now());
    }

    /// Records that the broker was not reached by an attempt that began then. Clients are then refused without an attempt for a pause, which
    /// grows with each failure, unless another attempt has succeeded meanwhile.
    pub(crate) fn failed(&self, began: Instant) {
        self.reach().failed(began, now());
    }

    async fn race(
        &self,
        first: &FirstPacket,
        connector: Connector,
    ) -> Result<Connected, Unreached> {
        let addresses = &self.options.upstream;
        let head_start = self.options.head_start;
        let remembered = lock(&self.networks).remembered(now());
        let order = race::order(remembered, connector.clone(), addresses.clone(), head_start).await;
        let dial = Dial {
            // A client that begins an empty session has it emptied once more by a copy that comes late.
            without_early_data: addresses.len() > 1 && first.clean_start,
            ..Dial::default()
        };
        let mut race = Race::new(connector, addresses.clone(), order, head_start, dial);
        let mut winner = race
            .next()
            .await
            .map_err(|failures| Unreached::of(&failures))?;
        loop {
            let Winner { link, index } = winner;
            let mut broker = Side::new(link);
            broker.outbox.put_body(LaneId::CONTROL, &first.bytes);
            let is_decided =
                addresses.len() == 1 || broker.link.handshake() != HandshakeKind::Pending;
            let overtaken = if is_decided {
                None
            } else {
                lead(&mut broker, &mut race).await?
            };
            let Some(other) = overtaken else {
                let local = broker.link.info().local_address;
                lock(&self.networks).won(index, local.map(|local| local.ip()), now());
                return Ok(Connected {
                    broker,
                    is_fallback: index > 0,
                });
            };
            winner = other;
        }
    }

    fn reach(&self) -> MutexGuard<'_, Reach> {
        lock(&self.reach)
    }
}

/// Drives the link of the first address, whose handshake is under way, while the others are tried beside it. Returns the link that
/// has won in its place, to which nothing was sent yet; `None` if it has won itself.
async fn lead(leader: &mut Side, race: &mut Race<Error>) -> Result<Option<Winner>, Unreached> {
    enum Step {
        Won,
        Lost(Error),
        Overtaken(Winner),
    }
    let step = poll_fn(|cx| {
        loop {
            match leader.poll(cx, true) {
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
        Step::Won => Ok(None),
        Step::Lost(error) => {
            race.leader_failed(error);
            race.next()
                .await
                .map(Some)
                .map_err(|failures| Unreached::of(&failures))
        }
        Step::Overtaken(winner) => Ok(Some(winner)),
    }
}

/// Returns the header that tells the broker which client a connection is for.
fn proxy_header(client: &LinkInfo) -> ProxyHeader {
    let header = ProxyHeader::of(client);
    #[cfg(feature = "tls")]
    if let Some(name) = client.peer_certificates.first().and_then(common_name) {
        return header.with_common_name(name);
    }
    header
}

/// Returns the common name of a certificate, if it has exactly one.
#[cfg(feature = "tls")]
fn common_name(certificate: &mq_transport::Certificate) -> Option<String> {
    use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

    let (_, certificate) = X509Certificate::from_der(certificate.der()).ok()?;
    let mut names = certificate.subject().iter_common_name();
    match (names.next(), names.next()) {
        (Some(name), None) => Some(name.as_str().ok()?.to_owned()),
        _ => None,
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

    fn reached(&mut self, now: Instant) {
        *self = Self {
            reached_at: Some(now),
            ..Self::default()
        };
    }

    fn failed(&mut self, began: Instant, now: Instant) {
        // A broker that has ended leaves attempts without an answer, which time out long after it was started again.
        if self.reached_at.is_some_and(|at| at > began) {
            return;
        }
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
    fn of(failures: &[(Address, Error)]) -> Self {
        Self::Failed(race::one_line(failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_fail_together_are_one_failure() {
        let mut reach = Reach::default();
        let now = Instant::now();
        for _ in 0..64 {
            reach.failed(now, now);
        }
        assert_eq!(reach.pause, Some(PAUSES.0));
    }

    #[test]
    fn an_attempt_from_before_a_success_keeps_nobody_out() {
        let mut reach = Reach::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        reach.failed(began, at(1));
        reach.reached(at(5));
        reach.failed(began, at(20));
        assert!(reach.check(at(20)).is_ok());
        reach.failed(at(6), at(26));
        assert!(reach.check(at(26)).is_err(), "the broker has gone again");
    }

    #[test]
    fn one_client_tries_after_each_pause_which_grows_to_five_seconds() {
        let mut reach = Reach::default();
        let mut now = Instant::now();
        assert!(reach.check(now).is_ok() && reach.check(now).is_ok());
        for _ in 0..20 {
            reach.failed(now, now);
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
