//! Lifetime and end of sessions with real processes: timeouts across kills, endings from the command line, one-shot
//! sessions, durable settings.

#[path = "lives/kin.rs"]
mod kin;

use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::lease::Lease;
use acp_tests::story::{check_chunks, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::GATEWAY_DB;
use rusqlite::{Connection, params};
use rustix::process::Signal;
use serde_json::Value;

/// Opens the gateway's database while no gateway runs.
#[expect(clippy::disallowed_methods, reason = "the tests play with time, and no gateway is there")]
fn database(house: &House) -> Connection {
    Connection::open(house.world.path(GATEWAY).join(GATEWAY_DB)).unwrap_or_else(|e| panic!("{e}"))
}

/// Moves the last activity of all sessions back by `ms`.
fn let_time_pass(house: &House, ms: i64) {
    let db = database(house);
    let changed = db.execute("UPDATE acp_sessions SET last_activity_at = last_activity_at - ?1", [ms]);
    assert!(changed.unwrap() > 0);
}

/// Binds a console conversation with timeouts in milliseconds.
#[expect(clippy::disallowed_methods, reason = "a program of the tests has no other clock")]
fn bind(house: &House, key: &str, conversation: &str, idle_ms: Option<i64>, max_age_ms: Option<i64>) {
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let now_ms = i64::try_from(now_ms).unwrap();
    let sql = "INSERT INTO acp_bindings (binding_key, channel, account_id, thread_id, session_key, target_kind, status, \
               bound_by, bound_at, last_activity_at, idle_ms, max_age_ms, metadata_json) \
               VALUES (?1, 'console', 'default', ?2, ?3, 'session', 'active', 'test', ?4, ?4, ?5, ?6, '{}')";
    let id = uuid::Uuid::now_v7().to_string();
    database(house).execute(sql, params![id, conversation, key, now_ms, idle_ms, max_age_ms]).unwrap();
}

/// Texts of a console conversation.
fn told(house: &House, conversation: &str) -> Vec<String> {
    let db = house.world.journal(GATEWAY);
    let mut rows =
        db.prepare("SELECT text FROM console_message WHERE conversation_id = ?1 ORDER BY id").unwrap();
    let texts = rows.query_map([conversation], |row| row.get(0)).unwrap().map(Result::unwrap);
    texts.collect()
}

fn shown(house: &House, key: &str) -> Value {
    house.verb(&["sessions", "show", key])
}

/// Runs a turn and lets a TTL of one minute pass, in two steps while no gateway runs. After the first step the
/// session is idle with the same agent. Returns the agent's lease.
fn let_ttl_pass(house: &mut House, key: &str, source: &str) -> Lease {
    check_turn(&house.prompt(key, "before"), "end_turn");
    let lease = house.lease(key);
    let expiry = shown(house, key)["expiry"].clone();
    assert_eq!((&expiry["source"], &expiry["window_ms"]), (&source.into(), &60_000.into()), "{expiry}");
    for ms in [30_000, 60_000] {
        house.kill_gateway();
        let_time_pass(house, ms);
        house.start_gateway();
        if ms == 30_000 {
            let now = shown(house, key);
            let want = (&"idle".into(), &lease.id().into());
            assert_eq!((&now["state"], &now["lease_id"]), want, "half of the time has gone");
        }
    }
    lease
}

/// B10: an idle agent ends after its TTL, also if the gateway was killed meanwhile; the next prompt resumes the
/// conversation.
#[test]
fn idle_agent_ends_after_ttl_and_resumes_with_next_prompt() {
    let (mut house, key) =
        Plan::flags(&[]).gateway("[acp.runtime]\nttl_minutes = 1\n").build().with_session();
    let lease = let_ttl_pass(&mut house, &key, "runtime");
    house.wait_for_lease_end(&lease);
    until(SOON, "session without agent", || shown(&house, &key)["lease_id"].is_null());
    assert_eq!(shown(&house, &key)["state"], "idle");
    check_turn(&house.prompt(&key, "after"), "end_turn");
    assert_eq!((house.received("session/new").len(), house.received("session/resume").len()), (1, 1));
    house.end();
}

/// D2: an unused session is closed with its agent after its TTL, although no gateway ran meanwhile.
#[test]
fn unused_session_is_closed_after_ttl() {
    let (mut house, key) = Plan::flags(&[]).gateway("[session]\nttl_minutes = 1\n").build().with_session();
    let lease = let_ttl_pass(&mut house, &key, "session");
    until(SOON, "session closed", || shown(&house, &key)["state"] == "closed");
    assert_eq!(shown(&house, &key)["ending"], "expired");
    house.wait_for_lease_end(&lease);
    house.end();
}

/// D2, D8: a binding's idle timeout expires across kills, ends session and agent, and is announced once.
#[test]
fn idle_timeout_expires_across_kill_and_is_announced_once() {
    let (mut house, key) = House::new(&[]).with_session();
    let lease = house.lease(&key);
    house.kill_gateway();
    bind(&house, &key, "room", Some(4_000), None);
    for _ in 0..3 {
        house.start_gateway();
        house.kill_gateway();
    }
    house.start_gateway();
    until(LONG, "session closed", || shown(&house, &key)["state"] == "closed");
    assert_eq!(shown(&house, &key)["ending"], "expired");
    house.wait_for_lease_end(&lease);
    let want =
        "The session is closed (no activity here for 4s, the idle timeout). Start a new one with /acp spawn.";
    let texts =
        eventually(SOON, "notice shown", || Some(told(&house, "room")).filter(|texts| !texts.is_empty()));
    assert_eq!(texts, [want]);
    house.restart_gateway();
    assert_eq!(told(&house, "room"), [want]);
    house.end();
}

/// D2: only the expired one of two bindings ends; the notice names the maximum age.
#[test]
fn expired_binding_keeps_session_with_another_binding() {
    let (mut house, key) =
        Plan::flags(&[]).gateway("[acp.runtime]\nttl_minutes = 0\n").build().with_session();
    house.kill_gateway();
    bind(&house, &key, "short", None, Some(1_000));
    bind(&house, &key, "long", Some(3_600_000), None);
    house.start_gateway();
    let texts =
        eventually(LONG, "notice shown", || Some(told(&house, "short")).filter(|texts| !texts.is_empty()));
    assert!(texts[0].contains("bound here for 1s, the maximum age"), "{texts:?}");
    assert!(texts[0].contains(&format!("/focus {key}")), "{texts:?}");
    check_turn(&house.prompt(&key, "still here"), "end_turn");
    until(SOON, "answer shown in other conversation", || told(&house, "long") == ["echo: still here"]);
    assert_eq!(told(&house, "short").len(), 1);
    let expiry = shown(&house, &key)["expiry"].clone();
    assert_eq!(expiry["source"], "binding_idle");
    house.end();
}

/// D11: a running turn keeps its binding and agent for any duration.
#[test]
fn running_turn_defers_idle_timeout() {
    let (mut house, key) = House::new(&[]).with_session();
    house.kill_gateway();
    bind(&house, &key, "room", Some(1_500), None);
    house.start_gateway();
    let turn = house.follow(&["prompt", &key, "chunks 50 pace_ms=100"]);
    check_turn(&turn.finish(LONG).ok().lines(), "end_turn");
    assert_eq!(shown(&house, &key)["state"], "idle", "the window begins anew with the end of the turn");
    until(LONG, "session closed", || shown(&house, &key)["state"] == "closed");
    house.end();
}

/// B18: a one-shot session has one process and one conversation, and ends with its run.
#[test]
fn a_one_shot_session_ends_with_its_run() {
    let house = House::new(&[]);
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn =
        ["sessions", "spawn", "--agent", "scripted", "--cwd", &cwd, "--mode", "oneshot", "--prompt", "hi"];
    let key = house.verb(&spawn)["session_key"].as_str().unwrap_or_default().to_owned();
    until(LONG, "session closed", || shown(&house, &key)["state"] == "closed");
    until(LONG, "agent ended", || shown(&house, &key)["lease_id"].is_null());
    assert_eq!((house.received("session/new").len(), house.prompts_received("hi")), (1, 1));
    let refused = house.cli(&["prompt", &key, "more"]);
    assert_eq!(refused.error_code(), "ACP_SESSION_CLOSED");
    house.end();
}

/// Every verb that ends a session; deleted sessions are in no list; a repeated idempotency key returns the first
/// response.
#[test]
fn close_archive_delete_and_reset_end_sessions_once() {
    let mut house = House::new(&["--delete"]);
    for verb in ["close", "archive", "delete", "reset"] {
        let key = house.spawn();
        let turn = house.follow(&["prompt", &key, "wait_cancel"]);
        until(SOON, "turn running", || shown(&house, &key)["state"] == "running");
        let end = ["sessions", verb, &key, "--discard", "--idempotency-key", verb];
        let now = house.verb(&end);
        assert_eq!((&now["state"], &now["discarded"]), (&"closed".into(), &true.into()), "{verb}: {now}");
        assert_eq!(house.verb(&end), now, "{verb}: the first answer again");
        check_turn(&turn.finish(LONG).lines(), "cancelled");
        until(LONG, "agent ended", || shown(&house, &key)["lease_id"].is_null());
    }
    assert_eq!(house.received("session/delete").len(), 4, "each agent was asked to forget, once");
    assert_eq!(std::fs::read_dir(house.world.path("agent-state")).unwrap().count(), 0, "and did");
    let listed = |args: &[&str]| -> Vec<String> {
        let views = house.verb(args);
        let endings = views.as_array().into_iter().flatten();
        endings.map(|view| view["ending"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(listed(&["sessions", "list"]), [] as [String; 0]);
    let mut all = listed(&["sessions", "list", "--all"]);
    all.sort();
    assert_eq!(all, ["archived", "closed", "reset"]);
    house.restart_gateway();
    assert_eq!(house.agent_events("start").len(), 4, "nothing that was closed is started again");
    house.end();
}

/// A session's row has its owner; labels are unique among open sessions.
#[test]
fn sessions_record_owner_and_labels_are_unique() {
    let house = House::new(&[]);
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn = |more: &[&str]| {
        let mut args = vec!["sessions", "spawn", "--agent", "scripted", "--cwd", &cwd];
        args.extend(more);
        house.cli(&args)
    };
    let key = |output: acp_tests::cli::Output| {
        output.ok().json()["session_key"].as_str().unwrap_or_default().to_owned()
    };
    let parent = key(spawn(&["--label", "work"]));
    let child = key(spawn(&["--spawned-by", &parent]));
    let views = house.verb(&["sessions", "list"]);
    let of = |wanted: &str| {
        let found = views.as_array().into_iter().flatten().find(|view| view["session_key"] == wanted);
        found.cloned().unwrap_or_else(|| panic!("{wanted} is not in {views}"))
    };
    assert_eq!(of(&parent)["owner_session_key"], parent.as_str());
    assert_eq!(of(&parent)["spawned_by"], Value::Null);
    for column in ["owner_session_key", "spawned_by", "parent_session_key"] {
        assert_eq!(of(&child)[column], parent.as_str(), "{column}");
    }
    assert_eq!(of(&child)["gateway_instance_id"], of(&parent)["gateway_instance_id"]);
    assert!(of(&child)["gateway_instance_id"].is_string());
    assert_eq!((&of(&child)["agent"], &of(&child)["backend"]), (&"scripted".into(), &"direct".into()));
    assert!(of(&child)["created_at_ms"].is_u64());
    let taken = spawn(&["--label", "work"]);
    let codes = (taken.error()["code"].clone(), taken.error()["detail_code"].clone());
    assert_eq!(codes, ("USAGE".into(), "LABEL_TAKEN".into()));
    let _ = house.verb(&["sessions", "close", &parent]);
    let _ = key(spawn(&["--label", "work"]));
    let orphan = spawn(&["--spawned-by", &parent]);
    assert_eq!(orphan.error()["detail_code"], "NO_SPAWNER", "a closed session spawns nothing");
    house.end();
}

/// B14: settings are validated, stored, and applied to the agent's next process, the mode first.
#[test]
fn settings_survive_gateway_and_agent() {
    let (mut house, key) = Plan::flags(&["--modes"]).build().with_session();
    let _ = house.prompt(&key, "warm up");
    for setting in [["--mode", "ask"], ["--timeout", "600"], ["--permission", "deny-all"]] {
        let _ = house.verb(&["sessions", "set", &key, setting[0], setting[1]]);
    }
    for bad in [["--timeout", "86401"], ["--mode", " "], ["--option", ".x=1"], ["--cwd", "/nowhere/at/all"]] {
        assert_ne!(house.cli(&["sessions", "set", &key, bad[0], bad[1]]).code, Some(0), "{bad:?}");
    }
    let lease = house.lease(&key);
    house.kill_gateway();
    house.kill_supervisor();
    house.start_supervisor();
    house.wait_for_lease_end(&lease);
    house.start_gateway();
    let view = shown(&house, &key);
    assert_eq!(
        (&view["mode_id"], &view["timeout_s"], &view["permission"]),
        (&"ask".into(), &600.into(), &"deny-all".into())
    );
    check_turn(&house.prompt(&key, "again"), "end_turn");
    let modes = house.received("session/set_mode");
    assert!(!modes.is_empty());
    assert!(modes.iter().all(|message| message["params"]["modeId"] == "ask"), "{modes:?}");
    house.end();
}

/// The agent accepts or refuses changes of its own settings; refused ones are errors and are not stored.
#[test]
fn settings_are_answered_by_the_agent() {
    let (house, key) = Plan::flags(&["--modes", "--options"]).build().with_session();
    let _ = house.prompt(&key, "warm up");
    let set = |args: &[&str]| house.cli(&[&["sessions", "set", &key], args].concat());
    for (change, want) in [
        (["--mode", "ask"], "The agent accepted the mode \"ask\"."),
        (["--model", "big"], "The agent accepted the option \"model\" = \"big\"."),
        (["--option", "web=off"], "The agent accepted the option \"web\" = \"off\"."),
    ] {
        let now = set(&change).ok().json();
        assert_eq!(now["setting"], serde_json::json!({"is_applied": true, "text": want}));
    }
    for (change, why) in [
        (["--mode", "yolo"], "has no mode \"yolo\"; it has: ask, auto"),
        (
            ["--model", "huge"],
            "refused the option \"model\" = \"huge\": model has no value \"huge\" (-32602)",
        ),
        (["--option", "web=perhaps"], "true or false"),
        (["--option", "none=x"], "refused the option \"none\""),
    ] {
        let refused = set(&change);
        assert_eq!((refused.code, refused.error_code().as_str()), (Some(2), "USAGE"), "{refused:?}");
        assert_eq!(refused.error()["detail_code"], "OPTION_REFUSED");
        let message = refused.error()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(why), "{message}");
    }
    let view = shown(&house, &key);
    assert_eq!((&view["mode_id"], &view["model"]), (&"ask".into(), &"big".into()));
    assert_eq!(view["config"], serde_json::json!([{"id": "web", "value": "off"}]));
    let settings = serde_json::json!({
        "modes": {"current": "ask", "values": ["ask", "auto"]},
        "options": [
            {"id": "model", "category": "model", "current": "big", "values": ["small", "big"]},
            {"id": "web", "is_boolean": true, "current": "false", "values": ["true", "false"]},
        ],
    });
    assert_eq!(view["agent_settings"], settings);
    // Without an agent process a change is not confirmed; the next process gets it.
    house.lease(&key).kill_adapter();
    until(LONG, "agent gone", || shown(&house, &key)["lease_id"].is_null());
    let waits = set(&["--model", "small"]).ok().json();
    assert_eq!(waits["setting"]["is_applied"], false, "{waits}");
    let _ = set(&["--option", "none=x"]).ok();
    check_turn(&house.prompt(&key, "again"), "end_turn");
    let view = shown(&house, &key);
    assert_eq!(view["model"], "small");
    let config = serde_json::json!([{"id": "web", "value": "off"}]);
    assert_eq!(view["config"], config, "what was refused is dropped");
    assert_eq!(view["agent_settings"]["options"][0]["current"], "small");
    house.end();
}

/// A turn above the session's timeout is stopped and fails, and the session continues.
#[test]
fn turn_above_session_timeout_is_stopped() {
    let (house, key) = House::new(&[]).with_session();
    let _ = house.verb(&["sessions", "set", &key, "--timeout", "1"]);
    let turn = house.follow(&["prompt", &key, "wait_cancel"]);
    let queued = house.follow(&["prompt", &key, "next"]);
    let hung = turn.finish(LONG);
    assert_eq!(hung.error_code(), "TIMEOUT");
    check_turn(&queued.finish(LONG).ok().lines(), "end_turn");
    house.end();
}

/// B14: the configured limit applies to a session without its own timeout.
#[test]
fn turn_above_configured_limit_is_stopped() {
    let (house, key) = Plan::flags(&[]).gateway("[limits]\nturn_ms = 1000\n").build().with_session();
    let hung = house.follow(&["prompt", &key, "wait_cancel"]).finish(LONG);
    assert_eq!(hung.error_code(), "TIMEOUT");
    let _ = house.verb(&["sessions", "set", &key, "--timeout", "600"]);
    check_turn(&house.prompt(&key, "sleep 1500"), "end_turn");
    house.end();
}

/// D4: a binding ends by its id, all others by the session key; the session continues.
#[test]
fn bindings_are_ended_by_id_and_by_session() {
    let (mut house, key) = House::new(&[]).with_session();
    house.kill_gateway();
    for conversation in ["one", "two", "three"] {
        bind(&house, &key, conversation, None, None);
    }
    house.start_gateway();
    let bound = |house: &House| -> Vec<(String, String)> {
        let view = shown(house, &key);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = view["bindings"].as_array().unwrap().iter();
        all.map(|it| (text(&it["binding_id"]), text(&it["conversation_id"]))).collect()
    };
    let (second, _) = bound(&house)[1].clone();
    let ended = house.verb(&["sessions", "unbind", &key, "--binding", &second]);
    assert_eq!(ended[0]["conversation_id"], "two");
    let left: Vec<String> = bound(&house).into_iter().map(|(_, conversation)| conversation).collect();
    assert_eq!(left, ["one", "three"]);
    let again = house.cli(&["sessions", "unbind", &key, "--binding", &second]);
    assert_eq!(again.error()["code"], "ACP_NOT_BOUND");
    assert_eq!(house.verb(&["sessions", "unbind", &key]).as_array().unwrap().len(), 2);
    assert!(bound(&house).is_empty());
    assert_eq!(house.cli(&["sessions", "unbind", &key]).error()["code"], "ACP_NOT_BOUND");
    check_turn(&house.prompt(&key, "still here"), "end_turn");
    house.end();
}

/// B7: each acting command, repeated under its idempotency key after a kill, returns the first response without a second
/// effect.
#[test]
fn repeated_commands_after_kill_return_first_response() {
    let mut house = House::new(&[]);
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn = ["sessions", "spawn", "--agent", "scripted", "--cwd", &cwd, "--idempotency-key", "k"];
    let spawned = house.verb(&spawn);
    let key = spawned["session_key"].as_str().unwrap_or_default().to_owned();
    let prompt = ["prompt", &key, "permission", "--no-wait", "--interactive", "--idempotency-key", "k"];
    let accepted = house.verb(&prompt);
    let id = eventually(LONG, "permission requested", || {
        let views = house.verb(&["permissions", "list", &key]);
        views[0]["permission_id"].as_str().map(str::to_owned)
    });
    let option = house.verb(&["permissions", "list", &key])[0]["options"][0]["option_id"].clone();
    let option = option.as_str().unwrap_or_default().to_owned();
    let answer = ["permissions", "answer", &key, &id, &option, "--idempotency-key", "k"];
    let steer = ["steer", &key, "a word", "--no-wait", "--idempotency-key", "s"];
    let cancel = ["sessions", "cancel", &key, "--idempotency-key", "k"];
    let set = ["sessions", "set", &key, "--timeout", "60", "--idempotency-key", "k"];
    let new = ["sessions", "new", &key, "--idempotency-key", "k"];
    let close = ["sessions", "close", &key, "--idempotency-key", "k"];
    let rest: [&[&str]; 6] = [&answer, &steer, &cancel, &set, &new, &close];
    let mut answers = vec![(&spawn[..], spawned), (&prompt[..], accepted)];
    for command in rest {
        answers.push((command, house.verb(command)));
    }
    let events = house.history(&key).len();
    house.restart_gateway();
    for (command, first) in answers {
        assert_eq!(house.verb(command), first, "{command:?}");
    }
    assert_eq!(house.history(&key).len(), events, "nothing was done again");
    assert_eq!(house.verb(&["sessions", "list", "--all"]).as_array().map(Vec::len), Some(1));
    let other = house.cli(&["sessions", "set", &key, "--timeout", "61", "--idempotency-key", "k"]);
    assert_eq!(other.error_code(), "ACP_IDEMPOTENCY_CONFLICT", "another question under the same key");
    house.end();
}

/// B12: the supervisor does not return in time: the turn fails with the reason, and the session continues once a
/// supervisor is back.
#[test]
fn turn_ends_in_bounded_time_without_supervisor() {
    let toml = "[acp.control_plane.recovery]\nreconcile_running_after_ms = 1000\n";
    let (mut house, key) = Plan::flags(&[]).gateway(toml).build().with_session();
    let turn = house.follow(&["prompt", &key, "wait_cancel"]);
    until(SOON, "turn running", || shown(&house, &key)["state"] == "running");
    house.kill_supervisor();
    let ended = turn.finish(LONG);
    assert_eq!(ended.error_code(), "ACP_UNCERTAIN");
    assert_eq!(ended.error()["detail_code"], "AGENT_NOT_FOUND", "{:#}", ended.error());
    assert_eq!(shown(&house, &key)["state"], "idle", "not stuck");
    house.start_supervisor();
    check_turn(&house.prompt(&key, "again"), "end_turn");
    house.end();
}

/// A stopped supervisor is noticed; when it continues, the turn continues without loss.
#[test]
fn heavy_hanging_supervisor_is_noticed_and_turn_continues() {
    let (house, key) = House::new(&[]).with_session();
    let turn = house.follow(&["prompt", &key, "chunks 40 pace_ms=50"]);
    until(SOON, "turn running", || shown(&house, &key)["state"] == "running");
    house.signal_supervisor(Signal::STOP);
    until(LONG, "supervisor hang logged", || house.gateway_log().contains("the supervisor hangs"));
    house.signal_supervisor(Signal::CONT);
    let events = turn.finish(LONG).ok().lines();
    check_turn(&events, "end_turn");
    check_chunks(&chunks(&events), 40, 16);
    house.end();
}

/// Executes SQL on the database of a running gateway.
#[expect(clippy::disallowed_methods, reason = "the test plays a database that refuses one kind of row")]
fn beside(house: &House, sql: &str) {
    let db = Connection::open(house.world.path(GATEWAY).join(GATEWAY_DB)).unwrap_or_else(|e| panic!("{e}"));
    db.busy_timeout(LONG).and_then(|()| db.execute_batch(sql)).unwrap_or_else(|e| panic!("{sql}: {e}"));
}

/// B8: an opening that cannot be committed is not announced, and its process is ended after the opening timeout: no agent
/// lives without a row that says it is ready. Once commits work again, the agent's output is read, and the next prompt
/// continues the conversation with another process.
#[test]
fn uncommitted_session_opening_ends_its_process() {
    let house = Plan::flags(&[]).init_ms(5_000).build();
    beside(
        &house,
        "CREATE TRIGGER no_opening BEFORE UPDATE OF agent_session_id ON acp_sessions \
         WHEN NEW.agent_session_id IS NOT NULL BEGIN SELECT RAISE(ABORT, 'no'); END",
    );
    let key = house.spawn();
    let lease = house.lease(&key);
    house.wait_for_lease_end(&lease);
    let view = shown(&house, &key);
    assert_eq!((&view["state"], &view["agent_session_id"]), (&"creating".into(), &Value::Null), "{view}");
    assert_eq!(house.agent_events("start").len(), 1);
    assert!(!house.history(&key).iter().any(|event| event.to_string().contains("agent_ready")));
    beside(&house, "DROP TRIGGER no_opening");
    until(LONG, "session idle", || shown(&house, &key)["state"] == "idle");
    until(LONG, "agent ended", || shown(&house, &key)["lease_id"].is_null());
    check_turn(&house.prompt(&key, "after all"), "end_turn");
    assert_eq!((house.agent_events("start").len(), house.received("session/new").len()), (2, 1));
    house.end();
}
