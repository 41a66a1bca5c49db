//! What a session's task works with, and what reaches it from outside.

use crate::clock::Clock;
use crate::core::actor::{Answered, Command, Keyed, Limits, Profile};
use crate::error::Failure;
use crate::live::Live;
use crate::lookup::{Findings, Lookup};
use crate::metrics::Metrics;
use crate::runtime::Registry;
use crate::store::Store;
use crate::supervisor::Supervisor;
use acp_shared::ids::AgentName;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// What every session task needs.
#[derive(Clone)]
pub(crate) struct Deps {
    pub(crate) store: Store,
    pub(crate) supervisor: Supervisor,
    pub(crate) registry: Arc<Registry>,
    pub(crate) clock: Clock,
    pub(crate) profiles: Arc<dyn Profiles>,
    /// Changes when configuration was read anew.
    pub(crate) live: Live,
    pub(crate) metrics: Metrics,
    pub(crate) stop: CancellationToken,
}

/// Decisions about agents from configuration and from what was looked up.
pub(crate) trait Profiles: Send + Sync {
    /// Everything that must be looked up before `agent` is started in these directories.
    fn lookup(&self, agent: &AgentName, cwd: Option<&str>, directories: &[String]) -> Lookup;

    /// How to treat `agent`, as far as configuration has it.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`, in words for people.
    fn configured(&self, agent: &AgentName) -> Result<Profile, Failure>;

    /// How to start and treat `agent`.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED`, in words for people.
    fn profile(&self, agent: &AgentName, found: &Findings) -> Result<Profile, Failure>;

    /// The agent to take when none was named.
    ///
    /// # Errors
    /// `ACP_AGENT_NOT_ALLOWED` when there is no default.
    fn default_agent(&self) -> Result<AgentName, Failure>;

    /// The working directory to use for `agent`, canonical; `None` takes the default one.
    ///
    /// # Errors
    /// `ACP_CWD_NOT_ALLOWED` when it does not exist or lies outside of the agent's roots.
    fn cwd(&self, agent: &AgentName, asked: Option<&str>, found: &Findings) -> Result<String, Failure>;

    /// An additional directory of a session of `agent`, canonical.
    ///
    /// # Errors
    /// `ACP_CWD_NOT_ALLOWED`, as for the working directory.
    fn directory(&self, agent: &AgentName, asked: &str, found: &Findings) -> Result<String, Failure>;

    /// Bounds and deadlines of that agent's sessions.
    fn limits(&self, agent: &AgentName) -> Limits;
}

/// A command on its way to the actor.
pub(crate) struct Envelope {
    /// What is wanted.
    pub(crate) command: Command,
    /// Under which key.
    pub(crate) keyed: Option<Keyed>,
    /// Where the answer goes.
    pub(crate) reply: oneshot::Sender<Result<Answered, Failure>>,
}

/// What becomes of an actor that cannot be made because the database does not let it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It is made when somebody asks for it: it was wanted early, and owes nothing.
    Once,
    /// It is tried until it can be made or the gateway stops, since it may owe something; but not where only a repair of
    /// the database helps. Whoever asks meanwhile is told.
    UntilStop,
}

/// The two ways in: `urgent` is for cancel, close and permissions, so that a full mailbox cannot hold them up
/// (design §9, H18).
pub(crate) struct Lanes {
    /// For everything that may wait.
    pub(crate) mailbox: mpsc::Receiver<Envelope>,
    /// For what must not.
    pub(crate) urgent: mpsc::Receiver<Envelope>,
}
