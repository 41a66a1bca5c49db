//! Records without a lease, and real processes.

use crate::common::{eventually, runs};
use acp_shared::launch::{ENV_GATEWAY_INSTANCE_ID, ENV_LEASE_ID};
use acp_testkit::processes::Killed;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Starts a program that carries no mark of a lease, wherever this test runs.
fn start(program: &Path, args: &[&str]) -> Killed {
    let mut command = Command::new(program);
    command.args(args).env_remove(ENV_LEASE_ID).env_remove(ENV_GATEWAY_INSTANCE_ID);
    Killed(command.spawn().unwrap())
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A "generated wrapper": a program of its own below the wrapper root.
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
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["type"], "legacy");
        said["data"].clone()
    }
}

/// Of each column the values.
fn column<'a>(lines: &'a Value, key: &str) -> Vec<&'a str> {
    lines.as_array().unwrap().iter().map(|line| line[key].as_str().unwrap()).collect()
}

#[test]
fn only_what_agrees_is_ended() {
    let place = Place::new();
    let (ours, theirs) = (place.wrapper("acpx"), place.wrapper("other"));
    let mut wrapper = start(&ours, &["301"]);
    let mut command = start(Path::new("/bin/sleep"), &["302"]);
    let (other_root, reused) = (start(&theirs, &["303"]), start(Path::new("/bin/sleep"), &["304"]));
    let mut gone = start(Path::new("/bin/true"), &[]);
    gone.wait().unwrap();
    let mut leased = Command::new("/bin/sleep");
    let leased =
        Killed(leased.arg("305").env(ENV_LEASE_ID, "x").env(ENV_GATEWAY_INSTANCE_ID, "y").spawn().unwrap());
    let root = place.root("acpx");
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
        let lines = place.run(verb, &records);
        assert_eq!(column(&lines, "verdict"), verdicts, "{lines:#}");
        assert_eq!(lines.as_array().unwrap().iter().filter(|l| l["action"] == "signal").count(), 2);
        assert!([&wrapper, &command].iter().all(|p| runs(p.pid())), "{verb:?} signals nothing");
    }
    let lines = place.run(&["reap", "--yes"], &records);
    assert_eq!(column(&lines, "verdict"), verdicts, "{lines:#}");
    for ended in [&mut wrapper, &mut command] {
        assert!(!runs(ended.pid()));
        assert!(!ended.wait().unwrap().success());
    }
    for left in [&other_root, &reused, &leased] {
        assert!(runs(left.pid()), "{lines:#}");
    }
}

#[test]
fn a_quoted_command_is_recognised_and_its_tree_ended_with_it() {
    let place = Place::new();
    let pids = place.0.path().join("pids");
    let text = format!("trap '' TERM; sleep 306 & echo $! > {}; wait; wait; sleep 307", pids.display());
    let root = start(Path::new("/bin/sh"), &["-c", &text]);
    eventually("the child is there", || {
        std::fs::read_to_string(&pids).is_ok_and(|pid| pid.trim().parse::<i32>().is_ok())
    });
    let child: i32 = std::fs::read_to_string(&pids).unwrap().trim().parse().unwrap();
    let quoted = format!("/bin/sh -c \"{text}\"").replace("$!", "\\$!");
    let records = json!({ "sessions": { "a": { "pid": root.pid(), "command": quoted } } });
    let lines = place.run(&["reap", "--yes", "--grace-ms", "200"], &records);
    assert_eq!((column(&lines, "verdict"), column(&lines, "action")), (vec!["owned"], vec!["signalled"]));
    assert_eq!(lines[0]["survivors"], json!([]), "{lines:#}");
    assert!(lines[0]["tree"].as_array().unwrap().contains(&json!(child)), "{lines:#}");
    eventually("the tree is gone", || !runs(root.pid()) && !runs(child));
}

#[test]
fn a_recorded_identity_must_be_the_living_one() {
    let place = Place::new();
    let process = start(Path::new("/bin/sleep"), &["308"]);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    let ticks: u64 = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let record = |boot: &str, ticks: u64| {
        json!({ "pid": process.pid(), "command": "/bin/sleep 308",
                "processIdentity": { "kind": "linux-proc", "bootId": boot, "startTicks": ticks } })
    };
    let records = json!([record("other", ticks), record(boot.trim(), ticks - 1), record(boot.trim(), ticks)]);
    let lines = place.run(&["check"], &records);
    assert_eq!(column(&lines, "verdict"), ["gone", "not_ours", "owned"], "{lines:#}");
}

#[test]
fn a_file_that_others_can_write_speaks_for_nobody() {
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
