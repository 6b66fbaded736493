//! Lines of the log begin with an event or a state, and the reference has a row for each of level `INFO` and above.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{root, words::sources};

/// Crates whose lines are in the log of `mqbroker`.
const BROKER: &[&str] = &["mq-broker", "mqbroker", "mq-transport"];

/// Macros of `tracing`.
const LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];

/// Levels whose lines are in the reference.
const DOCUMENTED: &[&str] = &["error", "warn", "info"];

/// First words with which a line has to be decoded.
const EMPTY: &[&str] = &[
    "a",
    "an",
    "everybody",
    "how",
    "it",
    "its",
    "nobody",
    "nothing",
    "one",
    "somebody",
    "such",
    "that",
    "the",
    "there",
    "these",
    "they",
    "this",
    "those",
    "what",
    "where",
    "which",
    "who",
    "whose",
    "why",
];

/// Call of a macro of `tracing`.
#[derive(Debug)]
struct Call {
    level: &'static str,
    /// The fields and the message, as in the source.
    arguments: String,
    file: PathBuf,
}

impl Call {
    /// Returns the format string: the last string that is not in brackets and not the value of a field.
    fn message(&self) -> String {
        let (mut depth, mut at, mut message) = (0_i32, 0, None);
        let text = &self.arguments;
        while let Some(found) = text[at..].find(['"', '(', '[', '{', ')', ']', '}']) {
            let before = text[..at + found].trim_end();
            at += found;
            match text.as_bytes()[at] {
                b'"' => {
                    let end = string_end(text, at);
                    if depth == 0
                        && (before.is_empty() || before.ends_with(','))
                        && message.is_none()
                    {
                        message = Some(&text[at + 1..end - 1]);
                    }
                    at = end;
                    continue;
                }
                b'(' | b'[' | b'{' => depth += 1,
                _ => depth -= 1,
            }
            at += 1;
        }
        let message = message.unwrap_or_else(|| panic!("{self:?} has no message"));
        // A string goes on in the next line after a backslash.
        let lines = message.split("\\\n").enumerate();
        lines
            .map(|(number, line)| if number > 0 { line.trim_start() } else { line })
            .collect()
    }
}

/// Returns the place behind the string that begins at `from`.
fn string_end(text: &str, from: usize) -> usize {
    let mut bytes = text.bytes().enumerate().skip(from + 1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'"' => return at + 1,
            _ => {}
        }
    }
    panic!("a string does not end: {text}");
}

/// Returns the calls of `tracing`'s macros in a source.
fn calls(file: &Path, source: &str) -> Vec<Call> {
    let mut found = Vec::new();
    for level in LEVELS {
        let name = format!("{level}!(");
        for (at, _) in source.match_indices(&name) {
            if source[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
                continue;
            }
            let from = at + name.len();
            let (mut depth, mut end) = (1, from);
            while depth > 0 {
                match source.as_bytes()[end] {
                    b'"' => end = string_end(source, end) - 1,
                    b'(' => depth += 1,
                    b')' => depth -= 1,
                    _ => {}
                }
                end += 1;
            }
            found.push(Call {
                level,
                arguments: source[from..end - 1].to_owned(),
                file: file.to_owned(),
            });
        }
    }
    found
}

/// Returns a message as the reference writes it: with `..` for each text of the occasion.
fn with_dots(message: &str) -> String {
    let mut parts = message.split('{');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (_, rest) = part.split_once('}').expect("a placeholder ends");
        text + ".." + rest
    })
}

/// Returns the sources of a crate.
fn read(name: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    sources(&root().join("crates").join(name).join("src"), &mut files);
    let files = files.into_iter();
    files
        .map(|file| (file.clone(), fs::read_to_string(file).unwrap()))
        .collect()
}

/// Returns the strings that follow `mark` in a source.
fn strings_after<'a>(source: &'a str, mark: &str) -> Vec<&'a str> {
    let parts = source.split(mark).skip(1);
    parts.filter_map(|part| part.split('"').next()).collect()
}

/// Level and message of each line of the broker that the reference has to have.
fn written() -> BTreeSet<(String, String)> {
    let all: Vec<_> = BROKER.iter().flat_map(|name| read(name)).collect();
    // Two messages have their first words from elsewhere: the names of outages, and the kinds of refusals.
    let outages = all.iter();
    let outages = outages.flat_map(|(_, source)| strings_after(source, "Outage::new(\""));
    let outages: Vec<_> = outages.collect();
    let kinds = |source: &str| {
        let own = source
            .split_once("enum ClientLine")
            .expect("it has two kinds");
        strings_after(own.0, "=> \"")
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    let mut lines = BTreeSet::new();
    for (file, source) in &all {
        for call in calls(file, source) {
            if !DOCUMENTED.contains(&call.level) {
                continue;
            }
            let message = call.message();
            let texts: Vec<String> = if message == "{}" {
                kinds(source)
            } else if message.contains("{what} failed") {
                let names = outages.iter();
                names.map(|name| message.replace("{what}", name)).collect()
            } else {
                vec![with_dots(&message)]
            };
            let level = call.level.to_uppercase();
            lines.extend(texts.into_iter().map(|text| (level.clone(), text)));
        }
    }
    lines
}

/// Level and message of each row of the reference.
fn documented() -> BTreeSet<(String, String)> {
    let page = fs::read_to_string(root().join("docs/reference/operation.md")).unwrap();
    let (_, section) = page.split_once("\n## Log lines\n").expect("the section");
    let section = section.split("\n## ").next().unwrap();
    let rows = section
        .lines()
        .map(|line| line.split(" | ").collect::<Vec<_>>());
    let rows = rows.filter_map(|cells| {
        let level = cells[0].strip_prefix("| `")?.strip_suffix('`')?;
        let is_level = DOCUMENTED.contains(&level.to_lowercase().as_str());
        is_level.then(|| (level.to_owned(), cells[1].to_owned()))
    });
    rows.flat_map(|(level, messages)| {
        let messages = messages.split('`').skip(1).step_by(2);
        let messages: Vec<_> = messages.map(str::to_owned).collect();
        messages
            .into_iter()
            .map(move |message| (level.clone(), message))
    })
    .collect()
}

/// Returns `true` if a message has to be decoded by its first words, or by those after its subject, such as `cluster:`.
fn begins_empty(message: &str) -> bool {
    let begin = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    let is_wrong = |word: String| {
        let mut letters = word.chars();
        let is_name = word.to_uppercase() == word || word.chars().skip(1).any(char::is_uppercase);
        EMPTY.contains(&word.to_lowercase().trim_end_matches("'s"))
            || (letters.next().is_some_and(char::is_uppercase) && !is_name)
    };
    let subject = message.split_once(": ").map(|(_, rest)| rest);
    is_wrong(begin(message)) || subject.is_some_and(|rest| is_wrong(begin(rest)))
}

#[test]
fn a_message_is_found_behind_fields_and_over_lines() {
    let source = r#"
        warn!(
            client = %Escaped(&id),
            text = format!("({})", id), error = "x",
            "a {what} \
             \"b\" ({n})",
            names.join(", ")
        );
        not_an_error!("x"); tracing::info!("plain: {}", 1); debug!(n, "c");
    "#;
    let found = calls(Path::new("x.rs"), source);
    let found: Vec<_> = found
        .iter()
        .map(|call| (call.level, call.message()))
        .collect();
    let message = r#"a {what} \"b\" ({n})"#;
    let wanted = [("warn", message), ("info", "plain: {}"), ("debug", "c")];
    assert_eq!(found, wanted.map(|(level, text)| (level, text.to_owned())));
    assert_eq!(with_dots(message), r#"a .. \"b\" (..)"#);
    for wrong in [
        "it fails",
        "The log",
        "cluster: nobody answers",
        "what is new",
    ] {
        assert!(begins_empty(wrong), "{wrong}");
    }
    for fine in [
        "connected",
        "cluster: NATS server lost",
        "QUIC",
        "..; lines left out",
    ] {
        assert!(!begins_empty(fine), "{fine}");
    }
}

#[test]
fn each_line_of_the_broker_has_its_row_in_the_reference() {
    let (written, documented) = (written(), documented());
    assert!(written.len() > 80, "{}", written.len());
    let missing: Vec<_> = written.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&written).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "without a row: {missing:#?}\nwithout a line in the source: {stale:#?}"
    );
}

#[test]
fn each_line_begins_with_an_event_or_a_state() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        for (file, source) in read(&name) {
            for call in calls(&file, &source) {
                let message = call.message();
                if begins_empty(&message) {
                    wrong.push(format!("{}: {message}", call.file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn texts_that_peers_choose_are_escaped_in_each_line() {
    let mut wrong = Vec::new();
    for (file, source) in read("mq-broker") {
        for call in calls(&file, &source) {
            let fields = ["client = %", "user = %", "topic = %"];
            let values = fields.map(|field| call.arguments.split_once(field));
            let is_raw = |(_, value): (&str, &str)| !value.starts_with("Escaped(");
            if values.into_iter().flatten().any(is_raw) {
                wrong.push(call);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
