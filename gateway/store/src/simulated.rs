//! Store without threads and files, for simulated time: the same transactions, groups, savepoints and
//! statements on an in-memory database. The simulation decides when each group commits.
#![expect(clippy::unwrap_used, reason = "for tests: a failed unwrap is a failed test")]

use crate::lock::StateLock;
use crate::open_checks::DatabaseFiles;
use crate::readers::Readers;
use crate::writer::{Writer, WriterMessage};
use crate::{GatewayIdentity, GroupBounds, Inner, Store, schema};
use acp_shared::ids::{GatewayInstanceId, StartId};
use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

type SimClock = Box<dyn Fn() -> u64>;

thread_local! {
    static TIME: RefCell<Option<SimClock>> = const { RefCell::new(None) };
}

pub(super) fn now_ms() -> Option<u64> {
    TIME.with_borrow(|time| time.as_ref().map(|now_ms| now_ms()))
}

/// Sets the clock of the store on this thread.
pub fn set_clock(now_ms: impl Fn() -> u64 + 'static) {
    TIME.set(Some(Box::new(now_ms)));
}

/// Purpose of an in-memory connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Template,
    Write,
    Read,
}

fn unique_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("simulated-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// In-memory database shared by successive gateways.
pub struct SimStore {
    dir: PathBuf,
    template: Connection,
    db: Option<Connection>,
    idle: Arc<Mutex<Vec<Connection>>>,
    identity: GatewayIdentity,
}

impl SimStore {
    /// Creates an empty database, with a directory for its other files.
    pub fn new(dir: PathBuf) -> Self {
        let template = schema::open_in_memory(&unique_name(), Purpose::Template).unwrap();
        let identity =
            GatewayIdentity { instance_id: GatewayInstanceId::mint(), epoch: 0, start_id: StartId::mint() };
        let mut hand = Self { dir, template, db: None, idle: Arc::default(), identity };
        hand.clear();
        hand
    }

    /// Resets the database to its empty state.
    pub fn clear(&mut self) {
        let name = unique_name();
        let mut db = schema::open_in_memory(&name, Purpose::Write).unwrap();
        let copied = Backup::new(&self.template, &mut db).unwrap().step(-1).unwrap();
        assert_eq!(copied, StepResult::Done, "the template is copied at once");
        let reader = schema::open_in_memory(&name, Purpose::Read).unwrap();
        self.db = Some(db);
        self.idle = Arc::new(Mutex::new(vec![reader]));
    }

    /// Writing connection, available while no gateway runs.
    pub fn db(&self) -> &Connection {
        self.db.as_ref().unwrap()
    }

    /// Existing temporary directory.
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Starts a store on the database. Its commits are made by the [`SimWriter`].
    #[expect(clippy::disallowed_methods, reason = "bounded by `places`, as in the store itself")]
    pub fn start(&mut self) -> (Store, SimWriter) {
        self.identity.epoch += 1;
        let (feed, fed) = channel();
        // The simulation must not depend on the speed of the machine.
        let bounds = GroupBounds { open_ms: u64::MAX, ..GroupBounds::default() };
        let (place, lock) = (DatabaseFiles::without_files(), StateLock::take(&self.dir).unwrap());
        let readers = Readers::new(PathBuf::new(), Arc::clone(&self.idle));
        let files = (self.db.take().unwrap(), bounds, place, lock);
        let (inner, mut writer) = Inner::new(&self.dir, self.identity.clone(), readers, files);
        let jobs = std::mem::replace(&mut writer.queue, fed);
        (Store { inner: Arc::new(inner) }, SimWriter { writer, jobs, feed, waiting: VecDeque::new() })
    }

    /// Stops the gateway; uncommitted work is lost.
    pub fn stop(&mut self, pump: SimWriter) {
        self.db = Some(pump.writer.db);
    }
}

/// Writer of the simulation, one group at a time.
pub struct SimWriter {
    writer: Writer,
    jobs: Receiver<WriterMessage>,
    feed: Sender<WriterMessage>,
    waiting: VecDeque<WriterMessage>,
}

impl SimWriter {
    /// Names of the queued transactions, in order.
    pub fn waiting(&mut self) -> impl Iterator<Item = &'static str> {
        self.waiting.extend(self.jobs.try_iter());
        self.waiting.iter().filter_map(|message| match message {
            WriterMessage::Job(job) => Some(job.name),
            WriterMessage::Stop => None,
        })
    }

    /// Commits the first `count` queued transactions as one group.
    pub fn commit(&mut self, count: usize) {
        let mut group = Vec::new();
        while group.len() < count {
            match self.waiting.pop_front() {
                Some(WriterMessage::Job(job)) => group.push(job),
                Some(WriterMessage::Stop) => {}
                None => break,
            }
        }
        let mut group = group.into_iter();
        let Some(first) = group.next() else { return };
        for job in group {
            self.feed.send(WriterMessage::Job(job)).unwrap();
        }
        self.writer.group(first);
    }

    /// Runs a group like `commit` on a read-only file system.
    pub fn fail(&mut self, count: usize) {
        self.writer.db.pragma_update(None, "query_only", true).unwrap();
        self.commit(count);
        self.writer.db.pragma_update(None, "query_only", false).unwrap();
    }

    /// Tests if commits work again.
    pub fn probe(&self) {
        self.writer.probe();
    }

    /// Writing connection.
    pub fn db(&self) -> &Connection {
        &self.writer.db
    }
}
