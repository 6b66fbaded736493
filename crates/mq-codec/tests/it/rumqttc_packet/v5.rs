//! MQTT 5.0. rumqttc has `None` for the properties of a packet without any.

use core::num::{NonZeroU16, NonZeroU32};

use mq_codec::{
    ByteStr, ConnAckProperties, Connect, ConnectProperties, Packet, Publish, QoS, ReasonCode,
    RetainHandling, Subscribe, SubscriptionId, WillProperties,
};
use rumqttc::v5::mqttbytes::{self, v5};

use super::{login, same_name, string};

type Pairs = Vec<(String, String)>;

/// The properties of an acknowledgement: six types with the same two fields.
macro_rules! explained {
    ($properties:expr, $type:ident) => {
        unless(
            $properties.is_empty(),
            v5::$type {
                reason_string: $properties.reason_string.as_ref().map(string),
                user_properties: pairs(&$properties.user_properties),
            },
        )
    };
}

/// Converts a packet with all its fields to rumqttc's type.
pub(crate) fn of(packet: &Packet) -> v5::Packet {
    let pkid = packet.packet_id().map_or(0, mq_codec::PacketId::get);
    match packet {
        Packet::Connect(connect) => of_connect(connect),
        Packet::ConnAck(connack) => v5::Packet::ConnAck(v5::ConnAck {
            session_present: connack.session_present,
            code: connack_reason(connack.reason),
            properties: unless(
                connack.properties.is_empty(),
                connack_properties(&connack.properties),
            ),
        }),
        Packet::Publish(publish) => v5::Packet::Publish(of_publish(publish)),
        Packet::PubAck(ack) => v5::Packet::PubAck(v5::PubAck {
            pkid,
            reason: puback_reason(ack.reason),
            properties: explained!(ack.properties, PubAckProperties),
        }),
        Packet::PubRec(ack) => v5::Packet::PubRec(v5::PubRec {
            pkid,
            reason: pubrec_reason(ack.reason),
            properties: explained!(ack.properties, PubRecProperties),
        }),
        Packet::PubRel(ack) => v5::Packet::PubRel(v5::PubRel {
            pkid,
            reason: pubrel_reason(ack.reason),
            properties: explained!(ack.properties, PubRelProperties),
        }),
        Packet::PubComp(ack) => v5::Packet::PubComp(v5::PubComp {
            pkid,
            reason: pubcomp_reason(ack.reason),
            properties: explained!(ack.properties, PubCompProperties),
        }),
        Packet::Subscribe(subscribe) => v5::Packet::Subscribe(of_subscribe(subscribe)),
        Packet::SubAck(suback) => v5::Packet::SubAck(v5::SubAck {
            pkid,
            return_codes: suback
                .reasons
                .iter()
                .map(|reason| suback_reason(*reason))
                .collect(),
            properties: explained!(suback.properties, SubAckProperties),
        }),
        Packet::Unsubscribe(unsubscribe) => v5::Packet::Unsubscribe(v5::Unsubscribe {
            pkid,
            filters: unsubscribe
                .filters
                .iter()
                .map(|filter| string(filter.as_byte_str()))
                .collect(),
            properties: unless(
                unsubscribe.properties.is_empty(),
                v5::UnsubscribeProperties {
                    user_properties: pairs(&unsubscribe.properties.user_properties),
                },
            ),
        }),
        Packet::UnsubAck(unsuback) => v5::Packet::UnsubAck(v5::UnsubAck {
            pkid,
            reasons: unsuback
                .reasons
                .iter()
                .map(|reason| unsuback_reason(*reason))
                .collect(),
            properties: explained!(unsuback.properties, UnsubAckProperties),
        }),
        Packet::PingReq => v5::Packet::PingReq(v5::PingReq),
        Packet::PingResp => v5::Packet::PingResp(v5::PingResp),
        Packet::Disconnect(disconnect) => v5::Packet::Disconnect(v5::Disconnect {
            reason_code: disconnect_reason(disconnect.reason),
            properties: unless(
                disconnect.properties.is_empty(),
                v5::DisconnectProperties {
                    session_expiry_interval: disconnect.properties.session_expiry_interval,
                    reason_string: disconnect.properties.reason_string.as_ref().map(string),
                    user_properties: pairs(&disconnect.properties.user_properties),
                    server_reference: disconnect.properties.server_reference.as_ref().map(string),
                },
            ),
        }),
        Packet::Auth(_) => unreachable!("`packet` leaves it out"),
    }
}

fn unless<T>(empty: bool, properties: T) -> Option<T> {
    (!empty).then_some(properties)
}

fn pairs(user_properties: &[(ByteStr, ByteStr)]) -> Pairs {
    user_properties
        .iter()
        .map(|(name, value)| (string(name), string(value)))
        .collect()
}

fn of_connect(connect: &Connect) -> v5::Packet {
    let theirs = v5::Connect {
        keep_alive: connect.keep_alive,
        client_id: string(&connect.client_id),
        clean_start: connect.clean_start,
        properties: unless(
            connect.properties.is_empty(),
            connect_properties(&connect.properties),
        ),
    };
    let will = connect.will.as_ref().map(|will| v5::LastWill {
        topic: will.topic.to_string().into(),
        message: will.payload.clone(),
        qos: of_qos(will.qos),
        retain: will.retain,
        properties: unless(
            will.properties.is_empty(),
            will_properties(&will.properties),
        ),
    });
    let login = login(connect).map(|(username, password)| v5::Login { username, password });
    v5::Packet::Connect(theirs, will, login)
}

fn connect_properties(properties: &ConnectProperties) -> v5::ConnectProperties {
    v5::ConnectProperties {
        session_expiry_interval: properties.session_expiry_interval,
        receive_maximum: properties.receive_maximum.map(NonZeroU16::get),
        max_packet_size: properties.maximum_packet_size.map(NonZeroU32::get),
        topic_alias_max: properties.topic_alias_maximum,
        request_response_info: properties.request_response_information.map(u8::from),
        request_problem_info: properties.request_problem_information.map(u8::from),
        user_properties: pairs(&properties.user_properties),
        authentication_method: properties.authentication_method.as_ref().map(string),
        authentication_data: properties.authentication_data.clone(),
    }
}

fn will_properties(properties: &WillProperties) -> v5::LastWillProperties {
    v5::LastWillProperties {
        delay_interval: properties.will_delay_interval,
        payload_format_indicator: properties.payload_is_utf8.map(u8::from),
        message_expiry_interval: properties.message_expiry_interval,
        content_type: properties.content_type.as_ref().map(string),
        response_topic: properties.response_topic.as_ref().map(string),
        correlation_data: properties.correlation_data.clone(),
        user_properties: pairs(&properties.user_properties),
    }
}

fn connack_properties(properties: &ConnAckProperties) -> v5::ConnAckProperties {
    v5::ConnAckProperties {
        session_expiry_interval: properties.session_expiry_interval,
        receive_max: properties.receive_maximum.map(NonZeroU16::get),
        max_qos: properties.maximum_qos.map(|qos| qos as u8),
        retain_available: properties.retain_available.map(u8::from),
        max_packet_size: properties.maximum_packet_size.map(NonZeroU32::get),
        assigned_client_identifier: properties.assigned_client_identifier.as_ref().map(string),
        topic_alias_max: properties.topic_alias_maximum,
        reason_string: properties.reason_string.as_ref().map(string),
        user_properties: pairs(&properties.user_properties),
        wildcard_subscription_available: properties.wildcard_subscription_available.map(u8::from),
        subscription_identifiers_available: properties
            .subscription_identifiers_available
            .map(u8::from),
        shared_subscription_available: properties.shared_subscription_available.map(u8::from),
        server_keep_alive: properties.server_keep_alive,
        response_information: properties.response_information.as_ref().map(string),
        server_reference: properties.server_reference.as_ref().map(string),
        authentication_method: properties.authentication_method.as_ref().map(string),
        authentication_data: properties.authentication_data.clone(),
    }
}

fn of_publish(publish: &Publish) -> v5::Publish {
    let properties = &publish.properties;
    v5::Publish {
        dup: publish.dup,
        qos: of_qos(publish.qos),
        retain: publish.retain,
        topic: publish.topic.to_string().into(),
        pkid: publish.packet_id.map_or(0, mq_codec::PacketId::get),
        payload: publish.payload.clone(),
        properties: unless(
            properties.is_empty(),
            v5::PublishProperties {
                payload_format_indicator: properties.payload_is_utf8.map(u8::from),
                message_expiry_interval: properties.message_expiry_interval,
                topic_alias: properties.topic_alias,
                response_topic: properties.response_topic.as_ref().map(string),
                correlation_data: properties.correlation_data.clone(),
                user_properties: pairs(&properties.user_properties),
                subscription_identifiers: properties
                    .subscription_ids
                    .iter()
                    .map(|id| subscription_id(*id))
                    .collect(),
                content_type: properties.content_type.as_ref().map(string),
            },
        ),
    }
}

fn subscription_id(id: SubscriptionId) -> usize {
    id.get() as usize
}

fn of_subscribe(subscribe: &Subscribe) -> v5::Subscribe {
    let filters = subscribe
        .subscriptions
        .iter()
        .map(|subscription| v5::Filter {
            path: string(subscription.filter.as_byte_str()),
            qos: of_qos(subscription.options.qos),
            nolocal: subscription.options.no_local,
            preserve_retain: subscription.options.retain_as_published,
            retain_forward_rule: match subscription.options.retain_handling {
                RetainHandling::Send => v5::RetainForwardRule::OnEverySubscribe,
                RetainHandling::SendIfNew => v5::RetainForwardRule::OnNewSubscribe,
                RetainHandling::DoNotSend => v5::RetainForwardRule::Never,
            },
        });
    v5::Subscribe {
        pkid: subscribe.packet_id.get(),
        filters: filters.collect(),
        properties: unless(
            subscribe.properties.is_empty(),
            v5::SubscribeProperties {
                id: subscribe.properties.subscription_id.map(subscription_id),
                user_properties: pairs(&subscribe.properties.user_properties),
            },
        ),
    }
}

fn of_qos(qos: QoS) -> mqttbytes::QoS {
    match qos {
        QoS::AtMostOnce => mqttbytes::QoS::AtMostOnce,
        QoS::AtLeastOnce => mqttbytes::QoS::AtLeastOnce,
        QoS::ExactlyOnce => mqttbytes::QoS::ExactlyOnce,
    }
}

fn connack_reason(reason: ReasonCode) -> v5::ConnectReturnCode {
    use v5::ConnectReturnCode as Theirs;
    same_name!(reason, Theirs, [
        Success,
        UnspecifiedError,
        MalformedPacket,
        ProtocolError,
        ImplementationSpecificError,
        UnsupportedProtocolVersion,
        ClientIdentifierNotValid,
        BadUserNameOrPassword => BadUserNamePassword,
        NotAuthorized,
        ServerUnavailable,
        ServerBusy,
        Banned,
        BadAuthenticationMethod,
        TopicNameInvalid,
        PacketTooLarge,
        QuotaExceeded,
        PayloadFormatInvalid,
        RetainNotSupported,
        QosNotSupported => QoSNotSupported,
        UseAnotherServer,
        ServerMoved,
        ConnectionRateExceeded,
    ])
}

/// PUBACK and PUBREC have the same reason codes, in two types.
macro_rules! publish_reason {
    ($name:ident, $theirs:ty) => {
        fn $name(reason: ReasonCode) -> $theirs {
            type Theirs = $theirs;
            same_name!(
                reason,
                Theirs,
                [
                    Success,
                    NoMatchingSubscribers,
                    UnspecifiedError,
                    ImplementationSpecificError,
                    NotAuthorized,
                    TopicNameInvalid,
                    PacketIdentifierInUse,
                    QuotaExceeded,
                    PayloadFormatInvalid,
                ]
            )
        }
    };
}
publish_reason!(puback_reason, v5::PubAckReason);
publish_reason!(pubrec_reason, v5::PubRecReason);

fn pubrel_reason(reason: ReasonCode) -> v5::PubRelReason {
    use v5::PubRelReason as Theirs;
    same_name!(reason, Theirs, [Success, PacketIdentifierNotFound])
}

fn pubcomp_reason(reason: ReasonCode) -> v5::PubCompReason {
    use v5::PubCompReason as Theirs;
    same_name!(reason, Theirs, [Success, PacketIdentifierNotFound])
}

fn suback_reason(reason: ReasonCode) -> v5::SubscribeReasonCode {
    use v5::SubscribeReasonCode as Theirs;
    match reason {
        ReasonCode::Success => Theirs::Success(mqttbytes::QoS::AtMostOnce),
        ReasonCode::GrantedQos1 => Theirs::Success(mqttbytes::QoS::AtLeastOnce),
        ReasonCode::GrantedQos2 => Theirs::Success(mqttbytes::QoS::ExactlyOnce),
        reason => same_name!(reason, Theirs, [
            UnspecifiedError => Unspecified,
            ImplementationSpecificError => ImplementationSpecific,
            NotAuthorized,
            TopicFilterInvalid,
            PacketIdentifierInUse => PkidInUse,
            QuotaExceeded,
            SharedSubscriptionsNotSupported,
            SubscriptionIdentifiersNotSupported => SubscriptionIdNotSupported,
            WildcardSubscriptionsNotSupported,
        ]),
    }
}

fn unsuback_reason(reason: ReasonCode) -> v5::UnsubAckReason {
    use v5::UnsubAckReason as Theirs;
    same_name!(
        reason,
        Theirs,
        [
            Success,
            NoSubscriptionExisted,
            UnspecifiedError,
            ImplementationSpecificError,
            NotAuthorized,
            TopicFilterInvalid,
            PacketIdentifierInUse,
        ]
    )
}

fn disconnect_reason(reason: ReasonCode) -> v5::DisconnectReasonCode {
    use v5::DisconnectReasonCode as Theirs;
    same_name!(reason, Theirs, [
        Success => NormalDisconnection,
        DisconnectWithWill => DisconnectWithWillMessage,
        UnspecifiedError,
        MalformedPacket,
        ProtocolError,
        ImplementationSpecificError,
        NotAuthorized,
        ServerBusy,
        ServerShuttingDown,
        KeepAliveTimeout,
        SessionTakenOver,
        TopicFilterInvalid,
        TopicNameInvalid,
        ReceiveMaximumExceeded,
        TopicAliasInvalid,
        PacketTooLarge,
        MessageRateTooHigh,
        QuotaExceeded,
        AdministrativeAction,
        PayloadFormatInvalid,
        RetainNotSupported,
        QosNotSupported => QoSNotSupported,
        UseAnotherServer,
        ServerMoved,
        SharedSubscriptionsNotSupported => SharedSubscriptionNotSupported,
        ConnectionRateExceeded,
        MaximumConnectTime,
        SubscriptionIdentifiersNotSupported,
        WildcardSubscriptionsNotSupported,
    ])
}
