//! What a supervisor cannot see or do: hidden and unreadable processes, refused system calls, nested namespaces.

use crate::common::{Host, agent, eventually, kill, marked, runs};
use crate::crash::Decoy;
use crate::ground::under;
use acp_shared::protocol::{LeaseState, RefusalCode, Request};
use acp_testkit::ability::{Ability, FOREIGN_UID};
use acp_testkit::possible;
use acp_testkit::processes::{Killed, all_pids, status_field};
use nix::libc;
use rustix::process::{Resource, Signal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Other users' processes do not exist for this supervisor. Its own trees are cared for all the same, and a process
/// of another user with the right marker, which it cannot see, lives.
#[tokio::test]
async fn hidden_processes_are_not_missed_and_not_touched() {
    possible!(Ability::Root, Ability::HiddenProc, Ability::ForeignUser);
    let mut host = Host::of_user(FOREIGN_UID, "reap_term_ms = 300");
    let uid = FOREIGN_UID.to_string();
    let hide =
        "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid $0 --regid $0 --clear-groups \"$@\"";
    let prefix = ["unshare", "-m", "sh", "-c", hide, &uid];
    host.launch_ready(under(&prefix, &host.own_command()));
    let (identity, mut gateway) = host.connect_gateway().await;
    let (closed, first) = gateway.spawn_stubborn().await;
    let (orphaned, second) = gateway.spawn_stubborn().await;
    let infos = [first, second];
    let decoys = infos.each_ref().map(|info| Decoy::new(info.lease_id, identity.id));
    let left =
        |of: usize| marked(infos[of].lease_id).into_iter().filter(|pid| *pid != decoys[of].pid()).count();
    gateway.end(closed.lease_id).await;
    assert_eq!(left(0), 0);
    host.leave_behind(&infos[1]);
    kill(infos[1].wrapper_pid.unwrap(), Signal::KILL);
    host.launch_ready(under(&prefix, &host.own_command()));
    assert_eq!(left(1), 0);
    assert!(decoys.iter().all(|decoy| runs(decoy.pid())), "the invisible process lives");
    assert_eq!(host.row(orphaned.lease_id).0, "closed");
}

/// What hides an environment from the user whose process it is.
#[derive(Debug, Clone, Copy)]
enum Hidden {
    /// Its own user cannot read the program: the kernel lets nobody but root look into it.
    Unreadable,
    /// The program is another user's and has the set-user-id bit.
    SetUserId,
}

impl Hidden {
    /// A program that sleeps.
    fn program(self, path: &std::path::Path) {
        std::fs::copy("/bin/sleep", path).unwrap();
        let mode = match self {
            Self::Unreadable => 0o711,
            Self::SetUserId => {
                std::os::unix::fs::chown(path, Some(OWNER_UID), Some(OWNER_UID)).unwrap();
                0o4755
            }
        };
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
}

/// The owner of the program with the set-user-id bit: neither root nor the tenant.
const OWNER_UID: u32 = 65_011;

/// A program that its own user cannot read, or that runs with the rights of another one, has an environment that nobody but root can read. The adapter is known by
/// its inode; a process that only its marker could prove is left alone.
#[tokio::test]
async fn an_unreadable_environment_proves_nothing() {
    possible!(Ability::Root, Ability::ForeignUser);
    for hidden in [Hidden::Unreadable, Hidden::SetUserId] {
        an_environment_is_hidden(hidden).await;
    }
}

async fn an_environment_is_hidden(hidden: Hidden) {
    let mut host = Host::of_user(FOREIGN_UID, "reap_term_ms = 300");
    let sealed = host.dir.path().join("sealed");
    hidden.program(&sealed);
    let sealed = sealed.to_str().unwrap().to_owned();
    let uid = FOREIGN_UID.to_string();
    let prefix = ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"];
    host.launch_ready(under(&prefix, &host.own_command()));
    let identity = host.gateway();
    let spec = agent(&[&sealed, "300"]);
    let info = identity.connect().await.spawn(&spec).await;
    let environ = format!("/proc/{}/environ", info.adapter_pid.unwrap());
    if let Hidden::SetUserId = hidden {
        let uids = status_field(info.adapter_pid.unwrap(), "Uid").unwrap();
        if !uids.contains(&OWNER_UID.to_string()) {
            crate::common::say(&format!("probe: the set-user-id bit has no effect in {sealed}: {uids}"));
            return;
        }
    }
    let seen = under(&prefix, Command::new("cat").arg(&environ)).output().unwrap();
    assert!(!seen.status.success() && seen.stdout.is_empty(), "{seen:?}");
    let mut look_alike = Command::new(&sealed);
    look_alike.arg("300").env("OPENCLAW_ACPX_LEASE_ID", spec.lease_id.to_string());
    look_alike.env("OPENCLAW_GATEWAY_INSTANCE_ID", identity.id.to_string());
    let mut look_alike = Killed(look_alike.uid(FOREIGN_UID).gid(FOREIGN_UID).spawn().unwrap());
    host.leave_behind(&info);
    host.launch_ready(under(&prefix, &host.own_command()));
    assert!(!runs(info.wrapper_pid.unwrap()) && !runs(info.adapter_pid.unwrap()), "the inode proves these");
    assert!(look_alike.try_wait().unwrap().is_none(), "nothing proves this one");
    assert_eq!(host.row(spec.lease_id).0, "closed");
}

/// A container's filter refuses pidfds: the supervisor says so, and works with directories of `/proc`.
#[tokio::test]
async fn without_pidfds_the_ladder_drops_and_trees_still_end() {
    possible!(Ability::Seccomp);
    for errno in [libc::ENOSYS, libc::EPERM] {
        let mut host = Host::idle("reap_term_ms = 300");
        let command = || {
            let mut command = host.command();
            acp_testkit::sys::refuse(&mut command, &[libc::SYS_pidfd_open, libc::SYS_pidfd_getfd], errno);
            command
        };
        let (first, second) = (command(), command());
        host.launch_ready(first);
        let status = host.json(&["status"]);
        assert_eq!(status["abilities"]["pidfd"], false, "{status}");
        let (identity, mut gateway) = host.connect_gateway().await;
        let (closed, _) = gateway.spawn_stubborn().await;
        let (orphaned, info) = gateway.spawn_stubborn().await;
        let decoy = Decoy::new(acp_shared::ids::LeaseId::mint(), identity.id);
        gateway.end(closed.lease_id).await;
        assert!(marked(closed.lease_id).is_empty());
        host.leave_behind(&info);
        kill(info.wrapper_pid.unwrap(), Signal::KILL);
        host.launch_ready(second);
        assert!(marked(orphaned.lease_id).is_empty());
        assert!(runs(decoy.pid()));
    }
}

/// No signal can be sent through a handle at all: nothing is signalled by number instead, a rung that needs signals is
/// refused, and what an earlier supervisor left is kept open until it can be ended.
#[tokio::test]
async fn without_signals_through_handles_nothing_is_guessed() {
    possible!(Ability::Seccomp);
    // A control group would end it without a signal.
    let mut host = Host::idle("rung = \"R2\"\nreap_term_ms = 100\nreap_kill_ms = 200");
    host.start();
    let orphaned = agent(&["sleep", "300"]);
    let info = host.gateway().connect().await.spawn(&orphaned).await;
    host.leave_behind(&info);
    let blind = |host: &Host| {
        let mut command = host.command();
        let calls = [libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal];
        acp_testkit::sys::refuse(&mut command, &calls, libc::EPERM);
        command
    };
    let refused = blind(&host);
    let said = host.launch(refused);
    assert_eq!((said["type"].as_str(), host.wait()), (Some("error"), Some(2)), "{said}");
    host.config = host.config.replace("rung = \"R2\"\n", "");
    let command = blind(&host);
    assert_eq!(host.launch(command)["event"], "ready");
    assert_eq!(marked(orphaned.lease_id).len(), 2, "it cannot be signalled");
    assert_eq!(host.row(orphaned.lease_id).0, "closing", "the lease is not closed");
    let rung = host.json(&["status"])["rung"].clone();
    let spawned = host.gateway().connect().await.call(Request::Spawn(agent(&["cat"]))).await;
    assert_eq!(spawned.is_err(), rung == "R4", "{rung}: {spawned:?}");
    host.restart_after_crash();
    assert!(marked(orphaned.lease_id).is_empty());
    assert_eq!(host.row(orphaned.lease_id).0, "closed");
}

/// A grandchild that has left its session, its parents and its environment behind, inside of a pid namespace of its
/// own, goes with the tree: by its wrapper, and after the wrapper's death.
#[tokio::test]
async fn what_hides_in_a_nested_pid_namespace_goes_too() {
    possible!(Ability::PidNamespace);
    let (_host, mut gateway) = Host::with_gateway().await;
    for (round, kills_wrapper) in [(1, false), (2, true)] {
        let spec = agent(&[]);
        let mark = format!(
            "30{}{round}",
            i32::from_ne_bytes(spec.lease_id.to_string().as_bytes()[32..36].try_into().unwrap())
        );
        let inside = format!("(setsid env -i sleep {mark} &) & trap '' TERM; while :; do sleep 1; done");
        let argv = ["unshare", "-p", "-f", "--mount-proc", "sh", "-c", inside.as_str()];
        let spec = acp_shared::protocol::Spawn { argv: argv.map(str::to_owned).to_vec(), ..spec };
        let info = gateway.spawn(&spec).await;
        eventually("the escapee is there", || named(&mark).len() == 1);
        let escapee = named(&mark)[0];
        assert!(!marked(spec.lease_id).contains(&escapee));
        if kills_wrapper {
            kill(info.wrapper_pid.unwrap(), Signal::KILL);
            gateway.state(spec.lease_id, LeaseState::Lost).await;
        } else {
            gateway.end(spec.lease_id).await;
        }
        eventually("no process of the tree runs", || marked(spec.lease_id).is_empty() && !runs(escapee));
    }
}

/// Every process whose last argument is this.
fn named(mark: &str) -> Vec<i32> {
    let is_named = |pid: &i32| {
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut args = cmdline.split(|b| *b == 0);
        args.next().is_some_and(|name| name.ends_with(b"sleep")) && args.next() == Some(mark.as_bytes())
    };
    all_pids().into_iter().filter(is_named).collect()
}

/// The process list cannot be read: nobody is signalled, no lease is judged, and the next start does the work.
#[tokio::test]
async fn without_a_process_list_no_lease_is_judged() {
    possible!(Ability::Seccomp);
    let mut host = Host::new();
    let identity = host.gateway();
    let (spec, info) = identity.connect().await.spawn_stubborn().await;
    host.leave_behind(&info);
    let mut blind = host.command();
    acp_testkit::sys::refuse(&mut blind, &[libc::SYS_getdents64, libc::SYS_getdents], libc::EACCES);
    let said = host.launch(blind);
    assert_eq!(said["event"], "ready", "{said}");
    let warnings = host.json(&["status"])["warnings"].to_string();
    assert!(warnings.contains("not checked yet"), "{warnings}");
    assert!(runs(info.wrapper_pid.unwrap()) && runs(info.adapter_pid.unwrap()));
    assert_eq!(host.row(spec.lease_id).0, "open");
    // The rung is R4: nothing is started that could not be held.
    assert_eq!(host.json(&["status"])["rung"], "R4");
    let refused = identity.connect().await.call(Request::Spawn(agent(&["cat"]))).await.unwrap_err();
    assert!(refused.message.contains("rung R4"), "{refused:?}");
    assert!(runs(info.wrapper_pid.unwrap()) && runs(info.adapter_pid.unwrap()));
    host.restart_after_crash();
    assert!(marked(spec.lease_id).is_empty());
    assert_eq!(host.row(spec.lease_id).0, "closed");
}

/// A lease without a pid, with no, one and two processes that carry its marker: these are its tree, and nothing else.
#[tokio::test]
async fn a_lease_without_pids_is_judged_by_its_marker_alone() {
    for count in 0..3 {
        let mut host = Host::new();
        let identity = host.gateway();
        let spec = agent(&["cat"]);
        identity.connect().await.spawn(&spec).await;
        host.crash();
        eventually("the tree is gone", || marked(spec.lease_id).is_empty());
        host.edit(
            spec.lease_id,
            "state = 'reserved', wrapper_pid = NULL, wrapper_start = NULL, wrapper_inode = NULL, adapter_pid = NULL,
             adapter_start = NULL, adapter_inode = NULL, pgid = NULL, sid = NULL",
        );
        let matching: Vec<Decoy> = (0..count).map(|_| Decoy::new(spec.lease_id, identity.id)).collect();
        let others = [
            Decoy::new(spec.lease_id, acp_shared::ids::GatewayInstanceId::mint()),
            Decoy::new(acp_shared::ids::LeaseId::mint(), identity.id),
        ];
        host.start();
        assert!(matching.iter().all(|decoy| !runs(decoy.pid())), "{count}");
        assert!(others.iter().all(|decoy| runs(decoy.pid())), "{count}");
        assert_eq!(host.row(spec.lease_id).0, if count == 0 { "lost" } else { "closed" });
    }
}

/// No process can be made, at whatever point of a start: it fails in words, nothing stays, and it works again when
/// the limit is gone.
#[tokio::test]
async fn a_start_that_cannot_fork_leaves_nothing() {
    possible!(Ability::Root, Ability::ForeignUser);
    // A user of its own, since the limit counts all processes of a user.
    let uid = 60_000 + std::process::id() % 4_000;
    let mut host = Host::of_user(uid, "spawn_ms = 5000");
    let text = uid.to_string();
    let prefix = ["setpriv", "--reuid", &text, "--regid", &text, "--clear-groups"];
    assert_eq!(host.launch(under(&prefix, &host.own_command()))["event"], "ready");
    let mut gateway = host.gateway().connect().await;
    let warm = gateway.start(agent(&["cat"])).await;
    gateway.end(warm.lease_id).await;
    // By that user itself: even root needs a capability for the limits of another one.
    let limit = |soft: &str| {
        let limit = format!("--nproc={soft}:");
        let mut command = Command::new("prlimit");
        let command = under(&prefix, command.args(["--pid", &host.pid().to_string(), &limit])).status();
        assert!(command.unwrap().success(), "{limit}");
    };
    let before = rustix::process::getrlimit(Resource::Nproc).current;
    let before = before.map_or("unlimited".to_owned(), |before| before.to_string());
    let threads = || std::fs::read_dir(format!("/proc/{}/task", host.pid())).unwrap().count() as u64;
    let (mut failed, mut ids) = (0, Vec::new());
    for more in [0, 0, 1, 1, 2] {
        limit(&(threads() + more).to_string());
        let spec = agent(&["cat"]);
        let result = gateway.call(Request::Spawn(spec.clone())).await;
        limit(&before);
        match result {
            Ok(_) => gateway.close(spec.lease_id).await,
            Err(refusal) => {
                assert_eq!(refusal.code, RefusalCode::SpawnFailed, "{}", refusal.message);
                failed += 1;
            }
        }
        ids.push(spec.lease_id);
    }
    assert!(failed >= 2, "{failed}");
    for lease_id in &ids {
        eventually("nothing runs", || marked(*lease_id).is_empty());
        host.ended(*lease_id);
    }
    assert_eq!(gateway.spawn(&agent(&["cat"])).await.state, LeaseState::Open);
}
