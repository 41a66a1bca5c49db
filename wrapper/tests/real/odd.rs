//! What the machine does rarely: numbers come again, a tracer gets stuck, memory runs out.

use crate::helper::Helper;
use crate::rig::{Rig, await_state, eventually, is_alive, program, script, script_with_grace, status_field};
use acp_shared::launch::{Confine, ExitStatus, FromWrapper, Landlock, Launch};
use acp_testkit::ability::Ability;
use acp_testkit::possible;
use acp_testkit::processes::Killed;
use nix::libc;
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// How often a number is asked for: others fork in between.
const TRIES: usize = 200;

/// Who has a number that another process had before.
enum Stranger {
    /// A leader of its own session, which the test started for this.
    Ours(Killed),
    /// Somebody who was faster.
    Another,
}

/// Asks the kernel for a number until somebody has it; `None` when it does not give it away.
fn stranger_with(number: i32) -> Option<Stranger> {
    for _ in 0..TRIES {
        std::fs::write(LAST_PID, (number - 1).to_string()).unwrap();
        // Started by setsid itself, in place: it forks only when it leads a group already.
        let mut command = Command::new("setsid");
        let child =
            command.args(["sleep", "300"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let started = Killed(child);
        if started.pid() == number {
            let leads = || status_field(number, "NSpgid").is_some_and(|group| group == number.to_string());
            eventually("the foreign process leads its group", leads);
            return Some(Stranger::Ours(started));
        }
        if is_alive(number) {
            return Some(Stranger::Another);
        }
    }
    None
}

fn assert_unharmed(stranger: &Stranger) {
    if let Stranger::Ours(started) = stranger {
        assert!(is_alive(started.pid()), "a foreign process was signalled");
    }
}

fn numbers_can_be_chosen() -> bool {
    let now = std::fs::read_to_string(LAST_PID);
    let written = now.and_then(|now| std::fs::write(LAST_PID, now.trim()));
    if let Err(e) = &written {
        println!("probe: {LAST_PID}: {e}: left out");
    }
    written.is_ok()
}

/// While the group is signalled, its number stays that of the dead adapter; after that nobody signals it.
#[test]
fn the_number_of_a_dead_adapters_group() {
    if !numbers_can_be_chosen() {
        return;
    }
    let launch =
        script_with_grace(60_000, "sh -c 'trap \"\" TERM; echo up.; exec sleep 300' & read x; exit 4");
    let mut rig = Rig::start(&launch);
    let (_, adapter) = rig.release();
    rig.read_until("up.");
    drop(rig.stdin.take());
    await_state(adapter, 'Z');
    let member = rig.only();
    assert_eq!(status_field(member, "NSpgid"), Some(adapter.to_string()));
    assert!(stranger_with(adapter).is_none(), "the pid was reused while its group lives");
    // The group is empty now, and its number free: a stranger takes it before the wrapper looks again.
    rig.signal(Signal::STOP);
    await_state(rig.wrapper_pid(), 'T');
    crate::rig::kill_verified(member, || status_field(member, "NSpgid") == Some(adapter.to_string()));
    assert!(stranger_with(adapter).is_none(), "the zombie keeps its pid as long as the wrapper lives");
    rig.signal(Signal::CONT);
    assert_eq!(rig.exit_code(), 4);
    let stranger = stranger_with(adapter).unwrap_or_else(|| panic!("{adapter} is not free after the end"));
    assert_unharmed(&stranger);
}

/// The wrapper sleeps while its parent dies and a stranger takes the number: it sees the death all the same.
#[test]
fn the_number_of_a_dead_parent() {
    if !numbers_can_be_chosen() {
        return;
    }
    let launch = script("trap '' HUP; echo up; while :; do sleep 0.05; done");
    let mut rig = Rig::below_a_shell(&launch);
    let (wrapper, adapter) = rig.release();
    rig.read_until("up");
    crate::rig::signal_verified(wrapper, Signal::STOP, || rig.below().contains(&wrapper));
    await_state(wrapper, 'T');
    let parent = rig.wrapper_pid();
    rig.signal(Signal::KILL);
    assert_eq!(rig.exit_code(), 1000 + 9);
    let stranger = stranger_with(parent).unwrap_or_else(|| panic!("{parent} is not free"));
    let of_lease = || status_field(wrapper, "Name").is_some_and(|name| name == "acp-wrapper");
    crate::rig::signal_verified(wrapper, Signal::CONT, of_lease);
    eventually("both are gone", || !is_alive(wrapper) && !is_alive(adapter));
    assert_unharmed(&stranger);
}

#[test]
fn children_of_threads_are_found() {
    let helper = Helper::build();
    let mut launch = program(&[&helper.text(), "threads", "8"]);
    launch.term_grace_ms = 100;
    let mut rig = Rig::running(&launch);
    eventually("all processes exist", || rig.below().len() == 9);
    rig.signal(Signal::TERM);
    assert_eq!(rig.exit_code(), 128 + libc::SIGTERM);
    // By the mark of the lease: others choose numbers meanwhile, and take those of the dead.
    assert_eq!(rig.living(), Vec::<i32>::new());
}

/// The tracer gets the adapter's end first and does nothing with it.
#[test]
fn a_tracer_is_stuck() {
    let helper = Helper::build();
    let mut launch = script("trap '' TERM; echo up; while :; do sleep 0.05; done");
    (launch.term_grace_ms, launch.sweep_ms) = (100, 3_000);
    let mut rig = Rig::start(&launch);
    let (_, adapter) = rig.release();
    rig.read_until("up");
    let mut command = Command::new(helper.path());
    let child = command.args(["trace", &adapter.to_string()]).stdout(Stdio::piped()).spawn().unwrap();
    let mut tracer = Killed(child);
    let mut said = String::new();
    BufReader::new(tracer.stdout.take().unwrap()).read_line(&mut said).unwrap();
    if said != "traced\n" {
        println!("probe: PTRACE_SEIZE: {said}: left out");
        return;
    }
    rig.signal(Signal::TERM);
    let last = rig.hear_all().pop();
    // Dead is who cannot run any more, whether it could be waited for or not.
    assert!(matches!(&last, Some(FromWrapper::Done { survivors, .. }) if survivors.is_empty()), "{last:?}");
    rig.exit_code();
    assert!(!is_alive(adapter));
    assert!(is_alive(tracer.pid()), "the tracer is a foreign process");
}

/// A limit on memory for the processes in it, by whichever version of control groups has the controller here.
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
                // Where swap is not accounted, there is no such file.
                let _ = std::fs::write(group.0.join(swap), "0")
                    .or_else(|_| std::fs::write(group.0.join(swap), bytes.to_string()));
                return Some(group);
            }
        }
        println!("probe: no memory controller of control groups can be used: left out");
        None
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // What was killed in there may need a moment to be gone from it.
        eventually("the group of the test is empty", || {
            let gone = std::fs::remove_dir(&self.0);
            gone.is_ok() || gone.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
        });
    }
}

fn hungry(helper: &Helper) -> Launch {
    let confine = Confine { oom_score_adj: Some(700), ..Confine::default() };
    Launch { confine, ..program(&[&helper.text(), "eat"]) }
}

fn score(pid: i32) -> i32 {
    std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

/// Limits the memory of these processes and has the adapter ask for more.
fn starve(rig: &mut Rig, pids: [i32; 2]) -> Option<MemoryLimit> {
    let limit = MemoryLimit::make(32 << 20)?;
    for pid in pids {
        std::fs::write(limit.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
    assert_eq!(rig.hear(), FromWrapper::Running);
    rig.stdin.as_mut().unwrap().write_all(b"eat\n").unwrap();
    Some(limit)
}

#[test]
fn the_adapter_is_ended_before_the_wrapper_when_memory_runs_out() {
    let helper = Helper::build();
    let mut rig = Rig::start(&hungry(&helper));
    let (wrapper, adapter) = rig.release();
    rig.read_until("hungry");
    assert!(score(adapter) == 700 && score(wrapper) < 700, "{} {}", score(adapter), score(wrapper));
    let Some(_limit) = starve(&mut rig, [wrapper, adapter]) else { return };
    rig.adapter_ends(ExitStatus::Signaled(libc::SIGKILL));
    assert_eq!(rig.exit_code(), 137);
}

/// The same, but it is the wrapper that the kernel takes: nothing of its tree is left to run without it.
#[test]
fn the_wrapper_is_ended_when_memory_runs_out() {
    let helper = Helper::build();
    let mut launch = hungry(&helper);
    launch.confine.oom_score_adj = Some(0);
    let mut rig = Rig::start(&launch);
    let (wrapper, adapter) = rig.release();
    rig.read_until("hungry");
    // As much as the whole group may have, and what it really has: more than the adapter can get.
    std::fs::write(format!("/proc/{wrapper}/oom_score_adj"), "1000").unwrap();
    assert_eq!((score(wrapper), score(adapter)), (1000, 0));
    let Some(_limit) = starve(&mut rig, [wrapper, adapter]) else { return };
    assert_eq!(rig.hear_all(), Vec::new(), "it had no time to send a message");
    assert_eq!(rig.exit_code(), 1000 + libc::SIGKILL);
    eventually("the adapter has died with its wrapper", || !is_alive(adapter));
    rig.nobody_lives();
}

/// A kernel without Landlock runs nothing that was to be confined by it.
#[test]
fn without_landlock_nothing_runs() {
    let helper = Helper::build();
    let mut launch = script("exit 0");
    launch.confine.landlock = Some(Landlock { write: vec!["/tmp".into()], scope: true });
    let helper = helper.text();
    let prefix = [helper.as_str(), "without-landlock"];
    let mut rig = Rig::start_under(&launch, &prefix);
    assert_eq!(rig.refused(), libc::EOPNOTSUPP);
    launch.confine.landlock = None;
    let mut rig = Rig::start_under(&launch, &prefix);
    rig.go();
    assert_eq!(rig.exit_code(), 0);
}

/// Its adapter is killed while it waits for its release.
#[test]
fn an_adapter_that_ends_before_go() {
    let mut rig = Rig::start(&script("exit 0"));
    let (wrapper_pid, adapter_pid) = rig.greeted();
    let ours = || status_field(adapter_pid, "PPid") == Some(wrapper_pid.to_string());
    crate::rig::kill_verified(adapter_pid, ours);
    rig.adapter_ends(ExitStatus::Signaled(libc::SIGKILL));
    assert_eq!(rig.exit_code(), 137);
}

/// The wrapper's parent dies in a namespace of its own, whose first process lives on.
#[test]
fn the_parent_is_killed_in_a_pid_namespace() {
    possible!(Ability::Root);
    let text = "trap '' TERM; setsid sleep 300 & echo up; while :; do sleep 0.05; done";
    let launch = script_with_grace(200, text);
    // The first process reaps and stays; its child is the wrapper's parent.
    let first = "exec 3<&0; sh -c '\"$0\" <&3; :' \"$0\" & while :; do wait; sleep 0.1; done";
    let prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", first];
    let mut rig = Rig::start_under(&launch, &prefix);
    let (wrapper_pid, _) = rig.greeted();
    assert!(wrapper_pid < 100, "the pid is from its own namespace: {wrapper_pid}");
    rig.say(&acp_shared::launch::ToWrapper::Go);
    assert_eq!(rig.hear(), FromWrapper::Running);
    rig.read_until("up");
    let named = |pid: &i32| status_field(*pid, "Name").is_some_and(|name| name == "acp-wrapper");
    let wrapper = rig.below().into_iter().find(named).unwrap();
    let parent: i32 = status_field(wrapper, "PPid").unwrap().parse().unwrap();
    crate::rig::kill_verified(parent, || status_field(wrapper, "PPid") == Some(parent.to_string()));
    eventually("the tree is gone, and only the namespace's own processes are left", || {
        let below = rig.below();
        !is_alive(wrapper)
            && below.iter().all(|pid| status_field(*pid, "NSsid") != Some(wrapper.to_string()))
            && rig.living().is_empty()
    });
}
