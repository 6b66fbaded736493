//! The keeper of sessions and messages: a store of the broker's own, or the cluster that it is a node of.

use std::{fmt, sync::Arc};

use tokio::task::JoinSet;

#[cfg(feature = "cluster")]
use crate::{cluster::Cluster, hub::LocalSessions};
use crate::{
    error::Error,
    hub::{Hub, Nodes},
    settings::{Settings, Storage},
    store::{Snapshot, Store},
    view::ClusterStatus,
};

#[cfg(feature = "cluster")]
type Node = Arc<Cluster>;
/// There is none: a build without the feature is no node, and has none of the code of one.
#[cfg(not(feature = "cluster"))]
type Node = std::convert::Infallible;

#[derive(Debug)]
pub(crate) struct Persistence {
    pub(crate) store: Option<Arc<dyn Store>>,
    node: Option<Node>,
}

impl Persistence {
    /// Opens the store, or begins to be a node.
    pub(crate) async fn open(settings: &Settings) -> Result<Self, Error> {
        let store = settings.store.as_ref();
        if settings.cluster.is_none() {
            let store = store.map(Storage::open).transpose()?;
            return Ok(Self { store, node: None });
        }
        if store.is_some() {
            let problem = "a node has no store of its own: the cluster keeps what outlives it";
            return Err(not_joined(problem));
        }
        Self::begin(settings).await
    }

    #[cfg(feature = "cluster")]
    async fn begin(settings: &Settings) -> Result<Self, Error> {
        let largest_packet = settings.protocol.max_packet_size.get();
        let largest_packet = usize::try_from(largest_packet).unwrap_or(usize::MAX);
        let Some(cluster) = &settings.cluster else {
            return Err(not_joined("there is none"));
        };
        let node = Cluster::begin(cluster, largest_packet).await;
        let node = node.map_err(not_joined)?;
        Ok(Self {
            store: Some(Arc::clone(&node) as _),
            node: Some(node),
        })
    }

    #[cfg(not(feature = "cluster"))]
    #[expect(clippy::unused_async, reason = "it is with the feature")]
    async fn begin(_: &Settings) -> Result<Self, Error> {
        let problem =
            "this build is no node of a cluster: build mq-broker with its feature `cluster`";
        Err(not_joined(problem))
    }

    /// Reads what the store has kept; nothing where there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn load(&self) -> Result<Snapshot, Error> {
        let kept = self.store.as_ref().map(|store| store.load());
        Ok(kept.transpose()?.unwrap_or_default())
    }

    /// Returns the other nodes.
    pub(crate) fn nodes(&self) -> Option<Arc<dyn Nodes>> {
        self.node.as_ref().map(nodes)
    }

    /// Returns the cluster as operators see it.
    pub(crate) fn cluster_status(&self) -> Option<Arc<dyn ClusterStatus>> {
        self.node.as_ref().map(status)
    }

    /// Takes part in a cluster, if it is a node of one: with these tasks.
    pub(crate) async fn join_cluster(&self, hub: &Arc<Hub>) -> Result<JoinSet<()>, Error> {
        let mut tasks = JoinSet::new();
        if let Some(node) = &self.node {
            join(node, hub, &mut tasks).await?;
        }
        Ok(tasks)
    }

    /// Leaves the cluster in order, if it is a node of one. No client is connected any more.
    pub(crate) async fn leave_cluster(&self) {
        if let Some(node) = &self.node {
            leave(node).await;
        }
    }
}

#[cfg(feature = "cluster")]
fn nodes(node: &Node) -> Arc<dyn Nodes> {
    Arc::clone(node) as _
}

#[cfg(feature = "cluster")]
fn status(node: &Node) -> Arc<dyn ClusterStatus> {
    Arc::clone(node) as _
}

#[cfg(feature = "cluster")]
async fn join(node: &Node, hub: &Arc<Hub>, tasks: &mut JoinSet<()>) -> Result<(), Error> {
    let local: Arc<dyn LocalSessions> = Arc::clone(hub) as _;
    node.join(&local, tasks).await.map_err(not_joined)
}

#[cfg(feature = "cluster")]
async fn leave(node: &Node) {
    node.leave().await;
}

#[cfg(not(feature = "cluster"))]
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "it is more with the feature"
)]
fn nodes(node: &Node) -> Arc<dyn Nodes> {
    match *node {}
}

#[cfg(not(feature = "cluster"))]
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "it is more with the feature"
)]
fn status(node: &Node) -> Arc<dyn ClusterStatus> {
    match *node {}
}

#[cfg(not(feature = "cluster"))]
#[expect(clippy::unused_async, reason = "it is with the feature")]
async fn join(node: &Node, _: &Arc<Hub>, _: &mut JoinSet<()>) -> Result<(), Error> {
    match *node {}
}

#[cfg(not(feature = "cluster"))]
#[expect(clippy::unused_async, reason = "it is with the feature")]
async fn leave(node: &Node) {
    match *node {}
}

fn not_joined(problem: impl fmt::Display) -> Error {
    let problem = problem.to_string();
    Error::Cluster { problem }
}
