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

use crate::bindings::{BoundDeliveryRouter, SessionBindingService};
use crate::core::command::gate::{Belongs, Requester, Standing, Who};
use crate::core::command::{Act, Command, target, verbs};
use crate::core::request::QueuedChange;
use crate::core::route::Route;
use crate::error::Failure;
use crate::http::service::Service;
use crate::inbound::message_idempotency_key;
use crate::store::inbox::{Inbound, Outcome};
use crate::store::{Store, commands};
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Scope under which the meaning of commands is stored.
const MEANT: &str = "command";

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
    answer: Option<permissions::PermissionChoice>,
    /// True if the target is not the session of this conversation.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    elsewhere: bool,
}

impl Commands {
    /// Creates the executor.
    pub(crate) fn new(
        store: Store,
        (bindings, router): (SessionBindingService, BoundDeliveryRouter),
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
        standing: Standing,
        command: Command,
    ) -> Result<Outcome, Failure> {
        let asked = CommandContext {
            inbound,
            by: Requester { name: inbound.who(), standing, approves: inbound.approves },
        };
        let who = command.who();
        let text = match command {
            Command::Help => verbs::help(),
            Command::Misused { why, usage } => verbs::misuse(&why, usage),
            Command::Sessions => self.sessions(asked).await?,
            Command::Agents => self.agents(asked).await?,
            Command::Doctor => self.doctor(asked).await?,
            Command::Install => self.install(asked).await?,
            Command::Unfocus => self.unfocus(asked).await?,
            Command::Focus(name) => self.focus(asked, &name).await?,
            Command::Window { target, window, change } => {
                self.window(asked, target.as_deref(), window, change).await?
            }
            Command::Verbosity { change } => self.verbosity(asked, change).await?,
            Command::Spawn(args) => return self.spawn(asked, args).await,
            Command::On { target, act } => return self.on(asked, target.as_deref(), who, act).await,
        };
        self.said(asked, text).await
    }

    /// Executes a command on one session.
    async fn on(
        &self,
        asked: CommandContext<'_>,
        target: Option<&str>,
        who: Who,
        act: Act,
    ) -> Result<Outcome, Failure> {
        let args = if let Act::Answer(args) = &act { Some(args) } else { None };
        let decide = async {
            let session_key = self.named(asked, target, who).await?;
            let answer = match args {
                Some(args) => Some(self.choose(asked, &session_key, args).await?),
                None => None,
            };
            let elsewhere =
                target.is_some() && self.here(asked.inbound).await?.as_ref() != Some(&session_key);
            Ok(ResolvedCommand { session_key, answer, elsewhere })
        };
        let meant = if act.changes() { self.meant(asked, decide).await? } else { decide.await? };
        let session = &meant.session_key;
        let text = match act {
            Act::Steer(text) => return self.steer(asked, &meant, text).await,
            Act::Cancel => self.cancel(asked, session, None).await?,
            Act::CancelRun(run_id) => self.cancel(asked, session, Some(run_id)).await?,
            Act::Drop(run_id) => self.queued(asked, session, run_id, QueuedChange::Drop).await?,
            Act::SteerRun(run_id) => self.queued(asked, session, run_id, QueuedChange::Steer).await?,
            Act::Close { ending, discard } => self.close(asked, session, (ending, discard)).await?,
            Act::New => self.new_conversation(asked, session).await?,
            Act::Set(setting) => self.set(asked, session, setting).await?,
            Act::Status => self.status(&asked.inbound.conversation, session).await?,
            Act::Permissions => self.pending(&asked.inbound.conversation, session).await?,
            Act::Answer(_) => return self.answer(asked, &meant).await,
        };
        self.said(asked, text).await
    }

    /// Returns the meaning committed for this message, or commits the result of `decide`.
    async fn meant(
        &self,
        asked: CommandContext<'_>,
        decide: impl Future<Output = Result<ResolvedCommand, Failure>>,
    ) -> Result<ResolvedCommand, Failure> {
        let key = message_idempotency_key(asked.inbound)?;
        let of = key.clone();
        let before = self.store.read("command_before", move |db| commands::before(db, MEANT, &of)).await?;
        if let Some(meant) = before {
            return Ok(meant);
        }
        let meant = decide.await?;
        let kept = self.store.write("command_meant", move |tx| commands::once(tx, MEANT, &key, || Ok(meant)));
        Ok(kept.await?)
    }

    /// Returns the named session, or the one of this conversation, if the author may act on it as `who`
    /// requires.
    async fn named(
        &self,
        asked: CommandContext<'_>,
        name: Option<&str>,
        who: Who,
    ) -> Result<SessionKey, Failure> {
        let session = match name {
            Some(name) => self.find(name).await?,
            // Commands come from people only, so no session is the requester.
            None => {
                let arrival = self.router.arrival(&asked.inbound.conversation).await?;
                target::unnamed(arrival.route, None)?
            }
        };
        self.may(asked, who, &session).await?;
        Ok(session)
    }

    /// Returns the session with that key or label.
    async fn find(&self, name: &str) -> Result<SessionKey, Failure> {
        let wanted = name.to_owned();
        let found = self.store.read("command_target", move |db| commands::candidates(db, &wanted)).await?;
        target::find(name, &found)
    }

    /// Fails if the author may not act on the session.
    async fn may(&self, asked: CommandContext<'_>, who: Who, session: &SessionKey) -> Result<(), Failure> {
        if asked.by.standing == Standing::Operator || who == Who::Anyone {
            return Ok(());
        }
        let (session, at) = (session.clone(), asked.inbound.conversation.clone());
        let belongs = self.store.read("command_owners", move |db| {
            let bindings = match who {
                Who::Anyone | Who::Owner | Who::Approver => Vec::new(),
                Who::Binder => commands::bindings_near(db, &session, &at)?,
                Who::Focus => crate::store::bindings::of_conversation(db, &at)?.into_iter().collect(),
            };
            let bindings = bindings.into_iter().map(|binding| binding.bound_by).collect();
            Ok(Belongs { session: commands::owners(db, &session)?, bindings })
        });
        asked.by.may(who, &belongs.await?)
    }

    /// Returns the session that this conversation is bound to now, if any.
    async fn here(&self, inbound: &Inbound) -> Result<Option<SessionKey>, Failure> {
        Ok(match self.router.look(&inbound.conversation).await?.route {
            Route::Bound { session_key, .. } => Some(session_key),
            Route::Unbound { .. } | Route::Refused { .. } => None,
        })
    }

    /// Builds the outcome of a command that is answered with a text.
    async fn said(&self, asked: CommandContext<'_>, text: String) -> Result<Outcome, Failure> {
        let session_key = self.here(asked.inbound).await?;
        Ok(Outcome::Command { session_key, run_id: None, text, is_shown: false })
    }
}

fn usage(text: impl Into<String>) -> Failure {
    Failure::new(Code::Usage, text).origin("client")
}
