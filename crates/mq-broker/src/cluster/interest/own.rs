//! This node's summary, and which version of it the other nodes know.

use std::collections::{HashMap, HashSet, VecDeque};

use mq_codec::TopicFilter;

use super::{
    message::Announcement,
    summary::{MAX_DEPTH, Summary},
};
use crate::{cluster::log::Author, store::Position};

/// Entries that were added last and can be sent without the whole summary.
const MAX_ADDED: usize = 1_024;

/// The summary of this node's filters.
#[derive(Debug)]
pub(super) struct OwnSummary {
    author: Author,
    summary: Summary,
    /// Grows with each change.
    version: u64,
    /// The entries that were added last, each with the version that it made.
    added: VecDeque<(u64, u64)>,
    /// The last version that the other nodes know, or did not confirm in time.
    announced: u64,
    /// Calls that wait until a version is announced.
    waiting: Vec<(u64, Position)>,
    /// The version that each other node knows.
    known_by: HashMap<String, u64>,
    /// Filters that have come since a new summary was begun, while one is being made.
    added_meanwhile: Option<Vec<TopicFilter>>,
}

impl OwnSummary {
    pub(super) fn new(author: Author) -> Self {
        Self {
            author,
            summary: Summary::new(MAX_DEPTH),
            version: 1,
            added: VecDeque::new(),
            announced: 0,
            waiting: Vec::new(),
            known_by: HashMap::new(),
            added_meanwhile: None,
        }
    }

    /// Adds a filter. Returns `true` if there is a version to announce.
    pub(super) fn add(&mut self, filter: &TopicFilter) -> bool {
        if let Some(filters) = &mut self.added_meanwhile {
            filters.push(filter.clone());
        }
        if let Some(entry) = self.summary.add(filter) {
            self.version += 1;
            self.added.push_back((self.version, entry));
            if self.added.len() > MAX_ADDED {
                self.added.pop_front();
            }
        }
        self.announced < self.version
    }

    /// Has a call wait for the present version.
    pub(super) fn wait(&mut self, call: Position) {
        self.waiting.push((self.version, call));
    }

    /// Returns `true` if there are more entries than a summary may have.
    pub(super) fn is_too_large(&self) -> bool {
        self.summary.is_too_large()
    }

    /// Begins a new summary: filters that are added from now on will be in it as well.
    pub(super) fn begin_rebuild(&mut self) {
        self.added_meanwhile = Some(Vec::new());
    }

    /// Replaces the summary by one of all filters that there were since [`begin_rebuild`](Self::begin_rebuild).
    pub(super) fn end_rebuild(&mut self, mut summary: Summary) {
        for filter in self.added_meanwhile.take().into_iter().flatten() {
            summary.add(&filter);
        }
        if summary != self.summary {
            self.summary = summary;
            self.version += 1;
            self.added.clear();
        }
    }

    /// Returns the announcements for those of these nodes that do not know the present version, and that version.
    pub(super) fn announcements(&self, nodes: &[String]) -> (u64, Vec<(String, Announcement)>) {
        let behind = nodes.iter().filter_map(|node| {
            let known = self.known_by.get(node).copied();
            (known != Some(self.version)).then(|| (node.clone(), self.announcement(known)))
        });
        (self.version, behind.collect())
    }

    /// Returns what a node has to be sent that knows a version, or none.
    fn announcement(&self, known: Option<u64>) -> Announcement {
        let first = self.added.front().map_or(u64::MAX, |(version, _)| *version);
        let base = known.filter(|known| known + 1 >= first);
        let entries = match base {
            Some(base) => {
                let added = self.added.iter().filter(|(version, _)| *version > base);
                added.map(|(_, entry)| *entry).collect()
            }
            None => self.summary.entries.iter().copied().collect(),
        };
        Announcement {
            author: self.author.clone(),
            base,
            version: self.version,
            depth: self.summary.depth,
            entries,
        }
    }

    /// Notes that a node knows a version; `None` if it has to be sent the whole summary.
    pub(super) fn note_known(&mut self, node: &str, version: Option<u64>) {
        match version {
            Some(version) => self.known_by.insert(node.to_owned(), version),
            None => self.known_by.remove(node),
        };
    }

    /// Ends the announcement of a version. Returns the calls that have waited for it.
    pub(super) fn end_announcement(&mut self, version: u64) -> Vec<Position> {
        self.announced = self.announced.max(version);
        let (done, waiting) = self.waiting.drain(..).partition(|(of, _)| *of <= version);
        self.waiting = waiting;
        let done: Vec<(u64, Position)> = done;
        done.into_iter().map(|(_, call)| call).collect()
    }

    /// Forgets nodes but these.
    pub(super) fn keep_nodes(&mut self, nodes: &HashSet<&str>) {
        self.known_by.retain(|node, _| nodes.contains(&**node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::interest::others::OtherSummaries;

    fn author() -> Author {
        Author {
            node: "a".to_owned(),
            life: 1,
        }
    }

    fn filter(text: String) -> TopicFilter {
        TopicFilter::new(text).unwrap()
    }

    fn send(own: &mut OwnSummary, others: &mut OtherSummaries) -> Announcement {
        let (version, mut all) = own.announcements(&["b".to_owned()]);
        let (node, announcement) = all.pop().unwrap();
        let is_known = others.note(announcement.clone());
        own.note_known(&node, is_known.then_some(version));
        announcement
    }

    #[test]
    fn a_node_is_sent_what_it_lacks_and_the_whole_if_it_has_lost_the_rest() {
        let mut own = OwnSummary::new(author());
        let mut others = OtherSummaries::default();
        assert!(own.add(&filter("a/0".to_owned())));
        assert_eq!(send(&mut own, &mut others).base, None);
        own.add(&filter("a/1".to_owned()));
        let second = send(&mut own, &mut others);
        assert_eq!((second.base.is_some(), second.entries.len()), (true, 1));
        // It has begun a new life.
        others = OtherSummaries::default();
        own.add(&filter("a/2".to_owned()));
        assert_eq!(send(&mut own, &mut others).entries.len(), 1);
        let whole = send(&mut own, &mut others);
        assert_eq!((whole.base, whole.entries.len()), (None, 3));
        assert!(own.announcements(&["b".to_owned()]).1.is_empty());
        for n in 0..=MAX_ADDED {
            own.add(&filter(format!("b/{n}")));
        }
        assert_eq!(send(&mut own, &mut others).base, None);
    }

    #[test]
    fn a_summary_of_too_many_filters_tells_fewer_levels_apart() {
        let mut own = OwnSummary::new(author());
        let rebuild = |own: &mut OwnSummary, count: usize| {
            own.begin_rebuild();
            own.end_rebuild(Summary::of(|take| {
                let mut all = (0..count).map(|n| filter(format!("site/{}/{n}", n % 10)));
                let _ = all.all(|filter| take(&filter));
            }));
            (own.summary.depth, own.summary.entries.len())
        };
        assert_eq!(rebuild(&mut own, 4_096), (8, 4_096));
        assert_eq!(rebuild(&mut own, 4_097), (2, 10));
        let version = own.version;
        assert_eq!(rebuild(&mut own, 5_000), (2, 10));
        assert_eq!(own.version, version, "nothing has changed");
        assert_eq!(rebuild(&mut own, 0), (8, 0));
    }
    #[test]
    fn a_filter_that_comes_while_a_summary_is_made_is_in_it_at_its_depth() {
        let mut own = OwnSummary::new(author());
        own.add(&filter("ended/1".to_owned()));
        own.begin_rebuild();
        let many = Summary::of(|take| {
            let mut all = (0..5_000).map(|n| filter(format!("site/{n}")));
            let _ = all.all(|filter| take(&filter));
        });
        let known = own.version;
        // One that the old summary has, too.
        own.add(&filter("ended/1".to_owned()));
        own.add(&filter("late/1".to_owned()));
        own.end_rebuild(many);
        let announced = own.announcements(&["b".to_owned()]).1.remove(0).1;
        assert!(announced.version > known && announced.base.is_none());
        assert_eq!(announced.depth, 1);
        for topic in ["ended", "late", "site"] {
            let entry = Summary::entry(&filter(format!("{topic}/1")), 1);
            assert!(announced.entries.contains(&entry), "{topic}");
        }
        assert!(own.added_meanwhile.is_none());
    }
}
