//! The report of a result set.
//!
//! `build` is a pure function from records to the `model`. `html`, `markdown`, `svg` and `csv` write the report.
//!
//! ```text
//! records ─ values ─ resample ─┬─ build ───── model ─┬─ html ─ chart ─ axis
//!           (which runs count) ├─ group, pairs       ├─ markdown, svg
//!                              ├─ distribution       └─ JSON
//!                              ├─ context, shows
//! claims ──────────────────────┴─ verdict, papers, estimators
//!                                 csv, difference (of the records)
//! ```
//!
//! `names` and `words` have what all of them call things.

mod axis;
mod build;
mod chart;
mod context;
mod csv;
mod difference;
mod distribution;
mod estimators;
mod group;
mod html;
mod markdown;
mod model;
mod names;
mod pairs;
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
