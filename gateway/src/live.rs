//! The configuration that holds now. It can be replaced while the gateway runs: whoever needs a value looks it up
//! here when it is needed, except for the keys that are read once at start ([`reload`]).

use crate::config::Config;
use crate::config::load::Loaded;
use crate::config::reload::{self, Changes};
use crate::core::actor::Limits;
use crate::core::lines::LINE_BYTES_MAX;
use crate::core::policy::{self, Policy, Scope, effective};
use crate::core::ttl::Windows;
use acp_shared::ids::AgentName;
use std::sync::Arc;
use tokio::sync::watch;

/// How long a closed session waits for its cancelled turn before its process is ended, in milliseconds.
const CLOSE_WAIT_MS: u64 = 2_000;
/// How often an idle agent is asked whether it is there, and how long it may take to answer, in milliseconds.
const PROBE_MS: u64 = 5 * 60_000;
const ALIVE_MS: u64 = 60_000;

/// The configuration that holds now. Cheap to clone; all clones see the same.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    now: Arc<watch::Sender<Arc<Loaded>>>,
    started: Arc<Loaded>,
}

impl Live {
    /// What the gateway is started with.
    pub(crate) fn new(loaded: Loaded) -> Self {
        let started = Arc::new(loaded);
        Self { now: Arc::new(watch::Sender::new(Arc::clone(&started))), started }
    }

    /// What holds now.
    pub(crate) fn now(&self) -> Arc<Loaded> {
        Arc::clone(&self.now.borrow())
    }

    /// What the gateway was started with: for what is read once.
    pub(crate) fn at_start(&self) -> &Config {
        &self.started.config
    }

    /// Changes with every [`Live::replace`].
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Loaded>> {
        self.now.subscribe()
    }

    /// From now on this holds. Returns what is different.
    ///
    /// # Errors
    /// A configuration cannot be written as JSON, a fault of this program; then nothing has changed.
    pub(crate) fn replace(&self, next: Loaded) -> Result<Changes, serde_json::Error> {
        let changes = reload::changes(&self.started, &self.now(), &next)?;
        self.now.send_replace(Arc::new(next));
        Ok(changes)
    }

    /// What is effective now.
    pub(crate) fn policy(&self, scope: &Scope) -> Policy {
        effective(&self.now(), scope)
    }

    /// How a conversation is told what an agent says.
    pub(crate) fn stream(&self, scope: &Scope) -> policy::Stream {
        policy::stream(&self.now(), scope)
    }

    /// How long what nobody uses lives.
    pub(crate) fn windows(&self) -> Windows {
        Windows::of(&self.policy(&Scope::default()).ttl)
    }

    /// Bounds and deadlines of an agent's sessions.
    pub(crate) fn limits(&self, agent: &AgentName) -> Limits {
        let count = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let loaded = self.now();
        let policy = effective(&loaded, &Scope::default().with_agent(agent));
        let limits = &loaded.config.limits;
        Limits {
            queue_runs_max: count(policy.queue_runs_max.value),
            // The API's bound of a body follows from it, and is set at start.
            prompt_bytes_max: count(self.at_start().limits.prompt_bytes_max),
            line_bytes_max: LINE_BYTES_MAX,
            cancel_ms: limits.cancel_stuck_ms,
            close_wait_ms: CLOSE_WAIT_MS,
            turn_ms: limits.turn_ms,
            // Read at start, as all of `acp.control_plane`.
            reconcile_ms: self.at_start().acp.control_plane.recovery.reconcile_running_after_ms,
            runtime_idle_ms: Windows::of(&policy.ttl).runtime_ms,
            silent_ms: limits.turn_silent_ms,
            probe_ms: PROBE_MS,
            alive_ms: ALIVE_MS,
            permission_ms: policy.permission.timeout_ms.value.unwrap_or(0),
        }
    }
}
