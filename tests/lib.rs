//! Examples of the project's first page, compiled as its readers would.

/// Code of `README.md`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
