//! The program `mq`, run as its users run it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "seeds, figures and skips are printed")]

#[cfg(unix)]
mod bench;
mod brokers;
mod ends;
#[cfg(unix)]
mod goodbye;
mod mosquitto;
#[cfg(unix)]
mod printing;
#[cfg(unix)]
mod relay;
mod secrets;
#[cfg(unix)]
mod watch;
