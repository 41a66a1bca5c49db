//! Ten thousand fixed seeds, new seeds, and the seeded bugs.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failed unwrap fails the test and shows the error"
)]

use crate::sim::cell::{self, CellScheduler};
use crate::sim::chat::SimChannel;
use crate::sim::coverage::{self, SeedResult};
use crate::sim::gateway::{self, SimPorts};
use crate::sim::invariants;
use crate::sim::log_capture;
use crate::sim::scheduler::{EFFECTS_MIN, SimScheduler, Violation};
use crate::sim::seeded_bugs::SeededBug;
use crate::sim::store::SimStore;
use crate::sim::supervisor::files;
use crate::sim::users::UserRequest;
use crate::supervisor::simulated::SimSupervisorConnection;
use acp_core::config::load::LoadedConfig;
use acp_shared::clock::Clock;
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{Reply, Request};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Number of fixed seeds; `SIM_SEEDS=10000` runs ten thousand.
const SEEDS: u64 = 200;
/// Number of seeds that together must reach full coverage.
const REACHES_ALL: u64 = 10_000;
/// Number of new seeds; `SIM_FRESH_SEEDS` runs more.
const FRESH: u64 = 20;
/// Number of seeds within which a seeded bug must be found.
const FOUND_WITHIN: u64 = 150;
/// Number of seeds of a cell that reach everything together.
const CELL_REACHES_ALL: u64 = 200;
/// One seed of a cell is run for so many others.
const CELL_SHARE: u64 = 5;
const SESSIONS_MIN: usize = 3;
/// Maximum number of printed lines of a failed run.
const LINES: usize = 20_000;

/// State shared by all seeds.
struct SeedRunner {
    _dir: tempfile::TempDir,
    hand: SimStore,
    config: LoadedConfig,
    world: SimWorld,
}

/// What a seed runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SimWorld {
    OneGateway,
    /// Two gateways with one cell.
    Cell,
}

impl SimWorld {
    /// Environment variable that sets one seed.
    const fn variable(self) -> &'static str {
        match self {
            Self::OneGateway => "SIM_SEED",
            Self::Cell => "SIM_CELL_SEED",
        }
    }
}

impl SeedRunner {
    fn new(world: SimWorld) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { hand: SimStore::new(dir.path().to_owned()), _dir: dir, config: gateway::config(), world }
    }

    fn play(
        &mut self,
        seed: u64,
        plant: Option<SeededBug>,
        aloud: bool,
    ) -> (Result<SeedResult, Violation>, Vec<String>) {
        drop(log_capture::listen(aloud));
        let (hand, config) = (&mut self.hand, &self.config);
        let mut played = match self.world {
            SimWorld::OneGateway => SimScheduler::new(hand, config, seed, plant).play(),
            SimWorld::Cell => CellScheduler::new(hand, config, seed, plant).play(),
        };
        let heard = log_capture::listen(false);
        if let Ok(tally) = &mut played {
            tally.reached.extend(heard.moves.into_iter().map(|what| (what, 1)));
        }
        (played, heard.lines.unwrap_or_default())
    }

    /// Runs a seed without seeded bugs, and adds its result.
    fn must_hold(&mut self, seed: u64, all: &mut SeedResult) {
        // With all log lines, since another run of the seed may wake tasks in another order.
        let (played, lines) = self.play(seed, None, true);
        let tally = match played {
            Ok(tally) => tally,
            Err(Violation(why)) => {
                let last = lines.iter().rev().take(LINES).rev().cloned().collect::<Vec<_>>().join("\n");
                let rows = invariants::rows(self.hand.db());
                let variable = self.world.variable();
                panic!("seed {seed} ({variable}={seed} reproduces it): {why}\n{last}\n{rows}\n{why}");
            }
        };
        assert!(tally.effects >= EFFECTS_MIN, "seed {seed} has only {} effects", tally.effects);
        assert!(tally.sessions >= SESSIONS_MIN, "seed {seed} has only {} sessions", tally.sessions);
        all.add(tally);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Runs this many seeds on all processors, until one fails.
fn all_hold(world: SimWorld, first: u64, count: u64) -> SeedResult {
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        let mut theatre = SeedRunner::new(world);
        let mut all = SeedResult::default();
        let _ends = FailureSignal(&failed);
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count || failed.load(Ordering::Relaxed) {
                return all;
            }
            theatre.must_hold(first.wrapping_add(at), &mut all);
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let working: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        let mut all = SeedResult::default();
        working.into_iter().for_each(|thread| all.add(thread.join().unwrap()));
        all
    })
}

/// Signals on drop that a seed failed, so that the other threads stop.
struct FailureSignal<'a>(&'a AtomicBool);

impl Drop for FailureSignal<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs the fixed seeds. Enough of them must reach full coverage together.
#[test]
fn seeds_fixed() {
    let begun = std::time::Instant::now();
    let count = number("SIM_SEEDS").unwrap_or(SEEDS);
    let tally = all_hold(SimWorld::OneGateway, 0, count);
    eprintln!("{count} seeds, {} effects, {} lives, {:?}", tally.effects, tally.lives, begun.elapsed());
    let unknown = coverage::unknown(&tally.reached);
    assert!(unknown.is_empty(), "reached, but not listed: {unknown:#?}");
    let missing = coverage::missing(&tally.reached);
    eprintln!("reached (number of seeds): {:#?}\nnot reached: {missing:#?}", tally.reached);
    assert!(count < REACHES_ALL || missing.is_empty(), "not reached: {missing:#?}");
}

/// Runs new seeds; `SIM_FRESH` sets the first one.
#[test]
fn seeds_fresh() {
    use std::time::{SystemTime, UNIX_EPOCH};
    #[expect(clippy::disallowed_methods, reason = "seeds that no run had before")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let first = number("SIM_FRESH").unwrap_or(u64::from(now.subsec_nanos()) << 20 | now.as_secs() & 0xf_ffff);
    eprintln!("SIM_FRESH={first}");
    let count = number("SIM_FRESH_SEEDS").unwrap_or(FRESH);
    all_hold(SimWorld::OneGateway, first, count);
    all_hold(SimWorld::Cell, first, count / CELL_SHARE);
}

/// Runs fixed seeds of two gateways with one cell. Together they reach what a cell has to bear.
#[test]
fn seeds_of_a_cell_fixed() {
    let begun = std::time::Instant::now();
    let count = number("SIM_SEEDS").unwrap_or(SEEDS) / CELL_SHARE;
    let tally = all_hold(SimWorld::Cell, 0, count);
    eprintln!("{count} seeds, {} effects, {} lives, {:?}", tally.effects, tally.lives, begun.elapsed());
    let of_cell: Vec<_> = tally.reached.iter().filter(|(what, _)| what.starts_with("cell: ")).collect();
    eprintln!("reached (number of seeds): {of_cell:#?}");
    if count < CELL_REACHES_ALL {
        return;
    }
    let missing: Vec<_> = cell::REACHED.iter().filter(|what| !tally.reached.contains_key(**what)).collect();
    assert!(missing.is_empty(), "not reached: {missing:#?}");
}

/// `SIM_SEED=n` or `SIM_CELL_SEED=n` runs one seed and prints its log; `make replay` does so in the reproducible build.
#[test]
fn replay() {
    for world in [SimWorld::OneGateway, SimWorld::Cell] {
        let Some(seed) = number(world.variable()) else { continue };
        let (played, lines) = SeedRunner::new(world).play(seed, None, true);
        for line in lines {
            eprintln!("{line}");
        }
        played.unwrap();
    }
}

/// A gateway that was asked to do something, over simulated interfaces that a test moves by hand.
fn asked_to_work<T>(play: impl AsyncFnOnce(SimPorts) -> T) -> T {
    let mut theatre = SeedRunner::new(SimWorld::OneGateway);
    let dir = theatre.hand.dir().to_owned();
    let slot = Arc::new(OnceLock::new());
    let runtime = gateway::runtime(Arc::clone(&slot), 0).unwrap();
    runtime.block_on(async {
        let (store, pump) = theatre.hand.start(Clock::at(1));
        let (supervisor, wire) = SimSupervisorConnection::new();
        let ports = slot.get_or_init(|| SimPorts::new(pump, wire, SimChannel::default())).clone();
        let gateway = gateway::start(&store, &ports, &[supervisor], &theatre.config, &dir);
        ports.wire.lock().up("first");
        gateway.door.ask(0, UserRequest::Oneshot { text: "do it".to_owned() });
        play(ports).await
    })
}

/// Answers the requests for files; returns their number, and the leases of the starts that were asked for.
fn take_all(ports: &SimPorts) -> (usize, Vec<LeaseId>) {
    let (mut looked, mut asked) = (0, Vec::new());
    let mut wire = ports.wire.lock();
    while let Some((id, request)) = wire.take() {
        match request {
            Request::Spawn(spawn) => asked.push(spawn.lease_id),
            Request::Files(request) => {
                wire.reply(id, Ok(Reply::Files(files(request))));
                looked += 1;
            }
            _ => {}
        }
    }
    (looked, asked)
}

#[test]
fn a_process_is_asked_for_once() {
    is_asked_for_once(false);
}

/// A connection breaks and comes back during a commit: the request that the commit allows is sent once on the
/// new one.
#[test]
fn a_process_is_asked_for_once_after_a_reconnect_during_a_commit() {
    is_asked_for_once(true);
}

/// Once on each connection. A start sent twice may be refused first and then succeed, and its process would
/// be orphaned.
fn is_asked_for_once(breaks: bool) {
    let spawns = asked_to_work(async |ports| {
        let mut spawns: Vec<Vec<LeaseId>> = Vec::new();
        loop {
            ports.settle().await;
            let (looked, asked) = take_all(&ports);
            spawns.push(asked);
            if looked > 0 {
                continue;
            }
            if ports.pump.lock().waiting().next().is_none() {
                return spawns;
            }
            if breaks {
                ports.wire.lock().down();
                ports.wire.lock().up("again");
            }
            ports.pump.lock().commit(1);
        }
    });
    assert!(spawns.iter().any(|asked| asked.len() == 1), "{spawns:?}");
    assert!(spawns.iter().all(|asked| asked.len() <= 1), "{spawns:?}");
}

/// A session is committed, and the database fails at the first commit of its actor: the work is done once the
/// database is writable again, without a new request.
#[test]
fn a_committed_spawn_outlives_a_database_that_fails_just_then() {
    let asked = asked_to_work(async |ports| {
        let mut failed = false;
        for _ in 0..100 {
            ports.settle().await;
            if !take_all(&ports).1.is_empty() {
                return (failed, true);
            }
            ports.answers.lock().clear();
            let first = ports.pump.lock().waiting().next();
            match first {
                Some("commit") if !failed => {
                    failed = true;
                    let mut pump = ports.pump.lock();
                    pump.fail(1);
                    pump.probe();
                }
                Some(_) => ports.pump.lock().commit(1),
                None => ports.sleep(1_000).await,
            }
        }
        (failed, false)
    });
    assert_eq!(
        asked,
        (true, true),
        "the first commit of its actor failed, and an agent was started afterwards"
    );
}

/// Checks that the bug breaks this invariant in one of the first seeds; it may break others before.
fn is_found(plant: SeededBug, law: &str) {
    let world = if plant.is_of_cell() { SimWorld::Cell } else { SimWorld::OneGateway };
    let mut theatre = SeedRunner::new(world);
    let mut others = BTreeSet::new();
    for seed in 0..FOUND_WITHIN {
        if let Err(Violation(why)) = theatre.play(seed, Some(plant), false).0 {
            if why.contains(law) {
                eprintln!("{plant:?}: seed {seed}: {why}");
                return;
            }
            others.insert(why.chars().take(80).collect::<String>());
        }
    }
    panic!("{plant:?} does not break {law:?} within {FOUND_WITHIN} seeds, but {others:#?}");
}

macro_rules! plants {
    ($($name:ident = $plant:ident breaks $law:literal,)+) => {
        $(
            #[test]
            fn $name() {
                is_found(SeededBug::$plant, $law);
            }
        )+

        // A bug without a test does not compile.
        const _: fn(SeededBug) = |plant| match plant { $(SeededBug::$plant => {})+ };
    };
}

plants! {
    found_ack_before_commit = AckBeforeCommit breaks "nothing is lost",
    found_checkpoint_before_send = CheckpointBeforeSend breaks "is marked as sent but not shown",
    found_a_replayed_key_that_acts = ReplayedKeyActs breaks "I5: a request creates one run",
    found_a_fallback_route = Fallback breaks "no fallback",
    found_a_number_used_again = SeqAgain breaks "the supervisor reports violations: input",
    found_a_prompt_handed_over_twice = InputTwice breaks "an agent reads each prompt once",
    found_a_nonce_that_is_ignored = NonceIgnored breaks "I7: shown twice",
    found_a_lost_row_of_the_outbox = OutboxRowLost breaks "I6: a finished turn of a bound session has its final",
    found_a_run_that_ends_twice = CompletedTwice breaks "I6: an ended run has one end in the journal",
    found_a_superseded_actor_that_writes = SupersededWrites breaks "the number of an event in its session",
    found_a_dead_lease_that_is_not_drained = DeadLeaseNotDrained breaks "H1: process",
    found_a_process_that_is_not_ended = LeaseNotClosed breaks "I8: the process of a closed session ends",
    found_a_message_that_is_forgotten = InboxRowLost breaks "accepted messages are stored",
    found_files_that_are_lost = FilesLost breaks "I7: the files of",
    found_a_choice_that_is_forgotten = ChoiceForgotten breaks "chosen verbosity",
    found_a_host_that_promises_too_short_a_time = ShortPromise breaks "O7: session",
    found_a_server_without_a_fence = NoFence breaks "O1: session",
    found_a_commit_that_is_repeated_blindly = CommitRepeated breaks "I6: an ended run has one end in the journal",
    found_an_owner_that_acts_before_a_commit_of_its_own = ReadBeforeCommit breaks "O3: epoch",
}
