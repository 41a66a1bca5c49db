//! MCP servers and additional directories: passed whenever a conversation opens; their secrets are masked.

use crate::files::said;
use acp_tests::cli::RunningCommand;
use acp_tests::house::{AGENT, GATEWAY, House, Plan};
use acp_tests::story::check_turn;
use acp_tests::wait::{LONG, SOON, until};
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;

const SECRETS: [&str; 4] = ["hidden-global", "hidden-agent", "hidden-session", "hidden-argument"];

const CONFIG: &str = r#"
[[mcp_servers]]
name = "everywhere"
command = "/bin/true"
env = { TOKEN = "hidden-global" }
[[mcp_servers]]
name = "web"
type = "http"
url = "http://127.0.0.1:9/mcp"
[[mcp_servers]]
name = "events"
type = "sse"
url = "http://127.0.0.1:9/hidden-global"
[[agents.scripted.mcp_servers]]
name = "web"
type = "http"
url = "http://127.0.0.1:9/other"
headers = { Authorization = "hidden-agent" }
"#;

fn spawn(house: &House) -> String {
    let servers = json!({ "mcpServers": { "own": {
        "command": "/bin/true", "args": ["hidden-argument"], "env": { "TOKEN": "hidden-session" } } } });
    let file = house.world.write("mcp.json", &servers.to_string());
    let (cwd, more) = (house.world.dir("work/project"), house.world.dir("work/more"));
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let args = ["sessions", "spawn", "--agent", AGENT, "--cwd", &text(&cwd), "--mcp-config", &text(&file)];
    let spawned = house.verb(&[&args[..], &["--add-dir", &text(&more)]].concat());
    spawned["session_key"].as_str().unwrap().to_owned()
}

/// Names of the servers in the last request of a method.
fn last(house: &House, method: &str) -> Value {
    house.received(method).pop().unwrap_or_else(|| panic!("no {method}"))["params"].clone()
}

#[test]
fn mcp_servers_are_passed_again_after_restart_and_secrets_are_masked() {
    let mut house = Plan::flags(&[]).gateway(CONFIG).build();
    let key = spawn(&house);
    check_turn(&house.prompt(&key, "before"), "end_turn");
    let new = last(&house, "session/new");
    let servers = new["mcpServers"].as_array().unwrap();
    let names: Vec<&Value> = servers.iter().map(|server| &server["name"]).collect();
    assert_eq!(names, ["everywhere", "web", "own"], "servers with unsupported transports are left out");
    assert_eq!(servers[0]["env"], json!([{ "name": "TOKEN", "value": "hidden-global" }]));
    assert_eq!(servers[1]["headers"], json!([{ "name": "Authorization", "value": "hidden-agent" }]));
    assert_eq!(servers[2]["args"], json!(["hidden-argument"]));
    let left_out = house.history(&key).into_iter().filter(|event| event["status"] == "mcp_server_left_out");
    assert_eq!(left_out.count(), 1, "the omission is reported");

    let lease = house.lease(&key);
    house.kill_gateway();
    let agent = house.world.agents().remove(0);
    assert!(house.world.open_process(&agent).unwrap().kill());
    house.start_gateway();
    house.wait_for_lease_end(&lease);
    check_turn(&house.prompt(&key, "after"), "end_turn");
    assert_eq!(last(&house, "session/resume")["mcpServers"], new["mcpServers"]);

    // An agent that prints its configuration. The prompt contains it in an escaped spelling.
    let repeats = r#"error_data -32603 {"details": "no \u0068idden-session at \u0068idden-agent"}"#;
    let failed = house.cli(&["prompt", &key, repeats]);
    assert_eq!(failed.code, Some(1), "{failed:#?}");
    assert!(failed.stdout.contains("no *** at ***"), "{failed:#?}");

    let show = house.verb(&["sessions", "show", &key]);
    assert_eq!(show["mcp_servers"][0]["name"], "own", "{show}");
    assert_eq!(show["additional_directories"][0], house.world.path("work/more").to_str().unwrap());
    let journal = serde_json::to_string(&house.history(&key)).unwrap();
    let config = house.cli(&["config", "show"]).ok().stdout;
    let plain = house.plain(&["sessions", "show", &key]).output().unwrap().stdout;
    let plain = String::from_utf8(plain).unwrap();
    assert!(plain.contains("own (stdio /bin/true)"), "{plain}");
    for text in [show.to_string(), journal, config, plain, house.gateway_log()] {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} is in {text}");
        }
    }
    house.end();
}

#[test]
fn logs_mask_secrets_of_mcp_servers() {
    let house = Plan::flags(&[]).gateway(CONFIG).build();
    let key = spawn(&house);
    let said = SECRETS.map(|secret| format!("stderr leaks {secret}.")).join("\n");
    check_turn(&house.prompt(&key, &said), "end_turn");
    until(LONG, "the log is written", || {
        house.cli(&["logs", &key]).ok().stdout.matches("leaks ***.").count() == SECRETS.len()
    });
    house.end();
}

#[test]
fn additional_directories_are_roots_of_the_session() {
    let house = House::with_approve_all(&["--directories"]);
    let key = spawn(&house);
    let (more, outside) = (house.world.path("work/more"), house.world.path("work/outside"));
    fs::write(more.join("in.txt"), "inside").unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("in.txt"), "outside").unwrap();
    let (more, outside) = (more.display(), outside.display());
    let script = format!("fs_read {more}/in.txt\nfs_write {more}/out.txt written\nfs_read {outside}/in.txt");
    let said = said(&house, &key, &script);
    assert_eq!(said[..2], ["fs_read: inside", "fs_write: ok"], "{said:?}");
    assert!(said[2].starts_with("fs_read: error -"), "{said:?}");
    assert_eq!(fs::read_to_string(format!("{more}/out.txt")).unwrap(), "written");
    assert_eq!(last(&house, "session/new")["additionalDirectories"], json!([more.to_string()]));

    let cwd = house.cwd();
    let cwd = cwd.to_str().unwrap();
    for (dir, want) in [("/none", "cannot be used"), ("/", "lies outside of agents.scripted.cwd_roots")] {
        let refused = house.cli(&["sessions", "spawn", "--agent", AGENT, "--cwd", cwd, "--add-dir", dir]);
        let text = refused.stdout + &refused.stderr;
        let want = format!("The additional directory {dir} {want}");
        assert!(refused.code != Some(0) && text.contains(&want), "{text}");
    }
    until(SOON, "one session listed", || house.verb(&["sessions", "list"]).as_array().unwrap().len() == 1);
    house.end();
}

#[test]
fn chat_starts_session_with_mcp_servers_from_file() {
    let house = House::new(&[]);
    let file = house.world.write("mcp.json", r#"{"mcpServers": {"own": {"command": "/bin/true"}}}"#);
    let (cwd, file) = (house.world.dir("work/project"), file.to_str().unwrap().to_owned());
    let cwd = cwd.to_str().unwrap();
    let args = ["chat", "--agent", AGENT, "--cwd", cwd, "--mcp-config", &file];
    let (chat, mut typing) = RunningCommand::start_piped(&mut house.world.gateway_verb(GATEWAY, &args));
    typing.write_all(b"say heard\n").unwrap();
    drop(typing);
    let out = chat.finish(LONG).ok();
    assert!(out.stdout.contains("heard"), "{out:?}");
    assert_eq!(last(&house, "session/new")["mcpServers"][0]["name"], "own");
    let wrong = house.cli(&["chat", "KEY", "--mcp-config", &file]);
    assert_eq!(wrong.error()["code"], "USAGE");
    house.end();
}
