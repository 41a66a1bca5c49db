//! Gateways, their random actions, and the expected end of each lease.

use super::{ActionCounts, Random};
use crate::common::{Client, Identity, TIMEOUT, agent, kill, script, terminal};
use acp_shared::ids::LeaseId;
use acp_shared::protocol::{LeaseInfo, LeaseState, Reply, Request, Spawn};
use rustix::process::Signal;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Maximum number of living agents of a gateway.
const LIVING_MAX: usize = 6;
/// Maximum number of concurrent spawns.
const BURST_MAX: u64 = 3;
/// Leaves a process in its own session behind.
const TREE: &str = "setsid sleep 3600 & exec cat";
/// Leaves such a process behind, and all ignore SIGTERM.
const UNRESPONSIVE: &str = "trap '' TERM; setsid sleep 3600 & exec cat";
/// Exits without a close.
const SHORT: &str = "setsid sleep 3600 & exit 3";

/// Expected final state of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedEnd {
    Closed,
    Lost,
    /// The supervisor died, or the lease is a terminal and its agent ended.
    Either,
}

/// A lease that is ending.
#[derive(Debug)]
struct Ending {
    end: ExpectedEnd,
    since: Instant,
    /// The supervisor died during the spawn, so the lease may not exist.
    may_be_missing: bool,
}

struct Agent {
    spec: Spawn,
    info: LeaseInfo,
    /// Number of the last input.
    seq: u64,
    /// Bytes of output read so far.
    offset: u64,
    /// Echoed input that is not read yet.
    unread: Vec<u8>,
    terminals: Vec<LeaseInfo>,
}

pub(crate) struct Gateway {
    pub(crate) identity: Identity,
    client: Option<Client>,
    /// Connected when the supervisor died.
    pub(crate) was_connected: bool,
    living: Vec<Agent>,
    ending: HashMap<LeaseId, Ending>,
    /// Leases that ended as expected. The supervisor removes them in time.
    ended: HashMap<LeaseId, LeaseState>,
}

pub(crate) struct GatewayGroup {
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) counts: ActionCounts,
}

impl GatewayGroup {
    /// Runs a random action of one gateway.
    pub(crate) async fn step(&mut self, at: usize, random: &mut Random) {
        let (gateway, counts) = (&mut self.gateways[at], &mut self.counts);
        if gateway.client.is_none() {
            if random.below(2) == 0 {
                gateway.reconnect().await;
            }
            return;
        }
        match random.below(20) {
            0..6 => gateway.spawn(random, counts).await,
            6..11 => gateway.echo(random, counts).await,
            11..13 => gateway.close(random, counts).await,
            13..15 => {
                gateway
                    .kill_process(random, &mut counts.adapters_killed, |i| i.adapter_pid, ExpectedEnd::Closed)
                    .await
            }
            15..17 => {
                gateway
                    .kill_process(random, &mut counts.wrappers_killed, |i| i.wrapper_pid, ExpectedEnd::Lost)
                    .await
            }
            17 => gateway.open_terminal(random, counts).await,
            18 => gateway.disconnect(random, counts).await,
            _ => gateway.check().await,
        }
    }

    /// Sends spawn requests without waiting for the replies.
    pub(crate) async fn send_spawns(&mut self, random: &mut Random) {
        for gateway in &mut self.gateways {
            for _ in 0..random.below(BURST_MAX + 1) {
                let spec = random_agent(random);
                let Some(client) = &mut gateway.client else { continue };
                client.send(Request::Spawn(spec.clone())).await;
                gateway.expect(spec.lease_id, ExpectedEnd::Either, true);
            }
        }
        tokio::time::sleep(Duration::from_millis(random.below(60))).await;
    }

    /// Wrappers of all living agents.
    pub(crate) fn wrappers(&self) -> Vec<i32> {
        let living = self.gateways.iter().flat_map(|gateway| &gateway.living);
        living.filter_map(|agent| agent.info.wrapper_pid).collect()
    }

    /// Marks all leases as ending with their supervisor and returns the open ones.
    pub(crate) fn mark_all_ended(&mut self) -> Vec<LeaseId> {
        self.counts.supervisors_killed += 1;
        let mut open = Vec::new();
        for gateway in &mut self.gateways {
            gateway.was_connected = gateway.client.take().is_some();
            gateway.ending.values_mut().for_each(|ending| {
                ending.end = ExpectedEnd::Either;
                ending.since = Instant::now();
            });
            for agent in std::mem::take(&mut gateway.living) {
                open.push(agent.spec.lease_id);
                gateway.expect_end_of(&agent, ExpectedEnd::Either);
            }
        }
        open
    }

    /// Lease, wrapper and adapter of every living agent.
    pub(crate) fn living(&self) -> impl Iterator<Item = (LeaseId, i32, i32)> {
        let agents = self.gateways.iter().flat_map(|gateway| &gateway.living);
        let infos = agents.map(|agent| &agent.info);
        infos.map(|info| (info.lease_id, info.wrapper_pid.unwrap(), info.adapter_pid.unwrap()))
    }

    /// True if a terminal or an ending lease has this id.
    pub(crate) fn may_have_processes(&self, lease: &str) -> bool {
        let terminals = self.gateways.iter().flat_map(|gateway| &gateway.living).flat_map(|a| &a.terminals);
        let endings = self.gateways.iter().flat_map(|gateway| gateway.ending.keys());
        terminals.map(|info| info.lease_id).chain(endings.copied()).any(|id| id.to_string() == lease)
    }
}

fn random_agent(random: &mut Random) -> Spawn {
    match random.below(4) {
        0 | 1 => agent(&["cat"]),
        2 => script(TREE),
        _ => script(UNRESPONSIVE),
    }
}

impl Gateway {
    pub(crate) fn new(identity: Identity) -> Self {
        let (living, ending, ended) = (Vec::new(), HashMap::new(), HashMap::new());
        Self { identity, client: None, was_connected: false, living, ending, ended }
    }

    /// A random living lease.
    pub(crate) fn any_lease(&self, random: &mut Random) -> Option<LeaseId> {
        random.index(self.living.len()).map(|at| self.living[at].spec.lease_id)
    }

    fn expect(&mut self, lease: LeaseId, end: ExpectedEnd, may_be_missing: bool) {
        self.ending.insert(lease, Ending { end, since: Instant::now(), may_be_missing });
    }

    fn expect_end_of(&mut self, agent: &Agent, end: ExpectedEnd) {
        self.expect(agent.spec.lease_id, end, false);
        for terminal in &agent.terminals {
            self.expect(terminal.lease_id, ExpectedEnd::Either, false);
        }
    }

    fn take(&mut self, random: &mut Random) -> Option<Agent> {
        let at = random.index(self.living.len())?;
        Some(self.living.swap_remove(at))
    }
    async fn spawn(&mut self, random: &mut Random, counts: &mut ActionCounts) {
        let client = self.client.as_mut().unwrap();
        let mut requests = Vec::new();
        let room = LIVING_MAX.saturating_sub(self.living.len()) as u64;
        for _ in 0..room.min(1 + random.below(BURST_MAX)) {
            let spec = random_agent(random);
            requests.push((client.send(Request::Spawn(spec.clone())).await, spec));
        }
        let short = (random.below(4) == 0).then(|| script(SHORT));
        if let Some(spec) = &short {
            client.spawn(spec).await;
            counts.agents += 1;
        }
        for (id, spec) in requests {
            let Ok(Reply::Spawned(info)) = client.reply(id).await else { panic!("{spec:?} is not spawned") };
            client.attach(spec.lease_id, 0).await;
            let (unread, terminals) = (Vec::new(), Vec::new());
            self.living.push(Agent { spec, info, seq: 0, offset: 0, unread, terminals });
            counts.agents += 1;
        }
        if let Some(spec) = short {
            self.expect(spec.lease_id, ExpectedEnd::Closed, false);
        }
    }

    /// Sends a line to an agent and reads its echo.
    async fn echo(&mut self, random: &mut Random, counts: &mut ActionCounts) {
        let Some(at) = random.index(self.living.len()) else { return };
        let (client, agent) = (self.client.as_mut().unwrap(), &mut self.living[at]);
        agent.send_line(client, random).await;
        agent.read_unread(client).await;
        counts.inputs += 1;
    }

    async fn close(&mut self, random: &mut Random, counts: &mut ActionCounts) {
        let Some(agent) = self.take(random) else { return };
        self.client.as_mut().unwrap().close(agent.spec.lease_id).await;
        self.expect_end_of(&agent, ExpectedEnd::Closed);
        counts.closed += 1;
    }

    /// Kills one of an agent's two processes.
    async fn kill_process(
        &mut self,
        random: &mut Random,
        count: &mut u64,
        which: fn(&LeaseInfo) -> Option<i32>,
        end: ExpectedEnd,
    ) {
        let Some(agent) = self.take(random) else { return };
        kill(which(&agent.info).unwrap(), Signal::KILL);
        self.expect_end_of(&agent, end);
        *count += 1;
    }

    async fn open_terminal(&mut self, random: &mut Random, counts: &mut ActionCounts) {
        let Some(at) = random.index(self.living.len()) else { return };
        let (client, agent) = (self.client.as_mut().unwrap(), &mut self.living[at]);
        if agent.terminals.len() < 2 {
            let spec = terminal(&agent.spec, "seq 1000; exec sleep 3600", 4096);
            agent.terminals.push(client.spawn(&spec).await);
            counts.terminals += 1;
        }
    }

    /// Disconnects, perhaps with unread output.
    async fn disconnect(&mut self, random: &mut Random, counts: &mut ActionCounts) {
        let mut client = self.client.take().unwrap();
        if let Some(at) = random.index(self.living.len()) {
            self.living[at].send_line(&mut client, random).await;
        }
        counts.disconnects += 1;
    }

    /// Connects again, if disconnected, and reads the pending output.
    pub(crate) async fn reconnect(&mut self) {
        if self.client.is_some() {
            return;
        }
        self.identity.epoch += 1;
        let mut client = self.identity.connect().await;
        for agent in &mut self.living {
            client.attach(agent.spec.lease_id, agent.offset).await;
            agent.read_unread(&mut client).await;
        }
        self.client = Some(client);
        self.check().await;
    }

    /// Compares the table with the expected states.
    async fn check(&mut self) {
        let client = self.client.as_mut().unwrap();
        let listed = client.leases().await;
        client.notices.clear();
        let mut states: HashMap<LeaseId, (LeaseState, String)> =
            listed.into_iter().map(|info| (info.lease_id, (info.state, info.state_reason))).collect();
        for agent in &self.living {
            for info in agent.terminals.iter().chain([&agent.info]) {
                let found = states.remove(&info.lease_id);
                assert!(
                    matches!(found, Some((LeaseState::Open, _))),
                    "{} is not open: {found:?}",
                    info.lease_id
                );
            }
        }
        let mut finished = Vec::new();
        for (lease, ending) in &self.ending {
            match states.remove(lease) {
                Some((state, reason)) if state.is_ended() => {
                    assert!(ending.end.allows(state), "{lease} is {state} ({reason}) after {ending:?}");
                    finished.push((*lease, state));
                }
                None if ending.may_be_missing => finished.push((*lease, LeaseState::Lost)),
                Some(found) => assert!(ending.since.elapsed() < TIMEOUT, "{lease} is {found:?}: {ending:?}"),
                None => panic!("{lease} is not in the table: {ending:?}"),
            }
        }
        for (lease, state) in finished {
            self.ending.remove(&lease);
            self.ended.insert(lease, state);
            let released = client.call(Request::Release { lease_id: lease }).await;
            assert!(released.is_ok() || state == LeaseState::Lost, "{lease}: {released:?}");
        }
        for (lease, (state, _)) in states {
            assert_eq!(self.ended.get(&lease).copied().unwrap_or(state), state, "{lease} had ended");
            assert!(self.ended.contains_key(&lease), "unexpected lease {lease}");
        }
    }

    pub(crate) async fn close_all(&mut self) {
        for agent in std::mem::take(&mut self.living) {
            self.client.as_mut().unwrap().close(agent.spec.lease_id).await;
            self.expect_end_of(&agent, ExpectedEnd::Closed);
        }
    }

    /// Waits until all leases have ended, each within its timeout.
    pub(crate) async fn await_endings(&mut self) {
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
    async fn send_line(&mut self, client: &mut Client, random: &mut Random) {
        self.seq += 1;
        let line = format!("{} {} {}\n", self.spec.lease_id, self.seq, random.below(u64::MAX));
        let written = client.input(self.spec.lease_id, self.seq, line.as_bytes()).await;
        assert_eq!(written, Ok(Reply::Written { seq: self.seq }));
        self.unread.extend(line.into_bytes());
    }

    /// Reads and acknowledges the unread output.
    async fn read_unread(&mut self, client: &mut Client) {
        let output = client.read(self.spec.lease_id, self.offset, self.unread.len()).await;
        assert_eq!(output, self.unread, "the output equals the input");
        self.unread.clear();
        self.offset += output.len() as u64;
        client.ack(self.spec.lease_id, self.offset).await;
    }
}
