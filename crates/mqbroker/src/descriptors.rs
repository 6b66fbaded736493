//! File descriptors: each connection over TCP is one.

/// The most that there is room made for: 8 MiB of the kernel's memory.
#[cfg(unix)]
const MOST: u64 = 1 << 20;

/// Lets this process open as many as it may, and makes room for `connections` of them in the kernel's
/// table. To be called while there is one thread.
///
/// The table doubles whenever it is full. With several threads the one that needed it then waits until
/// no processor reads the old one any more, tens of milliseconds with all tasks of its worker, and so
/// a crowd that comes would hold up connected clients.
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
    let last = u64::try_from(connections)
        .unwrap_or(MOST)
        .min(allowed.saturating_sub(1))
        .min(MOST);
    if let (Ok(last), Ok(any)) = (i32::try_from(last), std::fs::File::open("/")) {
        let _ = occupy(&any, last);
    }
}

/// Opens `file` once more under the first free number from `number` on; the table is that large then.
#[cfg(unix)]
fn occupy(file: &std::fs::File, number: i32) -> nix::Result<std::os::fd::OwnedFd> {
    use nix::fcntl::{FcntlArg, fcntl};
    use std::os::fd::{FromRawFd as _, OwnedFd};

    let copy = fcntl(file, FcntlArg::F_DUPFD_CLOEXEC(number))?;
    #[expect(unsafe_code, reason = "nix gives a number, which has to be closed")]
    // SAFETY: it was made here, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// There is no such table.
#[cfg(not(unix))]
pub(crate) fn make_room(_connections: usize) {}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    /// What the kernel says of this process's table.
    fn size() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status
            .lines()
            .find_map(|line| line.strip_prefix("FDSize:"))
            .unwrap();
        size.trim().parse().unwrap()
    }

    /// Whether one is open under such a number. Other tests of this process open some too, and far fewer.
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

        // More than may be had is no mistake.
        super::make_room(usize::MAX);
    }
}
