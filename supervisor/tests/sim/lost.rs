//! Lost leases: swept again, and removed only with proof of their end.

use crate::kernel::{EARLIER_SUPERVISOR, Kernel, SUPERVISOR};
use crate::simulation::{Sim, Tree, WALL_MS};
use acp_shared::protocol::LeaseState::{Closed, Closing, Lost, Open, Reserved};
use acp_supervisor::core::retention::{LostFinding, WALL_SETTLES_MS};
use acp_supervisor::sys::Signal;

const DAY_MS: u64 = 24 * 3_600 * 1_000;
/// Default of `retention_ms`.
const KEEP_MS: u64 = 7 * DAY_MS;

/// A lease lost long ago whose whole tree exists.
async fn lost(prepare: impl FnOnce(&mut Kernel)) -> (Sim, Tree) {
    let (mut s, tree) = Sim::with_orphan_on(Open, prepare).await;
    s.rewrite(&tree, |l| (l.state, l.ended_at_ms) = (Lost, Some(1))).await;
    (s, tree)
}

#[tokio::test(start_paused = true)]
async fn stale_lease_is_lost_and_expires_after_retention() {
    for (state, want) in [(Reserved, Lost), (Open, Lost), (Closing, Closed)] {
        let (mut s, tree) = Sim::with_orphan(state).await;
        s.kernel().exit_tree(tree.lease);
        s.reap().await;
        assert_eq!((s.state(&tree), s.sent()), (want, vec![]), "{state}");
        s.rewrite(&tree, |l| l.ended_at_ms = Some(WALL_MS)).await;
        s.sweep_lost().await;
        let proved = matches!(s.lost_findings.get(&tree.lease), Some(LostFinding::Gone(_)));
        assert_eq!(proved, want == Lost, "{state}");
        for after_ms in [0, DAY_MS, KEEP_MS] {
            s.expire_after(after_ms, 0).await;
            assert_eq!(s.leases.len(), 1, "{state}: not expired after {after_ms} ms");
        }
        s.expire_after(KEEP_MS + 1, 0).await;
        assert!(s.leases.is_empty(), "{state}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_lease_does_not_expire_without_proof() {
    let (mut s, tree) = lost(|_| {}).await;
    s.kernel().exit_tree(tree.lease);
    s.expire_after(100 * KEEP_MS, 0).await;
    assert_eq!(s.leases.len(), 1, "removed without a sweep");
    s.sweep_lost().await;
    s.expire_after(100 * KEEP_MS, 0).await;
    assert!(s.leases.is_empty());
}

#[tokio::test(start_paused = true)]
async fn clock_change_expires_nothing_at_once() {
    let years = (3_650 * DAY_MS).cast_signed();
    for set_ms in [years, -years] {
        let (mut s, tree) = Sim::with_orphan(Closing).await;
        s.kernel().exit_tree(tree.lease);
        s.reap().await;
        s.rewrite(&tree, |l| l.ended_at_ms = Some(WALL_MS)).await;
        s.expire_after(WALL_SETTLES_MS, set_ms).await;
        assert_eq!(s.leases.len(), 1, "{set_ms}");
        s.expire_after(KEEP_MS + 1, set_ms).await;
        assert!(s.leases.is_empty(), "{set_ms}: never expires");
    }
}

#[tokio::test(start_paused = true)]
async fn rediscovered_tree_of_lost_lease_is_ended() {
    let (mut s, tree) = lost(|_| {}).await;
    s.ignore_sigterm(&tree);
    assert_eq!(s.dry_run()[0].action, "signal");
    s.sweep_lost().await;
    assert_eq!(s.state(&tree), Closed);
    assert_eq!(s.stored_rows().await[0].state, Closed);
    assert!(s.kernel().alive(tree.lease).is_empty());
    assert!(
        s.signals_to(tree.wrapper).starts_with(&[Signal::Term, Signal::Cont]),
        "ended in order and verified"
    );
}

#[tokio::test(start_paused = true)]
async fn own_lost_lease_is_swept_again() {
    let (mut s, tree) = lost(|_| {}).await;
    let me = s.context.me;
    s.rewrite(&tree, |l| l.supervisor = me).await;
    s.sweep_lost().await;
    assert_eq!(s.state(&tree), Closed);
    assert!(s.kernel().alive(tree.lease).is_empty() && s.signals_to(SUPERVISOR).is_empty());
}

#[tokio::test(start_paused = true)]
async fn unverifiable_lost_lease_is_kept() {
    type Change = fn(&mut Sim, &Tree);
    let changes: [(&str, Change); 4] = [
        ("living supervisor", |s, _| {
            s.kernel().create(EARLIER_SUPERVISOR, 1, "acp-supervisor");
        }),
        ("another pid namespace", |s, _| s.leases[0].scope.pidns += 1),
        ("quarantined record", |s, _| s.leases[0].quarantine("it makes no sense", 1)),
        ("unreadable boot id", |s, _| s.leases[0].scope.boot_id.clear()),
    ];
    for (name, change) in changes {
        let (mut s, tree) = lost(|_| {}).await;
        change(&mut s, &tree);
        if s.kernel().get(EARLIER_SUPERVISOR).is_some() {
            let supervisor = s.kernel().record(EARLIER_SUPERVISOR);
            s.leases[0].supervisor = supervisor;
        }
        let row = s.leases[0].clone();
        s.save(row).await;
        s.kernel().owned.clear();
        s.edit_all(&tree, |t| t.tree = None);
        s.sweep_lost().await;
        assert!(
            matches!(s.lost_findings.get(&tree.lease), Some(LostFinding::Unproved(_))),
            "{name}: {:?}",
            s.lost_findings
        );
        assert!(s.is_untouched(&tree), "{name}");
        s.expire_after(100 * KEEP_MS, 0).await;
        assert_eq!((s.leases.len(), s.state(&tree)), (1, Lost), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn unproved_process_is_no_proof_of_end() {
    // Without inodes a process with recorded pid and start time, but another environment, may be foreign.
    let (mut s, tree) = lost(|k| k.abilities.pidfs_inode = false).await;
    s.edit_all(&tree, |t| t.environ.clear());
    s.kernel().owned.clear();
    s.sweep_lost().await;
    assert!(
        matches!(s.lost_findings.get(&tree.lease), Some(LostFinding::Unproved(_))),
        "{:?}",
        s.lost_findings
    );
    assert!(s.is_untouched(&tree));
    s.expire_after(100 * KEEP_MS, 0).await;
    assert_eq!(s.leases.len(), 1);
    for pid in tree.pids() {
        s.kernel().exit(pid, acp_shared::launch::ExitStatus::Exited(0));
    }
    s.sweep_lost().await;
    s.expire_after(100 * KEEP_MS, 0).await;
    assert!(s.leases.is_empty(), "kept after its end");
}

#[tokio::test(start_paused = true)]
async fn orphans_share_commits() {
    const ORPHANS: u64 = 100;
    let mut s = Sim::new().await;
    for _ in 0..ORPHANS {
        s.orphan(Open).await;
    }
    let before = s.context.store.commits();
    s.reap().await;
    assert!(s.leases.iter().all(|l| l.state == Closed));
    let made = s.context.store.commits() - before;
    assert!(made < ORPHANS / 4, "{made} commits for {ORPHANS} leases");
}
