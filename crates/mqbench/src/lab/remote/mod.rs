//! Runs on the hosts of a testbed, one after the other.
//!
//! ```text
//!   link on each shaped interface ─> broker ─> subscriber ─> publisher ─> logs ─> joined by number
//!   clocks compared before ──────────────────────────────────────── and after
//!                                  the publisher's meter read
//! ```
//!
//! Each part is a role on its host, see [`ssh`](crate::hosts::ssh). Every run ends all of its roles, also a run
//! that failed. A run that failed because a host or its meter has gone says nothing about its cell: it leaves no
//! record, and the campaign ends. The user resumes it when the host or meter is back.

mod clocks;
mod logs;
mod meter;
mod roles;

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use anyhow::Context as _;
use mq_measure::{clock::Exchange, manifest::LinkContext, validity};

use super::{
    findings::Findings, metered_energy::SendingWindow, placement::Placement,
    run_request::RunRequest,
};
use crate::{
    campaign::{cell::Cell, record::Outcome},
    clock::{WallClock, chrony::error_bound_ns},
    hosts::{
        HostSession, Hosts, Machine, RemoteRole, Ssh,
        check::{ensure_reachable, ensure_ready},
    },
    meter::MeterRecording,
};
use clocks::COMPARISONS;
use logs::evaluate;
use meter::{ReadingClock, stop_meter};

/// Hosts, and how they are reached.
#[derive(Debug)]
pub(crate) struct RemoteHosts {
    hosts: Hosts,
    ssh: Ssh,
}

impl RemoteHosts {
    pub(crate) fn new(hosts: Hosts, ssh: Ssh) -> Self {
        Self { hosts, ssh }
    }

    /// Makes sure, before anything begins, that the hosts can run these cells.
    pub(super) async fn prepare(&self, cells: impl Iterator<Item = &Cell>) -> anyhow::Result<()> {
        for cell in cells {
            self.hosts.placement(cell)?;
        }
        ensure_ready(&self.ssh, &self.hosts).await
    }

    pub(super) async fn run(&self, request: &RunRequest) -> anyhow::Result<Outcome> {
        let placement = self.hosts.placement(&request.cell)?;
        let began = Instant::now();
        let mut findings = Findings::default();
        let measured = self.measure(request, &placement, &mut findings).await;
        let link = LinkContext {
            configured: Some(placement.configured()),
            measured: None,
        };
        let (went, energy) = match measured {
            Ok(energy) => (Ok(()), energy),
            Err(error) => (Err(error), None),
        };
        let mut outcome = findings.outcome(went, link, began);
        if outcome.error.is_some() {
            // A lost host is the reason, and all other runs would fail as well.
            let there = ensure_reachable(&self.ssh, &self.hosts).await;
            there.context("a run was cut off, `mqbench campaign resume` goes on")?;
        }
        if let Some((taken, sending)) = energy {
            taken.set_energy(&mut outcome, sending);
        }
        Ok(outcome)
    }

    async fn measure(
        &self,
        request: &RunRequest,
        placement: &Placement<'_>,
        findings: &mut Findings,
    ) -> anyhow::Result<Option<(MeterRecording, SendingWindow)>> {
        let mut remote_run = RemoteRun::connect(&self.ssh, request, placement).await?;
        for (host, session) in &remote_run.sessions {
            let found = session.report.context.emulated.as_deref();
            findings
                .validity
                .note(validity::emulated(Some(host), found));
        }
        let measured = remote_run.measure(findings).await;
        let ended = remote_run.end().await;
        let measured = measured?;
        ended.map(|()| measured)
    }
}

/// The hosts of a run and their roles.
struct RemoteRun<'a> {
    ssh: &'a Ssh,
    request: &'a RunRequest,
    placement: &'a Placement<'a>,
    /// The hosts that take part, by their names.
    sessions: BTreeMap<String, HostSession>,
    /// The clock of this machine.
    clock: WallClock,
    /// Comparisons of each host's clock with this machine's.
    comparisons: BTreeMap<String, Vec<Exchange>>,
    /// Bound of this machine's clock error against UTC, by chrony.
    own_bound_ns: Option<u64>,
    /// The roles that have to last as long as the run.
    background: Vec<BackgroundRole<'a>>,
}

/// The role of a broker or a link.
struct BackgroundRole<'a> {
    host: &'a Machine,
    is_link: bool,
    remote: RemoteRole,
}

impl<'a> RemoteRun<'a> {
    async fn connect(
        ssh: &'a Ssh,
        request: &'a RunRequest,
        placement: &'a Placement<'a>,
    ) -> anyhow::Result<Self> {
        let mut sessions = BTreeMap::new();
        for host in placement.hosts() {
            sessions.insert(host.name.clone(), HostSession::open(ssh, host).await?);
        }
        Ok(Self {
            ssh,
            request,
            placement,
            sessions,
            clock: WallClock::from_env()?,
            comparisons: BTreeMap::new(),
            own_bound_ns: error_bound_ns().await,
            background: Vec::new(),
        })
    }

    /// Ends all roles; returns once they have cleaned up.
    async fn end(self) -> anyhow::Result<()> {
        let mut ended = Ok(());
        for background in self.background {
            let stopped = background.remote.stop().await.map(drop);
            ended = ended.and(match stopped {
                // A link that was killed has left its interface shaped.
                Err(_) if background.is_link => {
                    let session = self.sessions.get(&background.host.name);
                    let by_sudo = session.is_some_and(|session| !session.report.may_shape);
                    self.ssh.clear(background.host, by_sudo).await
                }
                stopped => stopped,
            });
        }
        for session in self.sessions.into_values() {
            ended = ended.and(session.close().await);
        }
        ended
    }

    fn session(&self, host: &Machine) -> anyhow::Result<&HostSession> {
        let session = self.sessions.get(&host.name);
        session.with_context(|| format!("host {} takes no part", host.name))
    }

    /// Returns the path of a file of the run on a host.
    fn file(&self, host: &Machine, name: &str) -> anyhow::Result<PathBuf> {
        Ok(self.session(host)?.report.folder.join(name))
    }

    /// Formats a role's option with the path of a file.
    fn option(&self, host: &Machine, option: &str, name: &str) -> anyhow::Result<String> {
        Ok(format!("{option}={}", self.file(host, name)?.display()))
    }

    async fn measure(
        &mut self,
        findings: &mut Findings,
    ) -> anyhow::Result<Option<(MeterRecording, SendingWindow)>> {
        let (publisher, subscriber) = (self.placement.publisher, self.placement.subscriber);
        let address = self.start_broker().await?;
        self.start_links().await?;
        self.compare_clocks(COMPARISONS).await?;
        let metering = self.start_meter().await?;
        let sent = self.run_pattern(&address).await;
        // Stop the meter even after a failed run, so that the instrument is reset.
        let taken = stop_meter(metering, publisher).await;
        let logs = sent?;
        let taken = taken?;
        self.compare_clocks(COMPARISONS).await?;
        self.check_background().await?;
        let relation = self.relation([publisher, subscriber], findings)?;
        evaluate(&self.request.cell, &logs, relation.as_ref(), findings)?;
        let (Some((taken, by)), Some(window)) = (taken, findings.so_far.sending) else {
            return Ok(None);
        };
        let sending = match by {
            ReadingClock::Host => SendingWindow {
                window,
                uncertainty_ns: 0,
            },
            ReadingClock::Controller => self.to_own_clock(publisher, window)?,
        };
        Ok(Some((taken, sending)))
    }
}
