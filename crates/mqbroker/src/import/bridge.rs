//! Bridges: mosquitto's `connection` and the lines behind it.

use std::{collections::BTreeSet, fmt::Write as _, num::NonZeroU32};

use super::{
    Line,
    keys::{NotTaken, why_not},
    quoted,
};

/// Bridge, as far as it was read.
#[derive(Debug, Default)]
pub(super) struct Bridge {
    name: String,
    addresses: Vec<String>,
    /// Keys of the table besides, in TOML.
    keys: Vec<(&'static str, String)>,
    topics: Vec<String>,
    is_encrypted: bool,
    has_version: bool,
    /// The line of a version before 5.0.
    old_version: Option<Line>,
    /// The line of the user that it was here.
    local_user: Option<Line>,
    has_both: bool,
    told: Told,
}

/// Brokers at which the bridge publishes its state; mosquitto's default is the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Told {
    #[default]
    Both,
    Here,
    Nobody,
}

/// Keys that change nothing here, and why.
const NEEDLESS: [(&str, &str); 9] = [
    ("try_private", "MQTT 5.0 says what that asks for"),
    ("round_robin", "the first address that answers is taken"),
    (
        "bridge_attempt_unsubscribe",
        "there is nothing to unsubscribe from",
    ),
    (
        "bridge_max_packet_size",
        "it is max_packet_size of [limits]",
    ),
    (
        "bridge_receive_maximum",
        "it is receive_maximum of [limits]",
    ),
    ("local_clientid", "its session is that of $bridge/NAME"),
    ("local_password", "it may do everything here"),
    ("bridge_reload_type", "a change takes effect with a restart"),
    ("threshold", "a lazy bridge connects for one message"),
];

/// Keys that have nothing here, and why. Without them there is not less protection.
const MISSING: [(&str, &str); 11] = [
    (
        "bridge_insecure",
        "give the other broker's certificate by `fingerprint`",
    ),
    ("bridge_alpn", "it is mqtt"),
    ("bridge_ciphers", "the ciphers are rustls's defaults"),
    ("bridge_ciphers_tls1.3", "the ciphers are rustls's defaults"),
    (
        "bridge_bind_address",
        "the system chooses the address to connect from",
    ),
    ("bridge_outgoing_retain", "retained messages stay retained"),
    (
        "bridge_session_expiry_interval",
        "the session there lives for ever, or with `clean` as long as the connection",
    ),
    ("bridge_max_topic_alias", "up to 64 aliases are used"),
    ("bridge_tcp_keepalive", "see keep_alive_s"),
    ("bridge_tcp_user_timeout", "see keep_alive_s"),
    ("local_cleansession", "see clean, which is of both sides"),
];

const NO_PSK: &str = "there are no pre-shared keys, and the bridge is not made one without encryption: give \
                      certificates or passwords";

/// Keys that protect something and have nothing here, and why.
const PROTECTING: [(&str, &str); 4] = [
    ("bridge_psk", NO_PSK),
    ("bridge_identity", NO_PSK),
    ("bridge_capath", "put the certificates into one file, `ca`"),
    (
        "bridge_require_ocsp",
        "the state of certificates is not asked for",
    ),
];

/// A password or token goes into a file of its own.
const PASSWORD: &str = "put it into a file that others cannot read, and give that as password_file";

impl Bridge {
    pub(super) fn new(name: &str) -> Self {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        Self {
            name: name.replace(|c| !allowed(c), "-"),
            ..Self::default()
        }
    }

    /// Takes a line of it.
    ///
    /// # Errors
    /// Why it is not taken.
    pub(super) fn take(&mut self, line: &Line) -> Result<(), NotTaken> {
        let value = line.value.as_str();
        let is_true = value == "true";
        let not_a_number = |_| "is not a number".to_owned();
        match line.key.as_str() {
            "address" | "addresses" => {
                self.addresses
                    .extend(value.split_whitespace().map(str::to_owned));
            }
            "topic" => {
                self.topics.push(topic(value)?);
                self.has_both |= value.split_whitespace().nth(1) == Some("both");
            }
            "local_username" => self.local_user = Some(line.clone()),
            "clientid" | "remote_clientid" => self.keys.push(("client_id", quoted(value))),
            "username" | "remote_username" => self.keys.push(("user_name", quoted(value))),
            "password" | "remote_password" => return Err(PASSWORD.into()),
            "cleansession" => self.keys.push(("clean", is_true.to_string())),
            "keepalive_interval" => {
                let seconds: u16 = value.parse().map_err(not_a_number)?;
                self.keys.push(("keep_alive_s", seconds.to_string()));
            }
            "restart_timeout" => {
                // A base and a cap, or one constant.
                let longest = value.split_whitespace().last().unwrap_or_default();
                let seconds: NonZeroU32 =
                    longest.parse().map_err(|_| "is not a number".to_owned())?;
                self.keys.push(("reconnect_max_s", seconds.to_string()));
            }
            "start_type" if value == "automatic" => {}
            "start_type" if value == "lazy" => self.keys.push(("start", quoted("lazy"))),
            "start_type" => return Err("a bridge is automatic or lazy".into()),
            "idle_timeout" => {
                let seconds: u32 = value.parse().map_err(not_a_number)?;
                self.keys.push(("idle_timeout_s", seconds.to_string()));
            }
            "notifications" if is_true => {}
            "notifications" => self.told = Told::Nobody,
            "notifications_local_only" if is_true => self.told = self.told.max(Told::Here),
            "notifications_local_only" => {}
            "notification_topic" => self.keys.push(("notification_topic", quoted(value))),
            "bridge_cafile" => self.encrypted("ca", value),
            "bridge_certfile" => self.encrypted("certificate", value),
            "bridge_keyfile" => self.encrypted("key", value),
            "bridge_tls_use_os_certs" => self.is_encrypted |= is_true,
            "bridge_protocol_version" => {
                let version = match value {
                    "mqttv50" => "5.0",
                    "mqttv311" => "3.1.1",
                    "mqttv31" => "3.1",
                    _ => return Err("is not a version".into()),
                };
                self.has_version = true;
                if version != "5.0" {
                    self.old_version = Some(line.clone());
                }
                self.keys.push(("mqtt", quoted(version)));
            }
            "bridge_tls_version" if value == "tlsv1.3" => {
                return Err(NotTaken::stops("TLS 1.2 is spoken as well"));
            }
            "bridge_tls_version" => return Err("TLS 1.2 and 1.3 are spoken".into()),
            key => {
                // Also where the line is accepted: the bridge was encrypted.
                let of_tls = ["bridge_psk", "bridge_identity", "bridge_capath"];
                self.is_encrypted |= of_tls.contains(&key);
                return Err(why_not(key, &NEEDLESS, &MISSING, &PROTECTING));
            }
        }
        Ok(())
    }

    /// Returns the line of the user that the bridge was here.
    pub(super) fn local_user(&self) -> Option<&Line> {
        self.local_user.as_ref()
    }

    /// Returns the line of a version in which messages of a topic in both directions would go round.
    pub(super) fn version_that_makes_circles(&self) -> Option<&Line> {
        self.old_version.as_ref().filter(|_| self.has_both)
    }

    fn encrypted(&mut self, key: &'static str, file: &str) {
        self.is_encrypted = true;
        self.keys.push((key, quoted(file)));
    }

    /// Formats the bridge's table, and adds to `notes` what is to be looked at.
    pub(super) fn write(&self, notes: &mut BTreeSet<String>) -> String {
        let scheme = if self.is_encrypted { "tls" } else { "tcp" };
        let url = |address: &String| {
            let has_port = address
                .rsplit_once(':')
                .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let port = if has_port { "" } else { ":1883" };
            quoted(&format!("{scheme}://{address}{port}"))
        };
        let urls: Vec<_> = self.addresses.iter().map(url).collect();
        let mut text = format!("\n[[bridge]]\nname = {}\n", quoted(&self.name));
        let _ = writeln!(text, "address = [{}]", urls.join(", "));
        if self.is_encrypted {
            text += "# over QUIC: put \"quic://HOST\" before the others\n";
        } else {
            text += "plaintext = true\n";
            let name = &self.name;
            notes.insert(format!(
                "the bridge {name} is without encryption, as it was"
            ));
        }
        if !self.has_version {
            let note =
                "bridges speak MQTT 5.0 now; give `mqtt = \"3.1.1\"` for a broker that does not";
            notes.insert(note.to_owned());
        }
        text += match self.told {
            Told::Both => "notifications_local_only = false\n",
            Told::Here => "",
            Told::Nobody => "notifications = false\n",
        };
        for (key, value) in &self.keys {
            if *key == "mqtt" && self.version_that_makes_circles().is_some() {
                continue;
            }
            let _ = writeln!(text, "{key} = {value}");
        }
        for topic in &self.topics {
            text += topic;
        }
        text
    }
}

/// Translates `PATTERN [out|in|both [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]]` to a table.
fn topic(value: &str) -> Result<String, String> {
    let mut words = value
        .split_whitespace()
        .map(|word| if word == "\"\"" { "" } else { word });
    let pattern = words.next().ok_or("has no pattern")?;
    let direction = words.next().unwrap_or("out");
    if !["out", "in", "both"].contains(&direction) {
        return Err(format!("{direction:?} is no direction"));
    }
    let qos = words.next().unwrap_or("0");
    if !["0", "1", "2"].contains(&qos) {
        return Err(format!("{qos:?} is no QoS"));
    }
    let mut text = format!("[[bridge.topic]]\npattern = {}\n", quoted(pattern));
    let _ = writeln!(text, "direction = {}\nqos = {qos}", quoted(direction));
    for key in ["local_prefix", "remote_prefix"] {
        if let Some(prefix) = words.next().filter(|prefix| !prefix.is_empty()) {
            let _ = writeln!(text, "{key} = {}", quoted(prefix));
        }
    }
    Ok(text)
}
