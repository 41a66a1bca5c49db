//! Sessions from their spawn to their end, and what runs in them.

use super::{Asked, Commands, Meant};
use crate::core::command::{Place, SpawnArgs};
use crate::core::rows::{RunMode, SessionMode};
use crate::core::session::Ending;
use crate::error::Failure;
use crate::inbound::{bound, root_key, submit};
use crate::manager::{CloseRequest, SpawnRequest};
use crate::store::codec::Word as _;
use crate::store::inbox::Outcome;
use acp_shared::ids::SessionKey;

impl Commands {
    /// `/acp spawn`
    pub(super) async fn spawn(&self, asked: Asked<'_>, args: SpawnArgs) -> Result<Outcome, Failure> {
        asked.by.may_spawn()?;
        let at = &asked.inbound.conversation;
        let request = SpawnRequest {
            agent: args.agent,
            cwd: args.cwd,
            label: args.label,
            mode: args.mode.unwrap_or(SessionMode::Persistent),
            permission: args.permission,
            non_interactive: None,
            bind: match args.place {
                Place::Auto | Place::Here => Some(at.clone()),
                Place::Off => None,
            },
            prompt: None,
            author: asked.inbound.author.clone(),
            interactive: true,
            spawned_by: None,
        };
        let spawned = match self.service.spawn(request, root_key(asked.inbound)?).await {
            Ok(spawned) => spawned,
            Err(failure) => return Err(self.explain(asked, failure).await),
        };
        let row = self.service.session(&spawned.session_key).await?;
        let mut text = format!(
            "{} runs in {} as {} ({}, {}). ",
            row.agent,
            row.cwd,
            row.session_key,
            row.mode.word(),
            row.backend
        );
        match args.place {
            Place::Auto | Place::Here => {
                text.push_str("This conversation is bound to it: what you type goes to the agent.");
            }
            Place::Off => {
                text.push_str(&format!(
                    "It is bound to nothing: /focus {} binds a conversation to it.",
                    row.session_key
                ));
            }
        }
        if let Err(failure) = self.service.policy(at).may_prompt() {
            text.push_str("\nNote: ");
            text.push_str(&failure.message);
        }
        let session_key = match args.place {
            Place::Auto | Place::Here => Some(spawned.session_key),
            Place::Off => self.here(asked.inbound).await?,
        };
        Ok(Outcome::Command { session_key, run_id: None, text })
    }

    /// Says which session is in the way when a spawn failed because the conversation is taken.
    async fn explain(&self, asked: Asked<'_>, failure: Failure) -> Failure {
        if failure.detail_code.as_deref() != Some("CONVERSATION_BOUND") {
            return failure;
        }
        match bound(&self.store, &asked.inbound.conversation).await {
            Ok((Some(binding), _)) => {
                let text = format!("This conversation is bound to {}.", binding.session_key);
                Failure { message: text, ..failure }
            }
            _ => failure,
        }
    }

    /// `/acp cancel`
    pub(super) async fn cancel(&self, asked: Asked<'_>, session: &SessionKey) -> Result<String, Failure> {
        let cancelled = self.service.cancel(session, None, root_key(asked.inbound)?).await?;
        Ok(match cancelled.run_id {
            Some(_) => format!("The turn of {session} was asked to stop."),
            None => format!("Nothing runs and nothing waits in {session}."),
        })
    }

    /// `/acp steer`: what comes of it is said where the session is bound.
    pub(super) async fn steer(
        &self,
        asked: Asked<'_>,
        meant: &Meant,
        text: String,
    ) -> Result<Outcome, Failure> {
        let session = &meant.session_key;
        let outcome = submit(self.service.as_ref(), asked.inbound, session, RunMode::Steer, text).await?;
        Ok(match outcome {
            Outcome::Prompted { run_id, text, .. } if meant.elsewhere => {
                let text = format!("{text} The answer goes to the conversations of {session}.");
                let session_key = self.here(asked.inbound).await?;
                Outcome::Command { session_key, run_id: Some(run_id), text }
            }
            other => other,
        })
    }

    /// `/acp close`, `archive`, `delete`, `reset`
    pub(super) async fn close(
        &self,
        asked: Asked<'_>,
        session: &SessionKey,
        (ending, discard): (Ending, bool),
    ) -> Result<String, Failure> {
        let reason = format!("{} by {}", ending.as_str(), asked.name());
        let request = CloseRequest { reason, ending, discard };
        let now = self.service.close(session, request, root_key(asked.inbound)?).await?;
        let forgets = match now.discarded {
            Some(true) => " Its agent was asked to forget it.",
            Some(false) => " Its agent cannot be asked to forget it: it does not run, or has no way to.",
            None => "",
        };
        Ok(format!("{session} is being closed, and no conversation is bound to it any more.{forgets}"))
    }

    /// `/acp new`
    pub(super) async fn new_conversation(
        &self,
        asked: Asked<'_>,
        session: &SessionKey,
    ) -> Result<String, Failure> {
        self.service.new_conversation(session, root_key(asked.inbound)?).await?;
        Ok(format!(
            "The next message begins a new conversation in {session}; the session and its history stay."
        ))
    }
}
