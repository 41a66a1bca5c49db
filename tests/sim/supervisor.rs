//! Simulated supervisor: leases, output rings with offsets, numbered input, exits. It outlives the gateways,
//! and follows its side of the contract (`shared/src/protocol.rs`) exactly, so that every violation is the
//! gateway's.

use super::agent::{AgentMemory, SimAgent};
use crate::sim::rng::SeededRng;
use crate::sim::seeded_bugs::SeededBug;
use crate::tests::lease_info;
use acp_shared::figures::{self, Figure};
use acp_shared::files::{FilesError, FilesOp, FilesReply, FilesRequest};
use acp_shared::ids::{GatewayInstanceId, LeaseId};
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{
    Attached, EvidenceReport, LeaseInfo, LeaseKind, LeaseState, Notice, Refusal, RefusalCode, Reply, Request,
    Spawn, Tail,
};
use std::collections::{BTreeMap, VecDeque};

/// Message in transit to the gateway, on the one connection.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a few at a time")]
pub(super) enum SupervisorMessage {
    Reply(u64, Result<Reply, Refusal>),
    Notice(Notice),
}

/// One process tree.
#[derive(Debug)]
pub(super) struct SimLease {
    pub(super) no: usize,
    /// Host of the process.
    pub(super) host: usize,
    pub(super) spawn: Spawn,
    pub(super) state: LeaseState,
    /// `None` for a terminal.
    pub(super) agent: Option<SimAgent>,
    /// All output that the supervisor has.
    pub(super) said: Vec<u8>,
    /// End of the output that the process wrote.
    pub(super) output_end: u64,
    pub(super) acked: u64,
    /// End of the output sent on the attached connection.
    sent: Option<u64>,
    stdin: Vec<Vec<u8>>,
    written: u64,
    /// Highest number received on this connection without a gap, accepted or not.
    offered: u64,
    /// Input requests whose message is not in the pipe yet.
    unwritten: VecDeque<(u64, u64)>,
    /// True for a process that does not read its input.
    pub(super) deaf: bool,
    pub(super) exit: Option<ExitStatus>,
    exit_told: bool,
    /// True if the supervisor that held the lease died: none of its data is kept.
    gone: bool,
    /// True if the lease ended with its supervisor.
    pub(super) lost: bool,
    /// True if the session was moved to another host while this one was away.
    pub(super) left_behind: bool,
}

impl SimLease {
    pub(super) fn lives(&self) -> bool {
        self.exit.is_none()
    }

    /// True if words of the process are not sent on the attached connection.
    pub(super) fn has_unsent_words(&self) -> bool {
        let sent = self.sent.unwrap_or(self.acked);
        let is_unsent = |(end, _): &(u64, _)| (sent + 1..=self.said_up_to()).contains(end);
        self.agent.as_ref().is_some_and(|agent| agent.words.iter().any(is_unsent))
    }

    pub(super) fn said_up_to(&self) -> u64 {
        self.said.len() as u64
    }
}

/// Answers file requests as if every directory existed.
pub(super) fn files(request: FilesRequest) -> Result<FilesReply, FilesError> {
    match request.op {
        FilesOp::Directory { path } => Ok(FilesReply::Directory { path, roots: request.roots }),
        FilesOp::Directories { paths } => Ok(FilesReply::Directories(paths.into_iter().map(Ok).collect())),
        FilesOp::Programs { names, .. } => Ok(FilesReply::Programs(names.into_iter().map(Some).collect())),
        FilesOp::Read { .. } | FilesOp::Write { .. } | FilesOp::Inspect { .. } | FilesOp::List { .. } => {
            Err(FilesError::NotFound)
        }
    }
}

/// Number of hosts with a supervisor. Only the seeds of a cell use more than the first.
pub(super) const HOSTS: usize = 2;
/// Time without a gateway after which a host ends all agents, in seconds: its promise.
pub(super) const GRACE_SECONDS: u64 = 120;

/// What one of several supervisors does not share with the others.
#[derive(Debug, Default)]
struct SimLink {
    inbox: VecDeque<(u64, Request)>,
    outbox: VecDeque<SupervisorMessage>,
    no: usize,
}

/// The simulated supervisors of all hosts: processes, and the messages of the selected host.
#[derive(Debug)]
pub(super) struct SimSupervisor {
    /// The selected host.
    pub(super) at: usize,
    /// The other hosts; the place of the selected one is empty.
    others: [SimLink; HOSTS],
    pub(super) leases: BTreeMap<LeaseId, SimLease>,
    order: Vec<LeaseId>,
    pub(super) minds: AgentMemory,
    /// Received requests that are not handled yet.
    pub(super) inbox: VecDeque<(u64, Request)>,
    pub(super) outbox: VecDeque<SupervisorMessage>,
    /// Protocol violations of the gateway.
    pub(super) complaints: Vec<String>,
    pub(super) calm: bool,
    flaw: Option<SeededBug>,
    instance: GatewayInstanceId,
    pub(super) no: usize,
}

impl SimSupervisor {
    pub(super) fn new(flaw: Option<SeededBug>) -> Self {
        Self {
            at: 0,
            others: Default::default(),
            leases: BTreeMap::new(),
            order: Vec::new(),
            minds: AgentMemory::default(),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            complaints: Vec::new(),
            calm: false,
            flaw,
            instance: GatewayInstanceId::mint(),
            no: 0,
        }
    }

    /// Selects a host.
    pub(super) fn select(&mut self, host: usize) {
        for at in [self.at, host] {
            if let Some(link) = self.others.get_mut(at) {
                std::mem::swap(&mut self.inbox, &mut link.inbox);
                std::mem::swap(&mut self.outbox, &mut link.outbox);
                std::mem::swap(&mut self.no, &mut link.no);
            }
        }
        self.at = host;
    }

    /// Returns the leases of the selected host.
    fn own(&mut self) -> impl Iterator<Item = &mut SimLease> {
        let at = self.at;
        self.leases.values_mut().filter(move |lease| lease.host == at)
    }

    /// Ends all agents of the selected host, as it promised for the time after its grace.
    pub(super) fn keep_promise(&mut self) {
        let at = self.at;
        let living = self.leases.iter().filter(|(_, lease)| lease.host == at && lease.lives());
        for id in living.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.exit(id, ExitStatus::Signaled(15));
        }
    }

    /// Figures for the gateway, with the promise.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let is_short = self.flaw == Some(SeededBug::ShortPromise);
        vec![Figure::new(figures::DETACHED_GRACE, if is_short { 0 } else { GRACE_SECONDS })]
    }

    /// Closes the connection and drops all messages on it.
    pub(super) fn hang_up(&mut self) {
        self.inbox.clear();
        self.outbox.clear();
        for lease in self.own() {
            lease.sent = None;
            lease.unwritten.clear();
            lease.offered = 0;
            lease.exit_told = false;
        }
    }

    /// Kills the supervisor, and every wrapper ends its tree; the next supervisor knows the leases but has
    /// none of their data.
    pub(super) fn die(&mut self) {
        self.hang_up();
        self.no += 1;
        for lease in self.own() {
            if lease.lives() {
                lease.state = LeaseState::Lost;
                lease.exit = Some(ExitStatus::Unknown);
            }
            lease.lost |= !lease.gone;
            lease.gone = true;
            lease.agent.iter_mut().for_each(|agent| agent.unsaid.clear());
        }
    }

    fn info(&self, id: LeaseId) -> Option<LeaseInfo> {
        let lease = self.leases.get(&id)?;
        Some(LeaseInfo {
            gateway_instance_id: self.instance,
            state: lease.state,
            exit: lease.exit,
            stdout_end: lease.said_up_to(),
            stdout_acked: lease.acked,
            stdin_written: lease.written,
            ..lease_info(&lease.spawn)
        })
    }

    /// Handles the oldest request.
    pub(super) fn serve(&mut self, chance: &mut SeededRng) {
        let Some((id, request)) = self.inbox.pop_front() else { return };
        let answer = match request {
            Request::Spawn(spawn) => Some(self.spawn(spawn, chance)),
            Request::Attach { lease_id, from_offset } => Some(self.attach(lease_id, from_offset, chance)),
            Request::Input { lease_id, seq, bytes } => self.input(id, lease_id, seq, bytes, chance),
            Request::AckSynced { lease_id, offset, .. } => Some(self.ack(lease_id, offset)),
            Request::CloseLease { .. } if self.flaw == Some(SeededBug::LeaseNotClosed) => {
                Some(Ok(Reply::Closing { state: LeaseState::Closing }))
            }
            Request::CloseLease { lease_id, .. } => Some(self.close(lease_id)),
            Request::Release { lease_id } => Some(self.release(lease_id)),
            Request::Tail { lease_id } => Some(self.tail(lease_id)),
            Request::ListLeases { .. } => {
                let is_here = |id: &&LeaseId| self.leases.get(id).is_some_and(|lease| lease.host == self.at);
                let here = self.order.iter().filter(is_here).filter_map(|id| self.info(*id));
                Some(Ok(Reply::Leases(here.collect())))
            }
            Request::Verify { lease_id } => Some(self.verify(lease_id)),
            Request::Files(_) if !self.calm && chance.one_in(20) => {
                Some(Err(Refusal::new(RefusalCode::Busy, "too much to do").retry_after(200)))
            }
            Request::Files(request) => Some(Ok(Reply::Files(files(request)))),
            _ => Some(Err(Refusal::new(RefusalCode::BadRequest, "not here"))),
        };
        self.outbox.extend(answer.map(|answer| SupervisorMessage::Reply(id, answer)));
    }

    fn verify(&mut self, id: LeaseId) -> Result<Reply, Refusal> {
        let lives = self.known(id)?.lives();
        let lease = self.info(id).ok_or_else(|| Refusal::new(RefusalCode::Internal, "?"))?;
        let verdict = if lives { "owned" } else { "gone" }.to_owned();
        let (facts, why, tree) = (Vec::new(), String::new(), Vec::new());
        Ok(Reply::Evidence(EvidenceReport { lease, facts, verdict, why, tree }))
    }

    fn known(&mut self, id: LeaseId) -> Result<&mut SimLease, Refusal> {
        let at = self.at;
        self.leases
            .get_mut(&id)
            .filter(|lease| lease.host == at)
            .ok_or_else(|| Refusal::new(RefusalCode::LeaseUnknown, "there is no such lease"))
    }

    fn spawn(&mut self, spawn: Spawn, chance: &mut SeededRng) -> Result<Reply, Refusal> {
        let id = spawn.lease_id;
        if let Some(lease) = self.leases.get(&id) {
            if lease.spawn != spawn {
                self.complaints.push(format!("another spawn under the lease {id}"));
            }
            return self.info(id).map(Reply::Spawned).ok_or_else(|| Refusal::new(RefusalCode::Internal, "?"));
        }
        let is_agent = spawn.kind == LeaseKind::Agent;
        let same = |lease: &SimLease| {
            lease.host == self.at && lease.agent.is_some() && lease.spawn.session_key == spawn.session_key
        };
        if is_agent && self.leases.values().any(|lease| lease.lives() && same(lease)) {
            return Err(Refusal::new(RefusalCode::SessionBusy, "its predecessor lives"));
        }
        if !self.calm {
            match chance.below(30) {
                0 => return Err(Refusal::new(RefusalCode::SpawnFailed, "no such program")),
                1 => return Err(Refusal::new(RefusalCode::CrashLoop, "it keeps dying").retry_after(2_000)),
                2 => return Err(Refusal::new(RefusalCode::Busy, "too much to do")),
                3 => return Err(Refusal::new(RefusalCode::QuotaExceeded, "too many").retry_after(500)),
                _ => {}
            }
        }
        let no = self.order.len();
        let agent = is_agent.then(|| SimAgent::new(no, spawn.session_key.as_str(), chance, self.calm));
        self.order.push(id);
        let lease = SimLease {
            no,
            host: self.at,
            spawn,
            state: LeaseState::Open,
            agent,
            said: Vec::new(),
            output_end: 0,
            acked: 0,
            sent: None,
            stdin: Vec::new(),
            written: 0,
            offered: 0,
            unwritten: VecDeque::new(),
            deaf: false,
            exit: None,
            exit_told: false,
            gone: false,
            lost: false,
            left_behind: false,
        };
        self.leases.insert(id, lease);
        self.info(id).map(Reply::Spawned).ok_or_else(|| Refusal::new(RefusalCode::Internal, "?"))
    }

    fn attach(&mut self, id: LeaseId, from: u64, chance: &mut SeededRng) -> Result<Reply, Refusal> {
        let calm = self.calm;
        let lease = self.known(id)?;
        if lease.gone {
            return Err(Refusal::new(RefusalCode::LeaseEnded, "nothing of it is kept"));
        }
        if !calm && chance.one_in(20) {
            return Err(Refusal::new(RefusalCode::Busy, "too much to do"));
        }
        if from < lease.acked || from > lease.said_up_to() {
            // A superseded actor may ask this before it knows; any other one journals a gap, a violation.
            let why = format!("attach from {from} outside of {}..{}", lease.acked, lease.said_up_to());
            return Err(Refusal::new(RefusalCode::OffsetUnavailable, why));
        }
        lease.sent = Some(from);
        lease.exit_told = false;
        Ok(Reply::Attached(Attached {
            state: lease.state,
            stdout_base: lease.acked,
            stdout_end: lease.said_up_to(),
            stdout_eof: lease.exit.is_some(),
            stdin_written: lease.written,
            stdin_accepted: lease.stdin.len() as u64,
            exit: lease.exit,
        }))
    }

    fn input(
        &mut self,
        request: u64,
        id: LeaseId,
        seq: u64,
        bytes: Vec<u8>,
        chance: &mut SeededRng,
    ) -> Option<Result<Reply, Refusal>> {
        let flaw = self.flaw;
        let again = flaw == Some(SeededBug::SeqAgain) && seq > 1 && chance.one_in(8);
        let seq = if again { seq - 1 } else { seq };
        let calm = self.calm;
        let lease = match self.known(id) {
            Ok(lease) => lease,
            Err(refusal) => return Some(Err(refusal)),
        };
        if lease.exit.is_some() {
            return Some(Err(Refusal::new(RefusalCode::LeaseEnded, "it has ended")));
        }
        let accepted = lease.stdin.len() as u64;
        let at = usize::try_from(seq).unwrap_or(usize::MAX).saturating_sub(1);
        // Numbers after a refused one were already in transit.
        let offered = lease.offered.max(accepted);
        lease.offered = offered.max(seq);
        if seq > accepted + 1 {
            if seq > offered + 1 {
                self.complaints.push(format!("input {seq} after {offered}"));
            }
            return Some(Err(Refusal::new(RefusalCode::SeqGap, "a gap")));
        }
        if let Some(before) = lease.stdin.get(at) {
            if *before != bytes {
                self.complaints.push(format!("input {seq} repeated with other bytes"));
                return Some(Err(Refusal::new(RefusalCode::SeqConflict, "other bytes")));
            }
        } else {
            if !calm && chance.one_in(25) {
                return Some(Err(Refusal::new(RefusalCode::Busy, "the queue is full")));
            }
            if flaw == Some(SeededBug::InputTwice) && bytes.windows(14).any(|part| part == b"session/prompt")
            {
                lease.stdin.push(bytes.clone());
                lease.written = lease.written.max(seq);
                self.hear(id, &bytes, chance);
                self.hear(id, &bytes, chance);
                return Some(Ok(Reply::Written { seq }));
            }
            lease.stdin.push(bytes);
        }
        lease.unwritten.push_back((request, seq));
        if !lease.deaf {
            self.write(id, chance);
        }
        None
    }

    fn hear(&mut self, id: LeaseId, bytes: &[u8], chance: &mut SeededRng) {
        let agent = self.leases.get_mut(&id).and_then(|lease| lease.agent.as_mut());
        if let Some(agent) = agent {
            agent.hear(bytes, &mut self.minds, chance);
        }
    }

    /// Lets the process read from its pipe.
    pub(super) fn write(&mut self, id: LeaseId, chance: &mut SeededRng) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let fresh: Vec<Vec<u8>> =
            lease.stdin.iter().skip(usize::try_from(lease.written).unwrap_or(0)).cloned().collect();
        lease.written = lease.stdin.len() as u64;
        for (request, seq) in std::mem::take(&mut lease.unwritten) {
            self.outbox.push_back(SupervisorMessage::Reply(request, Ok(Reply::Written { seq })));
        }
        for bytes in fresh {
            self.hear(id, &bytes, chance);
        }
    }

    fn ack(&mut self, id: LeaseId, offset: u64) -> Result<Reply, Refusal> {
        let lease = self.known(id)?;
        if offset > lease.said_up_to() {
            let why = format!("acknowledged {offset} of {}", lease.said_up_to());
            self.complaints.push(why);
            return Err(Refusal::new(RefusalCode::OffsetUnavailable, "not said yet"));
        }
        lease.acked = lease.acked.max(offset);
        Ok(Reply::Done)
    }

    fn close(&mut self, id: LeaseId) -> Result<Reply, Refusal> {
        let lease = self.known(id)?;
        if !lease.state.is_ended() {
            lease.state = LeaseState::Closing;
        }
        Ok(Reply::Closing { state: lease.state })
    }

    fn release(&mut self, id: LeaseId) -> Result<Reply, Refusal> {
        let lease = self.known(id)?;
        if lease.lives() {
            return Err(Refusal::new(RefusalCode::BadRequest, "it has not ended"));
        }
        lease.gone = true;
        Ok(Reply::Done)
    }

    fn tail(&mut self, id: LeaseId) -> Result<Reply, Refusal> {
        let lease = self.known(id)?;
        Ok(Reply::Tail(Tail { bytes: lease.said.clone(), truncated: false, exit: lease.exit }))
    }

    /// Ends a process. Its unsent output is lost; output already sent is kept.
    pub(super) fn exit(&mut self, id: LeaseId, status: ExitStatus) {
        let flaw = self.flaw;
        let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.exit.is_none()) else { return };
        lease.exit = Some(status);
        lease.state = LeaseState::Closed;
        if flaw == Some(SeededBug::DeadLeaseNotDrained) {
            let sent = lease.sent.unwrap_or(lease.acked);
            lease.said.truncate(usize::try_from(sent).unwrap_or(0));
        }
        for (request, seq) in std::mem::take(&mut lease.unwritten) {
            let refusal = Refusal::new(RefusalCode::LeaseEnded, format!("{seq} was not written"));
            self.outbox.push_back(SupervisorMessage::Reply(request, Err(refusal)));
        }
        let is_agent = lease.agent.is_some();
        if !is_agent {
            self.tell_end(id);
        }
        let is_child = |lease: &SimLease| matches!(&lease.spawn.kind, LeaseKind::Terminal { parent_lease_id, .. } if *parent_lease_id == id);
        let children = self.leases.iter().filter(|(_, lease)| is_child(lease)).map(|(id, _)| *id);
        for child in children.collect::<Vec<_>>() {
            self.exit(child, ExitStatus::Signaled(15));
        }
    }

    /// True if output, or an exit, can be sent on the connection.
    pub(super) fn has_news(&self, id: LeaseId) -> bool {
        self.leases.get(&id).is_some_and(|lease| {
            let sent = lease.sent.filter(|_| !lease.gone);
            sent.is_some_and(|sent| sent < lease.said_up_to() || (lease.exit.is_some() && !lease.exit_told))
        })
    }

    /// Sends the next piece of output on the connection, split at a random byte; then the exit.
    pub(super) fn tell(&mut self, id: LeaseId, chance: &mut SeededRng) {
        let flaw = self.flaw;
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let Some(sent) = lease.sent else { return };
        let left = lease.said_up_to().saturating_sub(sent);
        if left == 0 {
            return self.tell_end(id);
        }
        let count = 1 + chance.below(usize::try_from(left).unwrap_or(1));
        let from = usize::try_from(sent).unwrap_or(0);
        let bytes: Vec<u8> = lease.said.iter().skip(from).take(count).copied().collect();
        lease.sent = Some(sent + bytes.len() as u64);
        if flaw == Some(SeededBug::AckBeforeCommit) {
            lease.acked = lease.acked.max(sent + bytes.len() as u64);
        }
        let output = Notice::Output { lease_id: id, offset: sent, bytes };
        self.outbox.push_back(SupervisorMessage::Notice(output));
    }

    fn tell_end(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let Some(status) = lease.exit else { return };
        lease.exit_told = true;
        let (end_offset, stdin_written) = (lease.said_up_to(), lease.written);
        let stderr_tail = String::new();
        let exited = Notice::Exited { lease_id: id, status, end_offset, stdin_written, stderr_tail };
        let changed = Notice::LeaseChanged { lease_id: id, state: lease.state, reason: String::new() };
        self.outbox.extend([SupervisorMessage::Notice(exited), SupervisorMessage::Notice(changed)]);
    }

    /// Releases some of an agent's pending output.
    pub(super) fn speak(&mut self, id: LeaseId, chance: &mut SeededRng) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        let Some(agent) = lease.agent.as_mut() else { return };
        if agent.unsaid.is_empty() {
            agent.act();
        }
        let all = agent.unsaid.len();
        let count = if chance.one_in(3) { 1 + chance.below(all) } else { all };
        lease.said.extend(agent.unsaid.drain(..count.min(all)));
        lease.output_end = lease.said_up_to();
    }

    /// Lists agents in a turn, with details.
    pub(super) fn busy(&self) -> Vec<String> {
        let living = self.leases.iter().filter(|(_, lease)| lease.lives());
        let turn = |(id, lease): (&LeaseId, &SimLease)| {
            let turn = lease.agent.as_ref()?.turn_now()?;
            let last =
                lease.stdin.last().map(|it| String::from_utf8_lossy(it).into_owned()).unwrap_or_default();
            let (written, all) = (lease.written, lease.stdin.len());
            Some(format!("{id} {turn}; read {written} of {all} messages, the last one {last}"))
        };
        living.filter_map(turn).collect()
    }

    /// True if an agent has pending output or an action to run.
    pub(super) fn is_eager(&self, id: LeaseId) -> bool {
        let lease = self.leases.get(&id).filter(|lease| lease.lives());
        lease
            .and_then(|lease| lease.agent.as_ref())
            .is_some_and(|agent| !agent.unsaid.is_empty() || agent.is_eager())
    }
}
