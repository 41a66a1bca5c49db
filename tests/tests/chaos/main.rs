//! Chaos on real processes: ten sessions in ten conversations of a failing channel, while gateway, supervisor and agents
//! are killed and stopped, the disk runs full and the chat service is unavailable. Simulated users steer running turns
//! and answer permission requests, or do not. At the end the channel holds exactly what the journal says, every message
//! was handled once, and no process is left.
//!
//! `ACP_TEST_SEED` repeats a run as far as real processes allow: the same plan, the same mishaps in the same order.
//! `ACP_CHAOS_KILLS` says how many kills (100 by default, 1,000 in `make nightly`).
//! A person never sees a difference but one: a turn whose agent died is said to have failed (H6).

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod people;
mod place;
mod plan;
mod verdict;

use acp_tests::fake_channel::service::ChatService;
use acp_tests::house::{AGENT, GATEWAY, scripted};
use acp_tests::processes::ProcessHandle;
use acp_tests::seed::Seed;
use acp_tests::service::Service;
use acp_tests::wait::{LONG, wait_until_instant};
use acp_tests::world::{World, is_wrapper};
use people::People;
use place::Place;
use plan::{Blow, Plan, Step};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Kills of a run, unless the environment says otherwise.
const KILLS: u64 = 100;
/// Minimum share of gateway kills between a send and its receipt: one in five.
const BETWEEN_SHARE: u64 = 5;
/// Maximum wait for a send that can be interrupted.
const CATCH: Duration = Duration::from_secs(3);
/// Crashes are intended here: no crash back-off.
const SUPERVISOR: &str = "reap_term_ms = 300\ncrash_backoff_ms = 0\ncrashes_max = 0\n";

/// Unanswered permission requests are refused soon.
const CONFIG: &str = "[permission]\ntimeout_ms = 2500\n";

/// Counts of events in a run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) gateways: u64,
    pub(crate) starting: u64,
    pub(crate) supervisors: u64,
    pub(crate) agents: u64,
    pub(crate) wrappers: u64,
    /// Processes that were stopped for a while.
    stops: u64,
    /// Times that the disk was full.
    full: u64,
    /// Times that the chat service was unavailable.
    away: u64,
    /// Kills at which the channel held a part whose receipt the gateway had not committed.
    between: u64,
}

impl Tally {
    const fn kills(&self) -> u64 {
        self.gateways + self.starting + self.supervisors + self.agents + self.wrappers
    }
}

/// Processes, users and counts of one run.
pub(crate) struct Chaos {
    // In drop order.
    gateway: Option<Service>,
    supervisor: Option<Service>,
    service: ChatService,
    place: Place,
    people: People,
    tally: Tally,
    world: World,
}

impl Chaos {
    fn new(seed: &mut Seed) -> Self {
        let world = World::new();
        let agent = scripted(&world, &["--steer".to_owned()], "approve-all");
        world.configure(GATEWAY, CONFIG, &BTreeMap::from([(AGENT, agent)]));
        world.write("supervisor.toml", SUPERVISOR);
        let service = ChatService::start(&world.path("chat.sock"), seed.fork());
        let place = Place::new(&world);
        let people = People::new(&world, seed.fork());
        let supervisor = Some(world.supervisor());
        let tally = Tally::default();
        let mut chaos = Self { gateway: None, supervisor, service, place, people, tally, world };
        chaos.start_gateway();
        chaos.people.begin(&chaos.service);
        chaos
    }

    /// Starts the gateway; on a full disk it waits for room by itself.
    fn start_gateway(&mut self) {
        self.gateway = Some(self.world.start_command(self.place.gateway(&self.world)));
    }

    fn start_supervisor(&mut self) {
        self.supervisor = Some(self.world.supervisor());
    }

    fn kill_gateway(&mut self) {
        self.gateway.take().unwrap().kill9();
        self.tally.gateways += 1;
        self.look_between();
    }

    fn kill_supervisor(&mut self) {
        self.supervisor.take().unwrap().kill9();
        self.tally.supervisors += 1;
    }

    /// Counts a kill between a send and its receipt.
    fn look_between(&mut self) {
        let journal = self.place.journal(&self.world);
        let mut sending =
            journal.prepare("SELECT nonce FROM acp_delivery_part WHERE state = 'sending'").unwrap();
        let sending = sending.query_map([], |row| row.get::<_, String>(0)).unwrap();
        let sending: Vec<String> = sending.map(Result::unwrap).collect();
        let held = self.service.conversations();
        let is_held = |nonce: &String| held.values().flatten().any(|message| message.text.nonce == *nonce);
        if sending.iter().any(is_held) {
            self.tally.between += 1;
        }
    }

    /// Holds a random agent or wrapper by pidfd; the flag is true for a wrapper.
    fn some_agent(&self, draw: u64) -> Option<(ProcessHandle, bool)> {
        let found = self.world.agents();
        let at = usize::try_from(draw % (found.len() as u64).max(1)).unwrap();
        let process = found.get(at)?;
        Some((self.world.open_process(process)?, is_wrapper(process)))
    }

    fn stop_for_a_while(&mut self, held: &ProcessHandle, time: Duration, goes_on: bool) {
        if held.signal(Signal::STOP) {
            wait_until_instant(Instant::now() + time);
            let _ = goes_on && held.signal(Signal::CONT);
            self.tally.stops += 1;
        }
    }

    fn step(&mut self, step: &Step) {
        self.people.talk(&self.service);
        wait_until_instant(Instant::now() + step.pause);
        match step.blow {
            Blow::Gateway => {
                self.kill_gateway();
                self.start_gateway();
            }
            Blow::GatewayBetween => {
                self.people.ask_for_an_answer(&self.service);
                let _ = self.service.withhold_answer(CATCH);
                self.kill_gateway();
                self.start_gateway();
            }
            Blow::GatewayStarting => {
                self.kill_gateway();
                let mut starting = self.place.gateway(&self.world).spawn().unwrap();
                wait_until_instant(Instant::now() + step.time);
                starting.kill().unwrap();
                starting.wait().unwrap();
                self.tally.starting += 1;
                self.start_gateway();
            }
            Blow::GatewayStopped => {
                let held = ProcessHandle::open(self.gateway.as_ref().unwrap().pid()).unwrap();
                // One in four is never continued.
                let dies = step.draw.is_multiple_of(4);
                self.stop_for_a_while(&held, step.time * 3, !dies);
                if dies {
                    self.kill_gateway();
                    self.start_gateway();
                }
            }
            Blow::Supervisor => {
                self.kill_supervisor();
                wait_until_instant(Instant::now() + step.time);
                self.start_supervisor();
            }
            Blow::Both => {
                self.kill_supervisor();
                self.kill_gateway();
                self.start_supervisor();
                self.start_gateway();
            }
            Blow::SupervisorStopped => {
                let held = ProcessHandle::open(self.supervisor.as_ref().unwrap().pid()).unwrap();
                self.stop_for_a_while(&held, step.time * 3, true);
            }
            Blow::Agent => self.strike_agent(step, true),
            Blow::AgentStopped => self.strike_agent(step, false),
            Blow::FullDisk => self.fill_the_disk(step),
            Blow::ChannelAway => self.take_the_channel_away(step),
        }
    }

    fn strike_agent(&mut self, step: &Step, to_death: bool) {
        let Some((held, is_wrapper)) = self.some_agent(step.draw) else { return };
        if !to_death {
            return self.stop_for_a_while(&held, step.time * 3, true);
        }
        if held.kill() {
            *if is_wrapper { &mut self.tally.wrappers } else { &mut self.tally.agents } += 1;
        }
    }

    /// Makes the chat service unavailable for longer than any request timeout; sometimes the gateway is killed meanwhile
    /// and starts without it.
    fn take_the_channel_away(&mut self, step: &Step) {
        self.service.set_unavailable(true);
        self.tally.away += 1;
        self.people.talk(&self.service);
        wait_until_instant(Instant::now() + step.time * 4);
        if step.draw.is_multiple_of(2) {
            self.kill_gateway();
            self.start_gateway();
        }
        wait_until_instant(Instant::now() + step.time * 4);
        self.service.set_unavailable(false);
    }

    /// Fills the disk for a while; sometimes the gateway is killed meanwhile.
    fn fill_the_disk(&mut self, step: &Step) {
        let Some(filler) = self.place.fill() else { return };
        self.tally.full += 1;
        self.people.talk(&self.service);
        wait_until_instant(Instant::now() + step.time * 4);
        if step.draw.is_multiple_of(2) {
            self.kill_gateway();
        }
        std::fs::remove_file(filler).unwrap();
        if self.gateway.is_none() {
            self.start_gateway();
        }
    }
}

fn kills_wanted() -> u64 {
    std::env::var("ACP_CHAOS_KILLS").map_or(KILLS, |text| text.parse().unwrap())
}

/// Runs faults until `kills` is reached, then checks the result.
fn run(seed: &mut Seed, mut plan: Plan, kills: u64) {
    let began = Instant::now();
    let mut chaos = Chaos::new(seed);
    chaos.service.set_faulty(true);
    while chaos.tally.kills() < kills {
        let step = plan.next_step();
        chaos.step(&step);
    }
    let stormed = began.elapsed();
    chaos.service.set_faulty(false);
    verdict::settle(&chaos, LONG);
    eprintln!("{:?}\n{:?}", chaos.tally, chaos.service.tally());
    eprintln!("{} kills in {stormed:?}, settled after {:?}", chaos.tally.kills(), began.elapsed());
    let Tally { gateways, between, .. } = chaos.tally;
    verdict::check(chaos);
    assert!(between * BETWEEN_SHARE >= gateways, "{between} of {gateways} kills between send and receipt");
}

#[test]
fn heavy_channel_content_matches_journal_after_chaos() {
    let mut seed = Seed::new();
    let plan = Plan::new(seed.fork());
    run(&mut seed, plan, kills_wanted());
}

/// Only the gateway is killed: no turn fails, and each message has its answer.
#[test]
fn heavy_kills_of_the_gateway_fail_no_turn() {
    let mut seed = Seed::new();
    let plan = Plan::gentle(seed.fork());
    run(&mut seed, plan, kills_wanted() / 4);
}
