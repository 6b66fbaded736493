//! The data stream of a scripted client; see [`streams`](crate::streams).

use mq_proto::LaneId;
use mq_transport::LaneClosed;

use super::{PATIENCE, Wire};
use crate::{
    packet::{PINGREQ, PUBCOMP, PUBREL, V5, ack},
    reply::{self, Packet},
    streams::{Place, Router},
};

/// The packet identifier by which a client sees that its data stream was read; no case chooses it.
const READ: u16 = 60_000;

/// The data stream of a connection.
#[derive(Debug)]
pub(super) struct Data {
    pub(super) router: Router,
    /// `None` until there is something to send on it, and after the broker has ended it.
    lane: Option<LaneId>,
    /// Something was sent on it since the broker was last seen to have read everything.
    unread: bool,
    /// The reason code with which the broker has ended it.
    failed: Option<u64>,
}

impl Wire {
    /// Puts packets on a data stream, where they may go on one.
    pub(crate) fn on_streams(self) -> Self {
        let data = Data {
            router: Router::new(),
            lane: None,
            unread: false,
            failed: None,
        };
        Self {
            data: Some(data),
            ..self
        }
    }

    /// Returns the stream for the next packet; `None` when the broker has closed the connection.
    pub(super) async fn data_lane(&mut self) -> Option<LaneId> {
        loop {
            let data = self.data.as_mut()?;
            data.unread = true;
            data.lane = data.lane.or_else(|| self.link.open_lane());
            if data.lane.is_some() || self.closed {
                return data.lane;
            }
            self.step(true, PATIENCE, "the broker grants no data stream")
                .await;
        }
    }

    /// Waits until the broker has read everything on the data stream: a release of a message that never was
    /// is answered on that stream, behind what came before.
    pub(super) async fn data_is_read(&mut self) {
        let waits = |data: &Data| data.unread && data.lane.is_some();
        if !self.data.as_ref().is_some_and(waits) {
            return;
        }
        if let Some(lane) = self.data_lane().await {
            self.put_on(lane, &ack(PUBREL, READ)).await;
        }
        while self.data.as_ref().is_some_and(waits) && !self.closed {
            self.step(true, PATIENCE, "the broker does not read its data stream")
                .await;
        }
    }

    pub(super) fn take_packets(&mut self, lane: LaneId) {
        while let Some(packet) = reply::take(self.link.received(lane)) {
            let is_read = self.data.is_some()
                && packet.first == PUBCOMP
                && packet.body.starts_with(&READ.to_be_bytes());
            match &mut self.data {
                Some(data) if is_read => data.unread = false,
                _ => self.arrived.push_back(packet),
            }
        }
    }

    pub(super) fn data_closed(&mut self, lane: LaneId, how: LaneClosed) {
        let Some(data) = &mut self.data else { return };
        if data.lane != Some(lane) {
            return;
        }
        match how {
            // The broker ends all streams before it closes.
            LaneClosed::Finished => {}
            LaneClosed::Reset(code) | LaneClosed::Stopped(code) => {
                data.lane = None;
                data.unread = false;
                data.failed = Some(code);
                data.router.data_ended();
            }
        }
    }

    /// Returns `true` if the last packet went on the data stream.
    pub(super) fn spoke_on_data(&self) -> bool {
        let place = self.data.as_ref().map(|data| data.router.place());
        place == Some(Place::Data)
    }

    /// Returns `true` if the broker has ended the data stream for an error.
    pub(super) fn data_has_failed(&self) -> bool {
        self.data.as_ref().is_some_and(|data| data.failed.is_some())
    }

    /// Waits until the broker ends the data stream alone, with the reason code as QUIC's error code. The messages on it
    /// that were not acknowledged come again on the control stream.
    pub(super) async fn refused_on_stream(&mut self, bytes: &[u8], codes: &[u8]) {
        let comes_again = |packet: &Packet| packet.first & 0xF8 == 0x38;
        let mut next = self.next().await;
        while next.as_ref().is_some_and(comes_again) {
            next = self.next().await;
        }
        assert!(next.is_none(), "{next:?} and no refusal of {bytes:02X?}");
        let failed = self.data.as_mut().and_then(|data| data.failed.take());
        let code = failed.expect("the broker closed the connection, not the data stream");
        // Before 5.0 there are no reason codes to compare it with.
        assert!(
            self.version < V5 || codes.iter().any(|wanted| u64::from(*wanted) == code),
            "reason {code:#04x}, not {codes:02X?}: {bytes:02X?}"
        );
        self.send(PINGREQ).await;
        let mut next = self.next().await;
        while next.as_ref().is_some_and(comes_again) {
            next = self.next().await;
        }
        let next = next.expect("the connection should go on");
        assert_eq!(next.first, 0xD0, "PINGRESP should come, not {next:?}");
    }
}
