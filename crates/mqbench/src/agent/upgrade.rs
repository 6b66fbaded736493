//! Another program in the place of the installed one, which a controller has sent.
//!
//! ```text
//!   state/bin/mqbench    the program
//!   state/bin/replaces   SHA-256 of the installed program that it stands in for
//!   state/bin/trial      there from when it is executed until it listens
//! ```
//!
//! What is installed is what a service starts, and it hands over by execve(2): the same process, with the
//! rights that it has. It keeps a way back: a program is taken only once it has been an agent here, in a
//! folder of its own, and one that was executed and never listened is put aside at the next start. Whoever
//! installs another program has the last word: what was sent stood in for the one before.

use std::{
    ffi::OsString,
    fs::{self, File, Permissions},
    io::{self, Read as _},
    net::SocketAddr,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail};
use mq_transport::Address;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

use super::{
    Controller,
    children::{START, last},
    code::hex,
    identity::write_private,
    open_code,
};

/// The SHA-256 of a file, as a report has it.
pub(super) fn digest(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&piece[..read]),
        }
    }
}

/// Makes sure that a file is the program that was meant, and can be an agent on this host.
///
/// # Errors
/// Why it is not. Nothing but `folder`, which is its own meanwhile, has changed.
pub(super) async fn check(program: &Path, sha256: &str, folder: &Path) -> anyhow::Result<()> {
    if digest(program).context("cannot read the program")? != sha256 {
        bail!("the program's SHA-256 is not the one that was said: it is incomplete or another");
    }
    is_of_this_host(program)?;
    fs::set_permissions(program, Permissions::from_mode(0o700))
        .context("cannot make the program executable")?;
    try_out(program, sha256, folder)
        .await
        .context("the program cannot be an agent here")
}

fn is_of_this_host(program: &Path) -> anyhow::Result<()> {
    let own = kind(Path::new("/proc/self/exe")).context("cannot read this program")?;
    match kind(program).context("cannot read the program")? {
        None => bail!("the file is no program of Linux (ELF)"),
        kind if kind != own => bail!(
            "the program is for another architecture: this host's is {}",
            std::env::consts::ARCH
        ),
        Some(_) => Ok(()),
    }
}

/// Word size, byte order and machine of an ELF file; `None` if it is none.
fn kind(program: &Path) -> io::Result<Option<[u8; 4]>> {
    let mut head = Vec::new();
    File::open(program)?.take(20).read_to_end(&mut head)?;
    let is_elf = head.len() == 20 && head.starts_with(b"\x7fELF");
    Ok(is_elf.then(|| [head[4], head[5], head[18], head[19]]))
}

/// Has the program be an agent with a state of its own, and enrols there as any controller would: so it
/// runs on this host, listens, keeps keys, and speaks the protocol that brought it here.
async fn try_out(program: &Path, sha256: &str, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).context("cannot write to the work folder")?;
    let said = folder.join("said");
    let log = File::create(&said).context("cannot write to the work folder")?;
    // Every later version has to know these arguments.
    let mut child = Command::new(program)
        .args(["--end-with-input", "agent", "run", "--listen=127.0.0.1:0"])
        .arg("--state")
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .context("it cannot be started")?;
    let output = child.stdout.take().context("it has no output")?;
    let mut lines = BufReader::new(output).lines();
    let line = timeout(START, lines.next_line()).await;
    let line = line.context("it did not listen in time")??;
    let listens = line.and_then(|line| line.parse::<Address>().ok());
    let Some(at) = listens else {
        bail!("it did not listen: {}", last(&said));
    };
    let address = SocketAddr::new(at.host.parse()?, at.port);
    let controller = Controller::open(&folder.join("controller"))?;
    let code = open_code(folder)?;
    let asked = timeout(START, controller.introduce(address, &code)).await;
    let (reply, _) = asked.context("it did not answer in time")??;
    // What else a newer one says is its own affair. One from before there were upgrades could never be
    // replaced by this way again.
    if reply["report"]["program"] != sha256 {
        let why = reply["why"].as_str();
        bail!("{}", why.unwrap_or("it does not say which program it is"));
    }
    child.kill().await.context("cannot end it")
}

/// Where a program is kept that was sent.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    folder: PathBuf,
}

impl Slot {
    pub(super) fn of(state: &Path) -> Self {
        Self {
            folder: state.join("bin"),
        }
    }

    fn program(&self) -> PathBuf {
        self.folder.join("mqbench")
    }

    fn replaces(&self) -> PathBuf {
        self.folder.join("replaces")
    }

    fn trial(&self) -> PathBuf {
        self.folder.join("trial")
    }

    /// Whether the program in this file is the one that is kept here.
    fn holds(&self, program: &Path) -> bool {
        let path = |path: &Path| path.canonicalize().ok();
        path(&self.program()).is_some_and(|kept| path(program) == Some(kept))
    }

    /// Keeps a program that has been [checked](check), and is on the same file system: all of it, or what
    /// was kept before. The program that runs is `own`, with this digest.
    pub(super) fn keep(&self, program: &Path, own: &Path, digest: &str) -> anyhow::Result<()> {
        let keep = || {
            fs::create_dir_all(&self.folder)?;
            // One that was sent itself stands in for the installed one, and so does the next.
            if !self.holds(own) {
                write_private(&self.replaces(), digest.as_bytes())?;
            }
            fs::rename(program, self.program())?;
            File::open(&self.folder)?.sync_all()?;
            anyhow::Ok(())
        };
        keep().with_context(|| format!("cannot write to {}", self.folder.display()))
    }

    /// Whether the installed program, which is `own` with this digest, has to hand over to the one that is
    /// kept here. Says why not, where one is here.
    pub(super) fn is_next(&self, own: &Path, digest: &str) -> anyhow::Result<bool> {
        if !self.program().exists() || self.holds(own) {
            return Ok(false);
        }
        let why = if self.trial().exists() {
            "it was executed and did not listen".to_owned()
        } else if fs::read_to_string(self.replaces()).is_ok_and(|replaces| replaces == digest) {
            // What is damaged would be taken for a script, execvp(3).
            match is_of_this_host(&self.program()) {
                Ok(()) => return Ok(true),
                Err(damaged) => format!("{damaged:#}"),
            }
        } else {
            "another program has been installed since".to_owned()
        };
        self.put_aside(&why)?;
        Ok(false)
    }

    fn put_aside(&self, why: &str) -> anyhow::Result<()> {
        let aside = self.program().with_extension("aside");
        fs::rename(self.program(), &aside).context("cannot put aside the program that was sent")?;
        eprintln!(
            "mqbench agent: the program that a controller sent is put aside as {}: {why}",
            aside.display()
        );
        self.listens()
    }

    /// The program that is kept here has come so far that it listens.
    pub(super) fn listens(&self) -> anyhow::Result<()> {
        match fs::remove_file(self.trial()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).context("cannot end the trial of the program that was sent")
            }
            _ => Ok(()),
        }
    }

    /// Goes on as the program that is kept here. Returns only if that cannot be, and then it is not kept
    /// any more.
    pub(crate) fn execute(&self, arguments: &[OsString]) -> anyhow::Error {
        if let Err(error) = write_private(&self.trial(), b"") {
            return error;
        }
        let program = self.program();
        eprintln!("mqbench agent: going on as {}", program.display());
        // Sockets and pipes of this one are closed by it.
        let error = std::process::Command::new(&program).args(arguments).exec();
        let error = anyhow::Error::new(error);
        let aside = self.put_aside("it cannot be executed");
        error.context(match aside {
            Ok(()) => format!("cannot execute {}", program.display()),
            Err(aside) => format!("{aside:#}"),
        })
    }
}
