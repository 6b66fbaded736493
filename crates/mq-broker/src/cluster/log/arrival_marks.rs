//! Messages of QoS 0 that come too late for a session.
//!
//! A broadcast of a node may be held up on its way, for as long as a link is stuck. By then a session may have moved to
//! this node from another one, where it received the message already. So each node counts the sessions that move to it,
//! and sends this count, its mark, to the others; each message carries the marks that its sender knew. A message whose
//! sender did not know the mark of a session's arrival may be older than the arrival, and is not for the session: at
//! QoS 0 a message is delivered once at most, and may be lost. A message of a life that is over is for no session: the
//! sessions of that life are elsewhere.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use mq_codec::ByteStr;

use super::author::Author;
use crate::cluster::engine::{Malformed, Reader, Writer};

/// A node's count of the sessions that have moved to it, in one of its lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cluster) struct ArrivalMark {
    pub(in crate::cluster) author: Author,
    pub(in crate::cluster) count: u64,
}

/// The mark of this node, those of the others, and the sessions that not all others know of.
#[derive(Debug)]
pub(in crate::cluster) struct ArrivalMarks {
    own: ArrivalMark,
    /// Sessions that have moved to this node, each with the count at its arrival, until all other nodes know of them.
    arrived: VecDeque<(u64, ByteStr)>,
    /// The last mark of each other node, by its name.
    node_marks: BTreeMap<String, ArrivalMark>,
    /// The encoded header of this node's messages; `None` once a mark has changed.
    header: Option<Bytes>,
    /// The last header received from each other node.
    node_headers: Vec<NodeHeader>,
}

/// The last header of another node.
#[derive(Debug)]
struct NodeHeader {
    /// The header as it was received.
    bytes: Bytes,
    author: Author,
    /// The last count of this node that the other node knew; 0 if it knew none.
    acknowledged: u64,
}

impl ArrivalMark {
    pub(in crate::cluster) fn write(&self, to: &mut Writer) {
        self.author.write(to);
        to.number(self.count);
    }

    pub(in crate::cluster) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            author: Author::read(from)?,
            count: from.number()?,
        })
    }

    fn is_behind(&self, other: &Self) -> bool {
        (self.author.life, self.count) < (other.author.life, other.count)
    }
}

impl ArrivalMarks {
    /// Makes an empty set of marks, for a life that begins.
    pub(in crate::cluster) fn new(own: Author) -> Self {
        Self {
            own: ArrivalMark {
                author: own,
                count: 0,
            },
            arrived: VecDeque::new(),
            node_marks: BTreeMap::new(),
            header: None,
            node_headers: Vec::new(),
        }
    }

    /// Counts a session that moves to this node. Messages are queued for it from here on.
    pub(in crate::cluster) fn note_arrival(&mut self, id: &ByteStr) {
        self.own.count += 1;
        self.arrived.push_back((self.own.count, id.clone()));
    }

    /// Returns the last mark of this node.
    pub(in crate::cluster) fn own_mark(&self) -> &ArrivalMark {
        &self.own
    }

    /// Notes the mark that another node has sent, unless a later one is known.
    pub(in crate::cluster) fn note_node_mark(&mut self, mark: ArrivalMark) {
        let known = self.node_marks.get(&mark.author.node);
        if known.is_none_or(|known| known.is_behind(&mark)) {
            self.node_marks.insert(mark.author.node.clone(), mark);
            self.header = None;
        }
    }

    /// Returns the header of this node's messages: its life, and the last mark of each other node.
    pub(in crate::cluster) fn header(&mut self) -> Bytes {
        let (own, known) = (&self.own.author, &self.node_marks);
        let write = || {
            let mut to = Writer::default();
            own.write(&mut to);
            to.list(known.values(), |to, mark| mark.write(to));
            to.finish()
        };
        self.header.get_or_insert_with(write).clone()
    }

    /// Returns the sessions that do not get a message of another node with that header; `None` if no session gets it,
    /// as the life that has sent it is over.
    ///
    /// # Errors
    /// If it is no header.
    pub(in crate::cluster) fn sessions_too_late_for(
        &mut self,
        header: &[u8],
        is_over: impl Fn(&Author) -> bool,
    ) -> Result<Option<Vec<ByteStr>>, Malformed> {
        let known = self
            .node_headers
            .iter()
            .position(|last| last.bytes == header);
        let index = match known {
            Some(index) => index,
            None => self.note_header(header)?,
        };
        let last = &self.node_headers[index];
        if is_over(&last.author) {
            return Ok(None);
        }
        let late = self.arrived.iter().rev();
        let late = late.take_while(|(mark, _)| *mark > last.acknowledged);
        Ok(Some(late.map(|(_, id)| id.clone()).collect()))
    }

    /// Replaces the last header of a node by a new one, and returns its index.
    ///
    /// # Errors
    /// If it is no header.
    fn note_header(&mut self, header: &[u8]) -> Result<usize, Malformed> {
        let mut from = Reader::without_version(header);
        let author = Author::read(&mut from)?;
        let known = from.list(ArrivalMark::read)?;
        from.expect_end()?;
        let own = known.iter().find(|mark| mark.author == self.own.author);
        let acknowledged = own.map_or(0, |mark| mark.count);
        self.node_headers
            .retain(|last| last.author.node != author.node);
        self.node_headers.push(NodeHeader {
            bytes: Bytes::copy_from_slice(header),
            author,
            acknowledged,
        });
        Ok(self.node_headers.len() - 1)
    }

    /// Forgets the sessions that all of these nodes know of, and the nodes that are not among them, which send nothing
    /// any more. Does nothing if this node is not among them.
    pub(in crate::cluster) fn keep_nodes(&mut self, nodes: &[String]) {
        // A node learns of itself last.
        if !nodes.contains(&self.own.author.node) {
            return;
        }
        self.node_headers
            .retain(|last| nodes.contains(&last.author.node));
        let before = self.node_marks.len();
        self.node_marks.retain(|node, _| nodes.contains(node));
        if self.node_marks.len() < before {
            self.header = None;
        }
        let others = nodes.iter().filter(|node| **node != self.own.author.node);
        let acknowledged = others.map(|node| {
            let mut node_headers = self.node_headers.iter();
            let last = node_headers.find(|last| last.author.node == *node);
            last.map_or(0, |last| last.acknowledged)
        });
        let all = acknowledged.min().unwrap_or(self.own.count);
        while self
            .arrived
            .pop_front_if(|(mark, _)| *mark <= all)
            .is_some()
        {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(node: &str, life: u64) -> Author {
        Author {
            node: node.to_owned(),
            life,
        }
    }

    fn mark(node: &str, life: u64, count: u64) -> ArrivalMark {
        let author = author(node, life);
        ArrivalMark { author, count }
    }

    /// Returns the header of a node that knows these marks.
    fn header(node: &str, known: &[ArrivalMark]) -> Bytes {
        head_of(author(node, 1), known)
    }

    fn head_of(life: Author, known: &[ArrivalMark]) -> Bytes {
        let mut marks = ArrivalMarks::new(life);
        for mark in known {
            marks.note_node_mark(mark.clone());
        }
        marks.header()
    }

    fn id(id: &str) -> ByteStr {
        ByteStr::new(id.to_owned()).unwrap()
    }

    #[test]
    fn a_message_is_late_for_sessions_that_its_node_did_not_know_of() {
        let mut marks = ArrivalMarks::new(author("b", 2));
        marks.note_arrival(&id("first"));
        marks.note_arrival(&id("second"));
        for (known, late) in [
            (vec![mark("b", 2, 2)], vec![]),
            (vec![mark("b", 2, 1), mark("c", 7, 9)], vec![id("second")]),
            (vec![mark("b", 1, 9)], vec![id("second"), id("first")]),
            (vec![], vec![id("second"), id("first")]),
        ] {
            let header = header("a", &known);
            // The second time it is known.
            for _ in 0..2 {
                let found = marks.sessions_too_late_for(&header, |_| false);
                assert_eq!(found, Ok(Some(late.clone())), "{known:?}");
            }
        }
        let of_the_dead = header("a", &[mark("b", 2, 2)]);
        let found = marks.sessions_too_late_for(&of_the_dead, |by| *by == author("a", 1));
        assert_eq!(found, Ok(None));
        assert_eq!(
            marks.sessions_too_late_for(b"\x09", |_| false),
            Err(Malformed)
        );
    }

    #[test]
    fn a_session_that_all_know_of_is_forgotten() {
        let mut marks = ArrivalMarks::new(author("b", 2));
        marks.note_arrival(&id("one"));
        let nodes = ["a", "b", "c"].map(str::to_owned);
        for (node, left) in [("a", 1), ("c", 0)] {
            let header = header(node, &[mark("b", 2, 1)]);
            marks.sessions_too_late_for(&header, |_| false).unwrap();
            marks.keep_nodes(&nodes);
            assert_eq!(marks.arrived.len(), left, "{node} knows of it");
        }
        marks.note_arrival(&id("two"));
        marks.keep_nodes(&["b".to_owned()]);
        assert!(marks.arrived.is_empty(), "there is no other node");
    }

    #[test]
    fn the_head_has_the_last_mark_of_each_life_that_goes_on() {
        let mut marks = ArrivalMarks::new(author("b", 2));
        for (life, count) in [(1, 3), (1, 2), (2, 0), (1, 9)] {
            marks.note_node_mark(mark("a", life, count));
            marks.header();
        }
        let own = || author("b", 2);
        assert_eq!(marks.header(), head_of(own(), &[mark("a", 2, 0)]));
        marks.keep_nodes(&["b".to_owned()]);
        assert_eq!(marks.header(), head_of(own(), &[]));
    }
}
