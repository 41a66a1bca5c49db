#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::core::lease::{NsInit, PidScope};
use crate::core::verify::HandleId;
use std::collections::HashSet;

const ROOT: &str = "/home/u/.openclaw/acpx";
const WRAPPER: &str = "/home/u/.openclaw/acpx/codex-acp-wrapper.mjs";

fn evidence() -> Evidence {
    Evidence {
        handle: Some(HandleId(1)),
        pid: 70,
        scope: Some(PidScope { boot_id: "boot".into(), pidns: 7, timens: Some(3), init: NsInit::default() }),
        life: ProcessState::Running,
        start_ticks: Some(500),
        ppid: Some(1),
        pgid: Some(70),
        sid: Some(70),
        inode: Some(9),
        marker: Marker::Missing,
        exe: Some("/usr/bin/node".into()),
        own_child: false,
        cgroup: None,
    }
}

fn live(argv: &[&str]) -> LegacyFacts {
    LegacyFacts { argv: Some(argv.iter().map(|s| (*s).to_owned()).collect()), uid: Some(1000) }
}

fn wrapper() -> LegacyRecord {
    LegacyRecord { pid: Some(70), wrapper_root: Some(ROOT.into()), ..LegacyRecord::default() }
}

fn command(text: &str) -> LegacyRecord {
    LegacyRecord { pid: Some(70), command: Some(text.into()), ..LegacyRecord::default() }
}

fn identity(boot_id: &str, start_ticks: u64) -> Option<RecordedIdentity> {
    Some(RecordedIdentity { boot_id: boot_id.into(), start_ticks })
}

fn judge(record: &LegacyRecord, now: &Evidence, live: &LegacyFacts) -> &'static str {
    let guard = SignalGuard { own_ancestry: HashSet::from([1, 5]), other_roots: HashSet::from([6]) };
    verify_legacy(record, 1000, now, live, &guard).as_str()
}

/// The first rule of the source: a live root process, or nothing.
#[test]
fn root_process_must_run() {
    let node = live(&["node", WRAPPER]);
    for (life, want) in [
        (ProcessState::Running, "owned"),
        (ProcessState::Gone, "gone"),
        (ProcessState::Zombie, "gone"),
        (ProcessState::Unreadable, "unknown"),
    ] {
        assert_eq!(judge(&wrapper(), &Evidence { life, ..evidence() }, &node), want, "{life:?}");
    }
}

/// The second: where a wrapper is expected, one of that root.
#[test]
fn wrapper_must_belong_to_its_root() {
    let other =
        LegacyRecord { wrapper_path: Some(format!("{ROOT}/claude-agent-acp-wrapper.mjs")), ..wrapper() };
    let same = LegacyRecord { wrapper_path: Some(WRAPPER.into()), ..wrapper() };
    let everything = LegacyRecord { wrapper_root: Some("/".into()), ..wrapper() };
    let vague = LegacyRecord { wrapper_root: Some("/home/u/../u".into()), ..wrapper() };
    let beside = format!("{ROOT}-other/codex-acp-wrapper.mjs");
    let out = format!("{ROOT}/../evil.mjs");
    for (name, record, argv, exe, want) in [
        ("its wrapper", &wrapper(), &["node", WRAPPER][..], "/usr/bin/node", "owned"),
        ("with options", &wrapper(), &["node", "--no-warnings", WRAPPER, "x"], "/opt/node", "owned"),
        ("a replaced interpreter", &wrapper(), &["node", WRAPPER], "/usr/bin/node (deleted)", "owned"),
        ("a wrapper that is a program", &wrapper(), &["w"], "/home/u/.openclaw/acpx/w", "owned"),
        ("the very wrapper", &same, &["node", WRAPPER], "/usr/bin/node", "owned"),
        ("another wrapper of the root", &other, &["node", WRAPPER], "/usr/bin/node", "not_ours"),
        ("an editor on the wrapper", &wrapper(), &["vim", WRAPPER], "/usr/bin/vim", "not_ours"),
        ("the wrapper as an argument", &wrapper(), &["node", "x.mjs", WRAPPER], "/usr/bin/node", "not_ours"),
        ("a root that begins alike", &wrapper(), &["node", &beside], "/usr/bin/node", "not_ours"),
        ("out of the root again", &wrapper(), &["node", &out], "/usr/bin/node", "not_ours"),
        ("the root itself", &wrapper(), &["node", ROOT], "/usr/bin/node", "not_ours"),
        ("a root that is everything", &everything, &["node", WRAPPER], "/usr/bin/node", "unknown"),
        ("a root that is not plain", &vague, &["node", WRAPPER], "/usr/bin/node", "unknown"),
    ] {
        let now = Evidence { exe: Some(exe.into()), ..evidence() };
        assert_eq!(judge(record, &now, &live(argv)), want, "{name}");
    }
    let blind = Evidence { exe: None, ..evidence() };
    assert_eq!(judge(&wrapper(), &blind, &live(&["node", WRAPPER])), "unknown");
}

/// The third: elsewhere the command, as a vector.
#[test]
fn command_must_match() {
    let vector =
        LegacyRecord { argv: Some(vec!["gemini".into(), "--acp".into()]), ..command("something else") };
    let alone = LegacyRecord { identity: identity("boot", 500), ..command("codex-acp") };
    for (name, record, argv, want) in [
        ("it agrees", &command("gemini --acp"), &["gemini", "--acp"][..], "owned"),
        ("the vector is believed before the string", &vector, &["gemini", "--acp"], "owned"),
        ("more than the command", &command("gemini --acp"), &["gemini", "--acp", "x"], "not_ours"),
        ("less than the command", &command("gemini --acp"), &["gemini"], "not_ours"),
        ("another command", &command("gemini --acp"), &["postgres", "-D"], "not_ours"),
        ("the name of a program alone", &command("codex-acp"), &["codex-acp"], "unknown"),
        ("the same, and which process it was", &alone, &["codex-acp"], "owned"),
        ("a shell line", &command("a --b && c"), &["a", "--b", "&&", "c"], "unknown"),
        ("half a quote", &command("a 'b"), &["a", "'b"], "unknown"),
        ("empty", &command(""), &[], "unknown"),
    ] {
        assert_eq!(judge(record, &evidence(), &live(argv)), want, "{name}");
    }
}

/// The fourth: a stored pid alone never, and what is somebody else's, or cannot be told, neither.
#[test]
fn pid_alone_proves_nothing() {
    let (bare, node) = (LegacyRecord { pid: Some(70), ..LegacyRecord::default() }, live(&["node", WRAPPER]));
    let leased = LegacyRecord { lease_id: Some("x".into()), ..wrapper() };
    let is = |recorded| LegacyRecord { identity: recorded, ..wrapper() };
    let pair = Marker::Pair { lease: "x".into(), gateway: "y".into() };
    let at = |change: &dyn Fn(&mut Evidence)| {
        let mut now = evidence();
        change(&mut now);
        now
    };
    let nobody = LegacyFacts { uid: None, ..node.clone() };
    let blank = LegacyFacts { argv: None, ..node.clone() };
    for (name, record, now, live, want) in [
        ("nothing but a pid", &bare, evidence(), &node, "unknown"),
        ("no pid", &LegacyRecord { pid: None, ..wrapper() }, evidence(), &node, "not_ours"),
        ("another pid", &LegacyRecord { pid: Some(71), ..wrapper() }, evidence(), &node, "not_ours"),
        ("it has a lease", &leased, evidence(), &node, "not_ours"),
        ("the process has a lease", &wrapper(), at(&|e| e.marker = pair.clone()), &node, "not_ours"),
        ("it may have one", &wrapper(), at(&|e| e.marker = Marker::Unreadable), &node, "unknown"),
        ("the same process", &is(identity("boot", 500)), evidence(), &node, "owned"),
        ("the number was reused", &is(identity("boot", 499)), evidence(), &node, "not_ours"),
        ("an earlier boot", &is(identity("other", 500)), evidence(), &node, "gone"),
        ("no start time", &is(identity("boot", 500)), at(&|e| e.start_ticks = None), &node, "unknown"),
        ("no boot id", &is(identity("boot", 500)), at(&|e| e.scope = None), &node, "unknown"),
        ("another user's", &wrapper(), evidence(), &LegacyFacts { uid: Some(0), ..node.clone() }, "not_ours"),
        ("whose it is cannot be read", &wrapper(), evidence(), &nobody, "unknown"),
        ("no arguments", &wrapper(), evidence(), &blank, "unknown"),
        ("no handle", &wrapper(), at(&|e| e.handle = None), &node, "unknown"),
    ] {
        assert_eq!(judge(record, &now, live), want, "{name}");
    }
    for (pid, why) in [(0, "0"), (1, "init"), (5, "this process or an ancestor"), (6, "a lease's root")] {
        let record = LegacyRecord { pid: Some(i64::from(pid)), ..wrapper() };
        assert_eq!(judge(&record, &Evidence { pid, ..evidence() }, &node), "not_ours", "{why}");
    }
}

#[test]
fn quoted_command_equals_live_argv() {
    let argv = ["node", "/path with space/agent.js", "--x=it's", ""];
    for text in [
        r#"node "/path with space/agent.js" "--x=it's" """#,
        r"node '/path with space/agent.js' --x=it\'s ''",
        r"node /path\ with\ space/agent.js --x='it'\''s' ''",
    ] {
        assert_eq!(split(text).unwrap(), argv, "{text}");
        assert_eq!(judge(&command(text), &evidence(), &live(&argv)), "owned", "{text}");
    }
    // Compared as a string it would agree.
    assert_eq!(judge(&command("a b c"), &evidence(), &live(&["a", "b c"])), "not_ours");
    for text in ["a $HOME", "a `b`", "a | b", "a > b", "a \"$x\"", "a \\"] {
        assert_eq!(split(text), None, "{text}");
    }
}

#[test]
fn children_belong_to_tree_while_parent_lives() {
    let child = |ppid, marker| Evidence { pid: 71, ppid: Some(ppid), marker, ..evidence() };
    let guard = SignalGuard::default();
    for (now, want) in [
        (child(70, Marker::Missing), "owned"),
        (child(1, Marker::Missing), "not_ours"),
        (child(70, Marker::Ambiguous), "not_ours"),
        (child(70, Marker::Unreadable), "unknown"),
        (Evidence { life: ProcessState::Zombie, ..child(70, Marker::Missing) }, "gone"),
        (Evidence { life: ProcessState::Unreadable, ..child(70, Marker::Missing) }, "unknown"),
    ] {
        assert_eq!(verify_legacy_child(70, &now, &guard).as_str(), want, "{now:?}");
    }
}
