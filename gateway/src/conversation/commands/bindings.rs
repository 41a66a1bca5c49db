//! Commands on bindings: bind, unbind, verbosity and timeouts.

use super::permissions::{Detail, pending_text};
use super::{CommandContext, Commands, ResolvedCommand};
use crate::conversation::bindings::static_bindings::may_unbind;
use crate::conversation::bindings::{BINDING_SCOPE, BindRequest, SessionBinding, UnbindTarget};
use crate::conversation::inbound::message_idempotency_key;
use acp_core::binding::BindingTimeout;
use acp_core::command::authorization::{AccessRequirement, Ownership};
use acp_core::failure::Failure;
use acp_core::rows::{BindingRow, Verbosity};
use acp_core::session::SessionState;
use acp_core::time_format::format_utc;
use acp_core::timeouts::format_duration;
use acp_shared::codes::Code;
use acp_shared::ids::{BindingId, SessionKey};
use acp_store::bindings;
use acp_store::command_queries;

impl Commands {
    /// `/focus`
    pub(super) async fn focus(&self, context: CommandContext<'_>, name: &str) -> Result<String, Failure> {
        let decide = async {
            let session_key = self.resolve_session(context, Some(name), AccessRequirement::Focus).await?;
            if self.service.session(&session_key).await?.state == SessionState::Closed {
                return Err(Failure::of(Code::SessionClosed));
            }
            Ok(ResolvedCommand { session_key, answer: None, elsewhere: false })
        };
        let key = self.resolve_once(context, decide).await?.session_key;
        let at = context.inbound.conversation.clone();
        let request = BindRequest {
            session_key: key.clone(),
            windows: self.service.may_focus(&at)?,
            at,
            placement: None,
            by: context.by.name.to_owned(),
            made: None,
            key: message_idempotency_key(context.inbound)?,
        };
        let bound = self.bindings.bind(request).await?;
        if !bound.is_new {
            return Ok(format!("This conversation is already bound to {key}."));
        }
        let text = self.bound_text(context, &bound);
        // Their messages are in other conversations, and a command may answer them here.
        let pending = self.service.pending_permissions(&key).await?;
        if pending.is_empty() {
            return Ok(text);
        }
        let is_markdown = self.router.renders_markdown(&context.inbound.conversation);
        Ok(format!("{text}\n{}", pending_text(&pending, Detail::of_reply(&pending), is_markdown)))
    }

    /// `/unfocus`
    pub(super) async fn unfocus(&self, context: CommandContext<'_>) -> Result<String, Failure> {
        let at = context.inbound.conversation.clone();
        let here = at.clone();
        let root = message_idempotency_key(context.inbound)?;
        let of = root.clone();
        let before = self.store.read("unfocus_before", move |db| {
            let done = command_queries::before::<Vec<BindingId>>(db, BINDING_SCOPE, &of)?;
            Ok((done.is_some(), bindings::of_conversation(db, &here)?))
        });
        let (is_done, binding) = before.await?;
        if let Some(binding) = binding.filter(|_| !is_done) {
            let belongs = Ownership { session: Vec::new(), bindings: vec![binding.bound_by] };
            context.by.may(AccessRequirement::Binder, &belongs)?;
            may_unbind(&self.service.config(), &at, &binding.metadata)?;
        }
        let reason = format!("unbound by {}", context.name());
        let ended = self.bindings.unbind(UnbindTarget::Conversation(at), &reason, root).await?;
        Ok(match ended.first() {
            Some(BindingRow { session_key: key, .. }) => {
                format!("Unbound. The session stays open; /focus {key} binds it again.")
            }
            None => "This conversation is not bound. /focus binds it to a session, /acp spawn to a new one."
                .to_owned(),
        })
    }

    /// `/acp verbosity`
    pub(super) async fn verbosity(
        &self,
        context: CommandContext<'_>,
        change: Option<Option<Verbosity>>,
    ) -> Result<String, Failure> {
        let (at, root) = (context.inbound.conversation.clone(), message_idempotency_key(context.inbound)?);
        let of = root.clone();
        let found = self.store.read("verbosity", move |db| {
            Ok((
                command_queries::before::<String>(db, BINDING_SCOPE, &of)?,
                bindings::of_conversation(db, &at)?,
            ))
        });
        let (said, binding) = found.await?;
        if let Some(said) = said {
            return Ok(said);
        }
        let Some(binding) = binding else {
            let text = "This conversation is not bound, so it has no output. /acp spawn starts a session.";
            return Err(Failure::new(Code::NotBound, text).origin("gateway"));
        };
        let Some(to) = change else { return Ok(verbosity_text(binding.verbosity, "")) };
        let belongs = Ownership { session: Vec::new(), bindings: vec![binding.bound_by.clone()] };
        context.by.may(AccessRequirement::Binder, &belongs)?;
        let done = self.store.write("verbosity_set", move |tx| {
            command_queries::run_once(tx, BINDING_SCOPE, &root, || {
                bindings::set_verbosity(tx, &binding, to)?;
                Ok(verbosity_text(to, " from now on"))
            })
        });
        Ok(done.await?)
    }

    /// `/session idle`, `/session max-age`
    pub(super) async fn window(
        &self,
        context: CommandContext<'_>,
        target: Option<&str>,
        window: BindingTimeout,
        change: Option<Option<u64>>,
    ) -> Result<String, Failure> {
        let Some(ms) = change else {
            let session = self.resolve_session(context, target, AccessRequirement::Anyone).await?;
            return self.window_report(context, session, window).await;
        };
        let decide = async {
            let session_key = self.resolve_session(context, target, AccessRequirement::Binder).await?;
            Ok(ResolvedCommand { session_key, answer: None, elsewhere: false })
        };
        let session = self.resolve_once(context, decide).await?.session_key;
        let root = message_idempotency_key(context.inbound)?;
        let (key, at) = (session.clone(), context.inbound.conversation.clone());
        let done = self.store.write("binding_window", move |tx| {
            command_queries::run_once(tx, BINDING_SCOPE, &root, || {
                let shown = command_queries::set_window(tx, &key, &at, window, ms)?;
                let count = shown.len();
                let text = shown.first().map(|binding| window_text(binding, window));
                let all = if count > 1 {
                    format!(" This applies to its {count} conversations here.")
                } else {
                    String::new()
                };
                Ok(text.map(|text| text + &all))
            })
        });
        done.await?.ok_or_else(|| unbound(&session))
    }

    /// Builds the reply to a command that bound a session: intro of the session if bound here, else the other
    /// conversation.
    pub(super) fn bound_text(&self, context: CommandContext<'_>, bound: &SessionBinding) -> String {
        let at = &bound.binding.conversation;
        if at.conversation_id == context.inbound.conversation.conversation_id {
            self.bindings.notice(&bound.session, &bound.binding)
        } else {
            let place = self.bindings.mention(at);
            format!("{} is bound to the conversation {place}. Continue there.", bound.session.session_key)
        }
    }

    /// Returns the text for one timeout of a session's binding.
    async fn window_report(
        &self,
        context: CommandContext<'_>,
        session: SessionKey,
        window: BindingTimeout,
    ) -> Result<String, Failure> {
        let (key, at) = (session.clone(), context.inbound.conversation.clone());
        let found =
            self.store.read("binding_windows", move |db| command_queries::bindings_in_account(db, &key, &at));
        let found = found.await?;
        found.first().map(|binding| window_text(binding, window)).ok_or_else(|| unbound(&session))
    }
}

/// Describes the output of a conversation at a verbosity, and when it takes effect.
fn verbosity_text(verbosity: Option<Verbosity>, since: &str) -> String {
    let told = match verbosity {
        Some(Verbosity::Full) => {
            "a status card for each turn with a line for every tool call, and the answers"
        }
        Some(Verbosity::Compact) => "a status card with the progress of each turn, and the answers",
        Some(Verbosity::None) => "only answers, questions and errors",
        None => "as configured",
    };
    let name = verbosity.map_or("default", Verbosity::as_str);
    format!(
        "/acp verbosity is {name}: {told}. This applies to this conversation{since}, also after a restart."
    )
}

fn unbound(session: &SessionKey) -> Failure {
    let text = format!("No conversation here is bound to {session}, so there is no timeout.");
    Failure::new(Code::NotBound, text).origin("gateway")
}

/// Describes a timeout of a binding and when it ends the binding.
fn window_text(binding: &BindingRow, window: BindingTimeout) -> String {
    let (ms, since_ms, after) = match window {
        BindingTimeout::Idle => (binding.idle_ms, binding.last_activity_at_ms, " without activity"),
        BindingTimeout::MaxAge => (binding.max_age_ms, binding.bound_at_ms, " in any case"),
    };
    match ms.filter(|ms| *ms > 0) {
        None => format!("/session {} is off: the binding has no such timeout.", window.as_str()),
        Some(ms) => format!(
            "/session {} is {}: the binding ends after that time{after}; currently at {}.",
            window.as_str(),
            format_duration(ms),
            format_utc(since_ms.saturating_add(ms))
        ),
    }
}
