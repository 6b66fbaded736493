//! The receivers of a message: from the router's trie, or from the cache of the last topic.

use crate::{
    auth::AccessControl,
    router::{FanOut, SessionKey, Target, Who},
};

use super::{super::Routing, Publication};

/// The receivers of a connection's last message. While topic, subscriptions and rules stay the same, the trie is not
/// asked again.
#[derive(Debug, Default)]
pub(super) struct RouteCache {
    fan_out: FanOut,
    /// The question that `fan_out` answers; in a box, as most connections publish nothing.
    key: Option<Box<Key>>,
}

#[derive(Debug, Default)]
struct Key {
    topic: Vec<u8>,
    /// The generation of the router; `None` if the answer holds for one message alone.
    routes: Option<u64>,
    /// The generation of the rules.
    rules: u64,
}

impl RouteCache {
    /// Returns the receivers of a message, those that have it by another way included.
    pub(super) fn targets(
        &mut self,
        routing: &Routing,
        access_control: &AccessControl,
        publication: &Publication,
    ) -> &[Target] {
        let routes = routing.router.generation();
        let rules = access_control.generation();
        let topic = publication.message.topic.as_bytes();
        let is_cached = self.key.as_ref().is_some_and(|key| {
            key.routes == Some(routes) && key.rules == rules && key.topic == topic
        });
        if !is_cached {
            let is_constant = self.route(routing, access_control, publication);
            let key = self.key.get_or_insert_default();
            key.topic.clear();
            key.topic.extend_from_slice(topic);
            key.rules = rules;
            key.routes = is_constant.then_some(routes);
        }
        self.fan_out.targets()
    }

    /// Asks the router. Returns `true` if the next message to this topic has the same receivers: not where No Local or
    /// a shared subscription played a part.
    fn route(
        &mut self,
        routing: &Routing,
        access_control: &AccessControl,
        publication: &Publication,
    ) -> bool {
        let topic = publication.message.topic.as_str();
        let ready = |key| routing.is_ready(key);
        let authorizer = access_control.authorizer.as_deref();
        let may_receive = authorizer.map(|rules| move |key| routing.may_receive(key, rules, topic));
        let may_receive = may_receive
            .as_ref()
            .map(|may_receive| may_receive as &dyn Fn(SessionKey) -> bool);
        let who = Who {
            may_receive,
            members: publication.group_members.as_deref(),
        };
        let (from, to) = (publication.sender, &mut self.fan_out);
        let router = &routing.router;
        router.route_to(topic.as_bytes(), from, &ready, who, to)
    }
}
