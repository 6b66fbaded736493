//! The commands for each model of multimeter.

use std::time::Duration;

use super::Settings;
use crate::Error;
use mq_measure::convert;

/// Integration times of the models without an aperture, in cycles of the mains.
const NPLC: [f64; 5] = [0.02, 0.2, 1.0, 10.0, 100.0];

/// A cycle of the mains at 50 Hz; at 60 Hz the models without an aperture integrate a sixth less.
const CYCLE: Duration = Duration::from_millis(20);

/// Greatest number of readings that `SAMP:COUN` takes.
const MOST_READINGS: u64 = 1_000_000;

/// Properties in which the models differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    instrument: String,
    /// Number of readings that the memory holds, without the memory option.
    memory: u32,
    /// `true` for the models with a sample timer and an aperture: 34465A and 34470A.
    timer: bool,
}

/// All that a measurement needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setup {
    pub(super) commands: Vec<String>,
    /// Number of readings after which the instrument stops by itself.
    pub(super) count: u64,
    /// The interval between two readings: exact with a timer, else approximate.
    pub(super) spacing: Duration,
    /// Integration time of one reading: that of the settings, or without an aperture the longest of [`NPLC`] that is no
    /// longer (at least 0.4 ms).
    pub(super) aperture: Duration,
    pub(super) timer: bool,
}

impl Model {
    /// Finds the model that answers so to `*IDN?`.
    pub(super) fn of(identity: &str, instrument: &str) -> Result<Self, Error> {
        let name = identity.split(',').nth(1).unwrap_or_default().trim();
        let (memory, timer) = match name {
            "34460A" => (1_000, false),
            "34461A" => (10_000, false),
            "34465A" | "34470A" => (50_000, true),
            _ => {
                return Err(Error::Instrument {
                    instrument: instrument.to_owned(),
                    command: "*IDN?".to_owned(),
                    problem: format!(
                        "`{identity}` is no multimeter that is known here: there are Keysight \
                         34460A, 34461A, 34465A and 34470A"
                    ),
                });
            }
        };
        Ok(Self {
            instrument: instrument.to_owned(),
            memory,
            timer,
        })
    }

    /// Makes the instrument's commands for these settings, in order.
    pub(super) fn setup(&self, settings: &Settings) -> Result<Setup, Error> {
        let wrong = |problem: String| Error::NoMeter {
            meter: format!("dmm:{}", self.instrument),
            problem,
        };
        let Settings {
            range_a,
            interval,
            aperture,
            longest,
            ..
        } = settings;
        if interval.is_zero() || aperture.is_zero() || aperture >= interval {
            return Err(wrong(format!(
                "an aperture of {aperture:?} is not within the interval of {interval:?}"
            )));
        }
        let mut commands = vec!["*RST;*CLS".to_owned(), format!("CONF:CURR:DC {range_a}")];
        let (spacing, aperture) = if self.timer {
            commands.extend([
                format!("CURR:DC:APER {}", seconds(*aperture)),
                "SAMP:SOUR TIM".to_owned(),
                format!("SAMP:TIM {}", seconds(*interval)),
            ]);
            (*interval, *aperture)
        } else {
            let cycles = NPLC
                .into_iter()
                .filter(|cycles| CYCLE.mul_f64(*cycles) <= *aperture)
                .fold(NPLC[0], f64::max);
            commands.push(format!("CURR:DC:NPLC {cycles}"));
            let aperture = CYCLE.mul_f64(cycles);
            (aperture.max(*interval), aperture)
        };
        let full = spacing * self.memory;
        if settings.poll * 2 > full {
            return Err(wrong(format!(
                "its memory of {} readings is full after {full:?}: look into it more often than \
                 every {:?}",
                self.memory, settings.poll
            )));
        }
        // Otherwise the instrument takes a second reading, of zero, after each.
        commands.push("CURR:DC:ZERO:AUTO OFF".to_owned());
        let delay = if self.timer {
            Duration::ZERO
        } else {
            // The delay is that between readings.
            spacing.saturating_sub(aperture)
        };
        let count = convert::round((longest.as_secs_f64() / spacing.as_secs_f64()).ceil()) + 1;
        let count = count.min(MOST_READINGS);
        commands.extend([
            format!("TRIG:DEL {}", seconds(delay)),
            "TRIG:SOUR BUS".to_owned(),
            format!("SAMP:COUN {count}"),
        ]);
        Ok(Setup {
            commands,
            count,
            spacing,
            aperture,
            timer: self.timer,
        })
    }
}

/// Formats a time in seconds, as SCPI has it.
fn seconds(time: Duration) -> String {
    format!("{:E}", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(identity: &str, change: impl FnOnce(&mut Settings)) -> Result<Setup, Error> {
        let mut settings = Settings::new("dmm", "journal.csv".into());
        change(&mut settings);
        Model::of(identity, "dmm:5025")?.setup(&settings)
    }

    #[test]
    fn a_34465a_reads_by_its_timer() {
        let identity = "Keysight Technologies,34465A,MY54500001,A.02.14-02.40-02.14-00.49-03-01";
        let setup = setup(identity, |settings| {
            settings.longest = Duration::from_secs(10);
        })
        .unwrap();
        assert_eq!(
            setup.commands,
            [
                "*RST;*CLS",
                "CONF:CURR:DC 3",
                "CURR:DC:APER 5E-4",
                "SAMP:SOUR TIM",
                "SAMP:TIM 1E-3",
                "CURR:DC:ZERO:AUTO OFF",
                "TRIG:DEL 0E0",
                "TRIG:SOUR BUS",
                "SAMP:COUN 10001",
            ]
        );
        assert_eq!(setup.count, 10_001);
    }

    #[test]
    fn a_34461a_has_neither_timer_nor_aperture() {
        let identity = "Keysight Technologies,34461A,MY53200001,A.02.08";
        let setup = setup(identity, |settings| {
            settings.interval = Duration::from_millis(10);
            settings.aperture = Duration::from_millis(5);
        })
        .unwrap();
        // 0.2 cycles are 4 ms: the longest within 5 ms.
        assert!(setup.commands.contains(&"CURR:DC:NPLC 0.2".to_owned()));
        assert!(setup.commands.contains(&"TRIG:DEL 6E-3".to_owned()));
        assert!(!setup.commands.iter().any(|one| one.contains("TIM")));
        assert!(!setup.timer);
    }

    #[test]
    fn others_and_impossible_times_are_one_line() {
        let keysight = "Keysight Technologies,34465A,1,2";
        let found = [
            setup("FLUKE,8846A,1,2", |_| ()),
            setup("", |_| ()),
            setup(keysight, |settings| settings.aperture = settings.interval),
            setup(keysight, |settings| settings.interval = Duration::ZERO),
            setup(keysight, |settings| settings.poll = Duration::from_secs(30)),
        ];
        for error in found.map(Result::unwrap_err) {
            let text = error.to_string();
            assert!(
                text.starts_with("dmm:5025: *IDN?") || text.starts_with("meter dmm:"),
                "{text}"
            );
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }
}
