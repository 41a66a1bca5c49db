//! `acp_delivery_part`, the outbox of messages to conversations.
//!
//! A part is planned before it is sent, and `sending` until its outcome is known. The outcome is committed
//! together with the checkpoint. After a crash, planned parts are sent; parts in state `sending` are first
//! searched for in the conversation.

use crate::bindings;
use crate::checkpoints;
use crate::codec::{to_json_opt, words};
use crate::command_replies;
use crate::db::{Db, Params, Row, params};
use crate::error::StoreError;
use crate::interactive_messages::{self, ButtonMessage};
use crate::{Tx, events};
use acp_core::event::{EventKind, EventRow};
use acp_core::intake::readable_payload;
use acp_core::render::disambiguation_tag;
use acp_core::render::{self, MessagePart, RenderData, RequiredData, RunDigest, Style, StyleHistory};
use acp_core::rows::{BindingRow, BindingStatus, ConversationRef};
use acp_shared::ids::{BindingId, RunId, SessionKey};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Maximum number of journal rows projected in one step.
const ROWS_MAX: u64 = 64;
/// Maximum size of the output of ended runs in one step, in bytes, to bound memory; a single run may be
/// larger.
const RUN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Delivery state of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartState {
    /// Not sent yet.
    Planned,
    /// Being sent. After a crash the outcome is unknown.
    Sending,
    /// In the conversation.
    Sent,
    /// Outcome unknown; a search of the conversation was inconclusive.
    Uncertain,
    /// Rejected by the channel, or dropped unsent at the end of a parked binding.
    Rejected,
}

words! {
    PartState {
        Planned = "planned", Sending = "sending", Sent = "sent", Uncertain = "uncertain",
        Rejected = "rejected",
    }
}

/// A row of `acp_delivery_part`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartRow {
    /// Content of the part.
    pub part: MessagePart,
    /// Delivery state.
    pub state: PartState,
    /// Tag that distinguishes the part from another with the same text; `None` if it needs none.
    pub tag: Option<String>,
    /// Number of attempts.
    pub attempts: u64,
    /// Time of the last attempt under an agent's name, milliseconds since the Unix epoch; `None` if there was
    /// none, or if it provably did not arrive.
    pub persona_at_ms: Option<u64>,
    /// Time of planning, milliseconds since the Unix epoch. The part was not sent before.
    pub created_at_ms: u64,
}

fn part_from_row(row: &Row<'_>) -> Result<PartRow, StoreError> {
    let part = MessagePart {
        session_seq: row.get("session_seq")?,
        part_no: row.get("part_no")?,
        run_id: row.get("run_id")?,
        kind: row.get("kind")?,
        text: row.get("text")?,
        nonce: row.get("nonce")?,
        asks: row.json_opt("asks_json")?,
        files: row.json_opt("files_json")?.unwrap_or_default(),
    };
    Ok(PartRow {
        part,
        state: row.get("state")?,
        tag: row.get("tag")?,
        attempts: row.get("attempts")?,
        persona_at_ms: row.get("persona_at")?,
        created_at_ms: row.get("created_at")?,
    })
}

/// Journal rows to deliver to a conversation, with the data for their projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryBatch {
    /// Rows in order.
    pub rows: Vec<EventRow>,
    /// Digests of the runs ended by the rows.
    pub runs: BTreeMap<RunId, RunDigest>,
    /// Successor rows needed for projection, by the number of the row before.
    pub next: BTreeMap<u64, EventRow>,
    /// Number up to which the journal was read.
    pub through: u64,
}

impl DeliveryBatch {
    /// Data for the projection of one of the rows.
    pub fn digest(&self, row: &EventRow) -> RenderData<'_> {
        match render::required_data(row) {
            RequiredData::Nothing => RenderData::Nothing,
            RequiredData::Run(run_id) => self.runs.get(&run_id).map_or(RenderData::Nothing, RenderData::Run),
            RequiredData::Next => {
                self.next.get(&row.session_seq).map_or(RenderData::Nothing, RenderData::Next)
            }
        }
    }
}

/// Reads the rows after `after` of a session's journal whose last number is `end`, for display in the given
/// styles. Skips the query at the end of the journal: after a start most conversations are there, and each
/// query would read a page.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn batch(
    db: &Db,
    binding: &BindingRow,
    styles: &StyleHistory,
    after: u64,
    end: u64,
) -> Result<DeliveryBatch, StoreError> {
    read_batch(db, binding, styles, after, end, ROWS_MAX)
}

/// Reads one row of a session's journal with the data for its projection.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn row(
    db: &Db,
    binding: &BindingRow,
    styles: &StyleHistory,
    session_seq: u64,
) -> Result<DeliveryBatch, StoreError> {
    let mut found = read_batch(db, binding, styles, session_seq.saturating_sub(1), session_seq, 1)?;
    found.rows.retain(|row| row.session_seq == session_seq);
    Ok(found)
}

fn read_batch(
    db: &Db,
    binding: &BindingRow,
    styles: &StyleHistory,
    after: u64,
    end: u64,
    rows_max: u64,
) -> Result<DeliveryBatch, StoreError> {
    let key = &binding.session_key;
    let sql = format!(
        "SELECT {} FROM acp_events WHERE session_key = ?1 AND session_seq > ?2 AND kind IN ({}) \
         ORDER BY session_seq LIMIT ?3",
        events::COLUMNS,
        listed(&render::RENDERED_KINDS)
    );
    if after < end {
        events::start(events::position(after), events::pruned_seq(db, key)?)?;
    }
    let rows =
        if after < end { db.all(&sql, params![key, after, rows_max], events::from_row)? } else { Vec::new() };
    let is_full = u64::try_from(rows.len()).is_ok_and(|count| count == rows_max);
    let through = rows.last().filter(|_| is_full).map_or(end.max(after), |row| row.session_seq);
    let mut out = DeliveryBatch { rows, runs: BTreeMap::new(), next: BTreeMap::new(), through };
    let mut bytes: usize = 0;
    for row in &out.rows {
        if bytes > RUN_BYTES_MAX {
            out.through = row.session_seq - 1;
            break;
        }
        match render::required_data(row) {
            RequiredData::Nothing => {}
            RequiredData::Run(run_id) => {
                let style = styles.at(row.session_seq);
                if let Some(style) = style
                    && let Some(digest) = digest(db, &binding.conversation, run_id, row.session_seq, style)?
                {
                    bytes += digest.bytes();
                    out.runs.insert(run_id, digest);
                }
            }
            RequiredData::Next => {
                let next = events::after(db, key, Some(row.session_seq), 1, 1)?.rows.pop();
                out.next.extend(next.map(|next| (row.session_seq, next)));
            }
        }
    }
    let through = out.through;
    out.rows.retain(|row| row.session_seq <= through);
    Ok(out)
}

fn listed(kinds: &[EventKind]) -> String {
    kinds.iter().map(|kind| format!("'{}'", kind.as_str())).collect::<Vec<_>>().join(",")
}

/// Builds the digest of a run that the row `ended_by` ended, for display in the conversation `at`.
fn digest(
    db: &Db,
    at: &ConversationRef,
    run_id: RunId,
    ended_by: u64,
    style: &Style,
) -> Result<Option<RunDigest>, StoreError> {
    const RUN: &str = "SELECT r.mode, r.started_at, s.agent FROM acp_runs AS r JOIN acp_sessions AS s \
        USING (session_key) WHERE r.run_id = ?1";
    const PROMPT: &str =
        "SELECT payload_json FROM acp_events WHERE run_id = ?1 AND kind = 'prompt' ORDER BY seq LIMIT 1";
    let rows_of_run = format!(
        "SELECT kind, payload_json FROM acp_events WHERE run_id = ?1 AND session_seq < ?2 AND kind IN ({}) ORDER BY seq",
        listed(&render::OUTPUT_KINDS)
    );
    let made = db.first(RUN, params![run_id], |row| {
        let started_at_ms: Option<u64> = row.get("started_at")?;
        let digest = RunDigest::new(row.get("mode")?, started_at_ms.is_some(), style.clone());
        Ok(digest.with_turn(row.get("agent")?, started_at_ms))
    })?;
    let prompt: Option<String> = db.first(PROMPT, params![run_id], |row| row.get("payload_json"))?;
    let Some(digest) = made else { return Ok(None) };
    let mut digest = digest.for_conversation(at, &prompt.unwrap_or_default());
    db.visit(&rows_of_run, params![run_id, ended_by], |row| {
        if let Some(kind) = EventKind::parse(&row.text("kind")?) {
            digest.add(kind, &readable_payload(&row.text("payload_json")?));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(Some(digest))
}

/// Plans the parts of rows of the journal. A row that has parts gets no more: another version of the gateway may have
/// planned them, and split the same text differently.
///
/// # Errors
/// SQLite errors.
pub fn plan_rows(tx: &Tx<'_>, binding: &BindingRow, parts: &[MessagePart]) -> Result<(), StoreError> {
    const SQL: &str = "SELECT 1 FROM acp_delivery_part WHERE binding_key = ?1 AND session_seq = ?2 LIMIT 1";
    for of_row in parts.chunk_by(|a, b| a.session_seq == b.session_seq) {
        let session_seq = of_row.first().map(|part| part.session_seq);
        if tx.first(SQL, params![binding.binding_id, session_seq], |_| Ok(()))?.is_none() {
            plan(tx, binding, of_row)?;
        }
    }
    Ok(())
}

/// Plans parts of a conversation; existing ones are left unchanged. A part whose text occurs elsewhere in the
/// conversation gets a tag (H12).
///
/// # Errors
/// SQLite errors.
pub fn plan(tx: &Tx<'_>, binding: &BindingRow, parts: &[MessagePart]) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO acp_delivery_part (binding_key, session_key, run_id, session_seq, part_no, kind, text, \
        nonce, asks_json, files_json, tag, print, state, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, \
        ?11, ?12, 'planned', ?13, ?13) ON CONFLICT DO NOTHING";
    for part in parts {
        let (tag, print) = disambiguation_tag::choose_tag(&part.text, &part.nonce, |print| {
            has_same_text(tx, binding, &part.nonce, print)
        })?;
        tx.run(
            SQL,
            params![
                binding.binding_id,
                binding.session_key,
                part.run_id,
                part.session_seq,
                part.part_no,
                part.kind,
                part.text,
                part.nonce,
                to_json_opt(part.asks.as_ref())?,
                to_json_opt(Some(&part.files).filter(|files| !files.is_empty()))?,
                tag,
                print,
                tx.now_ms()
            ],
        )?;
    }
    Ok(())
}

/// Query of [`has_same_text`]. The order of the join is fixed: the bindings of a conversation are few, the parts with one
/// text may be many.
pub(crate) const SAME_TEXT: &str = "SELECT 1 FROM acp_bindings AS b CROSS JOIN acp_delivery_part AS p \
    ON p.binding_key = b.binding_key WHERE p.print = ?1 AND p.nonce <> ?2 \
    AND b.channel = ?3 AND b.account_id = ?4 AND b.thread_id = ?5 LIMIT 1";

/// True if another part of the conversation, of any binding, has this fingerprint, or a reply with unknown
/// outcome.
fn has_same_text(db: &Db, binding: &BindingRow, nonce: &str, print: &str) -> Result<bool, StoreError> {
    let at = &binding.conversation;
    let keys = params![print, nonce, at.channel, at.account_id, at.conversation_id];
    Ok(db.first(SAME_TEXT, keys, |_| Ok(()))?.is_some() || command_replies::is_unknown(db, at, print)?)
}

/// Parts of a conversation that are planned or being sent, in order. None if the binding is parked.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn pending_parts(db: &Db, binding_id: BindingId) -> Result<Vec<PartRow>, StoreError> {
    const SQL: &str = "SELECT session_seq, part_no, run_id, kind, text, nonce, asks_json, files_json, tag, state, attempts, \
        persona_at, created_at FROM acp_delivery_part WHERE binding_key = ?1 AND state IN ('planned','sending') AND NOT EXISTS (SELECT 1 FROM acp_bindings AS b \
        WHERE b.binding_key = ?1 AND b.status = 'parked') ORDER BY session_seq, part_no LIMIT ?2";
    db.all(SQL, params![binding_id, ROWS_MAX], part_from_row)
}

/// Marks a part as being sent, under an agent's name since `persona_at_ms`, if given. Returns false if the
/// part must not be sent: a person archived the conversation meanwhile, or the end of the binding settled the
/// part.
///
/// # Errors
/// SQLite errors.
pub fn begin(tx: &Tx<'_>, nonce: &str, persona_at_ms: Option<u64>) -> Result<bool, StoreError> {
    const SQL: &str = "UPDATE acp_delivery_part SET state = 'sending', attempts = attempts + 1, updated_at = ?2, \
        persona_at = coalesce(?3, persona_at) WHERE nonce = ?1 AND state IN ('planned','sending') AND NOT EXISTS (SELECT 1 FROM acp_bindings AS b \
        WHERE b.binding_key = acp_delivery_part.binding_key AND b.status = 'parked')";
    Ok(tx.run(SQL, params![nonce, tx.now_ms(), persona_at_ms])? > 0)
}

/// Records the outcome of a part and everything that follows from it, in one transaction.
///
/// # Errors
/// SQLite errors.
pub fn settle(
    tx: &Tx<'_>,
    binding: &BindingRow,
    part: &MessagePart,
    state: PartState,
    message_id: Option<&str>,
) -> Result<(), StoreError> {
    // A part settled by the end of its binding stays settled, unless it turns out to be sent.
    const SQL: &str = "UPDATE acp_delivery_part SET state = ?2, message_id = ?3, updated_at = ?4, \
        persona_at = CASE WHEN ?2 = 'planned' THEN NULL ELSE persona_at END WHERE nonce = ?1 \
        AND (?2 = 'sent' OR state IN ('planned','sending'))";
    let changed = tx.run(SQL, params![part.nonce, state, message_id, tx.now_ms()])?;
    if changed == 0 || matches!(state, PartState::Planned | PartState::Sending) {
        return Ok(());
    }
    // Delivery is complete up to the first part that is not settled.
    const FIRST: &str = "SELECT min(session_seq) AS first FROM acp_delivery_part WHERE binding_key = ?1 \
        AND state IN ('planned','sending')";
    let first_open =
        tx.first(FIRST, params![binding.binding_id], |row| row.get::<Option<u64>>("first"))?.flatten();
    let through = first_open.map_or(part.session_seq, |open| open.saturating_sub(1).min(part.session_seq));
    checkpoints::advance(tx, binding.binding_id, through, message_id)?;
    if let (PartState::Sent, Some(run_id)) = (state, part.run_id) {
        checkpoints::advance_run(tx, &binding.session_key, part.session_seq, run_id, message_id)?;
        bindings::touch(tx, binding.binding_id, tx.now_ms())?;
    }
    if let (PartState::Sent, Some(asks), Some(message_id)) = (state, &part.asks, message_id) {
        let message =
            ButtonMessage { message_id: message_id.to_owned(), kind: part.kind, text: part.text.clone() };
        interactive_messages::insert_message(
            tx,
            &binding.conversation,
            &binding.session_key,
            &message,
            &asks.about,
        )?;
    }
    Ok(())
}

/// Commit time of a row of a session's journal, milliseconds since the Unix epoch.
///
/// # Errors
/// SQLite errors.
pub fn journaled_at(db: &Db, key: &SessionKey, session_seq: u64) -> Result<Option<u64>, StoreError> {
    const SQL: &str = "SELECT created_at FROM acp_events WHERE session_key = ?1 AND session_seq = ?2";
    db.first(SQL, params![key, session_seq], |row| row.get("created_at"))
}

/// Binding with possibly pending delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueBinding {
    /// The binding.
    pub binding: BindingRow,
    /// Number of the last row of the session's journal.
    pub end: u64,
}

/// Query of a page of the bindings in one state, in the order of insertion. The first condition is that of the index.
pub(crate) fn page_sql() -> String {
    due_sql("b.status IN ('pending','active','ending') AND b.status = ?1 AND b.ord > ?2") + " LIMIT ?3"
}

/// A page of the active and ending bindings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BindingPage {
    /// The bindings.
    pub bindings: Vec<DueBinding>,
    /// Position of the next page; `None` after the last one.
    pub next_after: Option<u64>,
}

/// Active and ending bindings after a position, at most `rows_max` of each, in the order of insertion. The first page is
/// the one after 0.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn delivering_bindings(db: &Db, after: u64, rows_max: u64) -> Result<BindingPage, StoreError> {
    let mut page = BindingPage::default();
    for status in [BindingStatus::Active, BindingStatus::Ending] {
        let with = params![status, after, rows_max];
        let rows = db.all(&page_sql(), with, |row| Ok((row.get::<u64>("ord")?, due_from_row(row)?)))?;
        if rows.len() as u64 == rows_max {
            let last = rows.last().map(|(ord, _)| *ord);
            page.next_after = page.next_after.into_iter().chain(last).min();
        }
        page.bindings.extend(rows.into_iter().map(|(_, due)| due));
    }
    Ok(page)
}

/// Bindings of a session, in any state.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn bindings_of_session(db: &Db, key: &SessionKey) -> Result<Vec<DueBinding>, StoreError> {
    query_due(db, "session_key = ?1", params![key])
}

/// Returns one binding, in any state.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn due_of_binding(db: &Db, binding_id: BindingId) -> Result<Option<DueBinding>, StoreError> {
    Ok(query_due(db, "binding_key = ?1", params![binding_id])?.pop())
}

/// Ended bindings with pending delivery: undelivered journal rows or pending parts. The state condition is
/// written so that SQLite uses the partial index of pending parts.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn ended_with_pending(db: &Db) -> Result<Vec<DueBinding>, StoreError> {
    const HAS_PENDING: &str = "status = 'ended' AND (coalesce((SELECT c.last_session_seq FROM acp_binding_checkpoint AS c \
        WHERE c.binding_key = b.binding_key), 0) < coalesce(CAST(json_extract(metadata_json, '$.end_session_seq') AS BIGINT), \
        (SELECT last_session_seq FROM acp_sessions AS s WHERE s.session_key = b.session_key)) OR EXISTS (SELECT 1 FROM \
        acp_delivery_part AS p WHERE p.binding_key = b.binding_key AND p.state IN ('planned','sending','uncertain') \
        AND p.state <> 'uncertain'))";
    query_due(db, HAS_PENDING, &[])
}

fn query_due(db: &Db, filter: &str, params: Params<'_>) -> Result<Vec<DueBinding>, StoreError> {
    db.all(&due_sql(filter), params, due_from_row)
}

fn due_sql(filter: &str) -> String {
    format!(
        "SELECT {}, b.ord, (SELECT last_session_seq FROM acp_sessions AS s WHERE s.session_key = b.session_key) AS end \
         FROM acp_bindings AS b WHERE {filter} ORDER BY b.ord",
        bindings::COLUMNS
    )
}

fn due_from_row(row: &Row<'_>) -> Result<DueBinding, StoreError> {
    Ok(DueBinding { binding: bindings::from_row(row)?, end: row.get("end")? })
}
