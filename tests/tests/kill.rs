//! The gateway is killed at random moments: nothing is lost or duplicated.

use acp_tests::cli::RunningCommand;
use acp_tests::house::{GATEWAY, House};
use acp_tests::invariants;
use acp_tests::lease::Lease;
use acp_tests::locked::DatabaseLock;
use acp_tests::seed::Seed;
use acp_tests::story::{check_answer, check_chunks, check_history, check_turn, chunks, number};
use acp_tests::wait::{LONG, SOON, eventually, until, wait_until_instant};
use acp_tests::world::GATEWAY_DB;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Chunks of the long turn, and the time between two.
const CHUNKS: u64 = 2_000;
const PACE_MS: u64 = 24;
/// Bytes of a chunk.
const SIZE: usize = 16;
/// Number of gateway kills, and of those planned during the turn.
const KILLS: u64 = 50;
const KILLS_IN_TURN: u64 = 47;
/// Prompts that are sent around kills.
const PROMPTS: usize = 20;

/// Counts of kills by situation.
#[derive(Debug, Default)]
struct Tally {
    kills: u64,
    /// During the turn.
    in_turn: u64,
    /// With read but uncommitted output.
    uncommitted: u64,
    /// Before the gateway was ready.
    starting: u64,
}

/// Client that repeats a prompt under the same idempotency key until it is answered.
struct Client {
    args: [String; 5],
    running: Option<RunningCommand>,
}

impl Client {
    fn new(key: &str, number: usize) -> Self {
        let text = format!("message {number:02}");
        let args = ["prompt", key, &text, "--idempotency-key", &format!("retry-{number}")];
        Self { args: args.map(str::to_owned), running: None }
    }

    fn text(&self) -> &str {
        &self.args[2]
    }

    fn send(&mut self, house: &House) {
        self.running = Some(house.follow(&self.args.each_ref().map(String::as_str)));
    }

    /// Kills the client process; the prompt is repeated later.
    fn die(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.kill9();
        }
    }

    fn finish(mut self, house: &House) {
        if self.running.is_none() {
            self.send(house);
        }
        let running = self.running.take().unwrap_or_else(|| panic!("it was just sent"));
        check_answer(&running.finish(LONG).ok().lines(), [format!("echo: {}", self.args[2])]);
    }
}

/// Number of committed chunks of the long turn.
fn committed(house: &House, run: &str) -> u64 {
    let sql = "SELECT count(*) FROM acp_events WHERE run_id = ?1 AND kind = 'agent_message'";
    let db = house.world.journal(GATEWAY);
    db.query_row(sql, [run], |row| row.get::<_, i64>(0)).map_or(0, i64::cast_unsigned)
}

fn lease_number(lease: &Lease, name: &str) -> u64 {
    number(&lease.0, name)
}

/// Services with a long turn.
struct Trial {
    house: House,
    seed: Seed,
    key: String,
    run: String,
    lease: Lease,
    tally: Tally,
}

impl Trial {
    /// Kills the gateway between reading and committing output, while the database is locked.
    fn kill_uncommitted(&mut self) {
        let id = self.lease.id().to_owned();
        let Some(lock) = DatabaseLock::acquire(&self.house.world.path(GATEWAY).join(GATEWAY_DB)) else {
            return self.kill_now();
        };
        let before = lease_number(&self.house.lease_by_id(&id), "stdout_end");
        let more = eventually(SOON, "more agent output", || {
            let lease = self.house.lease_by_id(&id);
            let ended = committed(&self.house, &self.run) >= CHUNKS;
            (ended || lease_number(&lease, "stdout_end") > before).then_some(lease)
        });
        let (end, acked) = (lease_number(&more, "stdout_end"), lease_number(&more, "stdout_acked"));
        self.kill_now();
        drop(lock);
        if end > acked && end > before {
            self.tally.uncommitted += 1;
        }
    }

    /// Kills the gateway at once.
    fn kill_now(&mut self) {
        self.house.kill_gateway();
        self.count_kill();
    }

    fn count_kill(&mut self) {
        self.tally.kills += 1;
        if (1..CHUNKS).contains(&committed(&self.house, &self.run)) {
            self.tally.in_turn += 1;
        }
    }

    /// Starts a gateway and kills it before it is ready, or soon after.
    fn kill_starting(&mut self) {
        let world = &self.house.world;
        let socket = self.house.socket().to_string_lossy().into_owned();
        let config = world.path("gateway.toml").to_string_lossy().into_owned();
        let mut command =
            world.gateway_verb(GATEWAY, &["serve", "--supervisor-socket", &socket, "--config", &config]);
        let mut starting = RunningCommand::start(&mut command);
        wait_until_instant(Instant::now() + self.seed.time_below(Duration::from_millis(120)));
        starting.kill9();
        self.tally.starting += 1;
        self.count_kill();
    }

    fn check_process(&self) {
        let now = self.house.lease(&self.key);
        let same = (now.id(), now.adapter_pid(), now.wrapper_pid());
        let want = (self.lease.id(), self.lease.adapter_pid(), self.lease.wrapper_pid());
        assert_eq!(same, want, "the agent's process must not change");
    }
}

/// Acceptance point 3.
#[test]
fn heavy_turn_survives_fifty_gateway_kills() {
    let seed = Seed::new();
    let (house, key) = House::new(&[]).with_session();
    let other = house.world.spawn(GATEWAY, "scripted", "work/other");
    let lease = house.lease(&key);
    let script = format!("chunks {CHUNKS} pace_ms={PACE_MS} size={SIZE}");
    let mut stream = house.follow(&["prompt", &key, &script]);
    let mut seen = stream.events_until(SOON, |event| event["type"] == "text_delta");
    let begun = Instant::now();
    let run =
        seen.last().and_then(|event| event["run_id"].as_str()).unwrap_or_else(|| panic!("no run")).to_owned();
    let mut trial = Trial { house, seed, key, run, lease, tally: Tally::default() };

    let mut clients: Vec<Client> = Vec::new();
    let step = Duration::from_millis(CHUNKS * PACE_MS) / u32::try_from(KILLS_IN_TURN + 1).unwrap_or(1);
    for n in 0..KILLS {
        let slot = begun + step * u32::try_from(n).unwrap_or(0);
        wait_until_instant(slot + trial.seed.time_below(step));
        // Two prompts for every five kills; every fourth goes to the session of the long turn and waits there.
        let sends = matches!(n % 5, 0 | 2);
        if sends {
            let at = if clients.len() % 4 == 3 { &trial.key } else { &other };
            let mut client = Client::new(at, clients.len());
            client.send(&trial.house);
            clients.push(client);
            wait_until_instant(Instant::now() + trial.seed.time_below(Duration::from_millis(60)));
        }
        match n % 6 {
            1 | 4 => trial.kill_uncommitted(),
            _ => trial.kill_now(),
        }
        if let Some(client) = clients.last_mut()
            && sends
            && n % 10 >= 5
        {
            client.die();
        }
        if n % 8 == 7 {
            trial.kill_starting();
        }
        trial.house.start_gateway();
        trial.check_process();
        for client in clients.iter_mut().filter(|client| client.running.is_none()) {
            client.send(&trial.house);
        }
    }

    assert_eq!(clients.len(), PROMPTS);
    // Variant 2: one client that followed the turn through all kills printed everything once, in order.
    let ended = stream.finish(LONG).ok();
    seen.extend(ended.lines());
    check_turn(&seen, "end_turn");
    check_chunks(&chunks(&seen), CHUNKS, SIZE);
    let texts: Vec<String> = clients.iter().map(|client| client.text().to_owned()).collect();
    for client in clients {
        client.finish(&trial.house);
    }
    check_everything(&trial, &texts, &script);
    eprintln!("{:?} in {:?}", trial.tally, begun.elapsed());
    let Tally { kills, in_turn, uncommitted, .. } = trial.tally;
    assert!(kills >= KILLS && in_turn >= 40 && uncommitted > 0, "{:?}", trial.tally);
    trial.house.end();
}

fn check_everything(trial: &Trial, texts: &[String], script: &str) {
    let Trial { house, key, run, .. } = trial;
    trial.check_process();
    let history = house.history(key);
    check_history(&history);
    let of_run: Vec<Value> = history.into_iter().filter(|event| event["run_id"] == **run).collect();
    check_chunks(&chunks(&of_run), CHUNKS, SIZE);

    let db = house.world.journal(GATEWAY);
    invariants::check(&db);
    let state =
        db.query_row("SELECT state FROM acp_runs WHERE run_id = ?1", [run], |row| row.get::<_, String>(0));
    assert_eq!(state.as_deref(), Ok("completed"));
    let sql = "SELECT json_extract(payload_json, '$.content.text') FROM acp_events
               WHERE run_id = ?1 AND kind = 'agent_message' ORDER BY seq";
    let mut rows = db.prepare(sql).unwrap();
    let rows = rows.query_map([run], |row| row.get::<_, String>(0)).unwrap();
    let rows: Vec<String> = rows.map(Result::unwrap).collect();
    check_chunks(&rows.iter().map(String::as_str).collect::<Vec<_>>(), CHUNKS, SIZE);

    assert_eq!(house.prompts_received(script), 1);
    for text in texts {
        assert_eq!(house.prompts_received(text), 1, "the agent must receive {text:?} once");
    }
    assert_eq!(house.agent_events("start").len(), 2, "one process for each session, from first to last");
    let agents = house.leases().into_iter().filter(|lease| lease.text("session_key") == key.as_str()).count();
    assert_eq!(agents, 1, "one lease from first to last");
}

/// Kills between the acceptance of a prompt and its first chunk, and between the last chunk and the result.
#[test]
fn heavy_short_turns_survive_kills_at_their_edges() {
    let mut seed = Seed::new();
    let (mut house, key) = House::new(&[]).with_session();
    let _ = house.prompt(&key, "warm up");
    let pid = house.lease(&key).adapter_pid();
    for n in 0..12 {
        let text = format!("edge {n:02}");
        let turn = house.follow(&["prompt", &key, &text]);
        wait_until_instant(Instant::now() + seed.time_below(Duration::from_millis(80)));
        house.restart_gateway();
        check_answer(&turn.finish(LONG).ok().lines(), [format!("echo: {text}")]);
        assert_eq!(house.prompts_received(&text), 1);
    }
    assert_eq!(house.lease(&key).adapter_pid(), pid);
    check_history(&house.history(&key));
    house.end();
}

/// Cancel and close take effect once and reach the agent although the gateway is killed around them.
#[test]
fn heavy_cancels_and_closes_survive_kills() {
    let mut seed = Seed::new();
    let mut house = House::new(&[]);
    for n in 0..6 {
        let key = house.spawn();
        let mut turn = house.follow(&["prompt", &key, "say begun\nwait_cancel"]);
        let mut events = turn.events_until(SOON, |event| event["type"] == "text_delta");
        let lease = house.lease(&key);
        let verb = if n % 2 == 0 { "cancel" } else { "close" };
        let command = house.follow(&["sessions", verb, &key, "--idempotency-key", "once"]);
        wait_until_instant(Instant::now() + seed.time_below(Duration::from_millis(80)));
        house.restart_gateway();
        let _ = command.finish(LONG).ok();
        events.extend(turn.finish(LONG).lines());
        check_turn(&events, "cancelled");
        if verb == "close" {
            house.wait_for_lease_end(&lease);
        } else {
            assert_eq!(house.lease(&key).adapter_pid(), lease.adapter_pid(), "a cancel touches no process");
            check_turn(&house.prompt(&key, "go on"), "end_turn");
        }
    }
    let cancels = house.received("session/cancel").len();
    assert!(cancels <= 6, "{cancels} cancels for 6 turns");
    until(SOON, "all turns ended", || house.agent_events("turn_end").len() >= 6);
    house.end();
}
