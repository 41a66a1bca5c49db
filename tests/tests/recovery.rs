//! Kills at critical moments: while a session opens, while output is unread, repeatedly. Output is kept, prompts
//! are answered, and no session has two agents.

use acp_tests::house::{GATEWAY, House, Plan};
use acp_tests::lease::Lease;
use acp_tests::seed::Seed;
use acp_tests::story::{check_chunks, check_failed, check_history, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually, until, wait_until_instant};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

fn agent_leases(house: &House, key: &str) -> Vec<Lease> {
    let all = house.leases().into_iter();
    all.filter(|lease| lease.text("session_key") == key && lease.text("kind") == "agent").collect()
}

/// H1: output of an agent that ended while the gateway was down is kept.
#[test]
fn output_of_ended_agent_is_delivered_after_restart() {
    let (mut house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "warm up");
    let lease = house.lease(&key);
    let turn = house.follow(&["prompt", &key, "sleep 300\nchunks 3000 size=500\nexit 9"]);
    until(SOON, "prompt received", || house.agent_events("prompt").len() == 2);
    house.kill_gateway();
    house.wait_for_lease_end(&lease);
    house.start_gateway();
    let events = turn.finish(LONG).lines();
    let error = check_failed(&events, "ACP_TURN_FAILED");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("exit code 9")), "{error}");
    check_chunks(&chunks(&events), 3000, 500);
    check_turn(&house.prompt(&key, "and on"), "end_turn");
    house.end();
}

/// H1: output above the ring's size blocks the agent while no gateway reads, and nothing is dropped.
#[test]
fn heavy_full_ring_blocks_agent_and_drops_nothing() {
    let (mut house, key) = Plan::flags(&[]).supervisor("ring_bytes_max = 65536\n").build().with_session();
    let _ = house.prompt(&key, "warm up");
    let lease = house.lease(&key);
    let turn = house.follow(&["prompt", &key, "sleep 300\nchunks 2000 size=500"]);
    until(SOON, "prompt received", || house.agent_events("prompt").len() == 2);
    house.kill_gateway();
    let buffered = |lease: &Lease| {
        let number = |name: &str| lease.0[name].as_u64().unwrap_or_default();
        number("stdout_end") - number("stdout_acked")
    };
    until(SOON, "the ring is full", || buffered(&house.lease_by_id(lease.id())) > 60_000);
    let full = buffered(&house.lease_by_id(lease.id()));
    assert!(full <= 65_536, "{full} bytes in a ring of 65536");
    assert_eq!(house.agent_events("turn_end").len(), 1, "the agent waits");
    house.start_gateway();
    let events = turn.finish(LONG).ok().lines();
    check_turn(&events, "end_turn");
    check_chunks(&chunks(&events), 2000, 500);
    house.end();
}

/// After a long absence of the gateway its leases end in order, and their output is read when it returns.
#[test]
fn long_gateway_absence_ends_agents_but_keeps_output() {
    let (mut house, key) = Plan::flags(&[]).supervisor("detached_grace_ms = 700\n").build().with_session();
    let lease = house.lease(&key);
    let mut turn = house.follow(&["prompt", &key, "chunks 100000 pace_ms=5"]);
    let mut events = turn.events_until(SOON, |event| event["type"] == "text_delta");
    house.kill_gateway();
    house.wait_for_lease_end(&lease);
    let end = house.lease_by_id(lease.id()).0["stdout_end"].clone();
    house.start_gateway();
    events.extend(turn.finish(LONG).lines());
    let _ = check_failed(&events, "ACP_TURN_FAILED");
    let said = chunks(&events);
    check_chunks(&said, said.len() as u64, 16);
    let db = house.world.journal(GATEWAY);
    let sql = "SELECT stdout_offset FROM acp_leases WHERE lease_id = ?1";
    let offset: i64 = db.query_row(sql, [lease.id()], |row| row.get(0)).unwrap();
    assert_eq!(end, offset, "everything was taken, to the last byte");
    check_turn(&house.prompt(&key, "and on"), "end_turn");
    house.end();
}

/// H5: the gateway is killed while a session opens; one agent is opened, once.
#[test]
fn heavy_session_never_has_two_agents() {
    let mut seed = Seed::new();
    let mut house = House::new(&["--slow-init", "150"]);
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    for n in 0..10 {
        let id = format!("spawn-{n}");
        let command = ["sessions", "spawn", "--agent", "scripted", "--cwd", &cwd, "--idempotency-key", &id];
        let spawning = house.follow(&command);
        for _ in 0..=n % 3 {
            wait_until_instant(Instant::now() + seed.time_below(Duration::from_millis(250)));
            house.restart_gateway();
        }
        let key = spawning.finish(LONG).ok().json()["session_key"].as_str().unwrap_or_default().to_owned();
        let text = format!("hello {n}");
        check_turn(&house.prompt(&key, &text), "end_turn");
        assert_eq!(house.prompts_received(&text), 1);
        let leases = agent_leases(&house, &key);
        assert_eq!(leases.len(), 1, "one process from the first to the last: {leases:?}");
    }
    assert_eq!(house.agent_events("start").len(), 10);
    assert_eq!(house.received("initialize").len(), 10);
    assert_eq!(house.received("session/new").len(), 10);
    house.end();
}

/// The supervisor is killed around openings and turns: each prompt is answered or fails with an error, none is received
/// twice, and the session always continues.
#[test]
fn heavy_session_survives_repeated_supervisor_kills() {
    let mut seed = Seed::new();
    let (mut house, key) = House::new(&["--slow-init", "50"]).with_session();
    let (mut done, mut failed) = (0, 0);
    let mut conversation = Value::Null;
    for n in 0..12 {
        let text = format!("say begun {n}\nsleep 60\nsay ended {n}");
        let turn = house.follow(&["prompt", &key, &text]);
        if n % 3 == 0 {
            until(LONG, "prompt received", || house.prompts_received(&text) == 1);
        } else {
            wait_until_instant(Instant::now() + seed.time_below(Duration::from_millis(300)));
        }
        house.kill_supervisor();
        if n % 4 == 3 {
            house.kill_gateway();
        }
        house.start_supervisor();
        if n % 4 == 3 {
            house.start_gateway();
        }
        let ended = turn.finish(LONG);
        let events = ended.lines();
        match ended.code {
            Some(0) => {
                check_turn(&events, "end_turn");
                assert_eq!(chunks(&events), [format!("begun {n}"), format!("ended {n}")]);
                done += 1;
            }
            _ => {
                let code = ended.error_code();
                let known = ["ACP_TURN_FAILED", "ACP_UNCERTAIN", "ACP_SESSION_INIT_FAILED"];
                assert!(known.contains(&code.as_str()), "{:#}", ended.error());
                failed += 1;
            }
        }
        let received = house.prompts_received(&text);
        assert!(received <= 1, "round {n}: the agent received it {received} times");
        let living: Vec<Lease> = agent_leases(&house, &key)
            .into_iter()
            .filter(|lease| !matches!(lease.state(), "closed" | "lost"))
            .collect();
        assert!(living.len() <= 1, "{living:?}");
        let now = house.verb(&["sessions", "show", &key])["agent_session_id"].clone();
        assert!(conversation.is_null() || now == conversation, "round {n}: begun anew, silently");
        conversation = now;
    }
    eprintln!("{done} turns were answered, {failed} failed aloud");
    check_turn(&house.prompt(&key, "say well"), "end_turn");
    assert!(failed > 0, "no kill hit a turn");
    check_history(&house.cli(&["sessions", "history", &key, "--replay"]).ok().lines());
    house.end();
}

/// The queue is ordered and bounded, queued prompts can be cancelled, and an unsupported steer is queued.
#[test]
fn queued_prompts_run_in_order() {
    let (mut house, key) = Plan::flags(&[]).gateway("[limits]\nqueue_runs_max = 5\n").build().with_session();
    let first = house.follow(&["prompt", &key, "wait_cancel"]);
    until(SOON, "turn running", || house.verb(&["sessions", "show", &key])["state"] == "running");
    let queued = |text: &str| {
        let accepted = house.verb(&["prompt", &key, text, "--no-wait"]);
        accepted["run_id"].as_str().unwrap_or_else(|| panic!("{accepted}")).to_owned()
    };
    let runs = ["one", "two", "three"].map(queued);
    let steered = house.verb(&["steer", &key, "a word in between", "--no-wait"]);
    assert_eq!(steered["steered"], false, "{steered}");
    let refused = house.cli(&["prompt", &key, "one too many"]);
    assert_eq!((refused.code, refused.error_code().as_str()), (Some(1), "ACP_LIMIT_REACHED"));
    assert_eq!(refused.error()["retryable"], true);
    let cancelled = house.verb(&["sessions", "cancel", &key, "--run", &runs[1]]);
    assert_eq!((&cancelled["run_id"], &cancelled["state"]), (&runs[1].as_str().into(), &"cancelled".into()));
    house.restart_gateway();
    let _ = house.verb(&["sessions", "cancel", &key]);
    check_turn(&first.finish(LONG).ok().lines(), "cancelled");
    let said = eventually(LONG, "the queue is empty", || {
        let history = house.history(&key);
        let said: Vec<String> = chunks(&history).into_iter().map(str::to_owned).collect();
        (said.len() >= 3).then_some(said)
    });
    assert_eq!(said, ["echo: one", "echo: three", "echo: a word in between"]);
    assert_eq!(house.prompts_received("two") + house.prompts_received("one too many"), 0);
    house.end();
}

/// With dispatch disabled sessions can be spawned, and prompts are refused with an error.
#[test]
fn disabled_dispatch_refuses_prompts() {
    let (house, key) = Plan::flags(&[]).gateway("[acp.dispatch]\nenabled = false\n").build().with_session();
    let refused = house.cli(&["prompt", &key, "hello"]);
    assert_eq!((refused.code, refused.error_code().as_str()), (Some(1), "ACP_DISPATCH_DISABLED"));
    assert_eq!(house.prompts_received("hello"), 0);
    house.end();
}

/// Many running sessions continue after one gateway kill.
#[test]
fn heavy_many_sessions_survive_one_kill() {
    let mut house = House::new(&[]);
    let keys: Vec<String> = (0..12).map(|_| house.spawn()).collect();
    let turns: Vec<_> =
        keys.iter().map(|key| house.follow(&["prompt", key, "chunks 150 pace_ms=10"])).collect();
    until(LONG, "all agents received their prompts", || house.agent_events("prompt").len() == keys.len());
    house.restart_gateway();
    for turn in turns {
        let events = turn.finish(LONG).ok().lines();
        check_turn(&events, "end_turn");
        check_chunks(&chunks(&events), 150, 16);
    }
    let pids: BTreeSet<i64> =
        house.agent_log().iter().filter_map(|entry: &Value| entry["pid"].as_i64()).collect();
    assert_eq!(pids.len(), keys.len(), "no agent was started twice");
    house.end();
}
