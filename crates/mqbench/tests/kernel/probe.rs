//! UDP packets from the near host to the far one, with the times of leaving and arriving.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use socket2::SockRef;

use crate::network::Network;

/// Ends the receiver; no probe is as short.
const END: &[u8] = b"end";

/// The result of a run of packets.
pub(crate) struct Probe {
    sent: Vec<Duration>,
    /// Numbers and times in the order of arrival.
    pub(crate) arrived: Vec<(usize, Duration)>,
}

impl Probe {
    /// Sends `count` packets of `payload` bytes, `gap` apart, and waits for `linger` after the last.
    /// 18 bytes have a frame of 60, the least that an Ethernet carries.
    pub(crate) fn run(
        network: &Network,
        count: usize,
        payload: usize,
        gap: Duration,
        linger: Duration,
    ) -> Self {
        let bind = |address: &'static str| move || UdpSocket::bind((address, 4000));
        let far = network.far.run(bind("10.0.0.2")).unwrap();
        let near = network.near.run(bind("10.0.0.1")).unwrap();
        // A large buffer, since the guest may be scheduled late: packets are read late rather than lost.
        SockRef::from(&far).set_recv_buffer_size(8 << 20).unwrap();
        near.connect("10.0.0.2:4000").unwrap();
        far.set_read_timeout(Some(linger + Duration::from_secs(1)))
            .unwrap();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&far, begin));
            let mut sent = Vec::with_capacity(count);
            for number in 0..count {
                let due = gap * u32::try_from(number).unwrap();
                if let Some(left) = due.checked_sub(begin.elapsed()) {
                    std::thread::sleep(left);
                }
                let mut packet = vec![0; payload];
                packet[..8].copy_from_slice(&u64::try_from(number).unwrap().to_be_bytes());
                sent.push(begin.elapsed());
                // A full queue may return an error.
                let _ = near.send(&packet);
            }
            std::thread::sleep(linger);
            // A new socket, whose packet does not pass the link.
            let last = network.far.run(|| UdpSocket::bind("10.0.0.2:0")).unwrap();
            last.send_to(END, "10.0.0.2:4000").unwrap();
            let arrived = receiver.join().unwrap();
            Self { sent, arrived }
        })
    }

    /// Returns the delay of each packet that arrived, until its first arrival.
    fn delays(&self) -> Vec<Duration> {
        let mut delays = vec![None; self.sent.len()];
        for (number, at) in &self.arrived {
            delays[*number].get_or_insert(at.saturating_sub(self.sent[*number]));
        }
        delays.into_iter().flatten().collect()
    }

    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }

    /// Returns the delay that nine packets of ten exceed. A busy machine makes packets late, and none early.
    pub(crate) fn first_decile(&self) -> Duration {
        self.percentile(10)
    }

    fn percentile(&self, percent: usize) -> Duration {
        let mut delays = self.delays();
        delays.sort_unstable();
        delays[delays.len() * percent / 100]
    }

    /// Returns the median deviation from `delay`.
    pub(crate) fn spread(&self, delay: Duration) -> Duration {
        let delays = self.delays();
        let mut apart: Vec<_> = delays.iter().map(|taken| taken.abs_diff(delay)).collect();
        apart.sort_unstable();
        apart[apart.len() / 2]
    }

    /// Returns the number of packets with a delay below `time`.
    pub(crate) fn early(&self, time: Duration) -> usize {
        self.delays().iter().filter(|taken| **taken < time).count()
    }

    /// Returns the number of packets whose delay differs from `delay` by more than `apart`.
    pub(crate) fn further(&self, delay: Duration, apart: Duration) -> usize {
        let delays = self.delays();
        let far = delays.iter().filter(|taken| taken.abs_diff(delay) > apart);
        far.count()
    }

    pub(crate) fn lost(&self) -> usize {
        self.sent.len() - self.delays().len()
    }

    pub(crate) fn twice(&self) -> usize {
        self.arrived.len() - self.delays().len()
    }

    /// Returns the number of packets that arrived after a later one.
    pub(crate) fn overtaken(&self) -> usize {
        let mut latest = 0;
        let mut count = 0;
        for (number, _) in &self.arrived {
            count += usize::from(*number < latest);
            latest = latest.max(*number);
        }
        count
    }
}

fn receive(socket: &UdpSocket, begin: Instant) -> Vec<(usize, Duration)> {
    let mut arrived = Vec::new();
    let mut buffer = [0; 2048];
    loop {
        let (length, _) = socket
            .recv_from(&mut buffer)
            .expect("the end at least comes");
        let at = begin.elapsed();
        if length == END.len() {
            return arrived;
        }
        let number = u64::from_be_bytes(buffer[..8].try_into().unwrap());
        arrived.push((usize::try_from(number).unwrap(), at));
    }
}
