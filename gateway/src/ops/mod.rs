//! Periodic work and observation: retention, timeouts, integrity check, orphaned leases, metrics.

pub(crate) mod integrity_check;
pub(crate) mod metrics_endpoint;
pub(crate) mod orphaned_leases;
pub(crate) mod retention;
pub(crate) mod timeouts;
