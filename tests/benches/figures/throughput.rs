//! Throughput of long answers: from the agent through the journal to a command line that prints them.

use crate::cli;
use crate::house::{GATEWAY, House};
use crate::pipe::Pipe;
use crate::report::{Limit, Report};
use crate::stats::{Sample, ms, per_second};
use crate::turn::Turn;
use acp_tests::world::World;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const CHUNKS: usize = 10_000;
const ROUNDS: usize = 7;
const SESSIONS: usize = 4;
const ROUNDS_OF_SESSIONS: usize = 3;
/// Minimum rate of committed events per second.
const RATE_MIN: f64 = 20_000.0;

/// Measures one session, then several at once.
pub(crate) fn measure(house: &mut House, report: &mut Report) {
    one(house, report);
    several(house, report);
}

fn prompt() -> String {
    format!("stream {CHUNKS}")
}

fn one(house: &mut House, report: &mut Report) {
    report.part(
        "throughput",
        &format!("{CHUNKS} chunks, agent to journal to reader, medians of {ROUNDS} interleaved rounds"),
    );
    let mut pipe = Pipe::start(&house.world, "work/throughput-raw");
    let key = house.warm("work/throughput");
    let _ = pipe.prompt("hello");
    let mut sides: [(&str, Vec<Turn>); 3] = [("raw pipe", vec![]), ("api", vec![]), ("cli", vec![])];
    for _ in 0..ROUNDS {
        sides[0].1.push(pipe.prompt(&prompt()));
        sides[1].1.push(house.api.prompt(&key, &prompt()));
        sides[2].1.push(cli::prompt(&house.world, GATEWAY, &key, &prompt()));
    }
    for (name, turns) in &sides {
        assert!(turns.iter().all(|turn| turn.chunks == CHUNKS), "{name}: chunks are missing: {turns:?}");
        let median = |of: fn(&Turn) -> f64| turns.iter().map(of).collect::<Sample>().median();
        report.figure(&format!("{name}, first to last chunk"), median(Turn::stream_ms), "ms");
        report.figure(&format!("{name}, prompt to done"), median(Turn::done_ms), "ms");
        report.figure(&format!("{name}, first to last chunk, rate"), median(Turn::stream_rate), "events/s");
        let whole = median(Turn::whole_rate);
        let label = format!("{name}, prompt to done, rate");
        if *name == "raw pipe" {
            report.figure(&label, whole, "events/s");
        } else {
            report.limited(&label, whole, "events/s", Limit::AtLeast(RATE_MIN));
        }
    }
    recount(&house.world, &key, 2 * ROUNDS, report);
    house.close(&key);
}

fn several(house: &mut House, report: &mut Report) {
    report.part(
        "throughput of several",
        &format!("{SESSIONS} sessions at once, {CHUNKS} chunks each, medians of {ROUNDS_OF_SESSIONS} rounds"),
    );
    let mut pipes: Vec<Pipe> =
        (0..SESSIONS).map(|n| Pipe::start(&house.world, &format!("work/several-raw-{n}"))).collect();
    let keys: Vec<String> = (0..SESSIONS).map(|n| house.warm(&format!("work/several-{n}"))).collect();
    let (mut raw, mut cli) = (Sample::default(), Sample::default());
    let mut took = Sample::default();
    for _ in 0..ROUNDS_OF_SESSIONS {
        let time = at_once(pipes.iter_mut().map(|pipe| move || pipe.prompt(&prompt())));
        raw.push(per_second(SESSIONS * CHUNKS, time));
        let world = &house.world;
        let time = at_once(keys.iter().map(|key| move || cli::prompt(world, GATEWAY, key, &prompt())));
        cli.push(per_second(SESSIONS * CHUNKS, time));
        took.push(ms(time));
    }
    report.figure("raw pipe, all done, rate", raw.median(), "events/s");
    report.figure("cli, prompts to all done", took.median(), "ms");
    report.limited("cli, all done, rate", cli.median(), "events/s", Limit::AtLeast(RATE_MIN));
    for key in &keys {
        recount(&house.world, key, ROUNDS_OF_SESSIONS, report);
        house.close(key);
    }
}

/// Runs all turns at the same time. Returns the time until the last one has ended.
fn at_once<F: FnOnce() -> Turn + Send>(turns: impl ExactSizeIterator<Item = F>) -> Duration {
    let barrier = Barrier::new(turns.len() + 1);
    std::thread::scope(|scope| {
        let running: Vec<_> = turns
            .map(|turn| {
                scope.spawn(|| {
                    barrier.wait();
                    turn()
                })
            })
            .collect();
        barrier.wait();
        let began = Instant::now();
        for one in running {
            let turn = one.join().unwrap_or_else(|_| panic!("a turn failed"));
            assert_eq!(turn.chunks, CHUNKS, "chunks are missing");
        }
        began.elapsed()
    })
}

/// Verifies the rows of a session's journal through a database connection of this process.
fn recount(world: &World, key: &str, turns: usize, report: &Report) {
    let journal = world.journal(GATEWAY);
    let count = |sql: &str| -> u64 {
        let counted = journal.query_row(sql, [key], |row| row.get::<_, i64>(0));
        counted.unwrap_or_else(|e| panic!("{sql}: {e}")).try_into().unwrap_or(0)
    };
    let rows = count("SELECT count(*) FROM acp_events WHERE session_key = ?1");
    let last = count("SELECT max(session_seq) FROM acp_events WHERE session_key = ?1");
    let gaps = count(
        "SELECT count(*) FROM (SELECT run_id FROM acp_events WHERE session_key = ?1 AND run_id IS NOT NULL \
         GROUP BY run_id HAVING min(seq) <> 1 OR max(seq) <> count(*))",
    );
    let whole = count(&format!(
        "SELECT count(*) FROM (SELECT run_id FROM acp_events WHERE session_key = ?1 AND kind = 'agent_message' \
         GROUP BY run_id HAVING count(*) = {CHUNKS} AND count(DISTINCT payload_json) = {CHUNKS})"
    ));
    assert_eq!(rows, last, "session_seq of {key} has a gap");
    assert_eq!(gaps, 0, "seq of a run of {key} has a gap");
    assert_eq!(usize::try_from(whole), Ok(turns), "turns of {key} with {CHUNKS} committed chunks");
    report.remark(&format!(
        "recounted from the database: {rows} events of {key}, {whole} turns of {CHUNKS} different chunks, no gap"
    ));
}
