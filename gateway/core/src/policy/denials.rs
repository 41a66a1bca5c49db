//! Policy checks. Error messages name the refusing key, the place of the setting, and the remedy.

use super::{Effective, EffectivePolicy};
use crate::failure::Failure;
use crate::runtime::{BACKENDS, direct};
use acp_shared::codes::Code;
use acp_shared::ids::AgentName;

/// Last sentence of refusals.
const REMEDY: &str = "The operator of this gateway can change this in its configuration and reload it.";

/// Detail code of a refusal: the maximum number of sessions is in use.
pub const SESSIONS_MAX: &str = "SESSIONS_MAX";
/// Detail code of a refusal: the account's maximum number of sessions is in use.
pub const ACCOUNT_SESSIONS_MAX: &str = "ACCOUNT_SESSIONS_MAX";

/// Detail code of a refusal: sessions may not be spawned into conversations there.
pub const SPAWN_NOT_ALLOWED: &str = "SPAWN_NOT_ALLOWED_HERE";

/// Origin of a request to bind a conversation to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindOrigin {
    /// A person binds to an existing session.
    Focus,
    /// A person spawns a session.
    Spawn,
    /// An agent spawns a session.
    AgentSpawn,
}

/// Timeouts of a new binding; `None` for none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BindingTimeouts {
    /// Idle timeout, in milliseconds.
    pub idle_ms: Option<u64>,
    /// Maximum age, in milliseconds.
    pub max_age_ms: Option<u64>,
}

fn disabled_error(code: Code, what: &str, by: &Effective<bool>) -> Failure {
    disabled_error_with_remedy(code, what, by, REMEDY)
}

fn disabled_error_with_remedy(code: Code, what: &str, by: &Effective<bool>, how: &str) -> Failure {
    by.source.failure(code, |source| format!("{what} by policy: {}. {how}", by.describe(source)))
}

impl EffectivePolicy {
    fn check_enabled(&self) -> Result<(), Failure> {
        let error = || disabled_error(Code::Disabled, "ACP is disabled", &self.enabled);
        if self.enabled.value { Ok(()) } else { Err(error()) }
    }

    /// Checks that prompts may be sent to an agent.
    ///
    /// # Errors
    /// `ACP_DISABLED`, `ACP_DISPATCH_DISABLED`.
    pub fn may_prompt(&self) -> Result<(), Failure> {
        self.check_enabled()?;
        let error =
            || disabled_error(Code::DispatchDisabled, "ACP dispatch is disabled", &self.dispatch_enabled);
        if self.dispatch_enabled.value { Ok(()) } else { Err(error()) }
    }

    /// Checks that a session may be spawned, with a first prompt or without.
    ///
    /// # Errors
    /// `ACP_DISABLED`; `ACP_DISPATCH_DISABLED` if there is a prompt.
    pub fn may_spawn(&self, prompt: bool) -> Result<(), Failure> {
        if prompt { self.may_prompt() } else { self.check_enabled() }
    }

    /// Checks that the scope's conversation may be bound to a session, and returns the timeouts of the
    /// binding.
    ///
    /// # Errors
    /// `ACP_DISABLED`; with the detail `BINDINGS_DISABLED` or `SPAWN_NOT_ALLOWED_HERE` if only this is
    /// disabled.
    pub fn may_bind(&self, who: BindOrigin) -> Result<BindingTimeouts, Failure> {
        self.check_enabled()?;
        let bindings = &self.bindings;
        if !bindings.enabled.value {
            let what = "Binding conversations to sessions is disabled here";
            return Err(disabled_error(Code::Disabled, what, &bindings.enabled).detail("BINDINGS_DISABLED"));
        }
        let gate = match who {
            BindOrigin::Focus => None,
            BindOrigin::Spawn => {
                Some((&bindings.spawn_acp_sessions, "Spawning sessions from a conversation"))
            }
            BindOrigin::AgentSpawn => {
                Some((&bindings.spawn_subagent_sessions, "Spawning sessions by agents"))
            }
        };
        if let Some((gate, what)) = gate.filter(|(gate, _)| !gate.value) {
            let what = format!("{what} is disabled here");
            let how = format!(
                "The operator of this gateway can set {} = true in gateway.toml (`acp-gateway doctor` names \
                 the file) and reload it. Until then, /acp spawn --thread off starts an unbound session.",
                gate.key
            );
            return Err(
                disabled_error_with_remedy(Code::Disabled, &what, gate, &how).detail(SPAWN_NOT_ALLOWED)
            );
        }
        Ok(BindingTimeouts { idle_ms: bindings.idle_ms.value, max_age_ms: bindings.max_age_ms.value })
    }

    /// True if a stale binding may be removed automatically: only while prompts are routed, so that a
    /// disabled switch does not cause the loss of bindings.
    pub fn may_unbind_stale(&self) -> bool {
        self.may_prompt().is_ok() && self.bindings.auto_unbind_stale.value
    }

    /// Checks that an agent may be spawned and started.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`.
    pub fn may_use(&self, agent: &AgentName) -> Result<(), Failure> {
        let allowed = &self.allowed_agents;
        if allowed.value.is_empty() || allowed.value.contains(agent) {
            return Ok(());
        }
        let names: Vec<&str> = allowed.value.iter().map(AgentName::as_str).collect();
        let (key, names) = (&allowed.key, names.join(", "));
        Err(allowed.source.failure(Code::AgentNotAllowed, |source| {
            format!("The agent {agent} is not in {key} ({names}; set by {source}). {REMEDY}")
        }))
    }

    /// Error for reaching the maximum number of sessions in use.
    pub fn at_sessions_max(&self) -> Failure {
        limit_error("sessions are in use", &self.sessions_max, SESSIONS_MAX)
    }

    /// Error for reaching the maximum number of sessions in use of the scope's account.
    pub fn at_account_max(&self) -> Failure {
        let max = self.account_sessions_max.clone().map(Option::unwrap_or_default);
        limit_error("sessions of this account are in use", &max, ACCOUNT_SESSIONS_MAX)
    }

    /// Adds the setting that requires the backend of new sessions to an error, and how to mend a missing one.
    pub fn explain_missing_backend(&self, failure: Failure) -> Failure {
        let how = if failure.code == Code::BackendMissing { self.backend_remedy() } else { String::new() };
        let explained = self.backend.source.failure(failure.code, |source| {
            format!("{} It is required by {}.{how}", failure.message, self.backend.describe(source))
        });
        Failure { message: explained.message, conversation_text: explained.conversation_text, ..failure }
    }

    fn backend_remedy(&self) -> String {
        match self.usable_install_command() {
            Some(command) => format!(" Install it: {command}"),
            None => {
                let (known, key) = (BACKENDS.join(", "), &self.backend.key);
                format!(" This gateway has only the backend {known}: set {key} = \"{}\".", direct::ID)
            }
        }
    }

    /// Returns the command that installs the backend of new sessions; `None` for a backend that this program
    /// cannot use.
    pub fn usable_install_command(&self) -> Option<&str> {
        let is_usable = BACKENDS.contains(&self.backend.value.as_str());
        self.install_command.value.as_deref().filter(|_| is_usable)
    }
}

fn limit_error(what: &str, max: &Effective<u64>, detail: &str) -> Failure {
    let failure = max.source.failure(Code::LimitReached, |source| {
        format!(
            "{} {what}, which is the maximum: {}. Close one that is not needed, or wait until one is idle and \
             its agent stops; /acp sessions lists them.",
            max.value,
            max.describe(source)
        )
    });
    failure.detail(detail).retryable()
}
