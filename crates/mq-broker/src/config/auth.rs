//! The `[auth]` tables.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use mq_transport::ClientAuth;
use serde::Deserialize;

use super::{Mistakes, set};
use crate::{
    Settings,
    auth::{Access, AccessFiles, CertificateUser, JwtSettings, TakeOverPolicy},
};

/// The `[auth]` table; `docs/guide/access.md` describes its files.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct AuthConfig {
    /// File with the users and the hashes of their passwords. Default: none; no password is accepted.
    pub password_file: Option<PathBuf>,
    /// File with the rules of users: the topics that they may publish and receive. Default: none; users may do
    /// everything.
    pub acl_file: Option<PathBuf>,
    /// Name in a client's certificate that is its user; needs `tls.client_ca`. Default: none.
    pub certificate_user: Option<CertificateUser>,
    /// The `[auth.jwt]` table: tokens as passwords. Default: none; no token is accepted.
    pub jwt: Option<JwtConfig>,
    /// `true` if clients that send neither user name nor password nor certificate are accepted. Without users and
    /// rules every client is accepted then, whatever it sends. Default: `false`.
    pub allow_anonymous: bool,
    /// Users that may take over a session by its client identifier: `same-user`, its own alone, or `any-user`.
    /// Default: `same-user`; see [`Settings::take_over`].
    pub take_over: TakeOverPolicy,
    /// Failed log-ins of one IPv4 address or IPv6 /64 that are allowed at once, and as many again each minute; 0 is
    /// no limit. Default: 10; see [`Settings::failures_per_minute`].
    pub failures_per_minute: Option<u32>,
}

/// The `[auth.jwt]` table: the tokens that the broker accepts as passwords ([`JwtSettings`]).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct JwtConfig {
    /// File with the public keys of the issuer, as a JWK Set (RFC 7517). Required.
    pub keys: PathBuf,
    /// Value that the claim `iss` of a token must have. Default: any value, or none.
    pub issuer: Option<String>,
    /// Value that the claim `aud` of a token must have, alone or in a list. Default: only tokens without `aud` are
    /// accepted.
    pub audience: Option<String>,
    /// Claim with the user's name. Default: `sub`.
    pub user_claim: Option<String>,
    /// Claim that must equal the client identifier. Default: none is compared.
    pub client_id_claim: Option<String>,
    /// Seconds by which the broker's clock and the issuer's may differ, from 0 to 300. Default: 5.
    pub leeway_s: Option<u64>,
    /// `true` if the connection ends when its token expires. Default: `true`.
    pub disconnect_at_expiry: Option<bool>,
}

impl JwtConfig {
    /// The longest leeway, in seconds: no clock that is set at all is wrong by more.
    const LONGEST_LEEWAY_S: u64 = 300;

    fn into_settings(self, mistakes: &mut Mistakes) -> JwtSettings {
        if cfg!(not(feature = "jwt")) {
            mistakes.push("auth.jwt: this build takes no tokens: its feature `jwt` is off");
        }
        let mut settings = JwtSettings::new(self.keys);
        settings.issuer = self.issuer;
        settings.audience = self.audience;
        set(&mut settings.user_claim, self.user_claim);
        settings.client_id_claim = self.client_id_claim;
        if let Some(seconds) = self.leeway_s {
            if seconds > Self::LONGEST_LEEWAY_S {
                mistakes.push(format!(
                    "auth.jwt.leeway_s: {seconds} is more than {}: set the clocks instead",
                    Self::LONGEST_LEEWAY_S
                ));
            }
            settings.leeway = Duration::from_secs(seconds);
        }
        set(
            &mut settings.disconnect_at_expiry,
            self.disconnect_at_expiry,
        );
        settings
    }
}

impl AuthConfig {
    pub(super) fn apply(self, settings: &mut Settings, mistakes: &mut Mistakes) {
        if self.certificate_user.is_some() && settings.listen.client_auth == ClientAuth::Off {
            mistakes.push("auth.certificate_user: give tls.client_ca as well");
        }
        let files = AccessFiles {
            password_file: self.password_file,
            acl_file: self.acl_file,
            certificate_user: self.certificate_user,
            jwt: self.jwt.map(|jwt| jwt.into_settings(mistakes)),
            allow_anonymous: self.allow_anonymous,
        };
        if files.password_file.is_none()
            && files.certificate_user.is_none()
            && files.jwt.is_none()
            && !files.allow_anonymous
        {
            mistakes.push(
                "auth: nobody could log in: give password_file, certificate_user, the table jwt \
                 or `allow_anonymous = true`",
            );
        }
        // Without users and rules every client is accepted.
        let is_open = files.password_file.is_none()
            && files.certificate_user.is_none()
            && files.jwt.is_none()
            && files.acl_file.is_none();
        if !is_open {
            settings.access = Access::Files(files);
        }
        settings.take_over = self.take_over;
        if let Some(count) = self.failures_per_minute {
            settings.failures_per_minute = NonZeroU32::new(count);
        }
    }
}
