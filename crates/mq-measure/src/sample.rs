//! Samples: the send and receive times of single messages, a run's vector of them, and its CSV.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{Error, table};

/// The column names of [`Samples::write_csv`].
pub const COLUMNS: &str = "seq,intended_ns,sent_ns,received_ns";

/// The times of one message, in nanoseconds on one clock: since the run's origin, or since the Unix epoch where two
/// logs were [joined](crate::log::join_topics).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The message's number in the run, from 0.
    pub seq: u64,
    /// Intended send time by the schedule; equal to `sent_ns` where there is no schedule.
    pub intended_ns: u64,
    /// Actual send time: the message is handed to the transport.
    pub sent_ns: u64,
    /// Time of the first arrival; `None` if the message never arrived.
    pub received_ns: Option<u64>,
}

impl Sample {
    /// Returns the latency from the intended send time to the arrival, so that a sender's delay counts too.
    ///
    /// `None` if the message was lost, or seems to have arrived before it was due, which happens only between
    /// two clocks.
    #[must_use]
    pub fn latency_intended_ns(&self) -> Option<u64> {
        self.received_ns?.checked_sub(self.intended_ns)
    }

    /// Returns the latency from the actual send time to the arrival: the application's one-way delay, S22 §5.1.
    ///
    /// `None` as for [`latency_intended_ns`](Self::latency_intended_ns).
    #[must_use]
    pub fn latency_sent_ns(&self) -> Option<u64> {
        self.received_ns?.checked_sub(self.sent_ns)
    }

    /// Returns `true` if the message seems to have arrived before it was sent, as clocks that differ can show it.
    #[must_use]
    pub fn is_negative(&self) -> bool {
        self.received_ns.is_some_and(|at| at < self.sent_ns)
    }
}

/// The samples of a run, in the order of their sending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Samples(pub Vec<Sample>);

impl Samples {
    /// Returns the latencies from the intended send times of all messages that arrived, in send order.
    #[must_use]
    pub fn latencies_intended_ns(&self) -> Vec<u64> {
        self.0
            .iter()
            .filter_map(Sample::latency_intended_ns)
            .collect()
    }

    /// Returns the latencies from the actual send times of all messages that arrived, in send order.
    #[must_use]
    pub fn latencies_sent_ns(&self) -> Vec<u64> {
        self.0.iter().filter_map(Sample::latency_sent_ns).collect()
    }

    /// Returns the samples with times since the Unix epoch, of times since an origin that was at `origin_ns`.
    #[must_use]
    pub fn since_epoch(&self, origin_ns: u64) -> Self {
        let samples = self.0.iter().map(|sample| Sample {
            intended_ns: origin_ns + sample.intended_ns,
            sent_ns: origin_ns + sample.sent_ns,
            received_ns: sample.received_ns.map(|received| origin_ns + received),
            ..*sample
        });
        samples.collect()
    }

    /// Writes `seq,intended_ns,sent_ns,received_ns`, one line a sample; the last cell of a lost message is
    /// empty.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn write_csv(&self, mut output: impl Write) -> std::io::Result<()> {
        writeln!(output, "{COLUMNS}")?;
        for Sample {
            seq,
            intended_ns,
            sent_ns,
            received_ns,
        } in &self.0
        {
            write!(output, "{seq},{intended_ns},{sent_ns},")?;
            match received_ns {
                Some(at) => writeln!(output, "{at}")?,
                None => writeln!(output)?,
            }
        }
        output.flush()
    }

    /// Reads what [`write_csv`](Self::write_csv) wrote; `name` is for messages.
    ///
    /// A last line that was cut off is left out.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Line`] or [`Error::Format`] if it is not such a table.
    pub fn read_csv(input: impl BufRead, name: &Path) -> Result<Self, Error> {
        let table = table::read::<4>(input, name, COLUMNS)?;
        let sample = |(line, [seq, intended, sent, received_ns]): (u64, table::Row<4>)| {
            Ok(Sample {
                seq: table::required(seq, "seq", name, line)?,
                intended_ns: table::required(intended, "intended_ns", name, line)?,
                sent_ns: table::required(sent, "sent_ns", name, line)?,
                received_ns,
            })
        };
        table.rows.into_iter().map(sample).collect()
    }

    /// Writes the CSV to a new file at `path`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let file = File::create(path).map_err(Error::io(path))?;
        self.write_csv(BufWriter::new(file))
            .map_err(Error::io(path))
    }

    /// Reads the CSV at `path`.
    ///
    /// # Errors
    /// As [`read_csv`](Self::read_csv).
    pub fn load(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io(path))?;
        Self::read_csv(BufReader::new(file), path)
    }
}

impl FromIterator<Sample> for Samples {
    fn from_iter<I: IntoIterator<Item = Sample>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Samples, Error> {
        Samples::read_csv(text.as_bytes(), Path::new("run.csv"))
    }

    #[test]
    fn lost_sample_has_an_empty_cell() {
        let samples = Samples(vec![Sample {
            seq: 7,
            intended_ns: 1,
            sent_ns: 2,
            received_ns: None,
        }]);
        let mut text = Vec::new();
        samples.write_csv(&mut text).unwrap();
        assert_eq!(text, b"seq,intended_ns,sent_ns,received_ns\n7,1,2,\n");
    }

    #[test]
    fn errors_name_file_and_line() {
        let head = "seq,intended_ns,sent_ns,received_ns\n";
        let error = |rest: &str| read(&format!("{head}{rest}")).unwrap_err().to_string();
        assert_eq!(
            error("1,2,x,4\n"),
            "run.csv:2: `x` is not a whole number below 2^64"
        );
        assert_eq!(error("1,2,3,4\n1,2\n"), "run.csv:3: 2 columns, should be 4");
        assert_eq!(error("1,2,3,4,5\n"), "run.csv:2: 5 columns, should be 4");
        assert_eq!(
            error(",2,3,4\n"),
            "run.csv:2: seq is empty, should be a whole number"
        );
        assert!(
            read("a,b\n")
                .unwrap_err()
                .to_string()
                .starts_with("run.csv:1: expected")
        );
        assert!(
            read("")
                .unwrap_err()
                .to_string()
                .starts_with("run.csv: expected a table")
        );
    }

    #[test]
    fn line_cut_off_by_an_abort_is_left_out() {
        let samples = read("seq,intended_ns,sent_ns,received_ns\n0,1,2,3\n1,2,3").unwrap();
        assert_eq!(samples.0.len(), 1);
    }

    #[test]
    fn missing_file_is_named() {
        let error = Samples::load(Path::new("/nonexistent/run.csv"))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("/nonexistent/run.csv: "), "{error}");
    }

    proptest! {
        #[test]
        fn csv_round_trips(rows: Vec<(u64, u64, u64, Option<u64>)>) {
            let samples: Samples = rows
                .into_iter()
                .map(|(seq, intended_ns, sent_ns, received_ns)| Sample {
                    seq, intended_ns, sent_ns, received_ns,
                })
                .collect();
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("run.csv");
            samples.save(&path).unwrap();
            prop_assert_eq!(Samples::load(&path).unwrap(), samples);
        }
    }
}
