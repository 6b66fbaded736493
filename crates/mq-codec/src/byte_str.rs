//! UTF-8 strings that share the buffer they were decoded from.

use core::{borrow::Borrow, fmt, ops::Deref};

use bytes::Bytes;

/// An MQTT string: UTF-8, at most 65,535 bytes, no U+0000.
///
/// Cloning shares the bytes. A decoded string keeps the whole read buffer that it came from
/// alive; [`detached`](Self::detached) makes a copy that does not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteStr(Bytes);

/// Why bytes are not an MQTT string (`[MQTT-1.5.4-1]`, `[MQTT-1.5.4-2]`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StringError {
    /// Longer than the length prefix can say.
    #[error("a string of {0} bytes is too long: MQTT allows 65535")]
    TooLong(usize),
    /// Not well-formed UTF-8, or an encoded surrogate.
    #[error("not well-formed UTF-8")]
    NotUtf8,
    /// Contains U+0000.
    #[error("contains the null character, which MQTT forbids in strings")]
    Nul,
}

impl ByteStr {
    /// A string of `text`, checked. A `String` or a `&'static str` is not copied.
    ///
    /// # Errors
    /// If it is too long or has a null character.
    pub fn new(text: impl Into<String>) -> Result<Self, StringError> {
        let bytes = Bytes::from(text.into());
        check_length(&bytes)?;
        if bytes.contains(&0) {
            return Err(StringError::Nul);
        }
        Ok(Self(bytes))
    }

    /// A string from bytes that are checked here and shared.
    ///
    /// # Errors
    /// If they are not an MQTT string.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, StringError> {
        check_length(&bytes)?;
        core::str::from_utf8(&bytes).map_err(|_| StringError::NotUtf8)?;
        if bytes.contains(&0) {
            return Err(StringError::Nul);
        }
        Ok(Self(bytes))
    }

    /// For bytes known to be UTF-8 without U+0000 and short enough: the caller checked.
    pub(crate) fn from_checked(bytes: Bytes) -> Self {
        debug_assert!(core::str::from_utf8(&bytes).is_ok() && !bytes.contains(&0));
        Self(bytes)
    }

    /// The empty string.
    #[must_use]
    pub const fn empty() -> Self {
        Self(Bytes::new())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Checked once more rather than trusted: this crate has no unsafe code. Hot paths use
        // `as_bytes`.
        core::str::from_utf8(&self.0).expect("every constructor checks for UTF-8")
    }

    /// The bytes of the text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same text in memory of its own.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

fn check_length(bytes: &Bytes) -> Result<(), StringError> {
    if bytes.len() > usize::from(u16::MAX) {
        return Err(StringError::TooLong(bytes.len()));
    }
    Ok(())
}

impl Deref for ByteStr {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for ByteStr {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<[u8]> for ByteStr {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq<str> for ByteStr {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for ByteStr {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl TryFrom<&str> for ByteStr {
    type Error = StringError;

    fn try_from(text: &str) -> Result<Self, StringError> {
        Self::new(text)
    }
}

impl TryFrom<String> for ByteStr {
    type Error = StringError;

    fn try_from(text: String) -> Result<Self, StringError> {
        Self::new(text)
    }
}

impl fmt::Debug for ByteStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Display for ByteStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_that_mqtt_forbids_are_refused() {
        assert_eq!(ByteStr::new("a\0b"), Err(StringError::Nul));
        assert_eq!(
            ByteStr::new("x".repeat(65_536)),
            Err(StringError::TooLong(65_536))
        );
        assert!(ByteStr::new("x".repeat(65_535)).is_ok());
        let surrogate = Bytes::from_static(&[0xED, 0xA0, 0x80]);
        assert_eq!(ByteStr::from_bytes(surrogate), Err(StringError::NotUtf8));
        let bom = Bytes::from_static(&[0xEF, 0xBB, 0xBF]);
        assert_eq!(ByteStr::from_bytes(bom).unwrap(), "\u{FEFF}");
    }
}
