//! Real agents in threads: spawned by a command, asked, allowed, stopped, steered, killed with everything around them, and
//! closed. Run by `make test-foreign`, which installs them. Judged from what Discord kept, and from what the model was
//! asked.

use crate::stage::{LIVE, Stage, labels, style, texts, untagged, without_footer};
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

/// The style of a button that allows something once.
const SUCCESS: u64 = 3;
/// Turn that is too long to wait for.
const ENDLESS: &str = "[[chunks 5000 20ms]]";

/// Scenario with one agent in two threads.
struct Visit {
    stage: Stage,
    model: FakeModel,
    /// Main thread and second thread.
    thread: Id,
    other: Id,
    /// Expected answers of each thread, in order.
    want: BTreeMap<Id, Vec<String>>,
}

impl Visit {
    fn begin(agent: &'static str) -> Self {
        let world = World::new();
        let model = FakeModel::start(&world);
        let profile = foreign::agent(&world, agent, model.url());
        let agents = BTreeMap::from([(agent, profile)]);
        let build = |toml: &str| Plan::default().gateway(toml).build_in(world, &agents);
        let (stage, thread) = Stage::of(agent, |_| LIVE.to_owned(), build).with_thread();
        let other = stage.spawn();
        assert_ne!(stage.key(thread), stage.key(other), "each thread has a session of its own");
        let want = BTreeMap::from([(thread, Vec::new()), (other, Vec::new())]);
        Self { stage, model, thread, other, want }
    }

    /// Posts a message whose answer will be `answer`.
    fn say(&mut self, thread: Id, text: &str, answer: &str) -> Id {
        self.want.entry(thread).or_default().push(answer.to_owned());
        self.stage.fake.post(self.stage.ann, thread, text)
    }

    /// Waits for the expected answers in both threads, each once, whole and in order.
    fn answered(&self) {
        for (thread, want) in &self.want {
            until(LONG, "all answers shown", || self.whole(*thread).len() >= want.len());
            let got = self.whole(*thread);
            assert_eq!(got, *want, "{:#?}", texts(&self.stage.told(*thread)));
        }
    }

    /// Answers in a thread, with their parts joined.
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

    /// Starts a turn and waits until its card shows a part of it.
    fn under_way(&self, thread: Id, text: &str) -> Message {
        let before = self.stage.told(thread).len();
        self.stage.fake.post(self.stage.ann, thread, text);
        eventually(LONG, "card shows the turn", || {
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

    /// The agent's session id of a thread.
    fn conversation(&self, thread: Id) -> String {
        let shown = self.stage.house.verb(&["sessions", "show", &self.stage.key(thread)]);
        shown["agent_session_id"].as_str().unwrap_or_else(|| panic!("no conversation: {shown}")).to_owned()
    }
}

fn words(count: u32) -> String {
    (1..=count).map(|n| format!("w{n}")).collect::<Vec<_>>().join(" ")
}

/// Several turns, one with a permission request that a click allows.
fn speaks_and_writes(visit: &mut Visit) {
    let (thread, other) = (visit.thread, visit.other);
    visit.say(thread, "[[say Good afternoon.]]", "Good afternoon.");
    visit.say(other, "[[say Somewhere else.]]", "Somewhere else.");
    visit.answered();
    visit.say(thread, "[[chunks 120 5ms]]", &words(120));
    visit.answered();

    let file = visit.stage.house.world.path("work/project/answer.txt");
    let script = format!("[[write {} forty two]] [[say It is written.]]", file.display());
    // Qwen Code writes through the gateway: the answer says so.
    let answer = format!("[host] write {}\\: allowed\n\nIt is written.", file.display());
    let prompt = visit.say(thread, &script, &answer);
    let asked = visit.stage.said(thread, "asks for a permission");
    assert!(!file.exists(), "nothing is written before it is allowed");
    let once: Vec<String> = labels(&asked).into_iter().filter(|it| style(&asked, it) == SUCCESS).collect();
    let [once] = &once[..] else { panic!("one button allows once: {asked:?}") };
    visit.stage.press(visit.stage.boss, &asked, once);
    visit.answered();
    let settled = visit.stage.shows(&asked, "Answered: ");
    assert!(settled.content.contains("boss"), "{}", settled.content);
    until(SOON, "buttons removed", || labels(&visit.stage.message(asked.id, thread)).is_empty());
    assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), Some("forty two"));
    visit.stage.reacted(prompt, thread, "✅");
    let asked = visit.asked(&script).unwrap_or_default();
    assert_eq!(asked["tool_results"], 1, "the model saw the tool's result: {asked}");
}

/// Turns stopped by the card's button and by a command; the agent process stays the same.
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
        let told = eventually(LONG, "cancellation notice shown", || visit.whole(thread).get(number).cloned());
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

/// Steering a busy agent that cannot take it: the text is queued as the next prompt.
fn is_steered(visit: &mut Visit) {
    let thread = visit.thread;
    visit.want.entry(thread).or_default().push(words(200));
    visit.under_way(thread, "[[chunks 200 20ms]]");
    let word = "[[say A word put in.]]";
    let options = [("text", json!(word))];
    let said = visit.stage.answer(&visit.stage.command(visit.stage.ann, thread, "acp steer", &options));
    assert!(said.contains("queue") || said.contains("next prompt"), "{said}");
    visit.want.entry(thread).or_default().push("A word put in.".to_owned());
    visit.answered();
}

/// Gateway and Discord are killed during a turn: it continues, and messages posted meanwhile are answered.
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
    assert_eq!(visit.lease(thread).adapter_pid(), before, "the agent process is the same");
}

/// All services are killed during a turn: the turn fails with a notice, and another process resumes the conversation.
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
    until(LONG, "both answers shown", || visit.whole(thread).len() >= number + 2);
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
    let is_last = |line: &Value| line["script"].as_str().is_some_and(|it| it.ends_with(script));
    let heard = visit.model.log().into_iter().rfind(is_last);
    let remembered = heard.map(|line| line["scripts_before"].clone());
    assert!(remembered.as_ref().and_then(Value::as_u64).is_some_and(|n| n >= 7), "{remembered:?}");
    visit.say(visit.other, "[[say Here too.]]", "Here too.");
    visit.answered();
}

/// Unbound, bound again and closed: no process is left.
fn is_let_go_and_closed(visit: &mut Visit) {
    let (thread, ann) = (visit.thread, visit.stage.ann);
    let key = visit.stage.key(thread);
    let said = visit.stage.answer(&visit.stage.command(ann, thread, "unfocus", &[]));
    assert!(said.contains(&key), "{said}");
    let unheard = "[[say Nobody hears this.]]";
    visit.stage.fake.post(ann, thread, unheard);
    let said = visit.stage.answer(&visit.stage.command(ann, thread, "focus", &[("session", json!(key))]));
    assert!(said.contains(&key), "{said}");
    visit.say(thread, "[[say Heard again.]]", "Heard again.");
    visit.answered();
    assert!(visit.asked(unheard).is_none(), "a message in an unbound thread reaches no agent");
    for thread in [thread, visit.other] {
        let lease = visit.lease(thread);
        visit.stage.answer(&visit.stage.command(ann, thread, "acp close", &[]));
        visit.stage.said(thread, "session is closed");
        visit.stage.house.wait_for_lease_end(&lease);
        assert!(!processes::is_alive(lease.adapter_pid()));
    }
}

/// Judges the stored transcript: every answer once in its own thread, and only starters in the channel.
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
