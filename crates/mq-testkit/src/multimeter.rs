//! A simulated multimeter: SCPI on TCP as Keysight's 34461A and 34465A speak it.

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, ErrorKind, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Interval at which a connection's thread checks whether it has to end.
const LOOK: Duration = Duration::from_millis(20);

/// Type designation of the multimeter that is simulated, as its maker names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultimeterModel {
    /// 34461A: a type without timer and aperture, which holds 10 000 readings.
    K34461A,
    /// 34465A: a type with timer and aperture, which holds 50 000 readings.
    K34465A,
}

impl MultimeterModel {
    fn identity(self) -> &'static str {
        match self {
            Self::K34461A => {
                "Keysight Technologies,34461A,MY53200001,A.02.08-02.37-02.08-00.49-01-01"
            }
            Self::K34465A => {
                "Keysight Technologies,34465A,MY54500001,A.02.14-02.40-02.14-00.49-03-01"
            }
        }
    }

    fn memory(self) -> u64 {
        match self {
            Self::K34461A => 10_000,
            Self::K34465A => 50_000,
        }
    }
}

/// A simulated multimeter on loopback.
///
/// Takes readings in real time, as its settings say, of a current that is a function of the time since
/// the trigger. Readings stay in its memory until `R?` fetches them. In a full memory a new reading
/// replaces the oldest. The multimeter goes on when a connection is lost.
#[derive(Debug)]
pub struct Multimeter {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    model: MultimeterModel,
    current_a: Box<dyn Fn(f64) -> f64 + Send>,
    memory: u64,
    errors: VecDeque<String>,
    aperture: Duration,
    interval: Duration,
    delay: Duration,
    count: u64,
    /// `true` after INIT, before the trigger.
    armed: bool,
    triggered: Option<Instant>,
    /// Number of readings that had been taken at the stop.
    stopped_at: Option<u64>,
    /// Number of readings that have left the memory.
    removed: u64,
    overflowed: bool,
    heard: Vec<String>,
    break_off: VecDeque<usize>,
    unheard: VecDeque<String>,
    refused: Option<(String, String)>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("model", &self.model)
            .field("removed", &self.removed)
            .finish_non_exhaustive()
    }
}

/// Reply that the simulated multimeter sends back for a command.
enum Reply {
    Nothing,
    Line(String),
    /// A block, and the number of its bytes after which the connection is closed.
    Block(String, Option<usize>),
    /// The connection is closed.
    Close,
}

impl Multimeter {
    /// Starts a multimeter of the current, in ampere, at a time in seconds after the trigger.
    ///
    /// # Panics
    /// If loopback cannot be listened on.
    #[must_use]
    pub fn start(model: MultimeterModel, current_a: impl Fn(f64) -> f64 + Send + 'static) -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), model, current_a)
    }

    /// Starts a multimeter at a given address, so that it can come back.
    ///
    /// # Panics
    /// If it cannot listen there.
    #[must_use]
    pub fn start_at(
        address: SocketAddr,
        model: MultimeterModel,
        current_a: impl Fn(f64) -> f64 + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("the address can be listened at");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(Mutex::new(State::new(model, Box::new(current_a))));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = std::thread::spawn(move || accept(&listener, &shared, &stopped));
        Self {
            address,
            state,
            stop,
            thread: Some(thread),
        }
    }

    /// Returns the address at which the multimeter listens.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Makes its memory hold so many readings.
    pub fn set_memory(&self, readings: u64) {
        self.lock().memory = readings;
    }

    /// Closes the connection after so many bytes of the next block's data; of further blocks if
    /// called again. The readings have left its memory all the same.
    pub fn break_off(&self, after: usize) {
        self.lock().break_off.push_back(after);
    }

    /// Ignores the next command with this beginning, and closes the connection.
    pub fn lose(&self, command: &str) {
        self.lock().unheard.push_back(command.to_owned());
    }

    /// Refuses commands with this beginning, with an error such as `-222,"Data out of range"`.
    pub fn refuse(&self, command: &str, error: &str) {
        self.lock().refused = Some((command.to_owned(), error.to_owned()));
    }

    /// Returns the time of the trigger.
    #[must_use]
    pub fn triggered(&self) -> Option<Instant> {
        self.lock().triggered
    }

    /// Returns the number of readings that it has taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.lock().taken()
    }

    /// Returns all commands that the multimeter has received.
    #[must_use]
    pub fn heard(&self) -> Vec<String> {
        self.lock().heard.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Multimeter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, state: &Arc<Mutex<State>>, stop: &Arc<AtomicBool>) {
    let mut connections = Vec::new();
    while let Ok((stream, _)) = listener.accept() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (state, stop) = (Arc::clone(state), Arc::clone(stop));
        connections.push(std::thread::spawn(move || {
            // An end of the connection is an end of the thread.
            let _ = serve(&stream, &state, &stop);
        }));
    }
    for connection in connections {
        let _ = connection.join();
    }
}

fn serve(stream: &TcpStream, state: &Mutex<State>, stop: &AtomicBool) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_nodelay(true)?;
    let mut out = stream;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) if line.ends_with(b"\n") => {}
            Ok(_) => break,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => return Err(error),
        }
        let text = String::from_utf8_lossy(&line).trim().to_owned();
        line.clear();
        for command in text.split(';').map(str::trim).filter(|c| !c.is_empty()) {
            let reply = lock(state).hear(command);
            match reply {
                Reply::Nothing => {}
                Reply::Line(answer) => out.write_all(format!("{answer}\n").as_bytes())?,
                Reply::Block(data, cut) => {
                    let length = data.len().to_string();
                    let head = format!("#{}{length}", length.len());
                    out.write_all(head.as_bytes())?;
                    out.write_all(&data.as_bytes()[..cut.unwrap_or(data.len()).min(data.len())])?;
                    if cut.is_some() {
                        return Ok(());
                    }
                    out.write_all(b"\n")?;
                }
                Reply::Close => return Ok(()),
            }
        }
    }
    Ok(())
}

impl State {
    fn new(model: MultimeterModel, current_a: Box<dyn Fn(f64) -> f64 + Send>) -> Self {
        Self {
            model,
            current_a,
            memory: model.memory(),
            errors: VecDeque::new(),
            aperture: Duration::from_millis(200),
            interval: Duration::ZERO,
            delay: Duration::ZERO,
            count: 1,
            armed: false,
            triggered: None,
            stopped_at: None,
            removed: 0,
            overflowed: false,
            heard: Vec::new(),
            break_off: VecDeque::new(),
            unheard: VecDeque::new(),
            refused: None,
        }
    }

    fn hear(&mut self, command: &str) -> Reply {
        if let Some(lost) = self.unheard.front()
            && command.starts_with(lost.as_str())
        {
            self.unheard.pop_front();
            return Reply::Close;
        }
        self.heard.push(command.to_owned());
        if let Some((refused, error)) = &self.refused
            && command.starts_with(refused.as_str())
        {
            self.errors.push_back(error.clone());
            return Reply::Nothing;
        }
        let (name, value) = command.split_once(' ').unwrap_or((command, ""));
        match self.obey(name, value.trim()) {
            Ok(reply) => reply,
            Err(error) => {
                self.errors.push_back(error.to_owned());
                Reply::Nothing
            }
        }
    }

    fn obey(&mut self, name: &str, value: &str) -> Result<Reply, &'static str> {
        let timer = self.model == MultimeterModel::K34465A;
        match name {
            "*IDN?" => return Ok(Reply::Line(self.model.identity().to_owned())),
            "SYST:ERR?" => {
                let error = self.errors.pop_front();
                return Ok(Reply::Line(
                    error.unwrap_or_else(|| "+0,\"No error\"".to_owned()),
                ));
            }
            "DATA:POIN?" => {
                let waiting = self.waiting();
                return Ok(Reply::Line(format!("+{waiting}")));
            }
            "STAT:QUES:COND?" => {
                self.waiting();
                let condition = if self.overflowed { 16_384 } else { 0 };
                return Ok(Reply::Line(format!("+{condition}")));
            }
            "R?" => return self.read(value),
            "*RST" => self.reset(),
            "*CLS" => self.errors.clear(),
            "CONF:CURR:DC" => {
                range(value, 1e-4, 10.0)?;
            }
            "CURR:DC:ZERO:AUTO" if matches!(value, "ON" | "OFF" | "ONCE") => {}
            "CURR:DC:APER" if timer => self.aperture = seconds(value, 1e-4, 1.0)?,
            "CURR:DC:NPLC" => {
                self.aperture = Duration::from_millis(20).mul_f64(range(value, 0.02, 100.0)?);
            }
            "SAMP:SOUR" if timer && matches!(value, "TIM" | "IMM") => {}
            "SAMP:TIM" if timer => self.interval = seconds(value, 1e-5, 3600.0)?,
            "SAMP:COUN" => self.count = value.parse().map_err(|_| OUT_OF_RANGE)?,
            "TRIG:DEL" => self.delay = seconds(value, 0.0, 3600.0)?,
            "TRIG:SOUR" if value == "BUS" => {}
            "INIT" => {
                self.armed = true;
                self.triggered = None;
                self.stopped_at = None;
                self.removed = 0;
                self.overflowed = false;
            }
            "*TRG" if self.armed => {
                self.armed = false;
                self.triggered = Some(Instant::now());
            }
            "*TRG" => return Err("-211,\"Trigger ignored\""),
            "ABOR" => {
                self.armed = false;
                self.stopped_at = Some(self.taken());
            }
            _ => return Err("-113,\"Undefined header\""),
        }
        Ok(Reply::Nothing)
    }

    fn reset(&mut self) {
        let before = Self::new(self.model, Box::new(|_| 0.0));
        self.aperture = before.aperture;
        self.interval = before.interval;
        self.delay = before.delay;
        self.count = before.count;
        self.armed = false;
        self.triggered = None;
        self.removed = 0;
    }

    /// Returns the time from the beginning of one reading to that of the next.
    fn spacing(&self) -> Duration {
        match self.model {
            MultimeterModel::K34461A => self.aperture + self.delay,
            MultimeterModel::K34465A => self.interval,
        }
    }

    fn taken(&self) -> u64 {
        let Some(triggered) = self.triggered else {
            return 0;
        };
        let spacing = self.spacing().as_nanos().max(1);
        let taken = triggered.elapsed().as_nanos() / spacing + 1;
        let taken = u64::try_from(taken).unwrap_or(u64::MAX).min(self.count);
        self.stopped_at.unwrap_or(taken)
    }

    /// Returns the number of readings in the memory; the oldest are dropped if that is too many.
    fn waiting(&mut self) -> u64 {
        let taken = self.taken();
        if taken - self.removed > self.memory {
            self.removed = taken - self.memory;
            self.overflowed = true;
        }
        taken - self.removed
    }

    fn read(&mut self, most: &str) -> Result<Reply, &'static str> {
        let waiting = self.waiting();
        if waiting == 0 {
            return Err("-230,\"Data corrupt or stale\"");
        }
        let most = match most {
            "" => waiting,
            most => most.parse().map_err(|_| OUT_OF_RANGE)?,
        };
        let first = self.removed;
        self.removed += waiting.min(most);
        let spacing_s = self.spacing().as_secs_f64();
        let readings = (first..self.removed).map(|number| {
            #[expect(clippy::cast_precision_loss, reason = "readings of a test")]
            let after_s = number as f64 * spacing_s;
            scientific((self.current_a)(after_s))
        });
        let readings: Vec<_> = readings.collect();
        Ok(Reply::Block(readings.join(","), self.break_off.pop_front()))
    }
}

const OUT_OF_RANGE: &str = "-222,\"Data out of range\"";

fn range(value: &str, least: f64, most: f64) -> Result<f64, &'static str> {
    let value: f64 = value.parse().map_err(|_| "-104,\"Data type error\"")?;
    (least..=most)
        .contains(&value)
        .then_some(value)
        .ok_or(OUT_OF_RANGE)
}

fn seconds(value: &str, least: f64, most: f64) -> Result<Duration, &'static str> {
    range(value, least, most).map(Duration::from_secs_f64)
}

/// Formats a number in the form of the instrument: `+2.80000000E-01`.
fn scientific(value: f64) -> String {
    let text = format!("{value:+.8E}");
    let (digits, exponent) = text.split_once('E').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    format!("{digits}E{exponent:+03}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_instrument_does() {
        assert_eq!(scientific(0.28), "+2.80000000E-01");
        assert_eq!(scientific(-1.5), "-1.50000000E+00");
        assert_eq!(scientific(9.9e37), "+9.90000000E+37");
    }

    #[test]
    fn what_a_34461a_does_not_have_is_an_undefined_header() {
        let mut state = State::new(MultimeterModel::K34461A, Box::new(|_| 0.0));
        for command in ["SAMP:TIM 1E-3", "CURR:DC:APER 1E-3", "NONSENSE"] {
            assert!(matches!(state.hear(command), Reply::Nothing));
            let Reply::Line(error) = state.hear("SYST:ERR?") else {
                panic!("no answer");
            };
            assert_eq!(error, "-113,\"Undefined header\"");
        }
        let Reply::Line(error) = state.hear("SYST:ERR?") else {
            panic!("no answer");
        };
        assert_eq!(error, "+0,\"No error\"");
    }
}
