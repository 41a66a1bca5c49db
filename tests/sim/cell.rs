//! Scheduler of a cell: two gateways that want the same database of one server, and hosts for their agents. One gateway owns the
//! cell; the other one stands by, or is a former owner that does not know yet. Freezes, cuts, lost answers to commits, restarts
//! and failovers of the server are events like all others.

mod hosts;
mod owners;

use super::scheduler::{EFFECTS_MIN, NextEvent, REST_MS, ROOMS, STEPS_MAX, SimScheduler, Violation};
use super::server::SimServer;
use super::store::SimStore;
use crate::sim::coverage::SeedResult;
use crate::sim::invariants::{self, JournalProgress, violated};
use crate::sim::log_capture;
use crate::sim::seeded_bugs::SeededBug;
use crate::sim::supervisor::HOSTS;
use acp_core::config::load::LoadedConfig;
use acp_shared::ids::SessionKey;
use acp_shared::protocol::{Reply, Request};
use acp_store::db::Db;
use hosts::HostLink;
use owners::SimNode;
use std::collections::{BTreeMap, VecDeque};

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
    /// Host of each session, as of the last commit.
    home_of: BTreeMap<SessionKey, usize>,
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
            home_of: BTreeMap::new(),
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
        // Spawns are refused while gateways, hosts and the server are in trouble: they are repeated.
        if !stage.calm
            && stage.wishes_left == 0
            && invariants::sessions(stage.hand.db(), false).len() < ROOMS.len()
        {
            stage.wishes_left = 1;
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
        if next == NextEvent::Commit {
            self.find_moves();
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
