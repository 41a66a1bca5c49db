//! Limits of control groups. Whether they bite is seen where a group of version 2 has the controllers (`make test-vm`

//! makes such a machine); that a limit without effect is said so, everywhere.

use crate::common::{Client, Host, agent, eventually, runs, script};
use crate::rig_groups::{members, probe};
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseInfo;
use acp_testkit::ability::Ability;
use acp_testkit::possible;
use rustix::process::Signal;
use std::path::PathBuf;

/// More than [`LIMITS`] allow, and not more than a machine has.
const HOG: &str = "head -c 400000000 /dev/zero | tail";
const LIMITS: &str =
    "rung = \"R1\"\ncrash_backoff_ms = 0\nmemory_max_bytes = 100000000\npids_max = 60\ncpu_weight = 37";

/// A host with limits, and a lease beside the one that runs into them.
struct Limited {
    host: Host,
    gateway: Client,
    bystander: LeaseInfo,
}

impl Limited {
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

    /// A number in a file of a lease's group: the whole file, or the line that begins with a word.
    fn number(&self, lease_id: LeaseId, file: &str, word: &str) -> u64 {
        let text = std::fs::read_to_string(self.leaf(lease_id).join(file)).unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix(word));
        found.unwrap_or_else(|| panic!("{file} without {word}: {text}")).trim().parse().unwrap()
    }

    /// The lease beside it has noticed nothing, and neither has the supervisor.
    async fn others_are_well(&mut self) {
        let id = self.bystander.lease_id;
        assert!(runs(self.bystander.wrapper_pid.unwrap()) && runs(self.bystander.adapter_pid.unwrap()));
        assert_eq!(self.number(id, "memory.events", "oom_kill "), 0);
        assert_eq!(self.number(id, "pids.events", "max "), 0);
        self.gateway.attach(id, 0).await;
        self.gateway.input(id, 1, b"still here").await.unwrap();
        assert_eq!(self.gateway.read(id, 0, 10).await, b"still here");
    }
}

#[tokio::test]
async fn each_lease_has_its_limits_and_the_next_its_own() {
    possible!(Ability::CgroupLimits);
    let mut host = Limited::new().await;
    let spec = host.gateway.start(agent(&["cat"])).await;
    for id in [host.bystander.lease_id, spec.lease_id] {
        let seen = ["memory.max", "pids.max", "cpu.weight"].map(|file| host.number(id, file, ""));
        // The kernel keeps memory in pages.
        assert_eq!(seen, [100_000_000 / 4096 * 4096, 60, 37]);
    }
}

#[tokio::test]
async fn an_agent_that_takes_too_much_memory_is_killed_and_its_end_is_told() {
    possible!(Ability::CgroupLimits);
    let mut host = Limited::new().await;
    let spec = script("exec awk 'BEGIN { s = \"x\"; while (1) s = s s }'");
    let info = host.gateway.spawn(&spec).await;
    host.gateway.attach(spec.lease_id, 0).await;
    let (status, end) = host.gateway.exited(spec.lease_id).await;
    assert_eq!((status, end), (ExitStatus::Signaled(Signal::KILL.as_raw()), 0));
    eventually("its tree is gone", || !runs(info.wrapper_pid.unwrap()) && !runs(info.adapter_pid.unwrap()));
    host.others_are_well().await;
}

#[tokio::test]
async fn a_tool_that_takes_too_much_memory_is_killed_and_its_agent_goes_on() {
    possible!(Ability::CgroupLimits);
    let mut host = Limited::new().await;
    let spec = script(&format!("({HOG}) > /dev/null 2>&1; echo \"status $?\"; exec cat"));
    let info = host.gateway.spawn(&spec).await;
    host.gateway.attach(spec.lease_id, 0).await;
    assert_eq!(host.gateway.read(spec.lease_id, 0, 11).await, b"status 137\n");
    assert_eq!(host.number(spec.lease_id, "memory.events", "oom_kill "), 1);
    assert!(runs(info.wrapper_pid.unwrap()) && runs(info.adapter_pid.unwrap()));
    host.gateway.input(spec.lease_id, 1, b"on").await.unwrap();
    assert_eq!(host.gateway.read(spec.lease_id, 11, 2).await, b"on");
    host.others_are_well().await;
}

#[tokio::test]
async fn a_fork_bomb_is_held_by_its_limit_and_ended_with_its_lease() {
    possible!(Ability::CgroupLimits);
    let mut host = Limited::new().await;
    // Each process starts two more in sessions of their own, as long as it lives.
    let mut spec = script("trap '' TERM; sh -c \"$B\"; while :; do sleep 1; done");
    let bomb = "while :; do setsid sh -c \"$B\" & setsid sh -c \"$B\" & wait; sleep 1; done";
    spec.env.push(("B".into(), bomb.into()));
    spec.graces.eof_ms = 0;
    spec.graces.term_ms = 0;
    host.gateway.spawn(&spec).await;
    let leaf = host.leaf(spec.lease_id);
    eventually("it has been refused a process", || host.number(spec.lease_id, "pids.events", "max ") > 0);
    assert!(host.number(spec.lease_id, "pids.current", "") <= 60);
    let all = members(&leaf);
    host.others_are_well().await;
    host.gateway.end(spec.lease_id).await;
    assert!(!leaf.exists() && all.iter().all(|pid| !runs(*pid)));
    assert!(runs(host.bystander.adapter_pid.unwrap()));
}

#[tokio::test]
async fn limits_bite_or_are_said_to_have_no_effect() {
    let mut host = Host::idle(
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
            // Which controller, where it was looked for, and where it is instead.
            let warning = warned(key).unwrap();
            assert!(warning.contains(&format!("the {controller} controller is ")), "{warning}");
            assert!(warning.contains(dir.to_str().unwrap()), "{warning}");
            assert!(log.contains(warning), "{log}");
            probe(&format!("the {controller} controller in {}", dir.display()), &warning);
        }
    }
    let of_tenant = warned("pids_max of [[tenant]] number 1");
    assert_eq!(of_tenant.is_some(), warned("pids_max has no effect").is_some(), "{warnings}");
    // A supervisor that would be started from here would say the same, and so says `doctor`.
    let config = host.dir.path().join("supervisor.toml");
    let elsewhere = host.dir.path().join("elsewhere");
    let mut doctor = std::process::Command::new(env!("CARGO_BIN_EXE_acp-supervisor"));
    doctor.args(["doctor", "--json", "--config"]).arg(config).arg("--state-dir").arg(elsewhere);
    let said = doctor.arg("--wrapper").arg(crate::common::wrapper()).output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let checks = said["data"]["checks"].as_array().unwrap();
    let found = checks.iter().filter(|check| check["name"] == "limit").map(|check| check["found"].clone());
    let of_limits = |warning: &&serde_json::Value| warning.as_str().unwrap().contains("has no effect");
    assert_eq!(
        found.collect::<Vec<_>>(),
        warnings.as_array().unwrap().iter().filter(of_limits).cloned().collect::<Vec<_>>()
    );
    // Where it bites, the shell gives up at the first process that it cannot have.
    if warned("pids_max").is_none() {
        assert!(members(&leaf).len() <= 40);
    } else {
        eventually("all of it has started", || members(&leaf).len() >= 60);
    }
}
