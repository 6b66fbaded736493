//! A shared channel, as arithmetic.

use std::{collections::VecDeque, time::Duration};

use crate::{Medium, units::nanoseconds};

/// A half-duplex channel that stations share by 802.11's distributed coordination function (DCF).
///
/// Stations are numbered from 0, and the access point is one of them. A station sends its frames in order,
/// one at a time:
///
/// ```text
///             a frame arrives, the channel is idle for DIFS
///      +----------------------------------------------------------+
///      |                                                          v
///  +------+ a frame arrives,  +-------+ idle for DIFS +--------+ 0, +-------+
///  | idle |------------------>| waits |-------------->| counts |--->| sends |
///  +------+ draws a back-off  +-------+<--------------| slots  |    +-------+
///      ^                          ^    somebody sends +--------+       |
///      |                          |    (keeps count)   | 0, no frame   |
///      +--------------------------|--------------------+               |
///                                 +------------------------------------+
///                                   draws a back-off, frame or not
///
///  A ==DIFS==|2|1|0 data     |SIFS|ack|==DIFS==|4|3|2|..      drew 2, then 4
///  B ==DIFS==|5|4|3                   |==DIFS==|3|2|1|0 data  kept 3
/// ```
///
/// A back-off is drawn from 0 to the contention window cw. The window begins with `cw_min` and becomes 2 cw + 1
/// with each failure of a frame, up to `cw_max`. A frame fails if another begins in the same slot (a
/// collision), else with the frame error rate. It is sent again up to `retries` times and then lost.
/// A failure takes as long as a success: the sender waits for an acknowledgement that does not come, and
/// other stations wait as long (EIFS at the basic rate). With n slots counted down, one exchange takes
///
/// ```text
/// DIFS + n slot + preamble + 8 (bytes + header) / rate + SIFS + preamble + 8 ack / basic rate
/// ```
///
/// and the frame is delivered before the SIFS. Frames that collide take as long as the longest.
///
/// Left out: hidden stations, capture, changes of rate, RTS/CTS, fragments, aggregation, priorities
/// (EDCA), beacons, broadcast, lost acknowledgements, propagation and the time it takes to sense the
/// channel, padding to whole OFDM symbols, and 802.11g's signal extension of 6 us. Of two frames that reach an
/// idle channel at the same instant, the second waits; in the air, frames that begin a microsecond apart may
/// collide.
///
/// Call [`arrive`](Self::arrive) for each frame, and [`advance`](Self::advance) when [`next`](Self::next) says
/// so. A late call changes nothing: each event has the time at which it was due.
#[derive(Debug)]
pub struct Channel<T> {
    medium: Medium,
    /// Duration of a slot, in nanoseconds; at least 1.
    slot: u64,
    random: fastrand::Rng,
    state: State,
    stations: Vec<Station<T>>,
    /// Delivered frames that are not handed out yet, oldest first, each with the time of its delivery in nanoseconds.
    delivered: VecDeque<(u64, T)>,
    in_use: Duration,
}

/// State of the channel; times are nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No station sends data. The last acknowledgement and DIFS are over at `slots_from`, from which back-off counters
    /// run.
    Free { slots_from: u64 },
    /// A station sends, or several collide; the longest of their frames ends at `until`.
    Busy { until: u64 },
}

#[derive(Debug)]
struct Station<T> {
    /// The station's frames with their bytes, oldest first. A frame stays until it is delivered or lost.
    queue: VecDeque<(u64, T)>,
    /// Slots left when counters last stood still; `None` if the station had counted down. A station with a
    /// frame in its queue has `Some`, or sends.
    back_off: Option<u64>,
    /// Contention window of the next back-off, in slots.
    cw: u64,
    /// Failed attempts of the oldest frame.
    failures: u8,
    /// `true` while the oldest frame is being sent.
    sends: bool,
    counts: StationCounts,
}

/// Numbers of a station's frames by fate, and of its transmissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StationCounts {
    /// Frames that were handed to the station.
    pub arrived: u64,
    /// Frames that reached the receiver.
    pub delivered: u64,
    /// Frames that were given up after the last retry.
    pub lost: u64,
    /// Frames that were dropped because the station's queue was full.
    pub overflowed: u64,
    /// Attempts to send a frame that have ended: by delivery, a collision or damage.
    pub transmissions: u64,
    /// Transmissions that collided with another.
    pub collisions: u64,
    /// Transmissions that were not the first of their frame.
    pub retries: u64,
    /// Time for which the transmissions that have ended kept the channel: each from its preamble until counters run
    /// again, so with SIFS, the acknowledgement or the wait for it, and DIFS. Back-off is not part of it.
    ///
    /// Transmissions that collide count for each of their stations, so that the sum over the stations is more
    /// than [`Channel::in_use`].
    pub air_time: Duration,
}

impl<T> Channel<T> {
    /// Makes an idle channel for so many stations. Back-offs and frame errors are drawn from `seed`: with the same seed
    /// and the same frames a run repeats.
    #[must_use]
    pub fn new(medium: Medium, stations: usize, seed: u64) -> Self {
        let station = || Station {
            queue: VecDeque::new(),
            back_off: None,
            cw: medium.cw_min,
            failures: 0,
            sends: false,
            counts: StationCounts::default(),
        };
        Self {
            // It is never 0 in a profile from a file.
            slot: nanoseconds(medium.slot).max(1),
            random: fastrand::Rng::with_seed(seed),
            state: State::Free { slots_from: 0 },
            stations: std::iter::repeat_with(station).take(stations).collect(),
            delivered: VecDeque::new(),
            in_use: Duration::ZERO,
            medium,
        }
    }

    /// Gives station `from` an Ethernet frame of `bytes` to send, at `now` in nanoseconds, which never goes back.
    ///
    /// If the station's queue is full, the frame is dropped and counted.
    ///
    /// # Panics
    /// If there is no station of that number.
    pub fn arrive(&mut self, now: u64, from: usize, bytes: u64, frame: T) {
        self.run(now);
        let station = &mut self.stations[from];
        station.counts.arrived += 1;
        if station.queue.len() as u64 >= self.medium.queue {
            station.counts.overflowed += 1;
            return;
        }
        station.queue.push_back((bytes, frame));
        if station.queue.len() > 1 {
            return;
        }
        match self.state {
            State::Free { slots_from }
                if now >= slots_from
                    && station
                        .back_off
                        .is_none_or(|left| left <= (now - slots_from) / self.slot) =>
            {
                self.begin(now, slots_from);
            }
            _ => {
                let random = &mut self.random;
                station
                    .back_off
                    .get_or_insert_with(|| random.u64(..=station.cw));
            }
        }
    }

    /// Returns the time, in nanoseconds, at which the channel next changes or has a frame to hand out; `None` if
    /// nothing happens before a frame arrives.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        // A frame that waits to be handed out was due before any coming event.
        let delivered = self.delivered.front().map(|(at, _)| *at);
        delivered.or_else(|| self.next_change())
    }

    /// Calls `deliver` with each frame that was delivered up to `now` and with the time of its delivery, both in
    /// nanoseconds, in order.
    pub fn advance(&mut self, now: u64, mut deliver: impl FnMut(u64, T)) {
        self.run(now);
        for (at, frame) in self.delivered.drain(..) {
            deliver(at, frame);
        }
    }

    /// Returns the counts of a station's frames so far.
    ///
    /// # Panics
    /// If there is no station of that number.
    #[must_use]
    pub fn counts(&self, station: usize) -> StationCounts {
        self.stations[station].counts
    }

    /// Returns the time for which transmissions have kept the channel so far: the time in which no station could count
    /// down or begin. A transmission counts when it ends, with the SIFS, acknowledgement and DIFS that follow. A
    /// collision counts once, for as long as its longest frame takes.
    #[must_use]
    pub fn in_use(&self) -> Duration {
        self.in_use
    }

    /// Processes every event that was due by `now`, in order.
    fn run(&mut self, now: u64) {
        while let Some(at) = self.next_change()
            && at <= now
        {
            match self.state {
                State::Free { slots_from } => self.begin(at, slots_from),
                State::Busy { .. } => self.end(at),
            }
        }
    }

    /// Returns the time, in nanoseconds, at which a transmission next begins or ends; `None` if no station has a frame.
    fn next_change(&self) -> Option<u64> {
        match self.state {
            State::Busy { until } => Some(until),
            State::Free { slots_from } => {
                let waiting = self.stations.iter().filter(|s| !s.queue.is_empty());
                let least = waiting.filter_map(|station| station.back_off).min()?;
                Some(slots_from + least * self.slot)
            }
        }
    }

    /// Begins a transmission at `at`: stops all counters, which ran from `slots_from`. A station that has counted down
    /// and has a frame sends it.
    fn begin(&mut self, at: u64, slots_from: u64) {
        let counted = (at - slots_from) / self.slot;
        let mut until = at;
        for station in &mut self.stations {
            station.back_off = station.back_off.and_then(|left| {
                let left = left.saturating_sub(counted);
                (left > 0).then_some(left)
            });
            if station.back_off.is_none()
                && let Some((bytes, _)) = station.queue.front()
            {
                station.sends = true;
                until = until.max(at + self.medium.sending(*bytes));
            }
        }
        self.state = State::Busy { until };
    }

    /// Ends the transmissions at `at`: each frame is delivered, lost, or kept for a retry.
    fn end(&mut self, at: u64) {
        let collided = self.stations.iter().filter(|s| s.sends).count() > 1;
        let settling = self.medium.settling();
        let mut longest = Duration::ZERO;
        for station in self.stations.iter_mut().filter(|s| s.sends) {
            station.sends = false;
            let counts = &mut station.counts;
            counts.transmissions += 1;
            counts.collisions += u64::from(collided);
            counts.retries += u64::from(station.failures > 0);
            if let Some((bytes, _)) = station.queue.front() {
                let takes = Duration::from_nanos(self.medium.sending(*bytes) + settling);
                counts.air_time += takes;
                longest = longest.max(takes);
            }
            let failed = collided || self.medium.frame_error_rate.happens(&mut self.random);
            if failed && station.failures < self.medium.retries {
                station.failures += 1;
                station.cw = (2 * station.cw + 1).min(self.medium.cw_max);
            } else {
                let (_, frame) = station.queue.pop_front().expect("who sends has a frame");
                if failed {
                    counts.lost += 1;
                } else {
                    counts.delivered += 1;
                    self.delivered.push_back((at, frame));
                }
                station.failures = 0;
                station.cw = self.medium.cw_min;
            }
            station.back_off = Some(self.random.u64(..=station.cw));
        }
        self.in_use += longest;
        self.state = State::Free {
            slots_from: at + settling,
        };
    }
}

#[cfg(test)]
mod tests;
