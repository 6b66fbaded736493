//! The accessibility of the page, by axe-core. npm installs it into `target`; the test is skipped without npm.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::Page;
use crate::{program, skipped};

/// Manifest for npm, as JSON text, which requires axe-core in one fixed version.
const PACKAGE: &str = include_str!("axe/package.json");

/// Loads axe-core's script; reports a skipped test if it cannot be had.
#[must_use]
pub fn axe_script() -> Option<String> {
    let npm = program(&["npm"])?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    );
    let folder = target.join("axe");
    std::fs::create_dir_all(&folder).unwrap();
    // Another version may be there from before.
    let (package, script) = (
        folder.join("package.json"),
        folder.join("node_modules/axe-core/axe.min.js"),
    );
    let is_there = std::fs::read_to_string(&package).is_ok_and(|text| text == PACKAGE);
    if !is_there || !script.exists() {
        std::fs::write(&package, PACKAGE).unwrap();
        let install = ["install", "--silent", "--no-audit", "--no-fund"];
        let done = Command::new(npm)
            .args(install)
            .current_dir(&folder)
            .output();
        let done = done.unwrap();
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            skipped(&format!("npm does not install axe-core: {said}"));
            return None;
        }
    }
    Some(std::fs::read_to_string(script).unwrap())
}

/// Asserts that axe-core finds nothing serious or critical in the page as it is now.
pub fn assert_accessible(page: &mut Page, script: &str, state: &str) {
    page.eval(&format!("{script};undefined"));
    page.eval(
        "axe.run(document, { resultTypes: ['violations'] })\
         .then(found => { window.found = found }, error => { window.found = String(error) });undefined",
    );
    page.until("window.found !== undefined");
    let found = page.eval(
        "typeof window.found === 'string' ? window.found : window.found.violations.map(rule => ({\
         id: rule.id, impact: rule.impact, help: rule.help, count: rule.nodes.length,\
         first: rule.nodes.slice(0, 3).map(node => node.html.slice(0, 200) + ' ' + node.failureSummary) }))",
    );
    page.eval("delete window.found");
    let Value::Array(found) = found else {
        panic!("{state}: {found}");
    };
    let grave: Vec<_> = found
        .iter()
        .filter(|rule| rule["impact"] == "serious" || rule["impact"] == "critical")
        .collect();
    for rule in &found {
        println!(
            "{state}: {} {} ({})",
            rule["impact"], rule["id"], rule["count"]
        );
    }
    assert!(grave.is_empty(), "{state}: {grave:#?}");
}
