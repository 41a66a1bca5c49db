//! Shards of one bot, each with its own connection and its own servers: as many as Discord recommends, or those of the
//! configuration.

use crate::stage::{Ground, Stage};
use acp_tests::fake_discord::core::model::Id;
use acp_tests::wait::{SOON, until};
use serde_json::json;
use std::cell::Cell;

/// Creates a server that belongs to the other of two shards.
fn other_shard(ground: &Ground<'_>) -> Id {
    let shard = |id: Id| (id >> 22) % 2;
    // Ids contain their time: one of a few belongs to the other shard.
    acp_tests::wait::eventually(SOON, "a server of the other shard", || {
        Some(ground.fake.add_guild("elsewhere")).filter(|id| shard(*id) != shard(ground.guild))
    })
}

#[test]
fn events_of_two_shards_are_handled_once() {
    let other = Cell::new(0);
    let mut stage = Stage::on(&[], |ground| {
        ground.fake.configure(json!({"shards": 2}));
        other.set(other_shard(ground));
        String::new()
    });
    let here = stage.channel;
    let there = stage.fake.add_channel(other.get(), "general");
    for user in [stage.ann, stage.bot.user] {
        stage.fake.add_member(other.get(), user);
    }
    // The second one begins five seconds after the first.
    until(SOON, "both shards connected", || stage.fake.tally().identifies == 2);
    let mut threads = Vec::new();
    for channel in [here, there] {
        stage.channel = channel;
        threads.push(stage.spawn());
    }
    for (number, thread) in threads.iter().enumerate() {
        stage.exchange(*thread, &format!("say shard {number}"), &[&format!("shard {number}")]);
    }
    // Both shards start again, and missed messages are read.
    stage.house.kill_gateway();
    for (number, thread) in threads.iter().enumerate() {
        stage.fake.post(stage.ann, *thread, &format!("say missed {number}"));
    }
    stage.house.start_gateway();
    for (number, thread) in threads.iter().enumerate() {
        stage.answers(*thread, &[&format!("shard {number}"), &format!("missed {number}")]);
    }
    for number in 0..2 {
        for text in [format!("say shard {number}"), format!("say missed {number}")] {
            assert_eq!(stage.house.prompts_received(&text), 1, "{text}");
        }
    }
    stage.end();
}

/// An account that names all of its shards needs no other gateway. A reload with another number of shards connects them anew,
/// and one with a part of them is refused: the store is a file.
#[test]
fn account_names_its_shards_and_changes_them_by_reload() {
    const TWO: &str = "shards = { from = 0, to = 2, of = 2 }";
    const ONE: &str = "shards = { from = 0, to = 1, of = 1 }";
    const PART: &str = "shards = { from = 0, to = 1, of = 2 }";
    let other = Cell::new(0);
    let mut stage = Stage::on(&[], |ground| {
        other.set(other_shard(ground));
        TWO.to_owned()
    });
    let here = stage.channel;
    let there = stage.fake.add_channel(other.get(), "general");
    for user in [stage.ann, stage.bot.user] {
        stage.fake.add_member(other.get(), user);
    }
    let identified = |stage: &Stage| {
        let all = stage.fake.tally().identified;
        all.into_iter().map(|session| (session.0, session.1)).collect::<Vec<_>>()
    };
    until(SOON, "both shards connected", || identified(&stage) == [(0, 2), (1, 2)]);
    until(SOON, "shards shown", || stage.doctor("main").contains("shards 0 to 1 of 2, 2 connected"));
    let mut threads = Vec::new();
    for channel in [here, there] {
        stage.channel = channel;
        threads.push(stage.spawn());
    }
    stage.replace_in_config(TWO, ONE);
    stage.reload_accounts();
    for (number, thread) in threads.iter().enumerate() {
        stage.exchange(*thread, &format!("say shard {number}"), &[&format!("shard {number}")]);
        assert_eq!(stage.house.prompts_received(&format!("say shard {number}")), 1);
    }
    assert_eq!(identified(&stage), [(0, 2), (1, 2), (0, 1)]);
    until(SOON, "shards shown", || stage.doctor("main").contains("shard 0 of 1, 1 connected"));

    let refused = |stage: &Stage| stage.house.gateway_log().contains("Set acp.control_plane.store");
    stage.replace_in_config(ONE, PART);
    stage.reload();
    until(SOON, "reload refused", || refused(&stage));
    stage.exchange(threads[0], "say after", &["shard 0", "after"]);
    stage.replace_in_config(PART, ONE);
    stage.reload_accounts();
    assert_eq!(identified(&stage).len(), 3, "nothing changed");
    stage.end();
}
