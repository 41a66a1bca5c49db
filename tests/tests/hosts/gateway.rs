//! Gateways with hosts: where sessions run, what a cut and a kill leave, and moves.

use crate::plane::{Plane, RemoteHost};
use acp_testkit::ability::Ability;
use acp_testkit::skip_unless;
use acp_tests::house::{AGENT, GATEWAY, House, Plan, scripted};
use acp_tests::story::{check_answer, check_history, check_turn};
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::World;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Starts a house with these hosts; each gets these settings.
fn house(world: World, plane: &Plane, hosts: &[(&RemoteHost, &str)], extra: &str, labels: &[&str]) -> House {
    let labels: Vec<toml::Value> = labels.iter().map(|&label| label.into()).collect();
    let mut agent = scripted(&world, &[], "approve-all");
    agent.settings.insert("host_labels".to_owned(), labels.into());
    let toml = format!("{extra}\n{}", plane.configuration(hosts));
    Plan::default().gateway(&toml).build_in(world, &BTreeMap::from([(AGENT, agent)]))
}

/// Starts a house with the host `big1`, and waits until it is connected.
fn house_with_host() -> (House, RemoteHost) {
    let world = World::new();
    let plane = Plane::new(&world);
    let host = plane.host(&world, "big1", "");
    let house = house(world, &plane, &[(&host, "")], "", &[]);
    wait_until_connected(&house, "big1");
    (house, host)
}

/// Starts a session with these further arguments, and returns its key.
pub(crate) fn spawn(house: &House, args: &[&str]) -> String {
    let all: Vec<&str> =
        ["sessions", "spawn", "--agent", AGENT, "--wait", "0"].iter().chain(args).copied().collect();
    house.verb(&all)["session_key"].as_str().unwrap().to_owned()
}

pub(crate) fn shown(house: &House, key: &str) -> Value {
    house.verb(&["sessions", "show", key])
}

/// Code and text of the failure of a verb.
fn refused(house: &House, args: &[&str]) -> (String, String) {
    let answer = house.cli(args).lines().pop().unwrap();
    let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    (text("code"), text("message"))
}

/// Hosts by name, and whether they are connected.
fn connected(house: &House) -> BTreeMap<String, bool> {
    let hosts = house.verb(&["hosts", "list"]);
    let name = |host: &Value| (host["name"].as_str().unwrap().to_owned(), host["connected"] == true);
    hosts.as_array().unwrap().iter().map(name).collect()
}

pub(crate) fn wait_until_connected(house: &House, host: &str) {
    until(SOON, "the host is connected", || connected(house).get(host) == Some(&true));
}

/// Process of a session's agent on a host.
pub(crate) fn adapter(house: &House, host: &RemoteHost, key: &str) -> i32 {
    eventually(SOON, "the agent runs on the host", || {
        house.world.living_lease(&host.socket(), key).filter(|lease| lease.state() == "open")
    })
    .adapter_pid()
}

fn environment(pid: i32) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let entries = text.split('\0').filter_map(|entry| entry.split_once('='));
    entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn session_runs_on_a_host_and_survives_the_gateway() {
    let world = World::new();
    let plane = Plane::new(&world);
    let host = plane.host(&world, "big1", "");
    let cwd = world.dir("work/there").display().to_string();
    let settings =
        format!("identity = \"acp://test/host/big1\"\npath = \"/usr/bin:/bin\"\ndefault_cwd = \"{cwd}\"");
    let mut house = house(world, &plane, &[(&host, &settings)], "", &[]);
    wait_until_connected(&house, "big1");

    let key = spawn(&house, &["--host", "big1"]);
    check_turn(&house.prompt(&key, "first"), "end_turn");
    let session = shown(&house, &key);
    assert_eq!((&session["host"], &session["cwd"]), (&"big1".into(), &cwd.into()), "{session}");
    let pid = adapter(&house, &host, &key);
    assert!(house.leases().is_empty(), "nothing runs on the gateway's machine");
    let env = environment(pid);
    assert_eq!(env.get("PATH").map(String::as_str), Some("/usr/bin:/bin"), "{env:?}");
    let home = env.get("HOME").unwrap();
    assert_ne!(home, &house.world.path("home").display().to_string(), "the gateway's HOME is not passed on");

    let turn = house.follow(&["prompt", &key, "chunks 40 pace_ms=50"]);
    until(SOON, "the turn runs", || house.prompts_received("chunks 40 pace_ms=50") == 1);
    house.restart_gateway();
    drop(turn);
    until(LONG, "the turn has ended", || shown(&house, &key)["state"] == "idle");
    assert_eq!(house.prompts_received("chunks 40 pace_ms=50"), 1);
    check_history(&house.history(&key));
    assert_eq!(adapter(&house, &host, &key), pid, "the same agent");
    check_turn(&house.prompt(&key, "last"), "end_turn");
    drop(house.verb(&["sessions", "close", &key]));
    until(LONG, "the agent has ended", || house.world.living_lease(&host.socket(), &key).is_none());
    host.end();
    house.end();
}

#[test]
fn prompts_wait_while_a_host_is_cut_off() {
    let (house, host) = house_with_host();
    let cwd = house.world.dir("work/project").display().to_string();
    let key = spawn(&house, &["--host", "big1", "--cwd", &cwd]);
    check_turn(&house.prompt(&key, "first"), "end_turn");
    let pid = adapter(&house, &host, &key);

    let running = house.follow(&["prompt", &key, "chunks 20 pace_ms=50"]);
    until(SOON, "the turn runs", || house.prompts_received("chunks 20 pace_ms=50") == 1);
    host.cable.cut();
    until(SOON, "the host is away", || connected(&house).get("big1") == Some(&false));
    let waiting = house.follow(&["prompt", &key, "while away"]);
    until(SOON, "the prompt is queued", || shown(&house, &key)["queued_runs"] == 1);
    assert_eq!(house.prompts_received("while away"), 0);
    let (code, text) = refused(&house, &["sessions", "set", &key, "--host", "local"]);
    assert!(code == "ACP_BACKEND_UNAVAILABLE" && text.contains("on big1 cannot be ended"), "{code}: {text}");

    host.cable.mend();
    until(LONG, "both turns have ended", || {
        let now = shown(&house, &key);
        now["state"] == "idle" && house.prompts_received("while away") == 1
    });
    for text in ["chunks 20 pace_ms=50", "while away"] {
        assert_eq!(house.prompts_received(text), 1, "{text}");
    }
    check_history(&house.history(&key));
    assert_eq!(adapter(&house, &host, &key), pid, "the agent ran on");
    drop((running, waiting));
    drop(house.verb(&["sessions", "close", &key]));
    until(LONG, "the agent has ended", || house.world.living_lease(&host.socket(), &key).is_none());
    host.end();
    house.end();
}

/// Unlike the cut of a relay, which ends connections, a pulled cable loses packets without an error.
#[test]
fn heavy_pulled_cable_is_noticed_and_nothing_is_lost() {
    skip_unless!(Ability::NetworkNamespaces);
    let world = World::new();
    let plane = Plane::new(&world);
    let host = plane.machine(&world, "big1", "");
    let house = house(world, &plane, &[(&host, "")], "", &[]);
    wait_until_connected(&house, "big1");
    let cwd = house.world.dir("work/project").display().to_string();
    let key = spawn(&house, &["--host", "big1", "--cwd", &cwd]);
    check_turn(&house.prompt(&key, "first"), "end_turn");
    let pid = adapter(&house, &host, &key);

    let short = house.follow(&["prompt", &key, "chunks 60 pace_ms=50"]);
    until(SOON, "the turn runs", || house.prompts_received("chunks 60 pace_ms=50") == 1);
    host.cable.cut();
    std::thread::sleep(Duration::from_secs(1));
    host.cable.mend();
    until(SOON, "the turn has ended", || shown(&house, &key)["state"] == "idle");
    assert_eq!(connected(&house).get("big1"), Some(&true), "a short cut is not noticed");
    let connections = || house.gateway_log().matches("connected to the supervisor").count();
    let before = connections();

    let long = house.follow(&["prompt", &key, "chunks 100 pace_ms=50"]);
    until(SOON, "the turn runs", || house.prompts_received("chunks 100 pace_ms=50") == 1);
    host.cable.cut();
    let waiting = house.follow(&["prompt", &key, "while away"]);
    until(LONG, "the host is away", || connected(&house).get("big1") == Some(&false));
    host.cable.mend();
    until(LONG, "both turns have ended", || {
        let now = shown(&house, &key);
        now["state"] == "idle" && house.prompts_received("while away") == 1
    });
    assert!(connections() > before, "the gateway has connected again");
    for text in ["chunks 60 pace_ms=50", "chunks 100 pace_ms=50", "while away"] {
        assert_eq!(house.prompts_received(text), 1, "{text}");
    }
    check_history(&house.history(&key));
    let chunks = house.history(&key).iter().filter(|event| event["type"] == "text_delta").count();
    assert!(chunks >= 160, "{chunks} chunks: none is lost");
    assert_eq!(adapter(&house, &host, &key), pid, "the agent ran on");
    drop((short, long, waiting));
    drop(house.verb(&["sessions", "close", &key]));
    until(LONG, "the agent has ended", || house.world.living_lease(&host.socket(), &key).is_none());
    host.end();
    house.end();
}

#[test]
fn labels_choose_the_host() {
    let world = World::new();
    let plane = Plane::new(&world);
    let (mut fast, plain) = (plane.host(&world, "fast", ""), plane.host(&world, "plain", ""));
    let cwd = world.dir("work/project").display().to_string();
    let hosts = [(&fast, "labels = [\"gpu\", \"ssd\"]"), (&plain, "labels = [\"ssd\"]")];
    let house = house(world, &plane, &hosts, "", &["gpu"]);
    for name in ["fast", "plain"] {
        wait_until_connected(&house, name);
    }
    let key = spawn(&house, &["--cwd", &cwd]);
    assert_eq!(shown(&house, &key)["host"], "fast");
    let _ = adapter(&house, &fast, &key);
    let spawn_on =
        |host: &'static str| ["sessions", "spawn", "--agent", AGENT, "--host", host, "--cwd", "/tmp"];
    for (host, want) in [
        ("plain", "does not have all labels of the agent"),
        ("local", "does not have all labels of the agent"),
        ("other", "There is no host \"other\". Hosts: local, fast, plain."),
    ] {
        let (code, text) = refused(&house, &spawn_on(host));
        assert!(code == "USAGE" && text.contains(want), "{host}: {code} {text}");
    }
    fast.kill();
    until(SOON, "the host is away", || connected(&house).get("fast") == Some(&false));
    let (code, text) = refused(&house, &["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd]);
    assert!(
        code == "ACP_BACKEND_UNAVAILABLE" && text.contains("fast (the supervisor does not answer"),
        "{code} {text}"
    );

    // The killed supervisor's wrappers have ended the agent; its next one proves it, and the session goes on.
    fast.start(&house.world);
    wait_until_connected(&house, "fast");
    check_turn(&house.prompt(&key, "after"), "end_turn");
    drop(house.verb(&["sessions", "close", &key]));
    until(LONG, "the agent has ended", || house.world.living_lease(&fast.socket(), &key).is_none());
    fast.end();
    plain.end();
    house.end();
}

#[test]
fn session_moves_to_another_host_and_back() {
    let (house, host) = house_with_host();
    let key = house.spawn();
    check_turn(&house.prompt(&key, "here"), "end_turn");
    let lease = house.lease(&key);

    // A process that outlives its agent and ignores SIGTERM.
    check_turn(&house.prompt(&key, "spawn_setsid"), "end_turn");
    let moved = house.verb(&["sessions", "set", &key, "--host", "big1"]);
    assert_eq!(moved["state"], "idle", "{moved}");
    assert_eq!(lease.processes(), [], "everything has ended before the session is elsewhere");
    assert_eq!(house.lease_by_id(lease.id()).state(), "closed");
    assert_eq!(shown(&house, &key)["host"], "big1");
    check_answer(&house.prompt(&key, "say there"), ["there"]);
    let _ = adapter(&house, &host, &key);
    assert!(house.leases().iter().all(|lease| lease.state() == "closed"), "one agent for one session");

    drop(house.verb(&["sessions", "set", &key, "--host", "local"]));
    until(SOON, "the agent there has ended", || house.world.living_lease(&host.socket(), &key).is_none());
    check_answer(&house.prompt(&key, "say back"), ["back"]);
    assert_eq!(shown(&house, &key)["host"], Value::Null);
    let (code, text) = refused(&house, &["sessions", "set", &key, "--host", "nowhere"]);
    assert!(code == "USAGE" && text.contains("There is no host \"nowhere\""), "{code} {text}");
    assert_eq!(house.received("session/resume").len(), 2, "the conversation went along");
    host.end();
    house.end();
}

#[test]
fn gateway_without_own_supervisor_uses_hosts() {
    let world = World::new();
    let plane = Plane::new(&world);
    let host = plane.host(&world, "big1", "");
    let cwd = world.dir("work/project").display().to_string();
    let toml = format!("[supervisor]\nenabled = false\n{}", plane.configuration(&[(&host, "")]));
    let agent = scripted(&world, &[], "approve-all");
    world.configure(GATEWAY, &toml, &BTreeMap::from([(AGENT, agent)]));
    let gateway = world.gateway(GATEWAY, &world.path("no-supervisor.sock"));
    let verb = |args: &[&str]| world.cli(GATEWAY, args).ok().json();
    let spawned = verb(&["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd, "--wait", "0"]);
    let key = spawned["session_key"].as_str().unwrap();
    check_turn(&world.prompt(GATEWAY, key, "hello"), "end_turn");
    assert_eq!(verb(&["sessions", "show", key])["host"], "big1");
    assert_eq!(verb(&["hosts", "list"]).as_array().map(Vec::len), Some(1));
    drop(verb(&["sessions", "close", key]));
    until(LONG, "the agent has ended", || world.living_lease(&host.socket(), key).is_none());
    assert_eq!(gateway.terminate(LONG), Some(0));
    host.end();
    assert_eq!(world.processes(), [], "no process is left");
}
