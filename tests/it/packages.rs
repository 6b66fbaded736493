//! The packages for a registry: each has its own files, a README that is true, and versions.

use std::{
    fs,
    path::{Path, PathBuf},
};

use toml::{Table, Value};

use crate::root;

fn toml(file: &Path) -> Table {
    toml::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// Lists the folders of the packages that are published, each with its manifest.
fn published() -> Vec<(PathBuf, Table)> {
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let packages = folders.map(|folder| {
        let folder = folder.unwrap().path();
        let manifest = toml(&folder.join("Cargo.toml"));
        (folder, manifest)
    });
    packages
        .filter(|(_, manifest)| manifest["package"].get("publish").is_none())
        .collect()
}

/// Returns the first example of a library's page, as rustdoc shows it.
fn example(library: &str) -> Option<String> {
    let page = library.lines().map_while(|line| line.strip_prefix("//!"));
    let page = page.map(|line| line.strip_prefix(' ').unwrap_or(line));
    let is_fence = |line: &&str| line.starts_with("```");
    let mut page = page.fuse();
    loop {
        let opens = page.find(is_fence)?;
        let block = page.by_ref().take_while(|line| !is_fence(line));
        let shown = block.filter(|line| *line != "#" && !line.starts_with("# "));
        let lines: Vec<_> = shown.collect();
        if opens != "```text" {
            return Some(lines.join("\n").trim_matches('\n').to_owned());
        }
    }
}

/// Files of Rust below a folder, without modules of tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_readme_shows_the_example_of_its_library() {
    let mut count = 0;
    for (folder, _) in published() {
        let Ok(library) = fs::read_to_string(folder.join("src/lib.rs")) else {
            continue;
        };
        let Some(example) = example(&library) else {
            continue;
        };
        count += 1;
        let readme = fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(
            readme.contains(&format!("```rust\n{example}\n```")),
            "{}/README.md has another example than src/lib.rs:\n{example}",
            folder.display()
        );
    }
    assert_eq!(count, 10, "each library has an example");
}

#[test]
fn a_readme_names_every_feature() {
    for (folder, manifest) in published() {
        let Some(features) = manifest.get("features").and_then(Value::as_table) else {
            continue;
        };
        let readme = fs::read_to_string(folder.join("README.md")).unwrap();
        for feature in features.keys().filter(|name| *name != "default") {
            let row =
                |line: &str| line.starts_with("| `") && line.contains(&format!("`{feature}`"));
            assert!(
                readme.lines().any(row),
                "{}/README.md lacks the feature {feature}",
                folder.display()
            );
        }
    }
}

#[test]
fn the_oldest_rust_is_the_one_that_builds_it_here() {
    let workspace = toml(&root().join("Cargo.toml"));
    let oldest = workspace["workspace"]["package"]["rust-version"].as_str();
    let oldest = oldest.unwrap();
    let toolchain = toml(&root().join("rust-toolchain.toml"));
    let here = toolchain["toolchain"]["channel"].as_str().unwrap();
    assert!(
        here == oldest || here.starts_with(&format!("{oldest}.")),
        "rust-toolchain.toml has {here}, rust-version is {oldest}"
    );
    for (folder, _) in published() {
        let readme = fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(
            readme.contains(&format!("with Rust {oldest} and later")),
            "{}/README.md names another Rust than {oldest}",
            folder.display()
        );
    }
}

#[test]
fn published_packages_depend_on_published_packages() {
    let workspace = toml(&root().join("Cargo.toml"));
    let version = &workspace["workspace"]["package"]["version"];
    let known = workspace["workspace"]["dependencies"].as_table().unwrap();
    for (folder, _) in published() {
        let name = folder.file_name().unwrap().to_str().unwrap();
        // Programs that no other crate builds on have no entry.
        if let Some(dependency) = known.get(name) {
            assert_eq!(dependency.get("version"), Some(version), "{name}");
        }
    }
    // With a version it would be asked of the registry; without one, packaging leaves it out.
    assert_eq!(known["mq-testkit"].get("version"), None);
}

#[test]
fn a_package_is_built_of_its_own_files() {
    let mut wrong = Vec::new();
    for (folder, _) in published() {
        for file in sources(&folder.join("src")) {
            let below = file.strip_prefix(&folder).unwrap().components().count() - 1;
            let text = fs::read_to_string(&file).unwrap();
            for include in ["include_str!(", "include_bytes!("] {
                for (at, _) in text.match_indices(include) {
                    let path = text[at..].split('"').nth(1).unwrap_or_default();
                    if path.matches("../").count() > below {
                        wrong.push(format!("{}: {path}", file.display()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn binstall_asks_for_the_tarballs_that_dist_makes() {
    let dist = fs::read_to_string(root().join("deploy/dist")).unwrap();
    assert!(dist.contains("name=$program-$version-$target\n"), "{dist}");
    assert!(dist.contains(r#">"$out/$name.tar.gz""#), "{dist}");
    for (package, program) in [
        ("mq-command", "mq"),
        ("mqbroker", "{ name }"),
        ("mqbench", "{ name }"),
    ] {
        let manifest = toml(&root().join("crates").join(package).join("Cargo.toml"));
        let binstall = &manifest["package"]["metadata"]["binstall"];
        let text = |key: &str| binstall[key].as_str().unwrap();
        let name = format!("{program}-{{ version }}-{{ target }}");
        assert!(text("pkg-url").ends_with(&format!("/{name}.tar.gz")));
        let program = format!("{name}/{{ bin }}{{ binary-ext }}");
        assert_eq!(text("bin-dir"), program);
    }
}
