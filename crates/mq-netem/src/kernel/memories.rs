//! Files that remember what an interface had before a program changed it, in case the program is killed. There
//! is one file an interface, from before the first change until after the last one is undone.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{netlink::Interface, saved::Before};
use crate::Error;

/// State that one interface had before this program changed it, with the marks by which the interface is known again:
/// the content of its file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Memory {
    /// The id of the machine's boot: the numbers of namespaces and interfaces hold for one boot.
    pub(super) boot: String,
    /// Name of the interface.
    pub(super) interface: String,
    /// Index of the interface in its namespace.
    pub(super) index: u32,
    /// The interface's hardware address.
    pub(super) address: Vec<u8>,
    /// The link that was set, for people.
    pub(super) link: String,
    /// Root discipline from before the first change.
    pub(super) before: Before,
    /// Packets that TCP could hand over in one bundle before the first change; `None` if that is not known.
    pub(super) gso_max_segs: Option<u32>,
}

/// The memories of one network namespace: files in a directory, one for each interface.
#[derive(Clone, Debug)]
pub(super) struct Memories {
    directory: PathBuf,
    /// Inode number of the network namespace, with which the files' names begin.
    namespace: u64,
    boot: String,
}

/// Lock of one interface, which keeps other processes from changing it until this value is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Memories {
    /// Makes the memories of the calling thread's network namespace, whose files are in `directory`. The directory need
    /// not exist yet.
    ///
    /// # Errors
    /// An I/O error if the id of the machine's boot or the namespace cannot be read from `/proc`.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self {
            directory: directory.to_owned(),
            namespace: fs::metadata("/proc/thread-self/ns/net")?.ino(),
            boot: boot.trim().to_owned(),
        })
    }

    /// Makes the memory of `interface`, which had the root discipline `before` and gets the link that people know as
    /// `link`. Writes no file.
    pub(super) fn of(&self, interface: &Interface, link: &str, before: Before) -> Memory {
        Memory {
            boot: self.boot.clone(),
            interface: interface.name.clone(),
            index: interface.index,
            address: interface.address.clone(),
            link: link.to_owned(),
            before,
            gso_max_segs: interface.gso_max_segs,
        }
    }

    /// Returns the path of the file of the interface with this index.
    pub(super) fn file(&self, index: u32) -> PathBuf {
        let name = format!("{}-{index}.json", self.namespace);
        self.directory.join(name)
    }

    /// Locks an interface.
    ///
    /// # Errors
    /// [`Error::InUse`], which names the other process, if that has the lock; [`Error::Memory`] or
    /// [`Error::NotPermitted`] if the lock's file cannot be written.
    pub(super) fn lock(&self, interface: &Interface) -> Result<Lock, Error> {
        let path = self.file(interface.index).with_extension("lock");
        let memory = |source| error(&path, source);
        fs::create_dir_all(&self.directory).map_err(memory)?;
        let mut options = File::options();
        let open = options.read(true).write(true).create(true).truncate(false);
        let mut file = open.open(&path).map_err(memory)?;
        // `locked_by` takes the lock for a moment.
        let mut taken = file.try_lock();
        for _ in 0..5 {
            if taken.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            taken = file.try_lock();
        }
        match taken {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let mut process = String::new();
                let _ = file.read_to_string(&mut process);
                return Err(Error::InUse {
                    interface: interface.name.clone(),
                    process: process.trim().to_owned(),
                });
            }
            Err(fs::TryLockError::Error(source)) => return Err(memory(source)),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(memory)?;
        Ok(Lock { _file: file })
    }

    /// Returns the id of the process that has an interface's lock now; `None` if none has.
    pub(super) fn locked_by(&self, index: u32) -> Option<String> {
        let mut file = File::open(self.file(index).with_extension("lock")).ok()?;
        let Err(fs::TryLockError::WouldBlock) = file.try_lock_shared() else {
            return None;
        };
        let mut process = String::new();
        file.read_to_string(&mut process).ok()?;
        Some(process.trim().to_owned())
    }

    /// Writes the file of a memory, either whole or not at all, also at a loss of power.
    pub(super) fn write(&self, memory: &Memory) -> Result<(), Error> {
        let path = self.file(memory.index);
        let draft = path.with_extension("new");
        let text = serde_json::to_string_pretty(memory).expect("texts and numbers");
        let write = || {
            let mut file = File::create(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(|source| error(&path, source))
    }

    /// Reads the memory of an interface, if there is one. A file from an earlier boot is not about this interface, nor
    /// is a file whose name and hardware address both differ.
    pub(super) fn read(&self, interface: &Interface) -> Result<Option<Memory>, Error> {
        let memory = self.at(&self.file(interface.index))?;
        Ok(memory.filter(|memory| {
            memory.interface == interface.name || memory.address == interface.address
        }))
    }

    /// Reads all memories of this namespace from the machine's present boot, in the order of the interfaces' indexes.
    pub(super) fn all(&self) -> Result<Vec<Memory>, Error> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(none) if none.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            Err(source) => return Err(error(&self.directory, source)),
        };
        let mut found = Vec::new();
        let beginning = format!("{}-", self.namespace);
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&beginning) && name.ends_with(".json") {
                found.extend(self.at(&entry.path())?);
            }
        }
        found.sort_by_key(|memory| memory.index);
        Ok(found)
    }

    /// Reads a memory's file; `None` if there is no such file, or it is from an earlier boot.
    fn at(&self, path: &Path) -> Result<Option<Memory>, Error> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(none) if none.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(error(path, source)),
        };
        let memory: Memory =
            serde_json::from_str(&text).map_err(|wrong| error(path, wrong.into()))?;
        Ok(Some(memory).filter(|memory| memory.boot == self.boot))
    }

    /// Removes the file of the interface with this index; does nothing if there is none.
    pub(super) fn forget(&self, index: u32) -> Result<(), Error> {
        let path = self.file(index);
        match fs::remove_file(&path) {
            Err(problem) if problem.kind() != io::ErrorKind::NotFound => Err(error(&path, problem)),
            _ => Ok(()),
        }
    }
}

fn error(path: &Path, source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::PermissionDenied && !nix::unistd::geteuid().is_root() {
        return Error::NotPermitted;
    }
    Error::Memory {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u32, name: &str, address: u8) -> Interface {
        Interface {
            index,
            name: name.to_owned(),
            address: vec![address; 6],
            gso_max_segs: Some(65_535),
            ..Interface::default()
        }
    }

    #[test]
    fn a_memory_is_written_read_and_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let memories = Memories::open(&directory.path().join("net")).unwrap();
        assert_eq!(memories.all().unwrap(), []);
        let eth0 = interface(3, "eth0", 1);
        let _lock = memories.lock(&eth0).unwrap();
        let memory = memories.of(&eth0, "s22/wifi up", Before::default());
        memories.write(&memory).unwrap();
        assert_eq!(memories.read(&eth0).unwrap(), Some(memory.clone()));
        assert_eq!(memories.all().unwrap(), [memory]);
        // A new name, or a new address: still the same card. With both new it is another card.
        assert!(memories.read(&interface(3, "lan", 1)).unwrap().is_some());
        assert!(memories.read(&interface(3, "eth0", 2)).unwrap().is_some());
        assert_eq!(memories.read(&interface(3, "lan", 2)).unwrap(), None);
        memories.forget(3).unwrap();
        memories.forget(3).unwrap();
        assert_eq!(memories.read(&eth0).unwrap(), None);
    }

    #[test]
    fn a_memory_of_an_earlier_boot_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let memories = Memories::open(directory.path()).unwrap();
        let eth0 = interface(3, "eth0", 1);
        let memory = Memory {
            boot: "another".to_owned(),
            ..memories.of(&eth0, "", Before::default())
        };
        memories.write(&memory).unwrap();
        assert_eq!(memories.read(&eth0).unwrap(), None);
    }

    #[test]
    fn one_process_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let memories = Memories::open(directory.path()).unwrap();
        let eth0 = interface(3, "eth0", 1);
        assert_eq!(memories.locked_by(3), None);
        let lock = memories.lock(&eth0).unwrap();
        let own = std::process::id().to_string();
        assert_eq!(memories.locked_by(3), Some(own.clone()));
        let error = memories.lock(&eth0).unwrap_err().to_string();
        assert!(error.contains(&own) && error.contains("eth0"), "{error}");
        drop(lock);
        assert!(memories.lock(&eth0).is_ok());
    }

    #[test]
    fn a_file_that_makes_no_sense_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let memories = Memories::open(directory.path()).unwrap();
        fs::write(memories.file(3), "{").unwrap();
        let error = memories.read(&interface(3, "eth0", 1)).unwrap_err();
        assert!(error.to_string().contains("-3.json"), "{error}");
    }
}
