//! The terminal while it is ours, and giving it back.

use std::{
    io::{self, BufWriter, Stdout, Write as _},
    panic,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use crossterm::{
    cursor::Show,
    execute, queue,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{Terminal, backend::CrosstermBackend};

/// A frame leaves in few writes: each one is a packet over SSH.
const FRAME_BYTES: usize = 64 << 10;

/// `true` while the terminal has to be restored: a second time would move the cursor into a panic's message.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal, in raw mode and on its other screen until this is dropped, or the program panics.
pub(crate) struct Screen(pub(crate) Terminal<CrosstermBackend<BufWriter<Stdout>>>);

impl Screen {
    /// Takes the terminal.
    pub(crate) fn open() -> io::Result<Self> {
        restore_in_a_panic();
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::Release);
        let mut out = BufWriter::with_capacity(FRAME_BYTES, io::stdout());
        // From here on, a failure gives back what was taken.
        let given_back = |error| {
            restore();
            error
        };
        queue!(out, EnterAlternateScreen).map_err(given_back)?;
        let terminal = Terminal::new(CrosstermBackend::new(out)).map_err(given_back)?;
        Ok(Self(terminal))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back. Where it takes nothing any more, there is nobody to tell.
fn restore() {
    if !TAKEN.swap(false, Ordering::AcqRel) {
        return;
    }
    // First the mode, which waits for no one.
    let _ = disable_raw_mode();
    let mut out = io::stdout();
    let _ = execute!(out, LeaveAlternateScreen, Show);
    let _ = out.flush();
}

/// Restores the usual screen in a panic, so that its message can be read there.
fn restore_in_a_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            usual(info);
        }));
    });
}
