//! Number of backfill reads with many conversations and many events that may have missed messages.

use crate::stage::Stage;
use acp_shared::ids::BindingId;
use acp_tests::fake_discord::core::model::Id;
use acp_tests::house::GATEWAY;
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::GATEWAY_DB;
use rusqlite::Connection;
use std::time::{Duration, Instant};

const HISTORY: &str = "GET /channels/{}/messages";
/// Conversations of these tests: three refusals for each would block every request of the bot.
const MANY: usize = 200;
/// Longer than the delay before a backfill.
const QUIET: Duration = Duration::from_secs(4);

#[expect(
    clippy::disallowed_methods,
    reason = "nobody else has it open, and so many bindings by hand take minutes"
)]
fn database(stage: &Stage) -> Connection {
    let path = stage.house.world.path(GATEWAY).join(GATEWAY_DB);
    Connection::open(path).unwrap_or_else(|e| panic!("{e}"))
}

/// Stage with one session bound in many threads; the first is the session's own.
fn crowded() -> (Stage, Vec<Id>) {
    let mut stage = Stage::new(&[], "");
    let first = stage.spawn();
    stage.exchange(first, "say one", &["one"]);
    stage.house.kill_gateway();
    let others = (1..MANY).map(|n| stage.fake.make_thread(stage.ann, stage.channel, &format!("t{n}"), None));
    let others: Vec<Id> = others.collect();
    bind_like(&database(&stage), first, &others).unwrap_or_else(|e| panic!("{e}"));
    stage.house.start_gateway();
    stage.is_there();
    let threads: Vec<Id> = [vec![first], others].concat();
    until(LONG, "threads read after start", || reads(&stage) >= MANY as u64);
    settles(&stage);
    (stage, threads)
}

/// Binds threads to the session of another one, as if each had been bound by hand.
fn bind_like(db: &Connection, first: Id, others: &[Id]) -> rusqlite::Result<()> {
    const COLUMNS: &str = "channel, account_id, channel_id, session_key, target_kind, status, bound_by, bound_at, \
        last_activity_at, idle_ms, max_age_ms, metadata_json";
    let bind = format!(
        "INSERT INTO acp_bindings (binding_key, thread_id, {COLUMNS}) SELECT ?1, ?2, {COLUMNS} FROM acp_bindings \
         WHERE thread_id = ?3"
    );
    let told = "INSERT INTO acp_binding_checkpoint (binding_key, last_session_seq, updated_at) SELECT ?1, \
        last_session_seq, updated_at FROM acp_sessions";
    for other in others {
        let key = BindingId::mint().to_string();
        db.execute(&bind, [&key, &other.to_string(), &first.to_string()])?;
        db.execute(told, [&key])?;
    }
    Ok(())
}

/// Number of history reads.
fn reads(stage: &Stage) -> u64 {
    stage.fake.tally().requests_to(HISTORY)
}

/// Waits until nothing was read for a while.
fn settles(stage: &Stage) {
    let all = || reads(stage) + stage.fake.tally().requests_to("GET /channels/{}");
    let mut last = (all(), Instant::now());
    until(LONG, "no more history reads", || {
        if all() != last.0 {
            last = (all(), Instant::now());
        }
        last.1.elapsed() > QUIET
    });
}

/// Changes a role's permission that does not affect reading.
fn change_roles(stage: &Stage, times: usize) {
    for number in 0..times {
        let change = if number % 2 == 0 { "deny" } else { "allow" };
        match change {
            "deny" => stage.fake.deny(stage.bot.user, stage.guild, &["MANAGE_WEBHOOKS"]),
            _ => stage.fake.allow(stage.bot.user, stage.guild, &["MANAGE_WEBHOOKS"]),
        }
    }
}

/// A role change may have hidden messages: many changes at once cause one backfill.
#[test]
fn many_role_changes_cause_one_backfill() {
    let (stage, threads) = crowded();
    let before = reads(&stage);
    change_roles(&stage, 30);
    until(LONG, "threads read", || reads(&stage) >= before + MANY as u64);
    // New messages are answered at once, not after the reads.
    stage.fake.post(stage.ann, threads[0], "say two");
    stage.answers(threads[0], &["one", "two"]);
    settles(&stage);
    let read = reads(&stage) - before;
    assert!(read <= 2 * MANY as u64 + 20, "{read}");
    stage.end();
}

/// After lost access one thread is tried for its whole channel, and denied conversations are probed rarely: the refusals
/// do not block other requests. Messages are read after access returns.
#[test]
fn many_unreadable_threads_do_not_block_other_requests() {
    let (stage, threads) = crowded();
    stage.fake.deny(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    change_roles(&stage, 4);
    until(SOON, "doctor reports the problem", || {
        stage.house.cli(&["doctor"]).stdout.contains(&format!("{MANY} bound conversations cannot be read"))
    });
    change_roles(&stage, 4);
    settles(&stage);
    let last = threads[MANY - 1];
    stage.fake.post(stage.ann, last, "say hidden");
    let said = stage.house.cli(&["doctor"]).stdout;
    assert!(!said.contains("requests are paused"), "{said}");
    let tally = stage.fake.tally();
    // Refusals of the slow probe, and one or two of each round.
    assert!(tally.invalid <= 40, "{}: {:?}", tally.invalid, tally.refusals);
    stage.fake.allow(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    until(LONG, "hidden message answered", || stage.finals(last).contains(&"hidden".to_owned()));
    until(LONG, "all threads readable", || !stage.house.cli(&["doctor"]).stdout.contains("cannot be read"));
    stage.end();
}
