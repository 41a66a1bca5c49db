//! Many clients that do nothing: memory of a connection and of a stream, and wake-ups.

use super::viewer::{Server, initialize_http, open_stream};
use crate::house::House;
use crate::proc::{Private, sleeps};
use crate::report::{Limit, Report};
use crate::stats::count;
use std::time::Duration;

/// Number of connections, each with a stream of its own and the stream of a session.
const CONNECTIONS: usize = 500;
/// Maximum memory of a connection, and of a stream, in KiB.
const KIB_MAX: f64 = 64.0;
const SETTLE_MS: u64 = 2_000;
/// Observation time of idle streams: two heartbeats, in milliseconds.
const IDLE_MS: u64 = 30_000;

/// Measures connections without streams, then with two streams each.
pub(super) fn measure(report: &mut Report) {
    report.part(
        "northbound crowd",
        &format!("{CONNECTIONS} connections over HTTP, then {} idle event streams", 2 * CONNECTIONS),
    );
    let mut house = House::configured("[limits]\nconnections_max = 2000\n");
    let key = house.warm("work/crowd");
    let (server, pid) = (Server::demo(&house.gateway.socket()), house.gateway.pid());
    let memory = || {
        std::thread::sleep(Duration::from_millis(SETTLE_MS));
        Private::of(pid).dirty_kib
    };
    let before = memory();
    let connections: Vec<String> = (0..CONNECTIONS).map(|_| initialize_http(&server)).collect();
    let connected = memory();
    let open = |session| connections.iter().map(|id| open_stream(&server, id, session)).collect::<Vec<_>>();
    let streams = [open(None), open(Some(&*key))];
    let streamed = memory();
    let limit = Limit::AtMost(KIB_MAX);
    report.limited("memory of a connection", (connected - before) / count(CONNECTIONS), "KiB", limit);
    report.limited("memory of a stream", (streamed - connected) / count(2 * CONNECTIONS), "KiB", limit);
    let (woken, cpu) = (sleeps(pid), crate::proc::cpu_ms(pid));
    std::thread::sleep(Duration::from_millis(IDLE_MS));
    let seconds = count(IDLE_MS) / 1_000.0;
    report.figure("all streams, wake-ups", count(sleeps(pid) - woken) / seconds, "per s");
    report.figure("all streams, CPU", (crate::proc::cpu_ms(pid) - cpu) / seconds, "ms/s");
    drop(streams);
    house.end();
}
