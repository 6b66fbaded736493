//! Root discipline that an interface had before, as far as it can be restored.

use serde::{Deserialize, Serialize};

use super::{
    netlink::{Netlink, Qdisc, ROOT, Refused, major},
    qdisc::{self, NETEM_MAJOR, Netem, TBF_MAJOR},
};

/// Kinds of disciplines without children that can be restored from the options that the kernel returns.
const SIMPLE: &[&str] = &[
    "bfifo",
    "cake",
    "fq",
    "fq_codel",
    "pfifo",
    "pfifo_fast",
    "pfifo_head_drop",
    "sfq",
];

/// Root discipline that an interface had before this program changed it: one that another program had set, or the
/// kernel's default.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Before {
    /// `None` for the kernel's default, which comes back by itself when the root is deleted.
    root: Option<Saved>,
    /// The tbf behind a netem at the root; `None` if there is none.
    child: Option<Saved>,
}

/// A queueing discipline as the kernel returned it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    kind: String,
    handle: u32,
    parent: u32,
    /// The kernel's options of the discipline, as bytes; hexadecimal digits in the file.
    #[serde(with = "hexadecimal")]
    options: Vec<u8>,
}

/// The owner of the discipline that is at the root now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// The kernel: the discipline is its default, or there is none.
    Kernel,
    /// This program: the discipline is a netem with the handle that this program's links have.
    Program,
    /// Another program.
    Somebody,
}

/// Returns the root discipline among all disciplines of an interface; `None` if there is none.
pub(super) fn root(qdiscs: &[Qdisc]) -> Option<&Qdisc> {
    qdiscs.iter().find(|qdisc| qdisc.parent == ROOT)
}

/// Returns the owner of the root discipline. An interface that is down may have none: that is the kernel's default,
/// too.
pub(super) fn owner(qdiscs: &[Qdisc]) -> Owner {
    match root(qdiscs).map(|root| (root.major(), root.kind.as_str())) {
        None | Some((0, _)) => Owner::Kernel,
        Some((NETEM_MAJOR, "netem")) => Owner::Program,
        Some(_) => Owner::Somebody,
    }
}

impl Before {
    /// Builds the copy of an interface's present root discipline and of its child.
    ///
    /// # Errors
    /// The discipline that could not be restored, with the reason.
    pub(super) fn of(index: u32, qdiscs: &[Qdisc], netlink: &Netlink) -> Result<Self, String> {
        let mut others = qdiscs.iter().filter(|qdisc| qdisc.parent != ROOT);
        match (owner(qdiscs), root(qdiscs)) {
            // The default of a card with many queues has children, and so may a discipline that somebody set.
            (Owner::Kernel, _) => match others.find(|qdisc| qdisc.major() != 0) {
                Some(set) => Err(format!("{set} on one of its queues")),
                None => Ok(Self::default()),
            },
            // Without a memory, this program's link can only have replaced a default.
            (Owner::Program, _) | (_, None) => Ok(Self::default()),
            (Owner::Somebody, Some(root)) => {
                let others: Vec<_> = others.collect();
                let filters = |qdisc: &&Qdisc| netlink.has_filters(index, qdisc.handle);
                for qdisc in std::iter::once(&root).chain(&others) {
                    if filters(qdisc).map_err(|error| format!("{qdisc} ({error})"))? {
                        return Err(format!("{qdisc} with filters"));
                    }
                }
                Self::somebodys(root, &others)
            }
        }
    }

    /// Builds the copy of a root discipline that another program has set, and of the discipline below it.
    ///
    /// # Errors
    /// The discipline that could not be restored, with the reason.
    fn somebodys(root: &Qdisc, others: &[&Qdisc]) -> Result<Self, String> {
        if let Some(entangled) = others.iter().chain([&root]).find(|qdisc| qdisc.entangled) {
            return Err(format!("{entangled} with a size table or shared filters"));
        }
        let child = match (root.kind.as_str(), others) {
            (kind, []) if SIMPLE.contains(&kind) => None,
            ("tbf" | "netem", []) => None,
            ("netem", [child]) if child.kind == "tbf" && major(child.parent) == root.major() => {
                Some(*child)
            }
            _ => return Err(root.to_string()),
        };
        if root.kind == "netem" {
            let netem = Netem::decode(&root.options).ok_or_else(|| root.to_string())?;
            if !netem.jitter.is_zero() {
                return Err(format!(
                    "{root} with jitter, whose distribution the kernel does not tell"
                ));
            }
            if netem.others.contains(&"slots") {
                return Err(format!("{root} with slots"));
            }
        }
        for tbf in [Some(root), child].into_iter().flatten() {
            if qdisc::restoring(&tbf.kind, &tbf.options).is_none() {
                return Err(format!("{tbf} with a peak rate, an overhead or cells"));
            }
        }
        Ok(Self {
            root: Some(root.into()),
            child: child.map(Into::into),
        })
    }

    /// Returns `true` if the interface has this root discipline and child now.
    pub(super) fn stands(&self, qdiscs: &[Qdisc]) -> bool {
        let children = qdiscs.iter().filter(|qdisc| qdisc.parent != ROOT);
        match &self.root {
            None => owner(qdiscs) == Owner::Kernel,
            Some(saved) => {
                root(qdiscs).map(Saved::from).as_ref() == Some(saved)
                    && children.map(Saved::from).eq(self.child.clone())
            }
        }
    }

    /// Returns `true` if the saved root discipline is restored and its child is not yet.
    pub(super) fn half_stands(&self, qdiscs: &[Qdisc]) -> bool {
        let half = Self {
            child: None,
            ..self.clone()
        };
        self.root.is_some() && half.stands(qdiscs)
    }

    /// Restores the saved root discipline and its child in place of the present root; deletes the root if the kernel's
    /// default was there.
    pub(super) fn put_back(&self, index: u32, netlink: &Netlink) -> Result<(), Refused> {
        let Some(root) = &self.root else {
            let now = netlink.qdiscs(index)?;
            return match owner(&now) {
                Owner::Kernel => Ok(()),
                _ => netlink.delete_root(index),
            };
        };
        let options = |saved: &Saved| {
            let again = qdisc::restoring(&saved.kind, &saved.options);
            again.unwrap_or_else(|| saved.options.clone())
        };
        netlink.put_root(index, root.handle, &root.kind, &options(root))?;
        if let Some(child) = &self.child {
            let options = options(child);
            netlink.put(index, child.parent, child.handle, &child.kind, &options)?;
        }
        Ok(())
    }
}

/// Writes the saved disciplines for people, such as `fq_codel 8001:` or `the kernel's default`.
impl std::fmt::Display for Before {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.root, &self.child) {
            (None, _) => f.write_str("the kernel's default"),
            (Some(root), None) => write!(f, "{} {:x}:", root.kind, major(root.handle)),
            (Some(root), Some(child)) => write!(
                f,
                "{} {:x}: with {} {:x}:",
                root.kind,
                major(root.handle),
                child.kind,
                major(child.handle)
            ),
        }
    }
}

impl From<&Qdisc> for Saved {
    fn from(qdisc: &Qdisc) -> Self {
        Self {
            kind: qdisc.kind.clone(),
            handle: qdisc.handle,
            parent: qdisc.parent,
            options: qdisc.options.clone(),
        }
    }
}

/// Returns the tbf behind a netem of this program; `None` if there is none.
pub(super) fn own_tbf(qdiscs: &[Qdisc]) -> Option<&Qdisc> {
    let mut qdiscs = qdiscs.iter();
    qdiscs.find(|qdisc| qdisc.major() == TBF_MAJOR && qdisc.kind == "tbf")
}

mod hexadecimal {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[expect(clippy::ptr_arg, reason = "serde hands over the field's type")]
    pub(super) fn serialize<S: Serializer>(bytes: &Vec<u8>, to: S) -> Result<S::Ok, S::Error> {
        let digit = |half: u8| char::from_digit(half.into(), 16).expect("half a byte");
        let digits = bytes
            .iter()
            .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
        to.serialize_str(&digits.collect::<String>())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair)
                .ok()
                .filter(|pair| pair.len() == 2);
            pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())
        };
        let bytes: Option<Vec<_>> = text.as_bytes().chunks(2).map(byte).collect();
        bytes.ok_or_else(|| D::Error::custom("options are bytes in hexadecimal"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qdisc(kind: &str, handle: u32, parent: u32) -> Qdisc {
        Qdisc {
            kind: kind.to_owned(),
            handle,
            parent,
            options: vec![],
            entangled: false,
        }
    }

    fn with_jitter(ms: u64) -> Qdisc {
        let netem = Netem {
            limit: 10,
            jitter: std::time::Duration::from_millis(ms),
            ..Netem::default()
        };
        Qdisc {
            options: netem.encode(),
            ..qdisc("netem", 0x1_0000, ROOT)
        }
    }

    #[test]
    fn a_discipline_that_cannot_be_restored_is_named() {
        let tree = qdisc("htb", 0x1_0000, ROOT);
        let leaf = qdisc("fq", 0x2_0000, 0x1_0001);
        let fq = qdisc("fq", 0x1_0000, ROOT);
        let entangled = Qdisc {
            entangled: true,
            ..fq.clone()
        };
        for (root, others, says) in [
            (tree, vec![&leaf], "htb 1:"),
            (qdisc("tbf", 0x1_0000, ROOT), vec![&leaf], "tbf 1:"),
            (qdisc("tbf", 0x1_0000, ROOT), vec![], "tbf 1: with"),
            (qdisc("netem", 0x1_0000, ROOT), vec![&leaf], "netem 1:"),
            (with_jitter(1), vec![], "distribution"),
            (entangled, vec![], "size table"),
        ] {
            let error = Before::somebodys(&root, &others).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        for root in [fq, with_jitter(0)] {
            let before = Before::somebodys(&root, &[]).unwrap();
            assert!(before.stands(&[root]));
        }
    }

    #[test]
    fn a_saved_discipline_is_read_back_from_a_file() {
        let before = Before::somebodys(&with_jitter(0), &[]).unwrap();
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<Before>(&text).unwrap(), before);
        for wrong in ["abc", "zz", "é"] {
            let text = format!(
                "{{\"root\":{{\"kind\":\"fq\",\"handle\":1,\"parent\":1,\"options\":\"{wrong}\"}},\
                 \"child\":null}}"
            );
            let error = serde_json::from_str::<Before>(&text).unwrap_err();
            assert!(error.to_string().contains("hexadecimal"), "{error}");
        }
    }
}
