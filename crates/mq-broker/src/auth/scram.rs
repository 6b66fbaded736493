//! SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side, without channel binding.
//!
//! Names and passwords are printable ASCII, where `SASLprep` (RFC 4013) changes nothing.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use mq_codec::ByteStr;
use subtle::ConstantTimeEq as _;

use super::{
    BoxFuture, Exchange, LogIn, Principal, Refusal, Step,
    passwords::Passwords,
    scram_keys::{Key, StoredKeys, hash, is_plain, mac},
};

/// The method's name in CONNECT.
pub(super) const METHOD: &str = "SCRAM-SHA-256";

/// Bytes of the server's part of the nonce, before base64.
const NONCE_LEN: usize = 18;

/// A SCRAM exchange with one client.
///
/// ```text
/// client-first -> Begun -> server-first    client-final -> Asked -> server-final
/// ```
pub(super) struct ScramExchange {
    passwords: Arc<Passwords>,
    /// The client's CONNECT: a user name in it must be that of the exchange.
    log_in: LogIn,
    state: State,
    nonce: String,
}

enum State {
    Begun,
    Asked(Box<Asked>),
    Over,
}

struct Asked {
    user: String,
    /// `true` if the user exists; the keys of an unknown one are a stand-in's.
    is_known: bool,
    keys: StoredKeys,
    /// Up to the first `n=`, in base64: the client repeats it.
    binding: String,
    /// The messages exchanged so far, as RFC 5802's `AuthMessage` begins.
    transcript: String,
    nonce: String,
}

impl ScramExchange {
    /// Begins an exchange; `None` if no user has keys of SCRAM.
    pub(super) fn begin(passwords: &Arc<Passwords>, log_in: &LogIn) -> Option<Self> {
        passwords.any_scram().then(|| Self {
            passwords: Arc::clone(passwords),
            log_in: log_in.clone(),
            state: State::Begun,
            nonce: STANDARD.encode(rand::random::<[u8; NONCE_LEN]>()),
        })
    }

    fn take(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        let text = std::str::from_utf8(data).map_err(|_| Refusal::NotAuthorized)?;
        match std::mem::replace(&mut self.state, State::Over) {
            State::Begun => self.first(text),
            State::Asked(asked) => self.last(&asked, text),
            State::Over => Err(Refusal::NotAuthorized),
        }
    }

    fn first(&mut self, text: &str) -> Result<Step, Refusal> {
        if self.log_in.is_too_late() {
            return Err(Refusal::TooManyFailures);
        }
        let ClientFirst {
            header,
            bare,
            user,
            nonce,
        } = ClientFirst::parse(text).ok_or(Refusal::NotAuthorized)?;
        let beside = self.log_in.user_name.as_ref();
        if beside.is_some_and(|name| **name != *user) {
            return Err(Refusal::BadUserNameOrPassword);
        }
        let found = self.passwords.scram(&user);
        let (keys, is_known) = found.ok_or(Refusal::NotAuthorized)?;
        let nonce = format!("{nonce}{}", self.nonce);
        let salt = STANDARD.encode(&keys.salt);
        let said = format!("r={nonce},s={salt},i={}", keys.iterations);
        self.state = State::Asked(Box::new(Asked {
            user,
            is_known,
            keys,
            binding: STANDARD.encode(header),
            transcript: format!("{bare},{said}"),
            nonce,
        }));
        Ok(Step::Continue(said.into()))
    }

    fn last(&self, asked: &Asked, text: &str) -> Result<Step, Refusal> {
        let wrong = Refusal::BadUserNameOrPassword;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(Refusal::NotAuthorized)?;
        let expected = format!("c={},r={}", asked.binding, asked.nonce);
        // Extensions may follow; none is known, so none is mandatory.
        let rest = without_proof.strip_prefix(&expected);
        if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(',')) {
            return Err(Refusal::NotAuthorized);
        }
        let proof = STANDARD.decode(proof).ok();
        let proof = proof.and_then(|proof| Key::try_from(proof).ok());
        let mut client_key = proof.ok_or(Refusal::NotAuthorized)?;
        let said = format!("{},{without_proof}", asked.transcript);
        let signature = mac(&asked.keys.stored, &[said.as_bytes()]);
        for (byte, mask) in client_key.iter_mut().zip(signature) {
            *byte ^= mask;
        }
        let is_right: bool = hash(&client_key).ct_eq(&asked.keys.stored).into();
        if !is_right || !asked.is_known {
            return Err(wrong);
        }
        let user = ByteStr::new(asked.user.as_str()).map_err(|_| wrong)?;
        let signature = mac(&asked.keys.server, &[said.as_bytes()]);
        Ok(Step::Done {
            principal: Principal::new(Some(user), &self.log_in.client_id),
            data: Some(format!("v={}", STANDARD.encode(signature)).into()),
        })
    }
}

impl Exchange for ScramExchange {
    fn step(&mut self, data: Option<Bytes>) -> BoxFuture<'_, Result<Step, Refusal>> {
        // Runs in the connection's task: the slow part is the client's.
        let step = match data {
            Some(data) => self.take(&data),
            // The client lets the server speak first, which has nothing to say (RFC 4422 §3.3).
            None => Err(Refusal::NotAuthorized),
        };
        Box::pin(std::future::ready(step))
    }
}

/// `n,,n=user,r=nonce`
struct ClientFirst<'a> {
    /// `n,,`
    header: &'a str,
    /// The message after the header: RFC 5802's `client-first-message-bare`.
    bare: &'a str,
    user: String,
    nonce: &'a str,
}

impl<'a> ClientFirst<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        // With `y` the client supports channel binding and believes that the server does not, which
        // is right.
        let rest = text
            .strip_prefix("n,")
            .or_else(|| text.strip_prefix("y,"))?;
        let (other, bare) = rest.split_once(',')?;
        let header = &text[..text.len() - bare.len()];
        let (user, rest) = bare.strip_prefix("n=")?.split_once(',')?;
        let nonce = rest.strip_prefix("r=")?;
        let nonce = nonce.split_once(',').map_or(nonce, |(nonce, _)| nonce);
        if nonce.is_empty() || !is_plain(nonce) || !is_plain(user) {
            return None;
        }
        // An authorization identity other than the user is not supported.
        if !other.is_empty() && other.strip_prefix("a=")? != user {
            return None;
        }
        Some(Self {
            header,
            bare,
            user: unescape(user)?,
            nonce,
        })
    }
}

/// Decodes a SASL name: `=2C` is a comma and `=3D` an equals sign.
fn unescape(name: &str) -> Option<String> {
    let mut parts = name.split('=');
    let mut user = parts.next()?.to_owned();
    for part in parts {
        let (sign, rest) = part.split_at_checked(2)?;
        user.push(match sign {
            "2C" => ',',
            "3D" => '=',
            _ => return None,
        });
        user.push_str(rest);
    }
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{hash_text::decode, unknown_users::Secret};

    /// The salt, in Base64, in the example of RFC 7677 §3; the messages below are from that example, too.
    const SALT: &str = "W22ZaJ0SNY7soEsUEjb6gQ==";
    const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                                s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
                                p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn exchange(user_name: Option<&str>) -> ScramExchange {
        exchange_by(user_name, &Secret::random())
    }

    fn exchange_by(user_name: Option<&str>, secret: &Secret) -> ScramExchange {
        let keys = StoredKeys::derive("pencil", &decode(SALT).unwrap(), 4096);
        let passwords = Passwords::parse(&format!("user:{keys}\n"), secret).unwrap();
        let mut log_in = LogIn::new(ByteStr::new("c").unwrap());
        log_in.user_name = user_name.map(|name| ByteStr::new(name).unwrap());
        let mut exchange = ScramExchange::begin(&Arc::new(passwords), &log_in).unwrap();
        exchange.nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0".to_owned();
        exchange
    }

    fn said(step: Result<Step, Refusal>) -> String {
        match step.unwrap() {
            Step::Continue(data) => String::from_utf8(data.to_vec()).unwrap(),
            Step::Done { data, principal } => {
                assert_eq!(principal.user(), Some("user"));
                String::from_utf8(data.unwrap().to_vec()).unwrap()
            }
        }
    }

    #[test]
    fn the_example_of_rfc_7677_goes_through() {
        for user_name in [None, Some("user")] {
            let mut exchange = exchange(user_name);
            assert_eq!(said(exchange.take(CLIENT_FIRST.as_bytes())), SERVER_FIRST);
            assert_eq!(said(exchange.take(CLIENT_FINAL.as_bytes())), SERVER_FINAL);
            assert!(
                exchange.take(CLIENT_FINAL.as_bytes()).is_err(),
                "it is over"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for first in [
            "",
            "n,,n=user",
            "n,,r=x,n=user",
            "p=tls-unique,,n=user,r=x",
            "n,a=other,n=user,r=x",
            "n,,m=ext,n=user,r=x",
            "n,,n=us=er,r=x",
            "n,,n=,r=x",
            "n,,n=user,r=",
        ] {
            let mut exchange = exchange(None);
            assert!(exchange.take(first.as_bytes()).is_err(), "{first}");
        }
        assert!(
            exchange(Some("other"))
                .take(CLIENT_FIRST.as_bytes())
                .is_err()
        );
        for last in [
            "",
            "c=biws,r=rOprNGfwEbeRWgbNEkqO,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            &CLIENT_FINAL.replace("biws", "eSws"),
            &CLIENT_FINAL.replace("p=d", "p=e"),
            &CLIENT_FINAL.replace("ndVQ=", ""),
            &CLIENT_FINAL.replace(",p=", ",x=1,p="),
        ] {
            let mut exchange = exchange(None);
            exchange.take(CLIENT_FIRST.as_bytes()).unwrap();
            assert!(exchange.take(last.as_bytes()).is_err(), "{last}");
        }
    }

    #[test]
    fn a_user_that_is_not_there_is_asked_the_same_and_refused_at_the_end() {
        let secret = Secret::random();
        let asked = || {
            let mut exchange = exchange_by(None, &secret);
            let first = said(exchange.take(b"n,,n=nobody,r=x"));
            let nonce = first.split_once(',').unwrap().0.to_owned();
            let last = format!("c=biws,{nonce},p={}", STANDARD.encode([7; 32]));
            assert!(exchange.take(last.as_bytes()).is_err());
            first
        };
        let first = asked();
        assert!(first.ends_with(",i=4096") && !first.contains(SALT));
        assert_eq!(first, asked(), "its salt is the same each time");
    }

    #[test]
    fn names_with_commas_are_unescaped() {
        assert_eq!(unescape("a=2Cb=3D=3D").as_deref(), Some("a,b=="));
        assert_eq!(unescape("a=2"), None);
        assert_eq!(unescape("a=20"), None);
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let keys = StoredKeys::derive("pencil", b"salt", 4096);
        let text = keys.to_string();
        let rest = text.strip_prefix("$scram-sha-256$").unwrap();
        let read = StoredKeys::parse(rest).unwrap();
        assert!(read.verify("pencil") && !read.verify("pencils"));
        for odd in [
            "",
            "4096",
            "4095$c2FsdA==$$",
            "4096$$YQ==$YQ==",
            "4096$c2FsdA==$YQ==$YQ==",
        ] {
            assert!(StoredKeys::parse(odd).is_err(), "{odd}");
        }
    }
}
