//! The streams of one lease: a task of its own between the adapter's pipes and the gateway's connection.

pub mod agent;
pub mod budget;
mod frozen;
mod kept;
pub mod spools;
pub(crate) mod stderr;
pub mod terminal;

pub(crate) use self::frozen::RelayState;

use self::budget::Budget;
use self::spools::Shelf;
use crate::config::{Config, size};
use crate::core::lease::Lease;
use crate::disk;
use crate::handover::Passed;
use crate::link::{Link, Responder};
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{LeaseInfo, LeaseState, RefusalCode};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

/// Requests that wait for one relay; a client that sends more is told [`RefusalCode::Busy`].
const QUEUED_MAX: usize = 1024;
/// What its lease tells one relay that has not been heard yet: each thing is told once or twice in the life of a lease.
const TOLD_MAX: usize = 64;
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

/// The way to one relay. What its lease says has a lane of its own: it never waits, neither behind what a gateway asks
/// for nor for the disk that the relay may be waiting for.
#[derive(Debug, Clone)]
pub struct Relay {
    told: mpsc::Sender<RelayCmd>,
    asked: mpsc::Sender<RelayCmd>,
    gauges: Arc<Gauges>,
}

/// What a relay takes its commands from.
#[derive(Debug)]
struct Queue {
    told: mpsc::Receiver<RelayCmd>,
    asked: mpsc::Receiver<RelayCmd>,
}

impl Queue {
    /// The next command, what it is told first; `None` when nobody can say anything any more. Safe to cancel.
    async fn next(&mut self) -> Option<RelayCmd> {
        tokio::select! {
            biased;
            told = self.told.recv() => told,
            Some(asked) = self.asked.recv() => Some(asked),
        }
    }
}

impl Relay {
    fn new() -> (Self, Queue) {
        let ((told, hears), (asked, takes)) = (mpsc::channel(TOLD_MAX), mpsc::channel(QUEUED_MAX));
        (Self { told, asked, gauges: Arc::default() }, Queue { told: hears, asked: takes })
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
        match self.asked.try_send(command) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(command)) => {
                refuse(command, RefusalCode::Busy, "this lease is busy; keep the message and try again");
            }
            Err(mpsc::error::TrySendError::Closed(command)) => {
                refuse(command, RefusalCode::LeaseEnded, "this lease has ended and nothing of it is kept");
            }
        }
    }

    /// Tells the relay something about its lease, without waiting. One that has ended no longer cares.
    pub fn tell(&self, command: RelayCmd) {
        if let Err(mpsc::error::TrySendError::Full(command)) = self.told.try_send(command) {
            tracing::error!(?command, "a relay has not heard what it was told before");
        }
    }

    /// Tells it that the tree is gone and learns the totals. They are those of now where it still waits for a disk:
    /// then what it holds is kept when the disk answers.
    pub async fn finish(&self) -> Totals {
        let (totals, answer) = oneshot::channel();
        self.tell(RelayCmd::TreeGone(totals));
        match tokio::time::timeout(disk::WAIT, answer).await {
            Ok(Ok(totals)) => totals,
            Ok(Err(_)) | Err(_) => self.totals(),
        }
    }

    /// Waits until it has done what it was told before. One that has ended has.
    pub(crate) async fn ping(&self) {
        let (done, answer) = oneshot::channel();
        // It takes everything that it was told first.
        if self.asked.send(RelayCmd::Ping(done)).await.is_ok() {
            drop(answer.await);
        }
    }

    /// Turns it into a value, after everything that it was told before; `None` when it has ended.
    pub(crate) async fn freeze(&self) -> Option<RelayState> {
        let (to, state) = oneshot::channel();
        self.asked.send(RelayCmd::Freeze(Freeze(to))).await.ok()?;
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
    stdin_bytes_max: usize,
    stdin_hashes_max: usize,
    budget: Arc<Budget>,
    /// Where what an ending agent said goes.
    shelf: Shelf,
}

impl Limits {
    /// From the configuration, with the memory and the disk that the gateway's relays share.
    #[must_use]
    pub fn new(config: &Config, shelf: Shelf, budget: Arc<Budget>) -> Self {
        Self {
            ring_bytes_max: size(config.ring_bytes_max),
            credit_bytes: config.credit_bytes,
            spool_bytes_max: config.spool_bytes_max,
            stdin_bytes_max: size(config.stdin_bytes_max),
            stdin_hashes_max: size(config.stdin_hashes_max),
            budget,
            shelf,
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

/// What lies in a pipe now, and no more: a process outside of the tree may hold its other end and write for ever. The
/// pipe itself is asked, since what the runtime has not noticed yet is there all the same.
struct Rest<'a> {
    pipe: &'a pipe::Receiver,
    left: usize,
}

impl<'a> Rest<'a> {
    fn of(pipe: &'a pipe::Receiver) -> io::Result<Self> {
        Ok(Self { pipe, left: size(rustix::io::ioctl_fionread(pipe)?) })
    }

    /// Reads the next piece of it into `buffer`; `None` when there is no more.
    fn next<'b>(&mut self, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        let space = self.left.min(buffer.len());
        let count = rustix::io::read(self.pipe, buffer.get_mut(..space).unwrap_or_default())?;
        self.left -= count;
        Ok(buffer.get(..count).filter(|piece| !piece.is_empty()))
    }
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

    /// A relay that waits for its disk takes nothing; requests of its gateway fill what is before it.
    #[tokio::test]
    async fn what_a_lease_says_waits_for_no_relay() {
        let (relay, mut queue) = Relay::new();
        let (link, _outgoing) = crate::link::Link::new(crate::link::LinkId(1));
        for id in 0..2 * QUEUED_MAX as u64 {
            let to = link.begin(id, usize::MAX).unwrap();
            relay.request(RelayCmd::Ack { offset: 0, to });
        }
        relay.tell(RelayCmd::State(LeaseState::Closing));
        relay.tell(RelayCmd::CloseStdin);
        relay.tell(RelayCmd::AdapterEnded(ExitStatus::Unknown));
        // And it is heard first.
        assert!(matches!(queue.next().await, Some(RelayCmd::State(LeaseState::Closing))));
        assert!(matches!(queue.next().await, Some(RelayCmd::CloseStdin)));
        assert!(matches!(queue.next().await, Some(RelayCmd::AdapterEnded(_))));
        assert!(matches!(queue.next().await, Some(RelayCmd::Ack { .. })));
    }

    #[tokio::test]
    async fn who_goes_on_writing_does_not_hold_up_the_end() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::io::write(&write, &[b'a'; 10]).unwrap();
        let read = pipe::Receiver::from_owned_fd(read).unwrap();
        let mut taken: Vec<u8> = Vec::new();
        let (mut rest, mut buffer) = (Rest::of(&read).unwrap(), [0; 4]);
        while let Some(piece) = rest.next(&mut buffer).unwrap() {
            assert!(taken.len() < 10, "more than there was");
            taken.extend(piece);
            // A process outside of the tree has the other end, and is never done.
            rustix::io::write(&write, &[b'b'; 10]).unwrap();
        }
        assert_eq!(taken, [b'a'; 10]);
    }
}
