//! Turns of one and of several clients.

use crate::{client, cwd, websocket};
use acp_tests::house::House;
use acp_tests::northbound::{CONNECTION, Client, Received, agent_text, prompt_params, seqs, user_texts};
use acp_tests::wait::{SOON, until};
use serde_json::json;

/// Turn updates in these messages.
fn turns(messages: &[Received]) -> Vec<String> {
    let turns = messages.iter().map(|message| &message.json["params"]["_meta"]["acphost"]["turn"]);
    turns
        .filter_map(|turn| {
            Some(format!("{} {}", turn["state"].as_str()?, turn["author"].as_str().unwrap_or("")))
        })
        .collect()
}

fn whole_turn(mut client: Client, house: &House) {
    let session = client.new_session(&cwd(house));
    let id = client.prompt(&session, "say one\nthought hm\nplan a; b\ntool run true\nsay two");
    let (answer, updates) = client.answer(id);
    assert_eq!(answer.json["result"]["stopReason"], "end_turn", "{answer:?}");
    assert_eq!(agent_text(&updates), "onetwo");
    let kinds: Vec<&str> =
        updates.iter().filter_map(|it| it.json["params"]["update"]["sessionUpdate"].as_str()).collect();
    for kind in ["agent_thought_chunk", "plan", "tool_call", "tool_call_update"] {
        assert!(kinds.contains(&kind), "{kind} is not in {kinds:?}");
    }
    let seqs = seqs(&updates);
    assert!(seqs.is_sorted() && !seqs.is_empty(), "{seqs:?}");
    assert!(user_texts(&updates).is_empty(), "the sender gets no echo");
}

#[test]
fn prompt_is_streamed_and_answered_over_http() {
    let house = House::with_approve_all(&[]);
    whole_turn(client(&house), &house);
    house.end();
}

#[test]
fn prompt_is_streamed_and_answered_over_websocket() {
    let house = House::with_approve_all(&[]);
    whole_turn(websocket(&house), &house);
    house.end();
}

#[test]
fn answer_never_overtakes_an_update() {
    let house = House::with_approve_all(&[]);
    for mut client in [client(&house), websocket(&house)] {
        let session = client.new_session(&cwd(&house));
        if client.info["agentCapabilities"].is_object() {
            let id = client.prompt(&session, "chunks 2000");
            let (_, updates) = client.answer(id);
            let chunks = updates
                .iter()
                .filter(|it| it.json["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
            assert_eq!(chunks.count(), 2_000);
            let late = client.next_within(std::time::Duration::from_millis(200));
            assert!(late.is_none(), "{late:?}");
        }
    }
    house.end();
}

#[test]
fn second_client_loads_a_running_turn_and_sees_it_live() {
    let house = House::with_approve_all(&[]);
    let mut first = client(&house);
    let session = first.new_session(&cwd(&house));
    let id = first.prompt(&session, "say before\nwait_cancel");
    first.find("the first update", |it| it.json["params"]["update"]["content"]["text"] == "before");
    let mut second = websocket(&house);
    let (loaded, history) = second.load(&session, None);
    assert_eq!(user_texts(&history), ["say before\nwait_cancel"]);
    assert_eq!(agent_text(&history), "before");
    let ours = &loaded.json["result"]["_meta"]["acphost"];
    assert!(ours["activeRunId"].is_string() && ours["epoch"].is_string(), "{ours}");
    second.notify("session/cancel", &json!({"sessionId": session}));
    let (answer, _) = first.answer(id);
    assert_eq!(answer.json["result"]["stopReason"], "cancelled", "any client may cancel");
    let (idle, _) =
        second.find("the end", |it| it.json["params"]["_meta"]["acphost"]["turn"]["state"] == "idle");
    assert_eq!(idle.json["params"]["_meta"]["acphost"]["turn"]["stopReason"], "cancelled");
    house.end();
}

#[test]
fn observers_see_prompts_of_others_and_senders_do_not_see_their_own() {
    let house = House::with_approve_all(&[]);
    let mut first = client(&house);
    let session = first.new_session(&cwd(&house));
    let mut second = client(&house);
    second.open(&session, None);
    let (loaded, _) = second.load(&session, None);
    assert_eq!(loaded.stream, session, "the answer is on the stream of the replay");
    let id = second.prompt(&session, "say hello");
    let (_, own) = second.answer(id);
    assert!(user_texts(&own).is_empty(), "{own:?}");
    let (_, seen) =
        first.find("the end", |it| it.json["params"]["_meta"]["acphost"]["turn"]["state"] == "idle");
    assert_eq!((user_texts(&seen), agent_text(&seen)), (vec!["say hello"], "hello".to_owned()));
    assert_eq!(turns(&seen).len(), 1, "{seen:?}");
    assert!(own.iter().all(|it| it.stream == session || it.stream == CONNECTION));
    house.end();
}

#[test]
fn queued_prompt_is_answered_when_its_own_run_ends_and_cancelled_alone() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    let running = client.prompt(&session, "say one\nwait_cancel");
    client.find("the first update", |it| it.json["params"]["update"]["content"]["text"] == "one");
    let (dropped, last) = (client.prompt(&session, "say two"), client.prompt(&session, "say three"));
    client.notify("$/cancel_request", &json!({"requestId": dropped}));
    let (answer, _) = client.answer(dropped);
    assert_eq!(answer.json["result"]["stopReason"], "cancelled");
    client.notify("$/cancel_request", &json!({"requestId": running}));
    let (answer, _) = client.answer(running);
    assert_eq!(answer.json["result"]["stopReason"], "cancelled");
    let (answer, updates) = client.answer(last);
    assert_eq!(answer.json["result"]["stopReason"], "end_turn");
    assert_eq!(agent_text(&updates), "three");
    house.end();
}

#[test]
fn session_cancel_stops_the_turn_and_own_queued_prompts_and_is_answered_with_an_id() {
    let house = House::with_approve_all(&[]);
    let mut first = client(&house);
    let session = first.new_session(&cwd(&house));
    let mut second = websocket(&house);
    let _ = second.load(&session, None);
    let own = first.prompt(&session, "say one\nwait_cancel");
    first.find("the first update", |it| it.json["params"]["update"]["content"]["text"] == "one");
    let queued = first.prompt(&session, "say two");
    let other = second.prompt(&session, "say three");
    until(SOON, "all prompts are accepted", || {
        house.history(&session).iter().filter(|event| event["type"] == "prompt").count() == 3
    });
    assert_eq!(first.call("session/cancel", &json!({"sessionId": session})), json!({}));
    let mut cancelled = Vec::new();
    while cancelled.len() < 2 {
        let (answer, _) = first.find("an answer", |it| it.json["result"]["stopReason"] == "cancelled");
        cancelled.push(answer.json["id"].as_u64());
    }
    cancelled.sort_unstable();
    assert_eq!(cancelled, [Some(own), Some(queued)]);
    let (answer, _) = second.answer(other);
    assert_eq!(answer.json["result"]["stopReason"], "end_turn", "the prompt of another client stays");
    house.end();
}

#[test]
fn repeated_prompt_runs_once_and_gets_the_same_answer() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    let prompt = json!({"jsonrpc": "2.0", "id": "again", "method": "session/prompt",
        "params": prompt_params(&session, "say once")});
    for _ in 0..3 {
        client.send(&prompt);
        let (answer, _) = client.find("the answer", |it| it.json["id"] == "again");
        assert_eq!(answer.json["result"]["stopReason"], "end_turn");
    }
    let prompts = house.history(&session).iter().filter(|event| event["type"] == "prompt").count();
    assert_eq!(prompts, 1);
    let mut other = prompt;
    other["params"] = prompt_params(&session, "say something else");
    client.send(&other);
    let (answer, _) = client.find("the refusal", |it| it.json["id"] == "again");
    assert_eq!(answer.json["error"]["data"]["code"], "ACP_IDEMPOTENCY_CONFLICT", "{answer:?}");
    house.end();
}

#[test]
fn failed_turn_is_answered_with_the_error_of_the_agent() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    let error = client.refusal("session/prompt", &prompt_params(&session, "error -32055 full"));
    assert_eq!((&error["code"], &error["message"]), (&json!(-32055), &json!("full")));
    assert_eq!(client.call("_acphost/ping", &json!({})), json!({}), "the connection lives");
    house.end();
}

#[test]
fn close_cancels_the_own_turn_answers_it_and_keeps_the_session() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    let prompt = client.prompt(&session, "say one\nwait_cancel");
    client.find("the first update", |it| it.json["params"]["update"]["content"]["text"] == "one");
    let close = client.request("session/close", &json!({"sessionId": session}));
    let (closed, before) = client.answer(close);
    assert_eq!(closed.json["result"], json!({}));
    let answered =
        before.iter().find(|it| it.json["id"] == prompt).map(|it| &it.json["result"]["stopReason"]);
    assert_eq!(answered, Some(&json!("cancelled")), "{before:?}");
    let refused = client.refusal("session/prompt", &prompt_params(&session, "say two"));
    assert_eq!(refused["code"], -32002, "the connection has closed it");
    let (loaded, history) = client.load(&session, None);
    assert!(loaded.json["result"].is_object() && agent_text(&history).contains("one"));
    house.end();
}

#[test]
fn deleted_session_is_not_listed_and_not_loaded_and_deleting_is_idempotent() {
    let house = House::with_approve_all(&[]);
    let mut client = websocket(&house);
    let session = client.new_session(&cwd(&house));
    let listed = |client: &mut Client| {
        let list = client.call("session/list", &json!({"cwd": cwd(&house)}));
        list["sessions"]
            .as_array()
            .map_or(0, |list| list.iter().filter(|it| it["sessionId"] == session).count())
    };
    assert_eq!(listed(&mut client), 1);
    for _ in 0..2 {
        assert_eq!(client.call("session/delete", &json!({"sessionId": session})), json!({}));
    }
    assert_eq!(listed(&mut client), 0);
    let refused =
        client.refusal("session/load", &json!({"sessionId": session, "cwd": "/", "mcpServers": []}));
    assert_eq!(refused["code"], -32002);
    assert_eq!(client.call("session/list", &json!({"cwd": "/no/such"})), json!({"sessions": []}));
    house.end();
}

#[test]
fn modes_and_options_are_advertised_set_and_agree_with_rest() {
    let house = House::with_approve_all(&["--modes", "--options"]);
    let mut client = client(&house);
    let new = client.call("session/new", &json!({"cwd": cwd(&house), "mcpServers": []}));
    let session = new["sessionId"].as_str().unwrap_or_default().to_owned();
    let of = |result: &serde_json::Value, id: &str| {
        let list = result["configOptions"].as_array().cloned().unwrap_or_default();
        list.into_iter().find(|option| option["id"] == id).map(|option| option["currentValue"].clone())
    };
    assert_eq!(new["modes"]["availableModes"].as_array().map(Vec::len), Some(2), "{new}");
    assert_eq!(of(&new, "model"), Some(json!("small")), "{new}");
    client.call("session/set_mode", &json!({"sessionId": session, "modeId": "ask"}));
    let set = json!({"sessionId": session, "configId": "model", "value": "big"});
    let answer = client.call("session/set_config_option", &set);
    assert_eq!(of(&answer, "model"), Some(json!("big")));
    assert_eq!(
        answer["configOptions"].as_array().map(Vec::len),
        new["configOptions"].as_array().map(Vec::len)
    );
    let (loaded, _) = client.load(&session, None);
    let result = &loaded.json["result"];
    assert_eq!((&result["modes"]["currentModeId"], of(result, "model")), (&json!("ask"), Some(json!("big"))));
    let shown = house.verb(&["sessions", "show", &session]);
    assert!(shown.to_string().contains("big"), "{shown}");
    let refused = client.refusal("session/set_mode", &json!({"sessionId": session, "modeId": "no such"}));
    assert_eq!(refused["code"], -32010, "{refused}");
    house.end();
}
