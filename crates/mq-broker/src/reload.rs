//! Reload of settings and files while the broker runs: certificates, client authorities and
//! revocation lists, users and rules.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use mq_transport::ClientAuth;
use tracing::warn;

use crate::{
    Error, Settings, Storage,
    admin::Tokens,
    auth::{AccessFiles, FileAccess},
    lock::lock,
};

/// Changes settings that can change while a broker runs. Cheap to clone. See
/// [`Broker::reload_handle`](crate::Broker::reload_handle).
#[derive(Clone, Debug)]
pub struct Reload {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    parts: Vec<Box<dyn Reloadable>>,
    /// Settings that the broker keeps from its start: the key in the configuration file, and the
    /// value.
    fixed: Vec<(&'static str, String)>,
    /// The state of each part's files. A change holds the lock, so that changes do not overlap.
    watched: Mutex<Vec<Watched>>,
}

/// A part of the broker that takes new settings, or new contents of its files, while it runs.
pub(crate) trait Reloadable: fmt::Debug + Send + Sync {
    /// Returns the part's name in the log.
    fn name(&self) -> &'static str;

    /// Returns the files that the part reads.
    fn files(&self) -> Vec<PathBuf>;

    /// Reads and checks everything, and changes nothing yet: the [`Change`] does, and cannot fail.
    /// Without `settings` the present ones stay, and their files are read again.
    fn prepare(&self, settings: Option<&Settings>) -> Result<Change<'_>, Error>;
}

/// A prepared change: calling it puts the new settings in force.
pub(crate) type Change<'a> = Box<dyn FnOnce() + 'a>;

impl Reload {
    /// The interval at which to call [`look`](Self::look). A replaced file is in force after two to
    /// three times this.
    pub const LOOK_EVERY: Duration = Duration::from_secs(2);

    pub(crate) fn new(
        mut parts: Vec<Box<dyn Reloadable>>,
        settings: &Settings,
        stamps: &FirstStamps,
        access: Option<&Arc<FileAccess>>,
    ) -> Self {
        if let Some(access) = access {
            parts.push(Box::new(Access(Arc::clone(access))));
        }
        let watched = parts.iter().map(|part| stamps.watched(&**part)).collect();
        Self {
            shared: Arc::new(Shared {
                parts,
                fixed: fixed(settings),
                watched: Mutex::new(watched),
            }),
        }
    }

    /// Puts in force the parts of `settings` that can change while the broker runs: all of them, or
    /// in case of an error none.
    ///
    /// These are the contents of the access files, and of [`Settings::listen`], for all listeners,
    /// `identity` (`None` leaves it), `client_auth`, `client_crls` and `enforce_crl_expiry`.
    /// Handshakes from then on use them; open connections continue. A warning names other settings
    /// that differ from those of the start, and need a restart.
    ///
    /// # Errors
    /// [`Error::Transport`] or [`Error::Access`], which name the file.
    pub fn apply(&self, settings: &Settings) -> Result<(), Error> {
        let watched = self.lock();
        let parts = &self.shared.parts;
        let changes = parts.iter().map(|part| part.prepare(Some(settings)));
        let changes = changes.collect::<Result<Vec<_>, _>>()?;
        for change in changes {
            change();
        }
        // `look` does not record this: at worst it reads the same files once more, and it misses no
        // change at this very moment.
        drop(watched);
        let now = fixed(settings);
        let differs = self.shared.fixed.iter().zip(&now);
        let differs = differs.filter(|((_, before), (_, now))| before != now);
        let names: Vec<_> = differs.map(|((name, _), _)| *name).collect();
        if !names.is_empty() {
            warn!(
                keys = names.join(", "),
                "reload: changed keys need a restart"
            );
        }
        Ok(())
    }

    /// Checks whether files have been replaced, and puts new contents in force.
    ///
    /// A file counts as replaced when its time, size or inode has changed *and* has stayed for one
    /// interval since: two files that belong together, such as a certificate and its key, are then
    /// both complete. The log names a broken file once, and the old contents stay.
    ///
    /// Blocks until the files have been read, which on storage that hangs does not end: call it in
    /// a thread that serves no connections, as well as [`apply`](Self::apply).
    pub fn look(&self) {
        let mut watched = self.lock();
        for (part, watched) in self.shared.parts.iter().zip(&mut *watched) {
            if !watched.settled(&**part) {
                continue;
            }
            let name = part.name();
            match part.prepare(None) {
                Ok(change) => change(),
                Err(error) => {
                    warn!(name, %error, "reload: failed; previous contents stay in force");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watched>> {
        lock(&self.shared.watched)
    }
}

/// Settings that need a restart to change, by their keys in the configuration file.
fn fixed(settings: &Settings) -> Vec<(&'static str, String)> {
    let Settings {
        listeners,
        listen,
        repeat_at,
        proxies,
        deliveries,
        protocol,
        quotas,
        publish_rate,
        reader_timeout,
        stream_idle_timeout,
        max_connections,
        max_connections_per_address,
        max_handshakes,
        handshake_timeout,
        ticket_file,
        max_session_expiry,
        shutdown_timeout,
        store,
        store_patience,
        admin,
        sys_interval,
        access,
        failures_per_minute,
        take_over,
        bridges,
        cluster,
        // These settings are used by the program.
        hooks: _,
        watch_files: _,
        log: _,
        workers: _,
    } = settings;
    let limits = (
        (protocol, quotas, publish_rate, reader_timeout),
        (max_connections, max_connections_per_address, max_handshakes),
        (handshake_timeout, max_session_expiry, shutdown_timeout),
    );
    let quic = &listen.quic;
    let quic = (
        (quic.repeat, repeat_at, quic.initial_rtt, quic.ack_frequency),
        (
            quic.packet_threshold,
            quic.time_threshold,
            quic.initial_window,
        ),
        (quic.max_bidi_streams, deliveries, stream_idle_timeout),
        quic.mtu_discovery,
    );
    let show = |value: &dyn fmt::Debug| format!("{value:?}");
    vec![
        ("listen", show(&(listeners, proxies))),
        ("tls.early_data", show(&listen.early_data)),
        ("tls.ticket_file", show(ticket_file)),
        (
            "store",
            show(&(store.as_ref().and_then(Storage::file), store_patience)),
        ),
        ("admin", show(&(admin, sys_interval))),
        (
            "auth",
            show(&(access.files(), failures_per_minute, take_over)),
        ),
        ("ws.allowed_origins", show(&listen.allowed_origins)),
        ("congestion", show(&listen.congestion)),
        ("quic", show(&quic)),
        ("limits", show(&limits)),
        ("bridge", show(bridges)),
        ("cluster", show(cluster)),
    ]
}

/// The state of a part's files.
#[derive(Debug)]
struct Watched {
    /// The stamps of the files when their contents were put in force.
    taken: Vec<Option<Stamp>>,
    /// The stamps of the files at the last look.
    seen: Vec<Option<Stamp>>,
}

/// The stamp of a file, which distinguishes a replaced file from the one before it. Follows
/// symbolic links, such as certbot's.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
    /// The time of the last change of its mode, owner or contents: seconds and nanoseconds.
    changed: [i64; 2],
}

/// The stamps of all files from before a broker reads them. A start may take long: a file that is replaced meanwhile is
/// read again.
#[derive(Debug)]
pub(crate) struct FirstStamps(HashMap<PathBuf, Option<Stamp>>);

impl FirstStamps {
    /// Takes the stamps, and reads the certificate again, which the settings have read before.
    pub(crate) fn take(settings: &mut Settings) -> Self {
        let mut files: Vec<_> = settings.admin.token_file.iter().cloned().collect();
        let access = settings.access.files().map(AccessFiles::paths);
        files.extend(access.into_iter().flatten());
        files.extend(settings.listen.client_crls.iter().cloned());
        if let ClientAuth::Optional(path) | ClientAuth::Required(path) =
            &settings.listen.client_auth
        {
            files.push(path.clone());
        }
        let stamps = files.into_iter().map(with_stamp);
        #[cfg(feature = "tls")]
        let stamps = stamps.chain(read_identity_again(settings));
        Self(stamps.collect())
    }

    /// Returns the state of a part's files before the first look.
    fn watched(&self, part: &dyn Reloadable) -> Watched {
        let files = part.files().into_iter();
        Watched {
            taken: files
                .map(|file| self.0.get(&file).cloned().flatten())
                .collect(),
            seen: Vec::new(),
        }
    }
}

impl Watched {
    /// Returns `true`, once, if files are new and have stayed the same since the last look.
    fn settled(&mut self, part: &dyn Reloadable) -> bool {
        let files = part.files().into_iter();
        let now: Vec<_> = files.map(|file| stamp(&file)).collect();
        let settled = now != self.taken && now == self.seen;
        if settled {
            self.taken.clone_from(&now);
        }
        self.seen = now;
        settled
    }
}

/// Reads the certificate again. Returns the stamps of its files from before; none if it cannot be read, so that a look
/// reads it, and logs what is wrong.
#[cfg(feature = "tls")]
fn read_identity_again(settings: &mut Settings) -> Vec<(PathBuf, Option<Stamp>)> {
    let Some(identity) = &mut settings.listen.identity else {
        return Vec::new();
    };
    let Some((chain, key)) = identity.files() else {
        return Vec::new();
    };
    let stamps = [chain, key].map(|file| with_stamp(file.to_owned()));
    let Ok(again) = identity.read_again() else {
        return Vec::new();
    };
    *identity = again;
    stamps.into()
}

fn with_stamp(file: PathBuf) -> (PathBuf, Option<Stamp>) {
    let stamp = stamp(&file);
    (file, stamp)
}

/// Returns the stamp of a file; `None` if there is none.
fn stamp(file: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(file).ok()?;
    #[cfg(unix)]
    let (inode, changed) = {
        use std::os::unix::fs::MetadataExt as _;
        (metadata.ino(), [metadata.ctime(), metadata.ctime_nsec()])
    };
    #[cfg(not(unix))]
    let (inode, changed) = (0, [0; 2]);
    Some(Stamp {
        modified: metadata.modified().ok(),
        len: metadata.len(),
        inode,
        changed,
    })
}

/// The access files: users and rules.
#[derive(Debug)]
struct Access(Arc<FileAccess>);

impl Reloadable for Access {
    fn name(&self) -> &'static str {
        "users and access rules"
    }

    fn files(&self) -> Vec<PathBuf> {
        self.0.paths()
    }

    fn prepare(&self, _: Option<&Settings>) -> Result<Change<'_>, Error> {
        self.0.prepare()
    }
}

/// The operators' tokens for HTTP.
#[derive(Debug)]
pub(crate) struct OperatorTokens(pub(crate) Arc<Tokens>);

impl Reloadable for OperatorTokens {
    fn name(&self) -> &'static str {
        "operators' tokens"
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.0.path().to_owned()]
    }

    fn prepare(&self, _: Option<&Settings>) -> Result<Change<'_>, Error> {
        Ok(Box::new(self.0.prepare()?))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mq_transport::{ConnectOptions, Connector, ServerIdentity, Trust};
    use tokio::sync::watch;

    use super::*;
    use crate::{
        Broker, MemoryStore, Store,
        store::{self, Position, Snapshot, StoreError},
    };

    /// Makes a new certificate and its key; returns the certificate's fingerprint.
    fn make(folder: &Path) -> String {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        fs::write(folder.join("cert.pem"), made.cert.pem()).unwrap();
        load(folder).fingerprint()
    }

    fn load(folder: &Path) -> ServerIdentity {
        ServerIdentity::from_pem_files(folder.join("cert.pem"), folder.join("key.pem")).unwrap()
    }

    fn settings(folder: &Path) -> Settings {
        let listeners = ["tls", "quic", "wss", "tcp"];
        let listeners = listeners.map(|scheme| format!("{scheme}://127.0.0.1:0").parse().unwrap());
        let mut settings = Settings::new(listeners.to_vec());
        settings.listen.identity = Some(load(folder));
        settings.ticket_file = Some(folder.join("tickets"));
        settings
    }

    async fn start(folder: &Path) -> Broker {
        Broker::start(settings(folder)).await.unwrap()
    }

    /// Returns `true` if all encrypted listeners show this certificate.
    async fn shows(broker: &Broker, fingerprint: &str) -> bool {
        let options = ConnectOptions {
            trust: Trust::Fingerprint(fingerprint.to_owned()),
            ..ConnectOptions::default()
        };
        let connector = Connector::new(options).unwrap();
        for address in &broker.addresses()[..3] {
            if connector.connect(address).await.is_err() {
                return false;
            }
        }
        true
    }

    #[tokio::test]
    async fn replaced_files_are_seen_once_they_have_settled() {
        let folder = tempfile::tempdir().unwrap();
        let first = make(folder.path());
        let broker = start(folder.path()).await;
        let reload = broker.reload_handle();
        reload.look();
        assert!(shows(&broker, &first).await);

        let second = make(folder.path());
        reload.look();
        assert!(shows(&broker, &first).await, "it may be half there");
        reload.look();
        assert!(shows(&broker, &second).await);

        // With the key of another certificate the old identity stays, and the files are read again
        // only after a further change.
        let key = fs::read(folder.path().join("key.pem")).unwrap();
        let third = make(folder.path());
        let right = fs::read(folder.path().join("key.pem")).unwrap();
        fs::write(folder.path().join("key.pem"), key).unwrap();
        for _ in 0..3 {
            reload.look();
            assert!(shows(&broker, &second).await);
        }
        fs::write(folder.path().join("key.pem"), right).unwrap();
        reload.look();
        reload.look();
        assert!(shows(&broker, &third).await);
        broker.shutdown().await;
    }

    /// A store whose read takes so long that the certificate is replaced meanwhile.
    #[derive(Debug)]
    struct LateStore {
        folder: PathBuf,
        kept: MemoryStore,
    }

    impl Store for LateStore {
        fn load(&self) -> Result<Snapshot, StoreError> {
            make(&self.folder);
            self.kept.load()
        }

        fn record(&self, changes: Vec<store::Change>) -> Position {
            self.kept.record(changes)
        }

        fn settled(&self) -> watch::Receiver<Position> {
            self.kept.settled()
        }
    }

    #[tokio::test]
    async fn files_that_are_replaced_while_the_broker_starts_are_taken_up() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path());
        let mut settings = settings(folder.path());
        // After the settings were read.
        let second = make(folder.path());
        let store = LateStore {
            folder: folder.path().to_owned(),
            kept: MemoryStore::new(),
        };
        settings.store = Some(Arc::new(store).into());
        let broker = Broker::start(settings).await.unwrap();
        assert!(shows(&broker, &second).await);
        let third = load(folder.path()).fingerprint();
        assert_ne!(third, second);
        let reload = broker.reload_handle();
        reload.look();
        assert!(shows(&broker, &second).await, "it may be half there");
        reload.look();
        assert!(shows(&broker, &third).await);
        broker.shutdown().await;
    }

    #[tokio::test]
    async fn new_settings_are_taken_as_a_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let first = make(folder.path());
        let broker = start(folder.path()).await;
        let second = make(folder.path());
        let mut settings = Settings::new(vec!["tcp://127.0.0.1:1".parse().unwrap()]);
        settings.listen.identity = Some(load(folder.path()));
        settings.listen.client_auth = ClientAuth::Required(folder.path().join("none"));
        let error = broker.reload(&settings).unwrap_err().to_string();
        assert!(error.contains("cannot read the client CA file"), "{error}");
        assert!(shows(&broker, &first).await);

        settings.listen.client_auth = ClientAuth::Off;
        broker.reload(&settings).unwrap();
        assert!(shows(&broker, &second).await);
        // Without an identity in the settings the present one stays.
        settings.listen.identity = None;
        broker.reload(&settings).unwrap();
        assert!(shows(&broker, &second).await);
        broker.shutdown().await;
    }

    #[test]
    fn what_needs_a_restart_is_known_by_its_name() {
        let settings = Settings::new(vec!["tcp://127.0.0.1:1".parse().unwrap()]);
        let mut changed = settings.clone();
        changed.listeners.clear();
        changed.max_handshakes += 1;
        changed.listen.client_crls.push("crl.pem".into());
        let (before, after) = (fixed(&settings), fixed(&changed));
        let differs = before.iter().zip(&after).filter(|(a, b)| a != b);
        let names: Vec<_> = differs.map(|((name, _), _)| *name).collect();
        assert_eq!(names, ["listen", "limits"]);
    }
}
