//! Messages that go through the cluster: to the other nodes, and from them to the sessions of this one.

use std::sync::Arc;

use mq_codec::{ByteStr, PacketId, QoS};
use mq_proto::{AckTicket, Delivery};

use super::{Publication, Publisher, RoutedMessage};
use crate::{
    clock,
    hub::{Hub, LogMark},
    lock::read,
    session::Session,
    store::{Change, LogPosition, SessionChange, StoredMessage},
};

/// A message of a client at some node, for the sessions of this one.
pub(crate) struct ClusterMessage<'a> {
    /// The client that published it.
    pub(crate) from: ByteStr,
    /// The packet identifier by which the store knows a QoS 2 message until it is released.
    pub(crate) packet_id: Option<PacketId>,
    pub(crate) message: StoredMessage,
    pub(crate) to: ClusterReceivers<'a>,
}

/// Sessions that get a message of the cluster, or do not, apart from their subscriptions.
#[derive(Clone, Copy)]
pub(crate) struct ClusterReceivers<'a> {
    /// The only members of shared subscriptions that get it.
    pub(crate) group_members: &'a [ByteStr],
    /// Clients whose sessions have it already, or are past it.
    pub(crate) already_delivered: &'a [ByteStr],
}

impl Hub {
    /// Passes a client's message to the cluster, if this is a node of one. Returns `true` if its own sessions get it
    /// from there.
    pub(super) fn publish_to_cluster(
        &self,
        from: &Session,
        publication: &mut Publication,
        routed: &mut RoutedMessage,
        publisher: &mut Publisher,
    ) -> bool {
        let Some(cluster) = &self.cluster else {
            return false;
        };
        let &mut Publication {
            ref message,
            qos,
            retain,
            expires_at,
            ..
        } = publication;
        let mut delivery = Delivery::new(Arc::clone(message), qos);
        delivery.retain = retain;
        delivery.expires_at = expires_at;
        let stored = StoredMessage::new(&delivery, self.store_clock());
        if qos == QoS::AtMostOnce && !retain {
            let members = cluster.send_qos0(&from.client_id, stored);
            publication.group_members = Some(self.sessions.keys_of(&members));
            return false;
        }
        let ticket = routed.ticket.as_ref();
        let packet_id = ticket
            .filter(|ticket| qos == QoS::ExactlyOnce && ticket.is_of_session())
            .filter(|_| publisher.journal.records_session(from))
            .map(AckTicket::packet_id);
        let mark = match packet_id {
            Some(packet_id) => LogMark::PacketId(packet_id),
            None if publisher.is_of_will => LogMark::Will,
            None => LogMark::None,
        };
        // Nobody can be told that a will is refused: it waits.
        let answers = publisher.append_answers.as_ref();
        let answers = answers.filter(|_| routed.ticket.is_some());
        let appended = cluster.append(&from.client_id, mark, stored, answers);
        if let Ok(position) = appended {
            publisher.journal.note_appended(position, message);
            routed.passed_on(position);
        } else {
            if routed.ticket.is_none() {
                self.metrics.dropped.add(1);
            }
            routed.refuse_whoever(&message.topic);
        }
        true
    }

    /// See [`LocalSessions::publish_from_cluster`](crate::hub::LocalSessions::publish_from_cluster).
    pub(in crate::hub) fn publish_from_cluster(
        &self,
        message: ClusterMessage<'_>,
        publisher: &mut Publisher,
        begin: &mut dyn FnMut() -> Option<LogPosition>,
    ) {
        let ClusterMessage {
            from,
            packet_id,
            message,
            to,
        } = message;
        let StoredMessage {
            message,
            qos,
            retain,
            expires_at,
            ..
        } = message;
        let sender = self.sessions.get(&from);
        let mut publication = Publication {
            message,
            qos,
            retain,
            expires_at: expires_at.map(|time| self.store_clock().instant_of(time)),
            now: clock::now(),
            is_bridged: sender.as_ref().is_some_and(|from| from.is_bridge()),
            sender: sender.map(|from| from.key),
            group_members: Some(self.sessions.keys_of(to.group_members)),
            already_delivered: self.sessions.keys_of(to.already_delivered),
            origin: None,
        };
        let mut routed = RoutedMessage::default();
        let routing = read(&self.routing);
        let mut changes = Vec::new();
        publication.origin = begin();
        if retain {
            // Without room for it, others have it; nor is it recorded: the logs have it.
            let _ = self.retain(&publication, publisher);
        }
        if let Some(packet_id) = packet_id {
            let change = SessionChange::Received {
                packet_id,
                flow: None,
            };
            changes.push(Change::Session(from, change));
        }
        self.fan_out(&routing, &publication, changes, &mut routed, publisher);
        publisher.delivering(&self.metrics, &mut routed).finish();
    }
}
