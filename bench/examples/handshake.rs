//! Cost of a full handshake for its server, in memory, without sockets and without MQTT: `handshake SECONDS CERTIFICATE KEY`.
//!
//! The server's side of TLS 1.3 by rustls, with X25519, AES-128-GCM and two tickets that the server keeps, as the
//! broker's. Over QUIC it also makes the keys of all packets, and seals none. Both kinds take turns for so many seconds.
//! Only the server's steps count, by the thread's CPU clock. Prints JSON, in nanoseconds for each handshake.
#![expect(clippy::print_stdout, reason = "an example says what it found")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nix::time::ClockId;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, Side,
    Tls13CipherSuite,
    crypto::{
        CryptoProvider,
        aws_lc_rs::{self, cipher_suite, kx_group},
    },
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    quic::{self, Suite, Version},
};

/// Handshakes of each kind before the first that is measured.
const WARM_UP: u32 = 50;

/// Handshakes of each kind between two looks at the clock.
const TURN: u32 = 20;

/// The version of the server's QUIC connections.
const VERSION: Version = Version::V1;

const USAGE: &str = "usage: handshake SECONDS CERTIFICATE KEY";

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seconds, certificate, key] = arguments.as_slice() else {
        return Err(USAGE.into());
    };
    let time = Duration::from_secs(seconds.parse()?);
    let both = Both::new(certificate, key)?;
    for _ in 0..WARM_UP {
        both.tls()?;
        both.quic()?;
    }
    let (mut tls, mut quic, mut handshakes) = (Duration::ZERO, Duration::ZERO, 0);
    let began = Instant::now();
    while handshakes == 0 || began.elapsed() < time {
        for _ in 0..TURN {
            tls += both.tls()?;
        }
        for _ in 0..TURN {
            quic += both.quic()?;
        }
        handshakes += TURN;
    }
    let of_each = |all: Duration| (all / handshakes).as_nanos();
    println!(
        "{{\"handshakes\": {handshakes}, \"tls_ns\": {}, \"quic_ns\": {}}}",
        of_each(tls),
        of_each(quic)
    );
    Ok(())
}

/// The configurations of both sides.
struct Both {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// Configuration of the QUIC server, which sets no limit to early data itself (RFC 9001 §4.6.1).
    quic_server: Arc<ServerConfig>,
    /// Cipher suite of QUIC's Initial packets.
    initial: Suite,
    name: ServerName<'static>,
}

impl Both {
    fn new(certificate: &str, key: &str) -> Result<Self, Failed> {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256],
            kx_groups: vec![kx_group::X25519],
            ..aws_lc_rs::default_provider()
        });
        let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
        let mut roots = RootCertStore::empty();
        for certificate in &chain {
            roots.add(certificate.clone())?;
        }
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![b"mqtt".to_vec()];
        client.resumption = rustls::client::Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
        server.alpn_protocols = vec![b"mqtt".to_vec()];
        let mut quic_server = server.clone();
        quic_server.max_early_data_size = u32::MAX;
        let suite = cipher_suite::TLS13_AES_128_GCM_SHA256.tls13();
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
            quic_server: Arc::new(quic_server),
            initial: suite
                .and_then(Tls13CipherSuite::quic_suite)
                .ok_or("no QUIC")?,
            name: ServerName::try_from("localhost")?,
        })
    }

    /// Makes a handshake over TLS, and returns the CPU time that its server used.
    fn tls(&self) -> Result<Duration, Failed> {
        let mut client = ClientConnection::new(Arc::clone(&self.client), self.name.clone())?;
        let mut used = Duration::ZERO;
        let mut server = of_thread(&mut used, || ServerConnection::new(self.server.clone()))?;
        let (mut asked, mut answer) = (Vec::new(), Vec::new());
        while client.is_handshaking() || server.is_handshaking() || client.wants_write() {
            asked.clear();
            while client.wants_write() {
                client.write_tls(&mut asked)?;
            }
            answer.clear();
            of_thread(&mut used, || {
                server.read_tls(&mut asked.as_slice())?;
                server.process_new_packets()?;
                while server.wants_write() {
                    server.write_tls(&mut answer)?;
                }
                Ok::<_, Failed>(())
            })?;
            let mut rest = answer.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest)?;
                client.process_new_packets()?;
            }
        }
        of_thread(&mut used, || drop(server));
        Ok(used)
    }

    /// Runs a handshake over QUIC, and returns the server's time.
    fn quic(&self) -> Result<Duration, Failed> {
        let (config, name) = (Arc::clone(&self.client), self.name.clone());
        let client = quic::ClientConnection::new(config, VERSION, name, vec![0; 60])?;
        let mut client = quic::Connection::from(client);
        let mut used = Duration::ZERO;
        let (mut server, keys) = of_thread(&mut used, || {
            let config = Arc::clone(&self.quic_server);
            let server = quic::ServerConnection::new(config, VERSION, vec![0; 60])?;
            let keys = self.initial.keys(&[7; 8], Side::Server, VERSION);
            Ok::<_, Failed>((quic::Connection::from(server), keys))
        })?;
        while client.is_handshaking() || server.is_handshaking() {
            let asked = said(&mut client);
            let answer = of_thread(&mut used, || {
                for messages in &asked {
                    server.read_hs(messages)?;
                }
                Ok::<_, Failed>(said(&mut server))
            })?;
            if asked.is_empty() && answer.is_empty() {
                return Err("the handshake stands still".into());
            }
            for messages in &answer {
                client.read_hs(messages)?;
            }
        }
        of_thread(&mut used, || drop((server, keys)));
        Ok(used)
    }
}

/// Returns the handshake bytes of one endpoint, a buffer for each encryption level, and makes the keys of these levels.
fn said(side: &mut quic::Connection) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let mut messages = Vec::new();
        let keys = side.write_hs(&mut messages);
        if !messages.is_empty() {
            all.push(messages);
        }
        if keys.is_none() {
            return all;
        }
    }
}

/// Runs a step, and adds what it used of the processor.
fn of_thread<T>(used: &mut Duration, step: impl FnOnce() -> T) -> T {
    let before = cpu_time();
    let done = step();
    *used += cpu_time().saturating_sub(before);
    done
}

/// Returns the processor time of this thread.
fn cpu_time() -> Duration {
    let now = ClockId::CLOCK_THREAD_CPUTIME_ID.now();
    now.expect("each thread of Linux has this clock").into()
}
