//! A file that stays unchanged until it is verified.
//!
//! redb repairs a file while it opens it, and writes to it even where it then finds damage that it
//! cannot repair. An operator who wants to rescue the data needs the file as it was.

use std::{
    collections::BTreeMap,
    io,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{BackendError, StorageBackend};

const PAGE: usize = 4096;

/// Holds back writes to the file until it is accepted. Reads see the held-back writes.
#[derive(Debug)]
pub(super) struct UnverifiedFile<B>(Arc<Inner<B>>);

#[derive(Debug)]
struct Inner<B> {
    file: B,
    accepted: AtomicBool,
    held: Mutex<Held>,
}

/// The writes that are not in the file yet.
#[derive(Debug, Default)]
struct Held {
    /// `true` once the length of the file was read: at the first access, when redb has locked the
    /// file.
    begun: bool,
    /// Bytes at the file's beginning that were not truncated since.
    left: u64,
    len: u64,
    /// Pages that differ from the file's, by number.
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
    /// The writes, in the order in which they are done later.
    writes: Vec<Write>,
}

#[derive(Debug)]
enum Write {
    Data(u64, Vec<u8>),
    Length(u64),
    Sync,
}

impl<B: StorageBackend> UnverifiedFile<B> {
    pub(super) fn new(file: B) -> Self {
        Self(Arc::new(Inner {
            file,
            accepted: AtomicBool::new(false),
            held: Mutex::default(),
        }))
    }

    /// Does the held-back writes in their order. Later writes are not held back.
    pub(super) fn accept(&self) -> io::Result<()> {
        let mut held = self.0.lock();
        for write in held.writes.drain(..) {
            match write {
                Write::Data(offset, data) => self.0.file.write(offset, &data)?,
                Write::Length(len) => self.0.file.set_len(len)?,
                Write::Sync => self.0.file.sync_data()?,
            }
        }
        held.pages.clear();
        self.0.accepted.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the held-back writes, until the file is accepted.
    fn held(&self) -> io::Result<Option<MutexGuard<'_, Held>>> {
        if self.0.accepted.load(Ordering::Acquire) {
            return Ok(None);
        }
        let mut held = self.0.lock();
        if !held.begun {
            held.len = self.0.file.len()?;
            held.left = held.len;
            held.begun = true;
            // A new file has no content to preserve.
            if held.len == 0 {
                self.0.accepted.store(true, Ordering::Release);
            }
        }
        let accepted = self.0.accepted.load(Ordering::Acquire);
        Ok((!accepted).then_some(held))
    }

    /// Reads `left` bytes of the file from its beginning on, and zeros after them.
    fn read_left(&self, left: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let left = usize::try_from(left.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (there, behind) = out.split_at_mut(left.min(out.len()));
        behind.fill(0);
        if there.is_empty() {
            return Ok(());
        }
        self.0.file.read(offset, there)
    }
}

impl<B> Inner<B> {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> Clone for UnverifiedFile<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Splits `offset..offset + len` into pages: page number, offset in the page, and range in the
/// whole.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        #[expect(clippy::cast_possible_truncation, reason = "less than a page")]
        let within = (at % PAGE as u64) as usize;
        let piece = done..len.min(done + PAGE - within);
        done = piece.end;
        (!piece.is_empty()).then_some((at / PAGE as u64, within, piece))
    })
}

impl<B: StorageBackend> StorageBackend for UnverifiedFile<B> {
    fn len(&self) -> io::Result<u64> {
        match self.held()? {
            Some(held) => Ok(held.len),
            None => self.0.file.len(),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let Some(held) = self.held()? else {
            return self.0.file.read(offset, out);
        };
        if offset + out.len() as u64 > held.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_left(held.left, offset, out)?;
        for (number, within, piece) in pieces(offset, out.len()) {
            if let Some(page) = held.pages.get(&number) {
                let bytes = &page[within..within + piece.len()];
                out[piece].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let Some(mut held) = self.held()? else {
            return self.0.file.set_len(len);
        };
        held.left = held.left.min(len);
        held.len = len;
        held.pages.split_off(&len.div_ceil(PAGE as u64));
        if let Some(last) = held.pages.get_mut(&(len / PAGE as u64)) {
            #[expect(clippy::cast_possible_truncation, reason = "less than a page")]
            last[(len % PAGE as u64) as usize..].fill(0);
        }
        held.writes.push(Write::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.held()? {
            Some(mut held) => {
                held.writes.push(Write::Sync);
                Ok(())
            }
            None => self.0.file.sync_data(),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let Some(mut held) = self.held()? else {
            return self.0.file.write(offset, data);
        };
        for (number, within, piece) in pieces(offset, data.len()) {
            if !held.pages.contains_key(&number) {
                let mut page = Box::new([0; PAGE]);
                self.read_left(held.left, number * PAGE as u64, &mut *page)?;
                held.pages.insert(number, page);
            }
            if let Some(page) = held.pages.get_mut(&number) {
                page[within..within + piece.len()].copy_from_slice(&data[piece]);
            }
        }
        held.len = held.len.max(offset + data.len() as u64);
        held.writes.push(Write::Data(offset, data.to_vec()));
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.0.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.0.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;

    fn content(file: &impl StorageBackend) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        file.read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn it_reads_as_if_all_were_written_and_writes_nothing_before_it_is_accepted() {
        println!("seeds 0..200");
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut model: Vec<u8> = (0..random.usize(1..5 * PAGE))
                .map(|_| random.u8(1..))
                .collect();
            let file = InMemoryBackend::new();
            file.set_len(model.len() as u64).unwrap();
            file.write(0, &model).unwrap();
            let before = model.clone();
            let trial = UnverifiedFile::new(file);
            for _ in 0..random.usize(1..30) {
                match random.u8(..4) {
                    0 => {
                        let len = random.usize(..6 * PAGE);
                        model.resize(len, 0);
                        trial.set_len(len as u64).unwrap();
                    }
                    1 => trial.sync_data().unwrap(),
                    _ => {
                        let from = random.usize(..=model.len());
                        let len = random.usize(..=(model.len() - from).min(2 * PAGE));
                        let data: Vec<u8> = (0..len).map(|_| random.u8(1..)).collect();
                        model[from..from + len].copy_from_slice(&data);
                        trial.write(from as u64, &data).unwrap();
                    }
                }
                let from = random.usize(..=model.len());
                let mut part = vec![0; random.usize(..=model.len() - from)];
                trial.read(from as u64, &mut part).unwrap();
                assert_eq!(part, model[from..from + part.len()], "seed {seed}");
                assert_eq!(content(&trial), model, "seed {seed}");
                assert!(
                    trial
                        .read(from as u64 + 1, &mut vec![0; model.len()])
                        .is_err()
                );
            }
            assert_eq!(content(&trial.0.file), before, "seed {seed}");
            trial.accept().unwrap();
            assert_eq!(content(&trial.0.file), model, "seed {seed}");
            trial.set_len(1).unwrap();
            assert_eq!(trial.0.file.len().unwrap(), 1);
        }
    }
}
