//! The modules of a library have an order: a module names modules below it, and none above. Files of one folder name
//! each other in no circle.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use mq_testkit::circles_of_files;

/// All modules of mq-client, from the top down. A folder counts as one module.
const CLIENT: &[&str] = &[
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
    "quic_streams",
    "scram",
    "error",
    "auth",
    "lock",
];

/// All modules of mq-broker, from the top down.
const BROKER: &[&str] = &[
    "config",
    "broker",
    "persistence",
    "bridge",
    "conn",
    "certificates",
    "ticket_file",
    "reload",
    "settings",
    "cluster",
    "admin",
    "hub",
    "workers",
    "refusal_log",
    "journal",
    "store_writer",
    "metrics",
    "session",
    "hooks",
    "auth",
    "view",
    "escaped",
    "router",
    "quota",
    "mailbox",
    "memory_limit",
    "error",
    "store",
    "sync",
    "lock",
    "files",
    "fnv",
    "secret",
    "delivery",
    "broker_mark",
    "log_levels",
    "worker_thread",
    "clock",
];

/// The modules of mq-broker's `cluster`, from the top down. A folder counts as one module.
const CLUSTER: &[&str] = &[
    "settings",
    "status",
    "leave",
    "trim",
    "known_places",
    "requests",
    "sessions",
    "interest",
    "life",
    "question",
    "log",
    "cluster_clock",
    "engine",
];

/// Names such as `Error` of `crate::Error`, and the modules that they come from.
type Exports = Vec<(String, String)>;

fn level(module: &str, order: &[&str]) -> usize {
    let level = order.iter().position(|other| *other == module);
    level.unwrap_or_else(|| panic!("give `{module}` a place in the order"))
}

/// Returns a source without comments, and without the tests that end a file.
fn code(source: &str) -> String {
    let lines = source.lines().map(|line| line.split("//").next().unwrap());
    let lines: Vec<_> = lines.take_while(|line| *line != "mod tests {").collect();
    lines.join("\n")
}

/// Lists the names behind each `prefix`, such as `crate::`, in a source: one name, or all names of `{..}`.
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

/// Lists the names that `lib.rs` exports from its own modules.
fn exports(lib: &str, order: &[&str]) -> Exports {
    let of = |module: &str| {
        let names = named(lib, &format!("pub use {module}::")).into_iter();
        names
            .map(|name| (name, module.to_owned()))
            .collect::<Vec<_>>()
    };
    order.iter().flat_map(|module| of(module)).collect()
}

/// Lists the modules above its own that a source names.
fn upward(source: &str, module: &str, exports: &Exports, order: &[&str]) -> BTreeSet<String> {
    let own = level(module, order);
    let names = named(&code(source), "crate::").into_iter();
    let modules = names.map(|name| {
        let export = exports.iter().find(|(exported, _)| *exported == name);
        export.map_or(name, |(_, module)| module.clone())
    });
    modules.filter(|name| level(name, order) < own).collect()
}

/// Lists the Rust files below a folder, each with its module; `lib.rs` is above all modules.
fn sources(folder: &Path, module: Option<&str>) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let each = paths.flat_map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let module = module.unwrap_or(name).to_owned();
        if path.is_dir() {
            sources(&path, Some(&module))
        } else if module == "lib" || path.extension().is_none_or(|ending| ending != "rs") {
            Vec::new()
        } else {
            vec![(path, module)]
        }
    });
    each.collect()
}

fn no_module_names_one_above_it(name: &str, order: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../crates/{name}/src"));
    let exports = exports(&fs::read_to_string(source.join("lib.rs")).unwrap(), order);
    let mut wrong = Vec::new();
    for (path, module) in sources(&source, None) {
        let names = upward(
            &fs::read_to_string(&path).unwrap(),
            &module,
            &exports,
            order,
        );
        let names = names.iter();
        wrong.extend(names.map(|name| format!("{}: {name}", path.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_module_of_the_client_names_one_above_it() {
    no_module_names_one_above_it("mq-client", CLIENT);
}

#[test]
fn no_module_of_the_broker_names_one_above_it() {
    no_module_names_one_above_it("mq-broker", BROKER);
}

#[test]
fn files_of_a_folder_name_each_other_in_no_circle() {
    for name in [
        "mq-codec",
        "mq-lane",
        "mq-proto",
        "mq-transport",
        "mq-client",
        "mq-relay",
        "mq-broker",
    ] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../crates/{name}/src"));
        let found = circles_of_files(&source);
        assert!(found.is_empty(), "{name}: {}", found.join("\n"));
    }
}

#[test]
fn no_module_of_the_cluster_names_one_above_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/mq-broker/src/cluster");
    let mut wrong = Vec::new();
    // `mod.rs` is above all.
    for (path, module) in sources(&source, None)
        .into_iter()
        .filter(|(_, m)| m != "mod")
    {
        let source = code(&fs::read_to_string(&path).unwrap());
        let is_file = path
            .with_extension("")
            .ends_with(format!("cluster/{module}"));
        let beside = if is_file {
            named(&source, "super::")
        } else {
            BTreeSet::new()
        };
        let names = named(&source, "cluster::").into_iter().chain(beside);
        // Other names are the folder's own, above all modules.
        let above = names.filter(|name| {
            let place = CLUSTER.iter().position(|other| other == name);
            place.is_some_and(|place| place < level(&module, CLUSTER))
        });
        wrong.extend(above.map(|name| format!("{}: {name}", path.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_upward_name_is_found() {
    let lib = "pub use client::Client;\npub use event::{Event, EventStream};\n";
    let exports = exports(lib, CLIENT);
    let source = "use crate::{\n    EventStream, driver::{Driver, client},\n    lock::lock,\n};\n\
                  // crate::blocking\nfn f(_: crate::Client) {}\nmod tests {\n    use crate::builder;";
    let upward = |module| Vec::from_iter(upward(source, module, &exports, CLIENT));
    assert_eq!(upward("lock"), ["client", "driver", "event"]);
    assert_eq!(upward("shared"), ["client", "driver"]);
    assert_eq!(upward("driver"), ["client"]);
    assert!(upward("builder").is_empty());
}
