//! The only thread that writes. It commits all ready transactions as one (group commit): each after the first
//! runs in a savepoint, so that a failure rolls back that one only (H19). Callers get their results after the
//! COMMIT.

use crate::db::{Db, TxControl, params};
use crate::error::StoreError;
use crate::events;
use crate::health::{HealthSender, StoreHealth};
use crate::histograms;
use crate::lock::StateLock;
use crate::marks::{self, MarksCache};
use crate::notify::CommitNotifier;
use crate::open::DatabaseFiles;
use crate::sessions;
use crate::wal::{self, CheckpointTrigger};
use acp_shared::clock::Clock;
use acp_shared::ids::SessionKey;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::histogram::Histogram;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// Maximum number of transactions in one group.
const GROUP_JOBS_MAX: usize = 256;
/// Bytes of content at which a group is closed.
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Idle time of the writer after which it makes a checkpoint, in milliseconds.
const IDLE_MS: u64 = 250;
/// Test write, of [`PROBE_BYTES`].
const PROBE: &str = "INSERT INTO acp_meta (key, value) VALUES ('probe', ?1) \
                     ON CONFLICT (key) DO UPDATE SET value = excluded.value";
/// Bytes of a test write: about as much space as a typical transaction needs.
const PROBE_BYTES: usize = 65_536;
const PROBE_END: &str = "DELETE FROM acp_meta WHERE key = 'probe'";

/// Configurable bounds of one group. A group takes the transactions that are ready and never waits for more,
/// so these bounds do not delay results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupBounds {
    /// Number of journal events at which a group is closed.
    pub events_max: u64,
    /// Time since its start at which a group is closed, in milliseconds.
    pub open_ms: u64,
}

impl Default for GroupBounds {
    fn default() -> Self {
        Self { events_max: 256, open_ms: 250 }
    }
}

/// Write transaction: a connection, its time, and the notifications to publish after the commit.
#[derive(Debug)]
pub struct Tx<'a> {
    db: &'a Db,
    now_ms: u64,
    events: Cell<u64>,
    numbers: RefCell<Vec<(SessionKey, u64)>>,
    /// Sessions whose bindings changed.
    rebound: RefCell<Vec<SessionKey>>,
    /// True if the set of bound conversations may have changed.
    rebinds: Cell<bool>,
    /// Marks that were read for the group.
    marks: Option<&'a MarksCache>,
}

impl Deref for Tx<'_> {
    type Target = Db;
    fn deref(&self) -> &Db {
        self.db
    }
}

impl<'a> Tx<'a> {
    /// Transaction on a connection outside of the writer. Its notifications are not published.
    pub fn unpublished(db: &'a Db, now_ms: u64) -> Self {
        let (events, rebinds) = (Cell::default(), Cell::default());
        Self {
            db,
            now_ms,
            events,
            numbers: RefCell::default(),
            rebound: RefCell::default(),
            rebinds,
            marks: None,
        }
    }
}

impl Tx<'_> {
    /// Time of the transaction, milliseconds since the Unix epoch, as written to its rows.
    pub const fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Returns the epoch of a session and the number of its last row, for a caller that changes them.
    ///
    /// # Errors
    /// [`StoreError::NoSession`]; errors of the engine.
    pub(crate) fn marks(&self, key: &SessionKey) -> Result<(u64, u64), StoreError> {
        self.marks.and_then(|read| read.take(key)).map_or_else(|| sessions::marks(self, key), Ok)
    }

    /// Counts events appended to a journal.
    pub fn appended(&self, events: u64) {
        self.events.set(self.events.get().saturating_add(events));
    }

    /// Notifies watchers of the session after the commit: its journal ends with `session_seq`.
    pub fn announce(&self, session_key: &SessionKey, session_seq: u64) {
        self.numbers.borrow_mut().push((session_key.clone(), session_seq));
    }

    /// Notifies caches of bindings after the commit: the set of bound conversations may have changed.
    pub fn rebinds(&self) {
        self.rebinds.set(true);
    }

    /// Notifies delivery after the commit: a binding of the session changed.
    pub fn rebound(&self, session_key: SessionKey) {
        self.rebound.borrow_mut().push(session_key);
    }
}

/// Counters since the start of the writer.
#[derive(Debug)]
pub struct WriterCounters {
    counts: Mutex<Counts>,
    /// Highest event id that a commit made durable; 0 before the first one since the start.
    last_event_id: AtomicU64,
    /// Transactions in each commit.
    pub sizes: Histogram,
    /// Duration of each commit from the start of its first transaction, in seconds.
    pub seconds: Histogram,
}

impl Default for WriterCounters {
    fn default() -> Self {
        Self {
            counts: Mutex::default(),
            last_event_id: AtomicU64::default(),
            sizes: histograms::sizes(),
            seconds: histograms::short_times(),
        }
    }
}

/// Snapshot of [`WriterCounters`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of commits.
    pub groups: u64,
    /// Number of transactions in them, including those rolled back individually.
    pub transactions: u64,
    /// Number of transactions that failed and were rolled back individually.
    pub rolled_back: u64,
    /// Number of groups that were not committed.
    pub groups_lost: u64,
    /// Number of WAL checkpoints.
    pub checkpoints: u64,
}

impl WriterCounters {
    /// Highest event id that a commit since the start made durable; 0 before the first one.
    pub fn last_event_id(&self) -> u64 {
        self.last_event_id.load(Ordering::Acquire)
    }

    /// Snapshot of the counters.
    pub fn snapshot(&self) -> Counts {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock()
    }
}

/// Sends a job's result to its caller: its own result, or the error of the group.
type JobReply = Box<dyn FnOnce(Option<StoreError>)>;
/// Closure of a job, run within the group.
type JobFn = Box<dyn FnOnce(Option<&Tx<'_>>) -> JobResult + Send>;
/// Result of a job: its error if it failed, and the function that sends the answer.
type JobResult = (Option<StoreError>, JobReply);

/// A named transaction queued for the writer.
pub struct WriteJob {
    /// Name of the transaction.
    pub name: &'static str,
    /// Approximate number of content bytes written.
    bytes: usize,
    queued: Instant,
    /// Called with `None` if the group is lost already.
    work: JobFn,
    /// Permit of the bounded queue, held until the caller has its result.
    place: OwnedSemaphorePermit,
    /// Session whose marks the job reads and changes; `None` if it may change the marks of any session.
    pub(crate) session: Option<SessionKey>,
}

impl WriteJob {
    /// Job that runs `work` and sends its result through `reply` once it is durable.
    pub fn new<T: Send + 'static>(
        name: &'static str,
        bytes: usize,
        place: OwnedSemaphorePermit,
        work: impl FnOnce(&Tx<'_>) -> Result<T, StoreError> + Send + 'static,
        reply: tokio::sync::oneshot::Sender<Result<T, StoreError>>,
    ) -> Self {
        let work = move |tx: Option<&Tx<'_>>| -> JobResult {
            let result = tx.map_or(Err(StoreError::GroupLost), |tx| {
                catch_unwind(AssertUnwindSafe(|| work(tx))).unwrap_or(Err(StoreError::Panicked { name }))
            });
            let failed = result.as_ref().err().cloned();
            let answer: JobReply = Box::new(move |group: Option<StoreError>| {
                // Fails if the caller is gone.
                drop(reply.send(group.map_or(result, Err)));
            });
            (failed, answer)
        };
        Self { name, bytes, queued: Instant::now(), work: Box::new(work), place, session: None }
    }
}

/// Message to the writer thread.
pub enum WriterMessage {
    /// Transaction to run.
    Job(WriteJob),
    /// Stop after the messages queued before this one.
    Stop,
}

/// State of the writer thread.
pub struct Writer {
    pub db: Db,
    pub queue: Receiver<WriterMessage>,
    pub clock: Clock,
    pub watches: Arc<CommitNotifier>,
    pub counters: Arc<WriterCounters>,
    pub bounds: GroupBounds,
    pub health: HealthSender,
    /// Identity of the database files. A commit counts only while they are in place.
    pub place: DatabaseFiles,
    /// Messages that were taken from the queue ahead of their turn.
    pub ahead: RefCell<VecDeque<WriterMessage>>,
    /// Dropped last: the directory is unlocked only after the database is closed.
    pub lock: StateLock,
}

struct Group {
    open: Vec<(JobReply, OwnedSemaphorePermit)>,
    failed: Vec<(JobReply, OwnedSemaphorePermit)>,
    numbers: Vec<(SessionKey, u64)>,
    rebound: Vec<SessionKey>,
    rebinds: bool,
    jobs: usize,
    events: u64,
    bytes: usize,
    lost: Option<StoreError>,
}

impl Writer {
    /// Processes the queue until a stop message or until all senders are gone. Then empties the WAL and
    /// closes the database.
    pub fn run(self) {
        let mut log = CheckpointTrigger::default();
        let mut has_news = false;
        let mut stopped = false;
        while !stopped {
            let settled = self.health.is_well() || self.health.is_damaged() || self.health.is_lost();
            let message = if let Some(message) = self.ahead.borrow_mut().pop_front() {
                Ok(message)
            } else if !has_news && settled {
                self.queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.queue.recv_timeout(Duration::from_millis(IDLE_MS))
            };
            match message {
                Ok(WriterMessage::Job(job)) => {
                    stopped = self.group(job, || self.take_ready());
                    has_news = true;
                    let bytes = self.place.log_bytes();
                    if log.is_due(bytes) {
                        self.checkpoint();
                        log.moved_bytes = bytes;
                        has_news = false;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.checkpoint() && self.health.is_well() {
                        wal::begin_log(&self.db);
                    }
                    log.moved_bytes = self.place.log_bytes();
                    has_news = false;
                    if !settled {
                        self.probe();
                    }
                }
                Ok(WriterMessage::Stop) | Err(RecvTimeoutError::Disconnected) => stopped = true,
            }
        }
        let Self { db, queue, lock, .. } = self;
        drop(queue);
        if db.is_sqlite()
            && let Err(error) = db.first("PRAGMA wal_checkpoint(TRUNCATE)", &[], |_| Ok(()))
        {
            tracing::debug!(%error, "final checkpoint failed");
        }
        if let Err(error) = db.close() {
            tracing::warn!(%error, "closing the database failed");
        }
        drop(lock);
    }

    /// Runs `first` and the other jobs that are `ready` as one transaction. Returns true if a stop message was
    /// received.
    pub fn group(&self, first: WriteJob, mut ready: impl FnMut() -> Option<WriterMessage>) -> bool {
        let started = Instant::now();
        let mut stop = false;
        let mut group = Group {
            open: Vec::new(),
            failed: Vec::new(),
            numbers: Vec::new(),
            rebound: Vec::new(),
            rebinds: false,
            jobs: 0,
            events: 0,
            bytes: 0,
            lost: self.refused().or_else(|| self.control(TxControl::BeginWrite)),
        };
        let mut next = Some(first);
        let marks = MarksCache::default();
        while let Some(job) = next.take() {
            if group.lost.is_none() {
                group.lost = self.read_marks(&job, &marks).err();
            }
            self.one(&mut group, job, &marks);
            if group.lost.is_some() || self.is_full(&group, started) {
                break;
            }
            match ready() {
                Some(WriterMessage::Job(job)) => next = Some(job),
                Some(WriterMessage::Stop) => stop = true,
                None => {}
            }
        }
        if group.lost.is_none() {
            // Not committed if the database file was removed or replaced: the data would be lost.
            group.lost = self.place.replaced_file_error().or_else(|| self.control(TxControl::Commit));
        }
        self.settle(group, started);
        stop
    }

    fn take_ready(&self) -> Option<WriterMessage> {
        self.ahead.borrow_mut().pop_front().or_else(|| self.queue.try_recv().ok())
    }

    /// Reads the marks for a job and for the ready jobs behind this one, with a server only.
    fn read_marks(&self, job: &WriteJob, marks: &MarksCache) -> Result<(), StoreError> {
        let Some(session) = job.session.as_ref().filter(|key| !self.db.is_sqlite() && !marks.has(key)) else {
            return Ok(());
        };
        let mut ahead = self.ahead.borrow_mut();
        while ahead.len() < marks::SESSIONS_MAX
            && let Ok(message) = self.queue.try_recv()
        {
            ahead.push_back(message);
        }
        let mut keys: BTreeSet<SessionKey> = std::iter::once(session.clone()).collect();
        for message in ahead.iter() {
            // Anything else may change marks.
            let WriterMessage::Job(WriteJob { session: Some(key), .. }) = message else { break };
            keys.insert(key.clone());
        }
        drop(ahead);
        marks.read(&self.db, &keys)
    }

    fn is_full(&self, group: &Group, started: Instant) -> bool {
        group.jobs >= GROUP_JOBS_MAX
            || group.bytes >= GROUP_BYTES_MAX
            || group.events >= self.bounds.events_max
            || started.elapsed() >= Duration::from_millis(self.bounds.open_ms)
    }

    /// Runs one job, in a savepoint unless it is the first: the first has no earlier writes to protect, and a
    /// savepoint makes SQLite copy each changed page. If SQLite rolled back everything (disk full, I/O
    /// error), the group is lost.
    fn one(&self, group: &mut Group, job: WriteJob, marks: &MarksCache) {
        let WriteJob { name, bytes, queued, work, place, session } = job;
        if session.is_none() {
            marks.clear();
        }
        let waited = queued.elapsed();
        let begun = Instant::now();
        let is_first = group.jobs == 0;
        group.jobs += 1;
        group.bytes += bytes;
        if group.lost.is_none() && !is_first {
            group.lost = self.control(TxControl::Savepoint);
        }
        if group.lost.is_some() {
            group.open.push((work(None).1, place));
            return;
        }
        let tx = Tx { marks: Some(marks), ..Tx::unpublished(&self.db, self.clock.wall_ms()) };
        let (failed, answer) = work(Some(&tx));
        tracing::debug!(
            transaction = name,
            waited_us = micros(waited),
            took_us = micros(begun.elapsed()),
            failed = failed.as_ref().map(tracing::field::display),
            "transaction finished"
        );
        let Some(error) = failed else {
            group.lost = if is_first { None } else { self.control(TxControl::Release) };
            group.events = group.events.saturating_add(tx.events.get());
            group.numbers.append(&mut tx.numbers.into_inner());
            group.rebinds |= tx.rebinds.get();
            group.rebound.append(&mut tx.rebound.into_inner());
            group.open.push((answer, place));
            return;
        };
        self.counters.lock().rolled_back += 1;
        group.failed.push((answer, place));
        if matches!(error, StoreError::Damaged { .. }) {
            // Stops writing to a corrupt b-tree: further writes spread the damage.
            group.lost = Some(error);
        } else if !self.db.is_in_transaction() {
            let is_of_all = matches!(error, StoreError::Full | StoreError::ConnectionLost);
            group.lost = Some(if is_of_all { error } else { StoreError::GroupLost });
        } else {
            let undo: &[TxControl] =
                if is_first { &[TxControl::Rollback, TxControl::BeginWrite] } else { &[TxControl::Undo] };
            group.lost = undo.iter().find_map(|control| self.control(*control));
        }
    }

    /// Finishes a group after COMMIT or its failure: publishes notifications, sends results, counts.
    fn settle(&self, group: Group, started: Instant) {
        self.counters.lock().transactions += group.jobs as u64;
        let is_committed = group.lost.is_none();
        if let Some(error) = &group.lost {
            if self.db.is_in_transaction()
                && let Some(error) = self.control(TxControl::Rollback)
            {
                tracing::error!(%error, "rollback of failed transaction group failed");
            }
            self.counters.lock().groups_lost += 1;
            self.health.set(StoreHealth::after(error));
            tracing::error!(%error, jobs = group.jobs, "transaction group commit failed");
        } else {
            self.counters.lock().groups += 1;
            self.counters.sizes.observe(f64::from(u32::try_from(group.jobs).unwrap_or(u32::MAX)));
            self.counters.seconds.observe(started.elapsed().as_secs_f64());
            self.health.set(StoreHealth::Well);
            if group.events > 0 && self.db.is_sqlite() {
                self.read_last_event_id();
            }
            self.watches.publish(&group.numbers, &group.rebound, group.rebinds);
            tracing::trace!(
                jobs = group.jobs,
                took_us = micros(started.elapsed()),
                "transaction group committed"
            );
        }
        for (answer, place) in group.open {
            answer(group.lost.clone());
            drop(place);
        }
        for (answer, place) in group.failed {
            answer(None);
            drop(place);
        }
        // Nobody waits for the round trip: a supervisor may learn of a lower id.
        if is_committed && group.events > 0 && !self.db.is_sqlite() {
            self.read_last_event_id();
        }
    }

    fn read_last_event_id(&self) {
        match events::last_id(&self.db) {
            Ok(id) => self.counters.last_event_id.store(id, Ordering::Release),
            Err(error) => tracing::warn!(%error, "reading last event id failed"),
        }
    }

    /// Returns the error for all writes after one that found damage.
    fn refused(&self) -> Option<StoreError> {
        let why = "found by a write while the gateway was running; nothing has been written since";
        if self.health.is_lost() {
            return Some(StoreError::ConnectionLost);
        }
        self.health.is_damaged().then(|| StoreError::Damaged { why: why.to_owned() })
    }

    fn control(&self, control: TxControl) -> Option<StoreError> {
        self.db.control(control).err()
    }

    /// Tests if writes work again by inserting a large row and deleting it.
    pub fn probe(&self) {
        let failed = self
            .place
            .replaced_file_error()
            .or_else(|| self.control(TxControl::BeginWrite))
            .or_else(|| self.db.run(PROBE, params!["0".repeat(PROBE_BYTES)]).err());
        let failed = failed.or_else(|| self.control(TxControl::Commit));
        if failed.is_some() && self.db.is_in_transaction() {
            // Discards the test row.
            let _ = self.control(TxControl::Rollback);
        }
        let health = match &failed {
            None => self.db.run(PROBE_END, &[]).err().as_ref().map_or(StoreHealth::Well, StoreHealth::after),
            Some(error) => StoreHealth::after(error),
        };
        self.health.set(health);
    }

    /// Moves SQLite's log into the database file. A server has no such log for us. Returns true if the next transaction begins
    /// a new log.
    fn checkpoint(&self) -> bool {
        if !self.db.is_sqlite() {
            return false;
        }
        let is_new = wal::checkpoint(&self.db);
        self.counters.lock().checkpoints += 1;
        is_new
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
