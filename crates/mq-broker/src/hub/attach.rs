//! Sessions in the hands of connections: given to one, taken back from it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mq_codec::{ByteStr, ReasonCode};
use mq_proto::Delivery;
use tokio::sync::OwnedMutexGuard;

use super::{Hub, MAX_RIVALS, ReadAhead, unqueued};
use crate::{
    auth::{Principal, TakeOverPolicy},
    journal::Journal,
    lock::write,
    session::{KeptWill, MemberState, OperatorView, Presence, Session, SessionState},
    store::{SessionChange, User},
};

/// Interval at which a bridge looks for messages in its [absent session](Hub::wait_for_messages).
const ABSENT_SESSION_POLL: Duration = Duration::from_millis(250);

/// Time for which a client waits until an earlier connection has given its session back.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(5);

/// A session in the hands of a connection.
#[derive(Debug)]
pub(crate) struct HeldSession {
    pub(crate) session: Arc<Session>,
    pub(crate) state: OwnedMutexGuard<SessionState>,
    /// `true` if the session existed, as CONNACK says.
    pub(crate) session_present: bool,
    /// Shows the connection to operators, once its client is let in.
    pub(crate) operator_view: Option<OperatorView>,
    /// The claim that was this connection's own.
    claim: u32,
}

impl HeldSession {
    /// Returns `true` if another connection wants the session.
    pub(crate) fn is_claimed(&self) -> bool {
        !self.session.is_last_claim(self.claim)
    }

    /// Shows the connection to operators.
    pub(crate) fn show_to_operators(&mut self, presence: Presence) {
        self.operator_view = Some(OperatorView::new(&self.session, presence));
    }
}

impl Hub {
    /// Gives the session of `client_id` to a connection. With `clean`, or where there is none, that
    /// is a new session. A connection that has the session now is made to leave (take-over,
    /// `[MQTT-3.1.4-3]`).
    ///
    /// In a cluster the session has been [claimed](Self::claim_from_nodes). It is claimed again where it has ended, or has
    /// gone to another node, since then.
    ///
    /// The session is `user`'s, with the rights of `who` if they matter. Another user's session is
    /// not handed over: [`TakeOverPolicy`] says whether it ends or stays as it is.
    ///
    /// # Errors
    /// The reason for the client: the session is another user's, the connections before did not give it back in time, or
    /// there are as many sessions as may be.
    pub(crate) async fn attach(
        &self,
        client_id: &ByteStr,
        clean: bool,
        user: &User,
        who: Option<&Principal>,
        journal: &mut Journal,
    ) -> Result<HeldSession, ReasonCode> {
        let mut rivals = 0;
        let mut is_claimed = true;
        loop {
            if !core::mem::replace(&mut is_claimed, false) {
                self.claim_from_nodes(client_id, user).await?;
            }
            let sessions = &self.sessions;
            let session = sessions.find_or_create(client_id, user, &self.routing, &self.metrics);
            let Ok(session) = session else {
                self.metrics.sessions_refused.add(1);
                if let Some(cluster) = &self.cluster {
                    cluster.session_ended(client_id);
                }
                return Err(ReasonCode::QuotaExceeded);
            };
            // Before the connection that has it is disturbed.
            if self.settings.take_over == TakeOverPolicy::SameUser && !session.is_of_user(user) {
                return Err(ReasonCode::ClientIdentifierNotValid);
            }
            let claim = session.claim();
            let Some(mut state) = take_state(&session).await else {
                return Err(ReasonCode::ServerBusy);
            };
            if state.ended {
                continue;
            }
            if !session.is_last_claim(claim) {
                // Another connection waits already. This one has its turn, and leaves when it sees the reminder.
                session.remind();
            }
            if let Some(cluster) = &self.cluster
                && !cluster.owns(client_id)
            {
                // It has begun to go to another node since it was claimed.
                if !state.was_attached {
                    self.forget(&session, &mut state, || {});
                }
                rivals += 1;
                if rivals == MAX_RIVALS {
                    return Err(ReasonCode::ServerBusy);
                }
                continue;
            }
            let will = session.resume();
            let is_others = !session.is_of_user(user);
            if (clean || is_others) && state.was_attached {
                // The session ends here, so its will is due (§3.1.3.2.2).
                if let Some(will) = will {
                    self.publish_will(&session, *will);
                }
                let read_ahead = self.prepare_end(&session).await;
                self.end_session(&session, &mut state, read_ahead, journal);
                continue;
            }
            let session_present = core::mem::replace(&mut state.was_attached, true);
            self.resume_retained_searches(&mut state.retained_searches);
            session.set_user(user);
            if let Some(who) = who {
                self.give_to_principal(&session, &state, who, journal);
            }
            return Ok(HeldSession {
                session,
                state,
                session_present,
                operator_view: None,
                claim,
            });
        }
    }

    /// Attaches the session to `who` and drops queued messages that its rules no longer allow.
    fn give_to_principal(
        &self,
        session: &Session,
        state: &SessionState,
        who: &Principal,
        journal: &mut Journal,
    ) {
        session.set_principal(who, &self.access_control, state);
        if !state.subscriptions.lock().is_empty() {
            // The receivers of messages have changed, although no subscription has.
            write(&self.routing).router.changed();
        }
        self.remove_forbidden(session, journal);
    }

    /// Gives the session's client other rights; its user stays the same.
    pub(crate) fn change_rights(&self, hold: &HeldSession, who: &Principal) {
        hold.session
            .set_principal(who, &self.access_control, &hold.state);
        write(&self.routing).router.changed();
    }

    /// Removes messages from a mailbox that the present rules do not let its owner receive.
    pub(crate) fn remove_forbidden(&self, session: &Session, journal: &mut Journal) {
        let (Some(authorizer), Some(who)) = (&self.access_control.authorizer, session.principal())
        else {
            return;
        };
        // By topic, not by subscription: the one that a message came by may be gone.
        let may_receive =
            |delivery: &Delivery| authorizer.may_receive(&who, &delivery.message.topic);
        for delivery in session.mailbox.remove_unless(may_receive) {
            unqueued(session, &delivery, journal);
        }
    }

    /// Takes the session back from a connection that has ended.
    ///
    /// The session lives on for `expiry`. Zero ends it now, `None` never. A session that ends is to be
    /// [prepared](Self::prepare_end) for it before, if messages may wait for it.
    pub(crate) fn detach(
        &self,
        hold: HeldSession,
        now: Instant,
        will: Option<Box<KeptWill>>,
        expiry: Option<Duration>,
        read_ahead: ReadAhead,
        journal: &mut Journal,
    ) {
        let HeldSession {
            session,
            mut state,
            operator_view,
            ..
        } = hold;
        drop(operator_view);
        let ends_now = expiry == Some(Duration::ZERO);
        session.set_away(now, will, expiry);
        if let Some(will) = session.take_due_will(now) {
            self.publish_will(&session, *will);
        } else if !session.has_will() {
            self.record_will(&session, None, journal);
        }
        if ends_now {
            self.end_session(&session, &mut state, read_ahead, journal);
            return;
        }
        self.update_memberships(&session, MemberState::Away, journal);
        let clock = journal.store_clock();
        let expires_at = session.expires_at().map(|at| clock.time_at(at));
        journal.record_of(&session, SessionChange::Detached { expires_at });
        drop(state);
        self.timers.set(&session);
    }

    /// Waits until an absent session has messages, or exchanges to go on.
    pub(crate) async fn wait_for_messages(&self, client_id: &ByteStr) {
        loop {
            let session = self.sessions.get(client_id);
            // Nobody rings for a session without a connection.
            if session.is_some_and(|session| session.has_work()) {
                return;
            }
            tokio::time::sleep(ABSENT_SESSION_POLL).await;
        }
    }
}

/// Takes the state of a session once its connection has given it back; `None` if that takes too long.
pub(super) async fn take_state(session: &Session) -> Option<OwnedMutexGuard<SessionState>> {
    let given_back = Arc::clone(&session.state).lock_owned();
    let given_back = tokio::time::timeout(TAKE_OVER_TIMEOUT, given_back).await;
    given_back.ok()
}
