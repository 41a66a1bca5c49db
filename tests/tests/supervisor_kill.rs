//! Kills of supervisor, wrapper or agent: every process tree ends, the failure is reported, and sessions resume.

use acp_tests::cli::RunningCommand;
use acp_tests::house::{AGENT, GRACE_MS, House};
use acp_tests::lease::Lease;
use acp_tests::processes::{self, Process, ProcessHandle};
use acp_tests::story::{check_answer, check_failed, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually, until};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Script of an agent that ignores SIGTERM, with a child in its group and a detached grandchild that ignores SIGTERM.
const STUBBORN: &str = "ignore_term\nignore_eof\nfork_child\nspawn_setsid\nchunks 100000 pace_ms=10";
/// Margin after the grace in which a tree must be gone.
const MARGIN: Duration = Duration::from_secs(1);

/// A turn with a stubborn tree under it.
struct Busy {
    key: String,
    lease: Lease,
    turn: RunningCommand,
    events: Vec<Value>,
    /// Wrapper, agent, child, grandchild.
    tree: Vec<Process>,
    agent_session: String,
}

impl Busy {
    fn start(house: &House, cwd: &str) -> Self {
        let key = house.world.spawn("gateway", AGENT, cwd);
        let lease = house.lease(&key);
        let mut turn = house.follow(&["prompt", &key, STUBBORN]);
        let events =
            turn.events_until(LONG, |event| event["text"].as_str().is_some_and(|t| t.starts_with("000003")));
        let pids: Vec<i32> = chunks(&events)
            .into_iter()
            .filter_map(|text| text.strip_prefix("child ").or_else(|| text.strip_prefix("escaped ")))
            .map(|pid| pid.parse().unwrap_or_else(|e| panic!("{e}: {pid}")))
            .collect();
        assert_eq!(pids.len(), 2, "child and grandchild: {events:?}");
        // During `execve` a process has no environment for a moment, by which its lease is recognised.
        let wanted = [pids[0], pids[1], lease.wrapper_pid(), lease.adapter_pid()];
        let tree = eventually(SOON, "whole process tree listed", || {
            let tree = lease.processes();
            wanted.iter().all(|pid| tree.iter().any(|process| process.pid == *pid)).then_some(tree)
        });
        let escaped = tree.iter().find(|process| process.pid == pids[1]);
        assert_eq!(escaped.map(|process| process.sid), Some(pids[1]), "it left the session: {escaped:?}");
        let shown = house.verb(&["sessions", "show", &key]);
        let agent_session =
            shown["agent_session_id"].as_str().unwrap_or_else(|| panic!("{shown}")).to_owned();
        Self { key, lease, turn, events, tree, agent_session }
    }

    fn living(&self) -> Vec<Process> {
        let same = |process: &&Process| {
            processes::read(process.pid).is_some_and(|now| now.start_ticks == process.start_ticks)
        };
        self.tree.iter().filter(same).cloned().collect()
    }

    /// Waits until the whole tree is gone.
    fn await_end(&self, since: Instant, allowed: Duration) {
        let left = allowed.saturating_sub(since.elapsed());
        until(left, &format!("the tree of {} is gone", self.key), || {
            self.living().is_empty() && self.lease.processes().is_empty()
        });
    }

    /// Checks that the turn failed with a reason and the session continues in another process of the same conversation.
    fn goes_on(mut self, house: &House) {
        let ended = self.turn.finish(LONG);
        assert_eq!(ended.code, Some(1), "a failed turn is exit code 1: {ended:?}");
        self.events.extend(ended.lines());
        let last = self.events.last().cloned().unwrap_or_default();
        let code = last["code"].as_str().unwrap_or_default();
        assert!(matches!(code, "ACP_TURN_FAILED" | "ACP_UNCERTAIN"), "{last}");
        let error = check_failed(&self.events, code);
        assert!(error["message"].as_str().is_some_and(|text| text.len() > 20), "it says why: {error}");

        let events = house.prompt(&self.key, "do you remember?");
        check_turn(&events, "end_turn");
        assert_eq!(chunks(&events), ["echo: do you remember?"], "what was replayed is not said again");
        let resumed = house.received("session/resume");
        let same = |message: &&Value| message["params"]["sessionId"] == self.agent_session.as_str();
        assert_eq!(resumed.iter().filter(same).count(), 1, "resumed under the agent's own id: {resumed:?}");
        let lease = house.lease(&self.key);
        assert_ne!(lease.id(), self.lease.id(), "another process is another lease");
        let old = house.leases().into_iter().find(|lease| lease.id() == self.lease.id());
        assert!(old.is_none_or(|lease| matches!(lease.state(), "closed" | "lost")), "the old one has ended");
        let shown = house.verb(&["sessions", "show", &self.key]);
        assert_eq!(shown["agent_session_id"], self.agent_session.as_str());
        assert_eq!(shown["runs"][0]["state"], "failed", "{shown:#}");
        let sent = house.agent_events("prompt");
        let again =
            |entry: &&Value| entry["session"] == self.agent_session.as_str() && entry["text"] == STUBBORN;
        assert_eq!(sent.iter().filter(again).count(), 1, "the failed prompt is never sent again by itself");
    }
}

fn tree_deadline() -> Duration {
    Duration::from_millis(GRACE_MS) + MARGIN
}

/// Acceptance point 4.
#[test]
fn heavy_supervisor_kill_ends_every_process_tree() {
    let mut house = House::new(&[]);
    let busy = [Busy::start(&house, "work/one"), Busy::start(&house, "work/two")];
    let killed = Instant::now();
    house.kill_supervisor();
    for one in &busy {
        one.await_end(killed, tree_deadline());
    }
    eprintln!("both trees were gone after {:?}", killed.elapsed());
    // The gateway reconnects to the next supervisor by itself.
    house.start_supervisor();
    for one in busy {
        one.goes_on(&house);
    }
    house.end();
}

/// Kills gateway and supervisor together: no process is left, and the session continues.
#[test]
fn heavy_session_survives_kill_of_gateway_and_supervisor() {
    let mut house = House::new(&[]);
    let busy = Busy::start(&house, "work/project");
    let killed = Instant::now();
    house.kill_gateway();
    house.kill_supervisor();
    busy.await_end(killed, tree_deadline());
    let mut left = house.world.processes();
    left.retain(|process| process.pid != busy.turn.pid());
    assert_eq!(left, [], "nothing but the client is left");
    house.start_supervisor();
    house.start_gateway();
    busy.goes_on(&house);
    house.end();
}

/// A prompt of an idle session during a supervisor outage waits, and the next process of the same conversation receives
/// it once.
#[test]
fn prompt_waits_for_supervisor() {
    let (mut house, key) = House::new(&[]).with_session();
    check_turn(&house.prompt(&key, "one"), "end_turn");
    let lease = house.lease(&key);
    house.kill_supervisor();
    until(SOON, "connection loss logged", || house.gateway().log().contains("supervisor connection lost"));
    let waiting = house.follow(&["prompt", &key, "two"]);
    until(SOON, "prompt accepted", || {
        house.verb(&["sessions", "show", &key])["runs"].as_array().is_some_and(|runs| runs.len() == 2)
    });
    until(SOON, "agent gone", || lease.processes().is_empty());
    house.start_supervisor();
    check_answer(&waiting.finish(LONG).ok().lines(), ["echo: two"]);
    assert_eq!(house.prompts_received("two"), 1);
    assert_eq!(house.received("session/resume").len(), 1);
    house.end();
}

/// Spawns wait for a restarting supervisor, and fail with the cause while it stays away.
#[test]
fn spawn_waits_for_supervisor_and_then_reports_its_absence() {
    let mut house = House::new(&[]);
    let cwd = house.world.dir("work/project").to_string_lossy().into_owned();
    let spawn = ["sessions", "spawn", "--agent", AGENT, "--cwd", &cwd];
    let backend = |house: &House| {
        let doctor = house.cli(&["doctor"]).lines().remove(0);
        let checks = doctor.as_array().cloned().unwrap_or_default();
        checks.into_iter().find(|check| check["name"] == "backend").unwrap_or_default()
    };
    assert_eq!(backend(&house)["verdict"], "ok");
    house.kill_supervisor();
    until(SOON, "backend check failed", || backend(&house)["verdict"] == "failed");
    let detail = backend(&house)["detail"].to_string();
    assert!(detail.contains("the supervisor does not answer"), "{detail}");
    let refused = house.cli(&spawn);
    assert_eq!((refused.code, refused.error_code().as_str()), (Some(1), "ACP_BACKEND_UNAVAILABLE"));
    assert_eq!(house.verb(&["sessions", "list", "--all"]), Value::Array(Vec::new()), "nothing was made");
    let waiting = house.follow(&spawn);
    house.start_supervisor();
    let spawned = waiting.finish(LONG).ok().json();
    assert_eq!(spawned["opening"], "open");
    check_turn(&house.prompt(spawned["session_key"].as_str().unwrap_or_default(), "hello"), "end_turn");
    house.end();
}

/// Sends SIGKILL to a process after checking that it belongs to the lease.
fn kill_of(lease: &Lease, pid: i32) {
    let held = ProcessHandle::open(pid).unwrap_or_else(|| panic!("{pid} is gone"));
    assert!(lease.processes().iter().any(|process| process.pid == pid), "{pid} is not of {lease:?}");
    assert!(held.kill());
}

/// Kills one process of a busy tree: the rest ends, and the session continues.
fn check_kill_of(pid: impl Fn(&Lease) -> i32) {
    let house = House::new(&[]);
    let busy = Busy::start(&house, "work/project");
    kill_of(&busy.lease, pid(&busy.lease));
    busy.await_end(Instant::now(), LONG);
    house.wait_for_lease_end(&busy.lease);
    busy.goes_on(&house);
    house.end();
}

/// Kills the wrapper: the supervisor ends its tree.
#[test]
fn heavy_wrapper_kill_ends_tree_and_session_resumes() {
    check_kill_of(Lease::wrapper_pid);
}

/// Kills the agent: its wrapper ends the rest of the tree.
#[test]
fn heavy_agent_kill_ends_tree_and_session_resumes() {
    check_kill_of(Lease::adapter_pid);
}

/// The exit of an idle agent is reported without a failure, and the next prompt resumes.
#[test]
fn idle_agent_exit_is_reported_and_next_prompt_resumes() {
    let (house, key) = House::new(&[]).with_session();
    check_turn(&house.prompt(&key, "one"), "end_turn");
    let lease = house.lease(&key);
    lease.kill_adapter();
    house.wait_for_lease_end(&lease);
    let said = eventually(SOON, "message shown", || {
        let history = house.history(&key);
        history.into_iter().find(|event| event["type"] == "status" && event["status"] == "agent_exited")
    });
    assert!(said["text"].as_str().is_some_and(|text| text.contains("signal 9")), "{said}");
    check_turn(&house.prompt(&key, "two"), "end_turn");
    assert_eq!(house.received("session/resume").len(), 1);
    assert_eq!(house.received("session/new").len(), 1);
    house.end();
}
