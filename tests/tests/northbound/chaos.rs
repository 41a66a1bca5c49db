//! Clients over HTTP, WebSocket and stdio on ten sessions, while the gateway is killed, sockets are cut and readers stop:
//! each client holds exactly the journal, and each prompt ran once.
//!
//! `ACP_NORTHBOUND_KILLS` says how many kills (5 by default, 50 in `make nightly`); `ACP_TEST_SEED` repeats the choices.

mod link;
mod peer;

use crate::{cwd, path, socket};
use acp_tests::house::{AGENT, GATEWAY, House};
use acp_tests::northbound::Client;
use acp_tests::seed::Seed;
use acp_tests::wait::{LONG, until, wait_until_instant};
use acp_tests::world::bin;
use peer::{Held, Peer, Signals, Transport};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const SESSIONS: usize = 10;
const CLIENTS: usize = 20;
/// Number of kills, unless the environment says otherwise.
const KILLS: u64 = 5;
/// Maximum pause before a kill.
const PAUSE_MAX: Duration = Duration::from_millis(1_500);
const TRANSPORTS: [Transport; 3] = [Transport::Http, Transport::WebSocket, Transport::Stdio];
/// Kinds of rows that every client gets as they are.
const CONTENT: &[&str] =
    &["agent_message", "agent_thought", "tool_call", "tool_call_update", "plan", "update"];

/// Row of a journal.
struct Row {
    seq: u64,
    kind: String,
    run: Option<String>,
    payload: Value,
}

fn journal(house: &House, session: &str) -> Vec<Row> {
    let db = house.world.journal(GATEWAY);
    let sql =
        "SELECT session_seq, kind, run_id, payload_json FROM acp_events WHERE session_key = ?1 ORDER BY 1";
    let mut statement = db.prepare(sql).unwrap();
    let rows = statement.query_map([session], |row| {
        let payload: String = row.get(3)?;
        let payload = serde_json::from_str(&payload).unwrap();
        Ok(Row { seq: row.get::<_, i64>(0)?.cast_unsigned(), kind: row.get(1)?, run: row.get(2)?, payload })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

fn last_end(rows: &[Row]) -> u64 {
    rows.iter().rfind(|row| row.kind == "done").map_or(0, |row| row.seq)
}

fn kills_wanted() -> u64 {
    std::env::var("ACP_NORTHBOUND_KILLS").map_or(KILLS, |text| text.parse().unwrap())
}

/// Returns what makes the commands of bridges.
fn bridges(house: &House) -> impl Fn() -> Command + Clone + Send + 'static {
    let (program, state, work) = (bin("acp-gateway"), house.world.path(GATEWAY), house.world.path("work"));
    let model = house.world.command("acp-gateway");
    let pairs = model.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    let env: Vec<_> = pairs.collect();
    move || {
        let mut command = Command::new(&program);
        command.env_clear().envs(env.clone()).current_dir(&work);
        command.arg("--state-dir").arg(&state).args(["acp", "--agent", AGENT]);
        command
    }
}

#[test]
fn heavy_resumed_clients_hold_exactly_the_journal() {
    let (mut seed, mut house) = (Seed::new(), House::with_approve_all(&[]));
    let mut maker = Client::websocket(&socket(&house), &path());
    let sessions: Vec<String> = (0..SESSIONS).map(|_| maker.new_session(&cwd(&house))).collect();
    drop(maker);
    let peer = |n: usize| {
        let who = (format!("c{n}"), TRANSPORTS[n % TRANSPORTS.len()]);
        let at = (socket(&house), path());
        Peer::new(who, sessions[n % SESSIONS].clone(), at, Box::new(bridges(&house)), seed.fork())
    };
    let peers: Vec<Peer> = (0..CLIENTS).map(peer).collect();
    let (signals, began) = (&Signals::default(), Instant::now());
    let peers: Vec<Peer> = std::thread::scope(|scope| {
        let running: Vec<_> = peers.into_iter().map(|peer| scope.spawn(|| peer.run(signals))).collect();
        for _ in 0..kills_wanted() {
            wait_until_instant(Instant::now() + seed.time_below(PAUSE_MAX));
            house.restart_gateway();
        }
        signals.is_over.store(true, Ordering::Relaxed);
        until(LONG, "every prompt is answered", || {
            let has_failed = running.iter().any(std::thread::ScopedJoinHandle::is_finished);
            has_failed || signals.settled.load(Ordering::Relaxed) == CLIENTS as u64
        });
        let last = sessions.iter().map(|session| (session.clone(), last_end(&journal(&house, session))));
        signals.last.set(last.collect()).unwrap();
        running.into_iter().map(|peer| peer.join().unwrap()).collect()
    });
    eprintln!("{} kills in {:?}", kills_wanted(), began.elapsed());
    for session in &sessions {
        let rows = journal(&house, session);
        peers.iter().filter(|peer| peer.session == *session).for_each(|peer| check_rows(&rows, peer));
    }
    check_prompts(&house, &peers);
    house.end();
}

/// Each answered prompt reached the agent once, and nothing else did.
fn check_prompts(house: &House, peers: &[Peer]) {
    let mut received: Vec<String> =
        house.agent_events("prompt").iter().map(|entry| entry["text"].as_str().unwrap().to_owned()).collect();
    let mut answered: Vec<String> = peers.iter().flat_map(|peer| peer.answered.clone()).collect();
    received.sort();
    answered.sort();
    assert_eq!(received, answered);
    let sum = |of: fn(&peer::Deeds) -> u64| peers.iter().map(|peer| of(&peer.deeds)).sum::<u64>();
    eprintln!(
        "{} prompts, {} rows read, {} connections, {} resumed streams, {} cuts, {} stops of readers",
        answered.len(),
        peers.iter().map(|peer| peer.held.len()).sum::<usize>(),
        sum(|deeds| deeds.connected),
        sum(|deeds| deeds.resumed),
        sum(|deeds| deeds.cut),
        sum(|deeds| deeds.deaf),
    );
}

/// Each row that a client gets, it holds once and in order.
fn check_rows(rows: &[Row], peer: &Peer) {
    let own: BTreeSet<&str> = rows
        .iter()
        .filter(|row| row.kind == "prompt")
        .filter(|row| peer.answered.iter().any(|text| row.payload["text"] == text.as_str()))
        .filter_map(|row| row.run.as_deref())
        .collect();
    assert_eq!(own.len(), peer.answered.len(), "{}: each own prompt has one row", peer.name);
    let is_own = |run: Option<&str>| run.is_some_and(|run| own.contains(run));
    let (mut content, mut said, mut echoes, mut ends) = (vec![], vec![], vec![], vec![]);
    for Held { seq, json } in &peer.held {
        let (update, ours) = (&json["update"], &json["_meta"]["acphost"]);
        let run = ours["turn"]["runId"].as_str().or(ours["runId"].as_str());
        match update["sessionUpdate"].as_str() {
            Some("user_message_chunk") if is_own(run) => echoes.push(*seq),
            Some("user_message_chunk") => said.push((*seq, &update["content"]["text"])),
            _ if ours["turn"]["state"] == "idle" && !is_own(run) => ends.push(*seq),
            _ if !ours["turn"].is_null() || !json["stopReason"].is_null() => {}
            _ => content.push((*seq, update)),
        }
    }
    let of_kinds = |kinds: &'static [&str]| rows.iter().filter(|row| kinds.contains(&row.kind.as_str()));
    let wanted: Vec<_> = of_kinds(CONTENT).map(|row| (row.seq, &row.payload)).collect();
    check_same(&peer.name, "updates", &content, &wanted);
    let others = |kind| of_kinds(kind).filter(|row| !is_own(row.run.as_deref()));
    let wanted: Vec<_> = others(&["prompt"]).map(|row| (row.seq, &row.payload["text"])).collect();
    check_same(&peer.name, "prompts", &said, &wanted);
    let wanted: Vec<_> = others(&["done"]).map(|row| row.seq).collect();
    check_same(&peer.name, "ends", &ends, &wanted);
    // A client that comes back is told of its own prompts, an editor behind a bridge never left.
    assert!(echoes.is_sorted_by(|one, next| one < next), "{}: {echoes:?}", peer.name);
    let updates = peer.held.iter().filter(|held| held.json.get("update").is_some());
    let seqs: Vec<u64> = updates.map(|held| held.seq).collect();
    assert!(seqs.is_sorted(), "{}: {seqs:?}", peer.name);
}

fn check_same<T: PartialEq + std::fmt::Debug>(name: &str, what: &str, held: &[T], wanted: &[T]) {
    let same = held.iter().zip(wanted).take_while(|(held, wanted)| held == wanted).count();
    let (held_there, wanted_there) = (held.get(same), wanted.get(same));
    assert!(
        held.len() == wanted.len() && same == wanted.len(),
        "{name} holds {} {what} of {}; number {same} is {held_there:?}, not {wanted_there:?}",
        held.len(),
        wanted.len()
    );
}
