//! Starts that fail, at each step. Cases 59, 68 and 69.

use crate::kernel::ME;
use crate::stage::Stage;
use crate::wrapper::{Hello, Wrapper};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::LeaseState::{Closed, Lost, Open};
use acp_shared::protocol::RefusalCode;
use acp_supervisor::lease::orphans;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Lets the supervisor collect what it no longer waits for.
async fn collect_orphans(s: &mut Stage) {
    for _ in 0..50 {
        s.pass(10).await;
        orphans::reap_orphans(&s.context, s.sys.as_ref());
    }
}

/// Nothing of a start is left, and its row says so.
async fn nothing_is_left(s: &mut Stage, id: LeaseId) {
    // What the supervisor no longer waits for is collected by its look for strays.
    collect_orphans(s).await;
    assert!(s.kernel().alive(id).is_empty());
    assert_eq!(s.kernel().execs, 0, "the adapter was never released");
    assert!(!s.kernel().tasks().any(|t| t.ppid == ME), "every child is reaped");
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
async fn without_a_durable_reservation_nothing_is_started() {
    let mut s = Stage::new().await;
    s.damage(&trigger("reserved"));
    let id = s.spawn().await;
    assert_eq!(s.refusals[&id].code, RefusalCode::StoreUnavailable);
    assert_eq!(s.kernel().tasks().count(), 2, "no process was created");
    assert!(s.stored().await.iter().all(|l| l.state.is_ended()));
    nothing_is_left(&mut s, id).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_durable_binding_the_adapter_is_not_let_go() {
    let mut s = Stage::new().await;
    s.damage(&trigger("bound"));
    let id = s.spawn().await;
    assert_eq!(s.refusals[&id].code, RefusalCode::StoreUnavailable);
    nothing_is_left(&mut s, id).await;
    assert!(s.stored().await.iter().all(|l| l.state.is_ended()));
    // The disk has room again: so has the supervisor.
    s.damage("DROP TRIGGER full");
    let id = s.spawn().await;
    assert_eq!((s.by_id(id).state, s.kernel().execs), (Open, 1));
    let rows = s.stored().await;
    assert_eq!(rows.iter().find(|l| l.lease_id == id).unwrap().bound, s.by_id(id).bound);
    s.close_to_end(id).await;
}

#[tokio::test(start_paused = true)]
async fn processes_are_ended_even_where_nothing_can_be_written() {
    let mut s = Stage::new().await;
    let id = s.spawn().await;
    // A start is answered before the disk says so.
    assert_eq!(s.stored().await[0].state, Open);
    s.damage("CREATE TRIGGER full BEFORE INSERT ON leases BEGIN SELECT RAISE(FAIL, 'disk is full'); END");
    s.close_to_end(id).await;
    assert_eq!(s.stored().await[0].state, Open, "a later supervisor checks it again");
}

#[tokio::test(start_paused = true)]
async fn a_start_without_resources_fails_cleanly() {
    for (name, script) in [
        ("fork: EAGAIN", Wrapper { cannot_fork: true, ..Wrapper::default() }),
        ("pidfd_open: EMFILE", Wrapper { no_descriptors: true, ..Wrapper::default() }),
    ] {
        let mut s = Stage::new().await;
        *s.sys.wrapper.lock().unwrap() = script;
        let id = s.spawn().await;
        assert_eq!(s.refusals[&id].code, RefusalCode::SpawnFailed, "{name}");
        nothing_is_left(&mut s, id).await;
        let rows = s.stored().await;
        assert!(rows.len() == 1 && rows[0].state.is_ended(), "{name}: {rows:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hello_that_lies_ends_the_own_child_alone() {
    for lie in 0..4 {
        let mut s = Stage::new().await;
        let other = s.plant_at(9_000, acp_shared::ids::GatewayInstanceId::mint());
        let hello = match lie {
            0 => Hello::Adapter(other.adapter),
            1 => Hello::Adapter(77),
            2 => Hello::Adapter(1),
            _ => Hello::Wrapper(other.wrapper),
        };
        s.sys.wrapper.lock().unwrap().hello = hello;
        let id = s.spawn().await;
        assert_eq!(s.refusals[&id].code, RefusalCode::SpawnFailed, "{hello:?}");
        assert_eq!(s.by_id(id).state, Lost, "{hello:?}");
        assert!(s.untouched(&other), "{hello:?}");
        nothing_is_left(&mut s, id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hello_of_another_sender_is_not_believed() {
    // The kernel says who sent it: this test, which is not the wrapper that the faked kernel knows.
    let mut s = Stage::on(|k| k.abilities.scm_pidfd = true).await;
    let id = s.spawn().await;
    assert_eq!(s.refusals[&id].code, RefusalCode::SpawnFailed);
    assert!(
        s.refusals[&id].message.contains("another process sent the wrapper's report"),
        "{:?}",
        s.refusals[&id]
    );
    assert_eq!(s.by_id(id).state, Lost);
    nothing_is_left(&mut s, id).await;
}

#[tokio::test(start_paused = true)]
async fn an_adapter_must_be_the_wrappers_own_group_in_its_session() {
    for what in 0..3 {
        let mut s = Stage::new().await;
        s.sys.wrapper.lock().unwrap().hello = Hello::Later;
        s.kernel().in_ms(50, move |k| {
            let adapter = k.tasks().find(|t| t.dies_with_parent).map(|t| t.pid).unwrap();
            let wrapper = k.task(adapter).ppid;
            match what {
                0 => k.edit(adapter, |t| t.pgid = wrapper),
                1 => k.setsid(adapter),
                _ => k.edit(wrapper, |t| t.sid = 1),
            }
        });
        let id = s.spawn().await;
        assert_eq!(s.refusals[&id].code, RefusalCode::SpawnFailed, "{what}");
        assert_eq!(s.by_id(id).state, Lost, "{what}");
        nothing_is_left(&mut s, id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrapper_that_says_nothing_is_given_up() {
    for hello in [Hello::Silent, Hello::Ends] {
        let mut s = Stage::new().await;
        s.sys.wrapper.lock().unwrap().hello = hello;
        let id = s.spawn().await;
        assert_eq!((s.refusals[&id].code, s.by_id(id).state), (RefusalCode::SpawnFailed, Closed));
        nothing_is_left(&mut s, id).await;
    }
}

/// Where orphans of strangers could come here nobody is killed, and who is dead is collected all the same.
#[tokio::test(start_paused = true)]
async fn the_dead_of_failed_starts_are_collected_without_the_part_of_a_subreaper_too() {
    let mut s = Stage::on(|k| k.abilities.subreaper = false).await;
    let other = s.kernel().fork(ME, "other");
    s.kernel().setsid(other);
    s.sys.wrapper.lock().unwrap().no_descriptors = true;
    let id = s.spawn().await;
    assert_eq!(s.refusals[&id].code, RefusalCode::SpawnFailed);
    collect_orphans(&mut s).await;
    assert!(s.kernel().runs(other), "the process is not owned");
    s.kernel().exit(other, acp_shared::launch::ExitStatus::Exited(0));
    orphans::reap_orphans(&s.context, s.sys.as_ref());
    nothing_is_left(&mut s, id).await;
}

/// A program on a disk that does not answer.
#[tokio::test(start_paused = true)]
async fn a_start_that_hangs_holds_up_nobody_else() {
    let s = Stage::new().await;
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
    let (done, said) = sync_channel(1);
    let others = std::thread::spawn(move || {
        context.track_child(7_778);
        context.release_child(7_778);
        done.send((context.has_children(), context.orphans())).unwrap();
    });
    let said = said.recv_timeout(Duration::from_secs(20));
    drop(release);
    assert_eq!(said, Ok((false, vec![])));
    others.join().unwrap();
    assert_eq!(hangs.join().unwrap().unwrap(), 7_777);
    assert!(s.context.children.lock().registered.contains(&7_777));
    s.context.release_child(7_777);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_fails_is_no_end() {
    let (mut s, id, tree) = Stage::with_agent().await;
    s.kernel().collect_fails = Some(rustix::io::Errno::NOMEM);
    s.kernel().deliver(tree.wrapper, acp_supervisor::sys::Signal::Cont);
    // Whoever waits is asked again only now and then: the end of a child wakes it.
    s.kernel().exit(tree.wrapper, acp_shared::launch::ExitStatus::Exited(0));
    s.pass(1_000).await;
    assert_eq!(s.by_id(id).state, Open, "its end is unknown");
    s.kernel().collect_fails = None;
    s.reaches(id, Lost).await;
    assert!(s.kernel().alive(id).is_empty());
}
