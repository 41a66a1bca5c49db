//! Bindings with real processes: stale bindings are reported and removed only if allowed, a start removes them and keeps
//! the others, and the answers of a bound session appear once in its conversation.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::cli::run;
use acp_tests::house::{AGENT, GATEWAY, House, Plan};
use acp_tests::scrape::Scrape;
use acp_tests::story::check_turn;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::GATEWAY_DB;
use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;

/// Executes SQL on the gateway's database to create a state that the gateway itself would never commit.
#[expect(clippy::disallowed_methods, reason = "the test damages what the store would protect")]
fn damage(house: &House, sql: &str) {
    let db = Connection::open(house.world.path(GATEWAY).join(GATEWAY_DB)).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    db.execute_batch(sql).unwrap();
}

/// Spawns a session from a conversation and returns its key.
fn spawn(house: &House, conversation: &str) -> String {
    let cwd = house.world.dir("work/project");
    let text = format!("/acp spawn {AGENT} --cwd {}", cwd.display());
    let spawned = house.say(conversation, "spawn", &text);
    let told = spawned["text"].as_str().unwrap_or_default();
    assert!(told.contains("is bound here") && told.contains("The binding ends after 1d"), "{spawned}");
    spawned["session_key"].as_str().unwrap().to_owned()
}

/// Texts of the gateway and the agents in a conversation, in order.
fn told(house: &House, conversation: &str) -> Vec<String> {
    let db = house.world.journal(GATEWAY);
    let sql = "SELECT text FROM console_message WHERE conversation_id = ?1 AND kind <> 'person' ORDER BY id";
    let mut rows = db.prepare(sql).unwrap();
    let texts = rows.query_map([conversation], |row| row.get(0)).unwrap().map(Result::unwrap);
    texts.collect()
}

fn check_of_doctor(house: &House, name: &str) -> Value {
    // The first line has the checks; a failure adds an error line.
    let doctor = house.cli(&["doctor"]).lines().swap_remove(0);
    doctor.as_array().unwrap().iter().find(|check| check["name"] == name).unwrap().clone()
}

#[test]
fn stale_binding_is_reported_and_removed_only_if_allowed() {
    for allowed in [false, true] {
        let toml = format!("[session.thread_bindings]\nauto_unbind_stale = {allowed}\n");
        let house = Plan::flags(&[]).gateway(&toml).build();
        let key = spawn(&house, "room");
        assert_eq!(check_of_doctor(&house, "bindings")["verdict"], "ok");
        damage(&house, "UPDATE acp_sessions SET state = 'closed'");
        let found = check_of_doctor(&house, "bindings");
        let named = format!("console/default/room -> {key} (session-closed)");
        assert_eq!(found["verdict"], "failed");
        assert!(found["detail"].as_str().unwrap().contains(&named), "{found}");
        for id in ["1", "2"] {
            let refused = house.say("room", id, "hello");
            let gone = allowed && id == "2";
            let code = if gone { "ACP_NOT_BOUND" } else { "ACP_STALE_BINDING" };
            assert_eq!((&refused["outcome"], &refused["failure"]["code"]), (&"refused".into(), &code.into()));
            let text = refused["failure"]["message"].as_str().unwrap().to_owned();
            assert_eq!(text.contains("the binding was removed"), allowed && !gone, "{text}");
            let said = told(&house, "room").pop().unwrap_or_default();
            assert!(said.starts_with(&text), "the conversation shows the refusal: {said}");
        }
        let now = Scrape::fetch(&house.gateway().socket());
        let detected = now.value("acp_stale_binding_detections_total{channel=\"console\"}");
        let removed = now.value("acp_stale_binding_removals_total{channel=\"console\",when=\"inbound\"}");
        let want = if allowed { (1.0, 1.0, 0.0) } else { (2.0, 0.0, 1.0) };
        assert_eq!((detected, removed, now.value("acp_stale_bindings")), want);
        assert_eq!(house.prompts_received("hello"), 0);
    }
}

#[test]
fn start_removes_stale_bindings_and_keeps_the_others() {
    let mut house = House::new(&[]);
    let lost = spawn(&house, "lost");
    let kept = spawn(&house, "kept");
    let touched = |house: &House| {
        let sql = "SELECT last_activity_at FROM acp_bindings WHERE thread_id = 'kept'";
        house.world.journal(GATEWAY).query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let before = touched(&house);
    assert_eq!(house.say("kept", "1", "say one")["outcome"], "prompted");
    until(SOON, "answer shown", || told(&house, "kept").last().is_some_and(|text| text == "one"));
    // The end of the turn and the delivery of its answer count as activity too.
    let pending = "SELECT (SELECT count(*) FROM acp_runs WHERE ended_at IS NULL) \
        + (SELECT count(*) FROM acp_delivery_part WHERE state IN ('planned','sending'))";
    until(SOON, "the turn and its delivery are over", || {
        house.world.journal(GATEWAY).query_row(pending, [], |row| row.get::<_, i64>(0)).unwrap() == 0
    });
    let after = touched(&house);
    assert!(after > before, "{after} {before}");
    house.kill_gateway();
    damage(&house, &format!("UPDATE acp_sessions SET state = 'closed' WHERE session_key = '{lost}'"));
    house.start_gateway();
    assert_eq!(touched(&house), after, "a kill loses no update of the activity time");
    assert_eq!(check_of_doctor(&house, "bindings")["verdict"], "ok");
    assert!(house.gateway_log().contains("stale binding removed"));
    let refused = house.say("lost", "1", "say lost");
    assert_eq!(refused["failure"]["code"], "ACP_NOT_BOUND", "{refused}");
    assert_eq!(house.say("kept", "2", "say two")["session_key"], kept);
    until(LONG, "answer shown", || told(&house, "kept").last().is_some_and(|text| text == "two"));
    assert_eq!(house.prompts_received("say lost"), 0);
}

/// Replaces bindings in the configuration and reloads the gateway.
fn reconfigure(house: &House, before: &str, now: &str) {
    let name = format!("{GATEWAY}.toml");
    let text = std::fs::read_to_string(house.world.path(&name)).unwrap();
    assert!(text.contains(before), "{text}");
    house.world.write(&name, &text.replace(before, now));
    let reads = || house.gateway_log().matches("configuration reloaded; keys applied").count();
    let had = reads();
    assert!(house.gateway().signal(Signal::HUP));
    until(SOON, "the configuration is read", || reads() > had);
}

/// Static binding: the first message starts its session, which survives a kill and is reset in place; another session
/// replaces it when the configured directory changes.
#[test]
fn static_binding_starts_session_with_first_message() {
    let entry = |cwd: &str| {
        format!(
            "[[bindings]]\nchannel = \"console\"\nconversation = \"room\"\nagent = \"{AGENT}\"\ncwd = \"{cwd}\"\n"
        )
    };
    let mut house = Plan::flags(&[]).gateway("[log]\nlevel = \"info\"\n").build();
    let dirs = ["one", "two"].map(|name| house.world.dir(&format!("work/{name}")).display().to_string());
    let [one, two] = [entry(&dirs[0]), entry(&dirs[1])];
    reconfigure(&house, "[log]", &format!("{one}[log]"));
    let answered = |house: &House, text: &str| {
        until(LONG, "answer shown", || told(house, "room").last().is_some_and(|it| it == text));
    };
    let first = house.say("room", "1", "say one");
    let key = first["session_key"].as_str().unwrap().to_owned();
    assert!(key.contains(":acp:binding:console:default:"), "{first}");
    let intro = format!("is bound here, in {}: session {key}", dirs[0]);
    assert!(first["text"].as_str().unwrap().contains(&intro), "{first}");
    answered(&house, "one");
    house.restart_gateway();
    assert_eq!(house.say("room", "2", "say two")["session_key"], key);
    answered(&house, "two");
    assert_eq!(house.received("session/new").len(), 1, "a restart continues the conversation");

    let refused = house.say("room", "3", "/unfocus");
    assert_eq!(refused["failure"]["detail_code"], "BOUND_BY_CONFIGURATION", "{refused}");
    let reset = house.say("room", "4", "/acp reset");
    assert!(reset["text"].as_str().unwrap().contains("by the configuration and stays bound"), "{reset}");
    assert_eq!(house.say("room", "5", "say three")["session_key"], key, "the same session and binding");
    answered(&house, "three");
    assert_eq!(house.received("session/new").len(), 2, "the reset starts a new conversation");

    reconfigure(&house, &one, &two);
    let next = house.say("room", "6", "say four");
    assert_eq!(next["session_key"], format!("{key}:2"));
    let over = format!("{key} has ended: the configuration of this conversation changed: cwd.");
    assert!(next["text"].as_str().unwrap().starts_with(&over), "{next}");
    answered(&house, "four");
    let closed =
        told(&house, "room").into_iter().filter(|text| text.contains("conversation changed: cwd")).count();
    assert!(closed >= 1, "the conversation shows the reason: {:?}", told(&house, "room"));
    let state = house.verb(&["sessions", "show", &key]);
    assert_eq!(state["state"], "closed", "{state}");

    reconfigure(&house, &two, "");
    assert_eq!(house.say("room", "7", "say five")["failure"]["code"], "ACP_NOT_BOUND");
    for text in ["say one", "say two", "say three", "say four"] {
        assert_eq!(house.prompts_received(text), 1, "{text}");
    }
    assert_eq!(house.prompts_received("say five"), 0);
    house.end();
}

/// A session bound in two conversations: each shows the other's answers with the name of the asker, also after a kill.
#[test]
fn answer_shown_in_other_conversation_names_the_asker() {
    let mut house = House::new(&[]);
    let key = spawn(&house, "room");
    assert_eq!(house.say("side", "focus", &format!("/focus {key}"))["outcome"], "command");
    assert_eq!(house.say("room", "1", "say from the room")["outcome"], "prompted");
    house.restart_gateway();
    assert_eq!(house.say("side", "2", "say from the side")["outcome"], "prompted");
    for (conversation, own, other) in
        [("room", "from the room", "from the side"), ("side", "from the side", "from the room")]
    {
        until(LONG, "own answer shown", || told(&house, conversation).iter().any(|text| text == own));
        until(LONG, "other answer shown", || {
            told(&house, conversation).iter().any(|text| text.ends_with(other))
        });
        let texts = told(&house, conversation);
        let view = texts.iter().find(|text| text.ends_with(other)).unwrap();
        assert!(view.starts_with("Asked by “") && view.contains("in another conversation:"), "{view}");
    }
    house.end();
}

#[test]
fn answers_appear_once_in_bound_conversation_only() {
    let mut house = House::new(&[]);
    let key = spawn(&house, "room");
    let first = house.say("room", "1", "say asked here");
    house.restart_gateway();
    assert_eq!(house.say("room", "1", "say asked here")["run_id"], first["run_id"]);
    until(LONG, "answer shown", || told(&house, "room").iter().any(|text| text == "asked here"));
    // A prompt from the command line: its client follows the journal, and the conversation shows the answer.
    check_turn(&house.prompt(&key, "say asked elsewhere"), "end_turn");
    until(LONG, "answer shown", || told(&house, "room").iter().any(|text| text == "asked elsewhere"));
    // An unbound conversation gets no answer, and nothing leaks into it.
    assert_eq!(house.say("lobby", "1", "say asked in the lobby")["failure"]["code"], "ACP_NOT_BOUND");
    house.restart_gateway();
    assert_eq!(house.say("room", "2", "say last")["outcome"], "prompted");
    until(LONG, "answer shown", || told(&house, "room").iter().any(|text| text == "last"));
    assert_eq!(told(&house, "room")[1..], ["asked here", "asked elsewhere", "last"]);
    assert_eq!(told(&house, "lobby").len(), 1, "only the refusal");
    assert_eq!(house.prompts_received("say asked here"), 1);
    assert_eq!(house.prompts_received("say asked in the lobby"), 0);
    house.end();
}

/// A row of an earlier version, stored as the agent sent it, with half of a UTF-16 pair: every reader reads it.
#[test]
fn old_row_with_a_lone_surrogate_is_read_by_every_reader() {
    let (mut house, key) = House::new(&[]).with_session();
    let bound = house.say("room", "1", &format!("/focus {key}"));
    assert_eq!(bound["outcome"], "command", "{bound}");
    let mut turn = house.follow(&["prompt", "--interactive", &key, "say before\npermission\nsay after"]);
    let asked = turn.events_until(LONG, |event| event["type"] == "permission").pop().unwrap();
    let id = asked["permission_id"].as_str().unwrap();
    house.kill_gateway();
    damage(
        &house,
        r#"INSERT INTO acp_events (session_key, session_seq, run_id, seq, kind, payload_json, created_at)
            SELECT session_key, last_session_seq + 1, run_id, last_seq + 1, 'agent_message',
                '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"old \ud83d half"}}', 1
            FROM acp_runs JOIN acp_sessions USING (session_key) WHERE acp_runs.state = 'running';
        INSERT INTO acp_events (session_key, session_seq, kind, payload_json, created_at)
            SELECT session_key, last_session_seq + 2, 'status', '{"status":"old","text":"told \ude00 half"}', 1
            FROM acp_sessions;
        UPDATE acp_sessions SET last_session_seq = last_session_seq + 2;
        UPDATE acp_runs SET last_seq = last_seq + 1 WHERE state = 'running';"#,
    );
    house.start_gateway();
    let _ = house.verb(&["permissions", "answer", &key, id, "allow_once"]);
    let events = turn.finish(LONG).ok().lines();
    check_turn(&events, "end_turn");
    let lines = ["old \u{fffd} half", "told \u{fffd} half"];
    let history = house.history(&key);
    for line in lines {
        assert!(history.iter().any(|event| event["text"] == line), "{line}: {history:#?}");
    }
    let words = run(&mut house.plain(&["sessions", "history", &key]), LONG).ok();
    assert!(words.stdout.contains(lines[0]), "{words:?}");
    assert!(words.stderr.contains(&format!("[status] {}", lines[1])), "{words:?}");
    for line in lines {
        until(SOON, "delivered to the conversation", || {
            told(&house, "room").iter().any(|text| text.contains(line))
        });
    }
    house.end();
}
