//! The project's first page: its figures are those of the kept results, as the tables of `docs/results` are, and its broker
//! runs as written.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::{
    bench_scripts::{built, copy_writers, lacks},
    root,
};

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

/// Runs a script of a repository's `bench/` with `--check` and more arguments.
fn check(repository: &Path, script: &str, more: &[&str]) -> Output {
    let mut command = Command::new("python3");
    let script = repository.join("bench").join(script);
    command.arg("-B").arg(script).arg("--check").args(more);
    command.output().unwrap()
}

/// Makes a repository that has this one's scripts and results, and one page with this text.
fn with_page(page: &str, text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_writers(folder.path());
    let bench = folder.path().join("bench");
    fs::copy(root().join("bench/tables.toml"), bench.join("tables.toml")).unwrap();
    std::os::unix::fs::symlink(root().join("bench/runs"), bench.join("runs")).unwrap();
    let page = folder.path().join(page);
    fs::create_dir_all(page.parent().unwrap()).unwrap();
    fs::write(page, text).unwrap();
    folder
}

#[test]
fn figures_are_those_of_the_kept_results() {
    if lacks(&["python3"]) {
        return;
    }
    for script in ["readme", "tables"] {
        let output = check(&root(), script, &[]);
        let difference = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {difference}");
    }
}

#[test]
fn another_figure_is_found() {
    if lacks(&["python3"]) {
        return;
    }
    let text = readme();
    for (kept, other) in [("**13.6 ms**", "**12.6 ms**"), ("**37 KB**", "**36 KB**")] {
        assert!(text.contains(kept), "{kept}");
        let changed = text.replace(kept, other);
        let output = check(with_page("README.md", &changed).path(), "readme", &[]);
        let difference = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{difference}");
        assert!(difference.contains(other), "{difference}");
        assert!(difference.contains(kept), "{difference}");
    }
    let output = check(with_page("README.md", &text).path(), "readme", &[]);
    assert!(output.status.success());
}

#[test]
fn another_figure_of_a_table_is_found() {
    const PAGE: &str = "docs/results/recovery.md";
    if lacks(&["python3"]) {
        return;
    }
    let text = fs::read_to_string(root().join(PAGE)).unwrap();
    let row = text
        .lines()
        .find(|line| line.starts_with("| 25 ms | TCP | "));
    let row = row.expect("a row of the first table");
    let other = row.replacen('.', "9.", 1);
    assert_ne!(row, other);
    let mark = "<!-- table: recovery -->\n";
    for (changed, messages) in [
        (text.replacen(row, &other, 1), [row, other.as_str()]),
        (
            text.replacen(mark, "", 1),
            ["recovery.md lacks the line", mark.trim()],
        ),
    ] {
        let output = check(
            with_page(PAGE, &changed).path(),
            "tables",
            &["--only", "recovery"],
        );
        let difference = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{difference}");
        for message in messages {
            assert!(difference.contains(message), "{difference}");
        }
    }
    let output = check(
        with_page(PAGE, &text).path(),
        "tables",
        &["--only", "recovery"],
    );
    assert!(output.status.success(), "{output:?}");
}

/// Lists the rows of a page's tables that no script writes.
fn typed_rows(page: &str) -> Vec<&str> {
    let mut is_written = false;
    let is_typed = |line: &&str| {
        if line.starts_with("<!-- ") {
            is_written = line.starts_with("<!-- table: ") || line.starts_with("<!-- claims: ");
        }
        line.starts_with('|') && !is_written
    };
    page.lines().filter(is_typed).collect()
}

/// The list of pages is typed, pages about clusters have checks of their own, and those about the papers and about scale have
/// settings and arithmetic.
#[test]
fn tables_of_results_are_written_by_the_script() {
    const OTHERS: [&str; 5] = [
        "README.md",
        "cluster-faults.md",
        "cluster.md",
        "papers.md",
        "scale.md",
    ];
    let mut count = 0;
    for entry in fs::read_dir(root().join("docs/results")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !OTHERS.contains(&name) {
            count += 1;
            let page = fs::read_to_string(&path).unwrap();
            assert_eq!(typed_rows(&page), [""; 0], "{name}");
        }
    }
    assert!(count > 10, "{count} pages");
    let page = "| 1 |\n<!-- table: a -->\n| 2 |\n<!-- end -->\n| 3 |\n";
    assert_eq!(typed_rows(page), ["| 1 |", "| 3 |"]);
}

/// Returns the commands below a heading, as one script.
fn commands(page: &str, heading: &str) -> String {
    let (_, section) = page.split_once(heading).unwrap();
    let (_, block) = section.split_once("\n```sh\n").unwrap();
    block.split("\n```").next().unwrap().to_owned()
}

#[test]
fn the_broker_carries_a_message_over_quic_as_written() {
    let programs = built(&["mqbroker", "mq"]);
    let (Some(programs), false) = (programs, lacks(&["bash", "timeout"])) else {
        return;
    };
    let written = commands(&readme(), "\n## Run a broker\n");
    assert!(written.contains("cargo build "), "{written}");
    assert!(written.contains("14567"), "{written}");
    let port = mq_testkit::free_port().to_string();
    // The programs are built, and this folder has no `target`.
    let script = format!(
        "set -euo pipefail\ncargo() {{ :; }}\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{}\n",
        written.replace("14567", &port)
    );
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::var("PATH").unwrap();
    let output = Command::new("timeout")
        .args(["--kill-after=5", "60", "bash", "-c", &script])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{path}", programs.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{log}");
    assert_eq!(printed.lines().last(), Some("21.5"), "{printed}\n{log}");
}
