//! Carries out what people type at the gateway, and answers in words for people. The same in every channel.
//!
//! One file for each domain: [`lifecycle`], [`options`], [`permissions`], [`bindings`], [`diagnostics`]. A command is
//! done once, whatever the channel repeats: what it means (which session, which option) is committed under the
//! message's key before anything is done, and what is done has that key too. Which session is meant is the same
//! decision for all of them, and so is who may.

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
use crate::inbound::root_key;
use crate::store::inbox::{Inbound, Outcome};
use crate::store::{Store, commands};
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Under which what commands mean is kept.
const MEANT: &str = "command";

/// Carries out commands.
#[derive(Clone)]
pub(crate) struct Commands {
    store: Store,
    bindings: SessionBindingService,
    router: BoundDeliveryRouter,
    service: Arc<dyn Service>,
}

/// A command's message, and who sent it.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    inbound: &'a Inbound,
    by: Requester<'a>,
}

impl Asked<'_> {
    /// For the record and for people.
    fn name(&self) -> &str {
        let shown = if self.inbound.author.is_empty() { self.by.name } else { &self.inbound.author };
        if shown.is_empty() { "somebody" } else { shown }
    }
}

/// What a command means: decided once, and kept before it is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Meant {
    /// The session.
    session_key: SessionKey,
    /// For an answer to the agent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    answer: Option<permissions::Choice>,
    /// Whether that is another session than this conversation's.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    elsewhere: bool,
}

impl Commands {
    /// Over this control plane.
    pub(crate) fn new(
        store: Store,
        (bindings, router): (SessionBindingService, BoundDeliveryRouter),
        service: Arc<dyn Service>,
    ) -> Self {
        Self { store, bindings, router, service }
    }

    /// Carries out one command of `inbound`; `standing` is what its author may do beyond what is theirs.
    ///
    /// # Errors
    /// What the person is told instead of an answer; `ACP_STORE_UNAVAILABLE` when it may be tried again.
    pub(crate) async fn run(
        &self,
        inbound: &Inbound,
        standing: Standing,
        command: Command,
    ) -> Result<Outcome, Failure> {
        let asked =
            Asked { inbound, by: Requester { name: inbound.who(), standing, approves: inbound.approves } };
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

    /// Does something about one session.
    async fn on(
        &self,
        asked: Asked<'_>,
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
            Ok(Meant { session_key, answer, elsewhere })
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

    /// What a command means: what was decided the first time, or else what `decide` says now.
    async fn meant(
        &self,
        asked: Asked<'_>,
        decide: impl Future<Output = Result<Meant, Failure>>,
    ) -> Result<Meant, Failure> {
        let key = root_key(asked.inbound)?;
        let of = key.clone();
        let before = self.store.read("command_before", move |db| commands::before(db, MEANT, &of)).await?;
        if let Some(meant) = before {
            return Ok(meant);
        }
        let meant = decide.await?;
        let kept = self.store.write("command_meant", move |tx| commands::once(tx, MEANT, &key, || Ok(meant)));
        Ok(kept.await?)
    }

    /// The session of that name, or the one of this conversation, if the person may do that kind of thing with it.
    async fn named(&self, asked: Asked<'_>, name: Option<&str>, who: Who) -> Result<SessionKey, Failure> {
        let session = match name {
            Some(name) => self.find(name).await?,
            // No session uses commands yet: there is none that could be meant by asking.
            None => {
                let arrival = self.router.arrival(&asked.inbound.conversation).await?;
                target::unnamed(arrival.route, None)?
            }
        };
        self.may(asked, who, &session).await?;
        Ok(session)
    }

    /// The session of that name.
    async fn find(&self, name: &str) -> Result<SessionKey, Failure> {
        let wanted = name.to_owned();
        let found = self.store.read("command_target", move |db| commands::candidates(db, &wanted)).await?;
        target::find(name, &found)
    }

    /// Refuses what the person may not do with a session.
    async fn may(&self, asked: Asked<'_>, who: Who, session: &SessionKey) -> Result<(), Failure> {
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

    /// The session that this conversation is bound to now, if any.
    async fn here(&self, inbound: &Inbound) -> Result<Option<SessionKey>, Failure> {
        Ok(match self.router.look(&inbound.conversation).await?.route {
            Route::Bound { session_key, .. } => Some(session_key),
            Route::Unbound { .. } | Route::Refused { .. } => None,
        })
    }

    /// The outcome of a command that is answered with a text.
    async fn said(&self, asked: Asked<'_>, text: String) -> Result<Outcome, Failure> {
        let session_key = self.here(asked.inbound).await?;
        Ok(Outcome::Command { session_key, run_id: None, text, is_shown: false })
    }
}

fn usage(text: impl Into<String>) -> Failure {
    Failure::new(Code::Usage, text).origin("client")
}
