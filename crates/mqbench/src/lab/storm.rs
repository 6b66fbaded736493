//! A broker that is restarted under its devices: how long until they are back, and what that costs.
//!
//! ```text
//!   start ──> all devices connect ──> SIGTERM ──> ended ──> 5 s after SIGTERM: start ──> ready ──> 50 % ──> 99 % ──> all back
//!                                        └──────────────── broker_down ──────────────────┘└─ back_50, back_99, back_all ─┘
//!                                                                              └──── broker_cpu_s, client_cpu_s ──┘
//! ```
//!
//! Broker and devices are two processes that share the processors, on one host, over its loopback: the pattern
//! measures work and not a link. Neither gets a priority over ordinary processes, since both compute without a pause
//! and one would starve the other.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use mq_measure::{
    convert::float,
    process::{self, ProcessMeter},
    result::ConnectKind,
};
use mq_transport::{Address, ConnectOptions};
use tokio::time::{sleep, sleep_until, timeout};

use super::{PATIENCE, brokers::Brokers, findings::Findings};
use crate::{
    campaign::cell::Cell, clock::nanoseconds, mqtt::MqttOptions, units::ns_to_ms,
    workload::storm::Devices,
};

/// Time within which all devices have to connect before the restart.
const CONNECT_WITHIN: Duration = Duration::from_mins(5);

/// The rest before the restart, in which the last tickets and acknowledgements arrive.
const REST: Duration = Duration::from_secs(1);

/// Time from the request to end until the broker starts again, the same for each transport. A broker that has not ended by then
/// starts once it has.
const OUTAGE: Duration = Duration::from_secs(5);

/// Keep-alive of the devices: longer than a run, so that no device sends PINGREQ.
const KEEP_ALIVE: Duration = Duration::from_mins(30);

/// Connects a device for each of the cell's messages, restarts the broker, and waits until they are back. This process is
/// on the broker's host, in its network.
pub(super) async fn run(
    cell: &Cell,
    mqtt: &MqttOptions,
    (address, options): (Address, ConnectOptions),
    brokers: &mut Brokers<'_>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    // As a device has it: a dial that hangs is given up, and tried again.
    let connect_timeout = ConnectOptions::default().connect_timeout;
    let options = cell.resumption.apply(ConnectOptions {
        connect_timeout,
        ..options
    });
    let mqtt = MqttOptions {
        keep_alive: KEEP_ALIVE,
        connect_timeout,
        ..mqtt.clone()
    };
    let connecting = Devices::connect(cell.messages, &mqtt, (&address, &options));
    let devices = timeout(CONNECT_WITHIN, connecting).await;
    let devices = devices.with_context(|| {
        let devices = cell.messages;
        format!("the {devices} devices did not all connect within {CONNECT_WITHIN:?}")
    })??;
    sleep(REST).await;

    let asked = Instant::now();
    brokers.stop().await?;
    sleep_until((asked + OUTAGE).into()).await;
    let watch = devices.watch();
    let own = ProcessMeter::start_own()?;
    let started = brokers.start_again().await;
    started.context("the broker cannot start again")?;
    let ready = Instant::now();
    findings.set_metric("broker_down", ns_to_ms(nanoseconds(ready - asked)));
    let pid = brokers.pids().next().context("the broker ended at once")?;
    let mut cpu_ns = None;
    let waiting = watch.wait(ready, PATIENCE, || {
        cpu_ns = Some((process::cpu_times(pid)?.total_ns, own.read()?.cpu.total_ns));
        Ok(())
    });
    let returned = tokio::select! {
        returned = waiting => returned?,
        error = brokers.ended() => bail!(error.context("not all devices were back")),
    };

    for (metric, percent) in [("back_50", 50), ("back_99", 99), ("back_all", 100)] {
        if let Some(ns) = returned.until_ns(percent) {
            findings.set_metric(metric, ns_to_ms(ns));
        }
    }
    findings.add_distribution("back", &returned.after_ns)?;
    findings.set_metric("failed", float(returned.missing()));
    if let Some((broker, clients)) = cpu_ns {
        findings.set_metric("broker_cpu_s", seconds(broker));
        findings.set_metric("client_cpu_s", seconds(clients));
    }
    if cell.scheme().is_encrypted() {
        for (metric, kind) in [
            ("back_full", ConnectKind::Full),
            ("back_resumed", ConnectKind::Resumed),
            ("back_early", ConnectKind::ZeroRtt),
        ] {
            let devices = returned.kinds.get(&kind).copied();
            findings.set_metric(metric, float(devices.unwrap_or_default()));
        }
    }
    devices.disconnect().await;
    Ok(())
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}
