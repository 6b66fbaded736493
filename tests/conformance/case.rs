//! A case: its name, the statements that it shows, and its conversation.

use std::pin::Pin;

use crate::{lab::Lab, packet::Version};

/// Requirement on a broker, as a conversation with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) versions: &'static [Version],
    /// Statements of the two standards, without their `MQTT-`.
    pub(crate) v3_1_1: &'static [&'static str],
    pub(crate) v5: &'static [&'static str],
    pub(crate) broker: BrokerKind,
    pub(crate) run: fn(Lab) -> Run,
}

pub(crate) type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Kind of broker that a case talks to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BrokerKind {
    /// A broker with its defaults, or the broker that was named.
    Any,
    /// This project's, with limits: QoS 1 at most, no retained messages, a longest keep-alive of
    /// [`LIMITED_KEEP_ALIVE`].
    Limited,
    /// This project's, with an authentication method and rules: see [`guard`](crate::guard).
    Guarded,
}

/// Seconds.
pub(crate) const LIMITED_KEEP_ALIVE: u16 = 2;

/// Makes `CASES` out of a table: function, versions, statements of 3.1.1, statements of 5.0.
macro_rules! cases {
    (@kind) => { $crate::case::BrokerKind::Any };
    (@kind limited) => { $crate::case::BrokerKind::Limited };
    (@kind guarded) => { $crate::case::BrokerKind::Guarded };
    ($($name:ident: $versions:ident, [$($v3_1_1:literal),* $(,)?], [$($v5:literal),* $(,)?] $(, $kind:ident)?;)+) => {
        pub(crate) const CASES: &[$crate::case::Case] = &[$(
            $crate::case::Case {
                name: stringify!($name),
                versions: $crate::packet::$versions,
                v3_1_1: &[$($v3_1_1),*],
                v5: &[$($v5),*],
                broker: $crate::case::cases!(@kind $($kind)?),
                run: |lab| Box::pin($name(lab)),
            }
        ),+];
    };
}
pub(crate) use cases;
