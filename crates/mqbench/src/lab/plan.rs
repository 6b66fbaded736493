//! The order of runs, and how long they take.

use std::time::Duration;

use mq_measure::{
    convert::{float, float_len},
    stats::SplitMix64,
};
use mq_netem::Link;

use super::{cpu_monitor, half_open, load};
use crate::{
    campaign::{cell::Cell, file::Campaign, pattern::Pattern},
    testbed::Topology,
};

/// A run of one of a campaign's cells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct PlannedRun {
    /// The index of the campaign's cell.
    pub(crate) cell: usize,
    pub(crate) repetition: u32,
}

/// Plans all runs of a campaign. Each repetition is a block of all cells in a random order of its own, so that drift of
/// the machine affects all levels alike.
pub(crate) fn planned_runs(campaign: &Campaign) -> Vec<PlannedRun> {
    let mut random = SplitMix64::new(campaign.seed);
    let mut all = Vec::new();
    for repetition in 0..campaign.repetitions {
        let mut block: Vec<_> = (0..campaign.cells.len()).collect();
        // Fisher and Yates.
        for last in (1..block.len()).rev() {
            block.swap(last, random.index(last + 1));
        }
        all.extend(
            block
                .into_iter()
                .map(|cell| PlannedRun { cell, repetition }),
        );
    }
    all
}

/// Derives the seed of a repetition, which is the same for all cells: the arms of a comparison have their losses from one
/// sequence.
pub(crate) fn seed(campaign: &Campaign, run: PlannedRun) -> u64 {
    of_repetition(campaign.seed, run.repetition)
}

/// Derives a number that stands for a run: the same in every campaign that has this cell, repetition and campaign seed.
pub(crate) fn identity(campaign: &Campaign, run: PlannedRun) -> u64 {
    let cell = &campaign.cells[run.cell].cell;
    let words = serde_json::to_vec(cell).expect("a cell is text and numbers");
    let mut random = SplitMix64::new(campaign.seed);
    let of_cell = words.chunks(8).fold(random.next_u64(), |seed, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        SplitMix64::new(seed ^ u64::from_le_bytes(word)).next_u64()
    });
    of_repetition(of_cell, run.repetition)
}

/// Returns the number of a repetition in the sequence of a seed.
fn of_repetition(seed: u64, repetition: u32) -> u64 {
    let mut random = SplitMix64::new(seed);
    (0..=repetition).fold(0, |_, _| random.next_u64())
}

/// Estimates how long a run of each of a campaign's cells takes.
pub(crate) fn durations(campaign: &Campaign) -> Vec<Duration> {
    let cells = campaign.cells.iter();
    cells.map(|one| expected(&one.cell)).collect()
}

/// Estimates how long a run takes: its work with losses, connections and start-up.
pub(crate) fn expected(cell: &Cell) -> Duration {
    const START: Duration = Duration::from_secs(2);
    // A storm ends two brokers, each of which waits 5 s at most for its connections.
    const ENDS: Duration = Duration::from_secs(10);
    // Measured with 10,000 devices on two busy processors, 2 (TLS) to 5 ms (QUIC) each: connect, lose the broker,
    // come back, leave.
    const DEVICE: Duration = Duration::from_millis(4);
    let planned_runs = cell.messages.div_ceil(cell.burst.get().into());
    let messages = u32::try_from(planned_runs).unwrap_or(u32::MAX);
    let LinkTimes {
        publisher,
        subscriber,
        losses,
    } = link_times(cell);
    let (beside, one) = match cell.pattern {
        Pattern::Periodic | Pattern::JobResult | Pattern::Coap => (START, cell.interval()),
        // Every message goes one way.
        Pattern::StopAndWait => {
            let way = (publisher + subscriber + losses) / 2;
            (START, way + Duration::from_millis(2))
        }
        // Handshakes and the DISCONNECT stay on the publisher's side.
        Pattern::Reconnect | Pattern::Connect => {
            let connection = publisher * 4 + losses * 2 + subscriber / 2;
            (START, connection + Duration::from_millis(5))
        }
        Pattern::Storm => (START + ENDS, DEVICE),
        Pattern::HalfOpen => (START + half_open::watched(cell), DEVICE),
        Pattern::Load => (START + load::LASTS, DEVICE),
    };
    beside + (publisher + subscriber + losses) * 8 + one.saturating_mul(messages)
}

/// Estimates the share of a processor that a cell uses if it takes `expected`. Measured on a processor of 2.5 GHz: a
/// start takes 110 to 220 ms and the kernel's own work, a message 0.7 (TLS) to 1.6 ms (QUIC), emulator included. A
/// connection with its message takes 4 (TLS) to 6 ms (QUIC).
///
/// Each station of a channel does about as much as the measured publisher. Those beside it have a subscriber each.
///
/// Each host of a row does about as much as the one broker of other cells.
///
/// A pattern that saturates the processors runs alone.
pub(crate) fn load(cell: &Cell, expected: Duration) -> f64 {
    const BEGINNING: f64 = 0.3;
    const MESSAGE: f64 = 0.0013;
    const CONNECTION: f64 = 0.005;
    if cell.pattern.saturates_processors() {
        return float_len(cpu_monitor::processors());
    }
    let message = match cell.pattern {
        Pattern::Reconnect | Pattern::Connect => CONNECTION,
        _ => MESSAGE,
    };
    let messages = float(cell.messages) * f64::from(cell.stations);
    let others = 2.0 * CONNECTION * f64::from(cell.stations - 1);
    let tiers = f64::from(cell.tiers());
    ((BEGINNING + messages * message) * tiers + others) / expected.as_secs_f64()
}

/// Times that a cell's links add to its work.
struct LinkTimes {
    /// The round trip from the publisher to the broker.
    publisher: Duration,
    /// The round trip from the broker to the subscriber.
    subscriber: Duration,
    /// The time that losses add to both round trips together.
    losses: Duration,
}

fn link_times(cell: &Cell) -> LinkTimes {
    let link = |name: Option<String>| {
        name.and_then(|name| Link::load(&name).ok())
            .unwrap_or_default()
    };
    let [publisher, subscriber] = cell.links().map(link);
    let uplinks: Vec<_> = cell.uplinks().into_iter().map(link).collect();
    let subscriber = match cell.topology {
        // Both clients are on one host.
        Topology::Shared => publisher.clone(),
        _ => subscriber,
    };
    let ways = [
        &publisher.up,
        &publisher.down,
        &subscriber.up,
        &subscriber.down,
    ];
    let between = uplinks.iter().flat_map(|link| [&link.up, &link.down]);
    let arrive: f64 = ways
        .into_iter()
        .chain(between)
        .map(|way| 1.0 - way.loss.mean())
        .product();
    // On a medium a damaged frame is sent again, and is seldom lost.
    let frames = cell.medium.as_ref().and(cell.loss.as_ref());
    let frames = frames.and_then(|loss| loss.parse().ok());
    let damaged = frames.map_or(0.0, mq_netem::Probability::share);
    let damaged = damaged.powi(1 + i32::from(cell.retries.unwrap_or(7)));
    let lost = 1.0 - arrive * (1.0 - damaged).powi(2);
    let round_trip = |link: &Link| link.up.delay + link.down.delay;
    let (publisher, subscriber) = (round_trip(&publisher), round_trip(&subscriber));
    let publisher = publisher + uplinks.iter().map(round_trip).sum::<Duration>();
    LinkTimes {
        publisher,
        subscriber,
        losses: (first_timeout(cell) + publisher + subscriber).mul_f64(lost),
    }
}

/// Returns the time that a lost packet costs beside a round trip of each side: TCP's least timeout and the answer's
/// delay. For connections it is the timeout of the first packet (RFC 6298 §2).
fn first_timeout(cell: &Cell) -> Duration {
    match cell.pattern {
        Pattern::Reconnect | Pattern::Connect => Duration::from_secs(1),
        _ => Duration::from_millis(250),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;
    use crate::campaign::{file::Extent, tests::campaigns};

    /// Number of cells that a quick run has at once.
    const SIDE_BY_SIDE: u32 = 16;

    fn campaign() -> Campaign {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("one.toml");
        let text = r#"
            title = ""
            source = ""
            repetitions = 20
            seed = 7
            work.link = "s22/wifi"
            factors.loss = ["0%", "1%", "2%", "3%", "4%", "5%"]
            factors.transport = ["tls", "quic"]
            plot = { kind = "lines", metric = "latency_mean", x = "loss", series = "transport" }
        "#;
        std::fs::write(&file, text).unwrap();
        Campaign::load(&file, Extent::Full).unwrap()
    }

    #[test]
    fn each_block_has_every_cell_once_in_an_order_of_its_own() {
        let campaign = campaign();
        let all = planned_runs(&campaign);
        assert_eq!(all.len(), 12 * 20);
        let blocks: Vec<_> = all.chunks(12).collect();
        for (number, block) in (0..).zip(&blocks) {
            let cells: BTreeSet<_> = block.iter().map(|run| run.cell).collect();
            assert_eq!(cells, (0..12).collect());
            assert!(block.iter().all(|run| run.repetition == number));
        }
        let orders: HashSet<Vec<_>> = blocks
            .iter()
            .map(|block| block.iter().map(|run| run.cell).collect())
            .collect();
        assert_eq!(orders.len(), 20);
        assert_eq!(planned_runs(&campaign), all);
    }

    #[test]
    fn cells_of_a_repetition_share_their_seed_and_no_two_runs_their_identity() {
        let campaign = campaign();
        let all = planned_runs(&campaign);
        let identities: HashSet<_> = all.iter().map(|run| identity(&campaign, *run)).collect();
        assert_eq!(identities.len(), all.len());
        let of_block = |runs: &[PlannedRun]| {
            let seeds: HashSet<_> = runs.iter().map(|run| seed(&campaign, *run)).collect();
            assert_eq!(seeds.len(), 1);
            seeds
        };
        let seeds: HashSet<_> = all.chunks(12).flat_map(of_block).collect();
        assert_eq!(seeds.len(), 20);
    }

    #[test]
    fn a_thousand_messages_a_second_apart_take_a_thousand_seconds() {
        let campaign = campaign();
        let seconds = expected(&campaign.cells[0].cell).as_secs();
        assert!((1000..1010).contains(&seconds), "{seconds}");
    }

    #[test]
    fn a_storm_of_ten_thousand_devices_takes_about_a_minute() {
        let storm = Cell {
            pattern: Pattern::Storm,
            messages: 10_000,
            ..Cell::default()
        };
        let seconds = expected(&storm).as_secs();
        assert!((40..80).contains(&seconds), "{seconds}");
    }

    #[test]
    fn each_station_of_a_channel_loads_the_processors_with_messages_or_connections() {
        let seconds = |pattern, stations| {
            let cell = Cell {
                pattern,
                medium: Some("s21/medium".to_owned()),
                stations,
                messages: 100,
                ..Cell::default()
            };
            load(&cell, Duration::from_secs(1))
        };
        // As measured: CPU time of eight stations over that of one.
        for (pattern, least, most) in [
            (Pattern::StopAndWait, 2.5, 4.5),
            (Pattern::Reconnect, 4.0, 7.0),
        ] {
            let more = seconds(pattern, 8) / seconds(pattern, 1);
            assert!((least..most).contains(&more), "{pattern:?}: {more}");
        }
    }

    #[test]
    fn losses_are_part_of_the_time_wherever_they_are_given() {
        let cell = |link: &str, loss: Option<&str>| Cell {
            pattern: Pattern::StopAndWait,
            link: Some(link.to_owned()),
            loss: loss.map(str::to_owned),
            ..Cell::default()
        };
        let clean = expected(&cell("w20/wifi", None));
        let lossy = expected(&cell("w20/wifi", Some("5%")));
        assert!(lossy > clean + Duration::from_secs(10), "{lossy:?}");
        assert_eq!(lossy, expected(&cell("w20/wifi@loss=5%", None)));
        let up = expected(&cell("w20/wifi@up.loss=5%", None));
        assert!(clean < up && up < lossy, "{up:?}");
    }

    /// Estimates the wall time of a campaign, and the time of one run after the other.
    fn estimate(campaign: &Campaign) -> (Duration, Duration) {
        let runs = planned_runs(campaign).into_iter();
        let runs: Vec<_> = runs
            .map(|run| expected(&campaign.cells[run.cell].cell))
            .collect();
        let serial: Duration = runs.iter().sum();
        let longest = runs.iter().max().copied().unwrap_or_default();
        (longest.max(serial / SIDE_BY_SIDE), serial)
    }

    #[test]
    fn a_quick_run_of_one_takes_two_minutes_and_of_all_eighteen() {
        let full = campaigns(Extent::Full);
        let (mut walls, mut serials) = ([Duration::ZERO; 2], [Duration::ZERO; 2]);
        for (name, quick) in campaigns(Extent::Quick) {
            for (extent, campaign) in [&quick, &full[&name]].into_iter().enumerate() {
                let (wall, serial) = estimate(campaign);
                let (cells, repetitions) = (campaign.cells.len(), campaign.repetitions);
                println!(
                    "{name} {:?}: {cells} x {repetitions}, {wall:.0?}, serial {serial:.0?}",
                    [Extent::Quick, Extent::Full][extent]
                );
                walls[extent] += wall;
                serials[extent] += serial;
                assert!(
                    extent == 1 || wall < Duration::from_mins(2),
                    "{name}: {wall:?}"
                );
            }
        }
        println!("all: {walls:.0?}, serial {serials:.0?}");
        assert!(walls[0] < Duration::from_mins(18), "{walls:?}");
    }
}
