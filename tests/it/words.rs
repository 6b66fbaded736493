//! Doc comments name their subject with their first word: a noun, or a verb in the third person. A block that begins with a
//! question word or a pronoun is understood only with the line below it. The doc of a function that begins with an article
//! reads as that of a field or a type.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::root;

/// First words that tell a reader nothing.
const EMPTY: &[&str] = &[
    "what", "whether", "which", "who", "whose", "how", "why", "where", "when", "it", "its", "they",
    "them", "those", "that", "one", "of", "by", "behind", "for", "as",
];

/// First two words that tell a reader nothing.
const EMPTY_PAIRS: &[&str] = &["the same", "this one"];

/// Folders, and their doc blocks that still begin so. A number may become lower, and never higher.
const LEFT: &[(&str, usize)] = &[
    ("bench", 0),
    ("crates/mq-broker", 0),
    ("crates/mq-client", 0),
    ("crates/mq-codec", 0),
    ("crates/mq-command", 0),
    ("crates/mq-energy", 0),
    ("crates/mq-lane", 0),
    ("crates/mq-measure", 0),
    ("crates/mq-netem", 0),
    ("crates/mq-proto", 0),
    ("crates/mq-relay", 0),
    ("crates/mq-testkit", 0),
    ("crates/mq-transport", 0),
    ("crates/mqbench", 0),
    ("crates/mqbroker", 0),
    ("fuzz", 0),
    ("tests", 0),
];

/// First words of a function's doc in place of a verb.
const ARTICLES: &[&str] = &["The", "A", "An", "All", "Each", "No", "This", "These"];

/// Folders, and their docs of functions that still begin with an article. A number may become lower, and never higher.
const LEFT_WITHOUT_VERB: &[(&str, usize)] = &[
    ("bench", 0),
    ("crates/mq-broker", 0),
    ("crates/mq-client", 0),
    ("crates/mq-codec", 0),
    ("crates/mq-command", 0),
    ("crates/mq-energy", 0),
    ("crates/mq-lane", 0),
    ("crates/mq-measure", 0),
    ("crates/mq-netem", 0),
    ("crates/mq-proto", 0),
    ("crates/mq-relay", 0),
    ("crates/mq-testkit", 0),
    ("crates/mq-transport", 0),
    ("crates/mqbench", 0),
    ("crates/mqbroker", 0),
    ("fuzz", 0),
    ("tests", 0),
];

pub(crate) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the mark and the text of a line of a doc comment.
fn doc(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let mark = ["///", "//!"]
        .into_iter()
        .find(|mark| line.starts_with(mark))?;
    Some((mark, line[mark.len()..].trim_start()))
}

/// Returns `true` if a doc block that begins with this line says nothing by its first words.
fn begins_empty(text: &str) -> bool {
    if !text.starts_with(char::is_alphabetic) {
        return false;
    }
    let words =
        text.split(|character: char| !character.is_alphabetic() && !"'-".contains(character));
    let words = words.filter(|word| !word.is_empty());
    let words: Vec<_> = words.take(2).map(str::to_lowercase).collect();
    EMPTY.contains(&words[0].as_str()) || EMPTY_PAIRS.contains(&words.join(" ").as_str())
}

/// Returns the lines at which doc blocks begin with empty words.
fn empty_blocks(source: &str) -> Vec<(usize, String)> {
    let mut before = None;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(source.lines()) {
        let doc = doc(line);
        let mark = doc.map(|(mark, _)| mark);
        if let Some((_, text)) = doc
            && mark != before
            && begins_empty(text)
        {
            found.push((number, text.to_owned()));
        }
        before = mark;
    }
    found
}

/// Returns `true` if this line begins a function.
fn is_function(line: &str) -> bool {
    let is_qualifier = |word: &&str| {
        word.starts_with("pub")
            || word.ends_with(')')
            || ["const", "async", "unsafe"].contains(word)
    };
    let mut words = line.split_whitespace();
    words.find(|word| !is_qualifier(word)) == Some("fn")
}

/// Returns the lines at which docs of functions begin with an article. Docs of tests are left out.
fn blocks_without_verb(source: &str) -> Vec<(usize, String)> {
    let mut block: Option<(usize, &str)> = None;
    let mut is_test = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(source.lines().map(str::trim_start)) {
        if let Some(text) = line.strip_prefix("///") {
            block = block.or(Some((number, text.trim_start())));
        } else if block.is_some() && line.starts_with("#[") {
            is_test |= line.contains("#[test]") || line.contains("tokio::test");
        } else {
            let first = block.take().filter(|_| !is_test && is_function(line));
            if let Some((begin, text)) = first
                && let Some((word, _)) = text.split_once(' ')
                && ARTICLES.contains(&word)
            {
                found.push((begin, text.to_owned()));
            }
            is_test = false;
        }
    }
    found
}

/// Compares the numbers of a table with the blocks that `find` finds in the folders.
fn check(left: &[(&str, usize)], find: fn(&str) -> Vec<(usize, String)>) {
    let root = root();
    let mut wrong = Vec::new();
    for (folder, left) in left {
        let mut files = Vec::new();
        sources(&root.join(folder), &mut files);
        let mut found = Vec::new();
        for file in files {
            let blocks = find(&fs::read_to_string(&file).unwrap());
            let blocks = blocks.into_iter();
            found.extend(blocks.map(|(line, text)| format!("{}:{line}: {text}", file.display())));
        }
        if found.len() > *left {
            wrong.push(format!(
                "{}\n{folder}: {}, and not {left}",
                found.join("\n"),
                found.len()
            ));
        } else if found.len() < *left {
            wrong.push(format!("{folder}: lower the number to {}", found.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_block_that_begins_with_a_question_word_or_a_pronoun_is_found() {
    let source = "/// Whether it is open.\n/// Of all.\nfn a() {}\n\n    /// The same, later.\n    //! It is.\n/// Where.\n";
    let lines: Vec<_> = empty_blocks(source).iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [1, 5, 6, 7]);
    let fine = "/// Returns `true` if it is open.\n/// `What`\nfn a() {}\n/// Offset.\n/// Whethers\n/// One-way delay.\n";
    assert!(empty_blocks(fine).is_empty());
}

#[test]
fn a_function_whose_doc_begins_with_an_article_is_found() {
    let source = "/// The lanes.\nfn a() {}\n    /// A lane.\n    #[must_use]\n    pub(in crate::b) const fn b() {}\n";
    let lines: Vec<_> = blocks_without_verb(source)
        .into_iter()
        .map(|(line, _)| line)
        .collect();
    assert_eq!(lines, [1, 3]);
    let fine = "/// Returns it.\n/// Each lane.\nasync fn a() {}\n/// No lane.\nstruct B;\n/// These lanes.\n#[tokio::test]\nasync fn c() {}\n/// Theory of it.\nfn d() {}\n";
    assert!(blocks_without_verb(fine).is_empty());
}

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    check(LEFT, empty_blocks);
}

#[test]
fn docs_of_functions_begin_with_a_verb() {
    check(LEFT_WITHOUT_VERB, blocks_without_verb);
}
