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
pub struct AuthConfig {
    /// Users and the hashes of their passwords.
    pub password_file: Option<PathBuf>,
    /// The rules of users (topics that they may publish and receive); without it they may do
    /// everything.
    pub acl_file: Option<PathBuf>,
    /// Takes the user from the client's certificate; needs `tls.client_ca`.
    pub certificate_user: Option<CertificateUser>,
    /// Accepts tokens as passwords.
    pub jwt: Option<JwtConfig>,
    /// Accepts clients that send neither user name nor password nor certificate. Without users and
    /// rules it accepts every client, whatever it sends. Default no.
    pub allow_anonymous: bool,
    /// See [`Settings::take_over`].
    pub take_over: TakeOverPolicy,
    /// See [`Settings::failures_per_minute`]; 0 is no limit.
    pub failures_per_minute: Option<u32>,
}

/// The `[auth.jwt]` table; see [`JwtSettings`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtConfig {
    /// The public keys of the issuer.
    pub keys: PathBuf,
    /// The issuer that tokens have to name.
    pub issuer: Option<String>,
    /// The audience: this broker.
    pub audience: Option<String>,
    /// The claim with the user's name; `sub` if absent.
    pub user_claim: Option<String>,
    /// The claim that must equal the client identifier.
    pub client_id_claim: Option<String>,
    /// Seconds by which the clocks may differ; 5 if absent.
    pub leeway_s: Option<u64>,
    /// `true` if the connection ends when the token expires; `true` if absent.
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
