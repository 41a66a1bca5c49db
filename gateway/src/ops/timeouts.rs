//! Idle and max-age timeouts: finds the next one that is due, sleeps until then, and hands expired sessions
//! to their actor, which decides. The timer drives this, not traffic; a commit only triggers a new check,
//! since it may have added a binding or changed a timeout.

use crate::session::manager::Manager;
use acp_core::timeouts::{Expiry, TimeoutInput, TimeoutKind, Timeouts};
use acp_shared::clock::Clock;
use acp_store::Store;
use acp_store::timeouts::ExpiringSession;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Maximum sleep between two checks, in milliseconds.
const SLEEP_MS: u64 = 60_000;
/// Minimum time between two checks that are triggered by commits, in milliseconds.
const CHECK_INTERVAL_MS: u64 = 1_000;

/// Runs until `stop`. `windows` is called at each check because the configuration may change.
pub(crate) async fn run(
    store: Store,
    manager: Arc<Manager>,
    windows: impl Fn() -> Timeouts + Send,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut committed = store.committed();
    loop {
        committed.mark_unchanged();
        let looked_ms = clock.now_ms();
        let now = windows();
        let next_ms = match store.expiring_sessions(now, looked_ms).await {
            Ok(mortals) => expire_due(&manager, now, &clock, mortals).await,
            Err(error) => {
                tracing::warn!(%error, "timeout check failed");
                None
            }
        };
        let until = next_ms.unwrap_or(u64::MAX).clamp(looked_ms, looked_ms + SLEEP_MS);
        let sleep = tokio::time::sleep_until(clock.instant_of(until));
        let changed = async {
            // The sender lives as long as the store; if it is gone, nothing is left to check.
            if committed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep_until(clock.instant_of(looked_ms + CHECK_INTERVAL_MS)).await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = sleep => {}
            () = changed => {}
        }
    }
}

/// Hands all due sessions to the manager. Returns the time of the next check.
async fn expire_due(
    manager: &Manager,
    windows: Timeouts,
    clock: &Clock,
    mortals: Vec<ExpiringSession>,
) -> Option<u64> {
    let mut next_ms = None;
    for ExpiringSession { session_key, subject } in mortals {
        // The agent's own timeout belongs to its actor, which knows if the agent is running.
        let Some(expiry) =
            windows.all(&subject).into_iter().find(|expiry| expiry.source != TimeoutKind::Runtime)
        else {
            continue;
        };
        if expiry.at_ms > clock.now_ms() {
            next_ms = Some(next_ms.map_or(expiry.at_ms, |next: u64| next.min(expiry.at_ms)));
            continue;
        }
        let (seen_ms, closes) = judge(&subject, &expiry);
        tracing::info!(
            %session_key,
            source = ?expiry.source,
            window_ms = expiry.window_ms,
            closes,
            "timeout expired"
        );
        if let Err(failure) = manager.expire(&session_key, expiry, seen_ms, closes).await {
            tracing::warn!(%session_key, %failure, "timeout action failed; retrying");
        }
        // Checked again soon: a session may have several bindings, and the store may be full.
        let again_ms = clock.now_ms() + CHECK_INTERVAL_MS;
        next_ms = Some(next_ms.map_or(again_ms, |next: u64| next.min(again_ms)));
    }
    next_ms
}

/// Returns the time of last use, and true if the session closes: it closes together with its last binding.
fn judge(subject: &TimeoutInput, expiry: &Expiry) -> (u64, bool) {
    let of = |binding_id| subject.bindings.iter().find(|clock| Some(clock.binding_id) == binding_id);
    match of(expiry.binding_id) {
        Some(clock) => (clock.last_activity_at_ms, subject.bindings.len() == 1),
        None => (subject.last_activity_at_ms, true),
    }
}
