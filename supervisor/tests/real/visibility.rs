//! Limited visibility: hidden and unreadable processes, refused system calls, nested namespaces.

use crate::common::{Host, agent, eventually, is_alive, kill, pids_of};
use crate::crash::Decoy;
use crate::fixtures::with_prefix;
use acp_shared::protocol::{LeaseState, RefusalCode, Request};
use acp_testkit::ability::{Ability, FOREIGN_UID};
use acp_testkit::processes::{KillOnDrop, all_pids, status_field};
use acp_testkit::skip_unless;
use nix::libc;
use rustix::process::{Resource, Signal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The supervisor sees only its own user's processes. Its trees end; a foreign process with the right marker lives.
#[tokio::test]
async fn hidden_foreign_process_is_not_signalled() {
    skip_unless!(Ability::Root, Ability::HiddenProc, Ability::ForeignUser);
    let mut host = Host::of_user(FOREIGN_UID, "reap_term_ms = 300");
    let uid = FOREIGN_UID.to_string();
    let hide =
        "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid $0 --regid $0 --clear-groups \"$@\"";
    let prefix = ["unshare", "-m", "sh", "-c", hide, &uid];
    host.launch_ready(with_prefix(&prefix, &host.own_command()));
    let (identity, mut gateway) = host.connect_gateway().await;
    let (closed, first) = gateway.spawn_unresponsive().await;
    let (orphaned, second) = gateway.spawn_unresponsive().await;
    let infos = [first, second];
    let decoys = infos.each_ref().map(|info| Decoy::new(info.lease_id, identity.id));
    let left =
        |of: usize| pids_of(infos[of].lease_id).into_iter().filter(|pid| *pid != decoys[of].pid()).count();
    gateway.close_and_wait(closed.lease_id).await;
    assert_eq!(left(0), 0);
    host.crash_keeping_tree(&infos[1]);
    kill(infos[1].wrapper_pid.unwrap(), Signal::KILL);
    host.launch_ready(with_prefix(&prefix, &host.own_command()));
    assert_eq!(left(1), 0);
    assert!(decoys.iter().all(|decoy| is_alive(decoy.pid())), "a hidden foreign process was killed");
    assert_eq!(host.row(orphaned.lease_id).0, "closed");
}

/// Reason for an environment that its own user cannot read.
#[derive(Debug, Clone, Copy)]
enum Hidden {
    /// The program is not readable by its user.
    Unreadable,
    /// The program is another user's and has the set-user-id bit.
    SetUserId,
}

impl Hidden {
    /// Installs a copy of `sleep`.
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

/// Owner of the set-user-id program: neither root nor the tenant.
const OWNER_UID: u32 = 65_011;

/// Only root can read the environment of the adapter. The adapter is proved by its inode; a process that could be
/// proved by its marker alone is not signalled.
#[tokio::test]
async fn unreadable_environment_is_no_proof() {
    skip_unless!(Ability::Root, Ability::ForeignUser);
    for hidden in [Hidden::Unreadable, Hidden::SetUserId] {
        check_hidden_environment(hidden).await;
    }
}

async fn check_hidden_environment(hidden: Hidden) {
    let mut host = Host::of_user(FOREIGN_UID, "reap_term_ms = 300");
    let sealed = host.dir.path().join("sealed");
    hidden.program(&sealed);
    let sealed = sealed.to_str().unwrap().to_owned();
    let uid = FOREIGN_UID.to_string();
    let prefix = ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups"];
    host.launch_ready(with_prefix(&prefix, &host.own_command()));
    let identity = host.gateway();
    let spec = agent(&[&sealed, "300"]);
    let info = identity.connect().await.spawn(&spec).await;
    let environ = format!("/proc/{}/environ", info.adapter_pid.unwrap());
    if let Hidden::SetUserId = hidden {
        let uids = status_field(info.adapter_pid.unwrap(), "Uid").unwrap();
        if !uids.contains(&OWNER_UID.to_string()) {
            crate::common::report(&format!("probe: the set-user-id bit has no effect in {sealed}: {uids}"));
            return;
        }
    }
    let seen = with_prefix(&prefix, Command::new("cat").arg(&environ)).output().unwrap();
    assert!(!seen.status.success() && seen.stdout.is_empty(), "{seen:?}");
    let mut look_alike = Command::new(&sealed);
    look_alike.arg("300").env("OPENCLAW_ACPX_LEASE_ID", spec.lease_id.to_string());
    look_alike.env("OPENCLAW_GATEWAY_INSTANCE_ID", identity.id.to_string());
    let mut look_alike = KillOnDrop(look_alike.uid(FOREIGN_UID).gid(FOREIGN_UID).spawn().unwrap());
    host.crash_keeping_tree(&info);
    host.launch_ready(with_prefix(&prefix, &host.own_command()));
    assert!(
        !is_alive(info.wrapper_pid.unwrap()) && !is_alive(info.adapter_pid.unwrap()),
        "the adapter lives despite its inode"
    );
    assert!(look_alike.try_wait().unwrap().is_none(), "an unproved process was killed");
    assert_eq!(host.row(spec.lease_id).0, "closed");
}

/// A seccomp filter refuses pidfds, so the supervisor uses directories of `/proc`.
#[tokio::test]
async fn trees_end_without_pidfds() {
    skip_unless!(Ability::Seccomp);
    for errno in [libc::ENOSYS, libc::EPERM] {
        let mut host = Host::prepare("reap_term_ms = 300");
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
        let (closed, _) = gateway.spawn_unresponsive().await;
        let (orphaned, info) = gateway.spawn_unresponsive().await;
        let decoy = Decoy::new(acp_shared::ids::LeaseId::mint(), identity.id);
        gateway.close_and_wait(closed.lease_id).await;
        assert!(pids_of(closed.lease_id).is_empty());
        host.crash_keeping_tree(&info);
        kill(info.wrapper_pid.unwrap(), Signal::KILL);
        host.launch_ready(second);
        assert!(pids_of(orphaned.lease_id).is_empty());
        assert!(is_alive(decoy.pid()));
    }
}

/// No signal can be sent through a pidfd: none is sent by pid instead, a level that needs signals is refused, and a
/// lease of an earlier supervisor stays open until its tree can be ended.
#[tokio::test]
async fn refused_pidfd_signals_are_not_replaced_by_pids() {
    skip_unless!(Ability::Seccomp);
    // R2 is set since a cgroup could be killed without a signal.
    let mut host = Host::prepare("rung = \"R2\"\nreap_term_ms = 100\nreap_kill_ms = 200");
    host.start();
    let orphaned = agent(&["sleep", "300"]);
    let info = host.gateway().connect().await.spawn(&orphaned).await;
    host.crash_keeping_tree(&info);
    let restricted = |host: &Host| {
        let mut command = host.command();
        let calls = [libc::SYS_pidfd_open, libc::SYS_pidfd_send_signal];
        acp_testkit::sys::refuse(&mut command, &calls, libc::EPERM);
        command
    };
    let refused = restricted(&host);
    let reply = host.launch(refused);
    assert_eq!((reply["type"].as_str(), host.wait()), (Some("error"), Some(2)), "{reply}");
    host.config = host.config.replace("rung = \"R2\"\n", "");
    let command = restricted(&host);
    assert_eq!(host.launch(command)["event"], "ready");
    assert_eq!(pids_of(orphaned.lease_id).len(), 2, "signalled without pidfds");
    assert_eq!(host.row(orphaned.lease_id).0, "closing", "the lease is not closed");
    let rung = host.json(&["status"])["rung"].clone();
    let spawned = host.gateway().connect().await.call(Request::Spawn(agent(&["cat"]))).await;
    assert_eq!(spawned.is_err(), rung == "R4", "{rung}: {spawned:?}");
    host.restart_after_crash();
    assert!(pids_of(orphaned.lease_id).is_empty());
    assert_eq!(host.row(orphaned.lease_id).0, "closed");
}

/// A grandchild without session, parent and marker in its own pid namespace ends with the tree, by the wrapper or
/// after the wrapper's death.
#[tokio::test]
async fn nested_pid_namespace_ends_with_tree() {
    skip_unless!(Ability::PidNamespace);
    let (_host, mut gateway) = Host::with_gateway().await;
    for (round, kills_wrapper) in [(1, false), (2, true)] {
        let spec = agent(&[]);
        let argument = format!(
            "30{}{round}",
            i32::from_ne_bytes(spec.lease_id.to_string().as_bytes()[32..36].try_into().unwrap())
        );
        let inside = format!("(setsid env -i sleep {argument} &) & trap '' TERM; while :; do sleep 1; done");
        let argv = ["unshare", "-p", "-f", "--mount-proc", "sh", "-c", inside.as_str()];
        let spec = acp_shared::protocol::Spawn { argv: argv.map(str::to_owned).to_vec(), ..spec };
        let info = gateway.spawn(&spec).await;
        eventually("the escaped process exists", || named(&argument).len() == 1);
        let escaped = named(&argument)[0];
        assert!(!pids_of(spec.lease_id).contains(&escaped));
        if kills_wrapper {
            kill(info.wrapper_pid.unwrap(), Signal::KILL);
            gateway.state(spec.lease_id, LeaseState::Lost).await;
        } else {
            gateway.close_and_wait(spec.lease_id).await;
        }
        eventually("no process of the tree runs", || pids_of(spec.lease_id).is_empty() && !is_alive(escaped));
    }
}

/// Sleeping processes with this argument.
fn named(argument: &str) -> Vec<i32> {
    let is_named = |pid: &i32| {
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut args = cmdline.split(|b| *b == 0);
        args.next().is_some_and(|name| name.ends_with(b"sleep")) && args.next() == Some(argument.as_bytes())
    };
    all_pids().into_iter().filter(is_named).collect()
}

/// Leases are judged at the next start.
#[tokio::test]
async fn leases_wait_without_process_list() {
    skip_unless!(Ability::Seccomp);
    let mut host = Host::new();
    let identity = host.gateway();
    let (spec, info) = identity.connect().await.spawn_unresponsive().await;
    host.crash_keeping_tree(&info);
    let mut restricted = host.command();
    acp_testkit::sys::refuse(&mut restricted, &[libc::SYS_getdents64, libc::SYS_getdents], libc::EACCES);
    let reply = host.launch(restricted);
    assert_eq!(reply["event"], "ready", "{reply}");
    let warnings = host.json(&["status"])["warnings"].to_string();
    assert!(warnings.contains("not checked yet"), "{warnings}");
    assert!(is_alive(info.wrapper_pid.unwrap()) && is_alive(info.adapter_pid.unwrap()));
    assert_eq!(host.row(spec.lease_id).0, "open");
    // On R4 nothing is started.
    assert_eq!(host.json(&["status"])["rung"], "R4");
    let refused = identity.connect().await.call(Request::Spawn(agent(&["cat"]))).await.unwrap_err();
    assert!(refused.message.contains("level R4"), "{refused:?}");
    assert!(is_alive(info.wrapper_pid.unwrap()) && is_alive(info.adapter_pid.unwrap()));
    host.restart_after_crash();
    assert!(pids_of(spec.lease_id).is_empty());
    assert_eq!(host.row(spec.lease_id).0, "closed");
}

/// Processes with the marker form the tree, and no others.
#[tokio::test]
async fn lease_without_pids_is_judged_by_marker() {
    for count in 0..3 {
        let mut host = Host::new();
        let identity = host.gateway();
        let spec = agent(&["cat"]);
        identity.connect().await.spawn(&spec).await;
        host.crash();
        eventually("the tree is gone", || pids_of(spec.lease_id).is_empty());
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
        assert!(matching.iter().all(|decoy| !is_alive(decoy.pid())), "{count}");
        assert!(others.iter().all(|decoy| is_alive(decoy.pid())), "{count}");
        assert_eq!(host.row(spec.lease_id).0, if count == 0 { "lost" } else { "closed" });
    }
}

/// Every failure is reported, nothing is left, and spawns succeed after the limit is removed.
#[tokio::test]
async fn spawn_without_fork_leaves_nothing() {
    skip_unless!(Ability::Root, Ability::ForeignUser);
    // The limit counts all processes of a user, so the test has its own.
    let uid = 60_000 + std::process::id() % 4_000;
    let mut host = Host::of_user(uid, "spawn_ms = 5000");
    let text = uid.to_string();
    let prefix = ["setpriv", "--reuid", &text, "--regid", &text, "--clear-groups"];
    assert_eq!(host.launch(with_prefix(&prefix, &host.own_command()))["event"], "ready");
    let mut gateway = host.gateway().connect().await;
    let warm = gateway.start(agent(&["cat"])).await;
    gateway.close_and_wait(warm.lease_id).await;
    // Set by that user: even root needs a capability for another user's limits.
    let limit = |soft: &str| {
        let limit = format!("--nproc={soft}:");
        let mut command = Command::new("prlimit");
        let command = with_prefix(&prefix, command.args(["--pid", &host.pid().to_string(), &limit])).status();
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
        eventually("nothing runs", || pids_of(*lease_id).is_empty());
        host.await_ended(*lease_id);
    }
    assert_eq!(gateway.spawn(&agent(&["cat"])).await.state, LeaseState::Open);
}
