//! Sessions that stream as fast as their agents can: committed events per second, compared with the same rows
//! in plain batches of the same size and with the same agents on plain pipes.

use super::crowd::Crowd;
use super::ground::{Ground, bare_agents};
use super::plain::Plain;
use crate::pipe::Pipe;
use crate::proc::{cpu_ms, thread_cpu_ms};
use crate::report::{Limit, Report};
use crate::stats::{Sample, count, per_second};
use acp_tests::house::GATEWAY;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Number of sessions, and chunks of each session in a round.
const SIDES: [(usize, usize); 3] = [(1, 30_000), (10, 4_000), (50, 800)];
const ROUNDS: usize = 5;
/// Minimum share of the rate of plain batches.
const OF_PLAIN_MIN: f64 = 0.5;
/// Polling interval while commits are pending, in milliseconds.
const LOOK_MS: u64 = 2;

/// Measures all numbers of sessions.
pub(crate) fn measure(ground: &Ground, plain: &mut Plain, report: &mut Report) {
    for (sessions, chunks) in SIDES {
        one(ground, plain, (sessions, chunks), report);
    }
}

#[derive(Debug, Default)]
struct Rates {
    ours: Sample,
    plain: Sample,
    pipe: Sample,
    of_plain: Sample,
    of_pipe: Sample,
    batch: Sample,
    cpu: Sample,
    cpu_plain: Sample,
}

fn one(ground: &Ground, plain: &mut Plain, (sessions, chunks): (usize, usize), report: &mut Report) {
    report.part(
        &format!("stream of {sessions}"),
        &format!("{sessions} sessions at once, {chunks} chunks each, prompts to the last commit, medians of {ROUNDS} interleaved rounds"),
    );
    let world = &ground.world;
    let mut pipes = bare_agents(world, sessions);
    let mut crowd = Crowd::new(&ground.gateway.socket(), sessions);
    let keys = crowd.spawn(&vec![world.dir("work/stream"); sessions]);
    crowd.prompt(&keys, "hello", 1);
    let text = format!("chunks {chunks}");
    let mut rates = Rates::default();
    for round in 0..=ROUNDS {
        let pipe = per_second(sessions * chunks, at_once(&mut pipes, &text));
        let _ = plain.fresh();
        let before = ground.commits();
        let (began, cpu) = (Instant::now(), cpu_ms(ground.gateway.pid()));
        crowd.accept(&keys, &text);
        until_all_ended(ground);
        let (took, cpu) = (began.elapsed(), cpu_ms(ground.gateway.pid()) - cpu);
        let commits = ground.commits() - before;
        ground.settle();
        let rows = plain.fresh();
        assert!(rows.len() > sessions * chunks, "only {} rows are committed", rows.len());
        let batch = count(rows.len()) / commits;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number of rows")]
        let (times, cpu_plain) = thread_cpu_ms(|| plain.replay(&rows, batch.round() as usize));
        let alone = count(rows.len()) / times.sum() * 1_000.0;
        let ours = per_second(rows.len(), took);
        // The first round warms every side up.
        if round > 0 {
            rates.ours.push(ours);
            rates.plain.push(alone);
            rates.pipe.push(pipe);
            rates.of_plain.push(ours / alone);
            rates.of_pipe.push(ours / pipe);
            rates.batch.push(batch);
            let thousands = count(rows.len()) / 1_000.0;
            rates.cpu.push(cpu / thousands);
            rates.cpu_plain.push(cpu_plain / thousands);
        }
    }
    crowd.close(&keys);
    rates.tell(report);
}

impl Rates {
    fn tell(&self, report: &mut Report) {
        let ours = (self.ours.median(), "events/s");
        let of_plain = (self.of_plain.median(), Some(Limit::AtLeast(OF_PLAIN_MIN)));
        report.against("committed", ours, ("plain SQLite batches", self.plain.median()), of_plain);
        report.figure("committed, spread of that ratio", self.of_plain.spread(), "times");
        // Other load of the machine hardly affects these figures.
        let (cpu, cpu_plain) = (self.cpu.median(), self.cpu_plain.median());
        let peer = ("plain SQLite batches", cpu_plain);
        report.against("CPU of 1000 events", (cpu, "ms"), peer, (cpu / cpu_plain, None));
        report.figure("rows of a commit", self.batch.median(), "rows");
        report.against("committed", ours, ("plain pipe", self.pipe.median()), (self.of_pipe.median(), None));
    }
}

fn until_all_ended(ground: &Ground) {
    let journal = ground.world.journal(GATEWAY);
    let sql = "SELECT NOT EXISTS (SELECT 1 FROM acp_runs WHERE state IN ('queued','running'))";
    while !journal.query_row(sql, [], |row| row.get::<_, bool>(0)).unwrap_or_else(|e| panic!("{sql}: {e}")) {
        std::thread::sleep(Duration::from_millis(LOOK_MS));
    }
}

/// Prompts all agents on their pipes at the same time, one reader each. Returns the time until the last turn
/// has ended.
pub(crate) fn at_once(pipes: &mut [Pipe], text: &str) -> Duration {
    let barrier = Barrier::new(pipes.len() + 1);
    std::thread::scope(|scope| {
        for pipe in pipes {
            scope.spawn(|| {
                barrier.wait();
                pipe.prompt(text)
            });
        }
        barrier.wait();
        Instant::now()
    })
    .elapsed()
}
