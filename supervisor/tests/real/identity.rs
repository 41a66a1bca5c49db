//! Process identity: reused pids, changed names, other namespaces, other tenants.

use crate::common::{Host, agent, at_lower_levels, eventually, is_alive, kill, pids_of, script};
use crate::fixtures::{start_ticks, start_with_pid, with_prefix};
use crate::scenarios::{UNRESPONSIVE, await_unresponsive};
use acp_shared::protocol::LeaseState;
use acp_testkit::ability::Ability;
use acp_testkit::skip_unless;
use rustix::process::Signal;
use std::os::fd::AsFd;

const SLEEP: [&str; 2] = ["/bin/sleep", "300"];

#[tokio::test]
async fn reused_pids_are_not_signalled() {
    skip_unless!(Ability::ChosenPid);
    let mut host = Host::new();
    let identity = host.gateway();
    let info = host.orphan(&identity, &agent(&["cat"])).await;
    // The environment names the gateway, but no lease of it.
    let id = identity.id.to_string();
    let env = [("OPENCLAW_GATEWAY_INSTANCE_ID", id.as_str())];
    let wrapper = start_with_pid(info.wrapper_pid.unwrap(), &SLEEP, &env, None);
    let adapter = start_with_pid(info.adapter_pid.unwrap(), &SLEEP, &env, None);
    host.start();
    assert!(wrapper.is_running() && adapter.is_running(), "a foreign process was killed");
    let (state, reason, evidence) = host.row(info.lease_id);
    assert_eq!(state, "lost", "{reason}");
    assert!(evidence.contains("\"tree\":[]"), "{evidence}");
    host.assert_verdict(info.lease_id, "not_ours");
}

/// Maximum attempts to reuse a pid within one tick.
const REUSES_MAX: usize = 200;

/// Starts two processes with this pid within one clock tick. Returns the second, their start time, and the inode of
/// the first.
fn reuse_pid_in_tick(pid: i32) -> (acp_testkit::sys::ForeignProcess, i64, Option<u64>) {
    let stat = format!("/proc/{pid}/stat");
    for n in 1..=REUSES_MAX {
        let Ok(first) = acp_testkit::sys::ForeignProcess::with_pid(pid, &SLEEP, &[], None) else { continue };
        let (ticks, inode) = (start_ticks(&stat), inode(pid));
        drop(first);
        let Ok(second) = acp_testkit::sys::ForeignProcess::with_pid(pid, &SLEEP, &[], None) else { continue };
        if start_ticks(&stat) == ticks {
            eventually("the process has called exec", || {
                std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("sleep"))
            });
            crate::common::report(&format!("{pid} was reuse_pid_in_tick in tick {ticks} at attempt {n}"));
            return (second, ticks, inode);
        }
    }
    panic!("no reuse within one tick in {REUSES_MAX} attempts");
}

/// Inode of a process in pidfs; `None` if the kernel has none.
fn inode(pid: i32) -> Option<u64> {
    let pidfd = acp_testkit::sys::open(pid).unwrap();
    let pidfs = rustix::fs::fstatfs(&pidfd).unwrap().f_type == 0x5049_4446;
    pidfs.then(|| rustix::fs::fstat(&pidfd).unwrap().st_ino)
}

/// Both start in the same tick. The row has the values of the first process.
#[tokio::test]
async fn inode_distinguishes_pids_reused_in_same_tick() {
    skip_unless!(Ability::ChosenPid);
    let mut host = Host::new();
    let identity = host.gateway();
    let info = host.orphan(&identity, &agent(&["cat"])).await;
    let (w, a) = (info.wrapper_pid.unwrap(), info.adapter_pid.unwrap());
    let (wrapper, w_ticks, w_inode) = reuse_pid_in_tick(w);
    let (adapter, a_ticks, a_inode) = reuse_pid_in_tick(a);
    if w_inode.is_none() {
        crate::common::report("probe: pidfds have no inode here: skipped");
        return;
    }
    assert_ne!(w_inode, inode(w), "reuse_pid_in_tick inode");
    let row = [("wrapper", w_ticks, w_inode), ("adapter", a_ticks, a_inode)]
        .map(|(of, ticks, inode)| format!("{of}_start = {ticks}, {of}_inode = {}", inode.unwrap()));
    host.edit(info.lease_id, &row.join(", "));
    host.start();
    assert!(wrapper.is_running() && adapter.is_running(), "a foreign process was killed");
    assert_eq!(host.row(info.lease_id).0, "lost");
    let report = host.assert_verdict(info.lease_id, "not_ours");
    assert!(report.to_string().contains("(pidfs inode)"), "{report}");
}

/// Another gateway's wrapper gets the pid: the same program, from a launch directory, with markers.
#[tokio::test]
async fn wrapper_of_another_gateway_at_reused_pid_is_not_signalled() {
    skip_unless!(Ability::ChosenPid);
    let (mut host, other) = (Host::new(), Host::new());
    let (identity, neighbour) = (host.gateway(), other.gateway());
    let foreign = neighbour.connect().await.spawn(&agent(&["cat"])).await;
    let info = host.orphan(&identity, &agent(&["cat"])).await;
    let (lease, gateway) = (foreign.lease_id.to_string(), neighbour.id.to_string());
    let env =
        [("OPENCLAW_ACPX_LEASE_ID", lease.as_str()), ("OPENCLAW_GATEWAY_INSTANCE_ID", gateway.as_str())];
    let (kept, control_end) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let wrapper =
        start_with_pid(info.wrapper_pid.unwrap(), &[&foreign.wrapper_path], &env, Some(control_end.as_fd()));
    host.start();
    assert!(wrapper.is_running(), "the neighbour's wrapper was killed");
    assert_eq!(pids_of(foreign.lease_id).len(), 3, "the neighbour's trees changed");
    assert_eq!(host.row(info.lease_id).0, "lost");
    drop(kept);
}

/// An older lease names the processes of a newer one of the same gateway.
#[tokio::test]
async fn newer_of_two_leases_owns_shared_pid() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let (old, new) = (gateway.spawn(&agent(&["cat"])).await, gateway.spawn(&agent(&["cat"])).await);
    kill(old.wrapper_pid.unwrap(), Signal::STOP);
    host.crash_keeping_tree(&new);
    kill(old.wrapper_pid.unwrap(), Signal::KILL);
    eventually("the old tree is gone", || pids_of(old.lease_id).is_empty());
    let (w, a) = (new.wrapper_pid.unwrap(), new.adapter_pid.unwrap());
    host.edit(old.lease_id, &format!("wrapper_pid = {w}, adapter_pid = {a}, pgid = {a}, sid = {w}"));
    host.start();
    assert!(pids_of(new.lease_id).is_empty());
    let (state, _, evidence) = host.row(old.lease_id);
    assert_eq!(state, "lost");
    assert!(!evidence.contains("\"tree\":[{"), "the old lease acted: {evidence}");
    let (state, reason, _) = host.row(new.lease_id);
    assert_eq!((state.as_str(), reason.as_str()), ("closed", "its tree is gone"));
}

#[tokio::test]
async fn rewritten_process_title_keeps_ownership() {
    let node = std::process::Command::new("node").arg("--version").output();
    if !node.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: node --version: {node:?}");
        return;
    }
    let (mut host, mut gateway) = Host::with_gateway().await;
    let program = "process.title = 'x'.repeat(4000); console.log('renamed'); setInterval(() => {}, 1e6)";
    let (spec, info) = gateway.spawn_with_info(agent(&["node", "-e", program])).await;
    gateway.attach(spec.lease_id, 0).await;
    gateway.read(spec.lease_id, 0, 8).await;
    let adapter = info.adapter_pid.unwrap();
    let cmdline = std::fs::read(format!("/proc/{adapter}/cmdline")).unwrap();
    assert!(cmdline.starts_with(b"xxxx"), "{}", String::from_utf8_lossy(&cmdline));
    host.assert_verdict(spec.lease_id, "owned");
    host.crash_keeping_tree(&info);
    host.start();
    assert!(!is_alive(adapter) && pids_of(spec.lease_id).is_empty());
    assert_eq!(host.row(spec.lease_id).0, "closed");
}

#[tokio::test]
async fn wrapper_with_replaced_file_keeps_ownership() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let (closed, orphaned) = (agent(&["cat"]), agent(&["cat"]));
    let infos = [gateway.spawn(&closed).await, gateway.spawn(&orphaned).await];
    for info in &infos {
        std::fs::remove_file(&info.wrapper_path).unwrap();
        std::fs::copy("/bin/true", &info.wrapper_path).unwrap();
        let exe = std::fs::read_link(format!("/proc/{}/exe", info.wrapper_pid.unwrap())).unwrap();
        assert!(exe.to_string_lossy().ends_with(" (deleted)"), "{}", exe.display());
        host.assert_verdict(info.lease_id, "owned");
    }
    gateway.close_and_wait(closed.lease_id).await;
    host.crash_keeping_tree(&infos[1]);
    host.start();
    assert!(infos.iter().all(|info| pids_of(info.lease_id).is_empty()));
    assert_eq!(host.row(orphaned.lease_id).0, "closed");
}

#[tokio::test]
async fn forged_process_name_keeps_ownership() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    // Each shell has a child of this name in its own session.
    let rename = "printf ') S 1 (\\n) Z 1' > /proc/$$/comm; while :; do sleep 1; done";
    let spec = script(&format!("setsid sh -c \"{}\" & {rename}", rename.replace('$', "\\$")));
    let info = gateway.spawn(&spec).await;
    let adapter = info.adapter_pid.unwrap();
    let named = |pid: i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with(") S 1 (\n"))
    };
    eventually("both have the name", || {
        named(adapter) && pids_of(spec.lease_id).iter().filter(|pid| named(**pid)).count() == 2
    });
    let tree = pids_of(spec.lease_id);
    let report = host.assert_verdict(spec.lease_id, "owned");
    let seen =
        report["tree"].as_array().unwrap().iter().filter_map(|p| p["pid"].as_i64()).collect::<Vec<_>>();
    assert!(tree.iter().filter(|pid| named(**pid)).all(|pid| seen.contains(&i64::from(*pid))), "{report}");
    host.crash_keeping_tree(&info);
    kill(info.wrapper_pid.unwrap(), Signal::KILL);
    host.start();
    assert!(tree.iter().all(|pid| !is_alive(*pid)) && pids_of(spec.lease_id).is_empty());
}

/// Two containers share a volume: the pids of the first mean nothing in the second.
#[tokio::test]
async fn other_pid_namespace_signals_nothing() {
    skip_unless!(Ability::PidNamespace);
    let (mut host, mut gateway) = Host::with_gateway().await;
    let (spec, info) = gateway.spawn_unresponsive().await;
    host.crash_keeping_tree(&info);
    let roots = [info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()];
    let prefix = ["unshare", "-p", "-f", "--kill-child", "--mount-proc"];
    let ready = host.launch_ready(with_prefix(&prefix, &host.command()));
    assert_ne!(ready["pid"], host.pid(), "same namespace");
    assert!(roots.iter().all(|pid| is_alive(*pid)), "a process of the other namespace was killed");
    let (state, reason, _) = host.row(spec.lease_id);
    assert_eq!(state, "lost");
    assert!(reason.contains("another pid namespace"), "{reason}");
    host.crash();
    for pid in pids_of(spec.lease_id).into_iter().rev().filter(|pid| !is_sleep(*pid)) {
        kill(pid, Signal::KILL);
    }
}

/// A time namespace shifts start times, but not inodes.
#[tokio::test]
async fn shifted_start_time_with_inode_keeps_ownership() {
    skip_unless!(Ability::TimeNamespace);
    for shift in ["100000", "-1"] {
        let mut host = Host::new();
        let identity = host.gateway();
        let (spec, info) = identity.connect().await.spawn_unresponsive().await;
        host.crash_keeping_tree(&info);
        let prefix = ["unshare", "-T", "--boottime", shift, "--fork", "--kill-child"];
        host.launch_ready(with_prefix(&prefix, &host.command()));
        assert_eq!(pids_of(spec.lease_id), [0; 0], "{shift}");
        assert_eq!(host.row(spec.lease_id).0, "closed", "{shift}");
    }
}

/// A shifted start time may be that of another process, so the lease stays open until a supervisor with the original
/// clock ends the tree.
async fn check_shifted_clock_without_inodes(level: &str) {
    skip_unless!(Ability::TimeNamespace);
    for shift in ["100000", "-1"] {
        let Some(mut host) = Host::at_level(level) else { return };
        let identity = host.gateway();
        let (spec, info) = identity.connect().await.spawn_unresponsive().await;
        let roots = [info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()];
        host.crash_keeping_tree(&info);
        // As recorded by a kernel without inodes or a level without pidfds.
        host.edit(spec.lease_id, "wrapper_inode = NULL, adapter_inode = NULL, supervisor_inode = NULL");
        let prefix = ["unshare", "-T", "--boottime", shift, "--fork", "--kill-child"];
        host.launch_ready(with_prefix(&prefix, &host.command()));
        let (state, reason, _) = host.row(spec.lease_id);
        assert_eq!(state, "open", "{shift}: {reason}");
        assert!(roots.iter().all(|pid| is_alive(*pid)), "{shift}");
        // The exit code reports the verdict too.
        let report = host.cli(&["leases", "verify", &spec.lease_id.to_string(), "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
        let report = &report["data"];
        assert_eq!(report["verdict"], "unknown", "{shift}: {report}");
        assert!(report["why"].as_str().unwrap().contains("time namespace"), "{report}");
        host.restart_after_crash();
        assert_eq!(pids_of(spec.lease_id), [0; 0], "{shift}");
        assert_eq!(host.row(spec.lease_id).0, "closed", "{shift}");
    }
}

/// The supervisor of the leases lives in another time namespace than the one that finds a copy of them.
async fn check_supervisor_in_other_time_namespace(level: &str) {
    skip_unless!(Ability::TimeNamespace);
    for shift in ["100000", "-1"] {
        let Some(mut host) = Host::at_level(level) else { return };
        let identity = host.gateway();
        let spec = agent(&["cat"]);
        let info = identity.connect().await.spawn(&spec).await;
        let mut copy = Host::prepare(&format!("rung = {level:?}"));
        host.await_settled(spec.lease_id);
        host.copy_state(&copy);
        copy.edit(spec.lease_id, "wrapper_inode = NULL, adapter_inode = NULL, supervisor_inode = NULL");
        let prefix = ["unshare", "-T", "--boottime", shift, "--fork", "--kill-child"];
        let ready = copy.launch(with_prefix(&prefix, &copy.command()));
        assert_eq!(ready["event"], "ready", "{ready}");
        let lines = copy.json(&["leases", "reap", "--dry-run"]);
        assert_eq!(lines[0]["action"], "leave", "{shift}: {lines}");
        let why = "it is unknown whether the supervisor that spawned it lives";
        assert_eq!(lines[0]["why"], why, "{shift}: {lines}");
        assert!(is_alive(info.wrapper_pid.unwrap()) && is_alive(info.adapter_pid.unwrap()), "{shift}");
        assert_eq!(copy.row(spec.lease_id).0, "open", "{shift}");
        copy.crash();
        host.crash();
    }
}

at_lower_levels! {
    #[tokio::test] async fn without_inodes_shifted_clock_proves_nothing = check_shifted_clock_without_inodes,
    #[tokio::test]
    async fn living_supervisor_in_other_time_namespace_keeps_lease = check_supervisor_in_other_time_namespace,
}

/// The recorded pid is a thread id of a neighbour's supervisor.
#[tokio::test]
async fn thread_id_of_foreign_process_is_not_signalled() {
    skip_unless!(Ability::ChosenPid);
    let (mut host, other) = (Host::new(), Host::new());
    let identity = host.gateway();
    let info = host.orphan(&identity, &agent(&["cat"])).await;
    let tasks = std::fs::read_dir(format!("/proc/{}/task", other.pid())).unwrap().flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
    let tids: Vec<i32> = tids.filter(|tid| *tid != other.pid()).take(2).collect();
    let &[w, a] = tids.as_slice() else { panic!("a supervisor of few threads: {tids:?}") };
    assert!(std::path::Path::new(&format!("/proc/{w}")).exists(), "no /proc entry");
    let ticks = [w, a].map(|tid| start_ticks(&format!("/proc/{tid}/stat")));
    for inode in ["= wrapper_inode", "= NULL"] {
        host.edit(
            info.lease_id,
            &format!(
                "wrapper_pid = {w}, wrapper_start = {}, wrapper_inode {inode}, adapter_pid = {a}, adapter_start = {},
                 adapter_inode {inode}, pgid = {a}, sid = {w}, state = 'open', ended_at_ms = NULL",
                ticks[0], ticks[1]
            ),
        );
        host.start();
        assert!(is_alive(other.pid()), "the neighbour was killed");
        assert_eq!(host.row(info.lease_id).0, "lost", "{inode}");
        host.crash();
    }
    assert_eq!(other.json(&["status"])["pid"], other.pid());
}

/// Two supervisors of one user with one wrapper program.
#[tokio::test]
async fn startup_reap_spares_other_tenants() {
    let (mut host, mut other) = (Host::new(), Host::new());
    let (own, neighbour) = (host.gateway(), other.gateway());
    let (mut a, mut b) = (own.connect().await, neighbour.connect().await);
    let (spec, info) = a.spawn_with_info(script(UNRESPONSIVE)).await;
    let living = [script(UNRESPONSIVE), agent(&["cat"])];
    for spec in &living {
        b.spawn(spec).await;
    }
    // One lease of the neighbour has a stopped wrapper.
    let (orphaned, orphan) = b.spawn_with_info(agent(&["sleep", "300"])).await;
    await_unresponsive(spec.lease_id);
    await_unresponsive(living[0].lease_id);
    kill(orphan.wrapper_pid.unwrap(), Signal::STOP);
    let pids = |specs: &[acp_shared::protocol::Spawn]| {
        specs.iter().flat_map(|spec| pids_of(spec.lease_id)).filter(|pid| !is_sleep(*pid)).collect::<Vec<_>>()
    };
    let before = pids(&living);
    host.crash_keeping_tree(&info);
    host.start();
    assert!(pids_of(spec.lease_id).is_empty());
    assert_eq!(pids(&living), before, "the neighbour's trees changed");
    assert!(is_alive(orphan.wrapper_pid.unwrap()) && is_alive(orphan.adapter_pid.unwrap()));
    let leases = b.leases().await;
    assert!(leases.iter().all(|lease| lease.state == LeaseState::Open), "{leases:?}");
    // The neighbour's supervisor is dead.
    other.crash();
    host.restart_after_crash();
    assert!(is_alive(orphan.wrapper_pid.unwrap()) && is_alive(orphan.adapter_pid.unwrap()));
    other.start();
    assert!(pids_of(orphaned.lease_id).is_empty());
}

/// True for the sleep of a shell's loop, which changes its pid.
fn is_sleep(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("sleep"))
}
