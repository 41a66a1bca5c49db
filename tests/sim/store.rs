//! Store without threads and files: the same transactions, groups, savepoints and statements on an in-memory
//! database. The scheduler decides when each group commits.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use acp_shared::clock::Clock;
use acp_shared::ids::{GatewayInstanceId, StartId};
use acp_store::backup::copy_pages;
use acp_store::db::Db;
use acp_store::identity::StateDirLocation;
use acp_store::lock::StateLock;
use acp_store::open::DatabaseFiles;
use acp_store::readers::{ReadPool, ReadSource, Readers};
use acp_store::writer::{WriteJob, Writer, WriterMessage};
use acp_store::{GatewayIdentity, GroupBounds, Store, StoreParts, schema};
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
        let mut db = schema::open_in_memory(&name).unwrap();
        copy_pages(&self.template, &mut db, &mut |_| {}).unwrap();
        let reader = schema::open_in_memory(&name).unwrap();
        reader.sqlite().unwrap().pragma_update(None, "query_only", true).unwrap();
        self.db = Some(db);
        self.idle = Arc::new(Mutex::new(vec![reader]));
    }

    /// Writing connection, available while no gateway runs.
    pub(crate) fn db(&self) -> &Connection {
        self.db.as_ref().unwrap().sqlite().unwrap()
    }

    /// Existing temporary directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts a store on the database. Its commits are made by the [`SimWriter`].
    pub(crate) fn start(&mut self, clock: Clock) -> (Store, SimWriter) {
        self.identity.epoch += 1;
        let parts = StoreParts {
            dir: self.dir.clone(),
            identity: self.identity.clone(),
            db: self.db.take().unwrap(),
            readers: Readers::new(ReadSource::Dir(PathBuf::new()), ReadPool::Caller, Arc::clone(&self.idle)),
            files: DatabaseFiles::default(),
            lock: StateLock::take(&self.dir).unwrap(),
            // The simulation must not depend on the speed of the machine.
            bounds: GroupBounds { open_ms: u64::MAX, ..GroupBounds::default() },
            clock,
        };
        let (store, writer) = parts.assemble();
        (store, SimWriter { writer, waiting: VecDeque::new() })
    }

    /// Stops the gateway; uncommitted work is lost.
    pub(crate) fn stop(&mut self, pump: SimWriter) {
        self.db = Some(pump.writer.db);
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

    /// Tests if commits work again.
    pub(crate) fn probe(&self) {
        self.writer.probe();
    }

    /// Writing connection.
    pub(crate) fn db(&self) -> &Connection {
        self.writer.db.sqlite().unwrap()
    }
}
