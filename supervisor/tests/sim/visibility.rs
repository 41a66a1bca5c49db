//! What cannot be seen is not touched. Cases 19 to 21, 23 and 25.

use crate::kernel::{Kernel, environ};
use crate::stage::Stage;
use crate::wrapper::Wrapper;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseState::{Closed, Closing, Lost, Open, Reserved};
use acp_supervisor::lease::task::LeaseCmd;
use acp_supervisor::sys::Signal;

#[tokio::test(start_paused = true)]
async fn without_a_process_list_nothing_is_reaped_and_it_is_tried_again() {
    let (mut s, tree) = Stage::with_orphan(Open).await;
    s.kernel().list_fails = true;
    assert!(s.try_reap().await.is_err());
    s.assert_left_open(&tree);
    s.kernel().list_fails = false;
    s.reap_all_of(&tree).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_process_list_an_own_child_is_killed_through_its_own_handle_and_the_lease_waits() {
    let (mut s, id, tree) = Stage::with_agent_under(Wrapper { deaf: true, ..Wrapper::default() }).await;
    s.harden(&tree);
    s.kernel().list_fails = true;
    s.close(id).await;
    s.until("the wrapper is killed", |s| !s.kernel().runs(tree.wrapper)).await;
    s.pass(2_000).await;
    assert_eq!(s.by_id(id).state, Closing, "nothing proves that the tree is gone");
    assert_eq!(s.sent_to(tree.child), []);
    s.kernel().list_fails = false;
    s.ends(id).await;
}

#[tokio::test(start_paused = true)]
async fn hidden_processes_are_known_by_their_inode_or_not_at_all() {
    for inode in [true, false] {
        let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        s.harden(&tree);
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
async fn an_unreadable_environment_matches_nothing_by_itself() {
    for inode in [true, false] {
        let (mut s, tree) = Stage::with_orphan_on(Open, |k| k.abilities.pidfs_inode = inode).await;
        s.edit_all(&tree, |t| t.environ_secret = true);
        s.reap().await;
        if inode {
            s.assert_ended(&tree);
        } else {
            s.assert_left_open(&tree);
        }
    }
    // Nor does that of a stranger.
    let (mut s, tree) = Stage::with_orphan(Open).await;
    let stranger = s.kernel().free_pid();
    s.kernel().place(stranger, 1, "sudo");
    s.kernel().edit(stranger, |t| (t.environ, t.environ_secret) = (environ(tree.lease, tree.gateway), true));
    s.reap().await;
    assert_eq!((s.state(&tree), s.sent_to(stranger)), (Closed, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_copied_marker_in_an_older_process_is_no_proof() {
    for state in [Open, Reserved] {
        let mut s = Stage::new().await;
        let older = s.kernel().free_pid();
        s.kernel().place(older, 1, "older");
        s.pass(100).await;
        let tree = s.orphan(state).await;
        s.rewrite(&tree, |l| l.supervisor.start_ticks = l.bound.map_or(100_005, |b| b.wrapper.start_ticks))
            .await;
        s.kernel().edit(older, |t| t.environ = environ(tree.lease, tree.gateway));
        s.reap().await;
        assert_eq!(s.sent_to(older), []);
        assert!(s.kernel().alive(tree.lease).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn the_right_marker_is_by_contract_in_the_tree() {
    let (mut s, tree) = Stage::with_orphan(Open).await;
    let escaped = s.kernel().fork(tree.child, "daemon");
    s.kernel().setsid(escaped);
    s.kernel().edit(escaped, |t| t.ppid = 1);
    // Somebody else's marker is none, nor are both of it twice.
    let foreign = s.plant_at(9_000, tree.gateway);
    let twice = s.kernel().free_pid();
    s.kernel().place(twice, 1, "twice");
    let mut both = environ(tree.lease, tree.gateway);
    both.extend(environ(foreign.lease, tree.gateway));
    s.kernel().edit(twice, |t| t.environ = both);
    s.reap_all_of(&tree).await;
    assert_eq!(s.sent_to(escaped), [Signal::Term, Signal::Cont][..1]);
    assert!(s.untouched(&foreign) && s.kernel().runs(twice));
}

#[tokio::test(start_paused = true)]
async fn without_pidfds_or_group_signals_trees_still_end() {
    type Prepare = fn(&mut Kernel);
    let without_pidfds: Prepare = |k| (k.abilities.pidfd, k.abilities.pidfs_inode) = (false, false);
    for (prepare, rung) in [(without_pidfds, "R3"), (|k| k.abilities.pidfd_group = false, "R2")] {
        let (mut s, tree) = Stage::with_orphan_on(Open, prepare).await;
        assert_eq!(s.context.containment.rung.as_str(), rung);
        s.harden(&tree);
        s.reap_all_of(&tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_ability_that_went_away_leaves_what_was_recorded_with_it_alone() {
    for pidfd in [true, false] {
        let (mut s, tree) = Stage::with_orphan(Open).await;
        s.kernel().abilities.pidfs_inode = false;
        s.kernel().abilities.pidfd = pidfd;
        s.edit_all(&tree, |t| t.environ.clear());
        let lines = s.reap().await;
        assert_eq!(lines[0].why, "a pidfs inode was recorded and cannot be read now");
        s.assert_left_open(&tree);
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_place_cannot_be_told_nothing_is_done() {
    let (mut s, tree) = Stage::with_orphan(Open).await;
    s.kernel().scope = None;
    s.reap_nothing_of(&tree).await;
    s.kernel().vanish(tree.lease);
    s.kernel().scope = Some(s.context.scope.clone());
    s.reap().await;
    assert_eq!(s.state(&tree), Lost);
}

/// A descendant that became another user's, and that `/proc` hides: the kernel lists it as a child all the same.
#[tokio::test(start_paused = true)]
async fn a_hidden_survivor_is_named_and_its_lease_stays_closing() {
    for pidfd_info in [true, false] {
        let mut s = Stage::on(|k| k.pidfd_info = pidfd_info).await;
        s.sys.wrapper.lock().unwrap().deaf = true;
        let id = s.spawn().await;
        let tree = s.grow(id);
        s.harden(&tree);
        let hidden = s.kernel().fork(tree.child, "sudo");
        s.kernel().setsid(hidden);
        s.kernel().edit(hidden, |t| (t.uid, t.hidden, t.environ) = (0, true, Vec::new()));
        s.close(id).await;
        s.until("it is stuck", |s| s.stuck.contains(&id)).await;
        assert_eq!(s.by_id(id).state, Closing);
        let reason = s.by_id(id).state_reason.clone();
        assert!(reason.contains(&format!("did not end: {hidden} ")), "{pidfd_info}: {reason}");
        assert_eq!(
            s.kernel().alive(id),
            [tree.wrapper, hidden],
            "the process that would adopt its children is spared"
        );
        s.kernel().exit(hidden, ExitStatus::Exited(0));
        s.ends(id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_list_alone_tells_is_killed_before_any_environment_is_read() {
    let (mut s, id, tree) = Stage::with_agent_under(Wrapper { deaf: true, ..Wrapper::default() }).await;
    s.harden(&tree);
    s.kernel().environs_read_at.clear();
    s.tell(id, LeaseCmd::Hurry).await;
    s.reaches(id, Closed).await;
    let first = s.kernel().environs_read_at[0];
    let before: Vec<i32> = s.sent()[..first].iter().map(|sent| sent.pid).collect();
    assert!(before.contains(&tree.adapter) && before.contains(&tree.child), "{before:?} of {:?}", s.sent());
}

/// A state directory that was moved makes groups of another name. What is in the one that was recorded is not
/// signalled, and not forgotten.
#[tokio::test(start_paused = true)]
async fn a_recorded_group_that_is_not_recognised_is_no_proof_of_an_end() {
    for state in [Open, Closing] {
        let (mut s, tree) = Stage::with_orphan(state).await;
        let path = format!("/elsewhere/acp-supervisor-old/{}", tree.lease);
        s.rewrite(&tree, |l| l.cgroup_path = Some(path.clone())).await;
        s.kernel().vanish(tree.lease);
        s.kernel().populated_groups.insert(path.clone());
        let lines = s.reap().await;
        assert!(lines[0].why.contains("is not recognised"), "{lines:?}");
        assert_eq!((s.state(&tree), s.sent()), (state, vec![]));
        s.kernel().populated_groups.clear();
        s.reap().await;
        assert_eq!(s.state(&tree), if state == Open { Lost } else { Closed });
    }
}
