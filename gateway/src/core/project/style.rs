//! How a conversation is told what a journal holds: the settings that decide its parts.
//!
//! A setting that changes must not change what was told already, nor split it differently for whoever looks again.
//! So the settings are recorded beside the binding, each with the first journal row that it holds for: parts follow
//! from the journal and these records alone, whatever the configuration says by then.

use crate::config::Separator;
use crate::core::policy::{Files, Stream};
use crate::core::project::files::AsFiles;
use crate::core::rows::Verbosity;
use crate::core::split::Limit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The tag of the agent's own text.
pub(super) const MESSAGE: &str = "agent_message_chunk";
/// The tags of tool calls.
const TOOLS: [&str; 2] = ["tool_call", "tool_call_update"];

/// The settings of one conversation from some journal row on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Style {
    /// The most that one part holds.
    pub(crate) limit: Limit,
    /// Most characters of a turn that are shown.
    pub(crate) output_chars_max: usize,
    /// Longest line about an update, in characters.
    pub(crate) line_chars_max: usize,
    /// What stands where a hidden tool call was.
    pub(crate) separator: Separator,
    /// Whether a tool call has one line when it starts and one when it ends, and no more.
    pub(crate) repeat_suppression: bool,
    /// Which kinds of update are shown; a kind that is not in here is.
    pub(crate) tags: BTreeMap<String, bool>,
    /// Whether an answer ends with a line about its turn.
    #[serde(default)]
    pub(crate) footer: bool,
    /// What is told as files; `None` where the channel carries none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<AsFiles>,
    /// How much somebody wants it to be told, whatever the rest says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) verbosity: Option<Verbosity>,
    /// What the channel shows beside plain text.
    #[serde(default)]
    pub(crate) shows: Shows,
}

/// What a channel shows beside plain text, as far as that decides what is said there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Shows {
    /// How many buttons a message has at most; 0: none.
    pub(crate) buttons: usize,
    /// Whether texts are read as Markdown: code stands in fences, and lines may be small.
    pub(crate) markdown: bool,
    /// Whether a message that was sent can be changed, so that a question says itself what became of it.
    pub(crate) changes: bool,
    /// Who may answer what agents ask, as the channel writes it; `None` where it names nobody.
    pub(crate) approvers: Option<String>,
}

impl Style {
    /// What the configuration says, within what the channel takes.
    pub(crate) fn new(channel: Limit, stream: &Stream) -> Self {
        Self {
            limit: channel.within_chars(count(stream.max_chunk_chars.value)),
            output_chars_max: count(stream.max_output_chars.value),
            line_chars_max: count(stream.max_session_update_chars.value),
            separator: stream.hidden_boundary_separator.value,
            repeat_suppression: stream.repeat_suppression.value,
            tags: stream.tag_visibility.value.clone(),
            footer: false,
            files: None,
            verbosity: None,
            shows: Shows::default(),
        }
    }

    /// The same where the channel shows this.
    pub(crate) fn in_channel(self, shows: Shows) -> Self {
        Self { shows, ..self }
    }

    /// The same where answers end with a line about their turn, or do not.
    pub(crate) fn with_footer(self, footer: bool) -> Self {
        Self { footer, ..self }
    }

    /// The same where messages carry files of so many bytes, or carry none.
    pub(crate) fn with_files(self, channel_bytes_max: Option<u64>, files: &Files) -> Self {
        let as_files = channel_bytes_max.map(|max| AsFiles {
            long_final_parts: count(files.long_final_parts.value),
            bytes_max: count(files.bytes_max.value.min(max)),
            diff: files.turn_diff.value,
            refused: false,
        });
        let is_any = |files: &AsFiles| files.diff || files.long_final_parts > 0;
        Self { files: as_files.filter(is_any), ..self }
    }

    /// The same for a row whose files the channel did not take.
    pub(crate) fn refused(self) -> Self {
        Self { files: self.files.map(|files| AsFiles { refused: true, ..files }), ..self }
    }

    /// The same in a conversation that somebody wants to be told so much.
    pub(crate) fn told(self, verbosity: Option<Verbosity>) -> Self {
        Self { verbosity, ..self }
    }

    /// The same without anything but how far a turn is.
    pub(crate) fn status_alone(mut self) -> Self {
        self.tags.insert(MESSAGE.to_owned(), false);
        self.told(Some(Verbosity::Compact))
    }

    /// Whether updates of that kind are shown.
    pub(crate) fn shows(&self, tag: &str) -> bool {
        let is_shown = self.tags.get(tag).copied().unwrap_or(true);
        match self.verbosity {
            None => is_shown,
            Some(Verbosity::Full) => is_shown || TOOLS.contains(&tag),
            Some(Verbosity::Compact | Verbosity::None) => is_shown && tag == MESSAGE,
        }
    }

    /// Whether notices that nobody has to act upon are left out.
    pub(crate) const fn is_quiet(&self) -> bool {
        matches!(self.verbosity, Some(Verbosity::None))
    }
}

fn count(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// The settings of one conversation over the whole journal of its session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Styles {
    /// Each holds from its row on, to the next one; in order.
    from: Vec<(u64, Style)>,
}

impl Styles {
    /// Of these records, in their order.
    pub(crate) const fn new(from: Vec<(u64, Style)>) -> Self {
        Self { from }
    }

    /// What holds for a journal row; `None` when nothing was recorded.
    pub(crate) fn at(&self, session_seq: u64) -> Option<&Style> {
        let later = self.from.partition_point(|(from, _)| *from <= session_seq);
        self.from.get(later.saturating_sub(1)).map(|(_, style)| style)
    }

    /// What holds for rows that are not there yet.
    pub(crate) fn last(&self) -> Option<&Style> {
        self.from.last().map(|(_, style)| style)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::core::split::Unit;

    fn style(max: usize) -> Style {
        Style {
            limit: Limit::new(Unit::Bytes, max),
            output_chars_max: 1,
            line_chars_max: 1,
            separator: Separator::None,
            repeat_suppression: true,
            tags: BTreeMap::from([("plan".to_owned(), false)]),
            footer: false,
            files: None,
            verbosity: None,
            shows: Shows::default(),
        }
    }

    #[test]
    fn each_holds_up_to_the_next_one() {
        let styles = Styles::new(vec![(0, style(100)), (5, style(200)), (9, style(300))]);
        for (seq, want) in [(0, 100), (4, 100), (5, 200), (8, 200), (9, 300), (1_000, 300)] {
            assert_eq!(styles.at(seq), Some(&style(want)), "{seq}");
        }
        assert_eq!(styles.last(), Some(&style(300)));
        assert_eq!(Styles::default().at(1), None);
    }

    #[test]
    fn what_is_recorded_reads_back() {
        let shows = Shows { buttons: 25, markdown: true, changes: true, approvers: Some("<@1>".to_owned()) };
        let style = Style { limit: Limit::new(Unit::Utf16, 1_900).within_chars(1_800), ..style(1) };
        let style = style.in_channel(shows);
        let text = serde_json::to_string(&style).unwrap();
        assert_eq!(serde_json::from_str::<Style>(&text).unwrap(), style);
        assert!(style.shows("agent_message_chunk") && !style.shows("plan"));
    }

    #[test]
    fn somebody_may_want_more_or_less_of_it() {
        let hidden = [("tool_call", false), ("agent_message_chunk", true), ("plan", true)];
        let tags = hidden.map(|(tag, shown)| (tag.to_owned(), shown)).into();
        let style = Style { tags, ..style(1) };
        for (verbosity, tools, plan, unknown, quiet) in [
            (None, false, true, true, false),
            (Some(Verbosity::Full), true, true, true, false),
            (Some(Verbosity::Compact), false, false, false, false),
            (Some(Verbosity::None), false, false, false, true),
        ] {
            let told = style.clone().told(verbosity);
            let shows = ["tool_call", "plan", "made_up"].map(|tag| told.shows(tag));
            assert_eq!((shows, told.is_quiet()), ([tools, plan, unknown], quiet), "{verbosity:?}");
            assert!(told.shows(MESSAGE) && !told.status_alone().shows(MESSAGE));
        }
    }
}
