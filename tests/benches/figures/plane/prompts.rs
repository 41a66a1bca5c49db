//! Short prompts in many sessions at once: completed turns per second.

use super::crowd::Crowd;
use super::ground::{Ground, bare_agents};
use super::plain::Plain;
use super::stream::at_once;
use crate::report::Report;
use crate::stats::{Sample, count, per_second};
use std::time::Duration;

const SESSIONS: usize = 100;
/// Prompts of each session in a round.
const PROMPTS: usize = 10;
const ROUNDS: usize = 5;
const TEXT: &str = "hello";

/// Measures the rate of the gateway, of plain pipes and of plain SQLite.
pub(crate) fn measure(ground: &Ground, plain: &mut Plain, report: &mut Report) {
    report.part(
        "prompts",
        &format!("{SESSIONS} sessions at once, {PROMPTS} prompts each, one after the other, each read to its end from a stream; medians of {ROUNDS} interleaved rounds"),
    );
    let world = &ground.world;
    let mut pipes = bare_agents(world, SESSIONS);
    let mut crowd = Crowd::new(&ground.gateway.socket(), SESSIONS);
    let keys = crowd.spawn(&vec![world.dir("work/prompts"); SESSIONS]);
    let (mut ours, mut bare, mut alone) = (Sample::default(), Sample::default(), Sample::default());
    let (mut of_bare, mut of_plain, mut of_commits) =
        (Sample::default(), Sample::default(), Sample::default());
    for round in 0..=ROUNDS {
        let on_pipes: Duration = (0..PROMPTS).map(|_| at_once(&mut pipes, TEXT)).sum();
        let _ = plain.fresh();
        let before = ground.commits();
        let took = crowd.prompt(&keys, TEXT, PROMPTS);
        let commits = ground.commits() - before;
        ground.settle();
        let rows = plain.fresh();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number of rows")]
        let batch = (count(rows.len()) / commits).round() as usize;
        let times = plain.replay(&rows, batch);
        if round > 0 {
            let prompts = SESSIONS * PROMPTS;
            let rates = [per_second(prompts, took), per_second(prompts, on_pipes)];
            ours.push(rates[0]);
            bare.push(rates[1]);
            alone.push(per_second(prompts, Duration::from_secs_f64(times.sum() / 1_000.0)));
            of_bare.push(rates[0] / rates[1]);
            of_plain.push(times.sum() / (took.as_secs_f64() * 1_000.0));
            of_commits.push(commits / count(prompts));
        }
    }
    crowd.close(&keys);
    let rate = (ours.median(), "prompts/s");
    report.against("done", rate, ("plain pipe", bare.median()), (of_bare.median(), None));
    let peer = ("plain SQLite, the events alone", alone.median());
    report.against("done", rate, peer, (of_plain.median(), None));
    report.figure("done, spread", ours.spread(), "times");
    report.figure("commits of a prompt", of_commits.median(), "count");
}
