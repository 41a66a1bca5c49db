//! Spool directory: unacknowledged output of ended agents, bounded per gateway, across restarts.

use super::budget::ByteBudget;
use crate::relay::buffer::Spool;
use crate::sys::blocking_io::Disk;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Spool destination of one gateway.
#[derive(Debug, Clone)]
pub struct GatewaySpools {
    pub(super) dir: Arc<Path>,
    /// Disk usage of the gateway.
    pub(super) total: Arc<ByteBudget>,
    pub(super) disk: Disk,
}

/// Spool directory and the disk usage of each gateway.
#[derive(Debug)]
pub struct SpoolDir {
    dir: Arc<Path>,
    disk: Disk,
    bytes_max: u64,
    totals: Mutex<HashMap<GatewayInstanceId, Arc<ByteBudget>>>,
}

impl SpoolDir {
    /// Creates the directory handle with `bytes_max` per gateway. Existing files are not counted yet.
    #[must_use]
    pub fn new(dir: &Path, bytes_max: u64) -> Self {
        Self { dir: dir.into(), disk: Disk::default(), bytes_max, totals: Mutex::default() }
    }

    /// Returns the spool destination of a gateway.
    #[must_use]
    pub fn gateway_spools(&self, gateway: GatewayInstanceId) -> GatewaySpools {
        let mut totals = self.totals.lock();
        if !totals.contains_key(&gateway) {
            // Drops the unused budgets.
            totals.retain(|_, total| Arc::strong_count(total) > 1 || total.used() > 0);
        }
        let total = totals.entry(gateway).or_insert_with(|| Arc::new(ByteBudget::new(self.bytes_max)));
        GatewaySpools { dir: Arc::clone(&self.dir), total: Arc::clone(total), disk: self.disk.clone() }
    }

    /// Returns the disk of the directory.
    #[must_use]
    pub const fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Counts the existing spools of these leases. Returns the spools of unknown leases; other files are
    /// ignored.
    #[must_use]
    pub fn scan(&self, leases: impl Iterator<Item = (GatewayInstanceId, LeaseId)>) -> Vec<PathBuf> {
        let of: HashMap<LeaseId, GatewayInstanceId> =
            leases.map(|(gateway, lease)| (lease, gateway)).collect();
        let mut nobodys = Vec::new();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some((lease, _)) = name.to_str().and_then(Spool::of_name) else { continue };
            match (of.get(&lease), entry.metadata()) {
                (Some(gateway), Ok(meta)) => self.gateway_spools(*gateway).total.add(meta.len()),
                (None, Ok(meta)) if meta.is_file() => nobodys.push(entry.path()),
                (_, Ok(_) | Err(_)) => {}
            }
        }
        nobodys
    }

    /// Returns the offset after the last kept byte of a lease, if any. Blocks.
    #[must_use]
    pub fn end(&self, gateway: GatewayInstanceId, lease_id: LeaseId) -> Option<u64> {
        Spool::find(&self.gateway_spools(gateway), lease_id).ok()?.map(|spool| spool.end())
    }

    /// Removes the spool of a lease in the background.
    pub fn remove(&self, gateway: GatewayInstanceId, lease_id: LeaseId) {
        let gateway_spools = self.gateway_spools(gateway);
        tokio::spawn(async move {
            let (disk, at) = (gateway_spools.disk.clone(), gateway_spools);
            match disk.run(move || Spool::find(&at, lease_id)).await.flatten() {
                Ok(Some(spool)) => spool.remove().await,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, %lease_id, "spool lookup failed"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[tokio::test]
    async fn spools_of_earlier_supervisor_count() {
        let dir = tempfile::tempdir().unwrap();
        let (gateway, other, lease) = (GatewayInstanceId::mint(), GatewayInstanceId::mint(), LeaseId::mint());
        std::fs::write(dir.path().join(format!("{lease}.7.out")), b"12345").unwrap();
        std::fs::write(dir.path().join("something else"), b"12345").unwrap();
        let spools = SpoolDir::new(dir.path(), 5);
        assert!(!spools.gateway_spools(gateway).total.is_spent());
        let unknown = LeaseId::mint();
        let orphan = dir.path().join(format!("{unknown}.0.out"));
        for name in [orphan.clone(), dir.path().join(format!("{unknown}.out")), dir.path().join("x.0.out")] {
            std::fs::write(name, b"1").unwrap();
        }
        assert_eq!(spools.scan([(gateway, lease)].into_iter()), [orphan]);
        assert!(spools.gateway_spools(gateway).total.is_spent());
        assert!(!spools.gateway_spools(other).total.is_spent());
        assert_eq!(spools.end(gateway, lease), Some(12));
        Spool::find(&spools.gateway_spools(gateway), lease).unwrap().unwrap().remove().await;
        assert!(!spools.gateway_spools(gateway).total.is_spent());
        assert_eq!(spools.end(gateway, lease), None);
    }

    #[test]
    fn gateways_without_spools_are_forgotten() {
        let spools = SpoolDir::new(Path::new("/nowhere"), 5);
        let (writing, full) = (GatewayInstanceId::mint(), GatewayInstanceId::mint());
        let held = spools.gateway_spools(writing).total;
        spools.gateway_spools(full).total.add(5);
        for _ in 0..100 {
            drop(spools.gateway_spools(GatewayInstanceId::mint()));
        }
        assert_eq!(spools.totals.lock().len(), 3);
        assert!(Arc::ptr_eq(&held, &spools.gateway_spools(writing).total));
        assert!(spools.gateway_spools(full).total.is_spent());
    }
}
