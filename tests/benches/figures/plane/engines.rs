//! The store's engines side by side: commits of many writers into SQLite and into PostgreSQL, and behind a round trip of
//! 0.5 ms. Issue "Beyond one machine", acceptance figures of the engine.

use crate::report::{Limit, Report};
use crate::stats::{Sample, ms, per_second};
use acp_core::event::EventKind;
use acp_core::writes::{ActorFence, Write};
use acp_shared::clock::Clock;
use acp_shared::ids::SessionKey;
use acp_store::{Durability, GroupBounds, PgAddress, Store, StoreError};
use acp_testkit::postgres::Postgres;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const WRITERS: usize = 50;
const EVENTS: usize = 16;
/// Number of cells that share a server.
const CELLS: usize = 10;
/// Rounds of each engine, which alternate, and the time of one.
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
/// Delay of the relay in each direction.
const DELAY: Duration = Duration::from_micros(250);
/// Pieces that are on their way in one direction; more wait to be read.
const QUEUED_MAX: usize = 1_024;
/// Text of an event.
const PAYLOAD: &str =
    r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"some words of an answer"}}"#;
const SESSION: &str = "INSERT INTO acp_sessions (session_key, backend, agent, mode, cwd, state, owner_session_key, \
    gateway_instance_id, resumable, options_json, last_session_seq, created_at, updated_at, last_activity_at) \
    VALUES (?1, 'direct', 'demo', 'persistent', '/', 'running', ?1, '', 0, '{}', 0, 0, 0, 0)";

/// Measures both engines, if there is a PostgreSQL.
pub(crate) fn measure(report: &mut Report) {
    let Some(server) = Postgres::start() else { return report.remark("no PostgreSQL is installed") };
    report.part(
        "engines",
        &format!("{WRITERS} writers, commits of {EVENTS} events, {ROUNDS} rounds in turns; one writer"),
    );
    let runtime = Runtime::new().unwrap_or_else(|error| panic!("{error}"));
    let relay = Relay::start(server.dir());
    let sides = [
        Side::sqlite("SQLite"),
        Side::postgres("PostgreSQL", &server.create_database("near")),
        Side::postgres("PostgreSQL 0.5 ms away", &relay.address(&server.create_database("far"))),
    ];
    let fences: Vec<Vec<ActorFence>> = sides.iter().map(|side| runtime.block_on(side.seed())).collect();
    let mut rates: Vec<Sample> = sides.iter().map(|_| Sample::default()).collect();
    let mut server_us = Sample::default();
    let mut last = vec![vec![0; WRITERS]; sides.len()];
    for _ in 0..ROUNDS {
        for (number, side) in sides.iter().enumerate() {
            let cpu = server_cpu(&server);
            let (events, time) = runtime.block_on(side.write(&fences[number], &mut last[number]));
            rates[number].push(per_second(events, time));
            if number == 1 {
                server_us.push((server_cpu(&server) - cpu) * 1_000.0 / crate::stats::count(events));
            }
        }
    }
    let base = rates[0].median();
    for (side, rate) in sides.iter().zip(&rates) {
        report.figure(&format!("{}, events a second", side.name), rate.median(), "1/s");
    }
    report.row("PostgreSQL, rate to SQLite's", rates[1].median() / base, "times", Some(Limit::AtLeast(0.5)));
    report.row(
        "PostgreSQL 0.5 ms away, events a second",
        rates[2].median(),
        "1/s",
        Some(Limit::AtLeast(15_000.0)),
    );
    report.row("server's CPU for an event", server_us.median(), "µs", Some(Limit::AtMost(15.0)));
    for (number, side) in sides.iter().enumerate() {
        let times = runtime.block_on(side.one_writer(&fences[number][0], &mut last[number][0]));
        let limit = (number == 2).then_some(Limit::AtMost(15.0));
        report.figure(&format!("{}, commit of one writer, p50", side.name), times.median(), "ms");
        report.row(&format!("{}, commit of one writer, p99", side.name), times.percentile(99), "ms", limit);
    }
    for side in &sides {
        runtime.block_on(side.store.close());
    }
    measure_cells(&server, &runtime, rates[1].median(), report);
}

/// Measures cells that share a server, beside the rate of one cell.
fn measure_cells(server: &Postgres, runtime: &Runtime, one_cell: f64, report: &mut Report) {
    let writers = WRITERS / CELLS;
    report.part("cells", &format!("{CELLS} cells of one database, {writers} writers each, {ROUNDS} rounds"));
    let address = server.create_database("cells");
    let cells: Vec<Side> = (0..CELLS).map(|n| Side::cell("a cell", &address, &format!("cell{n}"))).collect();
    let fences: Vec<Vec<ActorFence>> = cells.iter().map(|cell| runtime.block_on(cell.seed())).collect();
    let mut last = vec![vec![0; writers]; CELLS];
    let (mut rates, mut server_us) = (Sample::default(), Sample::default());
    for _ in 0..ROUNDS {
        let cpu = server_cpu(server);
        let rounds = cells.iter().zip(&fences).zip(&mut last);
        let rounds = rounds.map(|((cell, fences), last)| cell.write(&fences[..writers], last));
        let rounds = runtime.block_on(futures_util::future::join_all(rounds));
        let events = rounds.iter().map(|(events, _)| events).sum();
        let time = rounds.iter().map(|(_, time)| *time).max().unwrap_or(ROUND);
        rates.push(per_second(events, time));
        server_us.push((server_cpu(server) - cpu) * 1_000.0 / crate::stats::count(events));
    }
    report.figure("all cells, events a second", rates.median(), "1/s");
    report.figure("rate to that of one cell", rates.median() / one_cell, "times");
    report.figure("server's CPU for an event of many cells", server_us.median(), "µs");
    let (last_of_one, last) = last.split_at_mut(1);
    let others = cells.iter().skip(1).zip(&fences[1..]).zip(last);
    let others = others.map(|((cell, fences), last)| cell.write(&fences[..writers], last));
    let one = cells[0].one_writer(&fences[0][0], &mut last_of_one[0][0]);
    let (times, _) = runtime.block_on(async { tokio::join!(one, futures_util::future::join_all(others)) });
    report.figure("commit of one writer while the other cells write, p50", times.median(), "ms");
    report.figure("commit of one writer while the other cells write, p99", times.percentile(99), "ms");
    for cell in &cells {
        runtime.block_on(cell.store.close());
    }
}

/// CPU time of the server's processes, in milliseconds.
pub(super) fn server_cpu(server: &Postgres) -> f64 {
    let first = server.pid().unwrap_or_else(|| panic!("the server does not run"));
    let all = std::iter::once(first).chain(acp_testkit::processes::children(first));
    all.map(crate::proc::cpu_ms).sum()
}

struct Side {
    name: &'static str,
    store: Store,
    _dir: TempDir,
}

impl Side {
    fn open(name: &'static str, open: impl FnOnce(&Path, Clock) -> Result<Store, StoreError>) -> Self {
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        #[expect(clippy::disallowed_methods, reason = "the benchmark is a process of its own")]
        let store = open(dir.path(), Clock::start());
        Self { name, store: store.unwrap_or_else(|error| panic!("{name}: {}", error.whole())), _dir: dir }
    }

    fn sqlite(name: &'static str) -> Self {
        Self::open(name, |dir, clock| Store::open_with(dir, Durability::Full, GroupBounds::default(), clock))
    }

    fn postgres(name: &'static str, address: &str) -> Self {
        Self::cell(name, address, "bench")
    }

    fn cell(name: &'static str, address: &str, cell: &str) -> Self {
        let address = PgAddress::parse(address, cell).unwrap_or_else(|error| panic!("{error}"));
        Self::open(name, |dir, clock| Store::open_cell(dir, &address, true, GroupBounds::default(), clock))
    }

    /// Makes the sessions and claims them.
    async fn seed(&self) -> Vec<ActorFence> {
        let mut fences = Vec::new();
        for number in 0..WRITERS {
            let key = SessionKey::parse(&format!("s{number}")).unwrap_or_else(|error| panic!("{error}"));
            let (name, claimed) = (key.clone(), self.store.clone());
            let inserted = claimed.write("seed", move |tx| tx.run(SESSION, acp_store::params![name])).await;
            inserted.unwrap_or_else(|error| panic!("{}", error.whole()));
            let epoch = self.store.write("epoch", {
                let key = key.clone();
                move |tx| acp_store::sessions::next_epoch(tx, &key)
            });
            let epoch = epoch.await.unwrap_or_else(|error| panic!("{}", error.whole()));
            fences.push(ActorFence { session_key: key, epoch });
        }
        fences
    }

    /// Writes with all writers for a round. Returns the number of events and the time.
    async fn write(&self, fences: &[ActorFence], last: &mut [u64]) -> (usize, Duration) {
        let began = Instant::now();
        let writers = fences.iter().zip(last.iter_mut()).map(|(fence, last)| async move {
            let mut events = 0;
            while began.elapsed() < ROUND {
                self.commit(fence, last).await;
                events += EVENTS;
            }
            events
        });
        let events = futures_util::future::join_all(writers).await.into_iter().sum();
        (events, began.elapsed())
    }

    async fn one_writer(&self, fence: &ActorFence, last: &mut u64) -> Sample {
        let began = Instant::now();
        let mut times = Sample::default();
        while began.elapsed() < ROUND {
            let began = Instant::now();
            self.commit(fence, last).await;
            times.push(ms(began.elapsed()));
        }
        times
    }

    async fn commit(&self, fence: &ActorFence, last: &mut u64) {
        let event = |session_seq| Write::Event {
            session_seq,
            run: None,
            kind: EventKind::AgentMessage,
            payload: PAYLOAD.into(),
            extra: None,
        };
        let to = *last + EVENTS as u64;
        let writes = (*last + 1..=to).map(event).collect();
        let committed = self.store.commit(fence.clone(), writes).await;
        committed.unwrap_or_else(|error| panic!("{}: {}", self.name, error.whole()));
        *last = to;
    }
}

/// Relay to a server's socket that delays each byte.
struct Relay {
    dir: TempDir,
}

impl Relay {
    /// Name of the socket in a server's directory.
    const SOCKET: &str = ".s.PGSQL.5432";

    fn start(server: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let listener =
            UnixListener::bind(dir.path().join(Self::SOCKET)).unwrap_or_else(|error| panic!("{error}"));
        let to: PathBuf = server.join(Self::SOCKET);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = UnixStream::connect(&to) else { return };
                let both = (client.try_clone(), server.try_clone());
                if let (Ok(client_again), Ok(server_again)) = both {
                    pass(client, server);
                    pass(server_again, client_again);
                }
            }
        });
        Self { dir }
    }

    /// Address of the server's database through the relay.
    fn address(&self, of_server: &str) -> String {
        let (head, rest) = of_server.split_once("host=").unwrap_or_else(|| panic!("{of_server}"));
        let rest = rest.split_once('&').map_or("", |(_, rest)| rest);
        format!("{head}host={}&{rest}", self.dir.path().display())
    }
}

/// Passes bytes on, each after the delay.
fn pass(mut from: UnixStream, mut to: UnixStream) {
    let (sender, due) = sync_channel::<(Instant, Vec<u8>)>(QUEUED_MAX);
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            if sender.send((Instant::now() + DELAY, bytes[..read].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (at, bytes) in due {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
}
