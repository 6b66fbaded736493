//! `mqbench energy` as a user meets it.

use std::{path::Path, process::Output};

use crate::program;

fn energy(args: &[&str]) -> Output {
    program::mqbench(&[&["energy"], args].concat())
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn mistake(args: &[&str]) -> String {
    program::usage_mistake(&[&["energy"], args].concat())
}

#[test]
fn mistakes_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs.csv");
    std::fs::write(&runs, "energy,time\n1,2\n").unwrap();
    let runs = runs.to_str().unwrap();
    for (args, says) in [
        (&["measure"][..], "say for how long"),
        (
            &["measure", "--meter", "watt", "--for", "1s"],
            "`watt` is no meter: there are model",
        ),
        (
            &["measure", "--meter", "model:pi-9", "--for", "1s"],
            "there are pi-3b, pi-3b-plus",
        ),
        (&["measure", "--meter", "csv:no.csv"], "no.csv: "),
        (
            &["measure", "--meter", "hwmon:nothing", "--for", "1s"],
            "meter hwmon:nothing: ",
        ),
        (
            &["measure", "--runs", "runs.csv", "--for", "1s"],
            "model:pi-3b computes it",
        ),
        (
            &["calibrate", runs],
            "expected the column names `energy_uj,",
        ),
        (
            &["calibrate", runs, "--terms", "watt"],
            "unknown term `watt`: expected one of idle_power_uw",
        ),
        // Nothing listens at port 1: the message names no journal, since there will be none.
        (
            &["measure", "--meter", "dmm:127.0.0.1:1", "--for", "1s"],
            "127.0.0.1:1: ",
        ),
        (
            &["measure", "--", "no-such-program"],
            "cannot run no-such-program",
        ),
    ] {
        let line = mistake(args);
        assert!(line.contains(says), "{args:?}: {line}");
    }
}

#[test]
fn the_meters_of_this_machine_are_listed() {
    let output = energy(&["list"]);
    assert!(output.status.success());
    let text = told(&output);
    assert!(text.contains("model:pi-3b-plus "), "{text}");
}

#[test]
#[cfg(target_os = "linux")]
fn the_model_needs_no_instrument_and_passes_a_commands_exit_code_on() {
    let output = energy(&["measure", "--messages", "10", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    let text = told(&output);
    assert!(
        text.starts_with("model:pi-3b (modelled, not measured): Raspberry Pi 3"),
        "{text}"
    );
    assert!(text.contains("\na message  "), "{text}");
    let output = energy(&["measure", "--for", "30ms"]);
    assert!(output.status.success());
    let power = told(&output);
    let power = power
        .lines()
        .find_map(|line| line.strip_prefix("mean power "));
    let watts: f64 = power.unwrap().strip_suffix(" W").unwrap().parse().unwrap();
    // Idle power at least.
    assert!(watts >= 1.4, "{watts}");
}

#[test]
fn a_file_is_integrated_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        format!("csv:{}", Path::new(&file).display())
    };
    let meter = write("power.csv", "t_s,power_w\n0,1\n1,1\n2,3\n3,3\n");
    let text = told(&energy(&["measure", "--meter", &meter]));
    assert!(
        text.contains("energy     6.00 J in 3.00 s\nmean power 2.00 W\n"),
        "{text}"
    );
    let meter = write("current.csv", "t_ms,current_ma\n0,400\n1000,400\n");
    let text = told(&energy(&["measure", "--meter", &meter, "--volts", "5"]));
    assert!(text.contains("energy     2.00 J in 1.00 s\n"), "{text}");
    let line = mistake(&["measure", "--meter", &meter]);
    assert!(line.contains("a current and no voltage"), "{line}");
}
