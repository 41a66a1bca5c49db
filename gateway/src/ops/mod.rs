//! Periodic work and observation: completions, retention, timeouts, integrity check, orphaned leases, metrics, webhooks.

pub(crate) mod completions;
pub(crate) mod integrity_check;
pub(crate) mod metrics_endpoint;
pub(crate) mod notify;
pub(crate) mod orphaned_leases;
pub(crate) mod retention;
pub(crate) mod shared_sessions;
pub(crate) mod timeouts;
