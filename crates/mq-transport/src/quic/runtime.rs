//! What quinn runs on.

use std::{io, net::UdpSocket, pin::Pin, sync::Arc, time::Instant};

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};

use crate::handshakes;

/// Tokio, but that the connections of a crowd are driven where their handshakes are.
#[derive(Debug)]
pub(crate) struct PooledRuntime;

impl Runtime for PooledRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, driver: Pin<Box<dyn Future<Output = ()> + Send>>) {
        handshakes::spawn(driver);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
