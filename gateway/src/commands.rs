//! Carries out what people type at the gateway, and answers in words for people.

use crate::bindings::{BindRequest, BindingError, Bound, BoundDeliveryRouter, SessionBindingService, Unbind};
use crate::core::binding::intro;
use crate::core::command::{AnswerArgs, Command, HELP, SpawnArgs, Verdict, pick_session};
use crate::core::link::{PermissionOption, Wanted};
use crate::core::options::Setting;
use crate::core::route::Route;
use crate::core::rows::{BindingRow, PermissionRow, RunMode, SessionMode, SessionRow};
use crate::core::session::SessionState;
use crate::error::Failure;
use crate::http::service::Service;
use crate::inbound::{root_key, submit};
use crate::manager::{CloseRequest, SpawnRequest};
use crate::store::inbox::{Inbound, Outcome};
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use std::fmt::Write as _;
use std::sync::Arc;

/// Sessions that a list shows.
const LIST_MAX: u32 = 20;
/// Sessions that `/focus` looks through.
const FOCUS_MAX: u32 = 1_000;

/// Carries out commands.
#[derive(Clone)]
pub(crate) struct Commands {
    bindings: SessionBindingService,
    router: BoundDeliveryRouter,
    service: Arc<dyn Service>,
}

impl Commands {
    /// Over this control plane.
    pub(crate) fn new(
        bindings: SessionBindingService,
        router: BoundDeliveryRouter,
        service: Arc<dyn Service>,
    ) -> Self {
        Self { bindings, router, service }
    }

    /// Carries out one command of `inbound`.
    ///
    /// # Errors
    /// What the person is told instead of an answer; `ACP_STORE_UNAVAILABLE` when it may be tried again.
    pub(crate) async fn run(&self, inbound: &Inbound, command: Command) -> Result<Outcome, Failure> {
        match command {
            Command::Help => Ok(said(None, HELP)),
            Command::Misused { why } => Ok(said(None, format!("{why}\n\n{HELP}"))),
            Command::Spawn(args) => self.spawn(inbound, args).await,
            Command::Sessions => self.sessions(inbound).await,
            Command::Focus(target) => self.focus(inbound, &target).await,
            Command::Unfocus => self.unfocus(inbound).await,
            Command::Cancel
            | Command::Steer(_)
            | Command::Close { .. }
            | Command::New
            | Command::Status
            | Command::Mode(_)
            | Command::Set { .. }
            | Command::Answer(_)
            | Command::Permissions => {
                let session = self.session_of(inbound).await?;
                self.on_session(inbound, session, command).await
            }
        }
    }

    /// The session of the conversation: through an active binding and in no other way.
    async fn session_of(&self, inbound: &Inbound) -> Result<SessionKey, Failure> {
        match self.router.arrival(&inbound.conversation).await?.route {
            Route::Bound { session_key, .. } => Ok(session_key),
            Route::Unbound { .. } => Err(Failure::of(Code::NotBound)),
            Route::Refused { failure, .. } => Err(failure),
        }
    }

    async fn on_session(
        &self,
        inbound: &Inbound,
        session: SessionKey,
        command: Command,
    ) -> Result<Outcome, Failure> {
        let service = self.service.as_ref();
        let text = match command {
            Command::Steer(text) => {
                return submit(service, inbound, &session, RunMode::Steer, text).await;
            }
            Command::Cancel => {
                let cancelled = service.cancel(&session, None, root_key(inbound)?).await?;
                match cancelled.run_id {
                    Some(_) => "The turn was asked to stop.".to_owned(),
                    None => "Nothing runs and nothing waits.".to_owned(),
                }
            }
            Command::Close { ending, discard } => {
                let reason = format!("{} by {}", ending.as_str(), name_of(inbound));
                let request = CloseRequest { reason, ending, discard };
                let now = service.close(&session, request, root_key(inbound)?).await?;
                match now.discarded {
                    Some(true) => "The session is being closed, and its agent was asked to forget it.",
                    Some(false) => {
                        "The session is being closed. Its agent cannot be asked to forget it: it does not run, or has no \
                         way to."
                    }
                    None => "The session is being closed.",
                }
                .to_owned()
            }
            Command::New => {
                service.new_conversation(&session, root_key(inbound)?).await?;
                "A new conversation was asked for; the session and its history stay.".to_owned()
            }
            Command::Mode(mode) => {
                service.set(&session, Setting::Mode(mode.clone()), root_key(inbound)?).await?;
                format!("Mode {mode} is set, also after a restart of the agent.")
            }
            Command::Set { option, value } => {
                let set = Setting::Config { id: option.clone(), value: value.clone() };
                service.set(&session, set, root_key(inbound)?).await?;
                format!("{option} = {value} is set, also after a restart of the agent.")
            }
            Command::Status => self.status(&session).await?,
            Command::Permissions => permissions_text(&service.pending_permissions(&session).await?),
            Command::Answer(args) => self.answer(inbound, &session, &args).await?,
            Command::Spawn(_)
            | Command::Sessions
            | Command::Help
            | Command::Focus(_)
            | Command::Unfocus
            | Command::Misused { .. } => HELP.to_owned(),
        };
        Ok(said(Some(session), text))
    }

    async fn spawn(&self, inbound: &Inbound, args: SpawnArgs) -> Result<Outcome, Failure> {
        let placement = self.bindings.placement(&inbound.conversation, None)?;
        let request = SpawnRequest {
            agent: args.agent,
            cwd: args.cwd,
            label: args.label,
            mode: args.mode.unwrap_or(SessionMode::Persistent),
            permission: args.permission,
            non_interactive: None,
            bind: Some(inbound.conversation.clone()),
            placement,
            prompt: None,
            author: inbound.author.clone(),
            interactive: true,
            spawned_by: None,
        };
        let spawned = match self.service.spawn(request, root_key(inbound)?).await {
            Ok(spawned) => spawned,
            Err(failure) => return Err(self.explain(inbound, failure).await),
        };
        let key = spawned.session_key;
        let text = match self.bindings.of_spawn(&key).await {
            Ok(Some(bound)) => self.begun(inbound, &bound),
            // Unbound meanwhile, by somebody else or by a window.
            Ok(None) => format!("{key} runs. This conversation is not bound to it; /focus {key} binds it."),
            Err(error @ BindingError::NotMade { .. }) => {
                // Nobody would see what it says: nothing of the spawn stays.
                let request = CloseRequest::new("spawn-failed: its conversation could not be made");
                self.service.close(&key, request, root_key(inbound)?).await?;
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        };
        Ok(said(Some(key), text))
    }

    /// What is said where a binding was asked for: the intro, or where it stands.
    fn begun(&self, inbound: &Inbound, bound: &Bound) -> String {
        let at = &bound.binding.conversation;
        if at.conversation_id == inbound.conversation.conversation_id {
            intro(&bound.session, &bound.binding)
        } else {
            format!("{} is bound to the conversation {}.", bound.session.session_key, at.conversation_id)
        }
    }

    /// Says what to do when a spawn failed because the conversation is taken.
    async fn explain(&self, inbound: &Inbound, failure: Failure) -> Failure {
        match self.bindings.resolve_by_conversation(&inbound.conversation).await {
            Ok(Some((binding, _))) if failure.code == Code::Usage => {
                let text = format!(
                    "This conversation is bound to {}. End that with /acp close, or keep it and say /unfocus first.",
                    binding.session_key
                );
                Failure { message: text, ..failure }
            }
            _ => failure,
        }
    }

    async fn sessions(&self, inbound: &Inbound) -> Result<Outcome, Failure> {
        let current = self.session_of(inbound).await.ok();
        let rows = self.service.sessions(false, LIST_MAX).await?;
        let mut text = String::from(if rows.is_empty() { "There are no sessions." } else { "Sessions:" });
        for row in &rows {
            let mark = if current.as_ref() == Some(&row.session_key) { '*' } else { '-' };
            let name = row.label.as_deref().unwrap_or(row.agent.as_str());
            // Writing into a String cannot fail.
            let _ = write!(text, "\n{mark} {name} ({}, {}) {}", row.state, row.backend, row.session_key);
        }
        Ok(said(current, text))
    }

    async fn status(&self, session: &SessionKey) -> Result<String, Failure> {
        let row = self.service.session(session).await?;
        let pending = self.service.pending_permissions(session).await?;
        let runs = self.service.runs(session, LIST_MAX).await?;
        Ok(status_text(&row, runs.iter().filter(|run| !run.state.is_ended()).count(), &pending))
    }

    async fn answer(
        &self,
        inbound: &Inbound,
        session: &SessionKey,
        args: &AnswerArgs,
    ) -> Result<String, Failure> {
        let pending = self.service.pending_permissions(session).await?;
        let row = pick_permission(&pending, args.permission.as_deref()).map_err(usage)?;
        let options = options_of(row);
        let option = pick_option(options, &args.verdict).map_err(usage)?;
        let by = name_of(inbound);
        self.service
            .answer_permission(session, &row.permission_id(), &option.id, &by, root_key(inbound)?)
            .await?;
        Ok(format!("Answered: {}.", option.name))
    }

    async fn focus(&self, inbound: &Inbound, target: &str) -> Result<Outcome, Failure> {
        let rows = self.service.sessions(true, FOCUS_MAX).await?;
        let names = rows.iter().map(|row| (&row.session_key, row.label.as_deref()));
        let key = match SessionKey::parse(target) {
            Ok(key)
                if !rows.iter().any(|row| row.session_key == key)
                    && self.service.session(&key).await.is_ok() =>
            {
                key
            }
            _ => pick_session(target, names).map_err(|text| Failure::new(Code::NoSession, text))?,
        };
        if self.service.session(&key).await?.state == SessionState::Closed {
            return Err(Failure::of(Code::SessionClosed));
        }
        let request = BindRequest {
            session_key: key.clone(),
            at: inbound.conversation.clone(),
            placement: None,
            by: inbound.author.clone(),
            windows: self.service.may_focus(&inbound.conversation)?,
        };
        let bound = self.bindings.bind(request).await?;
        let text = match bound.fresh {
            true => self.begun(inbound, &bound),
            false => format!("This conversation was bound already to {key}."),
        };
        Ok(said(Some(key), text))
    }

    async fn unfocus(&self, inbound: &Inbound) -> Result<Outcome, Failure> {
        let reason = format!("unbound by {}", name_of(inbound));
        let which = Unbind::Conversation(inbound.conversation.clone());
        let ended = self.bindings.unbind(which, &reason).await?;
        let text = match ended.first() {
            Some(BindingRow { session_key: key, .. }) => {
                format!("Unbound. The session goes on; /focus {key} binds it again.")
            }
            None => "This conversation is bound to nothing.".to_owned(),
        };
        Ok(said(None, text))
    }
}

fn said(session_key: Option<SessionKey>, text: impl Into<String>) -> Outcome {
    Outcome::Command { session_key, run_id: None, text: text.into() }
}

fn usage(text: String) -> Failure {
    Failure::new(Code::Usage, text).origin("client")
}

fn name_of(inbound: &Inbound) -> String {
    if inbound.author.is_empty() { "somebody".to_owned() } else { inbound.author.clone() }
}

/// The options of a permission request.
fn options_of(row: &PermissionRow) -> &[PermissionOption] {
    match &row.ask.what {
        Wanted::Permission { options, .. } => options,
        _ => &[],
    }
}

fn title_of(row: &PermissionRow) -> &str {
    match &row.ask.what {
        Wanted::Permission { title, .. } => title,
        _ => &row.ask.method,
    }
}

fn permissions_text(pending: &[PermissionRow]) -> String {
    let mut text = String::from(if pending.is_empty() {
        "The agent waits for nothing."
    } else {
        "The agent waits for:"
    });
    for row in pending {
        // Writing into a String cannot fail.
        let _ = write!(text, "\n- {} (id {})", title_of(row), row.permission_id());
        for (number, option) in (1..).zip(options_of(row)) {
            let _ = write!(text, "\n  {number}. {}", option.name);
        }
    }
    text
}

fn status_text(row: &SessionRow, open_runs: usize, pending: &[PermissionRow]) -> String {
    let mut text = format!("{} ({}) in {}", row.session_key, row.agent, row.cwd);
    if let Some(label) = &row.label {
        let _ = write!(text, ", called {label}");
    }
    let _ = write!(text, "\nstate: {}, turns that run or wait: {open_runs}", row.state);
    let agent_session = row.agent_session_id.as_deref().unwrap_or("none until the first answer");
    let resumable = if row.resumable { "" } else { " (cannot be resumed)" };
    let _ = write!(text, "\nagent's conversation: {agent_session}{resumable}");
    if let Some(mode) = &row.options.mode_id {
        let _ = write!(text, "\nmode: {mode}");
    }
    for (option, value) in &row.options.config {
        let _ = write!(text, "\n{option} = {value}");
    }
    if let Some(failure) = &row.last_error {
        let _ = write!(text, "\nlast error: {failure}");
    }
    if !pending.is_empty() {
        let _ = write!(text, "\n{}", permissions_text(pending));
    }
    text
}

/// The permission that is meant: the only one, or the one whose id is or starts like `wanted`.
fn pick_permission<'a>(
    pending: &'a [PermissionRow],
    wanted: Option<&str>,
) -> Result<&'a PermissionRow, String> {
    let fits = |row: &&PermissionRow| wanted.is_none_or(|wanted| row.permission_id().starts_with(wanted));
    let exact = pending.iter().find(|row| wanted == Some(row.permission_id().as_str()));
    let mut found = pending.iter().filter(fits);
    match (exact, found.next(), found.next()) {
        (Some(row), _, _) | (None, Some(row), None) => Ok(row),
        (None, None, _) if pending.is_empty() => Err("The agent waits for nothing.".to_owned()),
        (None, None, _) => Err("No pending permission has that id. /acp permissions lists them.".to_owned()),
        (None, Some(_), Some(_)) => {
            Err("Several permissions fit. Name one by its id; /acp permissions lists them.".to_owned())
        }
    }
}

/// The option that is meant.
fn pick_option<'a>(
    options: &'a [PermissionOption],
    verdict: &Verdict,
) -> Result<&'a PermissionOption, String> {
    let of_kind = |kinds: [&str; 2]| {
        kinds.into_iter().find_map(|kind| options.iter().find(|option| option.kind == kind))
    };
    let found = match verdict {
        Verdict::Allow => of_kind(["allow_once", "allow_always"]),
        Verdict::Deny => of_kind(["reject_once", "reject_always"]),
        Verdict::Option(wanted) => options.iter().find(|option| option.id == *wanted).or_else(|| {
            let number: usize = wanted.parse().ok()?;
            options.get(number.checked_sub(1)?)
        }),
    };
    found.ok_or_else(|| {
        let names: Vec<String> =
            (1..).zip(options).map(|(number, option)| format!("{number}. {}", option.name)).collect();
        format!("The agent offers no such option. Use /acp answer with one of: {}.", names.join(", "))
    })
}

#[cfg(test)]
mod tests;
