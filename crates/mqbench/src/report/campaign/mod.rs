//! The report of a result set.
//!
//! `assemble` is a pure function from records to the `model`. `html`, `markdown`, `svg` and `csv` write the report.
//!
//! ```text
//! records ─ metric_values ─ resample ─┬─ assemble ────── model ─┬─ html ─ chart ─ axis
//!           (which runs count)        ├─ group, pairs           ├─ markdown, svg
//!                                     ├─ connections
//!                                     ├─ distribution           └─ JSON
//!                                     ├─ context, caption
//! claims ─────────────────────────────┴─ verdict, claim_tests, paper_findings, estimators
//!                                        csv, difference, day (of the records)
//! ```
//!
//! `labels` has the names that all of them use, and `formatting` the form of numbers.

mod assemble;
mod axis;
mod caption;
mod chart;
mod claim_tests;
mod connections;
mod context;
mod csv;
mod day;
mod difference;
mod distribution;
mod estimators;
mod formatting;
mod group;
mod html;
mod labels;
mod markdown;
mod metric_values;
mod model;
mod pairs;
mod paper_findings;
mod resample;
mod svg;
mod verdict;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use assemble::report;
pub(crate) use csv::long as csv;
pub(crate) use day::{Day, render as day};
pub(crate) use difference::render as difference;
pub(crate) use html::{Sections, escape, page, table};
pub(crate) use labels::title as levels_title;
pub(crate) use markdown::render as markdown;
pub(crate) use metric_values::FinishedRuns;
pub(crate) use model::Report;
pub(crate) use svg::file as svg;
