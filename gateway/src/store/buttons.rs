//! `acp_button_message`: messages that have buttons, or ask something, until what they are about is over.

use crate::core::project::actions::{About, Fate, amended};
use crate::core::project::{PartKind, unchanged};
use crate::core::rows::{BindingRow, ConversationRef};
use crate::store::codec::{Int, Word as _, all, first, id, id_opt, int, json, run, to_json, word};
use crate::store::error::StoreError;
use crate::store::{delivery, now_ms, permissions};
use acp_shared::ids::{BindingId, SessionKey};
use rusqlite::{Connection, params};

/// How often a message is tried to be changed at most, where nobody says that it never can be: with the pauses that is a
/// week.
const TRIES_MAX: u32 = 2_000;
/// The pause after the first attempt, in milliseconds, and the longest one.
const PAUSE_MS: u64 = 1_000;
const PAUSE_MS_MAX: u64 = 5 * 60_000;
/// Of which it is time to try: later each time, and at once where the clock was set back since. Parameters: the longest
/// pause, the first one, and now.
const DUE: &str = "(tries = 0 OR tried_at > ?3 OR tried_at + min(?1, ?2 << min(tries, 16)) <= ?3)";
/// The most messages that are amended in one go.
const OVER_MAX: usize = 64;
/// The most conversations that are looked after in one go.
const BINDINGS_MAX: u32 = 1_000;

/// A message with buttons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ButtonMessage {
    /// The channel's id of it.
    pub(crate) message_id: String,
    /// What it is.
    pub(crate) kind: PartKind,
    /// What it says.
    pub(crate) text: String,
}

/// Keeps that a message has buttons.
///
/// # Errors
/// What SQLite says.
pub(crate) fn keep(
    db: &Connection,
    at: &ConversationRef,
    session: &SessionKey,
    message: &ButtonMessage,
    about: &About,
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

/// Whether a conversation has a message about this that will say what becomes of it.
///
/// # Errors
/// What SQLite says.
pub(crate) fn is_kept(db: &Connection, at: &ConversationRef, about: &About) -> Result<bool, StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_button_message WHERE channel = ?1 AND account_id = ?2 \
        AND conversation_id = ?3 AND about_json = ?4";
    let keys = params![at.channel, at.account_id, at.conversation_id, to_json(about)?];
    Ok(first(db, SQL, keys, |_| Ok(()))?.is_some())
}

/// The messages of a conversation whose buttons mean nothing any more and of which it is time to try, with what they are to
/// say from now on. Those that could not be changed before come last: they hold up no other.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn over(
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
    // Of those that wait for somebody there may be many: they are no reason to miss one that is over.
    while let Some(row) = rows.next()?
        && out.len() < OVER_MAX
    {
        let kept = ButtonMessage {
            message_id: row.get("message_id")?,
            kind: word(row, "kind")?,
            text: row.get("text")?,
        };
        let text = at_its_end(db, json(row, "about_json")?, &kept.text, is_markdown)?;
        out.extend(text.map(|text| ButtonMessage { text, ..kept }));
    }
    Ok(out)
}

/// What a message says once what it is about is over; `None` until then.
fn at_its_end(
    db: &Connection,
    about: About,
    text: &str,
    is_markdown: bool,
) -> Result<Option<String>, StoreError> {
    const RUN: &str = "SELECT mode, state FROM acp_runs WHERE run_id = ?1";
    match about {
        About::Permission(id) => {
            let row = permissions::get(db, &id)?;
            Ok(amended(text, row.as_ref().map_or(Fate::Gone, Fate::Permission), is_markdown))
        }
        About::Queued(run_id) => {
            let now =
                first(db, RUN, [run_id.to_string()], |row| Ok((word(row, "mode")?, word(row, "state")?)))?;
            Ok(amended(text, now.map_or(Fate::Gone, |(mode, state)| Fate::Run(mode, state)), is_markdown))
        }
    }
}

/// The bindings whose conversations have such messages of which it is time to try: of several the latest, and none that is
/// parked.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn bindings(db: &Connection, now_ms: u64) -> Result<Vec<BindingId>, StoreError> {
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

/// A message has no buttons any more, or nobody knows: then it is tried again, later each time.
///
/// # Errors
/// What SQLite says.
pub(crate) fn tried(
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

/// A message can never be changed. What became of what it is about is said beside it, where it was delivered by this
/// binding and something may be said there. Whether it is.
///
/// # Errors
/// [`StoreError::Unreadable`]; what SQLite says.
pub(crate) fn refused(
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
    let said = found.and_then(|(seq, no, run_id)| unchanged(of, (seq, no), run_id, &message.text));
    delivery::plan(db, binding, said.as_slice())?;
    tried(db, &binding.conversation, &message.message_id, true)?;
    Ok(said.is_some())
}
