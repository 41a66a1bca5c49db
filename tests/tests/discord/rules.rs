//! Rules of Discord, kept by the whole product: no request is refused for its form, and no answer is lost by Discord's
//! own rules. The table is in docs/design/requirements.md.

use crate::stage::{CREATE, LIVE, Stage, labels, texts};
use acp_tests::fake_discord::core::faults::{EventFate, RestFate, Scope, When};
use acp_tests::fake_discord::core::model::{Id, Interaction};
use acp_tests::fake_discord::core::permissions::ALL;
use acp_tests::fake_discord::core::settings::Rule;
use acp_tests::fake_discord::core::stage::PersonFile;
use acp_tests::house::AGENT;
use acp_tests::wait::{SOON, eventually, until};
use serde_json::json;

const PAGE: &str = "GET /channels/{}/messages";
const REACT: &str = "PUT /channels/{}/messages/{}/reactions/{}/@me";
const HOUR_MS: u64 = 3_600_000;

/// What a bot suggested.
fn suggested(stage: &Stage, used: &Interaction) -> Vec<String> {
    let answered = eventually(SOON, "suggestions answered", || stage.fake.interaction(used.id).answered);
    assert_eq!(answered.kind, 8, "{answered:?}");
    let choices = answered.data["choices"].as_array().cloned().unwrap_or_default();
    choices.iter().filter_map(|choice| Some(choice["name"].as_str()?.to_owned())).collect()
}

/// Waits `ms` by the service's clock.
fn pass(stage: &Stage, ms: u64) {
    let end = stage.fake.now() + ms;
    until(2 * SOON, "service clock advanced", || stage.fake.now() >= end);
}

/// Advances the service's clock without enforcing heartbeats.
fn later(stage: &Stage, ms: u64) {
    stage.fake.disable_rules(&[Rule::Heartbeats]);
    stage.fake.advance(ms);
}

/// Names, requests, answers, cards and suggestions of characters that count as two UTF-16 units.
#[test]
fn wide_characters_never_exceed_discord_limits() {
    let stage = Stage::new(&[], LIVE);
    let label = "😀".repeat(80);
    let thread = stage.spawn_of(AGENT, &[("label", json!(label))]);
    assert!(stage.fake.channel(thread).name.starts_with("😀"), "{:?}", stage.fake.channel(thread));
    let archive = stage.fake.channel(thread).thread.map(|thread| thread.auto_archive_minutes);
    assert_eq!(archive, Some(10_080));
    let typed = stage.fake.autocomplete(stage.ann, thread, &stage.bot, "acp status", ("session", ""));
    let shown = suggested(&stage, &typed.unwrap_or_else(|e| panic!("{e}")));
    assert!(shown.iter().any(|name| name.starts_with("😀")), "{shown:?}");
    let fence = format!("say ```text\\n{}\\n```", "🦀".repeat(900));
    let steps = [fence.as_str(), "say Wait.", "sleep 2500", &fence, &fence].join("\n");
    stage.fake.post(stage.ann, thread, &steps);
    until(SOON, "answer shown", || stage.finals(thread).len() == 1);
    // The card is folded after the answer is sent; until then it shows a part of it.
    until(SOON, "card folded", || texts(&stage.told(thread)).iter().any(|text| text.starts_with("Done")));
    let crabs = |text: &str| text.matches('🦀').count();
    let parts = texts(&stage.told(thread));
    let answer: Vec<&String> = parts.iter().filter(|text| !text.starts_with("Done")).collect();
    assert_eq!(answer.iter().map(|text| crabs(text)).sum::<usize>(), 2_700, "{parts:#?}");
    assert!(answer.iter().all(|text| text.matches("```").count() % 2 == 0), "{parts:#?}");
    stage.fake.post(stage.ann, thread, &format!("permission {}", "👩‍💻".repeat(300)));
    let asked = stage.said(thread, "The agent asks");
    assert_eq!(labels(&asked).len(), 4);
    stage.press(stage.boss, &asked, &labels(&asked)[0]);
    until(SOON, "answer shown", || stage.finals(thread).len() == 2);
    let tally = stage.fake.tally();
    assert_eq!((tally.refusals.len(), tally.rate_limited), (0, 0), "{tally:?}");
    stage.end();
}

/// A whole conversation, with only the permissions that docs/manual/discord.md lists.
#[test]
fn documented_permissions_are_sufficient() {
    let stage = Stage::new(&[], LIVE);
    let needed: Vec<String> = acp_discord::core::permissions::REQUIRED_PERMISSIONS
        .iter()
        .map(|(name, _)| name.to_uppercase().replace(' ', "_"))
        .collect();
    let known = |name: &String| ALL.iter().any(|(known, _)| known == name);
    assert!(needed.iter().all(known), "{needed:?}");
    let others: Vec<&str> =
        ALL.iter().map(|(name, _)| *name).filter(|name| !needed.iter().any(|it| it == name)).collect();
    let guild = stage.fake.channel(stage.channel).guild_id;
    stage.fake.deny(stage.bot.user, guild, &others);
    let thread = stage.spawn();
    let first = stage.exchange(thread, "say Begun.\nsleep 2500\nsay \\nOver.", &["Begun.\nOver."]);
    stage.reacted(first, thread, "✅");
    stage.fake.post(stage.ann, thread, "permission Write");
    let asked = stage.said(thread, "Write");
    stage.press(stage.boss, &asked, &labels(&asked)[0]);
    until(SOON, "answer shown", || stage.finals(thread).len() == 2);
    until(SOON, "buttons removed", || labels(&stage.message(asked.id, thread)).is_empty());
    stage.answer(&stage.command(stage.ann, thread, "acp close", &[]));
    stage.said(thread, "session is closed");
    let tally = stage.fake.tally();
    assert_eq!((tally.refusals.len(), tally.invalid), (0, 0), "{tally:?}");
    stage.end();
}

/// Refusals for missing permissions count towards the ban of the address, so they must not recur with every message.
#[test]
fn refused_reaction_is_not_retried_with_each_message() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.fake.deny(stage.bot.user, stage.channel, &["ADD_REACTIONS"]);
    let answers = ["0", "1", "2", "3", "4"];
    for (number, answer) in answers.iter().enumerate() {
        stage.exchange(thread, &format!("say {answer}"), &answers[..=number]);
    }
    // Reactions come after their answers.
    pass(&stage, 3_000);
    let refused = stage.fake.tally().refusals.get(&format!("{REACT} 50013")).copied();
    // The second reaction may have been under way when the first was refused.
    assert!(matches!(refused, Some(1 | 2)), "{refused:?}");
    stage.end();
}

/// Answers in a channel without access: one thread retries for all of them.
#[test]
fn denied_channel_is_retried_by_one_thread_at_a_time() {
    let more = "[acp]\nmax_concurrent_sessions = 20\nmax_concurrent_sessions_per_account = 20\n";
    let stage = Stage::new(&[], more);
    let threads: Vec<Id> = (0..6).map(|_| stage.spawn()).collect();
    for thread in &threads {
        stage.fake.post(stage.ann, *thread, "sleep 1500\nsay one");
    }
    until(SOON, "all turns running", || stage.house.prompts_received("sleep 1500\nsay one") == threads.len());
    stage.fake.deny(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    until(SOON, "turns ended", || stage.house.agent_events("turn_end").len() == threads.len());
    pass(&stage, 12_000);
    let refused = stage.fake.tally().refused_with(&[50001]);
    // Each thread once, with a reaction of each kind and a check before the first message; then one after 2, 4 and 8 s.
    assert!(refused <= 30, "{refused}: {:?}", stage.fake.tally().refusals);
    stage.fake.allow(stage.bot.user, stage.channel, &["VIEW_CHANNEL"]);
    threads.iter().for_each(|thread| stage.answers(*thread, &["one"]));
    stage.end();
}

/// A hanging request does not delay acknowledgements: Discord waits for three seconds.
#[test]
fn commands_are_acknowledged_while_a_request_hangs() {
    let entry = format!("[[bindings]]\nchannel = \"discord\"\nconversation = \"1\"\nagent = \"{AGENT}\"\n");
    let stage = Stage::new(&[], &entry);
    let guild = stage.fake.channel(stage.channel).guild_id;
    let elsewhere = stage.fake.add_channel(guild, "elsewhere");
    stage.fake.rest_fault("GET /channels/{}", When::Next(1), RestFate::StallBefore { ms: Some(8_000) });
    stage.fake.post(stage.ann, elsewhere, "is this for an agent?");
    let stalled = || stage.fake.tally().rest_faults.contains_key("stall_before");
    until(SOON, "channel request stalled", stalled);
    stage.answer(&stage.command(stage.ann, stage.channel, "agents", &[]));
    assert_eq!(stage.fake.tally().late_responses, 0);
    stage.end();
}

/// D7: answers pending when a token is refused are sent with the next token.
#[test]
fn answer_waits_for_accepted_token() {
    let (mut stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.fake.rest_fault(CREATE, When::Next(1), RestFate::ErrorBefore { status: 401 });
    stage.fake.post(stage.ann, thread, "say two");
    until(SOON, "request refused", || stage.fake.tally().requests.contains_key(&format!("{CREATE} 0")));
    until(SOON, "deferral logged", || stage.house.gateway_log().contains("part deferred by rate limit"));
    stage.restart_gateway();
    stage.answers(thread, &["one", "two"]);
    stage.end();
}

/// D12: an answer that waits for a rate limit does not unarchive a thread that a person archives meanwhile.
#[test]
fn rate_limited_answer_does_not_unarchive_thread() {
    const LIMIT_MS: u64 = 5_000;
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    let fate = RestFate::RateLimited { retry_after_ms: LIMIT_MS, scope: Scope::User };
    stage.fake.rest_fault(CREATE, When::Next(1), fate);
    stage.fake.post(stage.ann, thread, "say two");
    until(SOON, "delivery rate limited", || stage.fake.tally().rest_faults.contains_key("rate_limited"));
    stage.fake.archive(thread, true);
    pass(&stage, LIMIT_MS + 2_000);
    assert_eq!(stage.finals(thread), ["one"]);
    assert!(stage.is_archived(thread));
    stage.fake.archive(thread, false);
    stage.answers(thread, &["one", "two"]);
    stage.exchange(thread, "say three", &["one", "two", "three"]);
    stage.end();
}

/// A locked thread accepts no message; pending answers are sent after it is unlocked.
#[test]
fn answer_for_locked_thread_is_sent_after_unlock() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.begin_turn(thread, "sleep 1500\nsay one");
    stage.fake.lock(thread, true);
    until(SOON, "turn ended", || stage.house.agent_events("turn_end").len() == 1);
    assert_eq!(stage.finals(thread), [""; 0]);
    stage.fake.lock(thread, false);
    stage.answers(thread, &["one"]);
    stage.end();
}

/// H12: a message that arrived and was deleted by a person is not sent again, although its receipt was lost.
#[test]
fn deleted_message_with_lost_receipt_is_not_sent_again() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.fake.rest_fault(PAGE, When::Next(1), RestFate::StallBefore { ms: Some(2_000) });
    stage.fake.rest_fault(CREATE, When::Next(1), RestFate::LostAfter);
    stage.begin_turn(thread, "sleep 500\nsay two");
    stage.fake.event_fault("MESSAGE_CREATE", When::Next(1), EventFate::Drop);
    until(SOON, "message stored", || stage.finals(thread).len() == 2);
    let lost = stage.told(thread).pop().unwrap_or_else(|| panic!("nothing is there"));
    stage.fake.delete(lost.id);
    stage.exchange(thread, "say three", &["one", "three"]);
    let again = stage.fake.tally().refusals.get(&format!("{CREATE} 10008")).copied();
    assert_eq!(again, Some(1), "it was asked again with its nonce");
    let told = texts(&stage.told(thread));
    assert!(!told.iter().any(|text| text.contains("not shown here")), "it was: {told:#?}");
    stage.end();
}

/// URLs of attachments expire after a day; prompts queued for longer keep their attachments.
#[test]
fn attachment_is_kept_after_its_url_expires() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.begin_turn(thread, "say Begun.\nwait_cancel");
    let bytes = b"what-is-in-the-file".to_vec();
    let file = PersonFile { filename: "notes.txt".into(), content_type: Some("text/plain".into()), bytes };
    let with = stage.fake.post_with(stage.ann, thread, "say read", vec![file]);
    stage.reacted(with, thread, "⏳");
    later(&stage, 25 * HOUR_MS);
    stage.answer(&stage.command(stage.ann, thread, "acp cancel", &[]));
    until(SOON, "the agent has the file", || {
        let prompts = stage.house.received("session/prompt");
        prompts.iter().any(|prompt| prompt.to_string().contains("what-is-in-the-file"))
    });
    stage.end();
}

/// Interaction tokens expire after fifteen minutes: answers of turns do not use them.
#[test]
fn answer_outlives_expired_interaction_token() {
    let (stage, thread) = Stage::new(&["--steer"], LIVE).with_thread();
    stage.fake.post(stage.ann, thread, "say Begun.\nsleep 4000\nsay \\nOver.");
    let card = stage.said(thread, "Begun.");
    stage.answer(&stage.command(stage.ann, thread, "acp steer", &[("text", json!("say more"))]));
    later(&stage, HOUR_MS / 3);
    until(SOON, "answer shown", || stage.finals(thread).len() == 1);
    stage.shows(&card, "Done");
    let tally = stage.fake.tally();
    assert_eq!(tally.refused_with(&[10015, 10062, 50027]), 0, "{tally:?}");
    stage.end();
}

/// More messages were posted during the outage than one page holds.
#[test]
fn backfill_reads_all_pages() {
    let (mut stage, thread) = Stage::new(&[], "").with_thread();
    stage.exchange(thread, "say one", &["one"]);
    stage.house.kill_gateway();
    stage.fake.post(stage.ann, thread, "say first");
    for number in 0..210 {
        stage.fake.post(stage.eve, thread, &format!("say {number}"));
    }
    stage.fake.post(stage.ann, thread, "say last");
    stage.house.start_gateway();
    stage.is_there();
    stage.answers(thread, &["one", "first", "last"]);
    assert_eq!(stage.house.agent_events("prompt").len(), 3);
    stage.end();
}

/// At the server's limit of threads the reply says so, and the thread is created once there is room.
#[test]
fn thread_is_created_once_server_has_room() {
    let stage = Stage::new(&[], "");
    stage.fake.configure(json!({"active_threads_max": 0}));
    let cwd = stage.house.world.dir("work/project").display().to_string();
    let options = [("agent", json!(AGENT)), ("cwd", json!(cwd)), ("thread", json!("auto"))];
    let said = stage.answer(&stage.command(stage.ann, stage.channel, "acp spawn", &options));
    assert!(said.contains("160006") || said.contains("Maximum number of active threads"), "{said}");
    stage.fake.configure(json!({"active_threads_max": 10}));
    until(2 * SOON, "thread created", || !stage.fake.threads_of(stage.channel).is_empty());
    let thread = stage.fake.threads_of(stage.channel)[0].id;
    stage.exchange(thread, "say one", &["one"]);
    stage.end();
}

/// Changes during an outage are noticed before any message is sent: one thread was deleted, and one was archived while
/// its turn ran.
#[test]
fn missed_thread_deletion_and_archiving_are_noticed() {
    let mut stage = Stage::new(&[], "");
    let (gone, away) = (stage.spawn(), stage.spawn());
    let key = stage.key(gone);
    let text = "sleep 2500\nsay one";
    stage.begin_turn(away, text);
    stage.house.kill_gateway();
    stage.fake.delete_channel(gone);
    stage.fake.archive(away, true);
    until(SOON, "turn ended", || stage.house.agent_events("turn_end").len() == 1);
    stage.house.start_gateway();
    stage.is_there();
    until(SOON, "session closed", || stage.session_state(&key) == "closed");
    pass(&stage, 2_000);
    assert_eq!(stage.finals(away), [""; 0]);
    assert!(stage.is_archived(away));
    stage.fake.archive(away, false);
    stage.answers(away, &["one"]);
    stage.end();
}

/// D3: a thread deletion may send no event; the next message to it finds out.
#[test]
fn thread_deleted_without_event_ends_its_session() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    let key = stage.key(thread);
    stage.begin_turn(thread, "sleep 1500\nsay one");
    stage.fake.event_fault("THREAD_DELETE", When::Next(1), EventFate::Drop);
    stage.fake.delete_channel(thread);
    until(SOON, "session closed", || stage.session_state(&key) == "closed");
    stage.end();
}

#[test]
fn a_thread_outlives_its_first_message() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.fake.delete(thread);
    stage.exchange(thread, "say one", &["one"]);
    stage.end();
}

/// Typing indicators last ten seconds: they are repeated while the agent works, and not while it waits for an answer.
#[test]
fn typing_indicator_follows_agent_activity() {
    let (stage, thread) = Stage::new(&[], "").with_thread();
    stage.fake.post(stage.ann, thread, "sleep 10000\npermission Write");
    let typed = || stage.fake.tally().typing.get(&thread.to_string()).copied().unwrap_or_default();
    let asked = stage.said(thread, "Write");
    assert!(typed() >= 2, "it types, and types again: {}", typed());
    let before = typed();
    pass(&stage, 10_000);
    assert_eq!(typed(), before, "it waits for a person");
    stage.press(stage.boss, &asked, &labels(&asked)[0]);
    until(SOON, "answer shown", || stage.finals(thread).len() == 1);
    stage.end();
}
