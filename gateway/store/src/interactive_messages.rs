//! `acp_button_message`: messages with buttons or questions, kept until their subject is settled.

use crate::codec::{Int, SqlEnum as _, all, first, id, id_opt, int, json, run, to_json, word};
use crate::error::StoreError;
use crate::{delivery, now_ms, permissions};
use acp_core::render::buttons::{ButtonSubject, SubjectState, text_after_resolution};
use acp_core::render::{PartKind, unedited_notice};
use acp_core::rows::{BindingRow, ConversationRef};
use acp_shared::ids::{BindingId, SessionKey};
use rusqlite::{Connection, params};

/// Maximum number of attempts to change a message, unless the channel rejects the change for good; a week
/// with the pauses.
const TRIES_MAX: u32 = 2_000;
/// First and longest pause between attempts, in milliseconds.
const PAUSE_MS: u64 = 1_000;
const PAUSE_MS_MAX: u64 = 5 * 60_000;
/// Condition for a due attempt. The pauses grow; after the clock was set back, an attempt is due at once.
/// Parameters: longest pause, first pause, current time.
const DUE: &str = "(tries = 0 OR tried_at > ?3 OR tried_at + min(?1, ?2 << min(tries, 16)) <= ?3)";
/// Maximum number of messages amended in one step.
const SETTLED_MAX: usize = 64;
/// Maximum number of bindings returned for one pass.
const BINDINGS_MAX: u32 = 1_000;

/// Message with buttons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ButtonMessage {
    /// The channel's message id.
    pub message_id: String,
    /// Kind of the message.
    pub kind: PartKind,
    /// Text of the message.
    pub text: String,
}

/// Stores a message with buttons.
///
/// # Errors
/// SQLite errors.
pub fn insert_message(
    db: &Connection,
    at: &ConversationRef,
    session: &SessionKey,
    message: &ButtonMessage,
    about: &ButtonSubject,
) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_button_message (channel, account_id, conversation_id, message_id, session_key, \
        about_json, kind, text) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING";
    let ButtonMessage { message_id, kind, text } = message;
    let keys = (&at.channel, &at.account_id, &at.conversation_id);
    run(
        db,
        SQL,
        params![keys.0, keys.1, keys.2, message_id, session.as_str(), to_json(about)?, kind.word(), text],
    )?;
    Ok(())
}

/// True if the conversation has a message about this subject that will be amended with its result.
///
/// # Errors
/// SQLite errors.
pub fn has_message_about(
    db: &Connection,
    at: &ConversationRef,
    about: &ButtonSubject,
) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_button_message WHERE channel = ?1 AND account_id = ?2 \
        AND conversation_id = ?3 AND about_json = ?4";
    let keys = params![at.channel, at.account_id, at.conversation_id, to_json(about)?];
    Ok(first(db, SQL, keys, |_| Ok(()))?.is_some())
}

/// Messages of a conversation with a settled subject and a due attempt, each with its new text. Messages with
/// failed attempts come last and so do not delay others.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn settled_messages(
    db: &Connection,
    at: &ConversationRef,
    session: &SessionKey,
    is_markdown: bool,
) -> Result<Vec<ButtonMessage>, StoreError> {
    let sql = format!(
        "SELECT message_id, about_json, kind, text FROM acp_button_message WHERE {DUE} AND session_key = ?4 \
         AND channel = ?5 AND account_id = ?6 AND conversation_id = ?7 ORDER BY tries, message_id"
    );
    let keys = (&at.channel, &at.account_id, &at.conversation_id);
    let times = (Int(PAUSE_MS_MAX), Int(PAUSE_MS), Int(now_ms()));
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows =
        statement.query(params![times.0, times.1, times.2, session.as_str(), keys.0, keys.1, keys.2])?;
    let mut out = Vec::new();
    // Skips unsettled messages within the query: many of them must not hide a settled one.
    while let Some(row) = rows.next()?
        && out.len() < SETTLED_MAX
    {
        let kept = ButtonMessage {
            message_id: row.get("message_id")?,
            kind: word(row, "kind")?,
            text: row.get("text")?,
        };
        let text = settled_text(db, json(row, "about_json")?, &kept.text, is_markdown)?;
        out.extend(text.map(|text| ButtonMessage { text, ..kept }));
    }
    Ok(out)
}

/// New text of a message once its subject is settled; `None` before.
fn settled_text(
    db: &Connection,
    about: ButtonSubject,
    text: &str,
    is_markdown: bool,
) -> Result<Option<String>, StoreError> {
    const RUN: &str = "SELECT mode, state FROM acp_runs WHERE run_id = ?1";
    match about {
        ButtonSubject::Permission(id) => {
            let row = permissions::get(db, &id)?;
            Ok(text_after_resolution(
                text,
                row.as_ref().map_or(SubjectState::Gone, SubjectState::Permission),
                is_markdown,
            ))
        }
        ButtonSubject::Queued(run_id) => {
            let now =
                first(db, RUN, [run_id.to_string()], |row| Ok((word(row, "mode")?, word(row, "state")?)))?;
            Ok(text_after_resolution(
                text,
                now.map_or(SubjectState::Gone, |(mode, state)| SubjectState::Run(mode, state)),
                is_markdown,
            ))
        }
    }
}

/// Bindings of conversations with messages whose attempt is due: the latest binding of each conversation and
/// session, unless it is parked.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn bindings(db: &Connection, now_ms: u64) -> Result<Vec<BindingId>, StoreError> {
    let sql = format!(
        "SELECT b.binding_key AS binding_key, max(b.bound_at) FROM acp_button_message AS m \
         JOIN acp_bindings AS b ON b.session_key = m.session_key AND b.channel = m.channel \
         AND b.account_id = m.account_id AND b.thread_id = m.conversation_id WHERE {DUE} \
         GROUP BY m.session_key, m.channel, m.account_id, m.conversation_id \
         HAVING b.status IN ('active','ending','ended') LIMIT ?4"
    );
    let keys = params![Int(PAUSE_MS_MAX), Int(PAUSE_MS), Int(now_ms), BINDINGS_MAX];
    all(db, &sql, keys, |row| id(row, "binding_key"))
}

/// Records an attempt to amend a message. If `done`, the message is deleted from the table; otherwise it is
/// retried with growing pauses.
///
/// # Errors
/// SQLite errors.
pub fn record_attempt(
    db: &Connection,
    at: &ConversationRef,
    message_id: &str,
    done: bool,
) -> Result<(), StoreError> {
    const KEY: &str = "channel = ?1 AND account_id = ?2 AND conversation_id = ?3 AND message_id = ?4";
    let keys = (&at.channel, &at.account_id, &at.conversation_id);
    let tries_max = if done { 0 } else { TRIES_MAX };
    let tried = format!("UPDATE acp_button_message SET tries = tries + 1, tried_at = ?5 WHERE {KEY}");
    run(db, &tried, params![keys.0, keys.1, keys.2, message_id, Int(now_ms())])?;
    let over = format!("DELETE FROM acp_button_message WHERE {KEY} AND tries >= ?5");
    run(db, &over, params![keys.0, keys.1, keys.2, message_id, tries_max])?;
    Ok(())
}

/// Handles a message that can never be changed. If this active binding delivered it, plans a separate notice
/// with the result. Returns true if a notice was planned.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn plan_result_notice(
    db: &Connection,
    binding: &BindingRow,
    message: &ButtonMessage,
) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT p.session_seq, p.part_no, p.run_id FROM acp_delivery_part AS p JOIN acp_bindings AS b \
        USING (binding_key) WHERE p.binding_key = ?1 AND p.message_id = ?2 AND p.state = 'sent' AND b.status = 'active'";
    let of = binding.binding_id;
    let found = first(db, SQL, params![of.to_string(), message.message_id], |row| {
        Ok((int(row, "session_seq")?, row.get("part_no")?, id_opt(row, "run_id")?))
    })?;
    let said = found.and_then(|(seq, no, run_id)| unedited_notice(of, (seq, no), run_id, &message.text));
    delivery::plan(db, binding, said.as_slice())?;
    record_attempt(db, &binding.conversation, &message.message_id, true)?;
    Ok(said.is_some())
}
