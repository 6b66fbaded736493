//! The store: sessions, subscriptions, queued, in-flight and retained messages outlive the broker.
//!
//! The broker works from its own memory and tells a [`Store`] of each change. Two rules make that
//! enough:
//!
//! - changes that belong together are recorded together, before anybody sees their consequences;
//! - nothing leaves a connection before its changes so far are settled. So an acknowledgement
//!   promises only what is kept, and a PUBREL or PUBCOMP never runs ahead of the state that
//!   exactly-once delivery rests on.
//!
//! At the start the broker gets back a [`Snapshot`]: the result of [`Snapshot::apply`] over all
//! changes. Wills are not kept: a broker that ends publishes none.

mod disk;
mod error;
mod in_memory;
mod log_position;
mod snapshot;
mod spilled;
mod store_clock;

use std::{
    fmt,
    ops::RangeInclusive,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use mq_codec::{
    ByteStr, PacketId, QoS, SubscriptionId, SubscriptionOptions, TopicFilter, TopicName,
};
use mq_proto::{Delivery, FlowId, Message};
use tokio::sync::watch;

use crate::delivery::{DeliveryTag as _, LaneSlot};

pub use disk::{DiskStore, Durability};
#[doc(hidden)]
pub use disk::{decode_message, encode_message};
pub(crate) use disk::{read_life, read_user, write_life, write_user};
pub use error::StoreError;
pub use in_memory::MemoryStore;
pub(crate) use log_position::{At, LogPosition};
pub(crate) use snapshot::BRIDGE_PREFIX;
pub use snapshot::{FlowRecord, Life, SessionRecord, Snapshot};
pub use spilled::Spilled;
pub(crate) use store_clock::StoreClock;

/// A place, such as a database, for what outlives the broker; [`MemoryStore`] is an example.
///
/// Set it as [`Settings::store`](crate::Settings::store), by [`Storage::Custom`](crate::Storage).
/// Many connections' tasks call the methods, which must not block for long: do the slow part
/// elsewhere and tell by [`settled`](Self::settled) when it is done. Session state is that of §4.1.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Everything that is kept. Called once, before the broker listens.
    ///
    /// # Errors
    /// If it cannot be read, or not all of it: the broker does not start then.
    fn load(&self) -> Result<Snapshot, StoreError>;

    /// Takes changes to keep: all of them or, should the process end before they are settled, none.
    /// Returns at once, and settles them in the order of the calls. The position is the number of
    /// calls so far, this one included.
    fn record(&self, changes: Vec<Change>) -> Position;

    /// The position up to which changes are settled: a restart would find them. It only grows. Drop
    /// the sender when the store has failed for good: connections that wait for it then end, with a
    /// reason, and [`Broker::store_failed`](crate::Broker::store_failed) resolves.
    fn settled(&self) -> watch::Receiver<Position>;

    /// Returns the present time by the clock of the times that are kept. Default the wall clock of the machine.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Whether [`queued`](Self::queued) works, so that queues may go on here beyond what memory holds
    /// ([`Overflow::Spill`](crate::Overflow::Spill)). Default no.
    fn can_spill(&self) -> bool {
        false
    }

    /// Reads messages of a session's queue: those that are settled and were not removed, in the order
    /// of their numbers, as many as have `most` bytes together, and one at least. Blocks.
    ///
    /// # Errors
    /// If they cannot be read, or this store reads only at the start, as is the default.
    fn queued(
        &self,
        client_id: &ByteStr,
        numbers: RangeInclusive<u64>,
        most: usize,
    ) -> Result<Vec<(u64, StoredMessage)>, StoreError> {
        let _ = (numbers, most);
        Err(StoreError::Unsupported {
            place: format!("messages of {:?}", client_id.as_str()),
            problem: "reads only at the start",
        })
    }

    /// Writes all that is settled now to a file, which must not exist yet. Blocks until it is on the
    /// disk; the broker goes on meanwhile.
    ///
    /// # Errors
    /// If it cannot be written, or this store has no backups, as is the default.
    fn back_up(&self, to: &Path) -> Result<(), StoreError> {
        Err(StoreError::Unsupported {
            place: to.display().to_string(),
            problem: "has no backups",
        })
    }
}

/// A place in the order of changes: how many calls of [`Store::record`] came up to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position(pub u64);

/// What tells a broker from others with the same configuration: 48 bits, made by chance.
///
/// It is as old as its store. A copy of the store has the same one. Escaped as 12 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BrokerId(u64);

impl BrokerId {
    const BITS: u32 = 48;

    /// A new one. From the system's generator, which is seeded also when a device starts for the first time: many
    /// devices may have the same image.
    pub(crate) fn random() -> Self {
        Self::from_bits(rand::random())
    }

    /// That of these bits; those above the lowest 48 do not count.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// Its bits, for a store to keep.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

/// A change.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Change {
    /// A change of the session of a client identifier.
    Session(ByteStr, SessionChange),
    /// The topic has this retained message from now on.
    Retained(StoredMessage),
    /// The topic has no retained message any more.
    Unretained(TopicName),
    /// The broker has this identifier from now on. Bridges are known to other brokers by it: a store that forgets it
    /// makes them other clients there after each start.
    BrokerId(BrokerId),
}

/// A change of one session. The first is always [`Attached`](Self::Attached).
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum SessionChange {
    /// A connection has the session. After its end the session lives on for `expiry`, `None` for
    /// ever.
    Attached {
        /// Counted from the end of the connection.
        expiry: Option<Duration>,
        /// The session's user from now on.
        user: User,
    },
    /// No connection has the session any more.
    Detached {
        /// When it ends; `None` for never.
        expires_at: Option<SystemTime>,
    },
    /// The session is gone, with everything in it.
    Ended,
    /// A subscription was made, or replaced.
    Subscribed {
        /// Its filter, which no other of the session has.
        filter: TopicFilter,
        /// What it asks for.
        options: SubscriptionOptions,
        /// Its identifier, if it has one.
        subscription_id: Option<SubscriptionId>,
        /// The slot of the flow that it was made on; 0 for none.
        slot: u16,
    },
    /// A subscription has ended.
    Unsubscribed {
        /// Its filter.
        filter: TopicFilter,
    },
    /// A message waits to be sent.
    Queued {
        /// In the order of the queue, and never used twice in a session.
        number: u64,
        /// The message.
        message: StoredMessage,
    },
    /// A message does not wait any more: it has expired, or was dropped.
    Unqueued {
        /// Its number.
        number: u64,
    },
    /// A message is about to be sent at QoS 1 or 2 for the first time.
    Sent {
        /// The number that it was queued under.
        number: u64,
        /// The identifier that it goes under from now on.
        packet_id: PacketId,
    },
    /// PUBREC came for a message that was sent: only its identifier is needed any more.
    Released {
        /// Its identifier.
        packet_id: PacketId,
    },
    /// A message that was sent is complete, and its identifier free.
    Completed {
        /// Its identifier.
        packet_id: PacketId,
    },
    /// A QoS 2 message was received: a repetition is answered and not delivered.
    Received {
        /// Its identifier.
        packet_id: PacketId,
        /// The flow that it came on, if that keeps the exchange: identifiers are counted by flow.
        flow: Option<FlowId>,
    },
    /// PUBREL came: the identifier stands for a new message from now on.
    ReceivedReleased {
        /// The identifier.
        packet_id: PacketId,
        /// As in [`Received`](Self::Received).
        flow: Option<FlowId>,
    },
    /// A flow is kept from now on, with a lane or without.
    FlowKept {
        /// The flow.
        flow: FlowId,
        /// How it is kept.
        kept: StoredFlow,
    },
    /// Nothing of a flow is kept any more.
    FlowEnded {
        /// The flow.
        flow: FlowId,
    },
}

/// A will as a cluster keeps it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct StoredWill {
    pub(crate) message: StoredMessage,
    /// How long after the end of its connection it is published.
    pub(crate) delay: Duration,
}

/// The user of a session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum User {
    /// Clients without a proven user name: all of them are one user.
    Anonymous,
    /// The user of that name.
    Named(ByteStr),
}

/// A flow (MQTT-next) as it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredFlow {
    /// What the session's subscriptions and messages know it by; not 0.
    pub slot: u16,
    /// How long it is kept after its lane; whole seconds.
    pub expiry: Duration,
    /// When it ends; `None` while it has a lane.
    pub expires_at: Option<SystemTime>,
}

/// A message as it is kept: on its way to one session, or retained.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredMessage {
    /// Topic, payload and properties.
    pub message: Arc<Message>,
    /// At which QoS it is delivered; for a retained message, at most.
    pub qos: QoS,
    /// The RETAIN flag that it is delivered with.
    pub retain: bool,
    /// The subscriptions that it matched.
    pub subscription_ids: Vec<SubscriptionId>,
    /// When it expires.
    pub expires_at: Option<SystemTime>,
    /// Whether it came by a shared subscription, so that another member may get it if this session
    /// ends (§4.8.2).
    pub shared: bool,
    /// The slot of the lane or flow that it waits for; 0 for the control lane. Below 2^15.
    pub slot: u16,
}

impl StoredMessage {
    /// A delivery as it is kept, with times by that clock.
    pub(crate) fn new(delivery: &Delivery, clock: StoreClock<'_>) -> Self {
        Self {
            message: Arc::clone(&delivery.message),
            qos: delivery.qos,
            retain: delivery.retain,
            subscription_ids: delivery.subscription_ids.clone(),
            expires_at: delivery.expires_at.map(|at| clock.time_at(at)),
            shared: delivery.is_shared(),
            slot: delivery.lane().number(),
        }
    }

    /// The delivery again; `number` is what it is known by in its queue, 0 if it is not there.
    pub(crate) fn into_delivery(self, number: u64, clock: StoreClock<'_>) -> Delivery {
        let mut delivery = Delivery {
            message: self.message,
            qos: self.qos,
            retain: self.retain,
            subscription_ids: self.subscription_ids,
            expires_at: self.expires_at.map(|time| clock.instant_of(time)),
            tag: 0,
        };
        delivery.set_number(number);
        if self.shared {
            delivery.set_shared();
        }
        delivery.set_lane(LaneSlot::of_number(self.slot));
        delivery
    }
}
