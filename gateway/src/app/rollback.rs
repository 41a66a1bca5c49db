//! Refusal of service by a gateway whose database was rolled back, until the operator decides. The API
//! answers each request with the reason; channels are not connected, and messages missed there are backfilled
//! later.

use crate::api::extract::ApiError;
use crate::api::socket::ApiListener;
use crate::api::{Api, sessions};
use crate::runtime::hosts::{Host, Hosts};
use crate::supervisor::{DurableProgress, SupervisorStatus};
use acp_core::config::remote::LOCAL;
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
use futures_util::future::{join_all, select_all};
use std::path::Path;
use std::time::Duration;

/// Maximum wait of a start for the supervisor's first response; then the gateway serves without it.
const FIRST_ANSWER: Duration = Duration::from_secs(2);
/// Detail code of the failure.
pub(crate) const ROLLED_BACK: &str = "ROLLED_BACK";

/// Refusal of this gateway as rolled back by the supervisor of a host.
pub(crate) struct HostRefusal {
    host: String,
    rollback: Rollback,
}

/// Waits until the supervisor of a host refuses this gateway as rolled back, and returns the refusal.
pub(crate) async fn wait_for_refusal(hosts: &Hosts) -> HostRefusal {
    let waits = hosts.iter().map(|host| Box::pin(refusal_of(host)));
    select_all(waits).await.0
}

async fn refusal_of(host: &Host) -> HostRefusal {
    let mut status = host.supervisor.status();
    loop {
        if let SupervisorStatus::RolledBack(rollback) = &*status.borrow_and_update() {
            return HostRefusal { host: host.name.to_string(), rollback: (**rollback).clone() };
        }
        if status.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Returns the error for users if the start of a gateway is refused because its database was rolled back.
/// While a supervisor does not answer, an earlier refusal of this database still applies.
pub(crate) async fn startup_refusal(store: &Store, hosts: &Hosts) -> Option<Failure> {
    let answers = join_all(hosts.iter().map(first_refusal)).await;
    if let Some(refusal) = answers.into_iter().flatten().next() {
        return Some(note(store, &refusal).await);
    }
    if hosts.iter().all(|host| host.supervisor.outage().is_none()) {
        return None;
    }
    let dir = store.dir().to_owned();
    let known = tokio::task::spawn_blocking(move || rollback::read(&dir)).await.ok().flatten()?;
    let reason = "the supervisor refused this database before, and does not answer now";
    (known.start_id == Some(store.identity().start_id)).then(|| failure(refusal_message(&known, reason)))
}

/// Waits for the supervisor's first answer, bounded, and returns it if it is a refusal as rolled back.
async fn first_refusal(host: &Host) -> Option<HostRefusal> {
    let mut status = host.supervisor.status();
    let answered =
        status.wait_for(|status| !matches!(status, SupervisorStatus::Connecting | SupervisorStatus::Busy(_)));
    match tokio::time::timeout(FIRST_ANSWER, answered).await {
        Ok(Ok(status)) => match &*status {
            SupervisorStatus::RolledBack(rollback) => {
                Some(HostRefusal { host: host.name.to_string(), rollback: (**rollback).clone() })
            }
            _ => None,
        },
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Writes the refusal to the state directory and the log, and returns it as an error for people.
pub(crate) async fn note(store: &Store, refusal: &HostRefusal) -> Failure {
    let HostRefusal { host, rollback } = refusal;
    let GatewayIdentity { epoch, start_id, .. } = *store.identity();
    let event_id = store.marks(host).await.map_or(0, |marks| marks.event_id);
    let note = RollbackRecord {
        epoch,
        start_id: Some(start_id),
        event_id,
        known_epoch: rollback.epoch,
        known_event_id: rollback.event_id,
        agents: rollback.agents,
        kept_until_ms: rollback.kept_until_ms,
        host: Some(host.clone()),
    };
    let dir = store.dir().to_owned();
    let of = if host == LOCAL { String::new() } else { format!(" of the host {host}") };
    let reason = format!("the supervisor{of} says: {}", rollback.refusal.message);
    let (kept, text) = (note.clone(), refusal_message(&note, &reason));
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

/// Answers each API request with `failure` until all supervisors admit this gateway or the gateway stops.
///
/// # Errors
/// The socket cannot be bound.
pub(crate) async fn answer(api: Api, hosts: &Hosts, failure: Failure, socket: &Path) -> std::io::Result<()> {
    let (ending, limits) = (api.ending.child_token(), api.limits);
    let routes = Router::new()
        .route("/v1/status", get(sessions::status))
        .fallback(move || std::future::ready(ApiError::from(failure.clone())))
        .with_state(api);
    let serving = tokio::spawn(ApiListener::bind(socket)?.serve(routes, limits, ending.clone()));
    let admitted = join_all(hosts.iter().map(|host| {
        let mut status = host.supervisor.status();
        async move { drop(status.wait_for(SupervisorStatus::is_up).await) }
    }));
    tokio::select! {
        _ = admitted => {}
        () = ending.cancelled() => {}
    }
    ending.cancel();
    drop(serving.await);
    Ok(())
}

/// Progress of the gateway with this store, for the handshakes with one host.
struct StoreProgress {
    store: Store,
    host: String,
    keeps_reports: bool,
}

/// Returns the progress of a gateway's store for its handshakes with a host. `keeps_reports` is true if the reports of this host are recorded.
pub(crate) fn progress(store: &Store, host: &str, keeps_reports: bool) -> Box<dyn DurableProgress> {
    Box::new(StoreProgress { store: store.clone(), host: host.to_owned(), keeps_reports })
}

impl DurableProgress for StoreProgress {
    fn marks(&self) -> BoxFuture<'_, Result<Marks, String>> {
        let why = |error: StoreError| format!("the control plane cannot be read: {}", error.whole());
        Box::pin(async move { self.store.marks(&self.host).await.map_err(why) })
    }

    fn admitted(&self, connection: u64) -> BoxFuture<'_, Result<(), String>> {
        let why = |error: StoreError| format!("the control plane cannot be written: {}", error.whole());
        Box::pin(async move {
            if connection == 1 {
                self.store.settle_admission(&self.host).await.map_err(why)?;
            }
            match self.keeps_reports {
                true => self.store.begin_host_reports(&self.host, connection).await.map_err(why),
                false => Ok(()),
            }
        })
    }
}
