//! Process identity: pids, start times, inodes and markers.

use crate::kernel::{Call, SUPERVISOR, environ};
use crate::simulation::{Sim, Tree};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::LeaseState::{Closed, Lost, Open};

/// Ends the tree and reuses the wrapper's pid in the same tick.
fn reuse_wrapper_pid(s: &Sim, tree: &Tree) {
    let mut kernel = s.kernel();
    let ticks = kernel.task(tree.wrapper).start_ticks;
    kernel.exit_tree(tree.lease);
    kernel.create(tree.wrapper, 1, "foreign");
    kernel.edit(tree.wrapper, |t| t.start_ticks = ticks);
}

#[tokio::test(start_paused = true)]
async fn reused_pid_is_not_signalled() {
    // In the same tick only the inode differs.
    for (inode, ticks_later) in [(true, 1), (false, 1), (true, 0)] {
        let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        reuse_wrapper_pid(&s, &tree);
        let recorded = s.lease(&tree).bound.unwrap().wrapper.start_ticks;
        assert_eq!(s.kernel().record(tree.wrapper).start_ticks, recorded);
        s.kernel().edit(tree.wrapper, |t| t.start_ticks += ticks_later);
        s.reap().await;
        assert_eq!((s.state(&tree), s.sent()), (Lost, vec![]), "inode: {inode}, {ticks_later} ticks later");
    }
}

#[tokio::test(start_paused = true)]
async fn pid_reused_during_verification_is_not_signalled() {
    for call in [Call::Open(0), Call::Evidence(0)] {
        let (mut s, tree) = Sim::with_orphan(Open).await;
        let pid = tree.wrapper;
        let call = if call == Call::Open(0) { Call::Open(pid) } else { Call::Evidence(pid) };
        s.kernel().run_after(call, move |k| {
            let ticks = k.task(pid).start_ticks;
            k.exit_tree(tree.lease);
            k.create(pid, 1, "foreign");
            k.edit(pid, |t| t.start_ticks = ticks);
        });
        s.reap().await;
        assert_eq!(s.signals_to(pid), [], "{call:?}");
        assert_eq!(s.kernel().task(pid).name, "foreign");
        assert!(s.state(&tree).is_ended());
    }
}

#[tokio::test(start_paused = true)]
async fn without_inodes_marker_must_match() {
    let other = LeaseId::mint();
    for (name, environ_of, secret, want) in [
        ("nothing in it", None, false, Lost),
        ("another lease", Some(other), false, Lost),
        ("unreadable", None, true, Open),
    ] {
        let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = false).await;
        reuse_wrapper_pid(&s, &tree);
        s.kernel().edit(tree.wrapper, |t| {
            t.environ_secret = secret;
            t.environ = environ_of.map_or_else(Vec::new, |lease| environ(lease, tree.gateway));
        });
        s.reap().await;
        assert_eq!((s.state(&tree), s.sent()), (want, vec![]), "{name}");
    }
    // The same process matches by pid, start time and environment.
    let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = false).await;
    s.assert_reap_ends(&tree).await;
}

#[tokio::test(start_paused = true)]
async fn wrapper_of_another_gateway_with_same_pid_is_untouched() {
    for inode in [true, false] {
        let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        let ticks = s.kernel().task(tree.wrapper).start_ticks;
        s.kernel().exit_tree(tree.lease);
        let other = s.create_foreign_tree(tree.wrapper, acp_shared::ids::GatewayInstanceId::mint());
        s.kernel().edit(other.wrapper, |t| t.start_ticks = ticks);
        s.reap().await;
        assert!(s.is_untouched(&other), "inode: {inode}");
        assert_eq!(s.state(&tree), Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn only_newer_lease_owns_reused_pid() {
    for (inode, lives) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut s = Sim::with_kernel(|k| k.abilities.pidfs_inode = inode).await;
        let old = s.orphan(Open).await;
        let ticks = s.kernel().task(old.wrapper).start_ticks;
        s.kernel().exit_tree(old.lease);
        let new = s.create_foreign_tree(old.wrapper, old.gateway);
        s.kernel().edit(new.wrapper, |t| t.start_ticks = ticks);
        if lives {
            // This supervisor holds the lease.
            s.context.add_root(new.wrapper);
            s.reap().await;
            assert!(s.is_untouched(&new));
        } else {
            s.kernel().owned.insert(new.lease);
            let row = s.row(&new, Open);
            s.save(row).await;
            s.reap().await;
            assert_eq!(s.state(&new), Closed);
            assert!(s.kernel().alive(new.lease).is_empty());
        }
        assert_eq!(s.state(&old), Lost, "inode: {inode}, lives: {lives}");
    }
}

#[tokio::test(start_paused = true)]
async fn command_and_path_are_no_evidence() {
    for inode in [true, false] {
        let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        s.rewrite(&tree, |l| {
            l.command_hash = "'/opt/my agent' '--flag=a b'".into();
            l.wrapper_path = "/elsewhere/acp-wrapper".into();
        })
        .await;
        s.kernel().edit(tree.wrapper, |t| t.exe = "/opt/my agent (deleted)".into());
        s.kernel().edit(tree.adapter, |t| t.name = "renamed".into());
        s.assert_reap_ends(&tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn process_name_cannot_forge_evidence() {
    let (mut s, tree) = Sim::with_orphan(Open).await;
    let foreign = s.kernel().free_pid();
    s.kernel().create(foreign, 1, &format!("x) S {} (", tree.wrapper));
    for (pid, name) in [(tree.wrapper, ") Z 1 ("), (tree.adapter, "a\nb) S 1 1"), (tree.child, "((((")] {
        s.kernel().edit(pid, |t| t.name = name.into());
    }
    let lines = s.reap().await;
    assert_eq!(lines[0].pids, [tree.child, tree.adapter, tree.wrapper]);
    assert_eq!((s.state(&tree), s.signals_to(foreign)), (Closed, vec![]));
    assert!(s.kernel().is_running(foreign));
}

#[tokio::test(start_paused = true)]
async fn thread_id_is_not_taken_for_process() {
    for (pidfd, same_tick) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut s = Sim::with_kernel(|k| (k.abilities.pidfd, k.abilities.pidfs_inode) = (pidfd, pidfd)).await;
        let tree = s.orphan(Open).await;
        let ticks = s.kernel().task(tree.wrapper).start_ticks;
        s.kernel().exit_tree(tree.lease);
        let foreign = s.kernel().free_pid();
        s.kernel().create(foreign, 1, "threads");
        s.kernel().edit(foreign, |t| {
            t.threads.push(tree.wrapper);
            t.start_ticks = if same_tick { ticks } else { ticks + 1 };
        });
        s.reap().await;
        assert_eq!((s.state(&tree), s.sent()), (Lost, vec![]), "pidfd: {pidfd}, same tick: {same_tick}");
    }
}

#[tokio::test(start_paused = true)]
async fn own_ancestry_and_init_are_never_signalled() {
    let (mut s, tree) = Sim::with_orphan(Open).await;
    // Both carry the marker and are as young as the tree.
    for pid in [1, SUPERVISOR] {
        s.kernel().edit(pid, |t| t.environ = environ(tree.lease, tree.gateway));
    }
    s.reap().await;
    for pid in [1, SUPERVISOR] {
        assert_eq!(s.signals_to(pid), []);
    }
    assert!(s.kernel().alive(tree.lease).is_empty(), "the tree is found by its marker");
}

#[tokio::test(start_paused = true)]
async fn reused_pid_of_dead_ancestor_is_not_protected() {
    const SHELL: i32 = 450;
    let mut s = Sim::with_kernel(|k| {
        k.create(SHELL, 1, "shell");
        k.edit(SUPERVISOR, |t| t.ppid = SHELL);
    })
    .await;
    let tree = s.orphan(Open).await;
    {
        let mut kernel = s.kernel();
        kernel.exit(SHELL, acp_shared::launch::ExitStatus::Exited(0));
        kernel.create(SHELL, tree.child, "tool");
        let (pgid, sid) = (kernel.task(tree.child).pgid, kernel.task(tree.child).sid);
        kernel.edit(SHELL, |t| (t.tree, t.pgid, t.sid) = (Some(tree.lease), pgid, sid));
    }
    s.assert_reap_ends(&tree).await;
}
