//! The clocks of a run's hosts: compared with this machine's before, during and after the run.

use std::time::Duration;

use anyhow::Context as _;
use mq_energy::Window;
use mq_measure::clock::{Assumptions, ClockFile, Relation, Side};
use tokio::time::{sleep, timeout};

use super::RemoteRun;
use crate::{
    hosts::Machine,
    lab::{findings::Findings, metered_energy::SendingWindow},
};

/// Number of comparisons of clocks before a run, and after it.
pub(super) const COMPARISONS: usize = 40;

/// Fixed pause between two comparisons of clocks.
pub(super) const COMPARISON_PAUSE: Duration = Duration::from_millis(10);

/// Time within which a host has to answer with its time.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// The name of this machine among the hosts; no host has this name.
const OWN_NAME: &str = "";

impl RemoteRun<'_> {
    /// Asks the publisher's host and the subscriber's host for the time, `times` times each.
    pub(super) async fn compare_clocks(&mut self, times: usize) -> anyhow::Result<()> {
        for _ in 0..times {
            for host in [self.placement.publisher, self.placement.subscriber] {
                let session = self.sessions.get_mut(&host.name);
                let session = session.context("a host takes no part")?;
                let exchange = timeout(CLOCK_TIMEOUT, session.clock(&self.clock)).await;
                let late = || format!("host {} does not say the time", host.name);
                let all = self.comparisons.entry(host.name.clone()).or_default();
                all.push(exchange.with_context(late)??);
            }
            sleep(COMPARISON_PAUSE).await;
        }
        self.check_background().await
    }

    /// Returns the relation from one host's clock to another's, by way of this machine's clock; `None` if both are one
    /// host.
    pub(super) fn relation(
        &self,
        [from, to]: [&Machine; 2],
        findings: &mut Findings,
    ) -> anyhow::Result<Option<Relation>> {
        if from == to {
            return Ok(None);
        }
        let files = [self.compared(from)?, self.compared(to)?];
        for file in &files {
            findings.validity.extend(file.validity.warnings.clone());
        }
        Ok(Some(Relation::between(&files, &from.name, &to.name)?))
    }

    /// Returns the comparison of a host's clock with this machine's.
    fn compared(&self, host: &Machine) -> anyhow::Result<ClockFile> {
        let exchanges = self.comparisons.get(&host.name);
        let exchanges = exchanges.cloned().unwrap_or_default();
        let side = |name: &str, error_bound_ns| Side {
            host: name.to_owned(),
            error_bound_ns,
        };
        let bound_ns = self.session(host)?.report.clock_bound_ns;
        let (own, other) = (
            side(OWN_NAME, self.own_bound_ns),
            side(&host.name, bound_ns),
        );
        let asked = exchanges.len() as u64;
        ClockFile::new(own, other, Assumptions::default(), asked, exchanges)
            .with_context(|| format!("host {}: its clock", host.name))
    }

    /// Converts a window of a host's clock to this machine's clock.
    pub(super) fn to_own_clock(
        &self,
        host: &Machine,
        window: Window,
    ) -> anyhow::Result<SendingWindow> {
        let relation = Relation::between(&[self.compared(host)?], &host.name, OWN_NAME)?;
        let (from, to) = (relation.map(window.from_ns), relation.map(window.to_ns));
        Ok(SendingWindow {
            window: Window::new(from.at_ns, to.at_ns),
            uncertainty_ns: from.uncertainty_ns.max(to.uncertainty_ns),
        })
    }
}
