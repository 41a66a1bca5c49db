//! A session in a thread from its spawn to its end: turns, cards, questions.

use crate::stage::{Stage, button, labels, texts};
use acp_tests::wait::{SOON, eventually, until};
use serde_json::json;

/// A card that changes as often as it may.
const LIVE: &str = "[acp.stream]\ndelivery_mode = \"live\"\nmin_interval_ms = 500\ncoalesce_idle_ms = 750\n";

#[test]
fn a_session_lives_in_its_thread() {
    let stage = Stage::new(&[], LIVE);
    let thread = stage.spawn();
    let starter = stage.told(stage.channel);
    let made = stage.fake.channel(thread);
    assert_eq!(made.parent_id, Some(stage.channel));
    assert!(starter.iter().any(|message| message.id == thread), "it hangs from its starter: {starter:#?}");
    let intro = stage.said(thread, "session agent:");
    assert!(intro.content.contains("works here now"), "{}", intro.content);

    let first = stage.fake.post(stage.ann, thread, "say one");
    stage.answers(thread, &["one"]);
    stage.reacted(first, thread, "✅");
    // A long one: its card is shown, changed, and folded when the answer stands below it.
    let long = stage.fake.post(stage.ann, thread, "say Begun.\nsleep 4000\nsay  Still going.\nsleep 4000\nsay  Over.");
    stage.reacted(long, thread, "👀");
    let card = stage.said(thread, "Working");
    stage.shows(&card, "Begun.");
    assert_eq!(labels(&card), ["Stop"]);
    stage.answers(thread, &["one", "Begun. Still going. Over."]);
    let folded = stage.shows(&card, "Done");
    assert!(labels(&folded).is_empty() && folded.edits >= 2, "{folded:?}");
    until(SOON, "the reaction of receipt goes", || {
        stage.message(long, thread).reactions.get("👀").is_none_or(std::collections::BTreeSet::is_empty)
    });
    let spoke = texts(&stage.told(stage.channel));
    let starters = stage.told(stage.channel).into_iter().filter(|it| it.origin.is_none()).count();
    assert_eq!(starters, 1, "nothing but the starter: {spoke:#?}");
    assert!(stage.fake.tally().typing.contains_key(&thread.to_string()));
    stage.end();
}

#[test]
fn a_question_is_answered_by_a_button_once() {
    let stage = Stage::new(&[], "");
    let thread = stage.spawn();
    stage.fake.post(stage.ann, thread, "permission Delete everything");
    let asked = stage.said(thread, "Delete everything");
    let shown = labels(&asked);
    assert_eq!(shown.len(), 4, "{asked:?}");
    let ids = shown.iter().map(|label| button(&asked, label));
    for (number, id) in (1..).zip(ids) {
        assert!(id.ends_with(&format!(" {number}")), "in the agent's order: {id}");
    }
    // Who may not speak at all, and who may not answer, hear so alone.
    for (user, part) in [(stage.eve, "may not use"), (stage.ann, "")] {
        let refused = stage.press(user, &asked, &shown[0]);
        let why = stage.private_answer(&refused);
        assert!(why.contains(part), "{why}");
        assert_eq!(labels(&stage.message(asked.id, thread)), shown, "it can still be answered: {why}");
    }
    stage.press(stage.boss, &asked, &shown[2]);
    let answered = stage.shows(&asked, "Answered: ");
    assert!(answered.content.contains("boss"), "{}", answered.content);
    until(SOON, "the buttons are gone", || labels(&stage.message(asked.id, thread)).is_empty());
    stage.answers(thread, &["permission: selected reject_once"]);
    // Somebody who had the message open with its buttons types the answer.
    let id = button(&asked, &shown[0]);
    let id = id.split_whitespace().rev().nth(1).unwrap_or_default().to_owned();
    let late = stage.command(stage.boss, thread, "acp answer", &[("option", json!("1")), ("id", json!(id))]);
    let why = stage.answer(&late);
    assert!(why.contains("answered") && why.contains("boss"), "{why}");
    stage.end();
}

#[test]
fn it_is_unfocused_and_closed_with_words() {
    let stage = Stage::new(&[], "");
    let thread = stage.spawn();
    let intro = stage.said(thread, "session agent:").content;
    let key = intro.split("session ").nth(1).and_then(|rest| rest.split([',', ' ']).next()).unwrap_or_default();
    let key = key.trim_end_matches('.').to_owned();
    let said = stage.answer(&stage.command(stage.ann, thread, "unfocus", &[]));
    assert!(said.contains(&key), "{said}");
    stage.fake.post(stage.ann, thread, "say nobody hears this");
    let said = stage.answer(&stage.command(stage.ann, thread, "focus", &[("session", json!(key))]));
    assert!(said.contains(&key), "{said}");
    stage.fake.post(stage.ann, thread, "say heard");
    stage.answers(thread, &["heard"]);
    let used = stage.command(stage.ann, thread, "acp close", &[]);
    stage.answer(&used);
    let farewell = eventually(SOON, "the farewell", || {
        stage.told(thread).into_iter().rfind(|message| message.content.contains("losed"))
    });
    assert!(farewell.content.contains(&key), "{}", farewell.content);
    assert_eq!(stage.house.prompts_received("say nobody hears this"), 0);
    stage.end();
}
