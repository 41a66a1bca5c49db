//! Commands on sessions and runs: spawn, cancel, steer, close.

use super::{CommandContext, Commands, ResolvedCommand};
use crate::conversation::bindings::BindingError;
use crate::conversation::inbound::{message_idempotency_key, submit};
use crate::session::manager::{CloseRequest, SpawnRequest};
use acp_core::binding::Placement;
use acp_core::command::{SpawnArgs, SpawnPlacement};
use acp_core::failure::Failure;
use acp_core::request::{QueueEdit, QueueEditResult};
use acp_core::rows::{RunMode, SessionMode};
use acp_core::session::{Ending, SessionState};
use acp_core::static_binding::find_entry;
use acp_shared::ids::{RunId, SessionKey};
use acp_store::codec::SqlEnum as _;
use acp_store::inbox::Outcome;

impl Commands {
    /// `/acp spawn`
    pub(super) async fn spawn(
        &self,
        context: CommandContext<'_>,
        args: SpawnArgs,
    ) -> Result<Outcome, Failure> {
        context.by.may_spawn()?;
        let at = &context.inbound.conversation;
        let placement = match args.place {
            SpawnPlacement::Auto => Some(self.bindings.placement(at, None)?),
            SpawnPlacement::Here => Some(self.bindings.placement(at, Some(Placement::Here))?),
            SpawnPlacement::Off => None,
        };
        // A project's values apply to what the command leaves open.
        let config = self.service.config();
        let project = config.config.channels.discord.project_of(at).cloned().unwrap_or_default();
        let request = SpawnRequest {
            agent: args.agent.or(project.agent),
            cwd: args.cwd.or_else(|| project.cwd.map(|cwd| cwd.display().to_string())),
            label: args.label,
            mode: args.mode.unwrap_or(SessionMode::Persistent),
            permission: args.permission.or(project.permission),
            bind: placement.map(|_| at.clone()),
            placement: placement.unwrap_or_default(),
            author: context.by.name.to_owned(),
            interactive: true,
            auth_method: args.auth_method,
            ..SpawnRequest::default()
        };
        let spawned = match self.service.spawn(request, message_idempotency_key(context.inbound)?).await {
            Ok(spawned) => spawned,
            Err(failure) => return Err(self.add_hint(context, failure).await),
        };
        let mut text = self.spawned_text(context, &spawned.session_key, placement.is_some()).await?;
        if let Err(failure) = self.service.policy(at).may_prompt() {
            text.push_str("\nNote: ");
            text.push_str(&failure.text_for_conversations());
        }
        // A binding made by this very command is not known to the client yet, so the session is named.
        let here = matches!(placement, Some(Placement::Here)).then_some(spawned.session_key);
        let session_key = if here.is_some() { here } else { self.bound_session(context.inbound).await? };
        Ok(Outcome::Command { session_key, run_id: None, text, is_shown: false })
    }

    /// Builds the reply to a spawn, once the conversation of the session's binding exists.
    async fn spawned_text(
        &self,
        context: CommandContext<'_>,
        key: &SessionKey,
        is_bound: bool,
    ) -> Result<String, Failure> {
        if !is_bound {
            let row = self.service.session(key).await?;
            let (agent, cwd, mode) = (&row.agent, &row.cwd, row.mode.word());
            return Ok(format!(
                "{agent} is starting in {cwd}: session {key}, {mode}. /acp status {key} shows if it started. It is \
                 bound to no conversation; /focus {key} binds one to it."
            ));
        }
        match self.bindings.binding_of_spawn(key).await {
            Ok(Some(bound)) => Ok(self.bound_text(context, &bound)),
            // Unbound meanwhile by another user or a timeout.
            Ok(None) => Ok(format!(
                "The session {key} is open. This conversation is not bound to it; /focus {key} binds it."
            )),
            Err(error @ BindingError::NotMade { .. }) => {
                // Its output would be visible nowhere, so the session is closed.
                let request = CloseRequest::new("spawn-failed: its conversation could not be made");
                self.service.close(key, request, message_idempotency_key(context.inbound)?).await?;
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Names the conflicting session if a spawn failed because the conversation is already bound.
    async fn add_hint(&self, context: CommandContext<'_>, failure: Failure) -> Failure {
        if failure.detail_code.as_deref() != Some("CONVERSATION_BOUND") {
            return failure;
        }
        match self.bindings.resolve_by_conversation(&context.inbound.conversation).await {
            Ok(Some((binding, _))) => {
                let text = format!("This conversation is bound to {}.", binding.session_key);
                Failure { message: text, conversation_text: None, ..failure }
            }
            _ => failure,
        }
    }

    /// `/acp cancel`
    pub(super) async fn cancel(
        &self,
        context: CommandContext<'_>,
        session: &SessionKey,
        run_id: Option<RunId>,
    ) -> Result<String, Failure> {
        let cancelled =
            self.service.cancel(session, run_id, message_idempotency_key(context.inbound)?).await?;
        Ok(match cancelled.run_id {
            Some(_) => format!("The turn of {session} was asked to stop."),
            None if run_id.is_some() => "That turn has already ended.".to_owned(),
            None => format!("{session} has no running turn and no queued message."),
        })
    }

    /// `/acp drop`, `/acp steer --run`
    pub(super) async fn queued(
        &self,
        context: CommandContext<'_>,
        session: &SessionKey,
        run_id: RunId,
        change: QueueEdit,
    ) -> Result<String, Failure> {
        let steers = change == QueueEdit::Steer;
        let now =
            self.service.queued(session, run_id, change, message_idempotency_key(context.inbound)?).await?;
        Ok(match (now, steers) {
            (QueueEditResult::Done, true) => "Added to the running turn.",
            (QueueEditResult::Done, false) => "Dropped.",
            (QueueEditResult::TooLate, _) => "Too late: the message is no longer queued.",
            (QueueEditResult::Unsteerable, _) => {
                "This turn cannot be steered: the message stays queued and becomes a prompt of its own."
            }
        }
        .to_owned())
    }

    /// `/acp steer`: the result appears in the conversations that the session is bound to.
    pub(super) async fn steer(
        &self,
        context: CommandContext<'_>,
        resolved: &ResolvedCommand,
        text: String,
    ) -> Result<Outcome, Failure> {
        let session = &resolved.session_key;
        let outcome =
            submit(self.service.as_ref(), context.inbound, session, RunMode::Steer, text, Vec::new()).await?;
        Ok(match outcome {
            Outcome::Prompted { run_id, text, .. } if resolved.elsewhere => {
                let text = format!("{text} The answer goes to the conversations of {session}.");
                let session_key = self.bound_session(context.inbound).await?;
                Outcome::Command { session_key, run_id: Some(run_id), text, is_shown: false }
            }
            other => other,
        })
    }

    /// `/acp close`, `archive`, `delete`, `reset`
    pub(super) async fn close(
        &self,
        context: CommandContext<'_>,
        session: &SessionKey,
        ending: Ending,
        discard: bool,
    ) -> Result<String, Failure> {
        let reason = format!("{} by {}", ending.as_str(), context.name());
        let request = CloseRequest { ending, discard, ..CloseRequest::new(reason) };
        let now = self.service.close(session, request, message_idempotency_key(context.inbound)?).await?;
        let forgets = match now.discarded {
            Some(true) => " Its agent was asked to forget it.",
            Some(false) => {
                " Its agent cannot be asked to forget it: it is not running, or does not support that."
            }
            None => "",
        };
        if now.state != SessionState::Closed {
            return Ok(format!(
                "{session} is bound by the configuration and stays bound: the next message starts a new \
                 conversation in it. Its history stays.{forgets}"
            ));
        }
        let again = match find_entry(&self.service.config().config.bindings, &context.inbound.conversation) {
            Some(_) => " The configuration binds this conversation: the next message starts a new session.",
            None => "",
        };
        Ok(format!("{session} is being closed and is no longer bound to a conversation.{again}{forgets}"))
    }

    /// `/acp new`
    pub(super) async fn new_conversation(
        &self,
        context: CommandContext<'_>,
        session: &SessionKey,
    ) -> Result<String, Failure> {
        self.service.new_conversation(session, message_idempotency_key(context.inbound)?).await?;
        Ok(format!(
            "The next message starts a new conversation in {session}; the session and its history stay."
        ))
    }
}
