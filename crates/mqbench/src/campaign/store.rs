//! A result set on disk.
//!
//! ```text
//! DIR/set.json               which program ran it, where, and how much of it: `SetHead`
//! DIR/campaigns/NAME.toml    the campaign files, as they were
//! DIR/records/NAME.jsonl     a line for each finished run: `Record`
//! DIR/records/NAME.jsonl.gz  earlier lines, if the user has compressed them
//! ```
//!
//! A record is on the disk before its run counts as done, so a kill at any moment costs only the runs that were
//! going on. An unfinished last line is ignored on reading.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use flate2::read::MultiGzDecoder;
use mq_measure::manifest::Manifest;
use serde::{Deserialize, Serialize};

use super::{
    changes::file_and_name,
    file::{Campaign, Extent},
    record::Record,
};

/// The `schema` that this version writes and reads.
pub(crate) const SCHEMA: &str = "mq-results/1";

/// The head of a result set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetHead {
    pub(crate) schema: String,
    pub(crate) extent: Extent,
    pub(crate) manifest: Manifest,
    /// Manifest of each resumption of the set, which may have another program or another machine.
    #[serde(default)]
    pub(crate) continued: Vec<Manifest>,
}

/// A result set.
#[derive(Debug)]
pub(crate) struct ResultSet {
    directory: PathBuf,
    pub(crate) head: SetHead,
    pub(crate) campaigns: Vec<Campaign>,
    /// The records, in the order in which their runs ended.
    pub(crate) records: Vec<Record>,
}

impl ResultSet {
    /// Creates a result set with these campaign files.
    ///
    /// # Errors
    /// If the directory has a result set already, or the new one cannot be written.
    pub(crate) fn create(
        directory: &Path,
        extent: Extent,
        files: &[PathBuf],
        manifest: Manifest,
    ) -> anyhow::Result<Self> {
        let head_file = directory.join("set.json");
        if head_file.exists() {
            let directory = directory.display();
            bail!("there are results in {directory} already: `mqbench campaign resume` goes on");
        }
        // Mistakes first: nothing is written for a file that is wrong.
        let campaigns = files.iter().map(|file| Campaign::load(file, extent));
        let campaigns: Vec<_> = campaigns.collect::<anyhow::Result<_>>()?;
        for folder in ["campaigns", "records"] {
            let folder = directory.join(folder);
            fs::create_dir_all(&folder).with_context(|| cannot("make", &folder))?;
        }
        for (file, campaign) in files.iter().zip(&campaigns) {
            let copy = directory.join(format!("campaigns/{}.toml", campaign.name));
            if copy.exists() {
                bail!("two campaigns are called {}", campaign.name);
            }
            let (file, _) = file_and_name(file);
            fs::copy(file, &copy).with_context(|| cannot("write", &copy))?;
        }
        let head = SetHead {
            schema: SCHEMA.to_owned(),
            extent,
            manifest,
            continued: Vec::new(),
        };
        // The head comes last: without it there is no set.
        write_head(directory, &head)?;
        Ok(Self {
            directory: directory.to_owned(),
            head,
            campaigns,
            records: Vec::new(),
        })
    }

    /// Reads a result set.
    ///
    /// # Errors
    /// If the result set is missing, damaged or of another version; the error has the file and the line.
    pub(crate) fn load(directory: &Path) -> anyhow::Result<Self> {
        let head_file = directory.join("set.json");
        let head = fs::read_to_string(&head_file).with_context(|| {
            format!(
                "no results in {}: expected a set.json there",
                directory.display()
            )
        })?;
        let value: serde_json::Value =
            serde_json::from_str(&head).with_context(|| cannot("read", &head_file))?;
        if value["schema"] != SCHEMA {
            let file = head_file.display();
            bail!(
                "{file} has the schema {}: this version reads {SCHEMA}",
                value["schema"]
            );
        }
        let head: SetHead =
            serde_json::from_str(&head).with_context(|| cannot("read", &head_file))?;
        let folder = directory.join("campaigns");
        let entries = fs::read_dir(&folder).with_context(|| cannot("read", &folder))?;
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        let campaigns = files.iter().map(|file| Campaign::load(file, head.extent));
        let campaigns: Vec<_> = campaigns.collect::<anyhow::Result<_>>()?;
        let mut records = Vec::new();
        for campaign in &campaigns {
            records.extend(read_records(&records_file(directory, &campaign.name))?);
        }
        Ok(Self {
            directory: directory.to_owned(),
            head,
            campaigns,
            records,
        })
    }

    /// Reads a result set to resume it with the program and machine of `manifest`.
    ///
    /// # Errors
    /// As [`load`](Self::load), or if it cannot be written.
    pub(crate) fn reopen(directory: &Path, manifest: Manifest) -> anyhow::Result<Self> {
        let mut set = Self::load(directory)?;
        for campaign in &set.campaigns {
            mend(&records_file(directory, &campaign.name))?;
        }
        set.head.continued.push(manifest);
        write_head(directory, &set.head)?;
        Ok(set)
    }

    /// Adds a record. It is on the disk when this returns.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(crate) fn add(&mut self, record: Record) -> anyhow::Result<()> {
        let path = records_file(&self.directory, &record.campaign);
        let mut line = serde_json::to_vec(&record).context("cannot write JSON")?;
        line.push(b'\n');
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| {
            file.write_all(&line)?;
            file.sync_data()
        });
        written.with_context(|| cannot("write", &path))?;
        self.records.push(record);
        Ok(())
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

fn records_file(directory: &Path, campaign: &str) -> PathBuf {
    directory.join(format!("records/{campaign}.jsonl"))
}

/// Reads the records of a file; none if the file does not exist yet. A last line without its end is ignored.
fn read_records(path: &Path) -> anyhow::Result<Vec<Record>> {
    let packed = path.with_extension("jsonl.gz");
    let mut records = Vec::new();
    if packed.exists() {
        let mut text = String::new();
        let file = File::open(&packed).with_context(|| cannot("read", &packed))?;
        let read = MultiGzDecoder::new(file).read_to_string(&mut text);
        read.with_context(|| cannot("read", &packed))?;
        records = parse(&packed, &text)?;
    }
    if path.exists() {
        let text = fs::read_to_string(path).with_context(|| cannot("read", path))?;
        records.append(&mut parse(path, &text)?);
    }
    Ok(records)
}

fn parse(path: &Path, text: &str) -> anyhow::Result<Vec<Record>> {
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let lines = (1..).zip(text[..whole].lines());
    lines
        .map(|(number, line)| {
            serde_json::from_str(line).with_context(|| format!("{}:{number}", path.display()))
        })
        .collect()
}

/// Removes an unfinished last line, so that the next record begins a line.
fn mend(path: &Path) -> anyhow::Result<()> {
    let Ok(text) = fs::read(path) else {
        return Ok(());
    };
    let end = text.iter().rposition(|byte| *byte == b'\n');
    let whole = end.map_or(0, |end| end + 1);
    if whole < text.len() {
        let file = OpenOptions::new().write(true).open(path);
        let cut = file.and_then(|file| file.set_len(whole as u64));
        cut.with_context(|| cannot("mend", path))?;
    }
    Ok(())
}

/// Writes the head; an old one stays until the new one is complete.
fn write_head(directory: &Path, head: &SetHead) -> anyhow::Result<()> {
    let json = serde_json::to_vec_pretty(head).context("cannot write JSON")?;
    let (path, new) = (directory.join("set.json"), directory.join("set.json.new"));
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(&json)?;
        file.sync_all()?;
        fs::rename(&new, &path)
    });
    written.with_context(|| cannot("write", &path))
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::{cell::Cell, record::Outcome};
    use mq_measure::manifest::Software;

    const FILE: &str = r#"
        title = ""
        source = ""
        work.link = "s22/wifi"
        factors.loss = ["0%", "1%"]
        factors.transport = ["tls", "quic"]
        plot = { kind = "lines", metric = "latency_mean", x = "loss", series = "transport" }
    "#;

    fn set(directory: &Path) -> ResultSet {
        let file = directory.join("some.toml");
        fs::write(&file, FILE).unwrap();
        ResultSet::create(
            &directory.join("out"),
            Extent::Quick,
            &[file],
            manifest("1"),
        )
        .unwrap()
    }

    fn manifest(version: &str) -> Manifest {
        let software = Software {
            name: "mqbench".to_owned(),
            version: Some(version.to_owned()),
            revision: None,
        };
        Manifest::now(software.clone(), software, serde_json::Value::Null)
    }

    fn reopen(directory: &Path) -> ResultSet {
        ResultSet::reopen(directory, manifest("2")).unwrap()
    }

    fn record(repetition: u32) -> Record {
        Record {
            campaign: "some".to_owned(),
            levels: [("loss".to_owned(), "1%".to_owned())].into(),
            repetition,
            attempt: 1,
            seed: 7,
            cell: Cell::default(),
            outcome: Outcome {
                metrics: [("latency_mean".to_owned(), 1.0 / 3.0)].into(),
                ..Outcome::default()
            },
        }
    }

    #[test]
    fn records_survive_a_write_that_was_cut_off_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = set(folder.path());
        first.add(record(0)).unwrap();
        first.add(record(1)).unwrap();
        let file = records_file(first.directory(), "some");
        let whole = fs::read(&file).unwrap();
        let one = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for cut in (one..whole.len()).step_by(mq_testkit::nightly(13, 1)) {
            fs::write(&file, &whole[..cut]).unwrap();
            let mut again = reopen(first.directory());
            assert_eq!(again.records, first.records[..1], "{cut}");
            again.add(record(2)).unwrap();
            let last = ResultSet::load(first.directory()).unwrap();
            assert_eq!(last.records, again.records, "{cut}");
        }
    }

    #[test]
    fn records_may_be_compressed_and_added_to() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = set(folder.path());
        first.add(record(0)).unwrap();
        let file = records_file(first.directory(), "some");
        let packed = File::create(file.with_extension("jsonl.gz")).unwrap();
        let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::best());
        packed.write_all(&fs::read(&file).unwrap()).unwrap();
        packed.finish().unwrap();
        fs::remove_file(&file).unwrap();
        let mut again = reopen(first.directory());
        assert_eq!(again.records, first.records);
        again.add(record(1)).unwrap();
        let last = ResultSet::load(first.directory()).unwrap();
        assert_eq!(last.records, [record(0), record(1)]);
    }

    #[test]
    fn a_set_tells_which_programs_went_on_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = set(folder.path());
        for _ in 0..2 {
            reopen(first.directory());
        }
        let head = ResultSet::load(first.directory()).unwrap().head;
        assert_eq!(head.manifest, first.head.manifest);
        let versions = head
            .continued
            .iter()
            .map(|manifest| &manifest.program.version);
        assert!(versions.eq([&Some("2".to_owned()); 2]));
    }

    #[test]
    fn results_are_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let first = set(folder.path());
        let file = folder.path().join("some.toml");
        let again = ResultSet::create(first.directory(), Extent::Quick, &[file], manifest("1"));
        assert!(again.unwrap_err().to_string().contains("resume"));
        let missing = ResultSet::load(folder.path()).unwrap_err().to_string();
        assert!(missing.contains("no results in "), "{missing}");
    }
}
