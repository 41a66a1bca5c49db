//! Rare events: pid reuse, stuck tracers, exhausted memory.

use crate::helper::Helper;
use crate::rig::{Rig, await_state, eventually, is_alive, program, script, script_with_grace, status_field};
use acp_shared::launch::{Confine, ExitStatus, FromWrapper, Landlock, Launch};
use acp_testkit::ability::Ability;
use acp_testkit::processes::KillOnDrop;
use acp_testkit::skip_unless;
use nix::libc;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// Maximum attempts to obtain a pid while other processes fork.
const ATTEMPTS_MAX: usize = 200;

/// Process that reuses a pid.
enum PidReuser {
    /// A session leader started by the test.
    Own(KillOnDrop),
    /// A process of another program.
    Foreign,
}

/// Forks until a process has `pid`; `None` if the kernel does not reuse it.
fn reuse_pid(pid: i32) -> Option<PidReuser> {
    for _ in 0..ATTEMPTS_MAX {
        std::fs::write(LAST_PID, (pid - 1).to_string()).unwrap();
        // setsid does not fork, since it leads no process group.
        let mut command = Command::new("setsid");
        let child =
            command.args(["sleep", "300"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let started = KillOnDrop(child);
        if started.pid() == pid {
            let leads = || status_field(pid, "NSpgid").is_some_and(|group| group == pid.to_string());
            eventually("the foreign process leads its group", leads);
            return Some(PidReuser::Own(started));
        }
        if is_alive(pid) {
            return Some(PidReuser::Foreign);
        }
    }
    None
}

fn assert_unharmed(reuser: &PidReuser) {
    if let PidReuser::Own(started) = reuser {
        assert!(is_alive(started.pid()), "a foreign process was signalled");
    }
}

fn can_choose_pid() -> bool {
    let now = std::fs::read_to_string(LAST_PID);
    let written = now.and_then(|now| std::fs::write(LAST_PID, now.trim()));
    if let Err(e) = &written {
        println!("probe: {LAST_PID}: {e}: skipped");
    }
    written.is_ok()
}

/// During the sweep the group id stays reserved by the zombie; afterwards nothing signals it.
#[test]
fn group_id_of_dead_adapter_is_not_signalled_after_reuse() {
    if !can_choose_pid() {
        return;
    }
    let launch =
        script_with_grace(60_000, "sh -c 'trap \"\" TERM; echo up.; exec sleep 300' & read x; exit 4");
    let mut rig = Rig::start(&launch);
    let (_, adapter) = rig.send_go();
    rig.read_until("up.");
    drop(rig.stdin.take());
    await_state(adapter, 'Z');
    let member = rig.only_process();
    assert_eq!(status_field(member, "NSpgid"), Some(adapter.to_string()));
    assert!(reuse_pid(adapter).is_none(), "pid reused while its group exists");
    // The group is empty before the wrapper looks again.
    rig.signal(Signal::STOP);
    await_state(rig.wrapper_pid(), 'T');
    crate::rig::kill_verified(member, || status_field(member, "NSpgid") == Some(adapter.to_string()));
    assert!(reuse_pid(adapter).is_none(), "pid of the zombie reused");
    rig.signal(Signal::CONT);
    assert_eq!(rig.exit_code(), 4);
    let reuser = reuse_pid(adapter).unwrap_or_else(|| panic!("{adapter} is not free after the end"));
    assert_unharmed(&reuser);
}

/// The pid of the dead parent is reused while the wrapper is stopped.
#[test]
fn parent_death_is_detected_despite_pid_reuse() {
    if !can_choose_pid() {
        return;
    }
    let launch = script("trap '' HUP; echo up; while :; do sleep 0.05; done");
    let mut rig = Rig::start_below_shell(&launch);
    let (wrapper, adapter) = rig.send_go();
    rig.read_until("up");
    crate::rig::signal_verified(wrapper, Signal::STOP, || rig.descendants().contains(&wrapper));
    await_state(wrapper, 'T');
    let parent = rig.wrapper_pid();
    rig.signal(Signal::KILL);
    assert_eq!(rig.exit_code(), 1000 + 9);
    let reuser = reuse_pid(parent).unwrap_or_else(|| panic!("{parent} is not free"));
    let of_lease = || status_field(wrapper, "Name").is_some_and(|name| name == "acp-wrapper");
    crate::rig::signal_verified(wrapper, Signal::CONT, of_lease);
    eventually("both are gone", || !is_alive(wrapper) && !is_alive(adapter));
    assert_unharmed(&reuser);
}

#[test]
fn children_of_threads_are_killed() {
    let helper = Helper::build();
    let mut launch = program(&[&helper.path_string(), "threads", "8"]);
    launch.term_grace_ms = 100;
    let mut rig = Rig::running(&launch);
    eventually("all processes exist", || rig.descendants().len() == 9);
    rig.signal(Signal::TERM);
    assert_eq!(rig.exit_code(), 128 + libc::SIGTERM);
    // By the lease marker, since other processes may reuse the pids.
    assert_eq!(rig.living_processes(), Vec::<i32>::new());
}

/// The tracer receives the exit of the adapter and never reaps it.
#[test]
fn adapter_held_by_tracer_counts_as_dead() {
    let helper = Helper::build();
    let mut launch = script("trap '' TERM; echo up; while :; do sleep 0.05; done");
    (launch.term_grace_ms, launch.sweep_ms) = (100, 3_000);
    let mut rig = Rig::start(&launch);
    let (_, adapter) = rig.send_go();
    rig.read_until("up");
    let mut command = Command::new(helper.path());
    let child = command.args(["trace", &adapter.to_string()]).stdout(Stdio::piped()).spawn().unwrap();
    let mut tracer = KillOnDrop(child);
    let mut reply = String::new();
    BufReader::new(tracer.stdout.take().unwrap()).read_line(&mut reply).unwrap();
    if reply != "traced\n" {
        println!("probe: PTRACE_SEIZE: {reply}: skipped");
        return;
    }
    rig.signal(Signal::TERM);
    let last = rig.receive_all().pop();
    assert!(matches!(&last, Some(FromWrapper::Done { survivors, .. }) if survivors.is_empty()), "{last:?}");
    rig.exit_code();
    assert!(!is_alive(adapter));
    assert!(is_alive(tracer.pid()), "the tracer is a foreign process");
}

/// cgroup with a memory limit, of the version that has the controller.
struct MemoryLimit(PathBuf);

impl MemoryLimit {
    fn make(bytes: u64) -> Option<Self> {
        let name = format!("acp-wrapper-{}", acp_shared::ids::LeaseId::mint());
        let v1 = (Path::new("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes");
        let v2 = (Path::new("/sys/fs/cgroup"), "memory.max", "memory.swap.max");
        for (root, limit, swap) in [v1, v2] {
            let path = root.join(&name);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self(path);
            if std::fs::write(group.0.join(limit), bytes.to_string()).is_ok() {
                // The file is missing if swap is not accounted.
                let _ = std::fs::write(group.0.join(swap), "0")
                    .or_else(|_| std::fs::write(group.0.join(swap), bytes.to_string()));
                return Some(group);
            }
        }
        println!("probe: no memory controller of control groups can be used: skipped");
        None
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // KillOnDrop processes leave the group after a delay.
        eventually("the test's cgroup is empty", || {
            let gone = std::fs::remove_dir(&self.0);
            gone.is_ok() || gone.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
        });
    }
}

fn memory_eater(helper: &Helper) -> Launch {
    let confine = Confine { oom_score_adj: Some(700), ..Confine::default() };
    Launch { confine, ..program(&[&helper.path_string(), "eat"]) }
}

fn score(pid: i32) -> i32 {
    std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

/// Limits the memory of the processes and makes the adapter allocate more.
fn exceed_memory_limit(rig: &mut Rig, pids: [i32; 2]) -> Option<MemoryLimit> {
    let limit = MemoryLimit::make(32 << 20)?;
    for pid in pids {
        std::fs::write(limit.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
    assert_eq!(rig.receive(), FromWrapper::Running);
    rig.stdin.as_mut().unwrap().write_all(b"eat\n").unwrap();
    Some(limit)
}

#[test]
fn oom_killer_takes_adapter_before_wrapper() {
    let helper = Helper::build();
    let mut rig = Rig::start(&memory_eater(&helper));
    let (wrapper, adapter) = rig.send_go();
    rig.read_until("ready");
    assert!(score(adapter) == 700 && score(wrapper) < 700, "{} {}", score(adapter), score(wrapper));
    let Some(_limit) = exceed_memory_limit(&mut rig, [wrapper, adapter]) else { return };
    rig.assert_adapter_ends(ExitStatus::Signaled(libc::SIGKILL));
    assert_eq!(rig.exit_code(), 137);
}

/// The OOM killer takes the wrapper; its tree ends too.
#[test]
fn adapter_dies_with_oom_killed_wrapper() {
    let helper = Helper::build();
    let mut launch = memory_eater(&helper);
    launch.confine.oom_score_adj = Some(0);
    let mut rig = Rig::start(&launch);
    let (wrapper, adapter) = rig.send_go();
    rig.read_until("ready");
    // Highest score, above any that the adapter can reach.
    std::fs::write(format!("/proc/{wrapper}/oom_score_adj"), "1000").unwrap();
    assert_eq!((score(wrapper), score(adapter)), (1000, 0));
    let Some(_limit) = exceed_memory_limit(&mut rig, [wrapper, adapter]) else { return };
    assert_eq!(rig.receive_all(), Vec::new(), "killed without a message");
    assert_eq!(rig.exit_code(), 1000 + libc::SIGKILL);
    eventually("the adapter has died with its wrapper", || !is_alive(adapter));
    rig.await_no_process();
}

#[test]
fn landlock_without_kernel_support_is_refused() {
    let helper = Helper::build();
    let mut launch = script("exit 0");
    launch.confine.landlock =
        Some(Landlock { write: vec!["/tmp".into()], scope: true, ..Landlock::default() });
    let helper = helper.path_string();
    let prefix = [helper.as_str(), "without-landlock"];
    let mut rig = Rig::start_with_prefix(&launch, &prefix);
    assert_eq!(rig.setup_errno(), libc::EOPNOTSUPP);
    launch.confine.landlock = None;
    let mut rig = Rig::start_with_prefix(&launch, &prefix);
    rig.run_adapter();
    assert_eq!(rig.exit_code(), 0);
}

#[test]
fn adapter_killed_before_go_is_reported() {
    let mut rig = Rig::start(&script("exit 0"));
    let (wrapper_pid, adapter_pid) = rig.await_hello();
    let is_adapter = || status_field(adapter_pid, "PPid") == Some(wrapper_pid.to_string());
    crate::rig::kill_verified(adapter_pid, is_adapter);
    rig.assert_adapter_ends(ExitStatus::Signaled(libc::SIGKILL));
    assert_eq!(rig.exit_code(), 137);
}

/// The parent dies in a pid namespace whose init survives.
#[test]
fn parent_death_in_pid_namespace_ends_tree() {
    skip_unless!(Ability::Root);
    let text = "trap '' TERM; setsid sleep 300 & echo up; while :; do sleep 0.05; done";
    let launch = script_with_grace(200, text);
    // The namespace's init reaps; its child is the wrapper's parent.
    let first = "exec 3<&0; sh -c '\"$0\" <&3; :' \"$0\" & while :; do wait; sleep 0.1; done";
    let prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", first];
    let mut rig = Rig::start_with_prefix(&launch, &prefix);
    let (wrapper_pid, _) = rig.await_hello();
    assert!(wrapper_pid < 100, "the pid is from its own namespace: {wrapper_pid}");
    rig.send(&acp_shared::launch::ToWrapper::Go);
    assert_eq!(rig.receive(), FromWrapper::Running);
    rig.read_until("up");
    let named = |pid: &i32| status_field(*pid, "Name").is_some_and(|name| name == "acp-wrapper");
    let wrapper = rig.descendants().into_iter().find(named).unwrap();
    let parent: i32 = status_field(wrapper, "PPid").unwrap().parse().unwrap();
    crate::rig::kill_verified(parent, || status_field(wrapper, "PPid") == Some(parent.to_string()));
    eventually("the tree is gone, and only the namespace's own processes are left", || {
        let descendants = rig.descendants();
        !is_alive(wrapper)
            && descendants.iter().all(|pid| status_field(*pid, "NSsid") != Some(wrapper.to_string()))
            && rig.living_processes().is_empty()
    });
}
