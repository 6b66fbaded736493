//! The first process of a guest: it runs a NATS server, and lets the guest's clock jump.

use std::{
    fs,
    panic::catch_unwind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use nix::{
    mount::{MsFlags, mount},
    sys::{
        reboot::{RebootMode, reboot},
        time::TimeSpec,
    },
    time::{ClockId, clock_gettime, clock_settime},
};

use crate::guests::{Guests, batch};

/// Tells the program that it is the first process of a guest, and of which one. The kernel gets it as a parameter, and
/// hands it on.
pub(crate) const GUEST: &str = "MQ_FAULTS_GUEST";

/// Environment variable with the path of nats-server.
pub(crate) const PROGRAM: &str = "MQ_FAULTS_NATS";

/// The folder of the campaign.
pub(crate) const FOLDER: &str = "MQ_FAULTS_FOLDER";

/// Between two looks at how far the clock has to be off.
const LOOK: Duration = Duration::from_millis(100);

/// Serves until the guest is killed, or the server ends.
pub(crate) fn main(number: &str) {
    let served = catch_unwind(|| serve(number.parse().unwrap()));
    println!("the guest ends: {served:?}");
    let _ = reboot(RebootMode::RB_POWER_OFF);
}

fn serve(number: usize) {
    let of = |name| PathBuf::from(std::env::var_os(name).unwrap());
    let (program, folder) = (of(PROGRAM), of(FOLDER));
    let file = |name: &str| folder.join(format!("nats-{number}{name}"));
    let none = MsFlags::empty();
    mount(Some("proc"), "/proc", Some("proc"), none, None::<&str>).unwrap();
    // The same folder as on the machine, to be written.
    let store = file("");
    mount(Some("none"), &store, Some("hostfs"), none, Some(&store)).unwrap();
    let address = Guests::server(number);
    batch(&format!(
        "link set lo up\naddress add {address}/24 dev vec0\nlink set vec0 up\n"
    ))
    .unwrap();
    let mut clock = Clock::start(file(".clock"));
    clock.look();
    let mut command = Command::new(program);
    let command = command.arg("-c").arg(file(".conf"));
    let mut server = command.stdin(Stdio::null()).spawn().unwrap();
    while server.try_wait().unwrap().is_none() {
        clock.look();
        sleep(LOOK);
    }
}

/// The time of day, which is off by what a file says.
struct Clock {
    file: PathBuf,
    /// Wall-clock time at the start of the clock that does not jump.
    began: TimeSpec,
    /// In seconds.
    off: i64,
}

impl Clock {
    /// Starts the clock of a kernel, which begins with the machine's time of day.
    fn start(file: PathBuf) -> Self {
        let [day, steady] = [ClockId::CLOCK_REALTIME, ClockId::CLOCK_MONOTONIC]
            .map(|clock| clock_gettime(clock).unwrap());
        Self {
            file,
            began: day - steady,
            off: 0,
        }
    }

    fn look(&mut self) {
        let Some(off) = read(&self.file) else { return };
        if off == self.off {
            return;
        }
        let steady = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
        let day = self.began + steady + TimeSpec::new(off, 0);
        clock_settime(ClockId::CLOCK_REALTIME, day).unwrap();
        println!("the clock was off by {:+} s, and is by {off:+} s", self.off);
        self.off = off;
    }
}

fn read(file: &Path) -> Option<i64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
