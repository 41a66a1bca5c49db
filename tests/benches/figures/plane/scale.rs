//! Checks that every spawn, prompt and commit repeats, on control planes of 10,000 to 1,000,000 sessions, most of them at
//! rest: issue "Beyond one machine", phase 0. The store's own reads and transactions are timed in this process; a real
//! gateway on the same files shows its start, its memory, and what clients wait for.

use super::boot::Started;
use super::ground::world;
use super::seed::{Size, grow, resting};
use crate::api::{Api, runtime};
use crate::proc::{Private, cpu_ms};
use crate::report::{Limit, Report};
use crate::stats::{Sample, count, ms};
use acp_core::render::{MessagePart, PartKind};
use acp_core::rows::SessionQuery;
use acp_core::timeouts::Timeouts;
use acp_core::writes::{AccountLimit, SessionLimits};
use acp_shared::ids::SessionKey;
use acp_store::bindings;
use acp_store::delivery::{self, DueBinding};
use acp_store::{Durability, Store, StoreError, cards, checkpoints, gauges, interactive_messages};
use acp_store::{render_settings, sessions};
use acp_tests::house::GATEWAY;
use acp_tests::scrape::Scrape;
use acp_tests::wait::LONG;
use acp_tests::world::World;
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Environment variable with other numbers of sessions, separated by blanks.
const SIZES_ENV: &str = "ACP_SCALE_SESSIONS";
const SIZES: [usize; 3] = [10_000, 100_000, 1_000_000];
/// Every n-th session was prompted, and has a journal.
const PROMPTED_EVERY: usize = 4;
/// Sessions with a running turn.
const RUNNING: usize = 100;
/// Sessions in use at the cap of the acceptance table.
const IN_USE: i64 = 10_000;
/// Limit of a repeated check, in milliseconds.
const CHECK_MS_MAX: f64 = 1.0;
/// Samples of a repeated check, and of work that is done once a minute or once in a start.
const CHECKS: usize = 300;
const SELDOM: usize = 3;
/// Samples and limit of a check.
const CHECK: (usize, Option<Limit>) = (CHECKS, Some(Limit::AtMost(CHECK_MS_MAX)));
/// Rows of the first page of a list.
const PAGE: u64 = 50;
/// Bindings that delivery reads in one page of a round.
const ROUND_PAGE: u64 = 500;
/// Clients' requests of each kind.
const REQUESTS: usize = 20;
/// Longest wait until a started gateway is quiet, and the CPU time of a quiet second in milliseconds.
const QUIET_MAX: Duration = Duration::from_secs(300);
const QUIET_CPU_MS: f64 = 30.0;
const QUIET_SECONDS: usize = 3;

/// Measures each size.
pub(crate) fn measure(report: &mut Report) {
    let sizes = std::env::var(SIZES_ENV).map_or_else(
        |_| SIZES.to_vec(),
        |text| {
            let parse = |size: &str| size.parse().unwrap_or_else(|e| panic!("{SIZES_ENV}: {size}: {e}"));
            text.split_whitespace().map(parse).collect()
        },
    );
    let mut first = BTreeMap::new();
    for sessions in sizes {
        one(sessions, &mut first, report);
    }
}

fn one(sessions: usize, first: &mut BTreeMap<String, f64>, report: &mut Report) {
    let is_first = first.is_empty();
    let world = world();
    let began = Instant::now();
    let size =
        Size { resting: sessions, prompted_every: PROMPTED_EVERY, runs: 1, chunks: 1, running: RUNNING };
    let grown = grow(&world, size);
    report.part(
        &format!("scale {sessions}"),
        &format!(
            "{} sessions, each bound to a conversation, {} events, {RUNNING} turns running; p50 and p99 of {CHECKS} reads or transactions without a sync",
            grown.sessions, grown.events
        ),
    );
    report.remark(&format!("made in {:.1} s", began.elapsed().as_secs_f64()));
    let bytes = world.path(GATEWAY).join("gateway.db").metadata().map_or(0, |meta| meta.len());
    report.figure("file", count(u32::try_from(bytes >> 20).unwrap_or(u32::MAX)), "MiB");
    let mut part = Part { sessions, first, report };
    if is_first {
        let check = world.cli(GATEWAY, &["store", "check"]).ok().json();
        assert_eq!(check["ok"], true, "{check}");
    }
    in_process(&world, &mut part);
    through_a_gateway(&world, &mut part);
    if is_first {
        at_the_cap(&world, &mut part);
    }
}

/// Figures of one size, with those of the first one.
struct Part<'a> {
    sessions: usize,
    first: &'a mut BTreeMap<String, f64>,
    report: &'a mut Report,
}

impl Part<'_> {
    /// Adds the median, the 99th percentile and the ratio to the first size.
    fn tell(&mut self, name: &str, sample: &Sample, limit: Option<Limit>) {
        let p50 = sample.median();
        self.report.row(&format!("{name}, p50"), p50, "ms", limit);
        self.report.figure(&format!("{name}, p99"), sample.percentile(99), "ms");
        let base = *self.first.entry(name.to_owned()).or_insert(p50);
        self.report.figure(&format!("{name}, ratio to the smallest size"), p50 / base, "times");
    }

    /// Times work on sessions that are spread over all.
    fn time(
        &mut self,
        name: &str,
        (times, limit): (usize, Option<Limit>),
        mut work: impl FnMut(SessionKey) -> Result<(), StoreError>,
    ) {
        let mut sample = Sample::default();
        for number in 0..times {
            let key = self.key(number);
            let began = Instant::now();
            work(key).unwrap_or_else(|e| panic!("{name}: {e}"));
            sample.push(ms(began.elapsed()));
        }
        self.tell(name, &sample, limit);
    }

    /// Key of a session, another one for each number.
    fn key(&self, number: usize) -> SessionKey {
        const STEP: usize = 7_919;
        let key = resting(1 + number * STEP % self.sessions);
        SessionKey::parse(&key).unwrap_or_else(|e| panic!("{key}: {e}"))
    }
}

/// Limits that are not reached, in total and in the account.
fn caps() -> SessionLimits {
    let account = AccountLimit {
        channel: "console".to_owned(),
        account_id: "default".to_owned(),
        sessions_max: i64::MAX.unsigned_abs(),
    };
    SessionLimits { sessions_max: i64::MAX.unsigned_abs(), account: Some(account) }
}

fn open(world: &World) -> Store {
    let dir = world.path(GATEWAY);
    // A sync of the disk takes as long with any number of sessions.
    Store::open(&dir, Durability::Normal).unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
}

fn in_process(world: &World, part: &mut Part<'_>) {
    let runtime = runtime();
    let store = open(world);
    repeated(&runtime, &store, part);
    delivery_checks(&runtime, &store, part);
    seldom(&runtime, &store, part);
    runtime.block_on(store.close());
}

/// Work of each spawn, prompt, commit or request.
fn repeated(runtime: &Runtime, store: &Store, part: &mut Part<'_>) {
    part.time("caps of a spawn", CHECK, |_| {
        runtime.block_on(store.read("caps", |db| sessions::check_caps(db, &caps())))
    });
    part.time("wake: use, caps and claim of a session", CHECK, |key| {
        runtime.block_on(async {
            let asked = key.clone();
            let _ = store.read("rest", move |db| sessions::session_usage(db, &asked)).await?;
            store.read("caps", |db| sessions::check_caps(db, &caps())).await?;
            store.claim(key).await.map(drop)
        })
    });
    let windows = Timeouts { session_ms: 30 * 24 * 3_600_000, runtime_ms: 1_800_000 };
    part.time("timeouts: the next one of all sessions", CHECK, |_| {
        let now_ms = store.clock().wall_ms();
        runtime.block_on(store.expiring_sessions(windows, now_ms)).map(drop)
    });
    for (name, before) in [("by activity", None), ("by creation", Some(u64::MAX))] {
        part.time(
            &format!("list: first {PAGE} {name}, with their runs and bindings"),
            (CHECKS, None),
            |_| {
                runtime.block_on(async {
                    let query = SessionQuery { before, limit: PAGE + 1, ..SessionQuery::default() };
                    let found = store.find_sessions(query).await?;
                    assert_eq!(found.len() as u64, PAGE + 1, "sessions are missing");
                    let keys: Vec<SessionKey> = found.into_iter().map(|(_, row)| row.session_key).collect();
                    store.read("activity", move |db| gauges::session_activity(db, &keys)).await.map(drop)
                })
            },
        );
    }
}

/// Work of delivery after each commit, and each few seconds.
fn delivery_checks(runtime: &Runtime, store: &Store, part: &mut Part<'_>) {
    let sql = "SELECT text FROM acp_delivery_part GROUP BY print ORDER BY count(*) DESC LIMIT 1";
    let text =
        runtime.block_on(store.read("text", move |db| db.first(sql, &[], |row| row.get::<String>("text"))));
    let text = text.unwrap_or_else(|e| panic!("{sql}: {e}")).unwrap_or_default();
    part.time("delivery: bindings of a session, next part and rows", CHECK, |key| {
        runtime.block_on(store.read("delivery", move |db| {
            for DueBinding { binding, end } in delivery::bindings_of_session(db, &key)? {
                let id = binding.binding_id;
                let parts = delivery::pending_parts(db, id)?;
                let styles = render_settings::of(db, id)?;
                let after = checkpoints::checkpoint(db, id)?;
                let batch = delivery::batch(db, &binding, &styles, after, end)?;
                assert!(parts.is_empty() && batch.rows.is_empty(), "{key} has something to deliver");
            }
            Ok(())
        }))
    });
    part.time("delivery: plan of a part with a text that many conversations have", CHECK, |key| {
        let text = text.clone();
        let planned = runtime.block_on(store.write("plan", move |tx| {
            for DueBinding { binding, .. } in delivery::bindings_of_session(tx, &key)? {
                delivery::plan(tx, &binding, &[unsent(text.clone())])?;
            }
            Err::<(), _>(StoreError::UsedMeanwhile)
        }));
        // Nothing stays: a gateway would send it.
        if matches!(planned, Err(StoreError::UsedMeanwhile)) { Ok(()) } else { planned }
    });
    part.time("delivery: cards and buttons", CHECK, |_| {
        let now_ms = store.clock().wall_ms();
        runtime.block_on(store.read("cards", move |db| {
            cards::due_folds(db, now_ms)?;
            interactive_messages::bindings(db).map(drop)
        }))
    });
    part.time(&format!("delivery: {ROUND_PAGE} bindings of a round"), (CHECKS, None), |_| {
        runtime.block_on(store.read("round", |db| delivery::delivering_bindings(db, 0, ROUND_PAGE))).map(drop)
    });
}

/// A part that was not planned yet.
fn unsent(text: String) -> MessagePart {
    MessagePart {
        session_seq: 1_000_000,
        part_no: 0,
        run_id: None,
        kind: PartKind::Final,
        text,
        nonce: "unsent".to_owned(),
        asks: None,
        files: Vec::new(),
    }
}

/// Work of a scrape, of each minute, or of a start.
fn seldom(runtime: &Runtime, store: &Store, part: &mut Part<'_>) {
    part.time("scrape: all counts", (SELDOM, None), |_| {
        runtime.block_on(store.read("scrape", gauges::read_gauges)).map(drop)
    });
    part.time("delivery: ended bindings, each minute", (SELDOM, None), |_| {
        runtime.block_on(store.read("ended", delivery::ended_with_pending)).map(drop)
    });
    part.time("Discord: all conversations of an account, after each bind", (SELDOM, None), |_| {
        let read = |db: &_| bindings::bound_conversations(db, "console", "default");
        runtime.block_on(store.read("places", read)).map(drop)
    });
    part.time("start: sessions to recover", (SELDOM, None), |_| {
        runtime.block_on(store.found_sessions(16)).map(drop)
    });
    part.time("start: bindings to settle", (SELDOM, None), |_| {
        runtime.block_on(store.read("bindings", bindings::unsettled)).map(drop)
    });
}

/// What a start costs and what clients wait for.
fn through_a_gateway(world: &World, part: &mut Part<'_>) {
    let supervisor = world.supervisor();
    let gateway = Started::start(world, &supervisor.socket());
    let pid = gateway.child.pid();
    part.report.figure("gateway ready after exec", ms(gateway.ready), "ms");
    part.report.figure("gateway ready, CPU", cpu_ms(pid), "ms");
    part.report.figure("gateway ready, private memory that was written", written_mib(pid), "MiB");
    let mut api = Api::new(&gateway.socket);
    prompts(&mut api, "prompt to a resting session after the start, until answered", 0, part);
    let began = Instant::now();
    wait_until_quiet(pid);
    part.report.figure("gateway quiet after the first prompts", began.elapsed().as_secs_f64(), "s");
    part.report.figure("gateway quiet, CPU", cpu_ms(pid), "ms");
    part.report.figure("gateway quiet, private memory that was written", written_mib(pid), "MiB");
    // The gateway closes connections after a long silence.
    api = Api::new(&gateway.socket);
    prompts(&mut api, "prompt to a resting session, until answered", REQUESTS, part);
    let path = format!("/v1/sessions?limit={PAGE}");
    part.time(&format!("GET {path}"), (REQUESTS, None), |_| {
        let _ = api.get(&path);
        Ok(())
    });
    part.time("GET /v1/sessions/KEY", (REQUESTS, None), |key| {
        let _ = api.get(&format!("/v1/sessions/{key}"));
        Ok(())
    });
    part.time("GET /metrics", (SELDOM, None), |_| {
        let _ = Scrape::fetch(&gateway.socket);
        Ok(())
    });
    drop(gateway);
    let _ = supervisor.terminate(LONG);
}

/// Prompts sessions that no one has used for long; each starts its agent.
fn prompts(api: &mut Api, name: &str, from: usize, part: &mut Part<'_>) {
    let mut sample = Sample::default();
    for number in from..from + REQUESTS {
        let key = part.key(CHECKS + number);
        let began = Instant::now();
        let _ = api.prompt(key.as_str(), "hello");
        sample.push(ms(began.elapsed()));
    }
    part.tell(name, &sample, None);
}

/// Waits until the gateway has done what it does after a start.
fn wait_until_quiet(pid: i32) {
    let (began, mut quiet, mut last) = (Instant::now(), 0, cpu_ms(pid));
    while quiet < QUIET_SECONDS && began.elapsed() < QUIET_MAX {
        std::thread::sleep(Duration::from_secs(1));
        let now = cpu_ms(pid);
        quiet = if now - last < QUIET_CPU_MS { quiet + 1 } else { 0 };
        last = now;
    }
}

fn written_mib(pid: i32) -> f64 {
    Private::of(pid).dirty_kib / 1024.0
}

/// Measures the caps with as many sessions in use as one gateway is meant to have. They are changed behind its back; nothing
/// uses the files afterwards.
fn at_the_cap(world: &World, part: &mut Part<'_>) {
    let path = world.path(GATEWAY).join("gateway.db");
    #[expect(clippy::disallowed_methods, reason = "so many agents cannot be started")]
    let db = Connection::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let sql = "UPDATE acp_sessions SET state = 'creating' WHERE rowid IN \
        (SELECT rowid FROM acp_sessions WHERE state = 'idle' LIMIT ?1)";
    let changed = db.execute(sql, [IN_USE]).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    drop(db);
    let (runtime, store) = (runtime(), open(world));
    part.time(&format!("caps of a spawn, {changed} sessions in use"), (SELDOM, None), |_| {
        runtime.block_on(store.read("caps", |db| sessions::check_caps(db, &caps())))
    });
    runtime.block_on(store.close());
}
