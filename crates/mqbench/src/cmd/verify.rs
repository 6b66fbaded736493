//! `mqbench verify`: computes the reports and tables of an archive again, and prints what differs.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, bail};
use flate2::read::GzDecoder;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tar::Archive;

use crate::{
    campaign::{
        claims::{self, Claim},
        store::ResultSet,
    },
    report::{self, campaign},
};

/// The file with the checksums of all others, in the form of sha256sum(1).
const SUMS: &str = "SHA256SUMS";

/// The scripts that write figures into pages, and whether they need this program.
const SCRIPTS: [(&str, bool); 3] = [("tables", false), ("readme", false), ("claims", true)];

/// Most differences that are printed of one report.
const MOST: usize = 10;

/// Options of `verify`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The archive that `just artifact` made, or the folder that it was unpacked into
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
}

/// Verifies the archive: its checksums, the report of each of its result sets, and the figures of its pages. For the last
/// it runs the archive's own scripts.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let unpacked;
    let folder = if args.archive.is_dir() {
        args.archive.clone()
    } else {
        unpacked = tempfile::tempdir().context("cannot make a folder for the archive")?;
        unpack(&args.archive, unpacked.path())?
    };
    let mut found = Found::default();
    // What was found before a part that cannot be read is printed, too.
    for part in [checksums, reports, pages] {
        if let Err(error) = part(&folder, &mut found) {
            found.differs(&format!("{error:#}"));
        }
    }
    report::print(&found.text)?;
    if found.differences > 0 {
        eprintln!("mqbench: {} differences", found.differences);
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Lines that are printed, and the number of differences among them.
#[derive(Default)]
struct Found {
    text: String,
    differences: usize,
}

impl Found {
    fn say(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    fn differs(&mut self, line: &str) {
        self.differences += 1;
        self.say(line);
    }
}

/// Unpacks an archive, and returns its only folder.
fn unpack(archive: &Path, into: &Path) -> anyhow::Result<PathBuf> {
    let cannot = || format!("cannot read {}", archive.display());
    let file = File::open(archive).with_context(cannot)?;
    let mut archived = Archive::new(GzDecoder::new(io::BufReader::new(file)));
    archived.unpack(into).with_context(cannot)?;
    let folders = fs::read_dir(into)?.collect::<io::Result<Vec<_>>>()?;
    match &folders[..] {
        [folder] if folder.path().is_dir() => Ok(folder.path()),
        _ => bail!("{} has no single folder", archive.display()),
    }
}

/// Compares the checksum of each file, and looks for files without one.
fn checksums(folder: &Path, found: &mut Found) -> anyhow::Result<()> {
    let path = folder.join(SUMS);
    let sums = fs::read_to_string(&path)
        .with_context(|| format!("no {SUMS} in {}: is it an artifact?", folder.display()))?;
    let before = found.differences;
    let mut unlisted = BTreeSet::new();
    files(folder, Path::new(""), &mut unlisted)?;
    unlisted.remove(Path::new(SUMS));
    for line in sums.lines() {
        let Some((expected, name)) = line.split_once("  ") else {
            bail!("{}: `{line}` is no checksum", path.display());
        };
        if !unlisted.remove(Path::new(name)) {
            found.differs(&format!("{name}: no such file"));
            continue;
        }
        match sha256(&folder.join(name)) {
            Ok(sum) if sum == expected => {}
            Ok(_) => found.differs(&format!("{name}: other content than its checksum")),
            Err(error) => found.differs(&format!("{name}: {error}")),
        }
    }
    for file in unlisted {
        found.differs(&format!("{}: no checksum", file.display()));
    }
    if found.differences == before {
        found.say(&format!("checksums: {} files", sums.lines().count()));
    }
    Ok(())
}

/// Adds the ordinary files below a folder, by their names from `root` on. A folder called `target` is left out: a build in
/// the unpacked sources makes it.
fn files(root: &Path, below: &Path, names: &mut BTreeSet<PathBuf>) -> anyhow::Result<()> {
    let folder = root.join(below);
    let cannot = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(&folder).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        let (name, kind) = (below.join(entry.file_name()), entry.file_type()?);
        if kind.is_file() {
            names.insert(name);
        } else if kind.is_dir() && name != Path::new("target") {
            files(root, &name, names)?;
        }
    }
    Ok(())
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            let mut sum = String::new();
            for byte in hasher.finalize() {
                let _ = write!(sum, "{byte:02x}");
            }
            return Ok(sum);
        }
        hasher.update(&buffer[..count]);
    }
}

/// Makes the report of each result set again, and compares it with the one in the archive.
fn reports(folder: &Path, found: &mut Found) -> anyhow::Result<()> {
    let claims = claims::shipped()?;
    let mut sets = Vec::new();
    let runs = folder.join("bench/runs");
    let cannot = || format!("cannot read {}", runs.display());
    for entry in fs::read_dir(&runs).with_context(cannot)? {
        let set = entry.with_context(cannot)?.path();
        if set.join("set.json").is_file() {
            sets.push(set);
        }
    }
    sets.sort();
    if sets.is_empty() {
        bail!("{} has no result set", runs.display());
    }
    for set in sets {
        if let Err(error) = one_report(folder, &set, &claims, found) {
            found.differs(&format!("{error:#}"));
        }
    }
    Ok(())
}

/// Makes the report of one result set again.
fn one_report(
    folder: &Path,
    directory: &Path,
    claims: &[Claim],
    found: &mut Found,
) -> anyhow::Result<()> {
    let set = ResultSet::load(directory)?;
    let made = campaign::report(&set.head, &set.campaigns, &set.records, claims);
    let made: Value = serde_json::from_str(&report::json(&made)?)?;
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    let file = folder.join(format!("reports/{name}.json"));
    let cannot = || format!("cannot read {}", file.display());
    let kept = fs::read(&file).with_context(cannot)?;
    let kept: Value = serde_json::from_slice(&kept).with_context(cannot)?;
    let mut differences = Vec::new();
    compare(&kept, &made, "", &mut differences);
    if differences.is_empty() {
        let (runs, claims) = (set.records.len(), judged(&made["claims"]));
        found.say(&format!("{name}: {runs} runs, {claims} claims judged"));
    }
    found.differences += differences.len();
    for difference in differences.iter().take(MOST) {
        found.say(&format!("{name}{difference}"));
    }
    if differences.len() > MOST {
        found.say(&format!("{name}: {} more", differences.len() - MOST));
    }
    Ok(())
}

/// Returns the number of claims that the set has runs for.
fn judged(claims: &Value) -> usize {
    let claims = claims.as_array().into_iter().flatten();
    claims
        .filter(|claim| claim["verdict"] != "not-measured")
        .count()
}

/// Adds the places at which two values differ.
fn compare(kept: &Value, made: &Value, at: &str, differences: &mut Vec<String>) {
    match (kept, made) {
        (Value::Object(kept), Value::Object(made)) => {
            let keys: BTreeSet<_> = kept.keys().chain(made.keys()).collect();
            for key in keys {
                let [kept, made] = [kept, made].map(|of| of.get(key).unwrap_or(&Value::Null));
                compare(kept, made, &format!("{at}.{key}"), differences);
            }
        }
        (Value::Array(kept), Value::Array(made)) if kept.len() == made.len() => {
            for (place, (kept, made)) in kept.iter().zip(made).enumerate() {
                compare(kept, made, &format!("{at}[{place}]"), differences);
            }
        }
        (Value::Number(kept), Value::Number(made)) if is_close(kept.as_f64(), made.as_f64()) => {}
        _ if kept == made => {}
        _ => differences.push(format!("{at}: {kept} in the archive, {made} computed")),
    }
}

/// Returns `true` if two numbers differ by no more than mathematical libraries do.
fn is_close(one: Option<f64>, other: Option<f64>) -> bool {
    let both = one.zip(other);
    both.is_some_and(|(one, other)| (one - other).abs() <= 1e-9 * one.abs().max(other.abs()))
}

/// Has the archive's scripts compare the figures of its pages with its results.
fn pages(folder: &Path, found: &mut Found) -> anyhow::Result<()> {
    if found.differences > 0 {
        found.say("the pages are not compared: that runs the archive's scripts, and the archive is not as it was made");
        return Ok(());
    }
    for (script, needs_program) in SCRIPTS {
        let mut command = Command::new("python3");
        command.arg("-B").arg(folder.join("bench").join(script));
        if needs_program {
            let own = std::env::current_exe().context("cannot find this program")?;
            command.arg(own);
        }
        let output = command.arg("--check").output();
        let output = output.context("cannot run python3, which the tables' scripts need")?;
        if output.status.success() {
            found.say(&format!("bench/{script}: the pages have these figures"));
        } else {
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            found.differs(&format!("bench/{script}: {}", told.trim_end()));
        }
    }
    Ok(())
}
