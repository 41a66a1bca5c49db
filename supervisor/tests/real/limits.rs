//! Limits of control groups. Their effect is tested where version 2 has the controllers (`make test-vm` makes such a
//! machine); the warning about ineffective limits is tested everywhere.

use crate::common::{Client, Host, agent, eventually, is_alive, script};
use crate::test_cgroup::{members, report_probe};
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseInfo;
use acp_testkit::ability::Ability;
use acp_testkit::skip_unless;
use rustix::process::Signal;
use std::path::PathBuf;

/// Needs more memory than [`LIMITS`] allow.
const MEMORY_EATER: &str = "head -c 400000000 /dev/zero | tail";
const LIMITS: &str =
    "rung = \"R1\"\ncrash_backoff_ms = 0\nmemory_max_bytes = 100000000\npids_max = 60\ncpu_weight = 37";

/// A host with limits and a lease that must not be affected.
struct LimitedHost {
    host: Host,
    gateway: Client,
    bystander: LeaseInfo,
}

impl LimitedHost {
    async fn new() -> Self {
        let host = Host::with_config(LIMITS);
        let warnings = host.json(&["status"])["warnings"].to_string();
        assert!(!warnings.contains("has no effect"), "{warnings}");
        let mut gateway = host.gateway().connect().await;
        let bystander = gateway.spawn(&agent(&["cat"])).await;
        Self { host, gateway, bystander }
    }

    fn leaf(&self, lease_id: LeaseId) -> PathBuf {
        self.host.group.as_ref().unwrap().leaf(lease_id).unwrap()
    }

    /// Number in a file of a lease's cgroup: the whole file, or the line that begins with `word`.
    fn read_number(&self, lease_id: LeaseId, file: &str, word: &str) -> u64 {
        let text = std::fs::read_to_string(self.leaf(lease_id).join(file)).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix(word));
        found.unwrap_or_else(|| panic!("{file} without {word}: {text}")).trim().parse().unwrap()
    }

    /// Asserts that the other lease and the supervisor are not affected.
    async fn assert_others_unaffected(&mut self) {
        let id = self.bystander.lease_id;
        assert!(
            is_alive(self.bystander.wrapper_pid.unwrap()) && is_alive(self.bystander.adapter_pid.unwrap())
        );
        assert_eq!(self.read_number(id, "memory.events", "oom_kill "), 0);
        assert_eq!(self.read_number(id, "pids.events", "max "), 0);
        self.gateway.attach(id, 0).await;
        self.gateway.input(id, 1, b"still here").await.unwrap();
        assert_eq!(self.gateway.read(id, 0, 10).await, b"still here");
    }
}

#[tokio::test]
async fn every_lease_cgroup_has_limits() {
    skip_unless!(Ability::CgroupLimits);
    let mut host = LimitedHost::new().await;
    let spec = host.gateway.start(agent(&["cat"])).await;
    for id in [host.bystander.lease_id, spec.lease_id] {
        let seen = ["memory.max", "pids.max", "cpu.weight"].map(|file| host.read_number(id, file, ""));
        // The kernel counts memory in pages.
        assert_eq!(seen, [100_000_000 / 4096 * 4096, 60, 37]);
    }
}

#[tokio::test]
async fn agent_exceeding_memory_limit_is_killed_and_reported() {
    skip_unless!(Ability::CgroupLimits);
    let mut host = LimitedHost::new().await;
    let spec = script("exec awk 'BEGIN { s = \"x\"; while (1) s = s s }'");
    let info = host.gateway.spawn(&spec).await;
    host.gateway.attach(spec.lease_id, 0).await;
    let (status, end) = host.gateway.await_exit(spec.lease_id).await;
    assert_eq!((status, end), (ExitStatus::Signaled(Signal::KILL.as_raw()), 0));
    eventually("the tree is gone", || {
        !is_alive(info.wrapper_pid.unwrap()) && !is_alive(info.adapter_pid.unwrap())
    });
    host.assert_others_unaffected().await;
}

#[tokio::test]
async fn tool_exceeding_memory_limit_is_killed_alone() {
    skip_unless!(Ability::CgroupLimits);
    let mut host = LimitedHost::new().await;
    let spec = script(&format!("({MEMORY_EATER}) > /dev/null 2>&1; echo \"status $?\"; exec cat"));
    let info = host.gateway.spawn(&spec).await;
    host.gateway.attach(spec.lease_id, 0).await;
    assert_eq!(host.gateway.read(spec.lease_id, 0, 11).await, b"status 137\n");
    assert_eq!(host.read_number(spec.lease_id, "memory.events", "oom_kill "), 1);
    assert!(is_alive(info.wrapper_pid.unwrap()) && is_alive(info.adapter_pid.unwrap()));
    host.gateway.input(spec.lease_id, 1, b"on").await.unwrap();
    assert_eq!(host.gateway.read(spec.lease_id, 11, 2).await, b"on");
    host.assert_others_unaffected().await;
}

#[tokio::test]
async fn fork_bomb_is_limited_and_ended_with_lease() {
    skip_unless!(Ability::CgroupLimits);
    let mut host = LimitedHost::new().await;
    // Every process starts two more in their own sessions in a loop.
    let mut spec = script("trap '' TERM; sh -c \"$B\"; while :; do sleep 1; done");
    let bomb = "while :; do setsid sh -c \"$B\" & setsid sh -c \"$B\" & wait; sleep 1; done";
    spec.env.push(("B".into(), bomb.into()));
    spec.graces.eof_ms = 0;
    spec.graces.term_ms = 0;
    host.gateway.spawn(&spec).await;
    let leaf = host.leaf(spec.lease_id);
    eventually("a fork was refused", || host.read_number(spec.lease_id, "pids.events", "max ") > 0);
    assert!(host.read_number(spec.lease_id, "pids.current", "") <= 60);
    let all = members(&leaf);
    host.assert_others_unaffected().await;
    host.gateway.close_and_wait(spec.lease_id).await;
    assert!(!leaf.exists() && all.iter().all(|pid| !is_alive(*pid)));
    assert!(is_alive(host.bystander.adapter_pid.unwrap()));
}

#[tokio::test]
async fn ineffective_limits_are_reported() {
    let mut host = Host::prepare(
        "rung = \"R1\"\npids_max = 40\nmemory_max_bytes = 268435456\n[[tenant]]\nuid = 65001\npids_max = 9",
    );
    let Some(dir) = host.group.as_ref().map(|group| group.dir().to_owned()) else { return };
    let mut command = host.command();
    command.stderr(std::fs::File::create(host.dir.path().join("log")).unwrap());
    host.start_as(command);
    let mut gateway = host.gateway().connect().await;
    let spec = script("i=0; while [ $i -lt 60 ]; do sleep 300 & i=$((i+1)); done; wait; cat");
    gateway.spawn(&spec).await;
    let leaf = host.group.as_ref().unwrap().leaf(spec.lease_id).unwrap();
    let warnings = host.json(&["status"])["warnings"].clone();
    let warned = |key: &str| {
        warnings.as_array().unwrap().iter().find_map(|w| w.as_str().filter(|w| w.starts_with(key)))
    };
    let log = host.log();
    for (key, controller, file, value) in
        [("pids_max", "pids", "pids.max", "40"), ("memory_max_bytes", "memory", "memory.max", "268435456")]
    {
        let has = std::fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap().contains(controller);
        assert_eq!(warned(key).is_some(), !has, "{warnings}");
        if has {
            assert_eq!(std::fs::read_to_string(leaf.join(file)).unwrap().trim(), value);
        } else {
            // The warning names the controller, the searched path, and the controller's location.
            let warning = warned(key).unwrap();
            assert!(warning.contains(&format!("the {controller} controller is ")), "{warning}");
            assert!(warning.contains(dir.to_str().unwrap()), "{warning}");
            assert!(log.contains(warning), "{log}");
            report_probe(&format!("the {controller} controller in {}", dir.display()), &warning);
        }
    }
    let of_tenant = warned("pids_max of [[tenant]] number 1");
    assert_eq!(of_tenant.is_some(), warned("pids_max has no effect").is_some(), "{warnings}");
    // `doctor` reports the same for a supervisor started from here.
    let config = host.dir.path().join("supervisor.toml");
    let elsewhere = host.dir.path().join("elsewhere");
    let mut doctor = std::process::Command::new(env!("CARGO_BIN_EXE_acp-supervisor"));
    doctor.args(["doctor", "--json", "--config"]).arg(config).arg("--state-dir").arg(elsewhere);
    let output = doctor.arg("--wrapper").arg(crate::common::wrapper()).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["data"]["checks"].as_array().unwrap();
    let found = checks.iter().filter(|check| check["name"] == "limit").map(|check| check["found"].clone());
    let of_limits = |warning: &&serde_json::Value| warning.as_str().unwrap().contains("has no effect");
    assert_eq!(
        found.collect::<Vec<_>>(),
        warnings.as_array().unwrap().iter().filter(of_limits).cloned().collect::<Vec<_>>()
    );
    // With an effective limit the shell gives up at the first refused fork.
    if warned("pids_max").is_none() {
        assert!(members(&leaf).len() <= 40);
    } else {
        eventually("all processes have started", || members(&leaf).len() >= 60);
    }
}
