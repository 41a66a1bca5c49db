//! `chat` at a terminal: waits for keys, reports of the gateway and the clock, and draws.

use crate::api::client::{EventSelection, GatewayClient, encode};
use crate::api::console::{ConsoleMessageBody, ConsoleMessageResponse};
use crate::cli::chat::completion::CompletionData;
use crate::cli::chat::connection::{GatewayReport, SessionReader, cancel_turn, send_messages};
use crate::cli::chat::editor::Editor;
use crate::cli::chat::live_area::{FRAME_MS, live_area};
use crate::cli::chat::notification::{self, NotificationKind};
use crate::cli::chat::state::{ChatEffect, ChatState, OutgoingMessage};
use crate::cli::chat::styled::{BOLD, DIM, PLAIN, StyledLine, wrap_with};
use crate::cli::chat::terminal::{ChatTerminal, keys};
use crate::cli::chat::transcript::Transcript;
use crate::cli::chat::{ChatArgs, ChatOpening, cwd_of, plan_opening};
use crate::cli::inside;
use crate::cli::output::{CliError, CliResult, Out, name, now_ms};
use acp_core::api::{AgentView, PermissionView, SessionView};
use acp_core::failure::Failure;
use acp_core::permission::short_id;
use acp_core::session::SessionState;
use acp_shared::ids::{IdempotencyKey, RunId, SessionKey};
use acp_store::inbox::Outcome;
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::Value;
use std::collections::VecDeque;
use std::future::ready;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Numbers of turns that a chat shows of a session with a history.
const TURNS_SHOWN: usize = 2;
/// Numbers of rows that are searched for the beginning of these turns, one after the other.
const ROWS_SEARCHED: [u64; 2] = [200, 2_000];
/// Capacity of the queue of reports.
const REPORTS_QUEUED_MAX: usize = 64;
/// Duration of a turn from which on its end is notified, in milliseconds.
const LONG_TURN_MS: u64 = 10_000;
/// Maximum wait for an agent that is starting, before the chat begins.
const START_WAIT: Duration = Duration::from_secs(5);
/// Maximum wait for the beginning of a session that the chat turns to.
const FOLLOW_WAIT: Duration = Duration::from_secs(10);
/// Reports handled between two drawings.
const REPORTS_BURST: usize = 512;

/// `chat` at a terminal.
pub(super) async fn run(
    client: GatewayClient,
    conversation: String,
    args: &ChatArgs,
    history: &Path,
    out: &mut Out,
) -> CliResult {
    let (reports, queued) = mpsc::channel(REPORTS_QUEUED_MAX);
    let messages = send_messages(client.clone(), &conversation, reports.clone());
    let editor = Editor::new(history);
    // Before raw mode, which their default action would leave behind.
    let mut signals = ChatSignals::listen()?;
    let terminal = ChatTerminal::enter(out.is_coloured()).map_err(|error| terminal_failure(&error))?;
    let mut keys = keys();
    let transcript = Transcript::new(&conversation, terminal.size().0.saturating_sub(1));
    let mut chat = InteractiveChat {
        state: ChatState::new(transcript, editor, cwd_of(args)?),
        client,
        conversation,
        terminal,
        reports,
        messages,
        reader: None,
        readers: 0,
        notify: (
            if args.bell { NotificationKind::Bell } else { args.notify },
            std::env::var("TERM").unwrap_or_default(),
        ),
    };
    let outcome = match chat.open_unless_interrupted(args, &mut keys, &mut signals).await {
        Ok(Some(typed)) => chat.run_loop(typed, keys, queued, signals).await,
        Ok(None) => Ok(()),
        Err(stop) => Err(stop),
    };
    let InteractiveChat { mut state, terminal, reader, .. } = chat;
    let session = reader.as_ref().map(|reader| reader.key.clone());
    if outcome.is_ok() {
        state.transcript.print(farewell(&state, session.as_ref()));
    }
    let lines = state.transcript.take_printed();
    let left = terminal.leave(&lines).map_err(|error| terminal_failure(&error));
    outcome.and(left.map_err(CliError::from))
}

fn terminal_failure(error: &io::Error) -> Failure {
    inside("cannot use the terminal", error)
}

/// Returns the last lines of a chat: messages that were not sent, and the way back.
fn farewell(state: &ChatState, session: Option<&SessionKey>) -> Vec<StyledLine> {
    let kept = state.outgoing.iter().map(|message| {
        StyledLine::new("not confirmed by the gateway: ", DIM).with(&name(&message.text), PLAIN)
    });
    let mut lines: Vec<StyledLine> = kept.collect();
    let Some(key) = session else { return lines };
    let goes_on = if state.transcript.running().is_some() { "The turn continues. " } else { "" };
    lines.push(StyledLine::new(&format!("{goes_on}Continue: acp-gateway chat {key}"), DIM));
    lines
}

struct InteractiveChat {
    client: GatewayClient,
    conversation: String,
    state: ChatState,
    terminal: ChatTerminal,
    reports: mpsc::Sender<GatewayReport>,
    messages: mpsc::Sender<OutgoingMessage>,
    reader: Option<SessionReader>,
    /// Number of readers started.
    readers: u64,
    /// Kind of notifications, and the type of the terminal.
    notify: (NotificationKind, String),
}

/// Signals that end the chat, or count as Ctrl-C.
struct ChatSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    resume: Signal,
}

impl ChatSignals {
    fn listen() -> Result<Self, Failure> {
        let wait = |kind| signal(kind).map_err(|error| inside("cannot wait for signals", &error));
        Ok(Self {
            interrupt: wait(SignalKind::interrupt())?,
            terminate: wait(SignalKind::terminate())?,
            hang_up: wait(SignalKind::hangup())?,
            resume: wait(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?,
        })
    }
}

impl InteractiveChat {
    /// Opens the chat. Returns the input that arrived meanwhile, or `None` after Ctrl-C.
    async fn open_unless_interrupted(
        &mut self,
        args: &ChatArgs,
        keys: &mut mpsc::Receiver<io::Result<Event>>,
        signals: &mut ChatSignals,
    ) -> Result<Option<Vec<Event>>, CliError> {
        let mut typed = Vec::new();
        let opening = self.open(args);
        tokio::pin!(opening);
        loop {
            tokio::select! {
                opened = &mut opening => return opened.map(|()| Some(typed)),
                _ = signals.interrupt.recv() => return Ok(None),
                _ = signals.terminate.recv() => return Ok(None),
                _ = signals.hang_up.recv() => return Ok(None),
                Some(Ok(event)) = keys.recv() => match event {
                    Event::Key(key) if key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL => {
                        return Ok(None);
                    }
                    event => typed.push(event),
                },
            }
        }
    }

    /// Binds the conversation to a session and begins to follow it.
    async fn open(&mut self, args: &ChatArgs) -> CliResult {
        let commands = match plan_opening(&self.client, &self.conversation, args).await? {
            ChatOpening::Follow(session) => return self.follow(session).await.map_err(CliError::from),
            ChatOpening::Commands(commands) => commands,
        };
        let path = format!("/v1/console/conversations/{}/messages", encode(&self.conversation));
        for text in commands {
            let key = IdempotencyKey::mint();
            let body = ConsoleMessageBody { text, message_id: Some(key.as_str().to_owned()), author: None };
            let said: ConsoleMessageResponse = self.client.post(&path, &body, &key).await?;
            match said.outcome {
                Outcome::Command { session_key: Some(session), .. } => self.follow(session).await?,
                Outcome::Refused { failure, .. } => return Err(failure.into()),
                Outcome::Command { .. } | Outcome::Prompted { .. } | Outcome::Ignored { .. } => {}
            }
        }
        match &self.reader {
            Some(_) => Ok(()),
            None => Err(Failure::of(acp_shared::codes::Code::NoSession).into()),
        }
    }

    /// Follows a session, beginning with its last turns, unless it is followed already.
    async fn follow(&mut self, key: SessionKey) -> Result<(), Failure> {
        if self.reader.as_ref().is_some_and(|reader| reader.key == key) {
            return Ok(());
        }
        let view = self.started(&key).await?;
        let after = self.start_of_last_turns(&view).await?;
        self.state.transcript.reset();
        self.state.selected = None;
        let width = self.terminal.size().0.saturating_sub(1);
        self.state.transcript.width = width;
        self.state.transcript.print(header(&view, width));
        let running = view.runs.iter().flatten().find(|run| Some(run.run_id) == view.active_run);
        if let Some(run) = running.filter(|_| after == view.last_session_seq) {
            let started_ms = run.started_at_ms.unwrap_or(run.created_at_ms);
            self.state.transcript.resume(&run.run_id.to_string(), &run.text, started_ms);
        }
        for waiting in view.permissions.iter().flatten() {
            self.ask(waiting);
        }
        self.readers += 1;
        self.reader =
            Some(SessionReader::start(&self.client, key, after, self.readers, self.reports.clone()));
        self.complete_with(view).await;
        Ok(())
    }

    /// Waits until the agent has opened its session, which is when its modes and models are known, but not for long.
    async fn started(&mut self, key: &SessionKey) -> Result<SessionView, Failure> {
        let path = format!("/v1/sessions/{}", encode(key.as_str()));
        let until = Instant::now() + START_WAIT;
        loop {
            let view: SessionView = self.client.get(&path).await?;
            if view.state != SessionState::Creating || Instant::now() >= until {
                return Ok(view);
            }
            self.state.hint = Some(format!("starting {}", view.agent));
            let (columns, rows) = self.terminal.size();
            let area = live_area(&self.state, now_ms(), columns, rows);
            self.terminal.draw(&[], area).map_err(|error| terminal_failure(&error))?;
            self.state.hint = None;
            tokio::time::sleep(Duration::from_millis(FRAME_MS)).await;
        }
    }

    /// Shows a pending question that an earlier event asked.
    fn ask(&mut self, waiting: &PermissionView) {
        let mut event = serde_json::to_value(waiting).unwrap_or_default();
        event["type"] = Value::from("permission");
        self.state.transcript.event(&event);
    }

    /// Returns the number of the row before the last turns.
    async fn start_of_last_turns(&self, view: &SessionView) -> Result<u64, Failure> {
        let (last, pruned) = (view.last_session_seq, view.pruned_seq);
        for rows in ROWS_SEARCHED {
            let (session, after) = (view.session_key.clone(), last.saturating_sub(rows).max(pruned));
            let selection = EventSelection { session, after, run: None, replay: false, follow: false };
            let (mut events, mut prompts) = (self.client.events(selection), Vec::new());
            while let Some(line) = events.next().await? {
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                let is_turn = event["type"] == "prompt" && event["mode"] != "steer";
                prompts.extend(event["session_seq"].as_u64().filter(|_| is_turn));
            }
            let first = prompts.len().checked_sub(TURNS_SHOWN).and_then(|at| prompts.get(at));
            if let Some(first) = first.or_else(|| prompts.first().filter(|_| after <= pruned)) {
                return Ok(first - 1);
            }
        }
        Ok(last)
    }

    /// Reads the values for completion. Without them, only commands are completed.
    async fn complete_with(&mut self, view: SessionView) {
        let agents: Vec<AgentView> = self.client.get("/v1/agents").await.unwrap_or_default();
        let sessions: Vec<SessionView> = self.client.get("/v1/sessions").await.unwrap_or_default();
        let id =
            |view: &SessionView| view.session_key.as_str().rsplit(':').next().unwrap_or_default().to_owned();
        let usable = |agent: &&AgentView| agent.allowed && agent.path.is_some();
        self.state.data = CompletionData {
            agents: agents.iter().filter(usable).map(|agent| agent.name.to_string()).collect(),
            sessions: sessions
                .iter()
                .flat_map(|view| view.label.clone().into_iter().chain([id(view)]))
                .collect(),
            settings: view.agent_settings,
            permissions: Vec::new(),
        };
    }

    async fn run_loop(
        &mut self,
        typed: Vec<Event>,
        mut keys: mpsc::Receiver<io::Result<Event>>,
        mut reports: mpsc::Receiver<GatewayReport>,
        mut signals: ChatSignals,
    ) -> CliResult {
        // Keys that were pressed before a request was visible are no answer to it.
        let is_asked = !self.state.transcript.questions.is_empty();
        let mut typed = if is_asked { VecDeque::new() } else { VecDeque::from(typed) };
        let mut frames = tokio::time::interval(Duration::from_millis(FRAME_MS));
        frames.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.draw()?;
            let effect = tokio::select! {
                biased;
                event = ready(typed.pop_front()), if !typed.is_empty() => event.and_then(|event| self.on_input(event)),
                key = keys.recv() => match key {
                    Some(Ok(event)) => self.on_input(event),
                    Some(Err(error)) => return Err(terminal_failure(&error).into()),
                    None => return Ok(()),
                },
                _ = signals.interrupt.recv() => self.state.interrupt(),
                _ = signals.terminate.recv() => Some(ChatEffect::Leave),
                _ = signals.hang_up.recv() => Some(ChatEffect::Leave),
                _ = signals.resume.recv() => Some(ChatEffect::Resume),
                Some(report) = reports.recv() => {
                    self.on_report(report).await?;
                    for _ in 0..REPORTS_BURST {
                        let Ok(report) = reports.try_recv() else { break };
                        self.on_report(report).await?;
                    }
                    None
                }
                _ = frames.tick(), if self.is_animated() => None,
            };
            match effect {
                None => {}
                Some(ChatEffect::Leave) => return Ok(()),
                Some(ChatEffect::Redraw) => {
                    self.terminal.clear().map_err(|error| terminal_failure(&error))?
                }
                Some(ChatEffect::Suspend) => {
                    self.terminal.suspend().map_err(|error| terminal_failure(&error))?
                }
                Some(ChatEffect::Resume) => {
                    self.terminal.resume().map_err(|error| terminal_failure(&error))?
                }
                Some(ChatEffect::Cancel) => {
                    if let Some(reader) = &self.reader {
                        let shown = self.state.transcript.running();
                        let run_id = shown.and_then(|turn| RunId::parse(&turn.run_id).ok());
                        cancel_turn(&self.client, &reader.key, run_id);
                    }
                }
                // The state limits the number of messages to the capacity.
                Some(ChatEffect::Send(message)) => drop(self.messages.try_send(message)),
            }
        }
    }

    fn is_animated(&self) -> bool {
        let state = &self.state;
        state.away_since_ms.is_some() || !state.outgoing.is_empty() || state.transcript.running().is_some()
    }

    fn on_input(&mut self, event: Event) -> Option<ChatEffect> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                let ids = self.state.transcript.questions.iter().map(|question| short_id(&question.id));
                self.state.data.permissions = ids.collect();
                self.state.key(key)
            }
            Event::Paste(text) => {
                self.state.editor.paste(&text);
                None
            }
            Event::Resize(..) => {
                self.terminal.measure();
                self.state.transcript.width = self.terminal.size().0.saturating_sub(1);
                None
            }
            Event::Key(_) | Event::FocusGained | Event::FocusLost | Event::Mouse(_) => None,
        }
    }

    async fn on_report(&mut self, report: GatewayReport) -> CliResult {
        match report {
            GatewayReport::Connected(true) => self.state.away_since_ms = None,
            GatewayReport::Connected(false) => {
                self.state.away_since_ms.get_or_insert_with(now_ms);
            }
            GatewayReport::Answered(key, answer) => {
                self.state.answered(&key, answer.as_ref());
                let session = match answer {
                    Ok(Outcome::Prompted { session_key, .. }) => Some(session_key),
                    Ok(Outcome::Command { session_key, .. }) => session_key,
                    Ok(Outcome::Refused { .. } | Outcome::Ignored { .. }) | Err(_) => None,
                };
                if let Some(session) = session {
                    let followed = tokio::time::timeout(FOLLOW_WAIT, self.follow(session)).await;
                    let why = match followed {
                        Ok(Ok(())) => return Ok(()),
                        Ok(Err(failure)) => failure.to_string(),
                        Err(_) => "the gateway does not answer".to_owned(),
                    };
                    self.state.transcript.note(&format!("[the session cannot be followed: {why}]"));
                }
            }
            GatewayReport::Event(number, line) if self.is_current(number) => self.on_event(&line)?,
            GatewayReport::Ended(number, failure) if self.is_current(number) => {
                if let Some(failure) = failure {
                    self.state.transcript.note(&format!("[the session cannot be followed: {failure}]"));
                }
                self.reader = None;
                self.state.transcript.reset();
            }
            // Reports of a reader that was replaced.
            GatewayReport::Event(..) | GatewayReport::Ended(..) => {}
        }
        Ok(())
    }

    fn is_current(&self, number: u64) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.number == number)
    }

    fn on_event(&mut self, line: &str) -> CliResult {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        let started = self.state.transcript.running().map(|turn| turn.started_ms);
        let count = self.state.transcript.questions.len();
        let asked = self.front_question();
        self.state.transcript.event(&event);
        let at_ms = event["created_at_ms"].as_u64().unwrap_or_default();
        let kind = event["type"].as_str().unwrap_or_default();
        let is_end = matches!(kind, "done" | "error");
        if is_end {
            self.state.is_cancelling = false;
        }
        // A selection is valid for one request only.
        if asked != self.front_question() {
            self.state.selected = None;
        }
        let is_new = now_ms().saturating_sub(at_ms) < LONG_TURN_MS;
        let was_long = is_end && started.is_some_and(|started| at_ms.saturating_sub(started) >= LONG_TURN_MS);
        let is_question = self.state.transcript.questions.len() > count;
        if is_new && (was_long || is_question) {
            let text = match is_question {
                true => format!("the agent asks: {}", name(event["title"].as_str().unwrap_or_default())),
                false => "the turn has ended".to_owned(),
            };
            let sequence = notification::sequence(self.notify.0, &self.notify.1, &text);
            self.terminal.notify(&sequence).map_err(|error| terminal_failure(&error))?;
        }
        Ok(())
    }

    fn front_question(&self) -> Option<String> {
        self.state.transcript.questions.front().map(|question| question.id.clone())
    }

    fn draw(&mut self) -> CliResult {
        let printed = self.state.transcript.take_printed();
        let (columns, rows) = self.terminal.size();
        let area = live_area(&self.state, now_ms(), columns, rows);
        self.terminal.draw(&printed, area).map_err(|error| terminal_failure(&error).into())
    }
}

/// Returns the lines about a session that a chat begins with.
fn header(view: &SessionView, width: usize) -> Vec<StyledLine> {
    let settings = &view.agent_settings;
    let current =
        |choices: Option<&acp_core::agent_settings::Choices>| choices.and_then(|it| it.current.clone());
    let of_category = |category: &str| {
        let found = settings.options.iter().find(|option| option.category.as_deref() == Some(category));
        found.and_then(|option| option.choices.current.clone())
    };
    let model =
        current(settings.models.as_ref()).or_else(|| of_category("model")).or_else(|| view.model.clone());
    let mode =
        current(settings.modes.as_ref()).or_else(|| of_category("mode")).or_else(|| view.mode_id.clone());
    let permission = serde_json::to_value(view.permission).unwrap_or_default();
    let mut agent = vec![view.agent.to_string()];
    agent.extend(model.map(|model| format!("model {}", name(&model))));
    agent.extend(mode.map(|mode| format!("mode {}", name(&mode))));
    agent.push(format!("permissions {}", permission.as_str().unwrap_or_default()));
    let session = match &view.label {
        Some(label) => format!("{} ({})", name(label), view.session_key),
        None => view.session_key.to_string(),
    };
    let rest = StyledLine::new("           ", PLAIN);
    let row = |(title, value, style): (&str, String, _)| {
        let first = StyledLine::new(&format!("{title:<11}"), DIM);
        wrap_with(&StyledLine::new(&value, style), width, &first, &rest)
    };
    let rows = [
        ("agent", agent.join(" · "), BOLD),
        ("directory", acp_core::sanitize::line(&view.cwd, usize::MAX), PLAIN),
        ("session", session, PLAIN),
    ];
    rows.into_iter().flat_map(row).collect()
}
