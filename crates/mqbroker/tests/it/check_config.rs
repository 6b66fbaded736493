//! `mqbroker check-config` finds what a start finds, all of it, and prints no secrets.

use std::{fs, path::PathBuf};

use crate::program::mqbroker;

/// A folder with a configuration, a certificate and its key.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        place.certificate(|_| {});
        place
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn certificate(&self, change: impl FnOnce(&mut rcgen::CertificateParams)) {
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        change(&mut params);
        let key = rcgen::KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        fs::write(self.file("cert"), made.pem()).unwrap();
        fs::write(self.file("key"), key.serialize_pem()).unwrap();
    }

    /// Returns the mistakes that the program prints for a configuration, in which `FOLDER` is the folder.
    fn mistakes(&self, text: &str) -> Vec<String> {
        let config = self.file("config");
        let own = self.folder.path().to_str().unwrap();
        fs::write(&config, text.replace("FOLDER", own)).unwrap();
        let output = mqbroker(&["check-config", config.to_str().unwrap()], "");
        let said = String::from_utf8(output.stdout).unwrap();
        let code = output.status.code();
        if said.trim_end().ends_with(": ok") {
            assert_eq!(code, Some(0), "{said}");
            return Vec::new();
        }
        assert_eq!(code, Some(1), "{said}");
        said.lines().map(ToOwned::to_owned).collect()
    }
}

const TLS: &str = "listen = [\"tls://127.0.0.1:8883\"]\n[tls]\ncertificate = \"FOLDER/cert\"\nkey = \"FOLDER/key\"\n";

#[test]
fn what_a_start_would_fail_at_is_found() {
    let place = Place::new();
    assert_eq!(place.mistakes(TLS), [""; 0]);
    for (text, part) in [
        (
            "listen = [\"tcp://127.0.0.1:1883\", \"tcp://127.0.0.1:1883\"]\n",
            "listen: mqtt://127.0.0.1:1883: another listener has this port",
        ),
        (
            "listen = [\"tcp://127.0.0.1:8883\", \"ws://127.0.0.1:8883/mqtt\"]\n",
            "another listener has this port",
        ),
        (
            "[store]\npath = \"FOLDER/none/store\"\n",
            "store.path: there is no folder",
        ),
    ] {
        let mistakes = place.mistakes(text);
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(mistakes[0].contains(part), "{part} in {mistakes:?}");
    }
    // UDP and TCP have ports of their own.
    let both = "listen = [\"tcp://127.0.0.1:1883\", \"quic://127.0.0.1:1883\"]\n";
    assert_eq!(place.mistakes(both), [""; 0]);
}

#[test]
fn certificates_that_clients_refuse_are_found() {
    let place = Place::new();
    let says = |part: &str| {
        let mistakes = place.mistakes(TLS);
        let found = mistakes.iter().any(|mistake| mistake.contains(part));
        assert!(found, "{part} in {mistakes:?}");
    };
    place.certificate(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    says("certificate 1 has expired");
    place.certificate(|params| params.not_before = rcgen::date_time_ymd(2090, 1, 1));
    says("certificate 1 is not valid yet");
    place.certificate(|_| {});
    let other = rcgen::KeyPair::generate().unwrap();
    fs::write(place.file("key"), other.serialize_pem()).unwrap();
    says("key");
}

#[test]
fn all_mistakes_of_the_file_are_found_at_once() {
    let place = Place::new();
    let text = "listne = []\n[limits]\nmemory = \"much\"\nsessions = 5\nretaind = 1\n[nothing]\nx = 1\n\
                [admin]\nhttp = \"nowhere\"\n";
    let mistakes = place.mistakes(text);
    for (line, part) in [
        (1, "listne"),
        (3, "invalid type"),
        (5, "retaind"),
        (6, "nothing"),
        (9, ""),
    ] {
        let line = format!("line {line}: ");
        let found = mistakes
            .iter()
            .any(|mistake| mistake.contains(&line) && mistake.contains(part));
        assert!(found, "{line}{part} in {mistakes:?}");
    }
    assert_eq!(mistakes.len(), 5, "{mistakes:?}");
}

#[test]
fn a_key_in_the_place_of_another_file_is_not_printed() {
    let place = Place::new();
    let secret = fs::read_to_string(place.file("key")).unwrap();
    let words: Vec<_> = secret
        .lines()
        .filter(|line| !line.starts_with('-'))
        .collect();
    for text in [
        "[auth]\nacl_file = \"FOLDER/key\"\nallow_anonymous = true\n",
        "[auth]\npassword_file = \"FOLDER/key\"\n",
        "[auth]\npassword_file = \"FOLDER/none\"\n[auth.jwt]\nkeys = \"FOLDER/key\"\n",
        "[tls]\ncertificate = \"FOLDER/key\"\nkey = \"FOLDER/key\"\n",
        "[admin]\nhttp = \"127.0.0.1:0\"\ntoken_file = \"FOLDER/key\"\n",
        &secret,
    ] {
        let said = place.mistakes(text).join("\n");
        for word in &words {
            let start = &word[..word.len().min(12)];
            assert!(!said.contains(start), "{text}: {said}");
        }
    }
    fs::write(place.file("acl"), "user ann\ntopc a\n").unwrap();
    let said = place.mistakes("[auth]\nacl_file = \"FOLDER/acl\"\nallow_anonymous = true\n");
    assert!(said[0].contains("`topc` is not"), "{said:?}");
}

#[test]
fn all_values_that_are_not_allowed_are_found_at_once_and_by_a_start() {
    let place = Place::new();
    let text = "listen = [\"tcp://127.0.0.1:1883\", \"nowhere\"]\n[tls]\nearly_data = \"much\"\n\
                certificate = \"FOLDER/cert\"\n[quic]\ninitial_rtt_ms = 0.0\nmax_streams = 0\n\
                packet_threshold = 0\n[store]\npath = \"FOLDER/store\"\ninterval_ms = 0\n\
                not_ready_after_s = 0\n[auth]\nacl_file = \"FOLDER/acl\"\ncertificate_user = \"cn\"\n\
                [auth.jwt]\nkeys = \"FOLDER/keys\"\nleeway_s = 1000\n[limits]\nmaximum_qos = 3\n\
                overflow = \"spill\"\n[[bridge]]\nname = \"b\"\naddress = [\"tcp://127.0.0.1:1\"]\n\
                certificate = \"FOLDER/cert\"\nmqtt = \"4\"\ncongestion = \"none\"\nidle_timeout_s = 5\n\
                [[bridge.topic]]\npattern = \"a/#\"\nqos = 3\n\
                [cluster]\nnode = \"a\"\nservers = [\"nats://127.0.0.1:1\"]\nuser = \"mq\"\nkey = \"FOLDER/key\"\n";
    let mistakes = place.mistakes(text);
    let expected = [
        "listen: ",
        "tls.early_data: ",
        "a certificate without its key",
        "quic.initial_rtt_ms: ",
        "quic.max_streams: ",
        "quic.packet_threshold: ",
        "store.interval_ms: ",
        "store.not_ready_after_s: ",
        "limits.maximum_qos: ",
        "bridge \"b\": give certificate and key",
        "bridge \"b\": mqtt: ",
        "bridge \"b\": congestion: ",
        "bridge \"b\": idle_timeout_s ",
        "bridge \"b\": topic.qos: ",
        "store: a node of a cluster has no store",
        "cluster.user: ",
        "cluster.certificate: ",
        "auth.certificate_user: ",
        "auth.jwt.leeway_s: ",
    ];
    for part in expected {
        let found = mistakes.iter().filter(|mistake| mistake.contains(part));
        assert_eq!(found.count(), 1, "{part} in {mistakes:?}");
    }
    let output = mqbroker(&["--config", place.file("config").to_str().unwrap()], "");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    for part in expected {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert_eq!(mistakes.len(), expected.len(), "{mistakes:?}");
}
