//! The user name of a client certificate.

use mq_codec::ByteStr;
use mq_transport::Certificate;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _};

/// The part of a client's certificate that is its user name. As text: `cn`, `san-dns`, `san-uri`,
/// `san-email`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CertificateUser {
    /// The common name of the subject, which must have exactly one.
    Cn,
    /// The first DNS name of the subject alternative names (RFC 5280 §4.2.1.6).
    SanDns,
    /// The first URI of the subject alternative names.
    SanUri,
    /// The first mail address of the subject alternative names.
    SanEmail,
}

/// Returns the user name in a certificate; `None` if that part is absent, empty or no MQTT string.
pub(super) fn user(certificate: &Certificate, part: CertificateUser) -> Option<ByteStr> {
    let (_, certificate) = X509Certificate::from_der(certificate.der()).ok()?;
    if part == CertificateUser::Cn {
        let mut names = certificate.subject().iter_common_name();
        let (Some(name), None) = (names.next(), names.next()) else {
            return None;
        };
        return to_user(name.as_str().ok()?);
    }
    let alternatives = certificate.subject_alternative_name().ok()??;
    let mut names = alternatives.value.general_names.iter();
    let name = names.find_map(|name| match (part, name) {
        (CertificateUser::SanDns, GeneralName::DNSName(name))
        | (CertificateUser::SanUri, GeneralName::URI(name))
        | (CertificateUser::SanEmail, GeneralName::RFC822Name(name)) => Some(*name),
        _ => None,
    })?;
    to_user(name)
}

fn to_user(name: &str) -> Option<ByteStr> {
    ByteStr::new(name).ok().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(names: &[&str], alternatives: Vec<SanType>) -> Certificate {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = alternatives;
        let key = KeyPair::generate().unwrap();
        let signed = params.self_signed(&key).unwrap();
        Certificate::from_der(signed.der().to_vec())
    }

    #[test]
    fn each_part_of_a_certificate_can_be_the_user() {
        let alternatives = vec![
            SanType::DnsName("one.example".try_into().unwrap()),
            SanType::DnsName("two.example".try_into().unwrap()),
            SanType::URI("urn:dev:7".try_into().unwrap()),
            SanType::Rfc822Name("a@example".try_into().unwrap()),
        ];
        let certificate = certificate(&["device-7"], alternatives);
        for (part, name) in [
            (CertificateUser::Cn, "device-7"),
            (CertificateUser::SanDns, "one.example"),
            (CertificateUser::SanUri, "urn:dev:7"),
            (CertificateUser::SanEmail, "a@example"),
        ] {
            assert_eq!(user(&certificate, part).unwrap(), *name, "{part:?}");
        }
    }

    #[test]
    fn a_certificate_without_such_a_name_names_nobody() {
        let bare = certificate(&[], Vec::new());
        let dns = vec![SanType::DnsName("one.example".try_into().unwrap())];
        assert_eq!(user(&bare, CertificateUser::SanDns), None);
        assert_eq!(
            user(&certificate(&["x"], dns), CertificateUser::SanUri),
            None
        );
        for odd in ["", "a\0b"] {
            let odd = certificate(&[odd], Vec::new());
            assert_eq!(user(&odd, CertificateUser::Cn), None);
        }
        let garbage = Certificate::from_der(vec![0x30, 3, 1, 2, 3]);
        assert_eq!(user(&garbage, CertificateUser::Cn), None);
    }
}
