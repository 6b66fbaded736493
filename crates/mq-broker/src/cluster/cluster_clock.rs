//! The time of a cluster: the clock of all times that one node writes and another one reads.
//!
//! The wall clocks of nodes may be hours apart, and step. So the time is that of the servers: a node measures it again
//! and again, and counts on by its monotonic clock in between. What its own wall clock shows changes nothing.
//!
//! A server's clock may be wrong as well. The time is the one on which most of the servers agree, within
//! [`MAX_DIFFERENCE`]. While there is none, the node goes on with the last one, is not ready for clients, and leaves
//! sessions alone that another node's record says are over.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::engine::{Engine, ServerTime};
use crate::{clock, lock::lock};

/// Clocks that differ by no more than this agree. The time of an answer is known to half a second.
const MAX_DIFFERENCE: Duration = Duration::from_secs(5);

/// Interval between two measurements.
const MEASUREMENT_INTERVAL: Duration = Duration::from_secs(10);

/// Interval between two measurements while the time is not known.
const UNKNOWN_TIME_INTERVAL: Duration = Duration::from_secs(1);

/// Time that a measurement may take.
const MEASUREMENT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for which a measurement counts: a monotonic clock drifts by less than a second meanwhile.
const MEASUREMENT_VALIDITY: Duration = Duration::from_mins(10);

/// The wall clock of a node's machine. It may be wrong.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl WallClock {
    /// Makes a clock that shows what `now` returns, such as a wrong one for a test.
    #[must_use]
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new(SystemTime::now)
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WallClock").field(&(self.0)()).finish()
    }
}

/// The cluster's time, as one node knows it.
#[derive(Debug)]
pub(super) struct ClusterClock {
    wall_clock: WallClock,
    state: Mutex<ClockState>,
}

#[derive(Debug)]
struct ClockState {
    /// An instant, and the time then.
    reference: (Instant, SystemTime),
    /// The instant of the last measurement.
    measured_at: Option<Instant>,
    /// The reason for which the time cannot be relied on.
    problem: Option<String>,
    /// `true` once the log says that the wall clock is off.
    is_wall_clock_off: bool,
}

impl ClockState {
    fn was_measured_lately(&self, now: Instant) -> bool {
        let valid = |at| now.saturating_duration_since(at) < MEASUREMENT_VALIDITY;
        self.measured_at.is_some_and(valid)
    }

    fn time_at(&self, instant: Instant) -> SystemTime {
        let (then, time) = self.reference;
        time + instant.saturating_duration_since(then)
    }
}

impl ClusterClock {
    /// Makes a clock that goes on from the time of the wall clock until it is measured.
    pub(super) fn new(wall_clock: WallClock) -> Self {
        let reference = (clock::now(), (wall_clock.0)());
        Self {
            wall_clock,
            state: Mutex::new(ClockState {
                reference,
                measured_at: None,
                problem: None,
                is_wall_clock_off: false,
            }),
        }
    }

    pub(super) fn now(&self) -> SystemTime {
        let state = lock(&self.state);
        state.time_at(clock::now())
    }

    /// Returns the reason for which the time cannot be relied on, if there is one.
    pub(super) fn problem(&self) -> Option<String> {
        lock(&self.state).problem.clone()
    }

    /// Returns `true` if the time can be relied on.
    pub(super) fn is_reliable(&self) -> bool {
        lock(&self.state).problem.is_none()
    }

    /// Returns by how many milliseconds the wall clock is ahead of the cluster's time.
    pub(super) fn wall_clock_offset_ms(&self) -> i64 {
        ahead_ms((self.wall_clock.0)(), self.now())
    }

    /// Measures the time again and again.
    pub(super) async fn keep_measuring(&self, engine: &dyn Engine) {
        loop {
            sleep(if self.is_reliable() {
                MEASUREMENT_INTERVAL
            } else {
                UNKNOWN_TIME_INTERVAL
            })
            .await;
            self.measure(engine).await;
        }
    }

    /// Measures the time once.
    pub(super) async fn measure(&self, engine: &dyn Engine) {
        let times = match timeout(MEASUREMENT_TIMEOUT, engine.server_times()).await {
            Ok(Ok(times)) => Ok(times),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer".to_owned()),
        };
        self.note(times, clock::now());
    }

    fn note(&self, times: Result<Vec<ServerTime>, String>, now: Instant) {
        let mut state = lock(&self.state);
        let problem = match times {
            Ok(times) => match agreed_time(&times, now) {
                Ok(time) => {
                    state.reference = (now, time);
                    state.measured_at = Some(now);
                    None
                }
                Err(differences) => Some(format!("the servers' clocks differ: {differences}")),
            },
            Err(_) if state.was_measured_lately(now) => return,
            Err(error) => Some(format!("the servers' time cannot be measured: {error}")),
        };
        match (&problem, &state.problem) {
            (Some(problem), None) => warn!(
                reason = %problem,
                "cluster: time unknown; sessions that may have expired are not adopted"
            ),
            (None, Some(_)) => info!("cluster: time known again"),
            _ => {}
        }
        state.problem = problem;
        let offset_ms = ahead_ms((self.wall_clock.0)(), state.time_at(now));
        let is_off = u128::from(offset_ms.unsigned_abs()) > MAX_DIFFERENCE.as_millis();
        if core::mem::replace(&mut state.is_wall_clock_off, is_off) != is_off {
            if is_off {
                warn!(
                    offset_ms,
                    "cluster: wall clock differs from the servers' time"
                );
            } else {
                info!("cluster: wall clock agrees with the servers' time again");
            }
        }
    }
}

/// Returns the time at an instant on which most of the servers agree.
///
/// # Errors
/// The differences of their clocks, for the operator.
fn agreed_time(times: &[ServerTime], now: Instant) -> Result<SystemTime, String> {
    let mut times: Vec<_> = times
        .iter()
        .map(|ServerTime { server, time, at }| (*time + now.saturating_duration_since(*at), server))
        .collect();
    times.sort_unstable();
    let Some((middle, _)) = times.get(times.len().saturating_sub(1) / 2).copied() else {
        return Err("none has told its time".to_owned());
    };
    let is_near =
        |time| u128::from(ahead_ms(time, middle).unsigned_abs()) <= MAX_DIFFERENCE.as_millis();
    let near = times.iter().filter(|(time, _)| is_near(*time)).count();
    if near * 2 > times.len() {
        return Ok(middle);
    }
    let (first, _) = times[0];
    let differences = times.iter().map(|(time, server)| {
        let seconds = ahead_ms(*time, first) / 1_000;
        format!("{server} +{seconds} s")
    });
    Err(differences.collect::<Vec<_>>().join(", "))
}

/// Returns by how many milliseconds a time is ahead of another one.
fn ahead_ms(time: SystemTime, other: SystemTime) -> i64 {
    let whole = |difference: Duration| i64::try_from(difference.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(other) {
        Ok(ahead) => whole(ahead),
        Err(behind) => -whole(behind.duration()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600;

    /// Answers at an instant of servers whose clocks are so many seconds ahead of `base`.
    fn answers(base: SystemTime, at: Instant, ahead_s: &[u64]) -> Vec<ServerTime> {
        let times = ahead_s.iter().enumerate();
        let times = times.map(|(n, seconds)| ServerTime {
            server: format!("n{n}"),
            time: base + Duration::from_secs(*seconds),
            at,
        });
        times.collect()
    }

    #[test]
    fn most_of_the_servers_have_to_agree() {
        let (base, now) = (SystemTime::UNIX_EPOCH, Instant::now());
        for (ahead_s, agreed_s) in [
            (&[0][..], Some(0)),
            (&[0, 4], Some(0)),
            (&[0, 6], None),
            (&[0, HOUR, 1], Some(1)),
            (&[HOUR, 0, HOUR], Some(HOUR)),
            (&[0, HOUR, 2 * HOUR], None),
            (&[0, 0, HOUR, HOUR], None),
            (&[HOUR, 0, 0, HOUR, 3], Some(3)),
            (&[], None),
        ] {
            let agreed = agreed_time(&answers(base, now, ahead_s), now);
            let expected = agreed_s.map(|seconds| base + Duration::from_secs(seconds));
            assert_eq!(agreed.ok(), expected, "{ahead_s:?}");
        }
        let differ = agreed_time(&answers(base, now, &[0, HOUR]), now);
        assert_eq!(differ.unwrap_err(), "n0 +0 s, n1 +3600 s");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_goes_on_from_the_last_measurement_and_is_unknown_when_that_is_old() {
        let seconds = Duration::from_secs;
        let clock = ClusterClock::new(WallClock::new(|| SystemTime::UNIX_EPOCH));
        let failed = || Err("no answer".to_owned());
        clock.note(failed(), clock::now());
        let problem = clock.problem().unwrap();
        assert_eq!(problem, "the servers' time cannot be measured: no answer");
        let base = SystemTime::UNIX_EPOCH + seconds(HOUR);
        clock.note(Ok(answers(base, clock::now(), &[0])), clock::now());
        assert!(clock.is_reliable());
        assert_eq!(clock.wall_clock_offset_ms(), -3_600_000);
        sleep(seconds(60)).await;
        assert_eq!(clock.now(), base + seconds(60));
        clock.note(failed(), clock::now());
        assert!(clock.is_reliable(), "the measurement is new");
        clock.note(Ok(answers(base, clock::now(), &[0, HOUR])), clock::now());
        assert!(!clock.is_reliable());
        assert_eq!(clock.now(), base + seconds(60), "the last one stays");
        // The answer took a second.
        let late = answers(base + seconds(60), clock::now(), &[0]);
        sleep(seconds(1)).await;
        clock.note(Ok(late), clock::now());
        assert!(clock.is_reliable());
        assert_eq!(clock.now(), base + seconds(61));
        sleep(MEASUREMENT_VALIDITY).await;
        clock.note(failed(), clock::now());
        assert!(!clock.is_reliable(), "the measurement is old");
    }
}
