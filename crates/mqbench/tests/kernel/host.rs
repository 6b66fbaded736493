//! Starts the kernel, and reads the results of its tests.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Stdio, exit},
    time::Duration,
};

use mq_testkit::Uml;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::{BOOTED, GUEST, KILLS, MQBENCH, NIGHTLY, ONLY, PASSED, guest::MODULES};

/// Timeout of the tests: twice their time on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(14);

/// Addition to the timeout for each kill.
const OF_A_KILL: Duration = Duration::from_mins(1);

pub(crate) fn main() {
    let Some(uml) = Uml::find() else {
        return;
    };
    let own = uml.stage(&std::env::current_exe().unwrap());
    let mqbench = uml.stage(Path::new(env!("CARGO_BIN_EXE_mqbench")));
    stage_modules(&uml.modules(), uml.folder());
    let nightly = std::env::var(NIGHTLY).unwrap_or_default();
    let kills = std::env::var(KILLS).unwrap_or_default();
    let timeout = TIMEOUT + OF_A_KILL * kills.parse().unwrap_or(0);
    let only = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let mut child = uml
        .command(&own, &[])
        .arg(format!("{GUEST}={}", uml.folder().display()))
        .arg(format!("{MQBENCH}={}", mqbench.display()))
        .arg(format!("{ONLY}={}", only.unwrap_or_default()))
        .arg(format!("{NIGHTLY}={nightly}"))
        .arg(format!("{KILLS}={kills}"))
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
    drop(uml);
    exit(i32::from(!passed));
}

/// Copies the modules that the tests need, of the version that is installed.
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
