//! Files that nobody but the broker is to read.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use mq_broker::{DiskStore, Durability, Store as _};

use crate::program::Broker;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_store_and_its_backups_are_for_their_owner_alone_old_files_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    let store = DiskStore::open(&path, Durability::Always).unwrap();
    assert_eq!(mode(&path), 0o600);
    store.back_up(&copy).unwrap();
    assert_eq!(mode(&copy), 0o600);
    drop(store);
    set_mode(&path, 0o644);
    let _store = DiskStore::open(&path, Durability::Always).unwrap();
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn secrets_that_everybody_can_read_are_warned_about_with_the_cure() {
    let configuration = "[auth]\npassword_file = \"FOLDER/passwords\"\n";
    let mut broker = Broker::with_log("tls", configuration, &[("passwords", "")]);
    let folder = broker.file("log").parent().unwrap().to_owned();
    let secrets: [PathBuf; 2] = ["passwords", "key.pem"].map(|name| broker.file(name));
    for (folders, files, warnings) in [(0o755, 0o644, 1), (0o700, 0o644, 0), (0o755, 0o640, 0)] {
        broker.end();
        set_mode(&folder, folders);
        for path in &secrets {
            set_mode(path, files);
        }
        broker.start();
        let log = broker.log_with(&[" listening "]);
        for path in &secrets {
            let warning = format!("chmod o= {}", path.display());
            assert_eq!(log.matches(&warning).count(), warnings, "{log}");
        }
    }
}
