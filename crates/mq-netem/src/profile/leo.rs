//! A link like that of a low-orbit constellation, made by chance.

use std::fmt::Write as _;

/// Time for which a terminal keeps its satellite, in seconds.
const SLOT_S: u32 = 15;

/// Hand-overs until the link repeats: ten minutes.
const SLOTS: u32 = 40;

/// The round trip over a satellite, in tenths of a millisecond.
const RTT: std::ops::RangeInclusive<u32> = 300..=800;

/// The outage of a hand-over, in milliseconds.
const OUTAGE_MS: std::ops::RangeInclusive<u32> = 50..=200;

/// Time of bursty loss after an outage, in milliseconds.
const UNSETTLED_MS: u32 = 1_000;

/// Returns the text of a link like that of a low-orbit constellation, drawn from `seed`: another round trip every 15 s,
/// with a short outage and losses in bursts at each hand-over.
///
/// The comments in the text say which figures were measured, and by whom, and which are assumed. The shipped link
/// `leo` is the text of seed 1.
#[must_use]
pub fn leo_profile(seed: u64) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut text = format!(
        "# Made by `mqbench lab leo --seed {seed}`.\n\
         #\n\
         # Measured by G. Huston, \"A transport protocol's view of Starlink\" (APNIC, May 2024): a terminal has another\n\
         # satellite every {SLOT_S} s, with it another round trip, at worst 80 ms after 30 ms, and loses packets at the\n\
         # hand-over; successive round trips differ by 6.7 ms on average, here by a jitter of 7 ms each way.\n\
         #\n\
         # Assumed: round trips are drawn from 30 to 80 ms. A hand-over is an outage of 50 to 200 ms, and then 1 s in\n\
         # which 10 % of the packets are lost, 4 in a row on average; in between, 0.5 % are lost, each by itself.\n\
         # 15 Mbit/s up and 100 Mbit/s down.\n\
         description = \"a low-orbit constellation: RTT 30 to 80ms, a hand-over every {SLOT_S}s (seed {seed})\"\n\
         repeat_after = \"{}s\"\n",
        SLOT_S * SLOTS,
    );
    let mut delay = draw_delay(&mut random);
    for (side, rate) in [("up", "15mbit"), ("down", "100mbit")] {
        let _ = write!(
            text,
            "\n[{side}]\ndelay = \"{delay}\"\njitter = \"7ms\"\nrate = \"{rate}\"\nqueue = \"1000p\"\nloss = \"0.5%\"\n"
        );
    }
    for slot in 1..SLOTS {
        let begins = slot * SLOT_S * 1_000;
        let back = begins + random.u32(OUTAGE_MS);
        delay = draw_delay(&mut random);
        let unsettled = format!("delay = \"{delay}\", loss = \"10%\", burst = 4");
        for (after, change) in [
            (begins, "loss = \"100%\"".to_owned()),
            (back, unsettled),
            (back + UNSETTLED_MS, format!("delay = \"{delay}\"")),
        ] {
            let _ = write!(
                text,
                "\n[[change]]\nafter = \"{after}ms\"\nup = {{ {change} }}\ndown = {{ {change} }}\n"
            );
        }
    }
    text
}

/// Draws the delay of each direction over one satellite.
fn draw_delay(random: &mut fastrand::Rng) -> String {
    format!("{}us", random.u32(RTT) * 50)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Link, presets};

    #[test]
    fn the_shipped_link_is_the_generator_s_own() {
        let shipped = presets::find(presets::LINKS, "leo").unwrap();
        assert_eq!(
            shipped,
            leo_profile(1),
            "mqbench lab leo --seed 1 > profiles/net/leo.toml"
        );
    }

    #[test]
    fn a_hand_over_comes_every_15_s() {
        for seed in 0..20 {
            let link: Link = leo_profile(seed).parse().unwrap();
            assert_eq!(link.up.changes.len(), 3 * 39, "seed {seed}");
            assert_eq!(
                link.up.changes.repeat_after(),
                Some(Duration::from_mins(10))
            );
            for slot in 1..40_u64 {
                for side in [&link.up, &link.down] {
                    let at = |ms| side.changes.at((slot * 15_000 + ms) * 1_000_000).0.unwrap();
                    assert!((at(0).loss.mean() - 1.0).abs() < f64::EPSILON);
                    assert!((at(200).loss.mean() - 0.1).abs() < 1e-9);
                    let settled = at(1_200);
                    assert!((settled.loss.mean() - 0.005).abs() < 1e-9);
                    let limits = Duration::from_millis(15)..=Duration::from_millis(40);
                    assert!(limits.contains(&settled.delay), "seed {seed}, {settled:?}");
                }
            }
        }
    }
}
