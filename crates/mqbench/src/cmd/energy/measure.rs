//! `mqbench energy measure`: the energy of a period, or of a command.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use mq_energy::{
    Basis, Meter, Note, Recording, Series, Window,
    csv::{self, Clock},
    fit::Run,
    model::{self, Counters},
};

use super::super::args::parse_duration;
use crate::{
    clock::nanoseconds,
    {
        meter::{MeterSettings, MeterSpec},
        report::{self, energy::MeasuredEnergy},
    },
};

/// Time after which a multimeter stops by itself even if the command has not ended.
const LONGEST_COMMAND: Duration = Duration::from_hours(1);

/// Options of `energy measure`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    #[arg(
        long,
        value_name = "METER",
        default_value = "model",
        help = "The meter: model[:PROFILE], rapl, hwmon[:NAME], iio[:NAME], dmm:HOST[:PORT], csv:FILE"
    )]
    meter: MeterSpec,
    /// Duration of the measurement, unless there is a command
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration, conflicts_with = "command")]
    time: Option<Duration>,
    /// Messages delivered in this time, to print the energy of each
    #[arg(long, value_name = "COUNT")]
    messages: Option<u64>,
    /// Append the energy, and this machine's activity in that time, to a file for `calibrate`
    #[arg(long, value_name = "FILE")]
    runs: Option<PathBuf>,
    /// A command whose energy is measured, and its arguments
    #[arg(last = true)]
    command: Vec<String>,
    #[command(flatten)]
    instrument: InstrumentArgs,
}

/// Settings of instruments.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Instrument")]
struct InstrumentArgs {
    /// Time between two readings; default: of a sensor 10ms, of a multimeter 1ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    interval: Option<Duration>,
    /// Part of each interval over which a multimeter integrates; default: half of it
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    aperture: Option<Duration>,
    /// The current that has to fit into a multimeter's range
    #[arg(long, value_name = "AMPERE", default_value_t = MeterSettings::AMPS)]
    amps: f64,
    /// The supply's voltage, for a multimeter or a file that has the current alone
    #[arg(long, value_name = "VOLT")]
    volts: Option<f64>,
    /// File for a multimeter's readings; a new file by default
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
}

impl InstrumentArgs {
    fn get(&self) -> MeterSettings {
        MeterSettings {
            interval: self.interval,
            aperture: self.aperture,
            amps: Some(self.amps),
            volts: self.volts,
            journal: self.journal.clone(),
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let work = match (args.time, &args.command[..]) {
        (Some(time), _) => MeasuredWork::Wait(time),
        (None, [program, arguments @ ..]) => MeasuredWork::Command(program, arguments),
        (None, []) => {
            let MeterSpec::Csv(file) = &args.meter else {
                bail!("say for how long (--for 10s), or a command behind --");
            };
            ensure!(args.runs.is_none(), "--runs needs --for or a command");
            return whole_file(file, args).map(|()| ExitCode::SUCCESS);
        }
    };
    let longest = match work {
        MeasuredWork::Wait(time) => time + Duration::from_mins(1),
        MeasuredWork::Command(..) => LONGEST_COMMAND,
    };
    let instrument = args.instrument.get();
    let mut meter = instrument.meter(&args.meter, longest)?;
    ensure!(
        args.runs.is_none() || meter.basis() == Basis::Measured,
        "--runs is for energy that was measured: {} computes it",
        meter.name()
    );
    let origin = Instant::now();
    meter.start(origin)?;
    instrument.print_advice(&args.meter, meter.as_ref());
    let before = counters(args)?;
    let began = origin.elapsed();
    let done = work.run();
    let ended = origin.elapsed();
    let after = counters(args)?;
    // Stop the meter even if the command could not be run, so that the instrument is reset.
    let recording = meter.stop();
    let status = done?;
    let recording = recording?;
    let window = Window::new(nanoseconds(began), nanoseconds(ended));
    let energy = recording.energy(window);
    if let (Some(file), Some((before, after))) = (&args.runs, before.zip(after)) {
        ensure!(
            energy.gaps.is_empty(),
            "not added to {}: {} ms of {} ms were not measured",
            file.display(),
            (energy.window_ns - energy.covered_ns) / 1_000_000,
            energy.window_ns / 1_000_000
        );
        let run = Run {
            energy_uj: energy.energy_uj,
            activity: after.since(&before, window.duration_ns()),
        };
        run.append(file)?;
    }
    show(meter.as_ref(), &recording, window, args.messages)?;
    Ok(status.map_or(ExitCode::SUCCESS, code))
}

/// The work whose energy is measured.
enum MeasuredWork<'a> {
    Wait(Duration),
    Command(&'a str, &'a [String]),
}

impl MeasuredWork<'_> {
    fn run(&self) -> anyhow::Result<Option<ExitStatus>> {
        match self {
            Self::Wait(time) => {
                std::thread::sleep(*time);
                Ok(None)
            }
            Self::Command(program, arguments) => {
                let status = Command::new(program).args(*arguments).status();
                let status = status.with_context(|| format!("cannot run {program}"))?;
                Ok(Some(status))
            }
        }
    }
}

/// Reads this machine's counters, if `--runs` needs them.
fn counters(args: &Args) -> anyhow::Result<Option<Counters>> {
    let wanted = args.runs.is_some();
    Ok(wanted
        .then(|| Counters::read(model::ROOT.as_ref()))
        .transpose()?)
}

/// Prints the energy of a whole file, by the file's own clock.
fn whole_file(file: &Path, args: &Args) -> anyhow::Result<()> {
    let log = csv::read(file, args.instrument.get().volts)?;
    let Some(window) = log.trace.span() else {
        bail!("{}: fewer than two readings have no energy", file.display());
    };
    let mut notes = Vec::new();
    notes.extend(log.truncated.then_some(Note::Truncated));
    let origin = match log.clock {
        Clock::Own => "its own clock",
        Clock::Unix => "the time since 1970",
    };
    let recording = Recording {
        series: Series::Power(log.trace),
        uncertainty_ns: 0,
        notes,
    };
    let measured = MeasuredEnergy {
        meter: &format!("csv:{}", file.display()),
        basis: Basis::Measured,
        scope: &format!("all of the file, by {origin}"),
        energy: &recording.energy(window),
        begins_ns: window.from_ns,
        uncertainty_ns: None,
        notes: &recording.notes,
        messages: args.messages,
    };
    report::print(&report::energy::measured(&measured))
}

fn show(
    meter: &dyn Meter,
    recording: &Recording,
    window: Window,
    messages: Option<u64>,
) -> anyhow::Result<()> {
    let measured = MeasuredEnergy {
        meter: meter.name(),
        basis: meter.basis(),
        scope: meter.scope(),
        energy: &recording.energy(window),
        begins_ns: window.from_ns,
        uncertainty_ns: Some(recording.uncertainty_ns),
        notes: &recording.notes,
        messages,
    };
    report::print(&report::energy::measured(&measured))
}

/// Returns the command's own exit code.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}
