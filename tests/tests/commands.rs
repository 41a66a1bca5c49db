//! Conversation commands against real processes, over the console channel that `chat` and other clients use. Each runs
//! once, also if it is repeated or the gateway is killed in between.

use acp_tests::house::{AGENT, House, Plan};
use acp_tests::scrape::get;
use acp_tests::wait::{SOON, eventually, until};
use serde_json::{Value, json};

/// One conversation of the console; messages are numbered.
struct Room<'a> {
    name: &'a str,
    said: u32,
}

impl<'a> Room<'a> {
    const fn new(name: &'a str) -> Self {
        Self { name, said: 0 }
    }

    /// Sends a message twice, as a channel may: both responses are equal.
    fn say(&mut self, house: &House, text: &str) -> Value {
        self.said += 1;
        let id = format!("{}-{}", self.name, self.said);
        let first = house.say(self.name, &id, text);
        assert_eq!(house.say(self.name, &id, text), first, "{text}");
        first
    }

    /// Sends a message twice with a gateway kill in between.
    fn say_and_kill(&mut self, house: &mut House, text: &str) -> Value {
        self.said += 1;
        let id = format!("{}-{}", self.name, self.said);
        let first = house.say(self.name, &id, text);
        house.restart_gateway();
        assert_eq!(house.say(self.name, &id, text), first, "{text}");
        first
    }
}

fn text(said: &Value) -> &str {
    said["text"].as_str().unwrap_or_default()
}

/// Reply text of a command.
fn answered(said: &Value) -> &str {
    assert_eq!(said["outcome"], "command", "{said}");
    text(said)
}

fn spawn(house: &House, room: &mut Room<'_>, flags: &str) -> String {
    let cwd = house.world.dir("work/project");
    let said = room.say(house, &format!("/acp spawn {AGENT} --cwd '{}' {flags}", cwd.display()));
    // The reply names the session if the conversation is not bound to it.
    let named = text(&said).split_once("session ").and_then(|(_, rest)| rest.split_once(','));
    let key = said["session_key"].as_str().or(named.map(|(key, _)| key));
    key.unwrap_or_else(|| panic!("{said}")).to_owned()
}

fn show(house: &House, key: &str) -> Value {
    house.verb(&["sessions", "show", key])
}

fn is_idle(house: &House, key: &str) -> bool {
    show(house, key)["state"] == "idle"
}

/// A conversation learns what to do, an operator also where.
#[test]
fn refused_spawn_shows_paths_to_the_command_line_only() {
    let house = Plan::flags(&[]).gateway("[acp]\nworkspace_roots = [\"/srv\", \"/opt/my work\"]\n").build();
    let cwd = house.world.dir("work/my project");
    Room::new("room").say(&house, &format!("/acp spawn {AGENT} --cwd '{}'", cwd.display()));
    let socket = house.gateway().socket();
    let said = eventually(SOON, "refusal shown in the conversation", || {
        let page = get(&socket, "/v1/console/conversations/room/messages");
        let texts = page["messages"].as_array()?.iter().filter_map(|message| message["text"].as_str());
        texts.map(str::to_owned).find(|text| text.contains("ACP_CWD_NOT_ALLOWED"))
    });
    assert!(said.contains("lies outside of acp.workspace_roots"), "{said}");
    let shown = house.cli(&["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd.to_string_lossy()]);
    assert_eq!(shown.error_code(), "ACP_CWD_NOT_ALLOWED");
    let message = shown.error()["message"].as_str().unwrap_or_default().to_owned();
    let root = house.world.path("").to_string_lossy().into_owned();
    for path in [root.trim_end_matches('/'), "my project", "/srv", "/opt", "my work"] {
        assert!(!said.contains(path), "{path:?} is in {said}");
        assert!(message.contains(path), "{path:?} is not in {message}");
    }
    house.end();
}

/// The main verbs from the session's conversation and from another one.
#[test]
fn session_commands_work_from_any_conversation() {
    let house = House::new(&[]);
    let (mut room, mut other) = (Room::new("room"), Room::new("other"));
    let key = spawn(&house, &mut room, "--label 'my own'");
    assert_eq!(room.say(&house, "say hello")["outcome"], "prompted");
    until(SOON, "turn finished", || is_idle(&house, &key));
    let listed = room.say(&house, "/acp sessions");
    let want = format!("* my own (persistent, idle, direct, bound to console/room) {key}");
    assert!(answered(&listed).contains(&want), "{listed}");
    assert!(answered(&other.say(&house, "/acp status my own")).starts_with(&format!("{key} ({AGENT}) in ")));
    // A turn that does not end by itself is cancelled, by its label, from elsewhere.
    room.say(&house, "no_reply");
    until(SOON, "turn running", || house.prompts_received("no_reply") == 1);
    let run = show(&house, &key)["runs"].as_array().and_then(|runs| runs.last().cloned()).unwrap();
    let want = format!("; turn {} is running", run["run_id"].as_str().unwrap());
    let listed = room.say(&house, "/acp sessions");
    assert!(answered(&listed).contains(&want), "{want:?} is not in {listed}");
    assert!(answered(&room.say(&house, "/agents")).starts_with("Busy:\n- my own "));
    let cancelled = other.say(&house, "/acp cancel my own");
    assert_eq!(answered(&cancelled), format!("The turn of {key} was asked to stop."));
    until(SOON, "agent asked to stop", || !house.received("session/cancel").is_empty());
    assert_eq!(house.received("session/cancel").len(), 1, "repeated, and done once");
    let want = format!("{key} is being closed and is no longer bound to a conversation.");
    assert_eq!(answered(&other.say(&house, "/acp close my own")), want);
    assert_eq!(show(&house, &key)["state"], "closed");
    let unbound = room.say(&house, "say more");
    assert_eq!(unbound["outcome"], "refused", "{unbound}");
    assert_eq!(unbound["reason"], "no-binding", "{unbound}");
    house.end();
}

/// Turns and tokens by day, session and person, as the agent reports them.
#[test]
fn usage_is_summed_by_day_session_and_person() {
    let house = House::new(&["--usage", "1193"]);
    let mut room = Room::new("room");
    let key = spawn(&house, &mut room, "--label 'my own'");
    let none = room.say(&house, "/acp usage");
    assert!(answered(&none).contains("No turn of your sessions ended"), "{none}");
    for text in ["say one", "say two"] {
        room.say(&house, text);
        until(SOON, "turn ended", || house.prompts_received(text) == 1 && is_idle(&house, &key));
    }
    let said = room.say(&house, "/acp usage 30");
    let sum = "2 turns, 2.4k tokens (2.3k in, 14 out)";
    let lines: Vec<&str> = answered(&said).lines().collect();
    assert_eq!(
        lines.first().copied(),
        Some(format!("Usage in the last 30 days: {sum}.").as_str()),
        "{lines:#?}"
    );
    assert!(lines.contains(&format!("- my own: {sum}").as_str()), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.ends_with(sum)).count(), 3, "{lines:#?}");
    let wrong = room.say(&house, "/acp usage 0");
    assert!(text(&wrong).contains("is not a number of days from 1 to 366"), "{wrong}");
    house.end();
}

#[test]
fn permission_request_is_answered_from_another_conversation() {
    let house = House::new(&[]);
    let (mut room, mut other) = (Room::new("room"), Room::new("other"));
    let key = spawn(&house, &mut room, "--label asks");
    room.say(&house, "permission Write it");
    until(SOON, "permission requested", || {
        answered(&other.say(&house, "/acp permissions --session asks")).contains("- Write it (id ")
    });
    let said = other.say(&house, "/acp deny --session asks");
    assert!(answered(&said).starts_with("Answered: "), "{said}");
    until(SOON, "turn ended", || is_idle(&house, &key));
    assert!(house.history(&key).iter().any(|event| {
        event["text"].as_str().is_some_and(|text| text.contains("permission: selected reject"))
    }));
    // From now on no permission request is shown.
    let said = room.say(&house, "/acp permissions approve-all");
    assert!(answered(&said).starts_with("From now on: the agent may do everything (approve-all)."), "{said}");
    room.say(&house, "permission Write more");
    until(SOON, "turn ended", || {
        house.prompts_received("permission Write more") == 1 && is_idle(&house, &key)
    });
    assert_eq!(show(&house, &key)["permission"], "approve-all");
    house.end();
}

/// Unknown or misused `/acp` commands never reach the agent; text that only resembles a command does.
#[test]
fn unknown_or_misused_commands_never_reach_the_agent() {
    let house = House::new(&[]);
    let mut room = Room::new("room");
    let key = spawn(&house, &mut room, "");
    for typed in [
        "/acp list",
        "/ACP cancle",
        "/acp",
        "/acp timeout soon",
        "/session",
        "/focus",
        "/acp \u{2014}x",
        "/unfocus now",
        "/agents all",
    ] {
        let said = room.say(&house, typed);
        assert!(answered(&said).contains("/acp"), "{typed}: {said}");
    }
    assert_eq!(room.say(&house, "/acpfoo")["outcome"], "prompted");
    until(SOON, "turn finished", || house.received("session/prompt").len() == 1 && is_idle(&house, &key));
    let prompt = house.received("session/prompt").remove(0).to_string();
    assert!(prompt.contains("/acpfoo"), "{prompt}");
    house.end();
}

/// Timeouts and the effects of commands are durable: the gateway is killed after each.
#[test]
fn commands_survive_gateway_kills_and_run_once() {
    let mut house = House::new(&["--modes"]);
    let mut room = Room::new("room");
    let cwd = house.world.dir("work/project");
    let spawned =
        room.say_and_kill(&mut house, &format!("/acp spawn {AGENT} --cwd {} --label one", cwd.display()));
    let key = spawned["session_key"].as_str().unwrap_or_else(|| panic!("{spawned}")).to_owned();
    let second = spawn(&house, &mut Room::new("other"), "--thread off --label two");
    for typed in [
        "/session idle 2h",
        "/session max-age 1d",
        "/acp timeout 600",
        "/acp set-mode ask",
        "/acp reset-options",
        "/acp new",
        "/unfocus",
        "/focus one",
        "/focus two",
        "/acp cancel one",
        "/acp archive one --discard",
    ] {
        let said = room.say_and_kill(&mut house, typed);
        assert!(!answered(&said).is_empty(), "{typed}: {said}");
        if typed == "/session max-age 1d" {
            let shown = room.say(&house, "/session idle");
            assert!(answered(&shown).starts_with("/session idle is 2h: "), "{shown}");
        }
    }
    let shown = show(&house, &key);
    assert_eq!((&shown["state"], &shown["ending"]), (&json!("closed"), &json!("archived")));
    let bound = show(&house, &second)["bindings"].clone();
    assert_eq!(bound.as_array().map(Vec::len), Some(1), "{bound}");
    let all = house.verb(&["sessions", "list", "--all"]);
    assert_eq!(all.as_array().map(Vec::len), Some(2), "{all}");
    assert_eq!(room.say_and_kill(&mut house, "say once")["outcome"], "prompted");
    until(SOON, "answer shown", || house.prompts_received("say once") == 1 && is_idle(&house, &second));
    house.end();
}

/// `/acp doctor`, `/acp install` and `/agents` report the state of gateway and supervisor.
#[test]
fn diagnostics_report_health() {
    let mut house = House::new(&[]);
    let mut room = Room::new("room");
    let said = room.say(&house, "/acp doctor");
    let healthy = " is healthy.\n- ok: policy: prompts are permitted\n- ok: backend direct works\n\
                   - ok: supervisor answers\n";
    assert!(answered(&said).contains(healthy), "{said}");
    let install = room.say(&house, "/acp install");
    assert!(answered(&install).starts_with("1. The backend direct is part of this gateway"), "{install}");
    assert!(answered(&room.say(&house, "/agents")).contains("demo"));
    house.kill_supervisor();
    until(SOON, "doctor reports missing supervisor", || {
        let said = room.say(&house, "/acp doctor");
        answered(&said).contains("is not healthy.")
            && answered(&said).contains("\nNext: ask the operator to start the supervisor.")
    });
    let said = room.say(&house, &format!("/acp spawn {AGENT} --cwd '{}'", house.world.dir("work").display()));
    assert_eq!(said["outcome"], "refused", "{said}");
    assert_eq!(said["failure"]["code"], "ACP_BACKEND_UNAVAILABLE");
    let why = said["failure"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("The supervisor, which starts agents, does not answer"), "{said}");
    house.start_supervisor();
    house.end();
}

/// The agent accepts or refuses its own settings, and they are shown as it reports them.
#[test]
fn settings_are_answered_by_the_agent() {
    let house = House::new(&["--modes", "--options"]);
    let mut room = Room::new("room");
    let key = spawn(&house, &mut room, "");
    until(SOON, "session idle", || is_idle(&house, &key));
    let said = room.say(&house, "/acp model big");
    assert!(answered(&said).starts_with("The agent accepted the option \"model\" = \"big\"."), "{said}");
    let said = room.say(&house, "/acp set web off");
    assert!(answered(&said).starts_with("The agent accepted the option \"web\" = \"off\"."), "{said}");
    let said = room.say(&house, "/acp model huge");
    assert_eq!(said["outcome"], "refused", "{said}");
    assert_eq!(said["failure"]["detail_code"], "OPTION_REFUSED");
    let why = said["failure"]["message"].as_str().unwrap_or_default();
    assert!(why.starts_with("The agent refused the option \"model\" = \"huge\""), "{said}");
    let status = room.say(&house, "/acp status");
    for line in [
        "\nagent's mode: auto (of ask, auto)\n",
        "\nagent's model: big (of small, big)\n",
        "\nagent's web: false (of true, false)\n",
    ] {
        assert!(answered(&status).contains(line), "{line}: {status}");
    }
    house.end();
}
