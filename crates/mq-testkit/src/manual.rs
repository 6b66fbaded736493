//! A client whose test decides about each acknowledgement.

use std::time::{Duration, Instant};

use mq_codec::{
    ByteStr, Connect, QoS, SubscribeProperties, Subscription, TopicFilter, TopicName, Version,
};
use mq_proto::{ClientConfig, Connection, Delivery, Event, LaneId, Message, Received, Session};
use mq_transport::{Address, Connector, Link, Progress};
use tokio::time::timeout;

use crate::{Scheme, TestBroker};

/// The longest wait for an immediate event.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client that reads and acknowledges when the test says so: a slow reader, or a reader that has
/// stopped.
#[derive(Debug)]
pub struct ManualClient {
    link: Link,
    connection: Connection,
}

impl ManualClient {
    /// Connects with that identifier; `change` changes the client's configuration.
    ///
    /// # Panics
    /// If the broker refuses the client.
    pub async fn connect(
        broker: &TestBroker,
        scheme: Scheme,
        client_id: &str,
        change: impl FnOnce(&mut ClientConfig),
    ) -> Self {
        let address = broker.address(scheme);
        Self::connect_by(&broker.connector(false), &address, client_id, change).await
    }

    /// Connects a client by a connector of the test's own.
    ///
    /// # Panics
    /// If the broker refuses the client.
    pub async fn connect_by(
        connector: &Connector,
        address: &Address,
        client_id: &str,
        change: impl FnOnce(&mut ClientConfig),
    ) -> Self {
        let link = connector.connect(address).await.expect("a link");
        let client_id = ByteStr::new(client_id).expect("a valid identifier");
        let mut config = ClientConfig::new(Connect::new(Version::V5, client_id));
        change(&mut config);
        let mut connection = Connection::client(Instant::now(), config, Session::new());
        connection.connect(Instant::now()).expect("a valid CONNECT");
        let mut client = Self { link, connection };
        let event = client.next().await;
        assert!(matches!(event, Event::Connected(_)), "{event:?}");
        client
    }

    /// Waits for the next event. Answers to the broker leave as well.
    ///
    /// # Panics
    /// If no event comes within 20 s.
    pub async fn next(&mut self) -> Event {
        self.next_within(PATIENCE).await.expect("an event")
    }

    /// Waits for the next event; `None` if none comes within that time.
    pub async fn next_within(&mut self, patience: Duration) -> Option<Event> {
        let next = async {
            loop {
                if let Some(event) = self.connection.poll_event() {
                    return event;
                }
                self.progress().await;
            }
        };
        timeout(patience, next).await.ok()
    }

    /// Waits for the next message.
    ///
    /// # Panics
    /// If another event comes first, or none within 20 s.
    pub async fn message(&mut self) -> Received {
        match self.next().await {
            Event::Publish(received) => received,
            other => panic!("a message should come, not {other:?}"),
        }
    }

    /// Acknowledges a received message.
    pub fn acknowledge(&mut self, received: Received) {
        if let Some(ticket) = received.ticket {
            let success = mq_codec::ReasonCode::Success;
            self.connection.ack(Instant::now(), ticket, success);
        }
    }

    /// Subscribes; any event before SUBACK is an error.
    ///
    /// # Panics
    /// If the subscription is not granted.
    pub async fn subscribe(&mut self, filter: &str, qos: QoS) {
        let subscription = Subscription {
            filter: TopicFilter::new(filter).expect("a valid filter"),
            options: qos.into(),
        };
        let properties = SubscribeProperties::default();
        let asked = self
            .connection
            .subscribe(Instant::now(), vec![subscription], properties);
        asked.expect("it can be sent");
        match self.next().await {
            Event::SubAck(ack) => assert!(!ack.reasons[0].is_error(), "{ack:?}"),
            other => panic!("SUBACK should come, not {other:?}"),
        }
    }

    /// Publishes, and waits only for room for the bytes.
    ///
    /// # Panics
    /// If the message cannot be sent.
    pub async fn publish(&mut self, topic: &str, payload: impl Into<bytes::Bytes>, qos: QoS) {
        let topic = TopicName::new(topic).expect("a valid topic");
        let delivery = Delivery::new(Message::new(topic, payload), qos);
        let sent = self.connection.publish(Instant::now(), delivery);
        sent.expect("it can be sent");
        self.flush().await;
    }

    /// Writes the ready bytes.
    ///
    /// # Panics
    /// If the broker does not take them within 20 s.
    pub async fn flush(&mut self) {
        let written = async {
            while !self.connection.outbox().is_empty() && !self.connection.is_closed() {
                self.progress_with(false).await;
            }
        };
        let written = timeout(PATIENCE, written).await;
        written.expect("the broker should read");
    }

    /// Opens a data stream and writes these bytes to it, which need not be packets. Returns its lane.
    ///
    /// # Panics
    /// If the broker grants no stream, or does not take the bytes within 20 s.
    pub async fn write_to_new_lane(&mut self, bytes: &[u8]) -> LaneId {
        let lane = self.link.open_lane().expect("a stream");
        let put = self.connection.outbox().put(lane, |out| {
            out.extend_from_slice(bytes);
            Ok::<_, core::convert::Infallible>(())
        });
        put.expect("writing cannot fail");
        self.flush().await;
        lane
    }

    /// Reads for that long and returns the events.
    pub async fn read_for(&mut self, time: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        let until = Instant::now() + time;
        while let Some(event) = self
            .next_within(until.saturating_duration_since(Instant::now()))
            .await
        {
            events.push(event);
        }
        events
    }

    /// Returns the state machine, for calls without a method here.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    async fn progress(&mut self) {
        self.progress_with(true).await;
    }

    async fn progress_with(&mut self, want_read: bool) {
        let progress = self.link.progress(self.connection.outbox(), want_read);
        match progress.await {
            Ok(Progress::Received(lane)) => {
                let buffer = self.link.received(lane);
                self.connection.handle_bytes(Instant::now(), lane, buffer);
            }
            Ok(Progress::Flushed | Progress::Datagrams) => {
                // What came behind CONNACK.
                let buffer = self.link.received(LaneId::CONTROL);
                if !buffer.is_empty() {
                    let lane = LaneId::CONTROL;
                    self.connection.handle_bytes(Instant::now(), lane, buffer);
                }
            }
            Ok(Progress::LaneClosed(lane, how)) => {
                let now = Instant::now();
                self.connection.handle_lane_closed(now, lane, how.into());
                let buffer = self.link.received(lane);
                self.connection.handle_bytes(now, lane, buffer);
            }
            Ok(Progress::Closed) | Err(_) => self.connection.handle_link_lost(),
        }
    }
}
