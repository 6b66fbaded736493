//! The broker's status as JSON, for `/v1/status` and the stream of events.

use serde_json::json;

use super::Admin;
use crate::metrics::ByReason;

pub(super) fn status(admin: &Admin) -> serde_json::Value {
    let metrics = &admin.hub.metrics;
    let reasons = |counts: &ByReason| -> serde_json::Value {
        let counts = counts.by_reason().into_iter();
        counts
            .map(|(reason, count)| (reason.to_owned(), count.into()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let listeners = admin.listeners.iter().map(|listener| {
        json!({
            "address": listener.address.to_string(),
            "transport": listener.address.scheme.to_string(),
            "connections": listener.connections.get(),
            "accepted": listener.accepted.get(),
            "handshakes_failed": listener.handshakes_failed.get(),
        })
    });
    let bridges = admin.bridges.iter().map(|one| {
        let state = admin.hub.operators().bridge_status(&one.session);
        let (load, rules) = (state.load, state.rules);
        json!({
            "name": one.name,
            "client_id": one.client_id.as_str(),
            "addresses": one.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "connected": state.is_connected,
            "queued": load.messages,
            "queued_limit": rules.limits.messages,
            "queued_bytes": load.bytes,
            "queued_limit_bytes": rules.limits.bytes,
            "overflow": rules.policy.overflow.name(),
            "spilled": load.spilled,
            "spilled_bytes": load.spilled_bytes,
            "spilled_limit_bytes": rules.spill_limit(),
            "age_s": rules.age.map(|age| age.as_secs()),
            "dropped": state.dropped,
            "links": one.links.accepted.get(),
            "links_failed": one.links.handshakes_failed.get(),
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": admin.began.elapsed().as_secs(),
        "not_ready": admin.why_not_ready(),
        "connections": metrics.connections.get(),
        "handshakes": metrics.handshakes.get(),
        "sessions": metrics.sessions.get(),
        "subscriptions": metrics.subscriptions.get(),
        "retained": metrics.retained.get(),
        "memory_used_bytes": admin.hub.memory_used(),
        "memory_limit_bytes": admin.hub.memory_limit(),
        "messages_received": metrics.messages_in.get(),
        "messages_sent": metrics.messages_out.get(),
        "messages_dropped": metrics.dropped.get(),
        "connections_refused": reasons(&metrics.refused),
        "log_ins_refused": reasons(&metrics.log_ins_refused),
        "publishes_refused": reasons(&metrics.publishes_refused),
        "subscriptions_refused": reasons(&metrics.subscriptions_refused),
        "readers_evicted": reasons(&metrics.evicted),
        "listeners": listeners.collect::<Vec<_>>(),
        "bridges": bridges.collect::<Vec<_>>(),
    })
}
