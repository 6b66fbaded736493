//! The policy about another user's CONNECT with a client identifier in use.

use serde::Deserialize;

/// The broker's answer to a CONNECT with the client identifier of another user's session.
///
/// A session belongs to the user that began it, connected or not, and also after a restart where
/// there is a store. All clients without a user are one user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TakeOverPolicy {
    /// The CONNECT is refused with 0x85, Client Identifier not valid; before 5.0 with return code
    /// 2. The session stays as it is, and its connection open.
    #[default]
    SameUser,
    /// The CONNECT ends the session and its connection, and begins a new session. Any client that
    /// is accepted can end any other's session.
    AnyUser,
}
