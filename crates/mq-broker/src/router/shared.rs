//! Shared subscriptions: one member of a group gets each message (§4.8.2).

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{SessionKey, Subscriber, names::Names, subscriber::Subscribers};

/// The groups that share one topic filter, by their names.
#[derive(Debug, Default)]
pub(super) struct SharedGroups(Names<Group>);

#[derive(Debug, Default)]
struct Group {
    members: Subscribers,
    /// The next member, round robin. Routing only reads the trie, hence the atomic; skipping or
    /// repeating a member under contention does no harm.
    next: AtomicUsize,
}

impl SharedGroups {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds or replaces a member; returns `true` if it was one before.
    pub(super) fn insert(&mut self, name: &str, subscriber: Subscriber) -> bool {
        let group = self.0.get_or_insert_with(name.as_bytes(), Group::default);
        group.members.insert(subscriber)
    }

    /// Removes a member; returns `true` if it was one.
    pub(super) fn remove(&mut self, name: &str, session: SessionKey) -> bool {
        let removed = self.0.change(name.as_bytes(), |group| {
            let removed = group.members.remove(session);
            (removed, group.members.is_empty())
        });
        removed.unwrap_or(false)
    }

    /// Calls `add` with one member of each group, of those that `may_receive` accepts: the next in
    /// turn that is `ready`, or else the next in turn.
    pub(super) fn choose<'a>(
        &'a self,
        ready: &dyn Fn(SessionKey) -> bool,
        may_receive: Option<&dyn Fn(SessionKey) -> bool>,
        mut add: impl FnMut(&'a Subscriber),
    ) {
        self.0.for_each(|group| {
            if let Some(member) = group.choose(ready, may_receive) {
                add(member);
            }
        });
    }

    /// Returns the member of one group that [`choose`](Self::choose) would choose.
    pub(super) fn choose_of(
        &self,
        name: &str,
        ready: &dyn Fn(SessionKey) -> bool,
        may_receive: Option<&dyn Fn(SessionKey) -> bool>,
    ) -> Option<&Subscriber> {
        self.0.get(name.as_bytes())?.choose(ready, may_receive)
    }
}

impl Group {
    fn choose(
        &self,
        ready: &dyn Fn(SessionKey) -> bool,
        may_receive: Option<&dyn Fn(SessionKey) -> bool>,
    ) -> Option<&Subscriber> {
        let all = self.members.as_slice();
        let count = all.len();
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let turn = |offset: usize| &all[(start.wrapping_add(offset)) % count];
        let members = || {
            let may = |member: &&Subscriber| may_receive.is_none_or(|may| may(member.session));
            (0..count).map(turn).filter(may)
        };
        members()
            .find(|member| ready(member.session))
            .or_else(|| members().next())
    }
}
