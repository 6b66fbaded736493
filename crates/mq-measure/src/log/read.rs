//! Reading a log back.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::{LogMeta, ReceiveRecord, Record, SendRecord};
use crate::{Error, table};

/// A log that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadLog<R> {
    /// The log's first line: run, clock and host.
    pub meta: LogMeta,
    /// The log's records, in the order of the file.
    pub records: Vec<R>,
    /// `true` if the last line was cut off because the writer was aborted; the line is left out.
    pub truncated: bool,
}

/// Reads a send log.
///
/// # Errors
/// [`Error::Io`]; [`Error::Format`] if it is not a send log; [`Error::Line`].
pub fn read_send_log(path: &Path) -> Result<ReadLog<SendRecord>, Error> {
    parse_send_log(open(path)?, path)
}

/// Reads a send log from anywhere; `name` is for messages.
///
/// # Errors
/// As [`read_send_log`].
pub fn parse_send_log(input: impl BufRead, name: &Path) -> Result<ReadLog<SendRecord>, Error> {
    parse(input, name, |line, [seq, intended, sent]| {
        Ok(SendRecord {
            seq: table::required(seq, "seq", name, line)?,
            intended_ns: table::required(intended, "intended_ns", name, line)?,
            sent_ns: table::required(sent, "sent_ns", name, line)?,
        })
    })
}

/// Reads a receive log.
///
/// # Errors
/// [`Error::Io`]; [`Error::Format`] if it is not a receive log; [`Error::Line`].
pub fn read_receive_log(path: &Path) -> Result<ReadLog<ReceiveRecord>, Error> {
    parse_receive_log(open(path)?, path)
}

/// Reads a receive log from anywhere; `name` is for messages.
///
/// # Errors
/// As [`read_receive_log`].
pub fn parse_receive_log(
    input: impl BufRead,
    name: &Path,
) -> Result<ReadLog<ReceiveRecord>, Error> {
    parse(input, name, |line, [seq, received]| {
        Ok(ReceiveRecord {
            seq: table::required(seq, "seq", name, line)?,
            received_ns: table::required(received, "received_ns", name, line)?,
        })
    })
}

fn open(path: &Path) -> Result<BufReader<File>, Error> {
    Ok(BufReader::new(File::open(path).map_err(Error::io(path))?))
}

fn parse<R: Record, const N: usize>(
    input: impl BufRead,
    path: &Path,
    record: impl Fn(u64, table::Row<N>) -> Result<R, Error>,
) -> Result<ReadLog<R>, Error> {
    let table = table::read::<N>(input, path, R::COLUMNS)?;
    let first = table.comments.first().map_or("", String::as_str);
    let meta = LogMeta::parse(first, R::KIND).ok_or_else(|| Error::Format {
        path: path.to_owned(),
        expected: format!("a first line `# mq {} v1 run=...`", R::KIND),
        found: if first.is_empty() {
            "none".to_owned()
        } else {
            format!("`# {first}`")
        },
    })?;
    let records = table
        .rows
        .into_iter()
        .map(|(line, row)| record(line, row))
        .collect::<Result<_, _>>()?;
    Ok(ReadLog {
        meta,
        records,
        truncated: table.truncated,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::LogWriter;
    use super::*;

    #[test]
    fn logs_round_trip() {
        let directory = tempfile::tempdir().unwrap();
        let (sent, received) = (
            directory.path().join("s.csv"),
            directory.path().join("r.csv"),
        );
        let meta = LogMeta::new("a run", "pub");
        let sends: Vec<_> = (0..5000)
            .map(|seq| SendRecord {
                seq,
                intended_ns: seq * 10,
                sent_ns: seq * 10 + 1,
            })
            .collect();
        let mut writer = LogWriter::create(&sent, &meta).unwrap();
        for record in &sends {
            writer.append(record).unwrap();
        }
        writer.finish().unwrap();
        let log = read_send_log(&sent).unwrap();
        assert_eq!(
            log,
            ReadLog {
                meta: meta.clone(),
                records: sends,
                truncated: false
            }
        );

        let mut writer = LogWriter::create(&received, &meta).unwrap();
        writer
            .append(&ReceiveRecord {
                seq: 3,
                received_ns: 9,
            })
            .unwrap();
        drop(writer);
        let log = read_receive_log(&received).unwrap();
        assert_eq!(
            log.records,
            [ReceiveRecord {
                seq: 3,
                received_ns: 9
            }]
        );
    }

    #[test]
    fn records_of_an_aborted_writer_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.csv");
        let mut writer = LogWriter::create(&path, &LogMeta::new("r", "h")).unwrap();
        writer
            .append(&SendRecord {
                seq: 0,
                intended_ns: 1,
                sent_ns: 2,
            })
            .unwrap();
        writer.flush().unwrap();
        writer
            .append(&SendRecord {
                seq: 1,
                intended_ns: 1,
                sent_ns: 2,
            })
            .unwrap();
        std::mem::forget(writer);
        assert_eq!(read_send_log(&path).unwrap().records.len(), 1);
    }

    #[test]
    fn line_cut_off_is_left_out_and_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.csv");
        fs::write(
            &path,
            "# mq receive-log v1 run=r\nseq,received_ns\n0,17\n1,1",
        )
        .unwrap();
        let log = read_receive_log(&path).unwrap();
        assert!(log.truncated);
        assert_eq!(
            log.records,
            [ReceiveRecord {
                seq: 0,
                received_ns: 17
            }]
        );
    }

    #[test]
    fn errors_name_file_and_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.csv");
        let error = |text: &str| {
            fs::write(&path, text).unwrap();
            read_receive_log(&path).unwrap_err().to_string()
        };
        let at = path.display().to_string();
        assert_eq!(
            error("# mq receive-log v1 run=r\nseq,received_ns\n0,1\n1,x\n"),
            format!("{at}:4: `x` is not a whole number below 2^64")
        );
        assert_eq!(
            error("seq,received_ns\n"),
            format!("{at}: expected a first line `# mq receive-log v1 run=...`, found none")
        );
        assert!(error("# mq send-log v1 run=r\nseq,intended_ns,sent_ns\n").starts_with(&at));
    }
}
