//! The live card of a run: one message that says how far the agent is, changed in place while the run goes on.
//!
//! It is best effort and carries nothing that does not come another way: the answer and every question are messages
//! of their own. So an edit may be lost, and one that is overtaken is never made: what is rendered is always the
//! newest. After a crash the card is made again from the journal.
//!
//! When it changes: at the end of a sentence or a line, or when much has come, or when nothing more comes for a while
//! and what there is ends with a phrase; never in the middle of one, and never twice within an interval.
//!
//! Where a channel cannot change a message, the lines about updates are messages of their own, and text is not
//! repeated. Source: openclaw "live" delivery and C1, C7.

use crate::core::event::{EventKind, EventRow};
use crate::core::policy::{LIVE_COALESCE_MS_MIN, Stream};
use crate::core::project::{Body, Style};
use crate::core::split::{self, Limit, tail};
use serde_json::Value;
use std::collections::BTreeSet;

/// Text that is shown at the next space, however it goes on, in characters.
const SOON_CHARS: usize = 220;
/// Text that is shown at the last space when nothing more comes, in characters.
const IDLE_CHARS: usize = 80;
/// How much of the end of a run's output is kept, in bytes.
const KEPT_BYTES: (usize, usize) = (32 * 1024, 64 * 1024);
/// The most cards of one run: a new one takes the place of one that somebody deleted.
const CARDS_MAX: u32 = 3;
/// Between two messages in a channel where none can be changed, in milliseconds, at least.
const UNEDITED_MS: u64 = 5_000;
/// The longest pause after a change that was not made, in milliseconds.
const RETRY_LAST_MS: u64 = 30_000;

/// How often a card changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// It changes after this long without more of it, in milliseconds.
    pub(crate) idle_ms: u64,
    /// Between two changes, in milliseconds.
    pub(crate) interval_ms: u64,
}

impl Pace {
    /// What the configuration says.
    pub(crate) const fn of(stream: &Stream) -> Self {
        Self { idle_ms: stream.coalesce_idle_ms.value, interval_ms: stream.min_interval_ms.value }
    }

    /// The same where a conversation has cards although the configuration wants none: channels bound how often a message
    /// may change.
    pub(crate) const fn of_cards(self) -> Self {
        let idle_ms = if self.idle_ms < LIVE_COALESCE_MS_MIN { LIVE_COALESCE_MS_MIN } else { self.idle_ms };
        Self { idle_ms, ..self }
    }
}

/// What is to be done with the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    /// It is sent: the run's message of this number, from 0.
    Post {
        /// Its number: the same number is the same message, however often it is sent.
        number: u32,
        /// What it says.
        text: String,
    },
    /// It gets another text.
    Edit {
        /// The channel's id of it.
        message_id: String,
        /// What it says now.
        text: String,
    },
}

/// What came of an [`Act`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Came {
    /// It is shown, in the message of this id.
    Shown {
        /// The channel's id of it.
        message_id: String,
    },
    /// It is not, or nobody knows; it may be tried again, after this long if that is known.
    Later {
        /// Milliseconds from now.
        after_ms: Option<u64>,
    },
    /// The message is not there any more.
    Gone,
    /// The channel will not have it.
    Never,
}

/// What is known of a run's messages, to be kept over a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// The channel's id of the message that is changed; `None` where there is none.
    pub(crate) message_id: Option<String>,
    /// The number of the next message that is sent.
    pub(crate) number: u32,
    /// Lines up to this journal row are shown, where each is a message of its own.
    pub(crate) through: u64,
    /// When the message was sent, milliseconds since the Unix epoch; `None` where nobody knows.
    pub(crate) posted_at_ms: Option<u64>,
}

/// What is being shown and not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Flight {
    /// How much of what was ever added it shows.
    upto: u64,
    status: String,
    text: String,
    /// How many of the lines it holds.
    lines: usize,
    through: u64,
    is_post: bool,
}

/// The card of one run in one conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    body: Body,
    limit: Limit,
    pace: Pace,
    can_edit: bool,
    known: Known,
    /// Bytes that were ever added to the body, and how many of them are shown.
    grown: u64,
    shown: u64,
    status_shown: String,
    text_shown: String,
    /// Lines that are not shown yet, where each is shown once; and the journal row that they go up to.
    lines: Vec<String>,
    through: u64,
    flight: Option<Flight>,
    /// When text or a line last came that is not shown.
    text_at: Option<u64>,
    /// Since when the first line is another one than what is shown.
    status_at: u64,
    not_before: u64,
    failures: u32,
    /// A message may have been sent with an older text.
    is_post_unsure: bool,
    /// The questions that wait for an answer, by id.
    asking: BTreeSet<String>,
    /// How many messages somebody took away.
    lost: u32,
    /// How the run ended, once it has.
    ending: Option<&'static str>,
    is_off: bool,
}

impl Card {
    /// Of a run that is taken up at `now`, in a channel that can change messages or cannot.
    pub(crate) fn new(style: Style, pace: Pace, can_edit: bool, known: Option<Known>, now: u64) -> Self {
        let limit = style.limit;
        // It was about to be sent: nobody knows whether it was, and with which text.
        let is_post_unsure = can_edit && known.as_ref().is_some_and(|known| known.message_id.is_none());
        Self {
            // Its end is shown, however long it is.
            body: Body::new(Style { output_chars_max: usize::MAX, ..style }),
            limit,
            pace,
            can_edit,
            known: known.unwrap_or(Known { message_id: None, number: 0, through: 0, posted_at_ms: None }),
            grown: 0,
            shown: 0,
            status_shown: String::new(),
            text_shown: String::new(),
            lines: Vec::new(),
            through: 0,
            flight: None,
            text_at: None,
            status_at: now,
            not_before: now.saturating_add(pace.interval_ms),
            failures: 0,
            is_post_unsure,
            asking: BTreeSet::new(),
            lost: 0,
            ending: None,
            is_off: false,
        }
    }

    /// From now on it changes this often.
    pub(crate) const fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// What is known of its messages.
    pub(crate) const fn known(&self) -> &Known {
        &self.known
    }

    /// The message was found in the channel.
    pub(crate) fn is_found(&mut self, message_id: String) {
        self.known.message_id = Some(message_id);
    }

    /// Whether the row that ends the run was taken.
    pub(crate) const fn is_over(&self) -> bool {
        self.ending.is_some()
    }

    /// Takes the next journal row of the run, in order.
    pub(crate) fn push(&mut self, now: u64, row: &EventRow) {
        let before = self.body.text().len();
        let status = self.status();
        match row.kind {
            EventKind::Permission => {
                self.asking.insert(question(row));
            }
            EventKind::PermissionSettled => {
                self.asking.remove(&question(row));
            }
            EventKind::Error => self.ending = Some("Failed"),
            EventKind::Done => {
                let payload: Value = serde_json::from_str(&row.payload).unwrap_or(Value::Null);
                let is_cancelled = payload["stop_reason"] == "cancelled";
                self.ending = Some(if is_cancelled { "Cancelled" } else { "Done" });
            }
            _ => {
                let line = self.body.add(row.kind, &row.payload);
                self.lines.extend(line.filter(|_| !self.can_edit && row.session_seq > self.known.through));
            }
        }
        self.through = self.through.max(row.session_seq);
        let added = self.body.text().len().saturating_sub(before);
        self.grown += added as u64;
        if self.body.text().len() > KEPT_BYTES.1 {
            self.body.keep_end(KEPT_BYTES.0);
        }
        if added > 0 {
            self.text_at = Some(now);
        }
        if status == self.status_shown && self.status() != status {
            self.status_at = now;
        }
    }

    /// When [`Card::act`] gives something next; `None` when that waits for more of the run.
    pub(crate) fn due_at(&self) -> Option<u64> {
        if self.is_off || self.flight.is_some() {
            return None;
        }
        let idle_at = |since: u64| since.saturating_add(self.pace.idle_ms);
        if !self.can_edit {
            let is_due = !self.lines.is_empty();
            return is_due.then(|| self.not_before.max(idle_at(self.text_at.unwrap_or(0))));
        }
        if self.soon_end().is_some() {
            return Some(self.not_before);
        }
        let text = self.text_at.filter(|_| self.idle_end().is_some()).map(idle_at);
        let is_other = self.status() != self.status_shown || self.is_post_unsure;
        let status = is_other.then(|| idle_at(self.status_at));
        text.into_iter().chain(status).min().map(|at| at.max(self.not_before))
    }

    /// What is to be done now. Nothing more comes until what came of it is told to [`Card::came`].
    pub(crate) fn act(&mut self, now: u64) -> Option<Act> {
        if self.due_at()? > now {
            return None;
        }
        let flight = if self.can_edit { self.rendered(now) } else { self.listed() };
        if self.can_edit && flight.text == self.text_shown && !self.is_post_unsure {
            self.is_shown(now, &flight);
            return None;
        }
        let text = flight.text.clone();
        let act = match self.known.message_id.clone().filter(|_| self.can_edit) {
            Some(message_id) => Act::Edit { message_id, text },
            None => Act::Post { number: self.known.number, text },
        };
        self.flight = Some(Flight { is_post: matches!(act, Act::Post { .. }), ..flight });
        Some(act)
    }

    /// What came of the last [`Act`].
    pub(crate) fn came(&mut self, now: u64, came: Came) {
        let Some(flight) = self.flight.take() else { return };
        match came {
            Came::Shown { message_id } => {
                if self.can_edit {
                    self.known.message_id = Some(message_id);
                } else {
                    self.known.number += 1;
                    self.known.through = flight.through;
                    self.lines.drain(..flight.lines.min(self.lines.len()));
                }
                // A message that was sent before this one may be the one that is there.
                if std::mem::take(&mut self.is_post_unsure) && flight.is_post && self.can_edit {
                    self.not_before = now.saturating_add(self.pace.interval_ms);
                    self.status_shown.clear();
                } else {
                    self.is_shown(now, &flight);
                }
                self.failures = 0;
            }
            Came::Later { after_ms } => {
                self.is_post_unsure |= flight.is_post;
                let wait_ms = self.pace.interval_ms.max(250) << self.failures.min(10);
                self.not_before = now.saturating_add(after_ms.unwrap_or(wait_ms.min(RETRY_LAST_MS)));
                self.failures += 1;
            }
            Came::Gone => {
                self.begin_anew();
                self.lost += 1;
                self.is_off = self.lost >= CARDS_MAX;
                self.not_before = now.saturating_add(self.pace.interval_ms);
            }
            Came::Never => self.is_off = true,
        }
    }

    /// The message was sent at this time.
    pub(crate) const fn posted(&mut self, at_ms: u64) {
        self.known.posted_at_ms = Some(at_ms);
    }

    /// From now on it goes on in another message, where one can be changed for so long only and that is over. What is
    /// done with the old one.
    pub(crate) fn rotate(&mut self, now_ms: u64, edits_until_ms: Option<u64>) -> Option<Act> {
        let age_ms = now_ms.saturating_sub(self.known.posted_at_ms?);
        if self.flight.is_some() || self.is_over() || age_ms < edits_until_ms? {
            return None;
        }
        let message_id = self.known.message_id.clone().filter(|_| self.can_edit)?;
        self.begin_anew();
        let text = self.with_tools("This goes on below");
        Some(Act::Edit { message_id, text: first(&text, self.limit) })
    }

    fn begin_anew(&mut self) {
        self.known.message_id = None;
        self.known.posted_at_ms = None;
        self.known.number += 1;
        self.status_shown.clear();
        self.text_shown.clear();
    }

    /// Whether the agent works and waits for nobody.
    pub(crate) fn is_working(&self) -> bool {
        self.asking.is_empty() && self.ending.is_none()
    }

    /// What is done with it once the run has ended and its answer stands below.
    pub(crate) fn fold(&self) -> Option<Act> {
        let message_id = self.known.message_id.clone().filter(|_| self.can_edit)?;
        let text = self.with_tools(self.ending.unwrap_or("Not followed any more"));
        Some(Act::Edit { message_id, text: first(&text, self.limit) })
    }

    fn is_shown(&mut self, now: u64, flight: &Flight) {
        self.shown = flight.upto;
        self.status_shown.clone_from(&flight.status);
        self.text_shown.clone_from(&flight.text);
        let interval_ms =
            if self.can_edit { self.pace.interval_ms } else { self.pace.interval_ms.max(UNEDITED_MS) };
        self.not_before = now.saturating_add(interval_ms);
        if self.shown == self.grown {
            self.text_at = None;
        }
    }

    /// The card with everything that may be shown of it now.
    fn rendered(&self, now: u64) -> Flight {
        let text = self.body.text();
        let is_idle = self.text_at.is_some_and(|at| now >= at.saturating_add(self.pace.idle_ms));
        let idle_end = if is_idle { self.idle_end() } else { None };
        let end = self.soon_end().max(idle_end).unwrap_or(text.len() - self.pending());
        let status = self.status();
        let head = format!("{status}\n\n");
        let shown = text.get(..end).unwrap_or_default();
        let rest =
            self.limit.less(&head).map(|limit| tail(shown, limit)).filter(|rest| !rest.trim().is_empty());
        let whole = match rest {
            Some(rest) => head + rest.trim_end(),
            None => first(&status, self.limit),
        };
        let held = (text.len() - end) as u64;
        Flight {
            upto: self.grown - held,
            status,
            text: whole,
            lines: 0,
            through: self.through,
            is_post: false,
        }
    }

    /// The lines that are not shown yet.
    fn listed(&self) -> Flight {
        Flight {
            upto: self.grown,
            status: String::new(),
            text: tail(&self.lines.join("\n"), self.limit),
            lines: self.lines.len(),
            through: self.through,
            is_post: true,
        }
    }

    fn status(&self) -> String {
        self.with_tools(if self.asking.is_empty() { "Working" } else { "Waiting for a permission" })
    }

    fn with_tools(&self, word: &str) -> String {
        match self.body.summary() {
            Some(summary) => format!("{word}: {summary}"),
            None => word.to_owned(),
        }
    }

    /// How much of the body is not shown, in bytes at its end.
    fn pending(&self) -> usize {
        let pending = usize::try_from(self.grown - self.shown).unwrap_or(usize::MAX);
        pending.min(self.body.text().len())
    }

    /// Up to where it may be shown although more may come at once: the end of a sentence or of a line, or a space
    /// when there is much.
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

    /// Up to where it may be shown when nothing more comes for a while.
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

/// Which question a row is about.
fn question(row: &EventRow) -> String {
    let payload: Value = serde_json::from_str(&row.payload).unwrap_or(Value::Null);
    payload["permission_id"].as_str().unwrap_or_default().to_owned()
}

fn last_space(text: &str) -> Option<usize> {
    text.char_indices().rev().find(|(_, c)| c.is_whitespace()).map(|(at, c)| at + c.len_utf8())
}

/// As much of `text` as one message holds.
fn first(text: &str, limit: Limit) -> String {
    split::first(text, limit).unwrap_or_default()
}

#[cfg(test)]
mod tests;
