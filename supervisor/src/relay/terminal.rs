//! Relay of a terminal (H16): its output pipe is always drained, and the last bytes are kept.

use super::{
    ExportReply, PipeRemainder, Relay, RelayCmd, RelayQueues, StreamPositions, StreamTotals, handover_fd,
    reopen, wait_if_some,
};
use crate::core::tail_buffer::TailBuffer;
use crate::relay::snapshot::{RelayState, TerminalState};
use acp_shared::ids::LeaseId;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{self, Notice, RefusalCode, Reply};
use std::io;
use std::sync::Arc;
use tokio::net::unix::pipe;

const READ_BYTES: usize = 64 * 1024;

/// Callback for the exit notice, called once when the command has ended and its output is complete.
pub type OnExit = Box<dyn FnOnce(Notice) + Send>;

struct TerminalRelay {
    lease_id: LeaseId,
    positions: Arc<StreamPositions>,
    output: Option<pipe::Receiver>,
    tail: TailBuffer,
    end: u64,
    exit: Option<ExitStatus>,
    on_exit: Option<OnExit>,
    buffer: Vec<u8>,
    bytes_max: usize,
}

/// Starts the relay of a terminal.
#[must_use]
pub fn start(lease_id: LeaseId, output: pipe::Receiver, bytes_max: usize, on_exit: OnExit) -> Relay {
    let (relay, queue) = Relay::new();
    let terminal = TerminalRelay {
        lease_id,
        positions: Arc::clone(&relay.positions),
        output: Some(output),
        tail: TailBuffer::new(bytes_max),
        end: 0,
        exit: None,
        on_exit: Some(on_exit),
        buffer: vec![0; READ_BYTES],
        bytes_max,
    };
    tokio::spawn(terminal.run(queue));
    relay
}

/// Resumes the relay of a terminal from an exported state.
#[must_use]
pub(crate) fn import(lease_id: LeaseId, frozen: TerminalState, on_exit: OnExit) -> Relay {
    let (relay, queue) = Relay::new();
    let output = reopen(lease_id, frozen.output, pipe::Receiver::from_owned_fd);
    let mut terminal = TerminalRelay {
        lease_id,
        positions: Arc::clone(&relay.positions),
        buffer: output.as_ref().map_or_else(Vec::new, |_| vec![0; READ_BYTES]),
        output,
        tail: TailBuffer::with(frozen.tail, frozen.bytes_max, frozen.truncated),
        end: frozen.end,
        exit: frozen.exit,
        on_exit: Some(on_exit).filter(|_| !frozen.told),
        bytes_max: frozen.bytes_max,
    };
    terminal.positions.set(terminal.totals());
    terminal.send_exit_notice();
    tokio::spawn(terminal.run(queue));
    relay
}

impl TerminalRelay {
    async fn run(mut self, mut queue: RelayQueues) {
        loop {
            let readable = self.output.as_ref().map(pipe::Receiver::readable);
            let command = tokio::select! {
                command = queue.next() => Some(command),
                _ = wait_if_some(readable) => None,
            };
            match command {
                Some(None | Some(RelayCmd::Release)) => return,
                Some(Some(RelayCmd::Export(ExportReply(to)))) => {
                    // The requester waits for the state.
                    drop(to.send(self.export()));
                    return;
                }
                Some(Some(command)) => self.on_command(command),
                None => drop(self.read()),
            }
            self.positions.set(self.totals());
            self.send_exit_notice();
        }
    }

    /// Exports the state.
    fn export(self) -> RelayState {
        RelayState::Terminal(TerminalState {
            output: handover_fd(self.lease_id, self.output.map(pipe::Receiver::into_nonblocking_fd)),
            bytes_max: self.bytes_max,
            truncated: self.tail.truncated(),
            end: self.end,
            exit: self.exit,
            told: self.on_exit.is_none(),
            tail: self.tail.into_bytes(),
        })
    }

    /// Reads one piece. Returns true if there was one.
    fn read(&mut self) -> bool {
        let Some(pipe) = &self.output else { return false };
        match pipe.try_read(&mut self.buffer) {
            Ok(count) if count > 0 => {
                self.tail.push(self.buffer.get(..count).unwrap_or_default());
                self.end += count as u64;
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Ok(_) | Err(_) => {
                self.output = None;
                false
            }
        }
    }

    /// Reads the rest of the pipe after the end of the tree.
    fn read_last(&mut self) {
        let Some(pipe) = self.output.take() else { return };
        let mut all = || {
            let mut rest = PipeRemainder::of(&pipe)?;
            while let Some(piece) = rest.next(&mut self.buffer)? {
                self.tail.push(piece);
                self.end += piece.len() as u64;
            }
            io::Result::Ok(())
        };
        if let Err(error) = all() {
            tracing::warn!(%error, lease_id = %self.lease_id, "reading last output of terminal failed");
        }
    }

    const fn totals(&self) -> StreamTotals {
        StreamTotals { stdout_base: self.end, stdout_end: self.end, stdin_written: 0 }
    }

    fn send_exit_notice(&mut self) {
        let (Some(status), None) = (self.exit, &self.output) else { return };
        if let Some(tell) = self.on_exit.take() {
            tell(Notice::Exited {
                lease_id: self.lease_id,
                status,
                end_offset: self.end,
                stdin_written: 0,
                stderr_tail: String::new(),
            });
        }
    }

    fn on_command(&mut self, command: RelayCmd) {
        match command {
            RelayCmd::Tail(to) => to.answer(Ok(Reply::Tail(protocol::Tail {
                bytes: self.tail.bytes(),
                truncated: self.tail.truncated(),
                exit: self.exit.filter(|_| self.output.is_none()),
            }))),
            RelayCmd::Attach { to, .. } | RelayCmd::Input { to, .. } | RelayCmd::Ack { to, .. } => {
                let why = "this lease belongs to a terminal; request its tail instead";
                to.refuse(RefusalCode::BadRequest, why);
            }
            RelayCmd::AdapterEnded(status) => self.exit = Some(status),
            RelayCmd::TreeGone(answer) => {
                self.read_last();
                self.exit = self.exit.or(Some(ExitStatus::Unknown));
                self.buffer = Vec::new();
                // The lease task may have ended; the positions contain the totals too.
                let _ = answer.send(self.totals());
            }
            RelayCmd::Ping(done) => drop(done.send(())),
            RelayCmd::CloseStdin | RelayCmd::State(_) | RelayCmd::Release | RelayCmd::Export(_) => {}
        }
    }
}
