//! Sessions with shared directories: moves those of a lost host to other hosts, once all agents there have ended.

use crate::runtime::hosts::Hosts;
use crate::session::manager::Manager;
use acp_core::failure::Failure;
use acp_shared::backoff::Backoff;
use acp_shared::codes::Code;
use acp_shared::ids::SessionKey;
use acp_store::Store;
use futures_util::StreamExt as _;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Interval of the checks for lost hosts.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Interval of the checks of a lost host that has no sessions to move.
const IDLE_EVERY: Duration = Duration::from_secs(60);
/// Pauses after passes that could not move all sessions.
const RETRY_BACKOFF: Backoff = Backoff::new(5_000, 60_000);
/// Maximum number of moves at a time.
const MOVES_MAX: usize = 16;
/// Maximum time of a move.
const MOVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Next pass over the sessions of a lost host.
struct NextPass {
    at: Instant,
    backoff: Backoff,
}

/// Runs until `stop`. Without `remote.shared_roots` there is nothing to do.
pub(crate) async fn run(store: Store, hosts: Arc<Hosts>, manager: Arc<Manager>, stop: CancellationToken) {
    if !hosts.shares_directories() {
        return;
    }
    tokio::select! {
        () = stop.cancelled() => {}
        () = move_all(&store, &hosts, &manager) => {}
    }
}

async fn move_all(store: &Store, hosts: &Hosts, manager: &Manager) {
    let mut passes: HashMap<String, NextPass> = HashMap::new();
    loop {
        let lost = hosts.lost();
        passes.retain(|host, _| lost.contains(host));
        for host in lost {
            let now = Instant::now();
            let next = passes.entry(host.clone()).or_insert(NextPass { at: now, backoff: RETRY_BACKOFF });
            if now < next.at {
                continue;
            }
            let pause = match move_sessions(store, hosts, manager, &host).await {
                true => {
                    next.backoff.reset();
                    IDLE_EVERY
                }
                false => next.backoff.next_pause(),
            };
            next.at = Instant::now() + pause;
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// Moves the sessions of a lost host. Returns true if none is left.
async fn move_sessions(store: &Store, hosts: &Hosts, manager: &Manager, host: &str) -> bool {
    let mut sessions = match store.sessions_on(host.to_owned()).await {
        Ok(sessions) => sessions,
        Err(error) => {
            tracing::warn!(host, %error, "sessions of a lost host cannot be read");
            return false;
        }
    };
    sessions.retain(|(_, directories)| hosts.are_shared(directories));
    let moves = sessions.into_iter().map(|(key, _)| move_session(manager, key, host));
    let failures =
        futures_util::stream::iter(moves).buffer_unordered(MOVES_MAX).filter_map(std::future::ready);
    let failures: Vec<Failure> = failures.collect().await;
    let Some(failure) = failures.first() else { return true };
    tracing::warn!(host, failed = failures.len(), %failure, "sessions of a lost host not moved; retrying");
    false
}

/// Moves one session. Returns the failure, if there is one.
async fn move_session(manager: &Manager, session_key: SessionKey, host: &str) -> Option<Failure> {
    let moved = tokio::time::timeout(MOVE_TIMEOUT, manager.move_from_lost_host(&session_key, host)).await;
    match moved {
        Ok(Ok(Some(to))) => tracing::info!(%session_key, from = host, to, "session moved from a lost host"),
        Ok(Ok(None)) => {}
        Ok(Err(failure)) => return Some(failure),
        Err(_) => return Some(Failure::new(Code::Timeout, format!("{session_key} does not answer"))),
    }
    None
}
