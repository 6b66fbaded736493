//! File descriptors: each connection over TCP is one.

/// The largest table that [`make_room`] asks for, in descriptors: 8 MiB of the kernel's memory.
#[cfg(unix)]
const MOST: i32 = 1 << 20;

/// Raises the limit of descriptors to the most that this process may have, and makes room for
/// `connections` of them in the kernel's table. Call it while the process has one thread.
///
/// The kernel doubles the table whenever it is full. With several threads, the thread that needs a larger
/// table then waits until no processor reads the old one, tens of milliseconds. All tasks of its worker
/// wait with it, so that a crowd would hold up connected clients.
#[cfg(unix)]
pub(crate) fn make_room(connections: usize) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    let allowed = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    };
    // The limit has 32 or 64 bits, and says by its greatest value that there is none.
    let allowed = i32::try_from(allowed).unwrap_or(i32::MAX);
    let last = i32::try_from(connections)
        .unwrap_or(MOST)
        .min(allowed - 1)
        .min(MOST);
    if let Ok(any) = std::fs::File::open("/") {
        let _ = occupy(&any, last);
    }
}

/// Duplicates `file` at the first free number from `number` on, which makes the table that large.
#[cfg(unix)]
fn occupy(file: &std::fs::File, number: i32) -> nix::Result<std::os::fd::OwnedFd> {
    use nix::fcntl::{FcntlArg, fcntl};
    use std::os::fd::{FromRawFd as _, OwnedFd};

    let copy = fcntl(file, FcntlArg::F_DUPFD_CLOEXEC(number))?;
    #[expect(unsafe_code, reason = "nix gives a number, which has to be closed")]
    // SAFETY: fcntl made this descriptor above, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Does nothing: only Unix has such a table.
#[cfg(not(unix))]
pub(crate) fn make_room(_connections: usize) {}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    /// Reads the size of this process's table, from the kernel.
    fn size() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status
            .lines()
            .find_map(|line| line.strip_prefix("FDSize:"))
            .unwrap();
        size.trim().parse().unwrap()
    }

    /// Returns `true` if any descriptor from `number` on is open. Other tests of this process use lower ones.
    fn any_from(number: u64) -> bool {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let mut names = open.map(|entry| entry.unwrap().file_name());
        names.any(|name| name.to_str().unwrap().parse::<u64>().unwrap() >= number)
    }

    #[test]
    fn the_table_has_room_for_all_connections_and_nothing_stays_open() {
        super::make_room(1_000);
        assert!(size() > 1_000, "{}", size());
        assert!(!any_from(1_000));

        let any = std::fs::File::open("/").unwrap();
        let occupied = super::occupy(&any, 1_000).unwrap();
        assert!(any_from(1_000));
        drop(occupied);
        assert!(!any_from(1_000));

        // More than the process may have is no mistake.
        super::make_room(usize::MAX);
    }
}
