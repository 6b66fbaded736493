//! The real-time priority of threads: sched(7).

#![expect(unsafe_code, reason = "scheduling policies are not in nix")]

use std::{fs, mem};

/// The priority of the emulator's threads: above ordinary ones and above programs under test.
const EMULATOR: i32 = 10;

/// The priority of programs under test.
const EARLY: i32 = 1;

/// Gives this thread the emulator's priority; `false` if that is not permitted.
pub(super) fn run_first() -> bool {
    set(0, EMULATOR)
}

/// Gives all threads of a process a priority above ordinary threads and below the emulator's. So they answer a
/// packet when it comes, whatever else begins or ends on this machine. Threads that they start later inherit
/// the priority.
///
/// Returns `false` and changes nothing if that is not permitted: it needs `CAP_SYS_NICE` or `RLIMIT_RTPRIO`. A
/// process that computes without end leaves ordinary threads 5 % of the processors.
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
        // A thread with a real-time priority keeps it.
        if policy(thread) == libc::SCHED_OTHER {
            permitted &= set(thread, EARLY);
        }
    }
    permitted
}

fn policy(thread: libc::pid_t) -> i32 {
    // SAFETY: the call takes a number and no memory.
    unsafe { libc::sched_getscheduler(thread) }
}

/// Sets the priority of a thread; 0 is this one.
fn set(thread: libc::pid_t, priority: i32) -> bool {
    // SAFETY: the pointer is to a `sched_param` that outlives the call.
    unsafe {
        let mut wanted: libc::sched_param = mem::zeroed();
        wanted.sched_priority = priority;
        libc::sched_setscheduler(thread, libc::SCHED_FIFO, &raw const wanted) == 0
    }
}
