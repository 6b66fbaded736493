//! The HdrHistogram interval log, version 2: what the histogram tools of other languages read.
//!
//! <https://github.com/HdrHistogram/HdrHistogram>, `HistogramLogWriter`: a line a histogram with
//! tag, start, length, maximum and the histogram itself, deflated, in base 64.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{
    IntervalLogWriterBuilder, IntervalLogWriterError, Tag,
};
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};

use super::LatencyRecorder;
use crate::Error;

/// A recorder and what to call it in a log.
#[derive(Clone, Copy, Debug)]
pub struct TaggedHistogram<'a> {
    /// The histogram's name, such as the transport's, without commas, spaces or line breaks.
    pub tag: &'a str,
    /// Start of the interval in which the latencies were recorded.
    pub start: SystemTime,
    /// Duration of that interval.
    pub duration: Duration,
    /// The latencies of the interval.
    pub recorder: &'a LatencyRecorder,
}

/// Writes an interval log; `name` is for messages. Maxima in the text are in milliseconds.
///
/// # Errors
/// [`Error::Io`]; [`Error::Encode`]; [`Error::Tag`] if a tag is not allowed: nothing is written then.
pub fn write_log(
    mut output: impl Write,
    name: &Path,
    histograms: &[TaggedHistogram<'_>],
) -> Result<(), Error> {
    let tags: Vec<Tag<'_>> = histograms
        .iter()
        .map(|entry| {
            Tag::new(entry.tag)
                .filter(|tag| !tag.is_empty())
                .ok_or_else(|| Error::Tag {
                    tag: entry.tag.to_owned(),
                })
        })
        .collect::<Result<_, _>>()?;
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder
        .add_comment("[Histogram log format version 1.3]")
        .add_comment("latencies in nanoseconds")
        .with_max_value_divisor(1e6);
    if let Some(first) = histograms.iter().map(|entry| entry.start).min() {
        builder.with_start_time(first);
    }
    let mut log = builder
        .begin_log_with(&mut output, &mut serializer)
        .map_err(Error::io(name))?;
    for (entry, tag) in histograms.iter().zip(tags) {
        let start = entry
            .start
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        log.write_histogram(entry.recorder.histogram(), start, entry.duration, Some(tag))
            .map_err(|error| match error {
                IntervalLogWriterError::IoError(source) => Error::io(name)(source),
                IntervalLogWriterError::SerializeError(problem) => Error::Encode {
                    tag: entry.tag.to_owned(),
                    problem: problem.to_string(),
                },
            })?;
    }
    output.flush().map_err(Error::io(name))
}

/// Encodes one histogram as text: the V2 format, deflated, in base 64, as a log has it in each line.
///
/// # Errors
/// [`Error::Encode`] if it cannot be encoded.
pub fn encode(recorder: &LatencyRecorder) -> Result<String, Error> {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(recorder.histogram(), &mut bytes)
        .map_err(|error| Error::Encode {
            tag: "histogram".to_owned(),
            problem: error.to_string(),
        })?;
    Ok(BASE64.encode(bytes))
}

/// Reads what [`encode`] returned; `None` for any other text.
#[must_use]
pub fn decode(text: &str) -> Option<Histogram<u64>> {
    let bytes = BASE64.decode(text).ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    fn name() -> &'static Path {
        Path::new("run.hlog")
    }

    #[test]
    fn log_round_trips_with_tags_and_counts() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let mut tcp = LatencyRecorder::new();
        let mut quic = LatencyRecorder::new();
        tcp.extend((1..500).map(|n| n * 1_000_000));
        quic.extend([250, 9_999_999_999]);
        let entry = |tag, recorder| TaggedHistogram {
            tag,
            start,
            duration: Duration::from_millis(2500),
            recorder,
        };
        let mut text = Vec::new();
        write_log(
            &mut text,
            name(),
            &[entry("tcp", &tcp), entry("quic", &quic)],
        )
        .unwrap();
        let read: Vec<_> = IntervalLogIterator::new(&text)
            .filter_map(|entry| match entry.unwrap() {
                LogEntry::Interval(interval) => Some(interval),
                _ => None,
            })
            .collect();
        assert_eq!(read.len(), 2);
        for (interval, (tag, recorder)) in read.iter().zip([("tcp", &tcp), ("quic", &quic)]) {
            assert_eq!(interval.tag().unwrap().as_str(), tag);
            let histogram = decode(interval.encoded_histogram()).unwrap();
            assert_eq!(&histogram, recorder.histogram());
            assert_eq!(interval.duration(), Duration::from_millis(2500));
            assert_eq!(interval.start_timestamp().as_secs(), 1_700_000_000);
        }
        // `HISTFAAA` is how every deflated version-2 histogram begins.
        assert!(String::from_utf8(text).unwrap().contains(",HISTFAAA"));
    }

    #[test]
    fn bad_tag_is_named_before_anything_is_written() {
        let recorder = LatencyRecorder::new();
        for tag in ["quic 0-rtt", "a,b", ""] {
            let entry = TaggedHistogram {
                tag,
                start: SystemTime::UNIX_EPOCH,
                duration: Duration::ZERO,
                recorder: &recorder,
            };
            let mut text = Vec::new();
            let error = write_log(&mut text, name(), &[entry]).unwrap_err();
            assert!(matches!(error, Error::Tag { .. }), "{error}");
            assert!(text.is_empty());
        }
    }

    #[test]
    fn a_histogram_round_trips_as_text() {
        let mut recorder = LatencyRecorder::new();
        recorder.extend((1..500).map(|n| n * 777_777));
        let text = encode(&recorder).unwrap();
        assert!(text.starts_with("HISTFAAA"), "{text}");
        assert_eq!(decode(&text).as_ref(), Some(recorder.histogram()));
        assert_eq!(decode(&text[1..]), None);
        assert_eq!(decode("no histogram"), None);
    }
}
