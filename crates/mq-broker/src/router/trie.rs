//! Subscriptions by topic filter, one node a topic level.

use mq_codec::TopicFilter;

use super::{
    FanOut, SessionKey, Subscriber, fan_out::Places, names::Names, shared::SharedGroups,
    subscriber::Subscribers,
};

/// All subscriptions of all sessions.
///
/// Cost of [`route`](Self::route): a hash look-up for each level of the topic and each branch with a wildcard beside
/// it, then one step for each subscriber that matches.
#[derive(Debug, Default)]
pub struct Router {
    root: Node,
    count: usize,
    size: Size,
    generation: u64,
}

/// The size of the trie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Size {
    /// Nodes below the root.
    nodes: usize,
    /// Nodes that have children by name.
    tables: usize,
}

/// Approximate bytes of a filter's level: a place in the table of its parent, of which a third is free, its name, and
/// the list of its subscribers.
const NODE: usize = 3 * size_of::<(Box<[u8]>, Node)>() / 2 + 2 * size_of::<usize>();

/// Additional bytes of a table with one child: it has four places.
const TABLE: usize = 3 * size_of::<(Box<[u8]>, Node)>();

#[derive(Debug, Default)]
struct Node {
    /// Next levels by name.
    children: Names<Node>,
    /// Next level `+`.
    plus: Option<Box<Node>>,
    /// Filters that end in `#` here.
    hash: Leaf,
    /// Filters that end here.
    here: Leaf,
}

#[derive(Debug, Default)]
struct Leaf {
    subscribers: Subscribers,
    shared: SharedGroups,
}

impl Router {
    /// Returns a router without subscriptions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of subscriptions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns `true` if there are no subscriptions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the approximate memory of the nodes in bytes, without what is counted for each subscription.
    pub(crate) fn bytes(&self) -> usize {
        self.size.nodes * NODE + self.size.tables * TABLE
    }

    /// Records a change outside of the trie that affects the results of [`route`](Self::route).
    pub(crate) fn changed(&mut self) {
        self.generation += 1;
    }

    /// Returns a number that changes whenever a subscription is made, changed or ended.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Makes a subscription, or replaces the session's own of the same filter `[MQTT-3.8.4-3]`. Returns `true` if it
    /// existed.
    pub fn subscribe(&mut self, filter: &TopicFilter, subscriber: Subscriber) -> bool {
        self.generation += 1;
        let leaf = self.root.leaf(filter.matching(), &mut self.size);
        let existed = match filter.shared() {
            Some(shared) => leaf.shared.insert(shared.group, subscriber),
            None => leaf.subscribers.insert(subscriber),
        };
        self.count += usize::from(!existed);
        existed
    }

    /// Ends a subscription. Returns `true` if it existed.
    pub fn unsubscribe(&mut self, filter: &TopicFilter, session: SessionKey) -> bool {
        self.generation += 1;
        let levels: Vec<&str> = filter.matching().split('/').collect();
        let remove = &mut |leaf: &mut Leaf| match filter.shared() {
            Some(shared) => leaf.shared.remove(shared.group, session),
            None => leaf.subscribers.remove(session),
        };
        let existed = self.root.remove(&levels, remove, &mut self.size);
        self.count -= usize::from(existed);
        existed
    }

    /// Collects into `fan_out`, which is cleared first, the receivers of a message published to `topic` (the bytes of a
    /// topic name) by `publisher`; `None` if no session published it.
    ///
    /// The publisher itself receives the message unless its subscription has No Local `[MQTT-3.8.3-3]`. One member of a
    /// shared group receives it, preferably one that is `ready` (§4.8.2).
    ///
    /// Returns `true` if the receivers are the same for the next message to this topic, as long as
    /// [`generation`](Self::generation) is: not where a shared group or No Local had an effect.
    pub fn route(
        &self,
        topic: &[u8],
        publisher: Option<SessionKey>,
        ready: &dyn Fn(SessionKey) -> bool,
        fan_out: &mut FanOut,
    ) -> bool {
        self.route_to(topic, publisher, ready, Who::default(), fan_out)
    }

    /// Routes a message like [`route`](Self::route), to some sessions alone.
    pub(crate) fn route_to(
        &self,
        topic: &[u8],
        publisher: Option<SessionKey>,
        ready: &dyn Fn(SessionKey) -> bool,
        who: Who<'_>,
        fan_out: &mut FanOut,
    ) -> bool {
        fan_out.clear();
        Places::with(|places| {
            let mut walk = Walk {
                publisher,
                ready,
                who,
                fan_out,
                places,
                constant: true,
            };
            // `[MQTT-4.7.2-1]`: a leading wildcard does not match topics that begin with `$`.
            let hidden = topic.first() == Some(&b'$');
            walk.node(&self.root, Some(topic), hidden);
            walk.constant
        })
    }
}

impl Router {
    /// Returns the member of the group of `filter`, a shared subscription's, that receives a message: as in
    /// [`route_to`](Self::route_to).
    pub(crate) fn member(
        &self,
        filter: &TopicFilter,
        ready: &dyn Fn(SessionKey) -> bool,
        may_receive: Option<&dyn Fn(SessionKey) -> bool>,
    ) -> Option<&Subscriber> {
        let group = filter.shared()?.group;
        let leaf = self.root.find(filter.matching())?;
        leaf.shared.choose_of(group, ready, may_receive)
    }
}

impl Node {
    /// Returns the leaf of a filter; new nodes on the way to it are counted in `size`.
    fn leaf(&mut self, filter: &str, size: &mut Size) -> &mut Leaf {
        let mut node = self;
        for level in filter.split('/') {
            match level {
                "#" => return &mut node.hash,
                "+" => {
                    size.nodes += usize::from(node.plus.is_none());
                    node = node.plus.get_or_insert_default();
                }
                name => {
                    let is_first = node.children.is_empty();
                    node = node.children.get_or_insert_with(name.as_bytes(), || {
                        size.nodes += 1;
                        size.tables += usize::from(is_first);
                        Node::default()
                    });
                }
            }
        }
        &mut node.here
    }

    fn find(&self, filter: &str) -> Option<&Leaf> {
        let mut node = self;
        for level in filter.split('/') {
            match level {
                "#" => return Some(&node.hash),
                "+" => node = node.plus.as_deref()?,
                name => node = node.children.get(name.as_bytes())?,
            }
        }
        Some(&node.here)
    }

    /// Removes with `remove` at the leaf of `levels` and drops nodes that became empty.
    fn remove(
        &mut self,
        levels: &[&str],
        remove: &mut impl FnMut(&mut Leaf) -> bool,
        size: &mut Size,
    ) -> bool {
        match levels {
            [] => remove(&mut self.here),
            ["#", ..] => remove(&mut self.hash),
            ["+", rest @ ..] => {
                let Some(plus) = &mut self.plus else {
                    return false;
                };
                let removed = plus.remove(rest, remove, size);
                if plus.is_empty() {
                    self.plus = None;
                    size.nodes -= 1;
                }
                removed
            }
            [name, rest @ ..] => {
                let removed = self.children.change(name.as_bytes(), |child| {
                    let removed = child.remove(rest, remove, size);
                    let is_over = child.is_empty();
                    size.nodes -= usize::from(is_over);
                    (removed, is_over)
                });
                let Some(removed) = removed else {
                    return false;
                };
                size.tables -= usize::from(self.children.is_empty());
                removed
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.children.is_empty()
            && self.plus.is_none()
            && self.hash.is_empty()
            && self.here.is_empty()
    }
}

impl Leaf {
    fn is_empty(&self) -> bool {
        self.subscribers.is_empty() && self.shared.is_empty()
    }
}

/// The sessions that may receive a message.
#[derive(Clone, Copy, Default)]
pub(crate) struct Who<'a> {
    /// Accepts the sessions that may receive it; `None` accepts all. In a shared group the others do not count as
    /// members.
    pub(crate) may_receive: Option<&'a dyn Fn(SessionKey) -> bool>,
    /// The only sessions that may be members of shared groups; `None` for all.
    pub(crate) members: Option<&'a [SessionKey]>,
}

impl Who<'_> {
    fn may_receive(&self, key: SessionKey) -> bool {
        self.may_receive.is_none_or(|may_receive| may_receive(key))
    }
}

struct Walk<'a> {
    publisher: Option<SessionKey>,
    ready: &'a dyn Fn(SessionKey) -> bool,
    who: Who<'a>,
    fan_out: &'a mut FanOut,
    places: &'a mut Places,
    constant: bool,
}

impl Walk<'_> {
    /// Continues at `node` with the rest of the topic; `None` when no level is left.
    fn node(&mut self, node: &Node, rest: Option<&[u8]>, hidden: bool) {
        if !hidden {
            // `a/#` matches `a` too, so `#` counts before the next level is looked up.
            self.leaf(&node.hash);
        }
        let Some(rest) = rest else {
            self.leaf(&node.here);
            return;
        };
        let (level, rest) = match rest.iter().position(|byte| *byte == b'/') {
            Some(at) => (&rest[..at], Some(&rest[at + 1..])),
            None => (rest, None),
        };
        if let Some(plus) = node.plus.as_ref().filter(|_| !hidden) {
            self.node(plus, rest, false);
        }
        if let Some(child) = node.children.get(level) {
            self.node(child, rest, false);
        }
    }

    fn leaf(&mut self, leaf: &Leaf) {
        for subscriber in leaf.subscribers.as_slice() {
            if subscriber.options.no_local {
                self.constant = false;
                // `[MQTT-3.8.3-3]`
                if Some(subscriber.session) == self.publisher {
                    continue;
                }
            }
            if !self.who.may_receive(subscriber.session) {
                continue;
            }
            self.fan_out.add(self.places, subscriber);
        }
        if !leaf.shared.is_empty() {
            self.constant = false;
            let who = self.who;
            let is_one = |key| {
                let members = who.members;
                members.is_none_or(|members| members.contains(&key)) && who.may_receive(key)
            };
            leaf.shared.choose(self.ready, Some(&is_one), |member| {
                self.fan_out.add_member(member);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use mq_codec::{QoS, SubscriptionId, TopicName};
    use proptest::prelude::*;

    use super::*;
    use crate::delivery::LaneSlot;

    fn subscriber(session: u32) -> Subscriber {
        Subscriber {
            session: SessionKey(session),
            options: QoS::AtLeastOnce.into(),
            subscription_id: None,
            lane: LaneSlot::CONTROL,
        }
    }

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::new(text).unwrap()
    }

    fn receivers(router: &Router, topic: &str) -> Vec<u32> {
        let mut fan_out = FanOut::new();
        router.route(topic.as_bytes(), None, &|_| true, &mut fan_out);
        let mut sessions: Vec<_> = fan_out.targets().iter().map(|t| t.session.0).collect();
        sessions.sort_unstable();
        sessions
    }

    #[test]
    fn overlapping_subscriptions_become_one_target_of_the_highest_qos() {
        let mut router = Router::new();
        let id = |n| SubscriptionId::new(n);
        for (text, qos, n) in [("a/+", QoS::AtMostOnce, 1), ("a/#", QoS::ExactlyOnce, 2)] {
            router.subscribe(
                &filter(text),
                Subscriber {
                    options: qos.into(),
                    subscription_id: id(n),
                    ..subscriber(3)
                },
            );
        }
        let mut fan_out = FanOut::new();
        assert!(router.route(b"a/b", None, &|_| true, &mut fan_out));
        let [target] = fan_out.targets() else {
            panic!("{fan_out:?}")
        };
        assert_eq!(target.qos, QoS::ExactlyOnce);
        let mut ids = target.subscription_ids.to_vec();
        ids.sort_unstable();
        assert_eq!(ids, [id(1).unwrap(), id(2).unwrap()]);
    }

    #[test]
    fn a_shared_group_takes_turns_and_prefers_members_that_are_ready() {
        let mut router = Router::new();
        for session in 0..3 {
            router.subscribe(&filter("$share/g/a"), subscriber(session));
        }
        router.subscribe(&filter("$share/h/a"), subscriber(9));
        let mut counts = [0; 3];
        for _ in 0..30 {
            let all = receivers(&router, "a");
            assert_eq!(all.len(), 2, "one of each group");
            assert_eq!(all[1], 9);
            counts[all[0] as usize] += 1;
        }
        assert_eq!(counts, [10, 10, 10]);
        let mut fan_out = FanOut::new();
        for _ in 0..5 {
            let constant = router.route(b"a", None, &|key| key.0 == 2, &mut fan_out);
            assert!(!constant);
            let mut targets = fan_out.targets().iter();
            assert!(targets.any(|target| target.session == SessionKey(2)));
        }
    }

    #[test]
    fn who_may_not_receive_is_left_out_and_another_member_of_its_group_is_chosen() {
        let mut router = Router::new();
        for session in 0..3 {
            router.subscribe(&filter("$share/g/a"), subscriber(session));
            router.subscribe(&filter("a"), subscriber(session + 10));
        }
        let may_receive = |key: SessionKey| !matches!(key.0, 0 | 2 | 11);
        let mut fan_out = FanOut::new();
        let mut receivers = |who, is_ready| {
            router.route_to(b"a", None, &|_| is_ready, who, &mut fan_out);
            let targets = fan_out.targets().iter();
            let mut sessions: Vec<_> = targets.map(|target| target.session.0).collect();
            sessions.sort_unstable();
            sessions
        };
        let mut who = Who {
            may_receive: Some(&may_receive),
            members: None,
        };
        for is_ready in [true, false] {
            for _ in 0..4 {
                assert_eq!(receivers(who, is_ready), [1, 10, 12]);
            }
        }
        who.members = Some(&[SessionKey(2)]);
        assert_eq!(receivers(who, true), [10, 12], "the only member may not");
        who.may_receive = None;
        for _ in 0..4 {
            assert_eq!(receivers(who, true), [2, 10, 11, 12]);
        }
        who.may_receive = Some(&|_| false);
        assert!(receivers(who, true).is_empty());
    }

    #[test]
    fn no_local_leaves_the_publisher_out() {
        let mut router = Router::new();
        let mut own = subscriber(1);
        own.options.no_local = true;
        router.subscribe(&filter("a"), own);
        let mut fan_out = FanOut::new();
        router.route(b"a", Some(SessionKey(1)), &|_| true, &mut fan_out);
        assert!(fan_out.targets().is_empty());
        router.route(b"a", Some(SessionKey(2)), &|_| true, &mut fan_out);
        assert_eq!(fan_out.targets().len(), 1);
    }

    #[test]
    fn nothing_is_left_of_ended_subscriptions() {
        let mut router = Router::new();
        for text in ["a/b/c", "a/+/c", "a/#", "$share/g/a/b", "+"] {
            assert!(!router.subscribe(&filter(text), subscriber(1)));
            assert!(router.subscribe(&filter(text), subscriber(1)), "replaced");
        }
        assert_eq!(router.len(), 5);
        for text in ["a/b/c", "a/+/c", "a/#", "$share/g/a/b", "+"] {
            assert!(router.unsubscribe(&filter(text), SessionKey(1)));
            assert!(!router.unsubscribe(&filter(text), SessionKey(1)));
        }
        assert!(router.is_empty() && router.root.is_empty());
        assert_eq!(router.size, Size::default());
    }

    proptest! {
        /// The trie finds the subscriptions that matching each filter by itself finds.
        #[test]
        fn routing_agrees_with_matching_one_by_one(
            filters in prop::collection::vec("(\\$?[ab]|\\+|)(/([ab]|\\+|)){0,3}(/#)?", 1..12),
            topic in "\\$?[ab](/[ab]?){0,4}",
        ) {
            let topic = TopicName::new(topic).unwrap();
            let mut router = Router::new();
            let mut expected = Vec::new();
            for (session, text) in (0..).zip(filters) {
                let Ok(filter) = TopicFilter::new(text) else { continue };
                router.subscribe(&filter, subscriber(session));
                if filter.matches(&topic) {
                    expected.push(session);
                }
            }
            prop_assert_eq!(receivers(&router, &topic), expected);
        }
    }
}
