//! The topics that a bridge carries, and their names at both brokers: pure.

use mq_codec::{QoS, Subscription, SubscriptionOptions, TopicError, TopicFilter, TopicName};

use crate::{
    auth::Filter,
    settings::{BridgeTopic, Direction},
};

/// Prefix of the filter of a shared subscription.
const SHARED_PREFIX: &str = "$share/";

/// The topics of one bridge, checked.
#[derive(Debug)]
pub(crate) struct Topics {
    outgoing: Vec<Rule>,
    incoming: Vec<Rule>,
}

/// A topic in one direction.
#[derive(Debug)]
struct Rule {
    from: Side,
    to: Side,
    qos: QoS,
    /// The group of a shared subscription (§4.8.2).
    group: Option<String>,
}

/// The names of a rule's topics at one of the brokers.
#[derive(Clone, Debug)]
struct Side {
    prefix: String,
    filter: TopicFilter,
}

impl Side {
    fn new(prefix: &str, pattern: &str) -> Result<Self, String> {
        let filter = format!("{prefix}{pattern}");
        if prefix.contains(['+', '#']) {
            return Err(format!("the prefix {prefix:?} has a wildcard"));
        }
        let wrong = |error: TopicError| format!("{filter:?} is no topic filter: {}", error.kind());
        let parsed = TopicFilter::new(filter.clone()).map_err(wrong)?;
        if parsed.shared().is_some() {
            return Err(format!(
                "{filter:?} is a shared subscription: give it as the pattern, and prefixes of the topics alone"
            ));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            filter: parsed,
        })
    }

    /// Returns `true` if a topic may match both.
    fn overlaps(&self, other: &Self) -> bool {
        let [one, other] = [self, other].map(|side| Filter::new(&side.filter));
        one.overlaps(&other)
    }
}

impl Rule {
    /// Returns the topic's name at the broker that it is sent to; `None` if the rule does not apply
    /// to it.
    fn renamed(&self, topic: &TopicName) -> Option<TopicName> {
        if !self.from.filter.matches(topic) {
            return None;
        }
        if self.from.prefix == self.to.prefix {
            return Some(topic.clone());
        }
        // `a/#` matches `a` as well, which does not begin with the prefix `a/`.
        let rest = topic.as_str().strip_prefix(&self.from.prefix)?;
        // Fails if the name is longer than MQTT allows, or empty.
        TopicName::new(format!("{}{rest}", self.to.prefix)).ok()
    }

    fn subscription(&self, options: SubscriptionOptions) -> Subscription {
        let filter = &self.from.filter;
        let shared = self.group.as_ref().map(|group| {
            TopicFilter::new(format!("{SHARED_PREFIX}{group}/{filter}"))
                .expect("checked when it was made")
        });
        Subscription {
            options: SubscriptionOptions {
                qos: self.qos,
                // `[MQTT-3.8.3-4]`
                no_local: options.no_local && shared.is_none(),
                ..options
            },
            filter: shared.unwrap_or_else(|| filter.clone()),
        }
    }
}

/// Returns the group of a pattern that is a shared subscription, and the pattern within.
fn group_of(pattern: &str) -> Result<(Option<String>, &str), String> {
    let Some(shared) = pattern.strip_prefix(SHARED_PREFIX) else {
        return Ok((None, pattern));
    };
    let (group, pattern) = shared.split_once('/').unwrap_or((shared, ""));
    // Any filter will do to check the group.
    let wrong = |error: TopicError| {
        format!(
            "{group:?} is no group of a shared subscription: {}",
            error.kind()
        )
    };
    TopicFilter::new(format!("{SHARED_PREFIX}{group}/t")).map_err(wrong)?;
    Ok((Some(group.to_owned()), pattern))
}

impl Topics {
    /// # Errors
    /// The problem of one of them, in words for the operator.
    pub(super) fn new(topics: &[BridgeTopic]) -> Result<Self, String> {
        let (mut outgoing, mut incoming) = (Vec::new(), Vec::new());
        for topic in topics {
            let (group, pattern) = group_of(&topic.pattern)?;
            if group.is_some() && topic.direction != Direction::In {
                return Err(format!(
                    "{:?} is a shared subscription at the other broker: take direction = \"in\"",
                    topic.pattern
                ));
            }
            let local = Side::new(&topic.local_prefix, pattern)?;
            let remote = Side::new(&topic.remote_prefix, pattern)?;
            let qos = topic.qos;
            if topic.direction != Direction::In {
                let (from, to) = (local.clone(), remote.clone());
                let group = None;
                outgoing.push(Rule {
                    from,
                    to,
                    qos,
                    group,
                });
            }
            if topic.direction != Direction::Out {
                let (from, to) = (remote, local);
                incoming.push(Rule {
                    from,
                    to,
                    qos,
                    group,
                });
            }
        }
        if outgoing.is_empty() && incoming.is_empty() {
            return Err("no topic is configured".to_owned());
        }
        Ok(Self { outgoing, incoming })
    }

    /// Returns two rules by which a message would loop between the two brokers, where nothing on
    /// the wire marks a message that has passed this broker (before 5.0).
    pub(super) fn circle(&self) -> Option<(&TopicFilter, &TopicFilter)> {
        let comes_back = |out: &&Rule, back: &&Rule| {
            out.to.overlaps(&back.from)
                && self.outgoing.iter().any(|out| back.to.overlaps(&out.from))
        };
        self.outgoing.iter().find_map(|out| {
            let back = self.incoming.iter().find(|back| comes_back(&out, back))?;
            Some((&out.to.filter, &back.from.filter))
        })
    }

    /// Returns the subscriptions of the bridge's session at this broker.
    pub(crate) fn wanted_here(&self) -> impl Iterator<Item = Subscription> {
        let options = SubscriptionOptions {
            no_local: true,
            retain_as_published: true,
            ..QoS::AtMostOnce.into()
        };
        self.outgoing
            .iter()
            .map(move |rule| rule.subscription(options))
    }

    /// Returns the subscriptions at the remote broker.
    pub(crate) fn wanted_there(&self, is_v5: bool) -> Vec<Subscription> {
        let options = SubscriptionOptions {
            no_local: is_v5,
            retain_as_published: is_v5,
            ..QoS::AtMostOnce.into()
        };
        let rules = self.incoming.iter();
        rules.map(|rule| rule.subscription(options)).collect()
    }

    /// Returns the topic's name at the remote broker; `None` for a topic that no rule sends.
    pub(crate) fn name_there(&self, topic: &TopicName) -> Option<TopicName> {
        self.outgoing.iter().find_map(|rule| rule.renamed(topic))
    }

    /// Returns the topic's name at this broker; `None` for a topic that no rule receives.
    pub(crate) fn name_here(&self, topic: &TopicName) -> Option<TopicName> {
        self.incoming.iter().find_map(|rule| rule.renamed(topic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(direction: Direction, pattern: &str, local: &str, remote: &str) -> BridgeTopic {
        BridgeTopic {
            direction,
            local_prefix: local.to_owned(),
            remote_prefix: remote.to_owned(),
            ..BridgeTopic::new(pattern)
        }
    }

    fn topics(all: &[BridgeTopic]) -> Topics {
        Topics::new(all).unwrap()
    }

    fn name(topic: &str) -> TopicName {
        TopicName::new(topic).unwrap()
    }

    #[test]
    fn a_topic_changes_its_prefix_and_keeps_the_rest() {
        use Direction::{Both, In, Out};
        for (rule, local, remote) in [
            (topic(Both, "t/#", "", ""), "t/1", "t/1"),
            (topic(Both, "t/#", "", "edge/"), "t/1/2", "edge/t/1/2"),
            (
                topic(Both, "+/x", "here/", "there/"),
                "here/1/x",
                "there/1/x",
            ),
            // One topic under another name, as in mosquitto's manual.
            (
                topic(Both, "", "here/one", "there/other"),
                "here/one",
                "there/other",
            ),
            (topic(Both, "#", "", "edge/"), "ä/漢", "edge/ä/漢"),
        ] {
            let topics = topics(std::slice::from_ref(&rule));
            let (local, remote) = (name(local), name(remote));
            assert_eq!(topics.name_there(&local), Some(remote.clone()), "{rule:?}");
            assert_eq!(topics.name_here(&remote), Some(local), "{rule:?}");
        }
        let one_way = topics(&[topic(Out, "up/#", "", "a/"), topic(In, "down/#", "", "a/")]);
        assert_eq!(one_way.name_there(&name("up/1")), Some(name("a/up/1")));
        assert_eq!(one_way.name_there(&name("down/1")), None);
        assert_eq!(one_way.name_here(&name("a/down/1")), Some(name("down/1")));
        assert_eq!(one_way.name_here(&name("a/up/1")), None);
        assert_eq!(one_way.name_here(&name("down/1")), None);
    }

    #[test]
    fn the_first_rule_that_a_topic_is_of_names_it() {
        let topics = topics(&[
            topic(Direction::Out, "a/b", "", "first/"),
            topic(Direction::Out, "a/#", "", "second/"),
        ]);
        assert_eq!(topics.name_there(&name("a/b")), Some(name("first/a/b")));
        assert_eq!(topics.name_there(&name("a/c")), Some(name("second/a/c")));
    }

    #[test]
    fn a_topic_that_the_prefix_is_not_of_is_left_out() {
        // `here/#` matches `here`, which does not begin with `here/`.
        let topics = topics(&[topic(Direction::Out, "#", "here/", "there/")]);
        assert_eq!(topics.name_there(&name("here")), None);
        assert_eq!(topics.name_there(&name("here/")), Some(name("there/")));
        // No name could be longer.
        let longest = format!("here/{}", "x".repeat(65_530));
        assert_eq!(topics.name_there(&name(&longest)), None);
    }

    #[test]
    fn rules_by_which_a_message_goes_round_are_found() {
        use Direction::{Both, In, Out};
        let circles: &[&[BridgeTopic]] = &[
            &[topic(Both, "#", "", "")],
            &[topic(Both, "t/#", "here/", "there/")],
            &[topic(Out, "a/#", "", ""), topic(In, "+/1", "", "")],
            // The message returns under a name that another rule sends.
            &[
                topic(Out, "a", "", "x/"),
                topic(In, "#", "b/", "x/"),
                topic(Out, "b/#", "", "y/"),
            ],
        ];
        for rules in circles {
            assert!(topics(rules).circle().is_some(), "{rules:?}");
        }
        let lines: &[&[BridgeTopic]] = &[
            &[topic(Out, "#", "", "edge/"), topic(In, "command/#", "", "")],
            &[topic(Out, "up/#", "", ""), topic(In, "down/#", "", "")],
            // The message returns once, to a name that no rule sends.
            &[topic(Out, "a/#", "", ""), topic(In, "a/#", "echo/", "")],
            &[topic(Out, "$SYS/#", "", "edge/"), topic(In, "#", "", "")],
        ];
        for rules in lines {
            assert!(topics(rules).circle().is_none(), "{rules:?}");
        }
    }

    #[test]
    fn a_shared_subscription_has_the_names_of_its_topics() {
        let topics = topics(&[topic(Direction::In, "$share/g/t/#", "here/", "there/")]);
        let wanted = topics.wanted_there(true);
        assert_eq!(wanted[0].filter.as_str(), "$share/g/there/t/#");
        assert!(!wanted[0].options.no_local, "a protocol error");
        assert_eq!(topics.name_here(&name("there/t/1")), Some(name("here/t/1")));
        assert_eq!(topics.name_here(&name("there/u")), None);
    }

    #[test]
    fn a_mistake_is_named() {
        for (rules, says) in [
            (vec![], "no topic"),
            (
                vec![topic(Direction::Out, "a#", "", "")],
                "\"a#\" is no topic filter",
            ),
            (
                vec![topic(Direction::Out, "", "", "x")],
                "\"\" is no topic filter",
            ),
            (
                vec![topic(Direction::In, "a", "+/", "")],
                "the prefix \"+/\" has a wildcard",
            ),
            (
                vec![topic(Direction::In, "a", "", "$share/g/")],
                "shared subscription",
            ),
            (
                vec![topic(Direction::Both, "$share/g/a", "", "")],
                "direction = \"in\"",
            ),
            (vec![topic(Direction::In, "$share//a", "", "")], "no group"),
        ] {
            let error = Topics::new(&rules).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
