//! What is kept of the output: in memory, or in a spool file once the lease is ending (H1).

use super::frozen::{KeptState, SpoolState};
use super::spools::Shelf;
use crate::core::ring::{Intake, OutOfRange, Ring};
use crate::disk;
use acp_shared::ids::LeaseId;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The largest piece read into a spool at once.
const SPOOL_PIECE_BYTES: usize = 64 * 1024;

/// A file of output. Its name says which lease it is of and the offset of its first byte. It is open only while it is
/// read or written: many ended leases have one.
#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
    start: u64,
    base: u64,
    end: u64,
    shelf: Shelf,
}

/// Makes a file of these bytes. A part of them would be taken for all by the next supervisor: it is all or nothing.
fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all_at(bytes, 0).inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// Writes where the last byte was: what a failed write left there is overwritten.
fn append(path: &Path, bytes: &[u8], at: u64) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all_at(bytes, at)
}

fn read(path: &Path, bytes: usize, at: u64) -> io::Result<Vec<u8>> {
    let mut all = vec![0; bytes];
    File::open(path)?.read_exact_at(&mut all, at)?;
    Ok(all)
}

impl Spool {
    /// Which lease a file of this name is of, and the offset of its first byte; `None` for names that no spool has.
    pub(super) fn of_name(name: &str) -> Option<(LeaseId, u64)> {
        let (lease_id, start) = name.strip_suffix(".out")?.split_once('.')?;
        Some((LeaseId::parse(lease_id).ok()?, start.parse().ok()?))
    }

    /// The spool of a lease, if there is one. This blocks.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn find(shelf: &Shelf, lease_id: LeaseId) -> io::Result<Option<Self>> {
        for entry in std::fs::read_dir(&shelf.dir)? {
            let entry = entry?;
            let Some((of, start)) = entry.file_name().to_str().and_then(Self::of_name) else { continue };
            if of == lease_id {
                let end = start + entry.metadata()?.len();
                return Ok(Some(Self { path: entry.path(), start, base: start, end, shelf: shelf.clone() }));
            }
        }
        Ok(None)
    }

    /// One past its last byte.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    async fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let slot = self.shelf.disk.slot().await?;
        let (path, bytes, at) = (self.path.clone(), bytes.to_vec(), self.end - self.start);
        let count = bytes.len() as u64;
        disk::run(slot, move || append(&path, &bytes, at)).await??;
        self.end += count;
        self.shelf.total.add(count);
        Ok(())
    }

    async fn read(&self, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (path, count, at) = (self.path.clone(), left.min(bytes_max), offset - self.start);
        self.shelf.disk.run(move || read(&path, count, at)).await?
    }

    /// Removes the file.
    pub(super) async fn remove(self) {
        let path = self.path.clone();
        let removed = self.shelf.disk.run(move || std::fs::remove_file(path)).await;
        match removed.flatten() {
            Ok(()) => self.shelf.total.give_back(self.end - self.start),
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
            Self::Disk(Spool { path, start, base, end, .. }) => {
                KeptState { base, bytes: Vec::new(), spool: Some(SpoolState { path, start, end }) }
            }
        }
    }

    /// Goes on where another one was frozen.
    pub(super) fn thaw(frozen: KeptState, bytes_max: usize, shelf: &Shelf) -> Self {
        let KeptState { base, bytes, spool } = frozen;
        match spool {
            None => Self::Memory(Ring::with(base, bytes, bytes_max)),
            Some(SpoolState { path, start, end }) => {
                Self::Disk(Spool { path, start, base, end, shelf: shelf.clone() })
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
    pub(super) async fn room(&mut self, closing: bool, piece: usize, place: &Place<'_>) -> usize {
        match self {
            Self::Disk(spool)
                if spool.end - spool.start >= place.bytes_max || place.shelf.total.is_spent() =>
            {
                0
            }
            Self::Disk(_) => piece.min(SPOOL_PIECE_BYTES),
            Self::Memory(ring) => match ring.intake(closing) {
                Intake::Ring(room) => room.min(piece),
                Intake::Wait => 0,
                Intake::Spool => {
                    if self.spool(place).await {
                        piece.min(SPOOL_PIECE_BYTES)
                    } else {
                        0
                    }
                }
            },
        }
    }

    /// Moves everything to disk; `false` when that fails, and everything stays in memory.
    pub(super) async fn spool(&mut self, place: &Place<'_>) -> bool {
        let Self::Memory(ring) = self else { return true };
        if place.shelf.total.is_spent() {
            tracing::debug!(lease_id = %place.lease_id, "this gateway has all its output on disk; more stays in memory");
            return false;
        }
        match spooled(ring, place).await {
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
    pub(super) async fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Memory(ring) => ring.push(bytes),
            Self::Disk(spool) => spool.append(bytes).await?,
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

    pub(super) async fn read(&self, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::Memory(ring) => ring.read(offset, bytes_max).map_err(io::Error::other),
            Self::Disk(spool) => spool.read(offset, bytes_max).await,
        }
    }

    /// Drops everything, the file too.
    pub(super) async fn discard(self) {
        if let Self::Disk(spool) = self {
            spool.remove().await;
        }
    }

    /// The file has gone from under it: nothing is kept from here on.
    pub(super) fn lose(&mut self) {
        if let Self::Disk(spool) = self {
            spool.shelf.total.give_back(spool.end - spool.start);
        }
        *self = Self::Memory(Ring::ended_at(self.end()));
    }
}

/// Everything of a ring in a file.
async fn spooled(ring: &Ring, place: &Place<'_>) -> io::Result<Spool> {
    // Only who has its turn holds everything twice.
    let slot = place.shelf.disk.slot().await?;
    let (start, bytes) = (ring.base(), ring.read(ring.base(), usize::MAX).map_err(io::Error::other)?);
    let path = place.shelf.dir.join(format!("{}.{start}.out", place.lease_id));
    let (at, count) = (path.clone(), bytes.len() as u64);
    disk::run(slot, move || create(&at, &bytes)).await??;
    place.shelf.total.add(count);
    Ok(Spool { path, start, base: start, end: start + count, shelf: place.shelf.clone() })
}

/// Where a spool would go.
pub(super) struct Place<'a> {
    pub(super) shelf: &'a Shelf,
    pub(super) lease_id: LeaseId,
    pub(super) bytes_max: u64,
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::super::budget::Budget;
    use super::*;
    use std::sync::Arc;

    fn shelf(dir: &Path, bytes_max: u64) -> Shelf {
        Shelf { dir: dir.into(), total: Arc::new(Budget::new(bytes_max)), disk: disk::Disk::default() }
    }

    fn found(shelf: &Shelf, lease_id: LeaseId) -> Option<Spool> {
        Spool::find(shelf, lease_id).unwrap()
    }

    #[tokio::test]
    async fn a_full_ring_goes_spool_only_while_closing() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = shelf(dir.path(), 1_000);
        let place = Place { shelf: &shelf, lease_id: LeaseId::mint(), bytes_max: 12 };
        let mut kept = Kept::Memory(Ring::new(8));
        kept.push(b"abcdefgh").await.unwrap();
        kept.ack(2).unwrap();
        assert_eq!(kept.room(false, 100, &place).await, 2);
        kept.push(b"ij").await.unwrap();
        assert_eq!(kept.room(false, 100, &place).await, 0);
        assert_eq!(kept.room(true, 100, &place).await, 100);
        kept.push(b"klmn").await.unwrap();
        assert_eq!((kept.base(), kept.end()), (2, 14));
        assert_eq!(kept.room(true, 100, &place).await, 0, "the spool has a limit too");
        assert_eq!(kept.read(2, 100).await.unwrap(), b"cdefghijklmn");
        assert_eq!(kept.read(9, 2).await.unwrap(), b"jk");
        kept.ack(5).unwrap();
        assert!(kept.ack(15).is_err());

        // The next supervisor finds it.
        let found = Kept::Disk(self::found(&shelf, place.lease_id).unwrap());
        assert_eq!((found.base(), found.end()), (2, 14));
        assert_eq!(found.read(12, 100).await.unwrap(), b"mn");
        found.discard().await;
        assert!(self::found(&shelf, place.lease_id).is_none());
    }

    #[tokio::test]
    async fn without_a_disk_everything_stays_in_memory() {
        let shelf = shelf(Path::new("/nonexistent"), 1_000);
        let place = Place { shelf: &shelf, lease_id: LeaseId::mint(), bytes_max: 100 };
        let mut kept = Kept::Memory(Ring::new(2));
        kept.push(b"ab").await.unwrap();
        assert_eq!(kept.room(true, 9, &place).await, 0);
        assert_eq!(kept.read(0, 9).await.unwrap(), b"ab");
    }

    #[tokio::test]
    async fn all_spools_of_a_gateway_have_one_limit() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = shelf(dir.path(), 4);
        let place = |lease_id| Place { shelf: &shelf, lease_id, bytes_max: 100 };
        let full = || Kept::Memory(Ring::with(0, b"abcd".to_vec(), 4));
        let (mut first, mut second) = (full(), full());
        let (a, b) = (LeaseId::mint(), LeaseId::mint());
        assert!(first.spool(&place(a)).await);
        assert_eq!(first.room(true, 9, &place(a)).await, 0, "there is no more of it");
        assert!(!second.spool(&place(b)).await && found(&shelf, b).is_none());
        assert_eq!(second.read(0, 9).await.unwrap(), b"abcd", "it stays in memory");
        first.discard().await;
        assert!(second.spool(&place(b)).await);
    }
}
