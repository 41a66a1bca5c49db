//! A lease as the supervisor's command line shows it.

use crate::processes::{self, Process, ProcessHandle};
use serde_json::Value;

/// One lease as `acp-supervisor leases list --json` shows it.
#[derive(Debug, Clone)]
pub struct Lease(pub Value);

impl Lease {
    /// Returns a string member of the lease; empty if missing.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text("lease_id")
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> &str {
        self.text("state")
    }

    /// Pid of its adapter.
    ///
    /// # Panics
    /// When it has none yet.
    #[must_use]
    pub fn adapter_pid(&self) -> i32 {
        self.pid("adapter_pid")
    }

    /// Pid of its wrapper.
    ///
    /// # Panics
    /// When it has none yet.
    #[must_use]
    pub fn wrapper_pid(&self) -> i32 {
        self.pid("wrapper_pid")
    }

    fn pid(&self, name: &str) -> i32 {
        let pid = self.0[name].as_i64().and_then(|pid| i32::try_from(pid).ok());
        pid.unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }

    /// All living processes of the lease.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        processes::list_of_lease(self.id())
    }

    /// Kills its adapter, after checking that the process belongs to this lease.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn kill_adapter(&self) {
        let held = ProcessHandle::open(self.adapter_pid())
            .unwrap_or_else(|| panic!("the adapter of {} no longer exists", self.0));
        let ours = processes::has_env(held.pid, acp_shared::launch::ENV_LEASE_ID, self.id());
        assert!(ours && held.kill(), "pid {} does not belong to lease {}", held.pid, self.id());
    }
}
