//! User-Mode Linux: a kernel that is a process of this machine, for tests that want a kernel of their own.

use std::{
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    sys::statvfs::{FsFlags, statvfs},
    unistd::{Gid, Uid, chown, geteuid},
};
use tempfile::TempDir;

use crate::{program, skipped};

/// The user nobody: as root, a guest could write the machine's files.
const NOBODY: u32 = 65_534;

/// Lets the kernel run on a processor that has AMX.
const MORE_REGISTERS: &str = include_str!("xstate.c");

/// The least number of free bytes with which a tmpfs is chosen for the memory of some kernels.
const ROOM: u64 = 1 << 30;

/// A kernel that can be started, and a folder that its guest may write.
///
/// The guest's root is the machine's file system, read-only, as an ordinary user sees it. Its first process is a program
/// of the machine, and is root in the guest.
#[derive(Debug)]
pub struct Uml {
    /// Path of the kernel that was found, such as the one in Debian's package.
    original: PathBuf,
    /// Path of the kernel's copy in `folder`, which is started.
    kernel: PathBuf,
    /// Path of the shared library that lets the kernel run on a processor with AMX.
    more_registers: PathBuf,
    folder: TempDir,
    /// `true` if this process is root on the machine, and not only in its own namespaces.
    is_root: bool,
}

impl Uml {
    /// Finds the kernel that `MQ_UML` names, or else the one of Debian's package user-mode-linux where `.ci/run`
    /// unpacks it: in `uml` beside the folder of this program's profile. Reports a skipped test if there is none, or no
    /// C compiler.
    ///
    /// Call it before this process enters other namespaces.
    ///
    /// # Panics
    /// As [`skipped`], and if files cannot be written.
    #[must_use]
    pub fn find() -> Option<Self> {
        let Some(original) = kernel() else {
            skipped(
                "no User-Mode Linux: `apt-get download user-mode-linux` and `dpkg -x` into target/uml, or \
                 MQ_UML=/path/to/linux.uml",
            );
            return None;
        };
        let cc = program(&["cc"])?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let more_registers = folder.path().join("xstate.so");
        let source = folder.path().join("xstate.c");
        std::fs::write(&source, MORE_REGISTERS).expect("a temporary file");
        let compiled = Command::new(cc)
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .args([&more_registers, &source])
            .status()
            .expect("a compiler runs");
        assert!(compiled.success(), "{} does not compile", source.display());
        let mut uml = Self {
            kernel: PathBuf::new(),
            original,
            more_registers,
            folder,
            is_root: geteuid().is_root(),
        };
        uml.kernel = uml.stage(&uml.original);
        uml.give(uml.folder());
        Some(uml)
    }

    /// Returns the folder that the guest may write.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Copies a file into [`folder`](Self::folder): the guest's user may not read the build's folder.
    ///
    /// # Panics
    /// If it cannot be copied.
    #[must_use]
    pub fn stage(&self, file: &Path) -> PathBuf {
        let copy = self.folder().join(file.file_name().expect("a file's name"));
        std::fs::copy(file, &copy).expect("a file can be copied");
        copy
    }

    /// Returns the folder of the kernel's modules, by versions.
    ///
    /// # Panics
    /// If there is no `../lib/uml/modules` beside the kernel's folder, where Debian's package has it.
    #[must_use]
    pub fn modules(&self) -> PathBuf {
        let directory = self.original.parent().unwrap_or(Path::new(""));
        let modules = directory.join("../lib/uml/modules").canonicalize();
        modules.expect("its modules beside it, as in Debian's package")
    }

    /// Starts the kernel with this first process, once the caller has added more of the kernel's parameters (`NAME=value`
    /// comes to the first process's environment), and has set input and output, which are the guest's console.
    ///
    /// The kernel is the leader of a process group, in which it has processes of its own: kill the group. Of root's
    /// capabilities it keeps those that are named, as setpriv(1) names them; an ordinary user's kernel keeps what it has.
    #[must_use]
    pub fn command(&self, init: &Path, capabilities: &[&str]) -> Command {
        let mut command = if self.is_root {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            let kept: Vec<_> = capabilities.iter().map(|one| format!("+{one}")).collect();
            let kept = kept.join(",");
            if !kept.is_empty() {
                command.arg(format!("--inh-caps={kept}"));
                command.arg(format!("--ambient-caps={kept}"));
            }
            command.arg("--").arg(&self.kernel);
            command
        } else {
            Command::new(&self.kernel)
        };
        command
            .args(["mem=256M", "rootfstype=hostfs", "rootflags=/", "ro"])
            .args(["quiet", "con=null", "con0=fd:0,fd:1", "panic=-1"])
            .arg(format!("init={}", init.display()))
            .env("TMPDIR", memory_folder().unwrap_or(self.folder()))
            .env("LD_PRELOAD", &self.more_registers)
            // The folder of its socket.
            .env("HOME", self.folder())
            .current_dir("/")
            .process_group(0);
        command
    }

    /// Lets the guest write a folder.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn give(&self, folder: &Path) {
        if self.is_root {
            let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
            chown(folder, Some(user), Some(group)).expect("root may give a folder away");
        }
    }
}

/// Finds the kernel that the environment names, or that is where the CI unpacks it: beside the directory of the
/// profile, which has a directory above it where a target was named.
fn kernel() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("MQ_UML") {
        return Some(named.into());
    }
    let own = std::env::current_exe().ok()?;
    own.ancestors()
        .skip(3)
        .take(2)
        .map(|target| target.join("uml/usr/bin/linux.uml"))
        .find(|kernel| kernel.exists())
}

/// Returns the folder of the kernel's memory, which is a file: on tmpfs where that has room, as the host writes a file
/// elsewhere to its disk, and a slow disk makes the guest many times slower.
fn memory_folder() -> Option<&'static Path> {
    let folder = Path::new("/dev/shm");
    let found = statvfs(folder).ok()?;
    let free = found.blocks_available() * found.fragment_size();
    let fits = free >= ROOM && !found.flags().contains(FsFlags::ST_NOEXEC);
    fits.then_some(folder)
}
