//! Which transports this build has; the only place where the cargo features are looked at.

use crate::{Error, Scheme};

/// Says no to a transport that was left out of this build.
pub(crate) fn check(scheme: Scheme) -> Result<(), Error> {
    let built_in = match scheme {
        Scheme::Tcp => cfg!(feature = "tcp"),
        Scheme::Tls => cfg!(feature = "tls"),
        Scheme::Quic => cfg!(feature = "quic"),
        Scheme::Ws | Scheme::Wss => cfg!(feature = "ws"),
        Scheme::Mem => true,
    };
    if built_in {
        Ok(())
    } else {
        Err(Error::NotBuiltIn { scheme })
    }
}
