//! Refusal of service by a gateway whose database was rolled back, until the operator decides. The API
//! answers each request with the reason; channels are not connected, and messages missed there are backfilled
//! later.

use crate::api::extract::ApiError;
use crate::api::socket::ApiListener;
use crate::api::{Api, sessions};
use crate::runtime::hosts::Hosts;
use crate::supervisor::{DurableProgress, SupervisorClient, SupervisorStatus};
use acp_core::failure::Failure;
use acp_core::time_format::format_utc;
use acp_shared::codes::Code;
use acp_shared::protocol::{Marks, Rollback};
use acp_store::identity::GatewayIdentity;
use acp_store::rollback::{self, RollbackRecord};
use acp_store::{Store, StoreError};
use axum::Router;
use axum::routing::get;
use futures_util::future::BoxFuture;
use futures_util::future::select_all;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Maximum wait of a start for the supervisor's first response; then the gateway serves without it.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
/// Detail code of the failure.
pub(crate) const ROLLED_BACK: &str = "ROLLED_BACK";

/// Waits until the supervisor of a host refuses this gateway as rolled back, and returns the refusal.
pub(crate) async fn wait_for_refusal(hosts: &Hosts) -> Rollback {
    let waits = hosts.iter().map(|host| Box::pin(refusal_of(&host.supervisor)));
    select_all(waits).await.0
}

async fn refusal_of(supervisor: &SupervisorClient) -> Rollback {
    let mut status = supervisor.status();
    loop {
        if let SupervisorStatus::RolledBack(rollback) = &*status.borrow_and_update() {
            return (**rollback).clone();
        }
        if status.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns the error for users if the start of a gateway is refused because its database was rolled back.
/// While the supervisor does not answer, an earlier refusal of this database still applies.
pub(crate) async fn startup_refusal(store: &Store, supervisor: &SupervisorClient) -> Option<Failure> {
    if let Some(rollback) = first_refusal(supervisor).await {
        return Some(note(store, &rollback).await);
    }
    if supervisor.status().borrow().is_up() {
        return None;
    }
    let dir = store.dir().to_owned();
    let known = tokio::task::spawn_blocking(move || rollback::read(&dir)).await.ok().flatten()?;
    let reason = "the supervisor refused this database before, and does not answer now";
    (known.start_id == Some(store.identity().start_id)).then(|| failure(refusal_message(&known, reason)))
}

/// Waits for the supervisor's first answer, bounded, and returns it if it is a refusal as rolled back.
async fn first_refusal(supervisor: &SupervisorClient) -> Option<Rollback> {
    let mut status = supervisor.status();
    let answered =
        status.wait_for(|status| !matches!(status, SupervisorStatus::Connecting | SupervisorStatus::Busy(_)));
    match tokio::time::timeout(FIRST_ANSWER, answered).await {
        Ok(Ok(status)) => match &*status {
            SupervisorStatus::RolledBack(rollback) => Some((**rollback).clone()),
            _ => None,
        },
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Writes the refusal to the state directory and the log, and returns it as an error for people.
pub(crate) async fn note(store: &Store, rollback: &Rollback) -> Failure {
    let GatewayIdentity { epoch, start_id, .. } = *store.identity();
    let event_id = store.marks().await.map_or(0, |marks| marks.event_id);
    let note = RollbackRecord {
        epoch,
        start_id: Some(start_id),
        event_id,
        known_epoch: rollback.epoch,
        known_event_id: rollback.event_id,
        agents: rollback.agents,
        kept_until_ms: rollback.kept_until_ms,
    };
    let dir = store.dir().to_owned();
    let (kept, text) =
        (note.clone(), refusal_message(&note, &format!("the supervisor says: {}", rollback.refusal.message)));
    let written = tokio::task::spawn_blocking(move || rollback::write(&dir, &kept)).await;
    if !matches!(written, Ok(Ok(()))) {
        tracing::warn!(?written, "refusal not noted in the state directory");
    }
    tracing::error!(
        epoch,
        event_id,
        known_epoch = note.known_epoch,
        known_event_id = note.known_event_id,
        agents = note.agents,
        kept_until = %format_utc(note.kept_until_ms),
        "database rolled back; gateway refuses to serve"
    );
    failure(text)
}

fn failure(text: String) -> Failure {
    Failure::new(Code::StoreUnavailable, text).detail(ROLLED_BACK).origin("gateway")
}

fn refusal_message(note: &RollbackRecord, reason: &str) -> String {
    let kept = match note.agents {
        0 => "None of its agents is alive".to_owned(),
        agents => format!("{agents} living agents are kept until {}", format_utc(note.kept_until_ms)),
    };
    format!(
        "The gateway refuses to serve: {reason}. The database here is at epoch {} and event {}, the \
         supervisor's record is at epoch {} and event {}. {kept}; the gateway does no work meanwhile.",
        note.epoch, note.event_id, note.known_epoch, note.known_event_id,
    )
}

/// Answers each API request with `failure` until the supervisor admits this gateway or the gateway stops.
///
/// # Errors
/// The socket cannot be bound.
pub(crate) async fn answer(
    api: Api,
    supervisor: &SupervisorClient,
    failure: Failure,
    socket: &Path,
) -> std::io::Result<()> {
    let (ending, limits) = (api.ending.child_token(), api.limits);
    let routes = Router::new()
        .route("/v1/status", get(sessions::status))
        .fallback(move || std::future::ready(ApiError::from(failure.clone())))
        .with_state(api);
    let serving = tokio::spawn(ApiListener::bind(socket)?.serve(routes, limits, ending.clone()));
    let mut status = supervisor.status();
    tokio::select! {
        _ = status.wait_for(SupervisorStatus::is_up) => {}
        () = ending.cancelled() => {}
    }
    ending.cancel();
    drop(serving.await);
    Ok(())
}

/// Hosts that have not admitted this start of the gateway yet.
#[derive(Debug)]
pub(crate) struct Admissions(Mutex<BTreeSet<String>>);

impl Admissions {
    /// Creates the set of these hosts.
    pub(crate) fn of<'a>(names: impl Iterator<Item = &'a str>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(names.map(str::to_owned).collect())))
    }

    /// Records the admission by a host. Returns true if no other one is missing.
    fn record(&self, host: &str) -> bool {
        let mut missing = self.0.lock();
        missing.remove(host);
        missing.is_empty()
    }
}

/// Progress of the gateway with this store, for the handshakes with one host.
struct StoreProgress {
    store: Store,
    host: String,
    admissions: Arc<Admissions>,
}

/// Returns the progress of a gateway's store for its handshakes with a host.
pub(crate) fn progress(store: &Store, host: &str, admissions: Arc<Admissions>) -> Box<dyn DurableProgress> {
    Box::new(StoreProgress { store: store.clone(), host: host.to_owned(), admissions })
}

impl DurableProgress for StoreProgress {
    fn marks(&self) -> BoxFuture<'_, Result<Marks, String>> {
        let why = |error: StoreError| format!("the control plane cannot be read: {}", error.whole());
        Box::pin(async move { self.store.marks().await.map_err(why) })
    }

    fn admitted(&self) -> BoxFuture<'_, Result<(), String>> {
        let why = |error: StoreError| format!("the control plane cannot be written: {}", error.whole());
        Box::pin(async move {
            // The events of this start count from its first admission; an accepted loss holds for every host.
            let is_by_all = self.admissions.record(&self.host);
            self.store.settle_admission(is_by_all).await.map_err(why)
        })
    }
}
