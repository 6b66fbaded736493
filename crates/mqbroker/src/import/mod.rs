//! `mqbroker import-mosquitto`: a configuration file of mosquitto's, translated.
//!
//! What is taken becomes TOML. What is not taken is listed with its line and the reason, in comments at the
//! top and on standard error: nothing is left out silently.

mod bridge;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use bridge::Bridge;

/// Where the packaged broker keeps what persists.
const STORE: &str = "/var/lib/mqbroker/store";

/// Files that a file may include, and those in turn.
const MOST_FILES: usize = 100;

/// A translation.
#[derive(Debug)]
pub(crate) struct Import {
    /// The configuration for mqbroker.
    pub(crate) toml: String,
    /// What was not taken, a line each.
    pub(crate) left: Vec<String>,
}

/// Translates a file and what it includes.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn import(path: &Path) -> anyhow::Result<Import> {
    let mut lines = Vec::new();
    read(path, &mut lines, &mut 0)?;
    let mut translation = Translation::default();
    for line in &lines {
        translation.take(line);
    }
    Ok(translation.finish(path))
}

/// A line with a key.
#[derive(Clone, Debug)]
struct Line {
    place: String,
    key: String,
    value: String,
}

fn read(path: &Path, lines: &mut Vec<Line>, files: &mut usize) -> anyhow::Result<()> {
    *files += 1;
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
            key: key.to_owned(),
            value: value.to_owned(),
        });
    }
    Ok(())
}

/// Keys that change nothing here, and why.
const NEEDLESS: [(&str, &str); 17] = [
    ("pid_file", "systemd knows the process"),
    ("user", "the unit says which user it is"),
    (
        "log_dest",
        "the log goes to standard error, which systemd keeps",
    ),
    (
        "log_facility",
        "the log goes to standard error, which systemd keeps",
    ),
    ("log_timestamp", "every line has its time"),
    ("log_timestamp_format", "every line has its time"),
    (
        "connection_messages",
        "the level `info` has them; see levels of [log]",
    ),
    (
        "autosave_interval",
        "what was acknowledged is on the disk at once; see durability of [store]",
    ),
    (
        "autosave_on_changes",
        "what was acknowledged is on the disk at once; see durability of [store]",
    ),
    (
        "persistence_file",
        "the store is one file, `path` of [store]",
    ),
    ("set_tcp_nodelay", "it is always so"),
    ("allow_duplicate_messages", "mosquitto ignores it as well"),
    (
        "allow_zero_length_clientid",
        "clients that may come without an identifier do so",
    ),
    ("retained_persistence", "retained messages are in the store"),
    ("store_clean_interval", "there is nothing to clean"),
    ("websockets_log_level", "see levels of [log]"),
    ("upgrade_outgoing_qos", "`false` is how it is"),
];

/// Keys of mosquitto that have nothing here, and why.
const MISSING: [(&str, &str); 18] = [
    (
        "plugin",
        "there are no plugins: see [auth] for users, rules and tokens",
    ),
    (
        "auth_plugin",
        "there are no plugins: see [auth] for users, rules and tokens",
    ),
    ("global_plugin", "there are no plugins"),
    (
        "psk_file",
        "there are no pre-shared keys: give certificates or passwords",
    ),
    ("psk_hint", "there are no pre-shared keys"),
    ("mount_point", "there are no mount points"),
    ("bind_interface", "give the interface's address in `listen`"),
    (
        "capath",
        "put the certificates into one file, `client_ca` of [tls]",
    ),
    (
        "use_subject_as_username",
        "a user is the certificate's cn, san-dns, san-uri or san-email",
    ),
    (
        "use_username_as_clientid",
        "there is nothing like it; `take_over` keeps sessions apart by user",
    ),
    ("clientid_prefixes", "there is nothing like it"),
    ("auto_id_prefix", "there is nothing like it"),
    ("ciphers", "the ciphers are rustls's defaults"),
    ("ciphers_tls1.3", "the ciphers are rustls's defaults"),
    ("dhparamfile", "there are no finite fields in use"),
    ("retain_available", "retained messages are always available"),
    (
        "queue_qos0_messages",
        "messages of QoS 0 are not kept for clients that are away",
    ),
    ("http_dir", "there is no server for files"),
];

/// Why a key is not taken: it changes nothing here, it has nothing here, or it is not known.
fn why_not(key: &str, needless: &[(&str, &str)], missing: &[(&str, &str)]) -> String {
    let why = |list: &[(&str, &str)]| {
        let found = list.iter().find(|(name, _)| *name == key);
        found.map(|(_, why)| (*why).to_owned())
    };
    let needless = why(needless).map(|why| format!("not needed: {why}"));
    needless
        .or_else(|| why(missing))
        .unwrap_or_else(|| "is not known".to_owned())
}

#[derive(Debug, Default)]
struct Listener {
    port: String,
    address: Option<String>,
    is_websocket: bool,
    options: BTreeMap<String, Line>,
}

#[derive(Debug, Default)]
struct Translation {
    listeners: Vec<Listener>,
    /// Of the listener that no `listener` line names.
    first: Listener,
    bridges: Vec<Bridge>,
    /// Whether the lines are those of the last bridge.
    is_bridge: bool,
    /// Keys of each table, in TOML.
    tables: BTreeMap<&'static str, BTreeMap<&'static str, String>>,
    allow_anonymous: Option<bool>,
    has_persistence: bool,
    folder: Option<PathBuf>,
    left: Vec<String>,
}

impl Translation {
    fn set(&mut self, table: &'static str, key: &'static str, value: String) {
        self.tables.entry(table).or_default().insert(key, value);
    }

    fn leave(&mut self, line: &Line, why: &str) {
        self.left
            .push(format!("{}: {}: {why}", line.place, line.key));
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
            self.leave(
                line,
                "this broker has one for all listeners; an earlier one was taken",
            );
        } else {
            self.set(table, key, value);
        }
    }

    fn take(&mut self, line: &Line) {
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
                if let Err(why) = bridge.take(line) {
                    self.leave(line, &why);
                }
            }
            "port" => self.first.port.clone_from(&line.value),
            "bind_address" => self.first.address = Some(line.value.clone()),
            "protocol" => match line.value.as_str() {
                "websockets" => self.listener().is_websocket = true,
                "mqtt" => {}
                _ => self.leave(line, "is neither mqtt nor websockets"),
            },
            "certfile" | "keyfile" | "cafile" | "require_certificate" => {
                let options = &mut self.listener().options;
                options.insert(line.key.clone(), line.clone());
            }
            "crlfile" => self.set("tls", "client_crls", format!("[{}]", quoted(&line.value))),
            "use_identity_as_username" if line.value == "true" => {
                self.set("auth", "certificate_user", quoted("cn"));
            }
            "tls_version" => {
                if line.value != "tlsv1.2" && line.value != "tlsv1.3" {
                    self.leave(line, "TLS 1.2 and 1.3 are spoken");
                }
            }
            "password_file" => self.file("auth", "password_file", line),
            "acl_file" => self.file("auth", "acl_file", line),
            "allow_anonymous" => self.allow_anonymous = Some(line.value == "true"),
            "per_listener_settings" if line.value == "true" => {
                self.leave(line, "users and rules are the same at all listeners");
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
            key => self.leave(line, &why_not(key, &NEEDLESS, &MISSING)),
        }
    }

    fn listener(&mut self) -> &mut Listener {
        self.listeners.last_mut().unwrap_or(&mut self.first)
    }

    fn finish(mut self, source: &Path) -> Import {
        let first = core::mem::take(&mut self.first);
        if !first.port.is_empty() || !first.options.is_empty() {
            self.listeners.insert(0, first);
        }
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
        let bridges = self.bridges.iter().map(|bridge| bridge.write(&mut notes));
        let bridges: String = bridges.collect();
        Import {
            toml: self.write(source, &urls, &notes, &bridges),
            left: self.left,
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
            }
            Some(line) => self.leave(
                line,
                "not needed: without require_certificate mosquitto asks no client for a certificate",
            ),
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

/// A TOML string: one of JSON is one of TOML (TOML 1.0, "String"), DEL apart, which no path has.
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
        let import = import(&path).unwrap();
        let _: Config = toml::from_str(&import.toml).expect(&import.toml);
        import
    }

    /// The configuration without comments and empty lines.
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
             [admin]\nsys_interval_s = 0\n\
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
            "listen = [\n\"tcp://0.0.0.0:1883\",\n]\n[auth]\nallow_anonymous = true\n\
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
            "line 6: plugin: there are no plugins",
            "line 8: max_queued_messages: no bound",
            "line 9: no_such_key: is not known",
            "line 10: pid_file: not needed",
            "line 13: remote_password: put it into a file",
            "line 14: start_type: a bridge is automatic or lazy",
            "line 15: topic: \"sideways\" is no direction",
            "line 16: bridge_insecure: give the other broker's certificate",
            "line 17: bridge_alpn: it is mqtt",
            "line 5: certfile: this broker has one for all listeners",
        ];
        assert_eq!(import.left.len(), whys.len(), "{:?}", import.left);
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
            "listen = [\n\"tcp://127.0.0.1:1883\",\n]"
        );
        let open = imported("listener 1883\nallow_anonymous true\n");
        assert_eq!(
            bare(&open),
            "listen = [\n\"tcp://0.0.0.0:1883\",\n]\n[auth]\nallow_anonymous = true"
        );
        let old = imported("port 1884\nbind_address 192.0.2.1\nallow_anonymous true\n");
        assert!(bare(&old).contains("tcp://192.0.2.1:1884"), "{}", old.toml);
    }

    #[test]
    fn files_that_include_each_other_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.conf");
        fs::write(&path, format!("include_dir {}\n", folder.path().display())).unwrap();
        let error = import(&path).unwrap_err().to_string();
        assert!(error.contains("include each other"), "{error}");
        let error = import(Path::new("/no/such")).unwrap_err().to_string();
        assert!(error.contains("/no/such cannot be read"), "{error}");
    }
}
