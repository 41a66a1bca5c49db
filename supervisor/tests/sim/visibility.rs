//! Processes and facts that cannot be read.

use crate::kernel::{Kernel, environ};
use crate::simulation::Sim;
use crate::wrapper::Behavior;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseState::{Closed, Closing, Lost, Open, Reserved};
use acp_supervisor::lease::task::LeaseCmd;
use acp_supervisor::sys::Signal;

#[tokio::test(start_paused = true)]
async fn reap_is_retried_without_process_list() {
    let (mut s, tree) = Sim::with_orphan(Open).await;
    s.kernel().list_fails = true;
    assert!(s.try_reap().await.is_err());
    s.assert_left_open(&tree);
    s.kernel().list_fails = false;
    s.assert_reap_ends(&tree).await;
}

#[tokio::test(start_paused = true)]
async fn own_child_is_killed_by_handle_without_process_list() {
    let (mut s, id, tree) =
        Sim::with_agent_under(Behavior { ignores_stop: true, ..Default::default() }).await;
    s.ignore_sigterm(&tree);
    s.kernel().list_fails = true;
    s.close(id).await;
    s.until("the wrapper is killed", |s| !s.kernel().is_running(tree.wrapper)).await;
    s.advance(2_000).await;
    assert_eq!(s.lease_by_id(id).state, Closing, "no proof of the end");
    assert_eq!(s.signals_to(tree.child), []);
    s.kernel().list_fails = false;
    s.await_closed(id).await;
}

#[tokio::test(start_paused = true)]
async fn hidden_process_needs_inode() {
    for inode in [true, false] {
        let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        s.ignore_sigterm(&tree);
        s.edit_all(&tree, |t| t.hidden = true);
        s.reap().await;
        if inode {
            s.assert_ended(&tree);
        } else {
            s.assert_left_open(&tree);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_environment_needs_inode() {
    for inode in [true, false] {
        let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        s.edit_all(&tree, |t| t.environ_secret = true);
        s.reap().await;
        if inode {
            s.assert_ended(&tree);
        } else {
            s.assert_left_open(&tree);
        }
    }
    // A foreign process with an unreadable copy of the marker is no proof either.
    let (mut s, tree) = Sim::with_orphan(Open).await;
    let foreign = s.kernel().free_pid();
    s.kernel().create(foreign, 1, "sudo");
    s.kernel().edit(foreign, |t| (t.environ, t.environ_secret) = (environ(tree.lease, tree.gateway), true));
    s.reap().await;
    assert_eq!((s.state(&tree), s.signals_to(foreign)), (Closed, vec![]));
}

#[tokio::test(start_paused = true)]
async fn marker_in_older_process_is_no_proof() {
    for state in [Open, Reserved] {
        let mut s = Sim::new().await;
        let older = s.kernel().free_pid();
        s.kernel().create(older, 1, "older");
        s.advance(100).await;
        let tree = s.orphan(state).await;
        s.rewrite(&tree, |l| l.supervisor.start_ticks = l.bound.map_or(100_005, |b| b.wrapper.start_ticks))
            .await;
        s.kernel().edit(older, |t| t.environ = environ(tree.lease, tree.gateway));
        s.reap().await;
        assert_eq!(s.signals_to(older), []);
        assert!(s.kernel().alive(tree.lease).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn process_with_marker_belongs_to_tree() {
    let (mut s, tree) = Sim::with_orphan(Open).await;
    let escaped = s.kernel().fork(tree.child, "daemon");
    s.kernel().setsid(escaped);
    s.kernel().edit(escaped, |t| t.ppid = 1);
    // A foreign marker is no proof, nor are two markers.
    let foreign = s.create_foreign_tree(9_000, tree.gateway);
    let twice = s.kernel().free_pid();
    s.kernel().create(twice, 1, "twice");
    let mut both = environ(tree.lease, tree.gateway);
    both.extend(environ(foreign.lease, tree.gateway));
    s.kernel().edit(twice, |t| t.environ = both);
    s.assert_reap_ends(&tree).await;
    assert_eq!(s.signals_to(escaped), [Signal::Term, Signal::Cont][..1]);
    assert!(s.is_untouched(&foreign) && s.kernel().is_running(twice));
}

#[tokio::test(start_paused = true)]
async fn trees_end_without_pidfds_or_group_signals() {
    type Prepare = fn(&mut Kernel);
    let without_pidfds: Prepare = |k| (k.abilities.pidfd, k.abilities.pidfs_inode) = (false, false);
    for (prepare, rung) in [(without_pidfds, "R3"), (|k| k.abilities.pidfd_group = false, "R2")] {
        let (mut s, tree) = Sim::with_orphan_on(Open, prepare).await;
        assert_eq!(s.context.containment.rung.as_str(), rung);
        s.ignore_sigterm(&tree);
        s.assert_reap_ends(&tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn recorded_inode_without_kernel_support_leaves_lease_open() {
    for pidfd in [true, false] {
        let (mut s, tree) = Sim::with_orphan(Open).await;
        s.kernel().abilities.pidfs_inode = false;
        s.kernel().abilities.pidfd = pidfd;
        s.edit_all(&tree, |t| t.environ.clear());
        let lines = s.reap().await;
        assert_eq!(lines[0].why, "a pidfs inode was recorded and cannot be read now");
        s.assert_left_open(&tree);
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_scope_signals_nothing() {
    let (mut s, tree) = Sim::with_orphan(Open).await;
    s.kernel().scope = None;
    s.assert_reap_spares(&tree).await;
    s.kernel().exit_tree(tree.lease);
    s.kernel().scope = Some(s.context.scope.clone());
    s.reap().await;
    assert_eq!(s.state(&tree), Lost);
}

/// A descendant of another user, hidden by `/proc`, is still listed as a child.
#[tokio::test(start_paused = true)]
async fn hidden_survivor_keeps_lease_closing_and_is_named() {
    for pidfd_info in [true, false] {
        let mut s = Sim::with_kernel(|k| k.pidfd_info = pidfd_info).await;
        s.sys.wrapper.lock().unwrap().ignores_stop = true;
        let id = s.spawn().await;
        let tree = s.with_tool(id);
        s.ignore_sigterm(&tree);
        let hidden = s.kernel().fork(tree.child, "sudo");
        s.kernel().setsid(hidden);
        s.kernel().edit(hidden, |t| (t.uid, t.hidden, t.environ) = (0, true, Vec::new()));
        s.close(id).await;
        s.until("the end is stuck", |s| s.stuck.contains(&id)).await;
        assert_eq!(s.lease_by_id(id).state, Closing);
        let reason = s.lease_by_id(id).state_reason.clone();
        assert!(reason.contains(&format!("did not end: {hidden} ")), "{pidfd_info}: {reason}");
        assert_eq!(s.kernel().alive(id), [tree.wrapper, hidden], "the adopting wrapper survives");
        s.kernel().exit(hidden, ExitStatus::Exited(0));
        s.await_closed(id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn listed_tree_is_killed_before_environments_are_read() {
    let (mut s, id, tree) =
        Sim::with_agent_under(Behavior { ignores_stop: true, ..Default::default() }).await;
    s.ignore_sigterm(&tree);
    s.kernel().environs_read_at.clear();
    s.send_command(id, LeaseCmd::Hurry).await;
    s.await_state(id, Closed).await;
    let first = s.kernel().environs_read_at[0];
    let before: Vec<i32> = s.sent()[..first].iter().map(|sent| sent.pid).collect();
    assert!(before.contains(&tree.adapter) && before.contains(&tree.child), "{before:?} of {:?}", s.sent());
}

/// A moved state directory changes the cgroup's name. Processes in the recorded cgroup are neither signalled nor
/// forgotten.
#[tokio::test(start_paused = true)]
async fn unrecognised_recorded_cgroup_is_no_proof_of_end() {
    for state in [Open, Closing] {
        let (mut s, tree) = Sim::with_orphan(state).await;
        let path = format!("/elsewhere/acp-supervisor-old/{}", tree.lease);
        s.rewrite(&tree, |l| l.cgroup_path = Some(path.clone())).await;
        s.kernel().exit_tree(tree.lease);
        s.kernel().populated_groups.insert(path.clone());
        let lines = s.reap().await;
        assert!(lines[0].why.contains("is not recognised"), "{lines:?}");
        assert_eq!((s.state(&tree), s.sent()), (state, vec![]));
        s.kernel().populated_groups.clear();
        s.reap().await;
        assert_eq!(s.state(&tree), if state == Open { Lost } else { Closed });
    }
}
