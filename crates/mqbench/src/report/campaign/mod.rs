//! The report of a result set.
//!
//! `build` is a pure function from records to the `model`. `html`, `markdown`, `svg` and `csv` write the report.
//!
//! ```text
//! records ─ values ─ resample ─┬─ build ── model ─┬─ html ─ chart
//!           (which runs count) ├─ distribution    ├─ markdown, svg
//!                              ├─ context, shows  └─ JSON
//! claims ──────────────────────┴─ verdict, papers, estimators  csv (of the records)
//! ```

mod axis;
mod build;
mod chart;
mod context;
mod csv;
mod difference;
mod distribution;
mod estimators;
mod html;
mod markdown;
mod model;
mod names;
mod papers;
mod resample;
mod shows;
mod svg;
mod values;
mod verdict;
mod words;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use build::report;
pub(crate) use csv::long as csv;
pub(crate) use difference::render as difference;
pub(crate) use html::page;
pub(crate) use markdown::render as markdown;
pub(crate) use model::Report;
pub(crate) use svg::file as svg;
