//! What `mqbroker` does beside running a broker.

use std::path::PathBuf;

use clap::Subcommand;

use crate::backup;

/// What `mqbroker` does in place of running a broker.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Have the running broker write all that it keeps to a file, and go on
    Backup {
        /// Its configuration file, with `admin.socket`
        config: PathBuf,
        /// The file, which must not be there yet; the broker's user has to be able to make it
        file: PathBuf,
    },
    /// Make a store of a backup, for a broker that does not run yet
    Restore {
        /// The backup
        backup: PathBuf,
        /// The store, `store.path` of the configuration, which must not be there yet
        store: PathBuf,
    },
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    /// If it cannot be done, in one line.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Backup { config, file } => backup::back_up(&config, &file),
            Self::Restore { backup, store } => backup::restore(&backup, &store),
        }
    }
}
