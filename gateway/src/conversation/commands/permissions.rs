//! Commands that list and answer permission requests.

use super::{CommandContext, Commands, ResolvedCommand, usage};
use crate::conversation::inbound::message_idempotency_key;
use acp_core::backend::{AgentRequestKind, PermissionOption};
use acp_core::command::{AnswerArgs, PermissionChoice};
use acp_core::failure::Failure;
use acp_core::permission::{NOT_PENDING, kind_note, parse_permission_id, short_id};
use acp_core::render::buttons::{ButtonSubject, resolution_line};
use acp_core::render::{escape_name, quote_name, subject, tool_preview};
use acp_core::rows::{ConversationRef, PermissionRow, PermissionState};
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use acp_store::inbox::Outcome;
use acp_store::interactive_messages;
use acp_store::permissions;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Answered permission request and chosen option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AnsweredRequest {
    permission_id: String,
    option_id: String,
    /// Name of the option, as shown to people.
    name: String,
    /// True if the conversation shows the result anyway, in the message of the request or in a notice.
    #[serde(default)]
    is_shown: bool,
}

impl Commands {
    /// `/acp permissions` without a mode
    pub(super) async fn pending(
        &self,
        at: &ConversationRef,
        session: &SessionKey,
    ) -> Result<String, Failure> {
        let pending = self.service.pending_permissions(session).await?;
        Ok(pending_text(&pending, Detail::of_reply(&pending), self.router.renders_markdown(at)))
    }

    /// Resolves the request and the option of `/acp allow`, `deny` or `answer`.
    pub(super) async fn choose_option(
        &self,
        context: CommandContext<'_>,
        session: &SessionKey,
        args: &AnswerArgs,
    ) -> Result<AnsweredRequest, Failure> {
        let pending = self.service.pending_permissions(session).await?;
        let is_markdown = self.router.renders_markdown(&context.inbound.conversation);
        let row = match pick_permission(&pending, args.permission.as_deref()) {
            Ok(row) => row,
            Err(text) => {
                let text = self
                    .settled_text(session, args.permission.as_deref(), is_markdown)
                    .await?
                    .unwrap_or(text);
                return Err(usage(text).detail(NOT_PENDING));
            }
        };
        let option = pick_option(options_of(row), &args.verdict, is_markdown).map_err(usage)?;
        let (at, about) =
            (context.inbound.conversation.clone(), ButtonSubject::Permission(row.permission_id()));
        let is_kept = self
            .store
            .read("question_shown", move |db| interactive_messages::has_message_about(db, &at, &about))
            .await?;
        // The request may not be sent yet. In channels without edits a later notice shows the result.
        let is_told = || self.router.has_no_edits(&context.inbound.conversation);
        let is_shown =
            is_kept || (is_told() && self.bound_session(context.inbound).await?.as_ref() == Some(session));
        Ok(AnsweredRequest {
            permission_id: row.permission_id(),
            option_id: option.id.clone(),
            name: option.name.clone(),
            is_shown,
        })
    }

    /// Returns the reply to an answer that is too late: how the request was settled, and by whom.
    async fn settled_text(
        &self,
        session: &SessionKey,
        wanted: Option<&str>,
        is_markdown: bool,
    ) -> Result<Option<String>, Failure> {
        let Some(wanted) = wanted.filter(|wanted| parse_permission_id(wanted).is_some()).map(str::to_owned)
        else {
            return Ok(None);
        };
        let row = self.store.read("permission", move |db| permissions::get(db, &wanted)).await?;
        let row = row.filter(|row| row.session_key == *session && row.state != PermissionState::Pending);
        Ok(row.map(|row| format!("Too late for this request. {}", resolution_line(&row, is_markdown))))
    }

    /// `/acp allow`, `deny`, `answer`
    pub(super) async fn answer(
        &self,
        context: CommandContext<'_>,
        resolved: &ResolvedCommand,
    ) -> Result<Outcome, Failure> {
        let choice = resolved.answer.as_ref().ok_or_else(|| Failure::of(Code::Runtime))?;
        let key = message_idempotency_key(context.inbound)?;
        let (permission, option) = (&choice.permission_id, &choice.option_id);
        self.service
            .answer_permission(&resolved.session_key, permission, option, context.name(), key)
            .await?;
        let name = quote_name(&choice.name, self.router.renders_markdown(&context.inbound.conversation));
        let (text, is_shown) = (format!("Answered: {name}."), choice.is_shown);
        Ok(Outcome::Command {
            session_key: self.bound_session(context.inbound).await?,
            run_id: None,
            text,
            is_shown,
        })
    }
}

/// The options of a permission request.
fn options_of(row: &PermissionRow) -> &[PermissionOption] {
    match &row.request.what {
        AgentRequestKind::Permission { options, .. } => options,
        _ => &[],
    }
}

fn title_of(row: &PermissionRow) -> &str {
    match &row.request.what {
        AgentRequestKind::Permission { title, .. } => title,
        _ => &row.request.method,
    }
}

/// What a list tells of each permission request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// The subject, in one line.
    Subject,
    /// As much as the message of the request shows.
    Preview,
}

impl Detail {
    /// Returns the detail of a reply: with previews, one request could fill the reply and hide the others.
    pub(super) const fn of_reply(pending: &[PermissionRow]) -> Self {
        if pending.len() > 1 { Self::Subject } else { Self::Preview }
    }
}

/// Lists the pending permission requests, with the numbers to answer them by.
pub(super) fn pending_text(pending: &[PermissionRow], detail: Detail, is_markdown: bool) -> String {
    let mut text = String::from(if pending.is_empty() {
        "The agent waits for no permission."
    } else {
        "The agent waits for permission:"
    });
    for row in pending {
        // Writing into a String cannot fail.
        let title = escape_name(title_of(row), is_markdown);
        let _ = write!(text, "\n- {title} (id {})", short_id(&row.permission_id()));
        match detail {
            Detail::Subject => {
                let line = subject(&row.tool_call()).filter(|line| line != title_of(row));
                text.extend(line.map(|line| format!("\n  {}", escape_name(&line, is_markdown))));
            }
            Detail::Preview => {
                let preview = tool_preview(&row.tool_call(), is_markdown);
                text.extend(preview.map(|preview| format!("\n{preview}")));
            }
        }
        for (number, option) in (1..).zip(options_of(row)) {
            let note = kind_note(&option.name, &option.kind);
            let _ = write!(text, "\n  {number}. {}{note}", escape_name(&option.name, is_markdown));
        }
    }
    text
}

/// Finds the requested permission: the only one, or the one whose id or short id is `wanted` or starts with
/// it.
fn pick_permission<'a>(
    pending: &'a [PermissionRow],
    wanted: Option<&str>,
) -> Result<&'a PermissionRow, String> {
    // A full id matches exactly: a button of a settled request must not answer one with a longer id (H4).
    let is_whole = wanted.is_some_and(|wanted| parse_permission_id(wanted).is_some());
    let fits = |row: &&PermissionRow| {
        !is_whole && wanted.is_none_or(|wanted| row.permission_id().starts_with(wanted))
    };
    let is_called = |id: &str, wanted: &str| id == wanted || short_id(id) == wanted;
    let exact = pending.iter().find(|row| wanted.is_some_and(|it| is_called(&row.permission_id(), it)));
    let mut found = pending.iter().filter(fits);
    match (exact, found.next(), found.next()) {
        (Some(row), _, _) | (None, Some(row), None) => Ok(row),
        (None, None, _) if pending.is_empty() => Err("The agent waits for no permission.".to_owned()),
        (None, None, _) => Err("No pending permission has that id. /acp permissions lists them.".to_owned()),
        (None, Some(_), Some(_)) => {
            Err("Several permissions match. Name one by its id; /acp permissions lists them.".to_owned())
        }
    }
}

/// Finds the requested option.
fn pick_option<'a>(
    options: &'a [PermissionOption],
    verdict: &PermissionChoice,
    is_markdown: bool,
) -> Result<&'a PermissionOption, String> {
    let of_kind = |kinds: [&str; 2]| {
        kinds.into_iter().find_map(|kind| options.iter().find(|option| option.kind == kind))
    };
    let found = match verdict {
        PermissionChoice::Allow => of_kind(["allow_once", "allow_always"]),
        PermissionChoice::Deny => of_kind(["reject_once", "reject_always"]),
        // A number is a position, as in lists and on buttons, even if an option's id looks like one.
        PermissionChoice::Option(wanted) => {
            let position =
                wanted.parse::<usize>().ok().and_then(|number| options.get(number.checked_sub(1)?));
            position.or_else(|| options.iter().find(|option| option.id == *wanted))
        }
    };
    found.ok_or_else(|| {
        let listed = |(number, option): (u32, &PermissionOption)| {
            format!("{number}. {}", quote_name(&option.name, is_markdown))
        };
        let names: Vec<String> = (1..).zip(options).map(listed).collect();
        format!("The agent offers no such option. Use /acp answer with one of: {}.", names.join(", "))
    })
}

#[cfg(test)]
#[path = "permissions_tests.rs"]
mod tests;
