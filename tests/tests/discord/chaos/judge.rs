//! What may be seen when everything is over. Pure: what was said and struck and what Discord kept go in, what is wrong
//! with it comes out.
//!
//! In a thread there may be, besides what was there before:
//! - the answer to each message of a person's: all that the agent says to it, in one or more messages of which the last
//!   ends with the line about the turn; once; in the order of what was asked. A message of which Discord told late or not
//!   at all may be answered later than its turn, never earlier;
//! - instead of it, when agents of that thread were killed while the message was there or shortly before it was said: a
//!   beginning of the answer, or nothing of it, and that the turn failed, said once;
//! - nothing of a message that was deleted, unless an agent got it; or that it was cancelled, at most once. Whether it was deleted in time is not asked here: of a
//!   message that is deleted when its turn has begun, or when the gateway is not there to hear of it, there is an answer;
//! - the answer to a message that was changed as it was before or as it is now, for the same reason; never to both;
//! - that a message waits for its turn, at most once for each;
//! - a card for each message at the most, which says that the turn is over;
//! - where the agent asks, its question at most once, which says what became of it, with nothing left to press; and what
//!   is said about a press, which is said to everybody when a kill came between it and its acknowledgement;
//! - that the agent ended, once for each time at which one was killed, and when it ended before it was ready, why.
//!
//! In the channel above there is nothing new. Everything that an agent got was said by somebody, once; what was answered
//! was heard. No nonce is in two messages.

use crate::stage::{labels, untagged};
use acp_tests::fake_discord::core::model::message_kind::THREAD_STARTER;
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::house::AGENT;
use std::collections::{BTreeMap, BTreeSet};

/// With this a failure begins.
const FAILED: &str = "The turn failed (";
/// That a message waits.
const WAITS: &str = "The agent is busy: queued behind ";
/// That a message was taken back before its turn.
const DROPPED: &str = "A queued prompt was cancelled before its turn.";
/// With this a question begins.
pub(super) const ASKS: &str = "The agent asks for a permission: ";
/// With these a card begins that is over.
const FOLDED: [&str; 4] = ["Done", "Failed", "Cancelled", "No longer updated"];
/// With these a card begins that is not.
const OPEN: [&str; 2] = ["Working", "Waiting for a permission"];
/// With this begins what is said to everybody about a press that was taken and never called so.
const PRESSED_LATE: &str = "`/acp answer` of ";
/// That an agent ended.
const ENDED: [&str; 2] = ["The agent exited (", "The agent exited before it opened a session ("];

/// A message of a person's, and what the agent says to it.
#[derive(Debug, Clone)]
pub(super) struct Said {
    /// Where.
    pub(super) thread: Id,
    /// What is in this message and in its answer, and nowhere else.
    pub(super) token: String,
    /// What was said.
    pub(super) prompt: String,
    /// What the agent says to it.
    pub(super) answer: String,
    /// When it was said, in milliseconds since 1970.
    pub(super) at_ms: u64,
    /// The agent asks for a permission before it ends.
    pub(super) asks: bool,
    /// Discord may have told of it late, or not at all.
    pub(super) may_be_late: bool,
    /// What they did with it later.
    pub(super) amended: Option<Amended>,
}

/// What somebody did with a message that they had said.
#[derive(Debug, Clone)]
pub(super) enum Amended {
    /// They took it back.
    Deleted,
    /// They gave it another text.
    Changed {
        /// What is in this text and in the answer to it, and nowhere else.
        token: String,
        /// The text.
        prompt: String,
        /// What the agent says to it.
        answer: String,
    },
}

/// One text of a message.
#[derive(Clone, Copy)]
struct Words<'a> {
    token: &'a str,
    prompt: &'a str,
    answer: &'a str,
}

impl Said {
    /// What it said first, and what it was changed to.
    fn words(&self) -> impl Iterator<Item = Words<'_>> {
        let Self { token, prompt, answer, .. } = self;
        let now = match &self.amended {
            Some(Amended::Changed { token, prompt, answer }) => Some(Words { token, prompt, answer }),
            Some(Amended::Deleted) | None => None,
        };
        std::iter::once(Words { token, prompt, answer }).chain(now)
    }

    fn is_named(&self, token: &str) -> bool {
        self.words().any(|words| words.token == token)
    }
}

/// A time in which agents died.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strike {
    /// Of which thread; `None` for all.
    pub(super) thread: Option<Id>,
    /// From when on, in milliseconds since 1970.
    pub(super) from_ms: u64,
    /// What was said later than this has nothing to do with it.
    pub(super) until_ms: u64,
}

/// Everything but what Discord kept.
#[derive(Debug)]
pub(super) struct Case {
    /// The bot.
    pub(super) bot: Id,
    /// The channel that the threads are in.
    pub(super) parent: Id,
    /// The threads.
    pub(super) threads: Vec<Id>,
    /// Messages that were there before anybody spoke.
    pub(super) before: BTreeSet<Id>,
    /// What was said, in its order.
    pub(super) said: Vec<Said>,
    /// How often buttons were pressed in each thread.
    pub(super) presses: BTreeMap<Id, usize>,
    /// When agents died.
    pub(super) strikes: Vec<Strike>,
    /// How often agents got what, as they wrote down themselves.
    pub(super) received: BTreeMap<String, usize>,
}

/// Something that may not be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    /// A message has no answer and no failure.
    Lost { token: String },
    /// Two messages have one nonce, or one message two answers.
    Twice { what: String },
    /// An answer stands before that of an earlier message.
    Disordered { token: String, before: String },
    /// What belongs to another thread, or to none.
    Elsewhere { text: String },
    /// Something new is in the channel above.
    InParent { text: String },
    /// An answer is not what the agent said.
    Incomplete { token: String, text: String },
    /// A turn failed of which nothing was struck.
    Unstruck { text: String },
    /// A card says that its turn goes on, or something can be pressed that does nothing any more.
    Open { text: String },
    /// Something that nobody is owed.
    Unknown { text: String },
    /// An agent got a message so many times.
    Heard { token: String, times: usize },
    /// An agent got what nobody said.
    Unasked { text: String },
}

impl Wrong {
    /// Whether it holds all that a message says.
    pub(super) fn quotes(&self, content: &str) -> bool {
        let content = untagged(content);
        let (Self::Elsewhere { text }
        | Self::InParent { text }
        | Self::Incomplete { text, .. }
        | Self::Unstruck { text }
        | Self::Open { text }
        | Self::Unknown { text }
        | Self::Unasked { text }
        | Self::Twice { what: text }) = self
        else {
            return false;
        };
        !content.is_empty() && (text.contains(content) || content.contains(text.as_str()))
    }
}

/// How it went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Turns that were answered, all of the answer.
    pub(super) answered: usize,
    /// Turns that failed, as they may.
    pub(super) failed: usize,
    /// Answers to what a message was changed to.
    pub(super) anew: usize,
    /// Messages that were taken back in time.
    pub(super) withdrawn: usize,
    /// Everything that is wrong.
    pub(super) wrong: Vec<Wrong>,
}

/// What stands in a thread between one line about a turn and the next.
struct Final {
    /// Without that line.
    text: String,
    at_ms: u64,
}

/// What a thread holds.
#[derive(Default)]
struct Shown {
    finals: Vec<Final>,
    /// When it was said that a message waits.
    waits: usize,
    /// How often it was said that a message was taken back.
    drops: usize,
    /// How many cards there are.
    cards: usize,
    /// What questions are about.
    asked: Vec<String>,
    /// How often something is said to everybody about a press.
    late_presses: usize,
    /// When it was said that an agent ended.
    ends: Vec<u64>,
}

/// Judges what Discord kept.
pub(super) fn judge(case: &Case, store: &[Message]) -> Verdict {
    let mut judge = Judge { case, verdict: Verdict::default(), answered: BTreeSet::new() };
    let by_bot = |message: &&Message| {
        message.author_id == case.bot && message.deleted_ms.is_none() && message.kind != THREAD_STARTER
    };
    let new: Vec<&Message> =
        store.iter().filter(by_bot).filter(|message| !case.before.contains(&message.id)).collect();
    judge.nonces(&new);
    for message in &new {
        if message.channel_id == case.parent {
            judge.wrong(Wrong::InParent { text: message.content.clone() });
        } else if !case.threads.contains(&message.channel_id) {
            judge.wrong(Wrong::Elsewhere { text: message.content.clone() });
        }
    }
    for thread in &case.threads {
        let here: Vec<&Message> =
            new.iter().copied().filter(|message| message.channel_id == *thread).collect();
        judge.thread(*thread, &here);
    }
    judge.agents();
    judge.verdict.wrong.sort();
    judge.verdict
}

struct Judge<'a> {
    case: &'a Case,
    verdict: Verdict,
    /// Tokens of what was answered.
    answered: BTreeSet<&'a str>,
}

impl<'a> Judge<'a> {
    fn wrong(&mut self, wrong: Wrong) {
        self.verdict.wrong.push(wrong);
    }

    fn nonces(&mut self, messages: &[&Message]) {
        let mut seen = BTreeSet::new();
        for message in messages {
            let nonce = message.nonce.as_ref().map(ToString::to_string);
            if nonce.is_some_and(|nonce| !seen.insert(nonce)) {
                self.wrong(Wrong::Twice { what: message.content.clone() });
            }
        }
    }

    fn thread(&mut self, thread: Id, messages: &[&Message]) {
        let said: Vec<&'a Said> = self.case.said.iter().filter(|said| said.thread == thread).collect();
        let shown = self.read(messages);
        if shown.waits > said.len() {
            self.wrong(Wrong::Unknown { text: format!("{WAITS}: {} times in {thread}", shown.waits) });
        }
        if shown.cards > said.len() {
            self.wrong(Wrong::Unknown { text: format!("{} cards in {thread}", shown.cards) });
        }
        if shown.late_presses > self.case.presses.get(&thread).copied().unwrap_or_default() {
            let text = format!("{PRESSED_LATE}: {} times in {thread}", shown.late_presses);
            self.wrong(Wrong::Unknown { text });
        }
        self.asked(&said, &shown.asked);
        self.ends(thread, &shown.ends);
        let owners = self.owners(&said, &shown.finals);
        // Where something may have been taken back, nobody knows whose a failure is that says nothing else.
        let is_guessed = |shown: &Final| {
            tokens(&shown.text).next().is_none() && said.iter().any(|said| self.may_be_gone(said))
        };
        let guessed: Vec<bool> = shown.finals.iter().map(is_guessed).collect();
        let (mut order, mut known) = (Vec::new(), Vec::new());
        for ((shown, owner), guessed) in shown.finals.iter().zip(&owners).zip(guessed) {
            let Some(owner) = *owner else { continue };
            if order.iter().any(|before: &&Said| before.token == owner.token) {
                self.wrong(Wrong::Twice { what: owner.token.clone() });
                continue;
            }
            order.push(owner);
            if !guessed {
                known.push(owner);
            }
            self.weigh(owner, shown, if guessed { &said } else { std::slice::from_ref(&owner) });
        }
        let mut withdrawn = 0;
        for said in &said {
            if order.iter().any(|owner| owner.token == said.token) {
            } else if self.may_be_gone(said) {
                withdrawn += 1;
            } else {
                self.wrong(Wrong::Lost { token: said.token.clone() });
            }
        }
        self.verdict.withdrawn += withdrawn;
        if shown.drops > withdrawn {
            self.wrong(Wrong::Unknown { text: format!("{DROPPED}: {} times in {thread}", shown.drops) });
        }
        self.order(&said, &known);
    }

    /// Takes the messages of a thread apart.
    fn read(&mut self, messages: &[&Message]) -> Shown {
        let mut shown = Shown::default();
        let mut open = String::new();
        for message in messages {
            let text = untagged(&message.content);
            let begins = |starts: &[&str]| starts.iter().any(|start| text.starts_with(start));
            let is_open = is_open(text);
            if is_open || !labels(message).is_empty() {
                self.wrong(Wrong::Open { text: text.to_owned() });
            }
            // What is said about a press is an answer to it.
            if message.origin.is_some() {
            } else if is_open || begins(&FOLDED) {
                shown.cards += 1;
            } else if let Some(about) = text.strip_prefix(ASKS) {
                shown.asked.push(tokens(about).next().unwrap_or_default().to_owned());
            } else if text.starts_with(WAITS) {
                shown.waits += 1;
            } else if text == DROPPED {
                shown.drops += 1;
            } else if text.starts_with(PRESSED_LATE) {
                shown.late_presses += 1;
            } else if begins(&ENDED) {
                shown.ends.push(message.created_ms);
            } else {
                open.push_str(text);
                open.push('\n');
                if let Some(text) = without_footer(&open) {
                    shown.finals.push(Final { text, at_ms: message.created_ms });
                    open.clear();
                }
            }
        }
        if !open.is_empty() {
            self.wrong(Wrong::Unknown { text: open });
        }
        shown
    }

    /// Each question is of a turn of this thread that asks, and there once.
    fn asked(&mut self, said: &[&'a Said], asked: &[String]) {
        let mut seen = BTreeSet::new();
        for token in asked {
            if !said.iter().any(|said| said.asks && said.token == *token) {
                self.wrong(Wrong::Unknown { text: format!("{ASKS}{token}") });
            } else if !seen.insert(token) {
                self.wrong(Wrong::Twice { what: format!("{ASKS}{token}") });
            }
        }
    }

    /// Each end of an agent that is told of has a death of its own before it.
    fn ends(&mut self, thread: Id, ends: &[u64]) {
        for (number, at_ms) in (1..).zip(ends) {
            let deaths = self.strikes(thread).filter(|strike| strike.from_ms <= *at_ms).count();
            if deaths < number {
                self.wrong(Wrong::Unstruck { text: format!("an agent of {thread} ended") });
            }
        }
    }

    fn strikes(&self, thread: Id) -> impl Iterator<Item = &'a Strike> + use<'a> {
        let strikes = self.case.strikes.iter();
        strikes.filter(move |strike| strike.thread.is_none_or(|struck| struck == thread))
    }

    /// Whether agents died while a message was there, up to a moment.
    fn is_struck(&self, said: &Said, until_ms: u64) -> bool {
        self.strikes(said.thread).any(|strike| strike.from_ms <= until_ms && said.at_ms <= strike.until_ms)
    }

    /// How often agents got a message, whatever it said then.
    fn heard(&self, said: &Said) -> usize {
        said.words().filter_map(|words| self.case.received.get(words.prompt)).sum()
    }

    /// Whether it was taken back before an agent got it.
    fn may_be_gone(&self, said: &Said) -> bool {
        matches!(said.amended, Some(Amended::Deleted)) && self.heard(said) == 0
    }

    /// What each final is about: what its token says. A failure without one is that of the first message that has nothing
    /// else; of one that may have been taken back only when no other is left.
    fn owners(&mut self, said: &[&'a Said], finals: &[Final]) -> Vec<Option<&'a Said>> {
        let mut owners: Vec<Option<&'a Said>> = Vec::new();
        for shown in finals {
            let tokens: BTreeSet<&str> = tokens(&shown.text).collect();
            let owner = said.iter().find(|said| tokens.iter().any(|token| said.is_named(token))).copied();
            if tokens.iter().any(|token| owner.is_none_or(|owner| !owner.is_named(token))) {
                self.wrong(Wrong::Elsewhere { text: shown.text.clone() });
            } else if owner.is_none() && !shown.text.starts_with(FAILED) {
                self.wrong(Wrong::Unknown { text: shown.text.clone() });
            }
            owners.push(owner);
        }
        let named: BTreeSet<&str> = owners.iter().flatten().map(|said| said.token.as_str()).collect();
        let of_nobody =
            |(owner, shown): &(&Option<&Said>, &Final)| owner.is_none() && shown.text.starts_with(FAILED);
        let failures = owners.iter().zip(finals).filter(of_nobody).count();
        let left = || said.iter().copied().filter(|said| !named.contains(said.token.as_str()));
        let sure = left().filter(|said| !self.may_be_gone(said));
        let unsure = left().filter(|said| self.may_be_gone(said));
        let taken: BTreeSet<&str> =
            sure.chain(unsure).take(failures).map(|said| said.token.as_str()).collect();
        let mut left =
            left().filter(|said| taken.contains(said.token.as_str())).collect::<Vec<_>>().into_iter();
        for (owner, shown) in owners.iter_mut().zip(finals) {
            if owner.is_none() && shown.text.starts_with(FAILED) {
                *owner = left.next();
                if owner.is_none() {
                    self.wrong(Wrong::Twice { what: shown.text.clone() });
                }
            }
        }
        owners
    }

    /// Whether a final is the whole answer, or a failure that may be: of one of these messages.
    fn weigh(&mut self, said: &'a Said, shown: &Final, of: &[&Said]) {
        if let Some(words) = said.words().find(|words| dense(&shown.text) == dense(words.answer)) {
            self.verdict.answered += 1;
            self.verdict.anew += usize::from(words.token != said.token);
            self.answered.insert(words.token);
            return;
        }
        let (told, why) = match shown.text.split_once(FAILED) {
            Some((told, why)) => (told, why),
            None => {
                let text = shown.text.clone();
                return self.wrong(Wrong::Incomplete { token: said.token.clone(), text });
            }
        };
        if !said.words().any(|words| dense(words.answer).starts_with(&dense(told))) {
            self.wrong(Wrong::Incomplete { token: said.token.clone(), text: shown.text.clone() });
        }
        if why.contains(FAILED) {
            self.wrong(Wrong::Twice { what: shown.text.clone() });
        }
        if of.iter().any(|said| self.is_struck(said, shown.at_ms)) {
            self.verdict.failed += 1;
        } else {
            self.wrong(Wrong::Unstruck { text: shown.text.clone() });
        }
    }

    /// Answers stand in the order of what was asked, but for what may be late.
    fn order(&mut self, said: &[&Said], order: &[&'a Said]) {
        let asked = |token: &str| said.iter().position(|said| said.token == token);
        for (at, later) in order.iter().enumerate() {
            let overtaken = order[at + 1..]
                .iter()
                .find(|earlier| asked(&earlier.token) < asked(&later.token) && !earlier.may_be_late);
            if let Some(earlier) = overtaken {
                let (token, before) = (later.token.clone(), earlier.token.clone());
                self.wrong(Wrong::Disordered { token, before });
            }
        }
    }

    /// What agents got: each message once at the most, as it was or as it is, and what was answered.
    fn agents(&mut self) {
        for said in &self.case.said {
            let times = self.heard(said);
            let unheard = |words: &Words<'_>| {
                let times = self.case.received.get(words.prompt);
                self.answered.contains(words.token) && times.is_none_or(|times| *times == 0)
            };
            if times > 1 || said.words().any(|words| unheard(&words)) {
                self.wrong(Wrong::Heard { token: said.token.clone(), times });
            }
        }
        let said: BTreeSet<&str> =
            self.case.said.iter().flat_map(Said::words).map(|words| words.prompt).collect();
        let unasked = self.case.received.keys().filter(|text| !said.contains(text.as_str()));
        let unasked: Vec<Wrong> = unasked.map(|text| Wrong::Unasked { text: text.clone() }).collect();
        self.verdict.wrong.extend(unasked);
    }
}

/// Whether a message is a card that says that its turn goes on.
pub(super) fn is_open(text: &str) -> bool {
    OPEN.iter().any(|start| text.starts_with(start))
}

/// The text without its last line, when that is the small line about the turn. It names the agent, so that it is no small
/// word of [`untagged`], which is gone already.
fn without_footer(text: &str) -> Option<String> {
    let text = text.trim_end();
    let (rest, last) = text.rsplit_once('\n').unwrap_or(("", text));
    let named = last.strip_prefix("-# ").and_then(|last| last.strip_prefix(AGENT));
    let is_footer = named.is_some_and(|rest| rest.is_empty() || rest.starts_with(" · "));
    is_footer.then(|| rest.trim().to_owned())
}

/// The names in a text that are of one message alone.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).filter(|word| word.starts_with("tok-"))
}

fn dense(text: &str) -> String {
    text.split_whitespace().collect()
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
