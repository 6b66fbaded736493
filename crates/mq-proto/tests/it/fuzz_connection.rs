//! Runs the body of the fuzz target `connection` over random steps and over its corpus.

use crate::{corpus, util::Rng};

#[path = "../bodies/connection.rs"]
mod connection;

#[test]
fn no_order_of_packets_and_commands_breaks_a_connection() {
    let first = std::env::var("MQ_SEED").ok().and_then(|s| s.parse().ok());
    let seeds = first.map_or(0..20_000, |seed: u64| seed..seed + 1);
    println!("seeds {seeds:?}; MQ_SEED=n runs one");
    for seed in seeds {
        let mut rng = Rng(seed);
        let length = 8 + rng.below(200);
        #[expect(clippy::cast_possible_truncation, reason = "one byte of it")]
        let input: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
        let outcome = std::panic::catch_unwind(|| connection::run(&input));
        assert!(outcome.is_ok(), "MQ_SEED={seed} shows this again");
    }
}

#[test]
fn the_corpus_passes() {
    for (number, input) in (1..).zip(corpus::inputs("connection")) {
        println!("line {number}");
        connection::run(&input);
    }
}
