//! The end of trees: closes, orphans, survivors.

use crate::kernel::{SUPERVISOR, TaskState, TermAction, environ};
use crate::simulation::{GRACES, REAP_TERM_MS, Sim};
use crate::wrapper::Behavior;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseState::{Bound, Closed, Closing, Lost, Open, Reserved};
use acp_supervisor::lease::orphans;
use acp_supervisor::lease::task::LeaseCmd;
use acp_supervisor::sys::Signal::{Cont, Kill, Term};

#[tokio::test(start_paused = true)]
async fn orphaned_tree_is_ended_children_first() {
    for state in [Bound, Open] {
        let mut s = Sim::new().await;
        let (tree, other) =
            (s.orphan(state).await, s.create_foreign_tree(9_000, acp_shared::ids::GatewayInstanceId::mint()));
        assert_eq!(s.dry_run()[0].pids, [tree.child, tree.adapter, tree.wrapper]);
        let lines = s.reap().await;
        assert_eq!(lines[0].action, "signal");
        assert_eq!(lines[0].pids, [tree.child, tree.adapter, tree.wrapper]);
        assert_eq!(s.receivers(Term), [tree.child, tree.adapter, tree.wrapper]);
        assert_eq!(s.state(&tree), Closed);
        assert!(s.kernel().alive(tree.lease).is_empty() && s.is_untouched(&other));
    }
}

#[tokio::test(start_paused = true)]
async fn sigkill_follows_after_grace() {
    let (mut s, tree) = Sim::with_unresponsive_orphan().await;
    s.assert_reap_ends(&tree).await;
    let first = |signal| s.sent().iter().find(|sent| sent.signal == signal).map(|sent| sent.at_ms).unwrap();
    assert!(first(Kill) >= first(Term) + REAP_TERM_MS, "{:?}", s.sent());
    assert_eq!(s.signals_to(tree.wrapper), [Term, Cont, Kill], "each signal is sent once");
}

#[tokio::test(start_paused = true)]
async fn process_forked_during_sweep_is_ended() {
    let (mut s, tree) = Sim::with_unresponsive_orphan().await;
    s.kernel().schedule(100, move |k| {
        let child = k.fork(tree.child, "child");
        k.setsid(child);
        k.edit(child, |t| (t.on_term, t.environ) = (TermAction::Ignores, Vec::new()));
    });
    s.assert_reap_ends(&tree).await;
}

#[tokio::test(start_paused = true)]
async fn stopped_tree_is_continued_after_sigterm() {
    let (mut s, tree) = Sim::with_orphan(Open).await;
    s.edit_all(&tree, |t| t.state = TaskState::Stopped);
    s.assert_reap_ends(&tree).await;
    assert_eq!(s.signals_to(tree.child), [Term, Cont], "no SIGKILL");
}

/// The wrapper adopts orphans, so it is killed after all others.
#[tokio::test(start_paused = true)]
async fn wrapper_is_killed_last() {
    let (mut s, tree) = Sim::with_unresponsive_orphan().await;
    s.assert_reap_ends(&tree).await;
    let killed = s.receivers(Kill);
    assert_eq!(killed.last(), Some(&tree.wrapper), "{killed:?}");
    assert_eq!(killed.iter().filter(|pid| **pid == tree.wrapper).count(), 1, "{killed:?}");
}

#[tokio::test(start_paused = true)]
async fn lease_without_pid_is_found_by_marker() {
    for matches in 0..=2 {
        let (mut s, tree) = Sim::with_orphan(Reserved).await;
        for pid in &tree.pids()[matches..] {
            s.kernel().edit(*pid, |t| t.environ.clear());
        }
        if matches == 0 {
            s.kernel().exit_tree(tree.lease);
        }
        let lines = s.reap().await;
        assert_eq!(s.state(&tree), if matches == 0 { Lost } else { Closed });
        assert_eq!(lines[0].action, if matches == 0 { "mark_lost" } else { "signal" });
        assert!(s.kernel().alive(tree.lease).is_empty(), "{matches}");
    }
}

#[tokio::test(start_paused = true)]
async fn pid_reused_after_sigterm_gets_no_sigkill() {
    for root in [true, false] {
        let (mut s, tree) = Sim::with_unresponsive_orphan().await;
        let pid = if root { tree.wrapper } else { tree.child };
        // A pid cannot be reused while it is a session or group id.
        for other in [tree.adapter, tree.child] {
            s.kernel().setsid(other);
            s.kernel().edit(other, |t| t.dies_with_parent = false);
        }
        s.kernel().schedule(REAP_TERM_MS / 2, move |k| k.replace_with_foreign(pid));
        s.reap().await;
        assert_eq!(s.signals_to(pid), [Term, Cont], "root: {root}");
        assert_eq!(s.kernel().task(pid).name, "foreign");
        s.assert_ended(&tree);
    }
}

#[tokio::test(start_paused = true)]
async fn survivors_keep_lease_closing_and_are_named() {
    for foreign in [true, false] {
        let (mut s, tree) = Sim::with_orphan(Open).await;
        s.kernel()
            .edit(tree.child, |t| if foreign { t.uid = 0 } else { t.state = TaskState::Uninterruptible });
        s.reap().await;
        assert_eq!(s.state(&tree), Closing, "foreign: {foreign}");
        let pid = tree.child.to_string();
        assert!(s.lease(&tree).state_reason.contains(&pid), "{}", s.lease(&tree).state_reason);
        assert_eq!(s.kernel().alive(tree.lease), [tree.child]);
        // The process leaves the kernel, or its user ends it; the next sweep closes the lease.
        if foreign {
            s.kernel().exit(tree.child, ExitStatus::Exited(0));
        } else {
            s.kernel().resume(tree.child);
        }
        s.assert_reap_ends(&tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn unreaped_zombies_count_as_dead() {
    for inode in [true, false] {
        let mut s = Sim::with_kernel(|k| k.abilities.pidfs_inode = inode).await;
        s.kernel().edit(1, |t| t.reaps = false);
        let tree = s.orphan(Open).await;
        s.kernel().exit_tree(tree.lease);
        assert!(s.kernel().get(tree.wrapper).is_some(), "a zombie");
        s.reap().await;
        assert_eq!((s.state(&tree), s.sent()), (Lost, vec![]));
        // Zombies made by the reaper.
        let tree = s.orphan(Open).await;
        s.ignore_sigterm(&tree);
        s.assert_reap_ends(&tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn closing_lease_is_resumed_after_verification() {
    let mut s = Sim::new().await;
    let (lives, gone, reused) = (s.orphan(Closing).await, s.orphan(Closing).await, s.orphan(Closing).await);
    s.kernel().exit_tree(gone.lease);
    s.kernel().exit_tree(reused.lease);
    s.kernel().create(reused.wrapper, 1, "foreign");
    s.reap().await;
    for tree in [lives, gone, reused] {
        s.assert_ended(&tree);
    }
    assert_eq!(s.signals_to(reused.wrapper), []);
}

#[tokio::test(start_paused = true)]
async fn newest_of_two_leases_owns_shared_process() {
    // The inode proves the identity despite shifted start times.
    for shift in [0, 77] {
        let (mut s, tree) = Sim::with_orphan(Open).await;
        let mut other = s.create_foreign_tree(9_000, tree.gateway);
        s.kernel().exit_tree(other.lease);
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
        assert_eq!(s.signals_to(tree.wrapper), [Term], "signalled once, for one lease");
    }
}

#[tokio::test(start_paused = true)]
async fn without_inodes_marker_decides_ownership() {
    let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = false).await;
    let mut other = s.create_foreign_tree(9_000, tree.gateway);
    s.kernel().exit_tree(other.lease);
    (other.wrapper, other.adapter, other.child) = (tree.wrapper, tree.adapter, tree.child);
    let mut row = s.row(&other, Open);
    row.started_at_ms = s.lease(&tree).started_at_ms + 5;
    s.save(row).await;
    s.reap().await;
    assert_eq!((s.state(&tree), s.state(&other)), (Closed, Lost));
    assert!(s.kernel().alive(tree.lease).is_empty());
}

#[tokio::test(start_paused = true)]
async fn lease_without_processes_is_lost() {
    for state in [Reserved, Bound, Open] {
        let (mut s, tree) = Sim::with_orphan(state).await;
        s.kernel().exit_tree(tree.lease);
        let lines = s.reap().await;
        assert_eq!((s.state(&tree), lines[0].action.as_str()), (Lost, "mark_lost"), "{state}");
        assert!(s.lease(&tree).ended_at_ms.is_some(), "no end time");
        assert_eq!(s.sent(), []);
        // A lost lease without processes needs no further action.
        assert!(s.reap().await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_close_has_one_effect() {
    let (mut s, id, tree) = Sim::with_agent().await;
    for _ in 0..3 {
        s.close(id).await;
        s.advance(40).await;
    }
    s.advance(100).await;
    s.close_and_wait(id).await;
    s.close(id).await;
    s.advance(1_000).await;
    assert_eq!(s.signals_to(tree.wrapper), [Term, Cont]);
    assert_eq!(
        (s.signals_to(tree.adapter), s.signals_to(tree.child)),
        (vec![], vec![]),
        "the wrapper ends them"
    );
    assert_eq!((s.lease_by_id(id).state, s.kernel().alive(id)), (Closed, vec![]));
}

#[tokio::test(start_paused = true)]
async fn close_during_agent_exit_sends_each_signal_once() {
    let (mut s, id, tree) = Sim::with_agent().await;
    s.close(id).await;
    s.kernel().exit(tree.adapter, ExitStatus::Exited(5));
    s.advance(10).await;
    s.close(id).await;
    s.send_command(id, LeaseCmd::Hurry).await;
    s.send_command(id, LeaseCmd::Hurry).await;
    s.await_state(id, Closed).await;
    assert_eq!(s.lease_by_id(id).exit, Some(ExitStatus::Exited(5)));
    assert!(s.signals_to(tree.wrapper).iter().filter(|signal| **signal == Term).count() <= 1);
    assert!(s.kernel().alive(id).is_empty());
}

#[tokio::test(start_paused = true)]
async fn ineffective_close_escalates_and_names_survivors() {
    let (mut s, id, tree) =
        Sim::with_agent_under(Behavior { ignores_stop: true, ..Default::default() }).await;
    s.ignore_sigterm(&tree);
    s.kernel().edit(tree.child, |t| t.state = TaskState::Uninterruptible);
    s.close(id).await;
    s.until("the end is stuck", |s| s.stuck.contains(&id)).await;
    assert_eq!(s.lease_by_id(id).state, Closing);
    assert!(s.lease_by_id(id).state_reason.contains("tool"), "{}", s.lease_by_id(id).state_reason);
    assert!(!s.lease_by_id(id).state_reason.contains("wrapper"), "{}", s.lease_by_id(id).state_reason);
    // The wrapper survives as long as a process that it would adopt.
    assert_eq!(s.kernel().alive(id), [tree.wrapper, tree.child]);
    assert_eq!(s.signals_to(tree.wrapper), [Term, Cont]);
    s.kernel().resume(tree.child);
    s.await_state(id, Closed).await;
    assert_eq!(s.signals_to(tree.wrapper).last(), Some(&Kill));
    assert_eq!(s.stored_rows().await[0].state, Closed);
}

#[tokio::test(start_paused = true)]
async fn killed_wrapper_ends_tree_and_loses_lease() {
    let (mut s, id, tree) = Sim::with_agent().await;
    let escaped = s.kernel().fork(tree.child, "daemon");
    s.kernel().setsid(escaped);
    s.kernel().deliver(tree.wrapper, Kill);
    s.await_state(id, Lost).await;
    assert!(s.kernel().alive(id).is_empty(), "{:?}", s.kernel().alive(id));
    assert_eq!(s.signals_to(escaped), [Kill]);
}

#[tokio::test(start_paused = true)]
async fn leases_of_same_process_survive_exec() {
    // After exec the supervisor keeps its pid, start time and inode.
    let (mut s, tree) = Sim::with_orphan(Open).await;
    let me = s.kernel().record(SUPERVISOR);
    s.rewrite(&tree, |l| l.supervisor = me).await;
    s.kernel().owned.clear();
    let lines = s.reap().await;
    assert_eq!(lines[0].action, "leave");
    s.assert_left_open(&tree);
}

/// Tolerance of virtual times, in steps of the clock.
const SLACK_MS: u64 = 30;

/// Times of SIGTERM and SIGKILL to the wrapper of a tree that ignores both, in milliseconds since the close. The
/// lease may be handed over meanwhile.
async fn escalation(handover: Option<(u64, u64)>) -> [u64; 2] {
    let wrapper = Behavior { ignores_stop: true, adapter_ignores_sigterm: true, ..Behavior::default() };
    let (mut s, id, tree) = Sim::with_agent_under(wrapper).await;
    s.ignore_sigterm(&tree);
    s.close(id).await;
    let since = s.kernel().now_ms();
    if let Some((after_ms, away_ms)) = handover {
        s.advance(after_ms).await;
        let before = s.sent();
        s.hand_over(id, away_ms).await;
        assert_eq!(s.sent(), before, "signals during the handover");
    }
    s.await_closed(id).await;
    // SIGKILL goes to the group and to the wrapper itself.
    let mut sent = s.signals_to(tree.wrapper);
    sent.dedup();
    assert_eq!(sent, [Term, Cont, Kill], "each step once: {handover:?}");
    assert_eq!(s.lease_by_id(id).state_reason, "asked");
    let at = |signal| {
        s.sent().iter().find(|sent| sent.pid == tree.wrapper && sent.signal == signal).unwrap().at_ms
    };
    [at(Term) - since, at(Kill) - since]
}

#[tokio::test(start_paused = true)]
async fn handover_keeps_escalation_timers() {
    let close = |a: u64, b: u64| a.abs_diff(b) <= SLACK_MS;
    let [term, kill] = escalation(None).await;
    assert!(close(term, GRACES.eof_ms) && kill > term + GRACES.term_ms, "{term}, {kill}");
    // Handover within the grace of EOF and of SIGTERM, and beyond the end of each.
    for (after_ms, away_ms, want) in [
        (20, 30, [term, kill]),
        (term + 60, 60, [term, kill]),
        (20, 300, [320, 320 + kill - term]),
        (term + 60, kill, [term, term + 60 + kill]),
    ] {
        let got = escalation(Some((after_ms, away_ms))).await;
        let agrees = got.into_iter().zip(want).all(|(a, b)| close(a, b));
        assert!(agrees, "handover over after {after_ms} ms for {away_ms} ms: {got:?}, not {want:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrapper_death_during_handover_is_detected() {
    let (mut s, id, tree) = Sim::with_agent().await;
    s.kernel().schedule(50, move |k| k.deliver(tree.wrapper, Kill));
    s.hand_over(id, 100).await;
    s.await_state(id, Lost).await;
    assert!(s.kernel().alive(id).is_empty(), "{:?}", s.kernel().alive(id));
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_all_leases() {
    let mut s = Sim::new().await;
    s.sys.wrapper.lock().unwrap().ignores_stop = true;
    let (one, two) = (s.spawn().await, s.spawn().await);
    let (first, second) = (s.with_tool(one), s.with_tool(two));
    s.ignore_sigterm(&second);
    for id in [one, two] {
        s.send_command(id, LeaseCmd::Hurry).await;
    }
    for id in [one, two] {
        s.await_closed(id).await;
    }
    assert!(s.signals_to(first.wrapper).iter().all(|signal| *signal == Kill), "no grace");
    assert!(s.context.roots.lock().is_empty(), "a lease is still supervised");
}

#[tokio::test(start_paused = true)]
async fn traced_wrapper_is_reaped_after_detach() {
    let (mut s, id, tree) = Sim::with_agent().await;
    s.kernel().edit(tree.wrapper, |t| t.traced = true);
    s.send_command(id, LeaseCmd::Hurry).await;
    s.until("the tree is dead", |s| s.kernel().alive(id).is_empty()).await;
    s.advance(500).await;
    assert_eq!(s.lease_by_id(id).state, Closing, "the pid is in use");
    s.kernel().untrace(tree.wrapper);
    s.await_state(id, Closed).await;
}

#[tokio::test(start_paused = true)]
async fn only_orphans_are_killed_and_reaped() {
    let (mut s, id, tree) = Sim::with_agent().await;
    let sweep = |s: &Sim| orphans::reap_orphans(&s.context, s.sys.as_ref());
    sweep(&s);
    assert!(s.is_untouched(&tree), "a child with a handle is not an orphan");
    // A daemon whose wrapper is dead, visible and without a valid marker.
    let daemon = s.kernel().fork(tree.child, "daemon");
    s.kernel().setsid(daemon);
    s.kernel().edit(daemon, |t| (t.ppid, t.environ) = (SUPERVISOR, environ(id, tree.gateway)[..10].to_vec()));
    sweep(&s);
    assert_eq!((s.signals_to(daemon), s.kernel().is_running(daemon)), (vec![Kill], false));
    assert!(s.kernel().get(daemon).is_some());
    sweep(&s);
    assert!(s.kernel().get(daemon).is_none(), "not reaped");
    assert!(s.is_untouched(&tree));
    s.close_and_wait(id).await;
}

#[tokio::test(start_paused = true)]
async fn process_that_becomes_hidden_keeps_lease_closing() {
    let (mut s, tree) = Sim::with_orphan_on(Open, |k| k.abilities.pidfs_inode = false).await;
    s.ignore_sigterm(&tree);
    s.kernel().setsid(tree.child);
    // The process becomes another user's and hidden.
    s.kernel().schedule(REAP_TERM_MS / 2, move |k| k.edit(tree.child, |t| (t.uid, t.hidden) = (0, true)));
    for _ in 0..2 {
        s.reap().await;
        // The wrapper adopted the process, so it survives too.
        assert_eq!(s.kernel().alive(tree.lease), [tree.wrapper, tree.child]);
        assert_eq!(s.state(&tree), Closing);
    }
    s.kernel().exit(tree.child, ExitStatus::Exited(0));
    s.assert_reap_ends(&tree).await;
}

#[tokio::test(start_paused = true)]
async fn process_group_without_leader_is_ended() {
    let (mut s, tree) = Sim::with_unresponsive_orphan().await;
    s.kernel().exit(tree.adapter, ExitStatus::Exited(0));
    assert!(s.kernel().get(tree.adapter).is_none() && s.kernel().task(tree.child).pgid == tree.adapter);
    s.assert_reap_ends(&tree).await;
}

#[tokio::test(start_paused = true)]
async fn reused_process_group_id_is_not_signalled() {
    let (mut s, tree) = Sim::with_orphan(Open).await;
    s.kernel().exit(tree.child, ExitStatus::Exited(0));
    s.kernel().replace_with_foreign(tree.adapter);
    let member = s.kernel().fork(tree.adapter, "member");
    s.reap().await;
    assert_eq!((s.signals_to(tree.adapter), s.signals_to(member)), (vec![], vec![]));
    assert!(s.kernel().is_running(tree.adapter) && s.kernel().is_running(member));
    s.assert_ended(&tree);
}

#[tokio::test(start_paused = true)]
async fn process_group_of_zombies_counts_as_dead() {
    let (mut s, tree) = Sim::with_orphan(Closing).await;
    s.kernel().edit(tree.wrapper, |t| t.reaps = false);
    for pid in [tree.child, tree.adapter] {
        s.kernel().edit(tree.adapter, |t| t.reaps = false);
        s.kernel().exit(pid, ExitStatus::Exited(0));
        assert!(s.kernel().get(pid).is_some(), "a zombie");
    }
    s.assert_reap_ends(&tree).await;
    assert_eq!((s.signals_to(tree.adapter), s.signals_to(tree.child)), (vec![], vec![]));
}
