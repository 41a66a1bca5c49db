//! `acp.stream.*`: how channels group what an agent says. The journal keeps every chunk, whatever stands here.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// When a conversation sees what an agent says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeliveryMode {
    /// When the turn has ended.
    FinalOnly,
    /// While it is said, and once more when the turn has ended.
    Live,
}

/// What stands between two texts with a hidden tool call between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Separator {
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
pub(crate) struct Stream {
    /// When a conversation sees text. Default: `final_only`. Source: `acp.stream.deliveryMode`.
    pub(crate) delivery_mode: DeliveryMode,
    /// A channel shows text after this long without more of it; in live mode 750 at least. Default: 350.
    /// Source: `acp.stream.coalesceIdleMs`.
    pub(crate) coalesce_idle_ms: u64,
    /// Between two changes of a live message. Default: 1000. Source: "configurable min interval".
    pub(crate) min_interval_ms: u64,
    /// Longest part of a message in a channel, in characters; the channel's own bound holds beside it.
    /// Default: 1800. Source: `acp.stream.maxChunkChars`.
    pub(crate) max_chunk_chars: u64,
    /// Most characters of a turn that are shown; what is over is named in one notice. Default: 24000.
    /// Source: `acp.stream.maxOutputChars`.
    pub(crate) max_output_chars: u64,
    /// Longest line about a tool call or another update, in characters. Default: 320.
    /// Source: `acp.stream.maxSessionUpdateChars`.
    pub(crate) max_session_update_chars: u64,
    /// Whether the same line about a tool call is shown once only. Default: true.
    /// Source: `acp.stream.repeatSuppression`.
    pub(crate) repeat_suppression: bool,
    /// What stands where a hidden tool call was. Default: none, `paragraph`, and `space` in live mode.
    /// Source: `acp.stream.hiddenBoundarySeparator`.
    pub(crate) hidden_boundary_separator: Option<Separator>,
    /// Which kinds of update are shown. Default: none, then `agent_message_chunk` and unknown kinds are.
    /// Source: `acp.stream.tagVisibility`.
    pub(crate) tag_visibility: BTreeMap<String, bool>,
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
