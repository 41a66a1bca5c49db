//! Sessions with names, and the verbs around them.

use crate::client::{Client, check_turn, linked, said};
use acp_tests::cli::{RunningCommand, run};
use acp_tests::house::{AGENT, House, Plan, scripted};
use acp_tests::scrape::post;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use serde_json::{Value, json};
use std::fs;

/// Several clients at once get one session, once created; the answer has both names of each member.
#[test]
fn ensure_is_idempotent_under_concurrency() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let ensure = ["sessions", "ensure", "--name", "fix"];
    let running: Vec<RunningCommand> = (0..5).map(|_| client.follow(&[], &ensure)).collect();
    let mut answers: Vec<Value> = running.into_iter().map(|one| one.finish(LONG).ok().json()).collect();
    answers.push(client.object(&ensure));
    let created = answers.iter().filter(|answer| answer["created"] == true).count();
    assert_eq!(created, 1, "{answers:#?}");
    let key = answers[0]["id"].as_str().unwrap_or_default().to_owned();
    for answer in &mut answers {
        answer["created"].take();
        let agents = answer["acpxSessionId"].take();
        assert!(agents.as_str().is_some_and(|id| !id.is_empty() && id != key), "{agents}");
        let want = json!({
            "action": "session_ensured", "type": "session_ensured", "created": null, "acpxSessionId": null,
            "acpxRecordId": key, "id": key, "sessionId": key, "name": "fix", "eventVersion": 1, "seq": 1,
            "stream": "control",
        });
        assert_eq!(*answer, want);
    }
    assert_eq!(house.leases().len(), 1, "one agent was started");
    house.end();
}

/// The answer has the new session, which saves a request; one that existed may be hidden from the caller.
#[test]
fn new_session_is_in_the_answer_to_its_request() {
    let house = House::new(&[]);
    let cwd = house.world.dir("work/project");
    let body = json!({ "agent": AGENT, "cwd": cwd, "wait_s": 60, "acpx": { "name": "fix", "cwd": cwd } });
    let spawn = |body: &Value| post(&house.gateway().socket(), "/v1/sessions", body);
    let new = spawn(&body);
    let session = &new["session"];
    assert_eq!((&new["opening"], &session["session_key"]), (&json!("open"), &new["session_key"]), "{new}");
    assert_eq!((&session["state"], &session["cwd"]), (&json!("idle"), &json!(cwd)), "{new}");
    assert!(session["agent_session_id"].is_string(), "{new}");
    let again = spawn(&body);
    assert_eq!((&again["session_key"], &again["session"]), (&new["session_key"], &Value::Null), "{again}");
    let unnamed = spawn(&json!({ "agent": AGENT, "cwd": cwd, "wait_s": 60 }));
    assert_eq!((&unnamed["opening"], &unnamed["session"]), (&json!("open"), &Value::Null), "{unnamed}");
    house.end();
}

/// A session is found from directories below it, up to the root of the repository, and by its name.
#[test]
fn session_is_found_up_to_the_root_of_the_repository() {
    let house = House::new(&[]);
    let root = Client::new(&house).at("work/repo");
    let (below, beside) = (root.at("work/repo/a/b"), root.at("work/plain/a"));
    fs::create_dir(root.dir.join(".git")).unwrap_or_else(|e| panic!("{e}"));
    let key = root.ensure();
    let found = below.object(&["sessions", "ensure"]);
    assert_eq!((&found["id"], &found["created"]), (&json!(key), &json!(false)));
    assert_eq!(below.object(&["status"])["id"], json!(key));
    let lines = below.run(&["prompt", "hello"]).ok().lines();
    check_turn(&lines, &key);
    assert_eq!(said(&lines), "echo: hello");
    // Outside of a repository only the directory itself counts, and another name is another session.
    let plain = root.at("work/plain").ensure();
    assert_eq!(beside.object(&["status"])["status"], "no-session");
    let named = below.object(&["sessions", "ensure", "--name", "other"]);
    assert_eq!(named["created"], true, "{named}");
    assert_ne!(named["id"], json!(key));
    assert_ne!(plain, key);
    house.end();
}

/// `new` closes the session that has the name, and reports it; the old session's agent ends.
#[test]
fn new_replaces_the_session_with_the_same_name() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let old = client.ensure();
    let lease = house.lease(&old);
    let new = client.object(&["sessions", "new"]);
    assert_eq!((&new["created"], &new["replacedSessionId"]), (&json!(true), &json!(old)));
    house.wait_for_lease_end(&lease);
    let list = client.object(&["sessions", "list"]);
    let states: Vec<(&Value, &Value)> =
        list.as_array().into_iter().flatten().map(|one| (&one["id"], &one["closed"])).collect();
    assert_eq!(states, [(&new["id"], &json!(false)), (&json!(old), &json!(true))]);
    // Replaced again by several clients at once: one open session remains.
    let running: Vec<RunningCommand> = (0..3).map(|_| client.follow(&[], &["sessions", "new"])).collect();
    let codes: Vec<Option<i32>> = running.into_iter().map(|one| one.finish(LONG).code).collect();
    // A session that is replaced before its agent has opened it is gone.
    assert!(codes.contains(&Some(0)) && codes.iter().all(|code| matches!(code, Some(0 | 4))), "{codes:?}");
    let list = client.object(&["sessions", "list"]);
    let open = list.as_array().into_iter().flatten().filter(|one| one["closed"] == false).count();
    assert_eq!(open, 1, "{list:#}");
    let first = client.with(&[], &["sessions", "new", "--name", "first"]).ok().json();
    assert_eq!(first.get("replacedSessionId"), None, "{first}");
    house.end();
}

/// Show, history, status, close and prune tell one story.
#[test]
fn verbs_of_a_session_tell_its_state() {
    let house = House::new(&["--modes", "--options"]);
    let client = Client::new(&house);
    assert_eq!(client.object(&["status"])["status"], "no-session");
    assert_eq!(client.object(&["cancel"])["cancelled"], false);
    let key = client.ensure();
    let _ = client.run(&["prompt", "say one\nsay two"]).ok();
    let status = client.object(&["status"]);
    assert_eq!(
        (&status["status"], &status["type"], &status["id"]),
        (&json!("alive"), &json!("status_snapshot"), &json!(key))
    );
    assert!(status["lastPromptTime"].is_string(), "{status}");
    assert_eq!(client.object(&["cancel"])["cancelled"], false, "nothing runs");
    let mode = client.object(&["set-mode", "ask"]);
    assert_eq!((&mode["action"], &mode["modeId"]), (&json!("mode_set"), &json!("ask")));
    let model = client.object(&["set", "model", "big"]);
    assert_eq!((&model["action"], &model["modelId"]), (&json!("model_set"), &json!("big")));
    assert_eq!(client.object(&["status"])["model"], "big");
    let config = client.object(&["set", "web", "true"]);
    assert_eq!(
        (&config["action"], &config["configId"], &config["value"]),
        (&json!("config_set"), &json!("web"), &json!("true"))
    );
    let history = client.object(&["sessions", "history"]);
    let entries: Vec<(&Value, &Value)> = history["entries"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| (&one["role"], &one["textPreview"]))
        .collect();
    assert_eq!(
        entries,
        [(&json!("user"), &json!("say one say two")), (&json!("assistant"), &json!("onetwo"))]
    );
    assert_eq!(client.object(&["sessions", "history", "--limit", "1"])["count"], 1);
    let shown = client.object(&["sessions", "show"]);
    assert_eq!(
        (&shown["id"], &shown["closed"], &shown["agent"]),
        (&json!(key), &json!(false), &json!("scripted"))
    );

    let lease = house.lease(&key);
    let closed = client.object(&["sessions", "close"]);
    assert_eq!((&closed["action"], &closed["id"]), (&json!("session_closed"), &json!(key)));
    house.wait_for_lease_end(&lease);
    let gone = client.run(&["prompt", "hi"]);
    assert_eq!((gone.code, gone.error_code().as_str()), (Some(4), "NO_SESSION"));
    let dry = client.object(&["sessions", "prune", "--dry-run"]);
    assert_eq!((&dry["action"], &dry["count"]), (&json!("sessions_prune_dry_run"), &json!(1)));
    assert_eq!(client.object(&["sessions", "prune"])["pruned"], json!([key]));
    assert_eq!(client.object(&["sessions", "list"]), json!([]));
    house.end();
}

/// Without an agent a verb means the session of the default agent, also where another agent has a newer one.
#[test]
fn verbs_without_an_agent_mean_the_default_agent() {
    let world = World::new();
    let agents = [AGENT, "other"].map(|name| (name, scripted(&world, &[], "ask")));
    let plan = Plan::flags(&[]).gateway(&format!("[acp]\ndefault_agent = \"{AGENT}\""));
    let house = plan.build_in(world, &agents.into());
    let client = Client::new(&house);
    let other = client.with_agent(Some("other"));
    let unnamed = client.with_agent(None);
    let (key, newer) = (client.ensure(), other.ensure());
    assert_ne!(key, newer);
    for verb in [["sessions", "show"], ["sessions", "history"]] {
        assert_eq!(unnamed.object(&verb)["id"], json!(key), "{verb:?}");
    }
    assert_eq!(unnamed.object(&["sessions", "close"])["id"], json!(key));
    let shown = unnamed.object(&["sessions", "show"]);
    assert_eq!((&shown["id"], &shown["closed"]), (&json!(key), &json!(true)), "the last one, closed");
    let _ = unnamed.run(&["sessions", "close"]);
    assert_eq!(other.object(&["sessions", "show"])["closed"], false);
    // The newest one of several closed ones.
    let next = client.ensure();
    assert_eq!(unnamed.object(&["sessions", "close"])["id"], json!(next));
    assert_eq!(unnamed.object(&["sessions", "show"])["id"], json!(next));
    let lines = unnamed.run(&["sessions", "watch"]).ok().lines();
    assert!(lines.is_empty(), "{lines:?}");
    house.end();
}

/// A session that the agent cannot open keeps no name, and the error is the agent's own.
#[test]
fn failed_ensure_leaves_no_session() {
    let house = House::new(&["--auth-required"]);
    let client = Client::new(&house);
    let failed = client.run(&["sessions", "ensure"]);
    assert_eq!(failed.code, Some(1));
    let error = failed.error();
    assert_eq!(
        (&error["code"], &error["detailCode"], &error["origin"]),
        (&json!("RUNTIME"), &json!("AUTH_REQUIRED"), &json!("acp"))
    );
    assert_eq!(
        (&error["error"]["code"], &error["acp"]["code"]),
        (&json!(-32000), &json!(-32000)),
        "{error:#}"
    );
    assert_eq!(client.object(&["status"])["status"], "no-session");
    let failed = client.run(&["exec", "hello"]);
    assert_eq!((failed.code, &failed.error()["detailCode"]), (Some(1), &json!("AUTH_REQUIRED")));
    let failed = client.with(&["--model", "big"], &["exec", "hello"]);
    assert_eq!((failed.code, &failed.error()["detailCode"]), (Some(1), &json!("AUTH_REQUIRED")));
    assert_eq!(house.verb(&["sessions", "list"]), json!([]), "no session is left open");
    until(SOON, "no agent is left", || house.leases().iter().all(|lease| lease.processes().is_empty()));
    house.end();
}

/// The program is the contract under the name `acpx`, and texts are those of acpx.
#[test]
fn program_named_acpx_prints_texts_for_people() {
    let house = House::new(&[]);
    let client = Client::new(&house);
    let mut command = linked(&house, &house.world.path("acpx"));
    let ensured =
        run(command.arg("--cwd").arg(&client.dir).args(["scripted", "sessions", "ensure"]), LONG).ok();
    let key = client.ensure();
    assert_eq!(ensured.stdout, format!("{key}\t(created)"));
    assert!(ensured.stderr.starts_with("[acpx] created session cwd "), "{}", ensured.stderr);
    assert_eq!(client.text("text", &["sessions", "ensure"]).ok().stdout, format!("{key}\t(existing)"));
    assert_eq!(client.text("quiet", &["sessions", "ensure"]).ok().stdout, key);

    let turn = client.text("text", &["thought hm\nsay Hello\nplan a; b\nsay end"]).ok();
    let want = "[thinking] hm\nHello\n\n[plan]\n  - [pending] a\n  - [pending] b\nend\n\n[done] end_turn";
    assert_eq!(turn.stdout, want);
    assert!(turn.stderr.starts_with("[acpx] session "), "{}", turn.stderr);
    let quiet = client.text("quiet", &["prompt", "thought hm\nsay Hello"]).ok();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("Hello", ""));
    let failed = client.text("quiet", &["prompt", "error -32603 broken"]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.stderr.starts_with("[acpx] error: RUNTIME ACP_TURN_FAILED "), "{}", failed.stderr);
    let failed = client.text("text", &["prompt", "error -32603 broken"]);
    assert!(failed.stdout.starts_with("[error] RUNTIME: "), "{failed:?}");
    assert_eq!(client.text("quiet", &["status"]).ok().stdout, "alive");
    assert_eq!(client.text("text", &["cancel"]).ok().stdout, "nothing to cancel");
    house.end();
}
