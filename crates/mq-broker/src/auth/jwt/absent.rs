//! Replaces tokens in a build without the feature `jwt`: no password is a token.

use std::{convert::Infallible, time::SystemTime};

use mq_codec::TopicFilter;

use super::JwtSettings;
use crate::auth::{Grant, LogIn, Principal};

pub(in crate::auth) enum Keys {}

pub(in crate::auth) enum Token {}

pub(in crate::auth) enum TokenRules {}

impl Keys {
    pub(in crate::auth) fn parse(_: &str) -> Result<Self, Vec<(Option<usize>, String)>> {
        let problem = "this build takes no tokens: its feature `jwt` is off";
        Err(vec![(None, problem.to_owned())])
    }
}

impl Token {
    pub(in crate::auth) fn parse(_: &[u8]) -> Option<Self> {
        None
    }

    pub(in crate::auth) fn judge(
        &self,
        _: &Keys,
        _: &JwtSettings,
        _: SystemTime,
        _: &LogIn,
    ) -> Result<Principal, Infallible> {
        match *self {}
    }
}

impl TokenRules {
    pub(in crate::auth) fn may_publish(&self, _: &str) -> bool {
        match *self {}
    }

    pub(in crate::auth) fn may_receive(&self, _: &str) -> bool {
        match *self {}
    }

    pub(in crate::auth) fn subscription(&self, _: &TopicFilter) -> Grant {
        match *self {}
    }
}
