//! Files and terminals under the permission modes: no effect without permission and no repeated question,
//! also if the gateway is killed at any moment.

use super::cases::{ask, prompt, ready_with, run_state};
use super::world::{World, answer_command, prompt_request};
use super::*;
use crate::backend::{AgentRequestKind, RpcError};
use crate::event::EventKind as K;
use crate::host::{FileContent, Inspection};
use crate::options::Setting;
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
        let is_same = old == Some(content);
        Ok(Inspection { path, is_same, old: old.cloned().map_or(FileContent::Absent, FileContent::Text) })
    }
}

/// Returns a session in a permission mode, with a running turn.
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
fn heard(world: &World) -> Vec<String> {
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

/// The agent's own question about an edit of these files.
fn edit(paths: &[&str]) -> String {
    let diffs: Vec<Value> =
        paths.iter().map(|path| json!({"type": "diff", "path": path, "newText": "x"})).collect();
    format!("P{}\n", json!({"toolCallId": "c", "kind": "edit", "content": diffs}))
}

/// The agent's own question about a command.
fn command(command: &Value) -> String {
    format!("P{}\n", json!({"toolCallId": "c", "kind": "execute", "rawInput": {"command": command}}))
}

#[test]
fn deny_all_refuses_reads_writes_and_commands_and_journals_each() {
    let (mut world, _) = running(PermissionMode::DenyAll);
    world.say("G/w/f\nW/w/f x\nCrm -rf /\n");
    assert_eq!(world.performed, []);
    assert_eq!(world.rows.requests.len(), 0);
    let heard = heard(&world);
    assert_eq!(heard.len(), 3);
    assert!(heard.iter().all(|text| text.contains("permission mode")), "{heard:?}");
    let want = ["read", "write", "run"].map(|kind| effect(kind, "refused", "mode"));
    assert_eq!(effects(&world), want);
}

#[test]
fn approve_all_asks_nobody_and_journals_each() {
    let (mut world, _) = running(PermissionMode::ApproveAll);
    world.say("G/w/f\nW/w/f x\nCls\n");
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
        world.say(&format!("C{given}\n"));
        let event = world.rows.events.iter().rfind(|event| event.kind == K::HostRequest).unwrap();
        let payload: Value = serde_json::from_str(&event.payload).unwrap();
        assert_eq!((&payload["command"], &payload["cwd"], &payload["env"]), (&json!("ls"), &dir, &env));
        assert!(!event.payload.contains("secret"));
    }
}

#[test]
fn ask_and_approve_reads_read_at_once_and_ask_before_a_write_and_a_command() {
    for mode in [PermissionMode::Ask, PermissionMode::ApproveReads] {
        let (mut world, _) = running(mode);
        world.disk.insert("/w/f".to_owned(), "old\n".to_owned());
        world.say("G/w/f\nW/w/f new\nCrm -rf x\n");
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
fn an_answer_begins_the_effect_or_refuses_it_wherever_the_gateway_dies() {
    for (option, begins) in [("allow_once", true), ("allow_always", true), ("reject_once", false)] {
        for (before, after) in [(false, false), (true, false), (false, true), (true, true)] {
            let (mut world, _) = running(PermissionMode::Ask);
            world.say("W/w/f new\n");
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
            assert_eq!(heard(&world).len(), usize::from(!begins), "{option}");
            assert_eq!(pending(&world).len(), 0);
            let settled = world.count(K::PermissionSettled);
            assert_eq!(settled, 1);
        }
    }
}

#[test]
fn a_kill_while_the_target_is_inspected_inspects_it_again() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.inspects_never = true;
    world.say("W/w/f new\n");
    assert_eq!((pending(&world).len(), world.rows.requests.len()), (0, 1));
    assert!(world.rows.requests.values().all(|row| row.state == RequestState::Received));
    world.inspects_never = false;
    world.restart();
    assert_eq!((pending(&world).len(), world.performed.len()), (1, 0));
}

#[test]
fn content_that_the_file_holds_already_is_answered_without_a_question() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.disk.insert("/w/f".to_owned(), "same".to_owned());
    world.say("W/w/f same\n");
    assert_eq!((pending(&world).len(), world.performed.len()), (0, 0));
    assert_eq!(heard(&world), ["answer Ok(\"{}\")\n"]);
    assert_eq!(effects(&world), [effect("write", "allowed", "unchanged")]);
}

#[test]
fn a_write_that_was_allowed_once_is_not_asked_about_once() {
    for again in [false, true] {
        let (mut world, _) = running(PermissionMode::Ask);
        world.say(&edit(&["/w/f"]));
        answer(&mut world, "yes");
        if again {
            world.restart();
        }
        world.say("W/w/f new\n");
        assert_eq!((pending(&world).len(), world.performed.len()), (0, 1));
        assert_eq!(effects(&world), [effect("write", "allowed", "granted")]);
        if again {
            world.restart();
        }
        world.say("W/w/f newer\n");
        assert_eq!(pending(&world).len(), 1, "a one-time answer grants nothing further, after a restart too");
    }
}

#[test]
fn a_permission_for_one_file_does_not_cover_another() {
    let read = format!("P{}\n", json!({"toolCallId": "c", "kind": "read", "locations": [{"path": "/w/b"}]}));
    let relative = edit(&["b", "/w/../w/b"]);
    for question in [edit(&["/w/a"]), read, relative, command(&json!("cat /w/b"))] {
        let (mut world, _) = running(PermissionMode::Ask);
        world.say(&question);
        answer(&mut world, "yes");
        world.say("W/w/b new\n");
        assert_eq!((pending(&world).len(), world.performed.len()), (1, 0), "{question}");
    }
}

#[test]
fn a_link_does_not_carry_a_permission_to_another_file() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.say(&edit(&["/w/a"]));
    answer(&mut world, "yes");
    // After the answer, the agent replaced the file by a link.
    world.links.insert("/w/a".to_owned(), "/w/b".to_owned());
    world.say("W/w/a new\n");
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
fn a_command_that_was_allowed_is_not_asked_about_in_any_of_its_forms() {
    let forms = [json!("ls -l /w"), json!(["ls", "-l", "/w"]), json!(["bash", "-lc", "ls -l /w"])];
    for form in &forms {
        let (mut world, _) = running(PermissionMode::Ask);
        world.say(&command(form));
        answer(&mut world, "yes");
        world.say("Cls -l /w\n");
        assert_eq!((pending(&world).len(), world.performed.len()), (0, 1), "{form}");
        world.say("Cls -l /w\n");
        assert_eq!(pending(&world).len(), 1, "{form}: once");
    }
}

#[test]
fn always_covers_the_kind_of_call_until_the_mode_changes() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.say("W/w/a 1\n");
    answer(&mut world, "allow_always");
    world.restart();
    world.say("W/w/b 2\nCls\n");
    assert_eq!(world.performed.iter().filter(|(_, again)| !again).count(), 2);
    assert_eq!(pending(&world).len(), 1, "a grant for writes does not cover commands");
    for setting in
        [Setting::Permission(PermissionMode::Ask), Setting::Mode("other".to_owned()), Setting::Defaults]
    {
        let mut options = world.rows.session.options.clone();
        assert!(!options.grants.is_empty());
        options.apply(&setting, (PermissionMode::Ask, NonInteractive::Deny));
        assert!(options.grants.is_empty(), "{setting:?}");
    }
}

#[test]
fn a_permission_ends_with_its_run() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.say(&edit(&["/w/f"]));
    answer(&mut world, "yes");
    world.say("D\n");
    prompt(&mut world, "Tagain").unwrap();
    world.say("W/w/f new\n");
    assert_eq!((pending(&world).len(), world.performed.len()), (1, 0));
}

#[test]
fn policy_answers_grant_nothing() {
    let (mut world, _) = running(PermissionMode::ApproveReads);
    let lie = json!({"toolCallId": "c", "kind": "read", "content": [{"type": "diff", "path": "/w/f", "newText": "x"}]});
    world.say(&format!("P{lie}\n"));
    assert_eq!(pending(&world).len(), 0, "the request is classified as a read");
    world.say("W/w/f x\n");
    assert_eq!((pending(&world).len(), world.performed.len()), (1, 0));
}

#[test]
fn nobody_to_ask_refuses_or_fails_the_run() {
    for (policy, fails) in [(NonInteractive::Deny, false), (NonInteractive::Fail, true)] {
        let mut world = ready_with(|options| options.non_interactive = policy);
        let request = PromptRequest { interactive: false, ..prompt_request("Thello") };
        let run = ask(&mut world, request).unwrap().run_id;
        world.say("W/w/f x\n");
        assert_eq!(effects(&world), [effect("write", "refused", "nobody")]);
        assert_eq!((heard(&world).len(), world.performed.len()), (1, 0));
        assert_eq!(run_state(&world, run), if fails { RunState::Failed } else { RunState::Running });
    }
}

#[test]
fn outside_of_a_turn_nobody_is_asked() {
    for policy in [NonInteractive::Deny, NonInteractive::Fail] {
        let mut world = ready_with(|options| options.non_interactive = policy);
        world.say("W/w/f x\nCls\n");
        assert_eq!((pending(&world).len(), world.performed.len(), heard(&world).len()), (0, 0, 2));
    }
}

#[test]
fn a_deadline_a_cancel_and_the_end_of_the_turn_refuse_what_was_asked() {
    type End = fn(&mut World, RunId);
    let deadline: End = |world, _| {
        world.advance(10_000);
    };
    let cancel: End = |world, run| {
        world.command(ActorCommand::Cancel(Some(run))).unwrap();
    };
    let finish: End = |world, _| world.say("D\n");
    for (what, end, reason) in
        [("deadline", deadline, "deadline"), ("cancel", cancel, "stopped"), ("end", finish, "stopped")]
    {
        let (mut world, run) = running(PermissionMode::Ask);
        world.say("W/w/f x\n");
        end(&mut world, run);
        assert_eq!(effects(&world), [effect("write", "refused", reason)], "{what}");
        assert_eq!((pending(&world).len(), world.performed.len(), heard(&world).len()), (0, 0, 1), "{what}");
        assert_eq!(world.rows.requests.len(), 0, "{what}");
    }
}

#[test]
fn nothing_is_begun_once_the_turn_is_being_stopped() {
    for mode in [PermissionMode::Ask, PermissionMode::ApproveAll] {
        let (mut world, run) = running(mode);
        world.deaf = true;
        world.command(ActorCommand::Cancel(Some(run))).unwrap();
        world.say("W/w/f x\nCls\n");
        assert_eq!((pending(&world).len(), world.performed.len()), (0, 0), "{mode:?}");
        assert_eq!(heard(&world).len(), 2, "{mode:?}");
    }
}

#[test]
fn a_target_outside_of_the_roots_is_an_error_and_no_question() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.say("W/etc/passwd x\n");
    assert_eq!((pending(&world).len(), world.performed.len()), (0, 0));
    assert!(heard(&world)[0].contains("outside"));
    assert_eq!(effects(&world), [effect("write", "failed", "")]);
}

#[test]
fn an_effect_that_fails_is_journaled_as_failed() {
    let (mut world, _) = running(PermissionMode::ApproveAll);
    world.say("W/w/f x\n");
    let (at, _) = world.performed[0];
    let error = RpcError { code: -32603, message: "disk full".to_owned() };
    world.input(ActorInput::RequestDone { at, outcome: Err(error) });
    assert_eq!(effects(&world)[1], effect("write", "failed", ""));
}

/// A grant is consumed by the effect it was given for, even if the file already has the content.
#[test]
fn content_that_the_file_holds_already_uses_the_permission_up() {
    let (mut world, _) = running(PermissionMode::Ask);
    world.say(&edit(&["/w/f"]));
    answer(&mut world, "yes");
    world.disk.insert("/w/f".to_owned(), "x".to_owned());
    world.say("W/w/f x\n");
    assert_eq!(effects(&world), [effect("write", "allowed", "unchanged")]);
    world.say("W/w/f other\n");
    let got = (pending(&world).len(), world.performed.len());
    assert_eq!(got, (1, 0), "a one-time answer grants nothing further");
}

/// A changed permission mode decides pending questions; their old buttons have no effect.
#[test]
fn another_permission_mode_decides_about_the_questions_that_wait() {
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
        for again in [false, true] {
            let (mut world, _) = running(PermissionMode::Ask);
            world.say(&format!("W/w/f x\nCls\n{own}"));
            let asked: Vec<String> = pending(&world).iter().map(|row| row.permission_id()).collect();
            assert_eq!(asked.len(), 3);
            if again {
                world.restart();
            }
            world.command(ActorCommand::Set(Setting::Permission(mode))).unwrap();
            assert_eq!((pending(&world).len(), effects(&world)), (waits, want.clone()), "{mode:?}");
            let is_allowed = mode == PermissionMode::ApproveAll;
            assert_eq!(world.performed.len(), if is_allowed { 2 } else { 0 }, "{mode:?}");
            let own = heard(&world).iter().any(|text| text.contains(if is_allowed { "yes" } else { "no" }));
            assert_eq!(own, waits == 0, "{mode:?}: the agent's own question");
            let settled = world.count(K::PermissionSettled);
            assert_eq!(settled, 3 - waits);
            for permission_id in asked.into_iter().filter(|_| waits == 0) {
                let late = answer_command(&permission_id, "allow_once");
                assert!(world.command(late).is_err(), "{mode:?}: an old button");
            }
        }
    }
}

/// Allowed effects that may not have been sent are recalled when the turn is cancelled or ends, and by a
/// stricter mode.
#[test]
fn an_effect_that_was_not_sent_is_recalled() {
    type End = fn(&mut World, RunId);
    let cancel: End = |world, run| {
        world.deaf = true;
        world.command(ActorCommand::Cancel(Some(run))).unwrap();
    };
    let finish: End = |world, _| world.say("D\n");
    let stricter: End = |world, _| {
        world.command(ActorCommand::Set(Setting::Permission(PermissionMode::DenyAll))).unwrap();
    };
    let same: End = |world, _| {
        world.command(ActorCommand::Set(Setting::Permission(PermissionMode::ApproveAll))).unwrap();
    };
    for (end, recalled) in [(cancel, 2), (finish, 2), (stricter, 2), (same, 0)] {
        let (mut world, run) = running(PermissionMode::ApproveAll);
        world.say("G/w/f\nW/w/f x\nCls\n");
        assert_eq!((world.performed.len(), world.recalled.len()), (3, 0));
        end(&mut world, run);
        let effects: Vec<u64> = world.performed.iter().skip(1).map(|(at, _)| *at).take(recalled).collect();
        assert_eq!(world.recalled, effects, "reads are not recalled");
    }
}
