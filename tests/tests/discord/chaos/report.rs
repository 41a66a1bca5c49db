//! What a run that went wrong says of itself: what is wrong comes first, then what stands in the threads that it is about,
//! and what was struck last, since reports of long runs are cut off at their end. Pure.

use super::judge::{Case, Wrong, tokens};
use super::plan::Step;
use acp_tests::fake_discord::core::model::{Id, Message};
use std::collections::BTreeSet;
use std::fmt::Write;

/// So much of a text is shown, in characters.
const TEXT: usize = 200;
/// So much of what is wrong, which may quote an answer.
const WRONG: usize = 400;
/// So much of what was said in a step.
const PROMPT: usize = 60;

/// All of it, each thing on a line of its own.
pub(super) fn report(wrong: &[Wrong], case: &Case, kept: &[Message], steps: &[Step]) -> String {
    let start = case.said.first().map_or(0, |said| said.at_ms);
    let mut out = format!("{} wrong:\n", wrong.len());
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    for wrong in wrong {
        line(format!("  {}", short(&format!("{wrong:?}"), WRONG)));
    }
    for thread in concerned(wrong, case, kept) {
        line(format!("in {thread}, milliseconds after the first words:"));
        for message in kept.iter().filter(|it| it.channel_id == thread && !case.before.contains(&it.id)) {
            line(format!("  {}", shown(message, case, start)));
        }
    }
    for strike in &case.strikes {
        let thread = strike.thread.map_or("all".to_owned(), |thread| thread.to_string());
        let (from, until) = (since(start, strike.from_ms), since(start, strike.until_ms));
        line(format!("agents of {thread} died, {from} to {until}"));
    }
    for (number, step) in steps.iter().enumerate() {
        let Step { pause, thread, turn, amend, blow, time, draw } = step;
        let prompt = short(&turn.prompt, PROMPT);
        let amend = amend.as_ref().map(|amend| format!(", then {:?} {:?}", amend.change, amend.when));
        let amend = amend.unwrap_or_default();
        line(format!(
            "step {number}: {pause:?}, thread {thread}, {blow:?} for {time:?} ({draw}){amend}, {prompt}"
        ));
    }
    out
}

/// The threads that something wrong is about; all of them when it names none.
fn concerned(wrong: &[Wrong], case: &Case, kept: &[Message]) -> BTreeSet<Id> {
    let mut found = BTreeSet::new();
    for wrong in wrong {
        let text = format!("{wrong:?}");
        let named: BTreeSet<&str> = tokens(&text).collect();
        let said = case.said.iter().filter(|said| named.contains(said.token.as_str()));
        found.extend(said.map(|said| said.thread));
        let words: BTreeSet<&str> = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).collect();
        found.extend(case.threads.iter().filter(|thread| words.contains(thread.to_string().as_str())));
        // What was made up stands where it stands.
        let quoted = kept.iter().filter(|it| it.author_id == case.bot && wrong.quotes(&it.content));
        found.extend(quoted.map(|message| message.channel_id));
    }
    match found.is_empty() {
        true => case.threads.iter().copied().collect(),
        false => found,
    }
}

/// A message on one line.
fn shown(message: &Message, case: &Case, start: u64) -> String {
    let mut out = format!("{} at {}", message.id, since(start, message.created_ms));
    let who = match message.author_id == case.bot {
        true => "bot",
        false => "person",
    };
    let _ = write!(out, " {who}");
    for (what, at) in [("edited", message.edited_ms), ("deleted", message.deleted_ms)] {
        if let Some(at) = at {
            let _ = write!(out, ", {what} at {}", since(start, at));
        }
    }
    format!("{out}: {}", short(&message.content, TEXT))
}

fn since(start: u64, at_ms: u64) -> i64 {
    at_ms.cast_signed() - start.cast_signed()
}

/// A text on one line, of so many characters at the most.
fn short(text: &str, most: usize) -> String {
    let line = text.replace('\n', "\\n");
    let (count, begin) = (line.chars().count(), line.chars().take(most).collect::<String>());
    if count <= most { line } else { format!("{begin}… ({count} characters)") }
}

#[cfg(test)]
mod tests {
    use super::super::judge::{Said, Strike};
    use super::super::plan::{Amend, Blow, Change, Turn, When, token};
    use super::*;
    use std::time::Duration;

    const BOT: Id = 1;
    const ANN: Id = 2;
    const PARENT: Id = 10;
    const ONE: Id = 11;
    const TWO: Id = 12;

    fn said(thread: Id, token: &str) -> Said {
        Said {
            thread,
            token: token.to_owned(),
            prompt: format!("say {token}."),
            answer: format!("{token}."),
            at_ms: 1_000,
            asks: false,
            may_be_late: false,
            amended: None,
        }
    }

    fn case() -> Case {
        Case {
            bot: BOT,
            parent: PARENT,
            threads: vec![ONE, TWO],
            before: BTreeSet::from([5]),
            said: vec![said(ONE, "tok-0-0"), said(TWO, "tok-1-1")],
            presses: std::collections::BTreeMap::new(),
            strikes: vec![Strike { thread: Some(ONE), from_ms: 1_200, until_ms: 4_200 }],
            received: std::collections::BTreeMap::new(),
        }
    }

    fn message(id: Id, channel_id: Id, author_id: Id, content: &str) -> Message {
        let content = content.to_owned();
        Message { id, channel_id, author_id, content, created_ms: 1_000 + id, ..Message::default() }
    }

    fn step(number: usize) -> Step {
        let turn = Turn::quick(&token(0, number));
        let (pause, time) = (Duration::from_millis(7), Duration::from_millis(9));
        let change = match number {
            0 => None,
            _ => Some(Amend { change: Change::Delete, when: When::AfterBlow }),
        };
        Step { pause, thread: 0, turn, amend: change, blow: Blow::Agent, time, draw: 3 }
    }

    #[test]
    fn report_lists_errors_first_with_one_line_each() {
        let lost = Wrong::Lost { token: "tok-0-0".to_owned() };
        let long = format!("tok-0-0 begins\n{}", "x".repeat(500));
        let kept = [
            message(5, ONE, BOT, "it was here before"),
            message(6, ONE, ANN, "say tok-0-0."),
            Message { deleted_ms: Some(1_900), ..message(7, ONE, BOT, &long) },
            message(8, TWO, BOT, "tok-1-1."),
        ];
        let told = report(&[lost], &case(), &kept, &[step(0), step(1)]);
        let cut = format!("tok-0-0 begins\\n{}… (516 characters)", "x".repeat(184));
        let want = [
            "1 wrong:",
            "  Lost { token: \"tok-0-0\" }",
            "in 11, milliseconds after the first words:",
            "  6 at 6 person: say tok-0-0.",
            &format!("  7 at 7 bot, deleted at 900: {cut}"),
            "agents of 11 died, 200 to 3200",
            "step 0: 7ms, thread 0, Agent for 9ms (3), say tok-0-0.",
            "step 1: 7ms, thread 0, Agent for 9ms (3), then Delete AfterBlow, say tok-0-1.",
        ];
        assert_eq!(told.lines().collect::<Vec<_>>(), want);
    }

    #[test]
    fn report_shows_threads_concerned_by_errors() {
        let kept = [
            message(6, ONE, BOT, "hello"),
            message(7, TWO, BOT, "Working"),
            message(8, PARENT, BOT, "above"),
        ];
        let text = |text: &str| text.to_owned();
        for (wrong, want) in [
            (Wrong::Lost { token: text("tok-1-1") }, vec![TWO]),
            // Not that of another number that begins alike.
            (Wrong::Lost { token: text("tok-1-11") }, vec![ONE, TWO]),
            (Wrong::Disordered { token: text("tok-0-0"), before: text("tok-1-1") }, vec![ONE, TWO]),
            (Wrong::Unknown { text: text("2 cards in 12") }, vec![TWO]),
            (Wrong::Unknown { text: text("hello\n") }, vec![ONE]),
            (Wrong::Open { text: text("Working") }, vec![TWO]),
            (Wrong::InParent { text: text("above") }, vec![PARENT]),
            (Wrong::Unasked { text: text("made up") }, vec![ONE, TWO]),
        ] {
            let found: Vec<Id> =
                concerned(std::slice::from_ref(&wrong), &case(), &kept).into_iter().collect();
            assert_eq!(found, want, "{wrong:?}");
        }
    }
}
