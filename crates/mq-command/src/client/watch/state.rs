//! The view: which topics are shown, which is chosen, and what keys do. It has no clock, no terminal and no network.

use std::{collections::HashSet, time::Duration};

use super::topics::{Message, Topic, Topics};

/// Levels of a topic that are drawn below each other; the rest is one name.
const DEEPEST: usize = 24;

/// State of the connection.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Link {
    /// Connected, and how that came about, such as `quic://host:14567, resumed with 0-RTT`.
    Up { how: String, rtt: Option<Duration> },
    /// The client is not connected: why, and what happens next.
    Down { why: String },
}

/// A key, as far as it means something here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    Char(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C.
    Interrupt,
}

/// Line of the tree: a topic, or a level that topics have in common.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    pub(crate) depth: usize,
    /// The topic up to this level.
    pub(crate) path: String,
    /// Offset in bytes of the level's own name.
    pub(crate) name_at: usize,
    /// Topics below it.
    pub(crate) below: usize,
    pub(crate) folded: bool,
    pub(crate) messages: u64,
    pub(crate) rate: f64,
    /// The topic that ends here.
    pub(crate) topic: Option<usize>,
}

impl Row {
    pub(crate) fn name(&self) -> &str {
        &self.path[self.name_at..]
    }
}

/// The view stands still: the topics as they were then, and what came since.
struct Pause {
    topics: Topics,
    at: Duration,
    since: u64,
}

/// Everything that is drawn.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch that a key turns"
)]
pub(crate) struct State {
    topics: Topics,
    pause: Option<Pause>,
    pub(crate) link: Link,
    folded: HashSet<String>,
    /// The path of the row that is chosen; none is the first.
    chosen: Option<String>,
    /// The first row on the screen, and how many fit, as drawn last.
    pub(crate) top: usize,
    pub(crate) page: usize,
    /// The first line of the value on the screen.
    pub(crate) value_top: usize,
    /// A part of the topics that are shown.
    pub(crate) filter: String,
    /// `true` if the filter is being typed.
    pub(crate) typing: bool,
    pub(crate) retained_only: bool,
    pub(crate) pretty: bool,
    pub(crate) help: bool,
}

impl State {
    /// Makes an empty view with room for so many topics.
    pub(crate) fn new(most: usize, link: Link) -> Self {
        Self {
            topics: Topics::new(most),
            pause: None,
            link,
            folded: HashSet::new(),
            chosen: None,
            top: 0,
            page: 10,
            value_top: 0,
            filter: String::new(),
            typing: false,
            retained_only: false,
            pretty: true,
            help: false,
        }
    }

    /// Takes a message in.
    pub(crate) fn add(&mut self, message: Message<'_>, now: Duration) {
        self.topics.add(message, now);
        if let Some(pause) = &mut self.pause {
            pause.since += 1;
        }
    }

    /// Returns the number of messages that came since the beginning.
    pub(crate) fn messages(&self) -> u64 {
        self.topics.messages
    }

    /// Returns the number of messages that came since the view stands still; `None` if it does not.
    pub(crate) fn paused(&self) -> Option<u64> {
        self.pause.as_ref().map(|pause| pause.since)
    }

    /// Returns the topics that are shown, and the time that they are shown at.
    pub(crate) fn shown(&mut self, now: Duration) -> (&mut Topics, Duration) {
        match &mut self.pause {
            Some(pause) => (&mut pause.topics, pause.at),
            None => (&mut self.topics, now),
        }
    }

    /// Returns the topic with this index, as it was at the pause if the view is paused; `None` if there is no such
    /// topic.
    pub(crate) fn topic(&self, index: usize) -> Option<&Topic> {
        let paused = self.pause.as_ref().map(|pause| &pause.topics);
        paused.unwrap_or(&self.topics).get(index)
    }

    /// Lists the rows of the tree, as folded and filtered.
    pub(crate) fn rows(&mut self, now: Duration) -> Vec<Row> {
        let filter = self.filter.to_lowercase();
        let retained_only = self.retained_only;
        let folded = std::mem::take(&mut self.folded);
        let (topics, at) = self.shown(now);
        let mut tree = Tree {
            folded: &folded,
            rows: Vec::new(),
            branch: Vec::new(),
        };
        for (index, topic) in topics.in_order() {
            let is_wanted = (!retained_only || topic.retained)
                && (filter.is_empty() || topic.name.to_lowercase().contains(&filter));
            if is_wanted {
                tree.add(index, topic, topic.rate.per_second(at));
            }
        }
        let rows = tree.rows;
        self.folded = folded;
        rows
    }

    /// Returns the index of the selected row; if that is gone, of the nearest before it.
    pub(crate) fn chosen(&self, rows: &[Row]) -> usize {
        let Some(chosen) = &self.chosen else {
            return 0;
        };
        let exact = rows.iter().position(|row| row.path == *chosen);
        exact.unwrap_or_else(|| {
            let over = |row: &Row| chosen.starts_with(&row.path);
            rows.iter().rposition(over).unwrap_or_default()
        })
    }

    /// Does what a key asks for. `false` ends the program.
    pub(crate) fn press(&mut self, key: Key, now: Duration) -> bool {
        if key == Key::Interrupt {
            return false;
        }
        if self.typing {
            self.type_filter(key);
            return true;
        }
        if self.help {
            self.help = false;
            return key != Key::Char('q');
        }
        match key {
            Key::Char('q') => return false,
            Key::Char('?') => self.help = true,
            Key::Char('/') => self.typing = true,
            Key::Char('p') => self.toggle_pause(now),
            Key::Char('r') => self.retained_only = !self.retained_only,
            Key::Char('J') => self.pretty = !self.pretty,
            Key::Char('c') => {
                self.topics.clear();
                self.pause = None;
            }
            Key::Char('[') => self.value_top = self.value_top.saturating_sub(1),
            Key::Char(']') => self.value_top += 1,
            Key::Escape => self.filter.clear(),
            _ => self.travel(key, now),
        }
        true
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Char(one) => self.filter.push(one),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Escape => {
                self.filter.clear();
                self.typing = false;
            }
            Key::Enter => self.typing = false,
            _ => {}
        }
    }

    fn toggle_pause(&mut self, now: Duration) {
        self.pause = match self.pause.take() {
            Some(_) => None,
            None => Some(Pause {
                topics: self.topics.clone(),
                at: now,
                since: 0,
            }),
        };
    }

    /// Handles the keys that choose another row, or fold one.
    fn travel(&mut self, key: Key, now: Duration) {
        let rows = self.rows(now);
        let at = self.chosen(&rows);
        let Some(row) = rows.get(at) else {
            return;
        };
        let page = self.page.max(1);
        let is_branch = row.below > 0;
        let to = match key {
            Key::Up | Key::Char('k') => at.saturating_sub(1),
            Key::Down | Key::Char('j') => at + 1,
            Key::PageUp => at.saturating_sub(page),
            Key::PageDown => at + page,
            Key::Home | Key::Char('g') => 0,
            Key::End | Key::Char('G') => rows.len() - 1,
            Key::Enter | Key::Char(' ') if is_branch => {
                self.fold(row, !row.folded);
                at
            }
            Key::Left | Key::Char('h') if is_branch && !row.folded => {
                self.fold(row, true);
                at
            }
            Key::Left | Key::Char('h') => {
                let above = |other: &Row| other.depth < row.depth;
                rows[..at].iter().rposition(above).unwrap_or(at)
            }
            Key::Right | Key::Char('l') if row.folded => {
                self.fold(row, false);
                at
            }
            Key::Right | Key::Char('l') if is_branch => at + 1,
            _ => return,
        };
        let to = to.min(rows.len() - 1);
        if to != at {
            self.value_top = 0;
        }
        self.chosen = Some(rows[to].path.clone());
    }

    fn fold(&mut self, row: &Row, fold: bool) {
        if fold {
            self.folded.insert(row.path.clone());
        } else {
            self.folded.remove(&row.path);
        }
    }
}

/// The rows so far, and those that the next topic may lie under.
struct Tree<'a> {
    folded: &'a HashSet<String>,
    rows: Vec<Row>,
    branch: Vec<usize>,
}

impl Tree<'_> {
    fn add(&mut self, index: usize, topic: &Topic, rate: f64) {
        let name = &*topic.name;
        let slashes = name.match_indices('/').map(|(at, _)| at);
        let mut ends: Vec<_> = slashes.take(DEEPEST - 1).collect();
        ends.push(name.len());
        // What it has in common with the topic before it is there already.
        let is_over = |row: &Row, end: &usize| row.path == name[..*end];
        let common = self.branch.iter().zip(&ends);
        let common = common.take_while(|(row, end)| is_over(&self.rows[**row], end));
        let common = common.count();
        self.branch.truncate(common);
        let mut is_hidden = self.branch.last().is_some_and(|row| self.rows[*row].folded);
        for (depth, end) in ends.iter().enumerate().skip(common) {
            if is_hidden {
                break;
            }
            let path = name[..*end].to_owned();
            is_hidden = depth + 1 < ends.len() && self.folded.contains(&path);
            let name_at = if depth == 0 { 0 } else { ends[depth - 1] + 1 };
            self.branch.push(self.rows.len());
            self.rows.push(Row {
                depth,
                folded: self.folded.contains(&path),
                path,
                name_at,
                below: 0,
                messages: 0,
                rate: 0.0,
                topic: None,
            });
        }
        for (depth, row) in self.branch.iter().enumerate() {
            let row = &mut self.rows[*row];
            row.messages += topic.messages;
            row.rate += rate;
            if depth + 1 == ends.len() {
                row.topic = Some(index);
            } else {
                row.below += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
