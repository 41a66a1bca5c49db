//! Validity of recorded pids in this boot and these namespaces.

use crate::kernel::{EARLIER_SUPERVISOR, SUPERVISOR};
use crate::simulation::{Sim, Tree};
use acp_shared::protocol::LeaseState::{Closed, Lost, Open};
use acp_supervisor::core::lease::{NsInit, PidScope, ProcessRecord};

/// Reaps a lease from another scope; the tree here only resembles that of the lease.
async fn reap_from_scope(change: impl Fn(&mut PidScope), inode: bool) -> (Sim, Tree) {
    let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
    s.kernel().owned.clear();
    s.rewrite(&tree, |l| change(&mut l.scope)).await;
    s.reap().await;
    assert!(s.is_untouched(&tree));
    (s, tree)
}

#[tokio::test(start_paused = true)]
async fn lease_of_earlier_boot_is_lost_without_process_list() {
    let (s, tree) = reap_from_scope(|scope| scope.boot_id = "earlier".into(), true).await;
    assert_eq!(s.state(&tree), Lost);
    assert_eq!(s.kernel().list_reads, 0, "the process list was not read");

    let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.list_fails = true).await;
    s.rewrite(&tree, |l| l.scope.boot_id = "earlier".into()).await;
    s.reap().await;
    assert_eq!(s.state(&tree), Lost);
}

#[tokio::test(start_paused = true)]
async fn lease_of_another_pid_namespace_is_lost_without_signals() {
    for inode in [true, false] {
        let (s, tree) = reap_from_scope(|scope| scope.pidns += 1, inode).await;
        assert_eq!(s.state(&tree), Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn reused_namespace_number_is_detected_by_init() {
    let inode = |scope: &mut PidScope| scope.init.inode = scope.init.inode.map(|i| i - 1);
    let (s, tree) = reap_from_scope(inode, true).await;
    assert_eq!(s.state(&tree), Lost);
    let ticks = |scope: &mut PidScope| scope.init = NsInit { start_ticks: Some(5), inode: None };
    let (s, tree) = reap_from_scope(ticks, false).await;
    assert_eq!(s.state(&tree), Lost);
}

#[tokio::test(start_paused = true)]
async fn init_is_compared_by_known_facts() {
    // In another time namespace all start times are shifted; the inode of init is not.
    for init in [
        |init: NsInit| NsInit { start_ticks: init.start_ticks.map(|t| t + 77), ..init },
        |init: NsInit| NsInit { start_ticks: None, ..init },
        |init: NsInit| NsInit { inode: None, ..init },
        |_| NsInit::default(),
    ] {
        let (mut s, tree) = Sim::with_orphan(Open).await;
        s.rewrite(&tree, |l| l.scope.init = init(l.scope.init)).await;
        s.assert_reap_ends(&tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn inode_outweighs_shifted_start_time() {
    for shift in [-500_i64, 500] {
        let (mut s, tree) = Sim::with_orphan(Open).await;
        s.rewrite(&tree, |l| {
            let bound = l.bound.as_mut().unwrap();
            for process in [&mut bound.wrapper, &mut bound.adapter] {
                process.start_ticks = process.start_ticks.saturating_add_signed(shift);
            }
        })
        .await;
        s.assert_reap_ends(&tree).await;
    }
}

/// Converts a row to the clock of another time namespace.
fn shift_clock(lease: &mut acp_supervisor::core::lease::Lease, shift: i64) {
    let shifted = |ticks: u64| ticks.saturating_add_signed(shift);
    lease.scope.timens = Some(9);
    lease.scope.init.start_ticks = lease.scope.init.start_ticks.map(shifted);
    let bound = lease.bound.as_mut().unwrap();
    for process in [&mut bound.wrapper, &mut bound.adapter, &mut lease.supervisor] {
        process.start_ticks = shifted(process.start_ticks);
    }
}

#[tokio::test(start_paused = true)]
async fn without_inodes_shifted_start_time_proves_nothing() {
    for shift in [-100, 10_000_000] {
        for first_has_inode in [true, false] {
            let mut s = Sim::with_kernel(|k| {
                k.abilities.pidfs_inode = false;
                let scope = k.scope.as_mut().unwrap();
                scope.init.inode = scope.init.inode.filter(|_| first_has_inode);
            })
            .await;
            let tree = s.orphan(Open).await;
            let row = s.lease(&tree).clone();
            s.rewrite(&tree, |l| shift_clock(l, shift)).await;
            s.kernel().owned.clear();
            s.assert_reap_spares(&tree).await;
            // By the clock of the row the tree is the same.
            s.kernel().owned.insert(tree.lease);
            s.save(row).await;
            s.assert_reap_ends(&tree).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn supervisor_of_another_time_namespace_counts_as_living() {
    for (inode, why) in [
        (true, "the supervisor that spawned it lives"),
        (false, "it is unknown whether the supervisor that spawned it lives"),
    ] {
        let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        let supervisor = start_earlier_supervisor(&s);
        s.rewrite(&tree, |l| {
            l.supervisor = supervisor;
            shift_clock(l, -100);
        })
        .await;
        s.kernel().owned.clear();
        let lines = s.reap().await;
        assert_eq!((lines[0].action.as_str(), lines[0].why.as_str()), ("leave", why));
        s.assert_left_open(&tree);
    }
}

/// Only the process that left its session remains, with a marker. Across time namespaces its age is known only if
/// the wrapper is alive.
#[tokio::test(start_paused = true)]
async fn age_of_marked_process_is_unknown_across_time_namespaces() {
    for (shift, wrapper_lives) in [(-1_000, true), (1_000, true), (-1_000, false), (1_000, false)] {
        let (mut s, tree) = Sim::with_orphan(Open).await;
        s.rewrite(&tree, |l| shift_clock(l, shift)).await;
        s.kernel().edit(tree.child, |t| t.ppid = 1);
        s.kernel().exit(tree.adapter, acp_shared::launch::ExitStatus::Exited(0));
        if !wrapper_lives {
            s.kernel().exit(tree.wrapper, acp_shared::launch::ExitStatus::Exited(0));
            s.kernel().owned.clear();
        }
        s.reap().await;
        let (want, alive) = if wrapper_lives { (Closed, vec![]) } else { (Open, vec![tree.child]) };
        assert_eq!((s.state(&tree), s.kernel().alive(tree.lease)), (want, alive), "{shift}");
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_pids_are_rejected_on_load() {
    for (name, columns) in [
        ("pid 0", "wrapper_pid = 0"),
        ("init", "wrapper_pid = 1, sid = 1"),
        ("negative pid", "wrapper_pid = -7, sid = -7"),
        ("adapter pid 0", "adapter_pid = 0, pgid = 0"),
        ("init as adapter", "adapter_pid = 1, pgid = 1"),
        ("negative adapter pid", "adapter_pid = -7, pgid = -7"),
        ("group 0", "pgid = 0"),
        ("group 1", "pgid = 1"),
        ("every process", "pgid = -1"),
        ("session 0", "sid = 0"),
        ("the supervisor as wrapper", "wrapper_pid = supervisor_pid, sid = supervisor_pid"),
        ("the supervisor as adapter", "adapter_pid = supervisor_pid, pgid = supervisor_pid"),
        ("the supervisor's group", "pgid = supervisor_pid"),
        ("another session", "sid = sid + 1"),
        ("wrapper is adapter", "adapter_pid = wrapper_pid, pgid = wrapper_pid"),
    ] {
        let (mut s, tree) = Sim::with_orphan(Open).await;
        s.damage(&format!("UPDATE leases SET {columns}"));
        s.leases = s.stored_rows().await;
        s.kernel().owned.clear();
        s.edit_all(&tree, |t| t.environ.clear());
        s.reap().await;
        assert_eq!((s.state(&tree), s.lease(&tree).bound), (Lost, None), "{name}");
        assert!(s.is_untouched(&tree), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn row_naming_this_supervisor_signals_nothing() {
    let (mut s, tree) = Sim::with_orphan(Open).await;
    s.kernel().exit_tree(tree.lease);
    let me = s.kernel().record(SUPERVISOR);
    s.rewrite(&tree, |l| {
        let bound = l.bound.as_mut().unwrap();
        (bound.wrapper, bound.sid) = (me, SUPERVISOR);
    })
    .await;
    s.reap().await;
    assert_eq!((s.state(&tree), s.sent()), (Lost, vec![]));
}

#[tokio::test(start_paused = true)]
async fn wall_clock_is_no_evidence() {
    for started_at_ms in [0, 3_600_000, i64::MAX.unsigned_abs()] {
        let (mut s, tree) = Sim::with_orphan(Open).await;
        s.rewrite(&tree, |l| l.started_at_ms = started_at_ms).await;
        s.assert_reap_ends(&tree).await;
    }
}

/// Starts the supervisor that a lease names, as after a copy of its state directory.
fn start_earlier_supervisor(s: &Sim) -> ProcessRecord {
    s.kernel().create(EARLIER_SUPERVISOR, 1, "acp-supervisor");
    s.kernel().record(EARLIER_SUPERVISOR)
}

#[tokio::test(start_paused = true)]
async fn leases_of_living_supervisor_are_untouched() {
    for (inode, shown, line) in [
        (true, true, "the supervisor that spawned it lives"),
        (false, true, "the supervisor that spawned it lives"),
        (true, false, "the supervisor that spawned it lives"),
        (false, false, "it is unknown whether the supervisor that spawned it lives"),
    ] {
        let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        let supervisor = start_earlier_supervisor(&s);
        s.kernel().edit(EARLIER_SUPERVISOR, |t| t.hidden = !shown);
        s.rewrite(&tree, |l| l.supervisor = supervisor).await;
        s.kernel().owned.clear();
        assert_eq!(s.dry_run()[0].why, line);
        let lines = s.reap().await;
        assert_eq!((lines[0].action.as_str(), lines[0].why.as_str()), ("leave", line));
        s.assert_left_open(&tree);
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_inode_of_supervisor_leaves_lease_open() {
    let (mut s, tree) = Sim::with_orphan(Open).await;
    let supervisor = start_earlier_supervisor(&s);
    s.rewrite(&tree, |l| l.supervisor = supervisor).await;
    s.kernel().abilities.pidfs_inode = false;
    s.kernel().owned.clear();
    s.assert_reap_spares(&tree).await;
}

#[tokio::test(start_paused = true)]
async fn leases_of_dead_supervisor_are_reaped_despite_pid_reuse() {
    for (inode, zombie) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        let mut supervisor = start_earlier_supervisor(&s);
        if zombie {
            s.kernel().edit(1, |t| t.reaps = false);
            s.kernel().exit(EARLIER_SUPERVISOR, acp_shared::launch::ExitStatus::Exited(0));
        } else if inode {
            supervisor.inode = supervisor.inode.map(|i| i - 1);
        } else {
            supervisor.start_ticks -= 1;
        }
        s.rewrite(&tree, |l| l.supervisor = supervisor).await;
        s.reap().await;
        assert_eq!(s.state(&tree), Closed, "inode: {inode}, zombie: {zombie}");
        assert_eq!(s.signals_to(EARLIER_SUPERVISOR), []);
        assert!(s.kernel().alive(tree.lease).is_empty());
    }
}
