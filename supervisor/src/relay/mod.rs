//! The streams of one lease: a task of its own between the adapter's pipes and the gateway's connection.

pub mod agent;
pub mod budget;
mod frozen;
mod kept;
pub mod spools;
mod stderr;
pub mod terminal;

pub(crate) use self::frozen::RelayState;

use self::budget::Budget;
use crate::config::{Config, size};
use crate::core::lease::Lease;
use crate::handover::Passed;
use crate::link::{Link, Responder};
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{LeaseInfo, LeaseState, RefusalCode};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

/// Commands that wait for one relay; a client that sends more is told [`RefusalCode::Busy`].
const QUEUED_MAX: usize = 1024;
const BUSY_RETRY_MS: u64 = 50;

/// What a relay is told.
#[derive(Debug)]
pub enum RelayCmd {
    /// Send output from this offset on to the connection that asks.
    Attach {
        /// The first byte wanted.
        from: u64,
        /// Who asks.
        to: Responder,
    },
    /// Write a numbered message.
    Input {
        /// Its number.
        seq: u64,
        /// Its bytes.
        bytes: Vec<u8>,
        /// Who asks.
        to: Responder,
    },
    /// Everything before this offset is committed.
    Ack {
        /// The first byte that is not.
        offset: u64,
        /// Who asks.
        to: Responder,
    },
    /// Tell the last output of a terminal.
    Tail(Responder),
    /// Close the adapter's standard input.
    CloseStdin,
    /// The lease is in another state now.
    State(LeaseState),
    /// The adapter ended.
    AdapterEnded(ExitStatus),
    /// The whole tree is gone: take what is left in the pipes, keep it, and tell the totals.
    TreeGone(oneshot::Sender<Totals>),
    /// Nothing more is wanted of it.
    Release,
    /// Say that the commands before this one are done.
    Ping(oneshot::Sender<()>),
    /// Turn into a value and end (H14).
    Freeze(Freeze),
}

/// Where a relay that turns into a value goes.
#[derive(Debug)]
pub struct Freeze(oneshot::Sender<RelayState>);

/// Where the streams of a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// First output byte not acknowledged.
    pub stdout_base: u64,
    /// One past the last output byte.
    pub stdout_end: u64,
    /// Highest input number wholly written.
    pub stdin_written: u64,
}

/// Where the streams of a lease stand, readable by everybody.
#[derive(Debug, Default)]
pub struct Gauges {
    stdout_base: AtomicU64,
    stdout_end: AtomicU64,
    stdin_written: AtomicU64,
}

impl Gauges {
    fn set(&self, totals: Totals) {
        self.stdout_base.store(totals.stdout_base, Ordering::Relaxed);
        self.stdout_end.store(totals.stdout_end, Ordering::Relaxed);
        self.stdin_written.store(totals.stdin_written, Ordering::Relaxed);
    }

    /// Where they stand.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            stdout_base: self.stdout_base.load(Ordering::Relaxed),
            stdout_end: self.stdout_end.load(Ordering::Relaxed),
            stdin_written: self.stdin_written.load(Ordering::Relaxed),
        }
    }
}

/// The way to one relay.
#[derive(Debug, Clone)]
pub struct Relay {
    commands: mpsc::Sender<RelayCmd>,
    gauges: Arc<Gauges>,
}

impl Relay {
    fn new() -> (Self, mpsc::Receiver<RelayCmd>) {
        let (commands, queue) = mpsc::channel(QUEUED_MAX);
        (Self { commands, gauges: Arc::default() }, queue)
    }

    /// Where its streams stand.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.gauges.totals()
    }

    /// Output bytes that it holds.
    #[must_use]
    pub fn buffered_bytes(&self) -> u64 {
        let totals = self.totals();
        totals.stdout_end.saturating_sub(totals.stdout_base)
    }

    /// Puts the live numbers into a lease's description.
    pub fn describe(&self, info: &mut LeaseInfo) {
        let totals = self.totals();
        info.stdout_acked = totals.stdout_base;
        info.stdout_end = totals.stdout_end;
        info.stdin_written = totals.stdin_written;
        info.buffered_bytes = self.buffered_bytes();
    }

    /// Passes a client's request on, without waiting.
    pub fn request(&self, command: RelayCmd) {
        match self.commands.try_send(command) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(command)) => {
                refuse(command, RefusalCode::Busy, "this lease is busy; keep the message and try again");
            }
            Err(mpsc::error::TrySendError::Closed(command)) => {
                refuse(command, RefusalCode::LeaseEnded, "this lease has ended and nothing of it is kept");
            }
        }
    }

    /// Tells the relay something about its lease. One that has ended no longer cares.
    pub async fn tell(&self, command: RelayCmd) {
        let _ = self.commands.send(command).await;
    }

    /// Tells it that the tree is gone and learns the totals.
    pub async fn finish(&self) -> Totals {
        let (totals, answer) = oneshot::channel();
        self.tell(RelayCmd::TreeGone(totals)).await;
        answer.await.unwrap_or_else(|_| self.totals())
    }

    /// Waits until it has done what it was told before. One that has ended has.
    pub(crate) async fn ping(&self) {
        let (done, answer) = oneshot::channel();
        self.tell(RelayCmd::Ping(done)).await;
        drop(answer.await);
    }

    /// Turns it into a value, after everything that it was told before; `None` when it has ended.
    pub(crate) async fn freeze(&self) -> Option<RelayState> {
        let (to, state) = oneshot::channel();
        self.tell(RelayCmd::Freeze(Freeze(to))).await;
        state.await.ok()
    }
}

/// A stream of a handover, put back to work. One that cannot be is said, and is closed.
fn reopen<T>(
    lease_id: LeaseId,
    stream: Option<Passed>,
    watch: impl FnOnce(OwnedFd) -> io::Result<T>,
) -> Option<T> {
    let opened = stream?.take().and_then(watch);
    opened
        .inspect_err(|error| tracing::error!(%lease_id, %error, "a stream did not survive the handover"))
        .ok()
}

/// A stream on its way into a handover.
fn pass(lease_id: LeaseId, stream: Option<io::Result<OwnedFd>>) -> Option<Passed> {
    let fd =
        stream?.inspect_err(|error| tracing::error!(%lease_id, %error, "a stream cannot be handed over"));
    fd.ok().map(Passed::new)
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
        | RelayCmd::Freeze(_) => return,
    };
    let refusal = acp_shared::protocol::Refusal::new(code, message);
    to.answer(Err(if code == RefusalCode::Busy { refusal.retry_after(BUSY_RETRY_MS) } else { refusal }));
}

/// The sizes a relay works with.
#[derive(Debug, Clone)]
pub struct Limits {
    ring_bytes_max: usize,
    credit_bytes: u64,
    spool_bytes_max: u64,
    spool_dir: PathBuf,
    stdin_bytes_max: usize,
    stdin_hashes_max: usize,
    stderr_bytes_max: usize,
    budget: Arc<Budget>,
    /// What the gateway has on disk.
    spooled: Arc<Budget>,
}

impl Limits {
    /// From the configuration, with the memory and the disk that the gateway's relays share.
    #[must_use]
    pub fn new(config: &Config, spool_dir: PathBuf, budget: Arc<Budget>, spooled: Arc<Budget>) -> Self {
        Self {
            ring_bytes_max: size(config.ring_bytes_max),
            credit_bytes: config.credit_bytes,
            spool_bytes_max: config.spool_bytes_max,
            spool_dir,
            stdin_bytes_max: size(config.stdin_bytes_max),
            stdin_hashes_max: size(config.stdin_hashes_max),
            stderr_bytes_max: size(config.stderr_bytes_max),
            budget,
            spooled,
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

/// Who the output goes to, and how far it got.
#[derive(Debug)]
struct Reader {
    link: Link,
    sent: u64,
    told_exit: bool,
}

/// Takes what lies in a pipe now, and no more: a process outside of the tree may hold its other end and write for
/// ever. The pipe itself is asked, since what the runtime has not noticed yet is there all the same.
fn drain(
    pipe: &pipe::Receiver,
    buffer: &mut [u8],
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut left = size(rustix::io::ioctl_fionread(pipe)?);
    while left > 0 {
        let space = left.min(buffer.len());
        let count = rustix::io::read(pipe, buffer.get_mut(..space).unwrap_or_default())?;
        if count == 0 {
            break;
        }
        take(buffer.get(..count).unwrap_or_default())?;
        left -= count;
    }
    Ok(())
}

/// Where a lease's relay begins: nothing yet, or what its row says.
fn totals_of(lease: &Lease) -> Totals {
    Totals {
        stdout_base: lease.stdout_base,
        stdout_end: lease.stdout_end,
        stdin_written: lease.stdin_written,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[tokio::test]
    async fn who_goes_on_writing_does_not_hold_up_the_end() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::io::write(&write, &[b'a'; 10]).unwrap();
        let read = pipe::Receiver::from_owned_fd(read).unwrap();
        let mut taken: Vec<u8> = Vec::new();
        let piece = |bytes: &[u8]| {
            assert!(taken.len() < 10, "more than there was");
            taken.extend(bytes);
            // A process outside of the tree has the other end, and is never done.
            rustix::io::write(&write, &[b'b'; 10])?;
            Ok(())
        };
        drain(&read, &mut [0; 4], piece).unwrap();
        assert_eq!(taken, [b'a'; 10]);
    }
}
