//! Best-effort side effects of delivery: removes obsolete buttons, and shows a run's result on the user's
//! message.

use crate::channel::{ChannelAdapter, EditOutcome, Outgoing, Signal};
use crate::conversation::delivery::worker::DeliveryWorker;
use acp_core::message_split::last_part;
use acp_core::render::{MessagePart, PartKind};
use acp_core::rows::{BindingRow, ConversationRef};
use acp_core::run::RunState;
use acp_store::interactive_messages::{self, ButtonMessage};
use acp_store::{StoreError, inbox};
use std::ops::ControlFlow;
use std::time::Duration;

/// Maximum duration of one side effect, in milliseconds.
const SIDE_EFFECT_TIMEOUT_MS: u64 = 5_000;

/// Maximum number of attempts to amend a message whose buttons are obsolete. After that the buttons remain, and
/// a click on one answers that it is over.
const BUTTON_ATTEMPTS_MAX: u32 = 3;
/// First pause between these attempts, as a multiple of the first retry delay; doubled each time.
const BUTTON_PAUSE_FACTOR: u64 = 4;

impl DeliveryWorker {
    /// Amends the messages with obsolete buttons: removes the buttons and adds the result to the text. Stops
    /// after a message that could not be amended, so that pending parts wait for one message at most.
    pub(super) async fn update_stale_buttons(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        over: Vec<ButtonMessage>,
    ) -> Result<(), StoreError> {
        for message in over {
            if self.update_stale_message(binding, channel, message).await?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Amends one message, in a few attempts. A message that cannot be amended is given up; at shutdown it is
    /// left to the next process.
    async fn update_stale_message(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        over: ButtonMessage,
    ) -> Result<ControlFlow<()>, StoreError> {
        let ButtonMessage { message_id, kind, text } = over;
        // The result is at the end of the text.
        let limit = channel.properties().limit;
        let text = if limit.fits(&text) { text } else { last_part(&text, limit) };
        let message = Outgoing {
            kind,
            text,
            nonce: String::new(),
            session_key: Some(binding.session_key.clone()),
            run_id: None,
            actions: Vec::new(),
            not_before_ms: None,
            others: Vec::new(),
            tag: None,
            persona: None,
            files: Vec::new(),
        };
        let at = binding.conversation.clone();
        let is_done = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(ControlFlow::Break(())),
            is_done = self.amend(channel, &at, &message_id, &message) => is_done,
        };
        let remove = move |tx: &acp_store::Tx<'_>| interactive_messages::remove(tx, &at, &message_id);
        self.store.write("delivery_buttons", remove).await?;
        Ok(if is_done { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }

    /// Edits a message. Returns false if it was given up.
    async fn amend(
        &self,
        channel: &dyn ChannelAdapter,
        at: &ConversationRef,
        message_id: &str,
        message: &Outgoing,
    ) -> bool {
        if !channel.properties().can_edit {
            return true;
        }
        let mut pause_ms = self.retry_first_ms * BUTTON_PAUSE_FACTOR;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let edited = channel.edit(at, message_id, message);
            let why = match tokio::time::timeout(Duration::from_millis(SIDE_EFFECT_TIMEOUT_MS), edited).await
            {
                Ok(EditOutcome::Edited | EditOutcome::Gone { .. }) => return true,
                Ok(EditOutcome::Refused { why }) => {
                    attempts = BUTTON_ATTEMPTS_MAX;
                    why
                }
                Ok(EditOutcome::Limited { retry_after_ms }) => {
                    pause_ms = pause_ms.max(retry_after_ms);
                    "rate limited".to_owned()
                }
                Ok(EditOutcome::Failed { why }) => why,
                Err(_) => "timed out".to_owned(),
            };
            if attempts >= BUTTON_ATTEMPTS_MAX {
                tracing::warn!(message_id, why, "removing obsolete buttons given up");
                return false;
            }
            self.pause(pause_ms).await;
            pause_ms *= 2;
        }
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
        let at = binding.conversation.clone();
        let found = self.store.read("run_asked", move |db| inbox::of_run(db, &at, run_id)).await?;
        let signal = match found {
            Some((message_id, RunState::Failed)) => Signal::Failed { message_id },
            Some((message_id, _)) => Signal::Done { message_id },
            None => return Ok(()),
        };
        self.send_signal(binding, signal);
        Ok(())
    }

    /// Sends a reaction or typing indicator without waiting for the result.
    pub(super) fn send_signal(&self, binding: &BindingRow, signal: Signal) {
        let Ok(channel) = self.channels.get(&binding.conversation) else { return };
        if !channel.properties().can_signal {
            return;
        }
        let at = binding.conversation.clone();
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
