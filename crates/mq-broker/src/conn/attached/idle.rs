//! Data streams on which no data arrives any more.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use mq_codec::ReasonCode;
use mq_proto::LaneId;
use tracing::debug;

use super::Attached;
use crate::escaped::Escaped;

/// The time of the last data on each data lane of a connection.
///
/// All lanes are checked at once, twice in the time after which a silent lane is idle, and not at
/// all while there is none. So a lane is found idle after that time, and after one and a half times
/// that at the latest.
#[derive(Debug)]
pub(super) struct IdleLanes {
    timeout: Duration,
    /// The time of the next check; `None` while there are no lanes.
    look_at: Option<Instant>,
    lanes: HashMap<LaneId, Silence>,
}

#[derive(Clone, Copy, Debug)]
struct Silence {
    /// Bytes received since the lane was opened.
    bytes: u64,
    since: Instant,
    /// `true` once the broker has ended its side of the lane in order, for the client to do the
    /// same.
    finished: bool,
}

impl IdleLanes {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            look_at: None,
            lanes: HashMap::new(),
        }
    }

    /// Returns the time of the next check on a connection that has lanes, or else `None`.
    fn next_look(&mut self, now: Instant, has_lanes: bool) -> Option<Instant> {
        if has_lanes {
            self.look_at = self.look_at.or(Some(now + self.timeout / 2));
        } else {
            self.look_at = None;
            self.lanes.clear();
        }
        self.look_at
    }

    /// Records the open lanes, with the number of bytes received on each, and returns the idle
    /// ones.
    fn look(&mut self, now: Instant, lanes: &[(LaneId, u64)]) -> Vec<LaneId> {
        self.look_at = Some(now + self.timeout / 2);
        self.lanes
            .retain(|lane, _| lanes.iter().any(|(other, _)| other == lane));
        let mut idle = Vec::new();
        for (lane, bytes) in lanes {
            let new = Silence {
                bytes: *bytes,
                since: now,
                finished: false,
            };
            let silence = self.lanes.entry(*lane).or_insert(new);
            if silence.bytes != *bytes {
                silence.bytes = *bytes;
                silence.since = now;
            } else if now.saturating_duration_since(silence.since) >= self.timeout {
                idle.push(*lane);
            }
        }
        idle
    }

    /// Restarts the idle time of all lanes at `now`: the broker does not read for now, so silence
    /// is not the client's fault.
    pub(super) fn excuse(&mut self, now: Instant) {
        for silence in self.lanes.values_mut() {
            silence.since = now;
        }
    }

    /// Returns `true` if the broker's side of the lane was ended before. If not, marks it as ended,
    /// and restarts the lane's idle time.
    fn finish(&mut self, now: Instant, lane: LaneId) -> bool {
        self.lanes.get_mut(&lane).is_none_or(|silence| {
            silence.since = now;
            std::mem::replace(&mut silence.finished, true)
        })
    }
}

impl Attached<'_> {
    /// Closes the client's idle data streams, if the next check is due; returns the time of the
    /// next one.
    pub(super) fn close_idle(&mut self, now: Instant) -> Option<Instant> {
        let idle = self.idle.as_mut()?;
        let has_lanes = self.wire.link.data_lanes() > 0;
        let look_at = idle.next_look(now, has_lanes)?;
        if look_at > now {
            return Some(look_at);
        }
        for lane in idle.look(now, &self.wire.link.lane_bytes_received()) {
            self.close_if_unused(now, lane);
        }
        self.idle.as_ref()?.look_at
    }

    /// Closes a stream without data for the idle time: with an error if it holds a part of a
    /// packet; else if it carries no subscription and nothing is in flight on it.
    fn close_if_unused(&mut self, now: Instant, lane: LaneId) {
        if lane.is_server_opened() {
            return;
        }
        let connection = &mut self.wire.connection;
        let carries = self.lanes.carries(lane, connection, &self.hold.state);
        let code = if !self.wire.link.received(lane).is_empty() {
            ReasonCode::MalformedPacket
        } else if carries || !connection.is_lane_quiet(lane) {
            return;
        } else {
            ReasonCode::Success
        };
        let idle = self.idle.as_mut();
        let is_over = code.is_error() || lane.is_unidirectional();
        // A client that does not end its side of a finished stream had the idle time once more to
        // do so.
        let was_finished = !is_over && idle.is_none_or(|idle| idle.finish(now, lane));
        if is_over || was_finished {
            connection.abort_lane(now, lane, code as u32);
        } else {
            connection.finish_lane(lane);
        }
        let client = Escaped(&self.hold.session.client_id);
        debug!(%client, stream = %lane, %code, was_finished, "idle data stream closed");
        if !was_finished {
            self.wire.closed_idle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);
    const LANES: [LaneId; 2] = [LaneId(4), LaneId(8)];

    /// Checks whenever a check is due, for `seconds`; returns the idle lanes, with the second at
    /// which each was found.
    fn looks(
        idle: &mut IdleLanes,
        from: Instant,
        seconds: u64,
        bytes: impl Fn(u64) -> [u64; 2],
    ) -> Vec<(LaneId, u64)> {
        let mut found = Vec::new();
        for second in 0..seconds {
            let now = from + Duration::from_secs(second);
            if idle.next_look(now, true).is_some_and(|at| at <= now) {
                let [one, other] = bytes(second);
                let lanes = [(LANES[0], one), (LANES[1], other)];
                found.extend(
                    idle.look(now, &lanes)
                        .into_iter()
                        .map(|lane| (lane, second)),
                );
            }
        }
        found
    }

    #[test]
    fn a_lane_is_idle_once_nothing_has_come_for_the_time() {
        let (mut idle, now) = (IdleLanes::new(TIMEOUT), Instant::now());
        // The first lane is silent; a byte arrives on the other each second.
        let found = looks(&mut idle, now, 31, |second| [7, second]);
        assert_eq!(found[0], (LANES[0], 15), "seen at 5 s, and 10 s later");
        assert!(found.iter().all(|(lane, _)| *lane == LANES[0]), "{found:?}");
    }

    #[test]
    fn silence_is_excused_while_nothing_is_read() {
        let (mut idle, now) = (IdleLanes::new(TIMEOUT), Instant::now());
        assert_eq!(looks(&mut idle, now, 11, |_| [7, 7]), []);
        let later = now + Duration::from_secs(11);
        idle.excuse(later);
        assert_eq!(looks(&mut idle, later, 10, |_| [7, 7]), []);
        let found = looks(&mut idle, later + Duration::from_secs(10), 5, |_| [7, 7]);
        assert_eq!(found, LANES.map(|lane| (lane, 4)), "14 s after the excuse");
    }

    #[test]
    fn a_client_has_the_time_again_to_follow_the_end_of_a_lane() {
        let (mut idle, now) = (IdleLanes::new(TIMEOUT), Instant::now());
        looks(&mut idle, now, 20, |_| [7, 7]);
        let later = now + Duration::from_secs(20);
        assert!(!idle.finish(later, LANES[0]), "in order");
        let found = looks(&mut idle, later, 10, |_| [7, 8]);
        assert_eq!(found, [], "the other has had a byte");
        let found = looks(&mut idle, later + Duration::from_secs(10), 3, |_| [7, 8]);
        assert!(found.iter().any(|(lane, _)| *lane == LANES[0]), "{found:?}");
        assert!(idle.finish(later, LANES[0]), "at once");
    }

    #[test]
    fn a_connection_without_lanes_is_not_looked_at() {
        let (mut idle, now) = (IdleLanes::new(TIMEOUT), Instant::now());
        assert_eq!(idle.next_look(now, false), None);
        looks(&mut idle, now, 20, |_| [7, 7]);
        assert_eq!(idle.next_look(now, false), None);
        assert!(
            idle.lanes.is_empty(),
            "nothing is kept of lanes that are gone"
        );
    }
}
