//! Beginning, end and timeouts of sessions: the control-plane cases (B and D) that an actor decides.

use super::decisions::{code, lease, prompt, ready, refused, run_state, started, submit};
use super::world::{World, answer_command, prompt_request};
use super::*;
use crate::event::EventKind as K;
use crate::failure::Failure;
use crate::options::Setting;
use crate::request::{CloseRequest, PromptRequest};
use crate::rows::{NonInteractive, PermissionMode, RunMode, SessionMode};
use crate::run::RunEvent;
use crate::session::{Ending, SessionState};
use crate::timeouts::{Expiry, TimeoutKind};
use crate::transition::Transition;
use acp_shared::codes::Code;
use acp_shared::ids::BindingId;
use acp_shared::protocol::RefusalCode;

pub(super) fn count_status(world: &World, status: &str) -> usize {
    let text = format!("\"status\":\"{status}\"");
    world.rows.events.iter().filter(|event| event.kind == K::Status && event.payload.contains(&text)).count()
}

fn error_of(world: &World, run_id: RunId) -> Failure {
    world.run(run_id).error.clone().unwrap()
}

fn expire(world: &mut World, source: TimeoutKind, binding_id: Option<BindingId>, closes: bool) {
    let expiry = Expiry { at_ms: world.now_ms, source, window_ms: 60_000, binding_id };
    let seen_ms = world.rows.session.last_activity_at_ms;
    world.command(ActorCommand::Expire { expiry, seen_ms, closes }).unwrap();
}

#[test]
fn turns_of_a_session_are_serialized() {
    let mut world = ready();
    let first = prompt(&mut world, "Thello").unwrap();
    let positions: Vec<u64> =
        (0..3).map(|_| submit(&mut world, prompt_request("prompt x")).unwrap().queued_behind).collect();
    assert_eq!(positions, [1, 2, 3]);
    let running = world.rows.runs.iter().filter(|run| run.state == RunState::Running).count();
    assert_eq!(running, 1);
    assert_eq!(code(prompt(&mut world, "prompt over the limit of the queue")), Code::LimitReached);
    world.emit("D\n");
    assert_eq!(run_state(&world, first), RunState::Completed);
    assert!(world.rows.runs.iter().all(|run| run.state == RunState::Completed));
    let long = "x".repeat(world.limits.prompt_bytes_max + 1);
    assert_eq!(code(prompt(&mut world, &long)), Code::LimitReached);
}

#[test]
fn close_does_not_wait_for_the_running_turn() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let queued = prompt(&mut world, "prompt b").unwrap();
    world.ignores_input = true;
    world.close();
    assert_eq!(world.rows.session.state, SessionState::Closed, "the session closes at once");
    assert_eq!(world.rows.session.ending, Some(Ending::Closed));
    assert_eq!([run, queued].map(|run| run_state(&world, run)), [RunState::Cancelled; 2]);
    assert_eq!(world.rows.ended_bindings, ["enough"], "its bindings end in the same transaction");
    assert!(world.rows.session.lease_id.is_some(), "the agent has a grace period to settle");
    world.advance_to_deadline();
    assert_eq!(world.rows.session.lease_id, None, "the process is ended after the grace period");
}

#[test]
fn every_ending_uses_the_close_transaction() {
    for ending in Ending::ALL {
        let mut world = ready();
        let run = prompt(&mut world, "Thello").unwrap();
        let request = CloseRequest { ending, ..CloseRequest::new("why") };
        world.command(ActorCommand::Close(request)).unwrap();
        assert_eq!(world.rows.session.ending, Some(ending));
        assert_eq!(world.rows.session.state, SessionState::Closed);
        assert_eq!(run_state(&world, run), RunState::Cancelled);
        assert_eq!(world.rows.ended_bindings, ["why"]);
        assert_eq!(world.kinds().last(), Some(&K::Closed));
        assert_eq!(world.rows.session.lease_id, None);
    }
}

#[test]
fn closed_session_can_be_deleted() {
    let mut world = ready();
    world.close();
    let events = world.rows.events.len();
    let request = CloseRequest { ending: Ending::Deleted, ..CloseRequest::new("away") };
    world.command(ActorCommand::Close(request)).unwrap();
    assert_eq!(world.rows.session.ending, Some(Ending::Deleted));
    assert_eq!(world.rows.events.len(), events, "it is closed only once");
}

#[test]
fn close_on_condition_spares_a_session_in_use() {
    let close = |world: &mut World, since_ms| {
        let request = CloseRequest { if_idle_since_ms: Some(since_ms), ..CloseRequest::new("idle") };
        world.command(ActorCommand::Close(request)).map(drop)
    };
    let is_in_use =
        |refused: Result<(), Failure>| refused.unwrap_err().detail_code.as_deref() == Some("SESSION_IN_USE");
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let events = world.rows.events.len();
    assert!(is_in_use(close(&mut world, u64::MAX)), "a turn runs");
    assert_eq!(world.rows.events.len(), events, "a refused close writes nothing");
    world.emit("D\n");
    assert_eq!(run_state(&world, run), RunState::Completed);
    let used_ms = world.rows.session.last_activity_at_ms;
    assert!(is_in_use(close(&mut world, used_ms - 1)), "used after that time");
    assert_eq!(world.rows.session.state, SessionState::Idle);
    close(&mut world, used_ms).unwrap();
    assert_eq!(world.rows.session.state, SessionState::Closed);
    close(&mut world, 0).unwrap();
}

#[test]
fn discard_is_answered_before_the_process_ends() {
    let discard = || CloseRequest { discard: true, ..CloseRequest::new("enough") };
    let discarded = |answer: CommandReply| match answer {
        CommandReply::Session(now) => now.discarded,
        other => panic!("{other:?}"),
    };
    // Idle, and in a turn, which is ended first.
    for text in ["prompt a", "Thello"] {
        let mut world = ready();
        prompt(&mut world, text).unwrap();
        let answer = world.command(ActorCommand::Close(discard())).unwrap();
        assert_eq!(discarded(answer), Some(true));
        assert_eq!(world.stdin().last().map(String::as_str), Some("discard\n"));
        assert_eq!(world.rows.session.lease_id, None, "the process ends once the agent has answered");
    }
    // The wait for an unresponsive agent is limited.
    let mut world = ready();
    world.ignores_input = true;
    world.command(ActorCommand::Close(discard())).unwrap();
    assert!(world.rows.session.lease_id.is_some());
    world.advance_to_deadline();
    assert_eq!(world.rows.session.lease_id, None);
    // An agent that is not running cannot be asked, and the reply reports this.
    let mut world = ready();
    world.end_process(ExitStatus::Exited(0));
    let answer = world.command(ActorCommand::Close(discard())).unwrap();
    assert_eq!(discarded(answer), Some(false));
}

#[test]
fn steer_reaches_the_turn_or_is_queued() {
    let mut world = ready();
    let steer = |text: &str| PromptRequest { mode: RunMode::Steer, ..prompt_request(text) };
    let alone = submit(&mut world, steer("prompt alone")).unwrap();
    assert!(!alone.steered, "without a running turn, a steer becomes a prompt");
    prompt(&mut world, "Thello").unwrap();
    assert!(submit(&mut world, steer("left")).unwrap().steered);
    assert!(world.stdin().contains(&"steer left\n".to_owned()));
}

#[test]
fn idle_agent_is_ended_and_resumed_by_next_prompt() {
    let mut world = World::new(1, 1000);
    world.limits.runtime_idle_ms = 30_000;
    world.limits.probe_ms = 0;
    world.restart();
    prompt(&mut world, "prompt a").unwrap();
    let id = lease(&world);
    let used_ms = world.rows.session.last_activity_at_ms;
    assert_eq!(world.deadline_ms(), Some(used_ms + 30_000));
    world.advance_to_deadline();
    assert!(world.processes[&id].exit.is_some());
    assert_eq!((world.rows.session.lease_id, world.rows.session.state), (None, SessionState::Idle));
    assert_eq!(count_status(&world, "agent_rests"), 1);
    let next = prompt(&mut world, "prompt b").unwrap();
    assert_eq!(run_state(&world, next), RunState::Completed);
    assert!(world.stdin().contains(&"init session-1\n".to_owned()), "the same conversation");
}

#[test]
fn release_ends_the_process_of_an_idle_agent_only() {
    let release = || ActorCommand::Release { by: "ann".to_owned() };
    let mut world = started(|world| world.limits.probe_ms = 0);
    prompt(&mut world, "prompt a").unwrap();
    let id = lease(&world);
    world.command(release()).unwrap();
    assert!(world.processes[&id].exit.is_some());
    assert_eq!((world.rows.session.lease_id, world.rows.session.state), (None, SessionState::Idle));
    // Without a process there is nothing to do.
    world.command(release()).unwrap();
    assert_eq!(count_status(&world, "agent_rests"), 1);
    let next = prompt(&mut world, "prompt b").unwrap();
    assert_eq!(run_state(&world, next), RunState::Completed);
    // A running turn, and a conversation that would be lost.
    prompt(&mut world, "Thello").unwrap();
    assert_eq!(world.command(release()).unwrap_err().code, Code::Usage);
    let mut world = ready();
    world.emit("Runresumable\n");
    assert_eq!(world.command(release()).unwrap_err().code, Code::ResumeUnavailable);
    assert!(world.rows.session.lease_id.is_some());
}

#[test]
fn label_is_set_and_removed_until_the_session_closes() {
    let mut world = ready();
    for label in [Some("front".to_owned()), None] {
        world.command(ActorCommand::Label(label.clone())).unwrap();
        assert_eq!(world.rows.session.label, label);
    }
    world.command(ActorCommand::Close(CloseRequest::new("done"))).unwrap();
    let refused = world.command(ActorCommand::Label(None)).unwrap_err();
    assert_eq!(refused.code, Code::SessionClosed);
}

#[test]
fn changed_idle_timeout_applies_at_once() {
    let mut world = started(|world| world.limits.probe_ms = 0);
    prompt(&mut world, "prompt a").unwrap();
    let used_ms = world.rows.session.last_activity_at_ms;
    let actor = world.actor.as_mut().unwrap();
    for (window_ms, want) in [(0, None), (30_000, Some(used_ms + 30_000)), (0, None)] {
        let limits = ActorLimits { runtime_idle_ms: window_ms, ..world.limits.clone() };
        actor.configure(Ok(super::world::profile()), limits);
        assert_eq!(actor.deadline_ms(), want, "{window_ms}");
    }
}

#[test]
fn running_turn_and_unresumable_conversation_keep_the_agent() {
    let mut world = World::new(1, 1000);
    world.limits.runtime_idle_ms = 30_000;
    world.limits.probe_ms = 0;
    world.limits.silent_ms = 1_000_000;
    world.restart();
    prompt(&mut world, "Thello").unwrap();
    world.advance(500_000);
    assert!(world.rows.session.lease_id.is_some(), "a turn runs");
    world.emit("D\n");
    world.emit("Runresumable\n");
    world.advance(500_000);
    assert!(world.rows.session.lease_id.is_some(), "a conversation that cannot be resumed keeps its agent");
}

#[test]
fn timed_out_turn_fails_and_the_queue_continues() {
    let mut world = ready();
    world.command(ActorCommand::Set(Setting::TimeoutS(30))).unwrap();
    let hung = prompt(&mut world, "Thello").unwrap();
    let next = prompt(&mut world, "prompt b").unwrap();
    // The time limit survives a restart, since it counts from the start of the turn.
    world.now_ms += 20_000;
    world.restart();
    world.advance(9_999);
    assert_eq!(run_state(&world, hung), RunState::Running);
    world.advance(1);
    assert_eq!(run_state(&world, hung), RunState::Failed);
    let failure = error_of(&world, hung);
    assert_eq!((failure.code, failure.detail_code.as_deref()), (Code::Timeout, Some("TURN_TIMEOUT")));
    assert!(failure.message.contains("30s"), "{}", failure.message);
    assert_eq!(run_state(&world, next), RunState::Completed);
}

#[test]
fn timed_out_turn_ignoring_cancel_loses_its_process() {
    let mut world = ready();
    world.command(ActorCommand::Set(Setting::TimeoutS(30))).unwrap();
    let hung = prompt(&mut world, "Thello").unwrap();
    world.ignores_input = true;
    world.advance(30_000);
    assert_eq!(run_state(&world, hung), RunState::Running, "the agent is asked first");
    world.advance_to_deadline();
    assert_eq!(run_state(&world, hung), RunState::Failed);
    assert_eq!(error_of(&world, hung).code, Code::Timeout);
    world.ignores_input = false;
    let next = prompt(&mut world, "prompt b").unwrap();
    assert_eq!(run_state(&world, next), RunState::Completed);
}

#[test]
fn turn_without_reattach_fails_in_bounded_time() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let id = lease(&world);
    // The gateway restarts without a supervisor.
    world.refuse_attach = true;
    world.restart();
    let limit_ms = world.limits.reconcile_ms;
    let end_ms = world.now_ms + limit_ms;
    while world.now_ms < end_ms {
        assert_eq!(run_state(&world, run), RunState::Running);
        world.advance_to_deadline();
    }
    assert_eq!(run_state(&world, run), RunState::Failed);
    let failure = error_of(&world, run);
    assert_eq!((failure.code, failure.detail_code.as_deref()), (Code::Uncertain, Some("AGENT_NOT_FOUND")));
    assert_eq!(world.rows.session.state, SessionState::Idle, "the session is not stuck");
    assert!(world.processes[&id].exit.is_some(), "a process that still lives is ended");
}

#[test]
fn reattached_turn_continues() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    world.input(ActorInput::Disconnected);
    world.restart();
    world.advance(world.limits.reconcile_ms * 2);
    assert_eq!(run_state(&world, run), RunState::Running);
    world.emit("D\n");
    assert_eq!(run_state(&world, run), RunState::Completed);
}

#[test]
fn contradictory_rows_are_repaired() {
    let broken = |state: SessionState| {
        let mut world = ready();
        let run = prompt(&mut world, "Thello").unwrap();
        world.rows.session.state = state;
        world.restart();
        (world, run)
    };
    let (world, run) = broken(SessionState::Idle);
    assert_eq!((run_state(&world, run), error_of(&world, run).code), (RunState::Failed, Code::Uncertain));
    assert_eq!(world.rows.session.state, SessionState::Idle);
    let (world, run) = broken(SessionState::Closed);
    assert_eq!(run_state(&world, run), RunState::Cancelled);
    assert_eq!(world.rows.session.lease_id, None);
    let mut world = ready();
    world.rows.session.state = SessionState::Running;
    world.restart();
    let next = prompt(&mut world, "prompt a").unwrap();
    assert_eq!(run_state(&world, next), RunState::Completed, "a session without a running turn is not stuck");
}

#[test]
fn unresumable_session_needs_a_request_for_a_new_conversation() {
    // By a command, or with the prompt.
    for by_prompt in [false, true] {
        let mut world = ready();
        world.emit("Runresumable\n");
        world.end_process(ExitStatus::Exited(1));
        assert_eq!(code(prompt(&mut world, "prompt a")), Code::ResumeUnavailable);
        if !by_prompt {
            world.command(ActorCommand::NewConversation).unwrap();
        }
        let request = PromptRequest { new_conversation: by_prompt, ..prompt_request("prompt b") };
        let run = submit(&mut world, request).unwrap().run_id;
        assert_eq!(run_state(&world, run), RunState::Completed);
        assert_eq!(world.count_stdin("init -\n"), 2);
    }
}

#[test]
fn options_are_reapplied_to_the_next_process() {
    let mut world = ready();
    for setting in [
        Setting::Mode("plan".to_owned()),
        Setting::Model("big".to_owned()),
        Setting::Config { id: "effort".to_owned(), value: "low".to_owned() },
        Setting::Permission(PermissionMode::DenyAll),
        Setting::NonInteractive(NonInteractive::Fail),
    ] {
        world.command(ActorCommand::Set(setting)).unwrap();
    }
    let sent: Vec<String> = world.stdin().into_iter().filter(|text| text.starts_with("set")).collect();
    assert_eq!(sent.len(), 3, "the agent gets only its own settings: {sent:?}");
    assert_eq!(code(world.command(ActorCommand::Set(Setting::Mode("x".repeat(65))))), Code::Usage);
    world.end_process(ExitStatus::Exited(0));
    world.restart();
    prompt(&mut world, "prompt a").unwrap();
    let start_params = world.start_params.lock().unwrap().last().cloned().unwrap();
    assert_eq!(start_params.mode.as_deref(), Some("plan"));
    let pair = |id: &str, value: &str| (id.to_owned(), value.to_owned());
    assert_eq!(start_params.options, [pair("model", "big"), pair("effort", "low")]);
    assert_eq!(world.rows.session.options.permission, PermissionMode::DenyAll);
}

#[test]
fn changed_directory_restarts_agent_in_its_conversation() {
    let mut world = ready();
    prompt(&mut world, "prompt a").unwrap();
    assert_eq!(code(world.command(ActorCommand::Set(Setting::Cwd("w".to_owned())))), Code::Usage);
    world.command(ActorCommand::Set(Setting::Cwd("/other".to_owned()))).unwrap();
    assert_eq!(world.rows.session.lease_id, None);
    let run = prompt(&mut world, "Thello").unwrap();
    let start_params = world.start_params.lock().unwrap().last().cloned().unwrap();
    assert_eq!((start_params.cwd.as_str(), start_params.resume.as_deref()), ("/other", Some("session-1")));
    let refused = world.command(ActorCommand::Set(Setting::Cwd("/w".to_owned()))).unwrap_err();
    assert_eq!(refused.detail_code.as_deref(), Some("TURN_RUNS"));
    world.command(ActorCommand::Cancel(Some(run))).unwrap();
    world.emit("Runresumable\n");
    assert_eq!(code(world.command(ActorCommand::Set(Setting::Defaults))), Code::ResumeUnavailable);
}

#[test]
fn one_shot_session_ends_with_its_run() {
    for (script, state) in [("prompt a", RunState::Completed), ("Thello", RunState::Failed)] {
        let mut world = started(|world| world.rows.session.mode = SessionMode::Oneshot);
        let run = prompt(&mut world, script).unwrap();
        if state == RunState::Failed {
            world.end_process(ExitStatus::Signaled(9));
        }
        assert_eq!(run_state(&world, run), state);
        assert_eq!(world.rows.session.state, SessionState::Closed);
        assert_eq!(world.rows.session.lease_id, None);
        assert_eq!(world.count_stdin("init"), 1);
        assert_eq!(code(prompt(&mut world, "prompt b")), Code::SessionClosed);
    }
    let mut world = World::new(1, 1000);
    world.rows.session.mode = SessionMode::Oneshot;
    world.refuse_spawn = Some((RefusalCode::SpawnFailed, None));
    world.boot(None);
    prompt(&mut world, "prompt a").unwrap();
    assert_eq!(world.rows.session.state, SessionState::Closed);
}

#[test]
fn closed_session_stays_closed_after_restart() {
    let mut world = ready();
    world.ignores_close = true;
    world.close();
    world.ignores_close = false;
    world.restart();
    assert_eq!(world.rows.session.state, SessionState::Closed);
    assert_eq!(world.rows.session.lease_id, None, "the end of the process is requested again");
    assert_eq!(code(prompt(&mut world, "prompt a")), Code::SessionClosed);
}

#[test]
fn expired_session_is_closed_with_reason() {
    let mut world = ready();
    prompt(&mut world, "prompt a").unwrap();
    expire(&mut world, TimeoutKind::Session, None, true);
    assert_eq!(world.rows.session.state, SessionState::Closed);
    assert_eq!(world.rows.session.ending, Some(Ending::Expired));
    assert_eq!(world.rows.ended_bindings, ["session unused for 1m, the session timeout"]);
    assert_eq!(world.rows.session.lease_id, None, "its agent ends with it");
}

#[test]
fn expiry_of_the_last_binding_closes_the_session() {
    let id = BindingId::mint();
    let mut world = ready();
    expire(&mut world, TimeoutKind::BindingIdle, Some(id), false);
    assert_eq!(world.rows.session.state, SessionState::Idle);
    assert_eq!(count_status(&world, "unbound"), 1);
    let notice = world.rows.events.last().unwrap().payload.clone();
    assert!(notice.contains(&id.to_string()) && notice.contains("the idle timeout"), "{notice}");
    expire(&mut world, TimeoutKind::BindingMaxAge, Some(id), true);
    assert_eq!(world.rows.session.state, SessionState::Closed);
    let why = "bound here for 1m, the maximum age";
    assert_eq!(world.rows.ended_bindings.last().map(String::as_str), Some(why));
}

#[test]
fn activity_prevents_expiry() {
    let mut world = ready();
    prompt(&mut world, "prompt a").unwrap();
    let expiry = Expiry { at_ms: 0, source: TimeoutKind::Session, window_ms: 1, binding_id: None };
    let seen_ms = world.rows.session.last_activity_at_ms - 1;
    world.command(ActorCommand::Expire { expiry, seen_ms, closes: true }).unwrap();
    assert_eq!(world.rows.session.state, SessionState::Idle);
}

#[test]
fn busy_session_does_not_expire() {
    let mut world = ready();
    prompt(&mut world, "Thello").unwrap();
    expire(&mut world, TimeoutKind::Session, None, true);
    expire(&mut world, TimeoutKind::BindingIdle, Some(BindingId::mint()), true);
    assert_eq!(world.rows.session.state, SessionState::Running);
    assert!(world.rows.ended_bindings.is_empty());
}

#[test]
fn prompt_and_turn_end_touch_bindings_in_their_transaction() {
    let mut world = ready();
    world.now_ms = 50_000;
    prompt(&mut world, "Thello").unwrap();
    assert_eq!(world.rows.touched_ms, 50_000);
    world.now_ms = 60_000;
    world.emit("D\n");
    assert_eq!(world.rows.touched_ms, 60_000);
}

#[test]
fn permission_answer_is_recorded_under_its_key() {
    let mut world = ready();
    prompt(&mut world, "P").unwrap();
    let permission_id = world.rows.permissions.values().next().unwrap().permission_id();
    let command = answer_command(&permission_id, "yes");
    let key = acp_shared::ids::IdempotencyKey::mint();
    let keyed =
        IdempotencyRecord { scope: "permission".to_owned(), key: key.clone(), fingerprint: String::new() };
    world.input(ActorInput::Command { ticket: 900, command, keyed: Some(keyed) });
    assert!(world.rows.keys.contains(&format!("permission/{key}")));
}

#[test]
fn delayed_start_is_reported_once_and_has_no_start_timeout() {
    for code in [RefusalCode::CrashLoop, RefusalCode::QuotaExceeded] {
        let mut world = refused(code, Some(60_000));
        for _ in 0..3 {
            assert_eq!(count_status(&world, "agent_waits"), 1, "{code:?}: once for each lease");
            assert_eq!(world.rows.session.state, SessionState::Creating);
            world.advance_to_deadline();
        }
        let notice = world.rows.events.iter().find(|event| event.kind == K::Status).unwrap();
        let payload = &notice.payload;
        assert!(payload.contains("60000") && payload.contains(code.as_str()), "{payload}");
        world.refuse_spawn = None;
        world.advance_to_deadline();
        assert_eq!(world.rows.session.state, SessionState::Idle, "{code:?}");
    }
}

#[test]
fn exit_before_attach_needs_no_exit_event() {
    let mut world = ready();
    let run = prompt(&mut world, "Thello").unwrap();
    let id = lease(&world);
    world.silent_exit = true;
    world.exit(id, ExitStatus::Exited(3));
    world.restart();
    let failure = error_of(&world, run);
    assert!(failure.message.contains("exit code 3"), "{}", failure.message);
    let key = &world.rows.session.session_key;
    assert!(failure.message.contains(&format!("`acp-gateway logs {key}`")), "{}", failure.message);
}

#[test]
fn transitions_are_reported_with_from_event_and_to() {
    let mut world = ready();
    let run = prompt(&mut world, "prompt a").unwrap();
    world.close();
    let steps: Vec<String> = world
        .transitions
        .iter()
        .map(|step| match step {
            Transition::Session { from, event, to, .. } => {
                format!("session {} {} {}", from.as_str(), event.as_str(), to.as_str())
            }
            Transition::Run(step) => {
                assert_eq!(step.run_id, run);
                let from = step.from.map_or("none", RunState::as_str);
                let event = step.event.map_or("accepted", RunEvent::as_str);
                format!("run {from} {event} {}", step.to.as_str())
            }
            Transition::Refused { from, event, .. } => format!("{from} {event} refused"),
        })
        .collect();
    assert_eq!(
        steps,
        [
            "session creating opened idle",
            "run none accepted queued",
            "run queued started running",
            "session idle turn_started running",
            "run running completed completed",
            "session running turn_ended idle",
            "session idle closed closed",
        ]
    );
}
