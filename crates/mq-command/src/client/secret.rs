//! Passwords of the command line.

use std::fmt;

/// A password of the command line.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    #[expect(
        clippy::unnecessary_wraps,
        reason = "clap wants a parser that could fail"
    )]
    pub(crate) fn parse(text: &str) -> Result<Self, std::convert::Infallible> {
        Ok(Self(text.to_owned()))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::parse("pw")), "Ok(…)");
    }
}
