//! `acp_inbox`: inbound messages, keyed by the channel's message id. A row is committed before the message is
//! processed, and stores the outcome: a duplicate gets the same outcome and has no second effect.

use crate::Tx;
use crate::bindings;
use crate::codec::{conversation, to_json};
use crate::db::{Db, Row, params};
use crate::error::StoreError;
use acp_core::command::authorization::{ApprovalScope, RequesterRole};
use acp_core::error_messages::error_message;
use acp_core::failure::Failure;
use acp_core::files::{self, Attachment, PromptFile};
use acp_core::render::ButtonGroup;
use acp_core::rows::ConversationRef;
use acp_core::run::RunState;
use acp_core::sanitize;
use acp_shared::ids::{RunId, SessionKey};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

const COLUMNS: &str = "channel, account_id, conversation_id, parent_conversation_id, message_id, text, author, \
    context_json, files_json, state, outcome_json, caller_tells, created_at";
/// Query for queued prompts. It iterates over the queued runs, which are few, not over the messages of the
/// conversation, which are many.
const WAITING: &str = "SELECT i.message_id, i.text, i.context_json, i.outcome_json, r.run_id, r.prompt \
    FROM acp_runs AS r INDEXED BY acp_runs_unfinished CROSS JOIN acp_inbox AS i ON i.message_id = r.requester_message_id \
    WHERE r.state IN ('queued','running') AND r.state = 'queued' AND r.mode = 'prompt' AND i.channel = ?1 \
    AND i.account_id = ?2 AND i.conversation_id = ?3 ORDER BY r.ord";
const KEY: &str = "channel = ?1 AND account_id = ?2 AND conversation_id = ?3 AND message_id = ?4";

/// Message of a person in a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbound {
    /// Conversation of the message.
    pub conversation: ConversationRef,
    /// The channel's id of the message; runs and replies refer to it.
    pub message_id: String,
    /// Display name of the author.
    pub author: String,
    /// Permanent unique name of the author; empty if that is `author`.
    pub author_id: String,
    /// Authorization beyond the author's own sessions, if the channel derives it from the message instead of
    /// the name.
    pub standing: Option<RequesterRole>,
    /// Agent permission requests that the author may answer.
    pub approves: ApprovalScope,
    /// Text of the message. May be empty if there are attachments.
    pub text: String,
    /// Files attached to the message.
    pub attachments: Vec<Attachment>,
    /// Sender of the reply.
    pub answer: ReplyRoute,
}

impl Inbound {
    /// Returns the identity of the sender, which no sender in another channel has; empty if the author is unknown.
    #[must_use]
    pub fn sender_id(&self) -> String {
        let id = if self.author_id.is_empty() { &self.author } else { &self.author_id };
        if id.is_empty() { String::new() } else { format!("{}:{id}", self.conversation.channel) }
    }

    /// Creates a plain text message of a person.
    #[must_use]
    pub fn new(conversation: ConversationRef, message_id: String, author: String, text: String) -> Self {
        Self {
            conversation,
            message_id,
            author,
            author_id: String::new(),
            standing: None,
            approves: ApprovalScope::default(),
            text,
            attachments: Vec::new(),
            answer: ReplyRoute::default(),
        }
    }

    /// Name that sessions and bindings record as their owner.
    pub fn who(&self) -> &str {
        if self.author_id.is_empty() { &self.author } else { &self.author_id }
    }
}

/// Sender of the reply to a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyRoute {
    /// The gateway replies with a message in the conversation.
    #[default]
    ByMessage,
    /// The adapter that delivered the message replies with the content of `IntakeOutcome::Accepted`,
    /// as long as it holds a `ReplyReservation`: slash commands and clicks, which have their own
    /// response path. Without a reservation, the gateway replies.
    ByCaller,
}

/// Columns of a message stored as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Context {
    author_id: String,
    standing: Option<RequesterRole>,
    approves: ApprovalScope,
    answer: ReplyRoute,
}

/// Result of processing a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The message went to the session as a prompt.
    Prompted {
        /// Session key.
        session_key: SessionKey,
        /// Run id.
        run_id: RunId,
        /// Journal number after which all rows of the run follow.
        after_seq: u64,
        /// Number of runs ahead in the queue.
        queued_behind: u64,
        /// Reply text; empty for no reply.
        text: String,
        /// Buttons of the reply.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        asks: Option<ButtonGroup>,
    },
    /// The message was a command, and was carried out or answered.
    Command {
        /// Session that the conversation is bound to now, if any.
        session_key: Option<SessionKey>,
        /// Run that the command created, if any (a steer).
        run_id: Option<RunId>,
        /// Reply text.
        text: String,
        /// True if the conversation shows the effect already, so that no reply is sent.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_shown: bool,
    },
    /// The message was rejected.
    Refused {
        /// Error message for the author.
        failure: Failure,
        /// Machine-readable reason.
        reason: String,
    },
    /// The message is not for the gateway.
    Ignored {
        /// Machine-readable reason.
        reason: String,
    },
}

impl Outcome {
    /// Buttons of the reply.
    pub const fn asks(&self) -> Option<&ButtonGroup> {
        match self {
            Self::Prompted { asks, .. } => asks.as_ref(),
            Self::Command { .. } | Self::Refused { .. } | Self::Ignored { .. } => None,
        }
    }

    /// True if the conversation shows the effect already, so that no reply is sent.
    pub const fn is_shown(&self) -> bool {
        matches!(self, Self::Command { is_shown: true, .. })
    }

    /// Session that received the prompt.
    pub const fn prompted(&self) -> Option<&SessionKey> {
        match self {
            Self::Prompted { session_key, .. } => Some(session_key),
            Self::Command { .. } | Self::Refused { .. } | Self::Ignored { .. } => None,
        }
    }

    /// Reply text; empty for no reply.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Prompted { text, .. } | Self::Command { text, .. } => sanitize::text(text),
            Self::Refused { failure, .. } => Cow::Owned(sanitize::text(&error_message(failure)).into_owned()),
            Self::Ignored { .. } => Cow::Borrowed(""),
        }
    }

    /// Prepends another reply text if the message went to a session as a prompt.
    pub fn after(self, told: Option<String>) -> Self {
        match (self, told) {
            (Self::Prompted { session_key, run_id, after_seq, queued_behind, text, asks }, Some(told)) => {
                let text =
                    [told, text].into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join("\n");
                Self::Prompted { session_key, run_id, after_seq, queued_behind, text, asks }
            }
            (outcome, _) => outcome,
        }
    }
}

/// Row of `acp_inbox`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxRow {
    /// The message; its attachments are in `files`.
    pub inbound: Inbound,
    /// Files attached to the message, until it is settled.
    pub files: Vec<PromptFile>,
    /// True if no further work is due for the message.
    pub settled: bool,
    /// Outcome once the message was processed. While the row is not settled, the reply is pending.
    pub outcome: Option<Outcome>,
    /// True if the reply was left to the adapter that delivered the message.
    pub caller_tells: bool,
    /// Time of arrival, milliseconds since the Unix epoch. No reply is older.
    pub received_at_ms: u64,
}

fn from_row(row: &Row<'_>) -> Result<InboxRow, StoreError> {
    let state: String = row.get("state")?;
    let context: Context = row.json("context_json")?;
    Ok(InboxRow {
        inbound: Inbound {
            conversation: conversation(row, "conversation_id", "parent_conversation_id")?,
            message_id: row.get("message_id")?,
            author: row.get("author")?,
            author_id: context.author_id,
            standing: context.standing,
            approves: context.approves,
            text: row.get("text")?,
            attachments: Vec::new(),
            answer: context.answer,
        },
        files: row.json_opt("files_json")?.unwrap_or_default(),
        settled: state != "received",
        outcome: row.json_opt("outcome_json")?,
        caller_tells: row.get("caller_tells")?,
        received_at_ms: row.get("created_at")?,
    })
}

/// Returns the row of a message.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn get(db: &Db, at: &ConversationRef, message_id: &str) -> Result<Option<InboxRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM acp_inbox WHERE {KEY}");
    db.first(&sql, params![at.channel, at.account_id, at.conversation_id, message_id], from_row)
}

/// Inserts an unprocessed message. If the message has a row already, returns that one.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn insert(tx: &Tx<'_>, new: &Inbound) -> Result<InboxRow, StoreError> {
    const SQL: &str = "INSERT INTO acp_inbox (channel, account_id, conversation_id, parent_conversation_id, \
        message_id, text, author, context_json, files_json, state, created_at) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'received', ?10) ON CONFLICT DO NOTHING";
    let at = &new.conversation;
    let context = Context {
        author_id: new.author_id.clone(),
        standing: new.standing,
        approves: new.approves,
        answer: new.answer,
    };
    tx.run(
        SQL,
        params![
            at.channel,
            at.account_id,
            at.conversation_id,
            at.parent_conversation_id,
            new.message_id,
            new.text,
            new.author,
            to_json(&context)?,
            files::serialize_files(&files::from_attachments(&new.attachments)).as_deref(),
            tx.now_ms()
        ],
    )?;
    get(tx, at, &new.message_id)?.ok_or(StoreError::Refused("an inserted inbox message has no row"))
}

/// Account responsible for a message that several accounts of its channel receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageOwner {
    /// The account that delivered this copy.
    Own,
    /// Another account has a binding in the conversation, and this one does not.
    Other {
        /// Index of that account in the list of others.
        number: usize,
        /// True if this account has a row of the message already.
        has_own: bool,
    },
    /// Another account has a row of the message.
    Taken,
}

/// Decides which of several accounts processes a message that all of them receive: another one that has
/// inserted the message while this one has not; otherwise the one with a binding in the conversation; without
/// a binding, this one.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn message_owner(db: &Db, new: &Inbound, others: &[&str]) -> Result<MessageOwner, StoreError> {
    let at = &new.conversation;
    if others.is_empty() {
        return Ok(MessageOwner::Own);
    }
    let has_own = get(db, at, &new.message_id)?.is_some();
    let there = |other: &str| ConversationRef { account_id: other.to_owned(), ..at.clone() };
    for other in others.iter().filter(|_| !has_own) {
        if get(db, &there(other), &new.message_id)?.is_some() {
            return Ok(MessageOwner::Taken);
        }
    }
    if bindings::of_conversation(db, at)?.is_some() {
        return Ok(MessageOwner::Own);
    }
    for (number, other) in others.iter().enumerate() {
        if bindings::of_conversation(db, &there(other))?.is_some() {
            return Ok(MessageOwner::Other { number, has_own });
        }
    }
    Ok(MessageOwner::Own)
}

/// Message of a conversation that caused a run, if it was an ordinary message and the gateway replies to it.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn of_run(
    db: &Db,
    at: &ConversationRef,
    run_id: RunId,
) -> Result<Option<(String, RunState)>, StoreError> {
    const SQL: &str = "SELECT i.message_id, i.context_json, r.state FROM acp_runs AS r JOIN acp_inbox AS i \
        ON i.message_id = r.requester_message_id WHERE r.run_id = ?4 AND i.channel = ?1 AND i.account_id = ?2 \
        AND i.conversation_id = ?3";
    let keys = params![at.channel, at.account_id, at.conversation_id, run_id];
    let found = db.first(SQL, keys, |row| {
        let context: Context = row.json("context_json")?;
        Ok((context.answer, row.get("message_id")?, row.get("state")?))
    })?;
    Ok(found
        .filter(|(answer, ..)| *answer == ReplyRoute::ByMessage)
        .map(|(_, message_id, state)| (message_id, state)))
}

/// Messages of a conversation whose prompts are queued, in the order of acceptance: message id, original text
/// and current text of the prompt. Excludes slash commands and clicks, which have no message.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn waiting(db: &Db, at: &ConversationRef) -> Result<Vec<(String, String, String)>, StoreError> {
    let keys = params![at.channel, at.account_id, at.conversation_id];
    let found = db.all(WAITING, keys, |row| {
        let context: Context = row.json("context_json")?;
        let outcome: Option<Outcome> = row.json_opt("outcome_json")?;
        let run_id: RunId = row.get("run_id")?;
        let is_its = matches!(outcome, Some(Outcome::Prompted { run_id: its, .. }) if its == run_id);
        let is_there = is_its && context.answer == ReplyRoute::ByMessage;
        Ok(is_there.then_some((row.get("message_id")?, row.get("text")?, row.get("prompt")?)))
    })?;
    Ok(found.into_iter().flatten().collect())
}

/// Id of the newest message of a conversation, slash commands and clicks excluded. Ids are numbers of any length.
///
/// # Errors
/// SQLite errors.
pub fn newest_message(db: &Db, at: &ConversationRef) -> Result<Option<String>, StoreError> {
    const SQL: &str = "SELECT message_id FROM acp_inbox WHERE channel = ?1 AND account_id = ?2 \
        AND conversation_id = ?3 AND json_extract(context_json, '$.answer') = 'by_message' \
        ORDER BY length(message_id) DESC, message_id DESC LIMIT 1";
    db.first(SQL, params![at.channel, at.account_id, at.conversation_id], |row| row.get("message_id"))
}

/// Records the outcome of a message and deletes its files. The reply is pending; with `caller_tells` the
/// adapter sends it. Recording the same outcome again has no effect.
///
/// # Errors
/// SQLite errors; [`StoreError::Refused`] if the message has another outcome.
pub fn record(db: &Db, inbound: &Inbound, outcome: &Outcome, caller_tells: bool) -> Result<(), StoreError> {
    let at = &inbound.conversation;
    let sql = format!(
        "UPDATE acp_inbox SET outcome_json = ?5, caller_tells = ?6, files_json = NULL \
         WHERE {KEY} AND (outcome_json IS NULL OR outcome_json = ?5)"
    );
    let keys = (&at.channel, &at.account_id, &at.conversation_id, &inbound.message_id);
    if db.run(&sql, params![keys.0, keys.1, keys.2, keys.3, to_json(outcome)?, caller_tells])? == 1 {
        Ok(())
    } else {
        Err(StoreError::Refused("the message already has an outcome"))
    }
}

/// Settles an unprocessed message as refused. Returns false if it was processed already.
///
/// # Errors
/// SQLite errors.
pub fn withdraw(db: &Db, inbound: &Inbound, outcome: &Outcome) -> Result<bool, StoreError> {
    let at = &inbound.conversation;
    let sql = format!(
        "UPDATE acp_inbox SET outcome_json = ?5, state = 'refused', files_json = NULL \
         WHERE {KEY} AND state = 'received' AND outcome_json IS NULL"
    );
    let keys = params![at.channel, at.account_id, at.conversation_id, inbound.message_id, to_json(outcome)?];
    Ok(db.run(&sql, keys)? == 1)
}

/// Marks a message as settled.
///
/// # Errors
/// SQLite errors.
pub fn settle(db: &Db, inbound: &Inbound, outcome: &Outcome) -> Result<(), StoreError> {
    let at = &inbound.conversation;
    let state = match outcome {
        Outcome::Prompted { .. } | Outcome::Command { .. } => "routed",
        Outcome::Refused { .. } | Outcome::Ignored { .. } => "refused",
    };
    let sql = format!("UPDATE acp_inbox SET state = ?5, files_json = NULL WHERE {KEY}");
    db.run(&sql, params![at.channel, at.account_id, at.conversation_id, inbound.message_id, state]).map(drop)
}

/// Messages that are unprocessed or have a pending reply, oldest first.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn unsettled_messages(db: &Db, rows_max: u64) -> Result<Vec<InboxRow>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM acp_inbox WHERE state = 'received' ORDER BY created_at, ord LIMIT ?1");
    db.all(&sql, params![rows_max], from_row)
}

/// Conversations of the unsettled messages, in the order of their oldest one. Without parent conversations.
///
/// # Errors
/// SQLite errors.
pub fn unsettled_in(db: &Db) -> Result<Vec<ConversationRef>, StoreError> {
    const SQL: &str = "SELECT channel, account_id, conversation_id FROM acp_inbox INDEXED BY acp_inbox_received \
        WHERE state = 'received' GROUP BY channel, account_id, conversation_id ORDER BY min(created_at)";
    db.all(SQL, &[], |row| {
        Ok(ConversationRef {
            channel: row.get("channel")?,
            account_id: row.get("account_id")?,
            conversation_id: row.get("conversation_id")?,
            parent_conversation_id: None,
        })
    })
}

/// Unprocessed messages of one conversation, oldest first.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn unprocessed_messages(
    db: &Db,
    at: &ConversationRef,
    rows_max: u64,
) -> Result<Vec<InboxRow>, StoreError> {
    query_unsettled(db, at, "outcome_json IS NULL", rows_max)
}

/// Messages of one conversation with a pending reply, and their outcomes, oldest first.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn pending_replies(
    db: &Db,
    at: &ConversationRef,
    rows_max: u64,
) -> Result<Vec<(InboxRow, Outcome)>, StoreError> {
    let rows = query_unsettled(db, at, "outcome_json IS NOT NULL", rows_max)?;
    Ok(rows
        .into_iter()
        .filter_map(|mut row| Some((row.outcome.take()?, row)))
        .map(|(it, row)| (row, it))
        .collect())
}

fn query_unsettled(
    db: &Db,
    at: &ConversationRef,
    which: &str,
    rows_max: u64,
) -> Result<Vec<InboxRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_inbox INDEXED BY acp_inbox_received WHERE state = 'received' AND channel = ?1 \
         AND account_id = ?2 AND conversation_id = ?3 AND {which} ORDER BY created_at, ord LIMIT ?4"
    );
    db.all(&sql, params![at.channel, at.account_id, at.conversation_id, rows_max], from_row)
}
