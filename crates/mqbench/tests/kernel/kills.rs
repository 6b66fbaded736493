//! A campaign over three hosts, in which something is killed: no trace of it remains, and the missing runs can be done.
//!
//! | killed | the campaign | no trace is left |
//! |---|---|---|
//! | the controller | has ended | at once: each role's input has ended |
//! | a host's ssh server | ends, or tries the run again if the server is back | as soon as the campaign has ended |
//! | the broker, a link | tries the run again | as soon as the campaign has ended |
//! | the meter | ends, or tries the run again if the meter is back | as soon as the campaign has ended |
//!
//! `MQ_KILLS=50` kills fifty times.

use std::{
    collections::BTreeMap,
    fmt,
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant},
};

use mq_energy::csv;
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

use crate::{
    KILLS,
    guest::Test,
    testbed::{Running, path},
    three::{AMPERE, METER_AT, NAMES, Three, files},
};

pub(crate) const TESTS: &[Test] = &[(
    "whatever_is_killed_nothing_remains_and_a_campaign_goes_on",
    whatever_is_killed_nothing_remains_and_a_campaign_goes_on,
)];

/// The lease of every role, plus time for a slow kernel.
const LEASE: Duration = Duration::from_secs(5 + 10);

/// Time limit of an immediate effect, in a slow kernel.
const AT_ONCE: Duration = Duration::from_secs(3);

/// The time limit for a campaign of one run that is tried three times, in a slow kernel.
const CAMPAIGN_ENDS: Duration = Duration::from_mins(2);

const CAMPAIGN: &str = r#"
title = "a test's"
source = "none"
[work]
pattern = "periodic"
topology = "both"
link = "s21/wifi"
messages = 25
interval = "20ms"
qos = 1
[factors]
size = [100]
transport = ["quic"]
[plot]
kind = "lines"
metric = "power_w"
x = "size"
series = "transport"
"#;

/// The victim of a kill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Controller,
    /// The ssh server of a host, by its index in [`NAMES`].
    Server(usize),
    Broker,
    Link,
    Meter,
}

impl Victim {
    /// Returns the victim of a turn: each kind after the other, and a random server.
    fn of(turn: usize, random: &mut fastrand::Rng) -> Self {
        match turn % 5 {
            0 => Self::Controller,
            1 => Self::Link,
            2 => Self::Server(random.usize(0..NAMES.len())),
            3 => Self::Broker,
            _ => Self::Meter,
        }
    }
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller => f.write_str("the controller"),
            Self::Server(which) => write!(f, "the ssh server of {}", NAMES[*which]),
            Self::Broker => f.write_str("the broker"),
            Self::Link => f.write_str("a link"),
            Self::Meter => f.write_str("the meter"),
        }
    }
}

fn whatever_is_killed_nothing_remains_and_a_campaign_goes_on() {
    let times = std::env::var(KILLS).unwrap_or_default();
    // Each kill takes some 20 s in this slow kernel.
    let times = times.parse().unwrap_or(2);
    let seed = 11;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bed = Three::new(CAMPAIGN);
    for turn in 0..times {
        let victim = Victim::of(turn, &mut random);
        let round = Round {
            out: PathBuf::from(path(&format!("out-{turn}"))),
            victim,
            after: Duration::from_millis(random.u64(0..4_000)),
            is_back_at_once: random.bool(),
        };
        round.play(&mut bed);
        std::fs::remove_dir_all(&round.out).unwrap();
    }
}

/// A campaign with one kill.
struct Round {
    out: PathBuf,
    victim: Victim,
    /// Time of the kill, since the campaign began or since the victim's role started.
    after: Duration,
    /// `true` if a server or the meter is started again at once, before the campaign can miss it.
    is_back_at_once: bool,
}

impl Round {
    fn play(&self, bed: &mut Three) {
        let began = Instant::now();
        let mut campaign = Campaign(bed.campaign(&self.out));
        let hit = self.kill(bed, &mut campaign);
        let killed = Instant::now();
        let (status, said) = match self.victim {
            Victim::Controller => (None, String::new()),
            _ => campaign.end(),
        };
        if !self.is_back_at_once {
            self.start_again(bed);
        }
        let bound = if self.victim == Victim::Controller {
            LEASE
        } else {
            AT_ONCE
        };
        self.nothing_remains(bed, bound);
        let clean = killed.elapsed();
        if let Some(status) = status
            && !status.success()
        {
            // Before the first run there is nothing to resume.
            let last = said.lines().last().unwrap();
            let (server, meter) = ("10.1.0.", "its meter dmm:127.0.0.1:5025");
            assert!(last.starts_with("mqbench: "), "{said}");
            assert!(last.contains(server) || last.contains(meter), "{said}");
        } else {
            let back = self.is_back_at_once || self.victim == Victim::Controller;
            let goes_on = matches!(self.victim, Victim::Broker | Victim::Link);
            assert!(back || goes_on || !hit, "{}: {said}", self.victim);
        }
        // No record is half written.
        for journal in files(&self.out.join("meters")) {
            let text = std::fs::read_to_string(&journal).unwrap();
            assert!(
                text.is_empty() || csv::read(journal.as_ref(), None).is_ok(),
                "{text}"
            );
        }
        let (status, said) = Campaign(bed.campaign(&self.out)).end();
        assert!(status.is_some_and(|status| status.success()), "{said}");
        self.nothing_remains(bed, AT_ONCE);
        let attempts = every_cell_once(&self.out);
        println!(
            "{} {} ms after its time had come{}: clean after {:.1} s, {attempts} attempts, \
             {:.1} s in all",
            self.victim,
            self.after.as_millis(),
            if hit { "" } else { " (the campaign had ended)" },
            clean.as_secs_f64(),
            began.elapsed().as_secs_f64()
        );
    }

    /// Starts a server or the meter again if it was killed.
    fn start_again(&self, bed: &mut Three) {
        match self.victim {
            Victim::Server(which) => bed.start_server(which),
            Victim::Meter => bed.start_meter(),
            Victim::Controller | Victim::Broker | Victim::Link => {}
        }
    }

    /// Waits until no trace of the campaign remains; fails after `bound`.
    fn nothing_remains(&self, bed: &Three, bound: Duration) {
        let end = Instant::now() + bound;
        loop {
            let left = bed.left();
            if left.is_empty() {
                return;
            }
            let victim = self.victim;
            assert!(
                Instant::now() < end,
                "{victim}: {bound:?} later there is {left:#?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the victim; returns `true` if the campaign was still running.
    fn kill(&self, bed: &mut Three, campaign: &mut Campaign) -> bool {
        let role = match self.victim {
            Victim::Broker => Some("broker"),
            Victim::Link => Some("apply"),
            _ => None,
        };
        if let Some(word) = role {
            let mut found = Three::roles(word);
            while found.is_empty() && campaign.is_running() {
                std::thread::sleep(Duration::from_millis(5));
                found = Three::roles(word);
            }
        }
        campaign.ended(self.after);
        let hit = campaign.is_running();
        match self.victim {
            Victim::Controller => {
                campaign.0.0.kill().unwrap();
                campaign.0.0.wait().unwrap();
            }
            Victim::Server(which) => bed.servers[which] = None,
            Victim::Meter => bed.meter = None,
            Victim::Broker | Victim::Link => {
                let found = Three::roles(role.unwrap());
                let Some(process) = found.last() else {
                    return false;
                };
                // The victim may just have ended by itself.
                let _ = kill(*process, Signal::SIGKILL);
            }
        }
        if self.is_back_at_once {
            self.start_again(bed);
        }
        hit
    }
}

/// A running controller.
struct Campaign(Running);

impl Campaign {
    fn is_running(&mut self) -> bool {
        self.0.0.try_wait().unwrap().is_none()
    }

    /// Waits for the controller's end, within a time limit.
    fn ended(&mut self, patience: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + patience;
        loop {
            let ended = self.0.0.try_wait().unwrap();
            if ended.is_some() || Instant::now() >= end {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the controller's end, and returns its exit status and messages.
    fn end(&mut self) -> (Option<ExitStatus>, String) {
        let ended = self.ended(CAMPAIGN_ENDS);
        assert!(
            ended.is_some(),
            "the campaign has not ended within {CAMPAIGN_ENDS:?}"
        );
        let mut said = String::new();
        let stderr = self.0.0.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (ended, said)
    }
}

/// Asserts that every cell has one good, measured record; returns the number of attempts.
fn every_cell_once(out: &Path) -> usize {
    let text = std::fs::read_to_string(out.join("records/some.jsonl")).unwrap();
    assert!(text.ends_with('\n'));
    let records: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut cells: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for record in &records {
        let cell = cells.entry(record["levels"].to_string()).or_default();
        cell.push(record);
    }
    assert_eq!(cells.len(), 1, "{text}");
    for attempts in cells.values() {
        for (number, record) in (1_u64..).zip(attempts) {
            assert_eq!(record["attempt"], number, "{text}");
        }
        // This kernel's timers are late, so a run may be tried three times even without a kill, and the kill may
        // hit the last attempt.
        let good = attempts
            .iter()
            .rfind(|record| record["outcome"]["error"].is_null());
        let outcome = &good.unwrap()["outcome"];
        assert_eq!(outcome["counts"]["received"], 25, "{outcome}");
        assert_eq!(
            outcome["energy_meter"],
            format!("dmm:{METER_AT}"),
            "{outcome}"
        );
        let journal = outcome["energy_reading"]["journal"].as_str().unwrap();
        assert!(out.join("meters").join(journal).is_file(), "{outcome}");
        if let Some(watts) = outcome["metrics"]["power_w"].as_f64() {
            assert!((watts - 5.0 * AMPERE).abs() < 0.02, "{outcome}");
        } else {
            let gaps = "energy-gaps";
            let mut warnings = outcome["warnings"].as_array().unwrap().iter();
            assert!(warnings.any(|warning| warning["kind"] == gaps), "{outcome}");
        }
    }
    records.len()
}
