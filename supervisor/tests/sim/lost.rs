//! What is lost is looked at again, and forgotten only when it is proved gone. Cases 3, 16 and 63, and H23.

use crate::kernel::{EARLIER, Kernel, ME};
use crate::stage::{Stage, Tree, WALL_MS};
use acp_shared::protocol::LeaseState::{Closed, Closing, Lost, Open, Reserved};
use acp_supervisor::core::retention::{LostFinding, WALL_SETTLES_MS};
use acp_supervisor::sys::Signal;

const DAY_MS: u64 = 24 * 3_600 * 1_000;
/// retention_ms, by default.
const KEEP_MS: u64 = 7 * DAY_MS;

/// A lease that was judged lost long ago, with its whole tree there.
async fn lost(prepare: impl FnOnce(&mut Kernel)) -> (Stage, Tree) {
    let (mut s, tree) = Stage::with_orphan_on(Open, prepare).await;
    s.rewrite(&tree, |l| (l.state, l.ended_at_ms) = (Lost, Some(1))).await;
    (s, tree)
}

#[tokio::test(start_paused = true)]
async fn a_stale_lease_without_a_process_is_lost_and_forgotten_after_its_time() {
    for (state, want) in [(Reserved, Lost), (Open, Lost), (Closing, Closed)] {
        let (mut s, tree) = Stage::with_orphan(state).await;
        s.kernel().vanish(tree.lease);
        s.reap().await;
        assert_eq!((s.state(&tree), s.sent()), (want, vec![]), "{state}");
        s.rewrite(&tree, |l| l.ended_at_ms = Some(WALL_MS)).await;
        s.look_at_lost().await;
        let proved = matches!(s.lost_findings.get(&tree.lease), Some(LostFinding::Gone(_)));
        assert_eq!(proved, want == Lost, "{state}");
        for after_ms in [0, DAY_MS, KEEP_MS] {
            s.forget_after(after_ms, 0).await;
            assert_eq!(s.leases.len(), 1, "{state}: not expired after {after_ms} ms");
        }
        s.forget_after(KEEP_MS + 1, 0).await;
        assert!(s.leases.is_empty(), "{state}");
    }
}

#[tokio::test(start_paused = true)]
async fn retention_alone_forgets_nothing_that_is_lost() {
    let (mut s, tree) = lost(|_| {}).await;
    s.kernel().vanish(tree.lease);
    s.forget_after(100 * KEEP_MS, 0).await;
    assert_eq!(s.leases.len(), 1, "it was not checked again");
    s.look_at_lost().await;
    s.forget_after(100 * KEEP_MS, 0).await;
    assert!(s.leases.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_by_years_forgets_nothing_at_once() {
    let years = (3_650 * DAY_MS).cast_signed();
    for set_ms in [years, -years] {
        let (mut s, tree) = Stage::with_orphan(Closing).await;
        s.kernel().vanish(tree.lease);
        s.reap().await;
        s.rewrite(&tree, |l| l.ended_at_ms = Some(WALL_MS)).await;
        s.forget_after(WALL_SETTLES_MS, set_ms).await;
        assert_eq!(s.leases.len(), 1, "{set_ms}");
        s.forget_after(KEEP_MS + 1, set_ms).await;
        assert!(s.leases.is_empty(), "{set_ms}: it expires in the end");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_tree_that_is_there_after_all_is_ended() {
    let (mut s, tree) = lost(|_| {}).await;
    s.harden(&tree);
    assert_eq!(s.dry_run()[0].action, "signal");
    s.look_at_lost().await;
    assert_eq!(s.state(&tree), Closed);
    assert_eq!(s.stored().await[0].state, Closed);
    assert!(s.kernel().alive(tree.lease).is_empty());
    assert!(
        s.sent_to(tree.wrapper).starts_with(&[Signal::Term, Signal::Cont]),
        "ended in order and verified"
    );
}

#[tokio::test(start_paused = true)]
async fn what_this_supervisor_itself_gave_up_is_looked_at_too() {
    let (mut s, tree) = lost(|_| {}).await;
    let me = s.context.me;
    s.rewrite(&tree, |l| l.supervisor = me).await;
    s.look_at_lost().await;
    assert_eq!(s.state(&tree), Closed);
    assert!(s.kernel().alive(tree.lease).is_empty() && s.sent_to(ME).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_that_proves_nothing_is_left_alone_and_kept() {
    type Spoil = fn(&mut Stage, &Tree);
    let spoils: [(&str, Spoil); 4] = [
        ("its supervisor lives", |s, _| {
            s.kernel().place(EARLIER, 1, "acp-supervisor");
        }),
        ("another pid namespace", |s, _| s.leases[0].scope.pidns += 1),
        ("a record that is not believed", |s, _| s.leases[0].quarantine("it makes no sense", 1)),
        ("a boot that cannot be read", |s, _| s.leases[0].scope.boot_id.clear()),
    ];
    for (name, spoil) in spoils {
        let (mut s, tree) = lost(|_| {}).await;
        spoil(&mut s, &tree);
        if s.kernel().get(EARLIER).is_some() {
            let supervisor = s.kernel().record(EARLIER);
            s.leases[0].supervisor = supervisor;
        }
        let row = s.leases[0].clone();
        s.save(row).await;
        s.kernel().ours.clear();
        s.edit_all(&tree, |t| t.tree = None);
        s.look_at_lost().await;
        assert!(
            matches!(s.lost_findings.get(&tree.lease), Some(LostFinding::Unproved(_))),
            "{name}: {:?}",
            s.lost_findings
        );
        assert!(s.untouched(&tree), "{name}");
        s.forget_after(100 * KEEP_MS, 0).await;
        assert_eq!((s.leases.len(), s.state(&tree)), (1, Lost), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_prove_to_be_ours_is_no_proof_that_ours_is_gone() {
    // Without inodes a process with number and start time as recorded, and another environment, may be a stranger.
    let (mut s, tree) = lost(|k| k.abilities.pidfs_inode = false).await;
    s.edit_all(&tree, |t| t.environ.clear());
    s.kernel().ours.clear();
    s.look_at_lost().await;
    assert!(
        matches!(s.lost_findings.get(&tree.lease), Some(LostFinding::Unproved(_))),
        "{:?}",
        s.lost_findings
    );
    assert!(s.untouched(&tree));
    s.forget_after(100 * KEEP_MS, 0).await;
    assert_eq!(s.leases.len(), 1);
    for pid in tree.pids() {
        s.kernel().exit(pid, acp_shared::launch::ExitStatus::Exited(0));
    }
    s.look_at_lost().await;
    s.forget_after(100 * KEEP_MS, 0).await;
    assert!(s.leases.is_empty(), "it is removed after its end");
}

#[tokio::test(start_paused = true)]
async fn orphans_share_their_commits() {
    const ORPHANS: u64 = 100;
    let mut s = Stage::new().await;
    for _ in 0..ORPHANS {
        s.orphan(Open).await;
    }
    let before = s.context.store.commits();
    s.reap().await;
    assert!(s.leases.iter().all(|l| l.state == Closed));
    let made = s.context.store.commits() - before;
    assert!(made < ORPHANS / 4, "{made} commits for {ORPHANS} leases, which are closing and then closed");
}
