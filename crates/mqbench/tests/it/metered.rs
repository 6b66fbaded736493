//! S22's figures of energy and of packets in the lab, by the model and with a simulated multimeter.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use mq_energy::csv;
use mq_testkit::{Multimeter, MultimeterModel};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    program::{self, command, mqbench, skipped},
    shipped,
};

/// The voltage of the simulated board, which the campaign gets as an option.
const VOLT: f64 = 5.08;

/// Returns the current of the board at a time after a run's trigger. It rises, so that a wrong part of a run has a
/// wrong energy.
fn ampere(after_s: f64) -> f64 {
    0.2 + 0.05 * after_s
}

/// Returns the energy between two times after the trigger, in joules.
fn joules(from_s: f64, to_s: f64) -> f64 {
    VOLT * (0.2 * (to_s - from_s) + 0.025 * (to_s.powi(2) - from_s.powi(2)))
}

const CAMPAIGNS: [&str; 2] = ["s22-fig10", "s22-fig11"];

/// Campaigns, and where their results are.
struct Place {
    folder: TempDir,
    names: Vec<&'static str>,
    files: Vec<String>,
}

impl Place {
    /// Returns the campaigns as they ship.
    fn shipped(names: &[&'static str]) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            names: names.to_vec(),
            files: names
                .iter()
                .map(|name| path(&shipped::campaign(name)))
                .collect(),
        }
    }

    /// Returns both campaigns with shorter quick runs.
    fn new() -> Self {
        let mut place = Self::shipped(&CAMPAIGNS);
        let quick = [
            "work.messages = 40\nfactors.size = [100]\nfactors.interval = [\"1ms\", \"10ms\"]\n",
            "work.messages = 20\nwork.interval = \"20ms\"\n\
             factors.link = [\"s22/wifi\"]\nfactors.loss = [\"0%\"]\n",
        ];
        for ((name, file), quick) in CAMPAIGNS.iter().zip(&mut place.files).zip(quick) {
            let small = place.folder.path().join(format!("{name}.toml"));
            std::fs::write(&small, shipped::with_quick(name, quick)).unwrap();
            *file = path(&small);
        }
        place
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// Makes the arguments of `campaign run`, with further options.
    fn arguments<'a>(&'a self, out: &'a str, further: &[&'a str]) -> Vec<&'a str> {
        let files: Vec<_> = self.files.iter().map(String::as_str).collect();
        [&["campaign", "run"], &files[..], &["--out", out], further].concat()
    }

    /// Reads every record.
    fn records(&self) -> Vec<Value> {
        let text = self.names.iter().map(|name| {
            let file = self.out().join(format!("records/{name}.jsonl"));
            std::fs::read_to_string(file).unwrap()
        });
        let text: Vec<_> = text.collect();
        let lines = text.iter().flat_map(|text| text.lines());
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn report(&self, form: &str) -> String {
        told(&mqbench(&["report", self.out().to_str().unwrap(), form]))
    }
}

fn path(file: &Path) -> String {
    file.to_str().unwrap().to_owned()
}

fn told(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn metric(record: &Value, name: &str) -> f64 {
    let value = record["outcome"]["metrics"][name].as_f64();
    value.unwrap_or_else(|| panic!("{name}: {record}"))
}

/// Asserts that every record has the energy that the multimeter measured, and that the report names the meter.
fn measured_by(place: &Place, spec: &str) {
    let records = place.records();
    let mut windows = Vec::new();
    for record in &records {
        let outcome = &record["outcome"];
        assert_eq!(outcome["error"], Value::Null, "{record}");
        assert_eq!(outcome["energy_meter"], spec, "{record}");
        let reading = &outcome["energy_reading"];
        let scope = reading["scope"].as_str().unwrap();
        assert!(scope.contains("current through the multimeter"), "{record}");
        assert_eq!(reading["notes"], serde_json::json!([]), "{record}");
        let window = &reading["window"];
        let [from, to] = ["from_ns", "to_ns"].map(|end| window[end].as_u64().unwrap());
        assert_eq!(outcome["sending"], *window, "one clock");
        windows.push((from, to));
        // The current is known: the energy of the window, counted from the first reading.
        let journal = reading["journal"].as_str().unwrap();
        let log = csv::read(&place.out().join("meters").join(journal), None).unwrap();
        let triggered = log.trace.span().unwrap().from_ns;
        assert!(triggered < from, "{record}");
        #[expect(clippy::cast_precision_loss, reason = "seconds of a run")]
        let seconds = |ns: u64| ns as f64 / 1e9;
        let (from_s, to_s) = (seconds(from - triggered), seconds(to - triggered));
        let right = joules(from_s, to_s);
        let found = metric(record, "energy_j");
        // Half of a reading's interval, and of a round trip on loopback, on a rising current.
        assert!(
            (found - right).abs() < 0.01 * right,
            "{found} J, not {right}: {record}"
        );
        let power = metric(record, "power_w");
        assert!((power - found / (to_s - from_s)).abs() < 1e-6, "{record}");
        let received = outcome["counts"]["received"].as_f64().unwrap();
        let each = metric(record, "energy_per_message_uj");
        assert!((each - found * 1e6 / received).abs() < 1e-3, "{record}");
    }
    // One probe: one run at a time.
    windows.sort_unstable();
    for pair in windows.windows(2) {
        assert!(pair[0].1 < pair[1].0, "{pair:?}");
    }

    let text = place.report("--markdown");
    let named = format!("by {spec} (measured): the current through the multimeter");
    assert_eq!(text.matches(&named).count(), place.names.len(), "{text}");
    assert!(text.contains("ours is measured"), "{text}");
    assert!(!text.contains("modelled"), "{text}");
    let report: Value = serde_json::from_str(&place.report("--json")).unwrap();
    for campaign in report["campaigns"].as_array().unwrap() {
        let [energy] = &campaign["energy"].as_array().unwrap()[..] else {
            panic!("{campaign}");
        };
        assert_eq!(energy["basis"], "measured");
        assert_eq!(energy["runs"], campaign["runs"]["finished"]);
    }
    assert!(
        report["campaigns"][0]["plot"]["meaning"]
            .as_str()
            .unwrap()
            .ends_with(": measured")
    );
}

#[test]
fn a_multimeter_measures_the_energy_of_every_run() {
    let place = Place::new();
    let meter = Multimeter::start(MultimeterModel::K34465A, ampere);
    let (out, volts) = (place.out(), VOLT.to_string());
    let out = out.to_str().unwrap();
    let spec = format!("dmm:{}", meter.address());
    let with = ["--meter", &spec, "--volts", &volts];
    // Killed once in the middle of a run, while the meter is read.
    let mut running = command(&place.arguments(out, &with));
    let mut running = running.stderr(Stdio::piped()).spawn().unwrap();
    let until = Instant::now() + Duration::from_mins(1);
    let journal = loop {
        if running.try_wait().unwrap().is_some() {
            let ended = running.wait_with_output().unwrap();
            assert!(skipped(&ended.stderr), "{ended:?}");
            return;
        }
        let journals = std::fs::read_dir(place.out().join("meters"));
        let journals = journals.into_iter().flatten().flatten();
        let mut journals = journals.map(|entry| entry.path());
        let has_readings = |file: &PathBuf| {
            // The file may end in the middle of a line.
            csv::read(file, None).is_ok_and(|log| log.trace.points().len() > 100)
        };
        if let Some(journal) = journals.find(has_readings) {
            break journal;
        }
        assert!(Instant::now() < until, "nothing is in a journal");
        std::thread::sleep(Duration::from_millis(10));
    };
    running.kill().unwrap();
    running.wait().unwrap();
    // The readings stay, and can be read as any other instrument's file.
    let kept = format!("csv:{}", journal.display());
    assert!(told(&mqbench(&["energy", "measure", "--meter", &kept])).contains("energy  "));
    let before = std::fs::read(&journal).unwrap();
    let resume = [&["campaign", "resume", out], &with[..]].concat();
    told(&mqbench(&resume));
    assert_eq!(std::fs::read(&journal).unwrap(), before);
    // Measured and modelled energy do not mix.
    let said = program::mistake(&["campaign", "resume", out]);
    assert!(
        said.contains(&format!("go on with --meter {spec}")),
        "{said}"
    );

    measured_by(&place, &spec);
}

#[test]
#[ignore = "half an hour; of figure 11 in full one run is a quarter of an hour"]
fn a_multimeter_measures_the_campaigns_as_they_ship() {
    for (names, further) in [(&CAMPAIGNS[..], &[][..]), (&CAMPAIGNS[..1], &["--full"])] {
        let place = Place::shipped(names);
        let meter = Multimeter::start(MultimeterModel::K34465A, ampere);
        let (out, volts) = (place.out(), VOLT.to_string());
        let spec = format!("dmm:{}", meter.address());
        let with = [&["--meter", &spec, "--volts", &volts], further].concat();
        let ran = mqbench(&place.arguments(out.to_str().unwrap(), &with));
        if skipped(&ran.stderr) {
            return;
        }
        told(&ran);
        measured_by(&place, &spec);
        println!("{names:?}: {} runs", place.records().len());
    }
}

#[test]
fn without_a_meter_the_energy_is_modelled_and_the_report_says_so() {
    let place = Place::new();
    let out = place.out();
    let out = out.to_str().unwrap();
    let ran = mqbench(&place.arguments(out, &["--meter", "model:pi-3b-plus"]));
    if skipped(&ran.stderr) {
        return;
    }
    told(&ran);
    for record in place.records() {
        let outcome = &record["outcome"];
        assert_eq!(outcome["energy_meter"], "model:pi-3b-plus", "{record}");
        assert_eq!(outcome["energy_reading"], Value::Null, "{record}");
        // Idle power at least.
        assert!(metric(&record, "power_w") >= 1.9, "{record}");
    }
    let text = place.report("--markdown");
    let named = "by model:pi-3b-plus (modelled, not measured)";
    assert_eq!(text.matches(named).count(), 2, "{text}");
    assert!(text.contains("ours is modelled, not measured"), "{text}");
}

#[test]
fn a_meter_that_is_not_there_ends_a_campaign_before_a_run_is_recorded() {
    let place = Place::new();
    let out = place.out();
    let out = out.to_str().unwrap();
    let ended = mqbench(&place.arguments(out, &["--meter", "dmm:127.0.0.1:1"]));
    assert!(!ended.status.success());
    let said = String::from_utf8(ended.stderr).unwrap();
    let last = said.lines().last().unwrap();
    assert!(
        last.starts_with("mqbench: the meter dmm:127.0.0.1:1: "),
        "{said}"
    );
    assert!(!place.out().join("records/s22-fig10.jsonl").exists());
    let said = program::usage_mistake(&["campaign", "resume", out, "--meter", "watt"]);
    assert!(said.contains("`watt` is no meter"), "{said}");
    let of_both = ["--hosts", "hosts.toml", "--meter", "rapl"];
    let said = program::usage_mistake(&[&["campaign", "resume", out], &of_both[..]].concat());
    assert!(said.contains("cannot be used with"), "{said}");
    let said = program::mistake(&["campaign", "resume", out, "--meter", "model:pi-9"]);
    assert!(said.contains("there are pi-3b"), "{said}");
}
