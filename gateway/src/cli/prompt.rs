//! `prompt` and `steer`: sends a prompt and follows the reply.

use crate::api::client::{EventSelection, EventStream, GatewayClient, encode};
use crate::cli::follow::{EventHead, EventPrinter, exit_of};
use crate::cli::output::{CliError, CliResult, Out, name, print_message};
use crate::cli::session_arg::{ActsForArgs, SessionArg, is_session_key};
use crate::cli::{GlobalArgs, IdempotencyArgs, inside, usage};
use acp_core::api::{AnswerBody, CancelBody, Done, FileBody, OptionView, PromptBody, SessionView};
use acp_core::command::tokenizer::ParsedArgs;
use acp_core::elicitation::{Elicitation, parse_fields};
use acp_core::failure::Failure;
use acp_core::files::FILES_BYTES_MAX;
use acp_core::permission::kind_note;
use acp_core::render::{form_lines, tool_preview};
use acp_core::request::{CancelResult, PromptAccepted};
use acp_core::rows::RunMode;
use acp_core::session::SessionState;
use acp_shared::ids::{IdempotencyKey, RunId, SessionKey};
use clap::Args;
use data_encoding::BASE64;
use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Maximum size of a prompt read from standard input, in bytes.
const STDIN_BYTES_MAX: u64 = 16 * 1024 * 1024;
const NUMBER_PROMPT: &str = "Your choice (number): ";
/// Exit code after a second Ctrl-C, by shell convention.
const INTERRUPTED: u8 = 130;

/// `prompt` and `steer`
#[derive(Debug, Args)]
#[command(
    allow_missing_positional = true,
    after_help = "Examples:\n  acp-gateway prompt KEY 'what does this repository do?'\n  git diff | acp-gateway prompt KEY - --json\n  acp-gateway prompt --last 'and the tests?'\n  acp-gateway prompt KEY 'what is wrong here?' --file screen.png\n\nThe reply is streamed; the stream continues after a restart of the gateway. Ctrl-C cancels the turn."
)]
pub(crate) struct PromptArgs {
    #[command(flatten)]
    session: SessionArg,
    /// Text to send; `-` reads standard input
    #[arg(allow_hyphen_values = true)]
    text: String,
    /// Stop waiting after this many seconds with exit code 3; the turn continues
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Settle permission requests by policy: no person can answer them
    #[arg(long, conflicts_with = "interactive")]
    non_interactive: bool,
    /// A person answers permission requests elsewhere (`permissions answer`, `chat`)
    #[arg(long)]
    interactive: bool,
    /// Start a new conversation if the old one cannot be resumed
    #[arg(long)]
    new_conversation: bool,
    /// Attach a file or an image; may be repeated
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Print the run's id and do not wait for the reply
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    acts_for: ActsForArgs,
    #[command(flatten)]
    once: IdempotencyArgs,
}

/// `prompt` and `steer`
pub(crate) async fn run(global: &GlobalArgs, args: PromptArgs, steer: bool, out: &mut Out) -> CliResult {
    let deadline = match args.timeout {
        None => None,
        Some(seconds) => {
            let wait = Duration::try_from_secs_f64(seconds).map_err(|e| usage(format!("--timeout: {e}")))?;
            Some(Instant::now().checked_add(wait).ok_or_else(|| usage("--timeout is too long"))?)
        }
    };
    if !args.session.is_given() && is_session_key(&args.text) {
        return Err(usage(format!("the text for {} is missing", args.text)).into());
    }
    let from_stdin = args.text == "-";
    let text = if from_stdin { read_stdin()? } else { args.text };
    if text.trim().is_empty() {
        return Err(usage("the text is empty").into());
    }
    // Permission requests can be answered by a person at the terminal.
    let ask = !args.non_interactive && !out.json && !from_stdin && !args.no_wait && io::stdin().is_terminal();
    let body = PromptBody {
        text,
        mode: Some(if steer { RunMode::Steer } else { RunMode::Prompt }),
        author: None,
        interactive: ask || args.interactive,
        permission: None,
        non_interactive_permissions: None,
        new_conversation: args.new_conversation,
        files: args.file.iter().map(|path| attached_file(path)).collect::<Result<_, _>>()?,
    };
    let client = args.acts_for.client(global.client()?.until(deadline)).await?;
    let session = args.session.resolve(&client).await?;
    let path = format!("/v1/sessions/{}/prompt", encode(session.as_str()));
    let accepted: PromptAccepted = client.post(&path, &body, &args.once.key()).await?;
    if args.no_wait {
        return out.show(&accepted, |accepted| accepted.run_id.to_string());
    }
    if accepted.queued_behind > 0 && !accepted.steered {
        out.note(&format!("[queued behind {}]", accepted.queued_behind))?;
    }
    let mut turn = TurnFollower {
        events: client.events(EventSelection {
            session: session.clone(),
            after: accepted.after_seq,
            // The reply to a steer is part of the running turn, so all runs are followed.
            run: (!accepted.steered).then_some(accepted.run_id),
            replay: false,
            follow: true,
        }),
        session,
        run: accepted.run_id,
        steered: accepted.steered,
        client,
        asker: ask.then(stdin_lines),
        question: None,
        show: EventPrinter::reply(),
    };
    turn.follow(out).await
}

/// Reads a file to attach.
fn attached_file(path: &Path) -> Result<FileBody, Failure> {
    let cannot = |why: String| usage(format!("--file {}: {why}", path.display()));
    let file = File::open(path).map_err(|error| cannot(error.to_string()))?;
    let mut bytes = Vec::new();
    let limit = FILES_BYTES_MAX as u64;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|error| cannot(error.to_string()))?;
    if bytes.len() as u64 > limit {
        return Err(cannot(format!("larger than the {limit} bytes that all files of a prompt may have")));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let mime = image_type(&bytes).unwrap_or_default().to_owned();
    Ok(FileBody { name, mime, base64: BASE64.encode(&bytes) })
}

/// Returns the media type of an image by its first bytes: the formats that agents take.
fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn read_stdin() -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let mut limited = io::stdin().lock().take(STDIN_BYTES_MAX + 1);
    limited.read_to_end(&mut bytes).map_err(|error| inside("cannot read standard input", &error))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        return Err(usage(format!("standard input holds more than {STDIN_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        usage(format!("standard input is not UTF-8 text (byte {at}): convert it first"))
    })
}

/// Lines typed by a person, read on a separate thread.
fn stdin_lines() -> mpsc::Receiver<String> {
    let (lines, typed) = mpsc::channel(4);
    // The thread ends with the process, or at the end of its input.
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    typed
}

async fn next_line(asker: &mut Option<mpsc::Receiver<String>>) -> String {
    if let Some(lines) = asker
        && let Some(line) = lines.recv().await
    {
        return line;
    }
    std::future::pending().await
}

/// State of following a turn.
struct TurnFollower {
    client: GatewayClient,
    events: EventStream,
    session: SessionKey,
    run: RunId,
    steered: bool,
    asker: Option<mpsc::Receiver<String>>,
    /// Pending permission request or elicitation: id, options and form.
    question: Option<(String, Vec<OptionView>, Option<Elicitation>)>,
    show: EventPrinter,
}

impl TurnFollower {
    async fn follow(&mut self, out: &mut Out) -> CliResult {
        let mut interrupt =
            signal(SignalKind::interrupt()).map_err(|error| inside("cannot wait for Ctrl-C", &error))?;
        let mut cancelled = false;
        loop {
            let line = match self.events.ready() {
                Some(ready) => ready?,
                None => {
                    out.flush()?;
                    match self.wait(&mut interrupt).await? {
                        FollowEvent::Event(line) => line,
                        FollowEvent::Typed(line) => {
                            self.answer(&line, out).await?;
                            continue;
                        }
                        FollowEvent::Interrupted if cancelled => return Err(CliError::Code(INTERRUPTED)),
                        FollowEvent::Interrupted => {
                            cancelled = true;
                            self.cancel(out).await?;
                            continue;
                        }
                    }
                }
            };
            let Some(line) = line else { return self.on_stream_end(out) };
            let head = EventHead::of(&line)?;
            self.show.event(&line, &head, out)?;
            if let Some(outcome) = self.outcome_of(&line, &head, out).await? {
                return outcome;
            }
        }
    }

    async fn wait(&mut self, interrupt: &mut Signal) -> Result<FollowEvent, Failure> {
        tokio::select! {
            line = self.events.next() => line.map(FollowEvent::Event),
            typed = next_line(&mut self.asker) => Ok(FollowEvent::Typed(typed)),
            _ = interrupt.recv() => Ok(FollowEvent::Interrupted),
        }
    }

    /// Returns the outcome of the command if the event determines it.
    async fn outcome_of(
        &mut self,
        line: &str,
        head: &EventHead<'_>,
        out: &mut Out,
    ) -> Result<Option<CliResult>, CliError> {
        let own = head.run_id.as_deref() == Some(self.run.to_string().as_str());
        match head.kind.as_ref() {
            "permission" => self.ask(line, out)?,
            "permission_settled" => self.question = None,
            // A steer's reply is part of the running turn; its own end says only that it was accepted.
            "done" if self.steered && own => {
                let view: SessionView =
                    self.client.get(&format!("/v1/sessions/{}", encode(self.session.as_str()))).await?;
                let busy = matches!(view.state, SessionState::Running | SessionState::Cancelling);
                if !busy {
                    return Ok(Some(Ok(())));
                }
            }
            "done" => return Ok(Some(Ok(()))),
            "error" if own || self.steered => return Ok(Some(Err(CliError::Code(exit_of(line))))),
            _ => {}
        }
        Ok(None)
    }

    fn on_stream_end(&self, out: &mut Out) -> CliResult {
        out.end_line()?;
        Err(Failure::of(acp_shared::codes::Code::SessionClosed).origin("gateway").into())
    }

    fn ask(&mut self, line: &str, out: &mut Out) -> CliResult {
        if self.asker.is_none() {
            return Ok(());
        }
        #[derive(serde::Deserialize)]
        struct PermissionPayload {
            permission_id: String,
            title: String,
            options: Vec<OptionView>,
            #[serde(default)]
            tool_call: serde_json::Value,
            form: Option<Elicitation>,
        }
        let asked: PermissionPayload = match serde_json::from_str(line) {
            Ok(asked) => asked,
            Err(error) => return out.note(&format!("[a permission request cannot be shown: {error}]")),
        };
        if let Some(form) = asked.form {
            out.line(&format!("The agent asks: {}", name(&form.message)))?;
            out.line(form_lines(&form, false).trim_start_matches('\n'))?;
            let has_fields = !form.fields().is_empty() && !form.is_numbered();
            if !has_fields {
                self.list_options(&asked.options, out)?;
            }
            out.text(if has_fields { "Your answer (FIELD=VALUE ..., or decline): " } else { NUMBER_PROMPT })?;
            out.flush()?;
            self.question = Some((asked.permission_id, asked.options, Some(form)));
            return Ok(());
        }
        out.line(&format!("The agent asks: {}", name(&asked.title)))?;
        if let Some(excerpt) = tool_preview(&asked.tool_call, false) {
            out.line(&excerpt)?;
        }
        self.list_options(&asked.options, out)?;
        out.text(NUMBER_PROMPT)?;
        out.flush()?;
        self.question = Some((asked.permission_id, asked.options, None));
        Ok(())
    }

    fn list_options(&self, options: &[OptionView], out: &mut Out) -> CliResult {
        let choices = options.iter().enumerate().map(|(i, option)| {
            let called = option.name.as_deref().unwrap_or(&option.option_id);
            let note = kind_note(called, option.kind.as_deref().unwrap_or_default());
            format!("  {} {}{note}", i + 1, name(called))
        });
        out.line(&choices.collect::<Vec<_>>().join("\n"))
    }

    async fn answer(&mut self, typed: &str, out: &mut Out) -> CliResult {
        let Some((permission_id, options, form)) = &self.question else { return Ok(()) };
        let body = match typed_answer(typed.trim(), options, form.as_ref()) {
            Ok(body) => body,
            Err(why) => {
                out.text(&why)?;
                return out.flush();
            }
        };
        let (session, id) = (encode(self.session.as_str()), encode(permission_id));
        let path = format!("/v1/sessions/{session}/permissions/{id}");
        let answered: Result<Done, Failure> = self.client.post(&path, &body, &IdempotencyKey::mint()).await;
        if let Err(failure) = answered {
            // Another client was faster, or the turn is over; the events report both.
            print_message(&format!("not answered: {failure}"));
        }
        self.question = None;
        Ok(())
    }

    async fn cancel(&mut self, out: &mut Out) -> CliResult {
        out.note("[cancelling; Ctrl-C again exits without waiting for the end of the turn]")?;
        let path = format!("/v1/sessions/{}/cancel", encode(self.session.as_str()));
        let body = CancelBody { run_id: (!self.steered).then_some(self.run) };
        let _: CancelResult = self.client.post(&path, &body, &IdempotencyKey::mint()).await?;
        Ok(())
    }
}

/// Reads a typed answer to a question; the error asks again.
fn typed_answer(
    typed: &str,
    options: &[OptionView],
    form: Option<&Elicitation>,
) -> Result<AnswerBody, String> {
    let fields = form.filter(|form| !form.fields().is_empty() && !form.is_numbered());
    let number = typed.parse::<usize>().ok().filter(|_| fields.is_none());
    let by_number = number.and_then(|n| options.get(n.checked_sub(1)?));
    let by_id = || options.iter().find(|option| option.option_id == typed);
    if let Some(option) = by_number.or_else(by_id) {
        return Ok(AnswerBody::of_option(option.option_id.clone()));
    }
    let form = fields.ok_or("Enter one of the numbers: ")?;
    let words = ParsedArgs::parse(typed, &[]).map(|args| args.words);
    let content = words.and_then(|words| parse_fields(form, &words));
    content.map(AnswerBody::of_content).map_err(|why| format!("{why}\nYour answer: "))
}

enum FollowEvent {
    Event(Option<String>),
    Typed(String),
    Interrupted,
}
