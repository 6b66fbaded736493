//! The meter of a run's publisher, read by this program or by the publisher's host.

use anyhow::Context as _;

use super::Crew;
use crate::{
    campaign::pattern::Pattern,
    hosts::{Machine, Remote},
    lab::work::Work,
    meter::{self, MeterRecording},
};

/// The meter of a run.
pub(super) enum Metering {
    None,
    /// Read by this program.
    Here(meter::RunningMeter),
    /// Read on the host.
    There(Box<Remote>),
}

/// Whose clock a meter's readings have.
pub(super) enum ReadBy {
    Host,
    Controller,
}

impl Crew<'_> {
    /// Starts the publisher's meter, if it has one. Only a schedule has a time to send all packets.
    pub(super) async fn start_meter(&self) -> anyhow::Result<Metering> {
        let host = self.place.publisher;
        let configured_meter = host.configured_meter();
        let Some(configured_meter) =
            configured_meter.filter(|_| self.work.cell.pattern == Pattern::Periodic)
        else {
            return Ok(Metering::None);
        };
        if configured_meter.spec.is_apart() {
            let Work {
                expected,
                journals,
                name,
                ..
            } = self.work;
            let running = configured_meter.start(*expected, journals, name).await?;
            return Ok(Metering::Here(running));
        }
        let meter = format!("--meter={}", configured_meter.spec);
        let arguments = ["energy", "record", "--announce", &meter].map(str::to_owned);
        let mut remote = self.ssh.start(host, &arguments, false)?;
        remote.ready().await?;
        Ok(Metering::There(Box::new(remote)))
    }
}

/// Stops the meter; returns its recording, and who read it.
pub(super) async fn stop_meter(
    metering: Metering,
    host: &Machine,
) -> anyhow::Result<Option<(MeterRecording, ReadBy)>> {
    match metering {
        Metering::None => Ok(None),
        Metering::Here(running) => Ok(Some((running.stopped().await?, ReadBy::Controller))),
        Metering::There(remote) => {
            let taken = serde_json::from_str(&remote.stop().await?);
            let taken = taken.with_context(|| format!("host {}: its meter", host.name))?;
            Ok(Some((taken, ReadBy::Host)))
        }
    }
}
