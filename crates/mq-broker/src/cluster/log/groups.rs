//! Shared subscriptions of a whole cluster: each node knows their members, by what stands in a log, and so which of
//! them a message of that log is for.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use bytes::Bytes;
use mq_codec::{ByteStr, QoS, TopicFilter};

use super::author::Author;
use crate::{
    cluster::engine::{Malformed, Reader, Writer},
    router::{FanOut, LaneSlot, Router, SessionKey, Subscriber},
    session::MemberState,
    store::At,
};

/// Choices of a log that are remembered, for those who take sessions over.
const MAX_REMEMBERED_CHOICES: usize = 1 << 18;

/// A session's part in a shared subscription, as an entry of a log states it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cluster) struct Membership {
    pub(in crate::cluster) client: ByteStr,
    /// `$share/...`
    pub(in crate::cluster) filter: TopicFilter,
    pub(in crate::cluster) state: MemberState,
    /// `true` if the session outlives its connection, and so its node.
    pub(in crate::cluster) is_persistent: bool,
}

/// The groups whose messages may be in one log.
#[derive(Debug)]
pub(in crate::cluster) struct SharedGroups {
    /// The groups, by the number that the router knows them by.
    groups: Vec<Option<Group>>,
    by_filter: HashMap<TopicFilter, usize>,
    router: Router,
    fan_out: FanOut,
    /// The members that messages were for, by the messages' places.
    chosen: VecDeque<(At, ByteStr)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    filter: TopicFilter,
    members: Vec<Member>,
    /// The number of the next turn; modulo the number of members.
    turn: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Member {
    client: ByteStr,
    author: Author,
    is_present: bool,
    is_persistent: bool,
}

impl Default for SharedGroups {
    fn default() -> Self {
        Self {
            groups: Vec::new(),
            by_filter: HashMap::new(),
            router: Router::new(),
            fan_out: FanOut::new(),
            chosen: VecDeque::new(),
        }
    }
}

impl SharedGroups {
    /// Changes the part of a member, as its node has appended it.
    pub(in crate::cluster) fn update_member(&mut self, author: &Author, membership: Membership) {
        let Membership {
            client,
            filter,
            state,
            is_persistent,
        } = membership;
        let known = self.by_filter.get(&filter).copied();
        let Some(number) = known.or_else(|| (state != MemberState::Gone).then(|| self.add(filter)))
        else {
            return;
        };
        let Some(group) = &mut self.groups[number] else {
            return;
        };
        let member = group
            .members
            .iter()
            .position(|member| member.client == client);
        if state == MemberState::Gone {
            // Not if it is another node's by now.
            if let Some(member) = member
                && group.members[member].author == *author
            {
                group.members.remove(member);
                self.end_if_empty(number);
            }
            return;
        }
        let new = Member {
            client,
            author: author.clone(),
            is_present: state == MemberState::Present,
            is_persistent,
        };
        match member {
            Some(member) => group.members[member] = new,
            None => group.members.push(new),
        }
    }

    /// Ends the members of a life that has ended: they have no connection any more.
    pub(in crate::cluster) fn end_life(&mut self, ended: &Author) {
        for number in 0..self.groups.len() {
            let Some(group) = &mut self.groups[number] else {
                continue;
            };
            let is_ended = |author: &Author| author.node == ended.node && author.life <= ended.life;
            group
                .members
                .retain(|member| member.is_persistent || !is_ended(&member.author));
            for member in &mut group.members {
                member.is_present &= !is_ended(&member.author);
            }
            self.end_if_empty(number);
        }
    }

    /// Chooses the members that a message is for, one of each group that matches, and remembers them.
    pub(super) fn choose(&mut self, at: At, topic: &[u8]) -> Vec<ByteStr> {
        let mut chosen = Vec::new();
        for number in self.matching(topic) {
            let Some(group) = &mut self.groups[number] else {
                continue;
            };
            if let Some(client) = group.choose(group.turn, false) {
                group.turn += 1;
                if self.chosen.len() == MAX_REMEMBERED_CHOICES {
                    self.chosen.pop_front();
                }
                self.chosen.push_back((at, client.clone()));
                chosen.push(client);
            }
        }
        chosen
    }

    /// Chooses the members for a message that is in no log: of those with a connection, by the caller's `turn`.
    pub(super) fn choose_present(&mut self, topic: &[u8], turn: u64) -> Vec<ByteStr> {
        let matching = self.matching(topic).into_iter();
        let groups = matching.filter_map(|number| self.groups[number].as_ref());
        groups
            .filter_map(|group| group.choose(turn, true))
            .collect()
    }

    /// Returns the places in the log of messages that were for a client.
    pub(in crate::cluster) fn chosen(&self, client: &ByteStr) -> HashSet<At> {
        let own = self.chosen.iter().filter(|(_, of)| of == client);
        own.map(|(at, _)| *at).collect()
    }

    fn matching(&mut self, topic: &[u8]) -> Vec<usize> {
        if self.by_filter.is_empty() {
            return Vec::new();
        }
        self.router.route(topic, None, &|_| true, &mut self.fan_out);
        let targets = self.fan_out.targets().iter();
        let mut matching: Vec<_> = targets.map(|target| target.session.index()).collect();
        // The order of the numbers is not the same at all nodes, but each group is chosen from apart.
        matching.sort_unstable();
        matching
    }

    fn add(&mut self, filter: TopicFilter) -> usize {
        let free = self.groups.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        self.subscribe(&filter, number);
        self.by_filter.insert(filter.clone(), number);
        self.groups[number] = Some(Group {
            filter,
            members: Vec::new(),
            turn: 0,
        });
        number
    }

    fn subscribe(&mut self, filter: &TopicFilter, number: usize) {
        if let (Ok(inner), Ok(number)) =
            (TopicFilter::new(filter.matching()), u32::try_from(number))
        {
            let subscriber = Subscriber {
                session: SessionKey(number),
                options: QoS::ExactlyOnce.into(),
                subscription_id: None,
                lane: LaneSlot::CONTROL,
            };
            self.router.subscribe(&inner, subscriber);
        }
    }

    fn end_if_empty(&mut self, number: usize) {
        let is_empty = |group: &mut Group| group.members.is_empty();
        let Some(group) = self.groups[number].take_if(is_empty) else {
            return;
        };
        self.by_filter.remove(&group.filter);
        if let (Ok(inner), Ok(number)) = (
            TopicFilter::new(group.filter.matching()),
            u32::try_from(number),
        ) {
            self.router.unsubscribe(&inner, SessionKey(number));
        }
    }

    /// Takes over the groups of another node. The choices that were made so far stay.
    pub(super) fn replace(&mut self, with: Self) {
        let chosen = core::mem::take(&mut self.chosen);
        *self = Self { chosen, ..with };
    }

    /// Returns the members that one life has published, each with its filter.
    pub(super) fn members_of(&self, author: &Author) -> Vec<(ByteStr, TopicFilter)> {
        let groups = self.groups.iter().flatten();
        let members =
            groups.flat_map(|group| group.members.iter().map(move |member| (group, member)));
        let own = members.filter(|(_, member)| member.author == *author);
        own.map(|(group, member)| (member.client.clone(), group.filter.clone()))
            .collect()
    }

    /// Returns the lives that have published a member, each once.
    pub(super) fn authors(&self) -> BTreeSet<Author> {
        let groups = self.groups.iter().flatten();
        let members = groups.flat_map(|group| &group.members);
        members.map(|member| member.author.clone()).collect()
    }

    /// Encodes the groups; the choices are left out.
    pub(in crate::cluster) fn encode(&self) -> Bytes {
        let groups: Vec<_> = self.groups.iter().flatten().collect();
        let mut to = Writer::default();
        to.list(groups.into_iter(), |to, group| {
            to.bytes(group.filter.as_bytes());
            to.number(group.turn);
            to.list(group.members.iter(), |to, member| {
                to.bytes(member.client.as_bytes());
                member.author.write(to);
                to.byte(u8::from(member.is_present) | u8::from(member.is_persistent) << 1);
            });
        });
        to.finish()
    }

    pub(in crate::cluster) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::without_version(bytes);
        let all = from.list(|from| {
            Ok(Group {
                filter: from.filter()?,
                turn: from.number()?,
                members: from.list(|from| {
                    let (client, author) = (from.text()?, Author::read(from)?);
                    let flags = from.byte()?;
                    Ok(Member {
                        client,
                        author,
                        is_present: flags & 1 != 0,
                        is_persistent: flags & 2 != 0,
                    })
                })?,
            })
        })?;
        from.expect_end()?;
        let mut groups = Self::default();
        for group in all {
            let number = groups.add(group.filter.clone());
            groups.groups[number] = Some(group);
        }
        Ok(groups)
    }
}

impl Group {
    /// Returns the member whose turn it is, of those that are present, or else of all if `has_to_be_present` is
    /// `false`.
    fn choose(&self, turn: u64, has_to_be_present: bool) -> Option<ByteStr> {
        let present = self.members.iter().filter(|member| member.is_present);
        let mut able: Vec<_> = present.collect();
        if able.is_empty() && !has_to_be_present {
            able.extend(&self.members);
        }
        let index = usize::try_from(turn % able.len().max(1) as u64).ok()?;
        able.get(index).map(|member| member.client.clone())
    }
}

impl Membership {
    pub(in crate::cluster) fn write(&self, to: &mut Writer) {
        to.bytes(self.client.as_bytes());
        to.bytes(self.filter.as_bytes());
        let state = match self.state {
            MemberState::Present => 0,
            MemberState::Away => 1,
            MemberState::Gone => 2,
        };
        to.byte(state | u8::from(self.is_persistent) << 2);
    }

    pub(in crate::cluster) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (client, filter) = (from.text()?, from.filter()?);
        let flags = from.byte()?;
        let state = match flags & 3 {
            0 => MemberState::Present,
            1 => MemberState::Away,
            2 => MemberState::Gone,
            _ => return Err(Malformed),
        };
        Ok(Self {
            client,
            filter,
            state,
            is_persistent: flags & 4 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(node: &str) -> Author {
        Author {
            node: node.to_owned(),
            life: 1,
        }
    }

    fn say(
        groups: &mut SharedGroups,
        node: &str,
        client: &str,
        state: MemberState,
        is_persistent: bool,
    ) {
        let membership = Membership {
            client: ByteStr::new(client).unwrap(),
            filter: TopicFilter::new("$share/g/t/+").unwrap(),
            state,
            is_persistent,
        };
        groups.update_member(&author(node), membership);
    }

    fn three(groups: &mut SharedGroups, at: u64) -> Vec<String> {
        let mut chosen = Vec::new();
        for n in 0..3 {
            let one = groups.choose(At::new(at, n), b"t/1");
            chosen.extend(one.iter().map(ToString::to_string));
        }
        chosen
    }

    #[test]
    fn members_take_turns_and_those_with_a_connection_come_first() {
        let mut groups = SharedGroups::default();
        assert!(three(&mut groups, 1).is_empty());
        say(&mut groups, "a", "one", MemberState::Present, true);
        say(&mut groups, "b", "two", MemberState::Present, false);
        assert_eq!(three(&mut groups, 2), ["one", "two", "one"]);
        assert!(groups.choose(At::new(3, 0), b"u/1").is_empty());
        say(&mut groups, "a", "one", MemberState::Away, true);
        assert_eq!(three(&mut groups, 4), ["two"; 3]);
        groups.end_life(&author("b"));
        assert_eq!(three(&mut groups, 5), ["one"; 3], "it is away, and alone");
        assert!(groups.choose_present(b"t/1", 0).is_empty());
        let one = ByteStr::new("one").unwrap();
        assert_eq!(groups.chosen(&one).len(), 5);
        say(&mut groups, "c", "one", MemberState::Gone, true);
        assert_eq!(three(&mut groups, 6), ["one"; 3], "it was not of that node");
        say(&mut groups, "a", "one", MemberState::Gone, true);
        assert!(three(&mut groups, 7).is_empty());
    }

    #[test]
    fn what_is_kept_of_groups_goes_on_with_the_same_turns() {
        let mut groups = SharedGroups::default();
        for client in ["one", "two", "three"] {
            say(&mut groups, "a", client, MemberState::Present, true);
        }
        groups.choose(At::new(1, 0), b"t/1");
        let mut read = SharedGroups::decode(&groups.encode()).unwrap();
        assert_eq!(three(&mut groups, 2), three(&mut read, 2));
    }
}
