//! `acp_webhook`: positions of webhooks in the journal.

use crate::Store;
use crate::db::{Db, params};
use crate::error::StoreError;
use crate::events;
use acp_core::event::{EventKind, EventRow};
use std::ops::ControlFlow;

/// Result of a search in the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundEvent {
    /// Id of the last row that was read.
    pub read_to: u64,
    /// First matching row, which is the last one read.
    pub event: Option<EventRow>,
}

/// Searches at most `rows_max` rows after an event id for one of these kinds.
///
/// # Errors
/// [`StoreError::Unreadable`]; SQLite errors.
pub fn next_event(
    db: &Db,
    after_id: u64,
    kinds: &[EventKind],
    rows_max: u64,
) -> Result<FoundEvent, StoreError> {
    const KINDS: &str =
        "SELECT event_id, kind FROM acp_events WHERE event_id > ?1 ORDER BY event_id LIMIT ?2";
    let mut read_to = after_id;
    let mut is_found = false;
    db.visit(KINDS, params![after_id, rows_max], |row| {
        read_to = row.get("event_id")?;
        let kind = row.text("kind")?;
        is_found = kinds.iter().any(|wanted| wanted.as_str() == kind);
        Ok(if is_found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    let sql = format!("SELECT {} FROM acp_events WHERE event_id = ?1", events::COLUMNS);
    let event = if is_found { db.first(&sql, params![read_to], events::from_row)? } else { None };
    Ok(FoundEvent { read_to, event })
}

impl Store {
    /// Position of a webhook. A new one begins at the end of the journal.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn webhook_cursor(&self, name: String) -> Result<u64, StoreError> {
        const GET: &str = "SELECT last_event_id FROM acp_webhook WHERE name = ?1";
        const ADD: &str = "INSERT INTO acp_webhook (name, last_event_id, updated_at) VALUES (?1, ?2, ?3)";
        self.write("webhook_cursor", move |tx| {
            if let Some(found) = tx.first(GET, params![name], |row| row.get("last_event_id"))? {
                return Ok(found);
            }
            let end = events::last_id(tx)?;
            tx.run(ADD, params![name, end, tx.now_ms()])?;
            Ok(end)
        })
        .await
    }

    /// Moves a webhook forward.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub async fn advance_webhook(&self, name: String, event_id: u64) -> Result<(), StoreError> {
        const SET: &str =
            "UPDATE acp_webhook SET last_event_id = max(last_event_id, ?2), updated_at = ?3 WHERE name = ?1";
        self.write("advance_webhook", move |tx| tx.run(SET, params![name, event_id, tx.now_ms()]).map(drop))
            .await
    }

    /// Searches the journal for the next event of a webhook: see [`next_event`].
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn next_webhook_event(
        &self,
        after_id: u64,
        kinds: Vec<EventKind>,
        rows_max: u64,
    ) -> Result<FoundEvent, StoreError> {
        self.read("next_webhook_event", move |db| next_event(db, after_id, &kinds, rows_max)).await
    }
}
