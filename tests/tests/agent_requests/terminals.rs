//! Terminal commands of agents: each has a lease below the agent's lease.

use crate::files::said;
use acp_testkit::processes::{all_pids, status_field};
use acp_tests::house::{GATEWAY, House};
use acp_tests::lease::Lease;
use acp_tests::processes::{ProcessHandle, belongs_to_dir, read};
use acp_tests::seed::Seed;
use acp_tests::story::{check_answer, check_turn, chunks};
use acp_tests::wait::{LONG, SOON, eventually, until, wait_until_instant};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Code of the JSON-RPC error for a limit that is reached.
const LIMIT_REACHED: i64 = -32005;

/// The open terminal lease of a session.
fn terminal(house: &House, key: &str) -> Lease {
    eventually(SOON, "terminal running", || {
        terminals(house, key).into_iter().find(|lease| lease.state() == "open")
    })
}

fn terminals(house: &House, key: &str) -> Vec<Lease> {
    let all = house.leases().into_iter();
    all.filter(|lease| lease.text("session_key") == key && lease.text("kind") == "terminal").collect()
}

/// Create, wait, output and release report the command's output and exit status.
#[test]
fn terminal_reports_output_and_exit_status() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let script = "terminal echo out; echo err >&2; exit 3\nterminal pwd\nterminal true\nterminal kill -TERM $$\n\
                  terminal i=0; while [ $i -lt 200000 ]; do echo 0123456789; i=$((i+1)); done\nterminal cat";
    let said = said(&house, &key, script);
    assert_eq!(said.len(), 6, "{said:?}");
    assert_eq!(said[0], "terminal: exit=3 signal=null truncated=false output=out\nerr\n");
    let cwd = house.cwd().canonicalize().unwrap();
    let empty = "terminal: exit=0 signal=null truncated=false output=";
    assert_eq!(said[1], format!("{empty}{}\n", cwd.display()));
    assert_eq!(said[2], empty);
    assert!(said[3].starts_with("terminal: exit=null signal=SIGTERM truncated=false"), "{}", said[3]);
    let (head, output) = said[4].split_once(" output=").unwrap();
    assert_eq!(head, "terminal: exit=0 signal=null truncated=true");
    assert!(output.len() <= 1024 * 1024 && output.len() > 1000 * 1024, "{} bytes are kept", output.len());
    assert!(output.ends_with("0123456789\n"), "the end of the output is kept");
    assert_eq!(said[5], empty, "its standard input is empty");
    until(LONG, "released terminals are closed", || {
        terminals(&house, &key).iter().all(|lease| lease.state() == "closed")
    });
    for lease in terminals(&house, &key) {
        assert_eq!(lease.processes(), [], "{lease:?}");
    }
    house.end();
}

/// A terminal's lease names its kind and its parent; closing the session ends the terminal's whole tree.
#[test]
fn terminal_has_own_lease_and_ends_with_session() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let agent = house.lease(&key);
    assert_eq!(agent.text("kind"), "agent");
    assert!(agent.0["parent_lease_id"].is_null());
    let turn = house.follow(&["prompt", &key, "terminal trap '' TERM; setsid sleep 3600 & sleep 3600"]);
    let lease = terminal(&house, &key);
    assert_eq!(lease.text("parent_lease_id"), agent.id());
    let shown = house.world.supervisor_cli(house.socket(), &["leases", "show", lease.id()]).ok().json();
    for member in ["lease_id", "kind", "parent_lease_id", "session_key", "gateway_instance_id", "adapter_pid"]
    {
        assert_eq!(shown[member], lease.0[member], "{member}");
    }
    assert_eq!(shown["kind"], "terminal");
    let tree =
        eventually(SOON, "both sleeps running", || Some(lease.processes()).filter(|tree| tree.len() >= 4));
    assert!(tree.iter().any(|process| process.pid == lease.adapter_pid()), "{tree:#?}");

    let _ = house.verb(&["sessions", "close", &key]);
    let _ = turn.finish(LONG);
    house.wait_for_lease_end(&lease);
    house.wait_for_lease_end(&agent);
    house.end();
}

/// A terminal ends when its agent's process ends.
#[test]
fn terminal_ends_with_its_agent_process() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let agent = house.lease(&key);
    let turn = house.follow(&["prompt", &key, "terminal trap '' TERM; sleep 3600; true"]);
    let lease = terminal(&house, &key);
    agent.kill_adapter();
    assert_eq!(turn.finish(LONG).code, Some(1));
    house.wait_for_lease_end(&lease);
    check_turn(&house.prompt(&key, "and on"), "end_turn");
    house.end();
}

/// `terminal/kill` ends the command and keeps its output; a cancel of the turn lets the agent release it.
#[test]
fn killed_terminal_ends_and_cancel_releases_terminal() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let begun = Instant::now();
    let said = said(&house, &key, "terminal_kill sleep 3600");
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("terminal: exit=null signal=SIG"), "{said:?}");
    assert!(begun.elapsed() < SOON, "the kill does not wait for the command");
    until(LONG, "terminal processes gone", || {
        terminals(&house, &key).iter().all(|lease| lease.processes().is_empty())
    });

    let turn = house.follow(&["prompt", &key, "terminal sleep 3600"]);
    let lease = terminal(&house, &key);
    let _ = house.verb(&["sessions", "cancel", &key]);
    check_turn(&turn.finish(LONG).ok().lines(), "cancelled");
    house.wait_for_lease_end(&lease);
    assert_eq!(house.received("session/cancel").len(), 1);
    house.end();
}

/// H3: a wait for a command continues after a restart, even if the command ended in between.
#[test]
fn terminal_wait_in_flight_is_answered_after_restart() {
    let (mut house, key) = House::with_approve_all(&[]).with_session();
    let agent = house.lease(&key);
    for ends_while_dead in [false, true] {
        let script = "terminal echo begun; while [ ! -e go ]; do sleep 0.02; done; echo ended; exit 7";
        let turn = house.follow(&["prompt", &key, script]);
        let lease = terminal(&house, &key);
        house.kill_gateway();
        let go = || std::fs::write(house.cwd().join("go"), "").unwrap();
        if ends_while_dead {
            go();
            until(SOON, "command ended", || !acp_tests::processes::is_alive(lease.adapter_pid()));
            house.start_gateway();
        } else {
            let go = house.cwd().join("go");
            house.start_gateway();
            assert_eq!(terminal(&house, &key).id(), lease.id(), "the same command");
            std::fs::write(go, "").unwrap();
        }
        check_answer(
            &turn.finish(LONG).ok().lines(),
            ["terminal: exit=7 signal=null truncated=false output=begun\nended\n"],
        );
        std::fs::remove_file(house.cwd().join("go")).unwrap();
        assert_eq!(house.lease(&key).id(), agent.id());
    }
    assert_eq!(terminals(&house, &key).len(), 2, "no command was started twice");
    house.end();
}

/// H3: a command is started once although the gateway is killed around its creation.
#[test]
fn heavy_terminal_command_starts_once_across_gateway_kills() {
    let mut seed = Seed::new();
    let (mut house, key) = House::with_approve_all(&[]).with_session();
    let _ = house.prompt(&key, "warm up");
    let rounds = 12;
    for n in 0..rounds {
        let script = format!("terminal echo {n} >> started; echo done {n}");
        let turn = house.follow(&["prompt", &key, &script]);
        until(SOON, "prompt received", || house.prompts_received(&script) == 1);
        wait_until_instant(Instant::now() + seed.time_below(Duration::from_millis(60)));
        house.restart_gateway();
        let events = turn.finish(LONG).ok().lines();
        let want = format!("terminal: exit=0 signal=null truncated=false output=done {n}\n");
        assert_eq!(chunks(&events), [want]);
    }
    let started = std::fs::read_to_string(house.cwd().join("started")).unwrap();
    assert_eq!(started, (0..rounds).map(|n| format!("{n}\n")).collect::<String>(), "each command once");
    house.end();
}

/// The file helper of a house with one agent. Helpers for look-ups of its start end soon.
fn file_helper(house: &House) -> ProcessHandle {
    let is_helper = |pid: &i32| {
        let wrapper = status_field(*pid, "PPid").and_then(|parent| parent.parse().ok());
        read(*pid).is_some_and(|process| process.argv.iter().any(|arg| arg == "files-helper"))
            && wrapper.is_some_and(|wrapper| belongs_to_dir(wrapper, &house.world.path("supervisor")))
    };
    eventually(SOON, "only the file helper of the agent running", || {
        let helpers: Vec<i32> = all_pids().into_iter().filter(is_helper).collect();
        let [helper] = helpers[..] else { return None };
        ProcessHandle::open(helper)
    })
}

/// A stricter mode recalls a command that waits for the supervisor. The gateway is killed before the wait ends: its
/// restart does not start the command.
#[test]
fn recalled_command_does_not_run_after_a_restart() {
    let (mut house, key) = House::with_approve_all(&[]).with_session();
    std::fs::write(house.cwd().join("a"), "x").unwrap();
    assert_eq!(said(&house, &key, "fs_read a"), ["fs_read: x"]);
    // The working directory of the command is looked up by a helper that does not answer.
    let helper = file_helper(&house);
    assert!(helper.signal(Signal::STOP));
    let turn = house.follow(&["prompt", &key, "terminal touch ran"]);
    until(SOON, "command allowed", || {
        let sql = "SELECT count(*) FROM acp_agent_request WHERE state = 'started'";
        house.world.journal(GATEWAY).query_row(sql, [], |row| row.get(0)) == Ok(1)
    });
    let _ = house.verb(&["sessions", "set", &key, "--permission", "deny-all"]);
    house.kill_gateway();
    assert!(helper.signal(Signal::CONT));
    house.start_gateway();
    check_answer(&turn.finish(LONG).ok().lines(), ["terminal: terminal/create error -32003"]);
    assert!(!house.cwd().join("ran").exists());
    house.end();
}

/// An agent runs 16 terminals at most: each further one is refused at once with a typed error, and a released one makes
/// room.
#[test]
fn terminals_of_an_agent_are_bounded() {
    let (house, key) = House::with_approve_all(&[]).with_session();
    let refused = format!("terminal: terminal/create error {LIMIT_REACHED}");
    for _ in 0..2 {
        let said = said(&house, &key, "terminals 18 sleep 3600");
        assert_eq!(said, [refused.as_str(), &refused, "terminals: created 16 of 18"]);
        until(LONG, "every released terminal is closed", || {
            terminals(&house, &key).iter().all(|lease| lease.state() == "closed")
        });
    }
    house.end();
}
