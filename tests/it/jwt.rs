//! Tokens as log-ins, over each transport and in each version.
//!
//! The tests make tokens from keys and base64url alone, so that the broker is not tested by the library
//! with which it checks tokens.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use mq_broker::auth::{Access, AccessFiles, FileAccess, JwtSettings};
use mq_client::{
    Client, ClientBuilder, Error, Outgoing, QoS, ReasonCode, Reconnect, TopicName, Version, Will,
    WillProperties,
};
use mq_proto::CloseReason;
use mq_testkit::{Scheme, TestBroker, comes_and_goes, next, over_each_transport, refused};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData as _,
    SigningKey as _,
};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::time::timeout;

over_each_transport!(
    a_token_of_each_algorithm_gets_in,
    a_token_with_any_fault_is_refused,
    passwords_and_tokens_get_in_side_by_side,
    keys_change_under_connections,
    the_rules_of_a_token_are_its_own,
    another_token_of_the_same_user_brings_other_rules,
    a_connection_ends_with_its_token,
);

const VERSIONS: [Version; 3] = [Version::V3_1, Version::V3_1_1, Version::V5];

const ISSUER: &str = "https://id.example";
const AUDIENCE: &str = "mqtt";

/// Made by `mosquitto_passwd`: ann's is `pencil`.
const PASSWORDS: &str = "ann:$7$101$FZZ0UNgSFP8t2lxC$HnZt7dEpxtgrXAUGYtFCa+ZgSH3DaGu9eqP+6sRF1GFeIOcND243Nblmv4oxdSdxNUG+InsvCCeZY658jWztvw==\n";

/// Makes tokens by one key.
struct Issuer {
    key: KeyPair,
    algorithm: &'static str,
    id: &'static str,
}

/// RSA keys take long to make.
static RSA: LazyLock<Issuer> = LazyLock::new(|| Issuer::new("RS256", "rsa"));
static EC: LazyLock<Issuer> = LazyLock::new(|| Issuer::new("ES256", "ec"));
static ED: LazyLock<Issuer> = LazyLock::new(|| Issuer::new("EdDSA", "ed"));

impl Issuer {
    fn new(algorithm: &'static str, id: &'static str) -> Self {
        let kind = match algorithm {
            "RS256" => &PKCS_RSA_SHA256,
            "ES256" => &PKCS_ECDSA_P256_SHA256,
            _ => &PKCS_ED25519,
        };
        Self {
            key: KeyPair::generate_for(kind).unwrap(),
            algorithm,
            id,
        }
    }

    /// Returns the public key for a JWK Set.
    fn jwk(&self) -> Value {
        let public = self.key.der_bytes();
        match self.algorithm {
            "RS256" => {
                let [n, e] = two_integers(public).map(encode);
                json!({"kty": "RSA", "kid": self.id, "use": "sig", "n": n, "e": e})
            }
            "ES256" => {
                // 4 says that the point is not compressed.
                let (x, y) = public[1..].split_at(32);
                json!({"kty": "EC", "kid": self.id, "crv": "P-256", "x": encode(x), "y": encode(y)})
            }
            _ => json!({"kty": "OKP", "kid": self.id, "crv": "Ed25519", "x": encode(public)}),
        }
    }

    fn sign(&self, signed: &str) -> String {
        let signature = self.key.sign(signed.as_bytes()).unwrap();
        let signature = match self.algorithm {
            // Two numbers of 32 bytes each (RFC 7518 §3.4).
            "ES256" => {
                let mut fixed = Vec::new();
                for number in two_integers(&signature) {
                    fixed.extend(std::iter::repeat_n(0, 32 - number.len()));
                    fixed.extend(number);
                }
                fixed
            }
            _ => signature,
        };
        format!("{signed}.{}", encode(signature))
    }

    fn token(&self, claims: &Value) -> String {
        self.token_under(&json!({"alg": self.algorithm, "kid": self.id}), claims)
    }

    fn token_under(&self, header: &Value, claims: &Value) -> String {
        self.sign(&unsigned(header, claims))
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn unsigned(header: &Value, claims: &Value) -> String {
    let (header, claims) = (header.to_string(), claims.to_string());
    format!("{}.{}", encode(header), encode(claims))
}

/// Reads the two integers of a DER sequence, without zeros in front: of an RSA public key, or an ECDSA signature.
fn two_integers(der: &[u8]) -> [&[u8]; 2] {
    /// Reads a value and the rest behind it.
    fn value(der: &[u8]) -> (&[u8], &[u8]) {
        let long = usize::from(der[1] & 0x7f);
        let (length, at) = if der[1] < 0x80 {
            (long, 2)
        } else {
            let bytes = der[2..2 + long].iter();
            let length = bytes.fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, 2 + long)
        };
        der[at..].split_at(length)
    }

    let (sequence, _) = value(der);
    let (first, rest) = value(sequence);
    let (second, _) = value(rest);
    [first, second].map(|number| {
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        &number[zeros..]
    })
}

/// Seconds since 1970, and so many.
fn from_now(seconds: f64) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs_f64() + seconds
}

/// Claims that let a client in for one minute.
fn claims(user: &str) -> Value {
    json!({"sub": user, "iss": ISSUER, "aud": AUDIENCE, "exp": from_now(60.0)})
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

/// A broker that takes tokens.
struct Guarded {
    broker: TestBroker,
    folder: tempfile::TempDir,
}

impl Guarded {
    async fn start(keys: &[&Issuer]) -> Self {
        Self::start_with(keys, |_| {}).await
    }

    async fn start_with(keys: &[&Issuer], change: impl FnOnce(&mut AccessFiles)) -> Self {
        Self::start_by(keys, change, None).await
    }

    /// Starts a broker; with a clock of its own nothing is read again.
    async fn start_by(
        keys: &[&Issuer],
        change: impl FnOnce(&mut AccessFiles),
        clock: Option<Box<dyn Fn() -> SystemTime + Send + Sync>>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("passwords"), PASSWORDS).unwrap();
        let mut jwt = JwtSettings::new(path("jwks.json"));
        jwt.issuer = Some(ISSUER.to_owned());
        jwt.audience = Some(AUDIENCE.to_owned());
        let mut files = AccessFiles {
            password_file: Some(path("passwords")),
            jwt: Some(jwt),
            ..AccessFiles::default()
        };
        change(&mut files);
        write_keys(&folder, keys);
        let broker = TestBroker::start_with(|settings| {
            settings.failures_per_minute = None;
            let Some(clock) = clock else {
                settings.access = Access::Files(files);
                return;
            };
            let access = Arc::new(FileAccess::open(files).unwrap().with_clock(clock));
            settings.access = Access::custom(access);
        });
        Self {
            broker: broker.await,
            folder,
        }
    }

    /// Makes a client with a token and an empty user name, as there is no password without a name before 5.0.
    fn bearer(&self, scheme: Scheme, token: String) -> ClientBuilder {
        let client = self.broker.client(scheme, "c");
        let client = client.reconnect(Reconnect::never());
        client.credentials("", token).unwrap()
    }

    async fn client(&self, scheme: Scheme, claims: &Value) -> Client {
        let client = self.bearer(scheme, ED.token(claims));
        let id = claims["sub"].as_str().unwrap();
        client.client_id(id).unwrap().build().await.unwrap()
    }

    fn reload(&self) -> Result<(), mq_broker::Error> {
        self.broker.broker().reload_access()
    }
}

fn write_keys(folder: &tempfile::TempDir, keys: &[&Issuer]) {
    let keys: Vec<_> = keys.iter().map(|key| key.jwk()).collect();
    let set = json!({"keys": keys}).to_string();
    std::fs::write(folder.path().join("jwks.json"), set).unwrap();
}

async fn a_token_of_each_algorithm_gets_in(scheme: Scheme) {
    let guarded = Guarded::start(&[&RSA, &EC, &ED]).await;
    for issuer in [&RSA, &EC, &ED] {
        for version in VERSIONS {
            let with = |name: &str| {
                let client = guarded.bearer(scheme, issuer.token(&claims("ann")));
                client.version(version).user_name(name).unwrap()
            };
            for right in ["", "ann"] {
                let right = with(right).build().await.unwrap();
                right.disconnect().await.unwrap();
            }
            let another = refused(with("bob")).await;
            assert_eq!(another, ReasonCode::BadUserNameOrPassword);
        }
        let alone = guarded.broker.client(scheme, "c");
        let alone = alone.password(issuer.token(&claims("ann")));
        comes_and_goes(alone).await;
    }
    guarded.broker.shutdown().await;
}

async fn a_token_with_any_fault_is_refused(scheme: Scheme) {
    let guarded = Guarded::start_with(&[&RSA, &EC, &ED], |files| {
        files.jwt.as_mut().unwrap().client_id_claim = Some("device".to_owned());
    })
    .await;
    let right = || with(claims("ann"), "device", json!("c"));
    let let_in = guarded.bearer(scheme, ED.token(&right())).build().await;
    let_in.unwrap().disconnect().await.unwrap();
    let but = |name: &str, value: Value| ED.token(&with(right(), name, value));
    let without = |name: &str| {
        let mut claims = right();
        claims.as_object_mut().unwrap().remove(name);
        ED.token(&claims)
    };
    let under = |header: Value| ED.token_under(&header, &right());
    let none = unsigned(&json!({"alg": "none"}), &right()) + ".";
    // The public key, which is no secret, used as a shared secret.
    let confused = {
        let signed = unsigned(&json!({"alg": "HS256", "kid": "rsa"}), &right());
        let mut mac = Hmac::<Sha256>::new_from_slice(RSA.key.der_bytes()).unwrap();
        mac.update(signed.as_bytes());
        format!("{signed}.{}", encode(mac.finalize().into_bytes()))
    };
    let eve = Issuer::new("EdDSA", "ed");
    let mut cut = ED.token(&right());
    cut.truncate(cut.rfind('.').unwrap() + 1);
    for (token, what) in [
        (but("exp", json!(from_now(-6.0))), "expired"),
        (without("exp"), "for ever"),
        (but("nbf", json!(from_now(60.0))), "not yet"),
        (but("iss", json!("https://eve.example")), "issuer"),
        (without("iss"), "no issuer"),
        (but("aud", json!(["web"])), "audience"),
        (without("aud"), "no audience"),
        (but("device", json!("d")), "client identifier"),
        (without("device"), "no client identifier"),
        (without("sub"), "no user"),
        (but("acl", json!([{"permission": "allow"}])), "rule"),
        (none, "none"),
        (confused, "confused"),
        (under(json!({"alg": "EdDSA", "kid": "x"})), "unknown key"),
        (under(json!({"alg": "EdDSA", "kid": "ec"})), "other key"),
        (
            under(json!({"alg": "ES256", "kid": "ed"})),
            "other algorithm",
        ),
        (
            under(json!({"alg": "EdDSA", "kid": "ed", "crit": ["exp"]})),
            "crit",
        ),
        (eve.token(&right()), "other's key"),
        (cut, "unsigned"),
    ] {
        for version in VERSIONS {
            let wrong = guarded.bearer(scheme, token.clone()).version(version);
            let wrong = wrong.user_name("ann").unwrap();
            let reason = refused(wrong).await;
            assert_eq!(reason, ReasonCode::BadUserNameOrPassword, "{what}");
        }
    }
    guarded.broker.shutdown().await;
}

async fn passwords_and_tokens_get_in_side_by_side(scheme: Scheme) {
    let guarded = Guarded::start(&[&ED]).await;
    for version in VERSIONS {
        let with = |password: String| {
            let client = guarded.bearer(scheme, password).version(version);
            client.user_name("ann").unwrap()
        };
        for right in ["pencil".to_owned(), ED.token(&claims("ann"))] {
            let right = with(right).build().await.unwrap();
            right.disconnect().await.unwrap();
        }
        for wrong in [
            "stapler".to_owned(),
            "a.b.c".to_owned(),
            EC.token(&claims("ann")),
        ] {
            let reason = refused(with(wrong)).await;
            assert_eq!(reason, ReasonCode::BadUserNameOrPassword);
        }
    }
}

async fn keys_change_under_connections(scheme: Scheme) {
    let old = Issuer::new("EdDSA", "old");
    let new = Issuer::new("ES256", "new");
    let guarded = Guarded::start(&[&old]).await;
    let enter = |issuer: &Issuer| guarded.bearer(scheme, issuer.token(&claims("ann")));
    let inside = enter(&old)
        .client_id("inside")
        .unwrap()
        .build()
        .await
        .unwrap();
    let wrong = ReasonCode::BadUserNameOrPassword;
    assert_eq!(refused(enter(&new)).await, wrong);

    write_keys(&guarded.folder, &[&old, &new]);
    guarded.reload().unwrap();
    comes_and_goes(enter(&old)).await;
    comes_and_goes(enter(&new)).await;

    write_keys(&guarded.folder, &[&new]);
    guarded.reload().unwrap();
    assert_eq!(refused(enter(&old)).await, wrong);
    comes_and_goes(enter(&new)).await;

    let broken = json!({"keys": [new.jwk(), {"kty": "EC"}]}).to_string();
    std::fs::write(guarded.folder.path().join("jwks.json"), broken).unwrap();
    let error = guarded.reload().unwrap_err().to_string();
    assert!(
        error.ends_with("jwks.json: keys[1]: `crv` is missing"),
        "{error}"
    );
    comes_and_goes(enter(&new)).await;
    inside.publish("x", "", QoS::AtLeastOnce).await.unwrap();
}

async fn the_rules_of_a_token_are_its_own(scheme: Scheme) {
    // What the file says of ann does not count beside what her token says.
    let guarded = Guarded::start_with(&[&ED], |files| {
        let path = files.password_file.clone().unwrap().with_file_name("acl");
        std::fs::write(&path, "user ann\ntopic filed/#\nuser bob\ntopic #\n").unwrap();
        files.acl_file = Some(path);
    })
    .await;
    let acl = json!([
        {"permission": "deny", "action": "subscribe", "topic": "a/${clientid}/secret"},
        {"permission": "allow", "action": "subscribe", "topic": "a/${clientid}/#"},
        {"permission": "allow", "action": "publish", "topic": "from/${username}"},
    ]);
    let ann = with(claims("ann"), "acl", acl);
    let ann = guarded.client(scheme, &ann).await;
    let bob = guarded.client(scheme, &claims("bob")).await;
    for (filter, may) in [
        ("a/ann/x", true),
        ("a/#", true),
        ("a/ann/secret", false),
        ("a/bob/x", false),
        ("from/ann", false),
        ("filed/x", false),
    ] {
        let asked = ann.subscribe(filter, QoS::AtLeastOnce).await;
        assert_eq!(asked.is_ok(), may, "{filter}");
    }
    let mut anns = ann.subscribe("+/+/#", QoS::AtLeastOnce).await.unwrap();
    for topic in ["a/ann/secret", "a/bob/x", "filed/x", "from/ann", "a/ann/x"] {
        bob.publish(topic, topic, QoS::AtLeastOnce).await.unwrap();
    }
    assert_eq!(&*next(&mut anns).await.topic, "a/ann/x");
    let mut bobs = bob.subscribe("#", QoS::AtLeastOnce).await.unwrap();
    for (topic, may) in [("filed/x", false), ("a/ann/x", false), ("from/ann", true)] {
        let sent = ann.publish(topic, "", QoS::AtLeastOnce).await;
        assert_eq!(sent.is_ok(), may, "{topic}");
    }
    assert_eq!(&*next(&mut bobs).await.topic, "from/ann");
    // Without rules of its own a token has those of the file.
    let ann = guarded.client(scheme, &claims("ann")).await;
    ann.publish("filed/x", "", QoS::AtLeastOnce).await.unwrap();
    assert_eq!(&*next(&mut bobs).await.topic, "filed/x");
    ann.publish("from/ann", "", QoS::AtLeastOnce)
        .await
        .unwrap_err();
}

async fn another_token_of_the_same_user_brings_other_rules(scheme: Scheme) {
    let guarded = Guarded::start(&[&ED]).await;
    let kept = |topic: &str| {
        let acl = json!([{"permission": "allow", "action": "all", "topic": topic}]);
        let client = guarded.bearer(scheme, ED.token(&with(claims("ann"), "acl", acl)));
        let client = client.clean_start(false);
        client.session_expiry(Duration::from_mins(5))
    };
    let ann = kept("#").build().await.unwrap();
    let _all = ann.subscribe("#", QoS::AtLeastOnce).await.unwrap();
    ann.disconnect().await.unwrap();
    let bob = guarded.client(scheme, &claims("bob")).await;
    let both = async |payload: &'static str| {
        for topic in ["a/x", "b/x"] {
            let message = Outgoing::to(topic, payload).unwrap().qos(QoS::AtLeastOnce);
            let mut receipt = bob.send(message).await.unwrap();
            receipt.acknowledged().await.unwrap();
        }
    };
    both("waits").await;
    let mut builder = kept("b/#");
    let mut messages = builder.subscribe_early("#", QoS::AtLeastOnce).unwrap();
    let ann = builder.build().await.unwrap();
    assert!(ann.last_connected().unwrap().session_present);
    both("new").await;
    for payload in ["waits", "new"] {
        let message = next(&mut messages).await;
        assert_eq!(
            (&*message.topic, &*message.payload),
            ("b/x", payload.as_bytes())
        );
    }
}

async fn a_connection_ends_with_its_token(scheme: Scheme) {
    const EXPIRY: u64 = 1_000_000;
    // As long after each log-in, however busy the machine is.
    let clock = Arc::new(AtomicU64::new(EXPIRY * 1000 - 300));
    let start = async |disconnect_at_expiry| {
        let clock = Arc::clone(&clock);
        let now = move || UNIX_EPOCH + Duration::from_millis(clock.load(Ordering::Relaxed));
        let change = |files: &mut AccessFiles| {
            let jwt = files.jwt.as_mut().unwrap();
            jwt.leeway = Duration::ZERO;
            jwt.disconnect_at_expiry = disconnect_at_expiry;
        };
        Guarded::start_by(&[&ED], change, Some(Box::new(now))).await
    };
    let (ending, lasting) = (start(true).await, start(false).await);
    let bob = ending.client(scheme, &claims("bob")).await;
    let mut wills = bob.subscribe("gone", QoS::AtLeastOnce).await.unwrap();
    let short = ED.token(&with(claims("ann"), "exp", json!(EXPIRY)));
    let client = |guarded: &Guarded, version| {
        let client = guarded.bearer(scheme, short.clone());
        client.version(version)
    };
    let will = Will {
        topic: TopicName::new("gone").unwrap(),
        payload: "ann".into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: WillProperties::default(),
    };
    let stays = client(&lasting, Version::V5).build().await.unwrap();
    for version in VERSIONS {
        let ann = client(&ending, version).will(will.clone());
        let ann = ann.build().await.unwrap();
        let why = timeout(Duration::from_secs(20), ann.closed()).await;
        match why.expect("it should end") {
            Error::Ended(CloseReason::ByPeer(disconnect)) if version == Version::V5 => {
                assert_eq!(disconnect.reason, ReasonCode::MaximumConnectTime);
            }
            // Before 5.0 there is nothing that a server could say.
            Error::Ended(CloseReason::LinkLost) | Error::Transport(_) if version < Version::V5 => {}
            other => panic!("{version}: {other:?}"),
        }
        assert_eq!(next(&mut wills).await.payload, "ann");
    }
    clock.store(EXPIRY * 1000, Ordering::Relaxed);
    let late = client(&ending, Version::V5);
    assert_eq!(refused(late).await, ReasonCode::BadUserNameOrPassword);
    // Clients whose token still holds, or does not matter, are still there.
    bob.publish("x", "", QoS::AtLeastOnce).await.unwrap();
    stays.publish("x", "", QoS::AtLeastOnce).await.unwrap();
}
