//! Simulated database server: its sessions, the lock of the cell with its owner's time, and commits whose answer is lost. The
//! rows are in the database in memory of [`super::store`].

use crate::sim::seeded_bugs::SeededBug;
use acp_store::StoreError;
use acp_store::cell::CellServer;
use acp_store::db::{SimulatedServer, TxControl};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Time of an owner after a renewal, in milliseconds: as in the product's statements.
const TIME_MS: u64 = 10_000;

/// What becomes of a commit whose answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LostAnswer {
    /// The server did not get it.
    Undone,
    /// It is durable.
    Done,
    /// It is visible after the restart of the server, but its standby does not have it: a failover takes it back.
    Unproved,
}

/// The server. Cheap to clone; it outlives the gateways.
#[derive(Debug, Clone, Default)]
pub(super) struct SimServer(Arc<Mutex<ServerState>>);

#[derive(Debug, Default)]
struct ServerState {
    now_ms: u64,
    /// Sessions that stand, by number.
    open: BTreeSet<u32>,
    /// Number of the newest session.
    newest: u32,
    /// Session of the gateway that runs now.
    current: u32,
    /// Session with the lock of the cell.
    holder: Option<u32>,
    /// End of the owner's time.
    until_ms: u64,
    /// Fate of the next commit, and true if the server does not notice the end of the session.
    loses: Option<(LostAnswer, bool)>,
    /// Newest session when a commit became visible that a failover takes back; `None` once a later one was answered.
    unproved: Option<u32>,
    /// Seeded bug: session whose commits are answered before its standby has them.
    early: Option<u32>,
    /// True if the seeded bug repeats the last commit.
    repeats: bool,
    violations: Vec<String>,
    flaw: Option<SeededBug>,
}

impl ServerState {
    fn end(&mut self, session: u32, goes_unnoticed: bool) {
        self.open.remove(&session);
        if !goes_unnoticed && self.holder == Some(session) {
            self.holder = None;
        }
    }

    fn commit(&mut self, run: &dyn Fn(TxControl) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let session = self.current;
        if self.holder != Some(session) {
            let holder = self.holder;
            self.violations.push(format!("O1: session {session} commits, but {holder:?} has the cell"));
        }
        let Some((lost, goes_unnoticed)) = self.loses.take() else {
            run(TxControl::Commit)?;
            if self.early != Some(session) {
                self.unproved = None;
            }
            return Ok(());
        };
        match lost {
            LostAnswer::Undone => run(TxControl::Rollback)?,
            LostAnswer::Done => {
                run(TxControl::Commit)?;
                self.unproved = None;
                if self.flaw == Some(SeededBug::CommitRepeated) {
                    self.repeats = true;
                    return Ok(());
                }
            }
            LostAnswer::Unproved => {
                run(TxControl::Commit)?;
                self.unproved = self.unproved.or(Some(self.newest));
            }
        }
        self.end(session, goes_unnoticed);
        Err(StoreError::OutcomeUnknown)
    }
}

impl SimServer {
    pub(super) fn new(flaw: Option<SeededBug>) -> Self {
        Self(Arc::new(Mutex::new(ServerState { flaw, ..ServerState::default() })))
    }

    /// Opens a session.
    pub(super) fn connect(&self) -> SimSession {
        let mut state = self.0.lock();
        state.newest += 1;
        let number = state.newest;
        state.open.insert(number);
        SimSession { server: self.clone(), number }
    }

    /// Sets the time.
    pub(super) fn set_time(&self, now_ms: u64) {
        self.0.lock().now_ms = now_ms;
    }

    /// Loses the answer to the next commit.
    pub(super) fn lose_answer(&self, lost: LostAnswer, goes_unnoticed: bool) {
        self.0.lock().loses = Some((lost, goes_unnoticed));
    }

    /// Stops losing an answer that no commit came for.
    pub(super) fn answer_again(&self) {
        self.0.lock().loses = None;
    }

    /// Ends all sessions, as a restart does.
    pub(super) fn restart(&self) {
        let mut state = self.0.lock();
        state.open.clear();
        state.holder = None;
    }

    /// True if a failover takes a commit back that can be seen now.
    pub(super) fn is_unproved(&self) -> bool {
        self.0.lock().unproved.is_some()
    }

    /// Notes that a failover has taken back what was not proved.
    pub(super) fn forget_unproved(&self) {
        self.0.lock().unproved = None;
    }

    /// Returns and clears the violations of rules of the server.
    pub(super) fn violations(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().violations)
    }

    /// True once after a commit that the seeded bug repeats.
    pub(super) fn repeats(&self) -> bool {
        std::mem::take(&mut self.0.lock().repeats)
    }
}

impl SimulatedServer for SimServer {
    fn control(
        &self,
        control: TxControl,
        run: &dyn Fn(TxControl) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut state = self.0.lock();
        match control {
            TxControl::Rollback => run(control),
            _ if !state.open.contains(&state.current) => Err(StoreError::ConnectionLost),
            TxControl::Commit => state.commit(run),
            _ => run(control),
        }
    }
}

/// Session of a gateway that commits.
#[derive(Debug, Clone)]
pub(super) struct SimSession {
    server: SimServer,
    number: u32,
}

impl SimSession {
    /// Runs the next transactions in this session.
    pub(super) fn enter(&self) {
        self.server.0.lock().current = self.number;
    }

    /// Ends the session. The server may not notice.
    pub(super) fn end(&self, goes_unnoticed: bool) {
        self.server.0.lock().end(self.number, goes_unnoticed);
    }

    /// Renews the owner's time. False if the session does not have the lock.
    pub(super) fn renew(&self) -> bool {
        let mut state = self.server.0.lock();
        let is_owner = state.holder == Some(self.number);
        if is_owner {
            state.until_ms = state.now_ms + TIME_MS;
        }
        is_owner
    }

    /// True if this session has the lock.
    pub(super) fn has_cell(&self) -> bool {
        self.server.0.lock().holder == Some(self.number)
    }

    /// Seeded bug: answers the commits of the session before a standby has them, or no longer.
    pub(super) fn answer_early(&self, early: bool) {
        self.server.0.lock().early = early.then_some(self.number);
    }

    /// True if the gateway of this session sees a commit of an earlier session that a failover takes back.
    pub(super) fn sees_unproved(&self) -> bool {
        self.server.0.lock().unproved.is_some_and(|newest| newest < self.number)
    }
}

impl CellServer for SimSession {
    fn try_lock(&self) -> Result<bool, StoreError> {
        let mut state = self.server.0.lock();
        Ok(*state.holder.get_or_insert(self.number) == self.number)
    }

    fn has_run_out(&self) -> Result<bool, StoreError> {
        let state = self.server.0.lock();
        Ok(state.until_ms < state.now_ms)
    }

    fn end_holder(&self) -> Result<(), StoreError> {
        let mut state = self.server.0.lock();
        let ended = state.holder.take().filter(|_| state.flaw != Some(SeededBug::NoFence));
        if let Some(session) = ended {
            state.open.remove(&session);
        }
        Ok(())
    }

    fn renew_at_once(&self) -> Result<(), StoreError> {
        self.renew();
        Ok(())
    }

    fn taken(&self) -> Result<StoreError, StoreError> {
        let holder = format!("session {:?}", self.server.0.lock().holder);
        Ok(StoreError::CellTaken { cell: "main".to_owned(), holder, owner: None })
    }
}
