//! `prompt` and `exec`: one turn, from the acceptance to its result or error.

use super::args::{Format, PromptArgs, TextArgs};
use super::{AcpxEnd, AcpxResult, Command, ids, quiet_error};
use crate::api::client::{EventSelection, EventStream, GatewayClient, encode};
use crate::cli::inside;
use crate::cli::output::{now_ms, print_message};
use acp_core::acpx_contract::{AcpxCode, ContractError, JournalLine, TurnLines, TurnText};
use acp_core::api::{
    AcpxSessionView, CancelBody, NamedPromptBody, NamedPromptView, PromptBody, SessionView, SpawnBody,
    SpawnedView,
};
use acp_core::failure::Failure;
use acp_core::request::CancelResult;
use acp_core::rows::{NonInteractive, PermissionMode, SessionMode};
use acp_shared::codes::Code;
use acp_shared::ids::{IdempotencyKey, RunId, SessionKey};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Read};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Maximum size of a prompt, in bytes.
const TEXT_BYTES_MAX: u64 = 16 * 1024 * 1024;

impl Command {
    pub(super) async fn prompt(&mut self, args: PromptArgs) -> AcpxResult {
        let deadline = self.deadline()?;
        let text = self.text(args.text)?;
        let mut interrupt = interrupts()?;
        let (view, events) = self.accept(args.name.session, text).await?;
        let NamedPromptView { session: AcpxSessionView { session, cwd, .. }, accepted } = view;
        if args.no_wait {
            let request = accepted.run_id.to_string();
            let mut members = ids(&session);
            members.insert("requestId".to_owned(), request.as_str().into());
            return self.answer("prompt_queued", members.into(), Some(&format!("[queued] {request}")), None);
        }
        self.announce(&session, &cwd)?;
        self.follow(&session, accepted.run_id, events, deadline, &mut interrupt).await
    }

    /// Sets the model, if one is given, and sends a prompt to the session with a name.
    async fn accept(
        &self,
        name: Option<String>,
        text: String,
    ) -> Result<(NamedPromptView, EventStream), AcpxEnd> {
        if let Some(model) = &self.options.model {
            let session = self.require(name.clone()).await?.session;
            if session.model.as_ref() != Some(model) {
                let key = session.session_key.as_str();
                self.set_model(key, model).await.map_err(|end| end.of(key))?;
            }
        }
        let (permission, non_interactive) = self.permissions();
        let prompt = PromptBody {
            permission: Some(permission),
            non_interactive_permissions: Some(non_interactive),
            ..PromptBody::of_text(text)
        };
        let body = NamedPromptBody { agent: self.agent.clone(), acpx: self.naming(name.clone()), prompt };
        match self.client.prompt_named(&body, &IdempotencyKey::mint()).await {
            Ok(accepted) => Ok(accepted),
            Err(failure) if failure.code == Code::NoSession => Err(self.no_session(name)),
            Err(failure) => {
                // The error names its session.
                let found = self.find(name).await.ok().flatten();
                let end = AcpxEnd::from(failure);
                Err(match found {
                    Some(found) => end.of(found.session.session_key.as_str()),
                    None => end,
                })
            }
        }
    }

    fn announce(&mut self, session: &SessionView, directory: &str) -> AcpxResult {
        let key = session.session_key.as_str();
        let label = key.rsplit(':').next().unwrap_or(key);
        Ok(self.note(&format!("[acpx] session {label} ({key}) · {directory} · agent {}", session.agent))?)
    }

    pub(super) async fn exec(&mut self, args: TextArgs) -> AcpxResult {
        let deadline = self.deadline()?;
        let text = self.text(args)?;
        let (permission, non_interactive) = self.permissions();
        // One request: the end of the run ends the session, also if this client or the gateway is killed.
        let body = SpawnBody {
            permission: Some(permission),
            non_interactive_permissions: Some(non_interactive),
            model: self.options.model.clone(),
            prompt: Some(text),
            ..self.spawn_body(SessionMode::Oneshot)
        };
        let mut interrupt = interrupts()?;
        let spawned: SpawnedView = self.client.post("/v1/sessions", &body, &IdempotencyKey::mint()).await?;
        let key = spawned.spawned.session_key.to_string();
        let run = spawned.spawned.run_id.ok_or_else(|| {
            Failure::new(Code::ProtocolError, "the gateway accepted no prompt").origin("client")
        })?;
        let session = self.view(&key).await.map_err(|end| end.of(&key))?;
        let selection = EventSelection {
            session: spawned.spawned.session_key,
            after: 0,
            run: Some(run),
            replay: false,
            follow: true,
        };
        let events = self.client.journal(selection);
        self.follow(&session, run, events, deadline, &mut interrupt).await
    }

    /// Returns the permission settings: flags, then the user's configuration, then acpx's own defaults.
    fn permissions(&self) -> (PermissionMode, NonInteractive) {
        let mode = self.options.permission().or(self.config.default_permissions);
        let policy = self.options.non_interactive_permissions.or(self.config.non_interactive_permissions);
        (mode.unwrap_or(PermissionMode::ApproveReads), policy.unwrap_or(NonInteractive::Deny))
    }

    fn deadline(&self) -> Result<Option<Instant>, AcpxEnd> {
        let Some(seconds) = self.options.timeout else { return Ok(None) };
        let invalid =
            |why: String| ContractError::new(AcpxCode::Usage, format!("--timeout {seconds}: {why}"));
        let wait = Duration::try_from_secs_f64(seconds).map_err(|error| invalid(error.to_string()))?;
        let end = Instant::now().checked_add(wait).ok_or_else(|| invalid("too long".to_owned()))?;
        Ok(Some(end))
    }

    /// Returns the text of the prompt: words, a file, or standard input.
    fn text(&self, args: TextArgs) -> Result<String, AcpxEnd> {
        let words = args.text.join(" ");
        let source = match args.file.as_deref() {
            Some("-") => Some(read(io::stdin().lock(), "standard input")?),
            Some(path) => {
                let path = std::path::Path::new(&self.cwd).join(path);
                let name = path.display().to_string();
                let file = std::fs::File::open(&path).map_err(|error| {
                    ContractError::new(AcpxCode::Usage, format!("--file {name}: {error}"))
                })?;
                Some(read(file, &name)?)
            }
            None if words.is_empty() && !io::stdin().is_terminal() => {
                Some(read(io::stdin().lock(), "standard input")?)
            }
            None => None,
        };
        let text = match source {
            Some(text) if words.is_empty() => text,
            Some(text) => format!("{text}\n\n{words}"),
            None => words,
        };
        if text.trim().is_empty() {
            let text = "the prompt is empty: give it as words, with --file, or on standard input";
            return Err(ContractError::new(AcpxCode::Usage, text).into());
        }
        Ok(text)
    }

    async fn follow(
        &mut self,
        session: &SessionView,
        run: RunId,
        events: EventStream,
        deadline: Option<Instant>,
        interrupt: &mut Signal,
    ) -> AcpxResult {
        let key = session.session_key.clone();
        let request = run.to_string();
        let lines = TurnLines::new(key.as_str(), session.agent_session_id.as_deref(), &request);
        let is_denying = self.permissions().0 == PermissionMode::DenyAll;
        let mut turn = FollowedTurn {
            events,
            client: self.client.clone(),
            session: key,
            run,
            lines: if is_denying { lines } else { lines.failing_if_refused() },
            text: match self.format {
                Format::Json => None,
                Format::Text => Some(TurnText::full()),
                Format::Quiet => Some(TurnText::quiet()),
            },
            deadline,
            is_cancelled: false,
        };
        let mut shown = String::new();
        loop {
            let next = match turn.events.ready() {
                Some(ready) => TurnEvent::of(ready),
                None => {
                    self.write(&mut shown)?;
                    turn.wait(interrupt).await
                }
            };
            let line = match next {
                TurnEvent::Line(line) => line,
                TurnEvent::Settled => continue,
                TurnEvent::Aborted(error) => {
                    turn.lines.abort(error, now_ms(), &mut shown);
                    break;
                }
            };
            let row = JournalLine::parse(&line).map_err(|error| inside("cannot parse a row", &error))?;
            match &mut turn.text {
                None => turn.lines.push(&row, &mut shown),
                Some(text) => {
                    turn.lines.push(&row, &mut String::new());
                    text.push(&row, &mut shown);
                }
            }
            if turn.lines.exit().is_some() {
                break;
            }
        }
        self.end(turn, shown)
    }

    fn end(&mut self, turn: FollowedTurn, mut shown: String) -> AcpxResult {
        let error = turn.lines.error();
        if let Some(mut text) = turn.text {
            match error {
                Some(error) if self.format == Format::Text => {
                    text.error(error.code.as_str(), &error.message, &mut shown);
                }
                _ => text.flush(&mut shown),
            }
        }
        self.write(&mut shown)?;
        if let Some(error) = error.filter(|_| self.format == Format::Quiet) {
            print_message(&quiet_error(error));
        }
        let interrupted = error.is_some_and(|error| error.detail.as_deref() == Some("INTERRUPTED"));
        match turn.lines.exit() {
            _ if interrupted => Err(AcpxEnd::Exit(super::INTERRUPTED)),
            Some(0) | None => Ok(()),
            Some(code) => Err(AcpxEnd::Exit(code)),
        }
    }

    fn write(&mut self, shown: &mut String) -> AcpxResult {
        if !shown.is_empty() {
            self.out.text(shown)?;
            shown.clear();
        }
        Ok(self.out.flush()?)
    }
}

fn interrupts() -> Result<Signal, AcpxEnd> {
    Ok(signal(SignalKind::interrupt()).map_err(|error| inside("cannot wait for Ctrl-C", &error))?)
}

/// State of following a turn.
struct FollowedTurn {
    client: GatewayClient,
    events: EventStream,
    session: SessionKey,
    run: RunId,
    lines: TurnLines,
    /// Text for people; `None` for JSON.
    text: Option<TurnText>,
    deadline: Option<Instant>,
    is_cancelled: bool,
}

enum TurnEvent {
    /// Next line of the stream.
    Line(String),
    /// An interrupt or the time limit was handled.
    Settled,
    /// Stop of the wait for the end of the turn.
    Aborted(ContractError),
}

impl TurnEvent {
    fn of(line: Result<Option<String>, Failure>) -> Self {
        let closed = || Failure::of(Code::SessionClosed).origin("gateway");
        match line.and_then(|line| line.ok_or_else(closed)) {
            Ok(line) => Self::Line(line),
            Err(failure) => Self::Aborted(ContractError::from(&failure)),
        }
    }

    fn interrupted() -> Self {
        let text = "interrupted; the turn is being cancelled";
        Self::Aborted(ContractError::new(AcpxCode::Runtime, text).detail("INTERRUPTED"))
    }
}

impl FollowedTurn {
    async fn wait(&mut self, interrupt: &mut Signal) -> TurnEvent {
        let deadline = self.deadline;
        let limit = async move {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            line = self.events.next() => return TurnEvent::of(line),
            _ = interrupt.recv() => {
                if self.is_cancelled {
                    return TurnEvent::interrupted();
                }
            }
            () = limit => {
                self.deadline = None;
                let text = "the turn has reached its time limit (--timeout) and was cancelled";
                self.lines.fail_with(ContractError::new(AcpxCode::Timeout, text).origin("runtime"));
            }
        }
        self.is_cancelled = true;
        let path = format!("/v1/sessions/{}/cancel", encode(self.session.as_str()));
        let (body, key) = (CancelBody { run_id: Some(self.run) }, IdempotencyKey::mint());
        let cancelling = self.client.post::<_, CancelResult>(&path, &body, &key);
        tokio::select! {
            cancelled = cancelling => match cancelled {
                Ok(_) => TurnEvent::Settled,
                Err(failure) => TurnEvent::Aborted(ContractError::from(&failure)),
            },
            _ = interrupt.recv() => TurnEvent::interrupted(),
        }
    }
}

/// Reads the text of a prompt. An array of ACP content blocks is accepted if all of them are texts.
fn read(source: impl Read, name: &str) -> Result<String, AcpxEnd> {
    let usage = |why: String| ContractError::new(AcpxCode::Usage, format!("{name}: {why}"));
    let mut bytes = Vec::new();
    source.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| usage(error.to_string()))?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(usage(format!("more than {TEXT_BYTES_MAX} bytes")).into());
    }
    let text = String::from_utf8(bytes).map_err(|_| usage("not UTF-8 text".to_owned()))?;
    let blocks = match serde_json::from_str::<Vec<Value>>(&text) {
        Ok(blocks) if !blocks.is_empty() && blocks.iter().all(|block| block["type"].is_string()) => blocks,
        _ => return Ok(text),
    };
    let texts: Option<Vec<&str>> = blocks
        .iter()
        .map(|block| block["text"].as_str().filter(|_| block["type"] == json!("text")))
        .collect();
    let texts = texts.ok_or_else(|| {
        usage("only content blocks of the type `text` are offered".to_owned())
            .detail("UNSUPPORTED_PROMPT_CONTENT")
    })?;
    Ok(texts.join("\n"))
}
