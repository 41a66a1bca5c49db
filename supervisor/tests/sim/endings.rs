//! How trees end: orderly closes, orphans, survivors, strays. Cases 37, 44, 65, 66, 72.

use crate::kernel::{ME, OnTerm, State, environ};
use crate::stage::{GRACES, REAP_TERM_MS, Stage};
use crate::wrapper::Wrapper;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseState::{Bound, Closed, Closing, Lost, Open, Reserved};
use acp_supervisor::lease::orphans;
use acp_supervisor::lease::task::LeaseCmd;
use acp_supervisor::sys::Signal::{Cont, Kill, Term};

#[tokio::test(start_paused = true)]
async fn an_orphaned_tree_is_ended_children_first() {
    for state in [Bound, Open] {
        let mut s = Stage::new().await;
        let (tree, other) =
            (s.orphan(state).await, s.plant_at(9_000, acp_shared::ids::GatewayInstanceId::mint()));
        assert_eq!(s.dry_run()[0].pids, [tree.child, tree.adapter, tree.wrapper]);
        let lines = s.reap().await;
        assert_eq!(lines[0].action, "signal");
        assert_eq!(lines[0].pids, [tree.child, tree.adapter, tree.wrapper]);
        assert_eq!(s.got(Term), [tree.child, tree.adapter, tree.wrapper]);
        assert_eq!(s.state(&tree), Closed);
        assert!(s.kernel().alive(tree.lease).is_empty() && s.untouched(&other));
    }
}

#[tokio::test(start_paused = true)]
async fn what_ignores_sigterm_gets_sigkill_after_the_grace_and_not_before() {
    let (mut s, tree) = Stage::with_stubborn_orphan().await;
    s.reap_all_of(&tree).await;
    let first = |signal| s.sent().iter().find(|sent| sent.signal == signal).map(|sent| sent.at_ms).unwrap();
    assert!(first(Kill) >= first(Term) + REAP_TERM_MS, "{:?}", s.sent());
    assert_eq!(s.sent_to(tree.wrapper), [Term, Cont, Kill], "each is recorded once");
}

#[tokio::test(start_paused = true)]
async fn what_is_born_meanwhile_is_ended_too() {
    let (mut s, tree) = Stage::with_stubborn_orphan().await;
    s.kernel().in_ms(100, move |k| {
        let late = k.fork(tree.child, "late");
        k.setsid(late);
        k.edit(late, |t| (t.on_term, t.environ) = (OnTerm::Ignores, Vec::new()));
    });
    s.reap_all_of(&tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_stopped_tree_is_continued_so_that_it_can_end() {
    let (mut s, tree) = Stage::with_orphan(Open).await;
    s.edit_all(&tree, |t| t.state = State::Stopped);
    s.reap_all_of(&tree).await;
    assert_eq!(s.sent_to(tree.child), [Term, Cont], "no SIGKILL was needed");
}

/// As long as the wrapper lives it is the parent of what loses its own: it is killed when nothing else is left.
#[tokio::test(start_paused = true)]
async fn the_wrapper_is_killed_last() {
    let (mut s, tree) = Stage::with_stubborn_orphan().await;
    s.reap_all_of(&tree).await;
    let killed = s.got(Kill);
    assert_eq!(killed.last(), Some(&tree.wrapper), "{killed:?}");
    assert_eq!(killed.iter().filter(|pid| **pid == tree.wrapper).count(), 1, "{killed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_a_number_is_found_by_its_marker() {
    for matches in 0..=2 {
        let (mut s, tree) = Stage::with_orphan(Reserved).await;
        for pid in &tree.pids()[matches..] {
            s.kernel().edit(*pid, |t| t.environ.clear());
        }
        if matches == 0 {
            s.kernel().vanish(tree.lease);
        }
        let lines = s.reap().await;
        assert_eq!(s.state(&tree), if matches == 0 { Lost } else { Closed });
        assert_eq!(lines[0].action, if matches == 0 { "mark_lost" } else { "signal" });
        assert!(s.kernel().alive(tree.lease).is_empty(), "{matches}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_changes_identity_after_sigterm_gets_no_sigkill() {
    for root in [true, false] {
        let (mut s, tree) = Stage::with_stubborn_orphan().await;
        let pid = if root { tree.wrapper } else { tree.child };
        // A number is not given out while a session or a group has it: the others leave first.
        for other in [tree.adapter, tree.child] {
            s.kernel().setsid(other);
            s.kernel().edit(other, |t| t.dies_with_parent = false);
        }
        s.kernel().in_ms(REAP_TERM_MS / 2, move |k| k.give_away(pid));
        s.reap().await;
        assert_eq!(s.sent_to(pid), [Term, Cont], "root: {root}");
        assert_eq!(s.kernel().task(pid).name, "stranger");
        s.assert_ended(&tree);
    }
}

#[tokio::test(start_paused = true)]
async fn survivors_are_named_and_their_lease_is_not_closed() {
    for foreign in [true, false] {
        let (mut s, tree) = Stage::with_orphan(Open).await;
        s.kernel().edit(tree.child, |t| if foreign { t.uid = 0 } else { t.state = State::Uninterruptible });
        s.reap().await;
        assert_eq!(s.state(&tree), Closing, "foreign: {foreign}");
        let pid = tree.child.to_string();
        assert!(s.lease(&tree).state_reason.contains(&pid), "{}", s.lease(&tree).state_reason);
        assert_eq!(s.kernel().alive(tree.lease), [tree.child]);
        // It gets out of the kernel, or its user ends it: the next look closes the lease.
        if foreign {
            s.kernel().exit(tree.child, ExitStatus::Exited(0));
        } else {
            s.kernel().resume(tree.child);
        }
        s.reap_all_of(&tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_dead_that_nobody_collects_are_dead() {
    for inode in [true, false] {
        let mut s = Stage::on(|k| k.abilities.pidfs_inode = inode).await;
        s.kernel().edit(1, |t| t.reaps = false);
        let tree = s.orphan(Open).await;
        s.kernel().vanish(tree.lease);
        assert!(s.kernel().get(tree.wrapper).is_some(), "a zombie");
        s.reap().await;
        assert_eq!((s.state(&tree), s.sent()), (Lost, vec![]));
        // And those that the reaper makes.
        let tree = s.orphan(Open).await;
        s.harden(&tree);
        s.reap_all_of(&tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_closing_lease_is_taken_up_again_after_a_fresh_look() {
    let mut s = Stage::new().await;
    let (lives, gone, reused) = (s.orphan(Closing).await, s.orphan(Closing).await, s.orphan(Closing).await);
    s.kernel().vanish(gone.lease);
    s.kernel().vanish(reused.lease);
    s.kernel().place(reused.wrapper, 1, "stranger");
    s.reap().await;
    for tree in [lives, gone, reused] {
        s.assert_ended(&tree);
    }
    assert_eq!(s.sent_to(reused.wrapper), []);
}

#[tokio::test(start_paused = true)]
async fn of_two_leases_with_one_process_the_newest_owns_it() {
    // Start times may be shifted meanwhile: the inode alone proves it.
    for shift in [0, 77] {
        let (mut s, tree) = Stage::with_orphan(Open).await;
        let mut other = s.plant_at(9_000, tree.gateway);
        s.kernel().vanish(other.lease);
        (other.wrapper, other.adapter, other.child) = (tree.wrapper, tree.adapter, tree.child);
        let mut row = s.row(&other, Open);
        row.started_at_ms = s.lease(&tree).started_at_ms + 5;
        row.bound.as_mut().unwrap().wrapper.start_ticks += shift;
        s.save(row).await;
        s.rewrite(&tree, |l| l.bound.as_mut().unwrap().wrapper.start_ticks += shift).await;
        s.reap().await;
        assert_eq!((s.state(&tree), s.state(&other)), (Lost, Closed));
        assert!(s.lease(&tree).state_reason.contains("newer lease"), "{}", s.lease(&tree).state_reason);
        assert!(s.kernel().alive(tree.lease).is_empty());
        assert_eq!(s.sent_to(tree.wrapper), [Term], "recorded once, for one of them");
    }
}

#[tokio::test(start_paused = true)]
async fn without_inodes_the_environment_says_whose_a_process_is() {
    let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = false).await;
    let mut other = s.plant_at(9_000, tree.gateway);
    s.kernel().vanish(other.lease);
    (other.wrapper, other.adapter, other.child) = (tree.wrapper, tree.adapter, tree.child);
    let mut row = s.row(&other, Open);
    row.started_at_ms = s.lease(&tree).started_at_ms + 5;
    s.save(row).await;
    s.reap().await;
    assert_eq!((s.state(&tree), s.state(&other)), (Closed, Lost));
    assert!(s.kernel().alive(tree.lease).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_processes_are_missing_is_lost() {
    for state in [Reserved, Bound, Open] {
        let (mut s, tree) = Stage::with_orphan(state).await;
        s.kernel().vanish(tree.lease);
        let lines = s.reap().await;
        assert_eq!((s.state(&tree), lines[0].action.as_str()), (Lost, "mark_lost"), "{state}");
        assert!(s.lease(&tree).ended_at_ms.is_some(), "its retention has begun");
        assert_eq!(s.sent(), []);
        // It is settled: nothing more is done about it.
        assert!(s.reap().await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn closing_twice_is_closing_once() {
    let (mut s, id, tree) = Stage::with_agent().await;
    for _ in 0..3 {
        s.close(id).await;
        s.pass(40).await;
    }
    s.pass(100).await;
    s.close_to_end(id).await;
    s.close(id).await;
    s.pass(1_000).await;
    assert_eq!(s.sent_to(tree.wrapper), [Term, Cont]);
    assert_eq!((s.sent_to(tree.adapter), s.sent_to(tree.child)), (vec![], vec![]), "its wrapper ends them");
    assert_eq!((s.by_id(id).state, s.kernel().alive(id)), (Closed, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_close_during_the_end_of_the_agent_signals_nobody_twice() {
    let (mut s, id, tree) = Stage::with_agent().await;
    s.close(id).await;
    s.kernel().exit(tree.adapter, ExitStatus::Exited(5));
    s.pass(10).await;
    s.close(id).await;
    s.tell(id, LeaseCmd::Hurry).await;
    s.tell(id, LeaseCmd::Hurry).await;
    s.reaches(id, Closed).await;
    assert_eq!(s.by_id(id).exit, Some(ExitStatus::Exited(5)));
    assert!(s.sent_to(tree.wrapper).iter().filter(|signal| **signal == Term).count() <= 1);
    assert!(s.kernel().alive(id).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_close_that_ends_nothing_escalates_and_names_what_survives() {
    let (mut s, id, tree) = Stage::with_agent_under(Wrapper { deaf: true, ..Wrapper::default() }).await;
    s.harden(&tree);
    s.kernel().edit(tree.child, |t| t.state = State::Uninterruptible);
    s.close(id).await;
    s.until("it is stuck", |s| s.stuck.contains(&id)).await;
    assert_eq!(s.by_id(id).state, Closing);
    assert!(s.by_id(id).state_reason.contains("tool"), "{}", s.by_id(id).state_reason);
    assert!(!s.by_id(id).state_reason.contains("wrapper"), "{}", s.by_id(id).state_reason);
    // The wrapper is spared while anything that may lose its parent is there.
    assert_eq!(s.kernel().alive(id), [tree.wrapper, tree.child]);
    assert_eq!(s.sent_to(tree.wrapper), [Term, Cont]);
    s.kernel().resume(tree.child);
    s.reaches(id, Closed).await;
    assert_eq!(s.sent_to(tree.wrapper).last(), Some(&Kill));
    assert_eq!(s.stored().await[0].state, Closed);
}

#[tokio::test(start_paused = true)]
async fn a_wrapper_that_is_killed_takes_its_tree_along_and_the_lease_is_lost() {
    let (mut s, id, tree) = Stage::with_agent().await;
    let escaped = s.kernel().fork(tree.child, "daemon");
    s.kernel().setsid(escaped);
    s.kernel().deliver(tree.wrapper, Kill);
    s.reaches(id, Lost).await;
    assert!(s.kernel().alive(id).is_empty(), "{:?}", s.kernel().alive(id));
    assert_eq!(s.sent_to(escaped), [Kill]);
}

#[tokio::test(start_paused = true)]
async fn what_the_same_process_holds_it_keeps_across_an_exec() {
    // A program that was replaced in place has its number, its start time and its inode.
    let (mut s, tree) = Stage::with_orphan(Open).await;
    let me = s.kernel().record(ME);
    s.rewrite(&tree, |l| l.supervisor = me).await;
    s.kernel().ours.clear();
    let lines = s.reap().await;
    assert_eq!(lines[0].action, "leave");
    s.assert_left_open(&tree);
}

/// How far the virtual clock may be off: what is due in a step is done in it or in one of the next.
const SLACK_MS: u64 = 30;

/// When SIGTERM and SIGKILL reach the wrapper of a tree that ignores everything, in milliseconds since its end was
/// asked for, with the lease handed over at some time.
async fn escalation(handed: Option<(u64, u64)>) -> [u64; 2] {
    let wrapper = Wrapper { deaf: true, stubborn_adapter: true, ..Wrapper::default() };
    let (mut s, id, tree) = Stage::with_agent_under(wrapper).await;
    s.harden(&tree);
    s.close(id).await;
    let since = s.kernel().now_ms();
    if let Some((after_ms, away_ms)) = handed {
        s.pass(after_ms).await;
        let before = s.sent();
        s.hand_over(id, away_ms).await;
        assert_eq!(s.sent(), before, "no task works on it meanwhile");
    }
    s.ends(id).await;
    // SIGKILL comes to its whole group and to itself.
    let mut sent = s.sent_to(tree.wrapper);
    sent.dedup();
    assert_eq!(sent, [Term, Cont, Kill], "each step happens once: {handed:?}");
    assert_eq!(s.by_id(id).state_reason, "asked");
    let at = |signal| {
        s.sent().iter().find(|sent| sent.pid == tree.wrapper && sent.signal == signal).unwrap().at_ms
    };
    [at(Term) - since, at(Kill) - since]
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_handed_over_keeps_the_timers_of_its_end() {
    let close = |a: u64, b: u64| a.abs_diff(b) <= SLACK_MS;
    let [term, kill] = escalation(None).await;
    assert!(close(term, GRACES.eof_ms) && kill > term + GRACES.term_ms, "{term}, {kill}");
    // In the grace of the end of file, in that of SIGTERM, and over the end of each.
    for (after_ms, away_ms, want) in [
        (20, 30, [term, kill]),
        (term + 60, 60, [term, kill]),
        (20, 300, [320, 320 + kill - term]),
        (term + 60, kill, [term, term + 60 + kill]),
    ] {
        let got = escalation(Some((after_ms, away_ms))).await;
        let agrees = got.into_iter().zip(want).all(|(a, b)| close(a, b));
        assert!(agrees, "handed over after {after_ms} ms for {away_ms} ms: {got:?}, not {want:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrapper_that_dies_while_nobody_drives_its_lease_is_noticed() {
    let (mut s, id, tree) = Stage::with_agent().await;
    s.kernel().in_ms(50, move |k| k.deliver(tree.wrapper, Kill));
    s.hand_over(id, 100).await;
    s.reaches(id, Lost).await;
    assert!(s.kernel().alive(id).is_empty(), "{:?}", s.kernel().alive(id));
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_ends_drains_its_leases() {
    let mut s = Stage::new().await;
    s.sys.wrapper.lock().unwrap().deaf = true;
    let (one, two) = (s.spawn().await, s.spawn().await);
    let (first, second) = (s.grow(one), s.grow(two));
    s.harden(&second);
    for id in [one, two] {
        s.tell(id, LeaseCmd::Hurry).await;
    }
    for id in [one, two] {
        s.ends(id).await;
    }
    assert!(s.sent_to(first.wrapper).iter().all(|signal| *signal == Kill), "no grace is left");
    assert!(s.context.roots.lock().is_empty(), "no lease is supervised any more");
}

#[tokio::test(start_paused = true)]
async fn a_wrapper_that_a_tracer_holds_is_collected_when_the_tracer_lets_go() {
    let (mut s, id, tree) = Stage::with_agent().await;
    s.kernel().edit(tree.wrapper, |t| t.traced = true);
    s.tell(id, LeaseCmd::Hurry).await;
    s.until("the tree is dead", |s| s.kernel().alive(id).is_empty()).await;
    s.pass(500).await;
    assert_eq!(s.by_id(id).state, Closing, "its pid is still in use");
    s.kernel().untrace(tree.wrapper);
    s.reaches(id, Closed).await;
}

#[tokio::test(start_paused = true)]
async fn strays_are_killed_and_collected_and_nobody_else() {
    let (mut s, id, tree) = Stage::with_agent().await;
    let look = |s: &Stage| orphans::reap_orphans(&s.context, s.sys.as_ref());
    look(&s);
    assert!(s.untouched(&tree), "a child with a handle is not an orphan");
    // A daemon of a tree that has lost its wrapper, hidden behind nothing and nobody's marker.
    let daemon = s.kernel().fork(tree.child, "daemon");
    s.kernel().setsid(daemon);
    s.kernel().edit(daemon, |t| (t.ppid, t.environ) = (ME, environ(id, tree.gateway)[..10].to_vec()));
    look(&s);
    assert_eq!((s.sent_to(daemon), s.kernel().runs(daemon)), (vec![Kill], false));
    assert!(s.kernel().get(daemon).is_some());
    look(&s);
    assert!(s.kernel().get(daemon).is_none(), "it was reaped");
    assert!(s.untouched(&tree));
    s.close_to_end(id).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_any_more_is_not_forgotten() {
    let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = false).await;
    s.harden(&tree);
    s.kernel().setsid(tree.child);
    // It becomes another user's, and /proc shows nothing of it any more.
    s.kernel().in_ms(REAP_TERM_MS / 2, move |k| k.edit(tree.child, |t| (t.uid, t.hidden) = (0, true)));
    for _ in 0..2 {
        s.reap().await;
        // The wrapper, whose child it is by now, is spared for its sake.
        assert_eq!(s.kernel().alive(tree.lease), [tree.wrapper, tree.child]);
        assert_eq!(s.state(&tree), Closing);
    }
    s.kernel().exit(tree.child, ExitStatus::Exited(0));
    s.reap_all_of(&tree).await;
}

/// The leader of a group is dead and collected, and the group is not empty.
#[tokio::test(start_paused = true)]
async fn a_group_outlives_its_leader_and_is_ended_all_the_same() {
    let (mut s, tree) = Stage::with_stubborn_orphan().await;
    s.kernel().exit(tree.adapter, ExitStatus::Exited(0));
    assert!(s.kernel().get(tree.adapter).is_none() && s.kernel().task(tree.child).pgid == tree.adapter);
    s.reap_all_of(&tree).await;
}

/// The group is empty and its number leads a stranger's group now.
#[tokio::test(start_paused = true)]
async fn a_group_number_that_was_given_away_is_nobody_of_ours() {
    let (mut s, tree) = Stage::with_orphan(Open).await;
    s.kernel().exit(tree.child, ExitStatus::Exited(0));
    s.kernel().give_away(tree.adapter);
    let member = s.kernel().fork(tree.adapter, "member");
    s.reap().await;
    assert_eq!((s.sent_to(tree.adapter), s.sent_to(member)), (vec![], vec![]));
    assert!(s.kernel().runs(tree.adapter) && s.kernel().runs(member));
    s.assert_ended(&tree);
}

/// All that is left of a group are the dead that nobody collects.
#[tokio::test(start_paused = true)]
async fn a_group_of_the_dead_is_dead() {
    let (mut s, tree) = Stage::with_orphan(Closing).await;
    s.kernel().edit(tree.wrapper, |t| t.reaps = false);
    for pid in [tree.child, tree.adapter] {
        s.kernel().edit(tree.adapter, |t| t.reaps = false);
        s.kernel().exit(pid, ExitStatus::Exited(0));
        assert!(s.kernel().get(pid).is_some(), "a zombie");
    }
    s.reap_all_of(&tree).await;
    assert_eq!((s.sent_to(tree.adapter), s.sent_to(tree.child)), (vec![], vec![]));
}
