//! In which order cells are run, and how long that takes.

use std::time::Duration;

use mq_measure::stats::SplitMix64;
use mq_netem::Link;

use super::{
    cell::{Cell, Pattern},
    file::Campaign,
};

/// One run of one cell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Turn {
    /// Which of the campaign's cells.
    pub(crate) cell: usize,
    pub(crate) repetition: u32,
}

/// All runs of a campaign: each repetition is a block of all cells in an order of its own, so that
/// drift of the machine hits all levels alike.
pub(crate) fn turns(campaign: &Campaign) -> Vec<Turn> {
    let mut random = SplitMix64::new(campaign.seed);
    let mut all = Vec::new();
    for repetition in 0..campaign.repetitions {
        let mut block: Vec<_> = (0..campaign.cells.len()).collect();
        // Fisher and Yates.
        for last in (1..block.len()).rev() {
            block.swap(last, random.index(last + 1));
        }
        all.extend(block.into_iter().map(|cell| Turn { cell, repetition }));
    }
    all
}

/// The seed of a run: of its own for each, and the same whenever the campaign is run.
pub(crate) fn seed(campaign: &Campaign, turn: Turn) -> u64 {
    let mut random = SplitMix64::new(campaign.seed ^ (turn.cell as u64) << 32);
    (0..=turn.repetition).fold(0, |_, _| random.next_u64())
}

/// About how long a run takes: what the work lasts, with losses, connections and start-up.
pub(crate) fn expected(cell: &Cell) -> Duration {
    const START: Duration = Duration::from_secs(2);
    let messages = u32::try_from(cell.messages).unwrap_or(u32::MAX);
    let round_trip = round_trip(cell);
    let one = match cell.pattern {
        Pattern::Periodic | Pattern::JobResult => cell.interval(),
        Pattern::StopAndWait => round_trip + Duration::from_millis(2),
        Pattern::Reconnect | Pattern::Connect => round_trip * 4 + Duration::from_millis(5),
    };
    START + round_trip * 8 + one.saturating_mul(messages)
}

/// From the publisher to the broker and back, and on to the subscriber; twice of it where half is
/// lost.
fn round_trip(cell: &Cell) -> Duration {
    let of = |name: Option<&String>| {
        let link = name
            .and_then(|name| Link::load(name).ok())
            .unwrap_or_default();
        link.up.delay + link.down.delay
    };
    let links = of(cell.link.as_ref()) + of(cell.sub_link.as_ref());
    let share: Option<mq_netem::Probability> =
        cell.loss.as_ref().and_then(|loss| loss.parse().ok());
    let lost = share.map_or(0.0, mq_netem::Probability::share);
    // A loss costs about a quarter of a second and a round trip.
    links + Duration::from_millis(250).mul_f64(lost) + links.mul_f64(lost * 2.0)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;
    use crate::campaign::file::Extent;

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
        let all = turns(&campaign);
        assert_eq!(all.len(), 12 * 20);
        let blocks: Vec<_> = all.chunks(12).collect();
        for (number, block) in (0..).zip(&blocks) {
            let cells: BTreeSet<_> = block.iter().map(|turn| turn.cell).collect();
            assert_eq!(cells, (0..12).collect());
            assert!(block.iter().all(|turn| turn.repetition == number));
        }
        let orders: HashSet<Vec<_>> = blocks
            .iter()
            .map(|block| block.iter().map(|turn| turn.cell).collect())
            .collect();
        assert_eq!(orders.len(), 20);
        assert_eq!(turns(&campaign), all);
    }

    #[test]
    fn seeds_are_of_their_own_and_stay() {
        let campaign = campaign();
        let all = turns(&campaign);
        let seeds: HashSet<_> = all.iter().map(|turn| seed(&campaign, *turn)).collect();
        assert_eq!(seeds.len(), all.len());
        assert_eq!(seed(&campaign, all[5]), seed(&campaign, all[5]));
    }

    #[test]
    fn a_thousand_messages_a_second_apart_take_a_thousand_seconds() {
        let campaign = campaign();
        let seconds = expected(&campaign.cells[0].cell).as_secs();
        assert!((1000..1010).contains(&seconds), "{seconds}");
    }
}
