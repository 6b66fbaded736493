//! Who goes first on the processors: sched(7).

#![expect(unsafe_code, reason = "scheduling policies are not in nix")]

use std::{fs, mem};

/// Of the emulator's threads: before all ordinary ones, and before programs under test.
const EMULATOR: i32 = 10;

/// Of programs under test, where they ask for it.
const EARLY: i32 = 1;

/// Asks for the emulator's place for this thread; `false` where that is not permitted.
pub(super) fn run_first() -> bool {
    set(0, EMULATOR)
}

/// Asks that all threads of a process go before ordinary ones, though after the emulator's: so that
/// they answer a packet when it comes, whatever else begins or ends on this machine. Threads that they
/// start later do as well.
///
/// `false` where that is not permitted, and nothing is changed; it needs `CAP_SYS_NICE` or
/// `RLIMIT_RTPRIO`. A process that computes without end keeps ordinary ones from 95 % of the processors.
#[must_use]
pub fn run_early(process: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else {
        return false;
    };
    let threads = threads.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.parse::<libc::pid_t>().ok()
    });
    let mut permitted = true;
    for thread in threads {
        // Those that have a place keep it.
        if policy(thread) == libc::SCHED_OTHER {
            permitted &= set(thread, EARLY);
        }
    }
    permitted
}

fn policy(thread: libc::pid_t) -> i32 {
    // SAFETY: it takes a number, and no memory.
    unsafe { libc::sched_getscheduler(thread) }
}

/// Of a thread; 0 is this one.
fn set(thread: libc::pid_t, priority: i32) -> bool {
    // SAFETY: the pointer is to a `sched_param` that outlives the call.
    unsafe {
        let mut wanted: libc::sched_param = mem::zeroed();
        wanted.sched_priority = priority;
        libc::sched_setscheduler(thread, libc::SCHED_FIFO, &raw const wanted) == 0
    }
}
