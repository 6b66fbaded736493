//! The settings of a node of a cluster.

use std::{path::Path, sync::Arc, time::Duration};

use super::{Engine, EngineError, WallClock};
#[cfg(feature = "cluster")]
use super::{NatsEngine, NatsSettings};

/// A node of a cluster.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterSettings {
    /// The node's name, which no other node has.
    pub node: String,
    /// The logs and values that the nodes share.
    pub engine: EngineSettings,
    /// A node of which nothing is heard for so long counts as dead. Default 3 s.
    pub lease: Duration,
    /// Bytes of one log. What is older is forgotten then, even if sessions that are away still wait for it: whoever takes
    /// them over counts it as dropped. Default 10 GB.
    pub log_max_bytes: u64,
    /// Bytes of the last entries of each log that the node keeps in memory, for sessions that come from other nodes: what
    /// they have to get of these is not read from the servers again. Default 4 MiB.
    pub recent_bytes: usize,
    /// The wall clock of the node's machine, which is compared with the servers' time. Default the system's.
    pub wall_clock: WallClock,
}

/// The engine of a cluster, and how a node connects to it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EngineSettings {
    /// NATS `JetStream`, to which [`Broker::start`](crate::Broker::start) connects.
    #[cfg(feature = "cluster")]
    Nats(NatsSettings),
    /// An engine of the application.
    Custom(Arc<dyn Engine>),
}

impl<E: Engine> From<Arc<E>> for EngineSettings {
    fn from(engine: Arc<E>) -> Self {
        Self::Custom(engine)
    }
}

#[cfg(feature = "cluster")]
impl From<NatsSettings> for EngineSettings {
    fn from(settings: NatsSettings) -> Self {
        Self::Nats(settings)
    }
}

impl ClusterSettings {
    /// Makes settings with the defaults.
    #[must_use]
    pub fn new(node: impl Into<String>, engine: impl Into<EngineSettings>) -> Self {
        Self {
            node: node.into(),
            engine: engine.into(),
            lease: Duration::from_secs(3),
            log_max_bytes: 10_000_000_000,
            recent_bytes: 4 << 20,
            wall_clock: WallClock::default(),
        }
    }

    /// # Errors
    /// The mistake, in words for the operator, by the keys of the configuration file.
    #[cfg(feature = "cluster")]
    pub(crate) fn check(&self) -> Result<(), String> {
        match &self.engine {
            EngineSettings::Nats(nats) => nats.check(&self.node).map(drop),
            EngineSettings::Custom(_) => Ok(()),
        }
    }

    /// Checks everything that can be without the servers, files of certificates as well.
    ///
    /// # Errors
    /// The mistake, in words for the operator, by the keys of the configuration file.
    pub fn check_files(&self) -> Result<(), String> {
        match &self.engine {
            #[cfg(feature = "cluster")]
            EngineSettings::Nats(nats) => nats.check_files(&self.node),
            EngineSettings::Custom(_) => Ok(()),
        }
    }

    /// Returns the file of the key by which the node is known to the engine, if there is one.
    pub(crate) fn key(&self) -> Option<&Path> {
        match &self.engine {
            #[cfg(feature = "cluster")]
            EngineSettings::Nats(nats) => nats.identity.as_ref().map(|(_, key)| &**key),
            EngineSettings::Custom(_) => None,
        }
    }

    /// The engine, once it answers; for packets of at most so many bytes.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(clippy::unused_async, reason = "it is with the feature")
    )]
    pub(super) async fn connect(
        &self,
        largest_packet: usize,
    ) -> Result<Arc<dyn Engine>, EngineError> {
        match &self.engine {
            #[cfg(feature = "cluster")]
            EngineSettings::Nats(nats) => {
                let engine = Box::pin(NatsEngine::connect(nats, &self.node)).await?;
                engine.check_size(largest_packet)?;
                Ok(Arc::new(engine))
            }
            EngineSettings::Custom(engine) => {
                // The application knows what its engine takes.
                let _ = largest_packet;
                Ok(Arc::clone(engine))
            }
        }
    }
}
