//! Seeded plans of kills, freezes and cuts for two gateways with one cell and three hosts, judged by what the agents read
//! and what the journal has.

use crate::gateway::configuration;
use crate::plane::{Cable, Plane, RemoteHost};
use acp_testkit::postgres::Postgres;
use acp_tests::house::{AGENT, scripted};
use acp_tests::seed::Seed;
use acp_tests::service::Service;
use acp_tests::story::{check_history, number};
use acp_tests::wait::{LONG, SOON, until};
use acp_tests::world::World;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Number of plans, and the first seed.
const PLANS: (&str, u64) = ("ACP_HOST_PLANS", 2);
const FIRST_SEED: &str = "ACP_HOST_SEED";
const HOSTS: usize = 3;
const SESSIONS: usize = 6;
/// Number of prompts and faults of a plan.
const STEPS: u64 = 16;
/// One plan of this number has a frozen gateway, which takes longer than a take-over.
const FREEZES: u64 = 8;
/// Longest time until a prompt is accepted: a take-over of a frozen owner, on a busy machine.
const ACCEPTED: Duration = Duration::from_secs(60);
/// Longest time until everything rests after a plan.
const REST: Duration = Duration::from_secs(120);

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Gateway of a plan, with its cables to the hosts.
struct Node {
    name: &'static str,
    service: Option<Service>,
    cables: Vec<Cable>,
}

/// A prompt that a gateway accepted.
#[derive(Debug)]
struct Sent {
    session: usize,
    text: String,
    run_id: String,
}

struct Stage {
    world: World,
    nodes: [Node; 2],
    hosts: Vec<RemoteHost>,
    sessions: Vec<String>,
    sent: Vec<Sent>,
    /// True once agents were ended: their turns may end as uncertain.
    has_ended_agents: bool,
}

impl Stage {
    fn new(server: &Postgres, seed: u64) -> Self {
        let world = World::new();
        let plane = Plane::new(&world);
        // A short cut of a namespace delays what is sent, and one of a relay ends connections.
        let host = if seed.is_multiple_of(2) { Plane::machine } else { Plane::host };
        let hosts: Vec<RemoteHost> =
            (1..=HOSTS).map(|n| host(&plane, &world, &format!("host{n}"), "")).collect();
        let cell = configuration(&world, &server.create_database(&format!("plan{seed}")), true);
        let nodes = ["one", "two"].map(|name| {
            let cables: Vec<Cable> = hosts.iter().map(RemoteHost::another_cable).collect();
            let over: Vec<_> = hosts.iter().zip(&cables).map(|(host, cable)| (host, cable, "")).collect();
            let toml = format!("[supervisor]\nenabled = false\n{cell}\n{}", plane.configuration_over(&over));
            let agents = BTreeMap::from([(AGENT, scripted(&world, &[], "approve-all"))]);
            let _ = world.configure(name, &toml, &agents);
            Node { name, service: None, cables }
        });
        let mut stage =
            Self { world, nodes, hosts, sessions: Vec::new(), sent: Vec::new(), has_ended_agents: false };
        for at in 0..stage.nodes.len() {
            stage.start(at);
        }
        let cwd = stage.world.dir("work/project").display().to_string();
        for n in 0..SESSIONS {
            let host = format!("host{}", n % HOSTS + 1);
            let args = ["sessions", "spawn", "--agent", AGENT, "--host", &host, "--cwd", &cwd, "--wait", "0"];
            let spawned = stage.ask(&args, &format!("spawn-{n}"));
            stage.sessions.push(spawned["session_key"].as_str().unwrap().to_owned());
        }
        stage
    }

    fn start(&mut self, at: usize) {
        let none = self.world.path("no-supervisor.sock");
        self.nodes[at].service = Some(self.world.standby(self.nodes[at].name, &none));
    }

    /// Runs a verb on the gateway that serves; repeats it, with the same key, until one answers.
    fn ask(&self, args: &[&str], key: &str) -> Value {
        let args = [args, &["--idempotency-key", key]].concat();
        let began = Instant::now();
        loop {
            for node in self.nodes.iter().filter(|node| node.service.is_some()) {
                let output = self.world.cli(node.name, &args);
                if output.code == Some(0) {
                    return output.json();
                }
                assert!(began.elapsed() < ACCEPTED, "{args:?}: {output:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a verb that only reads.
    fn read(&self, args: &[&str]) -> Option<Vec<Value>> {
        self.nodes.iter().filter(|node| node.service.is_some()).find_map(|node| {
            let output = self.world.cli(node.name, args);
            (output.code == Some(0)).then(|| output.lines())
        })
    }

    fn prompt(&mut self, chance: &mut Seed, n: u64) {
        let session = usize::try_from(chance.below(SESSIONS as u64)).unwrap();
        let text = match chance.below(3) {
            0 => format!("chunks {} pace_ms=20 size={}", 5 + chance.below(40), 100 + n),
            _ => format!("say number {n}"),
        };
        let args = ["prompt", &self.sessions[session], &text, "--no-wait"];
        let accepted = self.ask(&args, &format!("prompt-{n}"));
        let run_id = accepted["run_id"].as_str().unwrap_or_else(|| panic!("{accepted}")).to_owned();
        self.sent.push(Sent { session, text, run_id });
    }

    /// Injects one fault.
    fn disturb(&mut self, chance: &mut Seed, may_freeze: bool) {
        let at = usize::try_from(chance.below(2)).unwrap();
        let host = usize::try_from(chance.below(HOSTS as u64)).unwrap();
        match chance.below(8) {
            0..=2 => {
                if let Some(gateway) = self.nodes[at].service.take() {
                    gateway.kill9();
                }
                self.start(at);
            }
            3..=5 => {
                let cables = self.nodes.iter().map(|node| &node.cables[host]);
                cables.clone().for_each(Cable::cut);
                std::thread::sleep(chance.time_below(Duration::from_secs(1)));
                cables.for_each(Cable::mend);
            }
            6 => {
                self.has_ended_agents = true;
                self.hosts[host].kill();
                self.hosts[host].start(&self.world);
            }
            _ if may_freeze => {
                let frozen = self.nodes[at].service.as_ref().unwrap();
                assert!(frozen.signal(Signal::STOP));
                std::thread::sleep(Duration::from_secs(14));
                assert!(frozen.signal(Signal::CONT));
            }
            _ => std::thread::sleep(chance.time_below(Duration::from_millis(200))),
        }
    }

    /// Starts gateways that ended because the database took their cell away, as a service manager does.
    fn restart_ended(&mut self) {
        for at in 0..self.nodes.len() {
            let has_ended = self.nodes[at].service.as_mut().is_some_and(Service::has_ended);
            if has_ended {
                self.start(at);
            }
        }
    }

    /// Number of times that the agents read a prompt.
    fn received(&self, text: &str) -> usize {
        let log = std::fs::read_to_string(self.world.path("agent.log")).unwrap_or_default();
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        entries.filter(|entry| entry["event"] == "prompt" && entry["text"] == text).count()
    }

    fn living(&self, host: &RemoteHost, key: &str) -> usize {
        let socket: PathBuf = host.socket();
        let all = self.world.leases(&socket);
        let is_living = |state: &str| !matches!(state, "closed" | "lost");
        all.iter().filter(|lease| lease.text("session_key") == key && is_living(lease.state())).count()
    }

    /// Waits until nothing runs, and judges the plan. Returns the number of uncertain turns.
    fn judge(&mut self) -> usize {
        let began = Instant::now();
        let runs_end = |stage: &Self, key: &str| {
            let rows = stage.read(&["sessions", "show", key]);
            rows.is_some_and(|rows| {
                matches!(rows[0]["state"].as_str(), Some("idle" | "error")) && rows[0]["queued_runs"] == 0
            })
        };
        while !self.sessions.iter().all(|key| runs_end(self, key)) {
            assert!(began.elapsed() < REST, "not at rest: {:?}", self.read(&["sessions", "list"]));
            self.restart_ended();
            std::thread::sleep(Duration::from_millis(100));
        }
        let mut uncertain = 0;
        for (at, key) in self.sessions.iter().enumerate() {
            let mut events = None;
            until(SOON, "the history is read", || {
                events = self.read(&["sessions", "history", key]);
                events.is_some()
            });
            let events = events.unwrap();
            check_history(&events);
            for sent in self.sent.iter().filter(|sent| sent.session == at) {
                let of_run: Vec<&Value> =
                    events.iter().filter(|event| event["run_id"] == *sent.run_id).collect();
                let ends: Vec<&str> = of_run
                    .iter()
                    .filter_map(|event| event["type"].as_str())
                    .filter(|kind| matches!(*kind, "done" | "error"))
                    .collect();
                assert_eq!(ends.len(), 1, "lost or ended twice: {sent:?}: {of_run:#?}");
                let received = self.received(&sent.text);
                if ends == ["done"] {
                    assert_eq!(received, 1, "answered, and read {received} times: {sent:?}");
                } else {
                    assert!(received <= 1, "read {received} times: {sent:?}");
                    assert!(self.has_ended_agents, "failed without a reason: {sent:?}: {:#?}", of_run.last());
                    uncertain += 1;
                }
                assert!(number(of_run[0], "seq") == 1, "{of_run:#?}");
            }
            let agents: usize = self.hosts.iter().map(|host| self.living(host, key)).sum();
            assert!(agents <= 1, "{agents} agents for {key}");
        }
        uncertain
    }

    fn end(mut self) {
        for node in &mut self.nodes {
            if let Some(gateway) = node.service.take() {
                assert_eq!(gateway.terminate(LONG), Some(0));
            }
        }
        for host in &mut self.hosts {
            let supervisor = host.supervisor.take().unwrap();
            assert_eq!(supervisor.terminate(LONG), Some(0));
        }
        assert_eq!(self.world.processes(), [], "no process is left");
    }
}

#[test]
#[ignore = "needs a PostgreSQL server: make test-postgres"]
fn nothing_is_lost_or_done_twice_in_seeded_plans() {
    let Some(server) = Postgres::start() else { return };
    let first = variable(FIRST_SEED, 0);
    for seed in first..first + variable(PLANS.0, PLANS.1) {
        let began = Instant::now();
        let mut chance = Seed::from_number(seed);
        let mut stage = Stage::new(&server, seed);
        for n in 0..STEPS {
            if chance.below(2) == 0 {
                stage.prompt(&mut chance, n);
            } else {
                stage.disturb(&mut chance, seed % FREEZES == FREEZES - 1);
                stage.restart_ended();
            }
        }
        let uncertain = stage.judge();
        println!("plan {seed}: {} prompts, {uncertain} uncertain, {:?}", stage.sent.len(), began.elapsed());
        stage.end();
    }
}
