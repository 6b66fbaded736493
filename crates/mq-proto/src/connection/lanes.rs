//! Data lanes: further ordered streams of packets beside the control lane.
//!
//! A lane has its own order of packets and acknowledgements, and its own topic aliases. The session is one
//! for all lanes. Outgoing packet identifiers are unique over all lanes; so are incoming ones, if the peer
//! says so in CONNECT or CONNACK.
//!
//! On lanes that a server has opened they are unique over all lanes in any case.
//!
//! | the lane ends while | identifiers of the session | identifiers by lane |
//! |---|---|---|
//! | a sent QoS 1 message is unacknowledged | sent again on the control lane | the same |
//! | a sent QoS 2 message is incomplete | goes on on the control lane | ends: never sent twice |
//! | a received message waits for its acknowledgement | acknowledged on the control lane | not acknowledged |
//! | a received QoS 2 message waits for PUBREL | goes on on the control lane | ends |

use std::time::Instant;

use bytes::BytesMut;
use mq_codec::{Packet, QoS, ReasonCode};
use mq_lane::LaneEnd;

use super::{AckQueue, Connection, Role, State};
use crate::{
    Event, FlowError, LaneId, ProtocolError,
    alias::ReceiveAliases,
    flow::{DISCARD_STATE, Flow},
    session::Receiving,
};

/// State of one data lane.
#[derive(Debug)]
pub(super) struct DataLane {
    /// Incoming messages that wait for their acknowledgement.
    pub(super) acks: AckQueue,
    pub(super) receive_aliases: ReceiveAliases,
    /// Incoming QoS 2 messages of a peer that counts identifiers by lane.
    pub(super) receiving: Receiving,
    /// The number of `receiving` messages that an earlier lane of the flow has brought.
    pub(super) carried: usize,
    /// Flow of the lane; `None` if the lane is no flow.
    pub(super) flow: Option<Flow>,
    /// Number of QoS 1 and 2 messages that were sent on the lane and are not complete.
    in_flight: usize,
    /// `true` once a packet, or the head of a flow, was received or sent on the lane.
    pub(super) begun: bool,
    /// `true` once the peer has ended its direction of the lane.
    peer_finished: bool,
    own_side: OwnSide,
}

/// The direction of a lane that this side writes.
///
/// ```text
/// Open --finish_lane--> Finishing --all is complete--> Finished
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OwnSide {
    Open,
    /// Messages on the lane are still to be completed; the owner sends no further one.
    Finishing,
    /// The end of the direction is in the outbox.
    Finished,
}

impl DataLane {
    pub(super) fn held_bytes(&self) -> usize {
        size_of::<Self>() + self.receive_aliases.bytes()
    }
}

/// Way in which a lane ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leave {
    /// The lane ends in order.
    Done,
    /// The lane ends out of order.
    Broken,
    /// The lane ends, and the state of its flow, if it has one, is discarded.
    Discarded,
}

impl Connection {
    /// Takes the complete packets off a data lane.
    pub(super) fn handle_data_bytes(&mut self, now: Instant, lane: LaneId, buffer: &mut BytesMut) {
        if self.outbox.is_aborting(lane) {
            buffer.clear();
            return;
        }
        // A call without new bytes is no sign of life.
        let has_read = !buffer.is_empty();
        let mut had_packet = false;
        let mut discarded = self.skip_payload(lane, buffer);
        while self.state == State::Open && self.failure.is_none() {
            let result = match discarded.take() {
                Some(discarded) => self.discarded_received(now, lane, *discarded),
                None => match self.next_of_lane(now, lane, buffer) {
                    Ok(None) => break,
                    Ok(Some(packet)) => self.handle_data_packet(now, lane, packet),
                    Err(error) => Err(error),
                },
            };
            had_packet = true;
            match result {
                Ok(()) => {}
                // They count over all lanes.
                Err(
                    error @ (ProtocolError::ReceiveMaximum(_)
                    | ProtocolError::Flow(FlowError::TooManyRecoverAttempts)),
                ) => self.failure = Some(error),
                Err(error) => {
                    buffer.clear();
                    return self.fail_lane(now, lane, error);
                }
            }
        }
        if has_read {
            self.keep_alive.read(now, had_packet, 0);
        }
        if self.state != State::Open {
            return;
        }
        let data = self.lanes.get(&lane);
        if data.is_some_and(|data| data.peer_finished) {
            if buffer.is_empty() && !self.discarding.contains_key(&lane) {
                self.finish_if_done(now, lane);
            } else if !self.waits_for_handshake(lane, buffer) {
                buffer.clear();
                self.fail_lane(now, lane, ProtocolError::Incomplete(lane));
            }
        }
    }

    /// Returns `true` if the rest of a lane may be whole, and waits for the link's handshake.
    fn waits_for_handshake(&mut self, lane: LaneId, buffer: &[u8]) -> bool {
        self.is_too_early(buffer) || self.early.is_some() && !self.data_lane(lane).begun
    }

    /// Takes the next packet of a lane, after its head.
    fn next_of_lane(
        &mut self,
        now: Instant,
        lane: LaneId,
        buffer: &mut BytesMut,
    ) -> Result<Option<Packet>, ProtocolError> {
        if !self.take_head(now, lane, buffer)? || self.is_too_early(buffer) {
            return Ok(None);
        }
        Ok(self.decoder.decode(buffer)?)
    }

    fn handle_data_packet(
        &mut self,
        now: Instant,
        lane: LaneId,
        packet: Packet,
    ) -> Result<(), ProtocolError> {
        match packet {
            Packet::Publish(_)
            | Packet::PubAck(_)
            | Packet::PubRec(_)
            | Packet::PubRel(_)
            | Packet::PubComp(_)
            | Packet::Subscribe(_)
            | Packet::SubAck(_)
            | Packet::Unsubscribe(_)
            | Packet::UnsubAck(_) => self.handle_packet(now, lane, packet),
            Packet::PingReq | Packet::PingResp if self.may_ping(lane) => {
                self.handle_packet(now, lane, packet)
            }
            other => Err(ProtocolError::Unexpected(other.packet_type())),
        }
    }

    /// Records the peer's end of a data lane, which the link has received. Bytes of the lane that the
    /// connection has left in their buffer stay there; call [`handle_bytes`](Self::handle_bytes) once more
    /// after this. The connection ends its side of the lane once it has answered everything.
    pub fn handle_lane_closed(&mut self, now: Instant, lane: LaneId, how: LaneEnd) {
        if self.state == State::Closed {
            return;
        }
        match how {
            LaneEnd::Finish if self.outbox.is_aborting(lane) => {}
            LaneEnd::Finish => self.data_lane(lane).peer_finished = true,
            LaneEnd::Abort(DISCARD_STATE) => self.leave_lane(now, lane, Leave::Discarded),
            LaneEnd::Abort(_) => self.leave_lane(now, lane, Leave::Broken),
        }
    }

    /// Ends this direction of a data lane, once every message sent on it is complete and every message received
    /// on it is answered. Packets that the peer still sends on it after that are answered on the control lane,
    /// if both sides count packet identifiers over all lanes; if not, a message of QoS 1 or 2 ends the lane.
    pub fn finish_lane(&mut self, lane: LaneId) {
        if self.state == State::Closed {
            return;
        }
        let own_side = &mut self.data_lane(lane).own_side;
        if *own_side == OwnSide::Open {
            *own_side = OwnSide::Finishing;
        }
        self.finish_if_complete(lane);
    }

    pub(super) fn finish_if_complete(&mut self, lane: LaneId) {
        let data = self.lanes.get(&lane);
        let is_finishing = data.is_some_and(|data| data.own_side == OwnSide::Finishing);
        if !is_finishing || !self.is_lane_quiet(lane) {
            return;
        }
        if let Some(data) = self.lanes.get_mut(&lane) {
            data.own_side = OwnSide::Finished;
        }
        self.outbox.end(lane, LaneEnd::Finish);
        if lane.is_unidirectional() && self.is_own(lane) {
            // The peer has no side of it that could end.
            self.lanes.remove(&lane);
        }
    }

    /// Returns `true` if no exchange is in flight on a data lane, in either direction: every message that was
    /// sent is complete, no message waits to be sent again, every message that was received is answered and released.
    #[must_use]
    pub fn is_lane_quiet(&self, lane: LaneId) -> bool {
        let data = self.lanes.get(&lane);
        data.is_none_or(|data| {
            data.in_flight == 0
                && data.acks.len() == 0
                && data.receiving.len() == 0
                && !self.waits_for(lane)
        })
    }

    /// Ends a data lane at once, in both directions, with an application error code. Exchanges on it end, or go
    /// on on the control lane.
    pub fn abort_lane(&mut self, now: Instant, lane: LaneId, code: u32) {
        if self.state != State::Closed {
            self.leave_lane(now, lane, Leave::Broken);
            self.outbox.end(lane, LaneEnd::Abort(code));
        }
    }

    /// Server: begins a data lane that the link has opened, for messages to the client.
    pub fn begin_lane(&mut self, lane: LaneId) {
        self.data_lane(lane);
    }

    /// Returns `true` if packets may be sent on a data lane: it is bidirectional, has begun, and neither side has
    /// ended its direction. On a lane of its own a server may send although its client has ended its direction.
    #[must_use]
    pub fn is_lane_open(&self, lane: LaneId) -> bool {
        let is_own = self.is_servers_own(lane);
        let takes_more =
            |data: &DataLane| data.own_side == OwnSide::Open && (is_own || !data.peer_finished);
        let data = self.lanes.get(&lane);
        data.is_some_and(|data| takes_more(data)) && !lane.is_unidirectional()
    }

    /// Returns `true` if this side has opened the lane.
    pub(super) fn is_own(&self, lane: LaneId) -> bool {
        lane.is_server_opened() == (self.role == Role::Server)
    }

    /// Returns `true` if this side is the server and has opened the lane. A client may finish its side of such a lane
    /// at once and answer on the control lane.
    fn is_servers_own(&self, lane: LaneId) -> bool {
        self.role == Role::Server && self.is_own(lane)
    }

    /// Returns `true` if both sides count packet identifiers over all lanes of the session, so that no exchange
    /// ends with a lane that breaks.
    #[must_use]
    pub fn has_session_ids(&self) -> bool {
        self.session_ids
    }

    /// Ends a lane that either side has finished, once everything on it is answered.
    pub(super) fn finish_if_done(&mut self, now: Instant, lane: LaneId) {
        self.finish_if_complete(lane);
        let Some(data) = self.lanes.get(&lane) else {
            return;
        };
        let has_finished = data.own_side == OwnSide::Finished;
        let is_over =
            data.own_side != OwnSide::Open && data.in_flight == 0 && !self.waits_for(lane);
        let goes_on = self.is_servers_own(lane) && !is_over;
        if data.peer_finished && data.acks.len() == 0 && !goes_on {
            self.leave_lane(now, lane, Leave::Done);
            if !has_finished {
                self.outbox.end(lane, LaneEnd::Finish);
            }
        }
    }

    fn fail_lane(&mut self, now: Instant, lane: LaneId, error: ProtocolError) {
        let (leave, code) = self.end_by(lane, &error);
        self.leave_lane(now, lane, leave);
        self.outbox.end(lane, LaneEnd::Abort(code));
        self.events.push_back(Event::LaneFailed { lane, error });
    }

    /// Removes a lane on which nothing is sent any more: its exchanges end, or go on on the control lane.
    pub(super) fn leave_lane(&mut self, now: Instant, lane: LaneId, leave: Leave) {
        let Some(gone) = self.lanes.remove(&lane) else {
            return;
        };
        self.discarding.remove(&lane);
        self.lanes_at_qos1 -= gone.acks.at_qos1();
        self.lanes_at_qos2 -= gone.receiving.len();
        self.lanes_carried -= gone.carried;
        self.requests.retain(|id, on| {
            let lost = *on == lane;
            if lost {
                self.events.push_back(Event::RequestLost { packet_id: *id });
            }
            !lost
        });
        let sent = self.session.leave_lane(lane);
        if let Some(flow) = gone.flow
            && self.leave_flow(
                now,
                flow,
                &sent,
                gone.receiving,
                gone.receive_aliases,
                leave,
            )
        {
            // Others may go in the place of messages that wait for the flow's next lane.
            if self.state == State::Open {
                self.send_again(now);
            }
            return;
        }
        let mut anew = Vec::new();
        for id in sent {
            let state = self.session.outgoing(id);
            let is_qos1 = state.is_some_and(|state| state.is_published_at(QoS::AtLeastOnce));
            if self.is_of_session(lane) || is_qos1 {
                anew.push(id);
            } else {
                self.complete(now, id, ReasonCode::UnspecifiedError);
            }
        }
        self.window.send_anew(anew);
        if self.state == State::Open {
            self.send_again(now);
        }
    }

    /// Returns the state of a data lane, which begins with its first use.
    pub(super) fn data_lane(&mut self, lane: LaneId) -> &mut DataLane {
        let receive_aliases = match (&self.server_config, &self.client_config) {
            _ if self.version < mq_codec::Version::V5 => 0,
            (Some(config), _) => config.topic_alias_maximum,
            (None, Some(config)) => config.topic_alias_maximum,
            (None, None) => 0,
        };
        let maximum = self.acks.maximum();
        self.lanes.entry(lane).or_insert_with(|| {
            Box::new(DataLane {
                acks: AckQueue::new(maximum),
                receive_aliases: ReceiveAliases::new(receive_aliases),
                receiving: Receiving::default(),
                carried: 0,
                flow: None,
                in_flight: 0,
                begun: false,
                peer_finished: false,
                own_side: OwnSide::Open,
            })
        })
    }

    /// Returns the acknowledgements that are due on a lane; `None` for a lane that has ended.
    pub(super) fn acks_of(&mut self, lane: LaneId) -> Option<&mut AckQueue> {
        if lane == LaneId::CONTROL {
            return Some(&mut self.acks);
        }
        self.lanes.get_mut(&lane).map(|lane| &mut lane.acks)
    }

    pub(super) fn aliases_of(&mut self, lane: LaneId) -> &mut ReceiveAliases {
        if lane == LaneId::CONTROL {
            return &mut self.receive_aliases;
        }
        &mut self.data_lane(lane).receive_aliases
    }

    /// Returns `true` if exchanges on a lane belong to the session.
    pub(super) fn is_of_session(&self, lane: LaneId) -> bool {
        let is_servers = lane.is_server_opened() && !self.counts_by_flow();
        lane == LaneId::CONTROL || self.session_ids || is_servers
    }

    /// Acts on the incoming QoS 2 messages of a lane, and keeps count of those that are not of the session.
    pub(super) fn receiving_on<T>(
        &mut self,
        lane: LaneId,
        act: impl FnOnce(&mut Receiving) -> T,
    ) -> T {
        if self.is_of_session(lane) {
            return act(&mut self.session.incoming);
        }
        let data = self.data_lane(lane);
        let before = data.receiving.len();
        let outcome = act(&mut data.receiving);
        let after = data.receiving.len();
        let released = data.carried.min(before.saturating_sub(after));
        data.carried -= released;
        self.lanes_carried -= released;
        self.lanes_at_qos2 = self.lanes_at_qos2 + after - before;
        outcome
    }

    /// Returns the lane for a message at `qos`: the control lane for a client's QoS 2 message whose exchange would
    /// end with `lane`.
    pub(super) fn lane_for(&self, lane: LaneId, qos: QoS) -> LaneId {
        let breaks = qos == QoS::ExactlyOnce && self.role == Role::Client && !self.session_ids;
        if breaks { LaneId::CONTROL } else { lane }
    }

    /// Returns `lane` if answers may be sent on it, or else the control lane.
    pub(super) fn open_lane_or_control(&self, lane: LaneId) -> LaneId {
        match self.lanes.get(&lane) {
            Some(_) if !lane.is_unidirectional() && !self.has_finished(lane) => lane,
            _ => LaneId::CONTROL,
        }
    }

    /// Returns `true` if this side has ended its direction of a lane.
    pub(super) fn has_finished(&self, lane: LaneId) -> bool {
        let data = self.lanes.get(&lane);
        data.is_some_and(|data| data.own_side == OwnSide::Finished)
    }

    /// Returns the lane for answers to packets on `lane`, which has not ended; `None` if they cannot be sent,
    /// since the peer would take their identifiers for those of the control lane.
    pub(super) fn answers_on(&self, lane: LaneId) -> Option<LaneId> {
        if lane.is_unidirectional() {
            return Some(LaneId::CONTROL);
        }
        match self.has_finished(lane) {
            true if self.is_of_session(lane) => Some(LaneId::CONTROL),
            true => None,
            false => Some(lane),
        }
    }

    pub(super) fn sent_on(&mut self, lane: LaneId) {
        if lane != LaneId::CONTROL {
            self.data_lane(lane).in_flight += 1;
        }
    }

    pub(super) fn completed_on(&mut self, lane: LaneId) {
        if let Some(data) = self.lanes.get_mut(&lane) {
            data.in_flight -= 1;
            self.finish_if_complete(lane);
        }
    }
}
