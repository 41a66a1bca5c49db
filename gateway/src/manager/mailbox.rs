//! The way to a session's actor: its two lanes, both bounded, and who makes it.

use super::Manager;
use crate::core::actor::{Answered, Command, Keyed};
use crate::error::Failure;
use crate::session_task::{Envelope, Lanes, Patience, run};
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use std::sync::PoisonError;
use tokio::sync::{mpsc, oneshot};

/// Commands that may wait for one session.
const MAILBOX_MAX: usize = 64;
/// Cancels, closes and permission answers that may wait for one session.
const URGENT_MAX: usize = 16;

/// The detail of what is refused because the gateway ends: nothing was done, and the next one may be asked.
pub(crate) const ENDING: &str = "GATEWAY_ENDING";

/// The ways into a session's task.
#[derive(Clone)]
pub(super) struct Actor {
    mailbox: mpsc::Sender<Envelope>,
    urgent: mpsc::Sender<Envelope>,
}

impl Manager {
    /// Hands a command to the session's actor and waits for the answer.
    pub(super) async fn ask(
        &self,
        session: &SessionKey,
        command: Command,
        keyed: Option<Keyed>,
    ) -> Result<Answered, Failure> {
        if self.deps.store.session(session.clone()).await.map_err(Failure::from)?.is_none() {
            return Err(Failure::of(Code::NoSession));
        }
        // An actor that went to rest just now drops the command unread: once more, with a new one.
        for _ in 0..3 {
            let actor = self.actor(session);
            let (reply, answer) = oneshot::channel();
            let envelope = Envelope { command: command.clone(), keyed: keyed.clone(), reply };
            let urgent = matches!(
                envelope.command,
                Command::Cancel(_) | Command::Close(_) | Command::AnswerPermission { .. }
            );
            let lane = if urgent { &actor.urgent } else { &actor.mailbox };
            match lane.try_send(envelope) {
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

    /// The session's actor; made when there is none. When the database does not let it be made just now it is tried on:
    /// a session that was committed a moment ago may have a run that nobody asks for again.
    pub(super) fn actor(&self, key: &SessionKey) -> Actor {
        self.actor_with(key, Patience::UntilStop)
    }

    /// The same, with what becomes of it when it cannot be made.
    pub(super) fn actor_with(&self, key: &SessionKey, patience: Patience) -> Actor {
        let mut actors = self.actors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(actor) = actors.get(key).filter(|actor| !actor.mailbox.is_closed()) {
            return actor.clone();
        }
        actors.retain(|_, actor| !actor.mailbox.is_closed());
        let (mailbox, mailbox_lane) = mpsc::channel(MAILBOX_MAX);
        let (urgent, urgent_lane) = mpsc::channel(URGENT_MAX);
        let lanes = Lanes { mailbox: mailbox_lane, urgent: urgent_lane };
        let actor = Actor { mailbox, urgent };
        actors.insert(key.clone(), actor.clone());
        self.tasks.spawn(run(self.deps.clone(), key.clone(), lanes, patience));
        actor
    }

    fn forget(&self, key: &SessionKey, dead: &Actor) {
        let mut actors = self.actors.lock().unwrap_or_else(PoisonError::into_inner);
        if actors.get(key).is_some_and(|actor| actor.mailbox.same_channel(&dead.mailbox)) {
            actors.remove(key);
        }
    }
}
