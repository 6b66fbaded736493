//! The session of a bridge at this broker.

use std::time::Duration;

use mq_codec::{ByteStr, ReasonCode, TopicFilter};

use super::Bridge;
use crate::{
    clock,
    hub::{HeldSession, Hub, ReadAhead},
    journal::Journal,
    router::LaneSlot,
    store::{BRIDGE_PREFIX, SessionChange, User},
};

/// Makes the bridge's session before its first connection, so that messages wait for it. Messages
/// in flight are restored from the store, under their topics at this broker.
///
/// # Errors
/// The reason for which there is no session.
pub(super) async fn open_session(hub: &Hub, bridge: &Bridge) -> Result<(), ReasonCode> {
    if bridge.clean {
        return Ok(());
    }
    let mut publisher = hub.publisher();
    let mut hold = attach(hub, bridge, &mut publisher.journal).await?;
    if let Some(protocol) = &mut hold.state.protocol {
        protocol
            .session_mut()
            .change_outgoing(|delivery| bridge.sent(delivery));
    }
    let journal = &mut publisher.journal;
    let (now, nothing) = (clock::now(), ReadAhead::default());
    hub.detach(hold, now, None, expiry(bridge), nothing, journal);
    Ok(())
}

/// Attaches the bridge's session, with the subscriptions of its topics and no others.
pub(super) async fn attach(
    hub: &Hub,
    bridge: &Bridge,
    journal: &mut Journal,
) -> Result<HeldSession, ReasonCode> {
    let user = User::Named(ByteStr::new(BRIDGE_PREFIX).expect("a few letters"));
    hub.claim_from_nodes(&bridge.session, &user).await?;
    let hold = hub.attach(&bridge.session, bridge.clean, &user, None, journal);
    let mut hold = hold.await?;
    let expiry = expiry(bridge);
    if expiry != Some(Duration::ZERO) {
        hold.session.make_persistent();
    }
    journal.record_of(&hold.session, SessionChange::Attached { expiry, user });
    let others: Vec<_> = {
        let subscriptions = hold.state.subscriptions.lock();
        let is_wanted =
            |filter: &TopicFilter| bridge.topics.wanted_here().any(|one| one.filter == *filter);
        let filters = subscriptions.keys().filter(|filter| !is_wanted(filter));
        filters.cloned().collect()
    };
    for filter in others {
        hub.unsubscribe(&mut hold, &filter, journal);
    }
    for wanted in bridge.topics.wanted_here() {
        let known = hold.state.subscriptions.lock();
        let is_known = known.get(&wanted.filter).map(|known| known.options);
        drop(known);
        if is_known == Some(wanted.options) {
            continue;
        }
        let granted = hub.subscribe(&mut hold, &wanted, None, LaneSlot::CONTROL, journal);
        if granted.is_error() {
            return Err(granted);
        }
    }
    Ok(hold)
}

/// Returns the time for which the bridge's session outlives a connection; `None` for ever.
pub(super) fn expiry(bridge: &Bridge) -> Option<Duration> {
    bridge.clean.then_some(Duration::ZERO)
}
