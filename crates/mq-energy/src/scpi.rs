//! SCPI over TCP: lines, answers and blocks, each with a deadline.
//!
//! An instrument answers questions only. The question `SYST:ERR?` shows whether it took a command. An answer
//! is a line, or a block with its length in front (IEEE 488.2, definite length arbitrary block: `#`, the number
//! of digits, so many digits, so many bytes).

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::Error;

/// TCP port of SCPI on Keysight's and most other instruments.
pub const PORT: u16 = 5025;

/// Length, in bytes, above which an answer is taken as one without an end.
const LONGEST_LINE: usize = 64 * 1024;

/// Greatest number of errors that are read from an instrument's queue: more than it holds (20 in a Truevolt).
const MOST_ERRORS: usize = 32;

/// A connection to an instrument.
///
/// After [`Error::Lost`] answers may belong to earlier questions: connect again.
#[derive(Debug)]
pub struct Scpi {
    stream: TcpStream,
    instrument: String,
    deadline: Duration,
    /// Bytes that have come and were not read yet.
    received: Vec<u8>,
}

impl Scpi {
    /// Connects to `HOST:PORT`, or to `HOST` at port 5025. Each answer may take as long as `deadline`.
    ///
    /// # Errors
    /// [`Error::Lost`] if nothing listens there.
    pub fn connect(address: &str, deadline: Duration) -> Result<Self, Error> {
        let instrument = with_port(address);
        let lost = |error: std::io::Error| Error::Lost {
            instrument: instrument.clone(),
            problem: format!("cannot connect: {error}"),
        };
        let mut failed = None;
        for address in instrument.to_socket_addrs().map_err(lost)? {
            match TcpStream::connect_timeout(&address, deadline) {
                Ok(stream) => {
                    // A question is one small packet, and its sender waits for the answer.
                    stream.set_nodelay(true).map_err(lost)?;
                    stream.set_write_timeout(Some(deadline)).map_err(lost)?;
                    return Ok(Self {
                        stream,
                        instrument,
                        deadline,
                        received: Vec::new(),
                    });
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(lost(failed.unwrap_or_else(|| ErrorKind::NotFound.into())))
    }

    /// Returns the instrument's address.
    #[must_use]
    pub fn instrument(&self) -> &str {
        &self.instrument
    }

    /// Sends a command that has no answer.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn send(&mut self, command: &str) -> Result<(), Error> {
        let line = format!("{command}\n");
        let sent = self.stream.write_all(line.as_bytes());
        sent.map_err(|error| self.lost(&format!("{command} cannot be sent: {error}")))
    }

    /// Sends a command, and asks whether the instrument took it.
    ///
    /// # Errors
    /// [`Error::Lost`]; [`Error::Instrument`] with the instrument's own words.
    pub fn command(&mut self, command: &str) -> Result<(), Error> {
        self.send(command)?;
        let errors = self.errors()?;
        if errors.is_empty() {
            return Ok(());
        }
        Err(self.refused(command, errors.join("; ")))
    }

    /// Asks a question that has one line as its answer.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn query(&mut self, question: &str) -> Result<String, Error> {
        self.send(question)?;
        let until = Instant::now() + self.deadline;
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<_> = self.received.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim().to_owned());
            }
            if self.received.len() > LONGEST_LINE {
                return Err(self.lost(&format!("the answer to {question} has no end")));
            }
            self.receive(question, until)?;
        }
    }

    /// Asks a question that has a whole number as its answer, such as `+215`.
    ///
    /// # Errors
    /// [`Error::Lost`]; [`Error::Instrument`] if the answer is not a whole number.
    pub fn query_number(&mut self, question: &str) -> Result<u64, Error> {
        let answer = self.query(question)?;
        let number = answer.trim_start_matches('+').parse();
        number.map_err(|_| self.refused(question, format!("`{answer}` is no whole number")))
    }

    /// Asks a question that has a block as its answer, and hands each piece to `piece` as soon as it has come,
    /// so that a lost connection loses no piece.
    ///
    /// The deadline holds for each piece.
    ///
    /// # Errors
    /// [`Error::Lost`]; [`Error::Instrument`] if the answer is not a block; the error of `piece`.
    pub fn query_block(
        &mut self,
        question: &str,
        mut piece: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.send(question)?;
        let mut left = self.block_length(question)?;
        while left > 0 {
            if self.received.is_empty() {
                self.receive(question, Instant::now() + self.deadline)?;
            }
            let count = self.received.len().min(left);
            piece(&self.received[..count])?;
            self.received.drain(..count);
            left -= count;
        }
        // A line end follows the block.
        let until = Instant::now() + self.deadline;
        while self.received.is_empty() {
            self.receive(question, until)?;
        }
        match self.received.remove(0) {
            b'\n' => Ok(()),
            _ => Err(self.lost(&format!("the answer to {question} is longer than it says"))),
        }
    }

    /// Reads the errors in the instrument's queue, oldest first.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn errors(&mut self) -> Result<Vec<String>, Error> {
        let mut errors = Vec::new();
        while errors.len() < MOST_ERRORS {
            // `+0,"No error"`, or `-113,"Undefined header"`.
            let answer = self.query("SYST:ERR?")?;
            let number = answer.split(',').next().unwrap_or_default();
            if number.trim_start_matches('+').parse::<i64>() == Ok(0) {
                break;
            }
            errors.push(answer);
        }
        Ok(errors)
    }

    /// Takes the beginning of the next block, and returns the block's length.
    fn block_length(&mut self, question: &str) -> Result<usize, Error> {
        let until = Instant::now() + self.deadline;
        loop {
            match block_head(&self.received) {
                Head::Block { begins, length } => {
                    self.received.drain(..begins);
                    return Ok(length);
                }
                Head::Incomplete => self.receive(question, until)?,
                Head::Other => {
                    // The rest of the line, if it has come, says more.
                    let answer = String::from_utf8_lossy(&self.received);
                    let answer = answer.lines().next().unwrap_or_default().to_owned();
                    return Err(self.refused(question, format!("`{answer}` is no block")));
                }
            }
        }
    }

    /// Waits for more bytes, until `until` at most.
    fn receive(&mut self, question: &str, until: Instant) -> Result<(), Error> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited = self.deadline;
                return Err(self.lost(&format!("no answer to {question} within {waited:?}")));
            }
            let ready = self.stream.set_read_timeout(Some(left));
            let count = ready.and_then(|()| self.stream.read(&mut buffer));
            match count {
                Ok(0) => return Err(self.lost("it closed the connection")),
                Ok(count) => {
                    self.received.extend_from_slice(&buffer[..count]);
                    return Ok(());
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(self.lost(&error.to_string())),
            }
        }
    }

    fn lost(&self, problem: &str) -> Error {
        Error::Lost {
            instrument: self.instrument.clone(),
            problem: problem.to_owned(),
        }
    }

    fn refused(&self, command: &str, problem: String) -> Error {
        Error::Instrument {
            instrument: self.instrument.clone(),
            command: command.to_owned(),
            problem,
        }
    }
}

/// Adds the port to an address without one, for `HOST:PORT`; an IPv6 address that has a port is in brackets.
fn with_port(address: &str) -> String {
    let has_port = match address.rsplit_once(':') {
        None => false,
        Some((host, _)) => !host.contains(':') || host.ends_with(']'),
    };
    if has_port {
        return address.to_owned();
    }
    if address.contains(':') && !address.starts_with('[') {
        return format!("[{address}]:{PORT}");
    }
    format!("{address}:{PORT}")
}

/// Head of an answer, as far as it has been received.
#[derive(Debug, PartialEq)]
enum Head {
    /// An answer with a block of `length` bytes, which begins at the byte `begins`.
    Block { begins: usize, length: usize },
    /// An answer of which too little has been received to tell.
    Incomplete,
    /// An answer with something else.
    Other,
}

fn block_head(answer: &[u8]) -> Head {
    let digits = match answer {
        [] | [b'#'] => return Head::Incomplete,
        [b'#', digit @ b'1'..=b'9', ..] => usize::from(digit - b'0'),
        _ => return Head::Other,
    };
    let begins = 2 + digits;
    let Some(length) = answer.get(2..begins) else {
        return Head::Incomplete;
    };
    let length = std::str::from_utf8(length).ok();
    match length.and_then(|length| length.parse().ok()) {
        Some(length) => Head::Block { begins, length },
        None => Head::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_begins_with_its_length() {
        // The manual's own example.
        let answer = b"#247-4.98748741E-01,-4.35163427E-01,-7.41859188E-01";
        let head = Head::Block {
            begins: 4,
            length: 47,
        };
        assert_eq!(block_head(answer), head);
        assert_eq!(answer.len(), 4 + 47);
        let empty = Head::Block {
            begins: 3,
            length: 0,
        };
        assert_eq!(block_head(b"#10\n"), empty);
        for beginning in [&b""[..], b"#", b"#3", b"#312"] {
            assert_eq!(block_head(beginning), Head::Incomplete, "{beginning:?}");
        }
        for other in [&b"+1.2E-01\n"[..], b"#0123", b"#A", b"#2x7..."] {
            assert_eq!(block_head(other), Head::Other, "{other:?}");
        }
    }

    #[test]
    fn a_port_is_added_where_there_is_none() {
        for (address, whole) in [
            ("dmm", "dmm:5025"),
            ("192.168.1.4", "192.168.1.4:5025"),
            ("dmm:7000", "dmm:7000"),
            ("fe80::1", "[fe80::1]:5025"),
            ("[fe80::1]", "[fe80::1]:5025"),
            ("[fe80::1]:7000", "[fe80::1]:7000"),
        ] {
            assert_eq!(with_port(address), whole);
        }
    }

    #[test]
    fn a_refused_connection_is_one_line() {
        // Bound and closed again: no program listens.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error = Scpi::connect(&address, Duration::from_secs(1)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Lost { .. }), "{text}");
        assert!(
            text.starts_with(&format!("{address}: cannot connect: ")),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
    }
}
