//! Starts the kernel, and reads the results of its tests.

use std::{
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio, exit},
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, killpg},
        statvfs::{FsFlags, statvfs},
    },
    unistd::{Gid, Pid, Uid, chown, geteuid},
};

use crate::{BOOTED, GUEST, KILLS, MQBENCH, ONLY, PASSED, guest::MODULES};

/// The time limit: twice the time on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(14);

/// The same for each kill.
const OF_A_KILL: Duration = Duration::from_mins(1);

/// Free bytes of a tmpfs that takes the kernel's memory of 256 MiB.
const ROOM: u64 = 1 << 30;

/// The user nobody: as root, the guest could write the host's files.
const NOBODY: u32 = 65_534;

pub(crate) fn main() {
    let own = std::env::current_exe().unwrap();
    let Some(kernel) = kernel(&own) else {
        mq_testkit::skipped(
            "no User-Mode Linux: `apt-get download user-mode-linux` and `dpkg -x` into target/uml, or \
             MQ_UML=/path/to/linux.uml",
        );
        return;
    };
    let directory = kernel.parent().unwrap_or(Path::new(""));
    let modules = directory.join("../lib/uml/modules").canonicalize();
    let modules = modules.expect("its modules beside it, as in Debian's package");
    let scratch = tempfile::tempdir().unwrap();
    let staged = |file: &Path| {
        // The guest's user may not read the build's folder.
        let copy = scratch.path().join(file.file_name().unwrap());
        std::fs::copy(file, &copy).unwrap();
        copy
    };
    let (own, kernel) = (staged(&own), staged(&kernel));
    let mqbench = staged(Path::new(env!("CARGO_BIN_EXE_mqbench")));
    stage_modules(&modules, scratch.path());
    let Some(more_registers) = more_registers(scratch.path()) else {
        return;
    };
    let mut command = if geteuid().is_root() {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        chown(scratch.path(), Some(user), Some(group)).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        command.arg(&kernel);
        command
    } else {
        Command::new(&kernel)
    };
    let kills = std::env::var(KILLS).unwrap_or_default();
    let timeout = TIMEOUT + OF_A_KILL * kills.parse().unwrap_or(0);
    let only = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let mut child = command
        .args([
            "mem=256M",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            "quiet",
        ])
        .args(["con=null", "con0=fd:0,fd:1", "panic=-1"])
        .arg(format!("init={}", own.display()))
        .arg(format!("{GUEST}={}", scratch.path().display()))
        .arg(format!("{MQBENCH}={}", mqbench.display()))
        .arg(format!("{ONLY}={}", only.unwrap_or_default()))
        .arg(format!("{KILLS}={kills}"))
        .env("TMPDIR", memory_folder().unwrap_or(scratch.path()))
        .env("LD_PRELOAD", more_registers)
        // The folder of its socket.
        .env("HOME", scratch.path())
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let group = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        let late = end.recv_timeout(timeout).is_err();
        if late {
            println!("the guest took more than {timeout:?} and is ended");
        }
        // The kernel has processes of its own, which would outlive it if it were killed.
        let _ = killpg(group, Signal::SIGKILL);
    });
    let (mut boot, mut booted, mut passed) = (String::new(), false, false);
    for line in BufReader::new(child.stdout.take().unwrap()).split(b'\n') {
        let line = String::from_utf8_lossy(&line.unwrap()).replace('\r', "");
        booted |= line == BOOTED;
        if booted {
            println!("{line}");
        } else {
            boot.push_str(&line);
            boot.push('\n');
        }
        passed |= line.starts_with(PASSED);
    }
    if !booted {
        print!("{boot}");
    }
    let _ = ended.send(());
    watch.join().unwrap();
    child.wait().unwrap();
    // An exit would not remove the folder.
    drop(scratch);
    exit(i32::from(!passed));
}

/// The library with which the kernel runs on a processor that has AMX; `None`, and the test says so, without a compiler.
fn more_registers(scratch: &Path) -> Option<PathBuf> {
    let cc = mq_testkit::program(&["cc"])?;
    let library = scratch.join("xstate.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel/xstate.c");
    let compiled = Command::new(cc)
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(compiled.success(), "{} does not compile", source.display());
    Some(library)
}

/// Named by the environment, or where the CI unpacks it: beside the directory of the profile, which
/// has a directory above it where a target was named.
fn kernel(own: &Path) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("MQ_UML") {
        return Some(named.into());
    }
    own.ancestors()
        .skip(3)
        .take(2)
        .map(|target| target.join("uml/usr/bin/linux.uml"))
        .find(|kernel| kernel.exists())
}

/// The modules that the tests need, of the version that is installed.
fn stage_modules(modules: &Path, to: &Path) {
    for version in modules.read_dir().unwrap() {
        let version = version.unwrap();
        for module in MODULES {
            let name = Path::new("kernel").join(module).with_extension("ko");
            let copy = to.join(version.file_name()).join(&name);
            std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
            // A built-in module has no file.
            let _ = std::fs::copy(version.path().join(&name), copy);
        }
    }
}

/// The folder of the kernel's memory, which is a file: on tmpfs where that has room, as the host writes a
/// file elsewhere to its disk, and a slow disk makes the guest many times slower.
fn memory_folder() -> Option<&'static Path> {
    let folder = Path::new("/dev/shm");
    let found = statvfs(folder).ok()?;
    let free = found.blocks_available() * found.fragment_size();
    let fits = free >= ROOM && !found.flags().contains(FsFlags::ST_NOEXEC);
    fits.then_some(folder)
}
