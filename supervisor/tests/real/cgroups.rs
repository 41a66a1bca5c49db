//! Trees in a control group (containment level R1), compared with the walk (R2).

use crate::common::{Client, Host, Identity, agent, eventually, is_alive, kill, pids_of, report, script};
use crate::crash::Decoy;
use crate::test_cgroup::{TestGroup, add_process, members, report_probe};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{LeaseInfo, LeaseState, Spawn};
use acp_supervisor::core::containment::{CgroupLimits, CgroupSupport};
use acp_supervisor::sys::cgroup::choose_subtree;
use acp_supervisor::sys::linux::Linux;
use acp_supervisor::sys::{Sys, packet};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A host on R1 with one agent.
struct R1Host {
    host: Host,
    identity: Identity,
    gateway: Client,
    info: LeaseInfo,
    leaf: PathBuf,
}

impl R1Host {
    /// Returns `None` and prints the reason without control groups.
    async fn new(spec: &Spawn) -> Option<Self> {
        let host = Host::at_level("R1")?;
        let (identity, mut gateway) = host.connect_gateway().await;
        let info = gateway.spawn(spec).await;
        let leaf = host.group.as_ref().unwrap().leaf(spec.lease_id).unwrap();
        Some(Self { host, identity, gateway, info, leaf })
    }

    fn lease_id(&self) -> LeaseId {
        self.info.lease_id
    }

    async fn close(&mut self) {
        self.gateway.close_and_wait(self.info.lease_id).await;
    }
}

/// Waits until a script has written its pid into a file.
fn pid_in(file: &Path) -> i32 {
    eventually("a pid is written", || file.exists());
    std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

/// Shell command that starts a process without environment in its own session and writes its pid into `file`.
fn escape(file: &Path) -> String {
    let file = file.display();
    format!(
        "setsid env -i /bin/sh -c 'echo $$ > {file}.tmp; /bin/mv {file}.tmp {file}; trap \"\" TERM HUP; while :; do /bin/sleep 1; done' &"
    )
}

#[tokio::test]
async fn lease_has_cgroup_from_first_to_last_process() {
    let spec = agent(&["cat"]);
    let Some(mut r1) = R1Host::new(&spec).await else { return };
    let info = r1.info.clone();
    assert_eq!(info.rung, "R1");
    let path = info.cgroup_path.unwrap();
    assert!(r1.leaf.to_str().unwrap().ends_with(&path), "{path}");
    let mut both = vec![info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()];
    both.sort_unstable();
    assert_eq!(members(&r1.leaf), both);
    let id = r1.lease_id().to_string();
    let report = r1.host.json(&["leases", "verify", &id]);
    let facts = report["facts"].as_array().unwrap();
    let groups: Vec<_> = facts.iter().filter(|fact| fact["name"] == "cgroup").collect();
    assert_eq!(groups.len(), 2, "{report}");
    assert!(groups.iter().all(|fact| fact["agrees"] == true && fact["live"] == path.as_str()), "{report}");
    r1.close().await;
    assert!(!r1.leaf.exists(), "the cgroup remains");
    assert_eq!(r1.host.stop(), Some(0));
    assert!(r1.host.group.as_ref().unwrap().descendants().is_empty(), "the supervisor's own cgroup remains");
}

/// A move into a group can take more than 10 ms, in which the wrapper would run outside.
#[test]
fn wrapper_begins_in_its_cgroup() {
    let Some(group) = TestGroup::new() else { return };
    let system = Linux::new();
    let subtree = choose_subtree(system.groups(), Some(group.dir()), "ab").unwrap();
    let support = system.groups().unwrap().prepare(&subtree, Path::new("/bin/cat")).0;
    assert_eq!(support, CgroupSupport::Work);
    let leaf = subtree.leaf(LeaseId::mint());
    let start = |command: &Command| {
        let (theirs, ours) = packet::control_pair().unwrap();
        system.start_in_group(&leaf, command, &theirs).map(|pid| (pid, ours))
    };
    let mut cat = Command::new("/bin/cat");
    cat.env_clear().env("ACP_ONE", "1").env("ACP_TWO", "a=b");
    assert_eq!(start(&cat).unwrap().0, None, "the group does not exist");
    system.make_group(&leaf, &CgroupLimits::default()).unwrap();

    let (started, control) = start(&cat).unwrap();
    let Some(pid) = started else { return report_probe("clone3 into a control group", &"not possible") };
    assert_eq!(system.group_members(&leaf).unwrap().pids, [pid]);
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!(
        (read("cmdline"), read("environ")),
        ("acp-wrapper\0".into(), "ACP_ONE=1\0ACP_TWO=a=b\0".into())
    );
    let status = read("status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    // Signals 32 and 33 belong to the C library, which lets nobody set them.
    let set = |name: &str| u64::from_str_radix(field(name), 16).unwrap() & !(0b11 << 31);
    assert_eq!(["SigBlk:", "SigIgn:", "SigCgt:"].map(set), [0; 3]);
    // Its standard input is the only descriptor of the socket that it has.
    drop(control);
    let end = WaitIdOptions::EXITED;
    let status = rustix::process::waitid(WaitId::Pid(Pid::from_raw(pid).unwrap()), end).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0));

    let failed = start(&Command::new("/nonexistent/wrapper")).unwrap_err();
    assert_eq!(failed.kind(), std::io::ErrorKind::NotFound);
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    assert!(system.children().iter().all(|child| child.thread != thread), "the child is reaped");
}

#[tokio::test]
async fn cgroups_of_killed_supervisor_are_removed_at_next_start() {
    let spec = agent(&["cat"]);
    let Some(mut r1) = R1Host::new(&spec).await else { return };
    r1.host.crash();
    eventually("the wrapper has cleaned up", || members(&r1.leaf).is_empty());
    assert!(r1.leaf.exists());
    r1.host.start();
    assert!(!r1.leaf.exists());
    // Another level finds and removes the cgroup too.
    let mut gateway = r1.identity.connect().await;
    let (again, info) = gateway.spawn_with_info(agent(&["cat"])).await;
    r1.host.crash_with_wrapper(&info);
    r1.host.config = r1.host.config.replace("\"R1\"", "\"R2\"");
    r1.host.start();
    assert_eq!(r1.host.json(&["status"])["rung"], "R2");
    assert!(pids_of(again.lease_id).is_empty());
    assert_eq!(r1.host.group.as_ref().unwrap().leaf(again.lease_id), None);
}

#[tokio::test]
async fn grandchild_without_environment_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let spec = script(&format!("{} cat", escape(&file)));
    let Some(mut r1) = R1Host::new(&spec).await else { return };
    let escaped = pid_in(&file);
    assert!(members(&r1.leaf).contains(&escaped) && !pids_of(spec.lease_id).contains(&escaped));
    r1.close().await;
    assert!(!is_alive(escaped));
}

/// H23, which R2 cannot do: after the death of wrapper and supervisor only the cgroup names the lease.
#[tokio::test]
async fn escaped_process_is_found_by_cgroup_only() {
    let dir = tempfile::tempdir().unwrap();
    for level in ["R1", "R2"] {
        let Some(mut host) = Host::at_level(level) else { continue };
        let (identity, mut gateway) = host.connect_gateway().await;
        let file = dir.path().join(level);
        let (spec, info) = gateway.spawn_with_info(script(&format!("{} cat", escape(&file)))).await;
        let escaped = pid_in(&file);
        host.crash_with_wrapper(&info);
        assert!(is_alive(escaped), "{level}: the escaped process ended");
        host.start();
        assert_eq!(is_alive(escaped), level == "R2", "{level}");
        let mut gateway = identity.connect().await;
        assert!(gateway.leases().await.remove(0).state.is_ended(), "{level}");
        if level == "R2" {
            kill(escaped, Signal::KILL);
        }
        assert!(host.group.as_ref().is_none_or(|group| group.leaf(spec.lease_id).is_none()), "{level}");
    }
}

#[tokio::test]
async fn killed_wrapper_leaves_empty_cgroup() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let spec = script(&format!("trap '' TERM; {} while :; do sleep 1; done", escape(&file)));
    let Some(mut r1) = R1Host::new(&spec).await else { return };
    let escaped = pid_in(&file);
    kill(r1.info.wrapper_pid.unwrap(), Signal::KILL);
    r1.gateway.state(spec.lease_id, LeaseState::Lost).await;
    assert!(!is_alive(escaped) && pids_of(spec.lease_id).is_empty());
    assert!(!r1.leaf.exists());
}

#[tokio::test]
async fn nested_pid_namespace_is_ended_with_lease() {
    let probed = Command::new("unshare").args(["-pf", "--mount-proc", "true"]).output();
    if !probed.as_ref().is_ok_and(|output| output.status.success()) {
        return report_probe("unshare -pf --mount-proc true", &probed);
    }
    let inner = "trap \"\" TERM HUP; (setsid env -i /bin/sleep 300 &); while :; do sleep 1; done";
    let spec = script(&format!("unshare -pf --mount-proc sh -c '{inner}' & cat"));
    let Some(mut r1) = R1Host::new(&spec).await else { return };
    // Wrapper, shell, cat, unshare; in the namespace a shell and two sleeps.
    eventually("the namespace is populated", || members(&r1.leaf).len() >= 7);
    let all = members(&r1.leaf);
    // Orphans of the namespace are adopted by its init, so the wrapper is killed first.
    kill(r1.info.wrapper_pid.unwrap(), Signal::KILL);
    r1.gateway.state(spec.lease_id, LeaseState::Lost).await;
    // An exiting process leaves its cgroup before it is a zombie.
    eventually("no process of the tree runs", || !all.iter().any(|pid| is_alive(*pid)));
}

#[tokio::test]
async fn fork_bomb_is_killed_in_time() {
    // Every process starts two more in their own sessions, nine generations deep, and they stay.
    let bomb = "b() { [ $1 -lt 9 ] || exec sleep 300; setsid sh -c \"$B\" b $(($1 + 1)) & setsid sh -c \"$B\" b $(($1 + 1)) & wait; }; b $1";
    let mut spec = script("trap '' TERM; sh -c \"$B\" b 0 & while :; do sleep 1; done");
    spec.env.push(("B".into(), bomb.into()));
    spec.graces.eof_ms = 0;
    spec.graces.term_ms = 0;
    let Some(mut r1) = R1Host::new(&spec).await else { return };
    let (_, bystander) = r1.gateway.spawn_with_info(agent(&["cat"])).await;
    eventually("the tree has grown", || members(&r1.leaf).len() > 200);
    let all = members(&r1.leaf);
    let since = std::time::Instant::now();
    r1.close().await;
    assert!(all.iter().all(|pid| !is_alive(*pid)) && pids_of(spec.lease_id).is_empty());
    let (took, pace) = (since.elapsed(), acp_testkit::pace::time_to_kill(all.len()).unwrap());
    report(&format!("{} processes killed in {took:?}; as many idle ones in {pace:?}", all.len()));
    assert!(took < std::time::Duration::from_secs(5) + 10 * pace, "{took:?}, with {pace:?} for idle ones");
    assert!(is_alive(bystander.adapter_pid.unwrap()) && is_alive(bystander.wrapper_pid.unwrap()));
}

#[tokio::test]
async fn frozen_cgroup_is_killed() {
    let Some(mut r1) = R1Host::new(&script("trap '' TERM; while :; do sleep 1; done")).await else {
        return;
    };
    std::fs::write(r1.leaf.join("cgroup.freeze"), "1").unwrap();
    let events = r1.leaf.join("cgroup.events");
    eventually("the cgroup is frozen", || std::fs::read_to_string(&events).unwrap().contains("frozen 1"));
    r1.close().await;
    assert!(pids_of(r1.lease_id()).is_empty() && !r1.leaf.exists());
}

#[tokio::test]
async fn cgroup_with_supervisor_is_not_killed_as_a_whole() {
    let spec = script("trap '' TERM; setsid sleep 300 & while :; do sleep 1; done");
    let Some(mut r1) = R1Host::new(&spec).await else { return };
    add_process(&r1.leaf, r1.host.pid());
    r1.close().await;
    assert!(is_alive(r1.host.pid()), "the supervisor was killed");
    assert_eq!(members(&r1.leaf), [r1.host.pid()], "other processes remain");
    // A cgroup with controllers enabled for its children takes no process.
    let home = r1.host.group.as_ref().unwrap().dir().join("home");
    std::fs::create_dir(&home).unwrap();
    add_process(&home, r1.host.pid());
}

#[tokio::test]
async fn cgroup_with_root_of_another_lease_is_not_killed_as_a_whole() {
    let spec = script("trap '' TERM; while :; do sleep 1; done");
    let Some(mut r1) = R1Host::new(&spec).await else { return };
    let (other, bystander) = r1.gateway.spawn_with_info(agent(&["cat"])).await;
    add_process(&r1.leaf, bystander.wrapper_pid.unwrap());
    r1.close().await;
    assert!(is_alive(bystander.wrapper_pid.unwrap()) && is_alive(bystander.adapter_pid.unwrap()));
    assert!(pids_of(spec.lease_id).is_empty());
    assert!(
        r1.gateway.leases().await.iter().any(|l| l.lease_id == other.lease_id && l.state == LeaseState::Open)
    );
}

/// Changes the recorded cgroup of the only lease of a dead supervisor, and reopens the lease.
fn set_recorded_cgroup(host: &Host, group: &str) {
    let sql = "UPDATE leases SET cgroup_path = ?1, state = 'open', ended_at_ms = NULL";
    assert_eq!(host.rows().execute(sql, [group]).unwrap(), 1);
}

/// A damaged or forged row names a foreign cgroup.
#[tokio::test]
async fn foreign_cgroup_is_never_killed() {
    let Some(mut r1) = R1Host::new(&script("trap '' TERM; while :; do sleep 1; done")).await else {
        return;
    };
    let foreign = r1.host.group.as_ref().unwrap().dir().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    let decoy = Decoy::new(LeaseId::mint(), GatewayInstanceId::mint());
    let pid = decoy.pid();
    add_process(&foreign, pid);
    r1.host.crash_with_wrapper(&r1.info);
    let path = r1.info.cgroup_path.clone().unwrap();
    let base = path.split("/acp-supervisor-").next().unwrap();
    for forged in
        [format!("{base}/foreign"), format!("{path}/../../foreign"), base.to_owned(), "/".to_owned()]
    {
        set_recorded_cgroup(&r1.host, &forged);
        r1.host.start();
        assert!(is_alive(pid), "{forged}");
        assert!(pids_of(r1.lease_id()).is_empty(), "{forged}: the lease's own tree remains");
        r1.host.crash();
    }
}

#[tokio::test]
async fn unavailable_configured_level_refuses_start() {
    let mut host = Host::prepare("rung = \"R1\"");
    host.group = None;
    host.config = "rung = \"R1\"\ncgroup_root = \"/nonexistent/group\"".to_owned();
    let output = host.command().output().unwrap();
    assert_eq!(output.status.code(), Some(2), "exit code without restart");
    let output_text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output_text.contains("RUNG_UNAVAILABLE")
            && output_text.contains("is configured but not available here"),
        "{output_text}"
    );
    assert!(!host.socket().exists());
    // Without a configured level the best available one is used.
    host.config = "cgroup_root = \"/nonexistent/group\"".to_owned();
    host.start();
    assert_eq!(host.json(&["status"])["rung"], "R2");
    let mut gateway = host.gateway().connect().await;
    let info = gateway.spawn(&agent(&["cat"])).await;
    assert_eq!((info.rung.as_str(), info.cgroup_path), ("R2", None));
}
