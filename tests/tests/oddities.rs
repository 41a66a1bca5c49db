//! Odd behaviour of real agents (see the agents' reference, sections 2 and 7), reproduced by the scripted agent and
//! handled by the host.

use acp_tests::house::{AGENT, House, Plan};
use acp_tests::story::{check_answer, check_failed, check_history, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually, until};
use serde_json::{Value, json};

fn of_type<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

/// Requests of the agent with the ids 0, 1, 2 … and with string ids: each is answered under its own id.
#[test]
fn request_ids_may_be_zero_or_strings() {
    for ids in ["int0", "string"] {
        let (house, key) = Plan::flags(&["--ids", ids]).permission("approve-all").build().with_session();
        let events = house.prompt(&key, "fs_write a.txt x\nfs_read a.txt\npermission\nterminal echo hi");
        check_turn(&events, "end_turn");
        assert_eq!(
            chunks(&events),
            [
                "fs_write: ok",
                "fs_read: x",
                "permission: selected allow_once",
                "terminal: exit=0 signal=null truncated=false output=hi\n"
            ],
            "{ids}"
        );
        house.end();
    }
}

/// One line of 560 KB, as one agent sends it with every session, and one of 5 MB.
#[test]
fn long_lines_are_accepted() {
    let (house, key) = House::new(&[]).with_session();
    let events = house.prompt(&key, "long_line 573440\nsay between\nlong_line 5000000\nsay after");
    check_answer(&events, ["between", "after"]);
    let long: Vec<usize> = of_type(&events, "update")
        .iter()
        .filter(|event| event["update_kind"] == "available_commands_update")
        .map(|event| event["update"]["availableCommands"][0]["description"].as_str().map_or(0, str::len))
        .collect();
    assert_eq!(long.len(), 2);
    assert!(long[0] > 573_000 && long[1] > 4_999_000, "whole: {long:?}");
    house.end();
}

/// A long line interrupted by gateway kills arrives whole and once (H2).
#[test]
fn long_line_survives_gateway_kills() {
    let (mut house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "warm up");
    let script = "long_line 3000000\nsleep 200\n".repeat(8) + "say end";
    let turn = house.follow(&["prompt", &key, &script]);
    for _ in 0..4 {
        until(SOON, "prompt received", || house.prompts_received(&script) == 1);
        house.restart_gateway();
    }
    let events = turn.finish(LONG).ok().lines();
    check_turn(&events, "end_turn");
    assert_eq!(of_type(&events, "update").len(), 8);
    let sizes = of_type(&events, "update").iter().map(|event| event.to_string().len()).collect::<Vec<_>>();
    assert!(sizes.iter().all(|size| *size > 2_900_000), "{sizes:?}");
    house.end();
}

/// A line above the limit closes the lease with a typed error, and the session can continue.
#[test]
fn heavy_line_above_limit_fails_turn_and_closes_lease() {
    let (house, key) = House::new(&[]).with_session();
    let lease = house.lease(&key);
    let failed = house.cli(&["prompt", &key, "say before\nlong_line 40000000\nsay after"]);
    assert_eq!(failed.code, Some(1), "{}", failed.error());
    let events = failed.lines();
    let error = check_failed(&events, "ACP_PROTOCOL_ERROR");
    assert_eq!(error["origin"], "agent", "{error}");
    assert_eq!(chunks(&events), ["before"]);
    house.wait_for_lease_end(&lease);
    check_turn(&house.prompt(&key, "go on"), "end_turn");
    house.end();
}

/// Updates after the answer belong to the session, not to a turn; the next turn is not affected.
#[test]
fn late_updates_belong_to_session_not_to_turn() {
    let (house, key) = House::new(&[]).with_session();
    let first = house.prompt(&key, "say one\nlate_update");
    check_turn(&first, "end_turn");
    let late = eventually(SOON, "the late update is in the history", || {
        house.history(&key).into_iter().find(|event| event["update_kind"] == "usage_update")
    });
    assert_eq!((&late["run_id"], &late["seq"]), (&Value::Null, &Value::Null));
    let done = first.last().cloned().unwrap_or_default();
    assert!(late["session_seq"].as_u64() > done["session_seq"].as_u64(), "after the result");
    check_turn(&house.prompt(&key, "say two"), "end_turn");
    check_history(&house.history(&key));
    house.end();
}

/// A permission request without its tool call, and unknown kinds of updates.
#[test]
fn incomplete_and_unknown_messages_are_tolerated() {
    let (house, key) = Plan::flags(&[]).permission("approve-all").build().with_session();
    let script = "missing_tool_call Rename things\nunknown_update\next_notify qwen/notify/session/mode-update\n\
                  ext_request craft/drainMidTurnQueue\next_request _vendor/thing\norphan_reply\nsay end";
    let events = house.prompt(&key, script);
    check_turn(&events, "end_turn");
    assert_eq!(
        chunks(&events),
        [
            "permission: selected allow_once",
            "ext_request craft/drainMidTurnQueue: error -32601",
            "ext_request _vendor/thing: error -32601",
            "end"
        ]
    );
    assert_eq!(of_type(&events, "permission")[0]["title"], "Rename things");
    let unknown = of_type(&events, "update");
    assert_eq!(unknown.len(), 1, "{events:#?}");
    assert_eq!(unknown[0]["update"]["fancy"], json!({"deep": [1, 2.50, null]}), "kept as it came");
    let methods: Vec<&Value> = of_type(&events, "extension").iter().map(|event| &event["method"]).collect();
    assert_eq!(methods, ["qwen/notify/session/mode-update", "craft/drainMidTurnQueue", "_vendor/thing"]);
    house.end();
}

/// A silent agent is reported, and a cancel ends the turn together with the process.
#[test]
fn silent_turn_is_reported_and_can_be_cancelled() {
    let toml = "[limits]\nturn_silent_ms = 1000\ncancel_stuck_ms = 1500\n";
    let (house, key) = Plan::flags(&[]).gateway(toml).build().with_session();
    let lease = house.lease(&key);
    let mut turn = house.follow(&["prompt", &key, "say one\nno_reply"]);
    let mut events =
        turn.events_until(LONG, |event| event["type"] == "status" && event["status"] == "silent");
    assert_eq!(house.lease(&key).adapter_pid(), lease.adapter_pid(), "nothing is done to it yet");
    let _ = house.verb(&["sessions", "cancel", &key]);
    events.extend(turn.finish(LONG).ok().lines());
    check_turn(&events, "cancelled");
    house.wait_for_lease_end(&lease);
    check_answer(&house.prompt(&key, "are you there?"), ["echo: are you there?"]);
    house.end();
}

/// The agent exits during a turn: the turn fails with the reason; the next one uses resume, or load with a hidden
/// replay.
#[test]
fn agent_exit_during_turn_fails_it_and_next_prompt_resumes() {
    for (flags, method) in
        [(&[][..], "session/resume"), (&["--no-resume", "--load-replays", "3"], "session/load")]
    {
        let (house, key) = House::new(flags).with_session();
        let _ = house.prompt(&key, "say remembered");
        for (n, (end, why)) in
            [("exit 3", "exit code 3"), ("crash", "signal 9"), ("exit 0", "exit code 0")].iter().enumerate()
        {
            let failed = house.cli(&["prompt", &key, &format!("say partial {n}\n{end}")]);
            assert_eq!(failed.code, Some(1));
            let events = failed.lines();
            let error = check_failed(&events, "ACP_TURN_FAILED");
            assert!(error["message"].as_str().is_some_and(|text| text.contains(why)), "{error}");
            assert_eq!(error["detail_code"], "AGENT_EXITED");
            assert_eq!(chunks(&events), [format!("partial {n}")], "what was said stays");
            let events = house.prompt(&key, "say again");
            check_turn(&events, "end_turn");
            assert_eq!(chunks(&events), ["again"], "{method}: a replay is not said again");
        }
        assert_eq!(house.received(method).len(), 3, "{method}");
        assert_eq!(house.received("session/new").len(), 1);
        let history = house.history(&key);
        assert!(chunks(&history).iter().all(|text| !text.starts_with("replay ")), "{history:#?}");
        let want = ["remembered", "partial 0", "again", "partial 1", "again", "partial 2", "again"];
        assert_eq!(chunks(&history), want);
        if method == "session/load" {
            let all = house.cli(&["sessions", "history", &key, "--replay"]).ok().lines();
            assert!(!of_type(&all, "replay").is_empty(), "kept, for who wants it");
            check_history(&all);
        }
        house.end();
    }
}

/// Missing credentials are a session state with the agent's own instructions.
#[test]
fn missing_authentication_shows_instructions_of_the_agent() {
    let (mut house, key) = House::new(&["--auth-required"]).with_session();
    let shown = eventually(SOON, "session in error state", || {
        Some(house.verb(&["sessions", "show", &key])).filter(|view| view["state"] == "error")
    });
    assert_eq!(shown["last_error"]["code"], "ACP_AUTH_REQUIRED", "{shown:#}");
    for _ in 0..2 {
        let refused = house.cli(&["prompt", &key, "hello"]);
        assert_eq!((refused.code, refused.error_code().as_str()), (Some(1), "ACP_AUTH_REQUIRED"));
        let error = refused.error();
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains("Any key will do"), "the agent's own instructions: {error}");
        assert_eq!(error["acp"]["code"], -32000, "{error}");
    }
    assert_eq!(house.prompts_received("hello"), 0);
    assert_eq!(house.received("authenticate").len(), 0, "nobody signs in on the person's behalf");
    // After a sign-in by other means the same session continues.
    let config = house.world.path("gateway.toml");
    let text = std::fs::read_to_string(&config).unwrap().replace(", \"--auth-required\"", "");
    assert!(!text.contains("--auth-required"), "{text}");
    std::fs::write(&config, text).unwrap();
    house.restart_gateway();
    check_turn(&house.prompt(&key, "hello again"), "end_turn");
    house.end();
}

/// Without resume and load every prompt is refused until a new conversation is requested.
#[test]
fn lost_conversation_is_never_replaced_silently() {
    let (mut house, key) = House::new(&["--no-load", "--no-resume"]).with_session();
    let _ = house.prompt(&key, "remember this");
    let lease = house.lease(&key);
    lease.kill_adapter();
    house.wait_for_lease_end(&lease);
    for n in 0..3 {
        if n == 1 {
            house.restart_gateway();
        }
        let refused = house.cli(&["prompt", &key, "do you remember?"]);
        assert_eq!((refused.code, refused.error_code().as_str()), (Some(1), "ACP_RESUME_UNAVAILABLE"));
        assert!(house.world.living_lease(house.socket(), &key).is_none(), "nothing was started");
    }
    assert_eq!(house.prompts_received("do you remember?"), 0);
    check_turn(&house.cli(&["prompt", &key, "begin again", "--new-conversation"]).ok().lines(), "end_turn");
    check_turn(&house.prompt(&key, "and on"), "end_turn");
    assert_eq!(house.received("session/new").len(), 2);
    house.end();
}

/// A self-approving mode is replaced by the configured asking mode, or reported if none is known.
#[test]
fn self_approving_mode_is_replaced_or_reported() {
    let (house, key) = Plan::flags(&["--modes"]).mode("ask").build().with_session();
    let turn = house.follow(&["prompt", &key, "permission", "--interactive"]);
    let id = eventually(LONG, "permission requested", || {
        let list = house.verb(&["permissions", "list", &key]);
        list[0]["permission_id"].as_str().map(str::to_owned)
    });
    assert_eq!(house.cli(&["permissions", "answer", &key, &id, "reject_once"]).code, Some(0));
    let events = turn.finish(LONG).ok().lines();
    assert_eq!(chunks(&events), ["permission: selected reject_once"]);
    // The agent itself switches back during a turn.
    let events = house.prompt(&key, "mode auto\nsay now");
    assert!(says_auto(&events), "{events:#?}");
    house.end();

    let (house, key) = House::new(&["--modes"]).with_session();
    let events = house.prompt(&key, "permission");
    assert_eq!(chunks(&events), ["permission: auto"], "nobody knows which mode of it would ask");
    assert!(says_auto(&house.history(&key)), "so it is said: {:#?}", house.history(&key));
    house.end();
}

fn says_auto(events: &[Value]) -> bool {
    let is_auto = |event: &&Value| event["text"].as_str().is_some_and(|text| text.contains("auto"));
    of_type(events, "status").iter().any(is_auto)
}

/// The agent's error is reported with its code and message, and the session continues.
#[test]
fn agent_error_is_passed_on_with_code_and_message() {
    let (house, key) = House::new(&[]).with_session();
    let failed = house.cli(&["prompt", &key, "say partial\nerror -32603 the model is tired"]);
    assert_eq!(failed.code, Some(1));
    let events = failed.lines();
    let error = check_failed(&events, "ACP_TURN_FAILED");
    assert_eq!(error["acp"], json!({"code": -32603, "message": "the model is tired"}));
    assert_eq!((&error["detail_code"], &error["origin"]), (&json!("AGENT_ERROR"), &json!("agent")));
    for (script, stop) in [("refuse", "refusal"), ("stop max_tokens", "max_tokens"), ("say x", "end_turn")] {
        check_turn(&house.prompt(&key, script), stop);
    }
    house.end();
}

/// Stop reason `cancelled` without a cancel by the host or a refused permission is a failure.
#[test]
fn turn_cancelled_by_agent_counts_as_failed() {
    let (house, key) = House::new(&[]).with_session();
    for script in ["stop cancelled", "error -32800 gone"] {
        let failed = house.cli(&["prompt", &key, script]);
        assert_eq!(failed.code, Some(1));
        let events = failed.lines();
        let error = check_failed(&events, "ACP_TURN_FAILED");
        assert_eq!(error["detail_code"], "AGENT_CANCELLED", "{error}");
    }
    // Unattended: the permission is refused.
    check_turn(&house.prompt(&key, "permission\nstop cancelled"), "cancelled");
    check_turn(&house.prompt(&key, "say on"), "end_turn");
    house.end();
}

/// Spawns wait for the agent's session and report one that is not open in time.
#[test]
fn spawn_waits_for_open_session_until_timeout() {
    let house = House::new(&["--slow-init", "2500"]);
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn =
        |wait: &str| house.cli(&["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd, "--wait", wait]);
    let pending = spawn("1");
    assert_eq!((pending.code, pending.error_code().as_str()), (Some(3), "TIMEOUT"));
    assert_eq!(pending.error()["detail_code"], "NOT_OPEN");
    assert_eq!(pending.lines()[0]["opening"], "pending");
    let open = spawn("60").ok().json();
    assert_eq!(open["opening"], "open");
    let key = open["session_key"].as_str().unwrap_or_default();
    assert!(house.verb(&["sessions", "show", key])["agent_session_id"].is_string());
    assert!(spawn("0").ok().json()["opening"].is_null(), "nobody waited");
    house.end();
}

/// A slow start succeeds; an unknown protocol version fails.
#[test]
fn slow_start_succeeds_and_unknown_protocol_version_fails() {
    let (house, key) = House::new(&["--slow-init", "1500"]).with_session();
    let events = house.prompt(&key, "at last");
    check_turn(&events, "end_turn");
    house.end();

    let (house, key) = House::new(&["--protocol-version", "99"]).with_session();
    let refused = house.cli(&["prompt", &key, "hello"]);
    assert_eq!(refused.code, Some(1));
    let known = ["ACP_SESSION_INIT_FAILED", "ACP_PROTOCOL_ERROR"];
    assert!(known.contains(&refused.error_code().as_str()), "{:#}", refused.error());
    assert_eq!(house.prompts_received("hello"), 0);
    house.end();
}

/// If an agent never answers `initialize`, the prompt fails at the deadline and its process tree is ended.
#[test]
fn unresponsive_agent_is_ended_with_its_process_tree() {
    let (house, key) = Plan::flags(&["--slow-init", "600000"]).init_ms(1_000).build().with_session();
    let lease = house.lease(&key);
    let failed = house.cli(&["prompt", &key, "hello"]);
    let found = (failed.code, failed.error_code());
    assert_eq!(found, (Some(1), "ACP_SESSION_INIT_FAILED".to_owned()), "{failed:?}");
    house.wait_for_lease_end(&lease);
    assert_eq!(house.prompts_received("hello"), 0);
    house.end();
}

/// A missing program and one that exits at once are reported with the reason.
#[test]
fn agent_start_failure_is_reported_with_reason() {
    for (command, what) in [("/nonexistent/agent", ""), ("/bin/false", "exit code 1")] {
        let mut house = House::new(&[]);
        let config = house.world.path("gateway.toml");
        let mut text = std::fs::read_to_string(&config).unwrap();
        text.push_str(&format!("\n[agents.broken]\ncommand = [\"{command}\"]\n"));
        std::fs::write(&config, text).unwrap();
        house.restart_gateway();
        let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
        let spawned = house.cli(&["sessions", "spawn", "--agent", "broken", "--cwd", &cwd]);
        assert_eq!(spawned.code, Some(1), "{spawned:?}");
        let error = spawned.error();
        assert!(error["message"].as_str().is_some_and(|text| text.contains(what)), "{error}");
        if !what.is_empty() {
            assert_eq!(spawned.error_code(), "ACP_SESSION_INIT_FAILED");
            assert_eq!(spawned.lines()[0]["opening"], "failed");
            let key = spawned.lines()[0]["session_key"].as_str().unwrap_or_default().to_owned();
            let failed = house.cli(&["prompt", &key, "hello"]);
            assert_eq!((failed.code, failed.error_code().as_str()), (Some(1), "ACP_SESSION_INIT_FAILED"));
        }
        check_turn(&house.prompt(&house.world.spawn("gateway", AGENT, "work/other"), "well"), "end_turn");
        house.end();
    }
}
