//! The order of the program's folders is that of its calls: a folder names folders below it, and none above. The files
//! of one folder name each other in no circle. The command line is read in `cmd` and `main.rs` alone.

use std::{fs, path::Path};

use mq_testkit::{circles_of_files, code_lines, names_behind};

/// Modules from the top down. A module without an entry is at the bottom, and every other module may name it.
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

/// Returns the modules above `module` that a source file of it names.
fn upward(source: &str, module: &str) -> Vec<String> {
    let mut named = names_behind(source, "crate::");
    named.retain(|name| level(name) < level(module));
    named.into_iter().collect()
}

/// Returns `true` if code, not a comment, names clap.
fn names_clap(source: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    code_lines(source)
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

#[test]
fn the_files_of_a_folder_name_each_other_in_no_circle() {
    let found = circles_of_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(found.is_empty(), "{}", found.join("\n"));
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
