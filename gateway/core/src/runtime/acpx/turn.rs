//! The open session: prompt, cancel, probe and close, and the ends of commands and timers.

use super::bridge::{BridgeCommand, BridgeInput, WatchCommand};
use super::errors::{AcpxError, FailedStage, Verdict, classify};
use super::state::{AcpxPhase, AcpxTurn, CommandKind, PENDING_MAX, PendingCommand};
use super::{AcpxMachine, control};
use crate::backend::{BackendStep, CloseMode, InputKind, SubmitParams, prompt_too_long};
use crate::failure::Failure;
use crate::files;
use crate::jsonrpc::quoted_len;
use acp_shared::codes::Code;
use acp_shared::ids::RunId;
use serde_json::Value;

/// Maximum length of the content blocks of a prompt as a JSON string, in bytes: the watch command repeats them in a line of
/// the bridge, which would otherwise leave them out.
const PROMPT_BYTES_MAX: usize = 11 * 1024 * 1024;
/// Time for a sign that a prompt was accepted, after its command ended without one, in milliseconds.
const ACCEPT_MS: u64 = 5_000;
/// Time before a cancel without an effect is sent again, in milliseconds: the turn may not have begun.
const CANCEL_RETRY_MS: u64 = 500;
/// Maximum number of such retries; the actor's own limit ends the process.
const CANCEL_RETRIES_MAX: u32 = 20;

impl AcpxMachine {
    pub(super) fn prompt(&mut self, input: &SubmitParams) -> Vec<BackendStep> {
        let run_id = input.run_id;
        if self.state.phase != AcpxPhase::Ready || self.state.turn.is_some() {
            let failure = Failure::of(Code::Runtime).detail("LINK_NOT_READY").origin("gateway");
            return vec![BackendStep::TurnFailed { run_id, failure }];
        }
        // Always content blocks: acpx reads a text that begins with `[` as such.
        let blocks = files::content_blocks(&input.text, input.files.as_deref(), self.state.takes);
        let blocks = blocks.to_string();
        if quoted_len(&blocks) > PROMPT_BYTES_MAX {
            return vec![BackendStep::TurnFailed { run_id, failure: prompt_too_long(PROMPT_BYTES_MAX) }];
        }
        self.state.turn = Some(AcpxTurn::new(run_id, blocks));
        self.send_prompt().into_iter().collect()
    }

    /// Sends the prompt of the running turn. With a known cursor the watch command starts with it: whatever begins
    /// behind the cursor is this turn, since no other program uses the private home directory.
    fn send_prompt(&mut self) -> Option<BackendStep> {
        let watches = self.state.cursor.is_some() && self.state.turn.as_ref()?.watch.is_none();
        let watch = watches.then(|| self.watch_command());
        let id = self.register(CommandKind::Prompt);
        let name = &self.state.invocation.name;
        let argv = self.state.invocation.argv(&["prompt", "-s", name, "--no-wait", "--file", "-"]);
        let turn = self.state.turn.as_ref()?;
        let command = BridgeCommand {
            id,
            argv,
            stdin: turn.prompt.as_deref(),
            watch,
            owner: true,
            ..BridgeCommand::default()
        };
        let bytes = BridgeInput::Run(command).line();
        Some(BackendStep::Send { bytes, kind: InputKind::Prompt { run_id: turn.run_id } })
    }

    /// Builds the watch command from the known cursor and makes it the turn's.
    pub(super) fn watch_command(&mut self) -> WatchCommand {
        let id = self.state.number();
        if let Some(turn) = &mut self.state.turn {
            turn.watch = Some(id);
            turn.watch_error = None;
            turn.watch_starts += 1;
        }
        WatchCommand { id, argv: self.state.invocation.watch(self.state.cursor.as_deref()) }
    }

    /// Handles a line of a command.
    pub(super) fn on_command_line(&mut self, id: u64, line: &str) -> Vec<BackendStep> {
        let Some(command) = self.state.commands.get_mut(&id) else { return Vec::new() };
        let Ok(line) = serde_json::from_str::<Value>(line) else {
            return self.protocol_error("A command of acpx wrote a line that is not JSON.");
        };
        if let Some(error) = line.get("error").filter(|error| error.is_object()) {
            command.error = Some(AcpxError::read(error));
            return Vec::new();
        }
        command.is_done = true;
        match command.kind.clone() {
            kind @ (CommandKind::Ensure | CommandKind::Show) => self.on_opening_line(&kind, &line),
            CommandKind::Prompt => self.on_accepted(line.get("requestId").and_then(Value::as_str)),
            CommandKind::Cancel if line.get("cancelled") == Some(&Value::Bool(false)) => {
                command.is_done = false;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Handles the acceptance of a prompt.
    fn on_accepted(&mut self, request: Option<&str>) -> Vec<BackendStep> {
        let Some(turn) = &mut self.state.turn else { return Vec::new() };
        let Some(request) = request else {
            return self.protocol_error("acpx accepted a prompt without a request id.");
        };
        if turn.request.as_deref().is_some_and(|known| known != request) {
            return self.protocol_error("acpx ran another prompt than the one it accepted.");
        }
        turn.request = Some(request.to_owned());
        turn.prompt = None;
        if turn.watch.is_some() {
            return Vec::new();
        }
        vec![control(&BridgeInput::Watch(self.watch_command()))]
    }

    /// Handles the end of a command.
    pub(super) fn on_exit(&mut self, id: u64, code: Option<i32>) -> Vec<BackendStep> {
        let Some(command) = self.state.commands.remove(&id) else { return self.on_watch_exit(id) };
        match command.kind {
            CommandKind::Ensure | CommandKind::Show => self.on_opening_end(command, code),
            CommandKind::Set(_) => self.on_setting_end(command, code),
            CommandKind::Prompt => self.on_prompt_end(command, code),
            CommandKind::Cancel => self.on_cancel_end(&command),
            CommandKind::Status => vec![BackendStep::ProbeAnswered],
            CommandKind::Close => vec![BackendStep::CloseAnswered],
            CommandKind::RetryTimer | CommandKind::AcceptTimer | CommandKind::CancelTimer => Vec::new(),
        }
    }

    fn on_prompt_end(&mut self, command: PendingCommand, code: Option<i32>) -> Vec<BackendStep> {
        let Some(turn) = &mut self.state.turn else { return Vec::new() };
        if turn.request.is_some() {
            return Vec::new();
        }
        let Some(error) = command.error else {
            // Without a watch nothing can show that the turn has begun.
            if turn.watch.is_none() {
                let error = AcpxError::without_report("prompt", code);
                return self.end_uncertain(&error, "NOT_ACKNOWLEDGED");
            }
            return vec![self.timer(CommandKind::AcceptTimer, ACCEPT_MS)];
        };
        let (run_id, retries) = (turn.run_id, turn.retries);
        match classify(&error, FailedStage::Prompt, None) {
            Verdict::Retry { after_ms, retries_max, .. } if retries < retries_max && !turn.cancelled => {
                turn.retries += 1;
                vec![self.timer(CommandKind::RetryTimer, after_ms)]
            }
            Verdict::Retry { failure, .. } | Verdict::Failed(failure) => self.end_turn(|is_cancelled| {
                if is_cancelled { cancelled(run_id) } else { BackendStep::TurnFailed { run_id, failure } }
            }),
            Verdict::Uncertain(_) => self.end_uncertain(&error, &error.detail),
            Verdict::Unusable(failure) => self.fail(failure),
        }
    }

    pub(super) fn timer(&mut self, kind: CommandKind, ms: u64) -> BackendStep {
        let id = self.register(kind);
        control(&BridgeInput::Timer { id, ms })
    }

    pub(super) fn on_timer(&mut self, id: u64) -> Vec<BackendStep> {
        let Some(command) = self.state.commands.remove(&id) else { return Vec::new() };
        let Some(turn) = &self.state.turn else { return Vec::new() };
        let run_id = turn.run_id;
        match command.kind {
            // acpx has refused the prompt, so that nothing of it can run.
            CommandKind::RetryTimer if turn.cancelled && turn.request.is_none() => {
                self.end_turn(|_| cancelled(run_id))
            }
            CommandKind::RetryTimer if turn.request.is_none() => self.send_prompt().into_iter().collect(),
            CommandKind::AcceptTimer if turn.request.is_none() => {
                let error = AcpxError::without_report("prompt", None);
                self.end_uncertain(&error, "NOT_ACKNOWLEDGED")
            }
            CommandKind::CancelTimer => vec![self.send_cancel(InputKind::Control)],
            _ => Vec::new(),
        }
    }

    pub(super) fn cancel_turn(&mut self, run_id: RunId) -> Vec<BackendStep> {
        match &mut self.state.turn {
            Some(turn) if turn.run_id == run_id => turn.cancelled = true,
            _ => {
                return vec![BackendStep::Log(format!(
                    "nothing to cancel: run {run_id} is not the running turn"
                ))];
            }
        }
        vec![self.send_cancel(InputKind::Cancel { run_id })]
    }

    fn send_cancel(&mut self, kind: InputKind) -> BackendStep {
        let name = self.state.invocation.name.clone();
        match self.run(CommandKind::Cancel, &["cancel", "-s", &name]) {
            BackendStep::Send { bytes, .. } => BackendStep::Send { bytes, kind },
            step => step,
        }
    }

    /// Repeats a cancel that came before the turn had begun.
    fn on_cancel_end(&mut self, command: &PendingCommand) -> Vec<BackendStep> {
        let Some(turn) = &mut self.state.turn else { return Vec::new() };
        if command.is_done || turn.cancel_retries >= CANCEL_RETRIES_MAX {
            return Vec::new();
        }
        turn.cancel_retries += 1;
        vec![self.timer(CommandKind::CancelTimer, CANCEL_RETRY_MS)]
    }

    pub(super) fn ask_status(&mut self) -> Vec<BackendStep> {
        if self.state.phase != AcpxPhase::Ready || self.state.commands.len() >= PENDING_MAX {
            return Vec::new();
        }
        let name = self.state.invocation.name.clone();
        vec![self.run(CommandKind::Status, &["status", "-s", &name])]
    }

    /// Closes acpx's session once no turn runs.
    pub(super) fn say_goodbye(&mut self, goodbye: CloseMode) -> Vec<BackendStep> {
        if self.state.turn.is_some() {
            self.state.goodbye = Some(goodbye);
            return Vec::new();
        }
        self.state.goodbye = None;
        if self.state.phase != AcpxPhase::Ready {
            return vec![BackendStep::CloseAnswered];
        }
        let name = self.state.invocation.name.clone();
        let discard = (goodbye == CloseMode::Discard).then(|| control(&BridgeInput::Discard));
        let close = self.run(CommandKind::Close, &["sessions", "close", &name]);
        discard.into_iter().chain([close]).collect()
    }

    /// Ends the running turn: ends the watch command, then reports `end`, which learns if the turn was cancelled.
    pub(super) fn end_turn(&mut self, end: impl FnOnce(bool) -> BackendStep) -> Vec<BackendStep> {
        let Some(turn) = self.state.turn.take() else { return Vec::new() };
        let unwatch = turn.watch.is_some().then(|| control(&BridgeInput::Unwatch));
        let mut steps: Vec<BackendStep> = unwatch.into_iter().chain([end(turn.cancelled)]).collect();
        if let Some(goodbye) = self.state.goodbye {
            steps.extend(self.say_goodbye(goodbye));
        } else if turn.owner_ended {
            steps.extend(self.on_owner_end());
        }
        steps
    }

    /// Handles the end of the queue owner. Its agent may still run, and acpx would start another one with the next
    /// prompt: the process is ended, after the running turn, which its watch command ends.
    pub(super) fn on_owner_end(&mut self) -> Vec<BackendStep> {
        if let Some(turn) = &mut self.state.turn {
            turn.owner_ended = true;
            return Vec::new();
        }
        if self.state.phase != AcpxPhase::Ready || self.is_closing() {
            return Vec::new();
        }
        self.state.phase = AcpxPhase::Failed;
        let text =
            "The queue owner of acpx ended. Its agent is being stopped; the next prompt starts it again.";
        let reason = "the queue owner of acpx ended".to_owned();
        vec![self.status("acpx_owner_ended", text, &[]), BackendStep::EndProcess { reason }]
    }

    fn is_closing(&self) -> bool {
        self.state.commands.values().any(|command| command.kind == CommandKind::Close)
    }

    /// Ends the running turn with an unknown outcome, and the process: two agents must not run at once.
    pub(super) fn end_uncertain(&mut self, error: &AcpxError, detail: &str) -> Vec<BackendStep> {
        let Some(turn) = self.state.turn.take() else { return Vec::new() };
        self.state.phase = AcpxPhase::Failed;
        let text = format!("{} acpx said: {}", Code::Uncertain.text(), error.message);
        let failure = Failure::new(Code::Uncertain, text).detail(detail).origin("acpx");
        vec![
            BackendStep::TurnFailed { run_id: turn.run_id, failure },
            BackendStep::EndProcess { reason: "the outcome of a turn is unknown to acpx".to_owned() },
        ]
    }
}

/// Builds the end of a cancelled turn that never ran.
fn cancelled(run_id: RunId) -> BackendStep {
    let result = "{\"stopReason\":\"cancelled\"}".to_owned();
    BackendStep::TurnDone { run_id, stop_reason: "cancelled".to_owned(), result }
}
