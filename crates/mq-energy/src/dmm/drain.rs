//! Fetching readings while the instrument takes more, over a connection that may be lost.

use std::thread;
use std::time::{Duration, Instant};

use super::Settings;
use super::journal::Journal;
use super::readings::Readings;
use super::setup::Setup;
use crate::scpi::Scpi;
use crate::trace::Trace;
use crate::{Error, Note, Recording, Series, since};
use mq_measure::convert;

/// Greatest number of readings that one question asks for: 32 kB, so that little is under way when a connection is
/// lost.
const AT_ONCE: u64 = 2_000;

/// Bit 14 of the questionable data register: the memory is full, and the oldest readings are lost.
const MEMORY_OVERFLOW: u64 = 1 << 14;

/// Greatest number of reconnection attempts in a row for one exchange with the instrument. The first follows at once,
/// each later one after [`PAUSE`].
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// The readings of one measurement that have been fetched so far.
#[derive(Debug)]
pub(super) struct Drain {
    /// Connection to the instrument; `None` while it is lost.
    link: Option<Scpi>,
    address: String,
    deadline: Duration,
    supply_v: f64,
    journal: Journal,
    readings: Readings,
    timing: Timing,
    reconnected: u32,
    /// Error after which no more readings are fetched; `None` while fetching goes on.
    ended: Option<String>,
    /// The errors in the instrument's queue at the end.
    errors: Vec<String>,
}

/// Times at which the instrument takes its readings.
#[derive(Debug)]
struct Timing {
    triggered: Instant,
    /// The middle of the first reading, in nanoseconds since the run began.
    first_ns: u64,
    uncertainty_ns: u64,
    spacing: Duration,
    timer: bool,
    /// Number of readings after which the instrument stops by itself.
    count: u64,
    /// Time of the command that stopped the instrument; `None` before it is sent.
    stopped: Option<Instant>,
}

impl Drain {
    /// Begins to read an instrument that was triggered by the command sent at `sent`.
    pub(super) fn begin(
        link: Scpi,
        settings: &Settings,
        setup: &Setup,
        mut journal: Journal,
        origin: Instant,
        sent: Instant,
        round_trip: Duration,
    ) -> Result<Self, Error> {
        // The trigger takes half of the round trip.
        let triggered = sent + round_trip / 2;
        let first = triggered + setup.aperture / 2;
        journal.begins(Instant::now().saturating_duration_since(first));
        journal.write()?;
        Ok(Self {
            link: Some(link),
            address: settings.address.clone(),
            deadline: settings.deadline,
            supply_v: settings.supply_v,
            journal,
            readings: Readings::default(),
            timing: Timing {
                triggered,
                first_ns: since(origin, first),
                uncertainty_ns: u64::try_from((round_trip / 2).as_nanos()).unwrap_or(u64::MAX),
                spacing: setup.spacing,
                timer: setup.timer,
                count: setup.count,
                stopped: None,
            },
            reconnected: 0,
            ended: None,
            errors: Vec::new(),
        })
    }

    /// Checks that the instrument accepted the trigger: its error queue is empty. Without a connection nothing is
    /// checked.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let errors = link.errors()?;
        if errors.is_empty() {
            return Ok(());
        }
        Err(Error::Instrument {
            instrument: link.instrument().to_owned(),
            command: "*TRG".to_owned(),
            problem: errors.join("; "),
        })
    }

    /// Fetches all waiting readings; connects again if the connection is lost.
    pub(super) fn poll(&mut self) {
        self.persist(Self::fetch);
    }

    /// Stops the instrument, fetches the rest, and puts all together.
    pub(super) fn finish(mut self) -> Result<Recording, Error> {
        self.persist(|drain| {
            let link = drain.link()?;
            link.send("ABOR")?;
            let stopped = Instant::now();
            // The answer shows that the command has arrived.
            let errors = link.errors()?;
            drain.errors.extend(errors);
            // Only the first time: later the instrument is stopped already.
            drain.timing.stopped.get_or_insert(stopped);
            Ok(())
        });
        self.persist(Self::fetch);
        self.persist(|drain| {
            let errors = drain.link()?.errors()?;
            drain.errors.extend(errors);
            Ok(())
        });
        self.recording()
    }

    /// Does `work`; repeats it over a new connection each time that the connection is lost.
    fn persist(&mut self, work: impl Fn(&mut Self) -> Result<(), Error>) {
        let mut attempts = 0;
        while self.ended.is_none() {
            let problem = match work(self) {
                Ok(()) => return,
                Err(problem @ Error::Lost { .. }) => problem,
                Err(problem) => {
                    self.ended = Some(problem.to_string());
                    return;
                }
            };
            self.link = None;
            if attempts == ATTEMPTS {
                self.ended = Some(problem.to_string());
                return;
            }
            if attempts > 0 {
                thread::sleep(PAUSE);
            }
            attempts += 1;
            if let Ok(link) = Scpi::connect(&self.address, self.deadline) {
                self.reconnected += 1;
                self.link = Some(link);
            }
        }
    }

    fn link(&mut self) -> Result<&mut Scpi, Error> {
        self.link.as_mut().ok_or_else(|| Error::Lost {
            instrument: self.address.clone(),
            problem: "the connection was lost and cannot be made again".to_owned(),
        })
    }

    fn fetch(&mut self) -> Result<(), Error> {
        loop {
            let waiting = self.link()?.query_number("DATA:POIN?")?;
            let due = self.timing.due();
            self.readings.settle(waiting, due);
            let condition = self.link()?.query_number("STAT:QUES:COND?")?;
            if condition & MEMORY_OVERFLOW != 0 {
                self.readings.overflow(waiting, due);
            }
            let count = waiting.min(AT_ONCE);
            if count == 0 {
                return Ok(());
            }
            self.readings.ask(count, waiting, due);
            let (readings, journal) = (&mut self.readings, &mut self.journal);
            let link = self.link.as_mut().ok_or_else(|| Error::Lost {
                instrument: self.address.clone(),
                problem: "the connection was lost".to_owned(),
            })?;
            link.query_block(&format!("R? {count}"), |piece| {
                readings.take(piece, |number, text| {
                    journal.add(number, text);
                    Ok(())
                })?;
                journal.write()
            })?;
            readings.end(|number, text| {
                journal.add(number, text);
                journal.write()
            })?;
            journal.sync()?;
            if count == waiting && self.timing.stopped.is_none() {
                return Ok(());
            }
        }
    }

    fn recording(self) -> Result<Recording, Error> {
        let values = self.readings.values();
        if values.is_empty() {
            let problem = self.ended.or_else(|| self.errors.first().cloned());
            return Err(Error::Instrument {
                instrument: self.address,
                command: "R?".to_owned(),
                problem: problem.unwrap_or_else(|| "no reading was taken".to_owned()),
            });
        }
        let spacing_ns = self.timing.spacing_ns(self.readings.count());
        let mut trace = Trace::new(convert::round(4.0 * spacing_ns));
        for (number, current_a) in values {
            let after_ns = convert::round(convert::float(*number) * spacing_ns);
            trace.push(
                self.timing.first_ns + after_ns,
                current_a * self.supply_v * 1e6,
            );
        }
        let mut notes: Vec<_> = self.readings.notes().collect();
        if self.reconnected > 0 {
            notes.push(Note::Reconnected {
                times: self.reconnected,
            });
        }
        if !self.timing.timer {
            notes.push(Note::NoTimer {
                interval_ns: convert::round(spacing_ns),
            });
        }
        let errors = self.errors.into_iter();
        notes.extend(errors.map(|message| Note::InstrumentError { message }));
        notes.extend(self.ended.map(|reason| Note::EndedEarly { reason }));
        Ok(Recording {
            series: Series::Power(trace),
            uncertainty_ns: self.timing.uncertainty_ns,
            notes,
        })
    }
}

impl Timing {
    /// Returns the number of readings that should have been taken by now, or by the stop; `None` without a timer.
    fn due(&self) -> Option<u64> {
        let end = self.stopped.unwrap_or_else(Instant::now);
        let since = end.saturating_duration_since(self.triggered);
        let taken = convert::round((since.as_secs_f64() / self.spacing.as_secs_f64()).floor()) + 1;
        self.timer.then(|| taken.min(self.count))
    }

    /// Returns the interval between two readings: the timer's, or the mean of `count` readings.
    fn spacing_ns(&self, count: u64) -> f64 {
        let nominal = self.spacing.as_secs_f64() * 1e9;
        match self.stopped {
            Some(stopped) if !self.timer && count > 1 && count < self.count => {
                let taken = stopped.saturating_duration_since(self.triggered);
                taken.as_secs_f64() * 1e9 / convert::float(count)
            }
            _ => nominal,
        }
    }
}
