//! Cost of a session: time until it is ready, and resources while it is idle.

use crate::house::House;
use crate::pipe::Pipe;
use crate::proc::{Private, sleeps};
use crate::report::Report;
use crate::stats::{Sample, count, ms};
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;
/// Observation time of idle processes, in milliseconds.
const IDLE_MS: u64 = 5_000;
/// Settling time before that, in milliseconds.
const SETTLE_MS: u64 = 2_000;

/// Measures both figures.
pub(crate) fn measure(house: &mut House, report: &mut Report) {
    spawn(house, report);
    idle(house, report);
}

fn spawn(house: &mut House, report: &mut Report) {
    report
        .part("spawn", &format!("start of an agent to a session that is ready, {ROUNDS} interleaved rounds"));
    let (mut raw, mut ours) = (Sample::default(), Sample::default());
    for round in 0..ROUNDS {
        let began = Instant::now();
        let pipe = Pipe::start(&house.world, &format!("work/spawn-raw-{round}"));
        raw.push(ms(began.elapsed()));
        drop(pipe);
        let (key, time) = house.spawn(&format!("work/spawn-{round}"));
        ours.push(ms(time));
        house.close(&key);
    }
    for (name, sample) in [("raw pipe", &raw), ("sessions spawn", &ours)] {
        report.figure(&format!("{name}, median"), sample.median(), "ms");
        report.figure(&format!("{name}, p90"), sample.p90(), "ms");
    }
}

fn idle(house: &mut House, report: &mut Report) {
    report.part("idle", &format!("one warm session, idle; wake-ups within {IDLE_MS} ms"));
    let key = house.warm("work/idle");
    let lease = house.world.living_lease(&house.supervisor.socket(), &key);
    let wrapper = lease.unwrap_or_else(|| panic!("no lease of {key}")).wrapper_pid();
    let processes =
        [("gateway", house.gateway.pid()), ("supervisor", house.supervisor.pid()), ("wrapper", wrapper)];
    std::thread::sleep(Duration::from_millis(SETTLE_MS));
    let before = processes.map(|(_, pid)| sleeps(pid));
    std::thread::sleep(Duration::from_millis(IDLE_MS));
    for ((name, pid), before) in processes.into_iter().zip(before) {
        let woken = sleeps(pid) - before;
        let memory = Private::of(pid);
        report.figure(&format!("{name}, private memory"), memory.kib, "KiB");
        report.figure(&format!("{name}, of it written"), memory.dirty_kib, "KiB");
        report.figure(&format!("{name}, wake-ups"), count(woken), "count");
    }
    house.close(&key);
}
