//! The loads of the workers, and the orders to move connections that follow from them.

use std::time::{Duration, Instant};

use crate::clock;

/// Share of its time from which on a worker is busy, and leaves connections that begin to others.
const BUSY_SHARE: f64 = 0.5;

/// Share of its time from which on a worker is overloaded, and gives connections to a worker that does less by
/// [`MIN_LOAD_GAP`].
const OVERLOADED_SHARE: f64 = 0.8;
const MIN_LOAD_GAP: f64 = 0.4;

/// Number of processors that have to be idle before a worker gives connections away: else another thread would take the
/// time from this one, or from the programs beside it.
const MIN_IDLE_PROCESSORS: f64 = 0.5;

/// Load of all workers together, as a share of one thread's time, up to which they have little to do.
const LOW_TOTAL_LOAD: f64 = 0.35;

// What goes apart does not come together at the next look.
const _: () = assert!(OVERLOADED_SHARE > 2.0 * LOW_TOTAL_LOAD);

/// The load of a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerLoad {
    /// Time for which the worker has not waited, in all.
    pub(super) busy: Duration,
    /// Connections that could go elsewhere, and did something since the last look.
    pub(super) active: usize,
}

/// Order to move `count` connections from one worker to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MoveOrder {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) count: usize,
}

/// The loads at the last look.
#[derive(Debug, Default)]
pub(super) struct WorkerLoads {
    last: Option<(Instant, Vec<Duration>)>,
    idle: IdleTime,
    /// Shares of the time between the last two looks.
    busy: Vec<f64>,
}

impl WorkerLoads {
    /// Takes the loads of now; whether some connections are to go elsewhere.
    pub(super) fn look(&mut self, loads: &[WorkerLoad]) -> Option<MoveOrder> {
        let now = clock::now();
        let totals = loads.iter().map(|load| load.busy).collect();
        let Some((then, before)) = self.last.replace((now, totals)) else {
            self.idle.since_last();
            return None;
        };
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let shares = loads.iter().zip(&before);
        self.busy = shares
            .map(|(load, before)| load.busy.saturating_sub(*before).as_secs_f64() / seconds)
            .collect();
        let active: Vec<_> = loads.iter().map(|load| load.active).collect();
        let idle = self
            .idle
            .since_last()
            .map(|idle| idle.as_secs_f64() / seconds);
        order(&self.busy, &active, idle.unwrap_or(f64::MAX))
    }

    /// Returns, for each worker, `true` if it is busy.
    pub(super) fn busy(&self) -> impl Iterator<Item = bool> {
        self.busy.iter().map(|share| *share >= BUSY_SHARE)
    }
}

/// Decides which connections are to move: `busy` are shares of the workers' time, `idle` is that of all processors.
fn order(busy: &[f64], active: &[usize], idle: f64) -> Option<MoveOrder> {
    let all = || 0..busy.len();
    let by_load = |one: &usize, other: &usize| busy[*one].total_cmp(&busy[*other]);
    let (most, least) = (all().max_by(by_load)?, all().min_by(by_load)?);
    if busy[most] >= OVERLOADED_SHARE {
        // A quarter at a time, of those that do something: they differ, and the next look sees what came of it.
        let worth = active[most] > 1
            && busy[least] <= busy[most] - MIN_LOAD_GAP
            && idle >= MIN_IDLE_PROCESSORS;
        return worth.then(|| MoveOrder {
            from: most,
            to: least,
            count: (active[most] / 4).max(1),
        });
    }
    if busy.iter().sum::<f64>() > LOW_TOTAL_LOAD {
        return None;
    }
    let from = all().skip(1).max_by_key(|worker| active[*worker])?;
    let count = active[from];
    (count > 0).then_some(MoveOrder { from, to: 0, count })
}

/// The time for which processors had nothing to do.
#[derive(Debug, Default)]
struct IdleTime(Option<Duration>);

impl IdleTime {
    /// Returns the idle time since the last call, over all processors. `None` where the system does not tell.
    fn since_last(&mut self) -> Option<Duration> {
        let now = idle_time();
        let last = core::mem::replace(&mut self.0, now);
        Some(now?.saturating_sub(last?))
    }
}

/// Reads the idle time of all processors since the system began.
#[cfg(target_os = "linux")]
fn idle_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let idle = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Duration::try_from_secs_f64(idle).ok()
}

#[cfg(not(target_os = "linux"))]
fn idle_time() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_worker_gives_a_quarter_of_its_active_connections_to_the_least_busy() {
        let order = |busy: &[f64], active: &[usize], idle| {
            order(busy, active, idle).map(|order| (order.from, order.to, order.count))
        };
        assert_eq!(order(&[0.9, 0.3, 0.1], &[40, 3, 9], 1.0), Some((0, 2, 10)));
        assert_eq!(order(&[0.1, 1.0], &[40, 2], 1.0), Some((1, 0, 1)));
        assert_eq!(
            order(&[0.9, 0.1], &[1, 5], 1.0),
            None,
            "one cannot be shared"
        );
        assert_eq!(order(&[0.9, 0.6], &[9, 9], 1.0), None, "too little to gain");
        assert_eq!(
            order(&[0.9, 0.1], &[9, 9], 0.2),
            None,
            "no processor is free"
        );
        assert_eq!(order(&[0.7, 0.1], &[9, 9], 1.0), None, "there is time left");
    }

    #[test]
    fn connections_gather_on_the_first_worker_while_there_is_little_to_do() {
        let order = |busy: &[f64], active: &[usize]| {
            order(busy, active, 1.0).map(|order| (order.from, order.to, order.count))
        };
        assert_eq!(order(&[0.1, 0.02, 0.1], &[9, 3, 7]), Some((2, 0, 7)));
        assert_eq!(order(&[0.1, 0.02, 0.0], &[9, 3, 0]), Some((1, 0, 3)));
        assert_eq!(order(&[0.1, 0.1], &[9, 0]), None, "they are there");
        assert_eq!(order(&[0.3, 0.1], &[9, 7]), None, "enough to do for two");
        assert_eq!(order(&[0.0], &[9]), None);
    }

    #[test]
    fn the_first_look_has_nothing_to_compare() {
        let mut loads = WorkerLoads::default();
        let load = |busy| WorkerLoad {
            busy: Duration::from_secs(busy),
            active: 5,
        };
        assert_eq!(loads.look(&[load(100), load(0)]), None);
        assert_eq!(loads.busy().count(), 0);
    }
}
