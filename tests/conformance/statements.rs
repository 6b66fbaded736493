//! `docs/spec/conformance.toml`: the statements, and the tests that show them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{case::Case, runner::Outcome};

pub(crate) const FILE: &str = "docs/spec/conformance.toml";

/// The normative statements of both standards.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Statements {
    v3_1_1: Vec<Statement>,
    v5: Vec<Statement>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    /// Number in the standard, with `MQTT-` in front.
    id: String,
    /// The statement, in short.
    #[serde(rename = "says")]
    _says: String,
    /// Cases of this suite, and tests elsewhere as `crate::file::function`.
    #[serde(default)]
    tests: Vec<String>,
    /// Reason for which no test of the broker shows the statement.
    except: Option<String>,
}

/// Returns the root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// # Errors
/// One line, if the file is not as it should be.
pub(crate) fn read() -> Result<Statements, String> {
    let path = root().join(FILE);
    let text = std::fs::read_to_string(path).map_err(|error| format!("{FILE}: {error}"))?;
    toml::from_str(&text).map_err(|error| format!("{FILE}: {}", error.message()))
}

/// Lists the errors of the file, of the cases, or between them; one line each.
pub(crate) fn check(statements: &Statements, cases: &[Case]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut known = BTreeSet::new();
    for case in cases {
        if !known.insert(case.name) {
            wrong.push(format!("two cases are called {}", case.name));
        }
    }
    check_standard("3.1.1", &statements.v3_1_1, cases, |c| c.v3_1_1, &mut wrong);
    check_standard("5.0", &statements.v5, cases, |c| c.v5, &mut wrong);
    wrong
}

/// Checks the statements of one standard; `shown_by` has those that a case shows.
fn check_standard(
    version: &str,
    listed: &[Statement],
    cases: &[Case],
    shown_by: impl Fn(&Case) -> &'static [&'static str],
    wrong: &mut Vec<String>,
) {
    let mut by_id = BTreeMap::new();
    for statement in listed {
        let id = &statement.id;
        if by_id.insert(&**id, statement).is_some() {
            wrong.push(format!("{version} {id} is listed twice"));
        }
        if statement.tests.is_empty() == statement.except.is_none() {
            wrong.push(format!("{version} {id} needs tests or an exception"));
        }
        for test in &statement.tests {
            if test.contains("::") {
                if !exists(test) {
                    wrong.push(format!("{version} {id}: there is no test {test}"));
                }
                continue;
            }
            let case = cases.iter().find(|case| case.name == test);
            let short = id.strip_prefix("MQTT-").unwrap_or_default();
            if !case.is_some_and(|case| shown_by(case).contains(&short)) {
                wrong.push(format!("{version} {id}: no case {test} shows it"));
            }
        }
    }
    for case in cases {
        for short in shown_by(case) {
            let statement = by_id.get(&*format!("MQTT-{short}"));
            let tests = statement.map_or(&[][..], |statement| &statement.tests);
            if !tests.iter().any(|test| test == case.name) {
                let name = case.name;
                wrong.push(format!("{version} MQTT-{short} does not name {name}"));
            }
        }
    }
}

/// Returns `true` if the sources have a test function `crate::file::function`; a file `mod.rs` or `main.rs`
/// goes by its folder.
fn exists(path: &str) -> bool {
    let parts: Vec<_> = path.split("::").collect();
    let [package, file, function] = parts[..] else {
        return false;
    };
    let mut folders = if package == "mq_tests" {
        vec![root().join("tests")]
    } else {
        let package = root().join("crates").join(package.replace('_', "-"));
        vec![package.join("src"), package.join("tests")]
    };
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if is_called(&path, file) && has_test(&path, function) {
                return true;
            }
        }
    }
    false
}

fn is_called(path: &Path, name: &str) -> bool {
    if path.extension().is_none_or(|extension| extension != "rs") {
        return false;
    }
    let named = match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "main") => path.parent().and_then(Path::file_name),
        _ => path.file_stem(),
    };
    named.is_some_and(|stem| stem == name)
}

/// Returns `true` if the file has that function under a `#[test]`, or hands it to a macro that makes one of
/// it.
fn has_test(path: &Path, function: &str) -> bool {
    let Ok(text) = std::fs::read_to_string(path) else {
        return false;
    };
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let defined = lines.iter().position(|line| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        let rest = line.strip_prefix("fn ");
        let rest = rest.and_then(|rest| rest.strip_prefix(function));
        rest.is_some_and(|rest| rest.starts_with('('))
    });
    let Some(at) = defined else { return false };
    let attributes = lines[..at].iter().rev();
    let mut attributes = attributes.take_while(|line| line.starts_with('#'));
    attributes.any(|line| line.contains("test")) || lines.contains(&&*format!("{function},"))
}

/// Prints how many statements the run has shown, and the reasons for the others.
pub(crate) fn summarize(statements: &Statements, outcome: &Outcome) {
    println!(
        "{} cases\n\n{:<8} {:>10} {:>7} {:>7} {:>8} {:>10} {:>9}",
        outcome.run.len(),
        "",
        "statements",
        "shown",
        "failed",
        "not run",
        "elsewhere",
        "excepted"
    );
    for (version, listed) in [("3.1.1", &statements.v3_1_1), ("5.0", &statements.v5)] {
        let (mut shown, mut failed, mut left, mut elsewhere, mut excepted) = (0, 0, 0, 0, 0);
        for statement in listed {
            let tests = &statement.tests;
            *(if statement.except.is_some() {
                &mut excepted
            } else if tests.iter().any(|test| outcome.failed.contains(&**test)) {
                &mut failed
            } else if tests.iter().any(|test| outcome.run.contains(&**test)) {
                &mut shown
            } else if tests.iter().all(|test| test.contains("::")) {
                &mut elsewhere
            } else {
                &mut left
            }) += 1;
        }
        println!(
            "{version:<8} {:>10} {shown:>7} {failed:>7} {left:>8} {elsewhere:>10} {excepted:>9}",
            listed.len()
        );
    }
}
