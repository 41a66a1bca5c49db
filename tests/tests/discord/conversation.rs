//! A session in a thread from spawn to close: turns, cards, permission requests.

use crate::stage::{LIVE, Stage, button, labels, texts};
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::wait::{SOON, eventually, until};
use serde_json::json;

/// A turn that takes long enough to have a card.
const LONG: &str = "say Begun.\nsleep 4000\nsay \\nStill going.\nsleep 4000\nsay \\nOver.";

#[test]
fn thread_session_shows_answers_cards_and_reactions() {
    let (stage, thread) = Stage::new(&[], LIVE).with_thread();
    let starter = stage.told(stage.channel);
    let made = stage.fake.channel(thread);
    assert_eq!(made.parent_id, Some(stage.channel));
    let intro = starter.iter().find(|message| message.id == thread);
    let intro = intro.unwrap_or_else(|| panic!("the thread has its starter: {starter:#?}"));
    assert!(intro.content.contains("is bound here"), "{}", intro.content);

    let first = stage.exchange(thread, "say one", &["one"]);
    stage.reacted(first, thread, "✅");
    // Mentions in an agent's text ping nobody.
    stage.exchange(thread, "say @everyone @here", &["one", "@everyone @here"]);
    // Long turn: its card is shown, edited, and folded above the answer.
    let long = stage.fake.post(stage.ann, thread, LONG);
    stage.reacted(long, thread, "👀");
    let card = stage.said(thread, "Working");
    stage.shows(&card, "Begun.");
    assert_eq!(labels(&card), ["Stop"]);
    stage.answers(thread, &["one", "@everyone @here", "Begun.\nStill going.\nOver."]);
    let folded = stage.shows(&card, "Done");
    assert!(labels(&folded).is_empty() && folded.edits >= 2, "{folded:?}");
    until(SOON, "receipt reaction removed", || {
        stage.message(long, thread).reactions.get("👀").is_none_or(std::collections::BTreeSet::is_empty)
    });
    let spoke = texts(&stage.told(stage.channel));
    let starters = stage.told(stage.channel).into_iter().filter(|it| it.origin.is_none()).count();
    assert_eq!(starters, 1, "nothing but the starter: {spoke:#?}");
    until(SOON, "typing indicator shown", || stage.fake.tally().typing.contains_key(&thread.to_string()));
    stage.end();
}

#[test]
fn permission_button_answers_once() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.fake.post(stage.ann, thread, "permission Delete everything");
    let asked = stage.said(thread, "Delete everything");
    let shown = labels(&asked);
    assert_eq!(shown.len(), 4, "{asked:?}");
    let ids = shown.iter().map(|label| button(&asked, label));
    for (number, id) in (1..).zip(ids) {
        assert!(id.ends_with(&format!(" {number}")), "in the agent's order: {id}");
    }
    // Users who may not prompt or not approve get ephemeral refusals.
    for (user, part) in [(stage.eve, "may not use"), (stage.ann, "")] {
        let refused = stage.press(user, &asked, &shown[0]);
        let why = stage.private_answer(&refused);
        assert!(why.contains(part), "{why}");
        assert_eq!(labels(&stage.message(asked.id, thread)), shown, "it can still be answered: {why}");
    }
    // The buttons stay for a moment: a second click gets an ephemeral refusal.
    let stalls = RestFate::StallBefore { ms: Some(2_000) };
    stage.fake.rest_fault("PATCH /channels/{}/messages/{}", When::Next(1), stalls);
    stage.press(stage.boss, &asked, &shown[2]);
    until(SOON, "turn ended", || !stage.house.agent_events("turn_end").is_empty());
    let late = stage.press(stage.boss, &asked, &shown[0]);
    let why = stage.private_answer(&late);
    assert!(why.contains("Answered: ") && why.contains("boss"), "{why}");
    let answered = stage.shows(&asked, "Answered: ");
    assert!(answered.content.contains("boss"), "{}", answered.content);
    until(SOON, "buttons removed", || labels(&stage.message(asked.id, thread)).is_empty());
    stage.answers(thread, &["permission: selected reject_once"]);
    // The same answer by command after the request is settled.
    let id = button(&asked, &shown[0]);
    let id = id.split_whitespace().rev().nth(1).unwrap_or_default().to_owned();
    let late = stage.command(stage.boss, thread, "acp answer", &[("option", json!("1")), ("id", json!(id))]);
    let why = stage.answer(&late);
    assert!(why.contains("Answered: ") && why.contains("boss"), "{why}");
    stage.end();
}

#[test]
fn unfocus_focus_and_close_are_confirmed() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let key = stage.key(thread);
    let said = stage.answer(&stage.command(stage.ann, thread, "unfocus", &[]));
    assert!(said.contains(&key), "{said}");
    stage.fake.post(stage.ann, thread, "say nobody hears this");
    let said = stage.answer(&stage.command(stage.ann, thread, "focus", &[("session", json!(key))]));
    assert!(said.contains(&key), "{said}");
    stage.exchange(thread, "say heard", &["heard"]);
    stage.answer(&stage.command(stage.ann, thread, "acp close", &[]));
    let farewell = eventually(SOON, "farewell shown", || {
        stage.told(thread).into_iter().rfind(|message| message.content.contains("session is closed"))
    });
    let says = ["by ann", "/acp spawn"];
    assert!(says.iter().all(|part| farewell.content.contains(part)), "{}", farewell.content);
    until(SOON, "session closed", || stage.session_state(&key) == "closed");
    assert_eq!(stage.house.prompts_received("say nobody hears this"), 0);
    stage.end();
}
