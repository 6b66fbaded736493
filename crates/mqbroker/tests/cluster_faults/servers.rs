//! NATS servers, as an operator asks them and fills them.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    time::Duration,
};

use async_nats::jetstream::{self, Context, stream::Config};
use bytes::Bytes;
use mq_testkit::{NatsStreamState, nats_stream_states};
use tokio::{
    task::block_in_place,
    time::{Instant, sleep, timeout},
};

use crate::cluster::{HTTP_PORT, Place};

/// Time that servers may take until all of them store the same.
const PATIENCE: Duration = Duration::from_mins(2);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Time that a server may take to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Time that filling may take.
const FILLING: Duration = Duration::from_secs(40);

/// The stream that takes the room.
const FILLER: &str = "filler";

pub(crate) struct Servers<'a> {
    place: &'a Place,
    filler: Option<Context>,
}

impl<'a> Servers<'a> {
    pub(crate) fn new(place: &'a Place) -> Self {
        Self {
            place,
            filler: None,
        }
    }

    /// Waits until all servers store the same.
    ///
    /// # Errors
    /// If they do not in time: what each of them stores.
    pub(crate) async fn in_step(&self) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let states = self.states();
            if let [Some(a), Some(b), Some(c)] = &states
                && a == b
                && b == c
            {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("servers do not come to store the same: {states:?}"));
            }
            sleep(LOOK).await;
        }
    }

    /// Returns the state of each stream at each server that answers.
    fn states(&self) -> [Option<BTreeMap<String, NatsStreamState>>; 3] {
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

    async fn try_to_fill(&mut self) -> Option<()> {
        let net = &self.place.net;
        let urls = [0, 1, 2].map(|server| format!("nats://{}:4222", net.server(server)));
        let options = async_nats::ConnectOptions::new().ignore_discovered_servers();
        let client = options.connect(urls.to_vec()).await.ok()?;
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

    /// Removes that stream.
    ///
    /// # Errors
    /// If the servers do not do it in time.
    pub(crate) async fn empty(&mut self) -> Result<(), String> {
        let Some(context) = self.filler.take() else {
            return Ok(());
        };
        let began = Instant::now();
        loop {
            match context.delete_stream(FILLER).await {
                Ok(_) => return Ok(()),
                Err(error) if error.to_string().contains("not found") => return Ok(()),
                Err(error) if began.elapsed() > PATIENCE => {
                    return Err(format!("the filler is not removed: {error}"));
                }
                Err(_) => sleep(LOOK).await,
            }
        }
    }
}
