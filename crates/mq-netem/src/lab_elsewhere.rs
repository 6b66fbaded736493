//! Systems without network namespaces: the same types, which have no values.

use std::{
    convert::Infallible,
    io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use crate::{Addresses, CaptureReport, Error, Link, LinkReport, Medium, MediumReport};

/// Hosts and the links between them: only on Linux.
#[derive(Debug)]
pub struct Lab(Infallible);

/// A host: only on Linux.
#[derive(Debug)]
pub struct Host(Infallible);

/// A capture: only on Linux.
#[derive(Debug)]
pub struct Capture(Infallible);

/// Always `false`: only Linux has it.
#[must_use]
pub fn run_early(_: u32) -> bool {
    false
}

#[expect(missing_docs, reason = "the Linux version has them")]
impl Lab {
    pub fn enter() -> Result<Self, Error> {
        Err(only_on_linux())
    }

    pub fn connect(&mut self, _: &Host, _: &Host, _: &Link, _: u64) -> Result<Addresses, Error> {
        match self.0 {}
    }

    pub fn change(&self, _: Addresses, _: &Link) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn record_losses(&self, _: Addresses, _: &Path, _: &Path) -> Result<(), Error> {
        match self.0 {}
    }

    pub fn hand_over(host: &Host, _: Addresses, _: Addresses) -> Result<(), Error> {
        match host.0 {}
    }

    pub fn pass_on(hosts: &[&Host], _: &[Addresses]) -> Result<(), Error> {
        match hosts.first() {
            None => Ok(()),
            Some(host) => match host.0 {},
        }
    }

    pub fn share(
        &mut self,
        _: &[&Host],
        _: &Host,
        _: &Medium,
        _: u64,
    ) -> Result<Vec<Addresses>, Error> {
        match self.0 {}
    }

    pub fn run(&self, _: Command) -> io::Result<ExitStatus> {
        match self.0 {}
    }

    #[must_use]
    pub fn reports(&self) -> Vec<LinkReport> {
        match self.0 {}
    }

    #[must_use]
    pub fn medium_reports(&self) -> Vec<MediumReport> {
        match self.0 {}
    }

    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        match self.0 {}
    }
}

#[expect(missing_docs, reason = "the Linux version has them")]
impl Host {
    pub fn new() -> Result<Self, Error> {
        Err(only_on_linux())
    }

    pub fn run<T: Send>(&self, _: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match self.0 {}
    }

    pub fn move_into(_: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn capture(&self, _: &Path) -> Result<Capture, Error> {
        match self.0 {}
    }

    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self.0 {}
    }
}

#[expect(missing_docs, reason = "the Linux version has them")]
impl Capture {
    pub fn finish(self) -> io::Result<CaptureReport> {
        match self.0 {}
    }
}

fn only_on_linux() -> Error {
    Error::Namespaces {
        problem: "emulated links need Linux".to_owned(),
    }
}
