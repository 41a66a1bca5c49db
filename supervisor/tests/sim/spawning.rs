//! Spawns that fail at each step.

use crate::kernel::SUPERVISOR;
use crate::simulation::Sim;
use crate::wrapper::{Behavior, Hello};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::LeaseState::{Closed, Lost, Open};
use acp_shared::protocol::RefusalCode;
use acp_supervisor::lease::orphans;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Runs the periodic sweep for orphans.
async fn collect_orphans(s: &mut Sim) {
    for _ in 0..50 {
        s.advance(10).await;
        orphans::reap_orphans(&s.context, s.sys.as_ref());
    }
}

/// Asserts that a failed spawn leaves no process.
async fn assert_nothing_left(s: &mut Sim, id: LeaseId) {
    collect_orphans(s).await;
    assert!(s.kernel().alive(id).is_empty());
    assert_eq!(s.kernel().releases, 0, "adapters released");
    assert!(!s.kernel().tasks().any(|t| t.ppid == SUPERVISOR), "unreaped children");
    assert!(s.context.children.lock().registered.is_empty());
    assert!(s.context.roots.lock().is_empty());
}

fn trigger(state: &str) -> String {
    format!(
        "CREATE TRIGGER full BEFORE INSERT ON leases WHEN NEW.state = '{state}'
         BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
    )
}

#[tokio::test(start_paused = true)]
async fn spawn_without_durable_reservation_starts_nothing() {
    let mut s = Sim::new().await;
    s.damage(&trigger("reserved"));
    let id = s.spawn().await;
    assert_eq!(s.refusals[&id].code, RefusalCode::StoreUnavailable);
    assert_eq!(s.kernel().tasks().count(), 2, "no process was created");
    assert!(s.stored_rows().await.iter().all(|l| l.state.is_ended()));
    assert_nothing_left(&mut s, id).await;
}

#[tokio::test(start_paused = true)]
async fn adapter_is_not_released_without_durable_binding() {
    let mut s = Sim::new().await;
    s.damage(&trigger("bound"));
    let id = s.spawn().await;
    assert_eq!(s.refusals[&id].code, RefusalCode::StoreUnavailable);
    assert_nothing_left(&mut s, id).await;
    assert!(s.stored_rows().await.iter().all(|l| l.state.is_ended()));
    // The disk has room again.
    s.damage("DROP TRIGGER full");
    let id = s.spawn().await;
    assert_eq!((s.lease_by_id(id).state, s.kernel().releases), (Open, 1));
    let rows = s.stored_rows().await;
    assert_eq!(rows.iter().find(|l| l.lease_id == id).unwrap().bound, s.lease_by_id(id).bound);
    s.close_and_wait(id).await;
}

#[tokio::test(start_paused = true)]
async fn trees_end_without_writable_store() {
    let mut s = Sim::new().await;
    let id = s.spawn().await;
    // The spawn was answered before its row was durable.
    assert_eq!(s.stored_rows().await[0].state, Open);
    s.damage("CREATE TRIGGER full BEFORE INSERT ON leases BEGIN SELECT RAISE(FAIL, 'disk is full'); END");
    s.close_and_wait(id).await;
    assert_eq!(s.stored_rows().await[0].state, Open, "row without the end");
}

#[tokio::test(start_paused = true)]
async fn spawn_without_resources_leaves_nothing() {
    for (name, script) in [
        ("fork: EAGAIN", Behavior { cannot_fork: true, ..Behavior::default() }),
        ("pidfd_open: EMFILE", Behavior { no_descriptors: true, ..Behavior::default() }),
    ] {
        let mut s = Sim::new().await;
        *s.sys.wrapper.lock().unwrap() = script;
        let id = s.spawn().await;
        assert_eq!(s.refusals[&id].code, RefusalCode::SpawnFailed, "{name}");
        assert_nothing_left(&mut s, id).await;
        let rows = s.stored_rows().await;
        assert!(rows.len() == 1 && rows[0].state.is_ended(), "{name}: {rows:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn false_hello_ends_only_own_child() {
    for case in 0..4 {
        let mut s = Sim::new().await;
        let other = s.create_foreign_tree(9_000, acp_shared::ids::GatewayInstanceId::mint());
        let hello = match case {
            0 => Hello::Adapter(other.adapter),
            1 => Hello::Adapter(77),
            2 => Hello::Adapter(1),
            _ => Hello::Wrapper(other.wrapper),
        };
        s.sys.wrapper.lock().unwrap().hello = hello;
        let id = s.spawn().await;
        assert_eq!(s.refusals[&id].code, RefusalCode::SpawnFailed, "{hello:?}");
        assert_eq!(s.lease_by_id(id).state, Lost, "{hello:?}");
        assert!(s.is_untouched(&other), "{hello:?}");
        assert_nothing_left(&mut s, id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn hello_of_another_sender_is_refused() {
    // The kernel reports the test as the sender instead of the wrapper.
    let mut s = Sim::with_kernel(|k| k.abilities.scm_pidfd = true).await;
    let id = s.spawn().await;
    assert_eq!(s.refusals[&id].code, RefusalCode::SpawnFailed);
    assert!(
        s.refusals[&id].message.contains("another process sent the wrapper's report"),
        "{:?}",
        s.refusals[&id]
    );
    assert_eq!(s.lease_by_id(id).state, Lost);
    assert_nothing_left(&mut s, id).await;
}

#[tokio::test(start_paused = true)]
async fn adapter_outside_group_or_session_is_refused() {
    for case in 0..3 {
        let mut s = Sim::new().await;
        s.sys.wrapper.lock().unwrap().hello = Hello::Delayed;
        s.kernel().schedule(50, move |k| {
            let adapter = k.tasks().find(|t| t.dies_with_parent).map(|t| t.pid).unwrap();
            let wrapper = k.task(adapter).ppid;
            match case {
                0 => k.edit(adapter, |t| t.pgid = wrapper),
                1 => k.setsid(adapter),
                _ => k.edit(wrapper, |t| t.sid = 1),
            }
        });
        let id = s.spawn().await;
        assert_eq!(s.refusals[&id].code, RefusalCode::SpawnFailed, "{case}");
        assert_eq!(s.lease_by_id(id).state, Lost, "{case}");
        assert_nothing_left(&mut s, id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn silent_wrapper_fails_spawn() {
    for hello in [Hello::Silent, Hello::Exits] {
        let mut s = Sim::new().await;
        s.sys.wrapper.lock().unwrap().hello = hello;
        let id = s.spawn().await;
        assert_eq!((s.refusals[&id].code, s.lease_by_id(id).state), (RefusalCode::SpawnFailed, Closed));
        assert_nothing_left(&mut s, id).await;
    }
}

/// Without the subreaper attribute foreign children are not killed, but dead ones are reaped.
#[tokio::test(start_paused = true)]
async fn failed_spawns_are_reaped_without_subreaper() {
    let mut s = Sim::with_kernel(|k| k.abilities.subreaper = false).await;
    let other = s.kernel().fork(SUPERVISOR, "other");
    s.kernel().setsid(other);
    s.sys.wrapper.lock().unwrap().no_descriptors = true;
    let id = s.spawn().await;
    assert_eq!(s.refusals[&id].code, RefusalCode::SpawnFailed);
    collect_orphans(&mut s).await;
    assert!(s.kernel().is_running(other), "a foreign child was killed");
    s.kernel().exit(other, acp_shared::launch::ExitStatus::Exited(0));
    orphans::reap_orphans(&s.context, s.sys.as_ref());
    assert_nothing_left(&mut s, id).await;
}

#[tokio::test(start_paused = true)]
async fn hanging_spawn_delays_no_other() {
    let s = Sim::new().await;
    let (begins, begun) = sync_channel(1);
    let (release, wait) = sync_channel::<()>(0);
    let context = Arc::clone(&s.context);
    let hangs = std::thread::spawn(move || {
        context.start_child(|| {
            begins.send(()).unwrap();
            assert!(wait.recv().is_err());
            Ok(7_777)
        })
    });
    begun.recv().unwrap();
    let context = Arc::clone(&s.context);
    let (done, result) = sync_channel(1);
    let others = std::thread::spawn(move || {
        context.track_child(7_778);
        context.release_child(7_778);
        done.send((context.has_children(), context.orphans())).unwrap();
    });
    let result = result.recv_timeout(Duration::from_secs(20));
    drop(release);
    assert_eq!(result, Ok((false, vec![])));
    others.join().unwrap();
    assert_eq!(hangs.join().unwrap().unwrap(), 7_777);
    assert!(s.context.children.lock().registered.contains(&7_777));
    s.context.release_child(7_777);
}

#[tokio::test(start_paused = true)]
async fn failed_wait_is_not_an_exit() {
    let (mut s, id, tree) = Sim::with_agent().await;
    s.kernel().collect_fails = Some(rustix::io::Errno::NOMEM);
    s.kernel().deliver(tree.wrapper, acp_supervisor::sys::Signal::Cont);
    // The exit of a child wakes the waiting task.
    s.kernel().exit(tree.wrapper, acp_shared::launch::ExitStatus::Exited(0));
    s.advance(1_000).await;
    assert_eq!(s.lease_by_id(id).state, Open, "closed without a known end");
    s.kernel().collect_fails = None;
    s.await_state(id, Lost).await;
    assert!(s.kernel().alive(id).is_empty());
}
