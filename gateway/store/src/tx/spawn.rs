//! Creation of a session together with its binding, first run and first events.

use crate::error::StoreError;
use crate::tx::claim::claim;
use crate::tx::commit::{apply, check_session};
use crate::{Store, acpx_names, bindings, completions, idempotency, runs, sessions};
use acp_core::acpx_contract::AcpxNaming;
use acp_core::event::EventKind;
use acp_core::rows::{BindingRow, RunRow, SessionRow};
use acp_core::writes::{ActorFence, ActorSnapshot, SessionLimits, Write};
use acp_shared::ids::IdempotencyKey;

/// Rows of a new session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpawnTx {
    /// The session.
    pub session: SessionRow,
    /// Name of the session in the contract of acpx.
    pub naming: Option<AcpxNaming>,
    /// Binding of the session.
    pub binding: Option<BindingRow>,
    /// First run.
    pub run: Option<RunRow>,
    /// First events, as kind and payload; they belong to the first run if there is one.
    pub events: Vec<(EventKind, String)>,
    /// Result to store for idempotency: scope, key, fingerprint, result.
    pub idempotency: Option<(String, IdempotencyKey, String, String)>,
    /// Limits on sessions in use.
    pub caps: SessionLimits,
    /// Maximum number of open sessions that the spawner may have spawned, this one included; `None` for no limit.
    pub children_max: Option<u64>,
}

impl Store {
    /// Inserts a session and its first rows, within the limits on sessions in use, and claims the session as [`Store::claim`]
    /// does.
    ///
    /// # Errors
    /// [`StoreError::KeyTaken`] (checked first), [`StoreError::NameTaken`], [`StoreError::LimitReached`], [`StoreError::TooManyChildren`],
    /// [`StoreError::LabelTaken`], [`StoreError::Continued`], [`StoreError::ConversationBound`], as [`Store::commit`]. After an
    /// error nothing was created.
    pub async fn spawn_session(&self, spawn: SpawnTx) -> Result<(ActorSnapshot, ActorFence), StoreError> {
        self.write("spawn_session", move |tx| {
            let SpawnTx { session, naming, binding, run, events, idempotency, caps, children_max } = spawn;
            if let Some((scope, key, fingerprint, result)) = &idempotency {
                idempotency::insert(tx, scope, key, fingerprint, result, tx.now_ms())?;
            }
            if let Some(naming) = &naming {
                acpx_names::check_free(tx, &session.agent, naming)?;
            }
            sessions::check_not_continued(tx, &session)?;
            sessions::check_caps(tx, &caps)?;
            if let (Some(parent), Some(max)) = (&session.spawned_by, children_max) {
                sessions::check_children(tx, parent, max)?;
            }
            sessions::insert(tx, &session)?;
            if let Some(naming) = &naming {
                acpx_names::insert(tx, &session, naming)?;
            }
            if let Some(binding) = &binding {
                if binding.session_key != session.session_key {
                    return Err(StoreError::Refused("the binding belongs to another session"));
                }
                bindings::insert(tx, binding)?;
            }
            if let Some(run) = &run {
                if run.session_key != session.session_key {
                    return Err(StoreError::Refused("the run belongs to another session"));
                }
                runs::put(tx, run)?;
                if let Some(requester) = &session.spawned_by {
                    completions::insert(tx, run.run_id, requester)?;
                }
            }
            let run_id = run.as_ref().map(|run| run.run_id);
            let events: Vec<Write> = (1..)
                .zip(events)
                .map(|(number, (kind, payload))| Write::Event {
                    session_seq: number,
                    run: run_id.map(|run_id| (run_id, number)),
                    kind,
                    payload,
                    extra: None,
                })
                .collect();
            apply(tx, &session.session_key, 0, &events)?;
            check_session(tx, &session)?;
            claim(tx, session.session_key)
        })
        .await
    }
}
