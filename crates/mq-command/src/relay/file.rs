//! The file of `--config`: relays in TOML, whose keys are the names of the options.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context as _, anyhow, bail, ensure};
use clap::{CommandFactory as _, Parser};
use serde::Deserialize;

use super::RouteArgs;

/// Content of the file.
#[derive(Debug, Default)]
pub(super) struct RelayFile {
    pub(super) metrics: Option<SocketAddr>,
    pub(super) relays: Vec<RouteArgs>,
}

/// File as TOML has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    metrics: Option<SocketAddr>,
    #[serde(default)]
    relay: Vec<toml::Table>,
}

/// Keys of a table, read like options on a command line.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Keys {
    #[command(flatten)]
    args: RouteArgs,
}

impl RelayFile {
    /// Reads and checks a file.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let read = || {
            let text = std::fs::read_to_string(path)?;
            let raw: Raw = toml::from_str(&text).map_err(|error| {
                let start = error.span().map_or(0, |span| span.start.min(text.len()));
                let line = text[..start].matches('\n').count() + 1;
                anyhow!("line {line}: {}", error.message().replace('\n', ", "))
            })?;
            ensure!(!raw.relay.is_empty(), "no [[relay]] is in it");
            let tables = raw.relay.into_iter().enumerate();
            let relays = tables.map(|(number, table)| {
                args_of(table).with_context(|| format!("relay {}", number + 1))
            });
            Ok(Self {
                metrics: raw.metrics,
                relays: relays.collect::<anyhow::Result<_>>()?,
            })
        };
        read().with_context(|| path.display().to_string())
    }
}

fn args_of(table: toml::Table) -> anyhow::Result<RouteArgs> {
    let known = Keys::command();
    let mut words = Vec::new();
    for (key, value) in table {
        let mut options = known.get_arguments();
        let Some(option) = options.find(|option| option.get_long() == Some(&key)) else {
            bail!("there is no key `{key}`");
        };
        let takes_value = option.get_action().takes_values();
        let values = match value {
            toml::Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            words.extend(match value {
                toml::Value::Boolean(is_set) if !takes_value => is_set.then(|| format!("--{key}")),
                toml::Value::String(text) if takes_value => Some(format!("--{key}={text}")),
                toml::Value::Integer(number) if takes_value => Some(format!("--{key}={number}")),
                _ => bail!("`{key}` has another kind of value"),
            });
        }
    }
    let parsed = Keys::try_parse_from(words);
    let parsed = parsed.map_err(|error| {
        let message = error.to_string();
        let line = message.lines().next().unwrap_or_default();
        anyhow!("{}", line.trim_start_matches("error: ").to_owned())
    })?;
    Ok(parsed.args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<RelayFile, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let read = RelayFile::read(file.path());
        read.map_err(|error| {
            let line = format!("{error:#}");
            line.replace(&*file.path().to_string_lossy(), "FILE")
        })
    }

    #[test]
    fn keys_are_the_names_of_options() {
        let file = read(
            "metrics = \"127.0.0.1:9884\"\n\
             [[relay]]\nlisten = \"mqtt://127.0.0.1:1883\"\nto = [\"quic://a\", \"mqtts://a\"]\n\
             connect-timeout = 7\nquic-keep-alive = 25\ninsecure = true\nearly = \"full\"\n\
             [[relay]]\nlisten = [\"mqtt://127.0.0.1:1884\"]\nto = \"mqtt://b\"\ninsecure = false\n",
        );
        let file = file.unwrap();
        assert_eq!(file.metrics.map(|at| at.port()), Some(9884));
        let [first, second] = &file.relays[..] else {
            panic!("{file:?}");
        };
        assert_eq!((first.to.len(), first.connect_timeout), (2, 7));
        assert_eq!((first.quic_keep_alive, second.quic_keep_alive), (25, 15));
        assert!(first.insecure && !second.insecure);
        assert_ne!(first, second);
    }

    #[test]
    fn a_mistake_is_one_line_with_its_place() {
        let relay = "[[relay]]\nlisten = \"mqtt://127.0.0.1:1883\"\nto = \"mqtt://b\"\n";
        for (text, line) in [
            ("", "FILE: no [[relay]] is in it"),
            (
                "metric = 1\n",
                "FILE: line 1: unknown field `metric`, expected `metrics` or `relay`",
            ),
            (
                &format!("{relay}early = \"soon\"\n"),
                "FILE: relay 1: invalid value 'soon' for '--early <POLICY>'",
            ),
            (
                &format!("{relay}quic-keep-alive = 151\n"),
                "FILE: relay 1: invalid value '151' for '--quic-keep-alive <SECONDS>'",
            ),
            (
                &format!("{relay}{relay}help = true\n"),
                "FILE: relay 2: there is no key `help`",
            ),
            (
                &format!("{relay}insecure = \"yes\"\n"),
                "FILE: relay 1: `insecure` has another kind of value",
            ),
            (
                &format!("{relay}connections = true\n"),
                "FILE: relay 1: `connections` has another kind of value",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.starts_with(line) && error.lines().count() == 1,
                "{error}"
            );
        }
    }
}
