//! `mqbench cell`: one run of a campaign, in a process of its own, because it has a network of its own.
//!
//! Its standard input is a line of JSON, and stays open as long as the campaign wants the answer. The answer is an
//! outcome as JSON on standard output. Where no cell can run the exit code is [`NO_NAMESPACES`].

use std::{io::BufRead as _, process::ExitCode};

use crate::{
    lab::{
        run_cell,
        run_request::{CellOrder, NO_NAMESPACES},
    },
    report,
    stdin_lines::StdinLines,
    testbed::Testbed,
};
use anyhow::Context as _;

/// Reads the order, and builds its network. Call it before there are threads.
pub(crate) fn prepare() -> anyhow::Result<(CellOrder, Testbed)> {
    let mut text = String::new();
    let mut input = std::io::stdin().lock();
    input
        .read_line(&mut text)
        .context("cannot read standard input")?;
    let order: CellOrder = serde_json::from_str(&text).context("standard input is no cell")?;
    let testbed = run_cell::testbed(&order)?;
    Ok((order, testbed))
}

/// Returns the exit code for a network that cannot be built.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref() {
        Some(mq_netem::Error::Namespaces { .. }) => NO_NAMESPACES.into(),
        _ => ExitCode::FAILURE,
    }
}

/// Runs the cell, and prints its outcome as JSON.
pub(crate) async fn run(order: &CellOrder, testbed: &mut Testbed) -> anyhow::Result<()> {
    // If the input ends, the campaign is gone, and no program reads the result.
    StdinLines::open(None)?.terminate_at_end(|_| {})?;
    let outcome = run_cell::run(order, testbed).await?;
    testbed.finish_captures()?;
    report::print(&report::json(&outcome)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_without_namespaces_has_an_exit_code_of_its_own() {
        let code = |error: mq_netem::Error| format!("{:?}", exit_code(&error.into()));
        let problem = || "this system has none".to_owned();
        let none = code(mq_netem::Error::Namespaces { problem: problem() });
        assert_eq!(none, format!("{:?}", ExitCode::from(NO_NAMESPACES)));
        let other = code(mq_netem::Error::NoKernelForm { problem: problem() });
        assert_eq!(other, format!("{:?}", ExitCode::FAILURE));
    }
}
