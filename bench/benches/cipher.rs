//! Cost of each cipher suite of TLS 1.3: a record is sealed on one side and opened on the other, in
//! memory. QUIC's packets are sealed by the same suites.
//!
//! The figure to look at is the ratio in one run: where the processor has AES instructions AES-128-GCM is
//! first, and where it has none, as a Raspberry Pi 3's, ChaCha20-Poly1305. `CipherSuite::preferred` goes
//! by that. `OPENSSL_ia32cap=~0x200000200000000` hides the instructions of an x86-64 processor.

use std::{
    io::{Read as _, Write as _},
    sync::Arc,
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
    SupportedCipherSuite,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{PrivateKeyDer, ServerName},
};

/// A small MQTT message, a datagram, the largest record.
const SIZES: [usize; 3] = [100, 1_200, 16_384];

/// Connects both sides of a connection whose handshake used that suite.
fn connection(suite: SupportedCipherSuite) -> (ClientConnection, ServerConnection) {
    let provider = Arc::new(CryptoProvider {
        cipher_suites: vec![suite],
        ..aws_lc_rs::default_provider()
    });
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("an authority");
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("key and certificate belong together");
    let name = ServerName::try_from("localhost").expect("a name");
    let mut client = ClientConnection::new(Arc::new(client), name).expect("a client");
    let mut server = ServerConnection::new(Arc::new(server)).expect("a server");
    let mut wire = Vec::new();
    while client.is_handshaking() || server.is_handshaking() {
        client.write_tls(&mut wire).expect("memory");
        server.read_tls(&mut &*wire).expect("memory");
        server.process_new_packets().expect("a good handshake");
        wire.clear();
        server.write_tls(&mut wire).expect("memory");
        client.read_tls(&mut &*wire).expect("memory");
        client.process_new_packets().expect("a good handshake");
        wire.clear();
    }
    (client, server)
}

fn seal_and_open(c: &mut Criterion) {
    for size in SIZES {
        let mut group = c.benchmark_group(format!("seal and open {size} B"));
        group.throughput(Throughput::Bytes(size as u64));
        for suite in aws_lc_rs::ALL_CIPHER_SUITES {
            if suite.tls13().is_none() {
                continue;
            }
            let (mut client, mut server) = connection(*suite);
            let (payload, mut out) = (vec![b'x'; size], vec![0; size]);
            let mut wire = Vec::new();
            group.bench_function(format!("{:?}", suite.suite()), |b| {
                b.iter(|| {
                    client.writer().write_all(&payload).expect("memory");
                    client.write_tls(&mut wire).expect("memory");
                    let mut sealed = &*wire;
                    while !sealed.is_empty() {
                        server.read_tls(&mut sealed).expect("memory");
                        server.process_new_packets().expect("a good record");
                    }
                    server.reader().read_exact(&mut out).expect("all of it");
                    wire.clear();
                });
            });
        }
    }
}

criterion_group!(benches, seal_and_open);
criterion_main!(benches);
