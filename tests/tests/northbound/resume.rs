//! Clients that lose their stream, their connection or the gateway.

use crate::{client, cwd, path, socket, websocket};
use acp_tests::house::House;
use acp_tests::northbound::{Client, Received, agent_text, prompt_params, seqs};
use acp_tests::wait::{SOON, until};
use serde_json::{Value, json};
use std::time::Duration;

/// Ids of the events of these messages.
fn ids(messages: &[Received]) -> Vec<String> {
    messages.iter().filter_map(|it| it.id.clone()).collect()
}

#[test]
fn stream_resumes_by_event_id_without_loss_or_repetition() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    client.open(&session, None);
    let id = client.prompt(&session, "chunks 40 pace_ms=20");
    let mut all: Vec<Received> = Vec::new();
    for cut in 1..5 {
        let (last, before) = client.find("a chunk", |it| {
            it.json["params"]["update"]["sessionUpdate"] == "agent_message_chunk"
                && it.id.is_some()
                && agent_text(std::slice::from_ref(it))
                    .trim_start_matches('0')
                    .starts_with(&format!("{}", cut * 7))
        });
        all.extend(before.into_iter().filter(|it| it.stream == session));
        all.push(last);
        client.cut(&session);
        // What the old stream still delivers, the client takes, as one that reads its buffer to the end.
        let (_, rest) = client.find("the end of the stream", |it| it.stream == session && it.json.is_null());
        all.extend(rest.into_iter().filter(|it| it.stream == session));
        let place = all.iter().rev().find_map(|it| it.id.clone());
        client.open(&session, place.as_deref());
    }
    let (answer, rest) = client.answer(id);
    all.extend(rest.into_iter().filter(|it| it.stream == session));
    assert_eq!(answer.json["result"]["stopReason"], "end_turn");
    let chunks: Vec<String> =
        all.iter().map(|it| agent_text(std::slice::from_ref(it))).filter(|text| !text.is_empty()).collect();
    let numbers: Vec<u64> =
        chunks.iter().filter_map(|text| text.split('.').next()?.trim().parse().ok()).collect();
    assert_eq!(numbers, (1..=40).collect::<Vec<u64>>());
    let ids = ids(&all);
    let mut unique = ids.clone();
    unique.dedup();
    assert_eq!(ids, unique);
    // The answer is kept: a client that did not receive it gets it again, and nothing before it.
    let before = ids.last().cloned();
    client.open(&session, before.as_deref());
    let (again, nothing) = client.answer(id);
    assert_eq!(again.json, answer.json);
    assert!(nothing.iter().all(|it| it.json.is_null()), "{nothing:?}");
    house.end();
}

#[test]
fn five_reopened_streams_each_deliver() {
    let house = House::with_approve_all(&[]);
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    for n in 0..5 {
        client.open(&session, None);
        let id = client.prompt(&session, &format!("say {n}"));
        let (answer, updates) = client.answer(id);
        assert_eq!(answer.stream, session);
        assert_eq!(agent_text(&updates), n.to_string());
    }
    house.end();
}

#[test]
fn load_with_a_cursor_repeats_what_follows_it() {
    let house = House::with_approve_all(&[]);
    let mut first = client(&house);
    let session = first.new_session(&cwd(&house));
    let id = first.prompt(&session, "chunks 10");
    let (_, updates) = first.answer(id);
    let seqs_of = seqs(&updates);
    let (middle, last) = (seqs_of[4], seqs_of[seqs_of.len() - 1]);
    let mut second = websocket(&house);
    let (loaded, rest) = second.load(&session, Some(middle));
    let want: Vec<u64> = seqs_of.iter().copied().filter(|seq| *seq > middle).collect();
    assert!(seqs(&rest).starts_with(&want), "{rest:?}");
    let end = loaded.json["result"]["_meta"]["acphost"]["lastSeq"].as_u64();
    let (_, nothing) = second.load(&session, end);
    assert!(nothing.is_empty(), "{nothing:?} {last}");
    let params =
        |ours: Value| json!({"sessionId": session, "cwd": "/", "mcpServers": [], "_meta": {"acphost": ours}});
    for ours in [json!({"after": 1_000_000}), json!({"after": 1, "epoch": "another"})] {
        let refused = second.refusal("session/load", &params(ours));
        assert_eq!((&refused["code"], &refused["data"]["code"]), (&json!(-32602), &json!("CURSOR_EPOCH")));
    }
    let resumed = second.call("session/resume", &params(json!({})));
    assert_eq!(resumed["_meta"]["acphost"]["activeRunId"], Value::Null);
    house.end();
}

#[test]
fn turn_survives_a_lost_client_and_others_see_all_of_it() {
    let house = House::with_approve_all(&[]);
    let mut first = websocket(&house);
    let session = first.new_session(&cwd(&house));
    let mut second = client(&house);
    let _ = second.load(&session, None);
    let _ = first.prompt(&session, "chunks 20 pace_ms=20\nsay end");
    second
        .find("the first chunk", |it| it.json["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
    drop(first);
    let (idle, rest) =
        second.find("the end", |it| it.json["params"]["_meta"]["acphost"]["turn"]["state"] == "idle");
    assert_eq!(idle.json["params"]["_meta"]["acphost"]["turn"]["stopReason"], "end_turn");
    assert!(agent_text(&rest).ends_with("end"), "{rest:?}");
    house.end();
}

#[test]
fn prompt_repeated_over_a_gateway_restart_runs_once() {
    let mut house = House::with_approve_all(&[]);
    let mut first = client(&house);
    let session = first.new_session(&cwd(&house));
    let mut params = prompt_params(&session, "say one\nsleep 400\nsay two");
    params["_meta"] = json!({"acphost": {"idempotencyKey": "my-key-1"}});
    let _ = first.request("session/prompt", &params);
    first.find("the first update", |it| it.json["params"]["update"]["content"]["text"] == "one");
    house.restart_gateway();
    let mut second = Client::http(&socket(&house), &path());
    let _ = second.load(&session, None);
    let id = second.request("session/prompt", &params);
    let (answer, _) = second.answer(id);
    assert_eq!(answer.json["result"]["stopReason"], "end_turn");
    let again = second.request("session/prompt", &params);
    assert_eq!(
        second.answer(again).0.json["result"]["stopReason"],
        "end_turn",
        "an ended run is answered, too"
    );
    let prompts = house.history(&session).iter().filter(|event| event["type"] == "prompt").count();
    assert_eq!(prompts, 1);
    house.end();
}

#[test]
fn connection_without_streams_ends_and_its_turn_does_not() {
    let house = acp_tests::house::Plan::default()
        .permission("approve-all")
        .gateway("[northbound]\ndetach_grace_ms = 300")
        .build();
    let mut client = client(&house);
    let session = client.new_session(&cwd(&house));
    let _ = client.prompt(&session, "say one\nsleep 1500\nsay two");
    client.cut(acp_tests::northbound::CONNECTION);
    until(SOON, "the connection ends", || client.post("{}", &[]).status == 404);
    until(SOON, "the turn ends", || house.history(&session).iter().any(|event| event["type"] == "done"));
    house.end();
}

#[test]
fn sigterm_ends_open_streams_at_once() {
    let mut house = House::with_approve_all(&[]);
    let mut http = client(&house);
    let session = http.new_session(&cwd(&house));
    http.open(&session, None);
    let mut ws = websocket(&house);
    let _ = ws.load(&session, None);
    let started = std::time::Instant::now();
    house.stop_gateway();
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    http.find("the end of the stream", |it| it.json.is_null());
    ws.find("the end of the socket", |it| it.json.is_null());
    house.start_gateway();
    house.end();
}
