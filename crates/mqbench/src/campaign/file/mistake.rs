//! Mistakes in a campaign file.

/// A mistake in a campaign file, and the index of its byte in the file, if known.
#[derive(Debug)]
pub(super) struct Mistake {
    pub(super) at: Option<usize>,
    pub(super) problem: String,
}

impl Mistake {
    pub(super) fn at(at: impl Into<Option<usize>>, problem: String) -> Self {
        let at = at.into();
        Self { at, problem }
    }
}
