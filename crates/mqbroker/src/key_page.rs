//! mqbroker.toml(5): every key of the configuration, made from `docs/reference/broker.md`.

use std::{fs, path::Path};

use anyhow::anyhow;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// `docs/reference/broker.md`, which is the same file; a test holds it complete.
const REFERENCE: &str = include_str!("broker.md");

/// Writes the manual page of the configuration file below a folder, in the place that it has in
/// `/usr/share`.
///
/// # Errors
/// If a file or folder cannot be made, in one line.
pub fn write_key_page(folder: &Path) -> anyhow::Result<()> {
    let pages = folder.join("man/man5");
    let page = pages.join("mqbroker.toml.5");
    fs::create_dir_all(&pages)
        .and_then(|()| fs::write(&page, key_page(REFERENCE)))
        .map_err(|error| anyhow!("cannot write to {}: {error}", page.display()))
}

/// Makes the manual page (roff) of a Markdown page with headings, paragraphs, and tables of key, value, default and
/// meaning.
fn key_page(markdown: &str) -> String {
    let version = concat!("mqbroker ", env!("CARGO_PKG_VERSION"));
    let mut page = Roff::new();
    page.control("TH", ["mqbroker.toml", "5", " ", version]);
    page.control("SH", ["NAME"]);
    page.text([roman("mqbroker.toml - configuration of the MQTT broker")]);
    page.control("SH", ["DESCRIPTION"]);
    let mut paragraph = Vec::new();
    let lines = markdown.lines().skip_while(|line| line.starts_with("# "));
    for line in lines.chain([""]) {
        let heading = line.strip_prefix("## ");
        if heading.is_some() || line.is_empty() || line.starts_with('|') {
            if !paragraph.is_empty() {
                page.control("PP", []);
                page.text(inline(&paragraph.join(" ")));
                paragraph.clear();
            }
        } else {
            paragraph.push(line);
        }
        if let Some(heading) = heading {
            page.control("SH", [heading.replace('`', "").as_str()]);
        } else if let Some([key, value, default, meaning]) = row(line) {
            page.control("TP", []);
            let mut head = inline(key);
            head.push(roman(": "));
            head.extend(inline(value));
            page.text(head);
            page.text(inline(&format!("{meaning}.")));
            if !default.is_empty() {
                page.control("br", []);
                page.text(inline(&format!("Default: {default}.")));
            }
        }
    }
    page.control("SH", ["FILES"]);
    page.text([italic("/etc/mqbroker/mqbroker.toml")]);
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("mqbroker"),
        roman("(1). The pages that are named here are in docs/reference and docs/guide of the sources."),
    ]);
    page.to_roff()
}

/// Returns the cells of a row about a key; `None` for other rows.
fn row(line: &str) -> Option<[&str; 4]> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    let row = [cells.next()?, cells.next()?, cells.next()?, cells.next()?];
    row[0].starts_with('`').then_some(row)
}

/// Formats code in bold, and links as their text.
fn inline(text: &str) -> Vec<Inline> {
    let mut found = Vec::new();
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 1 {
            found.push(bold(part));
        } else if !part.is_empty() {
            found.push(roman(without_links(part)));
        }
    }
    found
}

fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, (label, after))) = link(rest) {
        plain.push_str(before);
        plain.push_str(label);
        rest = after;
    }
    plain.push_str(rest);
    plain
}

/// Splits a text at its first link: the text before it, the link's text, and the text behind it.
fn link(text: &str) -> Option<(&str, (&str, &str))> {
    let (before, behind) = text.split_once('[')?;
    let (label, target) = behind.split_once("](")?;
    let (_, after) = target.split_once(')')?;
    Some((before, (label, after)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_becomes_an_entry() {
        let page = key_page(
            "# Title\n\nOne `a-b`\nparagraph ([x](y.md)).\n\n## `[tls]`\n\n| key | value | default | what |\n\
             |---|---|---|---|\n| `key` | file | | the key, as [there](a.md#b) |\n\
             | `n` | number | 7 | a number |\n",
        );
        for part in [
            "One \\fBa\\-b\\fR paragraph (x).",
            ".SH [tls]\n.TP\n\\fBkey\\fR: file\nthe key, as there.\n.TP\n",
            "a number.\n.br\nDefault: 7.\n",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        assert!(!page.contains("key | value"), "{page}");
    }
}
