//! The publishing side of one connection.

use std::{sync::Arc, time::Instant};

use super::{
    RoutedMessage,
    deliver::{Delivering, MailboxWriter},
    permission::PermissionCache,
    route::RouteCache,
};
use crate::{
    hub::AppendAnswers, journal::Journal, memory_limit::MemoryLimit, metrics::Metrics,
    workers::WorkerChannels,
};

/// The publishing side of one connection: its journal, and the caches and buffers that it keeps from message to
/// message.
#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) journal: Journal,
    /// `true` if its acknowledgements can refuse a message (5.0).
    pub(crate) can_refuse: bool,
    /// Messages that the cluster has refused after they were taken; `None` without a cluster.
    pub(crate) append_answers: Option<Arc<AppendAnswers>>,
    /// `true` if its message is a session's will.
    pub(super) is_of_will: bool,
    pub(super) route_cache: RouteCache,
    pub(super) permission_cache: PermissionCache,
    pub(super) mailbox_writer: MailboxWriter,
}

impl Publisher {
    pub(in crate::hub) fn new(
        journal: Journal,
        memory_limit: &Arc<MemoryLimit>,
        worker_channels: &Arc<WorkerChannels>,
    ) -> Self {
        Self {
            journal,
            can_refuse: false,
            append_answers: None,
            is_of_will: false,
            route_cache: RouteCache::default(),
            permission_cache: PermissionCache::default(),
            mailbox_writer: MailboxWriter::new(memory_limit, worker_channels),
        }
    }

    /// Returns the step that puts the deliveries of one message into mailboxes.
    pub(in crate::hub) fn delivering<'a>(
        &'a mut self,
        metrics: &'a Metrics,
        routed: &'a mut RoutedMessage,
    ) -> Delivering<'a> {
        Delivering::new(metrics, &mut self.journal, &mut self.mailbox_writer, routed)
    }

    /// Lets the publisher wait for readers again, once the time without back-pressure is over.
    pub(crate) fn resume_backpressure(&mut self, now: Instant) {
        self.mailbox_writer.resume_backpressure(now);
    }

    /// Wakes the readers of all that was queued.
    pub(crate) fn wake_readers(&mut self) {
        self.mailbox_writer.wake_readers();
    }

    /// Drops the last answer of the access rules: the client has other rights.
    pub(crate) fn clear_permission_cache(&mut self) {
        self.permission_cache.clear();
    }
}
