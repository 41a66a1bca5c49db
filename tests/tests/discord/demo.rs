//! The built-in demo agent in a thread, from its spawn to its end, as docs/manual/discord.md describes it. The
//! picture there shows this run: `make picture`.

use crate::stage::{LIVE, Stage, labels};
use acp_tests::fake_discord::core::model::message_flag::{EPHEMERAL, LOADING};
use acp_tests::fake_discord::core::model::message_kind::THREAD_STARTER;
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::fake_discord::store::Store;
use acp_tests::house::Plan;
use acp_tests::wait::{LONG, SOON, eventually, until};
use acp_tests::world::World;
use serde_json::json;
use std::collections::BTreeMap;

const CODE: &str = "What is no directive comes back as it is:\n\
    ```rust\nfn main() {\n    println!(\"Hello from a thread.\");\n}\n```";
const ASKING: &str =
    "tool\nI have looked around, and write it down.\nslow 3000\nwrite notes.md The tests come first.";

/// Expected answers in a thread so far, each once and in order.
struct Talk<'a> {
    stage: &'a Stage,
    thread: Id,
    want: Vec<String>,
}

impl Talk<'_> {
    fn say(&mut self, text: &str, answer: &str) -> Id {
        self.want.push(answer.to_owned());
        self.stage.fake.post(self.stage.ann, self.thread, text)
    }

    fn answered(&self) {
        let want: Vec<&str> = self.want.iter().map(String::as_str).collect();
        self.stage.answers(self.thread, &want);
    }

    /// The approver answers the request with this option.
    fn allow(&self, about: &str, label: &str) {
        let asked = self.stage.said(self.thread, about);
        assert_eq!(labels(&asked), ["Allow", "Allow from now on", "Reject"]);
        self.stage.press(self.stage.boss, &asked, label);
        self.stage.shows(&asked, &format!("Answered: “{label}” (by “boss”)."));
    }
}

/// Checks the buttons of the thread, and writes the thread as JSON to the file that `ACP_PICTURE` names.
fn record_thread(stage: &Stage, thread: Id) {
    let stored = Store::open(Some(stage.fake.store())).and_then(|store| store.load());
    let (world, _) = stored.unwrap_or_else(|e| panic!("{e}"));
    let shown =
        |message: &&Message| message.deleted_ms.is_none() && message.flags & (EPHEMERAL | LOADING) == 0;
    // The message that the thread was started from stands in place of its reference.
    let resolved = |message: &Message| match message.kind {
        THREAD_STARTER => world.messages.get(thread).cloned(),
        _ => Some(message.clone()),
    };
    let messages: Vec<Message> = world.messages_of(thread).filter(shown).filter_map(resolved).collect();
    let buttons: Vec<String> = messages.iter().flat_map(labels).collect();
    assert_eq!(buttons, ["Stop", "Steer now", "Drop", "Allow", "Allow from now on", "Reject"]);
    if let Some(path) = std::env::var_os("ACP_PICTURE") {
        let users: Vec<_> = world.users.iter().collect();
        let name = |id: Id| world.channel(id).unwrap_or_else(|e| panic!("{e:?}")).name.clone();
        let parent = world.channel(thread).ok().and_then(|thread| thread.parent_id).map(name);
        let record =
            json!({ "channel": parent, "thread": name(thread), "users": users, "messages": messages });
        // The directory of this run is no part of the picture.
        let text =
            format!("{record:#}\n").replace(&stage.house.world.path("work").display().to_string(), "/srv");
        std::fs::write(path, text).unwrap_or_else(|e| panic!("{e}"));
    }
}

fn asks_and_waits(talk: &mut Talk<'_>) {
    let (stage, thread) = (talk.stage, talk.thread);
    let first = talk.say("write hello.txt Hello from a thread.", "Wrote hello.txt.");
    talk.allow("Write hello.txt", "Allow");
    talk.answered();
    stage.reacted(first, thread, "✅");
    let written = std::fs::read_to_string(stage.house.world.path("work/project/hello.txt"));
    assert_eq!(written.ok().as_deref(), Some("Hello from a thread."));
    talk.say(CODE, CODE);
    talk.answered();

    let asking = talk.say(ASKING, "I have looked around, and write it down. Wrote notes.md.");
    let card = stage.said(thread, "I have looked around");
    let waiting = talk.say("And then say good bye.", "And then say good bye.");
    stage.said(thread, "Write notes.md");
    stage.shows(&card, "Waiting for a permission: 2 tool calls (1 edit, 1 search)");
    stage.reacted(asking, thread, "👀");
    stage.reacted(waiting, thread, "⏳");
    until(SOON, "queue notice shown", || {
        stage.told(thread).iter().any(|it| labels(it) == ["Steer now", "Drop"])
    });
    record_thread(stage, thread);
    talk.allow("Write notes.md", "Allow");
    talk.answered();
    stage.shows(&card, "Done");
}

fn is_stopped_and_steered(talk: &mut Talk<'_>) {
    let (stage, thread) = (talk.stage, talk.thread);
    talk.say("Begun.\nslow 60000", "Begun.\n\nThe turn was cancelled. Send a message to continue.");
    let card = stage.said(thread, "Begun.");
    assert_eq!(labels(&card), ["Stop"]);
    stage.press(stage.ann, &card, "Stop");
    talk.answered();
    assert!(labels(&stage.shows(&card, "Cancelled")).is_empty(), "nothing can be pressed any more");
    // Longer than the rate limit for new messages may delay a card.
    talk.say("slow 9000\nEnded.", "[steered: look here]\nEnded.");
    stage.said(thread, "Working");
    stage.answer(&stage.command(stage.ann, thread, "acp steer", &[("text", json!("look here"))]));
    talk.answered();
}

#[test]
fn demo_agent_works_in_a_thread() {
    let build = |toml: &str| Plan::default().gateway(toml).build_in(World::new(), &BTreeMap::new());
    let (mut stage, thread) = Stage::of("demo", |_| LIVE.to_owned(), build).with_thread();
    let mut talk = Talk { stage: &stage, thread, want: Vec::new() };
    asks_and_waits(&mut talk);
    is_stopped_and_steered(&mut talk);
    let mut want = talk.want;

    // All services are killed during a turn: the turn fails with a notice, and the conversation continues.
    stage.fake.post(stage.ann, thread, "Under way.\nslow 60000");
    stage.said(thread, "Under way.");
    stage.house.kill_gateway();
    stage.house.kill_supervisor();
    stage.fake.restart();
    stage.house.start_supervisor();
    stage.house.start_gateway();
    stage.is_there();
    let number = want.len();
    let failed = eventually(LONG, "failure notice shown", || stage.finals(thread).get(number).cloned());
    assert!(failed.starts_with("Under way.") && failed.contains("The turn failed ("), "{failed}");
    want.push(failed);
    let mut talk = Talk { stage: &stage, thread, want };
    talk.say("Still here?", "Still here?");
    talk.answered();

    let key = stage.key(thread);
    let said = stage.answer(&stage.command(stage.ann, thread, "unfocus", &[]));
    assert!(said.contains(&key), "{said}");
    stage.answer(&stage.command(stage.ann, thread, "focus", &[("session", json!(key))]));
    talk.say("And now?", "And now?");
    talk.answered();
    stage.answer(&stage.command(stage.ann, thread, "acp close", &[]));
    stage.said(thread, "session is closed");
    talk.answered();
    let ours = stage.told(stage.channel).into_iter().filter(|it| it.origin.is_none());
    assert!(ours.map(|it| it.id).eq([thread]), "nothing but the starter is in the channel");
    stage.end();
}
