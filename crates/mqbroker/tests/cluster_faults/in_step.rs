//! Comparison of what the NATS servers store, by the states of their streams at looks while clients go on writing.
//!
//! A log has a gap where its numbers do, however far a server has come: all servers have to have as many missing. Of the values NATS
//! removes old and expired ones, but keeps an expired one for good at a server that has read the times of expiry from its blocks. So a
//! server lacks values only if both others have more at every look.

use std::{collections::BTreeMap, fmt};

use mq_testkit::NatsStreamState;

/// The stream of values, whose messages may expire.
pub(crate) const VALUES: &str = "mq-values";

/// Expired values at most that two servers keep, and a third one that was replaced has not got.
const MOST_EXPIRED: u64 = 8;

/// The states of each stream at one server.
pub(crate) type States = BTreeMap<String, NatsStreamState>;

/// A stream as all looks until now have shown it.
#[derive(Default)]
struct Seen {
    /// The last number of the server that was ahead at the look before.
    ahead: Option<u64>,
    /// Each server has stored what any server had stored at the look before.
    is_level: bool,
    /// All servers lack as many numbers of a log, at one look at least.
    has_same_gaps: bool,
    /// The states at the last look.
    states: [NatsStreamState; 3],
    /// Number of messages that each server had fewer than both others: the fewest of all looks.
    lacks: Option<[u64; 3]>,
}

/// Looks at the servers, until they store the same.
#[derive(Default)]
pub(crate) struct Looks {
    streams: BTreeMap<String, Seen>,
}

/// Number of expired values that each server may lack.
pub(crate) type Expired = [u64; 3];

impl Looks {
    /// Adds the states at one look of servers that have all answered.
    pub(crate) fn add(&mut self, states: &[States; 3]) {
        let [first, ..] = states;
        for name in first.keys() {
            let of = |n: usize| states[n].get(name).copied();
            if let (Some(a), Some(b), Some(c)) = (of(0), of(1), of(2)) {
                let seen = self.streams.entry(name.clone()).or_default();
                seen.add(name == VALUES, [a, b, c]);
            }
        }
    }

    /// Returns `true` if the servers store the same, but for so many expired values.
    pub(crate) fn show_the_same(&self, expired: Expired) -> bool {
        !self.streams.is_empty() && self.differing(expired).next().is_none()
    }

    /// Returns the server that lacks messages which both others have.
    pub(crate) fn lacking(&self, expired: Expired) -> Option<usize> {
        self.differing(expired)
            .find_map(|(name, seen)| (0..3).find(|&server| seen.is_lacking(name, server, expired)))
    }

    /// Returns how many values each server lacks, if nothing else differs, and it may be that they have expired.
    pub(crate) fn lacks_values_alone(&self, expired: Expired) -> Option<Expired> {
        let mut differing = self.differing(expired);
        let (VALUES, seen) = differing.next()? else {
            return None;
        };
        let lacks = seen.lacks.filter(|_| seen.is_level)?;
        let few = lacks.iter().all(|lacks| *lacks <= MOST_EXPIRED);
        (few && differing.next().is_none()).then_some(lacks)
    }

    fn differing(&self, expired: Expired) -> impl Iterator<Item = (&str, &Seen)> {
        let streams = self.streams.iter().map(|(name, seen)| (&**name, seen));
        streams.filter(move |(name, seen)| !seen.is_same(name, expired))
    }
}

impl Seen {
    fn add(&mut self, are_values: bool, states: [NatsStreamState; 3]) {
        let lasts = states.map(|[.., last]| last);
        let [least, most] =
            [lasts.iter().min(), lasts.iter().max()].map(|one| *one.expect("three"));
        self.is_level |= self.ahead.replace(most).is_some_and(|ahead| least >= ahead);
        self.states = states;
        let missing = states.map(|[messages, _, first, last]| {
            (last + 1).saturating_sub(first).saturating_sub(messages)
        });
        self.has_same_gaps |= missing[0] == missing[1] && missing[1] == missing[2];
        let lacks = [0, 1, 2].map(|server| {
            let others = [(server + 1) % 3, (server + 2) % 3];
            if are_values {
                let fewest = others.map(|other| states[other][0]).into_iter().min();
                fewest.expect("two").saturating_sub(states[server][0])
            } else {
                let most = others.map(|other| missing[other]).into_iter().max();
                missing[server].saturating_sub(most.expect("two"))
            }
        });
        let before = self.lacks.unwrap_or([u64::MAX; 3]);
        self.lacks = Some([0, 1, 2].map(|server| before[server].min(lacks[server])));
    }

    fn is_lacking(&self, name: &str, server: usize, expired: Expired) -> bool {
        let may_lack = if name == VALUES { expired[server] } else { 0 };
        self.lacks.is_some_and(|lacks| lacks[server] > may_lack)
    }

    fn is_same(&self, name: &str, expired: Expired) -> bool {
        let is_whole = (0..3).all(|server| !self.is_lacking(name, server, expired));
        self.is_level && is_whole && (name == VALUES || self.has_same_gaps)
    }
}

impl fmt::Display for Looks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("servers do not come to store the same:")?;
        for (name, seen) in &self.streams {
            write!(f, " {name} {:?}, lacks {:?}", seen.states, seen.lacks)?;
        }
        Ok(())
    }
}

/// Makes a stream's looks, each with messages and last number at each server.
fn looks(name: &str, looks: &[[(u64, u64); 3]]) -> Looks {
    let mut all = Looks::default();
    for look in looks {
        let state = |(messages, last)| [messages, 100 * messages, 1, last];
        all.add(&look.map(|of| BTreeMap::from([(name.to_owned(), state(of))])));
    }
    all
}

const NONE: Expired = [0; 3];

pub(crate) fn servers_store_the_same_once_each_has_what_any_had_before() {
    let same = |each: &[[(u64, u64); 3]]| looks("log", each).show_the_same(NONE);
    assert!(same(&[[(9, 9); 3], [(9, 9); 3]]));
    assert!(
        same(&[[(8, 8), (9, 9), (7, 7)], [(9, 9), (11, 11), (10, 10)]]),
        "each look is at another moment"
    );
    assert!(
        !same(&[[(9, 9), (9, 9), (7, 7)], [(11, 11), (11, 11), (8, 8)]]),
        "one is behind"
    );
    assert!(
        !same(&[[(9, 9), (8, 9), (8, 9)], [(9, 9), (8, 9), (8, 9)]]),
        "two lack one"
    );
    assert!(!same(&[[(9, 9); 3]]), "one look shows no progress");
    assert!(!Looks::default().show_the_same(NONE));
}

pub(crate) fn a_server_lacks_messages_if_both_others_have_more_at_every_look() {
    let lacking = |name: &str, look: [(u64, u64); 3]| looks(name, &[look, look]).lacking(NONE);
    assert_eq!(lacking("log", [(9, 9), (9, 9), (7, 9)]), Some(2));
    assert_eq!(lacking("log", [(7, 9), (10, 10), (11, 11)]), Some(0));
    assert_eq!(
        lacking("log", [(9, 9), (9, 9), (7, 7)]),
        None,
        "it may catch up"
    );
    assert_eq!(lacking(VALUES, [(7, 9), (9, 9), (8, 9)]), Some(0));
    assert_eq!(
        lacking(VALUES, [(7, 9), (9, 9), (7, 9)]),
        None,
        "an expired one stays at one"
    );
    let looks = looks(
        VALUES,
        &[[(7, 9), (8, 10), (8, 10)], [(8, 10), (8, 11), (8, 11)]],
    );
    assert_eq!(looks.lacking(NONE), None, "it was behind");
    assert!(looks.show_the_same(NONE));
}

pub(crate) fn a_replaced_server_may_lack_a_few_values_that_have_expired_and_nothing_else() {
    let lacks = |name: &str, fewer: u64| {
        let look = [(100 - fewer, 200), (100, 200), (102, 200)];
        looks(name, &[look, look]).lacks_values_alone(NONE)
    };
    assert_eq!(lacks(VALUES, 2), Some([2, 0, 0]));
    assert_eq!(lacks(VALUES, 9), None, "so many have not expired");
    assert_eq!(lacks("log", 2), None);
    let look = [(98, 200), (100, 200), (100, 200)];
    assert!(looks(VALUES, &[look, look]).show_the_same([2, 0, 0]));
    assert!(!looks(VALUES, &[look, look]).show_the_same([1, 9, 9]));
}
