//! QEMU's Raspberry Pi 3B, and its serial console.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tempfile::TempDir;

/// The time limit: twice the time on a busy machine.
const PATIENCE: Duration = Duration::from_mins(8);

/// The emulator's networks, one for each network card. They end at sockets of this namespace: a packet to another
/// address leaves as if the emulator had sent it.
const NETWORKS: [(&str, &str); 2] = [("eth0", "192.168.7"), ("wlan0", "192.168.8")];

/// A machine that has been switched on.
pub(crate) struct Machine {
    process: Child,
    lines: Receiver<String>,
    began: Instant,
    _image: TempDir,
}

/// The console output of a machine, by the names of the sections.
pub(crate) struct Said {
    sections: BTreeMap<String, String>,
    /// The time from the start to the first process.
    pub(crate) booted: Duration,
    pub(crate) took: Duration,
}

impl Machine {
    pub(crate) fn boot(root: &Path, image: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let initramfs = folder.path().join("initramfs");
        fs::write(&initramfs, image).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let words = format!(
            "console=ttyAMA0,115200 quiet panic=-1 NOW={}",
            now.as_secs()
        );
        let tree = one(&root.join("usr/lib"), "linux-image").join("broadcom/bcm2837-rpi-3-b.dtb");
        let cards = NETWORKS.map(|(card, network)| {
            let netdev = format!("user,id={card},net={network}.0/24");
            let device = format!("usb-net,netdev={card}");
            ["-netdev".to_owned(), netdev, "-device".to_owned(), device]
        });
        let mut process = Command::new("qemu-system-aarch64")
            .args(["-M", "raspi3b", "-accel", "tcg,thread=multi", "-no-reboot"])
            .args(["-display", "none", "-monitor", "none", "-serial", "stdio"])
            .args(cards.iter().flatten())
            .args(["-append", &words])
            .arg("-kernel")
            .arg(one(&root.join("boot"), "vmlinuz"))
            .arg("-dtb")
            .arg(tree)
            .arg("-initrd")
            .arg(&initramfs)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut log = fs::File::create(root.join("../console")).unwrap();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in output.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).replace('\r', "");
                let _ = writeln!(log, "{line}");
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            process,
            lines,
            began: Instant::now(),
            _image: folder,
        }
    }

    /// Reads the console until the machine ends.
    pub(crate) fn run(self) -> Said {
        let mut sections = BTreeMap::<String, String>::new();
        let mut section = "kernel".to_owned();
        let mut booted = Duration::ZERO;
        loop {
            let left = PATIENCE.saturating_sub(self.began.elapsed());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("it did not come to its end; all that it said: {sections:#?}");
            };
            match line.strip_prefix("@@ ") {
                Some("end") => break,
                Some(name) => {
                    name.clone_into(&mut section);
                    if name == "booted" {
                        booted = self.began.elapsed();
                    }
                }
                None => {
                    let text = sections.entry(section.clone()).or_default();
                    text.push_str(&line);
                    text.push('\n');
                }
            }
        }
        Said {
            sections,
            booted,
            took: self.began.elapsed(),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Said {
    /// Returns the output in a section.
    pub(crate) fn of(&self, section: &str) -> &str {
        self.sections.get(section).map_or("", String::as_str)
    }
}

/// Returns the one file in a folder whose name begins so.
fn one(folder: &Path, begins: &str) -> PathBuf {
    let entries = fs::read_dir(folder).unwrap();
    let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let name = names.find(|name| name.starts_with(begins));
    folder.join(name.unwrap_or_else(|| panic!("no {begins} in {}", folder.display())))
}
