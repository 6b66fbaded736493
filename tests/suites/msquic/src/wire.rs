//! A wire with a delay in front of a broker, so that times to CONNACK show round trips.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

/// The delay of a datagram in one direction.
pub const DELAY: Duration = Duration::from_millis(25);

/// The longest that a thread goes on after the wire was dropped.
const LINGER: Duration = Duration::from_millis(100);

/// A wire for one client.
pub struct Wire {
    /// The address at which the client finds the broker.
    pub address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Wire {
    /// Makes a wire that ends at `broker`.
    pub fn to(broker: SocketAddr) -> io::Result<Self> {
        let near = UdpSocket::bind("127.0.0.1:0")?;
        let far = UdpSocket::bind("127.0.0.1:0")?;
        far.connect(broker)?;
        let wire = Self {
            address: near.local_addr()?,
            ended: Arc::default(),
        };
        let ended = Arc::clone(&wire.ended);
        thread::spawn(move || {
            // The first datagram is the client's.
            let mut first = [0];
            near.set_read_timeout(Some(LINGER))?;
            while !ended.load(Ordering::Relaxed) {
                if let Ok((_, client)) = near.peek_from(&mut first) {
                    near.connect(client)?;
                    carry(near.try_clone()?, far.try_clone()?, Arc::clone(&ended))?;
                    return carry(far, near, ended);
                }
            }
            io::Result::Ok(())
        });
        Ok(wire)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Carries datagrams in one direction, on threads of its own.
fn carry(from: UdpSocket, to: UdpSocket, ended: Arc<AtomicBool>) -> io::Result<()> {
    from.set_read_timeout(Some(LINGER))?;
    let (sender, under_way) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut datagram = [0; 1 << 16];
        while !ended.load(Ordering::Relaxed) {
            if let Ok(bytes) = from.recv(&mut datagram) {
                let _ = sender.send((Instant::now() + DELAY, datagram[..bytes].to_vec()));
            }
        }
    });
    thread::spawn(move || {
        for (due, datagram) in under_way {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // A datagram may be lost, as on any wire.
            let _ = to.send(&datagram);
        }
    });
    Ok(())
}
