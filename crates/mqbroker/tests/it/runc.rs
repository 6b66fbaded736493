//! Containers by runc, as an engine runs them: a bundle, its configuration, and the command that starts it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

/// Returns true if this machine runs containers with runc; otherwise reports a skipped test.
pub(crate) fn is_usable() -> bool {
    if mq_testkit::program(&["runc"]).is_none() {
        return false;
    }
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        mq_testkit::skipped("only root runs containers with runc");
    }
    is_root
}

/// A folder for containers: `bundle/rootfs` is their root, and runc keeps its own state beside the bundle.
pub(crate) struct Bundle {
    folder: tempfile::TempDir,
}

impl Bundle {
    pub(crate) fn new(folder: tempfile::TempDir) -> Self {
        fs::create_dir_all(folder.path().join("bundle/rootfs")).unwrap();
        Self { folder }
    }

    /// Returns the folder, in which a test may have files of its own.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder().join("bundle/rootfs")
    }

    pub(crate) fn runc(&self) -> Command {
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.folder().join("runc"));
        runc
    }

    /// Returns the command that runs a process in a container with that name. A network that `namespaces` leaves out is
    /// the machine's own.
    pub(crate) fn run(
        &self,
        id: &str,
        process: &Value,
        is_readonly: bool,
        mounts: &[Value],
        namespaces: &[&str],
    ) -> Command {
        let namespaces: Vec<_> = namespaces.iter().map(|of| json!({"type": of})).collect();
        let spec = json!({
            "ociVersion": "1.0.2",
            "hostname": "machine",
            "process": process,
            "root": {"path": "rootfs", "readonly": is_readonly},
            "mounts": mounts,
            "linux": {"namespaces": namespaces},
        });
        let bundle = self.folder().join("bundle");
        fs::write(bundle.join("config.json"), spec.to_string()).unwrap();
        let mut runc = self.runc();
        runc.args(["run", "--bundle"]).arg(bundle).arg(id);
        runc
    }
}

/// Makes a mount of a folder or a file of this machine.
pub(crate) fn bind(source: impl AsRef<Path>, destination: &str, mode: &str) -> Value {
    json!({
        "destination": destination, "type": "bind", "source": source.as_ref(), "options": ["bind", mode],
    })
}
