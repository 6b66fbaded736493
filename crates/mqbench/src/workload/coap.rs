//! Messages of a `CoAP` thing to a `CoAP` server on a schedule (RFC 7252), in the place of MQTT's publisher, broker and subscriber.
//!
//! A message is a PUT. At QoS 0 it is non-confirmable, with the option that asks for no response (RFC 7967). At QoS 1 it is
//! confirmable, and is sent again by the timers of RFC 7252 §4.8 until its acknowledgement comes; one at a time is under
//! way (NSTART). Nothing is encrypted.

use std::{
    collections::{HashSet, VecDeque},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use coap_lite::{CoapOption, MessageClass, MessageType, Packet, RequestType, ResponseType};
use mq_codec::QoS;
use mq_measure::{
    Counts, Samples, Tracker,
    schedule::{Lateness, OpenLoop},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    net::UdpSocket,
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{
    RunClock,
    e2e::{LEAD, Plan, lock},
    nanoseconds,
    send_thread::{SendThread, wait_until},
};
use crate::payload::{Payloads, sequence};

/// Time until the first retransmission, before its random factor: `ACK_TIMEOUT` of RFC 7252 §4.8.
const ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// Greatest factor of the first timeout: `ACK_RANDOM_FACTOR`.
const ACK_RANDOM_FACTOR: f64 = 1.5;

/// Number of retransmissions after which a message is given up: `MAX_RETRANSMIT`.
const MAX_RETRANSMIT: u32 = 4;

/// Path of the resource.
const PATH: &[u8] = b"cell";

/// The option No-Response, and its value for no response of success (RFC 7967 §2.1).
const NO_RESPONSE: CoapOption = CoapOption::Unknown(258);
const OF_SUCCESS: u8 = 2;

/// Largest datagram that either side reads.
const MOST: usize = 65_535;

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct CoapResult {
    /// Origin of the samples' times, in nanoseconds since the Unix epoch.
    pub(crate) origin_ns: u64,
    pub(crate) samples: Samples,
    pub(crate) counts: Counts,
    pub(crate) lateness: Lateness,
}

/// A server that notes what arrives. A drop ends it.
struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends the plan's messages from one socket to the other.
///
/// # Errors
/// If a socket fails.
pub(crate) async fn run(
    plan: &Plan,
    qos: QoS,
    clock: RunClock,
    (thing, server): (std::net::UdpSocket, std::net::UdpSocket),
    to: SocketAddr,
) -> anyhow::Result<CoapResult> {
    let tracker = Arc::new(Mutex::new(Tracker::new(plan.count)));
    let server = UdpSocket::from_std(server).context("cannot use the server's socket")?;
    let serving = serve(server, clock, Arc::clone(&tracker));
    let _server = Server(tokio::spawn(serving));
    let thing = UdpSocket::from_std(thing).context("cannot use the thing's socket")?;
    thing.connect(to).await.context("cannot reach the server")?;

    let (due, sequence_numbers) = mpsc::unbounded_channel();
    let schedule = OpenLoop::new(nanoseconds(LEAD), plan.interval);
    let (count, own) = (plan.count, Arc::clone(&tracker));
    let pacing = SendThread::start(move |stop: &AtomicBool| {
        let mut lateness = Lateness::new();
        for seq in 0..count {
            let intended = schedule.intended_ns(seq);
            wait_until(clock.instant(intended));
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let sent = clock.now_ns();
            lock(&own).sent(seq, intended, sent);
            lateness.note(intended, sent);
            let _ = due.send(seq);
        }
        Ok(lateness)
    });
    let thing = Thing {
        socket: thing,
        payloads: Payloads::new(plan.size, plan.seed),
        random: StdRng::seed_from_u64(plan.seed),
        confirmable: qos > QoS::AtMostOnce,
    };
    thing.send(sequence_numbers).await?;
    let lateness = pacing.finish().await?;
    // What is under way still arrives.
    let deadline = Instant::now() + plan.grace;
    while !lock(&tracker).is_complete() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let tracker = lock(&tracker);
    Ok(CoapResult {
        origin_ns: clock.origin_ns(),
        samples: tracker.samples(),
        counts: tracker.counts(),
        lateness,
    })
}

/// Notes each message that arrives, and acknowledges those that ask for it. A message whose identifier has come before is
/// acknowledged again, and not noted (RFC 7252 §4.5).
async fn serve(socket: UdpSocket, clock: RunClock, tracker: Arc<Mutex<Tracker>>) {
    let mut datagram = vec![0; MOST];
    let mut seen = HashSet::new();
    while let Ok((count, from)) = socket.recv_from(&mut datagram).await {
        let now = clock.now_ns();
        let Ok(packet) = Packet::from_bytes(&datagram[..count]) else {
            continue;
        };
        if packet.header.get_type() == MessageType::Confirmable
            && let Ok(answer) = acknowledgement(&packet).to_bytes()
        {
            let _ = socket.send_to(&answer, from).await;
        }
        if seen.insert(packet.header.message_id) {
            lock(&tracker).received(sequence(&packet.payload).unwrap_or(u64::MAX), now);
        }
    }
}

/// Makes the acknowledgement of a request, with its response in it.
fn acknowledgement(request: &Packet) -> Packet {
    let mut answer = Packet::new();
    answer.header.set_type(MessageType::Acknowledgement);
    answer.header.code = MessageClass::Response(ResponseType::Changed);
    answer.header.message_id = request.header.message_id;
    answer.set_token(request.get_token().to_vec());
    answer
}

struct Thing {
    socket: UdpSocket,
    payloads: Payloads,
    random: StdRng,
    confirmable: bool,
}

impl Thing {
    /// Sends the messages whose numbers come, until no more come and none is under way.
    async fn send(mut self, mut due: mpsc::UnboundedReceiver<u64>) -> anyhow::Result<()> {
        let mut waiting = VecDeque::new();
        let mut all_due = false;
        let mut under_way: Option<UnderWay> = None;
        let mut datagram = vec![0; MOST];
        loop {
            if under_way.is_none()
                && let Some(seq) = waiting.pop_front()
            {
                under_way = self.begin(seq).await?;
                continue;
            }
            if all_due && under_way.is_none() && waiting.is_empty() {
                return Ok(());
            }
            let again_at = under_way.as_ref().map(|one| one.again_at);
            tokio::select! {
                seq = due.recv(), if !all_due => match seq {
                    Some(seq) => waiting.push_back(seq),
                    None => all_due = true,
                },
                received = self.socket.recv(&mut datagram) => {
                    // A closed port is reported here: the message is sent again by its timer.
                    let packet = received.ok().and_then(|count| Packet::from_bytes(&datagram[..count]).ok());
                    let is_for = |one: &UnderWay| {
                        let id = packet.as_ref().map(|packet| packet.header.message_id);
                        id == Some(one.message_id)
                    };
                    under_way = under_way.filter(|one| !is_for(one));
                }
                () = sleep_until(again_at.unwrap_or_else(Instant::now)), if again_at.is_some() => {
                    if let Some(one) = under_way.take() {
                        under_way = self.again(one).await?;
                    }
                }
            }
        }
    }

    /// Sends a message for the first time; returns it if its acknowledgement is waited for.
    async fn begin(&mut self, seq: u64) -> anyhow::Result<Option<UnderWay>> {
        let mut packet = Packet::new();
        packet.header.code = MessageClass::Request(RequestType::Put);
        // A run has fewer messages than there are identifiers.
        let message_id = u16::try_from(seq & 0xFFFF).unwrap_or_default();
        packet.header.message_id = message_id;
        packet.set_token(message_id.to_be_bytes().to_vec());
        packet.add_option(CoapOption::UriPath, PATH.to_vec());
        packet.payload = self.payloads.make(seq).to_vec();
        let kind = if self.confirmable {
            MessageType::Confirmable
        } else {
            packet.add_option(NO_RESPONSE, vec![OF_SUCCESS]);
            MessageType::NonConfirmable
        };
        packet.header.set_type(kind);
        let bytes = packet.to_bytes().ok();
        let bytes = bytes.context("cannot encode a CoAP message")?;
        let timeout = ACK_TIMEOUT.mul_f64(self.random.random_range(1.0..=ACK_RANDOM_FACTOR));
        self.transmit(&bytes).await?;
        Ok(self.confirmable.then(|| UnderWay {
            message_id,
            bytes,
            timeout,
            again_at: Instant::now() + timeout,
            retransmissions: 0,
        }))
    }

    /// Sends a message again, or gives it up.
    async fn again(&mut self, mut one: UnderWay) -> anyhow::Result<Option<UnderWay>> {
        if one.retransmissions == MAX_RETRANSMIT {
            return Ok(None);
        }
        one.retransmissions += 1;
        one.timeout *= 2;
        one.again_at = Instant::now() + one.timeout;
        self.transmit(&one.bytes).await?;
        Ok(Some(one))
    }

    async fn transmit(&self, bytes: &[u8]) -> anyhow::Result<()> {
        match self.socket.send(bytes).await {
            // A report of an earlier datagram.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Ok(()),
            sent => sent.map(drop).context("cannot send"),
        }
    }
}

/// A confirmable message whose acknowledgement has not come.
struct UnderWay {
    message_id: u16,
    bytes: Vec<u8>,
    /// Time between the last transmission and the next one.
    timeout: Duration,
    again_at: Instant,
    retransmissions: u32,
}
