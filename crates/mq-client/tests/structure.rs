//! The modules have an order: a module names modules below it, and none above.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeSet, fs, path::Path};

/// All modules, from the top down. A folder counts as one module.
const ORDER: [&str; 23] = [
    "blocking",
    "builder",
    "request",
    "client",
    "driver",
    "subscription",
    "receipt",
    "shared",
    "queue",
    "control",
    "responses",
    "inbox",
    "incoming",
    "subscribe",
    "outgoing",
    "event",
    "written",
    "ack",
    "reconnect",
    "scram",
    "error",
    "auth",
    "lock",
];

/// Names such as `Error` of `crate::Error`, and the modules that they come from.
type Exports = Vec<(String, String)>;

fn level(module: &str) -> usize {
    let level = ORDER.iter().position(|other| *other == module);
    level.unwrap_or_else(|| panic!("give `{module}` a place in the order"))
}

/// Source without comments, and without the tests that end a file.
fn code(source: &str) -> String {
    let lines = source.lines().map(|line| line.split("//").next().unwrap());
    let lines: Vec<_> = lines.take_while(|line| *line != "mod tests {").collect();
    lines.join("\n")
}

/// The names behind each `prefix`, such as `crate::`, in a source: one name, or all names of `{..}`.
fn named(source: &str, prefix: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, found) in source.match_indices(prefix) {
        let rest = &source[at + found.len()..];
        let mut depth = 0_usize;
        for (at, character) in rest.char_indices() {
            let is_first = at == 0 || rest[..at].trim_end().ends_with(['{', ',']);
            match character {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ if is_first && depth <= 1 && character.is_alphabetic() => {
                    let is_part = |c: &char| c.is_alphanumeric() || *c == '_';
                    names.insert(rest[at..].chars().take_while(is_part).collect());
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    names
}

/// The names that `lib.rs` exports from its own modules.
fn exports(lib: &str) -> Exports {
    let of = |module: &str| {
        let names = named(lib, &format!("pub use {module}::")).into_iter();
        names
            .map(|name| (name, module.to_owned()))
            .collect::<Vec<_>>()
    };
    ORDER.iter().flat_map(|module| of(module)).collect()
}

/// The modules above its own that a source names.
fn upward(source: &str, module: &str, exports: &Exports) -> BTreeSet<String> {
    let own = level(module);
    let names = named(&code(source), "crate::").into_iter();
    let modules = names.map(|name| {
        let export = exports.iter().find(|(exported, _)| *exported == name);
        export.map_or(name, |(_, module)| module.clone())
    });
    modules.filter(|name| level(name) < own).collect()
}

fn look_into(folder: &Path, module: Option<&str>, exports: &Exports, wrong: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let module = module.unwrap_or(name);
        if path.is_dir() {
            look_into(&path, Some(module), exports, wrong);
        } else if module != "lib" {
            let names = upward(&fs::read_to_string(&path).unwrap(), module, exports);
            wrong.extend(
                names
                    .iter()
                    .map(|name| format!("{}: {name}", path.display())),
            );
        }
    }
}

#[test]
fn no_module_names_one_above_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let exports = exports(&fs::read_to_string(source.join("lib.rs")).unwrap());
    let mut wrong = Vec::new();
    look_into(&source, None, &exports, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_upward_name_is_found() {
    let exports = exports("pub use client::Client;\npub use event::{Event, EventStream};\n");
    let source = "use crate::{\n    EventStream, driver::{Driver, client},\n    lock::lock,\n};\n\
                  // crate::blocking\nfn f(_: crate::Client) {}\nmod tests {\n    use crate::builder;";
    let upward = |module| Vec::from_iter(upward(source, module, &exports));
    assert_eq!(upward("lock"), ["client", "driver", "event"]);
    assert_eq!(upward("shared"), ["client", "driver"]);
    assert_eq!(upward("driver"), ["client"]);
    assert!(upward("builder").is_empty());
}
