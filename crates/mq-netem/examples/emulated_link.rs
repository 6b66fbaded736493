//! Sends 1,000 packets over an emulated link, as arithmetic: the same seed gives the same packets,
//! in no time and without a socket: `emulated_link [PROFILE [SEED]]`.
//!
//! `cargo run -p mq-netem --example emulated_link -- s22/wifi@loss=5%`
#![expect(clippy::print_stdout, reason = "an example says what it does")]

use std::time::Duration;

use mq_netem::{Fate, Link, Pipe};

/// A packet of this size leaves each millisecond: 9.6 Mbit/s.
const BYTES: u64 = 1_200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let profile = args.next().unwrap_or_else(|| "s22/wifi@loss=5%".into());
    let seed = args.next().map_or(Ok(1), |text| text.parse())?;
    let link = Link::load(&profile)?;
    println!("{profile}: {}", link.description);

    let mut up = Pipe::new(link.up, seed);
    let mut delays = Vec::new();
    for millisecond in 0..1_000 {
        let now = millisecond * 1_000_000;
        if let Fate::Delivered { at, .. } = up.arrive(now, BYTES) {
            delays.push(at - now);
        }
    }
    delays.sort_unstable();
    let at = |share: usize| {
        let delay = delays.get(delays.len() * share / 100).copied();
        Duration::from_nanos(delay.unwrap_or_default())
    };
    println!(
        "delivered {}, median {:?}, 99 % within {:?}",
        delays.len(),
        at(50),
        at(99)
    );
    println!(
        "lost {}, dropped by a full queue {}",
        up.counts.lost, up.counts.overflowed
    );
    Ok(())
}
