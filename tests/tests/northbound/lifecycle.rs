//! Ends of streams, connections and sessions, and what they leave.

use crate::{client, cwd, path, socket, websocket};
use acp_tests::house::{House, Plan};
use acp_tests::northbound::{CONNECTION, agent_text, http, prompt_params};
use acp_tests::wait::{LONG, SOON, until};
use serde_json::{Value, json};

const JSON: (&str, &str) = ("content-type", "application/json");

fn has_metric(house: &House, line: &str) -> bool {
    http(&socket(house), "GET", "/metrics", &[], "").body.lines().any(|have| have == line)
}

/// True if one line of the gateway's log has all these words.
fn is_logged(house: &House, words: &[&str]) -> bool {
    house.gateway_log().lines().any(|line| words.iter().all(|word| line.contains(word)))
}

#[test]
fn reset_streams_leave_their_places_and_the_end_is_logged() {
    let house =
        Plan::default().permission("approve-all").gateway("[northbound]\ndetach_grace_ms = 300").build();
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    client.open(&session, None);
    assert!(has_metric(&house, "acp_client_streams_open 2"));
    client.cut(&session);
    client.cut(CONNECTION);
    until(SOON, "the streams are gone", || has_metric(&house, "acp_client_streams_open 0"));
    until(SOON, "the connection is gone", || has_metric(&house, "acp_clients_open 0"));
    assert!(is_logged(&house, &["acp connection ended", "no_streams"]), "{}", house.gateway_log());
    assert_eq!(client.post("{}", &[]).status, 404);
    house.end();
}

#[test]
fn failing_prompt_without_an_id_is_logged() {
    let house = House::new(&[]);
    let mut client = client(&house);
    client.notify("session/prompt", &prompt_params("no-such", "hi"));
    until(SOON, "a line of the log", || is_logged(&house, &["acp notification failed", "session/prompt"]));
    assert_eq!(client.call("_acphost/ping", &json!({})), json!({}));
    house.end();
}

#[test]
fn connection_over_the_cap_gets_503_and_is_logged_with_the_cap() {
    let house = House::new(&[]);
    let first = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}});
    let initialize = || http(&socket(&house), "POST", &path(), &[JSON], &first.to_string());
    let mut opened = 0;
    let refused = loop {
        let answer = initialize();
        if answer.status != 200 {
            break answer;
        }
        opened += 1;
    };
    // One principal has three quarters of them.
    assert_eq!((opened, refused.status), (768, 503), "{refused:?}");
    assert_eq!(refused.header("retry-after").as_deref(), Some("5"));
    assert!(is_logged(&house, &["acp connection refused: too many", "1024"]), "{}", house.gateway_log());
    assert_eq!(http(&socket(&house), "GET", "/v1/health", &[], "").status, 200);
    house.end();
}

#[test]
fn closes_at_the_same_time_end_the_agent_once() {
    let house = House::with_approve_all(&[]);
    let (mut first, mut second) = (client(&house), websocket(&house));
    let session = first.new_session(&cwd(&house));
    let _ = second.load(&session, None);
    let shown = |field: &str| house.verb(&["sessions", "show", &session])[field].clone();
    let lease = house.lease(&session);
    let close = json!({"sessionId": session});
    let (one, two) = (first.request("session/close", &close), second.request("session/close", &close));
    assert_eq!(first.answer(one).0.json["result"], json!({}));
    assert_eq!(second.answer(two).0.json["result"], json!({}));
    house.wait_for_lease_end(&lease);
    until(SOON, "the session rests", || shown("lease_id").is_null());
    assert_eq!((shown("state"), shown("resumable")), (json!("idle"), json!(true)));
    let ends = json!(house.history(&session)).to_string().matches("agent_rests").count();
    assert_eq!(ends, 1);
    // The next prompt wakes the agent.
    let _ = first.load(&session, None);
    let prompt = first.prompt(&session, "say again");
    assert_eq!(agent_text(&first.answer(prompt).1), "again");
    house.end();
}

#[test]
fn close_keeps_an_agent_that_others_use() {
    let house = House::with_approve_all(&[]);
    let (mut first, mut second) = (client(&house), client(&house));
    let session = first.new_session(&cwd(&house));
    let _ = second.load(&session, None);
    let lease = house.verb(&["sessions", "show", &session])["lease_id"].clone();
    assert_eq!(first.call("session/close", &json!({"sessionId": session})), json!({}));
    let prompt = second.prompt(&session, "say still");
    assert_eq!(agent_text(&second.answer(prompt).1), "still");
    assert_eq!(house.verb(&["sessions", "show", &session])["lease_id"], lease);
    house.end();
}

#[test]
fn question_of_a_client_that_left_is_settled_by_its_deadline() {
    let house = Plan::default().gateway("[permission]\ntimeout_ms = 1500\n").build();
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    let _ = client.prompt(&session, "permission");
    let _ = client.question();
    drop(client);
    let ended = |event: &Value| event["type"] == "done" || event["type"] == "error";
    until(LONG, "the turn ends", || house.history(&session).iter().any(ended));
    let history = json!(house.history(&session)).to_string();
    assert!(history.contains("\"without\":\"deadline\""), "{history}");
    assert_eq!(house.verb(&["permissions", "list", &session]), json!([]));
    house.end();
}
