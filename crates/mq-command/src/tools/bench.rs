//! `mq bench`: the program `mqbench`, found beside this one or in `PATH`.

use std::{
    ffi::OsString,
    io,
    process::{Command, ExitCode},
};

/// Exit code of a shell for a command that it does not find.
const NOT_FOUND: u8 = 127;

/// The program's name.
const PROGRAM: &str = if cfg!(windows) {
    "mqbench.exe"
} else {
    "mqbench"
};

/// Options of `bench`: they are mqbench's own, `--help` among them.
#[derive(clap::Args, Clone, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Arguments of mqbench, such as `compare --help`
    #[arg(
        value_name = "ARGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    args: Vec<OsString>,
}

/// Returns `true` if `mq` was started with this command, whose arguments belong to another program.
pub(crate) fn is_asked_for(words: &[OsString]) -> bool {
    words.get(1).is_some_and(|word| word == "bench")
}

/// Becomes mqbench. Returns where that is impossible, or, away from Unix, when mqbench has ended.
pub(crate) fn run(args: &Args) -> ExitCode {
    let ours = std::env::current_exe().ok();
    let beside = ours.map(|ours| ours.with_file_name(PROGRAM));
    let beside = beside.filter(|program| program.is_file());
    let program = beside.unwrap_or_else(|| PROGRAM.into());
    let error = match become_program(Command::new(&program).args(&args.args)) {
        Ok(code) => return code,
        Err(error) => error,
    };
    if error.kind() == io::ErrorKind::NotFound {
        eprintln!(
            "mq: {PROGRAM} is neither beside mq nor in PATH: install it, such as by cargo install mqbench"
        );
        return NOT_FOUND.into();
    }
    eprintln!("mq: {}: {error}", program.display());
    ExitCode::FAILURE
}

/// Signals, the terminal and the exit code are mqbench's own, as the process stays the same.
#[cfg(unix)]
fn become_program(command: &mut Command) -> io::Result<ExitCode> {
    use std::os::unix::process::CommandExt as _;

    Err(command.exec())
}

#[cfg(not(unix))]
fn become_program(command: &mut Command) -> io::Result<ExitCode> {
    let code = command.status()?.code().unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
