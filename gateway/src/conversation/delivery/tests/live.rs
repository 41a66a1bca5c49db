//! Live cards: kept while a turn runs, never in the way of what is owed, and the carrier of nothing.

use super::*;
use crate::channel::{EditOutcome, Signal};
use acp_core::render::PartKind;
use acp_store::cards;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub(super) const LIVE: &str = "[acp.stream]\ndelivery_mode = \"live\"\nmin_interval_ms = 1\n";
const TOOLS: &str = "tag_visibility = { tool_call = true, tool_call_update = true }\n";

/// A channel whose messages can be looked at, and changed if it can do that.
#[derive(Default)]
pub(super) struct Board {
    pub(super) can_edit: bool,
    /// How many buttons a message has at most.
    pub(super) buttons: usize,
    pub(super) messages: Mutex<Vec<Outgoing>>,
    /// What it was shown beside them, where it shows such things.
    pub(super) signals: Option<Mutex<Vec<Signal>>>,
    /// How long a message can be changed.
    pub(super) edit_window_ms: Option<u64>,
    /// How many edits fail from now on.
    pub(super) failures: AtomicU32,
    /// Edits have no end from now on.
    pub(super) is_stuck: AtomicBool,
    /// Number of edits from now on that a rate limit refuses for an hour.
    pub(super) limits: AtomicU32,
    /// What is there is not changed any more from now on, for good.
    pub(super) is_fixed: AtomicBool,
    /// Sending waits from now on until somebody takes that back.
    pub(super) is_slow: AtomicBool,
    /// The answer to what is sent is lost from now on.
    pub(super) is_lost: AtomicBool,
    pub(super) edits: AtomicU32,
    pub(super) stuck: tokio::sync::Notify,
}

impl Board {
    pub(super) fn new(can_edit: bool) -> Arc<Self> {
        Arc::new(Self { can_edit, buttons: if can_edit { 25 } else { 0 }, ..Self::default() })
    }

    /// Kinds and texts, in the order of the conversation.
    pub(super) fn shown(&self) -> Vec<(PartKind, String)> {
        let messages = self.messages.lock().unwrap();
        messages.iter().map(|message| (message.kind, message.text.clone())).collect()
    }

    /// The number of a message, new or not.
    fn take(&self, message: &Outgoing) -> usize {
        assert!(self.properties().limit.fits(&message.text), "too long: {message:?}");
        let mut messages = self.messages.lock().unwrap();
        let at = messages.iter().position(|known| known.nonce == message.nonce);
        at.unwrap_or_else(|| {
            messages.push(message.clone());
            messages.len() - 1
        })
    }

    /// The commands of the buttons of each message.
    pub(super) fn buttons(&self) -> Vec<Vec<String>> {
        let messages = self.messages.lock().unwrap();
        let of = |message: &Outgoing| message.actions.iter().map(|action| action.command.clone()).collect();
        messages.iter().map(of).collect()
    }

    pub(super) async fn until(
        &self,
        what: &str,
        is: impl Fn(&[(PartKind, String)]) -> bool,
    ) -> Vec<(PartKind, String)> {
        eventually(what, || async {
            let shown = self.shown();
            is(&shown).then_some(shown)
        })
        .await
    }
}

impl ChannelAdapter for Board {
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
            let at = self.take(message);
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

pub(super) fn last(text: &str) -> (PartKind, String) {
    (PartKind::Final, text.to_owned())
}

/// A bound session whose turn has begun, and what journals for it.
pub(super) async fn begun() -> (tempfile::TempDir, Store, Scribe) {
    let (dir, store, _, mut scribe) = bound().await;
    scribe.start().await;
    (dir, store, scribe)
}

/// A turn whose card is shown, on a channel that can edit it.
pub(super) async fn with_card() -> (tempfile::TempDir, Store, Scribe, Arc<Board>, Driver) {
    let (dir, store, mut scribe) = begun().await;
    let board = Board::new(true);
    let driver = drive(&store, &board, LIVE);
    scribe.say("One. ").await;
    board.until("the card", |shown| shown == [card("Working\n\nOne.")]).await;
    (dir, store, scribe, board, driver)
}

#[tokio::test]
async fn card_is_edited_in_place_and_folded_above_answer() {
    let (_dir, _store, mut scribe, board, driver) = with_card().await;
    scribe.say("Two. ").await;
    scribe.event(EventKind::ToolCall, json!({"toolCallId": "a", "title": "t", "kind": "read"})).await;
    let text = "Working: 1 tool call (1 read)\n\nOne. Two.";
    board.until("the card to change", |shown| shown == [card(text)]).await;
    scribe.done().await;
    let answer = last("One. Two.\n\n[1 tool call (1 read)]");
    let folded = card("Done: 1 tool call (1 read)");
    board.until("the answer", |shown| shown == [folded.clone(), answer.clone()]).await;
    // The next turn has a card of its own, below.
    scribe.start().await;
    scribe.say("Three. ").await;
    let next = card("Working\n\nThree.");
    board.until("the next card", |shown| shown == [folded.clone(), answer.clone(), next.clone()]).await;
    scribe.event(EventKind::Status, json!({"status": "x", "text": "Look here."})).await;
    board.until("a notice beside it", |shown| shown.len() == 4).await;
    driver.stop().await;
}

/// The same on the real console; in `final_only` there is none.
#[tokio::test]
async fn console_has_cards_in_live_mode_only() {
    for (text, want) in [
        (LIVE, vec![("card".to_owned(), "Done".to_owned()), ("final".to_owned(), "One.".to_owned())]),
        ("", vec![("final".to_owned(), "One.".to_owned())]),
    ] {
        let (_dir, store, mut scribe) = begun().await;
        let driver = on_console(&store, text);
        scribe.say("One. ").await;
        if want.len() == 2 {
            assert_eq!(caught_up(&store, "c", 1).await, ["Working\n\nOne."]);
        }
        scribe.done().await;
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

/// A change that the channel will not have: nothing more is shown while the turn runs, and the card that is there says
/// how it ended, and has no button any more.
#[tokio::test]
async fn card_with_refused_edit_still_shows_end() {
    let (_dir, _store, mut scribe, board, driver) = with_card().await;
    board.is_fixed.store(true, Ordering::SeqCst);
    scribe.say("Two. ").await;
    eventually("a refusal", || async { (board.edits.load(Ordering::SeqCst) > 0).then_some(()) }).await;
    board.is_fixed.store(false, Ordering::SeqCst);
    scribe.done().await;
    board.until("the end", |shown| shown == [card("Done"), last("One. Two.")]).await;
    assert_eq!(board.buttons(), [Vec::<String>::new(), Vec::new()]);
    driver.stop().await;
}

/// H20: durable messages pass a card that is stuck, in their own order.
#[tokio::test]
async fn durable_messages_pass_a_stuck_card() {
    let (_dir, _store, mut scribe, board, driver) = with_card().await;
    board.is_stuck.store(true, Ordering::SeqCst);
    scribe.say("Two. ").await;
    board.stuck.notified().await;
    let asked = json!({"permission_id": "p", "params": {"toolCall": {"title": "Write"}, "options": []}});
    scribe.event(EventKind::Permission, asked).await;
    board.until("the question", |shown| shown.len() == 2 && shown[1].0 == PartKind::Permission).await;
    board.stuck.notified().await;
    scribe
        .event(EventKind::PermissionSettled, json!({"permission_id": "p", "option_id": "y", "by": "ann"}))
        .await;
    scribe.done().await;
    let shown = board.until("the answer", |shown| shown.len() == 3).await;
    let kinds: Vec<PartKind> = shown.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [PartKind::Card, PartKind::Permission, PartKind::Final]);
    assert_eq!(shown[0].1, "Working\n\nOne.");
    // The gateway's end does not wait for it either.
    driver.stop().await;
}

#[tokio::test]
async fn without_edits_tool_lines_are_messages_and_text_comes_once() {
    let (_dir, store, mut scribe) = begun().await;
    let board = Board::new(false);
    let driver = drive(&store, &board, &format!("{LIVE}{TOOLS}"));
    scribe.say("One. ").await;
    scribe.event(EventKind::ToolCall, json!({"toolCallId": "a", "title": "t", "kind": "read"})).await;
    board.until("the line", |shown| shown == [card("[read] t")]).await;
    scribe.say("Two.").await;
    scribe.done().await;
    let answer = last("One. \n\n[read] t\n\nTwo.\n\n[1 tool call (1 read)]");
    board.until("the answer", |shown| shown == [card("[read] t"), answer.clone()]).await;
    driver.stop().await;
    assert_eq!(board.edits.load(Ordering::SeqCst), 0);
}

/// A driver that dies leaves a card; the next one goes on with it, or folds it when the turn is over.
#[tokio::test]
async fn card_continues_after_crash() {
    let (_dir, store, mut scribe, board, driver) = with_card().await;
    eventually("the card to be stored", || async {
        let binding_id = store.read("all", rows::delivering_bindings).await.unwrap()[0].binding.binding_id;
        let look = store.read("look", move |db| cards::read_cards(db, binding_id, &key(), 0)).await.unwrap();
        (look.open.len() == 1).then_some(())
    })
    .await;
    driver.kill().await;
    scribe.say("Two. ").await;
    let driver = drive(&store, &board, LIVE);
    board.until("the card to go on", |shown| shown == [card("Working\n\nOne. Two.")]).await;
    driver.kill().await;
    scribe.done().await;
    // Cards are switched off meanwhile: this one is folded all the same.
    let driver = drive(&store, &board, "");
    board.until("the end", |shown| shown == [card("Done"), last("One. Two.")]).await;
    driver.stop().await;
}

/// A channel that is away at that moment costs nobody the truth: what says that a turn goes on is tried again.
#[tokio::test]
async fn card_with_failed_fold_is_folded_later() {
    for is_restarted in [false, true] {
        let (_dir, store, mut scribe, board, mut driver) = with_card().await;
        board.failures.store(u32::MAX, Ordering::SeqCst);
        scribe.done().await;
        board.until("the answer", |shown| shown == [card("Working\n\nOne."), last("One.")]).await;
        eventually("the attempt", || async { (board.edits.load(Ordering::SeqCst) > 0).then_some(()) }).await;
        if is_restarted {
            driver.stop().await;
            driver = drive(&store, &board, LIVE);
        }
        board.failures.store(0, Ordering::SeqCst);
        board.until("the end", |shown| shown == [card("Done"), last("One.")]).await;
        driver.stop().await;
    }
}

/// The gateway dies between the sending of a card and the row that says where it is; the turn ends meanwhile.
#[tokio::test]
async fn card_without_recorded_id_is_found_and_folded() {
    let (_dir, store, mut scribe) = begun().await;
    let board = Board::new(true);
    board.is_lost.store(true, Ordering::SeqCst);
    let driver = drive(&store, &board, LIVE);
    scribe.say("One. ").await;
    board.until("the card", |shown| shown == [card("Working\n\nOne.")]).await;
    driver.kill().await;
    scribe.done().await;
    board.is_lost.store(false, Ordering::SeqCst);
    let driver = drive(&store, &board, LIVE);
    board.until("the end", |shown| shown == [card("Done"), last("One.")]).await;
    driver.stop().await;
}

#[tokio::test]
async fn unbinding_folds_open_card() {
    let (_dir, store, _scribe, board, driver) = with_card().await;
    let binding_id = store.read("all", rows::delivering_bindings).await.unwrap()[0].binding.binding_id;
    store.write("end", move |tx| bindings::end(tx, binding_id, "unbound")).await.unwrap();
    board.until("the card to be folded", |shown| shown == [card("No longer updated")]).await;
    driver.stop().await;
}

/// C8: the turn is over long before the channel takes anything, and all of it arrives.
#[tokio::test]
async fn slow_channel_loses_nothing_after_end_of_turn() {
    for text in [LIVE, LONG] {
        let (_dir, store, _, mut scribe) = bound().await;
        let board = Board::new(true);
        board.is_slow.store(true, Ordering::SeqCst);
        let driver = drive(&store, &board, text);
        two_turns(&mut scribe).await;
        eventually("delivery to begin", || async { (!states(&store).await.is_empty()).then_some(()) }).await;
        scribe.close().await;
        board.is_slow.store(false, Ordering::SeqCst);
        nothing_is_owed(&store).await;
        driver.stop().await;
        let finals: Vec<String> = board
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
