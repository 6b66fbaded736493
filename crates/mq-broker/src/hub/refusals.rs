//! Refusals: each is counted by its reason and told in the log.

use std::{net::SocketAddr, time::Instant};

use super::Hub;
use crate::{
    notice::{About, Kind},
    session::Session,
};

impl Hub {
    /// A connection was refused before its CONNECT.
    pub(crate) fn refused_connection(
        &self,
        peer: Option<SocketAddr>,
        reason: &'static str,
        now: Instant,
    ) {
        self.metrics.refused.add(reason);
        let about = About {
            peer,
            ..About::default()
        };
        self.notices.tell(Kind::Connection, about, reason, now);
    }

    /// A log-in was refused, or a client could not authenticate anew.
    pub(crate) fn refused_log_in(&self, about: About<'_>, reason: &'static str, now: Instant) {
        self.metrics.log_ins_refused.add(reason);
        self.notices.tell(Kind::LogIn, about, reason, now);
    }

    /// A message, or a will, of this session's client was refused.
    pub(crate) fn refused_publish(
        &self,
        from: &Session,
        topic: &str,
        reason: &'static str,
        now: Instant,
    ) {
        self.metrics.publishes_refused.add(reason);
        self.tell_of(Kind::Publish, from, Some(topic), reason, now);
    }

    /// A subscription of this session was refused.
    pub(crate) fn refused_subscription(
        &self,
        session: &Session,
        filter: &str,
        reason: &'static str,
        now: Instant,
    ) {
        self.metrics.subscriptions_refused.add(reason);
        self.tell_of(Kind::Subscribe, session, Some(filter), reason, now);
    }

    /// The session's client is made to leave.
    pub(crate) fn evicted(&self, session: &Session, reason: &'static str, now: Instant) {
        self.metrics.evicted.add(reason);
        self.tell_of(Kind::Eviction, session, None, reason, now);
    }

    fn tell_of(
        &self,
        kind: Kind,
        session: &Session,
        topic: Option<&str>,
        reason: &str,
        now: Instant,
    ) {
        let principal = session.principal();
        let about = About {
            client: Some(&session.client_id),
            user: principal.as_ref().and_then(|principal| principal.user()),
            topic,
            peer: None,
        };
        self.notices.tell(kind, about, reason, now);
    }
}
