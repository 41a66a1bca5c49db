//! Invariants of what people see of the journal: every word of a completed turn and all its changes, in
//! messages and their files, at the verbosity chosen in the conversation.

use crate::channel::Outgoing;
use crate::sim::chat::ShownMessage;
use crate::sim::invariants::{broken, query, texts, violated, word_of};
use crate::sim::scheduler::{SimScheduler, Violation};
use acp_core::render::{ALWAYS_SHOWN_STATUSES, HIDDEN_STATUSES, PartKind};
use rusqlite::Connection;
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
            violated!("I7: shown twice in {}: {:?}", shown.conversation, shown.message.text);
        }
    }
    type Planned = (String, String, String, String, String, Option<String>);
    let rows: Vec<Planned> = query(db, SQL, [], |row| row.try_into());
    let mut last: Option<(String, usize)> = None;
    let mut planned = BTreeSet::new();
    for (binding, thread, nonce, state, text, files) in rows {
        let place = places.get(&(thread.as_str(), nonce.as_str())).copied();
        planned.insert((thread, nonce));
        match (state.as_str(), place) {
            ("sent", None) => violated!("I7: {text:?} is marked as sent but not shown"),
            ("rejected", Some(_)) => violated!("I7: {text:?} is marked as rejected but shown"),
            ("sent", Some(at)) => {
                let Some(shown) = room.shown.get(at).filter(|shown| shown.message.text == text) else {
                    violated!("I7: {text:?} is shown with another text");
                };
                files_as_planned(&shown.message, files)?;
                if last.as_ref().is_some_and(|(of, before)| *of == binding && *before > at) {
                    violated!("I7: {text:?} is shown out of order");
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
    if let Some(shown) = unplanned {
        violated!("I7: {:?} was never planned", shown.message.text);
    }
    says_all(db, &room.shown)
}

/// Checks that the files of a message are those that were planned.
fn files_as_planned(message: &Outgoing, planned: Option<String>) -> Result<(), Violation> {
    let shown = message.files.iter().map(|file| json!({ "name": file.name, "bytes": file.bytes.len() }));
    let planned = planned.map_or(Ok(Value::Array(Vec::new())), |planned| serde_json::from_str(&planned));
    let planned = planned.unwrap_or_else(|error| panic!("{error}"));
    if Value::Array(shown.collect()) != planned {
        violated!("I7: the files of {:?} are {:?}, planned were {planned}", message.text, message.files);
    }
    Ok(())
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
    query(db, SQL, [], |row| {
        Ok(CompletedTurn { run: row.get(0)?, thread: row.get(1)?, verbosity: row.get(2)? })
    })
}

fn payloads(db: &Connection, run: &str, kind: &str) -> Vec<String> {
    const SQL: &str =
        "SELECT payload_json FROM temp.whole_journal WHERE run_id = ?1 AND kind = ?2 ORDER BY seq";
    query(db, SQL, [run, kind], |row| row.get(0))
}

/// Checks that the final message of a completed turn has every word, its changes, and its tool calls only at
/// verbosities that show them.
fn says_all(db: &Connection, shown: &[ShownMessage]) -> Result<(), Violation> {
    for CompletedTurn { run, thread, verbosity } in told(db) {
        let finals =
            shown.iter().filter(|it| it.conversation == thread && it.message.kind == PartKind::Final);
        let finals = finals.map(|it| &it.message);
        let of_run: Vec<&Outgoing> =
            finals.filter(|message| message.run_id.is_some_and(|id| id.to_string() == run)).collect();
        let mut text: Vec<String> = of_run.iter().map(|message| message.text.clone()).collect();
        let file = |name: &str| {
            let found = of_run.iter().flat_map(|message| &message.files).find(|it| it.name == name);
            found.map(|it| String::from_utf8_lossy(&it.bytes).into_owned())
        };
        text.extend(file("answer.md"));
        let text = format!("{} ", text.join(" ").replace('\n', " "));
        let mut from = 0;
        let said = payloads(db, &run, "agent_message");
        for (lease, word) in said.iter().filter_map(|payload| word_of(payload)) {
            let wanted = format!("w{lease}.{word} ");
            match text.get(from..).and_then(|rest| rest.find(&wanted)) {
                Some(at) => from += at,
                None => violated!("I7: {wanted:?} of run {run} is not in its final {text:?}"),
            }
        }
        let dense: String = text.split_whitespace().collect();
        let diff = file("turn.diff");
        for payload in payloads(db, &run, "tool_call") {
            let call: Value = serde_json::from_str(&payload).unwrap_or_else(|error| panic!("{error}"));
            let title = call["title"].as_str().unwrap_or_default();
            if dense.contains(title) != (verbosity.as_deref() == Some("full")) {
                let chosen = verbosity.as_deref().unwrap_or("default");
                violated!(
                    "the chosen verbosity holds: {title:?} in a final with verbosity {chosen}: {text:?}"
                );
            }
            let is_told = match &diff {
                Some(diff) => diff.contains(title),
                None => dense.contains("arenotattached"),
            };
            if call["kind"] == "edit" && !is_told {
                violated!("I7: {title:?} of run {run} is missing in its diff: {diff:?}");
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
         JOIN temp.whole_journal e ON e.session_key = b.session_key AND e.session_seq = p.session_seq \
         WHERE p.kind = 'notice' AND e.kind = 'status' AND json_extract(e.payload_json, '$.status') NOT IN ({owed}) \
         AND {chosen} = 'none'"
    );
    broken("no notice exceeds the chosen verbosity", &texts(db, &more))?;
    let quiet = list(&HIDDEN_STATUSES);
    let less = format!(
        "SELECT b.binding_key || ' ' || e.payload_json FROM temp.whole_journal e JOIN acp_bindings b USING (session_key) \
         JOIN temp.bound t USING (binding_key) WHERE e.kind = 'status' AND e.session_seq > t.from_seq \
         AND e.session_seq <= coalesce(json_extract(b.metadata_json, '$.end_session_seq'), e.session_seq) \
         AND coalesce(json_extract(e.payload_json, '$.text'), '') <> '' \
         AND json_extract(e.payload_json, '$.status') NOT IN ({quiet}) \
         AND coalesce(json_extract(e.payload_json, '$.failed_runs'), 0) = 0 \
         AND coalesce(json_extract(e.payload_json, '$.binding_id'), b.binding_key) = b.binding_key \
         AND {chosen} IS NOT 'none' AND NOT EXISTS (SELECT 1 FROM acp_delivery_part p \
         WHERE p.binding_key = b.binding_key AND p.session_seq = e.session_seq)"
    );
    broken("every due notice is sent", &texts(db, &less))
}
