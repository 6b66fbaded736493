//! Writing a log whose records outlive an abort of the program.

use std::fs::File;
use std::io::Write;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{LogMeta, Record};
use crate::Error;

/// A log is written out at least this often while records are appended.
///
/// So an abort costs at most the records of one second.
pub const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// A log is written out when so many bytes wait.
const BUFFER: usize = 64 * 1024;

/// A writer of a send or receive log, of [`SendRecord`](super::SendRecord)s or
/// [`ReceiveRecord`](super::ReceiveRecord)s.
///
/// The writer buffers whole lines and hands them to the operating system after [`FLUSH_EVERY`], or when 64 KiB
/// wait. Only [`append`](Self::append) looks whether it is time; call [`flush`](Self::flush) before a long
/// silence. A drop flushes too, but cannot report errors: end with [`finish`](Self::finish).
#[derive(Debug)]
pub struct LogWriter<R: Record> {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    flushed: Instant,
    records: PhantomData<R>,
}

impl<R: Record> LogWriter<R> {
    /// Creates the file, or replaces an existing one, and writes its first two lines.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(path: &Path, meta: &LogMeta) -> Result<Self, Error> {
        let file = File::create(path).map_err(Error::io(path))?;
        let head = format!("{}\n{}\n", meta.first_line(R::KIND), R::COLUMNS);
        let mut buffer = Vec::with_capacity(BUFFER + 256);
        buffer.extend_from_slice(head.as_bytes());
        let mut writer = Self {
            file,
            path: path.to_owned(),
            buffer,
            flushed: Instant::now(),
            records: PhantomData,
        };
        writer.flush()?;
        Ok(writer)
    }

    /// Appends a record.
    ///
    /// # Errors
    /// [`Error::Io`] if it was time to write and the write failed.
    pub fn append(&mut self, record: &R) -> Result<(), Error> {
        writeln!(self.buffer, "{record}").map_err(Error::io(&self.path))?;
        if self.buffer.len() >= BUFFER || self.flushed.elapsed() >= FLUSH_EVERY {
            self.flush()?;
        }
        Ok(())
    }

    /// Hands everything to the operating system, so that an abort of this program loses nothing.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.flushed = Instant::now();
        let written = self
            .file
            .write_all(&self.buffer)
            .map_err(Error::io(&self.path));
        self.buffer.clear();
        written
    }

    /// Writes the rest out.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(mut self) -> Result<(), Error> {
        self.flush()
    }
}

impl<R: Record> Drop for LogWriter<R> {
    fn drop(&mut self) {
        // A drop cannot return an error; `finish` does.
        let _ = self.flush();
    }
}
