//! Tests of the judge with valid transcripts and with every kind of error.

use super::*;
use serde_json::json;

const BOT: Id = 1;
const ANN: Id = 2;
const PARENT: Id = 10;
const ONE: Id = 11;
const TWO: Id = 12;
const LINE: &str = "\n-# scripted · 2s";
const FAILURE: &str = "The turn failed (ACP_TURN_FAILED): The agent exited.\nNext: send it again.";

/// Messages of a run: `tok-1-1` to `tok-1-3` in the first thread, `tok-2-1` in the second.
fn case() -> Case {
    let said = |thread: Id, token: &str, at_ms: u64| Said {
        thread,
        token: token.to_owned(),
        prompt: format!("ask {token}"),
        answer: format!("{token} begins\n{token} ends"),
        at_ms,
        asks: token == "tok-1-2",
        may_be_late: false,
        amended: None,
    };
    let said = vec![
        said(ONE, "tok-1-1", 100),
        said(ONE, "tok-1-2", 200),
        said(ONE, "tok-1-3", 300),
        said(TWO, "tok-2-1", 400),
    ];
    let received = said.iter().map(|said| (said.prompt.clone(), 1)).collect();
    Case {
        bot: BOT,
        parent: PARENT,
        threads: vec![ONE, TWO],
        before: BTreeSet::from([5, 6]),
        said,
        presses: BTreeMap::from([(ONE, 1)]),
        strikes: Vec::new(),
        received,
    }
}

/// A message of the bot's, made at 1,000 and later in the order of the transcript.
fn message(channel_id: Id, text: &str) -> Message {
    Message { channel_id, author_id: BOT, content: text.to_owned(), ..Message::default() }
}

fn answer(channel_id: Id, token: &str) -> Message {
    message(channel_id, &format!("{token} begins\n{token} ends{LINE}"))
}

/// Answer to a message of the first thread.
fn one(number: u64) -> Message {
    answer(ONE, &format!("tok-1-{number}"))
}

/// Transcript of a run without errors.
fn good() -> Vec<Message> {
    vec![one(1), one(2), one(3), answer(TWO, "tok-2-1")]
}

/// Valid transcript with tagged answers and an answer in two parts.
fn tagged() -> Vec<Message> {
    let mut all = good();
    all[0].content.push_str("\n-# k3fQ9a");
    all[3] = message(TWO, "tok-2-1 begins\n-# 0KgEgN");
    all.push(message(TWO, &format!("tok-2-1 ends{LINE}\n-# pQuWNe")));
    all
}

/// Adds ids, times and nonces.
fn kept(transcript: Vec<Message>) -> Vec<Message> {
    let mut out = vec![
        Message { id: 5, ..message(PARENT, "scripted is bound here") },
        Message { id: 6, kind: THREAD_STARTER, ..message(ONE, "") },
        Message { id: 7, author_id: ANN, ..message(ONE, "ask tok-1-1") },
    ];
    for (number, mut message) in (100..).zip(transcript) {
        message.id = number;
        message.created_ms = 1_000 + number;
        message.nonce.get_or_insert(json!(format!("n{number}")));
        out.push(message);
    }
    out
}

fn verdict(case: &Case, transcript: Vec<Message>) -> Verdict {
    judge(case, &kept(transcript))
}

fn replaced(at: usize, with: impl IntoIterator<Item = Message>) -> Vec<Message> {
    let mut all = good();
    all.splice(at..=at, with);
    all
}

/// Valid transcript with another message at its end.
fn also(message: Message) -> Vec<Message> {
    [good(), vec![message]].concat()
}

/// Settled permission request without buttons.
fn question(token: &str) -> Message {
    message(ONE, &format!("The agent asks for a permission: {token}\n\nAnswered: “allow-once” (by “boss”)."))
}

/// Public notice about a press whose acknowledgement a kill prevented.
fn late_press(thread: Id) -> Message {
    message(thread, "`/acp answer` of boss was executed late.")
}

/// Notices that a message was queued and dropped.
fn dropped() -> Vec<Message> {
    let waited = message(ONE, "The agent is busy: queued behind 1.\nIt was dropped or cancelled.");
    vec![waited, message(ONE, "A queued prompt was cancelled before its turn.\n-# k3fQ9a")]
}

/// A button on a message.
fn with_button(message: Message) -> Message {
    let button = json!({"type": 2, "label": "Stop", "style": 4, "custom_id": "x"});
    Message { components: vec![json!({"type": 1, "components": [button]})], ..message }
}

fn failed(told: &str) -> Message {
    message(ONE, format!("{told}{FAILURE}{LINE}").trim_start())
}

#[test]
fn judge_accepts_valid_transcripts() {
    let strike = Strike { thread: Some(ONE), from_ms: 150, until_ms: 250 };
    let all = Strike { thread: None, ..strike };
    let parts = vec![message(ONE, "tok-1-2 begins"), message(ONE, &format!("tok-1-2 ends{LINE}"))];
    let waits = message(ONE, "The agent is busy: queued behind 1.\nIt has started.");
    for (what, strikes, transcript, want) in [
        ("every answer", vec![], good(), (4, 0)),
        ("answers that say what others say", vec![], tagged(), (4, 0)),
        ("an answer in two messages", vec![], replaced(1, parts), (4, 0)),
        (
            "a line about the turn alone",
            vec![],
            replaced(1, [message(ONE, "tok-1-2 begins\ntok-1-2 ends"), message(ONE, "-# scripted")]),
            (4, 0),
        ),
        ("that a message waits", vec![], replaced(1, [waits, one(2)]), (4, 0)),
        ("a failure with a beginning", vec![strike], replaced(1, [failed("tok-1-2 begins\n\n")]), (3, 1)),
        ("a failure with nothing before it", vec![all], replaced(0, [failed("")]), (3, 1)),
        (
            "two failures with nothing before them",
            vec![all, strike],
            [vec![failed(""), failed("")], good().split_off(2)].concat(),
            (2, 2),
        ),
        (
            "that an agent ended",
            vec![strike],
            replaced(1, [message(ONE, "The agent exited (killed by signal 9)."), one(2)]),
            (4, 0),
        ),
        (
            "a card that is over, and a question that was answered",
            vec![],
            replaced(1, [message(ONE, "Done: 1 tool call"), question("tok-1-2"), one(2)]),
            (4, 0),
        ),
        (
            "that a press was done late",
            vec![],
            replaced(1, [question("tok-1-2"), late_press(ONE), one(2)]),
            (4, 0),
        ),
        ("what a person said", vec![], also(Message { author_id: ANN, ..message(PARENT, "hello") }), (4, 0)),
        (
            "what was taken away",
            vec![],
            also(Message { deleted_ms: Some(9), ..message(PARENT, "gone") }),
            (4, 0),
        ),
    ] {
        let verdict = verdict(&Case { strikes, ..case() }, transcript);
        assert_eq!((verdict.wrong, (verdict.answered, verdict.failed)), (vec![], want), "{what}");
    }
}

#[test]
fn judge_rejects_invalid_transcripts() {
    let twice = |what: &str| Wrong::Twice { what: what.to_owned() };
    let lost = |token: &str| Wrong::Lost { token: token.to_owned() };
    let disordered =
        |token: &str, before: &str| Wrong::Disordered { token: token.to_owned(), before: before.to_owned() };
    let elsewhere = |text: &str| Wrong::Elsewhere { text: text.to_owned() };
    let unstruck = |text: &str| Wrong::Unstruck { text: text.to_owned() };
    let open = |text: &str| Wrong::Open { text: text.to_owned() };
    let unknown = |text: &str| Wrong::Unknown { text: text.to_owned() };
    let incomplete =
        |token: &str, text: &str| Wrong::Incomplete { token: token.to_owned(), text: text.to_owned() };
    let whole = format!("tok-1-2 begins\ntok-1-2 ends{LINE}");
    let bare = "tok-1-2 begins\ntok-1-2 ends";
    let same = |number: u64| Message { nonce: Some(json!("same")), ..one(number) };
    let both = format!("{bare}\ntok-1-3 begins\ntok-1-3 ends");
    let two = "tok-2-1 begins\ntok-2-1 ends";
    for (what, transcript, want) in [
        ("lost", good().split_off(1), vec![lost("tok-1-1")]),
        ("all lost", vec![], vec![lost("tok-1-1"), lost("tok-1-2"), lost("tok-1-3"), lost("tok-2-1")]),
        ("twice, under another nonce", replaced(1, [one(2), one(2)]), vec![twice("tok-1-2")]),
        ("twice, under one nonce", replaced(1, [same(2), same(2)]), vec![twice("tok-1-2"), twice(&whole)]),
        ("one nonce for two answers", replaced(1, [same(1), same(2)]).split_off(1), vec![twice(&whole)]),
        (
            "out of order",
            replaced(0, [one(2), one(1)]),
            vec![twice("tok-1-2"), disordered("tok-1-2", "tok-1-1")],
        ),
        (
            "swapped",
            [vec![one(2), one(1)], good().split_off(2)].concat(),
            vec![disordered("tok-1-2", "tok-1-1")],
        ),
        ("in another thread", replaced(3, [answer(ONE, "tok-2-1")]), vec![lost("tok-2-1"), elsewhere(two)]),
        ("in another thread too", also(answer(ONE, "tok-2-1")), vec![elsewhere(two)]),
        ("in a channel of nobody's", also(message(99, "hello")), vec![elsewhere("hello")]),
        (
            "in the channel above",
            also(answer(PARENT, "tok-1-2")),
            vec![Wrong::InParent { text: whole.clone() }],
        ),
        (
            "without its end",
            replaced(1, [message(ONE, &format!("tok-1-2 begins{LINE}"))]),
            vec![incomplete("tok-1-2", "tok-1-2 begins")],
        ),
        (
            "with a part twice",
            replaced(1, [message(ONE, "tok-1-2 begins"), one(2)]),
            vec![incomplete("tok-1-2", &format!("tok-1-2 begins\n{bare}"))],
        ),
        ("without its last message", also(message(TWO, "tok-2-9 begins")), vec![unknown("tok-2-9 begins\n")]),
        (
            "two answers in one",
            replaced(1, [message(ONE, bare), one(3)]),
            vec![incomplete("tok-1-2", &both), elsewhere(&both)],
        ),
        ("a failure of nothing", replaced(1, [failed("")]), vec![unstruck(FAILURE)]),
        ("a failure beside the answers", also(failed("")), vec![twice(FAILURE)]),
        (
            "an end of nothing",
            also(message(ONE, "The agent exited (killed by signal 9).")),
            vec![unstruck("an agent of 11 ended")],
        ),
        (
            "a card that goes on",
            also(message(ONE, "Working\n\ntok-1-3 begins")),
            vec![open("Working\n\ntok-1-3 begins")],
        ),
        (
            "too many cards",
            [good(), vec![message(TWO, "Done"), message(TWO, "Failed")]].concat(),
            vec![unknown("2 cards in 12")],
        ),
        (
            "something to press on what is over",
            replaced(1, [with_button(question("tok-1-2")), one(2)]),
            vec![open(&question("tok-1-2").content)],
        ),
        (
            "a question twice",
            replaced(1, [question("tok-1-2"), question("tok-1-2"), one(2)]),
            vec![twice("The agent asks for a permission: tok-1-2")],
        ),
        (
            "a question of nobody's",
            also(question("tok-1-3")),
            vec![unknown("The agent asks for a permission: tok-1-3")],
        ),
        (
            "more said of presses than there were",
            replaced(1, [late_press(ONE), late_press(ONE), one(2)]),
            vec![unknown("`/acp answer` of : 2 times in 11")],
        ),
        (
            "a press of another thread",
            also(late_press(TWO)),
            vec![unknown("`/acp answer` of : 1 times in 12")],
        ),
        ("what nobody is owed", also(message(ONE, &format!("hello{LINE}"))), vec![unknown("hello")]),
    ] {
        let mut want = want;
        want.sort();
        assert_eq!(verdict(&case(), transcript).wrong, want, "{what}");
    }
}

/// A failure repeats the answer so far, and is valid only if agents died while the message was pending.
#[test]
fn failure_is_valid_only_after_agent_kill_in_its_thread_and_time() {
    let failure = || replaced(1, [failed("tok-1-2 begins\n\n")]);
    let at = |thread, from_ms, until_ms| Strike { thread, from_ms, until_ms };
    for (strike, may) in [
        (at(Some(ONE), 900, 1_000), true),
        (at(None, 900, 1_000), true),
        (at(Some(ONE), 50, 200), true),
        (at(Some(TWO), 900, 1_000), false),
        (at(None, 50, 199), false),
        (at(None, 9_000, 9_100), false),
    ] {
        let verdict = verdict(&Case { strikes: vec![strike], ..case() }, failure());
        assert_eq!(verdict.wrong.is_empty(), may, "{strike:?}: {:?}", verdict.wrong);
    }
    let always = || Case { strikes: vec![at(None, 0, 9_000)], ..case() };
    let said_otherwise = verdict(&always(), replaced(1, [failed("tok-1-2 ends\n\n")]));
    assert!(matches!(&said_otherwise.wrong[..], [Wrong::Incomplete { .. }]), "{said_otherwise:?}");
    let said_twice =
        verdict(&always(), replaced(1, [failed("tok-1-2 begins\n\nThe turn failed (X): y\n\n")]));
    assert!(matches!(&said_twice.wrong[..], [Wrong::Twice { .. }]), "{said_twice:?}");
}

/// Only messages with late events may be answered late, and none early.
#[test]
fn late_event_may_be_answered_out_of_order() {
    let swapped = || [vec![one(2), one(1)], good().split_off(2)].concat();
    let mut first = case();
    first.said[0].may_be_late = true;
    assert_eq!(verdict(&first, swapped()).wrong, []);
    let mut second = case();
    second.said[1].may_be_late = true;
    assert_eq!(verdict(&second, swapped()).wrong.len(), 1);
}

#[test]
fn prompts_received_must_match_messages_once() {
    let heard = |token: &str, times| Wrong::Heard { token: token.to_owned(), times };
    for (prompt, times, want) in [
        ("ask tok-1-1", 2, heard("tok-1-1", 2)),
        ("ask tok-1-1", 0, heard("tok-1-1", 0)),
        ("made up", 1, Wrong::Unasked { text: "made up".to_owned() }),
    ] {
        let mut case = case();
        case.received.insert(prompt.to_owned(), times);
        assert_eq!(verdict(&case, good()).wrong, [want]);
    }
}

/// The case with the second message of the first thread deleted or edited.
fn amended(amended: Amended, received: &[(&str, usize)]) -> Case {
    let mut case = case();
    case.said[1].amended = Some(amended);
    case.received.remove("ask tok-1-2");
    case.received.extend(received.iter().map(|(prompt, times)| ((*prompt).to_owned(), *times)));
    case
}

fn changed() -> Amended {
    let text = |text: &str| text.to_owned();
    Amended::Changed {
        token: text("tok-1-2-anew"),
        prompt: text("ask anew"),
        answer: text("tok-1-2-anew ends"),
    }
}

/// A deleted message is answered, or it has no answer and no agent received it.
#[test]
fn deleted_message_is_answered_or_never_received() {
    let deleted = |times: &[(&str, usize)]| amended(Amended::Deleted, times);
    let heard = [("ask tok-1-2", 1)];
    let struck =
        |case: Case| Case { strikes: vec![Strike { thread: Some(ONE), from_ms: 90, until_ms: 900 }], ..case };
    let lost = |token: &str| vec![Wrong::Lost { token: token.to_owned() }];
    let drops = |times: usize| {
        let text = format!("A queued prompt was cancelled before its turn.: {times} times in 11");
        vec![Wrong::Unknown { text }]
    };
    let twice = |what: &str| vec![Wrong::Twice { what: what.to_owned() }];
    for (what, case, transcript, want) in [
        ("answered", deleted(&heard), good(), (vec![], (4, 0, 0))),
        ("not heard, and nothing said", deleted(&[]), replaced(1, []), (vec![], (3, 0, 1))),
        ("not heard, and dropped aloud", deleted(&[]), replaced(1, dropped()), (vec![], (3, 0, 1))),
        ("dropped twice", deleted(&[]), [dropped(), replaced(1, dropped())].concat(), (drops(2), (3, 0, 1))),
        ("dropped and answered", deleted(&heard), [dropped(), good()].concat(), (drops(1), (4, 0, 0))),
        ("heard, and nothing said", deleted(&heard), replaced(1, []), (lost("tok-1-2"), (3, 0, 0))),
        (
            "answered and never heard",
            deleted(&[]),
            good(),
            (vec![Wrong::Heard { token: "tok-1-2".to_owned(), times: 0 }], (4, 0, 0)),
        ),
        (
            "another one has nothing",
            struck(deleted(&[])),
            replaced(1, []).split_off(1),
            (lost("tok-1-1"), (2, 0, 1)),
        ),
        (
            // The failure is of the first one, which was not taken back.
            "another one failed",
            struck(deleted(&[])),
            [vec![failed("")], replaced(1, []).split_off(1)].concat(),
            (vec![], (2, 1, 1)),
        ),
        // Its turn was next when its agent could not be started.
        ("failed before it was heard", struck(deleted(&[])), replaced(1, [failed("")]), (vec![], (3, 1, 0))),
        (
            "two failures for one",
            struck(deleted(&[])),
            replaced(1, [failed(""), failed("")]),
            (twice(FAILURE), (3, 1, 0)),
        ),
        (
            "a failure of nothing",
            deleted(&[]),
            replaced(1, [failed("")]),
            (vec![Wrong::Unstruck { text: FAILURE.to_owned() }], (3, 0, 0)),
        ),
        ("answered twice", deleted(&heard), replaced(1, [one(2), one(2)]), (twice("tok-1-2"), (4, 0, 0))),
    ] {
        let Verdict { wrong, answered, failed, withdrawn, .. } = verdict(&case, transcript);
        assert_eq!((wrong, (answered, failed, withdrawn)), want, "{what}");
    }
}

/// An edited message is answered with its old or its new text, never both.
#[test]
fn edited_message_is_answered_once_as_before_or_after() {
    let (old, new) = (("ask tok-1-2", 1), ("ask anew", 1));
    let now = || message(ONE, &format!("tok-1-2-anew ends{LINE}"));
    let heard = |times| vec![Wrong::Heard { token: "tok-1-2".to_owned(), times }];
    let incomplete =
        |text: &str| vec![Wrong::Incomplete { token: "tok-1-2".to_owned(), text: text.to_owned() }];
    let mixed = "tok-1-2 begins\ntok-1-2-anew ends";
    for (what, received, transcript, want) in [
        ("as it was", vec![old], good(), (vec![], (4, 0))),
        ("as it is", vec![new], replaced(1, [now()]), (vec![], (4, 1))),
        ("as it was, and the other one was heard", vec![new], good(), (heard(1), (4, 0))),
        ("both heard", vec![old, new], good(), (heard(2), (4, 0))),
        (
            "both answered",
            vec![old],
            replaced(1, [one(2), now()]),
            (vec![Wrong::Twice { what: "tok-1-2".to_owned() }], (4, 0)),
        ),
        (
            "some of both",
            vec![new],
            replaced(1, [message(ONE, &format!("{mixed}{LINE}"))]),
            (incomplete(mixed), (3, 0)),
        ),
        ("not at all", vec![], replaced(1, []), (vec![Wrong::Lost { token: "tok-1-2".to_owned() }], (3, 0))),
        (
            "in another thread",
            vec![new],
            replaced(1, [Message { channel_id: TWO, ..now() }]),
            (
                vec![
                    Wrong::Lost { token: "tok-1-2".to_owned() },
                    Wrong::Elsewhere { text: "tok-1-2-anew ends".to_owned() },
                ],
                (3, 0),
            ),
        ),
    ] {
        let Verdict { wrong, answered, anew, .. } = verdict(&amended(changed(), &received), transcript);
        assert_eq!((wrong, (answered, anew)), want, "{what}");
    }
}

/// A failure without a token is not ordered if a message may have been deleted: its message is unknown.
#[test]
fn anonymous_failure_is_not_ordered_when_a_message_was_deleted() {
    let always = vec![Strike { thread: None, from_ms: 0, until_ms: 9_000 }];
    let deleted = Case { strikes: always.clone(), ..amended(Amended::Deleted, &[]) };
    let told = || [vec![one(1), one(3), failed("")], good().split_off(3)].concat();
    assert_eq!(verdict(&deleted, told()).wrong, []);
    let kept = Case { strikes: always, ..case() };
    let disordered = Wrong::Disordered { token: "tok-1-3".to_owned(), before: "tok-1-2".to_owned() };
    assert_eq!(verdict(&kept, told()).wrong, [disordered]);
}
