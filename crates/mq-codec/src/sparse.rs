//! A struct that is nearly always empty, kept behind one pointer.

use core::{
    fmt,
    ops::{Deref, DerefMut},
};

/// A `T` behind a pointer that is null while the `T` is empty. It derefs to `T`, and `T` converts
/// into it.
///
/// Reading an empty `Sparse` reads a constant; the first `&mut` access allocates. PUBLISH carries its
/// properties this way. Most messages have none, and moving and dropping two hundred bytes of `None`
/// would be most of the cost of decoding one.
///
/// ```
/// use mq_codec::{PublishProperties, Sparse};
///
/// let mut properties = Sparse::<PublishProperties>::empty();
/// assert_eq!(properties.topic_alias, None);
/// properties.message_expiry_interval = Some(60);
/// assert!(!properties.is_untouched());
/// ```
pub struct Sparse<T>(Option<Box<T>>);

/// A type that [`Sparse`] can hold. Its static empty value is read while nothing is allocated.
pub trait Empty: Default + Sized + 'static {
    /// Returns the empty value.
    fn empty() -> &'static Self;
}

impl<T> Sparse<T> {
    /// Builds an empty value, without allocating.
    #[must_use]
    pub const fn empty() -> Self {
        Self(None)
    }

    /// Returns `true` if nothing was allocated: a cheap test for empty. An empty value that was
    /// accessed by `&mut` counts as touched.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.0.is_none()
    }
}

impl<T: Empty> Sparse<T> {
    /// Returns the `T` itself.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.0.map(|boxed| *boxed).unwrap_or_default()
    }
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<T: Empty + PartialEq> From<T> for Sparse<T> {
    fn from(value: T) -> Self {
        if value == *T::empty() {
            Self::empty()
        } else {
            Self(Some(Box::new(value)))
        }
    }
}

impl<T: Empty> Deref for Sparse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or_else(|| T::empty())
    }
}

impl<T: Empty> DerefMut for Sparse<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Clone> Clone for Sparse<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Empty + PartialEq> PartialEq for Sparse<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Empty + Eq> Eq for Sparse<T> {}

impl<T: Empty + fmt::Debug> fmt::Debug for Sparse<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
