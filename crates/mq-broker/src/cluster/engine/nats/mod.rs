//! NATS `JetStream` as the engine: a stream for each log, and one for values, with one message a subject.

mod connect;
mod gap;
mod server_times;
mod settings;
mod storage;
mod streams;
#[cfg(any(feature = "aws-lc-rs", feature = "ring"))]
mod tls;
mod values;

use std::{num::NonZeroU64, sync::Mutex, time::Duration};

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
use futures_util::{StreamExt as _, stream::SelectAll};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::sleep,
};
use tracing::debug;

use super::{
    Engine, EngineError, EngineFuture, Entry, Expiry, Key, KeyKind, NodeRequest, Outage,
    PutOutcome, RETRY_INTERVAL, ServerTime, Value,
};
use crate::lock::lock;
use connect::ConnectFailure;
use gap::Gap;
pub use settings::NatsSettings;
use storage::publish_error;
use streams::log_name;

/// Time that an append, a put or a request may take before it is tried again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which the server of a consumer sends heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which a consumer that brings nothing and reports no error counts as working.
const STEADY_AFTER: Duration = HEARTBEAT_INTERVAL.saturating_mul(3);

/// Interval at which the reader of a log that brings nothing asks for the log's end. A consumer whose server lost the log's
/// last part sends heartbeats and brings nothing.
const CONSUMER_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Time for which a server answers one pull request.
const PULL_EXPIRY: Duration = Duration::from_secs(10);

/// Time for which a server keeps a consumer without pull requests.
const CONSUMER_INACTIVE_THRESHOLD: Duration = Duration::from_secs(30);

/// Entries or messages that wait for a reader, at most.
const CHANNEL_CAPACITY: usize = 256;

/// The engine of one node on NATS.
#[derive(Debug)]
pub struct NatsEngine {
    cluster: String,
    node: String,
    shards: u16,
    /// See [`NatsSettings::store_max_bytes`].
    store_max_bytes: Option<u64>,
    /// Servers that keep each message.
    replicas: usize,
    client: Client,
    context: Context,
    values: Stream,
    /// Messages to other nodes, each with its subject.
    messages_out: mpsc::Sender<(String, Bytes)>,
    broadcasts: Mutex<Option<mpsc::Receiver<Bytes>>>,
    requests: Mutex<Option<mpsc::Receiver<NodeRequest>>>,
    /// Tasks that end with the engine.
    _tasks: JoinSet<()>,
}

impl NatsEngine {
    /// Tries once to connect and to make the streams.
    async fn try_connect(
        settings: &NatsSettings,
        node: &str,
        options: ConnectOptions,
        servers: Vec<ServerAddr>,
    ) -> Result<Self, ConnectFailure> {
        let cluster = &settings.cluster;
        let client = connect::connect(settings, options, servers).await?;
        let here = format!("{cluster}.here.{node}");
        connect::check_not_running(&client, &here, node).await?;
        let mut tasks = JoinSet::new();
        connect::serve_presence_checks(&client, here, &mut tasks).await?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(REQUEST_TIMEOUT);
        let values = streams::open_streams(settings, &context).await?;
        // To all nodes, and to this one.
        let subjects = [format!("{cluster}.told"), format!("{cluster}.told.{node}")];
        let broadcasts = subscribe(&client, &subjects, |message| Some(message.payload));
        let broadcasts = broadcasts.await?;
        let own_subject = [format!("{cluster}.ask.{node}")];
        let responder = client.clone();
        let requests = subscribe(&client, &own_subject, move |message| {
            let (reply, replied) = oneshot::channel();
            let (client, reply_subject) = (responder.clone(), message.reply?);
            tokio::spawn(async move {
                if let Ok(bytes) = replied.await {
                    // If it is lost, the node sends its request again.
                    let _ = client.publish(reply_subject, bytes).await;
                }
            });
            let payload = message.payload;
            Some(NodeRequest { payload, reply })
        });
        let requests = requests.await?;
        let (messages_out, mut to_send) = mpsc::channel(CHANNEL_CAPACITY);
        let sender = client.clone();
        tokio::spawn(async move {
            while let Some((subject, message)) = to_send.recv().await {
                // Or it is lost.
                let _ = sender.publish(subject, message).await;
            }
        });
        Ok(Self {
            cluster: cluster.clone(),
            node: node.to_owned(),
            shards: settings.shards,
            store_max_bytes: settings.store_max_bytes.map(NonZeroU64::get),
            replicas: values.cached_info().config.num_replicas,
            client,
            context,
            values,
            messages_out,
            broadcasts: Mutex::new(Some(broadcasts)),
            requests: Mutex::new(Some(requests)),
            _tasks: tasks,
        })
    }

    async fn stream(&self, shard: u16) -> Result<Stream, EngineError> {
        let name = log_name(&self.cluster, shard);
        self.context.get_stream(name).await.map_err(nats_error)
    }

    async fn stream_state(&self, shard: u16) -> Result<State, EngineError> {
        let stream = self.stream(shard).await?;
        let info = stream.get_info().await.map_err(nats_error)?;
        Ok(info.state)
    }
}

/// An error of the servers, or of the connection to them.
#[derive(Debug, thiserror::Error)]
#[error("NATS: {0}")]
struct NatsError(#[source] Box<dyn std::error::Error + Send + Sync>);

fn nats_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> EngineError {
    EngineError::unavailable(NatsError(error.into()))
}

/// Brings the messages of these subjects, as `take` makes of them. Those of one subject keep their order.
async fn subscribe<T: Send + 'static>(
    client: &Client,
    subjects: &[String],
    take: impl Fn(async_nats::Message) -> Option<T> + Send + 'static,
) -> Result<mpsc::Receiver<T>, EngineError> {
    let mut messages = SelectAll::new();
    for subject in subjects {
        let of_subject = client.subscribe(subject.clone()).await;
        messages.push(of_subject.map_err(nats_error)?);
    }
    let (bring, brought) = mpsc::channel(CHANNEL_CAPACITY);
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

    fn max_value_bytes(&self) -> usize {
        let most = self.client.server_info().max_payload;
        most.saturating_sub(values::MAX_VALUE_OVERHEAD)
    }

    fn append(&self, shard: u16, id: String, entry: Bytes) -> EngineFuture<'_, u64> {
        Box::pin(async move {
            let mut headers = HeaderMap::new();
            headers.insert(NATS_MESSAGE_ID, id);
            let subject = format!("{}.log.{shard}", self.cluster);
            let sent = self.context.publish_with_headers(subject, headers, entry);
            let sent = sent.await.map_err(publish_error)?;
            Ok(sent.await.map_err(publish_error)?.sequence)
        })
    }

    fn last_entry(&self, shard: u16) -> EngineFuture<'_, u64> {
        Box::pin(async move { Ok(self.stream_state(shard).await?.last_sequence) })
    }

    fn log_bytes(&self, shard: u16) -> EngineFuture<'_, u64> {
        Box::pin(async move { Ok(self.stream_state(shard).await?.bytes) })
    }

    fn fill_percent(&self) -> EngineFuture<'_, Option<u8>> {
        Box::pin(self.storage_percent())
    }

    fn trim(&self, shard: u16, first: u64) -> EngineFuture<'_, ()> {
        Box::pin(async move {
            let stream = self.stream(shard).await?;
            stream.purge().sequence(first).await.map_err(nats_error)?;
            Ok(())
        })
    }

    fn follow(&self, shard: u16, after: u64) -> mpsc::Receiver<Entry> {
        let (bring, brought) = mpsc::channel(CHANNEL_CAPACITY);
        let (context, name) = (self.context.clone(), log_name(&self.cluster, shard));
        let mut gap = Gap::new(self.replicas);
        tokio::spawn(async move {
            let mut last = after;
            let mut outage = Outage::new("log read", Some(shard));
            while let Err(error) =
                forward_entries(&context, &name, &mut last, &bring, &mut outage, &mut gap).await
            {
                outage.failed(&error);
                tokio::select! {
                    () = sleep(RETRY_INTERVAL) => {}
                    () = bring.closed() => return,
                }
            }
        });
        brought
    }

    fn get(&self, key: Key) -> EngineFuture<'_, Option<Value>> {
        Box::pin(self.read_value(key))
    }

    fn put(
        &self,
        key: Key,
        expected: u64,
        bytes: Bytes,
        expiry: Expiry,
    ) -> EngineFuture<'_, PutOutcome> {
        Box::pin(self.put_value(key, expected, bytes, expiry))
    }

    fn values(&self, kind: KeyKind) -> EngineFuture<'_, Vec<(String, Value)>> {
        Box::pin(self.all_values(kind))
    }

    fn watch(&self, kind: KeyKind) -> mpsc::Receiver<(String, Value)> {
        self.watch_values(kind)
    }

    fn broadcast(&self, message: Bytes) {
        // Or it is lost.
        let _ = self
            .messages_out
            .try_send((format!("{}.told", self.cluster), message));
    }

    fn send(&self, node: &str, message: Bytes) {
        // Or it is lost.
        let subject = format!("{}.told.{node}", self.cluster);
        let _ = self.messages_out.try_send((subject, message));
    }

    fn broadcasts(&self) -> mpsc::Receiver<Bytes> {
        lock(&self.broadcasts)
            .take()
            .unwrap_or_else(|| mpsc::channel(1).1)
    }

    fn request(&self, node: &str, payload: Bytes) -> EngineFuture<'_, Bytes> {
        let subject = format!("{}.ask.{node}", self.cluster);
        Box::pin(async move {
            let reply = self.client.request(subject, payload).await;
            Ok(reply.map_err(nats_error)?.payload)
        })
    }

    fn server_times(&self) -> EngineFuture<'_, Vec<ServerTime>> {
        Box::pin(self.ask_server_times())
    }

    fn requests(&self) -> mpsc::Receiver<NodeRequest> {
        let taken = lock(&self.requests).take();
        debug!(
            node = self.node,
            is_first = taken.is_some(),
            "cluster: receiving requests from other nodes"
        );
        taken.unwrap_or_else(|| mpsc::channel(1).1)
    }
}

/// Makes the configuration of a consumer for one reader, on one server, which forgets it when nobody asks any more.
fn consumer_config() -> pull::Config {
    pull::Config {
        ack_policy: AckPolicy::None,
        num_replicas: 1,
        memory_storage: true,
        inactive_threshold: CONSUMER_INACTIVE_THRESHOLD,
        ..pull::Config::default()
    }
}

/// The messages of a consumer, without a gap, until the server that has it is not heard for two signs of life.
struct ConsumerReader {
    messages: pull::Stream,
    delivered: u64,
}

impl ConsumerReader {
    async fn begin(consumer: &Consumer<pull::Config>) -> Result<Self, EngineError> {
        let messages = consumer
            .stream()
            .heartbeat(HEARTBEAT_INTERVAL)
            .expires(PULL_EXPIRY);
        let messages = messages.messages().await.map_err(nats_error)?;
        Ok(Self {
            messages,
            delivered: 0,
        })
    }

    /// Waits for the next message; `None` once nobody reads any more what is brought.
    async fn next_for<T>(
        &mut self,
        bring: &mpsc::Sender<T>,
    ) -> Result<Option<Message>, EngineError> {
        tokio::select! {
            message = self.next() => message.map(Some),
            () = bring.closed() => Ok(None),
        }
    }

    /// Waits for the next message. Cancel-safe.
    async fn next(&mut self) -> Result<Message, EngineError> {
        let message = self.messages.next().await;
        let message = message.ok_or_else(|| nats_error("the consumer has ended"))?;
        let message = message.map_err(nats_error)?;
        self.delivered += 1;
        if message.info().map_err(nats_error)?.consumer_sequence != self.delivered {
            return Err(nats_error("a message was lost on its way"));
        }
        Ok(message)
    }
}

/// Ends well when nobody reads any more, or when the next entry is not kept any more.
async fn forward_entries(
    context: &Context,
    name: &str,
    last: &mut u64,
    bring: &mpsc::Sender<Entry>,
    outage: &mut Outage,
    gap: &mut Gap,
) -> Result<(), EngineError> {
    let stream = context.get_stream(name).await.map_err(nats_error)?;
    let config = pull::Config {
        deliver_policy: DeliverPolicy::ByStartSequence {
            start_sequence: *last + 1,
        },
        ..consumer_config()
    };
    let consumer = stream.create_consumer(config).await.map_err(nats_error)?;
    let mut reading = ConsumerReader::begin(&consumer).await?;
    let mut is_behind = false;
    loop {
        let message = tokio::select! {
            message = reading.next_for(bring) => message?,
            // It has sent signs of life meanwhile.
            () = sleep(STEADY_AFTER), if outage.is_on() => {
                outage.end();
                continue;
            }
            () = sleep(CONSUMER_CHECK_INTERVAL) => {
                let end = stream.get_info().await.map_err(nats_error)?.state.last_sequence;
                if core::mem::replace(&mut is_behind, end > *last) && is_behind {
                    return Err(nats_error("the consumer's server is behind the log"));
                }
                continue;
            }
        };
        is_behind = false;
        let Some(message) = message else {
            return Ok(());
        };
        let number = message.info().map_err(nats_error)?.stream_sequence;
        if number <= *last {
            continue;
        }
        if number > *last + 1 {
            let kept = stream.get_info().await.map_err(nats_error)?.state;
            if kept.first_sequence > *last + 1 {
                return Ok(());
            }
            let missing = *last + 1..=number - 1;
            gap.confirm_lost(missing.clone(), consumer.cached_info())?;
            for number in missing {
                if bring.send(Entry::lost(number)).await.is_err() {
                    return Ok(());
                }
                *last = number;
            }
        }
        outage.end();
        let bytes = message.payload.clone();
        if bring.send(Entry { number, bytes }).await.is_err() {
            return Ok(());
        }
        *last = number;
    }
}
