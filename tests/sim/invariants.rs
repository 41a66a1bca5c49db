//! Invariants: I1 to I5 and the rules of the supervisor and the chat service after each step, over the
//! database and at the interfaces; I6 to I8 once the simulation is at rest.

use crate::sim::chat::ShownMessage;
use crate::sim::expected_output;
use crate::sim::log_capture;
use crate::sim::scheduler::{SimScheduler, Violation};
use crate::sim::supervisor::SimLease;
use crate::sim::users::{self, SubmittedRequest, UserRequest};
use acp_core::failure::Failure;
use acp_shared::codes::Code;
use acp_shared::ids::{LeaseId, SessionKey};
use acp_shared::protocol::Request;
use acp_store::check;
use rusqlite::{Connection, Params, Row, params};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Rules over the rows that hold only in the simulation, since all its prompts differ.
const RULES: [(&str, &str); 3] = [
    (
        "I5: a request creates one run",
        "SELECT prompt || ': ' || count(*) FROM acp_runs GROUP BY prompt HAVING count(*) > 1",
    ),
    (
        "I5: a message creates one run",
        "SELECT requester_message_id || ': ' || count(*) FROM acp_runs WHERE requester_message_id IS NOT NULL \
         GROUP BY requester_message_id HAVING count(*) > 1",
    ),
    (
        "no fallback: a message goes to the session bound to its conversation",
        "SELECT r.requester_message_id || ' went to ' || r.session_key FROM acp_runs r \
         JOIN acp_inbox i ON i.message_id = r.requester_message_id WHERE NOT EXISTS (SELECT 1 FROM acp_bindings b \
         WHERE b.session_key = r.session_key AND b.thread_id = i.conversation_id)",
    ),
];

/// Log errors that the simulation causes itself.
const OWN_FAULTS: [&str; 8] = [
    "part rejected permanently",
    "part delivery uncertain; given up",
    "reply rejected",
    "transaction group commit failed",
    "control plane not writable",
    "commit failed; rebuilding session actor",
    "session actor load failed",
    "session actor rebuild failed",
];
/// Log texts that are never allowed, even within those errors.
const NEVER: [&str; 3] = ["number", "panicked", "refused"];

/// Rule over the rows, and the tables it depends on: without a change of these it need not be checked again.
struct InvariantQuery {
    name: String,
    sql: &'static str,
    tables: BTreeSet<&'static str>,
}

static ROWS: LazyLock<Vec<InvariantQuery>> = LazyLock::new(|| {
    let known = check::invariants().map(|rule| (format!("{}: {}", rule.name, rule.rule), rule.sql));
    let own = RULES.iter().map(|(name, sql)| ((*name).to_owned(), *sql));
    // Those of the simulation first: they are wider, and a violation of both is reported as theirs.
    own.chain(known).map(|(name, sql)| InvariantQuery { name, sql, tables: tables(sql).collect() }).collect()
});

fn tables(sql: &'static str) -> impl Iterator<Item = &'static str> {
    let words = sql.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("acp_"))
}

/// Returns the violation that the format describes.
macro_rules! violated {
    ($($why:tt)*) => {
        return Err($crate::sim::scheduler::Violation(format!($($why)*)))
    };
}
pub(super) use violated;

pub(super) fn broken(law: &str, rows: &[String]) -> Result<(), Violation> {
    if !rows.is_empty() {
        violated!("{law}: {}", rows.join("; "));
    }
    Ok(())
}

pub(super) fn texts(db: &Connection, sql: &str) -> Vec<String> {
    query(db, sql, [], |row| row.get(0))
}

/// Returns all rows of a query.
pub(super) fn query<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Vec<T> {
    let mut statement = db.prepare_cached(sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
    let rows = statement.query_map(params, read).and_then(Iterator::collect);
    rows.unwrap_or_else(|error| panic!("{error}: {sql}"))
}

fn exists(db: &Connection, sql: &str, params: impl Params) -> bool {
    let found = db.prepare_cached(sql).and_then(|mut it| it.exists(params));
    found.unwrap_or_else(|error| panic!("{error}: {sql}"))
}

/// Returns the sessions in the order of their creation.
pub(super) fn sessions(db: &Connection, open: bool) -> Vec<SessionKey> {
    let sql = if open {
        "SELECT session_key FROM acp_sessions WHERE state <> 'closed' ORDER BY rowid"
    } else {
        "SELECT session_key FROM acp_sessions ORDER BY rowid"
    };
    texts(db, sql).iter().filter_map(|key| SessionKey::parse(key).ok()).collect()
}

/// Returns a pending permission request.
pub(super) fn pending_permission(db: &Connection) -> Option<(SessionKey, String)> {
    let sql = "SELECT session_key || ' ' || lease_id || '-' || stdout_offset FROM acp_permission \
               WHERE state = 'pending' ORDER BY rowid DESC LIMIT 1";
    let found = texts(db, sql).pop()?;
    let (session, permission) = found.split_once(' ')?;
    Some((SessionKey::parse(session).ok()?, permission.to_owned()))
}

/// Returns a queued run.
pub(super) fn queued_run(db: &Connection) -> Option<String> {
    texts(db, "SELECT run_id FROM acp_runs WHERE state = 'queued' ORDER BY rowid DESC LIMIT 1").pop()
}

/// Checks a request before the supervisor receives it: its reason must be committed.
pub(super) fn of_request(request: &Request, db: &Connection) -> Result<(), Violation> {
    let committed = |sql: &str, id: &LeaseId, number: u64| {
        exists(db, sql, params![id.to_string(), i64::try_from(number).unwrap_or(i64::MAX)])
    };
    let known = match request {
        Request::Spawn(spawn) if spawn.kind == acp_shared::protocol::LeaseKind::Agent => {
            committed("SELECT 1 FROM acp_leases WHERE lease_id = ?1 AND ?2 = 0", &spawn.lease_id, 0)
        }
        Request::Input { lease_id, seq, .. } => {
            committed("SELECT 1 FROM acp_stdin_outbox WHERE lease_id = ?1 AND seq = ?2", lease_id, *seq)
        }
        Request::AckSynced { lease_id, offset, event_id } => {
            let output = "SELECT 1 FROM acp_leases WHERE lease_id = ?1 AND stdout_offset >= ?2";
            let events =
                "SELECT 1 WHERE ?2 <= (SELECT coalesce(max(event_id), 0) FROM acp_events) AND ?1 <> ''";
            committed(output, lease_id, *offset) && committed(events, lease_id, *event_id)
        }
        _ => true,
    };
    if !known {
        violated!("commit, then act: no row justifies {request:?}");
    }
    Ok(())
}

/// Checks that an answered message is stored, since its sender does not repeat it.
pub(super) fn of_answer(no: usize, wish: &SubmittedRequest, db: &Connection) -> Result<(), Violation> {
    const SQL: &str = "SELECT 1 FROM acp_inbox WHERE message_id = ?1";
    let UserRequest::Say { text, .. } = &wish.want else { return Ok(()) };
    if !exists(db, SQL, [users::message_id(no)]) {
        violated!("accepted messages are stored: {text:?} is not");
    }
    Ok(())
}

/// Checks that a request may be refused with this failure.
pub(super) fn of_refusal(wish: &mut SubmittedRequest, failure: &Failure) -> Result<(), Violation> {
    let again =
        matches!(failure.code, Code::StoreUnavailable | Code::BackendUnavailable | Code::LimitReached);
    if wish.answer.is_some() && !again {
        violated!("I5: {:?} was answered {:?}, and then refused: {failure}", wish.want, wish.answer);
    }
    if failure.code == Code::Runtime {
        violated!("{:?} failed: {failure}", wish.want);
    }
    wish.refused |=
        wish.answer.is_none() && !matches!(failure.code, Code::StoreUnavailable | Code::BackendUnavailable);
    Ok(())
}

/// Runs the checks that hold after each step.
pub(super) fn after(stage: &mut SimScheduler<'_>, committed: bool) -> Result<(), Violation> {
    broken("the supervisor reports violations", &stage.host.complaints)?;
    let twice = stage.host.minds.heard.iter().filter(|(_, count)| **count > 1);
    broken("an agent reads each prompt once", &twice.map(|(run, _)| run.clone()).collect::<Vec<_>>())?;
    for line in log_capture::errors() {
        let own = OWN_FAULTS.iter().any(|known| line.starts_with(known));
        if !own || NEVER.iter().any(|never| line.contains(never)) {
            violated!("the gateway logs an internal error: {line}");
        }
    }
    of_room(stage)?;
    if committed {
        let touched = texts(stage.hand.db(), "DELETE FROM temp.touched RETURNING name");
        if touched.iter().any(|table| table == "acp_events") {
            of_journal(stage)?;
        }
        let is_touched =
            |rule: &InvariantQuery| touched.iter().any(|table| rule.tables.contains(table.as_str()));
        of_rows(stage.hand.db(), is_touched)?;
    }
    Ok(())
}

/// Checks I1 to I6 as far as the rows show them.
fn of_rows(db: &Connection, concerned: impl Fn(&InvariantQuery) -> bool) -> Result<(), Violation> {
    ROWS.iter().filter(|rule| concerned(rule)).try_for_each(|rule| broken(&rule.name, &texts(db, rule.sql)))
}

/// Checks that each message is shown once.
fn of_room(stage: &mut SimScheduler<'_>) -> Result<(), Violation> {
    let room = stage.room.lock();
    let Some((last, before)) = room.shown.split_last() else { return Ok(()) };
    let same =
        |it: &ShownMessage| it.conversation == last.conversation && it.message.nonce == last.message.nonce;
    if before.iter().rev().take(8).any(same) {
        violated!("I7: shown twice in {}: {:?}", last.conversation, last.message.text);
    }
    Ok(())
}

/// Words of each process found in the journal, and the last row read.
#[derive(Debug, Clone, Default)]
pub(super) struct JournalProgress {
    event_id: i64,
    /// Number of words by number of the lease.
    words: BTreeMap<usize, usize>,
}

/// Checks that the journal contains every word of the agents once, in order, in the right session.
fn of_journal(stage: &mut SimScheduler<'_>) -> Result<(), Violation> {
    const SQL: &str = "SELECT event_id, session_key, kind, payload_json FROM acp_events WHERE event_id > ?1 \
        AND kind IN ('agent_message','gap') ORDER BY event_id";
    let rows: Vec<(i64, String, String, String)> =
        query(stage.hand.db(), SQL, [stage.read.event_id], |row| row.try_into());
    for (event_id, session, kind, payload) in rows {
        stage.read.event_id = event_id;
        if kind == "gap" {
            violated!("nothing is lost: {session} has a gap: {payload}");
        }
        let Some((lease, word)) = word_of(&payload) else { continue };
        let has = stage.read.words.entry(lease).or_default();
        if word != *has + 1 {
            violated!("no word is lost or repeated: word {word} of process {lease} after {has}");
        }
        *has = word;
        let found = stage.host.leases.values().find(|it| it.no == lease);
        if found.is_none_or(|it| it.spawn.session_key.as_str() != session) {
            violated!("{session} has output of process {lease} of another session");
        }
    }
    Ok(())
}

pub(super) fn word_of(payload: &str) -> Option<(usize, usize)> {
    let (_, rest) = payload.split_once("\"text\":\"w")?;
    let (lease, rest) = rest.split_once('.')?;
    let (word, _) = rest.split_once(' ')?;
    Some((lease.parse().ok()?, word.parse().ok()?))
}

/// Runs the checks that hold at rest.
pub(super) fn at_rest(stage: &mut SimScheduler<'_>) -> Result<(), Violation> {
    let db = stage.hand.db();
    of_rows(db, |_| true)?;
    for (law, sql) in AT_REST {
        broken(law, &texts(db, sql))?;
    }
    stage.tally.sessions = sessions(db, false).len();
    let closed: BTreeSet<String> =
        texts(db, "SELECT session_key FROM acp_sessions WHERE state = 'closed'").into_iter().collect();
    for lease in stage.host.leases.values() {
        heard_out(stage, lease, &closed)?;
    }
    processes(stage, db)?;
    expected_output::rooms(stage, db)?;
    expected_output::as_chosen(db)?;
    let open = stage.wishes.iter().filter(|wish| wish.answer.is_none() && !wish.refused);
    broken("every request is answered", &open.map(|wish| format!("{:?}", wish.want)).collect::<Vec<_>>())
}

const AT_REST: [(&str, &str); 7] = [
    (
        "I8: the process of a closed session ends",
        "SELECT l.lease_id || ' ' || l.usage FROM acp_leases l JOIN acp_sessions s USING (session_key) \
         WHERE s.state = 'closed' AND l.usage <> 'ended'",
    ),
    (
        "every run ends",
        "SELECT r.run_id || ' ' || r.state || ' in ' || s.state FROM acp_runs r JOIN acp_sessions s USING (session_key) \
         WHERE r.state IN ('queued','running')",
    ),
    (
        "every message has an outcome",
        "SELECT message_id || ' ' || text FROM acp_inbox WHERE state = 'received'",
    ),
    (
        "I7: everything planned is sent",
        "SELECT nonce || ' ' || state || ' ' || text FROM acp_delivery_part WHERE state IN ('planned','sending')",
    ),
    (
        "I6: a finished turn of a bound session has its final message",
        "SELECT r.run_id || ' ' || r.state || ' in ' || b.binding_key FROM acp_runs r \
         JOIN temp.whole_journal e ON e.run_id = r.run_id AND e.kind IN ('done','error') \
         JOIN acp_bindings b ON b.session_key = r.session_key \
         JOIN temp.bound t ON t.binding_key = b.binding_key \
         WHERE r.mode = 'prompt' AND r.started_at IS NOT NULL AND e.session_seq > t.from_seq \
         AND e.session_seq <= coalesce(json_extract(b.metadata_json, '$.end_session_seq'), e.session_seq) \
         AND NOT EXISTS (SELECT 1 FROM acp_delivery_part p WHERE p.binding_key = b.binding_key \
         AND p.run_id = r.run_id AND p.kind = 'final' AND p.session_seq = e.session_seq AND p.part_no = 0)",
    ),
    (
        "I6: a run has one row with a final message",
        "SELECT run_id FROM acp_delivery_part WHERE kind = 'final' GROUP BY binding_key, run_id \
         HAVING count(DISTINCT session_seq) > 1",
    ),
    (
        "H4: no permission request outlives its process",
        "SELECT p.lease_id || ' ' || p.stdout_offset FROM acp_permission p JOIN acp_leases l USING (lease_id) \
         WHERE p.state = 'pending' AND l.usage = 'ended'",
    ),
];

/// Checks H1: all output of a process is journaled, however the process ended; except if its session was
/// closed, or was moved while the host was away, or the supervisor that held the output died.
fn heard_out(stage: &SimScheduler<'_>, lease: &SimLease, closed: &BTreeSet<String>) -> Result<(), Violation> {
    let Some(agent) = &lease.agent else { return Ok(()) };
    let said = agent.words.iter().filter(|(end, _)| *end <= lease.output_end).count();
    let has = stage.read.words.get(&lease.no).copied().unwrap_or(0);
    let excused =
        lease.lost || lease.left_behind || agent.broke || closed.contains(lease.spawn.session_key.as_str());
    if has > said || (has < said && !excused) {
        violated!("H1: process {} said {said} words, the journal has {has}", lease.no);
    }
    Ok(())
}

/// Checks I8: no process lives whose lease has ended, and no lease is open without a process.
fn processes(stage: &SimScheduler<'_>, db: &Connection) -> Result<(), Violation> {
    let open: BTreeSet<String> =
        texts(db, "SELECT lease_id FROM acp_leases WHERE usage <> 'ended'").into_iter().collect();
    let living: BTreeSet<String> = stage
        .host
        .leases
        .iter()
        .filter(|(_, lease)| lease.lives() && lease.agent.is_some())
        .map(|(id, _)| id.to_string())
        .collect();
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
    broken("I8: the process of an ended lease is alive", &only(&living, &open))?;
    broken("I8: an open lease has no process", &only(&open, &living))
}

/// Installs triggers that record, besides the rows, the starts of bindings, chosen verbosities with their
/// first row, transitions, and changed tables. Called before the first gateway run.
pub(super) fn watch(db: &Connection) {
    // No `OR IGNORE` in the triggers: an upsert that fires them would override its conflict policy.
    const SQL: &str = "
        CREATE TABLE IF NOT EXISTS temp.bound (binding_key TEXT PRIMARY KEY, from_seq INTEGER NOT NULL);
        CREATE TABLE IF NOT EXISTS temp.chosen (binding_key TEXT NOT NULL, verbosity TEXT, from_seq INTEGER NOT NULL);
        CREATE TABLE IF NOT EXISTS temp.moved (what TEXT PRIMARY KEY);
        CREATE TABLE IF NOT EXISTS temp.touched (name TEXT PRIMARY KEY);
        CREATE TABLE IF NOT EXISTS temp.pruned (session_key TEXT NOT NULL, session_seq INTEGER NOT NULL, run_id TEXT,
          seq INTEGER, kind TEXT NOT NULL, payload_json TEXT NOT NULL);
        CREATE TEMP VIEW IF NOT EXISTS whole_journal AS SELECT session_key, session_seq, run_id, seq, kind, payload_json
          FROM main.acp_events UNION ALL SELECT session_key, session_seq, run_id, seq, kind, payload_json FROM temp.pruned;
        CREATE INDEX IF NOT EXISTS temp.pruned_by_run ON pruned (run_id, seq);
        CREATE INDEX IF NOT EXISTS temp.pruned_by_session ON pruned (session_key, session_seq);
        CREATE TEMP TRIGGER IF NOT EXISTS pruned_kept BEFORE DELETE ON main.acp_events BEGIN
          INSERT INTO pruned VALUES (OLD.session_key, OLD.session_seq, OLD.run_id, OLD.seq, OLD.kind, OLD.payload_json);
        END;
        DELETE FROM temp.pruned;
        DELETE FROM temp.bound;
        DELETE FROM temp.chosen;
        DELETE FROM temp.moved;
        CREATE TEMP TRIGGER IF NOT EXISTS bound_from AFTER INSERT ON main.acp_bindings BEGIN
          INSERT INTO bound SELECT NEW.binding_key, last_session_seq FROM main.acp_sessions WHERE session_key = NEW.session_key;
        END;
        CREATE TEMP TRIGGER IF NOT EXISTS chosen_first AFTER INSERT ON main.acp_binding_style
          WHEN (SELECT count(*) FROM main.acp_binding_style WHERE binding_key = NEW.binding_key) = 1 BEGIN
          INSERT INTO chosen SELECT binding_key, verbosity, -1 FROM main.acp_bindings WHERE binding_key = NEW.binding_key;
        END;
        CREATE TEMP TRIGGER IF NOT EXISTS chosen_later AFTER UPDATE OF verbosity ON main.acp_bindings
          WHEN EXISTS (SELECT 1 FROM main.acp_binding_style WHERE binding_key = NEW.binding_key) BEGIN
          INSERT INTO chosen SELECT NEW.binding_key, NEW.verbosity, last_session_seq FROM main.acp_sessions
            WHERE session_key = NEW.session_key;
        END;
        ";
    let execute = |sql: &str| db.execute_batch(sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
    // Each row is recorded once.
    let record = |name: &str, when: &str, (table, column): (&str, &str), row: &str| {
        execute(&format!(
            "CREATE TEMP TRIGGER IF NOT EXISTS {name} AFTER {when} BEGIN \
             INSERT INTO {table} SELECT {row} WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE {column} = {row}); END"
        ));
    };
    execute(SQL);
    for (what, table, column) in [
        ("binding", "acp_bindings", "status"),
        ("part", "acp_delivery_part", "state"),
        ("lease", "acp_leases", "usage"),
        ("permission", "acp_permission", "state"),
    ] {
        if what != "permission" {
            let (when, row) = (format!("INSERT ON main.{table}"), format!("'{what} > ' || NEW.{column}"));
            record(&format!("{what}_made"), &when, ("moved", "what"), &row);
        }
        let when = format!("UPDATE OF {column} ON main.{table} WHEN OLD.{column} <> NEW.{column}");
        let row = format!("'{what} ' || OLD.{column} || ' > ' || NEW.{column}");
        record(&format!("{what}_moved"), &when, ("moved", "what"), &row);
    }
    let watched: BTreeSet<&str> = ROWS.iter().flat_map(|rule| rule.tables.iter().copied()).collect();
    for table in watched {
        for change in ["INSERT", "UPDATE", "DELETE"] {
            let (name, when) = (format!("touched_{change}_{table}"), format!("{change} ON main.{table}"));
            record(&name, &when, ("touched", "name"), &format!("'{table}'"));
        }
    }
}

/// Tables that [`watch`] fills and that belong to the rows.
const OF_ROWS: [&str; 3] = ["bound", "chosen", "pruned"];

/// Keeps what was recorded of the rows, for a server that goes back to them.
pub(super) fn keep(db: &Connection) {
    for table in OF_ROWS {
        let sql = format!(
            "DROP TABLE IF EXISTS temp.kept_{table}; CREATE TABLE temp.kept_{table} AS SELECT * FROM temp.{table}"
        );
        db.execute_batch(&sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

/// Brings back what [`keep`] kept.
pub(super) fn bring_back(db: &Connection) {
    for table in OF_ROWS {
        let sql = format!(
            "DELETE FROM temp.{table}; INSERT INTO temp.{table} SELECT * FROM temp.kept_{table} ORDER BY rowid"
        );
        db.execute_batch(&sql).unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
}

/// Returns the transitions since [`watch`].
pub(super) fn moved(db: &Connection) -> Vec<String> {
    texts(db, "SELECT what FROM temp.moved")
}

/// Dumps the database, to debug a failed seed.
pub(super) fn rows(db: &Connection) -> String {
    const ALL: [&str; 6] = [
        "SELECT 'session ' || session_key || ' ' || state || ' epoch ' || epoch || ' lease ' || coalesce(lease_id, '-') \
         FROM acp_sessions",
        "SELECT 'binding ' || binding_key || ' ' || status || ' of ' || session_key || ' in ' || thread_id FROM acp_bindings",
        "SELECT 'part ' || nonce || ' ' || state || ' of ' || binding_key || ' ' || session_seq || '.' || part_no FROM \
         acp_delivery_part",
        "SELECT 'lease ' || lease_id || ' ' || usage || ' of ' || session_key FROM acp_leases",
        "SELECT 'run ' || run_id || ' ' || state || ' of ' || session_key FROM acp_runs",
        "SELECT 'event ' || session_key || ' ' || session_seq || ' ' || kind || ' ' || coalesce(run_id, '-') || ' at ' \
         || created_at || ' ' || substr(payload_json, 1, 200) FROM (SELECT * FROM acp_events ORDER BY event_id DESC \
         LIMIT 200) ORDER BY event_id",
    ];
    ALL.iter().flat_map(|sql| texts(db, sql)).collect::<Vec<_>>().join("\n")
}
