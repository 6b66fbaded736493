//! The claim `acl`: rules about the topics of a token's client.
//!
//! The form is EMQX's (<https://docs.emqx.com/en/emqx/latest/access-control/authn/acl.html>, "New
//! Format", since its 5.5):
//!
//! ```json
//! "acl": [{"permission": "allow", "action": "publish", "topic": "a/${clientid}/#"}]
//! ```
//!
//! The broker understands the members that every rule has, and no others. It refuses a token whose
//! rules have more: else a rule would forbid less than its issuer meant.

use mq_codec::TopicFilter;
use serde::Deserialize;
use serde_json::Value;

use super::rejected::Rejected;
use crate::{
    auth::{
        Grant, Principal,
        acl::{Filter, Marks},
    },
    router,
};

const MARKS: Marks = Marks {
    user: "${username}",
    client_id: "${clientid}",
};

/// The rules of one token. The first rule for a topic decides. A topic without a rule is denied.
#[derive(Debug)]
pub(in crate::auth) struct TokenRules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    permission: Permission,
    action: Action,
    filter: Filter,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    permission: Permission,
    action: Action,
    topic: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Permission {
    Allow,
    Deny,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Publish,
    /// The actions SUBSCRIBE and delivery of a message by the subscription.
    Subscribe,
    All,
}

impl TokenRules {
    /// Reads the claim for the token's client.
    ///
    /// # Errors
    /// The first rule that is not understood, by its index.
    pub(super) fn parse(claim: &Value, who: &Principal) -> Result<Self, Rejected> {
        let list = claim.as_array();
        let list = list.ok_or_else(|| Rejected::Claim("acl".to_owned()))?;
        let mut rules = Vec::with_capacity(list.len());
        for (index, rule) in list.iter().enumerate() {
            let rule = Rule::parse(rule, who).map_err(|problem| Rejected::Rule(index, problem))?;
            rules.extend(rule);
        }
        Ok(Self(rules))
    }

    pub(in crate::auth) fn may_publish(&self, topic: &str) -> bool {
        self.allows(topic, Action::Publish)
    }

    pub(in crate::auth) fn may_receive(&self, topic: &str) -> bool {
        self.allows(topic, Action::Subscribe)
    }

    fn allows(&self, topic: &str, wanted: Action) -> bool {
        let mut rules = self.about(wanted);
        let first = rules.find(|rule| rule.filter.matches(topic));
        first.is_some_and(|rule| rule.permission == Permission::Allow)
    }

    /// Returns the part of a subscription that is allowed. Rules that cover a filter only together
    /// grant [`Grant::Some`].
    pub(in crate::auth) fn subscription(&self, filter: &TopicFilter) -> Grant {
        let wanted = Filter::new(filter.matching());
        let (mut is_denied_in_part, mut is_allowed_in_part) = (false, false);
        for Rule {
            permission, filter, ..
        } in self.about(Action::Subscribe)
        {
            match permission {
                Permission::Deny if filter.covers(&wanted) => break,
                Permission::Deny => is_denied_in_part |= filter.overlaps(&wanted),
                Permission::Allow if !is_denied_in_part && filter.covers(&wanted) => {
                    return Grant::All;
                }
                Permission::Allow => is_allowed_in_part |= filter.overlaps(&wanted),
            }
        }
        if is_allowed_in_part {
            Grant::Some
        } else {
            Grant::None
        }
    }

    fn about(&self, wanted: Action) -> impl Iterator<Item = &Rule> {
        let is_about = move |rule: &&Rule| rule.action == wanted || rule.action == Action::All;
        self.0.iter().filter(is_about)
    }
}

impl Rule {
    /// Reads one rule; `None` if it does not concern that client.
    fn parse(rule: &Value, who: &Principal) -> Result<Option<Self>, String> {
        let RawRule {
            permission,
            action,
            topic,
        } = RawRule::deserialize(rule).map_err(|error| error.to_string())?;
        let is_wrong = |problem: &str| Err(format!("`{topic}`: {problem}"));
        // With `eq` a rule is about the filter itself, not about topics, which is not supported.
        if topic.starts_with("eq ") {
            return is_wrong("`eq` is not understood");
        }
        let unmarked = topic.replace(MARKS.user, "").replace(MARKS.client_id, "");
        if unmarked.contains("${") {
            return is_wrong("only ${username} and ${clientid} can be filled in");
        }
        let checked = match TopicFilter::new(topic.as_str()) {
            Ok(checked) => checked,
            Err(error) => return is_wrong(&error.to_string()),
        };
        if checked.shared().is_some() {
            return is_wrong("rules are about topics, without $share and the group");
        }
        if router::is_too_deep(topic.as_bytes()) {
            return is_wrong("too many levels");
        }
        let denies = permission == Permission::Deny;
        let filter = Filter::new(&topic).filled(MARKS, denies, who);
        Ok(filter.map(|filter| Self {
            permission,
            action,
            filter,
        }))
    }
}

#[cfg(test)]
mod tests {
    use mq_codec::{ByteStr, TopicName};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(claim: &Value, user: &str, client_id: &str) -> Result<TokenRules, Rejected> {
        let text = |text: &str| ByteStr::new(text).unwrap();
        TokenRules::parse(claim, &Principal::new(Some(text(user)), &text(client_id)))
    }

    fn rule(permission: &str, action: &str, topic: &str) -> Value {
        json!({"permission": permission, "action": action, "topic": topic})
    }

    fn rules(claim: &Value) -> TokenRules {
        parse(claim, "ann", "c1").unwrap()
    }

    #[test]
    fn the_first_rule_about_a_topic_decides_and_the_rest_is_denied() {
        let rules = rules(&json!([
            rule("deny", "publish", "a/secret"),
            rule("allow", "all", "a/#"),
            rule("deny", "all", "b/x"),
            rule("allow", "subscribe", "b/+"),
            rule("deny", "all", "a/#"),
        ]));
        for (topic, publish, receive) in [
            ("a/x", true, true),
            ("a", true, true),
            ("a/secret", false, true),
            ("b/x", false, false),
            ("b/y", false, true),
            ("c", false, false),
        ] {
            assert_eq!(rules.may_publish(topic), publish, "{topic}");
            assert_eq!(rules.may_receive(topic), receive, "{topic}");
        }
        let nothing = parse(&json!([]), "ann", "c1").unwrap();
        assert!(!nothing.may_publish("a") && !nothing.may_receive("a"));
    }

    #[test]
    fn subscriptions_are_granted_in_whole_in_part_or_not_at_all() {
        let rules = rules(&json!([
            rule("deny", "subscribe", "a/x/y"),
            rule("deny", "publish", "a/#"),
            rule("allow", "subscribe", "a/#"),
            rule("allow", "publish", "w"),
        ]));
        for (text, grant) in [
            ("a/b/#", Grant::All),
            ("$share/g/a/b", Grant::All),
            ("a/#", Grant::Some),
            ("#", Grant::Some),
            ("a/x/y", Grant::None),
            ("w", Grant::None),
        ] {
            let filter = TopicFilter::new(text).unwrap();
            assert_eq!(rules.subscription(&filter), grant, "{text}");
        }
    }

    #[test]
    fn names_are_filled_in_and_never_widen_access() {
        let claim = json!([
            rule("deny", "all", "of/${clientid}/keys"),
            rule("allow", "all", "of/${clientid}/#"),
            rule("allow", "all", "by-${username}/+"),
            rule("allow", "all", "${clientid}/x"),
        ]);
        let ordinary = rules(&claim);
        assert!(ordinary.may_publish("of/c1/x") && !ordinary.may_publish("of/c1/keys"));
        assert!(ordinary.may_publish("by-ann/x") && ordinary.may_publish("c1/x"));
        for topic in ["of/c2/x", "of/${clientid}/x", "by-bob/x", "of/%c/x"] {
            assert!(!ordinary.may_publish(topic), "{topic}");
        }
        for odd in ["+", "#", "c1/x", "c1/#", "/"] {
            let rules = parse(&claim, "ann", odd).unwrap();
            for topic in ["of/c1/x", "of/x", "of/c1/x/y", "c1/x"] {
                assert!(!rules.may_receive(topic), "{odd} {topic}");
            }
            let filter = TopicFilter::new("of/#").unwrap();
            assert_eq!(rules.subscription(&filter), Grant::None, "{odd}");
        }
        let hidden = parse(&claim, "ann", "$SYS").unwrap();
        assert!(!hidden.may_receive("$SYS/x"));
        assert!(rules(&json!([rule("allow", "all", "$SYS/#")])).may_receive("$SYS/x"));
        // A client identifier that looks like a placeholder is not substituted again.
        let marked = parse(&claim, "ann", "${username}").unwrap();
        assert!(marked.may_receive("of/${username}/x") && !marked.may_receive("of/ann/x"));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_rule() {
        let mut with_qos = rule("allow", "all", "a");
        with_qos["qos"] = json!([1]);
        for (wrong, problem) in [
            (with_qos, "unknown field `qos`"),
            (rule("permit", "all", "a"), "unknown variant `permit`"),
            (rule("allow", "pub", "a"), "unknown variant `pub`"),
            (
                json!({"permission": "allow", "action": "all"}),
                "missing field `topic`",
            ),
            (
                json!({"permission": "allow", "action": "all", "topic": ["a"]}),
                "expected a string",
            ),
            (json!("a"), "invalid type"),
            (rule("allow", "all", "a/#/b"), "`a/#/b`: "),
            (rule("allow", "all", ""), "``: "),
            (rule("allow", "all", "eq a"), "`eq` is not understood"),
            (rule("allow", "all", "$share/g/a"), "without $share"),
            (
                rule("allow", "all", "a/${zone}"),
                "only ${username} and ${clientid}",
            ),
            (rule("allow", "all", &"/".repeat(300)), "too many levels"),
        ] {
            let claim = json!([rule("allow", "all", "a"), wrong]);
            match parse(&claim, "ann", "c").unwrap_err() {
                Rejected::Rule(1, told) => assert!(told.contains(problem), "{told}"),
                other => panic!("{other:?}"),
            }
        }
    }

    proptest! {
        /// A grant for a filter agrees with the decisions about its topics one by one.
        #[test]
        fn a_grant_agrees_with_the_topics_one_by_one(
            claim in prop::collection::vec(
                ("allow|deny", "publish|subscribe|all", "(\\$?[ab]|\\+)(/([ab]|\\+)){0,2}(/#)?"), 0..6),
            wanted in "(\\$?[ab]|\\+)(/([ab]|\\+)){0,2}(/#)?",
            topics in prop::collection::vec("\\$?[ab](/[ab]){0,3}", 1..20),
        ) {
            let claim: Vec<_> = claim.iter().map(|(one, two, three)| rule(one, two, three)).collect();
            let rules = rules(&Value::from(claim));
            let wanted = TopicFilter::new(wanted.as_str()).unwrap();
            let grant = rules.subscription(&wanted);
            for topic in topics {
                let name = TopicName::new(topic.as_str()).unwrap();
                if wanted.matches(&name) {
                    let may = rules.may_receive(&topic);
                    prop_assert!(grant != Grant::All || may, "{} {}", wanted, topic);
                    prop_assert!(grant != Grant::None || !may, "{} {}", wanted, topic);
                }
            }
        }
    }
}
