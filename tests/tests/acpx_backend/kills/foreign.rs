//! Kill table of the backend `acpx` with npm's acpx: SIGKILL of each process, between turns and in a turn, on each containment
//! level. The agent ignores SIGTERM and end of file, and so does its grandchild, which has left the session.

use crate::npm::{close, house, is_agent};
use acp_tests::cli::RunningCommand;
use acp_tests::house::House;
use acp_tests::lease::Lease;
use acp_tests::processes::{self, Process, ProcessHandle};
use acp_tests::story::{check_answer, check_failed, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually, spin_until, until};
use acp_tests::world::World;
use serde_json::Value;

/// First lines of the script of a stubborn agent with a child and a stubborn grandchild.
const STUBBORN: &str = "ignore_term\nignore_eof\nfork_child\nspawn_setsid\n";
/// Number of chunks of a turn that outlives a kill.
const CHUNKS: u64 = 300;
/// Processes that exist only in a turn.
const OF_A_TURN: [&str; 2] = ["--no-wait", "watch"];

/// A session on one containment level.
struct Cell {
    house: House,
    key: String,
    lease: Lease,
    /// Processes of the first lease.
    tree: Vec<Process>,
    name: String,
}

impl Cell {
    fn new(level: &str, phase: &str, victim: &str) -> Self {
        let house = house(&format!("rung = \"{level}\"\n"));
        let key = house.spawn();
        let lease = house.lease(&key);
        let name = format!("{level}, {phase}, {victim}");
        Self { house, key, lease, tree: Vec::new(), name }
    }

    /// Runs a turn of a stubborn tree.
    fn warm(&mut self) {
        let events = self.house.prompt(&self.key, &format!("{STUBBORN}say warm"));
        check_turn(&events, "end_turn");
        self.know_tree();
    }

    /// Starts a turn of a stubborn tree, and returns it with its first events.
    fn begin(&mut self, script: &str) -> (RunningCommand, Vec<Value>) {
        let mut turn = self.house.follow(&["prompt", &self.key, script]);
        let is_third = |it: &Value| it["text"].as_str().is_some_and(|text| text.starts_with("000003"));
        let events = turn.events_until(LONG, is_third);
        assert!(chunks(&events).iter().any(|text| text.starts_with("escaped ")), "{events:?}");
        self.know_tree();
        (turn, events)
    }

    fn know_tree(&mut self) {
        self.tree = self.lease.processes();
        // Wrapper, bridge, queue owner, agent, child and grandchild.
        assert!(self.tree.len() >= 6 && self.tree.iter().any(is_agent), "{}: {:?}", self.name, self.tree);
    }

    /// Process of the lease with this word among its arguments.
    fn find(&self, word: &str) -> Option<Process> {
        let has = |process: &Process| process.argv.iter().any(|arg| arg.contains(word));
        self.lease.processes().into_iter().find(has)
    }

    /// Kills a process, or a service and starts it again.
    fn strike(&mut self, victim: &str) {
        let found = match victim {
            "gateway" => return self.house.restart_gateway(),
            "supervisor" => {
                self.house.kill_supervisor();
                self.nothing_left_of_lease();
                return self.house.start_supervisor();
            }
            "bridge" => return self.lease.kill_adapter(),
            "agent" => self.lease.processes().into_iter().find(is_agent),
            "owner" => self.find("__queue-owner"),
            "watch" => self.find("watch"),
            _ => panic!("{victim}"),
        };
        kill(&found.unwrap_or_else(|| panic!("no {victim}: {:?}", self.lease.processes())));
    }

    fn nothing_left_of_lease(&self) {
        until(LONG, &format!("{}: nothing is left of the lease", self.name), || {
            self.lease.processes().is_empty()
        });
    }

    /// Checks that the session goes on with one agent, that a prompt arrived at most so many times, and that nothing is left.
    fn end(self, prompt: &str, times: std::ops::RangeInclusive<usize>, outcome: &str) {
        let Self { house, key, name, .. } = &self;
        check_answer(&house.prompt(key, "still there?"), ["echo: still there?"]);
        let received = house.prompts_received(prompt);
        assert!(times.contains(&received), "{name}: the prompt was sent {received} times");
        let last = house.lease(key);
        let agents: Vec<Process> = house.world.processes().into_iter().filter(is_agent).collect();
        assert_eq!(agents.len(), 1, "{name}: no second agent runs beside the first: {agents:?}");
        close(house, key, &last);
        let same =
            |it: &&Process| processes::read(it.pid).is_some_and(|now| now.start_ticks == it.start_ticks);
        let left: Vec<&Process> = self.tree.iter().filter(same).collect();
        assert!(left.is_empty(), "{name}: {left:?}");
        eprintln!("{name}: {outcome}; nothing left");
        self.house.end();
    }
}

fn kill(process: &Process) {
    let handle = ProcessHandle::open(process.pid).unwrap_or_else(|| panic!("gone: {process:?}"));
    assert!(handle.kill(), "gone: {process:?}");
}

/// Checks a row of the table on each containment level that this machine has, at the same time.
fn on_each_level(check: impl Fn(&str) + Sync) {
    let status = {
        let world = World::new();
        let supervisor = world.supervisor();
        world.supervisor_cli(&supervisor.socket(), &["status"]).ok().json()
    };
    let best = status["rung"].as_str().unwrap_or_else(|| panic!("{status}"));
    std::thread::scope(|scope| {
        for level in ["R1", "R2"] {
            if level < best {
                eprintln!("skipped: containment level {level}: the best one of this machine is {best}");
                continue;
            }
            let check = &check;
            let _ = scope.spawn(move || check(level));
        }
    });
}

/// Checks the end of a turn that was killed, and returns its error for the table.
fn check_end(cell: &Cell, events: &[Value], code: &str, detail: &str) -> String {
    let error = check_failed(events, code);
    assert_eq!(error["detail_code"], detail, "{}: {error}", cell.name);
    assert!(error["message"].as_str().is_some_and(|text| text.len() > 20), "{}: {error}", cell.name);
    format!("{code}, {detail}")
}

#[test]
#[ignore = "needs npm's acpx: make test-foreign"]
fn kills_between_turns_leave_nothing_and_the_session_goes_on() {
    on_each_level(|level| {
        for victim in ["owner", "agent", "bridge", "gateway", "supervisor"] {
            let mut cell = Cell::new(level, "idle", victim);
            cell.warm();
            until(SOON, "no process of a turn is left", || {
                OF_A_TURN.iter().all(|it| cell.find(it).is_none())
            });
            cell.strike(victim);
            if matches!(victim, "owner" | "bridge") {
                cell.nothing_left_of_lease();
            }
            let warm = format!("{STUBBORN}say warm");
            cell.end(&warm, 1..=1, "the session goes on");
        }
    });
}

#[test]
#[ignore = "needs npm's acpx: make test-foreign"]
fn kills_in_a_turn_leave_nothing_and_tell_what_is_unknown() {
    let script = format!("{STUBBORN}chunks 100000 pace_ms=10");
    on_each_level(|level| {
        for (victim, code, detail) in [
            ("owner", "ACP_UNCERTAIN", "WATCH_OUTCOME_UNKNOWN"),
            ("agent", "ACP_TURN_FAILED", "AGENT_DISCONNECTED"),
            ("bridge", "ACP_UNCERTAIN", "BRIDGE_EXITED"),
            ("supervisor", "ACP_UNCERTAIN", "BRIDGE_EXITED"),
        ] {
            let mut cell = Cell::new(level, "turn", victim);
            let (turn, mut events) = cell.begin(&script);
            cell.strike(victim);
            let ended = turn.finish(LONG);
            assert_eq!(ended.code, Some(1), "{}: {ended:?}", cell.name);
            events.extend(ended.lines());
            let outcome = check_end(&cell, &events, code, detail);
            cell.end(&script, 1..=1, &outcome);
        }
    });
}

#[test]
#[ignore = "needs npm's acpx: make test-foreign"]
fn kills_of_watch_and_gateway_in_a_turn_lose_nothing() {
    let script = format!("{STUBBORN}chunks {CHUNKS} pace_ms=10");
    on_each_level(|level| {
        for victim in ["watch", "gateway"] {
            let mut cell = Cell::new(level, "turn", victim);
            let (turn, _) = cell.begin(&script);
            cell.strike(victim);
            drop(turn);
            let history = eventually(LONG, "turn ended", || {
                let history = cell.house.history(&cell.key);
                history.iter().any(|event| event["type"] == "done").then_some(history)
            });
            let said: String = chunks(&history).into_iter().filter(|text| text.starts_with('0')).collect();
            let want: String = (1..=CHUNKS).map(|n| acp_tests::fake_agent::chunk_text(n, 16)).collect();
            assert!(said == want, "{}: {} of {} bytes", cell.name, said.len(), want.len());
            cell.end(&script, 1..=1, &format!("{CHUNKS} chunks, none lost or repeated"));
        }
    });
}

/// The client of the first prompt has no cursor behind which a watch shows the turn; later ones have.
#[test]
#[ignore = "needs npm's acpx: make test-foreign"]
fn killed_client_sends_no_prompt_twice() {
    let script = format!("{STUBBORN}say once");
    on_each_level(|level| {
        for phase in ["first turn", "later turn"] {
            let mut cell = Cell::new(level, phase, "client");
            if phase == "later turn" {
                cell.warm();
            }
            let turn = cell.house.follow(&["prompt", &cell.key, &script]);
            kill(&spin_until(LONG, "prompt client", || cell.find("--no-wait")));
            let events = turn.finish(LONG).lines();
            let last = events.last().cloned().unwrap_or_default();
            let outcome = if last["type"] == "done" {
                check_turn(&events, "end_turn");
                "the turn ends".to_owned()
            } else {
                check_end(&cell, &events, "ACP_UNCERTAIN", "NOT_ACKNOWLEDGED")
            };
            cell.end(&script, 0..=1, &outcome);
        }
    });
}
