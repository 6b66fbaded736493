//! The meter of a run's publisher, read by this program or by the publisher's host.

use anyhow::Context as _;

use super::RemoteRun;
use crate::{
    campaign::pattern::Pattern,
    hosts::{Machine, RemoteRole},
    lab::run_request::RunRequest,
    meter::{self, MeterRecording},
};

/// The meter of a run.
pub(super) enum RunMeter {
    None,
    /// Read by this program.
    Here(meter::RunningMeter),
    /// Read on the host.
    There(Box<RemoteRole>),
}

/// The machine whose clock a meter's readings have.
pub(super) enum ReadingClock {
    Host,
    Controller,
}

impl RemoteRun<'_> {
    /// Starts the publisher's meter, if it has one. Only a schedule has a time to send all packets.
    pub(super) async fn start_meter(&self) -> anyhow::Result<RunMeter> {
        let host = self.placement.publisher;
        let configured_meter = host.configured_meter();
        let Some(configured_meter) =
            configured_meter.filter(|_| self.request.cell.pattern == Pattern::Periodic)
        else {
            return Ok(RunMeter::None);
        };
        if configured_meter.spec.is_apart() {
            let RunRequest {
                expected,
                journals,
                name,
                ..
            } = self.request;
            let running = configured_meter.start(*expected, journals, name).await?;
            return Ok(RunMeter::Here(running));
        }
        let meter = format!("--meter={}", configured_meter.spec);
        let arguments = ["energy", "record", "--announce", &meter].map(str::to_owned);
        let mut remote = self.ssh.start(host, &arguments, false)?;
        remote.wait_until_ready().await?;
        Ok(RunMeter::There(Box::new(remote)))
    }
}

/// Stops the meter; returns its recording, and who read it.
pub(super) async fn stop_meter(
    metering: RunMeter,
    host: &Machine,
) -> anyhow::Result<Option<(MeterRecording, ReadingClock)>> {
    match metering {
        RunMeter::None => Ok(None),
        RunMeter::Here(running) => Ok(Some((running.stopped().await?, ReadingClock::Controller))),
        RunMeter::There(remote) => {
            let taken = serde_json::from_str(&remote.stop().await?);
            let taken = taken.with_context(|| format!("host {}: its meter", host.name))?;
            Ok(Some((taken, ReadingClock::Host)))
        }
    }
}
