//! The keys that tokens are signed by: a JWK Set (RFC 7517).

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, crypto::aws_lc};
use serde_json::{Map, Value};

use super::rejected::Rejected;

/// Bits of an RSA modulus: fewer can be factored (RFC 7518 §3.3), more would cost too much.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// Bytes of a coordinate on P-256 and of an Ed25519 key.
const CURVE_LEN: usize = 32;

/// The public keys of a file.
pub(in crate::auth) struct Keys(Vec<Key>);

/// A key for one algorithm alone: a token's header never chooses how a key is understood (RFC 8725
/// §3.1).
pub(super) struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    public: DecodingKey,
}

/// Returns the algorithm of a JOSE name, if it is one of the three that are accepted.
pub(super) fn algorithm(name: &str) -> Option<Algorithm> {
    match name {
        "RS256" => Some(Algorithm::RS256),
        "ES256" => Some(Algorithm::ES256),
        "EdDSA" => Some(Algorithm::EdDSA),
        _ => None,
    }
}

impl Keys {
    /// Reads the text of a JWK Set. Keys for something else, such as encryption or other
    /// algorithms, are skipped (RFC 7517 §5).
    ///
    /// # Errors
    /// Every mistake: by line where the text is no JSON, else with the key's index from 0.
    pub(in crate::auth) fn parse(text: &str) -> Result<Self, Vec<(Option<usize>, String)>> {
        let one = |problem: &str| vec![(None, problem.to_owned())];
        let set: Value = serde_json::from_str(text).map_err(|error| {
            let line = Some(error.line()).filter(|line| *line > 0);
            vec![(line, format!("not JSON: {error}"))]
        })?;
        let Some(keys) = set.get("keys").and_then(Value::as_array) else {
            return Err(one(
                "not a key set, which is `{\"keys\": [..]}` (RFC 7517 §5)",
            ));
        };
        let mut found: Vec<Key> = Vec::new();
        let mut wrong = Vec::new();
        for (index, jwk) in keys.iter().enumerate() {
            let mut tell = |problem| wrong.push((None, format!("keys[{index}]: {problem}")));
            match Key::parse(jwk) {
                Err(problem) => tell(problem),
                Ok(None) => {}
                Ok(Some(key)) => match &key.id {
                    Some(id) if found.iter().any(|other| other.id.as_ref() == Some(id)) => {
                        tell(format!("the kid `{id}` is there twice"));
                    }
                    _ => found.push(key),
                },
            }
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        if found.is_empty() {
            return Err(one("no key for RS256, ES256 or EdDSA"));
        }
        Ok(Self(found))
    }

    /// Returns the key that a token is verified with: the key of its `kid`, or without one, the
    /// only key for its algorithm.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<&Key, Rejected> {
        if let Some(id) = id {
            let key = self.0.iter().find(|key| key.id.as_deref() == Some(id));
            let key = key.ok_or(Rejected::UnknownKey)?;
            return Some(key)
                .filter(|key| key.algorithm == algorithm)
                .ok_or(Rejected::OtherAlgorithm);
        }
        let mut keys = self.0.iter().filter(|key| key.algorithm == algorithm);
        match (keys.next(), keys.next()) {
            (Some(key), None) => Ok(key),
            (None, _) => Err(Rejected::UnknownKey),
            (Some(_), Some(_)) => Err(Rejected::NoKeyId),
        }
    }
}

impl Key {
    /// Reads one key; `None` if it is for another use.
    fn parse(jwk: &Value) -> Result<Option<Self>, String> {
        let jwk = jwk.as_object().ok_or("not a JSON object")?;
        let kind = text(jwk, "kty")?.ok_or("`kty` is missing")?;
        if kind == "oct" {
            return Err(
                "shared secrets are not supported: whoever verifies such tokens can forge \
                        them"
                    .to_owned(),
            );
        }
        if jwk.contains_key("d") {
            return Err("a private key: leave only the public part in the file".to_owned());
        }
        let is_for_verifying = match (text(jwk, "use")?, jwk.get("key_ops")) {
            (Some(usage), _) if usage != "sig" => false,
            (_, Some(operations)) => operations
                .as_array()
                .ok_or("`key_ops` is no list")?
                .contains(&Value::from("verify")),
            _ => true,
        };
        let (algorithm, name) = match (kind, text(jwk, "crv")?) {
            ("RSA", _) => (Algorithm::RS256, "RS256"),
            ("EC", Some("P-256")) => (Algorithm::ES256, "ES256"),
            ("OKP", Some("Ed25519")) => (Algorithm::EdDSA, "EdDSA"),
            ("EC" | "OKP", None) => return Err("`crv` is missing".to_owned()),
            _ => return Ok(None),
        };
        if !is_for_verifying || text(jwk, "alg")?.is_some_and(|own| own != name) {
            return Ok(None);
        }
        let public = match algorithm {
            Algorithm::RS256 => rsa(jwk)?,
            Algorithm::ES256 => {
                let mut point = vec![4];
                point.extend(coordinate(jwk, "x")?);
                point.extend(coordinate(jwk, "y")?);
                DecodingKey::from_ec_der(&point)
            }
            _ => DecodingKey::from_ed_der(&coordinate(jwk, "x")?),
        };
        Ok(Some(Self {
            id: text(jwk, "kid")?.map(str::to_owned),
            algorithm,
            public,
        }))
    }

    /// Returns `true` if `signature` is this key's signature of `signed`.
    pub(super) fn has_signed(&self, signed: &[u8], signature: &[u8]) -> bool {
        // The provider is named, since the process's default depends on what else is built in.
        let verifier = (aws_lc::DEFAULT_PROVIDER.verifier_factory)(&self.algorithm, &self.public);
        verifier.is_ok_and(|verifier| verifier.verify(signed, &signature.to_vec()).is_ok())
    }
}

fn rsa(jwk: &Map<String, Value>) -> Result<DecodingKey, String> {
    let (modulus, exponent) = (number(jwk, "n")?, number(jwk, "e")?);
    let bits = modulus.len() * 8 - modulus[0].leading_zeros() as usize;
    if !RSA_BITS.contains(&bits) {
        return Err(format!(
            "an RSA key has {} to {} bits here, and this one has {bits}",
            RSA_BITS.start(),
            RSA_BITS.end()
        ));
    }
    let is_odd = exponent.last().is_some_and(|last| last % 2 == 1);
    if !is_odd || exponent == [1] || exponent.len() > 4 {
        return Err("`e` is no exponent of an RSA key: 65537, `AQAB`, is".to_owned());
    }
    Ok(DecodingKey::from_rsa_raw_components(&modulus, &exponent))
}

/// Returns a member of type string, if it is there.
fn text<'a>(jwk: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, String> {
    match jwk.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("`{name}` is no string")),
    }
}

fn bytes(jwk: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let text = text(jwk, name)?.ok_or_else(|| format!("`{name}` is missing"))?;
    let decoded = URL_SAFE_NO_PAD.decode(text);
    decoded.map_err(|_| format!("`{name}` is not base64url without padding"))
}

/// Returns a number without leading zeros (RFC 7518 §2 forbids them; some issuers write one).
fn number(jwk: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let bytes = bytes(jwk, name)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    match &bytes[zeros..] {
        [] => Err(format!("`{name}` is zero")),
        number => Ok(number.to_vec()),
    }
}

fn coordinate(jwk: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let bytes = bytes(jwk, name)?;
    if bytes.len() == CURVE_LEN {
        Ok(bytes)
    } else {
        Err(format!(
            "`{name}` has {CURVE_LEN} bytes on this curve, and this one has {}",
            bytes.len()
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

    fn ed25519(id: &str) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": X})
    }

    fn with(mut key: Value, name: &str, value: Value) -> Value {
        key[name] = value;
        key
    }

    fn rsa(bytes: usize, exponent: &str) -> Value {
        let modulus = URL_SAFE_NO_PAD.encode(vec![0xff; bytes]);
        json!({"kty": "RSA", "n": modulus, "e": exponent})
    }

    fn problems(text: &str) -> Vec<String> {
        let wrong = Keys::parse(text).err().expect("a mistake");
        let lines = wrong.iter().map(|(_, problem)| problem.lines().count());
        assert_eq!(lines.max(), Some(1), "{wrong:?}");
        wrong.into_iter().map(|(_, problem)| problem).collect()
    }

    #[test]
    fn mistakes_are_told_with_the_index_of_their_key() {
        for (key, problem) in [
            (json!("x"), "not a JSON object"),
            (json!({}), "`kty` is missing"),
            (json!({"kty": 1}), "`kty` is no string"),
            (
                json!({"kty": "oct", "k": "AA"}),
                "shared secrets are not supported",
            ),
            (with(ed25519("2"), "d", json!("AA")), "a private key"),
            (
                with(ed25519("2"), "x", json!("AA")),
                "`x` has 32 bytes on this curve, and this one has 1",
            ),
            (with(ed25519("2"), "x", json!("A=")), "`x` is not base64url"),
            (with(ed25519("2"), "kid", json!(2)), "`kid` is no string"),
            (
                with(ed25519("2"), "key_ops", json!("verify")),
                "`key_ops` is no list",
            ),
            (json!({"kty": "EC"}), "`crv` is missing"),
            (
                json!({"kty": "EC", "crv": "P-256", "x": X}),
                "`y` is missing",
            ),
            (json!({"kty": "RSA", "n": "AQAB"}), "`e` is missing"),
            (
                json!({"kty": "RSA", "n": "AAAA", "e": "AQAB"}),
                "`n` is zero",
            ),
            (
                rsa(128, "AQAB"),
                "an RSA key has 2048 to 8192 bits here, and this one has 1024",
            ),
            (rsa(1025, "AQAB"), "and this one has 8200"),
            (rsa(256, "AQ"), "`e` is no exponent"),
            (rsa(256, "Ag"), "`e` is no exponent"),
            (ed25519("1"), "the kid `1` is there twice"),
        ] {
            let set = json!({"keys": [ed25519("1"), key]}).to_string();
            let told = problems(&set);
            let [told] = &told[..] else {
                panic!("{told:?}");
            };
            assert!(
                told.starts_with("keys[1]: ") && told.contains(problem),
                "{told}"
            );
        }
        let both = json!({"keys": [{}, ed25519("1"), 7]}).to_string();
        assert_eq!(problems(&both).len(), 2);
    }

    #[test]
    fn a_file_that_is_no_set_of_keys_is_a_mistake() {
        for (text, problem) in [
            ("[]", "not a key set"),
            ("{\"keys\": {}}", "not a key set"),
            ("{\"keys\": []}", "no key for RS256, ES256 or EdDSA"),
        ] {
            assert!(problems(text)[0].contains(problem), "{text}");
        }
        let wrong = Keys::parse("{\n\"keys\": [\n}").err().unwrap();
        assert_eq!(wrong[0].0, Some(3), "{wrong:?}");
        assert!(wrong[0].1.contains("not JSON"), "{wrong:?}");
    }

    #[test]
    fn keys_for_something_else_are_passed_over() {
        for other in [
            with(ed25519("2"), "use", json!("enc")),
            with(ed25519("2"), "key_ops", json!(["sign"])),
            with(ed25519("2"), "alg", json!("ES256")),
            with(rsa(256, "AQAB"), "alg", json!("PS256")),
            json!({"kty": "EC", "crv": "P-384"}),
            json!({"kty": "OKP", "crv": "X25519", "x": X}),
            json!({"kty": "AKP"}),
        ] {
            let set = json!({"keys": [other, ed25519("1")]}).to_string();
            let Keys(keys) = Keys::parse(&set).expect("no mistake");
            assert_eq!(keys.len(), 1, "{set}");
        }
        let mine = with(ed25519("1"), "use", json!("sig"));
        let mine = with(
            with(mine, "key_ops", json!(["verify"])),
            "alg",
            json!("EdDSA"),
        );
        // A leading zero of the exponent is accepted.
        let set = json!({"keys": [mine, rsa(256, "AQAB"), rsa(257, "AAEAAQ")]}).to_string();
        let Keys(keys) = Keys::parse(&set).expect("no mistake");
        assert_eq!(keys.len(), 3);
    }
}
