//! `mqbroker import-mosquitto`: never less protection than before, or the line that stops the import.

use std::{fs, process::Output};

use crate::program::mqbroker;

/// Lines of a listener with users.
const SECURE: &str = "listener 8883\ncertfile s.pem\nkeyfile s.key\npassword_file passwords\n";
const BRIDGE: &str = "connection cloud\naddress cloud.example:8883\ntopic # out\n";

fn import(text: &str, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().to_str().unwrap();
    for (name, text) in [
        ("passwords", "test/1:x\nann:y\nbob/+:z\n"),
        ("acl", "pattern write sensors/%u/#\n"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let path = folder.path().join("mosquitto.conf");
    fs::write(&path, text.replace("FOLDER", own)).unwrap();
    let path = path.to_str().unwrap();
    mqbroker(&[&["import-mosquitto", path], more].concat(), "")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Keys of mosquitto 2.0 and 2.1 that protect something and that have no counterpart: the lines before, and the line.
const STOPS: [(&str, &str, &str); 33] = [
    (SECURE, "plugin /usr/lib/x.so", "plugins"),
    (SECURE, "auth_plugin /usr/lib/x.so", "plugins"),
    (SECURE, "global_plugin /usr/lib/x.so", "plugins"),
    (SECURE, "plugin_load x /usr/lib/x.so", "plugins"),
    (SECURE, "plugin_use x", "plugins"),
    ("listener 8883\n", "psk_hint x", "without encryption"),
    ("listener 8883\n", "psk_file x", "without encryption"),
    (SECURE, "mount_point a/", "mount points"),
    ("listener 1883\n", "bind_interface lo", "every interface"),
    (SECURE, "require_certificate true", "no client"),
    (SECURE, "use_subject_as_username true", "cn, san-dns"),
    (SECURE, "use_username_as_clientid true", "nothing like it"),
    (SECURE, "clientid_prefixes a-", "nothing like it"),
    (SECURE, "tls_version tlsv1.3", "1.2"),
    (SECURE, "tls_engine x", "engines"),
    (SECURE, "tls_keyform engine", "engines"),
    (SECURE, "accept_protocol_versions 5", "versions"),
    (SECURE, "listener_allow_anonymous false", "every listener"),
    (
        SECURE,
        "websockets_origin https://a.example",
        "allowed_origins",
    ),
    (
        SECURE,
        "proxy_protocol_v2_require_tls true",
        "trusted_proxies",
    ),
    (SECURE, "enable_proxy_protocol 2", "trusted_proxies"),
    (SECURE, "max_session_expiry_interval 5", "session_expiry_s"),
    (SECURE, "protocol http_api", "neither mqtt"),
    (SECURE, "password_file others", "one for all listeners"),
    (SECURE, "some_key_of_a_later_version true", "not known"),
    (BRIDGE, "bridge_psk 00", "without encryption"),
    (BRIDGE, "bridge_identity x", "without encryption"),
    (BRIDGE, "bridge_capath /etc/ssl/certs", "one file"),
    (BRIDGE, "bridge_require_ocsp true", "not asked for"),
    (BRIDGE, "bridge_tls_version tlsv1.3", "1.2"),
    (BRIDGE, "bridge_some_later_key true", "not known"),
    (
        "acl_file FOLDER/acl\nconnection cloud\naddress a.example\ntopic # in\n",
        "local_username ann",
        "rules",
    ),
    (
        "listener 1883 127.0.0.1\nallow_anonymous true\nlistener 1884\nallow_anonymous false\n",
        "per_listener_settings true",
        "all listeners",
    ),
];

#[test]
fn a_protection_without_a_counterpart_stops_the_import_with_its_line() {
    for (before, line, why) in STOPS {
        let config = format!("{before}{line}\n");
        let number = config.lines().count().to_string();
        let output = import(&config, &[]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert_eq!(text(&output.stdout), "", "{line}");
        let stop = said.lines().find(|said| said.contains(why));
        let stop = stop.unwrap_or_else(|| panic!("{line}: {why} in {said}"));
        let key = line.split(' ').next().unwrap();
        let place = format!("line {number}: {key}");
        assert!(stop.contains(&place), "{line}: {said}");
        assert!(stop.contains(&format!("--accept {number}")), "{said}");

        let output = import(&config, &["--accept", &number]);
        let toml = text(&output.stdout);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        assert!(toml.contains(&place), "{line}: {toml}");
        let _: toml::Table = toml.parse().unwrap();
        if ["bridge_psk", "bridge_identity", "bridge_capath"].contains(&key) {
            assert!(!toml.contains("plaintext"), "{line}: {toml}");
        }
        if key == "per_listener_settings" {
            assert!(!toml.contains("allow_anonymous = true"), "{toml}");
        }
    }
}

/// Keys that are carried over, or whose lack is more protection: what the result has, and what it has not.
const CARRIED: [(&str, &str, &str); 15] = [
    (
        "per_listener_settings true\nlistener 1883\nallow_anonymous true\n",
        "allow_anonymous = true",
        "Not taken",
    ),
    (
        "per_listener_settings true\nlistener 1883\npassword_file p\nlistener 1884\npassword_file p\n",
        "password_file = \"p\"",
        "Not taken",
    ),
    (
        "listener 8883\ncertfile s\nkeyfile k\ncafile c\nrequire_certificate true\n",
        "client_certificate = \"required\"",
        "Not taken",
    ),
    (
        "listener 8883\ncertfile s\nkeyfile k\ncafile c\n",
        "append those to it",
        "client_ca",
    ),
    (
        "listener 8883\ncertfile s\nkeyfile k\ncrlfile a\nlistener 8884\ncertfile s\nkeyfile k\ncrlfile b\n",
        "client_crls = [\"a\", \"b\"]",
        "Not taken",
    ),
    (
        "use_identity_as_username true\n",
        "certificate_user = \"cn\"",
        "Not taken",
    ),
    (
        "allow_anonymous false\nlistener 1883\n",
        "nobody could log in",
        "allow_anonymous = true",
    ),
    (
        "listener 8883\ncertfile s\nkeyfile k\ntls_version tlsv1.2\n",
        "tls://",
        "Not taken",
    ),
    (
        "listener 8883\ncertfile s\nkeyfile k\ndisable_client_cert_date_checks true\n",
        "not needed",
        "plaintext",
    ),
    // What comes behind a socket is not the listener's before it.
    (
        "listener 1883 127.0.0.1\nlistener 0 /run/m.sock\ncertfile s\nkeyfile k\n",
        "tcp://127.0.0.1:1883",
        "tls://",
    ),
    (
        "connection c\naddress a.example\ntopic a both\nbridge_protocol_version mqttv311\n",
        "bridge_protocol_version: ",
        "mqtt = \"3.1.1\"",
    ),
    (
        "connection c\naddress a.example\ntopic a out\nbridge_protocol_version mqttv311\n",
        "mqtt = \"3.1.1\"",
        "Not taken",
    ),
    (
        "connection c\naddress a.example:8883\ntopic a out\nbridge_cafile c\nbridge_insecure true\n",
        "tls://a.example",
        "plaintext",
    ),
    (
        "connection c\naddress a.example:8883\ntopic a out\nlocal_username ann\n",
        "local_username",
        "--accept",
    ),
    (
        "listener 1883\n",
        "socket = \"/run/mqbroker/admin.sock\"",
        "Not taken",
    ),
];

#[test]
fn protection_is_carried_over_or_grows() {
    for (config, has, has_not) in CARRIED {
        let output = import(config, &[]);
        let (toml, said) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{config}: {said}");
        assert!(toml.contains(has), "{config}: {has} in {toml}");
        assert!(!toml.contains(has_not), "{config}: {has_not} in {toml}");
        let _: toml::Table = toml.parse().unwrap();
    }
}

#[test]
fn users_whose_names_have_levels_are_named_where_a_pattern_has_their_name() {
    let config = "listener 1883\npassword_file FOLDER/passwords\nacl_file FOLDER/acl\n";
    let said = text(&import(config, &[]).stderr);
    let line = said.lines().find(|line| line.contains("%u"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("test/1") && !line.contains("ann"), "{line}");
}

#[test]
fn a_line_that_does_not_stop_the_import_cannot_be_accepted() {
    let output = import("listener 1883\n", &["--accept", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("--accept 1: "));
}
