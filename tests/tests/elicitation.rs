//! Questions of an agent are shown once and durably, and a valid answer reaches only its own question.

use acp_tests::cli::{Output, RunningCommand};
use acp_tests::house::House;
use acp_tests::story::{check_answer, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually, until};
use serde_json::{Value, json};

const CHOICE: &str = r#"elicit {"mode":"form","message":"How fast?","requestedSchema":{"type":"object","properties":{"how":{"type":"string","oneOf":[{"const":"s","title":"Slow"},{"const":"f","title":"Fast"}]}},"required":["how"]}}"#;
const FORM: &str = r#"elicit {"mode":"form","message":"Who are you?","requestedSchema":{"type":"object","properties":{"name":{"type":"string","minLength":2},"age":{"type":"integer","minimum":18},"news":{"type":"boolean","default":true}},"required":["name"]}}"#;
const PAGE: &str =
    r#"elicit {"mode":"url","message":"Sign in","url":"https://login.example/x?y=1","elicitationId":"p1"}"#;

fn pending(house: &House, key: &str) -> Vec<Value> {
    let list = house.verb(&["permissions", "list", key]);
    list.as_array().unwrap_or_else(|| panic!("not an array: {list}")).clone()
}

fn one_pending(house: &House, key: &str) -> String {
    let list = eventually(SOON, "question pending", || Some(pending(house, key)).filter(|l| !l.is_empty()));
    assert_eq!(list.len(), 1, "{list:?}");
    list[0]["permission_id"].as_str().unwrap_or_else(|| panic!("{list:?}")).to_owned()
}

fn asked(house: &House, key: &str, script: &str) -> (RunningCommand, String) {
    let turn = house.follow(&["prompt", key, script, "--interactive"]);
    let id = one_pending(house, key);
    (turn, id)
}

fn answer(house: &House, key: &str, id: &str, words: &[&str]) -> Output {
    house.cli(&[&["permissions", "answer", key, id], words].concat())
}

fn settled(events: &[Value]) -> Vec<&Value> {
    events.iter().filter(|event| event["type"] == "permission_settled").collect()
}

/// The list shows the whole question; an invalid answer names the field and leaves it open; the first valid one wins.
#[test]
fn form_is_answered_once_and_only_with_valid_values() {
    let (house, key) = House::new(&[]).with_session();
    let (turn, id) = asked(&house, &key, &format!("{FORM}\nsay after"));
    let shown = pending(&house, &key).remove(0);
    assert_eq!((&shown["title"], &shown["form"]["mode"]), (&json!("Who are you?"), &json!("form")));
    let names: Vec<&Value> =
        shown["form"]["fields"].as_array().into_iter().flatten().map(|field| &field["name"]).collect();
    assert_eq!(names, ["age", "name", "news"], "the order in which the agent sends them");
    for (words, says) in [
        (&["name=A"][..], "Field \"name\": must have at least 2 characters."),
        (&["age=18", "news=no"], "Field \"name\": a value is required."),
        (&["name=Ann", "age=17"], "Field \"age\": must be at least 18."),
        (&["name=Ann", "city=X"], "Field \"city\": the form has no such field"),
    ] {
        let wrong = answer(&house, &key, &id, words);
        assert_eq!((wrong.code, wrong.error_code().as_str()), (Some(2), "USAGE"), "{words:?}");
        assert!(wrong.error()["message"].as_str().is_some_and(|text| text.contains(says)), "{wrong:?}");
    }
    assert_eq!(one_pending(&house, &key), id, "still open");
    assert_eq!(answer(&house, &key, &id, &["name=Ann Lee", "age=20"]).code, Some(0));
    assert_eq!(answer(&house, &key, &id, &["decline"]).code, Some(2), "the first answer wins");
    let events = turn.finish(LONG).ok().lines();
    assert_eq!(chunks(&events), [r#"elicit: accept {"age":20,"name":"Ann Lee","news":true}"#, "after"]);
    let settled = settled(&events);
    assert_eq!((settled.len(), &settled[0]["action"]), (1, &json!("accept")), "{settled:?}");
    assert!(!settled[0].to_string().contains("Ann Lee"), "no typed value is journaled");
    house.end();
}

/// A question survives kills of the gateway before and after its answer, and is answered once.
#[test]
fn question_survives_gateway_kills() {
    let (mut house, key) = House::new(&[]).with_session();
    for (script, words, says) in [
        (CHOICE, &["choice-2"][..], r#"elicit: accept {"how":"f"}"#),
        (FORM, &["name=Ann", "news=no"], r#"elicit: accept {"name":"Ann","news":false}"#),
        (PAGE, &["accept"], "elicit: accept"),
    ] {
        let (turn, id) = asked(&house, &key, script);
        house.restart_gateway();
        assert_eq!(one_pending(&house, &key), id, "the same question after the restart");
        assert_eq!(answer(&house, &key, &id, words).code, Some(0));
        house.restart_gateway();
        assert_eq!(pending(&house, &key), [] as [Value; 0], "it stays answered");
        assert_eq!(answer(&house, &key, &id, &["decline"]).code, Some(2), "and is not answered twice");
        let events = turn.finish(LONG).ok().lines();
        check_answer(&events, [says.to_owned()]);
        assert_eq!(events.iter().filter(|event| event["type"] == "permission").count(), 1, "asked once");
        assert_eq!(settled(&events).len(), 1, "settled once");
    }
    house.end();
}

#[test]
fn unattended_question_is_declined() {
    let (house, key) = House::new(&[]).with_session();
    let events = house.prompt(&key, &format!("{FORM}\n{PAGE}\n{CHOICE}"));
    check_turn(&events, "end_turn");
    assert_eq!(chunks(&events), ["elicit: decline"; 3]);
    assert_eq!(pending(&house, &key), [] as [Value; 0]);
    house.end();
}

#[test]
fn cancelled_turn_cancels_its_question() {
    let (house, key) = House::new(&[]).with_session();
    let (turn, id) = asked(&house, &key, &format!("{FORM}\nsay never"));
    let _ = house.verb(&["sessions", "cancel", &key]);
    let events = turn.finish(LONG).ok().lines();
    check_turn(&events, "cancelled");
    assert_eq!((settled(&events).len(), &settled(&events)[0]["action"]), (1, &json!("cancel")));
    assert_eq!(answer(&house, &key, &id, &["name=Ann"]).code, Some(2));
    check_turn(&house.prompt(&key, "go on"), "end_turn");
    house.end();
}

/// A question that this program cannot ask is refused with the name of the parameter, and the turn goes on.
#[test]
fn unusable_question_is_refused() {
    let (house, key) = House::new(&[]).with_session();
    let script = r#"elicit {"mode":"voice","message":"m"}
elicit {"mode":"url","message":"m","url":"javascript:alert(1)","elicitationId":"p"}
elicit {"mode":"form","message":"m","requestedSchema":{"properties":{"a":{"type":"object"}},"required":["a"]}}"#;
    let turn = house.follow(&["prompt", &key, script, "--interactive"]);
    let events = turn.finish(LONG).ok().lines();
    assert_eq!(chunks(&events), ["elicit: error -32602"; 3]);
    house.end();
}

/// The page is shown whole with its host, and never opened; its completion is reported.
#[test]
fn page_is_shown_whole_and_its_completion_is_reported() {
    let (house, key) = House::new(&[]).with_session();
    assert!(house.say("room", "1", &format!("/focus {key}"))["text"].is_string());
    let (turn, _) =
        asked(&house, &key, &format!("{PAGE}\npage_complete p1\npage_complete p1\npage_complete other"));
    let listed = house.say("room", "2", "/acp permissions");
    let text = listed["text"].as_str().unwrap_or_default();
    assert!(
        text.contains("Page on host login.example") && text.contains("\nhttps://login.example/x?y=1"),
        "{text}"
    );
    let _ = house.say("room", "3", "/acp allow");
    let events = turn.finish(LONG).ok().lines();
    assert_eq!(chunks(&events), ["elicit: accept"]);
    assert_eq!(events.iter().filter(|event| event["status"] == "page_complete").count(), 1, "once");
    house.end();
}

/// Every kind of question is answered by a command of a conversation.
#[test]
fn conversation_answers_questions_by_command() {
    let (house, key) = House::new(&[]).with_session();
    assert!(house.say("room", "1", &format!("/focus {key}"))["text"].is_string());
    let single = r#"elicit {"mode":"form","message":"City?","requestedSchema":{"properties":{"city":{"type":"string"}},"required":["city"]}}"#;
    for (n, (script, command, says)) in [
        (CHOICE, "/acp answer 2", r#"elicit: accept {"how":"f"}"#),
        (CHOICE, "/acp answer how=slow", r#"elicit: accept {"how":"s"}"#),
        (CHOICE, "/acp deny", "elicit: decline"),
        (
            FORM,
            "/acp answer ID name=\"Ann Lee\" age=20",
            r#"elicit: accept {"age":20,"name":"Ann Lee","news":true}"#,
        ),
        (single, "/acp answer Berlin", r#"elicit: accept {"city":"Berlin"}"#),
        (single, "/acp answer 1", r#"elicit: accept {"city":"1"}"#),
    ]
    .into_iter()
    .enumerate()
    {
        let (turn, id) = asked(&house, &key, script);
        let wrong = house.say("room", &format!("wrong{n}"), "/acp answer name= age=1");
        assert!(wrong.to_string().contains("Field \\\""), "{wrong}");
        let said = house.say("room", &format!("right{n}"), &command.replace("ID", &id));
        assert!(said["text"].as_str().is_some_and(|text| text.starts_with("Answered: ")), "{said}");
        check_answer(&turn.finish(LONG).ok().lines(), [says.to_owned()]);
    }
    until(SOON, "nothing pending", || pending(&house, &key).is_empty());
    house.end();
}
