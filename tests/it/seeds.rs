//! Tests that run again and again, each time with another seed.

use std::ops::Range;

/// Runs a test in virtual time with each seed and prints it: with all of them if `MQ_NIGHTLY` is set, with a quarter of
/// them else, with one if `MQ_SEED` names it. Returns the result of each run.
#[expect(clippy::print_stdout, reason = "the seed of a run is to be seen")]
pub(crate) fn over_seeds<T, F: Future<Output = T>>(
    seeds: Range<u64>,
    mut run: impl FnMut(u64) -> F,
) -> Vec<T> {
    let seeds = if let Ok(seed) = std::env::var("MQ_SEED") {
        let seed: u64 = seed.parse().unwrap();
        seed..seed + 1
    } else {
        let quarter = seeds.start..seeds.start + (seeds.end - seeds.start) / 4;
        mq_testkit::nightly(quarter, seeds)
    };
    let each = seeds.map(|seed| {
        println!("MQ_SEED={seed}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        runtime.unwrap().block_on(run(seed))
    });
    each.collect()
}
