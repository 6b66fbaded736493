//! The first file system of the emulated machine: an initramfs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::page;

/// Modules for the USB controller, for the network card on it, and for links. Modules that these need are added.
const MODULES: &[&str] = &["phy_generic", "dwc2", "cdc_ether", "sch_netem", "sch_tbf"];

/// Stand-ins that only note their arguments.
const RECORDED: &[&str] = &[
    "apt-get",
    "cargo",
    "getcap",
    "just",
    "nmcli",
    "setcap",
    "systemctl",
    "systemd-tmpfiles",
];

/// Stand-ins in `guest/` that do something.
const STAND_INS: &[&str] = &["chronyc", "scp", "ssh", "sudo"];

/// The checkout's folder in the machine.
const CHECKOUT: &str = "checkout";

const SHIPPED: &str = "target/aarch64-unknown-linux-musl/dist/mqbench";

const FOLDER: u32 = 0o40_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// Packages unpacked in `root`, the program that ships, the page as a script, and the stand-ins.
pub(crate) fn build(root: &Path, shipped: &Path) -> Vec<u8> {
    let mut archive = Archive::default();
    for folder in ["proc", "sys", "run", "tmp", "root", "home/pi", "etc/chrony"] {
        archive.folder(folder);
    }
    for folder in ["var/lib", "usr/local/bin", "usr/sbin", "modules"] {
        archive.folder(folder);
    }
    // The console of the first process's first messages, before it has devices.
    archive.add("dev/console", 0o20_600, (5, 1), &[]);
    archive.program("bin/busybox", &root.join("bin/busybox"));
    for (number, module) in modules(root).iter().enumerate() {
        let name = module.file_name().unwrap().to_str().unwrap();
        archive.program(&format!("modules/{number:02}-{name}"), module);
    }
    let guest = page::repository().join("crates/mqbench/tests/pi/guest");
    archive.program("init", &guest.join("init"));
    for name in STAND_INS {
        archive.program(&format!("stand-ins/{name}"), &guest.join(name));
    }
    for name in RECORDED {
        archive.program(&format!("stand-ins/{name}"), &guest.join("recorded"));
    }
    archive.text("etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    archive.text("etc/group", "root:x:0:\n");
    archive.text("guide", &page::script());
    archive.program(&format!("{CHECKOUT}/{SHIPPED}"), shipped);
    // The controller is this machine as well.
    let own = format!("{CHECKOUT}/target/release/mqbench");
    archive.add(
        &own,
        LINK,
        (0, 0),
        format!("/{CHECKOUT}/{SHIPPED}").as_bytes(),
    );
    let file = "deploy/pi/setup";
    archive.program(
        &format!("{CHECKOUT}/{file}"),
        &page::repository().join(file),
    );
    let campaign = format!("{CHECKOUT}/profiles/campaigns/s22-fig4.toml");
    archive.text(&campaign, &page::figure_4());
    archive.end()
}

/// Lists kernel modules in the order in which they can be loaded.
fn modules(root: &Path) -> Vec<PathBuf> {
    let mut all = BTreeMap::new();
    find(&root.join("lib/modules"), &mut all);
    let mut order = Vec::new();
    for name in MODULES {
        // A built-in module has no file.
        need(name, &all, &mut order);
    }
    assert!(order.len() >= MODULES.len(), "{order:?}");
    order
}

fn find(folder: &Path, all: &mut BTreeMap<String, PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            find(&path, all);
        } else if let Some(name) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.strip_suffix(".ko"))
        {
            all.insert(name.replace('-', "_"), path);
        }
    }
}

fn need(name: &str, all: &BTreeMap<String, PathBuf>, order: &mut Vec<PathBuf>) {
    let Some(path) = all.get(&name.replace('-', "_")) else {
        return;
    };
    if order.contains(path) {
        return;
    }
    // In the section .modinfo: `depends=` and names, with a zero before and behind.
    let bytes = fs::read(path).unwrap();
    let key = b"\0depends=";
    let at = bytes
        .windows(key.len())
        .position(|part| part == key)
        .unwrap()
        + key.len();
    let names = bytes[at..].split(|byte| *byte == 0).next().unwrap();
    let names = std::str::from_utf8(names).unwrap();
    for needed in names.split(',').filter(|name| !name.is_empty()) {
        need(needed, all, order);
    }
    order.push(path.clone());
}

/// A cpio archive of the form `newc`, as the kernel unpacks it (its
/// `Documentation/driver-api/early-userspace/buffer-format.rst`).
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// Adds a file or folder, with the folders that contain it.
    fn folder(&mut self, name: &str) {
        if name.is_empty() || !self.folders.insert(name.to_owned()) {
            return;
        }
        self.above(name);
        self.entry(name, FOLDER, (0, 0), &[]);
    }

    fn program(&mut self, name: &str, from: &Path) {
        let bytes = fs::read(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        self.add(name, PROGRAM, (0, 0), &bytes);
    }

    fn text(&mut self, name: &str, text: &str) {
        self.add(name, 0o100_644, (0, 0), text.as_bytes());
    }

    fn add(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.above(name);
        self.entry(name, mode, device, content);
    }

    fn above(&mut self, name: &str) {
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        self.entries += 1;
        let length = |bytes: usize| u32::try_from(bytes).unwrap();
        let size = length(content.len());
        let name_size = length(name.len() + 1);
        // Number, mode, user, group, links, time, size, device, its own device, name, no checksum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            major,
            minor,
            name_size,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }
}
