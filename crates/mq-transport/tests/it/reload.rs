//! New certificates, client authorities and revocation lists for a listener that goes on listening.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use mq_transport::Outbox;
use mq_transport::{
    ClientAuth, ClientIdentity, ConnectOptions, Connector, Dial, Error, HandshakeKind,
    ListenOptions, Listener, Scheme, ServerIdentity, Trust,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationList,
    CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use tempfile::TempDir;

use crate::common::{
    self, any_address, attempt, collect_ticket, connect, connect_options, listen_options, receive,
    send,
};

/// A CA for clients, and a folder for all its files.
struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a client with a certificate of this serial number.
    fn client(&self, serial: u64) -> Connector {
        let mut params = CertificateParams::new(vec![format!("device-{serial}")]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let identity = ClientIdentity {
            certificates: self.path("client.pem"),
            key: self.path("client.key"),
        };
        fs::write(&identity.certificates, certificate.pem()).unwrap();
        fs::write(&identity.key, key.serialize_pem()).unwrap();
        connector(Some(identity), Trust::Insecure)
    }

    /// Makes a list of revoked serial numbers that is due for renewal in `until`.
    fn list(&self, revoked: &[u64], until: i32) -> CertificateRevocationList {
        let revoked = revoked.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 6, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 6, 2),
            next_update: date_time_ymd(until, 6, 2),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap()
    }

    fn revoke(&self, revoked: &[u64]) {
        fs::write(
            self.path("crl.pem"),
            self.list(revoked, 2048).pem().unwrap(),
        )
        .unwrap();
    }

    /// Makes options that want certificates of this CA which are not on the list.
    fn options(&self) -> ListenOptions {
        ListenOptions {
            client_auth: ClientAuth::Required(self.path("ca.pem")),
            client_crls: vec![self.path("crl.pem")],
            ..listen_options()
        }
    }
}

fn connector(identity: Option<ClientIdentity>, trust: Trust) -> Connector {
    let options = ConnectOptions {
        identity,
        trust,
        ..connect_options()
    };
    Connector::new(options).unwrap()
}

async fn bind(scheme: Scheme, options: &ListenOptions) -> Listener {
    Listener::bind(&any_address(scheme), options).await.unwrap()
}

/// Runs a handshake that fails at both ends; returns the errors of the server and of the client.
async fn refused(connector: &Connector, listener: &mut Listener) -> (String, String) {
    let (client, server) = attempt(connector, listener).await;
    (
        server.unwrap_err().to_string(),
        client.unwrap_err().to_string(),
    )
}

over!(a_new_certificate_is_for_new_connections: tls, quic, wss);
async fn a_new_certificate_is_for_new_connections(scheme: Scheme) {
    let mut options = listen_options();
    let mut listener = bind(scheme, &options).await;
    let before = connector(None, Trust::Fingerprint(common::IDENTITY.fingerprint()));
    collect_ticket(&before, &mut listener).await;
    let (mut client, mut server) = connect(&before, &mut listener).await;

    let identity = ServerIdentity::self_signed().unwrap();
    options.identity = Some(identity.clone());
    listener.reload_handle().reload(&options).unwrap();
    for _ in 0..2 {
        send(&mut client, b"still here").await;
        assert_eq!(receive(&mut server, 10).await, b"still here");
        send(&mut server, b"so am I").await;
        assert_eq!(receive(&mut client, 7).await, b"so am I");
        // Others come while it is open.
        let after = connector(None, Trust::Fingerprint(identity.fingerprint()));
        let (other, _) = connect(&after, &mut listener).await;
        assert_eq!(other.info().peer_certificates, identity.chain());
    }

    // Its ticket does not spare it a look at the new certificate.
    let (_, error) = refused(&before, &mut listener).await;
    assert!(error.contains("certificate is not accepted"), "{error}");
}

over!(a_reload_without_a_change_leaves_tickets_good: tls, quic, wss);
async fn a_reload_without_a_change_leaves_tickets_good(scheme: Scheme) {
    let authority = Authority::new("clients");
    authority.revoke(&[]);
    let options = authority.options();
    let mut listener = bind(scheme, &options).await;
    let client = authority.client(7);
    let kind = collect_ticket(&client, &mut listener).await;
    assert_eq!(kind, HandshakeKind::Full);
    for _ in 0..3 {
        listener.reload_handle().reload(&options).unwrap();
        let kind = collect_ticket(&client, &mut listener).await;
        assert_eq!(kind, HandshakeKind::Resumed);
    }
}

over!(a_revoked_client_cannot_come_back_with_a_ticket: tls, quic, wss);
async fn a_revoked_client_cannot_come_back_with_a_ticket(scheme: Scheme) {
    let authority = Authority::new("clients");
    authority.revoke(&[]);
    let options = authority.options();
    let mut listener = bind(scheme, &options).await;
    let (bad, good) = (authority.client(7), authority.client(8));
    collect_ticket(&bad, &mut listener).await;
    collect_ticket(&good, &mut listener).await;
    let (mut open, mut served) = connect(&bad, &mut listener).await;
    assert_eq!(open.handshake(), HandshakeKind::Resumed);

    authority.revoke(&[5, 7]);
    listener.reload_handle().reload(&options).unwrap();
    let (error, _) = refused(&bad, &mut listener).await;
    assert!(error.contains("accepted: revoked"), "{error}");
    let kind = collect_ticket(&good, &mut listener).await;
    assert_eq!(kind, HandshakeKind::Full);
    let kind = collect_ticket(&good, &mut listener).await;
    assert_eq!(kind, HandshakeKind::Resumed);
    // Open connections are left to the application.
    send(&mut open, b"!").await;
    assert_eq!(receive(&mut served, 1).await, b"!");
}

over!(another_client_authority_voids_tickets: tls, quic, wss);
async fn another_client_authority_voids_tickets(scheme: Scheme) {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    old.revoke(&[]);
    new.revoke(&[]);
    let mut listener = bind(scheme, &old.options()).await;
    let client = old.client(7);
    collect_ticket(&client, &mut listener).await;
    listener.reload_handle().reload(&new.options()).unwrap();
    let (error, _) = refused(&client, &mut listener).await;
    assert!(error.contains("no trusted CA has signed it"), "{error}");
    collect_ticket(&new.client(7), &mut listener).await;
}

over!(revocation_lists_decide: tls, quic, wss);
async fn revocation_lists_decide(scheme: Scheme) {
    let authority = Authority::new("clients");
    let stranger = Authority::new("stranger");
    let client = authority.client(7);
    let current = authority.list(&[7], 2048);
    let mut both = stranger.list(&[9], 2048).pem().unwrap();
    both.push_str(&current.pem().unwrap());
    let expired = authority.list(&[9], 2025).pem().unwrap();
    for (list, enforce, problem) in [
        (
            current.pem().unwrap().into_bytes(),
            false,
            Some("accepted: revoked"),
        ),
        (current.der().to_vec(), false, Some("accepted: revoked")),
        (both.into_bytes(), false, Some("accepted: revoked")),
        (
            stranger.list(&[9], 2048).der().to_vec(),
            false,
            Some("no revocation list"),
        ),
        (expired.clone().into_bytes(), false, None),
        (expired.into_bytes(), true, Some("xpired")),
    ] {
        fs::write(authority.path("crl.pem"), list).unwrap();
        let options = ListenOptions {
            enforce_crl_expiry: enforce,
            ..authority.options()
        };
        let mut listener = bind(scheme, &options).await;
        match problem {
            None => drop(connect(&client, &mut listener).await),
            Some(problem) => {
                let (error, _) = refused(&client, &mut listener).await;
                assert!(error.contains(problem), "{problem}: {error}");
            }
        }
    }
}

over!(a_broken_file_leaves_the_configuration_in_force: tls, quic, wss);
async fn a_broken_file_leaves_the_configuration_in_force(scheme: Scheme) {
    let authority = Authority::new("clients");
    authority.revoke(&[]);
    let options = authority.options();
    let mut listener = bind(scheme, &options).await;
    let client = authority.client(7);
    collect_ticket(&client, &mut listener).await;

    fs::write(authority.path("broken"), "-----BEGIN X509 CRL-----\nAAAA").unwrap();
    fs::write(
        authority.path("other.key"),
        KeyPair::generate().unwrap().serialize_pem(),
    )
    .unwrap();
    let identity = |certificate: &Path, key: &Path| {
        Some(ServerIdentity::from_pem_files(certificate, key).unwrap())
    };
    let other_key = identity(&authority.path("ca.pem"), &authority.path("other.key"));
    for (file, options) in [
        (
            "broken",
            ListenOptions {
                client_crls: vec![authority.path("crl.pem"), authority.path("broken")],
                ..options.clone()
            },
        ),
        (
            "gone",
            ListenOptions {
                client_auth: ClientAuth::Required(authority.path("gone")),
                ..options.clone()
            },
        ),
        (
            "ca.pem",
            ListenOptions {
                client_crls: vec![authority.path("ca.pem")],
                ..options.clone()
            },
        ),
        (
            "other.key",
            ListenOptions {
                identity: other_key,
                ..options.clone()
            },
        ),
    ] {
        let error = listener.reload_handle().reload(&options).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(&*authority.path(file).to_string_lossy()),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
        let kind = collect_ticket(&client, &mut listener).await;
        assert_eq!(kind, HandshakeKind::Resumed, "{file}");
    }
}

over!(a_hundred_reloads_disturb_no_client: tls, quic, wss);
async fn a_hundred_reloads_disturb_no_client(scheme: Scheme) {
    const COUNT: usize = 100;
    let mut options = listen_options();
    let mut listener = bind(scheme, &options).await;
    let (handle, address) = (listener.reload_handle(), listener.local_address());
    let client = connector(None, Trust::Insecure);
    let serving = async {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..COUNT {
            let incoming = listener.accept().await.unwrap();
            tasks.spawn(async move {
                let mut link = incoming.handshake().await.unwrap();
                for _ in 0..3 {
                    let said = receive(&mut link, 4).await;
                    send(&mut link, &said).await;
                }
                link.close(common::SOON).await;
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    };
    let visiting = async {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..COUNT {
            let (client, address) = (client.clone(), address.clone());
            tasks.spawn(async move {
                let mut link = client.connect(&address).await.unwrap();
                for _ in 0..3 {
                    send(&mut link, b"ping").await;
                    assert_eq!(receive(&mut link, 4).await, b"ping");
                }
                link.close(common::SOON).await;
            });
            tokio::task::yield_now().await;
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    };
    let reloading = async {
        let identities = [(); 2].map(|()| ServerIdentity::self_signed().unwrap());
        for round in 0..COUNT {
            options.identity = Some(identities[round % 2].clone());
            handle.reload(&options).unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(serving, visiting, reloading);
}

over!(a_closed_listener_stays_closed: tls, quic, wss);
async fn a_closed_listener_stays_closed(scheme: Scheme) {
    let mut listener = bind(scheme, &listen_options()).await;
    let handle = listener.reload_handle();
    listener.close();
    // Prepared or not, a reload lets no client in again.
    handle.reload(&listen_options()).unwrap();
    assert!(matches!(listener.accept().await, Err(Error::Closed)));
    if scheme == Scheme::Quic {
        let client = connector(None, Trust::Insecure);
        let dial = Dial {
            timeout: Some(Duration::from_secs(1)),
            ..Dial::default()
        };
        let connecting = client.connect_with(&listener.local_address(), dial).await;
        assert!(connecting.is_err());
    }
    drop(listener);
    let gone = handle.reload(&listen_options());
    assert!(matches!(gone, Err(Error::Closed)), "{gone:?}");
}

#[tokio::test]
async fn connections_from_before_and_after_a_reload_are_reset_by_the_key_that_was_bound() {
    let mut options = listen_options();
    let mut listener = bind(Scheme::Quic, &options).await;
    let way = common::Way::to(&listener).await;
    let client = Connector::new(ConnectOptions {
        trust: Trust::Insecure,
        ..ConnectOptions::default()
    });
    let client = client.unwrap();
    let mut links = Vec::new();
    for _ in 0..2 {
        let connecting = common::connect_at(&client, &way.address, &mut listener);
        let (mut link, mut served) = connecting.await;
        // An unconfirmed handshake is never reset.
        for _ in 0..3 {
            send(&mut served, b"welcome").await;
            receive(&mut link, 7).await;
            send(&mut link, b"thanks").await;
            receive(&mut served, 6).await;
        }
        links.push((link, served));
        options.identity = Some(ServerIdentity::self_signed().unwrap());
        listener.reload_handle().reload(&options).unwrap();
    }
    let next = bind(Scheme::Quic, &listen_options()).await;
    *way.target.lock().unwrap() = next.local_address().port;
    for (link, _) in &mut links {
        send(link, &[0; 200]).await;
        let mut empty = Outbox::new();
        let told = link.progress(&mut empty, true);
        let error = tokio::time::timeout(common::SOON, told).await.unwrap();
        let error = error.unwrap_err().to_string();
        assert!(error.contains("lost the connection's state"), "{error}");
    }
}

#[tokio::test]
async fn without_tls_there_is_nothing_to_reload() {
    for scheme in [Scheme::Tcp, Scheme::Ws, Scheme::Mem] {
        let listener = bind(scheme, &ListenOptions::default()).await;
        let handle = listener.reload_handle();
        handle.reload(&ListenOptions::default()).unwrap();
    }
}

#[tokio::test]
async fn lists_without_a_client_authority_are_a_mistake() {
    let authority = Authority::new("clients");
    authority.revoke(&[]);
    let options = ListenOptions {
        client_auth: ClientAuth::Off,
        ..authority.options()
    };
    let bound = Listener::bind(&any_address(Scheme::Tls), &options).await;
    let error = bound.unwrap_err().to_string();
    assert!(error.ends_with("give a client CA as well"), "{error}");
}
