//! Probes of a UDP port, which tell a closed port from a server.
//!
//! A probe has a socket of its own: an endpoint's socket is shared by all connections and never connected to a peer, so
//! that connections can migrate, and quinn does not read its error queue (`IP_RECVERR`). As over TCP, a forged report of
//! a closed port can end an attempt to connect.

use std::{io, net::SocketAddr};

use tokio::{
    net::UdpSocket,
    time::{sleep, timeout},
};

use crate::{Connector, attempts::ATTEMPT_DELAY, socket::connect_udp};

/// Length of a datagram that a server answers whatever its version (RFC 9000 §14.1).
const MIN_INITIAL_LEN: usize = 1200;

/// A version that no server has, so that all answer with Version Negotiation (RFC 9000 §6.3).
const RESERVED_VERSION: [u8; 4] = [0x3a, 0x4a, 0x5a, 0x6a];

impl Connector {
    /// Resolves when the network reports that nobody listens at a UDP port, or that there is no way to it. Asks only
    /// after 250 ms, when most servers have answered a handshake.
    pub(super) async fn quic_port_closed(&self, peer: SocketAddr) -> io::Error {
        sleep(ATTEMPT_DELAY).await;
        let error = self.peer_refused(peer).await;
        if reports_closed(&error) {
            return error;
        }
        // The probe has failed, which says nothing about the server.
        std::future::pending().await
    }

    /// Waits until a QUIC server answers at a port, 250 ms at most: servers need not answer, and packets are lost.
    ///
    /// # Errors
    /// If the network reports that nobody listens at the port, or that there is no way to it.
    pub(super) async fn quic_server_answers(&self, peer: SocketAddr) -> io::Result<()> {
        let answered = async {
            let options = &self.shared.options;
            let socket = connect_udp(peer, options.local_address, &options.socket)?;
            let socket = UdpSocket::from_std(socket)?;
            socket.send(&unknown_version()).await?;
            socket.recv(&mut [0; 16]).await
        };
        match timeout(ATTEMPT_DELAY, answered).await {
            Ok(Err(error)) if reports_closed(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

fn reports_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NetworkUnreachable
    )
}

/// Returns a datagram that a QUIC server answers with Version Negotiation (RFC 9000 §17.2), and keeps no state for.
fn unknown_version() -> [u8; MIN_INITIAL_LEN] {
    const ID_LEN: u8 = 8;
    let mut datagram = rand::random::<[u8; MIN_INITIAL_LEN]>();
    // Long header, fixed bit.
    datagram[0] |= 0xc0;
    datagram[1..5].copy_from_slice(&RESERVED_VERSION);
    datagram[5] = ID_LEN;
    datagram[6 + usize::from(ID_LEN)] = ID_LEN;
    datagram
}
