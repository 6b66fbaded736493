//! Nodes of a cluster over an engine in memory, and what their clients send and receive, for the tests of clusters.

use std::{sync::Arc, time::Duration};

use mq_broker::{
    Broker, Error, Settings,
    cluster::{ClusterSettings, MemoryEngine, MemoryWorld},
};
use mq_client::{Client, ClientBuilder, Outgoing, QoS, Subscription};
use mq_codec::{ByteStr, Connect, TopicName, Version};
use mq_proto::{ClientConfig, Connection, Delivery, Message, Session};
use mq_transport::{ConnectOptions, Connector, Link};
use tokio::time::{Instant, sleep, timeout};

/// In virtual time.
pub(crate) const SOON: Duration = Duration::from_mins(2);

/// A node.
pub(crate) struct Node {
    cluster: String,
    pub(crate) name: String,
    engine: Arc<MemoryEngine>,
    change: Box<dyn Fn(&mut ClusterSettings)>,
    pub(crate) broker: Option<Broker>,
}

impl Node {
    pub(crate) async fn start(cluster: &str, name: &str, world: &Arc<MemoryWorld>) -> Self {
        Self::start_with(cluster, name, world, |_| {}).await
    }

    pub(crate) async fn start_with(
        cluster: &str,
        name: &str,
        world: &Arc<MemoryWorld>,
        change: impl Fn(&mut ClusterSettings) + 'static,
    ) -> Self {
        let mut node = Self {
            cluster: cluster.to_owned(),
            name: name.to_owned(),
            engine: world.engine(name),
            change: Box::new(change),
            broker: None,
        };
        node.begin().await.unwrap();
        node
    }

    pub(crate) async fn begin(&mut self) -> Result<(), Error> {
        let mut settings = Settings::new(vec![self.url().parse().unwrap()]);
        let engine = Arc::clone(&self.engine);
        let mut cluster = ClusterSettings::new(&self.name, engine);
        (self.change)(&mut cluster);
        settings.cluster = Some(cluster);
        self.broker = Some(Broker::start(settings).await?);
        Ok(())
    }

    pub(crate) fn url(&self) -> String {
        format!("mem://{}-{}", self.cluster, self.name)
    }

    /// Ends the node as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.engine.kill();
        self.broker = None;
    }

    /// Ends the node as SIGTERM does.
    pub(crate) async fn end(&mut self) {
        if let Some(broker) = self.broker.take() {
            broker.shutdown().await;
        }
        self.engine.kill();
    }

    pub(crate) fn client(&self, id: &str) -> ClientBuilder {
        mq_testkit::kept(&self.url(), id)
    }

    /// Makes a kept session with a subscription, whose client leaves.
    pub(crate) async fn make_away(&self, id: &str, filter: &str, qos: QoS) {
        let client = self.client(id).build().await.unwrap();
        let subscribed = client.subscribe(filter, qos).await.unwrap();
        client.disconnect().await.unwrap();
        drop(subscribed);
    }

    /// Connects a client that comes back to its session, and returns it with what waits for it.
    pub(crate) async fn come_back(&self, id: &str) -> (Client, Subscription) {
        let client = self.client(id);
        let messages = client.messages();
        (client.build().await.unwrap(), messages)
    }

    /// Connects a client that sends these at once and leaves, so that the node finds it gone.
    pub(crate) async fn connect_and_go(&self, id: &str, messages: &[(&'static str, QoS)]) {
        drop(self.connect_and_stay(id, messages).await);
    }

    /// Connects a client that sends these at once, and reads nothing.
    pub(crate) async fn connect_and_stay(
        &self,
        id: &str,
        messages: &[(&'static str, QoS)],
    ) -> Link {
        let connector = Connector::new(ConnectOptions::new()).unwrap();
        let url = self.url().parse().unwrap();
        let link = connector.connect(&url).await.unwrap();
        connect_and_send(link, id, messages).await
    }

    /// Begins another life, unless it lives.
    pub(crate) async fn revive(&mut self, world: &Arc<MemoryWorld>) {
        // As long as it is cut off it cannot begin.
        self.revive_within(world, Duration::from_secs(20)).await;
    }

    /// Begins another life, unless it lives; then it returns `None`. It returns `false` if that takes too long or fails.
    pub(crate) async fn revive_within(
        &mut self,
        world: &Arc<MemoryWorld>,
        longest: Duration,
    ) -> Option<bool> {
        if let Some(broker) = &self.broker
            && timeout(Duration::ZERO, broker.store_failed())
                .await
                .is_err()
        {
            return None;
        }
        self.kill();
        // Its tasks are gone, and its address is free, when they have had a turn.
        sleep(Duration::from_millis(1)).await;
        self.engine = world.engine(&self.name);
        let began = timeout(longest, self.begin()).await;
        let has_begun = matches!(began, Ok(Ok(())));
        if !has_begun {
            self.kill();
        }
        Some(has_begun)
    }
}

pub(crate) fn message(topic: &str, payload: impl Into<String>, qos: QoS) -> Outgoing {
    Outgoing::to(topic, payload.into()).unwrap().qos(qos)
}

pub(crate) async fn send(client: &Client, message: Outgoing) {
    let mut receipt = client.send(message).await.unwrap();
    let acknowledged = timeout(SOON, receipt.acknowledged());
    acknowledged.await.unwrap().unwrap();
}

/// Connects a client without a kept session that sends these to topic `t` right behind CONNECT.
pub(crate) async fn connect_and_send(
    mut link: Link,
    id: &str,
    messages: &[(&'static str, QoS)],
) -> Link {
    let mut connect = Connect::new(Version::V5, ByteStr::new(id).unwrap());
    connect.clean_start = true;
    let now = Instant::now().into_std();
    let config = ClientConfig::new(connect);
    let mut connection = Connection::client(now, config, Session::new());
    connection.connect(now).unwrap();
    for (payload, qos) in messages {
        let message = Message::new(TopicName::new("t").unwrap(), *payload);
        let delivery = Delivery::new(message, *qos);
        connection.publish(now, delivery).unwrap();
    }
    let written = link.progress(connection.outbox(), false);
    timeout(SOON, written).await.unwrap().unwrap();
    link
}

pub(crate) async fn next(messages: &mut Subscription) -> String {
    let incoming = timeout(SOON, messages.recv()).await.unwrap().unwrap();
    incoming.text().unwrap().to_owned()
}
