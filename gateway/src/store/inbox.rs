//! `acp_inbox`: what people said, keyed by the channel's message id. The row is committed before anything is
//! done about it, and keeps what was done: the same message again gives the same outcome and no second effect.

use crate::core::command::gate::{Approves, Standing};
use crate::core::files::{self, Attachment, File};
use crate::core::project::Asks;
use crate::core::rows::ConversationRef;
use crate::core::run::RunState;
use crate::core::sanitize;
use crate::core::told::told;
use crate::error::Failure;
use crate::store::bindings;
use crate::store::codec::{Int, all, first, id, int, json, json_opt, run, to_json, word};
use crate::store::error::StoreError;
use crate::store::now_ms;
use acp_shared::ids::{RunId, SessionKey};
use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

const COLUMNS: &str = "channel, account_id, conversation_id, parent_conversation_id, message_id, text, author, \
    context_json, files_json, state, outcome_json, caller_tells, created_at";
/// Few runs wait, and of a conversation there are many messages: so the runs are looked through.
const WAITING: &str = "SELECT i.message_id, i.text, i.context_json, i.outcome_json, r.run_id, r.prompt \
    FROM acp_runs AS r INDEXED BY acp_runs_unfinished CROSS JOIN acp_inbox AS i ON i.message_id = r.requester_message_id \
    WHERE r.state IN ('queued','running') AND r.state = 'queued' AND r.mode = 'prompt' AND i.channel = ?1 \
    AND i.account_id = ?2 AND i.conversation_id = ?3 ORDER BY r.rowid";
const KEY: &str = "channel = ?1 AND account_id = ?2 AND conversation_id = ?3 AND message_id = ?4";

/// What a person said in a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbound {
    /// Where.
    pub conversation: ConversationRef,
    /// The channel's id of the message: the root of everything that follows from it.
    pub message_id: String,
    /// Who, for people.
    pub author: String,
    /// Who, by a name that stays theirs and that nobody else can take; empty where that is `author` itself.
    pub author_id: String,
    /// What they may do beyond what is theirs, where the channel knows that of the message rather than of the name.
    pub standing: Option<Standing>,
    /// What they may answer of what agents ask.
    pub approves: Approves,
    /// What. May be empty where there are attachments.
    pub text: String,
    /// The files that came with it.
    pub attachments: Vec<Attachment>,
    /// Who says what came of it.
    pub answer: Answer,
}

impl Inbound {
    /// A text that a person said, and nothing else.
    #[must_use]
    pub fn new(conversation: ConversationRef, message_id: String, author: String, text: String) -> Self {
        Self {
            conversation,
            message_id,
            author,
            author_id: String::new(),
            standing: None,
            approves: Approves::default(),
            text,
            attachments: Vec::new(),
            answer: Answer::default(),
        }
    }

    /// Who, as sessions and bindings belong to them.
    pub(crate) fn who(&self) -> &str {
        if self.author_id.is_empty() { &self.author } else { &self.author_id }
    }
}

/// Who says what came of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The gateway, with a message in the conversation.
    #[default]
    ByMessage,
    /// Whoever brings it, by [`crate::channel::Offered::Taken`], as long as they hold a [`crate::channel::Claim`] to it:
    /// slash commands and clicks, which have a way of their own to be answered. Without one, the gateway.
    ByCaller,
}

/// What is kept of a message besides what it says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Context {
    author_id: String,
    standing: Option<Standing>,
    approves: Approves,
    answer: Answer,
}

/// What was done about a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It went to the session as a prompt.
    Prompted {
        /// The session.
        session_key: SessionKey,
        /// The run.
        run_id: RunId,
        /// Read the journal after this number to see everything of the run.
        after_seq: u64,
        /// How many runs are before it in the queue.
        queued_behind: u64,
        /// What the person is told; empty for nothing.
        text: String,
        /// The buttons of that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        asks: Option<Asks>,
    },
    /// It was a command, and was carried out or answered.
    Command {
        /// The session that the conversation is bound to now, if any.
        session_key: Option<SessionKey>,
        /// The run it made, if any (a steer).
        run_id: Option<RunId>,
        /// What the person is told.
        text: String,
        /// Whether the conversation shows that by itself: then nothing more is said there.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_shown: bool,
    },
    /// It went nowhere.
    Refused {
        /// What the person is told.
        failure: Failure,
        /// Why, for programs.
        reason: String,
    },
    /// It is none of ours.
    Ignored {
        /// Why, for programs.
        reason: String,
    },
}

impl Outcome {
    /// The buttons of what they are told.
    pub(crate) const fn asks(&self) -> Option<&Asks> {
        match self {
            Self::Prompted { asks, .. } => asks.as_ref(),
            Self::Command { .. } | Self::Refused { .. } | Self::Ignored { .. } => None,
        }
    }

    /// Whether the conversation shows what they are told by itself.
    pub(crate) const fn is_shown(&self) -> bool {
        matches!(self, Self::Command { is_shown: true, .. })
    }

    /// The session that a prompt went to.
    pub(crate) const fn prompted(&self) -> Option<&SessionKey> {
        match self {
            Self::Prompted { session_key, .. } => Some(session_key),
            Self::Command { .. } | Self::Refused { .. } | Self::Ignored { .. } => None,
        }
    }

    /// What the person is told; empty for nothing.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Prompted { text, .. } | Self::Command { text, .. } => sanitize::text(text),
            Self::Refused { failure, .. } => Cow::Owned(sanitize::text(&told(failure)).into_owned()),
            Self::Ignored { .. } => Cow::Borrowed(""),
        }
    }

    /// The same, told after something else where the message went to a session.
    pub(crate) fn after(self, told: Option<String>) -> Self {
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

/// A row of `acp_inbox`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InboxRow {
    /// What was said; its attachments are in `files`.
    pub(crate) inbound: Inbound,
    /// The files that came with it, until it is settled.
    pub(crate) files: Vec<File>,
    /// Whether nothing more is to be done about it.
    pub(crate) settled: bool,
    /// What was done, once it was; not settled yet means that the person was not told yet.
    pub(crate) outcome: Option<Outcome>,
    /// Whether that was left to whoever brought it to tell.
    pub(crate) caller_tells: bool,
    /// When it was brought in first, milliseconds since the Unix epoch: no reply to it is older.
    pub(crate) received_at_ms: u64,
}

fn from_row(row: &Row<'_>) -> Result<InboxRow, StoreError> {
    let state: String = row.get("state")?;
    let context: Context = json(row, "context_json")?;
    Ok(InboxRow {
        inbound: Inbound {
            conversation: ConversationRef {
                channel: row.get("channel")?,
                account_id: row.get("account_id")?,
                conversation_id: row.get("conversation_id")?,
                parent_conversation_id: row.get("parent_conversation_id")?,
            },
            message_id: row.get("message_id")?,
            author: row.get("author")?,
            author_id: context.author_id,
            standing: context.standing,
            approves: context.approves,
            text: row.get("text")?,
            attachments: Vec::new(),
            answer: context.answer,
        },
        files: json_opt(row, "files_json")?.unwrap_or_default(),
        settled: state != "received",
        outcome: json_opt(row, "outcome_json")?,
        caller_tells: row.get("caller_tells")?,
        received_at_ms: int(row, "created_at")?,
    })
}

/// The row of a message.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn get(
    db: &Connection,
    at: &ConversationRef,
    message_id: &str,
) -> Result<Option<InboxRow>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM acp_inbox WHERE {KEY}");
    first(db, &sql, params![at.channel, at.account_id, at.conversation_id, message_id], from_row)
}

/// Inserts a message that nothing was done about yet; the row that it has already, if it has one.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn insert(db: &Connection, new: &Inbound) -> Result<InboxRow, StoreError> {
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
    run(
        db,
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
            files::kept(&files::taken(&new.attachments)).as_deref(),
            Int(now_ms())
        ],
    )?;
    get(db, at, &new.message_id)?.ok_or(StoreError::Refused("an inbox message without a row"))
}

/// Whose a message is that several accounts of its channel may hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// That of the account that brought it.
    Own,
    /// Another one works in the conversation, and this one does not.
    Other {
        /// Which one of the others.
        number: usize,
        /// Whether this one has taken the message already.
        has_own: bool,
    },
    /// Another one has taken it.
    Taken,
}

/// Whose a message is, where these other accounts of its channel may hear it too: that of the one that works in the
/// conversation, and where none does, that of the first one that took it. What this one has taken stays its own.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn whose(db: &Connection, new: &Inbound, others: &[&str]) -> Result<Whose, StoreError> {
    let at = &new.conversation;
    if others.is_empty() {
        return Ok(Whose::Own);
    }
    let has_own = get(db, at, &new.message_id)?.is_some();
    let there = |other: &str| ConversationRef { account_id: other.to_owned(), ..at.clone() };
    for other in others.iter().filter(|_| !has_own) {
        if get(db, &there(other), &new.message_id)?.is_some() {
            return Ok(Whose::Taken);
        }
    }
    if bindings::of_conversation(db, at)?.is_some() {
        return Ok(Whose::Own);
    }
    for (number, other) in others.iter().enumerate() {
        if bindings::of_conversation(db, &there(other))?.is_some() {
            return Ok(Whose::Other { number, has_own });
        }
    }
    Ok(Whose::Own)
}

/// The message of a conversation that a run came from, if a person said it there and nobody else answers it.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn of_run(
    db: &Connection,
    at: &ConversationRef,
    run_id: RunId,
) -> Result<Option<(String, RunState)>, StoreError> {
    const SQL: &str = "SELECT i.message_id, i.context_json, r.state FROM acp_runs AS r JOIN acp_inbox AS i \
        ON i.message_id = r.requester_message_id WHERE r.run_id = ?4 AND i.channel = ?1 AND i.account_id = ?2 \
        AND i.conversation_id = ?3";
    let keys = params![at.channel, at.account_id, at.conversation_id, run_id.to_string()];
    let found = first(db, SQL, keys, |row| {
        let context: Context = json(row, "context_json")?;
        Ok((context.answer, row.get("message_id")?, word(row, "state")?))
    })?;
    Ok(found
        .filter(|(answer, ..)| *answer == Answer::ByMessage)
        .map(|(_, message_id, state)| (message_id, state)))
}

/// The messages of a conversation whose prompt waits, in the order in which they were accepted: the id, what it said when
/// it came, and what the prompt says now. None of those that have no message: slash commands and clicks.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn waiting(
    db: &Connection,
    at: &ConversationRef,
) -> Result<Vec<(String, String, String)>, StoreError> {
    let keys = params![at.channel, at.account_id, at.conversation_id];
    let found = all(db, WAITING, keys, |row| {
        let context: Context = json(row, "context_json")?;
        let outcome: Option<Outcome> = json_opt(row, "outcome_json")?;
        let run_id: RunId = id(row, "run_id")?;
        let is_its = matches!(outcome, Some(Outcome::Prompted { run_id: its, .. }) if its == run_id);
        let is_there = is_its && context.answer == Answer::ByMessage;
        Ok(is_there.then_some((row.get("message_id")?, row.get("text")?, row.get("prompt")?)))
    })?;
    Ok(found.into_iter().flatten().collect())
}

/// Records what was done about a message; its files were for that. The person is not told yet; `caller_tells`: whoever brought it is to do that.
/// Recorded again, it is the same.
///
/// # Errors
/// What SQLite says; [`StoreError::Refused`] when the message has another outcome.
pub(crate) fn record(
    db: &Connection,
    inbound: &Inbound,
    outcome: &Outcome,
    caller_tells: bool,
) -> Result<(), StoreError> {
    let at = &inbound.conversation;
    let sql = format!(
        "UPDATE acp_inbox SET outcome_json = ?5, caller_tells = ?6, files_json = NULL \
         WHERE {KEY} AND (outcome_json IS NULL OR outcome_json = ?5)"
    );
    let keys = (&at.channel, &at.account_id, &at.conversation_id, &inbound.message_id);
    if run(db, &sql, params![keys.0, keys.1, keys.2, keys.3, to_json(outcome)?, caller_tells])? == 1 {
        Ok(())
    } else {
        Err(StoreError::Refused("the message has an outcome already"))
    }
}

/// Nothing is to be done about a message, and nothing was. Whether that is so: what was done stays done.
///
/// # Errors
/// What SQLite says.
pub(crate) fn withdraw(db: &Connection, inbound: &Inbound, outcome: &Outcome) -> Result<bool, StoreError> {
    let at = &inbound.conversation;
    let sql = format!(
        "UPDATE acp_inbox SET outcome_json = ?5, state = 'refused', files_json = NULL \
         WHERE {KEY} AND state = 'received' AND outcome_json IS NULL"
    );
    let keys = params![at.channel, at.account_id, at.conversation_id, inbound.message_id, to_json(outcome)?];
    Ok(run(db, &sql, keys)? == 1)
}

/// Nothing more is to be done about a message.
///
/// # Errors
/// What SQLite says.
pub(crate) fn settle(db: &Connection, inbound: &Inbound, outcome: &Outcome) -> Result<(), StoreError> {
    let at = &inbound.conversation;
    let state = match outcome {
        Outcome::Prompted { .. } | Outcome::Command { .. } => "routed",
        Outcome::Refused { .. } | Outcome::Ignored { .. } => "refused",
    };
    let sql = format!("UPDATE acp_inbox SET state = ?5, files_json = NULL WHERE {KEY}");
    run(db, &sql, params![at.channel, at.account_id, at.conversation_id, inbound.message_id, state])?;
    Ok(())
}

/// Messages that something is still to be done about, or told, the oldest first.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn unsettled(db: &Connection, rows_max: u64) -> Result<Vec<InboxRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_inbox WHERE state = 'received' ORDER BY created_at, rowid LIMIT ?1"
    );
    all(db, &sql, [Int(rows_max)], from_row)
}

/// The conversations that these are of, the one with the oldest first. Without the ones around them.
///
/// # Errors
/// What SQLite says.
pub(crate) fn unsettled_in(db: &Connection) -> Result<Vec<ConversationRef>, StoreError> {
    const SQL: &str = "SELECT channel, account_id, conversation_id FROM acp_inbox INDEXED BY acp_inbox_received \
        WHERE state = 'received' GROUP BY channel, account_id, conversation_id ORDER BY min(created_at)";
    all(db, SQL, [], |row| {
        Ok(ConversationRef {
            channel: row.get("channel")?,
            account_id: row.get("account_id")?,
            conversation_id: row.get("conversation_id")?,
            parent_conversation_id: None,
        })
    })
}

/// Those of one conversation about which nothing was done yet, the oldest first.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn undone(
    db: &Connection,
    at: &ConversationRef,
    rows_max: u64,
) -> Result<Vec<InboxRow>, StoreError> {
    left(db, at, "outcome_json IS NULL", rows_max)
}

/// Those of one conversation of which it is still to be told what was done, and that, the oldest first.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn untold(
    db: &Connection,
    at: &ConversationRef,
    rows_max: u64,
) -> Result<Vec<(InboxRow, Outcome)>, StoreError> {
    let rows = left(db, at, "outcome_json IS NOT NULL", rows_max)?;
    Ok(rows
        .into_iter()
        .filter_map(|mut row| Some((row.outcome.take()?, row)))
        .map(|(it, row)| (row, it))
        .collect())
}

fn left(
    db: &Connection,
    at: &ConversationRef,
    which: &str,
    rows_max: u64,
) -> Result<Vec<InboxRow>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM acp_inbox INDEXED BY acp_inbox_received WHERE state = 'received' AND channel = ?1 \
         AND account_id = ?2 AND conversation_id = ?3 AND {which} ORDER BY created_at, rowid LIMIT ?4"
    );
    all(db, &sql, params![at.channel, at.account_id, at.conversation_id, Int(rows_max)], from_row)
}
