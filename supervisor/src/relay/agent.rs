//! Relay of an agent: stdout with offsets and back-pressure, numbered stdin, and stderr into the session log.

use super::budget::BudgetShare;
use super::stderr::Stderr;
use super::{
    ExportReply, OutputReader, PipeRemainder, Pipes, Relay, RelayCmd, RelayLimits, RelayQueues,
    StreamPositions, StreamTotals, handover_fd, refuse, reopen, totals_of, wait_if_some,
};
use crate::core::lease::Lease;
use crate::core::ring::{Ring, sendable};
use crate::core::stdin::{OfferResult, Stdin};
use crate::relay::buffer::{OutputBuffer, Spool, SpoolTarget};
use crate::relay::connection::Responder;
use crate::relay::session_logs::SessionLog;
use crate::relay::snapshot::{AgentState, RelayState};
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Attached, LeaseState, Notice, OUTPUT_BYTES_MAX, Refusal, RefusalCode, Reply};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::OwnedPermit;

/// Maximum number of bytes of one read.
const READ_BYTES: usize = 64 * 1024;
/// Size of the read buffer until output fills it: most agents are idle or write short lines.
const BUFFER_BYTES: usize = 4 * 1024;
const BUSY_RETRY_MS: u64 = 50;

struct AgentRelay {
    lease_id: LeaseId,
    limits: RelayLimits,
    positions: Arc<StreamPositions>,
    share: BudgetShare,
    state: LeaseState,
    stdin: Option<pipe::Sender>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    output: OutputBuffer,
    input: Stdin,
    waiting: BTreeMap<u64, Vec<Responder>>,
    reader: Option<OutputReader>,
    exit: Option<ExitStatus>,
    stderr_reader: Stderr,
    ended: bool,
    buffer: Vec<u8>,
}

/// Event that woke the relay.
enum RelayEvent {
    Command(Option<RelayCmd>),
    Stdout,
    Stderr,
    Stdin,
    Room(Option<OwnedPermit<Notice>>),
    ReaderGone,
}

/// Starts the relay of a running agent.
#[must_use]
pub(crate) fn start(lease_id: LeaseId, limits: RelayLimits, pipes: Pipes, stderr_reader: Stderr) -> Relay {
    let (relay, queue) = Relay::new();
    let output = OutputBuffer::Memory(Ring::new(limits.ring_bytes_max));
    let mut agent = AgentRelay::new(lease_id, limits, Arc::clone(&relay.positions), output, stderr_reader);
    agent.stdin = Some(pipes.stdin);
    agent.stdout = Some(pipes.stdout);
    agent.stderr = Some(pipes.stderr);
    tokio::spawn(agent.run(queue));
    relay
}

/// Starts the relay of an ended agent, possibly of an earlier supervisor. The output in its spool can still
/// be read and acknowledged (H1). The relay task itself looks for the spool, so that the caller does not wait
/// for the disk.
#[must_use]
pub fn archive(lease: &Lease, limits: RelayLimits, log: SessionLog) -> Relay {
    let (relay, mut queue) = Relay::new();
    let (lease_id, totals, positions) = (lease.lease_id, totals_of(lease), Arc::clone(&relay.positions));
    let (state, exit) = (lease.state, lease.exit.or(Some(ExitStatus::Unknown)));
    positions.set(totals);
    tokio::spawn(async move {
        let Some(output) = find_kept_output(lease_id, &limits, totals, &mut queue).await else { return };
        let mut agent = AgentRelay::new(lease_id, limits, positions, output, Stderr::ended(lease_id, log));
        // Acknowledged output stays acknowledged; the spool may be older than the row.
        let _ = agent.output.ack(totals.stdout_base);
        agent.input.restore(totals.stdin_written);
        (agent.state, agent.exit, agent.ended, agent.buffer) = (state, exit, true, Vec::new());
        agent.publish();
        agent.run(queue).await;
    });
    relay
}

/// Finds the kept output of an ended agent; `None` if the lease was released or the relay is unused. While
/// the directory is unreadable, requests are refused as busy: reporting that no output exists would lose it.
async fn find_kept_output(
    lease_id: LeaseId,
    limits: &RelayLimits,
    totals: StreamTotals,
    queue: &mut RelayQueues,
) -> Option<OutputBuffer> {
    loop {
        let gateway_spools = limits.gateway_spools.clone();
        match limits.gateway_spools.disk.run(move || Spool::find(&gateway_spools, lease_id)).await.flatten() {
            Ok(Some(spool)) => return Some(OutputBuffer::Disk(spool)),
            Ok(None) => return Some(OutputBuffer::Memory(Ring::ended_at(totals.stdout_end))),
            Err(error) => {
                tracing::error!(%error, %lease_id, "spool lookup of ended lease failed");
                let command = queue.next().await?;
                if matches!(command, RelayCmd::Release) {
                    return None;
                }
                let why = "the stored output of this lease cannot be read now; try again";
                refuse(command, RefusalCode::Busy, why);
            }
        }
    }
}

/// Resumes the relay of an agent from an exported state. The reader must attach again.
#[must_use]
pub(crate) fn import(lease_id: LeaseId, limits: RelayLimits, log: SessionLog, frozen: AgentState) -> Relay {
    let (relay, queue) = Relay::new();
    let output = OutputBuffer::import(frozen.kept, limits.ring_bytes_max, &limits.gateway_spools);
    let stderr_reader = match frozen.ended {
        true => Stderr::ended(lease_id, log),
        false => Stderr::import(lease_id, log, frozen.said),
    };
    let mut agent = AgentRelay::new(lease_id, limits, Arc::clone(&relay.positions), output, stderr_reader);
    agent.state = frozen.state;
    agent.stdin = reopen(lease_id, frozen.stdin, pipe::Sender::from_owned_fd);
    agent.stdout = reopen(lease_id, frozen.stdout, pipe::Receiver::from_owned_fd);
    agent.stderr = reopen(lease_id, frozen.stderr, pipe::Receiver::from_owned_fd);
    agent.input = Stdin::import(frozen.input, agent.limits.stdin_bytes_max, agent.limits.stdin_hashes_max);
    agent.exit = frozen.exit;
    agent.ended = frozen.ended;
    agent.publish();
    tokio::spawn(agent.run(queue));
    relay
}

impl AgentRelay {
    fn new(
        lease_id: LeaseId,
        limits: RelayLimits,
        positions: Arc<StreamPositions>,
        output: OutputBuffer,
        stderr_reader: Stderr,
    ) -> Self {
        let input = Stdin::new(limits.stdin_bytes_max, limits.stdin_hashes_max);
        let share = BudgetShare::new(Arc::clone(&limits.budget));
        Self {
            lease_id,
            limits,
            positions,
            share,
            state: LeaseState::Open,
            stdin: None,
            stdout: None,
            stderr: None,
            output,
            input,
            waiting: BTreeMap::new(),
            reader: None,
            exit: None,
            stderr_reader,
            ended: false,
            buffer: vec![0; BUFFER_BYTES],
        }
    }

    async fn run(mut self, mut queue: RelayQueues) {
        loop {
            let read = self.read_space().await;
            let to = self.reader.as_ref().filter(|_| self.has_pending_output());
            let permit = to.map(|r| r.link.output().clone().reserve_owned());
            // An error of a pipe appears again when the pipe is used.
            let stdout = self.stdout.as_ref().filter(|_| read > 0).map(pipe::Receiver::readable);
            let stderr = self.stderr.as_ref().map(pipe::Receiver::readable);
            let stdin =
                self.stdin.as_ref().filter(|_| self.input.next().is_some()).map(pipe::Sender::writable);
            let gone = self.reader.as_ref().map(|r| r.link.end().cancelled());
            let wake = tokio::select! {
                command = queue.next() => RelayEvent::Command(command),
                _ = wait_if_some(stdout) => RelayEvent::Stdout,
                permit = wait_if_some(permit) => RelayEvent::Room(permit.ok()),
                _ = wait_if_some(stdin) => RelayEvent::Stdin,
                _ = wait_if_some(stderr) => RelayEvent::Stderr,
                () = wait_if_some(gone) => RelayEvent::ReaderGone,
            };
            match wake {
                // The owner has ended. Files on disk stay for the next supervisor.
                RelayEvent::Command(None) => return,
                RelayEvent::Command(Some(RelayCmd::Release)) => break,
                RelayEvent::Command(Some(RelayCmd::Export(ExportReply(to)))) => {
                    // The requester waits for the state.
                    drop(to.send(self.export()));
                    return;
                }
                RelayEvent::Command(Some(command)) => self.on_command(command).await,
                RelayEvent::Stdout => self.read_stdout(read).await,
                RelayEvent::Stderr => self.read_stderr(),
                RelayEvent::Stdin => self.write_stdin(),
                RelayEvent::Room(Some(permit)) => self.send(permit).await,
                RelayEvent::Room(None) | RelayEvent::ReaderGone => self.reader = None,
            }
            self.publish();
            if self.ended
                && self.output.base() == self.output.end()
                && self.reader.is_none()
                && self.is_spooled()
            {
                // All output is acknowledged: the file is deleted, the totals are kept.
                let end = self.output.end();
                std::mem::replace(&mut self.output, OutputBuffer::Memory(Ring::ended_at(end)))
                    .discard()
                    .await;
            }
        }
        self.output.discard().await;
    }

    /// Exports the state. Clients that wait for a reply must ask again on their next connection.
    fn export(self) -> RelayState {
        let id = self.lease_id;
        RelayState::Agent(Box::new(AgentState {
            state: self.state,
            stdin: handover_fd(id, self.stdin.map(pipe::Sender::into_nonblocking_fd)),
            stdout: handover_fd(id, self.stdout.map(pipe::Receiver::into_nonblocking_fd)),
            stderr: handover_fd(id, self.stderr.map(pipe::Receiver::into_nonblocking_fd)),
            kept: self.output.export(),
            input: self.input.export(),
            exit: self.exit,
            said: self.stderr_reader.export(),
            ended: self.ended,
        }))
    }

    const fn is_spooled(&self) -> bool {
        matches!(self.output, OutputBuffer::Disk(_))
    }

    async fn read_space(&mut self) -> usize {
        let place = SpoolTarget {
            gateway_spools: &self.limits.gateway_spools,
            lease_id: self.lease_id,
            bytes_max: self.limits.spool_bytes_max,
        };
        let closing = self.state == LeaseState::Closing;
        // Each agent may hold one piece even if the budget is spent, so that its reader makes progress.
        if self.output.memory_bytes() >= READ_BYTES as u64 && self.share.is_spent() {
            if !closing {
                return 0;
            }
            self.output.spool(&place).await;
        }
        self.output.read_space(closing, READ_BYTES, &place).await
    }

    fn publish(&mut self) {
        self.positions.set(self.totals());
        self.share.set(self.output.memory_bytes() + self.input.queued_bytes() as u64);
    }

    fn totals(&self) -> StreamTotals {
        StreamTotals {
            stdout_base: self.output.base(),
            stdout_end: self.output.end(),
            stdin_written: self.input.written(),
        }
    }

    fn sendable(&self, reader: &OutputReader) -> usize {
        let (base, end) = (self.output.base(), self.output.end());
        sendable(base, reader.sent, end, self.limits.credit_bytes, OUTPUT_BYTES_MAX)
    }

    /// True if output is pending for the reader, or the exit notice after all output.
    fn has_pending_output(&self) -> bool {
        self.reader
            .as_ref()
            .is_some_and(|reader| self.sendable(reader) > 0 || self.pending_exit(reader).is_some())
    }

    fn pending_exit(&self, reader: &OutputReader) -> Option<ExitStatus> {
        // All stderr is in the log before the gateway gets the exit notice.
        let read = self.stdout.is_none() && self.stderr.is_none();
        let complete = read && reader.sent == self.output.end() && !reader.exit_sent;
        self.exit.filter(|_| complete)
    }

    async fn send(&mut self, permit: OwnedPermit<Notice>) {
        let Some(mut reader) = self.reader.take() else { return };
        match self.sendable(&reader) {
            0 => {
                if let Some(status) = self.pending_exit(&reader) {
                    reader.exit_sent = true;
                    permit.send(Notice::Exited {
                        lease_id: self.lease_id,
                        status,
                        end_offset: self.output.end(),
                        stdin_written: self.input.written(),
                        // Stderr may contain unknown secrets; operators read it in the session log.
                        stderr_tail: String::new(),
                    });
                }
            }
            count => match self.output.read(reader.sent, count).await {
                Ok(bytes) => {
                    let offset = reader.sent;
                    reader.sent += bytes.len() as u64;
                    permit.send(Notice::Output { lease_id: self.lease_id, offset, bytes });
                }
                Err(error) => {
                    tracing::error!(%error, lease_id = %self.lease_id, "reading spooled output failed");
                    if error.kind() == io::ErrorKind::NotFound {
                        // The next attach reports the missing output, as for any other gap (H7).
                        self.output.mark_lost();
                    }
                    reader.link.end().cancel();
                    return;
                }
            },
        }
        self.reader = Some(reader);
    }

    async fn read_stdout(&mut self, room: usize) {
        let Some(pipe) = &self.stdout else { return };
        let room = room.min(self.buffer.len());
        let space = self.buffer.get_mut(..room).unwrap_or_default();
        match pipe.try_read(space) {
            Ok(0) => self.stdout = None,
            Ok(count) => {
                let bytes = self.buffer.get(..count).unwrap_or_default();
                if let Err(error) = self.output.push(bytes).await {
                    self.lose_output(&error);
                }
                if count == self.buffer.len() {
                    self.buffer.resize(READ_BYTES, 0);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.lose_output(&error),
        }
    }

    /// Logs that output is lost and closes the pipe, instead of discarding further output silently.
    fn lose_output(&mut self, error: &io::Error) {
        tracing::error!(%error, lease_id = %self.lease_id, "output of ending agent truncated");
        self.stdout = None;
    }

    fn read_stderr(&mut self) {
        let Some(pipe) = &self.stderr else { return };
        match pipe.try_read(&mut self.buffer) {
            Ok(count) if count > 0 => self.stderr_reader.push(self.buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => {
                self.stderr = None;
                self.stderr_reader.end();
            }
        }
    }

    fn write_stdin(&mut self) {
        while let (Some(pipe), Some(bytes)) = (&self.stdin, self.input.next()) {
            let count = if bytes.is_empty() { Ok(0) } else { pipe.try_write(bytes) };
            match count {
                Ok(count) => {
                    if let Some(seq) = self.input.record_written(count) {
                        for to in self.waiting.remove(&seq).into_iter().flatten() {
                            to.answer(Ok(Reply::Written { seq }));
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.close_stdin("the adapter has closed its standard input"),
            }
        }
    }

    fn close_stdin(&mut self, why: &str) {
        self.stdin = None;
        self.input.abandon();
        for to in std::mem::take(&mut self.waiting).into_values().flatten() {
            to.refuse(RefusalCode::LeaseEnded, why);
        }
    }

    async fn on_command(&mut self, command: RelayCmd) {
        match command {
            RelayCmd::Attach { from, to } => self.attach(from, to),
            RelayCmd::Input { seq, bytes, to } => self.on_input(seq, bytes, to),
            RelayCmd::Ack { offset, to } => to.answer(match self.output.ack(offset) {
                Ok(()) => Ok(Reply::Done),
                Err(out) => Err(Refusal::new(RefusalCode::OffsetUnavailable, out.to_string())),
            }),
            RelayCmd::Tail(to) => {
                to.refuse(RefusalCode::BadRequest, "this lease belongs to an agent; attach to it instead")
            }
            RelayCmd::CloseStdin => self.close_stdin("the lease is closing"),
            RelayCmd::State(state) => self.state = state,
            RelayCmd::AdapterEnded(status) => {
                self.exit = Some(status);
                self.close_stdin("the adapter has ended");
            }
            RelayCmd::TreeGone(answer) => {
                self.finish().await;
                // The lease task may have ended; the positions contain the totals too.
                let _ = answer.send(self.totals());
            }
            RelayCmd::Ping(done) => drop(done.send(())),
            RelayCmd::Release | RelayCmd::Export(_) => {}
        }
    }

    fn attach(&mut self, from: u64, to: Responder) {
        // The client's committed offset acknowledges all earlier output.
        if let Err(out) = self.output.ack(from) {
            to.refuse(RefusalCode::OffsetUnavailable, out.to_string());
            return;
        }
        let link = to.link().clone();
        to.answer(Ok(Reply::Attached(Attached {
            state: self.state,
            stdout_base: self.output.base(),
            stdout_end: self.output.end(),
            stdout_eof: self.stdout.is_none(),
            stdin_written: self.input.written(),
            stdin_accepted: self.input.accepted(),
            exit: self.exit,
        })));
        self.reader = Some(OutputReader { link, sent: self.output.base(), exit_sent: false });
    }

    fn on_input(&mut self, seq: u64, bytes: Vec<u8>, to: Responder) {
        let hash = Sha256::digest(&bytes).into();
        if self.stdin.is_none() && seq > self.input.accepted() {
            to.refuse(RefusalCode::LeaseEnded, "the adapter no longer takes input");
            return;
        }
        let large = self.input.queued_bytes() + bytes.len() > READ_BYTES;
        if large && seq > self.input.accepted() && self.share.is_spent() {
            to.answer(Err(Refusal::new(
                RefusalCode::Busy,
                "the streams of this gateway use all their memory",
            )
            .retry_after(BUSY_RETRY_MS)));
            return;
        }
        match self.input.offer(seq, hash, bytes) {
            OfferResult::Accepted => {
                self.waiting.entry(seq).or_default().push(to);
                self.write_stdin();
            }
            OfferResult::Pending if self.stdin.is_some() => {
                let waiting = self.waiting.entry(seq).or_default();
                // A reconnected gateway asks again: replies to its earlier connections are pointless.
                waiting.retain(|earlier| !earlier.link().end().is_cancelled());
                waiting.push(to);
            }
            OfferResult::Pending => {
                to.refuse(RefusalCode::LeaseEnded, "the adapter ended before this message was written")
            }
            OfferResult::Written => to.answer(Ok(Reply::Written { seq })),
            OfferResult::Conflict => {
                to.refuse(RefusalCode::SeqConflict, format!("input {seq} was sent before with other bytes"));
            }
            OfferResult::Forgotten => to.refuse(
                RefusalCode::SeqConflict,
                format!("input {seq} was written so long ago that it can no longer be compared"),
            ),
            OfferResult::Gap { expected } => {
                to.refuse(RefusalCode::SeqGap, format!("received input {seq}, expected {expected}"));
            }
            OfferResult::Busy => {
                to.answer(Err(Refusal::new(RefusalCode::Busy, "the adapter reads its input too slowly")
                    .retry_after(BUSY_RETRY_MS)))
            }
        }
    }

    /// The tree is gone: reads the rest of the pipes, which is final.
    async fn finish(&mut self) {
        if let Some(pipe) = self.stdout.take()
            && let Err(error) = self.drain_stdout(&pipe).await
        {
            self.lose_output(&error);
        }
        if let Some(pipe) = self.stderr.take()
            && let Ok(mut rest) = PipeRemainder::of(&pipe)
        {
            // A read error loses only the last lines of the log.
            while let Ok(Some(piece)) = rest.next(&mut self.buffer) {
                self.stderr_reader.push(piece);
            }
        }
        self.close_stdin("the lease has ended");
        let status = self.exit.unwrap_or(ExitStatus::Unknown);
        self.exit = Some(status);
        self.stderr_reader.exited(status);
        self.ended = true;
        // If the disk does not answer, these are the final totals of the lease.
        self.publish();
        if self.output.base() < self.output.end() {
            let place = SpoolTarget {
                gateway_spools: &self.limits.gateway_spools,
                lease_id: self.lease_id,
                bytes_max: self.limits.spool_bytes_max,
            };
            self.output.spool(&place).await;
        }
        self.buffer = Vec::new();
    }

    async fn drain_stdout(&mut self, pipe: &pipe::Receiver) -> io::Result<()> {
        let mut rest = PipeRemainder::of(pipe)?;
        while let Some(piece) = rest.next(&mut self.buffer)? {
            self.output.push(piece).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::config::Config;
    use crate::relay::budget::ByteBudget;
    use crate::relay::connection::{ConnectionHandle, ConnectionId};
    use crate::relay::session_logs::SessionLogs;
    use crate::relay::spool_dir::SpoolDir;
    use acp_shared::ids::{GatewayInstanceId, SessionKey};

    #[tokio::test]
    async fn closed_connections_have_no_pending_replies() {
        let (config, budget) = (Config::default(), Arc::new(ByteBudget::new(1 << 20)));
        let spools = SpoolDir::new("/nonexistent".as_ref(), 1 << 20);
        let limits = RelayLimits::new(&config, spools.gateway_spools(GatewayInstanceId::mint()), budget);
        let (gateway, session) = (GatewayInstanceId::mint(), SessionKey::parse("s").unwrap());
        let log = SessionLogs::new("/nonexistent".as_ref(), 1 << 20).log(gateway, &session);
        let lease_id = LeaseId::mint();
        let stderr_reader = Stderr::ended(lease_id, log);
        let mut agent = AgentRelay::new(
            lease_id,
            limits,
            Arc::default(),
            OutputBuffer::Memory(Ring::new(8)),
            stderr_reader,
        );
        let (_full, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        while rustix::io::write(&write, &[0; 4096]).is_ok() {}
        agent.stdin = Some(pipe::Sender::from_owned_fd(write).unwrap());
        for id in 0..10 {
            let (link, _outgoing) = ConnectionHandle::new(ConnectionId(id));
            agent.on_input(1, b"x".to_vec(), link.register_request(1, 1).unwrap());
            assert_eq!(agent.waiting.values().map(Vec::len).sum::<usize>(), 1, "{id}");
            link.end().cancel();
        }
    }
}
