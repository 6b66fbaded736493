//! The body of the fuzz target `recovery`, run over random input and over its corpus.

use crate::corpus;

#[path = "../bodies/recovery.rs"]
mod recovery;

#[test]
fn a_damaged_store_is_refused_or_what_it_was() {
    let first = std::env::var("MQ_SEED").ok().and_then(|s| s.parse().ok());
    let seeds = first.map_or(0..400, |seed: u64| seed..seed + 1);
    println!("seeds {seeds:?}; MQ_SEED=n runs one");
    for seed in seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let length = random.usize(8..600);
        let mut input: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
        input[0] |= 64;
        let outcome = std::panic::catch_unwind(|| recovery::run(&input));
        assert!(outcome.is_ok(), "MQ_SEED={seed} shows this again");
    }
}

#[test]
fn any_bytes_are_a_message_or_are_refused() {
    println!("seeds 0..20000");
    for seed in 0..20_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        // A kind of value, its expiry, then PUBLISH at QoS 1 of the topic "a".
        let mut input = vec![0; 9];
        let rest = random.u8(6..60);
        input.extend([0x32, rest, 0, 1, b'a', 0, 1, random.u8(..rest - 4)]);
        input.extend(
            (6..rest)
                .map(|_| random.choice([0, 1, 2, 3, 8, 9, 11, 35, 38, 97]))
                .map(Option::unwrap_or_default),
        );
        for _ in 0..random.usize(..3) {
            let at = random.usize(1..input.len());
            input[at] = random.u8(..);
        }
        let outcome = std::panic::catch_unwind(|| recovery::run(&input));
        assert!(outcome.is_ok(), "seed {seed} shows this again");
    }
}

#[test]
fn the_corpus_passes() {
    for (number, input) in (1..).zip(corpus::inputs("recovery")) {
        println!("line {number}");
        recovery::run(&input);
    }
}
