//! The way of packets from one host to the next.

use std::collections::{HashMap, HashSet};

use super::{
    MEMORY_NS, PROMPT_NS,
    packets::{Flow, Packet, Packets},
};

/// A packet with payload that a host sent, and its arrival at the next host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentPacket {
    pub(super) packet: Packet,
    /// `true` if the packet has bytes that no packet before it had; over QUIC, whose packets are encrypted, always.
    pub(super) is_new: bool,
    /// Number of times that the same bytes were sent.
    pub(super) copies: usize,
    /// Time of the first arrival of the packet or a copy of it; `None` if all were lost.
    pub(super) arrived_ns: Option<u64>,
}

impl SentPacket {
    pub(super) fn sent_ns(&self) -> u64 {
        self.packet.at_ns
    }

    /// Returns `true` if a record of lost packets has all copies of this one.
    pub(super) fn is_in(&self, lost: &HashMap<u64, usize>) -> bool {
        lost.get(&self.packet.content)
            .is_some_and(|lost| *lost >= self.copies)
    }

    /// Returns `true` if both packets have bytes of TCP's stream in common.
    fn repeats(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (self.packet.tcp_bytes(), other.packet.tcp_bytes()) else {
            return false;
        };
        // The numbers wrap around.
        let offset = own.start.wrapping_sub(others.start);
        let other_len = others.end.wrapping_sub(others.start);
        let own_len = own.end.wrapping_sub(own.start);
        offset < other_len || offset.wrapping_neg() < own_len
    }
}

/// The packets with messages that went from one host to the next, and when the sender received something.
#[derive(Debug)]
pub(super) struct Hop {
    /// The packets that may have a message, in the order of their sending.
    sent: Vec<SentPacket>,
    /// The packets by their arrival: arrival, place in `sent`.
    arrived: Vec<(u64, usize)>,
    /// The packets that the sender received of the receiver: arrival, and sending if the receiver's capture has it.
    answers: Vec<(u64, Option<u64>)>,
}

impl Hop {
    /// Puts the captures of both hosts together, for the flows in which the first host sends messages. A datagram with
    /// less payload than `least_len` has no message; a segment of TCP may have the end of one.
    pub(super) fn between(
        sender: &Packets,
        receiver: &Packets,
        flows: &HashSet<Flow>,
        least_len: usize,
    ) -> Self {
        let mut arrivals: HashMap<u64, u64> = HashMap::new();
        for packet in &receiver.0 {
            if flows.contains(&packet.flow) {
                arrivals.entry(packet.content).or_insert(packet.at_ns);
            }
        }
        // What left after the receiver's capture had ended is not known to be lost.
        let end = receiver.0.last().map_or(0, |packet| packet.at_ns);
        let mut sent: Vec<SentPacket> = Vec::new();
        let mut places = HashMap::new();
        let mut ends: HashMap<Flow, u32> = HashMap::new();
        for packet in &sender.0 {
            let least = if packet.flow.is_tcp { 1 } else { least_len };
            if !flows.contains(&packet.flow) || packet.payload_len < least || packet.at_ns > end {
                continue;
            }
            let place = *places.entry(packet.content).or_insert(sent.len());
            match sent.get_mut(place) {
                Some(first) => first.copies += 1,
                None => sent.push(SentPacket {
                    packet: packet.clone(),
                    is_new: packet.tcp_bytes().is_none_or(|bytes| {
                        let end = ends.entry(packet.flow).or_insert(bytes.start);
                        let is_new = is_after(bytes.end, *end);
                        if is_new {
                            *end = bytes.end;
                        }
                        is_new
                    }),
                    copies: 1,
                    arrived_ns: arrivals.get(&packet.content).copied(),
                }),
            }
        }
        let mut arrived: Vec<_> = (0..sent.len())
            .filter_map(|place| Some((sent[place].arrived_ns?, place)))
            .collect();
        arrived.sort_unstable();
        let is_answer = |packet: &&Packet| flows.contains(&packet.flow.reversed());
        let left = receiver.0.iter().filter(is_answer);
        let left: HashMap<_, _> = left.map(|packet| (packet.content, packet.at_ns)).collect();
        let answers = sender.0.iter().filter(is_answer);
        let answers = answers.map(|packet| (packet.at_ns, left.get(&packet.content).copied()));
        Self {
            sent,
            arrived,
            answers: answers.collect(),
        }
    }

    /// Returns the place of the first packet that was sent at this time or later.
    pub(super) fn first_from(&self, ns: u64) -> Option<usize> {
        let place = self.sent.partition_point(|packet| packet.sent_ns() < ns);
        (place < self.sent.len()).then_some(place)
    }

    /// Returns the place of the first packet with new bytes that was sent at this time or later.
    pub(super) fn first_new_from(&self, ns: u64) -> Option<usize> {
        let place = self.first_from(ns)?;
        let new = self.sent[place..].iter().position(|packet| packet.is_new)?;
        Some(place + new)
    }

    /// Returns the place of the packet with the end of each message, given the times at which the messages were ready to
    /// be sent, ascending; a message has `least_len` bytes at least.
    ///
    /// A sender that had to wait puts several messages into a packet, and parts of them: how many is told by the packets'
    /// lengths.
    pub(super) fn carriers(&self, ready_ns: &[u64], least_len: usize) -> Vec<Option<usize>> {
        let Some(lengths) = Lengths::of(&self.sent, least_len) else {
            return vec![None; ready_ns.len()];
        };
        // Bytes for messages that the packet at `place` still has; below zero if it has the beginning of one alone.
        let room = |place: usize| {
            self.sent
                .get(place)
                .map_or(0, |packet| lengths.room(packet))
        };
        let (mut place, mut left) = (0, room(0));
        let mut carriers = Vec::with_capacity(ready_ns.len());
        let mut before = None;
        for ready in ready_ns {
            // A packet that leaves at once has the message, whatever was counted: a message before it may never have
            // been sent.
            let is_apart = before.is_none_or(|before| ready - before > PROMPT_NS);
            let first = self.first_new_from(*ready);
            if let Some(first) = first.filter(|first| {
                is_apart && self.sent[*first].sent_ns() - ready <= PROMPT_NS && *first != place
            }) {
                (place, left) = (first, room(first));
            }
            before = Some(*ready);
            while let Some(packet) = self.sent.get(place) {
                if packet.sent_ns() < *ready {
                    place += 1;
                    left = room(place);
                } else if left * 2 < lengths.each || !packet.is_new {
                    place += 1;
                    left += room(place);
                } else {
                    break;
                }
            }
            carriers.push((place < self.sent.len()).then_some(place));
            left -= lengths.each;
        }
        carriers
    }

    /// Returns the place of the packet that arrived last until this time.
    pub(super) fn last_arrived(&self, until_ns: u64) -> Option<usize> {
        let count = self.arrived.partition_point(|(at, _)| *at <= until_ns);
        Some(self.arrived[count.checked_sub(1)?].1)
    }

    pub(super) fn packet(&self, place: usize) -> &SentPacket {
        &self.sent[place]
    }

    /// Returns the places of the lost packets of the same flow that were sent before the one at `place`, within
    /// [`MEMORY_NS`].
    pub(super) fn lost_before(&self, place: usize) -> impl Iterator<Item = usize> {
        let packet = &self.sent[place].packet;
        let from = self.first_from(packet.at_ns.saturating_sub(MEMORY_NS));
        (from.unwrap_or(place)..place).filter(|place| {
            let earlier = &self.sent[*place];
            earlier.arrived_ns.is_none() && earlier.packet.flow == packet.flow
        })
    }

    /// Returns `true` if the packet at `again` may have the data of the one at `original`. Over TCP the numbers of the
    /// bytes tell. Over QUIC, whose packets are encrypted, it is one that no message made go: `is_first` tells whether a
    /// message was ready just before.
    fn may_repeat(&self, again: usize, original: usize, is_first: &impl Fn(u64) -> bool) -> bool {
        let (again, original) = (&self.sent[again], &self.sent[original]);
        if again.packet.flow.is_tcp {
            again.repeats(original)
        } else {
            !is_first(again.sent_ns())
        }
    }

    /// Returns the number of lost packets that had the data of the packet at `original`: that one, and those sent after
    /// it and before the one at `repair`.
    pub(super) fn times_lost(
        &self,
        original: usize,
        repair: usize,
        is_first: &impl Fn(u64) -> bool,
    ) -> usize {
        let later = original + 1..repair.max(original + 1);
        let lost = later.filter(|place| self.sent[*place].arrived_ns.is_none());
        1 + lost
            .filter(|place| self.may_repeat(*place, original, is_first))
            .count()
    }

    /// Returns the time at which the data of the packet at `place` had arrived, with the packet or with one that may
    /// repeat it.
    fn data_arrived_ns(&self, place: usize, is_first: &impl Fn(u64) -> bool) -> Option<u64> {
        let packet = &self.sent[place];
        packet.arrived_ns.or_else(|| {
            let end = self.first_from(packet.sent_ns() + MEMORY_NS);
            let again = (place + 1..end.unwrap_or(self.sent.len()))
                .filter(|again| self.sent[*again].arrived_ns.is_some())
                .find(|again| self.may_repeat(*again, place, is_first));
            self.sent[again?].arrived_ns
        })
    }

    /// Returns the time at which the receiver's program could have the data of the packet at `first`, which the transport
    /// delivers after the data of all packets before it.
    pub(super) fn released_ns(&self, first: usize, is_first: &impl Fn(u64) -> bool) -> Option<u64> {
        let own = self.data_arrived_ns(first, is_first)?;
        let before = self.outstanding(first, own, is_first);
        let arrivals = before.filter_map(|place| self.data_arrived_ns(place, is_first));
        Some(arrivals.fold(own, u64::max))
    }

    /// Returns the places of the lost packets before the one at `first`, of the same flow, whose data had not arrived at
    /// this time.
    pub(super) fn outstanding(
        &self,
        first: usize,
        ns: u64,
        is_first: &impl Fn(u64) -> bool,
    ) -> impl Iterator<Item = usize> {
        self.lost_before(first).filter(move |place| {
            let arrived = self.data_arrived_ns(*place, is_first);
            arrived.is_none_or(|arrived| arrived > ns)
        })
    }

    /// Returns `true` if the packet at `place` was not made by a message that was ready just before: its bytes had been
    /// sent before over TCP; over QUIC, `is_first` tells.
    pub(super) fn is_repair(&self, place: usize, is_first: &impl Fn(u64) -> bool) -> bool {
        let packet = &self.sent[place];
        if packet.packet.flow.is_tcp {
            !packet.is_new
        } else {
            !is_first(packet.sent_ns())
        }
    }

    /// Returns `None` if no packet of the receiver arrived within `within_ns` before `ns`; else the time for which the
    /// receiver had held that packet back, since a packet with payload had arrived there.
    pub(super) fn answered_before(&self, ns: u64, within_ns: u64) -> Option<u64> {
        let count = self.answers.partition_point(|(at, _)| *at <= ns);
        let (at, left) = *self.answers.get(count.checked_sub(1)?)?;
        if ns - at > within_ns {
            return None;
        }
        let held = left.and_then(|left| {
            let cause = self.last_arrived(left)?;
            left.checked_sub(self.sent[cause].arrived_ns?)
        });
        Some(held.unwrap_or_default())
    }
}

/// Bytes that packets and messages take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lengths {
    /// Bytes that a packet has beside its messages.
    overhead: i64,
    /// Bytes of a message.
    each: i64,
}

impl Lengths {
    /// Estimates them from the usual lengths of packets with one message and with two; `None` without packets.
    fn of(sent: &[SentPacket], least_len: usize) -> Option<Self> {
        let lengths = sent.iter().map(|packet| packet.packet.payload_len);
        let mut lengths: Vec<_> = lengths.filter(|length| *length >= least_len).collect();
        lengths.sort_unstable();
        let usual = |from: usize, one_in: usize| {
            let groups = lengths.chunk_by(|one, other| one == other);
            let mut usual = groups.filter(|group| group.len() * one_in >= lengths.len());
            usual.find(|group| group[0] >= from).map(|group| group[0])
        };
        let one = usual(0, 20).or_else(|| lengths.first().copied())?;
        let two = usual(one + least_len, 100).filter(|two| *two <= 2 * one);
        let each = two.map_or(one, |two| two - one);
        Some(Self {
            overhead: i64::try_from(one - each).ok()?,
            each: i64::try_from(each).ok()?,
        })
    }

    /// Returns the bytes of messages that a packet has; none if all its bytes were sent before.
    fn room(self, packet: &SentPacket) -> i64 {
        if !packet.is_new {
            return 0;
        }
        let length = i64::try_from(packet.packet.payload_len).unwrap_or(i64::MAX);
        (length - self.overhead).max(0)
    }
}

/// Returns `true` if one number of TCP's stream is after another; the numbers wrap around.
fn is_after(one: u32, other: u32) -> bool {
    let distance = one.wrapping_sub(other);
    distance != 0 && distance < u32::MAX / 2
}
