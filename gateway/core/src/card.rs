//! Status card of a run: one message that shows the progress of the agent and is edited in place during the
//! turn.
//!
//! The card is best effort. The answer and all questions are separate messages, so a lost edit loses no
//! information. An outdated edit is never sent: each edit shows the newest state. After a crash the card is
//! rebuilt from the journal.
//!
//! New text is shown at the end of a sentence or line, when much text is pending, or after a pause if the
//! text ends with a phrase; never in the middle of a phrase, and at most once per interval.
//!
//! In a channel that cannot edit messages, lines about updates are separate messages and text is not
//! repeated. Source: openclaw "live" delivery and C1, C7.

use crate::event::{EventKind, EventRow};
use crate::message_split::{self, MessageLimit, last_part};
use crate::policy::{LIVE_COALESCE_MS_MIN, StreamPolicy};
use crate::render::{RunOutput, Style};
use serde_json::Value;
use std::collections::BTreeMap;

/// Minimum pending text that is shown up to the last space without waiting for a pause, in characters.
const SOON_CHARS: usize = 220;
/// Minimum pending text that is shown up to the last space after a pause, in characters.
const IDLE_CHARS: usize = 80;
/// Limits of the output kept in memory, in bytes: length after a trim, and length that triggers a trim.
const KEPT_BYTES: (usize, usize) = (32 * 1024, 64 * 1024);
/// Maximum number of cards of one run. A new card replaces one that was deleted in the channel.
const CARDS_MAX: u32 = 3;
/// Minimum interval between messages in a channel that cannot edit, in milliseconds.
const UNEDITED_MS: u64 = 5_000;
/// Maximum delay before a retry, in milliseconds.
const RETRY_LAST_MS: u64 = 30_000;

/// Update rate of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateRate {
    /// Pause in the output after which pending text is shown, in milliseconds.
    pub idle_ms: u64,
    /// Minimum interval between two updates, in milliseconds.
    pub interval_ms: u64,
}

impl UpdateRate {
    /// Returns the configured rate.
    pub const fn of(stream: &StreamPolicy) -> Self {
        Self { idle_ms: stream.coalesce_idle_ms.value, interval_ms: stream.min_interval_ms.value }
    }

    /// Returns the rate for a conversation with cards although the configuration disables live delivery: the
    /// pause is raised to `LIVE_COALESCE_MS_MIN`, since channels limit edits.
    pub const fn with_card_minimum(self) -> Self {
        let idle_ms = if self.idle_ms < LIVE_COALESCE_MS_MIN { LIVE_COALESCE_MS_MIN } else { self.idle_ms };
        Self { idle_ms, ..self }
    }
}

/// Operation on the message of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CardUpdate {
    /// Send a new message.
    Post {
        /// Number of the message within the run, from 0. A repeated send keeps the number, and thereby the
        /// nonce.
        number: u32,
        /// Text of the message.
        text: String,
    },
    /// Edit the message.
    Edit {
        /// Id of the message in the channel.
        message_id: String,
        /// New text of the message.
        text: String,
    },
}

/// Outcome of an [`CardUpdate`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CardUpdateResult {
    /// The text is shown.
    Shown {
        /// Id of the message in the channel.
        message_id: String,
    },
    /// Failed or uncertain. Retried later.
    Retry {
        /// Delay before the retry in milliseconds, if the channel names one.
        after_ms: Option<u64>,
    },
    /// The message no longer exists.
    Gone,
    /// The channel rejects the operation permanently.
    Rejected,
}

/// State of a run's messages, stored for a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CardRecord {
    /// Id of the message to edit, given by the channel; `None` before a confirmed send.
    pub message_id: Option<String>,
    /// Number of the next message.
    pub number: u32,
    /// Last journal row sent as a line, in a channel without edits.
    pub through: u64,
    /// Time of the send, milliseconds since the Unix epoch; `None` if unknown.
    pub posted_at_ms: Option<u64>,
}

/// Content of an unconfirmed send or edit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PendingUpdate {
    /// Bytes of the body covered by the content, on the scale of `Card::grown`.
    upto: u64,
    status: String,
    text: String,
    /// Number of lines in the content.
    lines: usize,
    through: u64,
    is_post: bool,
}

/// Status card of one run in one conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    body: RunOutput,
    limit: MessageLimit,
    rate: UpdateRate,
    can_edit: bool,
    record: CardRecord,
    /// Total number of bytes added to the body; `shown` of them are visible.
    grown: u64,
    shown: u64,
    status_shown: String,
    text_shown: String,
    /// Lines not sent yet, in a channel without edits. `through` is the last journal row read.
    lines: Vec<String>,
    through: u64,
    in_flight: Option<PendingUpdate>,
    /// Time of the last text or line that is not shown yet.
    text_at: Option<u64>,
    /// Time at which the status line began to differ from the shown one.
    status_at: u64,
    not_before: u64,
    failures: u32,
    /// True after a send with an uncertain outcome: a message with an older text may exist.
    is_post_uncertain: bool,
    /// Ids of the pending permission requests and elicitations; true for an elicitation.
    asking: BTreeMap<String, bool>,
    /// Number of messages deleted in the channel.
    lost: u32,
    /// Status word for the end of the run; `None` before the end.
    ending: Option<&'static str>,
    is_off: bool,
}

impl Card {
    /// Creates the card of a run. `now` is in milliseconds; `can_edit`: the channel can edit messages.
    pub fn new(style: Style, rate: UpdateRate, can_edit: bool, record: Option<CardRecord>, now: u64) -> Self {
        let limit = style.limit;
        // A record without a message id was saved before a send whose result was never stored: it is
        // unknown whether the message was posted, and with which text.
        let is_post_uncertain = can_edit && record.as_ref().is_some_and(|record| record.message_id.is_none());
        Self {
            // No limit on the output: the card shows the end of the text.
            body: RunOutput::new(Style { output_chars_max: usize::MAX, ..style }),
            limit,
            rate,
            can_edit,
            record: record.unwrap_or_default(),
            grown: 0,
            shown: 0,
            status_shown: String::new(),
            text_shown: String::new(),
            lines: Vec::new(),
            through: 0,
            in_flight: None,
            text_at: None,
            status_at: now,
            not_before: now.saturating_add(rate.interval_ms),
            failures: 0,
            is_post_uncertain,
            asking: BTreeMap::new(),
            lost: 0,
            ending: None,
            is_off: false,
        }
    }

    /// Changes the update rate.
    pub const fn set_rate(&mut self, rate: UpdateRate) {
        self.rate = rate;
    }

    /// Returns the state to store for a restart.
    pub const fn record(&self) -> &CardRecord {
        &self.record
    }

    /// Sets the id of a message found by a lookup in the channel.
    pub fn set_message_id(&mut self, message_id: String) {
        self.record.message_id = Some(message_id);
    }

    /// True once the row that ends the run was added.
    pub const fn is_over(&self) -> bool {
        self.ending.is_some()
    }

    /// Adds the next journal row of the run, in order.
    pub fn push(&mut self, now: u64, row: &EventRow) {
        let before = self.body.text().len();
        let status = self.status();
        match row.kind {
            EventKind::Permission => {
                let (id, is_form) = asked(row);
                self.asking.insert(id, is_form);
            }
            EventKind::PermissionSettled => {
                self.asking.remove(&asked(row).0);
            }
            EventKind::Error => self.ending = Some("Failed"),
            EventKind::Done => {
                let payload: Value = serde_json::from_str(&row.payload).unwrap_or(Value::Null);
                let is_cancelled = payload["stop_reason"] == "cancelled";
                self.ending = Some(if is_cancelled { "Cancelled" } else { "Done" });
            }
            _ => {}
        }
        let line = self.body.add(row.kind, &row.payload);
        self.lines.extend(line.filter(|_| !self.can_edit && row.session_seq > self.record.through));
        self.through = self.through.max(row.session_seq);
        let added = self.body.text().len().saturating_sub(before);
        self.grown += added as u64;
        if self.body.text().len() > KEPT_BYTES.1 {
            self.body.trim_start_to(KEPT_BYTES.0);
        }
        if added > 0 {
            self.text_at = Some(now);
        }
        if status == self.status_shown && self.status() != status {
            self.status_at = now;
        }
    }

    /// Returns the time of the next [`Card::next_update`]; `None` if nothing is pending or an operation is
    /// unconfirmed.
    pub fn due_at(&self) -> Option<u64> {
        if self.is_off || self.in_flight.is_some() {
            return None;
        }
        let idle_at = |since: u64| since.saturating_add(self.rate.idle_ms);
        if !self.can_edit {
            let is_due = !self.lines.is_empty();
            return is_due.then(|| self.not_before.max(idle_at(self.text_at.unwrap_or(0))));
        }
        if self.soon_end().is_some() {
            return Some(self.not_before);
        }
        let text = self.text_at.filter(|_| self.idle_end().is_some()).map(idle_at);
        let is_other = self.status() != self.status_shown || self.is_post_uncertain;
        let status = is_other.then(|| idle_at(self.status_at));
        text.into_iter().chain(status).min().map(|at| at.max(self.not_before))
    }

    /// Returns the operation that is due. The outcome must be passed to [`Card::handle_result`] before the
    /// next one.
    pub fn next_update(&mut self, now: u64) -> Option<CardUpdate> {
        if self.due_at()? > now {
            return None;
        }
        let in_flight = if self.can_edit { self.render_update(now) } else { self.list_update() };
        if self.can_edit && in_flight.text == self.text_shown && !self.is_post_uncertain {
            self.mark_shown(now, &in_flight);
            return None;
        }
        let text = in_flight.text.clone();
        let act = match self.record.message_id.clone().filter(|_| self.can_edit) {
            Some(message_id) => CardUpdate::Edit { message_id, text },
            None => CardUpdate::Post { number: self.record.number, text },
        };
        self.in_flight = Some(PendingUpdate { is_post: matches!(act, CardUpdate::Post { .. }), ..in_flight });
        Some(act)
    }

    /// Handles the outcome of the last [`CardUpdate`].
    pub fn handle_result(&mut self, now: u64, result: CardUpdateResult) {
        let Some(in_flight) = self.in_flight.take() else { return };
        match result {
            CardUpdateResult::Shown { message_id } => {
                if self.can_edit {
                    self.record.message_id = Some(message_id);
                } else {
                    self.record.number += 1;
                    self.record.through = in_flight.through;
                    self.lines.drain(..in_flight.lines.min(self.lines.len()));
                }
                // The channel may have kept an earlier message with an older text: update once more.
                if std::mem::take(&mut self.is_post_uncertain) && in_flight.is_post && self.can_edit {
                    self.not_before = now.saturating_add(self.rate.interval_ms);
                    self.status_shown.clear();
                } else {
                    self.mark_shown(now, &in_flight);
                }
                self.failures = 0;
            }
            CardUpdateResult::Retry { after_ms } => {
                self.is_post_uncertain |= in_flight.is_post;
                let wait_ms = self.rate.interval_ms.max(250) << self.failures.min(10);
                self.not_before = now.saturating_add(after_ms.unwrap_or(wait_ms.min(RETRY_LAST_MS)));
                self.failures += 1;
            }
            CardUpdateResult::Gone => {
                self.start_new_message();
                self.lost += 1;
                self.is_off = self.lost >= CARDS_MAX;
                self.not_before = now.saturating_add(self.rate.interval_ms);
            }
            CardUpdateResult::Rejected => self.is_off = true,
        }
    }

    /// Sets the time of the send, milliseconds since the Unix epoch.
    pub const fn set_posted_at(&mut self, at_ms: u64) {
        self.record.posted_at_ms = Some(at_ms);
    }

    /// Moves the card to a new message if the present one is older than `edits_until_ms`, the age limit for
    /// edits. Returns the last edit of the old message.
    pub fn rotate(&mut self, now_ms: u64, edits_until_ms: Option<u64>) -> Option<CardUpdate> {
        let age_ms = now_ms.saturating_sub(self.record.posted_at_ms?);
        if self.in_flight.is_some() || self.is_over() || age_ms < edits_until_ms? {
            return None;
        }
        let message_id = self.record.message_id.clone().filter(|_| self.can_edit)?;
        self.start_new_message();
        let text = self.with_tools("Continued below");
        Some(CardUpdate::Edit { message_id, text: first_part(&text, self.limit) })
    }

    fn start_new_message(&mut self) {
        self.record.message_id = None;
        self.record.posted_at_ms = None;
        self.record.number += 1;
        self.status_shown.clear();
        self.text_shown.clear();
    }

    /// True if the run is active and no permission request is pending.
    pub fn is_working(&self) -> bool {
        self.asking.is_empty() && self.ending.is_none()
    }

    /// Returns the last edit of the card, after the run ended and the answer was sent.
    pub fn closing_edit(&self) -> Option<CardUpdate> {
        let message_id = self.record.message_id.clone().filter(|_| self.can_edit)?;
        let text = self.with_tools(self.ending.unwrap_or("No longer updated"));
        Some(CardUpdate::Edit { message_id, text: first_part(&text, self.limit) })
    }

    fn mark_shown(&mut self, now: u64, in_flight: &PendingUpdate) {
        self.shown = in_flight.upto;
        self.status_shown.clone_from(&in_flight.status);
        self.text_shown.clone_from(&in_flight.text);
        let interval_ms =
            if self.can_edit { self.rate.interval_ms } else { self.rate.interval_ms.max(UNEDITED_MS) };
        self.not_before = now.saturating_add(interval_ms);
        if self.shown == self.grown {
            self.text_at = None;
        }
    }

    /// Renders the card with all text that may be shown now.
    fn render_update(&self, now: u64) -> PendingUpdate {
        let text = self.body.text();
        let is_idle = self.text_at.is_some_and(|at| now >= at.saturating_add(self.rate.idle_ms));
        let idle_end = if is_idle { self.idle_end() } else { None };
        let end = self.soon_end().max(idle_end).unwrap_or(text.len() - self.pending());
        let status = self.status();
        let head = format!("{status}\n\n");
        let shown = text.get(..end).unwrap_or_default();
        let rest = self
            .limit
            .minus(&head)
            .map(|limit| last_part(shown, limit))
            .filter(|rest| !rest.trim().is_empty());
        let whole = match rest {
            Some(rest) => head + rest.trim_end(),
            None => first_part(&status, self.limit),
        };
        let held = (text.len() - end) as u64;
        PendingUpdate {
            upto: self.grown - held,
            status,
            text: whole,
            lines: 0,
            through: self.through,
            is_post: false,
        }
    }

    /// Renders the lines not sent yet.
    fn list_update(&self) -> PendingUpdate {
        PendingUpdate {
            upto: self.grown,
            status: String::new(),
            text: last_part(&self.lines.join("\n"), self.limit),
            lines: self.lines.len(),
            through: self.through,
            is_post: true,
        }
    }

    fn status(&self) -> String {
        let asks_form = self.asking.values().any(|is_form| *is_form);
        self.with_tools(match self.asking.is_empty() {
            true => "Working",
            false if asks_form => "Waiting for an answer",
            false => "Waiting for a permission",
        })
    }

    fn with_tools(&self, word: &str) -> String {
        match self.body.summary() {
            Some(summary) => format!("{word}: {summary}"),
            None => word.to_owned(),
        }
    }

    /// Returns the number of bytes at the end of the body that are not shown.
    fn pending(&self) -> usize {
        let pending = usize::try_from(self.grown - self.shown).unwrap_or(usize::MAX);
        pending.min(self.body.text().len())
    }

    /// Returns the end of the text that can be shown without waiting for a pause: the end of a sentence or
    /// line, or the last space if much text is pending.
    fn soon_end(&self) -> Option<usize> {
        let text = self.body.text();
        let start = text.len() - self.pending();
        let news = text.get(start..).unwrap_or_default();
        if news.is_empty() {
            return None;
        }
        if !self.body.ends_in_text() {
            return Some(text.len());
        }
        let ends = news.char_indices().zip(news.chars().skip(1)).filter_map(|((at, c), next)| {
            let is_sentence = matches!(c, '.' | '!' | '?' | '…') && next.is_whitespace();
            is_sentence.then(|| at + c.len_utf8() + next.len_utf8())
        });
        let sentence = ends.max().max(news.rfind('\n').map(|at| at + 1));
        let word = (news.chars().count() >= SOON_CHARS).then(|| last_space(news)).flatten();
        sentence.max(word).map(|end| start + end)
    }

    /// Returns the end of the text that can be shown after a pause.
    fn idle_end(&self) -> Option<usize> {
        let text = self.body.text();
        let start = text.len() - self.pending();
        let news = text.get(start..).unwrap_or_default();
        if news.trim_end().ends_with(['.', '!', '?', '…', ',', ';', ':', ')', '`']) {
            return Some(text.len());
        }
        let word = (news.chars().count() >= IDLE_CHARS).then(|| last_space(news)).flatten();
        self.soon_end().max(word.map(|end| start + end))
    }
}

/// Returns the permission id of a row, and true for an elicitation.
fn asked(row: &EventRow) -> (String, bool) {
    let payload: Value = serde_json::from_str(&row.payload).unwrap_or(Value::Null);
    (payload["permission_id"].as_str().unwrap_or_default().to_owned(), !payload["form"].is_null())
}

fn last_space(text: &str) -> Option<usize> {
    text.char_indices().rev().find(|(_, c)| c.is_whitespace()).map(|(at, c)| at + c.len_utf8())
}

/// Returns the start of `text` that fits into one message.
fn first_part(text: &str, limit: MessageLimit) -> String {
    message_split::first_part(text, limit).unwrap_or_default()
}

#[cfg(test)]
mod tests;
