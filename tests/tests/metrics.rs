//! Metrics and log after a script with known counts.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_tests::house::{AGENT, GATEWAY, House, Plan, scripted};
use acp_tests::scrape::Scrape;
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::{Agent, World, repository};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

#[path = "metrics/foreign.rs"]
mod foreign;
#[path = "metrics/log_files.rs"]
mod log_files;
#[path = "metrics/rules.rs"]
mod rules;

/// Files of the tests that compare each metric with real events.
const HERE: &str = "tests/tests/metrics.rs";
const INBOUND: &str = "gateway/src/conversation/inbound/tests.rs";
const BINDINGS: &str = "gateway/src/conversation/inbound/tests/bindings.rs";
const DELIVERY: &str = "gateway/src/conversation/delivery/tests.rs";
const SESSIONS: &str = "gateway/src/session/task_tests.rs";
const STORE: &str = "gateway/store/src/tests/safety.rs";
const WATCHDOG: &str = "gateway/src/metrics/actors.rs";
const CHANNELS: &str = "gateway/src/metrics/channels.rs";
const LISTENERS: &str = "gateway/src/api/tests/hostile.rs";
const CLIENTS: &str = "gateway/src/api/acp/tests.rs";
const ADMIN: &str = "supervisor/tests/real/admin.rs";
const CRASH: &str = "supervisor/tests/real/crash.rs";
const RETENTION: &str = "gateway/src/ops/retention.rs";
const METRICS: [(&str, &str); 77] = [
    ("acp_agent_line_faults", "tests/tests/agent_text.rs"),
    ("acp_journal_pruned_rows", RETENTION),
    ("acp_journal_last_prune_timestamp_seconds", RETENTION),
    ("acp_api_connections", LISTENERS),
    ("acp_api_connections_open", LISTENERS),
    ("acp_api_refusals", "gateway/src/api/tests/network.rs"),
    ("acp_clients", CLIENTS),
    ("acp_clients_open", CLIENTS),
    ("acp_client_streams_open", CLIENTS),
    ("acp_client_resumes", CLIENTS),
    ("acp_client_ends", CLIENTS),
    ("acp_spawns", HERE),
    ("acp_spawn_refusals", HERE),
    ("acp_runs", HERE),
    ("acp_run_queue_wait_seconds", HERE),
    ("acp_run_turn_seconds", HERE),
    ("acp_delivery_projection_seconds", HERE),
    ("acp_actor_restarts", SESSIONS),
    ("acp_actor_evictions", SESSIONS),
    ("acp_stale_binding_detections", INBOUND),
    ("acp_stale_binding_removals", BINDINGS),
    ("acp_routes", BINDINGS),
    ("acp_idempotency_lookups", HERE),
    ("acp_delivery_attempts", HERE),
    ("acp_delivery_retries", DELIVERY),
    ("acp_delivery_rate_limits", DELIVERY),
    ("acp_mailbox_rejections", INBOUND),
    ("acp_sessions", HERE),
    ("acp_runs_queued", HERE),
    ("acp_inbox_waiting", HERE),
    ("acp_delivery_parts_waiting", HERE),
    ("acp_stale_bindings", INBOUND),
    ("acp_actors", HERE),
    ("acp_actors_stuck", WATCHDOG),
    ("acp_channel_connected", CHANNELS),
    ("acp_channel_authorized", CHANNELS),
    ("acp_channel_shards", CHANNELS),
    ("acp_channel_sessions", CHANNELS),
    ("acp_channel_gaps", CHANNELS),
    ("acp_channel_events_dropped", CHANNELS),
    ("acp_channel_events_strange", CHANNELS),
    ("acp_channel_requests", CHANNELS),
    ("acp_channel_request_retries", CHANNELS),
    ("acp_channel_rate_limits", CHANNELS),
    ("acp_channel_request_turns", CHANNELS),
    ("acp_channel_request_wait_seconds", CHANNELS),
    ("acp_channel_requests_waiting", CHANNELS),
    ("acp_channel_requests_under_way", CHANNELS),
    ("acp_supervisor_connected", HERE),
    ("acp_host_connected", HERE),
    ("acp_supervisor_connections", HERE),
    ("acp_supervisor_leases", HERE),
    ("acp_supervisor_leases_unproved", CRASH),
    ("acp_supervisor_survivors", ADMIN),
    ("acp_supervisor_crash_loops", HERE),
    ("acp_supervisor_delayed_agents", HERE),
    ("acp_supervisor_gateways", ADMIN),
    ("acp_supervisor_buffered_bytes", HERE),
    ("acp_supervisor_read_only", HERE),
    ("acp_supervisor_uptime_seconds", HERE),
    ("acp_supervisor_disk_free_bytes", ADMIN),
    ("acp_supervisor_disk_size_bytes", ADMIN),
    ("acp_supervisor_detached_grace_seconds", HERE),
    ("acp_supervisor_memory_bytes", HERE),
    ("acp_supervisor_living_leases", HERE),
    ("acp_disk_free_bytes", HERE),
    ("acp_disk_size_bytes", HERE),
    ("acp_store_writable", HERE),
    ("acp_store_sound", HERE),
    ("acp_store_database_bytes", HERE),
    ("acp_store_log_bytes", HERE),
    ("acp_store_commits", HERE),
    ("acp_store_transactions", HERE),
    ("acp_store_rollbacks", STORE),
    ("acp_store_groups_lost", STORE),
    ("acp_store_checkpoints", HERE),
    ("acp_store_group_transactions", HERE),
];
/// Measured together with the commits.
const COMMIT: &str = "acp_store_commit_seconds";

fn scrape(house: &House) -> Scrape {
    Scrape::fetch(&house.gateway().socket())
}

/// Waits for a scrape with these values; panics with the differences.
fn settled(house: &House, want: &[(&str, f64)]) -> Scrape {
    let mut last = String::new();
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        eventually(SOON, "expected series values", || {
            let found = scrape(house);
            let off = want.iter().filter(|(series, value)| found.value(series) != *value);
            let off: Vec<String> = off
                .map(|(series, value)| format!("{series}: {} and not {value}", found.value(series)))
                .collect();
            last = off.join("\n");
            off.is_empty().then_some(found)
        })
    }));
    found.unwrap_or_else(|_| panic!("{last}"))
}

fn state(house: &House, key: &str) -> String {
    house.verb(&["sessions", "show", key])["state"].as_str().unwrap().to_owned()
}

/// Spawns a session; repeats the spawn, reuses its key with other arguments, and tries an unknown agent.
fn spawns(house: &House) -> String {
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn = ["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd, "--idempotency-key", "one"];
    let key = house.verb(&spawn)["session_key"].as_str().unwrap().to_owned();
    assert_eq!(house.verb(&spawn)["session_key"], key.as_str());
    let other = [&spawn[..], &["--label", "other"]].concat();
    assert_eq!(house.cli(&other).error_code(), "ACP_IDEMPOTENCY_CONFLICT");
    assert_eq!(house.cli(&["sessions", "spawn", "--agent", "nobody"]).error_code(), "ACP_AGENT_NOT_ALLOWED");
    until(SOON, "session idle", || state(house, &key) == "idle");
    key
}

/// Runs turns with every outcome.
fn turns(house: &House, key: &str) {
    let once = ["prompt", key, "say a", "--idempotency-key", "a"];
    let first = house.cli(&once).ok();
    assert_eq!(house.cli(&once).ok().lines().last(), first.lines().last());
    let _ = house.prompt(key, "say b");
    assert_ne!(house.cli(&["prompt", key, "error -32603 no"]).code, Some(0));
    let waiting = house.follow(&["prompt", key, "wait_cancel"]);
    until(SOON, "turn running", || state(house, key) == "running");
    let queued = house.follow(&["prompt", key, "say c"]);
    let [running, idle] = ["running", "idle"].map(|state| format!(r#"acp_sessions{{state="{state}"}}"#));
    settled(house, &[("acp_runs_queued", 1.0), (running.as_str(), 1.0), (idle.as_str(), 0.0)]);
    let listed = house.verb(&["sessions", "list"]);
    assert!(listed[0]["active_run"].is_string(), "{listed}");
    assert_eq!(listed[0]["queued_runs"], 1, "{listed}");
    let shown = house.verb(&["sessions", "show", key]);
    let last = shown["runs"].as_array().and_then(|runs| runs.last());
    let place = last.map(|run| (&run["state"], &run["position"]));
    assert_eq!(place, Some((&"queued".into(), &1.into())), "{shown}");
    let _ = house.cli(&["sessions", "cancel", key]).ok();
    drop(waiting);
    until(LONG, "session idle", || state(house, key) == "idle");
    drop(queued);
}

/// Binds a conversation, runs a turn in it, and returns the number of parts sent.
fn conversation(house: &House) -> f64 {
    let spawned = house.say("room", "1", &format!("/acp spawn {AGENT} --cwd {}", house.cwd().display()));
    assert_eq!(spawned["outcome"], "command", "{spawned}");
    let said = house.say("room", "2", "say hello there");
    assert_eq!(said["outcome"], "prompted", "{said}");
    let journal = house.world.journal(GATEWAY);
    let count = |sql: &str| journal.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    until(SOON, "answer delivered", || {
        count("SELECT count(*) FROM acp_delivery_part WHERE kind = 'final' AND state = 'sent'") == 1
    });
    let bound = house.verb(&["sessions", "list"]);
    assert_eq!(bound[0]["bindings"][0]["conversation_id"], "room", "{bound}");
    f64::from(i32::try_from(count("SELECT count(*) FROM acp_delivery_part WHERE state = 'sent'")).unwrap())
}

#[test]
fn scrape_counts_match_scripted_actions() {
    let mut house = House::new(&[]);
    let names = |found: Scrape| found.series.into_keys().collect::<BTreeSet<String>>();
    let at_start = names(scrape(&house));
    let key = spawns(&house);
    turns(&house, &key);
    let parts = conversation(&house);
    assert!(parts >= 1.0);
    let found = settled(
        &house,
        &[
            (r#"acp_spawns_total{backend="direct",code="OK"}"#, 2.0),
            (r#"acp_spawns_total{backend="direct",code="ACP_IDEMPOTENCY_CONFLICT"}"#, 1.0),
            (r#"acp_spawns_total{backend="direct",code="ACP_AGENT_NOT_ALLOWED"}"#, 1.0),
            (r#"acp_idempotency_lookups_total{verb="spawn",result="fresh"}"#, 3.0),
            (r#"acp_idempotency_lookups_total{verb="spawn",result="replay"}"#, 1.0),
            (r#"acp_idempotency_lookups_total{verb="spawn",result="conflict"}"#, 1.0),
            (r#"acp_idempotency_lookups_total{verb="prompt",result="fresh"}"#, 6.0),
            (r#"acp_idempotency_lookups_total{verb="prompt",result="replay"}"#, 1.0),
            (r#"acp_idempotency_lookups_total{verb="cancel",result="fresh"}"#, 1.0),
            (r#"acp_runs_total{backend="direct",outcome="completed",code="OK"}"#, 4.0),
            (r#"acp_runs_total{backend="direct",outcome="cancelled",code="OK"}"#, 1.0),
            (r#"acp_runs_total{backend="direct",outcome="failed",code="ACP_TURN_FAILED"}"#, 1.0),
            (r#"acp_run_queue_wait_seconds_count{backend="direct"}"#, 6.0),
            (r#"acp_run_turn_seconds_count{backend="direct",outcome="completed"}"#, 4.0),
            (r#"acp_run_turn_seconds_count{backend="direct",outcome="cancelled"}"#, 1.0),
            (r#"acp_run_turn_seconds_count{backend="direct",outcome="failed"}"#, 1.0),
            (r#"acp_delivery_attempts_total{channel="console",outcome="sent"}"#, parts),
            (r#"acp_delivery_projection_seconds_count{channel="console"}"#, parts),
            (r#"acp_sessions{state="idle"}"#, 2.0),
            (r#"acp_sessions{state="running"}"#, 0.0),
            ("acp_runs_queued", 0.0),
            ("acp_inbox_waiting", 0.0),
            ("acp_delivery_parts_waiting", 0.0),
            ("acp_stale_bindings", 0.0),
            ("acp_actors", 2.0),
            ("acp_actors_stuck", 0.0),
            ("acp_supervisor_connected", 1.0),
            (r#"acp_host_connected{host="local"}"#, 1.0),
            ("acp_supervisor_connections_total", 1.0),
            (r#"acp_supervisor_leases{state="open"}"#, 2.0),
            ("acp_supervisor_gateways", 1.0),
            ("acp_supervisor_read_only", 0.0),
            // 900 s, twice the silence of 30 s, 5 s, and the graces of the scripted agent: 5.6 s.
            ("acp_supervisor_detached_grace_seconds", 971.0),
            ("acp_supervisor_living_leases", 2.0),
            ("acp_store_writable", 1.0),
            ("acp_store_sound", 1.0),
            ("acp_store_groups_lost_total", 0.0),
        ],
    );
    assert_eq!(names(found.clone()), at_start, "a series that did not exist from the start");
    check_store(&house, &found);
    house.kill_supervisor();
    settled(&house, &[("acp_supervisor_connected", 0.0), ("acp_supervisor_connections_total", 1.0)]);
    house.start_supervisor();
    settled(&house, &[("acp_supervisor_connected", 1.0), ("acp_supervisor_connections_total", 2.0)]);
}

#[test]
fn supervisor_refusals_and_crash_loops_are_counted() {
    let world = World::new();
    let mut broken = Agent::new(&[]);
    broken.command = vec!["/bin/false".to_owned()];
    let plan = Plan::default().supervisor("crashes_max = 2\ncrash_window_ms = 600000\n");
    let house = plan.build_in(world, &BTreeMap::from([("broken", broken)]));
    let usage = || house.cli(&["sessions", "spawn", "--agent", "nobody"]).error_code();
    assert_eq!(usage(), "ACP_AGENT_NOT_ALLOWED");
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    for failed in 1..=2 {
        let spawn = ["sessions", "spawn", "--agent", "broken", "--cwd", &cwd];
        assert_eq!(house.cli(&spawn).error_code(), "ACP_SESSION_INIT_FAILED");
        settled(
            &house,
            &[(r#"acp_spawns_total{backend="direct",code="ACP_SESSION_INIT_FAILED"}"#, f64::from(failed))],
        );
    }
    let waiting = house.follow(&["sessions", "spawn", "--agent", "broken", "--cwd", &cwd]);
    let found = settled(
        &house,
        &[
            (r#"acp_spawn_refusals_total{backend="direct",code="CRASH_LOOP"}"#, 1.0),
            (r#"acp_spawn_refusals_total{backend="direct",code="SPAWN_FAILED"}"#, 0.0),
            ("acp_supervisor_crash_loops", 1.0),
            ("acp_supervisor_delayed_agents", 1.0),
            ("acp_supervisor_buffered_bytes", 0.0),
        ],
    );
    assert!(found.value("acp_disk_free_bytes") <= found.value("acp_disk_size_bytes"));
    assert!(found.value("acp_disk_size_bytes") > 0.0);
    assert!(found.series.contains_key("acp_supervisor_uptime_seconds"));
    assert!(found.series["acp_supervisor_memory_bytes"] > 1e8);
    drop(waiting);
}

/// Checks that the store's counts agree with each other and with its files.
fn check_store(house: &House, found: &Scrape) {
    let commits = found.value("acp_store_commits_total");
    assert!(commits > 0.0);
    assert_eq!(found.value("acp_store_group_transactions_count"), commits);
    assert_eq!(found.value("acp_store_group_transactions_sum"), found.value("acp_store_transactions_total"));
    assert_eq!(found.value("acp_store_commit_seconds_count"), commits);
    until(SOON, "the log is copied into the database", || {
        scrape(house).value("acp_store_checkpoints_total") >= 1.0
    });
    let size = |name: &str| std::fs::metadata(house.world.path(GATEWAY).join(name)).unwrap().len() as f64;
    let now = scrape(house);
    assert_eq!(now.value("acp_store_database_bytes"), size("gateway.db"));
    assert_eq!(now.value("acp_store_log_bytes"), size("gateway.db-wal"));
}

#[test]
fn every_metric_is_documented_and_tested() {
    let document = std::fs::read_to_string(repository().join("docs/manual/metrics.md")).unwrap();
    let explained: BTreeSet<String> = document
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `acp_")?.split('`').next()?.to_owned()))
        .map(|name| format!("acp_{}", name.split('{').next().unwrap_or_default().trim_end_matches("_total")))
        .collect();
    let tested: BTreeMap<&str, &str> = METRICS.into_iter().chain([(COMMIT, HERE)]).collect();
    let named: BTreeSet<String> = tested.keys().map(|name| (*name).to_owned()).collect();
    assert_eq!(explained, named, "docs/manual/metrics.md and the table of this test name the same metrics");
    for (name, file) in &tested {
        let text = std::fs::read_to_string(repository().join(file)).unwrap();
        let prefix = if *file == CHANNELS { "acp_channel_" } else { "acp_" };
        let short = name.trim_start_matches(prefix);
        let uses = if *file == HERE { 2 } else { 1 };
        let beside = *file == WATCHDOG && text.contains("watch.stuck(");
        assert!(beside || text.matches(short).count() >= uses, "{file} does not look at {name}");
    }
    let (house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "say a");
    let unknown: Vec<String> =
        scrape(&house).names.into_iter().filter(|name| !named.contains(name)).collect();
    assert_eq!(unknown, [] as [String; 0], "a metric without a row in the table of this test");
    house.end();
}

/// Address of `metrics.listen`, from the log.
fn metrics_address(house: &House) -> String {
    let log = house.gateway().log();
    let line = log.lines().find(|line| line.contains("metrics listener started")).unwrap();
    line.split_once("at=").unwrap().1.trim().to_owned()
}

/// Response to a GET request.
fn get_at(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn metrics_address_serves_metrics_only() {
    let house = Plan::flags(&[]).gateway("[metrics]\nlisten = \"127.0.0.1:0\"\n").build();
    let address = metrics_address(&house);
    let answer = get_at(&address, "/metrics");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("acp_store_writable 1"), "{answer}");
    let answer = get_at(&address, "/v1/status");
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    house.end();
}

/// Secret that must not be in any log.
const TOKEN: &str = "tok-5ecret-0123456789-value";

#[test]
fn log_records_every_transition_and_no_secret() {
    let world = World::new();
    let mut agent = scripted(&world, &[], "ask").env("A_TOKEN", TOKEN);
    agent.command.splice(0..0, ["/usr/bin/env".to_owned(), format!("ANOTHER={TOKEN}")]);
    let config = "log.format = \"json\"\nlog.level = \"trace\"\n";
    let plan = Plan::default().gateway(config);
    let (house, key) = plan.build_in(world, &BTreeMap::from([(AGENT, agent)])).with_session();
    let _ = house.prompt(&key, "say my words");
    let _ = house.cli(&["sessions", "close", &key]).ok();
    let _ = house.say("room", "1", "hello");
    until(SOON, "process end logged", || house.gateway_log().contains("agent process ended"));
    let log = house.gateway_log();
    assert!(!log.contains(TOKEN), "{}", log.lines().find(|line| line.contains(TOKEN)).unwrap_or_default());
    let parsed = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let lines: Vec<Value> = log.lines().map(parsed).collect();
    let of = |message: &str| -> Vec<&Value> {
        let ours = |line: &&Value| line["message"] == message && line["session_key"] == key.as_str();
        lines.iter().filter(ours).collect()
    };
    let moved = |message: &str| -> Vec<String> {
        let word = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
        of(message)
            .iter()
            .map(|line| ["from", "event", "to"].map(|name| word(line, name)).join(">"))
            .collect()
    };
    assert_eq!(
        moved("session state changed"),
        [
            ">spawned>creating",
            "creating>opened>idle",
            "idle>turn_started>running",
            "running>turn_ended>idle",
            "idle>closed>closed"
        ]
    );
    assert_eq!(
        moved("run state changed"),
        [">accepted>queued", "queued>started>running", "running>completed>completed"]
    );
    for line in of("run state changed") {
        for field in ["session_key", "run_id", "backend", "idempotency_key"] {
            assert!(line[field].is_string(), "{field}: {line}");
        }
    }
    let routed = lines.iter().find(|line| line["message"] == "inbound message routed").unwrap();
    assert_eq!(routed["thread_id"], "room", "{routed}");
    let started = of("agent process starting");
    assert_eq!(started.len(), 1);
    assert!(started[0]["argv"].as_str().unwrap().contains("***"), "{}", started[0]);
    assert!(started[0]["env"].as_str().unwrap().contains("A_TOKEN"), "by name: {}", started[0]);
    let ended = of("agent process ended");
    assert!(ended[0]["status"].is_string() && ended[0]["lease_id"].is_string(), "{}", ended[0]);
}
