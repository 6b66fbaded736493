//! Sets a link on an interface, and restores what the interface had before.

use std::{fmt, path::Path};

use super::{
    memories::{Lock, Memories, Memory},
    netlink::{Interface, Netlink, Qdisc, ROOT, Refused},
    qdisc::{Difference, NETEM_MAJOR, Netem, Shape, TBF_MAJOR, Tbf},
    saved::{Before, Owner, own_tbf, owner, root},
    ssh,
};
use crate::{Direction, Error};

/// Packets that TCP may hand over in one bundle (`gso_max_segs`) to a shaped interface: netem would delay and lose a
/// larger bundle as one packet.
const NO_BUNDLES: u32 = 1;

/// Sets links on the interfaces of the network namespace that it was opened in.
///
/// ```text
/// nobody's --apply: file written, netem, tbf, read back--> set --restore: put back, file removed--> nobody's
///                                  \                        \
///                                   killed, or kept --------- clear, by another process
/// ```
///
/// The file exists from before the first change until the last one is undone. So a killed program leaves what
/// the next [`Controller::clear`] needs. The root discipline is replaced in one step: if the kernel refuses,
/// the old one stays.
pub struct Controller {
    netlink: Netlink,
    memories: Memories,
}

/// A link that is set on an interface. Its drop restores what the interface had before.
pub struct Applied<'a> {
    controller: &'a Controller,
    memory: Memory,
    /// `None` once the interface is restored.
    lock: Option<Lock>,
}

/// The state of an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Standing {
    /// The interface's name.
    pub interface: String,
    /// The root discipline: its parameters as `tc` takes them if it is netem or tbf, else kind and handle.
    pub root: String,
    /// Disciplines below the root, each in the form of `root`.
    pub others: Vec<String>,
    /// Name of the link that this program has set; `None` if it has set none.
    pub link: Option<String>,
    /// Root discipline that this program will restore; `None` if this program has changed nothing.
    pub before: Option<String>,
    /// Id of the process that holds the interface and restores it at its end; `None` if no process does.
    pub process: Option<String>,
}

/// Result of clearing an interface.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Cleared {
    /// The interface is restored.
    Restored {
        /// Name of the interface.
        interface: String,
        /// Root discipline that was restored.
        before: String,
    },
    /// The interface had no link of this program: nothing was changed.
    Untouched {
        /// Name of the interface.
        interface: String,
    },
    /// The interface does not exist any more.
    Gone {
        /// Name of the interface.
        interface: String,
    },
}

impl fmt::Display for Cleared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restored { interface, before } => write!(f, "{interface}: {before} restored"),
            Self::Untouched { interface } => {
                write!(f, "{interface}: nothing of this program's to clear")
            }
            Self::Gone { interface } => write!(f, "{interface} has gone: nothing to restore"),
        }
    }
}

impl Controller {
    /// Default directory of the files that remember what each interface had before it was shaped. Root may write there,
    /// and it is empty after a restart, when interfaces are not shaped either.
    pub const DIRECTORY: &str = "/run/mqbench/net";

    /// Opens a controller for the calling thread's network namespace, with its files in `directory`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the machine's boot or the namespace cannot be read from `/proc`; another error if the
    /// kernel does not answer.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let memories = Memories::open(directory).map_err(|source| Error::Memory {
            path: directory.to_owned(),
            source,
        })?;
        let netlink = Netlink::open().map_err(|refused| kernel("talk to the kernel", &refused))?;
        Ok(Self { netlink, memories })
    }

    /// Sets `direction` for packets that leave by `interface`, in place of a link that this program had set. `link` is
    /// the name for people. With `even_ssh` the interface may carry the caller's own SSH session.
    ///
    /// # Errors
    /// If the direction cannot be set. Then the interface is as before, or the error names the difference.
    pub fn apply(
        &self,
        interface: &str,
        direction: &Direction,
        link: &str,
        even_ssh: bool,
    ) -> Result<Applied<'_>, Error> {
        let interfaces = self.interfaces()?;
        let interface = find(&interfaces, interface)?;
        let shape = Shape::new(direction, interface.mtu)?;
        let through = ssh::goes_through(interface, &interfaces, &self.netlink);
        if !even_ssh && through.map_err(|refused| kernel("list addresses", &refused))? {
            return Err(Error::Session {
                interface: interface.name.clone(),
            });
        }
        let lock = self.memories.lock(interface)?;
        let qdiscs = self.qdiscs(interface)?;
        let known = self.memories.read(interface)?;
        let unknown = known.is_none();
        let memory = if let Some(known) = known {
            self.check_not_replaced(&known, interface, &qdiscs)?;
            Memory {
                link: link.to_owned(),
                ..known
            }
        } else {
            let before = Before::of(interface.index, &qdiscs, &self.netlink);
            let before = before.map_err(|qdisc| Error::InTheWay {
                interface: interface.name.clone(),
                qdisc,
            })?;
            self.memories.of(interface, link, before)
        };
        self.memories.write(&memory)?;
        let applied = Applied {
            controller: self,
            memory,
            lock: Some(lock),
        };
        match self.set(interface, &shape, &qdiscs) {
            Ok(()) => Ok(applied),
            // The first change was not permitted, so nothing has changed.
            Err(Error::NotPermitted) => {
                applied.keep();
                if unknown {
                    self.memories.forget(interface.index)?;
                }
                Err(Error::NotPermitted)
            }
            // A failed restore is the worse error.
            Err(error) => applied.restore().and(Err(error)),
        }
    }

    /// Sets the disciplines of a link, and reads them back from the kernel.
    ///
    /// # Errors
    /// [`Error::Differs`] if the kernel has other values than were set; another error if a step is refused.
    fn set(&self, interface: &Interface, shape: &Shape, qdiscs: &[Qdisc]) -> Result<(), Error> {
        let index = interface.index;
        let step = |what| format!("{what} {}", interface.name);
        if owner(qdiscs) == Owner::Program {
            // A netem that replaces another keeps the old settings that it does not name.
            let deleted = self.netlink.delete_root(index);
            deleted.map_err(|refused| kernel(&step("take the old link away from"), &refused))?;
        }
        if interface.gso_max_segs.is_some_and(|now| now != NO_BUNDLES) {
            let set = self.netlink.set_gso_max_segs(index, NO_BUNDLES);
            set.map_err(|refused| kernel(&step("set gso_max_segs of"), &refused))?;
        }
        let failed = |kind, refused: Refused| match refused.code {
            libc::ENOENT => Error::NoModule { kind },
            _ => kernel(&format!("set {kind} on {}", interface.name), &refused),
        };
        let handle = |major: u16| u32::from(major) << 16;
        let netem = handle(NETEM_MAJOR);
        let set = self
            .netlink
            .put_root(index, netem, "netem", &shape.netem.encode());
        set.map_err(|refused| failed("netem", refused))?;
        if let Some(tbf) = &shape.tbf {
            let set = self
                .netlink
                .put(index, netem | 1, handle(TBF_MAJOR), "tbf", &tbf.encode());
            set.map_err(|refused| failed("tbf", refused))?;
        }
        let differences = self.differences_from(shape, interface)?;
        if differences.is_empty() {
            return Ok(());
        }
        let lines: Vec<_> = differences.iter().map(ToString::to_string).collect();
        Err(Error::Differs {
            interface: interface.name.clone(),
            differences: lines.join("; "),
        })
    }

    /// Returns the differences between `direction` and `interface` as read from the kernel. Any user may ask.
    ///
    /// # Errors
    /// If there is no such interface, or the kernel has no form of the direction.
    pub fn differences(
        &self,
        interface: &str,
        direction: &Direction,
    ) -> Result<Vec<Difference>, Error> {
        let interfaces = self.interfaces()?;
        let interface = find(&interfaces, interface)?;
        let shape = Shape::new(direction, interface.mtu)?;
        self.differences_from(&shape, interface)
    }

    fn differences_from(
        &self,
        shape: &Shape,
        interface: &Interface,
    ) -> Result<Vec<Difference>, Error> {
        let qdiscs = self.qdiscs(interface)?;
        let root = root(&qdiscs);
        let netem = root.filter(|root| root.kind == "netem");
        let Some(netem) = netem.and_then(|root| Netem::decode(&root.options)) else {
            return Ok(vec![Difference {
                what: "the root",
                configured: "netem".to_owned(),
                found: root.map_or_else(|| "nothing".to_owned(), ToString::to_string),
            }]);
        };
        let tbf = own_tbf(&qdiscs).and_then(|tbf| Tbf::decode(&tbf.options));
        let mut differences = shape.differences(&Shape { netem, tbf });
        let interfaces = self.interfaces()?;
        let now = find(&interfaces, &interface.name)?.gso_max_segs;
        differences.extend(now.filter(|now| *now != NO_BUNDLES).map(|now| Difference {
            what: "gso_max_segs",
            configured: NO_BUNDLES.to_string(),
            found: now.to_string(),
        }));
        Ok(differences)
    }

    /// Returns the state of one interface, or of all. Any user may ask.
    ///
    /// # Errors
    /// If there is no such interface, or its disciplines or its file cannot be read.
    pub fn show(&self, interface: Option<&str>) -> Result<Vec<Standing>, Error> {
        let interfaces = self.interfaces()?;
        let chosen = match interface {
            Some(name) => std::slice::from_ref(find(&interfaces, name)?),
            None => &interfaces,
        };
        let standing = |interface| self.standing(interface);
        chosen.iter().map(standing).collect()
    }

    fn standing(&self, interface: &Interface) -> Result<Standing, Error> {
        let qdiscs = self.qdiscs(interface)?;
        let root = root(&qdiscs);
        let memory = self.memories.read(interface)?;
        let others = qdiscs.iter().filter(|qdisc| qdisc.parent != ROOT);
        Ok(Standing {
            interface: interface.name.clone(),
            root: root.map_or_else(|| "nothing".to_owned(), describe),
            others: others.map(describe).collect(),
            process: self.memories.locked_by(interface.index),
            before: memory.as_ref().map(|memory| memory.before.to_string()),
            link: memory.map(|memory| memory.link),
        })
    }

    /// Restores an interface, or all interfaces that this program has left shaped.
    ///
    /// # Errors
    /// If there is no such interface, another process holds it, another program has changed it since, or it cannot be
    /// restored.
    pub fn clear(&self, interface: Option<&str>) -> Result<Vec<Cleared>, Error> {
        let interfaces = self.interfaces()?;
        let known = self.memories.all()?;
        if let Some(name) = interface {
            let gone = |memory: &&Memory| {
                memory.interface == name && !interfaces.iter().any(|i| i.index == memory.index)
            };
            let there = find(&interfaces, name);
            return match known.iter().find(gone) {
                Some(memory) if there.is_err() => Ok(vec![self.restore(memory)?]),
                _ => Ok(vec![self.clear_one(there?)?]),
            };
        }
        let mut cleared = Vec::new();
        for interface in &interfaces {
            match self.clear_one(interface)? {
                Cleared::Untouched { .. } => {}
                other => cleared.push(other),
            }
        }
        for memory in self.memories.all()? {
            // Memories of interfaces that no longer exist.
            cleared.push(self.restore(&memory)?);
        }
        Ok(cleared)
    }

    fn clear_one(&self, interface: &Interface) -> Result<Cleared, Error> {
        let set = owner(&self.qdiscs(interface)?) == Owner::Program;
        if !set && self.memories.read(interface)?.is_none() {
            return Ok(Cleared::Untouched {
                interface: interface.name.clone(),
            });
        }
        let _lock = self.memories.lock(interface)?;
        let memory = self.memories.read(interface)?.unwrap_or_else(|| {
            // A link without a memory: nothing shows that it replaced more than the kernel's default.
            let mut memory = self.memories.of(interface, "", Before::default());
            memory.gso_max_segs = None;
            memory
        });
        self.restore(&memory)
    }

    /// Restores the root discipline and `gso_max_segs` that `memory` has of its interface, and removes the file. A
    /// change that was interrupted at any step is undone.
    fn restore(&self, memory: &Memory) -> Result<Cleared, Error> {
        let interfaces = self.interfaces()?;
        let fits = |interface: &&Interface| {
            interface.index == memory.index
                && (interface.name == memory.interface || interface.address == memory.address)
        };
        let Some(interface) = interfaces.iter().find(fits) else {
            self.memories.forget(memory.index)?;
            return Ok(Cleared::Gone {
                interface: memory.interface.clone(),
            });
        };
        let qdiscs = self.qdiscs(interface)?;
        self.check_not_replaced(memory, interface, &qdiscs)?;
        let before = &memory.before;
        let mut exactly = true;
        if !before.stands(&qdiscs) {
            let put = before.put_back(interface.index, &self.netlink);
            put.map_err(|refused| self.not_restored(memory, interface, &refused))?;
            exactly = before.stands(&self.qdiscs(interface)?);
        }
        if let Some(segments) = memory.gso_max_segs
            && interface.gso_max_segs.is_some_and(|now| now != segments)
        {
            let set = self.netlink.set_gso_max_segs(interface.index, segments);
            let step = format!("set gso_max_segs of {} back to {segments}", interface.name);
            set.map_err(|refused| kernel(&step, &refused))?;
        }
        self.memories.forget(memory.index)?;
        if !exactly {
            return Err(Error::NotExact {
                interface: interface.name.clone(),
                before: before.to_string(),
            });
        }
        Ok(Cleared::Restored {
            interface: interface.name.clone(),
            before: before.to_string(),
        })
    }

    /// Makes the error of a failed restore. Before that it sets the kernel's default, which is better than an interface
    /// that stays slow, unless this user may not change interfaces. The interface's file stays.
    fn not_restored(&self, memory: &Memory, interface: &Interface, refused: &Refused) -> Error {
        if [libc::EPERM, libc::EACCES].contains(&refused.code) {
            return Error::NotPermitted;
        }
        let says = match Before::default().put_back(interface.index, &self.netlink) {
            Ok(()) => format!("{refused}; it has the kernel's default now"),
            Err(either) => format!("{refused}; nor can the link be taken away: {either}"),
        };
        Error::NotRestored {
            interface: interface.name.clone(),
            before: memory.before.to_string(),
            says,
            file: self.memories.file(memory.index),
        }
    }

    /// Checks that the interface has this program's link, what it had before, or the kernel's default.
    ///
    /// # Errors
    /// [`Error::Replaced`] if another program has set a root discipline meanwhile.
    fn check_not_replaced(
        &self,
        memory: &Memory,
        interface: &Interface,
        qdiscs: &[Qdisc],
    ) -> Result<(), Error> {
        let before = &memory.before;
        let Some(root) = root(qdiscs).filter(|_| owner(qdiscs) == Owner::Somebody) else {
            return Ok(());
        };
        if before.stands(qdiscs) || before.half_stands(qdiscs) {
            return Ok(());
        }
        Err(Error::Replaced {
            interface: interface.name.clone(),
            qdisc: root.to_string(),
            before: before.to_string(),
            file: self.memories.file(memory.index),
        })
    }

    fn interfaces(&self) -> Result<Vec<Interface>, Error> {
        let found = self.netlink.interfaces();
        found.map_err(|refused| kernel("list the interfaces", &refused))
    }

    fn qdiscs(&self, interface: &Interface) -> Result<Vec<Qdisc>, Error> {
        let found = self.netlink.qdiscs(interface.index);
        let step = format!("read the queueing disciplines of {}", interface.name);
        found.map_err(|refused| kernel(&step, &refused))
    }
}

impl Applied<'_> {
    /// Restores what the interface had before.
    ///
    /// # Errors
    /// If the interface cannot be restored; the error says what it has now.
    pub fn restore(mut self) -> Result<(), Error> {
        let restored = self.controller.restore(&self.memory);
        self.lock = None;
        restored.map(|_| ())
    }

    /// Leaves the link as it is, for a later [`Controller::clear`].
    pub fn keep(mut self) {
        self.lock = None;
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        if self.lock.is_some()
            && let Err(error) = self.controller.restore(&self.memory)
        {
            tracing::error!(%error, "cannot restore interfaces");
        }
    }
}

fn find<'a>(interfaces: &'a [Interface], name: &str) -> Result<&'a Interface, Error> {
    let found = interfaces.iter().find(|interface| interface.name == name);
    found.ok_or_else(|| {
        let names: Vec<_> = interfaces.iter().map(|i| i.name.as_str()).collect();
        Error::NoInterface {
            name: name.to_owned(),
            known: names.join(", "),
        }
    })
}

fn describe(qdisc: &Qdisc) -> String {
    let parameters = match qdisc.kind.as_str() {
        "netem" => Netem::decode(&qdisc.options).map(|netem| netem.to_string()),
        "tbf" => Tbf::decode(&qdisc.options).map(|tbf| tbf.to_string()),
        _ => None,
    };
    parameters.unwrap_or_else(|| qdisc.to_string())
}

fn kernel(step: &str, refused: &Refused) -> Error {
    match refused.code {
        libc::EPERM | libc::EACCES => Error::NotPermitted,
        _ => Error::Kernel {
            step: step.to_owned(),
            says: refused.to_string(),
        },
    }
}
