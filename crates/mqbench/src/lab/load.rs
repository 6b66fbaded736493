//! Clients that publish and subscribe at a rate, or as fast as they can: what they cost the broker.

use std::time::Duration;

use anyhow::Context as _;
use mq_measure::{
    convert::float,
    process::{self, CpuTimes},
};

use super::{brokers::Brokers, findings::Findings};
use crate::{
    campaign::cell::Cell,
    mqtt::{ClientIds, MqttOptions, Route},
    workload::load::{self, LoadProgress, Pace},
};

/// Time before the measurement, in which windows and buffers fill.
const WARM_UP: Duration = Duration::from_secs(1);

/// Time of the measurement.
const MEASURED: Duration = Duration::from_secs(5);

/// Time of a run from its first connection on.
pub(super) const LASTS: Duration = WARM_UP.saturating_add(MEASURED);

const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// Connects the cell's number of clients, half of them publishers with a subscriber each, and measures the broker under their
/// messages.
pub(super) async fn run(
    cell: &Cell,
    mqtt: &MqttOptions,
    route: &Route,
    brokers: &Brokers<'_>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let pairs = usize::try_from(cell.messages / 2)?;
    let each = f64::from(cell.burst.get()) / cell.interval().as_secs_f64();
    let plan = load::Plan {
        publishers: pairs,
        subscribers: pairs,
        topics: pairs,
        topics_of_each: cell.topics,
        size: cell.size,
        pace: Pace::Rate(each * float(cell.messages / 2)),
        warm_up: WARM_UP,
        duration: MEASURED,
        ramp_up: Duration::ZERO,
        client_ids: ClientIds::USUAL.parse().map_err(anyhow::Error::msg)?,
    };
    let pid = brokers.pids().next().context("the broker ended at once")?;
    let mut cpu: Vec<CpuTimes> = Vec::new();
    let outcome = load::run(&plan, mqtt, route, |progress| {
        if let LoadProgress::Steady = progress {
            cpu.push(process::cpu_times(pid)?);
        }
        Ok(())
    });
    let outcome = outcome.await?;
    let peak = |pid: u32| anyhow::Ok(float(process::memory(pid)?.peak_rss_bytes) / MEBIBYTE);
    if let [before, after] = cpu[..]
        && outcome.received > 0
    {
        let spent = float(after.since(&before).total_ns) / 1e3;
        findings.set_metric("cpu_per_message", spent / float(outcome.received));
    }
    findings.set_metric("broker_peak_memory", peak(pid)?);
    findings.set_metric("clients_peak_memory", peak(std::process::id())?);
    findings.set_metric("arrived_per_second", outcome.per_second(outcome.received));
    Ok(())
}
