//! The project's pages: their links lead somewhere, and the index has all of them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::root;

/// Lists Markdown files of a folder.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect()
}

/// Lists the targets of a page's links, without other sites; text between backticks has no links.
pub(crate) fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let outside = prose.flat_map(|prose| prose.split('`').step_by(2));
    let links = outside.flat_map(|text| {
        let places = text.match_indices("](");
        places.filter_map(|(at, open)| text[at + open.len()..].split_once(')'))
    });
    let links = links.map(|(link, _)| link);
    links.filter(|link| !link.contains("://")).collect()
}

/// Makes the anchor of a heading, as sites that show Markdown make it.
pub(crate) fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter_map(|character| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        _ => character.is_alphanumeric().then_some(character),
    });
    kept.collect()
}

/// Lists the anchors of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(anchor).collect()
}

/// Lists every page below `docs/`.
pub(crate) fn docs() -> Vec<PathBuf> {
    let folder = root().join("docs");
    let folders = ["", "guide", "reference", "results"].map(|part| pages(&folder.join(part)));
    folders.concat()
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
    for page in docs() {
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

/// Lists source files below a folder.
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

/// Lists every call in a source that writes a line at one of these levels, such as `info!(`.
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

/// Lists the words of every line that a source writes at level `info` and above: the last text of each call.
fn log_lines(source: &str) -> Vec<&str> {
    let calls = log_calls(source, &["info!(", "warn!(", "error!("]);
    let texts = calls
        .into_iter()
        .map(|call| call.split('"').skip(1).step_by(2));
    texts.filter_map(Iterator::last).collect()
}

/// Returns `true` if a call writes a value as Rust's `Debug` does.
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
    for name in [
        "mq-broker",
        "mq-client",
        "mq-command",
        "mqbroker",
        "mq-transport",
    ] {
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

/// The statements of `docs/reference/recovery.md` about quinn were read in one version of it.
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

/// Files that a page may name from there: the root, each crate, and each crate's sources.
fn bases(root: &Path) -> Vec<PathBuf> {
    let crates = fs::read_dir(root.join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path());
    let mut bases: Vec<_> = crates
        .flat_map(|path| [path.join("src"), path.clone()])
        .collect();
    bases.push(root.join("crates"));
    bases.push(root.to_owned());
    bases
}

/// All that the crates define.
struct Defined {
    /// Modules and crates, each with the one that it is in.
    modules: BTreeSet<(String, String)>,
    /// Items, variants and fields.
    items: BTreeSet<String>,
    /// Items with the module that they are in.
    within: BTreeSet<(String, String)>,
}

impl Defined {
    fn below(root: &Path) -> Self {
        let (mut modules, mut items, mut within) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for folder in fs::read_dir(root.join("crates")).unwrap() {
            let folder = folder.unwrap();
            let source = folder.path().join("src");
            let name = folder.file_name().to_str().unwrap().replace('-', "_");
            modules.insert((String::new(), name.clone()));
            for path in sources(&source) {
                let parts = path.strip_prefix(&source).unwrap().with_extension("");
                let mut outer = name.clone();
                for part in parts.iter().map(|part| part.to_str().unwrap()) {
                    modules.insert((outer.clone(), part.to_owned()));
                    if !["mod", "lib"].contains(&part) {
                        part.clone_into(&mut outer);
                    }
                }
                if let Ok(source) = fs::read_to_string(&path) {
                    for name in source.lines().filter_map(item) {
                        items.insert(name.to_owned());
                        within.insert((outer.clone(), name.to_owned()));
                    }
                }
            }
        }
        Self {
            modules,
            items,
            within,
        }
    }

    /// Returns `true` if something has that path: each name is defined, and of two that are modules the one has the other.
    fn has(&self, path: &str) -> bool {
        let names: Vec<_> = path.split("::").collect();
        let is_module = |name: &str| self.modules.iter().any(|(_, inner)| inner == name);
        let is_there = |name: &&str| is_module(name) || self.items.contains(*name);
        let is_within = |pair: &[&str]| {
            let names = (pair[0].to_owned(), pair[1].to_owned());
            !is_module(pair[0])
                || !is_module(pair[1])
                || self.modules.contains(&names)
                || self.within.contains(&names)
        };
        names.iter().all(is_there) && names.windows(2).all(is_within)
    }
}

/// Returns the name that a line of a source defines: an item, a variant or a field; `None` if it defines none.
fn item(line: &str) -> Option<&str> {
    const ITEMS: &[&str] = &[
        "fn",
        "struct",
        "enum",
        "trait",
        "type",
        "const",
        "static",
        "mod",
        "macro_rules!",
    ];
    let words: Vec<_> = line.split_whitespace().take(6).collect();
    let keyword = words.iter().position(|word| ITEMS.contains(word));
    let word = match keyword {
        Some(at) => words.get(at + 1)?,
        // Behind `pub` or `pub(in a::b)`.
        None => words
            .iter()
            .find(|word| !word.starts_with("pub") && !word.ends_with(')'))?,
    };
    let end = word.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let (name, after) = word.split_at(end.unwrap_or(word.len()));
    let is_field = after == ":";
    let is_variant =
        name.starts_with(|c: char| c.is_ascii_uppercase()) && !after.starts_with([':', '.', ')']);
    (keyword.is_some() || is_field || is_variant).then_some(name)
}

/// Lists the texts between backticks of a page, without its blocks of code.
fn quoted(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose
        .flat_map(|prose| prose.split('`').skip(1).step_by(2))
        .collect()
}

/// Returns `true` if a text has the form of a path of names, such as `hub::Hub::publish`.
fn is_path_of_names(text: &str) -> bool {
    let is_name = |name: &str| {
        let mut characters = name.chars();
        let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
        characters.next().is_some_and(is_first)
            && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    text.contains("::") && text.split("::").all(is_name)
}

/// Returns `true` if a text has the form of a file's path, such as `hub/mod.rs`, or of a folder's, such as `bridge/`.
fn is_path_of_a_file(text: &str) -> bool {
    let ends = [".rs", "/", ".toml", ".md"].iter();
    let is_relative = !text.starts_with('/') && !text.contains(' ') && !text.contains("://");
    is_relative && ends.into_iter().any(|end| text.ends_with(end))
}

/// Lists the words of a page's pictures: the names and paths in blocks of Mermaid.
fn pictured(text: &str) -> Vec<&str> {
    let blocks = text.split("```").skip(1).step_by(2);
    let pictures = blocks.filter_map(|block| block.strip_prefix("mermaid\n"));
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_:/.-".contains(c);
    let words = pictures.flat_map(move |picture| picture.split(move |c| !is_part(c)));
    words
        .map(|word| word.trim_matches([':', '.', '-']))
        .collect()
}

/// Lists the names and paths of a page that no file below `root` has.
fn gone<'a>(page: &'a str, root: &Path) -> Vec<&'a str> {
    let (defined, bases) = (Defined::below(root), bases(root));
    let is_gone = |text: &&str| {
        if is_path_of_names(text) {
            !defined.has(text)
        } else {
            is_path_of_a_file(text) && !bases.iter().any(|base| base.join(text).exists())
        }
    };
    let named = quoted(page).into_iter().chain(pictured(page));
    named.filter(is_gone).collect()
}

#[test]
fn what_the_architecture_names_is_there() {
    let root = root();
    let page = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let gone = gone(&page, &root);
    assert!(gone.is_empty(), "{}", gone.join("\n"));
    let count = quoted(&page)
        .into_iter()
        .filter(|text| is_path_of_names(text))
        .count();
    assert!(count > 50, "{count} names");
}

#[test]
fn what_contributing_names_is_there() {
    let root = root();
    let page = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    let gone = gone(&page, &root);
    assert!(gone.is_empty(), "{}", gone.join("\n"));
    let named = quoted(&page);
    let files = named.iter().filter(|text| is_path_of_a_file(text));
    assert!(files.count() > 20, "{named:#?}");
}

#[test]
fn a_name_or_path_that_is_gone_is_found() {
    let page = "`mq_broker::hub::Hub::publish`, `hub/mod.rs`, `bridge/`, `Overflow::Spill`, `mq_broker::hub::Hut`, `/`,\n\
                `hub/mode.rs`, `--hosts`, `ws://HOST/`\n```\n`no::such`\n```\n```mermaid\na[\"1: hub/mod.rs, hub/mood.rs\"] --> b[store::Shop]\n```\n`bridges/` `crates/mq-broker/src/hub/` `store::router`";
    assert_eq!(
        gone(page, &root()),
        [
            "mq_broker::hub::Hut",
            "hub/mode.rs",
            "bridges/",
            "store::router",
            "hub/mood.rs",
            "store::Shop"
        ]
    );
}

/// Lists the last cell of each row of the first table below a heading, without the table's own heading.
fn last_cells<'a>(page: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, section) = page.split_once(heading).unwrap();
    let lines = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let last = rows.map(|row| row.trim_end_matches('|').rsplit('|').next().unwrap());
    last.map(str::trim).collect()
}

/// Each promise of the cluster names the test that shows it, or says that there is none.
#[test]
fn the_tests_that_show_the_promises_of_a_cluster_are_there() {
    let root = root();
    let page = fs::read_to_string(root.join("docs/guide/cluster.md")).unwrap();
    let folders = ["tests/it", "crates/mqbroker/tests"].map(|folder| sources(&root.join(folder)));
    let sources = folders.concat().into_iter().map(fs::read_to_string);
    let sources: Vec<_> = sources.map_while(Result::ok).collect();
    let is_there = |test: &str| {
        let definition = format!("fn {test}(");
        sources.iter().any(|source| source.contains(&definition))
    };
    let named = last_cells(&page, "## What an acknowledgement means");
    let tests = named.iter().filter(|cell| **cell != "no test");
    let gone: Vec<_> = tests
        .clone()
        .filter(|cell| !is_there(cell.trim_matches('`')))
        .collect();
    assert!(gone.is_empty(), "{gone:#?}");
    assert!(tests.count() > 8, "{named:#?}");
    assert!(!is_there("no_such_test"));
}
