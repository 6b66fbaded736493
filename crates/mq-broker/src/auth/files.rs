//! Access from files: passwords, certificates, tokens, rules.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use mq_codec::{QoS, TopicFilter};
use tokio::sync::Semaphore;
use tracing::{debug, info};

use super::{
    Authenticator, Authorizer, BoxFuture, CertificateUser, Exchange, Grant, JwtSettings, LogIn,
    Principal, Refusal,
    acl::{Acl, Rights},
    certificate,
    jwt::{Keys, Token, TokenRules},
    passwords::Passwords,
    scram::{self, ScramExchange},
    unknown_users::Secret,
};
use crate::{Error, error::Mistake, escaped::Escaped, files, lock};

/// The files of a [`FileAccess`]; `docs/guide/access.md` describes their form. With the default no
/// client is accepted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessFiles {
    /// Users and their passwords.
    pub password_file: Option<PathBuf>,
    /// The rules of users (topics that they may publish and receive); without it they may do
    /// everything.
    pub acl_file: Option<PathBuf>,
    /// Take the user from the client's certificate, if it shows one.
    pub certificate_user: Option<CertificateUser>,
    /// Take JSON Web Tokens as passwords.
    pub jwt: Option<JwtSettings>,
    /// `true` if clients that have neither user name nor certificate are let in.
    pub allow_anonymous: bool,
}

/// Passwords, certificates, keys of tokens and rules from files, to be read again with
/// [`reload`](Self::reload).
///
/// A client is identified in this order:
///
/// - by the user in its certificate, if [`certificate_user`](AccessFiles::certificate_user) is set
///   and it shows one (a user name beside it must be the same, and a password is ignored);
/// - by the user of its token, if tokens are accepted and the password has the form of one;
/// - by user name and password;
/// - as anonymous, if it gives neither user name nor password and
///   [`allow_anonymous`](AccessFiles::allow_anonymous) is set.
#[derive(Debug)]
pub struct FileAccess {
    files: AccessFiles,
    /// The secret for a password file that has none: the same whenever the file is read again.
    secret: Secret,
    rules: RwLock<Arc<Rules>>,
    /// The generation of `rules`, to be read without the lock.
    generation: AtomicU64,
    /// Bounds the passwords hashed at once to one per processor: a hash takes a whole processor and
    /// 19 MiB.
    hashing: Arc<Semaphore>,
    /// The clock that the expiry of tokens is checked by.
    clock: Clock,
}

struct Clock(Box<dyn Fn() -> SystemTime + Send + Sync>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

struct Rules {
    generation: u64,
    passwords: Option<Arc<Passwords>>,
    keys: Option<Keys>,
    acl: Option<Acl>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// The next generation. All rules of the process count together, so that no two generations are the
/// same.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

impl AccessFiles {
    fn read(&self, secret: &Secret) -> Result<Rules, Error> {
        let mut mistakes = Vec::new();
        let passwords = self.password_file.as_deref();
        let parse = |text: &str| Passwords::parse(text, secret);
        let passwords = passwords.and_then(|path| read(path, parse, &mut mistakes));
        let keys = self.jwt.as_ref().map(|jwt| &*jwt.keys);
        let keys = keys.and_then(|path| read(path, Keys::parse, &mut mistakes));
        let acl = self.acl_file.as_deref();
        let acl = acl.and_then(|path| read(path, Acl::parse, &mut mistakes));
        if !mistakes.is_empty() {
            return Err(Error::Access(mistakes));
        }
        Ok(Rules {
            generation: GENERATIONS.fetch_add(1, Ordering::Relaxed),
            passwords: passwords.map(Arc::new),
            keys,
            acl,
        })
    }

    /// Returns the paths of the files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let files = [&self.password_file, &self.acl_file];
        let keys = self.jwt.as_ref().map(|jwt| &jwt.keys);
        files.into_iter().flatten().chain(keys).cloned().collect()
    }
}

/// Reads and parses one file; adds what is wrong with it to `mistakes` and returns `None`.
fn read<T, Line: Into<Option<usize>>>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<(Line, String)>>,
    mistakes: &mut Vec<Mistake>,
) -> Option<T> {
    let mistake = |line, problem| Mistake {
        path: path.to_owned(),
        line,
        problem,
    };
    let text = match files::read_text(path) {
        Ok(text) => text,
        Err(error) => {
            mistakes.push(mistake(None, format!("cannot be read: {error}")));
            return None;
        }
    };
    match parse(&text) {
        Ok(parsed) => Some(parsed),
        Err(wrong) => {
            let wrong = wrong.into_iter();
            mistakes.extend(wrong.map(|(line, problem)| mistake(line.into(), problem)));
            None
        }
    }
}

impl FileAccess {
    /// Reads the files.
    ///
    /// # Errors
    /// [`Error::Access`] with every mistake in them.
    pub fn open(files: AccessFiles) -> Result<Self, Error> {
        let secret = Secret::random();
        let rules = files.read(&secret)?;
        let slots = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self {
            files,
            secret,
            generation: AtomicU64::new(rules.generation),
            rules: RwLock::new(Arc::new(rules)),
            hashing: Arc::new(Semaphore::new(slots)),
            clock: Clock(Box::new(SystemTime::now)),
        })
    }

    /// Checks the expiry of tokens by another clock than the system's.
    #[must_use]
    pub fn with_clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Clock(Box::new(now));
        self
    }

    /// Reads the files again. The new rules hold at once, also for connected clients. No client is
    /// disconnected, so a changed password counts from the next log-in on.
    ///
    /// # Errors
    /// [`Error::Access`] with every mistake in the files; the old rules, all of them, stay.
    pub fn reload(&self) -> Result<(), Error> {
        self.prepare().map(|change| change())
    }

    /// Reads the files again. Calling the result puts their contents in force.
    pub(crate) fn prepare(&self) -> Result<Box<dyn FnOnce() + '_>, Error> {
        let rules = self.files.read(&self.secret)?;
        Ok(Box::new(move || {
            let generation = rules.generation;
            *lock::write(&self.rules) = Arc::new(rules);
            // After the rules: a reader that sees the generation sees them, too.
            self.generation.store(generation, Ordering::Release);
            info!("users and access rules reloaded");
        }))
    }

    /// Returns the paths of the files.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.files.paths()
    }

    /// Returns `true` if a file, or tokens, may have rules about topics.
    pub(crate) fn authorizes(&self) -> bool {
        self.files.acl_file.is_some() || self.files.jwt.is_some()
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&lock::read(&self.rules))
    }

    fn rights(&self, who: &Principal) -> Option<Arc<Rights>> {
        let rules = self.rules();
        let acl = rules.acl.as_ref()?;
        Some(who.0.rights.get(rules.generation, || acl.rights(who)))
    }

    async fn find(&self, log_in: &LogIn) -> Result<Principal, Refusal> {
        let client_id = &log_in.client_id;
        if let Some(part) = self.files.certificate_user
            && let Some(certificate) = log_in.peer_certificates.first()
        {
            let user = certificate::user(certificate, part).ok_or(Refusal::NotAuthorized)?;
            if log_in.user_name.as_ref().is_some_and(|name| *name != user) {
                return Err(Refusal::BadUserNameOrPassword);
            }
            return Ok(Principal::new(Some(user), client_id));
        }
        if let Some(outcome) = self.judge_token(log_in) {
            return outcome;
        }
        let Some(user) = log_in.user_name.clone() else {
            if self.files.allow_anonymous && log_in.password.is_none() {
                return Ok(Principal::new(None, client_id));
            }
            return Err(Refusal::NotAuthorized);
        };
        let passwords = self.rules().passwords.clone();
        let (Some(passwords), Some(password)) = (passwords, log_in.password.clone()) else {
            return Err(Refusal::BadUserNameOrPassword);
        };
        let slot = Arc::clone(&self.hashing).acquire_owned().await;
        let slot = slot.map_err(|_| Refusal::ServerUnavailable)?;
        if log_in.is_too_late() {
            return Err(Refusal::TooManyFailures);
        }
        let name = user.clone();
        let verified = tokio::task::spawn_blocking(move || {
            // The slot is held until the hash is done, even if the log-in was given up.
            let _slot = slot;
            passwords.verify(&name, &password)
        });
        match verified.await {
            Ok(true) => Ok(Principal::new(Some(user), client_id)),
            Ok(false) => Err(Refusal::BadUserNameOrPassword),
            Err(_) => Err(Refusal::ServerUnavailable),
        }
    }
}

impl FileAccess {
    /// Returns the principal of the token in the password, or the refusal; `None` if the password
    /// is no token, or tokens are not accepted.
    ///
    /// Runs in the connection's task: on a server RS256 costs 40 µs, Ed25519 75 µs and ES256 85 µs,
    /// about as much as the way to another thread and back.
    fn judge_token(&self, log_in: &LogIn) -> Option<Result<Principal, Refusal>> {
        let rules = self.rules();
        let (settings, keys) = (self.files.jwt.as_ref()?, rules.keys.as_ref()?);
        let token = Token::parse(log_in.password.as_ref()?)?;
        let now = (self.clock.0)();
        let judged = token.judge(keys, settings, now, log_in);
        Some(judged.map_err(|why| {
            let (client, why) = (Escaped(&log_in.client_id), why.to_string());
            debug!(%client, peer = log_in.peer_address.map(tracing::field::display), reason = %Escaped(&why), "token refused");
            Refusal::BadUserNameOrPassword
        }))
    }
}

impl Authenticator for FileAccess {
    fn authenticate<'a>(&'a self, log_in: &'a LogIn) -> BoxFuture<'a, Result<Principal, Refusal>> {
        Box::pin(self.find(log_in))
    }

    fn exchange(&self, method: &str, log_in: &LogIn) -> Option<Box<dyn Exchange>> {
        if method != scram::METHOD {
            return None;
        }
        let passwords = self.rules().passwords.clone()?;
        let exchange = ScramExchange::begin(&passwords, log_in)?;
        Some(Box::new(exchange))
    }

    /// Waits where the user is from the certificate, which may be unknown before the end of the
    /// handshake.
    fn waits_for_handshake(&self, log_in: &LogIn) -> bool {
        self.files.certificate_user.is_some() && log_in.peer_certificates.is_empty()
    }
}

impl Authorizer for FileAccess {
    fn may_publish(&self, who: &Principal, topic: &str, _qos: QoS, _retain: bool) -> bool {
        if let Some(rules) = who.data::<TokenRules>() {
            return rules.may_publish(topic);
        }
        let rights = self.rights(who);
        rights.is_none_or(|rights| rights.may_publish(topic))
    }

    fn may_receive(&self, who: &Principal, topic: &str) -> bool {
        if let Some(rules) = who.data::<TokenRules>() {
            return rules.may_receive(topic);
        }
        let rights = self.rights(who);
        rights.is_none_or(|rights| rights.may_receive(topic))
    }

    fn subscription(&self, who: &Principal, filter: &TopicFilter) -> Grant {
        if let Some(rules) = who.data::<TokenRules>() {
            return rules.subscription(filter);
        }
        let rights = self.rights(who);
        rights.map_or(Grant::All, |rights| rights.subscription(filter))
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mq_codec::ByteStr;

    use super::*;
    use crate::auth::{Hashing, Throttle, Tried, passwords::edit};

    struct Files {
        folder: tempfile::TempDir,
    }

    impl Files {
        fn new() -> Self {
            let files = Self {
                folder: tempfile::tempdir().unwrap(),
            };
            files.write("passwords", &line("ann", "a"));
            files.write("acl", "user ann\ntopic a/#\n");
            files
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).unwrap();
        }

        fn open(&self) -> FileAccess {
            let files = AccessFiles {
                password_file: Some(self.path("passwords")),
                acl_file: Some(self.path("acl")),
                ..AccessFiles::default()
            };
            FileAccess::open(files).unwrap()
        }
    }

    fn line(user: &str, password: &str) -> String {
        let password = Some((password.as_bytes(), Hashing::ScramSha256));
        edit("", user, password).unwrap().0
    }

    fn log_in(user: &str, password: &'static str) -> LogIn {
        let mut log_in = LogIn::new(ByteStr::new("c").unwrap());
        log_in.user_name = Some(ByteStr::new(user).unwrap());
        log_in.password = Some(password.into());
        log_in
    }

    #[tokio::test]
    async fn users_come_in_with_their_password_and_nobody_else() {
        let files = Files::new();
        let mut access = files.open();
        let ann = access.authenticate(&log_in("ann", "a")).await.unwrap();
        assert_eq!((ann.user(), ann.client_id()), (Some("ann"), "c"));
        assert!(access.may_publish(&ann, "a/b", QoS::AtMostOnce, false));
        assert!(!access.may_receive(&ann, "b"));
        for wrong in [log_in("ann", "b"), log_in("bob", "a"), log_in("ann", "")] {
            let refused = access.authenticate(&wrong).await.unwrap_err();
            assert_eq!(refused, Refusal::BadUserNameOrPassword);
            assert!(!format!("{wrong:?}").contains("\"a\""));
        }
        let nobody = LogIn::new(ByteStr::new("c").unwrap());
        let refused = access.authenticate(&nobody).await.unwrap_err();
        assert_eq!(refused, Refusal::NotAuthorized);
        access.files.allow_anonymous = true;
        let anonymous = access.authenticate(&nobody).await.unwrap();
        assert_eq!(anonymous.user(), None);
        let mut password_alone = log_in("x", "a");
        password_alone.user_name = None;
        assert!(access.authenticate(&password_alone).await.is_err());
    }

    /// Log-ins that began before the first failure, and wait for their turn, are refused as well.
    #[tokio::test]
    async fn many_log_ins_at_once_do_not_get_around_the_limit() {
        let access = Files::new().open();
        let throttle = Arc::new(Throttle::new(std::num::NonZeroU32::MIN));
        let mut right = log_in("ann", "a");
        right.set_gate(&throttle, Tried::Unproven);
        assert!(access.authenticate(&right).await.is_ok());
        throttle.failed(Tried::Unproven, std::time::Instant::now());
        let refused = access.authenticate(&right).await.unwrap_err();
        assert_eq!(refused, Refusal::TooManyFailures);
        let mut exchange = access.exchange(scram::METHOD, &right).unwrap();
        let first = exchange.step(Some("n,,n=ann,r=x".into())).await;
        assert_eq!(first.unwrap_err(), Refusal::TooManyFailures);
    }

    /// Returns the part of server-first that an unauthenticated client sees: salt and iteration
    /// count.
    async fn asked(access: &FileAccess, user: &str) -> String {
        let log_in = LogIn::new(ByteStr::new("c").unwrap());
        let mut exchange = access.exchange(scram::METHOD, &log_in).unwrap();
        let first = exchange.step(Some(format!("n,,n={user},r=x").into())).await;
        let Ok(crate::auth::Step::Continue(said)) = first else {
            panic!("{user} should be asked, not {first:?}");
        };
        let said = String::from_utf8(said.to_vec()).unwrap();
        said.split_once(',').unwrap().1.to_owned()
    }

    #[tokio::test]
    async fn what_an_unknown_user_is_asked_is_like_the_others_and_stays_as_it_is() {
        let keys = |name: &str, iterations| {
            let keys =
                crate::auth::scram_keys::StoredKeys::derive("x", name.as_bytes(), iterations);
            format!("{name}:{keys}\n")
        };
        let files = Files::new();
        let few: String = ["few1", "few2"].map(|name| keys(name, 4_096)).concat();
        let many: String = ["mny1", "mny2"].map(|name| keys(name, 5_000)).concat();
        let names: Vec<_> = (0..40).map(|number| format!("x{number}")).collect();
        let all = async |access: &FileAccess| {
            let mut all = Vec::new();
            for name in &names {
                all.push(asked(access, name).await);
            }
            all
        };
        files.write("passwords", &format!("{few}{many}"));
        let access = files.open();
        let before = all(&access).await;
        for end in [",i=4096", ",i=5000"] {
            let count = before.iter().filter(|said| said.ends_with(end)).count();
            assert!((1..40).contains(&count), "{count} {end}");
        }
        // The file is read again with the users in another order.
        files.write("passwords", &format!("{many}{few}"));
        access.reload().unwrap();
        assert_eq!(all(&access).await, before);
        // With fewer users, the salt and iterations of an unknown user change as a whole or not at
        // all.
        files.write("passwords", &few);
        access.reload().unwrap();
        for (before, after) in before.iter().zip(all(&access).await) {
            let salt = |said: &str| said.split_once(',').unwrap().0.to_owned();
            assert!(*before == after || salt(before) != salt(&after), "{after}");
        }
        // A secret in the file makes them survive a restart.
        let secret = Secret::random().line();
        files.write("passwords", &format!("{secret}\n{few}{many}"));
        let started = all(&files.open()).await;
        assert_eq!(all(&files.open()).await, started);
    }

    #[tokio::test]
    async fn a_reload_takes_up_all_or_nothing() {
        let files = Files::new();
        let access = files.open();
        let ann = access.authenticate(&log_in("ann", "a")).await.unwrap();
        let before = access.generation();
        files.write("passwords", &line("bob", "b"));
        files.write("acl", "user ann\ntopic b/#\nrubbish\n");
        let error = access.reload().unwrap_err().to_string();
        assert!(error.contains("acl: line 3: `rubbish` is not"), "{error}");
        assert_eq!(access.generation(), before);
        assert!(access.authenticate(&log_in("ann", "a")).await.is_ok());
        assert!(access.may_receive(&ann, "a/x"));

        files.write("acl", "user ann\ntopic b/#\n");
        access.reload().unwrap();
        assert_ne!(access.generation(), before);
        assert!(access.may_receive(&ann, "b/x") && !access.may_receive(&ann, "a/x"));
        assert!(access.authenticate(&log_in("ann", "a")).await.is_err());
        assert!(access.authenticate(&log_in("bob", "b")).await.is_ok());
    }

    /// The token and key of RFC 7515 §A.3, judged at a time before the token expired.
    #[cfg(feature = "jwt")]
    #[tokio::test]
    async fn what_looks_like_a_token_is_judged_as_one_alone() {
        const TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
        const KEYS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256",
            "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
            "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;
        let unsigned = TOKEN.rsplit_once('.').unwrap().0;
        let unsigned: &'static str = format!("{unsigned}.").leak();
        let files = Files::new();
        files.write("jwks.json", KEYS);
        // Ann's password is one that looks like a token.
        files.write(
            "passwords",
            &(line("ann", unsigned) + &line("bob", "a.b.c")),
        );
        let mut jwt = JwtSettings::new(files.path("jwks.json"));
        jwt.user_claim = "iss".to_owned();
        let open = |jwt| {
            let files = AccessFiles {
                password_file: Some(files.path("passwords")),
                acl_file: Some(files.path("acl")),
                jwt,
                ..AccessFiles::default()
            };
            FileAccess::open(files).unwrap()
        };
        let expired = open(Some(jwt.clone()));
        let expiry = SystemTime::UNIX_EPOCH + std::time::Duration::from_mins(21_680_323);
        let access = open(Some(jwt)).with_clock(move || expiry);
        let joe = access.authenticate(&log_in("joe", TOKEN)).await.unwrap();
        assert_eq!(joe.user(), Some("joe"));
        assert!(!access.may_publish(&joe, "a/b", QoS::AtMostOnce, false));
        assert!(access.authenticate(&log_in("bob", "a.b.c")).await.is_ok());
        for (access, wrong) in [
            (&access, log_in("ann", TOKEN)),
            (&access, log_in("ann", unsigned)),
            (&expired, log_in("joe", TOKEN)),
        ] {
            let refused = access.authenticate(&wrong).await.unwrap_err();
            assert_eq!(refused, Refusal::BadUserNameOrPassword);
        }
        let without = open(None);
        assert!(without.authenticate(&log_in("ann", unsigned)).await.is_ok());
        assert!(without.authenticate(&log_in("joe", TOKEN)).await.is_err());
    }

    #[test]
    fn every_mistake_is_told() {
        let files = Files::new();
        files.write("passwords", "ann:secret\nbob:secret\n");
        files.write("acl", "topc x\n");
        let wrong = AccessFiles {
            password_file: Some(files.path("passwords")),
            acl_file: Some(files.path("acl")),
            ..AccessFiles::default()
        };
        let Err(Error::Access(mistakes)) = FileAccess::open(wrong) else {
            panic!("it should not open");
        };
        assert_eq!(mistakes.len(), 3, "{mistakes:?}");
        let missing = AccessFiles {
            acl_file: Some(files.path("none")),
            ..AccessFiles::default()
        };
        let error = FileAccess::open(missing).unwrap_err().to_string();
        assert!(error.contains("none: cannot be read"), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}
