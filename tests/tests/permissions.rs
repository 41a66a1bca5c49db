//! Permission requests are shown once and durably, and an answer reaches only its own request.

use acp_tests::cli::{Output, RunningCommand};
use acp_tests::house::{AGENT, House, Plan, scripted};
use acp_tests::story::{check_answer, check_failed, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::World;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Pending permission requests of a session.
fn pending(house: &House, key: &str) -> Vec<Value> {
    let list = house.verb(&["permissions", "list", key]);
    list.as_array().unwrap_or_else(|| panic!("not an array: {list}")).clone()
}

/// Waits for the only pending permission request and returns its id.
fn one_pending(house: &House, key: &str) -> String {
    let list = eventually(SOON, "permission pending", || Some(pending(house, key)).filter(|l| !l.is_empty()));
    assert_eq!(list.len(), 1, "{list:?}");
    text(&list[0], "permission_id").to_owned()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name}: {value}"))
}

fn answer(house: &House, key: &str, id: &str, option: &str) -> Output {
    house.cli(&["permissions", "answer", key, id, option])
}

fn ask(house: &House, key: &str, script: &str) -> RunningCommand {
    house.follow(&["prompt", key, script, "--interactive"])
}

/// Starts a turn and waits for its permission request; returns the turn and the request's id.
fn asked(house: &House, key: &str, script: &str) -> (RunningCommand, String) {
    let turn = ask(house, key, script);
    let id = one_pending(house, key);
    (turn, id)
}

fn settled(events: &[Value]) -> Vec<&Value> {
    events.iter().filter(|event| event["type"] == "permission_settled").collect()
}

/// Checks that the agent received the cancel before the settled request; otherwise it would continue for a moment.
fn check_cancel_came_first(house: &House) {
    let heard: Vec<Value> =
        house.agent_events("received").into_iter().map(|mut entry| entry["message"].take()).collect();
    let at = |is: &dyn Fn(&Value) -> bool| heard.iter().position(is);
    let cancel = at(&|message| message["method"] == "session/cancel");
    let answer = at(&|message| message["result"]["outcome"]["outcome"] == "cancelled");
    assert!(cancel.is_some(), "{heard:#?}");
    assert!(answer.is_none_or(|answer| cancel < Some(answer)), "{heard:#?}");
}

/// A request is shown with the agent's own options and answered once; a second answer is refused.
#[test]
fn permission_is_answered_once() {
    let (house, key) = House::new(&[]).with_session();
    let mut turn = ask(&house, &key, "permission Delete everything\nsay after");
    let mut events = turn.events_until(SOON, |event| event["type"] == "permission");
    let shown = events.last().cloned().unwrap_or_default();
    let list = pending(&house, &key);
    assert_eq!(list.len(), 1, "{list:?}");
    assert_eq!(list[0]["title"], "Delete everything");
    for member in ["permission_id", "options"] {
        assert_eq!(list[0][member], shown[member], "{member}");
    }
    let ids: Vec<&str> =
        list[0]["options"].as_array().into_iter().flatten().map(|option| text(option, "option_id")).collect();
    assert_eq!(ids, ["allow_once", "allow_always", "reject_once", "reject_always"]);
    assert_eq!(chunks(&events), [] as [&str; 0], "the agent waits");

    let id = text(&list[0], "permission_id");
    let wrong = answer(&house, &key, id, "allow_everything");
    assert_eq!((wrong.code, wrong.error_code().as_str()), (Some(2), "USAGE"));
    assert_eq!(wrong.error()["detail_code"], "PERMISSION_OPTION_UNKNOWN");
    assert_eq!(answer(&house, &key, id, "reject_once").code, Some(0));
    for option in ["reject_once", "allow_once"] {
        let late = answer(&house, &key, id, option);
        assert_eq!((late.code, late.error_code().as_str()), (Some(2), "USAGE"), "the first answer wins");
        assert_eq!(late.error()["detail_code"], "PERMISSION_NOT_PENDING");
    }
    assert_eq!(pending(&house, &key), [] as [Value; 0]);
    events.extend(turn.finish(LONG).ok().lines());
    check_turn(&events, "end_turn");
    assert_eq!(chunks(&events), ["permission: selected reject_once", "after"]);
    let settled = settled(&events);
    assert_eq!(settled.len(), 1, "{settled:?}");
    assert_eq!((&settled[0]["permission_id"], &settled[0]["option_id"]), (&json!(id), &json!("reject_once")));
    assert!(settled[0]["by"].is_string(), "it says who answered: {settled:?}");
    house.end();
}

/// One of several concurrent answers wins, and the agent receives that one.
#[test]
fn one_of_many_concurrent_answers_wins() {
    let (house, key) = House::new(&[]).with_session();
    let (turn, id) = asked(&house, &key, "permission");
    let racers: Vec<(&str, RunningCommand)> = ["allow_once", "reject_once", "allow_always", "reject_always"]
        .map(|option| (option, house.follow(&["permissions", "answer", &key, &id, option])))
        .into();
    let ended: Vec<(&str, Option<i32>)> =
        racers.into_iter().map(|(option, racer)| (option, racer.finish(LONG).code)).collect();
    let winners: Vec<&str> =
        ended.iter().filter(|(_, code)| *code == Some(0)).map(|(option, _)| *option).collect();
    assert_eq!(winners.len(), 1, "{ended:?}");
    let events = turn.finish(LONG).ok().lines();
    assert_eq!(chunks(&events), [format!("permission: selected {}", winners[0])]);
    house.end();
}

/// A pending request survives gateway kills before and after its answer.
#[test]
fn permission_survives_gateway_kills() {
    let (mut house, key) = House::new(&[]).with_session();
    for (n, option) in ["allow_once", "reject_once", "allow_always"].iter().enumerate() {
        let (turn, id) = asked(&house, &key, &format!("permission Number {n}"));
        house.restart_gateway();
        assert_eq!(one_pending(&house, &key), id, "the same question after the restart");
        assert_eq!(answer(&house, &key, &id, option).code, Some(0));
        house.restart_gateway();
        assert_eq!(pending(&house, &key), [] as [Value; 0], "it stays answered");
        assert_eq!(answer(&house, &key, &id, "allow_once").code, Some(2), "and is not answered twice");
        let events = turn.finish(LONG).ok().lines();
        check_answer(&events, [format!("permission: selected {option}")]);
        assert_eq!(events.iter().filter(|event| event["type"] == "permission").count(), 1, "asked once");
        assert_eq!(settled(&events).len(), 1, "settled once");
    }
    house.end();
}

/// A cancel settles the pending request, which cannot be answered afterwards.
#[test]
fn cancel_settles_pending_permission() {
    // With an agent that cancels its request, and with one that only ends its turn.
    for flags in [&["--cancel-request"][..], &[]] {
        let (house, key) = House::new(flags).with_session();
        let (turn, id) = asked(&house, &key, "permission\nsay never");
        let _ = house.verb(&["sessions", "cancel", &key]);
        let events = turn.finish(LONG).ok().lines();
        check_turn(&events, "cancelled");
        assert_eq!(pending(&house, &key), [] as [Value; 0]);
        assert_eq!(settled(&events).len(), 1, "{events:#?}");
        assert_eq!(settled(&events)[0]["outcome"], "cancelled");
        assert_eq!(answer(&house, &key, &id, "allow_once").code, Some(2));
        check_turn(&house.prompt(&key, "go on"), "end_turn");
        check_cancel_came_first(&house);
        house.end();
    }
}

/// H4: the next process numbers its requests from 0 again, and an old answer does not match a new request.
#[test]
fn old_permission_id_never_approves_new_request() {
    let (mut house, key) = House::new(&["--ids", "int0"]).with_session();
    let (first, old) = asked(&house, &key, "permission First");
    let lease = house.lease(&key);
    lease.kill_adapter();
    let events = first.finish(LONG).lines();
    let _ = check_failed(&events, "ACP_TURN_FAILED");
    assert_eq!(settled(&events).len(), 1, "the death of the agent settles it: {events:#?}");
    house.wait_for_lease_end(&lease);
    assert_eq!(pending(&house, &key), [] as [Value; 0]);
    assert_eq!(answer(&house, &key, &old, "allow_once").code, Some(2), "nobody is there to hear it");

    let (second, new) = asked(&house, &key, "permission Second");
    assert_ne!(new, old);
    assert_eq!(answer(&house, &key, &old, "allow_once").code, Some(2), "the old button does nothing");
    house.restart_gateway();
    assert_eq!(answer(&house, &key, &old, "allow_once").code, Some(2), "nor after a restart");
    assert_eq!(one_pending(&house, &key), new, "the new question still waits");
    assert_eq!(answer(&house, &key, &new, "reject_once").code, Some(0));
    let events = second.finish(LONG).ok().lines();
    assert_eq!(chunks(&events), ["permission: selected reject_once"]);
    house.end();
}

/// Equal request ids in the next turn and in another session: each permission has its own id.
#[test]
fn permission_ids_of_other_turns_and_sessions_are_refused() {
    let house = House::new(&[]);
    let (key, other) = (house.spawn(), house.spawn());
    let first = ask(&house, &key, "permission");
    let beside = ask(&house, &other, "permission");
    let (old, foreign) = (one_pending(&house, &key), one_pending(&house, &other));
    assert_eq!(answer(&house, &key, &foreign, "allow_once").code, Some(2), "of another session");
    assert_eq!(answer(&house, &key, &old, "allow_once").code, Some(0));
    let _ = first.finish(LONG).ok();
    let (second, new) = asked(&house, &key, "permission");
    assert_eq!(answer(&house, &key, &old, "allow_once").code, Some(2), "of an earlier turn");
    assert_eq!(answer(&house, &key, &new, "reject_once").code, Some(0));
    assert_eq!(chunks(&second.finish(LONG).ok().lines()), ["permission: selected reject_once"]);
    assert_eq!(answer(&house, &other, &foreign, "allow_always").code, Some(0));
    assert_eq!(chunks(&beside.finish(LONG).ok().lines()), ["permission: selected allow_always"]);
    house.end();
}

/// `approve-all` and `deny-all` decide without asking. In other modes, a request that needs a person is rejected if nobody is present.
#[test]
fn permission_modes_decide_without_asking() {
    let house = House::new(&[]);
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn = |args: &[&str]| {
        let all = [&["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd], args].concat();
        text(&house.verb(&all), "session_key").to_owned()
    };
    // The scripted agent asks about an `execute`: no read, so that approve-reads has to ask, and nobody is there.
    for (mode, interactive, want) in [
        ("approve-all", false, "permission: selected allow_once"),
        ("approve-all", true, "permission: selected allow_once"),
        ("deny-all", false, "permission: selected reject_once"),
        ("deny-all", true, "permission: selected reject_once"),
        ("approve-reads", false, "permission: selected reject_once"),
        ("ask", false, "permission: selected reject_once"),
    ] {
        let key = spawn(&["--permission", mode]);
        let flag = if interactive { "--interactive" } else { "--non-interactive" };
        let events = house.cli(&["prompt", &key, "permission", flag]).ok().lines();
        check_turn(&events, "end_turn");
        assert_eq!(chunks(&events), [want], "{mode}, interactive {interactive}");
        assert_eq!(settled(&events).len(), 1, "even policy leaves its trace");
        let _ = house.verb(&["sessions", "close", &key]);
    }
    // approve-reads still asks a person who is there.
    let key = spawn(&["--permission", "approve-reads"]);
    let (turn, id) = asked(&house, &key, "permission");
    assert_eq!(answer(&house, &key, &id, "allow_once").code, Some(0));
    assert_eq!(chunks(&turn.finish(LONG).ok().lines()), ["permission: selected allow_once"]);
    house.end();
}

/// A new permission mode decides pending requests; old buttons have no effect.
#[test]
fn stricter_mode_refuses_pending_permission() {
    let (house, key) = House::new(&[]).with_session();
    let (turn, id) = asked(&house, &key, "permission");
    let _ = house.verb(&["sessions", "set", &key, "--permission", "deny-all"]);
    assert_eq!(pending(&house, &key), [] as [Value; 0]);
    assert_eq!(answer(&house, &key, &id, "allow_once").code, Some(2), "an old button");
    let events = turn.finish(LONG).ok().lines();
    assert_eq!(chunks(&events), ["permission: selected reject_once"]);
    assert_eq!(settled(&events)[0]["without"], "policy", "{events:#?}");
    house.end();
}

/// `non_interactive_permissions = fail`: the run ends with its own code, and the command with exit code 5.
#[test]
fn unattended_permission_request_fails_run_if_configured() {
    let toml = "[permission]\nnon_interactive_permissions = \"fail\"\n";
    let (house, key) = Plan::flags(&[]).gateway(toml).build().with_session();
    let failed = house.cli(&["prompt", &key, "permission\nsay never"]);
    assert_eq!((failed.code, failed.error_code().as_str()), (Some(5), "PERMISSION_PROMPT_UNAVAILABLE"));
    let events = failed.lines();
    let _ = check_failed(&events, "PERMISSION_PROMPT_UNAVAILABLE");
    assert!(!chunks(&events).contains(&"never"), "{events:#?}");
    check_cancel_came_first(&house);
    // The session continues, attended and unattended.
    check_turn(&house.prompt(&key, "still here"), "end_turn");
    let (turn, id) = asked(&house, &key, "permission");
    assert_eq!(answer(&house, &key, &id, "allow_once").code, Some(0));
    check_turn(&turn.finish(LONG).ok().lines(), "end_turn");
    house.end();
}

/// An unanswered request is settled at its deadline, with an event.
#[test]
fn deadline_settles_pending_permission() {
    let (house, key) = Plan::flags(&[]).gateway("[permission]\ntimeout_ms = 1500\n").build().with_session();
    let events = ask(&house, &key, "permission").finish(LONG).ok().lines();
    check_answer(&events, ["permission: selected reject_once"]);
    assert_eq!(settled(&events)[0]["without"], "deadline", "{events:#?}");
    assert_eq!(pending(&house, &key), [] as [Value; 0]);
    house.end();
}

/// Closing the session settles the pending request and ends the agent.
#[test]
fn close_settles_pending_permission() {
    let (house, key) = House::new(&[]).with_session();
    let (turn, id) = asked(&house, &key, "permission");
    let lease = house.lease(&key);
    let _ = house.verb(&["sessions", "close", &key]);
    let events = turn.finish(LONG).lines();
    assert_eq!(settled(&events).len(), 1, "{events:#?}");
    assert_eq!(answer(&house, &key, &id, "allow_once").code.filter(|code| *code != 0), Some(2));
    until(LONG, "agent gone", || lease.processes().is_empty());
    house.end();
}

/// If nothing ensures that the agent asks, the session reports it once before its first turn and shows it.
#[test]
fn unensured_asking_is_reported_before_first_turn() {
    let world = World::new();
    let agent = scripted(&world, &[], "ask").without_asks();
    let mut house = Plan::flags(&[]).build_in(world, &BTreeMap::from([(AGENT, agent)]));
    let key = house.spawn();
    let show = |house: &House| house.verb(&["sessions", "show", &key]);
    until(SOON, "asking state shown", || show(&house)["asking"] == "unknown");
    check_turn(&house.prompt(&key, "hello"), "end_turn");
    house.lease(&key).kill_adapter();
    house.restart_gateway();
    check_turn(&house.prompt(&key, "hello again"), "end_turn");
    let history = house.history(&key);
    let is_report = |at: &usize| history[*at]["status"] == "asking_not_ensured";
    let reports: Vec<usize> = (0..history.len()).filter(is_report).collect();
    let turn = history.iter().position(|event| event["type"] == "prompt");
    assert_eq!(reports.len(), 1, "said once: {history:#?}");
    assert!(turn.is_some_and(|turn| reports[0] < turn), "{history:#?}");
    house.end();

    let (house, key) = House::new(&[]).with_session();
    check_turn(&house.prompt(&key, "hello"), "end_turn");
    let asking = house.verb(&["sessions", "show", &key])["asking"].clone();
    assert_eq!(asking, "ensured", "its configuration vouches for it");
    assert!(house.history(&key).iter().all(|event| event["status"] != "asking_not_ensured"));
    house.end();
}

/// The asking mode is set in place of a mode that the agent does not have, and again in the next process.
#[test]
fn refused_mode_does_not_replace_asking_mode() {
    // The mode is changed while the session opens: the agent has not reported its modes yet.
    let (house, key) = Plan::flags(&["--modes", "--slow-init", "2000"]).mode("ask").build().with_session();
    drop(house.cli(&["sessions", "set", &key, "--mode", "free"]));
    let asks = || {
        let (turn, id) = asked(&house, &key, "permission");
        assert_eq!(answer(&house, &key, &id, "allow_once").code, Some(0));
        check_turn(&turn.finish(LONG).ok().lines(), "end_turn");
        let view = house.verb(&["sessions", "show", &key]);
        assert_eq!((&view["asking"], &view["mode_id"]), (&json!("ensured"), &Value::Null), "{view}");
    };
    asks();
    let lease = house.lease(&key);
    lease.kill_adapter();
    house.wait_for_lease_end(&lease);
    asks();
    let history = house.history(&key);
    let is_refused = |event: &&Value| event["status"] == "mode_unavailable" && event["mode"] == "free";
    assert_eq!(history.iter().filter(is_refused).count(), 1, "refused once, then dropped: {history:#?}");
    let modes = house.received("session/set_mode");
    assert!(!modes.is_empty(), "the agent starts in another mode");
    assert!(modes.iter().all(|message| message["params"]["modeId"] == "ask"), "{modes:?}");
    house.end();
}
