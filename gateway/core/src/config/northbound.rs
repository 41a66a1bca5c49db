//! `northbound.*`: clients that speak ACP to the gateway.

use serde::{Deserialize, Serialize};

/// `northbound.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Northbound {
    /// Serves ACP at `/acp`. Default: true. Ours.
    pub acp: bool,
    /// Time after which a connection without open streams ends. Default: 60000. Ours.
    pub detach_grace_ms: u64,
}

impl Default for Northbound {
    fn default() -> Self {
        Self { acp: true, detach_grace_ms: 60_000 }
    }
}
