//! Records without a lease, against real processes.

use crate::common::{eventually, is_alive};
use acp_shared::launch::{ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID};
use acp_testkit::processes::KillOnDrop;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Starts a program without the marker of a lease.
fn start(program: &Path, args: &[&str]) -> KillOnDrop {
    let mut command = Command::new(program);
    command.args(args).env_remove(ENV_LEASE_ID).env_remove(ENV_GATEWAY_INSTANCE_ID);
    KillOnDrop(command.spawn().unwrap())
}

struct TestRoot(tempfile::TempDir);

impl TestRoot {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Installs a program below the wrapper root.
    fn wrapper(&self, root: &str) -> PathBuf {
        let root = self.0.path().join(root);
        std::fs::create_dir_all(&root).unwrap();
        let wrapper = root.join("codex-acp-wrapper");
        std::fs::copy("/bin/sleep", &wrapper).unwrap();
        wrapper
    }

    fn root(&self, root: &str) -> String {
        self.0.path().join(root).to_str().unwrap().to_owned()
    }

    fn run(&self, verb: &[&str], records: &Value) -> Value {
        let file = self.0.path().join("records.json");
        std::fs::write(&file, records.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_acp-supervisor"));
        let output = command.arg("legacy").args(verb).arg(&file).arg("--json").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let output: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output["type"], "legacy");
        output["data"].clone()
    }
}

/// Values of one column.
fn column<'a>(lines: &'a Value, key: &str) -> Vec<&'a str> {
    lines.as_array().unwrap().iter().map(|line| line[key].as_str().unwrap()).collect()
}

#[test]
fn only_matching_legacy_processes_are_ended() {
    let test_root = TestRoot::new();
    let (recorded, other) = (test_root.wrapper("acpx"), test_root.wrapper("other"));
    let mut wrapper = start(&recorded, &["301"]);
    let mut command = start(Path::new("/bin/sleep"), &["302"]);
    let (other_root, reused) = (start(&other, &["303"]), start(Path::new("/bin/sleep"), &["304"]));
    let mut gone = start(Path::new("/bin/true"), &[]);
    gone.wait().unwrap();
    let mut leased = Command::new("/bin/sleep");
    let leased = KillOnDrop(
        leased.arg("305").env(ENV_LEASE_ID, "x").env(ENV_GATEWAY_INSTANCE_ID, "y").spawn().unwrap(),
    );
    let root = test_root.root("acpx");
    let records = json!([
        { "sessionKey": "wrapper", "rootPid": wrapper.pid(), "wrapperRoot": root, "command": "anything" },
        { "acpx_record_id": "command", "pid": command.pid(), "agent_command": "/bin/sleep '302'" },
        { "sessionKey": "another root", "rootPid": other_root.pid(), "wrapperRoot": root },
        { "sessionKey": "a reused pid", "pid": reused.pid(), "command": "/bin/sleep 302" },
        { "sessionKey": "a pid alone", "pid": reused.pid() },
        { "sessionKey": "gone", "pid": gone.pid(), "command": "/bin/true x" },
        { "sessionKey": "leased", "pid": leased.pid(), "command": "/bin/sleep 305" },
        { "sessionKey": "init", "pid": 1, "command": "/sbin/init" },
        { "sessionKey": "no pid", "pid": null, "command": "/bin/sleep 302" },
    ]);
    let verdicts =
        ["owned", "owned", "not_ours", "not_ours", "unknown", "gone", "not_ours", "not_ours", "unknown"];
    for verb in [&["check"][..], &["reap", "--dry-run"]] {
        let lines = test_root.run(verb, &records);
        assert_eq!(column(&lines, "verdict"), verdicts, "{lines:#}");
        assert_eq!(lines.as_array().unwrap().iter().filter(|l| l["action"] == "signal").count(), 2);
        assert!([&wrapper, &command].iter().all(|p| is_alive(p.pid())), "{verb:?} sent a signal");
    }
    let lines = test_root.run(&["reap", "--yes"], &records);
    assert_eq!(column(&lines, "verdict"), verdicts, "{lines:#}");
    for ended in [&mut wrapper, &mut command] {
        assert!(!is_alive(ended.pid()));
        assert!(!ended.wait().unwrap().success());
    }
    for left in [&other_root, &reused, &leased] {
        assert!(is_alive(left.pid()), "{lines:#}");
    }
}

/// Script whose children end soon after it.
const SHORT: &str = "while :; do sleep 1; done";

/// Starts an agent as OpenClaw does: a wrapper with the ids in environment and arguments.
fn start_openclaw(wrapper: &Path, env: (&str, &str), args: (&str, &str), script: &str) -> KillOnDrop {
    let mut command = Command::new(wrapper);
    command.env(ENV_LEASE_ID, env.0).env(ENV_GATEWAY_INSTANCE_ID, env.1);
    command.args(["-c", script, "wrapper", "--openclaw-acpx-lease-id", args.0]);
    KillOnDrop(command.arg("--openclaw-gateway-instance-id").arg(args.1).spawn().unwrap())
}

#[test]
fn process_leases_of_openclaw_are_ended_only_with_all_evidence() {
    let test_root = TestRoot::new();
    let root = test_root.0.path().join("acpx");
    std::fs::create_dir_all(&root).unwrap();
    let (wrapper, other) = (root.join("codex-acp-wrapper"), root.join("claude-agent-acp-wrapper"));
    for path in [&wrapper, &other] {
        std::fs::copy(std::fs::canonicalize("/bin/sh").unwrap(), path).unwrap();
    }
    let ids = ("lease-1", "gateway-1");
    let good = start_openclaw(&wrapper, ids, ids, "sleep 309 & wait");
    let left = [
        ("another lease in the environment", start_openclaw(&wrapper, ("lease-2", "gateway-1"), ids, SHORT)),
        (
            "another gateway in the environment",
            start_openclaw(&wrapper, ("lease-1", "gateway-2"), ids, SHORT),
        ),
        ("another lease in the arguments", start_openclaw(&wrapper, ids, ("lease-2", "gateway-1"), SHORT)),
        ("another wrapper of the root", start_openclaw(&other, ids, ids, SHORT)),
        ("a wrapper outside of the root", start_openclaw(Path::new("/bin/sh"), ids, ids, SHORT)),
        ("without the pair", start(&wrapper, &["-c", SHORT])),
    ];
    let record = |name: &str, pid: i32| {
        json!({ "leaseId": ids.0, "gatewayInstanceId": ids.1, "sessionKey": name, "rootPid": pid,
                "wrapperRoot": root, "wrapperPath": wrapper, "commandHash": "00", "startedAt": 1, "state": "open" })
    };
    let mut records: Vec<Value> = vec![record("good", good.pid())];
    records.extend(left.iter().map(|(name, process)| record(name, process.pid())));
    records.push(record("pending", 0));
    let records = json!({ "version": 1, "leases": records });
    let want = [&["owned"][..], &["not_ours"; 6], &["unknown"]].concat();
    let mut child = None;
    eventually("the child exists", || {
        let lines = test_root.run(&["check"], &records);
        assert_eq!(column(&lines, "verdict"), want, "{lines:#}");
        let tree = lines[0]["tree"].as_array().unwrap();
        child = tree.iter().filter_map(Value::as_i64).find(|pid| *pid != i64::from(good.pid()));
        child.is_some()
    });
    let lines = test_root.run(&["reap", "--yes"], &records);
    assert_eq!(column(&lines, "verdict"), want, "{lines:#}");
    assert_eq!(column(&lines, "action")[0], "signalled");
    let child = i32::try_from(child.unwrap()).unwrap();
    eventually("the tree is gone", || !is_alive(good.pid()) && !is_alive(child));
    for (name, process) in &left {
        assert!(is_alive(process.pid()), "{name}: {lines:#}");
    }
}

#[test]
fn quoted_command_matches_and_tree_is_ended() {
    let test_root = TestRoot::new();
    let pids = test_root.0.path().join("pids");
    let text = format!("trap '' TERM; sleep 306 & echo $! > {}; wait; wait; sleep 307", pids.display());
    let root = start(Path::new("/bin/sh"), &["-c", &text]);
    eventually("the child exists", || {
        std::fs::read_to_string(&pids).is_ok_and(|pid| pid.trim().parse::<i32>().is_ok())
    });
    let child: i32 = std::fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
    let quoted = format!("/bin/sh -c \"{text}\"").replace("$!", "\\$!");
    let records = json!({ "sessions": { "a": { "pid": root.pid(), "command": quoted } } });
    let lines = test_root.run(&["reap", "--yes", "--grace-ms", "200"], &records);
    assert_eq!((column(&lines, "verdict"), column(&lines, "action")), (vec!["owned"], vec!["signalled"]));
    assert_eq!(lines[0]["survivors"], json!([]), "{lines:#}");
    assert!(lines[0]["tree"].as_array().unwrap().contains(&json!(child)), "{lines:#}");
    eventually("the tree is gone", || !is_alive(root.pid()) && !is_alive(child));
}

#[test]
fn recorded_identity_must_match() {
    let test_root = TestRoot::new();
    let process = start(Path::new("/bin/sleep"), &["308"]);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let ticks: u64 = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let record = |boot: &str, ticks: u64| {
        json!({ "pid": process.pid(), "command": "/bin/sleep 308",
                "processIdentity": { "kind": "linux-proc", "bootId": boot, "startTicks": ticks } })
    };
    let records = json!([record("other", ticks), record(boot.trim(), ticks - 1), record(boot.trim(), ticks)]);
    let lines = test_root.run(&["check"], &records);
    assert_eq!(column(&lines, "verdict"), ["gone", "not_ours", "owned"], "{lines:#}");
}

#[test]
fn records_writable_by_others_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[]").unwrap();
    for (mode, read) in [(0o644, true), (0o664, false), (0o646, false)] {
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_acp-supervisor"));
        let output = command.args(["legacy", "check"]).arg(file.path()).output().unwrap();
        assert_eq!(output.status.success(), read, "{mode:o}: {output:?}");
    }
}
