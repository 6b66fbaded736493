//! Options that make a queueing discipline the same again.
//!
//! The kernel returns some quantities rounded down from its own unit. Given back unchanged, they would shrink
//! each time.

use super::{nla, nla::Writer, tbf};

/// `TCA_FQ_CODEL_TARGET`, `_INTERVAL` and `_CE_THRESHOLD` of `linux/pkt_sched.h`: microseconds.
const CODEL_TIMES: [u16; 3] = [1, 3, 7];

/// Returns the options by which a discipline of this kind is made again. `told` has its options as the kernel returned
/// them, and will return them for the new one. `None` if the discipline cannot be restored.
pub(in crate::kernel) fn restoring(kind: &str, told: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "tbf" => tbf::restoring(told),
        "fq_codel" => Some(fq_codel(told)),
        _ => Some(told.to_vec()),
    }
}

/// Returns the options that restore an `fq_codel`. `CoDel` keeps times in units of 1.024 us: it returns 5000 us as 4999
/// us, which would become 4998 us. One microsecond more gives the same number of units as before, whatever the time.
fn fq_codel(told: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    for (kind, value) in nla::attributes(told) {
        if CODEL_TIMES.contains(&kind) {
            writer.put_words(kind, &[nla::word(value, 0).saturating_add(1)]);
        } else {
            writer.put(kind, value);
        }
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codel_times_stay_what_they_are() {
        // As the kernel keeps and returns them.
        let keeps = |us: u32| (u64::from(us) * 1000) >> 10;
        let tells = |kept: u64| u32::try_from((kept << 10) / 1000).unwrap();
        for us in (1..20_000).chain([100_000, 1_000_000, 123_457]) {
            let told = tells(keeps(us));
            let mut options = Writer::default();
            options.put_words(1, &[told]);
            options.put_words(2, &[7]);
            let again = restoring("fq_codel", &options.finish()).unwrap();
            let mut again = nla::attributes(&again);
            assert_eq!(
                keeps(nla::word(again.next().unwrap().1, 0)),
                keeps(us),
                "{us}"
            );
            assert_eq!(nla::word(again.next().unwrap().1, 0), 7);
        }
    }
}
