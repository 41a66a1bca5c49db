//! Access to a session's actor: creation, and the two bounded queues.

use super::Manager;
use crate::session::task::{ActorRequest, CommandQueues, FreshSession, LoadRetry, is_stop_command, run};
use acp_core::actor::{ActorCommand, CommandReply, IdempotencyRecord};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use tokio::sync::{mpsc, oneshot};

/// Maximum number of queued commands of a session.
const MAILBOX_MAX: usize = 64;
/// Maximum number of queued cancels, closes and permission answers of a session.
const URGENT_MAX: usize = 16;

/// Detail code of requests refused because the gateway is shutting down: nothing was done, and a retry may
/// succeed.
pub(crate) const ENDING: &str = "GATEWAY_ENDING";

/// Senders to a session's task.
#[derive(Clone)]
pub(super) struct ActorHandle {
    mailbox: mpsc::Sender<ActorRequest>,
    urgent: mpsc::Sender<ActorRequest>,
}

impl Manager {
    /// Sends a command to the session's actor and waits for the response.
    pub(super) async fn ask(
        &self,
        session: &SessionKey,
        command: ActorCommand,
        keyed: Option<IdempotencyRecord>,
    ) -> Result<CommandReply, Failure> {
        if self.deps.store.session(session.clone()).await.map_err(Failure::from)?.is_none() {
            return Err(Failure::of(Code::NoSession));
        }
        self.ask_existing(session, command, keyed).await
    }

    /// As `ask`, for a session that exists.
    pub(super) async fn ask_existing(
        &self,
        session: &SessionKey,
        command: ActorCommand,
        keyed: Option<IdempotencyRecord>,
    ) -> Result<CommandReply, Failure> {
        // An actor that just stopped when idle drops the command unread: retry with a new actor.
        for _ in 0..3 {
            let actor = self.actor(session);
            let (reply, answer) = oneshot::channel();
            let request = ActorRequest { command: command.clone(), keyed: keyed.clone(), reply };
            let urgent = is_stop_command(&request.command)
                || matches!(request.command, ActorCommand::AnswerPermission { .. });
            let queue = if urgent { &actor.urgent } else { &actor.mailbox };
            match queue.try_send(request) {
                Ok(()) => {
                    if let Ok(result) = answer.await {
                        return result;
                    }
                }
                Err(mpsc::error::TrySendError::Full(_)) => {
                    self.deps.metrics.mailbox_full(if urgent { "urgent" } else { "mailbox" });
                    let text = "Too many commands wait for this session. Try again in a moment.";
                    return Err(Failure::new(Code::LimitReached, text).detail("MAILBOX_FULL").retryable());
                }
                Err(mpsc::error::TrySendError::Closed(_)) => {}
            }
            if self.deps.stop.is_cancelled() {
                break;
            }
            self.forget(session, &actor);
        }
        Err(Failure::of(Code::BackendUnavailable).detail(ENDING).retryable())
    }

    /// Returns the session's actor; creates it if needed. If the database prevents the creation, the actor's
    /// task keeps retrying: a session that was just committed may have a run that no client requests again.
    pub(super) fn actor(&self, key: &SessionKey) -> ActorHandle {
        self.actor_with(key, LoadRetry::UntilStop, FreshSession::default())
    }

    /// Like `actor`, with the retry policy of the creation and the results of a spawn.
    pub(super) fn actor_with(
        &self,
        key: &SessionKey,
        load_retry: LoadRetry,
        fresh: FreshSession,
    ) -> ActorHandle {
        let mut actors = self.actors.lock();
        if let Some(actor) = actors.get(key).filter(|actor| !actor.mailbox.is_closed()) {
            return actor.clone();
        }
        actors.retain(|_, actor| !actor.mailbox.is_closed());
        let (mailbox, mailbox_receiver) = mpsc::channel(MAILBOX_MAX);
        let (urgent, urgent_receiver) = mpsc::channel(URGENT_MAX);
        let queues = CommandQueues { mailbox: mailbox_receiver, urgent: urgent_receiver };
        let actor = ActorHandle { mailbox, urgent };
        actors.insert(key.clone(), actor.clone());
        self.tasks.spawn(run(self.deps.clone(), key.clone(), queues, load_retry, fresh));
        actor
    }

    fn forget(&self, key: &SessionKey, dead: &ActorHandle) {
        let mut actors = self.actors.lock();
        if actors.get(key).is_some_and(|actor| actor.mailbox.same_channel(&dead.mailbox)) {
            actors.remove(key);
        }
    }
}
