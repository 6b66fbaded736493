//! Mistakes in a campaign file.

/// The mistake in a file, and its byte.
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
