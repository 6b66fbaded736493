//! The machine that a run was on.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use crate::emulated::emulated;

/// The machine, as a run's manifest has it; a field is `None` where the system does not say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostContext {
    /// The operating system's kernel release, such as `6.8.0-45-generic`.
    pub kernel: Option<String>,
    /// The CPU's model, or the board's model where the CPU has no name.
    pub cpu: Option<String>,
    /// Cores that this process may use.
    pub cores: u32,
    /// The CPU frequency governor; several, with commas, if cores differ.
    pub governor: Option<String>,
    /// The machine's memory.
    pub memory_bytes: Option<u64>,
    /// Load averages of the last 1, 5 and 15 minutes, in processes.
    pub load_average: Option<[f64; 3]>,
    /// The congestion control that the kernel gives a TCP connection by default.
    pub tcp_congestion_control: Option<String>,
    /// Evidence that an emulator runs the machine, whose times are then the emulator's; `None` if none is found. Older
    /// results do not have this field.
    #[serde(default)]
    pub emulated: Option<String>,
}

impl HostContext {
    /// Reads `/proc` and `/sys`; on other systems than Linux only `cores` is known.
    #[must_use]
    pub fn read() -> Self {
        let cores = std::thread::available_parallelism()
            .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
        Self {
            kernel: line("/proc/sys/kernel/osrelease"),
            cpu: text("/proc/cpuinfo")
                .and_then(|text| parse_cpu(&text))
                .or_else(|| line("/proc/device-tree/model")),
            cores,
            governor: governor(Path::new("/sys/devices/system/cpu")),
            memory_bytes: text("/proc/meminfo").and_then(|text| parse_memory(&text)),
            load_average: text("/proc/loadavg").and_then(|text| parse_load(&text)),
            tcp_congestion_control: line("/proc/sys/net/ipv4/tcp_congestion_control"),
            emulated: emulated(),
        }
    }
}

fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Reads a file's text without surrounding blanks and zeros; the device tree ends its strings with a zero.
fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = text(path)?;
    let line = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!line.is_empty()).then(|| line.to_owned())
}

/// Returns the CPU's `model name` on x86, else `Model`: a Raspberry Pi names its board there.
fn parse_cpu(cpuinfo: &str) -> Option<String> {
    let value = |wanted: &str| {
        let mut pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        pairs
            .find(|(key, _)| key.trim() == wanted)
            .map(|(_, value)| value.trim().to_owned())
    };
    value("model name").or_else(|| value("Model"))
}

fn parse_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

fn parse_load(loadavg: &str) -> Option<[f64; 3]> {
    let mut numbers = loadavg
        .split_ascii_whitespace()
        .map(|word| word.parse().ok());
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

/// Returns the governors of all cores below `cpus`, each once.
fn governor(cpus: &Path) -> Option<String> {
    let mut governors: Vec<String> = fs::read_dir(cpus)
        .ok()?
        .flatten()
        .filter_map(|entry| line(entry.path().join("cpufreq/scaling_governor")))
        .collect();
    governors.sort();
    governors.dedup();
    (!governors.is_empty()).then(|| governors.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_named_on_x86_and_on_a_pi() {
        let x86 = "processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n";
        assert_eq!(parse_cpu(x86).as_deref(), Some("AMD EPYC"));
        let pi = "processor\t: 0\nCPU part\t: 0xd03\n\nModel\t\t: Raspberry Pi 3 Model B Rev 1.2\n";
        assert_eq!(
            parse_cpu(pi).as_deref(),
            Some("Raspberry Pi 3 Model B Rev 1.2")
        );
        assert_eq!(parse_cpu(""), None);
    }

    #[test]
    fn memory_and_load_are_parsed() {
        assert_eq!(
            parse_memory("MemTotal:        1024 kB\nMemFree: 1 kB\n"),
            Some(1 << 20)
        );
        assert_eq!(
            parse_load("0.11 0.05 0.01 1/83 3725\n"),
            Some([0.11, 0.05, 0.01])
        );
        assert_eq!(parse_load("0.11 x"), None);
    }

    #[test]
    fn governors_that_differ_are_all_named() {
        let directory = tempfile::tempdir().unwrap();
        for (cpu, name) in [
            ("cpu0", "powersave"),
            ("cpu1", "performance"),
            ("cpu2", "powersave"),
        ] {
            let path = directory.path().join(cpu).join("cpufreq");
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("scaling_governor"), format!("{name}\n")).unwrap();
        }
        assert_eq!(
            governor(directory.path()).as_deref(),
            Some("performance,powersave")
        );
        assert_eq!(governor(&directory.path().join("none")), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_a_kernel_and_cores() {
        let host = HostContext::read();
        assert!(host.kernel.is_some() && host.cores > 0 && host.memory_bytes.is_some());
    }
}
