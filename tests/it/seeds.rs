//! Tests that run again and again, each time with another seed.

use std::ops::Range;

/// Runs a test in virtual time with each seed, or with the one that `MQ_SEED` names, and prints which. Returns what each
/// run came to.
#[expect(clippy::print_stdout, reason = "the seed of a run is to be seen")]
pub(crate) fn over_seeds<T, F: Future<Output = T>>(
    seeds: Range<u64>,
    mut run: impl FnMut(u64) -> F,
) -> Vec<T> {
    let seeds = match std::env::var("MQ_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => seeds,
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
