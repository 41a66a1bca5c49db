//! Identify slots that the cells of one application share through the plane.

use acp_core::shards::ShardRange;
use acp_discord::core::ids::Snowflake;
use acp_discord::rest::RestClient;
use acp_discord::websocket::{IdentifySlot, IdentifySlots, SessionLimits, SlotFuture};
use acp_store::cell::plane::{DiscordConnection, IdentifySlotAnswer, IdentifySlotRequest, Plane};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// Pause after a question that was not answered.
const RETRY: Duration = Duration::from_secs(2);
/// Pause while another cell has some of the shards, or another account the application.
const OVERLAP_RETRY: Duration = Duration::from_secs(20);

/// Identify slots of the account's application, for one connection.
#[derive(Debug)]
pub(super) struct PlaneIdentifySlots {
    plane: Plane,
    connection: Arc<DiscordConnection>,
    range: ShardRange,
    rest: RestClient,
    application: OnceCell<Snowflake>,
}

impl PlaneIdentifySlots {
    pub(super) fn new(account: &str, plane: Plane, range: ShardRange, rest: RestClient) -> Self {
        Self { connection: plane.connect(account), plane, range, rest, application: OnceCell::new() }
    }

    async fn ask(&self, shard: u32, limits: SessionLimits) -> Result<IdentifySlotAnswer, String> {
        let application = self.application.get_or_try_init(|| self.rest.application()).await;
        let request = IdentifySlotRequest {
            application: application.map_err(|fault| fault.to_string())?.to_string(),
            range: self.range,
            bucket: limits.bucket(shard).into(),
            remaining: limits.remaining.into(),
            reset_after_ms: u64::try_from(limits.reset_after.as_millis()).unwrap_or(u64::MAX),
        };
        let (plane, connection) = (self.plane.clone(), Arc::clone(&self.connection));
        let asked = tokio::task::spawn_blocking(move || plane.take_slot(&connection, &request)).await;
        asked.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}

impl IdentifySlots for PlaneIdentifySlots {
    fn take(&self, shard: u32, limits: SessionLimits) -> SlotFuture<'_> {
        Box::pin(async move {
            let why = match self.ask(shard, limits).await {
                Ok(answer) => return slot(shard, self.range, answer),
                Err(why) => why,
            };
            let why = format!("no slot to identify: {why}");
            tracing::warn!(shard, why, "identify slot not taken");
            IdentifySlot::Later { why, after: RETRY }
        })
    }
}

fn slot(shard: u32, own: ShardRange, answer: IdentifySlotAnswer) -> IdentifySlot {
    match answer {
        IdentifySlotAnswer::Taken { at, remaining } => {
            tracing::info!(shard, remaining, "identify slot taken");
            IdentifySlot::Taken(at.into())
        }
        IdentifySlotAnswer::Later { wait_ms } => IdentifySlot::Later {
            why: "other sessions of this application are identified first".to_owned(),
            after: Duration::from_millis(wait_ms),
        },
        IdentifySlotAnswer::Spent { wait_ms } => IdentifySlot::Later {
            why: format!(
                "the cells have identified all new sessions that Discord permits; it permits more in {} minutes",
                wait_ms / 60_000 + 1
            ),
            after: Duration::from_millis(wait_ms),
        },
        IdentifySlotAnswer::SecondAccount { account } => IdentifySlot::Later {
            why: format!(
                "the account {account} of this gateway serves the same Discord application: remove one of them, or give it the \
                 token of another application"
            ),
            after: OVERLAP_RETRY,
        },
        IdentifySlotAnswer::Overlaps { cell, range } => IdentifySlot::Later {
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
    fn refused_slot_says_why_and_how_long() {
        const OWN: ShardRange = ShardRange { from: 0, to: 2, of: 4 };
        let other = ShardRange { from: 1, to: 4, of: 4 };
        let at = Instant::now();
        assert_eq!(
            slot(1, OWN, IdentifySlotAnswer::Taken { at, remaining: 3 }),
            IdentifySlot::Taken(at.into())
        );
        for (answer, parts, seconds) in [
            (IdentifySlotAnswer::Later { wait_ms: 4_000 }, &["identified first"][..], 4),
            (IdentifySlotAnswer::Spent { wait_ms: 7_200_000 }, &["in 121 minutes"], 7_200),
            (
                IdentifySlotAnswer::SecondAccount { account: "main".to_owned() },
                &["account main", "remove one"],
                20,
            ),
            (
                IdentifySlotAnswer::Overlaps { cell: "b".to_owned(), range: other },
                &["cell b serves shards 1 to 3 of 4", "shards 0 to 1 of 4", "`shards`"],
                20,
            ),
        ] {
            let IdentifySlot::Later { why, after } = slot(1, OWN, answer) else { panic!("taken") };
            assert!(parts.iter().all(|part| why.contains(part)), "{why}");
            assert_eq!(after.as_secs(), seconds, "{why}");
        }
    }
}
