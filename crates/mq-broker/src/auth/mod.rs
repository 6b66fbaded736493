//! Authentication and authorization of clients.
//!
//! An [`Authenticator`] identifies a client, an [`Authorizer`] decides what it may publish and
//! receive. [`FileAccess`] is both, from files of passwords, of keys that sign tokens, and of
//! rules; `docs/guide/access.md` describes their form. Without an authenticator every client that
//! reaches a listener is accepted; without an authorizer it may do everything.
//!
//! ```
//! use mq_broker::{Broker, Settings, auth::*};
//! use mq_codec::{QoS, TopicFilter};
//! use std::sync::Arc;
//!
//! /// Lets in clients with a user name, and keeps each of them below a topic of that name.
//! #[derive(Debug)]
//! struct ByName;
//!
//! impl Authenticator for ByName {
//!     fn authenticate<'a>(
//!         &'a self,
//!         log_in: &'a LogIn,
//!     ) -> BoxFuture<'a, Result<Principal, Refusal>> {
//!         Box::pin(async move {
//!             let user = log_in.user_name.clone().ok_or(Refusal::NotAuthorized)?;
//!             Ok(Principal::new(Some(user), &log_in.client_id))
//!         })
//!     }
//! }
//!
//! impl Authorizer for ByName {
//!     fn may_publish(&self, who: &Principal, topic: &str, _qos: QoS, _retain: bool) -> bool {
//!         self.may_receive(who, topic)
//!     }
//!
//!     fn may_receive(&self, who: &Principal, topic: &str) -> bool {
//!         let first = topic.split('/').next();
//!         who.user().is_some_and(|user| first == Some(user))
//!     }
//!
//!     fn subscription(&self, _who: &Principal, _filter: &TopicFilter) -> Grant {
//!         Grant::Some // each message is looked at
//!     }
//!
//!     fn generation(&self) -> u64 {
//!         0 // the rule never changes
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut settings = Settings::new(vec!["tcp://127.0.0.1:0".parse()?]);
//! settings.access = Access::custom(Arc::new(ByName));
//! let broker = Broker::start(settings).await?;
//! # broker.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Early data
//!
//! With 0-RTT the broker receives CONNECT before the handshake has ended ([`LogIn::early`]), and
//! answers it then, too. A ticket is taken once (RFC 8446 §8.1), so a copy of the datagrams that
//! arrives later finds it used. These risks remain:
//!
//! - A copy that overtakes the original is acted on, and the original then is again, without early
//!   data (RFC 8446 §8, RFC 9001 §9.2). So the authenticator may see a log-in twice.
//!   `docs/guide/access.md` has a table of what else may come twice; QoS 2 never does.
//! - The password, or the token, of such a CONNECT is encrypted under the ticket alone, without
//!   forward secrecy: an attacker that later gets the ticket, or the
//!   [`ticket_file`](crate::Settings::ticket_file), can read it.
//! - Single use rests on one broker's memory. Where two brokers share tickets, or an old copy of
//!   the ticket file is put back, an attacker can use a ticket twice.
//! - A client that resumes does not show its certificate again. The certificate of the earlier
//!   connection counts, and is not checked anew.
//! - Over QUIC the client's address is not proven yet. Refused log-ins of this kind are counted
//!   together, and while there are too many, others wait for the end of their handshake.
//!
//! An authenticator that does not accept this says so for each log-in
//! ([`Authenticator::waits_for_handshake`]): CONNECT is then held back until the handshake is
//! complete, which costs that client the round trip that 0-RTT would have saved. By default nothing
//! waits, passwords included.

mod access;
mod access_control;
mod acl;
mod authentication;
mod certificate;
mod files;
mod hash_text;
mod jwt;
mod password_file;
mod passwords;
mod scram;
mod scram_keys;
mod take_over;
mod throttle;
mod unknown_users;

use std::{any::Any, fmt, net::SocketAddr, pin::Pin, sync::Arc, time::Instant};

use bytes::Bytes;
use mq_codec::{ByteStr, QoS, ReasonCode, TopicFilter, Version};
use mq_transport::{Certificate, Link, Scheme};

use crate::store::User;

pub use access::Access;
pub(crate) use access_control::AccessControl;
pub(crate) use acl::Filter;
pub(crate) use authentication::Authentication;
pub use certificate::CertificateUser;
pub use files::{AccessFiles, FileAccess};
pub use jwt::JwtSettings;
pub use password_file::change_password;
pub use passwords::Hashing;
pub use take_over::TakeOverPolicy;
use throttle::Gate;
pub(crate) use throttle::{Throttle, Tried};

/// A future that an object-safe trait can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Credentials and connection of a client that logs in, from CONNECT and its link.
#[derive(Clone)]
#[non_exhaustive]
pub struct LogIn {
    /// The client identifier, chosen by the broker if the client sent none.
    pub client_id: ByteStr,
    /// The client's version of MQTT.
    pub version: Version,
    /// The user name of CONNECT, not proven yet.
    pub user_name: Option<ByteStr>,
    /// The password, or token, that proves the user name.
    pub password: Option<Bytes>,
    /// The client's address; `None` on mem.
    pub peer_address: Option<SocketAddr>,
    /// The transport of the connection.
    pub scheme: Scheme,
    /// The client's certificate, which the listener has verified, and the chain above it. Empty if
    /// the client showed none.
    pub peer_certificates: Vec<Certificate>,
    /// `true` if CONNECT was early data of a handshake that has not ended; see [the module](self).
    pub early: bool,
    gate: Option<Gate>,
}

impl LogIn {
    /// Makes the log-in of an MQTT 5.0 client without user or address, for tests, which can set the fields.
    #[must_use]
    pub fn new(client_id: ByteStr) -> Self {
        Self {
            client_id,
            version: Version::V5,
            user_name: None,
            password: None,
            peer_address: None,
            scheme: Scheme::Mem,
            peer_certificates: Vec::new(),
            early: false,
            gate: None,
        }
    }

    /// Makes the log-in of a client on a link.
    pub(crate) fn of(
        link: &Link,
        client_id: ByteStr,
        version: Version,
        user_name: Option<ByteStr>,
        password: Option<Bytes>,
    ) -> Self {
        let info = link.info();
        Self {
            client_id,
            version,
            user_name,
            password,
            peer_address: info.peer_address,
            scheme: info.scheme,
            peer_certificates: info.peer_certificates,
            early: link.is_early(),
            gate: None,
        }
    }

    /// Returns the log-in as a later step of an enhanced authentication may need it.
    pub(crate) fn without_secrets(&self) -> Self {
        Self {
            password: None,
            gate: None,
            ..self.clone()
        }
    }

    /// Returns the key that failures of this log-in are counted by; `None` without an address.
    pub(crate) fn tried(&self) -> Option<Tried> {
        Tried::new(self.peer_address, self.scheme, self.early)
    }

    pub(crate) fn set_gate(&mut self, throttle: &Arc<Throttle>, tried: Tried) {
        self.gate = Some(Gate::new(throttle, tried));
    }

    /// Returns `true` if too many log-ins from the same address have failed since this one began.
    /// An authenticator whose attempts are costly calls this right before each, so that many at
    /// once do not get around the limit, and answers [`Refusal::TooManyFailures`].
    #[must_use]
    pub fn is_too_late(&self) -> bool {
        self.gate.as_ref().is_some_and(Gate::is_shut)
    }
}

/// Leaves out the password.
impl fmt::Debug for LogIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogIn")
            .field("client_id", &self.client_id.as_str())
            .field("version", &self.version)
            .field("user_name", &self.user_name.as_deref())
            .field("password", &self.password.as_ref().map(|_| ".."))
            .field("peer_address", &self.peer_address)
            .field("scheme", &self.scheme)
            .field("peer_certificates", &self.peer_certificates.len())
            .field("early", &self.early)
            .finish_non_exhaustive()
    }
}

/// An authenticated client: user, client identifier and the authenticator's data. Clones are the
/// same principal.
#[derive(Clone)]
pub struct Principal(Arc<PrincipalInner>);

struct PrincipalInner {
    user: Option<ByteStr>,
    client_id: ByteStr,
    data: Option<Arc<dyn Any + Send + Sync>>,
    expires_at: Option<Instant>,
    /// Rights by an access file, as last computed.
    rights: acl::CachedRights,
}

impl Principal {
    /// Makes the principal of a user with a client identifier; `None` is a client without a user
    /// name.
    #[must_use]
    pub fn new(user: Option<ByteStr>, client_id: &ByteStr) -> Self {
        Self::with_optional_data(user, client_id, None)
    }

    /// Makes a principal with data that the [`Authenticator`] leaves for an [`Authorizer`], such as
    /// the rules of a token.
    #[must_use]
    pub fn with_data<T: Any + Send + Sync>(
        user: Option<ByteStr>,
        client_id: &ByteStr,
        data: T,
    ) -> Self {
        Self::with_optional_data(user, client_id, Some(Arc::new(data)))
    }

    fn with_optional_data(
        user: Option<ByteStr>,
        client_id: &ByteStr,
        data: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(PrincipalInner {
            // Copied, as they outlive the packet that they came in.
            user: user.map(|user| user.detached()),
            client_id: client_id.detached(),
            data,
            expires_at: None,
            rights: acl::CachedRights::default(),
        }))
    }

    /// Sets the end of the principal's connections: at that time the broker closes them, for 5.0
    /// clients with 0xA0.
    #[must_use]
    pub fn until(self, expires_at: Instant) -> Self {
        let Self(this) = self;
        Self(Arc::new(PrincipalInner {
            user: this.user.clone(),
            client_id: this.client_id.clone(),
            data: this.data.clone(),
            expires_at: Some(expires_at),
            rights: acl::CachedRights::default(),
        }))
    }

    /// Returns the time at which the broker closes this principal's connections, if [`until`](Self::until) has set one.
    #[must_use]
    pub fn expires_at(&self) -> Option<Instant> {
        self.0.expires_at
    }

    /// Returns the authenticated user name; `None` if the client gave none.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.0.user.as_deref()
    }

    /// Returns the client identifier.
    #[must_use]
    pub fn client_id(&self) -> &str {
        &self.0.client_id
    }

    /// Returns the data of [`with_data`](Self::with_data), if it is a `T`.
    #[must_use]
    pub fn data<T: Any>(&self) -> Option<&T> {
        self.0.data.as_deref()?.downcast_ref()
    }

    /// Returns the user that owns the principal's sessions.
    pub(crate) fn as_user(&self) -> User {
        match &self.0.user {
            Some(name) => User::Named(name.clone()),
            None => User::Anonymous,
        }
    }

    /// Returns `true` if both are the same user, or neither has a user name.
    pub(crate) fn is_same_user(&self, other: &Self) -> bool {
        self.0.user == other.0.user
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Principal")
            .field("user", &self.user())
            .field("client_id", &self.client_id())
            .finish_non_exhaustive()
    }
}

/// The reason for which a log-in is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// User name and password, or what stands for them, are wrong: 0x86, before 5.0 return code 4.
    BadUserNameOrPassword,
    /// The client may not connect: 0x87, before 5.0 return code 5.
    NotAuthorized,
    /// The client is banned: 0x8A, before 5.0 return code 5.
    Banned,
    /// The log-in cannot be verified now: 0x88, before 5.0 return code 3. Clients retry.
    ServerUnavailable,
    /// Too many log-ins have failed: 0x9F, before 5.0 return code 3. Clients retry.
    TooManyFailures,
}

impl Refusal {
    /// Returns the reason code of CONNACK.
    #[must_use]
    pub fn reason_code(self) -> ReasonCode {
        match self {
            Self::BadUserNameOrPassword => ReasonCode::BadUserNameOrPassword,
            Self::NotAuthorized => ReasonCode::NotAuthorized,
            Self::Banned => ReasonCode::Banned,
            Self::ServerUnavailable => ReasonCode::ServerUnavailable,
            Self::TooManyFailures => ReasonCode::ConnectionRateExceeded,
        }
    }

    /// Returns `true` if the refusal counts as a failure of the client's address.
    pub(crate) fn is_failure(self) -> bool {
        match self {
            Self::BadUserNameOrPassword | Self::NotAuthorized | Self::Banned => true,
            Self::ServerUnavailable | Self::TooManyFailures => false,
        }
    }
}

/// Authenticates clients; see [the module](self) for an example.
///
/// A log-in without an answer within [`ServerConfig::connect_timeout`](mq_proto::ServerConfig) is
/// refused with [`Refusal::ServerUnavailable`]. The futures run beside the connection and may be
/// dropped at any time: they may take their time but must not block.
pub trait Authenticator: fmt::Debug + Send + Sync + 'static {
    /// Resolves with the principal of a client that sent CONNECT, or with the refusal.
    ///
    /// A session belongs to the user that began it. [`TakeOverPolicy`] decides about another user's
    /// CONNECT with the same client identifier.
    fn authenticate<'a>(&'a self, log_in: &'a LogIn) -> BoxFuture<'a, Result<Principal, Refusal>>;

    /// Begins an enhanced authentication (5.0, §4.12) by the method that CONNECT names, at first or
    /// again on an open connection. `None`, the default, means that there is no such method: the
    /// client is refused with 0x8C.
    fn exchange(&self, method: &str, log_in: &LogIn) -> Option<Box<dyn Exchange>> {
        let _ = (method, log_in);
        None
    }

    /// Returns `true` if this log-in, which was early data, must wait until its handshake is
    /// complete; see [the module](self) for the reasons. The broker then authenticates it anew,
    /// with everything that the handshake has proved. Default `false`.
    fn waits_for_handshake(&self, log_in: &LogIn) -> bool {
        let _ = log_in;
        false
    }
}

/// An enhanced authentication in progress (5.0, §4.12).
pub trait Exchange: Send {
    /// Takes the client's authentication data: that of CONNECT, of AUTH 0x19 (re-authenticate), or
    /// of the AUTH that answers [`Step::Continue`].
    fn step(&mut self, data: Option<Bytes>) -> BoxFuture<'_, Result<Step, Refusal>>;
}

/// The result of one step of an enhanced authentication.
#[derive(Clone, Debug)]
pub enum Step {
    /// The broker sends this data in AUTH 0x18, and the client has to answer.
    Continue(Bytes),
    /// The authentication has succeeded.
    Done {
        /// The authenticated client. On an open connection it must be the same user as before.
        principal: Principal,
        /// The last data that the broker sends, in CONNACK or AUTH 0x00.
        data: Option<Bytes>,
    },
}

/// Decides what clients may publish and receive; see [the module](self) for an example.
///
/// Connections' tasks call the methods, which must not block, and must not call the broker, whose locks they hold. The broker
/// remembers the answer for the last topic of each publisher as long as [`generation`](Self::generation) stays the same.
pub trait Authorizer: fmt::Debug + Send + Sync + 'static {
    /// Returns `true` if `who` may publish a message of this QoS and RETAIN to `topic`. The broker
    /// checks wills, too: at CONNECT and when they are published.
    fn may_publish(&self, who: &Principal, topic: &str, qos: QoS, retain: bool) -> bool;

    /// Returns `true` if `who` may receive messages of `topic`.
    fn may_receive(&self, who: &Principal, topic: &str) -> bool;

    /// Returns the part of the topics of `filter` that `who` may receive.
    fn subscription(&self, who: &Principal, filter: &TopicFilter) -> Grant;

    /// Returns a number that changes, to one never used before, when one of the other answers may
    /// have changed.
    fn generation(&self) -> u64;
}

/// The part of a subscription that is granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Grant {
    /// Every topic that the filter matches: messages are not checked one by one.
    All,
    /// Part of the topics: the broker calls [`Authorizer::may_receive`] for each message.
    Some,
    /// No topic: the subscription is refused, with 0x87 or, before 5.0, 0x80.
    None,
}
