//! From the journal to what a conversation is shown: a pure projection, the same for whoever computes it.
//!
//! One journal row gives the parts of that row and no other, so it does not matter how the journal is cut into
//! batches. What a row alone does not hold (the whole output of the run that it ends) comes as a [`Digest`] of
//! rows that were committed with it or before it, and never change.

pub(crate) mod actions;
mod body;
mod changes;
mod digest;
mod excerpt;
mod files;
mod footer;
mod lines;
mod names;
pub(crate) mod question;
mod style;
pub(crate) mod tag;

pub(crate) use actions::Asks;
pub(crate) use body::Body;
pub(crate) use digest::RunDigest;
pub(crate) use excerpt::{excerpt, shown_targets, subject};
pub(crate) use files::{File, FileRef};
pub(crate) use names::{quoted, unmarked};
pub(crate) use style::{Shows, Style, Styles};

use crate::core::event::{EventKind, EventRow};
use crate::core::paths::hide_paths;
use crate::core::rows::RunMode;
use crate::core::sanitize;
use crate::core::split::Limit;
use crate::core::told::step;
use acp_shared::codes::Code;
use acp_shared::ids::{BindingId, RunId};
use files::{Piece, lay_out};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The most of a title, a name or a reason that a part repeats.
const TITLE_CHARS_MAX: usize = 300;
/// The most options of a permission request that a part lists.
const OPTIONS_MAX: usize = 25;
/// The parts of one row, at most: a limit that makes more of them is too small for conversations.
const PARTS_MAX: u32 = 100_000;
/// From this number on parts are said late, about a message that has long been delivered ([`unchanged`]): the one kind that is
/// on its way behind its conversation's checkpoint.
pub(crate) const LATE_FROM: u32 = 2 * PARTS_MAX;
/// Placeholder for a row with an unreadable payload.
const UNREADABLE: &str = "(Something of this session cannot be shown here: its record cannot be read.)";
/// States that are seen by what follows them, and not said.
pub(crate) const QUIET: [&str; 4] = ["agent_ready", "agent_rests", "prompt_steered", "prompt_reworded"];
/// States of the agent, and of the binding, that are said also where hardly anything is.
pub(crate) const OWED: [&str; 8] = [
    "asking_not_ensured",
    "agent_failed",
    "agent_away",
    "agent_waits",
    "approves_by_itself",
    "cancel_stuck",
    "decided_again",
    "unbound",
];
/// The kinds of rows that a conversation may be shown; no other kind ever gives a part.
pub(crate) const SHOWN: [EventKind; 7] = [
    EventKind::Permission,
    EventKind::PermissionSettled,
    EventKind::Status,
    EventKind::Gap,
    EventKind::Done,
    EventKind::Error,
    EventKind::Closed,
];
/// The kinds of rows that the final message of their run is made of.
pub(crate) const DIGESTED: [EventKind; 7] = [
    EventKind::AgentMessage,
    EventKind::AgentThought,
    EventKind::ToolCall,
    EventKind::ToolCallUpdate,
    EventKind::Plan,
    EventKind::Update,
    EventKind::HostRequest,
];

/// What a part is, for channels that show kinds differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartKind {
    /// The final message of a run: its output, or why there is none.
    Final,
    /// Something happened that people should know.
    Notice,
    /// The agent asks for a permission.
    Permission,
    /// Something is wrong that is not the end of a run.
    Error,
    /// The live card of a run: best effort and the only carrier of nothing, so never in the outbox.
    Card,
}

impl PartKind {
    /// Every kind.
    pub(crate) const ALL: [Self; 5] = [Self::Final, Self::Notice, Self::Permission, Self::Error, Self::Card];

    /// The name in the database and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Final => "final",
            Self::Notice => "notice",
            Self::Permission => "permission",
            Self::Error => "error",
            Self::Card => "card",
        }
    }
}

/// One durable message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The journal row it shows.
    pub(crate) session_seq: u64,
    /// Its number among the parts of that row, from 0.
    pub(crate) part_no: u32,
    /// The run it belongs to.
    pub(crate) run_id: Option<RunId>,
    /// What it is.
    pub(crate) kind: PartKind,
    /// What is shown.
    pub(crate) text: String,
    /// Names the part for ever: a channel that has seen it does not show it again.
    pub(crate) nonce: String,
    /// Its buttons.
    pub(crate) asks: Option<Asks>,
    /// Its files; what is in them is made anew from the journal by [`contents`].
    pub(crate) files: Vec<FileRef>,
}

/// The nonce of a part: 24 letters and digits.
pub(crate) fn nonce(binding_id: BindingId, session_seq: u64, part_no: u32) -> String {
    nonce_of(&["part", &binding_id.to_string(), &session_seq.to_string(), &part_no.to_string()])
}

/// The nonce of a card: the one of that number in a conversation for a run.
pub(crate) fn card_nonce(binding_id: BindingId, run_id: RunId, number: u32) -> String {
    nonce_of(&["card", &binding_id.to_string(), &run_id.to_string(), &number.to_string()])
}

/// A nonce of anything that has a name: 24 letters and digits.
pub(crate) fn nonce_of(name: &[&str]) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut hash = Sha256::new();
    for word in name {
        hash.update(word.len().to_be_bytes());
        hash.update(word);
    }
    let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
    hash.finalize().iter().take(24).map(letter).collect()
}

/// What is said when nobody knows whether a part arrived (H12): once, after the other parts of its row. `None` for
/// what is such a notice itself.
pub(crate) fn unsure(binding_id: BindingId, part: &Part) -> Option<Part> {
    missing(binding_id, part, "It is not known whether a message arrived here", "It is not sent again; the")
}

/// The same when the channel will not have a part: nobody is to take what there is for all of it.
pub(crate) fn refused(binding_id: BindingId, part: &Part) -> Option<Part> {
    missing(binding_id, part, "A message is not shown here, since the channel will not have it", "The")
}

/// The same when its files cannot be made any more.
pub(crate) fn lost(binding_id: BindingId, part: &Part) -> Option<Part> {
    missing(binding_id, part, "A message is not shown here, since its file cannot be made any more", "The")
}

/// A notice about a part that is missing, or may be.
fn missing(binding_id: BindingId, part: &Part, what_happened: &str, then: &str) -> Option<Part> {
    if part.part_no >= PARTS_MAX {
        return None;
    }
    let what = match part.kind {
        PartKind::Final => "the agent's answer",
        PartKind::Permission => "a question of the agent",
        PartKind::Notice | PartKind::Error | PartKind::Card => "a notice",
    };
    let part_no = PARTS_MAX + part.part_no;
    let number = part.part_no + 1;
    Some(Part {
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

/// What is said where a message that is over can never be changed, so that it keeps buttons that mean nothing: once, after
/// what else is said of its row. `text` is what the message itself was to say from then on. `None` for a notice about
/// another part.
pub(crate) fn unchanged(
    binding_id: BindingId,
    (session_seq, part_no): (u64, u32),
    run_id: Option<RunId>,
    text: &str,
) -> Option<Part> {
    let part_no = (part_no < PARTS_MAX).then_some(LATE_FROM + part_no)?;
    let became = text.trim_end().rsplit('\n').next().unwrap_or_default();
    Some(Part {
        session_seq,
        part_no,
        run_id,
        kind: PartKind::Notice,
        text: format!("A message here could not be changed, and its buttons mean nothing any more. {became}"),
        nonce: nonce(binding_id, session_seq, part_no),
        asks: None,
        files: Vec::new(),
    })
}

/// What a row needs before it can be projected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing.
    Nothing,
    /// The run that it ends.
    Run(RunId),
    /// The row after it, if that is committed.
    Next,
}

/// Says what `event` needs.
pub(crate) fn need(event: &EventRow) -> Need {
    match (event.kind, event.run_id) {
        (EventKind::Done | EventKind::Error, Some(run_id)) => Need::Run(run_id),
        (EventKind::Permission, _) => Need::Next,
        _ => Need::Nothing,
    }
}

/// What a row needed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Digest<'a> {
    /// Nothing, or there is nothing.
    Nothing,
    /// The run that it ends.
    Run(&'a RunDigest),
    /// The row after it.
    Next(&'a EventRow),
}

/// The parts of one journal row in the conversation of `binding_id`, in order. Most rows have none.
pub(crate) fn project(
    binding_id: BindingId,
    style: &Style,
    event: &EventRow,
    digest: Digest<'_>,
) -> Vec<Part> {
    let Some((kind, pieces)) = laid_out(binding_id, style, event, digest) else { return Vec::new() };
    let asks = if kind == PartKind::Permission {
        actions::of_permission(&parse(&event.payload), style.shows.buttons)
    } else {
        None
    };
    let count = pieces.len();
    let part = |(part_no, piece): (u32, Piece)| Part {
        session_seq: event.session_seq,
        part_no,
        run_id: event.run_id,
        kind,
        nonce: nonce(binding_id, event.session_seq, part_no),
        // What is asked stands in the last one.
        asks: asks.clone().filter(|_| part_no as usize + 1 == count),
        files: piece.files.iter().map(File::named).collect(),
        text: piece.text,
    };
    (0..PARTS_MAX).zip(pieces).map(part).collect()
}

/// The files of one of those parts, with what is in them.
pub(crate) fn contents(
    binding_id: BindingId,
    style: &Style,
    event: &EventRow,
    digest: Digest<'_>,
    part_no: u32,
) -> Vec<File> {
    let pieces = laid_out(binding_id, style, event, digest).map(|(_, pieces)| pieces).unwrap_or_default();
    (0..PARTS_MAX)
        .zip(pieces)
        .find(|(no, _)| *no == part_no)
        .map(|(_, piece)| piece.files)
        .unwrap_or_default()
}

fn laid_out(
    binding_id: BindingId,
    style: &Style,
    event: &EventRow,
    digest: Digest<'_>,
) -> Option<(PartKind, Vec<Piece>)> {
    if is_of_another(binding_id, event) {
        return None;
    }
    let said = say(style, event, digest)?;
    Some((said.kind, lay_out(&said, run_of(digest))))
}

/// What is said about a row.
struct Said {
    kind: PartKind,
    body: String,
    /// What must stand at its end, however it is told.
    end: String,
    /// The most that one message holds.
    limit: Limit,
}

impl Said {
    /// All of it.
    fn text(&self) -> String {
        joined(self.body.clone(), Some(self.end.clone()).filter(|end| !end.is_empty()))
    }
}

/// Whether a row is about one binding alone, and it is not this one.
fn is_of_another(binding_id: BindingId, event: &EventRow) -> bool {
    event.kind == EventKind::Status
        && parse(&event.payload)["binding_id"].as_str().is_some_and(|of| of != binding_id.to_string())
}

/// What is said about a row.
fn say(style: &Style, event: &EventRow, digest: Digest<'_>) -> Option<Said> {
    let payload = parse(&event.payload);
    let run = run_of(digest);
    let (kind, body, ending) = match event.kind {
        EventKind::Done => {
            let (kind, ending) = done(&payload, run)?;
            let body = if kind == PartKind::Final { run.map(RunDigest::told) } else { None };
            (kind, body.unwrap_or_default(), ending)
        }
        EventKind::Error => {
            (PartKind::Final, run.map(RunDigest::told).unwrap_or_default(), Some(failed(&payload)))
        }
        _ => {
            let (kind, text) = aside(style, event, &payload, digest)?;
            (kind, text, None)
        }
    };
    let is_left_out = style.is_quiet() && kind == PartKind::Notice && !is_owed(event.kind, &payload);
    let heading = run.filter(|_| kind == PartKind::Final).and_then(|run| run.heading(style.shows.markdown));
    let body = match heading {
        Some(heading) if body.is_empty() => heading,
        Some(heading) => format!("{heading}\n\n{body}"),
        None => body,
    };
    let footer = run.filter(|_| kind == PartKind::Final).and_then(|run| run.footer(event.created_at_ms));
    let small = if style.shows.markdown { question::SMALL } else { "" };
    let end = joined(ending.unwrap_or_default(), footer.map(|line| format!("{small}{line}")));
    let (body, end) = (sanitize::text(&body).into_owned(), sanitize::text(&end).into_owned());
    (!is_left_out).then_some(Said { kind, body, end, limit: style.limit })
}

/// Whether a notice about such a row is said wherever the conversation is told anything: what became of a message that
/// a person sent, what holds it up, what became of a question, and that nobody listens any more.
fn is_owed(kind: EventKind, payload: &Value) -> bool {
    match kind {
        EventKind::Done | EventKind::Closed | EventKind::PermissionSettled => true,
        EventKind::Status => payload["status"].as_str().is_some_and(|status| OWED.contains(&status)),
        _ => false,
    }
}

/// What is said about a row that ends no run.
fn aside(style: &Style, event: &EventRow, payload: &Value, digest: Digest<'_>) -> Option<(PartKind, String)> {
    if payload.is_null() && SHOWN.contains(&event.kind) {
        return Some((PartKind::Error, format!("{UNREADABLE} (event {})", event.session_seq)));
    }
    match event.kind {
        EventKind::Permission => {
            let by_policy =
                matches!(digest, Digest::Next(next) if question::settles_by_policy(payload, next));
            (!by_policy).then(|| (PartKind::Permission, question::asked(style, event, payload)))
        }
        EventKind::PermissionSettled => {
            question::settled(style, payload).map(|text| (PartKind::Notice, text))
        }
        EventKind::Status => {
            let quiet = payload["status"].as_str().is_some_and(|status| QUIET.contains(&status));
            let text = payload["text"].as_str().unwrap_or_default();
            (!quiet && !text.is_empty()).then(|| (PartKind::Notice, hide_paths(text)))
        }
        EventKind::Gap => {
            let text = payload["text"].as_str().unwrap_or_default();
            Some((
                PartKind::Error,
                format!("Output of the agent is missing here. {text}").trim_end().to_owned(),
            ))
        }
        EventKind::Closed => {
            let reason = payload["reason"].as_str().map(short).unwrap_or_default();
            let why = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
            Some((PartKind::Notice, format!("The session is closed{why}. Start a new one with /acp spawn.")))
        }
        EventKind::Prompt
        | EventKind::Done
        | EventKind::Error
        | EventKind::AgentMessage
        | EventKind::AgentThought
        | EventKind::ToolCall
        | EventKind::ToolCallUpdate
        | EventKind::Plan
        | EventKind::Update
        | EventKind::HostRequest
        | EventKind::Extension
        | EventKind::Replay => None,
    }
}

const fn run_of<'a>(digest: Digest<'a>) -> Option<&'a RunDigest> {
    match digest {
        Digest::Run(run) => Some(run),
        Digest::Nothing | Digest::Next(_) => None,
    }
}

/// What a run that came to its end is told as, and what is said about the end.
fn done(payload: &Value, run: Option<&RunDigest>) -> Option<(PartKind, Option<String>)> {
    let stop_reason = payload["stop_reason"].as_str().unwrap_or_default();
    if stop_reason == "steered" || run.is_some_and(|run| run.mode == RunMode::Steer) {
        return None;
    }
    if run.is_some_and(|run| !run.started) {
        return Some((PartKind::Notice, Some("A queued prompt was cancelled before its turn.".to_owned())));
    }
    let ending = match stop_reason {
        "" | "end_turn" if run.is_none_or(|run| run.told().is_empty()) => {
            Some("The turn ended without an answer.".to_owned())
        }
        "" | "end_turn" => None,
        "cancelled" => Some("The turn was cancelled. Send the next message to go on.".to_owned()),
        "refusal" => {
            Some("The agent refused to go on. Say it differently, or /acp new starts anew.".to_owned())
        }
        "max_tokens" => Some("The agent stopped at its length limit. Ask it to go on.".to_owned()),
        "max_turn_requests" => Some("The agent stopped at its limit of steps. Ask it to go on.".to_owned()),
        other => Some(format!("The turn ended: {}.", short(other))),
    };
    Some((PartKind::Final, ending))
}

fn failed(payload: &Value) -> String {
    let code = payload["code"].as_str().unwrap_or_default();
    let advice = Code::parse(code).map_or("", Code::text);
    let message = hide_paths(payload["message"].as_str().unwrap_or_default().trim());
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
    let next = step(Code::parse(code).unwrap_or(Code::TurnFailed), payload["detail_code"].as_str());
    text.push_str(&format!("\nNext: {next}"));
    if payload["retryable"].as_bool() == Some(true) {
        text.push_str(" Sending it again may work.");
    }
    text
}

fn joined(body: String, ending: Option<String>) -> String {
    match ending {
        Some(ending) if body.is_empty() => ending,
        // What is small is apart as it is.
        Some(ending) if ending.starts_with(question::SMALL) => format!("{body}\n{ending}"),
        Some(ending) => format!("{body}\n\n{ending}"),
        None => body,
    }
}

/// The start of a title, a name or a reason, on one line.
fn short(text: &str) -> String {
    sanitize::line(text, TITLE_CHARS_MAX)
}

/// A payload; what is not JSON reads as null, which is shown as [`UNREADABLE`].
fn parse(payload: &str) -> Value {
    serde_json::from_str(payload).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests;
