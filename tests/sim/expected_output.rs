//! Invariants of what people see of the journal: every word of a completed turn and all its changes, in
//! messages and their files, at the verbosity chosen in the conversation.

use crate::channel::Outgoing;
use crate::sim::chat::ShownMessage;
use crate::sim::invariants::{broken, texts, word_of};
use crate::sim::scheduler::{SimScheduler, Violation};
use acp_core::render::{ALWAYS_SHOWN_STATUSES, HIDDEN_STATUSES, PartKind};
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Checks I7: people see exactly the parts planned from the journal, in order.
pub(super) fn rooms(stage: &SimScheduler<'_>, db: &Connection) -> Result<(), Violation> {
    const SQL: &str = "SELECT p.binding_key, b.thread_id, p.nonce, p.state, p.text, p.files_json \
        FROM acp_delivery_part p JOIN acp_bindings b USING (binding_key) ORDER BY p.binding_key, p.session_seq, p.part_no";
    let room = stage.room.lock();
    let mut places: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (at, shown) in room.shown.iter().enumerate() {
        if places.insert((&shown.conversation, &shown.message.nonce), at).is_some() {
            return Err(Violation(format!(
                "I7: shown twice in {}: {:?}",
                shown.conversation, shown.message.text
            )));
        }
    }
    let mut statement = db.prepare_cached(SQL).unwrap_or_else(|error| panic!("{error}"));
    let mut rows = statement.query([]).unwrap_or_else(|error| panic!("{error}"));
    let mut last: Option<(String, usize)> = None;
    let mut planned = BTreeSet::new();
    while let Some(row) = rows.next().unwrap_or_else(|error| panic!("{error}")) {
        let text = |at: usize| row.get::<_, String>(at).unwrap_or_else(|error| panic!("{error}"));
        let (binding, thread, nonce, state) = (text(0), text(1), text(2), text(3));
        let place = places.get(&(thread.as_str(), nonce.as_str())).copied();
        planned.insert((thread, nonce));
        match (state.as_str(), place) {
            ("sent", None) => {
                return Err(Violation(format!("I7: {:?} is marked as sent but not shown", text(4))));
            }
            ("rejected", Some(_)) => {
                return Err(Violation(format!("I7: {:?} is marked as rejected but shown", text(4))));
            }
            ("sent", Some(at)) => {
                let Some(shown) = room.shown.get(at).filter(|shown| shown.message.text == text(4)) else {
                    return Err(Violation(format!("I7: {:?} is shown with another text", text(4))));
                };
                files_as_planned(&shown.message, row.get(5).unwrap_or_else(|error| panic!("{error}")))?;
                if last.as_ref().is_some_and(|(of, before)| *of == binding && *before > at) {
                    return Err(Violation(format!("I7: {:?} is shown out of order", text(4))));
                }
                last = Some((binding, at));
            }
            _ => {}
        }
    }
    let unplanned = room.shown.iter().find(|shown| {
        let key = (shown.conversation.clone(), shown.message.nonce.clone());
        shown.message.kind == PartKind::Final && !planned.contains(&key)
    });
    match unplanned {
        Some(shown) => Err(Violation(format!("I7: {:?} was never planned", shown.message.text))),
        None => says_all(db, &room.shown),
    }
}

/// Checks that the files of a message are those that were planned.
fn files_as_planned(message: &Outgoing, planned: Option<String>) -> Result<(), Violation> {
    let shown = message.files.iter().map(|file| json!({ "name": file.name, "bytes": file.bytes.len() }));
    let planned = planned.map_or(Ok(Value::Array(Vec::new())), |planned| serde_json::from_str(&planned));
    let planned = planned.unwrap_or_else(|error| panic!("{error}"));
    match Value::Array(shown.collect()) == planned {
        true => Ok(()),
        false => Err(Violation(format!(
            "I7: the files of {:?} are {:?}, planned were {planned}",
            message.text, message.files
        ))),
    }
}

/// Completed turn whose answer must be visible completely.
struct CompletedTurn {
    run: String,
    thread: String,
    /// Verbosity chosen there before the turn ended.
    verbosity: Option<String>,
}

fn told(db: &Connection) -> Vec<CompletedTurn> {
    // A part refused because of its files is sent again without them, in the parts after it.
    const SQL: &str = "SELECT p.run_id, b.thread_id, (SELECT c.verbosity FROM temp.chosen c \
        WHERE c.binding_key = p.binding_key AND c.from_seq < p.session_seq ORDER BY c.rowid DESC LIMIT 1) \
        FROM acp_delivery_part p JOIN acp_bindings b USING (binding_key) \
        JOIN acp_runs r USING (run_id) WHERE p.kind = 'final' AND r.state = 'completed' \
        GROUP BY p.binding_key, p.run_id HAVING sum(p.state <> 'sent' AND NOT (p.state = 'rejected' \
        AND p.files_json IS NOT NULL AND EXISTS (SELECT 1 FROM acp_delivery_part n WHERE n.binding_key = p.binding_key \
        AND n.session_seq = p.session_seq AND n.part_no > p.part_no AND n.kind = 'final'))) = 0";
    let mut statement = db.prepare_cached(SQL).unwrap_or_else(|error| panic!("{error}"));
    let rows = statement.query_map([], |row| {
        Ok(CompletedTurn { run: row.get(0)?, thread: row.get(1)?, verbosity: row.get(2)? })
    });
    rows.and_then(Iterator::collect).unwrap_or_else(|error| panic!("{error}"))
}

fn payloads(db: &Connection, run: &str, kind: &str) -> Vec<String> {
    const SQL: &str = "SELECT payload_json FROM acp_events WHERE run_id = ?1 AND kind = ?2 ORDER BY seq";
    let mut statement = db.prepare_cached(SQL).unwrap_or_else(|error| panic!("{error}"));
    let rows = statement.query_map(params![run, kind], |row| row.get::<_, String>(0));
    rows.and_then(Iterator::collect).unwrap_or_else(|error| panic!("{error}"))
}

/// Checks that the final message of a completed turn has every word, its changes, and its tool calls only at
/// verbosities that show them.
fn says_all(db: &Connection, shown: &[ShownMessage]) -> Result<(), Violation> {
    for CompletedTurn { run, thread, verbosity } in told(db) {
        let of_run: Vec<&Outgoing> = shown
            .iter()
            .filter(|it| it.conversation == thread && it.message.kind == PartKind::Final)
            .map(|it| &it.message)
            .filter(|message| message.run_id.is_some_and(|id| id.to_string() == run))
            .collect();
        let mut text: Vec<String> = of_run.iter().map(|message| message.text.clone()).collect();
        let files = || of_run.iter().flat_map(|message| &message.files);
        let file = |name: &str| {
            files()
                .filter(|it| it.name == name)
                .map(|it| String::from_utf8_lossy(&it.bytes).into_owned())
                .next()
        };
        text.extend(file("answer.md"));
        let text = format!("{} ", text.join(" ").replace('\n', " "));
        let mut from = 0;
        for (lease, word) in payloads(db, &run, "agent_message").iter().filter_map(|payload| word_of(payload))
        {
            let wanted = format!("w{lease}.{word} ");
            match text.get(from..).and_then(|rest| rest.find(&wanted)) {
                Some(at) => from += at,
                None => {
                    return Err(Violation(format!(
                        "I7: {wanted:?} of run {run} is not in its final {text:?}"
                    )));
                }
            }
        }
        let dense: String = text.split_whitespace().collect();
        let diff = file("turn.diff");
        for payload in payloads(db, &run, "tool_call") {
            let call: Value = serde_json::from_str(&payload).unwrap_or_else(|error| panic!("{error}"));
            let title = call["title"].as_str().unwrap_or_default();
            if dense.contains(title) != (verbosity.as_deref() == Some("full")) {
                let chosen = verbosity.as_deref().unwrap_or("default");
                return Err(Violation(format!(
                    "the chosen verbosity holds: {title:?} in a final with verbosity {chosen}: {text:?}"
                )));
            }
            let is_told = match &diff {
                Some(diff) => diff.contains(title),
                None => dense.contains("arenotattached"),
            };
            if call["kind"] == "edit" && !is_told {
                return Err(Violation(format!(
                    "I7: {title:?} of run {run} is missing in its diff: {diff:?}"
                )));
            }
        }
    }
    Ok(())
}

/// Checks that verbosity `none` shows only answers, permission requests and errors, and that no other
/// verbosity omits anything.
pub(super) fn as_chosen(db: &Connection) -> Result<(), Violation> {
    let list = |names: &[&str]| names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(",");
    let chosen = "(SELECT c.verbosity FROM temp.chosen c WHERE c.binding_key = b.binding_key \
                  AND c.from_seq < e.session_seq ORDER BY c.rowid DESC LIMIT 1)";
    let owed = list(&ALWAYS_SHOWN_STATUSES);
    let more = format!(
        "SELECT p.nonce || ' ' || p.text FROM acp_delivery_part p JOIN acp_bindings b USING (binding_key) \
         JOIN acp_events e ON e.session_key = b.session_key AND e.session_seq = p.session_seq \
         WHERE p.kind = 'notice' AND e.kind = 'status' AND json_extract(e.payload_json, '$.status') NOT IN ({owed}) \
         AND {chosen} = 'none'"
    );
    broken("no notice exceeds the chosen verbosity", &texts(db, &more))?;
    let quiet = list(&HIDDEN_STATUSES);
    let less = format!(
        "SELECT b.binding_key || ' ' || e.payload_json FROM acp_events e JOIN acp_bindings b USING (session_key) \
         JOIN temp.bound t USING (binding_key) WHERE e.kind = 'status' AND e.session_seq > t.from_seq \
         AND e.session_seq <= coalesce(json_extract(b.metadata_json, '$.end_session_seq'), e.session_seq) \
         AND coalesce(json_extract(e.payload_json, '$.text'), '') <> '' \
         AND json_extract(e.payload_json, '$.status') NOT IN ({quiet}) \
         AND coalesce(json_extract(e.payload_json, '$.binding_id'), b.binding_key) = b.binding_key \
         AND {chosen} IS NOT 'none' AND NOT EXISTS (SELECT 1 FROM acp_delivery_part p \
         WHERE p.binding_key = b.binding_key AND p.session_seq = e.session_seq)"
    );
    broken("every due notice is sent", &texts(db, &less))
}
