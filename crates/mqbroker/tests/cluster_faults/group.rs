//! A shared subscription: each message of QoS 2 for exactly one of its members, of QoS 1 for one at least, and of QoS 0 for
//! one at most.

use std::collections::{BTreeMap, BTreeSet};

use mq_client::QoS;

use crate::{
    check::{Found, both_exactly_once},
    publisher::Published,
    reader::Read,
};

impl Found {
    /// Checks the messages that members of the group received, of those that are neither retained nor expire.
    pub(crate) fn group(&mut self, members: &[Read], all: &[Published]) {
        let mut came: BTreeMap<(&str, usize), Vec<&Read>> = BTreeMap::new();
        for member in members {
            for one in &member.came {
                // A text that is no number was never sent.
                let number = one.text.parse().unwrap_or(usize::MAX);
                came.entry((&one.topic, number)).or_default().push(member);
            }
        }
        self.shared += came.len();
        let topics = all.iter().flat_map(|published| &published.topics);
        for (topic, sent) in topics.filter(|(topic, _)| topic.starts_with("m/")) {
            for (number, sent) in sent.iter().enumerate() {
                let by = came.remove(&(topic.as_str(), number)).unwrap_or_default();
                let names: BTreeSet<_> = by.iter().map(|member| &member.who.id).collect();
                let is_again = by.len() > 1;
                // A message of QoS 1 that its publisher sends again is another one, and comes to the next member.
                if is_again && (sent.qos == QoS::AtLeastOnce || is_forgotten(&by, sent.qos)) {
                    self.shared_again += 1;
                } else if is_again {
                    self.shared_twice += 1;
                    self.fault(format!(
                        "{topic} {number} ({:?}) came {} times, to {names:?}",
                        sent.qos,
                        by.len()
                    ));
                }
                let is_kept = sent.qos != QoS::AtMostOnce;
                if by.is_empty() && is_kept && sent.acknowledged.is_some() {
                    self.shared_lost += 1;
                    self.fault(format!("{topic} {number} came to no member"));
                }
            }
        }
        for ((topic, number), _) in came {
            self.unsent += 1;
            self.fault(format!(
                "a member got {topic} {number}, which was never sent"
            ));
        }
    }
}

/// Returns `true` if every copy came to one member, which began another client meanwhile and does not know what the earlier
/// one received.
fn is_forgotten(by: &[&Read], qos: QoS) -> bool {
    let is_one = by.iter().all(|member| member.who.id == by[0].who.id);
    is_one && qos == QoS::ExactlyOnce && !both_exactly_once(by[0], qos)
}
