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

fn verdict_of(record: &LegacyRecord, now: &Evidence, live: &LegacyFacts) -> &'static str {
    let guard = SignalGuard { own_ancestry: HashSet::from([1, 5]), other_roots: HashSet::from([6]) };
    verify_legacy(record, 1000, now, live, &guard).as_str()
}

#[test]
fn root_process_must_run() {
    let node = live(&["node", WRAPPER]);
    for (life, want) in [
        (ProcessState::Running, "owned"),
        (ProcessState::Gone, "gone"),
        (ProcessState::Zombie, "gone"),
        (ProcessState::Unreadable, "unknown"),
    ] {
        assert_eq!(verdict_of(&wrapper(), &Evidence { life, ..evidence() }, &node), want, "{life:?}");
    }
}

#[test]
fn wrapper_must_belong_to_its_root() {
    let other =
        LegacyRecord { wrapper_path: Some(format!("{ROOT}/claude-agent-acp-wrapper.mjs")), ..wrapper() };
    let same = LegacyRecord { wrapper_path: Some(WRAPPER.into()), ..wrapper() };
    let root_directory = LegacyRecord { wrapper_root: Some("/".into()), ..wrapper() };
    let not_normalized = LegacyRecord { wrapper_root: Some("/home/u/../u".into()), ..wrapper() };
    let sibling = format!("{ROOT}-other/codex-acp-wrapper.mjs");
    let out = format!("{ROOT}/../evil.mjs");
    for (name, record, argv, exe, want) in [
        ("wrapper", &wrapper(), &["node", WRAPPER][..], "/usr/bin/node", "owned"),
        ("with options", &wrapper(), &["node", "--no-warnings", WRAPPER, "x"], "/opt/node", "owned"),
        ("replaced interpreter", &wrapper(), &["node", WRAPPER], "/usr/bin/node (deleted)", "owned"),
        ("wrapper as a program", &wrapper(), &["w"], "/home/u/.openclaw/acpx/w", "owned"),
        ("recorded wrapper path", &same, &["node", WRAPPER], "/usr/bin/node", "owned"),
        ("another wrapper of the root", &other, &["node", WRAPPER], "/usr/bin/node", "not_ours"),
        ("editor of the wrapper", &wrapper(), &["vim", WRAPPER], "/usr/bin/vim", "not_ours"),
        ("wrapper as an argument", &wrapper(), &["node", "x.mjs", WRAPPER], "/usr/bin/node", "not_ours"),
        ("root with the same prefix", &wrapper(), &["node", &sibling], "/usr/bin/node", "not_ours"),
        ("parent component", &wrapper(), &["node", &out], "/usr/bin/node", "not_ours"),
        ("root itself", &wrapper(), &["node", ROOT], "/usr/bin/node", "not_ours"),
        ("root directory as root", &root_directory, &["node", WRAPPER], "/usr/bin/node", "unknown"),
        ("root with a parent component", &not_normalized, &["node", WRAPPER], "/usr/bin/node", "unknown"),
    ] {
        let now = Evidence { exe: Some(exe.into()), ..evidence() };
        assert_eq!(verdict_of(record, &now, &live(argv)), want, "{name}");
    }
    let no_exe = Evidence { exe: None, ..evidence() };
    assert_eq!(verdict_of(&wrapper(), &no_exe, &live(&["node", WRAPPER])), "unknown");
}

#[test]
fn command_must_match() {
    let vector =
        LegacyRecord { argv: Some(vec!["gemini".into(), "--acp".into()]), ..command("something else") };
    let alone = LegacyRecord { identity: identity("boot", 500), ..command("codex-acp") };
    for (name, record, argv, want) in [
        ("match", &command("gemini --acp"), &["gemini", "--acp"][..], "owned"),
        ("vector overrides string", &vector, &["gemini", "--acp"], "owned"),
        ("more than the command", &command("gemini --acp"), &["gemini", "--acp", "x"], "not_ours"),
        ("less than the command", &command("gemini --acp"), &["gemini"], "not_ours"),
        ("another command", &command("gemini --acp"), &["postgres", "-D"], "not_ours"),
        ("program name only", &command("codex-acp"), &["codex-acp"], "unknown"),
        ("program name with identity", &alone, &["codex-acp"], "owned"),
        ("a shell line", &command("a --b && c"), &["a", "--b", "&&", "c"], "unknown"),
        ("half a quote", &command("a 'b"), &["a", "'b"], "unknown"),
        ("empty", &command(""), &[], "unknown"),
    ] {
        assert_eq!(verdict_of(record, &evidence(), &live(argv)), want, "{name}");
    }
}

#[test]
fn pid_alone_proves_nothing() {
    let (bare, node) = (LegacyRecord { pid: Some(70), ..LegacyRecord::default() }, live(&["node", WRAPPER]));
    let leased = LegacyRecord { lease_id: Some("x".into()), ..wrapper() };
    let known = |recorded| LegacyRecord { identity: recorded, ..wrapper() };
    let pair = Marker::Pair { lease: "x".into(), gateway: "y".into() };
    let at = |change: &dyn Fn(&mut Evidence)| {
        let mut now = evidence();
        change(&mut now);
        now
    };
    let unknown_user = LegacyFacts { uid: None, ..node.clone() };
    let blank = LegacyFacts { argv: None, ..node.clone() };
    for (name, record, now, live, want) in [
        ("pid only", &bare, evidence(), &node, "unknown"),
        ("no pid", &LegacyRecord { pid: None, ..wrapper() }, evidence(), &node, "not_ours"),
        ("another pid", &LegacyRecord { pid: Some(71), ..wrapper() }, evidence(), &node, "not_ours"),
        ("record with a lease", &leased, evidence(), &node, "not_ours"),
        ("process with a lease", &wrapper(), at(&|e| e.marker = pair.clone()), &node, "not_ours"),
        ("unreadable marker", &wrapper(), at(&|e| e.marker = Marker::Unreadable), &node, "unknown"),
        ("same process", &known(identity("boot", 500)), evidence(), &node, "owned"),
        ("pid reused", &known(identity("boot", 499)), evidence(), &node, "not_ours"),
        ("earlier boot", &known(identity("other", 500)), evidence(), &node, "gone"),
        ("no start time", &known(identity("boot", 500)), at(&|e| e.start_ticks = None), &node, "unknown"),
        ("no boot id", &known(identity("boot", 500)), at(&|e| e.scope = None), &node, "unknown"),
        ("another user", &wrapper(), evidence(), &LegacyFacts { uid: Some(0), ..node.clone() }, "not_ours"),
        ("unreadable user", &wrapper(), evidence(), &unknown_user, "unknown"),
        ("no arguments", &wrapper(), evidence(), &blank, "unknown"),
        ("no handle", &wrapper(), at(&|e| e.handle = None), &node, "unknown"),
    ] {
        assert_eq!(verdict_of(record, &now, live), want, "{name}");
    }
    for (pid, why) in [(0, "0"), (1, "init"), (5, "this process or an ancestor"), (6, "a lease's root")] {
        let record = LegacyRecord { pid: Some(i64::from(pid)), ..wrapper() };
        assert_eq!(verdict_of(&record, &Evidence { pid, ..evidence() }, &node), "not_ours", "{why}");
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
        assert_eq!(verdict_of(&command(text), &evidence(), &live(&argv)), "owned", "{text}");
    }
    // A comparison as strings would match.
    assert_eq!(verdict_of(&command("a b c"), &evidence(), &live(&["a", "b c"])), "not_ours");
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
        assert_eq!(verify_legacy_child(&wrapper(), 70, &now, &guard).as_str(), want, "{now:?}");
    }
}

/// Complete record of OpenClaw's `process-leases.json`.
fn openclaw() -> LegacyRecord {
    serde_json::from_value(serde_json::json!({
        "leaseId": "l", "gatewayInstanceId": "g", "sessionKey": "s", "wrapperRoot": ROOT, "wrapperPath": WRAPPER,
        "rootPid": 70, "commandHash": "00", "startedAt": 1, "state": "open",
    }))
    .unwrap()
}

#[test]
fn leased_record_needs_environment_wrapper_and_arguments() {
    let pair = |lease: &str, gateway: &str| Marker::Pair { lease: lease.into(), gateway: gateway.into() };
    let with = |marker: Marker| Evidence { marker, ..evidence() };
    let ids = ["--openclaw-acpx-lease-id", "l", "--openclaw-gateway-instance-id=g"];
    let run = |wrapper: &'static str, more: &[&'static str]| live(&[&["node", wrapper], more].concat());
    let ours = with(pair("l", "g"));
    assert_eq!(verdict_of(&openclaw(), &ours, &run(WRAPPER, &ids)), "owned");
    for marker in [pair("x", "g"), pair("l", "x"), Marker::Missing, Marker::Ambiguous] {
        assert_eq!(
            verdict_of(&openclaw(), &with(marker.clone()), &run(WRAPPER, &ids)),
            "not_ours",
            "{marker:?}"
        );
    }
    assert_eq!(verdict_of(&openclaw(), &with(Marker::Unreadable), &run(WRAPPER, &ids)), "unknown");
    for (wrapper, more) in [
        ("/home/u/.openclaw/acpx/other.mjs", &ids[..]),
        ("/home/u/codex-acp-wrapper.mjs", &ids),
        (WRAPPER, &ids[..2]),
        (WRAPPER, &ids[2..]),
        (WRAPPER, &["--openclaw-acpx-lease-id", "x", "--openclaw-gateway-instance-id", "g"]),
        (
            WRAPPER,
            &["--openclaw-acpx-lease-id=l", "--openclaw-acpx-lease-id=x", "--openclaw-gateway-instance-id=g"],
        ),
    ] {
        assert_eq!(verdict_of(&openclaw(), &ours, &run(wrapper, more)), "not_ours", "{wrapper} {more:?}");
    }
    let other_user = LegacyFacts { uid: Some(1001), ..run(WRAPPER, &ids) };
    assert_eq!(verdict_of(&openclaw(), &ours, &other_user), "not_ours");
    for record in [
        LegacyRecord { gateway: None, ..openclaw() },
        LegacyRecord { wrapper_path: None, ..openclaw() },
        LegacyRecord { wrapper_root: None, ..openclaw() },
        LegacyRecord { state: Some("closed".into()), ..openclaw() },
    ] {
        assert_eq!(verdict_of(&record, &ours, &run(WRAPPER, &ids)), "not_ours", "{record:?}");
    }
}

#[test]
fn child_of_leased_process_has_its_lease_or_none() {
    let guard = SignalGuard { own_ancestry: HashSet::new(), other_roots: HashSet::new() };
    for (lease, want) in [(Some("l"), "owned"), (None, "owned"), (Some("x"), "not_ours")] {
        let marker =
            lease.map_or(Marker::Missing, |lease| Marker::Pair { lease: lease.into(), gateway: "g".into() });
        let now = Evidence { ppid: Some(70), marker, ..evidence() };
        assert_eq!(verify_legacy_child(&openclaw(), 70, &now, &guard).as_str(), want, "{lease:?}");
    }
}
