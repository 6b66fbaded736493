//! Manual pages and completions, made from the command line that clap knows.
//!
//! As `mqbroker::cli::write_manual` does: this program is built without that library, which brings the broker.

use std::{fs, io, io::Write as _, path::Path};

use anyhow::anyhow;
use clap_complete::{Shell, generate, generate_to};

/// Writes the manual pages of the program and of each command, and completions, into a folder: in the places
/// that they have in `/usr/share`. `deploy/dist` calls it for each program by the same command.
pub(crate) fn write(program: clap::Command, folder: &Path) -> anyhow::Result<()> {
    write_all(program, folder)
        .map_err(|error| anyhow!("cannot write to {}: {error}", folder.display()))
}

fn write_all(mut program: clap::Command, folder: &Path) -> io::Result<()> {
    let name = program.get_name().to_owned();
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Fish, "fish/vendor_completions.d"),
        (Shell::Zsh, "zsh/vendor-completions"),
    ] {
        let place = folder.join(place);
        fs::create_dir_all(&place)?;
        generate_to(shell, &mut program, &name, place)?;
    }
    let pages = folder.join("man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(program, pages)
}

/// Prints the completions for one shell.
pub(crate) fn print_completions(mut program: clap::Command, shell: Shell) -> anyhow::Result<()> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    generate(shell, &mut program, name, &mut script);
    io::stdout().write_all(&script)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn each_command_that_is_shown_has_a_page_and_completions() {
        let folder = tempfile::tempdir().unwrap();
        write(crate::Args::command(), folder.path()).unwrap();
        let read = |file: &str| fs::read_to_string(folder.path().join(file));
        let program = crate::Args::command();
        for command in program.get_subcommands().filter(|one| !one.is_hide_set()) {
            let name = command.get_name();
            let about = command.get_about().unwrap().to_string();
            let page = read(&format!("man/man1/mq-{name}.1")).unwrap();
            let first = about.split([',', ':', '.']).next().unwrap();
            assert!(page.contains(first), "{name}: {page}");
            for file in [
                "bash-completion/completions/mq.bash",
                "fish/vendor_completions.d/mq.fish",
                "zsh/vendor-completions/_mq",
            ] {
                assert!(read(file).unwrap().contains(name), "{file}: {name}");
            }
        }
        assert!(read("man/man1/mq.1").unwrap().contains("mq\\-pub(1)"));
        assert!(read("man/man1/mq-manual.1").is_err());
    }
}
