//! Hosts that are reached by OpenSSH: this machine's own addresses, each with a server of the test.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The path of the ssh server, which requires an absolute one.
pub(crate) const SSHD: &str = "/usr/sbin/sshd";

/// The keys of one testbed, and the configuration of a client of its hosts.
pub(crate) struct Keys {
    folder: PathBuf,
}

impl Keys {
    /// Makes in this folder the key of all hosts, the one that they let in, and the configuration of a client, which
    /// has no hosts yet.
    pub(crate) fn make(folder: &Path) -> Self {
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(folder.join(key))
                .status()
                .unwrap();
            assert!(made.success());
        }
        fs::write(folder.join("ssh_config"), "").unwrap();
        fs::write(folder.join("known_hosts"), "").unwrap();
        Self {
            folder: folder.to_owned(),
        }
    }

    /// Returns the file for `--ssh-config`.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.folder.join("ssh_config")
    }

    /// Adds a host to the client's configuration.
    pub(crate) fn introduce(&self, name: &str, ip: &str, port: u16) {
        let at = |file: &str| self.folder.join(file).display().to_string();
        let mut text = fs::read_to_string(self.configuration()).unwrap();
        let (user, known) = (at("user"), at("known_hosts"));
        write!(
            text,
            "Host {name}\n  HostName {ip}\n  Port {port}\n  IdentityFile {user}\n  IdentitiesOnly yes\n  \
             UserKnownHostsFile {known}\n  GlobalKnownHostsFile none\n  StrictHostKeyChecking yes\n"
        )
        .unwrap();
        fs::write(self.configuration(), text).unwrap();
        let key = fs::read_to_string(self.folder.join("host.pub")).unwrap();
        let mut known = fs::read_to_string(self.folder.join("known_hosts")).unwrap();
        writeln!(known, "[{ip}]:{port} {}", key.trim()).unwrap();
        fs::write(self.folder.join("known_hosts"), known).unwrap();
    }

    /// Makes the command of an SSH server, which listens there and gives its sessions this environment.
    pub(crate) fn server(&self, ip: &str, port: u16, environment: &[(&str, &str)]) -> Command {
        let at = |file: &str| self.folder.join(file).display().to_string();
        let (host, user) = (at("host"), at("user.pub"));
        let mut text = format!(
            "ListenAddress {ip}:{port}\nHostKey {host}\nAuthorizedKeysFile {user}\nPidFile none\n\
             UsePAM no\nStrictModes no\nPasswordAuthentication no\n"
        );
        if !environment.is_empty() {
            let set = environment.iter();
            let set: Vec<_> = set.map(|(name, value)| format!("{name}={value}")).collect();
            writeln!(text, "SetEnv {}", set.join(" ")).unwrap();
        }
        let configuration = self.folder.join(format!("sshd-{ip}"));
        fs::write(&configuration, text).unwrap();
        let mut command = Command::new(SSHD);
        command.args(["-D", "-E"]);
        command.arg(self.folder.join(format!("log-{ip}")));
        command.arg("-f").arg(configuration);
        command.stdin(Stdio::null());
        command
    }
}
