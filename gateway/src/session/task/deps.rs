//! Dependencies and input queues of a session's task.

use crate::config::LiveConfig;
use crate::ops::metrics::Metrics;
use crate::runtime::lookup::{LookupRequest, LookupResults};
use crate::supervisor::SupervisorClient;
use crate::util::clock::Clock;
use acp_core::actor::{ActorCommand, ActorLimits, AgentProfile, CommandReply, IdempotencyRecord};
use acp_core::failure::Failure;
use acp_core::runtime::Registry;
use acp_shared::ids::AgentName;
use acp_store::Store;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Dependencies of every session task.
#[derive(Clone)]
pub(crate) struct Deps {
    pub(crate) store: Store,
    pub(crate) supervisor: SupervisorClient,
    pub(crate) registry: Arc<Registry>,
    pub(crate) clock: Clock,
    pub(crate) profiles: Arc<dyn Profiles>,
    /// Notifies of configuration reloads.
    pub(crate) live: LiveConfig,
    pub(crate) metrics: Metrics,
    pub(crate) stop: CancellationToken,
}

/// Decisions about agents, from the configuration and the results of lookups.
pub(crate) trait Profiles: Send + Sync {
    /// Returns the programs and directories to look up before `agent` is started in these directories.
    fn lookup(&self, agent: &AgentName, cwd: Option<&str>, directories: &[String]) -> LookupRequest;

    /// Returns the profile of `agent` from the configuration alone.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`, with a message for people.
    fn configured(&self, agent: &AgentName) -> Result<AgentProfile, Failure>;

    /// Returns the profile to start `agent` with.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`, with a message for people.
    fn profile(&self, agent: &AgentName, found: &LookupResults) -> Result<AgentProfile, Failure>;

    /// Returns the default agent, for requests that name none.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED` if no default is configured.
    fn default_agent(&self) -> Result<AgentName, Failure>;

    /// Returns the canonical working directory for `agent`; `None` selects the default one.
    ///
    /// # Errors
    /// `ACP_CWD_NOT_ALLOWED` if it does not exist or lies outside of the agent's roots.
    fn cwd(&self, agent: &AgentName, asked: Option<&str>, found: &LookupResults) -> Result<String, Failure>;

    /// Returns the canonical path of an additional directory of a session of `agent`.
    ///
    /// # Errors
    /// `ACP_CWD_NOT_ALLOWED`, as for the working directory.
    fn directory(&self, agent: &AgentName, asked: &str, found: &LookupResults) -> Result<String, Failure>;

    /// Returns the limits and deadlines of the agent's sessions.
    fn limits(&self, agent: &AgentName) -> ActorLimits;
}

/// Command to the actor.
pub(crate) struct ActorRequest {
    /// The command.
    pub(crate) command: ActorCommand,
    /// Idempotency key, scope and fingerprint.
    pub(crate) keyed: Option<IdempotencyRecord>,
    /// Channel for the response.
    pub(crate) reply: oneshot::Sender<Result<CommandReply, Failure>>,
}

/// Retry policy if the database prevents the creation of an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadRetry {
    /// No retry: the next command creates the actor. For actors that are created eagerly and have no open
    /// work.
    Once,
    /// Retry until the actor is created or the gateway stops, since it may have open work; but not if only a
    /// repair of the database helps. Commands are refused meanwhile.
    UntilStop,
}

/// The two input queues: `urgent` is for cancel, close and permission answers, so that a full mailbox cannot
/// delay them (design §9, H18).
pub(crate) struct CommandQueues {
    /// Queue of normal commands.
    pub(crate) mailbox: mpsc::Receiver<ActorRequest>,
    /// Queue of urgent commands.
    pub(crate) urgent: mpsc::Receiver<ActorRequest>,
}
