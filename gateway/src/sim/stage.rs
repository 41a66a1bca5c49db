//! The scheduler: picks the next event at random from all possible ones: a commit, a request that reaches the
//! supervisor, a notice, a response of the chat service, a word of an agent, a request of a user, the passing
//! of time, a crash. All durable state is checked after each event (see `laws`).

use super::chance::Chance;
use super::ear;
use super::host::{Host, Word};
use super::laws;
use super::life::{self, Gateway, Ports, lock};
use super::names;
use super::people::Wish;
use super::plants::Plant;
use super::reach::{self, Tally};
use super::room::{Call, Room};
use super::trouble::Trouble;
use crate::config::load::LoadedConfig;
use crate::session_task::ActorRequest;
use crate::store::by_hand::{SimStore, SimWriter};
use crate::supervisor::by_hand::SimSupervisorConnection;
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::LeaseState;
use std::sync::Arc;
use tokio::sync::mpsc::Sender;

/// Minimum number of effects in a seed.
pub(super) const EFFECTS_MIN: usize = 200;
/// Number of steps after which everything must be at rest.
const STEPS_MAX: usize = 6_000;
/// Time without any event that counts as rest, in milliseconds.
const REST_MS: u64 = 120_000;
/// Maximum number of crashes once all other faults are off.
const LATE_CRASHES_MAX: usize = 3;
/// Names of the conversations.
pub(super) const ROOMS: [&str; 3] = ["a", "b", "c"];

/// Possible next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
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
pub(super) enum Ended {
    Killed,
    AtRest,
}

/// Violation of an invariant.
#[derive(Debug, Clone)]
pub(super) struct Broken(pub(super) String);

/// State of one seed that outlives the gateway.
pub(super) struct Stage<'a> {
    pub(super) hand: &'a mut SimStore,
    config: &'a LoadedConfig,
    pub(super) chance: Chance,
    pub(super) host: Host,
    pub(super) room: Room,
    pub(super) wishes: Vec<Wish>,
    pub(super) tally: Tally,
    pub(super) plant: Option<Plant>,
    pub(super) read: laws::Read,
    now_ms: u64,
    /// True once requests and faults are off, and everything must come to rest.
    pub(super) calm: bool,
    connected: bool,
    /// Frequency of faults, which differs between seeds.
    trouble: Trouble,
    pub(super) wishes_left: usize,
    /// Remaining crashes in the calm phase, around rare effects: many of them occur only there.
    late_crashes: usize,
    /// True if one more crash is allowed after those, around the very last effects.
    last_crash: bool,
    rest_ms: u64,
    pub(super) steps: usize,
    /// True if the store was made to fail in this run.
    failing: bool,
    /// Senders to actors of an earlier gateway that do not know that they are superseded.
    pub(super) left: Vec<Sender<ActorRequest>>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(
        hand: &'a mut SimStore,
        config: &'a LoadedConfig,
        seed: u64,
        plant: Option<Plant>,
    ) -> Self {
        hand.clear();
        laws::watch(hand.db());
        let mut chance = Chance::new(seed);
        let trouble = Trouble::of(&mut chance);
        let wishes_left = 14 + chance.below(14);
        let late_crashes = chance.below(LATE_CRASHES_MAX + 1);
        let room = Room::default();
        room.lock().fate = trouble.fate.map(|fate| (ROOMS[chance.below(ROOMS.len())], fate));
        Self {
            hand,
            config,
            host: Host::new(plant.and_then(Plant::at_the_host)),
            room,
            wishes: Vec::new(),
            tally: Tally::default(),
            plant,
            read: laws::Read::default(),
            now_ms: 1_700_000_000_000,
            calm: false,
            connected: false,
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
    pub(super) fn play(mut self) -> Result<Tally, Broken> {
        self.room.lock().ignores_nonces = self.plant == Some(Plant::NonceIgnored);
        self.room.lock().loses_files = self.plant == Some(Plant::FilesLost);
        loop {
            self.tally.lives += 1;
            let ended = self.live()?;
            ear::note(|| format!("the gateway is gone: {ended:?}"));
            if ended == Ended::AtRest {
                break;
            }
            self.between_lives();
        }
        laws::at_rest(&mut self)?;
        self.tally.reached.extend(laws::moved(self.hand.db()).into_iter().map(|what| (what, 1)));
        Ok(self.tally)
    }

    fn live(&mut self) -> Result<Ended, Broken> {
        let (store, pump) = self.hand.start();
        let (supervisor, wire) = SimSupervisorConnection::new();
        let ports = Ports::new(pump, wire, self.room.clone());
        let runtime =
            life::runtime(ports.clone(), self.chance.next()).map_err(|error| Broken(error.to_string()))?;
        let dir = self.hand.dir().to_owned();
        let played = runtime.block_on(async {
            let at = (dir.as_path(), self.now_ms);
            if !self.calm && self.chance.one_in(2) {
                self.left = life::leave_behind(&store, self.config, at).await;
                // They claim their sessions before the next gateway starts, whose claims are the valid ones.
                ports.settle().await;
                let claims = lock(&ports.pump).waiting().count();
                for _ in 0..claims {
                    self.commit_first(&mut lock(&ports.pump), 1);
                }
                ports.settle().await;
            }
            let gateway = life::start(&store, &ports, &supervisor, self.config, at);
            self.act(&ports, gateway).await
        });
        // The gateway's memory is lost at once; the database keeps the last commit.
        drop((store, supervisor));
        drop(runtime);
        self.left.clear();
        self.host.hang_up();
        self.connected = false;
        self.room.lock().forsake(&mut self.chance);
        for wish in &mut self.wishes {
            wish.waits = false;
        }
        let Ports { pump, .. } = ports;
        let pump = Arc::into_inner(pump).ok_or_else(|| Broken("somebody holds the store".to_owned()))?;
        let pump = pump.into_inner().map_err(|error| Broken(error.to_string()))?;
        self.hand.stop(pump);
        played
    }

    /// Lets agents continue while no gateway runs.
    fn between_lives(&mut self) {
        self.now_ms += 1 + self.chance.next() % if self.chance.one_in(4) { 60_000 } else { 2_000 };
        for _ in 0..self.chance.below(12) {
            let leases: Vec<LeaseId> = self.host.leases.keys().copied().collect();
            let Some(id) = self.chance.pick(&leases).copied() else { return };
            if self.host.is_eager(id) {
                self.host.speak(id, &mut self.chance);
            } else if !self.calm
                && self.chance.one_in(12)
                && self.host.leases.get(&id).is_some_and(|it| it.lives())
            {
                self.host.exit(id, ExitStatus::Signaled(9));
            }
        }
        if !self.calm && self.chance.one_in(10) {
            self.host.die();
        }
    }

    async fn act(&mut self, ports: &Ports, mut gateway: Gateway) -> Result<Ended, Broken> {
        self.rest_ms = 0;
        loop {
            ports.settle().await;
            self.steps += 1;
            if self.steps > STEPS_MAX {
                let busy = self.host.busy().join("; ");
                return Err(Broken(format!("it does not come to rest: {busy}")));
            }
            self.collect(ports);
            if !self.calm
                && self.wishes_left == 0
                && self.tally.effects >= EFFECTS_MIN
                && self.chance.one_in(30)
            {
                self.calm_down();
            }
            if self.calm && self.rest_ms >= REST_MS && !self.has_work(ports) {
                return Ok(Ended::AtRest);
            }
            let options = self.options(ports);
            let Some(next) = self.chance.weighted(&options) else {
                return Err(Broken("nothing can happen".to_owned()));
            };
            let name = self.name(next, ports);
            let crash = self.crash(&name);
            if next == Next::Crash || self.chance.one_in(crash) {
                return Ok(self.die(&name, "before", &gateway));
            }
            ear::note(|| format!("{} {next:?} {name}", gateway.clock.now_ms()));
            if next != Next::Time {
                self.rest_ms = 0;
            }
            self.happen(next, ports, &mut gateway).await?;
            laws::after(self, next == Next::Commit, &lock(&ports.pump))?;
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
        let is_spared = self.calm && self.late_crashes == 0 && !(self.last_crash && reach::comes_last(names));
        if names.is_empty() || is_spared {
            return 0;
        }
        let usual = if self.calm { 0 } else { self.trouble.crash * 2 };
        reach::seldom(names).unwrap_or(usual)
    }

    fn die(&mut self, names: &str, when: &str, gateway: &Gateway) -> Ended {
        if self.calm {
            self.last_crash &= self.late_crashes > 0;
            self.late_crashes = self.late_crashes.saturating_sub(1);
        }
        self.now_ms = gateway.clock.now_ms();
        for name in names.split(' ').filter(|name| !name.is_empty()) {
            self.tally.reached.insert(format!("crash {when} {name}"), 1);
        }
        Ended::Killed
    }

    fn calm_down(&mut self) {
        ear::note(|| "from now on nothing goes wrong".to_owned());
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
            if self.host.leases.get(&id).is_some_and(|lease| lease.lives()) {
                self.host.write(id, &mut self.chance);
            }
        }
    }

    /// Collects the requests that the gateway has sent since the last call.
    fn collect(&mut self, ports: &Ports) {
        let mut wire = lock(&ports.wire);
        while let Some(request) = wire.take() {
            self.host.inbox.push_back(request);
        }
    }

    fn has_work(&self, ports: &Ports) -> bool {
        self.options(ports).iter().any(|(_, next)| !matches!(next, Next::Time | Next::Wish))
            || self.wishes.iter().any(|wish| wish.answer.is_none() && !wish.refused)
    }

    fn options(&self, ports: &Ports) -> Vec<(usize, Next)> {
        let mut all = Vec::new();
        let mut add = |weight: usize, next: Next| {
            if weight > 0 {
                all.push((weight, next));
            }
        };
        if lock(&ports.pump).waiting().next().is_some() {
            add(40, Next::Commit);
            add(if self.calm { 0 } else { self.trouble.commits }, Next::FailCommit);
        }
        if !self.host.inbox.is_empty() {
            add(40, Next::Request);
        }
        if !self.host.outbox.is_empty() {
            add(40, Next::News);
        }
        if !ports.room.lock().calls.is_empty() {
            add(25, Next::Room);
        }
        if !lock(&ports.answers).is_empty() {
            add(25, Next::Answer);
        }
        for (id, lease) in &self.host.leases {
            if self.host.has_news(*id) {
                add(30, Next::Tell(*id));
            }
            if !lease.lives() {
                continue;
            }
            if self.host.is_eager(*id) {
                add(20, Next::Speak(*id));
            }
            let ends = lease.state == LeaseState::Closing || lease.agent.is_none();
            let deaths = if self.calm { 0 } else { self.trouble.deaths };
            add(if ends { 10 } else { deaths / 2 }, Next::Exit(*id));
            if lease.agent.is_some() && (lease.deaf || !self.calm) {
                add(if lease.deaf { 4 } else { 1 }, Next::Deafness(*id));
            }
        }
        if self.connected {
            add(if self.calm { 0 } else { 1 }, Next::Disconnect);
            add(
                if self.calm || !self.steps.is_multiple_of(3) { 0 } else { self.trouble.deaths },
                Next::SupervisorDies,
            );
        } else {
            add(8, Next::Connect);
        }
        let open = self.wishes.iter().any(|wish| wish.answer.is_none() && !wish.refused && !wish.waits);
        if !self.calm || open {
            add(7, Next::Wish);
        }
        if !self.calm {
            add(1, Next::RoomSleeps);
            add(self.left.len(), Next::LeftBehind);
            add(usize::from(self.steps.is_multiple_of(self.trouble.crash)) * 40, Next::Crash);
        }
        all.push((3, Next::Time));
        all
    }

    /// Returns the names of the effects of an event; empty if it is not the gateway's.
    fn name(&self, next: Next, ports: &Ports) -> String {
        match next {
            Next::Commit => {
                lock(&ports.pump).waiting().next().map(|name| format!("commit:{name}")).unwrap_or_default()
            }
            Next::Request => {
                self.host.inbox.front().map(|(_, request)| names::of_request(request)).unwrap_or_default()
            }
            Next::News => self.host.outbox.front().map(names::of_news).unwrap_or_default(),
            Next::Room => match ports.room.lock().calls.first() {
                Some(Call::Send(..)) => "channel:send".to_owned(),
                Some(Call::Lookup(..)) => "channel:lookup".to_owned(),
                None => String::new(),
            },
            Next::Answer => "reply".to_owned(),
            _ => String::new(),
        }
    }

    async fn happen(&mut self, next: Next, ports: &Ports, gateway: &mut Gateway) -> Result<(), Broken> {
        match next {
            Next::Commit => self.commit(ports, gateway)?,
            Next::FailCommit => {
                self.failing = true;
                let mut pump = lock(&ports.pump);
                let count = pump.waiting().count();
                pump.fail(1 + self.chance.below(count));
                pump.probe();
            }
            Next::Request => self.request(ports)?,
            Next::News => match self.host.outbox.pop_front() {
                Some(Word::Reply(id, result)) => lock(&ports.wire).reply(id, result),
                Some(Word::Notice(notice)) => lock(&ports.wire).notice(notice),
                None => {}
            },
            Next::Room => {
                let trouble = if self.calm { 0 } else { self.trouble.room };
                let line = ports.room.lock().serve(0, trouble, &mut self.chance);
                ear::note(|| format!("  {line}"));
            }
            Next::Answer => self.hear_answer(ports)?,
            Next::Speak(id) => self.host.speak(id, &mut self.chance),
            Next::Tell(id) => self.host.tell(id, &mut self.chance),
            Next::Exit(id) => {
                let status =
                    if self.chance.one_in(2) { ExitStatus::Exited(0) } else { ExitStatus::Signaled(9) };
                self.host.exit(id, status);
            }
            Next::Deafness(id) => {
                if let Some(lease) = self.host.leases.get_mut(&id) {
                    lease.deaf = !lease.deaf;
                    if !lease.deaf {
                        self.host.write(id, &mut self.chance);
                    }
                }
            }
            Next::Wish => self.wish(ports, gateway),
            Next::Connect => {
                self.connected = true;
                lock(&ports.wire).up(&format!("supervisor-{}", self.host.no));
            }
            Next::Disconnect | Next::SupervisorDies => {
                if next == Next::SupervisorDies {
                    self.host.die();
                }
                self.host.hang_up();
                self.connected = false;
                lock(&ports.wire).down();
            }
            Next::RoomSleeps => {
                let mut room = ports.room.lock();
                room.asleep = !room.asleep || !self.chance.one_in(self.trouble.sleep);
            }
            Next::LeftBehind => self.tell_left_behind(),
            Next::Time => self.pass_time(ports, gateway).await,
            Next::Crash => {}
        }
        Ok(())
    }

    async fn pass_time(&mut self, ports: &Ports, gateway: &Gateway) {
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

    fn commit(&mut self, ports: &Ports, gateway: &mut Gateway) -> Result<(), Broken> {
        let mut pump = lock(&ports.pump);
        let names: Vec<&'static str> = pump.waiting().collect();
        let count = if self.chance.one_in(3) { 1 + self.chance.below(names.len()) } else { 1 };
        let count = if self.plant == Some(Plant::SupersededWrites) { 1 } else { count };
        self.commit_first(&mut pump, count);
        if self.plant == Some(Plant::Fallback) {
            let keys = laws::sessions(pump.db(), true);
            gateway.door.fallback = keys.first().cloned();
        }
        Ok(())
    }

    /// Commits the first `count` waiting transactions as one group, with the seeded bugs around it.
    fn commit_first(&mut self, pump: &mut SimWriter, count: usize) {
        let names: Vec<&'static str> = pump.waiting().take(count).collect();
        if let (Some(plant), Some(name)) = (self.plant, names.first()) {
            plant.before_commit(pump.db(), name);
        }
        pump.commit(count);
        if let Some(plant) = self.plant {
            plant.after_commit(pump.db(), &names, &mut self.chance);
        }
    }

    fn request(&mut self, ports: &Ports) -> Result<(), Broken> {
        if let Some((_, request)) = self.host.inbox.front() {
            laws::of_request(request, lock(&ports.pump).db())?;
        }
        self.host.serve(&mut self.chance);
        Ok(())
    }
}
