//! The form of the pages in `docs/`: what each begins with, and contents where it is long.

use std::{collections::BTreeSet, fs};

use crate::pages::{anchor, docs, links};

/// Returns `true` if a page is a title, an empty line, and a paragraph of one sentence, before all else.
fn begins_with_a_sentence(page: &str) -> bool {
    let mut parts = page.splitn(3, "\n\n");
    let (title, first) = (parts.next().unwrap(), parts.next().unwrap_or_default());
    let is_text = first.starts_with(|c: char| c.is_alphanumeric() || c == '`' || c == '[')
        && !first.starts_with("```");
    let text = first.replace('\n', " ");
    let ends = [". ", "? ", "! "].iter().any(|end| text.contains(end));
    title.starts_with("# ") && !title.contains('\n') && is_text && text.ends_with('.') && !ends
}

/// Lists the headings of a page of more than 300 lines to which nothing above the first of them links.
fn not_in_contents(page: &str) -> Vec<&str> {
    if page.lines().count() <= 300 {
        return Vec::new();
    }
    let (above, _) = page.split_once("\n## ").unwrap_or((page, ""));
    let linked: BTreeSet<_> = links(above).into_iter().collect();
    let prose = page.split("```").step_by(2);
    let headings = prose.flat_map(|prose| prose.lines().filter(|line| line.starts_with("## ")));
    let is_missing = |line: &&str| !linked.contains(&*format!("#{}", anchor(line)));
    headings.filter(is_missing).collect()
}

#[test]
fn a_page_begins_with_one_sentence_and_a_long_one_has_contents() {
    let mut wrong = Vec::new();
    for path in docs() {
        let page = fs::read_to_string(&path).unwrap();
        let path = path.display();
        if !begins_with_a_sentence(&page) {
            wrong.push(format!("{path}: a title, then one sentence"));
        }
        let missing = not_in_contents(&page);
        let missing = missing.into_iter();
        wrong.extend(missing.map(|heading| format!("{path}: no link to `{heading}`")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_page_without_its_sentence_or_contents_is_found() {
    for page in [
        "# A\n\nOne. Two.\n\n",
        "# A\n\n## B\n\nOne.\n",
        "# A\n\n| a |\n|---|\n\n",
        "# A\n\nOne:\n\n",
        "# A\nOne.\n\n",
        "# A\n\n```\nOne.\n\n",
    ] {
        assert!(!begins_with_a_sentence(page), "{page}");
    }
    assert!(begins_with_a_sentence(
        "# A\n\n`b` is\nc 2.5.\n\nMore. And more.\n"
    ));
    let long = format!(
        "# A\n\nOne.\n\n[b](#b)\n\n## B\n## C d\n{}",
        "\n".repeat(300)
    );
    assert_eq!(not_in_contents(&long), ["## C d"]);
    assert!(not_in_contents("# A\n\n## B\n").is_empty());
}
