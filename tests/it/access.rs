//! Log-ins and rules: which clients get in and what they may do, over each transport and in each version.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use mq_broker::{
    MemoryStore, Settings,
    auth::{
        Access, AccessFiles, Authenticator, BoxFuture, CertificateUser, FileAccess, LogIn,
        Principal, Refusal, TakeOverPolicy,
    },
};
use mq_client::{
    Client, ClientBuilder, ConnectOptions, Connector, EarlyData, Error, Outgoing, QoS, ReasonCode,
    Reconnect, TopicName, Version, Will, WillProperties,
};
use mq_testkit::{
    Scheme, TestBroker, UdpProxy, comes_and_goes, next, over_each_transport, refused,
};
use mq_transport::{Address, ClientAuth, ClientIdentity};

over_each_transport!(
    only_the_right_password_gets_in,
    a_client_without_a_user_gets_in_only_where_that_is_allowed,
    a_publish_that_is_not_allowed_reaches_nobody,
    a_subscription_is_refused_if_none_of_its_topics_may_be_received,
    a_partly_allowed_subscription_gets_only_allowed_topics,
    a_client_whose_will_may_not_be_published_is_refused,
    a_will_that_was_forbidden_meanwhile_is_not_published,
    wildcards_in_names_give_no_access_to_topics_of_others,
    a_certificate_is_a_user,
    too_many_failures_shut_an_address_out,
    a_session_is_its_users_own_over_restarts,
    where_any_user_may_take_over_the_other_users_session_ends,
    clients_without_a_user_share_their_sessions,
    a_waiting_message_is_not_delivered_once_it_is_forbidden,
    rules_change_under_connections,
    the_remembered_rule_of_the_last_topic_does_not_outlive_the_rules,
    scram_proves_both_sides,
    a_shared_subscription_skips_members_that_may_not_receive,
    each_client_may_read_its_own_responses_alone,
);

const VERSIONS: [Version; 3] = [Version::V3_1, Version::V3_1_1, Version::V5];
const EVERY_QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// Made by `mosquitto_passwd`, which is fast; cid's is the example of RFC 7677.
const PASSWORDS: &str = "\
ann:$7$101$FZZ0UNgSFP8t2lxC$HnZt7dEpxtgrXAUGYtFCa+ZgSH3DaGu9eqP+6sRF1GFeIOcND243Nblmv4oxdSdxNUG+InsvCCeZY658jWztvw==
bob:$7$101$Wx/Esn6xMMhdINXk$NB6o9eEmpbPGJ5KdpSLUTulxTMZjK+8DUkq4ltHhKGG1QXLM8ySLIjQnOdxR+mXVrTzR7D82sH199UEHcyBhcQ==
cid:$scram-sha-256$4096$W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=$wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=
";

fn password(user: &str) -> &'static str {
    match user {
        "bob" => "stapler",
        _ => "pencil",
    }
}

/// A broker with users and rules, and the folder that they are in.
struct Guarded {
    broker: TestBroker,
    folder: tempfile::TempDir,
}

impl Guarded {
    /// Starts a broker with these rules; no address is shut out.
    async fn start(rules: &str) -> Self {
        Self::start_with(rules, |_| {}).await
    }

    async fn start_with(rules: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("passwords"), PASSWORDS).unwrap();
        std::fs::write(folder.path().join("acl"), rules).unwrap();
        let files = Self::files(&folder);
        let broker = TestBroker::start_with(|settings| {
            settings.access = Access::Files(files);
            settings.failures_per_minute = None;
            change(settings);
        });
        Self {
            broker: broker.await,
            folder,
        }
    }

    /// Restarts the broker with the same files, and what `change` changes anew.
    async fn restart_with(self, change: impl Fn(&mut Settings)) -> Self {
        let Self { broker, folder } = self;
        let files = Self::files(&folder);
        let broker = broker.restart_with(|settings| {
            settings.access = Access::Files(files.clone());
            settings.failures_per_minute = None;
            change(settings);
        });
        Self {
            broker: broker.await,
            folder,
        }
    }

    fn files(folder: &tempfile::TempDir) -> AccessFiles {
        AccessFiles {
            password_file: Some(folder.path().join("passwords")),
            acl_file: Some(folder.path().join("acl")),
            ..AccessFiles::default()
        }
    }

    fn nobody(&self, scheme: Scheme, client_id: &str) -> ClientBuilder {
        let client = self.broker.client(scheme, client_id);
        client.reconnect(Reconnect::never())
    }

    fn user(&self, scheme: Scheme, user: &str) -> ClientBuilder {
        let client = self.nobody(scheme, user);
        client.credentials(user, password(user)).unwrap()
    }

    async fn client(&self, scheme: Scheme, user: &str) -> Client {
        self.user(scheme, user).build().await.unwrap()
    }

    fn rules(&self, rules: &str) {
        std::fs::write(self.folder.path().join("acl"), rules).unwrap();
    }

    fn reload(&self) -> Result<(), mq_broker::Error> {
        self.broker.broker().reload_access()
    }
}

fn will(topic: &str) -> Will {
    Will {
        topic: TopicName::new(topic).unwrap(),
        payload: "gone".into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: WillProperties::default(),
    }
}

async fn only_the_right_password_gets_in(scheme: Scheme) {
    let guarded = Guarded::start("topic x\n").await;
    for version in VERSIONS {
        for user in ["ann", "bob", "cid"] {
            let right = guarded.user(scheme, user).version(version);
            comes_and_goes(right).await;
            let wrong = guarded
                .user(scheme, user)
                .password("penci")
                .version(version);
            assert_eq!(refused(wrong).await, ReasonCode::BadUserNameOrPassword);
        }
        let unknown = guarded.user(scheme, "eve").version(version);
        assert_eq!(refused(unknown).await, ReasonCode::BadUserNameOrPassword);
        let name_alone = guarded.nobody(scheme, "c").user_name("ann").unwrap();
        let name_alone = name_alone.version(version);
        assert_eq!(refused(name_alone).await, ReasonCode::BadUserNameOrPassword);
    }
    let metrics = guarded.broker.broker().metrics();
    assert_eq!(metrics.log_ins_refused.get(), 5 * VERSIONS.len());
    guarded.broker.shutdown().await;
}

async fn a_client_without_a_user_gets_in_only_where_that_is_allowed(scheme: Scheme) {
    let rules = "topic read news\nuser ann\ntopic secret\n";
    let guarded = Guarded::start(rules).await;
    for version in VERSIONS {
        let nobody = guarded.nobody(scheme, "c").version(version);
        assert_eq!(refused(nobody).await, ReasonCode::NotAuthorized);
    }
    let guarded = Guarded::start_with(rules, |settings| {
        settings.access.files_mut().unwrap().allow_anonymous = true;
    })
    .await;
    for version in VERSIONS {
        let nobody = guarded.nobody(scheme, "c").version(version);
        let nobody = nobody.build().await.unwrap();
        nobody.subscribe("news", QoS::AtLeastOnce).await.unwrap();
        nobody
            .subscribe("secret", QoS::AtLeastOnce)
            .await
            .unwrap_err();
        nobody.disconnect().await.unwrap();
        let wrong = guarded.user(scheme, "ann").password("x").version(version);
        assert_eq!(refused(wrong).await, ReasonCode::BadUserNameOrPassword);
    }
}

async fn a_publish_that_is_not_allowed_reaches_nobody(scheme: Scheme) {
    let guarded =
        Guarded::start("user ann\ntopic write may/#\ntopic read not/#\nuser bob\ntopic #\n").await;
    let bob = guarded.client(scheme, "bob").await;
    let mut messages = bob.subscribe("#", QoS::ExactlyOnce).await.unwrap();
    for version in VERSIONS {
        let ann = guarded.user(scheme, "ann").version(version);
        let ann = ann.build().await.unwrap();
        for qos in EVERY_QOS {
            let sent = ann.publish("not/x", "no", qos).await;
            if version == Version::V5 && qos > QoS::AtMostOnce {
                let reason = match sent {
                    Err(Error::PublishRefused { reason }) => reason,
                    other => panic!("{other:?}"),
                };
                assert_eq!(reason, ReasonCode::NotAuthorized);
            } else {
                sent.unwrap();
            }
            ann.publish("may/x", "yes", qos).await.unwrap();
            assert_eq!(
                &*next(&mut messages).await.topic,
                "may/x",
                "{version} {qos:?}"
            );
        }
        ann.disconnect().await.unwrap();
    }
    let metrics = guarded.broker.broker().metrics();
    assert_eq!(metrics.not_authorized.get(), 9);
    guarded.broker.shutdown().await;
}

async fn a_subscription_is_refused_if_none_of_its_topics_may_be_received(scheme: Scheme) {
    let guarded =
        Guarded::start("user ann\ntopic read may/#\ntopic deny may/not/#\ntopic write w\n").await;
    for (version, code) in [
        (Version::V3_1_1, ReasonCode::UnspecifiedError),
        (Version::V5, ReasonCode::NotAuthorized),
    ] {
        let ann = guarded.user(scheme, "ann").version(version);
        let ann = ann.build().await.unwrap();
        for filter in ["other/#", "may/not/x", "w", "$share/g/other"] {
            match ann.subscribe(filter, QoS::AtLeastOnce).await {
                Err(Error::SubscribeRefused { reason }) => assert_eq!(reason, code, "{filter}"),
                other => panic!("{filter}: {other:?}"),
            }
        }
        for filter in ["may/x", "may/#", "#", "+/x", "$share/g/may/x"] {
            ann.subscribe(filter, QoS::AtLeastOnce).await.unwrap();
        }
        ann.disconnect().await.unwrap();
    }
}

async fn a_partly_allowed_subscription_gets_only_allowed_topics(scheme: Scheme) {
    let guarded =
        Guarded::start("user ann\ntopic read a/#\ntopic deny a/secret\nuser bob\ntopic #\n").await;
    let bob = guarded.client(scheme, "bob").await;
    for topic in ["b/x", "a/secret", "a/x"] {
        let retained = Outgoing::to(topic, "kept").unwrap().retain(true);
        let retained = retained.qos(QoS::AtLeastOnce);
        let mut receipt = bob.send(retained).await.unwrap();
        receipt.acknowledged().await.unwrap();
    }
    for version in VERSIONS {
        let ann = guarded.user(scheme, "ann").version(version);
        let ann = ann.build().await.unwrap();
        let mut messages = ann.subscribe("+/+", QoS::AtLeastOnce).await.unwrap();
        let kept = next(&mut messages).await;
        assert_eq!((&*kept.topic, kept.retain), ("a/x", true));
        for _ in 0..2 {
            // Twice, as the second answer is from memory.
            for topic in ["b/x", "b/x", "a/secret", "a/secret", "a/x", "a/x"] {
                bob.publish(topic, "new", QoS::AtLeastOnce).await.unwrap();
            }
            for _ in 0..2 {
                let new = next(&mut messages).await;
                assert_eq!((&*new.topic, &*new.payload), ("a/x", &b"new"[..]));
            }
        }
        ann.disconnect().await.unwrap();
    }
}

async fn a_client_whose_will_may_not_be_published_is_refused(scheme: Scheme) {
    let guarded = Guarded::start("user ann\ntopic write will/ann\n").await;
    for version in VERSIONS {
        let with = |topic| {
            guarded
                .user(scheme, "ann")
                .version(version)
                .will(will(topic))
        };
        assert_eq!(refused(with("will/bob")).await, ReasonCode::NotAuthorized);
        let let_in = with("will/ann").build().await.unwrap();
        let_in.disconnect().await.unwrap();
    }
}

async fn a_will_that_was_forbidden_meanwhile_is_not_published(scheme: Scheme) {
    let bobs = "user bob\ntopic #\n";
    let guarded = Guarded::start(&format!("user ann\ntopic write will\n{bobs}")).await;
    let bob = guarded.client(scheme, "bob").await;
    let mut wills = bob.subscribe("#", QoS::AtLeastOnce).await.unwrap();
    for may in [true, false] {
        let ann = guarded.user(scheme, "ann").will(will("will"));
        let ann = ann.build().await.unwrap();
        if !may {
            guarded.rules(bobs);
            guarded.reload().unwrap();
        }
        // Its own second connection cuts the first.
        let _again = guarded.client(scheme, "ann").await;
        ann.closed().await;
        bob.publish("fence", "", QoS::AtLeastOnce).await.unwrap();
        if may {
            assert_eq!(&*next(&mut wills).await.topic, "will");
        }
        assert_eq!(&*next(&mut wills).await.topic, "fence");
    }
}

async fn wildcards_in_names_give_no_access_to_topics_of_others(scheme: Scheme) {
    let rules = "user ann\ntopic read open\npattern readwrite dev/%c/#\npattern read home/%u\n";
    let guarded = Guarded::start_with(rules, |settings| {
        settings.access.files_mut().unwrap().allow_anonymous = true;
    })
    .await;
    let ann = guarded.client(scheme, "ann").await;
    let mut own = ann.subscribe("dev/ann/#", QoS::AtLeastOnce).await.unwrap();
    ann.subscribe("home/ann", QoS::AtLeastOnce).await.unwrap();
    for version in VERSIONS {
        for odd in ["+", "#", "ann/x", "ann/#", "+/x", "dev", "ann "] {
            let eve = guarded.nobody(scheme, odd).version(version);
            let eve = eve.build().await.unwrap();
            for filter in ["dev/ann/#", "dev/ann/x", "home/ann"] {
                let asked = eve.subscribe(filter, QoS::AtLeastOnce).await;
                assert!(asked.is_err(), "{odd} {filter}");
            }
            let sent = eve.publish("dev/ann/x", odd, QoS::AtLeastOnce).await;
            assert_eq!(sent.is_err(), version == Version::V5, "{odd}");
            eve.disconnect().await.unwrap();
        }
    }
    ann.publish("dev/ann/x", "own", QoS::AtLeastOnce)
        .await
        .unwrap();
    assert_eq!(next(&mut own).await.payload, "own");
}

/// Makes an authority, and a certificate of it for a device.
fn make_certificates(folder: &Path, name: &str) -> (PathBuf, ClientIdentity) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = folder.join("ca.pem");
    std::fs::write(&authority, params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);

    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let identity = ClientIdentity {
        certificates: folder.join("client.pem"),
        key: folder.join("client.key"),
    };
    let certificate = params.signed_by(&key, &issuer).unwrap();
    std::fs::write(&identity.certificates, certificate.pem()).unwrap();
    std::fs::write(&identity.key, key.serialize_pem()).unwrap();
    (authority, identity)
}

async fn a_certificate_is_a_user(scheme: Scheme) {
    if !scheme.is_encrypted() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (authority, identity) = make_certificates(folder.path(), "device-7");
    let rules = "pattern dev/%u/#\nuser ann\ntopic #\n";
    let guarded = Guarded::start_with(rules, |settings| {
        settings.listen.client_auth = ClientAuth::Optional(authority);
        let files = settings.access.files_mut().unwrap();
        files.certificate_user = Some(CertificateUser::Cn);
    })
    .await;
    let options = ConnectOptions {
        identity: Some(identity),
        early_data: true,
        ..guarded.broker.connect_options()
    };
    // Full, resumed, with early data: the certificate is known each time.
    let connector = Connector::new(options).unwrap();
    for version in VERSIONS {
        let device = |id| {
            let client = guarded.nobody(scheme, id).connector(connector.clone());
            client.version(version)
        };
        let client = device("c").build().await.unwrap();
        let mut own = client.subscribe("dev/device-7/#", QoS::AtLeastOnce).await;
        let own = own.as_mut().unwrap();
        client
            .publish("dev/device-7/x", "own", QoS::AtLeastOnce)
            .await
            .unwrap();
        assert_eq!(next(own).await.payload, "own");
        assert!(client.subscribe("dev/c/#", QoS::AtLeastOnce).await.is_err());
        client.disconnect().await.unwrap();
        let same = device("c").user_name("device-7").unwrap();
        comes_and_goes(same).await;
        let other = device("c").credentials("ann", "pencil").unwrap();
        assert_eq!(refused(other).await, ReasonCode::BadUserNameOrPassword);
    }
    // Without a certificate there are passwords.
    guarded.client(scheme, "ann").await;
    let nobody = guarded.nobody(scheme, "c");
    assert_eq!(refused(nobody).await, ReasonCode::NotAuthorized);
}

async fn too_many_failures_shut_an_address_out(scheme: Scheme) {
    for (version, code) in [
        (Version::V3_1, ReasonCode::ServerUnavailable),
        (Version::V3_1_1, ReasonCode::ServerUnavailable),
        (Version::V5, ReasonCode::ConnectionRateExceeded),
    ] {
        let guarded = Guarded::start_with("user ann\ntopic x\n", |settings| {
            settings.failures_per_minute = NonZeroU32::new(3);
        })
        .await;
        let ann = || guarded.user(scheme, "ann").version(version);
        let inside = ann().build().await.unwrap();
        for _ in 0..3 {
            let wrong = ann().password("x");
            assert_eq!(refused(wrong).await, ReasonCode::BadUserNameOrPassword);
            // A log-in that succeeds does not count.
        }
        // Nor does the right password help now, and who is inside stays.
        for _ in 0..3 {
            assert_eq!(refused(ann()).await, code);
        }
        inside.publish("x", "", QoS::AtLeastOnce).await.unwrap();
        let metrics = guarded.broker.broker().metrics();
        assert_eq!(metrics.log_ins_refused.get(), 6);
    }
}

/// Both users may do everything.
const BOTH: &str = "user ann\ntopic #\nuser bob\ntopic #\n";

fn is_present(client: &Client) -> bool {
    client.last_connected().unwrap().session_present
}

/// Builds a client whose session outlives it.
fn kept(client: ClientBuilder) -> ClientBuilder {
    client
        .clean_start(false)
        .session_expiry(Duration::from_mins(5))
}

async fn a_session_is_its_users_own_over_restarts(scheme: Scheme) {
    let store = Arc::new(MemoryStore::new());
    let with_store = |settings: &mut Settings| settings.store = Some(store.clone().into());
    let mut guarded = Guarded::start_with(BOTH, with_store).await;
    for restarted in [false, true] {
        let same = |user| guarded.user(scheme, user).client_id("same").unwrap();
        if !restarted {
            let ann = kept(same("ann")).build().await.unwrap();
            let _kept = ann.subscribe("t", QoS::AtLeastOnce).await.unwrap();
            ann.disconnect().await.unwrap();
        }
        let publisher = guarded.client(scheme, "bob").await;
        let text = format!("{restarted}");
        publisher
            .publish("t", text, QoS::AtLeastOnce)
            .await
            .unwrap();
        for version in VERSIONS {
            for clean in [true, false] {
                let bob = same("bob").version(version).clean_start(clean);
                let reason = refused(bob).await;
                assert_eq!(reason, ReasonCode::ClientIdentifierNotValid, "{version}");
            }
        }
        // The session is complete, and an open connection is not ended either.
        let mut builder = kept(same("ann"));
        let mut messages = builder.subscribe_early("t", QoS::AtLeastOnce).unwrap();
        let ann = builder.build().await.unwrap();
        assert!(is_present(&ann));
        assert_eq!(next(&mut messages).await.payload, restarted.to_string());
        refused(same("bob")).await;
        ann.publish("t", "still", QoS::AtLeastOnce).await.unwrap();
        assert_eq!(next(&mut messages).await.payload, "still");
        ann.disconnect().await.unwrap();
        comes_and_goes(kept(same("ann"))).await;
        drop(publisher);
        guarded = guarded.restart_with(with_store).await;
    }
}

async fn where_any_user_may_take_over_the_other_users_session_ends(scheme: Scheme) {
    let any_user = |settings: &mut Settings| settings.take_over = TakeOverPolicy::AnyUser;
    let guarded = Guarded::start_with(BOTH, any_user).await;
    let same = |user| kept(guarded.user(scheme, user).client_id("same").unwrap());
    let ann = same("ann").build().await.unwrap();
    assert!(!is_present(&ann));
    ann.subscribe("t", QoS::AtLeastOnce).await.unwrap();
    ann.disconnect().await.unwrap();
    let ann = same("ann").build().await.unwrap();
    assert!(is_present(&ann));
    let bob = same("bob").build().await.unwrap();
    assert!(!is_present(&bob));
    bob.disconnect().await.unwrap();
    let ann = same("ann").build().await.unwrap();
    assert!(!is_present(&ann));
}

async fn clients_without_a_user_share_their_sessions(scheme: Scheme) {
    let store = Arc::new(MemoryStore::new());
    let with_store = |settings: &mut Settings| {
        settings.store = Some(store.clone().into());
        settings.access.files_mut().unwrap().allow_anonymous = true;
    };
    let mut guarded = Guarded::start_with(BOTH, with_store).await;
    comes_and_goes(kept(guarded.nobody(scheme, "same"))).await;
    for _ in 0..2 {
        let nobody = kept(guarded.nobody(scheme, "same")).build().await.unwrap();
        assert!(is_present(&nobody));
        let ann = guarded.user(scheme, "ann").client_id("same").unwrap();
        let reason = refused(kept(ann)).await;
        assert_eq!(reason, ReasonCode::ClientIdentifierNotValid);
        nobody.disconnect().await.unwrap();
        guarded = guarded.restart_with(with_store).await;
    }
    // Without users, all clients are the same user.
    let open = guarded
        .broker
        .restart_with(|settings| with_store_alone(settings, &store));
    let open = open.await;
    let client = kept(open.client(scheme, "same")).build().await.unwrap();
    assert!(is_present(&client));
}

fn with_store_alone(settings: &mut Settings, store: &Arc<MemoryStore>) {
    settings.store = Some(store.clone().into());
}

async fn a_waiting_message_is_not_delivered_once_it_is_forbidden(scheme: Scheme) {
    let rules = |anns: &str| format!("user ann\ntopic read {anns}/#\nuser bob\ntopic #\n");
    let guarded = Guarded::start(&rules("a")).await;
    let kept = |clean| {
        let client = guarded.user(scheme, "ann").clean_start(clean);
        client.session_expiry(Duration::from_mins(5))
    };
    let ann = kept(true).build().await.unwrap();
    let _both = ann.subscribe("+/x", QoS::AtLeastOnce).await.unwrap();
    ann.disconnect().await.unwrap();
    let bob = guarded.client(scheme, "bob").await;
    for topic in ["a/x", "b/x"] {
        bob.publish(topic, "1", QoS::AtLeastOnce).await.unwrap();
    }
    guarded.rules(&rules("b"));
    guarded.reload().unwrap();
    for topic in ["a/x", "b/x"] {
        bob.publish(topic, "2", QoS::AtLeastOnce).await.unwrap();
    }
    let mut builder = kept(false);
    let mut messages = builder.subscribe_early("+/x", QoS::AtLeastOnce).unwrap();
    let _ann = builder.build().await.unwrap();
    let first = next(&mut messages).await;
    assert_eq!((&*first.topic, &*first.payload), ("b/x", &b"2"[..]));
}

async fn rules_change_under_connections(scheme: Scheme) {
    let rules = |open: &str| {
        format!(
            "user ann\ntopic write a/#\ntopic write b/#\ntopic write only-{open}\n\
             user bob\ntopic read {open}/#\n"
        )
    };
    let guarded = Guarded::start(&rules("a")).await;
    let ann = guarded.client(scheme, "ann").await;
    let bob = guarded.client(scheme, "bob").await;
    let mut messages = bob.subscribe("+/x", QoS::AtLeastOnce).await.unwrap();
    let mut events = bob.events();
    for round in 0..100 {
        let (open, shut) = if round % 2 == 0 {
            ("b", "a")
        } else {
            ("a", "b")
        };
        if round % 10 == 5 {
            guarded.rules("topic read a/#\ntopc read #\n");
            let error = guarded.reload().unwrap_err().to_string();
            assert!(error.contains("acl: line 2:"), "{error}");
            assert_eq!(error.lines().count(), 1);
        }
        guarded.rules(&rules(open));
        guarded.reload().unwrap();
        let payload = round.to_string();
        for topic in [shut, open] {
            let topic = format!("{topic}/x");
            let sent = ann.publish(topic, payload.clone(), QoS::AtLeastOnce);
            sent.await.unwrap();
        }
        let message = next(&mut messages).await;
        assert_eq!(*message.topic, format!("{open}/x"));
        assert_eq!(message.payload, payload);
        for (name, may) in [(open, true), (shut, false)] {
            let topic = format!("only-{name}");
            let sent = ann.publish(topic, "", QoS::AtLeastOnce).await;
            assert_eq!(sent.is_ok(), may, "{round}: {sent:?}");
        }
    }
    let metrics = guarded.broker.broker().metrics();
    assert_eq!(metrics.connections.get(), 2);
    drop((ann, guarded));
    let event = events.recv().await;
    let is_end = matches!(event, None | Some(mq_client::Event::Disconnected { .. }));
    assert!(is_end, "{event:?} before the end");
}

async fn the_remembered_rule_of_the_last_topic_does_not_outlive_the_rules(scheme: Scheme) {
    let rules = |ann: &str, bob: &str| {
        format!("user ann\ntopic fence\n{ann}\nuser bob\ntopic fence\n{bob}\n")
    };
    let (write, read) = ("topic write t", "topic read t");
    let guarded = Guarded::start(&rules(write, read)).await;
    let ann = guarded.client(scheme, "ann").await;
    let bob = guarded.client(scheme, "bob").await;
    let mut messages = bob.subscribe("+", QoS::AtLeastOnce).await.unwrap();
    // Nothing else is published between one kind of rules and the next.
    let cases = [
        (write, read),
        (write, ""),
        (write, read),
        ("", read),
        (write, read),
    ];
    for (writes, reads) in cases {
        guarded.rules(&rules(writes, reads));
        guarded.reload().unwrap();
        for payload in ["first", "second"] {
            let sent = ann.publish("t", payload, QoS::AtLeastOnce).await;
            assert_eq!(sent.is_ok(), !writes.is_empty(), "{sent:?}");
            if !writes.is_empty() && !reads.is_empty() {
                assert_eq!(next(&mut messages).await.payload, payload);
            }
        }
    }
    ann.publish("fence", "", QoS::AtLeastOnce).await.unwrap();
    assert_eq!(&*next(&mut messages).await.topic, "fence");
}

async fn scram_proves_both_sides(scheme: Scheme) {
    let guarded = Guarded::start("user cid\ntopic t\n").await;
    let scram = |user: &str, password: &str| {
        let client = guarded.nobody(scheme, "c");
        client.scram(user, password).unwrap()
    };
    let mut builder = scram("cid", "pencil");
    // They wait for the end of the exchange.
    let mut messages = builder.subscribe_early("t", QoS::AtLeastOnce).unwrap();
    builder
        .publish_early(Outgoing::to("t", "early").unwrap().qos(QoS::AtLeastOnce))
        .unwrap();
    let cid = builder.build().await.unwrap();
    assert_eq!(next(&mut messages).await.payload, "early");
    cid.disconnect().await.unwrap();
    for (user, password) in [("cid", "pencils"), ("ann", "pencil"), ("nobody", "pencil")] {
        let reason = refused(scram(user, password)).await;
        assert_eq!(reason, ReasonCode::BadUserNameOrPassword, "{user}");
    }
    // The client does not trust a server that accepts any password.
    let broker = TestBroker::start_with(|settings| {
        settings.access = Access::authenticated(Impostor);
    })
    .await;
    let client = broker.client(scheme, "c").scram("cid", "pencil").unwrap();
    let error = client.build().await.unwrap_err();
    assert!(matches!(error, Error::Auth(_)), "{error:?}");
}

/// Lets every client in.
#[derive(Debug)]
struct Impostor;

impl Authenticator for Impostor {
    fn authenticate<'a>(&'a self, log_in: &'a LogIn) -> BoxFuture<'a, Result<Principal, Refusal>> {
        Box::pin(async { Ok(Principal::new(None, &log_in.client_id)) })
    }

    fn exchange(&self, _: &str, log_in: &LogIn) -> Option<Box<dyn mq_broker::auth::Exchange>> {
        struct Yes(Principal);

        impl mq_broker::auth::Exchange for Yes {
            fn step(
                &mut self,
                _: Option<bytes::Bytes>,
            ) -> BoxFuture<'_, Result<mq_broker::auth::Step, Refusal>> {
                let done = mq_broker::auth::Step::Done {
                    principal: self.0.clone(),
                    data: None,
                };
                Box::pin(std::future::ready(Ok(done)))
            }
        }

        let principal = Principal::new(None, &log_in.client_id);
        Some(Box::new(Yes(principal)))
    }
}

async fn a_shared_subscription_skips_members_that_may_not_receive(scheme: Scheme) {
    let guarded =
        Guarded::start("user ann\ntopic read a/#\nuser cid\ntopic read b/#\nuser bob\ntopic #\n")
            .await;
    let ann = guarded.client(scheme, "ann").await;
    let cid = guarded.client(scheme, "cid").await;
    let filter = "$share/g/+/x";
    let mut anns = ann.subscribe(filter, QoS::AtLeastOnce).await.unwrap();
    let mut cids = cid.subscribe(filter, QoS::AtLeastOnce).await.unwrap();
    let bob = guarded.client(scheme, "bob").await;
    for round in 0..10 {
        for topic in ["a/x", "b/x"] {
            let payload = round.to_string();
            bob.publish(topic, payload, QoS::AtLeastOnce).await.unwrap();
        }
        for (messages, topic) in [(&mut anns, "a/x"), (&mut cids, "b/x")] {
            let message = next(messages).await;
            assert_eq!(*message.topic, *topic);
            assert_eq!(message.payload, round.to_string());
        }
    }
}

/// Asks [`FileAccess`], and lets log-ins wait for their handshake.
#[derive(Debug)]
struct Patient(FileAccess);

impl Authenticator for Patient {
    fn authenticate<'a>(&'a self, log_in: &'a LogIn) -> BoxFuture<'a, Result<Principal, Refusal>> {
        assert!(!log_in.early, "it was to wait");
        self.0.authenticate(log_in)
    }

    fn waits_for_handshake(&self, _: &LogIn) -> bool {
        true
    }
}

/// One-way delay, large against what a busy machine adds.
const DELAY: Duration = Duration::from_millis(250);

/// Starts a delaying proxy in front of the broker, and its URL: early data arrives long before the end of its
/// handshake.
async fn delayed(guarded: &Guarded) -> (UdpProxy, String) {
    let at = guarded.broker.address(Scheme::Quic);
    let target = format!("{}:{}", at.host, at.port).parse().unwrap();
    let proxy = UdpProxy::start(target, DELAY).await.unwrap();
    let front = proxy.address();
    let url = Address::new(Scheme::Quic, front.ip().to_string(), front.port()).to_string();
    (proxy, url)
}

/// Connects twice through a delaying proxy; returns the outcome of the second connection's early data, and
/// the time until its CONNACK.
async fn resume(guarded: &Guarded) -> (EarlyData, Duration) {
    let (_proxy, url) = delayed(guarded).await;
    let connector = guarded.broker.connector(true);
    let ann = || {
        let client = Client::builder(&url).unwrap().connector(connector.clone());
        client.credentials("ann", "pencil").unwrap()
    };
    let first = ann().build().await.unwrap();
    // One more round trip brings the tickets.
    first.publish("x", "", QoS::AtLeastOnce).await.unwrap();
    first.disconnect().await.unwrap();
    let second = ann().build().await.unwrap();
    let times = second.connect_times().unwrap();
    let early_data = second.stats().await.unwrap().early_data;
    (
        early_data,
        times.connack_at.duration_since(times.dialled_at),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_in_early_data_is_answered_before_the_handshake_ends() {
    let guarded = Guarded::start("user ann\ntopic #\n").await;
    let (early_data, connack) = resume(&guarded).await;
    assert_eq!(early_data, EarlyData::Accepted);
    assert!(connack >= 2 * DELAY && connack < 4 * DELAY, "{connack:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_in_waits_for_its_handshake_where_the_authenticator_says_so() {
    let guarded = Guarded::start_with("user ann\ntopic #\n", |settings| {
        let files = settings.access.files().unwrap();
        let files = || FileAccess::open(files.clone()).unwrap();
        settings.access = Access::Custom {
            authenticator: Some(Arc::new(Patient(files()))),
            authorizer: Some(Arc::new(files())),
        };
    })
    .await;
    let (early_data, connack) = resume(&guarded).await;
    assert_eq!(early_data, EarlyData::Accepted);
    assert!(connack >= 4 * DELAY, "{connack:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_in_early_data_make_the_others_wait_and_shut_nobody_out() {
    let guarded = Guarded::start_with("user ann\ntopic #\n", |settings| {
        settings.failures_per_minute = NonZeroU32::new(2);
    })
    .await;
    // As an attacker would from the addresses of others.
    let (_proxy, url) = delayed(&guarded).await;
    let connector = guarded.broker.connector(true);
    let client = |password: &'static str| {
        let client = Client::builder(&url).unwrap().connector(connector.clone());
        let client = client.reconnect(Reconnect::never());
        client.credentials("ann", password).unwrap()
    };
    for _ in 0..2 {
        let first = client("pencil").build().await.unwrap();
        first.publish("x", "", QoS::AtLeastOnce).await.unwrap();
        first.disconnect().await.unwrap();
        let reason = refused(client("wrong")).await;
        assert_eq!(reason, ReasonCode::BadUserNameOrPassword);
    }
    let (early_data, connack) = resume(&guarded).await;
    assert_eq!(early_data, EarlyData::Accepted);
    assert!(connack >= 4 * DELAY, "{connack:?}");
}

/// Checks the rules for responses of docs/guide/access.md.
async fn each_client_may_read_its_own_responses_alone(scheme: Scheme) {
    let rules = "pattern read mq/responses/%c\npattern write square\n\
        user bob\ntopic read square\ntopic write mq/responses/#\n";
    let guarded = Guarded::start(rules).await;
    let (ann, bob) = (
        guarded.client(scheme, "ann").await,
        guarded.client(scheme, "bob").await,
    );
    let mut questions = bob.subscribe("square", QoS::AtLeastOnce).await.unwrap();
    let answering = tokio::spawn({
        let bob = bob.clone();
        async move {
            while let Some(question) = questions.recv().await {
                bob.respond(&question, "144").await.unwrap();
            }
        }
    });
    let answer = ann.request("square", "12").await.unwrap();
    assert_eq!(answer.text().unwrap(), "144");
    let others = bob.subscribe("mq/responses/ann", QoS::AtLeastOnce).await;
    assert!(matches!(
        others,
        Err(Error::SubscribeRefused {
            reason: ReasonCode::NotAuthorized
        })
    ));
    ann.disconnect().await.unwrap();

    // Without the first rule no request is answered, and the requester gets an error.
    guarded.rules("pattern write square\nuser bob\ntopic read square\n");
    guarded.reload().unwrap();
    let ann = guarded.client(scheme, "ann").await;
    let error = ann.request("square", "12").await.unwrap_err();
    assert!(matches!(error, Error::SubscribeRefused { .. }), "{error:?}");
    bob.disconnect().await.unwrap();
    answering.await.unwrap();
}
