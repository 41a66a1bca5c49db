//! Time from an agent's output line to its receipt by a subscriber, compared with one plain commit in the
//! same minute. The agent's output is a timestamp; a client of the event stream in this process reads it. The
//! same agents on plain pipes show how long this machine needs to wake a reader at all.

use super::crowd::Crowd;
use super::ground::{Ground, bare_agents};
use super::plain::Plain;
use crate::pipe::Pipe;
use crate::report::{Limit, Report};
use crate::stats::Sample;
use acp_tests::fake_agent::now_ns;
use std::cell::RefCell;

const SIDES: [usize; 2] = [1, 10];
const ROUNDS: usize = 5;
/// Lines of each session in a round, and milliseconds between them.
const LINES: usize = 300;
const PACE_MS: usize = 5;
/// Maximum delay of a line compared with a commit, in milliseconds.
const LATER_MS_MAX: f64 = 10.0;

/// Measures one session and several sessions.
pub(crate) fn measure(ground: &Ground, plain: &mut Plain, report: &mut Report) {
    for sessions in SIDES {
        one(ground, plain, sessions, report);
    }
}

fn one(ground: &Ground, plain: &mut Plain, sessions: usize, report: &mut Report) {
    report.part(
        &format!("line of {sessions}"),
        &format!("agent writes a line to subscriber has it, {sessions} sessions, a line every {PACE_MS} ms each, {ROUNDS} interleaved rounds of {LINES} lines"),
    );
    let mut crowd = Crowd::new(&ground.gateway.socket(), sessions);
    let keys = crowd.spawn(&vec![ground.world.dir("work/line"); sessions]);
    crowd.prompt(&keys, "hello", 1);
    // The reader is connected before the first line is written.
    let text = format!("sleep 100\nstamps {LINES} {PACE_MS}");
    let mut pipes = bare_agents(&ground.world, sessions);
    let (lines, mut piped) = (RefCell::new(Sample::default()), Sample::default());
    let mut commits = Sample::default();
    for _ in 0..ROUNDS {
        piped.extend(on_pipes(&mut pipes, &text));
        let _ = plain.fresh();
        crowd.follow(&keys, &text, |line| lines.borrow_mut().extend(age_ms(line)));
        ground.settle();
        let rows = plain.fresh();
        commits.extend(plain.replay(&rows[..rows.len().min(LINES)], 1));
    }
    crowd.close(&keys);
    let lines = lines.into_inner();
    assert_eq!(lines.len(), ROUNDS * LINES * sessions, "lines are missing");
    let limit = Limit::AtMost(LATER_MS_MAX);
    for (name, percent, limit) in [("p50", 50, None), ("p99", 99, Some(limit))] {
        let [line, commit, pipe] = [&lines, &commits, &piped].map(|sample| sample.percentile(percent));
        let ours = (line, "ms");
        report.against(&format!("line, {name}"), ours, ("one plain commit", commit), (line / commit, None));
        report.figure(&format!("line, {name}, plain pipe"), pipe, "ms");
        report.figure(&format!("line, {name}, ratio to plain pipe"), line / pipe, "times");
        let later = format!("line minus one plain commit, {name}");
        match limit {
            Some(limit) => report.limited(&later, line - commit, "ms", limit),
            None => report.figure(&later, line - commit, "ms"),
        }
    }
    let strict = lines.percentile(99) - commits.median();
    report.figure("line, p99, minus one plain commit, p50", strict, "ms");
}

/// Delays of the same agents on plain pipes, all at the same time.
fn on_pipes(pipes: &mut [Pipe], text: &str) -> Sample {
    std::thread::scope(|scope| {
        let start = |pipe| {
            scope.spawn(move || {
                let mut ages = Sample::default();
                let pipe: &mut Pipe = pipe;
                let _ = pipe.follow(text, |line| ages.extend(age_ms(line)));
                ages
            })
        };
        let readers: Vec<_> = pipes.iter_mut().map(start).collect();
        let ended =
            readers.into_iter().map(|reader| reader.join().unwrap_or_else(|_| panic!("a turn failed")));
        ended.flatten().collect()
    })
}

/// Age of the timestamp in a line of the event stream; `None` if the line has none.
fn age_ms(line: &str) -> Option<f64> {
    let now = now_ns();
    let (_, text) = line.split_once(r#""text":""#)?;
    let (digits, _) = text.split_once('"')?;
    let said: u64 = digits.parse().ok()?;
    #[expect(clippy::cast_precision_loss, reason = "a time of milliseconds loses no precision")]
    let age = now.saturating_sub(said) as f64;
    Some(age / 1_000_000.0)
}
