//! `mqbroker clients` and its like: asks a running broker through its admin socket.

use std::{
    io::{self, Write as _},
    net::IpAddr,
    path::PathBuf,
};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand};
use mq_broker::{Config, Escaped, view::LARGEST_PAGE};
use serde_json::{Map, Value};

use crate::backup::ask;

/// Address at which the broker is asked, and form of the answer.
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

/// Subcommands that query a running broker.
#[derive(Subcommand, Clone, Debug)]
pub enum Ask {
    /// Show the state of a running broker, and how often it refused what
    Status(Where),
    /// Questions to a node of a cluster
    #[command(subcommand)]
    Cluster(AskCluster),
    /// List connected clients
    Clients {
        /// Only those whose identifier contains this text
        #[arg(long, value_name = "TEXT", default_value = "")]
        r#match: String,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
    /// Show one connected client
    Client {
        /// Client identifier
        id: String,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
    /// Disconnect a client; it may come again
    Kick {
        /// Client identifier
        id: String,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
    /// Refuse a client, a user or an address for some minutes, and disconnect it
    Ban {
        /// Clients
        #[command(flatten)]
        whom: Whom,
        /// Duration of the ban; a restart of the broker lifts all bans
        #[arg(long, value_name = "MINUTES", default_value = "10")]
        minutes: u32,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
    /// Lift a ban
    Unban {
        /// Clients
        #[command(flatten)]
        whom: Whom,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
    /// List bans
    Bans(Where),
    /// List sessions without a connection
    Sessions {
        /// Only those whose identifier contains this text
        #[arg(long, value_name = "TEXT", default_value = "")]
        r#match: String,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
    /// List topics by the rate of their messages, the busiest first
    Topics {
        /// Only those that contain this text
        #[arg(long, value_name = "TEXT", default_value = "")]
        r#match: String,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
    /// List subscriptions
    Subscriptions {
        /// Only those whose filter contains this text
        #[arg(long, value_name = "TEXT", default_value = "")]
        r#match: String,
        /// Only those of this client
        #[arg(long, value_name = "ID")]
        client: Option<String>,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
    /// List retained messages, without their payloads
    Retained {
        /// Only those whose topic this filter matches
        #[arg(long, value_name = "FILTER", default_value = "#")]
        r#match: String,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
    /// List what was refused lately, the newest first
    Refusals {
        /// Only those with this text in client, user, topic, address or reason
        #[arg(long, value_name = "TEXT", default_value = "")]
        r#match: String,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
    /// Show what the log keeps, or change it until the broker ends
    LogLevel {
        /// Such as `debug`, or `info,connections=debug`
        filter: Option<String>,
        /// Address at which the broker is asked
        #[command(flatten)]
        place: Where,
    },
}

/// Subcommands that query a node of a cluster.
#[derive(Subcommand, Clone, Debug)]
pub enum AskCluster {
    /// Show a node: the others that it has heard of, how far it has read the logs, and what waits
    Status(Where),
}

/// The client, user or address of a ban.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub struct Whom {
    /// A client identifier
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// A user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// An IPv4 address, or the IPv6 network of 64 bits that an address is in
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
}

impl Whom {
    fn parameter(&self) -> String {
        let address = self.address.map(|address| address.to_string());
        match (&self.client, &self.user, address) {
            (Some(id), ..) => parameter("client", id),
            (None, Some(name), _) => parameter("user", name),
            (None, None, address) => parameter("address", &address.unwrap_or_default()),
        }
    }
}

/// Request to the broker.
#[derive(Clone, Debug)]
enum Request<'a> {
    /// Method, page below `/v1/`, and parameters.
    One(&'a str, &'a str, String),
    /// Page, and parameters.
    List(&'a str, String),
}

impl Ask {
    /// Asks, and prints the answer.
    ///
    /// # Errors
    /// If no broker answers there, or it refuses.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let matching = |text: &str| parameter("match", text);
        let (place, request) = match self {
            Self::Status(place) => (place, Request::One("GET", "status", String::new())),
            Self::Cluster(AskCluster::Status(place)) => {
                (place, Request::One("GET", "cluster", String::new()))
            }
            Self::Client { id, place } => {
                (place, Request::One("GET", "clients/", parameter("id", id)))
            }
            Self::Kick { id, place } => {
                let id = parameter("id", id);
                (place, Request::One("POST", "clients//kick", id))
            }
            Self::Ban {
                whom,
                minutes,
                place,
            } => {
                let ban = format!("{}&minutes={minutes}", whom.parameter());
                (place, Request::One("POST", "bans", ban))
            }
            Self::Unban { whom, place } => {
                (place, Request::One("DELETE", "bans", whom.parameter()))
            }
            Self::Bans(place) => (place, Request::List("bans", String::new())),
            Self::Clients { r#match, place } => {
                (place, Request::List("clients", matching(r#match)))
            }
            Self::Sessions { r#match, place } => {
                (place, Request::List("sessions", matching(r#match)))
            }
            Self::Topics { r#match, place } => (place, Request::List("topics", matching(r#match))),
            Self::Subscriptions {
                r#match,
                client,
                place,
            } => {
                let of = client.as_deref().map(|id| parameter("id", id));
                let fields = [Some(matching(r#match)), of];
                let fields: Vec<_> = fields.into_iter().flatten().collect();
                (place, Request::List("subscriptions", fields.join("&")))
            }
            Self::Retained { r#match, place } => {
                (place, Request::List("retained", matching(r#match)))
            }
            Self::Refusals { r#match, place } => {
                (place, Request::List("refusals", matching(r#match)))
            }
            Self::LogLevel { filter, place } => match filter {
                None => (place, Request::One("GET", "log", String::new())),
                Some(filter) => {
                    let filter = parameter("filter", filter);
                    (place, Request::One("POST", "log", filter))
                }
            },
        };
        run(place, &request)
    }
}

fn parameter(name: &str, value: &str) -> String {
    format!("{name}={}", encoded(value))
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

fn run(place: &Where, request: &Request<'_>) -> anyhow::Result<()> {
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
    match request {
        Request::One(method, page, parameters) => {
            let said = answer(method, page, parameters)?;
            if place.json {
                writeln!(out, "{said}")?;
            } else {
                write_fields(&mut out, "", &object(&said)?)?;
            }
        }
        Request::List(page, parameters) => {
            let (mut after, mut rows) = (String::new(), Vec::new());
            loop {
                let behind = parameter("after", &after);
                let body = format!("{parameters}&{behind}&limit={LARGEST_PAGE}");
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

/// Makes an error of the broker's refusal, without its JSON.
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

/// Formats a value for people: no text of a client's leaves its place.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => Escaped(text).to_string(),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(cell).collect();
            values.join(",")
        }
        other => other.to_string(),
    }
}

fn write_fields(out: &mut impl io::Write, of: &str, fields: &Map<String, Value>) -> io::Result<()> {
    for (name, value) in fields {
        match value {
            Value::Object(inner) => write_fields(out, &format!("{name}: "), inner)?,
            Value::Array(rows) if rows.is_empty() => {}
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

/// Writes rows below the names of their fields, in columns aligned to the left and nothing more: the broker's program has
/// no crate of tables for that.
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
