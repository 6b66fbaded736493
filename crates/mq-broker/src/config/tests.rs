use std::{num::NonZeroU32, time::Duration};

use mq_codec::QoS;
use mq_proto::Spread;
use mq_transport::{AllowedOrigins, ClientAuth, EarlyDataPolicy, Repeat};

use super::*;
use crate::{
    Durability, Overflow, Storage, StoreFile,
    auth::{CertificateUser, JwtSettings},
};

fn read(text: &str) -> Result<Settings, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Config::read(file.path())
        .and_then(|config| config.into_settings(file.path()))
        .map_err(|error| {
            error
                .to_string()
                .replace(&*file.path().to_string_lossy(), "FILE")
        })
}

#[test]
fn values_reach_the_settings() {
    let settings = read(
        "listen = [\"tcp://127.0.0.1:1\"]\n[tls]\nearly_data = \"off\"\n\
         ticket_file = \"t\"\nmax_record_size = 1024\ngroups = [\"secp256r1\"]\n[tcp]\nfast_open = true\n[ws]\nallowed_origins = [\"https://a\"]\n[admin]\nsocket = \"s\"\n[limits]\nmax_packet_size = 77\nmax_connect_size = 66\nmaximum_qos = 1\nallow_control_characters = true\nsession_expiry_s = 5\n\
         overflow = \"drop-oldest\"\nspill_bytes = 3\nmemory = 9\npublish_bytes_per_s = 8\nreader_timeout_s = 0\nconnections_per_address = 7\n",
    )
    .unwrap();
    assert_eq!(settings.listeners[0].port, 1);
    assert_eq!(settings.listen.early_data, EarlyDataPolicy::Off);
    assert_eq!(settings.ticket_file, Some("t".into()));
    assert_eq!(settings.listen.max_record_size, 1024);
    assert!(settings.listen.socket.tcp_fast_open);
    let groups = &settings.listen.crypto.key_exchange_groups;
    assert_eq!(groups, &[mq_transport::KeyExchangeGroup::Secp256r1]);
    let listed = AllowedOrigins::Listed(vec!["https://a".to_owned()]);
    assert_eq!(settings.listen.allowed_origins, listed);
    assert_eq!(settings.admin.socket, Some("s".into()));
    assert_eq!(settings.protocol.max_packet_size.get(), 77);
    assert_eq!(settings.protocol.max_connect_size.get(), 66);
    assert_eq!(settings.protocol.maximum_qos, QoS::AtLeastOnce);
    assert!(settings.protocol.allow_control_characters);
    assert_eq!(settings.max_session_expiry, Some(Duration::from_secs(5)));
    assert_eq!(settings.quotas.overflow, Some(Overflow::DropOldest));
    assert_eq!(settings.quotas.spill_bytes, 3);
    assert_eq!(settings.quotas.memory, 9);
    assert_eq!(settings.publish_rate.bytes, Some(8));
    assert_eq!(settings.reader_timeout, None);
    assert_eq!(settings.max_connections_per_address, 7);
}

#[test]
fn a_listener_may_send_again_by_a_policy_of_its_own() {
    let file = |rest: &str| {
        read(&format!(
            "listen = [\"quic://[::1]:1\", \"quic://[::1]:2\", \"tcp://[::1]:3\"]\n[quic]\n{rest}"
        ))
    };
    let settings =
        file("repeat = \"3ms\"\nrepeat_at = { \"quic://[::1]:2\" = \"auto\" }\n").unwrap();
    let at = |number: usize| settings.listen_at(&settings.listeners[number]).quic.repeat;
    assert_eq!(at(0), Repeat::after(Duration::from_millis(3)));
    assert_eq!(at(1), Repeat::Auto);
    for (url, policy, problem) in [
        (
            "quic://[::1]:9",
            "auto",
            "quic://[::1]:9 is not a QUIC listener of `listen`",
        ),
        (
            "tcp://[::1]:3",
            "auto",
            "tcp://[::1]:3 is not a QUIC listener of `listen`",
        ),
        ("quic:/", "auto", "quic.repeat_at: "),
        ("quic://[::1]:2", "now", "repeat cannot be `now`"),
    ] {
        let error = file(&format!("repeat_at = {{ \"{url}\" = \"{policy}\" }}\n")).unwrap_err();
        assert!(error.contains(problem), "{error}");
        assert!(
            error.contains("quic.repeat_at: ") && error.lines().count() == 1,
            "{error}"
        );
    }
}

#[test]
fn a_listener_of_its_own_may_be_behind_proxies() {
    let behind = "[[listener]]\nurl = \"tcp://[::1]:1\"\nproxy_protocol = \"optional\"\n";
    let settings = read(&format!(
        "{behind}trusted_proxies = [\"192.0.2.7\", \"10.0.0.0/8\"]\n[[listener]]\nurl = \"ws://[::1]:2\"\n[auth]\nallow_anonymous = true\n"
    ));
    let settings = settings.unwrap();
    assert_eq!(settings.listeners.len(), 2, "no default ones beside them");
    let at = |number: usize| {
        settings
            .listen_at(&settings.listeners[number])
            .proxy_protocol
    };
    let proxies = at(0).unwrap();
    assert!(!proxies.required);
    assert!(proxies.trusted[1].contains(&std::net::IpAddr::from([10, 7, 7, 7])));
    assert_eq!(at(1), None);
    for (text, problem) in [
        (
            format!("{behind}trusted_proxies = [\"all\"]\n"),
            "trusted_proxies: `all` is no address or network",
        ),
        (
            behind.to_owned(),
            "proxy_protocol: it needs `trusted_proxies`",
        ),
        (
            "[[listener]]\nurl = \"tcp://[::1]:1\"\ntrusted_proxies = [\"::1\"]\n".to_owned(),
            "trusted_proxies: it needs `proxy_protocol`",
        ),
        (
            format!("{behind}trusted_proxies = [\"::1\"]\n").replace("tcp", "quic"),
            "proxy_protocol: only listeners over TCP have it",
        ),
        (
            "[[listener]]\nurl = \"tcp:/\"\n".to_owned(),
            "listener `tcp:/`: url: ",
        ),
        (
            // Clients of other machines come by it.
            format!("{behind}trusted_proxies = [\"::1\"]\n"),
            "listen: other machines reach mqtt://[::1]:1",
        ),
    ] {
        let error = read(&text).unwrap_err();
        assert!(
            error.contains(problem) && error.lines().count() == 1,
            "{error}"
        );
    }
}

#[test]
fn deliveries_on_streams_of_the_broker_are_for_clients_that_ask_unless_the_file_says_more() {
    let file = |value: &str| read(&format!("[quic]\ndeliveries = \"{value}\"\n"));
    let of = |value| file(value).unwrap().deliveries;
    assert_eq!(read("").unwrap().deliveries, None);
    assert_eq!(of("asked"), None);
    assert_eq!(of("control"), Some(Spread::Control));
    assert_eq!(of("per-topic:7"), Some(Spread::PerTopic { most: 7 }));
    let error = file("by-priority").unwrap_err();
    let problem = "quic.deliveries: it cannot be `by-priority`: use one of control, \
                   per-topic[:N], per-publish, auto[:N], or \"asked\"";
    assert!(error.ends_with(problem), "{error}");
}

#[test]
fn idle_streams_are_closed_only_where_that_is_asked_for() {
    for (text, timeout) in [
        ("", None),
        ("[quic]\nstream_idle_timeout_s = 0\n", None),
        (
            "[quic]\nstream_idle_timeout_s = 90\n",
            Some(Duration::from_secs(90)),
        ),
    ] {
        assert_eq!(read(text).unwrap().stream_idle_timeout, timeout);
    }
    let error = read("[quic]\nstream_idle_timeout_s = 86401\n").unwrap_err();
    assert!(error.contains("within 0 and 86400"), "{error}");
}

#[test]
fn a_broker_that_is_not_told_where_listens_on_loopback() {
    let settings = read("").unwrap();
    let at: Vec<_> = settings.listeners.iter().map(Address::to_string).collect();
    assert_eq!(at, ["mqtt://127.0.0.1:1883", "quic://127.0.0.1:14567"]);
}

#[test]
fn other_machines_get_in_without_a_user_only_where_that_is_allowed() {
    let at = |listen: &str, rest: &str| read(&format!("listen = [{listen}]\n{rest}"));
    let (local, far) = (
        "\"tcp://localhost\", \"tls://[::1]\"",
        "\"tls://192.0.2.1\"",
    );
    let both = &format!("{local}, {far}");
    let users = "[auth]\npassword_file = \"p\"\n";
    let certificates = "[tls]\nclient_ca = \"ca\"\n";
    let optional = "[tls]\nclient_ca = \"ca\"\nclient_certificate = \"optional\"\n";
    for (listen, rest, starts) in [
        (local, "", true),
        (far, "", false),
        (both, "", false),
        (far, users, true),
        (far, "[auth]\nallow_anonymous = true\n", true),
        (far, certificates, true),
        ("\"tcp://192.0.2.1\"", certificates, false),
        (far, optional, false),
    ] {
        let read = at(listen, rest);
        assert_eq!(read.is_ok(), starts, "{listen} {rest}: {read:?}");
        if let Err(error) = read {
            assert!(error.contains("//192.0.2.1"), "{error}");
            assert!(error.contains("`allow_anonymous = true`"), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}

#[test]
fn pages_of_other_hosts_are_kept_out_where_no_user_is_needed() {
    let users = "[auth]\npassword_file = \"p\"\n";
    let also = "[auth]\npassword_file = \"p\"\nallow_anonymous = true\n";
    let anybody = "[auth]\nallow_anonymous = true\n";
    let all = "[ws]\nallowed_origins = [\"*\"]\n";
    for (text, origins) in [
        ("", AllowedOrigins::SameHost),
        (anybody, AllowedOrigins::SameHost),
        (also, AllowedOrigins::SameHost),
        (users, AllowedOrigins::All),
        (all, AllowedOrigins::All),
        (
            "[ws]\nallowed_origins = []\n",
            AllowedOrigins::Listed(Vec::new()),
        ),
    ] {
        assert_eq!(
            read(text).unwrap().listen.allowed_origins,
            origins,
            "{text}"
        );
    }
}

#[test]
fn clients_certificates_are_required_where_there_is_a_ca() {
    let settings =
        read("[tls]\nclient_ca = \"ca\"\nclient_crls = [\"crl\"]\n[reload]\nwatch = false\n")
            .unwrap();
    assert_eq!(
        settings.listen.client_auth,
        ClientAuth::Required("ca".into())
    );
    assert_eq!(settings.listen.client_crls, [PathBuf::from("crl")]);
    assert!(!settings.watch_files);
    let optional = "[tls]\nclient_ca = \"ca\"\nclient_certificate = \"optional\"\n";
    let settings = read(optional).unwrap();
    assert_eq!(
        settings.listen.client_auth,
        ClientAuth::Optional("ca".into())
    );
    assert!(settings.watch_files);
}

#[test]
fn a_store_has_a_durability() {
    for (text, durability) in [
        ("", Durability::Always),
        ("durability = \"off\"", Durability::Off),
        (
            "durability = \"interval\"\ninterval_ms = 5",
            Durability::Interval(Duration::from_millis(5)),
        ),
    ] {
        let settings = read(&format!("[store]\npath = \"s\"\n{text}\n")).unwrap();
        let path = PathBuf::from("s");
        let file = settings.store.as_ref().and_then(Storage::file);
        assert_eq!(file, Some(&StoreFile { path, durability }));
    }
}

#[test]
fn who_comes_in_is_told_by_one_table() {
    let settings = read(
        "[tls]\nclient_ca = \"c\"\n[auth]\npassword_file = \"p\"\nacl_file = \"a\"\n\
         certificate_user = \"san-uri\"\nallow_anonymous = true\nfailures_per_minute = 0\n",
    )
    .unwrap();
    let files = settings.access.files().unwrap();
    assert_eq!(files.password_file, Some("p".into()));
    assert_eq!(files.acl_file, Some("a".into()));
    assert_eq!(files.certificate_user, Some(CertificateUser::SanUri));
    assert!(files.allow_anonymous);
    assert_eq!(settings.failures_per_minute, None);
    let settings = read("").unwrap();
    assert_eq!(settings.access.files(), None);
    assert_eq!(settings.failures_per_minute, NonZeroU32::new(10));
}

#[cfg(feature = "jwt")]
#[test]
fn tokens_have_a_table_of_their_own() {
    let read = |text: &str| {
        let settings = read(text).unwrap();
        settings.access.files().unwrap().jwt.clone().unwrap()
    };
    let default = JwtSettings::new("k".into());
    assert_eq!(read("[auth.jwt]\nkeys = \"k\"\n"), default);
    let mut all = default;
    all.issuer = Some("i".to_owned());
    all.audience = Some("a".to_owned());
    all.user_claim = "name".to_owned();
    all.client_id_claim = Some("device".to_owned());
    all.leeway = Duration::ZERO;
    all.disconnect_at_expiry = false;
    let text = "[auth.jwt]\nkeys = \"k\"\nissuer = \"i\"\naudience = \"a\"\n\
                user_claim = \"name\"\nclient_id_claim = \"device\"\nleeway_s = 0\n\
                disconnect_at_expiry = false\n";
    assert_eq!(read(text), all);
}

#[cfg(not(feature = "jwt"))]
#[test]
fn tokens_are_refused_in_a_build_without_them() {
    let error = read("[auth.jwt]\nkeys = \"k\"\n").unwrap_err();
    assert!(
        error.contains("auth.jwt: this build takes no tokens"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[cfg(feature = "cluster")]
#[test]
fn a_node_of_a_cluster_has_a_table_of_its_own() {
    use crate::cluster::EngineSettings;

    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    let mut file = crate::files::create_private(&password).unwrap();
    std::io::Write::write_all(&mut file, b"secret\n").unwrap();
    let table = "[cluster]\nnode = \"a\"\nservers = [\"nats://127.0.0.1:4222\"]\n";
    let settings = read(table).unwrap().cluster.unwrap();
    assert_eq!(settings.node, "a");
    assert_eq!(settings.lease, Duration::from_secs(3));
    assert_eq!(settings.log_max_bytes, 10_000_000_000);
    let EngineSettings::Nats(nats) = settings.engine else {
        panic!("it is on NATS");
    };
    assert_eq!(nats.cluster, "mq");
    assert_eq!((nats.shards, nats.replicas), (8, 3));
    assert!(nats.create_streams);
    assert!(nats.user.is_none() && nats.ca.is_none() && !nats.plaintext);
    let file = password.display();
    let text = format!(
        "[cluster]\nnode = \"b\"\nname = \"other\"\nservers = [\"tls://nats.example\"]\nuser = \"mq\"\n\
         password_file = \"{file}\"\nca = \"ca\"\ncertificate = \"c\"\nkey = \"k\"\nshards = 4\nreplicas = 1\n\
         create_streams = false\n\
         log_max_bytes = 1000000\nlease_s = 9\n"
    );
    let settings = read(&text).unwrap().cluster.unwrap();
    assert!(!format!("{settings:?}").contains("secret"));
    assert_eq!(settings.lease, Duration::from_secs(9));
    assert_eq!(settings.log_max_bytes, 1_000_000);
    let EngineSettings::Nats(nats) = settings.engine else {
        panic!("it is on NATS");
    };
    assert_eq!(nats.cluster, "other");
    assert_eq!((nats.shards, nats.replicas), (4, 1));
    assert!(!nats.create_streams);
    assert_eq!(nats.user.unwrap().0, "mq");
    assert_eq!(nats.ca, Some("ca".into()));
    assert_eq!(nats.identity, Some(("c".into(), "k".into())));
    for (more, part) in [
        ("[store]\npath = \"s\"\n", "leave out [store] or [cluster]"),
        (
            "[limits]\noverflow = \"spill\"\n",
            "which a node of a cluster does not have",
        ),
        (
            "[limits]\nmailbox_messages = 50001\n",
            "a node of a cluster takes 50000 at most",
        ),
        ("user = \"mq\"\n", "cluster.user: it has no password_file"),
        ("ca = \"ca\"\n", "cluster.ca: only for servers of tls://"),
        ("key = \"k\"\n", "give certificate and key, or neither"),
        ("plaintext = 1\n", "line 4: invalid type"),
        ("shards = 257\n", "cluster.shards: must be from 1 to 256"),
    ] {
        let error = read(&format!("{table}{more}")).unwrap_err();
        assert!(error.contains(part), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let far = table.replace("127.0.0.1", "192.0.2.1");
    let error = read(&far).unwrap_err();
    assert!(
        error.contains("cluster.servers: nats://192.0.2.1:4222 is"),
        "{error}"
    );
    read(&format!("{far}plaintext = true\n")).unwrap();
}

#[cfg(not(feature = "cluster"))]
#[test]
fn a_node_of_a_cluster_is_refused_in_a_build_without_it() {
    let error = read("[cluster]\nnode = \"a\"\nservers = []\n").unwrap_err();
    assert!(
        error.contains("build it with the feature `cluster`"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn mistakes_are_named_with_line_and_key() {
    for (text, part) in [
        ("[auth]\n", "auth: nobody could log in"),
        ("[auth]\ncertificate_user = \"cn\"\n", "give tls.client_ca"),
        (
            "[auth]\ncertificate_user = \"ou\"\n",
            "line 2: unknown variant `ou`",
        ),
        ("[auth.jwt]\n", "missing field `keys`"),
        #[cfg(feature = "jwt")]
        (
            "[auth.jwt]\nkeys = \"k\"\nleeway_s = 301\n",
            "auth.jwt.leeway_s: 301 is more than 300",
        ),
        ("[store]\n", "missing field `path`"),
        (
            "[store]\npath = \"s\"\ninterval_ms = 5\n",
            "store.interval_ms: only",
        ),
        (
            "[store]\npath = \"s\"\ndurability = \"never\"\n",
            "line 3: unknown variant `never`",
        ),
        ("\n\nlissen = []\n", "FILE: line 3: unknown field `lissen`"),
        (
            "[limits]\nmaximum_qos = 3\n",
            "limits.maximum_qos: 3 is not 0, 1 or 2",
        ),
        (
            "[tls]\nmax_record_size = 511\n",
            "tls.max_record_size: 511 is not 512 to 16384",
        ),
        (
            "[tls]\ngroups = [\"x448\"]\n",
            "tls.groups: key-exchange group cannot be `x448`: use one of x25519",
        ),
        ("[limits]\nmax_packet_size = 0\n", "FILE: line 2:"),
        (
            "[limits]\nhandshake_timeout_s = 4294967296\n",
            "line 2: invalid value: integer `4294967296`, expected u32",
        ),
        ("[limits]\noverflow = \"spill\"\n", "needs a store"),
        (
            "[limits]\nmailbox_messages = 0\n",
            "limits.mailbox_messages: 0, and a message has to wait for its reader: 1 at least",
        ),
        (
            "[[bridge]]\nname = \"a\"\naddress = [\"tcp://127.0.0.1\"]\n\
             queue = { messages = 0 }\ntopic = [{ pattern = \"a\" }]\n",
            "queue.messages: 0, and a message has to wait",
        ),
        (
            "[[bridge]]\nname = \"a\"\naddress = [\"tcp://127.0.0.1\"]\n\
             queue = { overflow = \"spill\", age_s = 1 }\ntopic = [{ pattern = \"a\" }]\n",
            "queue.overflow: \"spill\" needs a store",
        ),
        (
            "[[bridge]]\nname = \"a\"\naddress = [\"tls://a.example\"]\nrepeat = \"auto\"\n\
             topic = [{ pattern = \"a\" }]\n",
            "bridge \"a\": initial_rtt_ms and repeat are for addresses over quic://",
        ),
        (
            "[[bridge]]\nname = \"a\"\naddress = [\"quic://a.example\"]\ncongestion = \"vegas\"\n\
             topic = [{ pattern = \"a\" }]\n",
            "bridge \"a\": congestion: ",
        ),
        (
            "[[bridge]]\nname = \"a\"\naddress = [\"quic://a.example\"]\ninitial_rtt_ms = 0\n\
             topic = [{ pattern = \"a\" }]\n",
            "bridge \"a\": initial_rtt_ms: it is within",
        ),
        (
            "[[bridge]]\nname = \"a\"\naddress = [\"quic://a.example\"]\nclient_id = \"e\"\n\
             topic = [{ pattern = \"a\" }]\n\
             [[bridge]]\nname = \"b\"\naddress = [\"quic://b.example\"]\nclient_id = \"e\"\n\
             topic = [{ pattern = \"a\" }]\n",
            "bridge \"b\": another one tells its state under",
        ),
        (
            "[limits]\noverflow = \"drop\"\n",
            "line 2: unknown variant `drop`",
        ),
        ("[tls]\nkey = \"k\"\n", "a key without its certificate"),
        (
            "[tls]\nclient_crls = [\"crl\"]\n",
            "tls.client_crls: there is no client_ca",
        ),
        ("listen = [\"http://x\"]\n", "listen:"),
        (
            "\n[ws]\npath = \"/\"\n",
            "FILE: line 3: unknown field `path`",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(part), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_bridge_recovers_from_loss_as_it_is_told() {
    let settings = read(
        "[auth]\nallow_anonymous = true\n\
         [[bridge]]\nname = \"a\"\naddress = [\"quic://a.example\", \"tls://a.example\"]\n\
         congestion = \"bbr\"\ninitial_rtt_ms = 12.5\nrepeat = \"probe\"\n\
         notifications_local_only = false\ntopic = [{ pattern = \"a\" }]\n",
    );
    let bridge = &settings.unwrap().bridges[0];
    let (connect, quic) = (&bridge.connect, &bridge.connect.quic);
    assert_eq!(connect.congestion.unwrap().to_string(), "bbr");
    assert_eq!(quic.initial_rtt, Duration::from_micros(12_500));
    assert_eq!(quic.repeat.to_string(), "probe");
    assert_eq!(bridge.notifications, crate::BridgeNotifications::Both);
}
