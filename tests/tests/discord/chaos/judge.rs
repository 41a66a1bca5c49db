//! Judge of a finished run. Pure: messages, faults and stored transcript in, errors out.
//!
//! New messages in a thread may be:
//! - the answer to each message of a person: the agent's whole text, in one or more messages of which the last has the
//!   turn's footer; once; in the order of the messages. A message whose event was late or missing may be answered later
//!   than its turn, never earlier;
//! - instead of it, if agents of that thread were killed while the message was pending or shortly before it was posted: a
//!   beginning of the answer, or nothing, and the notice that the turn failed, once;
//! - for a deleted message nothing, unless an agent received it; or the notice that it was cancelled, at most once. Whether
//!   it was deleted in time is not judged: a message deleted after its turn began, or while the gateway was down, has an
//!   answer;
//! - for an edited message the answer to its old or its new text, for the same reason; never both;
//! - the notice that a message is queued, at most once each;
//! - at most one card for each message, which is folded at the end;
//! - for an agent's permission request: the request at most once, settled and without buttons; and notices about presses,
//!   which are public if a kill prevented their acknowledgement;
//! - the notice that the agent ended, once for each kill, with the reason if it ended before it was ready.
//!
//! The parent channel has no new message. Every prompt that an agent received was posted by a person, once; every answered
//! message was received. No two messages have the same nonce.

use crate::stage::{labels, untagged};
use acp_tests::fake_discord::core::model::message_kind::THREAD_STARTER;
use acp_tests::fake_discord::core::model::{Id, Message};
use acp_tests::house::AGENT;
use std::collections::{BTreeMap, BTreeSet};

/// Prefix of a failed turn.
const FAILED: &str = "The turn failed (";
/// Prefix of the notice that a message is queued.
const WAITS: &str = "The agent is busy: queued behind ";
/// Notice that a message was deleted before its turn.
const DROPPED: &str = "A queued prompt was cancelled before its turn.";
/// Prefix of a permission request.
pub(super) const ASKS: &str = "The agent asks for a permission: ";
/// Prefixes of a folded card.
const FOLDED: [&str; 4] = ["Done", "Failed", "Cancelled", "No longer updated"];
/// Prefixes of an open card.
const OPEN: [&str; 2] = ["Working", "Waiting for a permission"];
/// Prefix of the public notice about a press that was handled but never acknowledged.
const PRESSED_LATE: &str = "`/acp answer` of ";
/// Prefixes of the notice that an agent ended.
const ENDED: [&str; 2] = ["The agent exited (", "The agent exited before it opened a session ("];

/// Message of a person and the expected answer.
#[derive(Debug, Clone)]
pub(super) struct Said {
    /// Where.
    pub(super) thread: Id,
    /// Unique token of the message and its answer.
    pub(super) token: String,
    /// Text of the message.
    pub(super) prompt: String,
    /// What the agent says to it.
    pub(super) answer: String,
    /// When it was said, in milliseconds since 1970.
    pub(super) at_ms: u64,
    /// The agent asks for a permission before it ends.
    pub(super) asks: bool,
    /// The event may have been late or missing.
    pub(super) may_be_late: bool,
    /// Later edit or deletion.
    pub(super) amended: Option<Amended>,
}

/// Edit or deletion of a message by its author.
#[derive(Debug, Clone)]
pub(super) enum Amended {
    /// The message was deleted.
    Deleted,
    /// The message was edited.
    Changed {
        /// Unique token of the new text and its answer.
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
    /// Original text, then the edited one.
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

/// Period in which agents died.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strike {
    /// Affected thread; `None` for all.
    pub(super) thread: Option<Id>,
    /// Begin in milliseconds since 1970.
    pub(super) from_ms: u64,
    /// Messages after this time are not affected.
    pub(super) until_ms: u64,
}

/// Input of the judge without Discord's transcript.
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
    /// How often agents received each prompt, from their own logs.
    pub(super) received: BTreeMap<String, usize>,
}

/// Error in a transcript.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    /// A message has no answer and no failure.
    Lost { token: String },
    /// Two messages have one nonce, or one message two answers.
    Twice { what: String },
    /// An answer stands before that of an earlier message.
    Disordered { token: String, before: String },
    /// A message belongs to another thread or to none.
    Elsewhere { text: String },
    /// Something new is in the channel above.
    InParent { text: String },
    /// An answer is not what the agent said.
    Incomplete { token: String, text: String },
    /// A turn failed although no fault affected it.
    Unstruck { text: String },
    /// A card is still open, or a button without effect is still shown.
    Open { text: String },
    /// Unexpected message.
    Unknown { text: String },
    /// An agent received a message this many times.
    Heard { token: String, times: usize },
    /// An agent received a text that no message has.
    Unasked { text: String },
}

impl Wrong {
    /// True if the error quotes the content of a message.
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

/// Result of the judge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Turns that were answered, all of the answer.
    pub(super) answered: usize,
    /// Turns that failed because of a fault.
    pub(super) failed: usize,
    /// Answers to edited texts.
    pub(super) anew: usize,
    /// Messages deleted before their turn.
    pub(super) withdrawn: usize,
    /// Errors.
    pub(super) wrong: Vec<Wrong>,
}

/// Text in a thread between two footers of turns.
struct Final {
    /// Text without the footer.
    text: String,
    at_ms: u64,
}

/// What a thread holds.
#[derive(Default)]
struct Shown {
    finals: Vec<Final>,
    /// Number of notices that a message is queued.
    waits: usize,
    /// Number of notices that a message was deleted.
    drops: usize,
    /// How many cards there are.
    cards: usize,
    /// Tokens of permission requests.
    asked: Vec<String>,
    /// Number of public notices about presses.
    late_presses: usize,
    /// Times of the notices that an agent ended.
    ends: Vec<u64>,
}

/// Judges the transcript that Discord stored.
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
        // If a message may have been deleted, the message of a failure without a token is unknown.
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

    /// Classifies the messages of a thread.
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
            // Replies to interactions are not judged here.
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

    /// Checks that each permission request belongs to an asking turn of this thread, once.
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

    /// Checks that each announced end of an agent follows a kill of its own.
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

    /// True if agents died while a message was pending, up to `until_ms`.
    fn is_struck(&self, said: &Said, until_ms: u64) -> bool {
        self.strikes(said.thread).any(|strike| strike.from_ms <= until_ms && said.at_ms <= strike.until_ms)
    }

    /// How often agents received a message, with any of its texts.
    fn heard(&self, said: &Said) -> usize {
        said.words().filter_map(|words| self.case.received.get(words.prompt)).sum()
    }

    /// True if it was deleted and no agent received it.
    fn may_be_gone(&self, said: &Said) -> bool {
        matches!(said.amended, Some(Amended::Deleted)) && self.heard(said) == 0
    }

    /// Message of each final, by its token. A failure without a token belongs to the first message without another final;
    /// to a possibly deleted one only if no other is left.
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

    /// Checks that a final is the whole answer, or a permitted failure of one of these messages.
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

    /// Checks that answers are in the order of the messages, except for late events.
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

    /// Checks that agents received each message at most once, in one of its texts, and every answered one.
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

/// True if a message is an open card.
pub(super) fn is_open(text: &str) -> bool {
    OPEN.iter().any(|start| text.starts_with(start))
}

/// Text without the footer of the turn, if it ends with one. The footer names the agent, so that [`untagged`] does not
/// remove it.
fn without_footer(text: &str) -> Option<String> {
    let text = text.trim_end();
    let (rest, last) = text.rsplit_once('\n').unwrap_or(("", text));
    let named = last.strip_prefix("-# ").and_then(|last| last.strip_prefix(AGENT));
    let is_footer = named.is_some_and(|rest| rest.is_empty() || rest.starts_with(" · "));
    is_footer.then(|| rest.trim().to_owned())
}

/// Message tokens in a text.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).filter(|word| word.starts_with("tok-"))
}

fn dense(text: &str) -> String {
    text.split_whitespace().collect()
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
