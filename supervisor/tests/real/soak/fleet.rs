//! The gateways, what they do, and what must have become of each lease.

use super::{Random, Tally};
use crate::common::{Client, DEADLINE, Identity, agent, kill, script, terminal};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseInfo, LeaseState, Reply, Request, Spawn};
use rustix::process::Signal;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Living agents of one gateway.
const LIVING_MAX: usize = 6;
/// Spawns that are asked for at once.
const BURST_MAX: u64 = 3;
/// Leaves a process in a session of its own behind when it ends.
const TREE: &str = "setsid sleep 3600 & exec cat";
/// So does this, and none of it listens to SIGTERM.
const STUBBORN: &str = "trap '' TERM; setsid sleep 3600 & exec cat";
/// Ends by itself.
const SHORT: &str = "setsid sleep 3600 & exit 3";

/// What a lease must end as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    Lost,
    /// Its supervisor died, or it is a terminal and its agent ended.
    Either,
}

/// A lease that was told to end, or whose end was brought about.
#[derive(Debug)]
struct Ending {
    end: End,
    since: Instant,
    /// The spawn was on its way when the supervisor died: perhaps there is no such lease.
    perhaps: bool,
}

struct Agent {
    spec: Spawn,
    info: LeaseInfo,
    /// Number of its last input.
    seq: u64,
    /// Bytes of output that were read.
    offset: u64,
    /// What it was told and has echoed, which nobody has read yet.
    unread: Vec<u8>,
    terminals: Vec<LeaseInfo>,
}

pub(crate) struct Gateway {
    pub(crate) identity: Identity,
    client: Option<Client>,
    /// It was connected when the supervisor died.
    pub(crate) was_there: bool,
    living: Vec<Agent>,
    ending: HashMap<LeaseId, Ending>,
    /// Leases that ended as they should. The supervisor forgets them in time.
    ended: HashMap<LeaseId, LeaseState>,
}

pub(crate) struct Fleet {
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) tally: Tally,
}

impl Fleet {
    /// One gateway does something.
    pub(crate) async fn step(&mut self, at: usize, random: &mut Random) {
        let (gateway, tally) = (&mut self.gateways[at], &mut self.tally);
        if gateway.client.is_none() {
            if random.below(2) == 0 {
                gateway.come_back().await;
            }
            return;
        }
        match random.below(20) {
            0..6 => gateway.spawn(random, tally).await,
            6..11 => gateway.talk(random, tally).await,
            11..13 => gateway.close(random, tally).await,
            13..15 => {
                gateway.end_by(random, &mut tally.adapters_killed, |i| i.adapter_pid, End::Closed).await
            }
            15..17 => gateway.end_by(random, &mut tally.wrappers_killed, |i| i.wrapper_pid, End::Lost).await,
            17 => gateway.open_terminal(random, tally).await,
            18 => gateway.leave(random, tally).await,
            _ => gateway.check().await,
        }
    }

    /// Spawns are asked for, and nobody waits for the answers.
    pub(crate) async fn spawns_on_their_way(&mut self, random: &mut Random) {
        for gateway in &mut self.gateways {
            for _ in 0..random.below(BURST_MAX + 1) {
                let spec = some_agent(random);
                let Some(client) = &mut gateway.client else { continue };
                client.send(Request::Spawn(spec.clone())).await;
                gateway.expect(spec.lease_id, End::Either, true);
            }
        }
        tokio::time::sleep(Duration::from_millis(random.below(60))).await;
    }

    /// The wrappers of all living agents.
    pub(crate) fn wrappers(&self) -> Vec<i32> {
        let living = self.gateways.iter().flat_map(|gateway| &gateway.living);
        living.filter_map(|agent| agent.info.wrapper_pid).collect()
    }

    /// Every lease ends with its supervisor. Returns those that were open.
    pub(crate) fn supervisor_died(&mut self) -> Vec<LeaseId> {
        self.tally.supervisors_killed += 1;
        let mut open = Vec::new();
        for gateway in &mut self.gateways {
            gateway.was_there = gateway.client.take().is_some();
            gateway.ending.values_mut().for_each(|ending| {
                ending.end = End::Either;
                ending.since = Instant::now();
            });
            for agent in std::mem::take(&mut gateway.living) {
                open.push(agent.spec.lease_id);
                gateway.gone(&agent, End::Either);
            }
        }
        open
    }

    /// Lease, wrapper and adapter of everything that must run.
    pub(crate) fn living(&self) -> impl Iterator<Item = (LeaseId, i32, i32)> {
        let agents = self.gateways.iter().flat_map(|gateway| &gateway.living);
        let infos = agents.map(|agent| &agent.info);
        infos.map(|info| (info.lease_id, info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()))
    }

    /// Whether something of a lease that need not run may run.
    pub(crate) fn may_have_processes(&self, lease: &str) -> bool {
        let terminals = self.gateways.iter().flat_map(|gateway| &gateway.living).flat_map(|a| &a.terminals);
        let endings = self.gateways.iter().flat_map(|gateway| gateway.ending.keys());
        terminals.map(|info| info.lease_id).chain(endings.copied()).any(|id| id.to_string() == lease)
    }
}

fn some_agent(random: &mut Random) -> Spawn {
    match random.below(4) {
        0 | 1 => agent(&["cat"]),
        2 => script(TREE),
        _ => script(STUBBORN),
    }
}

impl Gateway {
    pub(crate) fn new(identity: Identity) -> Self {
        let (living, ending, ended) = (Vec::new(), HashMap::new(), HashMap::new());
        Self { identity, client: None, was_there: false, living, ending, ended }
    }

    /// A lease that runs.
    pub(crate) fn some_lease(&self, random: &mut Random) -> Option<LeaseId> {
        random.place(self.living.len()).map(|at| self.living[at].spec.lease_id)
    }

    fn expect(&mut self, lease: LeaseId, end: End, perhaps: bool) {
        self.ending.insert(lease, Ending { end, since: Instant::now(), perhaps });
    }

    fn gone(&mut self, agent: &Agent, end: End) {
        self.expect(agent.spec.lease_id, end, false);
        for terminal in &agent.terminals {
            self.expect(terminal.lease_id, End::Either, false);
        }
    }

    fn take(&mut self, random: &mut Random) -> Option<Agent> {
        let at = random.place(self.living.len())?;
        Some(self.living.swap_remove(at))
    }

    async fn spawn(&mut self, random: &mut Random, tally: &mut Tally) {
        let client = self.client.as_mut().unwrap();
        let mut asked = Vec::new();
        let room = LIVING_MAX.saturating_sub(self.living.len()) as u64;
        for _ in 0..room.min(1 + random.below(BURST_MAX)) {
            let spec = some_agent(random);
            asked.push((client.send(Request::Spawn(spec.clone())).await, spec));
        }
        let short = (random.below(4) == 0).then(|| script(SHORT));
        if let Some(spec) = &short {
            client.spawn(spec).await;
            tally.agents += 1;
        }
        for (id, spec) in asked {
            let Ok(Reply::Spawned(info)) = client.reply(id).await else { panic!("{spec:?} is not spawned") };
            client.attach(spec.lease_id, 0).await;
            let (unread, terminals) = (Vec::new(), Vec::new());
            self.living.push(Agent { spec, info, seq: 0, offset: 0, unread, terminals });
            tally.agents += 1;
        }
        if let Some(spec) = short {
            self.expect(spec.lease_id, End::Closed, false);
        }
    }

    /// An agent is told something and says it back.
    async fn talk(&mut self, random: &mut Random, tally: &mut Tally) {
        let Some(at) = random.place(self.living.len()) else { return };
        let (client, agent) = (self.client.as_mut().unwrap(), &mut self.living[at]);
        agent.tell(client, random).await;
        agent.hear(client).await;
        tally.inputs += 1;
    }

    async fn close(&mut self, random: &mut Random, tally: &mut Tally) {
        let Some(agent) = self.take(random) else { return };
        self.client.as_mut().unwrap().close(agent.spec.lease_id).await;
        self.gone(&agent, End::Closed);
        tally.closed += 1;
    }

    /// One of its two processes is killed.
    async fn end_by(
        &mut self,
        random: &mut Random,
        count: &mut u64,
        which: fn(&LeaseInfo) -> Option<i32>,
        end: End,
    ) {
        let Some(agent) = self.take(random) else { return };
        kill(which(&agent.info).unwrap(), Signal::KILL);
        self.gone(&agent, end);
        *count += 1;
    }

    async fn open_terminal(&mut self, random: &mut Random, tally: &mut Tally) {
        let Some(at) = random.place(self.living.len()) else { return };
        let (client, agent) = (self.client.as_mut().unwrap(), &mut self.living[at]);
        if agent.terminals.len() < 2 {
            let spec = terminal(&agent.spec, "seq 1000; exec sleep 3600", 4096);
            agent.terminals.push(client.spawn(&spec).await);
            tally.terminals += 1;
        }
    }

    /// It goes, perhaps with something unread.
    async fn leave(&mut self, random: &mut Random, tally: &mut Tally) {
        let mut client = self.client.take().unwrap();
        if let Some(at) = random.place(self.living.len()) {
            self.living[at].tell(&mut client, random).await;
        }
        tally.gateways_gone += 1;
    }

    /// It connects again, if it is not, and reads what was said meanwhile.
    pub(crate) async fn come_back(&mut self) {
        if self.client.is_some() {
            return;
        }
        self.identity.epoch += 1;
        let mut client = self.identity.connect().await;
        for agent in &mut self.living {
            client.attach(agent.spec.lease_id, agent.offset).await;
            agent.hear(&mut client).await;
        }
        self.client = Some(client);
        self.check().await;
    }

    /// The table beside what must be in it.
    async fn check(&mut self) {
        let client = self.client.as_mut().unwrap();
        let listed = client.leases().await;
        client.notices.clear();
        let mut states: HashMap<LeaseId, (LeaseState, String)> =
            listed.into_iter().map(|info| (info.lease_id, (info.state, info.state_reason))).collect();
        for agent in &self.living {
            for info in agent.terminals.iter().chain([&agent.info]) {
                let found = states.remove(&info.lease_id);
                assert!(matches!(found, Some((LeaseState::Open, _))), "{} runs: {found:?}", info.lease_id);
            }
        }
        let mut over = Vec::new();
        for (lease, ending) in &self.ending {
            match states.remove(lease) {
                Some((state, reason)) if state.is_ended() => {
                    assert!(ending.end.allows(state), "{lease} is {state} ({reason}) after {ending:?}");
                    over.push((*lease, state));
                }
                None if ending.perhaps => over.push((*lease, LeaseState::Lost)),
                Some(found) => assert!(ending.since.elapsed() < DEADLINE, "{lease} is {found:?}: {ending:?}"),
                None => panic!("{lease} is not in the table: {ending:?}"),
            }
        }
        for (lease, state) in over {
            self.ending.remove(&lease);
            self.ended.insert(lease, state);
            let released = client.call(Request::Release { lease_id: lease }).await;
            assert!(released.is_ok() || state == LeaseState::Lost, "{lease}: {released:?}");
        }
        for (lease, (state, _)) in states {
            assert_eq!(self.ended.get(&lease).copied().unwrap_or(state), state, "{lease} had ended");
            assert!(self.ended.contains_key(&lease), "{lease} has no owner");
        }
    }

    pub(crate) async fn close_all(&mut self) {
        for agent in std::mem::take(&mut self.living) {
            self.client.as_mut().unwrap().close(agent.spec.lease_id).await;
            self.gone(&agent, End::Closed);
        }
    }

    /// Waits until nothing of it runs; the deadline of each lease is its own.
    pub(crate) async fn settle(&mut self) {
        loop {
            self.check().await;
            if self.ending.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Agent {
    async fn tell(&mut self, client: &mut Client, random: &mut Random) {
        self.seq += 1;
        let line = format!("{} {} {}\n", self.spec.lease_id, self.seq, random.below(u64::MAX));
        let written = client.input(self.spec.lease_id, self.seq, line.as_bytes()).await;
        assert_eq!(written, Ok(Reply::Written { seq: self.seq }));
        self.unread.extend(line.into_bytes());
    }

    /// Reads all that it has to say.
    async fn hear(&mut self, client: &mut Client) {
        let said = client.read(self.spec.lease_id, self.offset, self.unread.len()).await;
        assert_eq!(said, self.unread, "the output equals the input");
        self.unread.clear();
        self.offset += said.len() as u64;
        client.ack(self.spec.lease_id, self.offset).await;
    }
}
