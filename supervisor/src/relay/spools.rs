//! What ended agents said and nobody has acknowledged, on disk: bounded for each gateway, across restarts.

use super::budget::Budget;
use super::kept::Spool;
use crate::disk::Disk;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the spools of one gateway go.
#[derive(Debug, Clone)]
pub struct Shelf {
    pub(super) dir: Arc<Path>,
    /// What the gateway has there.
    pub(super) total: Arc<Budget>,
    pub(super) disk: Disk,
}

/// The directory of spools, and how much each gateway has in it.
#[derive(Debug)]
pub struct Spools {
    dir: Arc<Path>,
    disk: Disk,
    bytes_max: u64,
    totals: Mutex<HashMap<GatewayInstanceId, Arc<Budget>>>,
}

impl Spools {
    /// Nothing counted yet of what lies in `dir`; `bytes_max` for each gateway.
    #[must_use]
    pub fn new(dir: &Path, bytes_max: u64) -> Self {
        Self { dir: dir.into(), disk: Disk::default(), bytes_max, totals: Mutex::default() }
    }

    /// Where those of a gateway go.
    #[must_use]
    pub fn shelf(&self, gateway: GatewayInstanceId) -> Shelf {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let total = totals.entry(gateway).or_insert_with(|| Arc::new(Budget::new(self.bytes_max)));
        Shelf { dir: Arc::clone(&self.dir), total: Arc::clone(total), disk: self.disk.clone() }
    }

    /// The disk that they lie on.
    #[must_use]
    pub const fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Counts what an earlier supervisor left of these leases.
    pub fn count(&self, leases: impl Iterator<Item = (GatewayInstanceId, LeaseId)>) {
        let of: HashMap<LeaseId, GatewayInstanceId> =
            leases.map(|(gateway, lease)| (lease, gateway)).collect();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let lease = name.to_str().and_then(|name| LeaseId::parse(name.split('.').next()?).ok());
            if let (Some(gateway), Ok(meta)) = (lease.and_then(|id| of.get(&id)), entry.metadata()) {
                self.shelf(*gateway).total.add(meta.len());
            }
        }
    }

    /// One past the last byte that is kept of a lease, if something is. This blocks.
    #[must_use]
    pub fn end(&self, gateway: GatewayInstanceId, lease_id: LeaseId) -> Option<u64> {
        Spool::find(&self.shelf(gateway), lease_id).ok()?.map(|spool| spool.end())
    }

    /// Removes what is kept of a lease, where it holds up nobody.
    pub fn forget(&self, gateway: GatewayInstanceId, lease_id: LeaseId) {
        let shelf = self.shelf(gateway);
        tokio::spawn(async move {
            let (disk, at) = (shelf.disk.clone(), shelf);
            match disk.run(move || Spool::find(&at, lease_id)).await.flatten() {
                Ok(Some(spool)) => spool.remove().await,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, %lease_id, "cannot look for the spool of a lease"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[tokio::test]
    async fn what_an_earlier_supervisor_left_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (gateway, other, lease) = (GatewayInstanceId::mint(), GatewayInstanceId::mint(), LeaseId::mint());
        std::fs::write(dir.path().join(format!("{lease}.7.out")), b"12345").unwrap();
        std::fs::write(dir.path().join("something else"), b"12345").unwrap();
        let spools = Spools::new(dir.path(), 5);
        assert!(!spools.shelf(gateway).total.is_spent());
        spools.count([(gateway, lease)].into_iter());
        assert!(spools.shelf(gateway).total.is_spent() && !spools.shelf(other).total.is_spent());
        assert_eq!(spools.end(gateway, lease), Some(12));
        Spool::find(&spools.shelf(gateway), lease).unwrap().unwrap().remove().await;
        assert!(!spools.shelf(gateway).total.is_spent());
        assert_eq!(spools.end(gateway, lease), None);
    }
}
