//! Presentation settings of a conversation, which determine the parts of its journal rows.
//!
//! A changed setting must not change parts that were already delivered, nor split them differently when they
//! are computed again. So the settings are stored with the binding, each with the first journal row they
//! apply to: parts depend only on the journal and these records, not on the current configuration.

use crate::config::Separator;
use crate::message_split::MessageLimit;
use crate::policy::{FilePolicy, StreamPolicy};
use crate::render::files::FileSettings;
use crate::rows::Verbosity;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tag of the agent's own text.
pub(super) const MESSAGE: &str = "agent_message_chunk";
/// Tags of tool calls.
const TOOLS: [&str; 2] = ["tool_call", "tool_call_update"];

/// Presentation settings of one conversation, in effect from a certain journal row on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Style {
    /// Maximum length of a part.
    pub limit: MessageLimit,
    /// Maximum length of a turn's visible output, in characters.
    pub output_chars_max: usize,
    /// Maximum length of a line about an update, in characters.
    pub line_chars_max: usize,
    /// Separator in place of a hidden tool call.
    pub separator: Separator,
    /// True if a tool call has only one line when it starts and one when it ends.
    pub repeat_suppression: bool,
    /// Visibility by kind of update; a kind without an entry is shown.
    pub tags: BTreeMap<String, bool>,
    /// True if an answer ends with a footer line about its turn.
    #[serde(default)]
    pub footer: bool,
    /// Settings for files; `None` if the channel does not support them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FileSettings>,
    /// Verbosity set by a person, which overrides the other settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<Verbosity>,
    /// Display features of the channel.
    #[serde(default)]
    pub shows: ChannelFeatures,
}

/// Display features of a channel that affect the text of messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelFeatures {
    /// Maximum number of buttons of a message; 0 for none.
    pub buttons: usize,
    /// True if texts are rendered as Markdown, with code blocks and small print.
    pub markdown: bool,
    /// True if sent messages can be edited, e.g. to show the outcome in a question's own message.
    pub changes: bool,
    /// Approvers of permission requests, as written in the channel; `None` if it names none.
    pub approvers: Option<String>,
}

impl Style {
    /// Creates the style from the configuration, within the limits of the channel.
    pub fn new(channel: MessageLimit, stream: &StreamPolicy) -> Self {
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
            shows: ChannelFeatures::default(),
        }
    }

    /// Sets the display features of the channel.
    pub fn in_channel(self, shows: ChannelFeatures) -> Self {
        Self { shows, ..self }
    }

    /// Enables or disables the footer line of answers.
    pub fn with_footer(self, footer: bool) -> Self {
        Self { footer, ..self }
    }

    /// Sets the files settings for a channel with this maximum file size, or without files.
    pub fn with_files(self, channel_bytes_max: Option<u64>, files: &FilePolicy) -> Self {
        let as_files = channel_bytes_max.map(|max| FileSettings {
            long_final_parts: count(files.long_final_parts.value),
            bytes_max: count(files.bytes_max.value.min(max)),
            diff: files.turn_diff.value,
            refused: false,
        });
        let is_any = |files: &FileSettings| files.diff || files.long_final_parts > 0;
        Self { files: as_files.filter(is_any), ..self }
    }

    /// Returns the style for a row whose files the channel refused.
    pub fn with_files_refused(self) -> Self {
        Self { files: self.files.map(|files| FileSettings { refused: true, ..files }), ..self }
    }

    /// Sets the verbosity chosen by a person.
    pub fn with_verbosity(self, verbosity: Option<Verbosity>) -> Self {
        Self { verbosity, ..self }
    }

    /// Reduces the output to the progress of a turn.
    pub fn status_only(mut self) -> Self {
        self.tags.insert(MESSAGE.to_owned(), false);
        self.with_verbosity(Some(Verbosity::Compact))
    }

    /// True if updates of this kind are shown.
    pub fn shows(&self, tag: &str) -> bool {
        let is_shown = self.tags.get(tag).copied().unwrap_or(true);
        match self.verbosity {
            None => is_shown,
            Some(Verbosity::Full) => is_shown || TOOLS.contains(&tag),
            Some(Verbosity::Compact | Verbosity::None) => is_shown && tag == MESSAGE,
        }
    }

    /// True if notices about updates of this kind between turns are shown.
    pub fn shows_notice(&self, tag: &str) -> bool {
        match self.verbosity {
            Some(Verbosity::Compact) => self.tags.get(tag).copied().unwrap_or(true),
            None | Some(Verbosity::Full | Verbosity::None) => self.shows(tag),
        }
    }

    /// True if notices that require no action are omitted.
    pub const fn is_quiet(&self) -> bool {
        matches!(self.verbosity, Some(Verbosity::None))
    }
}

fn count(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Presentation settings of one conversation over the whole journal of its session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StyleHistory {
    /// Styles with the first row they apply to, in order; each ends where the next begins.
    from: Vec<(u64, Style)>,
}

impl StyleHistory {
    /// Creates the list from records in order.
    pub const fn new(from: Vec<(u64, Style)>) -> Self {
        Self { from }
    }

    /// Returns the style for a journal row; `None` without any record.
    pub fn at(&self, session_seq: u64) -> Option<&Style> {
        let later = self.from.partition_point(|(from, _)| *from <= session_seq);
        self.from.get(later.saturating_sub(1)).map(|(_, style)| style)
    }

    /// Returns the style for future rows.
    pub fn last(&self) -> Option<&Style> {
        self.from.last().map(|(_, style)| style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message_split::Unit;

    fn style(max: usize) -> Style {
        let (limit, tags) = (MessageLimit::new(Unit::Bytes, max), [("plan".to_owned(), false)].into());
        Style { limit, tags, ..crate::render::tests::style() }
    }

    #[test]
    fn style_is_valid_until_the_next_one() {
        let styles = StyleHistory::new(vec![(0, style(100)), (5, style(200)), (9, style(300))]);
        for (seq, want) in [(0, 100), (4, 100), (5, 200), (8, 200), (9, 300), (1_000, 300)] {
            assert_eq!(styles.at(seq), Some(&style(want)), "{seq}");
        }
        assert_eq!(styles.last(), Some(&style(300)));
        assert_eq!(StyleHistory::default().at(1), None);
    }

    #[test]
    fn style_round_trips() {
        let shows = ChannelFeatures {
            buttons: 25,
            markdown: true,
            changes: true,
            approvers: Some("<@1>".to_owned()),
        };
        let style = Style { limit: MessageLimit::new(Unit::Utf16, 1_900).within_chars(1_800), ..style(1) };
        let style = style.in_channel(shows);
        let text = serde_json::to_string(&style).unwrap();
        assert_eq!(serde_json::from_str::<Style>(&text).unwrap(), style);
        assert!(style.shows("agent_message_chunk") && !style.shows("plan"));
    }

    #[test]
    fn verbosity_changes_visible_tags() {
        let hidden = [("tool_call", false), ("agent_message_chunk", true), ("plan", true)];
        let tags = hidden.map(|(tag, shown)| (tag.to_owned(), shown)).into();
        let style = Style { tags, ..style(1) };
        for (verbosity, tools, plan, unknown, quiet) in [
            (None, false, true, true, false),
            (Some(Verbosity::Full), true, true, true, false),
            (Some(Verbosity::Compact), false, false, false, false),
            (Some(Verbosity::None), false, false, false, true),
        ] {
            let adjusted = style.clone().with_verbosity(verbosity);
            let shows = ["tool_call", "plan", "made_up"].map(|tag| adjusted.shows(tag));
            assert_eq!((shows, adjusted.is_quiet()), ([tools, plan, unknown], quiet), "{verbosity:?}");
            assert!(adjusted.shows(MESSAGE) && !adjusted.status_only().shows(MESSAGE));
        }
    }
}
