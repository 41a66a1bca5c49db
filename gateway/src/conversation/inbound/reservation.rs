//! Reservations: an interaction (slash command, click) is committed before it is acknowledged. Its adapter
//! then sends the response. If the adapter cannot (a kill, an acknowledgement that may be lost), the gateway
//! executes the interaction anyway and reports it in the conversation.

use super::{InboundService, Inner, queue_key, validate};
use crate::channel::{PartKind, PostedReply, ReplyReservation, ReserveOutcome};
use acp_core::command;
use acp_core::command::{ChatCommand, SessionAction};
use acp_core::error_messages;
use acp_core::failure::Failure;
use acp_core::permission::{NOT_PENDING, parse_permission_id};
use acp_core::render::quote_name;
use acp_core::rows::ConversationRef;
use acp_store::inbox::{self, Inbound, Outcome};
use acp_store::interactive_messages::{self, ButtonMessage};
use acp_store::{StoreError, Tx};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum duration of a started commit beyond the caller's patience.
const COMMIT_GRACE: Duration = Duration::from_millis(500);
/// Reason recorded for a withdrawn reservation.
const NOT_ACKNOWLEDGED: &str = "not-acknowledged";

/// Key of a message: its conversation, and the channel's message id.
pub(super) type MessageKey = (ConversationRef, String);

/// Reservations held by adapters.
#[derive(Debug, Default)]
pub(super) struct Reservations(Mutex<HashSet<MessageKey>>);

impl Reservations {
    /// True if an adapter holds a reservation on the message.
    pub(super) fn is_held(&self, inbound: &Inbound) -> bool {
        self.0.lock().contains(&message_key(inbound))
    }

    /// Removes the reservation of a message that is done.
    pub(super) fn release(&self, inbound: &Inbound) {
        self.0.lock().remove(&message_key(inbound));
    }
}

pub(super) fn message_key(inbound: &Inbound) -> MessageKey {
    (queue_key(&inbound.conversation), inbound.message_id.clone())
}

/// Guard of a reservation. When dropped, an interaction that is not complete is left to the gateway.
struct ReservationGuard {
    inner: Arc<Inner>,
    key: MessageKey,
}

impl ReservationGuard {
    /// Reserves the message; `None` if it is reserved already.
    fn of(inner: &Arc<Inner>, inbound: &Inbound) -> Option<Self> {
        let key = message_key(inbound);
        let is_free = inner.reservations.0.lock().insert(key.clone());
        is_free.then(|| Self { inner: Arc::clone(inner), key })
    }
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        if self.inner.reservations.0.lock().remove(&self.key) {
            self.inner.retry_needed.notify_one();
        }
    }
}

/// State of the message's inbox row before the reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReservedRowState {
    New,
    Unsettled,
    Settled,
}

fn insert_reserved(tx: &Tx<'_>, said: &Inbound) -> Result<ReservedRowState, StoreError> {
    let before = inbox::get(tx, &said.conversation, &said.message_id)?;
    if before.is_none() {
        inbox::insert(tx, said)?;
    }
    Ok(before.map_or(ReservedRowState::New, |row| {
        if row.settled { ReservedRowState::Settled } else { ReservedRowState::Unsettled }
    }))
}

impl InboundService {
    /// See [`crate::channel::InboundPort::reserve`].
    pub(super) async fn reserve_interaction(&self, message: Inbound, patience: Duration) -> ReserveOutcome {
        if let Err(failure) = validate(&message) {
            return ReserveOutcome::NotReserved { why: failure.to_string() };
        }
        let Some(hold) = ReservationGuard::of(&self.inner, &message) else {
            return ReserveOutcome::Duplicate;
        };
        // The first swap decides: either the writer writes the row, or after a timeout it is never written.
        let decided = Arc::new(AtomicBool::new(false));
        let (begun, said) = (Arc::clone(&decided), message.clone());
        let insert = move |tx: &Tx<'_>| match begun.swap(true, Ordering::SeqCst) {
            true => Ok(None),
            false => insert_reserved(tx, &said).map(Some),
        };
        let store = self.inner.store.clone();
        let mut write = Box::pin(async move { store.write("inbox_keep", insert).await });
        let mut done = tokio::time::timeout(patience, &mut write).await;
        if done.is_err() && decided.swap(true, Ordering::SeqCst) {
            done = tokio::time::timeout(COMMIT_GRACE, &mut write).await;
            if done.is_err() {
                // The reservation is held until the commit has finished, so that no retry runs before.
                tokio::spawn(async move {
                    drop(write.await);
                    drop(hold);
                });
                return ReserveOutcome::Unknown { why: "its commit takes too long".to_owned() };
            }
        }
        let kept = match done {
            Ok(Ok(Some(ReservedRowState::Settled))) => ReserveOutcome::Duplicate,
            Ok(Ok(Some(row))) => {
                return ReserveOutcome::Reserved(ReplyReservation {
                    is_new: row == ReservedRowState::New,
                    _held: Box::new(hold),
                });
            }
            Ok(Err(error @ StoreError::OutcomeUnknown)) => ReserveOutcome::Unknown { why: error.to_string() },
            Ok(Err(error)) => ReserveOutcome::NotReserved { why: error.to_string() },
            Ok(Ok(None)) | Err(_) => ReserveOutcome::NotReserved { why: "its database is busy".to_owned() },
        };
        self.inner.reservations.release(&message);
        kept
    }

    /// See [`crate::channel::InboundPort::withdraw`]. Runs in the conversation queue, after a message in
    /// progress.
    pub(super) async fn withdraw_interaction(&self, message: Inbound) -> bool {
        let said = message.clone();
        let ignored = Outcome::Ignored { reason: NOT_ACKNOWLEDGED.to_owned() };
        let withdraw = move |tx: &Tx<'_>| inbox::withdraw(tx, &said, &ignored);
        let write = self.inner.store.write("inbox_withdraw", withdraw);
        match self.inner.in_order(&message.conversation, write).await {
            Ok(is_so) => {
                self.inner.reservations.release(&message);
                is_so
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    message_id = message.message_id,
                    "withdrawing unacknowledged interaction failed"
                );
                false
            }
        }
    }

    /// See [`crate::channel::InboundPort::mark_replied`].
    pub(super) async fn record_caller_reply(&self, message: Inbound, answer: Option<PostedReply>) -> bool {
        let said = message.clone();
        let settle = move |tx: &Tx<'_>| {
            let row = inbox::get(tx, &said.conversation, &said.message_id)?;
            let Some(outcome) = row.and_then(|row| row.outcome) else { return Ok(false) };
            let asks = outcome.asks().zip(outcome.prompted());
            if let (Some(PostedReply { message_id, text }), Some((asks, session))) = (answer.clone(), asks) {
                let shown = ButtonMessage { message_id, kind: PartKind::Notice, text };
                interactive_messages::insert_message(tx, &said.conversation, session, &shown, &asks.about)?;
            }
            inbox::settle(tx, &said, &outcome)?;
            Ok(true)
        };
        match self.inner.store.write("inbox_told", settle).await {
            Ok(is_settled) => {
                if is_settled {
                    self.inner.reservations.release(&message);
                }
                true
            }
            Err(error) => {
                tracing::warn!(%error, message_id = message.message_id, "recording interaction reply failed");
                false
            }
        }
    }
}

impl Inner {
    /// True if the message's adapter sends the response and still holds the reservation.
    pub(super) fn is_reply_by_caller(&self, inbound: &Inbound) -> bool {
        inbound.answer == inbox::ReplyRoute::ByCaller && self.reservations.is_held(inbound)
    }
}

/// Builds the text for a conversation about an interaction whose response may not have been delivered.
/// `caller_tells` is true if the interaction was executed in time and only its response may be missing. A
/// private response is not repeated. `is_markdown`: the conversation renders Markdown.
pub(super) fn late_reply_text(
    inbound: &Inbound,
    outcome: &Outcome,
    caller_tells: bool,
    is_markdown: bool,
) -> String {
    let command = command::parse(&inbound.text);
    let words: Vec<&str> = inbound.text.split_whitespace().take(2).collect();
    let is_refused = matches!(outcome, Outcome::Refused { .. });
    let became = match (caller_tells, is_refused) {
        (false, false) => "was executed late",
        (false, true) => "could not be executed",
        (true, false) => "was executed, but its reply may not have been delivered",
        (true, true) => "could not be executed, and its reply may not have been delivered",
    };
    let what = format!("`{}` of {} {became}", words.join(" "), quote_name(&inbound.author, is_markdown));
    let is_private = command.as_ref().is_some_and(ChatCommand::is_private);
    let changes = matches!(&command, Some(ChatCommand::On { act, .. }) if act.changes());
    let said = outcome.text();
    match outcome {
        Outcome::Ignored { .. } => String::new(),
        Outcome::Refused { failure, .. } if is_private => {
            // What happened is private; the next step is the same for everybody.
            let over = answer_too_late_text(command.as_ref(), failure).unwrap_or_default();
            format!("{what}{over}. Next: {}", error_messages::next_step(failure))
        }
        Outcome::Refused { .. } => format!("{what}: {said}"),
        _ if is_private && !changes => format!("{what}. Its reply is private: use the command again."),
        _ if is_private || said.is_empty() => format!("{what}."),
        _ => format!("{what}: {said}"),
    }
}

/// Returns why repeating an answer to a permission request is useless: a click names its request, which is
/// settled; a typed answer may have matched none or several.
fn answer_too_late_text(command: Option<&ChatCommand>, failure: &Failure) -> Option<&'static str> {
    let Some(ChatCommand::On { act: SessionAction::Answer(args), .. }) = command else { return None };
    let is_one = args.permission.as_deref().is_some_and(|id| parse_permission_id(id).is_some());
    let text = if is_one {
        ": its permission request is settled"
    } else {
        ": it matched no single pending permission request"
    };
    (failure.detail_code.as_deref() == Some(NOT_PENDING)).then_some(text)
}
