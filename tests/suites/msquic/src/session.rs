//! An MQTT session on a link, in which every message comes back to its publisher.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use mq_codec::{
    Ack, Connect, Decoder, Disconnect, Packet, PacketId, Publish, QoS, ReasonCode, Subscribe,
    SubscribeProperties, Subscription, TopicFilter, TopicName, Version,
};
use msquic::SendFlags;

use crate::{
    Failed, PATIENCE,
    broker::Broker,
    link::{Endpoint, Event, Link},
    wire::Wire,
};

/// Messages that leave together with CONNECT in a session that begins with early data.
const FIRST: usize = 4;
/// Messages that leave together later; fewer than any broker's Receive Maximum.
const TOGETHER: usize = 10;
const MESSAGES: usize = FIRST + 10 * TOGETHER;
const LARGEST_PACKET: u32 = 1 << 20;

/// The beginning of a session.
pub struct Beginning<'a> {
    pub version: Version,
    pub client_id: &'a str,
    /// A ticket of an earlier session.
    pub ticket: Option<&'a [u8]>,
    /// `true` if CONNECT, SUBSCRIBE and the first messages are offered as early data.
    pub early: bool,
}

/// Outcome of a session.
#[derive(Debug)]
pub struct Outcome {
    pub dial_to_connack: Duration,
    /// Bytes of early data that the broker acknowledged.
    pub early_bytes: u64,
    /// `true` if bytes left twice before CONNACK: as early data, and again as it was rejected.
    pub sent_again: bool,
    /// The handshake, as MsQuic has seen it.
    pub resumed: bool,
    /// The broker's view of the client.
    pub view: String,
    /// A ticket that the session has not used.
    pub ticket: Vec<u8>,
}

/// Carries all messages of a session: of QoS 0 and 1 in turns, each to arrive once and in the order of its QoS.
pub fn run(
    endpoint: &Endpoint,
    broker: &Broker,
    beginning: &Beginning<'_>,
) -> Result<Outcome, Failed> {
    let topic = format!("suite/msquic/{}", beginning.client_id);
    let connect = Connect::new(beginning.version, beginning.client_id.try_into()?);
    let mut first = BytesMut::new();
    let mut rest = BytesMut::new();
    Packet::Connect(Box::new(connect)).encode(beginning.version, &mut first)?;
    let after_connect = if beginning.early {
        &mut first
    } else {
        &mut rest
    };
    subscribe(&topic)?.encode(beginning.version, after_connect)?;
    for number in 0..FIRST {
        message(&topic, number)?.encode(beginning.version, after_connect)?;
    }

    let flags = if beginning.early {
        SendFlags::ALLOW_0_RTT
    } else {
        SendFlags::NONE
    };
    let wire = Wire::to(broker.address)?;
    let dialled = Instant::now();
    let link = endpoint.dial(wire.address, beginning.ticket, first.to_vec(), flags)?;
    let mut session = Session::new(link, beginning.version);
    let connack = loop {
        if let Some(packet) = session.next()? {
            break packet;
        }
    };
    let dial_to_connack = session.arrived - dialled;
    if !matches!(&connack, Packet::ConnAck(connack) if connack.reason == ReasonCode::Success) {
        return Err(format!("no log-in: {connack:?}").into());
    }
    let sent_again = session.link.sent_bytes()? > first.len() as u64;
    if !beginning.early {
        session.link.send(rest.to_vec(), SendFlags::NONE)?;
    }
    session.until_arrived(FIRST)?;
    if session.subacks != 1 {
        return Err("messages without a SUBACK".into());
    }
    for numbers in (FIRST..MESSAGES).collect::<Vec<_>>().chunks(TOGETHER) {
        for number in numbers {
            session.send(&message(&topic, *number)?, SendFlags::NONE)?;
        }
        session.until_arrived(numbers[TOGETHER - 1] + 1)?;
    }
    session.send(&Packet::PingReq, SendFlags::NONE)?;
    while session.pings == 0 || session.ticket.is_none() {
        session.step()?;
    }
    let view = broker.client(beginning.client_id)?;
    let early_bytes = session.end()?;
    session.check_messages()?;
    Ok(Outcome {
        dial_to_connack,
        early_bytes,
        sent_again,
        resumed: session.resumed.ok_or("no end of the handshake")?,
        view,
        ticket: session.ticket.expect("it has come"),
    })
}

struct Session {
    link: Link,
    version: Version,
    decoder: Decoder,
    unread: BytesMut,
    /// The arrival of the latest bytes.
    arrived: Instant,
    resumed: Option<bool>,
    ticket: Option<Vec<u8>>,
    early_bytes: Option<u64>,
    closed: Option<String>,
    subacks: usize,
    pubacks: usize,
    pings: usize,
    messages: Vec<(QoS, Bytes)>,
}

impl Session {
    fn new(link: Link, version: Version) -> Self {
        Self {
            link,
            version,
            decoder: Decoder::new(Some(version), LARGEST_PACKET),
            unread: BytesMut::new(),
            arrived: Instant::now(),
            resumed: None,
            ticket: None,
            early_bytes: None,
            closed: None,
            subacks: 0,
            pubacks: 0,
            pings: 0,
            messages: Vec::new(),
        }
    }

    fn send(&self, packet: &Packet, flags: SendFlags) -> Result<(), Failed> {
        let mut bytes = BytesMut::new();
        packet.encode(self.version, &mut bytes)?;
        Ok(self.link.send(bytes.to_vec(), flags)?)
    }

    fn event(&mut self) -> Result<(), Failed> {
        let waited = self.link.events.recv_timeout(PATIENCE);
        match waited.map_err(|_| format!("nothing came for {PATIENCE:?}"))? {
            Event::Connected(resumed) => self.resumed = Some(resumed),
            Event::Ticket(ticket) => self.ticket = Some(ticket),
            Event::SendingEnded(early_bytes) => self.early_bytes = Some(early_bytes),
            Event::Closed(reason) => self.closed = Some(reason),
            Event::Bytes(bytes, at) => {
                self.unread.extend_from_slice(&bytes);
                self.arrived = at;
            }
        }
        Ok(())
    }

    /// Returns a packet that is there; otherwise takes the next event and returns `None`.
    fn next(&mut self) -> Result<Option<Packet>, Failed> {
        let packet = self.decoder.decode(&mut self.unread)?;
        if packet.is_none() {
            if let Some(reason) = &self.closed {
                return Err(format!("the connection was closed: {reason}").into());
            }
            self.event()?;
        }
        Ok(packet)
    }

    fn step(&mut self) -> Result<(), Failed> {
        match self.next()? {
            None => {}
            Some(Packet::SubAck(suback)) if suback.reasons == [ReasonCode::GrantedQos1] => {
                self.subacks += 1;
            }
            Some(Packet::PubAck(ack)) if ack.reason == ReasonCode::Success => self.pubacks += 1,
            Some(Packet::PingResp) => self.pings += 1,
            Some(Packet::Publish(publish)) => {
                if let Some(id) = publish.packet_id {
                    let ack = Ack::new(id, ReasonCode::Success);
                    self.send(&Packet::PubAck(ack), SendFlags::NONE)?;
                }
                self.messages.push((publish.qos, publish.payload));
            }
            Some(other) => return Err(format!("an unexpected packet: {other:?}").into()),
        }
        Ok(())
    }

    /// Waits until so many messages have come, and half as many acknowledgements.
    fn until_arrived(&mut self, messages: usize) -> Result<(), Failed> {
        while self.messages.len() < messages || self.pubacks < messages / 2 {
            self.step()?;
        }
        Ok(())
    }

    /// Disconnects. Returns the number of bytes of early data that the broker acknowledged.
    fn end(&mut self) -> Result<u64, Failed> {
        let disconnect = Disconnect::new(ReasonCode::Success);
        self.send(&Packet::Disconnect(Box::new(disconnect)), SendFlags::FIN)?;
        let early_bytes = loop {
            if let Some(early_bytes) = self.early_bytes {
                break early_bytes;
            }
            self.event()?;
        };
        self.link.close();
        while self.closed.is_none() {
            self.event()?;
        }
        if let Some(packet) = self.decoder.decode(&mut self.unread)? {
            return Err(format!("a packet after PINGRESP: {packet:?}").into());
        }
        Ok(early_bytes)
    }

    fn check_messages(&self) -> Result<(), Failed> {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
            let came = self.messages.iter().filter(|message| message.0 == qos);
            let numbers = (0..MESSAGES).filter(|number| qos_of(*number) == qos);
            if !came
                .map(|message| &message.1[..])
                .eq(numbers.map(|number| payload(number).into_bytes()))
            {
                return Err(
                    format!("{qos:?}: messages are lost, come twice or in another order").into(),
                );
            }
        }
        Ok(())
    }
}

fn qos_of(number: usize) -> QoS {
    if number.is_multiple_of(2) {
        QoS::AtMostOnce
    } else {
        QoS::AtLeastOnce
    }
}

/// Returns the number, and so many spaces that some messages take several packets, also among the first ones.
fn payload(number: usize) -> String {
    let spaces = match number {
        2 => 3_000,
        20 | 21 => 100_000,
        _ => 0,
    };
    format!("{number}{}", " ".repeat(spaces))
}

fn message(topic: &str, number: usize) -> Result<Packet, Failed> {
    let qos = qos_of(number);
    Ok(Packet::Publish(Publish {
        qos,
        packet_id: if qos == QoS::AtMostOnce {
            None
        } else {
            PacketId::new(u16::try_from(number)?)
        },
        ..Publish::new(TopicName::new(topic)?, payload(number))
    }))
}

fn subscribe(topic: &str) -> Result<Packet, Failed> {
    Ok(Packet::Subscribe(Subscribe {
        packet_id: PacketId::new(u16::MAX).expect("it is not 0"),
        subscriptions: vec![Subscription {
            filter: TopicFilter::new(topic)?,
            options: QoS::AtLeastOnce.into(),
        }],
        properties: SubscribeProperties::default(),
    }))
}
