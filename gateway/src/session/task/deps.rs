//! Dependencies and input queues of a session's task.

use crate::channel::Channels;
use crate::config::LiveConfig;
use crate::metrics::Metrics;
use crate::runtime::hosts::{Host, Hosts};
use crate::runtime::lookup::RecentLookup;
use acp_core::actor::{ActorCommand, CommandReply, IdempotencyRecord};
use acp_core::failure::Failure;
use acp_core::writes::{ActorFence, ActorSnapshot};
use acp_shared::clock::Clock;
use acp_store::Store;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Dependencies of every session task.
#[derive(Clone)]
pub(crate) struct Deps {
    pub(crate) store: Store,
    /// Host of the session; of the manager, the host for requests without one.
    pub(crate) host: Host,
    pub(crate) hosts: Arc<Hosts>,
    /// Served channels, for the conversations of spawned sessions.
    pub(crate) channels: Channels,
    pub(crate) clock: Clock,
    /// Notifies of configuration reloads.
    pub(crate) live: LiveConfig,
    pub(crate) metrics: Metrics,
    pub(crate) stop: CancellationToken,
}

impl Deps {
    /// Returns the dependencies of a session on this host.
    pub(crate) fn on(&self, host: &str) -> Self {
        Self { host: self.hosts.get(host), ..self.clone() }
    }
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

/// Results of a spawn for the actor of its session.
#[derive(Debug, Default)]
pub(crate) struct FreshSession {
    /// Claim of the session, made in the spawn's transaction.
    pub(crate) claimed: Option<(ActorSnapshot, ActorFence)>,
    /// Lookup for the first start.
    pub(crate) lookup: Option<RecentLookup>,
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
/// delay them (H18).
pub(crate) struct CommandQueues {
    /// Queue of normal commands.
    pub(crate) mailbox: mpsc::Receiver<ActorRequest>,
    /// Queue of urgent commands.
    pub(crate) urgent: mpsc::Receiver<ActorRequest>,
}
