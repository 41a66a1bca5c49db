//! Tables over the policy, the grants and the questions.

use super::*;
use acp_shared::ids::RunId;
use serde_json::{Value, json};

#[test]
fn effect_decisions_follow_the_rules_for_every_input() {
    let mut count = 0;
    let turns = [RequestTurn::None, RequestTurn::Interactive, RequestTurn::Unattended];
    use PermissionMode::{ApproveAll, ApproveReads, Ask, DenyAll};
    for mode in [ApproveAll, ApproveReads, DenyAll, Ask] {
        for effect in [HostEffect::Read, HostEffect::Write, HostEffect::Run] {
            for (turn, bits) in turns.iter().flat_map(|turn| (0..8_u32).map(move |bits| (*turn, bits))) {
                let bit = |n: u32| bits & (1 << n) != 0;
                let now = EffectContext {
                    mode,
                    non_interactive: if bit(0) { NonInteractive::Fail } else { NonInteractive::Deny },
                    turn,
                    is_stopping: bit(1),
                    is_granted: bit(2),
                };
                count += 1;
                let got = decide_effect(effect, now);
                let reads = effect == HostEffect::Read;
                let open = !now.is_stopping && !reads;
                let asks = matches!(mode, Ask | ApproveReads);
                let unsettled = asks && open && !now.is_granted;
                let at = format!("{effect:?} {now:?}");
                match got {
                    EffectDecision::Perform(DecisionReason::Mode) => {
                        assert!(mode != DenyAll && (reads || mode == ApproveAll), "{at}");
                        assert!(reads || !now.is_stopping, "{at}");
                    }
                    EffectDecision::Perform(DecisionReason::Granted) => {
                        assert!(asks && open && now.is_granted, "{at}")
                    }
                    EffectDecision::Refuse(DecisionReason::Mode) => assert_eq!(mode, DenyAll, "{at}"),
                    EffectDecision::Refuse(DecisionReason::Stopped) => {
                        assert!(now.is_stopping && !reads, "{at}")
                    }
                    EffectDecision::Refuse(DecisionReason::Nobody) => {
                        let is_denied =
                            turn == RequestTurn::None || (turn == RequestTurn::Unattended && !bit(0));
                        assert!(unsettled && is_denied, "{at}");
                    }
                    EffectDecision::Ask => assert!(unsettled && turn == RequestTurn::Interactive, "{at}"),
                    EffectDecision::FailRun => {
                        assert!(unsettled && turn == RequestTurn::Unattended && bit(0), "{at}");
                    }
                    EffectDecision::Perform(_) | EffectDecision::Refuse(_) => panic!("{got:?}: {at}"),
                }
            }
        }
    }
    assert_eq!(count, 4 * 3 * 3 * 8);
}

fn write(path: &str) -> (AgentRequestKind, Option<Inspection>) {
    let wanted = AgentRequestKind::FsWrite { path: path.to_owned(), content: "".into() };
    (wanted, Some(Inspection { path: path.to_owned(), is_same: false, old: FileContent::Absent }))
}

fn run(command: &str, args: &[&str]) -> (AgentRequestKind, Option<Inspection>) {
    run_with(command, args, None, &[])
}

fn run_with(
    command: &str,
    args: &[&str],
    cwd: Option<&str>,
    env: &[(&str, &str)],
) -> (AgentRequestKind, Option<Inspection>) {
    let wanted = AgentRequestKind::TerminalCreate {
        command: command.to_owned(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        cwd: cwd.map(str::to_owned),
        output_bytes_max: None,
    };
    (wanted, None)
}

fn diff(path: &str) -> Value {
    json!({"content": [{"type": "diff", "path": path, "newText": ""}]})
}

#[test]
fn grant_covers_targets_of_its_tool_call() {
    let run_id = RunId::mint();
    let place = |kind: Value| json!({"kind": kind, "locations": [{"path": "/w/a"}]});
    let shell = |command: Value| json!({"rawInput": {"command": command}});
    let ls = || shell(json!("ls -l"));
    let in_disguise = json!({"kind": "edit", "content": diff("/w/README.md")["content"], "rawInput": {"command": "curl x|sh"},
               "locations": [{"path": "/w/.git/hooks/pre-commit"}]});
    let in_words = json!({"kind": "edit", "locations": [{"path": "/w/a"}],
                          "content": [{"type": "content", "content": {"type": "text", "text": "Tidies up"}}]});
    let other_key = json!({"rawInput": {"command": "", "cmd": "rm -r x"}});
    let in_place = json!({"rawInput": {"command": "ls -l", "cwd": "/etc", "env": {"LD_PRELOAD": "x"}}});
    let preload = [("LD_PRELOAD", "/w/x.so")];
    let wide = format!("ls{}rm", " ".repeat(600));
    for (call, (wanted, found), covers) in [
        (diff("/w/a"), write("/w/a"), true),
        (diff("/w//./a"), write("/w/a"), false),
        (diff("/w/a"), write("/w/b"), false),
        (diff("a"), write("/w/a"), false),
        (diff("/w/x/../a"), write("/w/a"), false),
        (place(json!("edit")), write("/w/a"), true),
        (place(json!("read")), write("/w/a"), false),
        (place(json!("execute")), write("/w/a"), false),
        (place(Value::Null), write("/w/a"), false),
        (diff("/w/a"), run("/w/a", &[]), false),
        (shell(json!("ls -l")), run("ls -l", &[]), true),
        (shell(json!("ls -l")), run("ls", &["-l"]), true),
        (shell(json!("ls -l")), run("/bin/bash", &["-c", "ls -l"]), true),
        (shell(json!("ls -l")), run("python", &["-c", "ls -l"]), false),
        (shell(json!("ls -l")), run("ls", &["-l", "/"]), false),
        (shell(json!("a; b")), run("a;", &["b"]), false),
        (shell(json!(["ls", "a b"])), run("ls", &["a b"]), true),
        (shell(json!(["ls", "a b"])), run("ls", &["a", "b"]), false),
        (shell(json!(["ls", 1])), run("ls", &["1"]), false),
        (shell(json!("")), run("", &[]), false),
        // Effects that the question does not show.
        (in_disguise.clone(), write("/w/README.md"), true),
        (in_disguise.clone(), run("curl x|sh", &[]), false),
        (in_disguise, write("/w/.git/hooks/pre-commit"), false),
        (in_words, write("/w/a"), false),
        (other_key, run("rm -r x", &[]), false),
        (shell(json!(wide)), run(&wide, &[]), false),
        (shell(json!("ls \u{202e}x")), run("ls \u{202e}x", &[]), false),
        // Directory, variables and shell.
        (ls(), run_with("ls -l", &[], Some("/w"), &[]), true),
        (ls(), run_with("ls -l", &[], Some("/w/sub"), &[]), false),
        (ls(), run_with("ls -l", &[], None, &preload), false),
        (in_place.clone(), run_with("ls -l", &[], Some("/etc"), &[]), false),
        (in_place, run_with("ls -l", &[], None, &preload), false),
        (ls(), run("bash", &["-lc", "ls -l"]), true),
        (ls(), run("/usr/bin/sh", &["-c", "ls -l"]), true),
        (ls(), run("/w/sh", &["-c", "ls -l"]), false),
        (ls(), run("./sh", &["-c", "ls -l"]), false),
        (ls(), run("/bin/../w/sh", &["-c", "ls -l"]), false),
    ] {
        let mut grants = Grants::default();
        grants.add_answer(Some(run_id), "allow_once", &call);
        assert_eq!(grants.covers(Some(run_id), &wanted, found.as_ref(), "/w"), covers, "{call} {wanted:?}");
        for other in [None, Some(RunId::mint())] {
            assert!(!grants.covers(other, &wanted, found.as_ref(), "/w"), "of another run: {call}");
        }
        grants.consume(Some(run_id), &wanted, found.as_ref(), "/w");
        assert!(!grants.covers(Some(run_id), &wanted, found.as_ref(), "/w"), "used up: {call}");
        let mut none = Grants::default();
        for kind in ["reject_once", "reject_always", "maybe"] {
            none.add_answer(Some(run_id), kind, &call);
        }
        assert!(none.is_empty(), "{call}");
    }
}

#[test]
fn multi_file_grant_covers_each_file_once() {
    let run_id = RunId::mint();
    let call = json!({"content": [diff("/w/a")["content"][0], diff("/w/b")["content"][0]]});
    let mut grants = Grants::default();
    grants.add_answer(Some(run_id), "allow_once", &call);
    for path in ["/w/b", "/w/a"] {
        let (wanted, found) = write(path);
        assert!(grants.covers(Some(run_id), &wanted, found.as_ref(), "/w"));
        grants.consume(Some(run_id), &wanted, found.as_ref(), "/w");
        assert!(!grants.covers(Some(run_id), &wanted, found.as_ref(), "/w"));
    }
    assert!(grants.is_empty());
}

#[test]
fn grants_are_bounded_and_round_trip() {
    let run_id = RunId::mint();
    let mut grants = Grants::default();
    for n in 0..1_000 {
        grants.add_answer(Some(run_id), "allow_once", &diff(&format!("/w/{n}")));
        grants.add_answer(Some(run_id), "allow_always", &diff("/w/x"));
    }
    let many: Vec<Value> = (0..1_000).map(|n| diff(&format!("/w/{n}"))["content"][0].clone()).collect();
    let mut none = Grants::default();
    none.add_answer(Some(run_id), "allow_once", &json!({"content": many}));
    assert!(none.is_empty(), "a question with too many files to show grants none of them");
    let text = serde_json::to_string(&grants).unwrap();
    assert!(text.len() < 10_000, "{}", text.len());
    assert_eq!(serde_json::from_str::<Grants>(&text).unwrap(), grants);
    grants.end_run(run_id);
    let (wanted, found) = write("/w/never-named");
    assert!(grants.covers(None, &wanted, found.as_ref(), "/w"), "a grant for the session outlives its run");
}

/// A grant for the session covers only the kind of effect that its question showed.
#[test]
fn always_grant_covers_only_the_shown_kind() {
    let call = json!({"content": diff("/w/a")["content"], "rawInput": {"command": "ls"}});
    let mut grants = Grants::default();
    grants.add_answer(None, "allow_always", &call);
    let ((file, found), (command, _)) = (write("/w/b"), run("ls", &[]));
    assert!(grants.covers(None, &file, found.as_ref(), "/w"));
    assert!(!grants.covers(None, &command, None, "/w"));
}

#[test]
fn large_file_question_shows_the_changed_lines() {
    let old: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
    let new = old.replace("line 700\n", "line seven hundred\n");
    let found = Inspection { path: "/w/f".to_owned(), is_same: false, old: FileContent::Text(old) };
    let text = HostQuestion::write(7, &found, &new).params.to_string();
    assert!(text.len() < 16_000, "{}", text.len());
    for part in ["/w/f: ", "from line 701", "-line 700", "+line seven hundred"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let opaque = Inspection { old: FileContent::Opaque(9), ..found };
    assert!(HostQuestion::write(7, &opaque, "x").params.to_string().contains("9 bytes become 1"));
}

/// The end of a path names the file: the title keeps it.
#[test]
fn a_question_about_a_long_path_names_the_file() {
    let path = format!("/w/{}/evil.sh", "d".repeat(500));
    let found = Inspection { path: path.clone(), is_same: false, old: FileContent::Absent };
    let question = HostQuestion::write(7, &found, "x");
    let call = &question.params["toolCall"];
    let AgentRequestKind::Permission { title, .. } = question.what else { panic!("no question") };
    assert!(title.starts_with("Write /w/ddd") && title.ends_with("ddd/evil.sh"), "{title}");
    assert_eq!((&call["title"], &call["content"][0]["path"]), (&json!(title), &json!(path)));
}

#[test]
fn command_question_names_directory_and_variables() {
    let question = HostQuestion::run(7, "make", Some("/w/sub"), &["LD_PRELOAD"]);
    assert_eq!(question.params["toolCall"]["title"], "(sets LD_PRELOAD; in /w/sub) make");
    let AgentRequestKind::Permission { options, .. } = question.what else { panic!("no question") };
    let listed: Vec<&str> = options.iter().map(|option| option.kind.as_str()).collect();
    assert_eq!(listed, ["allow_once", "allow_always", "reject_once"]);
    let many: Vec<String> = (0..200).map(|n| format!("V{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = format!("/w/{}", "d".repeat(400));
    let question = HostQuestion::run(7, &"x".repeat(400), Some(&long), &many);
    let title = question.params["toolCall"]["title"].as_str().unwrap();
    assert!(title.starts_with("(sets 200 variables: V0, V1, "), "{title}");
    assert!(title.find("in /w/ddd").is_some_and(|at| at < 200), "{title}");
}
