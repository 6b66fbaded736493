//! The command line.

use std::path::PathBuf;

use mq_transport::Address;

pub(crate) const USAGE: &str = "\
usage: cargo test -p mq-tests --test conformance -- [OPTIONS] [PART OF A CASE'S NAME]...
  --broker URL     another broker, such as tcp://127.0.0.1:1883, in place of this project's
  --ca FILE        the certificate to trust, PEM; without it any is
  --seed NUMBER    the names of clients and topics follow from it
  --list           print the names of the cases";

/// The options of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) broker: Option<Address>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) seed: Option<u32>,
    pub(crate) list: bool,
    /// Parts of names; empty for all cases.
    pub(crate) filters: Vec<String>,
}

/// # Errors
/// One line that says what is wrong.
pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let next = arguments.next();
            next.ok_or_else(|| format!("{argument} needs a value"))
        };
        match &*argument {
            "--broker" => {
                let url = value()?;
                let address = url.parse().map_err(|error| format!("{url}: {error}"))?;
                options.broker = Some(address);
            }
            "--ca" => options.ca = Some(value()?.into()),
            "--seed" => {
                let seed = value()?;
                let number = seed.parse().map_err(|_| format!("{seed} is no number"))?;
                options.seed = Some(number);
            }
            "--list" => options.list = true,
            // What `cargo test` hands to every test; it means nothing here.
            "--nocapture" | "--no-capture" | "--quiet" | "-q" | "--show-output" => {}
            "--test-threads" => drop(value()?),
            other if other.starts_with("--test-threads=") => {}
            other if other.starts_with('-') => return Err(format!("{other} is no option")),
            part => options.filters.push(part.to_owned()),
        }
    }
    Ok(options)
}
