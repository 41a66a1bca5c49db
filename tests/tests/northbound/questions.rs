//! Elicitations with several clients.

use crate::{client, cwd, path, socket, websocket};
use acp_tests::house::House;
use acp_tests::northbound::{Client, agent_text};
use serde_json::{Value, json};

const FORM: &str = r#"elicit {"mode":"form","message":"Who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string","minLength":2}},"required":["name"]}}"#;
const PAGE: &str =
    r#"elicit {"mode":"url","message":"Sign in","url":"https://login.example/x","elicitationId":"p1"}"#;

/// A client that shows forms and pages.
fn showing(house: &House) -> Client {
    let capabilities = json!({"elicitation": {"form": {}, "url": {}}});
    Client::websocket_with(&socket(house), &path(), &capabilities)
}

fn asked_in(messages: &[acp_tests::northbound::Received]) -> bool {
    messages.iter().any(|it| it.json["method"] == "elicitation/create")
}

#[test]
fn form_is_answered_by_the_first_client() {
    let house = House::new(&[]);
    let mut first = showing(&house);
    let session = first.new_session(&cwd(&house));
    let (mut second, mut plain) = (showing(&house), websocket(&house));
    let _ = second.load(&session, None);
    let _ = plain.load(&session, None);
    let prompt = first.prompt(&session, FORM);
    let ((one, _), (two, _)) = (first.question(), second.question());
    assert_eq!((&one["method"], &one["id"]), (&json!("elicitation/create"), &two["id"]));
    assert_eq!((&one["params"]["message"], &one["params"]["mode"]), (&json!("Who?"), &json!("form")));
    assert_eq!(one["params"]["sessionId"], session.as_str());
    assert_eq!(one["params"]["requestedSchema"]["required"], json!(["name"]));
    // A value that does not fit leaves the question open, and it is asked again.
    first.respond(&one, &json!({"action": "accept", "content": {"name": "A"}}));
    let (again, _) = first.question();
    assert_eq!(again["id"], one["id"]);
    // The one that dismisses it leaves it to the other.
    first.respond(&again, &json!({"action": "cancel"}));
    second.respond(&two, &json!({"action": "accept", "content": {"name": "Ann"}}));
    let (_, updates) = first.answer(prompt);
    assert_eq!(agent_text(&updates), r#"elicit: accept {"name":"Ann"}"#);
    let (settled, before) =
        plain.find("the settlement", |it| it.json["method"] == "_acphost/permission/settled");
    assert_eq!(settled.json["params"]["action"], "accept");
    assert!(!asked_in(&before), "a client that shows no forms is not asked");
    house.end();
}

#[test]
fn page_is_opened_by_a_client_and_its_completion_is_reported() {
    let house = House::new(&[]);
    let mut first = showing(&house);
    let session = first.new_session(&cwd(&house));
    let prompt = first.prompt(&session, &format!("{PAGE}\npage_complete p1"));
    let (asked, _) = first.question();
    assert_eq!(asked["params"]["url"], "https://login.example/x");
    first.respond(&asked, &json!({"action": "accept"}));
    let (complete, before) = first.find("the completion", |it| it.json["method"] == "elicitation/complete");
    assert_eq!(complete.json["params"], json!({"elicitationId": "p1"}));
    let (_, updates) = first.answer(prompt);
    assert_eq!(agent_text(&[before, updates].concat()), "elicit: accept");
    house.end();
}

/// The turn of a client that shows no forms does not wait for an answer that nobody can give.
#[test]
fn question_that_no_client_shows_is_cancelled() {
    let house = House::new(&[]);
    let mut first = client(&house);
    let session = first.new_session(&cwd(&house));
    let mut second = websocket(&house);
    let _ = second.load(&session, None);
    let prompt = first.prompt(&session, FORM);
    let (_, updates) = first.answer(prompt);
    assert_eq!(agent_text(&updates), "elicit: cancel");
    assert!(!asked_in(&updates));
    house.end();
}

#[test]
fn question_is_answered_by_the_gateways_own_method() {
    let house = House::new(&[]);
    let mut first = showing(&house);
    let session = first.new_session(&cwd(&house));
    let prompt = first.prompt(&session, FORM);
    let (asked, _) = first.question();
    let id = asked["params"]["_meta"]["acphost"]["permissionId"].clone();
    let mut second = websocket(&house);
    let answer = |more: Value| {
        let mut params = json!({"sessionId": session, "permissionId": id});
        params.as_object_mut().into_iter().for_each(|params| {
            params.extend(more.as_object().cloned().unwrap_or_default());
        });
        params
    };
    let listed = second.call("_acphost/permissions/list", &json!({"sessionId": session}));
    assert_eq!(listed["permissions"][0]["form"]["mode"], "form", "{listed}");
    let accept = answer(json!({"action": "accept", "content": {"name": "Bob"}}));
    assert_eq!(second.call("_acphost/permissions/answer", &accept), json!({}));
    let (withdrawn, _) = first.find("the withdrawal", |it| it.json["method"] == "$/cancel_request");
    assert_eq!(withdrawn.json["params"]["requestId"], asked["id"]);
    let (_, updates) = first.answer(prompt);
    assert_eq!(agent_text(&updates), r#"elicit: accept {"name":"Bob"}"#);
    house.end();
}
