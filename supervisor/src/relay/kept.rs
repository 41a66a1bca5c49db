//! What is kept of the output: in memory, or in a spool file once the lease is ending (H1).

use super::frozen::{KeptState, SpoolState};
use crate::core::ring::{Intake, OutOfRange, Ring};
use crate::handover::Passed;
use acp_shared::ids::LeaseId;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

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
}

impl Spool {
    fn create(dir: &Path, lease_id: LeaseId, start: u64) -> io::Result<Self> {
        let path = dir.join(format!("{lease_id}.{start}.out"));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { path, file, start, base: start, end: start })
    }

    /// The spool of a lease, if there is one.
    pub(super) fn find(dir: &Path, lease_id: LeaseId) -> Option<Self> {
        let prefix = format!("{lease_id}.");
        let entries = std::fs::read_dir(dir).ok()?;
        entries.flatten().find_map(|entry| {
            let name = entry.file_name();
            let start: u64 = name.to_str()?.strip_prefix(&prefix)?.strip_suffix(".out")?.parse().ok()?;
            let path = entry.path();
            let file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
            let end = start + file.metadata().ok()?.len();
            Some(Self { path, file, start, base: start, end })
        })
    }

    /// One past its last byte.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.end - self.start)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn read(&self, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; left.min(bytes_max)];
        self.file.read_exact_at(&mut bytes, offset - self.start)?;
        Ok(bytes)
    }

    /// Removes the file.
    pub(super) fn remove(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove a spool");
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
    pub(super) fn thaw(frozen: KeptState, bytes_max: usize) -> Self {
        let KeptState { base, bytes, spool } = frozen;
        let Some(SpoolState { path, file, start, end }) = spool else {
            return Self::Memory(Ring::with(base, bytes, bytes_max));
        };
        match file.take() {
            Ok(file) => Self::Disk(Spool { path, file: file.into(), start, base, end }),
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
            Self::Disk(spool) if spool.end - spool.start >= place.bytes_max => 0,
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
        let spooled = Spool::create(place.dir, place.lease_id, ring.base()).and_then(|mut spool| {
            let bytes = ring.read(ring.base(), usize::MAX).map_err(io::Error::other)?;
            spool.append(&bytes)?;
            Ok(spool)
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
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn a_full_ring_goes_spool_only_while_closing() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { dir: dir.path(), lease_id: LeaseId::mint(), bytes_max: 12 };
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
        let found = Kept::Disk(Spool::find(dir.path(), place.lease_id).unwrap());
        assert_eq!((found.base(), found.end()), (2, 14));
        assert_eq!(found.read(12, 100).unwrap(), b"mn");
        found.discard();
        assert!(Spool::find(dir.path(), place.lease_id).is_none());
    }

    #[test]
    fn without_a_disk_everything_stays_in_memory() {
        let place = Place { dir: Path::new("/nonexistent"), lease_id: LeaseId::mint(), bytes_max: 100 };
        let mut kept = Kept::Memory(Ring::new(2));
        kept.push(b"ab").unwrap();
        assert_eq!(kept.room(true, 9, &place), 0);
        assert_eq!(kept.read(0, 9).unwrap(), b"ab");
    }
}
