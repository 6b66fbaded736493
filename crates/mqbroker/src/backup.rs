//! `mqbroker backup` and `mqbroker restore`.

use std::path::Path;

use anyhow::{Context as _, bail};
use mq_broker::{Config, DiskStore, Error, Store as _, store::StoreError};

/// Asks the running broker of a configuration to write its whole store to a file.
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
    runtime.block_on(ask(&socket, "POST", "/backup", name))?;
    Ok(())
}

/// Makes a store from a backup after a check that the backup is whole. With `force` an existing store is replaced. No broker
/// may use either meanwhile. The backup is left as it is, and so is a store that is not replaced.
///
/// # Errors
/// If the backup cannot be read or was cut off, if a broker has the store open, or if the store exists and `force` is false.
pub(crate) fn restore(backup: &Path, store: &Path, force: bool) -> anyhow::Result<()> {
    if !backup.is_file() {
        bail!("{}: there is no such file", backup.display());
    }
    let kept = DiskStore::open_backup(backup).map_err(Error::Store)?;
    kept.load().map_err(Error::Store)?;
    if !store.exists() {
        return Ok(kept.back_up(store).map_err(Error::Store)?);
    }
    let found = DiskStore::open_backup(store).and_then(|store| store.load());
    if let Err(error @ StoreError::InUse { .. }) = found {
        return Err(Error::Store(error).into());
    }
    if !force {
        let sessions = found.map_or(0, |found| found.sessions.len());
        bail!(
            "{}: the file exists already, a store with {sessions} sessions: --force replaces it",
            store.display()
        );
    }
    // In the store's folder, so that it takes the store's place at once or not at all.
    let mut restored = store.as_os_str().to_owned();
    restored.push(".restored");
    let restored = Path::new(&restored);
    kept.back_up(restored).map_err(Error::Store)?;
    let replaced = std::fs::rename(restored, store).and_then(|()| {
        let folder = store
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    });
    replaced.with_context(|| format!("{} cannot be replaced", store.display()))
}

/// Asks the broker at `socket`, and returns its answer without the end of the line.
///
/// # Errors
/// If no broker answers there. If the broker refuses, the error is the broker's answer.
#[cfg(unix)]
pub(crate) async fn ask(
    socket: &Path,
    method: &str,
    page: &str,
    body: &str,
) -> anyhow::Result<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let mut stream = tokio::net::UnixStream::connect(socket)
        .await
        .with_context(|| format!("no broker answers at {}", socket.display()))?;
    let length = body.len();
    let request = format!(
        "{method} {page} HTTP/1.1\r\nHost: mqbroker\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, said) = answer
        .split_once("\r\n\r\n")
        .context("the broker ended in the middle of its answer")?;
    let said = said.trim_end();
    if head.split(' ').nth(1) == Some("200") {
        Ok(said.to_owned())
    } else {
        bail!("{said}")
    }
}
