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

/// The tokens that the broker accepts, and the meaning of their claims; see `docs/guide/access.md`.
///
/// Only with the feature `jwt`; without it [`FileAccess`](super::FileAccess) does not open.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct JwtSettings {
    /// The public keys of the tokens' issuer: a JWK Set (RFC 7517 §5) in JSON.
    pub keys: PathBuf,
    /// The `iss` that a token must have; `None`, the default, takes any or none.
    pub issuer: Option<String>,
    /// The `aud` that a token must have, alone or in a list. With `None`, the default, a token with
    /// an `aud` is for another server (RFC 7519 §4.1.3).
    pub audience: Option<String>,
    /// The claim with the user's name. Default `sub`.
    pub user_claim: String,
    /// The claim that must equal the client identifier of CONNECT; `None`, the default, for none.
    pub client_id_claim: Option<String>,
    /// The tolerated difference between the broker's clock and the issuer's. Default 5 s.
    pub leeway: Duration,
    /// `true` if a connection ends when its token expires. Default `true`.
    pub disconnect_at_expiry: bool,
}

impl JwtSettings {
    /// Returns the defaults, with the keys in that file.
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
