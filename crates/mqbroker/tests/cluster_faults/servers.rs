//! NATS servers, as an operator asks them and fills them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read as _, Write as _},
    time::Duration,
};

use async_nats::{
    ConnectOptions,
    jetstream::{self, Context, stream::Config},
};
use bytes::Bytes;
use mq_testkit::{NatsStreamState, nats_stream_states};
use serde_json::{Value, json};
use tokio::{
    task::block_in_place,
    time::{Instant, sleep, timeout},
};

use crate::cluster::{HTTP_PORT, Place, SYSTEM};

/// Time that servers may take until all of them store the same.
const PATIENCE: Duration = Duration::from_mins(2);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Time that a server may take to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Between two tests of a connection.
const PING: Duration = Duration::from_secs(1);

/// Time that filling may take.
const FILLING: Duration = Duration::from_secs(40);

/// Code of the error that a server is no member of the cluster.
const NOT_A_MEMBER: u64 = 10_044;

/// The stream of values, whose messages may expire.
const VALUES: &str = "mq-values";

/// The stream that takes the room.
const FILLER: &str = "filler";

/// Servers that do not come to store the same.
#[derive(Default)]
pub(crate) struct Unequal {
    /// The states at each server that answers of the streams that were not the same at any look.
    states: States,
}

type States = [Option<BTreeMap<String, NatsStreamState>>; 3];

impl Unequal {
    /// Returns the server that lacks messages which both others have. A log lacks them where its numbers have a gap, however far it
    /// has come; of values old ones are removed everywhere, so that these have to be as many at both others.
    pub(crate) fn lacking(&self) -> Option<usize> {
        let [Some(a), Some(b), Some(c)] = &self.states else {
            return None;
        };
        let gaps = |&[messages, _, first, last]: &NatsStreamState| {
            (last + 1).saturating_sub(first).saturating_sub(messages)
        };
        let lacks = |stream: &str, [one, two, three]: [&NatsStreamState; 3]| {
            if stream == VALUES {
                one[0] < two[0] && two[0] == three[0] && one[3] >= two[3]
            } else {
                gaps(one) > gaps(two) && gaps(two) == gaps(three)
            }
        };
        let servers = [[a, b, c], [b, a, c], [c, a, b]];
        servers.iter().position(|[one, two, three]| {
            let streams = one.iter();
            let mut streams = streams.filter_map(|(name, state)| {
                Some((name, [state, two.get(name)?, three.get(name)?]))
            });
            streams.any(|(name, states)| lacks(name, states))
        })
    }

    /// Returns by how many values a server has fewer than both others, which have as many; `None` if they differ otherwise, too.
    pub(crate) fn fewer_values(&self, server: usize) -> Option<u64> {
        let of = |n: usize, stream: &str| self.states[n].as_ref()?.get(stream).copied();
        let [b, c] = [1, 2].map(|next| (server + next) % 3);
        let streams = self.states[server].as_ref()?.keys();
        let logs_are_same = streams.filter(|stream| *stream != VALUES).all(|stream| {
            let states = [of(server, stream), of(b, stream), of(c, stream)];
            matches!(states, [Some(a), Some(b), Some(c)] if have_stored_the_same([a, b, c], 0))
        });
        let [fewer, more, as_many] = [of(server, VALUES)?, of(b, VALUES)?, of(c, VALUES)?];
        let count = more[0].checked_sub(fewer[0])?;
        (logs_are_same && more[0] == as_many[0]).then_some(count)
    }
}

impl std::fmt::Display for Unequal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "servers do not come to store the same: {:?}",
            self.states
        )
    }
}

pub(crate) struct Servers<'a> {
    place: &'a Place,
    filler: Option<Context>,
    /// Number of expired values that two servers keep for good: a third one that was replaced has not got them.
    pub(crate) expired: u64,
}

/// Returns `true` if servers with these states of a stream have stored it as far, and none lacks a message that the others have, but for
/// so many that have expired. One of them may have more: NATS keeps an expired message for good at a server that has read the times
/// of expiry from its blocks.
pub(crate) fn have_stored_the_same(states: [NatsStreamState; 3], expired: u64) -> bool {
    let mut messages = states.map(|[messages, ..]| messages);
    messages.sort_unstable();
    let [a, b, c] = states.map(|[.., last]| last);
    a == b && b == c && messages[1] - messages[0] <= expired
}

impl<'a> Servers<'a> {
    pub(crate) fn new(place: &'a Place) -> Self {
        Self {
            place,
            filler: None,
            expired: 0,
        }
    }

    /// Waits until all servers have stored the same: each stream at a time of its own, since a stream that is written all the
    /// time differs at most looks.
    ///
    /// # Errors
    /// If they do not in time: what each of them stores.
    pub(crate) async fn in_step(&self) -> Result<(), Unequal> {
        let began = Instant::now();
        let mut differing: Option<BTreeSet<String>> = None;
        loop {
            let mut states = self.states();
            if let [Some(a), Some(b), Some(c)] = &states {
                let differing = differing.get_or_insert_with(|| a.keys().cloned().collect());
                let is_same = |stream: &String| {
                    let states = [a, b, c].map(|all| all.get(stream).copied());
                    let [Some(a), Some(b), Some(c)] = states else {
                        return false;
                    };
                    let expired = if stream == VALUES { self.expired } else { 0 };
                    have_stored_the_same([a, b, c], expired)
                };
                differing.retain(|stream| !is_same(stream));
                if differing.is_empty() {
                    return Ok(());
                }
            }
            if began.elapsed() > PATIENCE {
                if let Some(differing) = &differing {
                    for state in states.iter_mut().flatten() {
                        state.retain(|stream, _| differing.contains(stream));
                    }
                }
                return Err(Unequal { states });
            }
            sleep(LOOK).await;
        }
    }

    /// Returns the state of each stream at each server that answers.
    fn states(&self) -> States {
        block_in_place(|| [0, 1, 2].map(|server| self.state(server)))
    }

    fn state(&self, server: usize) -> Option<BTreeMap<String, NatsStreamState>> {
        let mut stream = self.place.net.connect(server, HTTP_PORT).ok()?;
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        let asked = b"GET /jsz?streams=true HTTP/1.0\r\n\r\n";
        stream.write_all(asked).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        nats_stream_states(&answer)
    }

    /// Publishes to a stream of its own until the servers refuse it. Returns `true` if they do.
    pub(crate) async fn fill(&mut self) -> bool {
        let filled = timeout(FILLING, self.try_to_fill()).await;
        filled.is_ok_and(|refused| refused.is_some())
    }

    /// Connects to one of the servers.
    async fn connect(&self, options: ConnectOptions) -> Option<async_nats::Client> {
        let net = &self.place.net;
        let urls = [0, 1, 2].map(|server| format!("nats://{}:4222", net.server(server)));
        // Over a link that is cut nothing else ends a connection: by it, another server is asked after a few seconds.
        let options = options.ping_interval(PING).connection_timeout(ANSWER);
        let options = options.ignore_discovered_servers();
        Box::pin(options.connect(urls.to_vec())).await.ok()
    }

    /// Has the servers forget one of them, by its name.
    ///
    /// # Errors
    /// If they do not do it in time: the last answer.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let removed = self.try_remove(name).await;
            if removed.is_ok() || began.elapsed() > PATIENCE {
                return removed.map_err(|answer| format!("{name} is not removed: {answer}"));
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Asks the servers once to forget one of them.
    ///
    /// # Errors
    /// If they do not say that they have: their answer.
    pub(crate) async fn try_remove(&self, name: &str) -> Result<(), String> {
        let asked = async {
            let options = ConnectOptions::new();
            let options = options.user_and_password(SYSTEM.to_owned(), SYSTEM.to_owned());
            let client = self.connect(options).await?;
            let request = json!({ "peer": name }).to_string();
            let answer = client.request("$JS.API.SERVER.REMOVE", request.into());
            serde_json::from_slice::<Value>(&answer.await.ok()?.payload).ok()
        };
        let answer = timeout(ANSWER, asked).await.ok().flatten();
        let answer = answer.ok_or("no answer")?;
        // An earlier request was granted, whose answer was lost.
        let is_gone = answer["error"]["err_code"] == NOT_A_MEMBER;
        if is_gone || answer["success"] == true {
            return Ok(());
        }
        Err(answer.to_string())
    }

    async fn try_to_fill(&mut self) -> Option<()> {
        let client = self.connect(ConnectOptions::new()).await?;
        let mut context = jetstream::new(client);
        context.set_timeout(ANSWER);
        let context = &*self.filler.insert(context);
        let filler = Config {
            name: FILLER.to_owned(),
            num_replicas: 3,
            ..Config::default()
        };
        while context.get_or_create_stream(filler.clone()).await.is_err() {
            sleep(LOOK).await;
        }
        let payload = Bytes::from(vec![7; 1_000_000]);
        let mut failures = 0;
        loop {
            let sent = context.publish(FILLER, payload.clone()).await.ok()?;
            // Without room there is soon no leader that could refuse.
            failures = if sent.await.is_err() { failures + 1 } else { 0 };
            if failures == 3 {
                return Some(());
            }
        }
    }

    /// Removes that stream, until no server has it: one that has just begun to lead may say that there is none.
    ///
    /// # Errors
    /// If the servers do not do it in time.
    pub(crate) async fn empty(&mut self) -> Result<(), String> {
        let Some(context) = self.filler.take() else {
            return Ok(());
        };
        let began = Instant::now();
        loop {
            let removed = context.delete_stream(FILLER).await.map(|_| ());
            let is_gone = |state: &Option<BTreeMap<_, _>>| {
                state
                    .as_ref()
                    .is_some_and(|state| !state.contains_key(FILLER))
            };
            if self.states().iter().all(is_gone) {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("the filler is not removed: {removed:?}"));
            }
            sleep(LOOK).await;
        }
    }
}

pub(crate) fn a_server_lacks_messages_if_both_others_have_as_many_more() {
    let lacking_of = |stream: &str, of: [(u64, u64); 3]| {
        let states = of.map(|(messages, last)| {
            let state = [messages, 100 * messages, 1, last];
            Some(BTreeMap::from([(stream.to_owned(), state)]))
        });
        Unequal { states }.lacking()
    };
    let lacking = |of| lacking_of("log", of);
    assert_eq!(lacking([(9, 9), (9, 9), (7, 9)]), Some(2));
    assert_eq!(
        lacking([(9, 9), (7, 10), (9, 9)]),
        Some(1),
        "it has a later one"
    );
    assert_eq!(
        lacking([(9, 9), (9, 9), (7, 7)]),
        None,
        "it is behind, and may catch up"
    );
    assert_eq!(
        lacking([(9, 9), (8, 9), (7, 9)]),
        None,
        "nobody knows what is right"
    );
    assert_eq!(lacking([(9, 9); 3]), None);
    assert_eq!(
        lacking([(7, 9), (10, 10), (11, 11)]),
        Some(0),
        "it was behind for a moment, and has a gap"
    );
    assert_eq!(lacking_of(VALUES, [(7, 9), (9, 9), (9, 9)]), Some(0));
    assert_eq!(
        lacking_of(VALUES, [(7, 10), (7, 9), (7, 9)]),
        None,
        "a value was replaced there first"
    );
}

pub(crate) fn a_replaced_server_may_lack_values_that_have_expired_and_nothing_else() {
    let fewer = |logs: [u64; 3], values: [u64; 3]| {
        let state = |messages: u64| [messages, 100 * messages, 1, 9];
        let of = |n: usize| [("log", logs[n]), (VALUES, values[n])];
        let states = [0, 1, 2].map(|n| {
            let streams = of(n).map(|(name, messages)| (name.to_owned(), state(messages)));
            Some(BTreeMap::from(streams))
        });
        Unequal { states }.fewer_values(0)
    };
    assert_eq!(fewer([9, 9, 9], [5, 7, 7]), Some(2));
    assert_eq!(fewer([8, 9, 9], [5, 7, 7]), None);
    assert_eq!(fewer([9, 9, 9], [5, 6, 7]), None);
    assert_eq!(Unequal::default().fewer_values(0), None);
}

pub(crate) fn servers_have_stored_the_same_if_none_lacks_what_the_others_have() {
    let state = |messages: u64, last: u64| [messages, 100 * messages, 1, last];
    let same = |messages: [u64; 3]| have_stored_the_same(messages.map(|some| state(some, 9)), 0);
    assert!(same([5, 5, 5]));
    assert!(same([5, 6, 5]), "an expired message stays at one");
    assert!(!same([5, 4, 5]), "one lacks a message");
    assert!(!same([4, 5, 6]));
    let ahead = [state(5, 9), state(5, 8), state(5, 9)];
    assert!(!have_stored_the_same(ahead, 0));
    let with_expired = |lacks: u64| [5 - lacks, 5, 5].map(|some| state(some, 9));
    assert!(have_stored_the_same(with_expired(1), 1));
    assert!(!have_stored_the_same(with_expired(2), 1));
}
