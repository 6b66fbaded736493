//! JSON Web Tokens (RFC 7519) as passwords.

use std::{path::PathBuf, time::Duration};

#[cfg(not(feature = "jwt"))]
mod absent;
#[cfg(feature = "jwt")]
mod keys;
#[cfg(feature = "jwt")]
mod rejected;
#[cfg(feature = "jwt")]
mod rules;
#[cfg(feature = "jwt")]
mod token;

#[cfg(feature = "jwt")]
pub(super) use self::{keys::Keys, rules::TokenRules, token::Token};
#[cfg(not(feature = "jwt"))]
pub(super) use absent::{Keys, Token, TokenRules};

/// Which tokens are taken, and what they say; `docs/guide/access.md` tells more.
///
/// Only with the feature `jwt`; without it [`FileAccess`](super::FileAccess) does not open.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct JwtSettings {
    /// The public keys of who makes the tokens: a JWK Set (RFC 7517 §5) in JSON.
    pub keys: PathBuf,
    /// What `iss` has to be; `None`, the default, for anything or nothing.
    pub issuer: Option<String>,
    /// What `aud` has to be or to have in it. With `None`, the default, a token with an `aud` is for
    /// somebody else (RFC 7519 §4.1.3).
    pub audience: Option<String>,
    /// The claim that is the user. Default `sub`.
    pub user_claim: String,
    /// The claim that has to be there and to be the client identifier of CONNECT; `None`, the
    /// default, for none.
    pub client_id_claim: Option<String>,
    /// How far the clock here and that of who makes the tokens may be apart. Default 5 s.
    pub leeway: Duration,
    /// Whether a connection ends when its token would not be taken any more. Default yes.
    pub disconnect_at_expiry: bool,
}

impl JwtSettings {
    /// The defaults, with the keys in that file.
    #[must_use]
    pub fn new(keys: PathBuf) -> Self {
        Self {
            keys,
            issuer: None,
            audience: None,
            user_claim: "sub".to_owned(),
            client_id_claim: None,
            leeway: Duration::from_secs(5),
            disconnect_at_expiry: true,
        }
    }
}
