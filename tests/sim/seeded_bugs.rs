//! Seeded bugs, to test that the simulation finds them. Each wraps the product at one of its interfaces: it
//! changes the data that crosses the interface, and nothing in the product itself.

use crate::sim::rng::SeededRng;
use rusqlite::Connection;

/// Sets the last numbers of sessions and runs to those of their events.
const RENUMBER: &str = "UPDATE acp_sessions AS s SET last_session_seq = (SELECT coalesce(max(session_seq), 0) \
    FROM acp_events AS e WHERE e.session_key = s.session_key); \
    UPDATE acp_runs AS r SET last_seq = (SELECT coalesce(max(seq), 0) FROM acp_events AS e WHERE e.run_id = r.run_id)";

/// A seeded bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeededBug {
    /// Output is acknowledged before it is committed.
    AckBeforeCommit,
    /// The checkpoint advances before the message is sent.
    CheckpointBeforeSend,
    /// A command with a used key is executed again.
    ReplayedKeyActs,
    /// A message without a route goes to some session.
    Fallback,
    /// The number of an input message is used for another one.
    SeqAgain,
    /// A prompt is sent twice.
    InputTwice,
    /// A message is sent again although the channel has it.
    NonceIgnored,
    /// A row of the outbox is lost.
    OutboxRowLost,
    /// The end of a run is written twice.
    CompletedTwice,
    /// A superseded actor continues to write.
    SupersededWrites,
    /// The last output of an ended process is not awaited.
    DeadLeaseNotDrained,
    /// A process is never ended.
    LeaseNotClosed,
    /// An accepted message is lost.
    InboxRowLost,
    /// Files are not sent with their message.
    FilesLost,
    /// A chosen verbosity is lost.
    ChoiceForgotten,
    /// A gateway moves a session before the promise of its host ran out: it was told a shorter one.
    ShortPromise,
    /// The server goes on committing for an owner whose cell another gateway took.
    NoFence,
    /// A commit without an answer is repeated without a look at what it did.
    CommitRepeated,
    /// A new owner acts on what it read before the answer to a commit of its own.
    ReadBeforeCommit,
}

impl SeededBug {
    /// True if the bug needs several gateways.
    pub(super) const fn is_of_cell(self) -> bool {
        matches!(self, Self::ShortPromise | Self::NoFence | Self::CommitRepeated | Self::ReadBeforeCommit)
    }

    /// Appends the events after this one again, as a repeated commit does that takes its numbers from what it finds.
    pub(super) fn repeat_commit(db: &Connection, event_id: i64) {
        const SQL: &str = "INSERT INTO acp_events (session_key, session_seq, run_id, seq, kind, payload_json, created_at) \
             SELECT session_key, session_seq + (SELECT count(*) FROM acp_events AS o WHERE o.event_id > ?1 \
             AND o.session_key = e.session_key), run_id, seq + (SELECT count(*) FROM acp_events AS o \
             WHERE o.event_id > ?1 AND o.run_id = e.run_id), kind, payload_json, created_at \
             FROM acp_events AS e WHERE event_id > ?1 ORDER BY event_id";
        // An error means that the bug does not apply here; it applies elsewhere.
        if db.execute(SQL, [event_id]).is_ok() {
            drop(db.execute_batch(RENUMBER));
        }
    }

    /// Applies a bug before a transaction: every actor gets the same epoch.
    pub(super) fn before_commit(self, db: &Connection, name: &str) {
        if self == Self::SupersededWrites && name == "claim" {
            drop(db.execute("UPDATE acp_sessions SET epoch = 0", []));
        }
    }

    /// Applies bugs between gateway and database: changes the rows that these transactions wrote.
    pub(super) fn after_commit(self, db: &Connection, names: &[&str], chance: &mut SeededRng) {
        let did = |name: &str| names.contains(&name);
        let sql = match self {
            Self::CheckpointBeforeSend if did("delivery_begin") => {
                "UPDATE acp_delivery_part SET state = 'sent' WHERE state = 'sending'"
            }
            Self::ReplayedKeyActs => "DELETE FROM acp_idempotency",
            Self::OutboxRowLost if did("delivery_plan") && chance.one_in(3) => {
                "DELETE FROM acp_delivery_part WHERE part_id = \
                 (SELECT max(part_id) FROM acp_delivery_part WHERE state = 'planned')"
            }
            Self::CompletedTwice if did("commit") && chance.one_in(3) => {
                "INSERT INTO acp_events (session_key, session_seq, run_id, seq, kind, payload_json, created_at) \
                 SELECT session_key, session_seq + 1, run_id, seq + 1, kind, payload_json, created_at \
                 FROM acp_events AS e WHERE kind = 'done' AND session_seq = \
                 (SELECT max(session_seq) FROM acp_events AS o WHERE o.session_key = e.session_key) LIMIT 1"
            }
            Self::SupersededWrites => "UPDATE acp_sessions SET epoch = 1 WHERE epoch = 0",
            Self::ChoiceForgotten if did("verbosity_set") || did("delivery_style") => {
                "UPDATE acp_binding_style SET style_json = json_remove(style_json, '$.verbosity')"
            }
            Self::InboxRowLost if did("inbox_insert") && chance.one_in(3) => {
                "DELETE FROM acp_inbox WHERE state = 'received'"
            }
            _ => return,
        };
        // An error means that the bug does not apply here; it applies elsewhere.
        if db.execute_batch(sql).is_ok() && self == Self::CompletedTwice {
            drop(db.execute_batch(RENUMBER));
        }
    }
}
