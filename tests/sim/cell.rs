//! Scheduler of a cell: two gateways that want the same database of one server, and hosts for their agents. One gateway owns the
//! cell; the other one stands by, or is a former owner that does not know yet. Freezes, cuts, lost answers to commits, restarts
//! and failovers of the server are events like all others.

use super::gateway::{self, SimGateway, SimPorts};
use super::scheduler::{EFFECTS_MIN, NextEvent, REST_MS, ROOMS, STEPS_MAX, SimScheduler, Violation};
use super::server::{LostAnswer, SimServer, SimSession};
use super::store::SimStore;
use crate::sim::coverage::SeedResult;
use crate::sim::invariants::{self, JournalProgress, violated};
use crate::sim::log_capture;
use crate::sim::seeded_bugs::SeededBug;
use crate::sim::supervisor::{GRACE_SECONDS, HOSTS};
use crate::supervisor::simulated::SimSupervisorConnection;
use acp_core::config::load::LoadedConfig;
use acp_shared::clock::Clock;
use acp_shared::figures;
use acp_shared::ids::SessionKey;
use acp_shared::protocol::{Reply, Request};
use acp_store::cell::{Tenure, take_lock};
use acp_store::db::Db;
use acp_store::{StoreError, StoreHealth};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Number of machines with a gateway.
const MACHINES: usize = 2;
/// Interval of renewals, and of a step of time, in milliseconds.
const RENEW_MS: u64 = 2_000;
/// Number of further requests in a seed in which hosts are cut off.
const REQUESTS_OF_HOSTS: usize = 20;
/// Number of steps in which a gateway with the seeded bug does not wait for its commits.
const EARLY_STEPS: usize = 60;

/// What the seeds of a cell reach together.
pub(super) const REACHED: [&str; 13] = [
    "cell: a former owner runs beside the owner",
    "cell: a frozen owner is thawed",
    "cell: an owner gives up",
    "cell: an owner learns that it is none",
    "cell: a lost commit was not made",
    "cell: a lost commit was made",
    "cell: a lost commit is unproved",
    "cell: the begin of an owner is lost",
    "cell: a failover takes a commit back",
    "cell: a stale gateway is refused",
    "cell: a session has moved",
    "cell: a session has moved from a host that is away",
    "cell: the server keeps the lock of a process that is gone",
];

/// Possible next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CellEvent {
    /// Event of the gateway at this place of the list, with this host.
    At(usize, usize, NextEvent),
    /// A gateway that stands by asks for the cell.
    Take,
    Renew(usize),
    /// Freezes a gateway, or lets it go on.
    Freeze(usize),
    /// Cuts a gateway from the server, or mends that.
    Cut(usize),
    /// Cuts all gateways from a host, or mends that.
    CutHost(usize),
    /// Commits, and loses the answer.
    LoseAnswer(usize),
    Restart,
    Failover,
    /// A gateway that lost its database ends.
    End(usize),
    Time,
}

/// A running gateway.
struct SimNode {
    epoch: u64,
    machine: usize,
    session: SimSession,
    tenure: Tenure,
    renews_at_ms: u64,
    is_frozen: bool,
    is_cut: bool,
    /// Step of its start.
    since: usize,
    gateway: SimGateway,
    ports: Arc<OnceLock<SimPorts>>,
    runtime: Runtime,
}

impl SimNode {
    fn ports(&self) -> Result<SimPorts, Violation> {
        self.ports.get().cloned().ok_or_else(|| Violation("a gateway has no interfaces".to_owned()))
    }

    fn now_ms(&self) -> u64 {
        let _context = self.runtime.enter();
        self.gateway.clock.now_ms()
    }

    /// Sets its clock, at once for a gateway that was frozen.
    fn advance_to(&self, now_ms: u64, at_once: bool) {
        let lag = Duration::from_millis(now_ms.saturating_sub(self.now_ms()));
        self.runtime.block_on(async {
            if at_once { tokio::time::advance(lag).await } else { tokio::time::sleep(lag).await }
        });
    }

    fn is_lost(&self) -> bool {
        self.ports.get().is_some_and(|ports| ports.pump.lock().health().is_lost())
    }
}

/// Connection of a host.
#[derive(Debug, Clone, Copy, Default)]
struct HostLink {
    /// Epoch of the gateway that the supervisor serves, and the highest one that it has seen.
    served: Option<u64>,
    epoch_seen: u64,
    is_cut: bool,
    /// Beginning of the time without a gateway.
    away_since_ms: u64,
}

/// True for an event between a gateway and a host, or on a host.
const fn is_of_host(next: NextEvent) -> bool {
    matches!(
        next,
        NextEvent::Request
            | NextEvent::News
            | NextEvent::Speak(_)
            | NextEvent::Tell(_)
            | NextEvent::Exit(_)
            | NextEvent::Deafness(_)
            | NextEvent::Connect
            | NextEvent::Disconnect
            | NextEvent::SupervisorDies
    )
}

/// True for an event that a gateway or a host waits for. Without faults, each but the passing of time and a repetition is one.
const fn is_work(next: NextEvent, calm: bool) -> bool {
    match next {
        NextEvent::Time | NextEvent::Wish => false,
        NextEvent::Disconnect
        | NextEvent::SupervisorDies
        | NextEvent::RoomSleeps
        | NextEvent::Crash
        | NextEvent::Exit(_)
        | NextEvent::Deafness(_) => calm,
        _ => true,
    }
}

/// State of one seed.
pub(super) struct CellScheduler<'a> {
    stage: SimScheduler<'a>,
    server: SimServer,
    nodes: Vec<SimNode>,
    hosts: [HostLink; HOSTS],
    /// True for a seed in which hosts are cut off, and gateways and the server are spared.
    of_hosts: bool,
    /// Host of the last agent of each session.
    host_of: BTreeMap<SessionKey, usize>,
    /// Highest epoch of a gateway that started.
    epoch_started: u64,
    /// Rows that a failover goes back to.
    kept: Option<(Db, JournalProgress)>,
}

impl<'a> CellScheduler<'a> {
    pub(super) fn new(
        hand: &'a mut SimStore,
        config: &'a LoadedConfig,
        seed: u64,
        plant: Option<SeededBug>,
    ) -> Self {
        let mut stage = SimScheduler::new(hand, config, seed, plant);
        let server = SimServer::new(plant);
        stage.hand.serve_by(server.clone());
        // The faults of a disk are those of the other seeds.
        stage.trouble.commits = 0;
        // A gateway that just started does not know how long a host has been away: some seeds let it live.
        let of_hosts = stage.chance.one_in(3) || plant == Some(SeededBug::ShortPromise);
        stage.moves = if of_hosts { 3 } else { 8 };
        if of_hosts {
            (stage.trouble.crash, stage.trouble.deaths) = (0, 0);
            stage.wishes_left += REQUESTS_OF_HOSTS;
        }
        Self {
            stage,
            server,
            nodes: Vec::new(),
            of_hosts,
            hosts: Default::default(),
            host_of: BTreeMap::new(),
            epoch_started: 0,
            kept: None,
        }
    }

    /// Runs the seed, from an empty database to rest.
    pub(super) fn play(mut self) -> Result<SeedResult, Violation> {
        while !self.step()? {}
        while !self.nodes.is_empty() {
            self.end(0, false)?;
        }
        invariants::at_rest(&mut self.stage)?;
        Ok(self.stage.tally)
    }

    /// Executes the next event. True at rest.
    fn step(&mut self) -> Result<bool, Violation> {
        for at in 0..self.nodes.len() {
            self.settle(at)?;
        }
        let stage = &mut self.stage;
        stage.steps += 1;
        if stage.steps > STEPS_MAX {
            let busy = stage.host.busy().join("; ");
            violated!("the simulation does not come to rest: {busy}");
        }
        let is_done = stage.wishes_left == 0 && stage.tally.effects >= EFFECTS_MIN;
        if !stage.calm && is_done && stage.chance.one_in(30) {
            self.calm_down();
        }
        if self.stage.calm
            && self.stage.rest_ms >= REST_MS
            && self.nodes.len() == 1
            && !self.has_work()?
            && !self.has_open_wish()
        {
            return Ok(true);
        }
        let options = self.options()?;
        let Some(next) = self.stage.chance.weighted(&options) else {
            violated!("no event is possible");
        };
        log_capture::note(|| format!("{} {next:?}", self.stage.now_ms));
        if !matches!(next, CellEvent::Time | CellEvent::Renew(_) | CellEvent::Take) {
            self.stage.rest_ms = 0;
        }
        self.happen(next)?;
        if let Some(violation) = self.server.violations().pop() {
            violated!("{violation}");
        }
        self.one_agent_for_a_session()?;
        Ok(false)
    }

    fn one_agent_for_a_session(&mut self) -> Result<(), Violation> {
        let mut living = BTreeMap::new();
        for lease in self.stage.host.leases.values().filter(|lease| lease.lives() && lease.agent.is_some()) {
            let session = &lease.spawn.session_key;
            if let Some(other) = living.insert(session.clone(), lease.host) {
                violated!("O7: session {session} has agents on the hosts {other} and {}", lease.host);
            }
        }
        for (session, host) in living {
            let before = self.host_of.insert(session.clone(), host);
            let Some(before) = before.filter(|before| *before != host) else { continue };
            self.reach("a session has moved");
            if self.hosts.get(before).is_some_and(|link| link.served.is_none()) {
                self.reach("a session has moved from a host that is away");
                self.leave_behind(&session, before);
            }
        }
        Ok(())
    }

    /// Marks the agents of a session on a host that is away: what the gateway has not read of their output is lost.
    fn leave_behind(&mut self, session: &SessionKey, host: usize) {
        let leases = self.stage.host.leases.values_mut();
        for lease in leases.filter(|lease| lease.host == host && lease.spawn.session_key == *session) {
            lease.left_behind = true;
        }
    }

    /// Lets a gateway run until it is idle, and collects its requests. Figures are answered at once, since they are asked for
    /// again and again.
    fn settle(&mut self, at: usize) -> Result<(), Violation> {
        let Some(node) = self.nodes.get(at).filter(|node| !node.is_frozen) else { return Ok(()) };
        let ports = node.ports()?;
        node.runtime.block_on(ports.settle());
        for host in 0..HOSTS {
            self.enter(at, host);
            if !self.stage.connected {
                continue;
            }
            let ports = ports.on(host);
            self.stage.collect(&ports);
            let all = std::mem::take(&mut self.stage.host.inbox);
            let (asked, others) =
                all.into_iter().partition(|(_, request)| matches!(request, Request::Figures));
            self.stage.host.inbox = others;
            let asked: VecDeque<(u64, Request)> = asked;
            for (id, _) in asked {
                ports.wire.lock().reply(id, Ok(Reply::Figures(self.stage.host.figures())));
            }
        }
        let Some(node) = self.nodes.get(at) else { return Ok(()) };
        if self.stage.steps > node.since + EARLY_STEPS
            && self.stage.plant == Some(SeededBug::ReadBeforeCommit)
        {
            node.session.answer_early(false);
        }
        Ok(())
    }

    /// Makes a gateway the one that runs now, and selects a host.
    fn enter(&mut self, at: usize, host: usize) {
        let (Some(node), Some(link)) = (self.nodes.get(at), self.hosts.get(host)) else { return };
        self.stage.serving = node.epoch;
        self.stage.connected = link.served == Some(node.epoch);
        self.stage.is_stale = node.epoch < link.epoch_seen || link.is_cut;
        self.stage.host.select(host);
        node.session.enter();
    }

    fn reach(&mut self, what: &'static str) {
        self.stage.tally.reached.insert(format!("cell: {what}"), 1);
    }

    fn calm_down(&mut self) {
        self.stage.calm_down();
        for node in &mut self.nodes {
            if std::mem::take(&mut node.is_frozen) {
                node.advance_to(self.stage.now_ms, true);
            }
            node.is_cut = false;
        }
        for link in &mut self.hosts {
            link.is_cut = false;
        }
        self.stage.away = None;
    }

    /// True if a gateway has work, other than what people repeat.
    fn has_work(&mut self) -> Result<bool, Violation> {
        for (at, host) in self.places() {
            self.enter(at, host);
            let Some(node) = self.nodes.get(at).filter(|node| !node.is_frozen) else { continue };
            let all = self.stage.options(&node.ports()?.on(host));
            if all.iter().any(|(_, next)| is_work(*next, self.stage.calm)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_open_wish(&self) -> bool {
        self.stage.wishes.iter().any(|wish| wish.answer.is_none() && !wish.refused)
    }

    /// Each gateway with each host.
    fn places(&self) -> Vec<(usize, usize)> {
        (0..self.nodes.len()).flat_map(|at| (0..HOSTS).map(move |host| (at, host))).collect()
    }

    fn options(&mut self) -> Result<Vec<(usize, CellEvent)>, Violation> {
        let (calm, steps) = (self.stage.calm, self.stage.steps);
        let disturbs = !calm && !self.of_hosts;
        // A host that is cut off stays so for minutes.
        let mut all = vec![(if self.stage.away.is_some() { 20 } else { 3 }, CellEvent::Time)];
        let has_owner = self.nodes.iter().any(|node| !node.is_frozen && node.session.has_cell());
        if self.nodes.len() < MACHINES {
            all.push((if has_owner { 1 } else { 10 }, CellEvent::Take));
        }
        for (host, link) in self.hosts.iter().enumerate() {
            let pause = match (self.of_hosts, link.is_cut) {
                (true, true) => 64,
                (true, false) => 4,
                (false, _) => 16,
            };
            // Of the hosts with a promise one is cut off at a time, after the agents have started.
            let spares = self.of_hosts
                && (self.host_of.len() < ROOMS.len() || self.stage.away.is_some_and(|away| away != host));
            if !calm && !spares && steps.is_multiple_of(pause) {
                all.push((1, CellEvent::CutHost(host)));
            }
        }
        for (at, host) in self.places() {
            self.enter(at, host);
            let Some(node) = self.nodes.get(at) else { continue };
            if host == 0 {
                Self::options_of(at, node, disturbs && steps.is_multiple_of(4), &mut all);
            }
            if node.is_frozen {
                continue;
            }
            for (weight, next) in self.stage.options(&node.ports()?.on(host)) {
                match next {
                    NextEvent::Time => continue,
                    NextEvent::Commit if host == 0 && node.is_cut => continue,
                    NextEvent::Commit if host == 0 && disturbs => all.push((1, CellEvent::LoseAnswer(at))),
                    next if host > 0 && !is_of_host(next) => continue,
                    _ => {}
                }
                all.push((weight, CellEvent::At(at, host, next)));
            }
        }
        if disturbs && steps.is_multiple_of(20) {
            all.push((1, CellEvent::Restart));
        }
        if disturbs && (self.server.is_unproved() || steps.is_multiple_of(40)) {
            all.push((2, CellEvent::Failover));
        }
        Ok(all)
    }

    /// Adds the events of a gateway's process.
    fn options_of(at: usize, node: &SimNode, disturbs: bool, all: &mut Vec<(usize, CellEvent)>) {
        if disturbs {
            all.push((1, CellEvent::Cut(at)));
            all.push((if node.is_frozen { 8 } else { 1 }, CellEvent::Freeze(at)));
        }
        if node.is_frozen {
            return;
        }
        if node.is_lost() {
            all.push((6, CellEvent::End(at)));
        }
        all.push((1, CellEvent::Renew(at)));
    }

    fn happen(&mut self, next: CellEvent) -> Result<(), Violation> {
        match next {
            CellEvent::At(at, host, next) => self.at(at, host, next),
            CellEvent::Take => self.take(),
            CellEvent::Renew(at) => self.renew(at),
            CellEvent::Freeze(at) => {
                let Some(node) = self.nodes.get_mut(at) else { return Ok(()) };
                node.is_frozen = !node.is_frozen;
                if !node.is_frozen {
                    node.advance_to(self.stage.now_ms, true);
                    self.reach("a frozen owner is thawed");
                }
                Ok(())
            }
            CellEvent::Cut(at) => {
                let Some(node) = self.nodes.get_mut(at) else { return Ok(()) };
                node.is_cut = !node.is_cut;
                Ok(())
            }
            CellEvent::CutHost(host) => self.cut_host(host),
            CellEvent::LoseAnswer(at) => {
                self.lose_answer();
                self.at(at, 0, NextEvent::Commit)?;
                self.server.answer_again();
                Ok(())
            }
            CellEvent::Restart => {
                self.server.restart();
                Ok(())
            }
            CellEvent::Failover => {
                self.fail_over();
                Ok(())
            }
            CellEvent::End(at) => self.end(at, false),
            CellEvent::Time => self.pass_time(),
        }
    }

    /// Executes an event of a gateway. It may be killed around an effect.
    fn at(&mut self, at: usize, host: usize, next: NextEvent) -> Result<(), Violation> {
        self.enter(at, host);
        let Some(node) = self.nodes.get(at) else { return Ok(()) };
        let ports = node.ports()?.on(host);
        let name = self.stage.name(next, &ports);
        let crash = if name.is_empty() || self.stage.calm { 0 } else { self.stage.trouble.crash * 2 };
        if next == NextEvent::Crash || self.stage.chance.one_in(crash) {
            drop(ports);
            return self.kill(at);
        }
        log_capture::note(|| format!("  epoch {}: {name}", self.stage.serving));
        if matches!(next, NextEvent::Request | NextEvent::Room) && node.session.sees_unproved() {
            violated!("O3: epoch {} does {name} for rows that no commit of its own has proved", node.epoch);
        }
        if next == NextEvent::Connect {
            self.connect(at, host)?;
        }
        let last = "SELECT coalesce(max(event_id), 0) FROM acp_events";
        let before: Vec<i64> = invariants::query(self.stage.hand.db(), last, [], |row| row.get(0));
        let Some(node) = self.nodes.get_mut(at) else { return Ok(()) };
        node.runtime.block_on(self.stage.happen(next, &ports, &mut node.gateway))?;
        if matches!(next, NextEvent::Disconnect | NextEvent::SupervisorDies) {
            self.disconnect(host)?;
        }
        if self.server.repeats() {
            SeededBug::repeat_commit(self.stage.hand.db(), before.first().copied().unwrap_or(0));
        }
        invariants::after(&mut self.stage, next == NextEvent::Commit)?;
        drop(ports);
        if !name.is_empty() {
            self.stage.tally.effects += 1;
            if self.stage.chance.one_in(crash) {
                return self.kill(at);
            }
        }
        Ok(())
    }

    /// Connects a gateway to a supervisor, which serves the highest epoch that it has seen.
    fn connect(&mut self, at: usize, host: usize) -> Result<(), Violation> {
        let epoch = self.stage.serving;
        if self.hosts.get(host).is_some_and(|link| link.served.is_some()) {
            self.reach("a stale gateway is refused");
        }
        self.disconnect(host)?;
        if let Some(link) = self.hosts.get_mut(host) {
            link.served = Some(epoch);
            link.epoch_seen = epoch;
        }
        self.enter(at, host);
        Ok(())
    }

    /// Ends the connection of a host.
    fn disconnect(&mut self, host: usize) -> Result<(), Violation> {
        self.stage.host.select(host);
        self.stage.host.hang_up();
        let now_ms = self.stage.now_ms;
        let Some(link) = self.hosts.get_mut(host) else { return Ok(()) };
        let Some(served) = link.served.take() else { return Ok(()) };
        link.away_since_ms = now_ms;
        for node in self.nodes.iter().filter(|node| node.epoch == served) {
            let _context = node.runtime.enter();
            node.ports()?.on(host).wire.lock().down();
        }
        Ok(())
    }

    fn cut_host(&mut self, host: usize) -> Result<(), Violation> {
        let Some(link) = self.hosts.get_mut(host) else { return Ok(()) };
        link.is_cut = !link.is_cut;
        self.stage.away = (link.is_cut && self.of_hosts).then_some(host);
        self.disconnect(host)
    }

    /// Ends the agents of hosts that have had no gateway for so long.
    fn keep_promises(&mut self) {
        for (host, link) in self.hosts.iter().enumerate() {
            let away_ms = self.stage.now_ms.saturating_sub(link.away_since_ms);
            if link.served.is_none() && away_ms >= GRACE_SECONDS * 1_000 {
                self.stage.host.select(host);
                self.stage.host.keep_promise();
            }
        }
    }

    /// A gateway that stands by asks for the cell, as a start of the product does.
    fn take(&mut self) -> Result<(), Violation> {
        let is_free = |machine: &usize| self.nodes.iter().all(|node| node.machine != *machine);
        let Some(machine) = (0..MACHINES).find(is_free) else { return Ok(()) };
        let session = self.server.connect();
        match take_lock(&session) {
            Ok(()) => self.start(machine, session),
            Err(StoreError::CellTaken { .. }) => {
                session.end(false);
                Ok(())
            }
            Err(error) => violated!("the cell cannot be taken: {error}"),
        }
    }

    fn start(&mut self, machine: usize, session: SimSession) -> Result<(), Violation> {
        if !self.stage.calm && !self.of_hosts && self.stage.chance.one_in(10) {
            self.lose_answer();
            self.reach("the begin of an owner is lost");
        }
        session.enter();
        session.answer_early(self.stage.plant == Some(SeededBug::ReadBeforeCommit));
        let slot = Arc::new(OnceLock::new());
        let runtime = gateway::runtime(Arc::clone(&slot), self.stage.chance.next())
            .map_err(|error| Violation(error.to_string()))?;
        let dir = self.stage.hand.dir().join(format!("machine-{machine}"));
        let started = runtime.block_on(async {
            let stage = &mut self.stage;
            let (store, pump) = stage.hand.start_in_cell(machine, Clock::at(stage.now_ms))?;
            let (supervisors, wires): (Vec<_>, Vec<_>) = (0..HOSTS)
                .map(|_| {
                    let (supervisor, mut wire) = SimSupervisorConnection::new();
                    wire.features = &[figures::FEATURE];
                    (supervisor, wire)
                })
                .unzip();
            let epoch = store.identity().epoch;
            let ports = slot.get_or_init(|| SimPorts::with_hosts(pump, wires, stage.room.of(epoch)));
            Ok((epoch, gateway::start(&store, ports, &supervisors, stage.config, &dir)))
        });
        self.server.answer_again();
        let (epoch, gateway) = match started {
            Ok(started) => started,
            Err(StoreError::OutcomeUnknown) => return Ok(()),
            Err(error) => violated!("the gateway does not start: {error}"),
        };
        log_capture::note(|| format!("  epoch {epoch} begins on machine {machine}"));
        if epoch <= self.epoch_started {
            violated!("O2: epoch {epoch} after {}", self.epoch_started);
        }
        self.epoch_started = epoch;
        self.stage.tally.lives += 1;
        if !self.nodes.is_empty() {
            self.reach("a former owner runs beside the owner");
        }
        self.nodes.push(SimNode {
            epoch,
            machine,
            session,
            tenure: Tenure::from(Duration::from_millis(self.stage.now_ms)),
            renews_at_ms: self.stage.now_ms + RENEW_MS,
            is_frozen: false,
            is_cut: false,
            since: self.stage.steps,
            gateway,
            ports: slot,
            runtime,
        });
        Ok(())
    }

    /// Renews the time of an owner, as the product's thread does.
    fn renew(&mut self, at: usize) -> Result<(), Violation> {
        let now = Duration::from_millis(self.stage.now_ms);
        let Some(node) = self.nodes.get_mut(at).filter(|node| !node.is_lost()) else { return Ok(()) };
        node.renews_at_ms = self.stage.now_ms + RENEW_MS;
        let lost = match node.tenure.left(now) {
            None => "an owner gives up",
            Some(_) if node.is_cut => return Ok(()),
            Some(_) if node.session.renew() => {
                node.tenure.renew(now);
                return Ok(());
            }
            Some(_) => "an owner learns that it is none",
        };
        let _context = node.runtime.enter();
        node.ports()?.pump.lock().health().set(StoreHealth::Lost);
        self.reach(lost);
        Ok(())
    }

    /// Loses the answer to the next commit.
    fn lose_answer(&mut self) {
        let (lost, what) = *self
            .stage
            .chance
            .pick(&[
                (LostAnswer::Undone, "a lost commit was not made"),
                (LostAnswer::Done, "a lost commit was made"),
                (LostAnswer::Unproved, "a lost commit is unproved"),
            ])
            .unwrap_or(&(LostAnswer::Done, ""));
        let lost = match self.stage.plant {
            Some(SeededBug::CommitRepeated) => LostAnswer::Done,
            Some(SeededBug::ReadBeforeCommit) => LostAnswer::Unproved,
            _ => lost,
        };
        self.reach(what);
        if lost == LostAnswer::Unproved && !self.server.is_unproved() {
            invariants::keep(self.stage.hand.db());
            self.kept = Some((self.stage.hand.copy(), self.stage.read.clone()));
        }
        let goes_unnoticed = self.stage.chance.one_in(3);
        self.server.lose_answer(lost, goes_unnoticed);
    }

    /// The standby takes the place of the server: what it does not have is gone.
    fn fail_over(&mut self) {
        self.server.restart();
        let kept = self.kept.take().filter(|_| self.server.is_unproved());
        let Some((rows, read)) = kept else { return };
        self.stage.hand.replace(&rows);
        self.stage.read = read;
        invariants::bring_back(self.stage.hand.db());
        self.server.forget_unproved();
        self.reach("a failover takes a commit back");
    }

    fn kill(&mut self, at: usize) -> Result<(), Violation> {
        let goes_unnoticed = self.stage.chance.one_in(3);
        if goes_unnoticed {
            self.reach("the server keeps the lock of a process that is gone");
        }
        self.end(at, goes_unnoticed)
    }

    /// Ends a gateway at once; the database keeps the last commit.
    fn end(&mut self, at: usize, goes_unnoticed: bool) -> Result<(), Violation> {
        let SimNode { epoch, session, gateway, ports, runtime, .. } = self.nodes.remove(at);
        session.end(goes_unnoticed);
        drop(runtime);
        drop(gateway);
        for host in 0..HOSTS {
            if self.hosts.get(host).is_some_and(|link| link.served == Some(epoch)) {
                self.disconnect(host)?;
            }
        }
        log_capture::note(|| format!("  epoch {epoch} has ended"));
        self.stage.serving = epoch;
        self.stage.connected = false;
        self.stage.forsake(ports)
    }

    fn pass_time(&mut self) -> Result<(), Violation> {
        if self.nodes.is_empty() {
            self.stage.between_lives();
            self.server.set_time(self.stage.now_ms);
            self.keep_promises();
            return Ok(());
        }
        let alone = !self.has_work()?;
        let ms = match self.stage.chance.below(8) {
            _ if (self.stage.calm && alone) || self.stage.away.is_some() => 30_000,
            0 if alone => 60_000,
            1 if alone => 300_000,
            6 | 7 if alone && self.of_hosts => 60_000,
            2 | 3 => 2_000,
            4 => 200,
            5 => 5_000,
            _ => 10,
        };
        let end_ms = self.stage.now_ms + ms;
        while self.stage.now_ms < end_ms {
            let before = self.stage.now_ms;
            self.stage.now_ms = end_ms.min(before + RENEW_MS);
            self.server.set_time(self.stage.now_ms);
            for node in self.nodes.iter().filter(|node| !node.is_frozen) {
                node.advance_to(self.stage.now_ms, false);
            }
            for at in 0..self.nodes.len() {
                let is_due = |node: &SimNode| !node.is_frozen && node.renews_at_ms <= self.stage.now_ms;
                if self.nodes.get(at).is_some_and(is_due) {
                    self.renew(at)?;
                }
                self.settle(at)?;
            }
            self.keep_promises();
            if self.has_work()? {
                break;
            }
            self.stage.rest_ms += self.stage.now_ms - before;
        }
        Ok(())
    }
}
