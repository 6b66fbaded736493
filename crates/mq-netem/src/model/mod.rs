//! One direction of a link as arithmetic on nanoseconds: no clock, no sockets.

mod loss;

use std::collections::VecDeque;

use crate::{Direction, units::nanoseconds};
use loss::LossState;

/// One direction of a link, at work.
///
/// A packet that is not lost takes the delay, then waits for those before it, then is sent at the
/// link's rate:
///
/// ```text
/// reaches the queue = max(arrival + delay ± jitter, when the one before it did)
/// departure         = max(reaches the queue, departure of the one before it) + size / rate
/// ```
///
/// What waits when it reaches the queue decides whether there is room. This is netem with a `tbf`
/// of no burst behind it.
#[derive(Debug)]
pub struct Pipe {
    direction: Direction,
    /// The queue's limit, where it is in bytes.
    queue_bytes: Option<u64>,
    random: fastrand::Rng,
    loss: LossState,
    /// When the last packet reached the queue, and when it departs.
    reached: u64,
    departs: u64,
    /// Packets that wait or are being sent, oldest first: when they begin to be sent, and bytes.
    waiting: VecDeque<(u64, u64)>,
    waiting_bytes: u64,
    /// What became of packets so far.
    pub counts: Counts,
}

/// What became of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Handed to the link.
    pub arrived: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Dropped: the queue was full.
    pub overflowed: u64,
    /// Delivered a second time.
    pub duplicated: u64,
    /// Delivered with a wrong bit.
    pub corrupted: u64,
}

/// What becomes of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It does not arrive.
    Gone,
    /// It arrives.
    Delivered {
        /// When, in nanoseconds of the caller's clock.
        at: u64,
        /// Twice.
        twice: bool,
        /// With this bit inverted, counted from the start of the frame.
        wrong_bit: Option<u64>,
    },
}

impl Pipe {
    /// A direction of a link whose chances are drawn from `seed`.
    #[must_use]
    pub fn new(direction: Direction, seed: u64) -> Self {
        Self {
            loss: LossState::new(direction.loss),
            queue_bytes: direction.queue_bytes(),
            direction,
            random: fastrand::Rng::with_seed(seed),
            reached: 0,
            departs: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            counts: Counts::default(),
        }
    }

    /// A packet of `bytes` enters the link at `now`, nanoseconds, which never goes back.
    pub fn arrive(&mut self, now: u64, bytes: u64) -> Fate {
        self.counts.arrived += 1;
        if self.loss.is_lost(&mut self.random) {
            self.counts.lost += 1;
            return Fate::Gone;
        }
        let reached = self.reached.max(now + self.delay());
        let Some(at) = self.queue(reached, bytes) else {
            self.counts.overflowed += 1;
            return Fate::Gone;
        };
        self.reached = reached;
        let twice = self.direction.duplicate.happens(&mut self.random);
        self.counts.duplicated += u64::from(twice);
        let wrong = self.direction.corrupt.happens(&mut self.random);
        let wrong_bit = (wrong && bytes > 0).then(|| self.random.u64(..bytes * 8));
        self.counts.corrupted += u64::from(wrong_bit.is_some());
        Fate::Delivered {
            at,
            twice,
            wrong_bit,
        }
    }

    fn delay(&mut self) -> u64 {
        let delay = nanoseconds(self.direction.delay);
        match nanoseconds(self.direction.jitter) {
            0 => delay,
            // No more than the delay itself, which the profile has made sure of.
            jitter => delay - jitter + self.random.u64(..=2 * jitter),
        }
    }

    /// When a packet that reaches the queue then departs; `None` if there is no room.
    fn queue(&mut self, reached: u64, bytes: u64) -> Option<u64> {
        let Some(rate) = self.direction.rate else {
            return Some(reached);
        };
        while let Some((begins, bytes)) = self.waiting.front().copied()
            && begins <= reached
        {
            self.waiting.pop_front();
            self.waiting_bytes -= bytes;
        }
        let begins = self.departs.max(reached);
        if begins > reached {
            let fits = match (self.queue_bytes, self.direction.queue) {
                (Some(limit), _) => self.waiting_bytes + bytes <= limit,
                (None, crate::Queue::Packets(limit)) => (self.waiting.len() as u64) < limit,
                (None, _) => true,
            };
            if !fits {
                return None;
            }
            self.waiting.push_back((begins, bytes));
            self.waiting_bytes += bytes;
        }
        self.departs = begins + rate.nanoseconds_for(bytes);
        Some(self.departs)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Link, Loss, Probability, Queue, Rate};

    const MS: u64 = 1_000_000;

    fn at(fate: Fate) -> Option<u64> {
        match fate {
            Fate::Gone => None,
            Fate::Delivered { at, .. } => Some(at),
        }
    }

    fn limited(queue: Queue) -> Pipe {
        let direction = Direction {
            delay: Duration::from_millis(10),
            rate: Rate::from_bits_per_second(8_000_000),
            queue,
            ..Direction::default()
        };
        Pipe::new(direction, 1)
    }

    #[test]
    fn a_packet_takes_the_delay_and_its_own_length() {
        let mut pipe = limited(Queue::default());
        assert_eq!(at(pipe.arrive(0, 1000)), Some(11 * MS));
        // Right behind it: it waits for the first.
        assert_eq!(at(pipe.arrive(MS / 2, 1000)), Some(12 * MS));
        // The link was idle meanwhile.
        assert_eq!(at(pipe.arrive(100 * MS, 1000)), Some(111 * MS));
    }

    #[test]
    fn a_burst_loses_exactly_what_overflows() {
        for (queue, delivered) in [
            (Queue::Packets(5), 6),
            (Queue::Bytes(5_999), 6),
            (Queue::Bytes(6_000), 7),
            // 8 Mbit/s for 7 ms.
            (Queue::Bdp(Duration::from_millis(7)), 8),
        ] {
            let mut pipe = limited(queue);
            let fates: Vec<_> = (0..20).map(|_| at(pipe.arrive(0, 1000))).collect();
            let expected: Vec<_> = (1..=20)
                .map(|n| (n <= delivered).then_some((10 + n) * MS))
                .collect();
            assert_eq!(fates, expected, "{queue:?}");
            assert_eq!(pipe.counts.overflowed, 20 - delivered);
            // There is room again as soon as one has gone.
            assert!(at(pipe.arrive(MS, 1000)).is_some());
            assert!(at(pipe.arrive(MS, 1000)).is_none());
        }
    }

    #[test]
    fn jitter_keeps_the_order_and_the_mean() {
        let direction = Direction {
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(5),
            ..Direction::default()
        };
        let mut pipe = Pipe::new(direction, 7);
        let mut last = 0;
        let mut sum = 0;
        for n in 0..10_000 {
            let now = n * 20 * MS;
            let at = at(pipe.arrive(now, 100)).unwrap();
            assert!(at >= last);
            assert!((5 * MS..=15 * MS).contains(&(at - now)));
            last = at;
            sum += at - now;
        }
        let mean = sum / 10_000;
        assert!(mean.abs_diff(10 * MS) < MS / 10, "{mean}");
    }

    #[test]
    fn loss_is_as_often_as_it_says_and_comes_in_its_bursts() {
        const PACKETS: u32 = 200_000;
        let share = |share| Probability::new(share).unwrap();
        let bursts = Loss::GilbertElliott {
            to_bad: share(0.01),
            to_good: share(0.19),
            in_bad: share(1.0),
            in_good: share(0.0),
        };
        let single = Loss::Bernoulli(share(0.05));
        for (loss, burst) in [(single, 1.0 / 0.95), (bursts, 1.0 / 0.19)] {
            let direction = Direction {
                loss,
                ..Direction::default()
            };
            let mut pipe = Pipe::new(direction, 3);
            let (mut lost, mut begun, mut before) = (0_u32, 0_u32, false);
            for n in 0..PACKETS {
                let gone = pipe.arrive(n.into(), 1 + u64::from(n % 1500)) == Fate::Gone;
                lost += u32::from(gone);
                begun += u32::from(gone && !before);
                before = gone;
            }
            let share = f64::from(lost) / f64::from(PACKETS);
            assert!((share - 0.05).abs() < 0.004, "{loss:?}: {share}");
            let length = f64::from(lost) / f64::from(begun);
            assert!((length / burst - 1.0).abs() < 0.1, "{loss:?}: {length}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let run = |seed| {
            let link = Link::load("w20/wifi@loss=5%,duplicate=2%,corrupt=1%,jitter=3ms").unwrap();
            let mut pipe = Pipe::new(link.up, seed);
            let fates: Vec<_> = (0..1000).map(|n| pipe.arrive(n * MS, 500)).collect();
            (fates, pipe.counts)
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
        let counts = run(5).1;
        assert!(counts.lost > 20 && counts.duplicated > 5 && counts.corrupted > 2);
    }
}
