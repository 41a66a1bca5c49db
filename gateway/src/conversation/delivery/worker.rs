//! Delivers one binding: plans, sends and settles journal rows in order.

use crate::channel::{ChannelAdapter, Channels, Outgoing, SendOutcome};
use crate::config::LiveConfig;
use crate::conversation::delivery::WorkerExit;
use crate::conversation::delivery::attachments;
use crate::conversation::delivery::retry::RetryState;
use crate::conversation::delivery::side_effects::ButtonAttempts;
use crate::conversation::delivery::status_card::StatusCardUpdater;
use crate::metrics::Metrics;
use acp_core::card::UpdateRate;
use acp_core::config::DeliveryMode;
use acp_core::event::EventKind;
use acp_core::policy::PolicyScope;
use acp_core::render::{self, ChannelFeatures, MessagePart, Style, StyleHistory};
use acp_core::rows::{BindingRow, BindingStatus, Verbosity};
use acp_store::checkpoints;
use acp_store::command_replies;
use acp_store::delivery::{self as rows, DeliveryBatch, DueBinding, PartRow, PartState};
use acp_store::interactive_messages;
use acp_store::render_settings;
use acp_store::runs;
use acp_store::sent_messages;
use acp_store::{Store, StoreError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Maximum number of consecutive attempts with an unknown result; then the part becomes `uncertain`, a notice
/// reports the uncertainty, and the next part is sent. Attempts that certainly failed (rate limit, refusal)
/// are retried without limit.
const UNCERTAIN_ATTEMPTS_MAX: u64 = 8;
/// Number of rows without output after which the checkpoint is advanced anyway.
const SILENT_ROWS_MAX: u64 = 1_000;

/// Delay before a retry after an error that needs a repair of the database, in milliseconds.
const UNREADABLE_MS: u64 = 60_000;

/// Next step after a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextStep {
    /// Send the next part.
    Next,
    /// Read the planned parts again: a notice was planned, which goes first.
    Reload,
    /// Stop for now: shutdown, or a person archived the conversation.
    Stop,
}

/// Rendering of a conversation.
pub(super) struct RenderConfig {
    /// Style of messages.
    pub(super) style: Style,
    /// Style of cards.
    pub(super) of_card: Style,
    /// Update interval of cards; `None` without cards.
    pub(super) pace: Option<UpdateRate>,
}

/// Delivery of one binding.
#[derive(Clone)]
pub(super) struct DeliveryWorker {
    pub(super) store: Store,
    pub(super) channels: Channels,
    pub(super) live: LiveConfig,
    pub(super) metrics: Metrics,
    pub(super) stop: CancellationToken,
    /// First retry delay after a failed attempt, in milliseconds; doubled each time.
    pub(super) retry_first_ms: u64,
    /// Shared by all bindings.
    pub(super) button_attempts: ButtonAttempts,
}

impl DeliveryWorker {
    /// Delivers pending rows of a binding, and updates the status card of its running turn.
    pub(super) async fn run(&self, due: DueBinding, mut cursor: Option<u64>) -> WorkerExit {
        let binding = due.binding;
        let channel = match self.channels.get(&binding.conversation) {
            Ok(channel) => channel,
            Err(error) => {
                self.metrics.route("outbound", "refused", "adapter-unavailable");
                tracing::warn!(
                    session_key = %binding.session_key,
                    %error,
                    "delivery waits for a channel adapter"
                );
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => {}
                    () = self.channels.wait_registered(&binding.conversation) => {}
                }
                return WorkerExit::Unknown;
            }
        };
        let mut card_updater = StatusCardUpdater::new(self, &binding, channel.as_ref(), cursor.is_none());
        loop {
            match self.deliver_and_update_card(&binding, channel.as_ref(), cursor, &mut card_updater).await {
                Ok((left, goes_on)) => {
                    self.metrics.blocked_items().clear(&stalled_key(&binding));
                    match left {
                        WorkerExit::At(at) if goes_on => cursor = Some(at),
                        left => return left,
                    }
                }
                Err(error) => {
                    self.report_stalled(&binding, &error).await;
                    return WorkerExit::Unknown;
                }
            }
        }
    }

    /// Reports a failed delivery and waits before the retry. If only a repair of the database helps, the wait
    /// is long and `doctor` names the conversation.
    async fn report_stalled(&self, binding: &BindingRow, error: &StoreError) {
        let (session_key, conversation) = (&binding.session_key, &binding.conversation.conversation_id);
        if error.needs_repair() {
            tracing::error!(
                %session_key,
                conversation,
                %error,
                "delivery blocked until the database is repaired"
            );
            self.metrics.blocked_items().note(stalled_key(binding), error.to_string());
            self.pause(UNREADABLE_MS).await;
        } else {
            tracing::warn!(%session_key, conversation, %error, "delivery failed; retrying");
            self.pause(self.retry_first_ms * 4).await;
        }
    }

    /// Delivers, then updates the card. Returns true if there is something to deliver again.
    async fn deliver_and_update_card(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        cursor: Option<u64>,
        card_updater: &mut StatusCardUpdater<'_>,
    ) -> Result<(WorkerExit, bool), StoreError> {
        let left = self.deliver(binding, channel, cursor).await?;
        let goes_on = match left {
            WorkerExit::At(at) => card_updater.update_card(at).await?,
            WorkerExit::Over => {
                card_updater.close_all_cards().await?;
                false
            }
            WorkerExit::Unknown => false,
        };
        Ok((left, goes_on))
    }

    /// Returns the effective rendering of a conversation.
    pub(super) fn render_config(&self, binding: &BindingRow, channel: &dyn ChannelAdapter) -> RenderConfig {
        let stream = self.live.stream(&PolicyScope::of(Some(&binding.conversation)));
        let properties = channel.properties();
        let style = Style::new(properties.limit, &stream)
            .in_channel(ChannelFeatures {
                buttons: properties.buttons_max,
                markdown: properties.renders_markdown,
                changes: properties.can_edit,
                approvers: channel.approvers(),
            })
            .with_footer(properties.has_footer)
            .with_files(properties.file_bytes_max, &stream.files)
            .with_verbosity(binding.verbosity);
        let (is_live, is_brief) = match binding.verbosity {
            None => (stream.delivery_mode.value == DeliveryMode::Live, false),
            Some(Verbosity::Full) => (true, false),
            Some(Verbosity::Compact) => (true, true),
            Some(Verbosity::None) => (false, false),
        };
        let of_card = if is_brief { style.clone().status_only() } else { style.clone() };
        RenderConfig { style, of_card, pace: is_live.then(|| UpdateRate::of(&stream).with_card_minimum()) }
    }

    /// Records the effective style of a conversation, if it is not the last one of those `known`.
    async fn ensure_style_recorded(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        known: StyleHistory,
    ) -> Result<(), StoreError> {
        let style = self.render_config(binding, channel).style;
        if known.last() == Some(&style) {
            return Ok(());
        }
        let (id, key) = (binding.binding_id, binding.session_key.clone());
        let record = move |tx: &acp_store::Tx<'_>| {
            // A verbosity chosen meanwhile is recorded already and must not be overwritten.
            let chosen = rows::due_of_binding(tx, id)?.map_or(style.verbosity, |now| now.binding.verbosity);
            render_settings::record(tx, id, &key, &style.with_verbosity(chosen)).map(drop)
        };
        self.store.write("delivery_style", record).await
    }

    async fn deliver(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        cursor: Option<u64>,
    ) -> Result<WorkerExit, StoreError> {
        let (id, verbosity) = (binding.binding_id, binding.verbosity);
        let read = move |db: &_| {
            Ok((
                checkpoints::checkpoint(db, id)?,
                render_settings::of(db, id)?,
                rows::due_of_binding(db, id)?,
            ))
        };
        let (saved, known, now) = self.store.read("delivery_checkpoint", read).await?;
        // The verbosity has changed: the next task uses the new one.
        if now.is_some_and(|now| now.binding.verbosity != verbosity) {
            return Ok(WorkerExit::Unknown);
        }
        self.ensure_style_recorded(binding, channel, known).await?;
        let mut cursor = cursor.unwrap_or(saved).max(saved);
        let mut saved = saved;
        loop {
            if !self.send_unsettled(binding, channel).await? {
                return Ok(WorkerExit::Unknown);
            }
            let read = self.store.read("delivery_batch", move |db| {
                let Some(due) = rows::due_of_binding(db, id)? else { return Ok(None) };
                // Archived, or rendered differently from some row on that this task does not know of.
                if due.binding.status == BindingStatus::Parked || due.binding.verbosity != verbosity {
                    return Ok(Some((due, None)));
                }
                // Read each time: the verbosity may have been changed and changed back.
                let styles = render_settings::of(db, id)?;
                let batch = rows::batch(db, &due.binding, &styles, cursor, due.end)?;
                Ok(Some((due, Some((batch, styles)))))
            });
            let Some((due, batch)) = read.await? else { return Ok(WorkerExit::Over) };
            // Delivery resumes here at once, or when a person unarchives the conversation.
            let Some((batch, styles)) = batch else { return Ok(WorkerExit::Unknown) };
            let (last, is_over) = delivery_range(&due, &batch);
            let parts = parts_of(&due.binding, &styles, &batch, last);
            cursor = batch.through;
            let ends_at = due.end;
            if parts.is_empty() {
                if is_over || cursor.saturating_sub(saved) >= SILENT_ROWS_MAX {
                    let through = if is_over { ends_at } else { cursor };
                    self.store
                        .write("delivery_advance", move |tx| checkpoints::advance(tx, id, through, None))
                        .await?;
                    saved = through;
                }
                match (is_over, cursor >= ends_at) {
                    (true, _) => return Ok(WorkerExit::Over),
                    (false, true) => return Ok(WorkerExit::At(cursor)),
                    (false, false) => {}
                }
            } else {
                let binding = due.binding;
                self.store.write("delivery_plan", move |tx| rows::plan_rows(tx, &binding, &parts)).await?;
                if is_over {
                    // The planned parts are sent first; the next read then ends the binding.
                    cursor = ends_at;
                }
            }
        }
    }

    /// Sends the planned parts in order. Returns false if it was stopped.
    async fn send_unsettled(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
    ) -> Result<bool, StoreError> {
        let id = binding.binding_id;
        loop {
            let (at, key) = (binding.conversation.clone(), binding.session_key.clone());
            let is_markdown = channel.properties().renders_markdown;
            let read = self.store.read("delivery_unsettled", move |db| {
                let list = rows::pending_parts(db, id)?;
                let over = if list.is_empty() {
                    interactive_messages::settled_messages(db, &at, &key, is_markdown)?
                } else {
                    Vec::new()
                };
                Ok((list, over))
            });
            let (list, over) = read.await?;
            if list.is_empty() {
                self.update_stale_buttons(binding, channel, over).await?;
                return Ok(true);
            }
            for row in list {
                match self.send_one(binding, channel, row).await? {
                    NextStep::Next => {}
                    NextStep::Reload => break,
                    NextStep::Stop => return Ok(false),
                }
            }
        }
    }

    /// Sends one part until its result is final.
    async fn send_one(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        row: PartRow,
    ) -> Result<NextStep, StoreError> {
        let Some(message) = self.message(binding, &row, channel).await? else {
            self.fall_back_after_lost_files(binding, row, channel).await?;
            return Ok(NextStep::Reload);
        };
        let mut retry = RetryState::of(&row, self.retry_first_ms);
        let part = row.part;
        loop {
            if self.stop.is_cancelled() {
                return Ok(NextStep::Stop);
            }
            if retry.attempts > 0 {
                self.metrics.delivery_retry(channel.id());
            }
            let Some(outcome) = self.attempt(binding, channel, &message, &mut retry).await? else {
                return Ok(NextStep::Stop);
            };
            let outcome = outcome.of(&message);
            self.metrics.delivery_attempt(channel.id(), outcome.as_str());
            retry.record_outcome(&outcome);
            if let Some(after) = self.handle_outcome(binding, channel, &part, &retry, outcome).await? {
                return Ok(after);
            }
            self.pause(retry.pause()).await;
        }
    }

    /// Commits the result of an attempt; `None` if the part is to be retried.
    async fn handle_outcome(
        &self,
        binding: &BindingRow,
        channel: &dyn ChannelAdapter,
        part: &MessagePart,
        retry: &RetryState,
        outcome: SendOutcome,
    ) -> Result<Option<NextStep>, StoreError> {
        let (session_key, nonce) = (&binding.session_key, &part.nonce);
        match outcome {
            SendOutcome::Sent { message_id } => {
                let journaled_at_ms =
                    self.settle(binding, part, PartState::Sent, Some(message_id.clone()), channel).await?;
                self.log_delivered(binding, part, &message_id).await;
                self.signal_run_result(binding, part).await?;
                if let Some(at_ms) = journaled_at_ms {
                    let took_ms = self.store.clock().wall_ms().saturating_sub(at_ms);
                    self.metrics.delivered(channel.id(), took_ms);
                }
                return Ok(Some(NextStep::Next));
            }
            SendOutcome::FilesRefused { why, again }
                if attachments::should_drop_files(retry.files_refused, again) =>
            {
                tracing::warn!(%session_key, nonce, why, "attachments refused; sending text instead");
                self.fall_back_to_text(binding, part).await?;
                return Ok(Some(NextStep::Reload));
            }
            SendOutcome::FilesRefused { why, .. } => {
                tracing::warn!(%session_key, nonce, why, "attachments refused; message will be retried with them");
                self.mark_not_sent(binding, part, retry.is_unknown, channel).await?;
            }
            SendOutcome::Rejected { why, again: false } => {
                tracing::error!(%session_key, nonce, why, "part rejected permanently");
                self.settle(binding, part, PartState::Rejected, None, channel).await?;
                return Ok(Some(NextStep::Reload));
            }
            SendOutcome::Rejected { why, again: true } => {
                tracing::warn!(%session_key, nonce, why, "part refused; retrying");
                self.mark_not_sent(binding, part, retry.is_unknown, channel).await?;
            }
            SendOutcome::Limited { retry_after_ms } => {
                tracing::info!(%session_key, nonce, retry_after_ms, "part deferred by rate limit");
                self.mark_not_sent(binding, part, retry.is_unknown, channel).await?;
            }
            SendOutcome::Uncertain { why } if retry.unknown_in_a_row >= UNCERTAIN_ATTEMPTS_MAX => {
                tracing::error!(%session_key, nonce, why, "part delivery uncertain; given up");
                self.settle(binding, part, PartState::Uncertain, None, channel).await?;
                return Ok(Some(NextStep::Reload));
            }
            SendOutcome::Uncertain { why } => {
                tracing::warn!(%session_key, nonce, why, "part delivery uncertain; retrying");
            }
        }
        Ok(None)
    }

    /// Logs a delivered part with the fields by which its message and run are found.
    async fn log_delivered(&self, binding: &BindingRow, part: &MessagePart, message_id: &str) {
        let origin = match part.run_id {
            Some(run_id) => {
                self.store.read("run_origin", move |db| runs::origin(db, run_id)).await.ok().flatten()
            }
            None => None,
        };
        tracing::info!(
            session_key = %binding.session_key,
            run_id = part.run_id.map(tracing::field::display),
            backend = origin.as_ref().map(|origin| origin.backend.as_str()),
            idempotency_key = origin.as_ref().map(|origin| origin.idempotency_key.as_str()),
            thread_id = binding.conversation.conversation_id,
            kind = part.kind.as_str(),
            message_id,
            "part delivered"
        );
    }

    /// Builds the message of a part; `None` if its files differ from what was planned.
    async fn message(
        &self,
        binding: &BindingRow,
        row: &PartRow,
        channel: &dyn ChannelAdapter,
    ) -> Result<Option<Outgoing>, StoreError> {
        // A lookup has to tell this message from our others, which may have the same text (H12).
        let (at, since_ms) = (
            binding.conversation.clone(),
            row.created_at_ms.saturating_sub(command_replies::SEARCH_WINDOW_MS),
        );
        let others = self
            .store
            .read("delivery_others", move |db| command_replies::ids_of_sent_messages(db, &at, since_ms))
            .await?;
        let part = &row.part;
        let Some(files) = self.files(binding, part).await? else { return Ok(None) };
        Ok(Some(Outgoing {
            kind: part.kind,
            text: part.text.clone(),
            nonce: part.nonce.clone(),
            session_key: Some(binding.session_key.clone()),
            run_id: part.run_id,
            not_before_ms: Some(row.created_at_ms),
            others,
            actions: part.asks.as_ref().map(|asks| asks.actions.clone()).unwrap_or_default(),
            tag: row.tag.clone(),
            persona: self.persona(binding, row, channel).await?,
            origin: None,
            files,
        }))
    }

    /// Commits that this attempt failed. After an earlier attempt with an unknown result the part's state is
    /// kept: that message may still arrive, and the next process must look it up too.
    async fn mark_not_sent(
        &self,
        binding: &BindingRow,
        part: &MessagePart,
        is_unknown: bool,
        channel: &dyn ChannelAdapter,
    ) -> Result<(), StoreError> {
        if !is_unknown {
            self.settle(binding, part, PartState::Planned, None, channel).await?;
        }
        Ok(())
    }

    /// Commits the result of a part. Returns the time at which its row was journaled.
    pub(super) async fn settle(
        &self,
        binding: &BindingRow,
        part: &MessagePart,
        state: PartState,
        message_id: Option<String>,
        channel: &dyn ChannelAdapter,
    ) -> Result<Option<u64>, StoreError> {
        let (binding, part) = (binding.clone(), part.clone());
        let echo = message_id.clone().filter(|_| channel.properties().receives_own_messages);
        let settle = move |tx: &acp_store::Tx<'_>| {
            if let Some(message_id) = &echo {
                sent_messages::record_sent_message(tx, &binding.conversation, message_id)?;
            }
            let notice = match state {
                PartState::Uncertain => render::uncertain_notice(binding.binding_id, &part),
                PartState::Rejected => render::rejected_notice(binding.binding_id, &part),
                PartState::Planned | PartState::Sending | PartState::Sent => None,
            };
            if let Some(notice) = notice {
                rows::plan(tx, &binding, &[notice])?;
            }
            rows::settle(tx, &binding, &part, state, message_id.as_deref())?;
            rows::journaled_at(tx, &binding.session_key, part.session_seq)
        };
        self.store.write("delivery_settle", settle).await
    }

    pub(super) async fn pause(&self, ms: u64) {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(ms)) => {}
        }
    }
}

/// Returns the name of a conversation without delivery in the report of `doctor`.
fn stalled_key(binding: &BindingRow) -> String {
    let at = &binding.conversation;
    format!("conversation {}/{}/{} of {}", at.channel, at.account_id, at.conversation_id, binding.session_key)
}

/// Returns the number of the last row that a conversation receives, and if its binding ended and this batch
/// holds everything that is still pending. An active binding receives everything; an unbound one up to the
/// unbinding; one whose session was closed up to the close.
fn delivery_range(due: &DueBinding, batch: &DeliveryBatch) -> (u64, bool) {
    if due.binding.status != BindingStatus::Ended {
        return (u64::MAX, false);
    }
    let unbound_at = serde_json::from_str::<serde_json::Value>(&due.binding.metadata)
        .ok()
        .and_then(|metadata| metadata["end_session_seq"].as_u64());
    let closed_at = batch.rows.iter().find(|row| row.kind == EventKind::Closed).map(|row| row.session_seq);
    let last = [unbound_at, closed_at].into_iter().flatten().min().unwrap_or(u64::MAX);
    (last, batch.through >= last.min(due.end))
}

/// The parts of a batch, in order.
pub(super) fn parts_of(
    binding: &BindingRow,
    styles: &StyleHistory,
    batch: &DeliveryBatch,
    last: u64,
) -> Vec<MessagePart> {
    let shown = batch.rows.iter().filter(|row| row.session_seq <= last);
    shown
        .filter_map(|row| Some((row, styles.at(row.session_seq)?)))
        .flat_map(|(row, style)| render::render_row(binding.binding_id, style, row, batch.digest(row)))
        .collect()
}
