//! Keys and certificates of both sides, and whom each of them knows.

use std::{
    fs,
    io::{self, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use mq_transport::{ClientAuth, ServerIdentity};
use rcgen::{CertificateParams, DnType, KeyPair};
use sha2::{Digest as _, Sha256};

use super::{
    SERVER_NAME,
    code::{Code, hex},
    folder::create_private,
};

/// How long a code is good.
pub(super) const CODE_LASTS: Duration = Duration::from_mins(10);

/// What an agent keeps: its own key, the certificates of its controllers, and the code that is open.
#[derive(Clone, Debug)]
pub(super) struct AgentState(PathBuf);

impl AgentState {
    /// Opens the folder; makes it, and a key, where there are none.
    pub(super) fn open(folder: &Path) -> anyhow::Result<Self> {
        make_identity(folder, "agent")?;
        Ok(Self(folder.to_owned()))
    }

    pub(super) fn identity(&self) -> anyhow::Result<ServerIdentity> {
        let files = (self.0.join("agent.pem"), self.0.join("agent.key"));
        Ok(ServerIdentity::from_pem_files(files.0, files.1)?)
    }

    pub(super) fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    /// Which clients are let in: those who are known, and until an enrolment is over those who are not.
    pub(super) fn client_auth(&self) -> ClientAuth {
        let known = self.controllers();
        if known.exists() {
            ClientAuth::Optional(known)
        } else {
            ClientAuth::Off
        }
    }

    fn controllers(&self) -> PathBuf {
        self.0.join("controllers.pem")
    }

    fn code(&self) -> PathBuf {
        self.0.join("code")
    }

    /// Makes the code that is good from now on, for [`CODE_LASTS`] and one enrolment.
    pub(super) fn open_code(&self, secret: [u8; 10]) -> anyhow::Result<Code> {
        let identity = self.identity()?;
        let certificate = identity
            .chain()
            .first()
            .context("there is no certificate")?;
        let code = Code::new(secret, certificate);
        let hash = hex(&Sha256::digest(code.secret()));
        // Its age is the file's.
        write_private(&self.code(), hash.as_bytes())?;
        Ok(code)
    }

    /// Takes a controller's certificate if it has the code that is open, which is used up then, be it
    /// the right one or not: guessing has one try.
    ///
    /// # Errors
    /// Why it is not taken.
    pub(super) fn enrol(&self, secret: &str, certificate: &str) -> anyhow::Result<()> {
        let file = self.code();
        let Ok(hash) = fs::read_to_string(&file) else {
            bail!("no code is open here, or it was used: `mqbench agent code` makes one");
        };
        let made = fs::metadata(&file).and_then(|meta| meta.modified());
        fs::remove_file(&file).context("cannot use up the code")?;
        let age = SystemTime::now().duration_since(made?).unwrap_or_default();
        if age > CODE_LASTS {
            bail!("the code is older than ten minutes: `mqbench agent code` makes another");
        }
        if hex(&Sha256::digest(secret)) != hash {
            bail!("the code is wrong, and used up now: `mqbench agent code` makes another");
        }
        if certificate.matches("-----BEGIN CERTIFICATE-----").count() != 1 {
            bail!("the controller's certificate is none");
        }
        let known = self.controllers();
        let mut all = fs::read_to_string(&known).unwrap_or_default();
        all.push_str(certificate);
        write_private(&known, all.as_bytes())
    }
}

/// What a controller keeps: its own key, and the certificates of agents by their addresses.
#[derive(Clone, Debug)]
pub(super) struct ControllerState(PathBuf);

impl ControllerState {
    pub(super) fn open(folder: &Path) -> anyhow::Result<Self> {
        make_identity(folder, "controller")?;
        Ok(Self(folder.to_owned()))
    }

    pub(super) fn certificate(&self) -> PathBuf {
        self.0.join("controller.pem")
    }

    pub(super) fn key(&self) -> PathBuf {
        self.0.join("controller.key")
    }

    fn agents(&self) -> PathBuf {
        self.0.join("agents")
    }

    /// The SHA-256 of the certificate of the agent there.
    pub(super) fn fingerprint(&self, agent: SocketAddr) -> anyhow::Result<String> {
        let known = self.known()?;
        let found = known
            .into_iter()
            .find(|(address, _)| *address == agent.to_string());
        let found = found.with_context(|| {
            format!("{agent} is not enrolled: `mqbench hosts add {agent} CODE`")
        })?;
        Ok(found.1)
    }

    pub(super) fn remember(&self, agent: SocketAddr, fingerprint: &str) -> anyhow::Result<()> {
        let mut known = self.known()?;
        known.retain(|(address, _)| *address != agent.to_string());
        known.push((agent.to_string(), fingerprint.to_owned()));
        let lines = known.iter().map(|(at, print)| format!("{at} {print}\n"));
        write_private(&self.agents(), lines.collect::<String>().as_bytes())
    }

    fn known(&self) -> anyhow::Result<Vec<(String, String)>> {
        let path = self.agents();
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let pairs = text.lines().filter_map(|line| line.split_once(' '));
        Ok(pairs
            .map(|(at, print)| (at.to_owned(), print.to_owned()))
            .collect())
    }
}

/// Makes `NAME.pem` and `NAME.key` in the folder, where they are not there.
fn make_identity(folder: &Path, name: &str) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (certificate, key) = (
        folder.join(format!("{name}.pem")),
        folder.join(format!("{name}.key")),
    );
    if certificate.exists() && key.exists() {
        return Ok(());
    }
    let pair = KeyPair::generate().context("cannot make a key")?;
    let mut params = CertificateParams::new([SERVER_NAME.to_owned()])?;
    // Names that differ, so that one is never tried for another.
    let own = hex(&Sha256::digest(pair.public_key_raw())[..8]);
    let common = format!("mqbench {name} {own}");
    params.distinguished_name.push(DnType::CommonName, common);
    let made = params
        .self_signed(&pair)
        .context("cannot make a certificate")?;
    write_private(&key, pair.serialize_pem().as_bytes())?;
    write_private(&certificate, made.pem().as_bytes())
}

/// Writes a file for its owner alone: all of it, or what was there before.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    let write = || {
        let mut file = create_private(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

    #[test]
    fn a_code_is_good_once_and_a_guess_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let state = AgentState::open(folder.path()).unwrap();
        let says = |secret: &str| {
            let error = state.enrol(secret, CERTIFICATE).unwrap_err();
            error.to_string()
        };
        assert!(says("00").contains("no code is open"));
        let code = state.open_code([1; 10]).unwrap();
        assert!(says("00").contains("wrong, and used up"));
        assert!(says(&code.secret()).contains("no code is open"));
        let code = state.open_code([2; 10]).unwrap();
        state.enrol(&code.secret(), CERTIFICATE).unwrap();
        assert!(says(&code.secret()).contains("no code is open"));
        let ClientAuth::Optional(known) = state.client_auth() else {
            panic!("somebody is known");
        };
        assert_eq!(fs::read_to_string(known).unwrap(), CERTIFICATE);
    }

    #[test]
    fn an_old_code_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let state = AgentState::open(folder.path()).unwrap();
        let code = state.open_code([1; 10]).unwrap();
        let long_ago = SystemTime::now() - CODE_LASTS - Duration::from_secs(1);
        let file = fs::File::options().write(true).open(state.code()).unwrap();
        file.set_modified(long_ago).unwrap();
        let error = state.enrol(&code.secret(), CERTIFICATE).unwrap_err();
        assert!(error.to_string().contains("older"), "{error}");
    }

    #[test]
    fn keys_stay_and_are_their_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let first = AgentState::open(folder.path()).unwrap().identity().unwrap();
        let again = AgentState::open(folder.path()).unwrap().identity().unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let meta = fs::metadata(folder.path().join("agent.key")).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn an_agent_is_known_by_its_address() {
        let folder = tempfile::tempdir().unwrap();
        let state = ControllerState::open(folder.path()).unwrap();
        let agent: SocketAddr = "192.0.2.1:7883".parse().unwrap();
        let error = state.fingerprint(agent).unwrap_err().to_string();
        assert!(error.contains("hosts add 192.0.2.1:7883"), "{error}");
        for print in ["aa", "bb"] {
            state.remember(agent, print).unwrap();
            assert_eq!(state.fingerprint(agent).unwrap(), print);
        }
    }
}
