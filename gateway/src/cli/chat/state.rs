//! State of a chat at a terminal: keys of the person and replies of the gateway become effects. Pure.

use crate::cli::chat::completion::CompletionData;
use crate::cli::chat::editor::{Editor, EditorOutcome};
use crate::cli::chat::quote_word;
use crate::cli::chat::transcript::Transcript;
use acp_core::command::tokenizer::{Tokenizer, flag};
use acp_core::failure::Failure;
use acp_shared::ids::IdempotencyKey;
use acp_store::inbox::Outcome;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::VecDeque;

/// Maximum number of messages that wait for the gateway.
pub(crate) const OUTGOING_MAX: usize = 32;

/// Message that the gateway has not accepted yet. Sent until it answers, always under the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutgoingMessage {
    /// Idempotency key.
    pub(crate) key: IdempotencyKey,
    /// Text as sent.
    pub(crate) text: String,
    /// True for the answer to a question: its outcome is an event of the session.
    pub(crate) is_answer: bool,
}

/// Action of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChatEffect {
    /// Send the message.
    Send(OutgoingMessage),
    /// Cancel the running turn.
    Cancel,
    /// Draw the terminal again.
    Redraw,
    /// Stop this process, as Ctrl-Z does.
    Suspend,
    /// Take the terminal again: this process was stopped.
    Resume,
    /// Leave the chat.
    Leave,
}

/// Chat at a terminal.
pub(crate) struct ChatState {
    /// The session.
    pub(crate) transcript: Transcript,
    /// Input.
    pub(crate) editor: Editor,
    /// Values for completion.
    pub(crate) data: CompletionData,
    /// Messages that the gateway has not accepted, oldest first.
    pub(crate) outgoing: VecDeque<OutgoingMessage>,
    /// Time since which the gateway does not answer, milliseconds since the Unix epoch.
    pub(crate) away_since_ms: Option<u64>,
    /// Option of the first question that Enter chooses.
    pub(crate) selected: Option<usize>,
    /// True after the first Ctrl-C of a turn.
    pub(crate) is_cancelling: bool,
    /// Hint of the chat about the last key; shown until the next one.
    pub(crate) hint: Option<String>,
    /// Working directory of sessions that are started here.
    cwd: String,
}

impl ChatState {
    /// Creates the state of a chat whose sessions work in `cwd`.
    pub(crate) fn new(transcript: Transcript, editor: Editor, cwd: String) -> Self {
        Self {
            transcript,
            editor,
            data: CompletionData::default(),
            outgoing: VecDeque::new(),
            away_since_ms: None,
            selected: None,
            is_cancelling: false,
            hint: None,
            cwd,
        }
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<ChatEffect> {
        self.hint = None;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return self.interrupt(),
            KeyCode::Char('d') if is_control && self.editor.is_empty() => return Some(ChatEffect::Leave),
            KeyCode::Char('l') if is_control => return Some(ChatEffect::Redraw),
            KeyCode::Char('z') if is_control => return Some(ChatEffect::Suspend),
            KeyCode::Char('t') if is_control => {
                self.transcript.toggle_thoughts();
                return None;
            }
            KeyCode::Char('s') if is_control => return self.steer(),
            _ => {}
        }
        if self.editor.is_empty()
            && let Some(effect) = self.answer_key(key)
        {
            return effect;
        }
        if key.code == KeyCode::Enter && self.is_full() && key.modifiers.is_empty() {
            self.hint = Some(format!("{OUTGOING_MAX} messages wait for the gateway; the text stays here"));
            return None;
        }
        match self.editor.key(key, &self.data) {
            EditorOutcome::Edited => None,
            EditorOutcome::Submitted(text) => self.submit(&text),
        }
    }

    fn is_full(&self) -> bool {
        self.outgoing.len() >= OUTGOING_MAX
    }

    /// Ctrl-C: cancels the turn, then leaves; without a turn it empties the input, then leaves.
    pub(crate) fn interrupt(&mut self) -> Option<ChatEffect> {
        let is_busy = !self.transcript.turns.is_empty() || !self.outgoing.is_empty();
        if is_busy {
            if std::mem::replace(&mut self.is_cancelling, true) {
                return Some(ChatEffect::Leave);
            }
            return Some(ChatEffect::Cancel);
        }
        if self.editor.is_empty() {
            return Some(ChatEffect::Leave);
        }
        self.editor.set("");
        None
    }

    /// Handles a key that answers the first question; `None` for other keys.
    fn answer_key(&mut self, key: KeyEvent) -> Option<Option<ChatEffect>> {
        let options = self.transcript.questions.front()?.options;
        if options == 0 || !(key.modifiers - KeyModifiers::SHIFT).is_empty() {
            return None;
        }
        match key.code {
            KeyCode::Char(c) if c.is_ascii_digit() && options < 10 => {
                let number = usize::try_from(c.to_digit(10)?).ok()?;
                if !(1..=options).contains(&number) {
                    self.hint = Some(format!("choose a number from 1 to {options}"));
                    return Some(None);
                }
                Some(self.answer(number))
            }
            KeyCode::Up | KeyCode::Down => {
                let next = match (self.selected, key.code == KeyCode::Down) {
                    (None, true) => 0,
                    (None, false) => options - 1,
                    (Some(at), true) => (at + 1) % options,
                    (Some(at), false) => (at + options - 1) % options,
                };
                self.selected = Some(next);
                Some(None)
            }
            KeyCode::Esc => {
                self.selected = None;
                Some(None)
            }
            // Nothing is selected at first: a key pressed by chance allows nothing.
            KeyCode::Enter => Some(self.selected.and_then(|at| self.answer(at + 1))),
            _ => None,
        }
    }

    fn answer(&mut self, number: usize) -> Option<ChatEffect> {
        self.selected = None;
        let question = self.transcript.questions.front()?;
        let text = format!("/acp answer {} {number}", question.id);
        if self.outgoing.iter().any(|message| message.is_answer && message.text.contains(&question.id)) {
            return None;
        }
        self.queue(text, true)
    }

    fn queue(&mut self, text: String, is_answer: bool) -> Option<ChatEffect> {
        let message = OutgoingMessage { key: IdempotencyKey::mint(), text, is_answer };
        self.outgoing.push_back(message.clone());
        self.is_cancelling = false;
        Some(ChatEffect::Send(message))
    }

    /// Sends the input into the running turn.
    fn steer(&mut self) -> Option<ChatEffect> {
        if self.editor.text().trim().is_empty() || self.is_full() {
            return None;
        }
        let text = self.editor.take();
        if self.transcript.running().is_none() {
            return self.submit(&text);
        }
        self.queue(format!("/acp steer -- {}", text.trim()), false)
    }

    fn submit(&mut self, text: &str) -> Option<ChatEffect> {
        let text = text.trim();
        if matches!(text, "/exit" | "/quit") {
            return Some(ChatEffect::Leave);
        }
        let choice = text.parse::<usize>().ok();
        if let (Some(question), Some(number)) = (self.transcript.questions.front(), choice)
            && question.options > 0
        {
            if (1..=question.options).contains(&number) {
                return self.answer(number);
            }
            self.hint = Some(format!("the permission request needs a number from 1 to {}", question.options));
            return None;
        }
        self.queue(with_cwd(text, &self.cwd), false)
    }

    /// Handles the gateway's answer to a message.
    pub(crate) fn answered(&mut self, key: &IdempotencyKey, answer: Result<&Outcome, &Failure>) {
        let Some(at) = self.outgoing.iter().position(|message| message.key == *key) else { return };
        let Some(message) = self.outgoing.remove(at) else { return };
        // Ctrl-C applied to this message, not to a later turn.
        self.is_cancelling &= !self.transcript.turns.is_empty() || !self.outgoing.is_empty();
        match answer {
            Ok(Outcome::Prompted { text, .. }) if text.is_empty() => {}
            Ok(Outcome::Prompted { text, .. }) => self.transcript.note(text),
            Ok(Outcome::Command { text, .. }) if message.is_answer || text.is_empty() => {}
            Ok(Outcome::Ignored { reason }) => self.transcript.note(&format!("[ignored: {reason}]")),
            Ok(outcome) => self.transcript.reply(&message.text, &outcome.text()),
            Err(failure) => self.transcript.reply(&message.text, &failure.to_string()),
        }
    }
}

/// Adds the chat's directory to a `/acp spawn` without one.
fn with_cwd(text: &str, cwd: &str) -> String {
    let mut words = Tokenizer::new(text);
    let mut next = || words.next_word().ok().flatten();
    let is_spawn =
        next().as_deref() == Some("/acp") && next().is_some_and(|verb| verb.eq_ignore_ascii_case("spawn"));
    if !is_spawn {
        return text.to_owned();
    }
    while let Some(word) = next() {
        // A lone `--` ends the flags, so that none can be added.
        let has_cwd = flag(&word).is_some_and(|flag| {
            flag.is_empty() || flag.split('=').next().is_some_and(|name| name.eq_ignore_ascii_case("cwd"))
        });
        if has_cwd {
            return text.to_owned();
        }
    }
    format!("{text} --cwd {}", quote_word(cwd))
}

#[cfg(test)]
mod tests;
