//! The runtime port: backends by name, each with its pure machine ([`Link`]).

#[cfg(test)]
mod contract_tests;
pub(crate) mod direct;
pub(crate) mod missing;

use crate::core::link::Link;
use crate::error::Failure;
use acp_shared::codes::Code;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// A runtime backend. Its machine is [`Link`], whose methods are the source document's contract
/// (`ensureSession`, `submit`, `stream`, `cancel`, `close`) without the I/O: the session task carries out what
/// they return, so every backend is exactly-once in the same way.
pub(crate) trait Runtime: Send + Sync + 'static {
    /// The backend's name in configuration and session rows.
    fn id(&self) -> &'static str;

    /// Makes the machine of a session: a fresh one, or the one that `saved` describes.
    ///
    /// # Errors
    /// `saved` was not written by this backend.
    fn link(&self, saved: Option<&str>) -> Result<Box<dyn Link>, LinkStateError>;

    /// Whether sessions can be started now, and what to say about it.
    fn health(&self) -> Health;
}

/// A saved machine that cannot be read back.
#[derive(Debug, thiserror::Error)]
#[error("the saved state of the runtime link cannot be read")]
pub(crate) struct LinkStateError(#[from] pub(crate) serde_json::Error);

/// How a backend is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    /// Whether it can be used.
    pub(crate) ok: bool,
    /// For people.
    pub(crate) details: String,
}

/// The registered backends. Process-local.
#[derive(Default)]
pub(crate) struct Registry {
    backends: RwLock<BTreeMap<&'static str, Arc<dyn Runtime>>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl Registry {
    /// Adds a backend, in place of an earlier one of the same name.
    pub(crate) fn register(&self, backend: Arc<dyn Runtime>) {
        let mut backends = self.backends.write().unwrap_or_else(PoisonError::into_inner);
        backends.insert(backend.id(), backend);
    }

    /// Takes a backend out; sessions that use it keep their machine.
    pub(crate) fn unregister(&self, id: &str) {
        self.backends.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// The backend of that name, if there is one.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<dyn Runtime>> {
        self.backends.read().unwrap_or_else(PoisonError::into_inner).get(id).map(Arc::clone)
    }

    /// The backend of that name.
    ///
    /// # Errors
    /// `ACP_BACKEND_MISSING` when there is none.
    pub(crate) fn require(&self, id: &str) -> Result<Arc<dyn Runtime>, Failure> {
        self.get(id).ok_or_else(|| Failure::of(Code::BackendMissing).origin("gateway"))
    }

    /// The names, sorted.
    pub(crate) fn ids(&self) -> Vec<&'static str> {
        self.backends.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }
}
