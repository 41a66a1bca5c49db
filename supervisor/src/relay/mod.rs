//! Relays: one task per lease between the adapter's pipes and the gateway's connection.
//! [`connection`] is the sending side of every connection; the relays feed its output queue.

pub mod agent;
pub mod budget;
mod buffer;
pub mod connection;
pub mod session_logs;
mod snapshot;
pub mod spool_dir;
pub(crate) mod stderr;
pub mod terminal;

pub(crate) use self::snapshot::RelayState;

use self::budget::ByteBudget;
use self::spool_dir::GatewaySpools;
use crate::config::{Config, size};
use crate::core::lease::Lease;
use crate::relay::connection::{ConnectionHandle, Responder};
use crate::sys::blocking_io;
use crate::sys::inherited_fd::HandoverFd;
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{LeaseInfo, LeaseState, RefusalCode};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

/// Maximum number of queued client requests per relay; further ones are refused with [`RefusalCode::Busy`].
const QUEUED_MAX: usize = 1024;
/// Maximum number of queued commands from the lease. Each command is sent only once or twice per lease.
const LEASE_COMMANDS_MAX: usize = 64;
const BUSY_RETRY_MS: u64 = 50;

/// Waits for a future; without one, for ever. For a branch of `select!` that may have nothing to wait for.
pub(crate) async fn wait_if_some<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Command to a relay.
#[derive(Debug)]
pub enum RelayCmd {
    /// Send output from this offset on to the requesting connection.
    Attach {
        /// Offset of the first wanted byte.
        from: u64,
        /// Requester.
        to: Responder,
    },
    /// Write a numbered message.
    Input {
        /// Number of the message.
        seq: u64,
        /// Content of the message.
        bytes: Vec<u8>,
        /// Requester.
        to: Responder,
    },
    /// Mark everything before this offset as committed.
    Ack {
        /// Offset of the first uncommitted byte.
        offset: u64,
        /// Requester.
        to: Responder,
    },
    /// Return the latest output of a terminal.
    Tail(Responder),
    /// Close the adapter's standard input.
    CloseStdin,
    /// Record a new state of the lease.
    State(LeaseState),
    /// Record the exit status of the adapter.
    AdapterEnded(ExitStatus),
    /// The whole tree is gone: read the rest of the pipes, keep it, and return the totals.
    TreeGone(oneshot::Sender<StreamTotals>),
    /// Delete all kept output and end.
    Release,
    /// Confirm that all earlier commands are done.
    Ping(oneshot::Sender<()>),
    /// Export the state and end (H14).
    Export(ExportReply),
}

/// Channel for the exported state of a relay.
#[derive(Debug)]
pub struct ExportReply(oneshot::Sender<RelayState>);

/// Final positions of a lease's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamTotals {
    /// First output byte not acknowledged.
    pub stdout_base: u64,
    /// One past the last output byte.
    pub stdout_end: u64,
    /// Highest input number wholly written.
    pub stdin_written: u64,
}

/// Current positions of a lease's streams, shared with other tasks.
#[derive(Debug, Default)]
pub struct StreamPositions {
    stdout_base: AtomicU64,
    stdout_end: AtomicU64,
    stdin_written: AtomicU64,
}

impl StreamPositions {
    fn set(&self, totals: StreamTotals) {
        self.stdout_base.store(totals.stdout_base, Ordering::Relaxed);
        self.stdout_end.store(totals.stdout_end, Ordering::Relaxed);
        self.stdin_written.store(totals.stdin_written, Ordering::Relaxed);
    }

    /// Returns the current positions.
    #[must_use]
    pub fn totals(&self) -> StreamTotals {
        StreamTotals {
            stdout_base: self.stdout_base.load(Ordering::Relaxed),
            stdout_end: self.stdout_end.load(Ordering::Relaxed),
            stdin_written: self.stdin_written.load(Ordering::Relaxed),
        }
    }
}

/// Handle of one relay. Commands from the lease have a separate queue, so that they wait neither for client
/// requests nor for a disk operation of the relay.
#[derive(Debug, Clone)]
pub struct Relay {
    lease_commands: mpsc::Sender<RelayCmd>,
    client_requests: mpsc::Sender<RelayCmd>,
    positions: Arc<StreamPositions>,
}

/// Command queues of one relay.
#[derive(Debug)]
struct RelayQueues {
    lease_commands: mpsc::Receiver<RelayCmd>,
    client_requests: mpsc::Receiver<RelayCmd>,
}

impl RelayQueues {
    /// Returns the next command, those of the lease first; `None` once all senders are gone. Cancel-safe.
    async fn next(&mut self) -> Option<RelayCmd> {
        tokio::select! {
            biased;
            command = self.lease_commands.recv() => command,
            Some(command) = self.client_requests.recv() => Some(command),
        }
    }
}

impl Relay {
    fn new() -> (Self, RelayQueues) {
        let ((lease_commands, lease_queue), (client_requests, client_queue)) =
            (mpsc::channel(LEASE_COMMANDS_MAX), mpsc::channel(QUEUED_MAX));
        (
            Self { lease_commands, client_requests, positions: Arc::default() },
            RelayQueues { lease_commands: lease_queue, client_requests: client_queue },
        )
    }

    /// Returns the current positions of the streams.
    #[must_use]
    pub fn totals(&self) -> StreamTotals {
        self.positions.totals()
    }

    /// Returns the number of unacknowledged output bytes.
    #[must_use]
    pub fn buffered_bytes(&self) -> u64 {
        let totals = self.totals();
        totals.stdout_end.saturating_sub(totals.stdout_base)
    }

    /// Copies the current positions into a lease's description.
    pub fn describe(&self, info: &mut LeaseInfo) {
        let totals = self.totals();
        info.stdout_acked = totals.stdout_base;
        info.stdout_end = totals.stdout_end;
        info.stdin_written = totals.stdin_written;
        info.buffered_bytes = self.buffered_bytes();
    }

    /// Queues a client's request without waiting.
    pub fn request(&self, command: RelayCmd) {
        match self.client_requests.try_send(command) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(command)) => {
                refuse(command, RefusalCode::Busy, "this lease is busy; keep the message and try again");
            }
            Err(mpsc::error::TrySendError::Closed(command)) => {
                let why = "this lease has ended and its streams are no longer stored";
                refuse(command, RefusalCode::LeaseEnded, why);
            }
        }
    }

    /// Queues a command of the lease without waiting. Ignored if the relay has ended.
    pub fn send(&self, command: RelayCmd) {
        if let Err(mpsc::error::TrySendError::Full(command)) = self.lease_commands.try_send(command) {
            tracing::error!(?command, "relay command dropped; queue full");
        }
    }

    /// Reports the end of the tree and returns the final totals. If the relay waits for a disk for too long,
    /// returns the current totals; the relay keeps its output when the disk answers.
    pub async fn finish(&self) -> StreamTotals {
        let (totals, answer) = oneshot::channel();
        self.send(RelayCmd::TreeGone(totals));
        match tokio::time::timeout(blocking_io::WAIT, answer).await {
            Ok(Ok(totals)) => totals,
            Ok(Err(_)) | Err(_) => self.totals(),
        }
    }

    /// Waits until all earlier commands are done. Returns at once if the relay has ended.
    pub(crate) async fn ping(&self) {
        let (done, answer) = oneshot::channel();
        // Commands of the lease take precedence, so they are done first.
        if self.client_requests.send(RelayCmd::Ping(done)).await.is_ok() {
            drop(answer.await);
        }
    }

    /// Exports the state of the relay after all earlier commands; `None` if the relay has ended.
    pub(crate) async fn export(&self) -> Option<RelayState> {
        let (to, state) = oneshot::channel();
        self.client_requests.send(RelayCmd::Export(ExportReply(to))).await.ok()?;
        state.await.ok()
    }
}

/// Reopens a stream of a handover. On failure, logs the error and closes the stream.
fn reopen<T>(
    lease_id: LeaseId,
    stream: Option<HandoverFd>,
    watch: impl FnOnce(OwnedFd) -> io::Result<T>,
) -> Option<T> {
    let opened = stream?.take().and_then(watch);
    opened.inspect_err(|error| tracing::error!(%lease_id, %error, "stream lost in handover")).ok()
}

/// Prepares a stream for a handover.
fn handover_fd(lease_id: LeaseId, stream: Option<io::Result<OwnedFd>>) -> Option<HandoverFd> {
    let fd = stream?.inspect_err(|error| tracing::error!(%lease_id, %error, "stream handover failed"));
    fd.ok().map(HandoverFd::new)
}

fn refuse(command: RelayCmd, code: RefusalCode, message: &str) {
    let to = match command {
        RelayCmd::Attach { to, .. }
        | RelayCmd::Input { to, .. }
        | RelayCmd::Ack { to, .. }
        | RelayCmd::Tail(to) => to,
        RelayCmd::CloseStdin
        | RelayCmd::State(_)
        | RelayCmd::AdapterEnded(_)
        | RelayCmd::TreeGone(_)
        | RelayCmd::Release
        | RelayCmd::Ping(_)
        | RelayCmd::Export(_) => return,
    };
    let refusal = acp_shared::protocol::Refusal::new(code, message);
    to.answer(Err(if code == RefusalCode::Busy { refusal.retry_after(BUSY_RETRY_MS) } else { refusal }));
}

/// Size limits of a relay.
#[derive(Debug, Clone)]
pub struct RelayLimits {
    ring_bytes_max: usize,
    credit_bytes: u64,
    spool_bytes_max: u64,
    stdin_bytes_max: usize,
    stdin_hashes_max: usize,
    budget: Arc<ByteBudget>,
    /// Destination of spooled output.
    gateway_spools: GatewaySpools,
}

impl RelayLimits {
    /// Creates the limits from the configuration, with the memory and disk budgets of the gateway.
    #[must_use]
    pub fn new(config: &Config, gateway_spools: GatewaySpools, budget: Arc<ByteBudget>) -> Self {
        Self {
            ring_bytes_max: size(config.ring_bytes_max),
            credit_bytes: config.credit_bytes,
            spool_bytes_max: config.spool_bytes_max,
            stdin_bytes_max: size(config.stdin_bytes_max),
            stdin_hashes_max: size(config.stdin_hashes_max),
            budget,
            gateway_spools,
        }
    }
}

/// The supervisor's ends of an agent's pipes.
#[derive(Debug)]
pub struct Pipes {
    /// The adapter's standard input.
    pub stdin: pipe::Sender,
    /// The adapter's standard output.
    pub stdout: pipe::Receiver,
    /// The adapter's standard error.
    pub stderr: pipe::Receiver,
}

/// Receiver of the output, and its progress.
#[derive(Debug)]
struct OutputReader {
    link: ConnectionHandle,
    sent: u64,
    exit_sent: bool,
}

/// Bytes in a pipe at this moment and no more: a process outside of the tree may hold the other end and write
/// forever. The size comes from the pipe, because the runtime may not have noticed all data yet.
struct PipeRemainder<'a> {
    pipe: &'a pipe::Receiver,
    left: usize,
}

impl<'a> PipeRemainder<'a> {
    fn of(pipe: &'a pipe::Receiver) -> io::Result<Self> {
        Ok(Self { pipe, left: size(rustix::io::ioctl_fionread(pipe)?) })
    }

    /// Reads the next piece into `buffer`; `None` at the end.
    fn next<'b>(&mut self, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        let space = self.left.min(buffer.len());
        let count = rustix::io::read(self.pipe, buffer.get_mut(..space).unwrap_or_default())?;
        self.left -= count;
        Ok(buffer.get(..count).filter(|piece| !piece.is_empty()))
    }
}

/// Returns the stream positions in a lease's row.
fn totals_of(lease: &Lease) -> StreamTotals {
    StreamTotals {
        stdout_base: lease.stdout_base,
        stdout_end: lease.stdout_end,
        stdin_written: lease.stdin_written,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    /// The queue of gateway requests is full while the relay waits for its disk.
    #[tokio::test]
    async fn lease_commands_bypass_full_request_queue() {
        let (relay, mut queue) = Relay::new();
        let (connection, _outgoing) =
            crate::relay::connection::ConnectionHandle::new(crate::relay::connection::ConnectionId(1));
        for id in 0..2 * QUEUED_MAX as u64 {
            let to = connection.register_request(id, usize::MAX).unwrap();
            relay.request(RelayCmd::Ack { offset: 0, to });
        }
        relay.send(RelayCmd::State(LeaseState::Closing));
        relay.send(RelayCmd::CloseStdin);
        relay.send(RelayCmd::AdapterEnded(ExitStatus::Unknown));
        // Commands of the lease come first.
        assert!(matches!(queue.next().await, Some(RelayCmd::State(LeaseState::Closing))));
        assert!(matches!(queue.next().await, Some(RelayCmd::CloseStdin)));
        assert!(matches!(queue.next().await, Some(RelayCmd::AdapterEnded(_))));
        assert!(matches!(queue.next().await, Some(RelayCmd::Ack { .. })));
    }

    #[tokio::test]
    async fn persistent_writer_does_not_delay_end() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::io::write(&write, &[b'a'; 10]).unwrap();
        let read = pipe::Receiver::from_owned_fd(read).unwrap();
        let mut taken: Vec<u8> = Vec::new();
        let (mut rest, mut buffer) = (PipeRemainder::of(&read).unwrap(), [0; 4]);
        while let Some(piece) = rest.next(&mut buffer).unwrap() {
            assert!(taken.len() < 10, "more data than was written");
            taken.extend(piece);
            // A process outside of the tree holds the pipe and keeps writing.
            rustix::io::write(&write, &[b'b'; 10]).unwrap();
        }
        assert_eq!(taken, [b'a'; 10]);
    }
}
