//! The runtime port: backends by name, each with its pure state machine ([`BackendMachine`]).

pub mod acpx;
#[cfg(test)]
mod contract_tests;
pub mod direct;
pub mod unavailable;
mod updates;

use crate::actor::AgentProfile;
use crate::backend::BackendMachine;
use crate::failure::Failure;
use crate::request::SpawnRequest;
use crate::rows::SessionRow;
use acp_shared::codes::Code;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names of the backends that this program can register.
pub const BACKENDS: [&str; 2] = [acpx::ID, direct::ID];

/// A runtime backend. Its machine is [`BackendMachine`], with the methods of the source document's contract
/// (`ensureSession`, `submit`, `stream`, `cancel`, `close`) but without I/O: the session task executes the
/// returned steps, so every backend is exactly-once in the same way.
pub trait Runtime: Send + Sync + 'static {
    /// Returns the backend's name in configuration and session rows.
    fn id(&self) -> &'static str;

    /// Creates the machine of a session, or restores the one saved in `saved`.
    ///
    /// # Errors
    /// `saved` was not written by this backend.
    fn machine(&self, saved: Option<&str>) -> Result<Box<dyn BackendMachine>, MachineStateError>;

    /// Refuses a request for a session with a setting that the backend cannot pass on to the agent.
    ///
    /// # Errors
    /// `USAGE` with the setting.
    fn check(&self, _request: &SpawnRequest, _profile: &AgentProfile) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns the programs that the backend starts itself, to be looked up before a start.
    fn programs(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the profile with which the agent's process is started. `found` has the paths of
    /// [`Runtime::programs`].
    ///
    /// # Errors
    /// `ACP_BACKEND_UNAVAILABLE` if a program of the backend is missing.
    fn launch(
        &self,
        profile: AgentProfile,
        _session: &SessionRow,
        _found: &BTreeMap<String, String>,
    ) -> Result<AgentProfile, Failure> {
        Ok(profile)
    }

    /// Returns if sessions can be started now, with details for people. Does not block: the result of the last probe.
    fn health(&self) -> BackendHealth;
}

/// Error of restoring a saved machine.
#[derive(Debug, thiserror::Error)]
#[error("the saved state of the runtime link cannot be read")]
pub struct MachineStateError(#[from] pub serde_json::Error);

/// Health of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendHealth {
    /// True if the backend can be used.
    pub ok: bool,
    /// Details for people.
    pub details: String,
}

/// Registered backends of this process.
#[derive(Default)]
pub struct Registry {
    backends: RwLock<BTreeMap<&'static str, Arc<dyn Runtime>>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl Registry {
    /// Adds a backend; replaces one of the same name.
    pub fn register(&self, backend: Arc<dyn Runtime>) {
        let mut backends = self.backends.write();
        backends.insert(backend.id(), backend);
    }

    /// Removes a backend; sessions that use it keep their machine.
    pub fn unregister(&self, id: &str) {
        self.backends.write().remove(id);
    }

    /// Returns the backend of that name, if it is registered.
    pub fn get(&self, id: &str) -> Option<Arc<dyn Runtime>> {
        self.backends.read().get(id).map(Arc::clone)
    }

    /// Returns the backend of that name.
    ///
    /// # Errors
    /// `ACP_BACKEND_MISSING` if it is not registered.
    pub fn require(&self, id: &str) -> Result<Arc<dyn Runtime>, Failure> {
        self.get(id).ok_or_else(|| Failure::of(Code::BackendMissing).origin("gateway"))
    }

    /// Returns the names, sorted.
    pub fn ids(&self) -> Vec<&'static str> {
        self.backends.read().keys().copied().collect()
    }
}
