//! Sessions that agents spawn, in threads of their own next to the thread of their parent.

use crate::stage::{Stage, texts};
use acp_tests::fake_discord::core::faults::{RestFate, When};
use acp_tests::fake_discord::core::model::Id;
use acp_tests::house::{AGENT, GATEWAY, Plan, scripted};
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::World;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const FROM_MESSAGE: &str = "POST /channels/{}/messages/{}/threads";

/// Stage whose agent has the session tools, and whose spawned sessions get threads.
fn stage() -> Stage {
    let more = "thread_bindings = { spawn_subagent_sessions = true }\n";
    let build = |toml: &str| {
        let world = World::new();
        let mut agent = scripted(&world, &[], "ask");
        agent.settings.insert("session_tools".to_owned(), true.into());
        Plan::default().gateway(toml).build_in(world, &BTreeMap::from([(AGENT, agent)]))
    };
    Stage::of(AGENT, |_| more.to_owned(), build)
}

/// Posts a prompt whose turn spawns a session, and returns the new thread.
fn child(stage: &Stage, thread: Id, arguments: &Value) -> Id {
    let known: Vec<Id> = threads(stage);
    ask(stage, thread, arguments);
    eventually(SOON, "thread of the child", || threads(stage).into_iter().find(|id| !known.contains(id)))
}

fn ask(stage: &Stage, thread: Id, arguments: &Value) {
    stage.fake.post(stage.ann, thread, &format!("session_tool sessions_spawn {arguments}"));
}

fn threads(stage: &Stage) -> Vec<Id> {
    stage.fake.threads_of(stage.channel).into_iter().map(|thread| thread.id).collect()
}

/// Number of times that a text is in the messages of the bot in a thread.
fn count(stage: &Stage, thread: Id, text: &str) -> usize {
    texts(&stage.told(thread)).concat().matches(text).count()
}

/// Values of a column of the gateway's database, in order.
fn column(stage: &Stage, sql: &str) -> Vec<String> {
    let db = stage.house.world.journal(GATEWAY);
    let mut rows = db.prepare(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
    let values = rows.query_map([], |row| row.get(0)).and_then(Iterator::collect);
    values.unwrap_or_else(|e| panic!("{sql}: {e}"))
}

const COMPLETIONS: &str = "SELECT state FROM acp_completions ORDER BY rowid";

/// The permission request of a spawned session appears in a thread of its own, and its answer reaches the child. The call that
/// waits gets the child's text; one that does not wait gets a prompt. The parent's thread has each once.
#[test]
fn permission_request_of_a_spawned_session_is_answered_in_its_thread() {
    let (stage, thread) = stage().with_thread();
    let task = json!({"task": "permission Step 1", "mode": "persistent", "label": "helper", "wait_s": 60});
    let helper = child(&stage, thread, &task);
    let asked = stage.said(helper, "**Step 1** (execute)");
    let starter = stage.message(helper, stage.channel).content;
    let started_by = format!("started by session {}.", stage.key(thread));
    assert!(starter.starts_with("helper is bound here") && starter.contains(&started_by), "{starter}");
    assert_eq!(stage.fake.channel(helper).name, "helper");
    assert_eq!(count(&stage, thread, "Step 1"), 0, "not in the parent's thread");
    stage.press(stage.boss, &asked, "allow once");
    let said = "permission: selected allow_once";
    stage.answers(helper, &[said]);
    until(SOON, "parent answered", || stage.finals(thread).len() == 1);
    assert_eq!(count(&stage, thread, said), 1, "{:?}", texts(&stage.told(thread)));
    // The thread is bound like any other, to the person who bound the parent's.
    stage.exchange(helper, "say more", &[said, "more"]);
    let said = stage.answer(&stage.command(stage.ann, helper, "unfocus", &[]));
    assert!(said.contains("Unbound."), "{said}");

    let brief = child(&stage, thread, &json!({"task": "say brief"}));
    stage.answers(brief, &["brief"]);
    until(SOON, "end told", || stage.finals(thread).len() == 3);
    let told = "SELECT prompt FROM acp_runs WHERE prompt LIKE 'Session %, which you started, %brief'";
    assert_eq!(column(&stage, told).len(), 1);
    assert_eq!(column(&stage, COMPLETIONS), ["taken", "delivered"]);
    assert_eq!(threads(&stage).len(), 3);
    stage.end();
}

/// The gateway is killed before or after the creation of the thread: there is one session, one starter and one thread, and the
/// waiting call gets the child's text from the next gateway.
#[test]
fn thread_of_a_spawned_session_is_created_once_over_kills() {
    let (mut stage, thread) = stage().with_thread();
    let fates = [RestFate::StallBefore { ms: None }, RestFate::StallAfter { ms: None }];
    for (number, fate) in (1..).zip(fates) {
        let known = threads(&stage);
        let seen = stage.fake.tally().rest_faults.values().sum::<u64>();
        stage.fake.rest_fault(FROM_MESSAGE, When::Next(1), fate);
        let title = format!("Step {number}");
        let task = format!("permission {title}");
        ask(&stage, thread, &json!({"task": task, "mode": "persistent", "wait_s": 60}));
        until(SOON, "thread requested", || stage.fake.tally().rest_faults.values().sum::<u64>() > seen);
        stage.restart_gateway();
        let made = eventually(LONG, "thread of the child", || {
            threads(&stage).into_iter().find(|id| !known.contains(id))
        });
        let asked = stage.said(made, &format!("**{title}** (execute)"));
        stage.press(stage.boss, &asked, "allow once");
        stage.answers(made, &["permission: selected allow_once"]);
        until(LONG, "parent answered", || stage.finals(thread).len() == number);
        assert_eq!(count(&stage, thread, "permission: selected allow_once"), number, "once for each call");
        let received = stage.house.agent_events("prompt").into_iter();
        let received = received.filter(|entry| entry["text"].as_str().is_some_and(|it| it.ends_with(&task)));
        assert_eq!(received.count(), 1, "{task}");
    }
    let starters = texts(&stage.told(stage.channel));
    let starters = starters.iter().filter(|text| text.contains("is bound here")).count();
    assert_eq!((starters, threads(&stage).len()), (3, 3));
    assert_eq!(column(&stage, COMPLETIONS), ["taken", "taken"]);
    assert_eq!(column(&stage, "SELECT session_key FROM acp_sessions").len(), 3);
    stage.end();
}
