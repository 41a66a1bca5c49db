//! Completions of spawned sessions: each end of a spawned session's first run becomes a prompt of the session that spawned
//! it, once it is at rest. The prompt and the mark of the completion are one transaction of the requester's actor, so a
//! crash between two attempts neither loses nor repeats it.

use crate::session::manager::Manager;
use acp_core::completion::{completion_key, completion_prompt};
use acp_core::failure::Failure;
use acp_core::rows::{RunRow, SessionRow};
use acp_core::session::SessionState;
use acp_core::session_tools::AnswerText;
use acp_core::widening::stricter;
use acp_shared::ids::{IdempotencyKey, RunId};
use acp_store::completions::DueCompletion;
use acp_store::events::JournalRows;
use acp_store::{Store, StoreError};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Minimum time between two checks that are triggered by commits.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time before a completion that the requester refused is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Maximum number of completions of one check.
const DUE_MAX: u64 = 256;
/// Bounds of one read of the journal.
const ROWS_AT_ONCE: u64 = 1_000;
const BYTES_AT_ONCE: usize = 4 * 1024 * 1024;

/// Delivers until `stop`.
pub(crate) async fn run(store: Store, manager: Arc<Manager>, stop: CancellationToken) {
    let mut committed = store.committed();
    let mut postponed: HashMap<RunId, Instant> = HashMap::new();
    loop {
        committed.mark_unchanged();
        match store.due_completions(DUE_MAX).await {
            Ok(found) => {
                postponed.retain(|run_id, until| {
                    *until > Instant::now() && found.iter().any(|due| due.run.run_id == *run_id)
                });
                for due in found {
                    let run_id = due.run.run_id;
                    if postponed.contains_key(&run_id) {
                        continue;
                    }
                    if let Err(failure) = deliver(&store, &manager, due).await {
                        tracing::warn!(%run_id, %failure, retry_in = ?RETRY_AFTER, "completion not delivered");
                        postponed.insert(run_id, Instant::now() + RETRY_AFTER);
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "completion check failed"),
        }
        let changed = async {
            // The sender lives as long as the store; if it is gone, nothing is left to deliver.
            if committed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY_AFTER) => {}
            () = changed => {}
        }
    }
}

/// Delivers one completion, or drops it if the requester is closed.
async fn deliver(store: &Store, manager: &Manager, due: DueCompletion) -> Result<(), Failure> {
    let DueCompletion { requester, session, run } = due;
    let (run_id, session_key) = (run.run_id, &session.session_key);
    let Some(requester) = requester.filter(|requester| requester.state != SessionState::Closed) else {
        store.drop_completion(run_id, "requester-closed").await?;
        tracing::info!(%session_key, %run_id, "completion dropped: its requester is closed");
        return Ok(());
    };
    let answer = read_answer(store, &session, &run).await?;
    let mut prompt = completion_prompt(&session, &run, answer, &manager.secrets(&session));
    // The permission mode of a turn also limits the prompts about its spawned sessions.
    prompt.permissions.mode = run.permissions.mode.map(|mode| stricter(mode, requester.options.permission));
    let requester = &requester.session_key;
    let key = completion_key(&run).unwrap_or_else(|_| IdempotencyKey::mint());
    let accepted = manager.prompt(requester, prompt, key).await?;
    tracing::info!(%session_key, %run_id, %requester, prompt = %accepted.run_id, "completion delivered");
    Ok(())
}

/// Reads the text of the agent in the run, which is the session's first one.
async fn read_answer(store: &Store, session: &SessionRow, run: &RunRow) -> Result<String, StoreError> {
    let (mut answer, mut at) = (AnswerText::new(run.run_id), None);
    while run.last_seq > 0 && !answer.has_ended() {
        let key = session.session_key.clone();
        let JournalRows { rows, .. } = store.events_after(key, at, ROWS_AT_ONCE, BYTES_AT_ONCE).await?;
        let Some(last) = rows.last() else { break };
        at = Some(last.session_seq);
        rows.iter().for_each(|row| answer.add(row));
    }
    Ok(answer.into_text())
}
