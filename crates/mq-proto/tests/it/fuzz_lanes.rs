//! Runs the body of the fuzz target `lanes` over random steps and over its corpus.

use crate::{corpus, util::Rng};

#[path = "../bodies/lanes.rs"]
mod lanes;

#[test]
fn no_order_of_lanes_breaks_a_connection() {
    let first = std::env::var("MQ_SEED").ok().and_then(|s| s.parse().ok());
    let seeds = first.map_or(0..20_000, |seed: u64| seed..seed + 1);
    println!("seeds {seeds:?}; MQ_SEED=n runs one");
    for seed in seeds {
        let mut rng = Rng(seed);
        let length = 8 + rng.below(400);
        #[expect(clippy::cast_possible_truncation, reason = "one byte of it")]
        let input: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
        let outcome = std::panic::catch_unwind(|| lanes::run(&input));
        assert!(outcome.is_ok(), "MQ_SEED={seed} shows this again");
    }
}

#[test]
fn the_corpus_passes() {
    for (number, input) in (1..).zip(corpus::inputs("lanes")) {
        println!("line {number}");
        lanes::run(&input);
    }
}
