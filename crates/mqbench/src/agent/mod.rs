//! Agents: on each host of a testbed a process that does what an enrolled controller asks, and cleans
//! up by itself when it hears no more of it.
//!
//! ```text
//!   controller                        agent: one UDP port, QUIC
//!   hosts add ADDR CODE --Enrol-->      right code, once: keeps the certificate
//!   everything else    ==mutual TLS==>  files in its work folder, roles, clock
//!                      --silence, 30 s, or its end-->  every role ended, the work folder emptied
//! ```
//!
//! A role is this same program with another command (`broker`, `pub`, `sub`, `net apply`), in a process
//! that ends as SIGTERM would end it when its standard input does: with the agent, however that ends.
//! So an interface is put back by whoever shaped it, and by `net clear` where that was killed as well.
//!
//! A controller may also send another program, which the agent then is: see `upgrade`.

mod channel;
mod children;
mod code;
mod controller;
mod folder;
mod identity;
mod message;
mod roles;
mod serve;
#[cfg(test)]
mod tests;
mod upgrade;

pub(crate) use code::Code;
pub(crate) use controller::{Agent, Controller, sha256};
pub(crate) use folder::Name;
pub(crate) use message::{Report, State};
pub(crate) use roles::{Client, Role};
pub(crate) use serve::{Server, open_code};

use std::time::Duration;

use anyhow::Context as _;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// How long an agent waits for a word of its controller.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// What the two speak, as ALPN has it: others are refused in the handshake.
const PROTOCOL: &[u8] = b"mqbench-agent/1";

/// The name in every agent's certificate: who it is, its key says.
const SERVER_NAME: &str = "mqbench-agent";

/// Ends this process as SIGTERM would when its standard input ends.
pub(crate) fn end_with_input() -> anyhow::Result<()> {
    let wait = || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        // Of the process, not of this thread alone: whoever waits for the signal gets it.
        let _ = kill(Pid::this(), Signal::SIGTERM);
    };
    let thread = std::thread::Builder::new().name("input".to_owned());
    thread.spawn(wait).context("cannot start a thread")?;
    Ok(())
}
