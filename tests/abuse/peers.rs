//! The kinds of bad peers, a function each.

use std::{io, time::Duration};

use mq_testkit::Scheme;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::{sleep, timeout},
};

use crate::wire::{Leave, REQUEST, Target, Wire, frame, reset};

/// Longer than the broker tolerates a silent peer.
const STAY: Duration = Duration::from_millis(2500);

/// The kinds of bad peers. Most leave by themselves; the broker throws the patient ones out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    SilentTcp,
    SilentTls,
    SilentQuic,
    GarbageTcp,
    GarbageTls,
    GarbageQuic,
    EndlessConnect,
    ResetAfterConnect,
    CutClientHello,
    ResetAfterClientHello,
    ResetAfterServerHello,
    FirstInitialOnly,
    CutConnectTls,
    CutConnectQuicThenVanish,
    CutConnectQuicThenResetStream,
    CutConnectQuicThenClose,
    CutSessionTcp,
    CutSessionTls,
    CutSessionQuic,
    SilentWs,
    GarbageWs,
    ResetInRequest,
    EndlessFrame,
    ManyPings,
    CutSessionWs,
}

const KINDS: [Kind; 25] = [
    Kind::SilentTcp,
    Kind::SilentTls,
    Kind::SilentQuic,
    Kind::GarbageTcp,
    Kind::GarbageTls,
    Kind::GarbageQuic,
    Kind::EndlessConnect,
    Kind::ResetAfterConnect,
    Kind::CutClientHello,
    Kind::ResetAfterClientHello,
    Kind::ResetAfterServerHello,
    Kind::FirstInitialOnly,
    Kind::CutConnectTls,
    Kind::CutConnectQuicThenVanish,
    Kind::CutConnectQuicThenResetStream,
    Kind::CutConnectQuicThenClose,
    Kind::CutSessionTcp,
    Kind::CutSessionTls,
    Kind::CutSessionQuic,
    Kind::SilentWs,
    Kind::GarbageWs,
    Kind::ResetInRequest,
    Kind::EndlessFrame,
    Kind::ManyPings,
    Kind::CutSessionWs,
];

/// Runs one bad peer. Its number decides its kind, and with the seed its random choices.
///
/// An error means that the broker has ended the connection.
pub(crate) async fn misbehave(seed: u64, number: usize, target: Target) -> (Kind, io::Result<()>) {
    let mut peer = Peer {
        target,
        number,
        chance: Chance(seed.wrapping_add((number as u64).wrapping_mul(0x1234_5678_9ABC_DEF1))),
    };
    let kind = KINDS[number % KINDS.len()];
    let result = match kind {
        Kind::SilentTcp => peer.silent_tcp().await,
        Kind::SilentTls => peer.silent_tls().await,
        Kind::SilentQuic => peer.silent_quic().await,
        Kind::GarbageTcp => peer.garbage_tcp().await,
        Kind::GarbageTls => peer.garbage_tls().await,
        Kind::GarbageQuic => peer.garbage_quic().await,
        Kind::EndlessConnect => peer.endless_connect().await,
        Kind::ResetAfterConnect => peer.reset_after_connect().await,
        Kind::CutClientHello => peer.cut_client_hello().await,
        Kind::ResetAfterClientHello => peer.reset_after_client_hello(false).await,
        Kind::ResetAfterServerHello => peer.reset_after_client_hello(true).await,
        Kind::FirstInitialOnly => peer.first_initial_only().await,
        Kind::CutConnectTls => peer.cut_connect(Scheme::Tls, Leave::Reset).await,
        Kind::CutConnectQuicThenVanish => peer.cut_connect(Scheme::Quic, Leave::Vanish).await,
        Kind::CutConnectQuicThenResetStream => {
            peer.cut_connect(Scheme::Quic, Leave::ResetStream).await
        }
        Kind::CutConnectQuicThenClose => peer.cut_connect(Scheme::Quic, Leave::Reset).await,
        Kind::CutSessionTcp => peer.cut_session(Scheme::Tcp).await,
        Kind::CutSessionTls => peer.cut_session(Scheme::Tls).await,
        Kind::CutSessionQuic => peer.cut_session(Scheme::Quic).await,
        Kind::SilentWs => peer.silent_ws().await,
        Kind::GarbageWs => peer.garbage_ws().await,
        Kind::ResetInRequest => peer.reset_in_request().await,
        Kind::EndlessFrame => peer.endless_frame().await,
        Kind::ManyPings => peer.many_pings().await,
        Kind::CutSessionWs => peer.cut_session(Scheme::Ws).await,
    };
    (kind, result)
}

struct Peer {
    target: Target,
    number: usize,
    chance: Chance,
}

impl Peer {
    /// Stays silent until it is thrown out.
    async fn silent_tcp(&mut self) -> io::Result<()> {
        let _link = TcpStream::connect(self.target.tcp).await?;
        sleep(STAY).await;
        Ok(())
    }

    async fn silent_tls(&mut self) -> io::Result<()> {
        let _link = TcpStream::connect(self.target.tls).await?;
        sleep(STAY).await;
        Ok(())
    }

    /// Makes a whole QUIC handshake, and opens no stream.
    async fn silent_quic(&mut self) -> io::Result<()> {
        let _link = self.target.connector.connect(&self.target.quic_url).await;
        sleep(STAY).await;
        Ok(())
    }

    async fn garbage_tcp(&mut self) -> io::Result<()> {
        let mut link = TcpStream::connect(self.target.tcp).await?;
        link.write_all(&[0xFF; 64]).await
    }

    async fn garbage_tls(&mut self) -> io::Result<()> {
        let mut link = TcpStream::connect(self.target.tls).await?;
        link.write_all(b"GET / HTTP/1.1\r\n\r\n").await
    }

    async fn garbage_quic(&mut self) -> io::Result<()> {
        let socket = UdpSocket::bind("127.0.0.1:0").await?;
        socket.send_to(&[0xC5; 1200], self.target.quic).await?;
        Ok(())
    }

    /// Sends a byte now and then of a CONNECT that never ends.
    async fn endless_connect(&mut self) -> io::Result<()> {
        let mut link = TcpStream::connect(self.target.tcp).await?;
        for byte in b"\x10\x7f\x00\x04MQTT" {
            link.write_all(&[*byte]).await?;
            sleep(Duration::from_millis(300)).await;
        }
        Ok(())
    }

    /// Sends a CONNECT, complete or one byte short of it, then resets the connection.
    async fn reset_after_connect(&mut self) -> io::Result<()> {
        let mut link = TcpStream::connect(self.target.tcp).await?;
        let connect = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a";
        let short = self.chance.below(2);
        link.write_all(&connect[..connect.len() - short]).await?;
        reset(&link);
        Ok(())
    }

    async fn cut_client_hello(&mut self) -> io::Result<()> {
        let mut link = TcpStream::connect(self.target.tls).await?;
        let (_, hello) = self.target.client_hello();
        let cut = self.chance.below(hello.len());
        link.write_all(&hello[..cut]).await?;
        self.pause().await;
        reset(&link);
        Ok(())
    }

    async fn reset_after_client_hello(&mut self, answered: bool) -> io::Result<()> {
        let mut link = TcpStream::connect(self.target.tls).await?;
        let (_, hello) = self.target.client_hello();
        link.write_all(&hello).await?;
        if answered {
            // Some of it: what is left unread makes no difference to a reset.
            let _ = timeout(STAY, link.read(&mut [0; 128])).await;
        }
        reset(&link);
        Ok(())
    }

    /// Opens a connection, or a WebSocket, that says nothing until it is thrown out.
    async fn silent_ws(&mut self) -> io::Result<()> {
        if self.chance.below(2) == 0 {
            let _link = TcpStream::connect(self.target.ws).await?;
            sleep(STAY).await;
        } else {
            let _wire = Wire::open(&self.target, Scheme::Ws).await?;
            sleep(STAY).await;
        }
        Ok(())
    }

    /// Sends no HTTP, or no frames after it.
    async fn garbage_ws(&mut self) -> io::Result<()> {
        let mut link = TcpStream::connect(self.target.ws).await?;
        if self.chance.below(2) == 0 {
            link.write_all(REQUEST).await?;
        }
        link.write_all(&[0xFF; 64]).await?;
        let _ = timeout(STAY, link.read(&mut [0; 512])).await;
        Ok(())
    }

    async fn reset_in_request(&mut self) -> io::Result<()> {
        let mut link = TcpStream::connect(self.target.ws).await?;
        let cut = self.chance.below(REQUEST.len() + 1);
        link.write_all(&REQUEST[..cut]).await?;
        self.pause().await;
        reset(&link);
        Ok(())
    }

    /// Sends the beginning of a frame of 4 EiB.
    async fn endless_frame(&mut self) -> io::Result<()> {
        let mut link = TcpStream::connect(self.target.ws).await?;
        link.write_all(REQUEST).await?;
        link.write_all(b"\x82\xff\x40\0\0\0\0\0\0\0\0\0\0\0")
            .await?;
        for byte in b"\x10\x7f\x00\x04MQTT" {
            link.write_all(&[*byte]).await?;
            sleep(Duration::from_millis(300)).await;
        }
        Ok(())
    }

    /// Pings whose answers it does not read.
    async fn many_pings(&mut self) -> io::Result<()> {
        let mut link = TcpStream::connect(self.target.ws).await?;
        link.write_all(REQUEST).await?;
        let ping = frame(0x89, &[7; 125]);
        for _ in 0..100 {
            link.write_all(&ping.repeat(10)).await?;
        }
        self.pause().await;
        reset(&link);
        Ok(())
    }

    /// Sends the datagram that opens a QUIC handshake, and nothing after it.
    async fn first_initial_only(&mut self) -> io::Result<()> {
        let socket = UdpSocket::bind("127.0.0.1:0").await?;
        let mut datagram = [0; 1500];
        let connecting = self.target.knock(socket.local_addr()?);
        let (count, _) = timeout(STAY, socket.recv_from(&mut datagram)).await??;
        drop(connecting);
        socket.send_to(&datagram[..count], self.target.quic).await?;
        // With the socket open the answers vanish, without it they come back as ICMP errors.
        if self.chance.below(2) == 0 {
            sleep(STAY).await;
        }
        Ok(())
    }

    /// Makes the handshake in full, sends a part of a CONNECT, and leaves.
    async fn cut_connect(&mut self, scheme: Scheme, how: Leave) -> io::Result<()> {
        let mut wire = Wire::open(&self.target, scheme).await?;
        let connect = self.connect_packet();
        // At least a byte: a QUIC stream is not there before it carries something.
        let cut = 1 + self.chance.below(connect.len() - 1);
        wire.write(&connect[..cut]).await?;
        self.pause().await;
        wire.leave(how, STAY).await;
        Ok(())
    }

    /// Sends CONNECT, SUBSCRIBE and half of a QoS 2 PUBLISH's way, and leaves at any byte of them.
    async fn cut_session(&mut self, scheme: Scheme) -> io::Result<()> {
        let mut wire = Wire::open(&self.target, scheme).await?;
        let group = self.number % 16;
        let mut script = vec![
            self.connect_packet(),
            packet(
                0x82,
                &[&[0, 1], &text(&format!("bad/{group}/#"))[..], &[2]].concat(),
            ),
        ];
        let topic = text(&format!("bad/{group}/topic"));
        script.push(packet(
            0x34,
            &[&topic[..], &[0, 2], b"a payload of no interest"].concat(),
        ));
        script.push(packet(0x62, &[0, 2]));

        let length: usize = script.iter().map(Vec::len).sum();
        let mut left = 1 + self.chance.below(length);
        for bytes in script {
            let cut = bytes.len().min(left);
            wire.write(&bytes[..cut]).await?;
            left -= cut;
            if left == 0 {
                break;
            }
            if self.chance.below(2) == 0 {
                wire.read().await;
            }
        }
        self.pause().await;
        let how = [Leave::Reset, Leave::Vanish, Leave::ResetStream][self.chance.below(3)];
        wire.leave(how, STAY).await;
        Ok(())
    }

    /// Makes a CONNECT of MQTT 3.1.1, with a will or without, under a name of its own or one that others take as well;
    /// a keep-alive of 1 s, so that the broker misses it soon.
    fn connect_packet(&mut self) -> Vec<u8> {
        let name = if self.chance.below(2) == 0 {
            format!("bad-{}", self.number)
        } else {
            format!("bad-shared-{}", self.number % 8)
        };
        let will = self.chance.below(2) == 0;
        let flags = if will { 0x06 } else { 0x02 };
        let mut body = b"\x00\x04MQTT\x04".to_vec();
        body.extend([flags, 0, 1]);
        body.extend(text(&name));
        if will {
            body.extend(text(&format!("bad/{}/will", self.number % 16)));
            body.extend(text("gone"));
        }
        packet(0x10, &body)
    }

    /// Waits for up to 20 ms, or not at all: the broker may have read everything by then, or nothing.
    async fn pause(&mut self) {
        if self.chance.below(2) == 0 {
            sleep(Duration::from_millis(self.chance.below(20) as u64)).await;
        }
    }
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let length = u8::try_from(body.len()).unwrap();
    assert!(length < 0x80, "its length would take two bytes");
    [&[first, length], body].concat()
}

fn text(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).unwrap();
    [&length.to_be_bytes(), text.as_bytes()].concat()
}

/// `SplitMix64`: small, seeded, and the same everywhere.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number from 0 up to but not including `end`.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }
}
