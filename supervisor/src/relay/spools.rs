//! What ended agents said and nobody has acknowledged, on disk: bounded for each gateway, across restarts.

use super::budget::Budget;
use super::kept::Spool;
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The directory of spools, and how much each gateway has in it.
#[derive(Debug)]
pub struct Spools {
    dir: PathBuf,
    bytes_max: u64,
    totals: Mutex<HashMap<GatewayInstanceId, Arc<Budget>>>,
}

impl Spools {
    /// Nothing counted yet of what lies in `dir`; `bytes_max` for each gateway.
    #[must_use]
    pub fn new(dir: PathBuf, bytes_max: u64) -> Self {
        Self { dir, bytes_max, totals: Mutex::default() }
    }

    /// Where they lie.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What a gateway has on disk.
    #[must_use]
    pub fn total(&self, gateway: GatewayInstanceId) -> Arc<Budget> {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(totals.entry(gateway).or_insert_with(|| Arc::new(Budget::new(self.bytes_max))))
    }

    /// Counts what an earlier supervisor left of these leases.
    pub fn count(&self, leases: impl Iterator<Item = (GatewayInstanceId, LeaseId)>) {
        let of: HashMap<LeaseId, GatewayInstanceId> =
            leases.map(|(gateway, lease)| (lease, gateway)).collect();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let lease = name.to_str().and_then(|name| LeaseId::parse(name.split('.').next()?).ok());
            if let (Some(gateway), Ok(meta)) = (lease.and_then(|id| of.get(&id)), entry.metadata()) {
                self.total(*gateway).add(meta.len());
            }
        }
    }

    /// One past the last byte that is kept of a lease, if something is.
    #[must_use]
    pub fn end(&self, gateway: GatewayInstanceId, lease_id: LeaseId) -> Option<u64> {
        Spool::find(&self.dir, lease_id, self.total(gateway)).map(|spool| spool.end())
    }

    /// Removes what is kept of a lease, where it holds up nobody.
    pub fn forget(&self, gateway: GatewayInstanceId, lease_id: LeaseId) {
        let (dir, total) = (self.dir.clone(), self.total(gateway));
        tokio::task::spawn_blocking(move || {
            if let Some(spool) = Spool::find(&dir, lease_id, total) {
                spool.remove();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn what_an_earlier_supervisor_left_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (gateway, other, lease) = (GatewayInstanceId::mint(), GatewayInstanceId::mint(), LeaseId::mint());
        std::fs::write(dir.path().join(format!("{lease}.7.out")), b"12345").unwrap();
        std::fs::write(dir.path().join("something else"), b"12345").unwrap();
        let spools = Spools::new(dir.path().to_owned(), 5);
        assert!(!spools.total(gateway).is_spent());
        spools.count([(gateway, lease)].into_iter());
        assert!(spools.total(gateway).is_spent() && !spools.total(other).is_spent());
        assert_eq!(spools.end(gateway, lease), Some(12));
        Spool::find(dir.path(), lease, spools.total(gateway)).unwrap().remove();
        assert!(!spools.total(gateway).is_spent());
        assert_eq!(spools.end(gateway, lease), None);
    }
}
