//! A scripted server over a link in memory: each test decides its answers and their times.

use std::time::{Duration, Instant};

use mq_client::{Client, ClientBuilder, Reconnect};
use mq_codec::{ConnAck, Connect, PacketId, ReasonCode, SubAck, Subscribe, UnsubAck, Unsubscribe};
use mq_proto::{
    AckTicket, CloseReason, Connection, Delivery, Event, Message, Received, ServerConfig, Session,
};
use mq_transport::{
    Address, EarlyDataPolicy, Link, ListenOptions, Listener, Progress, ServerIdentity,
};

pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A listener under a name of its own.
pub(crate) struct Server {
    listener: Listener,
    url: String,
}

impl Server {
    pub(crate) async fn bind(name: &str) -> Self {
        let url = format!("mem://{name}");
        let address: Address = url.parse().unwrap();
        let listener = Listener::bind(&address, &ListenOptions::default())
            .await
            .unwrap();
        Self { listener, url }
    }

    /// Makes a builder of clients that reconnect after exactly 1, 2, 4, ... seconds.
    pub(crate) fn builder(&self) -> ClientBuilder {
        Client::builder(&self.url).unwrap().reconnect(Reconnect {
            initial: Duration::from_secs(1),
            jitter: 0.0,
            ..Reconnect::default()
        })
    }

    /// Accepts the next link and reads nothing from it.
    pub(crate) async fn link(&mut self) -> Peer {
        self.link_with(ServerConfig::default()).await
    }

    pub(crate) async fn link_with(&mut self, config: ServerConfig) -> Peer {
        let incoming = self.listener.accept().await.unwrap();
        Peer {
            link: incoming.handshake().await.unwrap(),
            connection: Connection::server(now(), config),
        }
    }

    /// Accepts the next client's link and its CONNECT.
    pub(crate) async fn client(&mut self) -> Peer {
        let mut peer = self.link().await;
        peer.connect().await;
        peer.accept(Session::new(), false).await;
        peer
    }

    /// Returns a connected client and its peer.
    pub(crate) async fn pair(&mut self, builder: ClientBuilder) -> (Client, Peer) {
        let (client, peer) = tokio::join!(builder.build(), self.client());
        (client.unwrap(), peer)
    }
}

/// The server's end of one connection.
pub(crate) struct Peer {
    pub(crate) connection: Connection,
    pub(crate) link: Link,
}

impl Peer {
    /// Reads and writes until there is an event; `None` for the end of the link.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.connection.poll_event() {
                return Some(event);
            }
            match self.link.progress(self.connection.outbox(), true).await {
                Ok(Progress::Received(lane)) => {
                    self.connection
                        .handle_bytes(now(), lane, self.link.received(lane));
                }
                Ok(Progress::Closed) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    pub(crate) async fn flush(&mut self) {
        while !self.connection.outbox().is_empty() {
            self.link
                .progress(self.connection.outbox(), false)
                .await
                .unwrap();
        }
    }

    pub(crate) async fn connect(&mut self) -> Connect {
        match self.event().await.unwrap() {
            Event::Connect(connect) => *connect,
            other => panic!("expected CONNECT, got {other:?}"),
        }
    }

    pub(crate) async fn accept(&mut self, session: Session, session_present: bool) {
        let mut ack = ConnAck::new(ReasonCode::Success);
        ack.session_present = session_present;
        self.connection.accept(now(), session, ack).unwrap();
        // What came behind CONNECT is in the link's buffer already.
        let lane = mq_proto::LaneId::CONTROL;
        self.connection
            .handle_bytes(now(), lane, self.link.received(lane));
        self.flush().await;
    }

    pub(crate) async fn refuse(&mut self, reason: ReasonCode) {
        self.connection.refuse(ConnAck::new(reason));
        self.flush().await;
    }

    pub(crate) async fn publish(&mut self) -> Received {
        match self.event().await.unwrap() {
            Event::Publish(received) => received,
            other => panic!("expected PUBLISH, got {other:?}"),
        }
    }

    pub(crate) async fn ack(&mut self, ticket: Option<AckTicket>) {
        self.connection
            .ack(now(), ticket.unwrap(), ReasonCode::Success);
        self.flush().await;
    }

    pub(crate) async fn subscribe(&mut self) -> Subscribe {
        match self.event().await.unwrap() {
            Event::Subscribe { subscribe, .. } => subscribe,
            other => panic!("expected SUBSCRIBE, got {other:?}"),
        }
    }

    /// Grants the next SUBSCRIBE.
    pub(crate) async fn grant(&mut self) -> Subscribe {
        let subscribe = self.subscribe().await;
        let reasons = subscribe
            .subscriptions
            .iter()
            .map(|subscription| ReasonCode::granted(subscription.options.qos))
            .collect();
        self.suback(subscribe.packet_id, reasons).await;
        subscribe
    }

    pub(crate) async fn suback(&mut self, packet_id: PacketId, reasons: Vec<ReasonCode>) {
        let properties = mq_codec::SubAckProperties::default();
        let ack = SubAck {
            packet_id,
            reasons,
            properties,
        };
        self.connection
            .suback(now(), mq_proto::LaneId::CONTROL, ack)
            .unwrap();
        self.flush().await;
    }

    /// Confirms the next UNSUBSCRIBE and returns its filters.
    pub(crate) async fn unsubscribe(&mut self) -> Vec<String> {
        let unsubscribe = self.unsubscribed().await;
        self.confirm(&unsubscribe).await;
        unsubscribe
            .filters
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// Takes the next UNSUBSCRIBE without an answer.
    pub(crate) async fn unsubscribed(&mut self) -> Unsubscribe {
        match self.event().await.unwrap() {
            Event::Unsubscribe { unsubscribe, .. } => unsubscribe,
            other => panic!("expected UNSUBSCRIBE, got {other:?}"),
        }
    }

    /// Sends UNSUBACK, in one write with what waits in the outbox.
    pub(crate) async fn confirm(&mut self, unsubscribe: &Unsubscribe) {
        let ack = UnsubAck {
            packet_id: unsubscribe.packet_id,
            reasons: vec![ReasonCode::Success; unsubscribe.filters.len()],
            properties: mq_codec::UnsubAckProperties::default(),
        };
        self.connection
            .unsuback(now(), mq_proto::LaneId::CONTROL, ack)
            .unwrap();
        self.flush().await;
    }

    /// Sends a message to the client.
    pub(crate) async fn send(
        &mut self,
        topic: &str,
        payload: &str,
        qos: mq_client::QoS,
        subscription: Option<u32>,
    ) {
        self.put(topic, payload, qos, subscription);
        self.flush().await;
    }

    /// Puts a message to the client into the outbox, with these subscription identifiers.
    pub(crate) fn put(
        &mut self,
        topic: &str,
        payload: &str,
        qos: mq_client::QoS,
        subscriptions: impl IntoIterator<Item = u32>,
    ) {
        let message = Message::new(topic.try_into().unwrap(), payload.to_owned());
        let mut delivery = Delivery::new(message, qos);
        let ids = subscriptions.into_iter();
        delivery
            .subscription_ids
            .extend(ids.filter_map(mq_client::SubscriptionId::new));
        self.connection.publish(now(), delivery).unwrap();
    }

    pub(crate) async fn closed(&mut self) -> Option<CloseReason> {
        loop {
            if let Event::Closed(reason) = self.event().await? {
                return Some(reason);
            }
        }
    }

    /// Takes messages, acknowledging them, until the connection ends.
    pub(crate) async fn serve(&mut self) -> Vec<String> {
        let mut payloads = Vec::new();
        while let Some(event) = self.event().await {
            match event {
                Event::Publish(received) => {
                    payloads.push(text(&received));
                    if let Some(ticket) = received.ticket {
                        self.connection.ack(now(), ticket, ReasonCode::Success);
                    }
                }
                Event::Closed(_) => break,
                _ => {}
            }
        }
        payloads
    }
}

pub(crate) fn text(received: &Received) -> String {
    String::from_utf8(received.message.payload.to_vec()).unwrap()
}

/// Listens on loopback with that transport, with a certificate of its own and early data.
pub(crate) async fn listen(scheme: &str) -> Listener {
    let address: Address = format!("{scheme}://127.0.0.1:0").parse().unwrap();
    let options = ListenOptions {
        identity: Some(ServerIdentity::self_signed().unwrap()),
        early_data: EarlyDataPolicy::Full,
        ..ListenOptions::default()
    };
    Listener::bind(&address, &options).await.unwrap()
}
