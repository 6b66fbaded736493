//! Clients that vanish in a phase of their connection: what they cost the broker while they are there, and until it is rid of
//! them.
//!
//! ```text
//!   start ──> rest ──> all clients reach the phase ──> rest ──> the link carries nothing ──> three keep-alives later
//!          memory, CPU                             memory, CPU                                 memory, CPU
//! ```
//!
//! A vanished client answers nothing and sends nothing, not even a FIN or a reset: its host is out of reach.

use std::time::Duration;

use anyhow::Context as _;
use mq_measure::{convert::float, process};
use mq_transport::{Address, ConnectOptions};
use tokio::time::sleep;

use super::{brokers::Brokers, findings::Findings};
use crate::{
    campaign::cell::{Cell, Transport},
    mqtt::MqttOptions,
    testbed::Testbed,
    workload::half_open::{HalfOpen, Phase},
};

/// Rest before the broker's memory and CPU time are read. The kernel sends a SYN
/// without an answer again after a second.
const REST: Duration = Duration::from_millis(700);

/// Returns the time for which the broker is watched once the clients have vanished: it ends their sessions after half of it.
pub(super) fn watched(cell: &Cell) -> Duration {
    cell.keep_alive() * 3
}

/// Processor time and memory of a broker.
#[derive(Clone, Copy)]
struct Use {
    cpu_ns: u64,
    rss_bytes: u64,
}

impl Use {
    fn of(pid: u32) -> anyhow::Result<Self> {
        Ok(Self {
            cpu_ns: process::cpu_times(pid)?.total_ns,
            rss_bytes: process::memory(pid)?.rss_bytes,
        })
    }
}

/// Lets a client for each of the cell's messages reach the cell's phase, and vanish.
pub(super) async fn run(
    cell: &Cell,
    mqtt: &MqttOptions,
    (address, options): (Address, ConnectOptions),
    testbed: &Testbed,
    brokers: &Brokers<'_>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let pid = brokers.pids().next().context("the broker ended at once")?;
    sleep(REST).await;
    let before = Use::of(pid)?;
    if cell.phase() == Phase::Dialled {
        testbed.cut_publisher(false, true)?;
    }
    let clients = HalfOpen::reach(cell.phase(), cell.messages, mqtt, (&address, &options)).await?;
    if cell.phase() == Phase::Dialled {
        first_packets(cell, testbed).await?;
    }
    sleep(REST).await;
    let held = Use::of(pid)?;
    let (up, down) = carried(testbed)?;
    testbed.cut_publisher(true, true)?;
    sleep(watched(cell)).await;
    let after = Use::of(pid)?;
    drop(clients);

    let each = |of: u64| float(of) / float(cell.messages);
    let us = |from: Use, to: Use| each(to.cpu_ns.saturating_sub(from.cpu_ns)) / 1e3;
    let kib = |now: Use| each(now.rss_bytes.saturating_sub(before.rss_bytes)) / 1024.0;
    findings.set_metric("sent_to_broker", each(up));
    findings.set_metric("sent_by_broker", each(down));
    findings.set_metric("client_cpu", us(before, held));
    findings.set_metric("client_memory", kib(held));
    findings.set_metric("vanished_cpu", us(held, after));
    findings.set_metric("vanished_memory", kib(after));
    Ok(())
}

/// Returns the bytes on the clients' link, to the broker and from it.
fn carried(testbed: &Testbed) -> anyhow::Result<(u64, u64)> {
    let bytes = testbed.publisher_bytes();
    bytes.context("a channel counts by the sender")
}

/// Waits until each client has sent its first packet: a SYN of 74 bytes or an Initial packet of 1,242, with the Ethernet header.
///
/// # Errors
/// If that takes more than 20 s.
async fn first_packets(cell: &Cell, testbed: &Testbed) -> anyhow::Result<()> {
    const WITHIN: Duration = Duration::from_secs(20);
    let first = match cell.transport {
        Transport::Quic => 1242,
        Transport::Tcp | Transport::Tls => 74,
    };
    let sent = async {
        while carried(testbed)?.0 < first * cell.messages {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let sent = tokio::time::timeout(WITHIN, sent).await;
    sent.context("not all clients have sent their first packet within 20 s")?
}
