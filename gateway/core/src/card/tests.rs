use super::*;
use crate::config::Separator;
use crate::message_split::Unit;
use crate::tests;
use acp_shared::ids::RunId;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;

const PACE: UpdateRate = UpdateRate { idle_ms: 750, interval_ms: 1_000 };

fn style() -> Style {
    let limit = MessageLimit::new(Unit::Utf16, 400);
    Style { limit, separator: Separator::Space, tags: BTreeMap::new(), ..crate::render::tests::style() }
}

fn row(session_seq: u64, kind: EventKind, payload: &Value) -> EventRow {
    let run_id = RunId::parse("01890a5d-ac96-774b-bcce-b30200000001").ok();
    EventRow { session_seq, run_id, seq: Some(session_seq), ..tests::event(kind, payload) }
}

/// Card in a channel, with a controlled clock.
struct CardFixture {
    card: Card,
    now: u64,
    seq: u64,
    updates: Vec<(u64, CardUpdate)>,
}

impl CardFixture {
    fn new(can_edit: bool) -> Self {
        Self::with_card(Card::new(style(), PACE, can_edit, None, 0))
    }

    fn with_card(card: Card) -> Self {
        Self { card, now: 0, seq: 0, updates: Vec::new() }
    }

    fn is_edit(&self, number: usize, want: &str) -> bool {
        matches!(&self.updates[number].1, CardUpdate::Edit { text, .. } if text == want)
    }

    fn push(&mut self, kind: EventKind, payload: Value) -> &mut Self {
        self.seq += 1;
        self.card.push(self.now, &row(self.seq, kind, &payload));
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.push(EventKind::AgentMessage, json!({"content": {"type": "text", "text": text}}))
    }

    fn tool(&mut self, id: &str, status: &str) -> &mut Self {
        let call = json!({"toolCallId": id, "title": id, "kind": "read", "status": status});
        self.push(EventKind::ToolCall, call)
    }

    /// Advances the clock; all updates that fall due succeed at once.
    fn advance(&mut self, ms: u64) -> &mut Self {
        self.advance_with(ms, |_| CardUpdateResult::Shown { message_id: "m".to_owned() })
    }

    fn advance_with(
        &mut self,
        ms: u64,
        mut respond: impl FnMut(&CardUpdate) -> CardUpdateResult,
    ) -> &mut Self {
        let until = self.now + ms;
        while let Some(at) = self.card.due_at().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            if let Some(update) = self.card.next_update(self.now) {
                self.card.handle_result(self.now, respond(&update));
                self.updates.push((self.now, update));
            }
        }
        self.now = until;
        self
    }

    fn texts(&self) -> Vec<(u64, &str)> {
        self.updates
            .iter()
            .map(|(at, update)| match update {
                CardUpdate::Post { text, .. } | CardUpdate::Edit { text, .. } => (*at, text.as_str()),
            })
            .collect()
    }
}

#[test]
fn updates_are_coalesced_at_phrase_ends() {
    let mut world = CardFixture::new(true);
    world.text("I will look at").advance(5_000);
    assert_eq!(world.texts(), [(1_000, "Working")], "an unfinished phrase is not shown");
    world.text(" the file. Then").advance(200).text(" I").advance(10_000);
    assert_eq!(world.texts()[1..], [(5_000, "Working\n\nI will look at the file.")]);
    world.text(" will change it,").advance(749);
    assert_eq!(world.updates.len(), 2);
    world.advance(1);
    assert_eq!(world.texts()[2], (15_950, "Working\n\nI will look at the file. Then I will change it,"));
}

#[test]
fn endless_phrase_is_shown_at_word_ends() {
    let mut world = CardFixture::new(true);
    for _ in 0..200 {
        world.text("word ").advance(100);
    }
    let texts = world.texts();
    assert!(texts.len() > 3, "{texts:?}");
    assert!(texts.windows(2).all(|pair| pair[1].0 - pair[0].0 >= PACE.interval_ms), "{texts:?}");
    assert!(texts[1..].iter().all(|(_, text)| text.ends_with("word")), "{texts:?}");
    let last = world.now;
    world.text(&"w".repeat(300)).advance(10_000);
    assert!(world.texts().last().unwrap().0 <= last, "half a word is not shown: {:?}", world.texts().last());
}

#[test]
fn updates_keep_interval_and_newest_text_wins() {
    let mut world = CardFixture::new(true);
    world
        .text("One. ")
        .advance(1_000)
        .text("Two. ")
        .text("Three. ")
        .advance(500)
        .text("Four. ")
        .advance(5_000);
    let want = [(1_000, "Working\n\nOne."), (2_000, "Working\n\nOne. Two. Three. Four.")];
    assert_eq!(world.texts(), want);
    assert!(matches!(&world.updates[1].1, CardUpdate::Edit { message_id, .. } if message_id == "m"));
}

#[test]
fn quick_turn_has_no_card_and_silent_turn_has_one() {
    let mut world = CardFixture::new(true);
    world.text("Quick.").advance(999);
    assert_eq!(world.updates, []);
    assert_eq!(world.card.closing_edit(), None);
    let mut world = CardFixture::new(true);
    world.advance(60_000);
    assert_eq!(world.texts(), [(1_000, "Working")]);
}

#[test]
fn first_line_shows_state_of_turn() {
    let mut world = CardFixture::new(true);
    world.tool("a", "pending").advance(2_000);
    world.push(EventKind::Permission, json!({})).advance(2_000);
    world.push(EventKind::PermissionSettled, json!({})).advance(2_000);
    let heads: Vec<&str> = world.texts().iter().map(|(_, text)| text.lines().next().unwrap()).collect();
    let want = ["Working", "Waiting for a permission", "Working"];
    assert_eq!(heads, want.map(|head| format!("{head}: 1 tool call (1 read)")));
    world.push(EventKind::Done, json!({"stop_reason": "end_turn"}));
    let folded =
        CardUpdate::Edit { message_id: "m".to_owned(), text: "Done: 1 tool call (1 read)".to_owned() };
    assert_eq!(world.card.closing_edit(), Some(folded));
}

/// With one of two questions answered, the agent still waits for a person, and no activity is shown.
#[test]
fn turn_waiting_for_permission_is_not_working() {
    let mut world = CardFixture::new(true);
    assert!(world.card.is_working());
    let about = |id: &str| json!({"permission_id": id});
    for (kind, id, works) in [
        (EventKind::Permission, "a", false),
        (EventKind::Permission, "b", false),
        (EventKind::PermissionSettled, "a", false),
        (EventKind::PermissionSettled, "b", true),
        (EventKind::Done, "", false),
    ] {
        world.push(kind, about(id));
        assert_eq!(world.card.is_working(), works, "{kind:?} {id}");
    }
}

#[test]
fn card_shows_end_of_long_text_within_limit() {
    let mut world = CardFixture::new(true);
    world.text("```rust\n");
    for n in 0..200 {
        world.text(&format!("let a{n} = {n};\n"));
    }
    world.advance(5_000);
    let (_, text) = world.texts()[0];
    assert!(style().limit.fits(text), "{text}");
    assert!(text.starts_with("Working\n\n```rust\nlet a"), "{text}");
    assert!(text.ends_with("let a199 = 199;\n```"), "{text}");
}

#[test]
fn card_memory_is_bounded() {
    let mut world = CardFixture::new(true);
    for n in 0..5_000 {
        world.text(&format!("Line {n} of a long answer.\n"));
        if n % 100 == 0 {
            world.advance(1_000);
        }
        assert!(world.card.body.text().len() <= KEPT_BYTES.1 + 100);
    }
    world.advance(5_000);
    assert!(
        world.texts().last().unwrap().1.ends_with("Line 4999 of a long answer."),
        "{:?}",
        world.texts().last()
    );
}

#[test]
fn deleted_card_is_reposted_a_limited_number_of_times() {
    let mut world = CardFixture::new(true);
    world.text("One. ").advance(2_000);
    for n in 2..10 {
        world.text(&format!("Sentence {n}. ")).advance_with(5_000, |update| match update {
            CardUpdate::Edit { .. } => CardUpdateResult::Gone,
            CardUpdate::Post { .. } => CardUpdateResult::Shown { message_id: "m".to_owned() },
        });
    }
    let number =
        |update: &CardUpdate| if let CardUpdate::Post { number, .. } = update { Some(*number) } else { None };
    assert!(world.updates.iter().filter_map(|(_, update)| number(update)).eq(0..3));
    assert_eq!(world.card.due_at(), None);
}

#[test]
fn without_edits_tool_lines_are_posted_once() {
    let mut world = CardFixture::new(false);
    world.text("Looking. ").tool("a", "pending").advance(2_000).tool("a", "completed").tool("b", "failed");
    world.advance(1_000).text("Found it. ").advance(60_000);
    let texts = world.texts();
    assert_eq!(texts[0], (1_000, "[read] a"));
    assert_eq!(texts[1..], [(6_000, "[read] a: done\n[read] b: failed")]);
    let numbers: Vec<&CardUpdate> = world.updates.iter().map(|(_, update)| update).collect();
    assert!(
        matches!(numbers[..], [CardUpdate::Post { number: 0, .. }, CardUpdate::Post { number: 1, .. }]),
        "{numbers:?}"
    );
    assert_eq!(world.card.closing_edit(), None);
    // After a restart, the lines are not posted again.
    let mut restored = Card::new(style(), PACE, false, Some(world.card.record().clone()), 0);
    restored.push(0, &row(2, EventKind::ToolCall, &json!({"toolCallId": "a", "title": "a"})));
    assert_eq!(restored.due_at(), None);
}

#[test]
fn failed_update_is_retried_with_newest_text() {
    let mut world = CardFixture::new(true);
    world.text("One. ").advance_with(1_000, |_| CardUpdateResult::Retry { after_ms: Some(7_000) });
    world.text("Two. ").advance(6_999);
    assert_eq!(world.updates.len(), 1);
    world.advance(1);
    assert_eq!(world.texts()[1], (8_000, "Working\n\nOne. Two."));
    // The first attempt may have been posted after all, so its number is reused.
    assert!(matches!(world.updates[1].1, CardUpdate::Post { number: 0, .. }));
    world.advance(5_000);
    assert!(world.is_edit(2, "Working\n\nOne. Two."), "{:?}", world.updates);
    assert_eq!(world.updates.len(), 3);
    // The retry delay grows.
    for _ in 0..4 {
        world.text("More. ").advance_with(120_000, |_| CardUpdateResult::Retry { after_ms: None });
    }
    let times: Vec<u64> = world.updates[3..].iter().map(|(at, _)| *at).collect();
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps[..6], [1_000, 2_000, 4_000, 8_000, 16_000, 30_000]);
    world.advance_with(60_000, |_| CardUpdateResult::Rejected);
    assert_eq!(world.card.due_at(), None);
}

/// After a crash, the card is rebuilt from the same rows and has the same text.
#[test]
fn restored_card_has_the_same_text() {
    let mut world = CardFixture::new(true);
    world.text("One. ").tool("a", "pending").text("Two. ").advance(5_000);
    let known = world.card.record().clone();
    let mut restored = CardFixture::with_card(Card::new(style(), PACE, true, Some(known), 0));
    restored.text("One. ").tool("a", "pending").text("Two. ").advance(5_000);
    assert_eq!(restored.texts().last().unwrap().1, world.texts().last().unwrap().1);
    assert!(matches!(restored.updates[0].1, CardUpdate::Edit { .. }), "{:?}", restored.updates);
}

/// A crashed process may have posted the card with an older text: it is posted under the same number and then
/// edited.
#[test]
fn possibly_sent_card_reuses_its_number() {
    let mut world = CardFixture::with_card(Card::new(style(), PACE, true, Some(CardRecord::default()), 0));
    world.text("One. ").advance(5_000);
    assert!(matches!(world.updates[0].1, CardUpdate::Post { number: 0, .. }), "{:?}", world.updates);
    assert!(world.is_edit(1, "Working\n\nOne."), "{:?}", world.updates);
    assert_eq!(world.updates.len(), 2);
    // The run has ended by then: the card is searched for, and folded.
    let mut card = Card::new(style(), PACE, true, Some(CardRecord::default()), 0);
    card.push(0, &row(1, EventKind::Done, &json!({"stop_reason": "end_turn"})));
    assert_eq!(card.closing_edit(), None);
    card.set_message_id("7".to_owned());
    let folded = CardUpdate::Edit { message_id: "7".to_owned(), text: "Done".to_owned() };
    assert_eq!(card.closing_edit(), Some(folded));
}

proptest! {
    /// For all inputs and outcomes: edits keep their interval, texts keep their limit, and once attempts
    /// succeed, everything up to the last complete sentence is shown.
    #[test]
    fn card_updates_respect_limits_for_any_run(
        steps in prop::collection::vec((0u8..5, "[a-z .\n`é]{0,40}", 0u64..3_000, 0u8..8), 0..40),
        can_edit in any::<bool>(),
    ) {
        let mut world = CardFixture::new(can_edit);
        for (kind, text, ms, fault) in steps {
            match kind {
                0 => world.tool(&text, "pending"),
                1 => world.tool(&text, "completed"),
                _ => world.text(&text),
            };
            world.advance_with(ms, |update| match fault {
                0 => CardUpdateResult::Retry { after_ms: None },
                1 => CardUpdateResult::Retry { after_ms: Some(ms + 500) },
                2 if matches!(update, CardUpdate::Edit { .. }) => CardUpdateResult::Gone,
                _ => CardUpdateResult::Shown { message_id: "m".to_owned() },
            });
        }
        world.text(" The end.\n").advance(200_000);
        let limit = style().limit;
        for pair in world.texts().windows(2) {
            prop_assert!(limit.fits(pair[0].1) && !pair[0].1.trim().is_empty(), "{:?}", pair[0]);
        }
        let is_over = world.card.is_off;
        prop_assert!(world.card.due_at().is_none());
        if can_edit && !is_over {
            prop_assert!(world.texts().last().unwrap().1.trim_end_matches('`').trim_end().ends_with("end."), "{:?}", world.texts().last());
        }
    }
}
