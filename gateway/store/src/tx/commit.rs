//! Commits the decisions of an actor.

use crate::error::StoreError;
use crate::stdin_outbox;
use crate::{
    Store, Tx, bindings, completions, events, idempotency, leases, permissions, requests, runs, sessions,
};
use acp_core::event::EventKind;
use acp_core::rows::{BindingStatus, LeaseStatus, PermissionRow, PermissionState, SessionRow};
use acp_core::session::SessionState;
use acp_core::writes::{ActorFence, Write};
use acp_shared::ids::{LeaseId, RunId, SessionKey};
use std::collections::HashMap;

impl Store {
    /// Commits an actor's decisions, all or nothing. Events are appended after the other rows of the
    /// transaction are written: the order among events matters, their order relative to other rows does not.
    ///
    /// # Errors
    /// [`StoreError::Superseded`] if the fence is not the newest; [`StoreError::Numbering`] if a number does
    /// not follow the last one; [`StoreError::LimitReached`]; [`StoreError::KeyTaken`];
    /// [`StoreError::UsedMeanwhile`]; [`StoreError::SessionBound`]; [`StoreError::Refused`]; as [`Store::write`].
    pub async fn commit(&self, fence: ActorFence, writes: Vec<Write>) -> Result<(), StoreError> {
        let bytes = writes.iter().map(weight).sum();
        self.queue("commit", bytes, Some(fence.session_key.clone()), move |tx| {
            let (epoch, last) = tx.marks(&fence.session_key)?;
            if epoch != fence.epoch {
                return Err(StoreError::Superseded { session_key: fence.session_key });
            }
            // A session at rest counts for the caps only from this transaction on.
            if let Some(caps) =
                writes.iter().find_map(|write| if let Write::Wake(caps) = write { Some(caps) } else { None })
                && sessions::session_usage(tx, &fence.session_key)?.is_some_and(|rest| rest.is_idle)
            {
                sessions::check_caps(tx, caps)?;
            }
            apply(tx, &fence.session_key, last, &writes)
        })
        .await
    }
}

/// Approximate number of content bytes of a row.
fn weight(write: &Write) -> usize {
    match write {
        Write::Event { payload, extra, .. } => payload.len() + extra.as_ref().map_or(0, String::len),
        Write::Tail { bytes, .. } => bytes.len(),
        Write::Outbox(row) => row.bytes.len(),
        Write::Run(row) => row.text.len() + row.files.as_ref().map_or(0, |files| files.len()),
        Write::Reword { text, .. } => text.len(),
        Write::Request(row) => row.request.content_bytes(),
        Write::Permission(row) => row.request.params.len(),
        Write::LeaseProgress { link_state, .. } => link_state.as_ref().map_or(0, String::len),
        Write::Session(_)
        | Write::NewLease(_)
        | Write::LeaseStatus { .. }
        | Write::LeaseBroken { .. }
        | Write::TailClear { .. }
        | Write::Written { .. }
        | Write::Wake(_)
        | Write::Idempotency { .. }
        | Write::Completion { .. }
        | Write::RequireUnbound
        | Write::EndBindings { .. }
        | Write::ExpireBinding { .. }
        | Write::TouchBindings { .. } => 0,
    }
}

/// Applies the writes of one session whose journal ends with `last`.
///
/// # Errors
/// As [`Store::commit`], without the fence.
pub fn apply(tx: &Tx<'_>, session: &SessionKey, last: u64, writes: &[Write]) -> Result<(), StoreError> {
    let mut batch = BatchWriter { tx, session, leases: HashMap::new() };
    for write in writes {
        batch.row(write)?;
    }
    let mut journal = JournalWriter { tx, session, rows: None, first: last, last, runs: HashMap::new() };
    for write in writes {
        if let Write::Event { session_seq, run, kind, payload, extra } = write {
            journal.append(*session_seq, *run, *kind, payload, extra.as_deref())?;
        }
    }
    journal.check_rows(writes)?;
    journal.finish()?;
    for write in writes {
        match write {
            Write::EndBindings { reason } => bindings::end_all(tx, session, reason)?,
            Write::ExpireBinding { binding_id, last_activity_at_ms, reason } => {
                bindings::expire(tx, session, *binding_id, *last_activity_at_ms, reason)?;
            }
            _ => {}
        }
    }
    let row = writes.iter().rev().find_map(|write| match write {
        Write::Session(row) => Some(row),
        _ => None,
    });
    row.map_or(Ok(()), |row| check_session(tx, row))
}

/// Checks the constraints of a session's row after all writes.
///
/// # Errors
/// [`StoreError::Refused`].
pub(super) fn check_session(tx: &Tx<'_>, row: &SessionRow) -> Result<(), StoreError> {
    if let Some(lease_id) = row.lease_id
        && leases::usage(tx, lease_id, &row.session_key)?.is_none()
    {
        return Err(StoreError::Refused("the lease of the session is not its own"));
    }
    if row.state == SessionState::Closed {
        let live =
            |status| matches!(status, BindingStatus::Pending | BindingStatus::Active | BindingStatus::Parked);
        if bindings::of_session(tx, &row.session_key)?.iter().any(|binding| live(binding.status)) {
            return Err(StoreError::Refused("a closed session has no live bindings"));
        }
    }
    Ok(())
}

struct BatchWriter<'a> {
    tx: &'a Tx<'a>,
    session: &'a SessionKey,
    leases: HashMap<LeaseId, LeaseStatus>,
}

impl BatchWriter<'_> {
    fn row(&mut self, write: &Write) -> Result<(), StoreError> {
        let tx = self.tx;
        match write {
            Write::Event { .. } => Ok(()),
            Write::Session(row) => {
                self.own(&row.session_key)?;
                sessions::update(tx, row)
            }
            Write::Run(row) => {
                self.own(&row.session_key)?;
                runs::put(tx, row)?;
                completions::route(tx, row)
            }
            Write::Completion { run_id } => completions::deliver(tx, *run_id),
            Write::Reword { run_id, text } => runs::reword(tx, *run_id, self.session, text),
            Write::NewLease(row) => {
                self.own(&row.session_key)?;
                self.leases.insert(row.lease_id, row.usage);
                leases::insert(tx, row)
            }
            Write::LeaseProgress { lease_id, stdout_offset, next_stdin_seq, link_state } => leases::progress(
                tx,
                *lease_id,
                self.session,
                *stdout_offset,
                *next_stdin_seq,
                link_state.as_deref(),
            ),
            Write::LeaseStatus { lease_id, usage } => {
                self.lease(*lease_id)?;
                self.leases.insert(*lease_id, *usage);
                leases::set_usage(tx, *lease_id, *usage)
            }
            Write::LeaseBroken { lease_id } => {
                self.lease(*lease_id)?;
                leases::set_broken(tx, *lease_id)
            }
            Write::Tail { lease_id, offset, bytes } => {
                self.lease(*lease_id)?;
                leases::add_tail(tx, *lease_id, *offset, bytes)
            }
            Write::TailClear { lease_id } => {
                self.lease(*lease_id)?;
                leases::clear_tail(tx, *lease_id)
            }
            Write::Outbox(row) => {
                self.lease(row.lease_id)?;
                stdin_outbox::insert(tx, row, tx.now_ms())
            }
            Write::Written { lease_id, through_seq } => {
                self.lease(*lease_id)?;
                stdin_outbox::written(tx, *lease_id, *through_seq)
            }
            Write::Request(row) => {
                self.own(&row.session_key)?;
                self.lease(row.lease_id)?;
                requests::put(tx, row, tx.now_ms())
            }
            Write::Permission(row) => self.permission(row),
            Write::Idempotency { scope, key, fingerprint, result } => {
                idempotency::insert(tx, scope, key, fingerprint, result, tx.now_ms())
            }
            // `Wake` is checked first, see `commit`; bindings end after the journal, see `apply`.
            Write::Wake(_) | Write::EndBindings { .. } | Write::ExpireBinding { .. } => Ok(()),
            Write::RequireUnbound if bindings::of_session(tx, self.session)?.is_empty() => Ok(()),
            Write::RequireUnbound => Err(StoreError::SessionBound),
            Write::TouchBindings { at_ms } => bindings::touch_all(tx, self.session, *at_ms),
        }
    }

    fn own(&self, key: &SessionKey) -> Result<(), StoreError> {
        if key == self.session {
            Ok(())
        } else {
            Err(StoreError::Refused("the row belongs to another session"))
        }
    }

    fn permission(&mut self, row: &PermissionRow) -> Result<(), StoreError> {
        self.own(&row.session_key)?;
        let usage = self.lease(row.lease_id)?;
        if row.state == PermissionState::Answered && usage == LeaseStatus::Ended {
            return Err(StoreError::Refused("the agent that requested the permission has ended"));
        }
        permissions::put(self.tx, row)
    }

    /// State of a lease of this session.
    fn lease(&mut self, lease_id: LeaseId) -> Result<LeaseStatus, StoreError> {
        if let Some(usage) = self.leases.get(&lease_id) {
            return Ok(*usage);
        }
        let usage = leases::usage(self.tx, lease_id, self.session)?
            .ok_or(StoreError::Refused("the lease belongs to another session"))?;
        self.leases.insert(lease_id, usage);
        Ok(usage)
    }
}

/// Sequence numbers of a session's journal and runs, advanced with each event.
struct JournalWriter<'a> {
    tx: &'a Tx<'a>,
    session: &'a SessionKey,
    /// Created with the first row.
    rows: Option<events::Appender<'a>>,
    first: u64,
    last: u64,
    runs: HashMap<RunId, (u64, u64)>,
}

impl JournalWriter<'_> {
    fn append(
        &mut self,
        session_seq: u64,
        run: Option<(RunId, u64)>,
        kind: EventKind,
        payload: &str,
        extra: Option<&str>,
    ) -> Result<(), StoreError> {
        next("the number of an event in its session", &mut self.last, session_seq)?;
        if let Some((run_id, seq)) = run {
            let (_, last) = self.run(run_id)?;
            next("the number of an event in its run", last, seq)?;
        }
        let rows = match &mut self.rows {
            Some(rows) => rows,
            none => none.insert(events::Appender::new(self.tx, self.session, self.tx.now_ms())?),
        };
        rows.append(session_seq, run, kind, payload, extra)
    }

    fn run(&mut self, run_id: RunId) -> Result<&mut (u64, u64), StoreError> {
        use std::collections::hash_map::Entry;
        match self.runs.entry(run_id) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let last = runs::last_seq(self.tx, run_id, self.session)?
                    .ok_or(StoreError::Refused("an event names a run that the session does not have"))?;
                Ok(entry.insert((last, last)))
            }
        }
    }

    /// Checks the numbers in the rows: each must lie between its values before and after this transaction.
    /// Other numbers mean that the actor's view of the journal is wrong.
    fn check_rows(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        let within = |what, first: u64, last: u64, got: u64| {
            if (first..=last).contains(&got) {
                Ok(())
            } else {
                Err(StoreError::Numbering { what, want: last, got })
            }
        };
        for write in writes {
            match write {
                Write::Session(row) => {
                    within("last_session_seq of the session", self.first, self.last, row.last_session_seq)?;
                }
                Write::Run(row) => {
                    let (first, last) = *self.run(row.run_id)?;
                    within("last_seq of a run", first, last, row.last_seq)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(), StoreError> {
        self.rows.map_or(Ok(()), events::Appender::finish)?;
        for (run_id, (first, last)) in &self.runs {
            if first != last {
                runs::set_last_seq(self.tx, *run_id, *last)?;
            }
        }
        if self.first != self.last {
            sessions::set_last_seq(self.tx, self.session, self.last)?;
            self.tx.announce(self.session, self.last);
            self.tx.appended(self.last - self.first);
        }
        Ok(())
    }
}

fn next(what: &'static str, last: &mut u64, got: u64) -> Result<(), StoreError> {
    let want = *last + 1;
    if got != want {
        return Err(StoreError::Numbering { what, want, got });
    }
    *last = got;
    Ok(())
}
