//! Access files in mosquitto's form, and the rights of one client by them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use mq_codec::TopicFilter;

use super::{Grant, Principal};
use crate::lock::lock;

/// The rules of an access file.
#[derive(Debug, Default)]
pub(super) struct Acl {
    /// Rules for clients without a user name.
    anonymous: Arc<Tier>,
    users: HashMap<String, Arc<Tier>>,
    /// Rules for every client, with `%u` and `%c` to be substituted.
    patterns: Vec<Pattern>,
}

/// Rules of equal rank: where a denial and a permission match, the denial holds.
#[derive(Debug, Default)]
struct Tier {
    deny: Vec<Filter>,
    allow: Vec<(Filter, Access)>,
}

/// Effect of a rule on the topics that it matches: the right that it grants, or a denial of both rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read,
    Write,
    ReadWrite,
    Deny,
}

/// A topic filter, split into its levels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Filter(Vec<Level>);

/// Pair of the texts that a rule's filter has in place of a client's user name and client identifier, such as `%u` and
/// `%c`. Access files and tokens have different ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub(super) user: &'static str,
    pub(super) client_id: &'static str,
}

/// The placeholders of access files, as in mosquitto.
const MARKS: Marks = Marks {
    user: "%u",
    client_id: "%c",
};

/// Level of a topic filter: a name, `+` or `#`.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Level {
    Name(String),
    Plus,
    Hash,
}

/// A rule for every client, into whose filter the client's names are substituted.
#[derive(Debug)]
struct Pattern {
    access: Access,
    /// A filter with `%u` and `%c` in the names of its levels.
    filter: Filter,
}

/// The rights of one client.
#[derive(Debug)]
pub(super) struct Rights {
    /// First the user's own rules, then the patterns. A pattern's denial does not take away what an
    /// own rule allows, as with mosquitto.
    tiers: [Arc<Tier>; 2],
}

/// The rights of one principal, kept with the generation of the rules from which they were computed.
#[derive(Default)]
pub(super) struct CachedRights(Mutex<Option<(u64, Arc<Rights>)>>);

impl CachedRights {
    pub(super) fn get(&self, generation: u64, make: impl FnOnce() -> Rights) -> Arc<Rights> {
        let mut cached = lock(&self.0);
        match &*cached {
            Some((at, rights)) if *at == generation => Arc::clone(rights),
            _ => {
                let rights = Arc::new(make());
                *cached = Some((generation, Arc::clone(&rights)));
                rights
            }
        }
    }
}

impl Acl {
    /// Reads the text of an access file.
    ///
    /// # Errors
    /// All lines that are wrong, with their numbers from 1.
    pub(super) fn parse(text: &str) -> Result<Self, Vec<(usize, String)>> {
        let mut acl = Self::default();
        let mut anonymous = Tier::default();
        let mut users: HashMap<String, Tier> = HashMap::new();
        let mut user: Option<String> = None;
        let mut wrong = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (keyword, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rest = rest.trim();
            match keyword {
                "user" if rest.is_empty() => {
                    wrong.push((number, "`user` without a name".to_owned()));
                }
                "user" => {
                    users.entry(rest.to_owned()).or_default();
                    user = Some(rest.to_owned());
                }
                "topic" | "pattern" => match parse_rule(rest) {
                    Ok((access, filter)) if keyword == "pattern" => {
                        acl.patterns.push(Pattern { access, filter });
                    }
                    Ok((access, filter)) => match &user {
                        Some(name) => users.entry(name.clone()).or_default().add(access, filter),
                        None => anonymous.add(access, filter),
                    },
                    Err(problem) => wrong.push((number, problem)),
                },
                _ => wrong.push((
                    number,
                    format!("{} is not `user`, `topic` or `pattern`", shown(keyword)),
                )),
            }
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        acl.anonymous = Arc::new(anonymous);
        acl.users = users
            .into_iter()
            .map(|(name, tier)| (name, Arc::new(tier)))
            .collect();
        Ok(acl)
    }

    /// Computes the rights of one client: the rules of its user, and the patterns with the client's names substituted.
    pub(super) fn rights(&self, who: &Principal) -> Rights {
        let own = match who.user() {
            Some(user) => self.users.get(user).cloned().unwrap_or_default(),
            None => Arc::clone(&self.anonymous),
        };
        let mut patterns = Tier::default();
        for pattern in &self.patterns {
            if let Some(filter) = pattern.of(who) {
                patterns.add(pattern.access, filter);
            }
        }
        Rights {
            tiers: [own, Arc::new(patterns)],
        }
    }
}

/// Quotes a word for an error message. A file that is no access file may be read as one, such as a
/// private key: a word that does not look like a keyword is not shown.
fn shown(word: &str) -> String {
    if word.len() <= 16 && word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        format!("`{word}`")
    } else {
        "the word".to_owned()
    }
}

/// Parses `[read|write|readwrite|deny] filter`; the filter may have spaces.
fn parse_rule(rest: &str) -> Result<(Access, Filter), String> {
    let (access, filter) = match rest.split_once(char::is_whitespace) {
        None => (Access::ReadWrite, rest),
        Some((access, filter)) => {
            let access = match access {
                "read" => Access::Read,
                "write" => Access::Write,
                "readwrite" => Access::ReadWrite,
                "deny" => Access::Deny,
                other => {
                    return Err(format!(
                        "{} is not `read`, `write`, `readwrite` or `deny`",
                        shown(other)
                    ));
                }
            };
            (access, filter.trim())
        }
    };
    let checked = TopicFilter::new(filter).map_err(|error| match filter {
        "" => "the topic is missing".to_owned(),
        _ => format!("`{filter}`: {}", error.kind()),
    })?;
    if checked.shared().is_some() {
        return Err(format!(
            "`{filter}`: rules are about topics, so leave out $share and the group"
        ));
    }
    Ok((access, Filter::new(filter)))
}

impl Tier {
    fn add(&mut self, access: Access, filter: Filter) {
        match access {
            Access::Deny => self.deny.push(filter),
            access => self.allow.push((filter, access)),
        }
    }
}

impl Access {
    fn allows(self, wanted: Self) -> bool {
        self == wanted || self == Self::ReadWrite
    }
}

impl Pattern {
    /// Returns the pattern's filter with one client's names substituted; `None` if the pattern does not concern the
    /// client.
    fn of(&self, who: &Principal) -> Option<Filter> {
        let denies = self.access == Access::Deny;
        self.filter.filled(MARKS, denies, who)
    }
}

impl Filter {
    /// Substitutes a client's names for the placeholders; `None` if the filter does not concern
    /// that client.
    ///
    /// A name stands for itself and nothing else. A name with `/`, `+` or `#` would reach beyond
    /// its place in the level: with such a name a permission grants nothing, and a denial denies
    /// everything from that level on. A name does not reach the topics that begin with `$` either.
    pub(super) fn filled(&self, marks: Marks, denies: bool, who: &Principal) -> Option<Self> {
        let mut levels = Vec::with_capacity(self.0.len());
        for (at, level) in self.0.iter().enumerate() {
            let Level::Name(name) = level else {
                levels.push(level.clone());
                continue;
            };
            let (filled, is_safe) = fill_in(name, marks, who)?;
            let says_so = name.starts_with('$') && !marks.begin(name);
            let is_hidden = at == 0 && filled.starts_with('$') && !says_so;
            match (denies, is_safe) {
                (true, false) => {
                    levels.push(Level::Hash);
                    return Some(Filter(levels));
                }
                (false, false) => return None,
                (false, true) if is_hidden => return None,
                (_, true) => levels.push(Level::Name(filled)),
            }
        }
        Some(Filter(levels))
    }
}

impl Marks {
    /// Returns `true` if the name of a level begins with one of these placeholders.
    fn begin(self, name: &str) -> bool {
        name.starts_with(self.user) || name.starts_with(self.client_id)
    }
}

/// Substitutes the user name and the client identifier for their placeholders in one level. The `bool` is `true` if the
/// names have no `/`, `+` or `#`, so that the result is one level without wildcards. `None` if the level has the
/// placeholder of the user name and the client has no user.
fn fill_in(name: &str, marks: Marks, who: &Principal) -> Option<(String, bool)> {
    let mut filled = String::new();
    let mut is_safe = true;
    let mut rest = name;
    while let Some(next) = rest.chars().next() {
        let (value, after) = if let Some(after) = rest.strip_prefix(marks.user) {
            (who.user()?, after)
        } else if let Some(after) = rest.strip_prefix(marks.client_id) {
            (who.client_id(), after)
        } else {
            filled.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        is_safe &= !value.contains(['/', '+', '#']);
        filled.push_str(value);
        rest = after;
    }
    Some((filled, is_safe))
}

impl Filter {
    pub(crate) fn new(text: &str) -> Self {
        let levels = text.split('/').map(|level| match level {
            "+" => Level::Plus,
            "#" => Level::Hash,
            name => Level::Name(name.to_owned()),
        });
        Self(levels.collect())
    }

    /// Returns `true` if the filter begins with `$`, so that it matches topics that begin with `$`
    /// and no others.
    fn is_hidden(&self) -> bool {
        matches!(self.0.first(), Some(Level::Name(name)) if name.starts_with('$'))
    }

    /// Returns `true` if the filter matches a topic.
    pub(super) fn matches(&self, topic: &str) -> bool {
        // `[MQTT-4.7.2-1]`
        if topic.starts_with('$') != self.is_hidden() {
            return false;
        }
        let mut names = topic.split('/');
        for level in &self.0 {
            match (level, names.next()) {
                // `a/#` matches `a` as well (§4.7.1.2).
                (Level::Hash, _) => return true,
                (Level::Plus, Some(_)) => {}
                (Level::Name(wanted), Some(name)) if wanted == name => {}
                _ => return false,
            }
        }
        names.next().is_none()
    }

    /// Returns `true` if the filter matches every topic that `other` matches.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.is_hidden() == other.is_hidden() && covers(&self.0, &other.0)
    }

    /// Returns `true` if some topic matches both filters.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.is_hidden() == other.is_hidden() && overlap(&self.0, &other.0)
    }
}

fn covers(outer: &[Level], inner: &[Level]) -> bool {
    match (outer, inner) {
        ([Level::Hash, ..], _) | ([], []) => true,
        ([_, ..], [Level::Hash, ..]) => false,
        ([Level::Plus, outer @ ..], [_, inner @ ..]) => covers(outer, inner),
        ([Level::Name(one), outer @ ..], [Level::Name(other), inner @ ..]) if one == other => {
            covers(outer, inner)
        }
        _ => false,
    }
}

fn overlap(one: &[Level], other: &[Level]) -> bool {
    match (one, other) {
        ([Level::Hash, ..], _) | (_, [Level::Hash, ..]) | ([], []) => true,
        ([Level::Plus, one @ ..], [_, other @ ..]) | ([_, one @ ..], [Level::Plus, other @ ..]) => {
            overlap(one, other)
        }
        ([Level::Name(a), one @ ..], [Level::Name(b), other @ ..]) if a == b => overlap(one, other),
        _ => false,
    }
}

impl Rights {
    pub(super) fn may_publish(&self, topic: &str) -> bool {
        self.allows(topic, Access::Write)
    }

    pub(super) fn may_receive(&self, topic: &str) -> bool {
        self.allows(topic, Access::Read)
    }

    fn allows(&self, topic: &str, wanted: Access) -> bool {
        for tier in &self.tiers {
            if tier.deny.iter().any(|filter| filter.matches(topic)) {
                return false;
            }
            let mut allow = tier.allow.iter();
            if allow.any(|(filter, access)| access.allows(wanted) && filter.matches(topic)) {
                return true;
            }
        }
        false
    }

    /// Returns the part of a subscription that is allowed. Rules that cover a filter only together
    /// grant [`Grant::Some`]: the result is the same and costs more.
    pub(super) fn subscription(&self, filter: &TopicFilter) -> Grant {
        let wanted = Filter::new(filter.matching());
        let (mut is_denied_in_part, mut is_allowed_in_part) = (false, false);
        for tier in &self.tiers {
            if tier.deny.iter().any(|denied| denied.covers(&wanted)) {
                break;
            }
            is_denied_in_part |= tier.deny.iter().any(|denied| denied.overlaps(&wanted));
            for (allowed, access) in &tier.allow {
                if !access.allows(Access::Read) {
                    continue;
                }
                if !is_denied_in_part && allowed.covers(&wanted) {
                    return Grant::All;
                }
                is_allowed_in_part |= allowed.overlaps(&wanted);
            }
        }
        if is_allowed_in_part {
            Grant::Some
        } else {
            Grant::None
        }
    }
}

#[cfg(test)]
mod tests {
    use mq_codec::ByteStr;
    use proptest::prelude::*;

    use super::*;

    fn who(user: Option<&str>, client_id: &str) -> Principal {
        let text = |text: &str| ByteStr::new(text).unwrap();
        Principal::new(user.map(text), &text(client_id))
    }

    fn rights(rules: &str, user: Option<&str>, client_id: &str) -> Rights {
        Acl::parse(rules).unwrap().rights(&who(user, client_id))
    }

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::new(text).unwrap()
    }

    const RULES: &str = "\
# of anonymous clients
topic read news/#
topic deny news/internal/#

user alice
topic write plant/+/command
topic read plant/#
topic deny plant/secret

user bob
topic #
pattern readwrite home/%u/#
pattern write dev-%c/status
pattern deny home/eve/keys
";

    #[test]
    fn each_user_has_its_lines_and_everybody_the_patterns() {
        let nobody = rights(RULES, None, "c");
        assert!(nobody.may_receive("news/today"));
        assert!(!nobody.may_receive("news/internal/x"), "deny comes first");
        assert!(!nobody.may_publish("news/today"));
        assert!(!nobody.may_receive("plant/1"));
        assert!(nobody.may_publish("dev-c/status"));
        assert!(!nobody.may_publish("dev-d/status"));
        assert!(
            !nobody.may_receive("home//x"),
            "there is no name to fill in"
        );

        let alice = rights(RULES, Some("alice"), "c");
        assert!(alice.may_publish("plant/1/command") && !alice.may_publish("plant/1"));
        assert!(alice.may_receive("plant/1/command") && alice.may_receive("plant"));
        assert!(!alice.may_receive("plant/secret") && !alice.may_publish("plant/secret"));
        assert!(alice.may_receive("home/alice/lamp") && alice.may_publish("home/alice"));
        assert!(!alice.may_receive("home/bob/lamp"));
        assert!(!alice.may_receive("news/today"), "those are the others'");

        // What a user's own lines allow, a pattern does not take away.
        let bob = rights(RULES, Some("bob"), "c");
        assert!(bob.may_receive("home/eve/keys") && bob.may_publish("x"));
        assert!(!bob.may_receive("$SYS/broker"), "# does not reach it");
        let eve = rights(RULES, Some("eve"), "c");
        assert!(eve.may_receive("home/eve/lamp") && !eve.may_receive("home/eve/keys"));
    }

    #[test]
    fn a_topic_may_have_spaces_where_its_access_is_given() {
        let rules = "topic read a b/+\ntopic readwrite  c \n";
        let rights = rights(rules, None, "c");
        assert!(rights.may_receive("a b/x") && rights.may_publish("c"));
    }

    #[test]
    fn names_that_are_filled_in_never_widen_access() {
        let rules = "pattern home/%u/#\npattern read dev/%c\npattern %u/x\npattern read a-%c-b/+\n";
        for name in ["+", "#", "a/b", "a+", "#b", "/", "alice/#", "../alice"] {
            let by_user = rights(rules, Some(name), "c");
            for topic in [
                "home/alice/x",
                "home/a/b/x",
                "home/a/x",
                "home/x",
                "+/x",
                "a/b/x",
            ] {
                assert!(!by_user.may_receive(topic), "{name} {topic}");
                assert!(!by_user.may_publish(topic), "{name} {topic}");
            }
            let by_client = rights(rules, Some("u"), name);
            for topic in ["dev/x", "dev/a/b", "dev/a", "dev", "a-x-b/y", "a-a/b-b/y"] {
                assert!(!by_client.may_receive(topic), "{name} {topic}");
            }
            for wide in ["#", "+/+/#", "home/+/#", "dev/#"] {
                let granted = by_user.subscription(&filter(wide));
                let same = rights(rules, Some("nobody"), "c").subscription(&filter(wide));
                assert!(granted == Grant::None || granted == same, "{name} {wide}");
            }
        }
        let system = rights(rules, Some("$SYS"), "c");
        assert!(!system.may_receive("$SYS/x"));
        assert!(rights("pattern $SYS/%u", Some("a"), "c").may_receive("$SYS/a"));
    }

    #[test]
    fn a_denial_that_cannot_be_filled_in_denies_more_and_not_less() {
        let rules = "pattern deny home/%u/keys\npattern read home/#\npattern read x\n";
        let ordinary = rights(rules, Some("a"), "c");
        assert!(ordinary.may_receive("home/a/lamp") && !ordinary.may_receive("home/a/keys"));
        let odd = rights(rules, Some("a/b"), "c");
        assert!(!odd.may_receive("home/a/b/keys") && !odd.may_receive("home/a"));
        assert!(odd.may_receive("x"));
    }

    #[test]
    fn a_client_identifier_of_percent_signs_is_not_filled_in_again() {
        let rights = rights("pattern read dev/%c\npattern read 100%/%x", Some("u"), "%u");
        assert!(rights.may_receive("dev/%u") && !rights.may_receive("dev/u"));
        assert!(rights.may_receive("100%/%x"));
    }

    #[test]
    fn subscriptions_are_granted_in_whole_in_part_or_not_at_all() {
        let rights = rights(
            "topic read a/#\ntopic write w/#\ntopic read b/+\ntopic deny a/x/y\ntopic read $SYS/#\n",
            None,
            "c",
        );
        for (text, grant) in [
            ("a/b", Grant::All),
            ("a/b/#", Grant::All),
            ("a/#", Grant::Some),
            ("a/+/y", Grant::Some),
            ("a/x/y", Grant::None),
            ("a/x/+", Grant::Some),
            ("$share/g/a/b", Grant::All),
            ("b/+", Grant::All),
            ("b/c", Grant::All),
            ("b/#", Grant::Some),
            ("b", Grant::None),
            ("b/c/d", Grant::None),
            ("w/x", Grant::None),
            ("#", Grant::Some),
            ("+", Grant::Some),
            ("$SYS/x", Grant::All),
            ("$SYS", Grant::All),
            ("c/#", Grant::None),
        ] {
            assert_eq!(rights.subscription(&filter(text)), grant, "{text}");
        }
    }

    #[test]
    fn mistakes_are_told_with_their_lines() {
        let rules = "topic\n\ntopic reed a\nusers x\nuser\npattern read a#\ntopic read $share/g/a\n\
                     topic read\n";
        let wrong = Acl::parse(rules).unwrap_err();
        let told: Vec<_> = wrong
            .iter()
            .map(|(line, problem)| format!("{line}: {problem}"))
            .collect();
        assert_eq!(
            told,
            [
                "1: the topic is missing",
                "3: `reed` is not `read`, `write`, `readwrite` or `deny`",
                "4: `users` is not `user`, `topic` or `pattern`",
                "5: `user` without a name",
                "6: `a#`: # must be the whole last level of a topic filter",
                "7: `$share/g/a`: rules are about topics, so leave out $share and the group",
            ]
        );
    }

    proptest! {
        /// A grant for a filter agrees with the decisions about its topics one by one.
        #[test]
        fn a_grant_agrees_with_the_topics_one_by_one(
            rules in prop::collection::vec(
                "(topic|pattern) (read|write|deny) (\\$?[ab%]|\\+)(/([ab]|\\+|%u)){0,2}(/#)?", 0..6),
            wanted in "(\\$?[ab]|\\+)(/([ab]|\\+)){0,2}(/#)?",
            topics in prop::collection::vec("\\$?[ab](/[ab]){0,3}", 1..20),
        ) {
            let rights = rights(&rules.join("\n"), None, "c");
            let wanted = filter(&wanted);
            let grant = rights.subscription(&wanted);
            for topic in topics {
                let name = mq_codec::TopicName::new(topic.as_str()).unwrap();
                if wanted.matches(&name) {
                    let may = rights.may_receive(&topic);
                    prop_assert!(grant != Grant::All || may, "{} {}", wanted, topic);
                    prop_assert!(grant != Grant::None || !may, "{} {}", wanted, topic);
                }
            }
        }

        /// The filter of an access file matches the topics that the codec's filter matches.
        #[test]
        fn matching_agrees_with_the_codecs(
            text in "(\\$?[ab]|\\+|)(/([ab]|\\+|)){0,3}(/#)?",
            topic in "\\$?[ab](/[ab]?){0,4}",
        ) {
            if let Ok(checked) = TopicFilter::new(text.as_str()) {
                let name = mq_codec::TopicName::new(topic.as_str()).unwrap();
                prop_assert_eq!(Filter::new(&text).matches(&topic), checked.matches(&name));
            }
        }
    }
}
