//! The broker against the normative statements of MQTT 3.1.1 and 5.0, in raw packets.
//!
//! `docs/reference/conformance.md` says how to run it, against another broker too; the statements stand in
//! `docs/spec/conformance.toml`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a run says what it saw")]

mod case;
mod guard;
mod lab;
mod options;
mod packet;
mod reply;
mod runner;
mod statements;
mod streams;
mod wire;

mod acks;
mod alias;
mod auth;
mod connack;
mod connect;
mod disconnect;
mod flow;
mod framing;
mod keep_alive;
mod limits;
mod misplaced;
mod properties;
mod publish;
mod qos;
mod random;
mod retained;
mod session;
mod shared;
mod strings;
mod subscribe;
mod topics;
mod unsubscribe;
mod will;

use std::process::ExitCode;

use case::Case;

/// Lists all cases, chapter by chapter.
fn cases() -> Vec<Case> {
    [
        framing::CASES,
        strings::CASES,
        connect::CASES,
        connack::CASES,
        session::CASES,
        will::CASES,
        keep_alive::CASES,
        misplaced::CASES,
        publish::CASES,
        properties::CASES,
        alias::CASES,
        retained::CASES,
        qos::CASES,
        acks::CASES,
        flow::CASES,
        subscribe::CASES,
        unsubscribe::CASES,
        shared::CASES,
        topics::CASES,
        limits::CASES,
        disconnect::CASES,
        auth::CASES,
        random::CASES,
    ]
    .concat()
}

fn main() -> ExitCode {
    let options = match options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            println!("{problem}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let cases = cases();
    if options.list {
        for case in &cases {
            println!("{}", case.name);
        }
        return ExitCode::SUCCESS;
    }
    let statements = match statements::read() {
        Ok(statements) => statements,
        Err(problem) => {
            println!("{problem}");
            return ExitCode::FAILURE;
        }
    };
    let mut wrong = statements::check(&statements, &cases);
    for name in streams::unknown(&cases) {
        wrong.push(format!("no case is called {name}, which streams.rs names"));
    }
    for problem in &wrong {
        println!("{}: {problem}", statements::FILE);
    }
    let outcome = runner::run(&options, &cases);
    statements::summarize(&statements, &outcome);
    if wrong.is_empty() && outcome.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
