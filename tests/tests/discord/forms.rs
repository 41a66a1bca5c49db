//! Questions of an agent in a thread: choices as buttons, forms in a window or by command, pages with their address.

use crate::stage::{LIVE, Stage, labels};
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::wait::{SOON, until};
use serde_json::json;

const CHOICE: &str = r#"elicit {"mode":"form","message":"How fast?","requestedSchema":{"properties":{"how":{"type":"string","enum":["slow","fast"]}},"required":["how"]}}"#;
const FORM: &str = r#"elicit {"mode":"form","message":"Who are you?","requestedSchema":{"properties":{"name":{"type":"string","title":"Your name"},"age":{"type":"integer","minimum":18},"news":{"type":"boolean","default":true}},"required":["name"]}}"#;
const PAGE: &str = r#"elicit {"mode":"url","message":"Sign in at https://bad.example","url":"https://login.example/x?y=1","elicitationId":"p1"}"#;

/// Waits until the turn has ended with this answer, and its question shows the outcome without buttons.
fn check_outcome(stage: &Stage, thread: Id, asked: &Message, says: [&str; 2], turns: usize) {
    let shown = stage.shows(asked, says[0]);
    assert!(!shown.content.contains("Waits for"), "{}", shown.content);
    until(SOON, "buttons removed", || labels(&stage.message(asked.id, asked.channel_id)).is_empty());
    until(SOON, "turn ended", || stage.finals(thread).len() == turns);
    let last = stage.finals(thread).pop().unwrap_or_default();
    assert!(last.contains(says[1]), "{last}");
}

/// A choice by button, and refusals by button and by command.
#[test]
fn choice_is_answered_by_button() {
    let (stage, thread) = Stage::new(&[], LIVE).with_thread();
    for (turns, (how, says)) in (1..).zip([
        ("fast", [r"Answered: “fast” (by “boss”).", "elicit: accept"]),
        ("Decline", ["Answered: “Decline” (by “boss”).", "elicit: decline"]),
        ("/acp deny", ["Answered: “Decline” (by “boss”).", "elicit: decline"]),
    ]) {
        stage.fake.post(stage.ann, thread, &CHOICE.replace("How fast?", &format!("How fast {turns}?")));
        let asked = stage.said(thread, &format!("The agent asks: **How fast {turns}?**"));
        assert_eq!(labels(&asked), ["slow", "fast", "Decline"]);
        stage.said(thread, "Waiting for an answer");
        if how.starts_with('/') {
            stage.fake.post(stage.boss, thread, how);
        } else {
            drop(stage.press(stage.boss, &asked, how));
        }
        check_outcome(&stage, thread, &asked, says, turns);
    }
    stage.end();
}

/// A form is filled in in a window; invalid values name the field, and the form stays open.
#[test]
fn form_is_filled_in_in_a_window() {
    let (stage, thread) = Stage::new(&[], LIVE).with_thread();
    stage.fake.post(stage.ann, thread, FORM);
    let asked = stage.said(thread, "The agent asks: **Who are you?**");
    assert_eq!(labels(&asked), ["Fill in", "Decline"]);
    let opened = stage.press(stage.boss, &asked, "Fill in");
    let modal = opened.answered.as_ref().unwrap_or_else(|| panic!("{opened:?}"));
    assert_eq!(modal.kind, 9, "a window");
    let labels: Vec<_> =
        (0..3).map(|n| modal.data.pointer(&format!("/components/{n}/components/0/label"))).collect();
    assert_eq!(labels, [Some(&json!("age")), Some(&json!("Your name")), Some(&json!("news"))]);

    let wrong = stage.submit(stage.boss, &opened, &[("0", "17"), ("1", "Ann")]);
    assert!(stage.private_answer(&wrong).contains("Field \"age\": must be at least 18."), "{wrong:?}");
    let of_ann = stage.press(stage.ann, &asked, "Fill in");
    let refused = stage.submit(stage.ann, &of_ann, &[("1", "Ann")]);
    assert!(!stage.private_answer(&refused).starts_with("Answered"), "only approvers answer");

    let opened = stage.press(stage.boss, &asked, "Fill in");
    let right = stage.submit(stage.boss, &opened, &[("0", "20"), ("1", "Ann \"B\" Lee"), ("2", "no")]);
    drop(right);
    check_outcome(
        &stage,
        thread,
        &asked,
        [
            "Answered: “Submitted” (by “boss”).",
            r#"elicit: accept {"age":20,"name":"Ann \"B\" Lee","news":false}"#,
        ],
        1,
    );
    // The window that is still open elsewhere is too late.
    let late = stage.submit(stage.boss, &opened, &[("1", "Bob")]);
    assert!(stage.private_answer(&late).contains("no longer pending"), "{late:?}");
    stage.end();
}

/// The slash command and the typed command take the values of a form.
#[test]
fn form_is_answered_by_commands() {
    let (stage, thread) = Stage::new(&[], LIVE).with_thread();
    for turns in 1..=2 {
        stage.fake.post(stage.ann, thread, &FORM.replace("Who are", &format!("Who {turns} are")));
        let asked = stage.said(thread, &format!("The agent asks: **Who {turns} are you?**"));
        assert!(asked.content.contains("\nAnswer with /acp answer "), "{}", asked.content);
        let id = asked.content.rsplit_once(" id ").map(|(_, id)| id.to_owned()).unwrap_or_default();
        if turns == 1 {
            let fields = [("option", json!("name=\"Ann Lee\" age=20")), ("id", json!(id))];
            drop(stage.command(stage.boss, thread, "acp answer", &fields));
        } else {
            stage.fake.post(stage.boss, thread, "/acp answer name=\"Ann Lee\" age=20");
        }
        let says = ["Answered: “Submitted” (by “boss”).", r#"{"age":20,"name":"Ann Lee","news":true}"#];
        check_outcome(&stage, thread, &asked, says, turns);
    }
    stage.end();
}

/// The address is shown whole with its host and is no link; addresses in the message are none either.
#[test]
fn page_is_shown_whole_without_links() {
    let (stage, thread) = Stage::new(&[], LIVE).with_thread();
    stage.fake.post(stage.ann, thread, PAGE);
    let asked = stage.said(thread, "The agent asks: **Sign in at https\\://bad.example**");
    let page =
        "\nPage on host `login.example`. The gateway does not open it:\n`https://login.example/x?y=1`\n";
    assert!(asked.content.contains(page), "{}", asked.content);
    assert_eq!(labels(&asked), ["I will open the page", "Decline"]);
    drop(stage.press(stage.boss, &asked, "I will open the page"));
    check_outcome(
        &stage,
        thread,
        &asked,
        ["Answered: “I will open the page” (by “boss”).", "elicit: accept"],
        1,
    );
    stage.end();
}
