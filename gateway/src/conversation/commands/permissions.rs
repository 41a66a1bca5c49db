//! Commands that list and answer permission requests.

use super::{CommandContext, Commands, ResolvedCommand, usage};
use crate::conversation::inbound::message_idempotency_key;
use acp_core::actor::QuestionAnswer;
use acp_core::backend::PermissionOption;
use acp_core::command::{AnswerArgs, PermissionChoice};
use acp_core::elicitation::{ElicitationAnswer, parse_fields};
use acp_core::failure::Failure;
use acp_core::permission::Voter;
use acp_core::permission::{NOT_PENDING, kind_note, parse_permission_id, short_id};
use acp_core::render::buttons::{ButtonSubject, resolution_line};
use acp_core::render::{answer_hint, escape_name, form_lines, quote_name, subject, tool_preview};
use acp_core::rows::{ConversationRef, PermissionRow, PermissionState};
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use acp_store::inbox::Outcome;
use acp_store::interactive_messages;
use acp_store::permissions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// Answered question and chosen option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AnsweredRequest {
    permission_id: String,
    option_id: String,
    /// Values of a form; the option stands for the answer without them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    content: Option<Map<String, Value>>,
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
        let (option_id, name, content) = pick_answer(row, &args.verdict, is_markdown).map_err(usage)?;
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
        Ok(AnsweredRequest { permission_id: row.permission_id(), option_id, content, name, is_shown })
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
        let answer = match &choice.content {
            Some(content) => {
                QuestionAnswer::Elicitation(ElicitationAnswer::Accept { content: content.clone() })
            }
            None => QuestionAnswer::Option(choice.option_id.clone()),
        };
        let (session, permission) = (&resolved.session_key, &choice.permission_id);
        // A message says nothing about the machine of its author.
        let (name, id) = (context.name().to_owned(), context.inbound.sender_id());
        let by = Voter { name, id, is_local: false };
        self.service.answer_question(session, permission, answer, by, key).await?;
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

fn title_of(row: &PermissionRow) -> &str {
    row.request.what.title().unwrap_or(&row.request.method)
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
        if let Some(form) = row.request.what.elicitation() {
            text.push_str(&form_lines(form, is_markdown));
            let _ = write!(text, "\n  {}", answer_hint(form, Some(&short_id(&row.permission_id()))));
            continue;
        }
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
        for (number, option) in (1..).zip(row.request.what.options()) {
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

/// Finds the requested answer: option, its name, and values of a form.
type PickedAnswer = (String, String, Option<Map<String, Value>>);

/// Returns the answer that the words of a command mean for this question.
fn pick_answer(
    row: &PermissionRow,
    verdict: &PermissionChoice,
    is_markdown: bool,
) -> Result<PickedAnswer, String> {
    let what = &row.request.what;
    let words = match (verdict, what.elicitation()) {
        (PermissionChoice::Fields(words), Some(form)) => Some((form, words.as_slice())),
        // A number names a choice only where choices are numbered: elsewhere it may be a value.
        (PermissionChoice::Option(word), Some(form)) if !form.is_numbered() && !form.fields().is_empty() => {
            Some((form, std::slice::from_ref(word)))
        }
        (PermissionChoice::Option(word), Some(form)) if word.contains('=') && !form.fields().is_empty() => {
            Some((form, std::slice::from_ref(word)))
        }
        _ => None,
    };
    if let Some((form, words)) = words {
        let content = parse_fields(form, words)?;
        let answer = ElicitationAnswer::Accept { content };
        let option_id = form.option_of(&answer).unwrap_or_default();
        let name = form.option_name(&option_id);
        let ElicitationAnswer::Accept { content } = answer else { return Err(String::new()) };
        return Ok((option_id, name, Some(content)));
    }
    let option = pick_option(what.options(), verdict, is_markdown)?;
    Ok((option.id.clone(), option.name.clone(), None))
}

/// Finds the requested option.
fn pick_option<'a>(
    options: &'a [PermissionOption],
    verdict: &PermissionChoice,
    is_markdown: bool,
) -> Result<&'a PermissionOption, String> {
    let of_kind = |kinds: [&str; 3]| {
        kinds.into_iter().find_map(|kind| options.iter().find(|option| option.kind == kind))
    };
    let found = match verdict {
        PermissionChoice::Allow => of_kind(["allow_once", "allow_always", "accept"]),
        PermissionChoice::Deny => of_kind(["reject_once", "reject_always", "decline"]),
        // A number is a position, as in lists and on buttons, even if an option's id looks like one.
        PermissionChoice::Option(wanted) => {
            let position =
                wanted.parse::<usize>().ok().and_then(|number| options.get(number.checked_sub(1)?));
            position.or_else(|| options.iter().find(|option| option.id == *wanted))
        }
        PermissionChoice::Fields(_) => None,
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
