//! Status cards: updated during a turn, without delaying or replacing durable messages.

use super::*;
use crate::channel::{EditOutcome, Signal};
use acp_core::render::PartKind;
use acp_store::cards;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub(super) const LIVE: &str = "[acp.stream]\ndelivery_mode = \"live\"\nmin_interval_ms = 1\n";
const TOOLS: &str = "tag_visibility = { tool_call = true, tool_call_update = true }\n";

/// Channel that records messages, and edits them if enabled.
#[derive(Default)]
pub(super) struct FakeChannel {
    pub(super) can_edit: bool,
    /// Maximum number of buttons of a message.
    pub(super) buttons: usize,
    pub(super) messages: Mutex<Vec<Outgoing>>,
    /// Recorded signals, if the channel supports them.
    pub(super) signals: Option<Mutex<Vec<Signal>>>,
    /// Time in which a message can be edited.
    pub(super) edit_window_ms: Option<u64>,
    /// Number of edits that fail from now on.
    pub(super) failures: AtomicU32,
    /// Edits hang from now on.
    pub(super) is_stuck: AtomicBool,
    /// Number of edits from now on that a rate limit refuses for an hour.
    pub(super) limits: AtomicU32,
    /// Edits are refused for good from now on.
    pub(super) is_fixed: AtomicBool,
    /// Sends wait while this is set.
    pub(super) is_slow: AtomicBool,
    /// Responses to sends are lost from now on.
    pub(super) is_lost: AtomicBool,
    pub(super) edits: AtomicU32,
    pub(super) stuck: tokio::sync::Notify,
}

impl FakeChannel {
    pub(super) fn new(can_edit: bool) -> Arc<Self> {
        Arc::new(Self { can_edit, buttons: if can_edit { 25 } else { 0 }, ..Self::default() })
    }

    pub(super) fn shown(&self) -> Vec<(PartKind, String)> {
        let messages = self.messages.lock().unwrap();
        messages.iter().map(|message| (message.kind, message.text.clone())).collect()
    }

    /// Returns the index of a message, new or known.
    fn record(&self, message: &Outgoing) -> usize {
        assert!(self.properties().limit.fits(&message.text), "too long: {message:?}");
        let mut messages = self.messages.lock().unwrap();
        let at = messages.iter().position(|known| known.nonce == message.nonce);
        at.unwrap_or_else(|| {
            messages.push(message.clone());
            messages.len() - 1
        })
    }

    pub(super) fn buttons(&self) -> Vec<Vec<String>> {
        let messages = self.messages.lock().unwrap();
        let of = |message: &Outgoing| message.actions.iter().map(|action| action.command.clone()).collect();
        messages.iter().map(of).collect()
    }

    pub(super) async fn until(
        &self,
        description: &str,
        condition: impl Fn(&[(PartKind, String)]) -> bool,
    ) -> Vec<(PartKind, String)> {
        eventually(description, || async {
            let shown = self.shown();
            condition(&shown).then_some(shown)
        })
        .await
    }
}

impl ChannelAdapter for FakeChannel {
    fn id(&self) -> &'static str {
        "console"
    }

    fn properties(&self) -> ChannelProperties {
        ChannelProperties {
            can_signal: self.signals.is_some(),
            edit_window_ms: self.edit_window_ms,
            buttons_max: self.buttons,
            can_edit: self.can_edit,
            ..ChannelProperties::new(MessageLimit::new(Unit::Bytes, 4_096), UnboundDestination::Hint)
        }
    }

    fn send<'a>(&'a self, _to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, SendOutcome> {
        Box::pin(async move {
            while self.is_slow.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let at = self.record(message);
            if self.is_lost.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            SendOutcome::Sent { message_id: at.to_string() }
        })
    }

    fn lookup<'a>(&'a self, _to: &'a ConversationRef, message: &'a Outgoing) -> BoxFuture<'a, LookupOutcome> {
        Box::pin(async move {
            let messages = self.messages.lock().unwrap();
            match messages.iter().position(|known| known.nonce == message.nonce) {
                Some(at) => LookupOutcome::Found { message_id: at.to_string() },
                None => LookupOutcome::Absent,
            }
        })
    }

    fn signal<'a>(&'a self, _to: &'a ConversationRef, signal: &'a Signal) -> BoxFuture<'a, ()> {
        self.signals.as_ref().unwrap().lock().unwrap().push(signal.clone());
        Box::pin(std::future::ready(()))
    }

    fn edit<'a>(
        &'a self,
        _to: &'a ConversationRef,
        message_id: &'a str,
        message: &'a Outgoing,
    ) -> BoxFuture<'a, EditOutcome> {
        Box::pin(async move {
            if self.is_stuck.load(Ordering::SeqCst) {
                self.stuck.notify_one();
                std::future::pending::<()>().await;
            }
            self.edits.fetch_add(1, Ordering::SeqCst);
            let fewer = |left: u32| left.checked_sub(1);
            if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
                return EditOutcome::Failed { why: "not now".to_owned() };
            }
            if self.limits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
                return EditOutcome::Limited { retry_after_ms: 3_600_000 };
            }
            if self.is_fixed.load(Ordering::SeqCst) {
                return EditOutcome::Refused { why: "a filter".to_owned() };
            }
            if !self.properties().limit.fits(&message.text) {
                return EditOutcome::Gone { why: "it is too long".to_owned() };
            }
            let mut messages = self.messages.lock().unwrap();
            match message_id.parse::<usize>().ok().and_then(|at| messages.get_mut(at)) {
                Some(known) => {
                    known.text.clone_from(&message.text);
                    known.actions.clone_from(&message.actions);
                    EditOutcome::Edited
                }
                None => EditOutcome::Gone { why: "no such message".to_owned() },
            }
        })
    }
}

pub(super) fn card(text: &str) -> (PartKind, String) {
    (PartKind::Card, text.to_owned())
}

pub(super) fn final_message(text: &str) -> (PartKind, String) {
    (PartKind::Final, text.to_owned())
}

pub(super) async fn started_turn() -> (tempfile::TempDir, Store, JournalWriter) {
    let (dir, store, _, mut journal) = bound().await;
    journal.start().await;
    (dir, store, journal)
}

/// Starts a turn with a shown card, on a channel that can edit messages.
pub(super) async fn with_card() -> (tempfile::TempDir, Store, JournalWriter, Arc<FakeChannel>, Driver) {
    let (dir, store, mut journal) = started_turn().await;
    let channel = FakeChannel::new(true);
    let driver = drive(&store, &channel, LIVE);
    journal.append_text("One. ").await;
    channel.until("the card", |shown| shown == [card("Working\n\nOne.")]).await;
    (dir, store, journal, channel, driver)
}

#[tokio::test]
async fn card_is_edited_in_place_and_folded_above_answer() {
    let (_dir, _store, mut journal, channel, driver) = with_card().await;
    journal.append_text("Two. ").await;
    journal.event(EventKind::ToolCall, json!({"toolCallId": "a", "title": "t", "kind": "read"})).await;
    let text = "Working: 1 tool call (1 read)\n\nOne. Two.";
    channel.until("the card to change", |shown| shown == [card(text)]).await;
    journal.complete().await;
    let answer = final_message("One. Two.\n\n[1 tool call (1 read)]");
    let folded = card("Done: 1 tool call (1 read)");
    channel.until("the answer", |shown| shown == [folded.clone(), answer.clone()]).await;
    // The next turn has a separate card below.
    journal.start().await;
    journal.append_text("Three. ").await;
    let next = card("Working\n\nThree.");
    channel.until("the next card", |shown| shown == [folded.clone(), answer.clone(), next.clone()]).await;
    journal.event(EventKind::Status, json!({"status": "x", "text": "Look here."})).await;
    channel.until("a notice below", |shown| shown.len() == 4).await;
    driver.stop().await;
}

#[tokio::test]
async fn console_has_cards_in_live_mode_only() {
    for (text, want) in [
        (LIVE, vec![("card".to_owned(), "Done".to_owned()), ("final".to_owned(), "One.".to_owned())]),
        ("", vec![("final".to_owned(), "One.".to_owned())]),
    ] {
        let (_dir, store, mut journal) = started_turn().await;
        let driver = on_console(&store, text);
        journal.append_text("One. ").await;
        if want.len() == 2 {
            assert_eq!(caught_up(&store, "c", 1).await, ["Working\n\nOne."]);
        }
        journal.complete().await;
        eventually("the turn to be delivered", || async {
            let mut rows = store.read("shown", |db| console::after(db, "c", 0, 10)).await.unwrap();
            rows.sort_by_key(|row| row.id);
            let rows: Vec<_> = rows.into_iter().map(|row| (row.kind, row.text)).collect();
            (rows == want).then_some(())
        })
        .await;
        driver.stop().await;
    }
}

/// After a refused edit, the card shows no progress, but still the end of the turn, without buttons.
#[tokio::test]
async fn card_with_refused_edit_still_shows_end() {
    let (_dir, _store, mut journal, channel, driver) = with_card().await;
    channel.is_fixed.store(true, Ordering::SeqCst);
    journal.append_text("Two. ").await;
    eventually("a refusal", || async { (channel.edits.load(Ordering::SeqCst) > 0).then_some(()) }).await;
    channel.is_fixed.store(false, Ordering::SeqCst);
    journal.complete().await;
    channel.until("the end", |shown| shown == [card("Done"), final_message("One. Two.")]).await;
    assert_eq!(channel.buttons(), [Vec::<String>::new(), Vec::new()]);
    driver.stop().await;
}

/// H20: durable messages pass a stuck card, in order.
#[tokio::test]
async fn durable_messages_pass_a_stuck_card() {
    let (_dir, _store, mut journal, channel, driver) = with_card().await;
    channel.is_stuck.store(true, Ordering::SeqCst);
    journal.append_text("Two. ").await;
    channel.stuck.notified().await;
    let permission = json!({"permission_id": "p", "params": {"toolCall": {"title": "Write"}, "options": []}});
    journal.event(EventKind::Permission, permission).await;
    channel.until("the question", |shown| shown.len() == 2 && shown[1].0 == PartKind::Permission).await;
    channel.stuck.notified().await;
    journal
        .event(EventKind::PermissionSettled, json!({"permission_id": "p", "option_id": "y", "by": "ann"}))
        .await;
    journal.complete().await;
    let shown = channel.until("the answer", |shown| shown.len() == 3).await;
    let kinds: Vec<PartKind> = shown.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [PartKind::Card, PartKind::Permission, PartKind::Final]);
    assert_eq!(shown[0].1, "Working\n\nOne.");
    // Shutdown does not wait for the card either.
    driver.stop().await;
}

#[tokio::test]
async fn without_edits_tool_lines_are_messages_and_text_comes_once() {
    let (_dir, store, mut journal) = started_turn().await;
    let channel = FakeChannel::new(false);
    let driver = drive(&store, &channel, &format!("{LIVE}{TOOLS}"));
    journal.append_text("One. ").await;
    journal.event(EventKind::ToolCall, json!({"toolCallId": "a", "title": "t", "kind": "read"})).await;
    channel.until("the line", |shown| shown == [card("[read] t")]).await;
    journal.append_text("Two.").await;
    journal.complete().await;
    let answer = final_message("One. \n\n[read] t\n\nTwo.\n\n[1 tool call (1 read)]");
    channel.until("the answer", |shown| shown == [card("[read] t"), answer.clone()]).await;
    driver.stop().await;
    assert_eq!(channel.edits.load(Ordering::SeqCst), 0);
}

/// After a crash, the card is continued, or folded if the turn is over.
#[tokio::test]
async fn card_continues_after_crash() {
    let (_dir, store, mut journal, channel, driver) = with_card().await;
    eventually("the card to be stored", || async {
        let page = store.read("all", |db| rows::delivering_bindings(db, 0, 1)).await.unwrap();
        let binding_id = page.bindings[0].binding.binding_id;
        let cards =
            store.read("cards", move |db| cards::read_cards(db, binding_id, &key(), 0)).await.unwrap();
        (cards.open.len() == 1).then_some(())
    })
    .await;
    driver.kill().await;
    journal.append_text("Two. ").await;
    let driver = drive(&store, &channel, LIVE);
    channel.until("the updated card", |shown| shown == [card("Working\n\nOne. Two.")]).await;
    driver.kill().await;
    journal.complete().await;
    // Cards are disabled meanwhile; the old one is folded all the same.
    let driver = drive(&store, &channel, "");
    channel.until("the end", |shown| shown == [card("Done"), final_message("One. Two.")]).await;
    driver.stop().await;
}

/// A fold that fails while the channel is unavailable is retried.
#[tokio::test]
async fn card_with_failed_fold_is_folded_later() {
    for is_restarted in [false, true] {
        let (_dir, store, mut journal, channel, mut driver) = with_card().await;
        channel.failures.store(u32::MAX, Ordering::SeqCst);
        journal.complete().await;
        channel.until("the answer", |shown| shown == [card("Working\n\nOne."), final_message("One.")]).await;
        eventually("the attempt", || async { (channel.edits.load(Ordering::SeqCst) > 0).then_some(()) })
            .await;
        if is_restarted {
            driver.stop().await;
            driver = drive(&store, &channel, LIVE);
        }
        channel.failures.store(0, Ordering::SeqCst);
        channel.until("the end", |shown| shown == [card("Done"), final_message("One.")]).await;
        driver.stop().await;
    }
}

/// A crash after sending a card and before recording its id; the turn ends meanwhile.
#[tokio::test]
async fn card_without_recorded_id_is_found_and_folded() {
    let (_dir, store, mut journal) = started_turn().await;
    let channel = FakeChannel::new(true);
    channel.is_lost.store(true, Ordering::SeqCst);
    let driver = drive(&store, &channel, LIVE);
    journal.append_text("One. ").await;
    channel.until("the card", |shown| shown == [card("Working\n\nOne.")]).await;
    driver.kill().await;
    journal.complete().await;
    channel.is_lost.store(false, Ordering::SeqCst);
    let driver = drive(&store, &channel, LIVE);
    channel.until("the end", |shown| shown == [card("Done"), final_message("One.")]).await;
    driver.stop().await;
}

#[tokio::test]
async fn unbinding_folds_open_card() {
    let (_dir, store, _journal, channel, driver) = with_card().await;
    let page = store.read("all", |db| rows::delivering_bindings(db, 0, 1)).await.unwrap();
    let binding_id = page.bindings[0].binding.binding_id;
    store.write("end", move |tx| bindings::end(tx, binding_id, "unbound")).await.unwrap();
    channel.until("the card to be folded", |shown| shown == [card("No longer updated")]).await;
    driver.stop().await;
}

/// C8: the turn ends before the channel accepts any message; all of them arrive.
#[tokio::test]
async fn slow_channel_loses_nothing_after_end_of_turn() {
    for text in [LIVE, LONG] {
        let (_dir, store, _, mut journal) = bound().await;
        let channel = FakeChannel::new(true);
        channel.is_slow.store(true, Ordering::SeqCst);
        let driver = drive(&store, &channel, text);
        two_turns(&mut journal).await;
        eventually("delivery to begin", || async { (!states(&store).await.is_empty()).then_some(()) }).await;
        journal.close().await;
        channel.is_slow.store(false, Ordering::SeqCst);
        no_pending_parts(&store).await;
        driver.stop().await;
        let finals: Vec<String> = channel
            .shown()
            .into_iter()
            .filter(|(kind, _)| *kind == PartKind::Final)
            .map(|(_, text)| text)
            .collect();
        let want = format!("Hello {}Again", "long line\n".repeat(2_000).trim_end());
        assert_eq!(finals.concat(), want, "{text}");
        assert!(states(&store).await.iter().all(|state| state == "sent"));
    }
}
