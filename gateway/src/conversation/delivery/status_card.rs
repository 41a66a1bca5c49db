//! The status card of one conversation, updated by the conversation's delivery task, so that pending parts go
//! first.
//!
//! The journal is watched while an update of the card is in progress; it does not delay a message that
//! becomes due (H20). [`Card`] decides on the content of the card; this file reads the journal for it, sends
//! and persists it.

use super::SCAN_MS_MIN;
use crate::channel::{
    ChannelAdapter, EditOutcome, LookupOutcome, MessageButton, Outgoing, SendOutcome, Signal, WORKING_MS,
};
use crate::conversation::delivery::worker::DeliveryWorker;
use acp_core::card::{Card, CardRecord, CardUpdate, CardUpdateResult, UpdateRate};
use acp_core::render::buttons::card_buttons;
use acp_core::render::{PartKind, card_nonce};
use acp_core::rows::{BindingRow, BindingStatus};
use acp_shared::ids::RunId;
use acp_store::cards::{self, FoldOutcome, StatusCards};
use acp_store::{StoreError, delivery, interactive_messages};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Interval of checks without a wake-up, in milliseconds: the binding may have ended, or the configuration
/// changed.
const BUTTON_CHECK_MS: u64 = 1_000;
/// Timeout of a card update, in milliseconds; its result is unknown afterwards.
const ACTION_TIMEOUT_MS: u64 = 15_000;
/// Timeout of the final update, when the run is over, in milliseconds.
const CLOSE_TIMEOUT_MS: u64 = 5_000;

/// Card of one run, and the last journal row included in the card.
struct TrackedCard {
    run_id: RunId,
    card: Card,
    through: u64,
}

/// Updates the cards of one binding.
pub(super) struct StatusCardUpdater<'a> {
    worker: &'a DeliveryWorker,
    binding: &'a BindingRow,
    channel: &'a dyn ChannelAdapter,
    /// True if an earlier task may have left cards that are not finalized.
    is_first: bool,
    tracked: Option<TrackedCard>,
    since: Instant,
    /// Time of the last typing indicator.
    work_shown: Option<Instant>,
    /// Time of the next check for obsolete buttons.
    button_check: Instant,
}

impl<'a> StatusCardUpdater<'a> {
    /// Creates the keeper. `is_first` is true for the first task of the binding in this process.
    pub(super) fn new(
        worker: &'a DeliveryWorker,
        binding: &'a BindingRow,
        channel: &'a dyn ChannelAdapter,
        is_first: bool,
    ) -> Self {
        let now = Instant::now();
        let button_check = now + Duration::from_millis(BUTTON_CHECK_MS);
        Self { worker, binding, channel, is_first, tracked: None, since: now, work_shown: None, button_check }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Updates the card of the running turn until the conversation has a pending row after `cursor`; then
    /// returns true. Returns false if no card is to be updated.
    pub(super) async fn update_card(&mut self, cursor: u64) -> Result<bool, StoreError> {
        let is_live = self.worker.render_config(self.binding, self.channel).pace.is_some();
        // Typing indicators are sent even without a card.
        let is_wanted = is_live || self.channel.properties().can_signal;
        if !is_wanted && !self.is_first && self.tracked.is_none() {
            return Ok(false);
        }
        self.is_first = false;
        let found = self.read_cards().await?;
        let running = found.running.filter(|_| is_wanted);
        let mut known = None;
        for (run_id, found) in found.open {
            if is_live && running.is_some_and(|(running, _)| running == run_id) {
                known = Some(found);
            } else {
                self.close_card(run_id, found).await?;
            }
        }
        let Some((run_id, before)) = running else {
            self.tracked = None;
            return Ok(false);
        };
        if self.tracked.as_ref().is_none_or(|tracked| tracked.run_id != run_id) {
            self.track_card(run_id, before, known);
        }
        self.follow(cursor, is_live).await
    }

    async fn read_cards(&self) -> Result<StatusCards, StoreError> {
        let (id, key) = (self.binding.binding_id, self.binding.session_key.clone());
        let now_ms = self.worker.store.clock().wall_ms();
        self.worker.store.read("delivery_cards", move |db| cards::read_cards(db, id, &key, now_ms)).await
    }

    /// Finalizes all cards of a conversation that has ended, so that none shows a turn as running.
    pub(super) async fn close_all_cards(&mut self) -> Result<(), StoreError> {
        let found = self.read_cards().await?;
        for (run_id, known) in found.open {
            self.close_card(run_id, known).await?;
        }
        Ok(())
    }

    fn track_card(&mut self, run_id: RunId, before: u64, known: Option<CardRecord>) {
        let render_config = self.worker.render_config(self.binding, self.channel);
        // Without a pace only the final state is shown.
        let pace = render_config.pace.unwrap_or(UpdateRate { idle_ms: 0, interval_ms: 0 });
        let card =
            Card::new(render_config.of_card, pace, self.channel.properties().can_edit, known, self.now());
        self.tracked = Some(TrackedCard { run_id, card, through: before });
    }

    /// Returns true if the conversation has something pending, false if the card needs no more updates.
    async fn follow(&mut self, cursor: u64, is_live: bool) -> Result<bool, StoreError> {
        let mut wake = self.worker.store.watch(&self.binding.session_key);
        loop {
            wake.mark_unchanged();
            let pace = self.worker.render_config(self.binding, self.channel).pace;
            if pace.is_some() != is_live {
                self.tracked = self.tracked.take().filter(|_| !is_live);
                return Ok(true);
            }
            let (has_pending, is_more) = self.read_new_rows(cursor).await?;
            if has_pending {
                return Ok(true);
            }
            if is_more {
                continue;
            }
            if self.update_stale_buttons(wake.clone()).await? {
                return Ok(true);
            }
            if is_live {
                self.rotate_card().await?;
            }
            let now = self.now();
            let Some(tracked) = self.tracked.as_mut() else { return Ok(false) };
            if let Some(pace) = pace {
                tracked.card.set_rate(pace);
            }
            let Some(act) = (if is_live { tracked.card.next_update(now) } else { None }) else {
                let due = tracked.card.due_at().filter(|_| is_live);
                let due_ms = due.map_or(BUTTON_CHECK_MS, |at| at.saturating_sub(now).min(BUTTON_CHECK_MS));
                tokio::select! {
                    biased;
                    () = self.worker.stop.cancelled() => return Ok(false),
                    () = tokio::time::sleep(Duration::from_millis(due_ms)) => {}
                    changed = wake.changed() => {
                        if changed.is_err() {
                            return Ok(false);
                        }
                        self.worker.pause(SCAN_MS_MIN).await;
                    }
                }
                continue;
            };
            let (run_id, after) = (tracked.run_id, tracked.through);
            // Committed before the card is sent: after a crash the next task looks it up and finalizes it.
            if matches!(act, CardUpdate::Post { .. }) {
                self.record_card(run_id).await?;
            }
            let watching = wake.clone();
            let came = tokio::select! {
                biased;
                () = self.worker.stop.cancelled() => return Ok(false),
                came = self.apply_action(run_id, &act, self.buttons(run_id)) => Some(came),
                () = tokio::time::sleep(Duration::from_millis(ACTION_TIMEOUT_MS)) => Some(CardUpdateResult::Retry { after_ms: None }),
                // Pending parts do not wait for a card.
                pending = self.wait_for_pending(watching, run_id, after) => { pending?; None }
            };
            let now = self.now();
            let Some(tracked) = self.tracked.as_mut() else { return Ok(false) };
            let Some(came) = came else {
                tracked.card.handle_result(now, CardUpdateResult::Retry { after_ms: None });
                return Ok(true);
            };
            tracked.card.handle_result(now, came);
            if matches!(act, CardUpdate::Post { .. }) {
                tracked.card.set_posted_at(self.worker.store.clock().wall_ms());
                self.record_card(run_id).await?;
            }
        }
    }

    /// Reads more of the journal. Returns if the conversation has something pending, and if there is more to
    /// read.
    async fn read_new_rows(&mut self, cursor: u64) -> Result<(bool, bool), StoreError> {
        let now = self.now();
        let Some(tracked) = self.tracked.as_mut() else { return Ok((false, false)) };
        let (key, run_id, after) = (self.binding.session_key.clone(), tracked.run_id, tracked.through);
        let (id, verbosity) = (self.binding.binding_id, self.binding.verbosity);
        let read = self.worker.store.read("delivery_news", move |db| {
            let over = [BindingStatus::Parked, BindingStatus::Ended];
            let is_as_before = |it: &BindingRow| !over.contains(&it.status) && it.verbosity == verbosity;
            let is_bound = delivery::due_of_binding(db, id)?.is_some_and(|due| is_as_before(&due.binding));
            Ok((is_bound, cards::read_journal_after(db, &key, run_id, after)?))
        });
        let (is_bound, news) = read.await?;
        for row in &news.rows {
            tracked.card.push(now, row);
        }
        tracked.through = news.through;
        Ok((!is_bound || news.shown > cursor, news.is_more))
    }

    /// Waits until a row after `after` may be sent as a separate message.
    async fn wait_for_pending(
        &self,
        mut wake: watch::Receiver<u64>,
        run_id: RunId,
        mut after: u64,
    ) -> Result<(), StoreError> {
        while wake.changed().await.is_ok() {
            let key = self.binding.session_key.clone();
            let read = move |db: &_| cards::read_journal_after(db, &key, run_id, after);
            let news = self.worker.store.read("delivery_owed", read).await?;
            if news.shown > 0 {
                return Ok(());
            }
            after = news.through;
        }
        std::future::pending().await
    }

    /// Repeats the typing indicator while the agent works.
    fn send_typing(&mut self) {
        let is_working = self.tracked.as_ref().is_some_and(|tracked| tracked.card.is_working());
        if !is_working || self.work_shown.is_some_and(|at| at.elapsed() < Duration::from_millis(WORKING_MS)) {
            return;
        }
        self.work_shown = Some(Instant::now());
        self.worker.send_signal(self.binding, Signal::Working);
    }

    /// Updates messages with obsolete buttons at intervals while a turn is shown, since other runs are
    /// queued, started and dropped meanwhile. Returns true if the conversation has something pending, which
    /// takes precedence.
    async fn update_stale_buttons(&mut self, wake: watch::Receiver<u64>) -> Result<bool, StoreError> {
        self.send_typing();
        let Some((run_id, after)) = self.tracked.as_ref().map(|tracked| (tracked.run_id, tracked.through))
        else {
            return Ok(false);
        };
        if Instant::now() < self.button_check {
            return Ok(false);
        }
        let (at, key) = (self.binding.conversation.clone(), self.binding.session_key.clone());
        let is_markdown = self.channel.properties().renders_markdown;
        let over = move |db: &_| interactive_messages::settled_messages(db, &at, &key, is_markdown);
        let over = self.worker.store.read("delivery_over", over).await?;
        tokio::select! {
            biased;
            done = self.worker.update_stale_buttons(self.binding, self.channel, over) => done?,
            pending = self.wait_for_pending(wake, run_id, after) => { pending?; return Ok(true) }
        }
        self.button_check = Instant::now() + Duration::from_millis(BUTTON_CHECK_MS);
        Ok(false)
    }

    /// Continues a card that can no longer be edited freely in a new message; the old one is finalized, best
    /// effort.
    async fn rotate_card(&mut self) -> Result<(), StoreError> {
        let now_ms = self.worker.store.clock().wall_ms();
        let Some(tracked) = self.tracked.as_mut() else { return Ok(()) };
        let run_id = tracked.run_id;
        let Some(act) = tracked.card.rotate(now_ms, self.channel.properties().edit_window_ms) else {
            return Ok(());
        };
        self.record_card(run_id).await?;
        tokio::select! {
            biased;
            () = self.worker.stop.cancelled() => {}
            _ = self.apply_action(run_id, &act, Vec::new()) => {}
            () = tokio::time::sleep(Duration::from_millis(CLOSE_TIMEOUT_MS)) => {}
        }
        Ok(())
    }

    /// Returns the buttons of the card while its turn runs; a message that is never edited has none.
    fn buttons(&self, run_id: RunId) -> Vec<MessageButton> {
        let is_open = self.channel.properties().can_edit
            && self.tracked.as_ref().is_some_and(|tracked| !tracked.card.is_over());
        if is_open { card_buttons(run_id) } else { Vec::new() }
    }

    fn message(&self, run_id: RunId, number: u32, text: &str, actions: Vec<MessageButton>) -> Outgoing {
        Outgoing {
            kind: PartKind::Card,
            text: text.to_owned(),
            nonce: card_nonce(self.binding.binding_id, run_id, number),
            session_key: Some(self.binding.session_key.clone()),
            run_id: Some(run_id),
            actions,
            ..Outgoing::default()
        }
    }

    async fn apply_action(
        &self,
        run_id: RunId,
        act: &CardUpdate,
        actions: Vec<MessageButton>,
    ) -> CardUpdateResult {
        let at = &self.binding.conversation;
        match act {
            CardUpdate::Post { number, text } => {
                let message = self.message(run_id, *number, text, actions);
                match self.channel.send(at, &message).await {
                    SendOutcome::Sent { message_id } => CardUpdateResult::Shown { message_id },
                    SendOutcome::Rejected { again: false, why }
                    | SendOutcome::FilesRefused { again: false, why } => {
                        tracing::warn!(%run_id, why, "status card rejected");
                        CardUpdateResult::Rejected
                    }
                    SendOutcome::Rejected { again: true, .. }
                    | SendOutcome::FilesRefused { again: true, .. }
                    | SendOutcome::Uncertain { .. } => CardUpdateResult::Retry { after_ms: None },
                    SendOutcome::Limited { retry_after_ms } => {
                        CardUpdateResult::Retry { after_ms: Some(retry_after_ms) }
                    }
                }
            }
            CardUpdate::Edit { message_id, text } => {
                match self.channel.edit(at, message_id, &self.message(run_id, 0, text, actions)).await {
                    EditOutcome::Edited => CardUpdateResult::Shown { message_id: message_id.clone() },
                    EditOutcome::Failed { why } => {
                        tracing::debug!(%run_id, why, "status card edit failed; retrying");
                        CardUpdateResult::Retry { after_ms: None }
                    }
                    EditOutcome::Limited { retry_after_ms } => {
                        CardUpdateResult::Retry { after_ms: Some(retry_after_ms) }
                    }
                    EditOutcome::Gone { why } => {
                        tracing::info!(%run_id, why, "status card gone");
                        CardUpdateResult::Gone
                    }
                    // The card exists and a new one would repeat it: it stays as is until the final update.
                    EditOutcome::Refused { why } => {
                        tracing::warn!(%run_id, why, "status card edit refused");
                        CardUpdateResult::Rejected
                    }
                }
            }
        }
    }

    /// Commits the state of the card.
    async fn record_card(&self, run_id: RunId) -> Result<(), StoreError> {
        let Some(known) = self.tracked.as_ref().map(|tracked| tracked.card.record().clone()) else {
            return Ok(());
        };
        let id = self.binding.binding_id;
        let keep = move |tx: &acp_store::Tx<'_>| cards::store_card(tx, id, run_id, &known);
        self.worker.store.write("delivery_card", keep).await
    }

    /// Finalizes a card whose run is over or which is no longer wanted, best effort.
    async fn close_card(&mut self, run_id: RunId, known: CardRecord) -> Result<(), StoreError> {
        if self.tracked.as_ref().is_none_or(|tracked| tracked.run_id != run_id) {
            let before =
                self.worker.store.read("delivery_before", move |db| cards::before(db, run_id)).await?;
            self.track_card(run_id, before, Some(known));
        }
        while self.read_new_rows(u64::MAX).await?.1
            && self.tracked.as_ref().is_some_and(|tracked| !tracked.card.is_over())
        {}
        let came = tokio::select! {
            biased;
            () = self.worker.stop.cancelled() => return Ok(()),
            came = self.apply_final_action(run_id) => came,
            () = tokio::time::sleep(Duration::from_millis(CLOSE_TIMEOUT_MS)) => FoldOutcome::No,
        };
        if let Some(known) = self.tracked.take().map(|tracked| tracked.card.record().clone()) {
            let id = self.binding.binding_id;
            let fold = move |tx: &acp_store::Tx<'_>| cards::record_fold(tx, id, run_id, &known, came);
            self.worker.store.write("delivery_fold", fold).await?;
        }
        Ok(())
    }

    /// Sends the final update of a card; a card with an unknown send result is looked up first.
    async fn apply_final_action(&mut self, run_id: RunId) -> FoldOutcome {
        let Some(known) = self.tracked.as_ref().map(|tracked| tracked.card.record().clone()) else {
            return FoldOutcome::Yes;
        };
        if known.message_id.is_none() && self.channel.properties().can_edit {
            let message = self.message(run_id, known.number, "", card_buttons(run_id));
            match (self.channel.lookup(&self.binding.conversation, &message).await, self.tracked.as_mut()) {
                (LookupOutcome::Found { message_id }, Some(tracked)) => {
                    tracked.card.set_message_id(message_id)
                }
                (LookupOutcome::Absent, _) => return FoldOutcome::Absent,
                (
                    LookupOutcome::Found { .. } | LookupOutcome::Unknown { .. } | LookupOutcome::Later { .. },
                    _,
                ) => {
                    return FoldOutcome::No;
                }
            }
        }
        match self.tracked.as_ref().and_then(|tracked| tracked.card.closing_edit()) {
            Some(act)
                if matches!(
                    self.apply_action(run_id, &act, Vec::new()).await,
                    CardUpdateResult::Retry { .. }
                ) =>
            {
                FoldOutcome::No
            }
            Some(_) | None => FoldOutcome::Yes,
        }
    }
}
