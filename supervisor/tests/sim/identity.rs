//! Is it the same process? Cases 1 to 6, 9 and 15.

use crate::kernel::{Call, ME, environ};
use crate::stage::{Stage, Tree};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::LeaseState::{Closed, Lost, Open};

/// The tree ends by itself and a stranger gets the wrapper's number, in the same tick.
fn replace_by_stranger(s: &Stage, tree: &Tree) {
    let mut kernel = s.kernel();
    let ticks = kernel.task(tree.wrapper).start_ticks;
    kernel.vanish(tree.lease);
    kernel.place(tree.wrapper, 1, "stranger");
    kernel.edit(tree.wrapper, |t| t.start_ticks = ticks);
}

#[tokio::test(start_paused = true)]
async fn a_number_that_a_stranger_has_now_is_left_alone() {
    // In the same tick the inode alone tells.
    for (inode, ticks_later) in [(true, 1), (false, 1), (true, 0)] {
        let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        replace_by_stranger(&s, &tree);
        let recorded = s.lease(&tree).bound.unwrap().wrapper.start_ticks;
        assert_eq!(s.kernel().record(tree.wrapper).start_ticks, recorded);
        s.kernel().edit(tree.wrapper, |t| t.start_ticks += ticks_later);
        s.reap().await;
        assert_eq!((s.state(&tree), s.sent()), (Lost, vec![]), "inode: {inode}, {ticks_later} ticks later");
    }
}

#[tokio::test(start_paused = true)]
async fn a_number_that_changes_hands_between_look_and_signal_is_left_alone() {
    for call in [Call::Open(0), Call::Evidence(0)] {
        let (mut s, tree) = Stage::with_orphan(Open).await;
        let pid = tree.wrapper;
        let call = if call == Call::Open(0) { Call::Open(pid) } else { Call::Evidence(pid) };
        s.kernel().after(call, move |k| {
            let ticks = k.task(pid).start_ticks;
            k.vanish(tree.lease);
            k.place(pid, 1, "stranger");
            k.edit(pid, |t| t.start_ticks = ticks);
        });
        s.reap().await;
        assert_eq!(s.sent_to(pid), [], "{call:?}");
        assert_eq!(s.kernel().task(pid).name, "stranger");
        assert!(s.state(&tree).is_ended());
    }
}

#[tokio::test(start_paused = true)]
async fn without_inodes_the_environment_must_agree_too() {
    let other = LeaseId::mint();
    for (name, environ_of, secret, want) in [
        ("nothing in it", None, false, Lost),
        ("another lease", Some(other), false, Lost),
        ("unreadable", None, true, Open),
    ] {
        let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = false).await;
        replace_by_stranger(&s, &tree);
        s.kernel().edit(tree.wrapper, |t| {
            t.environ_secret = secret;
            t.environ = environ_of.map_or_else(Vec::new, |lease| environ(lease, tree.gateway));
        });
        s.reap().await;
        assert_eq!((s.state(&tree), s.sent()), (want, vec![]), "{name}");
    }
    // The same process is known by number, start time and environment.
    let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = false).await;
    s.reap_all_of(&tree).await;
}

#[tokio::test(start_paused = true)]
async fn another_gateways_wrapper_under_the_same_number_is_left_alone() {
    for inode in [true, false] {
        let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        let ticks = s.kernel().task(tree.wrapper).start_ticks;
        s.kernel().vanish(tree.lease);
        let other = s.plant_at(tree.wrapper, acp_shared::ids::GatewayInstanceId::mint());
        s.kernel().edit(other.wrapper, |t| t.start_ticks = ticks);
        s.reap().await;
        assert!(s.untouched(&other), "inode: {inode}");
        assert_eq!(s.state(&tree), Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_leases_of_one_gateway_only_the_newer_acts_on_a_reused_number() {
    for (inode, lives) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut s = Stage::on(|k| k.abilities.pidfs_inode = inode).await;
        let old = s.orphan(Open).await;
        let ticks = s.kernel().task(old.wrapper).start_ticks;
        s.kernel().vanish(old.lease);
        let new = s.plant_at(old.wrapper, old.gateway);
        s.kernel().edit(new.wrapper, |t| t.start_ticks = ticks);
        if lives {
            // A lease that this supervisor itself holds.
            s.context.add_root(new.wrapper);
            s.reap().await;
            assert!(s.untouched(&new));
        } else {
            s.kernel().ours.insert(new.lease);
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
async fn what_a_command_looks_like_decides_nothing() {
    for inode in [true, false] {
        let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        s.rewrite(&tree, |l| {
            l.command_hash = "'/opt/my agent' '--flag=a b'".into();
            l.wrapper_path = "/elsewhere/acp-wrapper".into();
        })
        .await;
        s.kernel().edit(tree.wrapper, |t| t.exe = "/opt/my agent (deleted)".into());
        s.kernel().edit(tree.adapter, |t| t.name = "renamed".into());
        s.reap_all_of(&tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_forges_nothing() {
    let (mut s, tree) = Stage::with_orphan(Open).await;
    let stranger = s.kernel().free_pid();
    s.kernel().place(stranger, 1, &format!("x) S {} (", tree.wrapper));
    for (pid, name) in [(tree.wrapper, ") Z 1 ("), (tree.adapter, "a\nb) S 1 1"), (tree.child, "((((")] {
        s.kernel().edit(pid, |t| t.name = name.into());
    }
    let lines = s.reap().await;
    assert_eq!(lines[0].pids, [tree.child, tree.adapter, tree.wrapper]);
    assert_eq!((s.state(&tree), s.sent_to(stranger)), (Closed, vec![]));
    assert!(s.kernel().runs(stranger));
}

#[tokio::test(start_paused = true)]
async fn the_number_of_a_thread_is_no_process() {
    for (pidfd, same_tick) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut s = Stage::on(|k| (k.abilities.pidfd, k.abilities.pidfs_inode) = (pidfd, pidfd)).await;
        let tree = s.orphan(Open).await;
        let ticks = s.kernel().task(tree.wrapper).start_ticks;
        s.kernel().vanish(tree.lease);
        let stranger = s.kernel().free_pid();
        s.kernel().place(stranger, 1, "threads");
        s.kernel().edit(stranger, |t| {
            t.threads.push(tree.wrapper);
            t.start_ticks = if same_tick { ticks } else { ticks + 1 };
        });
        s.reap().await;
        assert_eq!((s.state(&tree), s.sent()), (Lost, vec![]), "pidfd: {pidfd}, same tick: {same_tick}");
    }
}

#[tokio::test(start_paused = true)]
async fn neither_the_own_line_nor_init_is_ever_signalled() {
    let (mut s, tree) = Stage::with_orphan(Open).await;
    // They carry its marker, and are as young as it is.
    for pid in [1, ME] {
        s.kernel().edit(pid, |t| t.environ = environ(tree.lease, tree.gateway));
    }
    s.reap().await;
    for pid in [1, ME] {
        assert_eq!(s.sent_to(pid), []);
    }
    assert!(s.kernel().alive(tree.lease).is_empty(), "the tree itself is found by its marker");
}

#[tokio::test(start_paused = true)]
async fn the_number_of_an_ancestor_that_has_ended_protects_nobody() {
    const SHELL: i32 = 450;
    let mut s = Stage::on(|k| {
        k.place(SHELL, 1, "shell");
        k.edit(ME, |t| t.ppid = SHELL);
    })
    .await;
    let tree = s.orphan(Open).await;
    {
        let mut kernel = s.kernel();
        kernel.exit(SHELL, acp_shared::launch::ExitStatus::Exited(0));
        kernel.place(SHELL, tree.child, "tool");
        let (pgid, sid) = (kernel.task(tree.child).pgid, kernel.task(tree.child).sid);
        kernel.edit(SHELL, |t| (t.tree, t.pgid, t.sid) = (Some(tree.lease), pgid, sid));
    }
    s.reap_all_of(&tree).await;
}
