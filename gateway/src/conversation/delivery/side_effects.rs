//! Best-effort side effects of delivery: removes obsolete buttons, and shows a run's result on the user's
//! message.

use crate::channel::{ChannelAdapter, EditOutcome, Outgoing, Signal};
use crate::conversation::delivery::worker::DeliveryWorker;
use acp_core::binding::ConversationOrigin;
use acp_core::message_split::last_part;
use acp_core::render::{MessagePart, PartKind};
use acp_core::rows::{BindingRow, ConversationRef};
use acp_core::run::RunState;
use acp_store::interactive_messages::{self, ButtonMessage};
use acp_store::{StoreError, inbox};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum duration of one side effect, in milliseconds.
const SIDE_EFFECT_TIMEOUT_MS: u64 = 5_000;

/// Maximum number of failed attempts to amend a message whose buttons are obsolete. After that the buttons
/// remain, and a click on one answers that it is too late.
const BUTTON_ATTEMPTS_MAX: u32 = 3;
/// Pause after the first failed attempt, in milliseconds; four times as long after the next one.
const BUTTON_PAUSE_MS: u64 = 2_000;
/// Maximum pause that a rate limit can demand, in milliseconds.
const BUTTON_PAUSE_MS_MAX: u64 = 60_000;
/// Time after which failed attempts are forgotten, in milliseconds; their message may be gone.
const BUTTON_FORGET_MS: u64 = 3_600_000;

/// Message with obsolete buttons.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ButtonMessageKey {
    conversation: ConversationRef,
    message_id: String,
}

/// Failed attempts on one message.
#[derive(Debug)]
struct FailedAttempts {
    count: u32,
    /// Time from which the message may be tried again.
    next: Instant,
}

/// Failed attempts to amend messages with obsolete buttons. Kept in memory only: a new process makes three
/// attempts again.
#[derive(Debug, Clone, Default)]
pub(super) struct ButtonAttempts(Arc<Mutex<HashMap<ButtonMessageKey, FailedAttempts>>>);

impl ButtonAttempts {
    /// True if another attempt is due for a message. Forgets messages that were not tried for long.
    pub(super) fn is_any_due(&self) -> bool {
        let (now, kept) = (Instant::now(), Duration::from_millis(BUTTON_FORGET_MS));
        let mut all = self.0.lock();
        all.retain(|_, failed| now < failed.next + kept);
        all.values().any(|failed| failed.next <= now)
    }

    fn is_due(&self, message: &ButtonMessageKey) -> bool {
        self.0.lock().get(message).is_none_or(|failed| failed.next <= Instant::now())
    }

    /// Records a failed attempt. Returns false if it was the last one.
    fn record_failure(&self, message: ButtonMessageKey) -> bool {
        let mut all = self.0.lock();
        let count = all.get(&message).map_or(0, |failed| failed.count) + 1;
        let pause = Duration::from_millis(BUTTON_PAUSE_MS << (2 * (count - 1)).min(8));
        all.insert(message, FailedAttempts { count, next: Instant::now() + pause });
        count < BUTTON_ATTEMPTS_MAX
    }

    /// Delays the next attempt. A rate limit says nothing about the message, so it is not counted.
    fn record_limit(&self, message: ButtonMessageKey, retry_after_ms: u64) {
        let pause = Duration::from_millis(retry_after_ms.clamp(BUTTON_PAUSE_MS, BUTTON_PAUSE_MS_MAX));
        let mut all = self.0.lock();
        let count = all.get(&message).map_or(0, |failed| failed.count);
        all.insert(message, FailedAttempts { count, next: Instant::now() + pause });
    }

    fn remove(&self, message: &ButtonMessageKey) {
        self.0.lock().remove(message);
    }
}

impl DeliveryWorker {
    /// Amends the messages with obsolete buttons: removes the buttons and adds the result to the text. Makes
    /// one attempt for each message that is due, and stops after a failed one: the rest waits for the next
    /// pass, and output waits for one attempt at most.
    pub(super) async fn update_stale_buttons(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        over: Vec<ButtonMessage>,
    ) -> Result<(), StoreError> {
        for message in over {
            let conversation = binding.conversation.clone();
            let key = ButtonMessageKey { conversation, message_id: message.message_id.clone() };
            if !self.button_attempts.is_due(&key) {
                continue;
            }
            let outcome = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                outcome = self.amend(binding, channel, message) => outcome,
            };
            let (is_over, is_failure) = match outcome {
                EditOutcome::Edited | EditOutcome::Gone { .. } => (true, false),
                EditOutcome::Refused { why } => {
                    tracing::warn!(message_id = key.message_id, why, "removing obsolete buttons refused");
                    (true, true)
                }
                EditOutcome::Limited { retry_after_ms } => {
                    self.button_attempts.record_limit(key.clone(), retry_after_ms);
                    (false, true)
                }
                EditOutcome::Failed { why } => {
                    let is_last = !self.button_attempts.record_failure(key.clone());
                    if is_last {
                        tracing::warn!(
                            message_id = key.message_id,
                            why,
                            "removing obsolete buttons given up"
                        );
                    }
                    (is_last, true)
                }
            };
            if is_over {
                let ButtonMessageKey { conversation, message_id } = key.clone();
                let remove = move |tx: &acp_store::Tx<'_>| {
                    interactive_messages::remove(tx, &conversation, &message_id)
                };
                self.store.write("delivery_buttons", remove).await?;
                self.button_attempts.remove(&key);
            }
            if is_failure {
                break;
            }
        }
        Ok(())
    }

    /// Makes one attempt to amend a message.
    async fn amend(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        over: ButtonMessage,
    ) -> EditOutcome {
        if !channel.properties().can_edit {
            return EditOutcome::Edited;
        }
        let ButtonMessage { message_id, kind, text } = over;
        // The result is at the end of the text.
        let limit = channel.properties().limit;
        let text = if limit.fits(&text) { text } else { last_part(&text, limit) };
        let session_key = Some(binding.session_key.clone());
        let message = Outgoing { kind, text, session_key, ..Outgoing::default() };
        let edit = channel.edit(&binding.conversation, &message_id, &message);
        let timeout = Duration::from_millis(SIDE_EFFECT_TIMEOUT_MS);
        let timed_out = |_| EditOutcome::Failed { why: "timed out".to_owned() };
        tokio::time::timeout(timeout, edit).await.unwrap_or_else(timed_out)
    }

    /// Shows the end of a run on the message that requested it, once the answer is sent.
    pub(super) async fn signal_run_result(
        &self,
        binding: &BindingRow,
        part: &MessagePart,
    ) -> Result<(), StoreError> {
        let Some(run_id) = part.run_id.filter(|_| part.kind == PartKind::Final) else { return Ok(()) };
        let Ok(channel) = self.channels.get(&binding.conversation) else { return Ok(()) };
        if !channel.properties().can_signal {
            return Ok(());
        }
        // The message that opened the conversation of a binding is in the one above.
        let origin =
            ConversationOrigin::from_metadata(&binding.metadata).and_then(|_| binding.conversation.parent());
        for at in std::iter::once(binding.conversation.clone()).chain(origin) {
            let place = at.clone();
            let found = self.store.read("run_asked", move |db| inbox::of_run(db, &place, run_id)).await?;
            let signal = match found {
                Some((message_id, RunState::Failed)) => Signal::Failed { message_id },
                Some((message_id, _)) => Signal::Done { message_id },
                None => continue,
            };
            self.send_signal_to(at, signal);
            break;
        }
        Ok(())
    }

    /// Sends a reaction or typing indicator without waiting for the result.
    pub(super) fn send_signal(&self, binding: &BindingRow, signal: Signal) {
        self.send_signal_to(binding.conversation.clone(), signal);
    }

    fn send_signal_to(&self, at: ConversationRef, signal: Signal) {
        let Ok(channel) = self.channels.get(&at) else { return };
        if !channel.properties().can_signal {
            return;
        }
        tokio::spawn(async move {
            drop(
                tokio::time::timeout(
                    Duration::from_millis(SIDE_EFFECT_TIMEOUT_MS),
                    channel.signal(&at, &signal),
                )
                .await,
            );
        });
    }
}
