//! A device whose TLS has small buffers, as Tasmota's: TLS 1.2 with one suite and P-256, and room for one record of a
//! kilobyte.

use std::{sync::Arc, time::Duration};

use mq_client::{QoS, Version};
use mq_transport::{Address, Scheme};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, RootCertStore,
    crypto::aws_lc_rs::{
        self, cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, kx_group::SECP256R1,
    },
    pki_types::{CertificateDer, pem::PemObject as _},
    version::TLS12,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    Home,
    device::{TASMOTA, subscribe},
};

/// A record of 1,024 bytes of data in TLS 1.2, without its header: nonce and tag of AES-GCM (RFC 5288 §3).
const ROOM: usize = 1_024 + 8 + 16;

/// A TLS connection that measures the records that it receives.
struct Small {
    stream: TcpStream,
    tls: ClientConnection,
    largest: usize,
    received: Vec<u8>,
}

impl Small {
    async fn connect(home: &Home) -> Self {
        let mut provider = aws_lc_rs::default_provider();
        provider.cipher_suites = vec![TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256];
        provider.kx_groups = vec![SECP256R1];
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(home.folder.path().join("server.pem"));
        roots.add(certificate.unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(provider));
        let config = config.with_protocol_versions(&[&TLS12]).unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let Address { port, .. } = home.address(Scheme::Tls);
        let mut small = Self {
            stream: TcpStream::connect(("127.0.0.1", port)).await.unwrap(),
            tls: ClientConnection::new(Arc::new(config), name).unwrap(),
            largest: 0,
            received: Vec::new(),
        };
        while small.tls.is_handshaking() {
            small.flush().await;
            small.record().await;
        }
        small.flush().await;
        small
    }

    async fn flush(&mut self) {
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut bytes).unwrap();
        }
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// Reads one record.
    async fn record(&mut self) {
        let mut record = vec![0; 5];
        let reading = async {
            self.stream.read_exact(&mut record).await.unwrap();
            let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
            self.largest = self.largest.max(length);
            record.resize(5 + length, 0);
            self.stream.read_exact(&mut record[5..]).await.unwrap();
        };
        timeout(Duration::from_secs(20), reading).await.unwrap();
        let mut rest = &*record;
        while !rest.is_empty() {
            self.tls.read_tls(&mut rest).unwrap();
            let state = self.tls.process_new_packets().unwrap();
            let mut data = vec![0; state.plaintext_bytes_to_read()];
            std::io::Read::read_exact(&mut self.tls.reader(), &mut data).unwrap();
            self.received.extend(data);
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        std::io::Write::write_all(&mut self.tls.writer(), bytes).unwrap();
        self.flush().await;
    }

    async fn receive(&mut self, count: usize) {
        while self.received.len() < count {
            self.record().await;
        }
    }
}

/// Connects, takes commands that the broker sends at once, and returns the size of the largest record.
async fn largest_record(home: &Home) -> usize {
    let mut plug = Small::connect(home).await;
    let suite = plug.tls.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256);
    let handshake = plug.largest;
    plug.send(&TASMOTA.connect()).await;
    plug.receive(4).await;
    assert_eq!(plug.received, [0x20, 2, 0, 0]);
    plug.send(&subscribe(2, "cmnd/plug/#", 0)).await;
    plug.receive(9).await;
    let assistant = home.home_assistant(Version::V3_1_1).await;
    let backlog = "Backlog ".repeat(1_000);
    let sent = assistant.publish("cmnd/plug/Backlog", backlog, QoS::AtMostOnce);
    sent.await.unwrap();
    plug.receive(8_000).await;
    println!(
        "handshake: records up to {handshake} bytes; then up to {}",
        plug.largest
    );
    plug.largest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_with_tls_buffers_of_a_kilobyte_has_room_for_each_record() {
    let home = Home::start().await;
    assert!(largest_record(&home).await <= ROOM);
    home.broker.shutdown().await;
    // Without the guide's line there are larger ones.
    let default = Home::start_with(|config| {
        let lines = config
            .lines()
            .filter(|line| !line.starts_with("max_record_size"));
        lines.collect::<Vec<_>>().join("\n")
    })
    .await;
    assert!(largest_record(&default).await > ROOM);
    default.broker.shutdown().await;
}
