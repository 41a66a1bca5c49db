//! Files and terminals under the permission modes: no effect without permission and no repeated question,
//! also if the gateway is killed at any moment.

use super::decisions::{prompt, ready_with, run_state, submit};
use super::world::{World, answer_command, prompt_request};
use super::*;
use crate::backend::AgentRequestKind;
use crate::event::EventKind as K;
use crate::host::{FileContent, Inspection};
use crate::jsonrpc::RpcError;
use crate::options::{PermissionDefaults, Setting};
use crate::request::PromptRequest;
use crate::rows::{NonInteractive, PermissionMode, RequestState};
use serde_json::{Value, json};

impl World {
    /// The driver's inspection of the target of a write.
    pub(super) fn inspect(&self, row: &AgentRequestRow) -> Result<Inspection, RpcError> {
        let AgentRequestKind::FsWrite { path, content } = &row.request.what else { panic!("{row:?}") };
        let path = self.links.get(path).unwrap_or(path).clone();
        if !path.starts_with("/w/") {
            return Err(RpcError { code: -32602, message: format!("{path}: outside") });
        }
        let old = self.disk.get(&path);
        let is_same = old.map(String::as_str) == Some(&**content);
        Ok(Inspection { path, is_same, old: old.cloned().map_or(FileContent::Absent, FileContent::Text) })
    }
}

fn running(mode: PermissionMode) -> (World, RunId) {
    let mut world = ready_with(|options| options.permission = mode);
    let run = prompt(&mut world, "Thello").unwrap();
    (world, run)
}

fn pending(world: &World) -> Vec<&PermissionRow> {
    world.rows.permissions.values().collect()
}

fn answer(world: &mut World, option: &str) {
    let id = pending(world)[0].permission_id();
    world.command(answer_command(&id, option)).unwrap();
}

/// Answers that the agent received: `ok` or the error's text.
fn answers(world: &World) -> Vec<String> {
    world.stdin().into_iter().filter(|text| text.starts_with("answer")).collect()
}

/// Events of effects: effect, outcome and reason.
fn effects(world: &World) -> Vec<(String, String, String)> {
    let text = |payload: &Value, name: &str| payload[name].as_str().unwrap_or_default().to_owned();
    let of_kind = world.rows.events.iter().filter(|event| event.kind == K::HostRequest);
    of_kind
        .map(|event| {
            let payload: Value = serde_json::from_str(&event.payload).unwrap();
            (text(&payload, "effect"), text(&payload, "outcome"), text(&payload, "reason"))
        })
        .collect()
}

fn effect(kind: &str, outcome: &str, reason: &str) -> (String, String, String) {
    (kind.to_owned(), outcome.to_owned(), reason.to_owned())
}

fn edit(paths: &[&str]) -> String {
    let diffs: Vec<Value> =
        paths.iter().map(|path| json!({"type": "diff", "path": path, "newText": "x"})).collect();
    format!("P{}\n", json!({"toolCallId": "c", "kind": "edit", "content": diffs}))
}

fn command(command: &Value) -> String {
    format!("P{}\n", json!({"toolCallId": "c", "kind": "execute", "rawInput": {"command": command}}))
}

#[test]
fn deny_all_refuses_reads_writes_and_commands_and_journals_each() {
    let (mut world, _) = running(PermissionMode::DenyAll);
    world.emit("G/w/f\nW/w/f x\nCrm -rf /\n");
    assert_eq!(world.performed, []);
    assert_eq!(world.rows.requests.len(), 0);
    let received = answers(&world);
    assert_eq!(received.len(), 3);
    assert!(received.iter().all(|text| text.contains("permission mode")), "{received:?}");
    let want = ["read", "write", "run"].map(|kind| effect(kind, "refused", "mode"));
    assert_eq!(effects(&world), want);
}

#[test]
fn approve_all_performs_without_questions_and_journals_each() {
    let (mut world, _) = running(PermissionMode::ApproveAll);
    world.emit("G/w/f\nW/w/f x\nCls\n");
    assert_eq!((world.performed.len(), pending(&world).len()), (3, 0));
    let want = ["read", "write", "run"].map(|kind| effect(kind, "allowed", "mode"));
    assert_eq!(effects(&world), want);
}

/// Nobody was asked, so the journal alone tells what surrounded the command.
#[test]
fn effect_of_a_command_names_its_directory_and_variables() {
    let (mut world, _) = running(PermissionMode::ApproveAll);
    let cwd = world.rows.session.cwd.clone();
    for (given, dir, env) in [
        (
            json!({"command": "ls", "cwd": "/elsewhere", "env": "LD_PRELOAD"}),
            json!("/elsewhere"),
            json!(["LD_PRELOAD"]),
        ),
        (json!({"command": "ls", "cwd": cwd}), Value::Null, Value::Null),
    ] {
        world.emit(&format!("C{given}\n"));
        let event = world.rows.events.iter().rfind(|event| event.kind == K::HostRequest).unwrap();
        let payload: Value = serde_json::from_str(&event.payload).unwrap();
        assert_eq!((&payload["command"], &payload["cwd"], &payload["env"]), (&json!("ls"), &dir, &env));
        assert!(!event.payload.contains("secret"));
    }
}

#[test]
fn ask_modes_read_at_once_and_ask_before_writes_and_commands() {
    for mode in [PermissionMode::Ask, PermissionMode::ApproveReads] {
        let (mut world, _) = running(mode);
        world.disk.insert("/w/f".to_owned(), "old\n".to_owned());
        world.emit("G/w/f\nW/w/f new\nCrm -rf x\n");
        assert_eq!(world.performed.len(), 1, "the read");
        let rows = pending(&world);
        assert_eq!(rows.len(), 2);
        let params = |row: &PermissionRow| serde_json::from_str::<Value>(&row.request.params).unwrap();
        let (write, run) = (params(rows[0]), params(rows[1]));
        assert_eq!(write["toolCall"]["content"][0]["oldText"], "old\n");
        assert_eq!(write["toolCall"]["content"][0]["newText"], "new");
        assert_eq!(write["toolCall"]["locations"][0]["path"], "/w/f");
        assert_eq!(run["toolCall"]["rawInput"]["command"], "rm -rf x");
        let kinds: Vec<&str> =
            run["options"].as_array().unwrap().iter().filter_map(|option| option["kind"].as_str()).collect();
        assert_eq!(kinds, ["allow_once", "allow_always", "reject_once"]);
    }
}

#[test]
fn answer_decides_the_effect_across_restarts() {
    for (option, begins) in [("allow_once", true), ("allow_always", true), ("reject_once", false)] {
        for (before, after) in [(false, false), (true, false), (false, true), (true, true)] {
            let (mut world, _) = running(PermissionMode::Ask);
            world.emit("W/w/f new\n");
            let at = pending(&world)[0].request.at;
            if before {
                world.restart();
                assert_eq!(pending(&world).len(), 1, "asked once");
                assert_eq!(world.performed, [], "nothing is done before the answer");
            }
            answer(&mut world, option);
            if after {
                world.restart();
            }
            assert_eq!(world.performed.first(), begins.then_some(&(at, false)), "{option}");
            assert_eq!(answers(&world).len(), usize::from(!begins), "{option}");
            assert_eq!(pending(&world).len(), 0);
            let settled = world.count(K::PermissionSettled);
            assert_eq!(settled, 1);
        }
    }
}

#[test]
fn interrupted_inspection_is_repeated() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.inspections_hang = true;
    world.emit("W/w/f new\n");
    assert_eq!((pending(&world).len(), world.rows.requests.len()), (0, 1));
    assert!(world.rows.requests.values().all(|row| row.state == RequestState::Received));
    world.inspections_hang = false;
    world.restart();
    assert_eq!((pending(&world).len(), world.performed.len()), (1, 0));
}

#[test]
fn unchanged_content_needs_no_question() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.disk.insert("/w/f".to_owned(), "same".to_owned());
    world.emit("W/w/f same\n");
    assert_eq!((pending(&world).len(), world.performed.len()), (0, 0));
    assert_eq!(answers(&world), ["answer Ok(\"{}\")\n"]);
    assert_eq!(effects(&world), [effect("write", "allowed", "unchanged")]);
}

#[test]
fn allowed_write_skips_one_question() {
    for restarts in [false, true] {
        let (mut world, _) = running(PermissionMode::Ask);
        world.emit(&edit(&["/w/f"]));
        answer(&mut world, "yes");
        if restarts {
            world.restart();
        }
        world.emit("W/w/f new\n");
        assert_eq!((pending(&world).len(), world.performed.len()), (0, 1));
        assert_eq!(effects(&world), [effect("write", "allowed", "granted")]);
        if restarts {
            world.restart();
        }
        world.emit("W/w/f newer\n");
        assert_eq!(pending(&world).len(), 1, "a one-time answer grants nothing further, after a restart too");
    }
}

#[test]
fn grant_covers_only_its_file() {
    let read = format!("P{}\n", json!({"toolCallId": "c", "kind": "read", "locations": [{"path": "/w/b"}]}));
    let relative = edit(&["b", "/w/../w/b"]);
    for question in [edit(&["/w/a"]), read, relative, command(&json!("cat /w/b"))] {
        let (mut world, _) = running(PermissionMode::Ask);
        world.emit(&question);
        answer(&mut world, "yes");
        world.emit("W/w/b new\n");
        assert_eq!((pending(&world).len(), world.performed.len()), (1, 0), "{question}");
    }
}

#[test]
fn grant_does_not_follow_links() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.emit(&edit(&["/w/a"]));
    answer(&mut world, "yes");
    // After the answer, the agent replaced the file by a link.
    world.links.insert("/w/a".to_owned(), "/w/b".to_owned());
    world.emit("W/w/a new\n");
    assert_eq!((pending(&world).len(), world.performed.len()), (1, 0));
    assert!(
        pending(&world)[0].request.params.contains("/w/b"),
        "the question names the file that would be written"
    );
    world.links.clear();
    answer(&mut world, "allow_once");
    let row = world.rows.requests.values().next().unwrap();
    assert!(
        format!("{:?}", row.request.what).contains("/w/b"),
        "the inspected file is written, even if the link has changed"
    );
}

#[test]
fn allowed_command_skips_one_question_in_any_form() {
    let forms = [json!("ls -l /w"), json!(["ls", "-l", "/w"]), json!(["bash", "-lc", "ls -l /w"])];
    for form in &forms {
        let (mut world, _) = running(PermissionMode::Ask);
        world.emit(&command(form));
        answer(&mut world, "yes");
        world.emit("Cls -l /w\n");
        assert_eq!((pending(&world).len(), world.performed.len()), (0, 1), "{form}");
        world.emit("Cls -l /w\n");
        assert_eq!(pending(&world).len(), 1, "{form}: once");
    }
}

#[test]
fn always_grant_covers_its_kind_until_mode_changes() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.emit("W/w/a 1\n");
    answer(&mut world, "allow_always");
    world.restart();
    world.emit("W/w/b 2\nCls\n");
    assert_eq!(world.performed.iter().filter(|(_, restarts)| !restarts).count(), 2);
    assert_eq!(pending(&world).len(), 1, "a grant for writes does not cover commands");
    for setting in
        [Setting::Permission(PermissionMode::Ask), Setting::Mode("other".to_owned()), Setting::Defaults]
    {
        let mut options = world.rows.session.options.clone();
        assert!(!options.grants.is_empty());
        let defaults =
            PermissionDefaults { permission: PermissionMode::Ask, non_interactive: NonInteractive::Deny };
        options.apply(&setting, defaults);
        assert!(options.grants.is_empty(), "{setting:?}");
    }
}

#[test]
fn grant_ends_with_its_run() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.emit(&edit(&["/w/f"]));
    answer(&mut world, "yes");
    world.emit("D\n");
    prompt(&mut world, "Tagain").unwrap();
    world.emit("W/w/f new\n");
    assert_eq!((pending(&world).len(), world.performed.len()), (1, 0));
}

#[test]
fn policy_answers_grant_nothing() {
    let (mut world, _) = running(PermissionMode::ApproveReads);
    let lie = json!({"toolCallId": "c", "kind": "read", "content": [{"type": "diff", "path": "/w/f", "newText": "x"}]});
    world.emit(&format!("P{lie}\n"));
    assert_eq!(pending(&world).len(), 0, "the request is classified as a read");
    world.emit("W/w/f x\n");
    assert_eq!((pending(&world).len(), world.performed.len()), (1, 0));
}

#[test]
fn missing_approver_refuses_or_fails_the_run() {
    for (policy, fails) in [(NonInteractive::Deny, false), (NonInteractive::Fail, true)] {
        let mut world = ready_with(|options| options.non_interactive = policy);
        let request = PromptRequest { interactive: false, ..prompt_request("Thello") };
        let run = submit(&mut world, request).unwrap().run_id;
        world.emit("W/w/f x\n");
        assert_eq!(effects(&world), [effect("write", "refused", "nobody")]);
        assert_eq!((answers(&world).len(), world.performed.len()), (1, 0));
        assert_eq!(run_state(&world, run), if fails { RunState::Failed } else { RunState::Running });
    }
}

#[test]
fn requests_outside_turns_are_refused() {
    for policy in [NonInteractive::Deny, NonInteractive::Fail] {
        let mut world = ready_with(|options| options.non_interactive = policy);
        world.emit("W/w/f x\nCls\n");
        assert_eq!((pending(&world).len(), world.performed.len(), answers(&world).len()), (0, 0, 2));
    }
}

#[test]
fn deadline_cancel_and_turn_end_refuse_pending_requests() {
    type End = fn(&mut World, RunId);
    let deadline: End = |world, _| {
        world.advance(10_000);
    };
    let cancel: End = |world, run| {
        world.command(ActorCommand::Cancel(Some(run))).unwrap();
    };
    let finish: End = |world, _| world.emit("D\n");
    for (case, end, reason) in
        [("deadline", deadline, "deadline"), ("cancel", cancel, "stopped"), ("end", finish, "stopped")]
    {
        let (mut world, run) = running(PermissionMode::Ask);
        world.emit("W/w/f x\n");
        end(&mut world, run);
        assert_eq!(effects(&world), [effect("write", "refused", reason)], "{case}");
        assert_eq!(
            (pending(&world).len(), world.performed.len(), answers(&world).len()),
            (0, 0, 1),
            "{case}"
        );
        assert_eq!(world.rows.requests.len(), 0, "{case}");
    }
}

#[test]
fn stopping_turn_starts_no_effects() {
    for mode in [PermissionMode::Ask, PermissionMode::ApproveAll] {
        let (mut world, run) = running(mode);
        world.ignores_input = true;
        world.command(ActorCommand::Cancel(Some(run))).unwrap();
        world.emit("W/w/f x\nCls\n");
        assert_eq!((pending(&world).len(), world.performed.len()), (0, 0), "{mode:?}");
        assert_eq!(answers(&world).len(), 2, "{mode:?}");
    }
}

#[test]
fn target_outside_roots_is_an_error() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.emit("W/etc/passwd x\n");
    assert_eq!((pending(&world).len(), world.performed.len()), (0, 0));
    assert!(answers(&world)[0].contains("outside"));
    assert_eq!(effects(&world), [effect("write", "failed", "")]);
}

#[test]
fn failed_effect_is_journaled() {
    let (mut world, _) = running(PermissionMode::ApproveAll);
    world.emit("W/w/f x\n");
    let (at, _) = world.performed[0];
    let error = RpcError { code: -32603, message: "disk full".to_owned() };
    world.input(ActorInput::RequestDone { at, outcome: Err(error) });
    assert_eq!(effects(&world)[1], effect("write", "failed", ""));
}

/// A grant is consumed by the effect it was given for, even if the file already has the content.
#[test]
fn unchanged_content_consumes_the_grant() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.emit(&edit(&["/w/f"]));
    answer(&mut world, "yes");
    world.disk.insert("/w/f".to_owned(), "x".to_owned());
    world.emit("W/w/f x\n");
    assert_eq!(effects(&world), [effect("write", "allowed", "unchanged")]);
    world.emit("W/w/f other\n");
    let got = (pending(&world).len(), world.performed.len());
    assert_eq!(got, (1, 0), "a one-time answer grants nothing further");
}

/// A changed permission mode decides pending questions; their old buttons have no effect.
#[test]
fn changed_mode_decides_pending_questions() {
    let own = edit(&["/w/g"]);
    for (mode, waits, want) in [
        (
            PermissionMode::DenyAll,
            0,
            vec![effect("write", "refused", "mode"), effect("run", "refused", "mode")],
        ),
        (
            PermissionMode::ApproveAll,
            0,
            vec![effect("write", "allowed", "mode"), effect("run", "allowed", "mode")],
        ),
        (PermissionMode::ApproveReads, 3, vec![]),
        (PermissionMode::Ask, 3, vec![]),
    ] {
        for restarts in [false, true] {
            let (mut world, _) = running(PermissionMode::Ask);
            world.emit(&format!("W/w/f x\nCls\n{own}"));
            let ids: Vec<String> = pending(&world).iter().map(|row| row.permission_id()).collect();
            assert_eq!(ids.len(), 3);
            if restarts {
                world.restart();
            }
            world.command(ActorCommand::Set(Setting::Permission(mode))).unwrap();
            assert_eq!((pending(&world).len(), effects(&world)), (waits, want.clone()), "{mode:?}");
            let is_allowed = mode == PermissionMode::ApproveAll;
            assert_eq!(world.performed.len(), if is_allowed { 2 } else { 0 }, "{mode:?}");
            let own = answers(&world).iter().any(|text| text.contains(if is_allowed { "yes" } else { "no" }));
            assert_eq!(own, waits == 0, "{mode:?}: the agent's own question");
            let settled = world.count(K::PermissionSettled);
            assert_eq!(settled, 3 - waits);
            for permission_id in ids.into_iter().filter(|_| waits == 0) {
                let late = answer_command(&permission_id, "allow_once");
                assert!(world.command(late).is_err(), "{mode:?}: an old button");
            }
        }
    }
}

/// Allowed effects that may not have been sent are recalled when the turn is cancelled or ends, and by a
/// stricter mode.
#[test]
fn unsent_effect_is_recalled() {
    type End = fn(&mut World, RunId);
    let cancel: End = |world, run| {
        world.ignores_input = true;
        world.command(ActorCommand::Cancel(Some(run))).unwrap();
    };
    let finish: End = |world, _| world.emit("D\n");
    let stricter: End = |world, _| {
        world.command(ActorCommand::Set(Setting::Permission(PermissionMode::DenyAll))).unwrap();
    };
    let same: End = |world, _| {
        world.command(ActorCommand::Set(Setting::Permission(PermissionMode::ApproveAll))).unwrap();
    };
    for (end, recalled) in [(cancel, 2), (finish, 2), (stricter, 2), (same, 0)] {
        let (mut world, run) = running(PermissionMode::ApproveAll);
        world.emit("G/w/f\nW/w/f x\nCls\n");
        assert_eq!((world.performed.len(), world.recalled.len()), (3, 0));
        end(&mut world, run);
        let effects: Vec<u64> = world.performed.iter().skip(1).map(|(at, _)| *at).take(recalled).collect();
        assert_eq!(world.recalled, effects, "reads are not recalled");
    }
}

/// The recall is committed with the change that caused it: a restart carries out a command as recalled.
#[test]
fn recall_of_a_command_survives_restart() {
    type End = fn(&mut World);
    let stricter: End = |world| {
        world.command(ActorCommand::Set(Setting::Permission(PermissionMode::DenyAll))).unwrap();
    };
    let finish: End = |world| world.emit("D\n");
    let nothing: End = |_| {};
    for (end, is_recalled) in [(stricter, true), (finish, true), (nothing, false)] {
        let (mut world, _) = running(PermissionMode::ApproveAll);
        world.emit("Cls\n");
        end(&mut world);
        world.restart();
        let (at, again) = *world.performed.last().unwrap();
        assert_eq!((again, world.rows.requests[&at].request.is_recalled), (true, is_recalled));
    }
}
