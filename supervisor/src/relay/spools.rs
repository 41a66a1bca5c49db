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
        if !totals.contains_key(&gateway) {
            // Nobody writes for these, and nothing of them is there.
            totals.retain(|_, total| Arc::strong_count(total) > 1 || total.used() > 0);
        }
        Arc::clone(totals.entry(gateway).or_insert_with(|| Arc::new(Budget::new(self.bytes_max))))
    }

    /// Counts what an earlier supervisor left of these leases. Returns the files whose lease is none of them; what no
    /// supervisor would have made here is not looked at.
    #[must_use]
    pub fn count(&self, leases: impl Iterator<Item = (GatewayInstanceId, LeaseId)>) -> Vec<PathBuf> {
        let of: HashMap<LeaseId, GatewayInstanceId> =
            leases.map(|(gateway, lease)| (lease, gateway)).collect();
        let mut nobodys = Vec::new();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some((lease, _)) = name.to_str().and_then(Spool::of_name) else { continue };
            match (of.get(&lease), entry.metadata()) {
                (Some(gateway), Ok(meta)) => self.total(*gateway).add(meta.len()),
                (None, Ok(meta)) if meta.is_file() => nobodys.push(entry.path()),
                (_, Ok(_) | Err(_)) => {}
            }
        }
        nobodys
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
        let nobodys = LeaseId::mint();
        let orphan = dir.path().join(format!("{nobodys}.0.out"));
        for name in [orphan.clone(), dir.path().join(format!("{nobodys}.out")), dir.path().join("x.0.out")] {
            std::fs::write(name, b"1").unwrap();
        }
        assert_eq!(spools.count([(gateway, lease)].into_iter()), [orphan]);
        assert!(spools.total(gateway).is_spent() && !spools.total(other).is_spent());
        assert_eq!(spools.end(gateway, lease), Some(12));
        Spool::find(dir.path(), lease, spools.total(gateway)).unwrap().remove();
        assert!(!spools.total(gateway).is_spent());
        assert_eq!(spools.end(gateway, lease), None);
    }

    #[test]
    fn gateways_that_have_nothing_are_not_remembered() {
        let spools = Spools::new(PathBuf::from("/nowhere"), 5);
        let (writes, full) = (GatewayInstanceId::mint(), GatewayInstanceId::mint());
        let held = spools.total(writes);
        spools.total(full).add(5);
        for _ in 0..100 {
            drop(spools.total(GatewayInstanceId::mint()));
        }
        assert_eq!(spools.totals.lock().unwrap().len(), 3);
        assert!(Arc::ptr_eq(&held, &spools.total(writes)) && spools.total(full).is_spent());
    }
}
