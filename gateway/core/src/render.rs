//! Projection of the journal into messages for a conversation: a pure function with the same result for every
//! caller.
//!
//! One journal row yields the parts of that row and no others, so the batching of the journal does not
//! matter. Data outside of the row (e.g. the output of the run that ends with the row) comes as a
//! [`RenderData`] of rows that were committed earlier or in the same transaction, and never change.

mod body;
pub mod buttons;
pub mod diff;
pub mod disambiguation_tag;
mod effects;
mod escape;
mod event_text;
mod files;
mod footer;
mod form;
mod lines;
pub mod permission_prompt;
mod run_summary;
mod style;
mod tool_preview;

pub use body::RunOutput;
pub use buttons::ButtonGroup;
pub use escape::{escape_name, quote_name};
pub use event_text::{delta_text, host_effect_text, unreadable_text};
pub use files::{FileRef, MessageFile};
pub use form::{answer_hint, form_lines};
pub use run_summary::RunDigest;
pub use style::{ChannelFeatures, Style, StyleHistory};
pub use tool_preview::{shown_targets, subject, tool_preview, whole_tool_call};

use crate::error_messages::next_step_for;
use crate::event::{EventKind, EventRow};
use crate::message_split::MessageLimit;
use crate::nonce::nonce_of;
use crate::paths::hide_paths;
use crate::rows::RunMode;
use crate::sanitize;
use crate::usage::Tokens;
use acp_shared::codes::Code;
use acp_shared::ids::{BindingId, RunId};
use effects::{AskedPermission, EffectLine};
use event_text::unreadable_row;
use files::{MessagePiece, lay_out};
use serde_json::Value;

/// Maximum length of a title, a name or a reason in a part, in characters.
const TITLE_CHARS_MAX: usize = 300;
/// Maximum number of options listed in a permission part.
const OPTIONS_MAX: usize = 25;
/// Maximum number of parts of one row. A message limit that requires more parts is too small for
/// conversations.
const PARTS_MAX: u32 = 100_000;
/// Status values not shown, since later rows imply them.
pub const HIDDEN_STATUSES: [&str; 4] = ["agent_ready", "agent_rests", "prompt_steered", "prompt_reworded"];
/// Status values of agent and binding that are shown even at verbosity `none`.
pub const ALWAYS_SHOWN_STATUSES: [&str; 9] = [
    "asking_not_ensured",
    "agent_failed",
    "agent_away",
    "agent_fetched",
    "agent_waits",
    "approves_by_itself",
    "cancel_stuck",
    "decided_again",
    "unbound",
];
/// Kinds of rows that can yield parts.
pub const RENDERED_KINDS: [EventKind; 8] = [
    EventKind::Permission,
    EventKind::PermissionSettled,
    EventKind::HostRequest,
    EventKind::Status,
    EventKind::Gap,
    EventKind::Done,
    EventKind::Error,
    EventKind::Closed,
];
/// Kinds of rows that the final message of a run is made of.
pub const OUTPUT_KINDS: [EventKind; 9] = [
    EventKind::AgentMessage,
    EventKind::AgentThought,
    EventKind::ToolCall,
    EventKind::ToolCallUpdate,
    EventKind::Plan,
    EventKind::Update,
    EventKind::HostRequest,
    EventKind::Permission,
    EventKind::PermissionSettled,
];

acp_shared::named! {
    /// Kind of a part, for channels that render kinds differently. Named as in the database and in JSON.
    #[derive(Default, Hash)]
    pub enum PartKind {
        /// Final message of a run: the output, or the reason for the missing output.
        Final = "final",
        /// Notice for people.
        #[default]
        Notice = "notice",
        /// Permission request of the agent.
        Permission = "permission",
        /// Error that does not end a run.
        Error = "error",
        /// Status card of a run: best effort, without unique content, so never in the outbox.
        Card = "card",
    }
}

/// Durable message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagePart {
    /// Journal row of the part.
    pub session_seq: u64,
    /// Number among the parts of the row, from 0.
    pub part_no: u32,
    /// Run of the row, if any.
    pub run_id: Option<RunId>,
    /// Kind of the part.
    pub kind: PartKind,
    /// Text of the message.
    pub text: String,
    /// Permanent unique id of the part, by which channels detect duplicates.
    pub nonce: String,
    /// Buttons of the message.
    pub asks: Option<ButtonGroup>,
    /// Files of the message. [`part_files`] recomputes their content from the journal.
    pub files: Vec<FileRef>,
}

/// Returns the nonce of a part: 24 letters and digits.
pub fn nonce(binding_id: BindingId, session_seq: u64, part_no: u32) -> String {
    nonce_of(&["part", &binding_id.to_string(), &session_seq.to_string(), &part_no.to_string()])
}

/// Returns the nonce of a run's card with this number, in one conversation.
pub fn card_nonce(binding_id: BindingId, run_id: RunId, number: u32) -> String {
    nonce_of(&["card", &binding_id.to_string(), &run_id.to_string(), &number.to_string()])
}

/// Returns the notice about a part with an uncertain delivery (H12), sent once after the other parts of the
/// row. `None` if the part is such a notice.
pub fn uncertain_notice(binding_id: BindingId, part: &MessagePart) -> Option<MessagePart> {
    missing_part_notice(
        binding_id,
        part,
        "It is unknown whether a message arrived here",
        "It is not sent again; the",
    )
}

/// Returns the notice about a part that the channel rejected, so that people know about the missing part.
pub fn rejected_notice(binding_id: BindingId, part: &MessagePart) -> Option<MessagePart> {
    missing_part_notice(binding_id, part, "A message is missing here because the channel rejected it", "The")
}

/// Returns the notice about a part whose files cannot be recomputed.
pub fn lost_files_notice(binding_id: BindingId, part: &MessagePart) -> Option<MessagePart> {
    missing_part_notice(
        binding_id,
        part,
        "A message is missing here because its file can no longer be generated",
        "The",
    )
}

/// Returns the notice about a part that is missing, or may be.
fn missing_part_notice(
    binding_id: BindingId,
    part: &MessagePart,
    what_happened: &str,
    then: &str,
) -> Option<MessagePart> {
    if part.part_no >= PARTS_MAX {
        return None;
    }
    let what = match part.kind {
        PartKind::Final => "the agent's answer",
        PartKind::Permission => "a permission request",
        PartKind::Notice | PartKind::Error | PartKind::Card => "a notice",
    };
    let part_no = PARTS_MAX + part.part_no;
    let number = part.part_no + 1;
    Some(MessagePart {
        session_seq: part.session_seq,
        part_no,
        run_id: part.run_id,
        kind: PartKind::Error,
        text: format!("{what_happened}: {what} (part {number}). {then} session's history has all of it."),
        nonce: nonce(binding_id, part.session_seq, part_no),
        asks: None,
        files: Vec::new(),
    })
}

/// Data required for the projection of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredData {
    /// Nothing.
    Nothing,
    /// Digest of the run that ends with the row.
    Run(RunId),
    /// Next row, if committed.
    Next,
}

/// True if a row can yield parts. Effects of the host within a turn are part of its final message.
pub fn is_rendered(event: &EventRow) -> bool {
    RENDERED_KINDS.contains(&event.kind) && (event.kind != EventKind::HostRequest || event.run_id.is_none())
}

/// Returns the data required for the projection of `event`.
pub fn required_data(event: &EventRow) -> RequiredData {
    match (event.kind, event.run_id) {
        (EventKind::Done | EventKind::Error, Some(run_id)) => RequiredData::Run(run_id),
        (EventKind::Permission, _) => RequiredData::Next,
        _ => RequiredData::Nothing,
    }
}

/// Data for the projection of a row.
#[derive(Debug, Clone, Copy)]
pub enum RenderData<'a> {
    /// Nothing required or nothing available.
    Nothing,
    /// Digest of the run that ends with the row.
    Run(&'a RunDigest),
    /// Next row.
    Next(&'a EventRow),
}

/// Returns the parts of one journal row in the conversation of `binding_id`, in order. Most rows have none.
pub fn render_row(
    binding_id: BindingId,
    style: &Style,
    event: &EventRow,
    digest: RenderData<'_>,
) -> Vec<MessagePart> {
    let Some((kind, pieces)) = lay_out_row(binding_id, style, event, digest) else { return Vec::new() };
    let asks = if kind == PartKind::Permission {
        buttons::permission_buttons(&parse(&event.payload), style.shows.buttons)
    } else {
        None
    };
    let count = pieces.len();
    let part = |(part_no, piece): (u32, MessagePiece)| MessagePart {
        session_seq: event.session_seq,
        part_no,
        run_id: event.run_id,
        kind,
        nonce: nonce(binding_id, event.session_seq, part_no),
        // The last part holds the question and thus the buttons.
        asks: asks.clone().filter(|_| part_no as usize + 1 == count),
        files: piece.files.iter().map(MessageFile::named).collect(),
        text: piece.text,
    };
    (0..PARTS_MAX).zip(pieces).map(part).collect()
}

/// Returns the files of one part of a row, with their content.
pub fn part_files(
    binding_id: BindingId,
    style: &Style,
    event: &EventRow,
    digest: RenderData<'_>,
    part_no: u32,
) -> Vec<MessageFile> {
    let pieces = lay_out_row(binding_id, style, event, digest).map(|(_, pieces)| pieces).unwrap_or_default();
    (0..PARTS_MAX)
        .zip(pieces)
        .find(|(no, _)| *no == part_no)
        .map(|(_, piece)| piece.files)
        .unwrap_or_default()
}

fn lay_out_row(
    binding_id: BindingId,
    style: &Style,
    event: &EventRow,
    digest: RenderData<'_>,
) -> Option<(PartKind, Vec<MessagePiece>)> {
    if is_for_other_binding(binding_id, event) {
        return None;
    }
    let said = message_content(style, event, digest)?;
    Some((said.kind, lay_out(&said, run_of(digest))))
}

/// Content of a row's message.
struct MessageContent {
    kind: PartKind,
    body: String,
    /// Text that must stay at the end, also if the body is sent as a file.
    end: String,
    /// Size limit of one message.
    limit: MessageLimit,
}

impl MessageContent {
    /// Returns body and end.
    fn text(&self) -> String {
        join_paragraphs(self.body.clone(), Some(self.end.clone()).filter(|end| !end.is_empty()))
    }
}

/// True if the row belongs to one binding only, and to a different one.
fn is_for_other_binding(binding_id: BindingId, event: &EventRow) -> bool {
    event.kind == EventKind::Status
        && parse(&event.payload)["binding_id"].as_str().is_some_and(|of| of != binding_id.to_string())
}

/// Returns the content of a row's message, if the row is shown.
fn message_content(style: &Style, event: &EventRow, digest: RenderData<'_>) -> Option<MessageContent> {
    let payload = parse(&event.payload);
    let run = run_of(digest);
    let (kind, body, ending) = match event.kind {
        EventKind::Done => {
            let (kind, ending) = completed_content(&payload, run)?;
            let body = if kind == PartKind::Final { run.map(RunDigest::output_text) } else { None };
            (kind, body.unwrap_or_default(), ending)
        }
        EventKind::Error => (
            PartKind::Final,
            run.map(RunDigest::output_text).unwrap_or_default(),
            Some(failure_text(&payload)),
        ),
        _ => {
            let (kind, text) = notice_content(style, event, &payload, digest)?;
            (kind, text, None)
        }
    };
    let is_left_out = style.is_quiet() && kind == PartKind::Notice && !is_always_shown(event.kind, &payload);
    let heading = run.filter(|_| kind == PartKind::Final).and_then(|run| run.heading(style.shows.markdown));
    let body = match heading {
        Some(heading) if body.is_empty() => heading,
        Some(heading) => format!("{heading}\n\n{body}"),
        None => body,
    };
    let footer = run.filter(|_| kind == PartKind::Final);
    let footer = footer.and_then(|run| run.footer(event.created_at_ms, Tokens::of(&payload["usage"])));
    let small = if style.shows.markdown { permission_prompt::SMALL } else { "" };
    let end = join_paragraphs(ending.unwrap_or_default(), footer.map(|line| format!("{small}{line}")));
    let (body, end) = (sanitize::text(&body).into_owned(), sanitize::text(&end).into_owned());
    (!is_left_out).then_some(MessageContent { kind, body, end, limit: style.limit })
}

/// True if a notice is shown at every verbosity: the result of a person's message, the cause of a delay, the
/// result of a permission request, the end of the binding. Lines about effects decide for themselves.
fn is_always_shown(kind: EventKind, payload: &Value) -> bool {
    match kind {
        EventKind::Done
        | EventKind::Closed
        | EventKind::Permission
        | EventKind::PermissionSettled
        | EventKind::HostRequest => true,
        EventKind::Status => {
            payload["status"].as_str().is_some_and(|status| ALWAYS_SHOWN_STATUSES.contains(&status))
        }
        _ => false,
    }
}

/// Returns kind and text for a row that does not end a run.
fn notice_content(
    style: &Style,
    event: &EventRow,
    payload: &Value,
    digest: RenderData<'_>,
) -> Option<(PartKind, String)> {
    if payload.is_null() && is_rendered(event) {
        return Some((PartKind::Error, unreadable_row(event.session_seq)));
    }
    // Effects between turns; those within a turn are part of its final message.
    let notice = |line: EffectLine| line.shown_in(style, false).map(|text| (PartKind::Notice, text));
    match event.kind {
        EventKind::Permission => match digest {
            RenderData::Next(next) if permission_prompt::is_resolved_by_policy(payload, next) => {
                let line = AskedPermission::of(payload).settled(style, &parse(&next.payload));
                line.filter(|_| event.run_id.is_none()).and_then(notice)
            }
            _ => Some((PartKind::Permission, permission_prompt::permission_prompt(style, event, payload))),
        },
        EventKind::HostRequest if event.run_id.is_none() => {
            EffectLine::of_host(style, payload).and_then(notice)
        }
        EventKind::PermissionSettled => {
            permission_prompt::resolution_notice(style, payload).map(|text| (PartKind::Notice, text))
        }
        EventKind::Status => {
            let is_hidden =
                payload["status"].as_str().is_some_and(|status| HIDDEN_STATUSES.contains(&status));
            // The error rows of these runs have the same text.
            let is_repeated = payload["failed_runs"].as_u64().is_some_and(|count| count > 0);
            let text = conversation_text(payload, "text");
            (!is_hidden && !is_repeated && !text.is_empty()).then_some((PartKind::Notice, text))
        }
        EventKind::Gap => {
            let text = payload["text"].as_str().unwrap_or_default();
            Some((
                PartKind::Error,
                format!("Output of the agent is missing here. {text}").trim_end().to_owned(),
            ))
        }
        EventKind::Closed => {
            let reason = payload["reason"].as_str().map(short_line).unwrap_or_default();
            let why = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
            Some((PartKind::Notice, format!("The session is closed{why}. Start a new one with /acp spawn.")))
        }
        _ => None,
    }
}

const fn run_of<'a>(digest: RenderData<'a>) -> Option<&'a RunDigest> {
    match digest {
        RenderData::Run(run) => Some(run),
        RenderData::Nothing | RenderData::Next(_) => None,
    }
}

/// Returns kind and closing line for a run that ended without an error.
fn completed_content(payload: &Value, run: Option<&RunDigest>) -> Option<(PartKind, Option<String>)> {
    let stop_reason = payload["stop_reason"].as_str().unwrap_or_default();
    if stop_reason == "steered" || run.is_some_and(|run| run.mode == RunMode::Steer) {
        return None;
    }
    if run.is_some_and(|run| !run.started) {
        return Some((PartKind::Notice, Some("A queued prompt was cancelled before its turn.".to_owned())));
    }
    let ending = match stop_reason {
        "" | "end_turn" if run.is_none_or(|run| run.output_text().is_empty()) => {
            Some("The turn ended without an answer.".to_owned())
        }
        "" | "end_turn" => None,
        "cancelled" => Some("The turn was cancelled. Send a message to continue.".to_owned()),
        "refusal" => Some(
            "The agent refused to continue. Rephrase the message, or start a new conversation with /acp new."
                .to_owned(),
        ),
        "max_tokens" => Some("The agent stopped at its length limit. Ask it to continue.".to_owned()),
        "max_turn_requests" => Some("The agent stopped at its step limit. Ask it to continue.".to_owned()),
        other => Some(format!("The turn ended: {}.", short_line(other))),
    };
    Some((PartKind::Final, ending))
}

fn failure_text(payload: &Value) -> String {
    let code = payload["code"].as_str().unwrap_or_default();
    let advice = Code::parse(code).map_or("", Code::text);
    let message = conversation_text(payload, "message");
    let mut text =
        format!("The turn failed ({}): ", if code.is_empty() { Code::TurnFailed.as_str() } else { code });
    if message.is_empty() {
        text.push_str(advice);
    } else {
        text.push_str(&message);
        if !message.contains(advice) {
            text.push(' ');
            text.push_str(advice);
        }
    }
    let next = next_step_for(Code::parse(code).unwrap_or(Code::TurnFailed), payload["detail_code"].as_str());
    text.push_str(&format!("\nNext: {next}"));
    if payload["retryable"].as_bool() == Some(true) {
        text.push_str(" Sending the prompt again may work.");
    }
    text
}

/// Returns the text of a status or a failure for conversations: their own, or else the one of this name.
fn conversation_text(payload: &Value, name: &str) -> String {
    let text = payload["conversation_text"].as_str().or_else(|| payload[name].as_str());
    hide_paths(text.unwrap_or_default().trim())
}

fn join_paragraphs(body: String, ending: Option<String>) -> String {
    match ending {
        Some(ending) if body.is_empty() => ending,
        // Small text needs no blank line before.
        Some(ending) if ending.starts_with(permission_prompt::SMALL) => format!("{body}\n{ending}"),
        Some(ending) => format!("{body}\n\n{ending}"),
        None => body,
    }
}

/// Returns the start of a title, a name or a reason, on one line.
fn short_line(text: &str) -> String {
    sanitize::line(text, TITLE_CHARS_MAX)
}

/// Parses a payload. Invalid JSON becomes null, which is shown as [`unreadable_row`].
fn parse(payload: &str) -> Value {
    serde_json::from_str(payload).unwrap_or(Value::Null)
}

#[cfg(test)]
pub(crate) mod tests;
