//! Each model under every interleaving with up to two preemptions; `LOOM_MAX_PREEMPTIONS` for more.

use mq_models::{mailbox_models as mailbox, store::disk};

fn model(of: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.max_branches = 10_000;
    builder.check(of);
}

macro_rules! models {
    ($($module:ident :: $name:ident)*) => {
        $(#[test] fn $name() { model($module::$name); })*
    };
}

models! {
    mailbox::a_reader_is_told
    mailbox::who_waits_for_room_is_woken
    mailbox::who_waits_for_room_finds_out_that_nobody_reads
    mailbox::a_session_moves_to_another_connection
    mailbox::nothing_counts_when_everything_was_read
    mailbox::qos0_is_read_or_counted
    disk::every_call_is_committed_in_order
    disk::nothing_is_collected_for_a_thread_that_has_ended
}
