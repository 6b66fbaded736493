//! Parts of the tests of several files of the hub.

use std::{sync::Arc, time::Duration};

use mq_codec::{ByteStr, QoS, Subscription, TopicFilter, TopicName};
use mq_proto::{Message, Received};

use super::{
    HeldSession, Hub, HubParts, HubSettings, OwnTopics, Publisher, ReadAhead, RoutedMessage,
};
use crate::{
    MailboxLimits, Quotas,
    auth::TakeOverPolicy,
    broker_mark::BrokerMark,
    clock,
    journal::Journal,
    router::LaneSlot,
    store::{SessionChange, Snapshot, Store, User},
    store_writer::StorePatience,
};

impl Hub {
    /// Makes a hub with the default settings but for `quotas`.
    pub(super) fn for_test(quotas: Quotas, store: Option<Arc<dyn Store>>) -> Self {
        let settings = HubSettings {
            quotas,
            take_over: TakeOverPolicy::SameUser,
            store_patience: StorePatience::default(),
            mark: BrokerMark::random(),
            own_topics: OwnTopics::default(),
            bridge_mailboxes: std::collections::HashMap::new(),
        };
        let parts = HubParts {
            store,
            ..HubParts::default()
        };
        Self::new(settings, parts, Snapshot::default())
    }

    /// Makes a hub whose mailboxes have room for one message each; the store takes the others.
    pub(super) fn with_mailboxes_of_one(store: Arc<dyn Store>) -> Self {
        let mailbox = MailboxLimits {
            messages: 1,
            bytes: 1 << 20,
        };
        let quotas = Quotas {
            mailbox,
            ..Quotas::default()
        };
        Self::for_test(quotas, Some(store))
    }

    /// Begins a session that outlives its connection, with one subscription at QoS 1.
    pub(super) async fn begin(
        &self,
        client_id: &ByteStr,
        filter: &str,
        journal: &mut Journal,
    ) -> HeldSession {
        let user = User::Anonymous;
        let hold = self.attach(client_id, true, &user, None, journal).await;
        let mut hold = hold.unwrap();
        hold.session.make_persistent();
        let attached = SessionChange::Attached { expiry: None, user };
        journal.record_of(&hold.session, attached);
        hold.session.mailbox.connect();
        let wanted = Subscription {
            filter: TopicFilter::new(filter).unwrap(),
            options: QoS::AtLeastOnce.into(),
        };
        let granted = self.subscribe(&mut hold, &wanted, None, LaneSlot::CONTROL, journal);
        assert!(!granted.is_error());
        hold
    }

    /// Leaves a session without a connection, for an hour.
    pub(super) fn leave(&self, hold: HeldSession) {
        hold.session.mailbox.disconnect(core::iter::empty());
        let (now, away) = (clock::now(), Some(Duration::from_hours(1)));
        let nothing = ReadAhead::default();
        self.detach(hold, now, None, away, nothing, &mut self.journal());
    }

    /// Publishes messages at QoS 1 to the topic `t`.
    pub(super) fn publish_for_test(
        &self,
        count: usize,
        publisher: &mut Publisher,
    ) -> Vec<RoutedMessage> {
        let message = Message::new(TopicName::new("t").unwrap(), "x");
        let messages = (0..count).map(|_| {
            let received = Received::own(message.clone(), QoS::AtLeastOnce);
            self.publish(None, received, clock::now(), publisher)
        });
        messages.collect()
    }
}
