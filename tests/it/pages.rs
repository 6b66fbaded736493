//! The project's pages: their links lead somewhere, and the index has all of them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.canonicalize().unwrap()
}

/// Markdown files of a folder.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect()
}

/// The targets of a page's links, without other sites; text between backticks has no links.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let outside = prose.flat_map(|prose| prose.split('`').step_by(2));
    let links = outside.flat_map(|text| {
        let places = text.match_indices("](");
        places.filter_map(|(at, open)| text[at + open.len()..].split_once(')'))
    });
    let links = links.map(|(link, _)| link);
    links.filter(|link| !link.contains("://")).collect()
}

/// The anchors of a page's headings, as sites that show Markdown make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            _ => character.is_alphanumeric().then_some(character),
        });
        kept.collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn all_links_lead_somewhere() {
    let root = root();
    let mut wrong = Vec::new();
    let mut count = 0;
    let folders = ["", "docs", "docs/guide", "docs/reference", "docs/results"]
        .map(|folder| pages(&root.join(folder)));
    for page in folders.concat() {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(file)
            };
            let is_there = target.exists()
                && (anchor.is_empty()
                    || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor));
            if !is_there {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 20, "{count} links");
}

#[test]
fn the_index_has_every_page() {
    let folder = root().join("docs");
    let index = fs::read_to_string(folder.join("README.md")).unwrap();
    let linked: BTreeSet<_> = links(&index).into_iter().collect();
    let folders = ["", "guide", "reference", "results"].map(|part| pages(&folder.join(part)));
    for page in folders.concat() {
        let name = page.strip_prefix(&folder).unwrap().to_str().unwrap();
        assert!(name == "README.md" || linked.contains(name), "{name}");
    }
}

#[test]
fn links_and_anchors_are_found() {
    let text = "# A, b: c\n[x](y.md#a-b-c) `[no](z.md)`\n```\n[no](z.md)\n```\n[out](https://w)";
    assert_eq!(links(text), ["y.md#a-b-c"]);
    assert!(anchors(text).contains("a-b-c"));
}

/// Source files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let each = paths.flat_map(|path| {
        if path.is_dir() {
            sources(&path)
        } else {
            vec![path]
        }
    });
    each.collect()
}

/// Every call in a source that writes a line at one of these levels, such as `info!(`.
fn log_calls<'a>(source: &'a str, levels: &[&str]) -> Vec<&'a str> {
    let product = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    let calls = levels.iter().flat_map(|level| {
        let calls = product.match_indices(level);
        // `compile_error!` is another.
        let calls = calls.filter(|(at, _)| !product[..*at].ends_with('_'));
        calls.map(|(at, _)| product[at..].split(");").next().unwrap())
    });
    calls.collect()
}

/// The words of every line that a source writes at level `info` and above: the last text of each call.
fn log_lines(source: &str) -> Vec<&str> {
    let calls = log_calls(source, &["info!(", "warn!(", "error!("]);
    let texts = calls
        .into_iter()
        .map(|call| call.split('"').skip(1).step_by(2));
    texts.filter_map(Iterator::last).collect()
}

/// Whether a call writes a value as Rust's `Debug` does.
fn has_debug_form(call: &str) -> bool {
    let outside: String = call.split('"').step_by(2).collect();
    let marks = [" ?", "(?", "=?", "\n?"];
    marks.iter().any(|mark| outside.contains(mark)) || call.contains(":?}")
}

#[test]
fn no_line_of_a_log_has_a_value_in_rusts_debug_form() {
    let levels = ["trace!(", "debug!(", "info!(", "warn!(", "error!("];
    let mut wrong = Vec::new();
    let mut count = 0;
    for name in ["mq", "mq-broker", "mq-client", "mqbroker", "mq-transport"] {
        for file in sources(&root().join("crates").join(name).join("src")) {
            let Ok(source) = fs::read_to_string(&file) else {
                continue;
            };
            for call in log_calls(&source, &levels) {
                count += 1;
                if has_debug_form(call) {
                    wrong.push(format!("{}: {call}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 60, "{count} calls");
    for call in [
        r#"debug!(?peer, "x""#,
        r#"info!(a = ?b, "x""#,
        r#"warn!("{a:?}""#,
    ] {
        assert!(has_debug_form(call), "{call}");
    }
    assert!(!has_debug_form(r#"debug!(%peer, "why ?x""#));
}

#[test]
fn the_reference_has_every_line_of_the_brokers_log() {
    let root = root();
    let page = fs::read_to_string(root.join("docs/reference/operation.md")).unwrap();
    let mut wrong = Vec::new();
    let mut count = 0;
    for name in ["mq-broker", "mqbroker", "mq-transport"] {
        for file in sources(&root.join("crates").join(name).join("src")) {
            let source = fs::read_to_string(&file).unwrap();
            for line in log_lines(&source) {
                count += 1;
                let parts = line.split('{').flat_map(|part| {
                    let (_, rest) = part.split_once('}').unwrap_or(("", part));
                    rest.split('\n')
                });
                if parts.clone().any(|part| !page.contains(part.trim())) {
                    wrong.push(format!("{}: {line}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 20, "{count} lines");
}

#[test]
fn lines_of_a_log_are_found() {
    let source = "warn!(%error, who = \"a\", \"one {x} more\");\n    info!(\n        \"two\"\n    );\n\
                  debug!(\"none\");\n#[cfg(test)]\nmod tests {\n    warn!(\"no\");";
    assert_eq!(log_lines(source), ["two", "one {x} more"]);
}

/// What `docs/reference/recovery.md` says of quinn was read in one version of it.
#[test]
fn what_is_said_of_quinn_is_about_the_version_in_use() {
    let root = root();
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let lock: toml::Table = read("Cargo.lock").parse().unwrap();
    let packages = lock["package"].as_array().unwrap();
    let is_it = |package: &&toml::Value| package["name"].as_str() == Some("quinn-proto");
    let quinn = packages.iter().find(is_it).unwrap();
    let version = quinn["version"].as_str().unwrap();
    assert!(
        read("docs/reference/recovery.md").contains(&format!("quinn-proto {version} ")),
        "quinn-proto is {version} now: does its probe carry data? Look again at docs/reference/recovery.md"
    );
}
