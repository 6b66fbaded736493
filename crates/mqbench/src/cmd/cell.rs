//! `mqbench cell`: one run of a campaign, in a process of its own, because it has a network of its own.
//!
//! Its standard input is a line of JSON, and stays open as long as the campaign wants the answer.

use std::io::BufRead as _;

use crate::{
    input::Input,
    lab::{run_cell, work::Order},
    report,
    testbed::Testbed,
};
use anyhow::Context as _;

/// Reads the order, and builds its network. Call it before there are threads.
pub(crate) fn prepare() -> anyhow::Result<(Order, Testbed)> {
    let mut text = String::new();
    let mut input = std::io::stdin().lock();
    input
        .read_line(&mut text)
        .context("cannot read standard input")?;
    let order: Order = serde_json::from_str(&text).context("standard input is no cell")?;
    let testbed = run_cell::testbed(&order)?;
    Ok((order, testbed))
}

/// Runs the cell, and prints its outcome as JSON.
pub(crate) async fn run(order: &Order, testbed: &mut Testbed) -> anyhow::Result<()> {
    // If the input ends, the campaign is gone, and no program reads the result.
    Input::open(None)?.hold(|_| {})?;
    let outcome = run_cell::run(order, testbed).await?;
    testbed.finish_captures()?;
    report::print(&report::json(&outcome)?)
}
