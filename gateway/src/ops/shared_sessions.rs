//! Sessions with shared directories: moves those of a host that is away to other hosts, once all agents there have ended.

use crate::runtime::hosts::Hosts;
use crate::session::manager::Manager;
use acp_store::Store;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Interval of the checks, and pause after a failed move.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Interval between two looks for sessions of a host that had none left.
const IDLE_EVERY: Duration = Duration::from_secs(60);

/// Runs until `stop`. Without `remote.shared_roots` there is nothing to do.
pub(crate) async fn run(store: Store, hosts: Arc<Hosts>, manager: Arc<Manager>, stop: CancellationToken) {
    if !hosts.shares_directories() {
        return;
    }
    let mut idle_until: HashMap<String, Instant> = HashMap::new();
    loop {
        let lost = hosts.lost();
        idle_until.retain(|host, _| lost.contains(host));
        for host in lost {
            if idle_until.get(&host).is_some_and(|until| Instant::now() < *until) {
                continue;
            }
            if move_sessions(&store, &hosts, &manager, &host).await {
                idle_until.insert(host, Instant::now() + IDLE_EVERY);
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
}

/// Moves the sessions of a lost host. Returns true if none is left.
async fn move_sessions(store: &Store, hosts: &Hosts, manager: &Manager, host: &str) -> bool {
    let sessions = match store.sessions_on(host.to_owned()).await {
        Ok(sessions) => sessions,
        Err(error) => {
            tracing::warn!(host, %error, "sessions of a lost host cannot be read");
            return false;
        }
    };
    let mut is_done = true;
    for (session_key, cwd) in sessions {
        if !hosts.is_shared(&cwd) {
            continue;
        }
        match manager.move_from_lost_host(&session_key, host).await {
            Ok(Some(to)) => tracing::info!(%session_key, from = host, to, "session moved from a lost host"),
            Ok(None) => {}
            Err(failure) => {
                is_done = false;
                tracing::warn!(%session_key, from = host, %failure, "session of a lost host not moved; retrying");
            }
        }
    }
    is_done
}
