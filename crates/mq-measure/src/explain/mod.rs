//! Reasons why single messages were late: what each waited for, from the captures of the hosts on its way.
//!
//! ```text
//! intended   sent        first packet    packet that         forwarded   the same on
//! |          |           |               brought it          |           the second hop
//! |----------|-----------|...............|-------------------|---- ... --> received
//!   schedule    sender      lost, or       link                broker
//!                           behind a loss
//! ```
//!
//! A message is explained backwards, from its arrival: the packet that arrived last at the subscriber before the message
//! did, the broker's sending of it, the packet that arrived last at the broker before that, and so on. So the encryption
//! of TLS and QUIC does not matter, and neither do the programs. A packet is lost if the next host's capture lacks it.
//!
//! Both captures have one clock, that of one machine. A message has a packet of its own unless several are sent
//! within one millisecond. Messages of more than [`MOST_BYTES`] take several packets, and are not explained.

mod hop;
mod packets;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::{Sample, Samples, stats::nearest_rank};
use hop::Hop;
pub use packets::{Flow, Packet, Packets};

/// The most bytes of payload that a message may have: such a message fits into one packet.
pub const MOST_BYTES: usize = 1_000;

/// Time within which a host that is not busy acts on what it received.
const PROMPT_NS: u64 = 1_000_000;

/// Time within which QUIC and TCP retransmit after the acknowledgement that tells of a loss.
const REACTION_NS: u64 = 500_000;

/// The longest time that a loss is taken to hold back later messages.
const MEMORY_NS: u64 = 10_000_000_000;

/// Share of the packets near the messages' times that a flow has to have to be taken for the messages': one in this many.
/// A run may have had a connection for each of its rounds.
const SHARE: usize = 50;

/// The captures of a run.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    /// The publisher's host.
    pub publisher: Packets,
    /// The broker's host.
    pub broker: Packets,
    /// The subscriber's host; the publisher's if it is the same.
    pub subscriber: Packets,
    /// The packets that the emulated links lost, as the emulator recorded them; empty where it did not.
    pub lost: Packets,
}

/// A hop of a message's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HopName {
    /// From the publisher to the broker.
    Publisher,
    /// From the broker to the subscriber.
    Subscriber,
}

/// A host on a message's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Host {
    /// The publisher's host.
    Publisher,
    /// The broker's host.
    Broker,
    /// The subscriber's host.
    Subscriber,
}

/// Event that let a lost packet's data be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// An acknowledgement told of the loss.
    Acknowledgement,
    /// A timer had run out: TCP's retransmission time-out, or QUIC's probe time-out.
    Timer,
}

/// Reason for a wait of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case", tag = "cause")]
pub enum Cause {
    /// Packets with the message were lost.
    Lost {
        /// The hop that lost them.
        hop: HopName,
        /// Number of packets with the message that were lost.
        times: usize,
        /// Event that let the last of them be sent again.
        repair: Repair,
    },
    /// The message had arrived, but a packet sent before it had been lost, and the transport delivers in order.
    BehindLoss {
        /// The hop that lost the packet.
        hop: HopName,
        /// Event that let the lost packet's data be sent again.
        repair: Repair,
    },
    /// The message waited until an acknowledgement opened the sender's window: congestion control, or flow control.
    Window {
        /// The hop whose sender it was.
        hop: HopName,
    },
    /// A program or a kernel held the message back.
    Held {
        /// The host.
        at: Host,
    },
    /// The link's own delay: propagation, jitter and queue.
    Link {
        /// The hop.
        hop: HopName,
    },
}

/// A part of a message's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// Reason for the wait.
    #[serde(flatten)]
    pub cause: Cause,
    /// Length of the wait, in nanoseconds.
    pub ns: u64,
}

/// Explanation of one message's latency.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The message's number in its run.
    pub seq: u64,
    /// Time from the intended sending to the arrival, in nanoseconds.
    pub latency_ns: u64,
    /// The parts of the way in their order, which make up the latency; empty if the captures lack the message's packets.
    pub waits: Vec<Wait>,
    /// If the longest wait was for a loss that an acknowledgement told of: how long the receiver had held the
    /// acknowledgement back at least, in nanoseconds: since the last packet that it had received.
    pub ack_delay_ns: Option<u64>,
    /// `true` if the emulator's record of lost packets has the packets that the longest wait takes for lost: the
    /// message's first packet is in it for [`Cause::Lost`], another packet and not that one for [`Cause::BehindLoss`],
    /// not that one for [`Cause::Link`]. `None` for other causes, and without such a record.
    pub confirmed: Option<bool>,
}

impl Explanation {
    /// Returns the longest wait; `None` if the captures lack the message's packets.
    #[must_use]
    pub fn longest(&self) -> Option<Wait> {
        longest(&self.waits)
    }
}

fn longest(waits: &[Wait]) -> Option<Wait> {
    waits.iter().max_by_key(|wait| wait.ns).copied()
}

/// The late messages of a run, explained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Number of messages that arrived.
    pub messages: usize,
    /// Median latency of all of them, in nanoseconds.
    pub median_ns: u64,
    /// The explained messages, the latest first.
    pub late: Vec<Explanation>,
}

/// Explains the latest messages of a run: this share of those that arrived, but ten at least.
///
/// `samples` have times since the Unix epoch; `size` is the payload of a message in bytes, up to [`MOST_BYTES`]. Returns
/// `None` if no message arrived.
#[must_use]
pub fn explain(samples: &Samples, captures: &Captures, size: usize, share: f64) -> Option<Report> {
    let mut arrived: Vec<(u64, Sample)> = samples
        .0
        .iter()
        .filter_map(|sample| Some((sample.latency_intended_ns()?, *sample)))
        .collect();
    arrived.sort_by_key(|(latency, _)| *latency);
    let (median_ns, _) = nearest_rank(&arrived, 50.0)?;
    let run = Run::new(samples, captures, size);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a count"
    )]
    let wanted = (arrived.len() as f64 * share).ceil() as usize;
    let late = arrived.iter().rev().take(wanted.max(10));
    Some(Report {
        messages: arrived.len(),
        median_ns,
        late: late
            .map(|(latency, sample)| run.explain(*latency, sample))
            .collect(),
    })
}

/// A run whose packets are known.
struct Run {
    publisher: Hop,
    subscriber: Hop,
    /// Times at which messages were sent, ascending.
    sent: Vec<u64>,
    /// The publisher's packet with each message, in the order of `sent`.
    carriers: Vec<Option<usize>>,
    /// Number of copies of each packet that the emulator lost, by the packet's content; `None` if it did not record them.
    lost: Option<HashMap<u64, usize>>,
}

/// A message's way, or a part of it.
#[derive(Default)]
struct Way {
    waits: Vec<Wait>,
    hops: Vec<HopPackets>,
}

/// The packets of a message on one hop.
struct HopPackets {
    hop: HopName,
    /// The acknowledgement delay of a loss that an acknowledgement told of.
    ack_delay_ns: Option<u64>,
    /// Place of the message's first packet.
    first: usize,
    /// Places of the packets before it whose data had not arrived when the first packet did; without any, the lost packets before
    /// the retransmission that let the message go on.
    others: Vec<usize>,
}

impl Run {
    fn new(samples: &Samples, captures: &Captures, size: usize) -> Self {
        let least_len = size.min(MOST_BYTES);
        let mut sent: Vec<u64> = samples.0.iter().map(|sample| sample.sent_ns).collect();
        sent.sort_unstable();
        let mut received: Vec<u64> = samples.0.iter().filter_map(|one| one.received_ns).collect();
        received.sort_unstable();
        let after_sending = |at: u64| since_last(&sent, at);
        let before_arrival = |at: u64| {
            let next = received.partition_point(|received| *received < at);
            received.get(next).map(|received| received - at)
        };
        let out = flows_between(&captures.publisher, &captures.broker);
        let out = flows_near(&captures.publisher, out, least_len, after_sending);
        let back = flows_between(&captures.broker, &captures.subscriber);
        let back = flows_near(&captures.subscriber, back, least_len, before_arrival);
        let hop = |sender, receiver, flows| Hop::between(sender, receiver, flows, least_len);
        let lost = &captures.lost.0;
        let publisher = hop(&captures.publisher, &captures.broker, &out);
        Self {
            carriers: publisher.carriers(&sent, least_len),
            publisher,
            subscriber: hop(&captures.broker, &captures.subscriber, &back),
            sent,
            lost: (!lost.is_empty()).then(|| {
                let mut copies = HashMap::new();
                for packet in lost {
                    *copies.entry(packet.content).or_default() += 1;
                }
                copies
            }),
        }
    }

    fn explain(&self, latency_ns: u64, sample: &Sample) -> Explanation {
        let way = self.way(sample);
        Explanation {
            seq: sample.seq,
            latency_ns,
            ack_delay_ns: way.as_ref().and_then(Way::ack_delay_of_longest),
            confirmed: way.as_ref().and_then(|way| self.agrees(way)),
            waits: way.map(|way| way.waits).unwrap_or_default(),
        }
    }

    fn way(&self, sample: &Sample) -> Option<Way> {
        let received = sample.received_ns?;
        let number = self.sent.partition_point(|sent| *sent < sample.sent_ns);
        let first = (*self.carriers.get(number)?)?;
        let is_first = |at: u64| since_last(&self.sent, at).is_some_and(|ns| ns <= PROMPT_NS);
        // The broker sends what it has just received.
        let is_forwarded = |at: u64| {
            let before = self.publisher.last_arrived(at);
            let arrived = before.and_then(|place| self.publisher.packet(place).arrived_ns);
            arrived.is_some_and(|arrived| at - arrived <= PROMPT_NS)
        };
        let last = self.subscriber.last_arrived(received)?;
        let forwarded = self.subscriber.packet(last).sent_ns();
        let mut way = Way::default();
        way.add(
            Cause::Held {
                at: Host::Publisher,
            },
            sample.sent_ns.saturating_sub(sample.intended_ns),
        );
        // The second hop's last packet tells when the broker had the message, unless it repaired a loss.
        let (from_broker, there_ns) = if self.subscriber.lost_before(last).next().is_some()
            && self.subscriber.is_repair(last, &is_forwarded)
        {
            let released = self.publisher.released_ns(first, &is_first)?;
            let released = released.min(forwarded);
            (self.subscriber.first_new_from(released)?, released)
        } else {
            (last, forwarded)
        };
        let name = HopName::Subscriber;
        let sent = self.subscriber.packet(from_broker).sent_ns();
        let at_broker = self.subscriber.held_back(name, sent);
        let ready = (sample.sent_ns, there_ns);
        self.publisher.add_way(
            &mut way,
            HopName::Publisher,
            first,
            ready,
            &is_first,
            at_broker,
        )?;
        let ready = (there_ns, received);
        let after = Cause::Held {
            at: Host::Subscriber,
        };
        self.subscriber
            .add_way(&mut way, name, from_broker, ready, &is_forwarded, after)?;
        Some(way)
    }

    /// Returns `true` if the emulator's record of lost packets says the same; `None` if it does not have the answer.
    fn agrees(&self, way: &Way) -> Option<bool> {
        let lost = self.lost.as_ref()?;
        let cause = longest(&way.waits)?.cause;
        let name = match cause {
            Cause::Lost { hop, .. } | Cause::BehindLoss { hop, .. } | Cause::Link { hop } => hop,
            Cause::Window { .. } | Cause::Held { .. } => return None,
        };
        let hop = match name {
            HopName::Publisher => &self.publisher,
            HopName::Subscriber => &self.subscriber,
        };
        let packets = way.hop(name)?;
        let is_lost = |place: usize| hop.packet(place).is_in(lost);
        let own = is_lost(packets.first);
        Some(match cause {
            Cause::Lost { .. } => own,
            Cause::BehindLoss { .. } => !own && packets.others.iter().any(|place| is_lost(*place)),
            _ => !own,
        })
    }
}

impl Hop {
    /// Returns what a packet waited for that was sent at this time, later than it could have been.
    fn held_back(&self, hop: HopName, sent_ns: u64) -> Cause {
        if self.answered_before(sent_ns, REACTION_NS).is_some() {
            return Cause::Window { hop };
        }
        let at = match hop {
            HopName::Publisher => Host::Publisher,
            HopName::Subscriber => Host::Broker,
        };
        Cause::Held { at }
    }

    /// Adds the way of a message whose first packet is at `first`. It was ready to be sent at `ready_ns`, and went on at
    /// `there_ns`; `after` is what it waited for at the hop's end.
    fn add_way(
        &self,
        way: &mut Way,
        hop: HopName,
        first: usize,
        (ready_ns, there_ns): (u64, u64),
        is_first: &impl Fn(u64) -> bool,
        after: Cause,
    ) -> Option<()> {
        let brought = self.last_arrived(there_ns)?;
        let (own, decisive) = (self.packet(first), self.packet(brought));
        let decisive_ns = decisive.arrived_ns?;
        let arrived_ns = own.arrived_ns.unwrap_or(u64::MAX);
        let mut others: Vec<_> = self.outstanding(first, arrived_ns, is_first).collect();
        if others.is_empty() && self.is_repair(brought, is_first) {
            // What a retransmission let go waited for it, whichever loss that repaired.
            others = self.lost_before(brought).collect();
        }
        let ack_delay_ns = self.answered_before(decisive.sent_ns(), REACTION_NS);
        let repair = ack_delay_ns.map_or(Repair::Timer, |_| Repair::Acknowledgement);
        // The ends of the parts of the way.
        let mut parts = vec![(self.held_back(hop, own.sent_ns()), own.sent_ns())];
        match own.arrived_ns {
            None => {
                let times = self.times_lost(first, brought, is_first);
                parts.push((Cause::Lost { hop, times, repair }, decisive.sent_ns()));
                parts.push((Cause::Link { hop }, decisive_ns));
            }
            Some(arrived) => {
                parts.push((Cause::Link { hop }, arrived));
                if brought != first && !others.is_empty() && decisive_ns > arrived + PROMPT_NS {
                    parts.push((Cause::BehindLoss { hop, repair }, decisive_ns));
                }
            }
        }
        parts.push((after, there_ns));
        let mut since = ready_ns;
        for (cause, until) in parts {
            let until = until.clamp(since, there_ns.max(since));
            way.add(cause, until - since);
            since = until;
        }
        way.hops.push(HopPackets {
            hop,
            ack_delay_ns,
            first,
            others,
        });
        Some(())
    }
}

impl Way {
    fn add(&mut self, cause: Cause, ns: u64) {
        self.waits.push(Wait { cause, ns });
    }

    fn hop(&self, name: HopName) -> Option<&HopPackets> {
        self.hops.iter().find(|one| one.hop == name)
    }

    fn ack_delay_of_longest(&self) -> Option<u64> {
        match longest(&self.waits)?.cause {
            Cause::Lost { hop, .. } | Cause::BehindLoss { hop, .. } => self.hop(hop)?.ack_delay_ns,
            _ => None,
        }
    }
}

/// Returns the time from the last of these times, ascending, until `at`; `None` if all are later.
fn since_last(times: &[u64], at: u64) -> Option<u64> {
    let count = times.partition_point(|time| *time <= at);
    Some(at - times[count.checked_sub(1)?])
}

/// Returns the flows in which the first host sends to the second: whose packets it saw earlier.
fn flows_between(sender: &Packets, receiver: &Packets) -> HashSet<Flow> {
    let arrivals = receiver.0.iter();
    let arrivals: HashMap<_, _> = arrivals
        .map(|packet| (packet.content, packet.at_ns))
        .collect();
    let known = sender.0.iter().filter_map(|packet| {
        let arrived = arrivals.get(&packet.content)?;
        (packet.at_ns < *arrived).then_some(packet.flow)
    });
    known.collect()
}

/// Returns those of the flows that have the messages' packets: many, at the times of the messages, have payload enough.
/// `distance` is the time between a packet and the message that it may have.
fn flows_near(
    packets: &Packets,
    mut flows: HashSet<Flow>,
    least_len: usize,
    distance: impl Fn(u64) -> Option<u64>,
) -> HashSet<Flow> {
    let mut hits: HashMap<Flow, usize> = HashMap::new();
    let mut all = 0;
    for packet in &packets.0 {
        let is_near = || distance(packet.at_ns).is_some_and(|ns| ns <= REACTION_NS);
        if packet.payload_len >= least_len && flows.contains(&packet.flow) && is_near() {
            all += 1;
            *hits.entry(packet.flow).or_default() += 1;
        }
    }
    flows.retain(|flow| hits.get(flow).is_some_and(|hits| hits * SHARE >= all));
    flows
}
