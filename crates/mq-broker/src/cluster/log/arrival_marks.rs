//! Which sessions a message of QoS 0 comes too late for.
//!
//! What a node tells the others may be held up on its way, for as long as a link is stuck. By then a session may have come
//! here from another node, where it has got the message already. So each node counts marks, one for each session that
//! comes, and tells the others; with each message these say which mark they knew. A message of a node that did not know the
//! mark of a session may be older than its coming, and is not for it: at QoS 0 a message comes once at most, and may be
//! lost. What a life has told that is over is for nobody: its sessions are elsewhere.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use mq_codec::ByteStr;

use super::author::Author;
use crate::cluster::engine::{Malformed, Reader, Writer};

/// A node's count of the sessions that have come to it, in one of its lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cluster) struct ArrivalMark {
    pub(in crate::cluster) of: Author,
    pub(in crate::cluster) count: u64,
}

/// This node's marks, and those of the others.
#[derive(Debug)]
pub(in crate::cluster) struct ArrivalMarks {
    own: ArrivalMark,
    /// Sessions that have come, by their marks, until all others know of them.
    came: VecDeque<(u64, ByteStr)>,
    /// The last mark of each other node, by its name.
    known: BTreeMap<String, ArrivalMark>,
    /// The form of what is known, behind this life.
    head: Option<Bytes>,
    /// Of each other node.
    heard: Vec<Heard>,
}

/// What another node has told last.
#[derive(Debug)]
struct Heard {
    /// Its head.
    form: Bytes,
    by: Author,
    /// Which of this node's marks it knew.
    echoed: u64,
}

impl ArrivalMark {
    pub(in crate::cluster) fn write(&self, to: &mut Writer) {
        self.of.write(to);
        to.number(self.count);
    }

    pub(in crate::cluster) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            of: Author::read(from)?,
            count: from.number()?,
        })
    }

    fn is_behind(&self, other: &Self) -> bool {
        (self.of.life, self.count) < (other.of.life, other.count)
    }
}

impl ArrivalMarks {
    /// Those of a life that begins.
    pub(in crate::cluster) fn new(own: Author) -> Self {
        Self {
            own: ArrivalMark { of: own, count: 0 },
            came: VecDeque::new(),
            known: BTreeMap::new(),
            head: None,
            heard: Vec::new(),
        }
    }

    /// A session comes. Messages are queued for it from here on.
    pub(in crate::cluster) fn comes(&mut self, id: &ByteStr) {
        self.own.count += 1;
        self.came.push_back((self.own.count, id.clone()));
    }

    /// The last mark of this node.
    pub(in crate::cluster) fn own(&self) -> &ArrivalMark {
        &self.own
    }

    /// Another node has told its mark.
    pub(in crate::cluster) fn note(&mut self, mark: ArrivalMark) {
        let known = self.known.get(&mark.of.node);
        if known.is_none_or(|known| known.is_behind(&mark)) {
            self.known.insert(mark.of.node.clone(), mark);
            self.head = None;
        }
    }

    /// What goes with each message of this node.
    pub(in crate::cluster) fn head(&mut self) -> Bytes {
        let (own, known) = (&self.own.of, &self.known);
        let write = || {
            let mut to = Writer::default();
            own.write(&mut to);
            to.all(known.values(), |to, mark| mark.write(to));
            to.finish()
        };
        self.head.get_or_insert_with(write).clone()
    }

    /// The sessions that do not get a message of another node with that head; `None` if nobody does, as the life that
    /// has told it is over.
    ///
    /// # Errors
    /// If it is no head.
    pub(in crate::cluster) fn late_for(
        &mut self,
        head: &[u8],
        is_over: impl Fn(&Author) -> bool,
    ) -> Result<Option<Vec<ByteStr>>, Malformed> {
        let known = self.heard.iter().position(|last| last.form == head);
        let index = match known {
            Some(index) => index,
            None => self.hear(head)?,
        };
        let last = &self.heard[index];
        if is_over(&last.by) {
            return Ok(None);
        }
        let late = self.came.iter().rev();
        let late = late.take_while(|(mark, _)| *mark > last.echoed);
        Ok(Some(late.map(|(_, id)| id.clone()).collect()))
    }

    /// Notes another head of a node, and returns where.
    fn hear(&mut self, head: &[u8]) -> Result<usize, Malformed> {
        let mut from = Reader::part(head);
        let by = Author::read(&mut from)?;
        let known = from.all(ArrivalMark::read)?;
        from.end()?;
        let own = known.iter().find(|mark| mark.of == self.own.of);
        let echoed = own.map_or(0, |mark| mark.count);
        self.heard.retain(|last| last.by.node != by.node);
        self.heard.push(Heard {
            form: Bytes::copy_from_slice(head),
            by,
            echoed,
        });
        Ok(self.heard.len() - 1)
    }

    /// Forgets sessions that all of these nodes know of, and other nodes. They are all that may still tell something.
    pub(in crate::cluster) fn forget(&mut self, nodes: &[String]) {
        // A node learns of itself last.
        if !nodes.contains(&self.own.of.node) {
            return;
        }
        self.heard.retain(|last| nodes.contains(&last.by.node));
        let before = self.known.len();
        self.known.retain(|node, _| nodes.contains(node));
        if self.known.len() < before {
            self.head = None;
        }
        let others = nodes.iter().filter(|node| **node != self.own.of.node);
        let echoed = others.map(|node| {
            let mut heard = self.heard.iter();
            let last = heard.find(|last| last.by.node == *node);
            last.map_or(0, |last| last.echoed)
        });
        let all = echoed.min().unwrap_or(self.own.count);
        while self.came.pop_front_if(|(mark, _)| *mark <= all).is_some() {}
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
        let of = author(node, life);
        ArrivalMark { of, count }
    }

    /// The head of a node that knows these marks.
    fn head(node: &str, known: &[ArrivalMark]) -> Bytes {
        head_of(author(node, 1), known)
    }

    fn head_of(life: Author, known: &[ArrivalMark]) -> Bytes {
        let mut marks = ArrivalMarks::new(life);
        for mark in known {
            marks.note(mark.clone());
        }
        marks.head()
    }

    fn id(id: &str) -> ByteStr {
        ByteStr::new(id.to_owned()).unwrap()
    }

    #[test]
    fn a_message_is_late_for_sessions_that_its_node_did_not_know_of() {
        let mut marks = ArrivalMarks::new(author("b", 2));
        marks.comes(&id("first"));
        marks.comes(&id("second"));
        for (known, late) in [
            (vec![mark("b", 2, 2)], vec![]),
            (vec![mark("b", 2, 1), mark("c", 7, 9)], vec![id("second")]),
            (vec![mark("b", 1, 9)], vec![id("second"), id("first")]),
            (vec![], vec![id("second"), id("first")]),
        ] {
            let head = head("a", &known);
            // The second time it is known.
            for _ in 0..2 {
                let found = marks.late_for(&head, |_| false);
                assert_eq!(found, Ok(Some(late.clone())), "{known:?}");
            }
        }
        let of_the_dead = head("a", &[mark("b", 2, 2)]);
        let found = marks.late_for(&of_the_dead, |by| *by == author("a", 1));
        assert_eq!(found, Ok(None));
        assert_eq!(marks.late_for(b"\x09", |_| false), Err(Malformed));
    }

    #[test]
    fn a_session_that_all_know_of_is_forgotten() {
        let mut marks = ArrivalMarks::new(author("b", 2));
        marks.comes(&id("one"));
        let nodes = ["a", "b", "c"].map(str::to_owned);
        for (node, left) in [("a", 1), ("c", 0)] {
            let head = head(node, &[mark("b", 2, 1)]);
            marks.late_for(&head, |_| false).unwrap();
            marks.forget(&nodes);
            assert_eq!(marks.came.len(), left, "{node} knows of it");
        }
        marks.comes(&id("two"));
        marks.forget(&["b".to_owned()]);
        assert!(marks.came.is_empty(), "there is no other node");
    }

    #[test]
    fn the_head_has_the_last_mark_of_each_life_that_goes_on() {
        let mut marks = ArrivalMarks::new(author("b", 2));
        for (life, count) in [(1, 3), (1, 2), (2, 0), (1, 9)] {
            marks.note(mark("a", life, count));
            marks.head();
        }
        let own = || author("b", 2);
        assert_eq!(marks.head(), head_of(own(), &[mark("a", 2, 0)]));
        marks.forget(&["b".to_owned()]);
        assert_eq!(marks.head(), head_of(own(), &[]));
    }
}
