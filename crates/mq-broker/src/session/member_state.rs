//! The part that a session has in its shared subscriptions, as it was published last to the nodes of a cluster.

/// The part that a session has in a shared subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberState {
    /// The session has a connection.
    Present,
    /// The session has no connection: it gets messages if no other member is present.
    Away,
    /// The session is no member any more.
    Gone,
}
