//! A user's mistakes: each gets one line that says what would be right.

use std::{fs, io::Write as _, time::Duration};

use mq_transport::{
    Address, Certificate, ClientIdentity, CongestionControl, ConnectOptions, Connector,
    CryptoOptions, Error, KeyExchangeGroup, ListenOptions, Listener, Qlog, QuicOptions, Scheme,
    ServerIdentity, TlsVersion, Trust,
};

use crate::common::{self, any_address, connect_options, listen, listen_options};

fn assert_one_line(error: &Error, expected: &str) {
    assert_eq!(error.to_string(), expected);
    assert!(!expected.contains('\n'));
}

over!(a_port_in_use_is_named: tcp, tls, quic, ws, wss, mem);
async fn a_port_in_use_is_named(scheme: Scheme) {
    let first = listen(scheme).await;
    let address = first.local_address();
    let error = Listener::bind(&address, &listen_options())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::PortInUse { .. }));
    assert_one_line(
        &error,
        &format!("cannot listen on {address}: the port is in use; choose another or stop its user"),
    );
}

over!(an_address_without_a_listener_is_named: tcp, tls, ws, wss, mem);
async fn an_address_without_a_listener_is_named(scheme: Scheme) {
    let address = listen(scheme).await.local_address();
    let connector = Connector::new(connect_options()).unwrap();
    let error = connector.connect(&address).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(
        text.starts_with(&format!("cannot reach {address}: ")),
        "{text}"
    );
    assert!(text.to_lowercase().contains("connection refused"), "{text}");
}

#[tokio::test]
async fn a_silent_quic_address_times_out() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let connector = Connector::new(ConnectOptions {
        connect_timeout: Duration::from_millis(100),
        ..connect_options()
    });
    let address = Address::new(Scheme::Quic, "127.0.0.1", port);
    let error = connector.unwrap().connect(&address).await.unwrap_err();
    assert_one_line(
        &error,
        &format!("cannot reach {address}: no answer within 100ms; is a broker listening there?"),
    );
}

#[tokio::test]
async fn an_unknown_host_is_named() {
    let connector = Connector::new(connect_options()).unwrap();
    let address = Address::new(Scheme::Tcp, "no-such-host.invalid", 1883);
    let error = connector.connect(&address).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("cannot find host `no-such-host.invalid`: "),
        "{text}"
    );
}

#[tokio::test]
async fn a_listener_without_a_certificate_says_so() {
    for (scheme, name) in [
        (Scheme::Tls, "tls"),
        (Scheme::Quic, "quic"),
        (Scheme::Wss, "wss"),
    ] {
        let options = ListenOptions::default();
        let error = Listener::bind(&any_address(scheme), &options)
            .await
            .unwrap_err();
        assert_one_line(
            &error,
            &format!(
                "{name} needs a server certificate: \
                 give a certificate and key file, or ask for a self-signed one"
            ),
        );
    }
}

#[test]
fn files_that_are_missing_or_wrong_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing.pem");
    let error = Connector::new(ConnectOptions {
        trust: Trust::CaFile(missing.clone()),
        ..ConnectOptions::default()
    });
    assert_one_line(
        &error.unwrap_err(),
        &format!(
            "cannot read the CA file `{}`: No such file or directory (os error 2)",
            missing.display()
        ),
    );
    let empty = directory.path().join("empty.pem");
    fs::File::create(&empty)
        .unwrap()
        .write_all(b"nothing")
        .unwrap();
    let error = Connector::new(ConnectOptions {
        trust: Trust::Insecure,
        identity: Some(ClientIdentity {
            certificates: empty.clone(),
            key: empty.clone(),
        }),
        ..ConnectOptions::default()
    });
    assert_one_line(
        &error.unwrap_err(),
        &format!(
            "the client certificate file `{}` is not valid: \
             it holds no client certificate in PEM form (-----BEGIN ...)",
            empty.display()
        ),
    );
}

#[tokio::test]
async fn a_key_of_another_certificate_is_refused() {
    let (one, other) = (
        rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap(),
        rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap(),
    );
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = (
        directory.path().join("c.pem"),
        directory.path().join("k.pem"),
    );
    fs::write(&certificate, one.cert.pem()).unwrap();
    fs::write(&key, other.signing_key.serialize_pem()).unwrap();
    let options = ListenOptions {
        identity: Some(ServerIdentity::from_pem_files(&certificate, &key).unwrap()),
        ..ListenOptions::default()
    };
    let error = Listener::bind(&any_address(Scheme::Tls), &options)
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with("the key should belong to the certificate"),
        "{text}"
    );
}

#[test]
fn options_that_cannot_be_are_refused_at_once() {
    let of = |crypto| {
        Connector::new(ConnectOptions {
            crypto,
            ..ConnectOptions::default()
        })
    };
    let error = of(CryptoOptions {
        key_exchange_groups: Vec::new(),
        ..CryptoOptions::default()
    });
    assert_one_line(
        &error.unwrap_err(),
        "key-exchange groups cannot be empty: list at least x25519",
    );
    let error = of(CryptoOptions {
        min_version: TlsVersion::Tls13,
        max_version: TlsVersion::Tls12,
        ..CryptoOptions::default()
    });
    assert_one_line(
        &error.unwrap_err(),
        "minimum TLS version cannot be 1.3: it is above the maximum, 1.2",
    );
    let post_quantum = of(CryptoOptions {
        key_exchange_groups: vec![KeyExchangeGroup::X25519MlKem768],
        ..CryptoOptions::default()
    });
    assert_eq!(post_quantum.is_ok(), cfg!(feature = "aws-lc-rs"));
    let error = Connector::new(ConnectOptions {
        trust: Trust::Fingerprint("12:34".into()),
        ..ConnectOptions::default()
    });
    assert_one_line(
        &error.unwrap_err(),
        "certificate fingerprint cannot be `12:34`: give a SHA-256 as 64 hexadecimal digits",
    );
}

#[tokio::test]
async fn quic_packets_that_are_too_small_are_refused() {
    let options = ListenOptions {
        quic: QuicOptions {
            initial_udp_payload: 1000,
            ..QuicOptions::default()
        },
        ..listen_options()
    };
    let error = Listener::bind(&any_address(Scheme::Quic), &options)
        .await
        .unwrap_err();
    assert_one_line(
        &error,
        "UDP payload cannot be 1000 to 1452: start with 1200 or more, and not above the maximum",
    );
}

#[tokio::test]
async fn a_tls_record_of_an_impossible_size_is_refused() {
    for (max_record_size, size) in [(511, "511"), (16_385, "16385")] {
        let options = ListenOptions {
            max_record_size,
            ..listen_options()
        };
        let bound = Listener::bind(&any_address(Scheme::Tls), &options).await;
        assert_one_line(
            &bound.unwrap_err(),
            &format!("TLS record size cannot be {size}: give 512 to 16384 bytes"),
        );
    }
}

#[tokio::test]
async fn each_congestion_control_works_or_is_refused_in_one_line() {
    for scheme in [Scheme::Tcp, Scheme::Quic, Scheme::Wss] {
        for name in [
            CongestionControl::Reno,
            CongestionControl::Cubic,
            CongestionControl::Bbr,
        ] {
            let options = ListenOptions {
                congestion: Some(name),
                ..listen_options()
            };
            match Listener::bind(&any_address(scheme), &options).await {
                Ok(mut listener) => {
                    let connector = Connector::new(ConnectOptions {
                        congestion: Some(name),
                        ..connect_options()
                    });
                    common::connect(&connector.unwrap(), &mut listener).await;
                }
                Err(error @ Error::NoCongestionControl { .. }) => {
                    assert_ne!(scheme, Scheme::Quic);
                    println!("this kernel lacks one: {error}");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[tokio::test]
async fn a_qlog_file_is_written_for_each_connection() {
    let directory = tempfile::tempdir().unwrap();
    let traces = directory.path().join("new/traces");
    let quic = QuicOptions {
        qlog: Some(Qlog::all(&traces)),
        segmentation_offload: false,
        ..QuicOptions::default()
    };
    let options = ListenOptions {
        quic: quic.clone(),
        ..listen_options()
    };
    let mut listener = Listener::bind(&any_address(Scheme::Quic), &options)
        .await
        .unwrap();
    let connector = Connector::new(ConnectOptions {
        quic,
        ..connect_options()
    });
    common::connect(&connector.unwrap(), &mut listener).await;
    let files: Vec<_> = fs::read_dir(traces).unwrap().collect();
    assert_eq!(files.len(), 2);
}

over!(a_ca_certificate_as_a_servers_is_named_with_its_cure: tls, quic, wss);
async fn a_ca_certificate_as_a_servers_is_named_with_its_cure(scheme: Scheme) {
    // As `openssl req -x509` makes it.
    let mut params =
        rcgen::CertificateParams::new(["localhost".into(), "127.0.0.1".into()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let mut trusted = tempfile::NamedTempFile::new().unwrap();
    write!(trusted, "{}", certificate.pem()).unwrap();
    let own = Certificate::from_der(certificate.der().to_vec());
    let identity = ServerIdentity::from_der(vec![own], key.serialize_der()).unwrap();
    let options = ListenOptions {
        identity: Some(identity),
        ..listen_options()
    };
    let mut listener = Listener::bind(&any_address(scheme), &options)
        .await
        .unwrap();
    let address = listener.local_address();
    let serving = tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            let _ = incoming.handshake().await;
        }
    });
    let connector = Connector::new(ConnectOptions {
        trust: Trust::CaFile(trusted.path().to_owned()),
        ..connect_options()
    });
    let error = connector.unwrap().connect(&address).await.unwrap_err();
    serving.abort();
    assert_one_line(
        &error,
        "the peer's certificate is not accepted: marked as a CA's, as `openssl req -x509` does \
         by default; make it with `-addext basicConstraints=critical,CA:FALSE`",
    );
}

/// RFC 9000 §6: the server says which versions there are.
#[tokio::test]
async fn version_negotiation_offers_no_drafts() {
    let listener = listen(Scheme::Quic).await;
    let address = listener.local_address();
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let target = format!("{}:{}", address.host, address.port);
    // A long header of an unknown version, with connection identifiers of 8 bytes.
    let mut datagram = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8];
    datagram.extend([1; 8]);
    datagram.push(8);
    datagram.extend([2; 8]);
    datagram.resize(1200, 0);
    socket.send_to(&datagram, &target).await.unwrap();
    let mut answer = [0; 1500];
    let length = tokio::time::timeout(Duration::from_secs(10), socket.recv(&mut answer));
    let length = length.await.unwrap().unwrap();
    let answer = &answer[..length];
    assert_eq!(answer[1..5], [0; 4], "not a Version Negotiation packet");
    let versions = answer[23..].chunks(4);
    let versions: Vec<_> = versions
        .map(|version| u32::from_be_bytes(version.try_into().unwrap()))
        // Reserved versions exercise the peer's code (RFC 9000 §15).
        .filter(|version| version & 0x0f0f_0f0f != 0x0a0a_0a0a)
        .collect();
    assert_eq!(versions, [1]);
}
