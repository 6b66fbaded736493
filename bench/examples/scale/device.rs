//! A device: a link and MQTT 3.1.1 packets on it, without what makes a client.
//!
//! 100,000 of `mq_client::Client` would fit beside the broker, but could not be told to ping.

use std::time::Duration;

use mq_client::{
    ByteStr, Connector, LaneId, PacketId, QoS, ReasonCode, TopicFilter, Version,
    mq_transport::{Address, Dial, Link, Outbox, Progress},
};
use mq_codec::{Connect, Decoder, Disconnect, Packet, Subscribe, Subscription};

use crate::Failed;

const VERSION: Version = Version::V3_1_1;

/// The largest packet that a device takes, in bytes.
const LARGEST: u32 = 1 << 20;

/// Time that a device may take to connect, and to close.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Device {
    link: Link,
    outbox: Outbox,
    decoder: Decoder,
}

impl Device {
    /// Connects and waits for CONNACK. Over QUIC the link sends a packet after half of the idle timeout, as a
    /// `Client`'s does.
    pub(crate) async fn connect(
        connector: &Connector,
        address: &Address,
        client_id: &str,
        keep_alive: u16,
    ) -> Result<Self, Failed> {
        tokio::time::timeout(PATIENCE, async {
            let dial = Dial {
                quic_keep_alive: connector.options().quic.keep_alive_below_idle(),
                ..Dial::default()
            };
            let mut device = Self {
                link: connector.connect_with(address, dial).await?,
                outbox: Outbox::new(),
                decoder: Decoder::new(Some(VERSION), LARGEST),
            };
            let mut connect = Connect::new(VERSION, ByteStr::new(client_id)?);
            connect.keep_alive = keep_alive;
            device.put(&connect.into())?;
            match device.next().await? {
                Packet::ConnAck(ack) if ack.reason == ReasonCode::Success => {
                    // An empty outbox still has the room that CONNECT took.
                    device.outbox = Outbox::new();
                    Ok(device)
                }
                other => Err(format!("no CONNACK of success: {other:?}").into()),
            }
        })
        .await?
    }

    /// Queues a packet, which [`next`](Self::next) sends.
    pub(crate) fn put(&mut self, packet: &Packet) -> Result<(), Failed> {
        let put = self
            .outbox
            .put(LaneId::CONTROL, |out| packet.encode(VERSION, out));
        Ok(put?)
    }

    /// Sends what is queued, and returns the next packet that comes. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Packet, Failed> {
        loop {
            let received = self.link.received(LaneId::CONTROL);
            if let Some(packet) = self.decoder.decode(received)? {
                return Ok(packet);
            }
            if let Progress::Closed = self.link.progress(&mut self.outbox, true).await? {
                return Err("the broker closed the connection".into());
            }
        }
    }

    /// Subscribes at QoS 0, with one SUBSCRIBE, and waits until all filters are granted.
    pub(crate) async fn subscribe(&mut self, filters: Vec<TopicFilter>) -> Result<(), Failed> {
        let count = filters.len();
        let options = QoS::AtMostOnce.into();
        let subscriptions = filters
            .into_iter()
            .map(|filter| Subscription { filter, options });
        self.put(&Packet::Subscribe(Subscribe {
            packet_id: PacketId::new(1).ok_or("an identifier above 0")?,
            subscriptions: subscriptions.collect(),
            properties: mq_codec::packet::SubscribeProperties::default(),
        }))?;
        match self.next().await? {
            Packet::SubAck(ack)
                if ack.reasons.len() == count && !ack.reasons.iter().any(|r| r.is_error()) =>
            {
                Ok(())
            }
            other => Err(format!("not all filters are granted: {other:?}").into()),
        }
    }

    /// Sends DISCONNECT and closes.
    pub(crate) async fn leave(mut self) -> Result<(), Failed> {
        let disconnect = Disconnect::new(ReasonCode::Success);
        self.put(&Packet::Disconnect(Box::new(disconnect)))?;
        while !self.outbox.is_empty() {
            if let Progress::Closed = self.link.progress(&mut self.outbox, false).await? {
                return Err("the broker closed the connection".into());
            }
        }
        self.link.close(PATIENCE).await;
        Ok(())
    }
}
