//! Cancel, close and adverse cases in every phase of a session, and operations that are never retried.

use super::decisions::{code, lease, prompt, ready, refused, run_state, started, submit};
use super::world::{World, prompt_request};
use super::*;
use crate::event::EventKind as K;
use crate::options::Setting;
use crate::request::{CancelResult, CloseRequest};
use crate::session::SessionState;
use acp_shared::codes::Code;
use acp_shared::protocol::RefusalCode;

/// Returns a gateway whose supervisor has no capacity for the agent yet.
fn starting() -> World {
    refused(RefusalCode::Busy, Some(100))
}

const fn cancel() -> ActorCommand {
    ActorCommand::Cancel(None)
}

fn phases() -> Vec<(&'static str, World, Option<RunId>, SessionState)> {
    let with = |mut world: World, text: &str| {
        let run = prompt(&mut world, text).unwrap();
        (world, Some(run))
    };
    let (starting, waits) = with(starting(), "prompt a");
    let (opening, opens) = with(super::decisions::opening(), "prompt a");
    let (running, runs) = with(ready(), "Thello");
    let (asking, asks) = with(ready(), "P");
    let (mut stopping, stops) = with(ready(), "Thello");
    stopping.ignores_input = true;
    stopping.command(cancel()).unwrap();
    let (mut resting, _) = with(ready(), "prompt a");
    resting.end_process(ExitStatus::Exited(0));
    let mut faulted = super::decisions::opening();
    faulted.advance_to_deadline();
    let mut closed = ready();
    closed.command(ActorCommand::Close(CloseRequest::new("before"))).unwrap();
    vec![
        ("starting", starting, waits, SessionState::Creating),
        ("opening", opening, opens, SessionState::Creating),
        ("idle", ready(), None, SessionState::Idle),
        ("running", running, runs, SessionState::Running),
        ("asking", asking, asks, SessionState::Running),
        ("stopping", stopping, stops, SessionState::Cancelling),
        ("resting", resting, None, SessionState::Idle),
        ("faulted", faulted, None, SessionState::Error),
        ("closed", closed, None, SessionState::Closed),
    ]
}

/// B3: in every phase, a cancel reaches the turn, returns the affected run, and ends no process; a second one
/// changes nothing.
#[test]
fn cancel_works_in_every_phase() {
    for (name, mut world, run, before) in phases() {
        assert_eq!(world.rows.session.state, before, "{name}");
        let processes = world.processes.len();
        let ended = |world: &World| world.processes.values().filter(|process| process.exit.is_some()).count();
        let ended_before = ended(&world);
        let CommandReply::Cancel(first) = world.command(cancel()).unwrap() else { panic!("{name}") };
        assert_eq!(first.run_id, run, "{name}");
        let reports = world.count_stdin("cancel\n");
        assert_eq!(reports, usize::from(matches!(name, "running" | "asking" | "stopping")), "{name}");
        assert!(world.rows.permissions.is_empty(), "{name}: no permission request is pending");
        let again = world.command(cancel()).unwrap();
        if name == "stopping" {
            assert_eq!(first.state, Some(RunState::Running));
            assert_eq!(again, CommandReply::Cancel(first));
            assert_eq!(ended(&world), 0, "the agent has its grace period");
            world.advance_to_deadline();
            assert_eq!(ended(&world), processes, "the process is ended after the grace period");
        } else {
            assert_eq!(again, CommandReply::Cancel(CancelResult { run_id: None, state: None }), "{name}");
            assert_eq!(ended(&world), ended_before, "{name}: a cancel ends no process");
        }
        if let Some(run) = run {
            assert_eq!(run_state(&world, run), RunState::Cancelled, "{name}");
        }
        let after = match before {
            SessionState::Running | SessionState::Cancelling => SessionState::Idle,
            other => other,
        };
        assert_eq!((world.rows.session.state, world.processes.len()), (after, processes), "{name}");
        if name == "opening" {
            world.ignores_input = false;
            world.emit("Rsession-1\n");
            assert_eq!(world.rows.session.state, SessionState::Idle);
            assert_eq!(world.count_stdin("prompt"), 0, "a cancelled turn never starts");
        }
    }
}

/// B4: in every phase, a close takes effect before its reply: the session is closed, runs and questions are
/// resolved, and bindings end; the process ends afterwards. It happens once, and later commands are refused.
#[test]
fn close_works_in_every_phase() {
    for (name, mut world, run, before) in phases() {
        let processes = world.processes.len();
        let request = CloseRequest { discard: true, ..CloseRequest::new("enough") };
        world.command(ActorCommand::Close(request)).unwrap();
        assert_eq!(world.rows.session.state, SessionState::Closed, "{name}");
        assert!(world.rows.runs.iter().all(|run| run.state.is_ended()), "{name}");
        if let Some(run) = run {
            assert_eq!(run_state(&world, run), RunState::Cancelled, "{name}");
        }
        assert!(world.rows.permissions.is_empty() && world.rows.requests.is_empty(), "{name}");
        let why = if before == SessionState::Closed { "before" } else { "enough" };
        assert_eq!(world.rows.ended_bindings, [why], "{name}");
        assert_eq!(code(prompt(&mut world, "prompt z")), Code::SessionClosed, "{name}");
        assert_eq!(code(world.command(ActorCommand::NewConversation)), Code::SessionClosed, "{name}");
        let mode = Setting::Mode("plan".to_owned());
        assert_eq!(code(world.command(ActorCommand::Set(mode))), Code::SessionClosed, "{name}");
        while world.rows.session.lease_id.is_some() {
            world.advance_to_deadline();
        }
        assert!(world.processes.values().all(|process| process.exit.is_some()), "{name}");
        world.command(ActorCommand::Close(CloseRequest::new("again"))).unwrap();
        let closed = world.count(K::Closed);
        assert_eq!((closed, world.kinds().last()), (1, Some(&K::Closed)), "{name}");
        assert_eq!(world.processes.len(), processes, "{name}: no agent is started only to forget");
    }
}

/// A close before the end of the agent's start leaves nothing behind, whether or not the supervisor had
/// received the spawn.
#[test]
fn close_during_agent_start_leaves_no_process() {
    for has_output in [false, true] {
        let mut world = starting();
        world.ignores_close = true;
        world.close();
        world.ignores_close = false;
        world.refuse_spawn = None;
        let id = lease(&world);
        if has_output {
            // The process was created, and the confirmation arrives late.
            world.processes.entry(id).or_default();
            world.input(ActorInput::Lease(LeaseEvent::Spawned));
        }
        world.restart();
        assert_eq!(world.rows.session.lease_id, None, "{has_output}");
        assert_eq!(world.processes.contains_key(&id), has_output);
        assert!(world.processes.values().all(|process| process.exit.is_some()));
    }
}

/// If a cancel races with the end of the turn, the first one counts, and the next queued run is not affected.
#[test]
fn cancel_at_turn_end_affects_no_other_run() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let next = prompt(&mut world, "Tmore").unwrap();
    world.emit("D\n");
    let answer = world.command(ActorCommand::Cancel(Some(run))).unwrap();
    assert_eq!(answer, CommandReply::Cancel(CancelResult { run_id: None, state: None }), "it has ended");
    assert_eq!((run_state(&world, run), run_state(&world, next)), (RunState::Completed, RunState::Running));
    // The agent had answered before the cancel arrived: that answer counts.
    world.ignores_input = true;
    world.command(ActorCommand::Cancel(Some(next))).unwrap();
    world.emit("D\n");
    assert_eq!(run_state(&world, next), RunState::Completed);
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

/// B2: with a long queue, each prompt gets its position, a prompt over the limit is refused, and cancelling
/// runs in the middle preserves the order of the others.
#[test]
fn full_queue_keeps_its_order_after_drops() {
    let mut world = started(|world| world.limits.queue_runs_max = 50);
    let mut runs = vec![prompt(&mut world, "Thello").unwrap()];
    for position in 1..50 {
        let accepted = submit(&mut world, prompt_request(&format!("prompt {position}"))).unwrap();
        assert_eq!(accepted.queued_behind, position);
        runs.push(accepted.run_id);
    }
    let refused = submit(&mut world, prompt_request("prompt 50")).unwrap_err();
    assert_eq!((refused.code, refused.retryable), (Code::LimitReached, true));
    assert!(refused.message.contains("50 prompts are already running or queued"), "{}", refused.message);
    for position in (3..50).step_by(3) {
        let dropped = CancelResult { run_id: Some(runs[position]), state: Some(RunState::Cancelled) };
        let answer = world.command(ActorCommand::Cancel(Some(runs[position]))).unwrap();
        assert_eq!(answer, CommandReply::Cancel(dropped));
    }
    world.emit("D\n");
    let want: Vec<String> = (1..50)
        .filter(|position| position % 3 != 0)
        .map(|position| format!("prompt prompt {position}\n"))
        .collect();
    let prompts: Vec<String> =
        world.stdin().into_iter().filter(|text| text.starts_with("prompt prompt")).collect();
    assert_eq!(prompts, want);
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

/// B14: a time limit set during a turn applies to this turn, counted from its start, as after a restart.
#[test]
fn time_limit_set_during_a_turn_applies_to_it() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    world.now_ms += 20_000;
    world.command(ActorCommand::Set(Setting::TimeoutS(30))).unwrap();
    world.advance(9_999);
    assert_eq!(run_state(&world, run), RunState::Running);
    world.advance(1);
    assert_eq!(run_state(&world, run), RunState::Failed);
    // A removed limit stops no turn.
    let run = prompt(&mut world, "Thello").unwrap();
    world.command(ActorCommand::Set(Setting::TimeoutS(0))).unwrap();
    world.advance(1_000_000);
    assert_eq!(run_state(&world, run), RunState::Running);
}

/// B16: if the supervisor never started the agent, the failure names the supervisor and the next step instead
/// of a slow agent.
#[test]
fn unstarted_agent_reports_unavailable_supervisor() {
    let mut world = starting();
    let run = prompt(&mut world, "prompt a").unwrap();
    while world.rows.session.state != SessionState::Error {
        world.advance_to_deadline();
    }
    let failure = world.run(run).error.clone().unwrap();
    let detail = failure.detail_code.as_deref();
    assert_eq!((failure.code, detail), (Code::BackendUnavailable, Some("NOT_STARTED")));
    assert!(failure.retryable && failure.message.contains("doctor"), "{}", failure.message);
    world.refuse_spawn = None;
    let run = prompt(&mut world, "prompt b").unwrap();
    assert_eq!(run_state(&world, run), RunState::Completed);
}

/// B17: a session has one backend and no fallback. A turn is not retried after output or after the prompt
/// arrived, and its failure reports this. Only an undelivered prompt is sent again, by the same backend (H6).
#[test]
fn possibly_started_turn_is_not_retried() {
    for has_spoken in [true, false] {
        let mut world = ready();
        let backend = world.rows.session.backend.clone();
        world.ignores_input = !has_spoken;
        let run = prompt(&mut world, "Thello").unwrap();
        let has_output = world.kinds().contains(&K::AgentMessage);
        assert_eq!(has_output, has_spoken);
        world.end_process(ExitStatus::Signaled(9));
        let row = world.run(run);
        let failure = row.error.clone().unwrap();
        assert_eq!((row.state, failure.code), (RunState::Failed, Code::TurnFailed));
        assert!(failure.message.contains("was not retried"), "{}", failure.message);
        assert_eq!(world.processes.len(), 1, "no other agent is started for it");
        assert_eq!(world.rows.session.backend, backend);
        let prompts = world.count_stdin("prompt");
        assert_eq!(prompts, 1);
    }
}

/// B12: while the agent is out of reach, waiting users are informed once, in bounded time; queued prompts
/// continue later.
#[test]
fn unreachable_agent_is_reported_to_waiting_callers() {
    let reports =
        |world: &World| world.rows.events.iter().filter(|event| event.payload.contains("agent_away")).count();
    let mut world = ready();
    for round in 0..2 {
        world.input(ActorInput::Disconnected);
        world.advance(100_000);
        assert_eq!(reports(&world), round, "no notice without a queued prompt");
        let run = prompt(&mut world, "prompt a").unwrap();
        let deadline = world.now_ms + world.limits.reconcile_ms;
        assert_eq!(world.deadline_ms(), Some(deadline));
        world.advance_to_deadline();
        assert_eq!((reports(&world), run_state(&world, run)), (round + 1, RunState::Queued));
        world.advance(50_000);
        assert_eq!(reports(&world), round + 1);
        world.input(ActorInput::Lease(LeaseEvent::Connected));
        assert_eq!(run_state(&world, run), RunState::Completed);
    }
}
