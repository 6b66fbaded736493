//! Refusals: each is counted by its reason and written to the log.

use std::{net::SocketAddr, time::Instant};

use super::Hub;
use crate::{
    refusal_log::{RefusalDetails, RefusalKind},
    session::Session,
};

impl Hub {
    /// Notes a connection that was refused before its CONNECT.
    pub(crate) fn refused_connection(
        &self,
        peer: Option<SocketAddr>,
        reason: &'static str,
        now: Instant,
    ) {
        let details = RefusalDetails {
            peer,
            ..RefusalDetails::default()
        };
        self.refused_early(details, reason, now);
    }

    /// Notes a connection that was refused for what came on it before its log-in.
    pub(crate) fn refused_early(
        &self,
        details: RefusalDetails<'_>,
        reason: &'static str,
        now: Instant,
    ) {
        self.metrics.refused.add(reason);
        self.refusal_log
            .log(RefusalKind::Connection, details, reason, now);
    }

    /// Notes a log-in, or an authentication anew, that was refused.
    pub(crate) fn refused_log_in(
        &self,
        details: RefusalDetails<'_>,
        reason: &'static str,
        now: Instant,
    ) {
        self.metrics.log_ins_refused.add(reason);
        self.refusal_log
            .log(RefusalKind::LogIn, details, reason, now);
    }

    /// Notes a message, or a will, of this session's client that was refused.
    pub(crate) fn refused_publish(
        &self,
        from: &Session,
        topic: &str,
        reason: &'static str,
        now: Instant,
    ) {
        self.metrics.publishes_refused.add(reason);
        self.log_refusal_of(RefusalKind::Publish, from, Some(topic), reason, now);
    }

    /// Notes a subscription of this session that was refused.
    pub(crate) fn refused_subscription(
        &self,
        session: &Session,
        filter: &str,
        reason: &'static str,
        now: Instant,
    ) {
        self.metrics.subscriptions_refused.add(reason);
        self.log_refusal_of(RefusalKind::Subscribe, session, Some(filter), reason, now);
    }

    /// Notes that the session's client is disconnected.
    pub(crate) fn evicted(&self, session: &Session, reason: &'static str, now: Instant) {
        self.metrics.evicted.add(reason);
        self.log_refusal_of(RefusalKind::Eviction, session, None, reason, now);
    }

    fn log_refusal_of(
        &self,
        kind: RefusalKind,
        session: &Session,
        topic: Option<&str>,
        reason: &str,
        now: Instant,
    ) {
        let principal = session.principal();
        let details = RefusalDetails {
            client: Some(&session.client_id),
            user: principal.as_ref().and_then(|principal| principal.user()),
            topic,
            ..RefusalDetails::default()
        };
        self.refusal_log.log(kind, details, reason, now);
    }
}
