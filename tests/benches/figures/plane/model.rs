//! The model of `acp_tests::model`: its costs are fitted to short runs of 100 sessions, its answers are compared with the runs of
//! 100 and of 1,000 sessions, and then it is asked about 1,000,000. Issue "Beyond one machine", T8.

use super::crowd::Crowd;
use super::engines::server_cpu;
use super::ground::{Ground, configure, in_cell, world};
use crate::proc::{Private, cpu_ms};
use crate::report::Report;
use crate::stats::{Sample, count};
use acp_testkit::postgres::Postgres;
use acp_tests::model::{Answers, Chat, Costs, Load, Machines, Period, fit, hosts, simulate};
use std::time::Duration;

/// Environment variable with other numbers of sessions that are compared, separated by blanks.
const SIZES_ENV: &str = "ACP_MODEL_SESSIONS";
const SIZES: &str = "100 1000";
/// Sessions of the runs that the costs are fitted to.
const FITTED: usize = 100;
/// Their chunks, milliseconds between two chunks, and mean seconds between two turns. The agent answers as fast as it can.
const FITTED_LOADS: [Shape; 5] = [
    Shape { chunks: 1, pace_ms: 0, away: 200.0 },
    Shape { chunks: 1, pace_ms: 0, away: 3.0 },
    Shape { chunks: 40, pace_ms: 100, away: 6.0 },
    Shape { chunks: 100, pace_ms: 10, away: 6.0 },
    Shape { chunks: 10, pace_ms: 100, away: 20.0 },
];
/// Load of the runs that the model is compared with.
const COMPARED: Shape = Shape { chunks: 40, pace_ms: 100, away: 46.0 };
/// Warm-up and measured time of a run, in seconds.
const FITTED_S: [u64; 2] = [2, 14];
const COMPARED_S: [u64; 2] = [10, 40];
const SEED: u64 = 1;
/// Rows of a group at most: `acp.control_plane.checkpoint.flush_every_events`.
const GROUP_MAX: u32 = 256;

/// Turns of a run.
#[derive(Debug, Clone, Copy)]
struct Shape {
    chunks: u32,
    pace_ms: u32,
    away: f64,
}

impl Shape {
    fn text(self) -> String {
        format!("chunks {} pace_ms={}", self.chunks, self.pace_ms)
    }

    fn load(self, sessions: usize) -> Load {
        let pace = f64::from(self.pace_ms) / 1_000.0;
        Load { sessions, away: self.away, prompts: 1.0, think: 1.0, answer: 0.0, chunks: self.chunks, pace }
    }
}

/// Totals of the measured time of a run.
#[derive(Debug, Default)]
struct Measured {
    seconds: f64,
    turns: f64,
    chunks: f64,
    /// Groups of commits, commits in them, and the time of the groups in seconds.
    groups: f64,
    commits: f64,
    commit_s: f64,
    /// CPU, in seconds.
    gateway: f64,
    supervisor: f64,
    server: f64,
    first: Sample,
}

/// A gateway with sessions whose agents run.
struct Stage<'a> {
    ground: Ground,
    server: Option<&'a Postgres>,
    crowd: Crowd,
    keys: Vec<String>,
    /// CPU of gateway and supervisor for the start of an agent, in seconds.
    start: [f64; 2],
    /// Private memory of gateway and supervisor before and after the starts, in KiB.
    memory: [[f64; 2]; 2],
}

/// Measures with SQLite and, if there is one, with PostgreSQL; then asks.
pub(crate) fn measure(report: &mut Report) {
    let server = Postgres::start();
    let sqlite = calibrate("SQLite", None, report);
    ask("SQLite, one cell", &sqlite, 1, report);
    if let Some(server) = &server {
        let postgres = calibrate("PostgreSQL", Some(server), report);
        ask("PostgreSQL, 10 cells on one server", &postgres, 10, report);
    }
}

impl<'a> Stage<'a> {
    /// Starts a gateway and the agents of so many sessions; `name` is that of the run.
    fn build(name: &str, sessions: usize, server: Option<&'a Postgres>) -> Self {
        let world = world();
        if let Some(server) = server {
            let cell = in_cell(&world, &server.create_database(name));
            configure(&world, &cell);
        }
        let ground = Ground::build_in(world);
        let mut crowd = Crowd::new(&ground.gateway.socket(), sessions);
        let pids = [ground.gateway.pid(), ground.supervisor.pid()];
        let memory = || pids.map(|pid| Private::of(pid).dirty_kib);
        let (before, cpu) = (memory(), pids.map(cpu_ms));
        let keys = crowd.spawn(&vec![ground.world.dir("work/model"); sessions]);
        let start = [0, 1].map(|which| (cpu_ms(pids[which]) - cpu[which]) / 1_000.0 / count(sessions));
        crowd.prompt(&keys, "hello", 1);
        let memory = [before, memory()];
        Self { ground, server, crowd, keys, start, memory }
    }

    /// Lets people prompt the sessions, and measures after the warm-up.
    fn run(&mut self, shape: Shape, [warm_up, measured]: [u64; 2]) -> Measured {
        let [begin, end] = [warm_up, warm_up + measured].map(Duration::from_secs);
        let (ground, server) = (&self.ground, self.server);
        let mut marks = Vec::new();
        let turns = self.crowd.visit(&self.keys, (&shape.text(), shape.away), [begin, end], || {
            marks.push(totals(ground, server))
        });
        let [from, to] = [&marks[0], &marks[1]];
        let total = |which: usize| to[which] - from[which];
        let is_in = |at: Duration| begin <= at && at < end;
        let ended = turns.iter().filter(|(prompted, turn)| is_in(*prompted + turn.done)).count();
        // Chunks are spread evenly over the time from the first to the last.
        let chunks = turns.iter().map(|(prompted, turn)| {
            let [first, last] = [*prompted + turn.first, *prompted + turn.last].map(|at| at.as_secs_f64());
            let inside = last.min(end.as_secs_f64()) - first.max(begin.as_secs_f64());
            let is_point = last <= first;
            let share = if is_point {
                f64::from(u8::from(is_in(*prompted + turn.first)))
            } else {
                inside.max(0.0) / (last - first)
            };
            count(turn.chunks) * share
        });
        let first = turns.iter().filter(|(prompted, _)| is_in(*prompted)).map(|(_, turn)| turn.first_ms());
        Measured {
            seconds: (end - begin).as_secs_f64(),
            turns: count(ended),
            chunks: chunks.sum(),
            groups: total(0),
            commits: total(1),
            commit_s: total(2),
            gateway: total(3),
            supervisor: total(4),
            server: total(5),
            first: first.collect(),
        }
    }
}

/// Counters of the gateway and CPU seconds of the processes.
fn totals(ground: &Ground, server: Option<&Postgres>) -> [f64; 6] {
    [
        ground.commits(),
        ground.count("acp_store_transactions_total"),
        ground.count("acp_store_commit_seconds_sum"),
        cpu_ms(ground.gateway.pid()) / 1_000.0,
        cpu_ms(ground.supervisor.pid()) / 1_000.0,
        server.map_or(0.0, |server| server_cpu(server) / 1_000.0),
    ]
}

/// Fitted costs of an engine.
struct Fitted {
    costs: Costs,
    /// CPU of the supervisor for a turn, for a chunk and for a group of commits.
    supervisor: [f64; 3],
    /// CPU of gateway and supervisor in each second for a session whose agent runs.
    resting: [f64; 2],
    /// Memory of gateway and supervisor for a session whose agent runs, and without sessions, in KiB.
    session: [f64; 2],
    empty: [f64; 2],
}

impl Fitted {
    /// CPU of all supervisors in each second, without what resting agents cost.
    fn supervisor(&self, answers: &Answers) -> f64 {
        let [of_turn, of_chunk, of_group] = self.supervisor;
        of_turn * answers.turn_rate + of_chunk * answers.chunk_rate + of_group * answers.group_rate
    }
}

/// Fits the costs, and compares answers of the model with runs.
fn calibrate(name: &str, server: Option<&Postgres>, report: &mut Report) -> Fitted {
    let [warm_up, measured] = FITTED_S;
    let about =
        format!("{} runs of {FITTED} sessions, {measured} s each after {warm_up} s", FITTED_LOADS.len());
    report.part(&format!("model {name}, costs"), &about);
    let mut stage = Stage::build("fitted", FITTED, server);
    let runs: Vec<(Shape, Measured)> =
        FITTED_LOADS.iter().map(|shape| (*shape, stage.run(*shape, FITTED_S))).collect();
    for (shape, run) in &runs {
        report.remark(&format!("{shape:?}: {run:.4?}"));
    }
    let fitted = fit_costs(&runs, &stage);
    stage.ground.end();
    tell_costs(&fitted, report);
    let sizes = std::env::var(SIZES_ENV).unwrap_or_else(|_| SIZES.to_owned());
    for size in sizes.split_whitespace() {
        let sessions = size.parse().unwrap_or_else(|e| panic!("{SIZES_ENV}: {size}: {e}"));
        compare(name, sessions, &fitted, server, report);
    }
    fitted
}

fn fit_costs(runs: &[(Shape, Measured)], stage: &Stage<'_>) -> Fitted {
    let of = |counts: fn(&Measured) -> [f64; 2], total: fn(&Measured) -> f64| {
        fit(&runs.iter().map(|(_, run)| (counts(run), total(run))).collect::<Vec<_>>())
    };
    let of_service = |total: fn(&Measured) -> f64| {
        let counts = |run: &Measured| [run.turns, run.chunks, run.groups, run.seconds * count(FITTED)];
        fit(&runs.iter().map(|(_, run)| (counts(run), total(run))).collect::<Vec<_>>())
    };
    let [turn, chunk, group, resting] = of_service(|run| run.gateway);
    let [sync, row] = of(|run| [run.groups, run.commits], |run| run.commit_s);
    let server = of(|run| [run.groups, run.commits], |run| run.server);
    let [of_turn, of_chunk, of_group, resting_there] = of_service(|run| run.supervisor);
    // Agents that write fast have several chunks in one commit: the slow ones show the commits of a turn.
    let (commits, turns) = runs
        .iter()
        .filter(|(shape, _)| shape.pace_ms == 0 || shape.pace_ms >= 100)
        .fold((0.0, 0.0), |(commits, turns), (_, run)| {
            (commits + run.commits - run.chunks, turns + run.turns)
        });
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
    let commits = (commits / turns).round().max(0.0) as u32;
    let mut costs = Costs {
        turn,
        chunk,
        group,
        commits: [commits.div_ceil(2), commits / 2],
        rows: 1.0,
        sync,
        row,
        server,
        start: stage.start[0],
        ..Costs::default()
    };
    // The rest of the time to the first chunk: processes that wait for a processor, the agent, the client.
    let (shape, light) = &runs[FITTED_LOADS.len() - 1];
    let predicted = predict(*shape, FITTED, &costs, FITTED_S);
    costs.hop = (light.first.median() / 1_000.0 - predicted.first.percentile(50)).max(0.0);
    let [before, after] = stage.memory;
    let session = [0, 1].map(|which| (after[which] - before[which]) / count(FITTED));
    let (supervisor, resting) = ([of_turn, of_chunk, of_group], [resting, resting_there]);
    Fitted { costs, supervisor, resting, session, empty: before }
}

fn tell_costs(fitted: &Fitted, report: &mut Report) {
    let Costs { turn, chunk, group, start, commits, sync, row, server, hop, .. } = &fitted.costs;
    let [of_turn, of_chunk, of_group] = fitted.supervisor;
    for (name, seconds) in [
        ("gateway's CPU for a turn", *turn),
        ("gateway's CPU for a chunk", *chunk),
        ("gateway's CPU for a group of commits", *group),
        ("gateway's CPU for a start", *start),
        ("supervisor's CPU for a turn", of_turn),
        ("supervisor's CPU for a chunk", of_chunk),
        ("supervisor's CPU for a group of commits", of_group),
        ("gateway's CPU in a second for a session", fitted.resting[0]),
        ("supervisor's CPU in a second for a session", fitted.resting[1]),
        ("time of a group", *sync),
        ("time of a group for each commit", *row),
        ("server's CPU for a group", server[0]),
        ("server's CPU for each commit", server[1]),
        ("rest of the time to the first chunk", *hop),
    ] {
        report.figure(name, seconds * 1e6, "us");
    }
    report.figure(
        "commits of a turn besides those of its chunks",
        f64::from(commits[0] + commits[1]),
        "count",
    );
    report.figure("gateway's memory for a session", fitted.session[0], "KiB");
    report.figure("supervisor's memory for a session", fitted.session[1], "KiB");
}

fn predict(shape: Shape, sessions: usize, costs: &Costs, [warm_up, measured]: [u64; 2]) -> Answers {
    let machines = Machines {
        cells: 1,
        gateway_cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        server_cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        group_max: GROUP_MAX,
        in_use_max: usize::MAX,
        idle: f64::INFINITY,
        chat: None,
    };
    let seconds = |time: u64| Duration::from_secs(time).as_secs_f64();
    let period = Period { warm_up: seconds(warm_up), measured: seconds(measured) };
    simulate(&shape.load(sessions), costs, &machines, period, SEED)
}

/// Compares the model with a run of this many sessions.
fn compare(name: &str, sessions: usize, fitted: &Fitted, server: Option<&Postgres>, report: &mut Report) {
    let [warm_up, measured] = COMPARED_S;
    report.part(
        &format!("model {name}, {sessions} sessions"),
        &format!(
            "predicted from {FITTED} sessions, and measured in {measured} s after {warm_up} s: {COMPARED:?}"
        ),
    );
    let mut stage = Stage::build(&format!("compared{sessions}"), sessions, server);
    let run = stage.run(COMPARED, COMPARED_S);
    let after = stage.memory[1];
    stage.ground.end();
    let answers = predict(COMPARED, sessions, &fitted.costs, COMPARED_S);
    let Measured { seconds, turns, chunks, groups, gateway, supervisor, server, first, .. } = run;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let [of_resting, resting_there] = fitted.resting.map(|cost| cost * count(sessions));
    let memory = fitted.empty[0] + fitted.session[0] * count(sessions);
    for (what, unit, predicted, measured) in [
        ("turns", "1/s", answers.turn_rate, turns / seconds),
        ("chunks", "1/s", answers.chunk_rate, chunks / seconds),
        ("groups of commits", "1/s", answers.group_rate, groups / seconds),
        ("gateway's CPU", "s/s", answers.gateway * count(cores) + of_resting, gateway / seconds),
        ("supervisor's CPU", "s/s", fitted.supervisor(&answers) + resting_there, supervisor / seconds),
        ("server's CPU", "s/s", answers.server * count(cores), server / seconds),
        ("first chunk, p50", "ms", answers.first.percentile(50) * 1_000.0, first.median()),
        ("first chunk, p99", "ms", answers.first.percentile(99) * 1_000.0, first.percentile(99)),
        ("gateway's memory", "MiB", memory / 1_024.0, after[0] / 1_024.0),
    ] {
        // Without a server, nothing of it is compared.
        if measured == 0.0 {
            continue;
        }
        let ratio = predicted / measured;
        report.against(what, (predicted, unit), ("measured", measured), (ratio, None));
    }
}

/// People and agents of an installation with 1,000,000 sessions: a visit has six prompts three minutes apart, and a session is
/// visited again after so many hours. An agent thinks for 5 s and writes for 30 s.
fn people(sessions: usize, away_hours: f64) -> Load {
    let away = away_hours * 3_600.0;
    Load { sessions, away, prompts: 6.0, think: 180.0, answer: 5.0, chunks: 150, pace: 0.2 }
}

const ASKED_SESSIONS: usize = 1_000_000;
/// Hours between two visits: with eight, a tenth of the sessions is in use.
const AWAY_HOURS: [f64; 5] = [80.0, 8.0, 4.0, 2.0, 1.0];
/// Processors of a gateway's machine and of the server's.
const GATEWAY_CORES: usize = 8;
const SERVER_CORES: usize = 16;
/// Sessions in use of a cell at most.
const CELL_MAX: f64 = 10_000.0;
/// Memory of an agent at least and at most, and of a host, in MB.
const AGENT_MB: [f64; 2] = [100.0, 500.0];
const HOST_MB: f64 = 65_536.0;
/// Time after which an idle agent is ended, and in which one starts, in seconds.
const IDLE_S: f64 = 1_800.0;
const STARTING_S: f64 = 2.0;
/// Requests to Discord of a turn besides edits, a second of one application, and seconds between two edits: of the part
/// `discord`, 39.3 requests a second, 30.5 of them edits, with 4.2 turns a second.
const CHAT: (u32, f64, f64) = (2, 40.0, 1.0);
const ASKED: Period = Period { warm_up: 60.0, measured: 60.0 };

/// Asks about 1,000,000 sessions in so many cells, each of which has an application of its own at the chat service.
fn ask(name: &str, fitted: &Fitted, cells: usize, report: &mut Report) {
    let (of_turn, per_second, spacing) = CHAT;
    let chat = Chat { per_second, applications: cells, of_turn, spacing };
    let costs = Costs { starting: STARTING_S, ..fitted.costs.clone() };
    for away in AWAY_HOURS {
        report.part(
            &format!("model {name}, {away} h"),
            &format!("{ASKED_SESSIONS} sessions that are visited each {away} hours; {GATEWAY_CORES} processors of each gateway, {SERVER_CORES} of the server"),
        );
        let machines = Machines {
            cells,
            gateway_cores: GATEWAY_CORES,
            server_cores: SERVER_CORES,
            group_max: GROUP_MAX,
            in_use_max: usize::MAX,
            idle: IDLE_S,
            chat: Some(chat.clone()),
        };
        let answers = simulate(&people(ASKED_SESSIONS / cells, away), &costs, &machines, ASKED, SEED);
        let in_use = count(answers.in_use);
        let [of_resting, resting_there] = fitted.resting.map(|cost| cost * in_use);
        let needed = (in_use / CELL_MAX).ceil();
        for (what, value, unit) in [
            ("turns", answers.turn_rate, "1/s"),
            ("chunks", answers.chunk_rate, "1/s"),
            ("starts of agents", answers.start_rate, "1/s"),
            ("groups of commits", answers.group_rate, "1/s"),
            ("sessions in use", in_use, "count"),
            ("cells needed for them", needed, "count"),
            ("hosts, agents of 100 MB", hosts(answers.in_use, AGENT_MB[0], HOST_MB), "count"),
            ("hosts, agents of 500 MB", hosts(answers.in_use, AGENT_MB[1], HOST_MB), "count"),
            ("CPU of all supervisors", fitted.supervisor(&answers) + resting_there, "s/s"),
            ("gateways' CPU", answers.gateway + of_resting / count(cells * GATEWAY_CORES), "times"),
            ("writers", answers.writer, "times"),
            ("server's CPU", answers.server, "times"),
            ("memory of a gateway", fitted.session[0] * in_use / count(cells) / 1_048_576.0, "GiB"),
            ("chat budget", answers.chat, "times"),
            ("answers that wait for it", count(answers.chat_waiting), "count"),
            ("edit of a card, p50", answers.edits.percentile(50), "s"),
            ("edit of a card, p99", answers.edits.percentile(99), "s"),
            ("end of a turn to its message, p50", answers.shown.percentile(50), "s"),
            ("end of a turn to its message, p99", answers.shown.percentile(99), "s"),
            ("first chunk, p50", answers.first.percentile(50), "s"),
            ("first chunk, p99", answers.first.percentile(99), "s"),
        ] {
            report.figure(what, value, unit);
        }
    }
}
