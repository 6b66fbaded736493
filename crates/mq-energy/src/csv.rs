//! A file that any other instrument, or logger, wrote: columns of time and power.
//!
//! ```csv
//! # comments
//! unix_s,current_ma,voltage_v
//! 1714560000.000,281.4,5.08
//! 1714560000.010,283.0,5.08
//! ```
//!
//! | column | what it is |
//! |---|---|
//! | `unix_s` `_ms` `_us` `_ns` | the time since 1970, UTC: a run can be cut out by it |
//! | `t_s` `_ms` `_us` `_ns` | the time on the instrument's own clock |
//! | `power_w` `_mw` `_uw` | the power; or instead the next two |
//! | `current_a` `_ma` `_ua` | the current |
//! | `voltage_v` `_mv` `_uv` | the voltage; may be missing if an option gives it |
//!
//! A comma, a semicolon or a tab parts columns. Columns with other names are ignored, and so are rows with an
//! empty cell. Missing readings are a gap.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::trace::{Point, Trace};
use super::{Error, Meter, Note, Recording, Series, not_started};

/// Epoch of the times in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The epoch is 1970, UTC.
    Unix,
    /// The epoch is an arbitrary zero: the instrument's own clock.
    Own,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// Epoch of the times.
    pub clock: Clock,
    /// Power over time, with a gap where a step is more than four times the median step.
    pub trace: Trace,
    /// `true` if the last line has no line end, because its writer was cut off; the line is left out.
    pub truncated: bool,
}

/// Reads a file; `supply_v` is the voltage, in volt, if the file has no column for it.
///
/// # Errors
/// [`Error::File`], for example if a column is missing.
pub fn read(path: &Path, supply_v: Option<f64>) -> Result<Log, Error> {
    let text = fs::read_to_string(path).map_err(Error::io(path))?;
    parse(&text, path, supply_v)
}

fn parse(text: &str, path: &Path, supply_v: Option<f64>) -> Result<Log, Error> {
    let truncated = !text.is_empty() && !text.ends_with('\n');
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().zip(1_u64..);
    let mut lines = lines.filter(|(line, _)| !line.starts_with('#') && !line.trim().is_empty());
    let (head, _) = lines.next().ok_or_else(|| unfit(path, "no column names"))?;
    let columns = Columns::of(head, path, supply_v)?;
    let mut points: Vec<Point> = Vec::new();
    for (line, number) in lines {
        let wrong = |problem: String| Error::line(path, number, problem);
        let Some(point) = columns.point(line).map_err(wrong)? else {
            continue;
        };
        if points.last().is_some_and(|last| last.t_ns >= point.t_ns) {
            let problem = "its time is not after that of the line before; sort the file by time";
            return Err(wrong(problem.to_owned()));
        }
        points.push(point);
    }
    Ok(Log {
        clock: columns.clock,
        trace: Trace::with_usual_step(points)?,
        truncated,
    })
}

fn unfit(path: &Path, found: &str) -> Error {
    let expected = "columns such as `unix_s,power_w` or `t_ms,current_ma,voltage_v`";
    Error::format(path, expected, found)
}

/// Columns of a file and their units, as the first line names them.
#[derive(Debug)]
struct Columns {
    separator: char,
    clock: Clock,
    /// Index of the column of times, and by how many digits its unit is larger than a nanosecond.
    time: (usize, u32),
    power: Power,
}

/// Index of a column, and the column's unit in watt, ampere or volt.
type Column = (usize, f64);

#[derive(Debug)]
enum Power {
    Direct(Column),
    Product(Column, Voltage),
}

#[derive(Debug)]
enum Voltage {
    Column(Column),
    Constant(f64),
}

impl Columns {
    fn of(head: &str, path: &Path, supply_v: Option<f64>) -> Result<Self, Error> {
        let separators = [',', ';', '\t'].into_iter();
        let separator = separators
            .max_by_key(|separator| head.matches(*separator).count())
            .unwrap_or(',');
        let names: Vec<_> = head
            .split(separator)
            .map(|name| name.trim().trim_matches('"').to_ascii_lowercase())
            .collect();
        let find = |wanted: &str| names.iter().position(|name| name == wanted);
        let time = |quantity: &str| {
            let mut units = [("s", 9), ("ms", 6), ("us", 3), ("ns", 0)].into_iter();
            units.find_map(|(unit, digits)| Some((find(&format!("{quantity}_{unit}"))?, digits)))
        };
        let value = |quantity: &str, unit: &str| {
            let mut sizes = [("", 1.0), ("m", 1e-3), ("u", 1e-6)].into_iter();
            sizes
                .find_map(|(size, scale)| Some((find(&format!("{quantity}_{size}{unit}"))?, scale)))
        };
        let unix = time("unix").map(|column| (Clock::Unix, column));
        let (clock, time) = unix
            .or_else(|| time("t").map(|column| (Clock::Own, column)))
            .ok_or_else(|| unfit(path, &format!("no time in `{head}`")))?;
        let power = match (value("power", "w"), value("current", "a")) {
            (Some(power), _) => Power::Direct(power),
            (None, Some(current)) => {
                let column = value("voltage", "v").map(Voltage::Column);
                let voltage = column.or(supply_v.map(Voltage::Constant));
                let voltage = voltage
                    .ok_or_else(|| unfit(path, "a current and no voltage, and none was told"))?;
                Power::Product(current, voltage)
            }
            (None, None) => {
                return Err(unfit(
                    path,
                    &format!("neither power nor current in `{head}`"),
                ));
            }
        };
        Ok(Self {
            separator,
            clock,
            time,
            power,
        })
    }

    /// Reads the values of a line; `None` if a cell is empty.
    fn point(&self, line: &str) -> Result<Option<Point>, String> {
        let cells: Vec<_> = line
            .split(self.separator)
            .map(|cell| cell.trim().trim_matches('"'))
            .collect();
        let cell = |column: usize| {
            let cell = cells.get(column);
            cell.copied()
                .ok_or_else(|| format!("it has {} columns only", cells.len()))
        };
        let value = |(column, scale): Column| -> Result<Option<f64>, String> {
            let cell = cell(column)?;
            if cell.is_empty() {
                return Ok(None);
            }
            let value = cell.parse::<f64>().ok().filter(|value| value.is_finite());
            let value = value.ok_or_else(|| format!("`{cell}` is no number"))?;
            Ok(Some(value * scale))
        };
        let (column, digits) = self.time;
        let time = cell(column)?;
        let power_w = match &self.power {
            Power::Direct(power) => value(*power)?,
            Power::Product(current, Voltage::Constant(volts)) => {
                value(*current)?.map(|current| current * volts)
            }
            Power::Product(current, Voltage::Column(voltage)) => value(*current)?
                .zip(value(*voltage)?)
                .map(|(current, voltage)| current * voltage),
        };
        if time.is_empty() {
            return Ok(None);
        }
        let t_ns = nanoseconds(time, digits)
            .ok_or_else(|| format!("`{time}` is no time: a number that is not negative"))?;
        Ok(power_w.map(|power_w| Point {
            t_ns,
            power_uw: power_w * 1e6,
        }))
    }
}

/// Nanoseconds from a decimal number whose unit is `digits` digits larger, exactly: a float steps by 300 ns
/// in times since 1970.
fn nanoseconds(text: &str, digits: u32) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if plain(whole) && plain(fraction) && !(whole.is_empty() && fraction.is_empty()) {
        let places = usize::try_from(digits).ok()?;
        return format!("0{whole}{fraction:0<places$.places$}").parse().ok();
    }
    // With an exponent: a short time on the instrument's own clock.
    let number: f64 = text.parse().ok()?;
    let ns = number * 10_f64.powi(i32::try_from(digits).ok()?);
    (ns >= 0.0 && ns.is_finite()).then(|| mq_measure::convert::round(ns))
}

/// A file of an instrument as a [`Meter`]. The file is read when the meter is stopped; the instrument must have written
/// it by then.
///
/// The file's times have to be since 1970, by a clock that agrees with this machine's. How well the two clocks
/// agree is not known, and is not part of the recording's uncertainty.
#[derive(Debug)]
pub struct CsvMeter {
    path: PathBuf,
    supply_v: Option<f64>,
    name: String,
    /// The run's origin, in nanoseconds since 1970.
    origin_ns: Option<i64>,
}

impl CsvMeter {
    /// Makes a meter for `file`; `supply_v` as for [`read`].
    #[must_use]
    pub fn new(path: &Path, supply_v: Option<f64>) -> Self {
        Self {
            path: path.to_owned(),
            supply_v,
            name: format!("csv:{}", path.display()),
            origin_ns: None,
        }
    }
}

impl Meter for CsvMeter {
    fn name(&self) -> &str {
        &self.name
    }

    fn scope(&self) -> &'static str {
        "what the instrument that wrote the file was connected to"
    }

    fn start(&mut self, origin: Instant) -> Result<(), Error> {
        let now = SystemTime::now();
        let began = now.checked_sub(origin.elapsed()).unwrap_or(now);
        let began = began.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.origin_ns = Some(i64::try_from(began.as_nanos()).unwrap_or(i64::MAX));
        Ok(())
    }

    fn stop(&mut self) -> Result<Recording, Error> {
        let origin_ns = self
            .origin_ns
            .take()
            .ok_or_else(|| not_started(&self.name))?;
        let log = read(&self.path, self.supply_v)?;
        if log.clock == Clock::Own {
            return Err(Error::format(
                &self.path,
                "times since 1970 (`unix_s`), to put them beside a run",
                "times of the instrument's own clock",
            ));
        }
        Ok(Recording {
            series: Series::Power(log.trace.shifted(-origin_ns)),
            uncertainty_ns: 0,
            notes: log
                .truncated
                .then_some(Note::Truncated)
                .into_iter()
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::time::Duration;

    use super::super::Window;
    use super::*;

    fn log(text: &str) -> Result<Log, Error> {
        parse(text, Path::new("p.csv"), None)
    }

    fn energy_uj(log: &Log) -> f64 {
        log.trace.energy(log.trace.span().unwrap()).energy_uj
    }

    fn near(found: f64, right: f64) {
        assert!(
            (found - right).abs() < 1e-6 * right,
            "{found} is not {right}"
        );
    }

    #[test]
    fn the_documented_file_reads() {
        let text = include_str!("csv.rs");
        let example = text.split("//! ```csv\n").nth(1).unwrap();
        let example = example.split("//! ```").next().unwrap();
        let log = log(&example.replace("//! ", "")).unwrap();
        assert_eq!((log.clock, log.truncated), (Clock::Unix, false));
        // 10 ms of about 1.43 W.
        near(
            energy_uj(&log),
            f64::midpoint(281.4, 283.0) * 5.08 * 1e3 * 0.01,
        );
        assert_eq!(log.trace.points()[0].t_ns, 1_714_560_000_000_000_000);
    }

    #[test]
    fn units_and_separators_do_not_matter() {
        let texts = [
            "t_s,power_w\n0,2\n0.5,2\n",
            "t_ms;power_mw\n0;2000\n500;2e3\n",
            "\"Index\"\t\"T_us\"\t\"Current_uA\"\t\"Voltage_mV\"\n1\t0\t400000\t5000\n2\t500000\t4e5\t5000\n",
            "# a comment\nt_ns,note,current_a,voltage_v\n\n0,x,0.4,5\n500000000,,0.4,5.0\r\n",
        ];
        for text in texts {
            let log = log(text).unwrap();
            assert_eq!(log.clock, Clock::Own);
            near(energy_uj(&log), 1e6);
        }
    }

    #[test]
    fn a_voltage_may_be_given() {
        let text = "t_s,current_a\n0,0.4\n1,0.4\n";
        let told = parse(text, Path::new("p.csv"), Some(5.0)).unwrap();
        near(energy_uj(&told), 2e6);
        let error = log(text).unwrap_err().to_string();
        assert!(
            error.ends_with("found a current and no voltage, and none was told"),
            "{error}"
        );
    }

    #[test]
    fn missing_rows_and_empty_cells_are_gaps() {
        let mut text = String::from("t_ms,power_w\n");
        for i in 0..100 {
            match i {
                20..30 => {}
                50..60 => writeln!(text, "{},", i * 10).unwrap(),
                _ => writeln!(text, "{},1", i * 10).unwrap(),
            }
        }
        let log = log(&text).unwrap();
        let energy = log.trace.energy(log.trace.span().unwrap());
        assert_eq!(
            energy.gaps,
            [
                Window::new(190_000_000, 300_000_000),
                Window::new(490_000_000, 600_000_000),
            ]
        );
    }

    #[test]
    fn a_last_line_that_was_cut_off_is_left_out_and_reported() {
        let log = log("t_s,power_w\n0,1\n1,1\n2,1").unwrap();
        assert!(log.truncated);
        assert_eq!(log.trace.points().len(), 2);
    }

    #[test]
    fn mistakes_name_the_file_and_the_line() {
        for (text, says) in [
            ("", "p.csv: expected columns such as"),
            ("power_w\n1\n", "found no time in `power_w`"),
            ("t_s,humidity\n1,1\n", "found neither power nor current in"),
            ("t_s,power_w\n0,1\n1,x\n", "p.csv:3: `x` is no number"),
            ("t_s,power_w\n0,1\n-1,1\n", "p.csv:3: `-1` is no time"),
            ("t_s,power_w\n0,1\n1\n", "p.csv:3: it has 1 columns only"),
            ("t_s,power_w\n1,1\n1,1\n", "p.csv:3: its time is not after"),
            ("t_s,power_w\n0,inf\n", "p.csv:2: `inf` is no number"),
        ] {
            let error = log(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn times_since_1970_are_exact() {
        assert_eq!(
            nanoseconds("1714560000.123456789", 9),
            Some(1_714_560_000_123_456_789)
        );
        assert_eq!(
            nanoseconds("1714560000123456789", 0),
            Some(1_714_560_000_123_456_789)
        );
        assert_eq!(nanoseconds(".5", 3), Some(500));
        assert_eq!(nanoseconds("1.5e-3", 9), Some(1_500_000));
        assert_eq!(nanoseconds("12.9", 0), Some(12), "below a nanosecond");
        for wrong in ["", ".", "-1", "x", "NaN", "99999999999999999999"] {
            assert_eq!(nanoseconds(wrong, 9), None, "{wrong}");
        }
    }

    #[test]
    fn a_file_since_1970_is_put_beside_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.csv");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut text = String::from("unix_ns,power_w\n");
        // Two seconds before now to two after.
        for i in 0..=400 {
            let at =
                now.checked_sub(Duration::from_secs(2)).unwrap() + Duration::from_millis(10) * i;
            writeln!(text, "{},3", at.as_nanos()).unwrap();
        }
        fs::write(&path, text).unwrap();
        let mut meter = CsvMeter::new(&path, None);
        meter.start(Instant::now()).unwrap();
        let recording = meter.stop().unwrap();
        let second = Window::new(0, 1_000_000_000);
        let energy = recording.energy(second);
        assert!(energy.gaps.is_empty(), "{energy:?}");
        near(energy.energy_uj, 3e6);
        assert!(meter.stop().is_err(), "it was not started again");
    }

    #[test]
    fn a_run_cannot_be_cut_out_by_an_instruments_own_clock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.csv");
        fs::write(&path, "t_s,power_w\n0,1\n1,1\n").unwrap();
        let mut meter = CsvMeter::new(&path, None);
        meter.start(Instant::now()).unwrap();
        let error = meter.stop().unwrap_err().to_string();
        assert!(
            error.contains("found times of the instrument's own clock"),
            "{error}"
        );
    }
}
