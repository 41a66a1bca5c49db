//! `acp.stream.*`: grouping of agent output in channels. The journal keeps every chunk regardless of these
//! settings.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Time of delivery of agent output to a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryMode {
    /// At the end of the turn.
    FinalOnly,
    /// In a status card while the turn runs, and as messages at its end.
    Live,
}

/// Separator between two texts around a hidden tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Separator {
    /// Nothing.
    None,
    /// A space.
    Space,
    /// A new line.
    Newline,
    /// An empty line.
    Paragraph,
}

/// `acp.stream.*`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stream {
    /// Time of delivery of agent output. Default: `final_only`. Source: `acp.stream.deliveryMode`.
    pub delivery_mode: DeliveryMode,
    /// Time without new text after which a channel shows the text so far; at least 750 in live mode. Default:
    /// 350. Source: `acp.stream.coalesceIdleMs`.
    pub coalesce_idle_ms: u64,
    /// Minimum time between two edits of a live message. Default: 1000. Source: "configurable min interval".
    pub min_interval_ms: u64,
    /// Maximum length of a message in a channel, in characters, within the channel's own limit. Default:
    /// 1800. Source: `acp.stream.maxChunkChars`.
    pub max_chunk_chars: u64,
    /// Maximum number of characters shown per turn; one notice reports the rest. Default: 24000. Source:
    /// `acp.stream.maxOutputChars`.
    pub max_output_chars: u64,
    /// Maximum length of a line about a tool call or another update, in characters. Default: 320. Source:
    /// `acp.stream.maxSessionUpdateChars`.
    pub max_session_update_chars: u64,
    /// Shows repeated lines about a tool call only once. Default: true. Source:
    /// `acp.stream.repeatSuppression`.
    pub repeat_suppression: bool,
    /// Separator in place of a hidden tool call. Default: none, `paragraph`, and `space` in live mode.
    /// Source: `acp.stream.hiddenBoundarySeparator`.
    pub hidden_boundary_separator: Option<Separator>,
    /// Visibility by kind of update. Default: none, then `agent_message_chunk` and unknown kinds are shown.
    /// Source: `acp.stream.tagVisibility`.
    pub tag_visibility: BTreeMap<String, bool>,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            delivery_mode: DeliveryMode::FinalOnly,
            coalesce_idle_ms: 350,
            min_interval_ms: 1_000,
            max_chunk_chars: 1_800,
            max_output_chars: 24_000,
            max_session_update_chars: 320,
            repeat_suppression: true,
            hidden_boundary_separator: None,
            tag_visibility: BTreeMap::new(),
        }
    }
}
