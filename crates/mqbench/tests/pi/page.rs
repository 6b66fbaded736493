//! The commands of the page, and the shortened campaign.

use std::path::{Path, PathBuf};

use crate::shipped;

/// Messages of a run of the shortened figure 4.
pub(crate) const FIG4_MESSAGES: u64 = 10;

/// Returns all `sh` blocks of the page, which are one script.
pub(crate) fn script() -> String {
    let page = std::fs::read_to_string(repository().join("docs/guide/testbed.md")).unwrap();
    let blocks = page.split("\n```sh\n").skip(1);
    let blocks = blocks.map(|block| block.split("\n```").next().unwrap());
    let script: Vec<_> = blocks.collect();
    assert!(script.len() > 10, "the page has {} blocks", script.len());
    script.join("\n") + "\n"
}

/// Makes the campaign of the figure, so short that it can be run in an emulator: one network, without loss.
pub(crate) fn figure_4() -> String {
    shipped::with_quick(
        "s22-fig4",
        &format!(
            "work.messages = {FIG4_MESSAGES}\nwork.interval = \"200ms\"\n\
             factors.loss = [\"0%\"]\nfactors.link = [\"s22/wifi\"]\n"
        ),
    )
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
