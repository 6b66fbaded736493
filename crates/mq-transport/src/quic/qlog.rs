//! Traces of QUIC connections in the form of qlog.

use std::{
    collections::VecDeque,
    fmt,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use quinn::{QlogConfig, QlogStream};
use serde_json::{Map, Value, json};

use crate::{Error, sync::lock};

/// Trace of QUIC connections, or of a sample of them, into a directory: a file each, `PROCESS-SIDE-NUMBER.sqlog`,
/// as qlog 0.3 in JSON-SEQ (draft-ietf-quic-qlog-main-schema-02; RFC 7464), which qvis opens.
///
/// Quinn's own records are corrected on the way: round-trip times are in milliseconds, the vantage point
/// is named, times have a reference and an order, a packet's length stands where qlog has it, all
/// events are of one group, and an unused slow-start threshold is left out. An event of our own,
/// `mq:datagram_repeated`, has the length of a datagram that was sent [again](crate::Repeat) and the
/// milliseconds since the first time. Clones share their limits: give one to all listeners.
#[derive(Clone, Debug)]
pub struct Qlog {
    directory: PathBuf,
    limits: Option<QlogLimits>,
    traces: Arc<Mutex<Traces>>,
}

/// Bounds on the disk space and the rate of a [sample](Qlog::sample).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QlogLimits {
    /// Files that are written at a time, and also complete files that are kept; the oldest is removed.
    /// Default 50.
    pub files: usize,
    /// Bytes of a file; it ends with the last event that fits. Default 4 MiB, some 20,000 packets:
    /// with 50 files and 50 more complete ones that is 400 MiB at most.
    pub bytes: u64,
    /// The shortest time from the beginning of one trace to the next. Default 1 s, so that the sample
    /// does not consist of one crowd of clients.
    pub interval: Duration,
}

impl Default for QlogLimits {
    fn default() -> Self {
        Self {
            files: 50,
            bytes: 4 * 1024 * 1024,
            interval: Duration::from_secs(1),
        }
    }
}

/// End of the names of traces.
const EXTENSION: &str = "sqlog";

/// Files of a sample.
#[derive(Debug, Default)]
struct Traces {
    last_began: Option<Instant>,
    open: usize,
    complete: VecDeque<PathBuf>,
    has_failed: bool,
}

impl Traces {
    /// Takes the complete traces that earlier processes have left in a directory, the oldest first.
    fn take_up(&mut self, directory: &Path) {
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut found: Vec<_> = files
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|end| end == EXTENSION))
            .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
            .collect();
        found.sort();
        self.complete
            .extend(found.into_iter().map(|(_, path)| path));
    }

    /// Removes the oldest complete traces beyond this number.
    fn trim(&mut self, files: usize) {
        while self.complete.len() > files
            && let Some(oldest) = self.complete.pop_front()
        {
            // The file may have been moved away.
            let _ = fs::remove_file(oldest);
        }
    }
}

impl Qlog {
    /// Traces every connection into `directory`, which is made if it is missing. A connection whose
    /// file cannot be made fails. For measurements.
    #[must_use]
    pub fn all(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            limits: None,
            traces: Arc::default(),
        }
    }

    /// Traces a sample of the connections within `limits`. A connection whose file cannot be made
    /// goes on without a trace, and the log says so once. The directory belongs to this sample alone: traces of earlier
    /// processes count, and the oldest are removed. For servers.
    #[must_use]
    pub fn sample(directory: impl Into<PathBuf>, limits: QlogLimits) -> Self {
        Self {
            limits: Some(limits),
            ..Self::all(directory)
        }
    }

    /// Begins a trace, if the new connection is to be traced; `side` is `client` or `server`.
    pub(crate) fn begin(&self, side: &'static str) -> Result<Option<BegunTrace>, Error> {
        let Some(limits) = self.limits else {
            return self.open(side, u64::MAX);
        };
        let now = Instant::now();
        {
            let mut traces = lock(&self.traces);
            let is_soon = traces
                .last_began
                .is_some_and(|last| now.saturating_duration_since(last) < limits.interval);
            if is_soon || traces.open >= limits.files {
                return Ok(None);
            }
            if traces.last_began.replace(now).is_none() {
                traces.take_up(&self.directory);
                traces.trim(limits.files);
            }
        }
        match self.open(side, limits.bytes) {
            Err(error) => {
                self.note_failure(&error);
                Ok(None)
            }
            opened => opened,
        }
    }

    /// Logs the first failure.
    fn note_failure(&self, error: &dyn fmt::Display) {
        if !std::mem::replace(&mut lock(&self.traces).has_failed, true) {
            tracing::warn!(%error, "qlog: cannot write traces");
        }
    }

    fn open(&self, side: &'static str, room: u64) -> Result<Option<BegunTrace>, Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { what, path, source }
        };
        let directory = &self.directory;
        fs::create_dir_all(directory).map_err(failed("qlog directory", directory))?;
        let (number, path, file) = loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{side}-{number}.{EXTENSION}", std::process::id());
            let path = directory.join(name);
            match File::create_new(&path) {
                // An earlier process had the same number, as in a container.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    let file = made.map_err(failed("qlog", &path))?;
                    break (number, path, file);
                }
            }
        };
        lock(&self.traces).open += 1;
        let began = Instant::now();
        let notes = Notes(Arc::new(Mutex::new(Corrector {
            file: BufWriter::new(file),
            side,
            began,
            record: Vec::new(),
            group: None,
            time: 0.0,
            room,
            trace: Trace {
                qlog: self.clone(),
                path,
            },
        })));
        let mut config = QlogConfig::default();
        config.start_time(began).writer(Box::new(notes.clone()));
        config.title(Some(format!("mq {side} {number}")));
        let stream = config.into_stream();
        Ok(stream.map(|stream| BegunTrace { stream, notes }))
    }
}

/// A connection's trace.
pub(crate) struct BegunTrace {
    /// Stream into which quinn writes its events.
    pub(crate) stream: QlogStream,
    pub(crate) notes: Notes,
}

/// Handle with which this crate adds its own events to a trace.
#[derive(Clone)]
pub(crate) struct Notes(Arc<Mutex<Corrector>>);

impl Notes {
    /// Records that a datagram of `length` bytes was sent again, `after` the first time.
    pub(super) fn repeated(&self, length: usize, after: Duration) {
        let mut corrector = lock(&self.0);
        let time = corrector.began.elapsed().as_secs_f64() * 1e3;
        let mut event = Map::new();
        event.insert("time".into(), json!(time));
        event.insert("name".into(), json!("mq:datagram_repeated"));
        let after = after.as_secs_f64() * 1e3;
        event.insert(
            "data".into(),
            json!({ "raw": { "length": length }, "after": after }),
        );
        event.insert("group_id".into(), json!(""));
        corrector.correct_event(&mut event);
        // A full disk ends the trace, not the connection.
        let _ = corrector.put(Value::Object(event).to_string().as_bytes());
    }
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notes").finish_non_exhaustive()
    }
}

impl Write for Notes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        lock(&self.0).flush()
    }
}

/// A file of a [`Qlog`], which counts until it is dropped.
struct Trace {
    qlog: Qlog,
    path: PathBuf,
}

impl Drop for Trace {
    fn drop(&mut self) {
        let mut traces = lock(&self.qlog.traces);
        traces.open -= 1;
        let Some(limits) = self.qlog.limits else {
            return;
        };
        traces.complete.push_back(std::mem::take(&mut self.path));
        traces.trim(limits.files);
    }
}

/// Writer that corrects quinn's records, one by one, and writes them to the file.
struct Corrector {
    file: BufWriter<File>,
    side: &'static str,
    /// Start of the trace, to which its times are relative.
    began: Instant,
    /// The incomplete record at the end; a record is some hundred bytes long.
    record: Vec<u8>,
    /// Quinn's name of the connection in the first event. Quinn changes it when the server has chosen an
    /// identifier, and readers would see two connections.
    group: Option<Value>,
    /// Time of the last event, so that none is earlier than the one before: qvis needs them in order.
    time: f64,
    /// Bytes that the file may still grow.
    room: u64,
    /// Declared after the file, which is complete when the trace is dropped.
    trace: Trace,
}

/// Byte that begins a JSON text sequence's record (RFC 7464 §2.2).
const RECORD_SEPARATOR: u8 = 0x1e;

impl Write for Corrector {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.record.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            if let Err(error) = self.end_record() {
                // A full disk ends the trace. Quinn would log an error for each event.
                self.room = 0;
                self.trace.qlog.note_failure(&error);
            }
        }
        self.record.extend_from_slice(rest);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Corrector {
    fn end_record(&mut self) -> io::Result<()> {
        let record = std::mem::take(&mut self.record);
        let json = record.strip_prefix(&[RECORD_SEPARATOR]).unwrap_or(&record);
        let Ok(Value::Object(mut record)) = serde_json::from_slice(json) else {
            // A record of a newer quinn is written as it is.
            return self.put(json);
        };
        if let Some(Value::Object(trace)) = record.get_mut("trace") {
            correct_head(trace, self.side);
        } else {
            self.correct_event(&mut record);
        }
        self.put(Value::Object(record).to_string().as_bytes())
    }

    fn put(&mut self, json: &[u8]) -> io::Result<()> {
        let length = json.len() as u64 + 2;
        if length > self.room {
            // No smaller record behind it either, which would leave a gap.
            self.room = 0;
            return Ok(());
        }
        self.room -= length;
        self.file.write_all(&[RECORD_SEPARATOR])?;
        self.file.write_all(json)?;
        self.file.write_all(b"\n")
    }

    fn correct_event(&mut self, event: &mut Map<String, Value>) {
        if let Some(group) = event.get_mut("group_id") {
            *group = self.group.get_or_insert_with(|| group.clone()).clone();
        }
        if let Some(time) = event.get("time").and_then(Value::as_f64) {
            self.time = self.time.max(time);
            event.insert("time".into(), json!(self.time));
        }
        let Some(Value::Object(data)) = event.get_mut("data") else {
            return;
        };
        // A packet's whole length is not its header's.
        let header = data.get_mut("header").and_then(Value::as_object_mut);
        if let Some(length) = header.and_then(|header| header.remove("length")) {
            data.insert("raw".into(), json!({ "length": length }));
        }
        for name in ["min_rtt", "smoothed_rtt", "latest_rtt", "rtt_variance"] {
            if let Some(value) = data.get_mut(name)
                && let Some(seconds) = value.as_f64()
            {
                *value = json!(seconds * 1e3);
            }
        }
        if data.get("ssthresh") == Some(&json!(u64::MAX)) {
            data.remove("ssthresh");
        }
    }
}

/// Writes the side of the trace into its head, and the reference of its times, which are in milliseconds as in qlog.
fn correct_head(trace: &mut Map<String, Value>, side: &str) {
    trace.insert(
        "vantage_point".into(),
        json!({ "name": "mq", "type": side }),
    );
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let reference = since.map_or(0.0, |since| since.as_secs_f64() * 1e3);
    trace.insert(
        "common_fields".into(),
        json!({ "time_format": "relative", "reference_time": reference }),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_sample_is_bounded_in_files_at_a_time_and_in_files_kept() {
        let directory = tempfile::tempdir().unwrap();
        let limits = QlogLimits {
            files: 2,
            interval: Duration::ZERO,
            ..QlogLimits::default()
        };
        let qlog = Qlog::sample(directory.path(), limits);
        // Clones count together.
        let begin = || qlog.clone().begin("server").unwrap();
        for _ in 0..3 {
            let open = [begin(), begin(), begin()];
            assert_eq!(open.map(|stream| stream.is_some()), [true, true, false]);
        }
        assert_eq!(files(directory.path()), 2);
    }

    #[test]
    fn a_sample_begins_no_trace_right_after_another() {
        let directory = tempfile::tempdir().unwrap();
        let qlog = Qlog::sample(directory.path(), QlogLimits::default());
        assert!(qlog.begin("server").unwrap().is_some());
        assert!(qlog.begin("server").unwrap().is_none());
    }

    #[test]
    fn a_sample_counts_the_traces_of_earlier_processes_and_overwrites_none() {
        let directory = tempfile::tempdir().unwrap();
        let mine = std::process::id();
        for number in 0..200 {
            let name = format!("{mine}-server-{number}.{EXTENSION}");
            fs::write(directory.path().join(name), "earlier").unwrap();
        }
        fs::write(directory.path().join("notes"), "another's").unwrap();
        let limits = QlogLimits {
            files: 3,
            ..QlogLimits::default()
        };
        let qlog = Qlog::sample(directory.path(), limits);
        let trace = qlog.begin("server").unwrap();
        assert!(trace.is_some());
        let left = || fs::read_dir(directory.path()).unwrap().flatten();
        let earlier = left().filter(|file| fs::read(file.path()).unwrap() == b"earlier");
        assert_eq!(earlier.count(), 3);
        drop(trace);
        assert_eq!(left().count(), 3 + 1, "three traces, and what is no trace");
    }

    #[test]
    fn a_sample_that_cannot_be_written_refuses_no_connection() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let nowhere = file.path().join("folder");
        let sample = Qlog::sample(&nowhere, QlogLimits::default());
        assert!(sample.begin("server").unwrap().is_none());
        assert!(Qlog::all(&nowhere).begin("client").is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_ends_a_trace_without_an_error_for_each_event() {
        let qlog = Qlog::all("traces");
        lock(&qlog.traces).open += 1;
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut corrector = Corrector {
            file: BufWriter::new(full),
            side: "client",
            began: Instant::now(),
            record: Vec::new(),
            group: None,
            time: 0.0,
            room: u64::MAX,
            trace: Trace {
                qlog: qlog.clone(),
                path: PathBuf::new(),
            },
        };
        let event = format!("\u{1e}{{\"name\":\"{}\"}}\n", "x".repeat(5_000));
        for _ in 0..10 {
            corrector.write_all(event.as_bytes()).unwrap();
        }
        assert_eq!(corrector.room, 0);
        assert!(lock(&qlog.traces).has_failed);
    }

    #[test]
    fn a_record_is_corrected_however_it_is_written_and_none_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let event = r#"{"time":1.5,"name":"recovery:metrics_updated","data":{"latest_rtt":0.0205,
            "rtt_variance":0.5,"ssthresh":18446744073709551615,"bytes_in_flight":7},"group_id":"G"}"#;
        let event = event.replace('\n', "");
        let text = format!("\u{1e}{}\n\u{1e}{event}\n", event.replace('G', "first")).repeat(2);
        for pieces in [1, 7, text.len()] {
            let qlog = Qlog::all(directory.path());
            lock(&qlog.traces).open += 1;
            let mut corrector = Corrector {
                file: BufWriter::new(File::create(&path).unwrap()),
                side: "client",
                began: Instant::now(),
                record: Vec::new(),
                group: None,
                time: 0.0,
                room: 350,
                trace: Trace {
                    qlog: qlog.clone(),
                    path: path.clone(),
                },
            };
            for piece in text.as_bytes().chunks(pieces) {
                corrector.write_all(piece).unwrap();
            }
            drop(corrector);
            let written = fs::read_to_string(&path).unwrap();
            assert!(written.len() <= 350);
            let records: Vec<Value> = written
                .lines()
                .map(|line| serde_json::from_str(line.strip_prefix('\u{1e}').unwrap()).unwrap())
                .collect();
            assert_eq!(records.len(), 2, "what fits, and no half of another");
            for record in records {
                assert_eq!(record["group_id"], "first");
                assert_eq!(record["time"], 1.5);
                let data = &record["data"];
                assert_eq!(
                    (&data["latest_rtt"], &data["rtt_variance"]),
                    (&json!(20.5), &json!(500.0))
                );
                assert_eq!(data.get("ssthresh"), None);
                assert_eq!(data["bytes_in_flight"], 7);
            }
        }
    }
}
