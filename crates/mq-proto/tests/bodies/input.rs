//! Steps and packets out of the input of a fuzz target.

use mq_codec::{
    Packet, PacketId, Publish, QoS, ReasonCode, SubAck, Subscribe, Subscription, TopicFilter,
    TopicName, UnsubAck,
};

const REASONS: [ReasonCode; 5] = [
    ReasonCode::Success,
    ReasonCode::NoMatchingSubscribers,
    ReasonCode::PacketIdentifierNotFound,
    ReasonCode::UnspecifiedError,
    ReasonCode::QuotaExceeded,
];

/// The owner's answers.
pub(crate) const ANSWERS: [ReasonCode; 3] = [
    ReasonCode::Success,
    ReasonCode::UnspecifiedError,
    ReasonCode::QuotaExceeded,
];

/// The rest of the input.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl Input<'_> {
    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// Draws a packet identifier, of few, so that they meet.
    pub(crate) fn packet_id(&mut self) -> PacketId {
        PacketId::new(u16::from(self.byte() % 4) + 1).expect("it is not 0")
    }

    pub(crate) fn qos(&mut self) -> QoS {
        self.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
    }

    pub(crate) fn reason(&mut self) -> ReasonCode {
        self.pick(&REASONS)
    }
}

/// Makes a well-formed PUBLISH.
pub(crate) fn publish(input: &mut Input<'_>) -> Packet {
    let topic = TopicName::new(input.pick(&["a", "b"])).expect("valid");
    let mut publish = Publish::new(topic, "x");
    publish.qos = input.qos();
    publish.packet_id = (publish.qos > QoS::AtMostOnce).then(|| input.packet_id());
    let flags = input.byte();
    publish.dup = flags & 1 > 0 && publish.qos > QoS::AtMostOnce;
    publish.retain = flags & 2 > 0;
    if flags & 4 > 0 {
        publish.properties.topic_alias = Some(u16::from(flags >> 3) % 4);
    }
    publish.into()
}

/// Makes a well-formed SUBSCRIBE.
pub(crate) fn subscribe(input: &mut Input<'_>) -> Packet {
    let filter = TopicFilter::new(input.pick(&["a", "+", "#", "$share/g/a"])).expect("valid");
    Packet::Subscribe(Subscribe {
        packet_id: input.packet_id(),
        subscriptions: vec![Subscription {
            filter,
            options: input.qos().into(),
        }],
        properties: mq_codec::SubscribeProperties::default(),
    })
}

/// Makes a well-formed SUBACK of `count` reason codes.
pub(crate) fn suback(packet_id: PacketId, count: usize) -> SubAck {
    SubAck {
        packet_id,
        reasons: vec![ReasonCode::Success; count],
        properties: mq_codec::SubAckProperties::default(),
    }
}

/// Makes a well-formed UNSUBACK of `count` reason codes.
pub(crate) fn unsuback(packet_id: PacketId, count: usize) -> UnsubAck {
    UnsubAck {
        packet_id,
        reasons: vec![ReasonCode::Success; count],
        properties: mq_codec::UnsubAckProperties::default(),
    }
}
