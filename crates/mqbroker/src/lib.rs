//! The program `mqbroker` as a library: everything but `main`. The broker itself is the library `mq-broker`; options,
//! signals, systemd and the allocator are here, which a program that embeds the broker does not need.
//!
//! Another program runs the same broker with the same options by [`cli::run`].
//!
//! | what | module |
//! |---|---|
//! | options, and a run from start to shutdown, with signals and messages to systemd | [`cli`] |
//! | `passwd`, `check-config`, `backup`, `restore`, and requests to a running broker | [`cli::Command`] |
//! | mosquitto's configuration, translated | `import` |
//! | certificates, users and rules read again, on storage that may hang | `keep_up` |
//! | the log: text or JSON, and its levels | `log` |
//! | texts of clients in JSON | `log_json` |
//! | standard error, without a wait for its reader | `log_writer` |
//! | the service's state, for systemd | `systemd` |
//! | manual pages and completions | [`cli::write_manual`], [`cli::write_key_page`] |
//! | room for file descriptors before a crowd comes | `descriptors` |
//! | memory given back after a crowd has left | `give_back` |
//!
//! The broker itself is the library [`mq_broker`].

mod backup;
pub mod cli;
mod commands;
mod descriptors;
mod give_back;
mod health;
mod import;
mod inspect;
mod keep_up;
mod key_page;
mod log;
mod log_json;
mod log_writer;
mod manual;
mod systemd;
