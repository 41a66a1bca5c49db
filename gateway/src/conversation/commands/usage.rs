//! `/acp usage`: turns and tokens of the last days.

use super::{CommandContext, Commands};
use acp_core::failure::Failure;
use acp_core::usage::{Tokens, TurnUsage, usage_text};
use acp_shared::ids::SessionKey;
use acp_store::command_queries::{self, EndedTurn};
use std::collections::{BTreeSet, HashSet};

/// Maximum number of turns in a report.
const TURNS_MAX: u32 = 100_000;
const DAY_MS: u64 = 24 * 3_600_000;

impl Commands {
    /// `/acp usage`
    pub(super) async fn usage(&self, context: CommandContext<'_>, days: u64) -> Result<String, Failure> {
        let since_ms = self.store.clock().wall_ms().saturating_sub(days.saturating_mul(DAY_MS));
        let read = self.store.read("usage", move |db| {
            let turns = command_queries::ended_turns(db, since_ms, TURNS_MAX)?;
            let keys: BTreeSet<SessionKey> = turns.iter().map(|turn| turn.session_key.clone()).collect();
            let owners = keys.into_iter().map(|key| Ok((command_queries::owners(db, &key)?, key)));
            Ok((turns, owners.collect::<Result<Vec<_>, acp_store::StoreError>>()?))
        });
        let (turns, owners) = read.await?;
        let own = owners.into_iter().filter(|(owners, _)| context.by.owns(owners));
        let own: HashSet<SessionKey> = own.map(|(_, key)| key).collect();
        let turns = turns.into_iter().filter(|turn| own.contains(&turn.session_key));
        Ok(usage_text(&turns.map(turn_usage).collect::<Vec<_>>(), days))
    }
}

fn turn_usage(turn: EndedTurn) -> TurnUsage {
    let usage = turn.usage.and_then(|text| serde_json::from_str(&text).ok());
    TurnUsage {
        session: turn.label.unwrap_or_else(|| turn.session_key.to_string()),
        person: turn.author,
        ended_at_ms: turn.ended_at_ms,
        tokens: usage.and_then(|usage: serde_json::Value| Tokens::of(&usage)),
    }
}
