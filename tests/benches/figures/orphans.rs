//! Start time of a supervisor when an earlier one was killed and left leases behind.

use crate::api::runtime;
use crate::leases::Leases;
use crate::report::Report;
use crate::stats::ms;
use acp_shared::ids::{LeaseId, SessionKey};
use acp_shared::protocol::{LeaseInfo, Spawn};
use acp_supervisor::store::Store;
use acp_tests::processes::{ProcessHandle, is_alive};
use acp_tests::service::Service;
use acp_tests::wait::LONG;
use acp_tests::world::World;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// Leases without living processes.
const DEAD: usize = 1_000;
/// Leases with living process trees: their wrappers were stopped when their supervisor died.
const LIVING: usize = 100;

/// Measures starts with nothing, with dead and with living orphans.
pub(crate) fn measure(report: &mut Report) {
    report
        .part("orphans", "start of a supervisor until it accepts work, orphans of a killed one ended before");
    let world = World::new();
    let (first, fresh) = start(&world);
    report.figure("nothing left behind", ms(fresh), "ms");
    let mut leases = Leases::connect(&world, &first);
    let spec = leases.agent(&["/bin/cat"]);
    let (infos, _) = leases.spawn(&[spec]);
    drop(leases);
    first.kill9();
    acp_tests::wait::until(LONG, "the process tree ends without its supervisor", || {
        infos.iter().all(|info| !runs(info))
    });
    multiply(&world);
    let (second, took) = start(&world);
    let left = world.leases(&second.socket());
    assert_eq!(left.len(), DEAD);
    assert!(left.iter().all(|lease| matches!(lease.state(), "lost" | "closed")), "an orphan is still open");
    report.figure(&format!("{DEAD} leases, nothing of them lives"), ms(took), "ms");
    report.figure("each of them", ms(took.saturating_sub(fresh)) / 1_000.0, "ms");
    living(&world, second, fresh, report);
}

fn living(world: &World, supervisor: Service, fresh: Duration, report: &mut Report) {
    let mut leases = Leases::connect(world, &supervisor);
    let specs: Vec<Spawn> = (0..LIVING).map(|_| leases.agent(&["/bin/cat"])).collect();
    let (infos, _) = leases.spawn(&specs);
    for info in &infos {
        let held = info.wrapper_pid.and_then(ProcessHandle::open);
        assert!(held.is_some_and(|held| held.signal(Signal::STOP)), "no wrapper of {}", info.lease_id);
    }
    drop(leases);
    supervisor.kill9();
    assert!(infos.iter().all(runs), "a process tree ended with its supervisor");
    let (next, took) = start(world);
    assert!(!infos.iter().any(runs), "an orphan outlives the start");
    report.figure(&format!("{LIVING} trees that live"), ms(took), "ms");
    report.figure("each of them ended", ms(took.saturating_sub(fresh)) / 100.0, "ms");
    let _ = next.terminate(LONG);
}

fn start(world: &World) -> (Service, Duration) {
    let began = Instant::now();
    let supervisor = world.supervisor();
    (supervisor, began.elapsed())
}

fn runs(info: &LeaseInfo) -> bool {
    info.wrapper_pid.is_some_and(is_alive) || info.adapter_pid.is_some_and(is_alive)
}

/// Copies the only lease of the store, which is open, until there are [`DEAD`] leases.
fn multiply(world: &World) {
    let opened = Store::open(&world.path("supervisor"));
    let (store, writer, loaded) = opened.unwrap_or_else(|e| panic!("the store: {e}"));
    let Some(lease) = loaded.leases.first() else { panic!("no lease was recorded") };
    runtime().block_on(async {
        for _ in 1..DEAD {
            let mut copy = lease.clone();
            copy.lease_id = LeaseId::mint();
            let key = SessionKey::parse(&format!("agent:bench:acp:{}", copy.lease_id));
            copy.session_key = key.unwrap_or_else(|e| panic!("{e}"));
            store.post_lease(&copy);
        }
        store.flush().await.unwrap_or_else(|e| panic!("the store: {e}"));
    });
    drop(store);
    writer.finish();
}
