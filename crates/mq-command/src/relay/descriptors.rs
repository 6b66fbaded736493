//! File descriptors: a client of a relay takes two, one for itself and one for the broker.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that a process has besides those of clients: listeners, HTTP and files.
const OTHERS: i64 = 64;

/// Raises the limit of file descriptors to the most that this process may have. Returns a line for people if that is too low for so many
/// clients.
pub(super) fn make_room(clients: usize) -> Option<String> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let is_raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    let allowed = if is_raised { hard } else { soft };
    // The limit has 32 or 64 bits, and says by its greatest value that there is none.
    let allowed = i64::try_from(allowed).unwrap_or(i64::MAX);
    let clients = i64::try_from(clients).unwrap_or(i64::MAX);
    let needed = clients.saturating_mul(2).saturating_add(OTHERS);
    (needed > allowed).then(|| {
        format!(
            "{clients} clients take {needed} file descriptors, and this process may have \
             {allowed}: raise the limit (ulimit -n, or LimitNOFILE= of systemd), or set \
             `connections`"
        )
    })
}
