//! Reload on SIGHUP: an invalid configuration is refused as a whole, changes apply at once without touching running
//! agents, and keys that need a restart are named.

use acp_tests::house::{AGENT, GATEWAY, House, Plan};
use acp_tests::story::check_turn;
use acp_tests::wait::{SOON, until};
use rustix::process::Signal;
use serde_json::Value;

const START: &str = "[log]\nformat = \"json\"\nlevel = \"info\"\n[acp]\nmax_concurrent_sessions = 2\n";

/// Replaces the beginning of the configuration and reloads the gateway.
fn reload(house: &House, before: &str, now: &str) {
    let path = house.world.path(&format!("{GATEWAY}.toml"));
    let text = std::fs::read_to_string(&path).unwrap();
    let rest = text.strip_prefix(before).unwrap_or_else(|| panic!("{text} does not begin with {before}"));
    house.world.write(&format!("{GATEWAY}.toml"), &format!("{now}{rest}"));
    assert!(house.gateway().signal(Signal::HUP));
}

/// Number of log lines with this message, and `field` of the last one.
fn said(house: &House, message: &str, field: &str) -> (usize, String) {
    let log = house.gateway().log();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(lines.len(), log.lines().count(), "log.format is json: {log}");
    let found: Vec<&Value> =
        lines.iter().filter(|line| line["message"].as_str().is_some_and(|it| it.contains(message))).collect();
    let last = found.last().and_then(|line| line[field].as_str()).unwrap_or_default();
    (found.len(), last.to_owned())
}

fn turn(house: &House, key: &str) {
    check_turn(&house.world.prompt(GATEWAY, key, "say hello"), "end_turn");
}

#[test]
fn sighup_reloads_configuration() {
    const REFUSED: &str = "configuration reload failed; old configuration kept";
    const APPLIED: &str = "configuration reloaded; keys applied";
    const WAITS: &str = "changed keys need a gateway restart";
    let house = Plan::flags(&[]).gateway(START).build();
    let pid = house.gateway().pid();
    let key = house.spawn();
    turn(&house, &key);

    // An invalid key is reported with its position, and nothing changes.
    let wrong = START.replace("max_concurrent_sessions = 2", "max_concurrent_sesions = 1");
    reload(&house, START, &wrong);
    until(SOON, "reload failure logged", || said(&house, REFUSED, "failure").0 == 1);
    let why = said(&house, REFUSED, "failure").1;
    assert!(why.contains("gateway.toml:5: unknown key `acp.max_concurrent_sesions`"), "{why}");
    assert!(why.contains("did you mean `acp.max_concurrent_sessions`?"), "{why}");
    turn(&house, &key);
    let second = house.spawn();

    // A limit and a list apply at once; the log format needs a restart.
    let cap = house.cli(&["sessions", "spawn", "--agent", AGENT]);
    assert_eq!(cap.error_code(), "ACP_LIMIT_REACHED");
    assert!(cap.error()["message"].as_str().unwrap().contains("acp.max_concurrent_sessions = 2"), "{cap:?}");
    let next = START
        .replace("json", "text")
        .replace("max_concurrent_sessions = 2", "max_concurrent_sessions = 9\nallowed_agents = [\"demo\"]");
    reload(&house, &wrong, &next);
    until(SOON, "configuration applied", || said(&house, APPLIED, "keys").0 == 1);
    assert_eq!(said(&house, APPLIED, "keys").1, "acp.allowed_agents, acp.max_concurrent_sessions");
    until(SOON, "restart warning logged", || said(&house, WAITS, "keys").0 == 1);
    assert_eq!(said(&house, WAITS, "keys").1, "log.format");
    let not = house.cli(&["sessions", "spawn", "--agent", AGENT]);
    assert_eq!(not.error_code(), "ACP_AGENT_NOT_ALLOWED");
    let why = not.error()["message"].as_str().unwrap().to_owned();
    assert!(why.contains("acp.allowed_agents (demo; set by ") && why.contains("gateway.toml:6)"), "{why}");
    // Agents that run are not touched.
    turn(&house, &key);
    turn(&house, &second);

    // The log level applies at once; keys that need a restart are reported again.
    let quiet = next.replace("level = \"info\"", "level = \"warn\"");
    reload(&house, &next, &quiet);
    until(SOON, "restart warning logged again", || said(&house, WAITS, "keys").0 == 2);
    assert_eq!(said(&house, APPLIED, "keys").0, 1);

    let open = quiet.replace("allowed_agents = [\"demo\"]", "allowed_agents = []");
    reload(&house, &quiet, &open);
    until(SOON, "third restart warning logged", || said(&house, WAITS, "keys").0 == 3);
    let third = house.spawn();
    turn(&house, &third);

    // `doctor` names an edited file until it is loaded, and then no more.
    let edited = || house.cli(&["doctor"]).stdout.contains("was edited after the gateway had loaded");
    assert!(!edited(), "the file is loaded");
    let path = house.world.path(&format!("{GATEWAY}.toml"));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("# A comment.\n{text}")).unwrap();
    assert!(edited());
    assert!(house.gateway().signal(Signal::HUP));
    until(SOON, "configuration loaded", || !edited());
    assert_eq!(house.gateway().pid(), pid, "the same process all along");
    house.end();
}
