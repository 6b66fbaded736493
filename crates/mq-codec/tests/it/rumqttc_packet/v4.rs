//! MQTT 3.1.1.

use mq_codec::{Connect, Packet, QoS, ReasonCode};
use rumqttc::mqttbytes::{self, Protocol, v4};

use super::{login, same_name, string};

/// Converts `packet` to rumqttc's type, with all that MQTT 3.1.1 has of it.
pub(crate) fn of(packet: &Packet) -> v4::Packet {
    let id = packet.packet_id().map_or(0, mq_codec::PacketId::get);
    match packet {
        Packet::Connect(connect) => v4::Packet::Connect(of_connect(connect)),
        Packet::ConnAck(connack) => v4::Packet::ConnAck(v4::ConnAck {
            session_present: connack.session_present,
            code: return_code(connack.reason),
        }),
        Packet::Publish(publish) => v4::Packet::Publish(v4::Publish {
            dup: publish.dup,
            qos: of_qos(publish.qos),
            retain: publish.retain,
            topic: string(publish.topic.as_byte_str()),
            pkid: id,
            payload: publish.payload.clone(),
        }),
        Packet::PubAck(_) => v4::Packet::PubAck(v4::PubAck { pkid: id }),
        Packet::PubRec(_) => v4::Packet::PubRec(v4::PubRec { pkid: id }),
        Packet::PubRel(_) => v4::Packet::PubRel(v4::PubRel { pkid: id }),
        Packet::PubComp(_) => v4::Packet::PubComp(v4::PubComp { pkid: id }),
        Packet::Subscribe(subscribe) => v4::Packet::Subscribe(v4::Subscribe {
            pkid: id,
            filters: subscribe
                .subscriptions
                .iter()
                .map(|subscription| v4::SubscribeFilter {
                    path: string(subscription.filter.as_byte_str()),
                    qos: of_qos(subscription.options.qos),
                })
                .collect(),
        }),
        Packet::SubAck(suback) => v4::Packet::SubAck(v4::SubAck {
            pkid: id,
            return_codes: suback
                .reasons
                .iter()
                .map(|reason| granted(*reason))
                .collect(),
        }),
        Packet::Unsubscribe(unsubscribe) => v4::Packet::Unsubscribe(v4::Unsubscribe {
            pkid: id,
            topics: unsubscribe
                .filters
                .iter()
                .map(|filter| string(filter.as_byte_str()))
                .collect(),
        }),
        Packet::UnsubAck(_) => v4::Packet::UnsubAck(v4::UnsubAck { pkid: id }),
        Packet::PingReq => v4::Packet::PingReq,
        Packet::PingResp => v4::Packet::PingResp,
        Packet::Disconnect(_) => v4::Packet::Disconnect,
        Packet::Auth(_) => unreachable!("3.1.1 has no AUTH"),
    }
}

fn of_connect(connect: &Connect) -> v4::Connect {
    v4::Connect {
        protocol: Protocol::V4,
        keep_alive: connect.keep_alive,
        client_id: string(&connect.client_id),
        clean_session: connect.clean_start,
        last_will: connect.will.as_ref().map(|will| v4::LastWill {
            topic: string(will.topic.as_byte_str()),
            message: will.payload.clone(),
            qos: of_qos(will.qos),
            retain: will.retain,
        }),
        login: login(connect).map(|(username, password)| v4::Login { username, password }),
    }
}

fn of_qos(qos: QoS) -> mqttbytes::QoS {
    match qos {
        QoS::AtMostOnce => mqttbytes::QoS::AtMostOnce,
        QoS::AtLeastOnce => mqttbytes::QoS::AtLeastOnce,
        QoS::ExactlyOnce => mqttbytes::QoS::ExactlyOnce,
    }
}

fn return_code(reason: ReasonCode) -> v4::ConnectReturnCode {
    use v4::ConnectReturnCode as Theirs;
    same_name!(reason, Theirs, [
        Success,
        UnsupportedProtocolVersion => RefusedProtocolVersion,
        ClientIdentifierNotValid => BadClientId,
        ServerUnavailable => ServiceUnavailable,
        BadUserNameOrPassword => BadUserNamePassword,
        NotAuthorized,
    ])
}

fn granted(reason: ReasonCode) -> v4::SubscribeReasonCode {
    use mqttbytes::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
    match reason {
        ReasonCode::Success => v4::SubscribeReasonCode::Success(AtMostOnce),
        ReasonCode::GrantedQos1 => v4::SubscribeReasonCode::Success(AtLeastOnce),
        ReasonCode::GrantedQos2 => v4::SubscribeReasonCode::Success(ExactlyOnce),
        _ => v4::SubscribeReasonCode::Failure,
    }
}
