//! `mqbroker import-mosquitto`: a configuration file of mosquitto's, translated.
//!
//! What is taken becomes TOML. What is not taken is listed with its line and the reason, in comments at the
//! top and on standard error: nothing is left out silently. A line whose loss would leave less protection than before stops
//! the import, unless the user accepts it; so does a key that is not known.

mod bridge;
mod keys;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use bridge::Bridge;
use keys::{MISSING, NEEDLESS, NotTaken, PROTECTING, why_not};

/// File in which the packaged broker keeps its store.
const STORE: &str = "/var/lib/mqbroker/store";

/// Files that a file may include, and those in turn.
const MOST_FILES: usize = 100;

/// A translation.
#[derive(Debug)]
pub(crate) struct Import {
    /// The configuration for mqbroker.
    pub(crate) toml: String,
    /// Settings that were not taken over, a line each.
    pub(crate) left: Vec<String>,
    /// Lines that stop the import: without them there would be less protection than before.
    pub(crate) stops: Vec<String>,
}

/// Translates a file and what it includes. The lines of `accepted` do not stop the import: each is the number of a line, or
/// `FILE:NUMBER` in a file that is included.
///
/// # Errors
/// If a file cannot be read, or a line was accepted that does not stop the import.
pub(crate) fn import(path: &Path, accepted: &[String]) -> anyhow::Result<Import> {
    let mut lines = Vec::new();
    read(path, &mut lines, &mut 0)?;
    let mut translation = Translation {
        accepted: accepted.iter().cloned().collect(),
        ..Translation::default()
    };
    for line in &lines {
        translation.take(line);
    }
    translation.finish(path)
}

/// A line of a mosquitto configuration file, split into its key and its value.
#[derive(Clone, Debug)]
struct Line {
    /// Place of the line in error messages: file and number.
    place: String,
    /// Name of the line in `--accept`: its number, or `FILE:NUMBER` in a file that is included.
    name: String,
    key: String,
    value: String,
}

fn read(path: &Path, lines: &mut Vec<Line>, files: &mut usize) -> anyhow::Result<()> {
    *files += 1;
    let is_first = *files == 1;
    if *files > MOST_FILES {
        bail!("{}: files include each other", path.display());
    }
    let text =
        fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let value = value.trim();
        if key == "include_dir" {
            let mut found = Vec::new();
            let folder = fs::read_dir(value).with_context(|| format!("{value} cannot be read"))?;
            for entry in folder {
                found.push(entry?.path());
            }
            found.retain(|file| {
                file.extension()
                    .is_some_and(|extension| extension == "conf")
            });
            found.sort();
            for file in found {
                read(&file, lines, files)?;
            }
            continue;
        }
        lines.push(Line {
            place: format!("{}: line {}", path.display(), number + 1),
            name: if is_first {
                (number + 1).to_string()
            } else {
                format!("{}:{}", path.display(), number + 1)
            },
            key: key.to_owned(),
            value: value.to_owned(),
        });
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Listener {
    port: String,
    address: Option<String>,
    is_websocket: bool,
    /// `true` for one that this broker does not have.
    is_left: bool,
    options: BTreeMap<String, Line>,
    /// Users and rules, with `per_listener_settings`.
    access: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Translation {
    listeners: Vec<Listener>,
    /// Settings of the listener that no `listener` line names.
    first: Listener,
    bridges: Vec<Bridge>,
    /// `true` while the lines are those of the last bridge.
    is_bridge: bool,
    /// Keys of each table, in TOML.
    tables: BTreeMap<&'static str, BTreeMap<&'static str, String>>,
    allow_anonymous: Option<bool>,
    has_persistence: bool,
    folder: Option<PathBuf>,
    per_listener: Option<Line>,
    revocation_lists: Vec<String>,
    left: Vec<String>,
    stops: Vec<String>,
    /// Lines that do not stop the import.
    accepted: BTreeSet<String>,
    /// Accepted lines that would have stopped it.
    used: BTreeSet<String>,
}

/// Keys that `per_listener_settings` makes those of a listener, as far as they are taken.
const ACCESS: [&str; 4] = [
    "password_file",
    "acl_file",
    "allow_anonymous",
    "use_identity_as_username",
];

impl Translation {
    fn set(&mut self, table: &'static str, key: &'static str, value: String) {
        self.tables.entry(table).or_default().insert(key, value);
    }

    fn leave(&mut self, line: &Line, why: &str) {
        self.left
            .push(format!("{}: {}: {why}", line.place, line.key));
    }

    /// Stops the import at a line, unless it is accepted.
    fn stop(&mut self, line: &Line, why: &str) {
        if self.accepted.contains(&line.name) {
            self.used.insert(line.name.clone());
            return self.leave(line, why);
        }
        let Line {
            place, key, name, ..
        } = line;
        self.stops.push(format!(
            "{place}: {key}: {why}; without it: --accept {name}"
        ));
    }

    fn not_taken(&mut self, line: &Line, NotTaken { why, stops }: &NotTaken) {
        if *stops {
            self.stop(line, why);
        } else {
            self.leave(line, why);
        }
    }

    fn number(&mut self, table: &'static str, key: &'static str, line: &Line) {
        match line.value.parse::<u64>() {
            Ok(0) if key != "sys_interval_s" => {
                self.leave(line, "no bound is not possible: the default stays");
            }
            Ok(number) => self.set(table, key, number.to_string()),
            Err(_) => self.leave(line, "is not a number"),
        }
    }

    fn file(&mut self, table: &'static str, key: &'static str, line: &Line) {
        let value = quoted(&line.value);
        let kept = self.tables.get(table).and_then(|keys| keys.get(key));
        if kept.is_some_and(|kept| *kept != value) {
            let why = "this broker has one for all listeners; an earlier one was taken";
            // Users, rules or authorities of one place would hold at another.
            if table == "auth" || key == "client_ca" {
                self.stop(line, why);
            } else {
                self.leave(line, why);
            }
        } else {
            self.set(table, key, value);
        }
    }

    fn take(&mut self, line: &Line) {
        if !self.is_bridge && ACCESS.contains(&line.key.as_str()) {
            let access = &mut self.listener().access;
            access.insert(line.key.clone(), line.value.clone());
        }
        match line.key.as_str() {
            "listener" => {
                self.is_bridge = false;
                let mut words = line.value.split_whitespace();
                let port = words.next().unwrap_or_default().to_owned();
                let address = words.next().map(str::to_owned);
                if port.parse::<u16>().is_err() {
                    return self.leave(line, "its port is not a number");
                }
                if port == "0" || address.as_ref().is_some_and(|path| path.starts_with('/')) {
                    // The lines behind it are its own.
                    self.listeners.push(Listener {
                        is_left: true,
                        ..Listener::default()
                    });
                    return self.leave(line, "Unix sockets are not listened at");
                }
                self.listeners.push(Listener {
                    port,
                    address,
                    ..Listener::default()
                });
            }
            "connection" => {
                self.is_bridge = true;
                self.bridges.push(Bridge::new(&line.value));
            }
            _ if self.is_bridge
                && let Some(bridge) = self.bridges.last_mut() =>
            {
                if let Err(not_taken) = bridge.take(line) {
                    self.not_taken(line, &not_taken);
                }
            }
            "port" => self.first.port.clone_from(&line.value),
            "bind_address" => self.first.address = Some(line.value.clone()),
            "protocol" => match line.value.as_str() {
                "websockets" => self.listener().is_websocket = true,
                "mqtt" => {}
                _ => self.stop(
                    line,
                    "is neither mqtt nor websockets: it would be a listener for MQTT",
                ),
            },
            "certfile" | "keyfile" | "cafile" | "require_certificate" => {
                let options = &mut self.listener().options;
                options.insert(line.key.clone(), line.clone());
            }
            "crlfile" => self.revocation_lists.push(quoted(&line.value)),
            "use_identity_as_username" if line.value == "true" => {
                self.set("auth", "certificate_user", quoted("cn"));
            }
            "tls_version" => self.tls_version(line),
            "disable_client_cert_date_checks" => {
                self.leave(line, "not needed: dates of certificates are always checked");
            }
            "password_file" => self.file("auth", "password_file", line),
            "acl_file" => self.file("auth", "acl_file", line),
            "allow_anonymous" => self.allow_anonymous = Some(line.value == "true"),
            "per_listener_settings" if line.value == "true" => {
                self.per_listener = Some(line.clone());
            }
            "persistence" => self.has_persistence = line.value == "true",
            "persistence_location" => self.folder = Some(PathBuf::from(&line.value)),
            "max_queued_messages" => self.number("limits", "mailbox_messages", line),
            "max_queued_bytes" => self.number("limits", "mailbox_bytes", line),
            "max_inflight_messages" => self.number("limits", "max_inflight", line),
            "message_size_limit" | "max_packet_size" => {
                self.number("limits", "max_packet_size", line);
            }
            "max_connections" if line.value == "-1" => {}
            "max_connections" => self.number("limits", "max_connections", line),
            "max_keepalive" => self.number("limits", "max_keep_alive_s", line),
            "memory_limit" => self.number("limits", "memory", line),
            "max_qos" => self.number("limits", "maximum_qos", line),
            "max_topic_alias" => self.number("limits", "topic_alias_maximum", line),
            "sys_interval" => self.number("admin", "sys_interval_s", line),
            "persistent_client_expiration" => match seconds(&line.value) {
                Some(seconds) => self.set("limits", "session_expiry_s", seconds.to_string()),
                None => self.leave(line, "is not a time such as 14d"),
            },
            "log_type" => {
                if ["debug", "all"].contains(&line.value.as_str()) {
                    self.set("log", "level", quoted("debug"));
                }
            }
            "per_listener_settings" | "use_identity_as_username" | "upgrade_outgoing_qos"
                if line.value == "false" => {}
            key if key.starts_with("plugin_opt_") || key.starts_with("auth_opt_") => {}
            key => {
                let why = why_not(key, &NEEDLESS, &MISSING, &PROTECTING);
                self.not_taken(line, &why);
            }
        }
    }

    fn tls_version(&mut self, line: &Line) {
        match line.value.as_str() {
            "tlsv1.2" => {}
            "tlsv1.3" => self.stop(line, "TLS 1.2 is spoken as well"),
            _ => self.leave(line, "TLS 1.2 and 1.3 are spoken"),
        }
    }

    fn listener(&mut self) -> &mut Listener {
        self.listeners.last_mut().unwrap_or(&mut self.first)
    }

    fn finish(mut self, source: &Path) -> anyhow::Result<Import> {
        let first = core::mem::take(&mut self.first);
        if !first.port.is_empty() || !first.options.is_empty() {
            self.listeners.insert(0, first);
        }
        self.listeners.retain(|listener| !listener.is_left);
        self.merge_access();
        if !self.revocation_lists.is_empty() {
            let lists = self.revocation_lists.join(", ");
            self.set("tls", "client_crls", format!("[{lists}]"));
        }
        // For `mqbroker status` and backups.
        self.set("admin", "socket", quoted("/run/mqbroker/admin.sock"));
        let is_local = self.listeners.is_empty();
        let mut urls = Vec::new();
        let mut notes = BTreeSet::new();
        for listener in core::mem::take(&mut self.listeners) {
            urls.push(self.url(&listener, &mut notes));
        }
        if is_local {
            urls.push("tcp://127.0.0.1:1883".to_owned());
        }
        if self.has_persistence {
            if let Some(folder) = &self.folder {
                notes.insert(format!(
                    "sessions and retained messages in {} are not read: the store is a new file",
                    folder.display()
                ));
            }
            self.set("store", "path", quoted(STORE));
        }
        let has_users = self.tables.get("auth").is_some_and(|auth| {
            auth.contains_key("password_file") || auth.contains_key("certificate_user")
        });
        // Mosquitto lets everybody in where it listens on loopback alone, for want of a listener.
        if self.allow_anonymous.unwrap_or(is_local) {
            if !is_local || has_users {
                self.set("auth", "allow_anonymous", "true".to_owned());
            }
        } else if !has_users {
            notes
                .insert("nobody could log in: name users in [auth], or allow_anonymous".to_owned());
        }
        let mut bridges = String::new();
        for bridge in core::mem::take(&mut self.bridges) {
            if let Some(line) = bridge.local_user() {
                self.local_user(line);
            }
            if let Some(line) = bridge.version_that_makes_circles() {
                let why =
                    "with `both` messages would go round before MQTT 5.0, which is spoken now";
                self.leave(line, why);
            }
            bridges += &bridge.write(&mut notes);
        }
        self.name_users_with_levels();
        if let Some(line) = self.accepted.difference(&self.used).next() {
            bail!("--accept {line}: that line does not stop the import");
        }
        Ok(Import {
            toml: self.write(source, &urls, &notes, &bridges),
            left: self.left,
            stops: self.stops,
        })
    }

    /// Makes the users and rules of listeners those of all, if they are the same.
    fn merge_access(&mut self) {
        let Some(line) = self.per_listener.take() else {
            return;
        };
        let mut all = self.listeners.iter().map(|listener| &listener.access);
        let first = all.next().cloned().unwrap_or_default();
        if !all.all(|access| *access == first) {
            let why =
                "users and rules are the same at all listeners, and the file has others at each";
            self.stop(&line, why);
        }
        // Nobody comes in without a user at one listener because that is allowed at another one.
        let is_open = |listener: &Listener| {
            let allowed = listener.access.get("allow_anonymous");
            allowed.is_some_and(|value| value == "true")
        };
        if !self.listeners.is_empty() && !self.listeners.iter().all(is_open) {
            self.allow_anonymous = Some(false);
        }
    }

    /// Translates a line for a bridge that was a user here: rules held for it.
    fn local_user(&mut self, line: &Line) {
        let auth = self.tables.get("auth");
        if auth.is_some_and(|auth| auth.contains_key("acl_file")) {
            self.stop(
                line,
                "no rules hold for a bridge: its topics alone bound it",
            );
        } else {
            self.leave(line, "not needed: it may do everything here");
        }
    }

    /// Adds a remark on users with a `/` in their names, for whom mosquitto fills in `%u` and this broker does not.
    fn name_users_with_levels(&mut self) {
        let file = |key: &str| {
            let path: String = serde_json::from_str(self.tables.get("auth")?.get(key)?).ok()?;
            Some((fs::read_to_string(&path).ok()?, path))
        };
        let (Some((rules, path)), Some((users, _))) = (file("acl_file"), file("password_file"))
        else {
            return;
        };
        let names = users.lines().filter_map(|line| line.split(':').next());
        // mosquitto refuses the wildcards as well.
        let names = names.filter(|name| name.contains('/') && !name.contains(['+', '#']));
        let names: Vec<_> = names.collect();
        if rules.contains("%u") && !names.is_empty() {
            let names = names.join(", ");
            self.left.push(format!(
                "{path}: %u: it is not filled in with a `/`, as mosquitto does: give these users rules of their own: {names}"
            ));
        }
    }

    fn url(&mut self, listener: &Listener, notes: &mut BTreeSet<String>) -> String {
        let certificate = listener.options.get("certfile");
        let requires = listener.options.get("require_certificate");
        let requires = requires.is_some_and(|line| line.value == "true");
        for (key, name) in [("certfile", "certificate"), ("keyfile", "key")] {
            if let Some(line) = listener.options.get(key) {
                self.file("tls", name, line);
            }
        }
        match listener.options.get("cafile") {
            Some(line) if requires => {
                self.file("tls", "client_ca", line);
                self.set("tls", "client_certificate", quoted("required"));
                notes.insert(format!(
                    "mosquitto sends intermediate certificates of {} as well: append those to the certificate's file",
                    line.value
                ));
            }
            Some(line) => self.leave(
                line,
                "without require_certificate mosquitto asks no client for a certificate, and sends intermediate \
                 certificates that are in this file as well as certfile: append those to it",
            ),
            None if requires => {
                if let Some(line) = listener.options.get("require_certificate") {
                    self.stop(
                        line,
                        "there is no cafile, without which no client is asked for a certificate",
                    );
                }
            }
            None => {}
        }
        let scheme = match (listener.is_websocket, certificate.is_some()) {
            (false, false) => "tcp",
            (false, true) => "tls",
            (true, false) => "ws",
            (true, true) => "wss",
        };
        if listener.is_websocket {
            notes.insert(
                "web clients have to ask for the path /mqtt: mosquitto takes any".to_owned(),
            );
        }
        let address = listener.address.as_deref().unwrap_or("0.0.0.0");
        let address = match address {
            v6 if v6.contains(':') => format!("[{v6}]"),
            other => other.to_owned(),
        };
        let port = if listener.port.is_empty() {
            "1883"
        } else {
            &listener.port
        };
        let path = if listener.is_websocket { "/mqtt" } else { "" };
        format!("{scheme}://{address}:{port}{path}")
    }

    fn write(
        &self,
        source: &Path,
        urls: &[String],
        notes: &BTreeSet<String>,
        bridges: &str,
    ) -> String {
        let mut text = format!(
            "# From {}, by mqbroker import-mosquitto.\n",
            source.display()
        );
        if !self.left.is_empty() {
            text += "#\n# Not taken:\n";
        }
        for line in &self.left {
            let _ = writeln!(text, "# - {line}");
        }
        if !notes.is_empty() {
            text += "#\n# To look at:\n";
        }
        for note in notes {
            let _ = writeln!(text, "# - {note}");
        }
        text += "\nlisten = [\n";
        for url in urls {
            let _ = writeln!(text, "    {},", quoted(url));
        }
        if urls.iter().any(|url| url.starts_with("tls")) {
            text += "    # \"quic://0.0.0.0:14567\",  # new: MQTT over QUIC, with the same certificate\n";
        }
        text += "]\n";
        for (table, keys) in &self.tables {
            let _ = writeln!(text, "\n[{table}]");
            for (key, value) in keys {
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        text + bridges
    }
}

/// Quotes a text as a TOML string: a string of JSON is one of TOML (TOML 1.0, "String"), DEL apart, which no path has.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Seconds of a time such as `14d`.
fn seconds(text: &str) -> Option<u64> {
    let unit = text.chars().last()?;
    let size = match unit {
        'h' => 3_600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        'm' => 30 * 86_400,
        'y' => 365 * 86_400,
        _ => return None,
    };
    text.strip_suffix(unit)?
        .parse::<u64>()
        .ok()?
        .checked_mul(size)
}

#[cfg(test)]
mod tests {
    use mq_broker::Config;

    use super::*;

    fn imported(text: &str) -> Import {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mosquitto.conf");
        fs::write(
            &path,
            text.replace("FOLDER", folder.path().to_str().unwrap()),
        )
        .unwrap();
        fs::create_dir(folder.path().join("conf.d")).unwrap();
        for (name, text) in [
            ("b.conf", "max_keepalive 60"),
            ("a.conf", "# nothing"),
            ("c.txt", "x"),
        ] {
            fs::write(folder.path().join("conf.d").join(name), text).unwrap();
        }
        let import = import(&path, &[]).unwrap();
        let _: Config = toml::from_str(&import.toml).expect(&import.toml);
        import
    }

    /// Returns the configuration without comments and empty lines.
    fn bare(import: &Import) -> String {
        let lines = import.toml.lines().map(str::trim);
        let lines: Vec<_> = lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect();
        lines.join("\n")
    }

    #[test]
    fn what_there_is_here_is_taken() {
        let import = imported(
            "per_listener_settings false\nlistener 8883\ncertfile /etc/m/s.pem\nkeyfile /etc/m/s.key\n\
             cafile /etc/m/ca.pem\nrequire_certificate true\nuse_identity_as_username true\n\
             listener 8080 ::1\nprotocol websockets\nlistener 1883 127.0.0.1\n\
             allow_anonymous false\npassword_file /etc/m/pw\nacl_file /etc/m/acl\npersistence true\n\
             persistent_client_expiration 2d\nmax_queued_messages 5000\nmessage_size_limit 262144\n\
             sys_interval 0\nlog_type all\ninclude_dir FOLDER/conf.d\n",
        );
        assert_eq!(
            bare(&import),
            "listen = [\n\"tls://0.0.0.0:8883\",\n\"ws://[::1]:8080/mqtt\",\n\"tcp://127.0.0.1:1883\",\n]\n\
             [admin]\nsocket = \"/run/mqbroker/admin.sock\"\nsys_interval_s = 0\n\
             [auth]\nacl_file = \"/etc/m/acl\"\ncertificate_user = \"cn\"\npassword_file = \"/etc/m/pw\"\n\
             [limits]\nmailbox_messages = 5000\nmax_keep_alive_s = 60\nmax_packet_size = 262144\n\
             session_expiry_s = 172800\n\
             [log]\nlevel = \"debug\"\n\
             [store]\npath = \"/var/lib/mqbroker/store\"\n\
             [tls]\ncertificate = \"/etc/m/s.pem\"\nclient_ca = \"/etc/m/ca.pem\"\n\
             client_certificate = \"required\"\nkey = \"/etc/m/s.key\""
        );
        assert_eq!(import.left, [""; 0]);
        assert!(
            import.toml.contains("# \"quic://0.0.0.0:14567\""),
            "{}",
            import.toml
        );
        assert!(import.toml.contains("the path /mqtt"));
    }

    #[test]
    fn bridges_are_taken() {
        let import = imported(
            "connection edge one\naddresses a.example:8883 b.example\ntopic sensors/# out 1 \"\" edge/\n\
             topic command/+ in\ntopic \"\" both 2 here/x there/x\nbridge_cafile /etc/m/ca.pem\n\
             bridge_certfile /etc/m/c.pem\nbridge_keyfile /etc/m/c.key\nremote_username u\n\
             clientid e1\ncleansession false\nstart_type lazy\nidle_timeout 30\nkeepalive_interval 20\nrestart_timeout 2 8\n\
             notifications false\nnotification_topic state\nconnection open\naddress 192.0.2.1\nbridge_protocol_version mqttv311\n\
             topic a out\nlistener 1883\nallow_anonymous true\n",
        );
        assert_eq!(import.left, [""; 0]);
        assert_eq!(
            bare(&import),
            "listen = [\n\"tcp://0.0.0.0:1883\",\n]\n[admin]\nsocket = \"/run/mqbroker/admin.sock\"\n[auth]\nallow_anonymous = true\n\
             [[bridge]]\nname = \"edge-one\"\n\
             address = [\"tls://a.example:8883\", \"tls://b.example:1883\"]\n\
             notifications = false\n\
             ca = \"/etc/m/ca.pem\"\ncertificate = \"/etc/m/c.pem\"\nkey = \"/etc/m/c.key\"\n\
             user_name = \"u\"\nclient_id = \"e1\"\nclean = false\nstart = \"lazy\"\n\
             idle_timeout_s = 30\nkeep_alive_s = 20\nreconnect_max_s = 8\nnotification_topic = \"state\"\n\
             [[bridge.topic]]\npattern = \"sensors/#\"\ndirection = \"out\"\nqos = 1\n\
             remote_prefix = \"edge/\"\n\
             [[bridge.topic]]\npattern = \"command/+\"\ndirection = \"in\"\nqos = 0\n\
             [[bridge.topic]]\npattern = \"\"\ndirection = \"both\"\nqos = 2\n\
             local_prefix = \"here/x\"\nremote_prefix = \"there/x\"\n\
             [[bridge]]\nname = \"open\"\naddress = [\"tcp://192.0.2.1:1883\"]\nplaintext = true\n\
             notifications_local_only = false\nmqtt = \"3.1.1\"\n\
             [[bridge.topic]]\npattern = \"a\"\ndirection = \"out\"\nqos = 0"
        );
        assert!(
            import
                .toml
                .contains("the bridge open is without encryption")
        );
        assert!(import.toml.contains("bridges speak MQTT 5.0 now"));
    }

    #[test]
    fn what_is_not_taken_is_listed_with_its_line_and_the_reason() {
        let import = imported(
            "listener 0 /run/m.sock\nlistener 8883\ncertfile a\nlistener 8884\ncertfile b\n\
             plugin /usr/lib/x.so\nplugin_opt_y 1\nmax_queued_messages 0\nno_such_key 1\npid_file /run/p\n\
             connection cloud\naddress example.org:8883\nremote_password x\nstart_type once\n\
             topic # sideways\nbridge_insecure true\nbridge_alpn x\ntopic # both 1\n",
        );
        let whys = [
            "line 1: listener: Unix sockets",
            "line 8: max_queued_messages: no bound",
            "line 10: pid_file: not needed",
            "line 13: remote_password: put it into a file",
            "line 14: start_type: a bridge is automatic or lazy",
            "line 15: topic: \"sideways\" is no direction",
            "line 16: bridge_insecure: give the other broker's certificate",
            "line 17: bridge_alpn: it is mqtt",
            "line 5: certfile: this broker has one for all listeners",
        ];
        assert_eq!(import.left.len(), whys.len(), "{:?}", import.left);
        assert_eq!(import.stops.len(), 2, "{:?}", import.stops);
        for (line, why) in import.left.iter().zip(whys) {
            assert!(line.contains(why), "{line}");
            assert!(import.toml.contains(&format!("# - {line}\n")));
        }
        assert!(
            import.toml.contains("nobody could log in"),
            "{}",
            import.toml
        );
    }

    #[test]
    fn without_a_listener_everybody_on_this_machine_comes_in_as_with_mosquitto() {
        assert_eq!(
            bare(&imported("")),
            "listen = [\n\"tcp://127.0.0.1:1883\",\n]\n[admin]\nsocket = \"/run/mqbroker/admin.sock\""
        );
        let open = imported("listener 1883\nallow_anonymous true\n");
        assert_eq!(
            bare(&open),
            "listen = [\n\"tcp://0.0.0.0:1883\",\n]\n[admin]\nsocket = \"/run/mqbroker/admin.sock\"\n[auth]\nallow_anonymous = true"
        );
        let old = imported("port 1884\nbind_address 192.0.2.1\nallow_anonymous true\n");
        assert!(bare(&old).contains("tcp://192.0.2.1:1884"), "{}", old.toml);
    }

    #[test]
    fn files_that_include_each_other_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.conf");
        fs::write(&path, format!("include_dir {}\n", folder.path().display())).unwrap();
        let error = import(&path, &[]).unwrap_err().to_string();
        assert!(error.contains("include each other"), "{error}");
        let error = import(Path::new("/no/such"), &[]).unwrap_err().to_string();
        assert!(error.contains("/no/such cannot be read"), "{error}");
    }
}
