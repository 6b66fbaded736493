//! Errors of emulated links.

use std::{io, path::PathBuf};

/// Reason that a link cannot be emulated, set or restored. Each message is one line that says what is wrong and what
/// would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No shipped profile has that name.
    #[error("there is no profile `{name}`: there are {known}, and files whose name ends in .toml")]
    NoProfile {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A profile's file cannot be read.
    #[error("cannot read the profile {name}: {source}")]
    ReadProfile {
        /// The path of the profile's file.
        name: String,
        /// Source of this error: the I/O error of reading the file.
        source: io::Error,
    },
    /// A profile has a wrong key or value.
    #[error("the profile {name}: {problem}")]
    Profile {
        /// The profile's name.
        name: String,
        /// The key, the value and what is allowed.
        problem: String,
    },
    /// The system has no namespaces, or does not let this user make them.
    #[error("{problem}")]
    Namespaces {
        /// System setting that forbids namespaces, with the command that allows them; the system's own error if no such
        /// setting is found.
        problem: String,
    },
    /// A capture cannot begin.
    #[error("cannot capture packets into {}: {source}", file.display())]
    Capture {
        /// Path of the capture file that could not be written.
        file: PathBuf,
        /// Source of this error: the I/O error of creating the file or of starting the capture.
        source: io::Error,
    },
    /// A step of building the network failed.
    #[error("cannot {step}: {source}")]
    Setup {
        /// Step that failed, as an infinitive: "start a thread of the emulator".
        step: &'static str,
        /// Source of this error: the I/O error of the step.
        source: io::Error,
    },
    /// The kernel's netem and tbf cannot do what the link says.
    #[error("the kernel has no form of this link: {problem}")]
    NoKernelForm {
        /// Property of the link that netem and tbf do not have.
        problem: String,
    },
    /// This network namespace has no such interface.
    #[error("there is no interface `{name}`: there are {known}")]
    NoInterface {
        /// Name that was asked for.
        name: String,
        /// Names of the interfaces of this network namespace.
        known: String,
    },
    /// The interface has a queueing discipline that could not be restored as it is.
    #[error(
        "{interface} has {qdisc}, which could not be put back as it is: nothing was changed; take \
         it away yourself first (tc qdisc del dev {interface} root)"
    )]
    InTheWay {
        /// Name of the interface.
        interface: String,
        /// The discipline that is in the way, as `tc` names it (kind and handle), and the property that could not be
        /// restored, if one is the cause.
        qdisc: String,
    },
    /// Another program has replaced the link that this program had set.
    #[error(
        "{interface} has {qdisc}, which somebody set after this program: nothing was changed; {} \
         knows what stood there before ({before}): remove it to leave all as it is, or \
         `tc qdisc del dev {interface} root` and clear again", file.display()
    )]
    Replaced {
        /// Name of the interface.
        interface: String,
        /// Kind and handle of the root discipline, such as `htb 1:`.
        qdisc: String,
        /// Root discipline that the interface had before this program changed it.
        before: String,
        /// The file that remembers the root discipline from before.
        file: PathBuf,
    },
    /// The SSH session that this program was started from goes through the interface.
    #[error("your SSH session goes through {interface}: --even-ssh shapes it all the same")]
    Session {
        /// Name of the interface.
        interface: String,
    },
    /// Another process of this program holds the interface.
    #[error("process {process} of this program has {interface}: end it first")]
    InUse {
        /// Name of the interface.
        interface: String,
        /// Id of the process, from the lock file.
        process: String,
    },
    /// The user has no right to change interfaces.
    #[error("changing an interface needs root (CAP_NET_ADMIN)")]
    NotPermitted,
    /// The kernel does not have a queueing discipline.
    #[error(
        "this kernel does not have {kind}: `modprobe sch_{kind}` loads it, if the module is \
         installed"
    )]
    NoModule {
        /// Kind of the discipline: `netem` or `tbf`.
        kind: &'static str,
    },
    /// The kernel refused a request.
    #[error("cannot {step}: {says}")]
    Kernel {
        /// Step that failed, as an infinitive, with the interface's name where there is one.
        step: String,
        /// The kernel's words.
        says: String,
    },
    /// The settings read back from the kernel differ from those that were made.
    #[error("{interface} is not as it was set: {differences}")]
    Differs {
        /// Name of the interface.
        interface: String,
        /// The differences, separated by semicolons.
        differences: String,
    },
    /// The root discipline that an interface had before could not be restored.
    #[error(
        "cannot put {before} back on {interface}: {says}; what is known of it is in {}",
        file.display()
    )]
    NotRestored {
        /// Name of the interface.
        interface: String,
        /// Root discipline that should have been restored.
        before: String,
        /// The kernel's reason, and the discipline that the interface has now.
        says: String,
        /// The file that remembers the root discipline from before.
        file: PathBuf,
    },
    /// The root discipline that an interface had before was restored, but its options or children read back
    /// differently.
    #[error(
        "{before} is back on {interface}, but the kernel does not say the same of it as before: \
         compare `tc -d qdisc show dev {interface}`"
    )]
    NotExact {
        /// Name of the interface.
        interface: String,
        /// Root discipline that was restored.
        before: String,
    },
    /// The file that remembers an interface's earlier discipline, its lock file or their directory cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    Memory {
        /// Path of the file or directory.
        path: PathBuf,
        /// Source of this error: the I/O error of the access.
        source: io::Error,
    },
}

impl Error {
    /// Makes the error of an emulator that cannot reach its end of a host's interface.
    #[cfg(target_os = "linux")]
    pub(crate) fn no_emulator(source: io::Error) -> Self {
        Self::Setup {
            step: "open an interface for the emulator",
            source,
        }
    }
}
