//! NATS `JetStream` as the engine: a stream for each log, and one for values, with one message a subject.

mod connect;
mod settings;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod tls;
mod values;

use std::{sync::Mutex, time::Duration};

use async_nats::{
    Client, ConnectOptions, HeaderMap, ServerAddr,
    header::NATS_MESSAGE_ID,
    jetstream::{
        self, Context, Message,
        consumer::{AckPolicy, Consumer, DeliverPolicy, pull},
        stream::{State, Stream},
    },
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::sleep,
};
use tracing::{debug, warn};

use super::{Answer, Asked, Engine, EngineError, Entry, Key, Kind, Lasts, Put, RETRY, Value};
use crate::lock::lock;
use connect::Failure;
pub use settings::NatsSettings;

/// How long an append, a put or an answer may take before it is tried again.
const ANSWERED: Duration = Duration::from_secs(2);

/// How often the server of a consumer says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// For so long a server answers one request for messages, and keeps a consumer that nobody asks.
const EXPIRES: Duration = Duration::from_secs(10);
const FORGETS: Duration = Duration::from_secs(30);

/// What may be on its way to a reader, in entries or messages.
const ON_THE_WAY: usize = 256;

/// One node's way to NATS.
#[derive(Debug)]
pub struct NatsEngine {
    cluster: String,
    node: String,
    shards: u16,
    client: Client,
    context: Context,
    values: Stream,
    tell: mpsc::Sender<Bytes>,
    told: Mutex<Option<mpsc::Receiver<Bytes>>>,
    asked: Mutex<Option<mpsc::Receiver<Asked>>>,
    /// They end with it.
    _tasks: JoinSet<()>,
}

impl NatsEngine {
    /// One try.
    async fn open(
        settings: &NatsSettings,
        node: &str,
        options: ConnectOptions,
        servers: Vec<ServerAddr>,
    ) -> Result<Self, Failure> {
        let cluster = &settings.cluster;
        let client = connect::connect(settings, options, servers).await?;
        let here = format!("{cluster}.here.{node}");
        connect::is_alone(&client, &here, node).await?;
        let mut tasks = JoinSet::new();
        connect::be_here(&client, here, &mut tasks).await?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(ANSWERED);
        let values = connect::streams(settings, &context).await?;
        let told = listen(&client, format!("{cluster}.told"), |message| {
            Some(message.payload)
        });
        let told = told.await?;
        let ask = format!("{cluster}.ask.{node}");
        let answers = client.clone();
        let asked = listen(&client, ask, move |message| {
            let (answer, answered) = oneshot::channel();
            let (client, reply) = (answers.clone(), message.reply?);
            tokio::spawn(async move {
                if let Ok(bytes) = answered.await {
                    // The asker asks again.
                    let _ = client.publish(reply, bytes).await;
                }
            });
            let question = message.payload;
            Some(Asked { question, answer })
        });
        let asked = asked.await?;
        let (tell, mut to_tell) = mpsc::channel(ON_THE_WAY);
        let (teller, subject) = (client.clone(), format!("{cluster}.told"));
        tokio::spawn(async move {
            while let Some(message) = to_tell.recv().await {
                // Or it is lost.
                let _ = teller.publish(subject.clone(), message).await;
            }
        });
        Ok(Self {
            cluster: cluster.clone(),
            node: node.to_owned(),
            shards: settings.shards,
            client,
            context,
            values,
            tell,
            told: Mutex::new(Some(told)),
            asked: Mutex::new(Some(asked)),
            _tasks: tasks,
        })
    }

    async fn stream(&self, shard: u16) -> Result<Stream, EngineError> {
        let name = format!("{}-log-{shard}", self.cluster);
        self.context.get_stream(name).await.map_err(failed)
    }

    async fn state(&self, shard: u16) -> Result<State, EngineError> {
        let stream = self.stream(shard).await?;
        let info = stream.get_info().await.map_err(failed)?;
        Ok(info.state)
    }
}

/// An error of the servers, or of the connection to them.
#[derive(Debug, thiserror::Error)]
#[error("NATS: {0}")]
struct NatsError(#[source] Box<dyn std::error::Error + Send + Sync>);

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> EngineError {
    EngineError::unavailable(NatsError(error.into()))
}

/// Brings the messages of a subject, as `take` makes of them.
async fn listen<T: Send + 'static>(
    client: &Client,
    subject: String,
    take: impl Fn(async_nats::Message) -> Option<T> + Send + 'static,
) -> Result<mpsc::Receiver<T>, EngineError> {
    let mut messages = client.subscribe(subject).await.map_err(failed)?;
    let (bring, brought) = mpsc::channel(ON_THE_WAY);
    tokio::spawn(async move {
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                () = bring.closed() => return,
            };
            let Some(message) = message else {
                return;
            };
            if let Some(taken) = take(message)
                && bring.send(taken).await.is_err()
            {
                return;
            }
        }
    });
    Ok(brought)
}

impl Engine for NatsEngine {
    fn shards(&self) -> u16 {
        self.shards
    }

    fn largest_value(&self) -> usize {
        let most = self.client.server_info().max_payload;
        most.saturating_sub(values::HEADERS)
    }

    fn append(&self, shard: u16, id: String, entry: Bytes) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut headers = HeaderMap::new();
            headers.insert(NATS_MESSAGE_ID, id);
            let subject = format!("{}.log.{shard}", self.cluster);
            let sent = self.context.publish_with_headers(subject, headers, entry);
            sent.await.map_err(failed)?.await.map_err(failed)?;
            Ok(())
        })
    }

    fn end(&self, shard: u16) -> Answer<'_, u64> {
        Box::pin(async move { Ok(self.state(shard).await?.last_sequence) })
    }

    fn bytes(&self, shard: u16) -> Answer<'_, u64> {
        Box::pin(async move { Ok(self.state(shard).await?.bytes) })
    }

    fn trim(&self, shard: u16, first: u64) -> Answer<'_, ()> {
        Box::pin(async move {
            let stream = self.stream(shard).await?;
            stream.purge().sequence(first).await.map_err(failed)?;
            Ok(())
        })
    }

    fn follow(&self, shard: u16, after: u64) -> mpsc::Receiver<Entry> {
        let (bring, brought) = mpsc::channel(ON_THE_WAY);
        let (context, name) = (
            self.context.clone(),
            format!("{}-log-{shard}", self.cluster),
        );
        tokio::spawn(async move {
            let mut last = after;
            while let Err(error) = follow(&context, &name, &mut last, &bring).await {
                warn!(shard, %error, "a log is read anew");
                tokio::select! {
                    () = sleep(RETRY) => {}
                    () = bring.closed() => return,
                }
            }
        });
        brought
    }

    fn value(&self, key: Key) -> Answer<'_, Option<Value>> {
        Box::pin(self.read_value(key))
    }

    fn put(&self, key: Key, last: u64, bytes: Bytes, lasts: Lasts) -> Answer<'_, Put> {
        Box::pin(self.put_value(key, last, bytes, lasts))
    }

    fn all(&self, kind: Kind) -> Answer<'_, Vec<(String, Value)>> {
        Box::pin(self.all_values(kind))
    }

    fn watch(&self, kind: Kind) -> mpsc::Receiver<(String, Value)> {
        self.watch_values(kind)
    }

    fn tell(&self, message: Bytes) {
        // Or it is lost.
        let _ = self.tell.try_send(message);
    }

    fn told(&self) -> mpsc::Receiver<Bytes> {
        lock(&self.told)
            .take()
            .unwrap_or_else(|| mpsc::channel(1).1)
    }

    fn ask(&self, node: &str, question: Bytes) -> Answer<'_, Bytes> {
        let subject = format!("{}.ask.{node}", self.cluster);
        Box::pin(async move {
            let answer = self.client.request(subject, question).await;
            Ok(answer.map_err(failed)?.payload)
        })
    }

    fn asked(&self) -> mpsc::Receiver<Asked> {
        let taken = lock(&self.asked).take();
        debug!(
            node = self.node,
            is_first = taken.is_some(),
            "other nodes may ask"
        );
        taken.unwrap_or_else(|| mpsc::channel(1).1)
    }
}

/// A consumer for one reader, on one server, which forgets it when nobody asks any more.
fn reader() -> pull::Config {
    pull::Config {
        ack_policy: AckPolicy::None,
        num_replicas: 1,
        memory_storage: true,
        inactive_threshold: FORGETS,
        ..pull::Config::default()
    }
}

/// The messages of a consumer, without a gap, until the server that has it is not heard for two signs of life.
struct Reading {
    messages: pull::Stream,
    delivered: u64,
}

impl Reading {
    async fn begin(consumer: &Consumer<pull::Config>) -> Result<Self, EngineError> {
        let messages = consumer.stream().heartbeat(HEARTBEAT).expires(EXPIRES);
        let messages = messages.messages().await.map_err(failed)?;
        Ok(Self {
            messages,
            delivered: 0,
        })
    }

    /// `None` once nobody reads any more what is brought.
    async fn next_for<T>(
        &mut self,
        bring: &mpsc::Sender<T>,
    ) -> Result<Option<Message>, EngineError> {
        tokio::select! {
            message = self.next() => message.map(Some),
            () = bring.closed() => Ok(None),
        }
    }

    /// Cancel-safe.
    async fn next(&mut self) -> Result<Message, EngineError> {
        let message = self.messages.next().await;
        let message = message.ok_or_else(|| failed("the consumer has ended"))?;
        let message = message.map_err(failed)?;
        self.delivered += 1;
        if message.info().map_err(failed)?.consumer_sequence != self.delivered {
            return Err(failed("a message was lost on its way"));
        }
        Ok(message)
    }
}

/// Ends well when nobody reads any more, or when the next entry is not kept any more.
async fn follow(
    context: &Context,
    name: &str,
    last: &mut u64,
    bring: &mpsc::Sender<Entry>,
) -> Result<(), EngineError> {
    let stream = context.get_stream(name).await.map_err(failed)?;
    let config = pull::Config {
        deliver_policy: DeliverPolicy::ByStartSequence {
            start_sequence: *last + 1,
        },
        ..reader()
    };
    let consumer = stream.create_consumer(config).await.map_err(failed)?;
    let mut reading = Reading::begin(&consumer).await?;
    while let Some(message) = reading.next_for(bring).await? {
        let number = message.info().map_err(failed)?.stream_sequence;
        if number <= *last {
            continue;
        }
        if number > *last + 1 {
            return Ok(());
        }
        let bytes = message.payload.clone();
        if bring.send(Entry { number, bytes }).await.is_err() {
            return Ok(());
        }
        *last = number;
    }
    Ok(())
}
