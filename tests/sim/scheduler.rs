//! The scheduler: picks the next event at random from all possible ones: a commit, a request that reaches the
//! supervisor, a notice, a response of the chat service, a word of an agent, a request of a user, the passing
//! of time, a crash. All durable state is checked after each event (see `laws`).

use super::names;
use crate::session::task::ActorRequest;
use crate::sim::chat::{ChannelCall, SimChannel};
use crate::sim::coverage::{self, SeedResult};
use crate::sim::faults::FaultRates;
use crate::sim::gateway::{self, SimGateway, SimPorts};
use crate::sim::invariants::{self, violated};
use crate::sim::log_capture;
use crate::sim::rng::SeededRng;
use crate::sim::seeded_bugs::SeededBug;
use crate::sim::store::{SimStore, SimWriter};
use crate::sim::supervisor::{SimSupervisor, SupervisorMessage};
use crate::sim::users::SubmittedRequest;
use crate::supervisor::simulated::SimSupervisorConnection;
use acp_core::config::load::LoadedConfig;
use acp_shared::clock::Clock;
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseState;
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc::Sender;

/// Minimum number of effects in a seed.
pub(super) const EFFECTS_MIN: usize = 200;
/// Number of steps after which everything must be at rest.
pub(super) const STEPS_MAX: usize = 6_000;
/// Time without any event that counts as rest, in milliseconds.
pub(super) const REST_MS: u64 = 120_000;
/// Maximum number of crashes once all other faults are off.
const LATE_CRASHES_MAX: usize = 3;
/// Names of the conversations.
pub(super) const ROOMS: [&str; 3] = ["a", "b", "c"];

/// Possible next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextEvent {
    Commit,
    FailCommit,
    Request,
    News,
    Room,
    Answer,
    Speak(LeaseId),
    Tell(LeaseId),
    Exit(LeaseId),
    Deafness(LeaseId),
    Wish,
    Connect,
    Disconnect,
    SupervisorDies,
    RoomSleeps,
    LeftBehind,
    Time,
    Crash,
}

/// End of one run of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GatewayEnd {
    Killed,
    AtRest,
}

/// Violation of an invariant.
#[derive(Debug, Clone)]
pub(super) struct Violation(pub(super) String);

/// State of one seed that outlives the gateway.
pub(super) struct SimScheduler<'a> {
    pub(super) hand: &'a mut SimStore,
    pub(super) config: &'a LoadedConfig,
    pub(super) chance: SeededRng,
    pub(super) host: SimSupervisor,
    pub(super) room: SimChannel,
    pub(super) wishes: Vec<SubmittedRequest>,
    pub(super) tally: SeedResult,
    pub(super) plant: Option<SeededBug>,
    pub(super) read: invariants::JournalProgress,
    pub(super) now_ms: u64,
    /// True once requests and faults are off, and everything must come to rest.
    pub(super) calm: bool,
    /// True if the supervisor serves the gateway that runs now.
    pub(super) connected: bool,
    /// True if the supervisor refuses that gateway: it has seen a higher epoch.
    pub(super) is_stale: bool,
    /// Epoch of the gateway that runs now, with several of them.
    pub(super) serving: u64,
    /// One request in so many moves a session to another host; 0 with one host.
    pub(super) moves: usize,
    /// Host that is cut off, from which sessions are moved away.
    pub(super) away: Option<usize>,
    /// Frequency of faults, which differs between seeds.
    pub(super) trouble: FaultRates,
    pub(super) wishes_left: usize,
    /// Remaining crashes in the calm phase, around rare effects: many of them occur only there.
    late_crashes: usize,
    /// True if one more crash is allowed after those, around the very last effects.
    last_crash: bool,
    pub(super) rest_ms: u64,
    pub(super) steps: usize,
    /// True if the store was made to fail in this run.
    failing: bool,
    /// Senders to actors of an earlier gateway that do not know that they are superseded.
    pub(super) left: Vec<Sender<ActorRequest>>,
}

impl<'a> SimScheduler<'a> {
    pub(super) fn new(
        hand: &'a mut SimStore,
        config: &'a LoadedConfig,
        seed: u64,
        plant: Option<SeededBug>,
    ) -> Self {
        hand.clear();
        invariants::watch(hand.db());
        let mut chance = SeededRng::new(seed);
        let trouble = FaultRates::of(&mut chance);
        let wishes_left = 14 + chance.below(14);
        let late_crashes = chance.below(LATE_CRASHES_MAX + 1);
        let room = SimChannel::default();
        room.lock().fate = trouble.fate.map(|fate| (ROOMS[chance.below(ROOMS.len())], fate));
        Self {
            hand,
            config,
            host: SimSupervisor::new(plant),
            room,
            wishes: Vec::new(),
            tally: SeedResult::default(),
            plant,
            read: invariants::JournalProgress::default(),
            now_ms: 1_700_000_000_000,
            calm: false,
            connected: false,
            is_stale: false,
            serving: 0,
            moves: 0,
            away: None,
            trouble,
            wishes_left,
            late_crashes,
            last_crash: true,
            rest_ms: 0,
            steps: 0,
            failing: false,
            left: Vec::new(),
            chance,
        }
    }

    /// Runs the seed, from an empty database to rest.
    pub(super) fn play(mut self) -> Result<SeedResult, Violation> {
        self.room.lock().ignores_nonces = self.plant == Some(SeededBug::NonceIgnored);
        self.room.lock().loses_files = self.plant == Some(SeededBug::FilesLost);
        loop {
            self.tally.lives += 1;
            let ended = self.live()?;
            log_capture::note(|| format!("the gateway exited: {ended:?}"));
            if ended == GatewayEnd::AtRest {
                break;
            }
            self.between_lives();
        }
        invariants::at_rest(&mut self)?;
        self.tally.reached.extend(invariants::moved(self.hand.db()).into_iter().map(|what| (what, 1)));
        Ok(self.tally)
    }

    fn live(&mut self) -> Result<GatewayEnd, Violation> {
        let ports = Arc::new(OnceLock::new());
        let runtime = gateway::runtime(Arc::clone(&ports), self.chance.next())
            .map_err(|error| Violation(error.to_string()))?;
        let dir = self.hand.dir().to_owned();
        let played = runtime.block_on(async {
            let (store, mut pump) = self.hand.start(Clock::at(self.now_ms));
            self.hand.take_back(&mut pump);
            let (supervisor, wire) = SimSupervisorConnection::new();
            let ports = ports.get_or_init(|| SimPorts::new(pump, wire, self.room.clone()));
            if !self.calm && self.chance.one_in(2) {
                self.left = gateway::leave_behind(&store, self.config, &dir).await;
                // They claim their sessions before the next gateway starts, whose claims are the valid ones.
                ports.settle().await;
                let claims = ports.pump.lock().waiting().count();
                for _ in 0..claims {
                    self.commit_first(&mut ports.pump.lock(), 1);
                }
                ports.settle().await;
            }
            let gateway = gateway::start(&store, ports, &[supervisor], self.config, &dir);
            self.act(ports, gateway).await
        });
        // The gateway's memory is lost at once; the database keeps the last commit.
        drop(runtime);
        self.left.clear();
        self.host.hang_up();
        self.connected = false;
        self.forsake(ports)?;
        played
    }

    /// Drops what the gateway that runs now was asked, and its interfaces.
    pub(super) fn forsake(&mut self, ports: Arc<OnceLock<SimPorts>>) -> Result<(), Violation> {
        self.room.lock().forsake(self.serving, &mut self.chance);
        for wish in self.wishes.iter_mut().filter(|wish| wish.asked == self.serving) {
            wish.waits = false;
        }
        let ports = Arc::into_inner(ports).and_then(OnceLock::into_inner);
        let pump = ports.and_then(|ports| Arc::into_inner(ports.pump));
        pump.map(drop).ok_or_else(|| Violation("the store is still referenced".to_owned()))
    }

    /// Lets agents continue while no gateway runs.
    pub(super) fn between_lives(&mut self) {
        self.now_ms += 1 + self.chance.next() % if self.chance.one_in(4) { 60_000 } else { 2_000 };
        for _ in 0..self.chance.below(12) {
            let leases: Vec<LeaseId> = self.host.leases.keys().copied().collect();
            let Some(id) = self.chance.pick(&leases).copied() else { return };
            self.host.select(self.host.leases[&id].host);
            if self.host.is_eager(id) {
                self.host.speak(id, &mut self.chance);
            } else if !self.calm && self.chance.one_in(12) && self.host.leases[&id].lives() {
                self.host.exit(id, ExitStatus::Signaled(9));
            }
        }
        if !self.calm && self.chance.one_in(10) {
            self.host.die();
        }
    }

    async fn act(&mut self, ports: &SimPorts, mut gateway: SimGateway) -> Result<GatewayEnd, Violation> {
        self.rest_ms = 0;
        loop {
            ports.settle().await;
            self.steps += 1;
            if self.steps > STEPS_MAX {
                let busy = self.host.busy().join("; ");
                violated!("the simulation does not come to rest: {busy}");
            }
            self.collect(ports);
            let is_done = self.wishes_left == 0 && self.tally.effects >= EFFECTS_MIN;
            if !self.calm && is_done && self.chance.one_in(30) {
                self.calm_down();
            }
            if self.calm && self.rest_ms >= REST_MS && !self.has_work(ports) {
                return Ok(GatewayEnd::AtRest);
            }
            let options = self.options(ports);
            let Some(next) = self.chance.weighted(&options) else {
                violated!("no event is possible");
            };
            let name = self.name(next, ports);
            let crash = self.crash(&name);
            if next == NextEvent::Crash || self.chance.one_in(crash) {
                return Ok(self.die(&name, "before", &gateway));
            }
            log_capture::note(|| format!("{} {next:?} {name}", gateway.clock.now_ms()));
            if next != NextEvent::Time {
                self.rest_ms = 0;
            }
            self.happen(next, ports, &mut gateway).await?;
            invariants::after(self, next == NextEvent::Commit)?;
            if !name.is_empty() {
                self.tally.effects += name.split(' ').count();
                if self.chance.one_in(crash) {
                    return Ok(self.die(&name, "after", &gateway));
                }
            }
        }
    }

    /// Returns the crash probability around effects of these names, as once in n; 0 for never.
    fn crash(&self, names: &str) -> usize {
        let is_spared =
            self.calm && self.late_crashes == 0 && !(self.last_crash && coverage::comes_last(names));
        if names.is_empty() || is_spared {
            return 0;
        }
        let usual = if self.calm { 0 } else { self.trouble.crash * 2 };
        coverage::seldom(names).unwrap_or(usual)
    }

    fn die(&mut self, names: &str, when: &str, gateway: &SimGateway) -> GatewayEnd {
        if self.calm {
            self.last_crash &= self.late_crashes > 0;
            self.late_crashes = self.late_crashes.saturating_sub(1);
        }
        self.now_ms = gateway.clock.now_ms();
        for name in names.split(' ').filter(|name| !name.is_empty()) {
            self.tally.reached.insert(format!("crash {when} {name}"), 1);
        }
        GatewayEnd::Killed
    }

    pub(super) fn calm_down(&mut self) {
        log_capture::note(|| "no further faults are injected".to_owned());
        self.calm = true;
        self.room.lock().asleep = false;
        self.take_all_out();
        self.host.calm = true;
        for lease in self.host.leases.values_mut() {
            lease.deaf = false;
            lease.agent.iter_mut().for_each(|agent| agent.calm_down());
        }
        let ids: Vec<LeaseId> = self.host.leases.keys().copied().collect();
        for id in ids {
            if let Some(lease) = self.host.leases.get(&id).filter(|lease| lease.lives()) {
                self.host.select(lease.host);
                self.host.write(id, &mut self.chance);
            }
        }
    }

    /// Collects the requests that the gateway has sent since the last call.
    pub(super) fn collect(&mut self, ports: &SimPorts) {
        let mut wire = ports.wire.lock();
        self.host.inbox.extend(std::iter::from_fn(|| wire.take()));
    }

    pub(super) fn has_work(&self, ports: &SimPorts) -> bool {
        self.options(ports).iter().any(|(_, next)| !matches!(next, NextEvent::Time | NextEvent::Wish))
            || self.wishes.iter().any(|wish| wish.answer.is_none() && !wish.refused)
    }

    pub(super) fn options(&self, ports: &SimPorts) -> Vec<(usize, NextEvent)> {
        let mut all = Vec::new();
        let mut add = |weight: usize, next: NextEvent| {
            if weight > 0 {
                all.push((weight, next));
            }
        };
        if ports.pump.lock().waiting().next().is_some() {
            add(40, NextEvent::Commit);
            add(if self.calm { 0 } else { self.trouble.commits }, NextEvent::FailCommit);
        }
        // With several gateways, the messages are those of the one that the supervisor serves.
        if !self.host.inbox.is_empty() && (self.connected || self.serving == 0) {
            add(40, NextEvent::Request);
        }
        if !self.host.outbox.is_empty() && (self.connected || self.serving == 0) {
            add(40, NextEvent::News);
        }
        if ports.room.lock().first_of(self.serving).is_some() {
            add(25, NextEvent::Room);
        }
        if !ports.answers.lock().is_empty() {
            add(25, NextEvent::Answer);
        }
        for (id, lease) in self.host.leases.iter().filter(|(_, lease)| lease.host == self.host.at) {
            // The bug is in an end with unsent words alone.
            let kills_unsent = self.plant == Some(SeededBug::DeadLeaseNotDrained);
            if self.host.has_news(*id) {
                add(if kills_unsent && lease.has_unsent_words() { 1 } else { 30 }, NextEvent::Tell(*id));
            }
            if !lease.lives() {
                continue;
            }
            if self.host.is_eager(*id) {
                add(20, NextEvent::Speak(*id));
            }
            let ends = lease.state == LeaseState::Closing || lease.agent.is_none();
            let deaths = if self.calm { 0 } else { self.trouble.deaths };
            // An end with output that is not sent yet is the rarer case.
            let deaths = match self.host.has_news(*id) {
                _ if kills_unsent => 100 * usize::from(lease.has_unsent_words()),
                true => deaths,
                false => deaths / 2,
            };
            add(if ends { 10 } else { deaths }, NextEvent::Exit(*id));
            if lease.agent.is_some() && (lease.deaf || !self.calm) {
                add(if lease.deaf { 4 } else { 1 }, NextEvent::Deafness(*id));
            }
        }
        if self.connected {
            add(usize::from(!self.calm), NextEvent::Disconnect);
            let dies = !self.calm && self.steps.is_multiple_of(3);
            add(if dies { self.trouble.deaths } else { 0 }, NextEvent::SupervisorDies);
        } else if !self.is_stale {
            add(8, NextEvent::Connect);
        }
        let open = self.wishes.iter().any(|wish| wish.answer.is_none() && !wish.refused && !wish.waits);
        if !self.calm || open {
            add(7, NextEvent::Wish);
        }
        if !self.calm {
            add(1, NextEvent::RoomSleeps);
            add(self.left.len(), NextEvent::LeftBehind);
            add(usize::from(self.steps.is_multiple_of(self.trouble.crash)) * 40, NextEvent::Crash);
        }
        all.push((3, NextEvent::Time));
        all
    }

    /// Returns the names of the effects of an event; empty if it is not the gateway's.
    pub(super) fn name(&self, next: NextEvent, ports: &SimPorts) -> String {
        match next {
            NextEvent::Commit => {
                ports.pump.lock().waiting().next().map(|name| format!("commit:{name}")).unwrap_or_default()
            }
            NextEvent::Request => {
                self.host.inbox.front().map(|(_, request)| names::of_request(request)).unwrap_or_default()
            }
            NextEvent::News => self.host.outbox.front().map(names::of_news).unwrap_or_default(),
            NextEvent::Room => {
                let room = ports.room.lock();
                match room.first_of(self.serving).and_then(|at| room.calls.get(at)) {
                    Some((_, ChannelCall::Send(..))) => "channel:send".to_owned(),
                    Some((_, ChannelCall::Lookup(..))) => "channel:lookup".to_owned(),
                    None => String::new(),
                }
            }
            NextEvent::Answer => "reply".to_owned(),
            _ => String::new(),
        }
    }

    pub(super) async fn happen(
        &mut self,
        next: NextEvent,
        ports: &SimPorts,
        gateway: &mut SimGateway,
    ) -> Result<(), Violation> {
        match next {
            NextEvent::Commit => self.commit(ports, gateway)?,
            NextEvent::FailCommit => {
                self.failing = true;
                let mut pump = ports.pump.lock();
                let count = pump.waiting().count();
                self.hand.lend(&mut pump);
                pump.fail(1 + self.chance.below(count));
                pump.probe();
                self.hand.lend(&mut pump);
            }
            NextEvent::Request => self.request()?,
            NextEvent::News => match self.host.outbox.pop_front() {
                Some(SupervisorMessage::Reply(id, result)) => ports.wire.lock().reply(id, result),
                Some(SupervisorMessage::Notice(notice)) => ports.wire.lock().notice(notice),
                None => {}
            },
            NextEvent::Room => {
                let trouble = if self.calm { 0 } else { self.trouble.room };
                let mut room = ports.room.lock();
                let at = room.first_of(self.serving).unwrap_or(0);
                let line = room.serve(at, trouble, &mut self.chance);
                log_capture::note(|| format!("  {line}"));
            }
            NextEvent::Answer => self.hear_answer(ports)?,
            NextEvent::Speak(id) => self.host.speak(id, &mut self.chance),
            NextEvent::Tell(id) => self.host.tell(id, &mut self.chance),
            NextEvent::Exit(id) => {
                let is_clean = self.chance.one_in(2);
                self.host.exit(id, if is_clean { ExitStatus::Exited(0) } else { ExitStatus::Signaled(9) });
            }
            NextEvent::Deafness(id) => {
                let Some(lease) = self.host.leases.get_mut(&id) else { return Ok(()) };
                lease.deaf = !lease.deaf;
                if !lease.deaf {
                    self.host.write(id, &mut self.chance);
                }
            }
            NextEvent::Wish => self.wish(gateway),
            NextEvent::Connect => {
                self.connected = true;
                ports.wire.lock().up(&format!("supervisor-{}", self.host.no));
            }
            NextEvent::Disconnect | NextEvent::SupervisorDies => {
                if next == NextEvent::SupervisorDies {
                    self.host.die();
                }
                self.host.hang_up();
                self.connected = false;
                ports.wire.lock().down();
            }
            NextEvent::RoomSleeps => {
                let mut room = ports.room.lock();
                room.asleep = !room.asleep || !self.chance.one_in(self.trouble.sleep);
            }
            NextEvent::LeftBehind => self.tell_left_behind(),
            NextEvent::Time => self.pass_time(ports, gateway).await,
            NextEvent::Crash => {}
        }
        Ok(())
    }

    async fn pass_time(&mut self, ports: &SimPorts, gateway: &SimGateway) {
        let alone = !self.has_work(ports);
        let ms = match self.chance.below(8) {
            _ if self.calm && alone => 30_000,
            0 if alone => 60_000,
            1 if alone => 300_000,
            2 | 3 => 2_000,
            4 => 200,
            _ => 10,
        };
        let before = gateway.clock.now_ms();
        ports.sleep(ms).await;
        self.rest_ms += gateway.clock.now_ms().saturating_sub(before);
    }

    fn commit(&mut self, ports: &SimPorts, gateway: &mut SimGateway) -> Result<(), Violation> {
        let mut pump = ports.pump.lock();
        let names: Vec<&'static str> = pump.waiting().collect();
        let count = if self.chance.one_in(3) { 1 + self.chance.below(names.len()) } else { 1 };
        let count = if self.plant == Some(SeededBug::SupersededWrites) { 1 } else { count };
        self.commit_first(&mut pump, count);
        if self.plant == Some(SeededBug::Fallback) {
            let keys = invariants::sessions(self.hand.db(), true);
            gateway.door.fallback = keys.first().cloned();
        }
        Ok(())
    }

    /// Commits the first `count` waiting transactions as one group, with the seeded bugs around it.
    fn commit_first(&mut self, pump: &mut SimWriter, count: usize) {
        let names: Vec<&'static str> = pump.waiting().take(count).collect();
        if let (Some(plant), Some(name)) = (self.plant, names.first()) {
            plant.before_commit(self.hand.db(), name);
        }
        self.hand.lend(pump);
        pump.commit(count);
        self.hand.lend(pump);
        if let Some(plant) = self.plant {
            plant.after_commit(self.hand.db(), &names, &mut self.chance);
        }
    }

    fn request(&mut self) -> Result<(), Violation> {
        if let Some((_, request)) = self.host.inbox.front() {
            invariants::of_request(request, self.hand.db())?;
        }
        self.host.serve(&mut self.chance);
        Ok(())
    }
}
