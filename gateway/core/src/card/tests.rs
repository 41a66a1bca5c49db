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
struct Scene {
    card: Card,
    now: u64,
    seq: u64,
    /// Acts with their times.
    done: Vec<(u64, CardUpdate)>,
}

impl Scene {
    fn new(can_edit: bool) -> Self {
        Self::of(Card::new(style(), PACE, can_edit, None, 0))
    }

    fn of(card: Card) -> Self {
        Self { card, now: 0, seq: 0, done: Vec::new() }
    }

    /// Says if an update is an edit to this text.
    fn is_edit(&self, number: usize, want: &str) -> bool {
        matches!(&self.done[number].1, CardUpdate::Edit { text, .. } if text == want)
    }

    fn push(&mut self, kind: EventKind, payload: Value) -> &mut Self {
        self.seq += 1;
        self.card.push(self.now, &row(self.seq, kind, &payload));
        self
    }

    fn say(&mut self, text: &str) -> &mut Self {
        self.push(EventKind::AgentMessage, json!({"content": {"type": "text", "text": text}}))
    }

    fn tool(&mut self, id: &str, status: &str) -> &mut Self {
        let call = json!({"toolCallId": id, "title": id, "kind": "read", "status": status});
        self.push(EventKind::ToolCall, call)
    }

    /// Advances the clock; all acts that fall due succeed at once.
    fn wait(&mut self, ms: u64) -> &mut Self {
        self.wait_with(ms, |_| CardUpdateResult::Shown { message_id: "m".to_owned() })
    }

    fn wait_with(&mut self, ms: u64, mut came: impl FnMut(&CardUpdate) -> CardUpdateResult) -> &mut Self {
        let until = self.now + ms;
        while let Some(at) = self.card.due_at().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            if let Some(act) = self.card.next_update(self.now) {
                self.card.handle_result(self.now, came(&act));
                self.done.push((self.now, act));
            }
        }
        self.now = until;
        self
    }

    fn texts(&self) -> Vec<(u64, &str)> {
        self.done
            .iter()
            .map(|(at, act)| match act {
                CardUpdate::Post { text, .. } | CardUpdate::Edit { text, .. } => (*at, text.as_str()),
            })
            .collect()
    }
}

#[test]
fn changes_are_gathered_and_never_in_the_middle_of_a_phrase() {
    let mut it = Scene::new(true);
    it.say("I will look at").wait(5_000);
    assert_eq!(it.texts(), [(1_000, "Working")], "a phrase that goes on is not shown, however long it takes");
    it.say(" the file. Then").wait(200).say(" I").wait(10_000);
    assert_eq!(it.texts()[1..], [(5_000, "Working\n\nI will look at the file.")]);
    it.say(" will change it,").wait(749);
    assert_eq!(it.done.len(), 2);
    it.wait(1);
    assert_eq!(it.texts()[2], (15_950, "Working\n\nI will look at the file. Then I will change it,"));
}

#[test]
fn what_comes_without_an_end_is_shown_word_by_word_in_bounds() {
    let mut it = Scene::new(true);
    for _ in 0..200 {
        it.say("word ").wait(100);
    }
    let texts = it.texts();
    assert!(texts.len() > 3, "{texts:?}");
    assert!(texts.windows(2).all(|pair| pair[1].0 - pair[0].0 >= PACE.interval_ms), "{texts:?}");
    assert!(texts[1..].iter().all(|(_, text)| text.ends_with("word")), "{texts:?}");
    let last = it.now;
    it.say(&"w".repeat(300)).wait(10_000);
    assert!(it.texts().last().unwrap().0 <= last, "half a word is not shown: {:?}", it.texts().last());
}

#[test]
fn two_changes_are_an_interval_apart_and_the_newest_wins() {
    let mut it = Scene::new(true);
    it.say("One. ").wait(1_000).say("Two. ").say("Three. ").wait(500).say("Four. ").wait(5_000);
    let want = [(1_000, "Working\n\nOne."), (2_000, "Working\n\nOne. Two. Three. Four.")];
    assert_eq!(it.texts(), want);
    assert!(matches!(&it.done[1].1, CardUpdate::Edit { message_id, .. } if message_id == "m"));
}

#[test]
fn a_quick_turn_has_no_card_and_a_quiet_one_says_that_it_works() {
    let mut it = Scene::new(true);
    it.say("Quick.").wait(999);
    assert_eq!(it.done, []);
    assert_eq!(it.card.closing_edit(), None);
    let mut it = Scene::new(true);
    it.wait(60_000);
    assert_eq!(it.texts(), [(1_000, "Working")]);
}

#[test]
fn the_first_line_says_what_goes_on() {
    let mut it = Scene::new(true);
    it.tool("a", "pending").wait(2_000);
    it.push(EventKind::Permission, json!({})).wait(2_000);
    it.push(EventKind::PermissionSettled, json!({})).wait(2_000);
    let heads: Vec<&str> = it.texts().iter().map(|(_, text)| text.lines().next().unwrap()).collect();
    let want = ["Working", "Waiting for a permission", "Working"];
    assert_eq!(heads, want.map(|head| format!("{head}: 1 tool call (1 read)")));
    it.push(EventKind::Done, json!({"stop_reason": "end_turn"}));
    let folded =
        CardUpdate::Edit { message_id: "m".to_owned(), text: "Done: 1 tool call (1 read)".to_owned() };
    assert_eq!(it.card.closing_edit(), Some(folded));
}

/// With one of two questions answered, the agent still waits for a person, and no activity is shown.
#[test]
fn who_waits_for_a_person_does_not_work() {
    let mut it = Scene::new(true);
    assert!(it.card.is_working());
    let about = |id: &str| json!({"permission_id": id});
    for (kind, id, works) in [
        (EventKind::Permission, "a", false),
        (EventKind::Permission, "b", false),
        (EventKind::PermissionSettled, "a", false),
        (EventKind::PermissionSettled, "b", true),
        (EventKind::Done, "", false),
    ] {
        it.push(kind, about(id));
        assert_eq!(it.card.is_working(), works, "{kind:?} {id}");
    }
}

#[test]
fn the_end_is_shown_and_fits() {
    let mut it = Scene::new(true);
    it.say("```rust\n");
    for n in 0..200 {
        it.say(&format!("let a{n} = {n};\n"));
    }
    it.wait(5_000);
    let (_, text) = it.texts()[0];
    assert!(style().limit.fits(text), "{text}");
    assert!(text.starts_with("Working\n\n```rust\nlet a"), "{text}");
    assert!(text.ends_with("let a199 = 199;\n```"), "{text}");
}

#[test]
fn a_long_run_is_kept_in_bounds() {
    let mut it = Scene::new(true);
    for n in 0..5_000 {
        it.say(&format!("Line {n} of a long answer.\n"));
        if n % 100 == 0 {
            it.wait(1_000);
        }
        assert!(it.card.body.text().len() <= KEPT_BYTES.1 + 100);
    }
    it.wait(5_000);
    assert!(it.texts().last().unwrap().1.ends_with("Line 4999 of a long answer."), "{:?}", it.texts().last());
}

#[test]
fn a_message_that_was_deleted_is_posted_anew_and_not_for_ever() {
    let mut it = Scene::new(true);
    it.say("One. ").wait(2_000);
    for n in 2..10 {
        it.say(&format!("Sentence {n}. ")).wait_with(5_000, |act| match act {
            CardUpdate::Edit { .. } => CardUpdateResult::Gone,
            CardUpdate::Post { .. } => CardUpdateResult::Shown { message_id: "m".to_owned() },
        });
    }
    let number =
        |act: &CardUpdate| if let CardUpdate::Post { number, .. } = act { Some(*number) } else { None };
    assert!(it.done.iter().filter_map(|(_, act)| number(act)).eq(0..3));
    assert_eq!(it.card.due_at(), None);
}

#[test]
fn where_nothing_can_be_changed_lines_are_messages_and_text_is_not_repeated() {
    let mut it = Scene::new(false);
    it.say("Looking. ").tool("a", "pending").wait(2_000).tool("a", "completed").tool("b", "failed");
    it.wait(1_000).say("Found it. ").wait(60_000);
    let texts = it.texts();
    assert_eq!(texts[0], (1_000, "[read] a"));
    assert_eq!(texts[1..], [(6_000, "[read] a: done\n[read] b: failed")]);
    let numbers: Vec<&CardUpdate> = it.done.iter().map(|(_, act)| act).collect();
    assert!(
        matches!(numbers[..], [CardUpdate::Post { number: 0, .. }, CardUpdate::Post { number: 1, .. }]),
        "{numbers:?}"
    );
    assert_eq!(it.card.closing_edit(), None);
    // After a restart, the lines are not posted again.
    let mut again = Card::new(style(), PACE, false, Some(it.card.record().clone()), 0);
    again.push(0, &row(2, EventKind::ToolCall, &json!({"toolCallId": "a", "title": "a"})));
    assert_eq!(again.due_at(), None);
}

#[test]
fn what_was_not_shown_is_tried_again_with_the_newest_text() {
    let mut it = Scene::new(true);
    it.say("One. ").wait_with(1_000, |_| CardUpdateResult::Retry { after_ms: Some(7_000) });
    it.say("Two. ").wait(6_999);
    assert_eq!(it.done.len(), 1);
    it.wait(1);
    assert_eq!(it.texts()[1], (8_000, "Working\n\nOne. Two."));
    // The first attempt may have been posted after all, so its number is reused.
    assert!(matches!(it.done[1].1, CardUpdate::Post { number: 0, .. }));
    it.wait(5_000);
    assert!(it.is_edit(2, "Working\n\nOne. Two."), "{:?}", it.done);
    assert_eq!(it.done.len(), 3);
    // The retry delay grows.
    for _ in 0..4 {
        it.say("More. ").wait_with(120_000, |_| CardUpdateResult::Retry { after_ms: None });
    }
    let times: Vec<u64> = it.done[3..].iter().map(|(at, _)| *at).collect();
    let gaps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps[..6], [1_000, 2_000, 4_000, 8_000, 16_000, 30_000]);
    it.wait_with(60_000, |_| CardUpdateResult::Rejected);
    assert_eq!(it.card.due_at(), None);
}

/// After a crash, the card is rebuilt from the same rows and has the same text.
#[test]
fn a_card_that_is_made_again_says_the_same() {
    let mut it = Scene::new(true);
    it.say("One. ").tool("a", "pending").say("Two. ").wait(5_000);
    let known = it.card.record().clone();
    let mut again = Scene::of(Card::new(style(), PACE, true, Some(known), 0));
    again.say("One. ").tool("a", "pending").say("Two. ").wait(5_000);
    assert_eq!(again.texts().last().unwrap().1, it.texts().last().unwrap().1);
    assert!(matches!(again.done[0].1, CardUpdate::Edit { .. }), "{:?}", again.done);
}

/// A crashed process may have posted the card with an older text: it is posted under the same number and then
/// edited.
#[test]
fn a_card_that_may_have_been_sent_is_not_sent_as_another_one() {
    let mut it = Scene::of(Card::new(style(), PACE, true, Some(CardRecord::default()), 0));
    it.say("One. ").wait(5_000);
    assert!(matches!(it.done[0].1, CardUpdate::Post { number: 0, .. }), "{:?}", it.done);
    assert!(it.is_edit(1, "Working\n\nOne."), "{:?}", it.done);
    assert_eq!(it.done.len(), 2);
    // The run has ended by then: the card is searched for, and folded.
    let mut card = Card::new(style(), PACE, true, Some(CardRecord::default()), 0);
    card.push(0, &row(1, EventKind::Done, &json!({"stop_reason": "end_turn"})));
    assert_eq!(card.closing_edit(), None);
    card.set_message_id("7".to_owned());
    let folded = CardUpdate::Edit { message_id: "7".to_owned(), text: "Done".to_owned() };
    assert_eq!(card.closing_edit(), Some(folded));
}

proptest! {
    /// For all inputs and outcomes: edits keep their interval, texts keep their limit, and once no attempt
    /// fails any more, everything up to the last complete sentence is shown.
    #[test]
    fn any_run_is_shown_in_bounds(
        steps in prop::collection::vec((0u8..5, "[a-z .\n`é]{0,40}", 0u64..3_000, 0u8..8), 0..40),
        can_edit in any::<bool>(),
    ) {
        let mut it = Scene::new(can_edit);
        for (what, text, ms, fault) in steps {
            match what {
                0 => it.tool(&text, "pending"),
                1 => it.tool(&text, "completed"),
                _ => it.say(&text),
            };
            it.wait_with(ms, |act| match fault {
                0 => CardUpdateResult::Retry { after_ms: None },
                1 => CardUpdateResult::Retry { after_ms: Some(ms + 500) },
                2 if matches!(act, CardUpdate::Edit { .. }) => CardUpdateResult::Gone,
                _ => CardUpdateResult::Shown { message_id: "m".to_owned() },
            });
        }
        it.say(" The end.\n").wait(200_000);
        let limit = style().limit;
        for pair in it.texts().windows(2) {
            prop_assert!(limit.fits(pair[0].1) && !pair[0].1.trim().is_empty(), "{:?}", pair[0]);
        }
        let is_over = it.card.is_off;
        prop_assert!(it.card.due_at().is_none());
        if can_edit && !is_over {
            prop_assert!(it.texts().last().unwrap().1.trim_end_matches('`').trim_end().ends_with("end."), "{:?}", it.texts().last());
        }
    }
}
