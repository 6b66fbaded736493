//! A client whose connections a schedule decides about, and which keeps its own state over them.

use std::{collections::VecDeque, num::NonZeroU16, sync::Arc, time::Duration};

use mq_client::QoS;
use mq_codec::{
    ByteStr, Connect, Disconnect, ReasonCode, SubscribeProperties, TopicFilter, TopicName, Version,
    Will,
};
use mq_proto::{ClientConfig, Connection, Delivery, LaneId, Message, Session};
use mq_transport::{Address, ConnectOptions, Connector, Link, Progress};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    history::{Event, History},
    schedule::client_name,
};

/// Time until a client that lost its connection tries again, at the next node.
const RETRY_INTERVAL: Duration = Duration::from_millis(300);

/// Time for which a client waits for CONNACK.
const CONNACK_TIMEOUT: Duration = Duration::from_secs(10);

/// An order to a client.
#[derive(Debug)]
pub(super) enum Order {
    /// Leaves its link, if it has one, and connects at that node.
    Go(usize),
    /// Sends DISCONNECT and stays away.
    Leave,
    /// Leaves its link and stays away.
    Vanish,
    Publish(Publication),
}

/// A message for a client to publish.
#[derive(Clone, Debug)]
pub(super) struct Publication {
    pub(super) number: usize,
    pub(super) topic: String,
    pub(super) qos: QoS,
    pub(super) retain: bool,
}

/// A client and its state.
#[derive(Debug)]
pub(super) struct ScheduledClient {
    pub(super) client: usize,
    pub(super) nodes: Vec<Address>,
    pub(super) history: Arc<History>,
    pub(super) filters: Vec<(&'static str, QoS)>,
    /// The will of a connection, by the connection's number.
    pub(super) will: Option<fn(client: usize, connection: usize) -> Will>,
    /// `true` if the session ends with the connection.
    pub(super) ends_with_connection: bool,
}

/// The state of a client between its connections.
struct State {
    session: Session,
    queue: VecDeque<Publication>,
    /// Messages in flight, by packet identifier.
    in_flight: Vec<(mq_codec::PacketId, usize)>,
    is_subscribed: bool,
    connections: usize,
    /// The node to be at; `None` to be away.
    node: Option<usize>,
}

/// The reason for which a connection has ended.
enum End {
    InOrder,
    Lost,
    /// No more orders come.
    Over,
}

impl ScheduledClient {
    /// Runs until its orders end.
    pub(super) async fn run(self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let connector = Connector::new(ConnectOptions::new()).unwrap();
        let mut state = State {
            session: Session::new(),
            queue: VecDeque::new(),
            in_flight: Vec::new(),
            is_subscribed: self.filters.is_empty(),
            connections: 0,
            node: None,
        };
        loop {
            let Some(node) = state.node else {
                match orders.recv().await {
                    Some(order) => drop(Self::apply(order, &mut state)),
                    None => return,
                }
                continue;
            };
            if let Ok(link) = connector.connect(&self.nodes[node]).await {
                match self.connect(link, &mut orders, &mut state).await {
                    End::Over => return,
                    End::InOrder => continue,
                    End::Lost => {}
                }
            }
            // Those that stay look for another node.
            let before = state.node;
            let until = Instant::now() + RETRY_INTERVAL;
            while state.node == before {
                tokio::select! {
                    biased;
                    order = orders.recv() => match order {
                        Some(order) => drop(Self::apply(order, &mut state)),
                        None => return,
                    },
                    () = sleep_until(until) => {
                        state.node = Some((node + 1) % self.nodes.len());
                        break;
                    }
                }
            }
        }
    }

    /// Acts on an order. Returns the end that it means for the present connection, if any.
    fn apply(order: Order, state: &mut State) -> Option<End> {
        match order {
            Order::Go(node) => {
                state.node = Some(node);
                Some(End::Lost)
            }
            Order::Leave => {
                state.node = None;
                Some(End::InOrder)
            }
            Order::Vanish => {
                state.node = None;
                Some(End::Lost)
            }
            Order::Publish(publication) => {
                state.queue.push_back(publication);
                None
            }
        }
    }

    fn config(&self, connection: usize) -> ClientConfig {
        let id = ByteStr::new(client_name(self.client)).unwrap();
        let mut connect = Connect::new(Version::V5, id);
        connect.keep_alive = 0;
        connect.clean_start = self.ends_with_connection;
        if !self.ends_with_connection {
            connect.properties.session_expiry_interval = Some(24 * 60 * 60);
        }
        connect.will = self.will.map(|will| will(self.client, connection));
        let mut config = ClientConfig::new(connect);
        config.connack_timeout = CONNACK_TIMEOUT;
        config.max_inflight = NonZeroU16::MIN.saturating_add(7);
        config
    }

    /// Has a connection until it ends.
    async fn connect(
        &self,
        mut link: Link,
        orders: &mut mpsc::UnboundedReceiver<Order>,
        state: &mut State,
    ) -> End {
        let number = state.connections;
        state.connections += 1;
        let client = self.client;
        self.history.note(Event::Connecting {
            client,
            connection: number,
        });
        let session = core::mem::take(&mut state.session);
        let now = Instant::now().into_std();
        let mut connection = Connection::client(now, self.config(number), session);
        connection.connect(now).unwrap();
        let end = loop {
            self.handle_events(&mut connection, number, state);
            if connection.is_closed() {
                break End::Lost;
            }
            Self::publish(&mut connection, state);
            let wake = connection.poll_timeout();
            let timer = async {
                match wake {
                    Some(at) => sleep_until(at.into()).await,
                    None => core::future::pending().await,
                }
            };
            let progress = tokio::select! {
                biased;
                order = orders.recv() => {
                    let Some(order) = order else {
                        break End::Over;
                    };
                    match Self::apply(order, state) {
                        Some(end) => break end,
                        None => continue,
                    }
                }
                progress = link.progress(connection.outbox(), true) => progress,
                () = timer => {
                    connection.handle_timeout(Instant::now().into_std());
                    continue;
                }
            };
            match progress {
                Ok(Progress::Received(_) | Progress::Flushed) => {
                    let now = Instant::now().into_std();
                    let received = link.received(LaneId::CONTROL);
                    connection.handle_bytes(now, LaneId::CONTROL, received);
                }
                Ok(Progress::Closed) | Err(_) => connection.handle_link_lost(),
                Ok(_) => {}
            }
        };
        let in_order = matches!(end, End::InOrder | End::Over) && connection.is_open();
        if in_order {
            connection.disconnect(Disconnect::new(ReasonCode::Success));
            let flush = async {
                while !connection.outbox().is_empty()
                    && link.progress(connection.outbox(), false).await.is_ok()
                {}
            };
            let _ = timeout(Duration::from_secs(1), flush).await;
        }
        self.history.note(Event::Disconnected {
            client,
            connection: number,
            in_order,
        });
        state.session = connection.into_session();
        drop(link);
        // The links of one instant end in an order.
        sleep(Duration::from_millis(1)).await;
        end
    }

    /// Publishes what waits, as far as there is room.
    fn publish(connection: &mut Connection, state: &mut State) {
        while connection.is_open()
            && state.is_subscribed
            && connection.window() > 0
            && let Some(publication) = state.queue.pop_front()
        {
            let topic = TopicName::new(publication.topic).unwrap();
            let message = Message::new(topic, publication.number.to_string());
            let mut delivery = Delivery::new(message, publication.qos);
            delivery.retain = publication.retain;
            let sent = connection.publish(Instant::now().into_std(), delivery);
            if let Some(packet_id) = sent.unwrap() {
                state.in_flight.push((packet_id, publication.number));
            }
        }
    }

    fn handle_events(&self, connection: &mut Connection, number: usize, state: &mut State) {
        use mq_proto::Event as Happened;
        let client = self.client;
        while let Some(event) = connection.poll_event() {
            let now = Instant::now().into_std();
            match event {
                Happened::Connected(ack) => {
                    self.history.note(Event::Connected {
                        client,
                        connection: number,
                        session_present: ack.session_present,
                    });
                    if !state.is_subscribed {
                        let subscriptions = self.filters.iter();
                        let subscriptions =
                            subscriptions.map(|(filter, qos)| mq_codec::Subscription {
                                filter: TopicFilter::new(*filter).unwrap(),
                                options: (*qos).into(),
                            });
                        let properties = SubscribeProperties::default();
                        let asked = connection.subscribe(now, subscriptions.collect(), properties);
                        asked.unwrap();
                    }
                }
                Happened::SubAck(_) => {
                    state.is_subscribed = true;
                    self.history.note(Event::Subscribed { client });
                }
                Happened::SessionLost { .. } => {
                    state.in_flight.clear();
                    self.history.note(Event::SessionLost { client });
                }
                Happened::Publish(received) => {
                    self.history.note(Event::Received {
                        client,
                        topic: received.message.topic.to_string(),
                        payload: String::from_utf8_lossy(&received.message.payload).into_owned(),
                        qos: received.qos,
                        is_retained: received.retain,
                    });
                    if let Some(ticket) = received.ticket {
                        connection.ack(now, ticket, ReasonCode::Success);
                    }
                }
                Happened::Released { packet_id, .. } => {
                    let known = state.in_flight.iter().find(|(id, _)| *id == packet_id);
                    if let Some((_, number)) = known {
                        self.history.note(Event::Acknowledged { number: *number });
                    }
                }
                Happened::Acked {
                    packet_id,
                    reason,
                    delivery,
                } => {
                    let at = state.in_flight.iter().position(|(id, _)| *id == packet_id);
                    let Some(at) = at else { continue };
                    let (_, number) = state.in_flight.remove(at);
                    if reason.is_error() {
                        self.history.note(Event::Refused { number });
                    } else if delivery.is_some_and(|delivery| delivery.qos == QoS::AtLeastOnce) {
                        self.history.note(Event::Acknowledged { number });
                    }
                }
                _ => {}
            }
        }
    }
}
