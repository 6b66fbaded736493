//! The summaries of the other nodes.

use std::collections::{BTreeMap, HashSet};

use super::{
    message::Announcement,
    summary::{Summary, TopicHashes},
};

/// The summaries of the other nodes, as far as they have sent one.
#[derive(Debug, Default)]
pub(super) struct OtherSummaries {
    /// Other nodes that may have subscribers, by name; `None` if a node's summary is not known.
    nodes: BTreeMap<String, Option<NodeSummary>>,
}

#[derive(Debug)]
struct NodeSummary {
    life: u64,
    version: u64,
    summary: Summary,
}

impl OtherSummaries {
    /// Notes the announcement of a node. Returns `false` if the whole summary is needed, as what it adds to is not known.
    pub(super) fn note(&mut self, announcement: Announcement) -> bool {
        let Announcement {
            author,
            base,
            version,
            depth,
            entries,
        } = announcement;
        let known = self.nodes.entry(author.node).or_default();
        let here = known
            .as_ref()
            .map(|summary| (summary.life, summary.version));
        if here >= Some((author.life, version)) {
            // It was overtaken.
            return true;
        }
        match (base, known) {
            (None, known) => {
                let entries = entries.into_iter().collect();
                *known = Some(NodeSummary {
                    life: author.life,
                    version,
                    summary: Summary { depth, entries },
                });
            }
            (Some(base), Some(known)) if known.life == author.life && known.version >= base => {
                known.summary.entries.extend(entries);
                known.version = version;
            }
            _ => return false,
        }
        true
    }

    /// Returns the life in which a node has sent its summary.
    pub(super) fn life(&self, node: &str) -> Option<u64> {
        let known = self.nodes.get(node)?.as_ref()?;
        Some(known.life)
    }

    /// Returns the nodes that may have a subscriber of the topic: those whose summary is not known as well.
    pub(super) fn receivers(&self, topic: &str) -> Vec<String> {
        let hashes = TopicHashes::new(topic);
        let nodes = self.nodes.iter().filter(|(_, known)| {
            let known = known.as_ref();
            known.is_none_or(|known| known.summary.may_match(&hashes))
        });
        nodes.map(|(node, _)| node.clone()).collect()
    }

    /// Notes which other nodes there are.
    pub(super) fn keep_nodes(&mut self, nodes: &HashSet<&str>) {
        self.nodes.retain(|node, _| nodes.contains(&**node));
        for node in nodes {
            if !self.nodes.contains_key(*node) {
                self.nodes.insert((*node).to_owned(), None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mq_codec::TopicFilter;

    use super::*;
    use crate::cluster::log::Author;

    fn announcement(life: u64, base: Option<u64>, version: u64, filters: &[&str]) -> Announcement {
        let entries = filters.iter().map(|text| {
            let filter = TopicFilter::new((*text).to_owned()).unwrap();
            Summary::entry(&filter, 8)
        });
        Announcement {
            author: Author {
                node: "b".to_owned(),
                life,
            },
            base,
            version,
            depth: 8,
            entries: entries.collect(),
        }
    }

    #[test]
    fn an_announcement_that_was_overtaken_changes_nothing() {
        let mut others = OtherSummaries::default();
        assert!(!others.note(announcement(1, Some(1), 2, &["a"])), "no base");
        assert_eq!(others.receivers("x"), ["b"], "a node that is not known");
        assert!(others.note(announcement(1, None, 2, &["a"])));
        assert!(others.note(announcement(1, Some(2), 3, &["c"])));
        assert!(others.note(announcement(1, None, 2, &[])));
        let found = ["a", "c", "x"].map(|topic| others.receivers(topic).len());
        assert_eq!(found, [1, 1, 0]);
        // A later life has no subscribers yet, and an earlier one is over.
        assert!(others.note(announcement(2, None, 1, &[])));
        assert!(others.note(announcement(1, None, 9, &["a"])));
        assert_eq!(others.receivers("a").len(), 0);
        assert!(!others.note(announcement(3, Some(1), 2, &["a"])));
    }

    #[test]
    fn a_node_that_comes_gets_all_until_its_summary_is_known_and_one_that_is_gone_nothing() {
        let mut others = OtherSummaries::default();
        others.note(announcement(1, None, 2, &["a"]));
        others.keep_nodes(&["b", "c"].into());
        assert_eq!(others.receivers("x"), ["c"]);
        others.keep_nodes(&["b"].into());
        assert!(others.receivers("x").is_empty());
        others.keep_nodes(&[].into());
        assert!(others.receivers("a").is_empty());
    }
}
