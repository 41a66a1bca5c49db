//! Storage of unacknowledged output: in memory, or in a spool file once the lease is ending (H1).

use crate::core::ring::{OutOfRange, ReadDecision, Ring};
use crate::relay::snapshot::{OutputState, SpoolState};
use crate::relay::spool_dir::GatewaySpools;
use crate::sys::blocking_io;
use acp_shared::ids::LeaseId;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum size of one read into a spool, in bytes.
const SPOOL_PIECE_BYTES: usize = 64 * 1024;

/// Spool file. Its name contains the lease id and the offset of the first byte. The file is open only during
/// reads and writes, because many ended leases may have one.
#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
    start: u64,
    base: u64,
    end: u64,
    gateway_spools: GatewaySpools,
}

/// Creates a file with these bytes. On failure the file is removed: a partial file would look complete to the
/// next supervisor.
fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all_at(bytes, 0).inspect_err(|_| drop(std::fs::remove_file(path)))
}

/// Writes at the offset after the last byte, which overwrites the remains of a failed write.
fn append(path: &Path, bytes: &[u8], at: u64) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all_at(bytes, at)
}

fn read(path: &Path, bytes: usize, at: u64) -> io::Result<Vec<u8>> {
    let mut all = vec![0; bytes];
    File::open(path)?.read_exact_at(&mut all, at)?;
    Ok(all)
}

impl Spool {
    /// Parses a file name into lease id and offset of the first byte; `None` if the name is not that of a
    /// spool.
    pub(super) fn of_name(name: &str) -> Option<(LeaseId, u64)> {
        let (lease_id, start) = name.strip_suffix(".out")?.split_once('.')?;
        Some((LeaseId::parse(lease_id).ok()?, start.parse().ok()?))
    }

    /// Finds the spool of a lease, if any. Blocks.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn find(gateway_spools: &GatewaySpools, lease_id: LeaseId) -> io::Result<Option<Self>> {
        for entry in std::fs::read_dir(&gateway_spools.dir)? {
            let entry = entry?;
            let Some((of, start)) = entry.file_name().to_str().and_then(Self::of_name) else { continue };
            if of == lease_id {
                let end = start + entry.metadata()?.len();
                return Ok(Some(Self {
                    path: entry.path(),
                    start,
                    base: start,
                    end,
                    gateway_spools: gateway_spools.clone(),
                }));
            }
        }
        Ok(None)
    }

    /// Returns the offset after the last byte.
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    async fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let slot = self.gateway_spools.disk.slot().await?;
        let (path, bytes, at) = (self.path.clone(), bytes.to_vec(), self.end - self.start);
        let count = bytes.len() as u64;
        blocking_io::run(slot, move || append(&path, &bytes, at)).await??;
        self.end += count;
        self.gateway_spools.total.add(count);
        Ok(())
    }

    async fn read(&self, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (path, count, at) = (self.path.clone(), left.min(bytes_max), offset - self.start);
        self.gateway_spools.disk.run(move || read(&path, count, at)).await?
    }

    /// Removes the file.
    pub(super) async fn remove(self) {
        let path = self.path.clone();
        let removed = self.gateway_spools.disk.run(move || std::fs::remove_file(path)).await;
        match removed.flatten() {
            Ok(()) => self.gateway_spools.total.give_back(self.end - self.start),
            // The file may be removed twice, on release and on expiry.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, path = %self.path.display(), "cannot remove a spool"),
        }
    }
}

/// Received output that is not acknowledged.
#[derive(Debug)]
pub(super) enum OutputBuffer {
    /// Memory buffer of a running agent.
    Memory(Ring),
    /// Spool of an ending lease.
    Disk(Spool),
}

impl OutputBuffer {
    /// Exports the state.
    pub(super) fn export(self) -> OutputState {
        match self {
            Self::Memory(ring) => OutputState { base: ring.base(), bytes: ring.into_bytes(), spool: None },
            Self::Disk(Spool { path, start, base, end, .. }) => {
                OutputState { base, bytes: Vec::new(), spool: Some(SpoolState { path, start, end }) }
            }
        }
    }

    /// Imports an exported state.
    pub(super) fn import(frozen: OutputState, bytes_max: usize, gateway_spools: &GatewaySpools) -> Self {
        let OutputState { base, bytes, spool } = frozen;
        match spool {
            None => Self::Memory(Ring::with(base, bytes, bytes_max)),
            Some(SpoolState { path, start, end }) => {
                Self::Disk(Spool { path, start, base, end, gateway_spools: gateway_spools.clone() })
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

    /// Returns the memory in use, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Memory(ring) => ring.len() as u64,
            Self::Disk(_) => 0,
        }
    }

    /// Returns how many bytes to read from the pipe now, at most `piece`; 0 leaves them in the pipe. Moves
    /// the output to disk if memory is full and the lease is closing.
    pub(super) async fn read_space(&mut self, closing: bool, piece: usize, place: &SpoolTarget<'_>) -> usize {
        match self {
            Self::Disk(spool)
                if spool.end - spool.start >= place.bytes_max || place.gateway_spools.total.is_spent() =>
            {
                0
            }
            Self::Disk(_) => piece.min(SPOOL_PIECE_BYTES),
            Self::Memory(ring) => match ring.intake(closing) {
                ReadDecision::Ring(room) => room.min(piece),
                ReadDecision::Wait => 0,
                ReadDecision::Spool => {
                    if self.spool(place).await {
                        piece.min(SPOOL_PIECE_BYTES)
                    } else {
                        0
                    }
                }
            },
        }
    }

    /// Moves everything to disk. Returns false on failure; then everything stays in memory.
    pub(super) async fn spool(&mut self, place: &SpoolTarget<'_>) -> bool {
        let Self::Memory(ring) = self else { return true };
        if place.gateway_spools.total.is_spent() {
            tracing::debug!(
                lease_id = %place.lease_id,
                "spool limit of gateway reached; output stays in memory"
            );
            return false;
        }
        match write_spool(ring, place).await {
            Ok(spool) => {
                *self = Self::Disk(spool);
                true
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    lease_id = %place.lease_id,
                    "spooling output failed; output stays in memory"
                );
                false
            }
        }
    }

    /// Appends bytes. If the disk fails, returns an error and changes nothing.
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

    /// Drops everything, including the file.
    pub(super) async fn discard(self) {
        if let Self::Disk(spool) = self {
            spool.remove().await;
        }
    }

    /// Handles a missing spool file: all output up to the current end is lost.
    pub(super) fn mark_lost(&mut self) {
        if let Self::Disk(spool) = self {
            spool.gateway_spools.total.give_back(spool.end - spool.start);
        }
        *self = Self::Memory(Ring::ended_at(self.end()));
    }
}

/// Writes all bytes of a ring to a file.
async fn write_spool(ring: &Ring, place: &SpoolTarget<'_>) -> io::Result<Spool> {
    // The copy is made only with a slot, which limits the number of copies in memory.
    let slot = place.gateway_spools.disk.slot().await?;
    let (start, bytes) = (ring.base(), ring.read(ring.base(), usize::MAX).map_err(io::Error::other)?);
    let path = place.gateway_spools.dir.join(format!("{}.{start}.out", place.lease_id));
    let (at, count) = (path.clone(), bytes.len() as u64);
    blocking_io::run(slot, move || create(&at, &bytes)).await??;
    place.gateway_spools.total.add(count);
    Ok(Spool { path, start, base: start, end: start + count, gateway_spools: place.gateway_spools.clone() })
}

/// Destination of a spool.
pub(super) struct SpoolTarget<'a> {
    pub(super) gateway_spools: &'a GatewaySpools,
    pub(super) lease_id: LeaseId,
    pub(super) bytes_max: u64,
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::super::budget::ByteBudget;
    use super::*;
    use std::sync::Arc;

    fn gateway_spools(dir: &Path, bytes_max: u64) -> GatewaySpools {
        GatewaySpools {
            dir: dir.into(),
            total: Arc::new(ByteBudget::new(bytes_max)),
            disk: blocking_io::Disk::default(),
        }
    }

    fn found(gateway_spools: &GatewaySpools, lease_id: LeaseId) -> Option<Spool> {
        Spool::find(gateway_spools, lease_id).unwrap()
    }

    #[tokio::test]
    async fn full_ring_is_spooled_only_while_closing() {
        let dir = tempfile::tempdir().unwrap();
        let gateway_spools = gateway_spools(dir.path(), 1_000);
        let target =
            SpoolTarget { gateway_spools: &gateway_spools, lease_id: LeaseId::mint(), bytes_max: 12 };
        let mut buffer = OutputBuffer::Memory(Ring::new(8));
        buffer.push(b"abcdefgh").await.unwrap();
        buffer.ack(2).unwrap();
        assert_eq!(buffer.read_space(false, 100, &target).await, 2);
        buffer.push(b"ij").await.unwrap();
        assert_eq!(buffer.read_space(false, 100, &target).await, 0);
        assert_eq!(buffer.read_space(true, 100, &target).await, 100);
        buffer.push(b"klmn").await.unwrap();
        assert_eq!((buffer.base(), buffer.end()), (2, 14));
        assert_eq!(buffer.read_space(true, 100, &target).await, 0, "the spool size is limited");
        assert_eq!(buffer.read(2, 100).await.unwrap(), b"cdefghijklmn");
        assert_eq!(buffer.read(9, 2).await.unwrap(), b"jk");
        buffer.ack(5).unwrap();
        assert!(buffer.ack(15).is_err());

        // The next supervisor finds the spool.
        let found = OutputBuffer::Disk(self::found(&gateway_spools, target.lease_id).unwrap());
        assert_eq!((found.base(), found.end()), (2, 14));
        assert_eq!(found.read(12, 100).await.unwrap(), b"mn");
        found.discard().await;
        assert!(self::found(&gateway_spools, target.lease_id).is_none());
    }

    #[tokio::test]
    async fn output_stays_in_memory_without_disk() {
        let gateway_spools = gateway_spools(Path::new("/nonexistent"), 1_000);
        let target =
            SpoolTarget { gateway_spools: &gateway_spools, lease_id: LeaseId::mint(), bytes_max: 100 };
        let mut buffer = OutputBuffer::Memory(Ring::new(2));
        buffer.push(b"ab").await.unwrap();
        assert_eq!(buffer.read_space(true, 9, &target).await, 0);
        assert_eq!(buffer.read(0, 9).await.unwrap(), b"ab");
    }

    #[tokio::test]
    async fn spools_of_gateway_share_one_limit() {
        let dir = tempfile::tempdir().unwrap();
        let gateway_spools = gateway_spools(dir.path(), 4);
        let target = |lease_id| SpoolTarget { gateway_spools: &gateway_spools, lease_id, bytes_max: 100 };
        let full = || OutputBuffer::Memory(Ring::with(0, b"abcd".to_vec(), 4));
        let (mut first, mut second) = (full(), full());
        let (a, b) = (LeaseId::mint(), LeaseId::mint());
        assert!(first.spool(&target(a)).await);
        assert_eq!(first.read_space(true, 9, &target(a)).await, 0, "the total is spent");
        assert!(!second.spool(&target(b)).await && found(&gateway_spools, b).is_none());
        assert_eq!(second.read(0, 9).await.unwrap(), b"abcd", "the output stays in memory");
        first.discard().await;
        assert!(second.spool(&target(b)).await);
    }
}
