//! The number of files and sockets that this process may have open.

/// Number of file descriptors beside the sockets: the runtime's, the emulator's, those of files that are read for a
/// moment.
#[cfg(unix)]
const BESIDE: u128 = 256;

/// Makes sure that this process, and a broker that it starts, may have so many sockets. Raises the limit where that
/// is needed and permitted.
///
/// # Errors
/// If the limit stays too low.
#[cfg(unix)]
pub(crate) fn raise_limit(sockets: u64) -> anyhow::Result<()> {
    use anyhow::Context as _;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)
        .context("the system does not tell how many files may be open")?;
    // A limit has 32 or 64 bits.
    let needed = u128::from(sockets) + BESIDE;
    if u128::from(soft) >= needed {
        return Ok(());
    }
    let raised = needed
        .try_into()
        .ok()
        .and_then(|needed| setrlimit(Resource::RLIMIT_NOFILE, needed, hard.max(needed)).ok());
    raised.with_context(|| {
        format!(
            "{sockets} connections need {needed} open files, and this process may have {hard}: raise the limit \
             (ulimit -Hn, or LimitNOFILE= of a service)"
        )
    })
}

/// Does nothing: only Unix has such a limit.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "as on Unix, where it can fail")]
pub(crate) fn raise_limit(_sockets: u64) -> anyhow::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn a_limit_that_is_too_low_is_one_clear_line() {
        super::raise_limit(10).unwrap();
        // More than the kernel lets any process have.
        let said = super::raise_limit(1 << 40).unwrap_err().to_string();
        assert!(said.contains("need 1099511628032 open files"), "{said}");
        assert!(
            said.contains("ulimit -Hn") && said.lines().count() == 1,
            "{said}"
        );
    }
}
