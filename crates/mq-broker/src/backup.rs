//! `mqbroker backup` and `mqbroker restore`.

use std::path::Path;

use anyhow::{Context as _, bail};

use crate::{Config, DiskStore, Durability, Store as _, admin};

/// Has the running broker of that configuration write all that it keeps to a file.
///
/// # Errors
/// If the configuration has no `admin.socket`, no broker answers there, or the file cannot be written.
pub(crate) fn back_up(configuration: &Path, to: &Path) -> anyhow::Result<()> {
    let socket = Config::read(configuration)?.admin.socket;
    let Some(socket) = socket else {
        bail!(
            "{}: admin.socket is missing: a running broker is asked there",
            configuration.display()
        );
    };
    let to = std::path::absolute(to).context("the file has no absolute path")?;
    let Some(name) = to.to_str() else {
        bail!("{} is not UTF-8", to.display());
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(admin::ask(&socket, "POST", "/backup", name))?;
    Ok(())
}

/// Makes a store of a backup, once it was found to be whole; no broker may use the store meanwhile.
///
/// # Errors
/// If the backup cannot be read, or there is a store already.
pub(crate) fn restore(backup: &Path, store: &Path) -> anyhow::Result<()> {
    if !backup.is_file() {
        bail!("{}: there is no such file", backup.display());
    }
    let kept = DiskStore::open(backup, Durability::Off)?;
    kept.load()?;
    kept.back_up(store)?;
    Ok(())
}
