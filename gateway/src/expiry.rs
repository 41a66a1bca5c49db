//! Windows that run out: looks when the next one does, sleeps until then, and hands what is due to the session's
//! actor, which decides. Time wakes it, not traffic; a commit only makes it look again, since somebody may have been
//! bound or have changed a window.

use crate::clock::Clock;
use crate::core::ttl::{Expiry, Source, Subject, Windows};
use crate::manager::Manager;
use crate::store::Store;
use crate::store::sessions::Mortal;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The longest sleep, in milliseconds: whatever else happens, windows are looked at this often.
const SLEEP_MS: u64 = 60_000;
/// After a commit the windows are looked at again, but no sooner than this after the last look, in milliseconds.
const LOOK_MS: u64 = 1_000;

/// Runs until `stop`. The windows are asked for anew at each look: configuration may change.
pub(crate) async fn run(
    store: Store,
    manager: Arc<Manager>,
    windows: impl Fn() -> Windows + Send,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut committed = store.committed();
    loop {
        committed.mark_unchanged();
        let looked_ms = clock.now_ms();
        let now = windows();
        let next_ms = match store.mortals(now).await {
            Ok(mortals) => expire_due(&manager, now, &clock, mortals).await,
            Err(error) => {
                tracing::warn!(%error, "the windows cannot be looked at");
                None
            }
        };
        let until = next_ms.unwrap_or(u64::MAX).clamp(looked_ms, looked_ms + SLEEP_MS);
        let sleep = tokio::time::sleep_until(clock.instant_of(until));
        let changed = async {
            // The sender lives as long as the store: without it there is nothing to look at.
            if committed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep_until(clock.instant_of(looked_ms + LOOK_MS)).await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = sleep => {}
            () = changed => {}
        }
    }
}

/// Has everything that is due ended; when the next window ends.
async fn expire_due(manager: &Manager, windows: Windows, clock: &Clock, mortals: Vec<Mortal>) -> Option<u64> {
    let mut next_ms = None;
    for Mortal { session_key, subject } in mortals {
        // An agent's own window is its actor's: it knows whether the agent is there.
        let Some(expiry) = windows.all(&subject).into_iter().find(|expiry| expiry.source != Source::Runtime)
        else {
            continue;
        };
        if expiry.at_ms > clock.now_ms() {
            next_ms = Some(next_ms.map_or(expiry.at_ms, |next: u64| next.min(expiry.at_ms)));
            continue;
        }
        let (seen_ms, closes) = judge(&subject, &expiry);
        tracing::info!(%session_key, source = ?expiry.source, window_ms = expiry.window_ms, closes, "a window ran out");
        if let Err(failure) = manager.expire(&session_key, expiry, seen_ms, closes).await {
            tracing::warn!(%session_key, %failure, "a window that ran out did not end anything yet");
        }
        // It is looked at again: a session may have more than one binding, and the store may be full.
        let again_ms = clock.now_ms() + LOOK_MS;
        next_ms = Some(next_ms.map_or(again_ms, |next: u64| next.min(again_ms)));
    }
    next_ms
}

/// When what runs out had last been used, and whether the session ends with it: its last binding takes it along.
fn judge(subject: &Subject, expiry: &Expiry) -> (u64, bool) {
    let of = |binding_id| subject.bindings.iter().find(|clock| Some(clock.binding_id) == binding_id);
    match of(expiry.binding_id) {
        Some(clock) => (clock.last_activity_at_ms, subject.bindings.len() == 1),
        None => (subject.last_activity_at_ms, true),
    }
}
