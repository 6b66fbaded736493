//! A broker on loopback, for tests.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use mq_broker::{Broker, Placement, Settings, Workers, make_token_file};
use mq_client::{Client, ClientBuilder};
use mq_transport::{Address, ConnectOptions, Connector, Scheme, ServerIdentity, Trust};

/// A broker that listens on loopback over every transport, with a certificate made for it.
#[derive(Debug)]
pub struct TestBroker {
    broker: Broker,
    identity: ServerIdentity,
    certificate: tempfile::NamedTempFile,
}

/// Makes a file with a token for operators in a folder; returns the file and the token.
///
/// # Panics
/// If it cannot be made.
#[must_use]
pub fn token_file(folder: &Path) -> (PathBuf, String) {
    let path = folder.join("tokens");
    make_token_file(&path).expect("a file can be made");
    let text = std::fs::read_to_string(&path).expect("it is there");
    (path, text.trim().to_owned())
}

/// Returns the workers of a broker under test: two, or as many as `MQ_WORKERS` says; `None` for 0, which is the test's
/// own runtime. Connections go around among them all the time.
fn workers() -> Option<Workers> {
    let count = std::env::var("MQ_WORKERS").ok();
    let count = count.map_or(2, |count| count.parse().expect("MQ_WORKERS is a number"));
    let mut workers = Workers::new(NonZeroUsize::new(count)?);
    workers.placement = Placement::Restless;
    Some(workers)
}

impl TestBroker {
    /// Starts a broker with the default settings, and early data in full.
    ///
    /// # Panics
    /// If the broker cannot start.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts a broker with settings that `change` has changed.
    ///
    /// # Panics
    /// If the broker cannot start.
    pub async fn start_with(change: impl FnOnce(&mut Settings)) -> Self {
        let identity = ServerIdentity::self_signed().expect("a certificate can be made");
        let listeners = crate::SCHEMES
            .map(|scheme| Address::new(scheme, "127.0.0.1", 0))
            .to_vec();
        let started = Self::start_at(listeners, identity, change).await;
        started.expect("the broker starts")
    }

    async fn start_at(
        listeners: Vec<Address>,
        identity: ServerIdentity,
        change: impl FnOnce(&mut Settings),
    ) -> Result<Self, mq_broker::Error> {
        let certificate = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(certificate.path(), identity.certificate_pem()).expect("a temporary file");
        let mut settings = Settings::new(listeners);
        settings.listen.identity = Some(identity.clone());
        settings.workers = workers();
        change(&mut settings);
        Ok(Self {
            broker: Broker::start(settings).await?,
            identity,
            certificate,
        })
    }

    /// Shuts it down and starts another with the same addresses and certificate; sessions, retained
    /// messages and tickets are gone.
    ///
    /// # Panics
    /// If the broker cannot start again.
    pub async fn restart(self) -> Self {
        self.restart_with(|_| {}).await
    }

    /// Restarts the broker with settings that `change` has changed; earlier changes are not kept.
    ///
    /// # Panics
    /// If the broker cannot start again.
    pub async fn restart_with(self, change: impl Fn(&mut Settings)) -> Self {
        self.restart_after(|| {}, change).await
    }

    /// Restarts the broker as [`restart_with`](Self::restart_with), and calls `meanwhile` while no broker runs.
    ///
    /// # Panics
    /// If the broker cannot start again.
    pub async fn restart_after(
        self,
        meanwhile: impl FnOnce(),
        change: impl Fn(&mut Settings),
    ) -> Self {
        let Self {
            broker, identity, ..
        } = self;
        let listeners = broker.addresses().to_vec();
        broker.shutdown().await;
        meanwhile();
        // A port is free a moment after its last user has gone.
        for _ in 0..50 {
            let started = Self::start_at(listeners.clone(), identity.clone(), &change).await;
            if let Ok(started) = started {
                return started;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("its ports were not free again within 5 s");
    }

    /// Returns the address at which the broker listens with that transport.
    ///
    /// # Panics
    /// If it does not listen with it.
    #[must_use]
    pub fn address(&self, scheme: Scheme) -> Address {
        let found = self
            .broker
            .addresses()
            .iter()
            .find(|at| at.scheme == scheme);
        found.expect("the broker listens there").clone()
    }

    /// Returns the broker under test.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Returns the path of the certificate, PEM, for clients to trust.
    #[must_use]
    pub fn certificate(&self) -> &std::path::Path {
        self.certificate.path()
    }

    /// Makes options that trust the broker's certificate.
    #[must_use]
    pub fn connect_options(&self) -> ConnectOptions {
        ConnectOptions {
            trust: Trust::CaFile(self.certificate.path().to_owned()),
            ..ConnectOptions::default()
        }
    }

    /// Makes a connector that trusts the broker's certificate, with early data or without.
    ///
    /// # Panics
    /// If the connector cannot be made.
    #[must_use]
    pub fn connector(&self, early_data: bool) -> Connector {
        let options = ConnectOptions {
            early_data,
            ..self.connect_options()
        };
        Connector::new(options).expect("valid options")
    }

    /// Makes a client's builder for one of the broker's addresses.
    ///
    /// # Panics
    /// If the identifier is not valid.
    pub fn client(&self, scheme: Scheme, client_id: &str) -> ClientBuilder {
        Client::builder(&self.address(scheme).to_string())
            .expect("a valid address")
            .connector(self.connector(false))
            .client_id(client_id)
            .expect("a valid client identifier")
    }

    /// Shuts the broker down.
    pub async fn shutdown(self) {
        self.broker.shutdown().await;
    }
}
