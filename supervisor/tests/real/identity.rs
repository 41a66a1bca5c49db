//! Who a process is: numbers that were given anew, names that changed, other namespaces, other tenants.

use crate::common::{Host, agent, eventually, kill, marked, on_lower_rungs, runs, script};
use crate::ground::{start_ticks, stranger, under};
use crate::start::STUBBORN;
use acp_shared::protocol::LeaseState;
use acp_testkit::ability::Ability;
use acp_testkit::possible;
use rustix::process::Signal;
use std::os::fd::AsFd;

const SLEEP: [&str; 2] = ["/bin/sleep", "300"];

#[tokio::test]
async fn numbers_that_were_given_to_strangers_are_not_signalled() {
    possible!(Ability::ChosenPid);
    let mut host = Host::new();
    let identity = host.gateway();
    let info = host.orphan(&identity, &agent(&["cat"])).await;
    // They even say that they are of that gateway: but of no lease of it.
    let id = identity.id.to_string();
    let env = [("OPENCLAW_GATEWAY_INSTANCE_ID", id.as_str())];
    let wrapper = stranger(info.wrapper_pid.unwrap(), &SLEEP, &env, None);
    let adapter = stranger(info.adapter_pid.unwrap(), &SLEEP, &env, None);
    host.start();
    assert!(wrapper.runs() && adapter.runs(), "foreign processes are alive");
    let (state, reason, evidence) = host.row(info.lease_id);
    assert_eq!(state, "lost", "{reason}");
    assert!(evidence.contains("\"tree\":[]"), "{evidence}");
    host.verified(info.lease_id, "not_ours");
}

/// How often a number is given anew until both processes have started in one tick.
const REUSES_MAX: usize = 200;

/// A process that got the number of another within the same tick of the clock: its start time and the inode of the one
/// before it. The number must be free.
fn reused(pid: i32) -> (acp_testkit::sys::Stranger, i64, Option<u64>) {
    let stat = format!("/proc/{pid}/stat");
    for n in 1..=REUSES_MAX {
        let Ok(first) = acp_testkit::sys::Stranger::at(pid, &SLEEP, &[], None) else { continue };
        let (ticks, inode) = (start_ticks(&stat), inode(pid));
        drop(first);
        let Ok(second) = acp_testkit::sys::Stranger::at(pid, &SLEEP, &[], None) else { continue };
        if start_ticks(&stat) == ticks {
            eventually("it has called exec", || {
                std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("sleep"))
            });
            crate::common::say(&format!("{pid} was given anew in tick {ticks} at try {n}"));
            return (second, ticks, inode);
        }
    }
    panic!("in {REUSES_MAX} tries no two processes started in one tick");
}

/// The inode of a process in pidfs; `None` on a kernel whose pidfds have none.
fn inode(pid: i32) -> Option<u64> {
    let pidfd = acp_testkit::sys::open(pid).unwrap();
    let pidfs = rustix::fs::fstatfs(&pidfd).unwrap().f_type == 0x5049_4446;
    pidfs.then(|| rustix::fs::fstat(&pidfd).unwrap().st_ino)
}

/// The kernel gave the number anew so fast that the start times are the same. The row is that of the process before.

#[tokio::test]
async fn the_same_tick_is_told_apart_by_the_inode() {
    possible!(Ability::ChosenPid);
    let mut host = Host::new();
    let identity = host.gateway();
    let info = host.orphan(&identity, &agent(&["cat"])).await;
    let (w, a) = (info.wrapper_pid.unwrap(), info.adapter_pid.unwrap());
    let (wrapper, w_ticks, w_inode) = reused(w);
    let (adapter, a_ticks, a_inode) = reused(a);
    if w_inode.is_none() {
        crate::common::say("probe: pidfds have no inode here: left out");
        return;
    }
    assert_ne!(w_inode, inode(w), "an inode is never reused");
    let row = [("wrapper", w_ticks, w_inode), ("adapter", a_ticks, a_inode)]
        .map(|(of, ticks, inode)| format!("{of}_start = {ticks}, {of}_inode = {}", inode.unwrap()));
    host.edit(info.lease_id, &row.join(", "));
    host.start();
    assert!(wrapper.runs() && adapter.runs(), "foreign processes are alive");
    assert_eq!(host.row(info.lease_id).0, "lost");
    let report = host.verified(info.lease_id, "not_ours");
    assert!(report.to_string().contains("(pidfs inode)"), "{report}");
}

/// At the number stands another gateway's wrapper: of the right program, from a launch directory, with markers.
#[tokio::test]
async fn another_gateways_wrapper_at_the_number_is_not_signalled() {
    possible!(Ability::ChosenPid);
    let (mut host, other) = (Host::new(), Host::new());
    let (identity, neighbour) = (host.gateway(), other.gateway());
    let theirs = neighbour.connect().await.spawn(&agent(&["cat"])).await;
    let info = host.orphan(&identity, &agent(&["cat"])).await;
    let (lease, gateway) = (theirs.lease_id.to_string(), neighbour.id.to_string());
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
        stranger(info.wrapper_pid.unwrap(), &[&theirs.wrapper_path], &env, Some(control_end.as_fd()));
    host.start();
    assert!(wrapper.runs(), "the neighbour's wrapper lives");
    assert_eq!(marked(theirs.lease_id).len(), 3, "the rest of the neighbour's trees lives");
    assert_eq!(host.row(info.lease_id).0, "lost");
    drop(kept);
}

/// An older lease names, by now, the processes of a newer one of the same gateway.
#[tokio::test]
async fn only_the_newer_lease_acts_on_a_number_that_both_name() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let (old, new) = (gateway.spawn(&agent(&["cat"])).await, gateway.spawn(&agent(&["cat"])).await);
    kill(old.wrapper_pid.unwrap(), Signal::STOP);
    host.leave_behind(&new);
    kill(old.wrapper_pid.unwrap(), Signal::KILL);
    eventually("the old tree is gone", || marked(old.lease_id).is_empty());
    let (w, a) = (new.wrapper_pid.unwrap(), new.adapter_pid.unwrap());
    host.edit(old.lease_id, &format!("wrapper_pid = {w}, adapter_pid = {a}, pgid = {a}, sid = {w}"));
    host.start();
    assert!(marked(new.lease_id).is_empty());
    let (state, _, evidence) = host.row(old.lease_id);
    assert_eq!(state, "lost");
    assert!(!evidence.contains("\"tree\":[{"), "the old lease acted: {evidence}");
    let (state, reason, _) = host.row(new.lease_id);
    assert_eq!((state.as_str(), reason.as_str()), ("closed", "its tree is gone"));
}

#[tokio::test]
async fn a_rewritten_process_title_changes_nothing() {
    let node = std::process::Command::new("node").arg("--version").output();
    if !node.as_ref().is_ok_and(|output| output.status.success()) {
        println!("not possible here: node --version: {node:?}");
        return;
    }
    let (mut host, mut gateway) = Host::with_gateway().await;
    let program = "process.title = 'x'.repeat(4000); console.log('renamed'); setInterval(() => {}, 1e6)";
    let (spec, info) = gateway.start_known(agent(&["node", "-e", program])).await;
    gateway.attach(spec.lease_id, 0).await;
    gateway.read(spec.lease_id, 0, 8).await;
    let adapter = info.adapter_pid.unwrap();
    let cmdline = std::fs::read(format!("/proc/{adapter}/cmdline")).unwrap();
    assert!(cmdline.starts_with(b"xxxx"), "{}", String::from_utf8_lossy(&cmdline));
    host.verified(spec.lease_id, "owned");
    host.leave_behind(&info);
    host.start();
    assert!(!runs(adapter) && marked(spec.lease_id).is_empty());
    assert_eq!(host.row(spec.lease_id).0, "closed");
}

#[tokio::test]
async fn a_wrapper_whose_file_was_replaced_is_still_ours() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    let (closed, orphaned) = (agent(&["cat"]), agent(&["cat"]));
    let infos = [gateway.spawn(&closed).await, gateway.spawn(&orphaned).await];
    for info in &infos {
        std::fs::remove_file(&info.wrapper_path).unwrap();
        std::fs::copy("/bin/true", &info.wrapper_path).unwrap();
        let exe = std::fs::read_link(format!("/proc/{}/exe", info.wrapper_pid.unwrap())).unwrap();
        assert!(exe.to_string_lossy().ends_with(" (deleted)"), "{}", exe.display());
        host.verified(info.lease_id, "owned");
    }
    gateway.end(closed.lease_id).await;
    host.leave_behind(&infos[1]);
    host.start();
    assert!(infos.iter().all(|info| marked(info.lease_id).is_empty()));
    assert_eq!(host.row(orphaned.lease_id).0, "closed");
}

#[tokio::test]
async fn a_name_that_looks_like_the_rest_of_the_line_is_a_name() {
    let (mut host, mut gateway) = Host::with_gateway().await;
    // Each of the shells has a child of that name too, in a session of its own.
    let rename = "printf ') S 1 (\\n) Z 1' > /proc/$$/comm; while :; do sleep 1; done";
    let spec = script(&format!("setsid sh -c \"{}\" & {rename}", rename.replace('$', "\\$")));
    let info = gateway.spawn(&spec).await;
    let adapter = info.adapter_pid.unwrap();
    let named = |pid: i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with(") S 1 (\n"))
    };
    eventually("both have their name", || {
        named(adapter) && marked(spec.lease_id).iter().filter(|pid| named(**pid)).count() == 2
    });
    let tree = marked(spec.lease_id);
    let report = host.verified(spec.lease_id, "owned");
    let seen =
        report["tree"].as_array().unwrap().iter().filter_map(|p| p["pid"].as_i64()).collect::<Vec<_>>();
    assert!(tree.iter().filter(|pid| named(**pid)).all(|pid| seen.contains(&i64::from(*pid))), "{report}");
    host.leave_behind(&info);
    kill(info.wrapper_pid.unwrap(), Signal::KILL);
    host.start();
    assert!(tree.iter().all(|pid| !runs(*pid)) && marked(spec.lease_id).is_empty());
}

/// A volume that is shared by two containers: the second one starts where the first one's numbers mean nothing.
#[tokio::test]
async fn nothing_is_signalled_from_another_pid_namespace() {
    possible!(Ability::PidNamespace);
    let (mut host, mut gateway) = Host::with_gateway().await;
    let (spec, info) = gateway.spawn_stubborn().await;
    host.leave_behind(&info);
    let roots = [info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()];
    let prefix = ["unshare", "-p", "-f", "--kill-child", "--mount-proc"];
    let ready = host.launch_ready(under(&prefix, &host.command()));
    assert_ne!(ready["pid"], host.pid(), "it is in another namespace");
    assert!(roots.iter().all(|pid| runs(*pid)), "the other namespace's tree lives");
    let (state, reason, _) = host.row(spec.lease_id);
    assert_eq!(state, "lost");
    assert!(reason.contains("another pid namespace"), "{reason}");
    host.crash();
    for pid in marked(spec.lease_id).into_iter().rev().filter(|pid| !is_sleep(*pid)) {
        kill(pid, Signal::KILL);
    }
}

/// Start times are shifted in a time namespace. The inode is not, and it decides.
#[tokio::test]
async fn a_shifted_clock_is_no_proof_of_another_process() {
    possible!(Ability::TimeNamespace);
    for shift in ["100000", "-1"] {
        let mut host = Host::new();
        let identity = host.gateway();
        let (spec, info) = identity.connect().await.spawn_stubborn().await;
        host.leave_behind(&info);
        let prefix = ["unshare", "-T", "--boottime", shift, "--fork", "--kill-child"];
        host.launch_ready(under(&prefix, &host.command()));
        assert_eq!(marked(spec.lease_id), [0; 0], "{shift}");
        assert_eq!(host.row(spec.lease_id).0, "closed", "{shift}");
    }
}

/// Without inodes nothing tells a shifted start time from another process: nothing is signalled, and nothing is given
/// up. A supervisor by the clock of the record ends the tree.
async fn on_c13_r_without_inodes_a_shifted_clock_proves_nothing(rung: &str) {
    possible!(Ability::TimeNamespace);
    for shift in ["100000", "-1"] {
        let Some(mut host) = Host::on(rung) else { return };
        let identity = host.gateway();
        let (spec, info) = identity.connect().await.spawn_stubborn().await;
        let roots = [info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()];
        host.leave_behind(&info);
        // What a kernel without them, or a rung without pidfds, has on record.
        host.edit(spec.lease_id, "wrapper_inode = NULL, adapter_inode = NULL, supervisor_inode = NULL");
        let prefix = ["unshare", "-T", "--boottime", shift, "--fork", "--kill-child"];
        host.launch_ready(under(&prefix, &host.command()));
        let (state, reason, _) = host.row(spec.lease_id);
        assert_eq!(state, "open", "{shift}: {reason}");
        assert!(roots.iter().all(|pid| runs(*pid)), "{shift}");
        // Whatever is not owned the exit code says too.
        let report = host.cli(&["leases", "verify", &spec.lease_id.to_string(), "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
        let report = &report["data"];
        assert_eq!(report["verdict"], "unknown", "{shift}: {report}");
        assert!(report["why"].as_str().unwrap().contains("time namespace"), "{report}");
        host.restart_after_crash();
        assert_eq!(marked(spec.lease_id), [0; 0], "{shift}");
        assert_eq!(host.row(spec.lease_id).0, "closed", "{shift}");
    }
}

/// The supervisor of the leases lives, in another time namespace than the one that finds a copy of them.
async fn on_c13_c17_r_a_living_supervisor_is_not_taken_for_dead_by_another_clock(rung: &str) {
    possible!(Ability::TimeNamespace);
    for shift in ["100000", "-1"] {
        let Some(mut host) = Host::on(rung) else { return };
        let identity = host.gateway();
        let spec = agent(&["cat"]);
        let info = identity.connect().await.spawn(&spec).await;
        let mut copy = Host::idle(&format!("rung = {rung:?}"));
        host.settled(spec.lease_id);
        host.copy_state(&copy);
        copy.edit(spec.lease_id, "wrapper_inode = NULL, adapter_inode = NULL, supervisor_inode = NULL");
        let prefix = ["unshare", "-T", "--boottime", shift, "--fork", "--kill-child"];
        let ready = copy.launch(under(&prefix, &copy.command()));
        assert_eq!(ready["event"], "ready", "{ready}");
        let lines = copy.json(&["leases", "reap", "--dry-run"]);
        assert_eq!(lines[0]["action"], "leave", "{shift}: {lines}");
        let why = "it is unknown whether the supervisor that spawned it lives";
        assert_eq!(lines[0]["why"], why, "{shift}: {lines}");
        assert!(runs(info.wrapper_pid.unwrap()) && runs(info.adapter_pid.unwrap()), "{shift}");
        assert_eq!(copy.row(spec.lease_id).0, "open", "{shift}");
        copy.crash();
        host.crash();
    }
}

on_lower_rungs! {
    on_c13_r_without_inodes_a_shifted_clock_proves_nothing,
    on_c13_c17_r_a_living_supervisor_is_not_taken_for_dead_by_another_clock,
}

/// The number on record is that of a thread of a stranger: of a neighbour's supervisor, which has several.
#[tokio::test]
async fn a_thread_of_a_stranger_is_no_process_of_ours() {
    possible!(Ability::ChosenPid);
    let (mut host, other) = (Host::new(), Host::new());
    let identity = host.gateway();
    let info = host.orphan(&identity, &agent(&["cat"])).await;
    let tasks = std::fs::read_dir(format!("/proc/{}/task", other.pid())).unwrap().flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
    let tids: Vec<i32> = tids.filter(|tid| *tid != other.pid()).take(2).collect();
    let &[w, a] = tids.as_slice() else { panic!("a supervisor of few threads: {tids:?}") };
    assert!(std::path::Path::new(&format!("/proc/{w}")).exists(), "the pid can be examined");
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
        assert!(runs(other.pid()), "the neighbour lives");
        assert_eq!(host.row(info.lease_id).0, "lost", "{inode}");
        host.crash();
    }
    assert_eq!(other.json(&["status"])["pid"], other.pid());
}

/// Two tenants of one user with one wrapper: what one finds at its start is its own only.
#[tokio::test]
async fn a_startup_reap_touches_nothing_of_the_neighbours() {
    let (mut host, mut other) = (Host::new(), Host::new());
    let (mine, theirs) = (host.gateway(), other.gateway());
    let (mut a, mut b) = (mine.connect().await, theirs.connect().await);
    let (spec, info) = a.start_known(script(STUBBORN)).await;
    let living = [script(STUBBORN), agent(&["cat"])];
    for spec in &living {
        b.spawn(spec).await;
    }
    // One more of the neighbour's is an orphan at this moment: for the neighbour, not for this one.
    let (orphaned, orphan) = b.start_known(agent(&["sleep", "300"])).await;
    eventually("the trees are there", || {
        [&spec, &living[0]].iter().all(|spec| marked(spec.lease_id).len() >= 4)
    });
    kill(orphan.wrapper_pid.unwrap(), Signal::STOP);
    let pids = |specs: &[acp_shared::protocol::Spawn]| {
        specs.iter().flat_map(|spec| marked(spec.lease_id)).filter(|pid| !is_sleep(*pid)).collect::<Vec<_>>()
    };
    let before = pids(&living);
    host.leave_behind(&info);
    host.start();
    assert!(marked(spec.lease_id).is_empty());
    assert_eq!(pids(&living), before, "the neighbour's trees are as they were");
    assert!(runs(orphan.wrapper_pid.unwrap()) && runs(orphan.adapter_pid.unwrap()));
    let leases = b.leases().await;
    assert!(leases.iter().all(|lease| lease.state == LeaseState::Open), "{leases:?}");
    // The same while the neighbour is away.
    other.crash();
    host.restart_after_crash();
    assert!(runs(orphan.wrapper_pid.unwrap()) && runs(orphan.adapter_pid.unwrap()));
    other.start();
    assert!(marked(orphaned.lease_id).is_empty());
}

/// The sleeps in a shell's loop come and go.
fn is_sleep(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("sleep"))
}
