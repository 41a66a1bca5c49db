//! Real agents in threads: spawned by a command, asked, allowed, stopped, steered, killed with everything around them, and
//! closed. Run by `make test-foreign`, which installs them. Judged from what Discord kept, and from what the model was
//! asked.

use crate::stage::{Stage, labels, style, texts, untagged, without_footer};
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::fake_model::probe::FakeModel;
use acp_tests::foreign;
use acp_tests::house::Plan;
use acp_tests::lease::Lease;
use acp_tests::processes;
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::World;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A card that changes as often as it may.
const LIVE: &str = "[acp.stream]\ndelivery_mode = \"live\"\nmin_interval_ms = 500\ncoalesce_idle_ms = 750\n";
/// The style of a button that allows something once.
const SUCCESS: u64 = 3;
/// A turn that nobody waits for the end of.
const ENDLESS: &str = "[[chunks 5000 20ms]]";

/// A person's afternoon with one agent, in two threads.
struct Visit {
    stage: Stage,
    model: FakeModel,
    /// Where most of it happens, and where little does.
    thread: Id,
    other: Id,
    /// The answers that must stand in each, in order.
    want: BTreeMap<Id, Vec<String>>,
}

impl Visit {
    fn begin(agent: &'static str) -> Self {
        let world = World::new();
        let model = FakeModel::start(&world);
        let profile = foreign::agent(&world, agent, model.url());
        let agents = BTreeMap::from([(agent, profile)]);
        let stage = Stage::of(
            agent,
            |_| LIVE.to_owned(),
            |toml| Plan::default().gateway(toml).build_in(world, &agents),
        );
        let (thread, other) = (stage.spawn(), stage.spawn());
        assert_ne!(stage.key(thread), stage.key(other), "each thread has a session of its own");
        Self {
            stage,
            model,
            thread,
            other,
            want: BTreeMap::from([(thread, Vec::new()), (other, Vec::new())]),
        }
    }

    /// Somebody writes into a thread; the answer to it will be this.
    fn say(&mut self, thread: Id, text: &str, answer: &str) -> Id {
        self.want.entry(thread).or_default().push(answer.to_owned());
        self.stage.fake.post(self.stage.ann, thread, text)
    }

    /// Waits until the answers in both threads are those that were asked for, each once, whole and in order.
    fn answered(&self) {
        for (thread, want) in &self.want {
            until(LONG, "every answer", || self.whole(*thread).len() >= want.len());
            let got = self.whole(*thread);
            assert_eq!(got, *want, "{:#?}", texts(&self.stage.told(*thread)));
        }
    }

    /// The answers in a thread, those that came in several messages put together.
    fn whole(&self, thread: Id) -> Vec<String> {
        let (mut answers, mut parts) = (Vec::new(), Vec::new());
        for message in self.stage.told(thread) {
            match without_footer(&message.content, self.stage.agent) {
                Some(last) => {
                    parts.push(last.to_owned());
                    answers.push(std::mem::take(&mut parts).join(" "));
                }
                None if message.content.starts_with('w') => parts.push(untagged(&message.content).to_owned()),
                None => {}
            }
        }
        answers
    }

    /// Begins a turn, and waits until some of it is shown in its card.
    fn under_way(&self, thread: Id, text: &str) -> Message {
        let before = self.stage.told(thread).len();
        self.stage.fake.post(self.stage.ann, thread, text);
        eventually(LONG, "the card shows the turn", || {
            let told = self.stage.told(thread);
            let card = told.into_iter().skip(before).find(|it| labels(it) == ["Stop"]);
            card.filter(|card| card.content.contains("w5 "))
        })
    }

    fn asked(&self, script: &str) -> Option<Value> {
        self.model.request_with_script(script)
    }

    fn lease(&self, thread: Id) -> Lease {
        self.stage.house.lease(&self.stage.key(thread))
    }

    /// What the agent calls the conversation of a thread.
    fn conversation(&self, thread: Id) -> String {
        let shown = self.stage.house.verb(&["sessions", "show", &self.stage.key(thread)]);
        shown["agent_session_id"].as_str().unwrap_or_else(|| panic!("no conversation: {shown}")).to_owned()
    }
}

fn words(count: u32) -> String {
    (1..=count).map(|n| format!("w{n}")).collect::<Vec<_>>().join(" ")
}

/// Several turns; one of them asks, and is allowed by a click.
fn speaks_and_writes(visit: &mut Visit) {
    let (thread, other) = (visit.thread, visit.other);
    visit.say(thread, "[[say Good afternoon.]]", "Good afternoon.");
    visit.say(other, "[[say Somewhere else.]]", "Somewhere else.");
    visit.answered();
    visit.say(thread, "[[chunks 120 5ms]]", &words(120));
    visit.answered();

    let file = visit.stage.house.world.path("work/project/answer.txt");
    let script = format!("[[write {} forty two]] [[say It is written.]]", file.display());
    let prompt = visit.say(thread, &script, "It is written.");
    let asked = visit.stage.said(thread, "asks for a permission");
    assert!(!file.exists(), "nothing is written before it is allowed");
    let once: Vec<String> = labels(&asked).into_iter().filter(|it| style(&asked, it) == SUCCESS).collect();
    let [once] = &once[..] else { panic!("one button allows once: {asked:?}") };
    visit.stage.press(visit.stage.boss, &asked, once);
    visit.answered();
    let settled = visit.stage.shows(&asked, "Answered: ");
    assert!(settled.content.contains("boss"), "{}", settled.content);
    until(SOON, "its buttons are gone", || labels(&visit.stage.message(asked.id, thread)).is_empty());
    assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), Some("forty two"));
    visit.stage.reacted(prompt, thread, "✅");
    let asked = visit.asked(&script).unwrap_or_default();
    assert_eq!(asked["tool_results"], 1, "the model saw the tool's result: {asked}");
}

/// A turn that is stopped by the button of its card, and one by a command. The agent is the same afterwards.
fn is_stopped(visit: &mut Visit) {
    let before = visit.lease(visit.thread).adapter_pid();
    for by_button in [true, false] {
        let thread = visit.thread;
        let card = visit.under_way(thread, ENDLESS);
        let (ann, stage) = (visit.stage.ann, &visit.stage);
        if by_button {
            stage.press(ann, &card, "Stop");
        } else {
            stage.answer(&stage.command(ann, thread, "acp cancel", &[]));
        }
        let number = visit.want[&thread].len();
        let told = eventually(LONG, "that it was cancelled", || visit.whole(thread).get(number).cloned());
        let said = told.strip_suffix("\n\nThe turn was cancelled. Send a message to continue.");
        let said = said.unwrap_or_else(|| panic!("cancelled: {told}"));
        assert!(words(5_000).starts_with(said), "{said}");
        let folded = stage.shows(&card, "Cancelled");
        assert!(labels(&folded).is_empty(), "{folded:?}");
        let aborted = || visit.asked(ENDLESS).is_some_and(|line| line["state"] == "aborted");
        until(SOON, "the agent has hung up on the model", aborted);
        visit.want.entry(thread).or_default().push(told);
        visit.say(thread, "[[say Still here.]]", "Still here.");
        visit.answered();
    }
    assert_eq!(visit.lease(visit.thread).adapter_pid(), before, "no process was touched");
}

/// A word put in while the agent is at work: where it cannot take it, it waits and is the next prompt.
fn is_steered(visit: &mut Visit) {
    let thread = visit.thread;
    visit.want.entry(thread).or_default().push(words(200));
    visit.under_way(thread, "[[chunks 200 20ms]]");
    let word = "[[say A word put in.]]";
    let used = visit.stage.command(visit.stage.ann, thread, "acp steer", &[("text", json!(word))]);
    let said = visit.stage.answer(&used);
    assert!(said.contains("queue") || said.contains("next prompt"), "{said}");
    visit.want.entry(thread).or_default().push("A word put in.".to_owned());
    visit.answered();
}

/// The gateway and Discord die in the middle of a turn: it goes on where it was, and what was said meanwhile is heard.
fn outlives_the_gateway(visit: &mut Visit) {
    let (thread, other) = (visit.thread, visit.other);
    let before = visit.lease(thread).adapter_pid();
    visit.want.entry(thread).or_default().push(words(400));
    visit.under_way(thread, "[[chunks 400 20ms]]");
    visit.stage.house.kill_gateway();
    visit.stage.fake.restart();
    visit.say(other, "[[say Said while it was away.]]", "Said while it was away.");
    visit.stage.house.start_gateway();
    visit.stage.is_there();
    visit.answered();
    assert_eq!(visit.lease(thread).adapter_pid(), before, "the agent never noticed");
}

/// Everything dies in the middle of a turn. That turn is said to have failed, and the conversation goes on: the agent
/// remembers it in another process.
fn outlives_everything(visit: &mut Visit) {
    let thread = visit.thread;
    let (conversation, before) = (visit.conversation(thread), visit.lease(thread));
    visit.under_way(thread, "[[chunks 400 20ms]]");
    visit.stage.house.kill_gateway();
    visit.stage.house.kill_supervisor();
    visit.stage.fake.kill();
    until(LONG, "the agent is gone with its supervisor", || before.processes().is_empty());
    visit.stage.fake.restart();
    visit.stage.house.start_supervisor();
    visit.stage.house.start_gateway();
    visit.stage.is_there();
    let script = "[[say I remember.]]";
    let number = visit.want[&thread].len();
    visit.stage.fake.post(visit.stage.ann, thread, script);
    until(LONG, "both answers", || visit.whole(thread).len() >= number + 2);
    let finals = visit.whole(thread);
    let (failed, next) = (finals[number].clone(), finals[number + 1].clone());
    assert!(failed.contains("The turn failed (") && failed.starts_with("w1 w2 w3 w4 w5 "), "{failed}");
    // An agent may put the prompt that was never answered before the next one, and the model answers both.
    let both = format!("{} I remember.", words(400));
    assert!(next == "I remember." || next == both, "{next}");
    visit.want.entry(thread).or_default().extend([failed, next]);
    visit.answered();
    let after = visit.lease(thread);
    assert_ne!((after.id(), after.adapter_pid()), (before.id(), before.adapter_pid()), "another process");
    assert_eq!(visit.conversation(thread), conversation, "and the same conversation");
    let heard = visit
        .model
        .log()
        .into_iter()
        .rfind(|line| line["script"].as_str().is_some_and(|it| it.ends_with(script)));
    let remembered = heard.map(|line| line["scripts_before"].clone());
    assert!(remembered.as_ref().and_then(Value::as_u64).is_some_and(|n| n >= 7), "{remembered:?}");
    visit.say(visit.other, "[[say Here too.]]", "Here too.");
    visit.answered();
}

/// Let go, taken up again, and closed: then nothing of it is alive.
fn is_let_go_and_closed(visit: &mut Visit) {
    let (thread, ann) = (visit.thread, visit.stage.ann);
    let key = visit.stage.key(thread);
    let said = visit.stage.answer(&visit.stage.command(ann, thread, "unfocus", &[]));
    assert!(said.contains(&key), "{said}");
    let unheard = "[[say Nobody hears this.]]";
    visit.stage.fake.post(ann, thread, unheard);
    let focus = visit.stage.command(ann, thread, "focus", &[("session", json!(key))]);
    let said = visit.stage.answer(&focus);
    assert!(said.contains(&key), "{said}");
    visit.say(thread, "[[say Heard again.]]", "Heard again.");
    visit.answered();
    assert!(visit.asked(unheard).is_none(), "what was said to nobody reached nobody");
    for thread in [thread, visit.other] {
        let lease = visit.lease(thread);
        visit.stage.answer(&visit.stage.command(ann, thread, "acp close", &[]));
        visit.stage.said(thread, "session is closed");
        visit.stage.house.wait_for_lease_end(&lease);
        assert!(!processes::is_alive(lease.adapter_pid()));
    }
}

/// From what Discord kept alone: every answer once in its own thread, and in the channel nothing but what began them.
fn judge(visit: Visit) {
    visit.answered();
    let Visit { stage, model, thread, other, .. } = visit;
    let ours = stage.told(stage.channel).into_iter().filter(|it| it.origin.is_none());
    assert!(ours.map(|it| it.id).eq([thread, other]), "{:#?}", texts(&stage.told(stage.channel)));
    for thread in [thread, other] {
        let told = stage.told(thread);
        for once in told.iter().filter(|it| it.content.contains(" · ")) {
            let same = told.iter().filter(|it| it.nonce.is_some() && it.nonce == once.nonce).count();
            assert_eq!(same, 1, "{once:?}");
        }
        assert!(told.iter().all(|it| labels(it).is_empty()), "nothing can be pressed any more: {told:#?}");
        println!("--- {thread}");
        stage.fake.transcript(thread).iter().for_each(|it| println!("{}: {}", it.author_id, it.content));
    }
    drop(model);
    stage.end();
}

fn afternoon(agent: &'static str) {
    let mut visit = Visit::begin(agent);
    speaks_and_writes(&mut visit);
    is_stopped(&mut visit);
    is_steered(&mut visit);
    outlives_the_gateway(&mut visit);
    outlives_everything(&mut visit);
    is_let_go_and_closed(&mut visit);
    judge(visit);
}

#[test]
#[ignore = "needs installed agents: make test-foreign"]
fn qwen_code_works_in_a_thread() {
    afternoon("qwen");
}
