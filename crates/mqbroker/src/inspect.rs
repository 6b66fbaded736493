//! `mqbroker clients` and its like: asks a running broker through its admin socket.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use mq_broker::{Config, Shown, view::LARGEST_PAGE};
use serde_json::{Map, Value};

use crate::backup::ask;

/// Where the broker is asked, and how the answer is shown.
#[derive(Args, Clone, Debug)]
pub struct Where {
    /// The broker's admin socket
    #[arg(long, value_name = "FILE", required_unless_present = "config")]
    pub socket: Option<PathBuf>,
    /// The broker's configuration file, with `admin.socket`
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the broker's answers as JSON, one page a line
    #[arg(long)]
    pub json: bool,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'a> {
    /// Method, page below `/v1/`, and a client identifier or nothing.
    One(&'a str, &'a str, &'a str),
    /// Page, and what its items match.
    List(&'a str, &'a str),
}

impl Where {
    fn socket(&self) -> anyhow::Result<PathBuf> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        let path = self
            .config
            .as_deref()
            .context("--socket or --config is missing")?;
        let socket = Config::read(path)?.admin.socket;
        socket.ok_or_else(|| {
            anyhow!(
                "{}: admin.socket is missing: a running broker is asked there",
                path.display()
            )
        })
    }
}

/// Asks, and prints the answer.
///
/// # Errors
/// If no broker answers there, or it refuses.
pub(crate) fn run(place: &Where, request: &Request<'_>) -> anyhow::Result<()> {
    let socket = place.socket()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let answer = |method: &str, page: &str, body: &str| -> anyhow::Result<String> {
        runtime
            .block_on(ask(&socket, method, &format!("/v1/{page}"), body))
            .map_err(|error| plain(&error))
    };
    let mut out = io::stdout().lock();
    match *request {
        Request::One(method, page, id) => {
            let body = if id.is_empty() {
                String::new()
            } else {
                format!("id={}", encoded(id))
            };
            let said = answer(method, page, &body)?;
            if place.json {
                writeln!(out, "{said}")?;
            } else {
                write_fields(&mut out, "", &object(&said)?)?;
            }
        }
        Request::List(page, matching) => {
            let (mut after, mut rows) = (String::new(), Vec::new());
            loop {
                let (matching, behind) = (encoded(matching), encoded(&after));
                let body = format!("match={matching}&after={behind}&limit={LARGEST_PAGE}");
                let said = answer("GET", page, &body)?;
                let answered = object(&said)?;
                if place.json {
                    writeln!(out, "{said}")?;
                } else if let Some(items) = answered.get("items").and_then(Value::as_array) {
                    rows.extend(items.iter().filter_map(Value::as_object).cloned());
                }
                match answered.get("next").and_then(Value::as_str) {
                    Some(next) => next.clone_into(&mut after),
                    None => break,
                }
            }
            write_table(&mut out, &rows)?;
        }
    }
    Ok(())
}

/// The broker's refusal, without its JSON.
fn plain(error: &anyhow::Error) -> anyhow::Error {
    let said = error.to_string();
    match object(&said) {
        Ok(answer) => match answer.get("error").and_then(Value::as_str) {
            Some(problem) => anyhow!("{}", problem.replace(char::is_control, "?")),
            None => anyhow!("the broker refuses"),
        },
        Err(_) => anyhow!("{said}"),
    }
}

fn object(said: &str) -> anyhow::Result<Map<String, Value>> {
    match serde_json::from_str(said) {
        Ok(Value::Object(object)) => Ok(object),
        _ => bail!("the broker's answer is not JSON: is it of another version?"),
    }
}

/// Percent-encodes all but letters and digits.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        plain if plain.is_ascii_alphanumeric() => char::from(plain).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// A value for people: no text of a client's leaves its place.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => Shown(text).to_string(),
        other => other.to_string(),
    }
}

fn write_fields(out: &mut impl io::Write, of: &str, fields: &Map<String, Value>) -> io::Result<()> {
    for (name, value) in fields {
        match value {
            Value::Object(inner) => write_fields(out, &format!("{name}: "), inner)?,
            Value::Array(rows) => {
                let rows: Vec<_> = rows.iter().filter_map(Value::as_object).cloned().collect();
                writeln!(out, "{of}{name}:")?;
                write_table(out, &rows)?;
            }
            value => writeln!(out, "{of}{name}: {}", cell(value))?,
        }
    }
    Ok(())
}

/// Rows below the names of their fields, in aligned columns.
fn write_table(out: &mut impl io::Write, rows: &[Map<String, Value>]) -> io::Result<()> {
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let head: Vec<_> = first.keys().cloned().collect();
    let cells = rows.iter().map(|row| row.values().map(cell).collect());
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(cells).collect();
    let mut widths = vec![0; first.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    for line in &lines {
        let padded = line.iter().zip(&widths);
        let padded: Vec<_> = padded
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        writeln!(out, "{}", padded.join("  ").trim_end())?;
    }
    Ok(())
}
