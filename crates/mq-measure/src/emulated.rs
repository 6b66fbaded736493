//! Detection of a machine that an emulator runs.

use std::fs;
use std::path::Path;

/// Processors of Raspberry Pis without AES instructions: Broadcom left them out until the BCM2712.
const WITHOUT_AES: [&str; 5] = [
    "brcm,bcm2835",
    "brcm,bcm2836",
    "brcm,bcm2837",
    "brcm,bcm2710",
    "brcm,bcm2711",
];

/// Returns the evidence that an emulator executes the instructions of this machine; `None` if none is found.
///
/// A virtual machine whose instructions the processor executes is not emulated. An emulated board has the
/// device tree of the real one, so what counts is hardware that does not fit that board.
#[must_use]
pub fn emulated() -> Option<String> {
    look(Path::new("/"), std::env::consts::ARCH)
}

/// Looks for the evidence on behalf of a program built for `arch`, in the file system below `root`.
fn look(root: &Path, arch: &str) -> Option<String> {
    let read = |name: &str| fs::read(root.join(name)).ok();
    let text = |name: &str| Some(String::from_utf8_lossy(&read(name)?).into_owned());
    // The kernel has this file since 6.1, and an emulator of programs shows the real one.
    if let Some(kernel) = text("proc/sys/kernel/arch") {
        let kernel = kernel.trim();
        if family(kernel) != family(arch) {
            return Some(format!("a program for {arch} on a kernel for {kernel}"));
        }
    }
    let cpuinfo = text("proc/cpuinfo").unwrap_or_default();
    if cpuinfo.contains("QEMU TCG CPU") {
        return Some("its processor is QEMU's".to_owned());
    }
    let board = text("proc/device-tree/compatible")?;
    let parts: Vec<_> = board.split('\0').collect();
    let has_aes = cpuinfo.lines().any(|line| {
        line.starts_with("Features") && line.split_whitespace().any(|word| word == "aes")
    });
    if has_aes && parts.iter().any(|part| WITHOUT_AES.contains(part)) {
        let name = parts.first().unwrap_or(&"");
        return Some(format!("{name} with AES instructions, which it has not"));
    }
    let devices = fs::read_dir(root.join("sys/bus/usb/devices")).ok()?;
    let by_qemu = |device: fs::DirEntry| {
        fs::read_to_string(device.path().join("manufacturer"))
            .is_ok_and(|maker| maker.trim() == "QEMU")
    };
    let found = devices.flatten().any(by_qemu);
    found.then(|| "its USB devices are QEMU's".to_owned())
}

/// Returns the processor family of an architecture: 32-bit and 64-bit programs run on the same processors.
fn family(arch: &str) -> &str {
    match arch {
        "i386" | "i486" | "i586" | "i686" | "x86" | "x86_64" => "x86",
        other if other.starts_with("arm") || other.starts_with("aarch64") => "arm",
        other if other.starts_with("riscv") => "riscv",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PI: &str = "raspberrypi,3-model-b\0brcm,bcm2837\0";

    /// Returns the evidence found in a file system that has only `files`, each a path and its text.
    fn found(arch: &str, files: &[(&str, &str)]) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        look(root.path(), arch)
    }

    #[test]
    fn an_emulated_pi_has_what_a_pi_has_not() {
        let tree = ("proc/device-tree/compatible", PI);
        let with_aes = "processor\t: 0\nFeatures\t: fp asimd aes pmull crc32\n";
        let without = "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\n";
        let says = found("aarch64", &[tree, ("proc/cpuinfo", with_aes)]).unwrap();
        assert!(says.starts_with("raspberrypi,3-model-b with AES"), "{says}");
        let usb = "sys/bus/usb/devices/1-1/manufacturer";
        let files = [tree, ("proc/cpuinfo", without), (usb, "QEMU\n")];
        assert!(found("aarch64", &files).unwrap().contains("USB"));
        let real = [
            tree,
            ("proc/cpuinfo", without),
            (usb, "Standard Microsystems\n"),
        ];
        assert_eq!(found("aarch64", &real), None);
        // A Pi 5 has AES instructions.
        let five = (
            "proc/device-tree/compatible",
            "raspberrypi,5-model-b\0brcm,bcm2712\0",
        );
        assert_eq!(found("aarch64", &[five, ("proc/cpuinfo", with_aes)]), None);
    }

    #[test]
    fn a_program_of_another_architecture_is_emulated() {
        let kernel = |arch| ("proc/sys/kernel/arch", arch);
        let says = found("aarch64", &[kernel("x86_64\n")]).unwrap();
        assert_eq!(says, "a program for aarch64 on a kernel for x86_64");
        for (arch, of_kernel) in [
            ("x86", "x86_64\n"),
            ("arm", "aarch64\n"),
            ("x86_64", "x86_64\n"),
        ] {
            assert_eq!(found(arch, &[kernel(of_kernel)]), None);
        }
    }

    #[test]
    fn a_virtual_machine_is_not_emulated_for_that() {
        let usb = ("sys/bus/usb/devices/1-1/manufacturer", "QEMU\n");
        let own = (
            "proc/cpuinfo",
            "model name\t: AMD EPYC\nflags\t: aes hypervisor\n",
        );
        assert_eq!(found("x86_64", &[own, usb]), None);
        let tcg = ("proc/cpuinfo", "model name\t: QEMU TCG CPU version 2.5+\n");
        assert!(found("x86_64", &[tcg]).is_some());
    }
}
