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

use super::{findings::Findings, metered_energy::SendingWindow, placement::Placement, work::Work};
use crate::{
    campaign::{cell::Cell, record::Outcome},
    clock::{WallClock, chrony::error_bound_ns},
    hosts::{
        Hosts, Machine, Presence, Remote, Ssh,
        check::{reachable, ready},
    },
    meter::MeterRecording,
};
use clocks::COMPARISONS;
use logs::evaluate;
use meter::{ReadBy, stop_meter};

/// Hosts, and how they are reached.
#[derive(Debug)]
pub(crate) struct Testbed {
    hosts: Hosts,
    ssh: Ssh,
}

impl Testbed {
    pub(crate) fn new(hosts: Hosts, ssh: Ssh) -> Self {
        Self { hosts, ssh }
    }

    /// Makes sure, before anything begins, that the hosts can run these cells.
    pub(super) async fn prepare(&self, cells: impl Iterator<Item = &Cell>) -> anyhow::Result<()> {
        for cell in cells {
            self.hosts.place(cell)?;
        }
        ready(&self.ssh, &self.hosts).await
    }

    pub(super) async fn run(&self, work: &Work) -> anyhow::Result<Outcome> {
        let place = self.hosts.place(&work.cell)?;
        let began = Instant::now();
        let mut findings = Findings::default();
        let went = self.measure(work, &place, &mut findings).await;
        let link = LinkContext {
            configured: Some(place.configured()),
            measured: None,
        };
        let (went, energy) = match went {
            Ok(energy) => (Ok(()), energy),
            Err(error) => (Err(error), None),
        };
        let mut outcome = findings.outcome(went, link, began);
        if outcome.error.is_some() {
            // A lost host is the reason, and all other runs would fail as well.
            let there = reachable(&self.ssh, &self.hosts).await;
            there.context("a run was cut off, `mqbench campaign resume` goes on")?;
        }
        if let Some((taken, sending)) = energy {
            taken.set_energy(&mut outcome, sending);
        }
        Ok(outcome)
    }

    async fn measure(
        &self,
        work: &Work,
        place: &Placement<'_>,
        findings: &mut Findings,
    ) -> anyhow::Result<Option<(MeterRecording, SendingWindow)>> {
        let mut crew = Crew::gather(&self.ssh, work, place).await?;
        for (host, present) in &crew.present {
            let found = present.report.context.emulated.as_deref();
            findings
                .validity
                .note(validity::emulated(Some(host), found));
        }
        let measured = crew.measure(findings).await;
        let dismissed = crew.dismiss().await;
        let measured = measured?;
        dismissed.map(|()| measured)
    }
}

/// The hosts of a run and their roles.
struct Crew<'a> {
    ssh: &'a Ssh,
    work: &'a Work,
    place: &'a Placement<'a>,
    /// The hosts that take part, by their names.
    present: BTreeMap<String, Presence>,
    /// This machine's clock.
    clock: WallClock,
    /// Comparisons of each host's clock with this machine's.
    comparisons: BTreeMap<String, Vec<Exchange>>,
    /// How far this machine's clock is from UTC at most, by chrony.
    own_bound_ns: Option<u64>,
    /// The roles that have to last as long as the run.
    lasting: Vec<Lasting<'a>>,
}

/// The role of a broker or a link.
struct Lasting<'a> {
    host: &'a Machine,
    is_link: bool,
    remote: Remote,
}

impl<'a> Crew<'a> {
    async fn gather(
        ssh: &'a Ssh,
        work: &'a Work,
        place: &'a Placement<'a>,
    ) -> anyhow::Result<Self> {
        let mut present = BTreeMap::new();
        for host in place.hosts() {
            present.insert(host.name.clone(), Presence::of(ssh, host).await?);
        }
        Ok(Self {
            ssh,
            work,
            place,
            present,
            clock: WallClock::from_env()?,
            comparisons: BTreeMap::new(),
            own_bound_ns: error_bound_ns().await,
            lasting: Vec::new(),
        })
    }

    /// Ends all roles; returns once they have cleaned up.
    async fn dismiss(self) -> anyhow::Result<()> {
        let mut ended = Ok(());
        for lasting in self.lasting {
            let stopped = lasting.remote.stop().await.map(drop);
            ended = ended.and(match stopped {
                // A link that was killed has left its interface shaped.
                Err(_) if lasting.is_link => {
                    let present = self.present.get(&lasting.host.name);
                    let by_sudo = present.is_some_and(|present| !present.report.may_shape);
                    self.ssh.clear(lasting.host, by_sudo).await
                }
                stopped => stopped,
            });
        }
        for present in self.present.into_values() {
            ended = ended.and(present.leave().await);
        }
        ended
    }

    fn at(&self, host: &Machine) -> anyhow::Result<&Presence> {
        let present = self.present.get(&host.name);
        present.with_context(|| format!("host {} takes no part", host.name))
    }

    /// The path of a file of the run on a host.
    fn file(&self, host: &Machine, name: &str) -> anyhow::Result<PathBuf> {
        Ok(self.at(host)?.report.folder.join(name))
    }

    /// A role's option with the path of a file.
    fn option(&self, host: &Machine, option: &str, name: &str) -> anyhow::Result<String> {
        Ok(format!("{option}={}", self.file(host, name)?.display()))
    }

    async fn measure(
        &mut self,
        findings: &mut Findings,
    ) -> anyhow::Result<Option<(MeterRecording, SendingWindow)>> {
        let (publisher, subscriber) = (self.place.publisher, self.place.subscriber);
        let address = self.start_broker().await?;
        self.start_links().await?;
        self.compare_clocks(COMPARISONS).await?;
        let metering = self.start_meter().await?;
        let sent = self.send(&address).await;
        // Stop the meter even after a failed run, so that the instrument is reset.
        let taken = stop_meter(metering, publisher).await;
        let logs = sent?;
        let taken = taken?;
        self.compare_clocks(COMPARISONS).await?;
        self.look_at_lasting().await?;
        let relation = self.relation([publisher, subscriber], findings)?;
        evaluate(&self.work.cell, &logs, relation.as_ref(), findings)?;
        let (Some((taken, by)), Some(window)) = (taken, findings.so_far.sending) else {
            return Ok(None);
        };
        let sending = match by {
            ReadBy::Host => SendingWindow {
                window,
                uncertainty_ns: 0,
            },
            ReadBy::Controller => self.seen_here(publisher, window)?,
        };
        Ok(Some((taken, sending)))
    }
}
