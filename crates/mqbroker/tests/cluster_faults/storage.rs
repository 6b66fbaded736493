//! Damage to what a NATS server that is down has stored.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    cluster::{Place, SHARDS},
    plan::Damage,
};

/// Takes a copy of a server that is down and whole, if there is none yet.
pub(crate) fn keep_copy(place: &Place, server: usize) {
    let (store, copy) = folders(place, server);
    if !copy.exists() {
        copy_folder(&store, &copy);
    }
}

/// Damages the storage of a server, and returns what was done.
pub(crate) fn damage(
    place: &Place,
    server: usize,
    damage: Damage,
    random: &mut fastrand::Rng,
) -> String {
    let (store, copy) = folders(place, server);
    if damage == Damage::SetBack {
        if copy.exists() {
            // The next time it comes back to what it is now.
            let now = copy.with_extension("now");
            fs::rename(&store, &now).unwrap();
            fs::rename(&copy, &store).unwrap();
            fs::rename(&now, &copy).unwrap();
            return format!("server {server}: set back");
        }
        copy_folder(&store, &copy);
        return format!("server {server}: there is no copy yet");
    }
    let stream = match random.usize(..=SHARDS) {
        SHARDS => "mq-values".to_owned(),
        shard => format!("mq-log-{shard}"),
    };
    let folder = store.join(format!("jetstream/$G/streams/{stream}/msgs"));
    let done = match damage {
        Damage::Flipped => flip(&folder, random),
        Damage::Cut => cut(&folder, random),
        _ => overwrite_index(&folder, random),
    };
    let done = done.unwrap_or_else(|| "there is nothing yet".to_owned());
    format!("server {server}, {stream}: {done}")
}

/// Removes the storage of a server that is down, with the copy of before: its next name is not in them.
pub(crate) fn remove(place: &Place, server: usize) {
    let (store, copy) = folders(place, server);
    fs::remove_dir_all(&store).unwrap();
    fs::create_dir(&store).unwrap();
    if copy.exists() {
        fs::remove_dir_all(&copy).unwrap();
    }
}

/// Returns the folder of a server's storage, and that of its copy.
fn folders(place: &Place, server: usize) -> (PathBuf, PathBuf) {
    let store = place.file(&format!("nats-{server}"));
    let copy = place.file(&format!("nats-{server}.copy"));
    (store, copy)
}

fn copy_folder(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// Returns the blocks of a stream that have something in them, with their lengths, in their order.
fn blocks(folder: &Path) -> Vec<(PathBuf, u64)> {
    let files = fs::read_dir(folder).into_iter().flatten();
    let paths = files.map(|file| file.unwrap().path());
    let numbered = paths.filter_map(|path| {
        let name = path.file_name()?.to_str()?.strip_suffix(".blk")?;
        Some((name.parse::<u64>().ok()?, path))
    });
    let mut numbered: Vec<_> = numbered.collect();
    numbered.sort();
    let blocks = numbered.into_iter().map(|(_, path)| {
        let length = fs::metadata(&path).unwrap().len();
        (path, length)
    });
    blocks.filter(|(_, length)| *length > 0).collect()
}

fn flip(folder: &Path, random: &mut fastrand::Rng) -> Option<String> {
    let blocks = blocks(folder);
    let all: u64 = blocks.iter().map(|(_, length)| length).sum();
    let mut at = all.checked_sub(1)? - random.u64(..all.div_ceil(10));
    let (block, _) = blocks.iter().find(|(_, length)| {
        let is_here = at < *length;
        if !is_here {
            at -= length;
        }
        is_here
    })?;
    let file = OpenOptions::new().read(true).write(true).open(block);
    let file = file.unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= random.u8(1..);
    file.write_all_at(&byte, at).unwrap();
    Some(format!("{} has another byte at {at}", block.display()))
}

fn cut(folder: &Path, random: &mut fastrand::Rng) -> Option<String> {
    let (block, length) = blocks(folder).pop()?;
    let shorter = length - random.u64(1..=length.min(4_096));
    let file = OpenOptions::new().write(true).open(&block).unwrap();
    file.set_len(shorter).unwrap();
    let block = block.display();
    Some(format!("{block} has {shorter} bytes instead of {length}"))
}

/// Servers write it now and then, and remove it once they have read it.
fn overwrite_index(folder: &Path, random: &mut fastrand::Rng) -> Option<String> {
    let index = folder.join("index.db");
    let length = fs::metadata(&index).map_or(200, |there| there.len());
    let bytes: Vec<_> = (0..length).map(|_| random.u8(..)).collect();
    fs::write(&index, bytes).ok()?;
    Some(format!("{} is {length} bytes of noise", index.display()))
}

pub(crate) fn damage_is_within_the_last_tenth_of_a_stream() {
    let folder = tempfile::tempdir().unwrap();
    let files = [("1.blk", 1_000), ("2.blk", 1_000), ("10.blk", 50)];
    let write = || {
        for (name, length) in files {
            fs::write(folder.path().join(name), vec![0; length]).unwrap();
        }
    };
    let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..100 {
        write();
        flip(folder.path(), &mut random).unwrap();
        let all = files.map(|(name, _)| read(name)).concat();
        let flipped: Vec<_> = (0..all.len()).filter(|at| all[*at] != 0).collect();
        assert!(flipped.len() == 1 && flipped[0] >= 1_845, "{flipped:?}");
        cut(folder.path(), &mut random).unwrap();
        assert!(read("10.blk").len() < 50 && read("2.blk").len() == 1_000);
    }
}
