//! Store without threads and files: the same transactions, groups, savepoints and statements on an in-memory
//! database. The scheduler decides when each group commits.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::sim::server::SimServer;
use acp_shared::clock::Clock;
use acp_shared::ids::{GatewayInstanceId, StartId};
use acp_store::backup::copy_pages;
use acp_store::db::Db;
use acp_store::health::HealthSender;
use acp_store::identity::{StateDirLocation, establish_in_cell};
use acp_store::lock::StateLock;
use acp_store::open::DatabaseFiles;
use acp_store::readers::{ReadPool, ReadSource, Readers};
use acp_store::writer::{WriteJob, Writer, WriterMessage};
use acp_store::{GatewayIdentity, GroupBounds, Store, StoreError, StoreParts, schema};
use parking_lot::Mutex;
use rusqlite::Connection;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Name of a database that is not used yet.
fn unique_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("simulated-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Copy of a database, in memory.
fn copy_of(db: &Db, name: &str) -> Db {
    let mut copy = schema::open_in_memory(name).unwrap();
    copy_pages(db, &mut copy, &mut |_| {}).unwrap();
    copy
}

/// In-memory database shared by successive gateways.
pub(crate) struct SimStore {
    dir: PathBuf,
    template: Db,
    db: Option<Db>,
    idle: Arc<Mutex<Vec<Db>>>,
    identity: GatewayIdentity,
}

impl SimStore {
    /// Creates an empty database, with a directory for its other files.
    pub(crate) fn new(dir: PathBuf) -> Self {
        let mut template = schema::open_in_memory(&unique_name()).unwrap();
        schema::migrate(&mut template).unwrap();
        let identity = GatewayIdentity {
            instance_id: GatewayInstanceId::mint(),
            epoch: 0,
            start_id: StartId::mint(),
            home: StateDirLocation::of(&dir).unwrap(),
            cursor_epoch: StartId::mint(),
        };
        let mut hand = Self { dir, template, db: None, idle: Arc::default(), identity };
        hand.clear();
        hand
    }

    /// Resets the database to its empty state.
    pub(crate) fn clear(&mut self) {
        let name = unique_name();
        let db = copy_of(&self.template, &name);
        let reader = schema::open_in_memory(&name).unwrap();
        reader.sqlite().unwrap().pragma_update(None, "query_only", true).unwrap();
        self.db = Some(db);
        self.idle = Arc::new(Mutex::new(vec![reader]));
    }

    /// Writing connection, available while no writer has it.
    pub(crate) fn db(&self) -> &Connection {
        self.db.as_ref().unwrap().sqlite().unwrap()
    }

    /// Existing temporary directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts a store on the database. Its commits are made by the [`SimWriter`], which has the writing connection.
    pub(crate) fn start(&mut self, clock: Clock) -> (Store, SimWriter) {
        self.identity.epoch += 1;
        let (dir, identity) = (self.dir.clone(), self.identity.clone());
        let lock = StateLock::take(&dir).unwrap();
        self.assemble(dir, identity, lock, clock)
    }

    /// Starts a store on the database, as on a cell whose lock the session has. The writing connection stays here.
    ///
    /// # Errors
    /// As of a cell: the begin of the owner is not committed then.
    pub(super) fn start_in_cell(
        &mut self,
        machine: usize,
        clock: Clock,
    ) -> Result<(Store, SimWriter), StoreError> {
        let dir = self.dir.join(format!("machine-{machine}"));
        let lock = StateLock::take(&dir)?;
        let identity = establish_in_cell(self.db.as_ref().unwrap(), &dir, "simulated")?;
        let (store, mut writer) = self.assemble(dir, identity, lock, clock);
        self.take_back(&mut writer);
        Ok((store, writer))
    }

    fn assemble(
        &mut self,
        dir: PathBuf,
        identity: GatewayIdentity,
        lock: StateLock,
        clock: Clock,
    ) -> (Store, SimWriter) {
        let parts = StoreParts {
            dir,
            identity,
            db: self.db.take().unwrap(),
            readers: Readers::new(ReadSource::Dir(PathBuf::new()), ReadPool::Caller, Arc::clone(&self.idle)),
            files: DatabaseFiles::default(),
            lock,
            // The simulation must not depend on the speed of the machine.
            bounds: GroupBounds { open_ms: u64::MAX, ..GroupBounds::default() },
            clock,
        };
        let (store, writer) = parts.assemble();
        (store, SimWriter { writer, waiting: VecDeque::new() })
    }

    /// Takes the writing connection from a writer, which gets an empty database.
    pub(crate) fn take_back(&mut self, writer: &mut SimWriter) {
        let empty = schema::open_in_memory(&unique_name()).unwrap();
        self.db = Some(std::mem::replace(&mut writer.writer.db, empty));
    }

    /// Lends the writing connection to a writer, or takes it back.
    pub(super) fn lend(&mut self, writer: &mut SimWriter) {
        std::mem::swap(self.db.as_mut().unwrap(), &mut writer.writer.db);
    }

    /// Puts the server in front of the database.
    pub(super) fn serve_by(&mut self, server: SimServer) {
        self.db = self.db.take().map(|db| db.behind(Box::new(server)));
    }

    /// Copy of the database.
    pub(super) fn copy(&self) -> Db {
        copy_of(self.db.as_ref().unwrap(), &unique_name())
    }

    /// Replaces all rows by those of a copy.
    pub(super) fn replace(&mut self, copy: &Db) {
        copy_pages(copy, self.db.as_mut().unwrap(), &mut |_| {}).unwrap();
    }
}

/// Writer of the simulation, one group at a time.
pub(crate) struct SimWriter {
    writer: Writer,
    waiting: VecDeque<WriteJob>,
}

impl SimWriter {
    /// Names of the queued transactions, in order.
    pub(crate) fn waiting(&mut self) -> impl Iterator<Item = &'static str> {
        self.waiting.extend(self.writer.queue.try_iter().filter_map(|message| match message {
            WriterMessage::Job(job) => Some(job),
            WriterMessage::Stop => None,
        }));
        self.waiting.iter().map(|job| job.name)
    }

    /// Commits the first `count` queued transactions as one group.
    pub(crate) fn commit(&mut self, count: usize) {
        let mut left = count;
        let mut next = || {
            left = left.checked_sub(1)?;
            self.waiting.pop_front()
        };
        let Some(first) = next() else { return };
        self.writer.group(first, || next().map(WriterMessage::Job));
    }

    /// Runs a group like `commit` on a read-only file system.
    pub(crate) fn fail(&mut self, count: usize) {
        self.db().pragma_update(None, "query_only", true).unwrap();
        self.commit(count);
        self.db().pragma_update(None, "query_only", false).unwrap();
    }

    /// Receiver of the store's ability to commit, and its sender.
    pub(super) fn health(&self) -> &HealthSender {
        &self.writer.health
    }

    /// Tests if commits work again.
    pub(crate) fn probe(&self) {
        self.writer.probe();
    }

    /// Writing connection.
    pub(crate) fn db(&self) -> &Connection {
        self.writer.db.sqlite().unwrap()
    }
}
