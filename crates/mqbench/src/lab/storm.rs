//! A broker that is restarted under its devices: how long until they are back, and what that costs.
//!
//! ```text
//!   start ──> all devices connect ──> SIGTERM ──> ended ──> start ──> ready ──> 50 % ──> 99 % ──> all back
//!                                        └──── broker_down ────────────┘└─ back_50, back_99, back_all ─┘
//!                                                             └──── broker_cpu_s, client_cpu_s ──┘
//! ```
//!
//! Broker and devices are two processes that share the processors, on one host, over its loopback: the pattern
//! measures work and not a link. Neither gets a priority over ordinary processes, since both compute without a pause
//! and one would starve the other.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use mq_measure::{
    manifest::LinkContext,
    process::{self, ProcessMeter},
    result::ConnectKind,
};
use mq_transport::{Address, ConnectOptions, Trust};
use tokio::time::timeout;

use super::{
    findings::{Findings, count},
    run_cell::PATIENCE,
};
use crate::{
    broker_under_test::{BrokerSetup, TestCertificate},
    campaign::{
        cell::{Cell, Tickets},
        record::Outcome,
        stack::Stack,
    },
    clock::nanoseconds,
    descriptors,
    mqtt::Mqtt,
    testbed::{TcpSettings, Testbed},
    units::ms,
    workload::storm::Devices,
};

/// How long the devices may take, all together, to connect before the restart.
const CONNECT_WITHIN: Duration = Duration::from_mins(5);

/// The rest before the restart, in which the last tickets and acknowledgements arrive.
const REST: Duration = Duration::from_secs(1);

/// Longer than a run, so that no device sends PINGREQ.
const KEEP_ALIVE: Duration = Duration::from_mins(30);

/// Runs the cell on the broker's host, in whose network this process is.
pub(super) async fn run(
    cell: &Cell,
    testbed: &Testbed,
    certificate: &TestCertificate,
    began: Instant,
) -> Outcome {
    let mut findings = Findings::here();
    let went = measure(cell, testbed, certificate, &mut findings).await;
    // There is no link.
    findings.outcome(went, LinkContext::default(), began)
}

async fn measure(
    cell: &Cell,
    testbed: &Testbed,
    certificate: &TestCertificate,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    // Before the broker starts, which inherits the limit.
    descriptors::make_room(cell.messages)?;
    let congestion = cell.congestion()?;
    let scheme = cell.scheme();
    // The scheme's own port, which is below the ports that the system gives to clients. Else a device that dials
    // while the broker is away could get the broker's port.
    let address = Address::new(scheme, "127.0.0.1", scheme.default_port());
    let setup = BrokerSetup {
        listen: vec![address.clone()],
        certificate,
        congestion: Some(congestion),
        host: Some(testbed.broker()),
        keeps_tickets: cell.tickets == Tickets::Kept,
        bridge: None,
    };
    let (quic, crypto) = (cell.quic()?, cell.crypto()?);
    let tcp = TcpSettings::here();
    findings.so_far.stack = Some(Stack::of(&crypto, &quic, Some(congestion), tcp));
    let options = ConnectOptions {
        trust: Trust::CaFile(certificate.certificate()),
        congestion: Some(congestion),
        crypto,
        quic,
        ..ConnectOptions::default()
    };
    let options = cell.resumption.apply(options);
    let mqtt = Mqtt {
        qos: cell.qos(),
        version: cell.mqtt.into(),
        keep_alive: KEEP_ALIVE,
        probes: Mqtt::NO_PROBES,
        user_name: None,
        password: None,
        // As a device has it: a dial that hangs is given up, and tried again.
        connect_timeout: options.connect_timeout,
        streams: cell.streams()?,
        deliveries: cell.deliveries()?,
        datagrams: cell.datagrams,
    };

    let broker = setup.start().await?;
    let connecting = Devices::connect(cell.messages, &mqtt, (&address, &options));
    let devices = timeout(CONNECT_WITHIN, connecting).await;
    let devices = devices.with_context(|| {
        let devices = cell.messages;
        format!("the {devices} devices did not all connect within {CONNECT_WITHIN:?}")
    })??;
    tokio::time::sleep(REST).await;

    let asked = Instant::now();
    broker.stop().await?;
    let watch = devices.watch();
    let own = ProcessMeter::start_own()?;
    let broker = setup.start().await;
    let mut broker = broker.context("the broker cannot start again")?;
    let ready = Instant::now();
    findings.set("broker_down", ms(nanoseconds(ready - asked)));
    let pid = broker.pid().context("the broker ended at once")?;
    let mut cpu_ns = None;
    let waiting = watch.wait(ready, PATIENCE, || {
        cpu_ns = Some((process::cpu_times(pid)?.total_ns, own.read()?.cpu.total_ns));
        Ok(())
    });
    let returned = tokio::select! {
        returned = waiting => returned?,
        error = broker.ended() => bail!(error.context("not all devices were back")),
    };

    for (metric, percent) in [("back_50", 50), ("back_99", 99), ("back_all", 100)] {
        if let Some(ns) = returned.until_ns(percent) {
            findings.set(metric, ms(ns));
        }
    }
    findings.distribution("back", &returned.after_ns)?;
    findings.set("failed", count(returned.missing()));
    if let Some((broker, clients)) = cpu_ns {
        findings.set("broker_cpu_s", seconds(broker));
        findings.set("client_cpu_s", seconds(clients));
    }
    if scheme.is_encrypted() {
        for (metric, kind) in [
            ("back_full", ConnectKind::Full),
            ("back_resumed", ConnectKind::Resumed),
            ("back_early", ConnectKind::ZeroRtt),
        ] {
            let devices = returned.kinds.get(&kind).copied();
            findings.set(metric, count(devices.unwrap_or_default()));
        }
    }
    devices.leave().await;
    broker.stop().await
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}
