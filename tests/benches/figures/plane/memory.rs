//! Private memory of an idle session.

use super::crowd::Crowd;
use super::ground::{Ground, configure, world};
use super::seed::{Size, grow};
use crate::proc::Private;
use crate::report::{Limit, Report};
use crate::stats::{Sample, count};
use acp_tests::house::GATEWAY;
use acp_tests::wait::{LONG, SOON};
use acp_tests::world::World;
use std::time::Duration;

/// Sessions without a running agent.
const RESTING: Size = Size { resting: 1_000, prompted_every: 1, runs: 2, chunks: 8, running: 0 };
/// Sessions with a running agent.
const LIVING: usize = 200;
/// Maximum memory of an idle session, in KiB: 0.5 MB.
const IDLE_KIB_MAX: f64 = 488.0;
const SETTLE_MS: u64 = 3_000;

/// Measures idle sessions without an actor, with an actor, and with a running agent.
pub(crate) fn measure(report: &mut Report) {
    report.part("idle sessions", "private memory for each of them, above a gateway without sessions");
    let empty = alone(&world());
    let grown = world();
    let _ = grow(&grown, RESTING);
    let per =
        |memory: Private, base: Private, number: usize| (memory.dirty_kib - base.dirty_kib) / count(number);
    let limit = Limit::AtMost(IDLE_KIB_MAX);
    report.figure("a gateway without sessions", empty.dirty_kib, "KiB");
    let without = per(alone(&grown), empty, RESTING.resting);
    report.limited(&format!("{} bound, agents closed", RESTING.resting), without, "KiB", limit);
    configure(&grown, &format!("control_plane.recovery.eager_actors = {}\n", RESTING.resting));
    let awake = per(alone(&grown), empty, RESTING.resting);
    report.limited(&format!("{} bound, agents closed, actors made", RESTING.resting), awake, "KiB", limit);
    living(report, limit);
}

/// Memory of a freshly started gateway on the state of this world.
fn alone(world: &World) -> Private {
    let supervisor = world.supervisor();
    let gateway = world.gateway(GATEWAY, &supervisor.socket());
    std::thread::sleep(Duration::from_millis(SETTLE_MS));
    let memory = Private::of(gateway.pid());
    let _ = gateway.terminate(LONG);
    let _ = supervisor.terminate(SOON);
    memory
}

fn living(report: &mut Report, limit: Limit) {
    let ground = Ground::build();
    let now = |ground: &Ground| {
        std::thread::sleep(Duration::from_millis(SETTLE_MS));
        [ground.gateway.pid(), ground.supervisor.pid()].map(|pid| Private::of(pid).dirty_kib)
    };
    let before = now(&ground);
    let mut crowd = Crowd::new(&ground.gateway.socket(), LIVING);
    let keys = crowd.spawn(&vec![ground.world.dir("work/living"); LIVING]);
    crowd.prompt(&keys, "hello", 1);
    drop(crowd);
    let after = now(&ground);
    let [gateway, supervisor] = [0, 1].map(|which| (after[which] - before[which]) / count(LIVING));
    let wrappers: Sample = ground
        .world
        .leases(&ground.supervisor.socket())
        .iter()
        .map(|lease| Private::of(lease.wrapper_pid()).dirty_kib)
        .collect();
    report.limited(&format!("{LIVING} with an agent that runs, gateway"), gateway, "KiB", limit);
    report.figure(&format!("{LIVING} with an agent that runs, supervisor"), supervisor, "KiB");
    report.figure(&format!("{LIVING} with an agent that runs, wrapper"), wrappers.median(), "KiB");
    let all = gateway + supervisor + wrappers.median();
    report.limited(&format!("{LIVING} with an agent that runs, all of ours"), all, "KiB", limit);
    ground.end();
}
