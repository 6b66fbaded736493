//! The order of the program's folders is that of its calls: a folder names folders below it, and none above. The files
//! of one folder name each other in no circle. The command line is read in `cmd` and `main.rs` alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// From the top down. A module that is not named here is at the bottom, and every other may name it.
const ORDER: [&[&str]; 8] = [
    &["main"],
    &["cmd"],
    &["report"],
    &["lab"],
    &["campaign"],
    &["hosts"],
    &["meter"],
    &["workload", "testbed"],
];

fn level(module: &str) -> usize {
    let level = ORDER.iter().position(|level| level.contains(&module));
    level.unwrap_or(ORDER.len())
}

/// The modules that a source file names behind a path such as `crate::`.
fn named(source: &str, path: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in source.match_indices(path) {
        let rest = &source[at + path.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            names.insert(identifier(rest));
            continue;
        };
        let (mut depth, mut begins) = (0_usize, true);
        for (at, character) in group.char_indices() {
            match character {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                _ if begins && !character.is_whitespace() => {
                    names.insert(identifier(&group[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    names
}

fn identifier(text: &str) -> String {
    let is_part = |character: &char| character.is_alphanumeric() || *character == '_';
    text.chars().take_while(is_part).collect()
}

/// The modules above `module` that a source file of it names.
fn upward(source: &str, module: &str) -> Vec<String> {
    let mut named = named(source, "crate::");
    named.retain(|name| level(name) < level(module));
    named.into_iter().collect()
}

/// The lines of a source file without those that are comments.
fn code(source: &str) -> impl Iterator<Item = &str> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    source.lines().filter(is_code)
}

/// The files of a folder that a file of it names by `super::` or by `path`, outside of its tests.
fn siblings(source: &str, path: &str) -> BTreeSet<String> {
    let product = source.split("#[cfg(test)]\nmod tests {").next();
    let product = code(product.unwrap()).collect::<Vec<_>>().join("\n");
    let mut names = named(&product, "super::");
    names.extend(named(&product, path));
    names
}

/// The files that are part of a circle, or name one that is. Each has the files that it names.
fn circular(mut files: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let names: BTreeSet<_> = files.keys().cloned().collect();
        let before = files.len();
        files.retain(|own, named| named.iter().any(|name| name != own && names.contains(name)));
        if files.len() == before {
            return names.into_iter().collect();
        }
    }
}

/// Whether code, not a comment, names the crate that reads the command line.
fn names_clap(source: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    code(source)
        .flat_map(|line| line.split(|character| !is_part(character)))
        .any(|word| word == "clap")
}

fn look_into(folder: &Path, module: Option<&str>, wrong: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let module = module.unwrap_or(name);
        if path.is_dir() {
            look_into(&path, Some(module), wrong);
        } else {
            let source = fs::read_to_string(&path).unwrap();
            if !["main", "cmd"].contains(&module) && names_clap(&source) {
                wrong.push(format!("{}: clap", path.display()));
            }
            let names = upward(&source, module);
            wrong.extend(
                names
                    .iter()
                    .map(|name| format!("{}: {name}", path.display())),
            );
        }
    }
}

#[test]
fn no_folder_names_one_above_it_and_only_cmd_names_clap() {
    let mut wrong = Vec::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    look_into(&source, None, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Looks for circles in a folder, which the crate knows by `path`, and in the folders below it.
fn look_for_circles(folder: &Path, path: &str, wrong: &mut Vec<String>) {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap().path();
        let name = entry.file_stem().unwrap().to_str().unwrap().to_owned();
        let file = if entry.is_dir() {
            look_for_circles(&entry, &format!("{path}{name}::"), wrong);
            entry.join("mod.rs")
        } else {
            entry
        };
        if !["mod", "main"].contains(&&name[..]) {
            let source = fs::read_to_string(file).unwrap();
            files.insert(name, siblings(&source, path));
        }
    }
    let found = circular(files);
    if !found.is_empty() {
        wrong.push(format!("{path}{{{}}}", found.join(", ")));
    }
}

#[test]
fn the_files_of_a_folder_name_each_other_in_no_circle() {
    let mut wrong = Vec::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    look_for_circles(&source, "crate::", &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_circle_of_files_is_found() {
    let source = "//! super::c\nuse super::{\n    a::A,\n    b,\n};\nuse crate::lab::d;\n\
                  #[cfg(test)]\nmod tests {\n    use super::e;\n}";
    let named: Vec<_> = siblings(source, "crate::lab::").into_iter().collect();
    assert_eq!(named, ["a", "b", "d"]);
    let files = |names: [(&str, &str); 3]| {
        let each = names.map(|(own, named)| (own.to_owned(), BTreeSet::from([named.to_owned()])));
        circular(BTreeMap::from(each))
    };
    assert!(files([("a", "b"), ("b", "c"), ("c", "elsewhere")]).is_empty());
    assert_eq!(files([("a", "b"), ("b", "a"), ("c", "c")]), ["a", "b"]);
}

#[test]
fn a_file_that_names_clap_is_found() {
    assert!(names_clap(
        "use anyhow::bail;\nuse clap::{Args, ValueEnum};"
    ));
    assert!(names_clap("#[derive(clap::Args, Clone)]\nstruct Link;"));
    assert!(names_clap("pub(crate) use clap as options;"));
    assert!(!names_clap(
        "//! As clap::Args would have it.\nlet thunder_clap = 1;"
    ));
}

#[test]
fn a_name_of_a_folder_above_is_found() {
    let source = "use crate::{\n    units::{time, cmd},\n    report::{self, units},\n};\nlet x = crate::cmd::net::run();";
    assert_eq!(upward(source, "campaign"), ["cmd", "report"]);
    assert_eq!(upward(source, "report"), ["cmd"]);
    assert!(upward(source, "cmd").is_empty());
    assert_eq!(upward("use crate::campaign::cell;", "units"), ["campaign"]);
}
