//! The means of a case: a broker, a version, and names of its own.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mq_transport::{Address, Connector};

use crate::{
    packet::{Connect, Version},
    reply::ConnAck,
    wire::Wire,
};

/// A broker under test, at one of its addresses.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) connector: Connector,
    /// `true` if clients put their packets on a data stream, where they may.
    pub(crate) on_streams: bool,
    /// `true` for this project's broker, which has to do more than the standards require.
    pub(crate) own: bool,
    /// Tells runs apart on a broker that outlives them.
    pub(crate) seed: u32,
}

impl Target {
    /// Names the transport, and what is special about it.
    pub(crate) fn name(&self) -> String {
        let streams = if self.on_streams { "+data" } else { "" };
        format!("{}{streams}", self.address.scheme)
    }
}

/// Makes names different; all transports lead to the same broker.
static NAMES: AtomicU32 = AtomicU32::new(0);

/// The means of one run of a case.
#[derive(Clone, Debug)]
pub(crate) struct Lab {
    target: Arc<Target>,
    pub(crate) version: Version,
    /// In front of client identifiers and topics.
    prefix: String,
}

impl Lab {
    pub(crate) fn new(target: Arc<Target>, version: Version) -> Self {
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        // MQTT 3.1 has room for 23 characters.
        let prefix = format!("c{:05x}{number:x}", target.seed & 0xF_FFFF);
        Self {
            target,
            version,
            prefix,
        }
    }

    /// Returns `true` if the broker is this project's own.
    pub(crate) fn is_own(&self) -> bool {
        self.target.own
    }

    /// Makes a source of numbers that follow from the run's seed and from this run of the case.
    pub(crate) fn random(&self) -> fastrand::Rng {
        let own = self.prefix.bytes().fold(0, |hash: u64, byte| {
            hash.wrapping_mul(31).wrapping_add(byte.into())
        });
        fastrand::Rng::with_seed(own)
    }

    /// Makes a client identifier of this run's own; `who` has up to ten characters.
    pub(crate) fn id(&self, who: &str) -> String {
        let id = format!("{}{who}", self.prefix);
        assert!(id.len() <= 23, "{id} is too long for MQTT 3.1");
        id
    }

    /// Makes a topic, or a filter, under a level of this run's own.
    pub(crate) fn topic(&self, rest: &str) -> String {
        format!("{}/{rest}", self.prefix)
    }

    /// Opens a link on which nothing was sent yet.
    pub(crate) async fn open(&self) -> Wire {
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        let link = self.target.connector.connect(&self.target.address).await;
        let link = link.expect("the broker should accept a link");
        // Not where a case's own wildcards would find it.
        let fence = format!("fence/{}/{number:x}", self.prefix);
        let wire = Wire::new(link, self.version, self.target.own, fence);
        if self.target.on_streams {
            wire.on_streams()
        } else {
            wire
        }
    }

    /// Makes a CONNECT with a clean start and nothing else.
    pub(crate) fn hello(&self, who: &str) -> Connect {
        Connect::new(self.version, &self.id(who))
    }

    /// Makes a CONNECT for a session that is kept.
    pub(crate) fn kept(&self, who: &str) -> Connect {
        Connect::kept(self.version, &self.id(who))
    }

    /// Connects a client, with a clean start.
    pub(crate) async fn client(&self, who: &str) -> Wire {
        self.connected(&self.hello(who)).await.0
    }

    /// Connects a client with that CONNECT, and returns it with CONNACK.
    pub(crate) async fn connected(&self, connect: &Connect) -> (Wire, ConnAck) {
        let mut wire = self.open().await;
        wire.send(connect.bytes()).await;
        let ack = wire.connack().await;
        assert_eq!(ack.code, 0, "{ack:?}");
        (wire, ack)
    }

    /// Sends a CONNECT as it is, and returns the answer, or `None` if the broker closes without one. Checks that the
    /// broker closes after a refusal.
    pub(crate) async fn answer(&self, connect: impl AsRef<[u8]>) -> Option<ConnAck> {
        let mut wire = self.open().await;
        wire.send(connect).await;
        let packet = wire.next().await?;
        assert_eq!(packet.first, 0x20, "CONNACK should come, not {packet:?}");
        let ack = packet.connack(self.version);
        if ack.code > 0 {
            wire.closed().await;
        }
        Some(ack)
    }

    /// Asserts that a CONNECT is refused: the connection is closed, at most after a CONNACK, which
    /// MQTT 5.0 allows, with one of these reason codes.
    pub(crate) async fn not_let_in(&self, connect: impl AsRef<[u8]>, codes: &[u8]) {
        let connect = connect.as_ref();
        match self.answer(connect).await {
            None => {}
            Some(ack) => assert!(
                self.version == Version::V5 && codes.contains(&ack.code),
                "{connect:02X?}: {ack:?}, not {codes:02X?}"
            ),
        }
    }

    /// Sends these bytes, and expects the broker to refuse this client, and no other, with one of these
    /// reason codes.
    pub(crate) async fn refuses(&self, bytes: impl AsRef<[u8]>, codes: &[u8]) {
        let mut wire = self.client("bad").await;
        let bytes = bytes.as_ref();
        wire.send(bytes).await;
        wire.refused_for(bytes, codes).await;
    }

    /// Removes a retained message, as a client without a subscription to it.
    pub(crate) async fn forget(&self, topic: &str) {
        self.client("forget").await.retain(topic, "", 1).await;
    }

    /// Checks that a client that sends these bytes, which need no answer, goes on.
    pub(crate) async fn takes(&self, bytes: impl AsRef<[u8]>) {
        let mut wire = self.client("good").await;
        wire.send(bytes).await;
        wire.alive().await;
    }
}
