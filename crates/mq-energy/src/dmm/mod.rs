//! A multimeter that measures the current: Keysight's 34465A and its relatives, over TCP.
//!
//! The instrument takes readings by its own timer into its own memory (34465A: 50 000 readings,
//! 34461A: 10 000). A thread fetches them while the run goes on. `R?` removes the readings that it sends, so
//! each piece of an answer is written to a file, the journal, before it is used. After a lost connection
//! the thread connects again; readings that were under way are reported as lost. The journal can be read as
//! [any other instrument's file](super::csv).
//!
//! ```text
//! start   *RST  CONF:CURR:DC ...  INIT  *TRG            (each checked with SYST:ERR?)
//! polls   DATA:POIN?  R? n  ...   STAT:QUES:COND?       (a thread; n at most 2000)
//! stop    ABOR  DATA:POIN?  R? n  ...  SYST:ERR?
//! ```
//!
//! The instrument measures only a current. The user gives the supply's voltage, which is taken as constant.
//!
//! Commands and limits are from Keysight, *Truevolt Series Operating and Service Guide*.

mod drain;
mod journal;
mod readings;
mod setup;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::sampler::Sampler;
use super::scpi::Scpi;
use super::{Error, Meter, Recording, not_started};
use drain::Drain;
use journal::Journal;
use setup::Model;

/// Number of queries that measure the round trip to the instrument; the shortest counts.
const ROUND_TRIPS: u32 = 5;

/// The multimeter's address and settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Address of the instrument, as `HOST` or `HOST:PORT`.
    pub address: String,
    /// The current, in ampere, that has to fit into the range. The range is fixed.
    pub range_a: f64,
    /// The supply's voltage, in volt.
    pub supply_v: f64,
    /// The interval between two readings.
    pub interval: Duration,
    /// Integration time of a reading, shorter than the interval. A model without an aperture integrates for the longest
    /// of its times that is no longer, and for 0.4 ms at least.
    pub aperture: Duration,
    /// The time after which the instrument stops by itself.
    pub longest: Duration,
    /// The file that keeps the readings; it must not exist yet.
    pub journal: PathBuf,
    /// Timeout of connecting, of sending a command, and of each answer or piece of a block.
    pub deadline: Duration,
    /// The interval at which the instrument's memory is fetched.
    pub poll: Duration,
}

impl Settings {
    /// Makes the usual settings: 1000 readings a second of up to 3 A at 5 V, for up to ten minutes.
    ///
    /// A Raspberry Pi 3 draws up to 1 A, at times more. 3 A is the largest range of the ordinary terminals of
    /// 34461A and 34465A. The memory of a 34465A holds 50 s of such readings.
    #[must_use]
    pub fn new(address: &str, journal: PathBuf) -> Self {
        Self {
            address: address.to_owned(),
            range_a: 3.0,
            supply_v: 5.0,
            interval: Duration::from_millis(1),
            aperture: Duration::from_micros(500),
            longest: Duration::from_mins(10),
            journal,
            deadline: Duration::from_secs(5),
            poll: Duration::from_millis(500),
        }
    }
}

/// The multimeter as a [`Meter`].
#[derive(Debug)]
pub struct Dmm {
    settings: Settings,
    name: String,
    running: Option<Sampler<Drain>>,
}

impl Dmm {
    /// Makes a multimeter with these settings. The start connects to it.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            name: format!("dmm:{}", settings.address),
            settings,
            running: None,
        }
    }

    /// Asks the instrument at an address who it is, and returns the four fields of its `*IDN?`.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn identify(address: &str, deadline: Duration) -> Result<String, Error> {
        Scpi::connect(address, deadline)?.query("*IDN?")
    }

    /// Waits for a time in which the instrument takes at least one reading.
    fn wait_for_reading(&self) {
        thread::sleep(self.settings.interval + self.settings.aperture);
    }
}

impl Meter for Dmm {
    fn name(&self) -> &str {
        &self.name
    }

    fn scope(&self) -> &'static str {
        "the current through the multimeter, at a constant voltage"
    }

    fn journal(&self) -> Option<&Path> {
        Some(&self.settings.journal)
    }

    fn start(&mut self, origin: Instant) -> Result<(), Error> {
        self.running = None;
        let settings = &self.settings;
        let mut link = Scpi::connect(&settings.address, settings.deadline)?;
        let identity = link.query("*IDN?")?;
        let model = Model::of(&identity, link.instrument())?;
        let setup = model.setup(settings)?;
        let journal = Journal::create(settings, &identity, setup.spacing)?;
        for command in &setup.commands {
            link.command(command)?;
        }
        let round_trip = round_trip(&mut link)?;
        link.command("INIT")?;
        let sent = Instant::now();
        link.send("*TRG")?;
        let drain = Drain::begin(link, settings, &setup, journal, origin, sent, round_trip);
        let mut drain = drain?;
        drain.check()?;
        let poll = |drain: &mut Drain| {
            drain.poll();
            Ok(())
        };
        let poll = Sampler::start(&self.name, drain, settings.poll, poll)?;
        self.running = Some(poll);
        self.wait_for_reading();
        Ok(())
    }

    fn stop(&mut self) -> Result<Recording, Error> {
        let running = self.running.take().ok_or_else(|| not_started(&self.name))?;
        self.wait_for_reading();
        running.stop(&self.name)?.0.finish()
    }
}

/// Measures some round trips, and returns the shortest.
fn round_trip(link: &mut Scpi) -> Result<Duration, Error> {
    let mut shortest = Duration::MAX;
    for _ in 0..ROUND_TRIPS {
        let asked = Instant::now();
        link.query_number("DATA:POIN?")?;
        shortest = shortest.min(asked.elapsed());
    }
    Ok(shortest)
}
