//! Keys of mosquitto that are not taken, with the reason, and with what their loss means.

/// Keys that change nothing here, and why.
pub(super) const NEEDLESS: [(&str, &str); 17] = [
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

/// Keys of mosquitto that have nothing here, and why. Without them there is not less protection.
pub(super) const MISSING: [(&str, &str); 9] = [
    (
        "capath",
        "put the certificates into one file, `client_ca` of [tls]",
    ),
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
    (
        "check_retain_source",
        "rules hold when a message is published",
    ),
];

const NO_PLUGINS: &str = "there are no plugins: see [auth] for users, rules and tokens";
const NO_PSK: &str =
    "there are no pre-shared keys: give certificates, as the listener would be without encryption";
const NO_ENGINES: &str = "there are no engines: the key has to be in a file";
const NO_PROXY: &str = "use `proxy_protocol` and `trusted_proxies` of a `[[listener]]`: addresses would be the proxy's";

/// Keys of mosquitto that protect something and have nothing here, and why.
pub(super) const PROTECTING: [(&str, &str); 21] = [
    ("plugin", NO_PLUGINS),
    ("auth_plugin", NO_PLUGINS),
    ("global_plugin", NO_PLUGINS),
    ("plugin_load", NO_PLUGINS),
    ("plugin_use", NO_PLUGINS),
    ("psk_file", NO_PSK),
    ("psk_hint", NO_PSK),
    ("mount_point", "there are no mount points"),
    (
        "bind_interface",
        "the listener would be at every interface: give the interface's address in `listen`",
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
    ("tls_engine", NO_ENGINES),
    ("tls_engine_kpass_sha1", NO_ENGINES),
    ("tls_keyform", NO_ENGINES),
    (
        "accept_protocol_versions",
        "MQTT 3.1, 3.1.1 and 5.0 are spoken: versions cannot be chosen",
    ),
    (
        "listener_allow_anonymous",
        "allow_anonymous is the same at every listener",
    ),
    (
        "websockets_origin",
        "give allowed_origins of [ws], which has another form",
    ),
    ("enable_proxy_protocol", NO_PROXY),
    ("proxy_protocol_v2_require_tls", NO_PROXY),
    (
        "max_session_expiry_interval",
        "give session_expiry_s of [limits]",
    ),
];

/// A line that is not taken.
#[derive(Debug)]
pub(super) struct NotTaken {
    pub(super) why: String,
    /// `true` if there would be less protection without it.
    pub(super) stops: bool,
}

impl From<&str> for NotTaken {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

impl From<String> for NotTaken {
    fn from(why: String) -> Self {
        Self { why, stops: false }
    }
}

impl NotTaken {
    pub(super) fn stops(why: &str) -> Self {
        Self {
            why: why.to_owned(),
            stops: true,
        }
    }
}

/// A list of keys, each with the reason that it is not taken.
pub(super) type Keys<'a> = &'a [(&'a str, &'a str)];

/// Returns the reason that a key is not taken: it changes nothing here, has nothing here, or is not known.
pub(super) fn why_not(
    key: &str,
    needless: Keys<'_>,
    missing: Keys<'_>,
    protecting: Keys<'_>,
) -> NotTaken {
    let why = |list: Keys<'_>| {
        let found = list.iter().find(|(name, _)| *name == key);
        found.map(|(_, why)| (*why).to_owned())
    };
    if let Some(why) = why(needless) {
        return format!("not needed: {why}").into();
    }
    if let Some(why) = why(missing) {
        return why.into();
    }
    let why = why(protecting);
    NotTaken::stops(why.as_deref().unwrap_or("is not known"))
}
