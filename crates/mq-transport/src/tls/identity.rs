//! Certificates and private keys of this side.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::RootCertStore;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem, pem::PemObject};

use super::provider::sha256;
use crate::{Certificate, Error, files::read_regular_file};

/// A server's certificate chain and private key; cheap to clone.
#[derive(Clone)]
pub struct ServerIdentity {
    inner: Arc<Inner>,
}

struct Inner {
    chain: Vec<Certificate>,
    key: PrivateKeyDer<'static>,
    /// The files of the chain and of the key.
    files: Option<(PathBuf, PathBuf)>,
}

impl ServerIdentity {
    /// Loads a certificate chain, the server's own certificate first, and its key from PEM files.
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::InvalidFile`], naming the file.
    pub fn from_pem_files(
        certificates: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, Error> {
        let (certificates, key) = (certificates.as_ref(), key.as_ref());
        Ok(Self::new(
            certificates_of(&read_certificates("certificate", certificates)?),
            read_key(key)?,
            Some((certificates.to_owned(), key.to_owned())),
        ))
    }

    /// Takes a chain, the server's own certificate first, and its private key in DER form: PKCS #8,
    /// PKCS #1 or SEC 1. Binding a listener checks whether they fit each other.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if the key has another form.
    pub fn from_der(chain: Vec<Certificate>, key: Vec<u8>) -> Result<Self, Error> {
        let key = PrivateKeyDer::try_from(key).map_err(|_| Error::InvalidOption {
            option: "private key",
            value: "read from these bytes".into(),
            remedy: "give PKCS #8, PKCS #1 or SEC 1 in DER form".into(),
        })?;
        Ok(Self::new(chain, key, None))
    }

    fn new(
        chain: Vec<Certificate>,
        key: PrivateKeyDer<'static>,
        files: Option<(PathBuf, PathBuf)>,
    ) -> Self {
        let inner = Arc::new(Inner { chain, key, files });
        Self { inner }
    }

    /// Returns the files of the chain and of the key, if the identity was [loaded from files](Self::from_pem_files).
    #[must_use]
    pub fn files(&self) -> Option<(&Path, &Path)> {
        let (certificates, key) = self.inner.files.as_ref()?;
        Some((certificates, key))
    }

    /// Reads the identity's files again; returns the same identity where it did not come from files.
    ///
    /// # Errors
    /// As [`from_pem_files`](Self::from_pem_files).
    pub fn read_again(&self) -> Result<Self, Error> {
        match self.files() {
            Some((certificates, key)) => Self::from_pem_files(certificates, key),
            None => Ok(self.clone()),
        }
    }

    /// Makes a self-signed certificate for `localhost`, `127.0.0.1` and `::1`.
    ///
    /// For development: a client trusts it by its [`certificate_pem`](Self::certificate_pem) or
    /// its [`fingerprint`](Self::fingerprint).
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if no key can be made.
    pub fn self_signed() -> Result<Self, Error> {
        Self::self_signed_for(["localhost", "127.0.0.1", "::1"])
    }

    /// Makes a self-signed certificate for `names`: DNS names or IP addresses.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if a name cannot stand in a certificate.
    pub fn self_signed_for<N: Into<String>>(
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self, Error> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let shown = names.join(", ");
        let made = rcgen::generate_simple_self_signed(names);
        let made = made.map_err(|error| Error::InvalidOption {
            option: "self-signed certificate",
            value: format!("made for {shown}"),
            remedy: format!("{error}; give DNS names or IP addresses"),
        })?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let own = Certificate::from_der(made.cert.der().to_vec());
        Ok(Self::new(vec![own], key.into(), None))
    }

    /// Returns the SHA-256 of the server's own certificate (its DER form), as 64 lower-case hexadecimal digits: what
    /// [`Trust::Fingerprint`](crate::Trust::Fingerprint) takes.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let digest = self.chain().first().map(|own| sha256(own.der()));
        hex(&digest.unwrap_or_default())
    }

    /// Returns the server's own certificate in PEM form, for a client's CA file.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        self.chain()
            .first()
            .map_or_else(String::new, |own| to_pem(own.der()))
    }

    /// Returns the certificate chain, the server's own certificate first.
    #[must_use]
    pub fn chain(&self) -> &[Certificate] {
        &self.inner.chain
    }

    /// Returns the chain in the type of rustls.
    pub(crate) fn ders(&self) -> Vec<CertificateDer<'static>> {
        let ders = self.chain().iter().map(Certificate::der);
        ders.map(|der| der.to_vec().into()).collect()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        self.inner.key.clone_key()
    }
}

impl fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerIdentity")
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

/// Turns rustls' certificates into this crate's.
pub(crate) fn certificates_of(chain: &[CertificateDer<'_>]) -> Vec<Certificate> {
    let ders = chain.iter().map(|certificate| certificate.to_vec());
    ders.map(Certificate::from_der).collect()
}

/// Reads all certificates of a PEM file; at least one must be there.
pub(crate) fn read_certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, Error> {
    parse_pem(what, path, &read_file(what, path)?)
}

pub(crate) fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>, Error> {
    read_regular_file(path).map_err(|source| Error::File {
        what,
        path: path.to_owned(),
        source,
    })
}

/// Reads all objects of one kind from the text of a PEM file; at least one must be there.
pub(crate) fn parse_pem<T: PemObject>(
    what: &'static str,
    path: &Path,
    text: &[u8],
) -> Result<Vec<T>, Error> {
    let objects: Vec<T> = T::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|error| pem_error(what, path, error))?;
    if objects.is_empty() {
        return Err(pem_error(what, path, pem::Error::NoItemsFound));
    }
    Ok(objects)
}

/// Reads the certificates of a PEM file as authorities.
pub(crate) fn parse_authorities(
    what: &'static str,
    path: &Path,
    text: &[u8],
) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in parse_pem(what, path, text)? {
        let added = roots.add(certificate);
        added.map_err(|error| invalid_file(what, path, &error))?;
    }
    Ok(roots)
}

/// Reads the first private key of a PEM file.
pub(crate) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let text = read_file("private key", path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| pem_error("private key", path, error))
}

fn pem_error(what: &'static str, path: &Path, error: pem::Error) -> Error {
    let reason = match error {
        pem::Error::Io(source) => {
            let path = path.to_owned();
            return Error::File { what, path, source };
        }
        pem::Error::NoItemsFound => format!("it holds no {what} in PEM form (-----BEGIN ...)"),
        other => format!("{other}; it should be PEM (-----BEGIN ...)"),
    };
    invalid_file(what, path, &reason)
}

pub(crate) fn invalid_file(what: &'static str, path: &Path, reason: &dyn fmt::Display) -> Error {
    Error::InvalidFile {
        what,
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Encodes in Base64, in lines of 64 between PEM's two marks.
fn to_pem(der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let mut word = [0; 3];
            word[..group.len()].copy_from_slice(group);
            let word = u32::from_be_bytes([0, word[0], word[1], word[2]]);
            for index in 0..4 {
                let sextet = (word >> (18 - 6 * index)) & 63;
                let padding = index > group.len();
                let letter = ALPHABET[sextet as usize];
                text.push(if padding { '=' } else { char::from(letter) });
            }
        }
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_written_is_read_back() {
        for length in [0, 1, 2, 3, 47, 48, 49, 500] {
            let der: Vec<u8> = (0..length)
                .map(|n| u8::try_from(n % 251).unwrap())
                .collect();
            let pem = to_pem(&der);
            let read = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
            assert_eq!(&read[..], &der[..], "{length} bytes");
        }
    }

    #[test]
    fn files_that_are_missing_or_not_pem_are_named() {
        let missing = ServerIdentity::from_pem_files("/no/such/cert.pem", "/no/such/key.pem");
        assert_eq!(
            missing.unwrap_err().to_string(),
            "cannot read the certificate file `/no/such/cert.pem`: \
             No such file or directory (os error 2)"
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cert.pem");
        std::fs::write(&path, "hello").unwrap();
        let error = ServerIdentity::from_pem_files(&path, &path).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("holds no certificate in PEM form"),
            "{error}"
        );
    }
}
