//! The store: sessions, subscriptions, queued, in-flight and retained messages survive a restart of
//! the broker.
//!
//! The broker works from its own memory and records each change in a [`Store`]. Two rules make that
//! sufficient:
//!
//! - changes that belong together are recorded together, before anybody sees their consequences;
//! - nothing leaves a connection before its changes so far are settled. So an acknowledgement
//!   promises only what is kept, and a PUBREL or PUBCOMP never precedes the state that exactly-once
//!   delivery rests on.
//!
//! At the start the broker loads a [`Snapshot`]: the result of [`Snapshot::apply`] over all
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
pub(crate) use disk::{read_filter, read_life, read_user, write_life, write_user};
pub use error::StoreError;
pub use in_memory::MemoryStore;
pub(crate) use log_position::{At, LogPosition};
pub(crate) use snapshot::BRIDGE_PREFIX;
pub use snapshot::{FlowRecord, Life, SessionRecord, Snapshot};
pub use spilled::Spilled;
pub(crate) use store_clock::StoreClock;

/// A store, such as a database, for the state that survives a restart; [`MemoryStore`] is an
/// example.
///
/// Set it as [`Settings::store`](crate::Settings::store), by [`Storage::Custom`](crate::Storage).
/// Many connections' tasks call the methods, which must not block for long, and must not call the broker, whose locks they
/// hold: do the slow part elsewhere and report its end by [`settled`](Self::settled). Session state is that of §4.1.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns the state that is kept. Called once, before the broker listens.
    ///
    /// # Errors
    /// The state, or a part of it, cannot be read: the broker does not start then.
    fn load(&self) -> Result<Snapshot, StoreError>;

    /// Takes changes to keep: all of them or, should the process end before they are settled, none.
    /// Returns at once, and settles them in the order of the calls. The position is the number of
    /// calls so far, this one included.
    fn record(&self, changes: Vec<Change>) -> Position;

    /// Returns the position up to which changes are settled: a restart would find them. The
    /// position only grows. Drop the sender when the store has failed for good: connections that
    /// wait for it then end, with a reason, and
    /// [`Broker::store_failed`](crate::Broker::store_failed) resolves.
    fn settled(&self) -> watch::Receiver<Position>;

    /// Makes everything that was settled durable, so that a restart finds it after a power failure as well. The broker
    /// calls it once, at its orderly end, and waits for some seconds at most: a call that blocks for longer is left
    /// behind. What is recorded afterwards may be lost. Default: nothing is left to do.
    ///
    /// # Errors
    /// If a part of it is not durable: acknowledged messages may be lost.
    fn close(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the present time by the clock of the times that are kept. Default the wall clock of the machine.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Returns `true` if [`queued`](Self::queued) is supported, so that queues may continue in the
    /// store beyond the bounds of memory ([`Overflow::Spill`](crate::Overflow::Spill)). Default
    /// `false`.
    fn can_spill(&self) -> bool {
        false
    }

    /// Reads messages of a session's queue: those that are settled and were not removed, in the
    /// order of their numbers, until they have `most` bytes together, and one at least. Blocks.
    ///
    /// # Errors
    /// The messages cannot be read, or the store reads only at the start, as is the default.
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

    /// Writes everything that is settled now to a file, which must not exist yet. Blocks until it
    /// is on the disk; the broker continues meanwhile.
    ///
    /// # Errors
    /// The file cannot be written, or the store has no backups, as is the default.
    fn back_up(&self, to: &Path) -> Result<(), StoreError> {
        Err(StoreError::Unsupported {
            place: to.display().to_string(),
            problem: "has no backups",
        })
    }
}

/// A place in the order of changes: the number of calls of [`Store::record`] up to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position(pub u64);

/// The identifier that distinguishes a broker from others with the same configuration: 48 random
/// bits.
///
/// A store has the same one for its whole life, and so has a copy of it. Displayed as 12
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BrokerId(u64);

impl BrokerId {
    const BITS: u32 = 48;

    /// Returns a new identifier from the system's random generator, which is seeded also when a
    /// device starts for the first time: many devices may have the same image.
    pub(crate) fn random() -> Self {
        Self::from_bits(rand::random())
    }

    /// Returns the identifier of the lowest 48 of these bits; the others are ignored.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// Returns the identifier's bits, for a store to keep.
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
    /// The broker has this identifier from now on. Remote brokers know its bridges by it: with a
    /// store that forgets it, each start has another client identifier there.
    BrokerId(BrokerId),
}

/// A change of one session. The first is always [`Attached`](Self::Attached).
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum SessionChange {
    /// A connection has the session. The session outlives it by `expiry`, `None` for ever.
    Attached {
        /// The time from the end of the connection to the end of the session.
        expiry: Option<Duration>,
        /// The session's user from now on.
        user: User,
    },
    /// No connection has the session any more.
    Detached {
        /// The end of the session; `None` for never.
        expires_at: Option<SystemTime>,
    },
    /// The session is gone, with everything in it.
    Ended,
    /// A subscription was made, or replaced.
    Subscribed {
        /// The subscription's filter, which no other of the session has.
        filter: TopicFilter,
        /// The subscription's options.
        options: SubscriptionOptions,
        /// The subscription identifier, if it has one.
        subscription_id: Option<SubscriptionId>,
        /// The slot of the flow that it was made on; 0 for none.
        slot: u16,
    },
    /// A subscription has ended.
    Unsubscribed {
        /// The subscription's filter.
        filter: TopicFilter,
    },
    /// A message waits to be sent.
    Queued {
        /// The number of the message in the order of the queue, never used twice in a session.
        number: u64,
        /// The message that waits.
        message: StoredMessage,
    },
    /// A message is removed from the queue: it has expired, or was dropped.
    Unqueued {
        /// The message's number.
        number: u64,
    },
    /// A message is about to be sent at QoS 1 or 2 for the first time.
    Sent {
        /// The number that it was queued under.
        number: u64,
        /// The packet identifier that it is sent with from now on.
        packet_id: PacketId,
    },
    /// PUBREC was received for a message that was sent: only its identifier is needed any more.
    Released {
        /// The packet identifier.
        packet_id: PacketId,
    },
    /// A message that was sent is complete, and its identifier free.
    Completed {
        /// The packet identifier.
        packet_id: PacketId,
    },
    /// A QoS 2 message was received: a repetition is answered and not delivered.
    Received {
        /// The packet identifier.
        packet_id: PacketId,
        /// The flow that it was received on, if the flow keeps the exchange: identifiers are
        /// counted by flow.
        flow: Option<FlowId>,
    },
    /// PUBREL was received: the identifier is free for a new message.
    ReceivedReleased {
        /// The packet identifier.
        packet_id: PacketId,
        /// The flow, as in [`Received`](Self::Received).
        flow: Option<FlowId>,
    },
    /// A flow is kept from now on, with a lane or without.
    FlowKept {
        /// The flow that is kept.
        flow: FlowId,
        /// Slot and expiry of the flow.
        kept: StoredFlow,
    },
    /// Nothing of a flow is kept any more.
    FlowEnded {
        /// The flow that has ended.
        flow: FlowId,
    },
}

/// A will as a cluster keeps it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct StoredWill {
    pub(crate) message: StoredMessage,
    /// The delay from the end of the connection to the publication (Will Delay Interval,
    /// §3.1.3.2.2).
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

/// The kept state of a flow (MQTT-next).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredFlow {
    /// The slot by which the session's subscriptions and messages refer to the flow; not 0.
    pub slot: u16,
    /// The time that the flow outlives its lane; whole seconds.
    pub expiry: Duration,
    /// The end of the flow; `None` while it has a lane.
    pub expires_at: Option<SystemTime>,
}

/// A message of a store: on its way to one session, or retained.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredMessage {
    /// Topic, payload and properties.
    pub message: Arc<Message>,
    /// The QoS of the delivery; for a retained message, the highest.
    pub qos: QoS,
    /// The RETAIN flag that it is delivered with.
    pub retain: bool,
    /// The subscriptions that it matched.
    pub subscription_ids: Vec<SubscriptionId>,
    /// The time at which the message expires; `None` for never.
    pub expires_at: Option<SystemTime>,
    /// `true` if the message was routed by a shared subscription, so that another member may get it
    /// if this session ends (§4.8.2).
    pub shared: bool,
    /// The slot of the lane or flow that it waits for; 0 for the control lane. Below 2^15.
    pub slot: u16,
}

impl StoredMessage {
    /// Converts a delivery, with times by that clock.
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

    /// Converts the message to a delivery; `number` is its number in the queue, 0 if it is not in
    /// one.
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
