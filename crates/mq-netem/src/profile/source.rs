//! The source of a profile: a shipped text or a file, with the user's changes.

use std::path::Path;

use crate::{
    Error,
    presets::{self, Presets},
};

/// A profile's text, with its name and its changes.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    name: &'a str,
    text: String,
    /// The user's changes: `key=value`, separated by commas; empty if there are none.
    changes: &'a str,
}

/// Type of a function that makes the change `key=value` in a profile's table; its error is the problem, in one line.
type Apply = fn(&mut toml::Table, key: &str, value: &str) -> Result<(), String>;

impl<'a> Source<'a> {
    /// Finds the profile that `name` stands for: a shipped one, or a file that ends in `.toml`. Changes follow an `@`.
    pub(crate) fn find(name: &'a str, shipped: Presets) -> Result<Self, Error> {
        let (name, changes) = name.split_once('@').unwrap_or((name, ""));
        let text = if is_file(name) {
            read(name, Path::new(name))?
        } else {
            let found = presets::find(shipped, name).ok_or_else(|| Error::NoProfile {
                name: name.to_owned(),
                known: presets::names(shipped).collect::<Vec<_>>().join(", "),
            })?;
            found.to_owned()
        };
        Ok(Self {
            name,
            text,
            changes,
        })
    }

    /// Makes a source of a profile's text, which has no name and no changes.
    pub(crate) fn text(text: &str) -> Self {
        Self {
            name: "in a text",
            text: text.to_owned(),
            changes: "",
        }
    }

    /// Returns the profile as a TOML table, with the name's changes (`@key=value`) made.
    pub(crate) fn table(&self, apply: Apply) -> Result<toml::Table, Error> {
        let table = toml::from_str(&self.text);
        let mut table = table.map_err(|error| self.wrong(one_line(&error)))?;
        for change in self.changes.split(',').filter(|change| !change.is_empty()) {
            let (key, value) = change.split_once('=').ok_or_else(|| {
                self.wrong(format!(
                    "`{change}` is no change: write key=value, such as loss=5%"
                ))
            })?;
            apply(&mut table, key, value).map_err(|problem| self.wrong(problem))?;
        }
        Ok(table)
    }

    /// Reads another file that the profile names, by a path relative to the profile's folder. Files of shipped profiles ship, too.
    pub(crate) fn read_beside(&self, name: &str) -> Result<String, Error> {
        if let Some(text) = presets::find_file(name).filter(|_| !is_file(self.name)) {
            return Ok(text.to_owned());
        }
        let folder = Path::new(self.name).parent().unwrap_or(Path::new(""));
        read(name, &folder.join(name))
    }

    /// Makes the error that this profile has a wrong key or value.
    pub(crate) fn wrong(&self, problem: String) -> Error {
        Error::Profile {
            name: self.name.to_owned(),
            problem,
        }
    }
}

/// Returns `true` if a profile's name is that of a file, and not of a shipped profile.
fn is_file(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extension == "toml")
}

/// Reads a file; the error shows it under `name`.
fn read(name: &str, file: &Path) -> Result<String, Error> {
    std::fs::read_to_string(file).map_err(|source| Error::ReadProfile {
        name: name.to_owned(),
        source,
    })
}

/// Sets `key` to the string `value` in the inner table `section`, which is created if it is absent. Does nothing if
/// `section` is a value and no table.
pub(crate) fn set(table: &mut toml::Table, section: &str, key: &str, value: &str) {
    let section = table
        .entry(section)
        .or_insert_with(|| toml::Value::Table(toml::Table::new()));
    if let Some(section) = section.as_table_mut() {
        section.insert(key.to_owned(), toml::Value::String(value.to_owned()));
    }
}

/// Formats the error of a text on one line, without the picture of the line in question.
fn one_line(error: &toml::de::Error) -> String {
    error.message().replace('\n', " ")
}

/// Formats the error of a value in the table `section`, with the value's key in front; the outermost table has no name.
pub(crate) fn with_key(section: &str, error: &toml::de::Error) -> String {
    let text = error.to_string();
    let key = text
        .lines()
        .find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
    let names = [section, key.unwrap_or_default()];
    let names: Vec<_> = names.into_iter().filter(|name| !name.is_empty()).collect();
    let problem = one_line(error);
    match &names[..] {
        [] => problem,
        names => format!("{}: {problem}", names.join(".")),
    }
}
