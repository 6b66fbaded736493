//! Copying a program to a host, by the host's architecture.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::{Machine, Ssh, ssh::quoted};

/// Puts the program of `programs` for the host's architecture, or else this program, on a host. It replaces the
/// host's old program and keeps its capabilities; without an old one it goes to `/usr/local/bin`. On an
/// error nothing has changed. Returns the version that the new program prints.
pub(crate) async fn upgrade(
    ssh: &Ssh,
    host: &Machine,
    programs: Option<&Path>,
) -> anyhow::Result<String> {
    let machine = ssh.run(host, "uname -m", b"").await?;
    let program = program(programs, String::from_utf8_lossy(&machine).trim())?;
    let bytes = std::fs::read(&program);
    let bytes = bytes.with_context(|| format!("cannot read {}", program.display()))?;
    let script = format!("program={}\n{SCRIPT}", quoted(host.program()));
    let said = ssh.run(host, &script, &bytes).await?;
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}

/// Reads the program on standard input. A program that does not run on the host does not replace the old one.
const SCRIPT: &str = r#"set -eu
program=$(command -v "$program" || echo "$program")
case $program in */*) ;; *) program=/usr/local/bin/$program ;; esac
new=$(mktemp)
trap 'rm -f "$new"' EXIT
cat >"$new"
chmod 755 "$new"
says=$("$new" --version)
sudo=
[ -w "$(dirname "$program")" ] || sudo='sudo -n'
capabilities=$(getcap "$program" 2>/dev/null | sed 's/^.* //' || true)
$sudo cp "$new" "$program.new"
[ -z "$capabilities" ] || sudo -n setcap "$capabilities" "$program.new"
$sudo mv "$program.new" "$program"
echo "$says"
"#;

/// Finds the program of this folder for the architecture, or else this program.
fn program(folder: Option<&Path>, machine: &str) -> anyhow::Result<PathBuf> {
    // The names of uname(1), and of the programs that ship.
    let name = match machine {
        "armv7l" | "armv6l" => "armv7",
        "arm64" => "aarch64",
        machine => machine,
    };
    let file = format!("mqbench-{name}");
    if let Some(folder) = folder {
        let given = folder.join(&file);
        if given.is_file() {
            return Ok(given);
        }
    }
    if name == std::env::consts::ARCH {
        return std::env::current_exe().context("cannot find this program's own file");
    }
    bail!("no program for the machine {machine}: expected {file} in the folder of --programs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_gets_the_program_of_its_architecture() {
        let folder = tempfile::tempdir().unwrap();
        let armv7 = folder.path().join("mqbench-armv7");
        std::fs::write(&armv7, "").unwrap();
        let own = std::env::current_exe().unwrap();
        let of = |machine: &str| program(Some(folder.path()), machine);
        assert_eq!(of("armv7l").unwrap(), armv7);
        assert_eq!(of(std::env::consts::ARCH).unwrap(), own);
        let error = of("riscv64").unwrap_err().to_string();
        assert!(error.contains("mqbench-riscv64"), "{error}");
    }
}
