//! Do the recorded numbers mean anything here and now? Cases 10 to 14, 16 and 17.

use crate::kernel::{EARLIER, ME};
use crate::stage::{Stage, Tree};
use acp_shared::protocol::LeaseState::{Closed, Lost, Open};
use acp_supervisor::core::lease::{NsInit, PidScope, ProcessRecord};

/// Reaps a lease that was recorded in another scope, with a tree here that only looks like its own.
async fn reaped_from(change: impl Fn(&mut PidScope), inode: bool) -> (Stage, Tree) {
    let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
    s.kernel().ours.clear();
    s.rewrite(&tree, |l| change(&mut l.scope)).await;
    s.reap().await;
    assert!(s.untouched(&tree));
    (s, tree)
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_an_earlier_boot_is_lost_without_a_look_at_processes() {
    let (s, tree) = reaped_from(|scope| scope.boot_id = "earlier".into(), true).await;
    assert_eq!(s.state(&tree), Lost);
    assert_eq!(s.kernel().lists, 0, "the process list was not read");

    let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.list_fails = true).await;
    s.rewrite(&tree, |l| l.scope.boot_id = "earlier".into()).await;
    s.reap().await;
    assert_eq!(s.state(&tree), Lost);
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_another_pid_namespace_is_lost_and_nothing_signalled() {
    for inode in [true, false] {
        let (s, tree) = reaped_from(|scope| scope.pidns += 1, inode).await;
        assert_eq!(s.state(&tree), Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reused_namespace_number_is_told_by_its_first_process() {
    let inode = |scope: &mut PidScope| scope.init.inode = scope.init.inode.map(|i| i - 1);
    let (s, tree) = reaped_from(inode, true).await;
    assert_eq!(s.state(&tree), Lost);
    let ticks = |scope: &mut PidScope| scope.init = NsInit { start_ticks: Some(5), inode: None };
    let (s, tree) = reaped_from(ticks, false).await;
    assert_eq!(s.state(&tree), Lost);
}

#[tokio::test(start_paused = true)]
async fn the_first_process_is_compared_by_what_both_know() {
    // Seen from another time namespace every start time is shifted: the inode of the first process stands.
    for init in [
        |init: NsInit| NsInit { start_ticks: init.start_ticks.map(|t| t + 77), ..init },
        |init: NsInit| NsInit { start_ticks: None, ..init },
        |init: NsInit| NsInit { inode: None, ..init },
        |_| NsInit::default(),
    ] {
        let (mut s, tree) = Stage::with_orphan(Open).await;
        s.rewrite(&tree, |l| l.scope.init = init(l.scope.init)).await;
        s.reap_all_of(&tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shifted_start_time_is_no_proof_against_the_inode() {
    for shift in [-500_i64, 500] {
        let (mut s, tree) = Stage::with_orphan(Open).await;
        s.rewrite(&tree, |l| {
            let bound = l.bound.as_mut().unwrap();
            for process in [&mut bound.wrapper, &mut bound.adapter] {
                process.start_ticks = process.start_ticks.saturating_add_signed(shift);
            }
        })
        .await;
        s.reap_all_of(&tree).await;
    }
}

/// What a supervisor in another time namespace would have written of the same processes.
fn by_another_clock(lease: &mut acp_supervisor::core::lease::Lease, shift: i64) {
    let shifted = |ticks: u64| ticks.saturating_add_signed(shift);
    lease.scope.timens = Some(9);
    lease.scope.init.start_ticks = lease.scope.init.start_ticks.map(shifted);
    let bound = lease.bound.as_mut().unwrap();
    for process in [&mut bound.wrapper, &mut bound.adapter, &mut lease.supervisor] {
        process.start_ticks = shifted(process.start_ticks);
    }
}

#[tokio::test(start_paused = true)]
async fn without_inodes_a_shifted_start_time_proves_nothing() {
    for shift in [-100, 10_000_000] {
        for first_has_inode in [true, false] {
            let mut s = Stage::on(|k| {
                k.abilities.pidfs_inode = false;
                let scope = k.scope.as_mut().unwrap();
                scope.init.inode = scope.init.inode.filter(|_| first_has_inode);
            })
            .await;
            let tree = s.orphan(Open).await;
            let row = s.lease(&tree).clone();
            s.rewrite(&tree, |l| by_another_clock(l, shift)).await;
            s.kernel().ours.clear();
            s.reap_nothing_of(&tree).await;
            // By the clock that the row was written by it is the same tree.
            s.kernel().ours.insert(tree.lease);
            s.save(row).await;
            s.reap_all_of(&tree).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_living_supervisor_is_not_taken_for_dead_by_another_clock() {
    for (inode, why) in [
        (true, "the supervisor that spawned it lives"),
        (false, "it is unknown whether the supervisor that spawned it lives"),
    ] {
        let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        let supervisor = with_its_supervisor(&s);
        s.rewrite(&tree, |l| {
            l.supervisor = supervisor;
            by_another_clock(l, -100);
        })
        .await;
        s.kernel().ours.clear();
        let lines = s.reap().await;
        assert_eq!((lines[0].action.as_str(), lines[0].why.as_str()), ("leave", why));
        s.assert_left_open(&tree);
    }
}

/// Of the tree only what has left its session is there, known by its marker alone. Whether it is as old as the tree
/// another clock does not say, unless the wrapper itself does.
#[tokio::test(start_paused = true)]
async fn how_old_a_marked_process_is_another_clock_does_not_say() {
    for (shift, wrapper_lives) in [(-1_000, true), (1_000, true), (-1_000, false), (1_000, false)] {
        let (mut s, tree) = Stage::with_orphan(Open).await;
        s.rewrite(&tree, |l| by_another_clock(l, shift)).await;
        s.kernel().edit(tree.child, |t| t.ppid = 1);
        s.kernel().exit(tree.adapter, acp_shared::launch::ExitStatus::Exited(0));
        if !wrapper_lives {
            s.kernel().exit(tree.wrapper, acp_shared::launch::ExitStatus::Exited(0));
            s.kernel().ours.clear();
        }
        s.reap().await;
        let (want, alive) = if wrapper_lives { (Closed, vec![]) } else { (Open, vec![tree.child]) };
        assert_eq!((s.state(&tree), s.kernel().alive(tree.lease)), (want, alive), "{shift}");
    }
}

#[tokio::test(start_paused = true)]
async fn impossible_processes_are_rejected_when_a_row_is_loaded() {
    for (what, columns) in [
        ("no number", "wrapper_pid = 0"),
        ("init", "wrapper_pid = 1, sid = 1"),
        ("a group", "wrapper_pid = -7, sid = -7"),
        ("no adapter", "adapter_pid = 0, pgid = 0"),
        ("init as adapter", "adapter_pid = 1, pgid = 1"),
        ("a group as adapter", "adapter_pid = -7, pgid = -7"),
        ("group 0", "pgid = 0"),
        ("group 1", "pgid = 1"),
        ("every process", "pgid = -1"),
        ("session 0", "sid = 0"),
        ("the supervisor as wrapper", "wrapper_pid = supervisor_pid, sid = supervisor_pid"),
        ("the supervisor as adapter", "adapter_pid = supervisor_pid, pgid = supervisor_pid"),
        ("the supervisor's group", "pgid = supervisor_pid"),
        ("another session", "sid = sid + 1"),
        ("wrapper and adapter are one", "adapter_pid = wrapper_pid, pgid = wrapper_pid"),
    ] {
        let (mut s, tree) = Stage::with_orphan(Open).await;
        s.damage(&format!("UPDATE leases SET {columns}"));
        s.leases = s.stored().await;
        s.kernel().ours.clear();
        s.edit_all(&tree, |t| t.environ.clear());
        s.reap().await;
        assert_eq!((s.state(&tree), s.lease(&tree).bound), (Lost, None), "{what}");
        assert!(s.untouched(&tree), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_names_this_supervisor_signals_nobody() {
    let (mut s, tree) = Stage::with_orphan(Open).await;
    s.kernel().vanish(tree.lease);
    let me = s.kernel().record(ME);
    s.rewrite(&tree, |l| {
        let bound = l.bound.as_mut().unwrap();
        (bound.wrapper, bound.sid) = (me, ME);
    })
    .await;
    s.reap().await;
    assert_eq!((s.state(&tree), s.sent()), (Lost, vec![]));
}

#[tokio::test(start_paused = true)]
async fn the_wall_clock_decides_nothing() {
    for started_at_ms in [0, 3_600_000, i64::MAX.unsigned_abs()] {
        let (mut s, tree) = Stage::with_orphan(Open).await;
        s.rewrite(&tree, |l| l.started_at_ms = started_at_ms).await;
        s.reap_all_of(&tree).await;
    }
}

/// The supervisor that a lease names lives: this is a copy of its state directory.
fn with_its_supervisor(s: &Stage) -> ProcessRecord {
    s.kernel().place(EARLIER, 1, "acp-supervisor");
    s.kernel().record(EARLIER)
}

#[tokio::test(start_paused = true)]
async fn a_living_supervisors_leases_are_its_own_business() {
    for (inode, shown, line) in [
        (true, true, "the supervisor that spawned it lives"),
        (false, true, "the supervisor that spawned it lives"),
        (true, false, "the supervisor that spawned it lives"),
        (false, false, "it is unknown whether the supervisor that spawned it lives"),
    ] {
        let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        let supervisor = with_its_supervisor(&s);
        s.kernel().edit(EARLIER, |t| t.hidden = !shown);
        s.rewrite(&tree, |l| l.supervisor = supervisor).await;
        s.kernel().ours.clear();
        assert_eq!(s.dry_run()[0].why, line);
        let lines = s.reap().await;
        assert_eq!((lines[0].action.as_str(), lines[0].why.as_str()), ("leave", line));
        s.assert_left_open(&tree);
    }
}

#[tokio::test(start_paused = true)]
async fn an_inode_that_cannot_be_read_any_more_leaves_a_lease_alone() {
    let (mut s, tree) = Stage::with_orphan(Open).await;
    let supervisor = with_its_supervisor(&s);
    s.rewrite(&tree, |l| l.supervisor = supervisor).await;
    s.kernel().abilities.pidfs_inode = false;
    s.kernel().ours.clear();
    s.reap_nothing_of(&tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_supervisors_leases_are_orphans_whoever_has_its_number() {
    for (inode, zombie) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        let mut supervisor = with_its_supervisor(&s);
        if zombie {
            s.kernel().edit(1, |t| t.reaps = false);
            s.kernel().exit(EARLIER, acp_shared::launch::ExitStatus::Exited(0));
        } else if inode {
            supervisor.inode = supervisor.inode.map(|i| i - 1);
        } else {
            supervisor.start_ticks -= 1;
        }
        s.rewrite(&tree, |l| l.supervisor = supervisor).await;
        s.reap().await;
        assert_eq!(s.state(&tree), Closed, "inode: {inode}, zombie: {zombie}");
        assert_eq!(s.sent_to(EARLIER), []);
        assert!(s.kernel().alive(tree.lease).is_empty());
    }
}
