//! Manual pages and completions, made from a program's own command line.

use std::{fs, io, path::Path};

use anyhow::anyhow;
use clap_complete::{Shell, generate_to};

/// Writes the manual pages of a program and of each of its commands, and completions for bash, fish
/// and zsh, into a folder: in the places that they have in `/usr/share`.
///
/// # Errors
/// If a file or folder cannot be made, in one line.
pub fn write_manual(program: clap::Command, folder: &Path) -> anyhow::Result<()> {
    write(program, folder).map_err(|error| anyhow!("cannot write to {}: {error}", folder.display()))
}

fn write(mut program: clap::Command, folder: &Path) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_that_is_shown_has_a_page() {
        let program = clap::Command::new("prog")
            .about("Does things")
            .subcommand(clap::Command::new("go").about("Goes somewhere"))
            .subcommand(clap::Command::new("inner").hide(true));
        let folder = tempfile::tempdir().unwrap();
        write_manual(program, folder.path()).unwrap();
        let read = |file: &str| fs::read_to_string(folder.path().join(file));
        assert!(read("man/man1/prog.1").unwrap().contains("Does things"));
        assert!(
            read("man/man1/prog-go.1")
                .unwrap()
                .contains("Goes somewhere")
        );
        assert!(read("man/man1/prog-inner.1").is_err());
        for file in [
            "bash-completion/completions/prog.bash",
            "fish/vendor_completions.d/prog.fish",
            "zsh/vendor-completions/_prog",
        ] {
            let completions = read(file).unwrap();
            assert!(completions.contains("go"), "{file}: {completions}");
        }
    }
}
