//! Joins characters that an agent cut between two chunks of text. JavaScript strings are UTF-16, so a cut may leave one
//! half of a pair in each chunk. The first half is held in the machine's state, which is committed with the offset, until
//! the next message of the agent arrives.

use super::DirectMachine;
use super::state::HeldSurrogate;
use crate::backend::BackendStep;
use crate::intake::{AgentLine, rejoin_surrogates};
use crate::jsonrpc::ObjectMembers;
use crate::runtime::updates::{MESSAGE, THOUGHT};
use serde_json::json;

impl DirectMachine {
    /// Returns the payload of an update, joined with the held half and without a trailing half, which is held now. A held
    /// half without a match is flushed in a chunk before the update.
    pub(super) fn rejoin(
        &mut self,
        variant: Option<&str>,
        raw: &str,
        line: &AgentLine<'_>,
    ) -> (Option<BackendStep>, String) {
        // Nothing is held, and a trailing half would have been repaired: nearly every chunk.
        if self.state.half.is_none() && !line.is_repaired() {
            return (None, raw.to_owned());
        }
        let thought = match variant {
            Some(MESSAGE) => Some(false),
            Some(THOUGHT) => Some(true),
            _ => None,
        };
        let Some((thought, literal)) = thought.zip(text_of(raw)) else {
            return (self.flush_half(), raw.to_owned());
        };
        let held = self.state.half.filter(|half| half.thought == thought);
        let pair = held.map(|half| half.unit).zip(line.leading_half(literal));
        let flushed = if pair.is_some() { None } else { self.flush_half() };
        let end = line.trailing_half(literal);
        self.state.half = end.map(|unit| HeldSurrogate { thought, unit });
        if pair.is_none() && end.is_none() {
            return (flushed, raw.to_owned());
        }
        // The literal is a slice of `raw`: the difference of the addresses is the literal's offset.
        let from = literal.as_ptr() as usize - raw.as_ptr() as usize;
        let (before, after) = (raw.get(..from), raw.get(from + literal.len()..));
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        (flushed, format!("{before}{}{after}", rejoin_surrogates(literal, pair, end.is_some())))
    }

    /// Runs the handler of a message other than a chunk, after flushing a held half.
    pub(super) fn flush_half_then(
        &mut self,
        steps: impl FnOnce(&mut Self) -> Vec<BackendStep>,
    ) -> Vec<BackendStep> {
        let flushed = self.flush_half();
        flushed.into_iter().chain(steps(self)).collect()
    }

    /// Emits a held half as the replacement character.
    pub(super) fn flush_half(&mut self) -> Option<BackendStep> {
        let variant = if self.state.half.take()?.thought { THOUGHT } else { MESSAGE };
        let content = json!({ "type": "text", "text": "\u{fffd}" });
        let payload = json!({ "sessionUpdate": variant, "content": content });
        Some(self.event(self.kind_of(variant), payload.to_string()))
    }
}

/// Returns the text of a chunk as a raw JSON literal.
fn text_of(update: &str) -> Option<&str> {
    let content = ObjectMembers::parse(update).ok()?.get("content")?;
    let content = ObjectMembers::parse(content).ok()?;
    let is_text = content.string("type").is_some_and(|kind| kind == "text");
    content.get("text").filter(|text| is_text && text.starts_with('"'))
}
