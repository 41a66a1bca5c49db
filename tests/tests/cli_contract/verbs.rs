//! Verbs: output and exit codes.

use acp_tests::cli::{Output, run};
use acp_tests::house::{AGENT, GATEWAY, House};
use acp_tests::story::{check_history, check_turn};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use serde_json::{Value, json};

/// Checks the only error line that a failed command prints with `--json`.
fn check_error(output: &Output, exit: i32, code: &str) -> Value {
    assert_eq!(output.code, Some(exit), "{output:#?}");
    let lines = output.lines();
    let errors: Vec<&Value> = lines.iter().filter(|line| line["type"] == "error").collect();
    assert_eq!(errors.len(), 1, "one error line: {output:#?}");
    let error = errors[0];
    assert_eq!(error["code"], code, "{error}");
    assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{error}");
    assert_eq!(lines.last(), Some(error), "the error is the last line");
    for (name, value) in error.as_object().into_iter().flatten() {
        match name.as_str() {
            "detail_code" | "origin" => assert!(value.is_string(), "{error}"),
            "acp" => assert!(value["code"].is_i64() && value["message"].is_string(), "{error}"),
            "retryable" => assert!(value.is_boolean(), "{error}"),
            _ => {}
        }
    }
    error.clone()
}

/// Exit codes: 0 done or cancelled, 1 failed, 2 usage, 3 timeout, 4 no such session, 5 permission denied.
#[test]
fn verbs_return_documented_exit_codes_and_error_lines() {
    let (house, key) = House::new(&[]).with_session();
    assert_eq!(house.cli(&["prompt", &key, "say done"]).code, Some(0));
    assert_eq!(house.cli(&["prompt", &key, "refuse"]).code, Some(0), "a refusal is an answer");

    let _ = check_error(&house.cli(&["prompt", &key, "error -32603 no"]), 1, "ACP_TURN_FAILED");

    let _ = check_error(&house.cli(&["prompt", &key, "sleep 60000", "--timeout", "0.5"]), 3, "TIMEOUT");
    let cancelled = house.verb(&["sessions", "cancel", &key]);
    assert!(cancelled["run_id"].is_string(), "the turn went on after the timeout: {cancelled}");

    let unknown = "agent:scripted:acp:0190a000-0000-7000-8000-000000000001";
    for verb in [
        vec!["prompt", unknown, "hello"],
        vec!["steer", unknown, "hello"],
        vec!["sessions", "show", unknown],
        vec!["sessions", "history", unknown],
        vec!["sessions", "cancel", unknown],
        vec!["sessions", "close", unknown],
        vec!["permissions", "list", unknown],
        vec!["sessions", "show", "no label at all"],
    ] {
        let _ = check_error(&house.cli(&verb), 4, "NO_SESSION");
    }

    for verb in [
        vec![],
        vec!["no-such-verb"],
        vec!["prompt"],
        vec!["prompt", &key, "x", "--no-such-flag"],
        vec!["prompt", &key, ""],
        vec!["sessions", "spawn", "--permission", "perhaps"],
        vec!["prompt", &key],
        vec!["permissions", "answer", &key, "nothing", "allow_once"],
    ] {
        let _ = check_error(&house.cli(&verb), 2, "USAGE");
    }
    let strange = house.cli(&["sessions", "spawn", "--agent", "no-such-agent"]);
    let _ = check_error(&strange, 1, "ACP_AGENT_NOT_ALLOWED");
    let outside = house.cli(&["sessions", "spawn", "--agent", AGENT, "--cwd", "/"]);
    let _ = check_error(&outside, 1, "ACP_CWD_NOT_ALLOWED");
    let missing = house.world.path("work/missing").to_string_lossy().into_owned();
    let missing = house.cli(&["sessions", "spawn", "--agent", AGENT, "--cwd", &missing]);
    let _ = check_error(&missing, 1, "ACP_CWD_NOT_ALLOWED");

    let _ = house.verb(&["sessions", "close", &key]);
    let _ = check_error(&house.cli(&["prompt", &key, "hello"]), 1, "ACP_SESSION_CLOSED");
    assert_eq!(house.cli(&["sessions", "close", &key]).code, Some(0), "closing twice is no failure");
    house.end();
}

/// Every verb takes a key, the start of an id, a label, `--last`, or the session of the current directory.
#[test]
fn sessions_are_named_in_every_way() {
    let (house, key) = House::new(&[]).with_session();
    let _ = house.verb(&["sessions", "rename", &key, "fix the build"]);
    let id = key.rsplit(':').next().unwrap_or_default();
    let shown = |args: &[&str]| house.verb(&[&["sessions", "show"], args].concat())["session_key"].clone();
    for name in [&[key.as_str()][..], &[id], &["fix the build"], &["--last"]] {
        assert_eq!(shown(name), key.as_str(), "{name:?}");
    }
    let mut here = house.plain(&["prompt", "say from here"]);
    let answered = run(here.current_dir(house.cwd()), LONG).ok();
    assert_eq!(answered.stdout.trim_end(), "from here");
    let other = house.spawn();
    let mut here = house.plain(&["sessions", "show"]);
    let several = run(here.current_dir(house.cwd()), LONG);
    assert_eq!(several.code, Some(4), "{several:#?}");
    assert!(several.stderr.contains(&key) && several.stderr.contains(&other), "{}", several.stderr);
    // The last events, in their order.
    let all = house.world.history(GATEWAY, &key);
    let last = house.cli(&["sessions", "history", "fix the build", "--limit", "2"]).ok().lines();
    assert_eq!(last, all[all.len() - 2..]);
    house.end();
}

#[test]
fn session_is_exported_as_markdown_and_as_lines() {
    let (house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "say forty two");
    let export = |more: &[&str]| {
        run(&mut house.plain(&[&["sessions", "export", &key], more].concat()), LONG).ok().stdout
    };
    let markdown = export(&["--md"]);
    for part in ["## Agent\n", "\n\nforty two\n", "\nsay forty two\n", "*Ended: end_turn*"] {
        assert!(markdown.contains(part), "{part}: {markdown}");
    }
    let lines = export(&["--jsonl"]);
    let types: Vec<String> = lines
        .lines()
        .map(|line| {
            let line: serde_json::Value =
                serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            line["type"].as_str().unwrap_or_default().to_owned()
        })
        .collect();
    assert!(types.contains(&"prompt".to_owned()), "{types:?}");
    assert_eq!(types.len(), house.world.history(GATEWAY, &key).len(), "{types:?}");
    house.end();
}

/// Without `--json` a failure is text on standard error, and standard output is empty.
#[test]
fn output_without_json_is_plain_text() {
    let (house, key) = House::new(&[]).with_session();
    let plain = |args: &[&str]| run(&mut house.plain(args), LONG);
    let said = plain(&["prompt", &key, "say forty two"]);
    assert_eq!((said.code, said.stdout.trim_end()), (Some(0), "forty two"));
    let failed = plain(&["prompt", "agent:none:acp:1", "hello"]);
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(4), ""));
    assert!(failed.stderr.contains("NO_SESSION") && failed.stderr.lines().count() == 1, "{}", failed.stderr);
    for args in [&["--help"][..], &["sessions", "--help"], &["--version"]] {
        let help = plain(args);
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""), "{args:?}");
        assert!(!help.stdout.is_empty());
    }
    house.end();
}

/// The members of event lines.
#[test]
fn event_lines_have_documented_members() {
    let (house, key) = House::new(&[]).with_session();
    let script = "thought hm\nplan a; b\nsay one\nchunks 3\ntool write x.txt y\npermission";
    let events = house.prompt(&key, script);
    check_turn(&events, "end_turn");
    for event in &events {
        assert_eq!(event["event_version"], 1, "{event}");
        assert_eq!(event["session_key"], key.as_str(), "{event}");
        assert!(event["session_seq"].is_u64() && event["seq"].is_u64(), "{event}");
        assert!(event["run_id"].is_string() && event["type"].is_string(), "{event}");
        let typed = match event["type"].as_str().unwrap_or_default() {
            "text_delta" => {
                matches!(event["stream"].as_str(), Some("output" | "thought")) && event["text"].is_string()
            }
            "tool_call" => event["name"].is_string() && event["arguments_text"].is_string(),
            "done" => event["stop_reason"].is_string(),
            "plan" => event["entries"].as_array().is_some_and(|entries| entries.len() == 2),
            "permission" => event["permission_id"].is_string() && event["options"].is_array(),
            _ => true,
        };
        assert!(typed, "{event}");
    }
    let deltas = events.iter().filter(|event| event["type"] == "text_delta").count();
    assert_eq!(deltas, 1 + 1 + 3 + 1, "one event for each chunk");
    let failed = house.cli(&["prompt", &key, "error -32603 no"]).lines();
    let error = failed.last().cloned().unwrap_or_default();
    assert_eq!(error["type"], "error");
    assert!(
        error["code"].is_string() && error["message"].is_string() && error["retryable"].is_boolean(),
        "{error}"
    );

    let history = house.history(&key);
    check_history(&history);
    let of_run: Vec<&Value> = history.iter().filter(|event| event["run_id"] == events[0]["run_id"]).collect();
    let seen: Vec<&Value> = events.iter().collect();
    assert!(of_run.ends_with(&seen), "history tells the same as the stream did");
    let middle = history[history.len() / 2]["session_seq"].clone();
    let after = house.cli(&["sessions", "history", &key, "--after", &middle.to_string()]).ok().lines();
    assert_eq!(after, history[history.len() / 2 + 1..], "session_seq is the cursor");
    house.end();
}

/// `--state-dir` before and after the verb, and from the environment.
#[test]
fn state_directory_is_taken_from_flag_or_environment() {
    let house = House::new(&[]);
    let dir = house.world.path(GATEWAY).to_string_lossy().into_owned();
    let ask = |args: &[&str], env: Option<(&str, &str)>| {
        let mut command = house.world.command("acp-gateway");
        command.args(args).envs(env);
        run(&mut command, SOON)
    };
    for (args, env) in [
        (vec!["--state-dir", &dir, "sessions", "list", "--json"], None),
        (vec!["sessions", "list", "--state-dir", &dir, "--json"], None),
        (vec!["--json", "sessions", "--state-dir", &dir, "list"], None),
        (vec!["sessions", "list", "--json"], Some(("ACP_GATEWAY_STATE_DIR", dir.as_str()))),
    ] {
        let output = ask(&args, env);
        assert_eq!((output.code, output.json()), (Some(0), json!([])), "{args:?}");
    }
    let nowhere = house.world.path("nowhere").to_string_lossy().into_owned();
    let refused = ask(&["sessions", "list", "--state-dir", &nowhere, "--json"], None);
    let error = check_error(&refused, 1, "GATEWAY_UNAVAILABLE");
    assert_eq!(error["retryable"], true);
    let _ = check_error(&ask(&["sessions", "list", "--json"], None), 1, "GATEWAY_UNAVAILABLE");
    house.end();
}

/// A repeated idempotency key returns the first response without a second effect; with other arguments it is refused.
#[test]
fn idempotency_keys_replay_the_first_answer() {
    let mut house = House::new(&[]);
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn = ["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd, "--idempotency-key", "spawn-1"];
    let first = house.verb(&spawn);
    let key = first["session_key"].as_str().unwrap_or_else(|| panic!("{first}")).to_owned();
    assert_eq!(house.verb(&spawn), first);
    let prompt = ["prompt", &key, "only once", "--idempotency-key", "prompt-1"];
    let events = house.cli(&prompt).ok().lines();
    assert_eq!(house.cli(&prompt).ok().lines(), events, "the same events, from the first to the last");
    house.restart_gateway();
    assert_eq!(house.cli(&prompt).ok().lines(), events, "a restart forgets nothing");
    assert_eq!(house.verb(&spawn), first);
    assert_eq!(house.prompts_received("only once"), 1);
    assert_eq!(house.verb(&["sessions", "list"]).as_array().map(Vec::len), Some(1));

    let other = ["prompt", &key, "something else", "--idempotency-key", "prompt-1"];
    let _ = check_error(&house.cli(&other), 1, "ACP_IDEMPOTENCY_CONFLICT");
    let other = [&spawn[..], &["--label", "x"]].concat();
    let _ = check_error(&house.cli(&other), 1, "ACP_IDEMPOTENCY_CONFLICT");
    // Many at once, from the first one on.
    let racing = ["prompt", &key, "race", "--idempotency-key", "race-1"];
    let racers: Vec<_> = (0..6).map(|_| house.follow(&racing)).collect();
    let ended: Vec<Vec<Value>> = racers.into_iter().map(|racer| racer.finish(LONG).ok().lines()).collect();
    assert!(ended.windows(2).all(|pair| pair[0] == pair[1]), "all see the same turn");
    assert_eq!(house.prompts_received("race"), 1);
    let cancel = ["sessions", "cancel", &key, "--idempotency-key", "cancel-1"];
    let nothing = house.verb(&cancel);
    let turn = house.follow(&["prompt", &key, "sleep 400\nsay not cancelled"]);
    until(SOON, "turn running", || house.verb(&["sessions", "show", &key])["state"] == "running");
    assert_eq!(house.verb(&cancel), nothing, "an old cancel does not hit a new turn");
    check_turn(&turn.finish(LONG).ok().lines(), "end_turn");
    house.end();
}

/// Every verb prints parseable JSON with the documented members.
#[test]
fn other_verbs_print_json() {
    let (house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "hello");
    let list = house.verb(&["sessions", "list"]);
    assert_eq!(list[0]["session_key"], key.as_str());
    assert_eq!(list[0]["state"], "idle");
    assert_eq!(list[0]["agent"], AGENT);
    let show = house.verb(&["sessions", "show", &key]);
    assert_eq!(show["runs"][0]["state"], "completed");
    assert_eq!(show["runs"][0]["text"], "hello");
    let agents = house.verb(&["agents"]);
    let scripted = agents.as_array().into_iter().flatten().find(|agent| agent["name"] == AGENT);
    assert!(
        scripted.is_some_and(|agent| agent["installed"] == true && agent["origin"] == "configured"),
        "{agents}"
    );
    let leases = house.leases();
    assert_eq!(leases.len(), 1);
    for member in ["lease_id", "gateway_instance_id", "session_key", "state"] {
        assert!(leases[0].0[member].is_string(), "{member}: {leases:?}");
    }
    assert!(leases[0].wrapper_pid() > 1 && leases[0].adapter_pid() > 1);
    let verify =
        house.world.supervisor_cli(house.socket(), &["leases", "verify", leases[0].id()]).ok().json();
    assert_eq!(verify["verdict"], "owned", "{verify}");
    let reap = house.world.supervisor_cli(house.socket(), &["leases", "reap", "--dry-run"]).ok().json();
    assert!(reap.is_array(), "{reap}");
    assert_eq!(house.lease(&key).id(), leases[0].id(), "a dry run does nothing");
    let config = house.world.path("gateway.toml").to_string_lossy().into_owned();
    let shown = house.cli(&["config", "show", "--config", &config]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(!shown.lines().is_empty());
    check_effective(&house, &config);
    let doctor = house.cli(&["doctor"]);
    assert!(matches!(doctor.code, Some(0 | 1)) && !doctor.lines().is_empty(), "{doctor:?}");
    let completions = run(house.world.command("acp-gateway").args(["completions", "bash"]), SOON).ok();
    assert!(completions.stdout.contains("acp-gateway"));
    let closed = house.verb(&["sessions", "close", &key]);
    assert_eq!((&closed["session_key"], &closed["state"]), (&json!(key), &json!("closed")));
    assert_eq!(house.verb(&["sessions", "list"]), json!([]));
    house.end();
}

/// Checks `config show` for one account and agent: effective value, key and source.
fn check_effective(house: &House, config: &str) {
    let show = |args: &[&str]| house.cli(&[&["config", "show", "--config", config], args].concat());
    let shown = show(&["--channel", "console", "--account", "main", "--agent", AGENT]).ok().json();
    let row = |setting: &str| {
        let rows = shown.as_array().unwrap_or_else(|| panic!("no rows: {shown}"));
        let found = rows.iter().find(|row| row["setting"] == setting);
        found.unwrap_or_else(|| panic!("no {setting} in {shown}")).clone()
    };
    assert_eq!(row("agent.eof_ms")["value"], 300);
    assert_eq!(row("agent.eof_ms")["key"], format!("agents.{AGENT}.eof_ms"));
    assert!(row("agent.eof_ms")["source"].as_str().is_some_and(|it| it.starts_with(config)), "{shown}");
    assert_eq!(row("bindings.idle_ms")["value"], 86_400_000);
    assert_eq!(row("bindings.idle_ms")["key"], "session.thread_bindings.idle_hours");
    assert_eq!(row("bindings.idle_ms")["source"], "default");
    assert_eq!(row("bindings.spawn_acp_sessions")["value"], true);
    let _ = check_error(&show(&["--account", "main"]), 2, "USAGE");
    let _ = check_error(&show(&["--channel", "telegram"]), 2, "USAGE");
}

/// The supervisor's verbs report failures like the gateway's.
#[test]
fn supervisor_failures_are_json_error_lines() {
    let world = World::new();
    let missing = world.path("missing.sock");
    let refused = world.supervisor_cli(&missing, &["status"]);
    let _ = check_error(&refused, 3, "SUPERVISOR_UNAVAILABLE");
    for args in [&["no-such-verb"][..], &["leases", "show", "no-lease-id"], &["leases", "reap"], &["leases"]]
    {
        let supervisor = world.supervisor();
        let _ = check_error(&world.supervisor_cli(&supervisor.socket(), args), 2, "USAGE");
        assert_eq!(supervisor.terminate(LONG), Some(0));
    }
    let supervisor = world.supervisor();
    let unknown = ["leases", "show", "0190a000-0000-7000-8000-000000000001"];
    let _ = check_error(&world.supervisor_cli(&supervisor.socket(), &unknown), 1, "LEASE_UNKNOWN");
    assert_eq!(supervisor.terminate(LONG), Some(0));
}

/// An invalid configuration is refused with the nearest valid name and the position.
#[test]
fn a_wrong_configuration_is_refused() {
    let world = World::new();
    for (toml, near) in
        [("[acp]\nbackendd = \"x\"\n", "backend"), ("[limits]\nqueue_runs_max = 0\n", "queue_runs_max")]
    {
        let config = world.write("wrong.toml", toml).to_string_lossy().into_owned();
        let error = check_error(&world.cli(GATEWAY, &["serve", "--config", &config]), 2, "CONFIG_INVALID");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains(near) && message.contains("wrong.toml"), "{message}");
    }
    let config = world.write("wrong.toml", "leases_maxx = 1\n").to_string_lossy().into_owned();
    let dir = world.path("supervisor").to_string_lossy().into_owned();
    let mut command = world.command("acp-supervisor");
    command.args(["serve", "--state-dir", &dir, "--config", &config, "--json"]);
    let error = check_error(&run(&mut command, SOON), 2, "CONFIG_INVALID");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("leases_max")), "{error}");
}
