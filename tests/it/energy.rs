//! Meters against simulated instruments and sensors.

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use mq_energy::{
    Energy, Error, Meter, Note, Recording, Series, Window, csv,
    dmm::{Dmm, Settings},
    rapl::{RaplMeter, Zone},
    sysfs::{Class, Sensor, SensorMeter},
    trace::Trace,
};
use mq_testkit::{FakeSys, Multimeter, MultimeterModel};

/// The current of a Raspberry Pi.
const AMPERE: f64 = 0.28;

/// The power of that current at 5 V.
const POWER_UW: f64 = 1.4e6;

/// Makes the settings of a meter of this instrument that keeps its journal in that folder.
fn settings(instrument: &Multimeter, folder: &Path) -> Settings {
    Settings {
        poll: Duration::from_millis(50),
        longest: Duration::from_mins(1),
        deadline: Duration::from_secs(10),
        ..Settings::new(&instrument.address(), folder.join("journal.csv"))
    }
}

/// Runs the meter for this time, and returns its findings with its start and end.
fn measure(meter: &mut dyn Meter, time: Duration) -> (Recording, Window) {
    let origin = Instant::now();
    meter.start(origin).unwrap();
    let began = origin.elapsed();
    sleep(time);
    let ended = origin.elapsed();
    let recording = meter.stop().unwrap();
    (
        recording,
        Window::new(nanoseconds(began), nanoseconds(ended)),
    )
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

fn trace(recording: &Recording) -> &Trace {
    match &recording.series {
        Series::Power(trace) => trace,
        Series::Energy(_) => panic!("no trace"),
    }
}

fn assert_power(energy: &Energy, right_uw: f64) {
    let power = energy.mean_power_uw().unwrap();
    assert!((power - right_uw).abs() < 1e-6 * right_uw, "{power} µW");
}

/// Asserts that the journal has as many readings as the trace, at the same distances.
fn assert_journal_is(settings: &Settings, trace: &Trace) {
    let journal = csv::read(&settings.journal, None).unwrap();
    assert!(!journal.truncated);
    let steps = |trace: &Trace| {
        let pairs = trace.points().windows(2);
        pairs
            .map(|pair| (pair[1].t_ns - pair[0].t_ns, pair[0].power_uw.to_bits()))
            .collect::<Vec<_>>()
    };
    assert_eq!(steps(&journal.trace), steps(trace));
}

/// Returns the gaps that are not of a machine with much else to do, which may send the trigger late, so that the last
/// reading is a little before the end.
fn long_gaps(energy: &Energy) -> Vec<Window> {
    let gaps = energy.gaps.iter().copied();
    gaps.filter(|gap| gap.duration_ns() > 30_000_000).collect()
}

fn lost(recording: &Recording) -> u64 {
    let lost = recording.notes.iter().find_map(|note| match note {
        Note::LostReadings { count } => Some(*count),
        _ => None,
    });
    lost.unwrap_or(0)
}

#[test]
fn a_constant_current_is_its_power_times_the_time() {
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34465A, |_| AMPERE);
    let settings = settings(&instrument, folder.path());
    let mut meter = Dmm::new(settings.clone());
    let (recording, window) = measure(&mut meter, Duration::from_millis(300));
    assert_eq!(recording.notes, []);
    let energy = recording.energy(window);
    assert_eq!(long_gaps(&energy), [], "{:?}", recording.span());
    assert_power(&energy, POWER_UW);
    let trace = trace(&recording);
    assert_eq!(
        trace.points().len(),
        usize::try_from(instrument.taken()).unwrap()
    );
    assert_journal_is(&settings, trace);
    let heard = instrument.heard();
    for command in ["CURR:DC:APER 5E-4", "SAMP:TIM 1E-3", "INIT", "*TRG", "ABOR"] {
        assert!(
            heard.iter().any(|one| one == command),
            "{command}: {heard:?}"
        );
    }
}

#[test]
fn its_times_are_those_of_the_runs_clock() {
    // A current that grows by 1 A/s from the trigger on: when a reading was taken is in its value.
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34465A, |after_s| after_s);
    let settings = settings(&instrument, folder.path());
    let mut meter = Dmm::new(settings.clone());
    let origin = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
    meter.start(origin).unwrap();
    sleep(Duration::from_millis(100));
    let recording = meter.stop().unwrap();
    let triggered = instrument.triggered().unwrap().duration_since(origin);
    for point in trace(&recording).points() {
        let after_s = point.power_uw / 5e6;
        let taken = triggered + settings.aperture / 2 + Duration::from_secs_f64(after_s);
        // A machine that has much else to do sends the trigger late.
        assert!(
            nanoseconds(taken).abs_diff(point.t_ns) < 100_000_000,
            "{after_s}"
        );
    }
}

#[test]
fn a_34461a_without_a_timer_is_measured_too() {
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34461A, |_| AMPERE);
    let settings = Settings {
        interval: Duration::from_millis(5),
        aperture: Duration::from_millis(4),
        ..settings(&instrument, folder.path())
    };
    let mut meter = Dmm::new(settings);
    let (recording, window) = measure(&mut meter, Duration::from_millis(300));
    let [Note::NoTimer { interval_ns }] = recording.notes[..] else {
        panic!("{:?}", recording.notes);
    };
    assert!(
        (4_500_000..6_500_000).contains(&interval_ns),
        "{interval_ns}"
    );
    let energy = recording.energy(window);
    assert_power(&energy, POWER_UW);
    assert_eq!(long_gaps(&energy), []);
}

#[test]
fn an_answer_that_breaks_off_is_kept_as_far_as_it_came_and_the_rest_is_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34465A, |_| AMPERE);
    // Ten readings and a half, of those that the first look finds.
    instrument.break_off(10 * 16 + 8);
    let settings = Settings {
        poll: Duration::from_millis(150),
        ..settings(&instrument, folder.path())
    };
    let mut meter = Dmm::new(settings.clone());
    let (recording, window) = measure(&mut meter, Duration::from_millis(400));
    assert!(
        recording.notes.contains(&Note::Reconnected { times: 1 }),
        "{:?}",
        recording.notes
    );
    let lost = lost(&recording);
    assert!(lost >= 100, "{lost}");
    let trace = trace(&recording);
    let kept = u64::try_from(trace.points().len()).unwrap();
    assert_eq!(kept + lost, instrument.taken());
    assert_journal_is(&settings, trace);
    let energy = recording.energy(window);
    let [gap] = long_gaps(&energy)[..] else {
        panic!("{:?}", energy.gaps);
    };
    assert!(gap.duration_ns() >= 90_000_000, "{gap:?}");
    assert_power(&energy, POWER_UW);
}

#[test]
fn a_question_that_is_lost_loses_no_reading() {
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34465A, |_| AMPERE);
    instrument.lose("R?");
    instrument.lose("R?");
    let settings = Settings {
        poll: Duration::from_millis(150),
        ..settings(&instrument, folder.path())
    };
    let mut meter = Dmm::new(settings.clone());
    let (recording, window) = measure(&mut meter, Duration::from_millis(300));
    assert_eq!(recording.notes, [Note::Reconnected { times: 2 }]);
    assert_eq!(long_gaps(&recording.energy(window)), []);
    assert_journal_is(&settings, trace(&recording));
}

#[test]
fn an_answer_that_is_lost_as_a_whole_is_known_to_be_lost() {
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34465A, |_| AMPERE);
    instrument.break_off(0);
    let settings = Settings {
        poll: Duration::from_millis(300),
        ..settings(&instrument, folder.path())
    };
    let mut meter = Dmm::new(settings);
    let (recording, _) = measure(&mut meter, Duration::from_millis(400));
    let lost = lost(&recording);
    assert!(lost >= 200, "{:?}", recording.notes);
    let kept = u64::try_from(trace(&recording).points().len()).unwrap();
    assert_eq!(kept + lost, instrument.taken());
}

#[test]
fn a_full_memory_is_reported_and_its_readings_are_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34465A, |_| AMPERE);
    instrument.set_memory(100);
    let settings = Settings {
        poll: Duration::from_millis(400),
        ..settings(&instrument, folder.path())
    };
    let mut meter = Dmm::new(settings);
    let (recording, window) = measure(&mut meter, Duration::from_millis(600));
    assert!(
        recording.notes.contains(&Note::MemoryOverflow),
        "{:?}",
        recording.notes
    );
    assert!(lost(&recording) >= 200, "{:?}", recording.notes);
    let energy = recording.energy(window);
    assert!(
        !energy.gaps.is_empty() && energy.covered_ns >= 90_000_000,
        "{energy:?}"
    );
    assert_power(&energy, POWER_UW);
}

#[test]
fn readings_beyond_the_range_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let load = |after_s: f64| {
        if (0.05..0.1).contains(&after_s) {
            9.9e37
        } else {
            AMPERE
        }
    };
    let instrument = Multimeter::start(MultimeterModel::K34465A, load);
    let mut meter = Dmm::new(settings(&instrument, folder.path()));
    let (recording, window) = measure(&mut meter, Duration::from_millis(200));
    assert!(
        matches!(recording.notes[..], [Note::Overload { count: 49..=51 }]),
        "{recording:?}"
    );
    let energy = recording.energy(window);
    assert_eq!(long_gaps(&energy).len(), 1, "{:?}", energy.gaps);
    assert_power(&energy, POWER_UW);
}

#[test]
fn readings_from_before_the_end_of_a_program_are_in_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34465A, |_| AMPERE);
    let settings = settings(&instrument, folder.path());
    let mut meter = Dmm::new(settings.clone());
    meter.start(Instant::now()).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let journal = loop {
        assert!(Instant::now() < until, "nothing is in the journal");
        sleep(Duration::from_millis(20));
        // Perhaps in the middle of a line.
        match csv::read(&settings.journal, None) {
            Ok(log) if log.trace.points().len() >= 100 => break log,
            _ => {}
        }
    };
    // It is never stopped.
    drop(meter);
    let span = journal.trace.span().unwrap();
    assert_power(&journal.trace.energy(span), POWER_UW);
}

#[test]
fn a_refusal_of_the_instrument_is_one_line_with_its_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34465A, |_| AMPERE);
    instrument.refuse("SAMP:TIM", "-222,\"Data out of range\"");
    let error = Dmm::new(settings(&instrument, folder.path()))
        .start(Instant::now())
        .unwrap_err();
    let right = format!(
        "{}: SAMP:TIM 1E-3: -222,\"Data out of range\"",
        instrument.address()
    );
    assert_eq!(error.to_string(), right);
}

#[test]
fn an_instrument_that_does_not_answer_is_not_waited_for() {
    // It accepts, and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        deadline: Duration::from_millis(100),
        ..Settings::new(&address, folder.path().join("journal.csv"))
    };
    let error = Dmm::new(settings).start(Instant::now()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{address}: no answer to *IDN? within 100ms")
    );
    assert!(
        !folder.path().join("journal.csv").exists(),
        "nothing to keep"
    );
}

#[test]
fn an_instrument_that_goes_away_leaves_its_readings() {
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34465A, |_| AMPERE);
    let mut meter = Dmm::new(settings(&instrument, folder.path()));
    meter.start(Instant::now()).unwrap();
    while instrument.taken() < 200 {
        sleep(Duration::from_millis(10));
    }
    drop(instrument);
    let recording = meter.stop().unwrap();
    assert!(
        matches!(recording.notes[..], [.., Note::EndedEarly { .. }]),
        "{:?}",
        recording.notes
    );
    let energy = recording.energy(recording.span().unwrap());
    assert_power(&energy, POWER_UW);
}

#[test]
fn sensors_of_both_kinds_tell_the_same_power() {
    let sys = FakeSys::new().unwrap();
    // 0.28 A at 5 V, as each driver shows it.
    sys.hwmon("hwmon0", "cpu_thermal", &[("temp1_input", "45000")])
        .unwrap();
    let ina219 = [
        ("curr1_input", "280"),
        ("in0_input", "28"),
        ("in1_input", "5000"),
    ];
    sys.hwmon("hwmon1", "ina219", &ina219).unwrap();
    let ina226 = [
        ("power1_input", "1400000"),
        ("curr1_input", "999"),
        ("in1_input", "9"),
    ];
    sys.hwmon("hwmon10", "ina226", &ina226).unwrap();
    let adc = [
        ("in_power2_raw", "56"),
        ("in_power2_scale", "25.000000000"),
        ("in_power2_mean_raw", "1"),
        ("in_current3_raw", "1"),
    ];
    sys.iio("iio:device0", "ina226", &adc).unwrap();
    let other = [
        ("in_current0_raw", "270"),
        ("in_current_scale", "1"),
        ("in_current0_offset", "10"),
        ("in_voltage0_raw", "3"),
        ("in_voltage1_raw", "4000"),
        ("in_voltage1_scale", "1.25"),
    ];
    sys.iio("iio:device1", "max9611", &other).unwrap();
    for (class, name, device) in [
        (Class::Hwmon, "ina219", "hwmon1"),
        (Class::Hwmon, "hwmon10", "hwmon10"),
        (Class::Iio, "ina226", "iio:device0"),
        (Class::Iio, "max9611", "iio:device1"),
    ] {
        let sensor = Sensor::find(class, sys.root(), Some(name)).unwrap();
        assert_eq!(sensor.device, device);
        let mut meter = SensorMeter::new(sensor, Duration::from_millis(5));
        let (recording, window) = measure(&mut meter, Duration::from_millis(60));
        assert_eq!(recording.notes, [], "{name}");
        assert_power(&recording.energy(window), POWER_UW);
        let span = recording.span().unwrap();
        assert!(
            span.from_ns <= window.from_ns && window.to_ns <= span.to_ns,
            "{name}"
        );
    }
    let text = Sensor::find(Class::Hwmon, sys.root(), None)
        .unwrap_err()
        .to_string();
    let right = "meter hwmon: there are several: choose from hwmon1 (ina219), hwmon10 (ina226)";
    assert_eq!(text, right);
    let text = Sensor::find(Class::Iio, sys.root(), Some("ina3221"))
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("meter iio:ina3221: it is not there: there are iio:device0"),
        "{text}"
    );
    let empty = FakeSys::new().unwrap();
    let text = Sensor::find(Class::Iio, empty.root(), None)
        .unwrap_err()
        .to_string();
    assert!(
        text.starts_with("meter iio: no sensor of power in "),
        "{text}"
    );
}

#[test]
fn a_sensor_that_fails_for_a_while_leaves_a_gap() {
    let sys = FakeSys::new().unwrap();
    let folder = sys
        .hwmon("hwmon0", "ina226", &[("power1_input", "1400000")])
        .unwrap();
    let file = folder.join("power1_input");
    let sensor = Sensor::find(Class::Hwmon, sys.root(), None).unwrap();
    let mut meter = SensorMeter::new(sensor, Duration::from_millis(2));
    let origin = Instant::now();
    meter.start(origin).unwrap();
    sleep(Duration::from_millis(30));
    std::fs::remove_file(&file).unwrap();
    // A reading may have opened the file before, and be finished only now.
    sleep(Duration::from_millis(20));
    let out = nanoseconds(origin.elapsed());
    sleep(Duration::from_millis(60));
    let back = nanoseconds(origin.elapsed());
    FakeSys::set(&file, "1400000").unwrap();
    sleep(Duration::from_millis(30));
    let recording = meter.stop().unwrap();
    let [Note::FailedReadings { count, last }] = &recording.notes[..] else {
        panic!("{:?}", recording.notes);
    };
    assert!(
        *count >= 1 && last.contains("power1_input"),
        "{count}: {last}"
    );
    let energy = recording.energy(recording.span().unwrap());
    let hole = Window::new(out, back);
    assert!(
        energy
            .gaps
            .iter()
            .any(|gap| gap.overlap(&hole) == Some(hole)),
        "{:?} in {:?}",
        hole,
        energy.gaps
    );
    assert_power(&energy, POWER_UW);
}

#[test]
fn a_sensor_that_cannot_be_read_does_not_start() {
    let sys = FakeSys::new().unwrap();
    sys.hwmon("hwmon0", "ina226", &[("power1_input", "N/A")])
        .unwrap();
    let sensor = Sensor::find(Class::Hwmon, sys.root(), None).unwrap();
    let mut meter = SensorMeter::new(sensor, Duration::from_millis(2));
    let error = meter.start(Instant::now()).unwrap_err();
    assert!(
        matches!(error, Error::File(mq_measure::Error::Line { .. })),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .ends_with("power1_input:1: `N/A` is no number"),
        "{error}"
    );
}

#[test]
fn counters_of_packages_and_memory_add_up_and_begin_anew() {
    const RANGE: u64 = 262_143_328_850;
    let sys = FakeSys::new().unwrap();
    let package = sys
        .zone("intel-rapl:0", "package-0", RANGE - 1_000_000, RANGE)
        .unwrap();
    let memory = sys
        .zone("intel-rapl:0:1", "dram", 500, 65_712_999_613)
        .unwrap();
    for (zone, name) in [
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:1", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ] {
        sys.zone(zone, name, 7, RANGE).unwrap();
    }
    let names: Vec<_> = Zone::list(sys.root())
        .into_iter()
        .map(|zone| zone.name)
        .collect();
    assert_eq!(names, ["package-0", "dram"]);
    let mut meter = RaplMeter::new(sys.root()).unwrap();
    assert_eq!(meter.scope(), "processor and memory alone: package-0, dram");
    meter.start(Instant::now()).unwrap();
    // 3 J more, 2 of them behind the counter's end, and 1 J of memory.
    FakeSys::set(&package.join("energy_uj"), "2000000").unwrap();
    FakeSys::set(&memory.join("energy_uj"), "1000500").unwrap();
    let recording = meter.stop().unwrap();
    let energy = recording.energy(recording.span().unwrap());
    assert!((energy.energy_uj - 4e6).abs() < 1e-3, "{energy:?}");
    assert_eq!(energy.gaps, []);
}

#[test]
fn a_machine_without_counters_is_told_in_one_line() {
    let sys = FakeSys::new().unwrap();
    let error = RaplMeter::new(sys.root()).unwrap_err().to_string();
    assert!(
        error.starts_with("meter rapl: no intel-rapl zone in "),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1);
}

#[test]
fn a_meter_that_was_not_started_cannot_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let instrument = Multimeter::start(MultimeterModel::K34465A, |_| AMPERE);
    let mut meter = Dmm::new(settings(&instrument, folder.path()));
    let error = meter.stop().unwrap_err().to_string();
    assert_eq!(
        error,
        format!("meter dmm:{}: it was not started", instrument.address())
    );
}
