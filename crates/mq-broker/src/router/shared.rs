//! Shared subscriptions: one member of a group gets each message (§4.8.2).

use std::sync::atomic::{AtomicUsize, Ordering};

use mq_codec::ByteStr;

use super::{SessionKey, Subscriber, subscriber::Subscribers};

/// The groups that share one topic filter.
#[derive(Debug, Default)]
pub(super) struct SharedGroups(Vec<Group>);

#[derive(Debug)]
struct Group {
    name: ByteStr,
    members: Subscribers,
    /// Round robin. Routing only reads the trie, hence the atomic; skipping or repeating a member
    /// under contention does no harm.
    next: AtomicUsize,
}

impl SharedGroups {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds or replaces a member; whether it was one before.
    pub(super) fn insert(&mut self, name: &str, subscriber: Subscriber) -> bool {
        let group = if let Some(index) = self.0.iter_mut().position(|group| group.name == *name) {
            &mut self.0[index]
        } else {
            self.0.push(Group {
                name: ByteStr::new(name).expect("part of a checked filter"),
                members: Subscribers::default(),
                next: AtomicUsize::new(0),
            });
            self.0.last_mut().expect("pushed above")
        };
        group.members.insert(subscriber)
    }

    /// Removes a member; whether it was one.
    pub(super) fn remove(&mut self, name: &str, session: SessionKey) -> bool {
        let Some(index) = self.0.iter().position(|group| group.name == *name) else {
            return false;
        };
        let group = &mut self.0[index];
        let removed = group.members.remove(session);
        if group.members.is_empty() {
            self.0.swap_remove(index);
        }
        removed
    }

    /// One member of each group, of those that `may_receive`: the next in turn that is `ready`, or
    /// else the next in turn.
    pub(super) fn choose<'a>(
        &'a self,
        ready: &'a dyn Fn(SessionKey) -> bool,
        may_receive: Option<&'a dyn Fn(SessionKey) -> bool>,
    ) -> impl Iterator<Item = &'a Subscriber> + 'a {
        self.0
            .iter()
            .filter_map(move |group| group.choose(ready, may_receive))
    }

    /// The same of one group.
    pub(super) fn choose_of(
        &self,
        name: &str,
        ready: &dyn Fn(SessionKey) -> bool,
        may_receive: Option<&dyn Fn(SessionKey) -> bool>,
    ) -> Option<&Subscriber> {
        let group = self.0.iter().find(|group| group.name == *name)?;
        group.choose(ready, may_receive)
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
