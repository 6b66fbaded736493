//! Model of one direction of a link, as arithmetic on nanoseconds: no clock, no sockets.

mod loss;

use std::{collections::VecDeque, time::Duration};

use crate::{Direction, Queue, Trace, profile::Distribution, units::nanoseconds};
use loss::LossState;

/// State of one direction of a link: takes packets in the order of arrival and returns each packet's [`Fate`].
///
/// A packet that is not lost takes the delay, waits for the packets before it, and is sent at the link's
/// rate:
///
/// ```text
/// reaches the rate = max(arrival + delay ± jitter, when the one before it did)
/// departure        = max(reaches the rate, departure of the one before it) + size / rate
/// ```
///
/// This is netem. A queue in packets is netem's `limit`: it counts packets from arrival to departure. A queue
/// in bytes is that of a `tbf` behind netem: it counts packets that have reached the rate and wait for it.
/// With a trace, a packet is sent at the trace's opportunities instead of at a rate. A reordered packet leaves
/// at once. Where the direction [changes](Direction::changes), a packet meets it as it is at its arrival, and
/// still leaves behind the packets before it.
#[derive(Debug)]
pub struct Pipe {
    /// Direction before its first change, as given to `new` or `become_direction`; holds the changes.
    first: Direction,
    present: Present,
    /// Time of the direction's next change; `u64::MAX` if there is none.
    next_change: u64,
    random: fastrand::Rng,
    /// Time at which the last packet that was not reordered reached the rate; its departure is `departs`.
    reached: u64,
    departs: u64,
    /// Number of the trace's first opportunity that has bytes left, and the number of these bytes.
    opportunity: (u64, u64),
    /// Departures of the packets that are under way, in ascending order.
    held: VecDeque<u64>,
    /// Packets that have reached the rate and wait: the time at which the sending of each begins, and its bytes.
    waiting: VecDeque<(u64, u64)>,
    waiting_bytes: u64,
    last_arrival: Option<u64>,
    /// Numbers of packets so far, by fate.
    pub counts: Counts,
}

/// A direction from one change until the next, with the state of its losses.
#[derive(Debug)]
struct Present {
    direction: Direction,
    /// Limit of the queue in bytes; `None` if the queue has none in bytes.
    queue_bytes: Option<u64>,
    loss: LossState,
    /// Quantiles of the jitter; empty where there is none or it is uniform.
    jitter: Vec<i16>,
}

impl Present {
    fn of(direction: &Direction) -> Self {
        let varies = !direction.jitter.is_zero();
        Self {
            loss: LossState::new(direction.loss),
            queue_bytes: direction.queue_bytes(),
            jitter: Some(direction.distribution)
                .filter(|_| varies)
                .and_then(Distribution::table)
                .unwrap_or_default(),
            direction: direction.clone(),
        }
    }
}

/// Numbers of packets of one direction, by fate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Packets that were handed to the link.
    pub arrived: u64,
    /// Bytes of the packets that were handed to the link, as whole frames.
    pub bytes: u64,
    /// Packets that were handed to the link when it had got none for [`Counts::QUIET`]: a radio wakes for them.
    pub after_quiet: u64,
    /// Packets that were lost by chance.
    pub lost: u64,
    /// Packets that were dropped because the queue was full.
    pub overflowed: u64,
    /// Packets that were delivered a second time.
    pub duplicated: u64,
    /// Packets that were delivered with a wrong bit.
    pub corrupted: u64,
    /// Packets that were sent at once, before others.
    pub reordered: u64,
}

impl Counts {
    /// Time without a packet after which the next one counts in [`Counts::after_quiet`].
    pub const QUIET: Duration = Duration::from_millis(10);
}

/// Fate of one packet on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fate {
    /// The packet is lost by chance, or dropped at the full queue.
    Gone,
    /// The packet is delivered.
    Delivered {
        /// Departure from the link, in nanoseconds of the caller's clock.
        at: u64,
        /// `true` if a duplicate follows at the same time.
        twice: bool,
        /// Bit that is inverted, counted from the start of the frame; `None` if the frame is intact.
        wrong_bit: Option<u64>,
    },
}

impl Pipe {
    /// Makes a direction of a link. Losses, jitter and the like are drawn from `seed`: with the same seed and the same
    /// packets a run repeats.
    #[must_use]
    pub fn new(direction: Direction, seed: u64) -> Self {
        Self {
            present: Present::of(&direction),
            next_change: direction.changes.at(0).1,
            first: direction,
            random: fastrand::Rng::with_seed(seed),
            reached: 0,
            departs: 0,
            opportunity: (0, Trace::OPPORTUNITY),
            held: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            last_arrival: None,
            counts: Counts::default(),
        }
    }

    /// Adds a packet of `bytes` to the link at `now`, in nanoseconds, which never goes back; returns the packet's fate.
    pub fn arrive(&mut self, now: u64, bytes: u64) -> Fate {
        if now >= self.next_change {
            self.change(now);
        }
        self.counts.arrived += 1;
        self.counts.bytes += bytes;
        let quiet = |last: u64| now.saturating_sub(last) >= nanoseconds(Counts::QUIET);
        self.counts.after_quiet += u64::from(self.last_arrival.replace(now).is_none_or(quiet));
        if self.present.loss.is_lost(&mut self.random) {
            self.counts.lost += 1;
            return Fate::Gone;
        }
        let Some(at) = self.departure(now, bytes) else {
            self.counts.overflowed += 1;
            return Fate::Gone;
        };
        let twice = self.present.direction.duplicate.happens(&mut self.random);
        self.counts.duplicated += u64::from(twice);
        let wrong = self.present.direction.corrupt.happens(&mut self.random);
        let wrong_bit = (wrong && bytes > 0).then(|| self.random.u64(..bytes * 8));
        self.counts.corrupted += u64::from(wrong_bit.is_some());
        Fate::Delivered {
            at,
            twice,
            wrong_bit,
        }
    }

    /// Replaces the direction by another from `now` on, in nanoseconds. Packets that are under way keep their
    /// departures, and the times of [`Direction::changes`] count from the beginning as before.
    pub fn become_direction(&mut self, direction: Direction, now: u64) {
        self.first = direction;
        self.change(now);
    }

    /// Takes over the parameters that the direction has at `now`, after its last change. Packets that are under way
    /// keep their departures.
    fn change(&mut self, now: u64) {
        let (current, next) = self.first.changes.at(now);
        self.present = Present::of(current.unwrap_or(&self.first));
        self.next_change = next;
    }

    /// Returns the departure of a packet that arrives at `now`; `None` if the queue is full.
    fn departure(&mut self, now: u64, bytes: u64) -> Option<u64> {
        while self.held.front().is_some_and(|departs| *departs <= now) {
            self.held.pop_front();
        }
        if let Queue::Packets(limit) = self.present.direction.queue
            && self.held.len() as u64 >= limit
        {
            return None;
        }
        if self.present.direction.reorder.happens(&mut self.random) {
            self.counts.reordered += 1;
            return Some(now);
        }
        let reached = self.reached.max(now.saturating_add_signed(self.delay()));
        let begins = self.begin(reached);
        if begins > reached && !self.fits(reached, begins, bytes) {
            return None;
        }
        self.reached = reached;
        self.departs = self.send(begins, bytes);
        self.held.push_back(self.departs);
        Some(self.departs)
    }

    /// Draws the delay of a packet, in nanoseconds. A wide distribution may give a negative one: such a packet does not
    /// wait.
    fn delay(&mut self) -> i64 {
        let signed = |time| i64::try_from(nanoseconds(time)).expect("a minute at most");
        let delay = signed(self.present.direction.delay);
        let jitter = signed(self.present.direction.jitter);
        match self.random.choice(&self.present.jitter) {
            Some(quantile) => delay + jitter * i64::from(*quantile) / Distribution::SCALE,
            None if jitter == 0 => delay,
            None => delay + self.random.i64(-jitter..=jitter),
        }
    }

    /// Returns the time at which the sending begins of a packet that reaches the rate at `reached`.
    fn begin(&self, reached: u64) -> u64 {
        match &self.present.direction.trace {
            None => self.departs.max(reached),
            Some(trace) => trace.time_of(trace.first_from(reached).max(self.opportunity.0)),
        }
    }

    /// Adds a packet to a queue in bytes; returns `false` if the queue has no room for it. Returns `true` if the queue
    /// has no limit in bytes.
    fn fits(&mut self, reached: u64, begins: u64, bytes: u64) -> bool {
        let Some(limit) = self.present.queue_bytes else {
            return true;
        };
        while let Some((begins, bytes)) = self.waiting.front().copied()
            && begins <= reached
        {
            self.waiting.pop_front();
            self.waiting_bytes -= bytes;
        }
        if self.waiting_bytes + bytes > limit {
            return false;
        }
        self.waiting.push_back((begins, bytes));
        self.waiting_bytes += bytes;
        true
    }

    /// Returns the departure of a packet whose sending begins at `begins`. Where there is a trace, uses up its
    /// opportunities.
    fn send(&mut self, begins: u64, bytes: u64) -> u64 {
        if let Some(rate) = self.present.direction.rate {
            return begins + rate.nanoseconds_for(bytes);
        }
        let Some(trace) = &self.present.direction.trace else {
            return begins;
        };
        let (mut number, mut left) = self.opportunity;
        let first = trace.first_from(begins);
        if first > number {
            (number, left) = (first, Trace::OPPORTUNITY);
        }
        let more = bytes.saturating_sub(left).div_ceil(Trace::OPPORTUNITY);
        let departs = trace.time_of(number + more);
        left = left + more * Trace::OPPORTUNITY - bytes;
        self.opportunity = match left {
            0 => (number + more + 1, Trace::OPPORTUNITY),
            left => (number + more, left),
        };
        departs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Changes, Link, Loss, Probability, Queue, Rate};

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
        // The second comes right behind the first, and waits for it.
        assert_eq!(at(pipe.arrive(MS / 2, 1000)), Some(12 * MS));
        // The link was idle meanwhile.
        assert_eq!(at(pipe.arrive(100 * MS, 1000)), Some(111 * MS));
    }

    #[test]
    fn packets_that_come_after_a_quiet_time_are_counted() {
        let mut pipe = limited(Queue::default());
        for ms in [0, 1, 9, 18, 28, 100] {
            pipe.arrive(ms * MS, 100);
        }
        assert_eq!(pipe.counts.after_quiet, 3);
    }

    #[test]
    fn a_burst_loses_exactly_what_overflows() {
        for (queue, delivered) in [
            (Queue::Packets(6), 6),
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
            // There is room again as soon as a packet has gone. A queue in packets has room when the packet has
            // left, a queue in bytes when its sending begins, a millisecond earlier.
            let gone = match queue {
                Queue::Packets(_) => 11 * MS,
                _ => MS,
            };
            assert!(at(pipe.arrive(gone, 1000)).is_some(), "{queue:?}");
            assert!(at(pipe.arrive(gone, 1000)).is_none(), "{queue:?}");
        }
    }

    #[test]
    fn reordered_packets_overtake_and_no_others() {
        let direction = Direction {
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(10),
            distribution: Distribution::Pareto,
            rate: Rate::from_bits_per_second(100_000_000),
            reorder: Probability::new(0.1).unwrap(),
            ..Direction::default()
        };
        let mut pipe = Pipe::new(direction, 4);
        let (mut last, mut at_once) = (0, 0);
        for n in 0..10_000 {
            let now = n * MS;
            match at(pipe.arrive(now, 100)).unwrap() {
                at if at == now => at_once += 1,
                at => {
                    assert!(at > last);
                    last = at;
                }
            }
        }
        assert_eq!(pipe.counts.reordered, at_once);
        assert!((900..1100).contains(&at_once), "{at_once}");
    }

    #[test]
    fn an_opportunity_that_no_packet_waits_for_is_gone() {
        let direction = Direction {
            // Two opportunities in each ten milliseconds.
            trace: Some("4\n10\n".parse().unwrap()),
            queue: Queue::Bytes(1514),
            ..Direction::default()
        };
        let mut pipe = Pipe::new(direction, 1);
        // Three packets share the first opportunity, the fourth needs a part of the second.
        for n in 0..3 {
            assert_eq!(at(pipe.arrive(n, 500)), Some(4 * MS));
        }
        // 1,500 of 1,514 bytes wait.
        assert_eq!(at(pipe.arrive(3, 500)), None);
        assert_eq!(at(pipe.arrive(4 * MS, 500)), Some(10 * MS));
        // The opportunities at 14, 20, ... 94 have gone unused.
        assert_eq!(at(pipe.arrive(95 * MS, 1514)), Some(100 * MS));
        assert_eq!(at(pipe.arrive(100 * MS, 1514)), Some(104 * MS));
    }

    #[test]
    fn packets_meet_the_direction_as_it_is_at_their_arrival() {
        let delayed = |ms| Direction {
            delay: Duration::from_millis(ms),
            ..Direction::default()
        };
        let outage = Direction {
            loss: Loss::Bernoulli(Probability::new(1.0).unwrap()),
            ..Direction::default()
        };
        let steps = [(20, outage), (30, delayed(2))];
        let steps = steps.map(|(ms, direction)| (Duration::from_millis(ms), direction));
        let changing = Direction {
            changes: Changes::new(steps, Some(Duration::from_millis(100))).unwrap(),
            ..delayed(40)
        };
        let mut pipe = Pipe::new(changing, 1);
        for (arrives, departs) in [
            (0, Some(40)),
            (19, Some(59)),
            (20, None),
            (29, None),
            // Faster from now on, and still behind the packets before it.
            (30, Some(59)),
            (58, Some(60)),
            // Whole rounds later.
            (300, Some(340)),
            (525, None),
            (535, Some(537)),
        ] {
            let fate = at(pipe.arrive(arrives * MS, 100));
            assert_eq!(fate, departs.map(|ms| ms * MS), "at {arrives} ms");
        }
        assert_eq!((pipe.counts.arrived, pipe.counts.lost), (9, 3));
    }

    #[test]
    fn a_pipe_becomes_another_direction_in_between() {
        let delayed = |ms| Direction {
            delay: Duration::from_millis(ms),
            ..Direction::default()
        };
        let mut pipe = Pipe::new(delayed(40), 1);
        assert_eq!(at(pipe.arrive(0, 100)), Some(40 * MS));
        let outage = Direction {
            loss: Loss::Bernoulli(Probability::new(1.0).unwrap()),
            ..Direction::default()
        };
        pipe.become_direction(outage, MS);
        assert_eq!(at(pipe.arrive(MS, 100)), None);
        pipe.become_direction(delayed(2), 10 * MS);
        // Behind the one that is under way.
        assert_eq!(at(pipe.arrive(10 * MS, 100)), Some(40 * MS));
        assert_eq!(at(pipe.arrive(50 * MS, 100)), Some(52 * MS));
    }

    #[test]
    fn jitter_has_its_distribution() {
        for (distribution, deviation) in [
            (Distribution::Uniform, 3.0 / 3.0_f64.sqrt()),
            (Distribution::Normal, 3.0),
            (Distribution::Pareto, 3.0 * 6720.0 / 8192.0),
            (Distribution::ParetoNormal, 3.0 * 6834.0 / 8192.0),
        ] {
            let direction = Direction {
                delay: Duration::from_millis(20),
                jitter: Duration::from_millis(3),
                distribution,
                ..Direction::default()
            };
            let mut pipe = Pipe::new(direction, 9);
            // The packets are too far apart to affect one another.
            let taken =
                (0..20_000_u64).map(|n| at(pipe.arrive(n * 100 * MS, 1)).unwrap() - n * 100 * MS);
            #[expect(clippy::cast_precision_loss, reason = "milliseconds")]
            let taken: Vec<_> = taken.map(|taken| taken as f64 / MS as f64).collect();
            let mean = taken.iter().sum::<f64>() / 20_000.0;
            let squares = taken
                .iter()
                .map(|taken| (taken - mean).powi(2))
                .sum::<f64>();
            let found = (squares / 20_000.0).sqrt();
            assert!(
                (found / deviation - 1.0).abs() < 0.05,
                "{distribution:?}: {found}"
            );
            assert!((mean - 20.0).abs() < 0.2, "{distribution:?}: {mean}");
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
    fn loss_has_its_share_and_its_bursts() {
        const PACKETS: u32 = 200_000;
        let share = |share| Probability::new(share).unwrap();
        let bursts = Loss::GilbertElliott {
            to_bad: share(0.01),
            to_good: share(0.19),
            in_bad: share(1.0),
            in_good: share(0.0),
        };
        let single = Loss::Bernoulli(share(0.05));
        // Bursts of four losses and two arrivals in the mean, and few losses between them.
        let markov = Loss::Markov {
            p13: share(0.01),
            p31: share(0.15),
            p32: share(0.1),
            p23: share(0.5),
            p14: share(0.002),
        };
        // A run of losses begins with a burst, with a return into its lossy state, or with a single loss.
        let runs = (0.01 + 0.01 / 0.15 * 0.1 + 0.002) / (0.01 / 0.15 + 0.002);
        for (loss, burst) in [
            (single, 1.0 / 0.95),
            (bursts, 1.0 / 0.19),
            (markov, 1.0 / runs),
        ] {
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
            let expected = loss.mean();
            assert!(
                (share / expected - 1.0).abs() < 0.06,
                "{loss:?}: {share} {expected}"
            );
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
