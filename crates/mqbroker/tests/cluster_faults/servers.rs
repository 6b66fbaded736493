//! NATS servers, as an operator asks them and fills them.

use std::{
    io::{Read as _, Write as _},
    thread,
    time::Duration,
};

use async_nats::{
    ConnectOptions,
    jetstream::{self, Context, stream::Config},
};
use bytes::Bytes;
use mq_testkit::nats_stream_states;
use serde_json::{Value, json};
use tokio::{
    task::block_in_place,
    time::{Instant, sleep, timeout},
};

use crate::{
    cluster::{HTTP_PORT, Place, SYSTEM},
    in_step::{Expired, Looks, States},
};

/// Time that servers may take until all of them store the same.
const PATIENCE: Duration = Duration::from_mins(2);

/// Time that they may take where a server lacks nothing, and only comes behind the others: a new one that reads a whole log.
const PATIENCE_BEHIND: Duration = Duration::from_mins(5);

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

/// The stream that takes the room.
const FILLER: &str = "filler";

pub(crate) struct Servers<'a> {
    place: &'a Place,
    filler: Option<Context>,
    /// Number of values that each server may lack: expired ones that both others keep for good, and it was replaced since.
    pub(crate) expired: Expired,
}

impl<'a> Servers<'a> {
    pub(crate) fn new(place: &'a Place) -> Self {
        Self {
            place,
            filler: None,
            expired: Expired::default(),
        }
    }

    /// Waits until all servers store the same.
    ///
    /// # Errors
    /// If they do not in time: what each of them stores.
    pub(crate) async fn in_step(&self) -> Result<(), Looks> {
        let began = Instant::now();
        let mut looks = Looks::default();
        loop {
            if let [Some(a), Some(b), Some(c)] = self.states() {
                looks.add(&[a, b, c]);
                if looks.show_the_same(self.expired) {
                    return Ok(());
                }
            }
            let lacks = looks.lacking(self.expired).is_some();
            let patience = if lacks { PATIENCE } else { PATIENCE_BEHIND };
            if began.elapsed() > patience {
                return Err(looks);
            }
            sleep(LOOK).await;
        }
    }

    /// Returns the state of each stream at each server that answers; all are asked at once.
    fn states(&self) -> [Option<States>; 3] {
        block_in_place(|| {
            thread::scope(|scope| {
                let asked = [0, 1, 2].map(|server| scope.spawn(move || self.state(server)));
                asked.map(|answer| answer.join().expect("a look does not panic"))
            })
        })
    }

    fn state(&self, server: usize) -> Option<States> {
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
            let is_gone = |state: &Option<States>| {
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
