//! Live configuration, replaceable while the gateway runs: values are looked up when needed, except for the
//! keys that are read once at start ([`reload`]).

use acp_core::actor::ActorLimits;
use acp_core::config::load::LoadedConfig;
use acp_core::config::reload::ReloadChanges;
use acp_core::config::{Config, reload};
use acp_core::line_splitter::LINE_BYTES_MAX;
use acp_core::policy::{self, EffectivePolicy, PolicyScope, effective_policy};
use acp_core::timeouts::Timeouts;
use acp_shared::ids::AgentName;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

/// Time limit of a closed session for ending its cancelled turn before the process is ended, in milliseconds.
const CLOSE_WAIT_MS: u64 = 2_000;
/// Interval of liveness probes of an idle agent, and their timeout, both in milliseconds.
const PROBE_MS: u64 = 5 * 60_000;
const ALIVE_MS: u64 = 60_000;
/// Capacity of the cache of policies.
const POLICIES_CACHED_MAX: usize = 64;

/// Live configuration. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LiveConfig {
    now: Arc<watch::Sender<Arc<LoadedConfig>>>,
    started: Arc<LoadedConfig>,
    policies: Arc<Mutex<PolicyCache>>,
}

/// Policies of a configuration that are already resolved: each event of a session needs some of them.
#[derive(Debug)]
struct PolicyCache {
    of: Arc<LoadedConfig>,
    policies: HashMap<PolicyScope, Arc<EffectivePolicy>>,
}

impl PolicyCache {
    fn new(of: Arc<LoadedConfig>) -> Self {
        Self { of, policies: HashMap::new() }
    }

    fn get(&mut self, scope: &PolicyScope) -> Arc<EffectivePolicy> {
        if let Some(policy) = self.policies.get(scope) {
            return Arc::clone(policy);
        }
        // Names of agents come from requests, so there may be any number.
        if self.policies.len() >= POLICIES_CACHED_MAX {
            self.policies.clear();
        }
        let policy = Arc::new(effective_policy(&self.of, scope));
        self.policies.insert(scope.clone(), Arc::clone(&policy));
        policy
    }
}

impl LiveConfig {
    /// Starts with the configuration loaded at start.
    pub(crate) fn new(loaded: LoadedConfig) -> Self {
        let started = Arc::new(loaded);
        let policies = Arc::new(Mutex::new(PolicyCache::new(Arc::clone(&started))));
        Self { now: Arc::new(watch::Sender::new(Arc::clone(&started))), started, policies }
    }

    /// Returns the current configuration.
    pub(crate) fn now(&self) -> Arc<LoadedConfig> {
        Arc::clone(&self.now.borrow())
    }

    /// Returns the configuration loaded at start, for keys that are read once.
    pub(crate) fn at_start(&self) -> &Config {
        &self.started.config
    }

    /// Returns a receiver that is notified by every [`LiveConfig::replace`].
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<LoadedConfig>> {
        self.now.subscribe()
    }

    /// Replaces the configuration. Returns the changed keys.
    ///
    /// # Errors
    /// A configuration cannot be serialized, a bug of this program; nothing has changed then.
    pub(crate) fn replace(&self, next: LoadedConfig) -> Result<ReloadChanges, serde_json::Error> {
        let changes = reload::changes(&self.started, &self.now(), &next)?;
        self.now.send_replace(Arc::new(next));
        Ok(changes)
    }

    /// Returns the effective policy of a scope.
    pub(crate) fn policy(&self, scope: &PolicyScope) -> Arc<EffectivePolicy> {
        self.policy_of(self.now(), scope)
    }

    fn policy_of(&self, loaded: Arc<LoadedConfig>, scope: &PolicyScope) -> Arc<EffectivePolicy> {
        let mut cache = self.policies.lock();
        if !Arc::ptr_eq(&cache.of, &loaded) {
            *cache = PolicyCache::new(loaded);
        }
        cache.get(scope)
    }

    /// Returns the rendering settings for agent output in a scope.
    pub(crate) fn stream(&self, scope: &PolicyScope) -> policy::StreamPolicy {
        policy::stream_policy(&self.now(), scope)
    }

    /// Returns the timeouts of unused sessions and bindings.
    pub(crate) fn windows(&self) -> Timeouts {
        Timeouts::of(&self.policy(&PolicyScope::default()).ttl)
    }

    /// Returns the limits and deadlines of an agent's sessions.
    pub(crate) fn limits(&self, agent: &AgentName) -> ActorLimits {
        let count = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let loaded = self.now();
        let policy = self.policy_of(Arc::clone(&loaded), &PolicyScope::default().with_agent(agent));
        let limits = &loaded.config.limits;
        ActorLimits {
            queue_runs_max: count(policy.queue_runs_max.value),
            // Read at start, since the API's body limit is derived from it and fixed at start.
            prompt_bytes_max: count(self.at_start().limits.prompt_bytes_max),
            line_bytes_max: LINE_BYTES_MAX,
            cancel_ms: limits.cancel_stuck_ms,
            close_wait_ms: CLOSE_WAIT_MS,
            turn_ms: limits.turn_ms,
            // Read at start, like all of `acp.control_plane`.
            reconcile_ms: self.at_start().acp.control_plane.recovery.reconcile_running_after_ms,
            runtime_idle_ms: Timeouts::of(&policy.ttl).runtime_ms,
            silent_ms: limits.turn_silent_ms,
            probe_ms: PROBE_MS,
            alive_ms: ALIVE_MS,
            permission_ms: policy.permission.timeout_ms.value.unwrap_or(0),
        }
    }
}
