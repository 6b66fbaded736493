//! Source files as text: the modules that they name, and circles of files that name each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Returns the circles of files of a crate: one line for each folder that has some. Of a folder below, its
/// `mod.rs` counts. `source` is the crate's folder `src`.
///
/// # Panics
/// Panics if the folder cannot be read.
#[must_use]
pub fn circles_of_files(source: &Path) -> Vec<String> {
    let mut found = Vec::new();
    look_for_circles(source, "crate::", &mut found);
    found
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
        // A folder without `mod.rs` has its module beside it.
        if !["mod", "main", "lib", "tests"].contains(&&name[..]) && file.exists() {
            let source = fs::read_to_string(file).unwrap();
            files.insert(name, siblings(&source, path));
        }
    }
    let found = circular(files);
    if !found.is_empty() {
        wrong.push(format!("{path}{{{}}}", found.join(", ")));
    }
}

/// Returns the files of a folder that a file of it names by `super::` or by `path`, outside of its tests.
fn siblings(source: &str, path: &str) -> BTreeSet<String> {
    let product = source.split("#[cfg(test)]\nmod tests {").next();
    let product = code_lines(product.unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let mut named = Vec::new();
    for root in ["super::", "crate::"] {
        for (at, _) in product.match_indices(root) {
            read_paths(root.to_owned(), &product[at + root.len()..], &mut named);
        }
    }
    let beside = |named: &String| {
        let name = named.strip_prefix("super::").or(named.strip_prefix(path));
        name.map(identifier)
    };
    named.iter().filter_map(beside).collect()
}

/// Reads the paths that `text` begins with, of which `before` was read: one, or each of `{..}`. Returns the text behind
/// them.
fn read_paths<'a>(before: String, text: &'a str, paths: &mut Vec<String>) -> &'a str {
    if let Some(group) = text.strip_prefix('{') {
        let mut rest = group.trim_start();
        while !rest.is_empty() && !rest.starts_with('}') {
            let behind = read_paths(before.clone(), rest, paths);
            // What is no path, such as an alias, is passed over.
            let skipped = behind.find([',', '}']).unwrap_or(behind.len());
            rest = behind[skipped..].trim_start_matches(',').trim_start();
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let name = identifier(text);
    let rest = &text[name.len()..];
    match rest.strip_prefix("::") {
        Some(rest) if !name.is_empty() => read_paths(before + &name + "::", rest, paths),
        _ => {
            paths.push(before + &name);
            rest
        }
    }
}

/// Returns the files that are in a cycle of references, or lead to one; `files` has for each file those that it refers
/// to.
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

/// Returns the names behind a path such as `crate::` in a source file: one name, or all names of `{..}`.
#[must_use]
pub fn names_behind(source: &str, path: &str) -> BTreeSet<String> {
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

/// Returns the lines of a source file that are not comments.
pub fn code_lines(source: &str) -> impl Iterator<Item = &str> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    source.lines().filter(is_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_of_files_is_found() {
        let source = "//! super::c\nuse super::{\n    a::A,\n    b as z,\n};\nuse crate::{\n    x, lab::{d, f::{G, H}},\n};\n\
                      #[cfg(test)]\nmod tests {\n    use super::e;\n}";
        let named: Vec<_> = siblings(source, "crate::lab::").into_iter().collect();
        assert_eq!(named, ["a", "b", "d", "f"]);
        let files = |names: [(&str, &str); 3]| {
            let each =
                names.map(|(own, named)| (own.to_owned(), BTreeSet::from([named.to_owned()])));
            circular(BTreeMap::from(each))
        };
        assert!(files([("a", "b"), ("b", "c"), ("c", "elsewhere")]).is_empty());
        assert_eq!(files([("a", "b"), ("b", "a"), ("c", "c")]), ["a", "b"]);
    }
}
