//! `mqbench verify`: an artifact that is as it was made, and each kind of change in it.

use std::{fs, path::Path, process::Command};

use mq_testkit::program;

use crate::program::mqbench;

const SET: &str = "2026-11-29-handover";

/// Makes a small artifact: one result set, its report, and scripts that find nothing.
fn artifact(folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let set = folder.join("bench/runs").join(SET);
    let from = root.join("bench/runs").join(SET);
    for part in ["campaigns", "records"] {
        fs::create_dir_all(set.join(part)).unwrap();
        for file in fs::read_dir(from.join(part)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), set.join(part).join(file.file_name())).unwrap();
        }
    }
    fs::copy(from.join("set.json"), set.join("set.json")).unwrap();
    let report = mqbench(&["report", set.to_str().unwrap(), "--json"]);
    assert!(report.status.success());
    fs::create_dir(folder.join("reports")).unwrap();
    fs::write(folder.join(format!("reports/{SET}.json")), report.stdout).unwrap();
    for script in ["tables", "readme", "claims"] {
        fs::write(folder.join("bench").join(script), "").unwrap();
    }
    sum(folder);
}

/// Writes the checksums of all files.
fn sum(folder: &Path) {
    let all =
        "find . -type f ! -name SHA256SUMS -printf '%P\\n' | sort | xargs sha256sum >SHA256SUMS";
    let mut command = Command::new("sh");
    let status = command.args(["-c", all]).current_dir(folder).status();
    assert!(status.unwrap().success());
}

/// Verifies, and returns whether nothing differs, with what was printed.
fn verify(archive: &Path) -> (bool, String) {
    let output = mqbench(&["verify", archive.to_str().unwrap()]);
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).unwrap();
    (output.status.success(), printed)
}

#[test]
fn an_artifact_is_verified_and_each_change_in_it_is_found() {
    if program(&["python3"]).is_none() || program(&["sha256sum"]).is_none() {
        mq_testkit::skipped("python3 or sha256sum is missing");
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let folder = work.path().join("mq-1");
    fs::create_dir(&folder).unwrap();
    artifact(&folder);
    let (same, printed) = verify(&folder);
    assert!(same, "{printed}");
    for line in [
        "checksums: ",
        " runs, ",
        "bench/claims: the pages have these figures",
    ] {
        assert!(printed.contains(line), "{printed}");
    }
    let archive = work.path().join("mq-1.tar.gz");
    let mut command = Command::new("tar");
    command.arg("-czf").arg(&archive).arg("mq-1");
    assert!(command.current_dir(work.path()).status().unwrap().success());
    assert_eq!(verify(&archive), (true, printed));

    let report = folder.join(format!("reports/{SET}.json"));
    let kept = fs::read_to_string(&report).unwrap();
    let changed = kept.replacen("\"title\": \"", "\"title\": \"other ", 1);
    assert_ne!(kept, changed);
    fs::write(&report, changed).unwrap();
    let (same, printed) = verify(&folder);
    assert!(!same);
    let name = format!("reports/{SET}.json: other content than its checksum");
    assert!(printed.contains(&name), "{printed}");
    assert!(printed.contains(" in the archive, "), "{printed}");

    fs::write(&report, kept).unwrap();
    fs::write(
        folder.join("bench/tables"),
        "raise SystemExit('recovery.md: 13.4 is 12.4')",
    )
    .unwrap();
    sum(&folder);
    let (same, printed) = verify(&folder);
    assert!(!same);
    assert!(printed.contains("recovery.md: 13.4 is 12.4"), "{printed}");

    // Scripts of an archive that someone has changed are not run.
    fs::write(folder.join("bench/more"), "").unwrap();
    let (same, printed) = verify(&folder);
    assert!(!same);
    assert!(printed.contains("bench/more: no checksum"), "{printed}");
    assert!(!printed.contains("recovery.md"), "{printed}");
    assert!(printed.contains("the pages are not compared"), "{printed}");

    fs::remove_file(folder.join("SHA256SUMS")).unwrap();
    let (same, printed) = verify(&folder);
    assert!(!same);
    assert!(printed.contains("is it an artifact?"), "{printed}");
}
