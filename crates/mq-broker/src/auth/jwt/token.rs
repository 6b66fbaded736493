//! A JSON Web Token: its form, its signature, its claims.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use mq_codec::ByteStr;
use serde_json::{Map, Value};

use super::{JwtSettings, Keys, TokenRules, keys, rejected::Rejected};
use crate::{
    auth::{LogIn, Principal},
    clock,
};

/// A hundred years: a token valid for longer sets no end of its connection, which keeps timers from
/// overflowing.
const FOR_EVER: Duration = Duration::from_hours(100 * 365 * 24);

/// A password that has the form of a token: three parts in base64url, of which the first is a
/// header (RFC 7515 §7.1).
pub(in crate::auth) struct Token<'a> {
    /// Header and claims as they were sent: the signed bytes.
    signed: &'a [u8],
    header: Map<String, Value>,
    claims: Vec<u8>,
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    /// Parses a password; `None` if it does not have the form of a token.
    pub(in crate::auth) fn parse(password: &'a [u8]) -> Option<Self> {
        let mut dots = (0..password.len()).filter(|at| password[*at] == b'.');
        let (first, second) = (dots.next()?, dots.next()?);
        if dots.next().is_some() {
            return None;
        }
        let decode = |part: &[u8]| URL_SAFE_NO_PAD.decode(part).ok();
        // The last of several members with one name counts (RFC 7515 §4).
        let header: Map<String, Value> =
            serde_json::from_slice(&decode(&password[..first])?).ok()?;
        // Every token's header has `alg`.
        header.get("alg")?.as_str()?;
        Some(Self {
            signed: &password[..second],
            header,
            claims: decode(&password[first + 1..second])?,
            signature: decode(&password[second + 1..])?,
        })
    }

    /// Verifies the token and returns its principal: the user, the end of the token and its rules.
    /// Before the signature is verified nothing of the token is used but the `kid` of its header.
    pub(in crate::auth) fn judge(
        &self,
        keys: &Keys,
        settings: &JwtSettings,
        now: SystemTime,
        log_in: &LogIn,
    ) -> Result<Principal, Rejected> {
        self.check_signature(keys)?;
        let claims: Map<String, Value> =
            serde_json::from_slice(&self.claims).map_err(|_| Rejected::Claims)?;
        let left = check_time(&claims, settings.leeway, now)?;
        check_parties(&claims, settings)?;
        let principal = find_principal(&claims, settings, log_in)?;
        if settings.disconnect_at_expiry && left < FOR_EVER {
            Ok(principal.until(clock::now() + left))
        } else {
            Ok(principal)
        }
    }

    fn check_signature(&self, keys: &Keys) -> Result<(), Rejected> {
        // RFC 7515 §4.1.11: extensions that are not understood must be refused.
        if self.header.contains_key("crit") {
            return Err(Rejected::Critical);
        }
        let name = self.header.get("alg").and_then(Value::as_str);
        let algorithm = name.and_then(keys::algorithm);
        let algorithm = algorithm.ok_or(Rejected::Algorithm)?;
        let id = match self.header.get("kid") {
            None => None,
            Some(id) => Some(id.as_str().ok_or(Rejected::UnknownKey)?),
        };
        let key = keys.find(id, algorithm)?;
        if key.has_signed(self.signed, &self.signature) {
            Ok(())
        } else {
            Err(Rejected::Signature)
        }
    }
}

/// Checks the token's `exp` and `nbf` with the leeway, and returns the time left until it expires.
fn check_time(
    claims: &Map<String, Value>,
    leeway: Duration,
    now: SystemTime,
) -> Result<Duration, Rejected> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let expiry = date(claims, "exp")?.ok_or_else(|| Rejected::Claim("exp".to_owned()))?;
    // "On or after which" it must not be taken (RFC 7519 §4.1.4).
    let left = expiry.saturating_add(leeway).saturating_sub(now);
    if left.is_zero() {
        return Err(Rejected::Expired);
    }
    if date(claims, "nbf")?.is_some_and(|begin| begin > now.saturating_add(leeway)) {
        return Err(Rejected::NotYet);
    }
    Ok(left)
}

/// Returns a `NumericDate` (RFC 7519 §2): seconds since 1970, which need not be whole.
fn date(claims: &Map<String, Value>, name: &str) -> Result<Option<Duration>, Rejected> {
    let Some(date) = claims.get(name) else {
        return Ok(None);
    };
    let duration = match date.as_u64() {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => date
            .as_f64()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
    };
    match duration {
        Some(duration) => Ok(Some(duration)),
        None => Err(Rejected::Claim(name.to_owned())),
    }
}

/// Checks the token's issuer and audience.
fn check_parties(claims: &Map<String, Value>, settings: &JwtSettings) -> Result<(), Rejected> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if settings.issuer.is_some() && text("iss") != settings.issuer.as_deref() {
        return Err(Rejected::Issuer);
    }
    let is_for_us = match (claims.get("aud"), settings.audience.as_deref()) {
        (None, None) => true,
        (Some(Value::String(one)), Some(us)) => one == us,
        (Some(Value::Array(all)), Some(us)) => all.iter().any(|one| one.as_str() == Some(us)),
        // A server that is not in it "MUST" reject the token (RFC 7519 §4.1.3).
        _ => false,
    };
    if is_for_us {
        Ok(())
    } else {
        Err(Rejected::Audience)
    }
}

fn find_principal(
    claims: &Map<String, Value>,
    settings: &JwtSettings,
    log_in: &LogIn,
) -> Result<Principal, Rejected> {
    let user = claims.get(&settings.user_claim).and_then(Value::as_str);
    let user = user.filter(|user| !user.is_empty());
    let user = user.and_then(|user| ByteStr::new(user).ok());
    let user = user.ok_or_else(|| Rejected::Claim(settings.user_claim.clone()))?;
    // Before 5.0 there is no password without a user name `[MQTT-3.1.2-22]`, so an empty one is
    // none.
    let named = log_in.user_name.as_ref().filter(|name| !name.is_empty());
    if named.is_some_and(|name| *name != user) {
        return Err(Rejected::UserName);
    }
    if let Some(name) = &settings.client_id_claim
        && claims.get(name).and_then(Value::as_str) != Some(&*log_in.client_id)
    {
        return Err(Rejected::ClientId);
    }
    let principal = Principal::new(Some(user.clone()), &log_in.client_id);
    match claims.get("acl") {
        None => Ok(principal),
        Some(rules) => {
            let rules = TokenRules::parse(rules, &principal)?;
            Ok(Principal::with_data(Some(user), &log_in.client_id, rules))
        }
    }
}

#[cfg(test)]
mod tests {
    use hmac::{Hmac, KeyInit as _, Mac as _};
    use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData as _, SigningKey as _};
    use serde_json::json;
    use sha2::Sha256;

    use super::*;

    /// The key of RFC 7515 §A.2.
    const RSA_N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
    /// `{"iss":"joe", "exp":1300819380, "http://example.com/is_root":true}`, of RFC 7515 §A.1 to A.3
    /// and RFC 7519 §6.1.
    const JOE: &str = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    const JOE_EXPIRES: u64 = 1_300_819_380;
    const RS256: (&str, &str) = (
        "eyJhbGciOiJSUzI1NiJ9",
        "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
    );
    const ES256: (&str, &str) = (
        "eyJhbGciOiJFUzI1NiJ9",
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    );

    /// Returns the public keys of RFC 7515 §A.2 and A.3, and of RFC 8037 §A.2.
    fn rfc_keys() -> Value {
        json!({"keys": [
            {"kty": "RSA", "n": RSA_N, "e": "AQAB"},
            {"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
             "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"},
            {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
        ]})
    }

    fn keys(set: &Value) -> Keys {
        Keys::parse(&set.to_string()).unwrap()
    }

    fn settings() -> JwtSettings {
        JwtSettings::new("unread".into())
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn log_in(client_id: &str) -> LogIn {
        LogIn::new(ByteStr::new(client_id).unwrap())
    }

    fn judge(
        token: &str,
        keys: &Keys,
        settings: &JwtSettings,
        now: u64,
    ) -> Result<Principal, Rejected> {
        let token = Token::parse(token.as_bytes()).expect("the form of a token");
        token.judge(keys, settings, at(now), &log_in("c"))
    }

    fn encode(value: &Value) -> String {
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    /// Signs by Ed25519.
    struct Signer(KeyPair);

    impl Signer {
        fn new() -> Self {
            Self(KeyPair::generate_for(&PKCS_ED25519).unwrap())
        }

        fn jwk(&self, id: &str) -> Value {
            let x = URL_SAFE_NO_PAD.encode(self.0.der_bytes());
            json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": x})
        }

        fn keys(&self) -> Keys {
            keys(&json!({"keys": [self.jwk("1")]}))
        }

        fn sign(&self, header: &Value, claims: &Value) -> String {
            let signed = format!("{}.{}", encode(header), encode(claims));
            let signature = self.0.sign(signed.as_bytes()).unwrap();
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
        }

        fn token(&self, claims: &Value) -> String {
            self.sign(&json!({"alg": "EdDSA", "kid": "1"}), claims)
        }
    }

    #[test]
    fn the_tokens_of_rfc_7515_are_taken_until_they_expire() {
        let keys = keys(&rfc_keys());
        let joes = JwtSettings {
            user_claim: "iss".to_owned(),
            ..settings()
        };
        for (header, signature) in [RS256, ES256] {
            let token = format!("{header}.{JOE}.{signature}");
            let judge = |token: &str, now| judge(token, &keys, &joes, now);
            let joe = judge(&token, JOE_EXPIRES - 1).unwrap();
            assert_eq!((joe.user(), joe.client_id()), (Some("joe"), "c"));
            let left = joe.expires_at().unwrap() - clock::now();
            assert!((5..=6).contains(&left.as_secs()), "{left:?}");
            assert!(judge(&token, JOE_EXPIRES + 4).is_ok());
            let late = judge(&token, JOE_EXPIRES + 5).unwrap_err();
            assert_eq!(late, Rejected::Expired);
            let changed = token.replace("LA0K", "LCAK");
            assert_eq!(judge(&changed, 0).unwrap_err(), Rejected::Signature);
            let unsigned = format!("{header}.{JOE}.");
            assert_eq!(judge(&unsigned, 0).unwrap_err(), Rejected::Signature);
        }
        let mixed = format!("{}.{JOE}.{}", ES256.0, RS256.1);
        assert_eq!(
            judge(&mixed, &keys, &joes, 0).unwrap_err(),
            Rejected::Signature
        );
    }

    #[test]
    fn the_signature_of_rfc_8037_is_right() {
        let token = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
        let judged = judge(token, &keys(&rfc_keys()), &settings(), 0);
        assert_eq!(
            judged.unwrap_err(),
            Rejected::Claims,
            "behind the signature"
        );
    }

    #[test]
    fn no_other_algorithm_is_taken() {
        let keys = keys(&rfc_keys());
        // RFC 7519 §6.1, RFC 7515 §A.1.
        for token in [
            format!("eyJhbGciOiJub25lIn0.{JOE}."),
            format!(
                "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.{JOE}.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
            ),
        ] {
            let why = judge(&token, &keys, &settings(), 0).unwrap_err();
            assert_eq!(why, Rejected::Algorithm);
        }
        for name in ["None", "HS512", "RS384", "PS256", "ES384", "rs256", ""] {
            let token = format!("{}.{JOE}.{}", encode(&json!({"alg": name})), RS256.1);
            let why = judge(&token, &keys, &settings(), 0).unwrap_err();
            assert_eq!(why, Rejected::Algorithm, "{name}");
        }
    }

    #[test]
    fn a_public_key_is_no_secret_to_sign_by() {
        let set = json!({"keys": [{"kty": "RSA", "n": RSA_N, "e": "AQAB", "kid": "1"}]});
        let keys = keys(&set);
        let claims = encode(&json!({"sub": "eve", "exp": 2_000_000_000}));
        for secret in [
            URL_SAFE_NO_PAD.decode(RSA_N).unwrap(),
            RSA_N.as_bytes().to_vec(),
            set.to_string().into_bytes(),
        ] {
            for name in ["HS256", "RS256", "ES256", "EdDSA"] {
                let signed = format!("{}.{claims}", encode(&json!({"alg": name, "kid": "1"})));
                let mut mac = Hmac::<Sha256>::new_from_slice(&secret).unwrap();
                mac.update(signed.as_bytes());
                let tag = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
                let why = judge(&format!("{signed}.{tag}"), &keys, &settings(), 0).unwrap_err();
                let expected = match name {
                    "HS256" => Rejected::Algorithm,
                    "RS256" => Rejected::Signature,
                    _ => Rejected::OtherAlgorithm,
                };
                assert_eq!(why, expected);
            }
        }
    }

    #[test]
    fn what_a_header_asks_for_and_is_not_understood_is_refused() {
        let signer = Signer::new();
        let claims = json!({"sub": "ann", "exp": 1000});
        for crit in [json!(["exp"]), json!([]), json!(null)] {
            let header = json!({"alg": "EdDSA", "kid": "1", "crit": crit});
            let token = signer.sign(&header, &claims);
            let why = judge(&token, &signer.keys(), &settings(), 0).unwrap_err();
            assert_eq!(why, Rejected::Critical);
        }
        // RFC 7515, appendix E.
        let token = "eyJhbGciOiJub25lIiwNCiAiY3JpdCI6WyJodHRwOi8vZXhhbXBsZS5jb20vVU5ERUZJTkVEIl0sDQogImh0dHA6Ly9leGFtcGxlLmNvbS9VTkRFRklORUQiOnRydWUNCn0.RkFJTA.";
        let why = judge(token, &signer.keys(), &settings(), 0).unwrap_err();
        assert_eq!(why, Rejected::Critical);
        // Keys in the token's header, or URLs of keys, are ignored.
        let eve = Signer::new();
        let header = json!({"alg": "EdDSA", "kid": "1", "jwk": eve.jwk("1"), "jku": "https://eve"});
        let why = judge(&eve.sign(&header, &claims), &signer.keys(), &settings(), 0);
        assert_eq!(why.unwrap_err(), Rejected::Signature);
    }

    #[test]
    fn a_key_is_found_by_its_id_or_by_being_the_only_one() {
        let (one, two) = (Signer::new(), Signer::new());
        let both = keys(&json!({"keys": [one.jwk("1"), two.jwk("2")]}));
        let claims = json!({"sub": "ann", "exp": 1000});
        let judge = |signer: &Signer, header: Value, keys: &Keys| {
            judge(&signer.sign(&header, &claims), keys, &settings(), 0).map(|_| ())
        };
        let by = |id: Value| json!({"alg": "EdDSA", "kid": id});
        assert_eq!(judge(&two, by("2".into()), &both), Ok(()));
        assert_eq!(judge(&two, by("1".into()), &both), Err(Rejected::Signature));
        for unknown in [json!("3"), json!(""), json!(null), json!(1)] {
            let judged = judge(&two, by(unknown), &both);
            assert_eq!(judged, Err(Rejected::UnknownKey));
        }
        let without = json!({"alg": "EdDSA"});
        let judged = judge(&one, without.clone(), &both);
        assert_eq!(judged, Err(Rejected::NoKeyId));
        assert_eq!(judge(&one, without, &one.keys()), Ok(()));
        let other = json!({"alg": "ES256", "kid": "1"});
        assert_eq!(judge(&one, other, &both), Err(Rejected::OtherAlgorithm));
        let none = json!({"alg": "ES256"});
        assert_eq!(judge(&one, none, &both), Err(Rejected::UnknownKey));
    }

    #[test]
    fn claims_are_held_against_the_clock_and_the_settings() {
        let signer = Signer::new();
        let strict = JwtSettings {
            issuer: Some("id".to_owned()),
            audience: Some("mqtt".to_owned()),
            client_id_claim: Some("device".to_owned()),
            ..settings()
        };
        let right = json!({"sub": "ann", "exp": 2000, "nbf": 1000, "iss": "id",
                           "aud": ["web", "mqtt"], "device": "c", "more": {"x": [1]}});
        let judge_at =
            |claims: &Value, now| judge(&signer.token(claims), &signer.keys(), &strict, now);
        for now in [995, 1000, 2000, 2004] {
            assert_eq!(judge_at(&right, now).unwrap().user(), Some("ann"), "{now}");
        }
        assert_eq!(judge_at(&right, 994).unwrap_err(), Rejected::NotYet);
        assert_eq!(judge_at(&right, 2005).unwrap_err(), Rejected::Expired);
        let missing = |name: &str| Rejected::Claim(name.to_owned());
        for (name, value, why) in [
            ("exp", json!(null), missing("exp")),
            ("exp", json!("2000"), missing("exp")),
            ("exp", json!(-1), missing("exp")),
            ("exp", json!(1e300), missing("exp")),
            ("exp", json!(1494.9), Rejected::Expired),
            ("nbf", json!("0"), missing("nbf")),
            ("nbf", json!(1505.1), Rejected::NotYet),
            ("iss", json!("di"), Rejected::Issuer),
            ("iss", json!(["id"]), Rejected::Issuer),
            ("aud", json!("web"), Rejected::Audience),
            ("aud", json!([]), Rejected::Audience),
            ("aud", json!({"mqtt": "mqtt"}), Rejected::Audience),
            ("device", json!("d"), Rejected::ClientId),
            ("device", json!(null), Rejected::ClientId),
            ("sub", json!(""), missing("sub")),
            ("sub", json!(7), missing("sub")),
            ("sub", json!("a\u{0}b"), missing("sub")),
            ("acl", json!({"pub": ["a"]}), missing("acl")),
        ] {
            let mut claims = right.clone();
            claims[name] = value.clone();
            assert_eq!(judge_at(&claims, 1500).unwrap_err(), why, "{name} {value}");
        }
        for (name, why) in [
            ("exp", missing("exp")),
            ("iss", Rejected::Issuer),
            ("aud", Rejected::Audience),
            ("device", Rejected::ClientId),
            ("sub", missing("sub")),
        ] {
            let mut claims = right.clone();
            claims.as_object_mut().unwrap().remove(name);
            assert_eq!(judge_at(&claims, 1500).unwrap_err(), why, "{name}");
        }
        for (name, value) in [
            ("exp", json!(1495.1)),
            ("nbf", json!(1504.9)),
            ("aud", json!("mqtt")),
        ] {
            let mut claims = right.clone();
            claims[name] = value;
            judge_at(&claims, 1500).unwrap();
        }
        // A broker without an audience refuses a token that has one.
        let judged = judge(&signer.token(&right), &signer.keys(), &settings(), 1500);
        assert_eq!(judged.unwrap_err(), Rejected::Audience);
    }

    #[test]
    fn a_user_name_beside_a_token_has_to_be_its_user() {
        let signer = Signer::new();
        let keys = signer.keys();
        let token = signer.token(&json!({"sub": "ann", "exp": 1000}));
        let token = Token::parse(token.as_bytes()).unwrap();
        for (name, is_right) in [("ann", true), ("", true), ("bob", false), ("Ann", false)] {
            let mut log_in = log_in("c");
            log_in.user_name = Some(ByteStr::new(name).unwrap());
            let judged = token.judge(&keys, &settings(), at(0), &log_in);
            assert_eq!(judged.is_ok(), is_right, "{name}");
        }
    }

    #[test]
    fn a_connection_ends_with_its_token_unless_told_otherwise() {
        let signer = Signer::new();
        let mut settings = settings();
        let mut expiry = |exp: u64, disconnects| {
            settings.disconnect_at_expiry = disconnects;
            let token = signer.token(&json!({"sub": "ann", "exp": exp}));
            let ann = judge(&token, &signer.keys(), &settings, 1000).unwrap();
            ann.expires_at().map(|at| at - clock::now())
        };
        let left = expiry(1010, true).unwrap();
        assert!((14..=15).contains(&left.as_secs()), "{left:?}");
        assert_eq!(expiry(1010, false), None);
        assert_eq!(expiry(u64::MAX, true), None);
    }

    #[test]
    fn a_password_is_a_token_if_it_looks_like_one() {
        let header = encode(&json!({"alg": "none"}));
        for (password, is_token) in [
            (format!("{header}.e30.AAAA"), true),
            (format!("{header}.."), true),
            ("pencil".to_owned(), false),
            ("a.b.c".to_owned(), false),
            (format!("{header}.e30"), false),
            // Encrypted tokens have five parts.
            (format!("{header}.AA.AA.AA.AA"), false),
            (format!("{header}.e30=.AAAA"), false),
            (format!("{header}.e30.AAA+"), false),
            (format!(" {header}.e30.AAAA"), false),
            (
                format!("{}.e30.AAAA", encode(&json!({"typ": "JWT"}))),
                false,
            ),
            (format!("{}.e30.AAAA", encode(&json!("alg"))), false),
        ] {
            assert_eq!(
                Token::parse(password.as_bytes()).is_some(),
                is_token,
                "{password}"
            );
        }
        assert!(Token::parse(&[0xff, b'.', b'.']).is_none());
    }
}
