//! Turns to identify that the cells of one application share through the plane.

use acp_core::shards::ShardRange;
use acp_discord::core::ids::Snowflake;
use acp_discord::rest::RestClient;
use acp_discord::websocket::{IdentifyTurn, IdentifyTurns, SessionLimits, TurnFuture};
use acp_store::cell::plane::{Plane, TurnAnswer, TurnRequest};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// Pause after a question that was not answered.
const RETRY: Duration = Duration::from_secs(2);
/// Pause while another cell has some of the shards.
const OVERLAP_RETRY: Duration = Duration::from_secs(20);

/// Turns of the account's application, for one connection.
#[derive(Debug)]
pub(super) struct PlaneTurns(Arc<TurnClient>);

#[derive(Debug)]
struct TurnClient {
    plane: Plane,
    range: ShardRange,
    rest: RestClient,
    application: OnceCell<Snowflake>,
}

impl PlaneTurns {
    pub(super) fn new(plane: Plane, range: ShardRange, rest: RestClient) -> Self {
        Self(Arc::new(TurnClient { plane, range, rest, application: OnceCell::new() }))
    }
}

impl IdentifyTurns for PlaneTurns {
    fn take(&self, shard: u32, limits: SessionLimits) -> TurnFuture {
        let client = Arc::clone(&self.0);
        Box::pin(async move {
            let why = match client.ask(shard, limits).await {
                Ok(answer) => return turn(shard, client.range, answer),
                Err(why) => why,
            };
            let why = format!("the turn to identify cannot be taken: {why}");
            tracing::warn!(shard, why, "turn to identify not taken");
            IdentifyTurn::Later { why, after: RETRY }
        })
    }
}

impl TurnClient {
    async fn ask(self: &Arc<Self>, shard: u32, limits: SessionLimits) -> Result<TurnAnswer, String> {
        let application = self.application.get_or_try_init(|| self.rest.application()).await;
        let request = TurnRequest {
            application: application.map_err(|fault| fault.to_string())?.to_string(),
            range: self.range,
            bucket: limits.bucket(shard).into(),
            remaining: limits.remaining.into(),
            reset_after_ms: u64::try_from(limits.reset_after.as_millis()).unwrap_or(u64::MAX),
        };
        let plane = self.plane.clone();
        let asked = tokio::task::spawn_blocking(move || plane.take_turn(&request)).await;
        asked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

fn turn(shard: u32, own: ShardRange, answer: TurnAnswer) -> IdentifyTurn {
    match answer {
        TurnAnswer::Taken { at, remaining } => {
            tracing::info!(shard, remaining, "turn to identify taken");
            IdentifyTurn::Taken(at.into())
        }
        TurnAnswer::Later { wait_ms } => IdentifyTurn::Later {
            why: "other sessions of this application are identified first".to_owned(),
            after: Duration::from_millis(wait_ms),
        },
        TurnAnswer::Spent { wait_ms } => IdentifyTurn::Later {
            why: format!(
                "the cells have identified all new sessions that Discord permits; it permits more in {} minutes",
                wait_ms / 60_000 + 1
            ),
            after: Duration::from_millis(wait_ms),
        },
        TurnAnswer::Overlaps { cell, range } => IdentifyTurn::Later {
            why: format!(
                "the cell {cell} serves {range}, and this one is to serve {own}: two cells may not answer in one server. \
                 Correct `shards` of one of them"
            ),
            after: OVERLAP_RETRY,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn refused_turn_says_why_and_how_long() {
        const OWN: ShardRange = ShardRange { from: 0, to: 2, of: 4 };
        let other = ShardRange { from: 1, to: 4, of: 4 };
        let at = Instant::now();
        assert_eq!(turn(1, OWN, TurnAnswer::Taken { at, remaining: 3 }), IdentifyTurn::Taken(at.into()));
        for (answer, parts, seconds) in [
            (TurnAnswer::Later { wait_ms: 4_000 }, &["identified first"][..], 4),
            (TurnAnswer::Spent { wait_ms: 7_200_000 }, &["in 121 minutes"], 7_200),
            (
                TurnAnswer::Overlaps { cell: "b".to_owned(), range: other },
                &["cell b serves shards 1 to 3 of 4", "shards 0 to 1 of 4", "`shards`"],
                20,
            ),
        ] {
            let IdentifyTurn::Later { why, after } = turn(1, OWN, answer) else { panic!("taken") };
            assert!(parts.iter().all(|part| why.contains(part)), "{why}");
            assert_eq!(after.as_secs(), seconds, "{why}");
        }
    }
}
