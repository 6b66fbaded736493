//! The log on standard error: text or JSON, and levels that change while the broker runs.

use std::{
    io::{self, IsTerminal as _},
    sync::{Arc, Mutex, PoisonError},
};

use mq_broker::{
    LogLevels,
    config::{LogConfig, LogFormat},
};
use tracing_subscriber::{
    Layer as _, Registry, filter::Targets, fmt, layer::SubscriberExt as _, reload,
    util::SubscriberInitExt as _,
};

use crate::{log_json::JsonLines, log_writer};

/// The variable that overrides the configuration.
const VARIABLE: &str = "RUST_LOG";

/// Part of the log filter: leaves out what the client of NATS says of what the broker says too, and quinn's warning about a client that uses address validation tokens in
/// another order than it got them. Clients may do that; quinn then validates the address anew.
pub(crate) const QUIET: &str = "async_nats=off,quinn_proto::bloom_token_log=error";

/// Parts of the broker whose level can be set by name, and the modules that each stands for.
const SUBSYSTEMS: [(&str, &[&str]); 10] = [
    ("access", &["mq_broker::auth", "mq_broker::reload"]),
    ("admin", &["mq_broker::admin"]),
    ("cluster", &["mq_broker::cluster", "async_nats"]),
    (
        "connections",
        &["mq_broker::broker", "mq_broker::conn", "mq_broker::bridge"],
    ),
    ("quic", &["quinn", "quinn_proto", "quinn_udp"]),
    ("refusals", &["mq_broker::refusal_log"]),
    ("sessions", &["mq_broker::hub", "mq_broker::session"]),
    ("store", &["mq_broker::store", "mq_broker::journal"]),
    ("tls", &["rustls"]),
    ("transport", &["mq_transport"]),
];

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Checks a filter: levels, and `NAME=LEVEL` for subsystems and modules, with commas between. Returns it
/// with modules alone.
///
/// # Errors
/// One line that says what there is instead.
pub(crate) fn expanded(filter: &str) -> Result<String, String> {
    let mut directives = vec![QUIET.to_owned()];
    for part in filter.split(',').map(str::trim) {
        let (name, level) = match part.split_once('=') {
            None => (None, part),
            Some((name, level)) => (Some(name.trim()), level.trim()),
        };
        if !LEVELS.contains(&level) {
            return Err(format!("`{level}` is none of {}", LEVELS.join(", ")));
        }
        let Some(name) = name else {
            directives.push(level.to_owned());
            continue;
        };
        let known = SUBSYSTEMS.iter().find(|(known, _)| *known == name);
        let is_path = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        match known {
            Some((_, modules)) => {
                directives.extend(modules.iter().map(|module| format!("{module}={level}")));
            }
            None if name.contains("::")
                && name.split("::").all(|part| part.bytes().all(is_path)) =>
            {
                directives.push(format!("{name}={level}"));
            }
            None => {
                let names: Vec<_> = SUBSYSTEMS.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                return Err(format!(
                    "`{name}` is no module such as mq_broker::conn and none of {names}"
                ));
            }
        }
    }
    Ok(directives.join(","))
}

/// Makes the filter of log lines that a configuration describes.
fn of(config: &LogConfig) -> String {
    let level = config.level.as_deref().unwrap_or("info").to_owned();
    let levels = config.levels.iter();
    let levels = levels.map(|(name, level)| format!("{name}={level}"));
    let all: Vec<_> = std::iter::once(level).chain(levels).collect();
    all.join(",")
}

/// Checks the levels of a configuration.
///
/// # Errors
/// One line.
pub(crate) fn check(config: &LogConfig) -> Result<(), String> {
    expanded(&of(config))
        .map(drop)
        .map_err(|error| format!("log: {error}"))
}

/// The log of this process.
#[derive(Debug)]
pub(crate) struct Log {
    now: Mutex<String>,
    handle: reload::Handle<Targets, Registry>,
    /// `true` if `RUST_LOG` is set, which overrides the configuration.
    is_by_environment: bool,
}

impl Log {
    /// Begins to write lines to standard error. `None` if the program does so already.
    ///
    /// # Errors
    /// If the levels are wrong.
    pub(crate) fn begin(config: &LogConfig) -> anyhow::Result<Option<Arc<Self>>> {
        check(config).map_err(anyhow::Error::msg)?;
        let by_environment = std::env::var(VARIABLE).ok();
        let by_environment = by_environment.filter(|filter| !filter.is_empty());
        let is_by_environment = by_environment.is_some();
        let now = by_environment.unwrap_or_else(|| of(config));
        // The variable may name other modules, such as `mq_broker=debug`.
        let directives = expanded(&now).unwrap_or_else(|_| format!("{QUIET},{now}"));
        let parsed = directives.parse::<Targets>();
        let is_understood = parsed.is_ok();
        let filter = parsed.or_else(|_| format!("{QUIET},info").parse())?;
        let (filter, handle) = reload::Layer::new(filter);
        let writer = log_writer::standard_error()?;
        let lines = match config.format {
            LogFormat::Text => fmt::layer()
                .with_writer(move || writer.clone())
                .with_ansi(io::stderr().is_terminal())
                .boxed(),
            LogFormat::Json => fmt::layer()
                .with_writer(move || JsonLines(writer.clone()))
                .json()
                .flatten_event(true)
                .with_span_list(false)
                .boxed(),
        };
        let begun = tracing_subscriber::registry().with(filter).with(lines);
        let log = Self {
            now: Mutex::new(now),
            handle,
            is_by_environment,
        };
        let has_begun = begun.try_init().is_ok();
        if has_begun {
            log_writer::log_panics();
        }
        if !is_understood {
            tracing::warn!("log: malformed RUST_LOG; level is info");
        }
        Ok(has_begun.then(|| Arc::new(log)))
    }

    /// Takes the levels of a configuration that was read again.
    ///
    /// # Errors
    /// If they are wrong; the old ones stay.
    pub(crate) fn reload(&self, config: &LogConfig) -> Result<(), String> {
        if self.is_by_environment {
            return Ok(());
        }
        self.set_filter(&of(config))
    }
}

impl LogLevels for Log {
    fn filter(&self) -> String {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.clone()
    }

    fn lost_lines(&self) -> u64 {
        log_writer::lost_lines()
    }

    fn set_filter(&self, filter: &str) -> Result<(), String> {
        let parsed = expanded(filter)?.parse::<Targets>();
        let parsed = parsed.map_err(|error| error.to_string())?;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        self.handle
            .reload(parsed)
            .map_err(|error| error.to_string())?;
        if *now != filter {
            tracing::info!(filter, "log: levels changed");
        }
        filter.clone_into(&mut now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subsystem_names_modules_that_exist() {
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../mq-broker/src");
        let modules = SUBSYSTEMS.iter().flat_map(|(_, modules)| *modules);
        for module in modules.filter_map(|module| module.strip_prefix("mq_broker::")) {
            let is_there =
                source.join(module).is_dir() || source.join(format!("{module}.rs")).is_file();
            assert!(is_there, "{module}");
        }
    }

    #[test]
    fn a_filter_has_levels_of_all_and_of_parts_by_name() {
        let quiet = |rest: &str| format!("{QUIET},{rest}");
        for (given, taken) in [
            ("debug", "debug"),
            (
                "warn, store = trace",
                "warn,mq_broker::store=trace,mq_broker::journal=trace",
            ),
            ("info,mq_broker::conn=off", "info,mq_broker::conn=off"),
        ] {
            assert_eq!(expanded(given), Ok(quiet(taken)));
        }
        for (given, why) in [
            ("verbose", "`verbose` is none of off, error"),
            ("", "`` is none of"),
            ("info,stor=debug", "`stor` is no module"),
            ("info,mq_broker::conn[{x}]=debug", "is no module"),
            ("info,", "`` is none of"),
        ] {
            let error = expanded(given).unwrap_err();
            assert!(error.contains(why) && error.lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn a_configuration_has_a_level_and_those_of_parts() {
        let config: LogConfig =
            toml::from_str("level = \"warn\"\nlevels = { store = \"debug\", quic = \"off\" }")
                .unwrap();
        assert_eq!(of(&config), "warn,quic=off,store=debug");
        assert_eq!(of(&LogConfig::default()), "info");
        let wrong: LogConfig = toml::from_str("levels = { x = \"debug\" }").unwrap();
        assert!(check(&wrong).unwrap_err().starts_with("log: `x`"));
    }
}
