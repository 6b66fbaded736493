//! UTF-8 strings: short ones in place, long ones in the buffer that they were decoded from.

use core::{
    borrow::Borrow,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
};

use bytes::{Bytes, BytesMut};

/// Strings up to this many bytes are kept in place. A string takes 40 bytes of memory then, and
/// most topic names and client identifiers fit.
const IN_PLACE: usize = 31;

/// Bytes that [`ByteStr::append_to`] may write beyond the text, and cuts off again.
pub(crate) const SLACK: usize = IN_PLACE;

/// An MQTT string: UTF-8, at most 65,535 bytes, no U+0000 (§1.5.4).
///
/// Control characters and noncharacters are allowed here; a [`Decoder`](crate::Decoder) can
/// [refuse](crate::Decoder::refuse_disallowed_characters) them.
///
/// A string of up to 31 bytes is kept in place: decoding, cloning and dropping it touches no
/// reference count, which for a small PUBLISH is half of the cost. Clones of a longer string share its
/// bytes. A longer string that was decoded keeps its whole read buffer alive;
/// [`detached`](Self::detached) makes a copy that does not.
#[derive(Clone)]
pub struct ByteStr(Repr);

#[derive(Clone)]
enum Repr {
    InPlace { length: u8, bytes: [u8; IN_PLACE] },
    Shared(Bytes),
}

/// Rule of MQTT strings that bytes break (§1.5.4, `[MQTT-1.5.4-1]`, `[MQTT-1.5.4-2]`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StringError {
    /// Longer than the 65,535 bytes that the length prefix can express.
    #[error("a string of {0} bytes is too long: MQTT allows 65535")]
    TooLong(usize),
    /// The text is not well-formed UTF-8, or has an encoded surrogate.
    #[error("a string is not well-formed UTF-8")]
    NotUtf8,
    /// Contains U+0000.
    #[error("a string contains the null character, which MQTT forbids")]
    Nul,
    /// Contains a control character or a Unicode noncharacter (the Disallowed Unicode code points of
    /// §1.5.4), where these are refused.
    #[error("a string contains a control character or a noncharacter, which MQTT advises against")]
    Disallowed,
}

impl ByteStr {
    /// Checks `text` and makes it an MQTT string. A `String` is taken over, a `&str` copied.
    ///
    /// # Errors
    /// [`StringError::TooLong`] or [`StringError::Nul`].
    pub fn new(text: impl Into<String>) -> Result<Self, StringError> {
        Self::checked(text.into()).map_err(|(error, _)| error)
    }

    /// Checks `text` and makes it an MQTT string; an error returns `text` too.
    pub(crate) fn checked(text: String) -> Result<Self, (StringError, String)> {
        if let Err(error) = check_length(text.as_bytes()) {
            return Err((error, text));
        }
        if text.as_bytes().contains(&0) {
            return Err((StringError::Nul, text));
        }
        Ok(Self::from_checked(Bytes::from(text)))
    }

    /// Checks `bytes` and makes them an MQTT string. More than 31 bytes are shared, not copied.
    ///
    /// # Errors
    /// [`StringError`], if they are not an MQTT string.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, StringError> {
        check_length(&bytes)?;
        check_text(&bytes, Characters::All)?;
        Ok(Self::from_checked(bytes))
    }

    fn from_checked(bytes: Bytes) -> Self {
        Self::in_place(&bytes).unwrap_or_else(|| Self::shared(bytes))
    }

    /// Makes checked text a string that shares its buffer.
    pub(crate) fn shared(text: Bytes) -> Self {
        debug_assert_eq!(check_text(&text, Characters::All), Ok(()));
        Self(Repr::Shared(text))
    }

    /// Copies checked text in place; `None` if it is longer than 31 bytes.
    #[inline]
    pub(crate) fn in_place(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; IN_PLACE];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        let length = u8::try_from(text.len()).ok()?;
        Some(Self(Repr::InPlace { length, bytes }))
    }

    /// Returns the empty string.
    #[must_use]
    pub const fn empty() -> Self {
        Self(Repr::InPlace {
            length: 0,
            bytes: [0; IN_PLACE],
        })
    }

    /// Returns the text. Each call checks the UTF-8 again, in time linear in its length; hot paths use
    /// [`as_bytes`](Self::as_bytes).
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Checked once more rather than trusted: this crate has no unsafe code. Hot paths use
        // `as_bytes`.
        core::str::from_utf8(self.as_bytes()).expect("every constructor checks for UTF-8")
    }

    /// Returns the bytes of the text.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::InPlace { length, bytes } => &bytes[..usize::from(*length)],
            Repr::Shared(bytes) => bytes,
        }
    }

    /// Returns the length of the text in bytes. Unlike `str::len`, it does not check the text first.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Returns `true` if the text is empty. Unlike `str::is_empty`, it does not check the text first.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the text to `out`, which should have room for [`SLACK`] bytes more.
    ///
    /// Copies the whole place and cuts the surplus off again: a copy of a fixed size is two moves and
    /// no call.
    #[inline]
    pub(crate) fn append_to(&self, out: &mut BytesMut) {
        match &self.0 {
            Repr::InPlace { length, bytes } => {
                let end = out.len() + usize::from(*length);
                out.extend_from_slice(bytes);
                out.truncate(end);
            }
            Repr::Shared(bytes) => out.extend_from_slice(bytes),
        }
    }

    /// Copies a text that shares a read buffer into memory of its own, so that it does not keep the
    /// buffer alive. A text of up to 31 bytes that is kept in place is cloned.
    #[must_use]
    pub fn detached(&self) -> Self {
        match &self.0 {
            Repr::InPlace { .. } => self.clone(),
            Repr::Shared(bytes) => Self(Repr::Shared(Bytes::copy_from_slice(bytes))),
        }
    }
}

fn check_length(bytes: &[u8]) -> Result<(), StringError> {
    if bytes.len() > usize::from(u16::MAX) {
        return Err(StringError::TooLong(bytes.len()));
    }
    Ok(())
}

/// The characters that a string may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Characters {
    /// All but U+0000.
    All,
    /// None of the Disallowed Unicode code points (§1.5.4) either.
    Allowed,
}

/// Checks bytes that a 16-bit length prefix bounds: UTF-8 without U+0000, and only `characters`.
pub(crate) fn check_text(bytes: &[u8], characters: Characters) -> Result<(), StringError> {
    // Most strings pass this test, which looks at many bytes at once.
    let plain = |plain, byte: &u8| plain & matches!(byte, b' '..=b'~');
    if bytes.iter().fold(true, plain) {
        return Ok(());
    }
    let text = core::str::from_utf8(bytes).map_err(|_| StringError::NotUtf8)?;
    if bytes.contains(&0) {
        return Err(StringError::Nul);
    }
    if characters == Characters::Allowed && text.chars().any(is_disallowed) {
        return Err(StringError::Disallowed);
    }
    Ok(())
}

/// Returns the place of the first byte for which [`check_text`] refuses the bytes.
#[cold]
pub(crate) fn first_refused(bytes: &[u8], characters: Characters) -> Option<usize> {
    let text = match core::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => return Some(error.valid_up_to()),
    };
    let disallowed = |c| characters == Characters::Allowed && is_disallowed(c);
    text.find('\0').or_else(|| text.find(disallowed))
}

/// Returns `true` for the Disallowed Unicode code points: control characters and Unicode's 66
/// noncharacters (§1.5.4).
fn is_disallowed(character: char) -> bool {
    let code = u32::from(character);
    character.is_control() || code & 0xFFFE == 0xFFFE || matches!(code, 0xFDD0..=0xFDEF)
}

impl Default for ByteStr {
    fn default() -> Self {
        Self::empty()
    }
}

impl PartialEq for ByteStr {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for ByteStr {}

impl PartialOrd for ByteStr {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByteStr {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

/// The hash of the bytes, as [`Borrow<[u8]>`](Borrow) promises.
impl Hash for ByteStr {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
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
        self.as_bytes()
    }
}

impl PartialEq<str> for ByteStr {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for ByteStr {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
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
    fn short_and_long_strings_are_the_same_to_their_users() {
        assert_eq!(size_of::<ByteStr>(), 40);
        for length in [0, 1, IN_PLACE, IN_PLACE + 1, 1000] {
            let text = "x".repeat(length);
            let new = ByteStr::new(text.clone()).unwrap();
            let decoded = ByteStr::from_bytes(Bytes::from(text.clone())).unwrap();
            assert_eq!(new, decoded);
            assert_eq!(new.cmp(&decoded), Ordering::Equal);
            assert_eq!(decoded.detached(), *text.as_str());
            let mut set = std::collections::HashSet::new();
            set.insert(decoded);
            assert!(set.contains(text.as_bytes()));
        }
    }

    #[test]
    fn a_short_string_does_not_keep_its_frame_alive() {
        let frame = Bytes::from(vec![b'a'; 100]);
        let short = ByteStr::from_bytes(frame.slice(..IN_PLACE)).unwrap();
        assert!(frame.is_unique());
        let long = ByteStr::from_bytes(frame.slice(..=IN_PLACE)).unwrap();
        assert!(!frame.is_unique());
        assert!(short < long);
    }

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
