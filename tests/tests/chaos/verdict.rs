//! Checks after everything has settled.

use crate::Chaos;
use crate::people::{LOBBY, ROOMS, STEER, room};
use acp_tests::cli::run;
use acp_tests::fake_channel::service::{Message, PersonMessage};
use acp_tests::invariants;
use acp_tests::processes;
use acp_tests::wait::{LONG, until};
use rusqlite::Connection;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Queries for unfinished work; all of them are empty at the end.
const OPEN: [(&str, &str); 4] = [
    ("messages", "SELECT message_id FROM acp_inbox WHERE state = 'received'"),
    ("runs", "SELECT run_id FROM acp_runs WHERE state IN ('queued','running')"),
    ("parts", "SELECT nonce FROM acp_delivery_part WHERE state IN ('planned','sending')"),
    (
        "finals",
        "SELECT run_id FROM acp_runs r WHERE mode = 'prompt' AND started_at IS NOT NULL AND NOT EXISTS \
         (SELECT 1 FROM acp_delivery_part p WHERE p.run_id = r.run_id AND p.kind = 'final')",
    ),
];

fn texts(db: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = db.prepare(sql)?;
    statement.query_map([], |row| row.get(0))?.collect()
}

/// Waits until no work is left.
pub(crate) fn settle(chaos: &Chaos, deadline: Duration) {
    let taken = || {
        let rooms = (0..ROOMS).map(room).chain([LOBBY.to_owned()]);
        rooms.map(|room| chaos.service.count_pending(&room)).sum::<usize>()
    };
    until(deadline, "every message is accepted", || taken() == 0);
    until(deadline, "all work settled", || {
        // A copy of a database in use may be torn: then the next copy is read.
        let journal = chaos.place.journal(&chaos.world);
        OPEN.iter().all(|(_, sql)| texts(&journal, sql).is_ok_and(|open| open.is_empty()))
    });
}

/// Outbox row.
struct Part {
    nonce: String,
    text: String,
    kind: String,
    state: String,
    message_id: Option<String>,
}

/// Checks processes, journal and channel at the end of a run.
pub(crate) fn check(mut chaos: Chaos) {
    check_leases(&chaos);
    let gateway = chaos.gateway.take().unwrap();
    assert_eq!(gateway.terminate(LONG), Some(0), "the gateway ends in order");
    let supervisor = chaos.supervisor.take().unwrap();
    assert_eq!(supervisor.terminate(LONG), Some(0), "the supervisor ends in order");
    let journal = chaos.place.journal(&chaos.world);
    let report = run(&mut chaos.place.verb(&chaos.world, &["store", "check"]), LONG);
    assert_eq!(report.code, Some(0), "{report:#?}");
    chaos.place.end();
    assert_eq!(chaos.world.processes(), [], "nothing is left alive");

    invariants::check(&journal);
    for (what, sql) in OPEN {
        assert_eq!(texts(&journal, sql).unwrap(), [] as [String; 0], "{what}");
    }
    check_reached(&journal, chaos.tally.kills());
    let held = chaos.service.conversations();
    let runs = check_sayings(&chaos, &journal);
    check_conversations(&journal, &held);
    check_finals(&journal, &held);
    let failed = check_agents(&chaos, &runs);
    // Each failure is announced (H6), and only affected turns fail: an agent's death fails one turn, the supervisor's
    // one in each room.
    let struck = chaos.tally.agents + chaos.tally.wrappers + chaos.tally.supervisors * ROOMS as u64;
    eprintln!("{} turns, {failed} of them failed; {struck} might have", runs.len());
    assert!(failed <= struck, "{failed} turns failed, at most {struck} were affected");
}

/// A long run contains every situation that it is meant to test.
fn check_reached(journal: &Connection, kills: u64) {
    let count = |sql: &str| journal.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let found = [
        ("words taken into a turn", "SELECT count(*) FROM acp_runs WHERE stop_reason = 'steered'"),
        ("questions in a conversation", "SELECT count(*) FROM acp_delivery_part WHERE kind = 'permission'"),
        ("answers of a person", "SELECT count(*) FROM acp_permission WHERE settled_by = 'ada'"),
        (
            "questions that nobody answered",
            "SELECT count(*) FROM acp_permission WHERE settled_without = 'deadline'",
        ),
    ];
    let found = found.map(|(what, sql)| (what, count(sql)));
    eprintln!("{found:?}");
    assert!(kills < 100 || found.iter().all(|(_, count)| *count > 0), "{found:?}");
}

/// I8: closed leases have no process, and open leases have one.
fn check_leases(chaos: &Chaos) {
    let socket = chaos.supervisor.as_ref().unwrap().socket();
    until(LONG, "leases match processes", || {
        chaos.world.leases(&socket).iter().all(|lease| {
            let is_over = matches!(lease.state(), "closed" | "lost");
            processes::list_of_lease(lease.id()).is_empty() == is_over
        })
    });
}

/// Row of a run.
struct Run {
    prompt: String,
    state: String,
    /// True for mode `prompt`, false for `steer`.
    is_turn: bool,
}

/// Checks that every message was handled once, and returns the runs by id.
fn check_sayings(chaos: &Chaos, journal: &Connection) -> BTreeMap<String, Run> {
    let sql = "SELECT conversation_id, message_id, text, outcome_json FROM acp_inbox WHERE channel = 'fake'";
    let mut statement = journal.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| {
        let said: (String, String) = (row.get(0)?, row.get(1)?);
        Ok((said, (row.get::<_, String>(2)?, row.get::<_, String>(3)?)))
    });
    let mut inbox: HashMap<(String, String), (String, String)> = rows.unwrap().map(Result::unwrap).collect();
    let mut statement =
        journal.prepare("SELECT run_id, prompt, state, mode = 'prompt' FROM acp_runs").unwrap();
    let run = |row: &rusqlite::Row<'_>| {
        Ok((row.get(0)?, Run { prompt: row.get(1)?, state: row.get(2)?, is_turn: row.get(3)? }))
    };
    let runs = statement.query_map([], run).unwrap();
    let runs: BTreeMap<String, Run> = runs.map(Result::unwrap).collect();
    let mut of_messages = BTreeSet::new();
    for PersonMessage { said, taken, refused } in chaos.service.person_messages() {
        assert!(taken && refused.is_none(), "{said:?}: {refused:?}");
        let key = (said.conversation.clone(), said.message_id.clone());
        let (text, outcome) = inbox.remove(&key).unwrap_or_else(|| panic!("never taken: {said:?}"));
        assert_eq!(text, said.text);
        let outcome: Value = serde_json::from_str(&outcome).unwrap();
        let is_command = said.text.starts_with('/');
        match outcome["outcome"].as_str().unwrap() {
            "prompted" => {
                let run_id = outcome["run_id"].as_str().unwrap();
                let words = said.text.strip_prefix(STEER);
                assert_eq!(runs[run_id].prompt.trim(), words.unwrap_or(&said.text).trim(), "{said:?}");
                assert!(of_messages.insert(run_id.to_owned()), "two messages, one run: {said:?}");
                assert!(words.is_some() || !is_command, "{said:?}");
                assert!(said.conversation != LOBBY, "{said:?}");
            }
            "command" => assert!(is_command, "{said:?}: {outcome}"),
            "refused" if outcome["reason"] == "PERMISSION_NOT_PENDING" => {
                assert!(matches!(&*said.text, "/acp allow" | "/acp deny"), "{said:?}: {outcome}");
            }
            "refused" => assert_eq!(said.conversation, LOBBY, "{said:?}: {outcome}"),
            _ => panic!("{said:?}: {outcome}"),
        }
    }
    assert!(inbox.is_empty(), "inbox rows without a message: {inbox:?}");
    assert_eq!(runs.len(), of_messages.len(), "every run belongs to a message");
    runs
}

/// Checks that each conversation holds its own parts in journal order, each once, its replies each once, and nothing
/// else.
fn check_conversations(journal: &Connection, held: &BTreeMap<String, Vec<Message>>) {
    let names: BTreeSet<String> = (0..ROOMS).map(room).chain([LOBBY.to_owned()]).collect();
    assert!(held.keys().all(|name| names.contains(name)), "{:?}", held.keys());
    for name in &names {
        let none = Vec::new();
        let held = held.get(name).unwrap_or(&none);
        let mut once = BTreeSet::new();
        for message in held {
            assert!(once.insert(&message.text.nonce), "twice in {name}: {message:?}");
            for token in tokens(&message.text.text) {
                assert!(name.ends_with(&format!("-{}", room_of(token))), "of another room: {message:?}");
            }
        }
        let parts = parts_of(journal, name);
        let unsure = parts.iter().filter(|part| part.state != "sent").count();
        assert_eq!(unsure, 0, "every part of {name} is sent");
        let answered = outcomes_of(journal, name).iter().filter(|outcome| is_shown(outcome)).count();
        let says = |part: &&Part| part.text.starts_with("The permission request is resolved. Answered: ");
        let told = parts.iter().filter(says).count();
        assert_eq!(told, answered, "answers shown in {name} and answers given");
        let is_part = |message: &&Message| parts.iter().any(|part| part.nonce == message.text.nonce);
        let shown: Vec<(&str, &str, &str, Option<&str>)> = held
            .iter()
            .filter(is_part)
            .map(|m| (&*m.text.nonce, &*m.text.kind, &*m.text.text, Some(&*m.message_id)))
            .collect();
        let planned: Vec<_> =
            parts.iter().map(|p| (&*p.nonce, &*p.kind, &*p.text, p.message_id.as_deref())).collect();
        assert!(shown == planned, "the conversation {name}: {}", first_difference(&shown, &planned));
        let replies = held.iter().filter(|message| !is_part(message));
        check_replies(name, replies.map(|message| &*message.text.text).collect(), replies_of(journal, name));
    }
}

/// First difference of two lists; reports of long runs are truncated.
fn first_difference<T: PartialEq + std::fmt::Debug>(shown: &[T], planned: &[T]) -> String {
    let at = shown.iter().zip(planned).take_while(|(shown, planned)| shown == planned).count();
    let at_it = |all: &[T]| all.get(at).map_or("nothing".to_owned(), |it| format!("{it:?}"));
    let (of_shown, of_planned) = (shown.len(), planned.len());
    format!("message {at} of {of_shown} is {}\npart {at} of {of_planned} is {}", at_it(shown), at_it(planned))
}

fn parts_of(journal: &Connection, conversation: &str) -> Vec<Part> {
    let sql = "SELECT nonce, text, kind, state, message_id FROM acp_delivery_part p JOIN acp_bindings b \
               USING (binding_key) WHERE b.thread_id = ?1 AND b.channel = 'fake' ORDER BY session_seq, part_no";
    let mut statement = journal.prepare(sql).unwrap();
    let rows = statement.query_map([conversation], |row| {
        Ok(Part {
            nonce: row.get(0)?,
            text: row.get(1)?,
            kind: row.get(2)?,
            state: row.get(3)?,
            message_id: row.get(4)?,
        })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

/// Checks that every expected reply is there once, in one message or several, and nothing else.
fn check_replies(name: &str, replies: Vec<&str>, mut owed: Vec<String>) {
    let mut said: String = replies.iter().map(|text| dense(without_advice(text))).collect();
    // Longest first: a short reply may be part of a longer one.
    owed.sort_by_key(|text| std::cmp::Reverse(text.len()));
    for text in &owed {
        let text = dense(text);
        let at = said.find(&text).unwrap_or_else(|| panic!("missing reply in {name}: {text}\n{replies:#?}"));
        said.replace_range(at..at + text.len(), "");
    }
    assert!(said.is_empty(), "unexpected replies in {name}: {said}\n{replies:#?}");
}

/// Reply without error code and next step.
fn without_advice(text: &str) -> &str {
    let Some((said, _)) = text.split_once("\nNext: ") else { return text };
    said.rsplit_once(" (").map_or(said, |(said, _)| said)
}

/// Outcomes of the messages of a conversation.
fn outcomes_of(journal: &Connection, conversation: &str) -> Vec<Value> {
    let sql = "SELECT outcome_json FROM acp_inbox WHERE conversation_id = ?1 AND channel = 'fake'";
    let mut statement = journal.prepare(sql).unwrap();
    let rows = statement.query_map([conversation], |row| row.get::<_, String>(0)).unwrap();
    rows.map(|row| serde_json::from_str(&row.unwrap()).unwrap()).collect()
}

/// True if the conversation shows the outcome without a reply, as for a settled permission request.
fn is_shown(outcome: &Value) -> bool {
    outcome["is_shown"] == true
}

/// Replies expected in a conversation.
fn replies_of(journal: &Connection, conversation: &str) -> Vec<String> {
    let said = |outcome: Value| {
        let text = outcome["text"].as_str().or_else(|| outcome["failure"]["message"].as_str());
        text.unwrap_or_default().trim().to_owned()
    };
    let told = outcomes_of(journal, conversation).into_iter().filter(|outcome| !is_shown(outcome));
    told.map(said).filter(|text| !text.is_empty()).collect()
}

/// Message tokens in a text.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).filter(|word| word.starts_with("tok-"))
}

fn room_of(token: &str) -> &str {
    token.split('-').nth(1).unwrap_or_default()
}

fn dense(text: &str) -> String {
    text.split_whitespace().collect()
}

/// Checks that the whole answer of a turn is in its final message: read from the journal's events, not from the planned
/// parts.
fn check_finals(journal: &Connection, held: &BTreeMap<String, Vec<Message>>) {
    let said = "SELECT coalesce(json_extract(payload_json, '$.content.text'), '') FROM acp_events \
                WHERE run_id = ?1 AND kind = 'agent_message' ORDER BY seq";
    let ended = "SELECT r.run_id || ' ' || b.thread_id FROM acp_runs r JOIN acp_bindings b USING (session_key) \
                 WHERE r.mode = 'prompt' AND r.started_at IS NOT NULL";
    let finals = "SELECT nonce FROM acp_delivery_part WHERE run_id = ?1 AND kind = 'final' ORDER BY part_no";
    let policy = "SELECT lease_id FROM acp_permission WHERE json_extract(ask_json, '$.run_id') = ?1 \
                  AND settled_without = 'policy'";
    for line in texts(journal, ended).unwrap() {
        let (run_id, conversation) = line.split_once(' ').unwrap();
        let of_run = |sql: &str| {
            let mut statement = journal.prepare(sql).unwrap();
            let rows = statement.query_map([run_id], |row| row.get::<_, String>(0)).unwrap();
            rows.map(Result::unwrap).collect::<Vec<String>>()
        };
        let nonces = of_run(finals);
        let shown = held[conversation].iter().filter(|message| nonces.contains(&message.text.nonce));
        let shown = shown.map(|message| message.text.text.as_str()).collect::<Vec<_>>().join("\n");
        // Lines about permissions without a question stand between the words of the agent.
        let (by_policy, words): (Vec<&str>, Vec<&str>) =
            shown.lines().partition(|line| line.starts_with("[permission] "));
        assert_eq!(by_policy.len(), of_run(policy).len(), "run {run_id}\n{shown}");
        let shown = dense(&words.concat());
        let want = dense(&of_run(said).concat());
        assert!(!shown.is_empty() && shown.contains(&want), "run {run_id}\n{want}\n{shown}");
    }
}

/// Checks that agents received no prompt twice and every answered one, and returns the number of failed turns.
fn check_agents(chaos: &Chaos, runs: &BTreeMap<String, Run>) -> u64 {
    let log = std::fs::read_to_string(chaos.world.path("agent.log")).unwrap();
    let mut received: HashMap<String, u64> = HashMap::new();
    for line in log.lines() {
        let entry: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let event = entry["event"].as_str().unwrap_or_default();
        assert!(!matches!(event, "violation" | "trouble"), "the agent complains: {entry}");
        if matches!(event, "prompt" | "steer") {
            *received.entry(entry["text"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }
    let mut failed = 0;
    for Run { prompt, state, is_turn } in runs.values() {
        let times = received.get(prompt).copied().unwrap_or(0);
        assert!(times <= 1, "received {times} times: {prompt:?}");
        assert!(state != "completed" || times == 1, "answered and never received: {prompt:?}");
        failed += u64::from(*is_turn && state == "failed");
    }
    failed
}
