//! Trees that are held by a control group (rung R1), beside what the walk (R2) can and cannot do.

use crate::common::{Client, Host, Identity, agent, eventually, kill, marked, runs, say, script};
use crate::crash::Decoy;
use crate::rig_groups::{members, probe, put};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::protocol::{LeaseInfo, LeaseState, Spawn};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A host on R1 with one agent.
struct Held {
    host: Host,
    identity: Identity,
    gateway: Client,
    info: LeaseInfo,
    leaf: PathBuf,
}

impl Held {
    /// `None`, with the reason printed, without control groups.
    async fn new(spec: &Spawn) -> Option<Self> {
        let host = Host::on("R1")?;
        let (identity, mut gateway) = host.connect_gateway().await;
        let info = gateway.spawn(spec).await;
        let leaf = host.group.as_ref().unwrap().leaf(spec.lease_id).unwrap();
        Some(Self { host, identity, gateway, info, leaf })
    }

    fn lease_id(&self) -> LeaseId {
        self.info.lease_id
    }

    async fn closed(&mut self) {
        self.gateway.end(self.info.lease_id).await;
    }
}

/// Waits until a script wrote its pid into a file.
fn pid_in(file: &Path) -> i32 {
    eventually("a pid is written", || file.exists());
    std::fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

/// Puts a process without environment in a session of its own and writes its pid into `file`.
fn escape(file: &Path) -> String {
    let file = file.display();
    format!(
        "setsid env -i /bin/sh -c 'echo $$ > {file}.tmp; /bin/mv {file}.tmp {file}; trap \"\" TERM HUP; while :; do /bin/sleep 1; done' &"
    )
}

#[tokio::test]
async fn a_lease_has_a_group_from_its_first_process_to_its_last() {
    let spec = agent(&["cat"]);
    let Some(mut held) = Held::new(&spec).await else { return };
    let info = held.info.clone();
    assert_eq!(info.rung, "R1");
    let path = info.cgroup_path.unwrap();
    assert!(held.leaf.to_str().unwrap().ends_with(&path), "{path}");
    let mut both = vec![info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()];
    both.sort_unstable();
    assert_eq!(members(&held.leaf), both);
    let id = held.lease_id().to_string();
    let report = held.host.json(&["leases", "verify", &id]);
    let facts = report["facts"].as_array().unwrap();
    let groups: Vec<_> = facts.iter().filter(|fact| fact["name"] == "cgroup").collect();
    assert_eq!(groups.len(), 2, "{report}");
    assert!(groups.iter().all(|fact| fact["agrees"] == true && fact["live"] == path.as_str()), "{report}");
    held.closed().await;
    assert!(!held.leaf.exists(), "the group is removed");
    assert_eq!(held.host.stop(), Some(0));
    assert!(held.host.group.as_ref().unwrap().below().is_empty(), "the supervisor's own group is removed");
}

#[tokio::test]
async fn groups_that_a_killed_supervisor_left_are_removed_by_the_next() {
    let spec = agent(&["cat"]);
    let Some(mut held) = Held::new(&spec).await else { return };
    held.host.crash();
    eventually("the wrapper has cleaned up", || members(&held.leaf).is_empty());
    assert!(held.leaf.exists());
    held.host.start();
    assert!(!held.leaf.exists());
    // On another rung the group is still found and removed.
    let mut gateway = held.identity.connect().await;
    let (again, info) = gateway.start_known(agent(&["cat"])).await;
    held.host.crash_with_wrapper(&info);
    held.host.config = held.host.config.replace("\"R1\"", "\"R2\"");
    held.host.start();
    assert_eq!(held.host.json(&["status"])["rung"], "R2");
    assert!(marked(again.lease_id).is_empty());
    assert_eq!(held.host.group.as_ref().unwrap().leaf(again.lease_id), None);
}

#[tokio::test]
async fn a_grandchild_without_environment_is_ended_with_its_lease() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let spec = script(&format!("{} cat", escape(&file)));
    let Some(mut held) = Held::new(&spec).await else { return };
    let stray = pid_in(&file);
    assert!(members(&held.leaf).contains(&stray) && !marked(spec.lease_id).contains(&stray));
    held.closed().await;
    assert!(!runs(stray));
}

/// What R2 cannot do (H23): wrapper and supervisor are both killed, and nothing names the lease any more.
#[tokio::test]
async fn an_escapee_is_found_by_its_group_and_by_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    for rung in ["R1", "R2"] {
        let Some(mut host) = Host::on(rung) else { continue };
        let (identity, mut gateway) = host.connect_gateway().await;
        let file = dir.path().join(rung);
        let (spec, info) = gateway.start_known(script(&format!("{} cat", escape(&file)))).await;
        let stray = pid_in(&file);
        host.crash_with_wrapper(&info);
        assert!(runs(stray), "{rung}: an escapee outlives both");
        host.start();
        assert_eq!(runs(stray), rung == "R2", "{rung}");
        let mut gateway = identity.connect().await;
        assert!(gateway.leases().await.remove(0).state.is_ended(), "{rung}");
        if rung == "R2" {
            kill(stray, Signal::KILL);
        }
        assert!(host.group.as_ref().is_none_or(|group| group.leaf(spec.lease_id).is_none()), "{rung}");
    }
}

#[tokio::test]
async fn a_killed_wrapper_leaves_nothing_in_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let spec = script(&format!("trap '' TERM; {} while :; do sleep 1; done", escape(&file)));
    let Some(mut held) = Held::new(&spec).await else { return };
    let stray = pid_in(&file);
    kill(held.info.wrapper_pid.unwrap(), Signal::KILL);
    held.gateway.state(spec.lease_id, LeaseState::Lost).await;
    assert!(!runs(stray) && marked(spec.lease_id).is_empty());
    assert!(!held.leaf.exists());
}

#[tokio::test]
async fn a_nested_pid_namespace_is_ended_with_its_lease() {
    let able = Command::new("unshare").args(["-pf", "--mount-proc", "true"]).output();
    if !able.as_ref().is_ok_and(|output| output.status.success()) {
        return probe("unshare -pf --mount-proc true", &able);
    }
    let inner = "trap \"\" TERM HUP; (setsid env -i /bin/sleep 300 &); while :; do sleep 1; done";
    let spec = script(&format!("unshare -pf --mount-proc sh -c '{inner}' & cat"));
    let Some(mut held) = Held::new(&spec).await else { return };
    // The wrapper, the shell, cat, unshare, and in the namespace a shell and two sleeps.
    eventually("the namespace is populated", || members(&held.leaf).len() >= 7);
    let all = members(&held.leaf);
    // The wrapper is killed first: the orphans of the namespace belong to that namespace's first process.
    kill(held.info.wrapper_pid.unwrap(), Signal::KILL);
    held.gateway.state(spec.lease_id, LeaseState::Lost).await;
    // Who is on its way out has left its group before it is a zombie.
    eventually("no process of it runs", || !all.iter().any(|pid| runs(*pid)));
}

#[tokio::test]
async fn a_fork_bomb_is_over_at_once() {
    // Bounded: each process makes two in sessions of their own, nine generations deep, and they stay.
    let bomb = "b() { [ $1 -lt 9 ] || exec sleep 300; setsid sh -c \"$B\" b $(($1 + 1)) & setsid sh -c \"$B\" b $(($1 + 1)) & wait; }; b $1";
    let mut spec = script("trap '' TERM; sh -c \"$B\" b 0 & while :; do sleep 1; done");
    spec.env.push(("B".into(), bomb.into()));
    spec.graces.eof_ms = 0;
    spec.graces.term_ms = 0;
    let Some(mut held) = Held::new(&spec).await else { return };
    let (_, bystander) = held.gateway.start_known(agent(&["cat"])).await;
    eventually("the tree has grown", || members(&held.leaf).len() > 200);
    let all = members(&held.leaf);
    let since = std::time::Instant::now();
    held.closed().await;
    assert!(all.iter().all(|pid| !runs(*pid)) && marked(spec.lease_id).is_empty());
    let (took, pace) = (since.elapsed(), acp_testkit::pace::to_end(all.len()).unwrap());
    say(&format!("{} processes extinct after {took:?}; as many idle ones end in {pace:?}", all.len()));
    assert!(took < std::time::Duration::from_secs(5) + 10 * pace, "{took:?}, with {pace:?} for idle ones");
    assert!(runs(bystander.adapter_pid.unwrap()) && runs(bystander.wrapper_pid.unwrap()));
}

#[tokio::test]
async fn a_frozen_group_is_killed() {
    let Some(mut held) = Held::new(&script("trap '' TERM; while :; do sleep 1; done")).await else { return };
    std::fs::write(held.leaf.join("cgroup.freeze"), "1").unwrap();
    let events = held.leaf.join("cgroup.events");
    eventually("it is frozen", || std::fs::read_to_string(&events).unwrap().contains("frozen 1"));
    held.closed().await;
    assert!(marked(held.lease_id()).is_empty() && !held.leaf.exists());
}

#[tokio::test]
async fn a_group_with_the_supervisor_in_it_is_walked_instead() {
    let spec = script("trap '' TERM; setsid sleep 300 & while :; do sleep 1; done");
    let Some(mut held) = Held::new(&spec).await else { return };
    put(&held.leaf, held.host.pid());
    held.closed().await;
    assert!(runs(held.host.pid()), "the supervisor has not killed itself");
    assert_eq!(members(&held.leaf), [held.host.pid()], "all other processes are gone");
    // Into a group of its own: one with controllers for those below it takes no process.
    let home = held.host.group.as_ref().unwrap().dir().join("home");
    std::fs::create_dir(&home).unwrap();
    put(&home, held.host.pid());
}

#[tokio::test]
async fn the_root_of_another_lease_is_never_killed_with_a_group() {
    let spec = script("trap '' TERM; while :; do sleep 1; done");
    let Some(mut held) = Held::new(&spec).await else { return };
    let (other, bystander) = held.gateway.start_known(agent(&["cat"])).await;
    put(&held.leaf, bystander.wrapper_pid.unwrap());
    held.closed().await;
    assert!(runs(bystander.wrapper_pid.unwrap()) && runs(bystander.adapter_pid.unwrap()));
    assert!(marked(spec.lease_id).is_empty());
    assert!(
        held.gateway
            .leases()
            .await
            .iter()
            .any(|l| l.lease_id == other.lease_id && l.state == LeaseState::Open)
    );
}

/// Changes the group that the one lease of a dead supervisor names, and opens it again.
fn name_group(host: &Host, group: &str) {
    let sql = "UPDATE leases SET cgroup_path = ?1, state = 'open', ended_at_ms = NULL";
    assert_eq!(host.rows().execute(sql, [group]).unwrap(), 1);
}

/// A lease that names somebody else's group, as a damaged or forged store would: nothing in there is touched.
#[tokio::test]
async fn a_group_that_is_not_of_the_lease_is_never_killed() {
    let Some(mut held) = Held::new(&script("trap '' TERM; while :; do sleep 1; done")).await else { return };
    let foreign = held.host.group.as_ref().unwrap().dir().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    let decoy = Decoy::new(LeaseId::mint(), GatewayInstanceId::mint());
    let pid = decoy.pid();
    put(&foreign, pid);
    held.host.crash_with_wrapper(&held.info);
    let path = held.info.cgroup_path.clone().unwrap();
    let base = path.split("/acp-supervisor-").next().unwrap();
    for forged in
        [format!("{base}/foreign"), format!("{path}/../../foreign"), base.to_owned(), "/".to_owned()]
    {
        name_group(&held.host, &forged);
        held.host.start();
        assert!(runs(pid), "{forged}");
        assert!(marked(held.lease_id()).is_empty(), "{forged}: its own tree is found without it");
        held.host.crash();
    }
}

#[tokio::test]
async fn a_rung_that_cannot_be_had_refuses_the_start() {
    let mut host = Host::idle("rung = \"R1\"");
    host.group = None;
    host.config = "rung = \"R1\"\ncgroup_root = \"/nonexistent/group\"".to_owned();
    let output = host.command().output().unwrap();
    assert_eq!(output.status.code(), Some(2), "a service manager does not restart it");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("RUNG_UNAVAILABLE") && said.contains("is configured but not available here"),
        "{said}"
    );
    assert!(!host.socket().exists());
    // The best there is, without a name, is taken.
    host.config = "cgroup_root = \"/nonexistent/group\"".to_owned();
    host.start();
    assert_eq!(host.json(&["status"])["rung"], "R2");
    let mut gateway = host.gateway().connect().await;
    let info = gateway.spawn(&agent(&["cat"])).await;
    assert_eq!((info.rung.as_str(), info.cgroup_path), ("R2", None));
}
