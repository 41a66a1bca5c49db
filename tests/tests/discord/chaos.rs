//! Turns in ten threads, of which people change and delete some, while gateway, supervisor, agents and Discord are killed, stopped, limited and cut off at random;
//! judged from what Discord kept.
//!
//! `ACP_TEST_SEED` repeats a run as far as real processes allow: the same words and blows in the same order.
//! `ACP_DISCORD_TURNS` says how many turns (40 by default, 500 in `make nightly`).

mod judge;
mod plan;
mod report;
mod storm;

use acp_tests::fake_discord::core::faults::RestFate;
use acp_tests::fake_discord::core::settings::Rule;
use acp_tests::seed::Seed;
use judge::{Verdict, Wrong, judge};
use plan::{Blow, THREADS, Turn, plan, token};
use report::report;
use std::time::Instant;
use storm::Storm;

/// Turns of a run, unless the environment says otherwise.
const TURNS: usize = 40;
/// In a run of five hundred turns so many kills fall between a message and its receipt, at the least.
const FULL: (usize, usize) = (500, 100);

/// Point 2 of what must be shown. What may be seen: see [`judge`].
#[test]
fn heavy_every_answer_appears_once_under_chaos() {
    let mut seed = Seed::new();
    let turns = std::env::var("ACP_DISCORD_TURNS").map_or(Ok(TURNS), |text| text.parse());
    let turns = turns.unwrap_or_else(|e| panic!("ACP_DISCORD_TURNS: {e}"));
    let steps = plan(seed.fork(), turns);
    let begun = Instant::now();
    let mut storm = Storm::new(THREADS);
    for (number, step) in steps.iter().enumerate() {
        storm.step(number, step);
    }
    let stormed = begun.elapsed();
    storm.settle(turns);
    let (between, tally) = (std::mem::take(&mut storm.between), std::mem::take(&mut storm.tally));
    let (case, kept) = storm.end();
    let verdict = judge(&case, &kept);
    eprintln!("{turns} turns in {stormed:?}, over after {:?}: {tally:?}", begun.elapsed());
    let Verdict { answered, failed, anew, withdrawn, .. } = verdict;
    eprintln!(
        "{answered} answered, of them {anew} as changed; {failed} failed as they may; {withdrawn} taken back"
    );
    let held = between.iter().filter(|id| kept.iter().any(|message| message.id == **id)).count();
    eprintln!("{held} kills between a message and its receipt");
    assert!(verdict.wrong.is_empty(), "{}", report(&verdict.wrong, &case, &kept, &steps));
    assert_eq!(held, between.len(), "what Discord had kept is gone");
    let meant = steps.iter().filter(|step| step.blow == Blow::Between).count();
    assert!(held * 5 >= meant * 4, "{held} of {meant} kills found a message without a receipt");
    assert!(turns < FULL.0 || (anew > 0 && withdrawn > 0), "{anew} changed in time, {withdrawn} taken back");
    assert!(turns < FULL.0 || held >= FULL.1, "{held} kills between a message and its receipt");
}

/// Two turns in one thread, of which the answer to the first meets a fate; what the judge finds.
fn planted(rules_off: &[Rule], fate: RestFate) -> Vec<Wrong> {
    let mut storm = Storm::new(1);
    storm.stage.fake.disable_rules(rules_off);
    storm.next_create(fate);
    storm.say(0, token(0, 0), &Turn::quick(&token(0, 0)));
    storm.until_struck();
    storm.settle(1);
    let (case, kept) = storm.end();
    judge(&case, &kept).wrong
}

/// A request that arrives after its client gave it up is no second message, by its nonce alone. Where nonces mean
/// nothing it is one, and the judge sees it.
#[test]
fn heavy_judge_detects_duplicate_of_late_request_without_nonces() {
    let late = RestFate::Late { ms: 4_000 };
    assert_eq!(planted(&[], late), []);
    let found = planted(&[Rule::NonceDedupe], late);
    assert!(found.contains(&Wrong::Twice { what: token(0, 0) }), "{found:?}");
}

/// A service that loses what it took cannot be told from one that keeps it, but by what it shows afterwards.
#[test]
fn heavy_judge_detects_message_lost_by_discord() {
    assert_eq!(planted(&[], RestFate::Forgotten), [Wrong::Lost { token: token(0, 0) }]);
}
