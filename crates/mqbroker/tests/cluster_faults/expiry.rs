//! Messages that expire: to whom they have to come, and to whom they may not.

use std::time::Duration;

use mq_client::QoS;

use crate::{publisher::Sent, reader::Read};

/// The servers' clocks agree within this. A message counts as expired later by so much.
const TOLERANCE: Duration = Duration::from_secs(5);

/// A node may take so long to notice that a reader has gone: the keep-alive, and as long as the node was stopped. What it
/// has begun to deliver meanwhile may come later (§3.3.2.3.3), as may what it delivers to a connection that is not complete.
const NOTICED: Duration = Duration::from_secs(12);

/// A reader that is connected for so long after the acknowledgement gets the message.
const IN_TIME: Duration = Duration::from_secs(20);

/// Rule that holds for a message and a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The reader was connected in time, and has to get it.
    Owed,
    /// The reader was absent until it had expired: it does not come after this time, in milliseconds.
    Gone(u64),
    Either,
}

pub(crate) fn verdict(read: &Read, sent: &Sent) -> Verdict {
    let (Some(expiry), Some(acknowledged)) = (sent.expiry, sent.acknowledged) else {
        return Verdict::Either;
    };
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap();
    let end = acknowledged + ms(expiry + TOLERANCE);
    if read.spans.lack(sent.at, end, ms(NOTICED)) {
        return Verdict::Gone(end);
    }
    let in_time = acknowledged + ms(IN_TIME);
    // It expires so long after a node has it, which is later than it was sent.
    let is_early = in_time <= sent.at + ms(expiry);
    if sent.qos != QoS::AtMostOnce && is_early && read.spans.cover(sent.at, in_time) {
        return Verdict::Owed;
    }
    Verdict::Either
}
