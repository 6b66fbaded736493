//! Finds the sessions that an item of a log may be for, of many that are taken over together: with thousands of sessions
//! and messages, a look at each session for each message would take minutes.

use std::collections::HashMap;

use mq_codec::{ByteStr, QoS, TopicFilter};

use super::message_search::PendingSession;
use crate::{
    cluster::log::LogMessage,
    router::{FanOut, LaneSlot, Router, SessionKey, Subscriber},
    store::LogPosition,
};

/// The sessions of a list by what may make an item theirs.
pub(super) struct Candidates {
    by_filter: Router,
    by_id: HashMap<ByteStr, usize>,
    by_position: HashMap<LogPosition, Vec<usize>>,
    fan_out: FanOut,
    found: Vec<usize>,
}

impl Candidates {
    pub(super) fn new(pending: &[PendingSession]) -> Self {
        let mut by_filter = Router::new();
        let mut by_position: HashMap<_, Vec<_>> = HashMap::new();
        for (number, session) in pending.iter().enumerate() {
            let wanted = &session.wanted;
            for filter in wanted.recorded.subscriptions.keys() {
                let subscriber = Subscriber {
                    session: SessionKey(u32::try_from(number).unwrap_or(u32::MAX)),
                    options: QoS::AtMostOnce.into(),
                    subscription_id: None,
                    lane: LaneSlot::CONTROL,
                };
                // A member of a group is looked at as if it were alone. What is in `$share/group/$share/other` is no filter,
                // and no group has messages by it.
                let filter = match filter.shared() {
                    Some(_) => TopicFilter::new(filter.matching().to_owned()),
                    None => Ok(filter.clone()),
                };
                if let Ok(filter) = filter {
                    by_filter.subscribe(&filter, subscriber);
                }
            }
            for position in wanted.wanted_positions() {
                by_position.entry(*position).or_default().push(number);
            }
        }
        let ids = pending.iter().map(|session| session.id.clone());
        Self {
            by_filter,
            by_id: ids.zip(0..).collect(),
            by_position,
            fan_out: FanOut::new(),
            found: Vec::new(),
        }
    }

    /// Returns the sessions, by their numbers in the list, that have to look at an item: all that it is for, and perhaps
    /// others.
    pub(super) fn find(&mut self, position: LogPosition, item: &LogMessage) -> &[usize] {
        self.found.clear();
        self.found.extend(self.by_id.get(&item.from));
        self.found
            .extend(self.by_position.get(&position).into_iter().flatten());
        let topic = item.message.message.topic.as_bytes();
        self.by_filter
            .route(topic, None, &|_| true, &mut self.fan_out);
        let targets = self.fan_out.targets().iter();
        self.found
            .extend(targets.map(|target| target.session.index()));
        self.found.sort_unstable();
        self.found.dedup();
        &self.found
    }
}
