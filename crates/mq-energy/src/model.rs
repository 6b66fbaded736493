//! A meter that needs no instrument: CPU time, packets and bytes, each times a profile's coefficient.
//!
//! CPU time is from `/proc/stat`, in ticks of 10 ms. Packets and bytes are from `/proc/net/dev`, of all
//! interfaces but the loopback. Both cover the whole machine, as a meter in its supply does.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::counter::Counted;
use super::profile::{Activity, Profile};
use super::{Basis, Error, Meter, Note, Recording, Series, not_started, since};

/// Mount point of procfs, whose files hold the kernel's counters.
pub const ROOT: &str = "/proc";

/// A tick of `/proc/stat`: `USER_HZ` is 100 on every architecture.
const TICK_NS: u64 = 10_000_000;

/// A machine's counters since it was switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    cpu_ns: u64,
    packets_sent: u64,
    packets_received: u64,
    bytes_sent: u64,
    bytes_received: u64,
}

impl Counters {
    /// Reads the counters of this machine; `root` is [`ROOT`] except in tests.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn read(root: &Path) -> Result<Self, Error> {
        let file = |name: &str| -> Result<(PathBuf, String), Error> {
            let path = root.join(name);
            let text = fs::read_to_string(&path).map_err(Error::io(&path))?;
            Ok((path, text))
        };
        let unfit =
            |path: PathBuf, expected: &str| Error::format(&path, expected, "something else");
        let (path, stat) = file("stat")?;
        let cpu_ns = parse_stat(&stat).ok_or_else(|| unfit(path, "a line `cpu  USER NICE ...`"))?;
        let (path, devices) = file("net/dev")?;
        let counters = parse_devices(&devices).ok_or_else(|| unfit(path, "16 columns"))?;
        Ok(Self { cpu_ns, ..counters })
    }

    /// Returns the activity since `earlier`, which was read `elapsed_ns` ago.
    #[must_use]
    pub fn since(&self, earlier: &Self, elapsed_ns: u64) -> Activity {
        Activity {
            elapsed_ns,
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            packets_sent: self.packets_sent.saturating_sub(earlier.packets_sent),
            packets_received: self
                .packets_received
                .saturating_sub(earlier.packets_received),
            bytes_sent: self.bytes_sent.saturating_sub(earlier.bytes_sent),
            bytes_received: self.bytes_received.saturating_sub(earlier.bytes_received),
        }
    }
}

/// Reads the CPU time of processes: the columns user, nice and system of the first line. The columns of interrupts,
/// which follow, belong to packets.
fn parse_stat(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let mut ticks = line.split_ascii_whitespace().map(str::parse::<u64>);
    let mut sum = 0;
    for _ in 0..3 {
        sum += ticks.next()?.ok()?;
    }
    Some(sum * TICK_NS)
}

/// Adds up all interfaces but the loopback: `name: bytes packets 6 more  bytes packets 6 more`.
fn parse_devices(text: &str) -> Option<Counters> {
    let mut sum = Counters::default();
    // Two lines of column names.
    for line in text.lines().skip(2) {
        let (name, numbers) = line.split_once(':')?;
        if name.trim() == "lo" {
            continue;
        }
        let numbers: Vec<u64> = numbers
            .split_ascii_whitespace()
            .map(|number| number.parse().ok())
            .collect::<Option<_>>()?;
        sum.bytes_received += numbers.first()?;
        sum.packets_received += numbers.get(1)?;
        sum.bytes_sent += numbers.get(8)?;
        sum.packets_sent += numbers.get(9)?;
    }
    Some(sum)
}

/// The model as a [`Meter`]: the energy of this machine's activity between start and stop, spread evenly over
/// that time.
#[derive(Debug)]
pub struct ModelMeter {
    profile: Profile,
    name: String,
    root: PathBuf,
    started: Option<(Instant, Instant, Counters)>,
}

impl ModelMeter {
    /// Makes a meter of this machine with a profile; `root` is [`ROOT`] except in tests.
    #[must_use]
    pub fn new(profile: Profile, root: &Path) -> Self {
        Self {
            name: format!("model:{}", profile.name),
            profile,
            root: root.to_owned(),
            started: None,
        }
    }
}

impl Meter for ModelMeter {
    fn name(&self) -> &str {
        &self.name
    }

    fn scope(&self) -> &str {
        &self.profile.description
    }

    fn basis(&self) -> Basis {
        Basis::Modelled
    }

    fn start(&mut self, origin: Instant) -> Result<(), Error> {
        let counters = Counters::read(&self.root)?;
        self.started = Some((origin, Instant::now(), counters));
        Ok(())
    }

    fn stop(&mut self) -> Result<Recording, Error> {
        let started = self.started.take();
        let (origin, began, before) = started.ok_or_else(|| not_started(&self.name))?;
        let after = Counters::read(&self.root)?;
        let now = Instant::now();
        let (from_ns, to_ns) = (since(origin, began), since(origin, now));
        let activity = after.since(&before, since(began, now));
        let mut counted = Counted::new(u64::MAX);
        counted.push(from_ns, 0.0);
        counted.push(to_ns, self.profile.energy_uj(&activity));
        Ok(Recording {
            series: Series::Energy(counted),
            uncertainty_ns: TICK_NS,
            notes: vec![Note::Modelled {
                profile: self.profile.name.clone(),
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  1000 20 300 99999 46946 7 57020 22375 0 0\ncpu0 1 2 3 4\nintr 1\n";
    const DEVICES: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 109078142921 31966392    0    0    0     0          0         0 109078142921 31966392    0    0    0     0       0          0
  eth0:  5000      50    0    0    0     0          0         0     9000      70    0    0    0     0       0          0
 wlan0:   600       6    0    0    0     0          0         0      800       8    0    0    0     0       0          0
";

    #[test]
    fn processes_count_and_interrupts_do_not() {
        assert_eq!(parse_stat(STAT), Some(13_200_000_000));
        assert_eq!(parse_stat("cpu  1 2\n"), None);
        assert_eq!(parse_stat("intr 5\n"), None);
    }

    #[test]
    fn all_interfaces_count_but_the_loopback() {
        let sum = parse_devices(DEVICES).unwrap();
        let right = Counters {
            cpu_ns: 0,
            packets_sent: 78,
            packets_received: 56,
            bytes_sent: 9_800,
            bytes_received: 5_600,
        };
        assert_eq!(sum, right);
        assert_eq!(parse_devices("a\nb\neth0: 1 2 x\n"), None);
    }

    #[test]
    fn activity_is_the_difference() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("net")).unwrap();
        let write = |stat: &str, devices: &str| {
            fs::write(folder.path().join("stat"), stat).unwrap();
            fs::write(folder.path().join("net/dev"), devices).unwrap();
            Counters::read(folder.path()).unwrap()
        };
        let before = write(STAT, DEVICES);
        let after = write(
            &STAT.replace("cpu  1000", "cpu  1100"),
            &DEVICES.replace("     70 ", "     90 "),
        );
        let activity = after.since(&before, 5_000);
        let right = Activity {
            elapsed_ns: 5_000,
            cpu_ns: 1_000_000_000,
            packets_sent: 20,
            ..Activity::default()
        };
        assert_eq!(activity, right);
    }

    #[test]
    fn a_machine_without_these_files_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let error = Counters::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("stat: "), "{error}");
        fs::write(folder.path().join("stat"), "nothing").unwrap();
        let error = Counters::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("expected a line `cpu"), "{error}");
    }
}
