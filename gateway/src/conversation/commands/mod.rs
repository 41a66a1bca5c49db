//! Executes the commands that users type and builds the replies. Independent of the channel.
//!
//! One file for each domain: [`lifecycle`], [`options`], [`permissions`], [`bindings`], [`diagnostics`]. A
//! command takes effect once, even if the channel repeats it: its meaning (which session, which option) is
//! committed under the message's key before execution, and every effect uses that key too. Target selection
//! and authorization are shared by all commands.

mod bindings;
mod diagnostics;
mod lifecycle;
mod options;
mod permissions;
mod usage;

use crate::conversation::bindings::{BoundDeliveryRouter, SessionBindingService};
use crate::conversation::inbound::message_idempotency_key;
use crate::session::service::Service;
use acp_core::command::authorization::{AccessRequirement, Ownership, Requester, RequesterRole};
use acp_core::command::session_ref;
use acp_core::command::table;
use acp_core::command::{ChatCommand, SessionAction};
use acp_core::failure::Failure;
use acp_core::request::QueueEdit;
use acp_core::route::Route;
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use acp_store::Store;
use acp_store::command_queries;
use acp_store::inbox::{Inbound, Outcome};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Scope under which the meaning of commands is stored.
const RESOLVED_SCOPE: &str = "command";

/// Command executor.
#[derive(Clone)]
pub(crate) struct Commands {
    store: Store,
    bindings: SessionBindingService,
    router: BoundDeliveryRouter,
    service: Arc<dyn Service>,
}

/// Message of a command, and its author.
#[derive(Debug, Clone, Copy)]
struct CommandContext<'a> {
    inbound: &'a Inbound,
    by: Requester<'a>,
}

impl CommandContext<'_> {
    /// Returns the author's name for records and replies.
    fn name(&self) -> &str {
        let shown = if self.inbound.author.is_empty() { self.by.name } else { &self.inbound.author };
        if shown.is_empty() { "somebody" } else { shown }
    }
}

/// Resolved meaning of a command: decided once, and committed before execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ResolvedCommand {
    /// Target session.
    session_key: SessionKey,
    /// Chosen option, for an answer to a permission request.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    answer: Option<permissions::AnsweredRequest>,
    /// True if the target is not the session of this conversation.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    elsewhere: bool,
}

impl Commands {
    /// Creates the executor.
    pub(crate) fn new(
        store: Store,
        bindings: SessionBindingService,
        router: BoundDeliveryRouter,
        service: Arc<dyn Service>,
    ) -> Self {
        Self { store, bindings, router, service }
    }

    /// Executes one command of `inbound`; `standing` is the author's role, beyond the rights to own sessions.
    ///
    /// # Errors
    /// Failure to send as the reply; `ACP_STORE_UNAVAILABLE` if a retry may succeed.
    pub(crate) async fn run(
        &self,
        inbound: &Inbound,
        standing: RequesterRole,
        command: ChatCommand,
    ) -> Result<Outcome, Failure> {
        let context = CommandContext {
            inbound,
            by: Requester { name: inbound.who(), role: standing, approves: inbound.approves },
        };
        let who = command.required_access();
        let text = match command {
            ChatCommand::Help => table::help_text(),
            ChatCommand::Misused { why, usage } => table::misuse_text(&why, usage),
            ChatCommand::Sessions => self.sessions(context).await?,
            ChatCommand::Usage { days } => self.usage(context, days).await?,
            ChatCommand::Agents => self.agents(context).await?,
            ChatCommand::Doctor => self.doctor(context).await?,
            ChatCommand::Install => self.install(context).await?,
            ChatCommand::Unfocus => self.unfocus(context).await?,
            ChatCommand::Focus(name) => self.focus(context, &name).await?,
            ChatCommand::Window { target, window, change } => {
                self.window(context, target.as_deref(), window, change).await?
            }
            ChatCommand::Verbosity { change } => self.verbosity(context, change).await?,
            ChatCommand::Spawn(args) => return self.spawn(context, args).await,
            ChatCommand::On { target, act } => {
                return self.run_on_session(context, target.as_deref(), who, act).await;
            }
        };
        self.text_outcome(context, text).await
    }

    /// Executes a command on one session.
    async fn run_on_session(
        &self,
        context: CommandContext<'_>,
        target: Option<&str>,
        who: AccessRequirement,
        act: SessionAction,
    ) -> Result<Outcome, Failure> {
        let args = if let SessionAction::Answer(args) = &act { Some(args) } else { None };
        let decide = async {
            let session_key = self.resolve_session(context, target, who).await?;
            let answer = match args {
                Some(args) => Some(self.choose_option(context, &session_key, args).await?),
                None => None,
            };
            let elsewhere =
                target.is_some() && self.bound_session(context.inbound).await?.as_ref() != Some(&session_key);
            Ok(ResolvedCommand { session_key, answer, elsewhere })
        };
        let resolved = if act.changes() { self.resolve_once(context, decide).await? } else { decide.await? };
        let session = &resolved.session_key;
        let text = match act {
            SessionAction::Steer(text) => return self.steer(context, &resolved, text).await,
            SessionAction::Cancel => self.cancel(context, session, None).await?,
            SessionAction::CancelRun(run_id) => self.cancel(context, session, Some(run_id)).await?,
            SessionAction::Drop(run_id) => self.queued(context, session, run_id, QueueEdit::Drop).await?,
            SessionAction::SteerRun(run_id) => {
                self.queued(context, session, run_id, QueueEdit::Steer).await?
            }
            SessionAction::Close { ending, discard } => self.close(context, session, ending, discard).await?,
            SessionAction::New => self.new_conversation(context, session).await?,
            SessionAction::Set(setting) => self.set(context, session, setting).await?,
            SessionAction::Status => self.status(&context.inbound.conversation, session).await?,
            SessionAction::Permissions => self.pending(&context.inbound.conversation, session).await?,
            SessionAction::Answer(_) => return self.answer(context, &resolved).await,
        };
        self.text_outcome(context, text).await
    }

    /// Returns the meaning committed for this message, or commits the result of `decide`.
    async fn resolve_once(
        &self,
        context: CommandContext<'_>,
        decide: impl Future<Output = Result<ResolvedCommand, Failure>>,
    ) -> Result<ResolvedCommand, Failure> {
        let key = message_idempotency_key(context.inbound)?;
        let of = key.clone();
        let before = self
            .store
            .read("command_before", move |db| command_queries::before(db, RESOLVED_SCOPE, &of))
            .await?;
        if let Some(resolved) = before {
            return Ok(resolved);
        }
        let resolved = decide.await?;
        let kept = self.store.write("command_meant", move |tx| {
            command_queries::run_once(tx, RESOLVED_SCOPE, &key, || Ok(resolved))
        });
        Ok(kept.await?)
    }

    /// Returns the named session, or the one of this conversation, if the author may act on it as `who`
    /// requires.
    async fn resolve_session(
        &self,
        context: CommandContext<'_>,
        name: Option<&str>,
        who: AccessRequirement,
    ) -> Result<SessionKey, Failure> {
        let session = match name {
            Some(name) => self.find_session(name).await?,
            // Commands come from people only, so no session is the requester.
            None => {
                let arrival = self.router.route_inbound(&context.inbound.conversation).await?;
                session_ref::default_session(arrival.route, None)?
            }
        };
        self.authorize(context, who, &session).await?;
        Ok(session)
    }

    /// Returns the session with that key or label.
    async fn find_session(&self, name: &str) -> Result<SessionKey, Failure> {
        let wanted = name.to_owned();
        let found =
            self.store.read("command_target", move |db| command_queries::candidates(db, &wanted)).await?;
        session_ref::find_session(name, &found)
    }

    /// Fails if the author may not act on the session.
    async fn authorize(
        &self,
        context: CommandContext<'_>,
        who: AccessRequirement,
        session: &SessionKey,
    ) -> Result<(), Failure> {
        if context.by.role == RequesterRole::Operator || who == AccessRequirement::Anyone {
            return Ok(());
        }
        let (session, at) = (session.clone(), context.inbound.conversation.clone());
        let belongs = self.store.read("command_owners", move |db| {
            let bindings = match who {
                AccessRequirement::Anyone | AccessRequirement::Owner | AccessRequirement::Approver => {
                    Vec::new()
                }
                AccessRequirement::Binder => command_queries::bindings_in_account(db, &session, &at)?,
                AccessRequirement::Focus => {
                    acp_store::bindings::of_conversation(db, &at)?.into_iter().collect()
                }
            };
            let bindings = bindings.into_iter().map(|binding| binding.bound_by).collect();
            Ok(Ownership { session: command_queries::owners(db, &session)?, bindings })
        });
        context.by.may(who, &belongs.await?)
    }

    /// Returns the session that this conversation is bound to now, if any.
    async fn bound_session(&self, inbound: &Inbound) -> Result<Option<SessionKey>, Failure> {
        Ok(match self.router.peek_inbound(&inbound.conversation).await?.route {
            Route::Bound { session_key, .. } => Some(session_key),
            Route::Unbound { .. } | Route::Refused { .. } => None,
        })
    }

    /// Builds the outcome of a command that is answered with a text.
    async fn text_outcome(&self, context: CommandContext<'_>, text: String) -> Result<Outcome, Failure> {
        let session_key = self.bound_session(context.inbound).await?;
        Ok(Outcome::Command { session_key, run_id: None, text, is_shown: false })
    }
}

fn usage(text: impl Into<String>) -> Failure {
    Failure::new(Code::Usage, text).origin("client")
}
