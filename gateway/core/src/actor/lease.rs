//! Agent process: start, exactly-once handling of its streams, and end.

use super::input::LeaseEvent;
use super::{Actor, ActorEffect, Lease, LeaseEnd, StepOutput};
use crate::backend::{InputKind, StartSessionParams};
use crate::event::EventKind;
use crate::failure::Failure;
use crate::line_splitter::{LineError, LineSplitter};
use crate::mcp;
use crate::paths::hide_known_paths;
use crate::rows::{LeaseRow, LeaseStatus, OutboxRow};
use crate::session::SessionState;
use crate::writes::Write;
use acp_shared::codes::Code;
use acp_shared::launch::ExitStatus;
use acp_shared::protocol::{Attached, LeaseKind, RefusalCode, Spawn};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of messages in flight to the supervisor.
const INPUT_WINDOW: u64 = 32;
/// Delay before a retry after the supervisor was busy, in milliseconds.
const INPUT_RETRY_MS: u64 = 100;
/// Length above which an unfinished line is committed in pieces, so that it can be acknowledged (H2).
const TAIL_BYTES: usize = 64 * 1024;
/// Maximum number of messages waiting for an agent that sends requests and does not read.
const OUTBOX_ROWS_MAX: usize = 4_096;
/// Maximum total size of answers waiting for an agent, in bytes: more than one answer of the largest size.
const OUTBOX_BYTES_MAX: usize = 20 * 1024 * 1024;

impl Actor {
    /// Commits a new lease together with the first messages to its agent, then asks for the process (H5).
    pub(super) fn start_lease(&mut self, out: &mut StepOutput) {
        let lease_id = out.mint_lease();
        let own = &self.session.options;
        let directories = mcp::merge_directories(
            &self.session.cwd,
            [self.profile.additional_directories.as_slice(), own.additional_directories.as_slice()],
        );
        let mut mcp_servers = self.mcp_servers();
        let token = self.profile.session_tools.as_ref().zip(out.fresh_token).map(|(tools, token)| {
            let own = mcp::session_tools_server(&tools.command, &tools.socket, &token);
            mcp_servers = mcp::merge_servers([mcp_servers.as_slice(), std::slice::from_ref(&own)]);
            token.digest()
        });
        let own_auth_method = own.auth_method.clone();
        let private_home = self.profile.private_home.as_ref();
        let spawn = Spawn {
            lease_id,
            session_key: self.session.session_key.clone(),
            kind: LeaseKind::Agent,
            argv: self.profile.argv.clone(),
            env: self.profile.env.clone(),
            cwd: self.session.cwd.clone(),
            roots: std::iter::once(&self.session.cwd)
                .chain(&directories)
                .chain(private_home)
                .cloned()
                .collect(),
            graces: self.profile.graces,
        };
        let row = LeaseRow { agent_token: token, ..LeaseRow::new(spawn.clone()) };
        out.writes.push(Write::NewLease(Box::new(row.clone())));
        let lines = LineSplitter::new(0, self.limits.line_bytes_max);
        self.lease = Some(Lease { backend_dirty: true, ..Lease::new(row, lines, VecDeque::new()) });
        self.session.lease_id = Some(lease_id);
        self.reading = None;
        self.arm_opening_timer(out);
        let options = self.session.options.config_over(&self.profile.options);
        let steps = self.backend.start_session(&StartSessionParams {
            lease_id,
            session_key: self.session.session_key.to_string(),
            session_mode: self.session.mode,
            permission: self.session.options.permission,
            non_interactive: self.session.options.non_interactive,
            cwd: self.session.cwd.clone(),
            resume: self.session.agent_session_id.clone(),
            mode: self.session.options.mode_id.clone().or_else(|| self.profile.mode.clone()),
            asking_mode: self.profile.mode.clone(),
            asks: self.profile.asks,
            options,
            mcp_servers,
            additional_directories: directories,
            client_fs: self.profile.client_fs,
            offer_terminal: self.profile.offer_terminal,
            agent: self.session.agent.to_string(),
            auth_method: own_auth_method.or_else(|| self.profile.auth_method.clone()),
            listing: self.session.options.listing,
        });
        self.on_backend_steps(steps, out);
        out.effects.push(ActorEffect::Spawn(Box::new(spawn)));
    }

    pub(super) fn on_lease_event(&mut self, news: LeaseEvent, out: &mut StepOutput) {
        match news {
            LeaseEvent::Connected => self.on_connected(out),
            LeaseEvent::Spawned => self.on_spawned(out),
            LeaseEvent::SpawnRefused { code, message, retry_after_ms } => {
                self.on_spawn_refused(code, &message, retry_after_ms, out);
            }
            LeaseEvent::Attached(attached) => self.on_attached(&attached, out),
            LeaseEvent::Unknown => self.on_unknown(),
            LeaseEvent::OffsetGone => self.on_offset_gone(out),
            LeaseEvent::StreamsBusy => self.on_streams_busy(out),
            LeaseEvent::Output { offset, bytes } => self.on_output(offset, &bytes, out),
            LeaseEvent::Written { seq } => self.on_written(seq),
            LeaseEvent::InputRefused { seq, code } => self.on_input_refused(seq, code, out),
            LeaseEvent::Exited { status, end_offset, stdin_written } => {
                self.on_written(stdin_written);
                if let Some(lease) = &mut self.lease {
                    lease.ended = Some(LeaseEnd { status, end_offset, stdin_written: Some(stdin_written) });
                }
            }
            LeaseEvent::Changed => self.on_changed(out),
        }
    }

    fn on_connected(&mut self, out: &mut StepOutput) {
        let Some(lease) = &mut self.lease else { return };
        lease.attached = false;
        lease.sent_seq = 0;
        if let Some(end) = &lease.ended {
            // Its last output may have been in transit when the connection broke (H1).
            if lease.lines.next_offset() < end.end_offset {
                out.effects.push(lease.attach());
            }
            return;
        }
        if lease.row.usage == LeaseStatus::Intended && !lease.closing {
            // A spawn that was to be retried later is retried now, and only once.
            self.timers.retry_ms = None;
            out.effects.push(ActorEffect::Spawn(Box::new(lease.row.spawn.clone())));
        } else {
            out.effects.push(lease.attach());
        }
        if lease.closing {
            let reason = "close repeated after a reconnect".to_owned();
            out.effects.push(ActorEffect::CloseLease { lease_id: lease.row.lease_id, reason });
        }
    }

    fn on_spawned(&mut self, out: &mut StepOutput) {
        let Some(lease) = &mut self.lease else { return };
        if lease.row.usage == LeaseStatus::Intended {
            lease.row.usage = LeaseStatus::Open;
            lease.started_dirty = true;
            out.effects.push(lease.attach());
            // A download counts from the start of the process, which a restarted gateway must know.
            if self.timers.init_ms.is_some() && self.may_be_fetching() {
                self.write_start(out);
                self.arm_opening_timer(out);
            }
            return;
        }
        out.effects.push(lease.attach());
    }

    fn on_spawn_refused(
        &mut self,
        code: RefusalCode,
        message: &str,
        retry_after_ms: Option<u64>,
        out: &mut StepOutput,
    ) {
        let Some(lease) = &self.lease else { return };
        if lease.closing {
            self.release_lease(out);
            return;
        }
        let busy = matches!(code, RefusalCode::SessionBusy | RefusalCode::Busy | RefusalCode::ShuttingDown);
        if let Some(ms) = retry_after_ms.or(busy.then_some(INPUT_RETRY_MS)) {
            let wait_ms = ms.max(INPUT_RETRY_MS);
            self.timers.retry_ms = Some(out.now_ms + wait_ms);
            if matches!(code, RefusalCode::CrashLoop | RefusalCode::QuotaExceeded) {
                self.defer_spawn(code, message, wait_ms, out);
            }
            return;
        }
        let text = format!("The agent could not be started: {message}");
        let shown = hide_spawn_paths(&text, &lease.row.spawn);
        let failure = Failure::new(Code::SessionInitFailed, text).for_conversations(shown);
        let failure = failure.detail(code.as_str()).origin("supervisor");
        self.fail_session(&failure, out);
        self.release_lease(out);
    }

    /// Reports once per lease that the supervisor delays the start, and extends the agent's time limit by the
    /// delay.
    fn defer_spawn(&mut self, code: RefusalCode, message: &str, wait_ms: u64, out: &mut StepOutput) {
        self.timers.init_ms = self.timers.init_ms.map(|_| out.now_ms + wait_ms + self.opening_ms());
        let Some(lease) = &mut self.lease else { return };
        if std::mem::replace(&mut lease.start_delay_reported, true) {
            return;
        }
        let text = format!("The agent is not started yet: {message}");
        let shown = hide_spawn_paths(&text, &lease.row.spawn);
        self.report(
            json!({ "status": "agent_waits", "text": text, "conversation_text": shown, "code": code.as_str(),
                "retry_after_ms": wait_ms }),
            out,
        );
    }

    fn on_attached(&mut self, attached: &Attached, out: &mut StepOutput) {
        let Some(lease) = &mut self.lease else { return };
        let behind = attached.stdin_accepted >= lease.row.next_stdin_seq
            || attached.stdout_base > lease.row.stdout_offset
            || attached.stdout_end < lease.row.stdout_offset;
        let ended = attached.state.is_ended() || (attached.stdout_eof && attached.exit.is_some());
        if behind && !ended {
            self.on_state_lost(out);
            return;
        }
        lease.attached = true;
        self.timers.reconcile_ms = None;
        // Send accepted but unwritten messages again: only the previous connection awaited their result.
        lease.sent_seq = attached.stdin_written.max(lease.written_seq);
        if ended && lease.ended.is_none() {
            lease.ended = Some(LeaseEnd {
                status: attached.exit.unwrap_or(ExitStatus::Unknown),
                end_offset: attached.stdout_end.max(attached.stdout_base),
                stdin_written: attached.exit.map(|_| attached.stdin_written),
            });
        }
        self.on_written(attached.stdin_written);
        if behind {
            self.on_offset_gone(out);
        }
    }

    /// Handles output that the supervisor has dropped before it was committed here; see `on_state_lost` for a
    /// live process (H7).
    fn on_offset_gone(&mut self, out: &mut StepOutput) {
        let Some(lease) = &self.lease else { return };
        let Some(end) = &lease.ended else {
            self.on_state_lost(out);
            return;
        };
        if lease.lines.next_offset() < end.end_offset {
            self.gap("The agent has exited, and its last output is lost.", out);
        }
        self.on_unknown();
    }

    /// Retries the attach later because the supervisor cannot serve the streams at the moment.
    fn on_streams_busy(&mut self, out: &StepOutput) {
        let Some(lease) = &mut self.lease else { return };
        lease.attached = false;
        self.timers.retry_ms = Some(out.now_ms + INPUT_RETRY_MS);
    }

    /// Journals that output is missing. The journal of a closed session has ended.
    fn gap(&mut self, text: &str, out: &mut StepOutput) {
        if self.session.state != SessionState::Closed {
            let payload = json!({ "text": text }).to_string();
            out.event(&mut self.session, None, EventKind::Gap, payload);
        }
    }

    /// Handles a supervisor that is ahead of the gateway: the database is older than the agent's conversation
    /// (H7).
    fn on_state_lost(&mut self, out: &mut StepOutput) {
        let Some(lease) = &self.lease else { return };
        if lease.closing {
            // The end of the process was already requested on this connection.
            self.on_unknown();
            return;
        }
        let text = "The gateway's database is older than the running agent's state (restored from a \
                    backup?). Output or input is missing here; the agent was stopped.";
        self.end_runs_without_lease(out);
        self.abandon_output(text, "the gateway's state is behind the lease", out);
    }

    /// Handles a saved backend state that cannot be restored.
    pub(super) fn on_backend_state_lost(&mut self, out: &mut StepOutput) {
        let text = "The saved state of the connection with the agent cannot be read. Output may be missing \
                    here; the agent was stopped, and the next prompt starts it again.";
        self.abandon_output(text, "the saved state of the backend cannot be read", out);
    }

    /// Marks the lease as unreadable: all further output is skipped, also after a restart.
    fn mark_output_broken(&mut self, out: &mut StepOutput) {
        if let Some(lease) = &mut self.lease {
            lease.row.broken = true;
            out.writes.push(Write::LeaseBroken { lease_id: lease.row.lease_id });
        }
    }

    /// Discards the output of a process and requests its end; the lease stays, so that a crash repeats the
    /// request.
    fn abandon_output(&mut self, text: &str, why: &str, out: &mut StepOutput) {
        self.mark_output_broken(out);
        self.gap(text, out);
        self.close_lease(why, out);
    }

    fn on_output(&mut self, offset: u64, bytes: &[u8], out: &mut StepOutput) {
        let Some(lease) = &mut self.lease else { return };
        // The splitter is moved out so that the steps of a line may write to the lease.
        if lease.row.broken {
            lease.lines = LineSplitter::new(offset + bytes.len() as u64, self.limits.line_bytes_max);
            return;
        }
        let mut lines = std::mem::replace(&mut lease.lines, LineSplitter::new(0, 0));
        let mut any = false;
        let pushed = lines.push(offset, bytes, |at, line| {
            any = true;
            let steps = self.backend.stream(at, line);
            self.on_backend_steps(steps, out);
        });
        self.timers.silent_ms = self.timers.silent_ms.map(|_| out.now_ms + self.limits.silent_ms);
        if any {
            self.end_fetch(out);
        }
        if let Some(lease) = &mut self.lease {
            lease.lines = lines;
            lease.backend_dirty |= any;
            if any && lease.tail_committed {
                lease.tail_committed = false;
                out.writes.push(Write::TailClear { lease_id: lease.row.lease_id });
            }
        }
        match pushed {
            Ok(()) => {}
            Err(error @ LineError::Gap { .. }) => {
                out.effects.push(ActorEffect::Log(format!("{error}; attaching again")));
                self.on_connected(out);
            }
            Err(error @ LineError::TooLong { .. }) => {
                self.fail_protocol_limit(error.to_string(), offset + bytes.len() as u64, out);
            }
        }
    }

    /// Ends an agent that sends requests and does not read the answers.
    pub(super) fn check_outbox(&mut self, out: &mut StepOutput) {
        let Some(lease) = &self.lease else { return };
        let (rows, bytes) = (lease.outbox.len(), lease.waiting_answer_bytes());
        if rows > OUTBOX_ROWS_MAX || bytes > OUTBOX_BYTES_MAX {
            let text = format!(
                "The agent does not read its input: {rows} messages are pending, with {bytes} bytes of answers."
            );
            self.fail_protocol_limit(text, lease.lines.next_offset(), out);
        }
    }

    /// Handles an agent that exceeded a limit: reads no further output and ends the process.
    fn fail_protocol_limit(&mut self, text: String, seen: u64, out: &mut StepOutput) {
        if self.lease.as_ref().is_none_or(|lease| lease.row.broken) {
            return;
        }
        let failure = Failure::new(Code::ProtocolError, text).origin("agent");
        self.fail_session(&failure, out);
        self.close_lease("the agent exceeded a limit", out);
        self.mark_output_broken(out);
        if let Some(lease) = &mut self.lease {
            lease.lines = LineSplitter::new(seen, self.limits.line_bytes_max);
            if std::mem::take(&mut lease.tail_committed) {
                out.writes.push(Write::TailClear { lease_id: lease.row.lease_id });
            }
        }
    }

    fn on_written(&mut self, seq: u64) {
        let Some(lease) = &mut self.lease else { return };
        if seq <= lease.written_seq {
            return;
        }
        lease.written_seq = seq;
        lease.written_dirty = true;
        while lease.outbox.front().is_some_and(|row| row.seq <= seq) {
            lease.outbox.pop_front();
        }
    }

    /// Attaches again after the lease ended, to read all remaining output (H1).
    fn on_changed(&mut self, out: &mut StepOutput) {
        let Some(lease) = &self.lease else { return };
        if lease.ended.is_none() && lease.row.usage != LeaseStatus::Intended {
            out.effects.push(lease.attach());
        }
    }

    fn on_input_refused(&mut self, seq: u64, code: RefusalCode, out: &mut StepOutput) {
        let Some(lease) = &mut self.lease else { return };
        match code {
            RefusalCode::SeqConflict => self.on_state_lost(out),
            // The end arrives as an event of its own; a live agent that takes no more input is made to end.
            RefusalCode::LeaseEnded if !lease.closing && lease.ended.is_none() => {
                let reason = "the agent no longer accepts input".to_owned();
                out.effects.push(ActorEffect::CloseLease { lease_id: lease.row.lease_id, reason });
            }
            RefusalCode::LeaseEnded | RefusalCode::LeaseUnknown => {}
            _ => {
                lease.sent_seq = lease.sent_seq.min(seq.saturating_sub(1)).max(lease.written_seq);
                self.timers.retry_ms = Some(out.now_ms + INPUT_RETRY_MS);
            }
        }
    }

    pub(super) fn on_disconnected(&mut self, out: &StepOutput) {
        if let Some(lease) = &mut self.lease {
            lease.attached = false;
            lease.sent_seq = 0;
        }
        self.arm_reconcile_timer(out);
    }

    /// Queues a message for the agent: in the outbox now, to the supervisor after the commit.
    pub(super) fn send(&mut self, bytes: Vec<u8>, kind: InputKind, out: &mut StepOutput) {
        let Some(lease) = &mut self.lease else { return };
        let seq = lease.row.next_stdin_seq;
        lease.row.next_stdin_seq += 1;
        let row = OutboxRow { lease_id: lease.row.lease_id, seq, bytes: bytes.into(), kind, written: false };
        out.writes.push(Write::Outbox(Box::new(row.clone())));
        lease.outbox.push_back(row);
        lease.backend_dirty = true;
    }

    /// Sends messages from the outbox, a window at a time.
    pub(super) fn flush_stdin_outbox(&mut self, out: &mut StepOutput) {
        let Some(lease) = &mut self.lease else { return };
        if !lease.attached || lease.ended.is_some() || self.timers.retry_ms.is_some() {
            return;
        }
        for row in &lease.outbox {
            if row.seq > lease.sent_seq && row.seq <= lease.written_seq + INPUT_WINDOW {
                lease.sent_seq = row.seq;
                out.effects.push(ActorEffect::Input {
                    lease_id: row.lease_id,
                    seq: row.seq,
                    bytes: Arc::clone(&row.bytes),
                });
            }
        }
    }

    /// Writes the stream positions; output is acknowledged after their commit.
    pub(super) fn write_progress(&mut self, out: &mut StepOutput) {
        let Some(lease) = &mut self.lease else { return };
        let lease_id = lease.row.lease_id;
        let mut offset = lease.row.stdout_offset.max(lease.lines.line_start());
        let piece = lease.lines.tail_from(offset);
        if piece.len() > TAIL_BYTES {
            out.writes.push(Write::Tail { lease_id, offset, bytes: piece.to_vec() });
            lease.tail_committed = true;
            offset = lease.lines.next_offset();
        }
        let moved = offset > lease.row.stdout_offset;
        let link_state = lease.backend_dirty.then(|| self.backend.save());
        if moved || link_state.is_some() {
            lease.backend_dirty = false;
            lease.row.stdout_offset = offset;
            let next_stdin_seq = lease.row.next_stdin_seq;
            out.writes.push(Write::LeaseProgress {
                lease_id,
                stdout_offset: offset,
                next_stdin_seq,
                link_state,
            });
        }
        if lease.written_dirty && !out.writes.is_empty() {
            lease.written_dirty = false;
            out.writes.push(Write::Written { lease_id, through_seq: lease.written_seq });
        }
        if moved {
            out.effects.push(ActorEffect::Ack { lease_id, offset });
        }
        if !out.writes.is_empty() {
            self.write_start(out);
        }
    }

    /// Writes the start of the process, unless that or a later state is written.
    fn write_start(&mut self, out: &mut StepOutput) {
        let Some(lease) = &mut self.lease else { return };
        if std::mem::take(&mut lease.started_dirty) && lease.row.usage == LeaseStatus::Open {
            let lease_id = lease.row.lease_id;
            out.writes.push(Write::LeaseStatus { lease_id, usage: LeaseStatus::Open });
        }
    }

    pub(super) fn mark_backend_dirty(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.backend_dirty = true;
        }
    }

    /// Requests the orderly end of the process, once. The request is committed first: after a crash it is
    /// repeated, and the process is not mistaken for a usable one.
    pub(super) fn close_lease(&mut self, reason: &str, out: &mut StepOutput) {
        self.timers.init_ms = None;
        let Some(lease) = &mut self.lease else { return };
        if lease.closing || lease.ended.is_some() {
            return;
        }
        lease.closing = true;
        lease.row.usage = LeaseStatus::Closing;
        out.writes.push(Write::LeaseStatus { lease_id: lease.row.lease_id, usage: LeaseStatus::Closing });
        let reason = reason.to_owned();
        out.effects.push(ActorEffect::CloseLease { lease_id: lease.row.lease_id, reason });
    }
}

/// Replaces the paths of a start in a message of the supervisor.
fn hide_spawn_paths(message: &str, spawn: &Spawn) -> String {
    let paths = spawn.argv.iter().take(1).chain([&spawn.cwd]).chain(&spawn.roots);
    hide_known_paths(message, &paths.map(String::as_str).collect::<Vec<_>>())
}
