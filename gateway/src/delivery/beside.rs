//! What is done beside the messages that are owed, as well as it can be: buttons that mean nothing any more go, and the
//! person's own message shows what became of it.

use super::pass::Pass;
use crate::channel::{Channel, EditOutcome, Outgoing, Signal};
use crate::core::project::{Part, PartKind};
use crate::core::rows::BindingRow;
use crate::core::run::RunState;
use crate::core::split::tail;
use crate::store::buttons::{self, ButtonMessage};
use crate::store::{StoreError, inbox};
use std::time::Duration;

/// The longest that one of these may take, in milliseconds.
const BESIDE_MS: u64 = 5_000;

impl Pass {
    /// Looks which messages are over, and amends them: see [`Pass::amend`].
    pub(super) async fn tidy(&self, binding: &BindingRow, channel: &dyn Channel) -> Result<bool, StoreError> {
        let (at, key) = (binding.conversation.clone(), binding.session_key.clone());
        let over = self.store.read("delivery_over", move |db| buttons::over(db, &at, &key)).await?;
        let mut is_done = true;
        for message in over {
            is_done &= self.amend(binding, channel, message).await?;
        }
        Ok(is_done)
    }

    /// The same before what is owed, which waits for it: not beyond the first one that cannot be amended just now.
    pub(super) async fn amend_some(
        &self,
        binding: &BindingRow,
        channel: &dyn Channel,
        over: Vec<ButtonMessage>,
    ) -> Result<(), StoreError> {
        for message in over {
            if !self.amend(binding, channel, message).await? {
                break;
            }
        }
        Ok(())
    }

    /// Takes the buttons from a message that is over, and says in it what became of it. Whether it says it now.
    async fn amend(
        &self,
        binding: &BindingRow,
        channel: &dyn Channel,
        message: ButtonMessage,
    ) -> Result<bool, StoreError> {
        let ButtonMessage { message_id, kind, text } = message;
        // What became of it stands at its end.
        let limit = channel.limit();
        let text = if limit.fits(&text) { text } else { tail(&text, limit) };
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
        let at = &binding.conversation;
        let edit = async {
            if !channel.can_edit() {
                return Some(true);
            }
            let edited = channel.edit(at, &message_id, &message);
            match tokio::time::timeout(Duration::from_millis(BESIDE_MS), edited).await {
                Ok(EditOutcome::Edited | EditOutcome::Gone { .. }) => Some(true),
                // That it was not even asked says nothing of the message.
                Ok(EditOutcome::Limited { .. }) => None,
                Ok(EditOutcome::Failed { .. }) | Err(_) => Some(false),
            }
        };
        let done = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Ok(false),
            done = edit => done,
        };
        let Some(done) = done else { return Ok(false) };
        let (at, id) = (at.clone(), message_id.clone());
        let tried = move |tx: &crate::store::Tx<'_>| buttons::tried(tx, &at, &id, done);
        self.store.write("delivery_buttons", tried).await?;
        Ok(done)
    }

    /// The answer of a run stands in the conversation: the message that asked for it shows that.
    pub(super) async fn show_end(&self, binding: &BindingRow, part: &Part) -> Result<(), StoreError> {
        let Some(run_id) = part.run_id.filter(|_| part.kind == PartKind::Final) else { return Ok(()) };
        let Ok(channel) = self.channels.get(&binding.conversation) else { return Ok(()) };
        if !channel.can_signal() {
            return Ok(());
        }
        let at = binding.conversation.clone();
        let found = self.store.read("run_asked", move |db| inbox::of_run(db, &at, run_id)).await?;
        let signal = match found {
            Some((message_id, RunState::Failed)) => Signal::Failed { message_id },
            Some((message_id, _)) => Signal::Done { message_id },
            None => return Ok(()),
        };
        self.give(binding, signal);
        Ok(())
    }

    /// Gives a signal, and waits for nothing.
    pub(super) fn give(&self, binding: &BindingRow, signal: Signal) {
        let Ok(channel) = self.channels.get(&binding.conversation) else { return };
        if !channel.can_signal() {
            return;
        }
        let at = binding.conversation.clone();
        tokio::spawn(async move {
            drop(tokio::time::timeout(Duration::from_millis(BESIDE_MS), channel.signal(&at, &signal)).await);
        });
    }
}
