//! Results as JSON files, each with the name of its schema.

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;

/// Writes a value indented, with a line break at the end.
pub(crate) fn save(value: &impl Serialize, path: &Path) -> Result<(), Error> {
    let json = serde_json::to_string_pretty(value).map_err(|source| Error::Json {
        path: path.to_owned(),
        source,
    })?;
    fs::write(path, json + "\n").map_err(Error::io(path))
}

/// Reads a file whose `schema` has to be the given one.
pub(crate) fn load<T: DeserializeOwned>(path: &Path, schema: &str) -> Result<T, Error> {
    let text = fs::read_to_string(path).map_err(Error::io(path))?;
    let json = |source| Error::Json {
        path: path.to_owned(),
        source,
    };
    let value: Value = serde_json::from_str(&text).map_err(json)?;
    match value.get("schema").and_then(Value::as_str) {
        Some(found) if found == schema => {}
        other => {
            return Err(Error::Format {
                path: path.to_owned(),
                expected: format!("schema {schema}"),
                found: other.unwrap_or("none").to_owned(),
            });
        }
    }
    // Parse the text again: the error then has line and column.
    serde_json::from_str(&text).map_err(json)
}
