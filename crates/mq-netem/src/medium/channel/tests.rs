//! The channel against 802.11, computed by hand and in closed form.

use proptest::prelude::*;

use super::*;
use crate::Probability;

const US: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

fn medium(frame_error_rate: f64, retries: u8) -> Medium {
    Medium {
        frame_error_rate: Probability::new(frame_error_rate).unwrap(),
        retries,
        ..Medium::default()
    }
}

/// Runs stations that always have two frames or more of `bytes(station)`, and calls `watch` at each
/// change of the channel.
fn saturated(
    medium: Medium,
    stations: usize,
    until: u64,
    bytes: impl Fn(usize) -> u64,
    mut watch: impl FnMut(u64, &Channel<()>),
) -> Channel<()> {
    let mut channel = Channel::new(medium, stations, 1);
    let mut now = 0;
    while now <= until {
        for station in 0..stations {
            while channel.stations[station].queue.len() < 2 {
                channel.arrive(now, station, bytes(station), ());
            }
        }
        now = channel.next().unwrap();
        channel.advance(now, |_, ()| {});
        watch(now, &channel);
    }
    channel
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a test are far below 2^52"
)]
fn float(count: u64) -> f64 {
    count as f64
}

fn sum(channel: &Channel<()>, count: impl Fn(StationCounts) -> u64) -> u64 {
    channel.stations.iter().map(|s| count(s.counts)).sum()
}

/// Returns `true` if `count` of `n` events with that probability are within chance: five standard deviations and one
/// event.
fn is_likely(count: u64, n: u64, probability: f64) -> bool {
    let n = float(n);
    let deviation = (n * probability * (1.0 - probability)).sqrt();
    (float(count) - n * probability).abs() <= 5.0 * deviation + 1.0
}

#[test]
fn a_lone_frame_takes_its_time_on_the_air() {
    let mut channel = Channel::new(Medium::default(), 2, 1);
    channel.arrive(7, 0, 1514, "frame");
    // 20 us of preamble and 8 * 1536 bits at 54 Mbit/s, rounded up: no DIFS, no back-off.
    let arrives = 7 + 20 * US + 227_556;
    assert_eq!(channel.next(), Some(arrives));
    channel.advance(arrives - 1, |_, _| unreachable!("too early"));
    let mut delivered = Vec::new();
    channel.advance(arrives, |at, frame| delivered.push((at, frame)));
    assert_eq!(delivered, [(arrives, "frame")]);
    assert_eq!(channel.next(), None);
    let counts = StationCounts {
        arrived: 1,
        delivered: 1,
        transmissions: 1,
        air_time: Duration::from_nanos(20 * US + 227_556 + 62_667),
        ..StationCounts::default()
    };
    assert_eq!(channel.counts(0), counts);
    assert_eq!(channel.counts(1), StationCounts::default());
}

#[test]
fn air_time_is_of_the_frame_its_acknowledgement_and_the_spaces_and_not_of_the_back_off() {
    // Preamble and 8 * (60 + 22) bits at 54 Mbit/s; SIFS, preamble, 8 * 14 bits at 24 Mbit/s and DIFS.
    let takes = Duration::from_nanos(20 * US + 12_149 + 62_667);
    for retries in [0, 3] {
        // Every second frame is damaged, and keeps the channel just as long.
        let channel = saturated(medium(0.5, retries), 1, SECOND, |_| 60, |_, _| {});
        let counts = channel.counts(0);
        let sent = u32::try_from(counts.transmissions).unwrap();
        assert!(sent > 1_000 && counts.lost > 0, "{counts:?}");
        assert_eq!(counts.air_time, takes * sent);
        assert_eq!(channel.in_use(), counts.air_time);
        // Retries of a station alone have longer back-offs: a frame waits for 7.5 slots or more.
        let waits = SECOND - nanoseconds(channel.in_use()).min(SECOND);
        assert!(waits / u64::from(sent) >= 7 * 9 * US, "{waits}");
    }
}

#[test]
fn a_collision_is_air_time_of_each_station_and_uses_the_channel_once() {
    let bytes = |station| if station == 0 { 1514 } else { 60 };
    let takes = |station| Duration::from_nanos(medium(0.0, 7).sending(bytes(station)) + 62_667);
    let channel = saturated(medium(0.0, 7), 2, SECOND, bytes, |_, _| {});
    let [long, short] = [channel.counts(0), channel.counts(1)];
    for (station, counts) in [(0, long), (1, short)] {
        let sent = u32::try_from(counts.transmissions).unwrap();
        assert_eq!(counts.air_time, takes(station) * sent, "{counts:?}");
    }
    // Both are in every collision, which lasts as long as the long frame.
    let together = u32::try_from(short.collisions).unwrap();
    assert!(together > 50 && long.collisions == short.collisions);
    let alone = takes(1) * (u32::try_from(short.transmissions).unwrap() - together);
    assert_eq!(channel.in_use(), long.air_time + alone);
}

#[test]
fn the_next_frame_waits_for_the_acknowledgement_the_difs_and_a_back_off() {
    let mut seen = [false; 16];
    for seed in 0..200 {
        let mut channel = Channel::new(Medium::default(), 2, seed);
        channel.arrive(0, 0, 1514, 0);
        // The frame comes while the other station sends, so its station must draw as well.
        channel.arrive(100 * US, 1, 1514, 1);
        let mut delivered = Vec::new();
        channel.advance(SECOND, |at, _| delivered.push(at));
        // SIFS 10 us, acknowledgement 20 us and 8 * 14 bits at 24 Mbit/s, DIFS 28 us.
        let least = 10 * US + 20 * US + 4_667 + 28 * US;
        let back_off = delivered[1] - delivered[0] - least - (20 * US + 227_556);
        assert_eq!(back_off % (9 * US), 0, "seed {seed}");
        seen[usize::try_from(back_off / (9 * US)).unwrap()] = true;
    }
    assert_eq!(seen, [true; 16], "0 to 15 slots");
}

#[test]
fn a_frame_is_sent_at_once_only_when_the_back_off_after_the_last_is_over() {
    for seed in 0..200 {
        let mut channel = Channel::new(Medium::default(), 1, seed);
        channel.arrive(0, 0, 78, ());
        let first = channel.next().unwrap();
        channel.advance(first, |_, ()| {});
        let drawn = channel.stations[0].back_off.unwrap();
        // Before the DIFS is over, in the middle of a slot, and when no back-off lasts.
        let arrival = first + [30 * US, 93 * US, 250 * US][usize::try_from(seed % 3).unwrap()];
        channel.arrive(arrival, 0, 78, ());
        channel.advance(arrival, |_, ()| {});
        let begins = (first + 62_667 + drawn * 9 * US).max(arrival);
        let mut arrives = 0;
        channel.advance(SECOND, |at, ()| arrives = at);
        assert_eq!(arrives, begins + first, "seed {seed}");
    }
}

#[test]
fn a_counter_stands_still_while_another_sends() {
    let mut tested = 0;
    for seed in 0..200 {
        let mut channel = Channel::new(Medium::default(), 2, seed);
        for station in [0, 0, 1] {
            channel.arrive(0, station, 78, station);
        }
        let sending = channel.next().unwrap();
        channel.advance(sending, |_, _| {});
        let drawn = [0, 1].map(|station: usize| channel.stations[station].back_off.unwrap());
        if drawn[0] == drawn[1] {
            continue;
        }
        tested += 1;
        let mut delivered = Vec::new();
        channel.advance(SECOND, |at, from| delivered.push((at, from)));
        let first = usize::from(drawn[0] > drawn[1]);
        let at = 2 * sending + 62_667 + drawn[first] * 9 * US;
        let left = drawn[1 - first] - drawn[first];
        let next = at + 62_667 + left * 9 * US + sending;
        assert_eq!(delivered, [(at, first), (next, 1 - first)], "seed {seed}");
    }
    assert!(tested > 150, "{tested}");
}

#[test]
fn one_saturated_station_gets_what_the_closed_form_says() {
    let channel = saturated(Medium::default(), 1, 20 * SECOND, |_| 1514, |_, _| {});
    let exchange = 28.0 + 7.5 * 9.0 + 20.0 + 8.0 * 1536.0 / 54.0 + 10.0 + 20.0 + 8.0 * 14.0 / 24.0;
    let expected = 20e6 / exchange;
    let delivered = float(channel.counts(0).delivered);
    assert!(
        (delivered / expected - 1.0).abs() < 0.01,
        "{delivered} {expected}"
    );
}

#[test]
fn retries_leave_the_loss_that_the_exponent_says() {
    for share in [0.05, 0.1, 0.2, 0.35, 0.5] {
        for retries in [0, 1, 3, 7] {
            let channel = saturated(medium(share, retries), 1, 20 * SECOND, |_| 100, |_, _| {});
            let counts = channel.counts(0);
            let ended = counts.delivered + counts.lost;
            assert!(ended > 10_000, "{ended}");
            let lost = share.powi(i32::from(retries) + 1);
            let told = format!("{share} {retries}: {} of {ended}", counts.lost);
            assert!(is_likely(counts.lost, ended, lost), "{told}");
            assert_eq!(counts.collisions, 0);
            let first = counts.transmissions - counts.retries;
            assert!(first.abs_diff(ended) <= 1, "{told}");
        }
    }
}

#[test]
fn the_frame_error_rate_is_exact_for_every_sender_and_size() {
    for stations in [1, 3, 8] {
        for bytes in [60, 1514] {
            let channel = saturated(
                medium(0.1, 3),
                stations,
                20 * SECOND,
                |station| if station == 0 { bytes } else { 500 },
                |_, _| {},
            );
            for station in 0..stations {
                let counts = channel.counts(station);
                let alone = counts.transmissions - counts.collisions;
                let damaged = alone - counts.delivered;
                assert!(alone > 4_000, "{alone}");
                let told = format!("{station} of {stations}, {bytes}: {damaged} of {alone}");
                assert!(is_likely(damaged, alone, 0.1), "{told}");
            }
            assert_eq!(stations > 1, sum(&channel, |counts| counts.collisions) > 0);
        }
    }
}

/// Computes the probability that a transmission collides, after G. Bianchi, "Performance Analysis of the IEEE
/// 802.11 Distributed Coordination Function", 2000, equations 7 and 9.
fn bianchi(stations: i32, window: f64, doublings: i32) -> f64 {
    let (mut low, mut high) = (0.0, 0.999);
    for _ in 0..100 {
        let p: f64 = f64::midpoint(low, high);
        // (1 - (2p)^m) / (1 - 2p), as the sum that it is, so that p may be a half.
        let doubled: f64 = (0..doublings).map(|n| (2.0 * p).powi(n)).sum();
        let sends = 2.0 / (window + 1.0 + p * window * doubled);
        if 1.0 - (1.0 - sends).powi(stations - 1) > p {
            low = p;
        } else {
            high = p;
        }
    }
    low
}

#[test]
fn saturated_stations_collide_as_often_as_bianchi_says() {
    for stations in [5, 10] {
        // Bianchi's stations retry for ever.
        let medium = medium(0.0, u8::MAX);
        let channel = saturated(medium, stations, 60 * SECOND, |_| 500, |_, _| {});
        let sent = float(sum(&channel, |counts| counts.transmissions));
        let share = float(sum(&channel, |counts| counts.collisions)) / sent;
        let expected = bianchi(i32::try_from(stations).unwrap(), 16.0, 6);
        // Stations collide a little less than Bianchi says. His counters step while others send, 802.11's
        // stand still, so a station that has just sent and draws 0 meets nobody. With his counters the
        // difference is below 1 %.
        let told = format!("{stations}: {share} of {sent}, {expected}");
        assert!((0.95..1.0).contains(&(share / expected)), "{told}");
    }
}

#[test]
fn saturated_stations_get_the_same_share() {
    for stations in [2, 5, 10] {
        let channel = saturated(
            Medium::default(),
            stations,
            20 * SECOND,
            |_| 1514,
            |_, _| {},
        );
        let shares = channel.stations.iter().map(|s| float(s.counts.delivered));
        let squares: f64 = shares.clone().map(|share| share * share).sum();
        let total: f64 = shares.sum();
        let jain = total * total / (float(stations as u64) * squares);
        assert!(jain >= 0.99, "{stations}: {jain}");
    }
}

#[test]
fn a_queue_drops_exactly_what_overflows() {
    let short = Medium {
        queue: 5,
        ..Medium::default()
    };
    let mut channel = Channel::new(short, 2, 1);
    for frame in 0..20 {
        channel.arrive(0, 0, 1514, frame);
    }
    // The other station's queue is its own.
    channel.arrive(0, 1, 60, 20);
    assert_eq!(channel.counts(0).overflowed, 15);
    // There is room again as soon as the first is delivered, and no sooner.
    let first = 20 * US + 227_556;
    channel.arrive(first - 1, 0, 1514, 21);
    assert_eq!(channel.counts(0).overflowed, 16);
    channel.arrive(first, 0, 1514, 22);
    assert_eq!(channel.counts(0).overflowed, 16);
    let mut delivered = Vec::new();
    channel.advance(SECOND, |_, frame| delivered.push(frame));
    delivered.retain(|frame| *frame != 20);
    assert_eq!(delivered, [0, 1, 2, 3, 4, 22]);
    let counts = channel.counts(0);
    assert_eq!(counts.arrived, counts.delivered + counts.overflowed);
    assert_eq!(channel.counts(1).delivered, 1);
}

#[test]
fn frames_that_collide_take_as_long_as_the_longest() {
    let mut collisions = 0;
    saturated(
        medium(0.0, 7),
        3,
        SECOND,
        |station| if station == 1 { 1514 } else { 60 },
        |at, channel| match channel.state {
            State::Busy { until } => {
                let senders = channel.stations.iter().filter(|s| s.sends).count();
                let long = channel.stations[1].sends;
                collisions += u32::from(long && senders > 1);
                let takes = if long { 247_556 } else { 20 * US + 12_149 };
                assert_eq!(until - at, takes);
            }
            State::Free { slots_from } => assert_eq!(slots_from - at, 62_667),
        },
    );
    assert!(collisions > 50, "{collisions}");
}

/// An arriving frame: the time since the one before, its station, its bytes.
type Arrival = (u64, usize, u64);

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let gap = prop_oneof![Just(0), 0..60 * US, 0..2_000 * US];
    prop::collection::vec((gap, 0..5_usize, 60..1515_u64), 1..200)
}

fn media() -> impl Strategy<Value = Medium> {
    (0.0..0.6, 0..8_u8, 1..20_u64).prop_map(|(share, retries, queue)| Medium {
        queue,
        ..medium(share, retries)
    })
}

#[derive(PartialEq, Debug, Default)]
struct Run {
    /// Deliveries: when, from which station, which arrival.
    delivered: Vec<(u64, usize, usize)>,
    counts: Vec<StationCounts>,
    /// The times in which a station sent, if the channel was watched.
    sent: Vec<(u64, u64)>,
}

/// Sends all frames, and advances the channel at each change or only at the end.
fn run(medium: Medium, arrivals: &[Arrival], seed: u64, in_time: bool) -> Run {
    let mut channel = Channel::new(medium, 5, seed);
    let mut run = Run::default();
    let mut now = 0;
    for (n, &(gap, station, bytes)) in arrivals.iter().enumerate() {
        now += gap;
        if in_time {
            run.follow(&mut channel, now);
        }
        channel.arrive(now, station, bytes, (station, n));
        if in_time {
            run.look(&channel, now);
        }
    }
    if in_time {
        run.follow(&mut channel, u64::MAX);
    }
    channel.advance(u64::MAX, |at, (station, n)| {
        run.delivered.push((at, station, n));
    });
    assert_eq!(channel.next(), None);
    run.counts = channel.stations.iter().map(|s| s.counts).collect();
    run
}

impl Run {
    fn follow(&mut self, channel: &mut Channel<(usize, usize)>, until: u64) {
        while let Some(at) = channel.next()
            && at <= until
        {
            channel.advance(at, |due, (station, n)| {
                assert_eq!(due, at);
                self.delivered.push((due, station, n));
            });
            self.look(channel, at);
        }
    }

    fn look(&mut self, channel: &Channel<(usize, usize)>, now: u64) {
        if let State::Busy { until } = channel.state
            && self.sent.last().is_none_or(|last| last.1 != until)
        {
            self.sent.push((now, until));
        }
    }
}

proptest! {
    #[test]
    fn being_late_changes_nothing(
        medium in media(),
        arrivals in arrivals(),
        seed in any::<u64>(),
    ) {
        let in_time = run(medium.clone(), &arrivals, seed, true);
        let late = run(medium, &arrivals, seed, false);
        prop_assert_eq!(in_time.delivered, late.delivered);
        prop_assert_eq!(in_time.counts, late.counts);
    }

    #[test]
    fn the_same_seed_gives_the_same_run(
        medium in media(),
        arrivals in arrivals(),
        seed in any::<u64>(),
    ) {
        let once = run(medium.clone(), &arrivals, seed, true);
        prop_assert_eq!(once, run(medium, &arrivals, seed, true));
    }

    #[test]
    fn nobody_sends_while_another_does(
        medium in media(),
        arrivals in arrivals(),
        seed in any::<u64>(),
    ) {
        let settling = medium.settling();
        let run = run(medium, &arrivals, seed, true);
        for pair in run.sent.windows(2) {
            prop_assert!(pair[1].0 >= pair[0].1 + settling, "{:?}", pair);
        }
        let mut ends = run.sent.iter().map(|(_, until)| *until);
        for (at, ..) in run.delivered {
            // Each frame has a transmission of its own.
            prop_assert!(ends.any(|end| end == at), "{}", at);
        }
    }

    #[test]
    fn frames_of_a_station_keep_their_order_and_all_are_accounted_for(
        medium in media(),
        arrivals in arrivals(),
        seed in any::<u64>(),
    ) {
        let run = run(medium, &arrivals, seed, false);
        prop_assert!(run.delivered.is_sorted_by_key(|(at, ..)| *at));
        for (station, counts) in run.counts.iter().enumerate() {
            let own = run.delivered.iter().filter(|(_, from, _)| *from == station);
            let frames: Vec<_> = own.map(|(.., n)| *n).collect();
            prop_assert!(frames.is_sorted_by(|a, b| a < b), "{:?}", frames);
            prop_assert_eq!(frames.len() as u64, counts.delivered);
            let ended = counts.delivered + counts.lost;
            prop_assert_eq!(counts.arrived, ended + counts.overflowed);
            prop_assert_eq!(counts.transmissions - counts.retries, ended);
        }
    }
}

#[test]
fn another_seed_gives_another_run() {
    let arrivals = [(0, 0, 500), (1, 1, 500), (1, 2, 500)];
    let run = |seed| run(Medium::default(), &arrivals, seed, false).delivered;
    assert_ne!(run(1), run(2));
}
