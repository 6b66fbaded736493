//! The first process of the guest: prepares the system, and runs the tests.

use std::{
    fs::File,
    io::Write as _,
    panic::catch_unwind,
    path::{Path, PathBuf},
    time::Instant,
};

use nix::{
    kmod::{DeleteModuleFlags, ModuleInitFlags, delete_module, finit_module},
    mount::{MsFlags, mount},
    sys::reboot::{RebootMode, reboot},
};

use crate::{BOOTED, NIGHTLY, ONLY, PASSED, kills, refuse, restore, shape, testbed, verdicts};

pub(crate) type Test = (&'static str, fn());

/// The modules of Debian's kernel that the tests need.
pub(crate) const MODULES: &[&str] = &[
    "drivers/net/veth",
    "drivers/net/dummy",
    "drivers/net/ifb",
    "drivers/net/macvlan",
    "net/sched/sch_netem",
    "net/sched/sch_tbf",
    "net/sched/sch_htb",
    "net/sched/sch_fq",
    "net/sched/sch_fq_codel",
    "net/sched/sch_sfq",
    "net/sched/sch_cake",
    "net/sched/cls_u32",
    "net/sched/cls_matchall",
];

pub(crate) fn main(modules: &str) {
    let failed = catch_unwind(|| {
        prepare();
        println!("{BOOTED}");
        load(&directory(modules));
        run()
    });
    if failed.unwrap_or(1) > 0 {
        println!("test result: FAILED.");
    }
    let _ = std::io::stdout().flush();
    let _ = reboot(RebootMode::RB_POWER_OFF);
}

/// Tests that take minutes in this slow kernel. Each runs if `MQ_NIGHTLY` is set, or if it is asked for by name.
pub(crate) const NIGHTLY_TESTS: [&str; 3] = [
    "a_campaign_measures_the_link_that_it_sets",
    "three_hosts_and_one_machine_come_to_the_same_verdicts",
    "whatever_is_killed_nothing_remains_and_a_campaign_goes_on",
];

/// Returns the number of failed tests.
fn run() -> usize {
    let only = std::env::var(ONLY).unwrap_or_default();
    let nightly = std::env::var(NIGHTLY).is_ok_and(|value| !value.is_empty());
    let tests = [
        shape::TESTS,
        restore::TESTS,
        refuse::TESTS,
        testbed::TESTS,
        kills::TESTS,
        verdicts::TESTS,
    ]
    .concat();
    let mut chosen = tests
        .iter()
        .filter(|(name, _)| name.contains(&only))
        .peekable();
    assert!(chosen.peek().is_some(), "no test has {only} in its name");
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in chosen {
        if only.is_empty() && !nightly && NIGHTLY_TESTS.contains(name) {
            println!("test {name} ... ignored, MQ_NIGHTLY=1 runs it");
            continue;
        }
        let begin = Instant::now();
        let result = catch_unwind(test);
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        let took = begin.elapsed().as_secs_f64();
        println!("test {name} ... {verdict} ({took:.1} s)");
        if result.is_ok() {
            passed += 1;
        } else {
            failed += 1;
        }
    }
    if failed == 0 {
        println!("\n{PASSED} {passed} passed; 0 failed");
    }
    failed
}

fn prepare() {
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run")] {
        mount(Some(kind), at, Some(kind), MsFlags::empty(), None::<&str>).unwrap();
    }
    // EBUSY: the kernel has mounted it already.
    let _ = mount(
        Some("dev"),
        "/dev",
        Some("devtmpfs"),
        MsFlags::empty(),
        None::<&str>,
    );
    // The ssh server asks whether root's account is locked; an ordinary user cannot read that on the host.
    std::fs::write("/run/shadow", "root:*:19000:0:99999:7:::\n").unwrap();
    let bind = MsFlags::MS_BIND;
    mount(
        Some("/run/shadow"),
        "/etc/shadow",
        None::<&str>,
        bind,
        None::<&str>,
    )
    .unwrap();
    std::fs::write("/proc/sys/net/core/rmem_max", "16777216").unwrap();
}

fn directory(modules: &str) -> PathBuf {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    Path::new(modules).join(release.trim()).join("kernel")
}

fn load(directory: &Path) {
    for module in MODULES {
        let file = directory.join(module).with_extension("ko");
        // A built-in module has no file.
        let Ok(open) = File::open(&file) else {
            continue;
        };
        finit_module(&open, c"", ModuleInitFlags::empty())
            .unwrap_or_else(|error| panic!("cannot load {}: {error}", file.display()));
    }
}

/// Runs `work` in a kernel without the module, and loads the module again.
pub(crate) fn without_module(name: &str, work: impl FnOnce()) {
    let text = std::ffi::CString::new(name).unwrap();
    delete_module(&text, DeleteModuleFlags::O_NONBLOCK).unwrap();
    work();
    let directory = directory(&std::env::var(crate::GUEST).unwrap());
    let file = File::open(directory.join(format!("net/sched/{name}.ko"))).unwrap();
    finit_module(&file, c"", ModuleInitFlags::empty()).unwrap();
}
