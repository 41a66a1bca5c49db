//! Best-effort side effects of delivery: removes obsolete buttons, and shows a run's result on the user's
//! message.

use crate::channel::{ChannelAdapter, EditOutcome, Outgoing, Signal};
use crate::conversation::delivery::worker::DeliveryWorker;
use acp_core::message_split::last_part;
use acp_core::render::{MessagePart, PartKind};
use acp_core::rows::BindingRow;
use acp_core::run::RunState;
use acp_store::interactive_messages::{self, ButtonMessage};
use acp_store::{StoreError, inbox};
use std::time::Duration;

/// Maximum duration of one side effect, in milliseconds.
const SIDE_EFFECT_TIMEOUT_MS: u64 = 5_000;

/// Result of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EditResult {
    /// The message is as it should be, or does not exist.
    Done,
    /// Unknown.
    Unknown,
    /// The edit is permanently impossible.
    Never,
}

/// Result of updating a message whose buttons are obsolete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ButtonUpdateResult {
    /// The message shows the result, or nothing can be done.
    Done,
    /// A separate pending message shows the result.
    SentSeparately,
    /// To be retried.
    Retry,
}

/// Result of a pass over the messages with obsolete buttons.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ButtonCleanup {
    /// True if a message needs a retry.
    pub(super) needs_retry: bool,
    /// True if a separate message became pending instead of an edit.
    pub(super) has_pending: bool,
}

impl DeliveryWorker {
    /// Updates all messages with obsolete buttons: see [`DeliveryWorker::update_stale_message`].
    pub(super) async fn update_stale_buttons(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
    ) -> Result<ButtonCleanup, StoreError> {
        let (at, key) = (binding.conversation.clone(), binding.session_key.clone());
        let is_markdown = channel.properties().renders_markdown;
        let over = move |db: &_| interactive_messages::settled_messages(db, &at, &key, is_markdown);
        let over = self.store.read("delivery_over", over).await?;
        let mut cleanup = ButtonCleanup::default();
        for message in over {
            match self.update_stale_message(binding, channel, message).await? {
                ButtonUpdateResult::Done => {}
                ButtonUpdateResult::SentSeparately => cleanup.has_pending = true,
                ButtonUpdateResult::Retry => cleanup.needs_retry = true,
            }
        }
        Ok(cleanup)
    }

    /// Like `update_stale_buttons`, before pending parts are sent, which wait for it: stops at the first
    /// message that needs a retry. Returns true if a separate message became pending.
    pub(super) async fn update_stale_buttons_before_send(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        over: Vec<ButtonMessage>,
    ) -> Result<bool, StoreError> {
        let mut has_pending = false;
        for message in over {
            match self.update_stale_message(binding, channel, message).await? {
                ButtonUpdateResult::Done => {}
                ButtonUpdateResult::SentSeparately => has_pending = true,
                ButtonUpdateResult::Retry => break,
            }
        }
        Ok(has_pending)
    }

    /// Removes the buttons of a message and adds the result to its text; if the message can never be edited,
    /// a separate message shows the result.
    async fn update_stale_message(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        over: ButtonMessage,
    ) -> Result<ButtonUpdateResult, StoreError> {
        let ButtonMessage { message_id, kind, text } = over.clone();
        // The result is at the end of the text.
        let limit = channel.properties().limit;
        let text = if limit.fits(&text) { text } else { last_part(&text, limit) };
        let message =
            Outgoing { kind, text, session_key: Some(binding.session_key.clone()), ..Outgoing::default() };
        let at = &binding.conversation;
        let edit = async {
            if !channel.properties().can_edit {
                return Some(EditResult::Done);
            }
            let edited = channel.edit(at, &message_id, &message);
            match tokio::time::timeout(Duration::from_millis(SIDE_EFFECT_TIMEOUT_MS), edited).await {
                Ok(EditOutcome::Edited | EditOutcome::Gone { .. }) => Some(EditResult::Done),
                // A rate limit says nothing about the message.
                Ok(EditOutcome::Limited { .. }) => None,
                Ok(EditOutcome::Refused { why }) => {
                    tracing::warn!(message_id, why, "removing obsolete buttons refused");
                    Some(EditResult::Never)
                }
                Ok(EditOutcome::Failed { .. }) | Err(_) => Some(EditResult::Unknown),
            }
        };
        let done = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(ButtonUpdateResult::Retry),
            done = edit => done,
        };
        let Some(done) = done else { return Ok(ButtonUpdateResult::Retry) };
        let binding = binding.clone();
        let tried = move |tx: &acp_store::Tx<'_>| match done {
            EditResult::Never => Ok(if interactive_messages::plan_result_notice(tx, &binding, &over)? {
                ButtonUpdateResult::SentSeparately
            } else {
                ButtonUpdateResult::Done
            }),
            EditResult::Done | EditResult::Unknown => {
                let is_done = done == EditResult::Done;
                interactive_messages::record_attempt(tx, &binding.conversation, &over.message_id, is_done)?;
                Ok(if is_done { ButtonUpdateResult::Done } else { ButtonUpdateResult::Retry })
            }
        };
        self.store.write("delivery_buttons", tried).await
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
