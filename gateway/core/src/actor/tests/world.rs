//! In-memory model of database, supervisor and agent for the actor's tests.

use super::letter_machine::{LetterMachine, new_session};
use super::*;
use crate::backend::StartSessionParams;
use crate::event::{EventKind, EventRow};
use crate::failure::Failure;
use crate::permission::Voter;
use crate::request::{CloseRequest, PromptRequest};
use crate::rows::{LeaseRow, PermissionMode, PermissionState, RequestState};
use crate::transition::Transition;
use crate::writes::{ActorSnapshot, Write};
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, LeaseId};
use acp_shared::protocol::{Attached, LeaseState, RefusalCode};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Process as tracked by the supervisor, independent of the gateway.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) stdout: Vec<u8>,
    pub(super) stdin: Vec<String>,
    pub(super) acked: u64,
    pub(super) exit: Option<ExitStatus>,
}

/// Content of the database.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    pub(super) session: SessionRow,
    pub(super) lease: Option<LeaseRow>,
    tail: Vec<(u64, Vec<u8>)>,
    pub(super) runs: Vec<RunRow>,
    outbox: Vec<OutboxRow>,
    pub(super) requests: BTreeMap<u64, AgentRequestRow>,
    pub(super) permissions: BTreeMap<u64, PermissionRow>,
    pub(super) events: Vec<EventRow>,
    pub(super) keys: Vec<String>,
    pub(super) ended_bindings: Vec<String>,
    /// Time of the last update of the bindings.
    pub(super) touched_ms: u64,
}

#[derive(Default)]
pub(super) struct World {
    pub(super) rows: Rows,
    pub(super) actor: Option<Actor>,
    pub(super) processes: BTreeMap<LeaseId, Process>,
    pub(super) now_ms: u64,
    pub(super) replies: Vec<(Ticket, Result<CommandReply, Failure>)>,
    pub(super) performed: Vec<(u64, bool)>,
    pub(super) recalled: Vec<u64>,
    pub(super) disk: BTreeMap<String, String>,
    /// Canonical paths of files that are reached through a link.
    pub(super) links: BTreeMap<String, String>,
    /// True if inspections and look-ups never complete, as after a kill of the gateway.
    pub(super) inspections_hang: bool,
    inputs: VecDeque<ActorInput>,
    /// Prompts whose acceptance is not confirmed: the client sends them again.
    unconfirmed: Vec<(Ticket, RunId, String)>,
    chunks: usize,
    chunk_bytes: usize,
    fuse: Option<usize>,
    pub(super) next_ticket: Ticket,
    pub(super) ignores_input: bool,
    /// Input is not accepted, and its confirmations do not arrive.
    pub(super) is_input_blocked: bool,
    /// Requests to end a process do not arrive: the gateway was killed before, or the end takes long.
    pub(super) ignores_close: bool,
    /// Every attach is answered with a request to wait.
    pub(super) refuse_attach: bool,
    pub(super) removed: bool,
    /// Response to the next spawns.
    pub(super) refuse_spawn: Option<(RefusalCode, Option<u64>)>,
    /// Parameters with which each process was opened.
    pub(super) start_params: Arc<Mutex<Vec<StartSessionParams>>>,
    /// True if the agent's process decides permissions itself.
    pub(super) decides: bool,
    /// True if the process is not the agent.
    pub(super) is_proxy: bool,
    pub(super) transitions: Vec<Transition>,
    pub(super) silent_exit: bool,
    pub(super) limits: ActorLimits,
}

impl Process {
    fn attached(&self) -> Attached {
        let stdin = self.stdin.len() as u64;
        Attached {
            state: if self.exit.is_some() { LeaseState::Closed } else { LeaseState::Open },
            stdout_base: self.acked,
            stdout_end: self.stdout.len() as u64,
            stdout_eof: self.exit.is_some(),
            stdin_written: stdin,
            stdin_accepted: stdin,
            exit: self.exit,
        }
    }
}

pub(super) fn profile() -> AgentProfile {
    AgentProfile {
        argv: vec!["agent".to_owned()],
        init_ms: 5_000,
        asks: true,
        client_fs: crate::config::ClientFs::Both,
        offer_terminal: true,
        permission: PermissionMode::Ask,
        refused: None,
        ..AgentProfile::of_running_lease(None, Failure::of(Code::AgentNotAllowed))
    }
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            session: new_session(),
            lease: None,
            tail: Vec::new(),
            runs: Vec::new(),
            outbox: Vec::new(),
            requests: BTreeMap::new(),
            permissions: BTreeMap::new(),
            events: Vec::new(),
            keys: Vec::new(),
            ended_bindings: Vec::new(),
            touched_ms: 0,
        }
    }
}

impl Rows {
    pub(super) fn apply(&mut self, write: Write) {
        match write {
            Write::Event { session_seq, run, kind, payload, extra } => {
                assert_eq!(session_seq, self.session.last_session_seq + 1, "session_seq has no gap");
                self.session.last_session_seq = session_seq;
                if let Some((run_id, seq)) = run {
                    let row = self.runs.iter_mut().find(|row| row.run_id == run_id).unwrap();
                    assert_eq!(seq, row.last_seq + 1, "seq has no gap");
                    row.last_seq = seq;
                }
                self.events.push(EventRow {
                    session_key: self.session.session_key.clone(),
                    session_seq,
                    run_id: run.map(|(run_id, _)| run_id),
                    seq: run.map(|(_, seq)| seq),
                    kind,
                    payload,
                    extra,
                    created_at_ms: 0,
                });
            }
            Write::Session(row) => {
                assert_eq!(row.last_session_seq, self.session.last_session_seq, "the row matches its events");
                self.session = *row;
            }
            Write::Run(row) => match self.runs.iter_mut().find(|have| have.run_id == row.run_id) {
                Some(have) => *have = *row,
                None => self.runs.push(*row),
            },
            Write::Reword { run_id, text } => {
                let row = self.runs.iter_mut().find(|row| row.run_id == run_id).unwrap();
                assert_eq!(row.state, RunState::Queued, "the text of a started run is not changed");
                row.text = text;
            }
            Write::NewLease(row) => {
                assert!(self.lease.is_none(), "one lease at a time");
                self.lease = Some(*row);
            }
            Write::LeaseProgress { lease_id, stdout_offset, next_stdin_seq, link_state } => {
                let lease = self.lease.as_mut().filter(|lease| lease.lease_id == lease_id).unwrap();
                lease.stdout_offset = stdout_offset;
                lease.next_stdin_seq = next_stdin_seq;
                if let Some(state) = link_state {
                    lease.link_state = state;
                }
            }
            Write::LeaseStatus { lease_id, usage } => {
                let lease = self.lease.as_mut().filter(|lease| lease.lease_id == lease_id).unwrap();
                lease.usage = usage;
                if usage == LeaseStatus::Ended {
                    self.lease = None;
                    self.outbox.clear();
                    self.tail.clear();
                }
            }
            Write::LeaseBroken { .. } => self.lease.as_mut().unwrap().broken = true,
            Write::Tail { offset, bytes, .. } => self.tail.push((offset, bytes)),
            Write::TailClear { .. } => self.tail.clear(),
            Write::Outbox(row) => self.outbox.push(*row),
            Write::Written { through_seq, .. } => self.outbox.retain(|row| row.seq > through_seq),
            Write::Request(row) if row.state == RequestState::Answered => {
                drop(self.requests.remove(&row.request.at))
            }
            Write::Request(row) => drop(self.requests.insert(row.request.at, *row)),
            Write::Permission(row) if row.state == PermissionState::Pending => {
                self.permissions.insert(row.request.at, *row);
            }
            Write::Permission(row) => drop(self.permissions.remove(&row.request.at)),
            Write::Idempotency { scope, key, .. } => self.keys.push(format!("{scope}/{key}")),
            Write::EndBindings { reason } => self.ended_bindings.push(reason),
            Write::ExpireBinding { reason, .. } => self.ended_bindings.push(reason),
            Write::TouchBindings { at_ms } => self.touched_ms = at_ms,
            Write::Wake(_) | Write::Completion { .. } | Write::RequireUnbound => {}
        }
        let running = self.runs.iter().filter(|run| run.state == RunState::Running).count();
        assert!(running <= 1, "I2: at most one running run");
    }

    fn snapshot(&self) -> ActorSnapshot {
        ActorSnapshot {
            session: self.session.clone(),
            lease: self.lease.clone(),
            tail: self.tail.clone(),
            runs: self.runs.iter().filter(|run| !run.state.is_ended()).cloned().collect(),
            outbox: self.outbox.clone(),
            requests: self.requests.values().cloned().collect(),
            permissions: self.permissions.values().cloned().collect(),
        }
    }
}

impl World {
    pub(super) fn new(chunks: usize, chunk_bytes: usize) -> Self {
        Self { now_ms: 1_000, chunks, chunk_bytes, ..Self::default() }
    }

    /// Starts the gateway; it is killed after `fuse` effects.
    pub(super) fn boot(&mut self, fuse: Option<usize>) {
        let mut machine: LetterMachine = match &self.rows.lease {
            Some(lease) if !lease.link_state.is_empty() => serde_json::from_str(&lease.link_state).unwrap(),
            _ => LetterMachine::default(),
        };
        machine.start_params = Arc::clone(&self.start_params);
        machine.decides = self.decides;
        machine.is_proxy = self.is_proxy;
        let refused = self.removed.then(|| Failure::of(Code::AgentNotAllowed));
        let profile = AgentProfile { refused, ..profile() };
        self.actor =
            Some(Actor::restore(self.rows.snapshot(), Box::new(machine), profile, self.limits.clone()));
        self.fuse = fuse;
        self.inputs = VecDeque::from([ActorInput::Started, ActorInput::Lease(LeaseEvent::Connected)]);
        for (_, run_id, text) in self.unconfirmed.clone() {
            self.send_prompt(run_id, &text);
        }
    }

    /// Starts the gateway again and runs until no input is left.
    pub(super) fn restart(&mut self) {
        self.boot(None);
        assert!(self.settle());
    }

    pub(super) fn advance_to_deadline(&mut self) {
        self.now_ms = self.now_ms.max(self.deadline_ms().unwrap());
        self.input(ActorInput::Tick);
    }

    pub(super) fn advance(&mut self, ms: u64) {
        self.now_ms += ms;
        self.input(ActorInput::Tick);
    }

    pub(super) fn deadline_ms(&self) -> Option<u64> {
        self.actor.as_ref().unwrap().deadline_ms()
    }

    /// Sends a prompt as a client, and again after every restart until it is confirmed.
    pub(super) fn prompt(&mut self, text: &str) {
        let run_id = RunId::mint();
        self.unconfirmed.push((0, run_id, text.to_owned()));
        self.send_prompt(run_id, text);
    }

    fn send_prompt(&mut self, run_id: RunId, text: &str) {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let Some(entry) = self.unconfirmed.iter_mut().find(|(_, id, _)| *id == run_id) else { return };
        entry.0 = ticket;
        let key = IdempotencyKey::parse(&run_id.to_string()).unwrap();
        let keyed = IdempotencyRecord { scope: "prompt".into(), key: key.clone(), fingerprint: "".into() };
        let command = ActorCommand::Prompt { run_id, request: prompt_request(text), key, caps: None };
        self.inputs.push_back(ActorInput::Command { ticket, command, keyed: Some(keyed) });
    }

    pub(super) fn command(&mut self, command: ActorCommand) -> Result<CommandReply, Failure> {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.inputs.push_back(ActorInput::Command { ticket, command, keyed: None });
        assert!(self.settle());
        self.replies.iter().find(|(of, _)| *of == ticket).unwrap().1.clone()
    }

    pub(super) fn close(&mut self) {
        self.command(ActorCommand::Close(CloseRequest::new("enough"))).unwrap();
    }

    pub(super) fn push(&mut self, command: ActorCommand) {
        self.next_ticket += 1;
        self.inputs.push_back(ActorInput::Command { ticket: self.next_ticket, command, keyed: None });
    }

    pub(super) fn input(&mut self, input: ActorInput) {
        self.inputs.push_back(input);
        assert!(self.settle());
    }

    /// Runs until no input is left; `false` if the gateway was killed in between.
    pub(super) fn settle(&mut self) -> bool {
        while let Some(input) = self.inputs.pop_front() {
            if self.is_repeated(&input) {
                continue;
            }
            let ctx = StepContext { now_ms: self.now_ms, fresh_lease: LeaseId::mint(), fresh_token: None };
            let Some(actor) = &mut self.actor else { return false };
            if input == ActorInput::LookedUp && !self.inspections_hang {
                actor.configure(Ok(AgentProfile { is_looked_up: true, ..profile() }), self.limits.clone());
            }
            let StepOutput { writes, effects, transitions, .. } = actor.step(&ctx, input);
            if self.consume_fuse() {
                return false;
            }
            for write in writes {
                self.rows.apply(write);
            }
            self.transitions.extend(transitions);
            for act in effects {
                if self.consume_fuse() {
                    return false;
                }
                self.act(act);
            }
            let waits = self.actor.as_ref().is_some_and(Actor::awaits_lookup) && !self.inspections_hang;
            let once = waits && !self.inputs.contains(&ActorInput::LookedUp);
            self.inputs.extend(once.then_some(ActorInput::LookedUp));
        }
        true
    }

    /// Deduplicates a repeated key, as the driver does.
    fn is_repeated(&mut self, input: &ActorInput) -> bool {
        let ActorInput::Command { ticket, keyed: Some(keyed), .. } = input else { return false };
        let known = self.rows.keys.contains(&format!("{}/{}", keyed.scope, keyed.key));
        if known {
            self.unconfirmed.retain(|(of, _, _)| of != ticket);
        }
        known
    }

    fn consume_fuse(&mut self) -> bool {
        match &mut self.fuse {
            None => false,
            Some(0) => {
                self.actor = None;
                self.inputs.clear();
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }

    fn act(&mut self, act: ActorEffect) {
        use ActorEffect::{DropRequest, LineFault, Log, Release};
        match act {
            ActorEffect::Spawn(_) if self.refuse_spawn.is_some() => {
                let Some((code, retry_after_ms)) = self.refuse_spawn else { return };
                let event = LeaseEvent::SpawnRefused { code, message: "no".to_owned(), retry_after_ms };
                self.inputs.push_back(ActorInput::Lease(event));
            }
            ActorEffect::Spawn(spawn) => {
                self.processes.entry(spawn.lease_id).or_default();
                self.inputs.push_back(ActorInput::Lease(LeaseEvent::Spawned));
            }
            ActorEffect::Attach { .. } if self.refuse_attach => {
                self.inputs.push_back(ActorInput::Lease(LeaseEvent::StreamsBusy));
            }
            ActorEffect::Attach { lease_id, from_offset } => self.attach(lease_id, from_offset),
            ActorEffect::Input { lease_id, seq, bytes } => self.write(lease_id, seq, &bytes),
            ActorEffect::Ack { lease_id, offset } => {
                if let Some(process) = self.processes.get_mut(&lease_id) {
                    assert!(offset >= process.acked && offset <= process.stdout.len() as u64);
                    process.acked = offset;
                }
            }
            ActorEffect::CloseLease { .. } if self.ignores_close => {}
            ActorEffect::CloseLease { lease_id, .. } => {
                if let Some(process) = self.processes.get_mut(&lease_id)
                    && process.exit.is_none()
                {
                    self.exit(lease_id, ExitStatus::Exited(0));
                }
            }
            Release { .. } | Log(_) | LineFault(_) | DropRequest { .. } => {}
            ActorEffect::Inspect { .. } if self.inspections_hang => {}
            ActorEffect::Inspect { row } => {
                let found = self.inspect(&row);
                self.inputs.push_back(ActorInput::Inspected { at: row.request.at, found });
            }
            ActorEffect::Recall { at } => self.recalled.push(at),
            ActorEffect::Perform { row, again } => self.performed.push((row.request.at, again)),
            ActorEffect::Reply { ticket, result } => {
                self.unconfirmed.retain(|(of, _, _)| *of != ticket);
                self.replies.push((ticket, result));
            }
        }
    }

    fn attach(&mut self, lease_id: LeaseId, from_offset: u64) {
        let Some(process) = self.processes.get(&lease_id) else {
            self.inputs.push_back(ActorInput::Lease(LeaseEvent::Unknown));
            return;
        };
        if from_offset < process.acked {
            self.inputs.push_back(ActorInput::Lease(LeaseEvent::OffsetGone));
            return;
        }
        self.inputs.push_back(ActorInput::Lease(LeaseEvent::Attached(process.attached())));
        let exit = process.exit;
        self.output(lease_id, from_offset);
        if let Some(status) = exit {
            self.report_exit(lease_id, status);
        }
    }

    /// Sends output in pieces that ignore line boundaries.
    fn output(&mut self, lease_id: LeaseId, from_offset: u64) {
        let process = &self.processes[&lease_id];
        let mut offset = from_offset;
        for piece in process.stdout[usize::try_from(from_offset).unwrap()..].chunks(self.chunk_bytes) {
            let bytes = piece.to_vec();
            let news = LeaseEvent::Output { offset, bytes };
            offset += piece.len() as u64;
            self.inputs.push_back(ActorInput::Lease(news));
        }
    }

    fn write(&mut self, lease_id: LeaseId, seq: u64, bytes: &[u8]) {
        if self.is_input_blocked {
            return;
        }
        let chunks = self.chunks;
        let process = self.processes.get_mut(&lease_id).unwrap();
        let before = process.stdout.len() as u64;
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        if seq <= process.stdin.len() as u64 {
            let index = usize::try_from(seq - 1).unwrap();
            assert_eq!(process.stdin[index], text, "a repeated number has the same bytes");
        } else {
            assert_eq!(seq, process.stdin.len() as u64 + 1, "no gap");
            match text.trim_end().split_once(' ').unwrap_or((text.trim_end(), "")) {
                _ if self.ignores_input || text.contains("mute") => {}
                ("init", _) => process.stdout.extend(b"Rsession-1\n"),
                ("prompt", prompt) if prompt.starts_with("prompt") => {
                    for n in 0..chunks {
                        process.stdout.extend(format!("T\"{prompt} chunk {n}\"\n").bytes());
                    }
                    process.stdout.extend(b"D\n");
                }
                ("prompt", script) => process.stdout.extend(script.replace(';', "\n").bytes().chain(*b"\n")),
                ("ping", _) => process.stdout.extend(b"A\n"),
                ("discard", _) => process.stdout.extend(b"F\n"),
                ("set", option) if option.contains("bad") => process.stdout.extend(b"Sno\n"),
                ("set", _) => process.stdout.extend(b"Syes\n"),
                ("cancel", _) => process.stdout.extend(b"Dcancelled\n"),
                _ => {}
            }
            process.stdin.push(text);
        }
        self.inputs.push_back(ActorInput::Lease(LeaseEvent::Written { seq }));
        if self.processes[&lease_id].stdout.len() as u64 > before {
            self.output(lease_id, before);
        }
    }

    pub(super) fn emit(&mut self, text: &str) {
        let lease_id = self.rows.session.lease_id.unwrap();
        let before = self.processes[&lease_id].stdout.len() as u64;
        self.processes.get_mut(&lease_id).unwrap().stdout.extend(text.bytes());
        self.output(lease_id, before);
        assert!(self.settle());
    }

    pub(super) fn exit(&mut self, lease_id: LeaseId, status: ExitStatus) {
        self.processes.get_mut(&lease_id).unwrap().exit = Some(status);
        self.report_exit(lease_id, status);
    }

    pub(super) fn end_process(&mut self, status: ExitStatus) {
        self.exit(self.rows.session.lease_id.unwrap(), status);
        assert!(self.settle());
    }

    /// Reports the end of the agent's process after its `last` output, which the connection does not deliver.
    pub(super) fn report_end_and_disconnect(&mut self, last: &[u8], status: ExitStatus) {
        let process = self.processes.get_mut(&self.rows.session.lease_id.unwrap()).unwrap();
        process.stdout.extend(last);
        process.exit = Some(status);
        let attached = process.attached();
        self.input(ActorInput::Lease(LeaseEvent::Attached(attached)));
        self.input(ActorInput::Disconnected);
    }

    fn report_exit(&mut self, lease_id: LeaseId, status: ExitStatus) {
        if self.silent_exit {
            return;
        }
        let process = &self.processes[&lease_id];
        let (end_offset, stdin_written) = (process.stdout.len() as u64, process.stdin.len() as u64);
        self.inputs.push_back(ActorInput::Lease(LeaseEvent::Exited { status, end_offset, stdin_written }));
    }

    pub(super) fn assert_delivered_once(&self, prompts: usize, chunks: usize) {
        let output = self.rows.events.iter().filter(|event| event.kind == EventKind::AgentMessage);
        let output: Vec<&str> = output.map(|event| event.payload.as_str()).collect();
        let want: Vec<String> = (0..prompts)
            .flat_map(|p| (0..chunks).map(move |n| format!("\"prompt {p} chunk {n}\"")))
            .collect();
        assert_eq!(output, want, "every chunk once, in order");
        assert!(self.rows.runs.iter().all(|run| run.state == RunState::Completed));
        assert_eq!(self.rows.runs.len(), prompts);
        let stdin = self.stdin();
        let arrived: Vec<&String> = stdin.iter().filter(|text| text.starts_with("prompt")).collect();
        let want: Vec<String> = (0..prompts).map(|p| format!("prompt prompt {p}\n")).collect();
        assert_eq!(arrived, want.iter().collect::<Vec<_>>(), "every prompt once, in order");
        assert_eq!(self.processes.len(), 1, "one process");
    }

    pub(super) fn run(&self, run_id: RunId) -> &RunRow {
        self.rows.runs.iter().find(|row| row.run_id == run_id).unwrap()
    }

    pub(super) fn count(&self, kind: EventKind) -> usize {
        self.rows.events.iter().filter(|event| event.kind == kind).count()
    }

    pub(super) fn count_stdin(&self, start: &str) -> usize {
        self.stdin().iter().filter(|text| text.starts_with(start)).count()
    }

    pub(super) fn kinds(&self) -> Vec<EventKind> {
        self.rows.events.iter().map(|event| event.kind).collect()
    }

    pub(super) fn stdin(&self) -> Vec<String> {
        self.processes.values().flat_map(|process| process.stdin.clone()).collect()
    }
}

pub(super) fn answer_command(permission_id: &str, option_id: &str) -> ActorCommand {
    let answer = QuestionAnswer::Option(option_id.to_owned());
    ActorCommand::AnswerPermission { permission_id: permission_id.to_owned(), answer, by: voter("user") }
}

pub(super) fn prompt_request(text: &str) -> PromptRequest {
    PromptRequest {
        text: text.to_owned(),
        author: "user".to_owned(),
        interactive: true,
        ..PromptRequest::default()
    }
}

/// A remote voter.
pub(super) fn voter(name: &str) -> Voter {
    Voter { name: name.to_owned(), id: format!("token:{name}"), is_local: false }
}
