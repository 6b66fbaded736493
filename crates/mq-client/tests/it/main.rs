//! The client against a scripted server, in virtual time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod util;

mod end;
mod fallback;
mod hostile;
mod networks;
mod properties;
mod publish;
mod reconnect;
mod request;
mod slow_link;
mod subscribe;
