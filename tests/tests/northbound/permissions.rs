//! Permission requests with several clients.

use crate::{client, cwd, websocket};
use acp_tests::house::House;
use acp_tests::northbound::{Client, agent_text};
use serde_json::{Value, json};

/// A house with a session that asks, and two clients on it.
fn two(house: &House) -> (Client, Client, String) {
    let mut first = client(house);
    let session = first.new_session(&cwd(house));
    let mut second = websocket(house);
    let _ = second.load(&session, None);
    (first, second, session)
}

fn settled(client: &mut Client) -> Value {
    let (found, _) = client.find("the settlement", |it| it.json["method"] == "_acphost/permission/settled");
    found.json["params"].clone()
}

#[test]
fn first_answer_wins_and_the_other_card_goes() {
    let house = House::new(&[]);
    let (mut first, mut second, session) = two(&house);
    let prompt = first.prompt(&session, "permission Delete everything");
    let ((one, _), (two, _)) = (first.question(), second.question());
    assert_eq!(one["id"], two["id"]);
    assert!(one["id"].as_str().is_some_and(|id| id.starts_with("perm:")), "{one}");
    assert_eq!(one["params"]["sessionId"], session.as_str());
    assert_eq!(one["params"]["toolCall"]["title"], "Delete everything");
    second.choose(&two, "allow_once");
    let (withdrawn, _) = first.find("the withdrawal", |it| it.json["method"] == "$/cancel_request");
    assert_eq!(withdrawn.json["params"]["requestId"], one["id"]);
    assert_eq!(settled(&mut first)["optionId"], "allow_once");
    assert_eq!(settled(&mut second)["optionId"], "allow_once");
    // A late answer after the withdrawal is dropped.
    first.choose(&one, "reject_once");
    let (_, updates) = first.answer(prompt);
    assert_eq!(agent_text(&updates), "permission: selected allow_once");
    assert_eq!(first.call("_acphost/ping", &json!({})), json!({}));
    house.end();
}

#[test]
fn answers_at_the_same_time_settle_once() {
    let house = House::new(&[]);
    let (mut first, mut second, session) = two(&house);
    for round in 0..5 {
        let prompt = first.prompt(&session, "permission");
        let ((one, _), (two, _)) = (first.question(), second.question());
        first.choose(&one, "allow_once");
        second.choose(&two, "reject_once");
        let (_, updates) = first.answer(prompt);
        let text = agent_text(&updates);
        let outcomes = ["permission: selected allow_once", "permission: selected reject_once"];
        assert!(outcomes.contains(&text.as_str()), "round {round}: {text}");
        let told = settled(&mut second);
        assert!(text.ends_with(told["optionId"].as_str().unwrap_or("?")), "{told}");
    }
    house.end();
}

#[test]
fn pending_question_comes_again_after_load_once_with_the_same_id() {
    let house = House::new(&[]);
    let mut first = client(&house);
    let session = first.new_session(&cwd(&house));
    let prompt = first.prompt(&session, "permission");
    let (asked, _) = first.question();
    drop(first);
    let mut second = client(&house);
    let (loaded, before) = second.load(&session, None);
    assert!(
        before.iter().all(|it| it.json["method"] != "session/request_permission"),
        "the answer comes first"
    );
    let pending = loaded.json["result"]["_meta"]["acphost"]["pendingPermissions"].as_array().map(Vec::len);
    assert_eq!(pending, Some(1), "{loaded:?}");
    let (again, _) = second.question();
    assert_eq!(again["id"], asked["id"]);
    second.choose(&again, "allow_once");
    let (_, rest) =
        second.find("the end", |it| it.json["params"]["_meta"]["acphost"]["turn"]["state"] == "idle");
    assert!(rest.iter().all(|it| it.json["method"] != "session/request_permission"), "{prompt}: {rest:?}");
    assert_eq!(agent_text(&rest), "permission: selected allow_once");
    house.end();
}

#[test]
fn invalid_answers_leave_the_question_and_end_the_vote_at_the_third() {
    let house = House::new(&[]);
    let (mut first, mut second, session) = two(&house);
    let prompt = second.prompt(&session, "permission");
    let (other, _) = second.question();
    for answer in
        [json!({"outcome": {"outcome": "selected", "optionId": "no such"}}), json!({"x": 1}), json!(null)]
    {
        let (asked, _) = first.question();
        assert_eq!(asked["id"], other["id"]);
        first.respond(&asked, &answer);
    }
    // No vote any more: its valid answer counts nothing.
    assert_eq!(first.call("_acphost/ping", &json!({})), json!({}));
    first.choose(&other, "reject_once");
    assert_eq!(first.call("_acphost/ping", &json!({})), json!({}));
    second.choose(&other, "allow_once");
    let (_, updates) = second.answer(prompt);
    assert_eq!(agent_text(&updates), "permission: selected allow_once");
    house.end();
}

#[test]
fn dismissal_abstains_while_others_can_answer_and_settles_from_the_last() {
    let house = House::new(&[]);
    let (mut first, mut second, session) = two(&house);
    let cancelled = json!({"outcome": {"outcome": "cancelled"}});
    let prompt = first.prompt(&session, "permission");
    let ((one, _), (two, _)) = (first.question(), second.question());
    first.respond(&one, &cancelled);
    assert_eq!(first.call("_acphost/ping", &json!({})), json!({}));
    let pending = house.verb(&["permissions", "list", &session]);
    assert_eq!(pending.as_array().map(Vec::len), Some(1), "another client can answer");
    second.respond(&two, &cancelled);
    let (_, updates) = first.answer(prompt);
    assert_eq!(agent_text(&updates), "permission: cancelled");
    house.end();
}

#[test]
fn error_of_a_client_is_no_vote() {
    let house = House::new(&[]);
    let (mut first, mut second, session) = two(&house);
    let prompt = first.prompt(&session, "permission");
    let ((one, _), (two, _)) = (first.question(), second.question());
    first.send(&json!({"jsonrpc": "2.0", "id": one["id"], "error": {"code": -32601, "message": "no"}}));
    second.choose(&two, "allow_once");
    let (_, updates) = first.answer(prompt);
    assert_eq!(agent_text(&updates), "permission: selected allow_once");
    house.end();
}

#[test]
fn end_of_turn_takes_the_card_away() {
    let house = House::new(&[]);
    let (mut first, mut second, session) = two(&house);
    let prompt = first.prompt(&session, "permission");
    let ((one, _), _) = (first.question(), second.question());
    second.notify("session/cancel", &json!({"sessionId": session}));
    let (withdrawn, _) = first.find("the withdrawal", |it| it.json["method"] == "$/cancel_request");
    assert_eq!(withdrawn.json["params"]["requestId"], one["id"]);
    let (answer, _) = first.answer(prompt);
    assert_eq!(answer.json["result"]["stopReason"], "cancelled");
    house.end();
}

#[test]
fn answer_through_the_command_line_settles_the_question_of_clients() {
    let house = House::new(&[]);
    let (mut first, _second, session) = two(&house);
    let prompt = first.prompt(&session, "permission");
    let (asked, _) = first.question();
    let id = asked["id"].as_str().and_then(|id| id.strip_prefix("perm:")).unwrap_or_default().to_owned();
    let _ = house.verb(&["permissions", "answer", &session, &id, "allow_always"]);
    let (withdrawn, _) = first.find("the withdrawal", |it| it.json["method"] == "$/cancel_request");
    assert_eq!(withdrawn.json["params"]["requestId"], asked["id"]);
    let (_, updates) = first.answer(prompt);
    assert_eq!(agent_text(&updates), "permission: selected allow_always");
    house.end();
}
