//! A client of raw packets on a blocking socket, which sends nothing by itself.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use bytes::BytesMut;
use mq_codec::{
    ByteStr, Connect, Packet, PacketId, Publish, QoS, Subscribe, SubscribeProperties, Subscription,
    TopicFilter, TopicName, Version,
};

/// The longest time that a client tries to send data that the broker does not read.
const PATIENCE: Duration = Duration::from_millis(300);

/// Makes raw clients of one broker.
pub(crate) struct RawClients {
    address: String,
}

impl RawClients {
    /// Makes clients of the broker at that URL.
    pub(crate) fn new(url: &str) -> Self {
        Self {
            address: url.trim_start_matches("tcp://").to_owned(),
        }
    }

    /// Opens a connection, and sends nothing.
    pub(crate) fn stream(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// Connects a client; `None` if it was refused.
    pub(crate) fn connect(
        &self,
        client_id: &str,
        change: impl FnOnce(&mut Connect),
    ) -> Option<TcpStream> {
        let mut stream = self.stream();
        let mut connect = Connect::new(Version::V5, ByteStr::new(client_id).unwrap());
        connect.keep_alive = 0;
        change(&mut connect);
        send(&mut stream, &Packet::from(connect)).ok()?;
        let mut head = [0; 4];
        stream.read_exact(&mut head).ok()?;
        let is_let_in = head[0] == 0x20 && head[3] == 0;
        let mut rest = vec![0; usize::from(head[1]).checked_sub(2)?];
        stream.read_exact(&mut rest).ok()?;
        is_let_in.then_some(stream)
    }
}

pub(crate) fn send(stream: &mut TcpStream, packet: &Packet) -> std::io::Result<()> {
    let mut bytes = BytesMut::new();
    packet.encode(Version::V5, &mut bytes).unwrap();
    stream.write_all(&bytes)
}

pub(crate) fn publish(topic: String, payload: Vec<u8>) -> Publish {
    Publish {
        topic: TopicName::new(topic).unwrap(),
        payload: payload.into(),
        ..Publish::default()
    }
}

pub(crate) fn subscribe(filters: impl Iterator<Item = String>, qos: QoS) -> Packet {
    let subscriptions = filters.map(|filter| Subscription {
        filter: TopicFilter::new(filter).unwrap(),
        options: qos.into(),
    });
    Packet::Subscribe(Subscribe {
        packet_id: PacketId::FIRST,
        subscriptions: subscriptions.collect(),
        properties: SubscribeProperties::default(),
    })
}
