//! The program's hooks about an attached client.

use std::time::Instant;

use mq_codec::{PacketType, QoS, ReasonCode, Subscription};
use mq_proto::{Delivery, Received};

use super::Attached;
use crate::{
    hooks::{self, HookClient, HookPublish, PublishAnswer},
    router,
};

impl Attached<'_> {
    fn as_hooks_see(&self) -> HookClient<'_> {
        let principal = self.client.principal.as_ref();
        HookClient::new(&self.hold.session.client_id, principal)
    }

    /// Asks the hooks about a message, which they may replace. Returns `false` if nobody gets it: it is answered then.
    #[inline]
    pub(super) fn passes_hooks(&mut self, now: Instant, received: &mut Received) -> bool {
        let Some(called) = &self.wire.hub.hooks else {
            return true;
        };
        let publish = HookPublish {
            message: &received.message,
            qos: received.qos,
            retain: received.retain,
        };
        let answer = called.on_publish(self.as_hooks_see(), publish);
        self.take_answer(answer, now, received)
    }

    fn take_answer(
        &mut self,
        answer: PublishAnswer,
        now: Instant,
        received: &mut Received,
    ) -> bool {
        let reason = match answer {
            PublishAnswer::Deliver => return true,
            PublishAnswer::Replace(message) if router::is_too_deep(message.topic.as_bytes()) => {
                ReasonCode::TopicNameInvalid
            }
            PublishAnswer::Replace(message) => {
                received.message = message;
                return true;
            }
            PublishAnswer::Refuse(reason) => hooks::allowed_in(PacketType::PubAck, reason),
            PublishAnswer::Drop => ReasonCode::Success,
        };
        if reason.is_error() {
            let (session, topic) = (&self.hold.session, &received.message.topic);
            let hub = &self.wire.hub;
            hub.refused_publish(session, topic, hooks::REFUSED, now);
        }
        if let Some(ticket) = received.ticket.take() {
            self.wire.connection.ack(now, ticket, reason);
        }
        false
    }

    /// Asks the hooks about a subscription.
    ///
    /// # Errors
    /// If they refuse it, with the reason for SUBACK.
    pub(super) fn ask_hooks(&self, subscription: &Subscription) -> Result<(), ReasonCode> {
        let Some(called) = &self.wire.hub.hooks else {
            return Ok(());
        };
        called
            .on_subscribe(self.as_hooks_see(), subscription)
            .map_err(|reason| hooks::allowed_in(PacketType::SubAck, reason))
    }

    /// Tells the hooks of a message that the client has.
    #[inline]
    pub(super) fn note_delivered(&self, delivery: &Delivery) {
        self.note_delivered_at(&delivery.message, delivery.qos);
    }

    /// Tells the hooks of a message of that QoS that the client has.
    #[inline]
    pub(super) fn note_delivered_at(&self, message: &mq_proto::Message, qos: QoS) {
        if let Some(called) = &self.wire.hub.hooks {
            called.on_delivered(self.as_hooks_see(), message, qos);
        }
    }
}
