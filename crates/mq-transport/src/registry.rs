//! Transports that this build has.

use crate::{Error, Scheme};

/// Refuses a transport that was left out of this build.
pub(crate) fn check(scheme: Scheme) -> Result<(), Error> {
    let built_in = match scheme {
        Scheme::Tcp | Scheme::Unix => cfg!(feature = "tcp"),
        Scheme::Tls => cfg!(feature = "tls"),
        Scheme::Quic => cfg!(feature = "quic"),
        Scheme::Ws => cfg!(feature = "ws"),
        Scheme::Wss => cfg!(all(feature = "tls", feature = "ws")),
        Scheme::Mem => true,
    };
    built_in.then_some(()).ok_or(Error::NotBuiltIn { scheme })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_that_was_left_out_is_refused_with_the_features_that_build_it() {
        let left_out = check(Scheme::Wss).is_err();
        assert_eq!(left_out, !cfg!(all(feature = "tls", feature = "ws")));
        let scheme = Scheme::Wss;
        assert_eq!(
            Error::NotBuiltIn { scheme }.to_string(),
            "wss is not built in: build with `--features tls,ws`"
        );
    }
}
