//! Take-over of a cell with 10,000 sessions: from the kill of its owner, or from SIGTERM, until the gateway that stood by has
//! answered a prompt. Issue "Beyond one machine", acceptance figures of ownership.

use super::ground::{configure, in_cell, world};
use super::seed::{Size, grow, resting};
use crate::api::Api;
use crate::report::{Limit, Report};
use crate::stats::Sample;
use acp_testkit::postgres::Postgres;
use acp_tests::cli::run;
use acp_tests::house::GATEWAY;
use acp_tests::scrape::get;
use acp_tests::service::Service;
use acp_tests::wait::{LONG, until};
use acp_tests::world::World;
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};

/// Sessions of the cell, of which every fourth has a journal.
const SIZE: Size = Size { resting: 10_000, prompted_every: 4, runs: 1, chunks: 1, running: 0 };
/// Environment variable with another number of sessions.
const SIZE_ENV: &str = "ACP_TAKE_OVER_SESSIONS";
/// Take-overs of each kind.
const ROUNDS: usize = 10;
/// Name of the second gateway.
const SECOND: &str = "second";
const KILLED_S_MAX: f64 = 15.0;
const PLANNED_S_MAX: f64 = 1.0;

/// Measures, if there is a PostgreSQL.
pub(crate) fn measure(report: &mut Report) {
    let Some(server) = Postgres::start() else { return report.remark("no PostgreSQL is installed") };
    let sessions = std::env::var(SIZE_ENV)
        .map_or(SIZE.resting, |text| text.parse().unwrap_or_else(|e| panic!("{SIZE_ENV}: {text}: {e}")));
    let world = world();
    let _ = grow(&world, Size { resting: sessions, ..SIZE });
    move_to_cell(&world, &server.create_database("cell"));
    let supervisor = world.supervisor();
    report.part(
        "take-over",
        &format!("a cell with {sessions} sessions, two gateways, {ROUNDS} kills and {ROUNDS} planned ends; each prompt starts an agent"),
    );
    let socket = supervisor.socket();
    let mut pair = Pair::start(&world, &socket);
    for (name, signal, limit) in [
        ("SIGKILL", Signal::KILL, Limit::AtMost(KILLED_S_MAX)),
        ("SIGTERM", Signal::TERM, Limit::AtMost(PLANNED_S_MAX)),
    ] {
        let (mut serves, mut answered) = (Sample::default(), Sample::default());
        for _ in 0..ROUNDS {
            let [taken, done] = pair.take_over(signal);
            serves.push(taken.as_secs_f64());
            answered.push(done.as_secs_f64());
        }
        report.figure(&format!("{name} until another gateway serves, p50"), serves.median(), "s");
        let limit_of = |of: Signal| (of == signal).then_some(limit);
        report.row(
            &format!("{name} until another gateway serves, p99"),
            serves.percentile(99),
            "s",
            limit_of(Signal::TERM),
        );
        report.figure(&format!("{name} until a prompt is answered, p50"), answered.median(), "s");
        report.row(
            &format!("{name} until a prompt is answered, p99"),
            answered.percentile(99),
            "s",
            limit_of(Signal::KILL),
        );
    }
    drop(pair);
    let _ = supervisor.terminate(LONG);
}

/// Moves the control plane into a cell, and configures both gateways for it.
pub(super) fn move_to_cell(world: &World, address: &str) {
    let cell = in_cell(world, address);
    configure(world, &cell);
    let config = world.path(&format!("{GATEWAY}.toml"));
    let second = world.path(&format!("{SECOND}.toml"));
    let copied = std::fs::copy(&config, &second);
    let _ = copied.unwrap_or_else(|e| panic!("{}: {e}", second.display()));
    let mut command = world.gateway_verb(GATEWAY, &["store", "move", "--to", "postgres"]);
    let _ = run(command.arg("--config").arg(config), Duration::from_secs(1_200)).ok();
}

/// Two gateways of one cell, the owner first.
struct Pair<'a> {
    world: &'a World,
    supervisor: &'a Path,
    /// Names of the gateways, and their processes.
    names: [&'static str; 2],
    gateways: [Service; 2],
    /// Number of the next session that is prompted.
    next: usize,
}

impl<'a> Pair<'a> {
    fn start(world: &'a World, supervisor: &'a Path) -> Self {
        let owner = world.gateway(GATEWAY, supervisor);
        let gateways = [owner, world.standby(SECOND, supervisor)];
        Self { world, supervisor, names: [GATEWAY, SECOND], gateways, next: 1 }
    }

    /// Ends the owner with a signal. Returns the times until the other gateway serves, and until it has answered a prompt to a
    /// resting session. Afterwards the ended one stands by.
    fn take_over(&mut self, signal: Signal) -> [Duration; 2] {
        let socket = self.world.path(self.names[1]).join("gateway.sock");
        let began = Instant::now();
        assert!(self.gateways[0].signal(signal), "the owner no longer exists");
        until(LONG, "the other gateway is ready", || self.gateways[1].has_printed("ready"));
        let serves = began.elapsed();
        assert_eq!(get(&socket, "/v1/owner")["serves"], true);
        let _ = Api::new(&socket).prompt(&resting(self.next), "hello");
        let answered = began.elapsed();
        self.next += 1;
        until(LONG, "the owner has ended", || self.gateways[0].has_ended());
        self.names.reverse();
        self.gateways.reverse();
        self.gateways[1] = self.world.standby(self.names[1], self.supervisor);
        [serves, answered]
    }
}
