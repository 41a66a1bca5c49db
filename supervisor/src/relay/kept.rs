//! What is kept of the output: in memory, or in a spool file once the lease is ending (H1).

use super::budget::Budget;
use super::frozen::{KeptState, SpoolState};
use crate::core::ring::{Intake, OutOfRange, Ring};
use crate::handover::Passed;
use acp_shared::ids::LeaseId;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor};

/// The largest piece read into a spool at once.
const SPOOL_PIECE_BYTES: usize = 64 * 1024;

/// A file of output. Its name says which lease it is of and the offset of its first byte.
#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
    file: File,
    start: u64,
    base: u64,
    end: u64,
    total: Arc<Budget>,
}

/// Runs what waits for the disk so that no other task waits with it.
fn off_worker<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        Ok(_) | Err(_) => work(),
    }
}

impl Spool {
    fn create(place: &Place<'_>, start: u64) -> io::Result<Self> {
        let path = place.dir.join(format!("{}.{start}.out", place.lease_id));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, file, start, base: start, end: start, total: Arc::clone(place.total) })
    }

    /// Which lease a file of this name is of, and the offset of its first byte; `None` for names that no spool has.
    pub(super) fn of_name(name: &str) -> Option<(LeaseId, u64)> {
        let (lease_id, start) = name.strip_suffix(".out")?.split_once('.')?;
        Some((LeaseId::parse(lease_id).ok()?, start.parse().ok()?))
    }

    /// The spool of a lease, if there is one.
    pub(super) fn find(dir: &Path, lease_id: LeaseId, total: Arc<Budget>) -> Option<Self> {
        let entries = std::fs::read_dir(dir).ok()?;
        let (path, start) = entries.flatten().find_map(|entry| {
            let (of, start) = Self::of_name(entry.file_name().to_str()?)?;
            (of == lease_id).then(|| (entry.path(), start))
        })?;
        let file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
        let end = start + file.metadata().ok()?.len();
        Some(Self { path, file, start, base: start, end, total })
    }

    /// One past its last byte.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        off_worker(|| self.file.write_all_at(bytes, self.end - self.start))?;
        self.end += bytes.len() as u64;
        self.total.add(bytes.len() as u64);
        Ok(())
    }

    fn read(&self, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(bytes_max)];
        off_worker(|| self.file.read_exact_at(&mut bytes, offset - self.start))?;
        Ok(bytes)
    }

    /// Removes the file.
    pub(super) fn remove(self) {
        match off_worker(|| std::fs::remove_file(&self.path)) {
            Ok(()) => self.total.give_back(self.end - self.start),
            // Released and expired at once.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, path = %self.path.display(), "cannot remove a spool"),
        }
    }
}

/// Output that is received and not acknowledged.
#[derive(Debug)]
pub(super) enum Kept {
    /// While the agent lives.
    Memory(Ring),
    /// What an ending lease still said.
    Disk(Spool),
}

impl Kept {
    /// Everything as a value.
    pub(super) fn freeze(self) -> KeptState {
        match self {
            Self::Memory(ring) => KeptState { base: ring.base(), bytes: ring.into_bytes(), spool: None },
            Self::Disk(spool) => {
                let file = Passed::new(spool.file.into());
                let spooled = SpoolState { path: spool.path, file, start: spool.start, end: spool.end };
                KeptState { base: spool.base, bytes: Vec::new(), spool: Some(spooled) }
            }
        }
    }

    /// Goes on where another one was frozen.
    pub(super) fn thaw(frozen: KeptState, bytes_max: usize, total: Arc<Budget>) -> Self {
        let KeptState { base, bytes, spool } = frozen;
        let Some(SpoolState { path, file, start, end }) = spool else {
            return Self::Memory(Ring::with(base, bytes, bytes_max));
        };
        match file.take() {
            Ok(file) => Self::Disk(Spool { path, file: file.into(), start, base, end, total }),
            Err(error) => {
                tracing::error!(%error, path = %path.display(), "a spool did not survive the handover");
                Self::Memory(Ring::ended_at(end))
            }
        }
    }

    pub(super) fn base(&self) -> u64 {
        match self {
            Self::Memory(ring) => ring.base(),
            Self::Disk(spool) => spool.base,
        }
    }

    pub(super) fn end(&self) -> u64 {
        match self {
            Self::Memory(ring) => ring.end(),
            Self::Disk(spool) => spool.end,
        }
    }

    /// How many bytes of memory it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Memory(ring) => ring.len() as u64,
            Self::Disk(_) => 0,
        }
    }

    /// How many bytes to read from the pipe now, at most `piece`; 0 leaves them there. Goes over to disk when
    /// memory is full and the lease is closing.
    pub(super) fn room(&mut self, closing: bool, piece: usize, place: &Place<'_>) -> usize {
        match self {
            Self::Disk(spool) if spool.end - spool.start >= place.bytes_max || place.total.is_spent() => 0,
            Self::Disk(_) => piece.min(SPOOL_PIECE_BYTES),
            Self::Memory(ring) => match ring.intake(closing) {
                Intake::Ring(room) => room.min(piece),
                Intake::Wait => 0,
                Intake::Spool => {
                    if self.spool(place) {
                        piece.min(SPOOL_PIECE_BYTES)
                    } else {
                        0
                    }
                }
            },
        }
    }

    /// Moves everything to disk; `false` when that fails, and everything stays in memory.
    pub(super) fn spool(&mut self, place: &Place<'_>) -> bool {
        let Self::Memory(ring) = self else { return true };
        if place.total.is_spent() {
            tracing::debug!(lease_id = %place.lease_id, "this gateway has all its output on disk; more stays in memory");
            return false;
        }
        let spooled = off_worker(|| Spool::create(place, ring.base())).and_then(|mut spool| {
            let bytes = ring.read(ring.base(), usize::MAX).map_err(io::Error::other);
            // A part of it would be taken for all of it by the next supervisor.
            match bytes.and_then(|bytes| spool.append(&bytes)) {
                Ok(()) => Ok(spool),
                Err(error) => {
                    spool.remove();
                    Err(error)
                }
            }
        });
        match spooled {
            Ok(spool) => {
                *self = Self::Disk(spool);
                true
            }
            Err(error) => {
                tracing::error!(%error, lease_id = %place.lease_id, "cannot spool output; it stays in memory");
                false
            }
        }
    }

    /// Takes bytes. On a disk that fails they are refused and nothing is changed.
    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Memory(ring) => ring.push(bytes),
            Self::Disk(spool) => spool.append(bytes)?,
        }
        Ok(())
    }

    pub(super) fn ack(&mut self, offset: u64) -> Result<(), OutOfRange> {
        match self {
            Self::Memory(ring) => ring.ack(offset),
            Self::Disk(spool) if offset > spool.end => {
                Err(OutOfRange { offset, base: spool.base, end: spool.end })
            }
            Self::Disk(spool) => {
                spool.base = spool.base.max(offset);
                Ok(())
            }
        }
    }

    pub(super) fn read(&self, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::Memory(ring) => ring.read(offset, bytes_max).map_err(io::Error::other),
            Self::Disk(spool) => spool.read(offset, bytes_max),
        }
    }

    /// Drops everything, the file too.
    pub(super) fn discard(self) {
        if let Self::Disk(spool) = self {
            spool.remove();
        }
    }
}

/// Where a spool would go.
pub(super) struct Place<'a> {
    pub(super) dir: &'a Path,
    pub(super) lease_id: LeaseId,
    pub(super) bytes_max: u64,
    /// What the gateway has on disk in all.
    pub(super) total: &'a Arc<Budget>,
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn a_full_ring_goes_spool_only_while_closing() {
        let dir = tempfile::tempdir().unwrap();
        let total = Arc::new(Budget::new(1_000));
        let place = Place { dir: dir.path(), lease_id: LeaseId::mint(), bytes_max: 12, total: &total };
        let mut kept = Kept::Memory(Ring::new(8));
        kept.push(b"abcdefgh").unwrap();
        kept.ack(2).unwrap();
        assert_eq!(kept.room(false, 100, &place), 2);
        kept.push(b"ij").unwrap();
        assert_eq!(kept.room(false, 100, &place), 0);
        assert_eq!(kept.room(true, 100, &place), 100);
        kept.push(b"klmn").unwrap();
        assert_eq!((kept.base(), kept.end()), (2, 14));
        assert_eq!(kept.room(true, 100, &place), 0, "the spool has a limit too");
        assert_eq!(kept.read(2, 100).unwrap(), b"cdefghijklmn");
        assert_eq!(kept.read(9, 2).unwrap(), b"jk");
        kept.ack(5).unwrap();
        assert!(kept.ack(15).is_err());

        // The next supervisor finds it.
        let found = Kept::Disk(Spool::find(dir.path(), place.lease_id, Arc::clone(&total)).unwrap());
        assert_eq!((found.base(), found.end()), (2, 14));
        assert_eq!(found.read(12, 100).unwrap(), b"mn");
        found.discard();
        assert!(Spool::find(dir.path(), place.lease_id, total).is_none());
    }

    #[test]
    fn without_a_disk_everything_stays_in_memory() {
        let total = Arc::new(Budget::new(1_000));
        let dir = Path::new("/nonexistent");
        let place = Place { dir, lease_id: LeaseId::mint(), bytes_max: 100, total: &total };
        let mut kept = Kept::Memory(Ring::new(2));
        kept.push(b"ab").unwrap();
        assert_eq!(kept.room(true, 9, &place), 0);
        assert_eq!(kept.read(0, 9).unwrap(), b"ab");
    }

    #[test]
    fn all_spools_of_a_gateway_have_one_limit() {
        let dir = tempfile::tempdir().unwrap();
        let total = Arc::new(Budget::new(4));
        let place = |lease_id| Place { dir: dir.path(), lease_id, bytes_max: 100, total: &total };
        let full = || {
            let mut kept = Kept::Memory(Ring::new(4));
            kept.push(b"abcd").unwrap();
            kept
        };
        let (mut first, mut second) = (full(), full());
        let (a, b) = (LeaseId::mint(), LeaseId::mint());
        assert!(first.spool(&place(a)));
        assert_eq!(first.room(true, 9, &place(a)), 0, "there is no more of it");
        assert!(!second.spool(&place(b)) && Spool::find(dir.path(), b, Arc::clone(&total)).is_none());
        assert_eq!(second.read(0, 9).unwrap(), b"abcd", "it stays in memory");
        first.discard();
        assert!(second.spool(&place(b)));
    }
}
