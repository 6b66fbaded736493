//! Runs a property over generated values.
//!
//! Every run draws a new seed. A failure prints it, with the smallest value that was found to fail;
//! `PROPTEST_RNG_SEED=<seed> cargo test -p mq-codec <test>` shows the same failure again, and
//! `PROPTEST_CASES=<number>` runs longer. Nothing is written to disk: a failure that is worth
//! keeping becomes a test with a name.

use std::{
    env,
    fmt::Debug,
    hash::{BuildHasher, RandomState},
};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngSeed, TestRunner},
};

/// Runs `test`, which fails by panicking, over `cases` values of `strategy`.
#[track_caller]
pub(crate) fn check<S>(cases: u32, strategy: &S, test: impl Fn(S::Value))
where
    S: Strategy<Value: Debug>,
{
    let mut config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    if env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => RandomState::new().hash_one(0),
    };
    config.rng_seed = RngSeed::Fixed(seed);
    let result = TestRunner::new(config).run(strategy, |value| {
        test(value);
        Ok(())
    });
    if let Err(error) = result {
        panic!("PROPTEST_RNG_SEED={seed} shows this again: {error}");
    }
}
