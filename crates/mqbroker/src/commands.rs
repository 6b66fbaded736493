//! The commands of `mqbroker`: everything but running a broker.

use std::{
    io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{anyhow, bail};
use clap::Subcommand;
use mq_broker::{
    Config, Error, Settings,
    auth::{FileAccess, Hashing, change_password},
    make_token_file,
};
use mq_transport::ClientAuth;

use crate::{backup, health, import::import, inspect::Ask, log};

/// A command of `mqbroker`; without one it runs a broker.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Set, add or remove a user's password in a password file
    ///
    /// Asks for the password on a terminal; otherwise reads the first line of standard input.
    Passwd {
        /// The file; made if it is missing, readable only by its owner
        file: PathBuf,
        /// The user
        user: String,
        /// Remove the user
        #[arg(long, conflicts_with = "scram")]
        delete: bool,
        /// Keep keys for SCRAM-SHA-256, so that a client need not send the password
        #[arg(long)]
        scram: bool,
    },
    /// Write a running broker's whole store to a file, while the broker goes on
    Backup {
        /// The broker's configuration file, with `admin.socket`
        config: PathBuf,
        /// The file, which must not exist yet; the broker's user has to be able to make it
        file: PathBuf,
    },
    /// Make a store from a backup, for a broker that does not run yet
    ///
    /// A backup that was cut off is refused.
    Restore {
        /// The backup
        backup: PathBuf,
        /// The store, `store.path` of the configuration, which must not exist yet
        store: PathBuf,
        /// Replace the store if it exists
        #[arg(long)]
        force: bool,
    },
    /// Read every file that a start with a configuration file would read, and print each mistake
    CheckConfig {
        /// Configuration file (TOML)
        file: PathBuf,
    },
    /// Translate a configuration file of mosquitto's, to standard output
    ///
    /// What mqbroker has nothing for is listed, with its line and the reason, in comments at the top and on
    /// standard error. A line without which there would be less protection than before stops the import.
    ImportMosquitto {
        /// Such as /etc/mosquitto/mosquitto.conf
        file: PathBuf,
        /// Leave out a line that stops the import, repeated: its number, or `FILE:NUMBER` in a file that is included
        #[arg(long, value_name = "LINE")]
        accept: Vec<String>,
    },
    /// Make a file with a new token for `[admin] token_file`, readable only by its owner
    Token {
        /// The file, which must not exist yet
        file: PathBuf,
    },
    /// Exit with 0 if a running broker serves, and with 1 if it does not
    Health(health::Place),
    /// Questions to a running broker
    #[command(flatten)]
    Ask(Ask),
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// If the command fails, in one line. `check-config` has printed each mistake to standard output by
    /// then.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Backup { config, file } => backup::back_up(&config, &file),
            Self::Health(place) => health::run(&place),
            Self::Ask(ask) => ask.run(),
            Self::ImportMosquitto { file, accept } => {
                let import = import(&file, &accept)?;
                let mut error = io::stderr().lock();
                for line in &import.left {
                    writeln!(error, "{line}")?;
                }
                for line in &import.stops {
                    writeln!(error, "{line}")?;
                }
                if !import.stops.is_empty() {
                    bail!(
                        "there would be less protection than with mosquitto: nothing was written"
                    );
                }
                io::stdout().lock().write_all(import.toml.as_bytes())?;
                Ok(())
            }
            Self::Token { file } => Ok(make_token_file(&file)?),
            Self::Restore {
                backup,
                store,
                force,
            } => backup::restore(&backup, &store, force),
            Self::Passwd {
                file,
                user,
                delete: true,
                ..
            } => Ok(change_password(&file, &user, None)?),
            Self::Passwd {
                file, user, scram, ..
            } => {
                let hashing = if scram {
                    Hashing::ScramSha256
                } else {
                    Hashing::Argon2id
                };
                let password = read_password(&user)?;
                let password = Some((password.as_bytes(), hashing));
                Ok(change_password(&file, &user, password)?)
            }
            Self::CheckConfig { file } => {
                let wrong = check(&file);
                let mut out = io::stdout().lock();
                if wrong.is_empty() {
                    writeln!(out, "{}: ok", file.display())?;
                    return Ok(());
                }
                for problem in &wrong {
                    writeln!(out, "{problem}")?;
                }
                bail!("{} cannot be used", file.display());
            }
        }
    }
}

/// Reads a password: asks twice on a terminal, otherwise takes the first line of standard input.
fn read_password(user: &str) -> anyhow::Result<String> {
    let input = io::stdin();
    let password = if input.is_terminal() {
        let password = ask(&format!("password of {user}: "))?;
        if ask("again: ")? != password {
            bail!("the two passwords are not the same");
        }
        password
    } else {
        let mut line = String::new();
        let mut limited = input.lock().take(1 << 16);
        io::BufReader::new(&mut limited)
            .read_line(&mut line)
            .map_err(|error| anyhow!("the password on standard input cannot be read: {error}"))?;
        line.trim_end_matches(['\n', '\r']).to_owned()
    };
    if password.is_empty() {
        bail!("the password is empty");
    }
    Ok(password)
}

/// Reads a line from the terminal without showing it.
#[cfg(unix)]
fn ask(prompt: &str) -> anyhow::Result<String> {
    use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

    /// Restores the terminal however the read ends, except by an interrupt.
    struct Restore(Termios);

    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
        }
    }

    let mut error = io::stderr();
    write!(error, "{prompt}")?;
    let before = tcgetattr(io::stdin())?;
    let mut silent = before.clone();
    silent.local_flags.remove(LocalFlags::ECHO);
    let restore = Restore(before);
    tcsetattr(io::stdin(), SetArg::TCSANOW, &silent)?;
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line);
    drop(restore);
    writeln!(error)?;
    read?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

#[cfg(not(unix))]
fn ask(_: &str) -> anyhow::Result<String> {
    bail!("the terminal would show it: give the password on standard input")
}

/// Lists the mistakes in a configuration, one line each.
fn check(path: &Path) -> Vec<String> {
    let config = match Config::read_all(path) {
        Ok(config) => config,
        Err(errors) => return errors.iter().map(ToString::to_string).collect(),
    };
    let mut wrong = Vec::new();
    if let Err(problem) = log::check(&config.log) {
        wrong.push(format!("{}: {problem}", path.display()));
    }
    let settings = match config.into_settings_all(path) {
        Ok(settings) => settings,
        Err(errors) => {
            wrong.extend(errors.iter().map(ToString::to_string));
            return wrong;
        }
    };
    let shown = path.display();
    let problems = settings.problems().into_iter();
    wrong.extend(problems.map(|problem| format!("{shown}: {problem}")));
    if let Err(error) = check_certificates(&settings) {
        wrong.push(error);
    }
    if let Some(cluster) = &settings.cluster
        && let Err(problem) = cluster.check_files()
    {
        wrong.push(format!("{}: cluster.{problem}", path.display()));
    }
    match settings.access.files().cloned().map(FileAccess::open) {
        Some(Err(Error::Access(mistakes))) => {
            wrong.extend(mistakes.iter().map(ToString::to_string));
        }
        Some(Err(error)) => wrong.push(error.to_string()),
        Some(Ok(_)) | None => {}
    }
    wrong
}

/// Checks that listeners can use the certificates, the key and the authorities.
fn check_certificates(settings: &Settings) -> Result<(), String> {
    let mut options = settings.listen.clone();
    if options.identity.is_none() {
        if options.client_auth == ClientAuth::Off {
            return Ok(());
        }
        // Without a certificate the broker makes one.
        let made = mq_transport::ServerIdentity::self_signed();
        options.identity = Some(made.map_err(|error| error.to_string())?);
    }
    options.check().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_mistake_of_a_configuration_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let config = place("config");
        let text = format!(
            "listen = [\"tls://127.0.0.1:0\"]\n[tls]\nclient_ca = {:?}\n\
             [auth]\npassword_file = {:?}\nacl_file = {:?}\n",
            place("ca"),
            place("passwords"),
            place("acl")
        );
        fs::write(&config, &text).unwrap();
        fs::write(place("passwords"), "ann:secret\n").unwrap();
        fs::write(place("acl"), "topic a\ntopc b\n").unwrap();
        let wrong = check(&config);
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert!(wrong[0].contains("ca"), "{wrong:?}");
        assert!(wrong[1].contains("passwords: line 1:"), "{wrong:?}");
        assert!(wrong[2].contains("acl: line 2:"), "{wrong:?}");

        fs::write(place("passwords"), "").unwrap();
        fs::write(place("acl"), "topic a\n").unwrap();
        let authority = mq_transport::ServerIdentity::self_signed().unwrap();
        fs::write(place("ca"), authority.certificate_pem()).unwrap();
        assert_eq!(check(&config), [""; 0]);
        #[cfg(feature = "jwt")]
        {
            fs::write(
                &config,
                format!("{text}[auth.jwt]\nkeys = {:?}\n", place("jwks")),
            )
            .unwrap();
            fs::write(
                place("jwks"),
                r#"{"keys": [{"kty": "RSA"}, {"kty": "EC"}]}"#,
            )
            .unwrap();
            let wrong = check(&config);
            assert_eq!(wrong.len(), 2, "{wrong:?}");
            assert!(
                wrong[0].ends_with("jwks: keys[0]: `n` is missing"),
                "{wrong:?}"
            );
            assert!(
                wrong[1].ends_with("jwks: keys[1]: `crv` is missing"),
                "{wrong:?}"
            );
        }
        #[cfg(feature = "cluster")]
        {
            let servers = "[cluster]\nnode = \"a\"\nservers = [\"tls://192.0.2.1\"]\n";
            let table = format!("{servers}ca = {:?}\n", place("no-ca"));
            fs::write(&config, table).unwrap();
            let wrong = check(&config);
            assert_eq!(wrong.len(), 1, "{wrong:?}");
            assert!(wrong[0].contains("cluster.ca: "), "{wrong:?}");
            let table = format!("{servers}ca = {:?}\n", place("ca"));
            fs::write(&config, table).unwrap();
            assert_eq!(check(&config), [""; 0]);
        }
        fs::write(&config, "listen = [\"x\"]").unwrap();
        assert_eq!(check(&config).len(), 1);
    }
}
