//! Messages over a link of 25 ms, one each 10 ms, whose packets are lost as each test says.

use std::net::{Ipv4Addr, SocketAddr};

use super::*;

const MS: u64 = 1_000_000;
/// Delay of the first hop; the second has a tenth of a millisecond.
const DELAY: u64 = 25 * MS;
const SHORT: u64 = MS / 10;
const SIZE: usize = 100;

fn address(host: u8, port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, host), port).into()
}

fn flow(is_tcp: bool, from: u8, to: u8) -> Flow {
    Flow {
        is_tcp,
        from: address(from, u16::from(from)),
        to: address(to, u16::from(to)),
    }
}

/// Captures as they fill.
#[derive(Default)]
struct Net {
    is_tcp: bool,
    captures: Captures,
    samples: Vec<Sample>,
    next_content: u64,
}

impl Net {
    fn new(is_tcp: bool) -> Self {
        Self {
            is_tcp,
            ..Self::default()
        }
    }

    /// Adds a packet on the first hop, and its arrival unless it is lost; `seq` is the TCP number of its payload.
    fn publish(&mut self, at_ns: u64, seq: u32, is_lost: bool) {
        let flow = flow(self.is_tcp, 1, 2);
        let packet = self.packet(at_ns, flow, SIZE + 42, seq);
        let arrived = Packet {
            at_ns: at_ns + DELAY,
            ..packet.clone()
        };
        self.captures.publisher.0.push(packet.clone());
        if is_lost {
            self.captures.lost.0.push(packet);
        } else {
            self.captures.broker.0.push(arrived);
        }
    }

    /// Adds an acknowledgement of the broker that the publisher receives at this time.
    fn acknowledge(&mut self, at_ns: u64) {
        let flow = flow(self.is_tcp, 1, 2).reversed();
        let packet = self.packet(at_ns, flow, 0, 0);
        self.captures.broker.0.push(Packet {
            at_ns: at_ns - DELAY,
            ..packet.clone()
        });
        self.captures.publisher.0.push(packet);
    }

    /// Adds a packet of the broker to the subscriber.
    fn forward(&mut self, at_ns: u64, is_lost: bool) {
        let flow = flow(self.is_tcp, 3, 4);
        let packet = self.packet(
            at_ns,
            flow,
            SIZE + 42,
            u32::try_from(at_ns / MS).unwrap() * 1_000,
        );
        let arrived = Packet {
            at_ns: at_ns + SHORT,
            ..packet.clone()
        };
        self.captures.broker.0.push(packet.clone());
        if is_lost {
            self.captures.lost.0.push(packet);
        } else {
            self.captures.subscriber.0.push(arrived);
        }
    }

    fn packet(&mut self, at_ns: u64, flow: Flow, payload_len: usize, seq: u32) -> Packet {
        self.next_content += 1;
        Packet {
            at_ns,
            flow,
            payload_len,
            content: self.next_content,
            tcp_seq: self.is_tcp.then_some(seq),
        }
    }

    fn message(&mut self, sent_ns: u64, received_ns: u64) {
        self.samples.push(Sample {
            seq: self.samples.len() as u64,
            intended_ns: sent_ns,
            sent_ns,
            received_ns: Some(received_ns),
        });
    }

    /// Adds messages that nothing happens to, from one to another, one each 10 ms.
    fn well(&mut self, messages: std::ops::Range<u64>) {
        for number in messages {
            let at = time(number);
            self.publish(at, number_in_stream(number), false);
            self.forward(at + DELAY, false);
            self.message(at, at + DELAY + SHORT);
        }
    }

    fn latest(mut self) -> Explanation {
        for packets in [
            &mut self.captures.publisher,
            &mut self.captures.broker,
            &mut self.captures.subscriber,
        ] {
            packets.0.sort_by_key(|packet| packet.at_ns);
        }
        let samples = Samples(self.samples);
        let report = explain(&samples, &self.captures, SIZE, 0.01).unwrap();
        assert_eq!(report.late.len(), 10);
        let explained = report.late[0].clone();
        let all: u64 = explained.waits.iter().map(|wait| wait.ns).sum();
        assert_eq!(all, explained.latency_ns, "{explained:?}");
        explained
    }
}

/// Time of a message's sending.
fn time(number: u64) -> u64 {
    1_000_000 * MS + number * 10 * MS
}

/// Number of a message's first byte in TCP's stream, which wraps around within these tests.
fn number_in_stream(number: u64) -> u32 {
    let length = u32::try_from(SIZE + 42).unwrap();
    (u32::MAX - 2_900).wrapping_add(u32::try_from(number).unwrap() * length)
}

const PUBLISHER: HopName = HopName::Publisher;

#[test]
fn a_lost_packets_message_waits_until_an_acknowledgement_tells_of_the_loss() {
    for is_tcp in [false, true] {
        let mut net = Net::new(is_tcp);
        net.well(0..20);
        let (lost, again) = (time(20), time(20) + 60 * MS + MS / 10);
        net.publish(lost, number_in_stream(20), true);
        // The broker held the acknowledgement back for 5 ms after the last message that it received.
        net.acknowledge(time(19) + 2 * DELAY + 5 * MS);
        net.acknowledge(lost + 60 * MS);
        net.publish(again, number_in_stream(20), false);
        net.forward(again + DELAY, false);
        net.message(lost, again + DELAY + SHORT);
        let explained = net.latest();
        let cause = Cause::Lost {
            hop: PUBLISHER,
            times: 1,
            repair: Repair::Acknowledgement,
        };
        let wait = Wait {
            cause,
            ns: again - lost,
        };
        assert_eq!(explained.longest(), Some(wait));
        assert_eq!(explained.ack_delay_ns, Some(20 * MS));
        assert_eq!(explained.confirmed, Some(true));
    }
}

#[test]
fn a_retransmission_that_is_lost_too_counts_twice_and_is_repeated_by_a_timer() {
    for is_tcp in [false, true] {
        let mut net = Net::new(is_tcp);
        net.well(0..20);
        let lost = time(20);
        net.publish(lost, number_in_stream(20), true);
        net.publish(lost + 73 * MS, number_in_stream(20), true);
        net.publish(lost + 205 * MS, number_in_stream(20), false);
        net.forward(lost + 205 * MS + DELAY, false);
        net.message(lost, lost + 205 * MS + DELAY + SHORT);
        let longest = net.latest().longest().unwrap();
        let cause = Cause::Lost {
            hop: PUBLISHER,
            times: 2,
            repair: Repair::Timer,
        };
        assert_eq!((longest.cause, longest.ns), (cause, 205 * MS));
    }
}

#[test]
fn a_message_that_has_arrived_waits_behind_a_loss() {
    let mut net = Net::new(false);
    net.well(0..20);
    net.publish(time(20), 0, true);
    net.publish(time(21), 0, false);
    let again = time(20) + 80 * MS;
    net.publish(again, 0, false);
    net.forward(again + DELAY, false);
    // The second is later by its schedule: it is the one explained.
    net.message(time(20), again + DELAY + SHORT - 20 * MS);
    net.message(time(21), again + DELAY + SHORT);
    let explained = net.latest();
    let longest = explained.longest().unwrap();
    let cause = Cause::BehindLoss {
        hop: PUBLISHER,
        repair: Repair::Timer,
    };
    assert_eq!((longest.cause, longest.ns), (cause, 70 * MS));
    assert_eq!(explained.confirmed, Some(true));
}

#[test]
fn what_the_emulator_did_not_lose_is_not_confirmed() {
    let mut net = Net::new(false);
    net.well(0..20);
    net.publish(time(20), 0, true);
    net.publish(time(20) + 80 * MS, 0, false);
    net.forward(time(20) + 80 * MS + DELAY, false);
    net.message(time(20), time(20) + 80 * MS + DELAY + SHORT);
    net.captures.lost.0[0].content = u64::MAX;
    assert_eq!(net.latest().confirmed, Some(false));
}

#[test]
fn new_bytes_of_tcp_wait_for_the_window_and_not_for_a_retransmission_before_them() {
    let mut net = Net::new(true);
    net.well(0..20);
    let sent = time(20);
    // Older bytes again, then an acknowledgement that lets the new ones go.
    net.publish(sent + 20 * MS, number_in_stream(19), false);
    net.acknowledge(sent + 90 * MS);
    net.publish(sent + 90 * MS + MS / 10, number_in_stream(20), false);
    net.forward(sent + 90 * MS + MS / 10 + DELAY, false);
    net.message(sent, sent + 90 * MS + MS / 10 + DELAY + SHORT);
    let longest = net.latest().longest().unwrap();
    let cause = Cause::Window { hop: PUBLISHER };
    assert_eq!((longest.cause, longest.ns), (cause, 90 * MS + MS / 10));
}

#[test]
fn a_loss_on_the_second_hop_is_told_from_one_on_the_first() {
    let mut net = Net::new(false);
    net.well(0..20);
    let sent = time(20);
    net.publish(sent, 0, false);
    net.forward(sent + DELAY, true);
    net.forward(sent + DELAY + 60 * MS, false);
    net.message(sent, sent + DELAY + 60 * MS + SHORT);
    let explained = net.latest();
    let longest = explained.longest().unwrap();
    let cause = Cause::Lost {
        hop: HopName::Subscriber,
        times: 1,
        repair: Repair::Timer,
    };
    assert_eq!((longest.cause, longest.ns), (cause, 60 * MS));
    assert_eq!(explained.confirmed, Some(true));
}

#[test]
fn a_host_that_sleeps_is_named() {
    let mut net = Net::new(false);
    net.well(0..20);
    let sent = time(20);
    net.publish(sent, 0, false);
    net.forward(sent + DELAY + 70 * MS, false);
    net.message(sent, sent + DELAY + 70 * MS + SHORT);
    let longest = net.latest().longest().unwrap();
    let cause = Cause::Held { at: Host::Broker };
    assert_eq!((longest.cause, longest.ns), (cause, 70 * MS));
}

#[test]
fn messages_without_packets_have_no_explanation() {
    let mut net = Net::new(false);
    net.well(0..20);
    net.captures = Captures::default();
    let samples = Samples(net.samples);
    let report = explain(&samples, &net.captures, SIZE, 0.01).unwrap();
    assert!(report.late.iter().all(|one| one.longest().is_none()));
    assert_eq!(
        explain(&Samples::default(), &net.captures, SIZE, 0.01),
        None
    );
}
