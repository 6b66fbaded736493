//! Problems of a start that the form of its files does not show, for `mqbroker check-config`.

use std::{collections::HashSet, path::Path};

use mq_transport::Scheme;

use super::Settings;
use crate::Storage;

/// Returns the problems of a start, one line each. The folder of the operators' socket is not among them: it is often in
/// `/run`, where systemd makes it at the start.
pub(super) fn problems(settings: &Settings) -> Vec<String> {
    let mut problems = same_addresses(settings);
    let store = settings.store.as_ref().and_then(Storage::file);
    for (key, file) in [
        ("store.path", store.map(|store| store.path.as_path())),
        ("tls.ticket_file", settings.ticket_file.as_deref()),
    ] {
        problems.extend(file.and_then(|file| missing_folder(key, file)));
    }
    #[cfg(feature = "tls")]
    problems.extend(certificates(settings));
    problems
}

/// Listeners at an address that another one has.
fn same_addresses(settings: &Settings) -> Vec<String> {
    let mut taken = HashSet::new();
    let mut problems = Vec::new();
    for address in &settings.listeners {
        let is_udp = address.scheme == Scheme::Quic;
        let place = (is_udp, address.host.as_str(), address.port);
        if address.port != 0 && !taken.insert(place) {
            problems.push(format!("listen: {address}: another listener has this port"));
        }
    }
    problems
}

fn missing_folder(key: &str, file: &Path) -> Option<String> {
    let folder = file.parent()?;
    let is_there = folder.as_os_str().is_empty() || folder.is_dir();
    (!is_there).then(|| format!("{key}: there is no folder {}", folder.display()))
}

/// Lists the problems for which clients refuse the certificates.
#[cfg(feature = "tls")]
fn certificates(settings: &Settings) -> Vec<String> {
    use x509_parser::{certificate::X509Certificate, prelude::FromDer as _, x509::X509Version};

    let Some(identity) = &settings.listen.identity else {
        return Vec::new();
    };
    let file = identity.files().map(|(chain, _)| chain.display());
    let place = file.map_or_else(|| "tls.certificate".to_owned(), |file| file.to_string());
    let mut problems = Vec::new();
    for (number, certificate) in identity.chain().iter().enumerate() {
        let number = number + 1;
        let Ok((_, certificate)) = X509Certificate::from_der(certificate.der()) else {
            problems.push(format!("{place}: certificate {number} is not X.509"));
            continue;
        };
        if certificate.version() != X509Version::V3 {
            let version = certificate.version().0 + 1;
            problems.push(format!(
                "{place}: certificate {number} is X.509 version {version}, which clients refuse: make one of version 3"
            ));
        }
        let validity = certificate.validity();
        if validity.is_valid() {
            continue;
        }
        let (from, to) = (validity.not_before, validity.not_after);
        let has_begun = from <= x509_parser::time::ASN1Time::now();
        problems.push(if has_begun {
            format!("{place}: certificate {number} has expired: it was valid until {to}")
        } else {
            format!("{place}: certificate {number} is not valid yet: it is from {from} on")
        });
    }
    problems
}
